//! Errors, each with a stable number that C and the bindings share.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error. A denial is not an error: it is a [`Decision`](crate::Decision).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A parameter is outside its range. Nothing was created or changed.
    InvalidArgument {
        /// The parameter's name, as in the policy (`max_executions`, `window`, `weight`, `key`, …).
        parameter: &'static str,
        /// The given value.
        value: String,
        /// The values that are accepted.
        expected: String,
    },
    /// The requested weight is more than the limit can ever grant at once.
    WeightExceedsCapacity {
        /// The limit's name.
        limit: String,
        /// The requested weight.
        weight: u64,
        /// The heaviest start that the limit admits.
        capacity: u64,
    },
    /// The store's address cannot be parsed.
    InvalidUrl {
        /// The given address.
        url: String,
        /// The problem, and the accepted forms.
        reason: String,
    },
    /// No policy is declared under this name in this store.
    UnknownLimit {
        /// The requested name.
        name: String,
        /// The names that the store has.
        known: Vec<String>,
    },
    /// The name is already declared as another kind of limiter.
    KindMismatch {
        /// The limit's name.
        name: String,
        /// The kind in the store.
        declared: &'static str,
        /// The requested kind.
        requested: &'static str,
    },
    /// The file at the store's path is not a store. It was not changed.
    NotAStore {
        /// The file.
        path: PathBuf,
        /// The content that was found.
        found: String,
    },
    /// The store was written by a version of this library that this version cannot read. It was not changed.
    UnsupportedVersion {
        /// The file.
        path: PathBuf,
        /// The layout version of the file.
        found: u64,
        /// The layout version that this library reads and writes.
        supported: u64,
    },
    /// The store must be on a local file system, and its directory is not.
    UnsupportedFileSystem {
        /// The directory.
        path: PathBuf,
        /// The file system's name.
        kind: &'static str,
    },
    /// The store could not be reached, read or written.
    Store {
        /// The operation that failed.
        doing: String,
        /// The error of the system, the database or the server.
        cause: Cause,
    },
    /// The store was busy for longer than its timeout, or its server did not answer in time.
    StoreTimeout {
        /// The operation that timed out.
        doing: String,
        /// What it waited for: who did not answer, or held a lock.
        reason: String,
        /// The time spent trying, in milliseconds.
        waited_ms: u64,
    },
    /// The store was closed in this process: see [`Store::close`](crate::Store::close).
    StoreClosed {
        /// The store's address.
        url: String,
    },
    /// The store's contents are invalid: another program, or the disk, changed its files.
    Damaged {
        /// The file.
        path: PathBuf,
        /// The content that was found.
        found: String,
    },
    /// The store has no capacity for another key or limit.
    StoreFull {
        /// The item that did not fit, and where.
        reason: String,
    },
    /// The permit was not issued by this limiter.
    ForeignPermit {
        /// The limiter that the permit was passed to.
        limit: String,
    },
    /// This limiter or store does not support the operation.
    Unsupported {
        /// The operation, and what does not support it.
        reason: String,
    },
    /// The lease has ended: another start may hold its units by now.
    LeaseLost {
        /// The limit's name.
        limit: String,
    },
    /// The call would have to wait, and [`MayWait::Never`](crate::embed::MayWait) forbids it. Nothing has changed.
    WouldWait,
    /// A user-defined limiter failed.
    Custom {
        /// The limiter's name.
        limit: String,
        /// The error that it reported.
        cause: Cause,
    },
}

impl Error {
    /// Returns the error's number: negative, stable, never reused. C returns it as the status.
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
            // -18 is acquire_timeout: languages that raise errors use it for a waiter that timed out. -19 is stopped
            // and -20 is too_many_waiters, which Node uses for waiters.
            Error::StoreClosed { .. } => -21,
        }
    }

    /// Returns the error's name: the same in every language, never reused.
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
            Error::StoreClosed { .. } => "store_closed",
        }
    }

    /// Returns whether the store failed, as opposed to the caller.
    pub(crate) fn is_store_failure(&self) -> bool {
        matches!(
            self,
            Error::Store { .. } | Error::StoreTimeout { .. } | Error::StoreFull { .. } | Error::Damaged { .. }
        )
    }

    pub(crate) fn invalid(parameter: &'static str, value: impl fmt::Display, expected: impl Into<String>) -> Self {
        // A message quotes the given value, but truncates a 2 KB key.
        let value = shortened(&value.to_string(), 64).into_owned();
        Error::InvalidArgument { parameter, value, expected: expected.into() }
    }

    /// The locks of a store were held by others for too long.
    pub(crate) fn busy(doing: impl Into<String>) -> Self {
        Error::StoreTimeout { doing: doing.into(), reason: "the store was busy".into(), waited_ms: 0 }
    }

    pub(crate) fn store(doing: impl Into<String>, cause: impl fmt::Display) -> Self {
        Error::Store { doing: doing.into(), cause: Cause(cause.to_string()) }
    }
}

/// The longest name or address that a message quotes in full, in characters, and the most names that it lists.
const MAX_QUOTE: usize = 256;
const MAX_NAMES: usize = 20;

/// A text, cut after this many characters.
fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

/// The names that a store knows, for a message.
fn list(names: &[String]) -> String {
    let shown: Vec<_> = names.iter().take(MAX_NAMES).map(|name| shortened(name, MAX_QUOTE)).collect();
    let more = names.len() - shown.len();
    shown.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::InvalidArgument { parameter, value, expected } => {
                write!(f, "{parameter} is {value}: expected {expected}")
            }
            Error::WeightExceedsCapacity { limit, weight, capacity } => write!(
                f,
                "weight is {weight}: limit \"{limit}\" grants at most {capacity} units at once, so this start can never be admitted"
            ),
            Error::InvalidUrl { url, reason } => {
                write!(f, "store url \"{}\": {}", shortened(url, MAX_QUOTE), shortened(reason, 2 * MAX_QUOTE))
            }
            Error::UnknownLimit { name, known } if known.is_empty() => {
                write!(f, "no limit named \"{}\" is declared: this store knows none yet", shortened(name, MAX_QUOTE))
            }
            Error::UnknownLimit { name, known } => {
                let name = shortened(name, MAX_QUOTE);
                write!(f, "no limit named \"{name}\" is declared: this store knows {}", list(known))
            }
            Error::KindMismatch { name, declared, requested } => write!(
                f,
                "limit \"{name}\" is declared as a {declared} limiter and cannot be opened as a {requested} limiter: use another name, or forget this one first"
            ),
            Error::NotAStore { path, found } => {
                write!(f, "{} is not a workglow-limit store: {found}", path.display())
            }
            Error::UnsupportedVersion { path, found, supported } => {
                write!(f, "{} has layout version {found}, and this library reads version {supported}", path.display())
            }
            Error::UnsupportedFileSystem { path, kind } => write!(
                f,
                "{} is on {kind}, which several machines can share: put the store on a local file system of this machine",
                path.display()
            ),
            Error::Store { doing, cause } => write!(f, "{doing}: {cause}"),
            Error::StoreTimeout { doing, reason, waited_ms } => write!(f, "{doing}: {reason} for {waited_ms} ms"),
            Error::StoreClosed { url } => {
                let url = shortened(url, MAX_QUOTE);
                write!(
                    f,
                    "store \"{url}\" was closed in this process: to use it again, make another store of this address"
                )
            }
            Error::Damaged { path, found } => write!(f, "{} is damaged: {found}", path.display()),
            Error::StoreFull { reason } => f.write_str(reason),
            Error::ForeignPermit { limit } => {
                write!(f, "the permit was not issued by limiter \"{limit}\"")
            }
            Error::Unsupported { reason } => f.write_str(reason),
            Error::LeaseLost { limit } => {
                write!(f, "the lease of limit \"{limit}\" has ended: another start may hold its units by now")
            }
            Error::WouldWait => f.write_str("the call would have to wait, which is not allowed here"),
            Error::Custom { limit, cause } => write!(f, "limiter \"{limit}\" failed: {cause}"),
        }
    }
}

impl std::error::Error for Error {
    /// Returns the [`Cause`], if there is one.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Store { cause, .. } | Error::Custom { cause, .. } => Some(cause),
            _ => None,
        }
    }
}

/// The error behind an [`Error`], as its text: an [`Error`] can be cloned, compared and sent to other threads, and the errors of
/// systems, databases and servers cannot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause(String);

impl Cause {
    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for Cause {
    fn from(text: String) -> Cause {
        Cause(text)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Cause {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn the_source_of_an_error_is_its_cause() {
        let store = Error::store("writing limits.db", std::io::Error::from_raw_os_error(28));
        let custom = Error::Custom { limit: "mine".into(), cause: "it failed".to_owned().into() };
        for (error, cause) in [(store, "No space left on device (os error 28)"), (custom, "it failed")] {
            let source = error.source().unwrap();
            assert_eq!(source.to_string(), cause);
            assert_eq!(source.downcast_ref::<Cause>().unwrap().as_str(), cause);
            assert!(error.to_string().ends_with(&format!(": {cause}")), "{error}");
            assert!(source.source().is_none());
        }
        assert!(Error::WouldWait.source().is_none());
    }
}
