//! A denial is repeated without asking the server, where the server makes each decision.
#![cfg(any(feature = "redis", feature = "postgres"))]

use crate::common::proxy::Proxy;
use crate::common::server::Server;
use crate::common::wait_until;
use std::time::{Duration, Instant};
use workglow_limit::*;

/// None of these windows ends soon, at whatever time of the day.
const POLICIES: [&str; 4] = ["2/1h", "2/1h burst 2", "2/300d fixed", "2/300d counter"];

fn store(url: &str) -> Store {
    let mut options = StoreOptions::default();
    options.timeout = Duration::from_secs(60);
    Store::with_options(&format!("{url}{}grants=never", if url.contains('?') { '&' } else { '?' }), options).unwrap()
}

fn started(limiter: &dyn Limiter, key: &str) -> Option<RawPermit> {
    match limiter.attempt(key, 1).unwrap() {
        Attempt::Admitted(permit) => Some(permit),
        Attempt::Denied(_) => None,
    }
}

/// Each poll of a full limit was once a request.
#[test]
fn polls_of_a_full_limit_ask_once_a_second() {
    const POLLS: u64 = 400;
    for server in Server::each("denials-polls") {
        let proxy = Proxy::start("denials-polls-way", &server, 1);
        let store = store(&proxy.url(0));
        for policy in POLICIES {
            let limiter = store.limiter(policy, policy).unwrap();
            assert!(started(&*limiter, "").is_some() && started(&*limiter, "").is_some());
            for is_decision in [false, true] {
                let (before, began) = (proxy.sent(0), Instant::now());
                for _ in 0..POLLS {
                    if is_decision {
                        let said = limiter.decide("", 1).unwrap();
                        assert!(!said.admitted && said.remaining == 0 && said.retry_after > Duration::from_secs(60));
                        assert!(said.reset_after >= said.retry_after, "{policy}: {said:?}");
                    } else {
                        assert!(started(&*limiter, "").is_none());
                    }
                }
                // (A script may have to be loaded first.)
                let (sent, most) = (proxy.sent(0) - before, 4 + began.elapsed().as_secs());
                assert!(sent <= most, "{policy}: {sent} requests, at most {most}");
            }
            // Nothing is known of a lighter start, of another key, or of a later one.
            assert!(started(&*limiter, "other").is_some());
            assert_eq!(limiter.peek("", 1).unwrap().remaining, 0);
        }
    }
}

#[test]
fn what_this_process_frees_is_free_at_once_and_what_others_free_soon() {
    for server in Server::each("denials-freed") {
        let (here, there) = (store(&server.url()), store(&server.url()));
        for policy in POLICIES {
            let [here_limit, there_limit] = [&here, &there].map(|store| store.limiter(policy, policy).unwrap());
            let is_full = || assert!(started(&*here_limit, "").is_none());
            let first = started(&*here_limit, "").unwrap();
            let second = started(&*here_limit, "").unwrap();
            is_full();
            here_limit.cancel(&first).unwrap();
            assert!(started(&*here_limit, "").is_some(), "{policy}: a cancelled start");
            is_full();
            here_limit.settle(&second, 0).unwrap();
            assert!(started(&*here_limit, "").is_some(), "{policy}: a settled one");
            is_full();
            // Also by another limiter of this process.
            here.limiter(policy, policy).unwrap().clear("").unwrap();
            assert!(started(&*here_limit, "").is_some() && started(&*here_limit, "").is_some(), "{policy}: cleared");
            is_full();
            let more = policy.replacen('2', "4", 1);
            here.override_limit(policy, &more.replace("burst 2", "burst 4"), None).unwrap();
            assert!(started(&*here_limit, "").is_some(), "{policy}: overridden");
            here.lift(policy, None).unwrap();
            is_full();
            there_limit.clear("").unwrap();
            wait_until("it is noticed", || started(&*here_limit, "").is_some());
        }
    }
}

/// A denial of a heavy start says nothing about a light one.
#[test]
fn a_lighter_start_is_asked_for() {
    for server in Server::each("denials-light") {
        let limiter = store(&server.url()).limiter("api", "5/1h").unwrap();
        assert!(limiter.decide("", 3).unwrap().admitted);
        for _ in 0..2 {
            assert!(!limiter.decide("", 3).unwrap().admitted && !limiter.decide("", 4).unwrap().admitted);
        }
        assert_eq!(limiter.decide("", 3).unwrap().remaining, 2);
        assert!(limiter.decide("", 2).unwrap().admitted);
    }
}
