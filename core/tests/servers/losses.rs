//! A Redis server that loses its last writes, where the address says how much that is at most (`?loses=TIME`).
#![cfg(feature = "redis")]

use crate::common::nodes::Node;
use crate::common::redis::RedisServer;
use crate::common::{Random, Record, most_in_any_window, now_ns, wait_until};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, Instant};
use workglow_limit::observe::Observer;
use workglow_limit::*;

const MS: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(1_000);

/// A policy of each kind. Each admits three starts at least, but the second one.
const KINDS: [&str; 8] = [
    "3/1h",
    "3/1h queue 3",
    "5000/1h",
    "3/1h + 3/30m",
    "3/1h burst 3",
    "3/365d fixed",
    "3/365d counter",
    "3 concurrent",
];

/// A server that appends each write to a file before it answers.
fn appending(name: &str) -> RedisServer {
    RedisServer::with_arguments(name, &["--appendonly", "yes", "--appendfsync", "no"])
}

/// The file to which it appends.
fn file_of(directory: &Path) -> PathBuf {
    let parts =
        std::fs::read_dir(directory.join("appendonlydir")).into_iter().flatten().map(|entry| entry.unwrap().path());
    let part = parts.filter(|path| path.to_string_lossy().ends_with(".incr.aof")).max();
    part.unwrap_or_else(|| directory.join("appendonly.aof"))
}

fn limiter(url: &str, policy: &str) -> Arc<dyn Limiter> {
    Store::new(url).unwrap().limiter("api", policy).unwrap()
}

fn attempt(limiter: &Arc<dyn Limiter>, key: &str) -> Attempt {
    // The connection of before the restart may be found closed only now.
    let (began, mut last) = (Instant::now(), limiter.attempt(key, 1));
    while last.is_err() && began.elapsed() < 20 * 1_000 * MS {
        std::thread::sleep(MS);
        last = limiter.attempt(key, 1);
    }
    last.unwrap()
}

fn admits(limiter: &Arc<dyn Limiter>, key: &str) -> bool {
    matches!(attempt(limiter, key), Attempt::Admitted(_))
}

/// How many start, until nothing starts for long.
fn started_in_all(limiter: &Arc<dyn Limiter>, key: &str) -> usize {
    let mut count = 0;
    loop {
        match attempt(limiter, key) {
            Attempt::Admitted(_) => count += 1,
            Attempt::Denied(after) if after > LONG => return count,
            Attempt::Denied(after) => std::thread::sleep(after.max(MS)),
        }
    }
}

fn wait_for_a_start(limiter: &Arc<dyn Limiter>, key: &str) -> Duration {
    match attempt(limiter, key) {
        Attempt::Admitted(_) => Duration::ZERO,
        Attempt::Denied(after) => after,
    }
}

#[test]
fn a_restart_that_loses_nothing_costs_nothing() {
    for policy in KINDS {
        for suffix in ["", "&grants=never"] {
            let mut server = appending("losses-none");
            let url = format!("{}?loses=0s{suffix}", server.url());
            let first = limiter(&url, policy);
            assert!(admits(&first, ""));
            let most = if policy.contains("queue") { 1 } else { 3 };
            let other = limiter(&url, policy);
            let mut count = 1;
            while count < most - 1 && admits(&first, "") {
                count += 1;
            }
            server.restart_with(false, |_| {});
            let is_open = policy.starts_with("5000");
            for limiter in [&first, &other, &limiter(&url, policy)] {
                for _ in 0..3 {
                    count += usize::from(admits(limiter, ""));
                }
            }
            assert_eq!(count.min(4), if is_open { 4 } else { most }, "{policy} {suffix}");
        }
    }
}

#[test]
fn without_the_parameter_and_where_all_may_have_been_used_nothing_starts_for_long() {
    for (suffix, policies) in [("", &KINDS[..4]), ("&loses=1s", &KINDS[..4]), ("&loses=1h", &["60/1h + 1/10m"][..])] {
        for policy in policies {
            let mut server = appending("losses-all");
            let url = format!("{}?grants=never{suffix}", server.url());
            let first = limiter(&url, policy);
            assert!(admits(&first, ""));
            server.restart_with(false, |_| {});
            for key in ["", "a"] {
                assert!(wait_for_a_start(&first, key) > LONG, "{policy} {suffix}");
            }
        }
    }
}

#[test]
fn a_restart_costs_what_the_shortest_window_allows_in_that_time() {
    let mut server = appending("losses-some");
    for (i, suffix) in ["&grants=never", ""].iter().enumerate() {
        let url = format!("{}?db={i}&loses=200ms{suffix}", server.url());
        let first = limiter(&url, "100/1h + 5/200ms");
        for _ in 0..20 {
            wait_until("it starts", || admits(&first, "used"));
        }
        let other = limiter(&url, "100/1h + 5/200ms");
        for round in 1..=2 {
            server.restart_with(false, |_| {});
            // In 0.2 s, and in the 0.1 s for which machines may use their grants: two windows.
            let lost = 10 * round;
            let most = 80 - lost - usize::from(round == 2);
            if round == 1 {
                assert!(!admits(&first, "used"));
                wait_until("it starts", || admits(&first, "used"));
                continue;
            }
            let used = started_in_all(&other, "used");
            // With grants, some units end unused.
            assert!(used == most || !suffix.contains("never") && used < most, "{used} of {most} {suffix}");
            let unused = started_in_all(&other, "unused");
            assert!(unused == 100 - lost || !suffix.contains("never") && unused < 100 - lost, "{unused} {suffix}");
        }
    }
}

#[test]
fn a_bucket_counts_as_emptied_and_a_window_of_the_clock_as_full() {
    for (policy, least, most) in [
        ("3/1h burst 3", 1_000, 1_300),
        ("3/1h queue 3", 3_500, 3_700),
        ("3/1h fixed", 0, 3_700),
        ("3/365d counter", 1_000, 2 * 366 * 86_400),
        ("3 concurrent", 20, 40),
    ] {
        let mut server = appending("losses-kinds");
        let url = format!("{}?loses=100ms", server.url());
        let first = limiter(&url, policy);
        assert!(admits(&first, ""));
        server.restart_with(false, |_| {});
        for key in ["", "a"] {
            let Attempt::Denied(after) = attempt(&first, key) else { panic!("{policy}") };
            // A slot is free when a lease ends, which this does not know.
            if !policy.contains("concurrent") {
                let after = after.as_secs();
                assert!((least..=most).contains(&after), "{policy} {key}: {after}");
            }
        }
        let seen = Observer::new(&Store::new(&url).unwrap(), 3).look().unwrap();
        let usage = &seen.limits[0].usage[0];
        // What is held by leases is not what was lost.
        assert!(usage.used == usage.limit || policy.contains("concurrent"), "{policy}: {usage:?}");
    }
}

#[test]
fn nothing_starts_by_another_policy_before_it_is_certain_to_stay() {
    let mut server = appending("losses-changes");
    let url = format!("{}?grants=never&loses=1h", server.url());
    let store = Store::new(&url).unwrap();
    let first = store.limiter("api", "1000/4h + 100/1s").unwrap();
    assert!(admits(&first, "") && admits(&first, "a"));
    store.override_limit("api", "1000/4h + 500/1s", Some("a")).unwrap();
    assert!(admits(&first, ""));
    assert!(wait_for_a_start(&first, "a") > LONG);
    store.override_limit("api", "1000/4h + 500/1s", None).unwrap();
    assert!(wait_for_a_start(&first, "") > LONG);

    // By which policy starts were admitted is not known.
    let url = format!("{}?grants=never&loses=1ms&db=1", server.url());
    let store = Store::new(&url).unwrap();
    let first = store.limiter("api", "1000/4h + 100/10ms").unwrap();
    assert!(admits(&first, "") && admits(&first, "a"));
    server.restart_with(false, |_| {});
    wait_until("it starts", || admits(&first, ""));
    store.override_limit("api", "2000/4h + 100/10ms", None).unwrap();
    wait_until("it starts", || admits(&first, ""));
    assert!(wait_for_a_start(&first, "a") > LONG);
}

#[test]
fn each_of_many_restarts_counts() {
    let mut server = appending("losses-many");
    let url = format!("{}?grants=never&loses=1ms", server.url());
    let first = limiter(&url, "100/1h + 1/1ms");
    assert!(admits(&first, "used"));
    for _ in 0..8 {
        server.restart_with(false, |_| {});
        wait_until("it starts", || admits(&first, "used"));
    }
    // Two of each, and those that started.
    assert_eq!(started_in_all(&first, "unused"), 100 - 8 * 2);
    assert_eq!(started_in_all(&first, "used"), 100 - 8 * 2 - 9);
    server.restart_with(false, |_| {});
    assert!(wait_for_a_start(&first, "other") > LONG, "the first is too long ago to be counted");
    first.clear("").unwrap();
    wait_until("it starts", || admits(&first, "other"));
}

#[test]
fn a_key_that_is_cleared_counts_only_later_losses() {
    let mut server = appending("losses-cleared");
    for (i, suffix) in ["&grants=never", ""].iter().enumerate() {
        let url = format!("{}?db={i}&loses=1ms{suffix}", server.url());
        let first = limiter(&url, "10/1h + 10/1ms");
        assert!(admits(&first, "cleared") && admits(&first, "other"));
        for _ in 0..2 {
            server.restart_with(false, |_| {});
            for key in ["cleared", "other", "unused"] {
                assert!(wait_for_a_start(&first, key) > LONG, "{key} {suffix}");
            }
            for key in ["cleared", "unused"] {
                first.clear(key).unwrap();
                // No start happens while others may be lost.
                wait_until("it starts", || admits(&first, key));
                let used = 1 + started_in_all(&first, key);
                assert!(used == 10 || !suffix.contains("never") && used < 10, "{key}: {used} {suffix}");
            }
            assert!(wait_for_a_start(&first, "other") > LONG, "{suffix}");
        }
    }
}

/// How a server loses its last writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// The end of the file to which it appends, in the middle of a write.
    Truncated,
    /// An earlier copy of its files is put back.
    OldCopy,
    /// It is restarted with its last snapshot.
    Snapshot,
}

const LOSES: Duration = Duration::from_millis(500);
const WINDOWS: [(u64, Duration); 2] = [(60, Duration::from_secs(4)), (8, Duration::from_millis(300))];

/// Starts as much as it can, until it is over.
fn hammer(url: &str, record: &Record, is_over: &AtomicBool) {
    let limiter = limiter(url, "60/4s + 8/300ms");
    while !is_over.load(Acquire) {
        let a = now_ns();
        match limiter.attempt("", 1) {
            Ok(Attempt::Admitted(_)) => record.add(a, now_ns(), 1),
            Ok(Attempt::Denied(_)) => std::thread::sleep(MS),
            Err(_) => std::thread::sleep(5 * MS),
        }
    }
}

fn check(records: &[Record], what: &str) {
    let starts: Vec<_> = records.iter().flat_map(Record::starts).collect();
    for (limit, window) in WINDOWS {
        let most = most_in_any_window(&starts, window.as_nanos() as u64);
        println!("{what}: {} starts, {most} of {limit} in {window:?}", starts.len());
        assert!(most <= limit, "{most} of {limit} in {window:?}: {what}");
    }
}

fn storm(loss: Loss) {
    let (mut random, crashes) = (Random::new(), 8);
    let mut server = match loss {
        Loss::Snapshot => RedisServer::with_arguments("losses-snapshot", &[]),
        _ => appending("losses-storm"),
    };
    let (records, is_over): ([Record; 3], _) = (std::array::from_fn(|_| Record::new(10_000)), AtomicBool::new(false));
    let count = || records.iter().map(Record::len).sum::<u64>();
    let urls = ["", "&grants=never", ""]
        .map(|suffix| format!("{}?loses={}{suffix}", server.url(), std::env::var("LOSES").unwrap_or("500ms".into())));
    let mut losses = 0;
    std::thread::scope(|scope| {
        for (url, record) in urls.iter().zip(&records) {
            scope.spawn(|| hammer(url, record, &is_over));
        }
        for crash in 0..crashes {
            let before = count();
            // Sometimes it ends again before anything starts.
            if crash % 3 != 2 {
                wait_until("it starts", || count() > before + 1);
            }
            std::thread::sleep(random.below(1_500) as u32 * MS);
            let (since, copy) = (Instant::now(), server.directory().join("copy"));
            let mut kept = 0;
            match loss {
                Loss::Truncated => kept = std::fs::metadata(file_of(server.directory())).unwrap().len(),
                Loss::OldCopy => drop(std::fs::copy(file_of(server.directory()), &copy).unwrap()),
                Loss::Snapshot => {
                    assert_eq!(server.command("SAVE"), "+OK");
                    std::fs::copy(server.directory().join("dump.rdb"), &copy).unwrap();
                }
            }
            std::thread::sleep(random.below(400) as u32 * MS);
            let middle = random.below(30);
            server.restart_with(loss == Loss::Snapshot, |directory| {
                // On a busy machine, that was longer ago.
                if since.elapsed() > LOSES {
                    return;
                }
                losses += 1;
                match loss {
                    Loss::Truncated => {
                        let file = std::fs::OpenOptions::new().write(true).open(file_of(directory)).unwrap();
                        let length = file.metadata().unwrap().len();
                        file.set_len(length.min(kept + middle)).unwrap();
                    }
                    Loss::OldCopy => drop(std::fs::copy(copy, file_of(directory)).unwrap()),
                    Loss::Snapshot => drop(std::fs::copy(copy, directory.join("dump.rdb")).unwrap()),
                }
            });
        }
        let before = count();
        wait_until("it starts", || count() > before + 20);
        is_over.store(true, Release);
    });
    check(&records, &format!("{loss:?}, {losses} losses"));
}

#[test]
fn a_log_that_lacks_its_end_exceeds_no_limit() {
    storm(Loss::Truncated);
}

#[test]
fn an_old_copy_exceeds_no_limit() {
    storm(Loss::OldCopy);
}

#[test]
fn a_snapshot_exceeds_no_limit() {
    storm(Loss::Snapshot);
}

#[test]
fn a_replica_that_was_behind_exceeds_no_limit() {
    let (mut losses, mut random) = (0, Random::new());
    while losses < 2 {
        let primary = Node::start("losses-primary", &[]);
        let port = primary.port.to_string();
        let replica = Node::start("losses-replica", &["--replicaof", "127.0.0.1", &port]);
        wait_until("the replica follows", || replica.cli(&["INFO", "replication"]).contains("master_link_status:up"));
        let (records, is_over): ([Record; 4], _) =
            (std::array::from_fn(|_| Record::new(10_000)), AtomicBool::new(false));
        let url = |node: &Node, i: usize| {
            format!("redis://127.0.0.1:{}?loses=500ms{}", node.port, ["", "&grants=never"][i % 2])
        };
        let mut was_in_time = false;
        std::thread::scope(|scope| {
            for (i, record) in records[..2].iter().enumerate() {
                let url = url(&primary, i);
                let is_over = &is_over;
                scope.spawn(move || hammer(&url, record, is_over));
            }
            wait_until("it starts", || records[..2].iter().all(|record| record.len() > 2));
            std::thread::sleep(random.below(2_000) as u32 * MS);
            wait_until("the replica has the limit", || replica.cli(&["KEYS", "*"]).contains("wgl:{api}"));
            let since = Instant::now();
            assert_eq!(replica.cli(&["REPLICAOF", "NO", "ONE"]).trim(), "OK");
            std::thread::sleep(random.below(300) as u32 * MS);
            primary.signal(libc::SIGKILL);
            wait_until("it has ended", || std::net::TcpStream::connect(("127.0.0.1", primary.port)).is_err());
            was_in_time = since.elapsed() < LOSES;
            for (i, record) in records[2..].iter().enumerate() {
                let url = url(&replica, i);
                let is_over = &is_over;
                scope.spawn(move || hammer(&url, record, is_over));
            }
            wait_until("it starts", || records[2..].iter().map(Record::len).sum::<u64>() > 20);
            is_over.store(true, Release);
        });
        // On a busy machine, it was behind by more.
        if was_in_time {
            losses += 1;
            check(&records, "a replica");
        }
    }
}
