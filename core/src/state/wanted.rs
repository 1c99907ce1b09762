//! What this process wants the ledger's writer to do.

use super::changed::Changed;
use crate::algorithm::log::StartId;
use crate::atomic::*;
use crate::fork::PerProcess;
use crate::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// This process's writer of the ledger.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// Until when no caller tries again, by the monotonic clock.
    pub(super) rests_until: AtomicU64,
    /// Why the last write failed.
    pub(super) failed: PerProcess<String>,
    /// From when on a caller may again wait to take back refused starts.
    pub(super) takes_back_from: AtomicU64,
    /// The keys for which callers of this process wait.
    pub(super) wanted: PerProcess<Vec<Arc<Want>>>,
    /// Counts the commits of this process. Followers sleep on it.
    pub(super) commits: AtomicU64,
    /// A duty is due that the caller that noticed it must not run.
    pub(super) is_due: AtomicBool,
    /// Held by the thread that writes. The lane's byte alone would cost the others system calls.
    pub(super) writing: PerProcess<()>,
}

/// A key for which a caller waits.
#[derive(Debug)]
pub(crate) struct Want {
    /// The lane of the key.
    pub(super) instance: u64,
    pub(super) changed: Changed,
    pub(super) is_done: AtomicBool,
}

/// A start that was refused after it was taken, because the ledger could not be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RefusedStart {
    pub instance: u64,
    pub limit: u64,
    pub hash: Hash,
    pub start: StartId,
    pub ahead: u64,
}
