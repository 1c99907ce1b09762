//! Leases issued by a server.

use super::{ConcurrencyLimiter, renewal};
use crate::algorithm::leases::{Lease, NEVER};
use crate::atomic::SeqCst;
use crate::decision::{Decision, LOOK_AGAIN};
use crate::error::{Error, Result};
use crate::fork::jitter;
use crate::hash::Hash;
use crate::hooks::{Event, Happening};
use crate::limiter::line::{Asker, Terms};
use crate::os;
use crate::permit::{LeasePermit, RawPermit};
use crate::policy::{self, Shape};
use crate::server::site::Process;
use crate::server::{number, renewed_lease};
use crate::state::counts::{ADMITTED, CANCELLED, DENIED};
use crate::state::{Blocked, Home, Key, KeyEnds, Limit, Table};
use crate::time::{Tick, from_ticks};
use crate::waiting::InLine;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Returns the identity of this process, for the others that share a limit: see `leases.lua`.
pub(super) fn owner_of(limit: &Limit) -> Result<[i64; 4]> {
    let Process { site, number: process, began } = Process::this();
    Ok([limit.store().owner()?, site, process, began].map(number))
}

/// The duration of a requested lease (-1: without end), and whether it is renewed in the meantime.
#[derive(Debug, Clone, Copy)]
struct Time(i64, bool);

impl Time {
    fn of(home: &Home, table: &Table) -> Time {
        match table.policy.0 {
            Shape::Concurrency { lease, .. } if lease != NEVER => Time(number(lease), false),
            // With a clock that stands still no lease expires.
            _ if home.clock.is_manual() => Time(-1, false),
            _ => Time(number(renewed_lease().as_micros() as u64), true),
        }
    }
}

/// How a start stands to the waiters of all processes: see `leases.lua`.
#[derive(Debug, Clone, Copy)]
pub(super) enum Order {
    /// It takes what is free.
    Free,
    /// It does not wait, and overtakes nobody who is as urgent.
    Passes {
        priority: i32,
    },
    Waits(Asker),
}

impl Order {
    /// That of a call that does not wait. What a line asks for is in its order already.
    pub fn of_call() -> Order {
        if InLine::is_here() { Order::Free } else { Order::Passes { priority: 0 } }
    }

    /// That of a line's request.
    pub fn of(terms: &Terms) -> Order {
        match terms.waiter {
            Some(waiter) => Order::Waits(waiter),
            None if terms.in_turn => Order::Free,
            None => Order::Passes { priority: terms.priority },
        }
    }

    fn arguments(self) -> [i64; 5] {
        match self {
            Order::Free => [0; 5],
            Order::Passes { priority } => [1, priority.into(), 0, 0, 0],
            Order::Waits(Asker { priority, since, waited, life }) => {
                [2, priority.into(), number(since), number(waited), number(life)]
            }
        }
    }
}

/// The state of a key as a server reports it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// The waiters that come first.
    pub ahead: usize,
    /// Whether units are free for them.
    has_room: bool,
    /// Whether this process holds all units that are taken.
    is_own: bool,
    now: Tick,
    live: u64,
    gate: Tick,
    /// When the first lease ends, or with a cooldown, when enough units are free; 0: that is not known.
    soonest: Tick,
    cooldown: Tick,
}

impl Seen {
    fn of(now: i64, [live, gate, soonest]: [i64; 3], time: Time, cooldown: Tick) -> Seen {
        let unsigned = |n: i64| u64::try_from(n).unwrap_or(0);
        // A renewed lease does not end then.
        let soonest = if time.1 && cooldown == 0 { 0 } else { soonest };
        Seen {
            ahead: 0,
            has_room: false,
            is_own: false,
            now: unsigned(now),
            live: unsigned(live),
            gate: unsigned(gate),
            soonest: unsigned(soonest),
            cooldown,
        }
    }

    /// For how long only an end in this process frees units. `None`: other processes hold some, or enough are free.
    pub fn own_for(&self) -> Option<Tick> {
        // A lease that is not renewed may end by itself.
        let ends = if self.soonest > 0 { self.soonest.saturating_sub(self.now) } else { Tick::MAX };
        (self.is_own && !self.has_room).then_some(ends)
    }

    /// Returns when a retry may succeed after a denial: exactly, if that is known.
    pub fn retry_after(&self) -> Duration {
        let left = |at: Tick| from_ticks(at.saturating_sub(self.now));
        match self.soonest {
            _ if self.is_closed() => left(self.gate),
            _ if self.has_room => LOOK_AGAIN,
            // No start that completes from now on frees its units before that.
            0 if self.cooldown > 0 => from_ticks(self.cooldown),
            soonest if self.cooldown > 0 => left(soonest).min(from_ticks(self.cooldown)),
            0 => LOOK_AGAIN,
            soonest => left(soonest),
        }
    }

    pub fn is_closed(&self) -> bool {
        self.gate > self.now
    }
}

impl ConcurrencyLimiter {
    /// Takes units, if enough are free. (It counts no denials: to a waiter they are none.)
    pub(super) fn take_on_server(
        &self,
        found: &Key,
        weight: u64,
        order: Order,
    ) -> Result<(Option<RawPermit>, Seen), Blocked> {
        self.limit.check_weight_on_server(found.table, found.hash, weight)?;
        let (owner, time) = (owner_of(&self.limit)?, Time::of(found.home(), found.table));
        let _beginning = time.1.then(renewal::begin).transpose()?;
        loop {
            let arguments = [&[number(weight), time.0][..], &owner, &[turn()], &order.arguments()].concat();
            let asked = Instant::now();
            let (answer, others) =
                self.limit.ask_all(found.home(), found.table, Some(found.hash), "acquire", &arguments)?;
            let [now, taken, slot, fence, is_own, live, gate, soonest] = answer;
            let mut seen = Seen::of(now, [live, gate, soonest], time, found.table.policy.cooldown());
            if taken == 1 {
                let lease = Lease { index: slot as u64, fence: fence as u64 };
                found.decided(ADMITTED, weight);
                if time.1 {
                    renewal::hold(&self.limit, found.hash, lease, asked);
                }
                return Ok((Some(self.permit_on_server(owner, lease, found.hash)), seen));
            }
            (seen.ahead, seen.has_room, seen.is_own) = (slot as usize, fence == 1, is_own == 1);
            if self.evict(found.home(), found.table, found.hash, &others)? == 0 || seen.is_closed() {
                return Ok((None, seen));
            }
        }
    }

    fn permit_on_server(&self, owner: [i64; 4], lease: Lease, key: Hash) -> RawPermit {
        let Lease { index, fence } = lease;
        self.raw(LeasePermit { owner: owner[0] as u64, index, fence, key: key.0 })
    }

    /// Takes a waiter back.
    pub(super) fn leave_on_server(&self, found: &Key, Asker { priority, since, .. }: Asker) -> Result<(), Blocked> {
        let arguments = [owner_of(&self.limit)?[0], priority.into(), number(since)];
        let [_, _] = self.limit.ask(found, "leave", &arguments)?;
        Ok(())
    }

    /// Frees the leases of this site's dead processes, out of these. Returns the number of units.
    fn evict(&self, home: &Home, table: &Table, key: Hash, others: &[i64]) -> Result<i64, Blocked> {
        let site = Process::this().site;
        let mut units = 0;
        for other in others.chunks_exact(3) {
            let process = Process { site, number: other[1] as u64, began: other[2] as u64 };
            if process.is_dead() {
                let [_, evicted] = self.limit.ask_of(home, table, Some(key), "evict", &other[..1])?;
                units += evicted;
            }
        }
        Ok(units)
    }

    pub(super) fn decide_on_server(&self, found: &Key, weight: u64) -> Result<Decision, Blocked> {
        let (permit, seen) = self.take_on_server(found, weight, Order::of_call())?;
        if permit.is_none() {
            found.decided(DENIED, weight);
        }
        let retry_after = permit.is_none().then(|| seen.retry_after());
        Ok(Decision { permit, ..self.decision(found.table, seen.gate, seen.now, seen.live, retry_after) })
    }

    pub(super) fn peek_on_server(
        &self,
        home: &Home,
        table: &Table,
        key: &str,
        weight: u64,
    ) -> Result<Decision, Blocked> {
        let key = home.hash(b'k', key);
        self.limit.check_weight_on_server(table, key, weight)?;
        let (owner, time) = (owner_of(&self.limit)?, Time::of(home, table));
        // What is free is free, whoever waits for it.
        let order = if weight > 0 { Order::of_call() } else { Order::Free };
        let seen = loop {
            let arguments = [&[number(weight)][..], &owner, &[turn()], &order.arguments()].concat();
            let ([now, live, gate, soonest, ahead], others) =
                self.limit.ask_all(home, table, Some(key), "view", &arguments)?;
            if self.evict(home, table, key, &others)? == 0 {
                let seen = Seen::of(now, [live, gate, soonest], time, table.policy.cooldown());
                let has_room = seen.live + weight <= table.capacity;
                break Seen { ahead: ahead as usize, has_room, ..seen };
            }
        };
        let is_denied = seen.is_closed() || !seen.has_room || seen.ahead > 0;
        let retry_after = is_denied.then(|| seen.retry_after());
        Ok(self.decision(table, seen.gate, seen.now, seen.live, retry_after))
    }

    /// Requests something about a lease of this process. `None`: it belongs to another process.
    fn with_lease_on_server<R>(
        &self,
        permit: &RawPermit,
        request: impl Fn(&Key, Lease, &[i64]) -> Result<R, Blocked>,
    ) -> Result<Option<R>> {
        let LeasePermit { owner, index, fence, key } = self.own(permit)?;
        if owner != self.limit.store().owner()? {
            return Ok(None);
        }
        let lease = Lease { index, fence };
        let arguments = [&[number(index), number(fence)][..], &owner_of(&self.limit)?].concat();
        self.limit.with_hash(Hash(key), |found| request(found, lease, &arguments)).map(Some)
    }

    pub(super) fn end_on_server(&self, permit: &RawPermit, is_cancelled: bool) -> Result<()> {
        let ended = self.with_lease_on_server(permit, |found, lease, arguments| {
            // If the server cannot be reached, the lease expires.
            let may_be_lost = renewal::let_go(&self.limit, lease);
            let arguments = [arguments, &[i64::from(!is_cancelled)]].concat();
            let [_, was_held] = self.limit.ask(found, "complete", &arguments)?;
            if was_held == 1 && is_cancelled {
                found.add(CANCELLED, 1);
            }
            self.call_waiters(found);
            Ok(may_be_lost && was_held == 0)
        })?;
        if ended == Some(true) {
            self.tell_of_loss();
        }
        Ok(())
    }

    /// Ends a lease of which only so many units cool down. `false`: this limit has no cooldown.
    pub(super) fn settle_on_server(&self, permit: &RawPermit, actual: u64) -> Result<Option<bool>> {
        let is_lost = self.with_lease_on_server(permit, |found, lease, arguments| {
            if found.table.policy.cooldown() == 0 {
                return Ok(None);
            }
            let may_be_lost = renewal::let_go(&self.limit, lease);
            // (There, the slot of a lease is its weight.)
            let units = actual.min(lease.index.saturating_add(found.table.capacity));
            let arguments = [arguments, &[number(units)]].concat();
            let [_, was_held] = self.limit.ask(found, "settle", &arguments)?;
            self.call_waiters(found);
            Ok(Some(may_be_lost && was_held == 0))
        })?;
        if is_lost == Some(Some(true)) {
            self.tell_of_loss();
        }
        Ok(is_lost.map(|is_lost| is_lost.is_some()))
    }

    /// Begins the cooldown of a lease, if there is one. Returns whether it did.
    pub(super) fn arrive_on_server(&self, permit: &RawPermit) -> Result<bool> {
        let ended = self.with_lease_on_server(permit, |found, lease, arguments| {
            if found.table.policy.cooldown() == 0 {
                return Ok(false);
            }
            let arguments = [arguments, &[1]].concat();
            let [_, was_held] = self.limit.ask(found, "complete", &arguments)?;
            renewal::let_go(&self.limit, lease);
            Ok(was_held == 1)
        })?;
        Ok(ended == Some(true))
    }

    /// Reports that units of a job that has ended only now may have belonged to another start.
    fn tell_of_loss(&self) {
        let error = Error::LeaseLost { limit: self.limit.name().to_string() };
        self.limit.count_failure();
        let (happening, limit, wait) = (Happening::StoreError, self.limit.name().clone(), Duration::ZERO);
        let event = Event { happening, limit, key: String::new(), wanted: 0, wait, error: Some(error) };
        self.base.hooks.call(&event);
        self.limit.store().hooks.call(&event);
    }

    pub(super) fn renew_on_server(&self, permit: &RawPermit) -> Result<Option<bool>> {
        self.with_lease_on_server(permit, |found, lease, arguments| {
            if renewal::is_lost(&self.limit, lease) {
                return Ok(false);
            }
            let time = Time::of(found.home(), found.table);
            let arguments = [arguments, &[time.0, 0]].concat();
            let [_, is_held, _] = self.limit.ask(found, "renew", &arguments)?;
            Ok(is_held == 1)
        })
    }

    /// What the lines of this process have of a key on a server.
    pub(super) fn ends_of(&self, home: &Home, key: Hash) -> &KeyEnds {
        self.limit.store().ends.of(home.hash(b'n', self.limit.name()), key)
    }

    /// Wakes the waiters of this process.
    fn call_waiters(&self, found: &Key) {
        let KeyEnds { bell, sleepers, .. } = self.ends_of(found.home(), found.hash);
        bell.fetch_add(1, SeqCst);
        if sleepers.load(SeqCst) > 0 {
            os::wake_all(bell);
        }
    }

    pub(super) fn record_start_on_server(&self, found: &Key) -> Result<(), Blocked> {
        let (owner, time) = (owner_of(&self.limit)?, Time::of(found.home(), found.table));
        let _beginning = time.1.then(renewal::begin).transpose()?;
        let (arguments, asked) = ([&[time.0][..], &owner].concat(), Instant::now());
        let [_, _, slot, fence, ..]: [i64; 8] = self.limit.ask(found, "start", &arguments)?;
        found.decided(ADMITTED, 1);
        let lease = Lease { index: slot as u64, fence: fence as u64 };
        if time.1 {
            renewal::hold(&self.limit, found.hash, lease, asked);
        }
        self.running.lock().entry(found.hash).or_default().push_back(lease);
        Ok(())
    }

    pub(super) fn record_end_on_server(&self, key: &str) -> Result<()> {
        policy::check_key(key)?;
        let hash = self.limit.home()?.hash(b'k', key);
        let owner = owner_of(&self.limit)?;
        let Some(lease) = self.running.lock().get_mut(&hash).and_then(VecDeque::pop_front) else {
            return Ok(());
        };
        let ended = self.end_on_server(&self.permit_on_server(owner, lease, hash), false);
        if let Err(Error::WouldWait) = ended {
            // For the repeated call.
            self.running.lock().entry(hash).or_default().push_front(lease);
        }
        ended
    }
}

/// Returns where the check of a long list of leases begins, so that in time the whole list is checked.
fn turn() -> i64 {
    number(jitter(0, 65_535))
}
