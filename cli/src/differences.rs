//! The events between two snapshots of a store.

use crate::json::{self, Keys};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};
use workglow_limit::observe::{KeySnapshot, LimitSnapshot, ProcessSnapshot, Snapshot};

/// An event.
pub struct Event {
    pub at: SystemTime,
    pub name: &'static str,
    /// The limit of the event; `None`: an event of the store.
    pub limit: Option<String>,
    /// Further members of the JSON object.
    more: Value,
}

impl Event {
    pub fn of_store(at: SystemTime, name: &'static str, more: Value) -> Event {
        Event { at, name, limit: None, more }
    }

    pub fn to_json(&self) -> Value {
        json::event(self.at, self.name, self.limit.as_deref(), &self.more)
    }
}

/// If the end of a gate moves by more than this, the limit was paused again.
const LATER: Duration = Duration::from_secs(1);

/// The events between two snapshots: of the limits, then of the processes.
pub fn between(before: &Snapshot, now: &Snapshot, keys: Keys) -> Vec<Event> {
    let mut events = Vec::new();
    let old: BTreeMap<&str, &LimitSnapshot> = before.limits.iter().map(|limit| (limit.name.as_str(), limit)).collect();
    for limit in &now.limits {
        let mut add = |name, more| events.push(Event { at: now.at, name, limit: Some(limit.name.clone()), more });
        match old.get(limit.name.as_str()) {
            Some(was) => of_limit((was, before.at), (limit, now.at), keys, &mut add),
            None => add("limit_declared", json!({ "policy": limit.policy().to_string() })),
        }
    }
    for gone in before.limits.iter().filter(|was| now.limits.iter().all(|limit| limit.name != was.name)) {
        events.push(Event { at: now.at, name: "limit_gone", limit: Some(gone.name.clone()), more: json!({}) });
    }
    let about = |process: &ProcessSnapshot| json!({ "pid": process.pid, "program": process.program });
    // A process id can be reused, so the program has to be the same, too.
    let is_same = |a: &ProcessSnapshot, b: &ProcessSnapshot| a.pid == b.pid && a.program == b.program;
    let is_in = |process: &ProcessSnapshot, all: &[ProcessSnapshot]| all.iter().any(|other| is_same(process, other));
    let joined = now.processes.iter().filter(|process| !is_in(process, &before.processes));
    events.extend(joined.map(|process| Event::of_store(now.at, "process_joined", about(process))));
    let left = before.processes.iter().filter(|process| !is_in(process, &now.processes));
    events.extend(left.map(|process| Event::of_store(now.at, "process_left", about(process))));
    events
}

fn of_limit(
    (was, then): (&LimitSnapshot, SystemTime),
    (is, now): (&LimitSnapshot, SystemTime),
    keys: Keys,
    add: &mut dyn FnMut(&'static str, Value),
) {
    if was.declared != is.declared {
        add("policy_changed", json!({ "policy": is.declared.to_string(), "before": was.declared.to_string() }));
    }
    let by = |limit: &LimitSnapshot| limit.overriding.map(|policy| (policy, limit.overridden_by.clone()));
    overriding((by(was), by(is)), None, add);
    for key in &is.hot_keys {
        let Some(old) = was.hot_keys.iter().find(|old| old.id == key.id) else { continue };
        let name = json::key_name(&key.key, &key.id, keys);
        let by = |key: &KeySnapshot| key.overriding.map(|policy| (policy, Some("operator".to_owned())));
        overriding((by(old), by(key)), Some(name), add);
    }
    // Lower counts mean that the limit was created again.
    let more = |now: u64, before: u64| Some(now.saturating_sub(before)).filter(|more| *more > 0);
    if let Some(count) = more(is.stats.denied, was.stats.denied) {
        add("denied", json!({ "count": count, "keys": deniers(was, is, keys) }));
    }
    if let Some(count) = more(is.stats.waited, was.stats.waited) {
        let time = is.stats.wait_time.saturating_sub(was.stats.wait_time);
        add("waited", json!({ "count": count, "time": json::seconds(time) }));
    }
    if let Some(count) = more(is.places_lost, was.places_lost) {
        add("places_lost", json!({ "count": count }));
    }
    gate((was.paused_for, then), (is.paused_for, now), None, add);
    for key in &is.hot_keys {
        let Some(old) = was.hot_keys.iter().find(|old| old.id == key.id) else { continue };
        let name = json::key_name(&key.key, &key.id, keys);
        gate((old.paused_for, then), (key.paused_for, now), Some(name), add);
    }
    match (was.is_near(), is.is_near()) {
        (false, true) => {
            let usage = is.usage.first();
            let (used, allowed) = usage.map_or((0, 0), |usage| (usage.used, usage.limit));
            let key = is.fullest.as_ref().map(|(key, id)| json::key_name(key, id, keys));
            add("near", json!({ "used": used, "allowed": allowed, "key": key }));
        }
        (true, false) => add("eased", json!({})),
        _ => {}
    }
}

/// An override, and what put it there.
type Override<P> = Option<(P, Option<String>)>;

fn overriding<P: ToString + PartialEq>(
    (was, is): (Override<P>, Override<P>),
    key: Option<String>,
    add: &mut dyn FnMut(&'static str, Value),
) {
    match (was, is) {
        // It is another one also if only who set it differs.
        (was, Some((policy, by))) if was.as_ref().is_none_or(|was| (&was.0, &was.1) != (&policy, &by)) => {
            let before = was.map(|(was, _)| was.to_string());
            add("override_set", json!({ "key": key, "policy": policy.to_string(), "before": before, "by": by }));
        }
        (Some((was, _)), None) => add("override_lifted", json!({ "key": key, "before": was.to_string() })),
        _ => {}
    }
}

fn gate(
    (was, then): (Duration, SystemTime),
    (is, now): (Duration, SystemTime),
    key: Option<String>,
    add: &mut dyn FnMut(&'static str, Value),
) {
    let is_longer = now + is > then + was + LATER;
    match (was.is_zero(), is.is_zero()) {
        (true, false) => add("paused", json!({ "key": key, "for": json::seconds(is) })),
        (false, false) if is_longer => add("paused", json!({ "key": key, "for": json::seconds(is) })),
        (false, true) => add("opened", json!({ "key": key })),
        _ => {}
    }
}

/// The denied keys with the number of their denials, most denials first.
fn deniers(was: &LimitSnapshot, is: &LimitSnapshot, keys: Keys) -> Vec<Value> {
    let denied = |key: &KeySnapshot| {
        let old = was.hot_keys.iter().find(|old| old.id == key.id);
        key.stats.denied.saturating_sub(old.map_or(0, |old| old.stats.denied))
    };
    let mut all: Vec<(u64, &KeySnapshot)> = is.hot_keys.iter().map(|key| (denied(key), key)).collect();
    all.retain(|(count, _)| *count > 0);
    all.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    let one =
        |(count, key): &(u64, &KeySnapshot)| json!({ "key": json::key_name(&key.key, &key.id, keys), "count": count });
    all.iter().take(5).map(one).collect()
}
