//! One database has one lane, and no file is trusted for its name.
#![cfg(feature = "fault-points")]

use crate::common::limits::patient;
use crate::common::{Child, Dir, present_boot, shared, wait_until};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;
use workglow_limit::admin::parse_policies;
use workglow_limit::embed::{Waiter, acquire};
use workglow_limit::observe::Observer;
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);
const LIMIT: u64 = 100;
const BUDGET: u64 = LIMIT / 20;

fn url(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}

fn rate_at(path: &Path) -> RateLimiter {
    RateLimiter::new(&Store::new(&url(path)).unwrap(), "api", LIMIT, HOUR).unwrap()
}

fn rate(dir: &Dir) -> RateLimiter {
    rate_at(&dir.file("limits.db"))
}

/// The number of admitted attempts.
fn take(limiter: &dyn Limiter, most: u64) -> u64 {
    (0..most).filter(|_| matches!(limiter.attempt("key", 1).unwrap(), Attempt::Admitted(_))).count() as u64
}

/// Takes in a child process, which has written everything when it ends.
fn take_in_a_child(dir: &Dir, most: u64) -> u64 {
    let taken = shared(1);
    Child::run(|| {
        let store = Store::new(&dir.url()).unwrap();
        let limiter = RateLimiter::new(&store, "api", LIMIT, HOUR).unwrap();
        taken[0].store(take(&limiter, most), Release);
        store.flush().unwrap();
    })
    .join();
    taken[0].load(Acquire)
}

/// The units left when a lost lane no longer counts as full.
fn left(limiter: &dyn Limiter) -> u64 {
    wait_until("it is open again", || take(limiter, 1) == 1);
    1 + take(limiter, 2 * LIMIT)
}

fn left_in_a_child(path: &Path) -> u64 {
    let seen = shared(1);
    Child::run(|| seen[0].store(left(&rate_at(path)), Release)).join();
    seen[0].load(Acquire)
}

/// Runs each case in a child of its own, in parallel.
fn side_by_side<T: Copy>(cases: &[T], f: impl Fn(T)) {
    let children: Vec<Child> = cases.iter().map(|case| Child::run(|| f(*case))).collect();
    children.into_iter().for_each(Child::join);
}

#[test]
fn a_database_can_be_used_from_one_place_only() {
    let (here, there) = (Dir::new("place"), Dir::new("other-place"));
    let limiter = rate(&here);
    assert_eq!(take(&limiter, 10), 10);
    std::fs::hard_link(here.file("limits.db"), there.file("limits.db")).unwrap();
    std::fs::hard_link(here.file("limits.db"), here.file("alias.db")).unwrap();
    for other in [there.file("limits.db"), here.file("alias.db")] {
        let error = Store::new(&url(&other)).unwrap().open().unwrap_err();
        assert_eq!(error.name(), "store_failure");
        assert!(error.to_string().contains("under another name or from another directory"), "{error}");
    }
    assert_eq!(
        (there.names(), here.names()),
        (vec!["limits.db".to_owned()], ["alias.db", "limits.db", "limits.db-lane"].map(str::to_owned).to_vec())
    );
    // Also by a child that opened it independently, which its parent's end does not undo.
    let steps = shared(2);
    drop(limiter);
    let other = Child::run(|| {
        let limiter = rate(&here);
        assert_eq!(take(&limiter, 1), 1);
        steps[0].store(1, Release);
        wait_until("it may end", || steps[1].load(Acquire) == 1);
    });
    wait_until("it is used", || steps[0].load(Acquire) == 1);
    assert!(Store::new(&url(&there.file("limits.db"))).unwrap().open().is_err());
    steps[1].store(1, Release);
    other.join();
    // When it is no longer used there, it may be used here: its lane is lost.
    let left = left_in_a_child(&there.file("limits.db"));
    assert!((LIMIT - 11 - BUDGET..=LIMIT - 11).contains(&left), "{left}");
}

#[test]
fn links_lead_to_one_lane() {
    let dir = Dir::new("links");
    let link = dir.file("link.db");
    symlink("real/limits.db", &link).unwrap();
    let early = rate_at(&link);
    let error = early.open().unwrap_err();
    assert!(error.to_string().contains("symbolic link"), "{error}");
    assert_eq!(dir.names(), ["link.db"]);
    // It led nowhere when the store was created, and leads somewhere when it is opened.
    std::fs::create_dir(dir.file("real")).unwrap();
    assert_eq!(take(&rate_at(&dir.file("real/limits.db")), 60), 60);
    assert_eq!(take(&early, 60), 40);
    assert_eq!(dir.names(), ["link.db", "real"]);
}

#[test]
fn a_lane_that_is_a_link_is_refused() {
    let dir = Dir::new("lane-link");
    std::fs::write(dir.file("precious"), b"").unwrap();
    for target in ["precious", "nothing"] {
        symlink(target, dir.file("limits.db-lane")).unwrap();
        let error = rate(&dir).open().unwrap_err();
        assert!(error.to_string().contains("limits.db-lane: it is a symbolic link"), "{error}");
        std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    }
    assert_eq!(dir.names(), ["precious"]);
    assert_eq!(std::fs::read(dir.file("precious")).unwrap(), b"");
}

#[test]
fn special_files_and_files_of_other_users_are_refused() {
    let dir = Dir::new("strange");
    let lane = std::ffi::CString::new(dir.file("limits.db-lane").to_str().unwrap()).unwrap();
    // SAFETY: a path that ends in NUL.
    assert_eq!(unsafe { libc::mkfifo(lane.as_ptr(), 0o600) }, 0);
    let error = rate(&dir).open().unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    // SAFETY: plain calls, in a child of its own.
    if unsafe { libc::geteuid() } == 0 {
        rate(&dir).open().unwrap();
        Child::run(|| {
            std::os::unix::fs::chown(&dir.0, Some(65_534), Some(65_534)).unwrap();
            for name in dir.names() {
                std::os::unix::fs::chown(dir.file(&name), Some(1_234), Some(1_234)).unwrap();
                std::fs::set_permissions(dir.file(&name), std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
            }
            // SAFETY: as above.
            unsafe {
                assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
                assert!(libc::setgid(65_534) == 0 && libc::setuid(65_534) == 0);
            }
            let error = rate(&dir).open().unwrap_err();
            assert!(error.to_string().contains("it belongs to user 1234 and group 1234"), "{error}");
        })
        .join();
    }
}

/// Restores an older copy.
fn restore(from: &Path, to: &Path, is_in_place: bool) {
    if is_in_place {
        std::fs::copy(from, to).unwrap();
    } else {
        std::fs::rename(from, to).unwrap();
    }
}

#[test]
fn a_restored_older_lane_counts_as_lost() {
    side_by_side(&[(false, false), (false, true), (true, false), (true, true)], |(is_in_place, is_running)| {
        let dir = Dir::new(&format!("older-lane-{is_in_place}-{is_running}"));
        let (lane, copy) = (dir.file("limits.db-lane"), dir.file("copy"));
        assert_eq!(take_in_a_child(&dir, 1), 1);
        std::fs::copy(&lane, &copy).unwrap();
        assert_eq!(take_in_a_child(&dir, 49), 49);
        let user = is_running.then(|| rate(&dir));
        let mut taken = 50 + user.as_ref().map_or(0, |user| take(user, 1));
        restore(&copy, &lane, is_in_place);
        match user {
            // It may take a second until this is noticed.
            Some(user) => {
                let admissions = AtomicU64::new(0);
                wait_until("it is noticed", || {
                    let admitted = take(&user, 1);
                    admissions.fetch_add(admitted, Relaxed);
                    admitted == 0
                });
                taken += admissions.load(Relaxed) + left(&user);
            }
            None => taken += left_in_a_child(&dir.file("limits.db")),
        }
        // A lane that is overwritten under its users may forget a budget of each key again.
        let most = LIMIT + if is_running && is_in_place { BUDGET } else { 0 };
        assert!(
            (LIMIT - 2 * BUDGET..=most).contains(&taken),
            "{taken} of {LIMIT}, in place {is_in_place}, running {is_running}"
        );
    });
}

#[test]
fn a_restored_older_database_is_completed_from_the_lane() {
    side_by_side(&[(false, false), (false, true), (true, false), (true, true)], |(is_in_place, is_running)| {
        present_boot(1);
        let dir = Dir::new(&format!("older-database-{is_in_place}-{is_running}"));
        let (database, copy) = (dir.file("limits.db"), dir.file("copy"));
        for _ in 0..2 {
            assert_eq!(take_in_a_child(&dir, 1), 1);
        }
        std::fs::copy(&database, &copy).unwrap();
        for _ in 0..3 {
            assert_eq!(take_in_a_child(&dir, 10), 10);
        }
        let running = is_running.then(|| rate(&dir));
        running.iter().for_each(|user| user.open().unwrap());
        restore(&copy, &database, is_in_place);
        let taken = match running {
            Some(user) => {
                // Starts that cannot be written are refused until it is noticed.
                let taken = AtomicU64::new(0);
                wait_until("it is noticed", || {
                    let admitted = matches!(user.attempt("key", 1), Ok(Attempt::Admitted(_)));
                    taken.fetch_add(admitted.into(), Relaxed);
                    taken.load(Relaxed) == 10
                });
                10
            }
            None => take_in_a_child(&dir, 10),
        };
        assert_eq!(taken, 10);
        Child::run(|| {
            present_boot(2);
            let left = take(&rate(&dir), 2 * LIMIT);
            assert!(left <= LIMIT - 42, "{left}: the ledger lacks something");
        })
        .join();
    });
}

#[test]
fn a_copy_of_a_store_has_a_lane_of_its_own() {
    let (dir, other) = (Dir::new("original"), Dir::new("copied"));
    assert_eq!(take_in_a_child(&dir, 30), 30);
    for name in dir.names() {
        std::fs::copy(dir.file(&name), other.file(&name)).unwrap();
    }
    assert_eq!(left_in_a_child(&other.file("limits.db")), LIMIT - 30 - BUDGET);
    assert_eq!(take_in_a_child(&dir, LIMIT), LIMIT - 30);
}

fn lane(dir: &Dir) -> std::io::Result<File> {
    File::open(dir.file("limits.db-lane"))
}

/// Returns whether there is another lane. (The number of a file goes to the next one as soon as nobody has it open.)
fn is_replaced(before: &File, dir: &Dir) -> bool {
    let number = |lane: &File| lane.metadata().unwrap().ino();
    lane(dir).is_ok_and(|lane| number(&lane) != number(before))
}

/// A handle once asked the new lane at the place where its limit was in the old one. That was beyond the end of a new
/// lane smaller than the old one, so every call of the handle reported damage from then on.
#[test]
fn handles_waiters_counts_and_observers_follow_to_a_smaller_lane() {
    let dir = Dir::new("smaller");
    let store = Store::new(&dir.url()).unwrap();
    let limiters: Vec<_> = (0..40).map(|i| store.limiter(&format!("limit-{i}"), "100/1h").unwrap()).collect();
    for limiter in &limiters {
        (0..60).for_each(|key| drop(limiter.decide(&format!("key-{key}"), 1).unwrap()));
    }
    // The last limit of the lane.
    let slots = store.limiter("slots", "1 concurrent").unwrap();
    let _held = slots.decide("", 1).unwrap().permit.unwrap();
    let mut observer = Observer::new(&store, 8);
    let misplace = || {
        let lane = OpenOptions::new().read(true).write(true).open(dir.file("limits.db-lane")).unwrap();
        let mut bytes = vec![0; lane.metadata().unwrap().len() as usize];
        lane.read_exact_at(&mut bytes, 0).unwrap();
        // A key's text follows its length and a flag. Its hash, two words, is 16 words before: see `key_word`. No bit of it
        // stays: the key might belong where it is, by chance.
        let is_key = |at: &usize| bytes[*at..].starts_with(b"\x05\0key-0");
        let all: Vec<usize> = (0..bytes.len()).step_by(8).filter(is_key).collect();
        for at in &all {
            let hash = at - 16 * 8;
            let misplaced: Vec<u8> = bytes[hash..hash + 16].iter().map(|byte| !byte).collect();
            lane.write_all_at(&misplaced, hash as u64).unwrap();
        }
        let problems = store.verify(true).unwrap();
        let is_repaired = !problems.is_empty() && problems.iter().all(|problem| problem.is_repaired);
        assert!(is_repaired, "{} keys of {} bytes: {problems:?}", all.len(), bytes.len());
    };
    let remove = || std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    for (how, lose) in [("removed", &remove as &dyn Fn()), ("misplaced", &misplace)] {
        let mut waiting = || {
            let seen = observer.look().unwrap();
            seen.limits.iter().find(|limit| limit.name == "slots").unwrap().waiting
        };
        let waiter = std::thread::spawn({
            let slots = slots.clone();
            move || acquire(&*slots, Waiter::new("", 1)).unwrap()
        });
        wait_until("it waits", || waiting() == 1);
        let before = lane(&dir).unwrap();
        lose();
        wait_until(&format!("there is another lane: {how}"), || {
            limiters[0].peek("key-0", 1).unwrap();
            is_replaced(&before, &dir)
        });
        wait_until("its waiter follows", || waiting() == 1 || waiter.is_finished());
        // None of them has looked for its limit yet.
        for limiter in limiters.iter().rev() {
            wait_until("it is open again", || limiter.decide("key-0", 1).unwrap().admitted);
            assert_eq!(limiter.stats("key-0").unwrap().admitted, 1);
        }
        assert!(matches!(waiter.join().unwrap(), Attempt::Admitted(_)));
        wait_until("it waits no more", || waiting() == 0);
    }
}

/// Losing the lane costs two seconds and a budget, whatever the limit is.
#[test]
fn a_deleted_lane_costs_a_budget_on_every_kind_of_limit() {
    const TEXTS: [&str; 6] =
        ["100/1d", "100/1d + 100/2d", "10000/1d", "100/1d burst 100", "100/300d fixed", "100/300d counter"];
    side_by_side(&TEXTS, |text| {
        let [policy] = parse_policies(text).unwrap().try_into().unwrap();
        let dir = Dir::new(&format!("deleted-{}", text.replace(['/', ' '], "-")));
        let store = patient(&dir.url());
        let limiter = store.declare("api", policy).unwrap();
        let before = limiter.decide("key", 10).unwrap();
        assert!(before.admitted);
        store.flush().unwrap();
        let lost = lane(&dir).unwrap();
        std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
        // On a slow disk, the limit is open again as soon as the new lane is there.
        wait_until("there is another lane", || {
            limiter.peek("key", 1).unwrap();
            is_replaced(&lost, &dir)
        });
        wait_until("it is open again", || limiter.peek("key", 1).unwrap().remaining > 0);
        let left = limiter.peek("key", 1).unwrap().remaining;
        let (most, budget) = (before.remaining, before.limit / 20);
        assert!(left <= most - budget && left + 2 * budget >= most, "{text}: {left} of {most}");
        assert_eq!(limiter.peek("another", 1).unwrap().remaining, before.limit - budget, "{text}");
    });
}

#[test]
fn a_program_without_input_and_output_keeps_its_files_apart() {
    let dir = Dir::new("descriptors");
    Child::run(|| {
        // SAFETY: closes what this child does not use.
        (0..3).for_each(|fd| unsafe { assert_eq!(libc::close(fd), 0) });
        let limiter = rate(&dir);
        assert_eq!(take(&limiter, LIMIT), LIMIT);
        for fd in 0..3 {
            // The output of such a program goes nowhere, or to a file that it opened itself.
            // SAFETY: a buffer of that length.
            unsafe { libc::write(fd, c"printed".as_ptr().cast(), 7) };
        }
        assert_eq!(take(&limiter, 1), 0);
    })
    .join();
    for name in dir.names() {
        let bytes = std::fs::read(dir.file(&name)).unwrap();
        assert!(!bytes.windows(7).any(|found| found == b"printed"), "{name}");
    }
    assert_eq!(take(&rate(&dir), 1), 0);
}

#[test]
fn with_a_hidden_boot_id_an_unused_lane_counts_as_another_boots() {
    let dir = Dir::new("hidden");
    let taken = shared(1);
    for _ in 0..4 {
        Child::run(|| {
            let private = libc::MS_REC | libc::MS_PRIVATE;
            // SAFETY: plain calls with strings that end in NUL, in a child of its own.
            let is_hidden = unsafe {
                libc::unshare(libc::CLONE_NEWNS) == 0
                    && libc::mount(std::ptr::null(), c"/".as_ptr(), std::ptr::null(), private, std::ptr::null()) == 0
                    && libc::mount(c"tmpfs".as_ptr(), c"/proc".as_ptr(), c"tmpfs".as_ptr(), 0, std::ptr::null()) == 0
            };
            if !is_hidden {
                return println!("left out: this process may not mount anything");
            }
            let limiter = rate(&dir);
            limiter.open().unwrap();
            let before = limiter.peek("key", 1).unwrap().remaining;
            taken[0].fetch_add(take(&limiter, 10), AcqRel);
            // While it is used, it stays valid.
            Child::run(|| assert_eq!(rate(&dir).peek("key", 1).unwrap().remaining, before - 10)).join();
            let taken = taken[0].load(Acquire);
            assert!((LIMIT - taken - 4 * BUDGET..=LIMIT - taken).contains(&(before - 10)), "{before} after {taken}");
        })
        .join();
    }
}

#[test]
fn holes_in_a_lane_are_filled() {
    let dir = Dir::new("holes");
    assert_eq!(take_in_a_child(&dir, 30), 30);
    let lane = OpenOptions::new().read(true).write(true).open(dir.file("limits.db-lane")).unwrap();
    let whole = lane.metadata().unwrap().blocks();
    let page = [0; 4096];
    let is_empty = |at: u64| {
        let mut found = [1; 4096];
        lane.read_exact_at(&mut found, at).unwrap();
        found == page
    };
    let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    for at in (0..lane.metadata().unwrap().len()).step_by(4096).filter(|at| is_empty(*at)) {
        use std::os::fd::AsRawFd;
        // SAFETY: plain call on an open descriptor.
        unsafe { libc::fallocate(lane.as_raw_fd(), flags, at as i64, 4096) };
    }
    assert!(lane.metadata().unwrap().blocks() < whole);
    assert_eq!(take_in_a_child(&dir, LIMIT), LIMIT - 30);
    assert!(lane.metadata().unwrap().blocks() >= whole);
}

#[test]
fn a_file_size_limit_kills_no_process() {
    for most in [0, 1_000, 100_000, 1_400_000] {
        let dir = Dir::new("file-size");
        Child::run(|| {
            // SAFETY: plain calls that affect this child only.
            unsafe {
                libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
                let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
                assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
            }
            let limiter = rate(&dir);
            let failed = (0..100_000).find_map(|i| limiter.attempt(&i.to_string(), 1).err()).unwrap();
            assert!(failed.to_string().contains("(ulimit -f)"), "{failed}");
        })
        .join();
    }
}

/// A program that reads the database with its own SQLite closes the file, and thereby gives up all POSIX locks that its
/// process has on it.
#[test]
fn a_host_that_opens_and_closes_the_database_releases_no_lock() {
    let dir = Dir::in_memory("host");
    let (ready, steps) = (shared(1), shared(1));
    let processes = [0, 1, 2].map(|_| {
        Child::run(|| {
            let mut options = StoreOptions::default();
            options.durability = Durability::Commit;
            let store = Store::with_options(&dir.url(), options).unwrap();
            let limiter = RateLimiter::new(&store, "api", 100_000, HOUR).unwrap();
            limiter.open().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while steps[0].load(Acquire) == 0 {
                        drop(File::open(dir.file("limits.db")).unwrap());
                    }
                });
                for _ in 0..200 {
                    assert!(matches!(limiter.attempt("key", 1), Ok(Attempt::Admitted(_))));
                    ready[0].fetch_add(1, AcqRel);
                }
                wait_until("all are ready", || ready[0].load(Acquire) == 600);
                steps[0].store(1, Release);
            });
        })
    });
    processes.into_iter().for_each(Child::join);
    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    let limiter = RateLimiter::new(&Store::new(&dir.url()).unwrap(), "api", 100_000, HOUR).unwrap();
    wait_until("it is open again", || limiter.peek("key", 1).unwrap().remaining > 0);
    assert_eq!(limiter.peek("key", 1).unwrap().remaining, 100_000 - 600);
}

/// Until the lane is checked, after a second at most, as many starts are admitted as the ledger may lack, and no more.
#[test]
fn a_directory_deleted_under_a_store_is_an_error() {
    let dir = Dir::new("folder");
    let inner = dir.0.join("inner");
    std::fs::create_dir(&inner).unwrap();
    let store = Store::new(&url(&inner.join("limits.db"))).unwrap();
    let limiter = RateLimiter::new(&store, "api", 100, Duration::from_secs(3_600)).unwrap();
    assert_eq!(take(&limiter, 20), 20);
    std::fs::remove_dir_all(&inner).unwrap();
    let admitted = std::cell::Cell::new(0);
    wait_until("it is noticed", || match limiter.attempt("", 1) {
        Ok(answer) => {
            admitted.set(admitted.get() + u64::from(matches!(answer, Attempt::Admitted(_))));
            false
        }
        Err(error) => error.name() == "store_failure" || panic!("{error:?}"),
    });
    let admitted = admitted.get();
    assert!(admitted <= BUDGET, "{admitted}: the ledger may lack no more than a budget");
    wait_until("the lane is checked", || limiter.peek("", 1).is_err());
    for _ in 0..100 {
        assert!(limiter.attempt("", 1).is_err());
        assert!(limiter.peek("", 1).is_err());
    }
}

/// Asserts that nothing is left of a limit, even without its lane.
fn assert_ledger_has_all(dir: &Dir) {
    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    Child::run(|| {
        let limiter = rate(dir);
        wait_until("it is open again", || limiter.peek("another", 1).unwrap().remaining > 0);
        assert_eq!(take(&limiter, 1), 0);
    })
    .join();
}

/// The lane knows the starts, so they count. The declarations are gone.
#[test]
fn deleting_an_unused_database_forgets_no_start() {
    let dir = Dir::new("forgotten");
    assert_eq!(take_in_a_child(&dir, 30), 30);
    Child::run(|| Store::new(&dir.url()).unwrap().override_key("api", "200/1h", "other").unwrap()).join();
    for times in 0..2 {
        std::fs::remove_file(dir.file("limits.db")).unwrap();
        assert_eq!(take_in_a_child(&dir, 30), 30, "time {times}");
    }
    let seen = shared(2);
    Child::run(|| {
        let limiter = rate(&dir);
        seen[0].store(take(&limiter, LIMIT), Release);
        seen[1].store(limiter.peek("other", 1).unwrap().limit, Release);
    })
    .join();
    assert_eq!(seen.iter().map(|word| word.load(Acquire)).collect::<Vec<_>>(), [10, LIMIT]);
    // All of it is also in the new database.
    assert_ledger_has_all(&dir);
}

/// Even without a start in between.
#[test]
fn a_new_database_has_the_deleted_ones_starts_before_its_first_use() {
    let dir = Dir::new("written-again");
    assert_eq!(take_in_a_child(&dir, LIMIT), LIMIT);
    std::fs::remove_file(dir.file("limits.db")).unwrap();
    Child::run(|| assert_eq!(take(&rate(&dir), 1), 0)).join();
    assert_ledger_has_all(&dir);
}

/// A name may belong to another kind in the new database.
#[test]
fn the_names_of_a_deleted_database_are_free_for_any_kind() {
    const KINDS: [&str; 5] = ["100/1h", "100 concurrent", "100/1h burst 100", "10000/1h", "100/1h + 1000/1d fixed"];
    let dir = Dir::new("any-kind");
    for text in KINDS.iter().chain(KINDS.iter().rev()) {
        Child::run(|| {
            let limiter = Store::new(&dir.url()).unwrap().limiter("api", text).unwrap();
            assert!(take(&*limiter, 1) == 1, "{text}");
        })
        .join();
        std::fs::remove_file(dir.file("limits.db")).unwrap();
    }
}

#[test]
fn another_stores_database_is_refused_next_to_a_valid_lane() {
    let (dir, other) = (Dir::new("exchanged"), Dir::new("exchanged-other"));
    assert_eq!(take_in_a_child(&dir, 30), 30);
    assert_eq!(take_in_a_child(&other, 20), 20);
    let saved = dir.file("saved.db");
    std::fs::rename(dir.file("limits.db"), &saved).unwrap();
    std::fs::copy(other.file("limits.db"), dir.file("limits.db")).unwrap();
    Child::run(|| {
        let error = rate(&dir).attempt("key", 1).unwrap_err();
        assert_eq!(error.name(), "store_failure");
        let (text, lane) = (error.to_string(), dir.file("limits.db-lane"));
        assert!(text.contains("another database") && text.contains(lane.to_str().unwrap()), "{text}");
    })
    .join();
    // One solution is to restore the previous database, the other to delete the lane.
    std::fs::rename(&saved, dir.file("limits.db")).unwrap();
    assert_eq!(take_in_a_child(&dir, LIMIT), LIMIT - 30);
    std::fs::copy(other.file("limits.db"), dir.file("limits.db")).unwrap();
    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    assert!((1..=LIMIT - 20).contains(&left_in_a_child(&dir.file("limits.db"))));
}
