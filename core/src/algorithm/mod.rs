//! The algorithms: small state machines over a few 64-bit atomic cells.
//!
//! They know neither where their cells live (the heap, a mapped file) nor what time it is (it is handed in), and they
//! do no I/O. Zeroed cells are a fresh limiter, so that nobody has to initialise anything.

use crate::time::Tick;

#[cfg(not(model))]
pub(crate) mod cells;
pub(crate) mod log;
pub(crate) mod slices;
pub(crate) mod slots;

/// These cells are closed, or have another life by now: look the key up again and ask there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sealed;

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
