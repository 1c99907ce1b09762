//! Snapshots of servers: what they cost, and what they find.
#![cfg(any(feature = "redis", feature = "postgres"))]

#[cfg(feature = "redis")]
use crate::common::Dir;
use crate::common::number;
use crate::common::server::Server;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::observe::{Observer, Snapshot};
use workglow_limit::*;

fn open(url: &str, clock: Option<&ManualClock>) -> Store {
    let mut options = StoreOptions::default();
    (options.timeout, options.clock) = (Duration::from_secs(60), clock.cloned());
    Store::with_options(url, options).unwrap()
}

/// Limits of all kinds, each with a key in use.
fn many(store: &Store, count: usize) {
    let policies = ["10/1h", "10/1h burst 10", "10/300d fixed", "10/1d + 5/1h", ""];
    for (i, policy) in (0..count).zip(policies.iter().cycle()) {
        let name = format!("limit-{i}");
        let limiter: Arc<dyn Limiter> = match *policy {
            "" => Arc::new(ConcurrencyLimiter::shared(store, &name, 5, Some(Duration::from_secs(3_600))).unwrap()),
            policy => store.limiter(&name, policy).unwrap(),
        };
        assert!(matches!(limiter.attempt("ann", 2).unwrap(), Attempt::Admitted(_)), "{name}");
    }
}

/// Checks a snapshot of [`many`].
fn is_whole(seen: &Snapshot, count: usize) {
    assert_eq!(seen.limits.len(), count);
    for limit in &seen.limits {
        assert!(limit.usage.iter().all(|usage| usage.used == 2), "{}: {:?}", limit.name, limit.usage);
        assert_eq!((limit.keys, limit.hot_keys.len()), (1, 1), "{}", limit.name);
    }
}

/// The number of complete requests at the beginning of some bytes in Redis's protocol, which it removes.
#[cfg(feature = "redis")]
fn take_requests(bytes: &mut Vec<u8>) -> u64 {
    let line = |at: usize| {
        let end = bytes.get(at..)?.iter().position(|byte| *byte == b'\n')? + at + 1;
        let number: usize = std::str::from_utf8(&bytes[at + 1..end - 2]).ok()?.parse().ok()?;
        Some((number, end))
    };
    let request = |at: usize| {
        let (parts, mut at) = line(at)?;
        for _ in 0..parts {
            let (length, begin) = line(at)?;
            at = begin + length + 2;
        }
        (at <= bytes.len()).then_some(at)
    };
    let (mut count, mut done) = (0, 0);
    while let Some(end) = request(done) {
        (count, done) = (count + 1, end);
    }
    drop(bytes.drain(..done));
    count
}

/// A connection to a server of which no answer comes before this many requests have arrived: in turn one, and one for each
/// limit. A caller that waits for the answer of fewer of them waits for ever.
#[cfg(feature = "redis")]
#[test]
fn redis_is_asked_twice_about_any_number_of_limits() {
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    static ASKED: AtomicU64 = AtomicU64::new(0);
    /// The number of limits, once the requests are counted.
    static LIMITS: AtomicU64 = AtomicU64::new(0);
    let limits = number("LIMITS", 100);
    let (server, dir) = (crate::common::redis::RedisServer::start("watching-redis"), Dir::in_memory("watching-proxy"));
    many(&open(&format!("{}?grants=never", server.url()), None), limits as usize);
    let listener = UnixListener::bind(dir.file("s")).unwrap();
    let socket = server.socket();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut server) = (client.unwrap(), UnixStream::connect(&socket).unwrap());
            let (mut to_client, mut from_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || {
                let (mut buffer, mut left) = ([0; 65_536], Vec::new());
                while let Ok(read @ 1..) = client.read(&mut buffer) {
                    left.extend_from_slice(&buffer[..read]);
                    let requests = take_requests(&mut left);
                    if LIMITS.load(SeqCst) > 0 {
                        ASKED.fetch_add(requests, SeqCst);
                    }
                    server.write_all(&buffer[..read]).unwrap();
                }
            });
            std::thread::spawn(move || {
                let mut buffer = [0; 65_536];
                while let Ok(read @ 1..) = from_server.read(&mut buffer) {
                    while LIMITS.load(SeqCst) > 0 && ASKED.load(SeqCst) % (1 + LIMITS.load(SeqCst)) > 1 {
                        std::thread::sleep(Duration::from_micros(100));
                    }
                    to_client.write_all(&buffer[..read]).unwrap();
                }
            });
        }
    });
    let mut observer = Observer::new(&open(&format!("redis+unix://{}", dir.file("s").display()), None), 5);
    // This also makes the connection, and learns what kinds of limits they are.
    is_whole(&observer.look().unwrap(), limits as usize);
    LIMITS.store(limits, SeqCst);
    for _ in 0..5 {
        is_whole(&observer.look().unwrap(), limits as usize);
    }
    assert_eq!(ASKED.load(SeqCst), 5 * (1 + limits));
    // Of one limit, only that is asked for.
    LIMITS.store(0, SeqCst);
    let url = format!("redis+unix://{}", dir.file("s").display());
    let mut observer = Observer::new(&open(&url, None), 5).only("limit-7");
    is_whole(&observer.look().unwrap(), 1);
    let before = ASKED.load(SeqCst);
    LIMITS.store(1, SeqCst);
    is_whole(&observer.look().unwrap(), 1);
    assert_eq!(ASKED.load(SeqCst) - before, 2);
}

#[cfg(feature = "postgres")]
#[test]
fn postgres_is_asked_twice_about_any_number_of_limits() {
    let limits = number("LIMITS", 100) as usize;
    let server = crate::common::postgres::PostgresServer::start("watching-postgres");
    many(&open(&format!("{}&grants=never", server.url()), None), limits);
    let mut observer = Observer::new(&open(&server.url(), None), 5);
    is_whole(&observer.look().unwrap(), limits);
    server.command("ALTER SYSTEM SET log_statement = 'all'");
    server.command("SELECT pg_reload_conf()");
    let asked = || server.log().lines().filter(|line| line.contains("execute")).count();
    // Its connection may not have the setting yet.
    crate::common::wait_until("the server logs", || observer.look().is_ok() && asked() > 0);
    let before = asked();
    for _ in 0..5 {
        is_whole(&observer.look().unwrap(), limits);
    }
    assert_eq!(asked() - before, 5 * 2);
}

#[test]
fn all_keys_are_examined_in_turn_and_the_fullest_stays() {
    for server in Server::each("watching-keys") {
        for policy in ["10/1h", "10/1h burst 10", "10/1h fixed", "10 concurrent"] {
            let clock = ManualClock::new();
            let store = open(&server.new_database(), Some(&clock));
            let limiter = store.limiter("api", policy).unwrap();
            for i in 0..320 {
                limiter.attempt(&format!("key-{i}"), if i == 300 { 7 } else { 1 }).unwrap();
            }
            let mut observer = Observer::new(&open(store.url(), Some(&clock)), 3);
            let mut looks = 0;
            let mut fullest = || {
                let api = observer.look().unwrap().limits.remove(0);
                assert_eq!(api.keys, 320, "{policy} on {}", server.kind());
                (api.usage[0].used, api.fullest.map(|(key, _)| key), api.hot_keys)
            };
            while fullest().0 < 7 {
                looks += 1;
                assert!(looks < 8, "{policy} on {}", server.kind());
            }
            for _ in 0..8 {
                let (used, key, hot) = fullest();
                assert_eq!((used, &key, hot.len()), (7, &Some(hot[0].key.clone()), 3), "{policy} on {}", server.kind());
            }
            let sought = Observer::new(&open(store.url(), Some(&clock)), 0).seek("key-300").look().unwrap();
            let hot: Vec<_> = sought.limits[0].hot_keys.iter().map(|key| (&*key.key, key.usage[0].used)).collect();
            assert_eq!(hot, [("key-300", 7)], "{policy} on {}", server.kind());
        }
    }
}

#[test]
fn ended_jobs_are_not_shown() {
    for server in Server::each("watching-jobs") {
        let store = open(&server.url(), None);
        let limiter = store.limiter("jobs", "5 concurrent").unwrap();
        let Attempt::Admitted(permit) = limiter.attempt("ann", 2).unwrap() else { panic!("denied") };
        let Attempt::Admitted(_) = limiter.attempt("bob", 1).unwrap() else { panic!("denied") };
        let mut observer = Observer::new(&open(&server.url(), None), 5);
        let mut shown = || {
            let jobs = observer.look().unwrap().limits.remove(0);
            jobs.hot_keys.iter().map(|key| key.usage[0].used).collect::<Vec<_>>()
        };
        assert_eq!(shown(), [2, 1], "{}", server.kind());
        limiter.complete(&permit).unwrap();
        assert_eq!(shown(), [1], "{}", server.kind());
        limiter.clear("bob").unwrap();
        assert_eq!(shown(), [0; 0], "{}", server.kind());
    }
}

#[test]
fn a_limit_whose_starts_may_be_lost_is_shown_as_full_and_not_as_paused() {
    for server in Server::each("watching-lost") {
        let store = open(&server.direct_url(), None);
        let limiter = store.limiter("api", "10/1h").unwrap();
        limiter.attempt("", 3).unwrap();
        server.lose_starts();
        assert!(matches!(limiter.attempt("", 1).unwrap(), Attempt::Denied(_)), "{}", server.kind());
        let seen = Observer::new(&open(&server.url(), None), 5).look().unwrap();
        let [api] = &seen.limits[..] else { panic!("{seen:?}") };
        assert_eq!((api.usage[0].used, api.paused_for), (10, Duration::ZERO), "{}", server.kind());
        assert!(api.retry_after > Duration::from_secs(1_800), "{}: {:?}", server.kind(), api.retry_after);
    }
}

#[test]
fn a_change_shows_in_the_next_snapshot() {
    for server in Server::each("watching-changes") {
        let store = open(&server.url(), None);
        store.limiter("api", "10/1h").unwrap().attempt("ann", 4).unwrap();
        let mut observer = Observer::new(&open(&server.url(), None), 5);
        let mut look = || observer.look().unwrap();
        assert_eq!(look().limits[0].overriding, None, "{}", server.kind());
        store.override_text("api", "20/1h").unwrap();
        store.override_key("api", "40/1h", "ann").unwrap();
        let seen = look();
        let [api] = &seen.limits[..] else { panic!("{seen:?}") };
        let (own, usage) = (api.hot_keys[0].overriding, api.hot_keys[0].usage[0].limit);
        assert_eq!((api.policy().to_string(), own.unwrap().to_string(), usage), ("20/1h".into(), "40/1h".into(), 40));
        assert_eq!(api.hot_keys[0].key, "ann", "{}", server.kind());
        store.forget("api").unwrap();
        // A limit of another kind, under the same name.
        store.limiter("api", "5 concurrent").unwrap().attempt("", 3).unwrap();
        store.limiter("both", "10/1h + 5 concurrent").unwrap().open().unwrap();
        let seen = look();
        let shown: HashSet<_> =
            seen.limits.iter().map(|limit| (&*limit.name, limit.kind, limit.usage[0].used)).collect();
        let expected = [("api", "concurrency", 3), ("both/rate", "rate", 0), ("both/concurrency", "concurrency", 0)];
        assert_eq!(shown, HashSet::from(expected), "{}", server.kind());
    }
}
