//! The family of limiters: one interface, and one file for each.

mod composite;
mod concurrency;
mod custom;
mod family;
mod line;
mod null;
mod permit;
mod timed;

pub use composite::CompositeLimiter;
pub use concurrency::ConcurrencyLimiter;
pub use custom::{Custom, CustomLimiter, End, Verdict};
pub use family::{
    DelayLimiter, EvenlySpacedRateLimiter, FixedWindowLimiter, LeakyBucketLimiter, RateLimiter,
    SlidingWindowCounterLimiter, TokenBucketLimiter,
};
pub use line::{Claim, Joined, Line, Outcome, Seat, Terms, Waiter, WaiterId, acquire};
pub use null::NullLimiter;
pub use permit::Permit;
pub(crate) use timed::Timed;

use crate::decision::Decision;
use crate::error::{Error, Result};
use crate::fork::PerProcess;
use crate::permit::RawPermit;
use crate::stats::Stats;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

/// The answer to an attempt to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// Start.
    Admitted(RawPermit),
    /// Not now; see [`Decision::retry_after`].
    Denied(Duration),
}

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
    /// Not yet. Present this place after so long: the same one if it is early; a fresh one if it came too late, was used
    /// before, or was overtaken by a gate or another limit.
    Wait {
        /// The place to present.
        place: RawPermit,
        /// When, from now.
        after: Duration,
    },
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

/// "May this start now, and if not, when?"
///
/// Every method takes a *key*: one policy, a separate budget per key; `""` is no key. Keys are at most 1,024 bytes.
/// A limiter is used from any thread, and goes on working in a forked child.
///
/// The check-then-act pair `can_proceed` and `record_job_start` is for schedulers that are driven that way, and lets
/// others in between; [`Limiter::try_acquire`] decides and records in one act.
pub trait Limiter: line::Lined {
    /// The limit's name: what [`Decision::denied_by`] says.
    fn name(&self) -> &str;

    /// Is this permit, ended or not, one of this limiter's? Changes nothing.
    ///
    /// # Errors
    /// [`Error::ForeignPermit`] if another limiter gave it.
    fn check_permit(&self, permit: &RawPermit) -> Result<()>;

    /// Decides and records in one act. A denial changes nothing.
    ///
    /// # Errors
    /// [`Error::WeightExceedsCapacity`] if it could never start, [`Error::InvalidArgument`] for weight 0 or a key that
    /// is too long, or a store error.
    fn attempt(&self, key: &str, weight: u64) -> Result<Attempt>;

    /// The same, answering with the whole decision.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    fn decide(&self, key: &str, weight: u64) -> Result<Decision>;

    /// The decision that [`Limiter::decide`] would give, without a permit. Records nothing. `weight` may be 0.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    fn peek(&self, key: &str, weight: u64) -> Result<Decision>;

    /// Ends a permit: the job ran. Ending it again is a no-op.
    ///
    /// # Errors
    /// [`Error::ForeignPermit`] if another limiter gave it.
    fn complete(&self, permit: &RawPermit) -> Result<()>;

    /// Ends a permit, or gives a place back: the job never ran, and its units are free again at once. Ending it again is
    /// a no-op.
    ///
    /// # Errors
    /// As for [`Limiter::complete`], or a store error.
    fn cancel(&self, permit: &RawPermit) -> Result<()>;

    /// Ends a permit: the job ran, and was worth `actual` units instead of the weight that it started with. What it did
    /// not use is free again at once; what it used beyond is owed, up to one whole capacity, and delays later starts.
    /// Ending it again is a no-op.
    ///
    /// # Errors
    /// As for [`Limiter::cancel`]; [`Error::Unsupported`] where units are not a matter of time.
    fn settle(&self, permit: &RawPermit, actual: u64) -> Result<()>;

    /// Takes a place: a start in the future, or now, which counts from now on. Denied, and nothing taken, if it would be
    /// further away than `max_wait` (`None`: however far).
    ///
    /// It is good for one start, from its `ready_at` until `grace` later (`None`: window / 40, at most 50 ms), and counts
    /// in the window from the end of that grace. Whoever cannot use it gives it back with [`Limiter::cancel`].
    ///
    /// A limit keeps places for at least one window's worth of units. Beyond that a place has a time, but no turn yet: it
    /// is exchanged for another one when it is presented. The queue of a leaky bucket holds what it says, and denies more.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`]; [`Error::Unsupported`] for limiters whose room is not a matter of time.
    fn reserve(&self, key: &str, weight: u64, max_wait: Option<Duration>, grace: Option<Duration>) -> Result<Reserved> {
        self.reserve_later(key, weight, Duration::ZERO, max_wait, grace)
    }

    /// Starts with a place, if its time has come. Late, used or overtaken places are exchanged for fresh ones, in one
    /// act; a place never starts twice.
    ///
    /// # Errors
    /// [`Error::ForeignPermit`] if another limit gave it, or as for [`Limiter::reserve`].
    fn present(&self, place: &RawPermit) -> Result<Presented>;

    /// A permit or place as a short text, with which another process that has the same limit can go on: see
    /// [`Limiter::permit_from_text`].
    ///
    /// # Errors
    /// [`Error::ForeignPermit`] if another limiter gave it; [`Error::Unsupported`] where permits belong to one process.
    fn to_text(&self, permit: &RawPermit) -> Result<String>;

    /// The permit or place of such a text.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is none; [`Error::ForeignPermit`] if it is of another limit.
    fn permit_from_text(&self, text: &str) -> Result<RawPermit>;

    /// The permit of a text from when the limit was called `name`. Composites ask: their names may have stood for one limit.
    #[doc(hidden)]
    fn permit_of_name(&self, _text: &str, _name: &str) -> Result<RawPermit> {
        unsupported("a text", "this kind of limiter")
    }

    /// The key of a permit that was read from a text, if it is still known in full.
    #[doc(hidden)]
    fn key_of(&self, _permit: &RawPermit) -> Result<Option<String>> {
        Ok(None)
    }

    /// Gives a place back, unless somebody has started with it, perhaps elsewhere with its text.
    ///
    /// # Errors
    /// As for [`Limiter::cancel`].
    fn cancel_place(&self, place: &RawPermit) -> Result<()> {
        self.cancel(place)
    }

    /// The shortest time over which it counts starts; `None` if it does not. The grace of a place costs the limit a part of
    /// that: places with a grace of a twentieth leave a limit that is always waited for about 95 % of itself.
    ///
    /// # Errors
    /// A store error; [`Error::UnknownLimit`].
    fn window(&self) -> Result<Option<Duration>> {
        Ok(None)
    }

    /// The same of a key, which may have a policy of its own.
    #[doc(hidden)]
    fn window_of(&self, _key: &str) -> Result<Option<Duration>> {
        self.window()
    }

    /// Nobody in this process will use that place any more: what is kept for it here is not needed. It still counts, and
    /// goes on where its text went. [`Limiter::complete`] does that too where it was a place.
    #[doc(hidden)]
    fn drop_place(&self, _place: &RawPermit) {}

    /// The same as [`Limiter::reserve`], but the place is no sooner than after `delay`.
    ///
    /// # Errors
    /// As for [`Limiter::reserve`]; [`Error::InvalidArgument`] if `delay` is more than 366 days.
    fn reserve_later(
        &self,
        key: &str,
        weight: u64,
        delay: Duration,
        max_wait: Option<Duration>,
        grace: Option<Duration>,
    ) -> Result<Reserved>;

    /// Can a start of the future be taken now? Not where it depends on somebody completing.
    fn has_places(&self) -> bool {
        false
    }

    /// Is whoever waits denied at once if too many wait already? Composites ask.
    #[doc(hidden)]
    fn has_bounded_queue(&self) -> bool {
        false
    }

    /// Is there something to look after, which decisions left because they [must not wait](crate::MayWait)?
    #[doc(hidden)]
    fn is_due(&self) -> bool {
        false
    }

    /// Does that: see `Store::look_after`.
    #[doc(hidden)]
    fn look_after(&self) {}

    /// Declares or attaches now what the limiter needs in its store, instead of at the first decision.
    ///
    /// # Errors
    /// [`Error::UnknownLimit`], [`Error::KindMismatch`], or a store error.
    fn open(&self) -> Result<()> {
        Ok(())
    }

    /// Lets a lease begin anew: the start holds its units for the policy's whole lease from now on. A no-op for permits
    /// that need none.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if it has ended meanwhile, and perhaps another start holds its units; as for
    /// [`Limiter::complete`].
    fn renew(&self, permit: &RawPermit) -> Result<()>;

    /// A number that is larger for every later lease of the same key: for what the lease protects to refuse whoever comes
    /// late. `None` for permits that are no leases.
    fn fence(&self, _permit: &RawPermit) -> Option<u64> {
        None
    }

    /// What was counted, of a key or with the empty key of all: by all processes that share the limit, but for what the
    /// others counted in the last second.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    fn stats(&self, _key: &str) -> Result<Stats> {
        Ok(Stats::default())
    }

    /// A job has started: recorded even when the limit is full, because the caller has already decided.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    fn record_job_start(&self, key: &str) -> Result<()>;

    /// A job has ended: the oldest start without a permit that this process recorded on that key, through the same store.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    fn record_job_completion(&self, key: &str) -> Result<()>;

    /// Imposes a gate: nobody starts before `at`. Gates only move later, except by [`Limiter::clear`].
    /// With the empty key it binds all keys. An instant in the past is no gate.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `at` is more than 366 days away, or as for [`Limiter::attempt`].
    fn set_next_available_time(&self, key: &str, at: SystemTime) -> Result<()>;

    /// The same, relative to now.
    ///
    /// # Errors
    /// As for [`Limiter::set_next_available_time`].
    fn pause(&self, key: &str, pause: Duration) -> Result<()>;

    /// Back to the initial state, gate included. With the empty key: of all keys.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    fn clear(&self, key: &str) -> Result<()>;

    /// How long until a place is ready: zero if it is. `None` for a start that had no place.
    fn ready_in(&self, _permit: &RawPermit) -> Option<Duration> {
        None
    }

    /// When a start's place comes, or came, if it had one.
    fn ready_at(&self, _permit: &RawPermit) -> Option<SystemTime> {
        None
    }

    /// The same on the system's monotonic clock, in ns, never later than it was: for measuring.
    fn ready_at_monotonic_ns(&self, _permit: &RawPermit) -> Option<u64> {
        None
    }

    /// Did this place come too late, so that it has to be exchanged?
    #[doc(hidden)]
    fn is_late(&self, _place: &RawPermit) -> bool {
        false
    }

    /// Would ending this permit change nothing any more? Then composites need not remember it.
    #[doc(hidden)]
    fn is_over(&self, _permit: &RawPermit) -> bool {
        false
    }

    /// Is this the composite with that number, or does it contain it? Composites ask before they take a child.
    #[doc(hidden)]
    fn contains(&self, _composite: u64) -> bool {
        false
    }

    /// How many composites are nested here, this one included.
    #[doc(hidden)]
    fn depth(&self) -> usize {
        0
    }

    /// It is inside so many composites from now on, one in the other.
    #[doc(hidden)]
    fn lower(&self, _above: usize) {}

    /// Would a start of weight 1 be admitted now? Changes nothing.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    fn can_proceed(&self, key: &str) -> Result<bool> {
        Ok(self.peek(key, 1)?.admitted)
    }

    /// The earliest instant at which a start of weight 1 would be admitted, gate included; now, if now.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    fn next_available_time(&self, key: &str) -> Result<SystemTime> {
        Ok(SystemTime::now() + self.peek(key, 1)?.retry_after)
    }

    /// Starts if there is room now.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    fn try_acquire(&self, key: &str, weight: u64) -> Result<Option<Permit<'_>>>
    where
        Self: Sized,
    {
        Ok(match self.attempt(key, weight)? {
            Attempt::Admitted(raw) => Some(Permit::new(self, raw)),
            Attempt::Denied(_) => None,
        })
    }

    /// Waits for room, at most for `timeout` (`None`: as long as it takes). `None` if there is none before that: at
    /// once, if that can be known at once.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    fn acquire(&self, key: &str, weight: u64, timeout: Option<Duration>) -> Result<Option<Permit<'_>>>
    where
        Self: Sized,
    {
        Ok(match line::acquire(self, Waiter::new(key, weight).timeout(timeout))? {
            Attempt::Admitted(raw) => Some(Permit::new(self, raw)),
            Attempt::Denied(_) => None,
        })
    }
}

/// Where a denial cannot know when somebody will complete, it suggests to look again after this long.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Numbers the limiters of this process, so that each knows its own permits.
fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Relaxed)
}

/// Checks what a permit says about who gave it.
fn own(permit: &RawPermit, id: u64, name: &str) -> Result<()> {
    if permit.limiter == id { Ok(()) } else { foreign(name) }
}

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
