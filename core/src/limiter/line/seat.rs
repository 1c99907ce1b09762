//! The waiters of the blocking threads of a process, and of whoever waits in steps: one line for each limiter and key.
//!
//! One of the threads that sleep, the *leader*, sleeps until the line has to be advanced, and advances it for all. The others
//! sleep until they are woken, or until their own time is up. A thread that stops leading wakes the next one. Whoever takes
//! steps without sleeping here advances the line too, but never leads: it may come late, or not at all.

use super::brought::Brought;
use super::key::{KeyLine, Out, Pass, SLICE};
use super::{Claim, Outcome, Rank, Step, Terms, Waiter};
use crate::error::{Error, Result};
use crate::fork::{self, PerProcess};
use crate::limiter::heard::{Call, errors_told};
use crate::limiter::{Attempt, LOOK_AGAIN, Limiter};
use crate::permit::RawPermit;
use crate::time::{Clock, Tick, from_ticks};
use crate::waiting::MayWait;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Nobody sleeps more precisely than this.
const LATENESS: Duration = Duration::from_micros(200);

/// Where the grace of a place is no match for that, a leader waits out the last moments awake.
const SHORT_WINDOW: Duration = Duration::from_millis(4);

/// The lines of one limiter's threads. A forked child has its own.
#[derive(Debug)]
pub struct Seats {
    keys: PerProcess<HashMap<Box<str>, Shared>>,
}

type Shared = Arc<Mutex<Room>>;

/// The line of one key, and who is in it.
#[derive(Debug, Default)]
struct Room {
    line: KeyLine,
    last: u64,
    leader: Option<Rank>,
    /// Until when it sleeps.
    leads_until: Tick,
    /// What the bell showed before the line was advanced.
    heard: Option<u64>,
    /// The threads that sleep.
    asleep: BTreeMap<Rank, Thread>,
    /// Outcomes that were not collected.
    over: HashMap<Rank, Outcome>,
}

impl Seats {
    pub(crate) const fn new() -> Seats {
        Seats { keys: PerProcess::new() }
    }

    /// Does somebody wait under this key?
    fn is_used(&self, key: &str) -> bool {
        let keys = self.keys.lock();
        !keys.is_empty() && keys.contains_key(key)
    }

    fn room(&self, key: &str) -> Shared {
        let mut keys = self.keys.lock();
        match keys.get(key) {
            Some(room) => room.clone(),
            None => keys.entry(key.into()).or_default().clone(),
        }
    }

    /// Forgets a key's line after its last waiter. Others join only through `keys`, so two references are the last ones.
    fn tidy(&self, key: &str, room: Shared) {
        let mut keys = self.keys.lock();
        if Arc::strong_count(&room) == 2 {
            keys.remove(key);
        }
    }
}

fn lock(room: &Shared) -> MutexGuard<'_, Room> {
    room.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One waiter of this process, in the line that all its threads share.
///
/// Every call takes the limiter that the seat was taken at. A seat that is not needed any more is to be given up with
/// [`Seat::leave`]. A forked child that goes on with its parent's seat takes one of its own.
#[derive(Debug)]
pub struct Seat {
    key: Box<str>,
    weight: u64,
    priority: i32,
    timeout: Option<Duration>,
    grace: Duration,
    place: State,
    /// What was answered at once, before it joined a line.
    asked: Option<Claim>,
    generation: u64,
}

#[derive(Debug)]
enum State {
    /// It has not asked yet, and may have a place already.
    New(Option<RawPermit>),
    Brought(Brought),
    InLine(Rank, Shared),
    Over,
}

impl Seat {
    /// A waiter that asks at its first step.
    pub fn new(waiter: Waiter<'_>) -> Seat {
        let Waiter { key, weight, priority, timeout, grace, place } = waiter;
        let generation = fork::generation();
        Seat { key: key.into(), weight, priority, timeout, grace, place: State::New(place), asked: None, generation }
    }

    /// Starts if nobody waits and there is room: what a caller tries first that must not wait for other waiters (see
    /// [`MayWait`](crate::MayWait)). Nothing: take steps, also where it would have to wait for the store.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    pub fn start_at_once(&mut self, limiter: &dyn Limiter) -> Result<Option<RawPermit>> {
        if !matches!(self.place, State::New(None)) || limiter.base().seats.is_used(&self.key) {
            return Ok(None);
        }
        let claim = || limiter.claim(&self.key, self.weight, Terms::now(self.grace)?);
        let (place, started) = match errors_told(limiter, &self.key, self.weight, claim) {
            Ok(Claim::Started(permit)) => (State::Over, Some(permit)),
            Ok(Claim::Place { place, .. }) => (State::New(Some(place)), None),
            Ok(Claim::Denied { .. } | Claim::Full { .. }) | Err(Error::WouldWait) => (State::New(None), None),
            Err(error) => return Err(error),
        };
        self.place = place;
        Ok(started)
    }

    /// What to do next: start; sleep, at most so long, and take another step; or go away, because the time is up. After a
    /// start, an end or an error the seat is given up.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    pub fn step(&mut self, limiter: &dyn Limiter) -> Result<Step> {
        let Some(call) = Call::of(limiter, &self.key, self.weight) else { return self.quiet_step(limiter) };
        let held = match &self.place {
            State::New(place) => Some(call.foresee(place.as_ref())),
            _ => None,
        };
        let step = self.quiet_step(limiter);
        call.tell_error(step.as_ref().err());
        if let (Ok(Step::Sleep(_) | Step::Expired(_)), Some(held)) = (&step, held) {
            call.tell_held(held);
        }
        step
    }

    fn quiet_step(&mut self, limiter: &dyn Limiter) -> Result<Step> {
        let clock = Clock::new(0, limiter.manual_clock());
        if self.generation != fork::generation() {
            // The place and the seat are the parent's.
            (self.generation, self.place) = (fork::generation(), State::New(None));
        }
        match self.try_step(limiter, &clock) {
            Ok(Err(nap)) => Ok(Step::Sleep(nap)),
            Ok(Ok(outcome)) => {
                self.vacate(limiter);
                match outcome {
                    Outcome::Admitted(permit) => Ok(Step::Admitted(permit)),
                    Outcome::Expired(after) => Ok(Step::Expired(after)),
                    Outcome::Failed(error) => Err(error),
                }
            }
            Err(error) => {
                self.vacate(limiter);
                Err(error)
            }
        }
    }

    /// The outcome, or how long to sleep.
    fn try_step(&mut self, limiter: &dyn Limiter, clock: &Clock) -> Result<Result<Outcome, Duration>> {
        let now = clock.now().floor;
        match self.place {
            State::New(Some(place)) => {
                self.place = State::Brought(Brought::new(place, now, self.timeout));
            }
            State::New(None) => {
                if let Some(outcome) = self.take(limiter, clock)? {
                    return Ok(Ok(outcome));
                }
            }
            _ => {}
        }
        match &mut self.place {
            State::Brought(brought) if brought.due > now => Ok(Err(from_ticks(brought.due - now))),
            State::Brought(brought) => {
                let outcome = brought.advance(limiter, now, SLICE);
                Ok(outcome.ok_or_else(|| from_ticks(brought.due - now)))
            }
            State::InLine(rank, room) => Ok(lock(room).step(&Pass::new(limiter, &self.key, clock), *rank)),
            State::New(_) | State::Over => Ok(Ok(Outcome::Expired(Duration::ZERO))),
        }
    }

    /// Sleeps between two steps, at most for `nap`, and less if there is news.
    pub fn sleep(&self, limiter: &dyn Limiter, nap: Duration) {
        let clock = Clock::new(0, limiter.manual_clock());
        match &self.place {
            State::InLine(rank, room) => sleep_in(room, limiter, (&self.key, *rank), &clock, nap),
            State::Brought(brought) => doze(limiter, &self.key, &clock, nap.min(until(brought.due, &clock))),
            State::New(_) | State::Over => {}
        }
    }

    /// Gives the seat up. What it holds goes to the next waiter, or back; a start that was not told is cancelled.
    pub fn leave(&mut self, limiter: &dyn Limiter) {
        if self.generation == fork::generation() {
            match &self.place {
                // If it fails, the place goes by unused.
                State::Brought(brought) => drop(limiter.cancel_place(&brought.place)),
                State::InLine(rank, room) => {
                    let mut room = lock(room);
                    room.line.leave(limiter, *rank);
                    if let Some(Outcome::Admitted(permit)) = room.over.remove(rank) {
                        drop(room);
                        let _ = limiter.cancel(&permit);
                    }
                }
                State::New(_) | State::Over => {}
            }
            self.vacate(limiter);
        }
    }

    /// Leaves the seat to whoever comes next.
    fn vacate(&mut self, limiter: &dyn Limiter) {
        if let State::InLine(rank, room) = std::mem::replace(&mut self.place, State::Over) {
            lock(&room).hand_over(rank);
            limiter.base().seats.tidy(&self.key, room);
        }
    }

    /// Asks for the first time: starts at once if nobody waits and there is room, or joins the line.
    fn take(&mut self, limiter: &dyn Limiter, clock: &Clock) -> Result<Option<Outcome>> {
        let key = &*self.key;
        let waiter = Waiter { timeout: self.timeout, grace: self.grace, ..Waiter::new(key, self.weight) };
        let asked = match self.asked.take() {
            None => match at_once(limiter, &waiter)? {
                Err(after) => return Ok(Some(Outcome::Expired(after))),
                Ok(asked) => asked,
            },
            asked => asked,
        };
        if let Some(Claim::Started(permit)) = asked {
            return Ok(Some(Outcome::Admitted(permit)));
        }
        // Where there are places, only a line asks for them.
        let asked = asked.filter(|_| !limiter.has_places());
        let shared = limiter.base().seats.room(key);
        let mut room = lock(&shared);
        room.last += 1;
        let rank = (self.priority, room.last);
        if room.line.is_empty() {
            room.heard = limiter.hear(key);
        }
        let mut out = Out::new();
        let joined = room.line.join(&Pass::new(limiter, key, clock), (rank, waiter), asked, &mut out);
        room.tell(out);
        if room.line.next() < room.leads_until {
            room.wake_leader();
        }
        drop(room);
        self.place = State::InLine(rank, shared);
        joined.map(|()| None)
    }
}

impl Room {
    /// The outcome of a waiter, or how long it may sleep.
    fn step(&mut self, pass: &Pass, rank: Rank) -> Result<Outcome, Duration> {
        let now = pass.clock.now().floor;
        let rings = self.heard.is_some_and(|heard| pass.limiter.hear(pass.key) != Some(heard));
        if !self.over.contains_key(&rank) && (rings || self.line.next() <= now) {
            if rings {
                self.line.wake(now);
            }
            // Before anything is asked: a completion after that rings once more.
            self.heard = pass.limiter.hear(pass.key);
            let mut out = Out::new();
            self.line.advance(pass, &mut out);
            self.tell(out);
        }
        self.over.remove(&rank).ok_or_else(|| until(self.line.needs(pass, rank), pass.clock))
    }

    fn tell(&mut self, out: Out) {
        for (rank, outcome) in out {
            self.over.insert(rank, outcome);
            if let Some(thread) = self.asleep.get(&rank) {
                thread.unpark();
            }
        }
    }

    fn wake_leader(&self) {
        if let Some(thread) = self.leader.and_then(|leader| self.asleep.get(&leader)) {
            thread.unpark();
        }
    }

    /// A waiter is over: if nobody leads, the first thread that sleeps wakes up, and does.
    fn hand_over(&mut self, rank: Rank) {
        if self.leader == Some(rank) {
            self.leader = None;
        }
        if let (None, Some((_, thread))) = (self.leader, self.asleep.first_key_value()) {
            thread.unpark();
        }
    }
}

/// Starts if nobody waits and there is room; nothing: somebody waits. Without a lock, so that those who have to wait for the
/// ledger wait for it together. The error says when to come again: the caller's time was up before the store answered.
fn at_once(limiter: &dyn Limiter, waiter: &Waiter) -> Result<Result<Option<Claim>, Duration>> {
    let &Waiter { key, weight, timeout, grace, .. } = waiter;
    if limiter.base().seats.is_used(key) {
        return Ok(Ok(None));
    }
    // (Where a test makes the time, none passes while the store answers.)
    let timeout = timeout.filter(|_| limiter.manual_clock().is_none());
    let most = timeout.map_or(Duration::MAX, |timeout| timeout.max(SLICE));
    let terms = Terms::now(grace)?;
    match MayWait::in_slices(Instant::now(), most, most, || limiter.claim(key, weight, terms)) {
        Ok(Claim::Place { place, .. }) => limiter.cancel_place(&place).map(|()| Ok(None)),
        Ok(claim) => Ok(Ok(Some(claim))),
        Err(Error::WouldWait) if MayWait::here() == MayWait::UntilTimeout => {
            limiter.sent_away(key, weight);
            Ok(Err(LOOK_AGAIN))
        }
        Err(error) => Err(error),
    }
}

/// How long until a tick.
fn until(tick: Tick, clock: &Clock) -> Duration {
    from_ticks(tick.saturating_sub(clock.now().floor))
}

/// A thread sleeps at its seat.
fn sleep_in(shared: &Shared, limiter: &dyn Limiter, (key, rank): (&str, Rank), clock: &Clock, nap: Duration) {
    let (nap, heard) = {
        let mut room = lock(shared);
        let leads = room.leader.is_none();
        let wakes = if leads { room.line.next() } else { room.line.deadline(rank) };
        let nap = nap.min(until(wakes, clock));
        if nap.is_zero() || room.over.contains_key(&rank) {
            return;
        }
        if leads {
            (room.leader, room.leads_until) = (Some(rank), wakes);
        }
        room.asleep.insert(rank, thread::current());
        (nap, room.heard.filter(|_| leads))
    };
    match heard {
        Some(heard) => limiter.sleep_on_bell(key, heard, nap),
        None => doze(limiter, key, clock, nap),
    }
    let mut room = lock(shared);
    room.asleep.remove(&rank);
    if room.leader == Some(rank) {
        room.leader = None;
    }
}

/// Sleeps until the thread is unparked, at most for `nap`.
fn doze(limiter: &dyn Limiter, key: &str, clock: &Clock, nap: Duration) {
    if clock.is_manual() {
        return clock.sleep(nap);
    }
    let is_short = || limiter.window(key).is_ok_and(|window| window.is_some_and(|window| window < SHORT_WINDOW));
    if nap > Duration::from_secs(1) || !is_short() {
        return thread::park_timeout(nap);
    }
    let end = clock.now().floor + nap.as_micros() as Tick;
    if nap > LATENESS {
        thread::park_timeout(nap - LATENESS);
    } else {
        while clock.now().floor < end {
            std::hint::spin_loop();
        }
    }
}

/// Waits for room in the line that all threads of this process share: [`Attempt::Denied`] says that there is none before the
/// waiter's time is up, at once if that can be known at once.
///
/// # Errors
/// As for [`Limiter::attempt`].
pub fn acquire(limiter: &dyn Limiter, waiter: Waiter<'_>) -> Result<Attempt> {
    let asked = || if waiter.place.is_none() { at_once(limiter, &waiter) } else { Ok(Ok(None)) };
    let mut seat = match errors_told(limiter, waiter.key, waiter.weight, asked)? {
        Ok(Some(Claim::Started(permit))) => return Ok(Attempt::Admitted(permit)),
        Ok(asked) => Seat { asked, ..Seat::new(waiter) },
        Err(after) => return Ok(Attempt::Denied(after)),
    };
    loop {
        match seat.step(limiter)? {
            Step::Admitted(permit) => return Ok(Attempt::Admitted(permit)),
            Step::Expired(after) => return Ok(Attempt::Denied(after)),
            Step::Sleep(_) => seat.sleep(limiter, Duration::MAX),
        }
    }
}
