//! A [`Snapshot`] as text for Prometheus and for other readers of its formats.

use crate::snapshot::{GrantSnapshot, KeySnapshot, LimitSnapshot, Snapshot, TenantSnapshot, Usage, WAIT_BOUNDS};
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
    /// Prometheus's text format 0.0.4, for readers without OpenMetrics support.
    Prometheus,
}

impl MetricsFormat {
    /// Returns the `Content-Type` of a response in this format.
    pub const fn content_type(self) -> &'static str {
        match self {
            MetricsFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            MetricsFormat::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The options of [`Snapshot::to_openmetrics`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MetricsOptions {
    /// The format.
    pub format: MetricsFormat,
    /// The most [hot keys](LimitSnapshot::hot_keys) of each limit that have series; 10 by default.
    pub keys: usize,
    /// Whether keys are shown as text, which can be secret, instead of as [ids](KeySnapshot::id).
    pub show_keys: bool,
}

impl Default for MetricsOptions {
    fn default() -> Self {
        MetricsOptions { format: MetricsFormat::default(), keys: 10, show_keys: false }
    }
}

impl LimitSnapshot {
    /// Returns the names of the [hot keys](LimitSnapshot::hot_keys): their texts, or else `#` and their [ids](KeySnapshot::id). All names
    /// differ, although the texts of long keys are truncated.
    pub fn key_names(&self, is_shown: bool) -> Vec<String> {
        names(self.hot_keys.iter().map(|key| (&*key.key, &*key.id)), is_shown)
    }

    /// Returns the names of its [tenants](LimitSnapshot::tenants): their texts, if they are known, or else `#` and their ids.
    pub fn tenant_names(&self, is_shown: bool) -> Vec<String> {
        names(self.tenants.iter().map(|tenant| (&*tenant.key, &*tenant.id)), is_shown)
    }

    /// Returns the name of the [fullest](LimitSnapshot::fullest) key.
    pub fn fullest_name(&self, is_shown: bool) -> Option<String> {
        self.fullest.as_ref().map(|(text, id)| key_name(text, id, is_shown))
    }
}

fn names<'a>(keys: impl Iterator<Item = (&'a str, &'a str)>, is_shown: bool) -> Vec<String> {
    let mut known = HashSet::new();
    let name = |(text, id): (&str, &str)| {
        let mut name = key_name(text, id, is_shown);
        if known.contains(&name) {
            name = format!("{name}#{id}");
        }
        known.insert(name.clone());
        name
    };
    keys.map(name).collect()
}

fn key_name(text: &str, id: &str, is_shown: bool) -> String {
    if is_shown { text.to_owned() } else { format!("#{id}") }
}

impl Snapshot {
    /// Returns the snapshot as metrics. All names begin with `workglow_limit_`; docs/metrics.md explains them.
    ///
    /// A limit has about 30 series, 2 more for each further window, and 5 for each key.
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
                // Only the fullest window, to keep the number of series small.
                text.usage(labels, key.usage.get(..1).unwrap_or_default(), usage);
            }
        }
        for (family, count) in OF_KEY {
            text.family(*family);
            for (labels, key) in all.iter().flat_map(|limit| &limit.keys) {
                text.sample(labels, Value::Whole(count(key)));
            }
        }
        for (family, value) in OF_TENANT {
            text.family(*family);
            for (labels, tenant) in all.iter().flat_map(|limit| &limit.tenants) {
                text.sample(labels, value(tenant));
            }
        }
        if options.format == MetricsFormat::OpenMetrics {
            text.out.push_str("# EOF\n");
        }
        text.out
    }

    /// Returns whether this snapshot has counts of a limit. On a server each process counts for itself, and an observer has no counts.
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
        // A server's are its own.
        for (family, bytes) in [(STORE_USED, self.used_bytes), (STORE_MAX, self.max_bytes)] {
            text.family(family);
            if self.max_bytes > 0 {
                text.sample("", Value::Whole(bytes));
            }
        }
        text.family(PROCESSES);
        // There is at least the observing process; an empty list means that the processes are not known.
        if !self.processes.is_empty() {
            text.sample("", Value::Whole(self.processes.len() as u64));
        }
        text.family(FAILURES);
        text.sample("", Value::Whole(self.failures));
    }
}

/// A metric family.
#[derive(Clone, Copy)]
struct Family {
    kind: Kind,
    /// The name without the prefix and without the suffix of its kind.
    name: &'static str,
    /// The base unit, which is the end of the name.
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

const fn bytes(name: &'static str, help: &'static str) -> Family {
    family(Kind::Gauge, name, "bytes", help)
}

const fn counter(name: &'static str, help: &'static str) -> Family {
    family(Kind::Counter, name, "", help)
}

const STORE: Family = family(Kind::Info, "_store", "", "The store, and the version of the package.");
const LEDGER_LAG: Family =
    seconds("_ledger_lag_seconds", "Age of the oldest admitted unit that is not written to the database yet.");
const LANE: Family = bytes("_lane_bytes", "Size of the lane; 0 without a lane.");
const STORE_USED: Family = bytes("_store_used_bytes", "Memory of the store that is in use.");
const STORE_MAX: Family = bytes("_store_max_bytes", "The size up to which the store grows (max_size).");
const PROCESSES: Family = gauge("_processes", "Processes on this machine that use the store.");
const FAILURES: Family = counter("_failures", "Decisions of the scraped process that the store failed.");
const INFO: Family =
    family(Kind::Info, "", "", "The limit's kind, its policy, and whether the policy is an operator's override.");
const ALLOWED: Family =
    gauge("_units_allowed", "Units allowed per key in each window (label window in seconds; without it: at once).");
const USED: Family = gauge("_units_used", "Units in use in each window, by the key that uses most of it.");
const WAITS: Family = family(Kind::Histogram, "_wait_seconds", "seconds", "Waits of the starts that had to wait.");
const KEY_ALLOWED: Family = gauge("_key_units_allowed", "Units allowed in the fullest window of a hot key.");
const KEY_USED: Family = gauge("_key_units_used", "Units in use in the fullest window of a hot key.");

type OfLimit = fn(&LimitSnapshot) -> Option<Value>;

/// The metrics of each limit.
const OF_LIMIT: &[(Family, OfLimit)] = &[
    (gauge("_units_peak", "The most units of one key in use at a time, in about the last minute."), |limit| {
        whole(limit.peak)
    }),
    (gauge("_near", "1 if more than 80 % of the limit is in use, else 0."), |limit| whole(limit.is_near().into())),
    (gauge("_leases", "Units of a concurrency limit that running jobs hold."), |limit| {
        let is_at_once = |usage: &&Usage| usage.window.is_none();
        limit.usage.iter().find(is_at_once).map(|usage| Value::Whole(usage.used))
    }),
    (gauge("_waiting", "Callers that wait for a start, in all processes."), |limit| whole(limit.waiting)),
    (gauge("_paused", "1 if the limit is paused, else 0."), |limit| whole((!limit.paused_for.is_zero()).into())),
    (seconds("_paused_for_seconds", "Time until the pause of the limit ends."), |limit| Some(limit.paused_for.into())),
    (seconds("_retry_after_seconds", "Time until the fullest key can start with one unit."), |limit| {
        Some(limit.retry_after.into())
    }),
    (gauge("_keys", "Known keys."), |limit| whole(limit.keys)),
    (bytes("_keys_bytes", "Memory that the limit's keys take."), |limit| in_memory(limit, limit.bytes)),
    (bytes("_keys_spare_bytes", "Memory that further keys may take before new ones are refused."), |limit| {
        in_memory(limit, limit.spare_bytes)
    }),
    (gauge("_grants_held", "Units granted by a server to the scraped process and not used yet."), |limit| {
        limit.grants.map(|GrantSnapshot { held, .. }| Value::Whole(held))
    }),
    (counter("_server_requests", "Requests of the scraped process to the server."), |limit| {
        limit.grants.map(|GrantSnapshot { requests, .. }| Value::Whole(requests))
    }),
    (counter("_admitted", "Admitted starts."), |limit| whole(limit.stats.admitted)),
    (counter("_denied", "Denied attempts, including waiters that timed out."), |limit| whole(limit.stats.denied)),
    (counter("_units_wanted", "Requested units."), |limit| whole(limit.stats.units_wanted)),
    (counter("_units_granted", "Granted units."), |limit| whole(limit.stats.units_granted)),
    (counter("_waited", "Starts that had to wait, and places that were not ready at once."), |limit| {
        whole(limit.stats.waited)
    }),
    (counter("_cancelled", "Permits and places that were cancelled while they counted."), |limit| {
        whole(limit.stats.cancelled)
    }),
    (counter("_places_lost", "Places that were lost because they were used too late."), |limit| {
        whole(limit.places_lost)
    }),
    (counter("_store_errors", "Decisions that the store failed, in all processes."), |limit| {
        whole(limit.stats.store_errors)
    }),
    (counter("_policy_changes", "Changes of the policy."), |limit| whole(limit.stats.policy_changes)),
];

/// A number of bytes of a limit whose keys are in this machine's memory.
fn in_memory(limit: &LimitSnapshot, bytes: u64) -> Option<Value> {
    (limit.bytes > 0).then_some(Value::Whole(bytes))
}

type OfKey = fn(&KeySnapshot) -> u64;

const OF_KEY: &[(Family, OfKey)] = &[
    (counter("_key_admitted", "Admitted starts of a hot key."), |key| key.stats.admitted),
    (counter("_key_denied", "Denied attempts of a hot key."), |key| key.stats.denied),
    (counter("_key_units_granted", "Units granted to a hot key."), |key| key.stats.units_granted),
];

type OfTenant = fn(&TenantSnapshot) -> Value;

const OF_TENANT: &[(Family, OfTenant)] = &[
    (gauge("_tenant_share", "The share that is kept for a tenant of a shared limit."), |tenant| {
        Value::Whole(tenant.share.into())
    }),
    (seconds("_tenant_wait_seconds", "How long the first waiter of a tenant has waited; 0 if none waits."), |tenant| {
        tenant.waits.unwrap_or_default().into()
    }),
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

/// A limit and its keys with their labels, so that each label is escaped only once.
struct Labelled<'a> {
    seen: &'a LimitSnapshot,
    is_counted: bool,
    labels: String,
    keys: Vec<(String, &'a KeySnapshot)>,
    tenants: Vec<(String, &'a TenantSnapshot)>,
}

impl Labelled<'_> {
    fn new<'a>(seen: &'a LimitSnapshot, options: &MetricsOptions) -> Labelled<'a> {
        let mut labels = String::new();
        put_label(&mut labels, "limit", &seen.name);
        let and = |label: &str, name: &str| {
            let mut both = labels.clone();
            put_label(&mut both, label, name);
            both
        };
        let named = seen.hot_keys.iter().zip(seen.key_names(options.show_keys));
        let keys = named.take(options.keys).map(|(key, name)| (and("key", &name), key)).collect();
        let named = seen.tenants.iter().zip(seen.tenant_names(options.show_keys));
        let tenants = named.take(options.keys).map(|(tenant, name)| (and("tenant", &name), tenant)).collect();
        Labelled { seen, is_counted: true, labels, keys, tenants }
    }
}

/// The text so far. Writing to a `String` cannot fail.
struct Text {
    out: String,
    format: MetricsFormat,
    /// The current family, and whether its head is written. The head comes with the first sample.
    family: Option<(Family, bool)>,
}

impl Text {
    fn family(&mut self, family: Family) {
        self.family = Some((family, false));
    }

    fn head(&mut self) -> Family {
        let (family, is_written) = self.family.expect("a sample belongs to a family");
        if !is_written {
            self.family = Some((family, true));
            let Family { kind, name, unit, help } = family;
            // The older format has the names of the samples in the head, and neither infos nor units.
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

    /// Writes the beginning of a sample, with these labels.
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
            // A policy may have two windows of the same length. The fuller one is first.
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
                // OpenMetrics requires the canonical form 1.0.
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
