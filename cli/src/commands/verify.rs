//! `verify`: checks the files of a store.

use crate::context::{Context, Outcome};
use crate::failure::Failure;
use crate::json;
use crate::text::{self, Look};
use serde_json::json;

/// Check the database and the lane, and repair them with --repair
///
/// It reads the whole database. Starts that need a commit wait until it has finished. The exit code is 5 if there is a problem that was
/// not repaired.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Repair: unreadable rows are deleted, and an invalid lane is rebuilt and counts as full for two seconds
    #[arg(long)]
    repair: bool,
}

pub fn run(args: Args, context: &Context) -> Result<Outcome, Failure> {
    let url = context.url()?;
    if !url.starts_with("sqlite:") {
        return Err(Failure::usage("verify checks files, and this store is on a server")
            .hint("doctor checks a server's settings; the server's own tools check its files"));
    }
    let store = context.unopened(false)?;
    let problems = store.verify(args.repair).map_err(|error| Failure::of_store(error, url))?;
    let is_fine = problems.iter().all(|problem| problem.is_repaired);
    if context.json {
        let problems: Vec<_> = problems.iter().map(json::problem).collect();
        context.print_json(&json!({ "store": store.url(), "is_fine": is_fine, "problems": problems }))?;
    } else if problems.is_empty() {
        context.print(format!("{}: in order", text::clean(store.url())))?;
    } else {
        for problem in &problems {
            let (look, word) = if problem.is_repaired { (Look::Good, "repaired") } else { (Look::Bad, "wrong") };
            context.print(format!("{:<8}  {}", look.of(word, context), text::clean(&problem.found)))?;
        }
        if !is_fine {
            context.print(match args.repair {
                true => "\nRestore a backup, or delete both files to start with an empty store.",
                false => "\nverify --repair repairs what can be repaired.",
            })?;
        }
    }
    Ok(if is_fine { Outcome::Done } else { Outcome::Found })
}
