//! Rare work on cells, for the holder of the structure lock: limits come and go, keys are rewritten, moved to another
//! table or forgotten, and space is made.
//!
//! Knows no database. Called by `counts`, `ledger`, `names`, `writer` and `limit`.

pub(super) mod keyed;
pub(super) mod limits;
pub(super) mod replace;
pub(super) mod rewrite;
pub(super) mod space;
pub(super) mod take_back;
