//! A store whose processes commit every start loses nothing with its lane: what was committed counts, and nothing else.
//!
//! Only children use SQLite here: another child could inherit a lock inside it.
#![cfg(feature = "fault-points")]

use crate::common::{Child, Dir, present_boot, raise, shared, wait_until, write_behind_up_to};
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use workglow_limit::embed::MayWait;
use workglow_limit::observe::Observer;
use workglow_limit::*;

fn store(dir: &Dir, durability: Durability) -> Store {
    let mut options = StoreOptions::default();
    (options.durability, options.timeout) = (durability, Duration::from_secs(60));
    Store::with_options(&dir.url(), options).unwrap()
}

fn take(limiter: &dyn Limiter, key: &str, most: u64) -> u64 {
    (0..most).take_while(|_| limiter.decide(key, 1).unwrap().admitted).count() as u64
}

/// Starts this many units in a process of its own, which then ends as with the machine: nothing is written later.
fn start(dir: &Dir, (boot, durability): (u64, Durability), all: &[(&str, &str, u64)]) {
    Child::run(|| {
        present_boot(boot);
        let store = store(dir, durability);
        for (policy, key, units) in all {
            assert_eq!(take(&*store.limiter(policy, policy).unwrap(), key, *units), *units, "{policy} {key}");
        }
    })
    .join();
}

/// What is left of these keys of a limit, as a process of a boot sees it that commits its starts.
fn left<const N: usize>(dir: &Dir, boot: u64, policy: &str, keys: [&str; N]) -> [u64; N] {
    let found = shared(N);
    Child::run(|| {
        present_boot(boot);
        let limiter = store(dir, Durability::Commit).limiter(policy, policy).unwrap();
        keys.iter().zip(found).for_each(|(key, left)| left.store(limiter.peek(key, 1).unwrap().remaining, Release));
    })
    .join();
    std::array::from_fn(|i| found[i].load(Acquire))
}

use Durability::{Budget, Commit};

const POLICIES: [(&str, u64); 8] = [
    ("1/1d", 1),
    ("100/1h", 100),
    ("100/1m", 100),
    ("10000/1h", 10_000),
    ("100/1h + 200/1d", 100),
    ("100/365d burst 100", 100),
    ("100/365d fixed", 100),
    ("100/30d counter", 100),
];

#[test]
fn after_a_boot_or_without_its_lane_what_was_committed_counts_and_nothing_else() {
    for is_boot in [true, false] {
        let dir = Dir::in_memory(&format!("committed-{is_boot}"));
        let used = |limit: u64| limit.div_ceil(20).min(11);
        let all: Vec<_> = POLICIES.iter().map(|(policy, limit)| (*policy, "used", used(*limit))).collect();
        start(&dir, (1, Commit), &all);
        for round in 1..4 {
            if !is_boot {
                std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
            }
            for (policy, limit) in POLICIES {
                let left = left(&dir, if is_boot { 1 + round } else { 1 }, policy, ["used", "unused", ""]);
                assert_eq!(left, [limit - used(limit), limit, limit], "{policy}, boot {is_boot}, round {round}");
            }
        }
    }
}

#[test]
fn a_lane_deleted_under_committing_processes_costs_nothing() {
    let dir = Dir::in_memory("deleted-under");
    Child::run(|| {
        let limiter = store(&dir, Commit).limiter("api", "100/1h").unwrap();
        assert_eq!(take(&*limiter, "", 50), 50);
        std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
        assert_eq!(take(&*limiter, "", 100), 50);
        assert_eq!(take(&*limiter, "key", 200), 100);
    })
    .join();
    assert!(dir.file("limits.db-lane").exists());
}

/// One process that does not commit is enough, whenever it came.
#[test]
fn starts_of_other_processes_may_be_missing() {
    for [first, second] in [[Commit, Budget], [Budget, Commit]] {
        for is_boot in [true, false] {
            let dir = Dir::in_memory("mixed");
            start(&dir, (1, first), &[("100/1h", "used", 4)]);
            start(&dir, (1, second), &[("100/1h", "used", 4)]);
            let boot = if is_boot { 2 } else { 1 };
            if !is_boot {
                std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
            }
            let open = || left(&dir, boot, "100/1h", ["unused"])[0] > 0;
            wait_until("it is open again", open);
            let left_then = left(&dir, boot, "100/1h", ["used", "unused"]);
            assert!(left_then[0] <= 92 && left_then[0] >= 87, "{left_then:?}");
            assert_eq!(left_then[1], 95);
            // Those of before are still missing, whoever comes later, but nothing else is.
            start(&dir, (boot, Commit), &[("100/1h", "used", 1)]);
            assert_eq!(left(&dir, 3, "100/1h", ["unused"]), [95]);
            let now = left(&dir, 3, "100/1h", ["used"])[0];
            assert!(now < left_then[0] && now + 6 >= left_then[0], "{now} after {left_then:?}");
        }
    }
}

#[test]
fn what_is_missing_counts_for_one_window() {
    const WINDOW: Duration = Duration::from_millis(2_500);
    let dir = Dir::in_memory("one-window");
    let policy = "20/2500ms";
    Child::run(|| {
        write_behind_up_to(Duration::ZERO);
        start(&dir, (1, Budget), &[(policy, "used", 1)]);
        left(&dir, 2, policy, ["unused"]);
        std::thread::sleep(WINDOW);
        assert_eq!(left(&dir, 3, policy, ["used", "unused"]), [20, 20]);
        start(&dir, (3, Commit), &[(policy, "used", 20)]);
        assert_eq!(left(&dir, 4, policy, ["unused"]), [20]);
        // A process that only looks starts nothing.
        Child::run(|| {
            present_boot(4);
            let mut observer = Observer::new(&Store::new(&dir.url()).unwrap(), 1);
            assert_eq!(observer.look().unwrap().limits.len(), 1);
        })
        .join();
        assert_eq!(left(&dir, 5, policy, ["unused"]), [20]);
    })
    .join();
}

/// An earlier version of the library knows no such record, and neither deletes it nor writes one.
#[test]
fn of_starts_by_an_earlier_version_any_may_be_missing() {
    for sql in ["DROP TABLE committed", "UPDATE store SET lane = '00000000000000aa'"] {
        let dir = Dir::in_memory("earlier");
        start(&dir, (1, Commit), &[("100/1h", "used", 5)]);
        assert_eq!(left(&dir, 2, "100/1h", ["used", "unused"]), [95, 100]);
        Child::run(|| rusqlite::Connection::open(dir.file("limits.db")).unwrap().execute_batch(sql).unwrap()).join();
        assert_eq!(left(&dir, 3, "100/1h", ["used", "unused"]), [90, 95], "{sql}");
        assert_eq!(left(&dir, 4, "100/1h", ["unused"]), [95], "{sql}");
    }
}

/// The machine may stop again while a lane is being made, or while a process records that it does not commit.
#[test]
fn a_death_between_two_steps_loses_no_start_and_withholds_no_more() {
    for point in ["lane-claimed", "lane-filled", "record-deleted"] {
        for durability in [Commit, Budget] {
            let dir = Dir::in_memory("between");
            start(&dir, (1, durability), &[("100/1h", "used", 5)]);
            for boot in 2..4 {
                let died = Child::run(|| {
                    present_boot(boot);
                    fault::at(point, || raise(libc::SIGKILL));
                    let limiter = store(&dir, Budget).limiter("100/1h", "100/1h").unwrap();
                    limiter.open().unwrap();
                })
                .was_killed();
                assert!(died, "{point}");
            }
            let left = left(&dir, 4, "100/1h", ["used", "unused"]);
            let what = format!("{point}, {durability:?}: {left:?}");
            // A process that had the right to start without a commit may have done so.
            match (durability, point) {
                (Commit, "lane-claimed" | "lane-filled") => assert_eq!(left, [95, 100], "{what}"),
                _ => assert!(left[1] == 95 && (85..=95).contains(&left[0]), "{what}"),
            }
        }
    }
}

/// Units that a settlement adds were once written with the next start.
#[test]
fn what_a_settlement_adds_is_committed() {
    for policy in ["100/1h", "10000/1h", "100/365d burst 100"] {
        let dir = Dir::in_memory("settled");
        Child::run(|| {
            present_boot(1);
            let limiter = store(&dir, Commit).limiter(policy, policy).unwrap();
            let permit = limiter.decide("key", 1).unwrap().permit.unwrap();
            limiter.settle(&permit, 41).unwrap();
        })
        .join();
        let [before, after] = [1, 2].map(|boot| left(&dir, boot, policy, ["key"])[0]);
        // Where units are only counted, a start that is rewritten may be written twice.
        assert!(after == before || after + 1 == before && policy == "10000/1h", "{policy}: {after} after {before}");
    }
}

/// A copy that lacks a single commit once passed as the database itself: the one that deletes the record of a lane, or the
/// last one with starts.
#[test]
fn a_copy_that_lacks_one_commit_is_noticed() {
    for renames in [true, false] {
        for has_record in [true, false] {
            let dir = Dir::in_memory("one-commit");
            let copy = dir.file("copy.db");
            // A call that must not wait leaves all duties.
            let boot = |boot: u64, durability, units: u64, ends: &dyn Fn(&Store)| {
                Child::run(|| {
                    present_boot(boot);
                    let store = store(&dir, durability);
                    let limiter = store.limiter("100/1h", "100/1h").unwrap();
                    assert_eq!(MayWait::Briefly.during(|| take(&*limiter, "used", units)), units);
                    ends(&store);
                })
                .join();
            };
            let flush = |store: &Store| store.flush().unwrap();
            // With the record: there is nothing but a lane. Without it, both have it no more.
            boot(1, if has_record { Commit } else { Budget }, if has_record { 0 } else { 2 }, &flush);
            std::fs::copy(dir.file("limits.db"), &copy).unwrap();
            boot(1, Budget, 4, if has_record { &|_| {} } else { &Store::look_after });
            match renames {
                true => std::fs::rename(&copy, dir.file("limits.db")).unwrap(),
                false => std::fs::write(dir.file("limits.db"), std::fs::read(&copy).unwrap()).unwrap(),
            }
            let used = if has_record { 4 } else { 6 };
            let what = format!("renames {renames}, has the record {has_record}");
            assert_eq!(left(&dir, 1, "100/1h", ["used"]), [100 - used], "{what}");
            // And at most a budget is missing after the next boot.
            boot(1, Budget, 0, &flush);
            let left = left(&dir, 2, "100/1h", ["used"])[0];
            assert!(left <= 100 - used, "{left} after a boot, {what}");
        }
    }
}

/// What the ledger lacked once had to be its newest: everything behind it was written again, and counted twice after the
/// next boot.
#[test]
fn starts_are_written_once() {
    const POLICY: &str = "100/1h";
    let dir = Dir::in_memory("written-once");
    start(&dir, (1, Budget), &[(POLICY, "", 4), (POLICY, "key", 4)]);
    start(&dir, (2, Commit), &[(POLICY, "", 20), (POLICY, "key", 20)]);
    // The budget that the first boot may have lost counts from then on, before those.
    start(&dir, (3, Commit), &[(POLICY, "", 1), (POLICY, "key", 1)]);
    let withheld = 4 + 2 * 5 + 5;
    for key in ["", "key"] {
        let [left] = left(&dir, 4, POLICY, [key]);
        assert!(left >= 100 - 21 - withheld, "{left} of {key:?}");
    }
}

/// So were the starts after one to which a settlement added units.
#[test]
fn starts_are_written_once_after_a_settlement() {
    for policy in ["100/1h", "10000/1h", "100/365d burst 100", "100/365d fixed"] {
        let dir = Dir::in_memory("settled-once");
        Child::run(|| {
            present_boot(1);
            let limiter = store(&dir, Commit).limiter(policy, policy).unwrap();
            let Attempt::Admitted(permit) = limiter.attempt("key", 10).unwrap() else { panic!("{policy}") };
            assert_eq!(take(&*limiter, "key", 20), 20);
            limiter.settle(&permit, 15).unwrap();
            assert_eq!(take(&*limiter, "key", 1), 1);
        })
        .join();
        let limit = if policy.starts_with("10000") { 10_000 } else { 100 };
        assert_eq!(left(&dir, 2, policy, ["key"]), [limit - 36], "{policy}");
    }
}
