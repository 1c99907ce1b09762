//! What is limited: checked once, when it is made, and then believed.

use crate::algorithm::log::Window;
use crate::algorithm::{log, slices, slots};
use crate::error::{Error, Result};
use crate::time::{self, Tick};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The longest name or key, in bytes.
pub const LONGEST_NAME: usize = 1_024;

/// How many windows one rate limit may have.
pub const MOST_WINDOWS: usize = 4;

/// How many words a policy takes in a store.
pub(crate) const POLICY_WORDS: usize = 1 + 2 * MOST_WINDOWS;

/// What a limit allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// At most so many units in each of these rolling windows.
    Rate(Windows),
    /// At most `max` units at the same time.
    Concurrency {
        /// 1 to 65,535.
        max: u64,
    },
}

/// The windows of a rate limit: one to [`MOST_WINDOWS`], which all have to have room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    count: usize,
    /// Those beyond `count` are empty.
    all: [Window; MOST_WINDOWS],
}

impl Windows {
    #[inline(always)]
    pub(crate) fn as_slice(&self) -> &[Window] {
        &self.all[..self.count]
    }

    /// The largest number of units that must be told apart.
    pub(crate) fn largest(&self) -> u64 {
        self.as_slice().iter().map(|w| w.limit).max().unwrap_or(0)
    }

    /// How long a start counts, in ticks.
    pub(crate) fn longest(&self) -> Tick {
        self.as_slice().iter().map(|w| w.length).max().unwrap_or(0)
    }
}

impl Policy {
    /// At most `max_executions` units in any rolling `window`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `max_executions` is 1 to 1,000,000,000 and `window` 1 µs to 366 days.
    pub fn rate(max_executions: u64, window: Duration) -> Result<Policy> {
        Self::rate_in(&[(max_executions, window)])
    }

    /// Several windows at once, `(max_executions, window)` each: `100 per minute and 5 per second`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless there are 1 to 4 of them, each as for [`Policy::rate`], and if there are
    /// several, of at most 4,096.
    pub fn rate_in(windows: &[(u64, Duration)]) -> Result<Policy> {
        if !(1..=MOST_WINDOWS).contains(&windows.len()) {
            return Err(Error::invalid("windows", format_args!("{} of them", windows.len()), "1 to 4 windows"));
        }
        let mut all = [Window { limit: 0, length: 0 }; MOST_WINDOWS];
        for (to, &(max_executions, window)) in all.iter_mut().zip(windows) {
            in_range("max_executions", max_executions, if windows.len() == 1 { slices::MOST } else { log::MOST })?;
            *to = Window { limit: max_executions, length: time::window_ticks("window", window)? };
        }
        Ok(Policy::Rate(Windows { count: windows.len(), all }))
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
            Policy::Rate(_) => "rate",
            Policy::Concurrency { .. } => "concurrency",
        }
    }

    /// The most units that one start can take.
    pub fn capacity(&self) -> u64 {
        match self {
            Policy::Rate(windows) => windows.as_slice().iter().map(|w| w.limit).min().unwrap_or(0),
            Policy::Concurrency { max } => *max,
        }
    }

    /// How long a start counts, in ticks.
    pub(crate) fn longest(&self) -> Tick {
        match self {
            Policy::Rate(windows) => windows.longest(),
            Policy::Concurrency { .. } => 0,
        }
    }

    /// The largest number of units that must be told apart.
    pub(crate) fn largest(&self) -> u64 {
        match self {
            Policy::Rate(windows) => windows.largest(),
            Policy::Concurrency { .. } => 0,
        }
    }

    /// The first window, which is the only one if starts are counted in slices.
    pub(crate) fn window(&self) -> Window {
        match self {
            Policy::Rate(windows) => windows.all[0],
            Policy::Concurrency { .. } => Window { limit: 0, length: 0 },
        }
    }

    /// Are there so many units that starts are only counted, in slices of the window?
    #[inline(always)]
    pub(crate) fn is_sliced(&self) -> bool {
        matches!(self, Policy::Rate(windows) if windows.all[0].limit > log::MOST)
    }

    /// How many slots a key has.
    pub(crate) fn ring(&self) -> u64 {
        match self {
            Policy::Rate(_) if self.is_sliced() => slices::SLICES,
            Policy::Rate(windows) => log::capacity(windows.largest()),
            Policy::Concurrency { max } => *max,
        }
    }

    /// Which blocks of keys can be used for one another, below 64.
    pub(crate) fn ring_bits(&self) -> u64 {
        match self {
            Policy::Rate(_) => self.ring().trailing_zeros().into(),
            // They are never used again.
            Policy::Concurrency { .. } => 63,
        }
    }

    /// The policy as words, as the stores' cells keep it: kind, then pairs of limit and window.
    pub(crate) fn to_words(self) -> [u64; POLICY_WORDS] {
        let mut words = [0; POLICY_WORDS];
        match self {
            Policy::Rate(windows) => {
                words[0] = 1;
                for (pair, window) in words[1..].chunks_exact_mut(2).zip(windows.as_slice()) {
                    pair.copy_from_slice(&[window.limit, window.length]);
                }
            }
            Policy::Concurrency { max } => words[..2].copy_from_slice(&[2, max]),
        }
        words
    }

    /// The policy of such words. Checked when it was declared; here it is only read.
    #[inline(always)]
    pub(crate) fn from_words(word: impl Fn(usize) -> u64) -> Option<Policy> {
        match word(0) {
            1 => {
                let mut windows = Windows { count: 1, all: [Window { limit: 0, length: 0 }; MOST_WINDOWS] };
                windows.all[0] = Window { limit: word(1), length: word(2) };
                // Most limits have one.
                while windows.count < MOST_WINDOWS && word(1 + 2 * windows.count) != 0 {
                    let at = windows.count;
                    windows.all[at] = Window { limit: word(1 + 2 * at), length: word(2 + 2 * at) };
                    windows.count += 1;
                }
                Some(Policy::Rate(windows))
            }
            2 => Some(Policy::Concurrency { max: word(1) }),
            _ => None,
        }
    }
}

const UNITS: [(&str, Tick); 6] =
    [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1)];

/// `100/1m`, `100/1m + 5/250ms`, `5 concurrent`.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Rate(windows) => {
                for (i, Window { limit, length }) in windows.as_slice().iter().enumerate() {
                    let fits = |&&(_, size): &&(&str, Tick)| length.is_multiple_of(size);
                    let (unit, size) = UNITS.iter().find(fits).expect("every window is whole microseconds");
                    let plus = if i > 0 { " + " } else { "" };
                    write!(f, "{plus}{limit}/{}{unit}", length / size)?;
                }
                Ok(())
            }
            Policy::Concurrency { max } => write!(f, "{max} concurrent"),
        }
    }
}

/// Reads what [`Policy`] writes.
impl FromStr for Policy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Policy> {
        let wrong =
            || Error::invalid("policy", format_args!("\"{text}\""), "such as 100/1m, 100/1m + 5/1s or 5 concurrent");
        let number = |digits: &str| digits.parse::<u64>().map_err(|_| wrong());
        if let Some(max) = text.strip_suffix("concurrent") {
            return Policy::concurrency(number(max.trim())?);
        }
        let mut windows = Vec::new();
        for part in text.split('+') {
            let (limit, window) = part.split_once('/').ok_or_else(wrong)?;
            let window = window.trim();
            let unit_at = window.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
            let (count, unit) = window.split_at(unit_at);
            let (_, size) = UNITS.iter().find(|(name, _)| *name == unit.trim()).ok_or_else(wrong)?;
            let count = if count.is_empty() { 1 } else { number(count)? };
            let window = count.checked_mul(*size).ok_or_else(wrong)?;
            windows.push((number(limit.trim())?, time::from_ticks(window)));
        }
        Policy::rate_in(&windows)
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
    fn words_and_text_and_back() {
        let second = Duration::from_secs(1);
        for policy in [
            Policy::rate(20, Duration::from_secs(2)).unwrap(),
            Policy::rate_in(&[(100, 60 * second), (5, second), (1, Duration::from_micros(7))]).unwrap(),
            Policy::concurrency(3).unwrap(),
        ] {
            let words = policy.to_words();
            assert_eq!(Policy::from_words(|at| words[at]), Some(policy));
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert_eq!(Policy::from_words(|_| 0), None);
        assert_eq!("100/m + 5 / 10 s".parse(), Policy::rate_in(&[(100, 60 * second), (5, 10 * second)]));
        for wrong in ["", "5", "5/", "/1s", "5/1y", "-5/1s", "0/1s", "5/0s", "5/99999999999999999999s", "5/1s +"] {
            assert!(wrong.parse::<Policy>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        let text = Policy::rate(0, Duration::from_secs(1)).unwrap_err().to_string();
        assert_eq!(text, "max_executions is 0: expected a whole number from 1 to 1000000000");
        assert!(Policy::rate(u64::MAX, Duration::from_secs(1)).is_err());
        assert!(Policy::rate(1, Duration::ZERO).is_err());
        assert!(Policy::concurrency(0).is_err());
        assert!(Policy::concurrency(70_000).is_err());
    }
}
