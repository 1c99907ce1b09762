//! What of a server's settings endangers limits there.

use super::Engine;
use crate::error::Result;
use crate::state::{Store, StoreOptions};

/// How much something matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// Good to know.
    Note,
    /// Limits may answer late or not at all, or start too few.
    Warning,
    /// Limits may be exceeded, or cannot be used.
    Danger,
}

impl Severity {
    /// Its name in every language.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Danger => "danger",
        }
    }
}

/// Something of a server that those who have limits there should know, as [`doctor`] finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// What it endangers.
    pub what: String,
    /// The setting, by the server's own name.
    pub setting: String,
    /// What it is. Empty: it could not be looked at.
    pub value: String,
    /// What to set instead, or to do. Empty: nothing.
    pub instead: String,
}

impl Finding {
    pub(crate) fn new(severity: Severity, setting: &str, value: impl ToString, what: &str, instead: &str) -> Finding {
        let (what, setting, instead) = (what.to_owned(), setting.to_owned(), instead.to_owned());
        Finding { severity, what, setting, value: value.to_string(), instead }
    }
}

/// Looks at the settings of the server that a store is on, and says what there endangers limits: the worst first, nothing if all is
/// well. Always nothing for `memory:` and `sqlite:`, whose files [`Store::verify`] looks at.
///
/// On Redis it writes a key of its own for a moment, to see whether it may.
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
