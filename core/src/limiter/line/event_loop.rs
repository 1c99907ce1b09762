//! The waiters of one event loop.

use super::brought::Brought;
use super::key::{KeyLine, Out, Pass, SLICE};
use super::{Outcome, Waiter};
use crate::error::{Error, Result};
use crate::fork;
use crate::limiter::Limiter;
use crate::limiter::heard::Call;
use crate::permit::RawPermit;
use crate::time::{Clock, Tick, from_ticks};
use crate::waiting::MayWait;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long one call may work. The rest is due at once.
const BATCH: Duration = Duration::from_millis(8);

/// What could not be given back is given back so much later.
const GIVE_BACK_AGAIN: Duration = Duration::from_millis(1);

/// One waiter of a [`Line`]. Numbers are not used again.
pub type WaiterId = u64;

/// What came of joining a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Joined {
    /// It is over already.
    Done(Outcome),
    /// [`Line::advance`] will say when it is over.
    Waiting(WaiterId),
}

/// The waiters of one limiter in one event loop: a line for each key. It never sleeps or blocks, starts no threads and calls
/// nobody. The loop keeps one timer for it.
///
/// Within a key, waiters start in the order of their priority and then of asking. Dropping the line gives back what its
/// waiters hold. A forked child finds it empty: the waiters are the parent's.
///
/// ```
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use workglow_limit::{Joined, Line, Outcome, RateLimiter, Store, Waiter};
/// let store = Store::new("memory:")?;
/// let limiter = Arc::new(RateLimiter::new(&store, "api", 2, Duration::from_millis(20))?);
/// let mut line = Line::new(limiter);
/// for _ in 0..5 {
///     match line.join(Waiter::new("tenant", 1))? {
///         Joined::Done(outcome) => println!("{outcome:?}"), // there was room
///         Joined::Waiting(id) => println!("{id} waits"),
///     }
/// }
/// // What the loop's timer does:
/// let mut over = Vec::new();
/// while let Some(nap) = line.advance(&mut over) {
///     std::thread::sleep(nap);
/// }
/// assert!(over.iter().all(|(_, outcome)| matches!(outcome, Outcome::Admitted(_))));
/// # Ok::<(), workglow_limit::Error>(())
/// ```
pub struct Line {
    limiter: Arc<dyn Limiter>,
    keys: HashMap<Arc<str>, Entry>,
    due: BTreeSet<(Tick, Due)>,
    /// Where each waiter is.
    waiters: HashMap<WaiterId, Seated>,
    last_id: WaiterId,
    /// What ended outside of [`Line::advance`], which tells it.
    over: Vec<(WaiterId, Outcome)>,
    /// The keys with something to do for a call that may wait.
    blocked: HashSet<Arc<str>>,
    /// There is a brought place with such a thing.
    is_brought_blocked: bool,
    /// What those held who left, and has to be given back by a call that may wait: permits, and whether they are places.
    left: Vec<(RawPermit, bool)>,
    /// Somebody waited for the store in vain during the last call: the others only try.
    is_stuck: bool,
    generation: u64,
}

#[derive(Debug, Default)]
struct Entry {
    line: KeyLine,
    /// What [`Line::due`] has of it.
    due: Option<Tick>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Key(Arc<str>),
    Brought(WaiterId),
}

#[derive(Debug)]
enum Seated {
    At(Arc<str>, i32),
    Brought(Brought),
}

impl Line {
    /// The line of a limiter, with nobody in it. Opens nothing.
    pub fn new(limiter: Arc<dyn Limiter>) -> Line {
        Line {
            limiter,
            keys: HashMap::new(),
            due: BTreeSet::new(),
            waiters: HashMap::new(),
            last_id: 0,
            over: Vec::new(),
            blocked: HashSet::new(),
            is_brought_blocked: false,
            left: Vec::new(),
            is_stuck: false,
            generation: fork::generation(),
        }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        if self.is_the_parent_s() { 0 } else { self.waiters.len() }
    }

    /// Does nobody wait?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Joins the line, or starts at once. After [`Joined::Waiting`], ask [`Line::next`] whether the timer has to be set
    /// earlier.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`]; nobody joined then.
    pub fn join(&mut self, waiter: Waiter<'_>) -> Result<Joined> {
        let limiter = self.limiter.clone();
        let Some(call) = Call::of(&*limiter, waiter.key, waiter.weight) else { return self.quiet_join(waiter) };
        let held = call.foresee(waiter.place.as_ref());
        let mut joined = self.quiet_join(waiter);
        if let Ok(Joined::Waiting(id)) = joined
            && MayWait::here() == MayWait::Never
            && self.blocked.contains(waiter.key)
        {
            // Nobody was asked for it yet, so there is nothing to tell.
            self.leave(id);
            joined = Err(Error::WouldWait);
        }
        call.tell_error(joined.as_ref().err());
        if matches!(joined, Ok(Joined::Waiting(_) | Joined::Done(Outcome::Expired(_)))) {
            call.tell_held(held);
        }
        joined
    }

    fn quiet_join(&mut self, waiter: Waiter<'_>) -> Result<Joined> {
        self.forget_the_parent_s();
        let clock = self.clock();
        let now = clock.now().floor;
        self.last_id += 1;
        let id = self.last_id;
        if let Some(place) = waiter.place {
            let mut brought = Brought::new(place, now, waiter.timeout);
            return match brought.advance(&*self.limiter, now, self.slice()) {
                Some(Outcome::Failed(error)) => Err(error),
                Some(outcome) => Ok(Joined::Done(outcome)),
                None => {
                    self.due.insert((brought.due, Due::Brought(id)));
                    self.waiters.insert(id, Seated::Brought(brought));
                    Ok(Joined::Waiting(id))
                }
            };
        }
        let rank = (waiter.priority, id);
        let (key, mut entry) = match self.keys.remove_entry(waiter.key) {
            Some(known) => known,
            None => (waiter.key.into(), Entry::default()),
        };
        let mut out = Out::new();
        let pass = Pass { slice: self.slice(), ..Pass::new(&*self.limiter, &key, &clock) };
        let joined = entry.line.join(&pass, (rank, waiter), None, &mut out);
        // What ends here for somebody else is told by the next `advance`, and what ends after that, too.
        let is_own = self.over.is_empty() && matches!(&out[..], [(other, _)] if *other == rank);
        let own = if is_own { out.pop().map(|(_, outcome)| outcome) } else { None };
        if joined.is_ok() && own.is_none() {
            self.waiters.insert(id, Seated::At(key.clone(), waiter.priority));
        }
        self.tell(&key, out);
        self.keep(key, entry);
        joined?;
        match own {
            Some(Outcome::Failed(error)) => Err(error),
            Some(outcome) => Ok(Joined::Done(outcome)),
            None => Ok(Joined::Waiting(id)),
        }
    }

    /// Does all that is due, and appends the waits that ended. Returns how long until it has to be called again; `None`:
    /// nobody waits. To be called when that time is over, and at any other time; it costs little while nothing is due.
    pub fn advance(&mut self, over: &mut Vec<(WaiterId, Outcome)>) -> Option<Duration> {
        self.forget_the_parent_s();
        over.append(&mut self.over);
        (self.is_brought_blocked, self.is_stuck) = (false, false);
        for (permit, is_place) in std::mem::take(&mut self.left) {
            self.give_back(permit, is_place);
        }
        let (clock, mut began) = (self.clock(), Instant::now());
        let now = clock.now().floor;
        let mut blocked = Vec::new();
        while self.due.first().is_some_and(|(due, _)| *due <= now) && began.elapsed() < BATCH {
            let was_stuck = self.is_stuck;
            match self.due.pop_first() {
                Some((_, Due::Key(key))) => {
                    self.advance_key(key.clone(), &clock);
                    if self.blocked.contains(&key)
                        && let Some(due) = self.keys.get(&key).and_then(|entry| entry.due)
                    {
                        // To ask again at once would be in vain.
                        let due = (due, Due::Key(key));
                        self.due.remove(&due);
                        blocked.push(due);
                    }
                }
                Some((_, Due::Brought(id))) => self.advance_brought(id, now),
                None => break,
            }
            over.append(&mut self.over);
            if !was_stuck && self.is_stuck {
                began = Instant::now();
            }
        }
        self.due.extend(blocked);
        self.next()
    }

    /// Did the last calls leave something undone because they [must not wait](crate::MayWait)? Then [`Line::advance`] is to be
    /// called from where it may.
    pub fn would_wait(&self) -> bool {
        let is_due = |clock: Clock| self.due.first().is_some_and(|(due, _)| *due <= clock.now().floor);
        self.is_brought_blocked || !self.left.is_empty() || !self.blocked.is_empty() && is_due(self.clock())
    }

    /// How long until [`Line::advance`] has to be called; `None`: nobody waits.
    pub fn next(&self) -> Option<Duration> {
        if self.is_the_parent_s() {
            return None;
        }
        if !self.over.is_empty() {
            return Some(Duration::ZERO);
        }
        if !self.left.is_empty() {
            return Some(GIVE_BACK_AGAIN);
        }
        let (due, _) = self.due.first()?;
        Some(from_ticks(due.saturating_sub(self.clock().now().floor)))
    }

    /// Somebody in this process completed, cancelled or cleared something under that key (`None`: it is not known which): the
    /// next [`Line::advance`], which is due at once, looks whether there is room now. Without this a waiter for a
    /// concurrency limit notices up to 16 ms later, and others when their place comes.
    pub fn wake(&mut self, key: Option<&str>) {
        if self.is_the_parent_s() || self.keys.is_empty() {
            return;
        }
        let now = self.clock().now().floor;
        let keys: Vec<Arc<str>> = match key {
            Some(key) => self.keys.get_key_value(key).map(|(key, _)| key.clone()).into_iter().collect(),
            None => self.keys.keys().cloned().collect(),
        };
        for key in keys {
            if let Some(mut entry) = self.keys.remove(&key) {
                entry.line.wake(now);
                self.keep(key, entry);
            }
        }
    }

    /// A waiter does not wait any longer. What it holds goes to the next one, or back. A no-op for a wait that is over; one
    /// that was admitted, and not told yet, is cancelled.
    pub fn leave(&mut self, id: WaiterId) {
        self.forget_the_parent_s();
        match self.waiters.remove(&id) {
            Some(Seated::At(key, priority)) => {
                if let Some(mut entry) = self.keys.remove(&key) {
                    entry.line.leave(&*self.limiter, (priority, id));
                    self.keep(key, entry);
                }
            }
            Some(Seated::Brought(brought)) => {
                self.due.remove(&(brought.due, Due::Brought(id)));
                self.give_back(brought.place, true);
            }
            None => {
                if let Some(at) = self.over.iter().position(|(other, _)| *other == id)
                    && let (_, Outcome::Admitted(permit)) = self.over.swap_remove(at)
                {
                    self.give_back(permit, false);
                }
            }
        }
    }

    /// Gives back what somebody held who left, or leaves it to a call that may wait. If it fails otherwise, it goes by unused.
    fn give_back(&mut self, permit: RawPermit, is_place: bool) {
        let limiter = &self.limiter;
        let given = MayWait::in_slice(Instant::now(), self.slice(), || match is_place {
            true => limiter.cancel_place(&permit),
            false => limiter.cancel(&permit),
        });
        if let Err(Error::WouldWait) = given {
            self.left.push((permit, is_place));
        }
    }

    /// How long the next one may wait for the store.
    fn slice(&self) -> Duration {
        if self.is_stuck { Duration::ZERO } else { SLICE }
    }

    fn clock(&self) -> Clock {
        Clock::new(0, self.limiter.manual_clock())
    }

    fn advance_key(&mut self, key: Arc<str>, clock: &Clock) {
        let Some(mut entry) = self.keys.remove(&key) else { return };
        entry.due = None;
        let mut out = Out::new();
        let pass = Pass { slice: self.slice(), ..Pass::new(&*self.limiter, &key, clock) };
        entry.line.advance(&pass, &mut out);
        self.tell(&key, out);
        self.keep(key, entry);
    }

    fn advance_brought(&mut self, id: WaiterId, now: Tick) {
        let slice = self.slice();
        let Some(Seated::Brought(brought)) = self.waiters.get_mut(&id) else { return };
        match brought.advance(&*self.limiter, now, slice) {
            Some(Outcome::Failed(Error::WouldWait)) => {
                self.due.insert((brought.due, Due::Brought(id)));
                self.is_brought_blocked = true;
            }
            Some(outcome) => {
                self.waiters.remove(&id);
                if let Outcome::Failed(error) = &outcome {
                    self.tell_of("", error);
                }
                self.over.push((id, outcome));
            }
            None => drop(self.due.insert((brought.due, Due::Brought(id)))),
        }
    }

    fn tell(&mut self, key: &str, out: Out) {
        for ((_, id), outcome) in out {
            self.waiters.remove(&id);
            if let Outcome::Failed(error) = &outcome {
                self.tell_of(key, error);
            }
            self.over.push((id, outcome));
        }
    }

    /// Tells those who listen of an error of a waiter that waited.
    fn tell_of(&self, key: &str, error: &Error) {
        if let Some(call) = Call::of(&*self.limiter, key, 1) {
            call.tell_error(Some(error));
        }
    }

    /// Keeps a key's line, if somebody is in it, and when it is due.
    fn keep(&mut self, key: Arc<str>, mut entry: Entry) {
        if let Some(due) = entry.due.take() {
            self.due.remove(&(due, Due::Key(key.clone())));
        }
        if entry.line.is_blocked() && !entry.line.is_empty() {
            self.is_stuck |= MayWait::here() == MayWait::UntilTimeout;
            self.blocked.insert(key.clone());
        } else {
            self.blocked.remove(&key);
        }
        if !entry.line.is_empty() {
            let next = entry.line.next();
            entry.due = Some(next);
            self.due.insert((next, Due::Key(key.clone())));
            self.keys.insert(key, entry);
        }
    }

    fn is_the_parent_s(&self) -> bool {
        self.generation != fork::generation()
    }

    /// A forked child has a copy of waiters that are not its own. It forgets them, and what they hold stays theirs.
    fn forget_the_parent_s(&mut self) {
        if self.is_the_parent_s() {
            self.keys.clear();
            self.due.clear();
            self.waiters.clear();
            self.over.clear();
            self.blocked.clear();
            self.left.clear();
            self.is_brought_blocked = false;
            self.generation = fork::generation();
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.is_the_parent_s() {
            return;
        }
        for entry in self.keys.values_mut() {
            entry.line.end(&*self.limiter);
        }
        for waiter in self.waiters.values() {
            if let Seated::Brought(brought) = waiter {
                let _ = self.limiter.cancel_place(&brought.place);
            }
        }
        for (permit, is_place) in std::mem::take(&mut self.left) {
            self.give_back(permit, is_place);
        }
        for (_, outcome) in &self.over {
            if let Outcome::Admitted(permit) = outcome {
                let _ = self.limiter.cancel(permit);
            }
        }
    }
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Line of {} waiters for \"{}\"", self.len(), self.limiter.name())
    }
}
