//! Processes that die or stop while they rewrite a key or a table: cancel, settle, clear, a change of policy, giving
//! up.
#![cfg(feature = "fault-points")]

use crate::common::limits::patient;
use crate::common::wait::Wait;
use crate::common::{Child, Dir, Random, Record, most_in_any_window, now_ns, number, raise, wait_until};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use workglow_limit::embed::Step;
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);

fn rate(url: &str, name: &str, max: u64, window: Duration) -> RateLimiter {
    RateLimiter::new(&Store::new(url).unwrap(), name, max, window).unwrap()
}

fn attempt(limiter: &impl Limiter, key: &str, weight: u64) -> Option<RawPermit> {
    match limiter.attempt(key, weight).unwrap() {
        Attempt::Admitted(permit) => Some(permit),
        Attempt::Denied(_) => None,
    }
}

const LIMIT: u64 = 40;
const WINDOW: Duration = Duration::from_secs(3);

/// A rare operation on `key`, given a start of 5 units.
type Operation = fn(&str, &RateLimiter, &RawPermit);

/// Rare operations, and the possible numbers of units in use afterwards, of 17 before.
const OPERATIONS: [(&str, Operation, &[u64]); 9] = [
    ("cancel", |_, limiter, permit| limiter.cancel(permit).unwrap(), &[17, 12]),
    ("settle for less", |_, limiter, permit| limiter.settle(permit, 2).unwrap(), &[17, 14]),
    ("settle for more", |_, limiter, permit| limiter.settle(permit, 9).unwrap(), &[17, 21]),
    ("clear the key", |_, limiter, _| limiter.clear("key").unwrap(), &[17, 0]),
    ("clear all", |_, limiter, _| limiter.clear("").unwrap(), &[17, 0]),
    ("raise", |url, limiter, _| rate(url, limiter.name(), 60, WINDOW).open().unwrap(), &[17]),
    ("lower", |url, limiter, _| rate(url, limiter.name(), 30, WINDOW).open().unwrap(), &[17]),
    // The key gets a larger ring.
    ("grow", |_, limiter, _| assert!(attempt(limiter, "key", 15).is_some()), &[17, 32]),
    // Its place counts if the process dies with it.
    ("give up", give_up, &[17, LIMIT]),
];

fn give_up(_: &str, limiter: &RateLimiter, _: &RawPermit) {
    let mut wait = Wait::new("key", LIMIT - 5, None);
    assert!(matches!(wait.step(limiter).unwrap(), Step::Sleep(_)));
    wait.give_up(limiter).unwrap();
}

#[test]
fn a_death_during_a_rewrite_leaves_an_exact_limit() {
    let dir = Dir::in_memory("dying");
    let url = dir.url();
    let (mut limiters, mut deaths, mut checked) = (Vec::new(), Vec::new(), 0);
    for point in fault::REWRITING.iter().chain(fault::DECIDING) {
        for (operation, operate, may_be_used) in OPERATIONS {
            let what = format!("{operation}, {point}");
            let began = Instant::now();
            let mine = rate(&url, &what, LIMIT, WINDOW);
            assert!(attempt(&mine, "key", 7).is_some());
            let victim = Child::run(|| {
                let limiter = rate(&url, &what, LIMIT, WINDOW);
                let permit = attempt(&limiter, "key", 5).unwrap();
                assert!(attempt(&limiter, "key", 5).is_some());
                fault::at(point, || raise(libc::SIGKILL));
                operate(&url, &limiter, &permit);
            });
            if victim.was_killed() {
                deaths.push(*point);
            }
            // No process has to open anything or wait. The next rare operation completes the interrupted work.
            mine.cancel(&attempt(&mine, "other", 1).unwrap()).unwrap();
            assert!(attempt(&mine, "other", 1).is_some());
            let Decision { limit, remaining, .. } = mine.peek("key", 1).unwrap();
            let taken = (0..limit + 1).filter(|_| attempt(&mine, "key", 1).is_some()).count() as u64;
            let others = (0..limit + 1).filter(|_| attempt(&mine, "other", 1).is_some()).count() as u64;
            if began.elapsed() < WINDOW {
                checked += 1;
                assert!(may_be_used.contains(&(limit - remaining)), "{what}: {remaining} of {limit} remain");
                assert_eq!((taken, others), (remaining, limit - 1), "{what}");
            }
            limiters.push(mine);
        }
    }
    for point in fault::REWRITING {
        assert!(deaths.contains(point), "no process died at {point}");
    }
    println!("{} died while rewriting, {checked} of {} checked", deaths.len(), limiters.len());
    assert!(checked > limiters.len() / 2);
    // A place may be a window ahead, and counts for another window.
    for limiter in limiters {
        let is_free = || ["key", "other"].iter().all(|key| limiter.peek(key, 1).is_ok_and(|d| d.remaining == d.limit));
        wait_until("all is free again", is_free);
    }
}

#[test]
fn a_process_stopped_during_a_rewrite_blocks_only_rare_operations() {
    // By a window that is longer than any disk takes for this.
    let raise_it = |url: &str, limiter: &RateLimiter, _: &RawPermit| {
        patient(url).override_limit(limiter.name(), &Policy::rate(4_050, HOUR).unwrap().to_string(), None).unwrap();
    };
    let operation = |name| match name {
        "raise" => raise_it,
        name => OPERATIONS.iter().find(|operation| operation.0 == name).unwrap().1,
    };
    for (point, name) in [("key-sealed", "cancel"), ("key-written", "settle for less"), ("table-written", "raise")] {
        let dir = Dir::new(&format!("stopping-{point}"));
        let url = dir.url();
        let mut options = StoreOptions::default();
        options.timeout = Duration::from_millis(200);
        let store = Store::with_options(&url, options).unwrap();
        let limiter = |name| RateLimiter::new(&store, name, 4_000, HOUR).unwrap();
        let (mine, other, new) = (limiter("api"), limiter("other"), limiter("new"));
        other.open().unwrap();
        // In rings of 512 slots, as large as what comes needs, whoever writes them again.
        for (limiter, key) in [(&other, ""), (&mine, "another key")] {
            attempt(limiter, key, 300).unwrap();
        }
        store.flush().unwrap();
        let permit = attempt(&mine, "key", 7).unwrap();
        let stopped = Child::run(|| {
            let limiter = rate(&url, "api", 4_000, HOUR);
            let permit = attempt(&limiter, "key", 5).unwrap();
            fault::at(point, || raise(libc::SIGSTOP));
            operation(name)(&url, &limiter, &permit);
        });
        stopped.wait_until_stopped();
        // As many as may be missing from the ledger, then denials: none of these needs another process.
        assert_eq!((0..150).filter(|_| attempt(&other, "", 1).is_some()).count(), 150);
        assert_eq!((0..150).filter(|_| attempt(&mine, "another key", 1).is_some()).count(), 150);
        // A change of policies blocks no decision.
        let decisions = [mine.peek("key", 1).map(drop), mine.attempt("key", 1).map(drop)];
        assert_eq!(decisions.iter().filter(|decision| decision.is_ok()).count(), if name == "raise" { 2 } else { 0 });
        let failures = [
            mine.cancel(&permit),
            mine.settle(&permit, 1),
            mine.clear(""),
            new.open(),
            store.override_limit("api", &Policy::rate(1, HOUR).unwrap().to_string(), None),
            store.flush(),
        ];
        for failure in failures.iter().chain(decisions.iter().filter(|_| name != "raise")) {
            assert_eq!(failure.as_ref().unwrap_err().name(), "store_timeout", "at {point}: {failure:?}");
        }
        assert_eq!(store.failures(), if name == "raise" { 2 } else { 4 }, "those that were decisions");
        stopped.signal(libc::SIGCONT);
        stopped.join();
        let used = |limiter: &RateLimiter, key: &str| {
            let decision = limiter.peek(key, 1).unwrap();
            decision.limit - decision.remaining
        };
        let left = if name == "cancel" {
            0
        } else if name == "raise" {
            // And one from just now.
            6
        } else {
            2
        };
        assert_eq!(used(&mine, "key"), 7 + left, "at {point}");
        mine.cancel(&permit).unwrap();
        assert_eq!(used(&mine, "key"), left, "at {point}");
        new.open().unwrap();
        store.flush().unwrap();
        assert_eq!(used(&other, ""), 450);
    }
}

const STORM_LIMIT: u64 = 48;
const STORM_WINDOW: Duration = Duration::from_millis(20);

/// The work of one process of the storm, until it is killed. Its permanent starts are recorded, under the number of
/// their key.
fn storm(url: &str, record: &Record) {
    let limiter = RateLimiter::attach(&Store::new(url).unwrap(), "storm").unwrap();
    let mut random = Random::new();
    loop {
        // Two keys that stay, and eight that change every 50 ms.
        let number = match random.below(4) {
            0 | 1 => random.below(2),
            _ => 2 + (now_ns() / 50_000_000 % 1_000) * 8 + random.below(8),
        };
        let key = format!("key {number}");
        let weight = 1 + random.below(3);
        let add = |a, b, units| record.add(a, b, number << 2 | units);
        let a = now_ns();
        match random.below(512) {
            0..4 => {
                let Reserved::Place { place, after } = limiter.reserve(&key, weight, Some(STORM_WINDOW), None).unwrap()
                else {
                    continue;
                };
                std::thread::sleep(after);
                let a = now_ns();
                match limiter.present(&place).unwrap() {
                    Presented::Started(_) => add(a, now_ns(), weight),
                    Presented::Wait { place, .. } => limiter.cancel(&place).unwrap(),
                }
            }
            4 => limiter.clear("unmeasured").unwrap(),
            choice => {
                let Some(permit) = attempt(&limiter, &key, weight) else { continue };
                let b = now_ns();
                match choice {
                    5..40 => limiter.cancel(&permit).unwrap(),
                    40..75 => {
                        limiter.settle(&permit, 1).unwrap();
                        add(a, b, 1);
                    }
                    _ => add(a, b, weight),
                }
            }
        }
    }
}

/// The same operations at random moments. Set `SECONDS=60` for a long run.
#[test]
fn killed_writers_never_exceed_the_limit() {
    let dir = Dir::in_memory("writers");
    let url = dir.url();
    rate(&url, "storm", STORM_LIMIT, STORM_WINDOW).open().unwrap();
    let records: Vec<Record> = (0..4).map(|_| Record::new(8_000_000)).collect();
    let spawn = |which: usize| {
        Child::run(|| match records.get(which) {
            Some(record) => storm(&url, record),
            // The operator, who changes the limit and forgets all keys of another one.
            None => loop {
                for max in [STORM_LIMIT, STORM_LIMIT - 8] {
                    rate(&url, "storm", max, STORM_WINDOW).open().unwrap();
                    std::thread::sleep(Duration::from_millis(30));
                }
            },
        })
    };
    let mut children: Vec<Child> = (0..5).map(spawn).collect();
    let (start, mut random, mut kills) = (Instant::now(), Random::new(), 0);
    while start.elapsed() < Duration::from_secs(number("SECONDS", 3)) {
        std::thread::sleep(Duration::from_micros(500 + random.below(6_000)));
        // Not all the time, since races among living processes are part of the test.
        if start.elapsed().as_millis() / 250 % 2 == 0 {
            continue;
        }
        let victim = random.below(5) as usize;
        children[victim] = spawn(victim); // dropping the old one kills it
        kills += 1;
    }
    // On a busy machine hardly one may have lived long enough. The last ones go on.
    let is_enough = || records.iter().map(Record::len).sum::<u64>() >= 1_000;
    wait_until("killed processes do not block the living", is_enough);
    drop(children);
    let mut starts = BTreeMap::<u64, Vec<_>>::new();
    for (a, b, what) in records.iter().flat_map(Record::starts) {
        starts.entry(what >> 2).or_default().push((a, b, what & 3));
    }
    let most = |starts: &Vec<_>| most_in_any_window(starts, STORM_WINDOW.as_nanos() as u64);
    let worst = starts.iter().map(|(number, starts)| (most(starts), number)).max().unwrap();
    let units: u64 = starts[&0].iter().map(|s| s.2).sum();
    let allowed = STORM_LIMIT * start.elapsed().as_micros() as u64 / STORM_WINDOW.as_micros() as u64;
    println!("{kills} kills, {} keys, {units} of {allowed} units of key 0, most in a window {worst:?}", starts.len());
    assert!(worst.0 <= STORM_LIMIT, "{} of {STORM_LIMIT} in one window of key {}", worst.0, worst.1);
}

/// An adaptive log has the durations of jobs after its slots, while starts are cancelled and settled.
#[test]
fn job_durations_are_not_part_of_the_log() {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let store = Store::with_options("memory:", options).unwrap();
    let limiter = EvenlySpacedRateLimiter::shared(&store, "spaced", 20, Duration::from_millis(20), true).unwrap();
    let (mut starts, us) = (Vec::new(), Duration::from_micros);
    for turn in 0..5_000u64 {
        let began = clock.now();
        if let Attempt::Admitted(permit) = limiter.attempt("", 1).unwrap() {
            clock.advance(us(100 + turn % 7 * 300));
            if turn % 5 == 0 {
                limiter.cancel(&permit).unwrap();
            } else {
                limiter.complete(&permit).unwrap();
                starts.push(began);
            }
        } else {
            clock.advance(us(50));
        }
    }
    for some in starts.windows(21) {
        assert!(some[20] - some[0] >= Duration::from_millis(20), "21 starts from {:?} to {:?}", some[0], some[20]);
    }
    assert!(starts.len() > 1_000, "{} starts", starts.len());
}

#[test]
fn a_limiter_with_an_outdated_place_of_its_empty_key_does_not_use_another_keys_cells() {
    for (name, policy) in [("log", "1/1h"), ("bucket", "1/1h burst 1")] {
        let dir = Dir::in_memory(&format!("moved-{name}"));
        let store = Store::new(&dir.url()).unwrap();
        let [limiter, other] = [(); 2].map(|()| store.limiter("api", policy).unwrap());
        let take = |key| match limiter.attempt(key, 1).unwrap() {
            Attempt::Admitted(permit) => permit,
            Attempt::Denied(_) => panic!("{name}: \"{key}\" is denied"),
        };
        let denies = || matches!(other.attempt("", 1).unwrap(), Attempt::Denied(_));
        let first = take("");
        // From here on the other limiter knows the key's place.
        assert!(denies() && denies());
        let tenant = take("tenant");
        // The key "" moves, and the tenant's key takes its place.
        limiter.cancel(&first).unwrap();
        take("");
        limiter.cancel(&tenant).unwrap();
        assert!(denies() && denies(), "{name}: two starts");
        take("tenant");
    }
}
