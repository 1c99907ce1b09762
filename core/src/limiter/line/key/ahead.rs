//! Looking ahead: a far place becomes ready sooner, and a joint start takes the other places that it will need.

use super::held::HeldPlace;
use super::{KeyLine, Pass};
use crate::error::Error;
use crate::limiter::line::Ahead;
use crate::time::patience_ticks;

impl KeyLine {
    /// Lets the first place look ahead.
    pub(super) fn look_ahead(&mut self, pass: &Pass) {
        let now = pass.now();
        if self.look_ahead_at.is_none_or(|at| now < at) || self.places.front().is_none_or(|first| first.ready <= now) {
            return;
        }
        let Some(HeldPlace { mut place, wanted, mut ready, unwritten }) = self.places.pop_front() else { return };
        let seen = self.ask(pass, |limiter| limiter.look_ahead(&place));
        // (It may have taken places, whatever its answer is.)
        self.unwritten.extend(unwritten);
        match seen {
            Ok(Some(Ahead { place: same, after, again })) => {
                self.look_ahead_at = again.map(|again| now.saturating_add(patience_ticks(again).max(1)));
                place = same;
                // If it is ready already, another limit had no free units, and it was told when to come back.
                if !after.is_zero() {
                    ready = now.saturating_add(patience_ticks(after));
                }
            }
            // At the next pass, which may wait.
            Err(Error::WouldWait) => {}
            // A waiter learns of an error when the place is presented.
            Ok(None) | Err(_) => self.look_ahead_at = None,
        }
        self.put_back(place, wanted, ready);
    }
}
