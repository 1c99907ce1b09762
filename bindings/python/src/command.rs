//! The command `workglow-limit`, for the wheel's console script.

use pyo3::prelude::*;
use std::ffi::OsString;

/// Runs the command with these arguments, the first of which is the program's name, and gives its exit code. Ctrl-C ends the process
/// from now on: nothing else is to run in it.
#[pyfunction]
pub fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| workglow_limit_cli::run_within(arguments))
}
