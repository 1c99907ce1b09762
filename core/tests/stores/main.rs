//! The files of a store: shared, grown, damaged, full, lost, and used by processes that are killed.
//!
//! One program, so that it is linked once; `tests/rust.py` runs each of its modules in a process of its own.

#[path = "../common/mod.rs"]
mod common;

mod behind;
mod bounded;
mod changing;
mod commits;
mod committed;
mod cooling;
mod damage;
mod database;
mod failing;
mod files;
#[cfg(feature = "fault-points")]
mod forgotten;
mod full_of_rings;
mod heads;
mod identity;
mod joint_storms;
#[cfg(feature = "fault-points")]
mod opening;
mod overtaking;
#[cfg(feature = "fault-points")]
mod pairs;
mod processes;
#[cfg(feature = "fault-points")]
mod restoring;
mod rewriting;
mod rings;
mod rings_model;
mod shares;
mod space;
mod storms;
mod surviving;
mod tenants;
mod torments;
#[cfg(feature = "fault-points")]
mod upgrade;
mod verify;
