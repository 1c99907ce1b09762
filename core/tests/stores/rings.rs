//! Rings that grow, in stores with little space: what a key gets, what a change of policies needs, and who else may use what was
//! freed.

use crate::common::{Child, Dir, Random, present_boot, shared, wait_until};
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use workglow_limit::embed::MayWait;
use workglow_limit::*;

const MIB: u64 = 1 << 20;

fn sized(url: &str, size: u64, clock: Option<&ManualClock>) -> Store {
    let mut options = StoreOptions::default();
    (options.max_size, options.clock) = (Some(size), clock.cloned());
    options.timeout = Duration::from_secs(60); // a busy machine takes its time
    Store::with_options(url, options).unwrap()
}

/// Whether a start happens, or `None` if the store is full.
fn start(limiter: &dyn Limiter, key: &str) -> Option<bool> {
    match limiter.attempt(key, 1) {
        Ok(Attempt::Admitted(_)) => Some(true),
        Ok(Attempt::Denied(_)) => Some(false),
        Err(Error::StoreFull { .. }) => None,
        Err(error) => panic!("\"{key}\": {error}"),
    }
}

/// How many starts a key gets until it is denied or the store is full, and whether it was denied.
fn drain(limiter: &dyn Limiter, key: &str) -> (u64, bool) {
    let mut admitted = 0;
    loop {
        match start(limiter, key) {
            Some(true) => admitted += 1,
            answer => return (admitted, answer.is_some()),
        }
    }
}

/// Makes keys with these starts until the store has no space for one more. Returns how many there are.
fn fill(limiter: &dyn Limiter, name: &str, starts: u64) -> u64 {
    for key in 0.. {
        for _ in 0..starts {
            match start(limiter, &format!("{name} {key}")) {
                Some(true) => {}
                Some(false) => panic!("\"{name} {key}\" is denied"),
                None => return key,
            }
        }
    }
    unreachable!("a store without end")
}

/// Keys of many sizes in a store that other limits have filled. A change is refused as a whole, or applies to each of them.
#[test]
fn a_full_store_applies_a_policy_to_keys_of_all_sizes() {
    for (seed, size) in (0..).zip([MIB, MIB, 2 * MIB, 2 * MIB, 4 * MIB]) {
        let dir = Dir::in_memory("all-sizes");
        for url in ["memory:", &dir.url()] {
            let mut random = Random::seeded(seed);
            let store = sized(url, size, None);
            let (api, others) = (store.limiter("api", "900/1h").unwrap(), store.limiter("others", "100/1h").unwrap());
            let mut used = Vec::new();
            for key in 0..60 {
                let wanted = 1 + random.scaled(if key < 3 { 899 } else { 200 });
                let starts = (0..wanted).take_while(|_| start(&*api, &format!("key {key}")) == Some(true)).count();
                used.push(starts as u64);
            }
            fill(&*others, "stranger", 1);
            fill(&*api, "stranger", 20);
            let mut limit = 900;
            for policy in [600, 2_000, 50, 900, 3_000, 600] {
                match store.override_limit("api", &format!("{policy}/1h"), None) {
                    Ok(()) => limit = policy,
                    Err(Error::StoreFull { .. }) => println!("{size} {url}: {policy} is refused"),
                    Err(error) => panic!("{error}"),
                }
                for (key, used) in used.iter().enumerate() {
                    let seen = api.peek(&format!("key {key}"), 1).unwrap();
                    assert_eq!(seen.limit, limit, "{size} {url}, key {key}");
                    assert_eq!(seen.remaining, limit.saturating_sub(*used), "{size} {url}, key {key} of {limit}");
                }
            }
            assert_eq!(limit, 600, "{size} {url}: no change was made");
            for (key, used) in used.iter().enumerate() {
                let (more, is_denied) = drain(&*api, &format!("key {key}"));
                let all = used + more;
                assert!(*used > 600 || all <= 600, "{size} {url}, key {key}: {all} of 600");
                assert!(!is_denied || all >= 600, "{size} {url}, key {key}: denied after {all} of 600");
            }
        }
    }
}

/// Processes die while they change the policy of a full store.
#[test]
fn a_change_in_a_full_store_that_dies_lets_no_key_go_on_by_the_earlier_policy() {
    let mut random = Random::new();
    for round in 0..4 {
        let dir = Dir::in_memory("dying-change");
        let url = dir.url();
        let size = [MIB, 2 * MIB][round % 2];
        let store = sized(&url, size, None);
        let (api, others) = (store.limiter("api", "900/1h").unwrap(), store.limiter("others", "100/1h").unwrap());
        let used: Vec<u64> = (0..40)
            .map(|key| {
                let wanted = 1 + random.scaled(300);
                (0..wanted).take_while(|_| start(&*api, &format!("key {key}")) == Some(true)).count() as u64
            })
            .collect();
        fill(&*others, "stranger", 1);
        fill(&*api, "stranger", 20);
        let made = shared(1);
        for kill in 0..12 {
            let child = Child::run(|| {
                let store = sized(&url, size, None);
                for policy in ["700/1h", "500/1h", "2000/1h"].into_iter().cycle() {
                    made[0].fetch_add(1, Relaxed);
                    drop(store.override_limit("api", policy, None));
                }
            });
            let after = made[0].load(Relaxed) + 1 + kill % 3;
            wait_until("it changes the policy", || made[0].load(Relaxed) >= after);
            std::thread::sleep(Duration::from_micros(random.below(3_000)));
            child.signal(libc::SIGKILL);
            assert!(child.was_killed());
        }
        wait_until("the policy applies", || store.override_limit("api", "600/1h", None).is_ok());
        for (key, used) in used.iter().enumerate() {
            let (more, is_denied) = drain(&*api, &format!("key {key}"));
            let all = used + more;
            assert!(all <= 600, "key {key}: {all} of 600");
            assert!(!is_denied || all == 600, "key {key}: denied after {all} of 600");
        }
    }
}

/// Strangers fill a limit. Its known keys go on to all that their policy allows, also where a call must not wait.
#[test]
fn known_keys_of_a_flooded_limit_grow() {
    let dir = Dir::in_memory("flooded-keys");
    for url in ["memory:", &dir.url()] {
        let store = sized(url, 16 * MIB, None);
        let (login, api) = (store.limiter("login", "1000/1h").unwrap(), store.limiter("api", "100/1m").unwrap());
        for key in 0..20 {
            (0..5).for_each(|_| assert_eq!(start(&*login, &format!("known {key}")), Some(true)));
        }
        assert!(fill(&*login, "stranger", 1) > 10_000);
        for key in 0..20 {
            let known = format!("known {key}");
            if key % 2 == 0 {
                assert_eq!(drain(&*login, &known), (995, true), "{known}");
                continue;
            }
            let mut admitted = 0;
            loop {
                // Where that would have to wait, such as for the ledger, an event loop has a thread that does.
                match MayWait::Never.during(|| login.attempt(&known, 1)) {
                    Err(Error::WouldWait) if start(&*login, &known) == Some(true) => admitted += 1,
                    Ok(Attempt::Admitted(_)) => admitted += 1,
                    Ok(Attempt::Denied(_)) => break,
                    other => panic!("{known}: {other:?}"),
                }
            }
            assert_eq!(admitted, 995, "{known}");
        }
        for key in 0..50 {
            assert_eq!(start(&*api, &format!("new {key}")), Some(true), "of another limit");
        }
    }
}

/// Where there really is no space, that is the answer, and never a denial.
#[test]
fn a_key_without_space_is_not_denied() {
    let clock = ManualClock::new();
    let store = sized("memory:", MIB, Some(&clock));
    let api = store.limiter("api", "1000/1h").unwrap();
    let keys = fill(&*api, "stranger", 1);
    let mut full = 0;
    for key in 0..keys {
        let key = format!("stranger {key}");
        if let (admitted, false) = drain(&*api, &key) {
            assert!(admitted < 1_000);
            full += 1;
            assert_eq!(api.peek(&key, 1).unwrap().remaining, 999 - admitted);
            // Soon after, others learn it at once.
            let answer = MayWait::Never.during(|| api.attempt(&key, 1)).unwrap_err();
            assert!(matches!(answer, Error::WouldWait | Error::StoreFull { .. }), "{answer}");
        }
    }
    assert!(full > keys / 2, "{full} of {keys} keys");
    // Other limits still take new keys, and when all are idle, the same keys grow.
    let other = store.limiter("other", "100/1m").unwrap();
    (0..20).for_each(|key| assert_eq!(start(&*other, &format!("new {key}")), Some(true)));
    clock.advance(Duration::from_secs(7_200));
    std::thread::sleep(Duration::from_millis(150)); // a search in vain is not repeated at once
    let mut admitted = 0;
    wait_until("idle keys give their space", || {
        let (more, is_denied) = drain(&*api, "stranger 7");
        admitted += more;
        is_denied
    });
    assert_eq!(admitted, 1_000);
}

/// Blocks of keys that have grown serve new keys of all limits whose starts are logged, when they are idle.
#[test]
fn large_blocks_of_idle_keys_serve_new_keys() {
    let (dir, clock) = (Dir::in_memory("large-blocks"), ManualClock::new());
    let store = sized(&dir.url(), 8 * MIB, Some(&clock));
    let (api, like) = (store.limiter("api", "1000/1m").unwrap(), store.limiter("like", "40/1m").unwrap());
    let keys = fill(&*api, "large", 200);
    assert!(keys > 200, "{keys}");
    let strangers = fill(&*like, "small", 1);
    clock.advance(Duration::from_secs(200));
    std::thread::sleep(Duration::from_millis(150)); // as above
    for key in 0..strangers + keys / 2 {
        wait_until("a key is idle", || start(&*like, &format!("new {key}")).is_some());
    }
    // And for keys that grow.
    clock.advance(Duration::from_secs(200));
    std::thread::sleep(Duration::from_millis(150));
    for key in 0..keys / 4 {
        for _ in 0..200 {
            wait_until("a key is idle", || start(&*api, &format!("again {key}")).is_some());
        }
    }
}

/// After a reboot, each new key counts what the ledger may lack of it, which takes a larger ring. It does not take what is
/// reserved.
#[test]
fn new_keys_after_a_reboot_leave_the_reserve() {
    for size in [MIB, 4 * MIB] {
        let dir = Dir::in_memory("rebooted");
        Child::run(|| {
            present_boot(1);
            let store = sized(&dir.url(), size, None);
            (0..10).for_each(|_| assert_eq!(start(&*store.limiter("api", "2000/1h").unwrap(), "known"), Some(true)));
            store.limiter("other", "100/1h").unwrap().attempt("known", 1).unwrap();
            store.flush().unwrap();
        })
        .join();
        Child::run(|| {
            present_boot(2);
            let store = sized(&dir.url(), size, None);
            let [api, other] = ["api", "other"].map(|name| RateLimiter::attach(&store, name).unwrap());
            let keys = fill(&api, "stranger", 1);
            assert!(keys > 50, "{keys}");
            assert_eq!(api.peek("stranger 0", 1).unwrap().remaining, 1_899);
            assert!(api.peek("known", 1).unwrap().remaining <= 1_890);
            // Their own share, of what the limit left.
            for key in 0..100 {
                assert_eq!(start(&other, &format!("new {key}")), Some(true), "{size}: {key}");
            }
            // What the reserve is for.
            store.override_limit("api", "1500/1h", None).unwrap();
            assert_eq!(api.peek("stranger 0", 1).unwrap().remaining, 1_399);
            api.clear("stranger 1").unwrap();
            api.clear("").unwrap();
            assert_eq!(start(&api, "new"), Some(true));
        })
        .join();
    }
}

/// Processes die at each step of a growth.
#[cfg(feature = "fault-points")]
#[test]
fn deaths_while_rings_grow_lose_nothing_for_good() {
    let dir = Dir::in_memory("dying-growth");
    let (limit, window) = (1_000, Duration::from_secs(100));
    let store = sized(&dir.url(), 8 << 20, None);
    let limiter = RateLimiter::new(&store, "api", limit, window).unwrap();
    let points = ["key-sealed", "key-written", "log-claimed", "log-filled", "log-moved"];
    let made = shared(1);
    let before = observe::Observer::new(&store, 0).look().unwrap().used_bytes;
    for round in 0..60 {
        let key = format!("key {}", round % 3);
        made[0].store(0, Release);
        let child = Child::run(|| {
            let point = points[round % points.len()];
            let limiter = RateLimiter::new(&sized(&dir.url(), 8 << 20, None), "api", limit, window).unwrap();
            fault::at(point, || crate::common::raise(libc::SIGKILL));
            while matches!(limiter.attempt(&key, 2), Ok(Attempt::Admitted(_))) {
                made[0].fetch_add(2, AcqRel);
            }
        });
        let killed = child.was_killed();
        let all = made[0].load(Acquire) + drain(&limiter, &key).0;
        assert!(all <= limit && all + 2 >= limit, "round {round}, killed {killed}: {all}");
        limiter.clear(&key).unwrap();
        if round % 20 == 19 {
            limiter.clear("").unwrap();
        }
    }
    let seen = observe::Observer::new(&store, 0).look().unwrap();
    println!("{} bytes more used, api has {}", seen.used_bytes - before, seen.limits[0].bytes);
}
