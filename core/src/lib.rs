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
//!
//! # Which limiter
//!
//! All have the calls of [`Limiter`], for a key (`""` for none) and a weight. When in doubt, take the rate limit.
//! [`Store::limiter`] makes one of any kind from a text, such as `"100/1m + 5 concurrent"`.
//!
//! | limiter | never more than |
//! | --- | --- |
//! | [`RateLimiter`] | so many units in any rolling window |
//! | [`ConcurrencyLimiter`] | so many units at the same time, also with leases |
//! | [`DelayLimiter`] | one start in any interval |
//! | [`EvenlySpacedRateLimiter`] | so many starts in any window, and all of them apart |
//! | [`TokenBucketLimiter`] | a burst, and then a rate: what is not used may be saved up |
//! | [`LeakyBucketLimiter`] | an even flow, from a queue of limited length |
//! | [`FixedWindowLimiter`] | so many units per minute, hour or day of the clock: twice that across a boundary |
//! | [`SlidingWindowCounterLimiter`] | less than twice the limit in any window, in little memory |
//! | [`CompositeLimiter`] | what each of its children allows |
//! | [`FirstOfLimiter`] | what one of its alternatives allows |
//! | [`custom::CustomLimiter`] | what you write |
//! | [`NullLimiter`] | no limit, for code that needs a limiter |
//!
//! # Which call
//!
//! | call | meaning |
//! | --- | --- |
//! | [`try_acquire`](Limiter::try_acquire), [`attempt`](Limiter::attempt) | now or not at all, as a [`Permit`] that ends when it is dropped, or as a [`RawPermit`] |
//! | [`acquire`](Limiter::acquire) | wait in line, and sleep once |
//! | [`acquire_async`](trait.Limiter.html#method.acquire_async) | the same as a future of an `Arc<dyn Limiter>`, in any runtime or none |
//! | [`peek`](Limiter::peek) | what would be decided now |
//! | [`forecast`](Limiter::forecast) | when so many more starts will have begun |
//! | [`pause`](Limiter::pause) | the API answered 429: no process starts for so long |
//! | [`cancel`](Limiter::cancel), [`settle`](Limiter::settle) | the job never ran, or used another number of units |
//! | [`reserve`](Places::reserve) | a start in the future, which counts from now |
//!
//! # Which store
//!
//! | address | who shares its limits | feature |
//! | --- | --- | --- |
//! | `memory:` | the threads of one process | |
//! | `sqlite:limits.db` | all processes of the machine. They decide in mapped memory; the file keeps what must survive a reboot | |
//! | `redis://…`, `rediss://…` | all machines that use the server | `redis`, `tls` |
//! | `postgres://…` | all machines that use the server | `postgres` |
//!
//! A process may be killed at any instruction: it loses no start and blocks no other. When a store fails, its
//! [`OnError`] says whether a call returns the error, denies or admits.
//!
//! # Features
//!
//! None is on by default.
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `redis` | limits on a Redis server |
//! | `tls` | the same through TLS |
//! | `postgres` | limits on a Postgres server, and `admin::postgres_schema` |
//! | `tower` | the module `tower`: a layer that makes the requests of a service wait |
//!
//! # Where things are
//!
//! Programs that limit their own calls need the names of the root. [`custom`] is for limiters that you write, [`hooks`]
//! for calls at each denial, [`observe`] for dashboards and metrics, [`admin`] for tools of operators, and [`embed`]
//! for event loops, schedulers and bindings to other languages.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "workglow-limit runs on Linux only, so far. On a Mac or on Windows, build and run it in a Linux container, or in WSL 2."
);

use workglow_limit_algorithms::{self as algorithm, atomic};

mod address;
mod charges;
mod damage;
mod decision;
mod error;
#[cfg(feature = "fault-points")]
#[doc(hidden)]
pub mod fault;
#[cfg(not(feature = "fault-points"))]
mod fault;
mod fork;
mod hash;
pub mod hooks;
mod limiter;
mod memory;
mod metrics;
mod observer;
mod onlooker;
mod os;
mod permit;
mod policy;
mod server;
mod snapshot;
mod state;
mod stats;
mod store;
mod time;
#[cfg(feature = "tower")]
pub mod tower;
mod waiting;

pub use error::{Cause, Error, Result};
pub use time::ManualClock;

pub use {
    charges::{Charge, JointKey},
    decision::Decision,
    limiter::{
        Acquiring, Attempt, CompositeLimiter, ConcurrencyLimiter, DelayLimiter, EvenlySpacedRateLimiter,
        FirstOfLimiter, FixedWindowLimiter, LeakyBucketLimiter, Limiter, NullLimiter, Permit, Places, Presented,
        RateLimiter, Reserved, Scheduler, SlidingWindowCounterLimiter, TokenBucketLimiter,
    },
    permit::RawPermit,
    policy::{Backoff, Jitter, Policy},
    state::{Durability, OnError, Store, StoreOptions},
};

/// Limiters that you write.
pub mod custom {
    pub use crate::limiter::{Custom, CustomLimiter, End, Verdict};
}

/// What dashboards and metrics read: snapshots of a store, and the counts of its limits. Reading takes no part in
/// decisions.
pub mod observe {
    pub use crate::metrics::{MetricsFormat, MetricsOptions};
    pub use crate::observer::Observer;
    pub use crate::onlooker::Onlooker;
    pub use crate::snapshot::{
        GrantSnapshot, HeadSnapshot, HolderSnapshot, KeySnapshot, LimitSnapshot, LineSnapshot, Minute, NEAR,
        ProcessSnapshot, Snapshot, TenantSnapshot, Usage, WAIT_BOUNDS, WaitingSnapshot,
    };
    pub use crate::stats::Stats;
}

/// What the tools of operators use: checks of a store and its server, and the texts of policies.
pub mod admin {
    pub use crate::policy::{NamedPolicy, parse_all as parse_parts, parse_policies, parse_time};
    #[cfg(feature = "postgres")]
    pub use crate::server::postgres_schema;
    pub use crate::server::{Finding, Severity};
    pub use crate::state::{Problem, doctor};
}

/// What event loops, schedulers and bindings to other languages use: lines that they advance themselves, calls that must
/// not wait, and the units of other languages.
pub mod embed {
    pub use crate::charges::{line_key, own_key as plain_key};
    pub use crate::fork::generation as fork_generation;
    pub use crate::limiter::{
        Begun, Claim, Joined, Line, Outcome, Pool, Seat, Step, Terms, Turn, Waiter, WaiterId, acquire, has_custom,
        is_shared,
    };
    pub use crate::policy::{MAX_NAME_BYTES, MAX_SHARE, MAX_WINDOWS, Quota};
    pub use crate::server::finish_calls;
    pub use crate::time::{duration_from_secs, from_unix_ns, unix_ns};
    pub use crate::waiting::MayWait;
}
