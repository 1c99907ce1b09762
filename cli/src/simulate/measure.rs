//! The measurements of a run, in bounded memory.

use crate::failure::Failure;
use std::collections::VecDeque;

/// The waits of admitted requests, with a relative error of at most 1 %.
#[derive(Debug, Clone)]
pub struct Waits {
    counts: Vec<u64>,
    total: u64,
    longest: u64,
}

/// Waits of up to this many bits are exact; of longer ones the first bits count.
const BITS: u32 = 7;

impl Default for Waits {
    fn default() -> Waits {
        Waits { counts: vec![0; (1 << BITS) * 65], total: 0, longest: 0 }
    }
}

impl Waits {
    pub fn add(&mut self, wait: u64) {
        let shift = (u64::BITS - wait.leading_zeros()).saturating_sub(BITS + 1);
        // The highest bit is always set, so the classes of each size follow without a gap.
        let class = (u64::from(shift) << BITS) + (wait >> shift);
        self.counts[class as usize] += 1;
        self.total += 1;
        self.longest = self.longest.max(wait);
    }

    /// The wait that this part of all waits does not exceed; 0.5 is the median.
    pub fn quantile(&self, part: f64) -> u64 {
        let wanted = (self.total as f64 * part).ceil().max(1.0) as u64;
        let mut sum = 0;
        for (class, count) in self.counts.iter().enumerate() {
            sum += count;
            if sum >= wanted {
                let class = class as u64;
                let shift = (class >> BITS).saturating_sub(1);
                let first = class - (shift << BITS);
                let last = ((u128::from(first) + 1) << shift) - 1;
                return u64::try_from(last).unwrap_or(u64::MAX).min(self.longest);
            }
        }
        self.longest
    }

    pub fn longest(&self) -> u64 {
        self.longest
    }
}

/// The counts of a bin of time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Bin {
    /// The requested units.
    pub wanted: u64,
    /// The admitted units.
    pub admitted: u64,
    /// The denied units.
    pub denied: u64,
    /// The most waiters at a time.
    pub waiting: u64,
    /// The highest share that the fullest key used of its limit.
    pub used: f64,
}

impl Bin {
    fn add(&mut self, next: &Bin) {
        self.wanted += next.wanted;
        self.admitted += next.admitted;
        self.denied += next.denied;
        self.waiting = self.waiting.max(next.waiting);
        self.used = self.used.max(next.used);
    }
}

/// The possible lengths of bins, in microseconds. Each is a multiple of the one before, so that bins can be merged.
const LENGTHS: [u64; 25] = {
    const MS: u64 = 1_000;
    const S: u64 = 1_000 * MS;
    const M: u64 = 60 * S;
    const H: u64 = 60 * M;
    const D: u64 = 24 * H;
    [
        MS,
        2 * MS,
        10 * MS,
        20 * MS,
        100 * MS,
        200 * MS,
        S,
        2 * S,
        10 * S,
        20 * S,
        M,
        2 * M,
        10 * M,
        20 * M,
        H,
        2 * H,
        6 * H,
        12 * H,
        D,
        2 * D,
        10 * D,
        20 * D,
        100 * D,
        200 * D,
        1_000 * D,
    ]
};

/// The most bins. Bins become longer to stay below it.
const MAX_BINS: u64 = 500;

/// The counts over time.
#[derive(Debug, Clone)]
pub struct Series {
    length: usize,
    /// The number of the first bin, counted from time 0.
    first: u64,
    bins: VecDeque<Bin>,
}

impl Series {
    /// Starts at a time, with one bin.
    pub fn new(at: u64) -> Series {
        Series { length: 0, first: at / LENGTHS[0], bins: VecDeque::from([Bin::default()]) }
    }

    /// The length of a bin, in microseconds.
    pub fn length(&self) -> u64 {
        LENGTHS[self.length]
    }

    /// The start of the first bin.
    pub fn begins(&self) -> u64 {
        self.first * self.length()
    }

    pub fn bins(&self) -> impl Iterator<Item = &Bin> {
        self.bins.iter()
    }

    /// The end of the last bin.
    pub fn ends(&self) -> u64 {
        (self.first + self.bins.len() as u64) * self.length()
    }

    /// Merges bins until the time up to `to` fits.
    pub fn extend_to(&mut self, to: u64) {
        while to / self.length() - self.first >= MAX_BINS && self.length + 1 < LENGTHS.len() {
            let ratio = LENGTHS[self.length + 1] / self.length();
            let mut merged: VecDeque<Bin> = VecDeque::new();
            for (i, bin) in (self.first..).zip(&self.bins) {
                match merged.back_mut() {
                    Some(last) if i % ratio > 0 => last.add(bin),
                    _ => merged.push_back(*bin),
                }
            }
            self.length += 1;
            self.first /= ratio;
            self.bins = merged;
        }
    }

    /// Adds the next bin.
    pub fn begin(&mut self, bin: Bin) {
        self.bins.push_back(bin);
    }

    /// The current bin.
    pub fn now(&mut self) -> &mut Bin {
        self.bins.back_mut().expect("there is at least one bin")
    }
}

/// The counts of a key.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    pub requests: u64,
    pub admitted: u64,
    pub denied: u64,
    /// The requests that were admitted after a wait.
    pub waited: u64,
    /// The requests that weigh more than the limit allows at all: an error for their callers.
    pub too_heavy: u64,
    /// The requested units, without those of requests that are too heavy.
    pub units_wanted: u64,
    /// The admitted units.
    pub units: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.requests += other.requests;
        self.admitted += other.admitted;
        self.denied += other.denied;
        self.waited += other.waited;
        self.too_heavy += other.too_heavy;
        self.units_wanted += other.units_wanted;
        self.units += other.units;
    }
}

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Admitted after this wait.
    Admitted(u64),
    /// Denied; a retry may succeed after this time. The index of the part that denied it, if the policy has parts.
    Denied(u64, Option<usize>),
    /// Never admitted, because it weighs too much.
    TooHeavy,
    /// Still waiting long after the last request.
    Waiting,
}

/// Prints the line of a request and its verdict.
pub type PrintVerdict<'t> = Box<dyn FnMut(u64, Verdict) -> Result<(), Failure> + 't>;

/// Prints the verdicts in the order of the requests. A request that waits delays the verdicts of later ones.
pub struct Verdicts<'t> {
    /// The lines of unprinted requests, with their verdicts if known.
    open: VecDeque<(u64, Option<Verdict>)>,
    /// The number of the first unprinted request.
    first: u64,
    print: PrintVerdict<'t>,
}

impl<'t> Verdicts<'t> {
    pub fn new(print: PrintVerdict<'t>) -> Verdicts<'t> {
        Verdicts { open: VecDeque::new(), first: 0, print }
    }

    /// Adds a request; returns its number.
    pub fn ask(&mut self, line: u64) -> u64 {
        self.open.push_back((line, None));
        self.first + self.open.len() as u64 - 1
    }

    pub fn answer(&mut self, number: u64, verdict: Verdict) -> Result<(), Failure> {
        self.open[(number - self.first) as usize].1 = Some(verdict);
        while let Some(&(line, Some(verdict))) = self.open.front() {
            (self.print)(line, verdict)?;
            self.open.pop_front();
            self.first += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_have_an_error_of_at_most_one_percent() {
        let mut waits = Waits::default();
        (1..=1_000_000u64).for_each(|wait| waits.add(wait));
        for part in [0.001, 0.5, 0.95, 0.99, 1.0] {
            let (got, exact) = (waits.quantile(part) as f64, 1e6 * part);
            assert!((exact..exact * 1.01).contains(&got), "{part}: {got}");
        }
        let mut edges = Waits::default();
        [0, 1, 127, 128, 255, 256, u64::MAX].into_iter().for_each(|wait| edges.add(wait));
        assert_eq!((edges.quantile(0.0), edges.quantile(1.0)), (0, u64::MAX));
    }

    #[test]
    fn merged_bins_keep_all_counts() {
        let mut series = Series::new(123_456_789);
        let mut total = 0;
        for at in (123_456_789..).step_by(777_777).take(100_000) {
            series.extend_to(at);
            while series.ends() <= at {
                series.begin(Bin::default());
            }
            series.now().admitted += 1;
            total += 1;
        }
        assert_eq!(series.bins().map(|bin| bin.admitted).sum::<u64>(), total);
        assert!((50..=500).contains(&series.bins().count()));
        assert!(series.begins() <= 123_456_789 && 123_456_789 < series.begins() + series.length());
        assert!(LENGTHS.windows(2).all(|pair| pair[1] % pair[0] == 0));
    }
}
