//! One line of waiters per limiter and key, ordered by priority and then by time of request.
//!
//! A line does not sleep, spawn or call back. A *driver* does that; `errands.rs` does it for lines that ask a server.
//! There are three kinds of drivers. An event loop owns a [`Line`] and keeps one timer for it. The blocking threads of a
//! process share the lines that the limiter keeps for them (see [`Seat`]). The code that feeds the workers of a queue owns a [`Pool`], whose waiters
//! start elsewhere. `key.rs` and the files of `key` hold the common part.
//!
//! Only the first waiters hold places: those that can start soon. The others cost memory, and no time. Places are not
//! tied to waiters: the place that is ready first serves the first waiter that asks for the same, which is a weight, or the
//! charges of a joint start. So a waiter that leaves, is late or overtakes moves no place.

mod asks;
mod errands;
mod event_loop;
mod key;
mod own_place;
mod pool;
mod seat;
mod shown;
mod tenants;

pub(super) use asks::claim_by_calls;
pub use asks::{Ahead, Asker, Claim, Terms};
pub use event_loop::{Joined, Line, WaiterId};
pub(super) use key::HORIZON;
pub use key::Turn;
pub use pool::Pool;
pub use seat::{Seat, Seats, acquire};
pub use shown::{First, Shown, Turn as LineTurn};
pub(super) use shown::{Lines, NEAR, Passers, Room, calls_of, is_awaited, may_have_line, units_before};

use crate::error::Error;
use crate::limiter::Limiter;
use crate::permit::RawPermit;
use crate::time::{Clock, Tick};
use std::time::{Duration, Instant};

/// A request to start as soon as enough units are free.
#[derive(Debug, Clone, Copy)]
pub struct Waiter<'a> {
    /// The key; unused with a place, which has its own.
    pub key: &'a str,
    /// The units that the start takes; unused with a place.
    pub weight: u64,
    /// Waiters with lower numbers start first, regardless of when they asked. Usually 0. Unused with a place.
    pub priority: i32,
    /// The share of its tenant for this start, where [tenants share](crate::Policy::shared) the limit: 1 to 1,000. `None`: the
    /// one that the store keeps, or 1. Unused with a place, and by other limits.
    pub share: Option<u32>,
    /// The longest wait. `None`: no limit.
    pub timeout: Option<Duration>,
    /// How late it may use its place without losing it, if that is more than the default (window / 40, at most 50 ms):
    /// at most 366 days. Usually zero. Unused with a place, which has its own, and where a limit has no places.
    pub grace: Duration,
    /// A place that the waiter already has. It waits for this place alone, and gives it back when it times out.
    pub place: Option<RawPermit>,
}

impl<'a> Waiter<'a> {
    /// Makes a waiter of priority 0 without a timeout.
    pub fn new(key: &'a str, weight: u64) -> Waiter<'a> {
        Waiter { key, weight, priority: 0, share: None, timeout: None, grace: Duration::ZERO, place: None }
    }

    /// Makes a waiter that already has a place.
    pub fn with_place(place: RawPermit) -> Waiter<'static> {
        Waiter { place: Some(place), ..Waiter::new("", 1) }
    }

    /// Sets the priority: waiters with lower numbers start first.
    #[must_use]
    pub fn priority(self, priority: i32) -> Waiter<'a> {
        Waiter { priority, ..self }
    }

    /// Sets the share of its tenant for this start, in place of the one that the store keeps: 1 to 1,000.
    #[must_use]
    pub fn share(self, share: u32) -> Waiter<'a> {
        Waiter { share: Some(share), ..self }
    }

    /// Sets the longest wait; `None`: no limit.
    #[must_use]
    pub fn timeout(self, timeout: Option<Duration>) -> Waiter<'a> {
        Waiter { timeout, ..self }
    }

    /// Sets the grace, for a caller that may be delayed, for example by a pause of its run time: its place is valid for
    /// at least this long. No other caller can have that start in the meantime, so request no more than is needed.
    #[must_use]
    pub fn grace(self, grace: Duration) -> Waiter<'a> {
        Waiter { grace, ..self }
    }
}

/// The outcome of a wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The start is admitted.
    Admitted(RawPermit),
    /// No units are free before the waiter times out. They would be free after this long. The waiter holds nothing.
    Expired(Duration),
    /// The limiter failed for this waiter. It holds nothing.
    Failed(Error),
}

impl Outcome {
    /// Returns the permit of the start, if it is admitted.
    fn permit(self) -> Option<RawPermit> {
        if let Outcome::Admitted(permit) = self { Some(permit) } else { None }
    }
}

/// The next action of a waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The start is admitted.
    Admitted(RawPermit),
    /// Sleep at most this long, then take another step.
    Sleep(Duration),
    /// No units are free before the waiter times out. They would be free after this long. The waiter holds nothing.
    Expired(Duration),
}

/// The longest wait for the store in one call. A commit to a slow disk takes less.
const SLICE: Duration = Duration::from_millis(100);

/// A waiter's position: its priority, then a number that grows with every waiter.
type Rank = (i32, u64);

/// Returns whether a call that began then has taken this long. By a manual clock no time passes in a call. (Tests with
/// one used to fail on a busy machine, where a call ended before it had done anything.)
fn is_over(began: Instant, most: Duration, clock: &Clock) -> bool {
    !clock.is_manual() && began.elapsed() > most
}

/// Returns the longest wait for the store in one call. By a manual clock no deadline comes while the store answers.
pub(super) fn slice(limiter: &dyn Limiter) -> Duration {
    if limiter.manual_clock().is_some() { Duration::MAX } else { SLICE }
}

/// Returns the end of a wait of this length that begins now.
fn deadline(now: Tick, timeout: Option<Duration>) -> Tick {
    timeout.map_or(Tick::MAX, |timeout| now.saturating_add(crate::time::patience_ticks(timeout)))
}
