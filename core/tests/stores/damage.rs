//! Damage to a store's files is an error: no crash, no endless call, and no silent excess over the limit. (For random
//! damage during use, see `torments.rs`.)
#![cfg(feature = "fault-points")]

use crate::common::{Child, Dir, ERRORS_OF_DAMAGE, Random, now_ns, number, shared};
use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);
const LIMIT: u64 = 100;

/// The answer, or `None` after an error that damage may cause.
fn expected<T>(answer: Result<T>) -> Option<T> {
    answer.inspect_err(|e| assert!(ERRORS_OF_DAMAGE.contains(&e.name()), "{e:?}")).ok()
}

const OTHERS: [&str; 7] =
    ["50/1h + 5/1s", "9000/1h", "100/1h burst 20", "3 concurrent", "100/1h fixed", "100/1h counter", "20/1m spaced"];

/// Uses everything of a store for a while. The admissions of the limit "api" are counted.
fn use_for(dir: &Dir, time: Duration, admitted: &AtomicU64) {
    let mut options = StoreOptions::default();
    options.timeout = Duration::from_millis(100);
    let store = Store::with_options(&dir.url(), options).unwrap();
    let api = RateLimiter::new(&store, "api", LIMIT, HOUR).unwrap();
    let others = OTHERS.iter().enumerate();
    let others: Vec<_> = others.filter_map(|(i, text)| expected(store.limiter(&format!("other {i}"), text))).collect();
    let mut random = Random::new();
    // On a slow disk this takes longer than the use.
    expected(api.open());
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
            3 => drop(expected(other.pause(Duration::from_millis(1), &key))),
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

/// Each offset, size and list of the lane is overwritten with a misleading value.
#[test]
fn misleading_words_are_errors() {
    let dir = Dir::in_memory("astray");
    let count = &shared(1)[0];
    Child::run(|| use_for(&dir, Duration::from_millis(30), count)).join();
    let whole = std::fs::read(dir.file("limits.db-lane")).unwrap();
    let lane = OpenOptions::new().write(true).open(dir.file("limits.db-lane")).unwrap();
    let mut random = Random::new();
    for _ in 0..number("ROUNDS", 8) {
        lane.write_all_at(&whole, 0).unwrap();
        // Words that are not zero are read by some code.
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
fn nonsensical_rows_are_errors() {
    const HOSTILE: [&str; 12] = [
        "UPDATE limits SET policy = 'nonsense'",
        "UPDATE limits SET policy = printf('%.*c', 3000000, 'x')",
        "UPDATE limits SET kind = 'other'",
        "DELETE FROM store",
        "UPDATE store SET sequence = 9223372036854775807",
        "UPDATE store SET sequence = -1, lane = 'z'",
        "DROP TABLE limits",
        "DROP TABLE usage; CREATE VIEW usage AS SELECT 1",
        "DROP TABLE limits; CREATE VIEW limits AS WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x FROM r) SELECT x FROM r",
        "CREATE TRIGGER t AFTER UPDATE ON store BEGIN DELETE FROM executions; END",
        "INSERT INTO executions SELECT id, 'key', '0000000000000008000000000000007', 0, 9223372036854775807, 1, 1, 0 FROM limits WHERE name = 'api'",
        "INSERT INTO executions SELECT id, 'key', '00000000000000080000000000000074', -9223372036854775807, 9223372036854775807, 0, 1, 0 FROM limits WHERE name = 'api'",
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

/// Each word of a key's block, and of the words that lead to it, is given a value that was never written there. Calls
/// end, and so do walks over all keys.
#[test]
fn calls_end_whatever_a_block_holds() {
    // The position of a limit's table, of a table's index, and of the text in a key's block, by which the block is
    // found.
    const FIRST_LIMIT: usize = 13;
    const TABLE: usize = 3;
    const INDEX: usize = 13;
    const TEXT: usize = 16;
    const KINDS: [&str; 8] = [
        "7/1h",
        "7/1h + 5/1s",
        "5000/1h",
        "70/1h burst 20",
        "3 concurrent",
        "7/1h fixed",
        "7/1h counter",
        "20/1m spaced",
    ];
    let steps = shared(KINDS.len());
    let children = KINDS.iter().zip(steps).map(|(kind, steps)| {
        Child::run(move || {
            let dir = Dir::in_memory(&format!("block-{}", kind.replace(['/', ' '], "-")));
            let mut options = StoreOptions::default();
            options.timeout = Duration::from_millis(2);
            let store = Store::with_options(&dir.url(), options).unwrap();
            let limiter = store.limiter("api", kind).unwrap();
            let key = "this key";
            for _ in 0..3 {
                limiter.attempt(key, 1).unwrap();
            }
            let path = dir.file("limits.db-lane");
            let whole = std::fs::read(&path).unwrap();
            let word = |at: usize| u64::from_le_bytes(whole[at * 8..][..8].try_into().unwrap());
            let text = whole.windows(key.len()).rposition(|found| found == key.as_bytes()).unwrap() - 2;
            let block = text / 8 - TEXT;
            let limit = word(FIRST_LIMIT) as usize;
            let table = word(limit + TABLE) as usize;
            let segment = (word(table + INDEX) & ((1 << 29) - 1)) as usize;
            let structure =
                [10..256, limit..limit + 64, table..table + 32, segment..segment + 32].into_iter().flatten();
            let places = (block..block + 48).chain(structure.filter(|at| word(*at) != 0));
            let lane = OpenOptions::new().write(true).open(&path).unwrap();
            let mut random = Random::new();
            for at in places {
                let was = word(at);
                for other in [0, u64::MAX, u64::MAX - 1, was ^ 1, was.wrapping_neg(), at as u64, random.below(u64::MAX)]
                {
                    lane.write_all_at(&other.to_le_bytes(), at as u64 * 8).unwrap();
                    let permit = expected(limiter.decide(key, 1)).and_then(|decision| decision.permit);
                    permit.map(|permit| expected(limiter.complete(&permit)));
                    expected(limiter.peek(key, 1));
                    expected(limiter.clear("another"));
                    expected(store.flush());
                    expected(store.verify(false));
                    expected(limiter.clear(key));
                    // Except numbers that only grow.
                    lane.write_all_at(&whole[..480 * 8], 0).unwrap();
                    lane.write_all_at(&whole[512 * 8..], 512 * 8).unwrap();
                    let is_it = std::fs::metadata(&path).unwrap().ino() == lane.metadata().unwrap().ino();
                    assert!(is_it, "{kind}: with {other:x} at {at} another lane was created");
                    steps.fetch_add(1, Relaxed);
                }
            }
        })
    });
    children.collect::<Vec<_>>().into_iter().zip(steps).for_each(|(child, steps)| child.join_counting(steps));
}

/// A declared limit does not start again because its name was overwritten, and a key without its own policy is
/// reported.
#[test]
fn missing_declarations_are_reported() {
    let dir = Dir::in_memory("nameless");
    Child::run(|| {
        let store = Store::new(&dir.url()).unwrap();
        let api = store.limiter("api", "7/1h").unwrap();
        assert!((0..7).all(|_| matches!(api.attempt("key", 1).unwrap(), Attempt::Admitted(_))));
        store.override_limit("api", "2/1h", Some("tenant")).unwrap();
    })
    .join();
    let path = dir.file("limits.db-lane");
    let whole = std::fs::read(&path).unwrap();
    let word = |at: usize| u64::from_le_bytes(whole[at * 8..][..8].try_into().unwrap());
    let lane = OpenOptions::new().write(true).open(&path).unwrap();
    let limit = word(13) as usize;
    lane.write_all_at(&[7; 8], (limit as u64 + 1) * 8).unwrap();
    Child::run(|| {
        let store = Store::new(&dir.url()).unwrap();
        assert_eq!(store.limiter("api", "7/1h").unwrap().attempt("key", 1).unwrap_err().name(), "damaged");
        assert_eq!(store.verify(false).unwrap()[0].found, "the lane: no limit \"api\"");
    })
    .join();
    lane.write_all_at(&whole, 0).unwrap();
    // The slot of the index with the tenant's stub.
    let text = whole.windows(6).rposition(|found| found == b"tenant").unwrap() - 2;
    let stub = text as u64 / 8 - 16;
    let slot = (0..whole.len() / 8).find(|at| word(*at) & ((1 << 48) - 1) == stub && word(*at) >> 48 != 0).unwrap();
    lane.write_all_at(&[0; 8], slot as u64 * 8).unwrap();
    Child::run(|| {
        let found = &Store::new(&dir.url()).unwrap().verify(false).unwrap()[0].found;
        assert_eq!(found, "the lane: key \"tenant\" of limit \"api\" without its policy");
    })
    .join();
}

/// Only its checksum distinguishes a larger limit from the declared one.
#[test]
fn an_overwritten_policy_is_reported() {
    let dir = Dir::in_memory("overwritten");
    let declare = || RateLimiter::new(&Store::new(&dir.url()).unwrap(), "api", 77, HOUR).unwrap();
    let start = || assert!(matches!(declare().attempt("key", 1).unwrap(), Attempt::Admitted(_)));
    Child::run(start).join();
    let path = dir.file("limits.db-lane");
    let whole = std::fs::read(&path).unwrap();
    let policy = [1, 77, HOUR.as_micros() as u64].map(u64::to_le_bytes).concat();
    let at = whole.windows(policy.len()).position(|found| found == policy).unwrap() as u64;
    let lane = OpenOptions::new().write(true).open(&path).unwrap();
    lane.write_all_at(&770u64.to_le_bytes(), at + 8).unwrap();
    Child::run(|| assert_eq!(declare().attempt("key", 1).unwrap_err().name(), "damaged")).join();
    lane.write_all_at(&whole, 0).unwrap();
    Child::run(start).join();
}
