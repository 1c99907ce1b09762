//! Policies of limits on a server that change while keys are not used: what was started counts by each of them in turn.
#![cfg(feature = "redis")]

mod common;

use common::redis::RedisServer;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use workglow_limit::*;

fn admits(limiter: &dyn Limiter, key: &str) -> bool {
    matches!(limiter.attempt(key, 1).unwrap(), Attempt::Admitted(_))
}

/// Of each kind: a policy whose windows are over soon, a long one and another long one; and how many may start at once.
const KINDS: [(&str, [&str; 3], usize); 5] = [
    ("log", ["3/1s", "3/1h", "3/59m"], 3),
    ("bucket", ["3/1s burst 3", "3/1h burst 3", "3/59m burst 3"], 3),
    ("leaky", ["3/1s queue 3", "3/1h queue 3", "3/59m queue 3"], 1),
    ("fixed", ["3/1s fixed", "3/365d fixed", "3/364d fixed"], 3),
    ("counter", ["3/1s counter", "3/365d counter", "3/364d counter"], 3),
];

fn started(limiter: &dyn Limiter, key: &str) -> usize {
    (0..3).filter(|_| admits(limiter, key)).count()
}

#[test]
fn what_was_started_counts_through_two_changes_before_a_key_is_used_again() {
    let server = RedisServer::start("served-changes-twice");
    for key in ["", "a"] {
        for (name, [short, long, other], most) in KINDS {
            let clock = ManualClock::new();
            let mut options = StoreOptions::default();
            options.clock = Some(clock.clone());
            let store = Store::with_options(&server.new_database(), options).unwrap();
            let limiter = store.limiter(name, short).unwrap();
            assert_eq!(started(&*limiter, key), most, "{name}");
            store.limiter(name, long).unwrap().open().unwrap();
            // The short one would have forgotten it by now.
            clock.advance(Duration::from_secs(10));
            store.limiter(name, other).unwrap().open().unwrap();
            assert_eq!(started(&*limiter, key), 0, "{name} {key:?}");
        }
    }
}

/// Starts with a policy that is soon over, on a machine so busy that it may be over before another holds, and lets that hold.
/// The limiter, and where it is.
fn start_and_change(
    server: &RedisServer,
    kind: usize,
    change: impl Fn(&Store, &str, &str),
) -> (Arc<dyn Limiter>, String) {
    for seconds in [2, 4, 8, 20, 200] {
        let (name, [short, long, _], most) = KINDS[kind];
        let database = server.new_database();
        let store = Store::new(&database).unwrap();
        let short = short.replace("1s", &format!("{seconds}s"));
        let limiter = store.limiter(name, &short).unwrap();
        let window = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() / seconds;
        let (began, in_window) = (Instant::now(), window());
        assert!(started(&*limiter, "a") >= most, "{name}");
        change(&store, name, long);
        if began.elapsed() < Duration::from_secs(seconds) / 4 && window() == in_window {
            return (limiter, database);
        }
    }
    panic!("this machine is too busy");
}

/// How long the only key of the only limit of a database lives, in milliseconds.
fn life(server: &RedisServer, database: &str) -> i64 {
    let script = "for _, key in ipairs(redis.call('KEYS', 'wgl:{*}:*')) do \
                  if #string.match(key, '[^:]*$') == 32 then return redis.call('PTTL', key) end end return -2";
    let answer = server.command_in(database, &format!("EVAL \"{script}\" 0"));
    answer.trim_start_matches(':').parse().unwrap()
}

#[test]
fn a_key_lives_as_long_as_the_policy_needs_that_holds_by_then() {
    let server = RedisServer::start("served-changes-life");
    for kind in 0..KINDS.len() {
        for of_key in [false, true] {
            let (limiter, database) = start_and_change(&server, kind, |store, name, long| match of_key {
                false => store.limiter(name, long).unwrap().open().unwrap(),
                true => store.override_key(name, long, "a").unwrap(),
            });
            let name = limiter.name();
            let life = life(&server, &database);
            assert!(life > 600_000, "{name}: {life} ms");
            assert_eq!(started(&*limiter, "a"), 0, "{name}");
        }
    }
}

#[test]
fn what_expired_before_a_change_was_done_with_counts_as_lost() {
    let server = RedisServer::start("served-changes-lost");
    for (name, [_, long, other], _) in KINDS {
        let database = server.new_database();
        let store = Store::new(&database).unwrap();
        let limiter = store.limiter(name, long).unwrap();
        assert!(admits(&*limiter, "a") && admits(&*limiter, "b"));
        store.limiter(name, other).unwrap().open().unwrap();
        // As if whoever let the other policy hold had died, and the key had expired since.
        let script = "for _, key in ipairs(redis.call('KEYS', 'wgl:{*}:*')) do \
                      local limit, hash = string.match(key, '^(.*):%a:(%x+)$') \
                      if hash and #hash == 32 then \
                      redis.call('DEL', key) redis.call('HSET', limit, 'waiting', 1) \
                      redis.call('ZADD', limit .. ':waiting', 1 + redis.call('HGET', limit, 'since'), hash) end end return 1";
        assert_eq!(server.command_in(&database, &format!("EVAL \"{script}\" 0")), ":1");
        // Whoever asks first finds it out, and nobody is kept from going on.
        assert!(!admits(&*limiter, "a") && !admits(&*limiter, "b") && !admits(&*limiter, "c"), "{name}");
        store.limiter(name, long).unwrap().open().unwrap();
        store.forget(name).unwrap();
    }
}
