//! The state of `top`: the last snapshot, rates, and how they are shown.

use crate::json::Keys;
use crate::names;
use std::cmp::Reverse;
use std::collections::HashMap;
use workglow_limit::Result;
use workglow_limit::observe::{KeySnapshot, LimitSnapshot, Snapshot, Stats};

/// The order of the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    Used,
    Denied,
    Waiting,
    Started,
    Name,
}

impl Sort {
    pub const ALL: [(Sort, &'static str); 5] = [
        (Sort::Used, "used"),
        (Sort::Denied, "denied"),
        (Sort::Waiting, "waiting"),
        (Sort::Started, "started"),
        (Sort::Name, "name"),
    ];
}

/// A snapshot, and the names under which its limits were declared, in order.
pub type Looked = (Snapshot, Vec<String>);

/// Rates per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pace {
    pub started: f64,
    pub denied: f64,
}

pub struct Model {
    pub now: Snapshot,
    names: Vec<String>,
    pub keys: Keys,
    pub color: bool,
    pub sort: Sort,
    /// Whether the display is paused.
    pub is_held: bool,
    /// The error of the last snapshot.
    pub failed: Option<String>,
    /// The index of the first limit in view.
    pub first: usize,
    /// The number of limits in view.
    pub rows: usize,
    paces: HashMap<String, Pace>,
    /// By limit and key id.
    key_paces: HashMap<(String, String), Pace>,
}

impl Model {
    pub fn new((now, names): Looked, keys: Keys, color: bool) -> Model {
        let (paces, key_paces) = Default::default();
        let (sort, is_held, failed) = (Sort::Used, false, None);
        Model { now, names, keys, color, sort, is_held, failed, first: 0, rows: 0, paces, key_paces }
    }

    /// Takes the next snapshot, or its error.
    pub fn take(&mut self, looked: Result<Looked>) {
        let (now, names) = match looked {
            Ok(looked) => looked,
            Err(error) => {
                self.failed = Some(error.to_string());
                return;
            }
        };
        self.failed = None;
        let seconds = now.at.duration_since(self.now.at).unwrap_or_default().as_secs_f64();
        let pace = |was: &Stats, is: &Stats| {
            let each = |is: u64, was: u64| is.saturating_sub(was) as f64 / seconds.max(0.001);
            Pace { started: each(is.admitted, was.admitted), denied: each(is.denied, was.denied) }
        };
        self.paces.clear();
        self.key_paces.clear();
        for limit in &now.limits {
            let Some(was) = self.now.limits.iter().find(|was| was.name == limit.name) else { continue };
            self.paces.insert(limit.name.clone(), pace(&was.stats, &limit.stats));
            for key in &limit.hot_keys {
                let Some(was) = was.hot_keys.iter().find(|was| was.id == key.id) else { continue };
                self.key_paces.insert((limit.name.clone(), key.id.clone()), pace(&was.stats, &key.stats));
            }
        }
        (self.now, self.names) = (now, names);
    }

    /// The rates of all limits together. All parts of a composite count its starts, and one part a denial.
    pub fn total(&self) -> Pace {
        let mut starts: HashMap<&str, f64> = HashMap::new();
        let mut denied = 0.0;
        for limit in &self.now.limits {
            let pace = self.pace(limit);
            let started = starts.entry(names::whole(&limit.name, &self.names)).or_default();
            *started = started.max(pace.started);
            denied += pace.denied;
        }
        Pace { started: starts.into_values().sum(), denied }
    }

    pub fn pace(&self, limit: &LimitSnapshot) -> Pace {
        self.paces.get(&limit.name).copied().unwrap_or_default()
    }

    fn key_pace(&self, limit: &LimitSnapshot, key: &KeySnapshot) -> Pace {
        self.key_paces.get(&(limit.name.clone(), key.id.clone())).copied().unwrap_or_default()
    }

    pub fn sort_by(&mut self, sort: Sort) {
        self.sort = sort;
        self.first = 0;
    }

    pub fn scroll(&mut self, rows: isize) {
        let last = self.now.limits.len().saturating_sub(self.rows);
        self.first = self.first.saturating_add_signed(rows).min(last);
    }

    /// The sorted limits. Equal ones are sorted by name.
    pub fn limits(&self) -> Vec<&LimitSnapshot> {
        let mut limits: Vec<&LimitSnapshot> = self.now.limits.iter().collect();
        let paces: HashMap<&str, Pace> = limits.iter().map(|limit| (limit.name.as_str(), self.pace(limit))).collect();
        let milli = |count: f64| Reverse((count * 1e3) as u64);
        match self.sort {
            Sort::Used => limits.sort_by_key(|limit| Reverse((!limit.paused_for.is_zero(), fullness(limit)))),
            Sort::Denied => {
                limits.sort_by_key(|limit| (milli(paces[limit.name.as_str()].denied), Reverse(limit.stats.denied)));
            }
            Sort::Waiting => limits.sort_by_key(|limit| Reverse(limit.waiting)),
            Sort::Started => {
                limits.sort_by_key(|limit| (milli(paces[limit.name.as_str()].started), Reverse(limit.stats.admitted)))
            }
            Sort::Name => limits.sort_by(|a, b| a.name.cmp(&b.name)),
        }
        limits
    }

    /// The busiest keys of all limits.
    pub fn hot_keys(&self) -> Vec<(&LimitSnapshot, &KeySnapshot, Pace)> {
        let of = |limit| move |key| (limit, key, self.key_pace(limit, key));
        let mut keys: Vec<_> = self.now.limits.iter().flat_map(|limit| limit.hot_keys.iter().map(of(limit))).collect();
        let heat = |(_, key, pace): &(&LimitSnapshot, &KeySnapshot, Pace)| {
            Reverse((((pace.started + pace.denied) * 1e3) as u64, key.stats.units_wanted))
        };
        keys.sort_by_key(heat);
        keys
    }
}

/// The share of the fullest window in use, in millionths.
pub fn fullness(limit: &LimitSnapshot) -> u64 {
    let of = |usage: &workglow_limit::observe::Usage| {
        (u128::from(usage.used) * 1_000_000 / u128::from(usage.limit.max(1))) as u64
    };
    limit.usage.iter().map(of).max().unwrap_or(0)
}
