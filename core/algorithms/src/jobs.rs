//! Job durations, for the spacing of starts: a ring of the last durations, and the distance that follows from them.
//!
//! The distance is computed at each start, from the jobs that have ended by then, and holds until the next start. So
//! the delay that a denial returns stays true, whatever ends in the meantime. The distance may lag behind a start that
//! happens at the same moment. That moves starts, but never beyond the window, which is counted separately.
//!
//! # Orderings
//!
//! None is needed. Each word is meaningful on its own: a reader that sees that a job has ended, but not yet its
//! duration, uses the duration of an older job. `Release` and `Acquire` only make it likely that a duration is seen
//! together with the number that counts it.

use crate::atomic::{AtomicU64, *};
use crate::time::Tick;

/// The jobs of one key, in cells that live elsewhere.
#[derive(Clone, Copy)]
pub struct Jobs<'a> {
    /// The number of ended jobs.
    pub ended: &'a AtomicU64,
    /// The distance to the next start plus one; 0: unknown.
    pub spacing: &'a AtomicU64,
    /// The durations of the last jobs: as many as count.
    pub ring: &'a [AtomicU64],
}

impl Jobs<'_> {
    /// Returns the number of remembered jobs.
    #[inline]
    pub fn most(&self) -> usize {
        self.ring.len()
    }

    /// Records the duration of an ended job.
    #[inline]
    pub fn record(&self, duration: Tick) {
        // A process that dies in between leaves the duration of an older job.
        let number = self.ended.fetch_add(1, AcqRel);
        self.ring[(number % self.ring.len() as u64) as usize].store(duration, Release);
    }

    /// Computes the distance from this start to the next, where starts of jobs without duration would be `interval`
    /// apart.
    #[inline]
    pub fn space(&self, interval: Tick) {
        let spacing = 1 + interval.saturating_sub(self.average());
        if self.spacing.load(Relaxed) != spacing {
            self.spacing.store(spacing, Release);
        }
    }

    /// Returns the average duration of the last jobs, rounded down.
    #[inline]
    fn average(&self) -> Tick {
        let known = self.ended.load(Acquire).min(self.ring.len() as u64);
        let sum: u128 = self.ring[..known as usize].iter().map(|took| u128::from(took.load(Acquire))).sum();
        sum.checked_div(known.into()).unwrap_or(0) as Tick
    }

    /// Forgets all jobs.
    #[inline]
    pub fn forget(&self) {
        if self.ended.load(Relaxed) != 0 {
            self.ended.store(0, Release);
        }
    }
}

#[cfg(all(test, not(model)))]
mod tests {
    use super::*;

    #[test]
    fn the_distance_is_the_interval_less_the_average_duration() {
        let cells: Vec<AtomicU64> = (0..5).map(|_| AtomicU64::new(0)).collect();
        let jobs = Jobs { ended: &cells[0], spacing: &cells[1], ring: &cells[2..] };
        let spacing = |interval| {
            jobs.space(interval);
            jobs.spacing.load(Relaxed) - 1
        };
        assert_eq!(spacing(100), 100);
        jobs.record(10);
        assert_eq!(spacing(100), 90);
        jobs.record(21);
        assert_eq!(spacing(100), 85);
        // The fourth replaces the first.
        jobs.record(30);
        jobs.record(40);
        assert_eq!(spacing(100), 100 - 91 / 3);
        jobs.record(1_000);
        assert_eq!(spacing(100), 0);
        jobs.forget();
        assert_eq!(spacing(100), 100);
    }
}
