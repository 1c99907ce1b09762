//! The backoff level: how much longer than the limit requires a denied caller is asked to wait.

use crate::policy;
use crate::time::Tick;

/// The level of a backoff and when the next denial raises it, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Level {
    pub number: u64,
    until: Tick,
}

impl Level {
    /// 49 bits of microseconds are 17 years.
    const UNTIL: u32 = 49;

    #[inline(always)]
    pub fn of(word: u64) -> Level {
        Level { number: word >> Self::UNTIL, until: word & ((1 << Self::UNTIL) - 1) }
    }

    pub fn word(self) -> u64 {
        self.number << Self::UNTIL | self.until
    }

    #[inline(always)]
    pub fn after_denial(self, backoff: &policy::Backoff, now: Tick) -> Level {
        if self.number > 0 && now < self.until { self } else { self.raised(backoff, now) }
    }

    #[inline(never)]
    fn raised(self, backoff: &policy::Backoff, now: Tick) -> Level {
        let (_, grows) = backoff.delay(self.number);
        let number = if grows { (self.number + 1).min((1 << (64 - Self::UNTIL)) - 1) } else { self.number };
        // Beyond that time, each denial raises the level.
        Level { number, until: (now + backoff.delay(number).0).min((1 << Self::UNTIL) - 1) }
    }
}
