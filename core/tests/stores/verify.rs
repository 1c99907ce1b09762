//! `Store::verify` reports what is wrong with a store, repairs what it can, and leaves the rest unchanged.

use crate::common::{Child, Dir, with_database};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::time::Duration;
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);

/// A store with limits of each kind, in which five starts of "api" count.
fn used(dir: &Dir) -> Store {
    let store = Store::new(&dir.url()).unwrap();
    let api = RateLimiter::new(&store, "api", 100, HOUR).unwrap();
    assert!((0..5).all(|_| api.decide("key", 1).unwrap().admitted));
    for text in ["50/1h + 5/1s", "9000/1h", "100/1h burst 20", "3 concurrent", "100/1h fixed", "100/1h counter"] {
        let limiter = store.limiter(&format!("limit {text}"), text).unwrap();
        for key in 0..50 {
            assert!(limiter.decide(&key.to_string(), 1).unwrap().admitted);
        }
    }
    store.limiter("both", "10/1h + 2 concurrent").unwrap().decide("", 1).unwrap();
    store.flush().unwrap();
    store
}

/// The findings of `verify`, and how many of them are repaired.
fn verified(store: &Store, repair: bool) -> (Vec<String>, usize) {
    let problems = store.verify(repair).unwrap();
    let repaired = problems.iter().filter(|problem| problem.is_repaired).count();
    (problems.into_iter().map(|problem| problem.found).collect(), repaired)
}

const NOTHING: (Vec<String>, usize) = (Vec::new(), 0);

#[test]
fn an_intact_store_has_no_problems_while_in_use() {
    let dir = Dir::new("verify-fine");
    let store = used(&dir);
    let others: Vec<Child> = (0..2)
        .map(|i| {
            Child::run(|| {
                let store = Store::new(&dir.url()).unwrap();
                let limiter = RateLimiter::new(&store, "many", 3, HOUR / 60).unwrap();
                for key in 0..10_000 {
                    let decision = limiter.decide(&format!("{i} {key}"), 1).unwrap();
                    if key % 3 == 0 {
                        limiter.cancel(&decision.permit.unwrap()).unwrap();
                    }
                }
            })
        })
        .collect();
    for repair in [false, true] {
        assert_eq!(verified(&store, repair), NOTHING);
    }
    others.into_iter().for_each(Child::join);
    assert_eq!(verified(&store, true), NOTHING);
    assert_eq!(RateLimiter::attach(&store, "api").unwrap().peek("key", 1).unwrap().remaining, 95);
    assert_eq!(verified(&Store::new("memory:").unwrap(), true), NOTHING);
    // A missing store is created, as by every first use.
    assert_eq!(verified(&Store::new(&Dir::new("verify-new").url()).unwrap(), false), NOTHING);
}

#[test]
fn nonsensical_rows_are_reported_and_removed() {
    const REPAIRED: [(&str, &str); 7] = [
        ("UPDATE limits SET policy = 'nonsense' WHERE name = 'api'", "limit \"api\" has the policy \"nonsense\""),
        ("UPDATE limits SET override = '1/0s' WHERE name = 'api'", "limit \"api\" has the override \"1/0s\""),
        (
            "INSERT INTO keys SELECT id, 'tenant', 'nonsense', '', '', 1, NULL FROM limits WHERE name = 'api'",
            "key \"tenant\" of limit \"api\" has the policy \"nonsense\"",
        ),
        ("UPDATE limits SET policy = '7/1h +' WHERE name = 'both'", "limit \"both\" has the policy \"7/1h +\""),
        (
            "CREATE TRIGGER \"a \"\" b\" AFTER UPDATE ON store BEGIN DELETE FROM executions; END",
            "a trigger \"a \\\" b\", where a store has none",
        ),
        (
            "UPDATE executions SET key_hash = 'z' || substr(key_hash, 2) FROM limits
             WHERE id = limit_id AND name = 'limit 9000/1h'",
            "50 rows",
        ),
        ("UPDATE executions SET units = -1 FROM limits WHERE id = limit_id AND name = 'limit 100/1h fixed'", "50 rows"),
    ];
    for (i, (sql, found)) in REPAIRED.into_iter().enumerate() {
        let dir = Dir::new(&format!("verify-rows-{i}"));
        drop(used(&dir));
        with_database(&dir, |stranger| stranger.execute_batch(sql).unwrap());
        let store = Store::new(&dir.url()).unwrap();
        let (problems, repaired) = verified(&store, false);
        assert!(problems[0].starts_with(found) && repaired == 0, "{sql}: {problems:?}");
        assert_eq!(verified(&store, true), (vec![problems[0].clone()], 1), "{sql}");
        assert_eq!(verified(&store, false), NOTHING, "{sql}");
        let api = RateLimiter::new(&store, "api", 100, HOUR).unwrap();
        assert_eq!(api.peek("key", 1).unwrap().remaining, 95, "{sql}");
    }
}

#[test]
fn irreparable_damage_is_reported() {
    let statements = [
        "DELETE FROM store",
        "UPDATE store SET lane = 'z'",
        "DROP TABLE usage",
        "DROP TABLE limits; CREATE VIEW limits AS WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x FROM r) SELECT x FROM r",
    ];
    for (i, sql) in statements.into_iter().enumerate() {
        let dir = Dir::new(&format!("verify-lost-{i}"));
        drop(used(&dir));
        with_database(&dir, |stranger| stranger.execute_batch(sql).unwrap());
        let store = Store::new(&dir.url()).unwrap();
        let (problems, repaired) = verified(&store, true);
        assert!(problems.len() == 1 && repaired == 0, "{sql}: {problems:?}");
        assert_eq!(store.open().unwrap_err().name(), "damaged", "{sql}");
    }
}

/// A maker that was killed before its first commit was once reported as damage.
#[test]
fn a_database_whose_maker_was_killed_has_no_problem() {
    let dir = Dir::new("verify-unmade");
    std::fs::write(dir.file("limits.db"), "").unwrap();
    let store = Store::new(&dir.url()).unwrap();
    assert_eq!(verified(&store, false), NOTHING);
    assert_eq!(verified(&store, true), NOTHING);
    assert!(RateLimiter::new(&store, "api", 1, HOUR).unwrap().decide("", 1).unwrap().admitted);
}

#[test]
fn a_foreign_file_is_refused_and_left_unchanged() {
    let dir = Dir::new("verify-other");
    std::fs::write(dir.file("limits.db"), "no database").unwrap();
    let error = Store::new(&dir.url()).unwrap().verify(true).unwrap_err();
    assert_eq!(error.name(), "not_a_store");
    assert_eq!(std::fs::read(dir.file("limits.db")).unwrap(), b"no database");
}

/// Every word of the lane after its header, and the word of the first limit.
#[test]
fn a_damaged_lane_is_rebuilt_from_the_ledger() {
    for is_open in [false, true] {
        let dir = Dir::new(&format!("verify-lane-{is_open}"));
        let store = used(&dir);
        let store = if is_open { store } else { Store::new(&dir.url()).unwrap() };
        let path = dir.file("limits.db-lane");
        let mut whole = std::fs::read(&path).unwrap();
        whole[4_096..]
            .as_chunks_mut::<8>()
            .0
            .iter_mut()
            .filter(|word| **word != [0; 8])
            .for_each(|word| word.fill(255));
        OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&whole, 0).unwrap();

        let (problems, repaired) = verified(&store, false);
        assert!(!problems.is_empty() && repaired == 0 && problems.iter().all(|found| found.starts_with("the lane: ")));
        let (problems, repaired) = verified(&store, true);
        assert!(repaired > 0 && repaired == problems.len(), "{problems:?}");
        assert_eq!(verified(&store, false), NOTHING);

        let api = RateLimiter::new(&store, "api", 100, HOUR).unwrap();
        // It counts as full until all processes have noticed that the lane is another one.
        std::thread::sleep(api.peek("key", 1).unwrap().retry_after);
        let admitted = (0..200).filter(|_| api.decide("key", 1).unwrap().admitted).count();
        // The budget counts as used in addition to the ledger's starts.
        assert_eq!(admitted, 100 - 5 - 5);
    }
}

#[test]
fn a_file_that_is_not_a_lane_is_one_problem() {
    let dir = Dir::new("verify-no-lane");
    used(&dir);
    OpenOptions::new().write(true).open(dir.file("limits.db-lane")).unwrap().write_all_at(&[b'x'; 8_192], 0).unwrap();
    let store = Store::new(&dir.url()).unwrap();
    let (problems, repaired) = verified(&store, false);
    assert_eq!((problems.len(), repaired), (1, 0), "{problems:?}");
    assert_eq!(verified(&store, true), (problems, 1));
    assert_eq!(verified(&store, false), NOTHING);
}
