//! Starts in the future.

use super::heard::{errors_told, told};
use super::inner::{Inner, NO_PLACES, When};
use super::unsupported;
use crate::error::Result;
use crate::permit::RawPermit;
use std::time::{Duration, SystemTime};

/// The answer to a wish for a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserved {
    /// A start in the future, or now.
    Place {
        /// What to present.
        place: RawPermit,
        /// When, from now.
        after: Duration,
    },
    /// There is none soon enough, but after this long.
    Denied(Duration),
}

/// What came of presenting a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presented {
    /// Start. The place is used up, and is the start's permit now.
    Started(RawPermit),
    /// Not yet. Present this place after so long: the same one if it is early; a fresh one if it came too late, was
    /// used before, or was overtaken by a gate or another limit.
    Wait {
        /// The place to present.
        place: RawPermit,
        /// When, from now.
        after: Duration,
    },
}

/// A *place* is a start in the future, which counts from now on. Limits that are a matter of time have them.
#[allow(unused_variables)] // What has no places needs none of them.
pub trait Places: Inner {
    /// Can a start of the future be taken now? Not where it depends on somebody completing.
    fn has_places(&self) -> bool {
        false
    }

    /// Takes a place: a start in the future, or now, which counts from now on. Denied, and nothing taken, if it would
    /// be further away than `max_wait` (`None`: however far).
    ///
    /// It is good for one start, from its `ready_at` until `grace` later (`None`: window / 40, at most 50 ms), and
    /// counts in the window from the end of that grace. Whoever cannot use it gives it back with
    /// [`Limiter::cancel`](super::Limiter::cancel).
    ///
    /// A limit keeps places for at least one window's worth of units. Beyond that a place has a time, but no turn yet:
    /// it is exchanged for another one when it is presented. The queue of a leaky bucket holds what it says, and denies
    /// more.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`](super::Limiter::attempt); [`Error::Unsupported`](crate::Error::Unsupported) for
    /// limiters whose room is not a matter of time.
    fn reserve(&self, key: &str, weight: u64, max_wait: Option<Duration>, grace: Option<Duration>) -> Result<Reserved> {
        self.reserve_later(key, weight, Duration::ZERO, max_wait, grace)
    }

    /// The same as [`Places::reserve`], but the place is no sooner than after `delay`.
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
        told(self, key, weight, || self.quiet_reserve(key, weight, When { delay, max_wait, grace }))
    }

    /// Starts with a place, if its time has come. Late, used or overtaken places are exchanged for fresh ones, in one
    /// act; a place never starts twice.
    ///
    /// # Errors
    /// [`Error::ForeignPermit`](crate::Error::ForeignPermit) if another limit gave it, or as for [`Places::reserve`].
    fn present(&self, place: &RawPermit) -> Result<Presented> {
        errors_told(self, "", 1, || self.quiet_present(place))
    }

    /// Gives a place back, unless somebody has started with it, perhaps elsewhere with its text.
    ///
    /// # Errors
    /// As for [`Limiter::cancel`](super::Limiter::cancel).
    fn cancel_place(&self, place: &RawPermit) -> Result<()>;

    /// Nobody in this process will use that place any more: what is kept for it here is not needed. It still counts,
    /// and goes on where its text went. [`Limiter::complete`](super::Limiter::complete) does that too where it was a
    /// place.
    fn drop_place(&self, place: &RawPermit) {}

    /// How long until a place is ready: zero if it is. `None` for a start that had no place.
    fn ready_in(&self, permit: &RawPermit) -> Option<Duration> {
        None
    }

    /// When a start's place comes, or came, if it had one.
    fn ready_at(&self, permit: &RawPermit) -> Option<SystemTime> {
        None
    }

    /// The same on the system's monotonic clock, in ns, never later than it was (on a server: by no more than its answers are late): for measuring.
    fn ready_at_monotonic_ns(&self, permit: &RawPermit) -> Option<u64> {
        None
    }

    /// The shortest time over which it counts starts of a key; `None` if it does not. The grace of a place costs the
    /// limit a part of that: places with a grace of a twentieth leave a limit that is always waited for about 95 % of
    /// itself.
    ///
    /// # Errors
    /// A store error; [`Error::UnknownLimit`](crate::Error::UnknownLimit).
    fn window(&self, key: &str) -> Result<Option<Duration>> {
        Ok(None)
    }

    /// A permit or place as a short text, with which another process that has the same limit can go on: see
    /// [`Places::permit_from_text`].
    ///
    /// # Errors
    /// [`Error::ForeignPermit`](crate::Error::ForeignPermit) if another limiter gave it;
    /// [`Error::Unsupported`](crate::Error::Unsupported) where permits belong to one process.
    fn to_text(&self, permit: &RawPermit) -> Result<String> {
        unsupported("to_text", NO_PLACES)
    }

    /// The permit or place of such a text.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if it is none;
    /// [`Error::ForeignPermit`](crate::Error::ForeignPermit) if it is of another limit.
    fn permit_from_text(&self, text: &str) -> Result<RawPermit> {
        unsupported("permit_from_text", NO_PLACES)
    }
}
