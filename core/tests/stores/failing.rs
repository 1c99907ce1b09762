//! A failing store: its answers during the failure, that no call hangs, and that it recovers.

use crate::common::{Child, Dir, PATIENCE, Record, most_in_any_window, now_ns, shared, wait_until, with_database};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};
use workglow_limit::embed::{Joined, Line, Waiter, WaiterId, acquire};
use workglow_limit::observe::Observer;
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);
const LIMIT: u64 = 40;

fn options(on_error: OnError) -> StoreOptions {
    let mut options = StoreOptions::default();
    options.timeout = Duration::from_millis(200);
    options.on_error = on_error;
    options
}

/// Uses a limit before, during and after a failure of its store. `cause` makes the store fail, and returns a function
/// that ends the failure.
fn fails_and_recovers(dir: &Dir, name: &str, on_error: OnError, cause: impl FnOnce(&Dir) -> Box<dyn FnOnce() + '_>) {
    let what = format!("{name}, {on_error:?}");
    let store = Store::with_options(&dir.url(), options(on_error)).unwrap();
    let limiter = RateLimiter::new(&store, "api", LIMIT, HOUR).unwrap();
    // Whether the start was admitted, and whether the store reported a failure.
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
            // This many starts may be missing from the ledger.
            ((Ok(true), false), _) if started < 5 + LIMIT / 20 => started += 1,
            ((Ok(true), true), OnError::Admit) | ((Ok(false), true), OnError::Deny) => {}
            ((Err(error), true), OnError::Raise) => match error {
                Error::Store { .. } => {}
                Error::StoreTimeout { waited_ms: 200.., .. } => {}
                error => panic!("{what}: {error}"),
            },
            (answer, _) => panic!("{what}: {answer:?} after {started}"),
        }
    }
    end();
    // The writer may still be pausing. After the recovery, the rest of the limit is available, and then denials follow.
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < PATIENCE, "{what}: it does not recover, {started} of {LIMIT} have started");
        match attempt() {
            (Ok(true), false) => started += 1,
            (Ok(false), false) if started >= LIMIT => break,
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    println!("{what}: {} failures", store.failures());
    assert_eq!(started, LIMIT, "{what}: the failed calls took nothing");
}

const EACH: [OnError; 3] = [OnError::Raise, OnError::Deny, OnError::Admit];

/// Runs a test for each choice, in parallel.
fn for_each_choice(name: &str, f: impl Fn(&Dir, OnError)) {
    let run = |on_error| Child::run(|| f(&Dir::in_memory(&format!("{name}-{on_error:?}")), on_error));
    EACH.map(run).into_iter().for_each(Child::join);
}

#[test]
fn a_database_locked_by_another_program() {
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
fn a_read_only_directory() {
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
fn a_temporarily_missing_database() {
    for_each_choice("gone", |dir, on_error| {
        fails_and_recovers(dir, "gone", on_error, |dir| {
            std::fs::rename(dir.file("limits.db"), dir.file("elsewhere.db")).unwrap();
            Box::new(|| {
                assert!(!dir.file("limits.db").exists(), "no other one was created in its place");
                std::fs::rename(dir.file("elsewhere.db"), dir.file("limits.db")).unwrap();
            })
        });
    });
}

/// A process that stops while it has the structure lock.
#[cfg(feature = "fault-points")]
#[test]
fn a_process_that_stops_under_the_lock() {
    for_each_choice("stopped", |dir, on_error| {
        fails_and_recovers(dir, "stopped", on_error, |dir| {
            let stopped = Child::run(|| {
                let limiter = RateLimiter::attach(&Store::new(&dir.url()).unwrap(), "api").unwrap();
                let Ok(Attempt::Admitted(permit)) = limiter.attempt("another", 1) else {
                    panic!("the limit has capacity")
                };
                fault::at("key-sealed", || crate::common::raise(libc::SIGSTOP));
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

/// A worker that stops has no later pass in which it could give its places back.
#[cfg(feature = "fault-points")]
#[test]
fn a_pool_that_is_cleared_waits_for_the_lock_to_return_its_places() {
    use workglow_limit::embed::{Pool, Waiter};
    let dir = Dir::new("cleared");
    let mut options = options(OnError::Raise);
    options.timeout = Duration::from_secs(60);
    let store = Store::with_options(&dir.url(), options).unwrap();
    let limiter = store.limiter("api", "1/1h").unwrap();
    assert!(limiter.decide("", 1).unwrap().admitted);
    let mut pool = Pool::new(limiter.clone(), None);
    pool.join(Waiter::new("", 1)).unwrap();
    let ahead = || limiter.peek("", 1).unwrap().retry_after;
    wait_until("the pool has a place", || {
        pool.advance(1, 1, &mut Vec::new());
        ahead() > HOUR
    });
    let stopped = Child::run(|| {
        let limiter = Store::new(&dir.url()).unwrap().limiter("other", "1/1h").unwrap();
        let permit = limiter.decide("", 1).unwrap().permit.unwrap();
        fault::at("key-sealed", || crate::common::raise(libc::SIGSTOP));
        limiter.cancel(&permit).unwrap();
    });
    stopped.wait_until_stopped();
    std::thread::scope(|scope| {
        // Longer than one call of a line waits.
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            stopped.signal(libc::SIGCONT);
        });
        pool.clear();
    });
    stopped.join();
    assert!(ahead() <= HOUR);
}

/// The step that takes a refused start back once waited for a time of its own, in addition to the wait for the ledger.
#[cfg(feature = "fault-points")]
#[test]
fn a_call_after_a_refusal_has_one_deadline() {
    let dir = Dir::new("one-deadline");
    let mut options = options(OnError::Raise);
    options.timeout = Duration::from_secs(1);
    let twice = 2 * options.timeout;
    let store = Store::with_options(&dir.url(), options).unwrap();
    let limiter = RateLimiter::new(&store, "api", LIMIT, HOUR).unwrap();
    let Ok(Attempt::Admitted(permit)) = limiter.attempt("key", 1) else { panic!("the limit has capacity") };
    let stopped = Child::run(|| {
        let limiter = RateLimiter::attach(&Store::new(&dir.url()).unwrap(), "api").unwrap();
        let Ok(Attempt::Admitted(permit)) = limiter.attempt("another", 1) else { panic!("the limit has capacity") };
        fault::at("key-sealed", || crate::common::raise(libc::SIGSTOP));
        limiter.cancel(&permit).unwrap();
    });
    stopped.wait_until_stopped();
    wait_until("a start is refused", || limiter.attempt("key", 1).is_err());
    let calls: [(&str, &dyn Fn() -> Result<()>); 3] = [
        ("an attempt", &|| limiter.attempt("key", 1).map(drop)),
        ("a place", &|| limiter.reserve("key", 1, None, None).map(drop)),
        ("a settlement", &|| limiter.settle(&permit, 2)),
    ];
    for (what, call) in calls {
        // One wait is enough; two take this long on any machine.
        wait_until(&format!("{what} returns in time"), || {
            // After a failed attempt to take it back, or to write, the calls of one second do not try that.
            std::thread::sleep(Duration::from_millis(1_100));
            let began = Instant::now();
            call().unwrap_err();
            began.elapsed() < twice
        });
    }
    stopped.signal(libc::SIGCONT);
    stopped.join();
}

/// After a failed commit, every start that needed one once failed at once for a second, a waiter's too.
#[test]
fn a_waiter_outlasts_a_failed_commit() {
    let dir = Dir::new("outlasts");
    let mut options = StoreOptions::default();
    options.durability = Durability::Commit;
    let store = Store::with_options(&dir.url(), options).unwrap();
    let limiter = RateLimiter::new(&store, "api", LIMIT, HOUR).unwrap();
    assert!(matches!(limiter.attempt("", 1).unwrap(), Attempt::Admitted(_)));
    std::fs::rename(dir.file("limits.db"), dir.file("elsewhere.db")).unwrap();
    limiter.attempt("", 1).unwrap_err();
    let again = limiter.attempt("", 1).unwrap_err().to_string();
    assert!(again.contains("the database cannot be opened"), "{again}");
    let waiter = std::thread::spawn(move || acquire(&limiter, Waiter::new("", 1)).unwrap());
    std::thread::sleep(Duration::from_millis(100));
    std::fs::rename(dir.file("elsewhere.db"), dir.file("limits.db")).unwrap();
    assert!(matches!(waiter.join().unwrap(), Attempt::Admitted(_)));
}

/// The waiters of an event loop once had a commit each, one after the other.
#[test]
fn the_waiters_of_a_loop_share_a_commit() {
    for keys in [1, 40] {
        let dir = Dir::new("shared-commit");
        let mut options = StoreOptions::default();
        (options.durability, options.timeout) = (Durability::Commit, Duration::from_secs(60));
        let store = Store::with_options(&dir.url(), options).unwrap();
        let limiter = store.limiter("api", "100/1h").unwrap();
        assert!(limiter.decide("", 1).unwrap().admitted);
        let sequence = "SELECT sequence FROM store";
        let commits =
            || with_database(&dir, |database| database.query_row(sequence, [], |row| row.get::<_, i64>(0)).unwrap());
        let mut line = Line::new(limiter.clone());
        let key = |i: u64| format!("key {}", i % keys);
        let join = |line: &mut Line, i| match line.join(Waiter::new(&key(i), 1)).unwrap() {
            Joined::Waiting(id) => id,
            joined => panic!("not written yet: {joined:?}"),
        };
        let before = commits();
        let waiting: Vec<WaiterId> = (0..40).map(|i| join(&mut line, i)).collect();
        line.leave(waiting[0]);
        let mut over = Vec::new();
        wait_until("all have started", || {
            line.advance(&mut over);
            over.len() == 39
        });
        assert!(over.iter().all(|(_, outcome)| matches!(outcome, workglow_limit::embed::Outcome::Admitted(_))));
        // Another one is due once a second.
        assert!(commits() < before + 20, "{} commits", commits() - before);
        assert_eq!(limiter.peek(&key(0), 1).unwrap().remaining, if keys == 1 { 61 } else { 100 });
        // A commit that fails lets nobody start, and nobody fail before its deadline.
        std::fs::rename(dir.file("limits.db"), dir.file("elsewhere.db")).unwrap();
        for i in 0..10 {
            join(&mut line, i);
        }
        over.clear();
        for _ in 0..5 {
            line.advance(&mut over);
        }
        assert!(over.is_empty(), "{over:?}");
        std::fs::rename(dir.file("elsewhere.db"), dir.file("limits.db")).unwrap();
        wait_until("the others have started", || {
            line.advance(&mut over);
            over.len() == 10
        });
        assert!(over.iter().all(|(_, outcome)| matches!(outcome, workglow_limit::embed::Outcome::Admitted(_))));
        assert_eq!(limiter.peek(&key(0), 1).unwrap().remaining, if keys == 1 { 51 } else { 99 });
        assert_eq!(Observer::new(&store, 1).look().unwrap().limits[0].waiting, 0);
    }
}

/// The first commit in a new lane once let those go whose starts were in the lane before, and in no ledger.
#[test]
fn a_commit_in_a_new_lane_lets_no_start_of_the_lost_one_go() {
    let dir = Dir::new("commits-of-two-lanes");
    let mut options = StoreOptions::default();
    (options.durability, options.timeout) = (Durability::Commit, Duration::from_secs(60));
    let store = Store::with_options(&dir.url(), options).unwrap();
    let [limiter, other] = ["api", "other"].map(|name| store.limiter(name, "100/1h").unwrap());
    assert!(limiter.decide("", 1).unwrap().admitted && other.decide("", 1).unwrap().admitted);
    let mut line = Line::new(limiter);
    assert!(matches!(line.join(Waiter::new("", 1)).unwrap(), Joined::Waiting(_)));
    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    wait_until("it is noticed", || other.peek("", 1).is_ok() && dir.file("limits.db-lane").exists());
    wait_until("another lane has a commit", || other.decide("", 1).unwrap().admitted);
    let mut over = Vec::new();
    wait_until("the waiter has started", || {
        line.advance(&mut over);
        !over.is_empty()
    });
    assert!(matches!(over[..], [(_, workglow_limit::embed::Outcome::Admitted(_))]), "{over:?}");
    let count = "SELECT sum(units) FROM starts WHERE name = 'api'";
    let written: i64 = with_database(&dir, |database| database.query_row(count, [], |row| row.get(0)).unwrap());
    assert!(written >= 2, "{written} units are in the ledger");
}

/// The look at the lane, once a second, once needed a descriptor and the right to open the file. Without them every
/// decision failed.
#[test]
fn decisions_need_no_descriptor_and_no_right_to_look() {
    let no_descriptor = || {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a plain call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) }, 0);
    };
    // SAFETY: plain calls, in a process with one thread.
    let another_user = || assert!(unsafe { libc::setgid(65_534) == 0 && libc::setuid(65_534) == 0 });
    // SAFETY: a plain call with a string that ends in NUL.
    let another_root = || assert_eq!(unsafe { libc::chroot(c"/proc/self/fdinfo".as_ptr()) }, 0);
    let cases: [(&str, &dyn Fn(), bool); 3] = [
        ("no descriptor", &no_descriptor, false),
        ("another user", &another_user, true),
        ("another root", &another_root, true),
    ];
    // SAFETY: a plain call.
    let is_root = unsafe { libc::geteuid() } == 0;
    for (name, lose, _) in cases.into_iter().filter(|(.., needs_root)| is_root || !needs_root) {
        let dir = Dir::new(&name.replace(' ', "-"));
        std::fs::set_permissions(dir.file("."), Permissions::from_mode(0o700)).unwrap();
        Child::run(|| {
            let limiter =
                RateLimiter::new(&Store::new(&dir.url()).unwrap(), "api", 20, Duration::from_secs(1)).unwrap();
            assert!(matches!(limiter.attempt("", 1).unwrap(), Attempt::Admitted(_)));
            lose();
            let (began, record) = (Instant::now(), Record::new(1_000));
            // Some looks are due in this time.
            while began.elapsed() < Duration::from_secs(4) || record.len() <= 20 {
                let before = now_ns();
                if matches!(limiter.attempt("", 1).unwrap(), Attempt::Admitted(_)) {
                    record.add(before, now_ns(), 1);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(most_in_any_window(&record.starts(), 1_000_000_000) <= 20, "{name}");
        })
        .join();
    }
}

#[test]
fn a_lost_lane_counts_as_full_for_a_while() {
    const WINDOW: Duration = Duration::from_millis(2_500);
    for_each_choice("lane", |dir, on_error| {
        let store = Store::with_options(&dir.url(), options(on_error)).unwrap();
        let limiter = RateLimiter::new(&store, "api", LIMIT, WINDOW).unwrap();
        let starts = Record::new(10_000);
        let attempt = || {
            let a = now_ns();
            let is_admitted = matches!(limiter.attempt("key", 1).unwrap(), Attempt::Admitted(_));
            if is_admitted {
                starts.add(a, now_ns(), 1);
            }
            is_admitted
        };
        (0..LIMIT / 2).for_each(|_| assert!(attempt()));
        std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
        wait_until("it is noticed", || attempt() && dir.file("limits.db-lane").exists() || !attempt());
        wait_until("it counts as full", || !attempt());
        wait_until("that is over", attempt);
        wait_until("all of it is there again", || limiter.peek("key", 1).unwrap().remaining == LIMIT);
        (0..LIMIT).for_each(|_| assert!(attempt()));
        wait_until("one more is denied", || !attempt());
        let most = most_in_any_window(&starts.starts(), WINDOW.as_nanos() as u64);
        assert!(most <= LIMIT, "{on_error:?}: {most} of {LIMIT} in one window");
        assert_eq!(store.failures(), 0);
    });
}

/// The answers of a limit whose store cannot be opened yet, until `end` makes that possible.
fn fails_at_first(dir: &Dir, name: &str, on_error: OnError, end: impl FnOnce()) {
    let store = Store::with_options(&dir.url(), options(on_error)).unwrap();
    let limiter = RateLimiter::new(&store, "api", LIMIT, HOUR).unwrap();
    for failures in 1..10 {
        match (limiter.attempt("", 1), on_error) {
            (Err(error), OnError::Raise) => assert_eq!(error.name(), "store_failure", "{name}: {error}"),
            (Ok(Attempt::Denied(_)), OnError::Deny) | (Ok(Attempt::Admitted(_)), OnError::Admit) => {}
            (answer, _) => panic!("{name}, {on_error:?}: {answer:?}"),
        }
        assert_eq!(store.failures(), failures, "{name}, {on_error:?}");
    }
    end();
    let admitted = (0..2 * LIMIT).filter(|_| matches!(limiter.attempt("", 1).unwrap(), Attempt::Admitted(_)));
    assert_eq!(admitted.count() as u64, LIMIT, "{name}, {on_error:?}");
    assert_eq!(store.failures(), 9, "{name}, {on_error:?}");
}

#[test]
fn a_directory_that_does_not_exist_yet() {
    for_each_choice("missing", |dir, on_error| {
        std::fs::remove_dir(&dir.0).unwrap();
        fails_at_first(dir, "missing", on_error, || std::fs::create_dir(&dir.0).unwrap());
    });
}

/// A private file system on a directory, visible only to this process and its children.
struct Mounted<'d>(&'d Dir);

impl<'d> Mounted<'d> {
    /// `None` if this process lacks the permission.
    fn new(dir: &'d Dir, options: &str) -> Option<Mounted<'d>> {
        let private = libc::MS_REC | libc::MS_PRIVATE;
        // SAFETY: plain calls with strings that end in NUL, in a child of its own.
        let is_alone = unsafe {
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(std::ptr::null(), c"/".as_ptr(), std::ptr::null(), private, std::ptr::null()) == 0
        };
        let mounted = Mounted(dir);
        if !is_alone || !mounted.mount(options, 0) {
            println!("left out: this process may not mount anything");
            return None;
        }
        Some(mounted)
    }

    fn mount(&self, options: &str, flags: libc::c_ulong) -> bool {
        let path = std::ffi::CString::new(self.0.0.to_str().unwrap()).unwrap();
        let options = std::ffi::CString::new(options).unwrap();
        let tmpfs = c"tmpfs".as_ptr();
        // SAFETY: strings that end in NUL.
        unsafe { libc::mount(tmpfs, path.as_ptr(), tmpfs, flags, options.as_ptr().cast()) == 0 }
    }

    fn change(&self, options: &str, flags: libc::c_ulong) {
        assert!(self.mount(options, libc::MS_REMOUNT | flags));
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let path = std::ffi::CString::new(self.0.0.to_str().unwrap()).unwrap();
        // SAFETY: a string that ends in NUL.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}

#[test]
fn a_read_only_file_system() {
    for_each_choice("read-only-system", |dir, on_error| {
        let Some(mounted) = Mounted::new(dir, "size=4m") else { return };
        mounted.change("size=4m", libc::MS_RDONLY);
        fails_at_first(dir, "read-only system", on_error, || mounted.change("size=4m", 0));
    });
}

#[test]
fn a_full_disk() {
    for_each_choice("full", |dir, on_error| {
        let Some(_mounted) = Mounted::new(dir, "size=2m") else { return };
        fails_and_recovers(dir, "full", on_error, |dir| {
            // To the last byte, whatever the block size.
            let mut file = std::fs::File::create(dir.file("filler")).unwrap();
            while std::io::Write::write(&mut file, &[1; 4_096]).is_ok() {}
            Box::new(|| std::fs::remove_file(dir.file("filler")).unwrap())
        });
    });
}

/// No process is killed for touching memory for which the disk has no space.
#[test]
fn a_disk_filled_by_keys() {
    const SHORT: Duration = Duration::from_secs(2);
    for_each_choice("filled", |dir, on_error| {
        let Some(mounted) = Mounted::new(dir, "size=2m") else { return };
        let counts = shared(3);
        let processes = [0, 1, 2].map(|process| {
            Child::run(|| {
                // None of them fails because the others are busy.
                let mut options = options(on_error);
                options.timeout = Duration::from_secs(60);
                let store = Store::with_options(&dir.url(), options).unwrap();
                let limiter = RateLimiter::new(&store, "api", 2, SHORT).unwrap();
                // Whether the start was admitted, and whether the store reported a failure.
                let attempt = |key: &str| {
                    let before = store.failures();
                    let answer = limiter.attempt(key, 1).map(|answer| matches!(answer, Attempt::Admitted(_)));
                    (answer, store.failures() > before)
                };
                let first = format!("first of {process}");
                wait_until("it has begun", || attempt(&first) == (Ok(true), false));
                counts[0].fetch_add(1, AcqRel);
                wait_until("all have begun", || counts[0].load(Acquire) == 3);
                let key = |i: u64| format!("{process} {i}");
                // A journal that has been removed since may have freed space.
                let fails = |i| Some(attempt(&key(i))).filter(|answer| *answer != (Ok(true), false));
                let (last, answer) = (0..).find_map(|i| fails(i).and_then(|_| Some((i, fails(i)?)))).unwrap();
                let is_expected = match (&answer, on_error) {
                    ((Ok(true), true), OnError::Admit) | ((Ok(false), true), OnError::Deny) => true,
                    ((Err(error), true), OnError::Raise) => error.name() == "store_failure",
                    _ => false,
                };
                assert!(is_expected, "{on_error:?}: {answer:?} after {last} keys");
                assert_eq!(attempt(&first), (Ok(true), false), "existing keys keep working");
                counts[1].fetch_add(1, AcqRel);
                wait_until("there is space", || counts[2].load(Acquire) == 1);
                assert_eq!([attempt(&key(last)), attempt(&key(last))], [(Ok(true), false), (Ok(true), false)]);
                println!("{on_error:?}: full after {last} keys of process {process}");
            })
        });
        wait_until("all have failed", || counts[1].load(Acquire) == 3);
        mounted.change("size=8m", 0);
        counts[2].store(1, Release);
        processes.into_iter().for_each(Child::join);
    });
}

/// Makes a store pass a point of its rare work, and uses another store of the same process there.
#[cfg(feature = "fault-points")]
fn stops_no_other_store(point: &str) {
    use std::sync::{Arc, atomic::AtomicBool};
    let (here, there) = (Dir::in_memory(point), Dir::in_memory(&format!("{point}-too")));
    // A process has one armed point, so it is one of its own.
    Child::run(|| {
        let [limiter, other] =
            [&here, &there].map(|dir| Store::new(&dir.url()).unwrap().limiter("api", "9/1h").unwrap());
        let is_done = Arc::new(AtomicBool::new(false));
        let done = is_done.clone();
        fault::at(point, move || {
            // The second start exceeds the budget, so it is written before its call returns.
            (0..2).for_each(|_| assert!(other.decide("", 1).unwrap().admitted));
            done.store(true, Release);
        });
        (0..2).for_each(|_| assert!(limiter.decide("", 1).unwrap().admitted));
        assert!(is_done.load(Acquire), "{point} was passed");
    })
    .join();
}

/// One thread that wrote the ledger of its store all the time kept all other stores of its process from writing theirs.
#[test]
#[cfg(feature = "fault-points")]
fn a_store_whose_ledger_is_being_written_stops_no_other_store() {
    stops_no_other_store("gathered");
}

/// A store that was opened on a slow disk stopped the rare work of all other stores of its process for some twenty
/// commits.
#[test]
#[cfg(feature = "fault-points")]
fn a_store_that_is_being_opened_stops_no_other_store() {
    stops_no_other_store("lane-filled");
}
