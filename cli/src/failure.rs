//! What is said, and with which exit code, where a command cannot do what it was asked to.

use crate::context::Outcome;
use crate::{json, place};
use std::io::{self, Write};
use workglow_limit::Error;

/// The exit codes, which are promised: see [`EXIT_CODES`].
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

/// The same for people.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    done; of peek: a start would be admitted
  1    the store failed: it is not there, cannot be reached, read or written, or is damaged
  2    usage: an argument, a policy, an address or a file of limits is wrong
  3    no limit of that name
  4    peek: a start would be denied
  5    verify, doctor: something is not in order
  6    not confirmed: nothing was changed
  130  interrupted (Ctrl-C)";

impl Outcome {
    /// Its exit code.
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

/// Why a command could not do what it was asked to.
#[derive(Debug)]
pub struct Failure {
    pub exit: Exit,
    /// Its name in JSON: that of the core's error, or `usage`, `output`.
    pub code: &'static str,
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// Nobody reads any more what is printed: nothing is said, and it is no error.
    pub is_quiet: bool,
}

impl Failure {
    fn new(exit: Exit, code: &'static str, message: impl Into<String>) -> Failure {
        Failure { exit, code, message: message.into(), hint: None, is_quiet: false }
    }

    /// Something was asked that makes no sense.
    pub fn usage(message: impl Into<String>) -> Failure {
        Self::new(Exit::Usage, "usage", message)
    }

    /// The machine would not do it: a port that is taken, a file that cannot be written.
    pub fn system(message: impl Into<String>) -> Failure {
        Self::new(Exit::Store, "system", message)
    }

    /// Says what to do.
    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// What the core says of the store at this address, with what to do about it.
    pub fn of_store(error: Error, url: &str) -> Failure {
        let hint = place::hint(&error, url);
        let failure = Failure::from(error);
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }

    /// Says it on standard error.
    pub fn tell(&self, json: bool) {
        if self.is_quiet {
            return;
        }
        // Who does not read that hears of it by the exit code.
        let _ = match (json, &self.hint) {
            (true, _) => writeln!(io::stderr(), "{}", self.to_json()),
            (false, Some(hint)) => writeln!(io::stderr(), "error: {}\n  {hint}", self.message),
            (false, None) => writeln!(io::stderr(), "error: {}", self.message),
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
    /// Of what is printed.
    fn from(error: io::Error) -> Failure {
        let is_quiet = error.kind() == io::ErrorKind::BrokenPipe;
        let exit = if is_quiet { Exit::Done } else { Exit::Store };
        Failure { is_quiet, ..Failure::new(exit, "output", format!("writing the answer: {error}")) }
    }
}

/// How many names an error lists.
const MOST_NAMES: usize = 10;

/// No limit has this name, but others have.
pub fn unknown(name: &str, known: &[String]) -> Failure {
    let failure = Failure::new(Exit::Unknown, "unknown_limit", format!("no limit named \"{name}\" is declared"));
    let likeness = |known: &&String| (strsim::jaro_winkler(&name.to_lowercase(), &known.to_lowercase()) * 1e6) as u64;
    match known.iter().max_by_key(likeness) {
        None => failure.hint("this store knows no limit yet: a program declares one, or the command load"),
        Some(nearest) if likeness(&nearest) > 750_000 => failure.hint(format!("did you mean \"{nearest}\"?")),
        Some(_) => {
            let shown = known.iter().take(MOST_NAMES).map(String::as_str).collect::<Vec<_>>().join(", ");
            let more = known.len().saturating_sub(MOST_NAMES);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            failure.hint(format!("this store knows {shown}{more}"))
        }
    }
}
