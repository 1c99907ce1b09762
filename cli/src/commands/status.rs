//! `status`: a table of all limits.

use crate::context::{Context, Outcome, look};
use crate::failure::Failure;
use crate::json::{self, Keys};
use crate::text::{self, Column, Look, Row};
use workglow_limit::observe::{LimitSnapshot, Observer, Snapshot};

/// Show all limits: policy, usage, waiters, pauses
#[derive(Debug, clap::Args)]
pub struct Args {}

const COLUMNS: [Column; 11] = [
    Column::text("LIMIT", 20),
    Column::text("POLICY", 14),
    Column::number("USED"),
    Column::number("%").spare(3),
    Column::text("IN", 3).spare(5),
    Column::text("BY KEY", 8).spare(4),
    Column::number("WAITING"),
    Column::number("ADMITTED").spare(6),
    Column::number("DENIED").spare(2),
    Column::number("MEMORY").spare(7),
    Column::text("STATE", 14).spare(1),
];

pub fn run(_args: Args, context: &Context) -> Result<Outcome, Failure> {
    let seen = look(&mut Observer::new(&context.store()?, 10))?;
    if context.json {
        context.print_json(&json::snapshot(&seen, context.keys))?;
        return Ok(Outcome::Done);
    }
    context.print(heading(&seen))?;
    if seen.limits.is_empty() {
        context.print("Limits are declared by programs, or by the command load.")?;
        return Ok(Outcome::Done);
    }
    let rows: Vec<Row> = seen.limits.iter().map(|limit| row(limit, &seen, context.keys)).collect();
    context.print("")?;
    for line in text::table(&COLUMNS, &rows, 0, text::columns(), context) {
        context.print(line)?;
    }
    if seen.limits.iter().any(|limit| limit.overriding.is_some()) {
        context.print("\n* override: an operator's policy, or one that was learned, in place of the declared one")?;
    }
    Ok(Outcome::Done)
}

/// The store, the number of its limits and processes, and how full it is.
pub fn heading(seen: &Snapshot) -> String {
    let mut heading = format!("{}: {}", text::clean(&seen.url), text::several(seen.limits.len() as u64, "limit"));
    if !seen.processes.is_empty() {
        heading += &format!(", {}", text::several(seen.processes.len() as u64, "process"));
    }
    if seen.max_bytes > 0 {
        let percent = u128::from(seen.used_bytes) * 100 / u128::from(seen.max_bytes);
        heading += &format!(", {} used ({percent} %)", text::bytes(seen.used_bytes));
    }
    heading
}

/// The memory of a limit's keys, if that is at least 1 % of what the store may have. Near: it gets few more.
fn memory(limit: &LimitSnapshot, max_bytes: u64) -> (String, Look) {
    let look = if text::is_nearly_full(limit) { Look::Near } else { Look::Plain };
    let is_shown = limit.bytes > 0 && limit.bytes >= max_bytes / 100;
    (if is_shown { text::bytes(limit.bytes) } else { String::new() }, look)
}

fn row(limit: &LimitSnapshot, seen: &Snapshot, keys: Keys) -> Row {
    let usage = limit.usage.first();
    let look = usage.map_or(Look::Plain, |usage| text::look_of(usage, limit.is_near()));
    let policy = limit.policy().to_string() + if limit.overriding.is_some() { " *" } else { "" };
    let key = limit.fullest.as_ref().map_or_else(String::new, |(key, id)| json::key_name(key, id, keys));
    let some = |count: u64| if count > 0 { text::count(count) } else { "-".to_owned() };
    vec![
        (text::clean(&limit.name), Look::Heading),
        (policy, Look::Plain),
        (usage.map_or_else(String::new, |usage| format!("{}/{}", usage.used, usage.limit)), look),
        (usage.map_or_else(String::new, |usage| format!("{} %", text::percent(usage))), look),
        (usage.and_then(|usage| usage.window).map_or_else(String::new, text::window), Look::Plain),
        (text::clean(&key), Look::Faint),
        (some(limit.waiting), Look::Plain),
        (some(limit.stats.admitted), Look::Plain),
        (some(limit.stats.denied), Look::Plain),
        memory(limit, seen.max_bytes),
        text::state(limit),
    ]
}
