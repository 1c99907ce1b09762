//! A permit that ends automatically.

use super::Limiter;
use crate::error::Result;
use crate::permit::RawPermit;
use std::mem;
use std::time::SystemTime;

/// A permit that completes when it is dropped, also during a panic.
#[must_use = "the start completes when the permit is dropped"]
pub struct Permit<'l> {
    limiter: &'l dyn Limiter,
    raw: RawPermit,
}

impl<'l> Permit<'l> {
    pub(crate) fn new(limiter: &'l dyn Limiter, raw: RawPermit) -> Self {
        Permit { limiter, raw }
    }

    /// Ends the permit: the job ran. As dropping the permit, but returns errors.
    pub fn complete(self) -> Result<()> {
        let Permit { limiter, raw } = self;
        mem::forget(self);
        limiter.complete(&raw)
    }

    /// Ends the permit: the job never ran, and its units are free again immediately.
    pub fn cancel(self) -> Result<()> {
        let Permit { limiter, raw } = self;
        mem::forget(self);
        limiter.cancel(&raw)
    }

    /// Ends the permit: the job ran, and used `actual` units instead of the weight that it started with.
    pub fn settle(self, actual: u64) -> Result<()> {
        let Permit { limiter, raw } = self;
        mem::forget(self);
        limiter.settle(&raw, actual)
    }

    /// Says that the job has reached the server that counts it: see [`Limiter::arrived`]. The permit remains.
    pub fn arrived(&self) -> Result<()> {
        self.limiter.arrived(&self.raw)
    }

    /// Returns when the start's place became ready, if it had to wait for one.
    pub fn ready_at(&self) -> Option<SystemTime> {
        self.limiter.ready_at(&self.raw)
    }

    /// The same on the system's monotonic clock, in ns, for measurements.
    pub fn ready_at_monotonic_ns(&self) -> Option<u64> {
        self.limiter.ready_at_monotonic_ns(&self.raw)
    }

    /// Returns the permit as plain words; it no longer ends automatically.
    pub fn into_raw(self) -> RawPermit {
        let raw = self.raw;
        mem::forget(self);
        raw
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        // No caller is left to receive an error. The limiter bounds the permit's lifetime in any case.
        let _ = self.limiter.complete(&self.raw);
    }
}

impl std::fmt::Debug for Permit<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Permit of \"{}\"", self.limiter.name())
    }
}
