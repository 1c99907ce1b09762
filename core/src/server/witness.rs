//! What this process's clock says about a server's.
//!
//! Two readings of the server's clock can lie no further apart than the two requests: from before the first one to after
//! the second reply, by any clock whose rate is right. If they do, the server's clock was set forward in between, or
//! this machine stood still. This process *reports* that, and the server finds out which of the two it was: see
//! `prelude.lua`. If they do not, this process *vouches* for the time between its readings.

use crate::algorithm::grants::longer;
use crate::fault;
use crate::time::Tick;

/// What is said with a request, by the server's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    /// Between these readings, the clock was set forward by this much; and before, since this one, it was not.
    Report { since: Tick, from: Tick, to: Tick, by: Tick },
    /// Between these, it was not.
    Vouch { from: Tick, to: Tick },
}

/// The readings of a server's clock in the replies about one limit.
#[derive(Debug, Default)]
pub(crate) struct Witness {
    /// Since when this process vouches.
    since: Tick,
    /// The latest reading (0: none), and when its request was sent and its reply came, by this machine's clock.
    seen: Tick,
    asked: Tick,
    heard: Tick,
    report: Option<Word>,
}

impl Witness {
    /// The longest time between two readings for which a process vouches. Over a longer one, clocks may drift apart by
    /// more than they were set.
    const MAX_VOUCHED: Tick = 2_000_000;

    /// Returns what to say with the next request.
    pub fn word(&self) -> Option<Word> {
        let vouch = Word::Vouch { from: self.since, to: self.seen };
        self.report.or_else(|| (self.since < self.seen).then_some(vouch))
    }

    /// Records a reading, from the reply to a request with which `said` was said. Returns whether the clock was set
    /// forward, as far as this process can tell. (Less than two round trips cannot be told from a slow reply.)
    pub fn saw(&mut self, clock: Tick, (asked, heard): (Tick, Tick), said: Option<Word>) -> bool {
        if self.report == said {
            self.report = None;
        }
        let was_set_back = clock < self.seen && asked >= self.heard;
        if self.seen == 0 || was_set_back {
            *self = Witness { since: clock, seen: clock, asked, heard, report: None };
            return false;
        }
        // A reply that another has overtaken.
        if clock <= self.seen {
            return false;
        }
        let elapsed = heard.saturating_sub(self.asked) + 1;
        let by = (clock - self.seen).saturating_sub(longer(elapsed) + 1);
        let is_set = by > 0 && !fault::planted("any clock");
        if is_set {
            let (since, from, before) = match self.report {
                Some(Word::Report { since, from, by, .. }) => (since, from, by),
                _ => (self.since, self.seen, 0),
            };
            self.report = Some(Word::Report { since, from, to: clock, by: before + by });
        }
        if is_set || elapsed > Witness::MAX_VOUCHED {
            self.since = clock;
        }
        (self.seen, self.asked, self.heard) = (clock, asked, heard);
        is_set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Tick = 1_000_000;

    /// A witness that has seen the clock show `at` at that time, with a round trip of 100 ticks.
    fn witness(at: Tick) -> Witness {
        let mut witness = Witness::default();
        assert!(!witness.saw(at, (at, at + 100), None));
        witness
    }

    #[test]
    fn a_step_forward_is_reported_once() {
        let mut witness = witness(SECOND);
        assert_eq!(witness.word(), None);
        assert!(!witness.saw(2 * SECOND, (2 * SECOND, 2 * SECOND + 100), None));
        let vouched = Some(Word::Vouch { from: SECOND, to: 2 * SECOND });
        assert_eq!(witness.word(), vouched);
        assert!(witness.saw(3 * SECOND + 5_000, (3 * SECOND, 3 * SECOND + 100), vouched));
        let Some(report @ Word::Report { since, from, to, by }) = witness.word() else { panic!("{witness:?}") };
        assert_eq!((since, from, to), (SECOND, 2 * SECOND, 3 * SECOND + 5_000));
        // The rest may have been a slow reply, or the rates of both clocks.
        assert!((3_800..5_000).contains(&by), "{by}");
        assert!(!witness.saw(3 * SECOND + 5_500, (3 * SECOND + 500, 3 * SECOND + 600), Some(report)));
        assert_eq!(witness.word(), Some(Word::Vouch { from: 3 * SECOND + 5_000, to: 3 * SECOND + 5_500 }));
    }

    #[test]
    fn nothing_is_said_of_a_clock_that_was_set_back_and_nobody_vouches_for_long_times() {
        let mut witness = witness(SECOND);
        assert!(!witness.saw(SECOND / 2, (2 * SECOND, 2 * SECOND + 100), None));
        assert_eq!(witness.word(), None);
        assert!(!witness.saw(SECOND, (2 * SECOND + SECOND / 2, 2 * SECOND + SECOND / 2 + 100), None));
        assert_eq!(witness.word(), Some(Word::Vouch { from: SECOND / 2, to: SECOND }));
        assert!(!witness.saw(5 * SECOND, (6 * SECOND + SECOND / 2, 6 * SECOND + SECOND / 2 + 100), None));
        assert_eq!(witness.word(), None);
    }

    #[test]
    fn a_reply_that_was_overtaken_is_no_step_back() {
        let mut witness = witness(SECOND);
        assert!(!witness.saw(2 * SECOND, (2 * SECOND, 2 * SECOND + 100), None));
        // It was sent before the other reply came.
        assert!(!witness.saw(2 * SECOND - 50, (2 * SECOND - 60, 2 * SECOND + 200), None));
        assert_eq!(witness.word(), Some(Word::Vouch { from: SECOND, to: 2 * SECOND }));
    }
}
