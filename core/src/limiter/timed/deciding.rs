//! Starts and places: requested, waited for, presented.
//!
//! The calls here and in `ending.rs` return a failing store's errors; the store's [`OnError`](crate::OnError) is
//! applied by their callers.

use super::backoff::Level;
use super::served::Started;
use super::{Seen, Timed, known};
use crate::algorithm::Sealed;
use crate::algorithm::log::{Answer, Ask, StartId, View};
use crate::atomic::*;
use crate::decision::{Decision, LOOK_AGAIN};
use crate::error::Result;
use crate::hash::Hash;
use crate::limiter::internal::When;
use crate::limiter::line::{Claim, Terms};
use crate::limiter::{Attempt, Presented, Reserved};
use crate::permit::{MOST_GRACE, RawPermit, TimedPermit};
use crate::policy::{self, Shape};
use crate::state::counts::{ADMITTED, DENIED};
use crate::state::{AtOnce, Blocked, Bound, Home, Key, STORE_AGAIN, Stuck, Table, is_counted_place, is_granted_place};
use crate::time::{self, Tick, from_ticks};
use crate::waiting::MayWait;
use std::cell::Cell;
use std::time::Duration;

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

impl Timed {
    /// Decides on a start now, where the key is found at once, as most are; the failure policy is not applied. (It is one
    /// function for all kinds of limiters, so that its reply is written once, where the caller wants it.)
    #[inline(never)]
    pub(super) fn start<const FULL: bool, R: StartReply<FULL>>(&self, key: &str, weight: u64) -> Result<R> {
        let Some(bound) = self.limit.is_bound() else { return self.start_later(key, weight, None) };
        let Some(found) = bound.find_log(key, weight) else { return self.start_elsewhere(bound, key, weight) };
        if !self.limit.may_start_at_once(&found) {
            return self.start_later(key, weight, None);
        }
        let mut view = View::default();
        match found.try_log::<FULL>(weight, &mut view) {
            Some(answer) => self.finish(&found, key, weight, answer, view),
            // Another caller was faster.
            None => self.start_elsewhere(bound, key, weight),
        }
    }

    /// The same where a first try at a log does not decide. (A function of its own leaves the registers to that try.)
    #[inline(never)]
    fn start_elsewhere<const FULL: bool, R: StartReply<FULL>>(
        &self,
        bound: &Bound,
        key: &str,
        weight: u64,
    ) -> Result<R> {
        let Some(found) = bound.find_at_once(key, weight).filter(|found| self.limit.may_start_at_once(found)) else {
            return self.start_later(key, weight, None);
        };
        let mut view = View::default();
        let answer = match found.table.at_once {
            AtOnce::Logs => found.by_log::<FULL>(weight, &mut view),
            AtOnce::Grants => {
                return match self.take_local::<FULL>(&found, weight, &mut view) {
                    Some(answer) => Ok(self.reply(&found, weight, &answer, view)),
                    None => self.start_later(key, weight, None),
                };
            }
            _ => found.by_cells::<FULL>(weight, &mut view),
        };
        self.finish(&found, key, weight, answer, view)
    }

    /// Does what follows an answer of the cells, and makes the reply.
    #[inline(always)]
    fn finish<const FULL: bool, R: StartReply<FULL>>(
        &self,
        found: &Key,
        key: &str,
        weight: u64,
        answer: Result<Answer, Sealed>,
        view: View,
    ) -> Result<R> {
        let Ok(answer) = answer else { return self.start_later(key, weight, None) };
        if let Err(blocked) = self.limit.confirm(found, answer.now, answer.taken.as_ref(), weight) {
            return self.start_later(key, weight, Some(found.stuck(blocked)));
        }
        if answer.taken.is_some() {
            self.reset_backoff(found);
        }
        Ok(self.reply(found, weight, &answer, view))
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

    pub(super) fn do_peek(&self, key: &str, weight: u64) -> Result<Decision> {
        // (Weight 0 is allowed here.)
        if let Some(found) = self.limit.is_bound().and_then(|bound| bound.find_at_once(key, weight.max(1))) {
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
            self.peek_on(home, table, level, (weight, gate), |ask| match self.limit.is_served() {
                true => match found.filter(|_| Self::is_granted(table)) {
                    Some(found) => self.view_granted(found, weight),
                    None => self.view_on_server(home, table, home.hash(b'k', key), weight),
                },
                false => {
                    let cells = found.map_or_else(|| home.untouched(table), Key::cells);
                    Ok(cells.view(ask, || home.clock.now())?)
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

    /// Starts now, or takes a place if there is one soon enough.
    pub(super) fn do_claim(&self, (key, weight): (&str, u64), terms: Terms) -> Result<Claim> {
        let Terms { most, grace, asked, as_place } = terms;
        policy::check_some(weight)?;
        let patience = most.map_or(u64::MAX, time::patience_ticks);
        self.limit.with_key(key, |found| {
            let policy = &found.table.policy;
            let (usual, asked) = (policy.grace(weight), time::patience_ticks(asked));
            let grace = usual.max(time::patience_ticks(grace)).max(asked);
            let ask = Ask {
                patience,
                grace,
                reserve: as_place,
                ..Ask::now(found.table.windows.as_slice(), weight, found.gate)
            };
            let answer = match asked > usual {
                true => self.take_for_long(found, &ask)?,
                false => self.take_shared::<false>(found, &ask, true, &mut View::default())?,
            };
            let now = answer.now.floor;
            let after = answer.ready.saturating_sub(now);
            Ok(match answer.taken {
                Some(taken) if !taken.is_place() => {
                    found.decided(ADMITTED, weight);
                    Claim::Started(self.permit(found, taken, weight, 0, 0))
                }
                Some(taken) => {
                    let place = self.permit(found, taken, weight, answer.ready, grace);
                    // Recording the place may have taken a while.
                    let now = found.home().clock.now().floor;
                    Claim::Place { place, after: from_ticks(answer.ready.saturating_sub(now)) }
                }
                None if after <= patience && policy.has_queue() => Claim::Full { after: from_ticks(after) },
                // The log or its slices hold no more waiters: there is a time but no place.
                None => Claim::Denied { after: from_ticks(after), is_certain: after > patience },
            })
        })
    }

    pub(super) fn do_reserve(&self, key: &str, weight: u64, when: When) -> Result<Reserved> {
        let When { delay, max_wait, grace, is_waiter } = when;
        policy::check_some(weight)?;
        let patience = max_wait.map_or(u64::MAX, time::patience_ticks);
        let grace = grace.map(|grace| time::grace_ticks("grace", grace)).transpose()?;
        self.limit.with_key(key, |found| {
            let mut reserved = self.take_place(found, weight, delay, patience, grace, false)?;
            if let Reserved::Denied(after) = reserved
                && time::patience_ticks(after) <= patience
                && !found.table.policy.has_queue()
            {
                // The log keeps no more places. This place gets a time, and is exchanged then.
                reserved = Reserved::Place { place: self.later(found, weight, after, grace), after };
            }
            match reserved {
                _ if is_waiter => {}
                Reserved::Place { after, .. } if !after.is_zero() => {
                    found.waited(after);
                }
                Reserved::Place { .. } => {}
                Reserved::Denied(_) => found.decided(DENIED, weight),
            }
            Ok(reserved)
        })
    }

    /// Makes a place that is not in the log. Its only use is to be exchanged when its time comes.
    fn later(&self, found: &Key, weight: u64, after: Duration, grace: Option<Tick>) -> RawPermit {
        let ready = found.home().clock.now().ceil.saturating_add(time::patience_ticks(after));
        let grace = grace.unwrap_or_else(|| found.table.policy.grace(weight)).min(MOST_GRACE);
        let stamp = ready.saturating_add(grace);
        let lane = found.home().instance as u16;
        self.raw(TimedPermit { weight, ticket: u64::MAX, stamp, ready, key: found.hash.0, grace, lane })
    }

    /// Starts with a place, if it is ready and valid.
    fn try_start(&self, place: &TimedPermit) -> Result<PlaceOutcome> {
        policy::check_some(place.weight)?;
        let early = place.ready.saturating_sub(self.limit.home()?.clock.now().floor);
        if early > 0 {
            return Ok(PlaceOutcome::Early(from_ticks(early)));
        }
        if is_granted_place(place.ticket) {
            return self.start_granted(place);
        }
        if self.limit.is_served() {
            return match self.start_on_server(place)? {
                Started::Yes(start) => Ok(PlaceOutcome::Started(start)),
                Started::TooEarly(after) => Ok(PlaceOutcome::Early(after)),
                Started::No => self.do_cancel_place(place).map(|_| PlaceOutcome::Gone),
            };
        }
        let (hash, start) = known(place);
        let era = Cell::new(None);
        let started = self.limit.with_hash(hash, |found| {
            let now = found.home().clock.now();
            self.limit.confirm(found, now, None, 0)?;
            // A window ends with the end of its last tick.
            let is_aligned = matches!(found.table.policy.0, Shape::Counter { .. });
            let latest = if is_aligned { now.floor } else { now.ceil };
            if found.gate > now.floor || latest > start.stamp {
                return Ok(None);
            }
            let is_counted = found.table.policy.is_counted();
            if is_counted != is_counted_place(start.ticket) {
                return Ok(None); // It belongs to another policy, or was started with.
            }
            if is_counted && era.get().is_none() {
                // Only then check whether it still counts: if it does at that moment, it has started.
                era.set(found.home().close_place(start.ticket, start.stamp));
                if era.get().is_none() {
                    return Ok(None);
                }
            }
            let start = StartId { ticket: era.get().unwrap_or(start.ticket), ..start };
            let started = found.cells().present(start, found.table.policy.longest(), now)?;
            if started.is_some() {
                found.decided(ADMITTED, start.weight);
            }
            Ok(started)
        });
        let used = era.get().map(|ticket| TimedPermit { ticket, ..*place });
        if let (Err(_), Some(used)) = (&started, used) {
            // It can no longer start, and must not count in vain.
            let _ = MayWait::to_undo(|| self.give_place_back(place, Some(used)));
        }
        if let Some(stamp) = started? {
            return Ok(PlaceOutcome::Started(TimedPermit { stamp, ..used.unwrap_or(*place) }));
        }
        // It is late, used before, or overtaken by a gate, a clear or another policy. If it was not used it no longer
        // counts.
        match used {
            Some(_) => MayWait::to_undo(|| self.give_place_back(place, used))?,
            None => self.do_cancel_place(place)?,
        };
        Ok(PlaceOutcome::Gone)
    }

    /// The same for a line, which requests a start or place itself to replace a lost one.
    pub(super) fn do_start(&self, place: &TimedPermit) -> Result<Presented> {
        Ok(match self.try_start(place)? {
            PlaceOutcome::Started(start) => Presented::Started(self.raw(start)),
            PlaceOutcome::Early(after) => Presented::Wait { place: self.raw(*place), after },
            PlaceOutcome::Gone => {
                self.count_lost(place);
                Presented::Wait { place: self.raw(place.voided()), after: Duration::ZERO }
            }
        })
    }

    /// Counts a lost place, if it was one in the log.
    fn count_lost(&self, place: &TimedPermit) {
        if place.ticket != u64::MAX {
            self.limit.count_lost_place();
        }
    }

    pub(super) fn do_present(&self, place: &TimedPermit) -> Result<Presented> {
        match self.try_start(place)? {
            PlaceOutcome::Started(start) => return Ok(Presented::Started(self.raw(start))),
            PlaceOutcome::Early(after) => return Ok(Presented::Wait { place: self.raw(*place), after }),
            PlaceOutcome::Gone => self.count_lost(place),
        }
        let is_bucket = self.limit.table()?.policy.is_bucket();
        let mut grace = match () {
            () if is_granted_place(place.ticket) => self.limit.table_of(Hash(place.key))?.policy.grace(place.weight),
            () if is_bucket => place.stamp.saturating_sub(place.ready),
            () => place.grace.min(time::LONGEST),
        };
        let hash = known(place).0;
        loop {
            let asked = self.limit.home()?.clock.now().floor;
            let fresh = self.limit.with_hash(hash, |found| {
                self.take_place(found, place.weight, Duration::ZERO, u64::MAX, Some(grace), true)
            });
            match fresh? {
                Reserved::Place { place: fresh, after } => {
                    let taken = self.own(&fresh)?;
                    let now = self.limit.home()?.clock.now().floor;
                    if now <= taken.stamp || grace >= time::LONGEST {
                        return Ok(Presented::Wait { place: fresh, after });
                    }
                    // Taking it took longer than its grace, as with a slow commit, so it was late from the beginning.
                    self.do_cancel_place(&taken)?;
                    grace = (2 * (now - asked)).min(time::LONGEST);
                }
                // A place will be free when others have started.
                Reserved::Denied(after) => {
                    return Ok(Presented::Wait { place: self.raw(place.voided()), after: after.min(LOOK_AGAIN) });
                }
            }
        }
    }
}

/// The result of presenting a place.
pub(super) enum PlaceOutcome {
    Started(TimedPermit),
    /// Not ready for this long.
    Early(Duration),
    /// It no longer counts.
    Gone,
}
