//! Starts elsewhere: the line holds places at one alternative, and jobs end at another.

use super::{KeyLine, Out, Pass};
use crate::error::Error;
use crate::limiter::line::{Claim, Terms};
use crate::time::from_ticks;

impl KeyLine {
    /// Starts waiters where jobs have ended. Each gives back the last place like its own, so that those behind it move up.
    pub(super) fn start_elsewhere(&mut self, pass: &Pass, out: &mut Out) {
        let now = pass.now();
        while let (Some(first), Some(at)) = (self.places.front(), self.look_elsewhere_at)
            && at <= now
        {
            if pass.is_over() || pass.is_full(out) {
                self.is_unfinished = true;
                return;
            }
            let (wanted, asked) = (first.wanted.clone(), from_ticks(self.asked()));
            let terms = Terms { asked, ..Terms::NOW };
            match self.ask(pass, |limiter| limiter.claim(wanted.key(pass.key), wanted.weight, terms)) {
                Ok(Claim::Started(permit)) => {
                    self.looks = 0;
                    self.admit(pass, &wanted, permit, out);
                    self.give_back_unwanted(pass.limiter, &wanted);
                    continue;
                }
                Ok(Claim::Place { place, .. }) => self.give_back(pass.limiter, place),
                Err(Error::WouldWait) => return,
                // A waiter learns of an error when the place is presented.
                Ok(_) | Err(_) => {}
            }
            self.look_elsewhere_at = Some(now + self.poll(pass));
        }
    }
}
