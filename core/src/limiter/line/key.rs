//! The waiters of one key.

mod elsewhere;
mod taken;
mod turns;

pub use turns::Turn;
pub(super) use turns::{Notices, TurnLine};

use super::shown::NOTICES;
use super::{Ahead, Claim, First, LineTurn, Outcome, Rank, Shown, Terms, Waiter};
use crate::algorithm::heads;
use crate::charges::is_joint;
use crate::decision::LOOK_AGAIN;
use crate::error::{Error, Result};
use crate::fork::jitter;
use crate::limiter::{Limiter, Presented};
use crate::permit::RawPermit;
use crate::policy::{self, MAX_DEFAULT_GRACE, Share};
use crate::state::Unwritten;
use crate::time::{Clock, Tick, from_ticks, grace_ticks, patience_ticks};
use crate::waiting::MayWait;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use taken::TakenStart;

/// The most places that a line holds.
const MAX_PLACES: usize = 256;

/// The least time ahead for which places are taken, in ticks.
pub(in crate::limiter) const HORIZON: Tick = 100_000;

/// The same where a server has to be asked, if units are returned to it.
const HORIZON_ON_A_SERVER: Tick = 250_000;

/// The least time between two such requests.
const ASKS_APART: Tick = 16_000;

/// The interval at which a line checks whether its first place could be sooner, after a raised limit or a `clear`.
pub(super) const LOOK_SOONER: Tick = 250_000;

/// The longest such interval where a server has to be asked.
const LOOK_SOONER_ON_A_SERVER: Tick = 4_000_000;

/// For how many keys a driver checks as often as for one: all of them are some 25,000 checks a second.
const KEYS_AT_FULL_RATE: usize = 320;

/// The same where a server has to be asked: some 1,500 requests a second.
const KEYS_AT_FULL_RATE_ON_A_SERVER: usize = 16;

/// The longest interval at which an event loop looks whether it has the turn, in ticks.
const LEAST_OFTEN: Tick = 16_000;

/// For how long a line looks so often after it was overtaken by joint starts, in ticks.
const OVERTAKEN: Tick = 1_000_000;

/// A waiter whose place would be sooner by less than this keeps its place.
const WORTH_MOVING: Tick = 50_000;

/// No waiter has this rank.
const LAST: Rank = (i32::MAX, u64::MAX);

/// The longest duration of one pass. The next pass, which is due immediately, does the rest.
const BATCH: Duration = Duration::from_millis(4);

/// The time between two such calls in which other callers have the line, in ticks.
pub(super) const BETWEEN_SLICES: Tick = 1_000;

/// What a waiter asks for. A place serves every waiter that asks for the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wanted {
    pub weight: u64,
    /// The key of a joint start, if it is not that of its line.
    joint: Option<Arc<str>>,
}

impl Wanted {
    /// Makes the request of a waiter in the line with this key.
    pub fn of(line: &str, key: &str, weight: u64) -> Wanted {
        Wanted { weight, joint: (key != line).then(|| key.into()) }
    }

    /// Returns its key in the line with this one.
    pub fn key<'a>(&'a self, line: &'a str) -> &'a str {
        self.joint.as_deref().unwrap_or(line)
    }

    /// The first possible entry of [`KeyLine::by_wanted`], and the one after the last.
    fn entries(&self, until: Rank) -> Range<(Wanted, Rank)> {
        (self.clone(), (i32::MIN, 0))..(self.clone(), until)
    }
}

#[derive(Debug)]
struct Waiting {
    wanted: Wanted,
    since: Tick,
    /// [`Tick::MAX`]: none.
    deadline: Tick,
    /// A waiter whose start is further away than this waits elsewhere. [`Tick::MAX`]: never.
    hold: Tick,
    /// 0: the default.
    grace: Tick,
    /// The share of its tenant, if it is not the one that is kept.
    share: Option<Share>,
    /// [`KeyLine::units`] and [`KeyLine::gone`] before it joined at the end of the line. 0 if it joined elsewhere.
    units: u64,
    gone: u64,
}

impl Waiting {
    /// Returns whether its timeout is too short to notice that the process before it does not run. Then it takes what is
    /// free, as a caller that does not wait.
    fn is_hurried(&self) -> bool {
        self.deadline.saturating_sub(self.since) < NOTICES
    }

    /// What other lines have to know of it.
    fn shown_as(&self, (priority, _): Rank) -> First {
        First { priority, since: self.since, units: self.wanted.weight, share: self.share }
    }
}

#[derive(Debug)]
struct HeldPlace {
    place: RawPermit,
    wanted: Wanted,
    ready: Tick,
    unwritten: Vec<Unwritten>,
}

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
    /// When the joint start at the first place looks ahead; `None`: it need not.
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
    /// [`Awaited::position`](crate::limiter::internal::Awaited::position) when it had the turn and its units were too far
    /// ahead; for which units.
    position: Option<(u64, Wanted)>,
    /// When it last found that others had taken places beyond, and for how many units of its waiters it may do so too.
    overtaken: (Tick, u64),
}

/// The context of a pass.
pub(super) struct Pass<'a> {
    pub limiter: &'a dyn Limiter,
    pub key: &'a str,
    pub clock: &'a Clock,
    pub began: Instant,
    /// The longest wait for the store in one call.
    pub slice: Duration,
    /// How many keys this driver waits for.
    pub keys: usize,
    /// Whether the driver sleeps at the key's bell.
    pub has_bell: bool,
    /// Where tenants share the limit: whether another line of this driver, which looks for both, comes before this one.
    pub is_behind: bool,
    /// The number of outcomes after which the pass ends. The next pass, which is due immediately, does the rest.
    pub most: usize,
}

impl<'a> Pass<'a> {
    pub fn new(limiter: &'a dyn Limiter, key: &'a str, clock: &'a Clock) -> Pass<'a> {
        let slice = super::slice(limiter);
        let began = Instant::now();
        Pass { limiter, key, clock, began, slice, keys: 1, has_bell: false, is_behind: false, most: usize::MAX }
    }

    fn now(&self) -> Tick {
        self.clock.now().floor
    }

    fn is_over(&self) -> bool {
        super::is_over(self.began, BATCH, self.clock)
    }

    /// Returns whether the pass has had as many outcomes as it may.
    fn is_full(&self, out: &Out) -> bool {
        out.len() >= self.most
    }

    /// Returns the interval at which a key is checked, if one key alone would be checked at this one.
    fn among_keys(&self, interval: Tick) -> Tick {
        let is_on_server = self.limiter.crew().is_some();
        let at_full_rate = if is_on_server { KEYS_AT_FULL_RATE_ON_A_SERVER } else { KEYS_AT_FULL_RATE };
        interval.saturating_mul((self.keys / at_full_rate).max(1) as Tick)
    }

    /// Counts the wait of a waiter that starts.
    fn count_wait(&self, waiting: &Waiting, permit: &RawPermit) {
        let waited = self.now().saturating_sub(waiting.since);
        if waited > 0 {
            self.limiter.waited(self.key, permit, from_ticks(waited));
        }
    }

    /// Returns the window of the limit, in ticks. (A limit that cannot be read reports its error when it is asked for a
    /// start.)
    fn window(&self) -> Tick {
        self.limiter.window(self.key).ok().flatten().map_or(Tick::MAX, patience_ticks)
    }
}

impl KeyLine {
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty() && self.surplus.is_empty() && self.taken.is_empty()
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
        } else {
            // An invalid key, or a weight that can never start, is an error before the caller waits.
            let left = from_ticks(deadline.saturating_sub(now)).max(pass.slice);
            let peek = || pass.limiter.peek_again(key, weight);
            match MayWait::in_slices(pass.began, Duration::MAX, left, peek) {
                Err(Error::WouldWait) if MayWait::here() == MayWait::UntilTimeout => {
                    pass.limiter.sent_away(key, weight);
                    out.push((rank, Outcome::Expired(LOOK_AGAIN)));
                    return Ok(());
                }
                seen => drop(seen?),
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
        self.fill(pass, asked.filter(|_| was_empty), out);
        self.count(pass.limiter);
        Ok(())
    }

    fn insert(
        &mut self,
        rank: Rank,
        wanted: Wanted,
        since: Tick,
        (deadline, hold, grace): (Tick, Tick, Tick),
        share: Option<Share>,
    ) {
        let is_last = self.waiters.last_key_value().is_none_or(|(last, _)| *last < rank);
        let (units, gone) = if is_last { (self.units, self.gone) } else { (0, self.gone) };
        self.is_moved |= !is_last;
        self.units = self.units.saturating_add(wanted.weight);
        self.by_wanted.insert((wanted.clone(), rank));
        self.waiters.insert(rank, Waiting { wanted, since, deadline, hold, grace, share, units, gone });
        if deadline != Tick::MAX {
            self.deadlines.insert((deadline, rank));
        }
        if grace > 0 {
            self.graces.insert((grace, rank));
        }
    }

    /// Holds a place that is ready after `after`, counted from a moment between `asked` and `now`. It comes after the
    /// places that were taken before it, unless it is certainly ready sooner. The order matters: a start gives back the
    /// unused part of its grace only if those before it have started.
    pub fn hold(&mut self, place: RawPermit, wanted: Wanted, after: Duration, (asked, now): (Tick, Tick)) {
        let after = patience_ticks(after);
        let latest = now.saturating_add(after).saturating_add(WORTH_MOVING);
        let at = self.places.partition_point(|held| held.ready <= latest);
        let before = at.checked_sub(1).map_or(0, |before| self.places[before].ready);
        let (ready, unwritten) = (asked.saturating_add(after).max(before), std::mem::take(&mut self.unwritten));
        self.places.insert(at, HeldPlace { place, wanted, ready, unwritten });
        self.is_moved = true;
    }

    /// Puts the first place back to the front. The places behind it become ready no sooner.
    fn put_back(&mut self, place: RawPermit, wanted: Wanted, ready: Tick) {
        self.places.iter_mut().take_while(|next| next.ready < ready).for_each(|next| next.ready = ready);
        let unwritten = std::mem::take(&mut self.unwritten);
        self.places.push_front(HeldPlace { place, wanted, ready, unwritten });
    }

    /// Removes a waiter that stops waiting.
    pub fn leave(&mut self, limiter: &dyn Limiter, rank: Rank) {
        self.give_back_taken(limiter, rank);
        self.remove(limiter, rank);
        self.count(limiter);
    }

    /// Reports the number of waiters to the limiter, for observers, and the first one, for other lines.
    fn count(&mut self, limiter: &dyn Limiter) {
        if std::mem::take(&mut self.is_moved) && self.shown.get().is_some() {
            let first = self.first_without().map(|rank| self.waiters[&rank].shown_as(rank));
            if self.shown.get().is_changed(first) {
                limiter.show_next(first, &self.shown);
                // It may have the turn now.
                (self.turn, self.ask_at) = (None, 0);
            }
        }
        let now = self.waiters.len() + self.taken.len();
        if now != self.counted {
            limiter.waits_more(now as i64 - self.counted as i64);
            self.counted = now;
        }
    }

    /// Returns the first waiter.
    pub fn first(&self) -> Option<Rank> {
        self.waiters.first_key_value().map(|(rank, _)| *rank)
    }

    /// Makes the line check immediately, because units may be free now.
    pub fn wake(&mut self, now: Tick) {
        self.ask_at = self.ask_at.min(self.soonest_ask(now));
        self.look_sooner_at = self.look_sooner_at.min(now);
        self.look_elsewhere_at = self.look_elsewhere_at.map(|at| at.min(now));
    }

    /// Returns when a wake-up lets the line ask. (One end may wake the lines of all keys.)
    fn soonest_ask(&self, now: Tick) -> Tick {
        if self.returned > 0 { now.max(self.ask_returned_at) } else { now }
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

    /// Removes the waiters that timed out.
    pub fn expire(&mut self, pass: &Pass, out: &mut Out) {
        let now = pass.now();
        while let Some(&(deadline, rank)) = self.deadlines.first()
            && deadline <= now
        {
            let after = from_ticks(self.earliest(pass, rank).saturating_sub(now));
            self.send_away(pass, rank, after, out);
        }
    }

    /// Returns the earliest start of a waiter, as far as this line knows.
    pub fn earliest(&self, pass: &Pass, rank: Rank) -> Tick {
        let now = pass.now();
        let Some(waiting) = self.waiters.get(&rank) else { return now };
        let wanted = &waiting.wanted;
        let ahead = self.by_wanted.range(wanted.entries(rank)).take(MAX_PLACES).count();
        match self.places.iter().filter(|held| held.wanted == *wanted).nth(ahead) {
            Some(held) => held.ready,
            None => {
                let ahead = waiting.units.saturating_sub(self.gone - waiting.gone);
                self.soonest(pass, ahead.saturating_add(wanted.weight), now)
            }
        }
    }

    /// Returns the earliest start of the last of this many waiting units.
    fn soonest(&self, pass: &Pass, units: u64, now: Tick) -> Tick {
        let held: u64 = self.places.iter().map(|held| held.wanted.weight).sum();
        let from = match self.places.back() {
            Some(last) if !pass.limiter.may_start_elsewhere() => last.ready,
            _ => now,
        };
        from.max(now).saturating_add(patience_ticks(pass.limiter.soonest(pass.key, units.saturating_sub(held))))
    }

    fn wants_places(&self) -> bool {
        let most = if self.is_joint { 1 } else { MAX_PLACES };
        self.waiters.len() > self.places.len() && self.places.len() < most
    }

    /// Returns the first waiter that no place is held for.
    fn first_without(&self) -> Option<Rank> {
        if !self.wants_places() {
            return None;
        }
        let mut held: BTreeMap<&Wanted, usize> = BTreeMap::new();
        for place in &self.places {
            *held.entry(&place.wanted).or_default() += 1;
        }
        let has_none = |waiting: &Waiting| match held.get_mut(&waiting.wanted) {
            Some(left) if *left > 0 => {
                *left -= 1;
                false
            }
            _ => true,
        };
        let mut has_none = has_none;
        self.waiters.iter().find(|(_, waiting)| has_none(waiting)).map(|(rank, _)| *rank)
    }

    /// Returns whether the next place may be at any distance: it is the line's only one, and no other line has to know of
    /// its waiters, nor may have to. Otherwise whoever holds a far place would pass those who ask meanwhile and are more urgent.
    /// And where units are returned to a server, they are free sooner than it can tell. Whoever starts with them after a far
    /// place was taken counts from the time of that place.
    fn has_any_distance(&self, is_shared: bool) -> bool {
        let is_alone = !is_shared && self.turn.is_none() && !self.shown.get().is_some();
        is_alone && self.places.is_empty() && self.returned == 0
    }

    /// Returns how far ahead places are taken. It is far enough that a late driver finds the places it could have
    /// started with. It is not so far that the preceding starts have not happened, because these give back the unused
    /// part of their grace. Where units are returned to a server, it grows with the wait of the waiter that asks: others take
    /// the units as they become free, and one that needs many at once would never have a place.
    fn horizon(&self, window: Tick, waited: Tick) -> Tick {
        let (least, most) = if self.returned > 0 { (HORIZON_ON_A_SERVER, waited) } else { (HORIZON, 0) };
        least.max(2 * self.late).max(self.asked()).min(window / 2).max(most)
    }

    /// Returns the grace that this line needs, if it is more than the default.
    fn grace(&self, window: Tick) -> Duration {
        let wanted = 2 * self.late;
        if wanted <= (window / 40).min(MAX_DEFAULT_GRACE) { Duration::ZERO } else { from_ticks(wanted.min(window / 4)) }
    }

    /// Returns the longest grace that a waiter here requested. A place serves the waiter that is first when it is
    /// ready, so all places get this grace.
    fn asked(&self) -> Tick {
        self.graces.last().map_or(0, |(grace, _)| *grace)
    }

    /// Takes places, or starts, for the first waiters that have none. `asked` is the reply for the first of them, if
    /// the limiter was just asked.
    fn fill(&mut self, pass: &Pass, mut asked: Option<Claim>, out: &mut Out) {
        let window = pass.window();
        let (is_bounded, is_shared) = (pass.limiter.has_bounded_queue(), pass.limiter.is_shared());
        // The first request is made even in a late thread, so that a joining caller learns whether units are free.
        let mut is_first = true;
        while let Some(rank) = self.first_without() {
            let now = pass.now();
            // In a bounded queue, all waiters have to learn the outcome immediately.
            if now < self.ask_at && !is_bounded {
                return;
            }
            if pass.is_over() && !is_first || pass.is_full(out) && !is_bounded {
                self.is_unfinished = true;
                return;
            }
            is_first = false;
            if self.places.is_empty() {
                self.returned = pass.limiter.returned();
            }
            let first = &self.waiters[&rank];
            let (wanted, deadline, share) = (first.wanted.clone(), first.deadline, first.share);
            let in_turn = first.is_hurried() && !is_shared;
            let left = deadline.saturating_sub(now);
            let horizon = self.horizon(window, now.saturating_sub(first.since));
            let most = if self.has_any_distance(is_shared) || is_bounded { left } else { left.min(horizon) };
            let patience = (most != Tick::MAX).then(|| from_ticks(most));
            let (grace, as_place) = (self.grace(window), !self.places.is_empty());
            let terms = Terms {
                most: patience,
                grace,
                asked: from_ticks(self.asked()),
                as_place,
                in_turn,
                share,
                ..Terms::NOW
            };
            match self.claim(pass, (rank, &wanted), terms, asked.take()) {
                Ok(Claim::Started(permit)) => {
                    self.looks = 0;
                    self.admit(pass, &wanted, permit, out);
                }
                Ok(Claim::Place { place, after }) => {
                    if self.places.is_empty() {
                        (self.look_sooner_at, self.ask_sooner_at) = (now + LOOK_SOONER, now + LOOK_SOONER);
                        self.look_elsewhere_at = pass.limiter.may_start_elsewhere().then(|| now + self.poll(pass));
                        self.look_ahead_at = self.is_joint.then_some(now);
                    }
                    self.hold(place, wanted, after, (now, pass.now()));
                }
                Ok(Claim::Denied { after, is_certain }) => {
                    let after_ticks = patience_ticks(after);
                    if deadline <= now || is_certain && after_ticks > left {
                        self.send_away(pass, rank, after, out);
                        continue;
                    }
                    self.ask_at = now.saturating_add(self.pause(pass, after_ticks, is_certain, horizon));
                    self.ask_returned_at = now + pass.among_keys(ASKS_APART);
                    return;
                }
                Ok(Claim::Full { after }) => self.send_away(pass, rank, after, out),
                Err(Error::WouldWait) => return,
                Err(error) => self.fail(pass, rank, error, out),
            }
        }
    }

    /// Asks for a start or a place for the first waiter that has none. Where the lines of all processes are one, only the
    /// line that has the turn gets any. (A line that nobody has to know of is not shown.)
    fn claim(
        &mut self,
        pass: &Pass,
        (rank, wanted): (Rank, &Wanted),
        terms: Terms,
        asked: Option<Claim>,
    ) -> Result<Claim> {
        let (key, weight) = (wanted.key(pass.key), wanted.weight);
        if terms.in_turn {
            self.turn = None;
            self.unwritten.clear();
            return asked.map_or_else(|| self.ask(pass, |limiter| limiter.claim(key, weight, terms)), Ok);
        }
        let denied = Claim::Denied { after: LOOK_AGAIN, is_certain: false };
        let asked_none = asked.is_none() && self.shown.get().is_some();
        let claim = match asked {
            Some(claim) => {
                self.unwritten.clear();
                claim
            }
            None if self.shown.get().is_some() => denied,
            None => self.ask(pass, |limiter| limiter.claim(key, weight, terms))?,
        };
        let Claim::Denied { after, is_certain } = claim else { return Ok(claim) };
        let left = self.waiters[&rank].deadline.saturating_sub(pass.now());
        if !self.shown.get().is_some() && (left == 0 || is_certain && patience_ticks(after) > left) {
            // It does not wait.
            return Ok(claim);
        }
        let (first, shown) = (self.waiters[&rank].shown_as(rank), std::mem::take(&mut self.shown));
        let turn = self.ask_alone(pass, |limiter| limiter.line_up(key, first, &shown));
        self.shown = shown;
        let turn = match turn {
            Err(Error::WouldWait) => return Err(Error::WouldWait),
            // The limiter reports its failure when it is asked for a start.
            turn => turn.unwrap_or(None),
        };
        let since = self.turn.filter(|(before, _)| turn.is_some_and(|turn| turn.ahead == before.ahead));
        self.turn = turn.map(|turn| (turn, since.map_or_else(|| pass.now(), |(_, since)| since)));
        let waited = pass.now().saturating_sub(first.since);
        let near = from_ticks(self.horizon(pass.window(), waited));
        let most =
            if pass.limiter.has_places() { Some(terms.most.map_or(near, |most| most.min(near))) } else { terms.most };
        let in_turn = Terms { in_turn: true, most, tag: heads::tag(first.priority, first.since), ..terms };
        match turn {
            Some(turn) if turn.is_ours() => self.claim_in_turn(pass, (rank, wanted), in_turn, left),
            Some(turn) => {
                // Those that have the turn overtake nobody.
                self.position = None;
                // What the others want is not certain: they may be dead, or leave.
                let is_certain = left != Tick::MAX && {
                    let seen = self.ask_alone(pass, |limiter| limiter.peek_again(key, weight))?;
                    let has_places = pass.limiter.has_places();
                    let known = if has_places { seen.retry_after } else { seen.retry_after.min(seen.reset_after) };
                    !seen.admitted && patience_ticks(known) > left
                };
                let after = pass.limiter.soonest(pass.key, turn.units.saturating_add(weight));
                let after = after.saturating_add(from_ticks(turn.not_before().max(if is_certain { left } else { 0 })));
                Ok(Claim::Denied { after: after.max(LOOK_AGAIN), is_certain })
            }
            // The look failed.
            None if asked_none => self.ask(pass, |limiter| limiter.claim(key, weight, in_turn)),
            None => Ok(claim),
        }
    }

    /// Asks for the line that has the turn. Joint starts do not wait for it: they take places at any distance. If there are
    /// more than at the last request, they have overtaken this waiter, whose units were beyond its horizon then. So it takes
    /// a place behind them, and so do those who have waited as long, for as many units. (Nobody else takes any there while
    /// this line has the turn. So once joint starts no longer come, no line takes far places.)
    fn claim_in_turn(
        &mut self,
        pass: &Pass,
        (rank, wanted): (Rank, &Wanted),
        terms: Terms,
        left: Tick,
    ) -> Result<Claim> {
        let (key, weight, before) = (wanted.key(pass.key), wanted.weight, self.position.take());
        let position = if pass.limiter.has_places() { pass.limiter.position(key, weight) } else { None };
        if let (Some((before, of)), Some((now, is_units))) = (before, position)
            && of == *wanted
            && now > before
        {
            self.overtaken = (pass.now(), if is_units { now - before } else { 0 }.max(weight));
        }
        let (at, units) = self.overtaken;
        let may_follow = units >= weight && self.waiters[&rank].since <= at;
        let most = if may_follow { (left != Tick::MAX).then(|| from_ticks(left)) } else { terms.most };
        let claim = self.ask(pass, |limiter| limiter.claim(key, weight, Terms { most, ..terms }))?;
        match claim {
            Claim::Denied { is_certain: true, .. } => {
                self.position = position.map(|(position, _)| (position, wanted.clone()));
            }
            Claim::Place { .. } if may_follow => self.overtaken.1 -= weight,
            _ => {}
        }
        Ok(claim)
    }

    /// Returns how long not to ask after a denial.
    fn pause(&mut self, pass: &Pass, after: Tick, is_certain: bool, horizon: Tick) -> Tick {
        let (has_places, is_shared) = (pass.limiter.has_places(), pass.limiter.is_shared());
        if let Some((turn, since)) = self.turn.filter(|(turn, _)| !(turn.is_ours() && (has_places || is_certain))) {
            if pass.is_behind && !turn.is_ours() {
                return pass.among_keys(LOOK_SOONER);
            }
            if is_shared && pass.has_bell {
                return turn.look_in_by_rank();
            }
            // (Tenants pass the turn with each start.)
            let is_for_long = has_places && (!is_shared || turn.not_before() > 0);
            if pass.has_bell || is_for_long || turn.idle().is_some() {
                return pass.among_keys(turn.look_in());
            }
            // Nobody calls an event loop. The first two look often, for they are next: a sixteenth of the time that it has
            // taken so far.
            let most = if turn.ahead > 1 { LEAST_OFTEN } else { ((pass.now() - since) / 16).clamp(500, LEAST_OFTEN) };
            return pass.among_keys(jitter(most / 2, most));
        }
        if has_places && !self.has_any_distance(is_shared) {
            let after = if is_certain { after.saturating_sub(horizon) } else { after };
            let is_overtaken = self.shown.get().is_some() && pass.now() < self.overtaken.0.saturating_add(OVERTAKEN);
            let after = if is_overtaken { after.min(pass.among_keys(LEAST_OFTEN)) } else { after };
            return after.clamp(
                1,
                match (is_certain, self.places.is_empty()) {
                    (true, false) if !self.shown.get().is_some() => Tick::MAX,
                    // No place is held that could be sooner, or others may ask whether this line runs.
                    (true, true) if pass.limiter.crew().is_some() => {
                        pass.among_keys((after / 8).clamp(LOOK_SOONER, LOOK_SOONER_ON_A_SERVER))
                    }
                    (true, _) => pass.among_keys(LOOK_SOONER),
                    (false, _) => LOOK_AGAIN.as_micros() as Tick,
                },
            );
        }
        if is_certain {
            // Another process may cancel a start of a concurrency limit, or open its gate. (A limiter of the program's own is asked
            // only when it said.)
            let may_change = (pass.limiter.limit().is_some() || is_shared) && !has_places;
            return after.clamp(1, if may_change { pass.among_keys(LOOK_SOONER) } else { Tick::MAX });
        }
        self.poll(pass)
    }

    /// Returns how long not to ask, where another process may complete a start at any time: check soon at first, then less
    /// often, and never in step with other processes. (A completion in this process wakes the key.)
    fn poll(&mut self, pass: &Pass) -> Tick {
        self.looks = (self.looks + 1).min(6);
        let most = pass.among_keys(500 << (self.looks - 1).min(5));
        jitter(most / 2, most)
    }

    /// Starts with the places that are ready.
    fn start_ready(&mut self, pass: &Pass, out: &mut Out) {
        for _ in 0..self.places.len() {
            let now = pass.now();
            if self.places.front().is_none_or(|first| first.ready > now) {
                break;
            }
            if pass.is_over() || pass.is_full(out) {
                self.is_unfinished = true;
                return;
            }
            let Some(HeldPlace { place, wanted, ready, unwritten }) = self.places.pop_front() else { break };
            self.late = (self.late - self.late / 8).max(now - ready);
            let presented = self.ask(pass, |limiter| limiter.start(&place));
            // (Whether it has started or not, a joint start may have taken places.)
            self.unwritten.extend(unwritten);
            match presented {
                Ok(Presented::Started(permit)) => {
                    self.admit(pass, &wanted, permit, out);
                    if self.places.is_empty() {
                        // The next waiter takes its place now: `ask_at` was set when others held places that they have
                        // since given back.
                        self.ask_at = self.ask_at.min(now);
                    }
                }
                Ok(Presented::Wait { place: fresh, after }) if after.is_zero() => {
                    // It was presented too late, and the fresh place may be too, if taking it takes long. The next
                    // request needs no grace: it asks for an immediate start.
                    self.give_back(pass.limiter, fresh);
                    self.ask_at = now;
                }
                Ok(Presented::Wait { place: same, after }) if same == place => {
                    // It was early, or another limit has no free units, which concerns the other waiters too.
                    let ready = now.saturating_add(patience_ticks(after));
                    self.put_back(place, wanted, ready);
                    self.look_ahead_at = self.is_joint.then_some(now);
                    self.send_away_the_late(pass, now, out);
                    break;
                }
                Ok(Presented::Wait { place: fresh, after }) => {
                    self.hold(fresh, wanted, after, (now, pass.now()));
                    self.send_away_the_late(pass, now, out);
                }
                Err(Error::WouldWait) => {
                    self.put_back(place, wanted, ready);
                    return;
                }
                Err(error) => {
                    self.give_back(pass.limiter, place);
                    if let Some(rank) = self.first_of(&wanted) {
                        self.fail(pass, rank, error, out);
                    }
                }
            }
        }
    }

    /// Removes the waiters whose place is now later than their deadline.
    fn send_away_the_late(&mut self, pass: &Pass, now: Tick, out: &mut Out) {
        if self.deadlines.is_empty() || pass.limiter.may_start_elsewhere() {
            return;
        }
        let ranks: Vec<Rank> = self.waiters.keys().take(self.places.len()).copied().collect();
        for rank in ranks {
            let ready = self.earliest(pass, rank);
            if self.waiters[&rank].deadline < ready {
                self.send_away(pass, rank, from_ticks(ready.saturating_sub(now)), out);
            }
        }
    }

    /// Gives all places back, to take new ones, if a new waiter would start sooner than the first one here.
    fn look_sooner(&mut self, pass: &Pass) {
        let now = pass.now();
        if now < self.look_sooner_at {
            return;
        }
        // A server is asked at once if this process has returned units to it, and otherwise every few seconds.
        let returned = pass.limiter.returned();
        let Some(first) = self.places.front() else {
            if returned != self.returned {
                self.ask_at = self.ask_at.min(self.soonest_ask(now));
            }
            return self.look_sooner_at = now + pass.among_keys(LOOK_SOONER);
        };
        let has_returned = returned != self.returned && first.ready > now + WORTH_MOVING;
        if has_returned && now < self.ask_returned_at {
            return self.look_sooner_at = self.ask_returned_at;
        }
        let is_on_server = pass.limiter.crew().is_some();
        if is_on_server && !has_returned && now < self.ask_sooner_at {
            return self.look_sooner_at = now + pass.among_keys(LOOK_SOONER);
        }
        let (key, weight) = match pass.limiter.counts_places() {
            // One unit more cannot start before the place, unless all of its units could.
            true => (pass.key, 1),
            false => (first.wanted.key(pass.key), first.wanted.weight),
        };
        let peek =
            if has_returned { pass.limiter.quiet_peek(key, weight) } else { pass.limiter.peek_again(key, weight) };
        let seen = match peek {
            Ok(seen) => seen,
            Err(Error::WouldWait) => return (self.is_blocked, self.blocked_until) = (true, 0),
            Err(_) => return self.look_sooner_at = now + LOOK_SOONER,
        };
        self.returned = returned;
        let rest = first.ready.saturating_sub(now) / 8;
        self.ask_sooner_at = now + rest.clamp(LOOK_SOONER, LOOK_SOONER_ON_A_SERVER);
        self.ask_returned_at = now + pass.among_keys(ASKS_APART);
        self.look_sooner_at = now + LOOK_SOONER;
        // Counted from now: if this process was stopped since it asked, a start would not be sooner for that.
        if patience_ticks(seen.retry_after).saturating_add(pass.now() + WORTH_MOVING) < first.ready {
            self.give_back_all(pass.limiter);
            pass.limiter.return_promises(pass.key);
            self.ask_at = now;
        }
    }

    /// Lets the joint start at the first place take the other places that it will need.
    fn look_ahead(&mut self, pass: &Pass) {
        let now = pass.now();
        if self.look_ahead_at.is_none_or(|at| now < at) || self.places.front().is_none_or(|first| first.ready <= now) {
            return;
        }
        let Some(HeldPlace { mut place, wanted, mut ready, unwritten }) = self.places.pop_front() else { return };
        let seen = self.ask(pass, |limiter| limiter.look_ahead(&place));
        // (It may have taken places, whatever its answer is.)
        self.unwritten.extend(unwritten);
        match seen {
            Ok(Some(Ahead { place: same, after, again })) => {
                self.look_ahead_at = again.map(|again| now.saturating_add(patience_ticks(again).max(1)));
                // No sooner than it was told to come back: another limit may have no free units until then.
                (place, ready) = (same, ready.max(now.saturating_add(patience_ticks(after))));
            }
            // At the next pass, which may wait.
            Err(Error::WouldWait) => {}
            // A waiter learns of an error when the place is presented.
            Ok(None) | Err(_) => self.look_ahead_at = None,
        }
        self.put_back(place, wanted, ready);
    }

    /// Removes all waiters, and gives their places back.
    pub fn end(&mut self, limiter: &dyn Limiter) {
        self.give_back_all(limiter);
        self.give_back_rest(limiter);
        self.waiters.clear();
        self.taken.drain(..).for_each(|taken| taken.give_back(limiter));
        self.count(limiter);
    }

    /// Ends all waits with this error.
    fn close(&mut self, pass: &Pass, error: &Error, out: &mut Out) {
        (self.is_unfinished, self.is_blocked) = (false, false);
        self.taken.drain(..).for_each(|taken| {
            taken.give_back(pass.limiter);
            out.push((taken.rank, Outcome::Failed(error.clone())));
        });
        self.give_back_surplus(pass.limiter);
        self.give_back_all(pass.limiter);
        while let Some((&rank, _)) = self.waiters.first_key_value() {
            self.forget(rank);
            out.push((rank, Outcome::Failed(error.clone())));
        }
        self.count(pass.limiter);
    }

    /// Gives all places back, the last one first, so that no other place is queued behind it.
    pub fn give_back_all(&mut self, limiter: &dyn Limiter) {
        self.is_moved = true;
        while let Some(held) = self.places.pop_back() {
            self.give_back(limiter, held.place);
        }
    }

    /// Gives a place back, or leaves that to a pass that may wait.
    fn give_back(&mut self, limiter: &dyn Limiter, place: RawPermit) {
        limiter.take_back_charge(&self.shown, &place);
        self.give_back_uncharged(limiter, place);
    }

    fn give_back_uncharged(&mut self, limiter: &dyn Limiter, place: RawPermit) {
        let since = *self.blocked_since.get_or_insert_with(Instant::now);
        let give_back = || MayWait::in_slice(since, super::slice(limiter), || limiter.cancel_place(&place));
        // If it fails otherwise, the place expires unused.
        if self.is_blocked || matches!(give_back(), Err(Error::WouldWait)) {
            self.surplus.push(place);
            (self.is_blocked, self.blocked_until) = (true, 0);
        }
    }

    /// Gives back what a pass that may wait would, because there is no such pass any more.
    fn give_back_rest(&mut self, limiter: &dyn Limiter) {
        // (A user-defined limiter may never have an answer. A store has one when its timeout is over.)
        while !self.surplus.is_empty() && MayWait::here() == MayWait::UntilTimeout && !limiter.has_custom() {
            self.is_blocked = false;
            self.give_back_surplus(limiter);
        }
    }

    /// Gives back what a pass that must not wait could not: places that nobody wants, or that came too late. Returns whether nothing
    /// else is left to do for a pass that may wait.
    pub fn give_back_late(&mut self, pass: &Pass) -> bool {
        if !self.is_blocked || self.has_taken() {
            return false;
        }
        let is_late = |held: &HeldPlace| pass.limiter.is_late(&held.place);
        let late = self.places.iter().take_while(|held| is_late(held)).count();
        if late == 0 && self.surplus.is_empty() {
            return false;
        }
        for HeldPlace { place, .. } in self.places.drain(..late) {
            // It is exchanged, and counted as lost.
            match pass.limiter.start(&place) {
                Ok(Presented::Wait { place: fresh, .. }) => self.surplus.push(fresh),
                Ok(Presented::Started(permit)) => drop(pass.limiter.cancel(&permit)),
                Err(_) => self.surplus.push(place),
            }
        }
        (self.is_blocked, self.ask_at, self.is_moved) = (false, 0, true);
        self.give_back_surplus(pass.limiter);
        self.count(pass.limiter);
        !self.is_blocked
    }

    fn give_back_surplus(&mut self, limiter: &dyn Limiter) {
        if !self.surplus.is_empty() {
            for place in std::mem::take(&mut self.surplus) {
                self.give_back_uncharged(limiter, place);
            }
            if self.surplus.is_empty() {
                self.blocked_since = None;
            }
        }
    }

    fn first_of(&self, wanted: &Wanted) -> Option<Rank> {
        self.by_wanted.range(wanted.entries(LAST)).next().map(|(_, rank)| *rank)
    }

    /// Starts the first waiter that asks for this.
    fn admit(&mut self, pass: &Pass, wanted: &Wanted, permit: RawPermit, out: &mut Out) {
        let Some(rank) = self.first_of(wanted) else {
            // No waiter wants it.
            let _ = pass.limiter.cancel(&permit);
            return;
        };
        let Some(waiting) = self.forget(rank) else { return };
        let unwritten = std::mem::take(&mut self.unwritten);
        if unwritten.is_empty() {
            pass.count_wait(&waiting, &permit);
            out.push((rank, Outcome::Admitted(permit)));
        } else {
            self.taken.push(TakenStart { rank, waiting, permit, unwritten });
        }
    }

    fn send_away(&mut self, pass: &Pass, rank: Rank, after: Duration, out: &mut Out) {
        let wanted = &self.waiters[&rank].wanted;
        pass.limiter.sent_away(wanted.key(pass.key), wanted.weight);
        self.remove(pass.limiter, rank);
        out.push((rank, Outcome::Expired(after)));
    }

    fn fail(&mut self, pass: &Pass, rank: Rank, error: Error, out: &mut Out) {
        self.remove(pass.limiter, rank);
        out.push((rank, Outcome::Failed(error)));
    }

    /// Removes a waiter without a start. A place that no waiter is left for goes back.
    fn remove(&mut self, limiter: &dyn Limiter, rank: Rank) {
        if let Some(Waiting { wanted, .. }) = self.forget(rank) {
            self.give_back_unwanted(limiter, &wanted);
        }
    }

    /// Gives a place for this back that no waiter is left for.
    fn give_back_unwanted(&mut self, limiter: &dyn Limiter, wanted: &Wanted) {
        let held = self.places.iter().filter(|held| held.wanted == *wanted).count();
        let waiters = self.by_wanted.range(wanted.entries(LAST)).take(held).count();
        if held > waiters
            && let Some(last) = self.places.iter().rposition(|held| held.wanted == *wanted)
            && let Some(held) = self.places.remove(last)
        {
            self.give_back(limiter, held.place);
            self.ask_at = 0;
        }
    }

    /// Removes a waiter and returns it.
    fn forget(&mut self, rank: Rank) -> Option<Waiting> {
        let waiting = self.waiters.remove(&rank)?;
        let Waiting { wanted, deadline, grace, .. } = &waiting;
        self.is_moved = true;
        self.by_wanted.remove(&(wanted.clone(), rank));
        self.deadlines.remove(&(*deadline, rank));
        self.graces.remove(&(*grace, rank));
        self.units = self.units.saturating_sub(wanted.weight);
        self.gone = self.gone.saturating_add(wanted.weight);
        Some(waiting)
    }
}
