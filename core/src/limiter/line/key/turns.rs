//! The waiters of one key that start elsewhere: each leaves with its place, or with the notice that units are free.

use super::held::HeldPlace;
use super::queue::Waiting;
use super::{Claim, KeyLine, LOOK_SOONER, LineTurn, Pass, Rank, Waiter, Wanted};
use crate::algorithm::heads;
use crate::error::{Error, Result};
use crate::fork::jitter;
use crate::limiter::internal::When;
use crate::limiter::line::Terms;
use crate::limiter::line::pool::Offer;
use crate::limiter::{Limiter, Reserved};
use crate::permit::RawPermit;
use crate::policy;
use crate::time::{Tick, from_ticks, grace_ticks, patience_ticks};
use crate::waiting::MayWait;
use std::collections::VecDeque;
use std::time::Duration;

/// A waiter leaves this long before its place is ready, if the pool does not say otherwise: reaching the worker takes a few
/// milliseconds.
pub(in crate::limiter::line) const LEAD: Tick = 20_000;

/// A waiter that left has started after this long, or will not. Until then its units count as taken, though the limit
/// may not know.
const ON_THE_WAY: Tick = 50_000;

/// If a gate stays closed for at most this, the waiter waits for it at its worker instead of here.
const SHORT: Duration = Duration::from_millis(50);

/// The interval for checking whether a start in another process completed: the first one, and the number of times that
/// it doubles.
const LOOK: (Tick, u32) = (16_000, 3);

/// A notice to a waiter of a [`Pool`](crate::embed::Pool).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// The waiter waits for its limit, not for a worker, so others may pass it. Sent once. It can start after this long
    /// at the earliest, as far as this process knows.
    Held(Duration),
    /// The waiter's turn has come, and a worker counts as busy from now. It starts there within a few milliseconds,
    /// with the place of this text. `None`: units are free, and it has to ask for them.
    Go(Option<String>),
    /// Its start is further away than it wanted to wait here. It has left the line, with the place of this text if
    /// there is one, and returns for it after this long.
    Away(Option<String>, Duration),
    /// The limiter failed for it. It holds nothing, and counts as started: its worker will get the error.
    Failed(Error),
}

/// The waiters to notify, and their notices.
pub(in crate::limiter::line) type Notices = Vec<(Rank, Turn)>;

/// The line of a key, and its waiters that left for a worker.
#[derive(Debug, Default)]
pub(in crate::limiter::line) struct TurnLine {
    line: KeyLine,
    /// The number of waiters that left and have not ended.
    running: usize,
    /// The units of those that left, and until when they count, where only completions free units.
    on_the_way: VecDeque<(Tick, u64)>,
    /// The waiters that have not been notified that they wait for the limit.
    unnotified: Vec<Rank>,
    /// Whether a waiter has joined.
    is_new: bool,
    /// Whether the limit had no free units at the last request.
    is_full: bool,
    /// Since then a waiter could start without a place, if there were a worker.
    lacks_worker: Option<Tick>,
    /// No place is handed out before this: no units are free, and only completions free them.
    parked_until: Tick,
    /// Whether a waiter of a tenant may ask when a worker is free that no place is held for.
    lacks_spare: bool,
    /// How long before its place is ready a waiter leaves.
    lead: Tick,
}

impl TurnLine {
    pub fn new(lead: Tick) -> TurnLine {
        TurnLine { lead, ..TurnLine::default() }
    }

    /// Returns whether no caller waits and none is elsewhere.
    pub fn is_empty(&self) -> bool {
        self.line.is_empty() && self.running == 0
    }

    /// Returns whether the last pass left work undone because the store is busy.
    pub fn is_blocked(&self) -> bool {
        self.line.is_blocked()
    }

    pub fn len(&self) -> usize {
        self.line.waiters.len()
    }

    /// Returns the number of places that it holds.
    pub fn places(&self) -> usize {
        self.line.places.len()
    }

    /// Returns where it is shown to the lines of all processes.
    pub fn shown_at(&self) -> Option<usize> {
        self.line.shown_at()
    }

    /// What other lines have to know of, if a pass changes it.
    pub fn extent(&self) -> (usize, usize, Option<usize>) {
        self.line.extent()
    }

    /// Returns whether a waiter of a tenant may ask when a worker is free that no place is held for.
    pub fn lacks_spare(&self) -> bool {
        self.lacks_spare && self.line.wants_places()
    }

    /// Returns when to check again, apart from turns.
    pub fn next(&self) -> Tick {
        if self.line.is_unfinished || self.is_new {
            return 0;
        }
        if self.line.is_blocked {
            return self.line.blocked_until;
        }
        // All keys share the same moments, so that the pool's timer rings rarely.
        let look_sooner = self.line.look_sooner_at.next_multiple_of(LOOK_SOONER);
        let look_sooner = if self.line.places.is_empty() { Tick::MAX } else { look_sooner };
        if self.line.wants_places() { look_sooner.min(self.line.ask_at) } else { look_sooner }
    }

    /// Returns when a waiter can leave, if there is a worker then.
    pub fn next_turn(&self) -> Option<Tick> {
        let first = self.line.places.front().map(|first| first.ready.saturating_sub(self.lead).max(self.parked_until));
        self.lacks_worker.or(first)
    }

    /// Adds a waiter, and the place that it brings.
    pub fn join(
        &mut self,
        pass: &Pass,
        rank: Rank,
        Waiter { key, weight, timeout, grace, place, share, .. }: Waiter,
    ) -> Result<()> {
        policy::check_some(weight)?;
        policy::check_shares(share)?;
        let grace = grace_ticks("grace", grace)?;
        let hold = timeout.map_or(Tick::MAX, patience_ticks);
        MayWait::in_slice(pass.began, Duration::MAX, || pass.limiter.quiet_peek(key, weight))?;
        let now = pass.now();
        if self.line.waiters.is_empty() {
            self.line.looks = 0;
            self.wake(now);
        } else if self.line.ask_at == Tick::MAX {
            self.wake(now);
        }
        let wanted = Wanted::of(pass.key, key, weight);
        self.line.insert(rank, wanted.clone(), now, (Tick::MAX, hold, grace), share);
        if self.unnotified.len() > 2 * self.len() + 64 {
            self.unnotified.retain(|rank| self.line.waiters.contains_key(rank));
        }
        self.unnotified.push(rank);
        self.is_new = true;
        if let Some(place) = place {
            match pass.limiter.ready_in(&place) {
                Some(after) => self.line.hold(place, wanted, after, (now, now)),
                None => self.line.give_back(pass.limiter, place),
            }
        }
        self.line.count(pass.limiter);
        Ok(())
    }

    /// Handles that units may be free.
    pub fn wake(&mut self, now: Tick) {
        (self.lacks_worker, self.parked_until) = (None, 0);
        self.line.wake(now);
    }

    /// Handles the end of a waiter that left.
    pub fn end(&mut self, now: Tick) {
        self.running -= 1;
        self.line.looks = 0;
        // (Of the tenants that wait for a worker, the pool wakes the next one.)
        if !self.lacks_spare {
            self.wake(now);
        }
    }

    /// Removes a waiter that stops waiting. Its place goes to the next one, or back.
    pub fn leave(&mut self, limiter: &dyn Limiter, rank: Rank) {
        self.line.leave(limiter, rank);
    }

    /// Removes a waiter that continues to wait elsewhere. Returns the place that it would have had, and the time until
    /// it is ready.
    pub fn take_along(&mut self, pass: &Pass, rank: Rank) -> Option<(String, Duration)> {
        let wanted = &self.line.waiters.get(&rank)?.wanted;
        let ahead = self.line.by_wanted.range(wanted.entries(rank)).count();
        let of_these = self.line.places.iter().enumerate().filter(|(_, held)| held.wanted == *wanted);
        let at = of_these.map(|(at, _)| at).nth(ahead);
        self.line.forget(rank);
        self.line.count(pass.limiter);
        self.wake(pass.now());
        let HeldPlace { place, ready, .. } = self.line.places.remove(at?)?;
        let text = self.text_of(pass, place).ok()?;
        Some((text, from_ticks(ready.saturating_sub(pass.now()))))
    }

    /// Removes all waiters, and gives their places back.
    pub fn clear(&mut self, limiter: &dyn Limiter) {
        self.line.end(limiter);
        let surplus = std::mem::take(&mut self.line.surplus);
        self.line = KeyLine { is_blocked: !surplus.is_empty(), surplus, ..KeyLine::default() };
        self.unnotified.clear();
    }

    /// Removes all waiters, which count as started.
    pub fn fail_all(&mut self, limiter: &dyn Limiter) {
        self.running += self.len();
        self.clear(limiter);
    }

    /// Gives all places back, to take new ones.
    pub fn renew(&mut self, limiter: &dyn Limiter, now: Tick) {
        self.line.give_back_all(limiter);
        self.wake(now);
    }

    /// Lets the waiters leave whose turn it is, and takes places for the next ones.
    pub fn advance(&mut self, pass: &Pass, offer: &mut Offer, notices: &mut Notices) {
        (self.line.is_unfinished, self.line.is_blocked, self.is_new) = (false, false, false);
        self.line.give_back_surplus(pass.limiter);
        if pass.now() >= self.line.look_sooner_at || self.lacks_worker.is_some() && offer.free > 0 {
            // A start elsewhere may have freed units, or taken them.
            self.wake(pass.now());
        }
        self.line.look_sooner(pass);
        self.hand_out(pass, offer, notices);
        self.fill(pass, offer, notices);
        // The places just taken may be ready.
        self.hand_out(pass, offer, notices);
        let is_held = match self.line.places.front() {
            Some(first) => first.ready.saturating_sub(self.lead).max(self.parked_until) > pass.now(),
            None => self.is_full,
        };
        if is_held {
            for rank in std::mem::take(&mut self.unnotified) {
                if self.line.waiters.contains_key(&rank) {
                    let after = self.line.earliest(pass, rank).saturating_sub(pass.now());
                    notices.push((rank, Turn::Held(from_ticks(after))));
                }
            }
        }
        self.line.count(pass.limiter);
    }

    /// Lets the waiters leave whose place is ready soon.
    fn hand_out(&mut self, pass: &Pass, offer: &mut Offer, notices: &mut Notices) {
        while offer.free > 0
            && let Some(first) = self.line.places.front()
            && first.ready.saturating_sub(self.lead).max(self.parked_until) <= pass.now()
        {
            if pass.is_over() {
                self.line.is_unfinished = true;
                return;
            }
            let wanted = first.wanted.clone();
            if self.lacks_slots(pass, &wanted).unwrap_or(false) {
                self.parked_until = pass.now().saturating_add(self.pause(pass));
                return;
            }
            let Some(HeldPlace { place, .. }) = self.line.places.pop_front() else { return };
            let is_closed = pass.limiter.closed(pass.key).is_ok_and(|closed| closed > SHORT);
            if is_closed || pass.limiter.is_late(&place) {
                // It would have to be exchanged at the worker. Here the waiter keeps its turn.
                self.line.give_back(pass.limiter, place);
                self.line.ask_at = pass.now();
                continue;
            }
            let Some(rank) = self.line.first_of(&wanted) else {
                self.line.give_back(pass.limiter, place);
                continue;
            };
            let turn = self.text_of(pass, place).map_or_else(Turn::Failed, |text| Turn::Go(Some(text)));
            self.go(pass, rank, turn, offer, notices);
        }
    }

    /// Takes places for the first waiters that have none, as many as there are workers that may be free by then.
    fn fill(&mut self, pass: &Pass, offer: &mut Offer, notices: &mut Notices) {
        while let Some(rank) = self.line.first_without() {
            let now = pass.now();
            if now < self.line.ask_at {
                return;
            }
            if pass.is_over() {
                self.line.is_unfinished = true;
                return;
            }
            let asked = match pass.limiter.is_shared() {
                true => self.ask_in_turn(pass, rank, offer),
                false => self.ask(pass, rank, offer),
            };
            match asked {
                Ok(Asked::Place) if pass.limiter.is_shared() => {
                    // The turn may be another tenant's now.
                    self.line.ask_at = pass.now();
                    return;
                }
                Ok(Asked::Place) => {}
                Ok(Asked::Turn(turn @ Turn::Away(..))) => {
                    self.line.forget(rank);
                    notices.push((rank, turn));
                }
                Ok(Asked::Turn(turn)) => self.go(pass, rank, turn, offer, notices),
                Ok(Asked::Later(after)) => {
                    self.line.ask_at = pass.now().saturating_add(after);
                    return;
                }
                Ok(Asked::NoWorker) => {
                    // Repeated when a start has ended.
                    self.line.ask_at = Tick::MAX;
                    return;
                }
                Ok(Asked::Again(after)) => {
                    self.is_full = true;
                    self.line.ask_at = pass.now().saturating_add(self.pause(pass).max(after));
                    return;
                }
                Err(Error::WouldWait) => return,
                Err(_) if offer.free == 0 => {
                    (self.lacks_worker, self.line.ask_at) = (Some(now), Tick::MAX);
                    return;
                }
                Err(error) => self.go(pass, rank, Turn::Failed(error), offer, notices),
            }
        }
    }

    /// Asks the limiter for the first waiter that has nothing.
    fn ask(&mut self, pass: &Pass, rank: Rank, offer: &Offer) -> Result<Asked> {
        let Waiting { wanted, hold, since, .. } = &self.line.waiters[&rank];
        let (wanted, hold, since) = (wanted.clone(), *hold, *since);
        let (key, weight) = (wanted.key(pass.key), wanted.weight);
        let has_places = pass.limiter.has_places();
        let seen = self.line.ask_alone(pass, |limiter| limiter.quiet_peek(key, weight))?;
        self.is_full = !seen.admitted;
        if has_places && self.lacks_slots(pass, &wanted)? {
            return Ok(Asked::Again(0));
        }
        let is_far = patience_ticks(seen.retry_after) > hold;
        if is_far && !has_places {
            return Ok(Asked::Turn(Turn::Away(None, seen.retry_after)));
        }
        if !is_far && self.line.places.len() + self.running >= offer.workers {
            return Ok(Asked::NoWorker);
        }
        if !has_places {
            // A start may complete at any time, but a gate opens at a known time.
            let closed = patience_ticks(seen.retry_after.min(seen.reset_after));
            let is_taken = seen.remaining.saturating_sub(self.on_the_way(pass.now())) < weight;
            return Ok(match seen.admitted && !is_taken {
                true if offer.free == 0 => {
                    self.lacks_worker = Some(pass.now());
                    Asked::NoWorker
                }
                true => Asked::Turn(Turn::Go(None)),
                false => Asked::Again(closed),
            });
        }
        let asked = pass.now();
        let horizon = self.line.horizon(pass.window(), asked.saturating_sub(since));
        let early = patience_ticks(seen.retry_after).saturating_sub(horizon);
        if !is_far && early > 0 {
            // Earlier waiters have not started, and will give back the unused part of their grace. So the first place
            // is taken when they have, and the others when they are near.
            let until = match self.line.places.is_empty() {
                true => self.on_the_way.back().map_or(0, |(until, _)| *until),
                false => asked.saturating_add(early),
            };
            if asked < until {
                return Ok(Asked::Later(early.min(until - asked)));
            }
        }
        let (near, far) = offer.graces(pass.window());
        let grace = (if is_far { far } else { near }).max(from_ticks(self.line.asked()));
        let when = When { delay: Duration::ZERO, max_wait: None, grace: Some(grace), is_waiter: false };
        let reserve = |limiter: &dyn Limiter| limiter.quiet_reserve(key, weight, when);
        match self.line.ask_alone(pass, reserve)? {
            Reserved::Place { place, after } if is_far => {
                Ok(Asked::Turn(Turn::Away(Some(self.text_of(pass, place)?), after)))
            }
            Reserved::Place { place, after } => {
                if self.line.places.is_empty() {
                    self.line.look_sooner_at = asked + LOOK_SOONER;
                }
                self.line.looks = 0;
                self.line.hold(place, wanted, after, (asked, pass.now()));
                Ok(Asked::Place)
            }
            Reserved::Denied(_) => Ok(Asked::Again(0)),
        }
    }

    /// Asks where tenants share the limit: the line is one of those of all tenants, and asks when it has the turn. No waiter
    /// gets a place far ahead, which would keep the other tenants out.
    fn ask_in_turn(&mut self, pass: &Pass, rank: Rank, offer: &Offer) -> Result<Asked> {
        let Waiting { wanted, hold, since, share, .. } = &self.line.waiters[&rank];
        let (wanted, hold, since, share) = (wanted.clone(), *hold, *since, *share);
        let (key, weight) = (wanted.key(pass.key), wanted.weight);
        let seen = self.line.ask_alone(pass, |limiter| limiter.peek_again(key, weight))?;
        self.is_full = !seen.admitted;
        if patience_ticks(seen.retry_after) > hold {
            return Ok(Asked::Turn(Turn::Away(None, seen.retry_after)));
        }
        self.lacks_spare = !offer.has_spare(self.line.places.len());
        if self.lacks_spare {
            // It could not use its turn.
            pass.limiter.show_next(None, &self.line.shown);
            self.line.turn = None;
            return Ok(Asked::NoWorker);
        }
        // What it takes is held against its tenant, since it is shown.
        let (first, is_new) = (self.line.waiters[&rank].shown_as(rank), !self.line.shown.get().is_some());
        let turn = self.line.look(pass, key, first)?;
        if is_new {
            // Others may have come in the same moment, or waited for the same workers.
            return Ok(Asked::Later(1));
        }
        let is_ours = turn.is_none_or(LineTurn::is_ours);
        let asked = pass.now();
        let horizon = self.line.horizon(pass.window(), asked.saturating_sub(since));
        // A start may complete at any time, but a gate opens at a known time.
        let (mut after, mut is_certain) = (seen.retry_after.min(seen.reset_after), false);
        if is_ours && pass.limiter.has_places() {
            let (least, (near, _)) = (from_ticks(self.line.asked()), offer.graces(pass.window()));
            let terms = Terms {
                most: Some(from_ticks(horizon)),
                grace: near.max(least),
                asked: least,
                as_place: true,
                in_turn: true,
                tag: heads::tag(first.priority, first.since),
                share,
                ..Terms::NOW
            };
            match self.line.ask_alone(pass, |limiter| limiter.claim(key, weight, terms))? {
                Claim::Place { place, after } => {
                    if self.line.places.is_empty() {
                        self.line.look_sooner_at = asked + LOOK_SOONER;
                    }
                    self.line.hold(place, wanted, after, (asked, pass.now()));
                    return Ok(Asked::Place);
                }
                // (It asked for a place.)
                Claim::Started(permit) => self.line.ask_alone(pass, |limiter| limiter.cancel(&permit))?,
                Claim::Denied { after: wait, is_certain: certain } => (after, is_certain) = (wait, certain),
                Claim::Behind { .. } => {}
                Claim::Full { after: wait } => after = wait,
            }
        } else if is_ours && seen.admitted && seen.remaining.saturating_sub(self.on_the_way(asked)) >= weight {
            return Ok(Asked::Turn(Turn::Go(None)));
        }
        self.is_full = true;
        Ok(Asked::Later(self.line.pause(pass, patience_ticks(after), is_certain, horizon).max(1)))
    }

    /// Converts a place to the text that leaves with the waiter. A place that has no text goes back.
    fn text_of(&mut self, pass: &Pass, place: RawPermit) -> Result<String> {
        match MayWait::in_slice(pass.began, Duration::MAX, || pass.limiter.to_text(&place)) {
            Ok(text) => {
                pass.limiter.drop_place(&place);
                Ok(text)
            }
            Err(error) => {
                self.line.give_back(pass.limiter, place);
                Err(error)
            }
        }
    }

    /// Lets a waiter leave the line for a worker.
    fn go(&mut self, pass: &Pass, rank: Rank, turn: Turn, offer: &mut Offer, notices: &mut Notices) {
        if let Some(Waiting { wanted, .. }) = self.line.forget(rank) {
            if self.line.places.is_empty() {
                self.wake(pass.now());
            }
            self.running += 1;
            offer.free = offer.free.saturating_sub(1);
            self.on_the_way.push_back((pass.now().saturating_add(ON_THE_WAY), wanted.weight));
            notices.push((rank, turn));
        }
    }

    /// Returns the units of the waiters that left a moment ago.
    fn on_the_way(&mut self, now: Tick) -> u64 {
        while self.on_the_way.front().is_some_and(|(until, _)| *until < now) {
            self.on_the_way.pop_front();
        }
        self.on_the_way.iter().map(|(_, weight)| weight).sum()
    }

    /// Returns whether too few units are free where only completions free them.
    fn lacks_slots(&mut self, pass: &Pass, wanted: &Wanted) -> Result<bool> {
        let taken = self.on_the_way(pass.now());
        let slots = self.line.ask_alone(pass, |limiter| limiter.slots(wanted.key(pass.key), wanted.weight))?;
        Ok(slots.is_some_and(|free| free.saturating_sub(taken) < wanted.weight))
    }

    /// Returns how long not to check for completions: short at first, then longer, and never in step with other
    /// processes.
    fn pause(&mut self, pass: &Pass) -> Tick {
        let (most, doublings) = LOOK;
        let most = pass.among_keys(most << self.line.looks.min(doublings));
        self.line.looks = self.line.looks.saturating_add(1);
        jitter(most / 2, most)
    }
}

/// The result of asking for a waiter.
enum Asked {
    /// One more place is held.
    Place,
    /// The waiter gets this notice, and leaves.
    Turn(Turn),
    /// The place is still so far away that no waiter needs to hold it.
    Later(Tick),
    /// No worker is free.
    NoWorker,
    /// The limit is full. Ask again, no sooner than after this long.
    Again(Tick),
}
