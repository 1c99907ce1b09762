//! How long a call may wait for something rare: a lock that others hold, the database, a file.
//!
//! Most decisions wait for nothing. A few have to: the first use of a limit opens files, a new key may need room, and a limit with
//! a long window must not run ahead of its ledger. Where the caller holds what others need (Python's GIL, an event loop) it
//! says so here, and is told [`Error::WouldWait`](crate::Error) instead. It then asks again from where it may wait.

use crate::error::{Error, Result};
use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long a call waits for others that may do so [`MayWait::Briefly`].
const BRIEFLY: Duration = Duration::from_millis(40);

/// How long a call may wait for something rare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum MayWait {
    /// Up to the store's timeout. The default.
    UntilTimeout = 0,
    /// It does its own part of the work, and waits for others 40 ms at most: for synchronous calls on an event loop.
    Briefly = 1,
    /// Not at all: [`Error::WouldWait`](crate::Error), and nothing has changed.
    Never = 2,
    /// As [`MayWait::Briefly`] on this machine, and never for a server, however near: what has to ask one answers
    /// [`Error::WouldWait`](crate::Error), and nothing has changed.
    BrieflyHere = 3,
}

static DEFAULT: AtomicU8 = AtomicU8::new(MayWait::UntilTimeout as u8);

thread_local! {
    static HERE: Cell<Option<MayWait>> = const { Cell::new(None) };
    static SLICE: Cell<Option<Slice>> = const { Cell::new(None) };
}

/// What one call may wait of a wait that lasts longer.
#[derive(Clone, Copy)]
struct Slice {
    /// When that wait began.
    since: Instant,
    length: Duration,
    /// And for a server, which is not asked again and again: who gives up waiting for it cannot know what it has done.
    for_server: Duration,
    /// Would there have been more of the store's timeout?
    is_cut: bool,
}

/// Puts a thread's value back, also after a panic.
struct Restore<T: Copy + 'static>(&'static std::thread::LocalKey<Cell<Option<T>>>, Option<T>);

impl<T: Copy> Restore<T> {
    fn after(key: &'static std::thread::LocalKey<Cell<Option<T>>>, value: T) -> Restore<T> {
        Restore(key, key.try_with(|here| here.replace(Some(value))).unwrap_or(None))
    }
}

impl<T: Copy> Drop for Restore<T> {
    fn drop(&mut self) {
        let _ = self.0.try_with(|here| here.set(self.1));
    }
}

impl MayWait {
    /// What holds in this process where [`MayWait::during`] says nothing else: for a language's binding, once.
    pub fn set_default(self) {
        DEFAULT.store(self as u8, Relaxed);
    }

    /// Lets this hold in this thread while `call` runs.
    pub fn during<R>(self, call: impl FnOnce() -> R) -> R {
        let _restore = Restore::after(&HERE, self);
        call()
    }

    /// Where `call` may wait until the store's timeout, which is counted from `since`, it waits `length` of that at most:
    /// [`Error::WouldWait`] then, unless the whole timeout is over. So a line looks after its other waiters meanwhile.
    pub(crate) fn in_slice<R>(since: Instant, length: Duration, call: impl FnOnce() -> R) -> R {
        Self::in_slices(since, length, Duration::MAX, call)
    }

    /// The same, where it waits for a server as long as `for_server` at most.
    pub(crate) fn in_slices<R>(since: Instant, length: Duration, for_server: Duration, call: impl FnOnce() -> R) -> R {
        let _restore = Restore::after(&SLICE, Slice { since, length, for_server, is_cut: false });
        call()
    }

    /// How long this thread may wait, of a store's whole timeout.
    pub(crate) fn patience(timeout: Duration) -> Result<Duration> {
        Self::cut(timeout, |slice| slice.length)
    }

    fn cut(timeout: Duration, length: impl Fn(&Slice) -> Duration) -> Result<Duration> {
        let slice = SLICE.try_with(Cell::get).unwrap_or(None);
        let Some(slice) = slice.filter(|_| MayWait::here() == MayWait::UntilTimeout) else {
            return Self::part(timeout);
        };
        let (left, length) = (timeout.saturating_sub(slice.since.elapsed()), length(&slice));
        SLICE.set(Some(Slice { is_cut: length < left, ..slice }));
        Ok(left.min(length))
    }

    /// How long it may wait, of a part of that.
    pub(crate) fn part(patience: Duration) -> Result<Duration> {
        match MayWait::here() {
            MayWait::UntilTimeout => Ok(patience),
            MayWait::Briefly | MayWait::BrieflyHere => Ok(patience.min(BRIEFLY)),
            MayWait::Never => Err(Error::WouldWait),
        }
    }

    /// The same for a server.
    pub(crate) fn part_for_server(patience: Duration) -> Result<Duration> {
        match MayWait::here() {
            MayWait::BrieflyHere => Err(Error::WouldWait),
            _ => Self::cut(patience, |slice| slice.for_server),
        }
    }

    /// Is the rest of the store's timeout for later calls?
    pub(crate) fn is_cut() -> bool {
        SLICE.try_with(Cell::get).unwrap_or(None).is_some_and(|slice| slice.is_cut)
    }

    /// Takes back what a call has done so far: that has to be done, and may wait briefly at least.
    pub(crate) fn to_undo<R>(call: impl FnOnce() -> R) -> R {
        match MayWait::here() {
            MayWait::Never => MayWait::Briefly.during(call),
            _ => call(),
        }
    }

    /// What holds here. Only asked where something rare begins.
    pub(crate) fn here() -> MayWait {
        let here = HERE.try_with(Cell::get).unwrap_or(None);
        here.unwrap_or_else(|| match DEFAULT.load(Relaxed) {
            0 => MayWait::UntilTimeout,
            1 => MayWait::Briefly,
            2 => MayWait::Never,
            _ => MayWait::BrieflyHere,
        })
    }
}

#[cfg(all(test, not(model)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_holds_inside_and_no_longer() {
        assert_eq!(MayWait::here(), MayWait::UntilTimeout);
        MayWait::Never.during(|| {
            assert_eq!(MayWait::here(), MayWait::Never);
            assert_eq!(MayWait::Briefly.during(MayWait::here), MayWait::Briefly);
            assert_eq!(MayWait::here(), MayWait::Never);
            std::thread::spawn(|| assert_eq!(MayWait::here(), MayWait::UntilTimeout)).join().unwrap();
        });
        let _ = std::panic::catch_unwind(|| MayWait::Never.during(|| std::panic::resume_unwind(Box::new(()))));
        assert_eq!(MayWait::here(), MayWait::UntilTimeout);
    }
}
