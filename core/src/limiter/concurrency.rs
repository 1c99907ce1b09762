//! At most so many at the same time: in this process, or in all that share a store.

use super::{Attempt, LOOK_AGAIN, Limiter, Presented, Progress, Reserved, Step, Wait, next_id, own, unsupported};
use crate::algorithm::leases::{Lease, Leases, NEVER};
use crate::atomic::*;
use crate::decision::Decision;
use crate::error::{Error, Result};
use crate::permit::RawPermit;
use crate::policy::{self, Policy, Shape};
use crate::stats::Stats;
use crate::store::counts::{ADMITTED, CANCELLED, DENIED, WAIT_TIME, WAITED};
use crate::store::{self, Blocked, Hash, Home, Key, Limit, STORE_AGAIN, Store, StoreOptions, Table};
use crate::time::{ManualClock, Tick, from_ticks};
use std::time::{Duration, Instant, SystemTime};

/// Above the number of its owner, a permit has a part of the instance of its lane.
const LANE: u32 = 48;

/// At most `max` units running at the same time, per key. A start holds a *lease* until it completes; one of a process
/// that has died comes back at the next attempt of anybody.
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
    id: u64,
    limit: Limit,
}

impl ConcurrencyLimiter {
    /// At most `max` units at the same time, in this process. A forked child counts its own.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `max` is 1 to 65,535.
    pub fn new(max: u64) -> Result<Self> {
        Self::in_store(max, StoreOptions::default())
    }

    /// The same, with gates that live by a manual clock.
    ///
    /// # Errors
    /// As for [`ConcurrencyLimiter::new`].
    pub fn with_clock(max: u64, clock: ManualClock) -> Result<Self> {
        Self::in_store(max, StoreOptions { clock: Some(clock), ..StoreOptions::default() })
    }

    /// Shared by all who open the same name in the same store; each start holds its units for `lease` at most, unless it is
    /// renewed (`None`: as long as its process lives).
    ///
    /// # Errors
    /// As for [`ConcurrencyLimiter::new`]; `lease` has to be 1 µs to 366 days, `name` 1 to 1,024 bytes.
    pub fn shared(store: &Store, name: &str, max: u64, lease: Option<Duration>) -> Result<Self> {
        let policy = Policy::concurrency(max)?;
        let policy = lease.map_or(Ok(policy), |lease| policy.with_lease(lease))?;
        Self::declare(store, name, policy)
    }

    pub(crate) fn declare(store: &Store, name: &str, policy: Policy) -> Result<Self> {
        Ok(Self::of(Limit::declare(store, name, policy)?))
    }

    pub(crate) fn of(limit: Limit) -> Self {
        ConcurrencyLimiter { id: next_id(), limit }
    }

    /// Takes the limit that is declared under a name; at the first use it must be.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `name` is 1 to 1,024 bytes.
    pub fn attach(store: &Store, name: &str) -> Result<Self> {
        Ok(Self::of(Limit::attach(store, name, "concurrency")?))
    }

    fn in_store(max: u64, options: StoreOptions) -> Result<Self> {
        let policy = Policy::concurrency(max)?;
        let store = Store::with_options("memory:", options)?;
        Self::declare(&store, &policy.to_string(), policy)
    }

    /// How long a start of this policy may hold its units, and until when if it begins now.
    fn deadline(home: &Home, table: &Table) -> Tick {
        match table.policy.0 {
            Shape::Concurrency { lease: NEVER, .. } => NEVER,
            Shape::Concurrency { lease, .. } => home.clock.now().ceil + lease,
            _ => unreachable!("the kind was checked when the limit was opened"),
        }
    }

    fn permit(&self, found: &Key, lease: Lease) -> RawPermit {
        let Hash([h0, h1]) = found.hash;
        let owner = self.limit.store().member() | found.home.instance << LANE;
        RawPermit { limiter: self.id, key: owner, a: lease.index, b: lease.fence, ready: 0, reserved: [h0, h1, 0] }
    }

    /// Takes units, after giving back those of the dead and of leases that are over, if there is no room without.
    fn take(&self, found: &Key, leases: &Leases, weight: u64) -> Result<Option<Lease>, Blocked> {
        policy::check_weight(self.limit.name(), weight, found.table.policy.capacity())?;
        let now = found.home.clock.now();
        self.limit.look_after(found.home, now.floor)?;
        if found.gate > now.floor {
            return Ok(None);
        }
        let (max, me) = (found.table.policy.capacity(), self.limit.store().member());
        let deadline = Self::deadline(found.home, &found.table);
        loop {
            if let Some(lease) = leases.take(weight, max, me, deadline)? {
                return Ok(Some(lease));
            }
            if self.reclaim(found, leases)? == 0 {
                return Ok(None);
            }
        }
    }

    /// Gives back the units of the dead and of leases that are over; how many there were.
    fn reclaim(&self, found: &Key, leases: &Leases) -> Result<u64, Blocked> {
        let me = self.limit.store().member();
        // To ask about others costs system calls.
        let others = me != 0 && leases.holds_of_others(me);
        if !others && leases.earliest_deadline()?.is_none() {
            return Ok(0);
        }
        let now = found.home.clock.now().floor;
        let units = leases.reclaim(now, |member| others && member != me && found.home.is_dead(member))?;
        if units > 0 {
            Self::ring(leases);
        }
        Ok(units)
    }

    /// Gives back what leases hold that are over, before somebody is told what remains.
    fn expire(found: &Key, leases: &Leases) -> Result<(), Blocked> {
        let now = found.home.clock.now().floor;
        let ends = !matches!(found.table.policy.0, Shape::Concurrency { lease: NEVER, .. });
        if ends && leases.earliest_deadline()?.is_some_and(|deadline| deadline <= now) {
            leases.reclaim(now, |_| false)?;
            Self::ring(leases);
        }
        Ok(())
    }

    /// When it might be worth to look again after a denial: exactly, if that is known.
    fn retry_after(found: &Key, leases: &Leases) -> Result<Duration, Blocked> {
        let now = found.home.clock.now().floor;
        Ok(match leases.earliest_deadline()? {
            _ if found.gate > now => from_ticks(found.gate - now),
            Some(deadline) => from_ticks(deadline.saturating_sub(now)),
            None => LOOK_AGAIN,
        })
    }

    /// Calls those who wait for units that came back.
    fn ring(leases: &Leases) {
        if leases.sleepers.load(SeqCst) > 0 {
            store::wake_all(leases.bell);
        }
    }

    fn with_leases<R>(&self, key: &str, f: impl Fn(&Key, &Leases) -> Result<R, Blocked>) -> Result<R> {
        self.limit.with_key(key, |found| f(found, &found.home.leases(&found.table, found.key)))
    }

    /// The same with the lease of a permit, if it is this process's and the lane is the one that it was given in.
    fn with_lease<R>(
        &self,
        permit: &RawPermit,
        f: impl Fn(&Key, &Leases, Lease) -> Result<R, Blocked>,
    ) -> Result<Option<R>> {
        own(permit, self.id, self.name())?;
        // A forked child is another member, and its copy of a heap has forgotten the parent's leases.
        let home = self.limit.home()?;
        if permit.key != self.limit.store().member() | home.instance << LANE {
            return Ok(None);
        }
        let [h0, h1, _] = permit.reserved;
        let lease = Lease { index: permit.a, fence: permit.b };
        self.limit.with_known(Hash([h0, h1]), |found| f(found, &found.home.leases(&found.table, found.key), lease))
    }

    fn decision(&self, found: &Table, gate: Tick, now: Tick, live: u64, retry_after: Option<Duration>) -> Decision {
        let max = found.policy.capacity();
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

    /// A permit that counts nowhere.
    fn uncounted(&self) -> RawPermit {
        RawPermit { limiter: self.id, key: u64::MAX, a: 0, b: 0, ready: 0, reserved: [0; 3] }
    }

    fn undecided(&self, is_admitted: bool) -> Decision {
        self.limit.undecided(is_admitted.then(|| self.uncounted()))
    }

    fn end(&self, permit: &RawPermit, is_cancelled: bool) -> Result<()> {
        let ended = self.with_lease(permit, |found, leases, lease| {
            if leases.give_back(lease)? {
                Self::ring(leases);
                if is_cancelled {
                    found.add(CANCELLED, 1);
                }
            }
            Ok(())
        });
        self.limit.or_instead(ended.map(drop), |_| ())
    }

    fn do_step(&self, wait: &mut Wait) -> Result<Step> {
        let (key, weight) = (&wait.key, wait.weight);
        let (heard, step, is_closed) = self.with_leases(key, |found, leases| {
            // The bell first: whoever completes after this look wakes the nap that follows it.
            let heard = leases.bell.load(Acquire);
            if let Some(lease) = self.take(found, leases, weight)? {
                found.decided(ADMITTED, weight);
                if !matches!(wait.progress, Progress::Nothing) {
                    found.add(WAITED, 1);
                    found.add(WAIT_TIME, wait.waited(found.home.clock.now().floor));
                }
                return Ok((heard, Step::Admitted(self.permit(found, lease)), false));
            }
            let is_closed = found.gate > found.home.clock.now().floor;
            Ok((heard, Step::Sleep(Self::retry_after(found, leases)?), is_closed))
        })?;
        let Step::Sleep(after) = step else { return Ok(step) };
        let home = self.limit.home()?;
        let left = from_ticks(wait.patience(home.clock.now().floor));
        wait.progress = Progress::Heard(heard);
        let step = match is_closed {
            _ if left.is_zero() => Step::Expired(after),
            // A gate opens when it says, whoever completes.
            true if after > left => Step::Expired(after),
            true => Step::Sleep(after),
            false => Step::Sleep(wait.look_again().min(left).min(after.max(Duration::from_micros(1)))),
        };
        if let Step::Expired(_) = step {
            self.with_leases(&wait.key, |found, _| {
                found.decided(DENIED, wait.weight);
                Ok(())
            })?;
        }
        Ok(step)
    }
}

impl Limiter for ConcurrencyLimiter {
    fn name(&self) -> &str {
        self.limit.name()
    }

    fn check_permit(&self, permit: &RawPermit) -> Result<()> {
        own(permit, self.id, self.name())
    }

    fn open(&self) -> Result<()> {
        self.limit.table().map(drop)
    }

    fn attempt(&self, key: &str, weight: u64) -> Result<Attempt> {
        policy::check_some(weight)?;
        let answer = self.with_leases(key, |found, leases| {
            Ok(match self.take(found, leases, weight)? {
                Some(lease) => {
                    found.decided(ADMITTED, weight);
                    Attempt::Admitted(self.permit(found, lease))
                }
                None => {
                    let after = Self::retry_after(found, leases)?;
                    found.decided(DENIED, weight);
                    Attempt::Denied(after)
                }
            })
        });
        self.limit.or_instead(answer, |is_admitted| match is_admitted {
            true => Attempt::Admitted(self.uncounted()),
            false => Attempt::Denied(STORE_AGAIN),
        })
    }

    fn decide(&self, key: &str, weight: u64) -> Result<Decision> {
        policy::check_some(weight)?;
        let answer = self.with_leases(key, |found, leases| {
            Self::expire(found, leases)?;
            let lease = self.take(found, leases, weight)?;
            let retry_after = if lease.is_some() { None } else { Some(Self::retry_after(found, leases)?) };
            let now = found.home.clock.now().floor;
            let permit = lease.map(|lease| self.permit(found, lease));
            let decision = self.decision(&found.table, found.gate, now, leases.live()?, retry_after);
            found.decided(if permit.is_some() { ADMITTED } else { DENIED }, weight);
            Ok(Decision { permit, ..decision })
        });
        self.limit.or_instead(answer, |is_admitted| self.undecided(is_admitted))
    }

    fn peek(&self, key: &str, weight: u64) -> Result<Decision> {
        let answer = self.limit.look(key, |home, table, at, gate| {
            let max = table.policy.capacity();
            policy::check_weight(self.name(), weight, max)?;
            let now = home.clock.now().floor;
            let Some(key) = at else {
                let closed = (gate > now).then(|| from_ticks(gate - now));
                return Ok(self.decision(table, gate, now, 0, closed));
            };
            let counts = self.limit.counts()?;
            let (leases, found) =
                (home.leases(table, key), Key { home, table: *table, key, hash: home.hash_at(key.at), gate, counts });
            Self::expire(&found, &leases)?;
            let mut live = leases.live()?;
            if live + weight > max {
                self.reclaim(&found, &leases)?;
                live = leases.live()?;
            }
            let is_denied = gate > now || live + weight > max;
            let retry_after = if is_denied { Some(Self::retry_after(&found, &leases)?) } else { None };
            Ok(self.decision(table, gate, now, live, retry_after))
        });
        self.limit.or_instead(answer, |is_admitted| Decision { permit: None, ..self.undecided(is_admitted) })
    }

    fn step(&self, wait: &mut Wait) -> Result<Step> {
        if let Progress::Place(_) = wait.progress {
            return unsupported("a place", "a concurrency limit: it has no places");
        }
        let waited = wait.started.get_or_insert_with(Instant::now).elapsed();
        policy::check_some(wait.weight)?;
        let stepped = self.do_step(wait);
        self.limit.or_instead(stepped, |is_admitted| match is_admitted {
            true => Step::Admitted(self.uncounted()),
            false => wait.again_after(STORE_AGAIN, waited),
        })
    }

    fn nap(&self, wait: &Wait, nap: Duration) {
        let Progress::Heard(seen) = wait.progress else {
            return self.limit.home().map_or((), |home| home.clock.sleep(nap));
        };
        let _ = self.with_leases(&wait.key, |_, leases| {
            leases.sleepers.fetch_add(1, SeqCst);
            store::sleep_on(leases.bell, seen, nap);
            leases.sleepers.fetch_sub(1, SeqCst);
            Ok(())
        });
    }

    fn complete(&self, permit: &RawPermit) -> Result<()> {
        self.end(permit, false)
    }

    fn cancel(&self, permit: &RawPermit) -> Result<()> {
        self.end(permit, true)
    }

    fn stats(&self, key: &str) -> Result<Stats> {
        self.limit.stats(key)
    }

    fn renew(&self, permit: &RawPermit) -> Result<()> {
        own(permit, self.id, self.name())?;
        if permit.key == u64::MAX {
            return Ok(()); // it counts nowhere
        }
        let renewed = self.with_lease(permit, |found, leases, lease| {
            // One that is over is not revived, whether anybody has noticed or not.
            if !matches!(Self::deadline(found.home, &found.table), NEVER) {
                leases.reclaim(found.home.clock.now().floor, |_| false)?;
            }
            Ok(leases.renew(lease, Self::deadline(found.home, &found.table))?)
        });
        match self.limit.or_instead(renewed, Some)? {
            Some(true) => Ok(()),
            _ => Err(Error::LeaseLost { limit: self.name().to_owned() }),
        }
    }

    fn fence(&self, permit: &RawPermit) -> Option<u64> {
        (permit.limiter == self.id && permit.key != u64::MAX).then_some(permit.b)
    }

    fn settle(&self, _: &RawPermit, _: u64) -> Result<()> {
        unsupported("settle", "a concurrency limit: its units come back when the job ends")
    }

    fn reserve_later(
        &self,
        _: &str,
        _: u64,
        _: Duration,
        _: Option<Duration>,
        _: Option<Duration>,
    ) -> Result<Reserved> {
        unsupported("reserve", "a concurrency limit: nobody knows when a running job will end")
    }

    fn present(&self, _: &RawPermit) -> Result<Presented> {
        unsupported("present", "a concurrency limit: it has no places")
    }

    fn to_text(&self, _: &RawPermit) -> Result<String> {
        unsupported("to_text", "a concurrency limit: its permits belong to one process")
    }

    fn permit_from_text(&self, _: &str) -> Result<RawPermit> {
        unsupported("permit_from_text", "a concurrency limit: its permits belong to one process")
    }

    fn record_job_start(&self, key: &str) -> Result<()> {
        let me = self.limit.store().member();
        let started = self.with_leases(key, |found, leases| match leases.start(me)? {
            Some(_) => {
                found.decided(ADMITTED, 1);
                Ok(())
            }
            None => {
                let most = found.table.policy.capacity();
                let reason = format!("more starts beyond the limit of {most} than \"{}\" has room for", self.name());
                Err(Error::StoreFull { reason }.into())
            }
        });
        self.limit.or_instead(started, |_| ())
    }

    fn record_job_completion(&self, key: &str) -> Result<()> {
        let me = self.limit.store().member();
        let ended = self.with_leases(key, |_, leases| {
            if leases.complete(me)? {
                Self::ring(leases);
            }
            Ok(())
        });
        self.limit.or_instead(ended, |_| ())
    }

    fn set_next_available_time(&self, key: &str, at: SystemTime) -> Result<()> {
        self.limit.close_gate(key, self.limit.home()?.clock.tick_of(at)?)
    }

    fn pause(&self, key: &str, pause: Duration) -> Result<()> {
        self.limit.close_gate(key, self.limit.home()?.clock.tick_in("pause", pause)?)
    }

    fn clear(&self, key: &str) -> Result<()> {
        self.limit.forget(key)
    }
}
