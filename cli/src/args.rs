//! The command line's arguments, and how a command is run.

use crate::commands::{change, doctor, forecast, load, peek, shell, show, status, verify, watch};
use crate::context::{Context, Outcome};
use crate::failure::{EXIT_CODES, Exit, Failure};
use crate::json::Keys;
use crate::{plot, serve, simulate, text, top};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use workglow_limit::Store;

/// Inspect, change and simulate limits.
#[derive(Debug, Parser)]
#[command(name = "workglow-limit", bin_name = "workglow-limit", version, propagate_version = true, after_help = EXIT_CODES)]
pub struct Args {
    /// The store: sqlite:PATH, redis://HOST, postgres://HOST/DATABASE
    #[arg(
        long,
        global = true,
        help_heading = GLOBAL,
        env = "WORKGLOW_LIMIT_STORE",
        hide_env_values = true,
        value_name = "URL"
    )]
    store: Option<String>,
    /// The size up to which the store may grow, such as 512MiB; status and doctor compare with it [default: a quarter of the memory]
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "SIZE", value_parser = text::size)]
    max_size: Option<u64>,
    /// Print JSON, including errors (on standard error)
    #[arg(long, global = true, help_heading = GLOBAL)]
    json: bool,
    /// Show keys as text instead of ids; keys may be secrets
    #[arg(long, global = true, help_heading = GLOBAL)]
    show_keys: bool,
    #[command(subcommand)]
    command: Command,
}

/// The heading of the options that every command has.
const GLOBAL: &str = "Global options";

#[derive(Debug, Subcommand)]
enum Command {
    Status(status::Args),
    Show(show::Args),
    Peek(peek::Args),
    Forecast(forecast::Args),
    Top(top::Args),
    Watch(watch::Args),
    Load(load::Args),
    Override(change::OverrideArgs),
    Lift(change::LiftArgs),
    Share(change::ShareArgs),
    Pause(change::PauseArgs),
    Clear(change::ClearArgs),
    Forget(change::ForgetArgs),
    Verify(verify::Args),
    Doctor(doctor::Args),
    Plot(plot::Args),
    Simulate(simulate::Args),
    Serve(serve::Args),
    Completions(shell::CompletionsArgs),
    Man(shell::ManArgs),
}

impl Command {
    fn run(self, context: &Context) -> Result<Outcome, Failure> {
        match self {
            Command::Status(args) => status::run(args, context),
            Command::Show(args) => show::run(args, context),
            Command::Peek(args) => peek::run(args, context),
            Command::Forecast(args) => forecast::run(args, context),
            Command::Top(args) => top::run(args, context),
            Command::Watch(args) => watch::run(args, context),
            Command::Load(args) => load::run(args, context),
            Command::Override(args) => change::set_override(args, context),
            Command::Lift(args) => change::lift(args, context),
            Command::Share(args) => change::share(args, context),
            Command::Pause(args) => change::pause(args, context),
            Command::Clear(args) => change::clear(args, context),
            Command::Forget(args) => change::forget(args, context),
            Command::Verify(args) => verify::run(args, context),
            Command::Doctor(args) => doctor::run(args, context),
            Command::Plot(args) => plot::run(args, context),
            Command::Simulate(args) => simulate::run(args, context),
            Command::Serve(args) => serve::run(args, context),
            Command::Completions(args) => shell::completions(args, context),
            Command::Man(args) => shell::man(args, context),
        }
    }
}

/// The command line as clap sees it, for completions and man pages.
pub fn command() -> clap::Command {
    Args::command()
}

pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    let args: Vec<OsString> = args.into_iter().collect();
    // Errors in the arguments are printed as JSON, too.
    let json = args.iter().any(|arg| arg == "--json");
    let args = match Args::try_parse_from(args) {
        Ok(args) => args,
        Err(error) => return unparsed(&error, json),
    };
    let keys = if args.show_keys { Keys::Shown } else { Keys::Hidden };
    let context = Context::new(args.store, args.max_size, args.json, keys);
    let outcome = args.command.run(&context).and_then(|outcome| context.flush().map(|()| outcome));
    match outcome {
        Ok(outcome) => outcome.exit(),
        Err(failure) => {
            // Earlier output is flushed first. If standard output is closed, there is nothing to add.
            let _ = context.flush();
            failure.print(args.json);
            failure.exit as u8
        }
    }
}

/// Prints help, the version or an error in the arguments; returns the exit code.
fn unparsed(error: &clap::Error, json: bool) -> u8 {
    let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
    // The address of a store is an option, because most commands have other arguments.
    let given = error.get(ContextKind::InvalidArg).or_else(|| error.get(ContextKind::InvalidSubcommand));
    let store = match given {
        Some(ContextValue::String(given)) => Store::new(given).ok(),
        _ => None,
    };
    match store {
        // Without its password.
        Some(store) => Failure::usage(format!("unexpected argument '{}' found", store.url()))
            .hint(format!("a store is named by an option: --store {}", store.url()))
            .print(json),
        None if json && !is_help => Failure::usage(text).print(true),
        // A closed pipe is ignored.
        None => drop(error.print()),
    }
    if is_help { Exit::Done as u8 } else { Exit::Usage as u8 }
}
