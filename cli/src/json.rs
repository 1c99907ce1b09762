//! Snapshots and results as JSON. Commands, the page and the other languages use the same shapes.
//!
//! Durations are in seconds, times in seconds since 1970.

use crate::commands::doctor::Finding;
use crate::serve::{Pace, Row, View, fullness};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use workglow_limit::Decision;
use workglow_limit::admin::Problem;
use workglow_limit::observe::{
    HeadSnapshot, HolderSnapshot, KeySnapshot, LimitSnapshot, LineSnapshot, Minute, ProcessSnapshot, Snapshot, Stats,
    TenantSnapshot, Usage, WAIT_BOUNDS, WaitingSnapshot,
};

/// The form in which keys are shown. Keys can be secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// As ids.
    Hidden,
    /// As text.
    Shown,
}

/// A duration.
pub fn seconds(duration: Duration) -> f64 {
    // Rounded to the microsecond, the resolution of limits.
    (duration.as_secs_f64() * 1e6).round() / 1e6
}

/// A time.
pub fn time(at: SystemTime) -> f64 {
    seconds(at.duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// A snapshot of a store.
pub fn snapshot(seen: &Snapshot, keys: Keys) -> Value {
    json!({
        "at": time(seen.at),
        "store": seen.url,
        "limits": seen.limits.iter().map(|limit| self::limit(limit, keys)).collect::<Vec<_>>(),
        "processes": processes(seen),
        "counts_all_processes": seen.counts_all_processes,
        "ledger_lag": seconds(seen.ledger_lag),
        "lane_bytes": seen.lane_bytes,
        "used_bytes": seen.used_bytes,
        "max_bytes": seen.max_bytes,
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
        "overridden_by": seen.overridden_by,
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
        "bytes": seen.bytes,
        "spare_bytes": seen.spare_bytes,
        "hot_keys": seen.hot_keys.iter().map(|found| key(found, keys)).collect::<Vec<_>>(),
        "tenants": seen.tenants.iter().map(|found| tenant(found, keys)).collect::<Vec<_>>(),
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

/// One tenant of a shared limit.
fn tenant(seen: &TenantSnapshot, keys: Keys) -> Value {
    json!({
        "key": key_name(&seen.key, &seen.id, keys),
        "share": seen.share,
        "waits": seen.waits.map(seconds),
    })
}

/// Who has the units of a limit and key, who waits for them, and after how long one more start would begin.
pub fn line(limit: &str, key: &str, seen: &LineSnapshot, after: Option<Duration>) -> Value {
    let process = |seen: &Option<ProcessSnapshot>| {
        seen.as_ref().map(|seen| json!({ "pid": seen.pid, "program": seen.program, "since": seconds(seen.since) }))
    };
    let holder = |seen: &HolderSnapshot| {
        let process = process(&seen.process);
        json!({ "process": process, "starts": seen.starts, "units": seen.units, "cools_down": seen.cools_down })
    };
    let head = |seen: &HeadSnapshot| {
        json!({
            "process": process(&seen.process),
            "waits": seconds(seen.waits),
            "units": seen.units,
            "priority": seen.priority,
            "tenant": seen.tenant_name(),
            "passed": seen.is_passed,
        })
    };
    let waiting = |seen: &WaitingSnapshot| json!({ "process": process(&seen.process), "callers": seen.callers });
    json!({
        "limit": limit,
        "key": key,
        "holders": seen.holders.iter().map(holder).collect::<Vec<_>>(),
        "next": seen.heads.iter().map(head).collect::<Vec<_>>(),
        "waiting": seen.waiting.iter().map(waiting).collect::<Vec<_>>(),
        "after": after.map(seconds),
    })
}

/// The name under which a key is shown.
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

/// The counters of a limit or a key.
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

/// The counters of one minute.
pub fn minute(counted: &Minute) -> Value {
    json!({
        "at": time(counted.at),
        "units": counted.units,
        "denied": counted.denied,
        "waited": counted.waited,
        "peak": counted.peak,
    })
}

/// The limits of a name: one limit, or all parts of a composite.
pub fn limits(name: &str, seen: &Snapshot, limits: &[&LimitSnapshot], keys: Keys) -> Value {
    json!({
        "at": time(seen.at),
        "store": seen.url,
        "name": name,
        "limits": limits.iter().map(|limit| self::limit(limit, keys)).collect::<Vec<_>>(),
    })
}

/// One key in one limit.
pub(crate) struct Part<'s> {
    pub limit: &'s LimitSnapshot,
    /// Empty: no key.
    pub key: String,
    pub decision: Decision,
    pub stats: Stats,
    /// Whether it allows the key another number of units than other keys.
    pub is_other: bool,
    /// The key's entry in the snapshot, if it has one.
    pub seen: Option<&'s KeySnapshot>,
    /// The same of a shared limit.
    pub tenant: Option<&'s TenantSnapshot>,
}

/// The units in use of one window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Used {
    pub limit: u64,
    pub used: u64,
    pub window: Option<Duration>,
}

impl Part<'_> {
    /// The share that is kept for it. `None`: the limit is not shared.
    pub(crate) fn share(&self) -> Option<u32> {
        self.limit.policy().is_shared().then(|| self.tenant.map_or(1, |tenant| tenant.share))
    }

    /// The usage of each window. For a key that is not in the snapshot, the usage of the window with the least free capacity.
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

/// The keys that the user named, in each limit of a name.
pub(crate) fn key_of_limits(name: &str, key: Option<&str>, seen: &Snapshot, parts: &[Part]) -> Value {
    let one = |used: &Used| json!({ "limit": used.limit, "used": used.used, "window": used.window.map(seconds) });
    let part = |part: &Part| {
        let own = part.seen.and_then(|seen| seen.overriding).map(|policy| policy.to_string());
        // The snapshot has the overrides of keys that were used. Of other keys only the existence of an override is known.
        let policy = if own.is_none() && part.is_other { None } else { Some(part.limit.policy().to_string()) };
        json!({
            "name": part.limit.name,
            "kind": part.limit.kind,
            "key": Some(&part.key).filter(|key| !key.is_empty()),
            "policy": own.clone().or(policy),
            "override": own,
            "share": part.share(),
            "waits": part.tenant.and_then(|tenant| tenant.waits).map(seconds),
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

/// The decision that one part of a limit would give.
pub(crate) struct PartDecision {
    pub part: String,
    pub key: Option<String>,
    pub weight: u64,
    pub seen: Decision,
}

/// The decision that a start would get.
pub(crate) fn decision(name: &str, key: Option<&str>, weight: u64, seen: &Decision, parts: &[PartDecision]) -> Value {
    let part = |PartDecision { part, key, weight, seen }: &PartDecision| {
        json!({
            "part": part,
            "key": key,
            "weight": weight,
            "admitted": seen.admitted,
            "retry_after": seconds(seen.retry_after),
            "remaining": seen.remaining,
            "limit": seen.limit,
            "reset_after": seconds(seen.reset_after),
        })
    };
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
        "parts": parts.iter().map(part).collect::<Vec<_>>(),
    })
}

/// A problem that `verify` found.
pub fn problem(found: &Problem) -> Value {
    json!({ "found": found.found, "is_repaired": found.is_repaired })
}

/// A finding of `doctor`.
pub(crate) fn finding(found: &Finding) -> Value {
    json!({
        "severity": found.severity.name(),
        "setting": found.setting,
        "value": found.value,
        "what": found.what,
        "instead": found.instead,
    })
}

/// A change of a limit or of one key, with the change's own members.
pub fn change(done: &str, name: &str, key: Option<&str>, more: Value) -> Value {
    let mut all = json!({ "done": done, "name": name, "key": key });
    if let (Some(all), Value::Object(more)) = (all.as_object_mut(), more) {
        all.extend(more);
    }
    all
}

/// An event of a limit, or of the store (`None`).
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

/// An error with its hint.
pub fn error(code: &str, message: &str, hint: Option<&str>) -> Value {
    json!({ "error": { "code": code, "message": message, "hint": hint } })
}

/// A rate per second.
fn milli(rate: f64) -> f64 {
    (rate * 1e3).round() / 1e3
}

fn pace(pace: Pace) -> Value {
    json!({ "granted": milli(pace.granted), "denied": milli(pace.denied) })
}

/// A page of a store's limits.
pub(crate) fn page_of(view: &View, found: usize, offset: usize, rows: &[Row], keys: Keys) -> Value {
    json!({
        "at": time(view.seen.at),
        "summary": summary(view),
        "found": found,
        "offset": offset,
        "limits": rows.iter().map(|&row| detail(row, keys)).collect::<Vec<_>>(),
    })
}

/// A limit with its rates: units granted and attempts denied per second.
fn detail((seen, at): Row, keys: Keys) -> Value {
    let mut all = limit(seen, keys);
    all["pace"] = pace(at);
    all
}

fn processes(seen: &Snapshot) -> Vec<Value> {
    let one = |process: &workglow_limit::observe::ProcessSnapshot| json!({ "pid": process.pid, "program": process.program, "since": seconds(process.since) });
    seen.processes.iter().map(one).collect()
}

/// A store without the list of its limits.
fn summary(view: &View) -> Value {
    json!({
        "store": view.seen.url,
        "limits": view.seen.limits.len(),
        "full": view.totals.full,
        "near": view.totals.near,
        "paused": view.totals.paused,
        "overridden": view.totals.overridden,
        "waiting": view.totals.waiting,
        // Units of different limits have no sum.
        "pace": { "denied": milli(view.totals.denied) },
        "counts_all_processes": view.seen.counts_all_processes,
        "processes": processes(&view.seen),
        "ledger_lag": seconds(view.seen.ledger_lag),
        "lane_bytes": view.seen.lane_bytes,
        "used_bytes": view.seen.used_bytes,
        "max_bytes": view.seen.max_bytes,
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
        "overridden_by": seen.overridden_by,
        "usage": usage(&seen.usage),
        "share": (fullness(seen) * 1e4).round() / 1e4,
        "near": seen.is_near(),
        "retry_after": seconds(seen.retry_after),
        "paused_for": seconds(seen.paused_for),
        "waiting": seen.waiting,
        "pace": pace(at),
    })
}

/// The parts of a limit, by their names in it.
fn beside(whole: &str, parts: &[Row]) -> Value {
    let part = |&one: &Row| {
        let mut all = row(one);
        all["part"] = one.0.name[whole.len() + 1..].into();
        all["denied"] = one.0.stats.denied.into();
        all
    };
    json!({ "of": whole, "parts": parts.iter().map(part).collect::<Vec<_>>() })
}

/// The first event of a stream.
pub(crate) fn hello(takes_changes: bool, keys: Keys, quarter: Duration) -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "takes_changes": takes_changes,
        "shows_keys": keys == Keys::Shown,
        "quarter": seconds(quarter),
    })
}

/// The sparkline of each limit: in percent, oldest first, `null` without data.
pub(crate) type Sparks = Vec<(String, Vec<Option<u8>>)>;

/// The data of the page: a list of limits, and if one is selected its details (`null` if there is no limit of that name).
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
        // An array of pairs, because a JavaScript object cannot hold the name `__proto__`.
        all["sparks"] = sparks.into_iter().map(|(name, spark)| json!([name, spark])).collect();
    }
    if let Some(chosen) = chosen {
        let of = |chosen: Row| {
            let mut all = detail(chosen, keys);
            all["parts"] = view.parts_beside(&chosen.0.name).map(|(whole, parts)| beside(&whole, &parts)).into();
            all
        };
        all["detail"] = chosen.map(of).into();
    }
    all
}

/// The last 15 minutes of a limit, as columns.
#[derive(Debug, Default)]
pub(crate) struct Series {
    pub step: Duration,
    pub at: Vec<SystemTime>,
    pub windows: Vec<SeriesWindow>,
    pub granted: Vec<u32>,
    pub denied: Vec<u32>,
    pub waiting: Vec<u32>,
}

/// The allowed and used units of a window; `None` at times when the limit did not have this window.
#[derive(Debug, Default)]
pub(crate) struct SeriesWindow {
    pub window: Option<Duration>,
    pub limit: Vec<Option<u64>>,
    pub used: Vec<Option<u32>>,
}

/// The last 15 minutes of a limit.
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

/// The history of a limit, in steps of equal length.
pub(crate) fn history(name: &str, step: Duration, steps: &[Minute]) -> Value {
    json!({ "limit": name, "step": seconds(step), "steps": steps.iter().map(minute).collect::<Vec<_>>() })
}
