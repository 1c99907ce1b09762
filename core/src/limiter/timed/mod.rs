//! Every timed limit: how a start is decided, waited for, ended and taken back, whichever algorithm its policy selects.

mod backoff;
mod calls;
mod deciding;
mod ending;
mod forecast;
mod granted;
mod places;
mod served;
mod text;

use super::internal::Base;
use super::line::{Passers, Room};
use super::shared::{Bell, Shareable};
use super::{Presented, foreign};
use crate::algorithm::log::{Answer, Ask, StartId, View};
use crate::error::{Error, Result};
use crate::fork::PerProcess;
use crate::hash::Hash;
use crate::permit::{Kind, RawPermit, TimedPermit};
use crate::policy::{self, Policy, Shape};
use crate::state::{Blocked, Home, Key, Limit, STORE_AGAIN, Store, Table};
use crate::time::{Tick, uptime};
use std::collections::{HashMap, VecDeque};

/// A timed limit in a store.
#[derive(Debug)]
pub struct Timed {
    base: Base,
    pub(super) limit: Limit,
    /// The starts without a permit that this process recorded and that have not ended, where that matters.
    running: PerProcess<HashMap<Hash, VecDeque<(u64, Tick)>>>,
    passers: Passers,
}

/// A limiter that is a [`Timed`] limit in a store.
pub trait InStore: Send + Sync {
    /// Returns the limit.
    fn timed(&self) -> &Timed;
}

impl Shareable for Timed {
    fn its_limit(&self) -> &Limit {
        &self.limit
    }

    fn room(&self, found: &Key, units: u64, ahead: Tick) -> Result<Room, Blocked> {
        Self::room(found, units, ahead)
    }

    fn bell<'a>(&self, _: &Key<'a>) -> Option<Bell<'a>> {
        None
    }
}

impl InStore for Timed {
    fn timed(&self) -> &Timed {
        self
    }
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
        let (base, running) = (Base::new(limit.name().clone()), PerProcess::new());
        Timed { base, limit, running, passers: Passers::default() }
    }

    /// Returns when a place is ready.
    fn ready(&self, permit: &RawPermit) -> Option<(&Home, Tick)> {
        // A permit's times are meaningless without its lane.
        let start = self.limit.ending(|| self.own(permit)).ok().filter(|start| start.ready != 0)?;
        Some((self.limit.ending(|| self.limit.home()).ok()?, start.ready))
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
        let mut answer = found.decide::<LOOK>(ask, view).map_err(|_| found.why_sealed(ask.weight))?;
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

    /// After a whole window without a start, job durations are forgotten and the key is reset.
    #[inline(always)]
    fn before_asking(&self, found: &Key) {
        if let Some(jobs) = found.jobs()
            && found.cells().is_idle(found.table.policy.longest(), found.home().clock.now(), uptime)
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
