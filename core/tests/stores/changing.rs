//! Policies that change for many keys: a moment's keys at a time, while other callers continue; and processes that die
//! during a change.

#[cfg(feature = "fault-points")]
use crate::common::Child;
use crate::common::limits::patient;
use crate::common::{self, Dir, Random, number};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::Duration;
use workglow_limit::*;

/// Several segments of an index.
const KEYS: u64 = 4_000;

fn admitted(limiter: &dyn Limiter, key: u64) -> bool {
    limiter.decide(&key.to_string(), 1).unwrap().admitted
}

fn limit(limiter: &dyn Limiter, key: u64) -> u64 {
    limiter.peek(&key.to_string(), 1).unwrap().limit
}

/// The units in use.
fn used(limiter: &dyn Limiter, key: u64) -> u64 {
    let found = limiter.peek(&key.to_string(), 1).unwrap();
    found.limit.saturating_sub(found.remaining)
}

/// Once a change has returned, no start happens while the window holds the new limit or more.
fn no_start_by_the_previous_policy(url: &str) {
    let store = patient(url);
    let limiter = store.limiter("api", "4/100s").unwrap();
    for round in 0..number("ROUNDS", 3) {
        limiter.clear("").unwrap();
        let new = |_| (AtomicU64::new(0), AtomicBool::new(false));
        let keys: Vec<(AtomicU64, AtomicBool)> = (0..2 * KEYS).map(new).collect();
        (0..KEYS).for_each(|key| keys[key as usize].0.store(u64::from(admitted(&*limiter, key)), Release));
        let (has_returned, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (mine, keys, has_returned, is_over) = (store.find("api").unwrap(), &keys, &has_returned, &is_over);
                scope.spawn(move || {
                    let mut random = Random::new();
                    for _ in 0..thread {
                        random.below(2);
                    }
                    while !is_over.load(Acquire) {
                        // Half of them are new.
                        let (key, is_late) = (random.below(2 * KEYS), has_returned.load(Acquire));
                        if admitted(&*mine, key) {
                            keys[key as usize].0.fetch_add(1, AcqRel);
                            keys[key as usize].1.fetch_or(is_late, AcqRel);
                        }
                    }
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(5 * round));
            store.override_limit("api", "2/100s", None).unwrap();
            has_returned.store(true, Release);
            std::thread::sleep(std::time::Duration::from_millis(100));
            is_over.store(true, Release);
        });
        for (key, (started, is_late)) in keys.iter().enumerate() {
            let started = started.load(Acquire);
            assert!(started <= 2 || !is_late.load(Acquire), "{started} of 2 on {key}, one of them after the change");
            assert!(started <= 4, "{started} of 4 on {key}");
            assert_eq!(limit(&*limiter, key as u64), 2, "of {key}");
        }
        store.lift("api", None).unwrap();
        let over = (0..2 * KEYS).find(|&key| used(&*limiter, key) != keys[key as usize].0.load(Acquire));
        assert_eq!(over, None, "the starts count, and nothing else");
    }
}

#[test]
fn no_start_by_the_previous_policy_in_memory() {
    no_start_by_the_previous_policy("memory:");
}

#[test]
fn no_start_by_the_previous_policy_in_a_lane() {
    no_start_by_the_previous_policy(&Dir::in_memory("before").url());
}

/// Changes of one limit happen one after another, and the last applies to all keys.
#[test]
fn concurrent_changes_leave_one_policy() {
    let dir = Dir::in_memory("same-time");
    let store = patient(&dir.url());
    let limiter = store.limiter("api", "9/100s").unwrap();
    (0..KEYS).for_each(|key| assert!(admitted(&*limiter, key)));
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (store, dir) = (&store, &dir);
            scope.spawn(move || {
                let own = patient(&dir.url());
                for round in 0..4u64 {
                    // In blocks of different sizes.
                    let policy = format!("{}/100s", [5, 9, 40, 200][((thread + round) % 4) as usize]);
                    own.override_limit("api", &policy, None).unwrap();
                    own.override_limit("api", &policy, Some(&thread.to_string())).unwrap();
                    if thread == 2 {
                        store.lift("api", None).unwrap();
                    }
                }
            });
        }
    });
    store.override_limit("api", "7/100s", None).unwrap();
    (3..KEYS).for_each(|key| assert_eq!((limit(&*limiter, key), used(&*limiter, key)), (7, 1), "{key}"));
    let own = (0..3).map(|key| limit(&*limiter, key)).collect::<Vec<_>>();
    assert_eq!(own, [200, 5, 9], "keys with policies of their own stay");
    assert!(limiter.stats("").unwrap().policy_changes >= 12);
}

/// Other processes complete the interrupted work, whatever it was.
#[test]
#[cfg(feature = "fault-points")]
fn a_death_while_many_keys_change_is_completed_by_others() {
    let points = fault::REWRITING.iter().chain(fault::GROWING).chain(["decided", "followed"].iter());
    for point in points {
        for is_clear in [false, true] {
            // Cleared keys are not rewritten, and a clear is not a policy.
            if is_clear && ["key-sealed", "key-written", "decided", "followed"].contains(point) {
                continue;
            }
            let dir = Dir::in_memory("dying");
            let url = dir.url();
            let store = patient(&url);
            let (limiter, other) = (store.limiter("api", "5/100s").unwrap(), store.limiter("other", "5/1s").unwrap());
            other.open().unwrap();
            (0..KEYS).for_each(|key| assert!(admitted(&*limiter, key)));
            store.override_limit("api", "50/100s", Some("7")).unwrap();
            let child = Child::run(|| {
                let store = patient(&url);
                let limiter = store.find("api").unwrap();
                fault::at(point, || common::raise(libc::SIGKILL));
                match is_clear {
                    true => limiter.clear("").unwrap(),
                    false => store.override_limit("api", "3/100s", None).unwrap(),
                }
            });
            let what = format!("{point}, clear {is_clear}");
            assert!(child.was_killed(), "{what}");
            // Before any other rare operation, and for new keys too.
            (KEYS - 10..KEYS + 10).for_each(|key| assert!(admitted(&*limiter, key), "{what}"));
            // On another limit, which takes the lock.
            common::wait_until("the change is over", || {
                let Attempt::Admitted(permit) = other.attempt("", 1).unwrap() else { return false };
                other.cancel(&permit).unwrap();
                is_clear || *point == "table-written" || limit(&*limiter, KEYS - 1) == 3 && limit(&*limiter, 1) == 3
            });
            store.lift("api", Some("7")).unwrap();
            store.override_limit("api", "4/100s", None).unwrap();
            let is_cleared = is_clear && *point != "table-written";
            for key in 0..KEYS - 10 {
                let expected = if is_cleared { 0 } else { 1 };
                assert_eq!((limit(&*limiter, key), used(&*limiter, key)), (4, expected), "{what}: {key}");
            }
            for key in KEYS - 10..KEYS + 10 {
                let (used, started) = (used(&*limiter, key), if key < KEYS { 2 } else { 1 });
                assert!(used == started || is_cleared && used < started, "{what}: {used} on {key}");
            }
        }
    }
}

/// No other process has to move all of the keys first: each key's next caller moves it.
#[test]
#[cfg(feature = "fault-points")]
fn keys_that_a_dead_or_stopped_process_left_behind_get_the_new_policy_at_their_next_use() {
    for (point, signal) in [("key-written", libc::SIGKILL), ("lock-left", libc::SIGKILL), ("lock-left", libc::SIGSTOP)]
    {
        let what = format!("{point}, signal {signal}");
        let dir = Dir::in_memory("left-behind");
        let url = dir.url();
        let decide = |url: &str| {
            let store = patient(url);
            let limiter = store.limiter("api", "5/100s").unwrap();
            (0..KEYS).for_each(|key| assert!(admitted(&*limiter, key)));
            let child = Child::run(|| {
                let store = patient(url);
                // A moment of the change itself: making space takes some, too.
                fault::at("key-written", move || match point {
                    "key-written" => common::raise(signal),
                    _ => fault::at(point, move || common::raise(signal)),
                });
                store.override_limit("api", "3/100s", None).unwrap();
            });
            if signal == libc::SIGSTOP {
                child.wait_until_stopped();
            } else {
                assert!(child.was_killed(), "{what}");
            }
            // From here on the change is late.
            std::thread::sleep(Duration::from_millis(150));
            let by_the_previous = (0..KEYS).rev().find(|&key| {
                let decision = limiter.decide(&key.to_string(), 1).unwrap();
                decision.limit != 3 || !decision.admitted || decision.remaining != 1
            });
            assert_eq!(by_the_previous, None, "{what}");
            let other = (0..KEYS).find(|&key| limit(&*limiter, key) != 3 || used(&*limiter, key) != 2);
            assert_eq!(other, None, "{what}");
        };
        // In a process where helpers move one key at a time.
        Child::run(|| {
            fault::in_small_steps(true);
            decide(&url);
        })
        .join();
    }
}

/// A process that is stopped under the lock delays no decision. Keys that were left behind keep their policy until then.
#[test]
#[cfg(feature = "fault-points")]
fn a_process_stopped_under_the_lock_delays_no_key_that_was_left_behind() {
    let dir = Dir::in_memory("stopped-moving");
    Child::run(|| {
        let mut options = StoreOptions::default();
        // No decision waits that long.
        options.timeout = Duration::from_secs(3_600);
        let store = Store::with_options(&dir.url(), options).unwrap();
        let [limiter, other] = ["api", "other"].map(|name| store.limiter(name, "5/100s").unwrap());
        other.open().unwrap();
        (0..100).for_each(|key| assert!(admitted(&*limiter, key)));
        fault::in_small_steps(true);
        let dead = Child::run(|| {
            fault::at("key-written", || fault::at("lock-left", || common::raise(libc::SIGKILL)));
            store.override_limit("api", "3/100s", None).unwrap();
        });
        assert!(dead.was_killed());
        let stopped = Child::run(|| {
            // Under the lock, and no key is sealed.
            fault::at("deciding", || common::raise(libc::SIGSTOP));
            store.override_limit("other", "4/100s", None).unwrap();
        });
        stopped.wait_until_stopped();
        std::thread::sleep(Duration::from_millis(150));
        let limits: Vec<u64> = (0..100).map(|key| limiter.decide(&key.to_string(), 1).unwrap().limit).collect();
        assert!(limits.contains(&3) && limits.contains(&5), "{limits:?}");
        stopped.signal(libc::SIGCONT);
        stopped.join();
        assert_eq!((0..100).find(|&key| limit(&*limiter, key) != 3 || used(&*limiter, key) != 2), None);
    })
    .join();
}

/// Each start is written once, however many keys there are.
#[test]
fn the_starts_of_many_keys_are_written_once() {
    let dir = Dir::in_memory("written");
    let store = patient(&dir.url());
    let limiter = store.limiter("api", "100/1h").unwrap();
    (0..KEYS).for_each(|key| assert!(admitted(&*limiter, key)));
    store.flush().unwrap();
    (0..KEYS / 2).for_each(|key| assert!(admitted(&*limiter, key)));
    store.flush().unwrap();
    store.override_limit("api", "9/1h", None).unwrap();
    drop((limiter, store));
    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    let store = patient(&dir.url());
    let limiter = store.find("api").unwrap();
    // And a budget of one, which may be lost with the lane.
    common::wait_until("the lost lane is noticed", || admitted(&*limiter, KEYS));
    for key in 0..KEYS {
        assert_eq!(used(&*limiter, key), if key < KEYS / 2 { 3 } else { 2 }, "{key}");
    }
    store.override_limit("api", "2/1h", None).unwrap();
    limiter.clear("").unwrap();
    assert_eq!((0..KEYS).map(|key| used(&*limiter, key)).sum::<u64>(), 0);
    drop((limiter, store));
    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    let limiter = patient(&dir.url()).find("api").unwrap();
    common::wait_until("the lost lane is noticed", || admitted(&*limiter, KEYS));
    assert_eq!((0..KEYS).find(|&key| used(&*limiter, key) > 1), None, "cleared starts do not return");
}

/// One key that has more leases than slots does not delay the others, which share its new table.
#[test]
fn more_slots_for_one_of_many_keys() {
    for url in ["memory:".to_owned(), Dir::in_memory("slots").url()] {
        let store = patient(&url);
        let limiter = store.limiter("gpu", "2 concurrent").unwrap();
        (0..KEYS).for_each(|key| assert!(admitted(&*limiter, key)));
        for key in [5, 6, 5] {
            (0..50).for_each(|_| limiter.record_job_start(&key.to_string()).unwrap());
        }
        let started = |key| {
            if key == 5 {
                101
            } else if key == 6 {
                51
            } else {
                1
            }
        };
        store.override_limit("gpu", "200 concurrent", None).unwrap();
        (0..KEYS).for_each(|key| assert_eq!(used(&*limiter, key), started(key), "{key}"));
        for key in [5, 6] {
            (0..50).for_each(|_| limiter.record_job_completion(&key.to_string()).unwrap());
            assert_eq!(used(&*limiter, key), started(key) - 50, "{key}");
        }
    }
}

/// The number of rows in the ledger under each name. In a child, since SQLite and forks do not mix.
#[cfg(feature = "fault-points")]
fn in_the_ledger(dir: &Dir, names: [&str; 2]) -> [u64; 2] {
    let found = common::shared(2);
    Child::run(|| {
        let db = rusqlite::Connection::open(dir.file("limits.db")).unwrap();
        let count = "SELECT count(*) FROM starts WHERE name = ?1";
        for (name, found) in names.iter().zip(found) {
            found.store(db.query_row(count, [name], |row| row.get::<_, i64>(0)).unwrap() as u64, Release);
        }
    })
    .join();
    [0, 1].map(|i| found[i].load(Acquire))
}

/// A store with a limit that has many rows in the ledger: three starts of each key.
#[cfg(feature = "fault-points")]
fn of_many_rows(dir: &Dir) -> Store {
    let store = patient(&dir.url());
    let limiter = store.limiter("api", "60/1h").unwrap();
    for _ in 0..3 {
        (0..KEYS).for_each(|key| assert!(admitted(&*limiter, key)));
        store.flush().unwrap();
    }
    store
}

/// Asserts the units in use of a limit with this name after the loss of the lane: for each key a budget of 3 may be
/// missing.
#[cfg(feature = "fault-points")]
fn used_after_a_loss(dir: &Dir, name: &str, what: &str, expected: u64) {
    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    let limiter = patient(&dir.url()).find(name).unwrap();
    common::wait_until("the lost lane is noticed", || admitted(&*limiter, KEYS));
    let other = (0..KEYS).map(|key| used(&*limiter, key)).find(|used| *used != expected + 3);
    assert_eq!(other, None, "{what}");
}

/// A renamed limit keeps its starts even if a process dies during the rename.
#[test]
#[cfg(feature = "fault-points")]
fn a_death_while_a_limit_is_renamed_is_completed_by_others() {
    for point in ["deciding", "decided", "followed"] {
        let dir = Dir::in_memory("renaming");
        let store = of_many_rows(&dir);
        let child = Child::run(|| {
            let store = patient(&dir.url());
            fault::at(point, || common::raise(libc::SIGKILL));
            store.limiter("api", "60/1h + 5 concurrent").unwrap().open().unwrap();
        });
        assert!(child.was_killed(), "{point}");
        let (all, name) = (3 * KEYS, if point == "deciding" { "api" } else { "api/rate" });
        let expected = if point == "deciding" { [all, 0] } else { [0, all] };
        assert_eq!(in_the_ledger(&dir, ["api", "api/rate"]), expected, "{point}");
        if point == "followed" {
            // Other processes complete it, and the name may change back, before the lane is lost too.
            store.flush().unwrap();
            store.limiter("api", "60/1h").unwrap().open().unwrap();
            assert_eq!(in_the_ledger(&dir, ["api", "api/rate"]), [all, 0]);
            store.limiter("api", "60/1h + 5 concurrent").unwrap().open().unwrap();
        }
        drop(store);
        used_after_a_loss(&dir, name, point, 3);
    }
}

/// Rows that were gathered under the previous name and written later are found under the new one.
#[test]
#[cfg(feature = "fault-points")]
fn rows_written_during_a_rename_are_not_lost() {
    let dir = Dir::in_memory("overtaken");
    Child::run(|| {
        let store = patient(&dir.url());
        let limiter = store.limiter("api", "60/1h").unwrap();
        (0..KEYS).for_each(|key| assert!(admitted(&*limiter, key)));
        let url = dir.url();
        fault::at("gathered", move || {
            let mut options = StoreOptions::default();
            // It cannot write the ledger during this.
            options.timeout = std::time::Duration::from_millis(300);
            let store = Store::with_options(&url, options).unwrap();
            store.limiter("api", "60/1h + 5 concurrent").unwrap().open().unwrap();
        });
        store.flush().unwrap();
    })
    .join();
    used_after_a_loss(&dir, "api/rate", "overtaken", 1);
}

/// Rows that are forgotten because their name passes to another kind do not return, even if a process dies during that.
#[test]
#[cfg(feature = "fault-points")]
fn rows_of_a_name_taken_by_another_kind_do_not_return() {
    for point in ["decided", "followed"] {
        let dir = Dir::in_memory("kinds");
        let store = of_many_rows(&dir);
        store.forget("api").unwrap();
        let child = Child::run(|| {
            let store = patient(&dir.url());
            fault::at(point, || common::raise(libc::SIGKILL));
            store.limiter("api", "5 concurrent").unwrap().open().unwrap();
        });
        assert!(child.was_killed(), "{point}");
        assert_eq!(in_the_ledger(&dir, ["api", ""])[0], 0, "{point}");
        store.find("api").unwrap().open().unwrap();
        store.forget("api").unwrap();
        let limiter = store.limiter("api", "60/1h").unwrap();
        assert!(admitted(&*limiter, KEYS), "{point}");
        drop((limiter, store));
        used_after_a_loss(&dir, "api", point, 0);
    }
}

/// A forgotten limit that is declared again as a part of a composite keeps its state, even after a loss of the lane.
#[test]
#[cfg(feature = "fault-points")]
fn a_limit_that_returns_under_another_name_keeps_its_rows() {
    let dir = Dir::in_memory("back");
    let store = of_many_rows(&dir);
    store.forget("api").unwrap();
    store.limiter("api", "60/1h + 5 concurrent").unwrap().open().unwrap();
    assert_eq!(used(&*store.find("api/rate").unwrap(), 0), 3);
    drop(store);
    used_after_a_loss(&dir, "api/rate", "back", 3);
}

/// So does one whose name was a composite of other kinds in between.
#[test]
#[cfg(feature = "fault-points")]
fn a_limit_that_returns_after_a_composite_of_its_name_keeps_its_rows() {
    let dir = Dir::in_memory("in-between");
    Child::run(|| {
        let store = patient(&dir.url());
        let declare = |text| {
            let limiter = store.limiter("api", text).unwrap();
            limiter.open().unwrap();
            limiter
        };
        let limiter = declare("60/1h");
        (0..4).for_each(|_| assert!(admitted(&*limiter, 7)));
        store.flush().unwrap();
        for text in ["5 concurrent + delay 1us", "60/1h"] {
            store.forget("api").unwrap();
            assert_eq!(used(&*declare(text), 7), if text == "60/1h" { 4 } else { 0 });
        }
        store.flush().unwrap();
    })
    .join();
    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    Child::run(|| {
        let limiter = patient(&dir.url()).find("api").unwrap();
        common::wait_until("the lost lane is noticed", || admitted(&*limiter, KEYS));
        assert_eq!(used(&*limiter, 7), 4 + 3);
    })
    .join();
}

/// The database may have another number for a limit than the lane. It takes the lane's, whoever dies meanwhile, so no
/// start is lost, and none is there twice.
#[test]
#[cfg(feature = "fault-points")]
fn a_limit_keeps_its_number_whoever_dies_meanwhile() {
    for point in ["decided", "renumbering", "rows-renumbered", "followed"] {
        let dir = Dir::in_memory("renumbered");
        Child::run(|| {
            let store = patient(&dir.url());
            let limiter = store.limiter("api", "60/1h").unwrap();
            (0..4).for_each(|_| assert!(admitted(&*limiter, 7)));
            store.flush().unwrap();
            store.forget("api").unwrap();
            store.limiter("api", "5 concurrent + delay 1us").unwrap().open().unwrap();
            store.forget("api").unwrap();
            let child = Child::run(|| {
                fault::at(point, || common::raise(libc::SIGKILL));
                patient(&dir.url()).limiter("api", "60/1h").unwrap().open().unwrap();
            });
            assert!(child.was_killed(), "{point}");
            assert_eq!(used(&*store.limiter("api", "60/1h").unwrap(), 7), 4, "{point}");
        })
        .join();
        std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
        Child::run(|| {
            let limiter = patient(&dir.url()).find("api").unwrap();
            common::wait_until("the lost lane is noticed", || admitted(&*limiter, KEYS));
            assert_eq!(used(&*limiter, 7), 4 + 3, "{point}");
        })
        .join();
    }
}

/// A limit that returns while keys are restored has those of its own that are only in the ledger.
#[test]
#[cfg(feature = "fault-points")]
fn a_limit_that_returns_while_keys_are_restored_has_its_keys() {
    let dir = Dir::in_memory("renumbered-alone");
    Child::run(|| {
        let store = patient(&dir.url());
        for name in ["api", "other"] {
            let limiter = store.limiter(name, "60/1h").unwrap();
            (0..4).for_each(|key| assert!(admitted(&*limiter, key)));
        }
        store.flush().unwrap();
    })
    .join();
    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    Child::run(|| {
        fault::restore_at_once(0, true);
        let store = patient(&dir.url());
        let other = store.find("other").unwrap();
        common::wait_until("the lost lane is noticed", || admitted(&*other, KEYS));
        for text in ["5 concurrent + delay 1us", "60/1h"] {
            store.forget("api").unwrap();
            store.limiter("api", text).unwrap().open().unwrap();
        }
        for name in ["api", "other"] {
            assert_eq!(used(&*store.find(name).unwrap(), 0), 1 + 3, "{name}");
        }
    })
    .join();
}

/// An older copy may lack a limit, know it by its former name, or by the number of a former limit of that name. In each
/// case the starts in the lane are written to it, and are found after a loss of the lane.
#[test]
#[cfg(feature = "fault-points")]
fn limits_that_an_older_copy_knows_otherwise_keep_their_starts() {
    let dir = Dir::in_memory("known-otherwise");
    let declare = |store: &Store, name: &str, text: &str| {
        let limiter = store.limiter(name, text).unwrap();
        limiter.open().unwrap();
        limiter
    };
    let take = |limiter: &dyn Limiter| (0..4).for_each(|_| assert!(admitted(limiter, 7)));
    Child::run(|| {
        let store = patient(&dir.url());
        ["api", "again"].iter().for_each(|name| take(&*declare(&store, name, "60/1h")));
        store.flush().unwrap();
    })
    .join();
    let copy = dir.file("copy.db");
    std::fs::copy(dir.file("limits.db"), &copy).unwrap();
    Child::run(|| {
        let store = patient(&dir.url());
        declare(&store, "api", "60/1h + 5 concurrent");
        take(&*store.find("api/rate").unwrap());
        take(&*declare(&store, "later", "60/1h"));
        for text in ["5 concurrent", "60/1h"] {
            store.forget("again").unwrap();
            declare(&store, "again", text);
        }
        take(&*store.find("again").unwrap());
        store.flush().unwrap();
    })
    .join();
    std::fs::rename(&copy, dir.file("limits.db")).unwrap();
    let expected = [("api", 8), ("again", 4), ("later", 4)];
    Child::run(|| {
        let store = patient(&dir.url());
        for (name, units) in expected {
            assert_eq!(used(&*declare(&store, name, "60/1h"), 7), units, "{name}");
        }
        store.flush().unwrap();
    })
    .join();
    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    Child::run(|| {
        let store = patient(&dir.url());
        for (name, units) in expected {
            let limiter = store.find(name).unwrap();
            common::wait_until("the lost lane is noticed", || admitted(&*limiter, KEYS));
            assert_eq!(used(&*limiter, 7), units + 3, "{name}");
        }
    })
    .join();
}

#[test]
fn decisions_during_a_change_of_cell_kind_stay_within_the_larger_limit() {
    // Starts are stored individually up to 4,096. Above that they are counted, in other cells.
    const SMALL: u64 = 4_000;
    const LARGE: u64 = 5_000;
    let store = patient("memory:");
    let declare = |max| RateLimiter::new(&store, "api", max, Duration::from_secs(3_600)).unwrap();
    let limiter = declare(SMALL);
    limiter.open().unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let admitted: u64 = std::thread::scope(|scope| {
        let threads = [(); 3].map(|()| {
            scope.spawn(|| {
                let mut admitted = 0;
                while !is_over.load(Relaxed) {
                    admitted += u64::from(matches!(limiter.attempt("", 1).unwrap(), Attempt::Admitted(_)));
                }
                admitted
            })
        });
        for i in 0..2_000 {
            declare(if i % 2 == 0 { LARGE } else { SMALL }).open().unwrap();
            // So that decisions use the new cells, and are in progress when the next change comes.
            std::thread::sleep(Duration::from_micros(200));
        }
        is_over.store(true, Relaxed);
        threads.map(|thread| thread.join().unwrap()).iter().sum()
    });
    assert!(admitted <= LARGE, "{admitted}");
}
