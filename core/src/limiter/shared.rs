//! A limit that tenants share: one budget, in which each key names a tenant.
//!
//! All calls are those of the limit without keys, as long as nobody waits. Each tenant has its line in each process, as each key of
//! another limit has. When tenants wait, all of their lines show their first waiters, and form one line: in the order of what
//! their tenants have had, by their shares ([`shares`](crate::algorithm::shares)), and then as everywhere. There is one rule,
//! for whoever asks: *nobody starts while a waiter is shown that comes before*. So a line that is not shown, because there is no
//! space, or because its caller does not wait, has its turn when what its tenant has had is the least.
//!
//! A start is charged when it is taken, or its place. Starts that were taken while nobody waited are charged to nobody.

use super::internal::{Awaited, Base, Behind, Nested, Quiet, When};
use super::line::{Claim, First, HORIZON, LineTurn, Lines, Room, Shown, Terms, calls_of};
use super::{Attempt, Limiter, Places, Presented, Reserved, unsupported};
use crate::atomic::*;
use crate::decision::{Decision, LOOK_AGAIN};
use crate::error::Result;
use crate::fault;
use crate::fork::PerProcess;
use crate::os;
use crate::permit::RawPermit;
use crate::policy::{self, Share};
use crate::state::{Blocked, Key, Limit};
use crate::stats::Stats;
use crate::time::{Tick, from_ticks, patience_ticks};
use std::cell::Cell;
use std::time::{Duration, SystemTime};

/// What the lines of one limit sleep at, and the number of those that do.
pub(super) type Bell<'a> = (&'a AtomicU64, &'a AtomicU64);

/// A limiter of one limit that tenants can share.
pub(super) trait Shareable: Limiter {
    /// Returns its limit.
    fn its_limit(&self) -> &Limit;

    /// Returns whether so many units are free, or will be within `ahead`.
    fn room(&self, found: &Key, units: u64, ahead: Tick) -> Result<Room, Blocked>;

    /// The bell that rings when units return. `None`: only time frees units.
    fn bell<'a>(&self, found: &Key<'a>) -> Option<Bell<'a>>;
}

/// A limiter whose limit tenants share.
#[derive(Debug)]
pub(super) struct Shared<L> {
    limiter: L,
    /// What calls that do not wait have seen of the line.
    seen: PerProcess<Shown>,
}

impl<L: Shareable> Shared<L> {
    pub fn new(limiter: L) -> Shared<L> {
        Shared { limiter, seen: PerProcess::new() }
    }

    /// Returns whether it is certain that no tenant waits. It costs three loads.
    fn is_calm(&self) -> bool {
        self.limiter.its_limit().has_calm_tenants()
    }

    /// Runs a function with the cells that all tenants share.
    fn with<R>(&self, f: impl Fn(&Key) -> Result<R, Blocked>) -> Result<R> {
        self.limiter.its_limit().with_key("", f)
    }

    /// The name of a tenant where lines are shown.
    fn name_of(found: &Key, tenant: &str) -> u64 {
        let [hash, _] = found.home().hash(b'k', tenant).0;
        hash.max(1)
    }

    fn call(&self, found: &Key, at: usize) {
        if let Some((bell, sleepers)) = self.bell(found) {
            // (The bell first: who is about to sleep there notices.)
            bell.fetch_add(1, SeqCst);
            if sleepers.load(SeqCst) > 0 {
                os::call(bell, calls_of(at));
            }
        }
    }

    fn bell<'a>(&self, found: &Key<'a>) -> Option<Bell<'a>> {
        self.limiter.bell(found).or_else(|| found.tenants().map(|tenants| (tenants.bell, tenants.sleepers)))
    }

    /// Returns after how long to try again, if a waiter comes before this start, which has this tag: no sooner than when that one
    /// and this can have started.
    fn has_to_wait(&self, (key, weight): (&str, u64), tag: u64) -> Result<Option<Duration>> {
        let head = self.with(|found| {
            policy::check_weight(self.name(), weight, found.table.capacity)?;
            let Some(lines) = Lines::of_tenant(found, Self::name_of(found, key)) else { return Ok(None) };
            let mut seen = *self.seen.lock();
            let room = |units| self.limiter.room(found, units, 0);
            let head = seen.who_is_before(found, lines, (tag, weight), room, |at| self.call(found, at));
            *self.seen.lock() = seen;
            head
        })?;
        let Some(head) = head else { return Ok(None) };
        let ready = self.limiter.peek_again("", weight)?.retry_after;
        let both = self.limiter.soonest("", head.units.saturating_add(weight));
        Ok(Some(LOOK_AGAIN.max(ready).max(both)))
    }

    /// The share of a tenant, if not this one.
    fn share(&self, tenant: &str, share: Option<Share>) -> Share {
        share.or_else(|| self.limiter.its_limit().share_of(tenant).ok()).unwrap_or(1)
    }

    /// Charges a start to a tenant.
    fn charge(&self, key: &str, weight: u64, share: Option<Share>) {
        fault::point("start-uncharged");
        let share = self.share(key, share);
        // (If this fails, it is a start more for its tenant.)
        let _ = self.with(|found| {
            let shares = found.tenants().and_then(|tenants| tenants.heads.shares());
            shares.into_iter().for_each(|shares| shares.charge(Self::name_of(found, key), weight, share));
            Ok(())
        });
    }

    /// Makes a call that takes a start, when it is its turn.
    fn in_turn<R>(
        &self,
        (key, weight): (&str, u64),
        (tag, share): (u64, Option<Share>),
        denied: impl FnOnce(Duration) -> R,
        take: impl FnOnce() -> Result<R>,
        takes: impl FnOnce(&R) -> bool,
    ) -> Result<R> {
        policy::check_some(weight)?;
        policy::check_key(key)?;
        if self.is_calm() {
            return take();
        }
        // (The call itself meets a store that fails.)
        match self.has_to_wait((key, weight), tag) {
            Ok(Some(after)) => return Ok(denied(after)),
            Err(error) if !error.is_store_failure() => return Err(error),
            Ok(None) | Err(_) => {}
        }
        // (The limit may have been opened only now.)
        let is_calm = self.is_calm();
        let taken = take()?;
        if !is_calm && takes(&taken) {
            self.charge(key, weight, share);
        }
        Ok(taken)
    }

    fn denial(&self, seen: Decision, after: Duration) -> Decision {
        Decision {
            permit: None,
            admitted: false,
            retry_after: after,
            suggested_after: after.max(seen.suggested_after),
            denied_by: Some(self.base().name.clone()),
            ..seen
        }
    }
}

impl<L: Shareable> Limiter for Shared<L> {
    fn complete(&self, permit: &RawPermit) -> Result<()> {
        self.limiter.complete(permit)
    }

    fn cancel(&self, permit: &RawPermit) -> Result<()> {
        self.limiter.cancel(permit)
    }

    fn settle(&self, permit: &RawPermit, actual: u64) -> Result<()> {
        self.limiter.settle(permit, actual)
    }

    fn renew(&self, permit: &RawPermit) -> Result<()> {
        self.limiter.renew(permit)
    }

    fn fence(&self, permit: &RawPermit) -> Option<u64> {
        self.limiter.fence(permit)
    }
}

impl<L: Shareable> Places for Shared<L> {
    fn has_places(&self) -> bool {
        self.limiter.has_places()
    }

    fn cancel_place(&self, place: &RawPermit) -> Result<()> {
        self.limiter.cancel_place(place)
    }

    fn ready_in(&self, permit: &RawPermit) -> Option<Duration> {
        self.limiter.ready_in(permit)
    }

    fn ready_at(&self, permit: &RawPermit) -> Option<SystemTime> {
        self.limiter.ready_at(permit)
    }

    fn ready_at_monotonic_ns(&self, permit: &RawPermit) -> Option<u64> {
        self.limiter.ready_at_monotonic_ns(permit)
    }

    fn window(&self, _key: &str) -> Result<Option<Duration>> {
        self.limiter.window("")
    }

    fn to_text(&self, permit: &RawPermit) -> Result<String> {
        self.limiter.to_text(permit)
    }

    fn permit_from_text(&self, text: &str) -> Result<RawPermit> {
        self.limiter.permit_from_text(text)
    }
}

impl<L: Shareable> Behind for Shared<L> {
    fn base(&self) -> &Base {
        self.limiter.base()
    }

    fn limit(&self) -> Option<&Limit> {
        self.limiter.limit()
    }
}

impl<L: Shareable> Quiet for Shared<L> {
    fn quiet_attempt(&self, key: &str, weight: u64) -> Result<Attempt> {
        let denied = |after| {
            self.limiter.sent_away("", weight);
            Attempt::Denied(after)
        };
        let attempt = || self.limiter.quiet_attempt("", weight);
        self.in_turn((key, weight), (u64::MAX, None), denied, attempt, |taken| matches!(taken, Attempt::Admitted(_)))
    }

    fn quiet_decide(&self, key: &str, weight: u64) -> Result<Decision> {
        let denied = |after| {
            self.limiter.sent_away("", weight);
            Ok(self.denial(self.limiter.quiet_peek("", weight)?, after))
        };
        let decide = || Ok(self.limiter.quiet_decide("", weight));
        let is_admitted = |taken: &Result<Decision>| taken.as_ref().is_ok_and(|taken| taken.admitted);
        self.in_turn((key, weight), (u64::MAX, None), denied, decide, is_admitted)?
    }

    fn quiet_peek(&self, key: &str, weight: u64) -> Result<Decision> {
        policy::check_key(key)?;
        let seen = self.limiter.quiet_peek("", weight)?;
        if !seen.admitted || weight == 0 || self.is_calm() {
            return Ok(seen);
        }
        Ok(match self.has_to_wait((key, weight), u64::MAX)? {
            Some(after) => self.denial(seen, after),
            None => seen,
        })
    }

    /// What a line wants to know is when units are free.
    fn peek_again(&self, key: &str, weight: u64) -> Result<Decision> {
        policy::check_key(key)?;
        self.limiter.peek_again("", weight)
    }

    /// After the tenants that are next before this one. (Those that would be next between two of its starts are not counted.)
    fn quiet_forecast(&self, key: &str, units: u64) -> Result<Option<Duration>> {
        policy::check_key(key)?;
        let lines =
            |found: &Key| Lines::of_tenant(found, Self::name_of(found, key)).map(|lines| lines.units_before(found));
        // (The forecast itself meets a store that fails.)
        let before = if self.is_calm() { 0 } else { self.with(|found| Ok(lines(found))).ok().flatten().unwrap_or(0) };
        self.limiter.quiet_forecast("", units.saturating_add(before))
    }

    fn quiet_pause(&self, key: &str, pause: Duration) -> Result<()> {
        policy::check_key(key)?;
        self.limiter.quiet_pause("", pause)
    }

    fn quiet_clear(&self, key: &str) -> Result<()> {
        policy::check_key(key)?;
        self.limiter.quiet_clear("")
    }

    fn quiet_stats(&self, key: &str) -> Result<Stats> {
        policy::check_key(key)?;
        self.limiter.quiet_stats("")
    }

    /// A place far ahead would keep all other tenants out until then. So there is none.
    fn quiet_reserve(&self, key: &str, weight: u64, when: When) -> Result<Reserved> {
        let most = from_ticks(HORIZON);
        if self.has_places() && when.delay > most {
            return unsupported("a start with a delay of more than 100 ms", "a limit that tenants share");
        }
        let when = When { max_wait: Some(when.max_wait.map_or(most, |wait| wait.min(most))), ..when };
        let reserve = || self.limiter.quiet_reserve("", weight, when);
        let takes = |taken: &Reserved| matches!(taken, Reserved::Place { .. });
        self.in_turn((key, weight), (u64::MAX, None), Reserved::Denied, reserve, takes)
    }

    fn quiet_present(&self, place: &RawPermit) -> Result<Presented> {
        self.limiter.quiet_present(place)
    }

    fn quiet_record_start(&self, key: &str) -> Result<()> {
        policy::check_key(key)?;
        let is_calm = self.is_calm();
        self.limiter.quiet_record_start("")?;
        if !is_calm {
            self.charge(key, 1, None);
        }
        Ok(())
    }

    fn quiet_record_end(&self, key: &str) -> Result<()> {
        policy::check_key(key)?;
        self.limiter.quiet_record_end("")
    }

    fn quiet_close_gate(&self, key: &str, at: SystemTime) -> Result<()> {
        policy::check_key(key)?;
        self.limiter.quiet_close_gate("", at)
    }

    fn arrive(&self, permit: &RawPermit) -> Result<bool> {
        self.limiter.arrive(permit)
    }
}

impl<L: Shareable> Awaited for Shared<L> {
    fn prepare(&self, key: &str) -> Result<()> {
        policy::check_key(key)?;
        self.limiter.prepare("")
    }

    fn claim(&self, key: &str, weight: u64, terms: Terms) -> Result<Claim> {
        let denied = |after| Claim::Denied { after, is_certain: false };
        let near = from_ticks(HORIZON.max(patience_ticks(terms.asked)));
        let near = Some(terms.most.map_or(near, |most| most.min(near)));
        let near = Terms { in_turn: true, most: near, waiter: None, ..terms };
        let claim = || self.limiter.claim("", weight, near);
        let takes = |taken: &Claim| matches!(taken, Claim::Started(_) | Claim::Place { .. });
        self.in_turn((key, weight), (terms.tag, terms.share), denied, claim, takes)
    }

    fn start(&self, place: &RawPermit) -> Result<Presented> {
        self.limiter.start(place)
    }

    fn waited(&self, _key: &str, permit: &RawPermit, wait: Duration) {
        self.limiter.waited("", permit, wait);
    }

    fn sent_away(&self, _key: &str, weight: u64) {
        self.limiter.sent_away("", weight);
    }

    fn soonest(&self, _key: &str, units: u64) -> Duration {
        self.limiter.soonest("", units)
    }

    fn slots(&self, _key: &str, weight: u64) -> Result<Option<u64>> {
        self.limiter.slots("", weight)
    }

    fn closed(&self, _key: &str) -> Result<Duration> {
        self.limiter.closed("")
    }

    /// (By a manual clock, whoever waits for time waits for that clock.)
    fn read_bell(&self, _key: &str) -> Option<u64> {
        if self.has_places() && self.manual_clock().is_some() {
            return None;
        }
        self.with(|found| Ok(self.bell(found).map(|(bell, _)| bell.load(Acquire)))).ok()?
    }

    fn sleep_on_bell(&self, _key: &str, seen: u64, nap: Duration, calls: u32) {
        let _ = self.with(|found| {
            if let Some((bell, sleepers)) = self.bell(found) {
                sleepers.fetch_add(1, SeqCst);
                self.limiter.its_limit().store().sleep_at_bell(bell, seen, nap, calls);
                sleepers.fetch_sub(1, SeqCst);
            }
            Ok(())
        });
    }

    fn line_up(&self, key: &str, first: First, shown: &Cell<Shown>) -> Result<Option<LineTurn>> {
        let share = self.share(key, first.share);
        self.with(|found| {
            let Some(lines) = Lines::of_tenant(found, Self::name_of(found, key)) else { return Ok(None) };
            let mut own = shown.get();
            own.charge_to(lines, share);
            let room = |units| self.limiter.room(found, units, 0);
            let turn = own.look(found, lines, first, room, |at| self.call(found, at));
            shown.set(own);
            turn
        })
    }

    fn show_next(&self, first: Option<First>, shown: &Cell<Shown>) {
        Shown::show_next(shown, self.limiter.its_limit(), |own, found| {
            let Some(lines) = Lines::of_tenant(found, own.name()) else { return Ok(()) };
            let room = |units| self.limiter.room(found, units, HORIZON);
            own.change(found, lines, first, room, |at| self.call(found, at))
        });
    }

    fn next_line(&self, is_among: &dyn Fn(usize) -> bool) -> Option<(usize, bool)> {
        let first = |found: &Key| Ok(found.tenants().and_then(|tenants| tenants.heads.first_of(0, is_among)));
        let (head, has_turn) = if self.is_calm() { None } else { self.with(first).ok()? }?;
        Some((head.at, has_turn))
    }

    fn lead(&self, key: &str) -> u64 {
        let lead = |found: &Key| {
            let shares = found.tenants().and_then(|tenants| tenants.heads.shares());
            Ok(shares.map_or(0, |shares| shares.lead(Self::name_of(found, key), shares.now())))
        };
        self.with(lead).unwrap_or(0)
    }

    fn take_back_charge(&self, shown: &Cell<Shown>, place: &RawPermit) {
        if let (Some((tenant, share)), Some(place)) = (shown.get().charged(), place.timed()) {
            let _ = self.with(|found| {
                let shares = found.tenants().and_then(|tenants| tenants.heads.shares());
                shares.into_iter().for_each(|shares| shares.take_back(tenant, place.weight, share));
                Ok(())
            });
        }
    }

    fn is_late(&self, place: &RawPermit) -> bool {
        self.limiter.is_late(place)
    }
}

impl<L: Shareable> Nested for Shared<L> {
    fn is_over(&self, permit: &RawPermit) -> bool {
        self.limiter.is_over(permit)
    }

    fn waits_for_ends(&self) -> bool {
        self.limiter.waits_for_ends()
    }

    fn permit_of_name(&self, text: &str, name: &str) -> Result<RawPermit> {
        self.limiter.permit_of_name(text, name)
    }
}
