//! Policies that programs learn from what a server says about its own limits.

use crate::common::limits::patient;
use crate::common::{Dir, wait_until};
use std::time::Duration;
use workglow_limit::embed::Quota;
use workglow_limit::observe::{LimitSnapshot, Observer};
use workglow_limit::*;

const HOST: &str = "api.example.com";

fn per_minute(units: u64) -> Quota {
    Quota { units, window: Duration::from_secs(60), is_estimated: false }
}

fn seen(store: &Store, name: &str) -> LimitSnapshot {
    let limits = Observer::new(store, 1).look().unwrap().limits;
    limits.into_iter().find(|limit| limit.name == name).unwrap()
}

fn holds(store: &Store, name: &str, policy: &str) {
    wait_until(policy, || seen(store, name).policy().to_string() == policy);
}

/// Tells a limit something that changes it: what was said to it before has been done by then.
fn settled(store: &Store, limiter: &dyn Limiter) {
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
    other.learn(Quota { is_estimated: true, ..per_minute(300) }, HOST);
    holds(&store, "other", "300/1m");
    store.lift("other", None).unwrap();
    let later = Quota { units: 300, window: Duration::from_millis(63_100), is_estimated: true };
    other.learn(later, HOST); // Another estimate of the same window.
    assert_eq!(seen(&store, "other").overridden_by, None);
    settled(&store, &*other);
    assert_eq!(seen(&store, "api").policy().to_string(), "100/1m");
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
            (1..=5).for_each(|units| limiter.learn(per_minute(units), HOST));
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
    for units in [500, 20] {
        limiter.learn(per_minute(units), HOST);
    }
    settled(&store, &*other);
    let limit = seen(&store, "api");
    assert_eq!((limit.policy().to_string(), limit.overridden_by.as_deref()), ("50/1m".into(), Some("operator")));
    // An operator may also replace what was learned.
    store.override_limit("other", "60/1m", None).unwrap();
    assert_eq!(seen(&store, "other").overridden_by.as_deref(), Some("operator"));
}
