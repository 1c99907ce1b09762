//! The binary `workglow-limit`.

use std::process::ExitCode;

fn main() -> ExitCode {
    workglow_limit_cli::run(std::env::args_os())
}
