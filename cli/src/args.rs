//! What the command line says.

use crate::{serve, simulate};
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// Look at limits, change them, and try them.
#[derive(Debug, Parser)]
#[command(name = "workglow-limit", version, propagate_version = true)]
struct Args {
    /// The store: sqlite:PATH, redis://HOST, postgres://HOST/DATABASE.
    #[arg(long, global = true, env = "WORKGLOW_LIMIT_STORE", value_name = "URL")]
    store: Option<String>,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Simulate(simulate::Args),
    Serve(serve::Args),
}

pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = match Args::try_parse_from(args) {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    let _ = (args.store, args.json);
    match args.command {
        Command::Simulate(args) => simulate::run(args),
        Command::Serve(args) => serve::run(args),
    }
}
