//! The common parts of all time-based limits, in the simplest form: keys, gates, places, waiters, backoff. [`Rules`]
//! define how starts are counted.

use crate::common::Random;
use std::collections::HashMap;
use std::fmt::Debug;
use workglow_limit::Policy;

/// Microseconds since the clock began.
pub type Tick = i128;

/// A random length of time of about this scale, at least 1.
pub fn length(random: &mut Random, scale: Tick) -> Tick {
    match random.below(4) {
        0 => scale,
        1 => 1 + Tick::from(random.scaled(3)),
        _ => 1 + Tick::from(random.scaled(2 * scale as u64)),
    }
}

/// Longer than any caller waits.
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
    /// The identity of the start, where starts are distinguished; otherwise its era.
    pub id: u64,
    pub weight: u64,
    pub stamp: Tick,
    /// When its place is ready, if it is or was one.
    pub ready: Option<Tick>,
    pub grace: Tick,
    /// How far behind a bucket was before it.
    pub ahead: Tick,
}

/// The record of a start.
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

/// A requested start.
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    pub weight: u64,
    pub gate: Tick,
    pub patience: Tick,
    pub grace: Tick,
    pub is_reserving: bool,
    pub is_forced: bool,
    /// Whether it had a place already.
    pub is_exchanged: bool,
}

/// The delays of a backoff without jitter, `b = min(initial · multiplier^(level − 1), max)`, in whole microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    pub initial: Tick,
    pub thousandths: Tick,
    pub max: Tick,
    /// Whether a random amount up to the same again is added.
    pub is_scaled: bool,
}

impl Backoff {
    pub fn delay(&self, level: u64) -> Tick {
        let raise = |delay: Tick| (delay * self.thousandths / 1_000).min(self.max);
        (1..level).fold(if level == 0 { 0 } else { self.initial }, |delay, _| raise(delay))
    }

    /// A denial raises the level if the previous delay is over.
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
    /// The state of a key.
    type Book: Default + Debug;

    /// Whether starts are only counted and not distinguished. If so, each permit can be ended or presented once.
    const COUNTED: bool;
    /// Whether ending a permit twice counts twice.
    const ENDS_ONCE: bool = Self::COUNTED;

    fn random(random: &mut Random, scale: Tick) -> Self;
    fn policy(&self) -> Policy;
    fn capacity(&self) -> u64;
    /// The time scale: the shortest relevant time, and how long a start counts.
    fn lengths(&self) -> (Tick, Tick);
    fn grace(&self, book: &Self::Book, weight: u64) -> Tick;
    /// The grace of an exchanged place.
    fn grace_again(&self, place: &Permit) -> Tick {
        place.grace
    }
    /// The earliest moment for a start, no sooner than its gate.
    fn ready(&self, book: &Self::Book, weight: u64, gate: Tick, now: Now) -> Tick;
    /// When a place becomes late.
    fn latest(&self, now: Now) -> Tick {
        now.ceil
    }
    /// How far in the future a place may lie.
    fn patience(&self, asked: Tick) -> Tick {
        asked
    }
    /// Until when a caller that must wait is turned away, if it is.
    fn turned_away(&self, _: &Self::Book, _: &Ask, _: Now) -> Option<Tick> {
        None
    }
    fn remaining(&self, book: &Self::Book, now: Now) -> u64;
    /// The units that remain right after a start.
    fn left(&self, book: &Self::Book, _before: u64, _weight: u64, now: Now) -> u64 {
        self.remaining(book, now)
    }
    /// When the key is reset, except for its gate.
    fn empty(&self, book: &Self::Book) -> Tick;
    /// Records a start that is ready at this time, now or as a place.
    fn record(&self, book: &mut Self::Book, ask: &Ask, ready: Tick, is_place: bool, now: Now) -> Start;
    /// Starts with a place that is ready, and returns from when on the start counts. `None` if it no longer counts, or
    /// was used.
    fn present(&self, book: &mut Self::Book, place: &Permit, now: Now) -> Option<Tick>;
    /// Takes a start back; with `only_place`, only if it has not started.
    fn cancel(&self, book: &mut Self::Book, permit: &Permit, only_place: bool, now: Now);
    fn settle(&self, book: &mut Self::Book, permit: &Permit, actual: u64, is_over: bool, now: Now);
    /// Converts a key's state to another policy.
    fn change(&self, to: &Self, book: Self::Book, now: Now) -> Self::Book;
    /// Forgets what has expired. Returns the latest stamp of what was forgotten, if anything was.
    fn forget(&self, book: &mut Self::Book, now: Now) -> Tick;
    /// Returns whether a permit still has a meaning.
    fn has(&self, book: &Self::Book, permit: &Permit) -> bool;

    // Of some kinds only.

    fn backoff(&self) -> Option<Backoff> {
        None
    }
    /// The number of jobs that influence the next start.
    fn most_jobs(&self) -> usize {
        0
    }
    /// Records the duration of a job.
    fn ended(&self, _: &mut Self::Book, _took: Tick) {}
    /// Records that a start was requested.
    fn asked(&self, _: &mut Self::Book, _: Now) {}
    /// Returns whether a new start would be one too many to remember.
    fn is_full(&self, _: &Self::Book, _units: u64, _now: Now) -> bool {
        false
    }
    /// Returns whether enough of the past is known for another policy.
    fn can_become(&self, _: &Self, _books: &[&Self::Book], _forgotten: Tick, _: Now) -> bool {
        true
    }
    /// Until when a start may be remembered that was forgotten at this time.
    fn remembered(&self, stamp: Tick) -> Tick {
        stamp
    }
    /// Returns whether a reset key still has state that a forgotten key has not.
    fn keeps(&self, _: &Self::Book) -> bool {
        false
    }
}

#[derive(Debug)]
pub struct Key<R: Rules> {
    gate: Tick,
    pub book: R::Book,
    /// The number of denials, and until when the next one is not counted. `None` if it may have been forgotten.
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
    /// The latest stamp of a forgotten start, under whatever policy.
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

    /// Applies a function to a key's state, whether the key was used or not.
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

    /// The smallest and largest backoff that a denial would have now.
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
                // Exactly when a retry would get its place.
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

    /// The decision of an admitted start, given the view before it.
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

    /// Returns whether it has left every window.
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
            // A start is forgotten no sooner than the longest time for which it may count by then.
            self.forgotten = to.remembered(self.forgotten.min(now.ceil));
            self.rules = to;
            self.advance(now);
        }
    }

    /// Forgets the reset keys.
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

    /// Returns whether a key is reset. The real limiter may forget it then.
    pub fn is_idle(&self, key: &str) -> bool {
        let (gate, now) = (self.keys.get(key).map_or(0, |key| key.gate), self.now.floor);
        gate <= now && self.with(key, |rules, book| rules.empty(book)) <= now
    }

    /// Returns whether the effect of ending a permit is certain. `all`: all keys were just cleared.
    pub fn is_certain(&self, permit: &Permit, all: bool) -> bool {
        if R::COUNTED {
            return !self.with(&permit.key, |rules, book| rules.keeps(book));
        }
        // A key that is gone assigns its tickets again, so an old permit may match something else.
        let is_kept = permit.key.is_empty() || !self.is_idle(&permit.key);
        self.has(permit) || permit.stamp < self.now.floor || is_kept && !all
    }

    /// Returns whether a permit still has a meaning.
    pub fn has(&self, permit: &Permit) -> bool {
        self.with(&permit.key, |rules, book| rules.has(book, permit))
    }
}

/// A start now.
const NOW: Ask =
    Ask { weight: 1, gate: 0, patience: 0, grace: 0, is_reserving: false, is_forced: false, is_exchanged: false };
