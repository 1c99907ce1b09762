//! The lines of an event loop whose limits are on a server. While one asks it, a thread has it (see [`Crew`]): each key's
//! line on its own, so none waits for another's answer.

use super::key::{KeyLine, Out, Pass, Wanted};
use super::{Outcome, Rank, Waiter};
use crate::hooks;
use crate::limiter::Limiter;
use crate::limiter::events::Call;
use crate::permit::RawPermit;
use crate::server::crew::Crew;
use crate::state::Wake;
use crate::time::{Clock, Tick, from_ticks};
use std::collections::{HashMap, HashSet};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long after a waiter's deadline its line may still come back with a better answer, in ticks.
pub(super) const COMING_BACK: Tick = 20_000;

/// The errands of one event loop's lines.
pub(super) struct Errands {
    crew: Arc<Crew>,
    away: HashMap<Arc<str>, Away>,
    home: Arc<Home>,
}

/// What happens to a key's line while a thread has it.
#[derive(Default)]
struct Away {
    joining: Vec<Joining>,
    /// The waiters that have left.
    left: HashSet<Rank>,
    is_woken: bool,
}

/// A waiter that has to ask the server to join.
pub(super) struct Joining {
    pub rank: Rank,
    pub wanted: Wanted,
    pub grace: Duration,
    /// [`Tick::MAX`]: none.
    pub deadline: Tick,
    pub since: Instant,
}

/// What a thread does for a key.
#[derive(Default)]
pub(super) struct Errand {
    pub line: KeyLine,
    /// Starts that nobody wants any more. They are given back first.
    pub unwanted: Vec<RawPermit>,
    pub joining: Vec<Joining>,
    /// [`Pass::keys`].
    pub keys: usize,
}

/// Where the lines come back.
struct Home {
    back: Mutex<Lines>,
    wake: Wake,
}

enum Lines {
    Back(Vec<Returned>),
    /// The loop has dropped them.
    Unwanted,
}

/// A line that has asked.
struct Returned {
    key: Arc<str>,
    line: KeyLine,
    out: Out,
    calls: hooks::Calls,
}

/// A line that is back, and what happened in the meantime.
pub(super) struct Back {
    pub key: Arc<str>,
    pub line: KeyLine,
    pub out: Out,
    pub joining: Vec<Joining>,
    pub left: HashSet<Rank>,
    pub is_woken: bool,
}

impl Errands {
    /// `None`: the limiter is not on a server.
    pub fn of(limiter: &dyn Limiter, wake: Wake) -> Option<Errands> {
        Some(Errands { crew: limiter.crew()?, away: HashMap::new(), home: Home::new(wake) })
    }

    /// Returns how many lines threads have.
    pub fn len(&self) -> usize {
        self.away.len()
    }

    /// Returns whether a thread has this key's line.
    pub fn has(&self, key: &str) -> bool {
        self.away.contains_key(key)
    }

    /// Returns whether a line is back.
    pub fn has_returned(&self) -> bool {
        matches!(&*self.home.lock(), Lines::Back(lines) if !lines.is_empty())
    }

    /// Sends a key's line to the server.
    pub fn send(&mut self, limiter: &Arc<dyn Limiter>, key: Arc<str>, errand: Errand) {
        self.away.insert(key.clone(), Away::default());
        let (limiter, home) = (limiter.clone(), self.home.clone());
        self.crew.send(Box::new(move || home.run(&*limiter, key, errand)));
    }

    /// Makes a call of the limiter, whose answer nobody needs.
    pub fn call(&self, limiter: &Arc<dyn Limiter>, call: impl FnOnce(&dyn Limiter) + Send + 'static) {
        let limiter = limiter.clone();
        self.crew.send(Box::new(move || call(&*limiter)));
    }

    /// Lets a waiter join when its key's line is back.
    pub fn join_later(&mut self, key: &str, waiter: Joining) {
        if let Some(away) = self.away.get_mut(key) {
            away.joining.push(waiter);
        }
    }

    /// Removes a waiter when its key's line is back. Returns whether a thread has the line.
    pub fn leave(&mut self, key: &str, rank: Rank) -> bool {
        let Some(away) = self.away.get_mut(key) else { return false };
        match away.joining.iter().position(|joining| joining.rank == rank) {
            Some(at) => drop(away.joining.remove(at)),
            None => drop(away.left.insert(rank)),
        }
        true
    }

    /// Wakes a key's line when it is back (`None`: of all keys).
    pub fn wake(&mut self, key: Option<&str>) {
        match key {
            Some(key) => self.away.get_mut(key).into_iter().for_each(|away| away.is_woken = true),
            None => self.away.values_mut().for_each(|away| away.is_woken = true),
        }
    }

    /// Takes the lines that are back, and calls the hooks.
    pub fn take(&mut self) -> Vec<Back> {
        let returned = match &mut *self.home.lock() {
            Lines::Back(lines) => mem::take(lines),
            Lines::Unwanted => Vec::new(),
        };
        let back = returned.into_iter().filter_map(|Returned { key, line, out, calls }| {
            hooks::make(calls);
            let Away { joining, left, is_woken } = self.away.remove(&key)?;
            Some(Back { key, line, out, joining, left, is_woken })
        });
        back.collect()
    }

    /// Forgets the lines of the parent in a forked child, which has none of its threads.
    pub fn forget(&mut self) {
        self.away.clear();
        self.home = Home::new(self.home.wake.clone());
    }

    /// Ends all lines: those of threads when they are back, and these, in which nobody waits any more.
    pub fn end(&mut self, limiter: &Arc<dyn Limiter>, lines: Vec<KeyLine>, unwanted: Vec<RawPermit>) {
        let back = mem::replace(&mut *self.home.lock(), Lines::Unwanted);
        let returned = if let Lines::Back(returned) = back { returned } else { Vec::new() };
        if !(lines.is_empty() && unwanted.is_empty() && returned.is_empty()) {
            self.call(limiter, move |limiter| {
                lines.into_iter().for_each(|mut line| line.end(limiter));
                unwanted.iter().for_each(|permit| drop(limiter.cancel(permit)));
                returned.into_iter().for_each(|returned| returned.end(limiter));
            });
        }
    }
}

impl Home {
    fn new(wake: Wake) -> Arc<Home> {
        Arc::new(Home { back: Mutex::new(Lines::Back(Vec::new())), wake })
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.back.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a key's line, in a thread that may wait, and brings the line back.
    fn run(&self, limiter: &dyn Limiter, key: Arc<str>, errand: Errand) {
        let Errand { mut line, unwanted, mut joining, keys } = errand;
        // Units may be free, and the first one to join gets them.
        joining.sort_by_key(|waiter| waiter.rank);
        let clock = Clock::new(0, limiter.manual_clock());
        let (out, calls) = hooks::for_another_thread(|| {
            let mut out = Out::new();
            for permit in unwanted {
                let _ = limiter.cancel(&permit);
                line.wake(clock.now().floor);
            }
            for waiter in joining {
                waiter.join(limiter, (&key, &clock, keys), &mut line, &mut out);
            }
            let pass = Pass { keys, ..Pass::new(limiter, &key, &clock) };
            line.advance(&pass, &mut out);
            line.write_taken(&pass, &mut out);
            out
        });
        let returned = Returned { key, line, out, calls };
        let mut back = self.lock();
        match &mut *back {
            Lines::Back(lines) => {
                lines.push(returned);
                let is_first = lines.len() == 1;
                drop(back);
                if is_first {
                    (self.wake)();
                }
            }
            Lines::Unwanted => {
                drop(back);
                returned.end(limiter);
            }
        }
    }
}

impl Joining {
    fn join(
        self,
        limiter: &dyn Limiter,
        (line_key, clock, keys): (&str, &Clock, usize),
        line: &mut KeyLine,
        out: &mut Out,
    ) {
        let (key, weight) = (self.wanted.key(line_key), self.wanted.weight);
        let call = Call::of(limiter, key, weight);
        let held = call.as_ref().map(|call| call.forecast(None));
        let left = self.deadline.saturating_sub(clock.now().floor);
        let timeout = (self.deadline != Tick::MAX).then(|| from_ticks(left));
        let waiter = Waiter { grace: self.grace, priority: self.rank.0, timeout, ..Waiter::new(key, weight) };
        let pass = Pass { began: self.since, keys, ..Pass::new(limiter, line_key, clock) };
        // Whoever gets the outcome reports a failure.
        if let Err(error) = line.join(&pass, (self.rank, waiter), None, out) {
            return out.push((self.rank, Outcome::Failed(error)));
        }
        let outcome = out.iter().find(|(rank, _)| *rank == self.rank).map(|(_, outcome)| outcome);
        let Some((call, held)) = call.zip(held) else { return };
        if !matches!(outcome, Some(Outcome::Failed(_))) {
            call.report_error(None);
        }
        if matches!(outcome, None | Some(Outcome::Expired(_))) {
            call.report_throttling(held);
        }
    }
}

impl Returned {
    /// Gives back what it holds.
    fn end(mut self, limiter: &dyn Limiter) {
        self.line.end(limiter);
        let unwanted = self.out.into_iter().filter_map(|(_, outcome)| outcome.permit());
        unwanted.for_each(|permit| drop(limiter.cancel(&permit)));
    }
}
