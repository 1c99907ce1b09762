//! Starts that a line takes one after the other, and that share one commit to the ledger.

use super::limit::RefusedStart;
use super::session::Session;
use super::table::Blocked;
use super::writer::Want;
use crate::error::{Error, Result};
use crate::waiting::MayWait;
use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    static COLLECTED: RefCell<Option<Vec<Unwritten>>> = const { RefCell::new(None) };
}

/// A start, or a place, that was taken and is not in the ledger yet, though it must be.
#[derive(Debug)]
pub(crate) struct Unwritten {
    store: Arc<Session>,
    want: Arc<Want>,
    start: RefusedStart,
}

/// Ends a collection, also after a panic. Its value is the collection around it.
struct Collection(Option<Vec<Unwritten>>);

impl Drop for Collection {
    fn drop(&mut self) {
        COLLECTED.set(self.0.take());
    }
}

impl Unwritten {
    /// Runs a call that does not wait for the ledger, and returns what it took unwritten.
    pub fn collect<R>(call: impl FnOnce() -> R) -> (R, Vec<Unwritten>) {
        let _collection = Collection(COLLECTED.replace(Some(Vec::new())));
        let answer = call();
        (answer, COLLECTED.take().unwrap_or_default())
    }

    /// Adds a start to the collection of this thread. Returns `false` if there is none: the start has to be written now.
    pub(super) fn add(store: &Arc<Session>, start: RefusedStart, want: impl FnOnce() -> Arc<Want>) -> bool {
        COLLECTED.with_borrow_mut(|collected| {
            let new = |all: &mut Vec<Unwritten>| all.push(Unwritten { store: store.clone(), want: want(), start });
            collected.as_mut().map(new).is_some()
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
