//! The algorithms: small state machines over a few 64-bit atomic cells.
//!
//! They know neither where their cells live (the heap, a mapped file) nor what time it is (it is handed in), and they
//! do no I/O. Zeroed cells are a fresh limiter, so that nobody has to initialise anything.

pub(crate) mod log;
pub(crate) mod slots;

/// The table that owns these cells is being replaced: look the key up again and ask there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sealed;
