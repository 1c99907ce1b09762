//! A limit of concurrent starts: in one process, or in all that share a store.

mod renewal;
mod served;

use super::internal::{Awaited, Base, Behind, Nested, Quiet};
use super::line::{
    Asker, Claim, First, LineTurn, Lines, Passers, Room, Shown, Terms, calls_of, is_awaited, may_have_line,
    units_before,
};
use super::shared::{Bell, Shareable};
use super::{Attempt, Limiter, Places, Presented, foreign, unsupported};
use crate::algorithm::leases::{Lease, Leases, NEVER};
use crate::atomic::*;
use crate::decision::{Decision, LOOK_AGAIN};
use crate::error::{Error, Result};
use crate::fork::PerProcess;
use crate::hash::Hash;
use crate::os;
use crate::permit::{Kind, LeasePermit, RawPermit};
use crate::policy::{self, Policy, Shape};
use crate::state::counts::{ADMITTED, CANCELLED, DENIED};
use crate::state::{Blocked, Home, Key, KeyEnds, Limit, STORE_AGAIN, Store, StoreOptions, Table};
use crate::time::{self, ManualClock, Tick, from_ticks};
use served::Order;
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Allows at most `max` units running at the same time, per key. A start holds a *lease* until it completes. The lease
/// of a process that died is freed by the next attempt of any process. With a *cooldown* the units become free that long
/// after the start has ended.
///
/// ```
/// # use workglow_limit::{ConcurrencyLimiter, Limiter};
/// let limiter = ConcurrencyLimiter::new(1)?;
/// let running = limiter.try_acquire("", 1)?;
/// assert!(limiter.try_acquire("", 1)?.is_none());
/// drop(running); // completes
/// assert!(limiter.try_acquire("", 1)?.is_some());
/// # Ok::<(), workglow_limit::Error>(())
/// ```
#[derive(Debug)]
pub struct ConcurrencyLimiter {
    base: Base,
    limit: Arc<Limit>,
    /// The starts that this process recorded without a permit and has not ended, where a server counts.
    running: PerProcess<HashMap<Hash, VecDeque<Lease>>>,
    passers: Passers,
}

impl ConcurrencyLimiter {
    /// Allows at most `max` units at the same time, in this process. A forked child counts its own.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `max` is 1 to 65,535.
    pub fn new(max: u64) -> Result<Self> {
        Self::by_policy(Policy::concurrency(max)?, None)
    }

    /// The same, with a manual clock for gates.
    ///
    /// # Errors
    /// As for [`ConcurrencyLimiter::new`].
    pub fn with_clock(max: u64, clock: ManualClock) -> Result<Self> {
        Self::by_policy(Policy::concurrency(max)?, Some(clock))
    }

    /// Makes a limit of this process by a policy of this kind, such as one with a [cooldown](Policy::with_cooldown).
    ///
    /// # Errors
    /// [`Error::Unsupported`] for another kind of policy.
    pub fn by_policy(policy: Policy, clock: Option<ManualClock>) -> Result<Self> {
        if !policy.is_concurrency() {
            return unsupported("ConcurrencyLimiter", "this policy: it does not limit concurrent starts");
        }
        let store = Store::with_options("memory:", StoreOptions { clock, ..StoreOptions::default() })?;
        Self::declare(&store, &policy.to_string(), policy)
    }

    /// Makes a limit that all openers of this name in this store share.
    ///
    /// A start holds its units for at most `lease`, unless it is renewed ([`Limiter::renew`]). With `None` it holds them
    /// as long as its process lives; on a server, as long as the process also reaches the server.
    ///
    /// # Errors
    /// As for [`ConcurrencyLimiter::new`]; `lease` has to be 1 µs to 366 days, `name` 1 to 1,024 bytes.
    pub fn shared(store: &Store, name: &str, max: u64, lease: Option<Duration>) -> Result<Self> {
        let policy = Policy::concurrency(max)?;
        let policy = lease.map_or(Ok(policy), |lease| policy.with_lease(lease))?;
        Self::declare(store, name, policy)
    }

    pub(crate) fn declare(store: &Store, name: &str, policy: Policy) -> Result<Self> {
        Ok(Self::of(Limit::declare(store.session(), name, policy)?))
    }

    pub(crate) fn of(limit: Limit) -> Self {
        let (base, running) = (Base::new(limit.name().clone()), PerProcess::new());
        ConcurrencyLimiter { base, limit: limit.into(), running, passers: Passers::default() }
    }

    /// Attaches the limit that is declared under a name. It must be declared at the first use.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `name` is 1 to 1,024 bytes.
    pub fn attach(store: &Store, name: &str) -> Result<Self> {
        Ok(Self::of(Limit::attach(store.session(), name, "concurrency")?))
    }

    /// Returns until when a start that begins now may hold its units.
    fn deadline(home: &Home, table: &Table) -> Tick {
        match table.policy.0 {
            Shape::Concurrency { lease: NEVER, .. } => NEVER,
            Shape::Concurrency { lease, .. } => home.clock.now().ceil + lease,
            _ => unreachable!("the kind was checked when the limit was opened"),
        }
    }

    fn permit(&self, found: &Key, lease: Lease) -> RawPermit {
        let owner = LeasePermit::owner(found.member(), found.home().instance);
        self.raw(LeasePermit { owner, index: lease.index, fence: lease.fence, key: found.hash.0 })
    }

    /// Takes units. If too few are free, it first frees those of dead processes and of expired leases.
    fn take(&self, found: &Key, leases: &Leases, weight: u64) -> Result<Option<Lease>, Blocked> {
        policy::check_weight(self.limit.name(), weight, found.table.capacity)?;
        let now = found.home().clock.now();
        self.limit.look_after(found.home(), now.floor)?;
        if found.gate > now.floor {
            return Ok(None);
        }
        let (max, me) = (found.table.capacity, found.member());
        let deadline = Self::deadline(found.home(), found.table);
        loop {
            if let Some(lease) = leases.take(weight, max, me, deadline)? {
                return Ok(Some(lease));
            }
            if self.reclaim(found, leases)? == 0 {
                return Ok(None);
            }
        }
    }

    /// Frees the units of dead processes and of expired leases. Returns their number.
    fn reclaim(&self, found: &Key, leases: &Leases) -> Result<u64, Blocked> {
        let me = found.member();
        // Checking other processes costs system calls.
        let others = me != 0 && leases.holds_of_others(me);
        if !others && leases.earliest_deadline()?.is_none() {
            return Ok(0);
        }
        let now = found.home().clock.now().floor;
        let is_dead = |member| others && member != me && found.home().is_dead(member);
        let units = leases.reclaim(now, found.table.policy.cooldown(), || found.home().clock.now().ceil, is_dead)?;
        if units > 0 {
            Self::ring(found, leases);
        }
        Ok(units)
    }

    /// Frees the units of expired leases, before the remaining units are reported.
    fn expire(found: &Key, leases: &Leases) -> Result<(), Blocked> {
        let now = found.home().clock.now().floor;
        let cooldown = found.table.policy.cooldown();
        let ends = cooldown > 0 || !matches!(found.table.policy.0, Shape::Concurrency { lease: NEVER, .. });
        if ends && leases.earliest_deadline()?.is_some_and(|deadline| deadline <= now) {
            leases.reclaim(now, cooldown, || now, |_| false)?;
            Self::ring(found, leases);
        }
        Ok(())
    }

    /// Returns when a retry may succeed after a denial: exactly, if that is known.
    fn retry_after(found: &Key, leases: &Leases, weight: u64) -> Result<Duration, Blocked> {
        Ok(found.home().wait_for_units(found.table, leases, weight, found.gate)?)
    }

    /// Returns whether no unit is free after a denial until then, unless a start is cancelled.
    fn is_certain(found: &Key, after: Duration) -> bool {
        found.table.policy.cooldown() > 0 && !after.is_zero()
    }

    /// Wakes the first waiters for freed units.
    fn ring(found: &Key, leases: &Leases) {
        if leases.sleepers.load(SeqCst) > 0 {
            Self::call_first(found, leases);
        }
    }

    /// Calls the line that has the turn, or all, if none is shown.
    #[cold]
    fn call_first(found: &Key, leases: &Leases) {
        let lines = Lines::of_tenant(found, 0).unwrap_or_else(|| Lines::of(found, 0));
        match lines.heads.first(lines.name) {
            Some(first) => os::call(leases.bell, calls_of(first.at)),
            None => os::wake_all(leases.bell),
        }
    }

    /// Calls the line with this entry. (The bell first: who is about to sleep there notices.)
    fn call(leases: &Leases, at: usize) {
        leases.bell.fetch_add(1, SeqCst);
        if leases.sleepers.load(SeqCst) > 0 {
            os::call(leases.bell, calls_of(at));
        }
    }

    /// Returns whether so many units are free.
    fn room(&self, found: &Key, leases: &Leases, units: u64) -> Result<Room, Blocked> {
        let closed = found.gate.saturating_sub(found.home().clock.now().floor);
        if closed > 0 {
            return Ok(Room::NotBefore(closed));
        }
        // Read first: a later start then makes a difference.
        let position = leases.taken.load(Acquire);
        let is_free = || Ok::<_, Blocked>(leases.live()?.saturating_add(units) <= found.table.capacity);
        let is_free = is_free()? || self.reclaim(found, leases)? > 0 && is_free()?;
        if is_free {
            return Ok(Room::Free { position });
        }
        let after = Self::retry_after(found, leases, units.min(found.table.capacity))?;
        Ok(Room::NotBefore(if Self::is_certain(found, after) { time::patience_ticks(after) } else { 0 }))
    }

    /// Returns when a start that does not wait may be retried, if waiters come before it.
    #[inline]
    fn behind_waiters(&self, found: &Key, leases: &Leases, weight: u64) -> Result<Option<Duration>, Blocked> {
        if may_have_line(found) { self.behind_lines(found, leases, weight) } else { Ok(None) }
    }

    #[cold]
    fn behind_lines(&self, found: &Key, leases: &Leases, weight: u64) -> Result<Option<Duration>, Blocked> {
        let max = found.table.capacity;
        let room = |units| self.room(found, leases, units);
        let before = self.passers.units_before(found, weight, room, |at| Self::call(leases, at))?;
        let Some(before) = before else { return Ok(None) };
        policy::check_weight(self.limit.name(), weight, max)?;
        let after = Self::retry_after(found, leases, before.saturating_add(weight).min(max))?;
        // Who waits may be about to start.
        Ok(Some(after.max(LOOK_AGAIN)))
    }

    fn with_leases<R>(&self, key: &str, f: impl Fn(&Key, &Leases) -> Result<R, Blocked>) -> Result<R> {
        self.limit.with_key(key, |found| f(found, &found.home().leases(found.table, found.key)))
    }

    /// Calls `f` with the lease of a permit, if it belongs to this process and the lane is the one that it was issued
    /// in.
    fn with_lease<R>(
        &self,
        permit: &RawPermit,
        f: impl Fn(&Key, &Leases, Lease) -> Result<R, Blocked>,
    ) -> Result<Option<R>> {
        let LeasePermit { owner, index, fence, key } = self.own(permit)?;
        if owner == LeasePermit::UNCOUNTED.owner {
            return Ok(None);
        }
        // A forked child is another member, and its copy of a heap has forgotten the parent's leases.
        let (home, member) = self.limit.membership()?;
        if owner != LeasePermit::owner(member, home.instance) {
            return Ok(None);
        }
        let lease = Lease { index, fence };
        self.limit.with_known(Hash(key), |found| f(found, &found.home().leases(found.table, found.key), lease))
    }

    fn decision(&self, found: &Table, gate: Tick, now: Tick, live: u64, retry_after: Option<Duration>) -> Decision {
        let max = found.capacity;
        Decision {
            permit: None,
            admitted: retry_after.is_none(),
            retry_after: retry_after.unwrap_or_default(),
            suggested_after: retry_after.unwrap_or_default(),
            remaining: if gate > now { 0 } else { max.saturating_sub(live) },
            limit: max,
            reset_after: from_ticks(gate.saturating_sub(now)),
            denied_by: retry_after.map(|_| self.limit.name().clone()),
        }
    }

    fn raw(&self, lease: LeasePermit) -> RawPermit {
        RawPermit::new(self.base.id, Kind::Lease(lease))
    }

    /// Returns the contents of this limiter's permit.
    fn own(&self, permit: &RawPermit) -> Result<LeasePermit> {
        match permit.of(self.base.id) {
            Some(Kind::Lease(lease)) => Ok(lease),
            _ => foreign(self.name()),
        }
    }

    /// Makes a permit that counts nowhere.
    fn uncounted(&self) -> RawPermit {
        self.raw(LeasePermit::UNCOUNTED)
    }

    fn undecided(&self, is_admitted: bool) -> Decision {
        self.limit.undecided(is_admitted.then(|| self.uncounted()))
    }

    /// Returns from when on the units of a start are free that ends now; 0: at once.
    fn cools_until(found: &Key) -> Tick {
        match found.table.policy.cooldown() {
            0 => 0,
            cooldown => found.home().clock.now().ceil + cooldown,
        }
    }

    fn end(&self, permit: &RawPermit, is_cancelled: bool) -> Result<()> {
        let ended = || {
            if self.limit.is_served() {
                return self.end_on_server(permit, is_cancelled).map(Some);
            }
            self.with_lease(permit, |found, leases, lease| {
                let ended = match if is_cancelled { 0 } else { Self::cools_until(found) } {
                    0 => leases.give_back(lease)?,
                    until => leases.cool_down(lease, until)?,
                };
                if ended {
                    Self::ring(found, leases);
                    if is_cancelled {
                        found.add(CANCELLED, 1);
                    }
                }
                Ok(())
            })
        };
        self.limit.or_instead(|| self.limit.ending(ended).map(drop), |_| ())
    }
}

impl Limiter for ConcurrencyLimiter {
    fn complete(&self, permit: &RawPermit) -> Result<()> {
        self.end(permit, false)
    }

    fn cancel(&self, permit: &RawPermit) -> Result<()> {
        self.end(permit, true)
    }

    #[cold]
    fn settle(&self, permit: &RawPermit, actual: u64) -> Result<()> {
        if self.own(permit)? == LeasePermit::UNCOUNTED {
            return Ok(());
        }
        let settled = || {
            if self.limit.is_served() {
                return self.settle_on_server(permit, actual);
            }
            self.with_lease(permit, |found, leases, lease| match Self::cools_until(found) {
                0 => Ok(false),
                until => {
                    if leases.settle(lease, actual, found.table.capacity, until)? {
                        Self::ring(found, leases);
                    }
                    Ok(true)
                }
            })
        };
        match self.limit.or_instead(|| self.limit.ending(settled), |_| None)? {
            Some(false) => unsupported("settle", "a concurrency limit: its units become free when the job ends"),
            _ => Ok(()),
        }
    }

    fn renew(&self, permit: &RawPermit) -> Result<()> {
        if self.own(permit)? == LeasePermit::UNCOUNTED {
            return Ok(());
        }
        let renewed = || {
            if self.limit.is_served() {
                return self.renew_on_server(permit);
            }
            self.with_lease(permit, |found, leases, lease| {
                // An expired lease is not revived, whether or not its end was noticed.
                if !matches!(Self::deadline(found.home(), found.table), NEVER) {
                    let now = found.home().clock.now().floor;
                    leases.reclaim(now, found.table.policy.cooldown(), || now, |_| false)?;
                }
                Ok(leases.renew(lease, Self::deadline(found.home(), found.table))?)
            })
        };
        match self.limit.or_instead(|| self.limit.ending(renewed), Some)? {
            Some(true) => Ok(()),
            _ => Err(Error::LeaseLost { limit: self.name().to_owned() }),
        }
    }

    fn fence(&self, permit: &RawPermit) -> Option<u64> {
        self.own(permit).ok().filter(|lease| *lease != LeasePermit::UNCOUNTED).map(|lease| lease.fence)
    }
}

impl Places for ConcurrencyLimiter {
    fn cancel_place(&self, place: &RawPermit) -> Result<()> {
        self.cancel(place)
    }
}

impl Behind for ConcurrencyLimiter {
    #[inline(always)]
    fn base(&self) -> &Base {
        &self.base
    }

    #[inline(always)]
    fn limit(&self) -> Option<&Limit> {
        Some(&self.limit)
    }
}

impl Quiet for ConcurrencyLimiter {
    fn quiet_attempt(&self, key: &str, weight: u64) -> Result<Attempt> {
        policy::check_some(weight)?;
        let answer = || {
            self.with_leases(key, |found, leases| {
                if self.limit.is_served() {
                    let (permit, seen) = self.take_on_server(found, weight, Order::of_call())?;
                    if permit.is_none() {
                        found.decided(DENIED, weight);
                    }
                    return Ok(permit.map_or_else(|| Attempt::Denied(seen.retry_after()), Attempt::Admitted));
                }
                if let Some(after) = self.behind_waiters(found, leases, weight)? {
                    found.decided(DENIED, weight);
                    return Ok(Attempt::Denied(after));
                }
                Ok(match self.take(found, leases, weight)? {
                    Some(lease) => {
                        found.decided(ADMITTED, weight);
                        Attempt::Admitted(self.permit(found, lease))
                    }
                    None => {
                        let after = Self::retry_after(found, leases, weight)?;
                        found.decided(DENIED, weight);
                        Attempt::Denied(after)
                    }
                })
            })
        };
        self.limit.or_instead(answer, |is_admitted| match is_admitted {
            true => Attempt::Admitted(self.uncounted()),
            false => Attempt::Denied(STORE_AGAIN),
        })
    }

    fn quiet_decide(&self, key: &str, weight: u64) -> Result<Decision> {
        policy::check_some(weight)?;
        let answer = || {
            self.with_leases(key, |found, leases| {
                if self.limit.is_served() {
                    return self.decide_on_server(found, weight);
                }
                Self::expire(found, leases)?;
                let behind = self.behind_waiters(found, leases, weight)?;
                let lease = if behind.is_some() { None } else { self.take(found, leases, weight)? };
                let retry_after = match (behind, lease) {
                    (None, Some(_)) => None,
                    (Some(after), _) => Some(after),
                    (None, None) => Some(Self::retry_after(found, leases, weight)?),
                };
                let now = found.home().clock.now().floor;
                let permit = lease.map(|lease| self.permit(found, lease));
                found.decided(if permit.is_some() { ADMITTED } else { DENIED }, weight);
                let mut decision = self.decision(found.table, found.gate, now, leases.live()?, retry_after);
                decision.permit = permit;
                Ok(decision)
            })
        };
        self.limit.or_instead(answer, |is_admitted| self.undecided(is_admitted))
    }

    fn quiet_peek(&self, key: &str, weight: u64) -> Result<Decision> {
        let answer = || {
            self.limit.look(key, |home, table, found, gate| {
                if self.limit.is_served() {
                    return self.peek_on_server(home, table, key, weight);
                }
                let max = table.capacity;
                policy::check_weight(self.name(), weight, max)?;
                let now = home.clock.now().floor;
                let Some(found) = found else {
                    let closed = (gate > now).then(|| from_ticks(gate - now));
                    return Ok(self.decision(table, gate, now, 0, closed));
                };
                let leases = home.leases(table, found.key);
                Self::expire(found, &leases)?;
                let mut live = leases.live()?;
                if live + weight > max {
                    self.reclaim(found, &leases)?;
                    live = leases.live()?;
                }
                let behind = if weight > 0 { self.behind_waiters(found, &leases, weight)? } else { None };
                let is_denied = gate > now || live + weight > max;
                let retry_after = match behind {
                    None if is_denied => Some(Self::retry_after(found, &leases, weight)?),
                    behind => behind,
                };
                Ok(self.decision(table, gate, now, live, retry_after))
            })
        };
        self.limit.or_instead(answer, |is_admitted| Decision { permit: None, ..self.undecided(is_admitted) })
    }

    /// What is free is known. More is when jobs have ended.
    fn quiet_forecast(&self, key: &str, units: u64) -> Result<Option<Duration>> {
        let free = self.quiet_peek(key, 0)?.remaining;
        let ahead = || self.limit.look(key, |_, _, found, _| Ok(found.map_or(0, units_before)));
        let units = if units == 0 { 0 } else { units.saturating_add(self.limit.or_instead(ahead, |_| 0)?) };
        Ok((units <= free).then_some(Duration::ZERO))
    }

    fn arrive(&self, permit: &RawPermit) -> Result<bool> {
        let arrived = || {
            if self.limit.is_served() {
                return self.arrive_on_server(permit).map(Some);
            }
            self.with_lease(permit, |found, leases, lease| match Self::cools_until(found) {
                // The job keeps its units.
                0 => Ok(false),
                until => Ok(leases.cool_down(lease, until)?),
            })
        };
        self.limit.or_instead(|| Ok(self.limit.ending(arrived)? == Some(true)), |_| false)
    }

    fn quiet_record_start(&self, key: &str) -> Result<()> {
        let started = || {
            self.with_leases(key, |found, leases| {
                if self.limit.is_served() {
                    return self.record_start_on_server(found);
                }
                leases.start(found.member())?.ok_or(Blocked::Crowded)?;
                found.decided(ADMITTED, 1);
                Ok(())
            })
        };
        self.limit.or_instead(started, |_| ())
    }

    fn quiet_record_end(&self, key: &str) -> Result<()> {
        let ended = || {
            if self.limit.is_served() {
                return self.record_end_on_server(key);
            }
            self.with_leases(key, |found, leases| {
                if leases.complete(found.member(), Self::cools_until(found))? {
                    Self::ring(found, leases);
                }
                Ok(())
            })
        };
        self.limit.or_instead(|| self.limit.ending_once(ended), |_| ())
    }
}

impl Awaited for ConcurrencyLimiter {
    fn prepare(&self, key: &str) -> Result<()> {
        self.limit.with_key(key, |_| Ok(()))
    }

    /// A server is not asked: the line that the waiter joins asks it.
    fn check_waiter(&self, key: &str, weight: u64) -> Result<()> {
        if !self.limit.is_served() {
            return self.peek_again(key, weight).map(drop);
        }
        let check = |found: &Key, _: &Leases| self.limit.check_weight_on_server(found.table, found.hash, weight);
        self.limit.or_instead(|| self.with_leases(key, check), |_| ())
    }

    fn claim(&self, key: &str, weight: u64, terms: Terms) -> Result<Claim> {
        policy::check_some(weight)?;
        let claimed = || {
            self.with_leases(key, |found, leases| {
                if self.limit.is_served() {
                    let order = Order::of(&terms);
                    let (permit, seen) = self.take_on_server(found, weight, order)?;
                    let after = seen.retry_after();
                    let is_certain = seen.is_closed() || seen.ahead == 0 && Self::is_certain(found, after);
                    let denied = || match terms.waiter {
                        Some(_) if !is_certain => Claim::Behind { ahead: seen.ahead, own_for: seen.own_for() },
                        _ => Claim::Denied { after, is_certain },
                    };
                    return Ok(permit.map_or_else(denied, Claim::Started));
                }
                if !terms.in_turn && is_awaited(found) {
                    policy::check_weight(self.limit.name(), weight, found.table.capacity)?;
                    return Ok(Claim::Denied { after: LOOK_AGAIN, is_certain: false });
                }
                if let Some(lease) = self.take(found, leases, weight)? {
                    found.decided(ADMITTED, weight);
                    return Ok(Claim::Started(self.permit(found, lease)));
                }
                // A gate opens at a known time, whatever completes.
                let after = Self::retry_after(found, leases, weight)?;
                let is_certain = found.gate > found.home().clock.now().floor || Self::is_certain(found, after);
                Ok(Claim::Denied { after, is_certain })
            })
        };
        self.limit.or_instead(claimed, |is_admitted| match is_admitted {
            true => Claim::Started(self.uncounted()),
            false => Claim::Denied { after: STORE_AGAIN, is_certain: true },
        })
    }

    fn start(&self, place: &RawPermit) -> Result<Presented> {
        self.quiet_present(place)
    }

    fn slots(&self, key: &str, weight: u64) -> Result<Option<u64>> {
        Ok(Some(self.quiet_peek(key, weight)?.remaining))
    }

    fn closed(&self, key: &str) -> Result<Duration> {
        Ok(self.quiet_peek(key, 0)?.reset_after)
    }

    fn ends_on_server(&self, key: &str) -> Option<&KeyEnds> {
        let home = self.limit.home().ok().filter(|home| home.is_served)?;
        Some(self.ends_of(home, home.hash(b'k', key)))
    }

    fn read_bell(&self, key: &str) -> Option<u64> {
        if self.limit.is_served() {
            return Some(self.ends_on_server(key)?.bell.load(Acquire));
        }
        self.with_leases(key, |_, leases| Ok(leases.bell.load(Acquire))).ok()
    }

    fn sleep_on_bell(&self, key: &str, seen: u64, nap: Duration, calls: u32) {
        if self.limit.is_served() {
            let Some(KeyEnds { bell, sleepers, .. }) = self.ends_on_server(key) else { return };
            sleepers.fetch_add(1, SeqCst);
            self.limit.store().sleep_at_bell(bell, seen, nap, calls);
            sleepers.fetch_sub(1, SeqCst);
            return;
        }
        let _ = self.with_leases(key, |_, leases| {
            leases.sleepers.fetch_add(1, SeqCst);
            self.limit.store().sleep_at_bell(leases.bell, seen, nap, calls);
            leases.sleepers.fetch_sub(1, SeqCst);
            Ok(())
        });
    }

    fn line_up(&self, key: &str, first: First, shown: &Cell<Shown>) -> Result<Option<LineTurn>> {
        self.with_leases(key, |found, leases| {
            let mut own = shown.get();
            let room = |units| self.room(found, leases, units);
            let turn = own.look(found, Lines::of(found, 0), first, room, |at| Self::call(leases, at));
            shown.set(own);
            turn
        })
    }

    fn leave_line(&self, key: &str, waiter: Asker) -> Result<()> {
        let leave =
            |found: &Key, _: &Leases| if self.limit.is_served() { self.leave_on_server(found, waiter) } else { Ok(()) };
        self.limit.or_instead(|| self.with_leases(key, leave), |_| ())
    }

    fn show_next(&self, first: Option<First>, shown: &Cell<Shown>) {
        Shown::show_next(shown, &self.limit, |own, found| {
            let leases = found.home().leases(found.table, found.key);
            let room = |units| self.room(found, &leases, units);
            own.change(found, Lines::of(found, 0), first, room, |at| Self::call(&leases, at))
        });
    }
}

impl Shareable for ConcurrencyLimiter {
    fn its_limit(&self) -> &Limit {
        &self.limit
    }

    fn room(&self, found: &Key, units: u64, _ahead: Tick) -> Result<Room, Blocked> {
        self.room(found, &found.home().leases(found.table, found.key), units)
    }

    fn bell<'a>(&self, found: &Key<'a>) -> Option<Bell<'a>> {
        let leases = found.home().leases(found.table, found.key);
        Some((leases.bell, leases.sleepers))
    }
}

impl Nested for ConcurrencyLimiter {
    fn waits_for_ends(&self) -> bool {
        true
    }

    fn is_over(&self, permit: &RawPermit) -> bool {
        if self.limit.is_served() {
            // Checking costs a round trip, and ending the permit reports it anyway.
            return false;
        }
        let held = self.with_lease(permit, |_, leases, lease| Ok(leases.is_held(lease)?));
        matches!(held, Ok(None | Some(false)))
    }
}
