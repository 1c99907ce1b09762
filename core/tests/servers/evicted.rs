//! A Redis server that has evicted the state of a key, while the limit still knows that there was one.
#![cfg(feature = "redis")]

use crate::common::redis::RedisServer;
use crate::common::wait_until;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::*;

/// A policy of each kind that is counted by keys, and how many may start at once.
const KINDS: [(&str, usize); 6] = [
    ("3/1h", 3),
    ("5000/1h", 5_000),
    ("3/1h burst 3", 3),
    ("3/1h queue 3", 1),
    ("3/365d fixed", 3),
    ("3/365d counter", 3),
];

/// A limiter of another process, whose starts are all decided by the server.
fn limiter(database: &str, policy: &str) -> Arc<dyn Limiter> {
    Store::new(&format!("{database}&grants=never")).unwrap().limiter("api", policy).unwrap()
}

fn started(limiter: &Arc<dyn Limiter>, key: &str) -> usize {
    (0..).take_while(|_| matches!(limiter.attempt(key, 1).unwrap(), Attempt::Admitted(_))).count()
}

/// Removes the states of all keys of a database.
fn evict(server: &RedisServer, database: &str) {
    let script = "local all = 0 for _, key in ipairs(redis.call('KEYS', 'wgl:{*}:?:*')) do \
                  all = all + redis.call('DEL', key) end return all";
    assert_ne!(server.command_in(database, &format!("EVAL \"{script}\" 0")), ":0");
}

#[test]
fn an_evicted_key_counts_as_full_and_other_keys_are_free() {
    let server = RedisServer::start("evicted");
    for (policy, most) in KINDS {
        let database = server.new_database();
        assert_eq!(started(&limiter(&database, policy), "a"), most, "{policy}");
        evict(&server, &database);
        for _ in 0..2 {
            let other = limiter(&database, policy);
            assert_eq!(started(&other, "a"), 0, "{policy}");
            let denial = other.decide("a", 1).unwrap();
            assert!(denial.remaining == 0 && denial.retry_after > Duration::from_secs(1_000), "{policy}: {denial:?}");
            // This writes a state.
            other.pause(Duration::from_millis(1), "a").unwrap();
        }
        let other = limiter(&database, policy);
        assert_eq!(started(&other, "b"), most, "{policy}");
        other.clear("a").unwrap();
        assert_eq!(started(&other, "a"), most, "{policy}: it was cleared");
    }
}

#[test]
fn a_key_that_was_given_back_or_cleared_is_not_lost() {
    let server = RedisServer::start("evicted-not");
    for (policy, most) in KINDS {
        let limiter = limiter(&server.new_database(), policy);
        for _ in 0..2 {
            let Attempt::Admitted(permit) = limiter.attempt("a", 1).unwrap() else { panic!("{policy}") };
            limiter.cancel(&permit).unwrap();
        }
        assert_eq!(started(&limiter, "a"), most, "{policy}");
        limiter.clear("a").unwrap();
        assert_eq!(started(&limiter, "a"), most, "{policy}");
        limiter.clear("").unwrap();
        assert_eq!(started(&limiter, "a"), most, "{policy}");
    }
}

#[test]
fn an_evicted_key_is_free_again_after_its_window() {
    let server = RedisServer::start("evicted-again");
    for policy in ["3/200ms", "3/200ms burst 3", "3/200ms fixed"] {
        let database = server.new_database();
        let limiter = limiter(&database, policy);
        assert!(started(&limiter, "a") > 0);
        evict(&server, &database);
        wait_until("it starts", || started(&limiter, "a") > 0);
    }
}

#[test]
fn a_present_state_costs_no_further_command() {
    let server = RedisServer::start("evicted-cost");
    for (policy, _) in KINDS {
        let limiter = limiter(&server.new_database(), policy);
        started(&limiter, "a");
        let looks = || {
            let all = server.info("commandstats");
            all.lines().find(|line| line.starts_with("cmdstat_zscore:")).map(str::to_owned)
        };
        let before = looks();
        (0..20).for_each(|_| assert!(!limiter.decide("a", 1).unwrap().admitted));
        assert_eq!(looks(), before, "{policy}");
    }
}
