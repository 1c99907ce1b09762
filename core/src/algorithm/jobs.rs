//! How long jobs take, so that starts can be spaced by it: a ring of the last durations, and the distance that follows.
//!
//! The distance is worked out when a start happens, from the jobs that have ended by then, and holds until the next one:
//! so what a denial says about the next start stays true, whoever ends meanwhile. It may lag behind a start that happens
//! at the same moment: that moves starts, but never beyond the window, which is counted on its own.
//!
//! # Orderings
//!
//! None is needed. Each word means something on its own: whoever sees that a job has ended, but not yet what it took, takes
//! what an older one did. `Release` and `Acquire` only let what was written mostly be seen with the number that counts it.

use crate::atomic::{AtomicU64, *};
use crate::time::Tick;

/// The jobs of one key, in cells that live elsewhere.
#[derive(Clone, Copy)]
pub(crate) struct Jobs<'a> {
    /// How many have ended.
    pub ended: &'a AtomicU64,
    /// One more than the distance to the next start; 0: it is not known.
    pub spacing: &'a AtomicU64,
    /// What the last of them took: as many as count.
    pub ring: &'a [AtomicU64],
}

impl Jobs<'_> {
    /// How many jobs are remembered.
    pub fn most(&self) -> usize {
        self.ring.len()
    }

    /// A job has ended.
    pub fn record(&self, duration: Tick) {
        // Whoever dies in between leaves what an older job took.
        let number = self.ended.fetch_add(1, AcqRel);
        self.ring[(number % self.ring.len() as u64) as usize].store(duration, Release);
    }

    /// Works out how far the next start is from this one, if starts are `interval` apart and jobs took no time.
    pub fn space(&self, interval: Tick) {
        let spacing = 1 + interval.saturating_sub(self.average());
        if self.spacing.load(Relaxed) != spacing {
            self.spacing.store(spacing, Release);
        }
    }

    /// What the last jobs took on average, rounded down.
    fn average(&self) -> Tick {
        let known = self.ended.load(Acquire).min(self.ring.len() as u64);
        let sum: u128 = self.ring[..known as usize].iter().map(|took| u128::from(took.load(Acquire))).sum();
        sum.checked_div(known.into()).unwrap_or(0) as Tick
    }

    /// As if none had ever ended.
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
    fn the_distance_is_what_the_last_jobs_leave_of_the_interval() {
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
        // The fourth takes the place of the first.
        jobs.record(30);
        jobs.record(40);
        assert_eq!(spacing(100), 100 - 91 / 3);
        jobs.record(1_000);
        assert_eq!(spacing(100), 0);
        jobs.forget();
        assert_eq!(spacing(100), 100);
    }
}
