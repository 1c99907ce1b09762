//! One limit, shared by every process and language on the machine, and never exceeded.
//!
//! ```
//! use std::time::Duration;
//! use workglow_limit::{Limiter, RateLimiter, Store};
//!
//! # let dir = std::env::temp_dir().join(format!("workglow-limit-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&dir).unwrap();
//! # let url = format!("sqlite:{}/limits.db", dir.display());
//! // Every process that opens this name in this store shares the limit: 100 starts in any rolling minute.
//! let store = Store::new(&url)?; // "sqlite:limits.db", or "memory:" for one process
//! let limiter = RateLimiter::new(&store, "openai", 100, Duration::from_secs(60))?;
//!
//! match limiter.try_acquire("tenant-7", 1)? {
//!     Some(permit) => {
//!         // … call the API …
//!         permit.complete()?; // or drop it
//!     }
//!     None => println!("not now: {:?}", limiter.peek("tenant-7", 1)?.retry_after),
//! }
//! # std::fs::remove_dir_all(dir).unwrap();
//! # Ok::<(), workglow_limit::Error>(())
//! ```
//!
//! A [`Store`] holds limits, a [`Limiter`] decides, a [`Decision`] is the full reply, and a [`Permit`] is the proof of
//! an admitted start. Decisions are lock-free and take tens of nanoseconds, also between processes.

#[cfg(not(target_os = "linux"))]
compile_error!("workglow-limit supports only Linux so far");

// The model checker (`--cfg model`) builds only the algorithms and what they need.
#[cfg_attr(model, allow(dead_code))]
mod algorithm;
#[cfg_attr(model, allow(dead_code, unused_imports))]
mod atomic;
#[cfg_attr(model, allow(dead_code))]
mod error;
pub mod fault;
#[cfg_attr(model, allow(dead_code))]
mod time;

#[cfg(not(model))]
mod address;
#[cfg(not(model))]
mod damage;
#[cfg(not(model))]
mod decision;
#[cfg(not(model))]
mod fork;
#[cfg(not(model))]
mod hash;
#[cfg(not(model))]
mod hooks;
#[cfg(not(model))]
mod limiter;
#[cfg(not(model))]
mod metrics;
#[cfg(not(model))]
mod observe;
#[cfg(not(model))]
mod onlooker;
#[cfg(not(model))]
mod os;
#[cfg(not(model))]
mod permit;
#[cfg(not(model))]
mod policy;
#[cfg(not(model))]
mod server;
#[cfg(not(model))]
mod snapshot;
#[cfg(not(model))]
mod state;
#[cfg(not(model))]
mod stats;
#[cfg(not(model))]
mod store;
#[cfg(all(not(model), feature = "tower"))]
pub mod tower;
#[cfg(not(model))]
mod waiting;

pub use error::{Cause, Error, Result};
pub use time::{ManualClock, duration_from_secs, from_unix_ns, unix_ns};

#[cfg(all(not(model), feature = "postgres"))]
pub use server::postgres_schema;
#[cfg(not(model))]
pub use {
    decision::Decision,
    fork::generation as fork_generation,
    hooks::{Event, Happening, Hook, HookId},
    limiter::{
        Acquiring, Attempt, Begun, Claim, CompositeLimiter, ConcurrencyLimiter, Custom, CustomLimiter, DelayLimiter,
        End, EvenlySpacedRateLimiter, FixedWindowLimiter, Joined, LeakyBucketLimiter, Limiter, Line, NullLimiter,
        Outcome, Permit, Places, Pool, Presented, RateLimiter, Reserved, Scheduler, Seat, SlidingWindowCounterLimiter,
        Step, Terms, TokenBucketLimiter, Turn, Verdict, Waiter, WaiterId, acquire,
    },
    metrics::{MetricsFormat, MetricsOptions},
    observe::Observer,
    onlooker::Onlooker,
    permit::RawPermit,
    policy::{Backoff, Jitter, LONGEST_NAME, MOST_WINDOWS, Policy, parse_all as parse_policies, parse_time},
    server::{Finding, Severity, finish_calls},
    snapshot::{
        GrantSnapshot, KeySnapshot, LimitSnapshot, Minute, NEAR, ProcessSnapshot, Snapshot, Usage, WAIT_BOUNDS,
    },
    state::{Durability, OnError, Problem, Store, StoreOptions, doctor},
    stats::Stats,
    waiting::MayWait,
};
