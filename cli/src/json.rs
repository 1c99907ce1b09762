//! What is seen of a store, as JSON. The same shapes everywhere: what commands print, and what the page and other languages read.
//!
//! Durations are in seconds, times in seconds since 1970.

use crate::commands::doctor::Finding;
use crate::serve::{Pace, Row, View, fullness};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use workglow_limit::{Decision, KeySnapshot, LimitSnapshot, Minute, Problem, Snapshot, Stats, Usage, WAIT_BOUNDS};

/// May the texts of keys be shown? They can be secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// Their ids only.
    Hidden,
    /// Their texts too.
    Shown,
}

/// A duration.
pub fn seconds(duration: Duration) -> f64 {
    // To the microsecond, as limits count.
    (duration.as_secs_f64() * 1e6).round() / 1e6
}

/// A moment.
pub fn time(at: SystemTime) -> f64 {
    seconds(at.duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// A whole store.
pub fn snapshot(seen: &Snapshot, keys: Keys) -> Value {
    json!({
        "at": time(seen.at),
        "store": seen.url,
        "limits": seen.limits.iter().map(|limit| self::limit(limit, keys)).collect::<Vec<_>>(),
        "processes": processes(seen),
        "counts_all_processes": seen.counts_all_processes,
        "ledger_lag": seconds(seen.ledger_lag),
        "lane_bytes": seen.lane_bytes,
        "failures": seen.failures,
    })
}

/// One limit.
pub fn limit(seen: &LimitSnapshot, keys: Keys) -> Value {
    json!({
        "name": seen.name,
        "kind": seen.kind,
        "policy": seen.policy().to_string(),
        "declared": seen.declared.to_string(),
        "override": seen.overriding.map(|policy| policy.to_string()),
        "usage": usage(&seen.usage),
        "fullest": seen.fullest.as_ref().map(|(text, id)| key_name(text, id, keys)),
        "near": seen.is_near(),
        "peak": seen.peak,
        "retry_after": seconds(seen.retry_after),
        "paused_for": seconds(seen.paused_for),
        "waiting": seen.waiting,
        "waits": {
            "bounds": WAIT_BOUNDS.map(seconds),
            "counts": seen.waits,
        },
        "places_lost": seen.places_lost,
        "stats": stats(&seen.stats),
        "keys": seen.keys,
        "hot_keys": seen.hot_keys.iter().map(|found| key(found, keys)).collect::<Vec<_>>(),
        "grants": seen.grants.map(|grants| json!({ "held": grants.held, "requests": grants.requests })),
    })
}

/// One key of a limit.
pub fn key(seen: &KeySnapshot, keys: Keys) -> Value {
    json!({
        "key": key_name(&seen.key, &seen.id, keys),
        "override": seen.overriding.map(|policy| policy.to_string()),
        "usage": usage(&seen.usage),
        "retry_after": seconds(seen.retry_after),
        "paused_for": seconds(seen.paused_for),
        "stats": stats(&seen.stats),
    })
}

/// What a key is called.
pub fn key_name(text: &str, id: &str, keys: Keys) -> String {
    match keys {
        Keys::Shown => text.to_owned(),
        Keys::Hidden => format!("#{id}"),
    }
}

fn usage(all: &[Usage]) -> Vec<Value> {
    let one = |usage: &Usage| json!({ "limit": usage.limit, "used": usage.used, "window": usage.window.map(seconds) });
    all.iter().map(one).collect()
}

/// What was counted.
pub fn stats(counted: &Stats) -> Value {
    json!({
        "admitted": counted.admitted,
        "denied": counted.denied,
        "units_wanted": counted.units_wanted,
        "units_granted": counted.units_granted,
        "waited": counted.waited,
        "wait_time": seconds(counted.wait_time),
        "cancelled": counted.cancelled,
        "store_errors": counted.store_errors,
        "policy_changes": counted.policy_changes,
    })
}

/// What was counted in one minute.
pub fn minute(counted: &Minute) -> Value {
    json!({
        "at": time(counted.at),
        "units": counted.units,
        "denied": counted.denied,
        "waited": counted.waited,
        "peak": counted.peak,
    })
}

/// The limits of a name: one, or the parts of a composite.
pub fn limits(name: &str, seen: &Snapshot, limits: &[&LimitSnapshot], keys: Keys) -> Value {
    json!({
        "at": time(seen.at),
        "store": seen.url,
        "name": name,
        "limits": limits.iter().map(|limit| self::limit(limit, keys)).collect::<Vec<_>>(),
    })
}

/// A key, as one limit sees it.
pub(crate) struct Part<'s> {
    pub limit: &'s LimitSnapshot,
    pub decision: Decision,
    pub stats: Stats,
    /// Does it allow another number of units than for other keys?
    pub is_other: bool,
    /// What the snapshot says of it, if it is among the keys there.
    pub seen: Option<&'s KeySnapshot>,
}

/// What is used, for people and programs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Used {
    pub limit: u64,
    pub used: u64,
    pub window: Option<Duration>,
}

impl Part<'_> {
    /// What is used of each window; of a key that the snapshot does not name, of the one that has least room.
    pub(crate) fn usage(&self) -> Vec<Used> {
        match self.seen {
            Some(seen) => seen
                .usage
                .iter()
                .map(|usage| Used { limit: usage.limit, used: usage.used, window: usage.window })
                .collect(),
            None => {
                let Decision { limit, remaining, .. } = self.decision;
                let only = (self.limit.usage.len() == 1).then(|| self.limit.usage[0].window).flatten();
                vec![Used { limit, used: limit.saturating_sub(remaining), window: only }]
            }
        }
    }
}

/// A key that the user named, as each limit of a name sees it.
pub(crate) fn key_of_limits(name: &str, key: &str, seen: &Snapshot, parts: &[Part]) -> Value {
    let one = |used: &Used| json!({ "limit": used.limit, "used": used.used, "window": used.window.map(seconds) });
    let part = |part: &Part| {
        let own = part.seen.and_then(|seen| seen.overriding).map(|policy| policy.to_string());
        // The snapshot names the policies of keys that were used; of others it is only known that they have one.
        let policy = if own.is_none() && part.is_other { None } else { Some(part.limit.policy().to_string()) };
        json!({
            "name": part.limit.name,
            "kind": part.limit.kind,
            "policy": own.clone().or(policy),
            "override": own,
            "usage": part.usage().iter().map(one).collect::<Vec<_>>(),
            "retry_after": seconds(part.decision.retry_after),
            "paused_for": seconds(part.seen.map_or(Duration::ZERO, |seen| seen.paused_for).max(part.limit.paused_for)),
            "stats": stats(&part.stats),
        })
    };
    json!({
        "at": time(seen.at),
        "store": seen.url,
        "name": name,
        "key": key,
        "limits": parts.iter().map(part).collect::<Vec<_>>(),
    })
}

/// What a start would be answered.
pub fn decision(name: &str, key: Option<&str>, weight: u64, seen: &Decision) -> Value {
    json!({
        "name": name,
        "key": key,
        "weight": weight,
        "admitted": seen.admitted,
        "retry_after": seconds(seen.retry_after),
        "suggested_after": seconds(seen.suggested_after),
        "remaining": seen.remaining,
        "limit": seen.limit,
        "reset_after": seconds(seen.reset_after),
        "denied_by": seen.denied_by.as_deref(),
    })
}

/// Something that `verify` found.
pub fn problem(found: &Problem) -> Value {
    json!({ "found": found.found, "is_repaired": found.is_repaired })
}

/// Something that `doctor` found.
pub(crate) fn finding(found: &Finding) -> Value {
    json!({
        "severity": found.severity.name(),
        "setting": found.setting,
        "value": found.value,
        "what": found.what,
        "instead": found.instead,
    })
}

/// A change that was made, of a limit or of one of its keys, with what it is worth saying of it.
pub fn change(done: &str, name: &str, key: Option<&str>, more: Value) -> Value {
    let mut all = json!({ "done": done, "name": name, "key": key });
    if let (Some(all), Value::Object(more)) = (all.as_object_mut(), more) {
        all.extend(more);
    }
    all
}

/// Something that has happened, of a limit or (`None`) of the store.
pub fn event(at: SystemTime, name: &str, limit: Option<&str>, more: &Value) -> Value {
    let mut all = json!({ "at": time(at), "event": name });
    if let (Some(all), Value::Object(more)) = (all.as_object_mut(), more) {
        if let Some(limit) = limit {
            all.insert("limit".to_owned(), limit.into());
        }
        all.extend(more.clone());
    }
    all
}

/// What went wrong, and what to do about it.
pub fn error(code: &str, message: &str, hint: Option<&str>) -> Value {
    json!({ "error": { "code": code, "message": message, "hint": hint } })
}

fn pace(pace: Pace) -> Value {
    let milli = |count: f64| (count * 1e3).round() / 1e3;
    json!({ "granted": milli(pace.granted), "denied": milli(pace.denied) })
}

/// Some of the limits of a store.
pub(crate) fn page_of(view: &View, found: usize, offset: usize, rows: &[Row], keys: Keys) -> Value {
    json!({
        "at": time(view.seen.at),
        "summary": summary(view),
        "found": found,
        "offset": offset,
        "limits": rows.iter().map(|&row| detail(row, keys)).collect::<Vec<_>>(),
    })
}

/// A limit with how many units are granted and attempts denied a second.
fn detail((seen, at): Row, keys: Keys) -> Value {
    let mut all = limit(seen, keys);
    all["pace"] = pace(at);
    all
}

fn processes(seen: &Snapshot) -> Vec<Value> {
    let one = |process: &workglow_limit::ProcessSnapshot| json!({ "pid": process.pid, "program": process.program, "since": seconds(process.since) });
    seen.processes.iter().map(one).collect()
}

/// A store without its limits.
fn summary(view: &View) -> Value {
    json!({
        "store": view.seen.url,
        "limits": view.seen.limits.len(),
        "full": view.totals.full,
        "near": view.totals.near,
        "paused": view.totals.paused,
        "overridden": view.totals.overridden,
        "waiting": view.totals.waiting,
        "pace": pace(view.totals.pace),
        "counts_all_processes": view.seen.counts_all_processes,
        "processes": processes(&view.seen),
        "ledger_lag": seconds(view.seen.ledger_lag),
        "lane_bytes": view.seen.lane_bytes,
        "failures": view.seen.failures,
    })
}

/// A limit in a list.
fn row((seen, at): Row) -> Value {
    json!({
        "name": seen.name,
        "kind": seen.kind,
        "policy": seen.policy().to_string(),
        "is_overridden": seen.overriding.is_some(),
        "usage": usage(&seen.usage),
        "share": (fullness(seen) * 1e4).round() / 1e4,
        "near": seen.is_near(),
        "retry_after": seconds(seen.retry_after),
        "paused_for": seconds(seen.paused_for),
        "waiting": seen.waiting,
        "pace": pace(at),
    })
}

/// What a stream of events begins with.
pub(crate) fn hello(takes_changes: bool, keys: Keys, quarter: Duration) -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "takes_changes": takes_changes,
        "shows_keys": keys == Keys::Shown,
        "quarter": seconds(quarter),
    })
}

/// The sparkline of each limit: in percent, oldest first, `null` where nothing was seen.
pub(crate) type Sparks = Vec<(String, Vec<Option<u8>>)>;

/// What a page shows: some limits, and perhaps one of them in full, `null` if there is none of its name.
pub(crate) fn look(
    view: &View,
    found: usize,
    offset: usize,
    rows: &[Row],
    sparks: Option<Sparks>,
    chosen: Option<Option<Row>>,
    keys: Keys,
) -> Value {
    let mut all = json!({
        "at": time(view.seen.at),
        "tick": view.tick,
        "summary": summary(view),
        "found": found,
        "offset": offset,
        "limits": rows.iter().map(|&one| row(one)).collect::<Vec<_>>(),
    });
    if let Some(sparks) = sparks {
        // Where a name says `__proto__`, an object of JavaScript's would not take it.
        all["sparks"] = sparks.into_iter().map(|(name, spark)| json!([name, spark])).collect();
    }
    if let Some(chosen) = chosen {
        all["detail"] = chosen.map(|chosen| detail(chosen, keys)).into();
    }
    all
}

/// The last quarter of an hour of a limit, as columns.
#[derive(Debug, Default)]
pub(crate) struct Series {
    pub step: Duration,
    pub at: Vec<SystemTime>,
    pub windows: Vec<SeriesWindow>,
    pub granted: Vec<u32>,
    pub denied: Vec<u32>,
    pub waiting: Vec<u32>,
}

/// What was allowed and used of a window; `None` while it was none of the limit's.
#[derive(Debug, Default)]
pub(crate) struct SeriesWindow {
    pub window: Option<Duration>,
    pub limit: Vec<Option<u64>>,
    pub used: Vec<Option<u32>>,
}

/// The same in JSON.
pub(crate) fn series(name: &str, seen: &Series) -> Value {
    json!({
        "limit": name,
        "step": seconds(seen.step),
        "at": seen.at.iter().map(|&at| time(at)).collect::<Vec<_>>(),
        "windows": seen.windows.iter().map(|column| json!({
            "window": column.window.map(seconds),
            "limit": column.limit,
            "used": column.used,
        })).collect::<Vec<_>>(),
        "granted": seen.granted,
        "denied": seen.denied,
        "waiting": seen.waiting,
    })
}

/// What was counted of a limit, in steps of the same length.
pub(crate) fn history(name: &str, step: Duration, steps: &[Minute]) -> Value {
    json!({ "limit": name, "step": seconds(step), "steps": steps.iter().map(minute).collect::<Vec<_>>() })
}
