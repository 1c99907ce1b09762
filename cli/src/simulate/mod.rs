//! `simulate`: what a policy would have done.

mod history;
mod load;
mod measure;
mod promise;
mod report;
mod request;
mod subject;
mod trace;

use crate::commands::change::duration;
use crate::context::{Context, Outcome};
use crate::failure::Failure;
use crate::picture::{svg, terminal};
use history::History;
use load::{Between, Load};
use measure::{Tell, Verdict, Verdicts};
use request::{Keys, SECOND, Source};
use serde_json::json;
use std::time::Duration;
use subject::{Callers, Subject};
use trace::{Defaults, Trace};
use workglow_limit::parse_time;

/// Show what a policy would have done with a recorded or a made-up load
///
/// It is the limiter itself that decides, by a clock that is moved from one request to the next: a day takes a second.
///
/// A trace is CSV with a header (time, and if you like key, weight and duration) or lines of JSON ({"at": 0.5, "key": "a"}). Times are
/// seconds, since whenever, or RFC 3339; durations are seconds. A load is "50/1s for 2m", "10..100/1s for 2m" (evenly more), "200 at
/// once", "nothing for 30s", or several of these after commas; without "for" it lasts 60 periods. Windows that are aligned begin at
/// multiples of their length by the trace's own times.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("source").required(true))]
pub struct Args {
    /// The policy, such as "100/1m + 5 concurrent"
    policy: String,
    /// Another policy under the same load; may be said several times
    #[arg(long, value_name = "POLICY")]
    compare: Vec<String>,
    /// A recorded load: CSV or lines of JSON; - is standard input
    #[arg(long, value_name = "FILE", group = "source")]
    trace: Option<String>,
    /// A made-up load, such as "50/1s for 2m"
    #[arg(long, group = "source")]
    load: Option<String>,
    /// What a limit of the store admitted, minute by minute: each minute's units evenly spread over it
    #[arg(long, value_name = "NAME", group = "source")]
    history: Option<String>,
    /// The trace is not in the order of its times; it is read whole
    #[arg(long, requires = "trace")]
    sort: bool,
    /// How far back the history goes, 31d at most
    #[arg(long, value_name = "DURATION", requires = "history")]
    since: Option<String>,
    /// What the limit denied asks, too; who tried again is counted each time
    #[arg(long, requires = "history")]
    with_denied: bool,
    /// Random arrivals (of a Poisson process), the same for the same number
    #[arg(long, value_name = "SEED", requires = "load")]
    random: Option<u64>,
    /// Requests come from so many keys
    #[arg(long, value_name = "N", default_value_t = 0, requires = "load", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    keys: u32,
    /// How much more some keys ask than others (Zipf): the n-th 1/n^SKEW as much as the first
    #[arg(long, default_value_t = 0.0, requires = "keys")]
    skew: f64,
    /// The weight of each request, or as in 1..8 of the lightest and heaviest; in a trace, where it says none
    #[arg(long, default_value = "1")]
    weight: String,
    /// How long each job runs, or as in 100ms..2s the shortest and longest; in a trace, where it says nothing
    #[arg(long, value_name = "DURATION")]
    duration: Option<String>,
    /// Callers wait in line as `acquire` does, at most so long if it is said (--wait=30s), instead of going away
    #[arg(long, value_name = "MAX", num_args = 0..=1, require_equals = true)]
    wait: Option<Option<String>>,
    /// Print what became of each request, as CSV (line, verdict, seconds), instead of a report
    #[arg(long, conflicts_with_all = ["compare", "svg"])]
    verdicts: bool,
    /// How many keys to list
    #[arg(long, value_name = "N", default_value_t = 5)]
    top: usize,
    /// Draw it into this file, too
    #[arg(long, value_name = "FILE")]
    svg: Option<String>,
    /// Draw with plain characters
    #[arg(long)]
    ascii: bool,
}

pub fn run(args: Args, context: &Context) -> Result<Outcome, Failure> {
    let callers = match &args.wait {
        None => Callers::GoAway,
        Some(most) => Callers::Wait(most.as_deref().map(|most| duration("wait", most)).transpose()?),
    };
    let policies: Vec<&str> = [&args.policy].into_iter().chain(&args.compare).map(String::as_str).collect();
    let mut verdicts = args.verdicts.then(|| Verdicts::new(tell(context)));
    let mut subjects = Vec::new();
    for policy in &policies {
        subjects.push(Subject::new(policy, callers, verdicts.take())?);
    }
    let mut keys = Keys::default();
    let mut source = source(&args, &policies, context, &mut keys)?;
    if args.verdicts && !context.json {
        context.print("line,verdict,seconds")?;
    }
    let mut asked = 0u64;
    while let Some(request) = source.next(&mut keys)? {
        asked += 1;
        for subject in &mut subjects {
            subject.ask(request, &keys)?;
        }
    }
    if asked == 0 {
        return Err(Failure::usage("there is no request to try the policy with"));
    }
    for subject in &mut subjects {
        subject.finish(&keys)?;
    }
    if args.verdicts {
        return Ok(Outcome::Done);
    }
    let report = report::Report { subjects: &subjects, keys: &keys, callers, top: args.top };
    if let Some(path) = &args.svg {
        std::fs::write(path, svg::draw(&report.picture()))
            .map_err(|error| Failure::system(format!("svg {path}: {error}")))?;
    }
    if context.json {
        context.print_json(&report.to_json(context.keys))?;
    } else {
        for line in report.lines(context, terminal::Terminal::of(context, args.ascii)) {
            context.print(line)?;
        }
    }
    // A limiter that breaks its promise is a fault, whatever was asked.
    Ok(if report.is_kept() { Outcome::Done } else { Outcome::Found })
}

/// Prints what became of a request.
fn tell(context: &Context) -> Tell<'_> {
    let seconds = |us: u64| us as f64 / SECOND as f64;
    Box::new(move |line, verdict| {
        let (name, after) = match verdict {
            Verdict::Admitted(after) => ("admitted", Some(seconds(after))),
            Verdict::Denied(after) => ("denied", Some(seconds(after))),
            Verdict::TooHeavy => ("too_heavy", None),
            Verdict::Waiting => ("waiting", None),
        };
        match context.json {
            true => context.print(json!({ "line": line, "verdict": name, "seconds": after })),
            false => {
                context.print(format_args!("{line},{name},{}", after.map_or(String::new(), |after| after.to_string())))
            }
        }
    })
}

fn source(args: &Args, policies: &[&str], context: &Context, keys: &mut Keys) -> Result<Box<dyn Source>, Failure> {
    let weight = load::between(&args.weight, |text| text.parse().ok().filter(|weight| *weight > 0));
    let weight = weight.ok_or_else(|| {
        Failure::usage(format!("weight is \"{}\": expected a whole number from 1 on, or two as in 1..8", args.weight))
    })?;
    let time = |text: &str| parse_time(text).ok().map(|time: Duration| time.as_micros() as u64);
    let lasts = args.duration.as_ref().map(|text| {
        load::between(text, time).ok_or_else(|| {
            Failure::usage(format!("duration is \"{text}\": expected a time such as 300ms, or two as in 100ms..2s"))
        })
    });
    let lasts = lasts.transpose()?;
    if let Some(text) = &args.load {
        if !(0.0..=10.0).contains(&args.skew) {
            return Err(Failure::usage(format!("skew is {}: expected 0 to 10", args.skew)));
        }
        let shape = load::Shape { keys: args.keys, skew: args.skew, weight, duration: lasts, random: args.random };
        return Ok(Box::new(Load::new(text, shape)?));
    }
    let one = |parameter: &str, said: Between| match said {
        Between(from, to) if from == to => Ok(from),
        _ => Err(Failure::usage(format!("{parameter} is a range: expected one, but for --load"))),
    };
    let defaults =
        Defaults { weight: one("weight", weight)?, duration: lasts.map(|lasts| one("duration", lasts)).transpose()? };
    if let Some(path) = &args.trace {
        let trace = Trace::open(path, defaults)?;
        return Ok(Box::new(if args.sort { trace.sorted(keys)? } else { trace }));
    }
    let name = args.history.as_deref().unwrap_or_default();
    let since = duration("since", args.since.as_deref().unwrap_or("31d"))?;
    let mut heaviest = u64::MAX;
    for policy in policies {
        heaviest = heaviest.min(Subject::capacity(policy)?);
    }
    Ok(Box::new(History::read(context, name, since, args.with_denied, heaviest, defaults.duration)?))
}
