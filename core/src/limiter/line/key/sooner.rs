//! Looking whether the first place could be sooner, after a raised limit, a `clear` or returned units.

use super::pausing::{ASKS_APART, LOOK_SOONER, LOOK_SOONER_ON_A_SERVER};
use super::{KeyLine, Pass};
use crate::error::Error;
use crate::time::{Tick, patience_ticks};
use crate::waiting::MayWait;

/// A waiter whose place would be sooner by less than this keeps its place.
pub(super) const WORTH_MOVING: Tick = 50_000;

impl KeyLine {
    /// Gives all places back, to take new ones, if a new waiter would start sooner than the first one here.
    pub(super) fn look_sooner(&mut self, pass: &Pass) {
        let now = pass.now();
        if now < self.look_sooner_at {
            return;
        }
        // A server is asked at once if this process has returned units to it, and otherwise every few seconds.
        let returned = pass.limiter.returned();
        let Some(first) = self.places.front() else {
            if returned != self.returned {
                self.ask_at = self.ask_at.min(self.soonest_ask(now));
            }
            return self.look_sooner_at = now + pass.among_keys(LOOK_SOONER);
        };
        let has_returned = returned != self.returned && first.ready > now + WORTH_MOVING;
        if has_returned && now < self.ask_returned_at {
            return self.look_sooner_at = self.ask_returned_at;
        }
        let is_on_server = pass.limiter.crew().is_some();
        if is_on_server && !has_returned && now < self.ask_sooner_at {
            return self.look_sooner_at = now + pass.among_keys(LOOK_SOONER);
        }
        let (key, weight) = match pass.limiter.counts_places() {
            // One unit more cannot start before the place, unless all of its units could.
            true => (pass.key, 1),
            false => (first.wanted.key(pass.key), first.wanted.weight),
        };
        let peek =
            if has_returned { pass.limiter.quiet_peek(key, weight) } else { pass.limiter.peek_again(key, weight) };
        let seen = match peek {
            Ok(seen) => seen,
            Err(Error::WouldWait) if MayWait::here() != MayWait::UntilTimeout => {
                return (self.is_blocked, self.blocked_until) = (true, 0);
            }
            Err(_) => return self.look_sooner_at = now + LOOK_SOONER,
        };
        self.returned = returned;
        let rest = first.ready.saturating_sub(now) / 8;
        self.ask_sooner_at = now + rest.clamp(LOOK_SOONER, LOOK_SOONER_ON_A_SERVER);
        self.ask_returned_at = now + pass.among_keys(ASKS_APART);
        self.look_sooner_at = now + LOOK_SOONER;
        // Counted from now: if this process was stopped since it asked, a start would not be sooner for that.
        if patience_ticks(seen.retry_after).saturating_add(pass.now() + WORTH_MOVING) < first.ready {
            self.give_back_all(pass.limiter);
            pass.limiter.return_promises(pass.key);
            self.ask_at = now;
        }
    }
}
