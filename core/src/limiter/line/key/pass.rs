//! One pass over the line of a key: what it is for, and how long it may take.

use super::Out;
use super::queue::Waiting;
use crate::limiter::Limiter;
use crate::limiter::line::{is_over, slice};
use crate::permit::RawPermit;
use crate::time::{Clock, Tick, from_ticks, patience_ticks};
use crate::waiting::{AtOnce, InLine};
use std::time::{Duration, Instant};

/// For how many keys a driver checks as often as for one: all of them are some 25,000 checks a second.
const KEYS_AT_FULL_RATE: usize = 320;

/// The same where a server has to be asked: some 1,500 requests a second.
const KEYS_AT_FULL_RATE_ON_A_SERVER: usize = 16;

/// The longest duration of one pass. The next pass, which is due immediately, does the rest.
const BATCH: Duration = Duration::from_millis(4);

/// The context of a pass.
pub(in crate::limiter::line) struct Pass<'a> {
    pub limiter: &'a dyn Limiter,
    pub key: &'a str,
    pub clock: &'a Clock,
    pub began: Instant,
    /// The longest wait for the store in one call.
    pub slice: Duration,
    /// How many keys this driver waits for.
    pub keys: usize,
    /// Whether the driver sleeps at the key's bell.
    pub has_bell: bool,
    /// Where tenants share the limit: whether another line of this driver, which looks for both, comes before this one.
    pub is_behind: bool,
    /// The number of outcomes after which the pass ends. The next pass, which is due immediately, does the rest.
    pub most: usize,
    /// What a line asks for is in the order of lines already.
    pub _in_line: InLine,
    /// Only what a line asks in a slice waits: a look that it could do without would keep its waiters past their deadlines.
    pub _at_once: AtOnce,
}

impl<'a> Pass<'a> {
    pub fn new(limiter: &'a dyn Limiter, key: &'a str, clock: &'a Clock) -> Pass<'a> {
        let slice = slice(limiter);
        let began = Instant::now();
        let (keys, most, _in_line, _at_once) = (1, usize::MAX, InLine::enter(), AtOnce::enter());
        Pass { limiter, key, clock, began, slice, keys, has_bell: false, is_behind: false, most, _in_line, _at_once }
    }

    pub(super) fn now(&self) -> Tick {
        self.clock.now().floor
    }

    pub(super) fn is_over(&self) -> bool {
        is_over(self.began, BATCH, self.clock)
    }

    /// Returns whether the pass has had as many outcomes as it may.
    pub(super) fn is_full(&self, out: &Out) -> bool {
        out.len() >= self.most
    }

    /// Returns the interval at which a key is checked, if one key alone would be checked at this one.
    pub(super) fn among_keys(&self, interval: Tick) -> Tick {
        let is_on_server = self.limiter.crew().is_some();
        let at_full_rate = if is_on_server { KEYS_AT_FULL_RATE_ON_A_SERVER } else { KEYS_AT_FULL_RATE };
        interval.saturating_mul((self.keys / at_full_rate).max(1) as Tick)
    }

    /// Counts the wait of a waiter that starts.
    pub(super) fn count_wait(&self, waiting: &Waiting, permit: &RawPermit) {
        let waited = self.now().saturating_sub(waiting.since);
        if waited > 0 {
            self.limiter.waited(self.key, permit, from_ticks(waited));
        }
    }

    /// Returns the window of the limit, in ticks. (A limit that is not open yet is opened when it is asked for a start, and reports
    /// its error then.)
    pub(super) fn window(&self) -> Tick {
        self.limiter.window(self.key).ok().flatten().map_or(Tick::MAX, patience_ticks)
    }
}
