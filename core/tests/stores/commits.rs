//! Calls that one thread begins and another finishes, where each start has to be in the ledger first.

use crate::common::{Dir, wait_until, with_database};
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::embed::{Begun, Joined, Line, Waiter};
use workglow_limit::*;

fn open(dir: &Dir, on_error: OnError, timeout: Duration) -> Store {
    let mut options = StoreOptions::default();
    (options.durability, options.timeout, options.on_error) = (Durability::Commit, timeout, on_error);
    Store::with_options(&dir.url(), options).unwrap()
}

fn patient(dir: &Dir) -> Store {
    open(dir, OnError::Raise, Duration::from_secs(60))
}

fn begin(limiter: &Arc<dyn Limiter>, key: &str) -> Begun<Attempt> {
    let key = key.to_owned();
    let call = move |limiter: &dyn Limiter| limiter.attempt(&key, 1);
    Begun::new(limiter.clone(), call, |limiter, attempt| {
        if let Attempt::Admitted(permit) = attempt {
            limiter.cancel(&permit).unwrap();
        }
    })
}

fn is_admitted(answer: &Result<Attempt>) -> bool {
    matches!(answer, Ok(Attempt::Admitted(_)))
}

/// Few threads wait for many calls: they once had a commit for as many calls as there were threads.
#[test]
fn calls_that_were_begun_share_a_commit() {
    let cases = [("100/1h", 1, true), ("100/1h", 40, true), ("100/1h", 40, false), ("100/1h + 200/2h", 1, true)];
    for (policy, keys, are_known) in [&cases[..], &[("100/1h + 50 concurrent", 40, true)]].concat() {
        let dir = Dir::new("begun");
        let store = patient(&dir);
        let limiter = store.limiter("api", policy).unwrap();
        let key = |i: usize| format!("key {}", i % keys);
        // Making a key may have to wait: the thread that finishes a call makes space for the others, too.
        assert!((0..if are_known { keys } else { 1 }).all(|i| limiter.decide(&key(i), 1).unwrap().admitted));
        let commits = || {
            let database = rusqlite::Connection::open(dir.file("limits.db")).unwrap();
            database.query_row("SELECT sequence FROM store", [], |row| row.get::<_, i64>(0)).unwrap()
        };
        let before = commits();
        let begun: Vec<_> = (0..40).map(|i| begin(&limiter, &key(i))).collect();
        assert!(begun.iter().all(|begun| !begun.is_over()), "{policy}: none is in the ledger");
        let remaining = || limiter.peek(&key(0), 1).unwrap().remaining;
        let left = remaining();
        assert!(left <= 99 - 40 / keys as u64, "{policy}: they count");
        assert!(begun.into_iter().map(Begun::finish).all(|answer| is_admitted(&answer)), "{policy}");
        // Another one is due once a second.
        assert!(commits() < before + 10, "{policy}: {} commits", commits() - before);
        // A call that nobody finishes takes nothing.
        drop((0..5).map(|_| begin(&limiter, &key(0))).collect::<Vec<_>>());
        wait_until("it is taken back", || remaining() == left);
    }
}

/// What a joint start took at its second part, while it kept its place at the first, was not written until another start was.
#[test]
fn a_place_that_a_joint_start_takes_at_its_second_part_is_written_in_the_same_pass() {
    let (dir, clock) = (Dir::new("second-part"), ManualClock::new());
    let mut options = StoreOptions::default();
    (options.clock, options.timeout) = (Some(clock.clone()), Duration::from_secs(600));
    let store = Store::with_options(&dir.url(), options).unwrap();
    let llm = store.limiter("llm", "a: 1/1s + b: 4/1h").unwrap();
    let key = llm.joint("", &[Charge::of("b").weight(2)]).unwrap();
    assert!(llm.decide(&key, 1).unwrap().admitted);
    let (mut line, mut over) = (Line::new(llm.clone()), Vec::new());
    assert!(matches!(line.join(Waiter::new(&key, 1)).unwrap(), Joined::Waiting(_)));
    line.advance(&mut over);
    // What it would have needed at the second part goes to another.
    assert!(store.find("llm/b").unwrap().decide("", 2).unwrap().admitted);
    clock.advance(Duration::from_secs(1));
    line.advance(&mut over);
    assert!(over.is_empty(), "{over:?}");
    let units = "SELECT sum(units) FROM starts WHERE name = 'llm/b'";
    let written: i64 = with_database(&dir, |database| database.query_row(units, [], |row| row.get(0)).unwrap());
    assert_eq!(written, 6);
}

#[test]
fn a_begun_call_that_needs_no_commit_is_over() {
    let dir = Dir::new("begun-over");
    let limiter = patient(&dir).limiter("api", "1/1h").unwrap();
    assert!(limiter.decide("", 1).unwrap().admitted);
    let begun = begin(&limiter, "");
    assert!(begun.is_over());
    assert!(matches!(begun.finish(), Ok(Attempt::Denied(_))));
    assert!(matches!(begin(&limiter, &"k".repeat(2_000)).finish(), Err(Error::InvalidArgument { .. })));
}

/// Each gets the answer for a failing store, and its start counts nowhere.
#[test]
fn a_begun_call_that_cannot_be_written_does_not_start() {
    for policy in ["100/1h", "100/1h + 50 concurrent"] {
        for on_error in [OnError::Raise, OnError::Deny, OnError::Admit] {
            let dir = Dir::new("begun-failing");
            let store = open(&dir, on_error, Duration::from_secs(60));
            let limiter = store.limiter("api", policy).unwrap();
            assert!(limiter.decide("", 1).unwrap().admitted);
            let seen = limiter.peek("", 1).unwrap().remaining;
            let begun: Vec<_> = (0..3).map(|_| begin(&limiter, "")).collect();
            std::fs::rename(dir.file("limits.db"), dir.file("elsewhere.db")).unwrap();
            let answers: Vec<_> = begun.into_iter().map(Begun::finish).collect();
            std::fs::rename(dir.file("elsewhere.db"), dir.file("limits.db")).unwrap();
            let is_right = |answer: &Result<Attempt>| match on_error {
                OnError::Raise => matches!(answer, Err(Error::Store { .. })),
                OnError::Deny => matches!(answer, Ok(Attempt::Denied(_))),
                _ => is_admitted(answer),
            };
            assert!(answers.iter().all(is_right), "{policy}, {on_error:?}: {answers:?}");
            assert_eq!(store.failures(), 3, "{policy}, {on_error:?}");
            // With `Admit` each holds one of the concurrent units.
            for permit in answers {
                if let Ok(Attempt::Admitted(permit)) = permit {
                    limiter.complete(&permit).unwrap();
                }
            }
            wait_until("they are taken back", || limiter.peek("", 1).unwrap().remaining == seen);
        }
    }
}

/// The error says how long the call waited, and for what.
#[test]
fn a_begun_call_waits_for_the_database_until_the_store_s_timeout() {
    let dir = Dir::new("begun-locked");
    let store = open(&dir, OnError::Raise, Duration::from_millis(300));
    let limiter = store.limiter("api", "100/1h").unwrap();
    assert!(limiter.decide("", 1).unwrap().admitted);
    let stranger = rusqlite::Connection::open(dir.file("limits.db")).unwrap();
    stranger.execute_batch("BEGIN IMMEDIATE").unwrap();
    let answer = begin(&limiter, "").finish();
    assert!(matches!(answer, Err(Error::StoreTimeout { waited_ms: 300.., .. })), "{answer:?}");
    stranger.execute_batch("ROLLBACK").unwrap();
    wait_until("it is taken back", || limiter.peek("", 1).unwrap().remaining == 99);
}

/// It begins again in the lane that has replaced the one of its start.
#[test]
fn a_begun_call_outlasts_its_lane() {
    let dir = Dir::new("begun-in-two-lanes");
    let store = patient(&dir);
    let limiter = store.limiter("api", "100/1s").unwrap();
    assert!(limiter.decide("", 1).unwrap().admitted);
    let begun = begin(&limiter, "");
    assert!(!begun.is_over());
    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    wait_until("there is another lane", || {
        assert!(limiter.peek("other", 1).unwrap().admitted);
        dir.file("limits.db-lane").exists()
    });
    assert!(is_admitted(&begun.finish()));
    assert!(limiter.peek("", 1).unwrap().remaining <= 99, "it counts in the new lane");
}
