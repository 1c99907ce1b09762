//! `doctor`.

use crate::context::{Context, Outcome};
use crate::failure::Failure;
use workglow_limit::Severity;

/// To be written
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Something that an operator should know.
#[derive(Debug, Clone)]
pub struct Finding {
    pub severity: Severity,
    /// What it endangers.
    pub what: String,
    /// What was looked at, by the name that the system or the server has for it.
    pub setting: String,
    pub value: String,
    /// What to do. Empty: nothing.
    pub instead: String,
}

pub fn run(_args: Args, _context: &Context) -> Result<Outcome, Failure> {
    Ok(Outcome::Done)
}
