//! `simulate`: the effect of a policy on a load.

mod guarantee;
mod history;
mod load;
mod measure;
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
use measure::{PrintVerdict, Verdict, Verdicts};
use request::{Keys, SECOND, Source};
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;
use subject::{Callers, Subject};
use trace::{Defaults, Trace};
use workglow_limit::admin::parse_time;

/// Try a policy with a recorded or a generated load
///
/// The limiter itself decides, with a simulated clock: a day takes about a second.
///
/// A trace is CSV with a header (time, and optionally key, weight and duration) or JSON lines ({"at": 0.5, "key": "a"}). Times are
/// seconds from any origin, or RFC 3339; durations are seconds. The columns weight.PART and key.PART have what a request charges a part
/// of the policy, as in "tokens: 200000/1m": weight.tokens. A load is "50/1s for 2m", "10..100/1s for 2m" (a ramp), "200 at once",
/// "nothing for 30s", or several of these separated by commas; without "for" a phase lasts 60 periods. Aligned windows begin at multiples
/// of their length in the times of the trace.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("source").required(true))]
pub struct Args {
    /// The policy, such as "100/1m + 5 concurrent"
    policy: String,
    /// Another policy to compare under the same load; may be repeated
    #[arg(long, value_name = "POLICY")]
    compare: Vec<String>,
    /// A recorded load: CSV or JSON lines; - is standard input
    #[arg(long, value_name = "FILE", group = "source")]
    trace: Option<String>,
    /// A generated load, such as "50/1s for 2m"
    #[arg(long, group = "source")]
    load: Option<String>,
    /// The history of a limit in the store; the units of each minute are spread evenly over it
    #[arg(long, value_name = "NAME", group = "source")]
    history: Option<String>,
    /// Sort the trace by time; the whole trace is read into memory
    #[arg(long, requires = "trace")]
    sort: bool,
    /// Start this long ago in the history, 31d at most
    #[arg(long, value_name = "DURATION", requires = "history")]
    since: Option<String>,
    /// Also replay denied attempts of the history; each retry counts
    #[arg(long, requires = "history")]
    with_denied: bool,
    /// Random (Poisson) arrivals; a seed always gives the same load
    #[arg(long, value_name = "SEED", requires = "load")]
    random: Option<u64>,
    /// The number of keys that the requests come from
    #[arg(long, value_name = "N", default_value_t = 0, requires = "load", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    keys: u32,
    /// The skew between keys (Zipf): the n-th key sends 1/n^SKEW as many requests as the first
    #[arg(long, default_value_t = 0.0, requires = "keys")]
    skew: f64,
    /// The weight of each request, or a range such as 1..8; in a trace, the default
    #[arg(long, default_value = "1")]
    weight: String,
    /// The duration of each job, or a range such as 100ms..2s; in a trace, the default
    #[arg(long, value_name = "DURATION")]
    duration: Option<String>,
    /// Callers wait in line, as `acquire` does, for at most MAX (--wait=30s) or without a bound (--wait)
    #[arg(long, value_name = "MAX", num_args = 0..=1, require_equals = true)]
    wait: Option<Option<String>>,
    /// Print the result of each request as CSV (line, verdict, seconds, and the part that denied) instead of a report
    #[arg(long, conflicts_with_all = ["compare", "svg"])]
    verdicts: bool,
    /// The number of keys to list
    #[arg(long, value_name = "N", default_value_t = 5)]
    top: usize,
    /// Also write the picture to this SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Draw with ASCII characters
    #[arg(long)]
    ascii: bool,
}

pub fn run(args: Args, context: &Context) -> Result<Outcome, Failure> {
    let callers = match &args.wait {
        None => Callers::GoAway,
        Some(most) => Callers::Wait(most.as_deref().map(|most| duration("wait", most)).transpose()?),
    };
    let policies: Vec<&str> = [&args.policy].into_iter().chain(&args.compare).map(String::as_str).collect();
    let mut subjects = Vec::new();
    for policy in &policies {
        subjects.push(Subject::new(policy, callers)?);
    }
    let mut keys = Keys::default();
    let mut source = source(&args, &policies, context, &mut keys)?;
    if args.verdicts {
        let parts = subjects[0].parts.clone();
        if !context.json {
            context.print(if parts.is_empty() { "line,verdict,seconds" } else { "line,verdict,seconds,part" })?;
        }
        subjects[0].verdicts = Some(Verdicts::new(print_verdict(context, parts)));
    }
    let mut asked = 0u64;
    while let Some(request) = source.next(&mut keys)? {
        asked += 1;
        for subject in &mut subjects {
            subject.ask(&request, &keys)?;
        }
    }
    if asked == 0 {
        return Err(Failure::usage("the load has no requests"));
    }
    for subject in &mut subjects {
        subject.finish()?;
    }
    if args.verdicts {
        return Ok(Outcome::Done);
    }
    let report = report::Report { subjects: &subjects, keys: &keys, callers, top: args.top };
    if let Some(path) = &args.svg {
        svg::write(path, &report.picture())?;
    }
    if context.json {
        context.print_json(&report.to_json(context.keys))?;
    } else {
        for line in report.lines(context, terminal::Terminal::of(context, args.ascii)) {
            context.print(line)?;
        }
    }
    // A broken guarantee is a bug of the limiter, whatever the load was.
    Ok(if report.is_kept() { Outcome::Done } else { Outcome::Found })
}

/// Prints the verdict of a request; if the policy has parts, with the part that denied it.
fn print_verdict(context: &Context, parts: Vec<String>) -> PrintVerdict<'_> {
    let seconds = |us: u64| us as f64 / SECOND as f64;
    Box::new(move |line, verdict| {
        let (name, after, part) = match verdict {
            Verdict::Admitted(after) => ("admitted", Some(seconds(after)), None),
            Verdict::Denied(after, part) => ("denied", Some(seconds(after)), part.map(|part| parts[part].as_str())),
            Verdict::TooHeavy => ("too_heavy", None, None),
            Verdict::Waiting => ("waiting", None, None),
        };
        if context.json {
            return context.print(json!({ "line": line, "verdict": name, "seconds": after, "part": part }));
        }
        let after = after.map_or(String::new(), |after| after.to_string());
        match parts.is_empty() {
            true => context.print(format_args!("{line},{name},{after}")),
            false => context.print(format_args!("{line},{name},{after},{}", part.unwrap_or(""))),
        }
    })
}

fn source(args: &Args, policies: &[&str], context: &Context, keys: &mut Keys) -> Result<Box<dyn Source>, Failure> {
    let weight = load::between(&args.weight, |text| text.parse().ok().filter(|weight| *weight > 0));
    let weight = weight.ok_or_else(|| {
        Failure::usage(format!(
            "weight is \"{}\": expected a whole number from 1, or a range such as 1..8",
            args.weight
        ))
    })?;
    let time = |text: &str| parse_time(text).ok().map(|time: Duration| time.as_micros() as u64);
    let lasts = args.duration.as_ref().map(|text| {
        load::between(text, time).ok_or_else(|| {
            Failure::usage(format!(
                "duration is \"{text}\": expected a time such as 300ms, or a range such as 100ms..2s"
            ))
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
        _ => Err(Failure::usage(format!(
            "{parameter} is a range: expected one value, because only --load allows ranges"
        ))),
    };
    let defaults =
        Defaults { weight: one("weight", weight)?, duration: lasts.map(|lasts| one("duration", lasts)).transpose()? };
    if let Some(path) = &args.trace {
        let trace = Trace::open(path, defaults, keys)?;
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
