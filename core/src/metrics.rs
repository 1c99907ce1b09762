//! A [`Snapshot`] as text for Prometheus, and for all who read its formats.

use crate::observe::{GrantSnapshot, KeySnapshot, LimitSnapshot, Snapshot, Usage, WAIT_BOUNDS};
use crate::stats::Stats;
use std::collections::HashSet;
use std::fmt::{Display, Write};
use std::time::Duration;

/// A text format of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MetricsFormat {
    /// OpenMetrics 1.0.
    #[default]
    OpenMetrics,
    /// Prometheus's text format 0.0.4, for who does not know OpenMetrics.
    Prometheus,
}

impl MetricsFormat {
    /// The `Content-Type` that a response with such a text has.
    pub const fn content_type(self) -> &'static str {
        match self {
            MetricsFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            MetricsFormat::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// What [`Snapshot::to_openmetrics`] writes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MetricsOptions {
    /// The format.
    pub format: MetricsFormat,
    /// So many of the [hot keys](LimitSnapshot::hot_keys) of each limit have series of their own, at most; 10.
    pub keys: usize,
    /// Are keys called by their texts, which can be secrets, or by their [ids](KeySnapshot::id)?
    pub show_keys: bool,
}

impl Default for MetricsOptions {
    fn default() -> Self {
        MetricsOptions { format: MetricsFormat::default(), keys: 10, show_keys: false }
    }
}

impl LimitSnapshot {
    /// What each of the [hot keys](LimitSnapshot::hot_keys) is called: by its text, or else `#` and its [id](KeySnapshot::id). No two
    /// are called the same, though the texts of long ones are beginnings.
    pub fn key_names(&self, is_shown: bool) -> Vec<String> {
        let mut names: Vec<String> = Vec::with_capacity(self.hot_keys.len());
        let mut known = HashSet::new();
        for key in &self.hot_keys {
            let mut name = key_name(&key.key, &key.id, is_shown);
            if known.contains(&name) {
                name = format!("{name}#{}", key.id);
            }
            known.insert(name.clone());
            names.push(name);
        }
        names
    }

    /// What the [fullest](LimitSnapshot::fullest) key is called.
    pub fn fullest_name(&self, is_shown: bool) -> Option<String> {
        self.fullest.as_ref().map(|(text, id)| key_name(text, id, is_shown))
    }
}

fn key_name(text: &str, id: &str, is_shown: bool) -> String {
    if is_shown { text.to_owned() } else { format!("#{id}") }
}

impl Snapshot {
    /// The snapshot as metrics. Every name begins with `workglow_limit_`; docs/metrics.md says what each is.
    ///
    /// A limit has about 30 series, 2 more for each further window, and each of its keys that are told 5.
    pub fn to_openmetrics(&self, options: &MetricsOptions) -> String {
        let new = |limit| Labelled { is_counted: self.counts(limit), ..Labelled::new(limit, options) };
        let all: Vec<Labelled> = self.limits.iter().map(new).collect();
        let keys = all.iter().map(|limit| limit.keys.len()).sum::<usize>();
        let mut text = Text {
            out: String::with_capacity(4096 + 2560 * all.len() + 768 * keys),
            format: options.format,
            family: None,
        };
        self.store(&mut text);
        text.family(INFO);
        for limit in &all {
            text.begin("_info", &limit.labels);
            text.label("kind", limit.seen.kind);
            text.label("policy", &limit.seen.policy().to_string());
            text.label("overridden", if limit.seen.overriding.is_some() { "true" } else { "false" });
            text.end(1);
        }
        for (family, usage) in [(ALLOWED, (|usage| usage.limit) as fn(&Usage) -> u64), (USED, |usage| usage.used)] {
            text.family(family);
            for limit in &all {
                text.usage(&limit.labels, &limit.seen.usage, usage);
            }
        }
        for (family, value) in OF_LIMIT {
            text.family(*family);
            for limit in all.iter().filter(|limit| limit.is_counted || family.kind != Kind::Counter) {
                if let Some(value) = value(limit.seen) {
                    text.sample(&limit.labels, value);
                }
            }
        }
        text.family(WAITS);
        for limit in all.iter().filter(|limit| limit.is_counted) {
            text.waits(limit);
        }
        for (family, usage) in
            [(KEY_ALLOWED, (|usage| usage.limit) as fn(&Usage) -> u64), (KEY_USED, |usage| usage.used)]
        {
            text.family(family);
            for (labels, key) in all.iter().flat_map(|limit| &limit.keys) {
                // Of the fullest window only: a key has few series.
                text.usage(labels, key.usage.get(..1).unwrap_or_default(), usage);
            }
        }
        for (family, count) in OF_KEY {
            text.family(*family);
            for (labels, key) in all.iter().flat_map(|limit| &limit.keys) {
                text.sample(labels, Value::Whole(count(key)));
            }
        }
        if options.format == MetricsFormat::OpenMetrics {
            text.out.push_str("# EOF\n");
        }
        text.out
    }

    /// Does anybody count for this snapshot what happens to a limit? On a server each process does for itself, and one that only looks
    /// has nothing to say.
    fn counts(&self, limit: &LimitSnapshot) -> bool {
        self.counts_all_processes || limit.stats != Stats::default()
    }

    fn store(&self, text: &mut Text) {
        text.family(STORE);
        text.begin("_info", "");
        text.label("store", &self.url);
        text.label("version", env!("CARGO_PKG_VERSION"));
        text.end(1);
        text.family(LEDGER_LAG);
        text.sample("", self.ledger_lag.into());
        text.family(LANE);
        text.sample("", Value::Whole(self.lane_bytes));
        text.family(PROCESSES);
        // One looks on, at least: none are those that nobody knows.
        if !self.processes.is_empty() {
            text.sample("", Value::Whole(self.processes.len() as u64));
        }
        text.family(FAILURES);
        text.sample("", Value::Whole(self.failures));
    }
}

/// A name with what stands above its samples.
#[derive(Clone, Copy)]
struct Family {
    kind: Kind,
    /// Without the prefix, and without what its kind adds.
    name: &'static str,
    /// The base unit, which its name ends in.
    unit: &'static str,
    help: &'static str,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Gauge,
    Counter,
    Histogram,
    Info,
}

const fn family(kind: Kind, name: &'static str, unit: &'static str, help: &'static str) -> Family {
    Family { kind, name, unit, help }
}

const fn gauge(name: &'static str, help: &'static str) -> Family {
    family(Kind::Gauge, name, "", help)
}

const fn seconds(name: &'static str, help: &'static str) -> Family {
    family(Kind::Gauge, name, "seconds", help)
}

const fn counter(name: &'static str, help: &'static str) -> Family {
    family(Kind::Counter, name, "", help)
}

const STORE: Family = family(Kind::Info, "_store", "", "The store that is looked at, and the version that looks.");
const LEDGER_LAG: Family =
    seconds("_ledger_lag_seconds", "How long admitted units have been waiting to be written to the database, at most.");
const LANE: Family = family(Kind::Gauge, "_lane_bytes", "bytes", "Size of the lane, 0 where there is none.");
const PROCESSES: Family = gauge("_processes", "Processes of this machine that use the store.");
const FAILURES: Family = counter("_failures", "Decisions of the process that is asked which the store failed.");
const INFO: Family = family(
    Kind::Info,
    "",
    "",
    "What the limit is: its kind, the policy that holds, and whether an operator put it above the declared one.",
);
const ALLOWED: Family =
    gauge("_units_allowed", "Units that the limit allows a key in each of its windows (in seconds; none: at once).");
const USED: Family = gauge("_units_used", "Units of each window that are in use by the key that uses most of it.");
const WAITS: Family =
    family(Kind::Histogram, "_wait_seconds", "seconds", "How long those starts waited that had to wait.");
const KEY_ALLOWED: Family = gauge("_key_units_allowed", "Units that a hot key is allowed in its fullest window.");
const KEY_USED: Family = gauge("_key_units_used", "Units of a hot key's fullest window that are in use.");

type OfLimit = fn(&LimitSnapshot) -> Option<Value>;

/// What every limit has one of.
const OF_LIMIT: &[(Family, OfLimit)] = &[
    (gauge("_units_peak", "The most units in use at a time, of one key, in the last minute or so."), |limit| {
        whole(limit.peak)
    }),
    (gauge("_near", "Is more than 80 % of the limit used (1), or not (0)?"), |limit| whole(limit.is_near().into())),
    (gauge("_leases", "Units of a concurrency limit that are held by running jobs."), |limit| {
        let is_at_once = |usage: &&Usage| usage.window.is_none();
        limit.usage.iter().find(is_at_once).map(|usage| Value::Whole(usage.used))
    }),
    (gauge("_waiting", "Callers that wait for a start, in all processes."), |limit| whole(limit.waiting)),
    (gauge("_paused", "Is the limit paused (1), or not (0)?"), |limit| whole((!limit.paused_for.is_zero()).into())),
    (seconds("_paused_for_seconds", "For how long the limit is still paused."), |limit| Some(limit.paused_for.into())),
    (seconds("_retry_after_seconds", "How long until the fullest key has room for one unit."), |limit| {
        Some(limit.retry_after.into())
    }),
    (gauge("_keys", "Keys that are known."), |limit| whole(limit.keys)),
    (
        gauge(
            "_grants_held",
            "Units that a server has granted to the process that is asked, and that it has not used.",
        ),
        |limit| limit.grants.map(|GrantSnapshot { held, .. }| Value::Whole(held)),
    ),
    (counter("_server_requests", "How often the process that is asked has asked the server."), |limit| {
        limit.grants.map(|GrantSnapshot { requests, .. }| Value::Whole(requests))
    }),
    (counter("_admitted", "Starts that were admitted."), |limit| whole(limit.stats.admitted)),
    (counter("_denied", "Attempts that were denied, and waiters whose time was up."), |limit| {
        whole(limit.stats.denied)
    }),
    (counter("_units_wanted", "Units that starts asked for."), |limit| whole(limit.stats.units_wanted)),
    (counter("_units_granted", "Units that were granted."), |limit| whole(limit.stats.units_granted)),
    (counter("_waited", "Starts that had to wait, and places that were not ready at once."), |limit| {
        whole(limit.stats.waited)
    }),
    (counter("_cancelled", "Permits and places that were cancelled while they counted."), |limit| {
        whole(limit.stats.cancelled)
    }),
    (counter("_places_lost", "Places whose owners came too late."), |limit| whole(limit.places_lost)),
    (counter("_store_errors", "Decisions that the store failed, in all processes."), |limit| {
        whole(limit.stats.store_errors)
    }),
    (counter("_policy_changes", "How often another policy came to hold."), |limit| whole(limit.stats.policy_changes)),
];

type OfKey = fn(&KeySnapshot) -> u64;

const OF_KEY: &[(Family, OfKey)] = &[
    (counter("_key_admitted", "Starts of a hot key that were admitted."), |key| key.stats.admitted),
    (counter("_key_denied", "Attempts of a hot key that were denied."), |key| key.stats.denied),
    (counter("_key_units_granted", "Units that were granted to a hot key."), |key| key.stats.units_granted),
];

enum Value {
    Whole(u64),
    Seconds(Duration),
}

fn whole(value: u64) -> Option<Value> {
    Some(Value::Whole(value))
}

impl From<Duration> for Value {
    fn from(duration: Duration) -> Value {
        Value::Seconds(duration)
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Whole(value) => value.fmt(f),
            Value::Seconds(duration) => duration.as_secs_f64().fmt(f),
        }
    }
}

/// A limit with its labels, and its keys with theirs: each is escaped once.
struct Labelled<'a> {
    seen: &'a LimitSnapshot,
    is_counted: bool,
    labels: String,
    keys: Vec<(String, &'a KeySnapshot)>,
}

impl Labelled<'_> {
    fn new<'a>(seen: &'a LimitSnapshot, options: &MetricsOptions) -> Labelled<'a> {
        let mut labels = String::new();
        put_label(&mut labels, "limit", &seen.name);
        let labelled = |(key, name): (&'a KeySnapshot, String)| {
            let mut both = labels.clone();
            put_label(&mut both, "key", &name);
            (both, key)
        };
        let named = seen.hot_keys.iter().zip(seen.key_names(options.show_keys));
        let keys = named.take(options.keys).map(labelled).collect();
        Labelled { seen, is_counted: true, labels, keys }
    }
}

/// The text as it grows. Writing to a `String` cannot fail.
struct Text {
    out: String,
    format: MetricsFormat,
    /// The family whose samples are written. Its head is written with the first.
    family: Option<(Family, bool)>,
}

impl Text {
    fn family(&mut self, family: Family) {
        self.family = Some((family, false));
    }

    fn head(&mut self) -> Family {
        let (family, is_told) = self.family.expect("a sample is of a family");
        if !is_told {
            self.family = Some((family, true));
            let Family { kind, name, unit, help } = family;
            // The older format names what the samples are called, and knows neither infos nor units.
            let is_open = self.format == MetricsFormat::OpenMetrics;
            let (suffix, word) = match kind {
                Kind::Gauge => ("", "gauge"),
                Kind::Histogram => ("", "histogram"),
                Kind::Counter => (if is_open { "" } else { "_total" }, "counter"),
                Kind::Info if is_open => ("", "info"),
                Kind::Info => ("_info", "gauge"),
            };
            let _ = writeln!(self.out, "# HELP {PREFIX}{name}{suffix} {help}");
            let _ = writeln!(self.out, "# TYPE {PREFIX}{name}{suffix} {word}");
            if is_open && !unit.is_empty() {
                let _ = writeln!(self.out, "# UNIT {PREFIX}{name} {unit}");
            }
        }
        family
    }

    /// Begins a sample, up to the last of the labels that were written before.
    fn begin(&mut self, suffix: &str, labels: &str) {
        let family = self.head();
        self.out.push_str(PREFIX);
        self.out.push_str(family.name);
        self.out.push_str(suffix);
        self.out.push('{');
        self.out.push_str(labels);
    }

    fn label(&mut self, name: &str, value: &str) {
        put_label(&mut self.out, name, value);
    }

    fn end(&mut self, value: impl Display) {
        if self.out.ends_with('{') {
            self.out.pop();
        } else {
            self.out.push('}');
        }
        let _ = writeln!(self.out, " {value}");
    }

    fn sample(&mut self, labels: &str, value: Value) {
        let suffix = if self.head().kind == Kind::Counter { "_total" } else { "" };
        self.begin(suffix, labels);
        self.end(value);
    }

    fn usage(&mut self, labels: &str, usage: &[Usage], value: fn(&Usage) -> u64) {
        for (i, one) in usage.iter().enumerate() {
            // A policy may have two windows of a length. The fuller one comes first.
            if usage[..i].iter().any(|before| before.window == one.window) {
                continue;
            }
            self.begin("", labels);
            if let Some(window) = one.window {
                self.label("window", &Value::Seconds(window).to_string());
            }
            self.end(value(one));
        }
    }

    fn waits(&mut self, limit: &Labelled) {
        let mut count = 0;
        for (i, waits) in limit.seen.waits.iter().enumerate() {
            count += waits;
            self.begin("_bucket", &limit.labels);
            match WAIT_BOUNDS.get(i) {
                // As OpenMetrics writes numbers: 1.0.
                Some(bound) => self.label("le", &format!("{:?}", bound.as_secs_f64())),
                None => self.label("le", "+Inf"),
            }
            self.end(count);
        }
        self.begin("_sum", &limit.labels);
        self.end(Value::from(limit.seen.stats.wait_time));
        self.begin("_count", &limit.labels);
        self.end(count);
    }
}

const PREFIX: &str = "workglow_limit";

fn put_label(out: &mut String, name: &str, value: &str) {
    if !out.is_empty() && !out.ends_with('{') {
        out.push(',');
    }
    out.push_str(name);
    out.push_str("=\"");
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
