//! Failures of commands: message, hint and exit code.

use crate::context::Outcome;
use crate::{json, place, text};
use std::io::{self, Write};
use workglow_limit::Error;

/// The exit codes, which are stable: see [`EXIT_CODES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    Done = 0,
    Store = 1,
    Usage = 2,
    Unknown = 3,
    Denied = 4,
    Found = 5,
    Declined = 6,
    Interrupted = 130,
}

/// The exit codes as help shows them.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    success; peek: a start would be admitted
  1    the store failed: it is missing, unreachable, unreadable, not writable or damaged
  2    usage: an argument, a policy, an address or a file of limits is invalid
  3    there is no limit of that name
  4    peek: a start would be denied
  5    verify, doctor: problems were found; simulate: a policy's bound was exceeded
  6    not confirmed: nothing was changed
  130  interrupted (Ctrl-C)";

impl Outcome {
    /// The exit code.
    pub fn exit(self) -> u8 {
        match self {
            Outcome::Done => Exit::Done as u8,
            Outcome::Denied => Exit::Denied as u8,
            Outcome::Found => Exit::Found as u8,
            Outcome::Declined => Exit::Declined as u8,
            Outcome::Interrupted => Exit::Interrupted as u8,
        }
    }
}

/// The reason why a command failed.
#[derive(Debug)]
pub struct Failure {
    pub exit: Exit,
    /// The code in JSON: the name of the core's error, or `usage`, `output` or `system`.
    pub code: &'static str,
    pub message: String,
    /// The remedy.
    pub hint: Option<String>,
    /// Standard output was closed: nothing is printed, and the exit code is 0.
    pub is_quiet: bool,
}

impl Failure {
    fn new(exit: Exit, code: &'static str, message: impl Into<String>) -> Failure {
        Failure { exit, code, message: message.into(), hint: None, is_quiet: false }
    }

    /// An invalid argument.
    pub fn usage(message: impl Into<String>) -> Failure {
        Self::new(Exit::Usage, "usage", message)
    }

    /// An error of the system: a port in use, a file that cannot be written.
    pub fn system(message: impl Into<String>) -> Failure {
        Self::new(Exit::Store, "system", message)
    }

    /// Adds a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// An error of the store at this address, with a hint if there is one.
    pub fn of_store(error: Error, url: &str) -> Failure {
        let hint = place::hint(&error, url);
        let failure = Failure::from(error);
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }

    /// Prints the failure on standard error. Messages quote names and files, so control characters are escaped.
    pub fn print(&self, json: bool) {
        if self.is_quiet {
            return;
        }
        let message = text::clean(&self.message);
        // If standard error is closed, the exit code is all that is left.
        let _ = match (json, &self.hint) {
            (true, _) => writeln!(io::stderr(), "{}", text::json(&self.to_json())),
            (false, Some(hint)) => writeln!(io::stderr(), "error: {message}\n  {}", text::clean(hint)),
            (false, None) => writeln!(io::stderr(), "error: {message}"),
        };
    }

    fn to_json(&self) -> serde_json::Value {
        json::error(self.code, &self.message, self.hint.as_deref())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let exit = match &error {
            Error::UnknownLimit { .. } => Exit::Unknown,
            Error::InvalidArgument { .. }
            | Error::WeightExceedsCapacity { .. }
            | Error::InvalidUrl { .. }
            | Error::KindMismatch { .. }
            | Error::Unsupported { .. } => Exit::Usage,
            _ => Exit::Store,
        };
        if let Error::UnknownLimit { name, known } = &error {
            return unknown(name, known);
        }
        Failure::new(exit, error.name(), error.to_string())
    }
}

impl From<io::Error> for Failure {
    /// An error of standard output.
    fn from(error: io::Error) -> Failure {
        let is_quiet = error.kind() == io::ErrorKind::BrokenPipe;
        let exit = if is_quiet { Exit::Done } else { Exit::Store };
        Failure { is_quiet, ..Failure::new(exit, "output", format!("writing the output: {error}")) }
    }
}

/// The most names that an error lists.
const MAX_NAMES: usize = 10;

/// The error for a name that no limit has; `known` are the names that exist.
pub fn unknown(name: &str, known: &[String]) -> Failure {
    let failure = Failure::new(Exit::Unknown, "unknown_limit", format!("no limit named \"{name}\" is declared"));
    let likeness = |known: &&String| (strsim::jaro_winkler(&name.to_lowercase(), &known.to_lowercase()) * 1e6) as u64;
    match known.iter().max_by_key(likeness) {
        None => failure.hint("this store has no limits yet: programs declare them, and so does the command load"),
        Some(nearest) if likeness(&nearest) > 750_000 => failure.hint(format!("did you mean \"{nearest}\"?")),
        Some(_) => {
            let shown = known.iter().take(MAX_NAMES).map(String::as_str).collect::<Vec<_>>().join(", ");
            let more = known.len().saturating_sub(MAX_NAMES);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            failure.hint(format!("the limits of this store: {shown}{more}"))
        }
    }
}
