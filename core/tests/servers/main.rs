//! Limits on Redis and Postgres, and the protocol by which they grant units.
//!
//! One program, so that it is linked once; `tests/rust.py` runs each of its modules in a process of its own.

#[path = "../common/mod.rs"]
mod common;

mod changes;
#[cfg(feature = "fault-points")]
mod clocks;
mod closing;
mod connections;
mod corrections;
mod denials;
mod doctor;
mod evicted;
mod fleet;
mod grant_lane;
mod grants;
mod groups;
mod leases;
mod line;
mod loops;
mod losses;
mod postgres;
mod renaming;
mod sharing;
mod silent;
mod watching;
