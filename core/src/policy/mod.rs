//! Policies: validated once, when they are made, and trusted afterwards.

mod backoff;
mod named;
mod quota;
mod text;

pub use backoff::{Backoff, Jitter};
pub use named::NamedPolicy;
pub(crate) use named::{is_composite, part_names};
pub use quota::Quota;
pub use text::{parse_all, parse_policies, parse_time};

use crate::algorithm::bucket::Bucket;
use crate::algorithm::log::Window;
use crate::algorithm::{leases, log, slices};
use crate::charges;
use crate::error::{Error, Result};
use crate::time::{self, MAX_TIME, Now, Tick};
use std::time::Duration;

/// The longest name or key, in bytes.
pub const MAX_NAME_BYTES: usize = 1_024;

/// The most windows that one rate limit may have.
pub const MAX_WINDOWS: usize = 4;

/// Where a share begins in the first word of a policy.
const SHARE: u32 = 8;

/// The number of words that a policy takes in a store.
pub(crate) const POLICY_WORDS: usize = 12;

/// The policy of a limit: made by one of the functions below, or parsed from a text such as `100/1m + 5/1s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy(pub(crate) Shape, Share);

/// The share of a tenant in a limit that tenants share: 1 to [`MAX_SHARE`]. 0: the limit is not shared, and each key has a
/// budget of its own.
pub(crate) type Share = u32;

/// The largest share of a tenant.
pub const MAX_SHARE: Share = 1_000;

/// A policy, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// At most `limit` units in each of these rolling windows.
    Rate(Windows, Backoff),
    /// At most `max` units at the same time, each start for `lease` ticks unless it is renewed (`Tick::MAX`: without
    /// end), and for `cooldown` ticks after its end. There are `slots` slots for leases. The number never shrinks, so that
    /// leases of a formerly larger limit keep their slots.
    Concurrency { max: u64, lease: Tick, cooldown: Tick, slots: u64 },
    /// A minimum delay between two starts: one unit in a rolling window.
    Delay(Windows),
    /// Starts at even distances.
    EvenlySpaced(Spacing),
    /// A number of units per period, saved up to a burst, or queued up to a queue.
    Bucket(Bucket),
    /// A number of units in each window, aligned to the Unix epoch. A smooth counter estimates the rolling window
    /// instead.
    Counter { window: Window, is_smooth: bool },
}

/// The windows of a rate limit: one to [`MAX_WINDOWS`]. A start needs free units in all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Windows {
    count: usize,
    /// Windows beyond `count` are empty.
    all: [Window; MAX_WINDOWS],
}

impl Windows {
    const NONE: Windows = Windows { count: 0, all: [Window { limit: 0, length: 0 }; MAX_WINDOWS] };

    fn one(limit: u64, length: Tick) -> Windows {
        Windows::NONE.and(limit, length)
    }

    fn and(mut self, limit: u64, length: Tick) -> Windows {
        self.all[self.count] = Window { limit, length };
        self.count += 1;
        self
    }

    #[inline(always)]
    pub(crate) fn as_slice(&self) -> &[Window] {
        // SAFETY: `and` has written `count` windows.
        unsafe { self.all.get_unchecked(..self.count) }
    }

    /// Returns the largest number of units that must be distinguished.
    fn largest(&self) -> u64 {
        self.as_slice().iter().map(|w| w.limit).max().unwrap_or(0)
    }

    /// Returns how long a start counts, in ticks.
    fn longest(&self) -> Tick {
        self.as_slice().iter().map(|w| w.length).max().unwrap_or(0)
    }
}

/// Starts at even distances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spacing {
    max: u64,
    window: Tick,
    /// The window over the number of starts, rounded up.
    pub interval: Tick,
    /// Whether the duration of jobs shortens the interval.
    pub is_adaptive: bool,
    /// At most `max` in the window, unless the interval implies it; and one in the interval.
    windows: Windows,
}

impl Spacing {
    fn new(max: u64, window: Tick, interval: Tick, is_adaptive: bool) -> Spacing {
        let whole = if is_adaptive { Windows::one(max, window) } else { Windows::NONE };
        Spacing { max, window, interval, is_adaptive, windows: whole.and(1, interval) }
    }

    /// Returns how many jobs are remembered.
    pub fn jobs(&self) -> u64 {
        self.max
    }

    /// Returns the same policy with another distance between starts.
    #[inline(always)]
    pub fn apart(mut self, interval: Tick) -> Spacing {
        self.windows.all[self.windows.count - 1].length = interval;
        self
    }
}

impl Policy {
    /// Allows at most `max_executions` units in any rolling `window`, to the microsecond.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `max_executions` is 1 to 1,000,000,000 and `window` 1 µs to 366 days.
    pub fn rate(max_executions: u64, window: Duration) -> Result<Policy> {
        Self::rate_in(&[(max_executions, window)])
    }

    /// Combines several windows, `(max_executions, window)` each: `100 per minute and 5 per second`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless there are 1 to 4 windows, each as for [`Policy::rate`]; with several windows,
    /// each allows at most 4,096.
    pub fn rate_in(windows: &[(u64, Duration)]) -> Result<Policy> {
        if !(1..=MAX_WINDOWS).contains(&windows.len()) {
            return Err(Error::invalid("windows", format_args!("{} of them", windows.len()), "1 to 4 windows"));
        }
        let mut all = Windows::NONE;
        for &(max_executions, window) in windows {
            in_range("max_executions", max_executions, if windows.len() == 1 { slices::MAX } else { log::MAX })?;
            all = all.and(max_executions, time::window_ticks("window", window)?);
        }
        Ok(Policy(Shape::Rate(all, Backoff::default()), 0))
    }

    /// Returns the same rate limit with another backoff.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for another kind of policy.
    pub fn with_backoff(self, backoff: Backoff) -> Result<Policy> {
        match self.0 {
            Shape::Rate(windows, _) => Ok(Policy(Shape::Rate(windows, backoff), self.1)),
            _ => Err(Error::Unsupported { reason: format!("a backoff is not supported by \"{self}\"") }),
        }
    }

    /// Allows at most `max` units at the same time.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `max` is 1 to 65,535.
    pub fn concurrency(max: u64) -> Result<Policy> {
        in_range("max_concurrent_jobs", max, leases::MAX)?;
        Ok(Policy(Shape::Concurrency { max, lease: leases::NEVER, cooldown: 0, slots: leases::slots(max) }, 0))
    }

    /// Returns the same policy with a lease: each start holds its units only for this long, unless it is renewed.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `lease` is 1 µs to 366 days; [`Error::Unsupported`] for another kind of policy.
    pub fn with_lease(self, lease: Duration) -> Result<Policy> {
        match self.0 {
            Shape::Concurrency { max, cooldown, slots, .. } => {
                let lease = time::window_ticks("lease", lease)?;
                Ok(Policy(Shape::Concurrency { max, lease, cooldown, slots }, self.1))
            }
            _ => Err(Error::Unsupported { reason: format!("a lease is not supported by \"{self}\"") }),
        }
    }

    /// Returns the same policy with a cooldown: the units of a start become free this long after it has ended. A server
    /// that a job calls counts a start at some moment between the start's beginning and its end. So it counts at most
    /// `max` units in any rolling window of this length.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `cooldown` is 1 µs to 366 days; [`Error::Unsupported`] for another kind of policy.
    pub fn with_cooldown(self, cooldown: Duration) -> Result<Policy> {
        match self.0 {
            Shape::Concurrency { max, lease, .. } => {
                let cooldown = time::window_ticks("cooldown", cooldown)?;
                // A start that ends takes its units once more before it gives them back.
                let slots = leases::slots(2 * max).min(leases::MAX_SLOTS);
                Ok(Policy(Shape::Concurrency { max, lease, cooldown, slots }, self.1))
            }
            _ => Err(Error::Unsupported { reason: format!("a cooldown is not supported by \"{self}\"") }),
        }
    }

    /// Returns how long units are taken after the end of their start, in ticks.
    #[inline(always)]
    pub(crate) fn cooldown(&self) -> Tick {
        if let Shape::Concurrency { cooldown, .. } = self.0 { cooldown } else { 0 }
    }

    /// Requires at least `delay` between one start and the next.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `delay` is 1 µs to 366 days.
    pub fn delay(delay: Duration) -> Result<Policy> {
        Ok(Policy(Shape::Delay(Windows::one(1, time::window_ticks("delay", delay)?)), 0))
    }

    /// Spaces `max_executions` starts evenly in a `window`: `window / max_executions` (rounded up to whole
    /// microseconds) apart. An adaptive limit subtracts the average duration of the last `max_executions` jobs from
    /// that distance, and never admits more than `max_executions` in any rolling window.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `max_executions` is 1 to 1,000,000,000 (adaptive: 4,096) and `window` 1 µs to
    /// 366 days.
    pub fn evenly_spaced(max_executions: u64, window: Duration, is_adaptive: bool) -> Result<Policy> {
        in_range("max_executions", max_executions, if is_adaptive { log::MAX } else { slices::MAX })?;
        let window = time::window_ticks("window", window)?;
        let interval = window.div_ceil(max_executions);
        Ok(Policy(Shape::EvenlySpaced(Spacing::new(max_executions, window, interval, is_adaptive)), 0))
    }

    /// A bucket of `burst` tokens, refilled evenly with `rate` tokens per `period`. A start takes as many tokens as its
    /// weight.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `rate` and `burst` are 1 to 1,000,000,000 and `period` 1 µs to 366 days.
    pub fn token_bucket(rate: u64, period: Duration, burst: u64) -> Result<Policy> {
        Self::bucket(rate, period, ("burst", burst), false)
    }

    /// One start per `period / rate`; a start of weight `w` takes the time of `w` starts. Up to `queue` units wait for
    /// their turn.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `rate` and `queue` are 1 to 1,000,000,000 and `period` 1 µs to 366 days.
    pub fn leaky_bucket(rate: u64, period: Duration, queue: u64) -> Result<Policy> {
        Self::bucket(rate, period, ("queue", queue), true)
    }

    fn bucket(rate: u64, period: Duration, (name, size): (&'static str, u64), is_leaky: bool) -> Result<Policy> {
        in_range("rate", rate, slices::MAX)?;
        let period = time::window_ticks("period", period)?;
        in_range(name, size, slices::MAX)?;
        // The time in which a full bucket drains must be representable.
        if u128::from(size) * u128::from(period) > u128::from(MAX_TIME) * u128::from(rate) {
            let most = u128::from(MAX_TIME) * u128::from(rate) / u128::from(period);
            return Err(Error::invalid(name, size, format!("at most {most}, the amount that drips in 366 days")));
        }
        Ok(Policy(Shape::Bucket(Bucket::new(rate, period, size, is_leaky)), 0))
    }

    /// Allows at most `max_executions` units in each `window`. Windows are aligned to the Unix epoch, so up to twice as
    /// many can start across a boundary.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `max_executions` is 1 to 1,000,000,000 and `window` 1 µs to 366 days.
    pub fn fixed_window(max_executions: u64, window: Duration) -> Result<Policy> {
        Self::counter(max_executions, window, false)
    }

    /// Estimates at most `max_executions` units in any rolling `window`, from two counts.
    ///
    /// # Errors
    /// As for [`Policy::fixed_window`].
    pub fn sliding_window_counter(max_executions: u64, window: Duration) -> Result<Policy> {
        Self::counter(max_executions, window, true)
    }

    fn counter(max_executions: u64, window: Duration, is_smooth: bool) -> Result<Policy> {
        in_range("max_executions", max_executions, slices::MAX)?;
        let window = Window { limit: max_executions, length: time::window_ticks("window", window)? };
        Ok(Policy(Shape::Counter { window, is_smooth }, 0))
    }

    /// Returns the same policy, shared by tenants: all keys have one budget, and each names a tenant in it. When several
    /// wait, the next start goes to the tenant that has had the least, by its share.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a leaky bucket: its queue is in the order of asking.
    pub fn shared(self) -> Result<Policy> {
        self.with_share(1)
    }

    /// The same, as it applies to a tenant with this share.
    pub(crate) fn with_share(self, share: Share) -> Result<Policy> {
        check_share(share.into())?;
        match self.has_queue() {
            false => Ok(Policy(self.0, share)),
            true => Err(Error::Unsupported {
                reason: format!(
                    "\"{self}\" cannot be shared by tenants: the queue of a leaky bucket is in the order of asking"
                ),
            }),
        }
    }

    /// Returns whether tenants share the limit: see [`Policy::shared`].
    pub const fn is_shared(&self) -> bool {
        self.1 != 0
    }

    /// The share of a tenant to which this policy applies. 0: the limit is not shared.
    pub(crate) fn share(&self) -> Share {
        self.1
    }

    /// Returns the kind of limiter, as it is named in the store: `rate`, `concurrency`, `delay`, `evenly-spaced`,
    /// `token-bucket`, `leaky-bucket`, `fixed-window` or `sliding-window-counter`; with `shared-` before it, if tenants share
    /// it.
    pub const fn kind(&self) -> &'static str {
        if self.is_shared() {
            return match self.0 {
                Shape::Rate(..) => "shared-rate",
                Shape::Concurrency { .. } => "shared-concurrency",
                Shape::Delay(_) => "shared-delay",
                Shape::EvenlySpaced(_) => "shared-evenly-spaced",
                Shape::Bucket(_) => "shared-token-bucket",
                Shape::Counter { is_smooth: false, .. } => "shared-fixed-window",
                Shape::Counter { .. } => "shared-sliding-window-counter",
            };
        }
        match self.0 {
            Shape::Rate(..) => "rate",
            Shape::Concurrency { .. } => "concurrency",
            Shape::Delay(_) => "delay",
            Shape::EvenlySpaced(_) => "evenly-spaced",
            Shape::Bucket(Bucket { is_leaky: false, .. }) => "token-bucket",
            Shape::Bucket(_) => "leaky-bucket",
            Shape::Counter { is_smooth: false, .. } => "fixed-window",
            Shape::Counter { .. } => "sliding-window-counter",
        }
    }

    /// Returns the same policy, with at least as many lease slots as `before`.
    pub(crate) fn after(self, before: Policy) -> Policy {
        match (self.0, before.0) {
            (Shape::Concurrency { max, lease, cooldown, slots }, Shape::Concurrency { slots: had, .. }) => {
                Policy(Shape::Concurrency { max, lease, cooldown, slots: slots.max(had) }, self.1)
            }
            _ => self,
        }
    }

    /// Returns the same policy with twice as many lease slots, for starts that are recorded beyond the limit.
    pub(crate) fn with_more_slots(self) -> Option<Policy> {
        match self.0 {
            Shape::Concurrency { max, lease, cooldown, slots } if slots < leases::MAX_SLOTS => {
                Some(Policy(Shape::Concurrency { max, lease, cooldown, slots: 2 * slots }, self.1))
            }
            _ => None,
        }
    }

    /// Returns the windows of a sliding log.
    #[inline(always)]
    pub(crate) fn windows(&self) -> &[Window] {
        self.all_windows().as_slice()
    }

    /// The same, without the spacing that jobs may shorten.
    pub(crate) fn certain_windows(&self) -> &[Window] {
        match &self.0 {
            Shape::EvenlySpaced(spacing) if spacing.is_adaptive => &self.windows()[..1],
            _ => self.windows(),
        }
    }

    pub(crate) fn all_windows(&self) -> &Windows {
        match &self.0 {
            Shape::Rate(windows, _) | Shape::Delay(windows) | Shape::EvenlySpaced(Spacing { windows, .. }) => windows,
            Shape::Concurrency { .. } | Shape::Bucket(_) | Shape::Counter { .. } => &Windows::NONE,
        }
    }

    /// Returns the heaviest start that the policy admits.
    #[inline(always)]
    pub fn capacity(&self) -> u64 {
        match &self.0 {
            Shape::Concurrency { max, .. } => *max,
            Shape::Bucket(bucket) => bucket.size,
            Shape::Counter { window, .. } => window.limit,
            _ => self.windows().iter().map(|w| w.limit).min().unwrap_or(0),
        }
    }

    /// Returns the longest of its windows, in ticks.
    pub(crate) fn longest_window(&self) -> Tick {
        self.all_windows().longest()
    }

    /// Returns how long a start counts, in ticks.
    pub(crate) fn longest(&self) -> Tick {
        match &self.0 {
            Shape::Rate(windows, _) | Shape::Delay(windows) => windows.longest(),
            // Between the average and the interval that belongs to it, a start may count no longer than the interval.
            Shape::EvenlySpaced(spacing) => spacing.windows.longest().max(spacing.interval),
            Shape::Concurrency { .. } => 0,
            Shape::Bucket(bucket) => bucket.memory(),
            Shape::Counter { window, is_smooth } => window.length * if *is_smooth { 2 } else { 1 },
        }
    }

    /// Returns the largest number of units that must be distinguished.
    pub(crate) fn largest(&self) -> u64 {
        match &self.0 {
            Shape::Rate(windows, _) | Shape::Delay(windows) => windows.largest(),
            Shape::EvenlySpaced(spacing) => spacing.windows.largest(),
            _ => self.capacity(),
        }
    }

    /// Returns the time after which starts count.
    pub(crate) fn counts_since(&self, now: Now) -> Tick {
        now.floor.saturating_sub(self.longest())
    }

    /// Returns the shortest time over which starts are counted, 0 if they are not. The cost of a start's grace is a
    /// fraction of this.
    pub(crate) fn shortest(&self) -> Tick {
        match &self.0 {
            Shape::Bucket(bucket) => bucket.period / bucket.rate,
            Shape::Counter { window, .. } => window.length,
            // Independent of the last jobs' durations: an idle key may or may not be forgotten yet.
            Shape::EvenlySpaced(spacing) => spacing.interval,
            _ => self.windows().iter().map(|w| w.length).filter(|&length| length > 0).min().unwrap_or(0),
        }
    }

    /// Returns the window by which its units are divided among machines, if they can be.
    pub(crate) fn shared_by(&self) -> Option<Window> {
        match &self.0 {
            Shape::Rate(windows, _) => windows.as_slice().iter().min_by_key(|window| window.length).copied(),
            _ => None,
        }
    }

    /// Returns the shortest time in which this many units can start, the first of them immediately, in ticks.
    pub(crate) fn soonest(&self, units: u64) -> Tick {
        let later = units.saturating_sub(1);
        match &self.0 {
            Shape::Concurrency { .. } => 0,
            // Jobs may shorten it.
            Shape::EvenlySpaced(spacing) if spacing.is_adaptive => 0,
            Shape::Bucket(bucket) => later.saturating_sub(bucket.size).saturating_mul(self.shortest()),
            // Two windows' worth can start across a boundary.
            Shape::Counter { window, .. } => (later / window.limit / 2).saturating_mul(window.length),
            _ => self.windows().iter().map(|w| (later / w.limit).saturating_mul(w.length)).max().unwrap_or(0),
        }
    }

    /// Returns the default grace of a place, in ticks: a fortieth of a unit's cost, at most 50 ms; more where grace
    /// costs nothing.
    pub(crate) fn grace(&self, weight: u64) -> Tick {
        let free = match &self.0 {
            Shape::Bucket(bucket) => {
                let units = if bucket.is_leaky { 0 } else { bucket.size.saturating_sub(weight) };
                (self.shortest() / 40).max(units.saturating_mul(self.shortest()))
            }
            Shape::Counter { window, .. } => window.length,
            _ => self.shortest() / 40,
        };
        free.min(MAX_DEFAULT_GRACE)
    }

    /// Returns whether starts are recorded, one by one or in slices.
    pub(crate) fn is_log(&self) -> bool {
        !matches!(self.0, Shape::Bucket(_) | Shape::Counter { .. } | Shape::Concurrency { .. })
    }

    /// Returns whether starts are only counted, so that they cannot be distinguished.
    #[inline(always)]
    pub(crate) fn is_counted(&self) -> bool {
        match &self.0 {
            Shape::Rate(..) => self.is_sliced(),
            Shape::Bucket(_) | Shape::Counter { .. } => true,
            _ => false,
        }
    }

    /// Returns whether the policy itself bounds the number of waiters.
    pub(crate) fn has_queue(&self) -> bool {
        matches!(&self.0, Shape::Bucket(bucket) if bucket.is_leaky)
    }

    /// Returns whether it is a bucket.
    #[inline(always)]
    pub(crate) fn is_bucket(&self) -> bool {
        matches!(self.0, Shape::Bucket(_))
    }

    /// Returns whether starts are counted in slices of the window.
    #[inline(always)]
    pub(crate) fn is_sliced(&self) -> bool {
        matches!(&self.0, Shape::Rate(windows, _) if windows.all[0].limit > log::MAX)
    }

    /// Returns whether it is a log, whose starts keep the tickets that they had before a rewrite.
    pub(crate) fn has_origins(&self) -> bool {
        !self.is_counted() && !self.is_concurrency()
    }

    /// Returns whether it limits concurrent starts. All other policies are timed.
    #[inline(always)]
    pub(crate) fn is_concurrency(&self) -> bool {
        matches!(self.0, Shape::Concurrency { .. })
    }

    /// Returns the first window, which is the only one if starts are counted in slices.
    pub(crate) fn window(&self) -> Window {
        self.windows().first().copied().unwrap_or(Window { limit: 0, length: 0 })
    }

    /// Returns the number of words of a key's cells, without its head.
    pub(crate) fn ring(&self) -> u64 {
        match &self.0 {
            Shape::Rate(..) if self.is_sliced() => slices::SLICES,
            Shape::Concurrency { slots, .. } => slots.saturating_mul(leases::SLOT_WORDS),
            // These fit in the head of a block.
            Shape::Bucket(_) | Shape::Counter { .. } => 0,
            // Few units start at once, but many callers may wait: each has its place in the log.
            _ => log::capacity(self.largest().max(if self.capacity() == 1 { 32 } else { 1 })),
        }
    }

    /// Returns the number of words that remember job durations.
    pub(crate) fn jobs(&self) -> u64 {
        match &self.0 {
            Shape::EvenlySpaced(spacing) if spacing.is_adaptive => self.ring(),
            _ => 0,
        }
    }

    /// Returns the class of blocks that can be reused for one another, below 64.
    pub(crate) fn block_class(&self) -> u64 {
        let bits = u64::from(self.ring().max(1).ilog2());
        match &self.0 {
            Shape::Rate(..) | Shape::Delay(_) => bits,
            Shape::EvenlySpaced(spacing) if spacing.is_adaptive => 16 + bits,
            Shape::EvenlySpaced(_) => bits,
            Shape::Bucket(_) => 1,
            Shape::Counter { .. } => 2,
            // 6 to 19.
            Shape::Concurrency { .. } => 32 + bits,
        }
    }

    /// Encodes the policy as words, as the stores' cells keep it: kind, then its numbers.
    pub(crate) fn to_words(self) -> [u64; POLICY_WORDS] {
        let mut words = [0; POLICY_WORDS];
        match self.0 {
            Shape::Rate(windows, backoff) => {
                words[0] = 1;
                for (pair, window) in words[1..9].chunks_exact_mut(2).zip(windows.as_slice()) {
                    pair.copy_from_slice(&[window.limit, window.length]);
                }
                words[9..].copy_from_slice(&backoff.to_words());
            }
            Shape::Concurrency { max, lease, cooldown, slots } => {
                words[..5].copy_from_slice(&[2, max, lease, slots, cooldown]);
            }
            Shape::Delay(windows) => words[..2].copy_from_slice(&[3, windows.longest()]),
            Shape::EvenlySpaced(Spacing { max, window, interval, is_adaptive, .. }) => {
                words[..5].copy_from_slice(&[4, max, window, interval, is_adaptive.into()]);
            }
            Shape::Bucket(bucket) => {
                words[0] = 5;
                words[1..7].copy_from_slice(&bucket.to_words());
            }
            Shape::Counter { window, is_smooth } => {
                words[..4].copy_from_slice(&[6, window.limit, window.length, is_smooth.into()]);
            }
        }
        words[0] |= u64::from(self.1) << SHARE;
        words
    }

    /// Decodes a policy from words. It was validated when it was declared and is not validated again.
    #[inline(always)]
    pub(crate) fn from_words(word: impl Fn(usize) -> u64) -> Option<Policy> {
        let (kind, share) = (word(0) & ((1 << SHARE) - 1), (word(0) >> SHARE) as Share);
        // The divisors.
        let is_some = match kind {
            1 | 4 | 6 => word(1) != 0 && word(2) != 0,
            5 => word(1) != 0 && word(5) != 0 && word(6) != 0,
            _ => word(1) != 0,
        };
        if !is_some {
            return None;
        }
        let shape = match kind {
            1 => {
                let mut windows = Windows::one(word(1), word(2));
                // Most limits have one.
                while windows.count < MAX_WINDOWS && word(1 + 2 * windows.count) != 0 {
                    windows = windows.and(word(1 + 2 * windows.count), word(2 + 2 * windows.count));
                }
                Shape::Rate(windows, Backoff::from_words([word(9), word(10), word(11)]))
            }
            2 => Shape::Concurrency { max: word(1), lease: word(2), slots: word(3), cooldown: word(4) },
            3 => Shape::Delay(Windows::one(1, word(1))),
            4 => Shape::EvenlySpaced(Spacing::new(word(1), word(2), word(3), word(4) != 0)),
            5 => Shape::Bucket(Bucket::from_words(std::array::from_fn(|i| word(1 + i)))),
            6 => Shape::Counter { window: Window { limit: word(1), length: word(2) }, is_smooth: word(3) != 0 },
            _ => return None,
        };
        Some(Policy(shape, share))
    }
}

/// The longest default grace of a place, in ticks: 50 ms.
pub(crate) const MAX_DEFAULT_GRACE: Tick = 50_000;

fn in_range(parameter: &'static str, value: u64, most: u64) -> Result<()> {
    if (1..=most).contains(&value) {
        Ok(())
    } else {
        Err(Error::invalid(parameter, value, format!("a whole number from 1 to {most}")))
    }
}

/// Checks a limit's name: 1 to 1,024 bytes.
pub(crate) fn check_name(name: &str) -> Result<()> {
    match name.len() {
        1..=MAX_NAME_BYTES => Ok(()),
        0 => Err(Error::invalid("name", "empty", "1 to 1024 bytes of UTF-8")),
        n => Err(Error::invalid("name", format_args!("{n} bytes long"), "1 to 1024 bytes of UTF-8")),
    }
}

/// Checks a key: at most 1,024 bytes.
#[inline]
pub(crate) fn check_key(key: &str) -> Result<()> {
    if key.len() <= MAX_NAME_BYTES && !charges::may_be_joint(key) { Ok(()) } else { check_rare_key(key) }
}

#[cold]
fn check_rare_key(key: &str) -> Result<()> {
    if charges::is_joint(key) {
        // Each set of charges would have a budget of its own.
        return Err(Error::invalid("key", "the joint key of another limiter", "a key, or a joint key of this limiter"));
    }
    if key.len() > MAX_NAME_BYTES {
        return Err(Error::invalid("key", format_args!("{} bytes long", key.len()), "at most 1024 bytes of UTF-8"));
    }
    Ok(())
}

/// Checks the share of a tenant.
pub(crate) fn check_share(share: u64) -> Result<()> {
    if (1..=u64::from(MAX_SHARE)).contains(&share) {
        Ok(())
    } else {
        Err(Error::invalid("share", share, format!("a whole number from 1 to {MAX_SHARE}")))
    }
}

/// The same, if it is given.
pub(crate) fn check_shares(share: Option<Share>) -> Result<()> {
    share.map_or(Ok(()), |share| check_share(share.into()))
}

/// Checks that a start has a weight.
#[inline]
pub(crate) fn check_some(weight: u64) -> Result<()> {
    if weight > 0 { Ok(()) } else { Err(Error::invalid("weight", 0, "a whole number of at least 1")) }
}

/// Checks the number of starts of a forecast.
pub(crate) fn check_starts(starts: u64) -> Result<()> {
    in_range("starts", starts, slices::MAX)
}

/// Checks a weight against the limit's capacity.
#[inline]
pub(crate) fn check_weight(limit: &str, weight: u64, capacity: u64) -> Result<()> {
    if weight <= capacity {
        Ok(())
    } else {
        Err(Error::WeightExceedsCapacity { limit: limit.to_owned(), weight, capacity })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_policy_survives_words_and_text() {
        let backoff = Backoff::new(2 * SECOND, 2.5, 120 * SECOND, Jitter::Full).unwrap();
        for policy in [
            Policy::rate(20, 2 * SECOND),
            Policy::rate_in(&[(100, 60 * SECOND), (5, SECOND), (1, Duration::from_micros(7))]),
            Policy::rate(50, 60 * SECOND).unwrap().with_backoff(backoff),
            Policy::concurrency(3),
            Policy::concurrency(3).unwrap().with_lease(60 * SECOND),
            Policy::concurrency(65_535).unwrap().with_cooldown(SECOND),
            Policy::concurrency(3).unwrap().with_cooldown(SECOND).and_then(|policy| policy.with_lease(2 * SECOND)),
            Policy::delay(SECOND / 20),
            Policy::evenly_spaced(60, 60 * SECOND, true),
            Policy::evenly_spaced(7, SECOND, false),
            Policy::token_bucket(10, SECOND, 20),
            Policy::leaky_bucket(10, SECOND, 100),
            Policy::fixed_window(100, 60 * SECOND),
            Policy::sliding_window_counter(1_000_000, 60 * SECOND),
            Policy::rate_in(&[(100, 60 * SECOND), (5, SECOND)]).and_then(Policy::shared),
            Policy::rate(50, 60 * SECOND).unwrap().with_backoff(backoff).and_then(|policy| policy.with_share(1_000)),
            Policy::concurrency(3).unwrap().with_lease(60 * SECOND).and_then(Policy::shared),
            Policy::token_bucket(10, SECOND, 20).and_then(|policy| policy.with_share(3)),
            Policy::sliding_window_counter(1_000_000, 60 * SECOND).and_then(Policy::shared),
        ] {
            let policy = policy.unwrap();
            let words = policy.to_words();
            assert_eq!(Policy::from_words(|at| words[at]), Some(policy));
            assert_eq!(policy.to_string().parse(), Ok(policy), "{policy}");
        }
        assert_eq!(Policy::from_words(|_| 0), None);
    }

    #[test]
    fn an_error_names_the_parameter_out_of_range() {
        let text = Policy::rate(0, SECOND).unwrap_err().to_string();
        assert_eq!(text, "max_executions is 0: expected a whole number from 1 to 1000000000");
        let text = Policy::token_bucket(1, 86_400 * SECOND, 1_000).unwrap_err().to_string();
        assert_eq!(text, "burst is 1000: expected at most 366, the amount that drips in 366 days");
        for wrong in [
            Policy::rate(u64::MAX, SECOND),
            Policy::rate(1, Duration::ZERO),
            Policy::concurrency(0),
            Policy::concurrency(70_000),
            Policy::concurrency(1).unwrap().with_lease(Duration::ZERO),
            Policy::rate(1, SECOND).unwrap().with_lease(SECOND),
            Policy::concurrency(1).unwrap().with_cooldown(Duration::ZERO),
            Policy::rate(1, SECOND).unwrap().with_cooldown(SECOND),
            Policy::delay(Duration::ZERO),
            Policy::evenly_spaced(5_000, SECOND, true),
            Policy::leaky_bucket(0, SECOND, 1),
            Policy::leaky_bucket(1, SECOND, 0),
            Policy::fixed_window(1, Duration::ZERO),
        ] {
            assert!(wrong.is_err(), "{wrong:?}");
        }
        for multiplier in [f64::NAN, 1.0, 0.5, -2.0, f64::INFINITY, 1e9] {
            assert!(Backoff::new(SECOND, multiplier, SECOND, Jitter::None).is_err(), "{multiplier}");
        }
        assert!(Backoff::new(2 * SECOND, 2.0, SECOND, Jitter::None).is_err());
    }
}
