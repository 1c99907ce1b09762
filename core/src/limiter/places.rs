//! Places: starts in the future.

use super::events::{reporting, reporting_errors};
use super::internal::{Internal, NO_PLACES, When};
use super::unsupported;
use crate::error::Result;
use crate::permit::RawPermit;
use std::time::{Duration, SystemTime};

/// The reply to a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserved {
    /// A start in the future, or now.
    Place {
        /// The place to present.
        place: RawPermit,
        /// The time until it is ready.
        after: Duration,
    },
    /// No place is early enough. One would be ready after this long.
    Denied(Duration),
}

/// The reply to a presented place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presented {
    /// Start. The place is used up, and is now the start's permit.
    Started(RawPermit),
    /// Not yet. Present this place after the given time: the same place if it was early; a fresh one if it was late or
    /// used before, or if a gate or another limit overtook it.
    Wait {
        /// The place to present.
        place: RawPermit,
        /// The time until it is ready.
        after: Duration,
    },
}

/// Reserves starts in the future. A *place* is a future start, which counts from now. Timed limits have places.
#[allow(unused_variables)] // The defaults, for limits without places, use none of them.
pub trait Places: Internal {
    /// Returns whether a future start can be taken now. It cannot where starts depend on completions.
    fn has_places(&self) -> bool {
        false
    }

    /// Takes a place: a start in the future, or now, which counts from now. Denied without taking anything if the place
    /// would be further away than `max_wait` (`None`: no limit).
    ///
    /// The place is valid for one start, from its `ready_at` until `grace` later (`None`: window / 40, at most 50 ms),
    /// and counts in the window from the end of that grace. A caller that cannot use the place returns it with
    /// [`Limiter::cancel`](super::Limiter::cancel).
    ///
    /// A limit keeps places for at least one window's worth of units. A place beyond that has a time but no turn yet:
    /// it is exchanged for another one when it is presented. The queue of a leaky bucket holds at most its `queue`
    /// units, and denies more.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`](super::Limiter::attempt); [`Error::Unsupported`](crate::Error::Unsupported) for
    /// limiters that are not timed.
    fn reserve(&self, key: &str, weight: u64, max_wait: Option<Duration>, grace: Option<Duration>) -> Result<Reserved> {
        self.reserve_later(key, weight, Duration::ZERO, max_wait, grace)
    }

    /// As [`Places::reserve`], but the place is ready no sooner than after `delay`.
    ///
    /// # Errors
    /// As for [`Places::reserve`]; [`Error::InvalidArgument`](crate::Error::InvalidArgument) if `delay` is more than
    /// 366 days.
    fn reserve_later(
        &self,
        key: &str,
        weight: u64,
        delay: Duration,
        max_wait: Option<Duration>,
        grace: Option<Duration>,
    ) -> Result<Reserved> {
        reporting(self, key, weight, || {
            self.quiet_reserve(key, weight, When { delay, max_wait, grace, is_waiter: false })
        })
    }

    /// Starts with a place, if it is ready. Late, used or overtaken places are exchanged for fresh ones, in one step; a
    /// place never starts twice.
    ///
    /// # Errors
    /// [`Error::ForeignPermit`](crate::Error::ForeignPermit) if another limit issued it, or as for [`Places::reserve`].
    fn present(&self, place: &RawPermit) -> Result<Presented> {
        reporting_errors(self, "", 1, || self.quiet_present(place))
    }

    /// Gives a place back, unless it has already been started with, perhaps by another process that has its text.
    ///
    /// # Errors
    /// As for [`Limiter::cancel`](super::Limiter::cancel).
    fn cancel_place(&self, place: &RawPermit) -> Result<()>;

    /// Releases the data that this process keeps for a place, which it will not use any more. The place still counts,
    /// and remains valid where its text was sent. [`Limiter::complete`](super::Limiter::complete) also does this for
    /// places.
    fn drop_place(&self, place: &RawPermit) {}

    /// Returns the time until a place is ready: zero if it is ready. `None` for a start without a place.
    fn ready_in(&self, permit: &RawPermit) -> Option<Duration> {
        None
    }

    /// Returns when a start's place is or was ready, if it had one.
    fn ready_at(&self, permit: &RawPermit) -> Option<SystemTime> {
        None
    }

    /// The same on the system's monotonic clock, in ns, for measurements. Never later than the true time (on a server:
    /// late by at most its replies' delay).
    fn ready_at_monotonic_ns(&self, permit: &RawPermit) -> Option<u64> {
        None
    }

    /// Returns the shortest time over which starts of a key are counted; `None` if they are not. The grace of places
    /// costs the limit a fraction of this: with a grace of a twentieth of it, a fully used limit still admits about 95
    /// % of its units.
    ///
    /// # Errors
    /// A store error; [`Error::UnknownLimit`](crate::Error::UnknownLimit).
    fn window(&self, key: &str) -> Result<Option<Duration>> {
        Ok(None)
    }

    /// Returns a permit or place as a short text, which another process with the same limit can continue with: see
    /// [`Places::permit_from_text`].
    ///
    /// # Errors
    /// [`Error::ForeignPermit`](crate::Error::ForeignPermit) if another limiter issued it;
    /// [`Error::Unsupported`](crate::Error::Unsupported) where permits belong to one process.
    fn to_text(&self, permit: &RawPermit) -> Result<String> {
        unsupported("to_text", NO_PLACES)
    }

    /// Reads a permit or place from its text.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the text is not a permit or place;
    /// [`Error::ForeignPermit`](crate::Error::ForeignPermit) if it belongs to another limit.
    fn permit_from_text(&self, text: &str) -> Result<RawPermit> {
        unsupported("permit_from_text", NO_PLACES)
    }
}
