//! To be written.

use std::process::ExitCode;

/// To be written.
#[derive(Debug, clap::Args)]
pub struct Args {}

pub fn run(_args: Args) -> ExitCode {
    ExitCode::SUCCESS
}
