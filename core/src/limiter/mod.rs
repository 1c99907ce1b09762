//! The family of limiters: one interface, and one file for each.
#![allow(private_interfaces, reason = "`Inner` is sealed: nobody outside can name what its methods give")]

mod composite;
mod concurrency;
mod custom;
mod family;
mod heard;
mod inner;
mod interface;
mod line;
mod null;
mod permit;
mod places;
mod scheduler;
mod timed;

pub use composite::CompositeLimiter;
pub use concurrency::ConcurrencyLimiter;
pub use custom::{Custom, CustomLimiter, End, Verdict};
pub use family::{
    DelayLimiter, EvenlySpacedRateLimiter, FixedWindowLimiter, LeakyBucketLimiter, RateLimiter,
    SlidingWindowCounterLimiter, TokenBucketLimiter,
};
pub use inner::Inner;
pub use interface::{Attempt, Limiter};
pub use line::{Claim, Joined, Line, Outcome, Pool, Seat, Step, Terms, Turn, Waiter, WaiterId, acquire};
pub use null::NullLimiter;
pub use permit::Permit;
pub use places::{Places, Presented, Reserved};
pub use scheduler::Scheduler;
pub(crate) use timed::Timed;

use crate::error::{Error, Result};
use crate::fork::PerProcess;
use std::time::Duration;

/// Where a denial cannot know when somebody will complete, it suggests to look again after this long.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

fn foreign<R>(name: &str) -> Result<R> {
    Err(Error::ForeignPermit { limit: name.to_owned() })
}

/// A random number that is good enough for jitter, and another one in a forked child.
fn random() -> u64 {
    static SEED: PerProcess<Option<u64>> = PerProcess::new();
    let mut seed = SEED.lock();
    let before = seed.unwrap_or_else(|| crate::state::random::<1>().map_or(0, |[r]| r));
    // SplitMix64, by Steele, Lea and Flood (2014).
    let state = before.wrapping_add(0x9e37_79b9_7f4a_7c15);
    *seed = Some(state);
    let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

fn unsupported<R>(call: &str, of: &str) -> Result<R> {
    Err(Error::Unsupported { reason: format!("{call} makes no sense for {of}") })
}
