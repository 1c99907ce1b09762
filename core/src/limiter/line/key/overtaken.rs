//! A line that joint starts overtake.

use super::queue::Wanted;
use super::{KeyLine, Pass};
use crate::error::Result;
use crate::limiter::line::{Claim, Rank, Terms};
use crate::time::{Tick, from_ticks};

/// For how long a line looks often after it was overtaken, in ticks.
const OVERTAKEN: Tick = 1_000_000;

impl KeyLine {
    /// Asks for the line that has the turn. Joint starts do not wait for it: they take places at any distance. If there are
    /// more than at the last request, they have overtaken this waiter, whose units were beyond its horizon then. So it takes
    /// a place behind them, and so do those who have waited as long, for as many units. (Nobody else takes any there while
    /// this line has the turn. So once joint starts no longer come, no line takes far places.)
    pub(super) fn claim_in_turn(
        &mut self,
        pass: &Pass,
        (rank, wanted): (Rank, &Wanted),
        terms: Terms,
        left: Tick,
    ) -> Result<Claim> {
        let (key, weight, before) = (wanted.key(pass.key), wanted.weight, self.position.take());
        let position = if pass.limiter.has_places() { pass.limiter.position(key, weight) } else { None };
        if let (Some((before, of)), Some((now, is_units))) = (before, position)
            && of == *wanted
            && now > before
        {
            self.overtaken = (pass.now(), if is_units { now - before } else { 0 }.max(weight));
        }
        let (at, units) = self.overtaken;
        let may_follow = units >= weight && self.waiters[&rank].since <= at;
        let most = if may_follow { (left != Tick::MAX).then(|| from_ticks(left)) } else { terms.most };
        let claim = self.ask(pass, |limiter| limiter.claim(key, weight, Terms { most, ..terms }))?;
        match claim {
            Claim::Denied { is_certain: true, .. } => {
                self.position = position.map(|(position, _)| (position, wanted.clone()));
            }
            Claim::Place { .. } if may_follow => self.overtaken.1 -= weight,
            _ => {}
        }
        Ok(claim)
    }

    /// Returns whether it was overtaken a short time ago.
    pub(super) fn is_overtaken(&self, pass: &Pass) -> bool {
        self.shown.get().is_some() && pass.now() < self.overtaken.0.saturating_add(OVERTAKEN)
    }
}
