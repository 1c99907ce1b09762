//! Backoff: how retries are spread after denials.

use crate::error::{Error, Result};
use crate::time::{self, Tick};
use std::time::Duration;

/// How retries are spread: see [`Backoff::new`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Jitter {
    /// From one to two times the backoff. The default.
    Scaled,
    /// From zero to the backoff.
    Full,
    /// From half the backoff to the whole.
    Equal,
    /// Exactly the backoff.
    None,
}

/// The delay that a denial adds to [`Decision::retry_after`](crate::Decision) for callers that requeue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    pub(super) initial: Tick,
    /// In thousandths.
    pub(super) multiplier: u64,
    pub(super) max: Tick,
    pub(super) jitter: Jitter,
}

impl Default for Backoff {
    /// 1 s, doubled up to 10 minutes, scaled.
    fn default() -> Self {
        Backoff { initial: 1_000_000, multiplier: 2_000, max: 600_000_000, jitter: Jitter::Scaled }
    }
}

impl Backoff {
    /// Makes a backoff. The first denial waits for `initial`, each later one `multiplier` times as long, up to `max`;
    /// an admission resets it. It is raised at most once while it lasts, however many processes ask and however often.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `initial` is 1 µs to 366 days, `multiplier` more than 1 and at most 1,000
    /// (thousandths count), and `max` `initial` to 366 days.
    pub fn new(initial: Duration, multiplier: f64, max: Duration, jitter: Jitter) -> Result<Backoff> {
        let initial = time::window_ticks("initial_backoff_delay", initial)?;
        let thousandths = (multiplier * 1e3).round();
        // This also rejects NaN.
        if !(thousandths > 1e3 && thousandths <= 1e6) {
            return Err(Error::invalid("backoff_multiplier", multiplier, "more than 1 (at least 1.001), at most 1000"));
        }
        let most = time::window_ticks("max_backoff_delay", max)?;
        if most < initial {
            return Err(Error::invalid("max_backoff_delay", format_args!("{max:?}"), "at least initial_backoff_delay"));
        }
        Ok(Backoff { initial, multiplier: thousandths as u64, max: most, jitter })
    }

    /// Returns how long this level lasts (0 at level 0, `initial` at 1), and whether the next one lasts longer.
    pub(crate) fn delay(&self, level: u64) -> (Tick, bool) {
        let (mut delay, mut grows) = (self.initial, self.initial < self.max);
        for _ in 1..level {
            let next = (u128::from(delay) * u128::from(self.multiplier) / 1_000).min(self.max.into()) as u64;
            grows = next > delay;
            delay = next;
            if !grows {
                break;
            }
        }
        if level == 0 { (0, true) } else { (delay, grows && delay < self.max) }
    }

    /// Returns the shortest and the longest delay of a denial at this level.
    pub(crate) fn spread(&self, level: u64) -> (Tick, Tick) {
        let (delay, _) = self.delay(level);
        match self.jitter {
            Jitter::Scaled => (delay, delay.saturating_add(delay.saturating_sub(1))),
            Jitter::Full => (0, delay),
            Jitter::Equal => (delay / 2, delay),
            Jitter::None => (delay, delay),
        }
    }

    const JITTERS: [Jitter; 4] = [Jitter::Scaled, Jitter::Full, Jitter::Equal, Jitter::None];

    pub(super) fn to_words(self) -> [u64; 3] {
        let jitter = Self::JITTERS.iter().position(|&jitter| jitter == self.jitter).unwrap_or(0);
        [self.initial, self.max, self.multiplier << 2 | jitter as u64]
    }

    #[inline(always)]
    pub(super) fn from_words([initial, max, rest]: [u64; 3]) -> Backoff {
        Backoff { initial, multiplier: rest >> 2, max, jitter: Self::JITTERS[rest as usize & 3] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_backoff_grows_from_its_first_delay_to_its_last() {
        let backoff = Backoff::new(SECOND, 2.0, 5 * SECOND, Jitter::None).unwrap();
        let delays: Vec<_> = (0..6).map(|level| backoff.delay(level)).collect();
        let s = 1_000_000;
        assert_eq!(delays, [(0, true), (s, true), (2 * s, true), (4 * s, true), (5 * s, false), (5 * s, false)]);
        for jitter in Backoff::JITTERS {
            let expected = match jitter {
                Jitter::Scaled => (s, 2 * s - 1),
                Jitter::Full => (0, s),
                Jitter::Equal => (s / 2, s),
                Jitter::None => (s, s),
            };
            assert_eq!(Backoff { jitter, ..backoff }.spread(1), expected);
        }
    }
}
