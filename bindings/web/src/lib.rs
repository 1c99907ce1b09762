//! Limits in one WebAssembly instance: the algorithms and the policies of the core, over cells in ordinary memory.
//!
//! Nothing here waits, reads a clock or talks to anybody: JavaScript passes the time in, and calls from one thread. So each
//! call is indivisible, and a limit of several parts looks at all of them before it takes from any.
//!
//! The files that this crate shares with the core have no other dependency than the modules of this file.
#![allow(dead_code, unused_imports, reason = "what is shared with the core has more than is needed here")]

use workglow_limit_algorithms::{self as algorithm, atomic};

mod abi;
mod holds;
mod limits;
mod part;
mod timed;

#[path = "../../../core/src/state/rare/carry_over.rs"]
mod carry_over;
#[path = "../../../core/src/error.rs"]
mod error;
#[path = "../../../core/src/limiter/timed/backoff.rs"]
mod level;
#[path = "../../../core/src/policy/mod.rs"]
mod policy;
#[path = "../../../core/src/state/rare/take_back.rs"]
mod take_back;
#[path = "../../../core/src/time/ticks.rs"]
mod time;

/// Starts that charge each part of a limit differently: there are none here.
mod charges {
    pub const fn may_be_joint(_key: &str) -> bool {
        false
    }

    pub const fn is_joint(_key: &str) -> bool {
        false
    }
}

pub use error::{Cause, Error, Result};
pub use policy::Policy;

/// The time of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    /// The time, rounded both ways: the clocks of browsers are coarse.
    pub now: algorithm::time::Now,
    /// The Unix time of tick 0 in µs, wrapping.
    pub phase: u64,
}
