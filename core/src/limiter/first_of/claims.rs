//! Which alternative starts first, and what a line may wait for.

use super::{Child, FirstOfLimiter};
use crate::charges::Split;
use crate::decision::{Decision, LOOK_AGAIN};
use crate::error::{Error, Result};
use crate::limiter::line::{Claim, Terms};
use std::time::Duration;

/// The alternatives whose states are known, in their order, each with its index.
pub(super) type Seen<'a> = Vec<(usize, &'a Child, Decision)>;

impl FirstOfLimiter {
    /// Looks at the alternatives, in their order, until one can start now. Those that are too small for this start are left
    /// out, unless all are.
    fn look_at_each(&self, charges: &Split) -> Result<Seen<'_>> {
        self.look(charges, None, |decision| decision.admitted)
    }

    /// Looks at the alternatives `except` one, `until` one is such.
    pub(super) fn look(
        &self,
        charges: &Split,
        except: Option<usize>,
        until: impl Fn(&Decision) -> bool,
    ) -> Result<Seen<'_>> {
        let (mut seen, mut too_small): (Seen, Option<Error>) = (Vec::new(), None);
        for (i, child) in self.alternatives()?.iter().enumerate().filter(|(i, _)| Some(*i) != except) {
            let (key, weight) = charges.at(i);
            match child.quiet_peek(key, weight) {
                Ok(decision) => {
                    let is_last = until(&decision);
                    seen.push((i, child, decision));
                    if is_last {
                        break;
                    }
                }
                Err(error @ Error::WeightExceedsCapacity { .. }) => drop(too_small.get_or_insert(error)),
                Err(error) => return Err(error),
            }
        }
        too_small.filter(|_| seen.is_empty() && except.is_none()).map_or(Ok(seen), Err)
    }

    /// Returns the alternative that can start first, and its state.
    pub(super) fn first(&self, charges: &Split) -> Result<(usize, Decision)> {
        let seen = self.look_at_each(charges)?;
        // The first of equals.
        let first = seen.into_iter().min_by_key(|(_, _, seen)| (!seen.admitted, seen.retry_after));
        Ok(first.map(|(i, _, seen)| (i, seen)).expect("there is one, or an error"))
    }

    /// Lets the first alternative start that can, or the one that can start first record its denial.
    pub(super) fn choose<P, D>(
        &self,
        charges: &Split,
        start: impl Fn(&Child, &str, u64) -> Result<Result<P, D>>,
    ) -> Result<Result<(usize, P), D>> {
        let all = self.alternatives()?;
        let mut attempts = all.len();
        loop {
            let (i, seen) = self.first(charges)?;
            let (key, weight) = charges.at(i);
            match start(&all[i], key, weight)? {
                Ok(started) => return Ok(Ok((i, started))),
                // Another caller was faster.
                Err(_) if seen.admitted && attempts > 0 => attempts -= 1,
                Err(denied) => return Ok(Err(denied)),
            }
        }
    }

    /// Returns the state for a line that polls: if no alternative can start now, that of the first whose time is known.
    pub(super) fn look_again(&self, charges: &Split) -> Result<Decision> {
        let seen = self.look_at_each(charges)?;
        let is_unknown = |child: &Child, seen: &Decision| !seen.admitted && known_wait(child, seen) <= LOOK_AGAIN;
        let first = seen.into_iter().min_by_key(|(_, child, seen)| (is_unknown(child, seen), seen.retry_after));
        Ok(first.map(|(_, _, seen)| seen).expect("there is one, or an error"))
    }

    /// Answers a line's request: a start now, or the soonest place.
    pub(super) fn do_claim(&self, (key, weight): (&str, u64), terms: Terms) -> Result<Claim> {
        let (charges, start) = (self.group.split_start(key, weight)?, (key, weight));
        let mut seen = self.look_at_each(&charges)?;
        seen.sort_by_key(|(_, _, seen)| (!seen.admitted, seen.retry_after));
        // Its waiters are not in the line of all processes.
        let terms = Terms { in_turn: true, waiter: None, ..terms };
        let (mut least, mut are_certain, mut are_full) = (Duration::MAX, true, true);
        for (i, child, seen) in &seen {
            let (key, weight) = charges.at(*i);
            // Nothing can be had at once where the look says so, and no place where there are none.
            let may_ask = seen.admitted || child.has_places() && terms.most != Some(Duration::ZERO);
            let claim = if may_ask { child.claim(key, weight, terms)? } else { denied(child, seen) };
            let (after, is_certain, is_full) = match claim {
                Claim::Started(permit) => return Ok(Claim::Started(self.started(*i, permit))),
                Claim::Place { place, after } => {
                    let grace = Some(terms.grace.max(terms.asked)).filter(|grace| !grace.is_zero());
                    return Ok(Claim::Place { place: self.hand_out_place(*i, place, self.wish(start, grace)), after });
                }
                Claim::Denied { after, is_certain } => (after, is_certain, false),
                Claim::Behind { .. } => (LOOK_AGAIN, false, false),
                Claim::Full { after } => (after, true, true),
            };
            (least, are_certain, are_full) = (least.min(after), are_certain && is_certain, are_full && is_full);
        }
        Ok(if are_full {
            Claim::Full { after: least }
        } else {
            Claim::Denied { after: least, is_certain: are_certain }
        })
    }
}

/// Returns for how long an alternative certainly admits nothing more. A job may end at any time.
fn known_wait(child: &Child, seen: &Decision) -> Duration {
    if child.has_places() { seen.retry_after } else { seen.retry_after.min(seen.reset_after) }
}

/// Returns the reply of an alternative where nothing can be had now.
fn denied(child: &Child, seen: &Decision) -> Claim {
    let after = known_wait(child, seen);
    Claim::Denied { after: after.max(LOOK_AGAIN), is_certain: after > LOOK_AGAIN }
}
