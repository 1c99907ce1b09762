//! A store that fails: what is answered meanwhile, that nothing hangs, and that it recovers by itself.

mod common;

use common::{Child, Dir, shared, wait_until};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);
const LIMIT: u64 = 40;

fn options(on_error: OnError) -> StoreOptions {
    let mut options = StoreOptions::default();
    options.timeout = Duration::from_millis(200);
    options.on_error = on_error;
    options
}

/// Uses a limit before, while and after its store fails. `cause` makes it fail, and returns what ends that.
fn fails_and_recovers(dir: &Dir, name: &str, on_error: OnError, cause: impl FnOnce(&Dir) -> Box<dyn FnOnce() + '_>) {
    let what = format!("{name}, {on_error:?}");
    let store = Store::with_options(&dir.url(), options(on_error)).unwrap();
    let limiter = RateLimiter::new(&store, "api", LIMIT, HOUR).unwrap();
    // What is admitted, and whether the store said so.
    let attempt = || {
        let (before, began) = (store.failures(), Instant::now());
        let answer = limiter.attempt("key", 1);
        assert!(began.elapsed() < Duration::from_secs(30), "{what}: an answer took {:?}", began.elapsed());
        (answer.map(|answer| matches!(answer, Attempt::Admitted(_))), store.failures() > before)
    };
    let mut started = 0;
    for _ in 0..5 {
        assert_eq!(attempt(), (Ok(true), false), "{what}: before");
        started += 1;
    }
    store.flush().unwrap();
    let end = cause(dir);
    while store.failures() < 10 {
        match (attempt(), on_error) {
            // So much may be missing from the ledger.
            ((Ok(true), false), _) if started < 5 + LIMIT / 20 => started += 1,
            ((Ok(true), true), OnError::Admit) | ((Ok(false), true), OnError::Deny) => {}
            ((Err(error), true), OnError::Raise) => {
                assert!(["store_failure", "store_timeout"].contains(&error.name()), "{what}: {error}");
            }
            (answer, _) => panic!("{what}: {answer:?} after {started}"),
        }
    }
    end();
    // It may be resting still. When it has recovered, the rest of the limit is there, and then denials.
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}: it does not recover");
        match attempt() {
            (Ok(true), false) => started += 1,
            (Ok(false), false) if started >= LIMIT || began.elapsed() > Duration::from_secs(5) => break,
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    println!("{what}: {} failures", store.failures());
    assert_eq!(started, LIMIT, "{what}: what failed took nothing");
}

const EACH: [OnError; 3] = [OnError::Raise, OnError::Deny, OnError::Admit];

/// The same for each choice, side by side.
fn for_each_choice(name: &str, f: impl Fn(&Dir, OnError)) {
    let run = |on_error| Child::run(|| f(&Dir::in_memory(&format!("{name}-{on_error:?}")), on_error));
    EACH.map(run).into_iter().for_each(Child::join);
}

#[test]
fn a_stranger_who_locks_the_database() {
    for_each_choice("locked", |dir, on_error| {
        fails_and_recovers(dir, "locked", on_error, |dir| {
            let steps = shared(2);
            let stranger = Child::run(|| {
                let db = rusqlite::Connection::open(dir.file("limits.db")).unwrap();
                db.execute_batch("BEGIN EXCLUSIVE").unwrap();
                steps[0].store(1, Release);
                wait_until("it is enough", || steps[1].load(Acquire) == 1);
            });
            wait_until("the database is locked", || steps[0].load(Acquire) == 1);
            Box::new(|| {
                steps[1].store(1, Release);
                stranger.join();
            })
        });
    });
}

#[test]
fn a_directory_that_cannot_be_written() {
    for_each_choice("read-only", |dir, on_error| {
        // Root may write everywhere.
        // SAFETY: plain calls, in a child of its own.
        unsafe {
            let path = std::ffi::CString::new(dir.0.to_str().unwrap()).unwrap();
            if libc::geteuid() == 0 {
                assert_eq!(libc::chown(path.as_ptr(), 65_534, 65_534), 0);
                assert_eq!(libc::setuid(65_534), 0);
            }
        }
        fails_and_recovers(dir, "read-only", on_error, |dir| {
            let change = |mode| std::fs::set_permissions(&dir.0, Permissions::from_mode(mode)).unwrap();
            change(0o500);
            Box::new(move || change(0o700))
        });
    });
}

#[test]
fn a_database_that_is_gone_for_a_while() {
    for_each_choice("gone", |dir, on_error| {
        fails_and_recovers(dir, "gone", on_error, |dir| {
            std::fs::rename(dir.file("limits.db"), dir.file("elsewhere.db")).unwrap();
            Box::new(|| {
                assert!(!dir.file("limits.db").exists(), "no other one was made in its place");
                std::fs::rename(dir.file("elsewhere.db"), dir.file("limits.db")).unwrap();
            })
        });
    });
}

/// A process that does not go on while it has the structure lock.
#[cfg(feature = "fault-points")]
#[test]
fn a_process_that_stops_under_the_lock() {
    for_each_choice("stopped", |dir, on_error| {
        fails_and_recovers(dir, "stopped", on_error, |dir| {
            let stopped = Child::run(|| {
                let limiter = RateLimiter::attach(&Store::new(&dir.url()).unwrap(), "api").unwrap();
                let Ok(Attempt::Admitted(permit)) = limiter.attempt("another", 1) else { panic!("there is room") };
                fault::at("key-sealed", || common::raise(libc::SIGSTOP));
                limiter.cancel(&permit).unwrap();
            });
            stopped.wait_until_stopped();
            Box::new(|| {
                stopped.signal(libc::SIGCONT);
                stopped.join();
            })
        });
    });
}
