//! Changes by an operator: `override`, `lift`, `share`, `pause`, `clear`, `forget`.

use crate::context::{Context, Outcome};
use crate::failure::Failure;
use crate::{json, names, text};
use clap::builder::NonEmptyStringValueParser;
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Write};
use std::time::Duration;
use workglow_limit::admin::{NamedPolicy, parse_parts, parse_time};
use workglow_limit::observe::{LimitSnapshot, Observer};
use workglow_limit::{Error, Store};

/// Replace the declared policy of a limit until the override is lifted
///
/// An override takes effect at once in all processes, and survives restarts and deploys. In a composite, each policy replaces the part
/// of its name, as in "tokens: 50000/1m", or without a name the first of its kind.
#[derive(Debug, clap::Args)]
pub struct OverrideArgs {
    /// The limit's name
    name: String,
    /// The policy, such as "50/1m + 5/1s" or "2 concurrent"
    policy: String,
    /// Override the policy of one key only, such as a tenant's plan
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    key: Option<String>,
}

/// Remove an override: the declared policy applies again
#[derive(Debug, clap::Args)]
pub struct LiftArgs {
    /// The limit's name
    name: String,
    /// Remove the override of one key only
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    key: Option<String>,
}

/// Set the share of a tenant in a shared limit
///
/// A shared limit, such as "500/1m shared", has one budget for all of its keys, the tenants. While tenants wait, one with share 3 gets
/// three starts where one with share 1 gets one. A share takes effect at once in all processes, and survives restarts and deploys.
#[derive(Debug, clap::Args)]
pub struct ShareArgs {
    /// The limit's name
    name: String,
    /// The tenant's key
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    key: String,
    /// The share, 1 to 1000; 1 is the default
    share: u32,
}

/// Admit no start for a time
///
/// A pause can be extended but not shortened; clear ends it.
#[derive(Debug, clap::Args)]
pub struct PauseArgs {
    /// The limit's name
    name: String,
    /// The length of the pause, such as 30s, 5m or 2h
    duration: String,
    /// Pause one key only
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    key: Option<String>,
}

/// Reset a limit: forget its past starts and end its pause
#[derive(Debug, clap::Args)]
pub struct ClearArgs {
    /// The limit's name
    name: String,
    /// Reset one key only
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    key: Option<String>,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

/// Remove a limit and its overrides until a program declares it again
#[derive(Debug, clap::Args)]
pub struct ForgetArgs {
    /// The limit's name
    name: String,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

/// Opens the store and checks that it has this limit. Returns all names, too.
fn find(name: &str, context: &Context) -> Result<(Store, Vec<String>), Failure> {
    let store = context.store()?;
    let names = names::check(name, &store)?;
    Ok((store, names))
}

fn report(context: &Context, value: Value, text: String) -> Result<Outcome, Failure> {
    match context.json {
        true => context.print_json(&value)?,
        false => context.print(text)?,
    }
    Ok(Outcome::Done)
}

/// A limit or one of its keys, as text. The key was given by the user, so it is shown.
fn subject(name: &str, key: Option<&str>) -> String {
    match key {
        Some(key) => format!("{}, key {}", text::clean(name), text::clean(key)),
        None => text::clean(name),
    }
}

/// What a change of one key changes: the key, and of limits that tenants share the whole. Each of those has one state, in which all
/// keys are counted.
struct Scope {
    subject: String,
    shared: Vec<String>,
}

impl Scope {
    fn of(name: &str, key: Option<&str>, (store, names): &(Store, Vec<String>)) -> Result<Scope, Failure> {
        let Some(key) = key else { return Ok(Scope { subject: subject(name, None), shared: Vec::new() }) };
        let seen = Observer::new(store, 0).only(name).look()?;
        let parts = names::parts(name, &seen, names);
        let shared = parts.iter().filter(|part| part.policy().is_shared()).map(|part| part.name.clone());
        let shared: Vec<String> = shared.collect();
        let own = (shared.is_empty() || shared.len() < parts.len()).then(|| subject(name, Some(key)));
        let whole = shared.iter().map(|name| format!("all tenants of {}", text::clean(name)));
        Ok(Scope { subject: own.into_iter().chain(whole).collect::<Vec<_>>().join(", and "), shared })
    }
}

pub fn set_override(args: OverrideArgs, context: &Context) -> Result<Outcome, Failure> {
    let (name, key) = (args.name.as_str(), args.key.as_deref());
    let policies = parse_parts(&args.policy)?;
    let (store, names) = find(name, context)?;
    // Parts of a composite that the text does not mention. (Before the change: after it, nothing may fail.)
    let seen = Observer::new(&store, 0).only(name).look()?;
    let mut kept = names::parts(name, &seen, &names);
    for policy in &policies {
        let of_it = |part: &&LimitSnapshot| match &policy.name {
            Some(of) => part.name.strip_prefix(name).is_some_and(|rest| rest.strip_prefix('/') == Some(of)),
            // As the store chooses: the first of its kind.
            None => part.kind == policy.kind(),
        };
        kept.iter().position(of_it).map(|at| kept.remove(at));
    }
    store.override_limit(name, &args.policy, key)?;
    let policy = policies.iter().map(NamedPolicy::to_string).collect::<Vec<_>>().join(" + ");
    let mut done = format!("{}: {policy} applies until it is lifted", subject(name, key));
    for part in &kept {
        done += &format!("\n{}: unchanged", subject(&part.name, key));
    }
    let kept: Vec<&str> = kept.iter().map(|part| part.name.as_str()).collect();
    report(context, json::change("override", name, key, json!({ "policy": policy, "kept": kept })), done)
}

pub fn lift(args: LiftArgs, context: &Context) -> Result<Outcome, Failure> {
    let (name, key) = (args.name.as_str(), args.key.as_deref());
    let found = find(name, context)?;
    let scope = Scope::of(name, key, &found)?;
    found.0.lift(name, key)?;
    let again = if key.is_some() { "the policy of the limit" } else { "the declared policy" };
    let mut done = format!("{}: {again} applies again", subject(name, key));
    for shared in &scope.shared {
        done += &format!("\n{}: keeps its share", subject(shared, key));
    }
    report(context, json::change("lift", name, key, Value::Null), done)
}

pub fn share(args: ShareArgs, context: &Context) -> Result<Outcome, Failure> {
    let ShareArgs { name, key, share } = args;
    find(&name, context)?.0.share(&name, &key, share)?;
    let done = format!("{}: share {share}", subject(&name, Some(&key)));
    report(context, json::change("share", &name, Some(&key), json!({ "share": share })), done)
}

pub fn pause(args: PauseArgs, context: &Context) -> Result<Outcome, Failure> {
    let (name, key) = (args.name.as_str(), args.key.as_deref());
    let duration = duration("duration", &args.duration)?;
    let found = find(name, context)?;
    let Scope { subject, shared } = Scope::of(name, key, &found)?;
    found.0.find(name)?.pause(duration, key.unwrap_or(""))?;
    let done = format!("{subject}: paused for {}", text::exact(duration));
    let of_it = json!({ "duration": json::seconds(duration), "shared": shared });
    report(context, json::change("pause", name, key, of_it), done)
}

/// Parses a duration as policies write it. An error names the parameter.
pub fn duration(parameter: &'static str, text: &str) -> Result<Duration, Failure> {
    parse_time(text).map_err(|error| match error {
        Error::InvalidArgument { value, expected, .. } => Error::InvalidArgument { parameter, value, expected }.into(),
        other => other.into(),
    })
}

pub fn clear(args: ClearArgs, context: &Context) -> Result<Outcome, Failure> {
    let (name, key) = (args.name.as_str(), args.key.as_deref());
    let found = find(name, context)?;
    let limiter = found.0.find(name)?;
    let Scope { subject, shared } = Scope::of(name, key, &found)?;
    let question = format!("{subject}: forget the past starts{}", if key.is_none() { " of all keys" } else { "" });
    if !confirm(&question, args.yes)? {
        return Ok(Outcome::Declined);
    }
    limiter.clear(key.unwrap_or(""))?;
    report(context, json::change("clear", name, key, json!({ "shared": shared })), format!("{subject}: reset"))
}

pub fn forget(args: ForgetArgs, context: &Context) -> Result<Outcome, Failure> {
    let name = args.name.as_str();
    let (store, _) = find(name, context)?;
    let question = format!("{}: remove the limit and all of its overrides", subject(name, None));
    if !confirm(&question, args.yes)? {
        return Ok(Outcome::Declined);
    }
    store.forget(name)?;
    report(context, json::change("forget", name, None, Value::Null), format!("{}: removed", subject(name, None)))
}

/// Asks for confirmation before data is destroyed. Without a terminal, `--yes` is required.
fn confirm(question: &str, yes: bool) -> Result<bool, Failure> {
    if yes {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        return Err(Failure::usage("this destroys data and needs confirmation, but standard input is not a terminal")
            .hint("pass --yes to confirm"));
    }
    write!(io::stderr(), "{question}? [y/N] ")?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    let is_yes = matches!(answer.trim().to_lowercase().as_str(), "y" | "yes");
    if !is_yes {
        writeln!(io::stderr(), "nothing was changed")?;
    }
    Ok(is_yes)
}
