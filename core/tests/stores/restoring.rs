//! A lane that is rebuilt from many starts is used before all of its keys are restored.
//!
//! Only children use SQLite here: another child could inherit a lock inside it.

use crate::common::random::seed;
use crate::common::{Child, Dir, Random, number, present_boot, raise, shared, wait_until};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use workglow_limit::embed::MayWait;
use workglow_limit::*;

/// Where the lane has the number of its last commit.
const COMMITTED: u64 = 487 * 8;

fn store_with(dir: &Dir, durability: Durability) -> Store {
    let mut options = StoreOptions::default();
    (options.durability, options.timeout) = (durability, Duration::from_secs(60));
    Store::with_options(&dir.url(), options).unwrap()
}

fn store(dir: &Dir) -> Store {
    store_with(dir, Durability::Commit)
}

fn take(limiter: &dyn Limiter, key: &str, most: u64) -> u64 {
    (0..most).take_while(|_| limiter.decide(key, 1).unwrap().admitted).count() as u64
}

fn left(limiter: &dyn Limiter, key: &str) -> u64 {
    limiter.peek(key, 1).unwrap().remaining
}

/// A process of the first boot, which then ends as with the machine.
fn before(dir: &Dir, f: impl Fn(&Store)) {
    Child::run(|| {
        present_boot(1);
        f(&store(dir));
    })
    .join();
}

/// A process of a later boot, which leaves all keys to their first use.
fn after(dir: &Dir, f: impl Fn(&Store)) -> Child {
    Child::run(|| {
        present_boot(2);
        fault::restore_at_once(0, true);
        f(&store(dir));
    })
}

const POLICIES: [(&str, u64); 6] = [
    ("100/1h", 100),
    ("10000/1h", 10_000),
    ("100/1h + 200/1d", 100),
    ("100/365d burst 100", 100),
    ("100/365d fixed", 100),
    ("100/30d counter", 100),
];

#[test]
fn a_key_is_restored_by_whoever_comes_first() {
    for is_boot in [true, false] {
        let dir = Dir::in_memory(&format!("first-use-{is_boot}"));
        before(&dir, |store| {
            for (policy, _) in POLICIES {
                let limiter = store.limiter(policy, policy).unwrap();
                (0..20).for_each(|i| assert_eq!(take(&*limiter, &format!("key {i}"), i), i));
                assert_eq!(take(&*limiter, "", 7), 7);
            }
        });
        if !is_boot {
            std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
        }
        let run = || {
            if is_boot {
                present_boot(2);
            } else {
                present_boot(1);
            }
            fault::restore_at_once(0, true);
            let store = store(&dir);
            for (policy, limit) in POLICIES {
                let limiter = store.limiter(policy, policy).unwrap();
                // Until then the users of the lost lane may not have noticed.
                wait_until("the limit is open", || limiter.decide("other", 1).unwrap().admitted);
                for i in 0..20 {
                    let (key, is) = (format!("key {i}"), limit - i);
                    match i % 5 {
                        0 => assert_eq!(left(&*limiter, &key), is, "{policy} {key}"),
                        1 => assert_eq!(limiter.decide(&key, 1).unwrap().remaining, is - 1, "{policy} {key}"),
                        2 => {
                            let Attempt::Admitted(permit) = limiter.attempt(&key, 3).unwrap() else {
                                panic!("{policy}")
                            };
                            limiter.cancel(&permit).unwrap();
                            assert_eq!(left(&*limiter, &key), is, "{policy} {key}");
                        }
                        3 => {
                            limiter.clear(&key).unwrap();
                            assert_eq!(left(&*limiter, &key), limit, "{policy} {key}");
                        }
                        _ => {
                            store.override_limit(policy, policy, Some(&key)).unwrap();
                            assert_eq!(left(&*limiter, &key), is, "{policy} {key}");
                        }
                    }
                    assert_eq!(left(&*limiter, &format!("new {i}")), limit, "{policy}");
                }
                assert_eq!(left(&*limiter, ""), limit - 7, "{policy}");
            }
        };
        Child::run(run).join();
    }
}

/// What a random sequence of calls uses.
#[derive(Debug, Clone, Copy)]
struct Mode {
    durability: Durability,
    policies: &'static [&'static str],
    clears: bool,
    /// How long ago the earlier boot was: a change of policy must be able to tell when something was started.
    minutes: i64,
}

/// Makes all starts older, in a child.
fn age(dir: &Dir, Mode { minutes, .. }: Mode) {
    let older =
        "UPDATE executions SET started_at = started_at - ?1, expires_at = expires_at - ?1, uptime = uptime - ?1";
    Child::run(|| {
        let database = rusqlite::Connection::open(dir.file("limits.db")).unwrap();
        database.execute(older, [minutes * 60_000_000]).unwrap();
    })
    .join();
}

/// A key that is cleared, and then makes space for another, counts a lost budget again, so what is left depends on the
/// order of keys. And if units are only counted, the ledger keeps those of the slice in which a key is cleared.
const MODES: [Mode; 5] = [
    Mode {
        durability: Durability::Commit,
        policies: &["20/1h", "100/1h", "40/30m", "30/2h + 60/1d"],
        clears: true,
        minutes: 25,
    },
    Mode {
        durability: Durability::Commit,
        policies: &["20/1h", "5000/6h", "9000/2h", "40/30m"],
        clears: false,
        minutes: 25,
    },
    Mode {
        durability: Durability::Budget,
        policies: &["20/1h", "100/1h", "9000/2h", "30/2h + 60/1d"],
        clears: false,
        minutes: 25,
    },
    Mode {
        durability: Durability::Commit,
        policies: &["60/365d burst 60", "100/365d burst 40", "20/200d burst 30"],
        clears: true,
        minutes: 10 * 24 * 60,
    },
    Mode {
        durability: Durability::Commit,
        policies: &["60/365d fixed", "100/365d fixed", "20/30d fixed", "40/7d fixed"],
        clears: true,
        minutes: 1,
    },
];

/// One step of such a sequence. Returns what the call answered.
fn step((store, mode): (&Store, Mode), limiter: &dyn Limiter, random: &mut Random, held: &mut Vec<RawPermit>) -> u64 {
    let key = format!("key {}", random.below(12));
    let (policy, clears) = (random.pick(mode.policies), mode.clears);
    match random.below(24) {
        0 => store.override_limit("api", policy, None).map(|()| 0).unwrap(),
        1 => store.lift("api", None).map(|()| 0).unwrap(),
        2 => store.override_limit("api", policy, Some(&key)).map(|()| 0).unwrap(),
        3 => store.lift("api", Some(&key)).map(|()| 0).unwrap(),
        4 if clears => limiter.clear(&key).map(|()| 0).unwrap(),
        5 if clears && random.chance(20) => limiter.clear("").map(|()| 0).unwrap(),
        6 => match held.pop() {
            Some(permit) => limiter.cancel(&permit).map(|()| 0).unwrap(),
            None => 0,
        },
        7..12 => left(limiter, &key),
        _ => match limiter.attempt(&key, 1 + random.below(6)).unwrap() {
            Attempt::Admitted(permit) => {
                held.push(permit);
                1
            }
            Attempt::Denied(_) => 0,
        },
    }
}

/// After a boot, two copies of a store answer the same, whether the keys are restored at once or at their first use.
/// (`ROUNDS=500` for a long run.)
#[test]
fn a_restored_key_is_as_if_it_had_been_restored_at_once() {
    const STEPS: usize = 60;
    for round in 0..number("ROUNDS", 25) {
        let (seed, mode) = (seed(), MODES[round as usize % MODES.len()]);
        let dirs = [0, 1].map(|i| Dir::in_memory(&format!("same-{i}")));
        Child::run(|| {
            present_boot(1);
            let (store, mut random, mut held) =
                (store_with(&dirs[0], mode.durability), Random::seeded(seed), Vec::new());
            let limiter = store.limiter("api", mode.policies[0]).unwrap();
            (0..STEPS).for_each(|_| assert!(step((&store, mode), &*limiter, &mut random, &mut held) < 10_000));
            store.flush().unwrap();
        })
        .join();
        age(&dirs[0], mode);
        std::fs::copy(dirs[0].file("limits.db"), dirs[1].file("limits.db")).unwrap();
        let answers = [0, 1].map(|i| {
            let answers = shared(STEPS + 24);
            let run = |boot: u64, at_once: u64, steps: usize| {
                Child::run(|| {
                    present_boot(boot);
                    fault::restore_at_once(at_once, true);
                    let (store, mut random, mut held) =
                        (store_with(&dirs[i], mode.durability), Random::seeded(seed + 1), Vec::new());
                    let limiter = store.limiter("api", mode.policies[0]).unwrap();
                    let first = if steps > 0 { 0 } else { STEPS + 12 };
                    for (n, answer) in answers[first..].iter().enumerate().take(steps + 12) {
                        let said = match n.checked_sub(steps) {
                            None => step((&store, mode), &*limiter, &mut random, &mut held),
                            Some(key) => left(&*limiter, &format!("key {key}")),
                        };
                        answer.store(said, Release);
                    }
                    store.flush().unwrap();
                })
                .join();
            };
            run(2, if i == 0 { 1_000_000 } else { 0 }, STEPS);
            // And the ledgers say the same. (A flush writes the budget that a restored key may have lost.)
            if mode.durability == Durability::Commit {
                run(3, 1_000_000, 0);
            }
            answers.iter().map(|answer| answer.load(Acquire)).collect::<Vec<_>>()
        });
        assert_eq!(answers[0], answers[1], "seed {seed}, {mode:?}");
    }
}

/// A store with this many keys of `100/1h`; key `i` has started `i` units, up to 50.
fn filled(dir: &Dir, keys: u64) {
    before(dir, |store| {
        let limiter = store.limiter("api", "100/1h").unwrap();
        for i in 0..keys {
            assert!(limiter.decide(&format!("key {i}"), (i % 50).max(1)).unwrap().admitted);
        }
        store.flush().unwrap();
    });
}

fn left_of(i: u64) -> u64 {
    100 - (i % 50).max(1)
}

fn is_indexed(dir: &Dir) -> bool {
    let count = "SELECT count(*) FROM sqlite_schema WHERE name = 'executions_by_key'";
    let database = rusqlite::Connection::open(dir.file("limits.db")).unwrap();
    database.query_row(count, [], |row| row.get::<_, i64>(0)).unwrap() > 0
}

#[test]
fn the_writer_of_the_ledger_restores_the_rest() {
    const KEYS: u64 = 700;
    let dir = Dir::in_memory("the-rest");
    filled(&dir, KEYS);
    after(&dir, |store| drop(store.limiter("api", "100/1h").unwrap().peek("key 0", 1).unwrap())).join();
    let run = || {
        assert!(is_indexed(&dir));
        present_boot(2);
        let store = store(&dir);
        let limiter = store.limiter("api", "100/1h").unwrap();
        wait_until("all keys are restored", || {
            limiter.decide("another", 1).unwrap();
            store.look_after();
            !is_indexed(&dir)
        });
        // So the ledger is not asked any more.
        let database = rusqlite::Connection::open(dir.file("limits.db")).unwrap();
        assert!(database.execute("DELETE FROM executions", []).unwrap() as u64 >= KEYS);
        let wrong: Vec<u64> = (0..KEYS).filter(|i| left(&*limiter, &format!("key {i}")) != left_of(*i)).collect();
        assert_eq!(wrong, []);
    };
    Child::run(run).join();
}

#[test]
fn many_processes_restore_a_key_once() {
    const KEYS: u64 = 30;
    let dir = Dir::in_memory("once");
    filled(&dir, KEYS);
    let (started, ready) = (shared(KEYS as usize), shared(1));
    let one = || {
        after(&dir, |store| {
            let limiter = store.limiter("api", "100/1h").unwrap();
            limiter.open().unwrap();
            ready[0].fetch_add(1, AcqRel);
            wait_until("all are ready", || ready[0].load(Acquire) == 6);
            for (i, started) in started.iter().enumerate() {
                started.fetch_add(take(&*limiter, &format!("key {i}"), 100), AcqRel);
            }
        })
    };
    let all: Vec<Child> = (0..6).map(|_| one()).collect();
    all.into_iter().for_each(Child::join);
    let started: Vec<u64> = started.iter().map(|started| started.load(Acquire)).collect();
    assert_eq!(started, (0..KEYS).map(left_of).collect::<Vec<_>>());
}

#[test]
fn a_death_while_keys_are_restored_changes_nothing() {
    const KEYS: u64 = 100;
    let points =
        ["lane-indexed", "lane-filled", "key-read", "key-allocated", "key-inserted", "rows-read", "rows-restored"];
    for point in points {
        let dir = Dir::in_memory(&format!("death-{point}"));
        filled(&dir, KEYS);
        let dies = Child::run(|| {
            present_boot(2);
            fault::restore_at_once(0, !point.starts_with("rows"));
            fault::at(point, || raise(libc::SIGKILL));
            let store = store(&dir);
            let limiter = store.limiter("api", "100/1h").unwrap();
            limiter.open().unwrap();
            (0..KEYS).for_each(|i| assert!(left(&*limiter, &format!("key {i}")) > 0));
            wait_until("it dies", || {
                store.look_after();
                false
            });
        });
        assert!(dies.was_killed(), "{point}");
        after(&dir, |store| {
            let limiter = store.limiter("api", "100/1h").unwrap();
            // A lane that was not finished is lost, and its users may not have noticed.
            wait_until("the limit is open", || limiter.decide("other", 1).unwrap().admitted);
            for i in 0..KEYS {
                assert_eq!(left(&*limiter, &format!("key {i}")), left_of(i), "{point}, key {i}");
            }
        })
        .join();
    }
}

/// However many keys strangers have made since, and whatever the bound is now.
#[test]
fn keys_are_restored_into_a_full_lane() {
    const KEYS: u64 = 700;
    for changes in [false, true] {
        let dir = Dir::in_memory("restored-into-full");
        filled(&dir, KEYS);
        Child::run(|| into_full(&dir, KEYS, changes)).join();
    }
}

fn into_full(dir: &Dir, keys: u64, changes: bool) {
    present_boot(2);
    fault::restore_at_once(0, true);
    let mut options = StoreOptions::default();
    (options.durability, options.timeout) = (Durability::Commit, Duration::from_secs(60));
    options.max_size = Some(2 << 20);
    let store = Store::with_options(&dir.url(), options).unwrap();
    let (limiter, other) = (store.limiter("api", "100/1h").unwrap(), store.limiter("other", "100/1h").unwrap());
    limiter.open().unwrap();
    if changes {
        store.override_limit("api", "90/1h", None).unwrap();
    }
    let fill = |limiter: &dyn Limiter| (0..).find_map(|i| limiter.attempt(&format!("new {i}"), 1).err()).unwrap();
    assert_eq!(fill(&*limiter).name(), "store_full");
    assert_eq!(fill(&*other).name(), "store_full");
    let less = if changes { 10 } else { 0 };
    // At their first use, with a policy of their own, and by the writer.
    for i in 0..50 {
        assert_eq!(left(&*limiter, &format!("key {i}")), left_of(i) - less);
    }
    store.override_limit("api", "200/1h", Some("key 60")).unwrap();
    assert_eq!(left(&*limiter, "key 60"), left_of(60) + 100);
    fault::restore_at_once(0, false);
    wait_until("all keys are restored", || {
        // The writer comes with a commit.
        drop(limiter.decide("key 1", 1));
        store.look_after();
        !is_indexed(dir)
    });
    for i in 70..keys {
        assert_eq!(left(&*limiter, &format!("key {i}")), left_of(i) - less);
    }
}

#[test]
fn a_key_whose_rows_were_read_before_a_clear_is_clear() {
    let dir = Dir::in_memory("cleared");
    filled(&dir, 10);
    after(&dir, |store| {
        let other = store.clone();
        let clear = move || other.limiter("api", "100/1h").unwrap().clear("").unwrap();
        fault::at("key-read", move || std::thread::spawn(clear).join().unwrap());
        assert_eq!(left(&*store.limiter("api", "100/1h").unwrap(), "key 9"), 100);
        // The others were cleared with it, though nothing has read them.
        assert_eq!(left(&*store.limiter("api", "100/1h").unwrap(), "key 8"), 100);
    })
    .join();
}

#[test]
fn a_call_that_must_not_wait_is_repeated_where_it_may() {
    let dir = Dir::in_memory("must-not-wait");
    filled(&dir, 10);
    after(&dir, |store| {
        let limiter = store.limiter("api", "100/1h").unwrap();
        limiter.open().unwrap();
        let never = |key| MayWait::Never.during(|| limiter.peek(key, 1).map(|seen| seen.remaining));
        for (key, left) in [("key 9", left_of(9)), ("new", 100)] {
            assert_eq!(never(key), Err(Error::WouldWait));
            assert_eq!(MayWait::Never.during(|| limiter.attempt(key, 1)), Err(Error::WouldWait));
            assert!(limiter.decide(key, 1).unwrap().admitted);
            assert_eq!(never(key), Ok(left - 1));
        }
    })
    .join();
}

#[test]
fn keys_are_restored_under_the_name_that_their_limit_has_now() {
    let dir = Dir::in_memory("renamed");
    filled(&dir, 20);
    after(&dir, |store| {
        let both = store.limiter("api", "100/1h + 5 concurrent").unwrap();
        assert_eq!(left(&*both, "key 12"), 5);
        let parts = store.limiter("api/rate", "100/1h").unwrap();
        (0..20).for_each(|i| assert_eq!(left(&*parts, &format!("key {i}")), left_of(i)));
    })
    .join();
}

/// As where its keys are in the lane: it has them if it is declared with the same kind again.
#[test]
fn another_kind_of_a_forgotten_name_restores_nothing() {
    for kind in ["100/1h", "100/1h burst 100"] {
        let dir = Dir::in_memory("forgotten");
        filled(&dir, 20);
        after(&dir, |store| {
            store.forget("api").unwrap();
            let again = store.limiter("api", kind).unwrap();
            for i in 0..20 {
                let is = if kind == "100/1h" { left_of(i) } else { 100 };
                assert_eq!(left(&*again, &format!("key {i}")), is, "{kind}");
            }
        })
        .join();
    }
}

/// The keys that were not restored yet are lost with the database.
#[test]
fn an_older_copy_of_the_ledger_closes_the_limits_whose_keys_it_lacks() {
    let dir = Dir::in_memory("older-copy");
    filled(&dir, 10);
    let copy = dir.file("copy.db");
    std::fs::copy(dir.file("limits.db"), &copy).unwrap();
    before(&dir, |store| {
        let limiter = store.limiter("api", "100/1h").unwrap();
        (0..10).for_each(|_| assert_eq!(take(&*limiter, "key 1", 3), 3));
    });
    after(&dir, |store| assert_eq!(left(&*store.limiter("api", "100/1h").unwrap(), "key 2"), 98)).join();
    std::fs::rename(&copy, dir.file("limits.db")).unwrap();
    after(&dir, |store| {
        let limiter = store.limiter("api", "100/1h").unwrap();
        let Attempt::Denied(after) = limiter.attempt("key 1", 1).unwrap() else { panic!("it was admitted") };
        assert!(after > Duration::from_secs(3_500), "{after:?}");
        limiter.clear("").unwrap();
        assert_eq!(left(&*limiter, "key 1"), 100);
    })
    .join();
}

/// Others write the ledger without the structure lock, so also while a process attaches their lane. It would take its
/// database for an older copy if it read that before the commit and the lane after it.
#[test]
fn a_commit_while_another_process_attaches_closes_nothing() {
    let dir = Dir::in_memory("attaching");
    filled(&dir, 10);
    let lane = dir.file("limits.db-lane");
    let committed = move || {
        let mut word = [0; 8];
        std::fs::File::open(&lane).unwrap().read_exact_at(&mut word, COMMITTED).unwrap();
        u64::from_le_bytes(word)
    };
    let words = shared(2);
    let (gathered, read) = (&words[0], &words[1]);
    let writer = after(&dir, |store| {
        let (limiter, committed) = (store.limiter("api", "100/1h").unwrap(), committed.clone());
        limiter.open().unwrap();
        fault::at("gathered", move || {
            gathered.store(committed(), Release);
            wait_until("another one has read the database", || read.load(Acquire) == 1);
        });
        assert_eq!(take(&*limiter, "another", 1), 1);
    });
    wait_until("a start is being written", || gathered.load(Acquire) > 0);
    after(&dir, |store| {
        let committed = committed.clone();
        fault::at("identity-read", move || {
            read.store(1, Release);
            wait_until("it is written", || committed() > gathered.load(Acquire));
        });
        assert_eq!(left(&*store.limiter("api", "100/1h").unwrap(), "key 2"), 98);
    })
    .join();
    writer.join();
}
