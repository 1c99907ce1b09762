//! One limit with one policy, and its keys.

use crate::Moment;
use crate::algorithm::log::{StartId, View};
use crate::algorithm::time::Tick;
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::holds::Holds;
use crate::level::Level;
use crate::policy::{Policy, Shape, check_weight};
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
            if self.keys.len() >= self.few {
                self.keys.retain(|_, key| !key.is_idle(at));
                self.few = FEW.max(2 * self.keys.len());
            }
            self.keys.insert(key.into(), self.unused(key, number));
        }
        self.keys.get_mut(key).expect("it was there or is now")
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
        let view = match &found.state {
            State::Holds(holds) => holds.view(weight, gate, at.now),
            State::Timed(timed) => timed.view(weight, gate, at).map_err(|_| self.nonsense(key))?,
        };
        let backoff = if view.ready > view.now { found.spread(at, |_| {}) } else { (0, 0) };
        Ok(Seen { view, policy, backoff })
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
        for key in keys {
            let policy = self.policy_of(&key);
            let moved = match &mut self.keys.get_mut(&key).expect("it is there").state {
                State::Holds(holds) => {
                    holds.policy = policy;
                    Some(())
                }
                State::Timed(timed) if timed.policy == policy => Some(()),
                State::Timed(timed) => timed.rewrite(policy, number, at, |_, _| {}),
            };
            moved.ok_or_else(|| self.nonsense(&key))?;
        }
        Ok(())
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
    /// The delays between which a caller that requeues after a denial chooses one; `keep` gets the new level.
    fn spread(&self, at: Moment, keep: impl FnOnce(u64)) -> (Tick, Tick) {
        let State::Timed(timed) = &self.state else { return (0, 0) };
        let Shape::Rate(_, backoff) = &timed.policy.0 else { return (0, 0) };
        let level = Level::of(timed.backoff().load(Relaxed)).after_denial(backoff, at.now.floor);
        keep(level.word());
        backoff.spread(level.number)
    }

    pub fn is_idle(&self, at: Moment) -> bool {
        let is_idle = match &self.state {
            State::Timed(timed) => timed.is_idle(at),
            State::Holds(holds) => holds.is_idle(at.now),
        };
        is_idle && self.gate <= at.now.floor
    }
}
