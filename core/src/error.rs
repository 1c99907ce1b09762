//! What can go wrong, each with a stable number that C and the bindings share.

use std::fmt;
use std::path::PathBuf;

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error. A denial is not one: it is a [`Decision`](crate::Decision).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A parameter is outside its range. Nothing was created or changed.
    InvalidArgument {
        /// The parameter's name, as in the policy (`max_executions`, `window`, `weight`, `key`, …).
        parameter: &'static str,
        /// The value that was given.
        value: String,
        /// What would have been accepted.
        expected: String,
    },
    /// More units were asked for at once than the limit could ever grant.
    WeightExceedsCapacity {
        /// The limit's name.
        limit: String,
        /// The weight that was asked for.
        weight: u64,
        /// The most one start may take.
        capacity: u64,
    },
    /// The store's address cannot be understood.
    InvalidUrl {
        /// The address that was given.
        url: String,
        /// What is wrong with it, and what is accepted.
        reason: String,
    },
    /// No policy is declared under this name in this store.
    UnknownLimit {
        /// The name that was asked for.
        name: String,
        /// The names that the store knows.
        known: Vec<String>,
    },
    /// The name is declared already, as another kind of limiter.
    KindMismatch {
        /// The limit's name.
        name: String,
        /// The kind that the store has.
        declared: &'static str,
        /// The kind that was asked for.
        requested: &'static str,
    },
    /// The file at the store's path is something else. It was not touched.
    NotAStore {
        /// The file.
        path: PathBuf,
        /// What was found.
        found: String,
    },
    /// The store was written by a version of this library that this one cannot read. It was not touched.
    UnsupportedVersion {
        /// The file.
        path: PathBuf,
        /// The version found there.
        found: u64,
        /// The version that this library reads and writes.
        supported: u64,
    },
    /// The store must be on a local file system, and this one is not.
    UnsupportedFileSystem {
        /// The directory.
        path: PathBuf,
        /// The file system's name.
        kind: &'static str,
    },
    /// The store could not be reached, read or written.
    Store {
        /// What was being done.
        doing: String,
        /// What the system answered.
        cause: String,
    },
    /// The store was busy for longer than its timeout.
    StoreTimeout {
        /// What was being done.
        doing: String,
        /// How long it was tried, in milliseconds.
        waited_ms: u64,
    },
    /// What is in the store makes no sense: somebody else wrote to its files, or the disk did.
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        found: String,
    },
    /// The store has no room for another key or limit.
    StoreFull {
        /// What did not fit, and into what.
        reason: String,
    },
    /// The permit was not given by this limiter.
    ForeignPermit {
        /// The limiter that was asked to end it.
        limit: String,
    },
    /// What was asked makes no sense for this limiter, or for this store.
    Unsupported {
        /// What was asked, and of what.
        reason: String,
    },
    /// The lease has ended: its units may be another start's by now.
    LeaseLost {
        /// The limit's name.
        limit: String,
    },
    /// The call would have to wait, where [`MayWait::Never`](crate::MayWait) was said. Nothing has changed.
    WouldWait,
    /// A limiter of the user's own failed.
    Custom {
        /// The limiter's name.
        limit: String,
        /// What it said.
        cause: String,
    },
}

impl Error {
    /// The error's number: negative, stable, never reused. C returns it as the status.
    pub const fn code(&self) -> i32 {
        match self {
            Error::InvalidArgument { .. } => -1,
            Error::WeightExceedsCapacity { .. } => -2,
            Error::InvalidUrl { .. } => -3,
            Error::UnknownLimit { .. } => -4,
            Error::KindMismatch { .. } => -5,
            Error::NotAStore { .. } => -6,
            Error::UnsupportedVersion { .. } => -7,
            Error::UnsupportedFileSystem { .. } => -8,
            Error::Store { .. } => -9,
            Error::StoreTimeout { .. } => -10,
            Error::StoreFull { .. } => -11,
            Error::ForeignPermit { .. } => -12,
            Error::Unsupported { .. } => -13,
            Error::LeaseLost { .. } => -14,
            Error::Custom { .. } => -15,
            Error::Damaged { .. } => -16,
            Error::WouldWait => -17,
            // -18 is acquire_timeout: languages that raise say so that a waiter's time is up.
            // -19 is stopped and -20 too_many_waiters, which Node says of those who wait.
        }
    }

    /// The error's name: the same in every language, never reused.
    pub const fn name(&self) -> &'static str {
        match self {
            Error::InvalidArgument { .. } => "invalid_argument",
            Error::WeightExceedsCapacity { .. } => "weight_exceeds_capacity",
            Error::InvalidUrl { .. } => "invalid_url",
            Error::UnknownLimit { .. } => "unknown_limit",
            Error::KindMismatch { .. } => "kind_mismatch",
            Error::NotAStore { .. } => "not_a_store",
            Error::UnsupportedVersion { .. } => "unsupported_version",
            Error::UnsupportedFileSystem { .. } => "unsupported_file_system",
            Error::Store { .. } => "store_failure",
            Error::StoreTimeout { .. } => "store_timeout",
            Error::StoreFull { .. } => "store_full",
            Error::ForeignPermit { .. } => "foreign_permit",
            Error::Unsupported { .. } => "unsupported",
            Error::LeaseLost { .. } => "lease_lost",
            Error::Custom { .. } => "custom_failure",
            Error::Damaged { .. } => "damaged",
            Error::WouldWait => "would_wait",
        }
    }

    /// Did the store fail, and not whoever asked?
    pub(crate) fn is_of_the_store(&self) -> bool {
        matches!(
            self,
            Error::Store { .. } | Error::StoreTimeout { .. } | Error::StoreFull { .. } | Error::Damaged { .. }
        )
    }

    pub(crate) fn invalid(parameter: &'static str, value: impl fmt::Display, expected: impl Into<String>) -> Self {
        let mut value = value.to_string();
        // A message quotes what it was given, but a 2 KB key need not be repeated whole.
        if let Some((end, _)) = value.char_indices().nth(64) {
            value.truncate(end);
            value.push('…');
        }
        Error::InvalidArgument { parameter, value, expected: expected.into() }
    }

    pub(crate) fn store(doing: impl Into<String>, cause: impl fmt::Display) -> Self {
        Error::Store { doing: doing.into(), cause: cause.to_string() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::InvalidArgument { parameter, value, expected } => {
                write!(f, "{parameter} is {value}: expected {expected}")
            }
            Error::WeightExceedsCapacity { limit, weight, capacity } => write!(
                f,
                "weight is {weight}: limit \"{limit}\" grants at most {capacity} units at once, so this could never start"
            ),
            Error::InvalidUrl { url, reason } => write!(f, "store url \"{url}\": {reason}"),
            Error::UnknownLimit { name, known } if known.is_empty() => {
                write!(f, "no limit named \"{name}\" is declared: this store knows none yet")
            }
            Error::UnknownLimit { name, known } => {
                write!(f, "no limit named \"{name}\" is declared: this store knows {}", known.join(", "))
            }
            Error::KindMismatch { name, declared, requested } => write!(
                f,
                "limit \"{name}\" is declared as a {declared} limiter and cannot be opened as a {requested} limiter"
            ),
            Error::NotAStore { path, found } => {
                write!(f, "{} is not a workglow-limit store: {found}", path.display())
            }
            Error::UnsupportedVersion { path, found, supported } => {
                write!(f, "{} has layout version {found}, and this library reads version {supported}", path.display())
            }
            Error::UnsupportedFileSystem { path, kind } => write!(
                f,
                "{} is on {kind}, which machines share: put the store on a local file system of this machine",
                path.display()
            ),
            Error::Store { doing, cause } => write!(f, "{doing}: {cause}"),
            Error::StoreTimeout { doing, waited_ms } => {
                write!(f, "{doing}: the store was busy for {waited_ms} ms")
            }
            Error::Damaged { path, found } => write!(f, "{} is damaged: {found}", path.display()),
            Error::StoreFull { reason } => f.write_str(reason),
            Error::ForeignPermit { limit } => {
                write!(f, "the permit was not given by limiter \"{limit}\"")
            }
            Error::Unsupported { reason } => f.write_str(reason),
            Error::LeaseLost { limit } => {
                write!(f, "the lease of limit \"{limit}\" has ended: its units may be another start's by now")
            }
            Error::WouldWait => f.write_str("the call would have to wait, which it must not here"),
            Error::Custom { limit, cause } => write!(f, "limiter \"{limit}\" failed: {cause}"),
        }
    }
}

impl std::error::Error for Error {}
