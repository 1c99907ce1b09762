//! Finds settings of a server that endanger limits.

use super::Engine;
use crate::error::Result;
use crate::state::{Store, StoreOptions};

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// Worth knowing.
    Note,
    /// Limits may answer late or not at all, or start too few.
    Warning,
    /// Limits may be exceeded, or cannot be used.
    Danger,
}

impl Severity {
    /// The name of the severity, the same in every language.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Danger => "danger",
        }
    }
}

/// A finding about a server's settings, as returned by [`doctor`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// The danger.
    pub what: String,
    /// The setting, by the server's own name.
    pub setting: String,
    /// The value. Empty if it could not be read.
    pub value: String,
    /// The recommended setting or action. Empty if there is none.
    pub instead: String,
}

impl Finding {
    pub(crate) fn new(severity: Severity, setting: &str, value: impl ToString, what: &str, instead: &str) -> Finding {
        let (what, setting, instead) = (what.to_owned(), setting.to_owned(), instead.to_owned());
        Finding { severity, what, setting, value: value.to_string(), instead }
    }
}

/// Checks the settings of a store's server and returns those that endanger limits, worst first. Empty if all is well.
/// Always empty for `memory:` and `sqlite:`, whose files [`Store::verify`] checks.
///
/// On Redis it writes a key of its own for a moment, to check that it may.
///
/// # Errors
/// [`Error::InvalidUrl`](crate::Error::InvalidUrl) as for [`Store::new`]; a store error if the server does not answer.
pub fn doctor(url: &str) -> Result<Vec<Finding>> {
    let (store, options) = (Store::new(url)?, StoreOptions::default());
    let Some(server) = store.session().server() else { return Ok(Vec::new()) };
    let mut findings = Engine::examine(&**server, options.timeout)?;
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Ok(findings)
}
