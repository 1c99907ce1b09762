//! The command `workglow-limit`, for the wheel's console script.

use pyo3::prelude::*;
use std::ffi::OsString;

/// Runs the command and returns its exit code. The first argument is the program's name. Ctrl-C ends the process from then on, so
/// nothing else should run in it.
#[pyfunction]
pub fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| workglow_limit_cli::run_within(arguments))
}
