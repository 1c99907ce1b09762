//! The timed limits, by their names. `timed/` implements them.

use super::timed::{InStore, Timed};
use crate::error::Result;
use crate::policy::{Backoff, Policy};
use crate::state::{Store, StoreOptions};
use crate::time::ManualClock;
use std::time::Duration;

/// Defines a limiter that is a [`Timed`] limit with its own policy.
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
            /// Attaches the limit that is declared under a name. It must be declared at the first use.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) unless `name` is 1 to 1,024 bytes.
            pub fn attach(store: &Store, name: &str) -> Result<Self> {
                Timed::attach(store, name, $kind).map(Self)
            }
        }
    };
}

/// Makes a store of one process, for limits that are not shared.
fn private(clock: Option<ManualClock>) -> Result<Store> {
    Store::with_options("memory:", StoreOptions { clock, ..StoreOptions::default() })
}

limiter! {
    /// Allows at most `max_executions` units in any rolling window: a sliding log, shared by all openers of the same
    /// name in the same store. A start at `s` counts until exactly `s + window`.
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
    /// Declares a limit under a name, at the first use. It replaces the policy that the name had.
    ///
    /// # Errors
    /// As for [`Policy::rate`]; `name` has to be 1 to 1,024 bytes.
    pub fn new(store: &Store, name: &str, max_executions: u64, window: Duration) -> Result<Self> {
        Self::with_windows(store, name, &[(max_executions, window)], Backoff::default())
    }

    /// The same with several windows, `(max_executions, window)` each, and with a backoff. A start needs free units in
    /// all windows.
    ///
    /// # Errors
    /// As for [`Policy::rate_in`]; `name` has to be 1 to 1,024 bytes.
    pub fn with_windows(store: &Store, name: &str, windows: &[(u64, Duration)], backoff: Backoff) -> Result<Self> {
        Timed::declare(store, name, Policy::rate_in(windows)?.with_backoff(backoff)?).map(Self)
    }
}

limiter! {
    /// Requires a minimum delay between one start and the next. Every start weighs 1.
    DelayLimiter, "delay"
}

impl DelayLimiter {
    /// Makes a limit in this process.
    ///
    /// # Errors
    /// As for [`Policy::delay`].
    pub fn new(delay: Duration) -> Result<Self> {
        Self::with_clock(delay, None)
    }

    /// The same, with a manual clock.
    ///
    /// # Errors
    /// As for [`Policy::delay`].
    pub fn with_clock(delay: Duration, clock: Option<ManualClock>) -> Result<Self> {
        let policy = Policy::delay(delay)?;
        Timed::declare(&private(clock)?, &policy.to_string(), policy).map(Self)
    }

    /// Makes a limit that all openers of the same name in the same store share.
    ///
    /// # Errors
    /// As for [`Policy::delay`]; `name` has to be 1 to 1,024 bytes.
    pub fn shared(store: &Store, name: &str, delay: Duration) -> Result<Self> {
        Timed::declare(store, name, Policy::delay(delay)?).map(Self)
    }
}

limiter! {
    /// Spaces `max_executions` starts evenly in a window. Every start weighs 1.
    ///
    /// An adaptive limit shortens the distance between starts, `window / max_executions`, by the average duration of
    /// the last `max_executions` jobs, so that slow jobs leave no gaps. The duration of a job is the time from its
    /// start to its `complete` or `settle`; after a whole window without a start the durations are forgotten. At most
    /// `max_executions` start in any rolling window.
    EvenlySpacedRateLimiter, "evenly-spaced"
}

impl EvenlySpacedRateLimiter {
    /// Makes a limit in this process.
    ///
    /// # Errors
    /// As for [`Policy::evenly_spaced`].
    pub fn new(max_executions: u64, window: Duration, is_adaptive: bool) -> Result<Self> {
        Self::with_clock(max_executions, window, is_adaptive, None)
    }

    /// The same, with a manual clock.
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

    /// Makes a limit that all openers of the same name in the same store share.
    ///
    /// # Errors
    /// As for [`Policy::evenly_spaced`]; `name` has to be 1 to 1,024 bytes.
    pub fn shared(store: &Store, name: &str, max_executions: u64, window: Duration, is_adaptive: bool) -> Result<Self> {
        Timed::declare(store, name, Policy::evenly_spaced(max_executions, window, is_adaptive)?).map(Self)
    }
}

limiter! {
    /// A bucket of `burst` tokens, refilled evenly with `rate` tokens per `period`. In any window of length `w` at most
    /// `burst + rate · w / period` units start.
    TokenBucketLimiter, "token-bucket"
}

impl TokenBucketLimiter {
    /// Declares a limit under a name, at the first use. It replaces the policy that the name had.
    ///
    /// # Errors
    /// As for [`Policy::token_bucket`]; `name` has to be 1 to 1,024 bytes.
    pub fn new(store: &Store, name: &str, rate: u64, period: Duration, burst: u64) -> Result<Self> {
        Timed::declare(store, name, Policy::token_bucket(rate, period, burst)?).map(Self)
    }
}

limiter! {
    /// One start per `period / rate`; a start of weight `w` takes the time of `w` starts. Up to `queue` units wait for
    /// their turn.
    LeakyBucketLimiter, "leaky-bucket"
}

impl LeakyBucketLimiter {
    /// Declares a limit under a name, at the first use. It replaces the policy that the name had.
    ///
    /// # Errors
    /// As for [`Policy::leaky_bucket`]; `name` has to be 1 to 1,024 bytes.
    pub fn new(store: &Store, name: &str, rate: u64, period: Duration, queue: u64) -> Result<Self> {
        Timed::declare(store, name, Policy::leaky_bucket(rate, period, queue)?).map(Self)
    }
}

limiter! {
    /// Allows at most `max_executions` units in each window. Windows are aligned to the Unix epoch, so up to twice as
    /// many can start across a boundary within the length of one window.
    FixedWindowLimiter, "fixed-window"
}

impl FixedWindowLimiter {
    /// Declares a limit under a name, at the first use. It replaces the policy that the name had.
    ///
    /// # Errors
    /// As for [`Policy::fixed_window`]; `name` has to be 1 to 1,024 bytes.
    pub fn new(store: &Store, name: &str, max_executions: u64, window: Duration) -> Result<Self> {
        Timed::declare(store, name, Policy::fixed_window(max_executions, window)?).map(Self)
    }
}

limiter! {
    /// Estimates `max_executions` units in any rolling window: the count of the current window, aligned to the Unix
    /// epoch, plus the fraction of the previous window's count that the rolling window still covers. Fewer than twice
    /// as many start in the length of one window, and `max_executions` on average.
    SlidingWindowCounterLimiter, "sliding-window-counter"
}

impl SlidingWindowCounterLimiter {
    /// Declares a limit under a name, at the first use. It replaces the policy that the name had.
    ///
    /// # Errors
    /// As for [`Policy::sliding_window_counter`]; `name` has to be 1 to 1,024 bytes.
    pub fn new(store: &Store, name: &str, max_executions: u64, window: Duration) -> Result<Self> {
        Timed::declare(store, name, Policy::sliding_window_counter(max_executions, window)?).map(Self)
    }
}
