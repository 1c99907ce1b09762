//! What a server says about its own limit, put into a policy.

use super::{Policy, Shape};
use crate::time::from_ticks;
use std::time::Duration;

/// What a server says about one of its limits: so many units in a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quota {
    /// The units.
    pub units: u64,
    /// The window.
    pub window: Duration,
    /// Whether the window follows from how fast units come back, and is not stated. It is then off by at most a quarter.
    pub is_estimated: bool,
}

impl Quota {
    /// Returns whether it says the same: two estimates of one window differ a little.
    pub(crate) fn says(&self, other: &Quota) -> bool {
        let (own, window) = (self.window, other.window);
        let is_window = own == window || self.is_estimated && own.abs_diff(window) <= own.min(window) / 2;
        self.units == other.units && self.is_estimated == other.is_estimated && is_window
    }
}

impl Policy {
    /// Returns the same policy with a server's units for one of its windows. `None` if it is not certain which of them the server
    /// means, or if it means none: the units of a day, in a window of a minute, could all start at once.
    pub(crate) fn with_quota(self, quota: Quota) -> Option<Policy> {
        let Quota { units, window, is_estimated } = quota;
        let is_it = |own: Duration| match is_estimated {
            true => own.abs_diff(window) <= own / 4,
            false => own == window,
        };
        let length = |own: Duration| is_it(own).then_some(own);
        let policy = match self.0 {
            Shape::Rate(windows, backoff) => {
                let mut all: Vec<_> =
                    windows.as_slice().iter().map(|own| (own.limit, from_ticks(own.length))).collect();
                let mut meant = all.iter_mut().filter(|(_, own)| is_it(*own));
                let (Some(one), None) = (meant.next(), meant.next()) else { return None };
                one.0 = units;
                let Shape::Rate(windows, _) = Policy::rate_in(&all).ok()?.0 else { return None };
                Policy(Shape::Rate(windows, backoff), 0)
            }
            Shape::Bucket(own) => {
                let period = length(from_ticks(own.period))?;
                match own.is_leaky {
                    true => Policy::leaky_bucket(units, period, own.size),
                    false => Policy::token_bucket(units, period, if own.size == own.rate { units } else { own.size }),
                }
                .ok()?
            }
            Shape::Counter { window: own, is_smooth } => {
                let length = length(from_ticks(own.length))?;
                match is_smooth {
                    true => Policy::sliding_window_counter(units, length),
                    false => Policy::fixed_window(units, length),
                }
                .ok()?
            }
            Shape::Concurrency { .. } | Shape::Delay(_) | Shape::EvenlySpaced(_) => return None,
        };
        Some(Policy(policy.0, self.1))
    }

    /// Returns the units of all of its windows, which a server's numbers raise or lower.
    pub(crate) fn units(self) -> u64 {
        match self.0 {
            Shape::Rate(windows, _) => windows.as_slice().iter().fold(0, |sum, own| sum.saturating_add(own.limit)),
            Shape::Bucket(own) => own.rate,
            Shape::Counter { window, .. } => window.limit,
            Shape::Concurrency { .. } | Shape::Delay(_) | Shape::EvenlySpaced(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(policy: &str, units: u64, seconds: f64, is_estimated: bool) -> Option<String> {
        let quota = Quota { units, window: Duration::from_secs_f64(seconds), is_estimated };
        policy.parse::<Policy>().unwrap().with_quota(quota).map(|policy| policy.to_string())
    }

    #[test]
    fn a_server_s_numbers_replace_those_of_the_window_that_they_mean() {
        for (policy, units, seconds, is_estimated, expected) in [
            ("100/1m", 500, 60.0, false, Some("500/1m")),
            ("100/1m", 10, 1.0, false, None),
            ("100/1m", 100_000, 86_400.0, false, None), // All of a day's could start at once.
            ("100/1m + 2000/1d", 4000, 86_400.0, false, Some("100/1m + 4000/1d")),
            ("100/1m", 500, 66.0, true, Some("500/1m")),
            ("100/1m", 500, 46.0, true, Some("500/1m")),
            ("100/1m", 10_000, 86_400.0, true, None), // That is a day's.
            ("100/1m", 0, 60.0, false, None),
            ("100/1m + 5/1s", 500, 60.0, false, Some("500/1m + 5/1s")),
            ("100/1m + 5/1s", 500, 58.0, true, Some("500/1m + 5/1s")),
            ("100/1m + 5/1s", 9, 1.0, false, Some("100/1m + 9/1s")),
            ("100/1m + 5/1s", 9, 3600.0, false, None),
            ("100/1m + 90/59s", 500, 60.0, true, None), // Either of them.
            ("100/1m burst 100", 500, 60.0, false, Some("500/1m burst 500")),
            ("100/1m burst 20", 500, 60.0, true, Some("500/1m burst 20")),
            ("100/1m burst 20", 500, 1.0, true, None),
            ("100/1m burst 20", 500, 3600.0, false, None),
            ("100/1m fixed", 500, 60.0, false, Some("500/1m fixed")),
            ("100/1m fixed", 9000, 3600.0, false, None),
            ("100/1m counter", 500, 60.0, true, Some("500/1m counter")),
            ("100/1m shared", 500, 60.0, false, Some("500/1m shared")),
            ("5 concurrent", 500, 60.0, false, None),
        ] {
            let found = with(policy, units, seconds, is_estimated);
            assert_eq!(found.as_deref(), expected, "{policy} with {units} per {seconds} s");
        }
    }
}
