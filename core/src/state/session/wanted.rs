//! What this process wants the ledger's writer to do.

use crate::algorithm::log::StartId;
use crate::atomic::*;
use crate::fork::PerProcess;
use crate::hash::Hash;
use crate::state::cells::layout::LimitAt;
use crate::state::ledger::changed::Changed;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// This process's writer of the ledger.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// Until when no caller tries again, by the monotonic clock.
    pub(in crate::state) rests_until: AtomicU64,
    /// Why the last write failed.
    pub(in crate::state) failed: PerProcess<String>,
    /// From when on a caller may again wait to take back refused starts.
    pub(in crate::state) takes_back_from: AtomicU64,
    /// The keys for which callers of this process wait.
    pub(in crate::state) wanted: PerProcess<Vec<Arc<Want>>>,
    /// Counts the commits of this process. Followers sleep on it.
    pub(in crate::state) commits: AtomicU64,
    /// A duty is due that the caller that noticed it must not run.
    pub(in crate::state) is_due: AtomicBool,
    /// Held by the thread that writes. The lane's byte alone would cost the others system calls.
    pub(in crate::state) writing: PerProcess<()>,
    /// The process, as its fork generation + 1, of which a thread writes what changes of policies have left. 0: none.
    pub(in crate::state) settles: AtomicU64,
    /// From when on a caller may again have such a thread started, by the monotonic clock.
    pub(in crate::state) settles_from: AtomicU64,
    /// The callers that have, or wait for, the right to write. That thread lets them go first.
    callers: PerProcess<usize>,
}

/// A caller that is counted until this is dropped.
pub(in crate::state) struct Caller<'w>(&'w Writer);

impl Writer {
    pub(in crate::state) fn call(&self) -> Caller<'_> {
        *self.callers.lock() += 1;
        Caller(self)
    }

    pub(in crate::state) fn has_callers(&self) -> bool {
        *self.callers.lock() > 0
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        // A forked child counts its own.
        let mut callers = self.0.callers.lock();
        *callers = callers.saturating_sub(1);
    }
}

/// A key for which a caller waits.
#[derive(Debug)]
pub(crate) struct Want {
    /// The lane of the key.
    pub(in crate::state) instance: u64,
    pub(in crate::state) changed: Changed,
    pub(in crate::state) is_done: AtomicBool,
}

/// A start that was refused after it was taken, because the ledger could not be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RefusedStart {
    pub instance: u64,
    pub limit: LimitAt,
    pub hash: Hash,
    pub start: StartId,
    pub ahead: u64,
}
