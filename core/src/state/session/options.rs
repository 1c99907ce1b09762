//! The options of a store.

use crate::time::ManualClock;
use std::time::Duration;

/// The options of a store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoreOptions {
    /// How long a call may wait for a rare operation (opening, a new limit, growth) before it fails. Default 5 s.
    pub timeout: Duration,
    /// Whether missing files of the store are created. Default `true`; if not, a missing store is an error. (A server's
    /// tables are created by the first process that declares a limit.)
    pub create: bool,
    /// The mode of created files, whatever the umask. Default `0o600`; use `0o660` for services of several users.
    pub mode: u32,
    /// A clock for tests, instead of the system's.
    pub clock: Option<ManualClock>,
    /// The answer of a decision when the store fails. Default [`OnError::Raise`].
    pub on_error: OnError,
    /// How many admitted starts this machine may forget in a power cut. Default [`Durability::Budget`].
    pub durability: Durability,
    /// Whether a server may grant units in advance, which this process then starts without a request. If not, each
    /// start is a request. Default `true`; `?grants=never` in the address has the same effect as `false`.
    pub grants: bool,
    /// The size in bytes up to which this process lets the store's memory, or its lane, grow: 1 MiB to 4 GiB. Default: a
    /// quarter of the memory of the machine, or of the container if that has less. A store that is larger already works, but
    /// does not grow. What a restart has to restore is always restored.
    pub max_size: Option<u64>,
}

/// The answer of a decision when the store fails: when it is gone, full, read-only, or busy or silent for longer than
/// its timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnError {
    /// Return the error.
    #[default]
    Raise,
    /// Deny.
    Deny,
    /// Admit without counting: the job matters more than the limit.
    Admit,
}

/// How many admitted starts this machine may forget in a power cut. Forgotten starts count as used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Durability {
    /// At any time, at most 5 % of a limit, but at least one unit, is not in the database yet.
    #[default]
    Budget,
    /// Every start is in the database before the call that admits it returns. If all processes of the store choose this,
    /// nothing is forgotten, and nothing else counts as used.
    Commit,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            timeout: Duration::from_secs(5),
            create: true,
            mode: 0o600,
            clock: None,
            on_error: OnError::Raise,
            durability: Durability::Budget,
            grants: true,
            max_size: None,
        }
    }
}
