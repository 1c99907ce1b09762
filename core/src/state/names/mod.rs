//! What names mean, and how that changes: declarations, overrides, those on a server, and those that limiters of this
//! process will make.
//!
//! Everything here is a session's. Called by `survey`, `limit`, the store and the declarations by name above it.

pub(super) mod declare;
pub(super) mod follow;
pub(super) mod knowing;
pub(super) mod registry;
