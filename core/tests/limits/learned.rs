//! Policies that programs learn from what a server says about its own limits.

use crate::common::limits::{clocked, patient};
use crate::common::{Dir, wait_until};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use workglow_limit::embed::Quota;
use workglow_limit::observe::{LimitSnapshot, Observer};
use workglow_limit::*;

const HOST: &str = "api.example.com";

fn per_minute(units: u64) -> Quota {
    Quota { units, window: Duration::from_secs(60), is_estimated: false }
}

fn estimated(units: u64, seconds: u64) -> Quota {
    Quota { units, window: Duration::from_secs(seconds), is_estimated: true }
}

fn policy(store: &Store, name: &str) -> String {
    seen(store, name).policy().to_string()
}

fn seen(store: &Store, name: &str) -> LimitSnapshot {
    let limits = Observer::new(store, 1).look().unwrap().limits;
    limits.into_iter().find(|limit| limit.name == name).unwrap()
}

fn holds(store: &Store, name: &str, policy: &str) {
    wait_until(policy, || seen(store, name).policy().to_string() == policy);
}

/// Has the store learn something else. What was said before has been done by then: one thread does it all, in order.
fn settled(store: &Store) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let limiter = store.limiter(&format!("last{}", NEXT.fetch_add(1, Relaxed)), "100/1m").unwrap();
    limiter.open().unwrap();
    limiter.learn(per_minute(77), HOST);
    holds(store, limiter.name(), "77/1m");
}

#[test]
fn a_server_s_numbers_become_an_override_that_says_where_it_is_from() {
    let dir = Dir::in_memory("learned");
    for url in ["memory:".to_owned(), dir.url()] {
        let store = patient(&url);
        let llm = store.limiter("llm", "requests: 100/1m + tokens: 9000/1m + 5 concurrent").unwrap();
        let parts: Vec<_> = llm.parts().into_iter().map(|(_, part)| part).collect();
        parts[0].attempt("", 60).unwrap();
        parts[0].learn(per_minute(500), HOST);
        holds(&store, "llm/requests", "500/1m");
        let limit = seen(&store, "llm/requests");
        assert_eq!(limit.overridden_by.as_deref(), Some("headers of api.example.com"));
        assert_eq!((limit.declared.to_string(), parts[0].peek("", 0).unwrap().remaining), ("100/1m".into(), 440));
        assert_eq!(seen(&store, "llm/tokens").overridden_by, None);
        // Slots are not what it counts.
        parts[2].learn(per_minute(500), HOST);
        // Another process finds it.
        if url != "memory:" {
            let other = patient(&url);
            let limiter = other.find("llm").unwrap();
            assert_eq!(limiter.parts()[0].1.peek("", 0).unwrap().limit, 500);
            assert_eq!(seen(&other, "llm/requests").overridden_by, limit.overridden_by);
            assert_eq!(seen(&other, "llm/concurrency").overridden_by, None);
        }
        // What is declared needs no override.
        parts[0].learn(per_minute(100), HOST);
        holds(&store, "llm/requests", "100/1m");
        assert_eq!(seen(&store, "llm/requests").overridden_by, None);
    }
}

#[test]
fn what_was_lifted_is_learned_again_when_the_server_says_something_else() {
    let store = Store::new("memory:").unwrap();
    let (limiter, other) = (store.limiter("api", "100/1m").unwrap(), store.limiter("other", "100/1m").unwrap());
    limiter.learn(per_minute(500), HOST);
    holds(&store, "api", "500/1m");
    store.lift("api", None).unwrap();
    limiter.learn(per_minute(500), HOST);
    (60..=61).for_each(|seconds| other.learn(estimated(300, seconds), HOST));
    holds(&store, "other", "300/1m");
    store.lift("other", None).unwrap();
    // Other estimates of the same window.
    (63..=64).for_each(|seconds| other.learn(estimated(300, seconds), HOST));
    settled(&store);
    assert_eq!(["other", "api"].map(|name| policy(&store, name)), ["100/1m"; 2]);
    limiter.learn(per_minute(400), HOST);
    holds(&store, "api", "400/1m");
}

#[test]
fn of_what_is_said_one_after_the_other_the_last_holds() {
    let dir = Dir::in_memory("learned-last");
    for url in ["memory:".to_owned(), dir.url()] {
        let store = patient(&url);
        for i in 0..100 {
            let limiter = store.limiter(&format!("api{i}"), "100/1m").unwrap();
            limiter.attempt("", 1).unwrap();
            (501..=505).rev().for_each(|units| limiter.learn(per_minute(units), HOST));
            limiter.learn(per_minute(500), HOST);
        }
        // It may have been there for a moment before one that was said earlier.
        for i in (0..100).chain(0..100) {
            holds(&store, &format!("api{i}"), "500/1m");
        }
    }
}

#[test]
fn an_operator_s_override_stays() {
    let dir = Dir::in_memory("learned-by-hand");
    let store = patient(&dir.url());
    let (limiter, other) = (store.limiter("api", "100/1m").unwrap(), store.limiter("other", "100/1m").unwrap());
    store.override_limit("api", "50/1m", None).unwrap();
    for units in [500, 100, 20] {
        limiter.learn(per_minute(units), HOST);
        settled(&store);
    }
    let limit = seen(&store, "api");
    assert_eq!((limit.policy().to_string(), limit.overridden_by.as_deref()), ("50/1m".into(), Some("operator")));
    // An operator may also replace what was learned.
    other.learn(per_minute(500), HOST);
    holds(&store, "other", "500/1m");
    store.override_limit("other", "60/1m", None).unwrap();
    assert_eq!(seen(&store, "other").overridden_by.as_deref(), Some("operator"));
}

#[test]
fn of_two_sizes_that_are_said_in_turn_the_smaller_holds_until_only_the_larger_is_said() {
    let (clock, store) = clocked();
    let limiter = store.limiter("api", "100/1m").unwrap();
    let say = |units| {
        limiter.learn(per_minute(units), HOST);
        settled(&store);
        policy(&store, "api")
    };
    assert_eq!(say(10_000), "10000/1m");
    for _ in 0..10 {
        assert_eq!([500, 10_000].map(say), ["500/1m"; 2]);
    }
    clock.advance(Duration::from_secs(59));
    assert_eq!([10_000, 500].map(say), ["500/1m"; 2]);
    // The smaller was said in between.
    clock.advance(Duration::from_secs(2));
    assert_eq!(say(10_000), "500/1m");
    clock.advance(Duration::from_secs(59));
    assert_eq!(say(10_000), "500/1m");
    clock.advance(Duration::from_secs(1));
    assert_eq!(say(10_000), "10000/1m");
}

#[test]
fn another_process_does_not_raise_what_was_learned_by_one_response() {
    let dir = Dir::in_memory("learned-less");
    let stores = [0; 2].map(|_| patient(&dir.url()));
    let [here, there] = stores.each_ref().map(|store| store.limiter("api", "100/1m").unwrap());
    here.learn(per_minute(500), HOST);
    holds(&stores[0], "api", "500/1m");
    there.learn(per_minute(10_000), HOST);
    settled(&stores[1]);
    assert_eq!(policy(&stores[1], "api"), "500/1m");
    there.learn(per_minute(400), HOST);
    holds(&stores[1], "api", "400/1m");
}

#[test]
fn one_estimate_is_not_enough_and_a_window_that_is_not_declared_teaches_nothing() {
    let store = Store::new("memory:").unwrap();
    let limiter = store.limiter("api", "100/1m").unwrap();
    // Of these none shows the same window as the one before it.
    for seconds in [60, 100, 60] {
        limiter.learn(estimated(300, seconds), HOST);
        settled(&store);
        assert_eq!(policy(&store, "api"), "100/1m", "{seconds} s");
    }
    limiter.learn(estimated(300, 62), HOST);
    holds(&store, "api", "300/1m");
    limiter.learn(Quota { units: 200, window: Duration::from_secs(86_400), is_estimated: false }, HOST);
    settled(&store);
    assert_eq!(policy(&store, "api"), "300/1m");
}

#[test]
fn what_was_learned_is_forgotten_with_the_limit() {
    let store = Store::new("memory:").unwrap();
    for _ in 0..2 {
        let llm = store.limiter("llm", "requests: 100/1m + 5 concurrent").unwrap();
        llm.open().unwrap();
        assert_eq!(policy(&store, "llm/requests"), "100/1m");
        llm.parts()[0].1.learn(per_minute(500), HOST);
        holds(&store, "llm/requests", "500/1m");
        store.forget("llm").unwrap();
    }
}
