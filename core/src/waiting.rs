//! How long a call may wait for something rare: a lock that others hold, the database, a file.
//!
//! Most decisions wait for nothing. A few have to: the first use of a limit opens files, a new key may need room, and a limit with
//! a long window must not run ahead of its ledger. Where the caller holds what others need (Python's GIL, an event loop) it
//! says so here, and is told [`Error::WouldWait`](crate::Error) instead. It then asks again from where it may wait.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

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
}

static DEFAULT: AtomicU8 = AtomicU8::new(MayWait::UntilTimeout as u8);

thread_local! {
    static HERE: Cell<Option<MayWait>> = const { Cell::new(None) };
}

impl MayWait {
    /// What holds in this process where [`MayWait::during`] says nothing else: for a language's binding, once.
    pub fn set_default(self) {
        DEFAULT.store(self as u8, Relaxed);
    }

    /// Lets this hold in this thread while `call` runs.
    pub fn during<R>(self, call: impl FnOnce() -> R) -> R {
        /// Also after a panic.
        struct Restore(Option<MayWait>);
        impl Drop for Restore {
            fn drop(&mut self) {
                let _ = HERE.try_with(|here| here.set(self.0));
            }
        }
        let _restore = Restore(HERE.try_with(|here| here.replace(Some(self))).unwrap_or(None));
        call()
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
            _ => MayWait::Never,
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
