//! A permit that ends itself.

use super::Limiter;
use crate::error::Result;
use crate::permit::RawPermit;
use std::mem;
use std::time::SystemTime;

/// A permit that completes when it is dropped, whatever happened meanwhile.
#[must_use = "the start completes when the permit is dropped"]
pub struct Permit<'l> {
    limiter: &'l dyn Limiter,
    raw: RawPermit,
}

impl<'l> Permit<'l> {
    pub(crate) fn new(limiter: &'l dyn Limiter, raw: RawPermit) -> Self {
        Permit { limiter, raw }
    }

    /// The job ran. The same as dropping the permit, but an error is told.
    pub fn complete(self) -> Result<()> {
        let Permit { limiter, raw } = self;
        mem::forget(self);
        limiter.complete(&raw)
    }

    /// The job never ran: its units are free again at once.
    pub fn cancel(self) -> Result<()> {
        let Permit { limiter, raw } = self;
        mem::forget(self);
        limiter.cancel(&raw)
    }

    /// The job ran, and was worth `actual` units instead of the weight that it started with.
    pub fn settle(self, actual: u64) -> Result<()> {
        let Permit { limiter, raw } = self;
        mem::forget(self);
        limiter.settle(&raw, actual)
    }

    /// When the start's place came, if it had to wait for one.
    pub fn ready_at(&self) -> Option<SystemTime> {
        self.limiter.ready_at(&self.raw)
    }

    /// The same on the system's monotonic clock, in ns, for measuring.
    pub fn ready_at_monotonic_ns(&self) -> Option<u64> {
        self.limiter.ready_at_monotonic_ns(&self.raw)
    }

    /// The permit as plain words; it no longer ends itself.
    pub fn into_raw(self) -> RawPermit {
        let raw = self.raw;
        mem::forget(self);
        raw
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        // Nobody is left to hear of an error; whatever it was, the permit's lifetime is bounded by its limiter's.
        let _ = self.limiter.complete(&self.raw);
    }
}

impl std::fmt::Debug for Permit<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Permit of \"{}\"", self.limiter.name())
    }
}
