//! The numbers of a token bucket or leaky bucket: its rate and size, in fractions of a microsecond of which a unit
//! costs a whole number.

use crate::time::{MAX_TIME, Now, Tick};

/// The most units that a bucket holds, or gets in a period.
pub const MAX: u64 = 1_000_000_000;

/// No bucket of any size costs more than this.
pub(crate) const COSTLIEST: u128 = 1 << 61;
/// The most parts of a microsecond with which a word still reaches as far as the longest wait, grace included.
pub(crate) const FINEST: u128 = COSTLIEST / (4 * MAX_TIME as u128);
/// The precision limit: costs above this, rounded up, make the rate slower by less than a 10⁻⁹th.
pub(crate) const COARSEST: u128 = 1 << 31;

/// A rate, with a size.
///
/// Moments and costs are counted in *parts*: `n` parts are 2^`shift` µs, and a unit costs `p` of them. Usually that is
/// exact: `n / p` is the rate in lowest terms, and `shift` is 0. Where the numbers would be too large for a word, fewer
/// parts are used, and the cost is rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// This many units come back ...
    pub rate: u64,
    /// ... in this many ticks.
    pub period: Tick,
    /// The number of units that may start at once, or in a leaky bucket, wait.
    pub size: u64,
    /// Whether starts above the rate wait in line, instead of starting at once from what was saved up.
    pub is_leaky: bool,
    pub(crate) n: u64,
    pub(crate) p: u64,
    pub(crate) shift: u32,
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Divides, saturating at `u64::MAX`.
#[inline(always)]
pub(crate) fn divide(a: u128, b: u64) -> u64 {
    // A 128-bit division takes longer than the rest of a denial.
    match u64::try_from(a) {
        Ok(a) => a / b,
        Err(_) => u64::try_from(a / u128::from(b)).unwrap_or(u64::MAX),
    }
}

/// The same, rounded up.
#[inline(always)]
pub(crate) fn divide_up(a: u128, b: u64) -> u64 {
    divide(a + u128::from(b - 1), b)
}

/// Reduces a fraction to lowest terms.
fn lowest_terms(a: u64, b: u64) -> (u64, u64) {
    let shared = gcd(a, b);
    (a / shared, b / shared)
}

impl Bucket {
    /// Returns the rate as a fraction: units per ticks.
    pub fn in_lowest_terms(&self) -> (u64, u64) {
        lowest_terms(self.rate, self.period)
    }

    /// Makes a bucket: `rate` and `size` are 1 to [`MAX`], `period` is 1 to [`MAX_TIME`].
    pub fn new(rate: u64, period: Tick, size: u64, is_leaky: bool) -> Bucket {
        debug_assert!((1..=MAX).contains(&rate) && (1..=MAX_TIME).contains(&period) && (1..=MAX).contains(&size));
        let (n, p) = lowest_terms(rate, period);
        let (n, p) = (u128::from(n), u128::from(p));
        // The largest cost that fits, then one with which a word reaches far enough.
        let fits = COSTLIEST / u128::from(size + 1);
        let most = fits.min(COARSEST.max(p * FINEST / n));
        let (n, p, shift) = match n * most / p {
            _ if p <= most => (n, p, 0),
            0 => {
                // Not even whole microseconds.
                let shift = (p.div_ceil(n * most) as u64).next_power_of_two().trailing_zeros();
                (1, p.div_ceil(n << shift), shift)
            }
            fewer => (fewer, (p * fewer).div_ceil(n), 0),
        };
        Bucket { rate, period, size, is_leaky, n: n as u64, p: p as u64, shift }
    }

    /// Encodes it as words: see [`Bucket::from_words`].
    pub fn to_words(self) -> [u64; 6] {
        let Bucket { rate, period, size, is_leaky, n, p, shift } = self;
        [rate, period, size, u64::from(shift) << 1 | u64::from(is_leaky), n, p]
    }

    /// Decodes a bucket from its words.
    pub fn from_words([rate, period, size, flags, n, p]: [u64; 6]) -> Bucket {
        Bucket { rate, period, size, is_leaky: flags & 1 != 0, n, p, shift: (flags >> 1) as u32 }
    }

    /// Returns how long a start counts: after that an empty bucket has recovered.
    #[inline]
    pub fn memory(&self) -> Tick {
        self.tick(self.cost(self.size + 1))
    }

    /// Returns the moment of a tick, rounded down: for "has it come?".
    #[inline(always)]
    pub(crate) fn floor(&self, tick: Tick) -> i128 {
        (i128::from(tick) * i128::from(self.n)) >> self.shift
    }

    /// The same, rounded up: for "when was it?".
    #[inline(always)]
    pub(crate) fn ceil(&self, tick: Tick) -> i128 {
        (i128::from(tick) * i128::from(self.n) + (1 << self.shift) - 1) >> self.shift
    }

    /// Returns the moment of a life's base, which may lie before the epoch.
    #[inline(always)]
    pub(crate) fn origin(&self, base: u64) -> i128 {
        i128::from(base as i64) * i128::from(self.n)
    }

    /// Returns the first tick at or after a moment.
    #[inline]
    pub(crate) fn tick(&self, moment: i128) -> Tick {
        divide_up((moment.max(0) as u128) << self.shift, self.n)
    }

    #[inline(always)]
    pub(crate) fn cost(&self, units: u64) -> i128 {
        i128::from(units) * i128::from(self.p)
    }

    /// Returns the number of units that cost this, rounded up.
    #[inline(always)]
    pub(crate) fn units(&self, cost: i128) -> u64 {
        divide_up(cost.max(0) as u128, self.p)
    }

    /// Returns how far behind the bucket may be when a start of this weight begins.
    #[inline(always)]
    pub(crate) fn slack(&self, weight: u64) -> i128 {
        if self.is_leaky { 0 } else { self.cost(self.size.saturating_sub(weight)) }
    }

    /// Returns how far ahead the last turn of a leaky bucket may lie: `size` units with this one wait, behind one that
    /// has just started, each with the grace of this one.
    #[inline]
    pub(crate) fn queue(&self, weight: u64, grace: Tick) -> i128 {
        self.cost(self.size + 1 - weight) + i128::from(self.size - weight) * self.ceil(grace)
    }

    /// Returns the heaviest start that fits, if the bucket has recovered by `recovered`.
    #[inline]
    pub(crate) fn remaining(&self, recovered: i128, now: i128) -> u64 {
        let behind = (recovered - now).max(0);
        match self.is_leaky {
            true if behind > 0 => 0,
            true => self.size,
            false => divide((self.cost(self.size) - behind).max(0) as u128, self.p),
        }
    }

    /// Returns the base of unused cells, from now on.
    #[inline]
    pub(crate) fn first_base(&self, now: Now) -> u64 {
        (now.floor >> self.shift).max(1)
    }
}
