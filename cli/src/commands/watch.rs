//! `watch`: events as they happen.

use super::change::duration;
use crate::context::{Context, Outcome, look};
use crate::differences::{self, Event};
use crate::failure::Failure;
use crate::{json, names};
use clap::builder::NonEmptyStringValueParser;
use serde_json::json;
use std::io;
use std::time::Duration;
use workglow_limit::observe::{Observer, Snapshot};

/// Print events as lines of JSON until Ctrl-C
///
/// Events: watching, denied, waited, near, eased, paused, opened, policy_changed, override_set, override_lifted, limit_declared,
/// limit_gone, places_lost, process_joined, process_left, store_failed, store_back. Events are differences between two snapshots: a
/// state that began and ended between them is not reported, but counts are complete.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print the events of this limit only
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: Option<String>,
    /// The time between two snapshots, 100ms or more
    #[arg(long, default_value = "1s", value_name = "DURATION")]
    interval: String,
}

const MIN_TIME: Duration = Duration::from_millis(100);
const KEYS: usize = 1_000;

pub fn run(args: Args, context: &Context) -> Result<Outcome, Failure> {
    let interval = duration("interval", &args.interval)?;
    if interval < MIN_TIME {
        return Err(Failure::usage(format!("interval is {}: expected 100ms or more", args.interval)));
    }
    let store = context.store()?;
    let mut names = match &args.name {
        Some(name) => names::check(name, &store)?,
        None => store.names()?,
    };
    let observer = Observer::new(&store, KEYS);
    let mut observer = match &args.name {
        Some(name) => observer.only(name),
        None => observer,
    };
    let is_wanted = |event: &Event, names: &[String]| match (&args.name, &event.limit) {
        (None, _) => true,
        (Some(name), Some(limit)) => limit == name || names::whole(limit, names) == name,
        (Some(_), None) => event.name.starts_with("store_"),
    };
    let mut before = look(&mut observer)?;
    context.print_json(&json!({
        "at": json::time(before.at),
        "event": "watching",
        "store": before.url,
        "limits": args.name.as_ref().map_or(before.limits.len(), |name| names::parts(name, &before, &names).len()),
    }))?;
    let mut has_failed = false;
    loop {
        if !wait(interval) {
            return Ok(Outcome::Done);
        }
        let looked = look(&mut observer).and_then(|seen| Ok((seen, store.names()?)));
        let (now, events): (Option<Snapshot>, Vec<Event>) = match looked {
            Ok((now, known)) => {
                // Removed limits still have an event.
                names.extend(known);
                names.sort_unstable();
                names.dedup();
                let mut events = differences::between(&before, &now, context.keys);
                if std::mem::take(&mut has_failed) {
                    events.insert(0, Event::of_store(now.at, "store_back", json!({})));
                }
                (Some(now), events)
            }
            Err(_) if has_failed => (None, Vec::new()),
            Err(error) => {
                has_failed = true;
                let more = json!({ "code": error.name(), "message": error.to_string() });
                (None, vec![Event::of_store(std::time::SystemTime::now(), "store_failed", more)])
            }
        };
        for event in events.iter().filter(|event| is_wanted(event, &names)) {
            context.print_json(&event.to_json())?;
        }
        before = now.unwrap_or(before);
    }
}

/// Waits for the interval. Returns whether standard output is still open.
fn wait(interval: Duration) -> bool {
    let mut out = libc::pollfd { fd: libc::STDOUT_FILENO, events: 0, revents: 0 };
    let ms = libc::c_int::try_from(interval.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: `out` is one valid entry. It requests no events, so only a closed pipe ends the wait early.
    match unsafe { libc::poll(&mut out, 1, ms) } {
        -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => true,
        -1 => {
            std::thread::sleep(interval);
            true
        }
        _ => out.revents & (libc::POLLERR | libc::POLLHUP) == 0,
    }
}
