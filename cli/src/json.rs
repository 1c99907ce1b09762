//! What is seen of a store, as JSON. The same shapes everywhere: what commands print, and what the page and other languages read.
//!
//! Durations are in seconds, times in seconds since 1970.

use serde_json::{Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use workglow_limit::{KeySnapshot, LimitSnapshot, Minute, Snapshot, Stats, Usage, WAIT_BOUNDS};

/// May the texts of keys be shown? They can be secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// Their ids only.
    Hidden,
    /// Their texts too.
    Shown,
}

pub fn seconds(duration: Duration) -> f64 {
    // To the microsecond, as limits count.
    (duration.as_secs_f64() * 1e6).round() / 1e6
}

pub fn time(at: SystemTime) -> f64 {
    seconds(at.duration_since(UNIX_EPOCH).unwrap_or_default())
}

pub fn snapshot(seen: &Snapshot, keys: Keys) -> Value {
    json!({
        "at": time(seen.at),
        "store": seen.url,
        "limits": seen.limits.iter().map(|limit| self::limit(limit, keys)).collect::<Vec<_>>(),
        "processes": seen.processes.iter().map(|process| json!({
            "pid": process.pid,
            "program": process.program,
            "since": seconds(process.since),
        })).collect::<Vec<_>>(),
        "ledger_lag": seconds(seen.ledger_lag),
        "lane_bytes": seen.lane_bytes,
        "failures": seen.failures,
    })
}

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

pub fn minute(counted: &Minute) -> Value {
    json!({
        "at": time(counted.at),
        "units": counted.units,
        "denied": counted.denied,
        "waited": counted.waited,
        "peak": counted.peak,
    })
}
