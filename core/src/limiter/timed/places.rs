//! Places, and starts with them: taken, waited for, presented.

use super::served::Started;
use super::{Timed, known};
use crate::algorithm::log::{Ask, StartId, Taken, View};
use crate::decision::LOOK_AGAIN;
use crate::error::Result;
use crate::hash::Hash;
use crate::limiter::internal::When;
use crate::limiter::line::{Ahead, Claim, First, HORIZON, LineTurn, Lines, NEAR, Room, Shown, Terms, is_awaited};
use crate::limiter::{Presented, Reserved};
use crate::permit::{MAX_GRACE, RawPermit, TimedPermit};
use crate::policy::{self, Shape};
use crate::state::counts::{ADMITTED, DENIED};
use crate::state::{Blocked, Key, is_counted_place, is_granted_place};
use crate::time::{self, Tick, from_ticks};
use crate::waiting::MayWait;
use std::cell::Cell;
use std::time::Duration;

/// A line that is only [`NEAR`] the first one waits for its turn until its units are free so soon. Places are taken a
/// [`HORIZON`] ahead, so the turn can pass a few times before that.
const SOON: Tick = HORIZON * 3 / 4;

impl Timed {
    /// Starts now, or takes a place if there is one soon enough.
    pub(super) fn do_claim(&self, (key, weight): (&str, u64), terms: Terms) -> Result<Claim> {
        let Terms { most, grace, asked, as_place, .. } = terms;
        policy::check_some(weight)?;
        let patience = most.map_or(u64::MAX, time::patience_ticks);
        self.limit.with_key(key, |found| {
            let policy = &found.table.policy;
            if !terms.in_turn && !policy.has_queue() && is_awaited(found) {
                policy::check_weight(self.limit.name(), weight, found.table.capacity)?;
                return Ok(Claim::Denied { after: LOOK_AGAIN, is_certain: false });
            }
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

    /// (In a bounded queue, a waiter has to learn immediately whether there is a place.)
    pub(super) fn do_line_up(&self, key: &str, first: First, shown: &Cell<Shown>) -> Result<Option<LineTurn>> {
        self.limit.with_key(key, |found| {
            if !found.home().is_lane() || found.table.policy.has_queue() {
                return Ok(None);
            }
            let mut own = shown.get();
            let near = if Self::left(found, first.units)? <= SOON { NEAR } else { 0 };
            let room = |units| match Self::room(found, units, 0)? {
                Room::NotBefore(left) if left > 0 && Self::has_far_places(found)? => Ok(Room::Beyond),
                room => Ok(room),
            };
            let turn = own.look(found, Lines::of(found, near), first, room, |_| ());
            shown.set(own);
            if own.is_some() {
                found.its_block().await_key();
            }
            turn
        })
    }

    /// Returns whether somebody holds a place that no line which waits for its turn would have taken yet.
    fn has_far_places(found: &Key) -> Result<bool, Blocked> {
        let (policy, ask) = (&found.table.policy, Ask::now(found.table.windows.as_slice(), 1, 0));
        let view = found.cells().view(&ask, || found.home().clock.now())?;
        let last = view.empty.saturating_sub(policy.longest());
        Ok(last > view.now.saturating_add(HORIZON + policy.grace(1)))
    }

    pub(super) fn do_position(&self, key: &str, weight: u64) -> Option<(u64, bool)> {
        let position = self.limit.with_key(key, |found| {
            let ask = Ask::now(found.table.windows.as_slice(), weight.min(found.table.capacity), found.gate);
            Ok(found.cells().position(&ask, || found.home().clock.now())?)
        });
        position.ok()
    }

    pub(super) fn do_show_next(&self, first: Option<First>, shown: &Cell<Shown>) {
        Shown::show_next(shown, &self.limit, |own, found| {
            own.change(found, Lines::of(found, NEAR), first, |units| Self::room(found, units, 0), |_| ())
        });
    }

    /// Returns the least time after which a start that does not wait may be retried, if waiters come before it.
    pub(super) fn behind_waiters(&self, found: &Key, weight: u64) -> Result<Option<Tick>, Blocked> {
        if found.table.policy.has_queue() {
            return Ok(None);
        }
        let room = |units| Self::room(found, units, 0);
        let Some(before) = self.passers.units_before(found, weight, room, |_| ())? else {
            if !is_awaited(found) {
                found.its_block().await_key_no_more(|| is_awaited(found));
            }
            return Ok(None);
        };
        policy::check_weight(self.limit.name(), weight, found.table.capacity)?;
        let all = before.saturating_add(weight);
        let least = LOOK_AGAIN.as_micros() as Tick;
        Ok(Some(Self::left(found, all)?.max(found.table.policy.soonest(all)).max(least)))
    }

    /// Returns whether so many units could start so long from now. Lines take places before that: see `HORIZON`.
    pub(super) fn room(found: &Key, units: u64, ahead: Tick) -> Result<Room, Blocked> {
        Ok(match Self::left(found, units)? {
            left if left <= ahead => Room::Free { position: 0 },
            left => Room::NotBefore(left.saturating_sub(HORIZON)),
        })
    }

    /// Returns the time until so many units could start.
    fn left(found: &Key, units: u64) -> Result<Tick, Blocked> {
        let ask = Ask::now(found.table.windows.as_slice(), units.min(found.table.capacity), found.gate);
        let view = found.cells().view(&ask, || found.home().clock.now())?;
        Ok(view.ready.saturating_sub(view.now))
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

    /// Takes a place for a found key, no sooner than after `delay`; or one to replace another, `again`.
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
        let gate =
            if delay.is_zero() { found.gate } else { found.home().clock.tick_in("delay", delay)?.max(found.gate) };
        let ask =
            Ask { patience, grace, reserve: true, again, ..Ask::now(found.table.windows.as_slice(), weight, gate) };
        let answer = self.take(found, &ask)?;
        Ok(match answer.taken {
            Some(taken) => {
                let place = self.permit(found, taken, weight, answer.ready, grace);
                // Recording it may have taken a while.
                let now = found.home().clock.now().floor;
                Reserved::Place { place, after: from_ticks(answer.ready.saturating_sub(now)) }
            }
            None => Reserved::Denied(from_ticks(answer.ready.saturating_sub(answer.now.floor))),
        })
    }

    /// Gives a place its own number where units are only counted.
    #[cold]
    pub(super) fn name_place(&self, found: Key, taken: Taken, weight: u64, now: Tick) -> Result<u64, Blocked> {
        loop {
            if let Some(number) = found.home().open_place(&taken, now) {
                return Ok(number);
            }
            // It keeps its turn: a repeated request would get a later one.
            if let Err(error) = self.limit.add_places() {
                self.limit.refuse(&found, &taken, weight)?;
                return Err(error.into());
            }
        }
    }

    /// Makes a place that is not in the log. Its only use is to be exchanged when its time comes.
    fn later(&self, found: &Key, weight: u64, after: Duration, grace: Option<Tick>) -> RawPermit {
        let ready = found.home().clock.now().ceil.saturating_add(time::patience_ticks(after));
        let grace = grace.unwrap_or_else(|| found.table.policy.grace(weight)).min(MAX_GRACE);
        let stamp = ready.saturating_add(grace);
        let lane = found.home().instance as u16;
        self.raw(TimedPermit { weight, ticket: u64::MAX, stamp, ready, key: found.hash.0, grace, lane })
    }

    /// Looks when a place is ready now. It is known once what starts a window before it has started, or was too late: when less than
    /// half of a window is left.
    pub(super) fn do_look_ahead(&self, place: &TimedPermit) -> Result<Ahead> {
        let now = self.limit.home()?.clock.now().floor;
        // Where units are free, it is ready now, and not since the beginning of time: starts tell when they were ready.
        let ready = self.ready_now(place)?.map_or(place.ready, |ready| place.ready.min(ready.max(now)));
        let left = ready.saturating_sub(now);
        let is_far = left > self.limit.table_of(Hash(place.key))?.policy.shortest() / 2;
        let place = self.raw(TimedPermit { ready, ..*place });
        Ok(Ahead { place, after: from_ticks(left), again: is_far.then_some(from_ticks(left / 2)) })
    }

    fn ready_now(&self, place: &TimedPermit) -> Result<Option<Tick>> {
        if self.limit.is_served() || is_granted_place(place.ticket) {
            return Ok(None);
        }
        let (hash, start) = known(place);
        let ready = self.limit.with_known(hash, |found| {
            let ask = Ask::now(found.table.windows.as_slice(), start.weight, found.gate);
            Ok(found.cells().ready_of(start, &ask, || found.home().clock.now())?)
        });
        ready.map(Option::flatten)
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
            () => place.grace.min(time::MAX_TIME),
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
                    if now <= taken.stamp || grace >= time::MAX_TIME {
                        return Ok(Presented::Wait { place: fresh, after });
                    }
                    // Taking it took longer than its grace, as with a slow commit, so it was late from the beginning.
                    self.do_cancel_place(&taken)?;
                    grace = (2 * (now - asked)).min(time::MAX_TIME);
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
