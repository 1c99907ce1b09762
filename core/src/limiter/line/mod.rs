//! One line of waiters for each limiter and key, in the order of their priority and then of asking.
//!
//! A line does no I/O: it does not sleep, spawn or call back. A *driver* does that, and there are three kinds: an event loop
//! owns a [`Line`] and keeps one timer for it; the blocking threads of a process share the lines that the limiter keeps for
//! them (see [`Seat`]); and whoever feeds the workers of a queue owns a [`Pool`], whose waiters start elsewhere. What all have
//! in common is in `key.rs`.
//!
//! Only the first waiters hold places: those that can start soon. The others cost memory, and no time. Places are not tied
//! to waiters: the place that is ready first serves the first waiter of its weight, so a waiter that leaves, comes late or
//! overtakes moves no place.

mod asks;
mod brought;
mod event_loop;
mod key;
mod pool;
mod seat;

pub(super) use asks::claim_by_calls;
pub use asks::{Claim, Terms};
pub use event_loop::{Joined, Line, WaiterId};
pub use key::Turn;
pub use pool::Pool;
pub use seat::{Seat, Seats, acquire};

use crate::error::Error;
use crate::permit::RawPermit;
use crate::time::Tick;
use std::time::Duration;

/// A wish to start as soon as there is room.
#[derive(Debug, Clone, Copy)]
pub struct Waiter<'a> {
    /// The key; not used with a place, which knows its own.
    pub key: &'a str,
    /// The units that the start takes; not used with a place.
    pub weight: u64,
    /// Lower numbers start first, whenever they asked. Usually 0. Not used with a place.
    pub priority: i32,
    /// The longest wait. `None`: as long as it takes.
    pub timeout: Option<Duration>,
    /// How late it may come for its place without losing it, where that is more than usual (window / 40, at most 50 ms): at most
    /// 366 days. Usually zero. Not used with a place, which has its own, nor where a limit has no places.
    pub grace: Duration,
    /// A place that the waiter has already. It waits for this place alone, and gives it back when its time is up.
    pub place: Option<RawPermit>,
}

impl<'a> Waiter<'a> {
    /// A waiter of priority 0 that waits as long as it takes.
    pub fn new(key: &'a str, weight: u64) -> Waiter<'a> {
        Waiter { key, weight, priority: 0, timeout: None, grace: Duration::ZERO, place: None }
    }

    /// A waiter that has a place already.
    pub fn with_place(place: RawPermit) -> Waiter<'static> {
        Waiter { place: Some(place), ..Waiter::new("", 1) }
    }

    /// The same with another priority: lower numbers start first.
    #[must_use]
    pub fn priority(self, priority: i32) -> Waiter<'a> {
        Waiter { priority, ..self }
    }

    /// The same with a longest wait; `None`: as long as it takes.
    #[must_use]
    pub fn timeout(self, timeout: Option<Duration>) -> Waiter<'a> {
        Waiter { timeout, ..self }
    }

    /// The same for one who may be held up for so long, by a pause of its run time, say: its place is good for so long at least.
    /// While it is, nobody else has that start, so ask for no more than is needed.
    #[must_use]
    pub fn grace(self, grace: Duration) -> Waiter<'a> {
        Waiter { grace, ..self }
    }
}

/// How a wait ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Start.
    Admitted(RawPermit),
    /// There is no room before the waiter's time is up, but after this long. The waiter holds nothing.
    Expired(Duration),
    /// The limiter failed for this waiter. It holds nothing.
    Failed(Error),
}

/// What a waiter has to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Start.
    Admitted(RawPermit),
    /// Sleep this long at most, then take another step.
    Sleep(Duration),
    /// There is no room before the waiter's time is up, but after this long. Nothing is held.
    Expired(Duration),
}

/// A waiter's position: its priority, then a number that grows with every waiter.
type Rank = (i32, u64);

/// When a wait of this length ends that begins now.
fn deadline(now: Tick, timeout: Option<Duration>) -> Tick {
    timeout.map_or(Tick::MAX, |timeout| now.saturating_add(crate::time::patience_ticks(timeout)))
}
