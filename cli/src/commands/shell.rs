//! To be written.

use crate::context::{Context, Outcome};
use crate::failure::Failure;

/// To be written
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {}

pub fn completions(_args: CompletionsArgs, _context: &Context) -> Result<Outcome, Failure> {
    Ok(Outcome::Done)
}

/// To be written
#[derive(Debug, clap::Args)]
pub struct ManArgs {}

pub fn man(_args: ManArgs, _context: &Context) -> Result<Outcome, Failure> {
    Ok(Outcome::Done)
}
