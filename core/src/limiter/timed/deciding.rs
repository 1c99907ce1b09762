//! The public calls without their hooks; and decisions on a start now, and on what one would be.
//!
//! What the calls of the other files return is a failing store's errors: the store's [`OnError`](crate::OnError) is
//! applied here and in `calls.rs`.

use super::backoff::Level;
use super::{InStore, Timed};
use crate::algorithm::Sealed;
use crate::algorithm::log::{Answer, Ask, Taken, View};
use crate::atomic::*;
use crate::decision::Decision;
use crate::error::Result;
use crate::fork::jitter;
use crate::hash::Hash;
use crate::limiter::internal::{Base, Behind, Quiet, When};
use crate::limiter::{Attempt, Presented, Reserved};
use crate::permit::{MAX_GRACE, RawPermit, TimedPermit};
use crate::policy::{self, Shape};
use crate::state::counts::{ADMITTED, DENIED, WAIT_TIME};
use crate::state::{AtOnce, Blocked, Bound, Home, Key, Limit, STORE_AGAIN, Stuck, Table};
use crate::time::{Tick, from_ticks};
use std::time::Duration;

/// The parts of a decision.
pub(super) struct Seen {
    pub view: View,
    pub capacity: u64,
    pub admitted: bool,
    pub backoff: Tick,
}

/// The reply to a request for a start now. A `FULL` one also describes the key after the decision.
pub(super) trait StartReply<const FULL: bool> {
    /// Makes a denial, without a permit, or an admission. `after`: when a denied caller may try again; `full`: the whole
    /// decision without its permit.
    fn of(permit: Option<RawPermit>, after: Duration, full: impl FnOnce() -> Decision) -> Self;
}

impl StartReply<false> for Attempt {
    #[inline(always)]
    fn of(permit: Option<RawPermit>, after: Duration, _: impl FnOnce() -> Decision) -> Attempt {
        permit.map_or(Attempt::Denied(after), Attempt::Admitted)
    }
}

impl StartReply<true> for Decision {
    #[inline(always)]
    fn of(permit: Option<RawPermit>, _: Duration, full: impl FnOnce() -> Decision) -> Decision {
        Decision { permit, ..full() }
    }
}

impl<T: InStore> Behind for T {
    #[inline(always)]
    fn base(&self) -> &Base {
        &self.timed().base
    }

    #[inline(always)]
    fn limit(&self) -> Option<&Limit> {
        Some(&self.timed().limit)
    }
}

impl<T: InStore> Quiet for T {
    #[inline]
    fn quiet_attempt(&self, key: &str, weight: u64) -> Result<Attempt> {
        self.timed().start_now(key, weight)
    }

    fn quiet_decide(&self, key: &str, weight: u64) -> Result<Decision> {
        self.timed().start_now(key, weight)
    }

    fn decide_for_all(&self, key: &str, weight: u64) -> Result<Decision> {
        match self.timed().limit.is_served() {
            true => self.timed().start_on_server_alone(key, weight),
            false => self.quiet_decide(key, weight),
        }
    }

    fn quiet_peek(&self, key: &str, weight: u64) -> Result<Decision> {
        self.timed().limit.or_instead(
            || self.timed().do_peek(key, weight),
            |is_admitted| {
                let permit = is_admitted.then(|| self.timed().uncounted(weight));
                Decision { permit: None, ..self.timed().limit.undecided(permit) }
            },
        )
    }

    fn peek_again(&self, key: &str, weight: u64) -> Result<Decision> {
        match self.timed().local_decision(key, weight) {
            Some(decision) => Ok(decision),
            None => self.quiet_peek(key, weight),
        }
    }

    fn quiet_forecast(&self, key: &str, units: u64) -> Result<Option<Duration>> {
        let answer = || self.timed().do_forecast(key, units).map(|after| Some(from_ticks(after)));
        self.timed().limit.or_instead(answer, |_| None)
    }

    fn quiet_reserve(&self, key: &str, weight: u64, when: When) -> Result<Reserved> {
        let reserved = || self.timed().do_reserve(key, weight, when);
        self.timed().limit.or_instead(reserved, |is_admitted| match is_admitted {
            true => Reserved::Place { place: self.timed().uncounted(weight), after: Duration::ZERO },
            false => Reserved::Denied(STORE_AGAIN),
        })
    }

    fn quiet_present(&self, place: &RawPermit) -> Result<Presented> {
        let presented = self.timed().own(place).and_then(|place| self.timed().do_present(&place));
        if let Ok(Presented::Wait { place: fresh, after }) = presented
            && let (Some(fresh), Some(place)) = (fresh.timed(), place.timed())
            && fresh.ticket != place.ticket
        {
            // The start has to wait once more.
            self.timed().limit.count(Hash(place.key), WAIT_TIME, after.as_micros() as u64);
        }
        self.timed().limit.or_instead(|| presented, |is_admitted| self.timed().instead_of_a_place(place, is_admitted))
    }

    fn quiet_record_start(&self, key: &str) -> Result<()> {
        self.timed().limit.or_instead(|| self.timed().do_record_start(key), |_| ())
    }

    fn quiet_record_end(&self, key: &str) -> Result<()> {
        let ended = || self.timed().do_record_end(key);
        self.timed().limit.or_instead(|| self.timed().limit.ending_once(ended), |_| ())
    }
}

impl Timed {
    /// Decides on a start now. (It is one function for all kinds of limiters, so that its reply is written once, where the
    /// caller wants it.)
    #[inline(never)]
    pub(super) fn start_now<const FULL: bool, R: StartReply<FULL>>(&self, key: &str, weight: u64) -> Result<R> {
        let Some(bound) = self.limit.is_bound() else { return self.start_later(key, weight, None) };
        if let Some(found) = bound.find_as(AtOnce::Logs, key, weight) {
            if !found.holds_limit() {
                return self.start_in_small(bound, found, key, weight);
            }
            let decide = |found: &Key, view: &mut View| found.try_log::<FULL, true>(weight, view);
            return self.start_with(bound, Some(found), (key, weight), decide);
        }
        match bound.table().at_once {
            AtOnce::Buckets => self.start_by_bucket(bound, key, weight),
            AtOnce::Windows => self.start_by_windows(bound, key, weight),
            AtOnce::Grants => self.start_by_grants(bound, key, weight),
            AtOnce::Logs | AtOnce::Nothing => self.start_later(key, weight, None),
        }
    }

    /// Decides in a ring that has to grow before it holds the limit.
    #[inline(never)]
    fn start_in_small<const FULL: bool, R: StartReply<FULL>>(
        &self,
        bound: &Bound,
        found: Key,
        key: &str,
        weight: u64,
    ) -> Result<R> {
        let decide = |found: &Key, view: &mut View| found.try_log::<FULL, false>(weight, view);
        self.start_with(bound, Some(found), (key, weight), decide)
    }

    /// Another caller was faster. (Functions of their own leave the registers to a first try at a log.)
    #[inline(never)]
    fn start_again<const FULL: bool, R: StartReply<FULL>>(&self, bound: &Bound, key: &str, weight: u64) -> Result<R> {
        let found = bound.find_as(AtOnce::Logs, key, weight);
        self.start_with(bound, found, (key, weight), |found, view| Some(found.by_log::<FULL>(weight, view)))
    }

    #[inline(never)]
    fn start_by_bucket<const FULL: bool, R: StartReply<FULL>>(
        &self,
        bound: &Bound,
        key: &str,
        weight: u64,
    ) -> Result<R> {
        let found = bound.find_as(AtOnce::Buckets, key, weight);
        self.start_with(bound, found, (key, weight), |found, view| Some(found.by_bucket::<FULL>(weight, view)))
    }

    #[inline(never)]
    fn start_by_windows<const FULL: bool, R: StartReply<FULL>>(
        &self,
        bound: &Bound,
        key: &str,
        weight: u64,
    ) -> Result<R> {
        let found = bound.find_as(AtOnce::Windows, key, weight);
        self.start_with(bound, found, (key, weight), |found, view| Some(found.by_windows::<FULL>(weight, view)))
    }

    #[inline(never)]
    fn start_by_grants<const FULL: bool, R: StartReply<FULL>>(
        &self,
        bound: &Bound,
        key: &str,
        weight: u64,
    ) -> Result<R> {
        let mut view = View::default();
        if let Some(found) = bound.find_as(AtOnce::Grants, key, weight)
            && let Some(answer) = self.take_local::<FULL>(&found, weight, &mut view)
        {
            return Ok(self.reply(&found, weight, &answer, view));
        }
        self.start_later(key, weight, None)
    }

    /// Decides on a start of a key that was found at once, as most are.
    #[inline(always)]
    fn start_with<const FULL: bool, R: StartReply<FULL>>(
        &self,
        bound: &Bound,
        found: Option<Key>,
        (key, weight): (&str, u64),
        decide: impl FnOnce(&Key, &mut View) -> Option<Result<Answer, Sealed>>,
    ) -> Result<R> {
        let Some(found) = found.filter(|found| self.limit.may_start_at_once(found)) else {
            return self.start_later(key, weight, None);
        };
        let mut view = View::default();
        let answer = match decide(&found, &mut view) {
            Some(Ok(answer)) => answer,
            Some(Err(Sealed)) => return self.start_later(key, weight, None),
            None => return self.start_again(bound, key, weight),
        };
        if let Err(blocked) = self.limit.confirm(&found, answer.now, answer.taken.as_ref(), weight) {
            return self.start_later(key, weight, Some(found.stuck(blocked)));
        }
        if answer.taken.is_some() {
            self.reset_backoff(&found);
        } else if found.may_be_awaited() {
            return self.start_later(key, weight, None);
        }
        Ok(self.reply(&found, weight, &answer, view))
    }

    /// Decides on a start now of a key that was not found at once, or is stuck.
    #[inline(never)]
    fn start_later<const FULL: bool, R: StartReply<FULL>>(
        &self,
        key: &str,
        weight: u64,
        stuck: Option<Stuck>,
    ) -> Result<R> {
        let instead = |is_admitted: bool| {
            let permit = is_admitted.then(|| self.uncounted(weight));
            R::of(permit, STORE_AGAIN, || self.limit.undecided(permit))
        };
        let start = |found: &Key| {
            let mut view = View::default();
            if let Some(after) = self.behind_waiters(found, weight)? {
                let (now, ask) =
                    (found.home().clock.now(), Ask::now(found.table.windows.as_slice(), weight, found.gate));
                let view = behind(found.cells().view(&ask, || now)?, after);
                let answer = Answer { now, ready: view.ready, taken: None };
                return Ok(self.reply(found, weight, &answer, view));
            }
            let ask = Ask::now(found.table.windows.as_slice(), weight, found.gate);
            let answer = self.take_shared::<FULL>(found, &ask, false, &mut view)?;
            if FULL && answer.taken.is_some() && found.table.is_adaptive && !self.limit.is_served() {
                // The next start has another distance now. (The start was taken; changes in the meantime are not
                // considered.)
                let mut table = *found.table;
                found.home().block(found.key.at).adapt(&mut table);
                let next = Ask::now(table.windows.as_slice(), weight, found.gate);
                let cells = found.home().cells(&table, found.key);
                view = cells.view(&next, || answer.now).unwrap_or(view);
            }
            Ok(self.reply(found, weight, &answer, view))
        };
        self.limit.or_instead(|| self.limit.with_key_later(key, weight, stuck, start), instead)
    }

    /// Decides on a start now on the server, whatever it has granted.
    fn start_on_server_alone(&self, key: &str, weight: u64) -> Result<Decision> {
        self.limit.with_key_later(key, weight, None, |found| {
            let mut view = View::default();
            let ask = Ask::now(found.table.windows.as_slice(), weight, found.gate);
            let answer = self.take_looking::<true>(found, &ask, &mut view)?;
            Ok(self.reply(found, weight, &answer, view))
        })
    }

    /// Counts a decision, and makes the reply.
    #[inline(always)]
    fn reply<const FULL: bool, R: StartReply<FULL>>(&self, found: &Key, weight: u64, answer: &Answer, view: View) -> R {
        let capacity = found.table.capacity;
        match answer.taken {
            Some(taken) => {
                found.decided(ADMITTED, weight);
                let permit = self.permit(found, taken, weight, 0, 0);
                let seen = || Seen { view, capacity, admitted: true, backoff: 0 };
                R::of(Some(permit), Duration::ZERO, || self.decision(&seen()))
            }
            None => {
                found.decided(DENIED, weight);
                let level = self.denied(found, answer.now.floor);
                let after = from_ticks(answer.ready.saturating_sub(answer.now.floor));
                let seen = || Seen { view, capacity, admitted: false, backoff: Self::spread(found.table, level) };
                R::of(None, after, || self.decision(&seen()))
            }
        }
    }

    /// Makes the permit of a taken start; `ready` is when its place is ready, 0 if it has none.
    #[inline(always)]
    pub(super) fn permit(&self, found: &Key, taken: Taken, weight: u64, ready: Tick, grace: Tick) -> RawPermit {
        // A bucket's place counts from the end of its grace, so that is known anyway; a granted unit has none.
        let is_ahead =
            matches!(found.table.policy.0, Shape::Bucket(_)) || Self::is_granted(found.table) && taken.ahead > 0;
        let grace = if is_ahead { taken.ahead.min(MAX_GRACE) } else { grace };
        self.raw(TimedPermit {
            weight,
            ticket: taken.ticket,
            stamp: taken.stamp,
            ready,
            key: found.hash.0,
            grace,
            lane: found.home().instance as u16,
        })
    }

    pub(super) fn decision(&self, &Seen { view, capacity, admitted, backoff }: &Seen) -> Decision {
        let after = |tick: Tick| from_ticks(tick.saturating_sub(view.now));
        let retry_after = if admitted { Duration::ZERO } else { after(view.ready) };
        Decision {
            permit: None,
            admitted,
            retry_after,
            suggested_after: retry_after.max(from_ticks(backoff)),
            remaining: view.remaining,
            limit: capacity,
            reset_after: after(view.empty),
            denied_by: (!admitted).then(|| self.limit.name().clone()),
        }
    }

    #[inline(always)]
    pub(super) fn reset_backoff(&self, found: &Key) {
        let level = found.backoff();
        if level.load(Relaxed) != 0 {
            level.store(0, Relaxed);
        }
    }

    /// Returns the backoff of a denial, after raising its level if the previous one has ended; 0 without a backoff.
    #[inline(always)]
    fn denied(&self, found: &Key, now: Tick) -> Tick {
        let Shape::Rate(_, backoff) = &found.table.policy.0 else { return 0 };
        let cell = found.backoff();
        let seen = Level::of(cell.load(Relaxed));
        let level = seen.after_denial(backoff, now);
        if level != seen {
            // Another thread that raises it at this moment has written the same.
            let _ = cell.compare_exchange(seen.word(), level.word(), Relaxed, Relaxed);
        }
        level.number
    }

    /// Returns the backoff of a level for one caller, with jitter.
    fn spread(table: &Table, level: u64) -> Tick {
        match &table.policy.0 {
            Shape::Rate(_, backoff) if level > 0 => {
                let (least, most) = backoff.spread(level);
                jitter(least, most)
            }
            _ => 0,
        }
    }

    pub(super) fn do_peek(&self, key: &str, weight: u64) -> Result<Decision> {
        // (Weight 0 is allowed here.)
        if let Some(found) = self.limit.is_bound().and_then(|bound| bound.find_at_once(key, weight.max(1)))
            && !found.may_be_awaited()
        {
            let view = |ask: &Ask| Ok(found.view_at_once(ask)?);
            let seen = self.peek_on(found.home(), found.table, Some(found.backoff()), (weight, found.gate), view);
            if let Ok(seen) = seen {
                return Ok(self.decision(&seen));
            }
        }
        self.peek_later(key, weight)
    }

    /// Returns whether it is certain that a start would be admitted now. A slightly old time is enough for that: units
    /// only become free as time passes.
    #[inline(never)]
    pub(super) fn surely_admits(&self, key: &str, weight: u64) -> bool {
        let Some(found) = self.limit.is_bound().and_then(|bound| bound.find_at_once(key, weight)) else { return false };
        self.limit.may_start_at_once(&found) && found.is_ready_early(weight)
    }

    /// (Without adding the key.)
    #[inline(never)]
    fn peek_later(&self, key: &str, weight: u64) -> Result<Decision> {
        let seen = self.limit.look(key, |home, table, found, gate| {
            let level = found.map(Key::backoff);
            let waits =
                found.filter(|_| weight > 0).map(|found| self.behind_waiters(found, weight)).transpose()?.flatten();
            self.peek_on(home, table, level, (weight, gate), |ask| match self.limit.is_served() {
                true => match found.filter(|_| Self::is_granted(table)) {
                    Some(found) => self.view_granted(found, weight),
                    None => self.view_on_server(home, table, home.hash(b'k', key), weight),
                },
                false => {
                    let cells = found.map_or_else(|| home.untouched(table), Key::cells);
                    let view = cells.view(ask, || home.clock.now())?;
                    Ok(waits.map_or(view, |after| behind(view, after)))
                }
            })
        })?;
        self.limit.look_again(key);
        Ok(self.decision(&seen))
    }

    #[inline(always)]
    fn peek_on(
        &self,
        home: &Home,
        table: &Table,
        level: Option<&AtomicU64>,
        (weight, gate): (u64, Tick),
        view: impl FnOnce(&Ask) -> Result<View, Blocked>,
    ) -> Result<Seen, Blocked> {
        if !self.limit.is_served() {
            policy::check_weight(self.limit.name(), weight, table.capacity)?;
        }
        let view = view(&Ask::now(table.windows.as_slice(), weight, gate))?;
        self.limit.look_after(home, view.now)?;
        let admitted = view.ready <= view.now;
        let backoff = match &table.policy.0 {
            Shape::Rate(_, backoff) if !admitted => {
                let level = level.map_or(0, |level| level.load(Relaxed));
                Self::spread(table, Level::of(level).after_denial(backoff, view.now).number)
            }
            _ => 0,
        };
        Ok(Seen { view, capacity: table.capacity, admitted, backoff })
    }
}

/// What a key that is waited for looks like to a start that comes after the waiters.
fn behind(view: View, after: Tick) -> View {
    View { ready: view.ready.max(view.now.saturating_add(after)), remaining: 0, ..view }
}
