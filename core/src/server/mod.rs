//! Limits on a server that machines share. The server decides, by scripts: one call, one answer, by the server's clock.
//!
//! What a process has of such a limit is its policy, what it counted, and who waits. It learns of another policy when it
//! asks by one that does not hold any more.
#![cfg_attr(not(any(feature = "redis", feature = "postgres")), allow(dead_code, reason = "there is no server to ask"))]

mod doctor;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
pub(crate) mod site;

pub use doctor::{Finding, Severity, doctor};

#[cfg(feature = "postgres")]
pub use postgres::postgres_schema;

use crate::error::{Error, Result};
use crate::policy::{Policy, Shape};
use crate::state::Hash;
use crate::time::Tick;
use std::sync::Arc;
use std::time::Duration;

/// The server at an address, of which nothing is asked yet.
pub(crate) fn at(url: &str) -> Result<Arc<dyn Engine>> {
    let server: Result<Arc<dyn Engine>, String> = match url.split_once(':') {
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", _)) => postgres::Postgres::new(url).map(|server| Arc::new(server) as _),
        #[cfg(feature = "redis")]
        Some(_) => redis::Redis::new(url).map(|server| Arc::new(server) as _),
        _ => Err("this build knows no such servers".into()),
    };
    server.map_err(|reason| Error::InvalidUrl { url: without_password(url), reason })
}

/// An address as people may see it: a password stands before the host, or in the query of a socket's.
pub(crate) fn without_password(url: &str) -> String {
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let is_secret = |field: &&str| field.starts_with("pass=") || field.starts_with("password=");
    let fields = query.split('&').filter(|field| !field.is_empty() && !is_secret(field));
    let shown =
        fields.enumerate().fold(place.to_owned(), |url, (i, field)| url + if i == 0 { "?" } else { "&" } + field);
    match (shown.split_once("://"), shown.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}"),
        _ => shown,
    }
}

/// The Unix time of tick 0 of a server's clock, in microseconds: the beginning of 2024.
pub(crate) const EPOCH: u64 = 1_704_067_200_000_000;

/// What is asked of a server.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub op: &'static str,
    /// The limit's name, and the key's hash; none: all of the limit.
    pub limit: &'a str,
    pub key: Option<Hash>,
    /// When it was made, as the caller knows; 0: it does not.
    pub made: Tick,
    /// The policy that the caller knows.
    pub policy: &'a Policy,
    /// The time, where a test makes it.
    pub now: Option<Tick>,
    /// The Unix time of tick 0, in microseconds.
    pub phase: i64,
    pub arguments: &'a [i64],
}

/// What a server says is declared under a name.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    /// The text of what programs declare, of one policy or of a composite's.
    pub policy: Option<String>,
    pub composite: Option<String>,
    /// The text of what an operator put above it.
    pub overriding: Option<String>,
    /// When it was made.
    pub made: Option<Tick>,
    /// Of the key that was asked about, if it has a policy of its own: that, a line end, and the key.
    pub key: Option<String>,
}

/// What is to be noted under a name. Without a policy: that there is none any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Note {
    /// What programs declare.
    Policy(Option<Policy>),
    /// The text of a composite's policies.
    Composite(Option<String>),
    /// What an operator puts above it.
    Override(Option<Policy>),
    /// And above that for a single key: its hash, and its text.
    Key(Hash, String, Option<Policy>),
}

/// A policy for the scripts: what they check that it still holds, and what they need to know of it.
#[derive(Debug)]
pub(crate) struct Terms {
    pub family: Family,
    /// Below 2^52.
    pub version: u64,
    pub numbers: Vec<i64>,
}

/// Which script decides.
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

/// The most that a script's numbers can be: they are doubles.
pub(crate) const MOST: u64 = (1 << 53) - 1;

/// A number for a script; what is more than it knows is endless there, which is -1.
pub(crate) fn number(n: u64) -> i64 {
    if n <= MOST { n as i64 } else { -1 }
}

/// Into how many slices a window is cut whose starts are too many to be kept one by one.
const SLICES: u64 = 8_192;

/// A checksum of a policy, by which a server knows which one a caller means.
pub(crate) fn version(policy: &Policy) -> u64 {
    crate::state::policy_sum(policy.to_words()) >> 12
}

impl Terms {
    pub fn of(policy: &Policy, phase: i64) -> Terms {
        let (family, numbers) = match &policy.0 {
            Shape::Bucket(bucket) => {
                let (n, p) = bucket.in_lowest_terms();
                let numbers = [n, p / n, p % n, bucket.size, u64::from(bucket.is_leaky)];
                (Family::Bucket, numbers.map(number).to_vec())
            }
            Shape::Counter { window, is_smooth } => {
                let numbers = [number(window.limit), number(window.length), i64::from(*is_smooth), phase];
                (Family::Window, numbers.to_vec())
            }
            Shape::Concurrency { max, .. } => (Family::Leases, vec![number(*max)]),
            _ => (Family::Log, log_numbers(policy)),
        };
        Terms { family, version: version(policy), numbers }
    }
}

/// What a log is asked by.
fn log_numbers(policy: &Policy) -> Vec<i64> {
    let slice = if policy.is_sliced() { policy.window().length.div_ceil(SLICES) } else { 0 };
    let interval = match &policy.0 {
        // Without a branch, as the compiler would ask this before it asks which shape it is, and Valgrind complain.
        Shape::EvenlySpaced(spacing) => spacing.interval * u64::from(spacing.is_adaptive),
        _ => 0,
    };
    let windows = policy.windows().iter().flat_map(|window| [window.limit, window.length]);
    [slice, interval].into_iter().chain(windows).map(number).collect()
}

/// A server, as a store uses it.
pub(crate) trait Engine: std::fmt::Debug + Send + Sync {
    /// Asks a script. `None`: by a policy that does not hold any more, and nothing has changed.
    ///
    /// # Errors
    /// A store error; whether anything has changed is not known then, but no more started than may.
    fn call(&self, call: &Call, patience: Duration) -> Result<Option<Vec<i64>>>;

    /// Does this policy hold, for a key or for the limit?
    fn is_held(&self, limit: &str, key: Option<Hash>, policy: &Policy, patience: Duration) -> Result<bool>;

    /// The server's time.
    fn time(&self, patience: Duration) -> Result<Tick>;

    /// For how long machines may still start what they were granted of a limit, by rules that do not hold any more; and for how long
    /// they may go by what they were told, denials included, which is no shorter.
    fn out(&self, limit: &str, patience: Duration) -> Result<[Duration; 2]>;

    /// What is declared under a name, and for one of its keys.
    fn row(&self, name: &str, key: Option<Hash>, patience: Duration) -> Result<Row>;

    /// Notes something under a name, and lets the rest be. Answers when the limit was made. `now`: where a test makes the time.
    fn note(&self, name: &str, notes: &[Note], now: Option<Tick>, patience: Duration) -> Result<Tick>;

    /// Takes away what is declared under a name, and for its keys. What was started still counts.
    fn forget(&self, name: &str, patience: Duration) -> Result<()>;

    /// All names that are declared.
    fn names(&self, patience: Duration) -> Result<Vec<String>>;

    /// What of its settings endangers limits.
    fn examine(&self, patience: Duration) -> Result<Vec<Finding>>;
}
