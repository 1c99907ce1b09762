//! What servers say about their own limits, and has not been learned yet: see `names/learned.rs`.

use crate::policy::Quota;
use std::sync::Arc;

/// What a server has said about a limit.
#[derive(Debug, Default)]
pub(in crate::state) struct Told {
    /// What was learned last.
    pub learned: Option<Quota>,
    /// What was said last, if that is not learned yet.
    pub said: Option<Said>,
    /// What the store does not have yet.
    pub pending: Option<Arc<Pending>>,
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
}
