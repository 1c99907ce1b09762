//! The algorithms: small state machines over a few 64-bit atomic cells.
//!
//! They know neither where their cells live (the heap, a mapped file) nor what time it is (it is handed in), and they
//! do no I/O. Zeroed cells are a fresh limiter, so that nobody has to initialise anything.

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

/// These cells are closed, or have another life by now: look the key up again and ask there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sealed;

/// What decides about starts by the time.
pub(crate) trait Algorithm {
    /// Decides and records in one act; where `LOOK` is set it says what is held after it.
    fn decide<const LOOK: bool>(&self, ask: &Ask, clock: impl Fn() -> Now, view: &mut View) -> Result<Answer, Sealed>;

    /// Decides and records in one act.
    #[cfg(test)]
    fn claim(&self, ask: &Ask, clock: impl Fn() -> Now) -> Result<Answer, Sealed> {
        self.decide::<false>(ask, clock, &mut View::default())
    }

    /// The same, and what is held after it.
    #[cfg(all(test, not(model)))]
    fn claim_and_view(&self, ask: &Ask, clock: impl Fn() -> Now) -> Result<(Answer, View), Sealed> {
        let mut view = View::default();
        Ok((self.decide::<true>(ask, clock, &mut view)?, view))
    }
}

/// Counts how often a call begins again.
///
/// It does because others have gone on, which so often in a row is not to be believed: then the cells hold what nobody here has
/// written. They are told as sealed. Whoever has the lock finds that they are not, and the caller gives up at its deadline.
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

/// A start, between one life of its cells and the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Start {
    /// From when on it counts.
    pub stamp: Tick,
    pub units: u64,
    /// What the log says of it.
    pub state: u64,
    /// The ticket under which whoever took it knows it.
    pub id: u64,
    /// Is it in the ledger?
    pub is_logged: bool,
}

/// What a life of some cells leaves to the next.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    /// What still counts, or will, in the order of the stamps.
    pub starts: Vec<Start>,
    /// There may be older ones that count, but no longer than what started at this time: they are not known any more.
    pub unknown: Option<Tick>,
    /// Tickets, or fences, go on from here.
    pub end: u64,
    /// Where units are only counted, what they are known by.
    pub era: u64,
    /// What else a bucket leaves.
    pub rest: Rest,
    /// Who holds a lease.
    pub holds: Vec<leases::Hold>,
}

/// What a bucket leaves to the next life beside its starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rest {
    /// By how much the starts are more than what counts: this part of a unit, of so many. It belongs to the first.
    pub spare: (u64, u64),
    /// No start was admitted with a later stamp.
    pub last: Tick,
    /// How much was ever given back.
    pub returned: u64,
    /// Until when it recovers from what it took over from another bucket, in its own parts.
    pub carried: i128,
}

impl History {
    /// Lets what is unknown count, as far as a limit of so many units may be asked about it: later than it was started,
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
