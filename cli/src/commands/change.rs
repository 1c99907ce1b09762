//! To be written.

use crate::context::{Context, Outcome};
use crate::failure::Failure;

/// To be written
#[derive(Debug, clap::Args)]
pub struct OverrideArgs {}

pub fn set_override(_args: OverrideArgs, _context: &Context) -> Result<Outcome, Failure> {
    Ok(Outcome::Done)
}

/// To be written
#[derive(Debug, clap::Args)]
pub struct LiftArgs {}

pub fn lift(_args: LiftArgs, _context: &Context) -> Result<Outcome, Failure> {
    Ok(Outcome::Done)
}

/// To be written
#[derive(Debug, clap::Args)]
pub struct PauseArgs {}

pub fn pause(_args: PauseArgs, _context: &Context) -> Result<Outcome, Failure> {
    Ok(Outcome::Done)
}

/// To be written
#[derive(Debug, clap::Args)]
pub struct ClearArgs {}

pub fn clear(_args: ClearArgs, _context: &Context) -> Result<Outcome, Failure> {
    Ok(Outcome::Done)
}

/// To be written
#[derive(Debug, clap::Args)]
pub struct ForgetArgs {}

pub fn forget(_args: ForgetArgs, _context: &Context) -> Result<Outcome, Failure> {
    Ok(Outcome::Done)
}
