//! `peek`: the decision that a start would get now.

use crate::context::{Context, Outcome};
use crate::failure::Failure;
use crate::text::{self, Look};
use crate::{json, names};
use clap::builder::NonEmptyStringValueParser;

/// Show whether a start would be admitted now
///
/// Nothing starts and nothing is counted. The exit code is 0 if a start would be admitted, and 4 if it would be denied.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The limit's name
    name: String,
    /// The key of a tenant, user, model, …
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    key: Option<String>,
    /// The units that the start takes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    weight: u64,
}

pub fn run(args: Args, context: &Context) -> Result<Outcome, Failure> {
    let store = context.store()?;
    names::check(&args.name, &store)?;
    let key = args.key.as_deref().unwrap_or("");
    let seen = store.find(&args.name)?.peek(key, args.weight)?;
    let outcome = if seen.admitted { Outcome::Done } else { Outcome::Denied };
    if context.json {
        context.print_json(&json::decision(&args.name, args.key.as_deref(), args.weight, &seen))?;
        return Ok(outcome);
    }
    let left = format!("{} of {} left", text::count(seen.remaining), text::count(seen.limit));
    let reset = match seen.reset_after.is_zero() {
        true => String::new(),
        false => format!(", reset in {}", text::about(seen.reset_after)),
    };
    let answer = match seen.admitted {
        true => format!("{}: {left}{reset}", Look::Good.of("would be admitted", context)),
        false => {
            let by = seen.denied_by.as_deref().filter(|by| *by != args.name);
            let by = by.map_or_else(String::new, |by| format!(" by {}", text::clean(by)));
            let retry = format!("retry in {}", text::about(seen.retry_after));
            format!("{}{by}: {retry}, {left}{reset}", Look::Bad.of("would be denied", context))
        }
    };
    context.print(answer)?;
    Ok(outcome)
}
