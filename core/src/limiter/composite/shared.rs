//! A composite with a part that tenants share, such as a budget of all tenants with a bound for each.
//!
//! A place would be taken out of turn. So such a composite has none: its waiters start when all parts admit, and the order among
//! them is that of its first shared part. A line is shown there while the other parts would admit its first waiter. While one of
//! them does not, it is not shown, and holds up nobody; when it is again, its tenant has had no more than before.
//!
//! A start takes the other parts first, and is charged to its tenant when nothing can fail any more.

use super::out::Part;
use super::{Child, CompositeLimiter, cancel_all};
use crate::algorithm::joint::take_all;
use crate::charges::Split;
use crate::decision::LOOK_AGAIN;
use crate::error::Result;
use crate::limiter::Attempt;
use crate::limiter::line::{Claim, First, LineTurn, Shown, Terms};
use crate::permit::RawPermit;
use crate::waiting::MayWait;
use std::cell::Cell;
use std::time::Duration;

impl CompositeLimiter {
    /// Its first shared part.
    pub(super) fn shared_part(&self) -> Option<(usize, &Child)> {
        if !self.group.has_shared() {
            return None;
        }
        self.group.all().iter().enumerate().find(|(_, child)| child.is_shared())
    }

    /// Returns how long the other parts do not admit a start, and whether that is certain. `None`: they do. (Of another shared
    /// part it counts whether it has the units, not whose turn it is there: it is no reason to hold up others in the first.)
    fn others_deny(&self, charges: &Split) -> Result<Option<(Duration, bool)>> {
        let (mut longest, first) = (None, self.shared_part().map(|(i, _)| i));
        for (i, child) in self.group.children()?.iter().enumerate().filter(|(i, _)| Some(*i) != first) {
            let (key, weight) = charges.at(i);
            let seen = child.peek_again(key, weight)?;
            if !seen.admitted {
                longest = longest.max(Some((seen.retry_after.max(Duration::from_micros(1)), child.has_places())));
            }
        }
        Ok(longest)
    }

    /// Answers a line's request.
    pub(super) fn claim_in_turn(&self, (key, weight): (&str, u64), terms: Terms) -> Result<Claim> {
        let charges = self.group.split_start(key, weight)?;
        if let Some((after, is_certain)) = self.others_deny(&charges)? {
            return Ok(Claim::Denied { after, is_certain });
        }
        Ok(self.take_in_turn(&charges, Some(terms))?.map_or_else(|(_, _, denial)| denial, Claim::Started))
    }

    /// Takes the units of the other parts, and then of the shared ones: all or none. `terms`: of a line. Returns which part
    /// denied, or a permit.
    pub(super) fn take_in_turn(
        &self,
        charges: &Split,
        terms: Option<Terms>,
    ) -> Result<Result<RawPermit, (usize, &Child, Claim)>> {
        let children = self.group.children()?;
        let (shared, others): (Vec<usize>, Vec<usize>) = (0..children.len()).partition(|i| children[*i].is_shared());
        let take = |i: usize| {
            let (child, (key, weight)) = (&children[i], charges.at(i));
            let claim = match terms.filter(|_| child.is_shared()) {
                Some(terms) => {
                    child.claim(key, weight, Terms { most: Some(Duration::ZERO), as_place: false, ..terms })?
                }
                None => match child.quiet_attempt(key, weight)? {
                    Attempt::Admitted(permit) => Claim::Started(permit),
                    Attempt::Denied(after) => Claim::Denied { after, is_certain: false },
                },
            };
            Ok(match claim {
                Claim::Started(permit) => Ok(Part { child: i, permit }),
                // It had no patience for one.
                Claim::Place { place, after } => {
                    MayWait::to_undo(|| child.cancel_place(&place))?;
                    Err(Claim::Denied { after, is_certain: false })
                }
                denial => Err(denial),
            })
        };
        let taken = take_all(others.into_iter().chain(shared), take, |taken| cancel_all(children, taken))?;
        let taken = taken.map(|mut parts| {
            parts.sort_by_key(|part| part.child);
            self.hand_out_start(charges, parts)
        });
        Ok(taken.map_err(|(i, denial)| (i, &children[i], denial)))
    }

    pub(super) fn do_line_up(&self, key: &str, first: First, shown: &Cell<Shown>) -> Result<Option<LineTurn>> {
        let Some((i, child)) = self.shared_part() else { return Ok(None) };
        let charges = self.group.split(key, first.units)?;
        if self.others_deny(&charges)?.is_some() {
            child.show_next(None, shown);
            return Ok(None);
        }
        let (key, units) = charges.at(i);
        child.line_up(key, First { units, ..first }, shown)
    }

    /// The key of a line at its shared part, and that part.
    pub(super) fn at_shared_part<R>(&self, key: &str, f: impl FnOnce(&Child, &str) -> Option<R>) -> Option<R> {
        let (i, child) = self.shared_part()?;
        let charges = self.group.split(key, 1).ok()?;
        f(child, charges.at(i).0)
    }
}

/// How long a caller that was denied waits before it tries again.
pub(super) fn after(denial: &Claim) -> Duration {
    match denial {
        Claim::Denied { after, .. } | Claim::Full { after } | Claim::Place { after, .. } => *after,
        Claim::Started(_) | Claim::Behind { .. } => LOOK_AGAIN,
    }
}
