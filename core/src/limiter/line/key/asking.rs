//! What a line asks its limiter for: starts, or places in the future, for the first waiters that have none.

use super::pausing::{ASKS_APART, LOOK_SOONER};
use super::queue::Wanted;
use super::{KeyLine, Out, Pass, Quiet};
use crate::algorithm::heads;
use crate::decision::LOOK_AGAIN;
use crate::error::{Error, Result};
use crate::limiter::line::{Asker, Claim, First, LineTurn, Rank, Terms};
use crate::policy::MAX_DEFAULT_GRACE;
use crate::time::{Tick, from_ticks, patience_ticks};
use std::time::Duration;

/// The least time ahead for which places are taken, in ticks.
pub(in crate::limiter) const HORIZON: Tick = 100_000;

/// The same where a server has to be asked, if units are returned to it.
const HORIZON_ON_A_SERVER: Tick = 250_000;

/// How long a server knows a waiter that does not ask again, in ticks, with few keys: more than twice the longest pause.
const LIFE: Tick = 300_000;

/// The same with any number of keys.
const LONGEST_LIFE: Tick = 2_000_000;

impl KeyLine {
    /// Returns whether the next place may be at any distance: it is the line's only one, and no other line has to know of
    /// its waiters, nor may have to. Otherwise whoever holds a far place would pass those who ask meanwhile and are more urgent.
    /// And where units are returned to a server, they are free sooner than it can tell. Whoever starts with them after a far
    /// place was taken counts from the time of that place.
    pub(super) fn has_any_distance(&self, is_shared: bool) -> bool {
        let is_alone = !is_shared && self.turn.is_none() && !self.shown.get().is_some();
        is_alone && self.places.is_empty() && self.returned == 0
    }

    /// Returns how far ahead places are taken. It is far enough that a late driver finds the places it could have
    /// started with. It is not so far that the preceding starts have not happened, because these give back the unused
    /// part of their grace. Where units are returned to a server, it grows with the wait of the waiter that asks: others take
    /// the units as they become free, and one that needs many at once would never have a place.
    pub(super) fn horizon(&self, window: Tick, waited: Tick) -> Tick {
        let (least, most) = if self.returned > 0 { (HORIZON_ON_A_SERVER, waited) } else { (HORIZON, 0) };
        least.max(2 * self.late).max(self.asked()).min(window / 2).max(most)
    }

    /// Returns the grace that this line needs, if it is more than the default.
    pub(super) fn grace(&self, window: Tick) -> Duration {
        let wanted = 2 * self.late;
        if wanted <= (window / 40).min(MAX_DEFAULT_GRACE) { Duration::ZERO } else { from_ticks(wanted.min(window / 4)) }
    }

    /// Returns the longest grace that a waiter here requested. A place serves the waiter that is first when it is
    /// ready, so all places get this grace.
    pub(super) fn asked(&self) -> Tick {
        self.graces.last().map_or(0, |(grace, _)| *grace)
    }

    /// Takes places, or starts, for the first waiters that have none. `asked` is the reply for the first of them, if
    /// the limiter was just asked.
    pub(super) fn fill(&mut self, pass: &Pass, mut asked: Option<Claim>, out: &mut Out) {
        let is_shared = pass.limiter.is_shared();
        // The first request is made even in a late thread, so that a joining caller learns whether units are free.
        let mut is_first = true;
        while let Some(rank) = self.first_without() {
            // (The first request may open the limit.)
            let (now, window, is_bounded) = (pass.now(), pass.window(), pass.limiter.has_bounded_queue());
            if self.quiet.is_some_and(|quiet| quiet.rank != rank) {
                (self.quiet, self.ask_at) = (None, self.ask_at.min(now));
            }
            // In a bounded queue, all waiters have to learn the outcome immediately.
            if now < self.ask_at && !is_bounded {
                return;
            }
            if pass.is_over() && !is_first || pass.is_full(out) && !is_bounded {
                self.is_unfinished = true;
                return;
            }
            if self.is_quiet(pass, rank) {
                return;
            }
            is_first = false;
            if self.places.is_empty() {
                self.returned = pass.limiter.returned();
            }
            let first = &self.waiters[&rank];
            let (wanted, deadline, share) = (first.wanted.clone(), first.deadline, first.share);
            let in_turn = first.is_hurried() && !is_shared;
            let (waited, life) = (now.saturating_sub(first.since), pass.among_keys(LIFE).min(LONGEST_LIFE));
            let asker = Asker { priority: rank.0, since: first.since, waited, life };
            let left = deadline.saturating_sub(now);
            let horizon = self.horizon(window, now.saturating_sub(first.since));
            let most = if self.has_any_distance(is_shared) || is_bounded { left } else { left.min(horizon) };
            let patience = (most != Tick::MAX).then(|| from_ticks(most));
            let (grace, as_place) = (self.grace(window), !self.places.is_empty());
            let terms = Terms {
                most: patience,
                grace,
                asked: from_ticks(self.asked()),
                as_place,
                in_turn,
                share,
                waiter: (!is_shared && !in_turn).then_some(asker),
                ..Terms::NOW
            };
            let has_asked = asked.is_some();
            // A later end rings once more.
            let bell = if terms.waiter.is_some() { self.bell_of(pass, &wanted) } else { None };
            match self.claim(pass, (rank, &wanted), terms, asked.take()) {
                Ok(Claim::Started(permit)) => {
                    self.looks = 0;
                    // The server knows that.
                    let told = self.told.len();
                    self.told.retain(|told| told.rank != rank);
                    if self.told.len() < told {
                        self.note_stay(pass, &wanted, now);
                        (self.turn, self.behind) = (None, [0; 2]);
                    }
                    self.admit(pass, &wanted, permit, out);
                }
                Ok(Claim::Place { place, after }) => {
                    if self.places.is_empty() {
                        (self.look_sooner_at, self.ask_sooner_at) = (now + LOOK_SOONER, now + LOOK_SOONER);
                        self.look_elsewhere_at = pass.limiter.may_start_elsewhere().then(|| now + self.poll(pass));
                        let (left, is_joint) = (patience_ticks(after), self.is_joint);
                        self.look_ahead_at =
                            (is_joint || left > window / 2).then_some(if is_joint { now } else { now + left / 2 });
                    }
                    self.hold(place, wanted, after, (now, pass.now()));
                }
                Ok(Claim::Denied { after, is_certain }) => {
                    let after_ticks = patience_ticks(after);
                    if bell.is_some() && !has_asked {
                        self.note_told(pass, (rank, &wanted), asker);
                    }
                    if deadline <= now || is_certain && after_ticks > left {
                        self.send_away(pass, rank, after, out);
                        continue;
                    }
                    self.ask_at = now.saturating_add(self.pause(pass, after_ticks, is_certain, horizon));
                    self.ask_returned_at = now + pass.among_keys(ASKS_APART);
                    return;
                }
                Ok(Claim::Behind { ahead, own_for }) => {
                    self.note_told(pass, (rank, &wanted), asker);
                    if deadline <= now {
                        self.send_away(pass, rank, LOOK_AGAIN, out);
                        continue;
                    }
                    self.turn = Some((LineTurn::behind(ahead), self.behind_since(ahead, now)));
                    self.ask_at = now.saturating_add(self.pause(pass, 0, false, horizon));
                    if let (Some(bell), Some(own_for)) = (bell, own_for) {
                        // The server makes a waiter known again that has half of its life left.
                        let until = now.saturating_add(own_for.min(life / 2 - life / 16));
                        self.quiet = Some(Quiet { rank, bell, until });
                        self.is_quiet(pass, rank);
                    }
                    return;
                }
                Ok(Claim::Full { after }) => self.send_away(pass, rank, after, out),
                Err(Error::WouldWait) => return,
                Err(error) => self.fail(pass, rank, error, out),
            }
        }
    }

    /// Asks for a start or a place for the first waiter that has none. Where the lines of all processes are one, only the
    /// line that has the turn gets any. (A line that nobody has to know of is not shown.)
    pub(super) fn claim(
        &mut self,
        pass: &Pass,
        (rank, wanted): (Rank, &Wanted),
        terms: Terms,
        asked: Option<Claim>,
    ) -> Result<Claim> {
        let (key, weight) = (wanted.key(pass.key), wanted.weight);
        if terms.in_turn {
            self.turn = None;
            self.unwritten.clear();
            return asked.map_or_else(|| self.ask(pass, |limiter| limiter.claim(key, weight, terms)), Ok);
        }
        let denied = Claim::Denied { after: LOOK_AGAIN, is_certain: false };
        let asked_none = asked.is_none() && self.shown.get().is_some();
        let claim = match asked {
            Some(claim) => {
                self.unwritten.clear();
                claim
            }
            None if self.shown.get().is_some() => denied,
            None => self.ask(pass, |limiter| limiter.claim(key, weight, terms))?,
        };
        let Claim::Denied { after, is_certain } = claim else { return Ok(claim) };
        let left = self.waiters[&rank].deadline.saturating_sub(pass.now());
        if !self.shown.get().is_some() && (left == 0 || is_certain && patience_ticks(after) > left) {
            // It does not wait.
            return Ok(claim);
        }
        let first = self.waiters[&rank].shown_as(rank);
        let turn = self.look(pass, key, first)?;
        let waited = pass.now().saturating_sub(first.since);
        let near = from_ticks(self.horizon(pass.window(), waited));
        let most =
            if pass.limiter.has_places() { Some(terms.most.map_or(near, |most| most.min(near))) } else { terms.most };
        let in_turn = Terms { in_turn: true, most, tag: heads::tag(first.priority, first.since), ..terms };
        match turn {
            Some(turn) if turn.is_ours() => self.claim_in_turn(pass, (rank, wanted), in_turn, left),
            Some(turn) => {
                // Those that have the turn overtake nobody.
                self.position = None;
                // What the others want is not certain: they may be dead, or leave.
                let is_certain = left != Tick::MAX && {
                    let seen = self.ask_alone(pass, |limiter| limiter.peek_again(key, weight))?;
                    let has_places = pass.limiter.has_places();
                    let known = if has_places { seen.retry_after } else { seen.retry_after.min(seen.reset_after) };
                    !seen.admitted && patience_ticks(known) > left
                };
                let after = pass.limiter.soonest(pass.key, turn.units.saturating_add(weight));
                let after = after.saturating_add(from_ticks(turn.not_before().max(if is_certain { left } else { 0 })));
                Ok(Claim::Denied { after: after.max(LOOK_AGAIN), is_certain })
            }
            // The look failed.
            None if asked_none => self.ask(pass, |limiter| limiter.claim(key, weight, in_turn)),
            None => Ok(claim),
        }
    }

    /// Shows the first waiter that has no place to the lines of all processes, and returns where that is among them. `None`:
    /// there is no such line, or the look failed.
    pub(super) fn look(&mut self, pass: &Pass, key: &str, first: First) -> Result<Option<LineTurn>> {
        let shown = std::mem::take(&mut self.shown);
        let turn = self.ask_alone(pass, |limiter| limiter.line_up(key, first, &shown));
        self.shown = shown;
        let turn = match turn {
            Err(Error::WouldWait) => return Err(Error::WouldWait),
            // The limiter reports its failure when it is asked for a start.
            turn => turn.unwrap_or(None),
        };
        let since = self.turn.filter(|(before, _)| turn.is_some_and(|turn| turn.ahead == before.ahead));
        self.turn = turn.map(|turn| (turn, since.map_or_else(|| pass.now(), |(_, since)| since)));
        Ok(turn)
    }
}
