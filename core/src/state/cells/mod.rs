//! What the words mean: a home, its limits, their tables, the index of their keys, and the cells of each key.
//!
//! Decisions are made here, without a lock. Called by everything above. The work that needs the structure lock is in
//! `rare`; this wing only has its token, `locked`.

pub(super) mod block;
pub(super) mod home;
pub(super) mod index;
pub(super) mod layout;
pub(super) mod locked;
pub(super) mod places;
pub(super) mod table;
