//! `peek`: the decision that a start would get now.

use crate::charges::Charges;
use crate::context::{Context, Outcome};
use crate::failure::Failure;
use crate::json::PartDecision;
use crate::text::{self, Column, Look, Row};
use crate::{json, names};
use clap::builder::NonEmptyStringValueParser;
use workglow_limit::{Decision, Store};

/// Show whether a start would be admitted now
///
/// Nothing starts and nothing is counted. The exit code is 0 if a start would be admitted, and 4 if it would be denied.
///
/// A start can charge the parts of a limit differently: peek openai tokens=1200 tenant=acme. A number is a part's weight, any other
/// text its key; key.tenant=42 is a key that looks like a number, and key=TEXT a key of the start that contains =.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The limit's name
    name: String,
    /// The key of a tenant, user, model, …; or what a part is charged
    #[arg(value_name = "KEY|PART=VALUE", value_parser = NonEmptyStringValueParser::new())]
    words: Vec<String>,
    /// The units that the start takes, and each part without a weight of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    weight: u64,
}

pub fn run(args: Args, context: &Context) -> Result<Outcome, Failure> {
    let store = context.store()?;
    names::check(&args.name, &store)?;
    let limiter = store.find(&args.name)?;
    let parts = limiter.part_names();
    let charges = Charges::read(&args.words, &args.name, &parts)?;
    let seen = limiter.peek(&charges.joint(&*limiter)?, args.weight)?;
    let parts = parts.iter().map(|part| peek_part(part, &args, &charges, &store)).collect::<Result<Vec<_>, _>>()?;
    let outcome = if seen.admitted { Outcome::Done } else { Outcome::Denied };
    if context.json {
        context.print_json(&json::decision(&args.name, charges.key.as_deref(), args.weight, &seen, &parts))?;
        return Ok(outcome);
    }
    let answer = match seen.admitted {
        true => format!("{}: {}", Look::Good.of("would be admitted", context), left(&seen)),
        false => {
            let by = seen.denied_by.as_deref().filter(|by| *by != args.name);
            let by = by.map_or_else(String::new, |by| format!(" by {}", text::clean(by)));
            let retry = format!("retry in {}", text::about(seen.retry_after));
            format!("{}{by}: {retry}, {}", Look::Bad.of("would be denied", context), left(&seen))
        }
    };
    context.print(answer)?;
    let rows: Vec<Row> = parts.iter().map(row).collect();
    if !rows.is_empty() {
        context.print("")?;
        for line in text::table(&COLUMNS, &rows, 2, text::columns(), context) {
            context.print(line)?;
        }
    }
    Ok(outcome)
}

/// The decision of one part.
fn peek_part(part: &str, args: &Args, charges: &Charges, store: &Store) -> Result<PartDecision, Failure> {
    let (key, weight) = (charges.key_at(part), charges.weight_at(part, args.weight));
    let seen = store.find(&format!("{}/{part}", args.name))?.peek(key.unwrap_or(""), weight)?;
    Ok(PartDecision { part: part.to_owned(), key: key.map(str::to_owned), weight, seen })
}

fn left(seen: &Decision) -> String {
    let left = format!("{} of {} left", text::count(seen.remaining), text::count(seen.limit));
    match seen.reset_after.is_zero() {
        true => left,
        false => format!("{left}, reset in {}", text::about(seen.reset_after)),
    }
}

const COLUMNS: [Column; 5] = [
    Column::text("PART", 12),
    Column::text("KEY", 12).spare(1),
    Column::number("WEIGHT"),
    Column::text("LEFT", 12),
    Column::text("STATE", 8).spare(1),
];

/// The row of a part. The key was given by the user, so it is shown.
fn row(part: &PartDecision) -> Row {
    let state = match part.seen.admitted {
        true => (String::new(), Look::Plain),
        false => (format!("retry in {}", text::about(part.seen.retry_after)), Look::Bad),
    };
    vec![
        (text::clean(&part.part), Look::Plain),
        (text::clean(part.key.as_deref().unwrap_or("")), Look::Plain),
        (text::count(part.weight), Look::Plain),
        (left(&part.seen), Look::Plain),
        state,
    ]
}
