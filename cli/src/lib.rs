//! The command `workglow-limit`. It is one program in every package: a binary of its own, and the same function called by the wheel's
//! console script and by npm's `bin`.

mod args;
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
use workglow_limit::MayWait;

/// Runs the command with these arguments, the first of which is the program's name.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    ExitCode::from(args::run(args))
}

/// The same within the program of an interpreter, which does nothing else: the exit code that it is to end with.
pub fn run_within(args: impl IntoIterator<Item = OsString>) -> u8 {
    // The interpreter's own handlers would wait for it to go on.
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: a zeroed `sigaction` is a valid place for the answer.
        let mut was: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: `was` is a valid place; the default action runs no code of ours.
        unsafe {
            libc::sigaction(signal, std::ptr::null(), &mut was);
            // What is ignored (`nohup`) stays so.
            if was.sa_sigaction != libc::SIG_IGN {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }
    // Its bindings have said that calls must not wait for long.
    MayWait::UntilTimeout.set_default();
    args::run(args)
}
