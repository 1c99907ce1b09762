//! The guarantees of a policy, derived from its text: an independent check of the limiter.

use super::request::SECOND;
use std::collections::VecDeque;
use std::time::Duration;
use workglow_limit::Policy;
use workglow_limit::admin::parse_time;

/// A bound on the units of one key: in a window, or at once.
#[derive(Debug, Clone, PartialEq)]
pub struct Guarantee {
    pub kind: Kind,
    /// The units in the policy's text.
    pub limit: u64,
    /// The length of the window; 0: at once.
    pub window: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// In any window.
    Rolling,
    /// In windows that begin at multiples of their length.
    Aligned,
    /// In any window, but up to twice as many across a boundary.
    Smooth,
    /// In any window, plus the content of a full bucket.
    Burst(u64),
    /// In any window, but the weight of the last start may exceed it.
    Queue,
    AtOnce {
        /// The time after which a start ends automatically.
        lease: Option<u64>,
    },
}

impl Guarantee {
    /// The guarantees of a policy, from its canonical text.
    pub fn all_of(policy: &Policy) -> Vec<Guarantee> {
        let text = policy.to_string();
        let text = text.strip_suffix(" shared").unwrap_or(&text);
        let text = text.split(" backoff ").next().unwrap_or(text);
        text.split(" + ").filter_map(Guarantee::of).collect()
    }

    fn of(text: &str) -> Option<Guarantee> {
        let time = |text: &str| parse_time(text).map(|time: Duration| time.as_micros() as u64).ok();
        if let Some(delay) = text.strip_prefix("delay ") {
            return Some(Guarantee { kind: Kind::Rolling, limit: 1, window: time(delay)? });
        }
        let mut words = text.split(' ');
        let first = words.next()?;
        let Some((limit, window)) = first.split_once('/') else {
            let lease = text.split_once(" lease ").and_then(|(_, lease)| time(lease.split(" cooldown ").next()?));
            return Some(Guarantee { kind: Kind::AtOnce { lease }, limit: first.parse().ok()?, window: 0 });
        };
        let kind = match (words.next(), words.next()) {
            (Some("burst"), Some(size)) => Kind::Burst(size.parse().ok()?),
            (Some("queue"), _) => Kind::Queue,
            (Some("fixed"), _) => Kind::Aligned,
            (Some("counter"), _) => Kind::Smooth,
            _ => Kind::Rolling,
        };
        Some(Guarantee { kind, limit: limit.parse().ok()?, window: time(window)? })
    }

    /// The most units that are allowed, if no start weighs more than `heaviest`.
    pub fn bound(&self, heaviest: u64) -> u64 {
        match self.kind {
            Kind::Rolling | Kind::Aligned | Kind::AtOnce { .. } => self.limit,
            Kind::Smooth => 2 * self.limit - 1,
            Kind::Burst(size) => self.limit + size,
            Kind::Queue => self.limit + heaviest.saturating_sub(1),
        }
    }

    /// The long-term rate in units per second; `None` if it depends on the length of jobs.
    pub fn rate(&self) -> Option<f64> {
        (self.window > 0).then(|| self.limit as f64 * SECOND as f64 / self.window as f64)
    }

    /// The approximate number of units that could have started between two times.
    pub fn most_between(&self, from: u64, to: u64) -> f64 {
        let limit = self.limit as f64;
        let windows = (to - from) as f64 / self.window.max(1) as f64;
        match self.kind {
            Kind::Rolling | Kind::Smooth => limit * windows.max(1.0),
            Kind::Aligned => limit * (to / self.window - from / self.window + 1) as f64,
            Kind::Burst(size) => size as f64 + limit * windows,
            Kind::Queue => 1.0 + limit * windows,
            Kind::AtOnce { .. } => f64::INFINITY,
        }
    }
}

/// Counts the units of one key in the last window.
#[derive(Debug, Clone, Default)]
pub struct Window {
    starts: VecDeque<(u64, u64)>,
    units: u64,
}

impl Window {
    /// Adds a start; returns the units in the window, including it.
    pub fn start(&mut self, guarantee: &Guarantee, at: u64, weight: u64) -> u64 {
        let is_over = |start: u64| match guarantee.kind {
            Kind::Aligned => start / guarantee.window < at / guarantee.window,
            // A start that is exactly one window old does not count.
            _ => start + guarantee.window <= at,
        };
        while let Some(&(start, weight)) = self.starts.front()
            && is_over(start)
        {
            self.units -= weight;
            self.starts.pop_front();
        }
        self.units += weight;
        match self.starts.back_mut() {
            Some((last, units)) if *last == at => *units += weight,
            _ => self.starts.push_back((at, weight)),
        }
        self.units
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use workglow_limit::admin::parse_policies;

    #[test]
    fn each_kind_of_policy_has_its_guarantees() {
        let shown = |text: &str| -> Vec<(Kind, u64, u64)> {
            let all = parse_policies(text).unwrap();
            all.iter().flat_map(Guarantee::all_of).map(|one| (one.kind, one.limit, one.window)).collect()
        };
        let minute = 60 * SECOND;
        let rate = [(Kind::Rolling, 100, minute), (Kind::Rolling, 5, SECOND)];
        assert_eq!(shown("100/1m + 5/1s backoff 1s x2 max 1m full"), rate);
        assert_eq!(shown("delay 50ms"), [(Kind::Rolling, 1, 50_000)]);
        assert_eq!(shown("100/1m + 5/1s backoff 1s x2 max 1m full shared"), rate);
        assert_eq!(shown("5 concurrent lease 30s shared"), [(Kind::AtOnce { lease: Some(30 * SECOND) }, 5, 0)]);
        assert_eq!(shown("delay 50ms shared"), [(Kind::Rolling, 1, 50_000)]);
        assert_eq!(shown("60/1m spaced strictly"), [(Kind::Rolling, 60, minute)]);
        assert_eq!(shown("10/1s burst 20"), [(Kind::Burst(20), 10, SECOND)]);
        assert_eq!(shown("10/1s queue 20"), [(Kind::Queue, 10, SECOND)]);
        assert_eq!(shown("10/1m fixed"), [(Kind::Aligned, 10, minute)]);
        let both = [(Kind::Smooth, 10, minute), (Kind::AtOnce { lease: Some(30 * SECOND) }, 5, 0)];
        assert_eq!(shown("10/1m counter + 5 concurrent lease 30s"), both);
        assert_eq!(shown("10/1m counter + 5 concurrent lease 30s cooldown 1s"), both);
    }

    #[test]
    fn a_start_counts_until_exactly_one_window_later() {
        let guarantee = Guarantee { kind: Kind::Rolling, limit: 2, window: 10 };
        let mut window = Window::default();
        let counts: Vec<u64> = [0, 9, 10, 20].map(|at| window.start(&guarantee, at, 1)).into();
        assert_eq!(counts, [1, 2, 2, 1]);
    }
}
