//! Rare work on cells, for the holder of the structure lock: limits come and go, keys are rewritten, moved to another
//! table or forgotten, and space is made.
//!
//! It knows no database. All wings above may call it, with the token of that lock.

pub(super) mod blocks;
pub(super) mod carry_over;
pub(super) mod growing;
pub(super) mod keyed;
pub(super) mod limits;
pub(super) mod replace;
pub(super) mod rewrite;
pub(super) mod space;
pub(super) mod take_back;
