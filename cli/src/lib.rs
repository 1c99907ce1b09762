//! The command `workglow-limit`. It is one program in every package: a binary of its own, and the same function called by the wheel's
//! console script and by npm's `bin`.

mod args;
mod commands;
mod context;
mod failure;
pub mod json;
mod names;
mod picture;
mod place;
mod serve;
mod simulate;
mod text;
mod top;

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the command with these arguments, the first of which is the program's name.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    args::run(args)
}
