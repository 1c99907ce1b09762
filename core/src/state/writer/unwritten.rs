//! Starts that are taken one after the other, and that share one commit to the ledger.

use crate::error::{Error, Result};
use crate::state::cells::home::Blocked;
use crate::state::session::Session;
use crate::state::session::wanted::{RefusedStart, Want};
use crate::waiting::MayWait;
use std::cell::RefCell;
use std::mem;
use std::sync::Arc;

/// What becomes of a start of this thread that must be in the ledger before its call returns.
#[derive(Debug, Default)]
enum Mode {
    /// It is written.
    #[default]
    Write,
    /// It is collected, to be written later.
    Collect(Vec<Unwritten>),
    /// In this store it meets a failure that has happened already.
    Fail(Arc<Session>, Error),
}

thread_local! {
    static MODE: RefCell<Mode> = const { RefCell::new(Mode::Write) };
}

/// Restores the mode of this thread, also after a panic.
struct Restore(Mode);

impl Drop for Restore {
    fn drop(&mut self) {
        MODE.set(mem::take(&mut self.0));
    }
}

/// A start, or a place, that was taken and is not in the ledger yet, though it must be.
#[derive(Debug)]
pub(crate) struct Unwritten {
    store: Arc<Session>,
    want: Arc<Want>,
    start: RefusedStart,
}

impl Unwritten {
    /// Runs a call that does not wait for the ledger, and returns what it took unwritten.
    pub fn collect<R>(call: impl FnOnce() -> R) -> (R, Vec<Unwritten>) {
        let _restore = Restore(MODE.replace(Mode::Collect(Vec::new())));
        let answer = call();
        match MODE.take() {
            Mode::Collect(all) => (answer, all),
            _ => (answer, Vec::new()),
        }
    }

    /// Returns whether this thread collects starts.
    pub(in crate::state) fn is_collecting() -> bool {
        MODE.with_borrow(|mode| matches!(mode, Mode::Collect(_)))
    }

    /// Handles a start that is not to be written now: it is collected, or meets a failure. `None`: it has to be written.
    pub(in crate::state) fn instead(
        store: &Arc<Session>,
        start: RefusedStart,
        want: impl FnOnce() -> Arc<Want>,
    ) -> Option<Result<()>> {
        MODE.with_borrow_mut(|mode| match mode {
            Mode::Collect(all) => {
                all.push(Unwritten { store: store.clone(), want: want(), start });
                Some(Ok(()))
            }
            Mode::Fail(failing, error) if Arc::ptr_eq(failing, store) => Some(Err(error.clone())),
            Mode::Fail(..) | Mode::Write => None,
        })
    }

    /// Writes the start, and with it all others for which callers of this process wait.
    pub fn write(&self) -> Result<()> {
        match self.store.write_wanted(&self.want) {
            Err(Blocked::Refused(Error::StoreTimeout { .. })) if MayWait::is_cut() => Err(Error::WouldWait),
            Err(Blocked::Refused(error)) => Err(error),
            // Another lane has replaced the one in which it was taken.
            Err(_) => Err(Error::WouldWait),
            Ok(()) => Ok(()),
        }
    }

    /// Makes the call again whose start this was, after it could not be written. The call meets that failure.
    pub fn fail<R>(&self, error: Error, call: impl FnOnce() -> R) -> R {
        let _restore = Restore(MODE.replace(Mode::Fail(self.store.clone(), error)));
        call()
    }

    /// Takes the start back, now or later: it must not happen.
    pub fn refuse(&self) {
        self.store.refuse(self.start);
    }
}

impl Drop for Unwritten {
    fn drop(&mut self) {
        self.store.no_longer_wants(&self.want);
    }
}
