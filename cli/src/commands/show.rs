//! `show`: the details of a limit, or of one key.

use super::forecast;
use crate::charges::Charges;
use crate::context::{Context, Outcome, look};
use crate::failure::Failure;
use crate::json::{self, Keys};
use crate::text::{self, Column, Look, Row};
use crate::{json::Part, names};
use clap::builder::NonEmptyStringValueParser;
use serde_json::{Value, json};
use std::time::Duration;
use workglow_limit::Store;
use workglow_limit::observe::{
    KeySnapshot, LimitSnapshot, LineSnapshot, Observer, ProcessSnapshot, Stats, TenantSnapshot, Usage, WAIT_BOUNDS,
};

/// Show the details of a limit, or of one key
///
/// The parts of a limit can have keys of their own: show openai tenant=acme. Then each part is shown with the key that such a start
/// charges.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The limit's name
    name: String,
    /// The key of a tenant, user, model, …; or that of a part
    #[arg(value_name = "KEY|PART=KEY", value_parser = NonEmptyStringValueParser::new())]
    words: Vec<String>,

    /// Show who has the units and who waits for them, whose turn is next, since when, and when one more start would begin
    #[arg(long)]
    why: bool,
}

/// The number of keys in the snapshot, to find those that have overrides.
const KEYS: usize = 1_000;
/// The number of keys that are shown without an override.
const SHOWN: usize = 10;

pub fn run(args: Args, context: &Context) -> Result<Outcome, Failure> {
    let store = context.store()?;
    let names = names::check(&args.name, &store)?;
    if args.why {
        return why(&args, &names, &store, context);
    }
    if !args.words.is_empty() {
        return keyed(&args, &names, &store, context);
    }
    let seen = look(&mut Observer::new(&store, KEYS).only(&args.name))?;
    let limits = names::parts(&args.name, &seen, &names);
    if context.json {
        context.print_json(&json::limits(&args.name, &seen, &limits, context.keys))?;
        return Ok(Outcome::Done);
    }
    for (i, limit) in limits.iter().enumerate() {
        if i > 0 {
            context.print("")?;
        }
        whole(limit, context)?;
    }
    Ok(Outcome::Done)
}

/// Shows the key that a start charges in each limit of the name.
fn keyed(args: &Args, names: &[String], store: &Store, context: &Context) -> Result<Outcome, Failure> {
    let limiter = store.find(&args.name)?;
    let charges = Charges::read_keys(&args.words, &args.name, &limiter.part_names())?;
    // Checks the names of the parts.
    charges.joint(&*limiter)?;
    let below = format!("{}/", args.name);
    let key_of = |limit: &LimitSnapshot| charges.key_at(limit.name.strip_prefix(&below).unwrap_or_default());
    // A snapshot finds one key.
    let mut sought: Vec<&str> = charges.keys().collect();
    sought.dedup();
    let seen = sought.into_iter().map(|key| look(&mut Observer::new(store, KEYS).only(&args.name).seek(key)));
    let seen = seen.collect::<workglow_limit::Result<Vec<_>>>()?;
    let mut parts = Vec::new();
    for limit in names::parts(&args.name, &seen[0], names) {
        let again = seen.iter().flat_map(|seen| &seen.limits).filter(|other| other.name == limit.name);
        parts.push(part(limit, key_of(limit).unwrap_or(""), again, store)?);
    }
    if context.json {
        context.print_json(&json::key_of_limits(&args.name, charges.key.as_deref(), &seen[0], &parts))?;
        return Ok(Outcome::Done);
    }
    for (i, part) in parts.iter().enumerate() {
        if i > 0 {
            context.print("")?;
        }
        one_key(part, context)?;
    }
    Ok(Outcome::Done)
}

/// Shows who has what a start needs, and who waits for it.
fn why(args: &Args, names: &[String], store: &Store, context: &Context) -> Result<Outcome, Failure> {
    let limiter = store.find(&args.name)?;
    let charges = Charges::read_keys(&args.words, &args.name, &limiter.part_names())?;
    charges.joint(&*limiter)?;
    let (mut observer, below) = (Observer::new(store, 0).only(&args.name), format!("{}/", args.name));
    let seen = look(&mut observer)?;
    let mut lines = Vec::new();
    for limit in names::parts(&args.name, &seen, names) {
        let limit = limit.name.as_str();
        let key = charges.key_at(limit.strip_prefix(&below).unwrap_or_default()).unwrap_or("");
        let line = observer.line(limit, key)?;
        lines.push((limit, key, line, store.find(limit)?.forecast(1, key)?));
    }
    if context.json {
        let lines: Vec<Value> =
            lines.iter().map(|(limit, key, line, after)| json::line(limit, key, line, *after)).collect();
        context.print_json(&json!({ "name": args.name, "lines": lines }))?;
        return Ok(Outcome::Done);
    }
    for (i, (limit, key, seen, after)) in lines.iter().enumerate() {
        if i > 0 {
            context.print("")?;
        }
        one_line(limit, key, seen, context)?;
        line("one more", forecast::when(*after, context), Look::Plain, context)?;
    }
    Ok(Outcome::Done)
}

fn one_line(limit: &str, key: &str, seen: &LineSnapshot, context: &Context) -> Result<(), Failure> {
    // The key was given by the user, so it is shown.
    let key = if key.is_empty() { String::new() } else { format!(", key {}", text::clean(key)) };
    context.print(format!("{}{key}", Look::Heading.of(&text::clean(limit), context)))?;
    for (i, holder) in seen.holders.iter().enumerate() {
        let (units, who) = (text::several(holder.units, "unit"), process(holder.process.as_ref()));
        let has = match holder.cools_down {
            true => format!("{units}: {} ended, and the cooldown is not over", text::several(holder.starts, "start")),
            false => format!("{units}: {} of {who}", text::several(holder.starts, "start")),
        };
        line(if i == 0 { "in use" } else { "" }, has, Look::Plain, context)?;
    }
    for (i, head) in seen.heads.iter().enumerate() {
        let tenant = head.tenant_name().map_or_else(String::new, |name| format!(", tenant {name}"));
        let priority = if head.priority == 0 { String::new() } else { format!(", priority {}", head.priority) };
        let passed = if head.is_passed { "; passed, because it does not run" } else { "" };
        let (who, units) = (process(head.process.as_ref()), text::several(head.units, "unit"));
        let waits = format!("{who}: {units}, for {}{tenant}{priority}{passed}", text::about(head.waits));
        let look = if head.is_passed { Look::Bad } else { Look::Near };
        line(if i == 0 { "next" } else { "then" }, waits, look, context)?;
    }
    for (i, waits) in seen.waiting.iter().enumerate() {
        let callers = format!("{} of {}", text::several(waits.callers, "caller"), process(waits.process.as_ref()));
        line(if i == 0 { "waiting" } else { "" }, callers, Look::Plain, context)?;
    }
    if seen.waiting.is_empty() {
        line("waiting", "nobody", Look::Good, context)?;
    }
    Ok(())
}

fn process(seen: Option<&ProcessSnapshot>) -> String {
    seen.map_or_else(
        || "a process that is not listed".to_owned(),
        |seen| format!("{} (pid {}, here for {})", text::clean(&seen.program), seen.pid, text::about(seen.since)),
    )
}

/// The state of one key: from a snapshot if the key is in it, else from the limiter.
fn part<'s>(
    limit: &'s LimitSnapshot,
    key: &str,
    seen: impl Iterator<Item = &'s LimitSnapshot> + Clone,
    store: &Store,
) -> Result<Part<'s>, Failure> {
    let limiter = store.find(&limit.name)?;
    let decision = limiter.peek(key, 1)?;
    let stats = limiter.stats(key)?;
    let is_other = limiter.peek("", 1)?.limit != decision.limit;
    let tenant = seen.clone().flat_map(|limit| &limit.tenants).find(|tenant| tenant.key == key);
    let seen = seen.flat_map(|limit| &limit.hot_keys).find(|seen| seen.key == key);
    Ok(Part { limit, key: key.to_owned(), decision, stats, is_other, seen, tenant })
}

fn line(title: &str, value: impl AsRef<str>, look: Look, context: &Context) -> Result<(), Failure> {
    context.print(format!("  {}{}", Look::Faint.of(&format!("{title:<11}"), context), look.of(value.as_ref(), context)))
}

fn whole(limit: &LimitSnapshot, context: &Context) -> Result<(), Failure> {
    let name = text::clean(&limit.name);
    context.print(format!("{}  ({})", Look::Heading.of(&name, context), limit.kind.replace('-', " ")))?;
    line("policy", limit.policy().to_string(), Look::Plain, context)?;
    if let Some(by) = &limit.overridden_by {
        let by = if by == "operator" { String::new() } else { format!(" by {}", text::clean(by)) };
        line("", format!("override{by}; programs declare {}", limit.declared), Look::Near, context)?;
    }
    for (i, usage) in limit.usage.iter().enumerate() {
        let look = text::look_of(usage, limit.is_near());
        line(if i == 0 { "used" } else { "" }, used(usage), look, context)?;
    }
    if let Some((key, id)) = &limit.fullest {
        line("", format!("by key {}", key_name(key, id, context.keys)), Look::Plain, context)?;
    }
    if limit.peak > 0 {
        line("peak", format!("{} in the last minute", text::count(limit.peak)), Look::Plain, context)?;
    }
    let (state, look) = state(limit.paused_for, limit.retry_after);
    line("state", state, look, context)?;
    counters(&limit.stats, context)?;
    waits(limit, context)?;
    if let Some(grants) = limit.grants {
        let held = format!("{} held, {}", text::count(grants.held), text::several(grants.requests, "request"));
        line("grants", held, Look::Plain, context)?;
    }
    if limit.policy().is_shared() {
        return tenants(limit, context);
    }
    line("keys", text::count(limit.keys), Look::Plain, context)?;
    keys(limit, context)
}

fn key_name(key: &str, id: &str, keys: Keys) -> String {
    text::clean(&json::key_name(key, id, keys))
}

fn used(usage: &Usage) -> String {
    let window = usage.window.map_or_else(|| " at once".to_owned(), |window| format!(" in {}", text::window(window)));
    format!("{} of {}{window} ({} %)", text::count(usage.used), text::count(usage.limit), text::percent(usage))
}

fn state(paused_for: Duration, retry_after: Duration) -> (String, Look) {
    match (paused_for, retry_after) {
        (Duration::ZERO, Duration::ZERO) => ("open".to_owned(), Look::Good),
        (Duration::ZERO, after) => (format!("full: next start in {}", text::about(after)), Look::Bad),
        (paused, _) => (format!("paused for {}", text::about(paused)), Look::Bad),
    }
}

fn counters(stats: &Stats, context: &Context) -> Result<(), Failure> {
    let units = match stats.units_granted == stats.admitted && stats.units_wanted == stats.units_granted + stats.denied
    {
        true => String::new(),
        false => format!(" ({} of {} units)", text::count(stats.units_granted), text::count(stats.units_wanted)),
    };
    let counts = format!("{} admitted, {} denied{units}", text::count(stats.admitted), text::count(stats.denied));
    line("counted", counts, Look::Plain, context)?;
    let rare = [
        (stats.cancelled, "cancelled start", Look::Plain),
        (stats.policy_changes, "policy change", Look::Plain),
        (stats.store_errors, "failed decision", Look::Bad),
    ];
    for (count, what, look) in rare.into_iter().filter(|(count, ..)| *count > 0) {
        line("", text::several(count, what), look, context)?;
    }
    Ok(())
}

/// The number of waiters, and how long earlier ones waited.
fn waits(limit: &LimitSnapshot, context: &Context) -> Result<(), Failure> {
    let look = if limit.waiting > 0 { Look::Near } else { Look::Plain };
    line("waiting", text::count(limit.waiting), look, context)?;
    if limit.stats.waited > 0 {
        let average = limit.stats.wait_time / u32::try_from(limit.stats.waited).unwrap_or(u32::MAX);
        let waited = format!("{} waited, {} on average", text::count(limit.stats.waited), text::about(average));
        line("", waited, Look::Plain, context)?;
    }
    if limit.places_lost > 0 {
        let lost = format!("{} lost: used too late", text::several(limit.places_lost, "place"));
        line("", lost, Look::Near, context)?;
    }
    let most = limit.waits.iter().copied().max().unwrap_or(0);
    let last = limit.waits.iter().rposition(|count| *count > 0);
    for (i, count) in limit.waits.iter().enumerate().take_while(|(i, _)| last.is_some_and(|last| *i <= last)) {
        let class = match WAIT_BOUNDS.get(i) {
            Some(bound) => format!("to {}", text::exact(*bound)),
            None => "longer".to_owned(),
        };
        let bar = "█".repeat((count * 30).div_ceil(most.max(1)) as usize);
        let text = format!("{class:>8}  {:>7}  {bar}", text::count(*count));
        line(if i == 0 { "waits" } else { "" }, text.trim_end(), Look::Plain, context)?;
    }
    Ok(())
}

const COLUMNS: [Column; 6] = [
    Column::text("KEY", 10),
    Column::number("USED"),
    Column::number("ADMITTED"),
    Column::number("DENIED"),
    Column::text("OVERRIDE", 12),
    Column::text("STATE", 8).spare(1),
];

/// The busiest keys, and all keys that have an override.
fn keys(limit: &LimitSnapshot, context: &Context) -> Result<(), Failure> {
    let shown = limit.hot_keys.iter().enumerate().filter(|(i, key)| *i < SHOWN || key.overriding.is_some());
    let rows: Vec<Row> = shown.map(|(_, key)| row(key, context.keys)).collect();
    if rows.is_empty() {
        return Ok(());
    }
    context.print("")?;
    for line in text::table(&COLUMNS, &rows, 2, text::columns(), context) {
        context.print(line)?;
    }
    Ok(())
}

const TENANTS: [Column; 3] = [Column::text("TENANT", 10), Column::number("SHARE"), Column::text("STATE", 8)];

/// Who waits in a shared limit, the next one first, and the shares that are kept.
fn tenants(limit: &LimitSnapshot, context: &Context) -> Result<(), Failure> {
    let rows: Vec<Row> = limit.tenants.iter().map(|tenant| of_tenant(tenant, context.keys)).collect();
    if rows.is_empty() {
        return Ok(());
    }
    context.print("")?;
    for line in text::table(&TENANTS, &rows, 2, text::columns(), context) {
        context.print(line)?;
    }
    Ok(())
}

fn of_tenant(tenant: &TenantSnapshot, keys: Keys) -> Row {
    let state = tenant.waits.map_or_else(String::new, |wait| format!("waits, {}", text::about(wait)));
    vec![
        (key_name(&tenant.key, &tenant.id, keys), Look::Plain),
        (text::count(tenant.share.into()), Look::Plain),
        (state, Look::Near),
    ]
}

fn row(key: &KeySnapshot, keys: Keys) -> Row {
    let usage = key.usage.first();
    let used = usage.map_or_else(String::new, |usage| format!("{}/{}", usage.used, usage.limit));
    let state = match (key.paused_for, key.retry_after) {
        (Duration::ZERO, Duration::ZERO) => String::new(),
        (Duration::ZERO, after) => format!("next in {}", text::about(after)),
        (paused, _) => format!("paused {}", text::about(paused)),
    };
    vec![
        (key_name(&key.key, &key.id, keys), Look::Plain),
        (used, usage.map_or(Look::Plain, |usage| text::look_of(usage, false))),
        (text::count(key.stats.admitted), Look::Plain),
        (text::count(key.stats.denied), Look::Plain),
        (key.overriding.map_or_else(|| "-".to_owned(), |policy| policy.to_string()), Look::Plain),
        (state, Look::Bad),
    ]
}

fn one_key(part: &Part, context: &Context) -> Result<(), Failure> {
    let name = Look::Heading.of(&text::clean(&part.limit.name), context);
    // The key was given by the user, so it is shown.
    let key = if part.key.is_empty() { "no key".to_owned() } else { format!("key {}", text::clean(&part.key)) };
    context.print(format!("{name}  ({}), {key}", part.limit.kind.replace('-', " ")))?;
    match part.seen.and_then(|seen| seen.overriding) {
        Some(own) => {
            line("policy", own.to_string(), Look::Plain, context)?;
            let above = format!("override of this key; the limit has {}", part.limit.policy());
            line("", above, Look::Near, context)?;
        }
        // The snapshot has the overrides of used keys only.
        None if part.is_other => {
            let above = format!("override of this key; the limit has {}", part.limit.policy());
            line("policy", above, Look::Near, context)?;
        }
        None => line("policy", part.limit.policy().to_string(), Look::Plain, context)?,
    }
    if let Some(share) = part.share() {
        line("share", text::count(share.into()), Look::Plain, context)?;
    }
    if let Some(wait) = part.tenant.and_then(|tenant| tenant.waits) {
        line("waits", format!("{} so far", text::about(wait)), Look::Near, context)?;
    }
    for (i, usage) in part.usage().iter().enumerate() {
        let window = usage.window.map_or_else(String::new, |window| format!(" in {}", text::window(window)));
        let used = format!("{} of {}{window}", text::count(usage.used), text::count(usage.limit));
        line(if i == 0 { "used" } else { "" }, used, Look::Plain, context)?;
    }
    let paused_for = part.seen.map_or(Duration::ZERO, |seen| seen.paused_for).max(part.limit.paused_for);
    let (state, look) = state(paused_for, part.decision.retry_after);
    line("state", state, look, context)?;
    counters(&part.stats, context)
}
