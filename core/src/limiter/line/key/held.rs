//! The places that a line holds, and their way back.

use super::queue::{LAST, Wanted};
use super::sooner::WORTH_MOVING;
use super::{KeyLine, Out, Pass};
use crate::error::Error;
use crate::limiter::line::{Outcome, slice};
use crate::limiter::{Limiter, Presented};
use crate::permit::RawPermit;
use crate::state::Unwritten;
use crate::time::{Tick, patience_ticks};
use crate::waiting::MayWait;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct HeldPlace {
    pub place: RawPermit,
    pub wanted: Wanted,
    pub ready: Tick,
    pub unwritten: Vec<Unwritten>,
}

impl KeyLine {
    /// Holds a place that is ready after `after`, counted from a moment between `asked` and `now`. It comes after the
    /// places that were taken before it, unless it is certainly ready sooner. The order matters: a start gives back the
    /// unused part of its grace only if those before it have started.
    pub fn hold(&mut self, place: RawPermit, wanted: Wanted, after: Duration, (asked, now): (Tick, Tick)) {
        let after = patience_ticks(after);
        let latest = now.saturating_add(after).saturating_add(WORTH_MOVING);
        let at = self.places.partition_point(|held| held.ready <= latest);
        let before = at.checked_sub(1).map_or(0, |before| self.places[before].ready);
        let (ready, unwritten) = (asked.saturating_add(after).max(before), std::mem::take(&mut self.unwritten));
        self.places.insert(at, HeldPlace { place, wanted, ready, unwritten });
        self.is_moved = true;
    }

    /// Puts the first place back to the front. The places behind it become ready no sooner.
    pub(super) fn put_back(&mut self, place: RawPermit, wanted: Wanted, ready: Tick) {
        self.places.iter_mut().take_while(|next| next.ready < ready).for_each(|next| next.ready = ready);
        let unwritten = std::mem::take(&mut self.unwritten);
        self.places.push_front(HeldPlace { place, wanted, ready, unwritten });
    }

    /// Removes all waiters, and gives their places back.
    pub fn end(&mut self, limiter: &dyn Limiter) {
        self.give_back_all(limiter);
        self.give_back_rest(limiter);
        self.waiters.clear();
        self.taken.drain(..).for_each(|taken| taken.give_back(limiter));
        self.count(limiter);
        self.told.clear();
    }

    /// Ends all waits with this error.
    pub(super) fn close(&mut self, pass: &Pass, error: &Error, out: &mut Out) {
        (self.is_unfinished, self.is_blocked) = (false, false);
        self.taken.drain(..).for_each(|taken| {
            taken.give_back(pass.limiter);
            out.push((taken.rank, Outcome::Failed(error.clone())));
        });
        self.give_back_surplus(pass.limiter);
        self.give_back_all(pass.limiter);
        while let Some((&rank, _)) = self.waiters.first_key_value() {
            self.forget(rank);
            out.push((rank, Outcome::Failed(error.clone())));
        }
        // (The store is closed.)
        self.told.clear();
        self.count(pass.limiter);
    }

    /// Gives all places back, the last one first, so that no other place is queued behind it.
    pub fn give_back_all(&mut self, limiter: &dyn Limiter) {
        self.is_moved = true;
        while let Some(held) = self.places.pop_back() {
            self.give_back(limiter, held.place);
        }
    }

    /// Gives a place back, or leaves that to a pass that may wait.
    pub(super) fn give_back(&mut self, limiter: &dyn Limiter, place: RawPermit) {
        limiter.take_back_charge(&self.shown, &place);
        self.give_back_uncharged(limiter, place);
    }

    pub(super) fn give_back_uncharged(&mut self, limiter: &dyn Limiter, place: RawPermit) {
        let since = *self.blocked_since.get_or_insert_with(Instant::now);
        let give_back = || MayWait::in_slice(since, slice(limiter), || limiter.cancel_place(&place));
        // If it fails otherwise, the place expires unused.
        if self.is_blocked || matches!(give_back(), Err(Error::WouldWait)) {
            self.surplus.push(place);
            (self.is_blocked, self.blocked_until) = (true, 0);
        }
    }

    /// Gives back what a pass that may wait would, because there is no such pass any more.
    pub(super) fn give_back_rest(&mut self, limiter: &dyn Limiter) {
        // (A user-defined limiter may never have an answer. A store has one when its timeout is over.)
        while !self.surplus.is_empty() && MayWait::here() == MayWait::UntilTimeout && !limiter.has_custom() {
            self.is_blocked = false;
            self.give_back_surplus(limiter);
        }
    }

    /// Gives back what a pass that must not wait could not: places that nobody wants, or that came too late. Returns whether nothing
    /// else is left to do for a pass that may wait.
    pub fn give_back_late(&mut self, pass: &Pass) -> bool {
        if !self.is_blocked || self.has_taken() {
            return false;
        }
        let is_late = |held: &HeldPlace| pass.limiter.is_late(&held.place);
        let late = self.places.iter().take_while(|held| is_late(held)).count();
        if late == 0 && self.surplus.is_empty() {
            return false;
        }
        for HeldPlace { place, .. } in self.places.drain(..late) {
            // It is exchanged, and counted as lost.
            match pass.limiter.start(&place) {
                Ok(Presented::Wait { place: fresh, .. }) => self.surplus.push(fresh),
                Ok(Presented::Started(permit)) => drop(pass.limiter.cancel(&permit)),
                Err(_) => self.surplus.push(place),
            }
        }
        (self.is_blocked, self.ask_at, self.is_moved) = (false, 0, true);
        self.give_back_surplus(pass.limiter);
        self.count(pass.limiter);
        !self.is_blocked
    }

    pub(super) fn give_back_surplus(&mut self, limiter: &dyn Limiter) {
        if !self.surplus.is_empty() {
            for place in std::mem::take(&mut self.surplus) {
                self.give_back_uncharged(limiter, place);
            }
            if self.surplus.is_empty() {
                self.blocked_since = None;
            }
        }
    }

    /// Gives a place for this back that no waiter is left for.
    pub(super) fn give_back_unwanted(&mut self, limiter: &dyn Limiter, wanted: &Wanted) {
        let held = self.places.iter().filter(|held| held.wanted == *wanted).count();
        let waiters = self.by_wanted.range(wanted.entries(LAST)).take(held).count();
        if held > waiters
            && let Some(last) = self.places.iter().rposition(|held| held.wanted == *wanted)
            && let Some(held) = self.places.remove(last)
        {
            self.give_back(limiter, held.place);
            self.ask_at = 0;
        }
    }
}
