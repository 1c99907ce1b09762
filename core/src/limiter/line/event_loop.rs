//! The waiters of one event loop.

use super::errands::{Back, COMING_BACK, Errand, Errands, Joining};
use super::key::{KeyLine, Out, Pass, Wanted};
use super::own_place::OwnPlace;
use super::tenants::TenantLines;
use super::{Outcome, Rank, Waiter};
use crate::charges::{is_joint, keys_of, line_key, may_be_joint};
use crate::decision::LOOK_AGAIN;
use crate::error::{Error, Result};
use crate::fork;
use crate::limiter::Limiter;
use crate::limiter::events::Call;
use crate::permit::RawPermit;
use crate::state::{Wake, Woken};
use crate::time::{Clock, Tick, from_ticks};
use crate::waiting::MayWait;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest duration of one call. The rest is due immediately.
const BATCH: Duration = Duration::from_millis(8);

/// How often to look whether a line is back, if nobody wakes the driver, in ticks.
const LOOK_BACK: Tick = 1_000_000;

/// The delay before another attempt to give something back.
const GIVE_BACK_AGAIN: Duration = Duration::from_millis(1);

/// The most lines of joint starts that a completion wakes, and of how many it sees whether it concerns them. The others look
/// by themselves.
const MOST_WOKEN: usize = 16;
const MOST_LOOKED_AT: usize = 64;

/// The number of a waiter of a [`Line`]. Numbers are not reused.
pub type WaiterId = u64;

/// The result of joining a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Joined {
    /// The wait is already over.
    Done(Outcome),
    /// [`Line::advance`] returns the outcome later.
    Waiting(WaiterId),
}

/// The waiters of one limiter in one event loop: one line per key. It never sleeps, and the loop keeps one timer for it.
/// It starts no threads and makes no callbacks, except as [`Line::with_wake`] says.
///
/// Within a key, waiters start in the order of their priority and then of their requests. Dropping the line gives back
/// what its waiters hold. A forked child finds it empty: the waiters belong to the parent.
///
/// ```
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use workglow_limit::embed::{Joined, Line, Outcome, Waiter};
/// # use workglow_limit::{RateLimiter, Store};
/// let store = Store::new("memory:")?;
/// let limiter = Arc::new(RateLimiter::new(&store, "api", 2, Duration::from_millis(20))?);
/// let mut line = Line::new(limiter);
/// for _ in 0..5 {
///     match line.join(Waiter::new("tenant", 1))? {
///         Joined::Done(outcome) => println!("{outcome:?}"), // units were free
///         Joined::Waiting(id) => println!("{id} waits"),
///     }
/// }
/// // The work of the loop's timer:
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
    /// The lines of joint starts, in the order of their first waiters. What another key gives back may be theirs, too.
    joint: BTreeSet<(Rank, Arc<str>)>,
    /// The position of each waiter.
    waiters: HashMap<WaiterId, Seated>,
    last_id: WaiterId,
    /// Outcomes outside of [`Line::advance`], which returns them at its next call.
    over: Vec<(WaiterId, Outcome)>,
    /// The keys with work for a call that may wait.
    blocked: HashSet<Arc<str>>,
    /// The keys whose starts have to be written to the ledger: together, by a call that may wait.
    taken: Vec<Arc<str>>,
    /// Whether a waiter with its own place has such work.
    is_own_place_blocked: bool,
    /// Holdings of removed waiters, to be given back by a call that may wait: permits, and whether they are places.
    left: Vec<(RawPermit, bool)>,
    /// Whether the last call waited for the store in vain: later waiters then only try.
    is_stuck: bool,
    /// Used from the first waiter on, when a composite has its limiters.
    wake: Option<Wake>,
    /// While there are waiters: their stores may be closed.
    woken: Option<Woken>,
    /// With a server: what threads do.
    errands: Option<Errands>,
    tenants: TenantLines,
    /// The deadlines of waiters whose lines may be in a thread.
    deadlines: BTreeSet<(Tick, WaiterId)>,
    generation: u64,
}

#[derive(Debug, Default)]
struct Entry {
    line: KeyLine,
    /// The entries of this key in [`Line::due`] and [`Line::joint`].
    due: Option<(Tick, Rank)>,
    is_joint: bool,
    /// Where it is in [`Line::tenants`].
    shown_at: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// With its first waiter: what is due at the same moment is asked in the order of these.
    Key(Rank, Arc<str>),
    OwnPlace(WaiterId),
}

#[derive(Debug)]
enum Seated {
    At { key: Arc<str>, rank: Rank, wanted: Wanted, deadline: Tick },
    OwnPlace(OwnPlace),
}

impl Line {
    /// Makes an empty line for a limiter. Opens nothing.
    pub fn new(limiter: Arc<dyn Limiter>) -> Line {
        Self::of(limiter, None)
    }

    /// Makes a line for a loop that must [never wait](crate::embed::MayWait::Never). If its limit is on a server, threads of the
    /// library ask for its keys, each on its own. They call `wake` when an answer is there, so that the loop calls
    /// [`Line::advance`] before its time. Otherwise this is [`Line::new`].
    pub fn with_wake(limiter: Arc<dyn Limiter>, wake: impl Fn() + Send + Sync + 'static) -> Line {
        Self::of(limiter, Some(Arc::new(wake)))
    }

    fn of(limiter: Arc<dyn Limiter>, wake: Option<Wake>) -> Line {
        Line {
            limiter,
            keys: HashMap::new(),
            due: BTreeSet::new(),
            joint: BTreeSet::new(),
            waiters: HashMap::new(),
            last_id: 0,
            over: Vec::new(),
            blocked: HashSet::new(),
            taken: Vec::new(),
            is_own_place_blocked: false,
            left: Vec::new(),
            is_stuck: false,
            wake,
            woken: None,
            errands: None,
            tenants: TenantLines::default(),
            deadlines: BTreeSet::new(),
            generation: fork::generation(),
        }
    }

    /// Returns the number of waiters.
    pub fn len(&self) -> usize {
        if self.is_the_parent_s() { 0 } else { self.waiters.len() }
    }

    /// Returns whether there are no waiters.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Joins the line, or starts immediately. After [`Joined::Waiting`], check [`Line::next`]: the timer may have to be
    /// set earlier.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`]. After an error the waiter has not joined.
    pub fn join(&mut self, waiter: Waiter<'_>) -> Result<Joined> {
        let limiter = self.limiter.clone();
        let Some(call) = Call::of(&*limiter, waiter.key, waiter.weight) else { return self.quiet_join(waiter) };
        let held = call.forecast(waiter.place.as_ref());
        let mut joined = self.quiet_join(waiter);
        if joined.is_ok() && waiter.place.is_none() && self.is_away(&line_key(waiter.key)) {
            return joined; // Its thread reports what becomes of it.
        }
        if let Ok(Joined::Waiting(id)) = joined
            && MayWait::here() == MayWait::Never
            && self.blocked.contains(&*line_key(waiter.key))
        {
            // The limiter has not been asked for this waiter yet, so there is nothing to report.
            self.leave(id);
            joined = Err(Error::WouldWait);
        }
        call.report_error(joined.as_ref().err());
        if matches!(joined, Ok(Joined::Waiting(_) | Joined::Done(Outcome::Expired(_)))) {
            call.report_throttling(held);
        }
        joined
    }

    /// After [`Line::join`] returned [`Error::WouldWait`], in a thread that may wait: does what a first start of this key waits
    /// for, at most for moments. If it did something, the loop can call [`Line::join`] again. The start is then decided there,
    /// when its caller goes on, not in this thread, long before a busy loop comes to it. If not, the start itself has to wait:
    /// join in this thread.
    pub fn prepare(&self, key: &str) -> bool {
        let prepare = || self.limiter.prepare(key);
        MayWait::Never.during(|| self.is_unprepared(key))
            && MayWait::in_slice(Instant::now(), self.slice(), prepare).is_ok()
    }

    /// Returns whether a caller that must not wait has to wait for what [`Line::prepare`] does.
    fn is_unprepared(&self, key: &str) -> bool {
        let is_never = MayWait::here() == MayWait::Never && self.errands.is_none();
        is_never && self.limiter.prepare(key) == Err(Error::WouldWait)
    }

    fn quiet_join(&mut self, waiter: Waiter<'_>) -> Result<Joined> {
        self.forget_parents_waiters();
        if let (Some(wake), None) = (&self.wake, &self.woken) {
            self.woken = Some(self.limiter.wake_at_close(wake.clone()));
            if self.errands.is_none() {
                self.errands = Errands::of(&*self.limiter, wake.clone());
            }
        }
        let (clock, since) = (self.clock(), Instant::now());
        let now = clock.now().floor;
        self.last_id += 1;
        let id = self.last_id;
        if let Some(place) = waiter.place {
            let mut own = OwnPlace::new(place, now, waiter.timeout);
            return match own.advance(&*self.limiter, now, self.slice()) {
                Some(Outcome::Failed(error)) => Err(error),
                Some(outcome) => Ok(Joined::Done(outcome)),
                None => {
                    self.due.insert((own.due, Due::OwnPlace(id)));
                    self.waiters.insert(id, Seated::OwnPlace(own));
                    Ok(Joined::Waiting(id))
                }
            };
        }
        let (rank, deadline) = ((waiter.priority, id), super::deadline(now, waiter.timeout));
        let line_key = line_key(waiter.key);
        let wanted = Wanted::of(&line_key, waiter.key, waiter.weight);
        let joining = Joining { rank, wanted, grace: waiter.grace, deadline, since };
        if self.is_away(&line_key) {
            self.seat((&*line_key).into(), &joining);
            if let Some(errands) = &mut self.errands {
                errands.join_later(&line_key, joining);
            }
            return Ok(Joined::Waiting(id));
        }
        let (key, mut entry) = match self.keys.remove_entry(&*line_key) {
            Some(known) => known,
            None => ((&*line_key).into(), Entry::default()),
        };
        let mut out = Out::new();
        // One outcome, like `advance_one`.
        let most = usize::from(self.over.is_empty());
        let pass = Pass { slice: self.slice(), most, ..Pass::new(&*self.limiter, &key, &clock) };
        let joined = entry.line.join(&pass, (rank, waiter), None, &mut out);
        // Outcomes of other waiters, and all outcomes after those, are returned by the next `advance`.
        let is_own = self.over.is_empty() && matches!(&out[..], [(other, _)] if *other == rank);
        let own = if is_own { out.pop().map(|(_, outcome)| outcome) } else { None };
        let would_wait = joined == Err(Error::WouldWait) || entry.line.is_blocked();
        let is_over = own.is_some() || out.iter().any(|(other, _)| *other == rank);
        if would_wait && !is_over && self.has_errands() {
            // It joins in the thread, which can ask for it.
            entry.line.leave(&*self.limiter, rank);
            self.publish(&key, out);
            self.seat(key.clone(), &joining);
            self.send(key, entry, Errand { joining: vec![joining], ..Errand::default() });
            return Ok(Joined::Waiting(id));
        }
        let is_unprepared = would_wait && !is_over && self.is_unprepared(&key);
        if is_unprepared {
            entry.line.leave(&*self.limiter, rank);
        } else if joined.is_ok() && own.is_none() {
            self.seat(key.clone(), &joining);
        }
        self.publish(&key, out);
        self.keep(key, entry);
        self.pass_turn();
        joined?;
        if is_unprepared {
            return Err(Error::WouldWait);
        }
        match own {
            Some(Outcome::Failed(error)) => Err(error),
            Some(outcome) => Ok(Joined::Done(outcome)),
            None => Ok(Joined::Waiting(id)),
        }
    }

    fn seat(&mut self, key: Arc<str>, &Joining { rank, ref wanted, deadline, .. }: &Joining) {
        let (_, id) = rank;
        if self.errands.is_some() && deadline != Tick::MAX {
            self.deadlines.insert((deadline, id));
        }
        self.waiters.insert(id, Seated::At { key, rank, wanted: wanted.clone(), deadline });
    }

    /// Removes a waiter and returns where it was.
    fn unseat(&mut self, id: WaiterId) -> Option<Seated> {
        let seated = self.waiters.remove(&id)?;
        if let Seated::At { deadline, .. } = seated {
            self.deadlines.remove(&(deadline, id));
        }
        Some(seated)
    }

    /// Returns whether a call that would have to wait for the server is left to a thread.
    fn has_errands(&self) -> bool {
        self.errands.is_some() && matches!(MayWait::here(), MayWait::Never | MayWait::BrieflyHere)
    }

    fn is_away(&self, key: &str) -> bool {
        self.errands.as_ref().is_some_and(|errands| errands.has(key))
    }

    /// Lets a thread ask for a key.
    fn send(&mut self, key: Arc<str>, mut entry: Entry, errand: Errand) {
        self.forget_entries(&key, &mut entry);
        if let Some(errands) = &mut self.errands {
            let keys = self.keys.len() + errands.len() + 1;
            errands.send(&self.limiter, key, Errand { line: entry.line, keys, ..errand });
        }
    }

    /// Takes back the lines that threads have finished with.
    fn take_back(&mut self) {
        let all = self.errands.as_mut().map(Errands::take).unwrap_or_default();
        for Back { key, mut line, out, joining, left, is_woken } in all {
            let (gone, out): (Out, Out) = out.into_iter().partition(|(rank, _)| left.contains(rank));
            self.publish(&key, out);
            let unwanted: Vec<RawPermit> = gone.into_iter().filter_map(|(_, outcome)| outcome.permit()).collect();
            left.into_iter().for_each(|rank| line.leave(&*self.limiter, rank));
            if is_woken {
                line.wake(self.clock().now().floor);
            }
            let entry = Entry { line, ..Entry::default() };
            match joining.is_empty() && unwanted.is_empty() {
                true => self.keep(key, entry),
                false => self.send(key, entry, Errand { unwanted, joining, ..Errand::default() }),
            }
        }
    }

    /// Ends all waits, if a store behind the limiter is closed.
    fn end_if_closed(&mut self) {
        if self.waiters.is_empty() {
            self.woken = None;
            return;
        }
        let Some(error) = self.limiter.closed_store() else { return };
        let clock = self.clock();
        for key in self.keys.keys().cloned().collect::<Vec<_>>() {
            self.advance_key(key, &clock, usize::MAX);
        }
        // The others have places of their own, or their lines are in threads, which may wait for a server.
        for id in self.waiters.keys().copied().collect::<Vec<_>>() {
            match self.unseat(id) {
                Some(Seated::At { key, rank, .. }) => {
                    let _ = self.errands.as_mut().is_some_and(|errands| errands.leave(&key, rank));
                }
                Some(Seated::OwnPlace(own)) => {
                    self.due.remove(&(own.due, Due::OwnPlace(id)));
                    self.give_back(own.place, true);
                }
                None => {}
            }
            self.report_error("", &error);
            self.over.push((id, Outcome::Failed(error.clone())));
        }
        self.woken = None;
    }

    /// Ends the waits of those whose lines do not come back in time.
    fn expire_away(&mut self, now: Tick) {
        while let Some(&(deadline, id)) = self.deadlines.first()
            && deadline.saturating_add(COMING_BACK) <= now
        {
            self.deadlines.pop_first();
            let Some(Seated::At { key, rank, wanted, .. }) = self.waiters.get(&id) else { continue };
            if self.errands.as_mut().is_some_and(|errands| errands.leave(key, *rank)) {
                self.limiter.sent_away(wanted.key(key), wanted.weight);
                self.waiters.remove(&id);
                self.over.push((id, Outcome::Expired(LOOK_AGAIN)));
            }
        }
    }

    /// Returns the waiter that [`Line::advance_one`] would start now, if that is known without asking the store. A loop that cannot
    /// run a waiter at once wakes it first, and calls [`Line::advance_one`] when that waiter goes on. So its start counts from then,
    /// however long the loop was busy in between. (The outcome may be another one by then, also another waiter's.)
    pub fn next_to_start(&self) -> Option<WaiterId> {
        if self.is_the_parent_s() || !self.over.is_empty() {
            return None;
        }
        let now = self.clock().now().floor;
        match self.due.first()? {
            (due, _) if *due > now => None,
            (_, Due::OwnPlace(id)) => Some(*id),
            (_, Due::Key(_, key)) => {
                let clock = self.clock();
                let pass = Pass { slice: self.slice(), ..Pass::new(&*self.limiter, key, &clock) };
                self.keys.get(key)?.line.next_to_start(&pass).map(|(_, id)| id)
            }
        }
    }

    /// Does all work that is due, and appends the waits that ended. Returns the time until it has to be called again;
    /// `None`: there are no waiters. Call it after that time, and at any other time; a call with nothing due is cheap.
    pub fn advance(&mut self, over: &mut Vec<(WaiterId, Outcome)>) -> Option<Duration> {
        self.advance_by(usize::MAX, over)
    }

    /// Does the same, but stops after one wait has ended; the others are due immediately. A start counts from this call
    /// on. So a loop that runs each waiter before it calls this again starts all of them when they count, however long
    /// each of them keeps the loop busy. (Waits that end while others wait for the store together, end together.)
    pub fn advance_one(&mut self, over: &mut Vec<(WaiterId, Outcome)>) -> Option<Duration> {
        self.advance_by(1, over)
    }

    fn advance_by(&mut self, most: usize, over: &mut Vec<(WaiterId, Outcome)>) -> Option<Duration> {
        let before = over.len();
        self.forget_parents_waiters();
        self.take_back();
        self.end_if_closed();
        self.expire_away(self.clock().now().floor);
        over.append(&mut self.over);
        (self.is_own_place_blocked, self.is_stuck) = (false, false);
        for (permit, is_place) in std::mem::take(&mut self.left) {
            self.give_back(permit, is_place);
        }
        let (clock, mut began) = (self.clock(), Instant::now());
        if self.gives_back_late(&clock) {
            return self.next();
        }
        self.write_taken(&clock);
        let now = clock.now().floor;
        let mut blocked = Vec::new();
        while self.due.first().is_some_and(|(due, _)| *due <= now) && !super::is_over(began, BATCH, &clock) {
            let left = most.saturating_sub(over.len() - before);
            if left == 0 {
                break;
            }
            let was_stuck = self.is_stuck;
            match self.due.pop_first() {
                Some((_, Due::Key(_, key))) => {
                    self.advance_key(key.clone(), &clock, left);
                    if self.blocked.contains(&key)
                        && let Some((due, first)) = self.keys.get(&key).and_then(|entry| entry.due)
                    {
                        // Asking again immediately would fail too.
                        let due = (due, Due::Key(first, key));
                        self.due.remove(&due);
                        blocked.push(due);
                    }
                }
                Some((_, Due::OwnPlace(id))) => self.advance_own_place(id, now),
                None => break,
            }
            over.append(&mut self.over);
            if !was_stuck && self.is_stuck {
                began = Instant::now();
            }
        }
        self.due.extend(blocked);
        self.write_taken(&clock);
        over.append(&mut self.over);
        self.next()
    }

    /// In a thread that waits for a loop: gives back what the loop could not. Returns whether that was all there was to do. Then the
    /// loop decides the next starts, when their callers go on, and not this thread, before the loop comes to them.
    fn gives_back_late(&mut self, clock: &Clock) -> bool {
        if self.wake.is_none() || MayWait::here() != MayWait::UntilTimeout || self.blocked.is_empty() {
            return false;
        }
        let mut is_all = true;
        for key in self.blocked.iter().cloned().collect::<Vec<_>>() {
            let Some(mut entry) = self.keys.remove(&key) else { continue };
            let pass = Pass { slice: self.slice(), ..Pass::new(&*self.limiter, &key, clock) };
            is_all &= entry.line.give_back_late(&pass);
            self.keep(key, entry);
        }
        is_all
    }

    /// Writes what was taken at all keys. The first commit serves all of them.
    fn write_taken(&mut self, clock: &Clock) {
        if MayWait::here() != MayWait::UntilTimeout {
            return;
        }
        for key in std::mem::take(&mut self.taken) {
            let Some(mut entry) = self.keys.remove(&key) else { continue };
            let mut out = Out::new();
            let pass = Pass { slice: self.slice(), ..Pass::new(&*self.limiter, &key, clock) };
            entry.line.write_taken(&pass, &mut out);
            self.publish(&key, out);
            self.keep(key, entry);
        }
    }

    /// Returns whether the last calls left work undone because they [must not wait](crate::embed::MayWait). If so, call
    /// [`Line::advance`] from a thread that may wait.
    pub fn would_wait(&self) -> bool {
        let is_due = |clock: Clock| self.due.first().is_some_and(|(due, _)| *due <= clock.now().floor);
        self.is_own_place_blocked
            || !self.left.is_empty()
            || !self.taken.is_empty()
            || !self.blocked.is_empty() && is_due(self.clock())
    }

    /// Returns the time until [`Line::advance`] has to be called; `None`: there are no waiters.
    pub fn next(&self) -> Option<Duration> {
        if self.is_the_parent_s() {
            return None;
        }
        if !self.over.is_empty() || !self.waiters.is_empty() && self.limiter.closed_store().is_some() {
            return Some(Duration::ZERO);
        }
        if !self.taken.is_empty() {
            return Some(Duration::ZERO);
        }
        if !self.left.is_empty() {
            return Some(GIVE_BACK_AGAIN);
        }
        let due = self.due.first().map(|(due, _)| *due);
        let now = self.clock().now().floor;
        let due = match self.errands.as_ref().filter(|errands| errands.len() > 0) {
            None => due?,
            Some(errands) if errands.has_returned() => now,
            Some(_) => {
                let deadline = self.deadlines.first().map(|(deadline, _)| deadline.saturating_add(COMING_BACK));
                due.into_iter().chain(deadline).fold(now.saturating_add(LOOK_BACK), Tick::min)
            }
        };
        Some(from_ticks(due.saturating_sub(now)))
    }

    /// Reports that a start of this key was completed, cancelled or cleared in this process (`None`: the key is
    /// unknown). [`Line::advance`] is then due immediately, and checks for free units.
    /// The first joint starts that charge one of the same keys are woken, too.
    ///
    /// Without this call a waiter for a concurrency limit notices up to 16 ms later. With more than 640 keys in the line
    /// it takes up to 50 ms for each 1,000 of them. A waiter that has a place notices when the place is ready.
    pub fn wake(&mut self, key: Option<&str>) {
        if self.is_the_parent_s() {
            return;
        }
        let now = self.clock().now().floor;
        let Some(key) = key else {
            self.errands.iter_mut().for_each(|errands| errands.wake(None));
            // (Of tenants' lines one has the turn. Those of a composite may have waited for another part.)
            let is_one_line = self.limiter.is_shared() && self.limiter.limit().is_some();
            let is_woken = |entry: &Entry| !is_one_line && (entry.shown_at.is_none() || !self.limiter.is_shared());
            let others = self.keys.iter().filter(|(_, entry)| is_woken(entry));
            let others: Vec<Arc<str>> = others.map(|(key, _)| key.clone()).collect();
            others.into_iter().for_each(|key| self.wake_key(key, now));
            self.tenants.forget_first();
            return self.pass_turn();
        };
        let line = line_key(key);
        let away = if may_be_joint(key) { None } else { Some(&*line) };
        self.errands.iter_mut().for_each(|errands| errands.wake(away));
        if self.keys.is_empty() {
            return;
        }
        let charged = if may_be_joint(key) { keys_of(key) } else { vec![key] };
        let own = charged.iter().copied().chain((line != charged[0]).then_some(&*line));
        let own = own.filter_map(|line| self.keys.get_key_value(line)).map(|(key, _)| key);
        let is_charged = |(_, line): &&(Rank, Arc<str>)| keys_of(line).iter().any(|key| charged.contains(key));
        let joint = self.joint.iter().take(MOST_LOOKED_AT).filter(is_charged).map(|(_, key)| key);
        let all: HashSet<Arc<str>> = own.chain(joint.take(MOST_WOKEN)).cloned().collect();
        all.into_iter().for_each(|key| self.wake_key(key, now));
        self.tenants.forget_first();
        self.pass_turn();
    }

    fn wake_key(&mut self, key: Arc<str>, now: Tick) {
        if let Some(mut entry) = self.keys.remove(&key) {
            entry.line.wake(now);
            self.keep(key, entry);
        }
    }

    /// Makes the line due whose turn has come.
    fn pass_turn(&mut self) {
        if let Some(key) = self.tenants.pass(&*self.limiter) {
            self.wake_key(key, self.clock().now().floor);
        }
    }

    /// Removes a waiter that stops waiting. Its place goes to the next one, or back. A no-op for a wait that is over; a
    /// start that was admitted, but not returned yet, is cancelled.
    pub fn leave(&mut self, id: WaiterId) {
        self.forget_parents_waiters();
        match self.unseat(id) {
            Some(Seated::At { key, rank, .. }) => {
                if self.errands.as_mut().is_some_and(|errands| errands.leave(&key, rank)) {
                    return;
                }
                if let Some(mut entry) = self.keys.remove(&key) {
                    entry.line.leave(&*self.limiter, rank);
                    self.keep(key, entry);
                    self.pass_turn();
                }
            }
            Some(Seated::OwnPlace(own)) => {
                self.due.remove(&(own.due, Due::OwnPlace(id)));
                self.give_back(own.place, true);
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

    /// Gives back a start that [`Line::advance`] has returned and that nobody wants any more, without waiting for a server.
    pub fn give_up(&mut self, permit: RawPermit) {
        self.give_back(permit, false);
    }

    /// Gives back what a removed waiter held, or leaves that to a call that may wait. If it fails otherwise, the place
    /// expires unused.
    fn give_back(&mut self, permit: RawPermit, is_place: bool) {
        let limiter = &self.limiter;
        let given = MayWait::in_slice(Instant::now(), self.slice(), || match is_place {
            true => limiter.cancel_place(&permit),
            false => limiter.cancel(&permit),
        });
        if let Err(Error::WouldWait) = given {
            match self.errands.as_ref().filter(|_| self.has_errands()) {
                Some(errands) => errands.call(&self.limiter, move |limiter| {
                    let _ = if is_place { limiter.cancel_place(&permit) } else { limiter.cancel(&permit) };
                }),
                None => self.left.push((permit, is_place)),
            }
        }
    }

    /// Returns how long the next waiter may wait for the store.
    fn slice(&self) -> Duration {
        if self.is_stuck { Duration::ZERO } else { super::slice(&*self.limiter) }
    }

    fn clock(&self) -> Clock {
        Clock::new(0, self.limiter.manual_clock())
    }

    fn advance_key(&mut self, key: Arc<str>, clock: &Clock, most: usize) {
        let Some(mut entry) = self.keys.remove(&key) else { return };
        self.forget_entries(&key, &mut entry);
        let mut out = Out::new();
        let keys = self.keys.len() + 1;
        let before = entry.line.extent();
        let is_behind = self.tenants.is_behind(entry.line.shown_at());
        let pass = Pass { slice: self.slice(), keys, most, is_behind, ..Pass::new(&*self.limiter, &key, clock) };
        entry.line.advance(&pass, &mut out);
        let is_changed = entry.line.extent() != before;
        self.publish(&key, out);
        self.keep(key, entry);
        if is_changed || !is_behind {
            self.pass_turn();
        }
    }

    fn advance_own_place(&mut self, id: WaiterId, now: Tick) {
        let slice = self.slice();
        let Some(Seated::OwnPlace(own)) = self.waiters.get_mut(&id) else { return };
        match own.advance(&*self.limiter, now, slice) {
            Some(Outcome::Failed(Error::WouldWait)) => {
                self.due.insert((own.due, Due::OwnPlace(id)));
                self.is_own_place_blocked = true;
            }
            Some(outcome) => {
                self.waiters.remove(&id);
                if let Outcome::Failed(error) = &outcome {
                    self.report_error("", error);
                }
                self.over.push((id, outcome));
            }
            None => drop(self.due.insert((own.due, Due::OwnPlace(id)))),
        }
    }

    fn publish(&mut self, key: &str, out: Out) {
        for ((_, id), outcome) in out {
            self.unseat(id);
            if let Outcome::Failed(error) = &outcome {
                self.report_error(key, error);
            }
            self.over.push((id, outcome));
        }
    }

    /// Reports the error of a waiter to the hooks.
    fn report_error(&self, key: &str, error: &Error) {
        if let Some(call) = Call::of(&*self.limiter, key, 1) {
            call.report_error(Some(error));
        }
    }

    /// Keeps a key's line, unless it is empty, and its due time.
    fn keep(&mut self, key: Arc<str>, mut entry: Entry) {
        if entry.line.is_blocked() && !entry.line.is_empty() && self.has_errands() {
            return self.send(key, entry, Errand::default());
        }
        self.forget_entries(&key, &mut entry);
        if entry.line.is_blocked() && !entry.line.is_empty() {
            self.is_stuck |= MayWait::here() == MayWait::UntilTimeout;
            self.blocked.insert(key.clone());
        } else {
            self.blocked.remove(&key);
        }
        if entry.line.has_taken() {
            self.taken.push(key.clone());
        }
        if !entry.line.is_empty() {
            let (next, first) = (entry.line.next(), entry.line.first().unwrap_or_default());
            (entry.due, entry.is_joint) = (Some((next, first)), is_joint(&key));
            self.due.insert((next, Due::Key(first, key.clone())));
            self.tenants.show(&key, &mut entry.shown_at, entry.line.shown_at());
            if entry.is_joint {
                self.joint.insert((first, key.clone()));
            }
            self.keys.insert(key, entry);
        }
    }

    /// Removes a key from [`Line::due`], [`Line::joint`] and [`Line::tenants`].
    fn forget_entries(&mut self, key: &Arc<str>, entry: &mut Entry) {
        self.tenants.show(key, &mut entry.shown_at, None);
        if let Some((due, first)) = entry.due.take() {
            self.due.remove(&(due, Due::Key(first, key.clone())));
            if entry.is_joint {
                self.joint.remove(&(first, key.clone()));
            }
        }
    }

    fn is_the_parent_s(&self) -> bool {
        self.generation != fork::generation()
    }

    /// Forgets the waiters in a forked child. They are copies of the parent's, which keeps what they hold.
    fn forget_parents_waiters(&mut self) {
        if self.is_the_parent_s() {
            self.keys.clear();
            self.tenants = TenantLines::default();
            self.due.clear();
            self.joint.clear();
            self.waiters.clear();
            self.over.clear();
            self.blocked.clear();
            self.taken.clear();
            self.left.clear();
            self.deadlines.clear();
            self.errands.iter_mut().for_each(Errands::forget);
            self.woken = None;
            self.is_own_place_blocked = false;
            self.generation = fork::generation();
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.is_the_parent_s() {
            return;
        }
        let mut lines: Vec<KeyLine> = self.keys.drain().map(|(_, entry)| entry.line).collect();
        let over = self.over.drain(..).map(|(_, outcome)| outcome);
        let unwanted: Vec<RawPermit> = over.filter_map(Outcome::permit).collect();
        match &mut self.errands {
            Some(errands) => errands.end(&self.limiter, lines, unwanted),
            None => {
                lines.iter_mut().for_each(|line| line.end(&*self.limiter));
                unwanted.iter().for_each(|permit| drop(self.limiter.cancel(permit)));
            }
        }
        for waiter in self.waiters.values() {
            if let Seated::OwnPlace(own) = waiter {
                let _ = self.limiter.cancel_place(&own.place);
            }
        }
        for (permit, is_place) in std::mem::take(&mut self.left) {
            self.give_back(permit, is_place);
        }
    }
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Line of {} waiters for \"{}\"", self.len(), self.limiter.name())
    }
}
