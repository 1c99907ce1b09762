//! Red tests of a review of rings that grow.

use crate::common::{Child, Dir, present_boot, shared, wait_until};
use std::sync::atomic::Ordering::*;
use std::time::Duration;
#[cfg(feature = "fault-points")]
use workglow_limit::fault;
use workglow_limit::*;

const MIB: u64 = 1 << 20;
const HOUR: Duration = Duration::from_secs(3_600);

fn sized(url: &str, size: u64, clock: Option<&ManualClock>) -> Store {
    let mut options = StoreOptions::default();
    (options.max_size, options.clock) = (Some(size), clock.cloned());
    options.timeout = Duration::from_secs(60);
    Store::with_options(url, options).unwrap()
}

fn start(limiter: &dyn Limiter, key: &str, weight: u64) -> Option<RawPermit> {
    match limiter.attempt(key, weight) {
        Ok(Attempt::Admitted(permit)) => Some(permit),
        Ok(Attempt::Denied(_)) | Err(Error::StoreFull { .. }) => None,
        Err(error) => panic!("\"{key}\": {error}"),
    }
}

fn fill(limiter: &dyn Limiter, name: &str, starts: u64) -> u64 {
    let fits = |key: &u64| (0..starts).all(|_| start(limiter, &format!("{name} {key}"), 1).is_some());
    (0..).take_while(fits).count() as u64
}

fn drain(limiter: &dyn Limiter, key: &str) -> u64 {
    (0..).take_while(|_| start(limiter, key, 1).is_some()).count() as u64
}

/// Takes what is left of a store, until keys of `api` with 15 starts do not grow.
fn crowd(store: &Store, api: &dyn Limiter) {
    let strangers = store.limiter("strangers", "1000/1m").unwrap();
    let probes: Vec<_> = (0..100).map(|i| format!("probe {i}")).collect();
    probes.iter().for_each(|key| (0..15).for_each(|_| assert!(start(api, key, 1).is_some())));
    fill(&*strangers, "small", 1);
    let is_full = probes.iter().position(|key| {
        let more = store.limiter(&format!("more {key}"), "1000/1m").ok();
        let keys = more.as_ref().map_or(0, |more| fill(&**more, "small", 1));
        more.iter().for_each(|more| (0..keys).for_each(|key| _ = drain(&**more, &format!("small {key}"))));
        (0..).take_while(|key| drain(&*strangers, &format!("small {key}")) > 0 && *key < 5_000).count();
        start(api, key, 1).is_none()
    });
    assert!(is_full.is_some());
}

/// `BEYOND` is lost with the block that has it: the next block's stricter policy did not admit what it forgot.
#[test]
fn a_rewrite_remembers_that_a_ring_was_exceeded() {
    let clock = ManualClock::new();
    let store = sized("memory:", MIB, Some(&clock));
    let api = store.limiter("api", "1000/1h").unwrap();
    (0..15).for_each(|_| assert!(start(&*api, "known", 1).is_some()));
    crowd(&store, &*api);
    assert!(start(&*api, "known", 1).is_none());
    (0..200).for_each(|_| api.record_job_start("known").unwrap());
    clock.advance(2 * HOUR);
    let permits: Vec<_> = (0..15).map(|_| start(&*api, "known", 1).unwrap()).collect();
    api.cancel(&permits[14]).unwrap();
    store.override_limit("api", "1000/1d", None).unwrap();
    // 15 + 200 of two hours ago, and 14 now.
    let left = api.peek("known", 1).unwrap().remaining;
    assert!(left <= 1_000 - 15 - 200 - 14, "{left}");
    // All of these still count an hour before the first are a day old.
    clock.advance(Duration::from_secs(21 * 3_600 + 1_800));
    let left = api.peek("known", 1).unwrap().remaining;
    assert!(left <= 1_000 - 15 - 200 - 14, "{left} after 23.5 hours");
}

/// The same where the key grows as soon as there is space.
#[test]
fn a_ring_that_grows_remembers_that_it_was_exceeded() {
    let clock = ManualClock::new();
    let store = sized("memory:", MIB, Some(&clock));
    let api = store.limiter("api", "1000/1h").unwrap();
    (0..15).for_each(|_| assert!(start(&*api, "known", 1).is_some()));
    crowd(&store, &*api);
    assert!(start(&*api, "known", 1).is_none());
    (0..200).for_each(|_| api.record_job_start("known").unwrap());
    clock.advance(2 * HOUR);
    // The strangers are idle by now.
    let mut more = 0;
    wait_until("the key grows", || {
        more += drain_at_most(&*api, "known", 20 - more);
        more == 20
    });
    store.override_limit("api", "1000/1d", None).unwrap();
    clock.advance(Duration::from_secs(21 * 3_600 + 1_800));
    let left = api.peek("known", 1).unwrap().remaining;
    assert!(left <= 1_000 - 15 - 200 - 20, "{left} after 23.5 hours");
}

fn drain_at_most(limiter: &dyn Limiter, key: &str, most: u64) -> u64 {
    (0..most).take_while(|_| start(limiter, key, 1).is_some()).count() as u64
}

/// A debt that does not fit into the ring is in no ledger.
#[test]
fn a_debt_that_did_not_fit_counts_after_a_reboot() {
    let (dir, left) = (Dir::in_memory("debt-reboot"), shared(2));
    Child::run(|| {
        present_boot(1);
        let store = sized(&dir.url(), MIB, None);
        let api = store.limiter("api", "4000/1h").unwrap();
        let permit = start(&*api, "known", 1).unwrap();
        crowd(&store, &*api);
        api.settle(&permit, 2_001).unwrap();
        left[0].store(api.peek("known", 1).unwrap().remaining, Release);
        store.flush().unwrap();
    })
    .join();
    Child::run(|| {
        present_boot(2);
        let store = sized(&dir.url(), 64 * MIB, None);
        let api = RateLimiter::attach(&store, "api").unwrap();
        left[1].store(api.peek("known", 1).unwrap().remaining, Release);
    })
    .join();
    let [before, after] = [0, 1].map(|i| left[i].load(Acquire));
    assert!(before <= 4_000 - 2_001, "{before} left");
    assert!(after <= before, "{before} left before the reboot, {after} after it");
}

/// Starts recorded in a ring that does not grow are overwritten before the ledger has them.
#[test]
fn starts_recorded_beyond_a_ring_count_after_a_reboot() {
    let (dir, left) = (Dir::in_memory("recorded-reboot"), shared(1));
    Child::run(|| {
        present_boot(1);
        let store = sized(&dir.url(), MIB, None);
        let api = store.limiter("api", "1000/1h").unwrap();
        (0..15).for_each(|_| assert!(start(&*api, "known", 1).is_some()));
        crowd(&store, &*api);
        (0..900).for_each(|_| api.record_job_start("known").unwrap());
        store.flush().unwrap();
    })
    .join();
    Child::run(|| {
        present_boot(2);
        let store = sized(&dir.url(), 64 * MIB, None);
        let api = RateLimiter::attach(&store, "api").unwrap();
        left[0].store(drain(&api, "known"), Release);
    })
    .join();
    let more = left[0].load(Acquire);
    assert!(15 + 900 + more <= 1_000, "915 starts, and {more} more after the reboot");
}

/// A rewrite into a smaller block: its ring did not bound what the larger one admitted.
#[test]
fn a_ring_that_became_smaller_bounds_nothing_that_was_before() {
    for _ in 0..8 {
        let clock = ManualClock::new();
        let store = sized("memory:", MIB, Some(&clock));
        let api = store.limiter("api", "4000/1h").unwrap();
        (0..2_500).for_each(|_| assert!(start(&*api, "known", 1).is_some()));
        let mut others: Vec<_> = (0..4).map(|key| start(&*api, &format!("other {key}"), 1).unwrap()).collect();
        crowd(&store, &*api);
        // Each leaves a small block, and the first of them takes what is left of larger ones.
        others.drain(..).for_each(|permit| api.cancel(&permit).unwrap());
        clock.advance(2 * HOUR);
        let last = start(&*api, "known", 1).unwrap();
        api.cancel(&last).unwrap();
        store.override_limit("api", "4000/1d", None).unwrap();
        clock.advance(Duration::from_secs(21 * 3_600 + 1_800));
        let left = api.peek("known", 1).unwrap().remaining;
        assert!(left <= 4_000 - 2_500, "{left} after 23.5 hours");
    }
}

/// A process is stopped under the lock. How long do callers wait whose rings would grow?
#[cfg(feature = "fault-points")]
#[test]
fn keys_that_cannot_grow_wait_for_the_lock_once() {
    let dir = Dir::in_memory("stopped-lock");
    let open = |timeout| {
        let mut options = StoreOptions::default();
        options.timeout = Duration::from_millis(timeout);
        Store::with_options(&dir.url(), options).unwrap()
    };
    let store = open(1_000);
    let limiter = RateLimiter::new(&store, "api", 100, Duration::from_secs(100)).unwrap();
    for key in 0..8 {
        (0..15).for_each(|_| assert!(start(&limiter, &format!("key {key}"), 1).is_some()));
    }
    let stopped = Child::run(|| {
        let other = RateLimiter::new(&open(1_000), "other", 1, Duration::from_secs(60)).unwrap();
        let permit = start(&other, "", 1).unwrap();
        fault::at("key-sealed", || crate::common::raise(libc::SIGSTOP));
        other.cancel(&permit).unwrap();
    });
    stopped.wait_until_stopped();
    let mut waited = Vec::new();
    for key in 0..4 {
        let began = std::time::Instant::now();
        assert!(start(&limiter, &format!("key {key}"), 1).is_none());
        waited.push(began.elapsed());
    }
    for key in 4..6 {
        let began = std::time::Instant::now();
        let got = embed::MayWait::Briefly.during(|| limiter.attempt(&format!("key {key}"), 1));
        assert!(matches!(got, Ok(Attempt::Denied(_))), "{got:?}");
        waited.push(began.elapsed());
    }
    for key in 6..8 {
        let began = std::time::Instant::now();
        let got = limiter.acquire(&format!("key {key}"), 1, Some(Duration::from_millis(50)));
        println!("acquire: {got:?}");
        waited.push(began.elapsed());
    }
    stopped.signal(libc::SIGCONT);
    stopped.join();
    println!("{waited:?}");
    assert!(waited[1..].iter().all(|waited| *waited < Duration::from_millis(900)), "{waited:?}");
}

/// Processes die at each step of a growth.
#[cfg(feature = "fault-points")]
#[test]
fn deaths_while_rings_grow_lose_nothing_for_good() {
    let dir = Dir::in_memory("dying-growth");
    let (limit, window) = (1_000, Duration::from_secs(100));
    let store = sized(&dir.url(), 8 * MIB, None);
    let limiter = RateLimiter::new(&store, "api", limit, window).unwrap();
    let points = ["key-sealed", "key-written", "log-claimed", "log-filled", "log-moved"];
    let made = shared(1);
    let before = observe::Observer::new(&store, 0).look().unwrap().used_bytes;
    for round in 0..60 {
        let key = format!("key {}", round % 3);
        made[0].store(0, Release);
        let child = Child::run(|| {
            let point = points[round % points.len()];
            let limiter = RateLimiter::new(&sized(&dir.url(), 8 * MIB, None), "api", limit, window).unwrap();
            fault::at(point, || crate::common::raise(libc::SIGKILL));
            while start(&limiter, &key, 2).is_some() {
                made[0].fetch_add(2, AcqRel);
            }
        });
        let killed = child.was_killed();
        let all = made[0].load(Acquire) + drain(&limiter, &key);
        assert!(all <= limit && all + 2 >= limit, "round {round}, killed {killed}: {all}");
        limiter.clear(&key).unwrap();
        if round % 20 == 19 {
            limiter.clear("").unwrap();
        }
    }
    let seen = observe::Observer::new(&store, 0).look().unwrap();
    println!("{} bytes more used, api has {}", seen.used_bytes - before, seen.limits[0].bytes);
}

/// What the caller chose for a full store.
#[test]
fn a_key_that_cannot_grow_follows_on_error() {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    (options.max_size, options.clock) = (Some(MIB), Some(clock.clone()));
    options.on_error = OnError::Admit;
    let store = Store::with_options("memory:", options).unwrap();
    let api = store.limiter("api", "1000/1h").unwrap();
    (0..15).for_each(|_| assert!(start(&*api, "known", 1).is_some()));
    let other = sized("memory:", MIB, None);
    _ = other;
    let before = api.stats("").unwrap();
    println!("{before:?}");
}
