//! `completions` and `man`: files that an installation has next to the program.

use crate::args::command;
use crate::context::{Context, Outcome};
use crate::failure::Failure;
use clap_complete::Shell;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Print the completion script of a shell
///
/// For bash: eval "$(workglow-limit completions bash)"
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    shell: Shell,
}

/// Print the man page, or write all man pages to a directory
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// Write a page for the program and one for each command
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,
}

const PROGRAM: &str = "workglow-limit";

pub fn completions(args: CompletionsArgs, context: &Context) -> Result<Outcome, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command(), PROGRAM, &mut script);
    let script = String::from_utf8_lossy(&script);
    match context.json {
        true => context.print_json(&json!({ "shell": args.shell.to_string(), "script": script }))?,
        false => context.print(script.trim_end())?,
    }
    Ok(Outcome::Done)
}

pub fn man(args: ManArgs, context: &Context) -> Result<Outcome, Failure> {
    if let Some(directory) = &args.out {
        let pages = write_pages(directory)?;
        match context.json {
            true => context.print_json(&json!({ "pages": pages }))?,
            false => context.print(pages.join("\n"))?,
        }
        return Ok(Outcome::Done);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command()).render(&mut page)?;
    let page = String::from_utf8_lossy(&page);
    match context.json {
        true => context.print_json(&json!({ "page": page }))?,
        false => context.print(page.trim_end())?,
    }
    Ok(Outcome::Done)
}

/// Writes a page for the program and one for each command; returns their paths.
fn write_pages(directory: &Path) -> Result<Vec<String>, Failure> {
    let failed = |path: &Path, error| Failure::system(format!("writing {}: {error}", path.display()));
    std::fs::create_dir_all(directory).map_err(|error| failed(directory, error))?;
    let mut whole = command();
    whole.build();
    let commands = whole.get_subcommands().filter(|command| command.get_name() != "help");
    let mut pages = Vec::new();
    for (name, command) in commands
        .map(|command| (format!("{PROGRAM}-{}", command.get_name()), command.clone()))
        .chain([(PROGRAM.to_owned(), whole.clone())])
    {
        let path = directory.join(format!("{name}.1"));
        let mut page = Vec::new();
        clap_mangen::Man::new(command).title(name).render(&mut page)?;
        std::fs::write(&path, page).map_err(|error| failed(&path, error))?;
        pages.push(path.display().to_string());
    }
    pages.sort();
    Ok(pages)
}
