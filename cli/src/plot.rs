//! `plot`: the usage of a limit over time.

use crate::commands::change::duration;
use crate::context::{Context, Outcome};
use crate::failure::Failure;
use crate::picture::{Layer, Merged, Panel, Picture, Time, Tone, svg, terminal, value};
use crate::text::{count, exact, utc};
use crate::{json, names};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use workglow_limit::observe::{LimitSnapshot, Minute, Observer, Usage};

/// Draw the usage of a limit over time, in the terminal and as SVG
///
/// A sqlite: store keeps a history of each minute of the last 31 days. Servers keep none: use --for to record from now on.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The limit's name
    name: String,
    /// Start this long ago, such as 15m, 24h or 31d [default: the last 24h, from the first minute with data]
    #[arg(long, value_name = "DURATION", conflicts_with = "watch_for")]
    since: Option<String>,
    /// Record from now on, once a second, for this long
    #[arg(long = "for", value_name = "DURATION", id = "watch_for")]
    watch_for: Option<String>,
    /// Also write the picture to this SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Draw with ASCII characters
    #[arg(long)]
    ascii: bool,
}

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);
const MAX_TIME: Duration = Duration::from_secs(31 * 86_400);

/// The time between two live samples.
const BETWEEN: Duration = Duration::from_secs(1);
const MAX_SAMPLES: u32 = 3_600;

/// The counts of a minute, or between two snapshots.
#[derive(Debug, Clone, Copy, Default)]
struct Bin {
    units: u64,
    denied: u64,
    waited: u64,
    /// The most units in use at a time, of one key.
    peak: u64,
}

/// The counts of one limit.
struct Seen {
    limit: LimitSnapshot,
    bins: Vec<Bin>,
}

/// The counts of all limits of a name.
struct Plot {
    name: String,
    limits: Vec<Seen>,
    from: SystemTime,
    width: Duration,
}

pub fn run(args: Args, context: &Context) -> Result<Outcome, Failure> {
    let since = args.since.as_deref().map(|since| duration("since", since)).transpose()?;
    if since.is_some_and(|since| since < MINUTE || since > MAX_TIME) {
        let since = args.since.unwrap_or_default();
        return Err(Failure::usage(format!("since is {since}: expected 1m to 31d")));
    }
    let watch = args.watch_for.as_deref().map(|watch| duration("for", watch)).transpose()?;
    if watch.is_some_and(|watch| watch < BETWEEN || watch > BETWEEN * MAX_SAMPLES) {
        let watch = args.watch_for.unwrap_or_default();
        return Err(Failure::usage(format!("for is {watch}: expected 1s to {}", exact(BETWEEN * MAX_SAMPLES))));
    }
    let store = context.store()?;
    let all = names::check(&args.name, &store)?;
    let mut observer = Observer::new(&store, 0).only(&args.name);
    let plot = match watch {
        Some(watch) => live(&args.name, &all, &mut observer, watch)?,
        None => past(&args.name, &all, &mut observer, since)?,
    };
    let picture = plot.picture();
    if let Some(path) = &args.svg {
        svg::write(path, &picture)?;
    }
    if context.json {
        context.print_json(&plot.to_json())?;
        return Ok(Outcome::Done);
    }
    for line in &picture.about {
        context.print(line)?;
    }
    context.print("")?;
    for line in terminal::draw(&picture, terminal::Terminal::of(context, args.ascii)) {
        context.print(line)?;
    }
    Ok(Outcome::Done)
}

fn parts(name: &str, all: &[String], observer: &mut Observer) -> Result<Vec<LimitSnapshot>, Failure> {
    let seen = observer.look()?;
    Ok(names::parts(name, &seen, all).into_iter().cloned().collect())
}

/// Reads the store's history.
fn past(name: &str, all: &[String], observer: &mut Observer, since: Option<Duration>) -> Result<Plot, Failure> {
    let now = SystemTime::now();
    let wanted = now.checked_sub(since.unwrap_or(DAY)).unwrap_or(SystemTime::UNIX_EPOCH);
    let limits = parts(name, all, observer)?;
    let mut minutes = Vec::new();
    for limit in limits {
        minutes.push((observer.history(&limit.name, wanted)?, limit));
    }
    let Some(first) = minutes.iter().filter_map(|(minutes, _)| minutes.first()).min_by_key(|minute| minute.at).copied()
    else {
        return Err(Failure::usage(format!("the store has no history of \"{name}\" in this time"))
            .hint("servers keep no history; to record from now on, pass --for 60s"));
    };
    // Whole minutes, up to the current one.
    let behind = |at: SystemTime| at.duration_since(first.at).unwrap_or_default().as_secs() / 60;
    let before = if since.is_some() { first.at.duration_since(wanted).unwrap_or_default().as_secs() / 60 } else { 0 };
    let from = first.at - MINUTE * before as u32;
    let length = behind(now) + before + 1;
    let limits = minutes.into_iter().map(|(minutes, limit)| {
        let mut bins = vec![Bin::default(); length as usize];
        for Minute { at, units, denied, waited, peak, .. } in minutes {
            if let Some(bin) = bins.get_mut((behind(at) + before) as usize) {
                *bin = Bin { units, denied, waited, peak };
            }
        }
        Seen { limit, bins }
    });
    Ok(Plot { name: name.to_owned(), limits: limits.collect(), from, width: MINUTE })
}

/// Records from now on.
fn live(name: &str, all: &[String], observer: &mut Observer, watch: Duration) -> Result<Plot, Failure> {
    let (from, began) = (SystemTime::now(), Instant::now());
    let mut before = parts(name, all, observer)?;
    let mut limits: Vec<Seen> = before.iter().map(|limit| Seen { limit: limit.clone(), bins: Vec::new() }).collect();
    let samples = watch.as_secs() as u32;
    for sample in 1..=samples {
        thread::sleep((BETWEEN * sample).saturating_sub(began.elapsed()));
        let now = parts(name, all, observer)?;
        for seen in &mut limits {
            let of = |all: &[LimitSnapshot]| all.iter().find(|limit| limit.name == seen.limit.name).cloned();
            if let (Some(old), Some(new)) = (of(&before), of(&now)) {
                seen.bins.push(Bin::between(&old, &new));
            }
        }
        before = now;
    }
    Ok(Plot { name: name.to_owned(), limits, from, width: BETWEEN })
}

impl Bin {
    fn between(old: &LimitSnapshot, new: &LimitSnapshot) -> Bin {
        let (old, now) = (old.stats, new.stats);
        Bin {
            units: now.units_granted.saturating_sub(old.units_granted),
            denied: now.denied.saturating_sub(old.denied),
            waited: now.waited.saturating_sub(old.waited),
            peak: new.usage.first().map_or(0, |usage| usage.used),
        }
    }
}

impl Plot {
    /// The start of a bin.
    fn at(&self, bin: usize) -> SystemTime {
        self.from + self.width * bin as u32
    }

    fn to(&self) -> SystemTime {
        let bins = self.limits.iter().map(|seen| seen.bins.len()).max().unwrap_or(0);
        self.at(bins)
    }

    fn picture(&self) -> Picture {
        let mut picture = Picture { title: self.name.clone(), ..Picture::default() };
        for seen in &self.limits {
            let sum = |value: fn(&Bin) -> u64| seen.bins.iter().map(value).sum::<u64>();
            let mut line = format!(
                "{}: {} units, {} denied, {} waited",
                seen.name(&self.name),
                count(sum(|bin| bin.units)),
                count(sum(|bin| bin.denied)),
                count(sum(|bin| bin.waited))
            );
            let highest = seen.bins.iter().enumerate().max_by_key(|(_, bin)| bin.peak).filter(|(_, bin)| bin.peak > 0);
            if let (Some((at, bin)), Some(usage)) = (highest, seen.usage()) {
                let share = bin.peak as f64 * 100.0 / usage.limit.max(1) as f64;
                line += &format!(
                    "; at most {} of {} in use ({share:.0} %), at {}",
                    count(bin.peak),
                    count(usage.limit),
                    utc(self.at(at))
                );
            }
            picture.about.push(line);
            picture.panels.extend(self.panels(seen));
        }
        picture
    }

    fn panels(&self, seen: &Seen) -> Vec<Panel> {
        let time = Time::new(json::time(self.from), json::time(self.to()));
        let of = if self.limits.len() > 1 { seen.name(&self.name) } else { String::new() };
        let per = if self.width == MINUTE { "per minute" } else { "per second" };
        let layer = |name, tone, merged, value: fn(&Bin) -> u64| Layer {
            name,
            tone,
            values: seen.bins.iter().map(|bin| value(bin) as f64).collect(),
            merged,
        };
        let usage = seen.usage();
        // With several keys, the limit does not apply to their sum.
        let rate = usage.filter(|_| seen.limit.keys == 0).and_then(|usage| {
            let rate = usage.limit as f64 * self.width.as_secs_f64() / usage.window?.as_secs_f64();
            Some((rate, format!("limit {}", value(rate))))
        });
        let mut panels = vec![Panel {
            title: "starts",
            of: of.clone(),
            unit: format!("units {per}"),
            time,
            layers: vec![
                layer("admitted", Tone::Started, Merged::Mean, |bin| bin.units),
                layer("denied", Tone::Denied, Merged::Mean, |bin| bin.denied),
            ],
            line: rate,
        }];
        if seen.bins.iter().any(|bin| bin.waited > 0) {
            panels.push(Panel {
                title: "had to wait",
                of: of.clone(),
                unit: format!("starts {per}"),
                time,
                layers: vec![layer("waited", Tone::Waiting, Merged::Mean, |bin| bin.waited)],
                line: None,
            });
        }
        panels.push(Panel {
            title: if seen.limit.keys == 0 { "in use" } else { "in use by the fullest key" },
            of,
            unit: "units".to_owned(),
            time,
            layers: vec![layer("in use", Tone::Used, Merged::Most, |bin| bin.peak)],
            line: usage.map(|usage| (usage.limit as f64, format!("limit {}", value(usage.limit as f64)))),
        });
        panels
    }

    fn to_json(&self) -> Value {
        let limits = self.limits.iter().map(|seen| {
            let usage = seen.usage();
            json!({
                "name": seen.limit.name,
                "policy": seen.limit.policy().to_string(),
                "limit": usage.map(|usage| usage.limit),
                "window": usage.and_then(|usage| usage.window).map(json::seconds),
                "bins": seen.bins.iter().enumerate().map(|(i, bin)| json!({
                    "at": json::time(self.at(i)),
                    "units": bin.units,
                    "denied": bin.denied,
                    "waited": bin.waited,
                    "peak": bin.peak,
                })).collect::<Vec<_>>(),
            })
        });
        json!({
            "name": self.name,
            "from": json::time(self.from),
            "to": json::time(self.to()),
            "width": json::seconds(self.width),
            "limits": limits.collect::<Vec<_>>(),
        })
    }
}

impl Seen {
    /// The usage of the window that is the fullest now.
    fn usage(&self) -> Option<Usage> {
        self.limit.usage.first().copied()
    }

    /// The limit's policy; in a composite, with the name of the part.
    fn name(&self, whole: &str) -> String {
        let policy = self.limit.policy();
        match self.limit.name == whole {
            true => policy.to_string(),
            false => format!("{} ({policy})", self.limit.name.trim_start_matches(whole).trim_start_matches('/')),
        }
    }
}
