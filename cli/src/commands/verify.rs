//! `verify`: are the store's files in order?

use crate::context::{Context, Outcome};
use crate::failure::Failure;
use crate::json;
use crate::text::{self, Look};
use serde_json::json;

/// Look at every page of the database and at all that the lane holds, and repair what can be
///
/// It reads all of the database, which holds up starts that wait for a commit meanwhile. The exit code is 5 if something is wrong and
/// was not repaired.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Repair what can be: rows that nobody can read go, a lane that makes no sense is made anew and counts as full for two seconds
    #[arg(long)]
    repair: bool,
}

pub fn run(args: Args, context: &Context) -> Result<Outcome, Failure> {
    let url = context.url()?;
    if !url.starts_with("sqlite:") {
        return Err(Failure::usage("verify looks at files, and this store is on a server")
            .hint("doctor looks at a server's settings; its own tools look at its files"));
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
                true => "\nBring a backup back, or delete both files to begin with nothing.",
                false => "\nverify --repair mends what can be mended.",
            })?;
        }
    }
    Ok(if is_fine { Outcome::Done } else { Outcome::Found })
}
