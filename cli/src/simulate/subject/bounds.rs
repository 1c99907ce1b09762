//! The guarantees of a policy, each with the units that were counted against it.

use crate::simulate::guarantee::{Guarantee, Kind, Window};
use crate::simulate::request::ByKey;

/// A guarantee of one part of a policy, and what was counted.
#[derive(Debug)]
pub struct Bound {
    /// The index of the part among those of the policy.
    pub part: usize,
    pub guarantee: Guarantee,
    /// Whether all keys have one budget.
    is_shared: bool,
    /// The most units of a key that were counted.
    pub most: u64,
    /// The heaviest start.
    pub heaviest: u64,
    of_key: ByKey<Use>,
}

/// The units of one key.
#[derive(Debug, Default)]
struct Use {
    window: Window,
    running: u64,
    units: u64,
    /// The time for which units ran, in unit-microseconds.
    ran: u128,
}

impl Bound {
    pub fn new(part: usize, is_shared: bool, guarantee: Guarantee) -> Bound {
        Bound { part, guarantee, is_shared, most: 0, heaviest: 0, of_key: ByKey::default() }
    }

    /// The units that may run at once, and the time after which a start ends automatically, if this is such a bound.
    pub fn at_once(&self) -> Option<(u64, Option<u64>)> {
        match self.guarantee.kind {
            Kind::AtOnce { lease } => Some((self.guarantee.limit, lease)),
            _ => None,
        }
    }

    /// The most units that are allowed.
    pub fn allowed(&self) -> u64 {
        self.guarantee.bound(self.heaviest)
    }

    /// The time after which everything is free again: a window, or as long as a bucket takes to fill.
    pub fn renewal(&self) -> u64 {
        let time = u128::from(self.guarantee.window) * u128::from(self.allowed()) / u128::from(self.guarantee.limit);
        u64::try_from(time).unwrap_or(u64::MAX)
    }

    /// The key whose budget a start with this one takes.
    fn budget_of(&self, key: u32) -> u32 {
        if self.is_shared { 0 } else { key }
    }

    /// Whether a start with this charge has to wait until another one ends.
    pub fn is_full(&self, key: u32, weight: u64) -> bool {
        let running = || self.of_key.get(&self.budget_of(key)).map_or(0, |of| of.running);
        self.at_once().is_some_and(|(most, _)| running() + weight > most)
    }

    /// Counts a start with this charge.
    pub fn start(&mut self, key: u32, weight: u64, at: u64, duration: Option<u64>) {
        self.heaviest = self.heaviest.max(weight);
        let is_at_once = self.at_once().is_some();
        let of = self.of_key.entry(self.budget_of(key)).or_default();
        of.units += weight;
        of.ran += u128::from(weight) * u128::from(duration.unwrap_or(0));
        let units = match is_at_once {
            true => {
                of.running += weight;
                of.running
            }
            false => of.window.start(&self.guarantee, at, weight),
        };
        self.most = self.most.max(units);
    }

    /// Counts the end of a start that ran.
    pub fn end(&mut self, key: u32, weight: u64) {
        let key = self.budget_of(key);
        if let Some(of) = self.of_key.get_mut(&key) {
            of.running -= weight;
        }
    }

    /// The share of the possible units between two times that the fullest key used.
    pub fn utilisation(&self, from: u64, to: u64) -> Option<f64> {
        let of = |of: &Use| match self.at_once() {
            Some((most, _)) => of.ran as f64 / (most as f64 * (to - from) as f64),
            None => of.units as f64 / self.guarantee.most_between(from, to),
        };
        let all = self.of_key.values().map(of);
        all.filter(|part| part.is_finite()).max_by(f64::total_cmp).map(|part| part.min(1.0))
    }
}
