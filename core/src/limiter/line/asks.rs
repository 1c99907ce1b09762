//! What a line asks of its limiter.

use crate::error::Result;
use crate::limiter::inner::When;
use crate::limiter::{Attempt, LOOK_AGAIN, Limiter, Reserved};
use crate::permit::RawPermit;
use crate::policy::MOST_GRACE;
use crate::time::{from_ticks, grace_ticks};
use std::time::Duration;

/// What a limiter has for a waiter.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// Start.
    Started(RawPermit),
    /// A start in the future.
    Place {
        /// What to present.
        place: RawPermit,
        /// When, from now.
        after: Duration,
    },
    /// Nothing before the waiter's patience ends.
    Denied {
        /// When there may be something, from now.
        after: Duration,
        /// Is nothing possible before that? Otherwise it is a suggestion of when to look again.
        is_certain: bool,
    },
    /// As many wait as may; to wait for room among them makes no sense.
    Full {
        /// When one more may, from now.
        after: Duration,
    },
}

/// What a line takes.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// The longest wait; `None`: however long.
    pub most: Option<Duration>,
    /// The least grace of a place, as the line needs it.
    pub grace: Duration,
    /// The same, as waiters have asked for it. A place that a server has granted for less long will not do.
    pub asked: Duration,
    /// A place, also where there is room for a start: one that would start before places that the line holds already.
    pub as_place: bool,
}

impl Terms {
    /// A start, or nothing.
    pub const NOW: Terms =
        Terms { most: Some(Duration::ZERO), grace: Duration::ZERO, asked: Duration::ZERO, as_place: false };

    /// The same for one who has asked for this grace.
    pub(super) fn now(asked: Duration) -> Result<Terms> {
        grace_ticks("grace", asked)?;
        Ok(Terms { asked, ..Terms::NOW })
    }
}

/// [`Inner::claim`](super::super::Inner::claim) for a limiter that has only the public calls.
pub(crate) fn claim_by_calls(
    limiter: &dyn Limiter,
    (key, weight): (&str, u64),
    Terms { most, grace, asked, as_place }: Terms,
) -> Result<Claim> {
    // Looking first: a denied attempt would count as a denial.
    let seen = limiter.quiet_peek(key, weight)?;
    if seen.admitted
        && !(as_place && limiter.has_places())
        && let Attempt::Admitted(permit) = limiter.quiet_attempt(key, weight)?
    {
        return Ok(Claim::Started(permit));
    }
    if !limiter.has_places() {
        // A gate opens when it says; but somebody may complete at any time.
        let closed = seen.retry_after.min(seen.reset_after);
        return Ok(Claim::Denied { after: closed.max(LOOK_AGAIN), is_certain: closed > LOOK_AGAIN });
    }
    let (grace, most_usual) = (grace.max(asked), from_ticks(MOST_GRACE));
    let grace = limiter.window(key)?.filter(|window| grace > (*window / 40).min(most_usual)).map(|_| grace);
    Ok(match limiter.quiet_reserve(key, weight, When { delay: Duration::ZERO, max_wait: most, grace })? {
        Reserved::Place { place, after } => Claim::Place { place, after },
        Reserved::Denied(after) => match most.is_some_and(|most| after > most) {
            false if limiter.has_bounded_queue() => Claim::Full { after },
            is_certain => Claim::Denied { after, is_certain },
        },
    })
}
