//! Which calls wait for the ledger and which do not, whatever another program does to the database.

use crate::common::{Child, Dir, shared, wait_until, with_database};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use workglow_limit::embed::{Joined, Line, MayWait, Outcome, Waiter, WaiterId, acquire};
use workglow_limit::*;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

fn rate(store: &Store, name: &str, max: u64, window: Duration) -> RateLimiter {
    RateLimiter::new(store, name, max, window).unwrap()
}

fn admitted(limiter: &impl Limiter, key: &str) -> bool {
    matches!(limiter.attempt(key, 1), Ok(Attempt::Admitted(_)))
}

/// Another program that holds a lock on the database until the returned function is called.
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

/// Each test runs in a process of its own, since SQLite and forks do not mix with other threads.
fn alone(f: impl FnOnce()) {
    Child::run(f).join();
}

const STRANGERS: [&str; 3] = ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE", "BEGIN; SELECT * FROM store"];

#[test]
fn a_limit_of_a_minute_never_waits_for_the_ledger() {
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
fn the_budget_of_an_hour_is_available_while_the_database_is_locked() {
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
            wait_until("it recovers", || admitted(&limiter, ""));
            let rest = (0..200).filter(|_| admitted(&limiter, "")).count();
            assert_eq!(rest, 189, "{sql}: the failed calls took nothing");
        });
    }
}

#[test]
fn a_counted_limit_has_its_budget_after_a_peek() {
    alone(|| {
        let dir = Dir::in_memory("looked");
        let mut options = StoreOptions::default();
        options.timeout = Duration::from_millis(100);
        let limiter = rate(&Store::with_options(&dir.url(), options).unwrap(), "api", 100_000, HOUR);
        assert!(limiter.can_proceed("").unwrap());
        assert!(admitted(&limiter, ""));
        let end = stranger(&dir, "BEGIN EXCLUSIVE");
        assert!((0..100).all(|_| admitted(&limiter, "")));
        end();
    });
}

#[test]
fn a_nonblocking_call_returns_would_block_without_effect() {
    alone(|| {
        let dir = Dir::in_memory("never");
        let store = Store::new(&dir.url()).unwrap();
        let limiter = rate(&store, "api", 20, HOUR);
        let never = |key: &str| MayWait::Never.during(|| limiter.attempt(key, 1));
        assert_eq!(never("").unwrap_err(), Error::WouldWait, "the store is not open");
        assert!(!dir.file("limits.db").exists());
        limiter.open().unwrap();
        assert!(matches!(never("").unwrap(), Attempt::Admitted(_)), "the budget of one unit");
        assert!(store.is_due(), "the ledger is due to be written");
        assert_eq!(never("").unwrap_err(), Error::WouldWait, "a second unit may not be missing");
        assert_eq!(MayWait::Never.during(|| limiter.decide("", 1)).unwrap_err(), Error::WouldWait);
        assert_eq!(limiter.peek("", 0).unwrap().remaining, 19, "nothing was taken");
        store.look_after();
        assert!(!store.is_due());
        assert!(matches!(never("").unwrap(), Attempt::Admitted(_)), "the first is written");
        assert!(admitted(&limiter, ""), "a blocking call needs only one attempt");
        assert_eq!(limiter.peek("", 0).unwrap().remaining, 17);
        assert_eq!(store.failures(), 0, "it does not count as a failure");
    });
}

/// Other processes use up the budget between the check and the claim, and another one has the structure lock.
#[cfg(feature = "fault-points")]
#[test]
fn a_refused_nonblocking_start_does_not_block_its_retry() {
    alone(|| {
        let dir = Dir::in_memory("own-way");
        let store = Store::new(&dir.url()).unwrap();
        let limiter = rate(&store, "api", 100, HOUR);
        let never = |limiter: &RateLimiter| MayWait::Never.during(|| limiter.attempt("", 1));
        assert!(admitted(&limiter, ""));
        store.flush().unwrap();
        let rival = rate(&store, "api", 100, HOUR);
        rival.open().unwrap();
        assert!((0..4).all(|_| matches!(never(&limiter), Ok(Attempt::Admitted(_)))), "one less than the budget");
        let stopped = Child::run(|| {
            let other = rate(&Store::new(&dir.url()).unwrap(), "other", 1, MINUTE);
            let Ok(Attempt::Admitted(permit)) = other.attempt("", 1) else { panic!("the limit has capacity") };
            fault::at("key-sealed", || crate::common::raise(libc::SIGSTOP));
            other.cancel(&permit).unwrap();
        });
        stopped.wait_until_stopped();
        fault::at("log-read", move || assert!(matches!(never(&rival), Ok(Attempt::Admitted(_)))));
        assert_eq!(never(&limiter).unwrap_err(), Error::WouldWait);
        stopped.signal(libc::SIGCONT);
        stopped.join();
        let others = shared(1);
        Child::run(|| {
            let limiter = rate(&Store::new(&dir.url()).unwrap(), "api", 100, HOUR);
            others[0].store((0..100).filter(|_| admitted(&limiter, "")).count() as u64, Release);
        })
        .join();
        assert_eq!(others[0].load(Acquire), 93, "six have started, and one is refused");
        assert!(admitted(&limiter, ""), "a blocking retry gets its own unit");
        assert!(!admitted(&limiter, ""));
    });
}

#[test]
fn starts_written_behind_are_in_the_database_after_the_next_duty() {
    alone(|| {
        let dir = Dir::in_memory("behind");
        let store = Store::new(&dir.url()).unwrap();
        let limiter = rate(&store, "api", 5_000, MINUTE);
        for i in 0..300 {
            assert!(admitted(&limiter, &format!("key {i}")));
        }
        let rows = || -> (i64, f64) {
            let count = "SELECT count(*), total(units) FROM executions";
            with_database(&dir, |db| db.query_row(count, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap())
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
                        let permit = limiter.try_acquire("tenant", 2).unwrap().expect("the limit has capacity");
                        permit.settle(1).unwrap();
                    }
                });
            }
        });
        store.flush().unwrap();
        let count = "SELECT count(*) FROM executions";
        let rows: i64 = with_database(&dir, |db| db.query_row(count, [], |row| row.get(0)).unwrap());
        assert_eq!(rows, 200);
    });
}

/// A full limit with a start that must be written before it happens, in a store with this timeout.
fn full(dir: &Dir, timeout: Duration) -> RateLimiter {
    let mut options = StoreOptions::default();
    (options.timeout, options.durability) = (timeout, Durability::Commit);
    let limiter = rate(&Store::with_options(&dir.url(), options).unwrap(), "api", 1, Duration::from_millis(50));
    wait_until("the limit is open", || admitted(&limiter, ""));
    limiter
}

/// Much longer than a test takes.
const LONG: Duration = Duration::from_secs(30);
const SOON: Option<Duration> = Some(Duration::from_millis(80));

#[test]
fn a_threads_timeout_covers_waiting_for_the_store() {
    alone(|| {
        let dir = Dir::in_memory("threads");
        let limiter = full(&dir, LONG);
        let end = stranger(&dir, STRANGERS[0]);
        std::thread::scope(|scope| {
            // It leads the line that the others join.
            let patient = scope.spawn(|| acquire(&limiter, Waiter::new("", 1)));
            for _ in 0..5 {
                let others = [(); 3].map(|()| scope.spawn(|| acquire(&limiter, Waiter::new("", 1).timeout(SOON))));
                for other in others {
                    assert!(matches!(other.join().unwrap(), Ok(Attempt::Denied(_))), "its time is up");
                }
            }
            assert!(matches!(acquire(&limiter, Waiter::new("alone", 1).timeout(SOON)), Ok(Attempt::Denied(_))));
            assert!(!patient.is_finished(), "the store's timeout has not passed");
            end();
            assert!(matches!(patient.join().unwrap(), Ok(Attempt::Admitted(_))));
        });
    });
}

#[test]
fn an_event_loops_timeouts_cover_waiting_for_the_store() {
    alone(|| {
        let dir = Dir::in_memory("loop");
        let limiter = Arc::new(full(&dir, LONG));
        let end = stranger(&dir, STRANGERS[0]);
        let mut line = Line::new(limiter.clone());
        let mut join = |key, timeout| {
            let waiter = Waiter::new(key, 1).timeout(timeout);
            match MayWait::Never.during(|| line.join(waiter)) {
                Ok(Joined::Waiting(id)) => id,
                other => panic!("{other:?}"),
            }
        };
        let patient = [join("", None), join("a", None)];
        let mut impatient = vec![join("", SOON), join("a", SOON), join("b", SOON)];
        let mut over = Vec::new();
        let mut ended = |over: &mut Vec<(WaiterId, Outcome)>| {
            if let Some(nap) = MayWait::Never.during(|| line.advance(over)) {
                std::thread::sleep(nap.min(Duration::from_millis(10)));
            }
            if line.would_wait() {
                line.advance(over); // from a pool
            }
            !over.is_empty()
        };
        while !impatient.is_empty() {
            wait_until("a timeout has passed", || ended(&mut over));
            for (id, outcome) in over.drain(..) {
                assert!(matches!(outcome, Outcome::Expired(_)), "{outcome:?}");
                assert!(impatient.contains(&id), "the store's timeout has not passed");
                impatient.retain(|other| *other != id);
            }
        }
        end();
        wait_until("the others start", || {
            ended(&mut over);
            over.len() == patient.len()
        });
        assert!(over.iter().all(|(_, outcome)| matches!(outcome, Outcome::Admitted(_))), "{over:?}");
    });
}

#[test]
fn a_line_waits_for_the_store_until_its_timeout() {
    alone(|| {
        let dir = Dir::in_memory("line");
        let limiter = full(&dir, Duration::from_millis(300));
        let _end = stranger(&dir, STRANGERS[0]);
        let error = acquire(&limiter, Waiter::new("", 1)).unwrap_err();
        assert_eq!(error.name(), "store_timeout", "{error}");
    });
}
