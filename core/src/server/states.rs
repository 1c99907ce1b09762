//! The states of buckets and of windows of the clock, as a server's scripts report them.

use crate::algorithm::bucket::Bucket;
use crate::time::Tick;

/// A bucket: see `bucket.lua`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BucketState {
    /// Moments and costs are counted in these parts of a tick.
    parts: u128,
    /// The cost of a unit, in parts.
    cost: u128,
    size: u64,
    is_leaky: bool,
    /// When it has recovered from all that was started, in parts.
    recovered: u128,
}

impl BucketState {
    /// A bucket that has recovered at a tick and this many parts of one.
    pub fn of(bucket: &Bucket, [tick, part]: [u64; 2]) -> BucketState {
        let (parts, cost) = bucket.in_lowest_terms();
        Self::by([parts, cost / parts, cost % parts, bucket.size, u64::from(bucket.is_leaky)], [tick, part])
    }

    /// The same, by the numbers of the policy that a script knows.
    pub fn by([parts, whole, rest, size, is_leaky]: [u64; 5], [tick, part]: [u64; 2]) -> BucketState {
        let (parts, [whole, rest, tick, part]) = (u128::from(parts.max(1)), [whole, rest, tick, part].map(u128::from));
        let cost = (whole * parts + rest).max(1);
        BucketState { parts, cost, size, is_leaky: is_leaky == 1, recovered: tick * parts + part }
    }

    /// Counts it as emptied at a tick.
    pub fn emptied_at(mut self, tick: Tick) -> BucketState {
        self.recovered = self.recovered.max(u128::from(tick) * self.parts + u128::from(self.size) * self.cost);
        self
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// The heaviest start that would be admitted now.
    pub fn remaining(&self, now: Tick) -> u64 {
        let behind = self.recovered.saturating_sub(u128::from(now) * self.parts);
        match self.is_leaky {
            true if behind > 0 => 0,
            true => self.size,
            false => ((u128::from(self.size) * self.cost).saturating_sub(behind) / self.cost) as u64,
        }
    }

    /// When a unit may start.
    pub fn ready(&self) -> Tick {
        let slack = if self.is_leaky { 0 } else { u128::from(self.size.saturating_sub(1)) * self.cost };
        self.recovered.saturating_sub(slack).div_ceil(self.parts) as Tick
    }

    /// When it is back in its initial state.
    pub fn empty(&self) -> Tick {
        self.recovered.div_ceil(self.parts) as Tick
    }
}

/// Windows of the clock: see `window.lua`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WindowState {
    limit: u64,
    length: Tick,
    is_smooth: bool,
    /// The Unix time of tick 0 in µs.
    phase: i64,
    /// The newest window, its units and those of the window before.
    newest: i64,
    units: u64,
    before: u64,
}

impl WindowState {
    /// Windows by the numbers of a policy, and by the newest one, its units and those of the window before.
    pub fn by([limit, length, is_smooth]: [u64; 3], [newest, units, before]: [u64; 3], phase: i64) -> WindowState {
        let (newest, length) = (newest as i64, length.max(1));
        WindowState { limit, length, is_smooth: is_smooth == 1, phase, newest, units, before }
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    fn number(&self, tick: Tick) -> i64 {
        (tick as i64 + self.phase).div_euclid(self.length as i64)
    }

    fn start(&self, number: i64) -> i64 {
        number * self.length as i64 - self.phase
    }

    fn units_of(&self, number: i64) -> u64 {
        match self.newest - number {
            0 => self.units,
            1 => self.before,
            _ => 0,
        }
    }

    /// The units of the window before, as far as they count in this one.
    fn before(&self, number: i64) -> u64 {
        if self.is_smooth { self.units_of(number - 1) } else { 0 }
    }

    /// The heaviest start that would be admitted now.
    pub fn remaining(&self, now: Tick) -> u64 {
        let here = self.number(now);
        let left = self.length - (now as i64 - self.start(here)) as u64;
        let estimate = u128::from(self.before(here)) * u128::from(left);
        let used = self.units_of(here) + estimate.div_ceil(u128::from(self.length)) as u64;
        if self.newest > here { 0 } else { self.limit.saturating_sub(used) }
    }

    /// When a unit may start, from now on.
    pub fn ready(&self, now: Tick) -> Tick {
        let first = self.number(now).max(self.newest);
        let opens = |number: i64| {
            let start = self.start(number);
            let free = u128::from(self.limit.checked_sub(self.units_of(number) + 1)?);
            let elapsed = (now as i64 - start).max(0) as u64;
            let before = u128::from(self.before(number));
            // This much of the window may be left.
            let left = if free < before { (free * u128::from(self.length) / before) as u64 } else { self.length };
            let elapsed = elapsed.max(self.length - left);
            (elapsed < self.length).then(|| (start + elapsed as i64) as Tick)
        };
        // The second window after the newest is empty, and so is the one before it.
        (first..first + 3).find_map(opens).unwrap_or(now)
    }

    /// When nothing counts any more.
    pub fn empty(&self, now: Tick) -> Tick {
        let lasts = if self.is_smooth { 2 } else { 1 };
        let until = |number: i64, units: u64| if units > 0 { self.start(number + lasts) as Tick } else { 0 };
        let placed = if self.newest > self.number(now) { self.start(self.newest) as Tick } else { 0 };
        placed.max(until(self.newest, self.units)).max(until(self.newest - 1, self.before))
    }
}
