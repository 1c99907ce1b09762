//! What an operator does to a limit: `override`, `lift`, `pause`, `clear`, `forget`.

use crate::context::{Context, Outcome};
use crate::failure::Failure;
use crate::{json, names, text};
use clap::builder::NonEmptyStringValueParser;
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Write};
use std::time::Duration;
use workglow_limit::{Error, Store, parse_policies, parse_time};

/// Put a policy above what programs declare, at once and until it is lifted
///
/// It survives restarts and deploys. Of a composite, each policy stands above the part of its kind.
#[derive(Debug, clap::Args)]
pub struct OverrideArgs {
    /// The limit's name
    name: String,
    /// Such as "50/1m + 5/1s" or "2 concurrent"
    policy: String,
    /// For one key only, such as a tenant's plan
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    key: Option<String>,
}

/// Take an operator's policy away: what programs declare holds again
#[derive(Debug, clap::Args)]
pub struct LiftArgs {
    /// The limit's name
    name: String,
    /// The policy of this key only
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    key: Option<String>,
}

/// Let nobody start for so long
///
/// A pause can be made longer, not shorter; clear ends it.
#[derive(Debug, clap::Args)]
pub struct PauseArgs {
    /// The limit's name
    name: String,
    /// Such as 30s, 5m or 2h
    duration: String,
    /// This key only
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    key: Option<String>,
}

/// Forget what has started, and end a pause: the limit is as new
#[derive(Debug, clap::Args)]
pub struct ClearArgs {
    /// The limit's name
    name: String,
    /// This key only
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    key: Option<String>,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

/// Take a limit away, with its policies, until a program declares it again
#[derive(Debug, clap::Args)]
pub struct ForgetArgs {
    /// The limit's name
    name: String,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

/// The store, and that it knows this name.
fn find(name: &str, context: &Context) -> Result<Store, Failure> {
    let store = context.store()?;
    names::check(name, &store)?;
    Ok(store)
}

fn tell(context: &Context, value: Value, text: String) -> Result<Outcome, Failure> {
    match context.json {
        true => context.print_json(&value)?,
        false => context.print(text)?,
    }
    Ok(Outcome::Done)
}

/// A limit as people read it, or one of its keys, which is shown as the user said it.
fn subject(name: &str, key: Option<&str>) -> String {
    match key {
        Some(key) => format!("{}, key {}", text::clean(name), text::clean(key)),
        None => text::clean(name),
    }
}

pub fn set_override(args: OverrideArgs, context: &Context) -> Result<Outcome, Failure> {
    let (name, key) = (args.name.as_str(), args.key.as_deref());
    let policies = parse_policies(&args.policy)?;
    let store = find(name, context)?;
    match key {
        Some(key) => store.override_key(name, &args.policy, key)?,
        None => store.override_text(name, &args.policy)?,
    }
    let policy = policies.iter().map(ToString::to_string).collect::<Vec<_>>().join(" + ");
    let said = format!("{}: {policy} holds, until it is lifted", subject(name, key));
    tell(context, json::change("override", name, key, json!({ "policy": policy })), said)
}

pub fn lift(args: LiftArgs, context: &Context) -> Result<Outcome, Failure> {
    let (name, key) = (args.name.as_str(), args.key.as_deref());
    let store = find(name, context)?;
    let said = match key {
        Some(key) => {
            store.lift_key(name, key)?;
            format!("{}: what holds for the limit's other keys holds for it, too", subject(name, Some(key)))
        }
        None => {
            store.lift(name)?;
            format!("{}: what programs declare holds", subject(name, None))
        }
    };
    tell(context, json::change("lift", name, key, Value::Null), said)
}

pub fn pause(args: PauseArgs, context: &Context) -> Result<Outcome, Failure> {
    let (name, key) = (args.name.as_str(), args.key.as_deref());
    let duration = duration("duration", &args.duration)?;
    let limiter = find(name, context)?.find(name)?;
    limiter.pause(key.unwrap_or(""), duration)?;
    let said = format!("{}: nobody starts for {}", subject(name, key), text::exact(duration));
    tell(context, json::change("pause", name, key, json!({ "duration": json::seconds(duration) })), said)
}

/// A duration in the words of policies; an error names the parameter.
pub fn duration(parameter: &'static str, text: &str) -> Result<Duration, Failure> {
    parse_time(text).map_err(|error| match error {
        Error::InvalidArgument { value, expected, .. } => Error::InvalidArgument { parameter, value, expected }.into(),
        other => other.into(),
    })
}

pub fn clear(args: ClearArgs, context: &Context) -> Result<Outcome, Failure> {
    let (name, key) = (args.name.as_str(), args.key.as_deref());
    let limiter = find(name, context)?.find(name)?;
    let whose = subject(name, key);
    let what = format!("{whose}: forget what has started{}", if key.is_none() { ", of all keys" } else { "" });
    if !confirm(&what, args.yes)? {
        return Ok(Outcome::Declined);
    }
    limiter.clear(key.unwrap_or(""))?;
    tell(context, json::change("clear", name, key, Value::Null), format!("{whose}: as new"))
}

pub fn forget(args: ForgetArgs, context: &Context) -> Result<Outcome, Failure> {
    let name = args.name.as_str();
    let store = find(name, context)?;
    let what = format!("{}: take the limit away, with all of its policies", subject(name, None));
    if !confirm(&what, args.yes)? {
        return Ok(Outcome::Declined);
    }
    store.forget(name)?;
    tell(context, json::change("forget", name, None, Value::Null), format!("{}: forgotten", subject(name, None)))
}

/// Asks whether something is to be destroyed. Where nobody can answer, it has been said before.
fn confirm(what: &str, yes: bool) -> Result<bool, Failure> {
    if yes {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        return Err(Failure::usage(
            "this destroys what the store knows, and nobody can be asked: standard input is no terminal",
        )
        .hint("say --yes"));
    }
    write!(io::stderr(), "{what}? [y/N] ")?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    let is_yes = matches!(answer.trim().to_lowercase().as_str(), "y" | "yes");
    if !is_yes {
        writeln!(io::stderr(), "nothing was changed")?;
    }
    Ok(is_yes)
}
