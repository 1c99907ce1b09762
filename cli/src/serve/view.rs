//! A snapshot with its derived data: orders, totals and metrics.

use bytes::Bytes;
use std::cmp::Reverse;
use std::ops::Range;
use std::sync::OnceLock;
use workglow_limit::observe::{LimitSnapshot, MetricsFormat, MetricsOptions, Snapshot};

/// Rates per second over the last 5 to 10 s.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pace {
    pub granted: f64,
    pub denied: f64,
}

/// Recent values of a limit.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lately {
    pub pace: Pace,
    /// The highest share in use at the last three ticks. Limits sorted by it move every 5 s, not with each start.
    pub fullest: f64,
    /// Denials per second between the last two ticks.
    pub denied: f64,
}

/// The order of limits. Equal ones are sorted by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// Paused ones first, then by share.
    Fullest,
    Denied,
    Waiting,
    Name,
}

impl Sort {
    pub const NAMES: [&str; 4] = ["fullest", "denied", "waiting", "name"];

    pub fn parse(text: &str) -> Option<Sort> {
        let at = Self::NAMES.iter().position(|name| *name == text)?;
        Some([Sort::Fullest, Sort::Denied, Sort::Waiting, Sort::Name][at])
    }
}

/// Counts over all limits.
#[derive(Debug, Clone, Copy, Default)]
pub struct Totals {
    pub full: u64,
    /// Includes the full ones.
    pub near: u64,
    pub paused: u64,
    pub overridden: u64,
    pub waiting: u64,
    /// Per second.
    pub denied: f64,
}

/// A snapshot. All requests share it and its derived data.
pub struct View {
    pub seen: Snapshot,
    /// The last tick of the series.
    pub tick: u64,
    pub totals: Totals,
    lately: Vec<Lately>,
    orders: [OnceLock<Vec<u32>>; 4],
    lower: OnceLock<Vec<String>>,
    metrics: [OnceLock<Bytes>; 2],
}

/// A limit and its rates.
pub type Row<'v> = (&'v LimitSnapshot, Pace);

/// The share of the fullest window in use.
pub fn fullness(limit: &LimitSnapshot) -> f64 {
    limit.usage.iter().map(|usage| usage.used as f64 / usage.limit.max(1) as f64).fold(0.0, f64::max)
}

impl View {
    pub fn new(seen: Snapshot, lately: Vec<Lately>, tick: u64) -> View {
        let mut totals = Totals::default();
        for (limit, Lately { pace, .. }) in seen.limits.iter().zip(&lately) {
            totals.full += u64::from(fullness(limit) >= 1.0);
            totals.near += u64::from(limit.is_near());
            totals.paused += u64::from(!limit.paused_for.is_zero());
            totals.overridden += u64::from(limit.overriding.is_some());
            totals.waiting += limit.waiting;
            totals.denied += pace.denied;
        }
        View {
            seen,
            tick,
            totals,
            lately,
            orders: Default::default(),
            lower: OnceLock::new(),
            metrics: Default::default(),
        }
    }

    pub fn row(&self, name: &str) -> Option<Row<'_>> {
        self.seen
            .limits
            .iter()
            .position(|limit| limit.name == name)
            .map(|at| (&self.seen.limits[at], self.lately[at].pace))
    }

    /// The parts of the limit that this one is a part of, itself included: those that denied most first. `None`: it stands alone.
    ///
    /// A snapshot has no composites. Their parts are the limits whose names differ only behind the last slash.
    pub fn parts_beside(&self, name: &str) -> Option<(String, Vec<Row<'_>>)> {
        let (whole, _) = name.rsplit_once('/')?;
        let below = format!("{whole}/");
        let limits = &self.seen.limits;
        let from = limits.partition_point(|limit| *limit.name < *below);
        let all = (from..limits.len()).take_while(|at| limits[*at].name.starts_with(&below));
        let parts = all.filter(|at| !limits[*at].name[below.len()..].contains('/'));
        let mut parts: Vec<Row<'_>> = parts.map(|at| (&limits[at], self.lately[at].pace)).collect();
        parts.sort_by_key(|(limit, _)| (Reverse(limit.stats.denied), Reverse((fullness(limit) * 1e4) as u64)));
        (parts.len() > 1).then(|| (whole.to_owned(), parts))
    }

    /// The metrics text. It is built once for each format, because that takes a while with many limits.
    pub fn metrics(&self, format: MetricsFormat, show_keys: bool) -> Bytes {
        let text = || {
            let mut options = MetricsOptions::default();
            (options.format, options.show_keys, options.keys) = (format, show_keys, usize::MAX);
            self.seen.to_openmetrics(&options).into()
        };
        self.metrics[format as usize].get_or_init(text).clone()
    }

    fn order(&self, sort: Sort) -> &[u32] {
        self.orders[sort as usize].get_or_init(|| {
            let limits = &self.seen.limits;
            let mut order: Vec<u32> = (0..limits.len() as u32).collect();
            order.sort_by(|&a, &b| limits[a as usize].name.cmp(&limits[b as usize].name));
            let lately = |at: u32| &self.lately[at as usize];
            match sort {
                Sort::Fullest => order.sort_by_cached_key(|&at| {
                    let percent = Reverse((lately(at).fullest * 100.0) as u64);
                    (limits[at as usize].paused_for.is_zero(), percent, Reverse((lately(at).denied * 10.0) as u64))
                }),
                Sort::Denied => order.sort_by_cached_key(|&at| {
                    (Reverse((lately(at).denied * 10.0) as u64), Reverse(limits[at as usize].stats.denied))
                }),
                Sort::Waiting => order.sort_by_key(|&at| Reverse(limits[at as usize].waiting)),
                Sort::Name => {}
            }
            order
        })
    }

    /// The number of limits whose name contains this text, ignoring case, and a range of them.
    pub fn page(&self, search: &str, sort: Sort, range: Range<usize>) -> (usize, Vec<Row<'_>>) {
        let row = |&at: &u32| (&self.seen.limits[at as usize], self.lately[at as usize].pace);
        let order = self.order(sort);
        if search.is_empty() {
            return (order.len(), order.iter().skip(range.start).take(range.len()).map(row).collect());
        }
        let lower = self.lower.get_or_init(|| self.seen.limits.iter().map(|limit| limit.name.to_lowercase()).collect());
        let search = search.to_lowercase();
        let found: Vec<&u32> = order.iter().filter(|&&at| lower[at as usize].contains(&search)).collect();
        (found.len(), found.iter().copied().skip(range.start).take(range.len()).map(row).collect())
    }
}
