//! What servers say about their own limits, and has not been learned yet: see `names/learned.rs`.

use crate::policy::Quota;
use std::sync::Arc;

/// The least time between two looks whether the store still has what was learned, in ns. It is at least a window.
const LOOK_AGAIN: u128 = 60_000_000_000;

/// What a server has said about a limit.
#[derive(Debug, Default)]
pub(in crate::state) struct Told {
    /// What was learned last.
    pub learned: Option<Quota>,
    /// When that was compared with the store last, by the store's clock.
    pub looked: u64,
    /// What was said last, if that is not learned yet.
    pub said: Option<Said>,
    /// What the store does not have yet.
    pub pending: Option<Arc<Pending>>,
}

impl Told {
    /// Returns whether what was learned is to be compared with the store again.
    pub fn is_due(&self, quota: &Quota, now: u64) -> bool {
        u128::from(now.saturating_sub(self.looked)) >= quota.window.as_nanos().max(LOOK_AGAIN)
    }
}

/// What is learned if it is said again.
#[derive(Debug, Clone, Copy)]
pub(in crate::state) struct Said {
    pub quota: Quota,
    /// Since when nothing else was said, by the store's clock.
    pub since: u64,
    /// Whether it would raise what was learned before.
    pub is_raise: bool,
}

/// What a thread has to put into the store.
#[derive(Debug)]
pub(in crate::state) struct Pending {
    pub said: Said,
    pub host: String,
    /// Whether nothing else was said for its whole window.
    pub is_certain: bool,
    /// Whether it was learned before, and is learned again only if another process has learned more.
    pub is_known: bool,
}
