//! The waiters of one key.

mod ahead;
mod asking;
mod elsewhere;
mod held;
mod overtaken;
mod pass;
mod pausing;
mod queue;
mod sooner;
mod starting;
mod taken;
mod turns;

pub(in crate::limiter) use asking::HORIZON;
pub(super) use pass::Pass;
pub(super) use pausing::LOOK_SOONER;
pub(super) use queue::Wanted;
pub use turns::Turn;
pub(super) use turns::{LEAD, Notices, TurnLine};

use super::{Asker, Claim, LineTurn, Outcome, Rank, Shown, Waiter, slice};
use crate::charges::is_joint;
use crate::decision::LOOK_AGAIN;
use crate::error::{Error, Result};
use crate::limiter::Limiter;
use crate::permit::RawPermit;
use crate::policy;
use crate::state::Unwritten;
use crate::time::{Tick, from_ticks, grace_ticks};
use crate::waiting::{AtOnce, MayWait};
use held::HeldPlace;
use queue::Waiting;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};
use taken::TakenStart;

/// The time between two such calls in which other callers have the line, in ticks.
pub(super) const BETWEEN_SLICES: Tick = 1_000;

/// The waiters that ended, and their outcomes.
pub(super) type Out = Vec<(Rank, Outcome)>;

/// The waiters of one key, and the places that they hold together. There are never more places than waiters that ask for
/// the same.
#[derive(Debug, Default)]
pub(super) struct KeyLine {
    waiters: BTreeMap<Rank, Waiting>,
    by_wanted: BTreeSet<(Wanted, Rank)>,
    deadlines: BTreeSet<(Tick, Rank)>,
    /// The graces of the waiters that requested one.
    graces: BTreeSet<(Tick, Rank)>,
    /// Whether there are joint starts. Then the line holds one place: whether the parts have units for the second one
    /// too is known when the first has started, and those of other lines would have to wait behind it in vain.
    is_joint: bool,
    /// Ordered by readiness.
    places: VecDeque<HeldPlace>,
    /// When to ask for the next place, or for a start if no place is held.
    ask_at: Tick,
    /// The number of requests without success.
    looks: u32,
    /// When to check whether the first place could be sooner, or whether there may be one.
    look_sooner_at: Tick,
    /// When to ask a server for that at the latest.
    ask_sooner_at: Tick,
    /// No returned unit makes it ask a server before this.
    ask_returned_at: Tick,
    /// [`Awaited::returned`](crate::limiter::internal::Awaited::returned) before the last request, or at the last check.
    returned: u64,
    /// When to ask for a start elsewhere than at the place that is held; `None`: never.
    look_elsewhere_at: Option<Tick>,
    /// When the first place looks ahead; `None`: it need not.
    look_ahead_at: Option<Tick>,
    /// The recent lateness of this line in presenting places, in ticks.
    late: Tick,
    /// The weights of all waiters.
    units: u64,
    /// The weights of all waiters that ever started or left.
    gone: u64,
    /// Whether the last pass did not finish.
    is_unfinished: bool,
    /// Whether it did not finish because the store is busy and the pass may not wait, or not any longer.
    is_blocked: bool,
    /// When the line first had to wait for the store.
    blocked_since: Option<Instant>,
    /// When to ask it again.
    blocked_until: Tick,
    /// Places to be given back by a pass that may wait.
    surplus: Vec<RawPermit>,
    /// The waiters whose starts have to be written first.
    taken: Vec<TakenStart>,
    /// What the last request took unwritten.
    unwritten: Vec<Unwritten>,
    /// Whether the last commit failed, and the next request is to meet that failure.
    meets_failure: bool,
    /// The number of waiters that was reported to the limiter.
    counted: usize,
    /// Whether another waiter may be the first without a place.
    is_moved: bool,
    /// What the lines of other processes see of this one.
    shown: Cell<Shown>,
    /// Where it was among them at the last look, and since when so far from the turn.
    turn: Option<(LineTurn, Tick)>,
    /// The waiters that a server has among those of all processes.
    told: Vec<Told>,
    /// Since when at most none, and at most one, of these comes before its own; 0: more do, or that is not known.
    behind: [Tick; 2],
    /// While only an end in this process frees units.
    quiet: Option<Quiet>,
    /// [`Awaited::position`](crate::limiter::internal::Awaited::position) when it had the turn and its units were too far
    /// ahead; for which units.
    position: Option<(u64, Wanted)>,
    /// When it last found that others had taken places beyond, and for how many units of its waiters it may do so too.
    overtaken: (Tick, u64),
}

/// A waiter of this line that a server knows.
#[derive(Debug)]
struct Told {
    rank: Rank,
    key: Box<str>,
    asker: Asker,
}

/// Until when a server need not be asked for a waiter, unless the bell of its key rings.
#[derive(Debug, Clone, Copy)]
struct Quiet {
    rank: Rank,
    bell: u64,
    until: Tick,
}

impl KeyLine {
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty() && self.surplus.is_empty() && self.taken.is_empty() && self.told.is_empty()
    }

    /// Returns whether there is work for a pass that [may wait](crate::embed::MayWait).
    pub fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Adds a waiter. Its outcome may be known immediately. `asked` is the limiter's reply to a request just made, if
    /// any.
    pub fn join(
        &mut self,
        pass: &Pass,
        (rank, waiter): (Rank, Waiter),
        asked: Option<Claim>,
        out: &mut Out,
    ) -> Result<()> {
        let was_empty = self.is_empty();
        let now = pass.now();
        let Waiter { key, weight, timeout, share, .. } = waiter;
        policy::check_shares(share)?;
        let deadline = super::deadline(now, timeout);
        policy::check_some(weight)?;
        let grace = grace_ticks("grace", waiter.grace)?;
        let is_last = self.waiters.last_key_value().is_none_or(|(last, _)| *last < rank);
        if was_empty {
            (self.ask_at, self.looks, self.turn, self.is_joint) = (now, 0, None, false);
            self.behind = [0; 2];
        } else {
            // An invalid key, or a weight that can never start, is an error before the caller waits. (While the store is busy, it is
            // an error when the limiter is asked for its start.)
            let slice = if self.is_blocked { Duration::ZERO } else { pass.slice };
            let left = from_ticks(deadline.saturating_sub(now)).max(pass.slice);
            let check = || pass.limiter.check_waiter(key, weight);
            match MayWait::in_slices(pass.began, slice, left, check) {
                Err(Error::WouldWait) if MayWait::here() == MayWait::UntilTimeout && pass.now() >= deadline => {
                    pass.limiter.sent_away(key, weight);
                    out.push((rank, Outcome::Expired(LOOK_AGAIN)));
                    return Ok(());
                }
                Err(Error::WouldWait) if MayWait::here() == MayWait::UntilTimeout => {}
                checked => checked?,
            }
            let soonest = self.soonest(pass, self.units.saturating_add(weight), now);
            if is_last && soonest > deadline {
                pass.limiter.sent_away(key, weight);
                out.push((rank, Outcome::Expired(from_ticks(soonest - now))));
                return Ok(());
            }
        }
        self.is_joint |= is_joint(key);
        self.insert(rank, Wanted::of(pass.key, key, weight), now, (deadline, Tick::MAX, grace), share);
        if !self.told.is_empty() && self.first_without() == Some(rank) {
            // The server knows less urgent ones.
            self.ask_at = self.ask_at.min(now);
        }
        self.fill(pass, asked.filter(|_| was_empty), out);
        self.count(pass.limiter);
        Ok(())
    }

    /// Removes a waiter that stops waiting.
    pub fn leave(&mut self, limiter: &dyn Limiter, rank: Rank) {
        self.give_back_taken(limiter, rank);
        self.remove(limiter, rank);
        if self.quiet.is_some_and(|quiet| quiet.rank == rank) {
            // The server does not know the next one.
            (self.quiet, self.ask_at) = (None, 0);
        }
        self.count(limiter);
    }

    /// Reports the number of waiters to the limiter, for observers, and the first one, for other lines.
    fn count(&mut self, limiter: &dyn Limiter) {
        if std::mem::take(&mut self.is_moved) && self.shown.get().is_some() {
            let first = self.first_without().map(|rank| self.waiters[&rank].shown_as(rank));
            if self.shown.get().is_changed(first) {
                let _at_once = AtOnce::enter();
                limiter.show_next(first, &self.shown);
                // It may have the turn now.
                (self.turn, self.ask_at) = (None, 0);
            }
        }
        self.leave_server(limiter);
        let now = self.waiters.len() + self.taken.len();
        if now != self.counted {
            limiter.waits_more(now as i64 - self.counted as i64);
            self.counted = now;
        }
    }

    /// Notes that the server knows a waiter.
    fn note_told(&mut self, pass: &Pass, (rank, wanted): (Rank, &Wanted), asker: Asker) {
        if !self.told.iter().any(|told| told.rank == rank) {
            self.told.push(Told { rank, key: wanted.key(pass.key).into(), asker });
        }
    }

    /// Tells the server which of the waiters that it knows have left. If it does not answer soon, it forgets them by itself. (One
    /// that a more urgent one has come before still waits.)
    fn leave_server(&mut self, limiter: &dyn Limiter) {
        let waits = |told: &Told| self.waiters.contains_key(&told.rank);
        if self.told.iter().all(waits) {
            return;
        }
        if MayWait::here() != MayWait::UntilTimeout {
            // The next pass may.
            (self.is_blocked, self.blocked_until) = (true, 0);
            return;
        }
        let (began, most) = (Instant::now(), slice(limiter));
        for Told { key, asker, .. } in self.told.extract_if(.., |told| !self.waiters.contains_key(&told.rank)) {
            let left = most.saturating_sub(began.elapsed());
            if !left.is_zero() {
                let _ = MayWait::in_slices(began, left, left, || limiter.leave_line(&key, asker));
            }
        }
    }

    /// Returns the first waiter.
    pub fn first(&self) -> Option<Rank> {
        self.waiters.first_key_value().map(|(rank, _)| *rank)
    }

    /// Makes the line check immediately, because units may be free now.
    pub fn wake(&mut self, now: Tick) {
        self.quiet = None;
        self.ask_at = self.ask_at.min(self.soonest_ask(now));
        self.look_sooner_at = self.look_sooner_at.min(now);
        self.look_elsewhere_at = self.look_elsewhere_at.map(|at| at.min(now));
    }

    /// Returns when this line has to be advanced next.
    pub fn next(&self) -> Tick {
        if self.is_unfinished {
            return 0;
        }
        if self.is_blocked {
            return self.blocked_until;
        }
        let mut next = self.deadlines.first().map_or(Tick::MAX, |(deadline, _)| *deadline);
        if let Some(first) = self.places.front() {
            let looks = self.look_elsewhere_at.into_iter().chain(self.look_ahead_at).min().unwrap_or(Tick::MAX);
            next = next.min(first.ready).min(self.look_sooner_at).min(looks);
        }
        if self.wants_places() {
            next = next.min(self.ask_at);
            if self.returned > 0 {
                next = next.min(self.look_sooner_at);
            }
        }
        next
    }

    /// Returns the waiter that a pass would start now, if that is known without asking the store.
    pub fn next_to_start(&self, pass: &Pass) -> Option<Rank> {
        if self.is_blocked || self.has_taken() || !self.surplus.is_empty() {
            return None;
        }
        if self.turn.is_some_and(|(turn, _)| !turn.is_ours()) {
            return None;
        }
        let Some(first) = self.places.front() else {
            let (rank, waiting) = self.waiters.first_key_value()?;
            let Wanted { weight, .. } = waiting.wanted;
            let seen = MayWait::Never.during(|| pass.limiter.peek_again(waiting.wanted.key(pass.key), weight));
            return seen.is_ok_and(|seen| seen.admitted).then_some(*rank);
        };
        if first.ready <= pass.now() { self.first_of(&first.wanted) } else { None }
    }

    /// Returns when a waiter that is not woken has to check again: the first one drives the line, the others check when
    /// they may start.
    pub fn needs(&self, pass: &Pass, rank: Rank) -> Tick {
        let next = self.next();
        if self.waiters.first_key_value().is_none_or(|(first, _)| *first == rank) {
            return next;
        }
        let earliest = self.earliest(pass, rank);
        let earliest = if earliest <= pass.now() { next.max(pass.now() + 1_000) } else { earliest };
        earliest.min(self.deadline(rank))
    }

    /// The calls at the key's bell that are for this line.
    pub fn calls(&self) -> u32 {
        self.shown.get().calls()
    }

    /// Returns where it is shown to the lines of all processes.
    pub fn shown_at(&self) -> Option<usize> {
        self.shown.get().at()
    }

    /// What others have to know of, if a pass changes it: the waiters, the places, and where the line is shown.
    pub fn extent(&self) -> (usize, usize, Option<usize>) {
        (self.waiters.len(), self.places.len(), self.shown_at())
    }

    /// Returns the waiter's deadline.
    pub fn deadline(&self, rank: Rank) -> Tick {
        self.waiters.get(&rank).map_or(0, |waiting| waiting.deadline)
    }

    /// Starts the waiters that can start, removes those that timed out, and takes places for the next ones. After this,
    /// or after the last of several lines, [`KeyLine::write_taken`] lets those go whose starts had to be written.
    pub fn advance(&mut self, pass: &Pass, out: &mut Out) {
        if let Some(error) = pass.limiter.closed_store() {
            return self.close(pass, &error, out);
        }
        if self.has_taken() {
            // Only a pass that may wait writes it, before anything else.
            (self.is_blocked, self.blocked_until) = (true, 0);
            return;
        }
        let was_blocked = std::mem::take(&mut self.is_blocked);
        self.is_unfinished = false;
        self.give_back_surplus(pass.limiter);
        self.start_elsewhere(pass, out);
        self.look_sooner(pass);
        self.look_ahead(pass);
        self.start_ready(pass, out);
        if was_blocked && !self.is_blocked {
            // The limiter has not been asked for the first of them yet. It does not time out before that.
            self.fill(pass, None, out);
        }
        if !self.is_blocked || MayWait::here() == MayWait::UntilTimeout {
            self.expire(pass, out);
        }
        if !self.is_blocked {
            self.fill(pass, None, out);
        }
        self.count(pass.limiter);
    }

    /// Asks the limiter. A request that would wait longer than one slice for the store is repeated, so that no deadline
    /// is missed in the meantime. What has to be written first is collected, to be written in one commit.
    fn ask<R>(&mut self, pass: &Pass, ask: impl FnOnce(&dyn Limiter) -> Result<R>) -> Result<R> {
        self.unwritten.clear();
        // A user-defined limiter may start jobs of its own.
        let is_alone = self.meets_failure || pass.limiter.has_custom();
        if is_alone || MayWait::here() != MayWait::UntilTimeout {
            let answer = self.ask_alone(pass, ask);
            self.meets_failure &= matches!(answer, Err(Error::WouldWait));
            return answer;
        }
        let (answer, unwritten) = Unwritten::collect(|| self.ask_alone(pass, ask));
        self.unwritten = unwritten;
        answer
    }

    fn ask_alone<R>(&mut self, pass: &Pass, ask: impl FnOnce(&dyn Limiter) -> Result<R>) -> Result<R> {
        let since = self.blocked_since.unwrap_or(pass.began);
        // A server answers within a slice, or the request waits as long as any waiter here may.
        let until = self.deadlines.first().map_or(Tick::MAX, |(deadline, _)| *deadline);
        let for_server = from_ticks(until.saturating_sub(pass.now())).max(pass.slice);
        let answer = MayWait::in_slices(since, pass.slice, for_server, || ask(pass.limiter));
        let would_wait = matches!(answer, Err(Error::WouldWait));
        self.blocked_since = would_wait.then_some(since);
        if would_wait {
            self.is_blocked = true;
            let is_slice = MayWait::here() == MayWait::UntilTimeout;
            self.blocked_until = if is_slice { pass.now() + BETWEEN_SLICES } else { 0 };
        }
        answer
    }
}
