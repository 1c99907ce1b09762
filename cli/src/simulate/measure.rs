//! What is measured of a run, in room that does not grow with it.

use crate::failure::Failure;
use std::collections::VecDeque;

/// How long those waited who started. Knows a wait to within a hundredth of it.
#[derive(Debug, Clone)]
pub struct Waits {
    counts: Vec<u64>,
    total: u64,
    longest: u64,
}

/// Waits of so many bits are told apart one by one, longer ones by their first bits.
const BITS: u32 = 7;

impl Default for Waits {
    fn default() -> Waits {
        Waits { counts: vec![0; (1 << BITS) * 65], total: 0, longest: 0 }
    }
}

impl Waits {
    pub fn add(&mut self, wait: u64) {
        let shift = (u64::BITS - wait.leading_zeros()).saturating_sub(BITS + 1);
        // The first bit that is set is known, so classes of a size follow each other without a gap.
        let class = (u64::from(shift) << BITS) + (wait >> shift);
        self.counts[class as usize] += 1;
        self.total += 1;
        self.longest = self.longest.max(wait);
    }

    /// So long or shorter waited this part of all: 0.5 is the median.
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

/// What happened in one bin of time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Bin {
    /// The units that were asked for.
    pub wanted: u64,
    /// The units that started, and those that were denied.
    pub admitted: u64,
    pub denied: u64,
    /// The most that waited at a time.
    pub waiting: u64,
    /// The most that the fullest key used of its limit, as a part of it.
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

/// How long bins are, in microseconds; each is a multiple of the one before, so that bins can be put together.
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

/// So many bins at most. Where there would be more, they become longer.
const MOST_BINS: u64 = 500;

/// What happened, bin by bin.
#[derive(Debug, Clone)]
pub struct Series {
    length: usize,
    /// The number of the first bin, counted from time 0.
    first: u64,
    bins: VecDeque<Bin>,
}

impl Series {
    /// Begins at a time, with one bin.
    pub fn new(at: u64) -> Series {
        Series { length: 0, first: at / LENGTHS[0], bins: VecDeque::from([Bin::default()]) }
    }

    /// How long a bin is, in microseconds.
    pub fn length(&self) -> u64 {
        LENGTHS[self.length]
    }

    /// When the first bin begins.
    pub fn begins(&self) -> u64 {
        self.first * self.length()
    }

    pub fn bins(&self) -> impl Iterator<Item = &Bin> {
        self.bins.iter()
    }

    /// When the bin after the last one begins.
    pub fn ends(&self) -> u64 {
        (self.first + self.bins.len() as u64) * self.length()
    }

    /// Makes bins so long that there is room up to this time.
    pub fn make_room(&mut self, to: u64) {
        while to / self.length() - self.first >= MOST_BINS && self.length + 1 < LENGTHS.len() {
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

    /// Begins the next bin.
    pub fn begin(&mut self, bin: Bin) {
        self.bins.push_back(bin);
    }

    /// The bin of now.
    pub fn now(&mut self) -> &mut Bin {
        self.bins.back_mut().expect("there is always one")
    }
}

/// What was counted of a key.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    pub requests: u64,
    pub admitted: u64,
    pub denied: u64,
    /// Those that started after a wait.
    pub waited: u64,
    /// Those that weigh more than the limit allows at once: an error for who asks.
    pub too_heavy: u64,
    /// The units that were asked for, too heavy ones left out, and those that started.
    pub units_wanted: u64,
    pub units: u64,
    /// How long units ran, in unit-microseconds.
    pub ran: u128,
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
        self.ran += other.ran;
    }
}

/// What became of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It started, after so long.
    Admitted(u64),
    /// It did not; there is room after so long.
    Denied(u64),
    /// Never: it weighs too much.
    TooHeavy,
    /// It waited still, long after the last request.
    Waiting,
}

/// Is told the line of a request and what became of it.
pub type Tell<'t> = Box<dyn FnMut(u64, Verdict) -> Result<(), Failure> + 't>;

/// The verdicts of all requests, told in the order of asking: whoever waits holds up those behind.
pub struct Verdicts<'t> {
    /// The line of each that was not told yet, and its verdict if there is one.
    open: VecDeque<(u64, Option<Verdict>)>,
    /// The number of the first of them.
    first: u64,
    tell: Tell<'t>,
}

impl<'t> Verdicts<'t> {
    pub fn new(tell: Tell<'t>) -> Verdicts<'t> {
        Verdicts { open: VecDeque::new(), first: 0, tell }
    }

    /// A request of this line came; its number.
    pub fn ask(&mut self, line: u64) -> u64 {
        self.open.push_back((line, None));
        self.first + self.open.len() as u64 - 1
    }

    pub fn answer(&mut self, number: u64, verdict: Verdict) -> Result<(), Failure> {
        self.open[(number - self.first) as usize].1 = Some(verdict);
        while let Some(&(line, Some(verdict))) = self.open.front() {
            (self.tell)(line, verdict)?;
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
    fn waits_are_known_to_a_hundredth() {
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
    fn bins_become_longer_and_lose_nothing() {
        let mut series = Series::new(123_456_789);
        let mut total = 0;
        for at in (123_456_789..).step_by(777_777).take(100_000) {
            series.make_room(at);
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
