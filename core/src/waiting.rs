//! How long a call may wait for a rare operation: a lock that another thread holds, the database, a file.
//!
//! Most decisions wait for nothing. A few have to: the first use of a limit opens files, a new key may need memory, and
//! a limit with a long window must not get ahead of its ledger. A caller that holds what other code needs (Python's
//! GIL, an event loop) declares that here, and gets [`Error::WouldWait`](crate::Error) instead of waiting. It then
//! repeats the call from a thread that may wait.

use crate::error::{Error, Result};
use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long a call with [`MayWait::Briefly`] waits for other threads and processes.
const BRIEFLY: Duration = Duration::from_millis(40);

/// How long a call may wait for a rare operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum MayWait {
    /// Up to the store's timeout. The default.
    UntilTimeout = 0,
    /// Does its own part of the work, and waits at most 40 ms for others: for synchronous calls on an event loop.
    Briefly = 1,
    /// Does not wait: the call returns [`Error::WouldWait`](crate::Error), and nothing has changed.
    Never = 2,
    /// As [`MayWait::Briefly`] on this machine, but never waits for a server, however near. A call that needs a server
    /// returns [`Error::WouldWait`](crate::Error), and nothing has changed.
    BrieflyHere = 3,
}

static DEFAULT: AtomicU8 = AtomicU8::new(MayWait::UntilTimeout as u8);

thread_local! {
    static HERE: Cell<Option<MayWait>> = const { Cell::new(None) };
    static SLICE: Cell<Option<Slice>> = const { Cell::new(None) };
    static IS_IN_LINE: Cell<Option<bool>> = const { Cell::new(None) };
}

/// As long as it lives, this thread asks limits for waiters, whose lines keep the order. Other calls are denied what a waiter comes
/// before them for.
pub(crate) struct InLine {
    _restore: Restore<bool>,
}

impl InLine {
    pub(crate) fn enter() -> InLine {
        InLine { _restore: Restore::after(&IS_IN_LINE, true) }
    }

    pub(crate) fn is_here() -> bool {
        IS_IN_LINE.try_with(Cell::get).unwrap_or(None).is_some()
    }
}

/// As long as it lives, this thread's calls wait for nobody on this machine, unless they have a slice of their own: what a caller
/// with a deadline wants to know, but does not need. They still do their own part of the work, if nobody else is busy.
pub(crate) struct AtOnce {
    _restore: Restore<Slice>,
}

impl AtOnce {
    pub(crate) fn enter() -> AtOnce {
        let slice = Slice { length: Duration::ZERO, ..Slice::whole(None) };
        AtOnce { _restore: Restore::after(&SLICE, slice) }
    }
}

/// The part of a longer wait that one call may use.
#[derive(Clone, Copy)]
struct Slice {
    /// The start of the longer wait; `None` until something waits.
    since: Option<Instant>,
    length: Duration,
    /// The limit for a server. A request to a server is not repeated: a caller that stops waiting cannot know whether
    /// it took effect.
    for_server: Duration,
    /// The least that the call may use, even if the store's timeout is over.
    least: Duration,
    /// Whether the caller waits for a start anyway.
    outlasts: bool,
    /// Whether more of the store's timeout was left than the call used.
    is_cut: bool,
}

impl Slice {
    /// All of a longer wait.
    fn whole(since: Option<Instant>) -> Slice {
        let [length, for_server] = [Duration::MAX; 2];
        Slice { since, length, for_server, least: Duration::ZERO, outlasts: false, is_cut: false }
    }
}

/// As long as it lives, the steps of a call share one deadline.
pub(crate) struct AsOne {
    _restore: Option<Restore<Slice>>,
}

/// Restores a thread's value when dropped, also after a panic.
struct Restore<T: Copy + 'static>(&'static std::thread::LocalKey<Cell<Option<T>>>, Option<T>);

impl<T: Copy> Restore<T> {
    fn after(key: &'static std::thread::LocalKey<Cell<Option<T>>>, value: impl Into<Option<T>>) -> Restore<T> {
        Restore(key, key.try_with(|here| here.replace(value.into())).unwrap_or(None))
    }
}

impl<T: Copy> Drop for Restore<T> {
    fn drop(&mut self) {
        let _ = self.0.try_with(|here| here.set(self.1));
    }
}

impl MayWait {
    /// Sets the default of this process, for calls outside [`MayWait::during`]. A language's binding calls this once.
    pub fn set_default(self) {
        DEFAULT.store(self as u8, Relaxed);
    }

    /// Applies this value in the current thread while `call` runs.
    pub fn during<R>(self, call: impl FnOnce() -> R) -> R {
        let _restore = Restore::after(&HERE, self);
        call()
    }

    /// Runs code of users, such as a hook, as outside of any call: how this thread's call may wait does not apply to theirs.
    pub(crate) fn outside<R>(call: impl FnOnce() -> R) -> R {
        let _restore = (Restore::after(&HERE, None), Restore::after(&SLICE, None), Restore::after(&IS_IN_LINE, None));
        call()
    }

    /// Limits the waiting in `call` to `length`. The call returns [`Error::WouldWait`] after that, unless the store's
    /// whole timeout is over, which is counted from `since`. A line can thus serve its other waiters in between.
    pub(crate) fn in_slice<R>(since: Instant, length: Duration, call: impl FnOnce() -> R) -> R {
        let _restore = Restore::after(&SLICE, Slice { length, ..Slice::whole(Some(since)) });
        call()
    }

    /// The same for a caller that waits for a start, with a separate limit for a server: `for_server`. It outlasts short
    /// failures.
    pub(crate) fn in_slices<R>(since: Instant, length: Duration, for_server: Duration, call: impl FnOnce() -> R) -> R {
        let _restore =
            Restore::after(&SLICE, Slice { length, for_server, outlasts: true, ..Slice::whole(Some(since)) });
        call()
    }

    /// Until the result is dropped, limits the waiting of all steps of a call together to what one step may wait, which
    /// is counted from the first wait.
    pub(crate) fn as_one() -> AsOne {
        // A line's slice is a part of that.
        let call = || Restore::after(&SLICE, Slice::whole(None));
        AsOne { _restore: (!Self::is_one()).then(call) }
    }

    /// Returns whether all steps of this thread's call share one deadline.
    pub(crate) fn is_one() -> bool {
        SLICE.try_with(Cell::get).unwrap_or(None).is_some()
    }

    /// Lets a call that has waited for a thread since `asked` wait for what is left of the store's timeout, or briefly
    /// if nothing is left.
    pub fn for_the_rest<R>(asked: Instant, call: impl FnOnce() -> R) -> R {
        let _restore = Restore::after(&SLICE, Slice { least: BRIEFLY, ..Slice::whole(Some(asked)) });
        MayWait::UntilTimeout.during(call)
    }

    /// Returns how long this thread may wait, given a store's whole timeout.
    pub(crate) fn patience(timeout: Duration) -> Result<Duration> {
        Self::cut(timeout, |slice| slice.length)
    }

    fn cut(timeout: Duration, length: impl Fn(&Slice) -> Duration) -> Result<Duration> {
        let slice = SLICE.try_with(Cell::get).unwrap_or(None);
        let Some(slice) = slice.filter(|_| MayWait::here() == MayWait::UntilTimeout) else {
            return Self::part(timeout);
        };
        let waited = slice.since.map_or(Duration::ZERO, |since| since.elapsed());
        let (left, length) = (timeout.saturating_sub(waited), length(&slice));
        let since = slice.since.or_else(|| Some(Instant::now()));
        SLICE.set(Some(Slice { since, is_cut: length < left, ..slice }));
        Ok(left.min(length).max(slice.least.min(timeout)))
    }

    /// Returns how long this thread may wait, given a part of the timeout.
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

    /// Returns whether the rest of the store's timeout is left for later calls.
    pub(crate) fn is_cut() -> bool {
        SLICE.try_with(Cell::get).unwrap_or(None).is_some_and(|slice| slice.is_cut)
    }

    /// Returns when the wait began of which a step began at `step`.
    fn since(step: Instant) -> Instant {
        SLICE.try_with(Cell::get).unwrap_or(None).and_then(|slice| slice.since).map_or(step, |since| since.min(step))
    }

    /// Returns whether the caller waits for a start anyway, so that a failure that may be short is no answer yet.
    pub(crate) fn outlasts() -> bool {
        SLICE.try_with(Cell::get).unwrap_or(None).is_some_and(|slice| slice.outlasts)
    }

    /// Runs `call`, which undoes the partial work of a call. Undoing is required, so it may always wait briefly.
    pub(crate) fn to_undo<R>(call: impl FnOnce() -> R) -> R {
        match MayWait::here() {
            MayWait::Never => MayWait::Briefly.during(call),
            _ => call(),
        }
    }

    /// Returns the value for this thread. Used where a rare operation begins, and before a start that may cause one.
    #[inline(always)]
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

impl Error {
    /// Gives a timeout the whole wait of its call, of which the last step began at `step`.
    pub(crate) fn after(self, step: Instant) -> Error {
        match self {
            Error::StoreTimeout { doing, reason, waited_ms } => {
                let waited = MayWait::since(step).elapsed().as_millis() as u64;
                Error::StoreTimeout { doing, reason, waited_ms: waited_ms.max(waited) }
            }
            error => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_applies_only_while_the_call_runs() {
        assert_eq!(MayWait::here(), MayWait::UntilTimeout);
        MayWait::Never.during(|| {
            assert_eq!(MayWait::here(), MayWait::Never);
            assert_eq!(MayWait::Briefly.during(MayWait::here), MayWait::Briefly);
            assert_eq!(MayWait::outside(MayWait::here), MayWait::UntilTimeout);
            assert_eq!(MayWait::here(), MayWait::Never);
            std::thread::spawn(|| assert_eq!(MayWait::here(), MayWait::UntilTimeout)).join().unwrap();
        });
        let _ = std::panic::catch_unwind(|| MayWait::Never.during(|| std::panic::resume_unwind(Box::new(()))));
        assert_eq!(MayWait::here(), MayWait::UntilTimeout);
    }

    #[test]
    fn the_steps_of_a_call_share_what_one_may_wait() {
        let hour = Duration::from_secs(3_600);
        let pass = || std::thread::sleep(Duration::from_millis(2));
        {
            let _one = MayWait::as_one();
            pass();
            assert_eq!(MayWait::patience(hour), Ok(hour), "nothing has waited yet");
            pass();
            let rest = MayWait::patience(hour).unwrap();
            assert!(rest < hour && !MayWait::is_cut());
            // The steps of a step are steps of the call.
            let _step = MayWait::as_one();
            assert!(MayWait::patience(hour).unwrap() <= rest);
            assert_eq!(MayWait::patience(Duration::from_millis(1)), Ok(Duration::ZERO));
        }
        assert_eq!(MayWait::patience(hour), Ok(hour), "of the next call");
    }

    #[test]
    fn a_call_that_waited_for_a_thread_has_the_rest_of_the_timeout() {
        let asked = Instant::now();
        let patience =
            |timeout| MayWait::Briefly.during(|| MayWait::for_the_rest(asked, || MayWait::patience(timeout)));
        let hour = Duration::from_secs(3_600);
        let rest = patience(hour).unwrap();
        assert!(rest < hour && rest > BRIEFLY);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(patience(BRIEFLY + Duration::from_millis(1)), Ok(BRIEFLY));
        assert_eq!(patience(Duration::from_millis(1)), Ok(Duration::from_millis(1)));
    }
}
