//! The interface that every caller of a limiter uses.

use super::composite::group::chosen;
use super::events::{reporting, reporting_errors};
use super::{Permit, Places, Scheduler, Waiter, acquire, unknown_part};
use crate::charges::{Charge, JointKey};
use crate::decision::Decision;
use crate::error::{Error, Result};
use crate::hooks::{Happening, Hook, HookId};
use crate::permit::RawPermit;
use crate::policy::{self, Quota};
use crate::stats::Stats;
use crate::waiting::{InLine, MayWait};
use std::sync::Arc;
use std::time::Duration;

/// The reply to an attempt to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// The start is admitted.
    Admitted(RawPermit),
    /// The start is denied for now; see [`Decision::retry_after`].
    Denied(Duration),
}

/// Decides whether a start is admitted now, and if not, when to retry.
///
/// Every method takes a *key*. All keys have the same policy, and each has its own budget; `""` is no key. Keys are at
/// most 1,024 bytes. A limiter can be used from any thread, and keeps working in a forked child.
///
/// Every limiter also implements [`Places`], for starts in the future, and [`Scheduler`], for callers that ask first
/// and record later. A `dyn Limiter` has the methods of all three traits; on a concrete type such as `RateLimiter` the
/// traits have to be in scope.
pub trait Limiter: Places + Scheduler {
    /// Returns the limit's name, as in [`Decision::denied_by`].
    fn name(&self) -> &str {
        &self.base().name
    }

    /// Decides and records in one step. A denial changes nothing.
    ///
    /// # Errors
    /// [`Error::WeightExceedsCapacity`](crate::Error::WeightExceedsCapacity) if the weight can never be admitted,
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for weight 0 or a key that is too long, or a store
    /// error.
    #[inline]
    fn attempt(&self, key: &str, weight: u64) -> Result<Attempt> {
        if self.has_hooks() { attempt_with_hooks(self, key, weight) } else { self.quiet_attempt(key, weight) }
    }

    /// As [`Limiter::attempt`], but returns the full decision.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    fn decide(&self, key: &str, weight: u64) -> Result<Decision> {
        reporting(self, key, weight, || self.quiet_decide(key, weight))
    }

    /// Returns the decision that [`Limiter::decide`] would return, without a permit. Records nothing. `weight` may be
    /// 0.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    fn peek(&self, key: &str, weight: u64) -> Result<Decision> {
        reporting_errors(self, key, weight, || self.quiet_peek(key, weight))
    }

    /// Returns in what time this many more starts will have begun, each of one unit, if the caller asked now and nobody
    /// more urgent came: as the limit counts now, and after the first waiter of each line that comes before. `None`:
    /// nobody knows, because a start has to end before. Records nothing.
    ///
    /// Where nobody waits, the time is exact for a rate with one window, a delay and a bucket. Otherwise it is a lower bound: with
    /// waiters, for several windows, counted windows, rates on servers and alternatives.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use workglow_limit::{Limiter, RateLimiter, Store};
    /// let mails = RateLimiter::new(&Store::new("memory:")?, "mails", 10, Duration::from_secs(60))?;
    /// assert_eq!(mails.forecast(10, "")?, Some(Duration::ZERO));
    /// assert_eq!(mails.forecast(25, "")?, Some(Duration::from_secs(120)));
    /// # Ok::<(), workglow_limit::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Limiter::peek`]; [`InvalidArgument`](crate::Error::InvalidArgument) unless `starts` is from 1 to 1,000,000,000.
    fn forecast(&self, starts: u64, key: &str) -> Result<Option<Duration>> {
        policy::check_starts(starts)?;
        reporting_errors(self, key, 0, || self.quiet_forecast(key, starts))
    }

    /// Starts if enough units are free now.
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

    /// Waits for units, at most for `timeout` (`None`: without limit). Returns `None` if they are not free in time, and
    /// returns it immediately if that is known in advance.
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

    /// Ends a permit: the job ran. A no-op if the permit has already ended.
    ///
    /// # Errors
    /// [`Error::ForeignPermit`](crate::Error::ForeignPermit) if another limiter issued it.
    fn complete(&self, permit: &RawPermit) -> Result<()>;

    /// Ends a permit, or gives a place back: the job never ran, and its units are free again immediately. A no-op if
    /// the permit has already ended.
    ///
    /// # Errors
    /// As for [`Limiter::complete`], or a store error.
    fn cancel(&self, permit: &RawPermit) -> Result<()>;

    /// Ends a permit: the job ran, and used `actual` units instead of the weight that it started with. Unused units are
    /// free again immediately. Excess units are owed, up to one whole capacity, and delay later starts. A no-op if the
    /// permit has already ended.
    ///
    /// # Errors
    /// As for [`Limiter::cancel`]; [`Error::Unsupported`](crate::Error::Unsupported) for limits of concurrent starts without a
    /// [cooldown](crate::Policy::with_cooldown): all of their units are free when the job ends;
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if parts of a composite were charged weights of their own:
    /// see [`Limiter::settle_parts`].
    fn settle(&self, permit: &RawPermit, actual: u64) -> Result<()>;

    /// Returns which alternative of a [`FirstOfLimiter`](crate::FirstOfLimiter) has a start or place: its index, and the
    /// limiter. With alternatives of an alternative, the index is that in the outer limiter, and the limiter the innermost.
    /// Of a composite: what the first of its parts has chosen that has alternatives. `None` for others. Permits that have
    /// ended still say it.
    fn chosen(&self, permit: &RawPermit) -> Option<(usize, Arc<dyn Limiter>)> {
        self.base().own(permit).ok()?;
        self.chosen_inside(chosen(permit))
    }

    /// Returns the names of its parts, in order: of a composite's. Others have none.
    fn part_names(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns its parts by their names, in order: a composite's. Others have none. A part may be used like any limiter.
    fn parts(&self) -> Vec<(String, Arc<dyn Limiter>)> {
        Vec::new()
    }

    /// Makes the key of a joint start, which charges some parts of a composite with keys or weights of their own. Parts
    /// that are not named are charged with `key`, and with the weight that the call gets. The result is the key of any
    /// call of this limiter, in this process, any number of times.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use workglow_limit::{Charge, Store};
    /// let store = Store::new("memory:")?;
    /// let llm = store.limiter("openai", "requests: 500/1m + tokens: 200000/1m + tenant: 50/1m + 5 concurrent")?;
    /// let call = llm.joint("", &[Charge::of("tokens").weight(1_200), Charge::of("tenant").key("acme")])?;
    /// if let Some(permit) = llm.acquire(&call, 1, Some(Duration::from_secs(30)))? {
    ///     // … it used fewer tokens than it might have …
    ///     permit.settle_parts(&[("tokens", 830)])?;
    /// }
    /// # Ok::<(), workglow_limit::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a part that it does not have, or that is named
    /// twice, weight 0, or a key of more than 1,024 bytes. A weight above a part's capacity is an error of the call.
    fn joint(&self, key: &str, charges: &[Charge]) -> Result<JointKey> {
        match charges {
            [] => JointKey::plain(key),
            [charge, ..] => Err(unknown_part(self.name(), charge.part, &[])),
        }
    }

    /// Ends the permit of a joint start: the job ran, and these parts used so many units instead of the weight that they
    /// were charged; see [`Limiter::settle`]. The other parts used what they were charged. A no-op if the permit has
    /// already ended.
    ///
    /// # Errors
    /// As for [`Limiter::settle`]; [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a part that it does not
    /// have, or that is named twice. Then the permit has not ended.
    fn settle_parts(&self, permit: &RawPermit, actual: &[(&str, u64)]) -> Result<()> {
        match actual {
            [] => self.complete(permit),
            [(part, _), ..] => Err(unknown_part(self.name(), part, &[])),
        }
    }

    /// Says that the job has reached the server that counts it, as when the head of its response is here. Where units
    /// [cool down](crate::Policy::with_cooldown), they do from now on, instead of from the job's end, and their lease has
    /// ended. The permit remains, for the other limits of a composite. A no-op for limits without a cooldown.
    ///
    /// # Errors
    /// As for [`Limiter::cancel`].
    fn arrived(&self, permit: &RawPermit) -> Result<()> {
        self.arrive(permit).map(drop)
    }

    /// Restarts a lease: the start holds its units for the policy's whole lease from now. A no-op for permits without a
    /// lease.
    ///
    /// # Errors
    /// [`Error::LeaseLost`](crate::Error::LeaseLost) if the lease has ended, and another start may hold its units;
    /// otherwise as for [`Limiter::complete`].
    fn renew(&self, permit: &RawPermit) -> Result<()> {
        self.check_permit(permit)
    }

    /// Returns a number that is larger for every later lease of the same key. The resource that the lease protects uses
    /// it to refuse callers whose lease has ended. `None` for permits that are not leases.
    fn fence(&self, _permit: &RawPermit) -> Option<u64> {
        None
    }

    /// Checks that this limiter issued the permit, ended or not. Changes nothing.
    ///
    /// # Errors
    /// [`Error::ForeignPermit`](crate::Error::ForeignPermit) if another limiter issued it.
    fn check_permit(&self, permit: &RawPermit) -> Result<()> {
        self.base().own(permit)
    }

    /// Sets a gate: no start is admitted for this long. Gates only move later, except by [`Limiter::clear`]. With the
    /// empty key the gate applies to all keys.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if `duration` is more than 366 days, or as for
    /// [`Limiter::attempt`].
    fn pause(&self, duration: Duration, key: &str) -> Result<()> {
        reporting_errors(self, key, 0, || self.quiet_pause(key, duration))
    }

    /// Charges units that others have spent of the same budget elsewhere: at most `units`, so that at least `leaving` remain.
    /// Returns how many it has charged. Whatever started since the caller saw `leaving + units` remain explains that
    /// many of them, in whichever process: so of several callers that find one difference, one charges it. No caller waits for it.
    #[doc(hidden)]
    fn charge_others(&self, key: &str, units: u64, leaving: u64) -> Result<u64> {
        // It must not be repeated between its two steps.
        if matches!(MayWait::here(), MayWait::Never | MayWait::BrieflyHere) {
            return Err(Error::WouldWait);
        }
        // What was spent is spent, whoever waits.
        let _in_line = InLine::enter();
        let weight = units.min(self.quiet_peek(key, 0)?.remaining.saturating_sub(leaving));
        if weight == 0 {
            return Ok(0);
        }
        let Decision { permit: Some(permit), remaining, .. } = self.decide_for_all(key, weight)? else { return Ok(0) };
        // Another caller was faster: of what both have taken, this one gives back its own.
        let excess = leaving.saturating_sub(remaining).min(weight);
        match excess {
            0 => self.complete(&permit)?,
            _ => self.settle(&permit, weight - excess)?,
        }
        Ok(weight - excess)
    }

    /// Puts what a server says about this limit above the declared policy, unless an operator's override is there: later, in a
    /// thread of the store. A no-op for limits that are no rates, and where it is not certain which window is meant.
    #[doc(hidden)]
    fn learn(&self, quota: Quota, host: &str) {
        self.limit().into_iter().for_each(|limit| limit.store().learn(limit.name(), quota, host));
    }

    /// Resets a key to its initial state, gate included. With the empty key: all keys.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    fn clear(&self, key: &str) -> Result<()> {
        reporting_errors(self, key, 0, || self.quiet_clear(key))
    }

    /// Returns the counts of a key, or with the empty key of the whole limit. They cover all processes that share the
    /// limit, except for what the others counted in the last second.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    fn stats(&self, key: &str) -> Result<Stats> {
        reporting_errors(self, key, 0, || self.quiet_stats(key))
    }

    /// Declares or attaches the limit in its store now, instead of at the first decision.
    ///
    /// # Errors
    /// [`Error::UnknownLimit`](crate::Error::UnknownLimit), [`Error::KindMismatch`](crate::Error::KindMismatch), or a
    /// store error.
    fn open(&self) -> Result<()> {
        reporting_errors(self, "", 1, || self.limit().map_or(Ok(()), |limit| limit.table().map(drop)))
    }

    /// Calls a function at each [`Event`](crate::hooks::Event) of this kind of this limiter in this process: see
    /// [`Store::on`](crate::Store::on).
    fn on(&self, happening: Happening, hook: Hook) -> HookId {
        self.base().hooks.add(happening, hook)
    }

    /// Removes a hook. A no-op for an unknown hook.
    fn off(&self, hook: HookId) {
        self.base().hooks.remove(hook);
    }
}

/// Hooks also receive the name of the limit that denied the start.
#[cold]
#[inline(never)]
fn attempt_with_hooks<L: Limiter + ?Sized>(limiter: &L, key: &str, weight: u64) -> Result<Attempt> {
    let Decision { permit, retry_after, .. } = limiter.decide(key, weight)?;
    Ok(permit.map_or(Attempt::Denied(retry_after), Attempt::Admitted))
}
