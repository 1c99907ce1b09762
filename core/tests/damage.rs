//! Damage to a store's files is an error: no crash, no call without an end, and nothing over the limit in silence.
//! `ROUNDS=200 cargo test …` makes it a long one.
#![cfg(feature = "fault-points")]

mod common;

use common::{Child, Dir, Random, now_ns, number, shared};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);
const LIMIT: u64 = 100;
const BUDGET: u64 = LIMIT / 20;

/// What a damaged store may answer.
const ERRORS: [&str; 10] = [
    "damaged",
    "store_failure",
    "store_timeout",
    "store_full",
    "not_a_store",
    "unsupported_version",
    "unknown_limit",
    "kind_mismatch",
    "lease_lost",
    // By a policy that is damaged.
    "weight_exceeds_capacity",
];

/// The answer, or nothing after an error that damage may have for a consequence.
fn expected<T>(answer: Result<T>) -> Option<T> {
    answer.inspect_err(|e| assert!(ERRORS.contains(&e.name()), "{e:?}")).ok()
}

const OTHERS: [&str; 7] =
    ["50/1h + 5/1s", "9000/1h", "100/1h burst 20", "3 concurrent", "100/1h fixed", "100/1h counter", "20/1m spaced"];

/// Uses all of a store for a while. What the limit "api" admits is counted.
fn use_for(dir: &Dir, time: Duration, admitted: &AtomicU64) {
    let mut options = StoreOptions::default();
    options.timeout = Duration::from_millis(100);
    let store = Store::with_options(&dir.url(), options).unwrap();
    let api = RateLimiter::new(&store, "api", LIMIT, HOUR).unwrap();
    let others = OTHERS.iter().enumerate();
    let others: Vec<_> = others.filter_map(|(i, text)| expected(store.limiter(&format!("other {i}"), text))).collect();
    let mut random = Random::new();
    let began = now_ns();
    while now_ns() - began < time.as_nanos() as u64 {
        if let Some(Attempt::Admitted(_)) = expected(api.attempt("key", 1)) {
            admitted.fetch_add(1, AcqRel);
        }
        let key = random.below(40).to_string();
        let other = &others[random.below(others.len() as u64) as usize];
        match random.below(12) {
            0 => drop(expected(other.peek(&key, 1))),
            1 => drop(expected(other.clear(&key))),
            2 => drop(expected(other.stats(&key))),
            3 => drop(expected(other.pause(&key, Duration::from_millis(1)))),
            4 => drop(expected(store.flush())),
            5 => {
                let permit = expected(other.decide(&key, 1)).and_then(|decision| decision.permit);
                permit.map(|permit| expected(other.cancel(&permit)));
            }
            _ => {
                if let Some(Attempt::Admitted(permit)) = expected(other.attempt(&key, 1 + random.below(2))) {
                    expected(other.complete(&permit));
                }
            }
        }
    }
}

/// Overwrites a few bytes.
fn flip(path: &Path, random: &mut Random) {
    let Ok(file) = OpenOptions::new().read(true).write(true).open(path) else { return };
    let len = file.metadata().unwrap().len().max(1);
    for _ in 0..1 + random.below(30) {
        // Most of it is empty: what is at the beginning is more likely to matter.
        let within = [len, 16_384, 2_048][random.below(3) as usize].min(len);
        let at = random.below(within);
        let bytes = random.below(u64::MAX).to_le_bytes();
        let bytes = if random.below(2) == 0 { &bytes[..] } else { &bytes[..1] };
        file.write_all_at(bytes, at).unwrap();
    }
}

#[test]
fn random_damage_is_an_error_and_never_more() {
    let mut random = Random::new();
    for round in 0..number("ROUNDS", 8) {
        let (dir, other) = (Dir::in_memory("damage"), Dir::in_memory("damage-other"));
        let (database, lane) = (dir.file("limits.db"), dir.file("limits.db-lane"));
        let (admitted, elsewhere) = (&shared(1)[0], &shared(1)[0]);
        let run = |ms| Child::run(|| use_for(&dir, Duration::from_millis(ms), admitted));
        Child::run(|| use_for(&other, Duration::from_millis(20), elsewhere)).join();
        run(20).join();
        for name in dir.names() {
            std::fs::copy(dir.file(&name), dir.file(&format!("{name}.old"))).unwrap();
        }
        run(20).join();
        let is_running = round % 2 == 1;
        let running: Vec<_> = (0..2).filter(|_| is_running).map(|_| run(1_300)).collect();
        if is_running {
            std::thread::sleep(Duration::from_millis(50));
        }
        let what = random.below(8);
        match what {
            0 => flip(&lane, &mut random),
            1 => flip(&database, &mut random),
            // Who uses what is cut short is killed by the kernel.
            2 if !is_running => {
                let len = random.below(std::fs::metadata(&lane).unwrap().len());
                OpenOptions::new().write(true).open(&lane).unwrap().set_len(len).unwrap();
            }
            2 | 3 => {
                let len = random.below(std::fs::metadata(&database).unwrap().len());
                OpenOptions::new().write(true).open(&database).unwrap().set_len(len).unwrap();
            }
            // In place: cut short, even for a moment, it would kill who uses it.
            4 => {
                let old = std::fs::read(dir.file("limits.db-lane.old")).unwrap();
                OpenOptions::new().write(true).open(&lane).unwrap().write_all_at(&old, 0).unwrap();
            }
            5 => std::fs::rename(dir.file("limits.db-lane.old"), &lane).unwrap(),
            6 => std::fs::rename(dir.file("limits.db.old"), &database).unwrap(),
            _ => std::fs::rename(other.file("limits.db-lane"), &lane).unwrap(),
        }
        println!("round {round}: damage {what}, running {is_running}");
        running.into_iter().for_each(Child::join);
        let after: Vec<_> = (0..2).map(|_| run(100)).collect();
        after.into_iter().for_each(Child::join);
        let admitted = admitted.load(Acquire);
        // Bits of the lane that are other valid ones are what was admitted; an overwritten one may forget a budget twice.
        let most = LIMIT + if what == 4 && is_running { BUDGET } else { 0 };
        assert!(what == 0 || admitted <= most, "round {round}: {admitted} of {LIMIT} after damage {what}");
    }
}

/// Offsets, sizes and lists of the lane, each overwritten with what would lead astray.
#[test]
fn words_that_lead_astray_are_errors() {
    let dir = Dir::in_memory("astray");
    let count = &shared(1)[0];
    Child::run(|| use_for(&dir, Duration::from_millis(30), count)).join();
    let whole = std::fs::read(dir.file("limits.db-lane")).unwrap();
    let lane = OpenOptions::new().write(true).open(dir.file("limits.db-lane")).unwrap();
    let mut random = Random::new();
    for _ in 0..number("ROUNDS", 8) {
        lane.write_all_at(&whole, 0).unwrap();
        // What is not zero is looked at by somebody.
        let used = (10..whole.len() / 8).filter(|at| whole[at * 8..at * 8 + 8] != [0; 8]);
        for at in used.filter(|_| random.below(10) == 0).collect::<Vec<_>>() {
            let word = match random.below(5) {
                0 => 0,
                1 => u64::MAX,
                2 => at as u64,
                3 => random.below(whole.len() as u64 / 8),
                _ => random.below(u64::MAX),
            };
            lane.write_all_at(&word.to_le_bytes(), at as u64 * 8).unwrap();
        }
        Child::run(|| use_for(&dir, Duration::from_millis(50), count)).join();
    }
}

#[test]
fn rows_that_make_no_sense_are_errors() {
    const HOSTILE: [&str; 11] = [
        "UPDATE limits SET policy = 'nonsense'",
        "UPDATE limits SET policy = printf('%.*c', 3000000, 'x')",
        "UPDATE limits SET kind = 'other'",
        "DELETE FROM store",
        "UPDATE store SET sequence = 9223372036854775807",
        "UPDATE store SET sequence = -1, lane = 'z'",
        "DROP TABLE limits",
        "DROP TABLE limits; CREATE VIEW limits AS WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x FROM r) SELECT x FROM r",
        "CREATE TRIGGER t AFTER UPDATE ON store BEGIN DELETE FROM executions; END",
        "INSERT INTO executions SELECT 'api', 'key', '0000000000000008000000000000007', 0, 9223372036854775807, 1, 1, 0",
        "INSERT INTO executions SELECT 'api', 'key', '00000000000000080000000000000074', -9223372036854775807, 9223372036854775807, 0, 1, 0",
    ];
    let children = HOSTILE.iter().enumerate().map(|(i, sql)| {
        Child::run(move || {
            let dir = Dir::in_memory(&format!("hostile-{i}"));
            let count = &shared(1)[0];
            Child::run(|| use_for(&dir, Duration::from_millis(50), count)).join();
            Child::run(|| {
                let db = rusqlite::Connection::open(dir.file("limits.db")).unwrap();
                db.execute_batch(sql).unwrap();
            })
            .join();
            for is_lost in [false, true] {
                if is_lost {
                    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
                }
                Child::run(|| use_for(&dir, Duration::from_millis(50), count)).join();
            }
            assert!(count.load(Acquire) <= LIMIT, "{sql}: {}", count.load(Acquire));
        })
    });
    children.collect::<Vec<_>>().into_iter().for_each(Child::join);
}
