//! The family of limiters: one interface, and one file for each kind.
#![allow(private_interfaces, reason = "`Internal` is sealed: code outside cannot name the types of its methods")]

mod acquiring;
mod begun;
mod composite;
mod concurrency;
mod custom;
mod events;
mod family;
mod first_of;
mod interface;
mod internal;
mod line;
mod null;
mod permit;
mod places;
mod scheduler;
mod shared;
mod timed;
mod waking;

pub use acquiring::Acquiring;
pub use begun::Begun;
pub use composite::CompositeLimiter;
pub use concurrency::ConcurrencyLimiter;
pub use custom::{Custom, CustomLimiter, End, Verdict};
pub use family::{
    DelayLimiter, EvenlySpacedRateLimiter, FixedWindowLimiter, LeakyBucketLimiter, RateLimiter,
    SlidingWindowCounterLimiter, TokenBucketLimiter,
};
pub use first_of::FirstOfLimiter;
pub use interface::{Attempt, Limiter};
pub use internal::Internal;
pub use line::{Claim, Joined, Line, Outcome, Pool, Seat, Step, Terms, Turn, Waiter, WaiterId, acquire};
pub use null::NullLimiter;
pub use permit::Permit;
pub use places::{Places, Presented, Reserved};
pub use scheduler::Scheduler;
pub(crate) use timed::Timed;

use crate::error::{Error, Result};
use crate::state::Limit;
use shared::Shared;
use std::sync::Arc;

/// The limiter of a limit.
pub(crate) fn limiter_of(limit: Limit) -> Arc<dyn Limiter> {
    match (limit.is_concurrency(), limit.is_shared()) {
        (true, false) => Arc::new(ConcurrencyLimiter::of(limit)),
        (true, true) => Arc::new(Shared::new(ConcurrencyLimiter::of(limit))),
        (false, false) => Arc::new(Timed::of(limit)),
        (false, true) => Arc::new(Shared::new(Timed::of(limit))),
    }
}

/// Returns whether tenants share the limit, or a part of it. Then there are no places far ahead.
pub fn is_shared(limiter: &dyn Limiter) -> bool {
    limiter.is_shared()
}

/// Returns whether the limiter, or a part of it, is code of the program's own.
pub fn has_custom(limiter: &dyn Limiter) -> bool {
    limiter.has_custom()
}

fn foreign<R>(name: &str) -> Result<R> {
    Err(Error::ForeignPermit { limit: name.to_owned() })
}

pub(crate) fn unsupported<R>(call: &str, of: &str) -> Result<R> {
    Err(Error::Unsupported { reason: format!("{call} is not supported by {of}") })
}

/// The error for a part that a limiter does not have.
fn unknown_part(limiter: &str, part: &str, known: &[Arc<str>]) -> Error {
    let expected = match known {
        [] => format!("none: limiter \"{limiter}\" has no parts"),
        known => format!("a part of limiter \"{limiter}\": {}", known.join(", ")),
    };
    Error::invalid("part", format_args!("\"{part}\""), expected)
}
