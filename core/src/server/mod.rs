//! Limits on a server that machines share. The server decides, in scripts: one call, one answer, by the server's clock.
//!
//! A process keeps the policy of such a limit, its counters and its waiters. It learns of another policy when it makes
//! a call under one that no longer applies.
#![cfg_attr(not(any(feature = "redis", feature = "postgres")), allow(dead_code, reason = "there is no server to ask"))]

pub(crate) mod crew;
pub(crate) mod denials;
mod doctor;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod link;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod pipe;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
pub(crate) mod site;
pub(crate) mod states;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod stream;
pub(crate) mod survey;
pub(crate) mod witness;

pub use crew::finish_calls;
pub use doctor::{Finding, Severity};

#[cfg(feature = "postgres")]
pub use postgres::postgres_schema;

use crate::address::without_password;
use crate::error::{Error, Result};
use crate::fault;
use crate::hash::{Hash, sum};
use crate::policy::{Policy, Shape};
use crate::time::Tick;
use crew::Crew;
use std::sync::Arc;
use std::time::Duration;
use survey::{Found, Question};
use witness::Word;

/// The server at an address. No request is sent yet.
pub(crate) fn at(url: &str) -> Result<Arc<dyn Engine>> {
    let server: Result<Arc<dyn Engine>, String> = match url.split_once(':') {
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", _)) => postgres::Postgres::new(url).map(|server| Arc::new(server) as _),
        #[cfg(feature = "redis")]
        Some(_) => redis::Redis::new(url).map(|server| Arc::new(server) as _),
        _ => Err("this build does not support such servers".into()),
    };
    server.map_err(|reason| Error::InvalidUrl { url: without_password(url), reason })
}

/// The Unix time of tick 0 of a server's clock, in microseconds: the beginning of 2024.
pub(crate) const EPOCH: u64 = 1_704_067_200_000_000;

/// How long a lease without an end of its own holds without a renewal. A process that dies on another machine keeps its units for this long. A
/// process that is cut off from the server for longer has lost them.
const HOLDS: Duration = Duration::from_secs(30);

/// Returns how long such a lease holds.
pub(crate) fn renewed_lease() -> Duration {
    fault::lease_ms().map_or(HOLDS, Duration::from_millis)
}

/// A call to a server.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub op: &'static str,
    /// The limit's name and the key's hash; without a hash, the whole limit.
    pub limit: &'a str,
    pub key: Option<Hash>,
    /// The limit's creation time, as far as the caller knows it; 0 if it does not.
    pub made: Tick,
    /// The policy that the caller knows.
    pub policy: &'a Policy,
    /// What this process's clock says about the server's.
    pub word: Option<Word>,
    /// The time, if a test sets it.
    pub now: Option<Tick>,
    /// The Unix time of tick 0, in microseconds.
    pub phase: i64,
    pub arguments: &'a [i64],
}

/// The declarations under a name on a server.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    /// The texts of [`RowChange::Policy`] and [`RowChange::Composite`].
    pub policy: Option<String>,
    pub composite: Option<String>,
    /// The text of the operator's policy above it. A second line says what else put it there.
    pub overriding: Option<String>,
    /// The creation time.
    pub made: Option<Tick>,
    /// For the key in question, if it has its own policy: the policy, a line feed, and the key.
    pub key: Option<String>,
}

/// A change to store under a name. Without a policy, it removes the stored one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RowChange {
    /// The declared policy, and the limit's name, unless the row has that name.
    Policy(Option<Policy>, Option<String>),
    /// The text of a composite's policies, or of another place (see `places.rs`).
    Composite(Option<String>),
    /// The operator's policy above it; or what was learned, and from where. An operator's is not replaced by that, nor removed.
    Override(Option<Policy>, Option<Arc<str>>),
    /// The operator's policy for a single key: the key's hash and text, and the policy.
    Key(Hash, String, Option<Policy>),
}

/// A policy as the scripts need it: the version by which they check that it still applies, and its numbers.
#[derive(Debug)]
pub(crate) struct Terms {
    pub family: Family,
    /// Below 2^52.
    pub version: u64,
    pub numbers: Vec<i64>,
}

/// The script that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// Starts, one by one or in slices.
    Log,
    /// Buckets.
    Bucket,
    /// Windows of the clock.
    Window,
    /// Leases.
    Leases,
}

impl Family {
    /// Its name in the names of states and in calls of a survey.
    pub fn letter(self) -> &'static str {
        match self {
            Family::Log => "l",
            Family::Bucket => "b",
            Family::Window => "w",
            Family::Leases => "c",
        }
    }
}

/// The largest number of a script, whose numbers are doubles.
pub(crate) const MAX: u64 = (1 << 53) - 1;

/// A number for a script. Larger numbers count as infinite there, which is -1.
pub(crate) fn number(n: u64) -> i64 {
    if n <= MAX { n as i64 } else { -1 }
}

/// The number of slices of a window whose starts are too many to be stored individually.
const SLICES: u64 = 8_192;

/// The error of a caller whose time is over before all states are written under another policy.
#[cfg(any(feature = "postgres", feature = "redis"))]
fn is_moving_keys(name: &str, url: &str, began: std::time::Instant) -> Error {
    let doing = format!("moving the keys of \"{name}\" to another policy on {url}");
    let (reason, waited_ms) = ("the server was busy with that".into(), began.elapsed().as_millis() as u64);
    Error::StoreTimeout { doing, reason, waited_ms }
}

/// A checksum of a policy, by which a server recognises the policy that a caller means.
pub(crate) fn version(policy: &Policy) -> u64 {
    sum(policy.to_words()) >> 12
}

impl Family {
    pub fn of(policy: &Policy) -> Family {
        match &policy.0 {
            Shape::Bucket(_) => Family::Bucket,
            Shape::Counter { .. } => Family::Window,
            Shape::Concurrency { .. } => Family::Leases,
            _ => Family::Log,
        }
    }
}

impl Terms {
    pub fn of(policy: &Policy, phase: i64) -> Terms {
        let numbers = match &policy.0 {
            Shape::Bucket(bucket) => {
                let (n, p) = bucket.in_lowest_terms();
                [n, p / n, p % n, bucket.size, u64::from(bucket.is_leaky)].map(number).to_vec()
            }
            Shape::Counter { window, is_smooth } => {
                vec![number(window.limit), number(window.length), i64::from(*is_smooth), phase]
            }
            Shape::Concurrency { max, cooldown: 0, .. } => vec![number(*max)],
            Shape::Concurrency { max, cooldown, .. } => vec![number(*max), number(*cooldown)],
            _ => log_numbers(policy),
        };
        Terms { family: Family::of(policy), version: version(policy), numbers }
    }

    /// The numbers, as a server keeps them.
    pub fn text(&self) -> String {
        self.numbers.iter().map(i64::to_string).collect::<Vec<_>>().join(" ")
    }
}

/// The numbers of a log's policy.
fn log_numbers(policy: &Policy) -> Vec<i64> {
    let slice = if policy.is_sliced() { policy.window().length.div_ceil(SLICES) } else { 0 };
    let interval = match &policy.0 {
        // Without a branch: the compiler would check this before the shape, and Valgrind would complain.
        Shape::EvenlySpaced(spacing) => spacing.interval * u64::from(spacing.is_adaptive),
        _ => 0,
    };
    let windows = policy.windows().iter().flat_map(|window| [window.limit, window.length]);
    [slice, interval].into_iter().chain(windows).map(number).collect()
}

/// The result of storing changes.
pub(crate) struct Noted {
    /// When the limit was created.
    pub made: Tick,
    /// Whether another policy has applied before, to the limit or a changed key. Machines may still start under it.
    pub has_earlier: bool,
}

/// A server, as used by a store.
pub(crate) trait Engine: std::fmt::Debug + Send + Sync {
    /// Where its limits are, without the login: two addresses that may lead to different limits never share this.
    fn place(&self) -> String;

    /// The threads that wait for it where callers must not.
    fn crew(&self) -> &Arc<Crew>;

    /// Closes the connections of this process. The next request opens one.
    fn disconnect(&self);

    /// Calls a script. Returns the server's clock, and the answer. `None` if the policy no longer applies; nothing has changed then.
    ///
    /// # Errors
    /// A store error. It is then unknown whether anything has changed, but no more has started than allowed.
    fn call(&self, call: &Call, patience: Duration) -> Result<Option<(Tick, Vec<i64>)>>;

    /// Returns whether this policy applies, to a key or to the limit.
    fn is_held(&self, limit: &str, key: Option<Hash>, policy: &Policy, patience: Duration) -> Result<bool>;

    /// The server's time.
    fn time(&self, patience: Duration) -> Result<Tick>;

    /// The remaining time in which machines may start units of a limit that were granted under rules that no longer
    /// apply; and the time in which they may rely on earlier answers, including denials. The second is never shorter.
    fn out(&self, limit: &str, patience: Duration) -> Result<[Duration; 2]>;

    /// The declarations under a name, and of one of its keys.
    fn row(&self, name: &str, key: Option<Hash>, patience: Duration) -> Result<Row>;

    /// Stores changes under a name, and leaves the rest as it is. `now`: the time, if a test sets it.
    fn note(&self, name: &str, notes: &[RowChange], now: Option<Tick>, patience: Duration) -> Result<Noted>;

    /// Removes the declarations under a name and of its keys. Earlier starts still count.
    fn forget(&self, name: &str, patience: Duration) -> Result<()>;

    /// All declared names.
    fn names(&self, patience: Duration) -> Result<Vec<String>>;

    /// What is in use of many limits, in the order of the questions. `now`: the time, if a test sets it. The work for each
    /// limit is bounded, and all of them are one request to each server.
    fn survey(&self, questions: &[Question], now: Option<Tick>, patience: Duration) -> Result<Vec<Found>>;

    /// Checks the server's settings.
    fn examine(&self, patience: Duration) -> Result<Vec<Finding>>;
}
