//! `load`: declares the limits of a file.

use crate::context::{Context, Outcome};
use crate::failure::Failure;
use crate::text;
use serde_json::json;
use std::path::PathBuf;

/// Declare the limits of a TOML file, all or none
///
/// A missing store is an error without --create.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file, with lines such as openai = "100/1m + 5 concurrent"
    file: PathBuf,
    /// Create the store if it does not exist
    #[arg(long)]
    create: bool,
}

pub fn run(args: Args, context: &Context) -> Result<Outcome, Failure> {
    let store = if args.create { context.new_store()? } else { context.store()? };
    let names = store.load(&args.file)?;
    if context.json {
        context.print_json(&json!({ "done": "load", "names": names }))?;
    } else {
        let listed = names.iter().map(|name| text::clean(name)).collect::<Vec<_>>().join(", ");
        let colon = if names.is_empty() { "" } else { ": " };
        context.print(format!("{} declared{colon}{listed}", text::several(names.len() as u64, "limit")))?;
    }
    Ok(Outcome::Done)
}
