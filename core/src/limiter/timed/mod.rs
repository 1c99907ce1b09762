//! Every timed limit: how a start is decided, waited for, ended and taken back, whichever algorithm its policy selects.

mod backoff;
mod calls;
mod deciding;
mod ending;
mod granted;
mod served;
mod text;

use super::internal::Base;
use super::{Presented, Reserved, foreign};
use crate::algorithm::log::{Answer, Ask, StartId, Taken, View};
use crate::atomic::*;
use crate::decision::Decision;
use crate::error::{Error, Result};
use crate::fork::{PerProcess, jitter};
use crate::hash::Hash;
use crate::permit::{Kind, MOST_GRACE, RawPermit, TimedPermit};
use crate::policy::{self, Policy, Shape};
use crate::state::{AtOnce, Blocked, Home, Key, Limit, STORE_AGAIN, Store, Table};
use crate::time::{Tick, from_ticks};
use backoff::Level;
use deciding::PlaceOutcome;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// A timed limit in a store.
#[derive(Debug)]
pub struct Timed {
    base: Base,
    pub(super) limit: Limit,
    /// The starts without a permit that this process recorded and that have not ended, where that matters.
    running: PerProcess<HashMap<Hash, VecDeque<(u64, Tick)>>>,
}

/// A limiter that is a [`Timed`] limit in a store.
pub trait InStore: Send + Sync {
    /// Returns the limit.
    fn timed(&self) -> &Timed;
}

impl InStore for Timed {
    fn timed(&self) -> &Timed {
        self
    }
}

/// The parts of a decision.
struct Seen {
    view: View,
    capacity: u64,
    admitted: bool,
    backoff: Tick,
}

impl Timed {
    /// Declares a limit under a name, at the first use. It replaces the policy that the name had.
    pub(crate) fn declare(store: &Store, name: &str, policy: Policy) -> Result<Timed> {
        Ok(Self::of(Limit::declare(store.session(), name, policy)?))
    }

    /// Attaches the limit of that kind that is declared under a name. It must be declared at the first use.
    pub(crate) fn attach(store: &Store, name: &str, kind: &'static str) -> Result<Timed> {
        Ok(Self::of(Limit::attach(store.session(), name, kind)?))
    }

    pub(crate) fn of(limit: Limit) -> Timed {
        Timed { base: Base::new(limit.name().clone()), limit, running: PerProcess::new() }
    }

    /// Makes the permit of a taken start; `ready` is when its place is ready, 0 if it has none.
    #[inline(always)]
    fn permit(&self, found: &Key, taken: Taken, weight: u64, ready: Tick, grace: Tick) -> RawPermit {
        // A bucket's place counts from the end of its grace, so that is known anyway; a granted unit has none.
        let is_ahead = found.table.policy.is_bucket() || found.table.at_once == AtOnce::Grants && taken.ahead > 0;
        let grace = if is_ahead { taken.ahead.min(MOST_GRACE) } else { grace };
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

    fn decision(&self, &Seen { view, capacity, admitted, backoff }: &Seen) -> Decision {
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

    /// Returns when a place is ready.
    fn ready(&self, permit: &RawPermit) -> Option<(&Home, Tick)> {
        // A permit's times are meaningless without its lane.
        let start = self.own(permit).ok().filter(|start| start.ready != 0)?;
        Some((self.limit.home().ok()?, start.ready))
    }

    /// Requests a start now or later.
    fn take(&self, found: &Key, ask: &Ask) -> Result<Answer, Blocked> {
        self.take_looking::<false>(found, ask, &mut View::default())
    }

    /// The same, from granted units where a server grants them.
    fn take_shared<const LOOK: bool>(
        &self,
        found: &Key,
        ask: &Ask,
        waits: bool,
        view: &mut View,
    ) -> Result<Answer, Blocked> {
        match Self::is_granted(found.table) {
            true => self.take_granted::<LOOK>(found, ask, waits, view),
            false => self.take_looking::<LOOK>(found, ask, view),
        }
    }

    /// The same; with `LOOK` it also returns the state after it.
    #[inline(always)]
    fn take_looking<const LOOK: bool>(&self, found: &Key, ask: &Ask, view: &mut View) -> Result<Answer, Blocked> {
        if self.limit.is_served() {
            self.limit.check_weight_on_server(found.table, found.hash, ask.weight)?;
            return self.take_from_server::<LOOK>(found, ask, view);
        }
        policy::check_weight(self.limit.name(), ask.weight, found.table.capacity)?;
        if self.limit.would_wait(found, ask.weight)? {
            return Err(Error::WouldWait.into());
        }
        self.before_asking(found);
        let may_wait = ask.patience > 0 || ask.reserve;
        if may_wait
            && found.table.policy.is_counted()
            && !found.home().has_room_for_places(found.home().clock.now().floor)
        {
            return Err(Blocked::Crowded);
        }
        let mut answer = found.decide::<LOOK>(ask, view)?;
        self.limit.confirm(found, answer.now, answer.taken.as_ref(), ask.weight)?;
        if let Some(taken) = &mut answer.taken {
            if taken.is_place() {
                // Where units were free all along, the start is now.
                answer.ready = answer.ready.max(answer.now.floor);
                if found.table.policy.is_counted() {
                    taken.ticket = self.name_place(*found, *taken, ask.weight, answer.now.floor)?;
                }
            }
            self.after_taking(found);
        }
        Ok(answer)
    }

    /// Gives a place its own number where units are only counted.
    #[cold]
    fn name_place(&self, found: Key, taken: Taken, weight: u64, now: Tick) -> Result<u64, Blocked> {
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

    /// After a whole window without a start, job durations are forgotten and the key is reset.
    #[inline(always)]
    fn before_asking(&self, found: &Key) {
        if let Some(jobs) = found.jobs()
            && found.cells().is_idle(found.table.policy.longest(), found.home().clock.now())
        {
            jobs.forget();
        }
    }

    /// Sets the distance to the next start, as the jobs up to now determine it, and resets the backoff.
    #[inline(always)]
    fn after_taking(&self, found: &Key) {
        self.reset_backoff(found);
        if let (Some(jobs), Shape::EvenlySpaced(spacing)) = (found.jobs(), &found.table.policy.0) {
            jobs.space(spacing.interval);
        }
    }

    #[inline(always)]
    fn reset_backoff(&self, found: &Key) {
        let level = found.backoff();
        if level.load(Relaxed) != 0 {
            level.store(0, Relaxed);
        }
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

    fn raw(&self, start: TimedPermit) -> RawPermit {
        RawPermit::new(self.base.id, Kind::Timed(start))
    }

    /// Returns the contents of this limiter's permit. A permit from a lane that is gone counts nowhere: its times are
    /// meaningless here.
    fn own(&self, permit: &RawPermit) -> Result<TimedPermit> {
        let start = self.is_own(permit)?;
        // A permit that counts nowhere may belong to a store that cannot be opened.
        if start.ticket == u64::MAX {
            return Ok(start);
        }
        let lane = self.limit.home()?.instance as u16;
        Ok(if start.lane == lane { start } else { TimedPermit { lane, ..start.voided() } })
    }

    /// Checks that this limiter issued the permit.
    #[inline(always)]
    fn is_own(&self, permit: &RawPermit) -> Result<TimedPermit> {
        match permit.of(self.base.id) {
            Some(Kind::Timed(start)) => Ok(start),
            _ => foreign(self.limit.name()),
        }
    }

    /// Returns the reply to a presented place while the store fails.
    fn instead_of_a_place(&self, place: &RawPermit, is_admitted: bool) -> Presented {
        match is_admitted {
            true => Presented::Started(self.uncounted(place.timed().map_or(1, |place| place.weight))),
            false => Presented::Wait { place: *place, after: STORE_AGAIN },
        }
    }

    /// Makes a permit that counts nowhere.
    fn uncounted(&self, weight: u64) -> RawPermit {
        self.raw(TimedPermit { weight, ticket: u64::MAX, stamp: 0, ready: 0, key: [0; 2], grace: 0, lane: 0 })
    }

    /// Returns the table that a key uses.
    fn table_of(&self, key: &str) -> Result<Table> {
        self.limit.table_of(self.limit.home()?.hash(b'k', key))
    }

    /// Returns whether a start has left every window by now.
    fn is_over(&self, start: &TimedPermit) -> Result<bool> {
        let longest = self.limit.by_table_of(Hash(start.key), |table| table.policy.longest())?;
        Ok(start.stamp.saturating_add(longest) <= self.limit.home()?.clock.now().floor)
    }
}

/// Returns a start as its cells know it, and the hash of its key.
fn known(start: &TimedPermit) -> (Hash, StartId) {
    let TimedPermit { ticket, stamp, weight, key, .. } = *start;
    (Hash(key), StartId { ticket, stamp, weight })
}
