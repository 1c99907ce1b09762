//! The reply of a limiter.

use crate::permit::RawPermit;
use std::sync::Arc;
use std::time::Duration;

/// The retry delay that a denial suggests where the next completion cannot be predicted.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The full reply to an attempt to start: admitted or denied, and when to retry.
#[derive(Debug, Clone)]
pub struct Decision {
    /// The permit of the start, if it was admitted. `None` in a denial, and always in a [`peek`](crate::Limiter::peek).
    pub permit: Option<RawPermit>,
    /// Whether the start is admitted.
    pub admitted: bool,
    /// Zero if admitted. Otherwise a retry after this long succeeds, unless another caller took the units; a retry one
    /// microsecond earlier fails. For a concurrency limit, which frees units when a start completes, this suggests when
    /// to retry.
    pub retry_after: Duration,
    /// `retry_after` for callers that requeue: never less.
    pub suggested_after: Duration,
    /// The heaviest start that would be admitted after this decision.
    pub remaining: u64,
    /// The capacity of the limit.
    pub limit: u64,
    /// The limiter is back in its initial state after this long with no further start. Zero for a concurrency limit,
    /// which cannot know it.
    pub reset_after: Duration,
    /// The name of the limit that denied the start.
    pub denied_by: Option<Arc<str>>,
}
