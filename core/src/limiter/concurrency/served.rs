//! Leases that a server gives.

use super::ConcurrencyLimiter;
use crate::algorithm::leases::{Lease, NEVER};
use crate::decision::Decision;
use crate::error::{Error, Result};
use crate::limiter::LOOK_AGAIN;
use crate::permit::{LeasePermit, RawPermit};
use crate::policy::{self, Shape};
use crate::server::number;
use crate::state::counts::{ADMITTED, CANCELLED, DENIED};
use crate::state::{Blocked, Hash, Home, Key, Table};
use crate::time::{Tick, from_ticks};
use std::collections::VecDeque;
use std::time::Duration;

/// What a server says of a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    now: Tick,
    live: u64,
    gate: Tick,
    /// When the first lease ends; 0: none does.
    soonest: Tick,
}

impl Seen {
    fn of(now: i64, [live, gate, soonest]: [i64; 3]) -> Seen {
        let unsigned = |n: i64| u64::try_from(n).unwrap_or(0);
        Seen { now: unsigned(now), live: unsigned(live), gate: unsigned(gate), soonest: unsigned(soonest) }
    }

    /// When it might be worth to look again after a denial: exactly, if that is known.
    pub fn retry_after(&self) -> Duration {
        match self.soonest.max(self.gate) {
            _ if self.is_closed() => from_ticks(self.gate - self.now),
            0 => LOOK_AGAIN,
            _ => from_ticks(self.soonest.saturating_sub(self.now)),
        }
    }

    pub fn is_closed(&self) -> bool {
        self.gate > self.now
    }
}

impl ConcurrencyLimiter {
    /// How long a lease lasts; -1: without end.
    fn lease_of(table: &Table) -> i64 {
        match table.policy.0 {
            Shape::Concurrency { lease, .. } if lease != NEVER => number(lease),
            _ => -1,
        }
    }

    /// Takes units, if there is room. (Of denials it counts none: to those who wait they are none.)
    pub(super) fn take_on_server(&self, found: &Key, weight: u64) -> Result<(Option<RawPermit>, Seen), Blocked> {
        self.limit.check_weight_on_server(found.table, found.hash, weight)?;
        let owner = self.limit.store().owner()?;
        let arguments = [number(weight), Self::lease_of(found.table), number(owner)];
        let [now, taken, slot, fence, _, live, gate, soonest] = self.limit.ask(found, "acquire", &arguments)?;
        let (index, fence) = (slot as u64, fence as u64);
        let permit = (taken == 1).then(|| self.raw(LeasePermit { owner, index, fence, key: found.hash.0 }));
        if permit.is_some() {
            found.decided(ADMITTED, weight);
        }
        Ok((permit, Seen::of(now, [live, gate, soonest])))
    }

    pub(super) fn decide_on_server(&self, found: &Key, weight: u64) -> Result<Decision, Blocked> {
        let (permit, seen) = self.take_on_server(found, weight)?;
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
        let [now, live, gate, soonest] = self.limit.ask_of(home, table, Some(key), "view", &[])?;
        let seen = Seen::of(now, [live, gate, soonest]);
        let is_denied = seen.is_closed() || seen.live + weight > table.capacity;
        let retry_after = is_denied.then(|| seen.retry_after());
        Ok(self.decision(table, seen.gate, seen.now, seen.live, retry_after))
    }

    /// Asks about a lease of this process, whether it was held. `None`: it is another's.
    fn with_lease_on_server(
        &self,
        permit: &RawPermit,
        is_held: impl Fn(&Key, &[i64]) -> Result<bool, Blocked>,
    ) -> Result<Option<bool>> {
        let LeasePermit { owner, index, fence, key } = self.own(permit)?;
        if owner != self.limit.store().owner()? {
            return Ok(None);
        }
        let arguments = [number(index), number(fence), number(owner)];
        self.limit.with_hash(Hash(key), |found| is_held(found, &arguments)).map(Some)
    }

    pub(super) fn end_on_server(&self, permit: &RawPermit, is_cancelled: bool) -> Result<()> {
        let ended = self.with_lease_on_server(permit, |found, arguments| {
            let [_, was_held] = self.limit.ask(found, "complete", arguments)?;
            if was_held == 1 && is_cancelled {
                found.add(CANCELLED, 1);
            }
            Self::call_waiters(found);
            Ok(was_held == 1)
        });
        ended.map(drop)
    }

    pub(super) fn renew_on_server(&self, permit: &RawPermit) -> Result<Option<bool>> {
        self.with_lease_on_server(permit, |found, arguments| {
            let arguments = [arguments, &[Self::lease_of(found.table)]].concat();
            let [_, is_held, _] = self.limit.ask(found, "renew", &arguments)?;
            Ok(is_held == 1)
        })
    }

    /// Those of this process look again.
    fn call_waiters(found: &Key) {
        let leases = found.home().leases(found.table, found.key);
        leases.bell.fetch_add(1, crate::atomic::SeqCst);
        Self::ring(&leases);
    }

    pub(super) fn record_start_on_server(&self, found: &Key) -> Result<(), Blocked> {
        let owner = self.limit.store().owner()?;
        let arguments = [Self::lease_of(found.table), number(owner)];
        let [_, _, slot, fence, ..]: [i64; 8] = self.limit.ask(found, "start", &arguments)?;
        found.decided(ADMITTED, 1);
        let lease = Lease { index: slot as u64, fence: fence as u64 };
        self.running.lock().entry(found.hash).or_default().push_back(lease);
        Ok(())
    }

    pub(super) fn record_end_on_server(&self, key: &str) -> Result<()> {
        policy::check_key(key)?;
        let hash = self.limit.home()?.hash(b'k', key);
        let owner = self.limit.store().owner()?;
        let Some(lease) = self.running.lock().get_mut(&hash).and_then(VecDeque::pop_front) else {
            return Ok(());
        };
        let Lease { index, fence } = lease;
        let ended = self.end_on_server(&self.raw(LeasePermit { owner, index, fence, key: hash.0 }), false);
        if let Err(Error::WouldWait) = ended {
            // For the call that comes again.
            self.running.lock().entry(hash).or_default().push_front(lease);
        }
        ended
    }
}
