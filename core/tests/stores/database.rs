//! The database file, seen from outside: by people with an SQLite shell, and by other programs that lock it.
//!
//! These tests use SQLite themselves, so none of them forks: a child could inherit a lock inside SQLite.

use crate::common::{Dir, wait_until};
use std::path::Path;
use std::time::Duration;
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);

fn admitted(limiter: &impl Limiter) -> bool {
    matches!(limiter.attempt("", 1).unwrap(), Attempt::Admitted(_))
}

#[test]
fn declared_policies_are_readable() {
    let dir = Dir::new("tables");
    let store = Store::new(&dir.url()).unwrap();
    RateLimiter::new(&store, "openai", 100, Duration::from_secs(60)).unwrap().open().unwrap();
    RateLimiter::new(&store, "mail \"bulk\"", 5, Duration::from_millis(250)).unwrap().open().unwrap();
    RateLimiter::new(&store, "openai", 120, Duration::from_secs(60)).unwrap().open().unwrap();
    let db = rusqlite::Connection::open(dir.file("limits.db")).unwrap();
    let mut query = db.prepare("SELECT name, kind, policy, override IS NULL FROM limits ORDER BY name").unwrap();
    let rows = query.query_map([], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?))).unwrap();
    let rows: Vec<(String, String, String, bool)> = rows.map(Result::unwrap).collect();
    let row = |name: &str, policy: &str| (name.to_owned(), "rate".to_owned(), policy.to_owned(), true);
    assert_eq!(rows, [row("mail \"bulk\"", "5/250ms"), row("openai", "120/1m")]);
    assert_eq!(store.names().unwrap(), ["mail \"bulk\"", "openai"]);
}

#[test]
fn invalid_stores_are_refused_and_left_unchanged() {
    let dir = Dir::new("refused");
    let open = |path: &Path| Store::new(&format!("sqlite:{}", path.display())).unwrap().open();
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.file(name), bytes).unwrap();

    let error = open(&dir.file("missing/limits.db")).unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
    write("file", b"not a directory");
    assert_eq!(open(&dir.file("file/limits.db")).unwrap_err().name(), "store_failure");
    assert_eq!(open(&dir.0).unwrap_err().name(), "not_a_store");

    let text = b"This is not a database, but a file of notes.".repeat(100);
    write("notes.txt", &text);
    let error = open(&dir.file("notes.txt")).unwrap_err();
    assert!(error.to_string().ends_with("notes.txt is not a workglow-limit store: not an SQLite database"));
    assert_eq!(std::fs::read(dir.file("notes.txt")).unwrap(), text);

    let theirs = rusqlite::Connection::open(dir.file("theirs.db")).unwrap();
    theirs.execute_batch("CREATE TABLE limits (x); INSERT INTO limits VALUES (1)").unwrap();
    drop(theirs);
    let before = std::fs::read(dir.file("theirs.db")).unwrap();
    let error = open(&dir.file("theirs.db")).unwrap_err();
    assert!(error.to_string().ends_with("an SQLite database of another application"), "{error}");
    assert_eq!(std::fs::read(dir.file("theirs.db")).unwrap(), before);

    open(&dir.file("newer.db")).unwrap();
    let newer = rusqlite::Connection::open(dir.file("newer.db")).unwrap();
    newer.pragma_update(None, "user_version", 99).unwrap();
    drop(newer);
    let error = open(&dir.file("newer.db")).unwrap_err();
    assert!(matches!(error, Error::UnsupportedVersion { found: 99, supported: 2, .. }), "{error}");

    write("wrong-lane.db-lane", &text);
    assert_eq!(open(&dir.file("wrong-lane.db")).unwrap_err().name(), "not_a_store");
    assert_eq!(std::fs::read(dir.file("wrong-lane.db-lane")).unwrap(), text);

    let expected =
        ["file", "newer.db", "newer.db-lane", "notes.txt", "theirs.db", "wrong-lane.db", "wrong-lane.db-lane"];
    let found: Vec<_> = dir.names().into_iter().filter(|n| n != "wrong-lane.db").collect();
    let expected: Vec<_> = expected.into_iter().filter(|n| *n != "wrong-lane.db").collect();
    assert_eq!(found, expected, "nothing was created next to them");
}

#[test]
fn a_busy_store_fails_in_time() {
    let dir = Dir::new("busy");
    let mut options = StoreOptions::default();
    options.timeout = Duration::from_millis(150);
    let store = Store::with_options(&dir.url(), options).unwrap();
    let limiter = RateLimiter::new(&store, "api", 2, HOUR).unwrap();
    // On a busy machine even this may take longer.
    wait_until("the limit is open", || limiter.open().is_ok());
    assert!(admitted(&limiter));
    wait_until("it is written", || store.flush().is_ok());
    let stranger = rusqlite::Connection::open(dir.file("limits.db")).unwrap();
    stranger.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let other = RateLimiter::new(&store, "other", 1, HOUR).unwrap();
    assert_eq!(other.attempt("", 1).unwrap_err().name(), "store_timeout");
    assert!(admitted(&limiter), "an opened limit does not need the database");
    stranger.execute_batch("COMMIT").unwrap();
    assert!(admitted(&other), "and it recovers");
}

/// A caller that asks all the time is answered at once while the writer of the ledger pauses, and does not prolong the
/// pause.
#[test]
fn the_ledger_is_retried_under_constant_calls() {
    let dir = Dir::new("again");
    let mut options = StoreOptions::default();
    options.durability = Durability::Commit;
    options.timeout = Duration::from_millis(500);
    let store = Store::with_options(&dir.url(), options).unwrap();
    let limiter = RateLimiter::new(&store, "api", 1_000, HOUR).unwrap();
    assert!(admitted(&limiter));
    let stranger = rusqlite::Connection::open(dir.file("limits.db")).unwrap();
    stranger.execute_batch("BEGIN EXCLUSIVE").unwrap();
    assert!(limiter.attempt("", 1).is_err());
    stranger.execute_batch("ROLLBACK").unwrap();
    // A single start may have been written by the checkpoint that comes once a second.
    wait_until("the pause of a second is over", || (0..3).all(|_| limiter.attempt("", 1).is_ok()));
}

#[test]
fn a_policy_that_was_not_stored_applies_nowhere() {
    for begins in ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"] {
        let dir = Dir::new("not-noted");
        let mut options = StoreOptions::default();
        options.timeout = Duration::from_millis(150);
        let store = Store::with_options(&dir.url(), options).unwrap();
        let limiter = RateLimiter::new(&store, "api", 5, HOUR).unwrap();
        wait_until("the limit is open", || limiter.open().is_ok());
        let stranger = rusqlite::Connection::open(dir.file("limits.db")).unwrap();
        stranger.execute_batch(begins).unwrap();
        let override_it = || store.override_limit("api", &Policy::rate(2, HOUR).unwrap().to_string(), None);
        assert_eq!(override_it().unwrap_err().name(), "store_timeout", "{begins}");
        assert_eq!(limiter.peek("", 1).unwrap().limit, 5, "{begins}");
        stranger.execute_batch("COMMIT").unwrap();
        let other = RateLimiter::attach(&Store::new(&dir.url()).unwrap(), "api").unwrap();
        assert_eq!(other.peek("", 1).unwrap().limit, 5, "{begins}: no change was left over");
        wait_until("it is stored", || override_it().is_ok());
        assert_eq!((limiter.peek("", 1).unwrap().limit, other.peek("", 1).unwrap().limit), (2, 2), "{begins}");
    }
}
