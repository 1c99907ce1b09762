//! Every limit that is a matter of time: how a start is decided, waited for, ended and taken back, whatever algorithm its
//! policy stands for.

use super::{Attempt, LOOK_AGAIN, Limiter, Presented, Progress, Reserved, Step, Wait, next_id, own, random};
use crate::algorithm::Start;
use crate::algorithm::log::{Answer, Ask, Known, PLACE, SETTLED, Taken, View};
use crate::atomic::*;
use crate::decision::Decision;
use crate::error::Result;
use crate::fork::PerProcess;
use crate::permit::RawPermit;
use crate::policy::{self, Policy, Shape};
use crate::stats::Stats;
use crate::store::counts::{ADMITTED, CANCELLED, DENIED, WAIT_TIME, WAITED};
use crate::store::{Blocked, Hash, Home, Key, Limit, STORE_AGAIN, Store, Table, parts, take_units};
use crate::time::{self, Tick, from_ticks};
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant, SystemTime};

/// Above a place's grace, a permit has a part of the instance of its lane.
pub(super) const LANE: u32 = 48;

/// What fits below it.
const MOST_GRACE: u64 = (1 << LANE) - 1;

/// Nobody sleeps more precisely than this: see [`Timed::nap_before`].
const LATENESS: Duration = Duration::from_micros(200);

/// A grace that is shorter is no match for that.
const SHORT_GRACE: Duration = Duration::from_micros(500);

/// A limit that is a matter of time, in a store.
#[derive(Debug)]
pub struct Timed {
    pub(super) id: u64,
    pub(super) limit: Limit,
    /// When the starts without a permit were that this process recorded and that have not ended, where that matters.
    running: PerProcess<HashMap<Hash, VecDeque<(u64, Tick)>>>,
}

/// What lives in a store as a [`Timed`] limit.
pub trait InStore: Send + Sync {
    /// It.
    fn timed(&self) -> &Timed;
}

impl InStore for Timed {
    fn timed(&self) -> &Timed {
        self
    }
}

impl Timed {
    /// Declares a limit under a name, at the first use, in place of the policy that the name had.
    pub(crate) fn declare(store: &Store, name: &str, policy: Policy) -> Result<Timed> {
        Ok(Self::of(Limit::declare(store, name, policy)?))
    }

    /// Takes the limit of that kind that is declared under a name; at the first use it must be.
    pub(crate) fn attach(store: &Store, name: &str, kind: &'static str) -> Result<Timed> {
        Ok(Self::of(Limit::attach(store, name, kind)?))
    }

    pub(crate) fn of(limit: Limit) -> Timed {
        Timed { id: next_id(), limit, running: PerProcess::new() }
    }

    /// The permit of what was taken; `ready` is when its place comes, 0 if it has none.
    #[inline(always)]
    fn permit(&self, found: &Key, taken: Taken, weight: u64, ready: Tick, grace: Tick) -> RawPermit {
        let Hash([h0, h1]) = found.hash;
        // A bucket's place counts from the end of its grace, so that is known anyway.
        let grace = if found.table.policy.is_bucket() { taken.ahead.min(MOST_GRACE) } else { grace };
        let grace = grace | (found.home.instance & 0xffff) << LANE;
        RawPermit { limiter: self.id, key: weight, a: taken.ticket, b: taken.stamp, ready, reserved: [h0, h1, grace] }
    }

    fn decision(&self, table: &Table, view: View, admitted: bool, backoff: Tick) -> Decision {
        let after = |tick: Tick| from_ticks(tick.saturating_sub(view.now));
        let retry_after = if admitted { Duration::ZERO } else { after(view.ready) };
        Decision {
            permit: None,
            admitted,
            retry_after,
            suggested_after: retry_after.max(from_ticks(backoff)),
            remaining: view.remaining,
            limit: table.policy.capacity(),
            reset_after: after(view.empty),
            denied_by: (!admitted).then(|| self.limit.name().clone()),
        }
    }

    /// When a place comes.
    fn ready(&self, permit: &RawPermit) -> Option<(&Home, Tick)> {
        // Of a lane that is gone it means nothing.
        let permit = self.own(permit).ok().filter(|permit| permit.ready != 0)?;
        Some((self.limit.home().ok()?, permit.ready))
    }

    /// Asks for a start now or later.
    #[inline(always)]
    fn take(&self, found: &Key, ask: &Ask) -> Result<Answer, Blocked> {
        policy::check_weight(self.limit.name(), ask.weight, found.table.policy.capacity())?;
        self.before_asking(found);
        let answer = found.cells().claim(ask, || found.home.clock.now())?;
        self.limit.confirm(found, answer.now, answer.taken.as_ref(), ask.weight)?;
        if answer.taken.is_some() {
            self.after_taking(found);
        }
        Ok(answer)
    }

    /// After a whole window without a start, what jobs took is forgotten: the key is as new.
    #[inline(always)]
    fn before_asking(&self, found: &Key) {
        if let Some(jobs) = found.jobs()
            && found.cells().is_idle(found.table.policy.longest(), found.home.clock.now())
        {
            jobs.forget();
        }
    }

    /// The next start is so far from this one as the jobs up to now say; and the backoff begins anew.
    #[inline(always)]
    fn after_taking(&self, found: &Key) {
        match &found.table.policy.0 {
            Shape::Rate(..) => {
                let level = found.home.backoff(found.key.at);
                if level.load(Relaxed) != 0 {
                    level.store(0, Relaxed);
                }
            }
            Shape::EvenlySpaced(spacing) => {
                if let Some(jobs) = found.jobs() {
                    jobs.space(spacing.interval);
                }
            }
            _ => {}
        }
    }

    /// Takes a place for a key that was found, no sooner than after `delay`; or one in place of another, `again`.
    fn take_place(
        &self,
        found: &Key,
        weight: u64,
        delay: Duration,
        patience: Tick,
        grace: Option<Tick>,
        again: bool,
    ) -> Result<Reserved, Blocked> {
        let policy = &found.table.policy;
        let grace = grace.unwrap_or_else(|| policy.grace(weight));
        let gate = if delay.is_zero() { found.gate } else { found.home.clock.tick_in("delay", delay)?.max(found.gate) };
        let ask = Ask { patience, grace, reserve: true, again, ..Ask::now(policy.windows(), weight, gate) };
        let answer = self.take(found, &ask)?;
        Ok(match answer.taken {
            Some(taken) => {
                let ready = answer.ready.max(answer.now.floor);
                let place = self.permit(found, taken, weight, ready, grace);
                Reserved::Place { place, after: from_ticks(ready - answer.now.floor) }
            }
            None => Reserved::Denied(from_ticks(answer.ready.saturating_sub(answer.now.floor))),
        })
    }

    /// What the backoff of a denial is, after raising its level if the one before is over; 0 where there is none.
    #[inline(always)]
    fn denied(&self, found: &Key, now: Tick) -> Tick {
        let Shape::Rate(_, backoff) = &found.table.policy.0 else { return 0 };
        let cell = found.home.backoff(found.key.at);
        let seen = Level::of(cell.load(Relaxed));
        let level = seen.after_denial(backoff, now);
        if level != seen {
            // Whoever else raises it at this moment has done the same.
            let _ = cell.compare_exchange(seen.word(), level.word(), Relaxed, Relaxed);
        }
        level.number
    }

    /// The backoff of a level, as one caller shall wait it.
    fn spread(table: &Table, level: u64) -> Tick {
        match &table.policy.0 {
            Shape::Rate(_, backoff) if level > 0 => {
                backoff.spread(backoff.delay(level).0, if backoff.is_certain() { 0 } else { random() })
            }
            _ => 0,
        }
    }

    /// A permit of this limiter, or nothing of one from a lane that is gone: its times mean nothing here.
    pub(super) fn own(&self, permit: &RawPermit) -> Result<RawPermit> {
        own(permit, self.id, self.limit.name())?;
        let [h0, h1, grace] = permit.reserved;
        let is_void = grace >> LANE != self.limit.home()?.instance & 0xffff;
        Ok(if is_void {
            let grace = only_grace(grace) | (self.limit.home()?.instance & 0xffff) << LANE;
            RawPermit { a: u64::MAX, b: 0, ready: 0, reserved: [h0, h1, grace], ..*permit }
        } else {
            *permit
        })
    }

    /// A permit that counts nowhere.
    fn uncounted(&self, weight: u64) -> RawPermit {
        RawPermit { limiter: self.id, key: weight, a: u64::MAX, b: 0, ready: 0, reserved: [0; 3] }
    }

    /// Has a start left every window by now?
    fn is_over(&self, permit: &RawPermit) -> Result<bool> {
        let table = self.limit.table()?;
        Ok(permit.b.saturating_add(table.policy.longest()) <= self.limit.home()?.clock.now().floor)
    }
}

/// The level of a backoff and when the next denial raises it, as one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Level {
    number: u64,
    until: Tick,
}

impl Level {
    /// 49 bits of microseconds are 17 years.
    const UNTIL: u32 = 49;

    fn of(word: u64) -> Level {
        Level { number: word >> Self::UNTIL, until: word & ((1 << Self::UNTIL) - 1) }
    }

    fn word(self) -> u64 {
        self.number << Self::UNTIL | self.until
    }

    fn after_denial(self, backoff: &policy::Backoff, now: Tick) -> Level {
        if self.number > 0 && now < self.until {
            return self;
        }
        let (_, grows) = backoff.delay(self.number);
        let number = if grows { (self.number + 1).min((1 << (64 - Self::UNTIL)) - 1) } else { self.number };
        Level { number, until: now + backoff.delay(number).0 }
    }
}

/// What a permit says of its start, and the hash of its key.
fn known(permit: &RawPermit) -> (Hash, Known) {
    let [h0, h1, _] = permit.reserved;
    (Hash([h0, h1]), Known { ticket: permit.a, stamp: permit.b, weight: permit.key })
}

pub(super) fn only_grace(word: u64) -> Tick {
    word & MOST_GRACE
}

/// The calls, whose failures the store's [`OnError`] has not seen yet.
impl Timed {
    #[inline(always)]
    fn do_attempt(&self, key: &str, weight: u64) -> Result<Attempt> {
        policy::check_some(weight)?;
        self.limit.with_key(key, |found| {
            let answer = self.take(found, &Ask::now(found.table.policy.windows(), weight, found.gate))?;
            Ok(match answer.taken {
                Some(taken) => {
                    found.decided(ADMITTED, weight);
                    Attempt::Admitted(self.permit(found, taken, weight, 0, 0))
                }
                None => {
                    found.decided(DENIED, weight);
                    self.denied(found, answer.now.floor);
                    Attempt::Denied(from_ticks(answer.ready.saturating_sub(answer.now.floor)))
                }
            })
        })
    }

    fn do_decide(&self, key: &str, weight: u64) -> Result<Decision> {
        policy::check_some(weight)?;
        self.limit.with_key(key, |found| {
            policy::check_weight(self.limit.name(), weight, found.table.policy.capacity())?;
            let ask = Ask::now(found.table.policy.windows(), weight, found.gate);
            self.before_asking(found);
            let (answer, mut view) = found.cells().claim_and_view(&ask, || found.home.clock.now())?;
            self.limit.confirm(found, answer.now, answer.taken.as_ref(), weight)?;
            found.decided(if answer.taken.is_some() { ADMITTED } else { DENIED }, weight);
            let mut backoff = 0;
            match answer.taken {
                Some(_) => {
                    self.after_taking(found);
                    if found.jobs().is_some() {
                        // The next start is by another distance now. (It was taken: what moves meanwhile is not asked again.)
                        let mut table = found.table;
                        found.home.adapt(&mut table, found.key.at);
                        let next = Ask::now(table.policy.windows(), weight, found.gate);
                        let cells = found.home.cells(&table, found.key);
                        view = cells.view(&next, || answer.now).unwrap_or(view);
                    }
                }
                None => backoff = Self::spread(&found.table, self.denied(found, answer.now.floor)),
            }
            let mut decision = self.decision(&found.table, view, answer.taken.is_some(), backoff);
            decision.permit = answer.taken.map(|taken| self.permit(found, taken, weight, 0, 0));
            Ok(decision)
        })
    }

    fn do_peek(&self, key: &str, weight: u64) -> Result<Decision> {
        self.limit.look(key, |home, table, key, gate| {
            policy::check_weight(self.limit.name(), weight, table.policy.capacity())?;
            let ask = Ask::now(table.policy.windows(), weight, gate);
            let cells = key.map_or_else(|| home.untouched(table), |key| home.cells(table, key));
            let view = cells.view(&ask, || home.clock.now())?;
            self.limit.look_after(home, view.now)?;
            let admitted = view.ready <= view.now;
            let backoff = match (&table.policy.0, key) {
                (Shape::Rate(_, backoff), _) if !admitted => {
                    let level = key.map_or(0, |key| home.backoff(key.at).load(Relaxed));
                    Self::spread(table, Level::of(level).after_denial(backoff, view.now).number)
                }
                _ => 0,
            };
            Ok(self.decision(table, view, admitted, backoff))
        })
    }

    fn do_step(&self, wait: &mut Wait) -> Result<Step> {
        policy::check_some(wait.weight)?;
        while let Progress::Place(place) = wait.progress {
            match self.do_present(&self.own(&place)?)? {
                Presented::Started(permit) => {
                    wait.progress = Progress::Nothing;
                    self.count_wait(wait, &permit);
                    return Ok(Step::Admitted(permit));
                }
                Presented::Wait { place, after } => {
                    wait.progress = Progress::Place(place);
                    let patience = wait.patience(self.limit.home()?.clock.now().floor);
                    if after > from_ticks(patience) {
                        self.limit.counts()?.decided(Some(known(&place).0), DENIED, place.key);
                        self.hand_back(wait)?;
                        return Ok(Step::Expired(after));
                    }
                    if let Some(nap) = self.nap_before(&place, after)? {
                        return Ok(Step::Sleep(nap));
                    }
                }
            }
        }
        policy::check_key(&wait.key)?;
        let patience = wait.patience(self.limit.home()?.clock.now().floor);
        let (step, progress) = self.limit.with_key(&wait.key, |found| {
            let policy = &found.table.policy;
            let grace = policy.grace(wait.weight);
            let ask = Ask { patience, grace, ..Ask::now(policy.windows(), wait.weight, found.gate) };
            let answer = self.take(found, &ask)?;
            let nap = from_ticks(answer.ready.saturating_sub(answer.now.floor));
            Ok(match answer.taken {
                // So many wait that no more fit into the log or its slices. In a bucket's queue they never will.
                None if answer.ready <= answer.now.floor.saturating_add(patience)
                    && (policy.has_origins() || policy.is_sliced()) =>
                {
                    (Step::Sleep(nap.min(LOOK_AGAIN)), Progress::Nothing)
                }
                None => {
                    found.decided(DENIED, wait.weight);
                    (Step::Expired(nap), Progress::Nothing)
                }
                Some(taken) if !taken.is_place => {
                    found.decided(ADMITTED, wait.weight);
                    (Step::Admitted(self.permit(found, taken, wait.weight, 0, 0)), Progress::Nothing)
                }
                Some(taken) => {
                    let place = self.permit(found, taken, wait.weight, answer.ready, grace);
                    (Step::Sleep(nap), Progress::Place(place))
                }
            })
        })?;
        wait.progress = progress;
        match step {
            Step::Admitted(permit) => self.count_wait(wait, &permit),
            Step::Sleep(_) => wait.has_waited = true,
            Step::Expired(_) => {}
        }
        match (step, progress) {
            (Step::Sleep(after), Progress::Place(place)) => match self.nap_before(&place, after)? {
                Some(nap) => Ok(Step::Sleep(nap)),
                None => self.do_step(wait),
            },
            _ => Ok(step),
        }
    }

    /// How long to sleep before a place comes; none if it is there. Who sleeps wakes up late by more than a short grace, and
    /// would have to queue again, so the last moments before a place with one are waited out here.
    fn nap_before(&self, place: &RawPermit, after: Duration) -> Result<Option<Duration>> {
        let home = self.limit.home()?;
        let is_short = from_ticks(place.b.saturating_sub(place.ready)) < SHORT_GRACE && place.b != 0;
        if !is_short || home.clock.is_manual() {
            return Ok((!after.is_zero()).then_some(after));
        }
        if after > LATENESS {
            return Ok(Some(after - LATENESS));
        }
        while home.clock.now().floor < place.ready {
            std::hint::spin_loop();
        }
        Ok(None)
    }

    /// Counts the wait of a waiter who starts, if there was one.
    fn count_wait(&self, wait: &Wait, permit: &RawPermit) {
        if let (true, Ok(home)) = (wait.has_waited, self.limit.home()) {
            let hash = known(permit).0;
            self.limit.count(hash, WAITED, 1);
            self.limit.count(hash, WAIT_TIME, wait.waited(home.clock.now().floor));
        }
    }

    /// Hands back what a waiter holds.
    fn hand_back(&self, wait: &mut Wait) -> Result<()> {
        match std::mem::replace(&mut wait.progress, Progress::Nothing) {
            Progress::Place(place) => self.own(&place).and_then(|place| self.do_cancel(&place)).map(drop),
            _ => Ok(()),
        }
    }

    /// Was there anything to take back?
    fn do_cancel(&self, permit: &RawPermit) -> Result<bool> {
        if self.is_over(permit)? {
            return Ok(false);
        }
        let (hash, start) = known(permit);
        self.limit.take_back(hash, start, only_grace(permit.reserved[2]))
    }

    /// Gives a place back that nobody has started with; `false`: somebody has, or its time is over.
    fn do_cancel_place(&self, place: &RawPermit) -> Result<bool> {
        if self.is_over(place)? {
            return Ok(false);
        }
        let (hash, start) = known(place);
        let was_there = Cell::new(false);
        self.limit.rewrite(hash, |_, table, history| {
            let mut parts = parts(table, history, start);
            parts.retain(|&i| table.policy.is_counted() || history.starts[i].state == PLACE);
            take_units(table, history, &parts, (start, only_grace(place.reserved[2])), start.weight);
            was_there.set(!parts.is_empty());
        })?;
        Ok(was_there.get())
    }

    fn do_settle(&self, permit: &RawPermit, actual: u64) -> Result<()> {
        self.do_complete(permit)?;
        let (hash, start) = known(permit);
        let (is_over, debt) = (self.is_over(permit)?, actual.saturating_sub(start.weight));
        if is_over && debt == 0 {
            return Ok(());
        }
        if is_over {
            // The key may have been forgotten since.
            self.limit.with_hash(hash, |_| Ok(()))?;
        }
        let ahead = only_grace(permit.reserved[2]);
        let edited = self.limit.rewrite(hash, |home, table, history| {
            let parts = parts(table, history, start);
            if parts.is_empty() && !is_over {
                return; // it was ended before
            }
            parts.iter().for_each(|&i| history.starts[i].state = SETTLED);
            take_units(table, history, &parts, (start, ahead), start.weight.saturating_sub(actual));
            // A debt counts from now on, however long ago the start was.
            let (stamp, units) = (home.clock.now().ceil, debt.min(table.policy.capacity()));
            let at = history.starts.partition_point(|start| start.stamp <= stamp);
            if units > 0 {
                let debt = Start { stamp, units, state: SETTLED, id: u64::MAX, is_logged: false };
                history.starts.insert(at, debt);
            }
        });
        edited.map(drop)
    }

    fn do_reserve(
        &self,
        key: &str,
        weight: u64,
        delay: Duration,
        max_wait: Option<Duration>,
        grace: Option<Duration>,
    ) -> Result<Reserved> {
        policy::check_some(weight)?;
        let patience = max_wait.map_or(u64::MAX, time::patience_ticks);
        let grace = grace.map(|grace| time::grace_ticks("grace", grace)).transpose()?;
        self.limit.with_key(key, |found| {
            let reserved = self.take_place(found, weight, delay, patience, grace, false)?;
            match reserved {
                Reserved::Place { after, .. } if !after.is_zero() => {
                    found.add(WAITED, 1);
                    found.add(WAIT_TIME, after.as_micros() as u64);
                }
                Reserved::Place { .. } => {}
                Reserved::Denied(_) => found.decided(DENIED, weight),
            }
            Ok(reserved)
        })
    }

    fn do_present(&self, place: &RawPermit) -> Result<Presented> {
        policy::check_some(place.key)?;
        let early = place.ready.saturating_sub(self.limit.home()?.clock.now().floor);
        if early > 0 {
            return Ok(Presented::Wait { place: *place, after: from_ticks(early) });
        }
        let (hash, start) = known(place);
        let has_started = self.limit.with_hash(hash, |found| {
            let now = found.home.clock.now();
            self.limit.confirm(found, now, None, 0)?;
            // A window ends with its last tick, not with the beginning of it.
            let is_aligned = matches!(found.table.policy.0, Shape::Counter { .. });
            let latest = if is_aligned { now.floor } else { now.ceil };
            let is_good = found.gate <= now.floor && latest <= start.stamp;
            let has_started = is_good && found.cells().present(start)?;
            if has_started {
                found.decided(ADMITTED, start.weight);
            }
            Ok(has_started)
        })?;
        if has_started {
            return Ok(Presented::Started(*place));
        }
        // Late, used before, or overtaken by a gate, a clear or another policy: a fresh place for it. If it was not used
        // it does not count any longer.
        self.do_cancel_place(place)?;
        let is_bucket = self.limit.table()?.policy.is_bucket();
        let grace = if is_bucket { place.b.saturating_sub(place.ready) } else { only_grace(place.reserved[2]) };
        let fresh = self
            .limit
            .with_hash(hash, |found| self.take_place(found, start.weight, Duration::ZERO, u64::MAX, Some(grace), true));
        match fresh? {
            Reserved::Place { place, after } => Ok(Presented::Wait { place, after }),
            // There will be one when others have started.
            Reserved::Denied(after) => {
                let none = RawPermit { a: u64::MAX, b: 0, ready: 0, ..*place };
                Ok(Presented::Wait { place: none, after: after.min(LOOK_AGAIN) })
            }
        }
    }

    /// Only what adapts to how long jobs take has to know that one ended.
    fn do_complete(&self, permit: &RawPermit) -> Result<()> {
        let [h0, h1, _] = permit.reserved;
        let began = if permit.ready != 0 { permit.ready } else { permit.b };
        match self.limit.adapts()? && self.own(permit)?.b != 0 {
            true => self.ended(Hash([h0, h1]), began),
            false => Ok(()),
        }
    }

    fn ended(&self, hash: Hash, began: Tick) -> Result<()> {
        self.limit.with_hash(hash, |found| {
            if let Some(jobs) = found.jobs() {
                jobs.record(found.home.clock.now().floor.saturating_sub(began));
            }
            Ok(())
        })
    }

    fn do_record_job_completion(&self, key: &str) -> Result<()> {
        policy::check_key(key)?;
        if !self.limit.adapts()? {
            return Ok(());
        }
        let home = self.limit.home()?;
        let hash = home.hash(b'k', key);
        let began = self.running.lock().get_mut(&hash).and_then(VecDeque::pop_front);
        match began {
            Some((instance, began)) if instance == home.instance => self.ended(hash, began),
            _ => Ok(()),
        }
    }

    fn do_record_job_start(&self, key: &str) -> Result<()> {
        self.limit.with_key(key, |found| {
            let ask = Ask { force: true, ..Ask::now(found.table.policy.windows(), 1, 0) };
            let answer = self.take(found, &ask)?;
            found.decided(ADMITTED, 1);
            if let Some(jobs) = found.jobs() {
                let mut running = self.running.lock();
                let starts = running.entry(found.hash).or_default();
                starts.push_back((found.home.instance, answer.now.ceil));
                // What never ends shall not grow for ever.
                starts.truncate(jobs.most());
            }
            Ok(())
        })
    }
}

impl<T: InStore> Limiter for T {
    fn name(&self) -> &str {
        self.timed().limit.name()
    }

    fn check_permit(&self, permit: &RawPermit) -> Result<()> {
        own(permit, self.timed().id, self.name())
    }

    #[inline]
    fn attempt(&self, key: &str, weight: u64) -> Result<Attempt> {
        let instead = |is_admitted| match is_admitted {
            true => Attempt::Admitted(self.timed().uncounted(weight)),
            false => Attempt::Denied(STORE_AGAIN),
        };
        self.timed().limit.or_instead(self.timed().do_attempt(key, weight), instead)
    }

    fn decide(&self, key: &str, weight: u64) -> Result<Decision> {
        let instead = |is_admitted: bool| {
            let permit = is_admitted.then(|| self.timed().uncounted(weight));
            self.timed().limit.undecided(permit)
        };
        self.timed().limit.or_instead(self.timed().do_decide(key, weight), instead)
    }

    fn peek(&self, key: &str, weight: u64) -> Result<Decision> {
        self.timed().limit.or_instead(self.timed().do_peek(key, weight), |is_admitted| {
            let permit = is_admitted.then(|| self.timed().uncounted(weight));
            Decision { permit: None, ..self.timed().limit.undecided(permit) }
        })
    }

    fn step(&self, wait: &mut Wait) -> Result<Step> {
        let weight = wait.weight;
        let stepped = self.timed().do_step(wait);
        let elapsed = wait.started.get_or_insert_with(Instant::now).elapsed();
        let left = wait.timeout.map_or(STORE_AGAIN, |timeout| timeout.saturating_sub(elapsed));
        let step = self.timed().limit.or_instead(stepped, |is_admitted| match is_admitted {
            true => Step::Admitted(self.timed().uncounted(weight)),
            false if left.is_zero() => Step::Expired(STORE_AGAIN),
            false => Step::Sleep(left.min(STORE_AGAIN)),
        })?;
        if let Step::Expired(_) = step {
            self.timed().hand_back(wait)?;
        }
        Ok(step)
    }

    fn cancel(&self, permit: &RawPermit) -> Result<()> {
        let cancelled = self.timed().own(permit).and_then(|permit| self.timed().do_cancel(&permit));
        if let Ok(true) = cancelled {
            self.timed().limit.count(known(permit).0, CANCELLED, 1);
        }
        self.timed().limit.or_instead(cancelled.map(drop), |_| ())
    }

    fn cancel_place(&self, place: &RawPermit) -> Result<()> {
        let cancelled = self.timed().own(place).and_then(|place| self.timed().do_cancel_place(&place));
        if let Ok(true) = cancelled {
            self.timed().limit.count(known(place).0, CANCELLED, 1);
        }
        self.timed().limit.or_instead(cancelled.map(drop), |_| ())
    }

    fn settle(&self, permit: &RawPermit, actual: u64) -> Result<()> {
        self.timed()
            .limit
            .or_instead(self.timed().own(permit).and_then(|permit| self.timed().do_settle(&permit, actual)), |_| ())
    }

    fn reserve_later(
        &self,
        key: &str,
        weight: u64,
        delay: Duration,
        max_wait: Option<Duration>,
        grace: Option<Duration>,
    ) -> Result<Reserved> {
        let reserved = self.timed().do_reserve(key, weight, delay, max_wait, grace);
        self.timed().limit.or_instead(reserved, |is_admitted| match is_admitted {
            true => Reserved::Place { place: self.timed().uncounted(weight), after: Duration::ZERO },
            false => Reserved::Denied(STORE_AGAIN),
        })
    }

    fn present(&self, place: &RawPermit) -> Result<Presented> {
        let presented = self.timed().own(place).and_then(|place| self.timed().do_present(&place));
        if let Ok(Presented::Wait { place: fresh, after }) = presented
            && fresh.a != place.a
        {
            // It has to wait once more.
            self.timed().limit.count(known(place).0, WAIT_TIME, after.as_micros() as u64);
        }
        self.timed().limit.or_instead(presented, |is_admitted| match is_admitted {
            true => Presented::Started(self.timed().uncounted(place.key)),
            false => Presented::Wait { place: *place, after: STORE_AGAIN },
        })
    }

    fn record_job_start(&self, key: &str) -> Result<()> {
        self.timed().limit.or_instead(self.timed().do_record_job_start(key), |_| ())
    }

    fn give_up(&self, wait: &mut Wait) -> Result<()> {
        match std::mem::replace(&mut wait.progress, Progress::Nothing) {
            Progress::Place(place) => self.cancel(&place),
            _ => Ok(()),
        }
    }

    fn nap(&self, _wait: &Wait, nap: Duration) {
        if let Ok(home) = self.timed().limit.home() {
            home.clock.sleep(nap);
        }
    }

    fn complete(&self, permit: &RawPermit) -> Result<()> {
        own(permit, self.timed().id, self.name())?;
        self.timed().limit.or_instead(self.timed().do_complete(permit), |_| ())
    }

    fn to_text(&self, permit: &RawPermit) -> Result<String> {
        self.timed().do_to_text(permit)
    }

    fn permit_from_text(&self, text: &str) -> Result<RawPermit> {
        self.timed().do_permit_from_text(text)
    }

    fn record_job_completion(&self, key: &str) -> Result<()> {
        self.timed().limit.or_instead(self.timed().do_record_job_completion(key), |_| ())
    }

    fn open(&self) -> Result<()> {
        self.timed().limit.table().map(drop)
    }

    fn stats(&self, key: &str) -> Result<Stats> {
        self.timed().limit.stats(key)
    }

    fn has_places(&self) -> bool {
        true
    }

    fn has_bounded_queue(&self) -> bool {
        // Known once it is open; a composite has asked for a place before this.
        self.timed().limit.table().is_ok_and(|table| table.policy.kind() == "leaky-bucket")
    }

    fn renew(&self, permit: &RawPermit) -> Result<()> {
        own(permit, self.timed().id, self.name())
    }

    fn set_next_available_time(&self, key: &str, at: SystemTime) -> Result<()> {
        self.timed().limit.close_gate(key, self.timed().limit.home()?.clock.tick_of(at)?)
    }

    fn pause(&self, key: &str, pause: Duration) -> Result<()> {
        self.timed().limit.close_gate(key, self.timed().limit.home()?.clock.tick_in("pause", pause)?)
    }

    fn clear(&self, key: &str) -> Result<()> {
        self.timed().limit.forget(key)
    }

    fn ready_in(&self, permit: &RawPermit) -> Option<Duration> {
        self.timed().ready(permit).map(|(home, ready)| from_ticks(ready.saturating_sub(home.clock.now().floor)))
    }

    fn span(&self, place: &RawPermit) -> Option<(i64, i64)> {
        let (home, ready) = self.timed().ready(place)?;
        // It may start until it counts. Ticks are far from what 63 bits hold.
        let now = home.clock.now().floor as i64;
        Some((ready as i64 - now, place.b as i64 - now))
    }

    fn ready_at(&self, permit: &RawPermit) -> Option<SystemTime> {
        self.timed().ready(permit).map(|(home, ready)| home.clock.to_system(ready))
    }

    fn ready_at_monotonic_ns(&self, permit: &RawPermit) -> Option<u64> {
        self.timed().ready(permit).map(|(home, ready)| home.clock.to_monotonic_ns(ready))
    }
}
