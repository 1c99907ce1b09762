//! The algorithms: small state machines over a few 64-bit atomic cells.
//!
//! They know neither where their cells live (the heap, a mapped file) nor what time it is (it is handed in), and they
//! do no I/O. Zeroed cells are a fresh limiter, so that nobody has to initialise anything.

pub(crate) mod log;
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) mod slices;
pub(crate) mod slots;

use crate::time::Tick;

/// The table that owns these cells is being replaced: look the key up again and ask there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sealed;

/// A start that is carried over from cells that were sealed into others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Start {
    /// From when on it counts.
    pub stamp: Tick,
    pub units: u64,
    pub state: u64,
    pub id: u64,
}
