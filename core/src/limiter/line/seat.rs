//! The waiters of a process's blocking threads, and of callers that wait in steps: one line per limiter and key.
//!
//! One of the sleeping threads, the *leader*, sleeps until the line has to be advanced, and advances it for all. The
//! others sleep until they are woken, or until they time out. A thread that stops leading wakes the next one. A caller
//! that takes steps without sleeping here also advances the line, but never leads: its next step may come late, or
//! never.

use super::key::{KeyLine, Out, Pass};
use super::own_place::OwnPlace;
use super::{Claim, Outcome, Rank, SLICE, Step, Terms, Waiter};
use crate::charges::line_key;
use crate::decision::LOOK_AGAIN;
use crate::error::{Error, Result};
use crate::fork::{self, MAX_NAP, PerProcess};
use crate::limiter::events::{Call, reporting_errors};
use crate::limiter::{Attempt, Limiter};
use crate::permit::RawPermit;
use crate::time::{Clock, Tick, from_ticks};
use crate::waiting::{AtOnce, InLine, MayWait};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// No thread sleeps more precisely than this.
const LATENESS: Duration = Duration::from_micros(200);

/// In a shorter window the grace of a place does not cover that lateness, so a leader spins through the last moments.
const SHORT_WINDOW: Duration = Duration::from_millis(4);

/// The longest nap of a caller that has to see for itself whether the bell rings.
const LOOK_AT_BELL: Duration = Duration::from_millis(16);

/// The lines of one limiter's threads. A forked child has its own.
#[derive(Debug)]
pub struct Seats {
    keys: PerProcess<HashMap<Box<str>, Handle>>,
}

type Handle = Arc<Mutex<SharedLine>>;

/// The line of one key, and its threads.
#[derive(Debug, Default)]
struct SharedLine {
    line: KeyLine,
    last: u64,
    leader: Option<Rank>,
    /// The end of the leader's sleep.
    leads_until: Tick,
    /// The bell's reading before the line was advanced.
    bell: Option<u64>,
    /// The sleeping threads.
    asleep: BTreeMap<Rank, Thread>,
    /// Outcomes that were not collected.
    over: HashMap<Rank, Outcome>,
}

impl Seats {
    pub(crate) const fn new() -> Seats {
        Seats { keys: PerProcess::new() }
    }

    /// Returns whether a caller waits under this key.
    fn is_used(&self, key: &str) -> bool {
        let keys = self.keys.lock();
        !keys.is_empty() && keys.contains_key(&*line_key(key))
    }

    fn line_of(&self, key: &str) -> Handle {
        let mut keys = self.keys.lock();
        match keys.get(key) {
            Some(handle) => handle.clone(),
            None => keys.entry(key.into()).or_default().clone(),
        }
    }

    /// Forgets a key's line after its last waiter. Other callers join only through `keys`, so two references are the
    /// last ones.
    fn tidy(&self, key: &str, handle: Handle) {
        let mut keys = self.keys.lock();
        if Arc::strong_count(&handle) == 2 {
            keys.remove(key);
        }
    }
}

fn lock(handle: &Handle) -> MutexGuard<'_, SharedLine> {
    handle.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same, at most for this long: its holder may be asking a silent server.
fn lock_within(handle: &Handle, most: Option<Duration>) -> Option<MutexGuard<'_, SharedLine>> {
    let Some(most) = most else { return Some(lock(handle)) };
    let (began, mut nap) = (Instant::now(), Duration::from_micros(20));
    loop {
        match handle.try_lock() {
            Ok(shared) => return Some(shared),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if began.elapsed() >= most => return None,
            Err(TryLockError::WouldBlock) => {
                thread::sleep(nap);
                nap = (nap * 2).min(MAX_NAP);
            }
        }
    }
}

/// One waiter of this process, in the line that all its threads share.
///
/// Every call takes the limiter that the seat was taken at. A seat that is no longer needed has to be given up with
/// [`Seat::leave`]. A forked child that continues with its parent's seat takes a seat of its own.
#[derive(Debug)]
pub struct Seat {
    key: Box<str>,
    /// The key of its line, if it is another one.
    line: Option<Box<str>>,
    weight: u64,
    priority: i32,
    share: Option<u32>,
    timeout: Option<Duration>,
    grace: Duration,
    place: State,
    /// The reply to the first request, before the waiter joined a line.
    asked: Option<Claim>,
    generation: u64,
}

#[derive(Debug)]
enum State {
    /// It has not asked yet, and may already have a place.
    New(Option<RawPermit>),
    OwnPlace(OwnPlace),
    InLine(Rank, Handle),
    Over,
}

impl Seat {
    /// Makes a waiter that asks at its first step.
    pub fn new(waiter: Waiter<'_>) -> Seat {
        let Waiter { key, weight, priority, share, timeout, grace, place } = waiter;
        let generation = fork::generation();
        let line = if let Cow::Owned(line) = line_key(key) { Some(line.into()) } else { None };
        Seat {
            key: key.into(),
            line,
            weight,
            priority,
            share,
            timeout,
            grace,
            place: State::New(place),
            asked: None,
            generation,
        }
    }

    /// Returns the key of its line.
    fn line(&self) -> &str {
        self.line.as_deref().unwrap_or(&self.key)
    }

    /// Starts if no other caller waits and enough units are free. For callers that must not wait for other waiters (see
    /// [`MayWait`]). Returns `None` otherwise, also where it would have to wait for the store: take
    /// steps then.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    pub fn start_at_once(&mut self, limiter: &dyn Limiter) -> Result<Option<RawPermit>> {
        if !matches!(self.place, State::New(None)) || limiter.base().seats.is_used(&self.key) {
            return Ok(None);
        }
        let _in_line = InLine::enter();
        let terms = || Terms::now(self.grace, self.timeout, (self.share, self.priority));
        let claim = || limiter.claim(&self.key, self.weight, terms()?);
        let (place, started) = match reporting_errors(limiter, &self.key, self.weight, claim) {
            Ok(Claim::Started(permit)) => (State::Over, Some(permit)),
            Ok(Claim::Place { place, .. }) => (State::New(Some(place)), None),
            Ok(Claim::Denied { .. } | Claim::Behind { .. } | Claim::Full { .. }) | Err(Error::WouldWait) => {
                (State::New(None), None)
            }
            Err(error) => return Err(error),
        };
        self.place = place;
        Ok(started)
    }

    /// Returns the next action: start; sleep, at most for the given time, and take another step; or give up, because
    /// the waiter timed out. After a start, an end or an error the seat is given up.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    pub fn step(&mut self, limiter: &dyn Limiter) -> Result<Step> {
        let Some(call) = Call::of(limiter, &self.key, self.weight) else { return self.quiet_step(limiter) };
        let throttling = match &self.place {
            State::New(place) => Some(call.forecast(place.as_ref())),
            _ => None,
        };
        let step = self.quiet_step(limiter);
        call.report_error(step.as_ref().err());
        if let (Ok(Step::Sleep(_) | Step::Expired(_)), Some(throttling)) = (&step, throttling) {
            call.report_throttling(throttling);
        }
        step
    }

    fn quiet_step(&mut self, limiter: &dyn Limiter) -> Result<Step> {
        let clock = Clock::new(0, limiter.manual_clock());
        if self.generation != fork::generation() {
            // The place and the seat belong to the parent.
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

    /// Returns the outcome, or how long to sleep.
    fn try_step(&mut self, limiter: &dyn Limiter, clock: &Clock) -> Result<Result<Outcome, Duration>> {
        let now = clock.now().floor;
        match self.place {
            State::New(Some(place)) => {
                self.place = State::OwnPlace(OwnPlace::new(place, now, self.timeout));
            }
            State::New(None) => {
                if let Some(outcome) = self.take(limiter, clock)? {
                    return Ok(Ok(outcome));
                }
            }
            _ => {}
        }
        match &mut self.place {
            State::OwnPlace(own) if own.due > now && limiter.closed_store().is_none() => {
                Ok(Err(from_ticks(own.due - now)))
            }
            State::OwnPlace(own) => {
                let outcome = own.advance(limiter, now, super::slice(limiter));
                Ok(outcome.ok_or_else(|| from_ticks(own.due - now)))
            }
            State::InLine(rank, handle) => {
                let key = self.line.as_deref().unwrap_or(&self.key);
                Ok(lock(handle).step(&Pass::new(limiter, key, clock), *rank))
            }
            State::New(_) | State::Over => Ok(Ok(Outcome::Expired(Duration::ZERO))),
        }
    }

    /// Sleeps between two steps, at most for `nap`, and less if the line changes.
    pub fn sleep(&self, limiter: &dyn Limiter, nap: Duration) {
        let clock = Clock::new(0, limiter.manual_clock());
        match &self.place {
            State::InLine(rank, handle) => sleep_in(handle, limiter, (self.line(), *rank), &clock, nap),
            State::OwnPlace(own) => doze(limiter, &self.key, &clock, nap.min(until(own.due, &clock))),
            State::New(_) | State::Over => {}
        }
    }

    /// Gives the seat up. Its place goes to the next waiter, or back; a start that was not collected is cancelled.
    pub fn leave(&mut self, limiter: &dyn Limiter) {
        if self.generation == fork::generation() {
            match &self.place {
                // If this fails, the place expires unused.
                State::OwnPlace(own) => drop(limiter.cancel_place(&own.place)),
                State::InLine(rank, handle) => {
                    let mut shared = lock(handle);
                    shared.line.leave(limiter, *rank);
                    if let Some(Outcome::Admitted(permit)) = shared.over.remove(rank) {
                        drop(shared);
                        let _ = limiter.cancel(&permit);
                    }
                }
                State::New(_) | State::Over => {}
            }
            self.vacate(limiter);
        }
    }

    /// Leaves the seat to the next waiter.
    fn vacate(&mut self, limiter: &dyn Limiter) {
        if let State::InLine(rank, handle) = std::mem::replace(&mut self.place, State::Over) {
            lock(&handle).hand_over(rank);
            limiter.base().seats.tidy(self.line(), handle);
        }
    }

    /// Asks for the first time: starts immediately if no other caller waits and enough units are free, or joins the
    /// line.
    fn take(&mut self, limiter: &dyn Limiter, clock: &Clock) -> Result<Option<Outcome>> {
        let key = &*self.key;
        let waiter =
            Waiter { timeout: self.timeout, grace: self.grace, share: self.share, ..Waiter::new(key, self.weight) };
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
        let handle = limiter.base().seats.line_of(self.line());
        let most = self.timeout.filter(|_| !clock.is_manual()).map(|timeout| timeout.max(SLICE));
        let Some(mut shared) = lock_within(&handle, most) else {
            limiter.sent_away(key, self.weight);
            limiter.base().seats.tidy(self.line(), handle);
            return Ok(Some(Outcome::Expired(LOOK_AGAIN)));
        };
        shared.last += 1;
        let rank = (self.priority, shared.last);
        let (pass, mut out) = (Pass::new(limiter, self.line(), clock), Out::new());
        if shared.line.is_empty() {
            shared.bell = limiter.read_bell(self.line());
        }
        let pass = Pass { has_bell: shared.bell.is_some(), ..pass };
        let joined = shared.line.join(&pass, (rank, waiter), asked, &mut out);
        shared.line.write_taken(&pass, &mut out);
        shared.publish(out);
        if shared.line.next() < shared.leads_until {
            shared.wake_leader();
        }
        drop(shared);
        self.place = State::InLine(rank, handle);
        joined.map(|()| None)
    }
}

impl SharedLine {
    /// Returns the outcome of a waiter, or how long it may sleep.
    fn step(&mut self, pass: &Pass, rank: Rank) -> Result<Outcome, Duration> {
        let now = pass.clock.now().floor;
        let rings = self.bell.is_some_and(|bell| pass.limiter.read_bell(pass.key) != Some(bell));
        let is_closed = || pass.limiter.closed_store().is_some();
        if !self.over.contains_key(&rank) && (rings || self.line.next() <= now || is_closed()) {
            if rings {
                self.line.wake(now);
            }
            // Read before anything is asked: a later completion rings once more.
            self.bell = pass.limiter.read_bell(pass.key);
            let mut out = Out::new();
            let pass =
                &Pass { has_bell: self.bell.is_some(), _in_line: InLine::enter(), _at_once: AtOnce::enter(), ..*pass };
            self.line.advance(pass, &mut out);
            self.line.write_taken(pass, &mut out);
            self.publish(out);
        }
        // Nobody calls a caller that takes steps without sleeping here.
        let most = if self.bell.is_some() { LOOK_AT_BELL } else { Duration::MAX };
        self.over.remove(&rank).ok_or_else(|| until(self.line.needs(pass, rank), pass.clock).min(most))
    }

    fn publish(&mut self, out: Out) {
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

    /// Handles the end of a waiter: if there is no leader, the first sleeping thread wakes up and leads.
    fn hand_over(&mut self, rank: Rank) {
        if self.leader == Some(rank) {
            self.leader = None;
        }
        if let (None, Some((_, thread))) = (self.leader, self.asleep.first_key_value()) {
            thread.unpark();
        }
    }
}

/// Starts if no other caller waits and enough units are free; `Ok(None)` if another caller waits. It takes no lock, so
/// that callers that have to wait for the ledger wait for it together. The inner error is a retry delay: the caller
/// timed out before the store answered.
fn at_once(limiter: &dyn Limiter, waiter: &Waiter) -> Result<Result<Option<Claim>, Duration>> {
    let &Waiter { key, weight, timeout, grace, share, priority, .. } = waiter;
    if limiter.base().seats.is_used(key) {
        return Ok(Ok(None));
    }
    let (terms, _in_line) = (Terms::now(grace, timeout, (share, priority))?, InLine::enter());
    // (With a manual clock, no time passes while the store answers.)
    let timeout = timeout.filter(|_| limiter.manual_clock().is_none());
    let most = timeout.map_or(Duration::MAX, |timeout| timeout.max(SLICE));
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

/// Returns the time until a tick.
fn until(tick: Tick, clock: &Clock) -> Duration {
    from_ticks(tick.saturating_sub(clock.now().floor))
}

/// Puts a thread to sleep at its seat.
fn sleep_in(handle: &Handle, limiter: &dyn Limiter, (key, rank): (&str, Rank), clock: &Clock, nap: Duration) {
    let (nap, bell, calls) = {
        let mut shared = lock(handle);
        let leads = shared.leader.is_none();
        let wakes = if leads { shared.line.next() } else { shared.line.deadline(rank) };
        let nap = nap.min(until(wakes, clock));
        if nap.is_zero() || shared.over.contains_key(&rank) {
            return;
        }
        if leads {
            (shared.leader, shared.leads_until) = (Some(rank), wakes);
        }
        shared.asleep.insert(rank, thread::current());
        (nap, shared.bell.filter(|_| leads), shared.line.calls())
    };
    match bell {
        Some(bell) => MayWait::in_slice(Instant::now(), nap, || limiter.sleep_on_bell(key, bell, nap, calls)),
        None => doze(limiter, key, clock, nap),
    }
    let mut shared = lock(handle);
    shared.asleep.remove(&rank);
    if shared.leader == Some(rank) {
        shared.leader = None;
    }
}

/// Sleeps until the thread is unparked, at most for `nap`.
fn doze(limiter: &dyn Limiter, key: &str, clock: &Clock, nap: Duration) {
    if clock.is_manual() {
        return clock.sleep(nap);
    }
    let thread = thread::current();
    let woken = limiter.wake_at_close(Arc::new(move || thread.unpark()));
    if woken.is_late() {
        return;
    }
    let _at_once = AtOnce::enter();
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

/// Waits for units in the line that all threads of this process share. Returns [`Attempt::Denied`] if they are not free
/// before the waiter times out, and returns it immediately if that is known in advance.
///
/// # Errors
/// As for [`Limiter::attempt`].
pub fn acquire(limiter: &dyn Limiter, waiter: Waiter<'_>) -> Result<Attempt> {
    let asked = || if waiter.place.is_none() { at_once(limiter, &waiter) } else { Ok(Ok(None)) };
    let mut seat = match reporting_errors(limiter, waiter.key, waiter.weight, asked)? {
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
