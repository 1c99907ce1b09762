//! What every caller of a limiter needs.

use super::heard::{errors_told, told};
use super::{Permit, Places, Scheduler, Waiter, acquire};
use crate::decision::Decision;
use crate::error::Result;
use crate::hooks::{Happening, Hook, HookId};
use crate::permit::RawPermit;
use crate::stats::Stats;
use std::time::Duration;

/// The answer to an attempt to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// Start.
    Admitted(RawPermit),
    /// Not now; see [`Decision::retry_after`].
    Denied(Duration),
}

/// "May this start now, and if not, when?"
///
/// Every method takes a *key*: one policy, a separate budget per key; `""` is no key. Keys are at most 1,024 bytes.
/// A limiter is used from any thread, and goes on working in a forked child.
///
/// Every limiter is also [`Places`], for starts in the future, and a [`Scheduler`], for those who ask first and record
/// later. A `dyn Limiter` has the methods of all three; of a `RateLimiter`, say, they are known where the traits are.
pub trait Limiter: Places + Scheduler {
    /// The limit's name: what [`Decision::denied_by`] says.
    fn name(&self) -> &str {
        &self.base().name
    }

    /// Decides and records in one act. A denial changes nothing.
    ///
    /// # Errors
    /// [`Error::WeightExceedsCapacity`](crate::Error::WeightExceedsCapacity) if it could never start,
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for weight 0 or a key that is too long, or a store
    /// error.
    #[inline]
    fn attempt(&self, key: &str, weight: u64) -> Result<Attempt> {
        if self.is_heard() { attempt_heard(self, key, weight) } else { self.quiet_attempt(key, weight) }
    }

    /// The same, answering with the whole decision.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    fn decide(&self, key: &str, weight: u64) -> Result<Decision> {
        told(self, key, weight, || self.quiet_decide(key, weight))
    }

    /// The decision that [`Limiter::decide`] would give, without a permit. Records nothing. `weight` may be 0.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    fn peek(&self, key: &str, weight: u64) -> Result<Decision> {
        errors_told(self, key, weight, || self.quiet_peek(key, weight))
    }

    /// Starts if there is room now.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    fn try_acquire(&self, key: &str, weight: u64) -> Result<Option<Permit<'_>>>
    where
        Self: Sized,
    {
        Ok(match self.attempt(key, weight)? {
            Attempt::Admitted(raw) => Some(Permit::new(self, raw)),
            Attempt::Denied(_) => None,
        })
    }

    /// Waits for room, at most for `timeout` (`None`: as long as it takes). `None` if there is none before that: at
    /// once, if that can be known at once.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    fn acquire(&self, key: &str, weight: u64, timeout: Option<Duration>) -> Result<Option<Permit<'_>>>
    where
        Self: Sized,
    {
        Ok(match acquire(self, Waiter::new(key, weight).timeout(timeout))? {
            Attempt::Admitted(raw) => Some(Permit::new(self, raw)),
            Attempt::Denied(_) => None,
        })
    }

    /// Ends a permit: the job ran. Ending it again is a no-op.
    ///
    /// # Errors
    /// [`Error::ForeignPermit`](crate::Error::ForeignPermit) if another limiter gave it.
    fn complete(&self, permit: &RawPermit) -> Result<()>;

    /// Ends a permit, or gives a place back: the job never ran, and its units are free again at once. Ending it again
    /// is a no-op.
    ///
    /// # Errors
    /// As for [`Limiter::complete`], or a store error.
    fn cancel(&self, permit: &RawPermit) -> Result<()>;

    /// Ends a permit: the job ran, and was worth `actual` units instead of the weight that it started with. What it did
    /// not use is free again at once; what it used beyond is owed, up to one whole capacity, and delays later starts.
    /// Ending it again is a no-op.
    ///
    /// # Errors
    /// As for [`Limiter::cancel`]; [`Error::Unsupported`](crate::Error::Unsupported) where units are not a matter of
    /// time.
    fn settle(&self, permit: &RawPermit, actual: u64) -> Result<()>;

    /// Lets a lease begin anew: the start holds its units for the policy's whole lease from now on. A no-op for permits
    /// that need none.
    ///
    /// # Errors
    /// [`Error::LeaseLost`](crate::Error::LeaseLost) if it has ended meanwhile, and perhaps another start holds its
    /// units; as for [`Limiter::complete`].
    fn renew(&self, permit: &RawPermit) -> Result<()> {
        self.check_permit(permit)
    }

    /// A number that is larger for every later lease of the same key: for what the lease protects to refuse whoever
    /// comes late. `None` for permits that are no leases.
    fn fence(&self, _permit: &RawPermit) -> Option<u64> {
        None
    }

    /// Is this permit, ended or not, one of this limiter's? Changes nothing.
    ///
    /// # Errors
    /// [`Error::ForeignPermit`](crate::Error::ForeignPermit) if another limiter gave it.
    fn check_permit(&self, permit: &RawPermit) -> Result<()> {
        self.base().own(permit)
    }

    /// Imposes a gate: nobody starts for so long. Gates only move later, except by [`Limiter::clear`]. With the empty key
    /// it binds all keys.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if `pause` is more than 366 days, or as for
    /// [`Limiter::attempt`].
    fn pause(&self, key: &str, pause: Duration) -> Result<()> {
        errors_told(self, key, 0, || self.quiet_pause(key, pause))
    }

    /// Back to the initial state, gate included. With the empty key: of all keys.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    fn clear(&self, key: &str) -> Result<()> {
        errors_told(self, key, 0, || self.quiet_clear(key))
    }

    /// What was counted, of a key or with the empty key of all: by all processes that share the limit, but for what the
    /// others counted in the last second.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    fn stats(&self, key: &str) -> Result<Stats> {
        errors_told(self, key, 0, || self.quiet_stats(key))
    }

    /// Declares or attaches now what the limiter needs in its store, instead of at the first decision.
    ///
    /// # Errors
    /// [`Error::UnknownLimit`](crate::Error::UnknownLimit), [`Error::KindMismatch`](crate::Error::KindMismatch), or a
    /// store error.
    fn open(&self) -> Result<()> {
        errors_told(self, "", 1, || self.limit().map_or(Ok(()), |limit| limit.table().map(drop)))
    }

    /// Calls a function at each such [`Event`](crate::Event) of this limiter in this process: see
    /// [`Store::on`](crate::Store::on).
    fn on(&self, happening: Happening, hook: Hook) -> HookId {
        self.base().hooks.add(happening, hook)
    }

    /// Takes a hook away. A no-op for one that is not there.
    fn off(&self, hook: HookId) {
        self.base().hooks.remove(hook);
    }
}

/// Who listens wants to know who said no, too.
#[cold]
#[inline(never)]
fn attempt_heard<L: Limiter + ?Sized>(limiter: &L, key: &str, weight: u64) -> Result<Attempt> {
    let Decision { permit, retry_after, .. } = limiter.decide(key, weight)?;
    Ok(permit.map_or(Attempt::Denied(retry_after), Attempt::Admitted))
}
