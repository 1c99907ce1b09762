//! Keys with their own policies: tenants on plans.

use crate::common::{Child, Dir, Random, shared, wait_until};
use std::sync::atomic::Ordering::*;
use std::time::Duration;
#[cfg(feature = "fault-points")]
use workglow_limit::embed::MayWait;
use workglow_limit::embed::{Waiter, acquire};
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);

/// Runs a test with a store of one process, and with one of many. Their clock stands still.
fn on_both(name: &str, test: impl Fn(&dyn Fn() -> Store)) {
    let clock = ManualClock::new();
    let memory = with_clock("memory:", &clock);
    test(&|| memory.clone());
    let dir = Dir::in_memory(name);
    test(&|| with_clock(&dir.url(), &clock));
}

/// A store whose clock is moved by the test.
fn with_clock(url: &str, clock: &ManualClock) -> Store {
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    Store::with_options(url, options).unwrap()
}

/// How many starts of weight 1 are admitted before a denial.
fn drain(limiter: &dyn Limiter, key: &str) -> u64 {
    (0..100_000).take_while(|_| limiter.decide(key, 1).unwrap().admitted).count() as u64
}

fn limit(limiter: &dyn Limiter, key: &str) -> u64 {
    limiter.peek(key, 1).unwrap().limit
}

fn name_of<T: std::fmt::Debug>(answer: Result<T>) -> &'static str {
    answer.unwrap_err().name()
}

/// A policy of each kind, with others of the same kind that have a smaller and a larger limit.
const KINDS: [[&str; 3]; 8] = [
    ["4/1h", "2/1h", "9/1h"],
    ["4/1h", "5000/1h", "9000/2h"],
    ["5/1h + 9/2h", "4/1h", "7/1h + 8/2h"],
    ["4/1h burst 4", "4/1h burst 2", "4/1h burst 9"],
    ["4/1h queue 4", "4/1h queue 2", "4/1h queue 9"],
    ["4/366d fixed", "2/366d fixed", "9/366d fixed"],
    ["4/366d counter", "2/366d counter", "9/366d counter"],
    ["4 concurrent", "2 concurrent", "90 concurrent"],
];

#[test]
fn a_key_follows_its_own_policy_and_other_keys_the_limits() {
    on_both("own", |store| {
        for (i, [text, smaller, larger]) in KINDS.into_iter().enumerate() {
            let name = format!("{i}");
            let (here, there) = (store(), store());
            let limiter = here.limiter(&name, text).unwrap();
            limiter.open().unwrap();
            let found = there.find(&name).unwrap();
            let (usual, most) = (limit(&*limiter, "usual"), text);
            for (own, key) in [(smaller, "smaller"), (larger, "larger")] {
                // Before its first use.
                there.override_limit(&name, own, Some(key)).unwrap();
                let alone = with_clock("memory:", &ManualClock::new()).limiter("alone", own).unwrap();
                assert_eq!(limit(&*limiter, key), limit(&*alone, ""), "{own} above {most}");
                assert_eq!(drain(&*limiter, key), drain(&*alone, ""), "{own} above {most}");
                assert!(!found.peek(key, 1).unwrap().admitted, "{own} above {most}");
            }
            assert_eq!(limit(&*found, "usual"), usual, "{text}");
            assert_eq!(limit(&*found, ""), usual, "{text}");
        }
    });
}

#[test]
fn starts_count_when_a_keys_policy_changes() {
    on_both("counts", |store| {
        for (i, text) in ["5/1h", "5/366d fixed", "5 concurrent", "5/1h burst 5"].into_iter().enumerate() {
            let (name, of) = (format!("{i}"), |n: u64| text.replacen('5', &n.to_string(), 1));
            let of = |n| if text.contains("burst") { format!("5/1h burst {n}") } else { of(n) };
            let limiter = store().limiter(&name, text).unwrap();
            assert_eq!(drain(&*limiter, "key"), 5);
            let put = |n| store().override_limit(&name, &of(n), Some("key")).unwrap();
            put(3);
            let decision = limiter.decide("key", 1).unwrap();
            assert_eq!((decision.admitted, decision.limit, decision.remaining), (false, 3, 0), "{text}: lowered");
            put(8);
            assert_eq!((drain(&*limiter, "key"), limit(&*limiter, "key")), (3, 8), "{text}: raised");
            put(70);
            assert_eq!(drain(&*limiter, "key"), 62, "{text}: raised again");
            store().lift(&name, Some("key")).unwrap();
            assert_eq!((drain(&*limiter, "key"), limit(&*limiter, "key")), (0, 5), "{text}: lifted");
            limiter.clear("key").unwrap();
            assert_eq!(drain(&*limiter, "key"), 5, "{text}: cleared");
        }
    });
}

#[test]
fn a_keys_policy_survives_changes_of_its_limit() {
    on_both("stays", |store| {
        let limiter = store().limiter("api", "5/1h").unwrap();
        limiter.open().unwrap();
        store().override_limit("api", "7/1h", Some("used")).unwrap();
        store().override_limit("api", "8/1h", Some("idle")).unwrap();
        assert_eq!(drain(&*limiter, "used"), 7);
        let limits = || ["used", "idle", "other"].map(|key| limit(&*limiter, key));
        store().limiter("api", "6/1h").unwrap().open().unwrap();
        assert_eq!(limits(), [7, 8, 6], "declared again");
        store().override_limit("api", "2/1h", None).unwrap();
        assert_eq!(limits(), [7, 8, 2], "overridden");
        store().lift("api", None).unwrap();
        assert_eq!(limits(), [7, 8, 6], "lifted");
        assert_eq!(drain(&*limiter, "used"), 0, "it keeps counting");
        let both = store().limiter("api", "6/1h + 9 concurrent").unwrap();
        both.open().unwrap();
        assert_eq!(drain(&*both, "idle"), 8, "as a part of a composite");
        store().override_limit("api", "3 concurrent", Some("new")).unwrap();
        assert_eq!(drain(&*both, "new"), 3, "of the part of its kind");
        assert_eq!(drain(&*store().find("api/rate").unwrap(), "new"), 3, "of six");
        both.clear("").unwrap();
        assert_eq!((drain(&*both, "used"), drain(&*both, "idle"), drain(&*both, "other")), (7, 8, 6), "cleared");
        store().lift("api", Some("used")).unwrap();
        store().lift("api", Some("never seen")).unwrap();
        assert_eq!(limit(&*store().find("api/rate").unwrap(), "used"), 6);
        store().forget("api").unwrap();
        let again = store().limiter("api", "6/1h").unwrap();
        again.open().unwrap();
        assert_eq!(limit(&*again, "idle"), 6, "forgotten with its limit");
        store().override_limit("api", "7/1h", Some("idle")).unwrap();
        store().forget("api").unwrap();
        let other = store().limiter("api", "4 concurrent").unwrap();
        // It is the limit that was a part before.
        assert_eq!((drain(&*other, "fresh"), limit(&*other, "idle")), (4, 4), "another kind");
    });
}

#[test]
fn an_invalid_policy_for_a_key_is_an_error_without_effect() {
    on_both("invalid", |store| {
        let store = store();
        let limiter = store.limiter("api", "5/1h").unwrap();
        let both = store.limiter("both", "5/1h + 2 concurrent").unwrap();
        limiter.open().unwrap();
        both.open().unwrap();
        let message = |answer: Result<()>| answer.unwrap_err().to_string();
        for key in [String::new(), "k".repeat(1_025)] {
            let errors = [store.override_limit("api", "6/1h", Some(&key)), store.lift("api", Some(&key))].map(message);
            assert!(errors.iter().all(|error| error.starts_with("key is ")), "{errors:?}");
        }
        assert!(message(store.override_limit("api", "six", Some("key"))).starts_with("policy is \"six\""));
        assert_eq!(name_of(store.override_limit("nothing", "6/1h", Some("key"))), "unknown_limit");
        assert_eq!(name_of(store.lift("nothing", Some("key"))), "unknown_limit");
        assert_eq!(name_of(store.override_limit("api", "6 concurrent", Some("key"))), "kind_mismatch");
        assert!(message(store.override_limit("api", "6/1h + 6 concurrent", Some("key"))).starts_with("policy is "));
        assert!(
            message(store.override_limit("both", "9 concurrent + delay 1s", Some("key"))).starts_with("policy is ")
        );
        assert_eq!((limit(&*limiter, "key"), limit(&*both, "key")), (5, 2));
        let longest = "k".repeat(1_024);
        store.override_limit("api", "6/1h", Some(&longest)).unwrap();
        assert_eq!((drain(&*limiter, &longest), drain(&*limiter, &longest[1..])), (6, 5));
        assert_eq!(name_of(limiter.attempt("key", 6)), "weight_exceeds_capacity");
        assert!(matches!(limiter.attempt(&"k".repeat(1_025), 1), Err(Error::InvalidArgument { .. })));
    });
}

#[test]
fn an_idle_key_is_forgotten_but_keeps_its_policy() {
    let dir = Dir::in_memory("idle");
    for url in ["memory:", &dir.url()] {
        let clock = ManualClock::new();
        let store = with_clock(url, &clock);
        for (i, [text, _, own]) in [KINDS[0], KINDS[1], KINDS[3], KINDS[7]].into_iter().enumerate() {
            let name = format!("{i}");
            let limiter = store.limiter(&name, text).unwrap();
            limiter.open().unwrap();
            store.override_limit(&name, own, Some("tenant")).unwrap();
            let (most, usual) = (limit(&*limiter, "tenant"), limit(&*limiter, "other"));
            for round in 0..3 {
                assert_eq!(drain(&*limiter, "tenant"), most, "{text}, {round}");
                // Leases without an end.
                limiter.clear("tenant").unwrap();
                clock.advance(30 * HOUR);
                // So many that the index grows, and then makes space.
                for key in 0..200 {
                    assert!(limiter.decide(&format!("{round} {key}"), 1).unwrap().admitted);
                    limiter.clear(&format!("{round} {key}")).unwrap();
                    clock.advance(3 * HOUR);
                }
                assert_eq!((limit(&*limiter, "tenant"), limit(&*limiter, "other")), (most, usual), "{text}, {round}");
            }
        }
    }
}

#[test]
fn permits_and_places_of_a_key_outlive_its_policies() {
    on_both("permits", |store| {
        for text in ["4/1h", "4/1h burst 4", "4/366d fixed"] {
            let name = text.split_whitespace().last().unwrap();
            let own = |n: u64| {
                if text.contains("burst") { format!("4/1h burst {n}") } else { text.replacen('4', &n.to_string(), 1) }
            };
            let limiter = store().limiter(name, text).unwrap();
            let first = limiter.decide("key", 1).unwrap().permit.unwrap();
            store().override_limit(name, &own(2), Some("key")).unwrap();
            let second = limiter.decide("key", 1).unwrap().permit.unwrap();
            assert_eq!(limiter.peek("key", 1).unwrap().remaining, 0);
            if text == "4/1h" {
                limiter.cancel(&first).unwrap();
                assert_eq!(limiter.peek("key", 1).unwrap().remaining, 1, "{text}: taken before, given back after");
            }
            store().lift(name, Some("key")).unwrap();
            if text == "4/1h" {
                limiter.cancel(&second).unwrap();
                assert_eq!(limiter.peek("key", 1).unwrap().remaining, 4, "{text}: both ways");
            }
            drain(&*limiter, "key");
            let Reserved::Place { place, .. } = limiter.reserve("key", 1, None, None).unwrap() else { continue };
            let written = limiter.to_text(&place).unwrap();
            store().override_limit(name, &own(9), Some("key")).unwrap();
            let place = store().find(name).unwrap().permit_from_text(&written).unwrap();
            // The same place is still to come. It is exchanged when its time has come.
            assert!(matches!(store().find(name).unwrap().attempt("key", 1).unwrap(), Attempt::Admitted(_)));
            drop((place, limiter));
        }
    });
}

/// Starts in slices have no text, starts in a log do. The key's policy decides.
#[test]
fn a_start_has_a_text_if_its_keys_policy_allows() {
    let store = Store::new("memory:").unwrap();
    let limiter = store.limiter("api", "4/1h").unwrap();
    limiter.open().unwrap();
    store.override_limit("api", "5000/1h", Some("sliced")).unwrap();
    let start = |key: &str| limiter.decide(key, 1).unwrap().permit.unwrap();
    assert!(limiter.to_text(&start("logged")).is_ok());
    assert_eq!(name_of(limiter.to_text(&start("sliced"))), "unsupported");
}

/// Under the limit's policy, the second start would wait for an hour.
#[test]
fn waiters_for_a_key_follow_its_policy() {
    let store = Store::new("memory:").unwrap();
    let limiter = store.limiter("api", "1/1h").unwrap();
    limiter.open().unwrap();
    store.override_limit("api", "2/50ms", Some("key")).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..7 {
            let wait = || {
                let waiter = Waiter::new("key", 1).timeout(Some(Duration::from_secs(50)));
                assert!(matches!(acquire(&*limiter, waiter).unwrap(), Attempt::Admitted(_)));
            };
            scope.spawn(wait);
        }
    });
    assert_eq!(drain(&*limiter, "other"), 1);
}

#[test]
fn adaptive_spacing_of_a_key_follows_its_jobs() {
    let clock = ManualClock::new();
    let store = with_clock("memory:", &clock);
    let limiter = store.limiter("api", "10/10s spaced strictly").unwrap();
    limiter.open().unwrap();
    store.override_limit("api", "10/10s spaced", Some("key")).unwrap();
    let apart = |key: &str| {
        let permit = limiter.decide(key, 1).unwrap().permit.unwrap();
        clock.advance(Duration::from_millis(900));
        limiter.complete(&permit).unwrap();
        limiter.peek(key, 1).unwrap().retry_after
    };
    assert_eq!(apart("other"), Duration::from_millis(100));
    clock.advance(HOUR);
    apart("key");
    clock.advance(Duration::from_millis(100));
    assert_eq!(apart("key"), Duration::ZERO, "the last job took as long");
}

#[test]
fn ten_thousand_keys_can_have_their_own_policies() {
    const KEYS: u64 = 10_000;
    // Tests that run in parallel use the same process's lock.
    let mut options = StoreOptions::default();
    options.timeout = Duration::from_secs(60);
    let store = Store::with_options("memory:", options).unwrap();
    let limiter = store.limiter("api", "5/1h").unwrap();
    limiter.open().unwrap();
    for key in 0..KEYS {
        store.override_limit("api", &format!("{}/1h", 6 + key % 1_000), Some(&format!("{key}"))).unwrap();
    }
    for key in 0..KEYS {
        assert_eq!(limit(&*limiter, &format!("{key}")), 6 + key % 1_000);
        assert!(matches!(limiter.attempt(&format!("{key}"), 6).unwrap(), Attempt::Admitted(_)));
        assert_eq!(limit(&*limiter, &format!("other {key}")), 5);
    }
    store.limiter("api", "4/1h").unwrap().open().unwrap();
    limiter.clear("").unwrap();
    for key in (0..KEYS).step_by(7) {
        assert_eq!(
            (limit(&*limiter, &format!("{key}")), limit(&*limiter, &format!("other {key}"))),
            (6 + key % 1_000, 4)
        );
        store.lift("api", Some(&format!("{key}"))).unwrap();
        assert_eq!(limit(&*limiter, &format!("{key}")), 4);
    }
}

/// Starts that others decided are recorded, however small the key's policy is.
#[test]
fn a_key_records_more_starts_than_its_policy_allows() {
    let store = Store::new("memory:").unwrap();
    let limiter = store.limiter("gpu", "500 concurrent").unwrap();
    limiter.open().unwrap();
    store.override_limit("gpu", "1 concurrent", Some("key")).unwrap();
    (0..300).for_each(|_| limiter.record_job_start("key").unwrap());
    assert_eq!((limit(&*limiter, "key"), drain(&*limiter, "key")), (1, 0));
    assert_eq!(limiter.stats("").unwrap().policy_changes, 1);
    store.lift("gpu", Some("key")).unwrap();
    assert_eq!(drain(&*limiter, "key"), 200, "they count under the limit's policy, too");
    store.override_limit("gpu", "1 concurrent", Some("key")).unwrap();
    (0..500).for_each(|_| limiter.record_job_completion("key").unwrap());
    assert_eq!(drain(&*limiter, "key"), 0, "as many run without a record");
}

/// Setting policies repeatedly takes no space.
#[test]
fn policies_of_keys_leak_nothing() {
    let dir = Dir::in_memory("leak");
    let store = Store::new(&dir.url()).unwrap();
    let limiter = store.limiter("api", "100/1h").unwrap();
    limiter.open().unwrap();
    let size = || std::fs::metadata(dir.file("limits.db-lane")).unwrap().len();
    let mut sizes = Vec::new();
    for round in 0..1_000 {
        let key = format!("{}", round % 10);
        store.override_limit("api", ["200/1h", "50/1h"][round / 10 % 2], Some(&key)).unwrap();
        // Rings grow with the starts that they hold, and then no more.
        assert!(round >= 600 || limiter.decide(&key, 1).unwrap().admitted || round > 400);
        if round % 20 < 10 {
            store.lift("api", Some(&key)).unwrap();
        }
        sizes.push(size());
    }
    assert_eq!(sizes[600], sizes[999], "{sizes:?}");
}

#[test]
fn other_processes_and_children_see_a_keys_policy_at_once() {
    let dir = Dir::in_memory("processes");
    let url = dir.url();
    let store = Store::new(&url).unwrap();
    let limiter = store.limiter("api", "5/1h").unwrap();
    assert_eq!(drain(&*limiter, "mine"), 5);
    Child::run(|| {
        // A copy of the parent's limiter, and a limiter of its own.
        store.override_limit("api", "7/1h", Some("mine")).unwrap();
        let own = Store::new(&url).unwrap();
        own.override_limit("api", "8/1h", Some("new")).unwrap();
        assert_eq!((drain(&*limiter, "mine"), limit(&*limiter, "new")), (2, 8));
    })
    .join();
    assert_eq!((limit(&*limiter, "mine"), limit(&*limiter, "new")), (7, 8));
    assert_eq!((drain(&*limiter, "mine"), drain(&*limiter, "new")), (0, 8));
    let memory = Store::new("memory:").unwrap();
    let mine = memory.limiter("api", "5/1h").unwrap();
    mine.open().unwrap();
    memory.override_limit("api", "6/1h", Some("key")).unwrap();
    Child::run(|| {
        assert_eq!(limit(&*mine, "key"), 6, "its copy");
        memory.lift("api", Some("key")).unwrap();
        assert_eq!(limit(&*mine, "key"), 5);
    })
    .join();
    assert_eq!(limit(&*mine, "key"), 6, "which is not the parent's");
}

/// The lane follows the database, even if an older one is put in its place.
#[test]
fn a_restored_older_database_removes_unknown_policies() {
    let dir = Dir::in_memory("older");
    let url = dir.url();
    let limits = |url: &str| {
        let limiter = Store::new(url).unwrap().find("api").unwrap();
        ["a", "b", "c", "d"].map(|key| limit(&*limiter, key))
    };
    Child::run(|| {
        let store = Store::new(&url).unwrap();
        store.limiter("api", "5/1h").unwrap().open().unwrap();
        store.override_limit("api", "6/1h", Some("a")).unwrap();
        store.override_limit("api", "7/1h", Some("b")).unwrap();
    })
    .join();
    std::fs::copy(dir.file("limits.db"), dir.file("copy")).unwrap();
    Child::run(|| {
        let store = Store::new(&url).unwrap();
        store.lift("api", Some("a")).unwrap();
        store.override_limit("api", "8/1h", Some("b")).unwrap();
        store.override_limit("api", "9/1h", Some("c")).unwrap();
        store.override_limit("api", "4/1h", None).unwrap();
        assert_eq!(limits(&url), [4, 8, 9, 4]);
    })
    .join();
    // In place, like a backup tool.
    std::fs::copy(dir.file("copy"), dir.file("limits.db")).unwrap();
    Child::run(|| assert_eq!(limits(&url), [6, 7, 5, 5])).join();
}

#[test]
#[cfg(feature = "fault-points")]
fn a_keys_policy_survives_a_boot_and_a_lost_lane() {
    let dir = Dir::in_memory("survives");
    let url = dir.url();
    let all = |boot: u64, f: &dyn Fn(&dyn Limiter)| {
        Child::run(|| {
            crate::common::present_boot(boot);
            f(&*Store::new(&url).unwrap().find("api").unwrap());
        })
        .join();
    };
    Child::run(|| {
        crate::common::present_boot(1);
        let store = Store::new(&url).unwrap();
        let limiter = store.limiter("api", "100/1h").unwrap();
        limiter.open().unwrap();
        store.override_limit("api", "400/1h", Some("used")).unwrap();
        store.override_limit("api", "40/1h", Some("idle")).unwrap();
        store.override_limit("api", "400/1s", Some("quick")).unwrap();
        assert_eq!(drain(&*limiter, "used"), 400);
        store.flush().unwrap();
    })
    .join();
    // A twentieth of each key's capacity counts as lost.
    let after = |limiter: &dyn Limiter| {
        assert_eq!(["used", "idle", "other"].map(|key| limit(limiter, key)), [400, 40, 100]);
        assert_eq!(["used", "idle", "other"].map(|key| drain(limiter, key)), [0, 38, 95]);
    };
    all(2, &after);
    // And again as much for the next boot.
    all(3, &|limiter| assert_eq!(["used", "idle", "new"].map(|key| drain(limiter, key)), [0, 0, 95]));
    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    all(3, &|limiter| {
        assert_eq!(["used", "idle", "quick", "other"].map(|key| limit(limiter, key)), [400, 40, 400, 100]);
        wait_until("the quick one is free", || limiter.peek("quick", 1).unwrap().remaining == 400);
    });
}

/// A process that dies has changed nothing or everything, and its starts count.
#[test]
#[cfg(feature = "fault-points")]
fn a_death_during_a_change_of_a_keys_policy_leaves_nothing_half_done() {
    for point in ["deciding", "decided", "key-sealed", "key-written", "followed"] {
        for (is_used, has_own) in [(false, false), (true, false), (false, true), (true, true)] {
            let dir = Dir::in_memory("dying");
            let url = dir.url();
            let store = Store::new(&url).unwrap();
            let limiter = store.limiter("api", "5/1h").unwrap();
            limiter.open().unwrap();
            if has_own {
                store.override_limit("api", "6/1h", Some("key")).unwrap();
            }
            let used = if is_used { 3 } else { 0 };
            (0..used).for_each(|_| assert!(limiter.decide("key", 1).unwrap().admitted));
            let child = Child::run(|| {
                fault::at(point, || crate::common::raise(libc::SIGKILL));
                match has_own {
                    true => Store::new(&url).unwrap().lift("api", Some("key")).unwrap(),
                    false => Store::new(&url).unwrap().override_limit("api", "9/1h", Some("key")).unwrap(),
                }
            });
            let what = format!("{point}, used {is_used}, had its own {has_own}");
            // Keys without cells are not rewritten.
            let passes = is_used || !["key-sealed", "key-written"].contains(&point);
            assert_eq!(child.was_killed(), passes, "{what}");
            let expected = match (point, has_own) {
                ("deciding", true) => 6,
                (_, true) | ("deciding", false) => 5,
                _ => 9,
            };
            let found = Store::new(&url).unwrap().find("api").unwrap();
            assert_eq!(limit(&*found, "key"), expected, "{what}: the next process");
            assert_eq!(drain(&*limiter, "key"), expected - used, "{what}: the present process");
            assert_eq!(drain(&*found, "other"), 5, "{what}");
        }
    }
}

/// A smaller policy has a smaller budget. More than that may be missing if the machine stops at that moment.
#[test]
#[cfg(feature = "fault-points")]
fn units_missing_when_a_keys_policy_was_lowered_count_after_a_reboot() {
    for (point, is_lifted) in [("decided", false), ("followed", false), ("decided", true), ("followed", true)] {
        let dir = Dir::in_memory("lowered");
        let url = dir.url();
        let (limit, own) = if is_lifted { ("100/1h", "400/1h") } else { ("400/1h", "100/1h") };
        let [started, left] = shared(2) else { unreachable!() };
        Child::run(|| {
            crate::common::present_boot(1);
            let store = Store::new(&url).unwrap();
            let limiter = store.limiter("api", limit).unwrap();
            limiter.open().unwrap();
            if is_lifted {
                store.override_limit("api", own, Some("key")).unwrap();
            }
            assert!(limiter.peek("key", 1).is_ok());
            limiter.attempt("key", 1).unwrap();
            store.flush().unwrap();
            started.fetch_add(1, AcqRel);
            // As many as may be missing from the ledger: a caller that may not wait does not write.
            MayWait::Never.during(|| {
                while limiter.attempt("key", 1).is_ok() {
                    started.fetch_add(1, AcqRel);
                }
            });
        })
        .join();
        let started = started.load(Acquire);
        assert_eq!(started, 21, "one, and a twentieth of the limit");
        let child = Child::run(|| {
            crate::common::present_boot(1);
            fault::at(point, || crate::common::raise(libc::SIGKILL));
            match is_lifted {
                true => Store::new(&url).unwrap().lift("api", Some("key")).unwrap(),
                false => Store::new(&url).unwrap().override_limit("api", own, Some("key")).unwrap(),
            }
        });
        assert!(child.was_killed(), "{point}");
        Child::run(|| {
            crate::common::present_boot(2);
            left.store(drain(&*Store::new(&url).unwrap().find("api").unwrap(), "key"), Release);
        })
        .join();
        let left = left.load(Acquire);
        assert!(started + left <= 100, "{point}, {is_lifted}: {started} before the boot and {left} after it");
        assert!(started + left >= 95, "{point}, {is_lifted}: only {left} after the boot");
    }
}

/// The policies of many keys change, keys come and go, and other callers start on them all the time. No start exceeds
/// the largest policy that a key had.
#[test]
fn keys_change_their_policies_while_others_start_on_them() {
    const KEYS: u64 = 20;
    let dir = Dir::in_memory("storm");
    let url = dir.url();
    // Two busy processes on a busy machine may keep a third from the lock for seconds.
    let mut options = StoreOptions::default();
    options.timeout = Duration::from_secs(60);
    Store::with_options(&url, options.clone()).unwrap().limiter("api", "10/1h").unwrap().open().unwrap();
    let started = shared(KEYS as usize);
    let worker = |_| {
        Child::run(|| {
            let limiter = Store::with_options(&url, options.clone()).unwrap().find("api").unwrap();
            let mut random = Random::new();
            loop {
                let key = random.below(KEYS);
                if let Attempt::Admitted(permit) = limiter.attempt(&format!("{key}"), 1).unwrap() {
                    if random.below(3) == 0 {
                        limiter.cancel(&permit).unwrap();
                    } else {
                        started[key as usize].fetch_add(1, AcqRel);
                    }
                }
                // Other keys, for which the index grows.
                limiter.attempt(&format!("other {}", random.below(2_000)), 1).unwrap();
            }
        })
    };
    let workers: Vec<Child> = (0..2).map(worker).collect();
    let store = Store::with_options(&url, options).unwrap();
    let limiter = store.find("api").unwrap();
    let mut random = Random::new();
    let mut most = [10; KEYS as usize];
    for round in 0..150 {
        let key = random.below(KEYS);
        match random.below(6) {
            0 => store.lift("api", Some(&format!("{key}"))).unwrap(),
            1 => store.override_limit("api", &format!("{}/1h", 5 + random.below(6)), None).unwrap(),
            2 => store.lift("api", None).unwrap(),
            _ => {
                let own = [3, 20, 100, 5_000][random.below(4) as usize].min(20 + 10 * round);
                most[key as usize] = most[key as usize].max(own);
                store.override_limit("api", &format!("{own}/1h"), Some(&format!("{key}"))).unwrap();
                assert_eq!(limit(&*limiter, &format!("{key}")), own);
            }
        }
        let used = started[key as usize].load(Acquire);
        assert!(used <= most[key as usize], "{used} of {}", most[key as usize]);
    }
    store.override_limit("api", "5000/1h", Some("0")).unwrap();
    most[0] = 5_000;
    wait_until("a key has more than the limit's", || started[0].load(Acquire) > 100);
    drop(workers);
    for (key, started) in started.iter().enumerate() {
        let used = started.load(Acquire);
        assert!(used <= most[key], "{used} of {} on {key}", most[key]);
    }
}

/// A policy, another one of the same kind that allows less, and the number of used units of the first.
const LOWERED: [(&str, &str, u64); 10] = [
    ("100/1h", "20/1h", 70),
    ("100/1h", "20/1h", 100),
    ("9000/1h", "100/1h", 7_500),
    ("50000/1h", "5000/1h", 50_000),
    ("50000/1h", "5000/1h", 20_000),
    ("100/1h + 1000/1d", "20/1h + 1000/1d", 70),
    ("100/1d burst 100", "100/1d burst 3", 90),
    ("100/1h fixed", "20/1h fixed", 70),
    ("100/1h counter", "20/1h counter", 70),
    ("100 concurrent", "20 concurrent", 70),
];

/// Returned capacity is available at once, and no more than that.
#[test]
fn a_larger_policy_allows_what_a_smaller_one_denied() {
    let dir = Dir::in_memory("given-back");
    let url = dir.url();
    let clock = ManualClock::new();
    for (url, key) in [("memory:", None), ("memory:", Some("a")), (&*url, None), (&url, Some("a"))] {
        let store = with_clock(url, &clock);
        for (text, smaller, used) in LOWERED {
            let name = format!("{text}, {used}, {key:?}").replace('/', " per ");
            let limiter = store.limiter(&name, text).unwrap();
            limiter.open().unwrap();
            let take = |units: u64| {
                for begun in (0..units).step_by(500) {
                    assert!(limiter.decide(key.unwrap_or(""), 500.min(units - begun)).unwrap().admitted, "{text}");
                }
            };
            let remaining = || limiter.peek(key.unwrap_or(""), 1).unwrap().remaining;
            let set = |to| {
                key.map_or_else(
                    || store.override_limit(&name, to, None),
                    |key| store.override_limit(&name, to, Some(key)),
                )
            };
            let lift = || key.map_or_else(|| store.lift(&name, None), |key| store.lift(&name, Some(key)));
            // A counter knows nothing before its windows. Some starts leave the window before the others are made.
            clock.advance(100 * HOUR);
            take(used / 2);
            clock.advance(HOUR + HOUR / 2);
            take(used - used / 2);
            clock.advance(HOUR / 4);
            take((used / 2).min(remaining()));
            let room = remaining();
            for through in [&[smaller][..], &[smaller], &[smaller, text, smaller], &[smaller, text]] {
                through.iter().for_each(|to| set(to).unwrap());
                lift().unwrap();
                assert_eq!(remaining(), room, "{used} of {text}, {through:?} in between, {key:?}");
            }
            set(smaller).unwrap();
            assert_eq!(remaining(), 0, "{used} of {text}, now {smaller}, {key:?}");
        }
    }
}

/// A key moves, and another key gets its block, after its entry was read and before its block is.
#[cfg(feature = "fault-points")]
#[test]
fn a_key_that_moves_during_a_lookup_is_not_added_again() {
    // Fault points apply to a whole process.
    Child::run(|| {
        let store = Store::new("memory:").unwrap();
        let limiter = std::sync::Arc::new(RateLimiter::new(&store, "api", 7, Duration::from_secs(3_600)).unwrap());
        limiter.open().unwrap();
        ["key", "other"].iter().for_each(|key| store.override_limit("api", "5/1h", Some(key)).unwrap());
        let start = |key: &str| match limiter.attempt(key, 1).unwrap() {
            Attempt::Admitted(permit) => Some(permit),
            Attempt::Denied(_) => None,
        };
        let (started, other) = (start("key").unwrap(), start("other").unwrap());
        assert_eq!((0..9).filter(|_| start("key").is_some()).count(), 4);
        fault::at("entry-read", {
            let limiter = limiter.clone();
            move || [started, other].iter().for_each(|permit| limiter.cancel(permit).unwrap())
        });
        assert!(start("key").is_some(), "the start that was taken back");
        assert_eq!((0..9).filter(|_| start("key").is_some()).count(), 0);
    })
    .join();
}
