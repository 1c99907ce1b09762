//! Policies of limits on a server that change while keys are unused: starts count under each of them in turn.
#![cfg(any(feature = "redis", feature = "postgres"))]

use crate::common::limits::patient;
#[cfg(feature = "postgres")]
use crate::common::postgres::PostgresServer;
#[cfg(feature = "redis")]
use crate::common::redis::RedisServer;
use crate::common::server::Server;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use workglow_limit::embed::MayWait;
use workglow_limit::*;

fn admits(limiter: &dyn Limiter, key: &str) -> bool {
    matches!(limiter.attempt(key, 1).unwrap(), Attempt::Admitted(_))
}

/// For each kind: a policy whose windows end soon, a long one and another long one; and how many may start at once.
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

/// A store whose time is set by the test.
fn with_clock(database: &str) -> (Store, ManualClock) {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    (Store::with_options(database, options).unwrap(), clock)
}

#[test]
fn starts_count_through_two_changes_before_the_keys_next_use() {
    for server in Server::each("served-changes-twice") {
        for (key, changes_key) in [("", [false; 2]), ("a", [false; 2]), ("a", [true; 2]), ("a", [false, true])] {
            let (store, clock) = with_clock(&server.new_database());
            let change = |name: &str, policy: &str, of_key: bool| match of_key {
                false => store.limiter(name, policy).unwrap().open().unwrap(),
                true => store.override_limit(name, policy, Some(key)).unwrap(),
            };
            for (name, [short, long, other], most) in KINDS {
                let limiter = store.limiter(name, short).unwrap();
                assert_eq!(started(&*limiter, key), most, "{name}");
                change(name, long, changes_key[0]);
                // The short policy would have forgotten it by now.
                clock.advance(Duration::from_secs(10));
                change(name, other, changes_key[1]);
                assert_eq!(started(&*limiter, key), 0, "{}: {name} {key:?} {changes_key:?}", server.kind());
            }
        }
    }
}

#[test]
#[cfg(feature = "postgres")]
fn an_unfinished_change_is_completed_before_the_next() {
    let server = PostgresServer::start("served-changes-undone");
    for (name, [short, long, other], most) in KINDS {
        let database = server.new_database();
        let (store, clock) = with_clock(&database);
        let limiter = store.limiter(name, short).unwrap();
        let keys = || (0..120).map(|i| format!("key {i}")).chain([String::new(), "own".into()]);
        assert!(keys().all(|key| started(&*limiter, &key) == most), "{name}");
        // As if the process that applied the other policy had died at once.
        server.command_in(&database, "CREATE TABLE kept AS SELECT * FROM workglow_limit.counted");
        store.limiter(name, long).unwrap().open().unwrap();
        store.override_limit(name, long, Some("own")).unwrap();
        let undo = "DELETE FROM workglow_limit.counted; INSERT INTO workglow_limit.counted SELECT * FROM kept";
        server.command_in(&database, undo);
        clock.advance(Duration::from_secs(10));
        store.limiter(name, other).unwrap().open().unwrap();
        store.override_limit(name, other, Some("own")).unwrap();
        assert!(keys().all(|key| started(&*limiter, &key) == 0), "{name}");
    }
}

#[test]
#[cfg(feature = "postgres")]
fn a_change_is_refused_if_an_unfinished_one_cannot_be_completed_in_time() {
    let server = PostgresServer::start("served-changes-refused");
    let [short, long, other] = KINDS[1].1;
    let mut options = StoreOptions::default();
    options.timeout = Duration::from_secs(1);
    let store = Store::with_options(&server.url(), options).unwrap();
    crate::common::wait_until("it answers", || {
        store.limiter("limit", short).and_then(|limiter| limiter.attempt("a", 3)).is_ok()
    });
    let locked = server.hold("SELECT FROM workglow_limit.counted FOR UPDATE");
    // The unfinished part is not an error of this change. (On a busy machine, its first part may need more than a second.)
    crate::common::wait_until("it is changed", || {
        store.limiter("limit", long).and_then(|limiter| limiter.open()).is_ok()
    });
    let refused = store.limiter("limit", other).and_then(|limiter| limiter.open());
    assert!(matches!(refused, Err(Error::StoreTimeout { .. })), "{refused:?}");
    assert_eq!(server.command("SELECT policy FROM workglow_limit.limits"), long);
    drop(locked);
    let limiter = patient(&server.url()).limiter("limit", other).unwrap();
    assert_eq!(started(&*limiter, "a"), 0);
}

/// The last answer of the limit was about a key whose machines trust it for a shorter time.
#[test]
fn a_change_of_a_key_returns_when_nothing_granted_before_can_start() {
    for server in Server::each("served-changes-granted") {
        let [here, there] = [(); 2].map(|()| patient(&server.url()));
        let limiter = here.limiter("api", "10/100ms").unwrap();
        for key in ["one", "two"] {
            here.override_limit("api", "4000/10s", Some(key)).unwrap();
            let starts_from_a_grant =
                || MayWait::Never.during(|| matches!(limiter.attempt(key, 1), Ok(Attempt::Admitted(_))));
            // So often that more is granted than is used at once.
            let is_busy = || (0..100).all(|_| admits(&*limiter, key)) && (0..10).all(|_| starts_from_a_grant());
            crate::common::wait_until("it has granted units", is_busy);
            assert!(admits(&*limiter, &format!("beside {key}")));
            there.override_limit("api", "3/10s", Some(key)).unwrap();
            assert_eq!((0..4_000).filter(|_| starts_from_a_grant()).count(), 0, "{}: {key}", server.kind());
        }
    }
}

/// Starts with a short policy and applies another one, on a machine so busy that the first may end before. Returns the
/// limiter and its address.
fn start_and_change(server: &Server, kind: usize, change: impl Fn(&Store, &str, &str)) -> (Arc<dyn Limiter>, String) {
    for seconds in [2, 4, 8, 20, 200] {
        let (name, [short, long, _], most) = KINDS[kind];
        let database = server.new_database();
        let parameter = if database.contains('?') { "&grants=never" } else { "?grants=never" };
        let store = patient(&format!("{database}{parameter}"));
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

/// The lifetime of the only key of the only limit of a database, in milliseconds.
fn life(server: &Server, database: &str) -> i64 {
    let answer = match server {
        #[cfg(feature = "redis")]
        Server::Redis(server) => {
            let script = "for _, key in ipairs(redis.call('KEYS', 'wgl:{*}:*')) do \
                          if #string.match(key, '[^:]*$') == 32 then return redis.call('PTTL', key) end end return -2";
            server.command_in(database, &format!("EVAL \"{script}\" 0"))
        }
        #[cfg(feature = "postgres")]
        Server::Postgres(server) => {
            let keys = "SELECT limit_id, hash, mark, expires FROM workglow_limit.logs \
                        UNION ALL SELECT limit_id, hash, mark, expires FROM workglow_limit.counted";
            let until = "greatest(expires, workglow_limit.kept_until(limit_id, hash, mark))";
            server.command_in(database, &format!("SELECT ({until} - workglow_limit.clock()) / 1000 FROM ({keys}) keys"))
        }
    };
    answer.trim_start_matches(':').parse().unwrap()
}

#[test]
fn a_key_lives_as_long_as_the_present_policy_needs() {
    for server in Server::each("served-changes-life") {
        for kind in 0..KINDS.len() {
            for of_key in [false, true] {
                let (limiter, database) = start_and_change(&server, kind, |store, name, long| match of_key {
                    false => store.limiter(name, long).unwrap().open().unwrap(),
                    true => store.override_limit(name, long, Some("a")).unwrap(),
                });
                let name = limiter.name();
                let life = life(&server, &database);
                assert!(life > 600_000, "{}: {name}: {life} ms", server.kind());
                assert_eq!(started(&*limiter, "a"), 0, "{}: {name}", server.kind());
            }
        }
    }
}

#[test]
#[cfg(feature = "redis")]
fn states_that_expired_before_an_unfinished_change_count_as_lost() {
    let server = RedisServer::start("served-changes-lost");
    for (name, [_, long, other], _) in KINDS {
        let database = server.new_database();
        let store = patient(&database);
        let limiter = store.limiter(name, long).unwrap();
        assert!(admits(&*limiter, "a") && admits(&*limiter, "b"));
        store.limiter(name, other).unwrap().open().unwrap();
        // As if the process that applied the other policy had died, and the key had expired since.
        let script = "for _, key in ipairs(redis.call('KEYS', 'wgl:{*}:*')) do \
                      local limit, hash = string.match(key, '^(.*):%a:(%x+)$') \
                      if hash and #hash == 32 then \
                      redis.call('DEL', key) redis.call('HSET', limit, 'waiting', 1) \
                      redis.call('ZADD', limit .. ':waiting', 1 + redis.call('HGET', limit, 'since'), hash) end end return 1";
        assert_eq!(server.command_in(&database, &format!("EVAL \"{script}\" 0")), ":1");
        // The first caller finds it out, and no caller is blocked.
        assert!(!admits(&*limiter, "a") && !admits(&*limiter, "b") && !admits(&*limiter, "c"), "{name}");
        store.limiter(name, long).unwrap().open().unwrap();
        store.forget(name).unwrap();
    }
}

/// A process that is often denied is promised units that become free later. After a clear, they are not its own any more.
#[test]
fn promised_units_do_not_outlive_a_clear() {
    for server in Server::each("changes-promised") {
        for key in ["", "a"] {
            let machine = || patient(&server.url()).limiter(&format!("api{key}"), "5/2s").unwrap();
            let (here, there) = (machine(), machine());
            let window = Duration::from_secs(2);
            assert_eq!((0..5).filter(|_| admits(&*here, "a")).count(), 5);
            let denied_until = Instant::now() + window / 4;
            while Instant::now() < denied_until {
                let _ = admits(&*here, "a");
            }
            there.clear(key).unwrap();
            let cleared = Instant::now();
            let mut starts = Vec::new();
            while cleared.elapsed() < window {
                for limiter in [&there, &here] {
                    let before = Instant::now();
                    if admits(&**limiter, "a") {
                        starts.push((before, Instant::now()));
                    }
                }
            }
            let most = starts.iter().map(|(first, _)| {
                starts.iter().filter(|(before, after)| before >= first && *after < *first + window).count()
            });
            assert!(most.max().unwrap_or(0) <= 5, "{starts:?} on {} with {key:?}", server.kind());
        }
    }
}
