//! The waiters of a pool of workers.

use super::key::{LEAD, Notices, Pass, Turn, TurnLine};
use super::tenants::TenantLines;
use super::{Rank, Waiter, WaiterId};
use crate::error::{Error, Result};
use crate::fork;
use crate::limiter::Limiter;
use crate::limiter::events::{Call, reporting_errors};
use crate::time::{Clock, Tick, from_ticks, patience_ticks};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest duration of one call. The rest is due immediately.
const BATCH: Duration = Duration::from_millis(8);

/// The workers that the pool can offer to waiters.
#[derive(Debug, Default)]
pub(super) struct Offer {
    /// The number of workers of the pool.
    pub workers: usize,
    /// The number of idle workers.
    pub free: usize,
    /// The recent time from leaving the line to arriving at a worker.
    pub late: Tick,
    /// How late a place may be presented; `None`: chosen by the limit's window.
    pub grace: Option<Tick>,
    /// The places that the other keys hold.
    pub held: usize,
}

impl Offer {
    /// Returns the graces of a place that is held here, and of one that leaves with its waiter.
    pub fn graces(&self, window: Tick) -> (Duration, Duration) {
        let (near, far) = match (self.grace, window) {
            (Some(grace), _) => (grace, grace),
            (None, Tick::MAX) => (50_000.max(2 * self.late), 50_000),
            (None, window) => {
                let near = (window / 40).max(50_000.min(window / 20)).min(10_000_000);
                (near.max((2 * self.late).min(10_000_000)), (window / 20).clamp(250_000, 10_000_000))
            }
        };
        (from_ticks(near), from_ticks(far))
    }

    /// Returns whether a worker is idle that no place is held for, if the asking key holds so many.
    pub fn has_spare(&self, own: usize) -> bool {
        self.free > self.held + own
    }
}

/// The waiters of one limiter that start elsewhere, in the workers of a pool: one line per key. The pool starts nothing
/// itself. It takes places for the next waiters, no more than there are workers to use them, and notifies a waiter of
/// its turn shortly before its place is ready. The place leaves as a text, for the worker to
/// [present](crate::Places::present). Where a limit has no places, the waiter is notified when units are free, and the
/// worker asks for them.
///
/// Like a [`Line`](crate::embed::Line) it never sleeps, blocks only for the store, starts no threads and makes no callbacks:
/// the loop that fetches the work keeps one timer for it. Dropping it gives back what its waiters hold. A forked child
/// finds it empty.
pub struct Pool {
    limiter: Arc<dyn Limiter>,
    offer: Offer,
    keys: HashMap<Arc<str>, Entry>,
    /// When keys need work.
    due: BTreeSet<(Tick, Arc<str>)>,
    /// When waiters of keys can leave, if there is a worker.
    turns: BTreeSet<(Tick, Arc<str>)>,
    /// The key, priority and weight of each waiter.
    waiters: HashMap<WaiterId, (Arc<str>, i32, u64)>,
    /// The waiters that left, and when.
    running: HashMap<WaiterId, (Arc<str>, Tick)>,
    tenants: TenantLines,
    /// The tenants that wait for a worker.
    short: BTreeSet<Arc<str>>,
    /// The places that all keys hold.
    held: usize,
    /// How long before its place is ready a waiter leaves.
    lead: Tick,
    last_id: WaiterId,
    generation: u64,
}

#[derive(Debug, Default)]
struct Entry {
    line: TurnLine,
    /// What the pool has noted of it: where it is shown, and its places.
    shown_at: Option<usize>,
    places: usize,
    /// The entries of this key in [`Pool::due`] and [`Pool::turns`].
    due: Option<Tick>,
    turn: Option<Tick>,
}

impl Pool {
    /// Makes an empty line for a limiter. Opens nothing. `grace` is how late a place may be presented. `None`: a
    /// fortieth of the window, from 50 ms to 10 s, and more while workers are late; for places that leave with waiters a
    /// twentieth, from 250 ms to 10 s.
    pub fn new(limiter: Arc<dyn Limiter>, grace: Option<Duration>) -> Pool {
        Pool {
            limiter,
            offer: Offer { grace: grace.map(patience_ticks), ..Offer::default() },
            keys: HashMap::new(),
            due: BTreeSet::new(),
            turns: BTreeSet::new(),
            waiters: HashMap::new(),
            running: HashMap::new(),
            tenants: TenantLines::default(),
            short: BTreeSet::new(),
            held: 0,
            lead: LEAD,
            last_id: 0,
            generation: fork::generation(),
        }
    }

    /// Sets how long before its place is ready a waiter leaves, if it is not 20 ms. A place may be nearer.
    pub fn lead(mut self, lead: Duration) -> Pool {
        self.lead = patience_ticks(lead);
        self
    }

    /// Returns the number of waiters, by key.
    pub fn waiting(&self) -> impl Iterator<Item = (&str, usize)> {
        let keys = self.keys.iter().filter(|_| !self.is_the_parent_s());
        keys.map(|(key, entry)| (&**key, entry.line.len())).filter(|(_, waiting)| *waiting > 0)
    }

    /// Returns how many waiters left and have not [ended](Pool::end).
    pub fn running(&self) -> usize {
        if self.is_the_parent_s() { 0 } else { self.running.len() }
    }

    /// Joins the line; [`Pool::advance`] returns the result. A waiter whose start is further away than `timeout` waits
    /// elsewhere; `grace` is the least time by which its place may be late. A place that it brings serves the line; its
    /// key and weight have to be the waiter's.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`]. After an error the waiter has not joined, and the place still belongs to the
    /// caller.
    pub fn join(&mut self, waiter: Waiter<'_>) -> Result<WaiterId> {
        let limiter = self.limiter.clone();
        reporting_errors(&*limiter, waiter.key, waiter.weight, || self.quiet_join(waiter))
    }

    fn quiet_join(&mut self, waiter: Waiter<'_>) -> Result<WaiterId> {
        self.forget_parents_waiters();
        let clock = self.clock();
        self.last_id += 1;
        let (id, rank) = (self.last_id, (waiter.priority, self.last_id));
        let (key, mut entry) = match self.keys.remove_entry(waiter.key) {
            Some(known) => known,
            None => (waiter.key.into(), Entry { line: TurnLine::new(self.lead), ..Entry::default() }),
        };
        let pass = Pass::new(&*self.limiter, &key, &clock);
        let joined = entry.line.join(&pass, rank, waiter);
        if joined.is_ok() {
            self.waiters.insert(id, (key.clone(), waiter.priority, waiter.weight));
        }
        self.keep(key, entry);
        joined.map(|()| id)
    }

    /// Does all work that is due, and appends the notices of waiters. At most `free` waiters, of a pool with this many
    /// `workers`, are notified of their turn. Returns the time until it has to be called again; `None`: not before a
    /// waiter joins or ends. Call it after that time, when a worker becomes free, and at any other time. It may wait
    /// for the store.
    pub fn advance(&mut self, workers: usize, free: usize, notices: &mut Vec<(WaiterId, Turn)>) -> Option<Duration> {
        self.forget_parents_waiters();
        if let Some(error) = self.limiter.closed_store() {
            self.fail_all(&error, notices);
            return None;
        }
        let (clock, began) = (self.clock(), Instant::now());
        if workers > self.offer.workers {
            self.each(|line, _, now| line.wake(now));
        }
        (self.offer.workers, self.offer.free) = (workers, free);
        if self.has_spare() {
            self.wake_short();
        }
        let now = clock.now().floor;
        let mut blocked = Vec::new();
        while !super::is_over(began, BATCH, &clock)
            && let Some(key) = self.take_due(now)
        {
            let Some(mut entry) = self.keys.remove(&key) else { continue };
            let mut out = Notices::new();
            let is_behind = self.tenants.is_behind(entry.shown_at);
            let pass = Pass { keys: self.keys.len() + 1, is_behind, ..Pass::new(&*self.limiter, &key, &clock) };
            let before = entry.line.extent();
            self.offer.held = self.held - entry.places;
            entry.line.advance(&pass, &mut self.offer, &mut out);
            let passes_turn = !is_behind || entry.line.extent() != before;
            for (rank, turn) in out {
                self.notify(&key, rank, turn, clock.now().floor, notices);
            }
            if entry.line.is_blocked() {
                // Asking again immediately would fail too.
                self.forget_due(&key, &mut entry);
                blocked.push((key, entry));
            } else {
                self.keep(key, entry);
            }
            if passes_turn {
                self.pass_turn();
            }
        }
        for (key, entry) in blocked {
            self.keep(key, entry);
        }
        if self.has_spare() {
            return Some(Duration::ZERO);
        }
        let turn = self.turns.first().filter(|_| self.offer.free > 0);
        let next = self.due.first().into_iter().chain(turn).map(|(at, _)| *at).min()?;
        Some(from_ticks(next.saturating_sub(clock.now().floor)))
    }

    /// Sends all waiters away, because a store behind the limiter is closed: their workers will get that error.
    fn fail_all(&mut self, error: &Error, notices: &mut Vec<(WaiterId, Turn)>) {
        self.each(|line, limiter, _| line.fail_all(limiter));
        let now = self.clock().now().floor;
        let mut waiters: Vec<_> = self.waiters.drain().collect();
        waiters.sort_unstable_by_key(|(id, _)| *id);
        for (id, (key, ..)) in waiters {
            self.running.insert(id, (key, now));
            notices.push((id, Turn::Failed(error.clone())));
        }
    }

    /// Records that a waiter that left has arrived at its worker, so that the line learns how long that takes.
    pub fn arrive(&mut self, id: WaiterId) {
        let now = self.clock().now().floor;
        if let Some((_, since)) = self.running.get(&id) {
            self.offer.late = now.saturating_sub(*since).max(self.offer.late / 2);
        }
    }

    /// Records that a waiter that left has ended, or will not start. A no-op for others.
    pub fn end(&mut self, id: WaiterId) {
        self.forget_parents_waiters();
        if let Some((key, _)) = self.running.remove(&id)
            && let Some(mut entry) = self.keys.remove(&key)
        {
            entry.line.end(self.clock().now().floor);
            self.keep(key, entry);
        }
    }

    /// Returns whether a worker is free for which tenants wait.
    fn has_spare(&self) -> bool {
        !self.short.is_empty() && self.offer.free > self.held
    }

    /// Wakes the next tenants of those that wait for a worker, as many as there are workers: the next starts are theirs.
    fn wake_short(&mut self) {
        let mut short: Vec<_> = self.short.iter().map(|key| (self.limiter.lead(key), key.clone())).collect();
        short.sort_unstable();
        for (_, key) in short.into_iter().take(self.offer.free - self.held) {
            // Before all that is due: all of them are shown before one of them takes a place.
            self.wake_key(key, 0);
        }
    }

    /// Makes the line due whose turn has come.
    fn pass_turn(&mut self) {
        if let Some(key) = self.tenants.pass(&*self.limiter) {
            self.wake_key(key, self.clock().now().floor);
        }
    }

    fn wake_key(&mut self, key: Arc<str>, at: Tick) {
        if let Some(mut entry) = self.keys.remove(&key) {
            entry.line.wake(at);
            self.keep(key, entry);
        }
    }

    /// Removes a waiter that stops waiting. Its place goes to the next one, or back. A no-op for a waiter that has
    /// left.
    pub fn leave(&mut self, id: WaiterId) {
        self.forget_parents_waiters();
        if let Some((key, priority, _)) = self.waiters.remove(&id)
            && let Some(mut entry) = self.keys.remove(&key)
        {
            entry.line.leave(&*self.limiter, (priority, id));
            self.keep(key, entry);
            self.pass_turn();
        }
    }

    /// Removes a waiter that continues to wait elsewhere. Returns the text of the place that it would have had, if
    /// there is one yet, and the time until it is ready.
    pub fn take_along(&mut self, id: WaiterId) -> Option<(String, Duration)> {
        self.forget_parents_waiters();
        let (key, priority, _) = self.waiters.remove(&id)?;
        let mut entry = self.keys.remove(&key)?;
        let clock = self.clock();
        let taken = entry.line.take_along(&Pass::new(&*self.limiter, &key, &clock), (priority, id));
        self.keep(key, entry);
        taken
    }

    /// Handles a policy change: places that were taken under the old policy are taken again. Without this call a larger
    /// limit is noticed up to half a second later, and places of a smaller one are exchanged when they are presented.
    pub fn renew(&mut self) {
        self.forget_parents_waiters();
        self.each(TurnLine::renew);
    }

    /// Removes all waiters, and gives their places back. Running starts still count.
    pub fn clear(&mut self) {
        self.forget_parents_waiters();
        self.waiters.clear();
        self.each(|line, limiter, _| line.clear(limiter));
    }

    fn each(&mut self, f: impl Fn(&mut TurnLine, &dyn Limiter, Tick)) {
        let now = self.clock().now().floor;
        for key in self.keys.keys().cloned().collect::<Vec<_>>() {
            if let Some(mut entry) = self.keys.remove(&key) {
                f(&mut entry.line, &*self.limiter, now);
                self.keep(key, entry);
            }
        }
    }

    /// Takes the key whose work or turn is due first.
    fn take_due(&mut self, now: Tick) -> Option<Arc<str>> {
        let turn = self.turns.first().filter(|_| self.offer.free > 0);
        let (at, key) = self.due.first().into_iter().chain(turn).min()?;
        (*at <= now).then(|| key.clone())
    }

    fn notify(&mut self, key: &Arc<str>, (_, id): Rank, turn: Turn, now: Tick, notices: &mut Vec<(WaiterId, Turn)>) {
        let weight = self.waiters.get(&id).map_or(1, |(.., weight)| *weight);
        if let Turn::Held(after) | Turn::Away(_, after) = turn
            && let Some(call) = Call::of(&*self.limiter, key, weight)
        {
            call.report_throttling((None, after));
        }
        if !matches!(turn, Turn::Held(_)) {
            self.waiters.remove(&id);
        }
        if matches!(turn, Turn::Go(_) | Turn::Failed(_)) {
            self.running.insert(id, (key.clone(), now));
        }
        notices.push((id, turn));
    }

    /// Keeps a key's line, unless it is empty, and its due time.
    fn keep(&mut self, key: Arc<str>, mut entry: Entry) {
        self.forget_due(&key, &mut entry);
        self.note(&key, &mut entry);
        if !entry.line.is_empty() {
            entry.due = Some(entry.line.next()).filter(|next| *next != Tick::MAX);
            entry.turn = entry.line.next_turn();
            self.due.extend(entry.due.map(|at| (at, key.clone())));
            self.turns.extend(entry.turn.map(|at| (at, key.clone())));
            self.keys.insert(key, entry);
        }
    }

    /// Notes the places of a line, where it is shown, and whether it lacks a worker.
    fn note(&mut self, key: &Arc<str>, entry: &mut Entry) {
        let places = entry.line.places();
        self.held = self.held - entry.places + places;
        entry.places = places;
        self.tenants.show(key, &mut entry.shown_at, entry.line.shown_at());
        match entry.line.lacks_spare() {
            true => self.short.insert(key.clone()),
            false => self.short.remove(key),
        };
    }

    fn forget_due(&mut self, key: &Arc<str>, entry: &mut Entry) {
        let forget = |set: &mut BTreeSet<_>, at: Option<Tick>| at.map(|at| set.remove(&(at, key.clone())));
        forget(&mut self.due, entry.due.take());
        forget(&mut self.turns, entry.turn.take());
    }

    fn clock(&self) -> Clock {
        Clock::new(0, self.limiter.manual_clock())
    }

    fn is_the_parent_s(&self) -> bool {
        self.generation != fork::generation()
    }

    /// Forgets the waiters in a forked child. They are copies of the parent's, which keeps what they hold.
    fn forget_parents_waiters(&mut self) {
        if self.is_the_parent_s() {
            self.keys.clear();
            self.due.clear();
            self.turns.clear();
            self.waiters.clear();
            self.running.clear();
            self.short.clear();
            (self.tenants, self.held) = (TenantLines::default(), 0);
            self.generation = fork::generation();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.clear();
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (waiters, running) = (self.waiters.len(), self.running.len());
        write!(f, "Pool of {waiters} waiters and {running} at work for \"{}\"", self.limiter.name())
    }
}
