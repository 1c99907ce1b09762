//! The algorithms: small state machines over a few 64-bit atomic cells.
//!
//! An algorithm does not know where its cells live (the heap, a mapped file) or what time it is (the caller passes it
//! in), and does no I/O. Zeroed cells are a fresh limiter, so no initialisation is needed.
//!
//! The head of each file numbers the statements by which it is correct. A comment that begins with `(3)` says why the
//! step below it keeps the third of them, or may rely on it. The name of another list of the head, such as *Places*,
//! stands before the number.
#![allow(rustdoc::private_intra_doc_links, reason = "these heads are for readers of the source")]

use crate::time::Now;
pub use history::{Forgotten, History, Rest, Start};
use log::{Answer, Ask, View};

pub mod atomic;
pub mod bucket;
#[cfg(not(model))]
pub mod cells;
pub mod counter;
pub mod fault;
pub mod grants;
pub mod heads;
mod history;
pub mod jobs;
pub mod joint;
pub mod leases;
pub mod log;
pub mod meter;
pub mod places;
pub mod shares;
pub mod slices;
pub mod time;

/// The cells are sealed, or have another life by now: look the key up again, and ask there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sealed;

/// An algorithm that decides about starts by time.
pub trait Algorithm {
    /// Decides and records in one step; with `LOOK` it also returns the state after it.
    fn decide<const LOOK: bool>(&self, ask: &Ask, clock: impl Fn() -> Now, view: &mut View) -> Result<Answer, Sealed>;

    /// Decides and records in one step.
    #[cfg(test)]
    fn claim(&self, ask: &Ask, clock: impl Fn() -> Now) -> Result<Answer, Sealed> {
        self.decide::<false>(ask, clock, &mut View::default())
    }

    /// The same, with the state after it.
    #[cfg(all(test, not(model)))]
    fn claim_and_view(&self, ask: &Ask, clock: impl Fn() -> Now) -> Result<(Answer, View), Sealed> {
        let mut view = View::default();
        Ok((self.decide::<true>(ask, clock, &mut view)?, view))
    }
}

/// Counts the retries of a call.
///
/// A call retries because other callers made progress. This many retries in a row are not plausible: the cells then
/// hold words that no caller here has written. They are reported as sealed. The holder of the structure lock finds that
/// they are not, and the caller gives up at its deadline.
#[derive(Debug, Default)]
pub(crate) struct Tries(u32);

impl Tries {
    const MAX: u32 = 20_000;

    /// Counts a retry.
    #[inline(always)]
    pub fn again(&mut self) -> Result<(), Sealed> {
        self.0 += 1;
        if self.0 < Tries::MAX { Ok(()) } else { Err(Sealed) }
    }
}

#[cfg(all(test, not(model)))]
mod garbage_tests;
#[cfg(all(test, model))]
mod models;
#[cfg(all(test, not(model)))]
#[path = "../../tests/common/random.rs"]
mod random_tests;
