//! The requests of a line to its limiter.

use super::shown::NOTICES;
use crate::decision::LOOK_AGAIN;
use crate::error::Result;
use crate::limiter::internal::When;
use crate::limiter::{Attempt, Limiter, Reserved};
use crate::permit::RawPermit;
use crate::policy::{self, MAX_DEFAULT_GRACE, Share};
use crate::time::{Tick, from_ticks, grace_ticks, patience_ticks};
use std::time::Duration;

/// A limiter's reply to a waiter.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The start is admitted.
    Started(RawPermit),
    /// A start in the future.
    Place {
        /// The place to present.
        place: RawPermit,
        /// The time until it is ready.
        after: Duration,
    },
    /// Nothing is free before the waiter's patience ends.
    Denied {
        /// The time until something may be free.
        after: Duration,
        /// Whether nothing can be free before that. Otherwise the time suggests when to retry.
        is_certain: bool,
    },
    /// Not now, and it is not known when. So many waiters of other processes come first, as a server says.
    Behind {
        /// Their number.
        ahead: usize,
        /// For how long only an end in this process frees units, which rings the key's bell. `None`: other processes hold some, or
        /// enough are free.
        own_for: Option<Tick>,
    },
    /// The queue is full. Waiting for capacity in a queue is not supported.
    Full {
        /// The time until one more caller may wait.
        after: Duration,
    },
}

/// A far place that [has looked ahead](super::super::internal::Awaited::look_ahead).
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Ahead {
    /// The place to present.
    pub place: RawPermit,
    /// The time until it is ready.
    pub after: Duration,
    /// How long not to look again; `None`: it need not.
    pub again: Option<Duration>,
}

/// The terms of a line's request.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// The longest wait; `None`: no limit.
    pub most: Option<Duration>,
    /// The least grace of a place, as the line needs it.
    pub grace: Duration,
    /// The least grace, as waiters requested it. A place that a server granted with less grace is not accepted.
    pub asked: Duration,
    /// Whether to take a place even where a start is possible, because it would start before places that the line
    /// already holds.
    pub as_place: bool,
    /// Whether to take what is free, whoever waits: the line has the turn among those of all processes, or is not one of
    /// them. (Where tenants share the limit, its order decides nevertheless.)
    pub in_turn: bool,
    /// The waiter's order among those that are shown, where tenants share the limit: behind all others of its tenant, until its
    /// line is shown.
    pub tag: u64,
    /// The share of its tenant there, if it is not the one that is kept.
    pub share: Option<Share>,
    /// Who asks, where a server keeps the order of all processes. `None`: it does not wait, or its line is not one of them.
    pub waiter: Option<Asker>,
    /// The priority of a request that does not wait.
    pub priority: i32,
}

/// A waiter, as a server knows it.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asker {
    /// Less is sooner.
    pub priority: i32,
    /// When it asked, by the clock of its process. No two waiters of a key in one process have both alike.
    pub since: Tick,
    /// How long ago that is.
    pub waited: Tick,
    /// It asks again before this time is over.
    pub life: Tick,
}

impl Terms {
    /// A start, or nothing.
    pub const NOW: Terms = Terms {
        most: Some(Duration::ZERO),
        grace: Duration::ZERO,
        asked: Duration::ZERO,
        as_place: false,
        in_turn: false,
        tag: u64::MAX,
        share: None,
        waiter: None,
        priority: 0,
    };

    /// The first request of a waiter, before it waits.
    pub(super) fn now(
        asked: Duration,
        timeout: Option<Duration>,
        (share, priority): (Option<Share>, i32),
    ) -> Result<Terms> {
        policy::check_shares(share)?;
        grace_ticks("grace", asked)?;
        let in_turn = timeout.is_some_and(|timeout| patience_ticks(timeout) < NOTICES);
        Ok(Terms { asked, in_turn, share, priority, ..Terms::NOW })
    }
}

/// [`Awaited::claim`](super::super::internal::Awaited::claim) for a limiter that has only the public calls.
pub(crate) fn claim_by_calls(
    limiter: &dyn Limiter,
    (key, weight): (&str, u64),
    Terms { most, grace, asked, as_place, .. }: Terms,
) -> Result<Claim> {
    // It peeks first: a denied attempt would count as a denial.
    let seen = limiter.quiet_peek(key, weight)?;
    if seen.admitted
        && !(as_place && limiter.has_places())
        && let Attempt::Admitted(permit) = limiter.quiet_attempt(key, weight)?
    {
        return Ok(Claim::Started(permit));
    }
    if !limiter.has_places() {
        // A gate opens at a known time, but a start may complete at any time.
        let closed = seen.retry_after.min(seen.reset_after);
        return Ok(Claim::Denied { after: closed.max(LOOK_AGAIN), is_certain: closed > LOOK_AGAIN });
    }
    let (grace, most_usual) = (grace.max(asked), from_ticks(MAX_DEFAULT_GRACE));
    let grace = limiter.window(key)?.filter(|window| grace > (*window / 40).min(most_usual)).map(|_| grace);
    let when = When { delay: Duration::ZERO, max_wait: most, grace, is_waiter: true };
    Ok(match limiter.quiet_reserve(key, weight, when)? {
        Reserved::Place { place, after } => Claim::Place { place, after },
        Reserved::Denied(after) => match most.is_some_and(|most| after > most) {
            false if limiter.has_bounded_queue() => Claim::Full { after },
            is_certain => Claim::Denied { after, is_certain },
        },
    })
}
