//! At most so many at the same time, in this process.

use super::{
    Attempt, LOOK_AGAIN, Limiter, Presented, Progress, Reserved, Step, Wait, is_certain, next_id, own, unsupported,
};
use crate::algorithm::slots::{Held, Slots};
use crate::atomic::*;
use crate::decision::Decision;
use crate::error::{Error, Result};
use crate::permit::RawPermit;
use crate::policy::{self, Policy};
use crate::store::{self, Limit, Store, StoreOptions, Table};
use crate::time::{ManualClock, Tick, from_ticks};
use std::time::{Duration, SystemTime};

/// At most `max` units running at the same time, per key, in this process. A forked child counts its own.
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
    /// At most `max` units at the same time.
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
        Ok(ConcurrencyLimiter { id: next_id(), limit: Limit::declare(store, name, policy)? })
    }

    /// Takes the limit that is declared under a name; at the first use it must be.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `name` is 1 to 1,024 bytes.
    pub fn attach(store: &Store, name: &str) -> Result<Self> {
        Ok(ConcurrencyLimiter { id: next_id(), limit: Limit::attach(store, name, "concurrency")? })
    }

    fn in_store(max: u64, options: StoreOptions) -> Result<Self> {
        let policy = Policy::concurrency(max)?;
        let store = Store::with_options("memory:", options)?;
        Self::declare(&store, &policy.to_string(), policy)
    }

    fn permit(&self, key: u64, held: Held) -> RawPermit {
        RawPermit { limiter: self.id, key, a: held.index, b: held.word, ready: 0, reserved: [0; 3] }
    }

    fn decision(&self, table: &Table, gate: Tick, now: Tick, remaining: u64, admitted: bool) -> Decision {
        let retry_after = match admitted {
            true => Duration::ZERO,
            false if gate > now => from_ticks(gate - now),
            false => LOOK_AGAIN,
        };
        Decision {
            permit: None,
            admitted,
            retry_after,
            suggested_after: retry_after,
            remaining: if gate > now { 0 } else { remaining },
            limit: table.policy.capacity(),
            reset_after: from_ticks(gate.saturating_sub(now)),
            denied_by: (!admitted).then(|| self.limit.name().clone()),
        }
    }

    fn check(&self, table: &Table, weight: u64) -> Result<()> {
        policy::check_weight(self.name(), weight, table.policy.capacity())
    }

    /// Calls back units, and those who wait for them.
    fn ring(slots: &Slots) {
        if slots.sleepers.load(SeqCst) > 0 {
            store::wake_all(slots.bell);
        }
    }

    fn with_slots<R>(&self, key: &str, f: impl Fn(&Slots) -> R) -> Result<R> {
        self.limit.with_key(key, |found| Ok(f(&found.home.slots(&found.table, found.key.at))))
    }
}

impl Limiter for ConcurrencyLimiter {
    fn open(&self) -> Result<()> {
        self.limit.table().map(drop)
    }

    fn name(&self) -> &str {
        self.limit.name()
    }

    fn check_permit(&self, permit: &RawPermit) -> Result<()> {
        own(permit, self.id, self.name())
    }

    fn attempt(&self, key: &str, weight: u64) -> Result<Attempt> {
        policy::check_some(weight)?;
        self.limit.with_key(key, |found| {
            self.check(&found.table, weight)?;
            let closed = found.gate.saturating_sub(found.home.clock.now().floor);
            if closed > 0 {
                return Ok(Attempt::Denied(from_ticks(closed)));
            }
            Ok(match found.home.slots(&found.table, found.key.at).take(weight) {
                Some(held) => Attempt::Admitted(self.permit(found.key.at, held)),
                None => Attempt::Denied(LOOK_AGAIN),
            })
        })
    }

    fn decide(&self, key: &str, weight: u64) -> Result<Decision> {
        policy::check_some(weight)?;
        self.limit.with_key(key, |found| {
            self.check(&found.table, weight)?;
            let now = found.home.clock.now().floor;
            let slots = found.home.slots(&found.table, found.key.at);
            let held = if found.gate > now { None } else { slots.take(weight) };
            let mut decision = self.decision(&found.table, found.gate, now, slots.remaining(), held.is_some());
            decision.permit = held.map(|held| self.permit(found.key.at, held));
            Ok(decision)
        })
    }

    fn peek(&self, key: &str, weight: u64) -> Result<Decision> {
        self.limit.look(key, |home, table, at, gate| {
            self.check(table, weight)?;
            let now = home.clock.now().floor;
            let remaining = at.map_or(table.policy.capacity(), |key| home.slots(table, key.at).remaining());
            Ok(self.decision(table, gate, now, remaining, gate <= now && remaining >= weight))
        })
    }

    fn step(&self, wait: &mut Wait) -> Result<Step> {
        if let Progress::Place(_) = wait.progress {
            return unsupported("a place", "a concurrency limit: it has no places");
        }
        let now = self.limit.home()?.clock.now().floor;
        let patience = wait.patience(now);
        // The bell first: whoever completes after this look wakes the nap that follows it.
        wait.progress = Progress::Heard(self.with_slots(&wait.key, |slots| slots.bell.load(Acquire))?);
        let left = from_ticks(patience);
        match self.attempt(&wait.key, wait.weight)? {
            Attempt::Admitted(permit) => Ok(Step::Admitted(permit)),
            Attempt::Denied(after) if left.is_zero() || is_certain(after, left) => Ok(Step::Expired(after)),
            // A gate, which opens when it says.
            Attempt::Denied(after) if after != LOOK_AGAIN => Ok(Step::Sleep(after)),
            Attempt::Denied(_) => Ok(Step::Sleep(wait.look_again().min(left))),
        }
    }

    fn nap(&self, wait: &Wait, nap: Duration) {
        let Progress::Heard(seen) = wait.progress else {
            return self.limit.home().map_or((), |home| home.clock.sleep(nap));
        };
        let _ = self.with_slots(&wait.key, |slots| {
            slots.sleepers.fetch_add(1, SeqCst);
            store::sleep_on(slots.bell, seen, nap);
            slots.sleepers.fetch_sub(1, SeqCst);
        });
    }

    fn complete(&self, permit: &RawPermit) -> Result<()> {
        own(permit, self.id, self.name())?;
        // A child that was forked meanwhile has its own count; preparing it there forgets the parent's permits.
        let home = self.limit.home()?;
        let table = self.limit.table()?;
        if !home.is_key_of(&table, permit.key) {
            return Err(Error::ForeignPermit { limit: self.name().to_owned() });
        }
        let slots = home.slots(&table, permit.key);
        if slots.give_back(Held { index: permit.a, word: permit.b }) {
            Self::ring(&slots);
        }
        Ok(())
    }

    fn cancel(&self, permit: &RawPermit) -> Result<()> {
        self.complete(permit)
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

    fn renew(&self, permit: &RawPermit) -> Result<()> {
        own(permit, self.id, self.name())
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
        self.with_slots(key, |slots| slots.start())
    }

    fn record_job_completion(&self, key: &str) -> Result<()> {
        self.with_slots(key, |slots| {
            slots.complete();
            Self::ring(slots);
        })
    }

    fn set_next_available_time(&self, key: &str, at: SystemTime) -> Result<()> {
        self.limit.close_gate(key, self.limit.home()?.clock.tick_of(at)?)
    }

    fn pause(&self, key: &str, pause: Duration) -> Result<()> {
        self.limit.close_gate(key, self.limit.home()?.clock.tick_in("pause", pause)?)
    }

    fn clear(&self, key: &str) -> Result<()> {
        self.limit.with_key(key, |found| {
            let clear = |at| {
                let slots = found.home.slots(&found.table, at);
                slots.clear();
                Self::ring(&slots);
            };
            if key.is_empty() {
                found.home.keys(&found.table).for_each(clear)
            } else {
                clear(found.key.at)
            }
            Ok(())
        })?;
        self.limit.open_gates(key)
    }
}
