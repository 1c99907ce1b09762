//! What names mean, and how that changes: declarations, overrides, those on a server, and those that limiters of this
//! process will make.
//!
//! All of it is methods of a session. `survey`, `limit` and the store may call it, and so may the declarations by name
//! above the limiters.

pub(super) mod declare;
pub(super) mod follow;
pub(super) mod knowing;
pub(super) mod learned;
pub(super) mod places;
pub(super) mod registry;
