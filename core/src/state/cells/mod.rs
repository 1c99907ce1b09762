//! What the words mean: a home, its limits, their tables, the index of their keys, and the cells of each key.
//!
//! Decisions find their words here, without a lock. All wings above may call it, and so may the limiters. The work that
//! needs the structure lock is in `rare`; here is only its token, `locked`.

pub(super) mod begin;
pub(super) mod block;
pub(super) mod heads;
pub(super) mod home;
pub(super) mod index;
pub(super) mod layout;
pub(super) mod limit;
pub(super) mod locked;
pub(super) mod places;
pub(super) mod segment;
pub(super) mod share;
pub(super) mod table;
