//! Starts with the places that are ready.

use super::held::HeldPlace;
use super::{KeyLine, Out, Pass};
use crate::error::Error;
use crate::limiter::Presented;
use crate::time::patience_ticks;

impl KeyLine {
    /// Starts with the places that are ready.
    pub(super) fn start_ready(&mut self, pass: &Pass, out: &mut Out) {
        for _ in 0..self.places.len() {
            let now = pass.now();
            if self.places.front().is_none_or(|first| first.ready > now) {
                break;
            }
            if pass.is_over() || pass.is_full(out) {
                self.is_unfinished = true;
                return;
            }
            let Some(HeldPlace { place, wanted, ready, unwritten }) = self.places.pop_front() else { break };
            self.late = (self.late - self.late / 8).max(now - ready);
            let presented = self.ask(pass, |limiter| limiter.start(&place));
            // (Whether it has started or not, a joint start may have taken places.)
            self.unwritten.extend(unwritten);
            match presented {
                Ok(Presented::Started(permit)) => {
                    self.admit(pass, &wanted, permit, out);
                    if self.places.is_empty() {
                        // The next waiter takes its place now: `ask_at` was set when others held places that they have
                        // since given back.
                        self.ask_at = self.ask_at.min(now);
                    }
                }
                Ok(Presented::Wait { place: fresh, after }) if after.is_zero() => {
                    // It was presented too late, and the fresh place may be too, if taking it takes long. The next
                    // request needs no grace: it asks for an immediate start.
                    self.give_back(pass.limiter, fresh);
                    self.ask_at = now;
                }
                Ok(Presented::Wait { place: same, after }) if same == place => {
                    // It was early, or another limit has no free units, which concerns the other waiters too.
                    let ready = now.saturating_add(patience_ticks(after));
                    self.put_back(place, wanted, ready);
                    self.look_ahead_at = self.is_joint.then_some(now);
                    self.send_away_the_late(pass, now, out);
                    break;
                }
                Ok(Presented::Wait { place: fresh, after }) => {
                    self.hold(fresh, wanted, after, (now, pass.now()));
                    self.look_ahead_at = self.is_joint.then_some(now);
                    self.send_away_the_late(pass, now, out);
                }
                Err(Error::WouldWait) => {
                    self.put_back(place, wanted, ready);
                    return;
                }
                Err(error) => {
                    self.give_back(pass.limiter, place);
                    if let Some(rank) = self.first_of(&wanted) {
                        self.fail(pass, rank, error, out);
                    }
                }
            }
        }
    }
}
