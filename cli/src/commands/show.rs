//! To be written.

use crate::context::{Context, Outcome};
use crate::failure::Failure;

/// To be written
#[derive(Debug, clap::Args)]
pub struct Args {}

pub fn run(_args: Args, _context: &Context) -> Result<Outcome, Failure> {
    Ok(Outcome::Done)
}
