//! Generated loads: a number of requests per time, in phases.
//!
//! ```text
//! load  = phase { "," phase }
//! phase = count [ ".." count ] "/" time [ "for" time ] | count "at once" | "nothing for" time
//! ```

use super::request::{Keys, Request, SECOND, Source};
use crate::failure::Failure;
use std::time::Duration;
use workglow_limit::admin::parse_time;

/// The most requests.
const MAX: f64 = 1e8;

/// The default length of a phase, in periods.
const PERIODS: f64 = 60.0;

/// A linear change from one rate (per second) to another in `lasts` microseconds; or a number of requests at once.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Rate { from: f64, to: f64, lasts: f64 },
    AtOnce(u64),
}

/// A range, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Between(pub u64, pub u64);

/// The properties of the requests.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// The number of keys; 0: requests have no key.
    pub keys: u32,
    /// The skew between keys by Zipf's law: the n-th key has the share 1/n^skew. 0: equal shares.
    pub skew: f64,
    pub weight: Between,
    pub duration: Option<Between>,
    /// The seed of random (Poisson) arrivals; `None`: regular arrivals.
    pub random: Option<u64>,
}

/// A generated load.
pub struct Load {
    phases: Vec<Phase>,
    shape: Shape,
    chance: Chance,
    /// The cumulative share of each key in all requests. Empty: equal shares.
    parts: Vec<f64>,
    phase: usize,
    /// The start of the phase, in microseconds.
    began: f64,
    /// The expected number of requests before the next one of the phase.
    before: f64,
    made: u64,
}

impl Load {
    pub fn new(text: &str, shape: Shape) -> Result<Load, Failure> {
        let wrong = |part: &str| {
            let example = "\"50/1s for 2m\", \"10..100/1s for 2m\", \"200 at once\" or \"nothing for 30s\"";
            Failure::usage(format!(
                "load is \"{text}\": expected {example}, or several separated by commas, not \"{part}\""
            ))
        };
        let phases: Vec<Phase> = text
            .split(',')
            .map(|part| phase(part.trim()).ok_or_else(|| wrong(part.trim())))
            .collect::<Result<_, _>>()?;
        let all: f64 = phases.iter().map(Phase::requests).sum();
        if all > MAX {
            return Err(Failure::usage(format!("load is \"{text}\": expected at most {MAX} requests, not {all:.0}")));
        }
        if all < 1.0 {
            return Err(Failure::usage(format!("load is \"{text}\": expected at least one request")));
        }
        let chance = Chance(shape.random.unwrap_or(0));
        let mut parts: Vec<f64> = Vec::new();
        if shape.skew > 0.0 {
            let mut sum = 0.0;
            let sums = (1..=shape.keys).map(|n| {
                sum += f64::from(n).powf(-shape.skew);
                sum
            });
            parts = sums.collect();
            parts.iter_mut().for_each(|part| *part /= sum);
        }
        let mut load = Load { phases, shape, chance, parts, phase: 0, began: 0.0, before: 0.0, made: 0 };
        load.before = load.first();
        Ok(load)
    }

    /// The expected number of requests before the first one of the phase. (A Poisson process is memoryless.)
    fn first(&mut self) -> f64 {
        let is_even = self.shape.random.is_none() || matches!(self.phases.get(self.phase), Some(Phase::AtOnce(_)));
        if is_even { 0.0 } else { self.chance.gap() }
    }

    fn key(&mut self) -> u64 {
        match (self.shape.random, self.parts.is_empty()) {
            (None, true) => self.made % u64::from(self.shape.keys),
            (Some(_), true) => self.chance.between(Between(0, u64::from(self.shape.keys) - 1)),
            (_, false) => {
                let at = self.chance.part();
                (self.parts.partition_point(|part| *part <= at) as u64).min(u64::from(self.shape.keys) - 1)
            }
        }
    }
}

impl Phase {
    /// The expected number of requests.
    fn requests(&self) -> f64 {
        match self {
            Phase::AtOnce(count) => *count as f64,
            Phase::Rate { from, to, lasts } => (from + to) / 2.0 * lasts / SECOND as f64,
        }
    }

    fn lasts(&self) -> f64 {
        match self {
            Phase::AtOnce(_) => 0.0,
            Phase::Rate { lasts, .. } => *lasts,
        }
    }

    /// The time at which this number of requests has passed; `None`: not in this phase.
    fn after(&self, requests: f64) -> Option<f64> {
        // A request at the end of a phase belongs to the next one; the tolerance is for rounding errors.
        if requests >= self.requests() - 1e-6 {
            return None;
        }
        Some(match *self {
            Phase::AtOnce(_) => 0.0,
            // The rate changes evenly, so the requests up to t are from·t + (to − from)·t²/2T.
            Phase::Rate { from, to, lasts } => {
                let half = (to - from) / (2.0 * lasts / SECOND as f64);
                let root = (from * from + 4.0 * half * requests).max(0.0).sqrt();
                2.0 * requests / (from + root) * SECOND as f64
            }
        })
    }
}

impl Source for Load {
    fn next(&mut self, keys: &mut Keys) -> Result<Option<Request>, Failure> {
        while let Some(phase) = self.phases.get(self.phase) {
            let is_even = self.shape.random.is_none() || matches!(phase, Phase::AtOnce(_));
            if let Some(after) = phase.after(self.before) {
                let at = (self.began + if after.is_nan() { 0.0 } else { after }).round() as u64;
                self.before += if is_even { 1.0 } else { self.chance.gap() };
                let line = self.made + 1;
                let key = if self.shape.keys == 0 { String::new() } else { format!("key-{}", self.key() + 1) };
                self.made += 1;
                let weight = self.chance.between(self.shape.weight);
                let duration = self.shape.duration.map(|lasts| self.chance.between(lasts));
                return Ok(Some(Request { line, at, key: keys.id(&key, line), weight, duration, charges: Vec::new() }));
            }
            self.began += phase.lasts();
            self.phase += 1;
            self.before = self.first();
        }
        Ok(None)
    }
}

fn phase(text: &str) -> Option<Phase> {
    let time = |text: &str| parse_time(text.trim()).ok().map(|time: Duration| time.as_micros() as f64);
    if let Some(lasts) = text.strip_prefix("nothing for ") {
        return Some(Phase::Rate { from: 0.0, to: 0.0, lasts: time(lasts)? });
    }
    if let Some(count) = text.strip_suffix("at once") {
        return count.trim().parse().ok().map(Phase::AtOnce);
    }
    let (counts, rest) = text.split_once('/')?;
    let (period, lasts) = match rest.split_once(" for ") {
        Some((period, lasts)) => (time(period)?, time(lasts)?),
        None => (time(rest)?, time(rest)? * PERIODS),
    };
    let (from, to) = counts.split_once("..").unwrap_or((counts, counts));
    let rate = |text: &str| -> Option<f64> {
        let count = text.trim().parse::<f64>().ok().filter(|count| (0.0..=1e12).contains(count))?;
        Some(count * SECOND as f64 / period)
    };
    Some(Phase::Rate { from: rate(from)?, to: rate(to)?, lasts })
}

/// `8`, `1..8`.
pub fn between(text: &str, one: impl Fn(&str) -> Option<u64>) -> Option<Between> {
    let (from, to) = text.split_once("..").unwrap_or((text, text));
    let (from, to) = (one(from.trim())?, one(to.trim())?);
    (from <= to).then_some(Between(from, to))
}

/// Random numbers (SplitMix64). A seed gives the same numbers in every version, so that reports can be reproduced.
#[derive(Debug)]
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to less than 1.
    fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn between(&mut self, Between(from, to): Between) -> u64 {
        if from == to { from } else { from + self.next() % (to - from + 1) }
    }

    /// The distance to the next event of a Poisson process with one event per unit of time.
    fn gap(&mut self) -> f64 {
        -(1.0 - self.part()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Shape = Shape { keys: 0, skew: 0.0, weight: Between(1, 1), duration: None, random: None };

    fn all(text: &str, shape: Shape) -> (Vec<Request>, Keys) {
        let mut keys = Keys::default();
        let mut load = Load::new(text, shape).unwrap();
        let requests = std::iter::from_fn(|| load.next(&mut keys).unwrap()).collect();
        (requests, keys)
    }

    fn times(text: &str) -> Vec<u64> {
        all(text, PLAIN).0.iter().map(|request| request.at).collect()
    }

    #[test]
    fn phases_follow_each_other() {
        assert_eq!(times("4/1s for 1s"), [0, 250_000, 500_000, 750_000]);
        assert_eq!(times("2 at once, nothing for 1s, 2/1s for 1s"), [0, 0, 1_000_000, 1_500_000]);
        assert_eq!(times("1/1m").len(), 60);
        let ramp = times("0..8/1s for 2s");
        assert_eq!(ramp.len(), 8);
        assert_eq!((ramp[0], ramp[2]), (0, 1_000_000));
        assert_eq!(times("8..0/1s for 2s").len(), 8);
    }

    #[test]
    fn a_seed_reproduces_its_load() {
        let shape = Shape { keys: 20, skew: 1.0, weight: Between(1, 3), random: Some(7), ..PLAIN };
        let (first, keys) = all("1000/1s for 10s", shape);
        assert_eq!(first, all("1000/1s for 10s", shape).0);
        assert!((9_500..10_500).contains(&first.len()), "{}", first.len());
        assert!(first.windows(2).all(|pair| pair[0].at <= pair[1].at));
        let asked = |name: &str| first.iter().filter(|request| **keys.text(request.key) == *name).count();
        let ratio = asked("key-1") as f64 / asked("key-10") as f64;
        assert!((7.0..14.0).contains(&ratio), "{ratio}");
    }

    #[test]
    fn an_invalid_load_is_an_error() {
        for text in
            ["", "50", "50/", "50/1s for", "x/1s", "-1/1s", "1/1s,", "at once", "1e300/1s", "0/1s", "nothing for 1s"]
        {
            assert!(Load::new(text, PLAIN).is_err(), "{text}");
        }
    }
}
