//! Measures how the time of a decision and its memory grow with the size of limits, keys, windows, processes, and limits
//! in a store.

use governor::{Quota, RateLimiter as Governor};
use serde_json::json;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use workglow_limit::{Attempt, Limiter, Store};
use workglow_limit_bench_peers::fleet::{Demand, Shared, be_a_child, hammered};
use workglow_limit_bench_peers::measure::{Case, Expect, round, run};
use workglow_limit_bench_peers::memory::{Lane, heap_bytes};
use workglow_limit_bench_peers::{Arguments, arguments, print, print_versions};

const OURS: &str = "workglow-limit";
const GROUP: &str = "growth";
/// More than any loop requests in a second.
const LOTS: u32 = 1_000_000_000;
/// A bucket that no case empties.
const BURST: u32 = 30_000_000;
/// A limit frees its units after some time, so limits are called in turn where one alone would be full.
const IN_TURN: usize = 16;
/// Keys and limits are called in a random order, which repeats after this number.
const ORDER: usize = 1 << 16;

fn main() {
    be_a_child();
    let Arguments { directory, filter, counts_most } = arguments();
    if counts_most {
        return;
    }
    print_versions(&["governor"]);
    type Draw = fn(&Path, &str);
    let curves: [(&str, Draw); 5] =
        [("limit", limits), ("keys", keys), ("window", windows), ("processes", processes), ("names", names)];
    for (curve, draw) in curves {
        let own = directory.join(format!("growth-{curve}"));
        let _ = std::fs::remove_dir_all(&own);
        std::fs::create_dir_all(&own).expect("the directory can be written");
        if format!("growth {curve}").contains(&filter) || filter.starts_with(&format!("growth {curve}")) {
            draw(&own, &filter);
        }
        std::fs::remove_dir_all(&own).expect("the directory can be written");
    }
}

fn is_admitted(limiter: &dyn Limiter, key: &str) -> bool {
    matches!(limiter.attempt(key, 1).expect("a decision"), Attempt::Admitted(_))
}

fn sqlite(directory: &Path, name: &str) -> Store {
    Store::new(&format!("sqlite:{}", directory.join(name).display())).expect("a store")
}

/// Declares a limit in the store. Otherwise its first decision would.
fn opened(store: &Store, name: &str, policy: &str) -> Arc<dyn Limiter> {
    let limiter = store.limiter(name, policy).expect("a limiter");
    limiter.open().expect("the store opens");
    limiter
}

/// A point of a curve.
fn point<'a>(case: Case<'a>, curve: &str, series: &str, x: u64) -> Case<'a> {
    case.with("curve", curve).with("series", series).with("x", x)
}

/// A case that calls these in the given order, repeatedly.
fn in_turn<T: Sync>(
    all: Vec<T>,
    order: Vec<usize>,
    decide: impl Fn(&T) -> bool + Sync,
) -> impl Fn(usize) -> usize + Sync {
    let next = AtomicUsize::new(0);
    move |times| {
        let first = next.fetch_add(times, Ordering::Relaxed);
        (first..first + times).filter(|i| decide(&all[order[i % order.len()]])).count()
    }
}

fn random_order(count: usize) -> Vec<usize> {
    let mut random = fastrand::Rng::with_seed(7);
    (0..ORDER).map(|_| random.usize(..count)).collect()
}

/// Limits of 10 to 1,000,000 units. All allow 2.5 units per microsecond, so a window is about half full.
fn limits(directory: &Path, filter: &str) {
    let mut cases = Vec::new();
    let (memory, disk) = (Store::new("memory:").expect("a store"), sqlite(directory, "limit.db"));
    for limit in [10, 100, 1_000, 4_096, 10_000, 100_000, 1_000_000] {
        let rate = format!("{limit}/{}us", limit * 2 / 5);
        let bucket = format!("{LOTS}/1s burst {limit}");
        let bytes = |policy: &str, weight| Lane::bytes_of_keys(directory, policy, weight);
        let rate_bytes = bytes(&format!("{limit}/2s"), 1);
        let bucket_bytes = bytes(&format!("{limit}/1s burst {limit}"), limit);
        for (series, store, policy, bytes) in [
            ("rate, memory", &memory, &rate, rate_bytes),
            ("rate, sqlite", &disk, &rate, rate_bytes),
            ("token bucket, memory", &memory, &bucket, bucket_bytes),
        ] {
            let limiter = |i| opened(store, &format!("{series} {limit} {i}"), policy);
            let decide =
                in_turn((0..IN_TURN).map(limiter).collect(), (0..IN_TURN).collect(), |one| is_admitted(&**one, ""));
            let case = Case::batched(GROUP, OURS, &format!("growth limit {limit}, {series}"), decide);
            cases.push(point(case.all(Expect::Admitted), "limit", series, limit).with("bytes", bytes));
        }
    }
    run(&cases, filter);
}

/// 1 to 1,000,000 keys in a random order, compared with governor. All have been used before, and each has free units.
fn keys(directory: &Path, filter: &str) {
    for count in [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000] {
        let keys: Vec<String> = (0..count).map(|_| format!("tenant-{:016x}", fastrand::u64(..))).collect();
        let mut cases = Vec::new();
        // A key without state is forgotten, so each is called again before that: some 40 times in a window of its log, and
        // while its bucket is not yet full again.
        let per_second = (1_000_000 / count).max(1) as u32;
        let bucket = format!("{per_second}/1s burst {BURST}");
        let rate = format!("100/{}us", 3 * count);
        for kind in ["memory", "sqlite"] {
            for (series, policy) in [("rate of 100", rate.as_str()), ("token bucket", &bucket)] {
                // A million logs of 100 are more than a gigabyte.
                if count <= 100_000 || policy != rate {
                    cases.push(keyed(directory, kind, series, policy, &keys));
                }
            }
        }
        let [per_second, burst] = [per_second, BURST].map(|number| NonZeroU32::new(number).expect("it is more than 0"));
        let quota = Quota::per_second(per_second).allow_burst(burst);
        let before = heap_bytes();
        let limiter = Governor::keyed(quota);
        keys.iter().for_each(|key| assert!(limiter.check_key(key).is_ok()));
        let bytes = heap_bytes().saturating_sub(before);
        let decide =
            in_turn(keys.iter().collect(), random_order(count), move |key: &&String| limiter.check_key(*key).is_ok());
        let case = Case::batched(GROUP, "governor", &format!("growth keys {count}, governor"), decide);
        let case = case.all(Expect::Admitted).with("bytes", bytes).with("bytes_each", bytes / count as u64);
        cases.push(point(case, "keys", "governor", count as u64));
        run(&cases, filter);
    }
}

fn keyed<'a>(directory: &Path, kind: &str, series: &str, policy: &str, keys: &'a [String]) -> Case<'a> {
    let count = keys.len();
    let file = directory.join(format!("keys-{count}-{series}.db"));
    let url = if kind == "memory" { "memory:".into() } else { format!("sqlite:{}", file.display()) };
    let store = Store::new(&url).expect("a store");
    let limiter = opened(&store, "keys", policy);
    let used = || Lane::open(&file).map_or(0, |lane| lane.used());
    let (before, asked) = (used(), Arc::clone(&limiter));
    let ask_all = move || keys.iter().for_each(|key| assert!(is_admitted(&*asked, key)));
    ask_all();
    let bytes = used() - before;
    let decide = in_turn(keys.iter().collect(), random_order(count), move |key: &&String| is_admitted(&*limiter, key));
    let mut case = Case::batched(GROUP, OURS, &format!("growth keys {count}, {series}, {kind}"), decide);
    if count <= 100_000 {
        case = case.prepared(ask_all);
    }
    if kind == "sqlite" {
        case = case.with("bytes", bytes).with("bytes_each", bytes / count as u64);
    }
    point(case.all(Expect::Admitted), "keys", &format!("{series}, {kind}"), count as u64)
}

/// Windows of a millisecond to 30 days: a decision alone, and a limit of 100 that is used up, with its ledger writes.
fn windows(directory: &Path, filter: &str) {
    const DAY: u64 = 86_400_000_000;
    let mut cases = Vec::new();
    let (memory, disk) = (Store::new("memory:").expect("a store"), sqlite(directory, "window.db"));
    for us in [1_000, 10_000, 100_000, 1_000_000, 60_000_000, 3_600_000_000, DAY, 30 * DAY] {
        for (kind, store) in [("memory", &memory), ("sqlite", &disk)] {
            let named = |what: &str, policy: &str| {
                let limiter = opened(store, &format!("{what} {us}"), policy);
                while what == "shut" && is_admitted(&*limiter, "") {}
                limiter
            };
            let open = named("open", &format!("{LOTS}/{us}us"));
            let series = format!("admit, {kind}");
            let case =
                Case::new(GROUP, OURS, &format!("growth window {us} us, {series}"), move || is_admitted(&*open, ""));
            cases.push(point(case.all(Expect::Admitted), "window", &series, us));
            if us >= 60_000_000 {
                let shut = named("shut", &format!("100/{us}us"));
                let series = format!("deny, {kind}");
                let case = Case::new(GROUP, OURS, &format!("growth window {us} us, {series}"), move || {
                    is_admitted(&*shut, "")
                });
                cases.push(point(case.all(Expect::Denied), "window", &series, us));
            }
        }
        used_up(&disk, us);
    }
    run(&cases, filter);
}

/// The mean time of a start when each key takes all of its 100, commits to the ledger included.
fn used_up(store: &Store, us: u64) {
    let limiter = opened(store, &format!("used up {us}"), &format!("100/{us}us"));
    // Where starts wait for commits, a few keys take long enough.
    let keys = if us > 120_000_000 { 2 } else { 200 };
    let (began, mut starts) = (Instant::now(), 0);
    for key in 0..keys {
        let key = format!("tenant-{key}");
        starts += (0..100).filter(|_| is_admitted(&*limiter, &key)).count();
    }
    let ns = began.elapsed().as_nanos() as f64 / f64::from(starts as u32);
    print(&json!({
        "case": format!("growth window {us} us, a limit of 100 used up, sqlite"), "group": GROUP, "peer": OURS,
        "curve": "window", "series": "a limit of 100 used up, sqlite", "x": us, "ns": round(ns),
    }));
}

/// 1 to 64 processes on one key.
fn processes(directory: &Path, _filter: &str) {
    for count in [1, 2, 4, 8, 16, 32, 64] {
        let outcome = hammered(Shared::Ours, Demand::Admitted, count, Duration::from_millis(150), directory);
        let lane = Lane::open(&directory.join("fleet.db")).expect("the store has a lane");
        let mut line = json!({
            "case": format!("growth processes {count}"), "group": GROUP, "peer": OURS, "curve": "processes",
            "series": "admit, sqlite", "x": count, "processes": count, "per_second": outcome.per_second.round(),
            "bytes": lane.used(),
        });
        let all = line.as_object_mut().expect("it is an object");
        all.extend(outcome.figures.line(count));
        // Of all cores: the processes share them, and one that waits for its turn decides nothing.
        all["ns"] = json!(round(1e9 / outcome.per_second));
        print(&line);
    }
}

/// 1 to 10,000 limits in one store, called in a random order; on disk 1,000, because each declaration is a commit.
fn names(directory: &Path, filter: &str) {
    let mut cases = Vec::new();
    for count in [1, 10, 100, 1_000, 10_000] {
        for (series, kind) in [("rate of 100, memory", "memory"), ("rate of 100, sqlite", "sqlite")] {
            if kind == "sqlite" && count > 1_000 {
                continue;
            }
            let file = format!("names-{count}.db");
            let store =
                if kind == "memory" { Store::new("memory:").expect("a store") } else { sqlite(directory, &file) };
            store.limiter("first", "100/1us").and_then(|first| first.open()).expect("the store opens");
            let before = Lane::open(&directory.join(&file)).map(|lane| lane.used());
            let began = Instant::now();
            let limiter = |i| store.limiter(&format!("limit-{i}"), "100/1us").expect("a limiter");
            let all: Vec<Arc<dyn Limiter>> = (0..count).map(limiter).collect();
            all.iter().for_each(|limiter| assert!(is_admitted(&**limiter, "")));
            let declared_ns = began.elapsed().as_nanos() as f64 / count as f64;
            let after = Lane::open(&directory.join(&file)).map(|lane| lane.used());
            let decide = in_turn(all, random_order(count), |one| is_admitted(&**one, ""));
            let mut case = Case::batched(GROUP, OURS, &format!("growth names {count}, {series}"), decide)
                .all(Expect::Admitted)
                .with("declared_ns", declared_ns.round());
            if let Some((after, before)) = after.zip(before) {
                case = case.with("bytes", after - before).with("bytes_each", (after - before) / count as u64);
            }
            cases.push(point(case, "names", series, count as u64));
        }
    }
    run(&cases, filter);
}
