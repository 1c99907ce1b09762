//! `forecast`: when more starts will have begun.

use crate::charges::Charges;
use crate::context::{Context, Outcome};
use crate::failure::Failure;
use crate::text::{self, Look};
use crate::{json, names};
use clap::builder::NonEmptyStringValueParser;
use serde_json::json;
use std::time::Duration;

/// Show when more starts will have begun
///
/// They would begin after the starts that are counted, and after those who wait in any process. Nothing starts and nothing is counted.
///
/// The words between the name and the number are those of peek: a key, or what the parts are charged.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The limit's name
    name: String,
    /// The key of a tenant, user, model, …, or what a part is charged; and at the end the number of starts
    #[arg(value_name = "KEY|PART=VALUE|STARTS", required = true, value_parser = NonEmptyStringValueParser::new())]
    words: Vec<String>,
}

pub fn run(args: Args, context: &Context) -> Result<Outcome, Failure> {
    let store = context.store()?;
    names::check(&args.name, &store)?;
    let limiter = store.find(&args.name)?;
    let Some((last, words)) = args.words.split_last() else {
        return Err(Failure::usage("STARTS is missing".to_owned()));
    };
    let starts: u64 = last.parse().map_err(|_| {
        Failure::usage(format!("STARTS is \"{}\": expected a number of starts, at the end", text::clean(last)))
    })?;
    let charges = Charges::read(words, &args.name, &limiter.part_names())?;
    let after = limiter.forecast(starts, &charges.joint(&*limiter)?)?;
    if context.json {
        let after = after.map(json::seconds);
        context.print_json(&json!({ "name": args.name, "key": charges.key, "starts": starts, "after": after }))?;
        return Ok(Outcome::Done);
    }
    let what = text::several(starts, "start");
    context.print(format!("{what}: {}", when(after, context)))?;
    Ok(Outcome::Done)
}

/// A forecast, as people read it.
pub fn when(after: Option<Duration>, context: &Context) -> String {
    match after {
        Some(Duration::ZERO) => Look::Good.of("now", context),
        Some(after) => format!("in {}", Look::Near.of(&text::about(after), context)),
        None => format!("{}; jobs have to end before", Look::Near.of("unknown", context)),
    }
}
