//! Places of a composite: a place at the child with the longest wait.
//!
//! A start needs all children at the same moment, but only one of them determines when. So a place is reserved at the
//! child that is the *slowest* at the time of the request, and nothing is held at the others: callers that use these
//! directly are not delayed. When the place is presented, after it became ready:
//!
//! 1. The other children are claimed, one after the other. If one denies, those before it get their units back. If it
//!    has places, one of these is taken: it is the slowest now. The turn at the first child is kept, except by a joint
//!    start, which gives it back.
//! 2. The places are presented. A place that must be exchanged (it became late, or was overtaken by a gate or another
//!    policy) cancels what was claimed and started, and the start waits for the new place.
//!
//! So a waiter holds only places while it waits. Starts with the same charges share a line, and one of them waits for the
//! second child at a time, so a turn that is kept is used: without that, a place in a long queue would be lost to a moment
//! without units in a short one. Joint starts with other keys are in other lines. When they kept turns, too, waiters that
//! held places at each other's next child let all of them pass; and when they held one place alone, those who came from one
//! child found the other taken ahead, and the reverse. So joint starts keep no turn, and **look ahead**:
//!
//! 3. A waiter with a place that is ready in `t` takes one at another child, for the same moment, as soon as the queue
//!    there is about `t` long: it would be denied, and its place there delays nobody who came before. If the queue is longer
//!    by more than a grace, that child is the slowest now, and the place there is the only one, until the waiter looks again.
//! 4. It looks again when half of the difference is over, or a 32nd of its wait, if that takes longer: at most 22 times until
//!    its wait is half as long, even if two queues keep a small difference.
//!
//! 5. Starts before a place may have been places themselves when it was taken, and counted from the end of their grace. So at each
//!    look its moment is computed again, if it is the only one. Otherwise each window of a queue was longer by a grace.
//!
//! So places at several children are ready at the same moment, and their turns are used. If a child without places denies, or
//! one whose queue is full, the place is kept: what it waits for ends without it. A place that became late counts for one
//! window, as a start would.
//!
//! Starts that charge the same keys share a line, which presents the place of its first waiter, so within it none is
//! passed. Lines with other keys have an order only at one child: that of its places. If they share several children, it is
//! not determined which of them is first.

use super::group::end_all;
use super::out::{Out, Part, State, Wish};
use super::{Behind, Child, CompositeLimiter, attempt_all, cancel_all};
use crate::charges::Split;
use crate::decision::LOOK_AGAIN;
use crate::error::Result;
use crate::limiter::internal::When;
use crate::limiter::line::{Ahead, Claim, Terms, claim_by_calls};
use crate::limiter::{Presented, Reserved, unsupported};
use crate::permit::{Kind, RawPermit};
use crate::time::from_ticks;
use crate::waiting::MayWait;
use std::sync::Arc;
use std::time::Duration;

/// How often a waiter presents exchanged places that are ready immediately, before it has to wait.
pub(super) const ROUNDS: usize = 4;

/// A place that is presented, and its parts.
struct Presentation<'a> {
    /// The children that it starts at.
    children: &'a [Child],
    wish: &'a Wish,
    /// What each of them is charged.
    charges: Split<'a>,
    /// Its places; after the start, its permits.
    held: &'a mut Vec<Part>,
}

/// The result of looking ahead.
enum Seen {
    /// Its last place is at a child that is slower than the others.
    Slower,
    /// The time after which to look again.
    Again(Option<Duration>),
}

impl<'a> Presentation<'a> {
    /// Starts, or returns the time after which to retry.
    fn present(&mut self, rounds: usize) -> Result<Option<Duration>> {
        for _ in 0..rounds {
            let after = self.after();
            if !after.is_zero() {
                return Ok(Some(after));
            }
            let is_late = |part: &Part| self.children[part.child].is_late(&part.permit);
            let late: Vec<usize> = (0..self.held.len()).filter(|&i| is_late(&self.held[i])).collect();
            // Other children are claimed when all places are valid, and places are exchanged when the others have free
            // units.
            let claimed =
                if late.is_empty() { self.claim_others()? } else { self.look_at_others()?.map(|()| Vec::new()) };
            match claimed {
                Err(after) => return Ok(Some(after)),
                Ok(claimed) if late.is_empty() => {
                    if self.start(claimed)? {
                        return Ok(None);
                    }
                }
                Ok(_) => {
                    for i in late {
                        self.present_one(i)?;
                    }
                    self.keep_slowest()?;
                }
            }
        }
        Ok(Some(self.after()))
    }

    fn is_joint(&self) -> bool {
        !self.charges.named.is_empty()
    }

    /// Looks when its places are ready, and whether other children will deny then. Returns how long not to look again; `None`: it
    /// need not.
    fn look_ahead(&mut self) -> Result<Option<Duration>> {
        let again = self.look_again()?;
        let queues = if self.is_joint() { self.look_at_queues()? } else { None };
        Ok(again.into_iter().chain(queues).min())
    }

    /// Looks when its place is ready, which may be sooner. (Several have to stay near each other, or the soonest would be late.)
    fn look_again(&mut self) -> Result<Option<Duration>> {
        let [part] = self.held.as_mut_slice() else { return Ok(None) };
        // (5)
        let Some(ahead) = self.children[part.child].look_ahead(&part.permit)? else { return Ok(None) };
        part.permit = ahead.place;
        Ok(ahead.again)
    }

    /// Takes places at the children that will deny when its own is ready. Returns how long not to look again; `None`: it
    /// need not.
    fn look_at_queues(&mut self) -> Result<Option<Duration>> {
        for _ in 0..self.children.len() {
            match self.look_ahead_once()? {
                // (3)
                Seen::Slower => self.keep_slowest()?,
                Seen::Again(after) => return Ok(after),
            }
        }
        Ok(Some(self.after() / 2))
    }

    fn look_ahead_once(&mut self) -> Result<Seen> {
        let (left, near) = (self.after(), self.tolerance());
        let mut again: Option<Duration> = None;
        for (i, child) in self.others().into_iter().filter(|(_, child)| child.has_places()) {
            let (key, weight) = self.charges.at(i);
            let queue = child.quiet_peek(key, weight)?.retry_after;
            let early = left.saturating_sub(queue);
            if queue.is_zero() || early > near {
                // (4)
                let next = (early > near).then(|| (early / 2).max(left / 32));
                again = again.into_iter().chain(next).min();
                continue;
            }
            let when = When { delay: left, max_wait: None, grace: self.wish.grace, is_waiter: true };
            // (One whose queue is full is asked at the start.)
            if let Reserved::Place { place, after } = child.quiet_reserve(key, weight, when)? {
                self.held.push(Part { child: i, permit: place });
                if after > left.saturating_add(near) {
                    return Ok(Seen::Slower);
                }
            }
        }
        Ok(Seen::Again(again))
    }

    /// Returns by how much its places may be ready at different moments: half of the shortest grace.
    fn tolerance(&self) -> Duration {
        let grace = |part: &Part| match part.permit.kind() {
            Some(Kind::Timed(place)) => from_ticks(place.stamp.saturating_sub(place.ready)),
            _ => Duration::ZERO,
        };
        self.held.iter().map(grace).min().unwrap_or_default() / 2
    }

    /// Gives the places of a joint start back that are ready much sooner than its last one: they would be late.
    fn keep_slowest(&mut self) -> Result<()> {
        let (last, near) = (self.after(), self.tolerance());
        let is_joint = self.is_joint();
        let ready = |part: &Part| self.children[part.child].ready_in(&part.permit).unwrap_or_default();
        let (kept, sooner) = self.held.iter().partition(|part| !is_joint || ready(part).saturating_add(near) >= last);
        let sooner: Vec<Part> = sooner;
        *self.held = kept;
        MayWait::to_undo(|| end_all(self.children, &sooner, |child, place| child.cancel_place(place)))
    }

    /// Returns the time until all of its places are ready.
    fn after(&self) -> Duration {
        let ready = self.held.iter().filter_map(|part| self.children[part.child].ready_in(&part.permit));
        ready.max().unwrap_or_default()
    }

    fn others(&self) -> Vec<(usize, &'a Child)> {
        let is_other = |(i, _): &(usize, &Child)| self.held.iter().all(|part| part.child != *i);
        self.children.iter().enumerate().filter(is_other).collect()
    }

    /// Checks whether the children without a place would admit it. If not, returns when to retry.
    fn look_at_others(&mut self) -> Result<std::result::Result<(), Duration>> {
        for (i, child) in self.others() {
            let (key, weight) = self.charges.at(i);
            let seen = child.quiet_peek(key, weight)?;
            if !seen.admitted {
                return self.wait_for(i, seen.retry_after).map(Err);
            }
        }
        Ok(Ok(()))
    }

    /// Claims the children without a place: all, or none and when to retry.
    fn claim_others(&mut self) -> Result<std::result::Result<Vec<Part>, Duration>> {
        // (1)
        let others = self.others().into_iter().map(|(i, _)| i);
        match attempt_all(self.children, &self.charges, others)? {
            Ok(claimed) => Ok(Ok(claimed)),
            Err((i, after)) => self.wait_for(i, after).map(Err),
        }
    }

    /// Waits for a child that denied: at a place there, if it has places. Returns when to retry.
    fn wait_for(&mut self, i: usize, after: Duration) -> Result<Duration> {
        let (child, (key, weight)) = (&self.children[i], self.charges.at(i));
        let after = if child.has_places() {
            // (1): this child is the slowest now. Its wait was counted, or will be when it ends.
            let when = When { delay: Duration::ZERO, max_wait: None, grace: self.wish.grace, is_waiter: true };
            match child.quiet_reserve(key, weight, when)? {
                Reserved::Place { place, after } => {
                    self.held.push(Part { child: i, permit: place });
                    self.keep_slowest()?;
                    after
                }
                // The queue is full: it has the turn, until a caller in the queue has started.
                Reserved::Denied(after) => after.min(LOOK_AGAIN),
            }
        } else {
            // A gate opens at a known time, but a start may complete at any time.
            let seen = child.quiet_peek(key, weight)?;
            after.min(seen.retry_after.min(seen.reset_after).max(LOOK_AGAIN))
        };
        // Units may have come back since. But to a line, zero means that its place was presented too late.
        Ok(after.max(Duration::from_micros(1)))
    }

    /// Presents one place. Returns whether it became a start; otherwise it was exchanged.
    fn present_one(&mut self, i: usize) -> Result<bool> {
        let part = &mut self.held[i];
        let presented = self.children[part.child].quiet_present(&part.permit)?;
        let (Presented::Started(permit) | Presented::Wait { place: permit, .. }) = presented;
        part.permit = permit;
        Ok(matches!(presented, Presented::Started(_)))
    }

    /// Starts with all places; or with none, gives the claimed units back and returns `false`.
    fn start(&mut self, claimed: Vec<Part>) -> Result<bool> {
        for i in 0..self.held.len() {
            let started = self.present_one(i);
            if !matches!(started, Ok(true)) {
                // (2): these are starts now.
                let mut back: Vec<Part> = self.held.drain(..i).collect();
                back.extend(claimed);
                let given_back = cancel_all(self.children, &back);
                let kept = started.and(given_back).and_then(|()| self.keep_slowest());
                return kept.map(|()| false);
            }
        }
        self.held.extend(claimed);
        Ok(true)
    }
}

impl CompositeLimiter {
    /// Takes a place at the slowest of the request's children.
    fn reserve_for(&self, wish: Wish, when: When) -> Result<Reserved> {
        if self.group.has_shared() {
            return unsupported("reserve", "a composite with a part that tenants share: its starts are in their turn");
        }
        let children = &self.group.children()?[..wish.children];
        let charges = self.group.split(&wish.key, wish.weight)?;
        let mut slowest = None;
        // All children are asked: a child that rejects this weight does so before anything is taken.
        for (i, child) in children.iter().enumerate() {
            let (key, weight) = charges.at(i);
            let after = child.quiet_peek(key, weight)?.retry_after;
            if child.has_places() && slowest.is_none_or(|(_, most)| after > most) {
                slowest = Some((i, after));
            }
        }
        let Some((i, _)) = slowest else {
            return unsupported("reserve", "a composite without a timed limit: the end of jobs is unknown");
        };
        let (key, weight) = charges.at(i);
        Ok(match children[i].quiet_reserve(key, weight, when)? {
            Reserved::Denied(after) => Reserved::Denied(after),
            Reserved::Place { place, after } => {
                let place = self.hand_out_place(wish, vec![Part { child: i, permit: place }]);
                Reserved::Place { place, after }
            }
        })
    }

    pub(super) fn hand_out_place(&self, wish: Wish, parts: Vec<Part>) -> RawPermit {
        let has_own_weights = self.group.split(&wish.key, wish.weight).is_ok_and(|charges| charges.has_own_weights());
        self.group.hand_out(Out { parts, state: State::Place, wish: Some(Arc::new(wish)), has_own_weights })
    }

    pub(super) fn do_reserve(&self, key: &str, weight: u64, when: When) -> Result<Reserved> {
        self.group.split_start(key, weight)?;
        let wish = Wish { key: key.into(), weight, grace: when.grace, children: self.group.children()?.len() };
        self.reserve_for(wish, when)
    }

    /// Presents a place: a waiter in [`ROUNDS`], others in one, so that a late place does not start.
    pub(super) fn present_in(&self, place: &RawPermit, rounds: usize) -> Result<Presented> {
        if let Some(error) = self.closed_store() {
            return Err(error);
        }
        self.present_by(place, |turn| turn.present(rounds))
    }

    fn present_by(
        &self,
        place: &RawPermit,
        present: impl FnOnce(&mut Presentation) -> Result<Option<Duration>>,
    ) -> Result<Presented> {
        let again = |wish, when| self.reserve_for(wish, when);
        self.group.present(place, again, |wish, held| {
            let charges = self.group.split(&wish.key, wish.weight)?;
            let children = &self.group.children()?[..wish.children];
            present(&mut Presentation { children, wish, charges, held })
        })
    }

    /// Answers a line's request to look ahead for a place that waits.
    pub(super) fn do_look_ahead(&self, place: &RawPermit) -> Result<Option<Ahead>> {
        let mut again = None;
        let held = self.present_by(place, |turn| {
            again = turn.look_ahead()?;
            Ok(Some(turn.after()))
        })?;
        let Presented::Wait { place, after } = held else { return Ok(None) };
        Ok(Some(Ahead { place, after, again }))
    }

    /// Returns how long a child without places has no free units, if that is certain. A waiter for such a child has no
    /// use for a place elsewhere.
    fn busy(&self, charges: &Split) -> Result<Option<Duration>> {
        let mut busy = None;
        for (i, child) in self.group.children()?.iter().enumerate().filter(|(_, child)| !child.has_places()) {
            let (key, weight) = charges.at(i);
            let seen = child.quiet_peek(key, weight)?;
            if !seen.admitted {
                busy = busy.max(Some(seen.retry_after.min(seen.reset_after)));
            }
        }
        Ok(busy)
    }

    /// Answers a line's request.
    pub(super) fn do_claim(&self, (key, weight): (&str, u64), terms: Terms) -> Result<Claim> {
        if let Some(closed) = self.busy(&self.group.split_start(key, weight)?)? {
            return Ok(Claim::Denied { after: closed.max(LOOK_AGAIN), is_certain: closed > LOOK_AGAIN });
        }
        claim_by_calls(self, (key, weight), terms)
    }
}
