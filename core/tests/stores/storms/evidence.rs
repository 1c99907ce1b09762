//! The recorded starts of processes, and the certain excess over a bound.

use crate::common::family::Bound;
use crate::common::{most_in_any_window, now_ns, shared};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;
use workglow_limit::*;

/// It started somewhere in `[a, b]`, and certainly ran from `b` to `end`.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    pub key: u64,
    pub a: u64,
    pub b: u64,
    pub end: u64,
    pub units: u64,
}

const WORDS: usize = 4;

/// The starts of successive processes, in memory that outlives them.
pub struct Evidence {
    words: &'static [AtomicU64],
    /// When they were killed. A child knows the number of deaths before it, which is its own number.
    deaths: Vec<u64>,
}

impl Evidence {
    pub fn new(capacity: usize) -> Evidence {
        Evidence { words: shared(1 + WORDS * capacity), deaths: Vec::new() }
    }

    /// Records a reported start. Returns its number, for [`Evidence::end`].
    pub fn begin(&self, key: u64, a: u64, units: u64) -> usize {
        let n = self.words[0].load(Relaxed) as usize;
        let at = 1 + WORDS * n;
        assert!(at + WORDS <= self.words.len(), "there is no space for more evidence");
        for (word, value) in
            self.words[at..].iter().zip([a, now_ns(), 0, units << 32 | (self.deaths.len() as u64) << 8 | key])
        {
            word.store(value, Relaxed);
        }
        self.words[0].store(n as u64 + 1, Release);
        n
    }

    /// Records that it still runs, but will be ended now.
    pub fn end(&self, number: usize) {
        self.words[1 + WORDS * number + 2].store(now_ns(), Release);
    }

    /// Records that the process is about to be killed.
    pub fn note_death(&mut self) {
        self.deaths.push(now_ns());
    }

    /// Returns whether something has started for this key.
    pub fn has_started(&self, key: u64) -> bool {
        let n = self.words[0].load(Acquire) as usize;
        (0..n).any(|i| self.words[1 + WORDS * i + 3].load(Relaxed) & 0xff == key)
    }

    /// All starts. Each ran until it was ended or its process was killed.
    pub fn starts(&self) -> Vec<Start> {
        let n = self.words[0].load(Acquire) as usize;
        let word = |at: usize| self.words[at].load(Acquire);
        (0..n)
            .map(|i| {
                let [a, b, end, rest] = std::array::from_fn(|word_of| word(1 + WORDS * i + word_of));
                let death = self.deaths[(rest >> 8 & 0xff_ffff) as usize];
                // It may have begun just before the signal reached the process.
                let end = if end != 0 { end } else { death.max(b) };
                Start { key: rest & 0xff, a, b, end, units: rest >> 32 }
            })
            .collect()
    }
}

/// The units of one key beyond a bound. `boundary`: the moments between which a boundary of aligned windows lies.
pub fn over(bound: Bound, starts: &[Start], heaviest: u64, boundary: (u64, u64)) -> u64 {
    let intervals: Vec<_> = starts.iter().map(|s| (s.a, s.b, s.units)).collect();
    match bound {
        Bound::Window(limit, us) => most_in_any_window(&intervals, us * 1_000).saturating_sub(limit),
        Bound::Flow(rate, us, burst) => {
            let burst = if burst == 0 { heaviest } else { burst };
            // From a microsecond to the time of 4,096 units.
            let lengths = (0..13).map(|i| (us * 1_000 / rate) << i).chain([1_000]);
            let beyond = |length| {
                let most = most_in_any_window(&intervals, length);
                most.saturating_sub(burst + rate * (length - 1) / (us * 1_000))
            };
            lengths.map(beyond).max().unwrap_or(0)
        }
        Bound::Aligned { limit, us, is_smooth } => over_aligned(limit, us * 1_000, is_smooth, starts, boundary),
        Bound::AtOnce(most) => most_at_once(starts).saturating_sub(most),
    }
}

/// The most units that ran at the same time.
pub fn most_at_once(starts: &[Start]) -> u64 {
    // A run that ends when another begins does not overlap it.
    let ran = || starts.iter().filter(|s| s.end > s.b);
    let begins = ran().map(|s| (s.b, 1, s.units));
    let mut changes: Vec<_> = begins.chain(ran().map(|s| (s.end, 0, s.units))).collect();
    changes.sort_unstable();
    let (mut live, mut most) = (0u64, 0);
    for (_, begins, units) in changes {
        live = if begins == 1 { live + units } else { live - units };
        most = most.max(live);
    }
    most
}

/// In windows whose boundaries are known only to lie in a range, starts count that are certainly inside.
fn over_aligned(limit: u64, length: u64, is_smooth: bool, starts: &[Start], (low, high): (u64, u64)) -> u64 {
    // This many windows earlier, all starts are later than the first boundary.
    let back = starts.iter().map(|s| s.a).min().map_or(0, |first| high.saturating_sub(first) / length + 1) * length;
    let (low, high) = (low - back, high - back);
    let mut inside: Vec<(u64, &Start)> = starts
        .iter()
        .map(|s| ((s.a - high) / length, s))
        .filter(|(window, s)| s.b < low + (window + 1) * length)
        .collect();
    inside.sort_unstable_by_key(|(window, s)| (*window, s.b));
    let (mut worst, mut before) = (0, None);
    for window in inside.chunk_by(|x, y| x.0 == y.0) {
        let number = window[0].0;
        let before_it = match before {
            Some((last, units)) if is_smooth && last + 1 == number => units,
            _ => 0u64,
        };
        let mut units = 0;
        for (_, s) in window {
            units += s.units;
            // The last admitted start fitted no later than at `b`.
            let left = length - (s.b - (low + number * length));
            worst = worst.max((before_it * left + units * length).saturating_sub(limit * length).div_ceil(length));
        }
        before = Some((number, units));
    }
    worst
}

/// The moments between which some boundary of aligned windows of this store lies.
pub fn boundary(store: &Store, window: Duration) -> (u64, u64) {
    let limiter = FixedWindowLimiter::new(store, "boundaries", 1, window).unwrap();
    let mut best = (0, u64::MAX);
    for _ in 0..2_000 {
        limiter.attempt("", 1).unwrap();
        let a = now_ns();
        let decision = limiter.peek("", 1).unwrap();
        let b = now_ns();
        let after = decision.retry_after.as_nanos() as u64;
        // Its time was rounded down to a microsecond.
        if !decision.admitted && b - a + 1_000 < best.1 - best.0 {
            best = (a + after - 1_000, b + after);
        }
    }
    assert!(best.1 - best.0 < window.as_nanos() as u64 / 4, "the boundary is not known: {best:?}");
    best
}
