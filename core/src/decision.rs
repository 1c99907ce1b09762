//! What a limiter answers.

use crate::permit::RawPermit;
use std::sync::Arc;
use std::time::Duration;

/// The whole answer to "may this start now, and if not, when?".
#[derive(Debug, Clone)]
pub struct Decision {
    /// What the start holds, if it was admitted. `None` in a denial, and always in a [`peek`](crate::Limiter::peek).
    pub permit: Option<RawPermit>,
    /// May it start?
    pub admitted: bool,
    /// Zero if admitted. Else after this long a retry succeeds, if nobody else took the room; one microsecond earlier
    /// it fails. For a concurrency limit, which frees when somebody completes, a suggestion of when to look again.
    pub retry_after: Duration,
    /// `retry_after` for callers that requeue: never less.
    pub suggested_after: Duration,
    /// The heaviest start that would be admitted after this decision.
    pub remaining: u64,
    /// What the limit allows.
    pub limit: u64,
    /// After this long with no further start the limiter is as new. For a concurrency limit, which does not know, zero.
    pub reset_after: Duration,
    /// The name of the limit that said no.
    pub denied_by: Option<Arc<str>>,
}
