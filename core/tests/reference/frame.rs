//! What all limits that are a matter of time have in common, in the plainest way: keys, gates, places, waiters, backoff.
//! How starts are counted is a matter of [`Rules`].

use super::common::Random;
use std::collections::HashMap;
use std::fmt::Debug;
use workglow_limit::Policy;

/// Microseconds since the clock began.
pub type Tick = i128;

/// A length of time about this scale; at least 1.
pub fn length(random: &mut Random, scale: Tick) -> Tick {
    match random.below(4) {
        0 => scale,
        1 => 1 + Tick::from(random.scaled(3)),
        _ => 1 + Tick::from(random.scaled(2 * scale as u64)),
    }
}

/// Longer than anybody waits.
pub const ENDLESS: Tick = 1 << 100;

/// The time, rounded down and up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Now {
    pub floor: Tick,
    pub ceil: Tick,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permit {
    pub key: String,
    /// Where starts are told apart, which it is; else of which era.
    pub id: u64,
    pub weight: u64,
    pub stamp: Tick,
    /// When its place comes, if it is or was one.
    pub ready: Option<Tick>,
    pub grace: Tick,
    /// How much a bucket had to recover from before it.
    pub ahead: Tick,
}

/// What was recorded of a start.
pub struct Start {
    pub id: u64,
    pub stamp: Tick,
    pub ahead: Tick,
}

#[derive(Debug)]
pub enum Answer {
    Started(Permit),
    /// A place, and how long until it is ready.
    Place(Permit, Tick),
    Denied(Tick),
    TooHeavy,
}

#[derive(Debug, PartialEq, Eq)]
pub struct View {
    pub admitted: bool,
    pub retry_after: Tick,
    pub remaining: u64,
    pub limit: u64,
    pub reset_after: Tick,
}

#[derive(Debug)]
pub struct Waiter {
    pub key: String,
    pub weight: u64,
    pub timeout: Tick,
    pub deadline: Option<Tick>,
    pub place: Option<Permit>,
}

/// A start that is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    pub weight: u64,
    pub gate: Tick,
    pub patience: Tick,
    pub grace: Tick,
    pub is_reserving: bool,
    pub is_forced: bool,
    /// It had a place already.
    pub is_exchanged: bool,
}

/// The delays of a backoff that does not spread, `b = min(initial · multiplier^(level − 1), max)`, in whole microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    pub initial: Tick,
    pub thousandths: Tick,
    pub max: Tick,
    /// Up to as much again, as it happens.
    pub is_scaled: bool,
}

impl Backoff {
    pub fn delay(&self, level: u64) -> Tick {
        let raise = |delay: Tick| (delay * self.thousandths / 1_000).min(self.max);
        (1..level).fold(if level == 0 { 0 } else { self.initial }, |delay, _| raise(delay))
    }

    /// A denial raises the level, if the delay of the one before is over.
    pub fn after_denial(&self, (level, until): (u64, Tick), now: Tick) -> (u64, Tick) {
        match level > 0 && now < until {
            true => (level, until),
            false => {
                let next = if self.delay(level + 1) > self.delay(level) { level + 1 } else { level };
                (next, now + self.delay(next))
            }
        }
    }
}

/// A policy of some kind, and how it counts the starts of one key.
pub trait Rules: Clone + Debug + PartialEq {
    /// What is known of a key.
    type Book: Default + Debug;

    /// Are starts only counted, so that one is not told from another? Then each permit can be ended or presented once.
    const COUNTED: bool;
    /// Does ending a permit twice count twice?
    const ENDS_ONCE: bool = Self::COUNTED;

    fn random(random: &mut Random, scale: Tick) -> Self;
    fn policy(&self) -> Policy;
    fn capacity(&self) -> u64;
    /// What time is measured by: the shortest of it, and how long a start counts.
    fn lengths(&self) -> (Tick, Tick);
    fn grace(&self, book: &Self::Book, weight: u64) -> Tick;
    /// The grace of a place that is exchanged.
    fn grace_again(&self, place: &Permit) -> Tick {
        place.grace
    }
    /// The earliest moment for a start, no sooner than its gate.
    fn ready(&self, book: &Self::Book, weight: u64, gate: Tick, now: Now) -> Tick;
    /// By when a place is late.
    fn latest(&self, now: Now) -> Tick {
        now.ceil
    }
    /// How far in the future a place may lie.
    fn patience(&self, asked: Tick) -> Tick {
        asked
    }
    /// Who must wait may be turned away: until when.
    fn turned_away(&self, _: &Self::Book, _: &Ask, _: Now) -> Option<Tick> {
        None
    }
    fn remaining(&self, book: &Self::Book, now: Now) -> u64;
    /// What remains right after a start.
    fn left(&self, book: &Self::Book, _before: u64, _weight: u64, now: Now) -> u64 {
        self.remaining(book, now)
    }
    /// When the key is as new, but for its gate.
    fn empty(&self, book: &Self::Book) -> Tick;
    /// Records a start that is ready then, or for a place, will be.
    fn record(&self, book: &mut Self::Book, ask: &Ask, ready: Tick, is_place: bool, now: Now) -> Start;
    /// Starts with a place that is due, and says from when on the start counts. `None`: it does not count any more, or was
    /// used.
    fn present(&self, book: &mut Self::Book, place: &Permit, now: Now) -> Option<Tick>;
    /// Takes a start back; of a place, if it has not started.
    fn cancel(&self, book: &mut Self::Book, permit: &Permit, only_place: bool, now: Now);
    fn settle(&self, book: &mut Self::Book, permit: &Permit, actual: u64, is_over: bool, now: Now);
    /// Another policy: what this key keeps under it.
    fn change(&self, to: &Self, book: Self::Book, now: Now) -> Self::Book;
    /// Time went by: the latest stamp of what was forgotten, if anything was.
    fn forget(&self, book: &mut Self::Book, now: Now) -> Tick;
    /// A permit still stands for something.
    fn has(&self, book: &Self::Book, permit: &Permit) -> bool;

    // Of some kinds only.

    fn backoff(&self) -> Option<Backoff> {
        None
    }
    /// How many jobs matter to what is next.
    fn most_jobs(&self) -> usize {
        0
    }
    /// A job took so long.
    fn ended(&self, _: &mut Self::Book, _took: Tick) {}
    /// A start was asked for.
    fn asked(&self, _: &mut Self::Book, _: Now) {}
    /// Would a new start that finds what the book has be one too many to remember?
    fn is_full(&self, _: &Self::Book, _units: u64, _now: Now) -> bool {
        false
    }
    /// Is enough known of the past for another policy?
    fn can_become(&self, _: &Self, _books: &[&Self::Book], _forgotten: Tick, _: Now) -> bool {
        true
    }
    /// Until when a start may be remembered that was forgotten then.
    fn remembered(&self, stamp: Tick) -> Tick {
        stamp
    }
    /// Has a key that is as new something that one that was forgotten has not?
    fn keeps(&self, _: &Self::Book) -> bool {
        false
    }
}

#[derive(Debug)]
pub struct Key<R: Rules> {
    gate: Tick,
    pub book: R::Book,
    /// How often it was denied, and until when that is not counted again. `None`: it may have been forgotten.
    level: Option<(u64, Tick)>,
}

impl<R: Rules> Default for Key<R> {
    fn default() -> Self {
        Key { gate: 0, book: R::Book::default(), level: Some((0, 0)) }
    }
}

/// One limit.
#[derive(Debug)]
pub struct Model<R: Rules> {
    pub rules: R,
    gate: Tick,
    pub keys: HashMap<String, Key<R>>,
    pub now: Now,
    /// The latest stamp of a start that was forgotten, whatever policy it lived under.
    pub forgotten: Tick,
}

impl<R: Rules> Model<R> {
    pub fn new(rules: R) -> Self {
        Model { rules, gate: 0, keys: HashMap::new(), now: Now::default(), forgotten: -ENDLESS }
    }

    fn key(&mut self, key: &str) -> &mut Key<R> {
        self.keys.entry(key.to_owned()).or_default()
    }

    fn edit(&mut self, key: &str, f: impl FnOnce(&R, &mut R::Book, Now)) {
        let (rules, now) = (self.rules.clone(), self.now);
        f(&rules, &mut self.key(key).book, now);
    }

    /// What is known of a key, whether it was used or not.
    pub fn with<T>(&self, key: &str, f: impl FnOnce(&R, &R::Book) -> T) -> T {
        match self.keys.get(key) {
            Some(key) => f(&self.rules, &key.book),
            None => f(&self.rules, &R::Book::default()),
        }
    }

    fn gate(&self, key: &str) -> Tick {
        self.keys.get(key).map_or(0, |key| key.gate).max(self.gate)
    }

    fn ready(&self, key: &str, weight: u64) -> Tick {
        let (gate, now) = (self.gate(key), self.now);
        if weight == 0 { gate } else { self.with(key, |rules, book| rules.ready(book, weight, gate, now)) }
    }

    pub fn view(&self, key: &str, weight: u64) -> Option<View> {
        if weight > self.rules.capacity() {
            return None;
        }
        let (now, gate) = (self.now, self.gate(key));
        let retry_after = (self.ready(key, weight) - now.floor).max(0);
        let is_open = gate <= now.floor;
        let remaining = self.with(key, |rules, book| if is_open { rules.remaining(book, now) } else { 0 });
        let empty = self.with(key, |rules, book| rules.empty(book)).max(gate);
        let (limit, reset_after) = (self.rules.capacity(), (empty - now.floor).max(0));
        Some(View { admitted: retry_after == 0, retry_after, remaining, limit, reset_after })
    }

    /// The backoff that a denial would have now, at least and at most.
    pub fn backoff(&self, key: &str) -> (Tick, Tick) {
        let Some(backoff) = self.rules.backoff() else { return (0, 0) };
        let Some(level) = self.keys.get(key).map_or(Some((0, 0)), |key| key.level) else { return (0, ENDLESS) };
        let delay = backoff.delay(backoff.after_denial(level, self.now.floor).0);
        (delay, if backoff.is_scaled { 2 * delay - 1 } else { delay })
    }

    fn take(&mut self, key: &str, ask: Ask) -> Answer {
        if ask.weight > self.rules.capacity() {
            return Answer::TooHeavy;
        }
        self.edit(key, |rules, book, now| rules.asked(book, now));
        let (now, patience) = (self.now, self.rules.patience(ask.patience));
        let ask = Ask { gate: self.gate(key), patience, ..ask };
        let ready = if ask.is_forced { now.floor } else { self.ready(key, ask.weight) };
        let after = (ready - now.floor).max(0);
        if after > 0 && ask.patience > 0 {
            let away = self.with(key, |rules, book| rules.turned_away(book, &ask, now));
            if let Some(until) = away {
                // Exactly: when a retry would get its place.
                return Answer::Denied(until.max(ready - ask.patience) - now.floor);
            }
        }
        if after > ask.patience {
            return Answer::Denied(after);
        }
        let is_place = after > 0 || ask.is_reserving;
        let rules = self.rules.clone();
        let found = self.key(key);
        found.level = Some((0, 0));
        let Start { id, stamp, ahead } = rules.record(&mut found.book, &ask, ready, is_place, now);
        let (ready, grace) = (is_place.then_some(ready.max(now.floor)), if is_place { ask.grace } else { 0 });
        let permit = Permit { key: key.to_owned(), id, weight: ask.weight, stamp, ready, grace, ahead };
        if is_place { Answer::Place(permit, after) } else { Answer::Started(permit) }
    }

    pub fn attempt(&mut self, key: &str, weight: u64) -> Answer {
        let answer = self.take(key, Ask { weight, ..NOW });
        if let (Answer::Denied(_), Some(backoff)) = (&answer, self.rules.backoff()) {
            let now = self.now.floor;
            let level = &mut self.key(key).level;
            *level = level.map(|level| backoff.after_denial(level, now));
        }
        answer
    }

    /// The decision of a start that was admitted, given what a look said before.
    pub fn after_start(&self, key: &str, weight: u64, before: &View) -> Option<View> {
        let (now, after) = (self.now, self.view(key, weight)?);
        let remaining = self.with(key, |rules, book| rules.left(book, before.remaining, weight, now));
        Some(View { admitted: true, retry_after: 0, remaining, ..after })
    }

    fn default_grace(&self, key: &str, weight: u64) -> Tick {
        self.with(key, |rules, book| rules.grace(book, weight))
    }

    pub fn reserve(&mut self, key: &str, weight: u64, patience: Tick, grace: Option<Tick>) -> Answer {
        let grace = grace.unwrap_or_else(|| self.default_grace(key, weight));
        self.take(key, Ask { weight, patience, grace, is_reserving: true, ..NOW })
    }

    pub fn present(&mut self, place: &Permit) -> Answer {
        let early = place.ready.unwrap_or(0) - self.now.floor;
        if early > 0 {
            return Answer::Place(place.clone(), early);
        }
        let rules = self.rules.clone();
        let is_due = self.gate(&place.key) <= self.now.floor && rules.latest(self.now) <= place.stamp;
        let now = self.now;
        if is_due && let Some(stamp) = rules.present(&mut self.key(&place.key).book, place, now) {
            return Answer::Started(Permit { stamp, ..place.clone() });
        }
        self.cancel_place(place);
        let (weight, grace) = (place.weight, rules.grace_again(place));
        self.take(&place.key, Ask { weight, patience: ENDLESS, grace, is_reserving: true, is_exchanged: true, ..NOW })
    }

    pub fn step(&mut self, waiter: &mut Waiter) -> Answer {
        while let Some(place) = waiter.place.clone() {
            match self.present(&place) {
                Answer::Place(place, after) => {
                    let deadline = *waiter.deadline.get_or_insert(self.now.floor + waiter.timeout);
                    if self.now.floor + after > deadline.max(self.now.floor) {
                        self.cancel_place(&place);
                        waiter.place = None;
                        return Answer::Denied(after);
                    }
                    waiter.place = Some(place.clone());
                    if after > 0 {
                        return Answer::Place(place, after);
                    }
                }
                Answer::Started(permit) => {
                    waiter.place = None;
                    return Answer::Started(permit);
                }
                other => return other,
            }
        }
        let deadline = *waiter.deadline.get_or_insert(self.now.floor + waiter.timeout);
        let patience = (deadline - self.now.floor).max(0);
        let grace = self.default_grace(&waiter.key, waiter.weight);
        let answer = self.take(&waiter.key, Ask { weight: waiter.weight, patience, grace, ..NOW });
        if let Answer::Place(place, _) = &answer {
            waiter.place = Some(place.clone());
        }
        answer
    }

    pub fn give_up(&mut self, waiter: &mut Waiter) {
        if let Some(place) = waiter.place.take() {
            self.cancel_place(&place);
        }
    }

    /// Has it left every window?
    pub fn is_over(&self, permit: &Permit) -> bool {
        permit.stamp + self.rules.lengths().1 <= self.now.floor
    }

    pub fn cancel(&mut self, permit: &Permit) {
        if !self.is_over(permit) {
            self.edit(&permit.key, |rules, book, now| rules.cancel(book, permit, false, now));
        }
    }

    pub fn cancel_place(&mut self, place: &Permit) {
        if !self.is_over(place) {
            self.edit(&place.key, |rules, book, now| rules.cancel(book, place, true, now));
        }
    }

    pub fn complete(&mut self, permit: &Permit) {
        let began = permit.ready.unwrap_or(permit.stamp);
        self.ended(&permit.key, began);
    }

    pub fn ended(&mut self, key: &str, began: Tick) {
        self.edit(key, |rules, book, now| rules.ended(book, (now.floor - began).max(0)));
    }

    pub fn settle(&mut self, permit: &Permit, actual: u64) {
        self.complete(permit);
        let is_over = self.is_over(permit);
        if !is_over || actual > permit.weight {
            self.edit(&permit.key, |rules, book, now| rules.settle(book, permit, actual, is_over, now));
        }
    }

    pub fn record_job_start(&mut self, key: &str) {
        self.take(key, Ask { weight: 1, is_forced: true, ..NOW });
    }

    pub fn pause(&mut self, key: &str, pause: Tick) {
        if pause > 0 {
            let until = self.now.ceil + pause;
            let gate = if key.is_empty() { &mut self.gate } else { &mut self.key(key).gate };
            *gate = until.max(*gate);
        }
    }

    pub fn clear(&mut self, key: &str) {
        if key.is_empty() {
            self.gate = 0;
            self.keys.clear();
        } else {
            self.keys.remove(key);
        }
    }

    pub fn change(&mut self, to: R) {
        if to != self.rules {
            let now = self.now;
            for key in self.keys.values_mut() {
                key.book = self.rules.change(&to, std::mem::take(&mut key.book), now);
            }
            // Nothing is forgotten sooner than the longest that it may count by then.
            self.forgotten = to.remembered(self.forgotten.min(now.ceil));
            self.rules = to;
            self.advance(now);
        }
    }

    /// Forgets the keys that are as new.
    pub fn advance(&mut self, now: Now) {
        self.now = now;
        let rules = &self.rules;
        self.keys.retain(|_, key| {
            self.forgotten = self.forgotten.max(rules.forget(&mut key.book, now));
            let is_idle = key.gate <= now.floor && rules.empty(&key.book) <= now.floor;
            if is_idle && key.level != Some((0, 0)) {
                key.level = None;
            }
            !is_idle || key.level.is_none() || rules.keeps(&key.book)
        });
    }

    /// Is a key as new? The real one may forget it then.
    pub fn is_idle(&self, key: &str) -> bool {
        let (gate, now) = (self.keys.get(key).map_or(0, |key| key.gate), self.now.floor);
        gate <= now && self.with(key, |rules, book| rules.empty(book)) <= now
    }

    /// Is it certain what ending a permit does? `all`: all keys were just cleared.
    pub fn is_certain(&self, permit: &Permit, all: bool) -> bool {
        if R::COUNTED {
            return !self.with(&permit.key, |rules, book| rules.keeps(book));
        }
        // A key that is gone counts its tickets anew, so that an old permit may stand for something else.
        let is_kept = permit.key.is_empty() || !self.is_idle(&permit.key);
        self.has(permit) || permit.stamp < self.now.floor || is_kept && !all
    }

    /// Does a permit still stand for something?
    pub fn has(&self, permit: &Permit) -> bool {
        self.with(&permit.key, |rules, book| rules.has(book, permit))
    }
}

/// A start now.
const NOW: Ask =
    Ask { weight: 1, gate: 0, patience: 0, grace: 0, is_reserving: false, is_forced: false, is_exchanged: false };
