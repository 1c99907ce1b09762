//! A permit that ends automatically.

use super::{Limiter, waking};
use crate::error::{Error, Result};
use crate::permit::RawPermit;
use crate::waiting::MayWait;
use std::sync::Arc;
use std::time::SystemTime;

/// A permit that completes when it is dropped, also during a panic.
///
/// A limiter's own permits borrow it. Those of an `Arc<dyn Limiter>` keep it alive: they are `'static`.
#[must_use = "the start completes when the permit is dropped"]
pub struct Permit<'l> {
    limiter: Holder<'l>,
    /// `None`: the permit has ended.
    raw: Option<RawPermit>,
}

enum Holder<'l> {
    Borrowed(&'l dyn Limiter),
    /// With the key, whose waiting futures learn of the permit's end.
    Shared {
        limiter: Arc<dyn Limiter>,
        key: Box<str>,
        in_task: bool,
    },
}

impl Holder<'_> {
    fn limiter(&self) -> &dyn Limiter {
        match self {
            Holder::Borrowed(limiter) => *limiter,
            Holder::Shared { limiter, .. } => &**limiter,
        }
    }
}

impl<'l> Permit<'l> {
    pub(super) fn new(limiter: &'l dyn Limiter, raw: RawPermit) -> Self {
        Permit { limiter: Holder::Borrowed(limiter), raw: Some(raw) }
    }

    /// Makes a permit that keeps its limiter. In a task, dropping it must not wait.
    pub(super) fn shared(limiter: Arc<dyn Limiter>, key: Box<str>, raw: RawPermit, in_task: bool) -> Permit<'static> {
        Permit { limiter: Holder::Shared { limiter, key, in_task }, raw: Some(raw) }
    }

    /// Ends the permit: the job ran. As dropping the permit, but returns errors.
    pub fn complete(self) -> Result<()> {
        self.end(|limiter, raw| limiter.complete(raw))
    }

    /// Ends the permit: the job never ran, and its units are free again immediately.
    pub fn cancel(self) -> Result<()> {
        self.end(|limiter, raw| limiter.cancel(raw))
    }

    /// Ends the permit: the job ran, and used `actual` units instead of the weight that it started with.
    pub fn settle(self, actual: u64) -> Result<()> {
        self.end(|limiter, raw| limiter.settle(raw, actual))
    }

    /// Ends the permit of a joint start: the job ran, and these parts used so many units: see
    /// [`Limiter::settle_parts`].
    pub fn settle_parts(self, actual: &[(&str, u64)]) -> Result<()> {
        self.end(|limiter, raw| limiter.settle_parts(raw, actual))
    }

    fn end(mut self, end: impl FnOnce(&dyn Limiter, &RawPermit) -> Result<()>) -> Result<()> {
        let ended = self.raw.take().map_or(Ok(()), |raw| end(self.limiter.limiter(), &raw));
        self.tell_waiters();
        ended
    }

    fn tell_waiters(&self) {
        if let Holder::Shared { limiter, key, .. } = &self.limiter {
            waking::freed(&**limiter, key);
        }
    }

    /// Says that the job has reached the server that counts it: see [`Limiter::arrived`]. The permit remains.
    pub fn arrived(&self) -> Result<()> {
        self.raw.as_ref().map_or(Ok(()), |raw| self.limiter.limiter().arrived(raw))
    }

    /// Returns which alternative was charged: see [`Limiter::chosen`].
    pub fn chosen(&self) -> Option<(usize, Arc<dyn Limiter>)> {
        self.limiter.limiter().chosen(self.raw.as_ref()?)
    }

    /// Returns when the start's place became ready, if it had to wait for one.
    pub fn ready_at(&self) -> Option<SystemTime> {
        self.limiter.limiter().ready_at(self.raw.as_ref()?)
    }

    /// The same on the system's monotonic clock, in ns, for measurements.
    pub fn ready_at_monotonic_ns(&self) -> Option<u64> {
        self.limiter.limiter().ready_at_monotonic_ns(self.raw.as_ref()?)
    }

    /// Returns the permit as plain words; it no longer ends automatically.
    pub fn into_raw(mut self) -> RawPermit {
        self.raw.take().expect("only what takes the permit itself ends it")
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let Some(raw) = self.raw.take() else { return };
        // No caller is left to receive an error. The limiter bounds the permit's lifetime in any case.
        match &self.limiter {
            Holder::Shared { limiter, key, in_task: true } => {
                let ended = MayWait::Never.during(|| limiter.complete(&raw));
                if ended == Err(Error::WouldWait) {
                    let key = key.clone();
                    return waking::make_elsewhere(limiter, move |limiter| {
                        let _ = limiter.complete(&raw);
                        waking::freed(limiter, &key);
                    });
                }
            }
            holder => drop(holder.limiter().complete(&raw)),
        }
        self.tell_waiters();
    }
}

impl std::fmt::Debug for Permit<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Permit of \"{}\"", self.limiter.limiter().name())
    }
}
