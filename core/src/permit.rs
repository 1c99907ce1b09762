//! What an admitted start holds.

use crate::error::{Error, Result};
use crate::limiter::Limiter;
use std::mem;
use std::time::SystemTime;

/// A permit as plain words: what the bindings carry around. Copies are the same permit; ending it twice is a no-op.
///
/// In Rust, [`Limiter::try_acquire`](crate::Limiter::try_acquire) gives a [`Permit`] that ends itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct RawPermit {
    /// The limiter that gave it.
    pub(crate) limiter: u64,
    /// Kind by kind: the key's block; a weight.
    pub(crate) key: u64,
    /// Kind by kind: a ticket, a slot's index, a composite's number.
    pub(crate) a: u64,
    /// Kind by kind: a stamp, a slot's word.
    pub(crate) b: u64,
    /// When the start's place came, or will; 0 if it had none.
    pub(crate) ready: u64,
    /// Kind by kind: the key's hash and the place's grace.
    pub(crate) reserved: [u64; 3],
}

impl RawPermit {
    /// The permit as eight words, for C.
    pub fn to_words(self) -> [u64; 8] {
        let [r0, r1, r2] = self.reserved;
        [self.limiter, self.key, self.a, self.b, self.ready, r0, r1, r2]
    }

    /// The permit of eight words. Any words will do: a limiter checks whether they are its own.
    pub fn from_words([limiter, key, a, b, ready, r0, r1, r2]: [u64; 8]) -> RawPermit {
        RawPermit { limiter, key, a, b, ready, reserved: [r0, r1, r2] }
    }
}

/// A text that is no permit's.
pub(crate) fn unreadable(text: &str) -> Error {
    Error::invalid("place", format_args!("\"{text}\""), "the text of a permit or place")
}

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
