//! The algorithms: small state machines over a few 64-bit atomic cells.
//!
//! An algorithm does not know where its cells live (the heap, a mapped file) or what time it is (the caller passes it
//! in), and does no I/O. Zeroed cells are a fresh limiter, so no initialisation is needed.

use crate::time::{Now, Tick};
use log::{Answer, Ask, View};

pub(crate) mod bucket;
#[cfg(not(model))]
pub(crate) mod cells;
pub(crate) mod counter;
pub(crate) mod grants;
pub(crate) mod jobs;
pub(crate) mod leases;
pub(crate) mod log;
pub(crate) mod meter;
pub(crate) mod places;
pub(crate) mod slices;

/// The cells are sealed, or have another life by now: look the key up again, and ask there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sealed;

/// An algorithm that decides about starts by time.
pub(crate) trait Algorithm {
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
    const MOST: u32 = 20_000;

    #[inline(always)]
    pub fn again(&mut self) -> Result<(), Sealed> {
        self.0 += 1;
        if self.0 < Tries::MOST { Ok(()) } else { Err(Sealed) }
    }
}

/// A start, while it moves from one life of its cells to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Start {
    /// The moment from which it counts.
    pub stamp: Tick,
    pub units: u64,
    /// Its state in the log.
    pub state: u64,
    /// The ticket by which its holder knows it.
    pub id: u64,
    /// Whether it is in the ledger.
    pub is_logged: bool,
}

/// The state that one life of some cells passes on to the next.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    /// The starts that count, or will, ordered by stamp.
    pub starts: Vec<Start>,
    /// Older starts may count that are not known any more, but none longer than a start at this time.
    pub unknown: Option<Tick>,
    /// Tickets, or fences, continue from here.
    pub end: u64,
    /// Where units are only counted, the era that identifies them.
    pub era: u64,
    /// The other state of a bucket.
    pub rest: Rest,
    /// The holders of leases.
    pub holds: Vec<leases::Hold>,
}

/// The state that a bucket passes on to the next life in addition to its starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rest {
    /// The excess of the starts over what counts: this fraction of a unit, as a numerator and a denominator. It belongs
    /// to the first start.
    pub spare: (u64, u64),
    /// The latest stamp of an admitted start.
    pub last: Tick,
    /// The total that was ever given back.
    pub returned: u64,
    /// Until when it recovers from what it took over from another bucket, in its own parts.
    pub carried: i128,
}

impl History {
    /// Makes unknown starts count, as far as a limit of this many units may need them: later than they were started,
    /// never earlier.
    pub fn pad(&mut self, limit: u64) {
        let Some(stamp) = self.unknown else { return };
        let known: u64 = self.starts.iter().map(|start| start.units).sum();
        if known < limit {
            let units = limit - known;
            let at = self.starts.partition_point(|start| start.stamp < stamp);
            let pad = Start { stamp, units, state: log::SETTLED, id: u64::MAX, is_logged: true };
            self.starts.insert(at, pad);
        }
    }
}

#[cfg(all(test, not(model)))]
mod garbage_tests;
#[cfg(all(test, model))]
mod models;
#[cfg(all(test, not(model)))]
#[path = "../../tests/common/random.rs"]
mod random_tests;
