//! What is limited: checked once, when it is made, and then believed.

use crate::algorithm::{log, slots};
use crate::error::{Error, Result};
use crate::time::{self, Tick};
use std::fmt;
use std::time::Duration;

/// The longest name or key, in bytes.
pub const LONGEST_NAME: usize = 1_024;

/// What a limit allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// At most `max_executions` units in any rolling window.
    Rate {
        /// 1 to 4,096.
        max_executions: u64,
        /// In ticks of one microsecond: 1 µs to 366 days.
        window: u64,
    },
    /// At most `max` units at the same time.
    Concurrency {
        /// 1 to 65,535.
        max: u64,
    },
}

impl Policy {
    /// At most `max_executions` units in any rolling `window`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `max_executions` is 1 to 4,096 and `window` 1 µs to 366 days.
    pub fn rate(max_executions: u64, window: Duration) -> Result<Policy> {
        let window = time::window_ticks("window", window)?;
        in_range("max_executions", max_executions, log::MOST)?;
        Ok(Policy::Rate { max_executions, window })
    }

    /// At most `max` units at the same time.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `max` is 1 to 65,535.
    pub fn concurrency(max: u64) -> Result<Policy> {
        in_range("max_concurrent_jobs", max, slots::MOST)?;
        Ok(Policy::Concurrency { max })
    }

    /// The kind of limiter, as it is named in the store.
    pub const fn kind(&self) -> &'static str {
        match self {
            Policy::Rate { .. } => "rate",
            Policy::Concurrency { .. } => "concurrency",
        }
    }

    /// The most units that one start can take.
    pub const fn capacity(&self) -> u64 {
        match *self {
            Policy::Rate { max_executions, .. } => max_executions,
            Policy::Concurrency { max } => max,
        }
    }

    /// The policy as three words, as the stores keep it: kind, limit, window.
    pub(crate) const fn to_words(self) -> [u64; 3] {
        match self {
            Policy::Rate { max_executions, window } => [1, max_executions, window],
            Policy::Concurrency { max } => [2, max, 0],
        }
    }

    /// The policy of three words, if they are one.
    pub(crate) fn from_words([kind, limit, window]: [u64; 3]) -> Option<Policy> {
        match kind {
            1 => Policy::rate(limit, time::from_ticks(window)).ok(),
            2 => Policy::concurrency(limit).ok(),
            _ => None,
        }
    }
}

/// `100/1m`, `5/250ms`, `5 concurrent`.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Policy::Rate { max_executions, window } => {
                const UNITS: [(&str, Tick); 6] = [
                    ("d", 86_400_000_000),
                    ("h", 3_600_000_000),
                    ("m", 60_000_000),
                    ("s", 1_000_000),
                    ("ms", 1_000),
                    ("us", 1),
                ];
                let fits = |&&(_, size): &&(&str, Tick)| window.is_multiple_of(size);
                let (unit, size) = UNITS.iter().find(fits).expect("every window is whole microseconds");
                write!(f, "{max_executions}/{}{unit}", window / size)
            }
            Policy::Concurrency { max } => write!(f, "{max} concurrent"),
        }
    }
}

fn in_range(parameter: &'static str, value: u64, most: u64) -> Result<()> {
    if (1..=most).contains(&value) {
        Ok(())
    } else {
        Err(Error::invalid(parameter, value, format!("a whole number from 1 to {most}")))
    }
}

/// Checks a limit's name: 1 to 1,024 bytes.
pub(crate) fn check_name(name: &str) -> Result<()> {
    match name.len() {
        1..=LONGEST_NAME => Ok(()),
        0 => Err(Error::invalid("name", "empty", "1 to 1024 bytes of UTF-8")),
        n => Err(Error::invalid("name", format_args!("{n} bytes long"), "1 to 1024 bytes of UTF-8")),
    }
}

/// Checks a key: at most 1,024 bytes.
#[inline]
pub(crate) fn check_key(key: &str) -> Result<()> {
    if key.len() <= LONGEST_NAME {
        Ok(())
    } else {
        Err(Error::invalid("key", format_args!("{} bytes long", key.len()), "at most 1024 bytes of UTF-8"))
    }
}

/// Checks that a start weighs something.
#[inline]
pub(crate) fn check_some(weight: u64) -> Result<()> {
    if weight > 0 { Ok(()) } else { Err(Error::invalid("weight", 0, "a whole number of at least 1")) }
}

/// Checks a weight against what the limit could ever grant.
#[inline]
pub(crate) fn check_weight(limit: &str, weight: u64, capacity: u64) -> Result<()> {
    if weight <= capacity {
        Ok(())
    } else {
        Err(Error::WeightExceedsCapacity { limit: limit.to_owned(), weight, capacity })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_reads_as_people_write_it() {
        let text = |n, w| Policy::rate(n, Duration::from_micros(w)).unwrap().to_string();
        assert_eq!(text(100, 60_000_000), "100/1m");
        assert_eq!(text(10, 500_000), "10/500ms");
        assert_eq!(text(7, 90_000_000), "7/90s");
        assert_eq!(text(1, 366 * 86_400_000_000), "1/366d");
        assert_eq!(Policy::concurrency(5).unwrap().to_string(), "5 concurrent");
    }

    #[test]
    fn words_and_back() {
        for policy in [Policy::rate(20, Duration::from_secs(2)).unwrap(), Policy::concurrency(3).unwrap()] {
            assert_eq!(Policy::from_words(policy.to_words()), Some(policy));
        }
        assert_eq!(Policy::from_words([0, 1, 1]), None);
        assert_eq!(Policy::from_words([1, 0, 1]), None);
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        let text = Policy::rate(0, Duration::from_secs(1)).unwrap_err().to_string();
        assert_eq!(text, "max_executions is 0: expected a whole number from 1 to 4096");
        assert!(Policy::rate(u64::MAX, Duration::from_secs(1)).is_err());
        assert!(Policy::rate(1, Duration::ZERO).is_err());
        assert!(Policy::concurrency(0).is_err());
        assert!(Policy::concurrency(70_000).is_err());
    }
}
