//! What waits for the ledger, and what does not, whatever a stranger does to the database.

mod common;

use common::{Child, Dir, shared, wait_until};
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use workglow_limit::*;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

fn rate(store: &Store, name: &str, max: u64, window: Duration) -> RateLimiter {
    RateLimiter::new(store, name, max, window).unwrap()
}

fn admitted(limiter: &impl Limiter, key: &str) -> bool {
    matches!(limiter.attempt(key, 1), Ok(Attempt::Admitted(_)))
}

/// A stranger who holds a lock on the database from now until the answer is called.
fn stranger(dir: &Dir, sql: &'static str) -> impl FnOnce() + use<> {
    let steps = shared(2);
    let path = dir.file("limits.db");
    let stranger = Child::run(|| {
        let db = rusqlite::Connection::open(path).unwrap();
        db.execute_batch(sql).unwrap();
        steps[0].store(1, Release);
        wait_until("it is enough", || steps[1].load(Acquire) == 1);
    });
    wait_until("the database is locked", || steps[0].load(Acquire) == 1);
    move || {
        steps[1].store(1, Release);
        stranger.join();
    }
}

/// Each test in a process of its own: SQLite and forks do not mix with other threads.
fn alone(f: impl FnOnce()) {
    Child::run(f).join();
}

const STRANGERS: [&str; 3] = ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE", "BEGIN; SELECT * FROM store"];

#[test]
fn a_limit_of_a_minute_waits_for_nobody() {
    for sql in STRANGERS {
        alone(|| {
            let dir = Dir::in_memory("minute");
            let store = Store::new(&dir.url()).unwrap();
            let limiter = rate(&store, "api", 1_000, MINUTE);
            assert!(admitted(&limiter, ""));
            let end = stranger(&dir, sql);
            MayWait::Never.during(|| {
                assert!((0..999).all(|_| admitted(&limiter, "")), "{sql}: nothing has to be written first");
                assert!(!admitted(&limiter, ""));
            });
            assert_eq!(store.failures(), 0);
            end();
        });
    }
}

#[test]
fn the_budget_of_an_hour_is_there_while_a_stranger_has_the_database() {
    for sql in STRANGERS {
        alone(|| {
            let dir = Dir::in_memory("hour");
            let mut options = StoreOptions::default();
            options.timeout = Duration::from_millis(100);
            let store = Store::with_options(&dir.url(), options).unwrap();
            let limiter = rate(&store, "api", 200, HOUR);
            wait_until("the limit is open", || limiter.open().is_ok());
            let end = stranger(&dir, sql);
            // A twentieth of 200 may be missing.
            assert!((0..10).all(|_| admitted(&limiter, "")), "{sql}");
            assert_eq!(limiter.attempt("", 1).unwrap_err().name(), "store_timeout", "{sql}");
            assert!((0..10).all(|_| admitted(&limiter, "another key")), "{sql}: each key has its own");
            end();
            wait_until("it recovers by itself", || admitted(&limiter, ""));
            let rest = (0..200).filter(|_| admitted(&limiter, "")).count();
            assert_eq!(rest, 189, "{sql}: what failed took nothing");
        });
    }
}

#[test]
fn a_call_that_must_not_wait_says_so_and_changes_nothing() {
    alone(|| {
        let dir = Dir::in_memory("never");
        let store = Store::new(&dir.url()).unwrap();
        let limiter = rate(&store, "api", 20, HOUR);
        let never = |key: &str| MayWait::Never.during(|| limiter.attempt(key, 1));
        assert_eq!(never("").unwrap_err(), Error::WouldWait, "the store is not open");
        assert!(!dir.file("limits.db").exists());
        limiter.open().unwrap();
        assert!(matches!(never("").unwrap(), Attempt::Admitted(_)), "the budget of one unit");
        assert!(store.is_due(), "somebody should write it");
        assert_eq!(never("").unwrap_err(), Error::WouldWait, "a second unit may not be missing");
        assert_eq!(MayWait::Never.during(|| limiter.decide("", 1)).unwrap_err(), Error::WouldWait);
        assert_eq!(limiter.peek("", 0).unwrap().remaining, 19, "nothing was taken");
        store.look_after();
        assert!(!store.is_due());
        assert!(matches!(never("").unwrap(), Attempt::Admitted(_)), "the first is written");
        assert!(admitted(&limiter, ""), "and who may wait need not ask twice");
        assert_eq!(limiter.peek("", 0).unwrap().remaining, 17);
        assert_eq!(store.failures(), 0, "that is no failure");
    });
}

#[test]
fn what_is_written_behind_is_there_after_the_next_look() {
    alone(|| {
        let dir = Dir::in_memory("behind");
        let store = Store::new(&dir.url()).unwrap();
        let limiter = rate(&store, "api", 5_000, MINUTE);
        for i in 0..300 {
            assert!(admitted(&limiter, &format!("key {i}")));
        }
        let rows = || -> (i64, f64) {
            let db = rusqlite::Connection::open(dir.file("limits.db")).unwrap();
            db.query_row("SELECT count(*), total(units) FROM executions", [], |row| Ok((row.get(0)?, row.get(1)?)))
                .unwrap()
        };
        wait_until("all is written", || {
            store.look_after();
            let _ = limiter.attempt("key 0", 1);
            rows().0 >= 300
        });
        store.flush().unwrap();
        let (_, units): (i64, f64) = rows();
        let admitted = limiter.stats("").unwrap().units_granted;
        assert_eq!(units as u64, admitted, "each unit once");
    });
}

/// A key whose starts are settled all the time moves between the gathering and the marking of a commit.
#[test]
fn a_key_that_moves_while_it_is_written_is_written_once() {
    alone(|| {
        let dir = Dir::in_memory("moving-commit");
        let mut options = StoreOptions::default();
        options.durability = Durability::Commit;
        let store = Store::with_options(&dir.url(), options).unwrap();
        let limiter = rate(&store, "api", 100_000 / 25, HOUR);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let permit = limiter.try_acquire("tenant", 2).unwrap().expect("there is room");
                        permit.settle(1).unwrap();
                    }
                });
            }
        });
        store.flush().unwrap();
        let db = rusqlite::Connection::open(dir.file("limits.db")).unwrap();
        let rows: i64 = db.query_row("SELECT count(*) FROM executions", [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 200);
    });
}
