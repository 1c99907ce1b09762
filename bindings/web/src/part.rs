//! One limit with one policy, and its keys.

use crate::Moment;
use crate::algorithm::log::{StartId, View};
use crate::algorithm::time::Tick;
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::holds::Holds;
use crate::level::Level;
use crate::policy::{POLICY_WORDS, Policy, Shape, check_weight};
use crate::timed::Timed;
use std::collections::HashMap;

/// Keys are looked through for idle ones when there are twice as many as after the last time, and at least so many.
const FEW: usize = 64;

pub struct Part {
    pub name: String,
    /// The policy that the program declared last.
    pub declared: Policy,
    /// The policy above it, if there is one.
    pub overriding: Option<Policy>,
    /// The policies of keys.
    pub plans: HashMap<Box<str>, Policy>,
    /// No start happens before this.
    pub gate: Tick,
    pub keys: HashMap<Box<str>, Key>,
    few: usize,
}

/// A key of a limit.
pub struct Key {
    pub gate: Tick,
    pub state: State,
}

pub enum State {
    Timed(Timed),
    Holds(Holds),
}

/// The state of a part, for one start.
pub struct Seen {
    pub view: View,
    pub policy: Policy,
    /// The least and the most that a caller who requeues stays away, besides.
    pub backoff: (Tick, Tick),
    /// Whether it is denied until a start ends.
    pub awaits_end: bool,
}

/// A start, as its holder knows it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Held {
    pub ticket: u64,
    pub stamp: Tick,
    pub ahead: u64,
    /// When it began.
    pub began: Tick,
}

impl Part {
    pub fn new(name: String, declared: Policy) -> Part {
        let (plans, keys) = (HashMap::new(), HashMap::new());
        Part { name, declared, overriding: None, plans, gate: 0, keys, few: FEW }
    }

    pub fn policy(&self) -> Policy {
        self.overriding.unwrap_or(self.declared)
    }

    /// Whether the units of a start that ends are free at once, whatever it cost.
    pub fn is_slots(&self) -> bool {
        self.policy().is_concurrency() && self.policy().cooldown() == 0
    }

    pub fn policy_of(&self, key: &str) -> Policy {
        self.plans.get(key).copied().unwrap_or_else(|| self.policy())
    }

    fn unused(&self, key: &str, number: u64) -> Key {
        let policy = self.policy_of(key);
        let state = match policy.is_concurrency() {
            true => State::Holds(Holds::new(policy)),
            false => State::Timed(Timed::new(policy, number)),
        };
        Key { gate: 0, state }
    }

    /// Finds a key, or adds it. `number`: no other key of the limit has it.
    pub fn key(&mut self, key: &str, number: u64, at: Moment) -> &mut Key {
        if !self.keys.contains_key(key) {
            let new = self.unused(key, number);
            if let State::Timed(timed) = &new.state {
                timed.begin(number, at).expect("unused cells have a life");
            }
            self.add(key, new, at);
        }
        self.keys.get_mut(key).expect("it was there or is now")
    }

    /// Adds a key, or replaces it.
    pub fn add(&mut self, key: &str, new: Key, at: Moment) {
        if self.keys.len() >= self.few {
            self.keys.retain(|_, key| !key.is_idle(at));
            self.few = FEW.max(2 * self.keys.len());
        }
        self.keys.insert(key.into(), new);
    }

    /// What a start would be answered. Nothing changes.
    pub fn look(&self, key: &str, weight: u64, at: Moment) -> Result<Seen> {
        let policy = self.policy_of(key);
        check_weight(&self.name, weight, policy.capacity())?;
        let unused;
        let found = match self.keys.get(key) {
            Some(found) => found,
            None => {
                unused = self.unused(key, 0);
                &unused
            }
        };
        let gate = self.gate.max(found.gate);
        let (view, awaits_end) = match &found.state {
            State::Holds(holds) => (holds.view(weight, gate, at.now), holds.awaits_end(weight, gate, at.now)),
            State::Timed(timed) => (timed.view(weight, gate, at).map_err(|_| self.nonsense(key))?, false),
        };
        let backoff = if view.ready > view.now { found.spread(at, |_| {}) } else { (0, 0) };
        Ok(Seen { view, policy, backoff, awaits_end })
    }

    /// Records that a start was denied: its backoff may grow.
    pub fn deny(&self, key: &str, at: Moment) {
        if let Some(found) = self.keys.get(key) {
            found.spread(at, |level| {
                if let State::Timed(timed) = &found.state {
                    timed.backoff().store(level, Relaxed)
                }
            });
        }
    }

    /// Records a start for which there is room. `number`: no other start of the limit has it.
    pub fn take(&mut self, key: &str, weight: u64, number: u64, at: Moment) -> Result<(Held, View)> {
        let limit_gate = self.gate;
        let found = self.key(key, number, at);
        let gate = limit_gate.max(found.gate);
        let began = at.now.floor;
        match &mut found.state {
            State::Holds(holds) => {
                holds.add(number, weight, at.now);
                let view = holds.view(0, gate, at.now);
                Ok((Held { ticket: number, stamp: at.now.ceil, ahead: 0, began }, view))
            }
            State::Timed(timed) => {
                let decided = timed.decide(weight, gate, at).ok();
                let taken = decided.and_then(|(answer, view)| answer.taken.map(|taken| (taken, view)));
                let Some((taken, view)) = taken else { return Err(self.nonsense(key)) };
                timed.backoff().store(0, Relaxed);
                Ok((Held { ticket: taken.ticket, stamp: taken.stamp, ahead: taken.ahead, began }, view))
            }
        }
    }

    /// Ends a start of this weight.
    pub fn end(&mut self, key: &str, held: Held, weight: u64, end: End, number: u64, at: Moment) -> Result<()> {
        let owes = matches!(end, End::Settled(actual) if actual > weight);
        let found = match self.keys.get_mut(key) {
            Some(found) => found,
            // It was forgotten, because all its starts are over.
            None if owes => self.key(key, number, at),
            None => return Ok(()),
        };
        let start = StartId { ticket: held.ticket, stamp: held.stamp, weight };
        let ended = match &mut found.state {
            State::Holds(holds) => {
                let used = match end {
                    End::Completed => None,
                    End::Cancelled => Some(0),
                    End::Settled(actual) => Some(actual),
                };
                holds.end(held.ticket, used, at.now);
                Some(())
            }
            State::Timed(timed) => {
                if !matches!(end, End::Cancelled) {
                    timed.complete(held.began, at.now);
                }
                match end {
                    End::Completed => Some(()),
                    End::Cancelled => timed.cancel(start, held.ahead, number, at),
                    End::Settled(actual) => timed.settle(start, held.ahead, actual, number, at),
                }
            }
        };
        ended.ok_or_else(|| self.nonsense(key))
    }

    /// Brings every key to the policy that applies to it. `number`: as in [`Part::key`].
    pub fn follow(&mut self, number: u64, at: Moment) -> Result<()> {
        let keys: Vec<Box<str>> = self.keys.keys().cloned().collect();
        keys.iter().try_for_each(|key| self.follow_key(key, number, at))
    }

    /// Brings a key, or all of them, to the policy that applies.
    pub fn follow_some(&mut self, key: Option<&str>, number: u64, at: Moment) -> Result<()> {
        match key {
            None => self.follow(number, at),
            Some(key) => self.follow_key(key, number, at),
        }
    }

    pub fn follow_key(&mut self, key: &str, number: u64, at: Moment) -> Result<()> {
        let policy = self.policy_of(key);
        let moved = match self.keys.get_mut(key).map(|key| &mut key.state) {
            None => Some(()),
            Some(State::Holds(holds)) => {
                holds.policy = policy;
                Some(())
            }
            Some(State::Timed(timed)) if timed.policy == policy => Some(()),
            Some(State::Timed(timed)) => timed.rewrite(policy, number, at, |_, _| {}),
        };
        moved.ok_or_else(|| self.nonsense(key))
    }

    fn nonsense(&self, key: &str) -> Error {
        let found = format!("nonsense in the state of key \"{key}\"");
        Error::Damaged { path: self.name.clone().into(), found }
    }
}

/// How a start ends.
#[derive(Debug, Clone, Copy)]
pub enum End {
    Completed,
    Cancelled,
    /// It cost so many units.
    Settled(u64),
}

impl Key {
    /// The kind of its limit.
    pub fn kind(&self) -> &'static str {
        match &self.state {
            State::Timed(timed) => timed.policy.kind(),
            State::Holds(holds) => holds.policy.kind(),
        }
    }

    /// Returns a number that is greater than those of its starts.
    pub fn end(&self) -> u64 {
        if let State::Timed(timed) = &self.state { timed.end() } else { 0 }
    }

    /// Its words: the gate, the policy, the state.
    pub fn to_words(&self) -> Vec<u64> {
        let state: (Policy, Vec<u64>) = match &self.state {
            State::Timed(timed) => (timed.policy, timed.words().collect()),
            State::Holds(holds) => (holds.policy, holds.words().collect()),
        };
        [self.gate].into_iter().chain(state.0.to_words()).chain(state.1).collect()
    }

    /// A key of its words. `None`: they are none.
    pub fn from_words(words: &[u64]) -> Option<Key> {
        let (gate, rest) = words.split_first()?;
        let (policy, state) = rest.split_first_chunk::<POLICY_WORDS>()?;
        let policy = Policy::from_words(|i| policy[i])?;
        let state = match policy.is_concurrency() {
            true => State::Holds(Holds::from_words(policy, state)?),
            false => State::Timed(Timed::from_words(policy, state)?),
        };
        Some(Key { gate: *gate, state })
    }

    /// The delays between which a caller that requeues after a denial chooses one; `keep` gets the new level.
    fn spread(&self, at: Moment, keep: impl FnOnce(u64)) -> (Tick, Tick) {
        let State::Timed(timed) = &self.state else { return (0, 0) };
        let Shape::Rate(_, backoff) = &timed.policy.0 else { return (0, 0) };
        let level = Level::of(timed.backoff().load(Relaxed)).after_denial(backoff, at.now.floor);
        keep(level.word());
        backoff.spread(level.number)
    }

    /// Until when at the latest it is other than an unused one.
    pub fn matters_until(&self, at: Moment) -> Tick {
        let until = match &self.state {
            _ if self.is_idle(at) => 0,
            // What a settlement owes may count for twice as long as a start.
            State::Timed(timed) => at.now.ceil + 2 * timed.policy.longest(),
            State::Holds(holds) => holds.matter_until(),
        };
        until.max(self.gate)
    }

    pub fn is_idle(&self, at: Moment) -> bool {
        let is_idle = match &self.state {
            State::Timed(timed) => timed.is_idle(at),
            State::Holds(holds) => holds.is_idle(at.now),
        };
        is_idle && self.gate <= at.now.floor
    }
}
