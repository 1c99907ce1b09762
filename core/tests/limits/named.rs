//! Limits by name, text and file; and names whose meaning changes.

use crate::common::{Child, Dir};
use std::path::PathBuf;
use std::time::Duration;
use workglow_limit::embed::MAX_NAME_BYTES;
use workglow_limit::observe::Observer;
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);

/// Runs a test in a memory store and in a database. Each call of the passed function is another user of the same
/// limits.
fn on_both(name: &str, test: impl Fn(&dyn Fn() -> Store)) {
    let memory = Store::new("memory:").unwrap();
    test(&|| memory.clone());
    let dir = Dir::in_memory(name);
    test(&|| Store::new(&dir.url()).unwrap());
}

/// The number of starts of weight 1 before a denial, and the limit that denied.
fn drain(limiter: &dyn Limiter) -> (u32, String) {
    for admitted in 0..1_000 {
        let decision = limiter.decide("", 1).unwrap();
        if let Some(by) = decision.denied_by {
            return (admitted, by.to_string());
        }
    }
    panic!("no end of {}", limiter.name());
}

fn text(error: Result<impl Sized>) -> String {
    error.err().expect("an error").to_string()
}

fn name_of(error: Result<impl Sized>) -> &'static str {
    error.err().expect("an error").name()
}

#[test]
fn a_text_of_one_policy_is_a_limit_like_any_other() {
    on_both("one", |store| {
        let (here, there) = (store(), store());
        let limiter = here.limiter("api", "3/1h").unwrap();
        assert_eq!(limiter.name(), "api");
        assert_eq!(here.names().unwrap(), ["api"], "known before its first use");
        let same = RateLimiter::new(&there, "api", 3, HOUR).unwrap();
        assert!(same.decide("", 1).unwrap().admitted);
        assert_eq!(drain(&*limiter), (2, "api".into()));
        assert_eq!(drain(&*there.find("api").unwrap()), (0, "api".into()));
        for (text, kind) in [
            ("2 concurrent", "gpu"),
            ("delay 1h", "slow"),
            ("9/1h spaced", "even"),
            ("9/1h burst 3", "burst"),
            ("9/1h queue 3", "queue"),
            ("9/1h fixed", "fixed"),
            ("9/1h counter", "counter"),
        ] {
            here.limiter(kind, text).unwrap().open().unwrap();
            assert!(there.find(kind).unwrap().decide("", 1).unwrap().admitted, "{text}");
        }
        assert_eq!(there.names().unwrap(), ["api", "burst", "counter", "even", "fixed", "gpu", "queue", "slow"]);
    });
}

#[test]
fn a_text_of_several_policies_is_a_composite_with_named_parts() {
    on_both("several", |store| {
        let (here, there) = (store(), store());
        let limiter = here.limiter("api", "5/1h + 2 concurrent").unwrap();
        assert_eq!(limiter.name(), "api");
        assert_eq!(drain(&*limiter), (2, "api/concurrency".into()));
        assert_eq!(here.names().unwrap(), ["api"]);
        let found = there.find("api").unwrap();
        assert_eq!(found.name(), "api");
        assert_eq!(found.peek("", 0).unwrap().remaining, 0);
        found.clear("").unwrap();
        assert_eq!(found.peek("", 1).unwrap().remaining, 2);
        // A part on its own.
        assert_eq!(drain(&*there.find("api/rate").unwrap()), (5, "api/rate".into()));
        assert_eq!(found.decide("", 1).unwrap().denied_by.unwrap().as_ref(), "api/rate");
        assert_eq!(name_of(RateLimiter::attach(&there, "api").unwrap().open()), "kind_mismatch");
        let error = text(there.find("apis"));
        assert_eq!(error, "no limit named \"apis\" is declared: this store knows api");
        assert_eq!(name_of(there.find("")), "invalid_argument");
    });
}

#[test]
fn parts_of_the_same_kind_are_numbered() {
    on_both("numbered", |store| {
        let backoff = "backoff 2s x2 max 1m none";
        let limiter = store().limiter("api", &format!("9/1h {backoff} + 4/1h + 1/1h + 7 concurrent")).unwrap();
        assert_eq!(drain(&*limiter), (1, "api/rate-2".into()));
        for (name, remaining) in [("api/rate", 8), ("api/rate-2", 0), ("api/concurrency", 6)] {
            assert_eq!(store().find(name).unwrap().peek("", 0).unwrap().remaining, remaining, "{name}");
        }
        // A default backoff is omitted, and a declared text reads as it was written.
        let limiter = store().limiter("same", "9/1h backoff 1s x2 max 10m + 4/1h + 7 concurrent").unwrap();
        assert_eq!(drain(&*limiter), (4, "same/rate".into()));
        assert_eq!(drain(&*store().find("same").unwrap()), (0, "same/rate".into()));
    });
}

#[test]
fn a_shorter_text_removes_the_other_parts() {
    on_both("shorter", |store| {
        let (here, there) = (store(), store());
        let both = here.limiter("api", "5/1h + 2 concurrent").unwrap();
        assert_eq!(drain(&*both), (2, "api/concurrency".into()));
        let rate = there.limiter("api", "5/1h").unwrap();
        // The admitted starts keep counting, unlike those of the removed concurrency limit.
        assert_eq!(drain(&*rate), (3, "api".into()));
        assert_eq!(drain(&*here.find("api").unwrap()), (0, "api".into()));
        assert_eq!(here.names().unwrap(), ["api"]);
        assert_eq!(name_of(here.find("api/concurrency")), "unknown_limit");
        assert_eq!(name_of(here.find("api/rate")), "unknown_limit");
        // Users of the old composite are still bound by the same rate.
        assert_eq!(both.peek("", 1).unwrap().denied_by.unwrap().as_ref(), "api/rate");
        rate.clear("").unwrap();
        assert_eq!(drain(&*rate), (5, "api".into()));
        both.clear("").unwrap();
        assert_eq!(drain(&*both), (2, "api/concurrency".into()));
        assert_eq!(drain(&*rate), (3, "api".into()));
    });
}

#[test]
fn a_longer_text_keeps_the_state() {
    on_both("longer", |store| {
        let rate = RateLimiter::new(&store(), "api", 5, HOUR).unwrap();
        (0..3).for_each(|_| assert!(rate.decide("", 1).unwrap().admitted));
        let both = store().limiter("api", "4 concurrent + 5/1h").unwrap();
        assert_eq!(drain(&*both), (2, "api/rate".into()));
        assert_eq!(drain(&rate), (0, "api".into()));
        assert_eq!(store().names().unwrap(), ["api"]);
        // And again, with another part and other numbers.
        let three = store().limiter("api", "6/1h + 4 concurrent + delay 1us").unwrap();
        three.open().unwrap();
        store().find("api").unwrap();
        assert_eq!(store().find("api/rate").unwrap().peek("", 0).unwrap().remaining, 1);
        assert_eq!(rate.peek("", 0).unwrap().remaining, 1);
        // A plain declaration is a text of one policy.
        let plain = RateLimiter::new(&store(), "api", 7, HOUR).unwrap();
        assert_eq!(drain(&plain), (2, "api".into()));
        assert_eq!(name_of(store().find("api/delay")), "unknown_limit");
    });
}

fn left(store: &Store, name: &str) -> u64 {
    store.find(name).unwrap().peek("", 0).unwrap().remaining
}

#[test]
fn a_part_that_gets_a_name_keeps_its_starts() {
    on_both("first-name", |store| {
        let (here, there) = (store(), store());
        let before = here.limiter("api", "100/1h backoff 1s x2 max 1m none + 50/1h + 5 concurrent").unwrap();
        let start = |limiter: &dyn Limiter, weight| limiter.decide("", weight).unwrap().permit.expect("it is free");
        start(&*before, 5);
        here.override_limit("api/rate-2", "40/1h", Some("plan")).unwrap();
        let kinds = ["api/rate", "api/rate-2", "api/concurrency"].map(|name| left(&there, name));
        assert_eq!(kinds, [95, 45, 0]);
        // The same policies, some with names.
        let named =
            there.limiter("api", "requests: 100/1h backoff 1s x2 max 1m none + 50/1h + slots: 5 concurrent").unwrap();
        named.open().unwrap();
        assert_eq!(named.part_names(), ["requests", "rate-2", "slots"]);
        assert_eq!(["api/requests", "api/rate-2", "api/slots"].map(|name| left(&here, name)), [95, 45, 0]);
        assert_eq!(here.names().unwrap(), ["api"]);
        assert_eq!(name_of(here.find("api/rate")), "unknown_limit");
        assert_eq!(here.find("api").unwrap().part_names(), ["requests", "rate-2", "slots"]);
        // In another order, and with one more: a name keeps its limit.
        let text = "tokens: 50/1h + slots: 5 concurrent + new: 9/1h + requests: 100/1h backoff 1s x2 max 1m none";
        let moved = here.limiter("api", text).unwrap();
        moved.open().unwrap();
        let names = ["api/requests", "api/slots", "api/new", "api/tokens"];
        assert_eq!(names.map(|name| left(&there, name)), [95, 0, 9, 45], "tokens was rate-2, by its policy");
        // Another name at the same place, or none.
        here.limiter("api", "words: 50/1h + slots: 5 concurrent + new: 9/1h").unwrap().open().unwrap();
        there.find("api/new").unwrap().decide("", 2).unwrap();
        there.limiter("api", "words: 50/1h + 5 concurrent + 9/1h").unwrap().open().unwrap();
        assert_eq!(["api/words", "api/concurrency", "api/rate-2"].map(|name| left(&here, name)), [45, 0, 7]);
    });
    on_both("single-name", |store| {
        let plain = store().limiter("api", "9/1h").unwrap();
        assert!(plain.decide("", 2).unwrap().admitted);
        store().limiter("api", "requests: 9/1h").unwrap().open().unwrap();
        assert_eq!(left(&store(), "api/requests"), 7);
        assert_eq!(store().find("api").unwrap().part_names(), ["requests"]);
        store().limiter("api", "9/1h + tokens: 8/1h").unwrap().open().unwrap();
        assert_eq!(["api/rate", "api/tokens"].map(|name| left(&store(), name)), [7, 8]);
        let plain = store().limiter("api", "9/1h").unwrap();
        plain.open().unwrap();
        assert_eq!(left(&store(), "api"), 7);
    });
}

#[test]
fn an_override_finds_its_part_by_name() {
    on_both("named-override", |store| {
        let store = store();
        let api = store.limiter("api", "a: 5/1h + b: 5/1h + 5 concurrent").unwrap();
        store.override_limit("api", "b: 9/1h + 7 concurrent", None).unwrap();
        assert_eq!(["api/a", "api/b", "api/concurrency"].map(|name| left(&store, name)), [5, 9, 7]);
        store.override_limit("api", "b: 3/1h", Some("k")).unwrap();
        assert_eq!(api.peek("k", 0).unwrap().limit, 3);
        let error = text(store.override_limit("api", "c: 9/1h", None));
        assert!(error.ends_with("a name of a part of limit \"api\": api/a, api/b, api/concurrency"), "{error}");
        assert_eq!(name_of(store.override_limit("api", "a: 9 concurrent", None)), "kind_mismatch");
        store.lift("api", None).unwrap();
        assert_eq!(left(&store, "api/b"), 5);
        let error = text(store.limiter("x", "rate-2: 5/1h + 6/1h"));
        assert!(error.contains("two parts that are called \"x/rate-2\""), "{error}");
    });
}

/// Rebuilds the lane from the database, as after a reboot.
fn reboot(dir: &Dir) {
    use std::os::unix::fs::FileExt;
    let lane = std::fs::OpenOptions::new().write(true).open(dir.file("limits.db-lane")).unwrap();
    lane.write_all_at(&[0xee; 16], 4 * 8).unwrap();
}

#[test]
fn the_ledger_follows_the_name() {
    let dir = Dir::new("renamed");
    let texts = ["40/1h", "40/1h + 5 concurrent", "a: 40/1h + 5 concurrent", "40/1h", "40/1h + delay 1us"];
    let mut remaining = 40;
    for text in texts {
        Child::run(|| {
            let store = Store::new(&dir.url()).unwrap();
            let limiter = store.limiter("api", text).unwrap();
            limiter.decide("key", 1).unwrap().permit.expect(text);
            store.flush().unwrap();
        })
        .join();
        remaining -= 1;
        Child::run(|| {
            let store = Store::new(&dir.url()).unwrap();
            let name = ["api/rate", "api/a"].into_iter().find(|name| store.find(name).is_ok()).unwrap_or("api");
            let found = store.find(name).unwrap().peek("key", 0).unwrap().remaining;
            assert_eq!(found, remaining, "{text}");
        })
        .join();
        reboot(&dir);
        // A twentieth may have been forgotten.
        remaining -= 2;
    }
}

/// A process that dies while a limit is being renamed does not leave a second limit.
#[test]
#[cfg(feature = "fault-points")]
fn an_interrupted_rename_is_completed_later() {
    let texts = ["5/1h", "9 concurrent + 5/1h", "5/1h + 9 concurrent + 1000/1s burst 1000", "9 concurrent + a: 5/1h"];
    for (from, to) in texts.iter().flat_map(|from| texts.map(|to| (*from, to))).filter(|(from, to)| from != to) {
        if from.contains("concurrent") && to.contains("concurrent") && from.contains("a:") == to.contains("a:") {
            continue; // no limit is renamed
        }
        for point in ["decided", "followed"] {
            let dir = Dir::in_memory("dying");
            let declare = |text: &str| Store::new(&dir.url()).unwrap().limiter("api", text).unwrap();
            let first = declare(from);
            (0..3).for_each(|_| assert!(first.decide("", 1).unwrap().admitted));
            let child = Child::run(|| {
                fault::at(point, || crate::common::raise(libc::SIGKILL));
                declare(to).open().unwrap();
            });
            assert!(child.was_killed(), "{point}");
            let part = match to {
                to if to.contains("a:") => "api/a",
                to if to.contains('+') => "api/rate",
                _ => "api",
            };
            let found = Store::new(&dir.url()).unwrap().find(part).unwrap();
            assert_eq!(drain(&*found), (2, part.into()), "{from} to {to}, {point}");
            assert!(!first.peek("", 1).unwrap().admitted, "it is still the same limit");
            assert_eq!(drain(&*declare(from)).0, 0, "back again");
        }
    }
}

#[test]
fn limits_declared_together_are_seen_together() {
    on_both("at-once", |store| {
        let limiter = store().limiter("api", "5/1h + 2 concurrent + delay 1us").unwrap();
        assert!(limiter.decide("", 1).unwrap().admitted);
        for part in ["api", "api/rate", "api/concurrency", "api/delay"] {
            store().find(part).unwrap();
        }
    });
}

#[test]
fn another_kind_requires_forgetting_the_name_first() {
    on_both("kinds", |store| {
        let (here, there) = (store(), store());
        let rate = here.limiter("api", "2/1h").unwrap();
        assert_eq!(drain(&*rate), (2, "api".into()));
        for other in ["2 concurrent", "2 concurrent + delay 1s", "3/1h counter"] {
            assert_eq!(name_of(there.limiter("api", other).unwrap().open()), "kind_mismatch", "{other}");
        }
        let error = text(there.limiter("api", "2 concurrent + delay 1s").unwrap().open());
        assert_eq!(
            error,
            "limit \"api\" is declared as a rate limiter and cannot be opened as a composite limiter: use another name, or forget this one first"
        );
        there.forget("api").unwrap();
        assert_eq!(name_of(there.forget("api")), "unknown_limit");
        assert_eq!(name_of(there.find("api")), "unknown_limit");
        // The same kind keeps its state.
        assert_eq!(drain(&*there.limiter("api", "3/1h").unwrap()), (1, "api".into()));
        there.override_limit("api", &Policy::rate(9, HOUR).unwrap().to_string(), None).unwrap();
        there.forget("api").unwrap();
        let slow = there.limiter("api", "delay 1h").unwrap();
        assert_eq!(drain(&*slow), (1, "api".into()));
        for _ in 0..2 {
            for error in [rate.decide("", 1).err(), rate.peek("new", 1).err(), rate.pause(HOUR, "").err()] {
                let expected = "limit \"api\" is declared as a delay limiter and cannot be opened as a rate limiter: use another name, or forget this one first";
                assert_eq!(error.unwrap().to_string(), expected);
            }
        }
        assert!(slow.peek("new", 1).unwrap().admitted, "their gate is not this limit's");
        // Back again: the refused caller is admitted.
        here.forget("api").unwrap();
        assert_eq!(drain(&*here.limiter("api", "4/1h").unwrap()), (4, "api".into()));
        assert_eq!(drain(&*rate), (0, "api".into()));
        assert_eq!(name_of(slow.decide("", 1)), "kind_mismatch");
    });
}

#[test]
fn composites_are_forgotten_with_their_parts() {
    on_both("forgotten", |store| {
        store().limiter("api", "5/1h + 2 concurrent").unwrap().open().unwrap();
        store().limiter("mail", "5/1h").unwrap().open().unwrap();
        let error = text(store().forget("api/rate"));
        assert_eq!(error, "limit \"api/rate\" is a part of \"api\": forget \"api\" instead");
        let running = store().find("mail").unwrap();
        store().forget("api").unwrap();
        assert_eq!(store().names().unwrap(), ["mail"]);
        store().forget("mail").unwrap();
        assert_eq!(drain(&*running), (5, "mail".into()), "it keeps working without its declaration");
        assert_eq!(drain(&*store().limiter("mail", "7/1h").unwrap()), (2, "mail".into()));
        assert_eq!(drain(&*running), (0, "mail".into()));
        let error = text(store().find("api"));
        assert_eq!(error, "no limit named \"api\" is declared: this store knows mail");
        store().limiter("api", "delay 1h").unwrap().open().unwrap();
        assert_eq!(store().names().unwrap(), ["api", "mail"]);
    });
}

#[test]
fn names_with_slashes_are_ordinary_names() {
    on_both("slashes", |store| {
        let own = RateLimiter::new(&store(), "api/rate", 3, HOUR).unwrap();
        assert!(own.decide("", 1).unwrap().admitted);
        let plain = RateLimiter::new(&store(), "api", 5, HOUR).unwrap();
        assert_eq!(drain(&plain), (5, "api".into()));
        assert_eq!(drain(&own), (2, "api/rate".into()));
        assert_eq!(store().names().unwrap(), ["api", "api/rate"]);
        // A composite takes over a limit that has its part's name, but not another composite.
        let both = store().limiter("api", "4/1h + 9 concurrent").unwrap();
        assert_eq!(drain(&*both), (1, "api/rate".into()));
        store().limiter("b/rate", "1/1h + 1 concurrent").unwrap().open().unwrap();
        let error = text(store().limiter("b", "1/1h + 1 concurrent").unwrap().open());
        assert_eq!(
            error,
            "limit \"b/rate\" is declared as a composite limiter and cannot be opened as a rate limiter: use another name, or forget this one first"
        );
        let error = text(store().limiter("api/rate", "4/1h + 1 concurrent").unwrap().open());
        assert_eq!(
            error,
            "limit \"api/rate\" is declared as a rate limiter and cannot be opened as a composite limiter: use another name, or forget this one first"
        );
        assert_eq!(store().names().unwrap(), ["api", "b/rate"]);
    });
}

#[test]
fn an_operator_overrides_the_parts_of_a_composite() {
    on_both("override", |store| {
        let limiter = store().limiter("api", "5/1h + 2 concurrent").unwrap();
        limiter.open().unwrap();
        let limit = |part: &str| store().find(part).unwrap().peek("", 0).unwrap().limit;
        let limits = || (limit("api/rate"), limit("api/concurrency"));
        let operator = store();
        operator.override_limit("api", "3 concurrent + 7/1h", None).unwrap();
        assert_eq!(limits(), (7, 3));
        operator.override_limit("api", "1 concurrent", None).unwrap();
        assert_eq!(limits(), (7, 1));
        operator.override_limit("api", "1/1h", None).unwrap();
        assert_eq!(limits(), (1, 1));
        assert_eq!(drain(&*limiter), (1, "api/rate".into()));
        // The declared policy stays below.
        store().limiter("api", "6/1h + 2 concurrent").unwrap().open().unwrap();
        assert_eq!(limits(), (1, 1));
        for (wrong, expected) in [
            (
                "9/1h + delay 1s",
                "policy is \"delay 1s\": expected at most one policy for each part of limit \"api\": rate, concurrency",
            ),
            (
                "9/1h + 1/1h backoff 1s x3 max 2s + 9/1h",
                "policy is \"9/1h\": expected at most one policy for each part of limit \"api\": rate, concurrency",
            ),
            (
                "9/1h + 5 concurent",
                "policy is \"9/1h + 5 concurent\": expected /, per or concurrent (such as 100/1m, \"5 per second\" or 5 concurrent) at character 10, not \"concurent\"",
            ),
        ] {
            assert_eq!(text(operator.override_limit("api", wrong, None)), expected);
            assert_eq!(limits(), (1, 1), "nothing of it applies");
        }
        operator.lift("api", None).unwrap();
        operator.lift("api", None).unwrap();
        assert_eq!(limits(), (6, 2));
        assert_eq!(name_of(operator.override_limit("male", "1/1h", None)), "unknown_limit");
        assert_eq!(name_of(operator.lift("male", None)), "unknown_limit");
        // An override is removed with its part.
        operator.override_limit("api", "9/1h", None).unwrap();
        let rate = store().limiter("api", "6/1h").unwrap();
        assert_eq!(rate.peek("", 0).unwrap().limit, 9);
        assert_eq!(name_of(operator.override_limit("api", "1 concurrent", None)), "kind_mismatch");
        assert_eq!(name_of(operator.override_limit("api", "1/1h + 1 concurrent", None)), "invalid_argument");
        operator.lift("api", None).unwrap();
        assert_eq!(rate.peek("", 0).unwrap().limit, 6);
    });
}

#[test]
fn flow_control_is_a_rate_and_a_parallelism() {
    on_both("flow", |store| {
        let both = store().flow_control("both", Some((5, HOUR)), Some(2)).unwrap();
        assert_eq!(drain(&*both), (2, "both/concurrency".into()));
        let rate = store().flow_control("rate", Some((5, HOUR)), None).unwrap();
        assert_eq!(drain(&*rate), (5, "rate".into()));
        let parallel = store().flow_control("parallel", None, Some(3)).unwrap();
        assert_eq!(drain(&*parallel), (3, "parallel".into()));
        let error = text(store().flow_control("none", None, None));
        assert_eq!(error, "rate is missing, and so is parallelism: expected at least one of the two");
        let error = text(store().flow_control("none", Some((0, HOUR)), Some(3)));
        assert_eq!(error, "rate is 0: expected a whole number from 1 to 1000000000");
        let error = text(store().flow_control("none", Some((1, Duration::ZERO)), None));
        assert_eq!(error, "period is 0s: expected 1 µs to 366 days");
        let error = text(store().flow_control("none", Some((1, HOUR)), Some(0)));
        assert!(error.starts_with("parallelism is 0: expected a whole number from 1 to "), "{error}");
        assert_eq!(store().names().unwrap(), ["both", "parallel", "rate"]);
    });
}

#[test]
fn an_invalid_text_is_reported_before_anything_is_created() {
    on_both("wrong", |store| {
        for (wrong, expected) in [
            (
                "100/1m + 5 concurent",
                "policy is \"100/1m + 5 concurent\": expected /, per or concurrent (such as 100/1m, \"5 per second\" or 5 concurrent) at character 12, not \"concurent\"",
            ),
            ("100/1m + NaN concurrent", "at character 10, not \"NaN\""),
            ("100/1m + 0 concurrent", "expected max_concurrent_jobs at character 10 to be a whole number from 1 to "),
        ] {
            let error = text(store().limiter("api", wrong));
            assert!(error.contains(expected), "{error}");
        }
        for long in [MAX_NAME_BYTES, MAX_NAME_BYTES - 4] {
            let error = text(store().limiter(&"n".repeat(long), "1/1s + 1 concurrent"));
            assert!(error.starts_with("name is ") && error.ends_with("expected 1 to 1024 bytes of UTF-8"), "{error}");
        }
        assert_eq!(store().names().unwrap(), [""; 0]);
        let limiter = store().limiter("api", "100/1m + 5 concurrent").unwrap();
        let error = text(limiter.decide("", 6));
        assert!(error.starts_with("weight is 6: limit \"api/concurrency\" grants at most 5 units at once"), "{error}");
    });
}

#[test]
fn a_declaration_that_cannot_be_stored_does_not_apply() {
    let dir = Dir::in_memory("unnoted");
    let store = Store::new(&dir.url()).unwrap();
    store.limiter("api", "5/1h + delay 1us").unwrap().open().unwrap();
    store.limiter("mail", "5/1h").unwrap().open().unwrap();
    let limits = ["api/rate", "mail"].map(|name| store.find(name).unwrap());
    let hold = || limits.each_ref().map(|limit| limit.peek("", 0).unwrap().limit);
    let file = dir.file("limits.toml");
    std::fs::write(&file, "mail = '9/1h + 1 concurrent'\napi = '9/1h'").unwrap();
    let journal = dir.file("limits.db-journal");
    // With this in its place, the journal cannot be created, so commits fail, but reads work.
    std::os::unix::fs::symlink("/nowhere/at/all", &journal).unwrap();
    assert_eq!(name_of(store.load(&file)), "store_failure");
    assert_eq!(name_of(store.override_limit("api", "8/1h", None)), "store_failure");
    assert_eq!(name_of(store.limiter("mail", "7/1h").unwrap().open()), "store_failure");
    assert_eq!(name_of(store.forget("mail")), "store_failure");
    assert_eq!(hold(), [5, 5]);
    std::fs::remove_file(&journal).unwrap();
    assert_eq!(hold(), [5, 5]);
    store.load(&file).unwrap();
    assert_eq!(hold(), [9, 9]);
}

/// Writes a file and loads it.
fn load(store: &Store, dir: &Dir, content: &str) -> (PathBuf, Result<Vec<String>>) {
    let file = dir.file("limits.toml");
    std::fs::write(&file, content).unwrap();
    let loaded = store.load(&file);
    (file, loaded)
}

#[test]
fn a_file_declares_its_limits() {
    let dir = Dir::in_memory("file");
    on_both("loaded", |store| {
        let content = "openai = '100/1m + 5 concurrent' # both\n\
            [mail]\npolicy = \"delay 1h\"\n\
            [gpu]\nconcurrency = 3\n\
            [emails]\nallowed = 5\nperiod = \"1 hour\"\n\
            [stripe]\nallowed = 100\nperiod = \"1h\"\nburst = 20\n\
            [jobs]\nallowed = 0x10\nperiod = '1h'\nconcurrency = 1_0\n";
        let names = load(&store(), &dir, content).1.unwrap();
        assert_eq!(names, ["emails", "gpu", "jobs", "mail", "openai", "stripe"]);
        assert_eq!(store().names().unwrap(), names);
        for (name, limit) in
            [("emails", 5), ("gpu", 3), ("jobs/rate", 16), ("jobs", 10), ("mail", 1), ("openai", 5), ("stripe", 20)]
        {
            assert_eq!(store().find(name).unwrap().peek("", 0).unwrap().limit, limit, "{name}");
        }
        // Again, with fewer limits.
        assert_eq!(load(&store(), &dir, "jobs = '9/1h'").1.unwrap(), ["jobs"]);
        assert_eq!(store().find("jobs").unwrap().peek("", 0).unwrap().limit, 9);
        assert_eq!(load(&store(), &dir, "").1.unwrap(), [""; 0]);
        // All or none, even if only the store can detect the error.
        let (_, error) = load(&store(), &dir, "a = '1/1h'\nemails = '1 concurrent'\nz = '1/1h'");
        assert_eq!(name_of(error), "kind_mismatch");
        assert_eq!(store().names().unwrap(), names);
    });
}

#[test]
fn an_invalid_file_is_reported_and_declares_nothing() {
    let dir = Dir::in_memory("wrong-file");
    on_both("not-loaded", |store| {
        for (line, content, what, expected) in [
            (2, "[api]\nallowed = 0\nperiod = '1m'", "[api] allowed = 0", "a whole number from 1 to 1000000000"),
            (2, "[api]\nallowed = -5\nperiod = '1m'", "[api] allowed = -5", "a whole number of at least 1"),
            (2, "[api]\nallowed = nan\nperiod = '1m'", "[api] allowed = nan", "a whole number of at least 1"),
            (2, "[api]\nallowed = '5'\nperiod = '1m'", "[api] allowed = '5'", "a whole number of at least 1"),
            (3, "[api]\nallowed = 5\nperiod = 60", "[api] period = 60", "a time such as \"1m\""),
            (
                3,
                "[api]\nallowed = 5\nperiod = '1y'",
                "[api] period = '1y'",
                "a unit of one length (such as 1m or \"minute\", 30d or \"30 days\") at character 2, not \"y\"",
            ),
            (3, "[api]\nallowed = 5\nperiod = '1m 2'", "[api] period = '1m 2'", "the end at character 4, not \"2\""),
            (3, "[api]\nallowed = 5\nperiod = '0s'", "[api] period = '0s'", "1 µs to 366 days"),
            (
                4,
                "[api]\nallowed = 5\nperiod = '1s'\nburst = 0",
                "[api] burst = 0",
                "a whole number from 1 to 1000000000",
            ),
            (2, "[api]\nconcurrency = 1000000", "[api] concurrency = 1000000", "a whole number from 1 to "),
            (1, "[api]\nallowed = 5", "[api] has no period", "period, which goes with allowed and burst"),
            (
                2,
                "\n[api]\nburst = 5\nperiod = '1m'",
                "[api] has no allowed",
                "allowed, which goes with period and burst",
            ),
            (1, "[api]", "[api] is empty", "allowed and period, concurrency, or policy"),
            (
                2,
                "[api]\nlimit = 5",
                "[api] limit = 5",
                "one of the keys allowed, period, burst, concurrency, shared and policy",
            ),
            (
                2,
                "[api]\npolicy = '5 concurent'",
                "[api] policy = '5 concurent'",
                "/, per or concurrent (such as 100/1m, \"5 per second\" or 5 concurrent) at character 3, not \"concurent\"",
            ),
            (2, "[api]\npolicy = 5", "[api] policy = 5", "a policy such as \"100/1m\""),
            (1, "[api]\npolicy = '1/1s'\nconcurrency = 5", "[api] has policy and other keys", "policy alone"),
            (
                1,
                "api = '5/1s 5'",
                "api = '5/1s 5'",
                "burst, queue, fixed, counter, spaced, backoff, shared, + or the end at character 6, not \"5\"",
            ),
            (1, "api = 5", "api = 5", "a policy such as \"100/1m\", or a table"),
            (1, "'' = '1/1s'", "the name is empty", "1 to 1024 bytes of UTF-8"),
            (
                2,
                "api = '1/1s + 1 concurrent'\n'api/rate' = '1/1s'",
                "\"api/rate\" is two limits",
                "another name, since a part of a composite has this one",
            ),
            (
                2,
                "api = '1/1s + 1 concurrent'\n'api/rate' = '1/1s + 1 concurrent'",
                "\"api/rate\" is two limits",
                "another name, since a part of a composite has this one",
            ),
            (4, "[api]\nallowed = 5\nperiod = '1m'\nshared = 3", "[api] shared = 3", "true or false"),
            (3, "[api]\npolicy = '1/1s'\n[api]", "not TOML", "duplicate key"),
            (2, "[api]\nallowed 5", "not TOML", ""),
            (
                4,
                "[api]\nallowed = 5\nperiod = '1m'\n[api.partitions.tenant-7]\nallowed = 500",
                "[api] partitions = a table",
                "none: every key has a budget of its own, and one that needs another policy than \"api\" gets it by an override of that key",
            ),
        ] {
            let (file, loaded) = load(&store(), &dir, &format!("{content}\n"));
            let error = text(loaded);
            let before = format!("file is {}, line {line}: {what}: expected {expected}", file.display());
            assert!(error.starts_with(&before), "{content}\n{error}\n{before}");
        }
        let error = text(store().load(&dir.file("missing.toml")));
        assert!(error.contains("missing.toml: expected a TOML file (No such file"), "{error}");
        std::fs::write(dir.file("binary.toml"), [0xff, 0xfe]).unwrap();
        assert_eq!(name_of(store().load(&dir.file("binary.toml"))), "invalid_argument");
        assert_eq!(store().names().unwrap(), [""; 0]);
    });
}

#[test]
fn a_name_that_is_too_long_is_refused_by_its_length() {
    let (store, long) = (Store::new("memory:").unwrap(), "n".repeat(1 << 20));
    let policy = Policy::rate(1, Duration::from_secs(1)).unwrap();
    let refusals = [
        store.limiter(&long, "1/1s").map(drop),
        store.find(&long).map(drop),
        store.forget(&long),
        store.lift(&long, None),
        store.lift(&long, Some("key")),
        store.override_limit(&long, &policy.to_string(), None),
        store.override_limit(&long, "1/1s", None),
        store.override_limit(&long, "1/1s", Some("key")),
        Observer::new(&store, 0).history(&long, std::time::SystemTime::now()).map(drop),
    ];
    for refusal in refusals {
        let error = refusal.unwrap_err().to_string();
        assert_eq!(error, "name is 1048576 bytes long: expected 1 to 1024 bytes of UTF-8");
    }
}

#[test]
fn messages_quote_long_names_and_addresses_in_part() {
    let store = Store::new("memory:").unwrap();
    let limiters: Vec<_> = (0..1_000).map(|i| store.limiter(&format!("limit-{i}"), "1/1s").unwrap()).collect();
    let error = store.find(&"n".repeat(1_024)).map(drop).unwrap_err().to_string();
    assert!(error.len() < 1_000 && error.ends_with("limit-114, limit-115 and 980 more"), "{error}");
    drop(limiters);
    for url in ["memory:", "sqlite://", "redis:", "unknown:", ""] {
        let error = Store::new(&(url.to_owned() + &"x".repeat(1 << 20) + "\0")).and_then(|store| store.open());
        let error = error.unwrap_err().to_string();
        assert!(error.len() < 2_000, "{url}: {} bytes", error.len());
    }
}

#[test]
fn a_malformed_address_shows_no_password() {
    for (url, shown) in [
        ("redis:/user:secret@h", "redis:/…@h"),
        ("redis:user:secret@h:1", "redis:…@h:1"),
        ("redis://user:secret", "redis://user:…"),
        ("redis://user:secret/0", "redis://user:…/0"),
        ("user:secret@h", "user:…@h"),
        ("//secret@h", "…@h"),
        ("postgres:/secret@h@h2/db?password=secret&x=1", "postgres:/…@h2/db?x=1"),
        ("rediss//user:secret@h", "…@h"),
    ] {
        let error = Store::new(url).and_then(|store| store.open()).unwrap_err().to_string();
        assert!(error.contains(&format!("\"{shown}\"")) && !error.contains("secret"), "{url}: {error}");
    }
}
