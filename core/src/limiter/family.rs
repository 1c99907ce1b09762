//! The limits that are a matter of time, by their names. What they do is in `timed/`.

use super::timed::{InStore, Timed};
use crate::error::Result;
use crate::policy::{Backoff, Policy};
use crate::state::{Store, StoreOptions};
use crate::time::ManualClock;
use std::time::Duration;

/// A limiter that is a [`Timed`] limit with a policy of its own.
macro_rules! limiter {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(Timed);

        impl InStore for $name {
            #[inline(always)]
            fn timed(&self) -> &Timed {
                &self.0
            }
        }

        impl $name {
            /// Takes the limit that is declared under a name; at the first use it must be.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) unless `name` is 1 to 1,024 bytes.
            pub fn attach(store: &Store, name: &str) -> Result<Self> {
                Timed::attach(store, name, $kind).map(Self)
            }
        }
    };
}

/// A store of one process, for limits that nobody else needs to know.
fn private(clock: Option<ManualClock>) -> Result<Store> {
    Store::with_options("memory:", StoreOptions { clock, ..StoreOptions::default() })
}

limiter! {
    /// At most `max_executions` units in any rolling window: a sliding log, shared by all who open the same name in the
    /// same store. A start at `s` counts until exactly `s + window`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use workglow_limit::{Limiter, RateLimiter, Store};
    /// let limiter = RateLimiter::new(&Store::new("memory:")?, "mail", 2, Duration::from_secs(60))?;
    /// assert!(limiter.try_acquire("", 1)?.is_some());
    /// assert!(limiter.try_acquire("", 1)?.is_some());
    /// assert!(limiter.try_acquire("", 1)?.is_none());
    /// # Ok::<(), workglow_limit::Error>(())
    /// ```
    RateLimiter, "rate"
}

impl RateLimiter {
    /// Declares a limit under a name, at the first use, in place of the policy that the name had.
    ///
    /// # Errors
    /// As for [`Policy::rate`]; `name` has to be 1 to 1,024 bytes.
    pub fn new(store: &Store, name: &str, max_executions: u64, window: Duration) -> Result<Self> {
        Self::with_windows(store, name, &[(max_executions, window)], Backoff::default())
    }

    /// The same with several windows, `(max_executions, window)` each, all of which have to have room, and with a backoff.
    ///
    /// # Errors
    /// As for [`Policy::rate_in`]; `name` has to be 1 to 1,024 bytes.
    pub fn with_windows(store: &Store, name: &str, windows: &[(u64, Duration)], backoff: Backoff) -> Result<Self> {
        Timed::declare(store, name, Policy::rate_in(windows)?.with_backoff(backoff)?).map(Self)
    }
}

limiter! {
    /// At least so long between one start and the next. Every start weighs 1.
    DelayLimiter, "delay"
}

impl DelayLimiter {
    /// In this process.
    ///
    /// # Errors
    /// As for [`Policy::delay`].
    pub fn new(delay: Duration) -> Result<Self> {
        Self::with_clock(delay, None)
    }

    /// The same, by a manual clock.
    ///
    /// # Errors
    /// As for [`Policy::delay`].
    pub fn with_clock(delay: Duration, clock: Option<ManualClock>) -> Result<Self> {
        let policy = Policy::delay(delay)?;
        Timed::declare(&private(clock)?, &policy.to_string(), policy).map(Self)
    }

    /// Shared by all who open the same name in the same store.
    ///
    /// # Errors
    /// As for [`Policy::delay`]; `name` has to be 1 to 1,024 bytes.
    pub fn shared(store: &Store, name: &str, delay: Duration) -> Result<Self> {
        Timed::declare(store, name, Policy::delay(delay)?).map(Self)
    }
}

limiter! {
    /// `max_executions` starts in a window, at even distances. Every start weighs 1.
    ///
    /// An adaptive one shortens the distance from one start to the next, `window / max_executions`, by what the last
    /// `max_executions` jobs took on average, so that slow jobs leave no gaps. What a job takes is the time from its start to
    /// its `complete` or `settle`; after a whole window without a start it is forgotten. Never more than `max_executions`
    /// start in any rolling window.
    EvenlySpacedRateLimiter, "evenly-spaced"
}

impl EvenlySpacedRateLimiter {
    /// In this process.
    ///
    /// # Errors
    /// As for [`Policy::evenly_spaced`].
    pub fn new(max_executions: u64, window: Duration, is_adaptive: bool) -> Result<Self> {
        Self::with_clock(max_executions, window, is_adaptive, None)
    }

    /// The same, by a manual clock.
    ///
    /// # Errors
    /// As for [`Policy::evenly_spaced`].
    pub fn with_clock(
        max_executions: u64,
        window: Duration,
        is_adaptive: bool,
        clock: Option<ManualClock>,
    ) -> Result<Self> {
        let policy = Policy::evenly_spaced(max_executions, window, is_adaptive)?;
        Timed::declare(&private(clock)?, &policy.to_string(), policy).map(Self)
    }

    /// Shared by all who open the same name in the same store.
    ///
    /// # Errors
    /// As for [`Policy::evenly_spaced`]; `name` has to be 1 to 1,024 bytes.
    pub fn shared(store: &Store, name: &str, max_executions: u64, window: Duration, is_adaptive: bool) -> Result<Self> {
        Timed::declare(store, name, Policy::evenly_spaced(max_executions, window, is_adaptive)?).map(Self)
    }
}

limiter! {
    /// A bucket of `burst` tokens, into which `rate` tokens drip evenly per `period`. In any window of length `w` at most
    /// `burst + rate · w / period` units start.
    TokenBucketLimiter, "token-bucket"
}

impl TokenBucketLimiter {
    /// Declares a limit under a name, at the first use, in place of the policy that the name had.
    ///
    /// # Errors
    /// As for [`Policy::token_bucket`]; `name` has to be 1 to 1,024 bytes.
    pub fn new(store: &Store, name: &str, rate: u64, period: Duration, burst: u64) -> Result<Self> {
        Timed::declare(store, name, Policy::token_bucket(rate, period, burst)?).map(Self)
    }
}

limiter! {
    /// One start per `period / rate`; one of weight `w` takes the time of `w`. Up to `queue` units wait for their turn.
    LeakyBucketLimiter, "leaky-bucket"
}

impl LeakyBucketLimiter {
    /// Declares a limit under a name, at the first use, in place of the policy that the name had.
    ///
    /// # Errors
    /// As for [`Policy::leaky_bucket`]; `name` has to be 1 to 1,024 bytes.
    pub fn new(store: &Store, name: &str, rate: u64, period: Duration, queue: u64) -> Result<Self> {
        Timed::declare(store, name, Policy::leaky_bucket(rate, period, queue)?).map(Self)
    }
}

limiter! {
    /// At most `max_executions` units in each window, the windows aligned to the Unix epoch. Across a boundary up to twice
    /// as many start in the length of one window.
    FixedWindowLimiter, "fixed-window"
}

impl FixedWindowLimiter {
    /// Declares a limit under a name, at the first use, in place of the policy that the name had.
    ///
    /// # Errors
    /// As for [`Policy::fixed_window`]; `name` has to be 1 to 1,024 bytes.
    pub fn new(store: &Store, name: &str, max_executions: u64, window: Duration) -> Result<Self> {
        Timed::declare(store, name, Policy::fixed_window(max_executions, window)?).map(Self)
    }
}

limiter! {
    /// An estimate of `max_executions` units in any rolling window: the count of this window, aligned to the Unix epoch,
    /// and so much of the last one's as the rolling window still has of it. Fewer than twice as many start in the length
    /// of one window, and `max_executions` on average.
    SlidingWindowCounterLimiter, "sliding-window-counter"
}

impl SlidingWindowCounterLimiter {
    /// Declares a limit under a name, at the first use, in place of the policy that the name had.
    ///
    /// # Errors
    /// As for [`Policy::sliding_window_counter`]; `name` has to be 1 to 1,024 bytes.
    pub fn new(store: &Store, name: &str, max_executions: u64, window: Duration) -> Result<Self> {
        Timed::declare(store, name, Policy::sliding_window_counter(max_executions, window)?).map(Self)
    }
}
