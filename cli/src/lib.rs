//! The command `workglow-limit`. Every package has the same program: as a binary, or called by the wheel's console script and by npm's
//! `bin`.

mod args;
mod charges;
mod commands;
mod context;
mod differences;
mod failure;
pub mod json;
mod names;
mod picture;
mod place;
mod plot;
mod serve;
mod simulate;
mod text;
mod top;

use std::ffi::OsString;
use std::process::ExitCode;
use workglow_limit::embed::MayWait;

/// Runs the command. The first argument is the program's name.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    ExitCode::from(args::run(args))
}

/// Runs the command in the process of an interpreter, and returns the exit code with which the process has to end.
pub fn run_within(args: impl IntoIterator<Item = OsString>) -> u8 {
    // The interpreter's handlers would not run before this function returns.
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: a zeroed `sigaction` is valid.
        let mut was: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: `was` is a valid pointer; the default action runs no code of this program.
        unsafe {
            libc::sigaction(signal, std::ptr::null(), &mut was);
            // An ignored signal (`nohup`) stays ignored.
            if was.sa_sigaction != libc::SIG_IGN {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }
    // The bindings have set a shorter wait, for event loops.
    MayWait::UntilTimeout.set_default();
    args::run(args)
}
