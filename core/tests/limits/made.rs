//! Limiters that were made and not used yet. Calls by name once answered that no limit had their name.

use crate::common::{Child, Dir};
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::embed::MayWait;
use workglow_limit::observe::Observer;
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);

/// Runs a test in memory stores and in databases. Each call of the passed function returns a new store.
fn on_both(name: &str, test: impl Fn(&dyn Fn() -> Store)) {
    test(&|| Store::new("memory:").unwrap());
    let dir = Dir::in_memory(name);
    let number = std::cell::Cell::new(0);
    test(&|| {
        number.set(number.get() + 1);
        Store::new(&format!("sqlite:{}", dir.file(&format!("{}.db", number.get())).display())).unwrap()
    });
}

fn limit(store: &Store, name: &str) -> u64 {
    store.find(name).unwrap().peek("", 0).unwrap().limit
}

fn name_of(error: Result<impl Sized>) -> &'static str {
    error.err().expect("an error").name()
}

fn shown(store: &Store) -> Vec<String> {
    Observer::new(store, 5).look().unwrap().limits.into_iter().map(|limit| limit.name).collect()
}

#[test]
fn every_call_by_name_knows_them() {
    on_both("every", |new| {
        // Each is the first call of its store.
        let [override_it, lift, override_key, lift_key, forget, find, names, look] = [(); 8].map(|()| new());
        let stores = [&override_it, &lift, &override_key, &lift_key, &forget, &find, &names, &look];
        let made = stores.map(|store| {
            let all: [Arc<dyn Limiter>; 3] = [
                Arc::new(RateLimiter::new(store, "api", 5, HOUR).unwrap()),
                Arc::new(ConcurrencyLimiter::shared(store, "gpu", 2, None).unwrap()),
                store.limiter("both", "5/1h + 2 concurrent").unwrap(),
            ];
            all
        });
        override_it.override_limit("api", "9/1h", None).unwrap();
        assert_eq!(made[0][0].peek("", 1).unwrap().limit, 9, "its first use leaves the override above it");
        override_it.override_limit("both", "3 concurrent + 7/1h", None).unwrap();
        assert_eq!((limit(&override_it, "both/rate"), limit(&override_it, "both/concurrency")), (7, 3));
        for name in ["api", "gpu", "both"] {
            lift.lift(name, None).unwrap();
            lift_key.lift(name, Some("tenant")).unwrap();
            forget.forget(name).unwrap();
        }
        assert_eq!(forget.names().unwrap(), [""; 0]);
        override_key.override_limit("api", "9/1h", Some("tenant")).unwrap();
        assert_eq!((limit(&override_key, "api"), made[2][0].peek("tenant", 1).unwrap().limit), (5, 9));
        assert_eq!(limit(&find, "both/concurrency"), 2, "a part, by its own name");
        assert_eq!((limit(&find, "api"), limit(&find, "gpu")), (5, 2));
        assert_eq!(names.names().unwrap(), ["api", "both", "gpu"]);
        assert_eq!(shown(&look), ["api", "both/concurrency", "both/rate", "gpu"]);
        assert_eq!(shown(&names), shown(&look));
        for store in [&lift, &lift_key, &find] {
            assert_eq!(store.names().unwrap(), ["api", "both", "gpu"]);
        }
    });
}

#[test]
fn a_limiter_that_attaches_finds_them() {
    on_both("attach", |new| {
        let store = new();
        let early = [RateLimiter::attach(&store, "api").unwrap(), RateLimiter::attach(&store, "both/rate").unwrap()];
        assert_eq!(name_of(early[0].decide("", 1)), "unknown_limit");
        let _made = (RateLimiter::new(&store, "api", 5, HOUR).unwrap(), store.limiter("both", "4/1h + 1/1h fixed"));
        assert_eq!(early[0].stats("").unwrap().admitted, 0);
        assert_eq!(early.each_ref().map(|limiter| limiter.decide("", 1).unwrap().limit), [5, 4]);
    });
}

#[test]
fn the_last_one_holds_and_one_that_was_dropped_is_gone() {
    on_both("last", |new| {
        let store = new();
        let first = store.limiter("api", "5/1h").unwrap();
        let last = store.limiter("api", "2 concurrent").unwrap();
        drop(store.limiter("api", "7/1h").unwrap());
        assert_eq!(limit(&store, "api"), 2);
        assert_eq!(name_of(first.open()), "kind_mismatch");
        drop((first, last));
        assert_eq!(store.names().unwrap(), ["api"], "it is declared");

        let store = new();
        (0..1_000).for_each(|_| drop(store.limiter("api", "5/1h + 2 concurrent").unwrap()));
        for answer in [store.lift("api", None), store.forget("api"), store.override_limit("api", "9/1h", None)] {
            let expected = "no limit named \"api\" is declared: this store knows none yet";
            assert_eq!(answer.unwrap_err().to_string(), expected);
        }
        assert_eq!(store.names().unwrap(), [""; 0]);
    });
}

#[test]
fn a_forgotten_name_returns_when_it_is_used() {
    on_both("forgotten", |new| {
        let store = new();
        let all = ["5/1h", "6/1h", "7/1h"].map(|policy| store.limiter("api", policy).unwrap());
        store.forget("api").unwrap();
        assert_eq!(name_of(store.forget("api")), "unknown_limit");
        assert_eq!(name_of(store.lift("api", None)), "unknown_limit");
        assert_eq!(store.names().unwrap(), [""; 0]);
        assert_eq!(shown(&store), [""; 0]);
        assert_eq!(all[0].decide("", 1).unwrap().limit, 5);
        assert_eq!(store.names().unwrap(), ["api"]);
        // The name was used by one of them, and the others were not used since.
        store.forget("api").unwrap();
        assert_eq!(store.names().unwrap(), [""; 0]);

        // A part is not forgotten alone.
        let _both = store.limiter("both", "5/1h + 2 concurrent").unwrap();
        assert_eq!(name_of(store.forget("both/rate")), "unsupported");
        assert_eq!(store.names().unwrap(), ["both"]);
    });
}

/// Another program, or a later declaration, has the policy that applies. Only a use changes it.
#[test]
fn a_policy_that_applies_is_changed_by_the_first_use_only() {
    let dir = Dir::in_memory("applies");
    let (here, there) = (Store::new(&dir.url()).unwrap(), Store::new(&dir.url()).unwrap());
    let mine = here.limiter("api", "5/1h").unwrap();
    there.limiter("api", "7/1h").unwrap().open().unwrap();
    here.lift("api", None).unwrap();
    assert_eq!((here.names().unwrap(), shown(&here)), (vec!["api".into()], vec!["api".into()]));
    assert_eq!(limit(&here, "api"), 7);
    assert_eq!(mine.peek("", 1).unwrap().limit, 5);
    // Nor does a list make a part of what another name means.
    there.limiter("b/rate", "7/1h").unwrap().open().unwrap();
    let _both = here.limiter("b", "5/1h + 2 concurrent").unwrap();
    here.names().unwrap();
    assert_eq!(limit(&there, "b/rate"), 7);
}

#[test]
fn a_declaration_that_is_refused_is_reported_where_it_is_asked_for() {
    on_both("refused", |new| {
        let store = new();
        store.limiter("b/rate", "1/1h + 1 concurrent").unwrap().open().unwrap();
        let refused = store.limiter("b", "1/1h + 1 concurrent").unwrap();
        let _other = store.limiter("c", "1/1h").unwrap();
        assert_eq!(store.names().unwrap(), ["b/rate", "c"]);
        assert_eq!(shown(&store), ["b/rate/concurrency", "b/rate/rate", "c"]);
        let reason = "limit \"b/rate\" is declared as a composite limiter and cannot be opened as a rate limiter: use another name, or forget this one first";
        for answer in [store.lift("b", None), store.find("b").map(drop), refused.open()] {
            assert_eq!(answer.unwrap_err().to_string(), reason);
        }
    });
}

#[test]
fn an_unknown_name_is_answered_with_all_that_are_known() {
    on_both("known", |new| {
        let store = new();
        store.limiter("b", "1/1h").unwrap().open().unwrap();
        let _made = (store.limiter("c", "1/1h + 1 concurrent").unwrap(), store.limiter("a", "1/1h").unwrap());
        let error = store.lift("d", None).unwrap_err();
        assert_eq!(error.to_string(), "no limit named \"d\" is declared: this store knows a, b, c");
    });
}

#[test]
fn making_them_opens_nothing_and_no_call_waits_that_must_not() {
    let dir = Dir::in_memory("making");
    let store = Store::new(&dir.url()).unwrap();
    let all: Vec<_> = (0..200).map(|i| store.limiter(&format!("api-{i}"), "5/1h + 2 concurrent").unwrap()).collect();
    assert_eq!(dir.names(), [""; 0]);
    let answers =
        MayWait::Never.during(|| [store.lift("api-7", None), store.names().map(drop), store.find("api-7").map(drop)]);
    assert_eq!(answers.map(name_of), ["would_wait"; 3]);
    assert_eq!(dir.names(), [""; 0]);
    assert_eq!(store.names().unwrap().len(), all.len());

    let nowhere = Store::new("sqlite:/nowhere/at/all/limits.db").unwrap();
    let _made = nowhere.limiter("api", "5/1h").unwrap();
    assert_eq!([nowhere.lift("api", None), nowhere.names().map(drop)].map(name_of), ["store_failure"; 2]);
}

/// A store that cannot be written still shows what it has.
#[test]
fn a_list_does_not_fail_because_a_declaration_cannot_be_written() {
    let dir = Dir::in_memory("unwritten");
    let store = Store::new(&dir.url()).unwrap();
    store.limiter("api", "5/1h").unwrap().open().unwrap();
    let _made = store.limiter("mail", "5/1h").unwrap();
    let journal = dir.file("limits.db-journal");
    // With this in its place, the journal cannot be created, so commits fail, but reads work.
    std::os::unix::fs::symlink("/nowhere/at/all", &journal).unwrap();
    assert_eq!(store.names().unwrap(), ["api"]);
    assert_eq!(name_of(store.lift("mail", None)), "store_failure");
    std::fs::remove_file(&journal).unwrap();
    assert_eq!(store.names().unwrap(), ["api", "mail"]);
}

#[test]
fn a_forked_child_inherits_them() {
    let dir = Dir::in_memory("forked");
    let store = Store::new(&dir.url()).unwrap();
    let made = [store.limiter("api", "5/1h").unwrap(), store.limiter("mail", "5/1h").unwrap()];
    Child::run(|| {
        store.override_limit("api", "9/1h", None).unwrap();
        assert_eq!(store.names().unwrap(), ["api", "mail"]);
    })
    .join();
    assert_eq!(store.names().unwrap(), ["api", "mail"]);
    assert_eq!(made.map(|limiter| limiter.peek("", 1).unwrap().limit), [9, 5]);
}

/// Each is declared by a call of another thread, or used, or dropped by its own thread.
#[test]
fn threads_make_and_drop_them_while_others_list_them() {
    on_both("threads", |new| {
        let store = &new();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for i in 0..50 {
                        let name = format!("api-{thread}-{}", i % 5);
                        let made = store.limiter(&name, "5/1h + 2 concurrent").unwrap();
                        match i % 3 {
                            0 => store.lift(&name, None).unwrap(),
                            1 => made.open().unwrap(),
                            _ => drop(made),
                        }
                    }
                });
            }
            scope.spawn(|| (0..20).for_each(|_| assert!(store.names().unwrap().len() <= 20)));
            scope.spawn(|| (0..20).for_each(|_| assert!(shown(store).len() <= 40)));
        });
        assert_eq!((store.names().unwrap().len(), shown(store).len()), (20, 40));
    });
}
