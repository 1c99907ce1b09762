//! One script of actions, and the snapshots after it, on every kind of store.

use crate::common::Dir;
use crate::common::server::Server;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::observe::{Observer, Snapshot, Usage};
use workglow_limit::*;

/// A store whose time a test sets.
fn open(url: &str, clock: &ManualClock) -> Store {
    let mut options = StoreOptions::default();
    (options.timeout, options.clock) = (Duration::from_secs(60), Some(clock.clone()));
    Store::with_options(url, options).unwrap()
}

/// What a snapshot shows, as a line for each limit and each of its keys.
fn shown(seen: &Snapshot, texts: &HashMap<String, String>) -> Vec<String> {
    let name = |id: &String| texts.get(id).cloned().unwrap_or_else(|| format!("key {id}"));
    let seconds = |time: Duration| format!("{}s", time.as_secs_f64());
    let usage = |all: &[Usage]| {
        let one = |of: &Usage| {
            format!("{}/{} {}", of.used, of.limit, of.window.map_or_else(|| "at once".to_owned(), seconds))
        };
        all.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    let times = |retry: Duration, paused: Duration| {
        let retry = if retry.is_zero() { String::new() } else { format!(", again in {}", seconds(retry)) };
        let paused = if paused.is_zero() { String::new() } else { format!(", paused for {}", seconds(paused)) };
        retry + &paused
    };
    let mut lines = Vec::new();
    for limit in &seen.limits {
        let of = limit.fullest.as_ref().map_or_else(String::new, |(_, id)| format!(" by {}", name(id)));
        let times_of = times(limit.retry_after, limit.paused_for);
        lines.push(format!("{}: {}{of}{times_of}; {} keys", limit.name, usage(&limit.usage), limit.keys));
        let mut keys: Vec<String> = Vec::new();
        for key in &limit.hot_keys {
            let own = key.overriding.map_or_else(String::new, |policy| format!(" ({policy})"));
            keys.push(format!(
                "  {}{own}: {}{}",
                name(&key.id),
                usage(&key.usage),
                times(key.retry_after, key.paused_for)
            ));
        }
        keys.sort();
        lines.extend(keys);
    }
    lines
}

/// Uses limits of all kinds.
fn act(store: &Store, clock: &ManualClock) -> Vec<(Arc<dyn Limiter>, RawPermit)> {
    let mut held = Vec::new();
    let mut start = |name: &str, policy: &str, key: &str, weight: u64| {
        let limiter = store.limiter(name, policy).unwrap();
        match limiter.attempt(key, weight).unwrap() {
            Attempt::Admitted(permit) => held.push((limiter, permit)),
            Attempt::Denied(after) => panic!("{name} denies {key} for {after:?}"),
        }
    };
    clock.advance(Duration::from_secs(7_200));
    for (key, times) in [("", 1), ("ann", 3), ("bob", 7), ("cid", 1)] {
        (0..times).for_each(|_| start("rate", "10/1h", key, 1));
    }
    start("two", "10/1h + 5/1m", "ann", 3);
    start("full", "4/1h", "ann", 3);
    start("bucket", "6/1h burst 10", "ann", 10);
    start("leaky", "30/1h queue 10", "ann", 1);
    start("fixed", "10/1h fixed", "ann", 4);
    start("counter", "10/1h counter", "ann", 4);
    start("sliced", "10000/1h", "ann", 4_000);
    start("spaced", "6/1h spaced", "ann", 1);
    start("own", "10/1h", "ann", 2);
    start("own", "10/1h", "bob", 2);
    for (key, weight) in [("", 2), ("ann", 2), ("bob", 1), ("ann", 1), ("bob", 1)] {
        start("jobs", "5 concurrent", key, weight);
    }
    start("busy", "2 concurrent", "ann", 2);
    start("both", "10/1h + 2 concurrent", "ann", 1);
    start("gate", "10/1h", "", 2);
    start("gates", "10/1h", "ann", 2);
    start("gates", "10/1h", "bob", 1);
    start("halted", "5 concurrent", "ann", 2);
    clock.advance(Duration::from_secs(90));
    start("two", "10/1h + 5/1m", "ann", 2);
    start("full", "4/1h", "ann", 1);
    // One of the jobs ends.
    let at = held.iter().rposition(|(limiter, _)| limiter.name() == "jobs").unwrap();
    let (limiter, permit) = held.remove(at);
    limiter.complete(&permit).unwrap();
    let minutes = |n: u64| Duration::from_secs(60 * n);
    store.override_key("own", "40/1h", "bob").unwrap();
    store.override_text("own", "20/1h").unwrap();
    store.find("gate").unwrap().pause("", minutes(5)).unwrap();
    store.find("gates").unwrap().pause("ann", minutes(10)).unwrap();
    store.find("gates").unwrap().pause("cid", minutes(1)).unwrap();
    store.find("halted").unwrap().pause("", minutes(2)).unwrap();
    held
}

const EXPECTED: &str = "
both/concurrency: 1/2 at once by ann; 1 keys
  ann: 1/2 at once
both/rate: 1/10 3600s by ann; 1 keys
  ann: 1/10 3600s
bucket: 10/10 6600s by ann, again in 510s; 1 keys
  ann: 10/10 6600s, again in 510s
busy: 2/2 at once by ann, again in 0.01s; 1 keys
  ann: 2/2 at once, again in 0.01s
counter: 4/10 3600s by ann; 1 keys
  ann: 4/10 3600s
fixed: 4/10 3600s by ann; 1 keys
  ann: 4/10 3600s
full: 4/4 3600s by ann, again in 3510s; 1 keys
  ann: 4/4 3600s, again in 3510s
gate: 2/10 3600s, again in 300s, paused for 300s; 0 keys
gates: 2/10 3600s by ann, again in 600s; 3 keys
  ann: 2/10 3600s, again in 600s, paused for 600s
  bob: 1/10 3600s
  cid: 0/10 3600s, again in 60s, paused for 60s
halted: 2/5 at once by ann, again in 120s, paused for 120s; 1 keys
  ann: 2/5 at once, again in 120s
jobs: 3/5 at once by ann; 2 keys
  ann: 3/5 at once
  bob: 1/5 at once
leaky: 10/10 1320s by ann, again in 30s; 1 keys
  ann: 10/10 1320s, again in 30s
own: 2/20 3600s by ann; 2 keys
  ann: 2/20 3600s
  bob (40/1h): 2/40 3600s
rate: 7/10 3600s by bob; 3 keys
  ann: 3/10 3600s
  bob: 7/10 3600s
  cid: 1/10 3600s
sliced: 4000/10000 3600s by ann; 1 keys
  ann: 4000/10000 3600s
spaced: 1/1 600s, 1/6 3600s by ann, again in 510s; 1 keys
  ann: 1/1 600s, 1/6 3600s, again in 510s
two: 5/10 3600s, 2/5 60s by ann; 1 keys
  ann: 5/10 3600s, 2/5 60s
";

#[test]
fn a_snapshot_shows_the_same_of_every_kind_of_store() {
    let dir = Dir::new("snapshots");
    let servers: Vec<Server> = Server::each("snapshots").collect();
    let urls = ["memory:".to_owned(), dir.url()].into_iter().chain(servers.iter().map(Server::url));
    for url in urls {
        let clock = ManualClock::new();
        let (store, another) = (open(&url, &clock), open(&url, &clock));
        [&store, &another].iter().for_each(|store| store.open().unwrap());
        let held = act(&store, &clock);
        let seen = Observer::new(&store, 9).look().unwrap();
        // On servers, only the hash of a key is stored. It is the same in all limits.
        let texts = seen.limits.iter().flat_map(|limit| &limit.hot_keys).filter(|key| !key.key.starts_with('#'));
        let texts: HashMap<String, String> = texts.map(|key| (key.id.clone(), key.key.clone())).collect();
        assert_lines(&shown(&seen, &texts), &format!("{url}, by the process that uses it"));
        if url != "memory:" {
            let seen = Observer::new(&another, 9).look().unwrap();
            assert_lines(&shown(&seen, &texts), &format!("{url}, by another one"));
        }
        drop(held);
    }
}

fn assert_lines(seen: &[String], what: &str) {
    let expected: Vec<&str> = EXPECTED.trim().lines().collect();
    for (seen, expected) in seen.iter().zip(&expected) {
        assert_eq!(seen, expected, "{what}");
    }
    assert_eq!(seen.len(), expected.len(), "{what}");
}
