//! Keys whose rings cannot grow: there is no space, or no way to the lock. Never does anything exceed its limit for that.

use crate::common::{Child, Dir, present_boot, shared, wait_until};
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use workglow_limit::embed::MayWait;
use workglow_limit::observe::Observer;
use workglow_limit::*;

pub const MIB: u64 = 1 << 20;
pub const HOUR: Duration = Duration::from_secs(3_600);

pub fn sized(url: &str, size: u64, clock: Option<&ManualClock>) -> Store {
    let mut options = StoreOptions::default();
    (options.max_size, options.clock) = (Some(size), clock.cloned());
    options.timeout = Duration::from_secs(60); // a busy machine takes its time
    Store::with_options(url, options).unwrap()
}

/// A permit, or `None` for a denial or a new key for which there is no space.
pub fn start(limiter: &dyn Limiter, key: &str, weight: u64) -> Option<RawPermit> {
    match limiter.attempt(key, weight) {
        Ok(Attempt::Admitted(permit)) => Some(permit),
        Ok(Attempt::Denied(_)) | Err(Error::StoreFull { .. }) => None,
        Err(error) => panic!("\"{key}\": {error}"),
    }
}

/// Makes keys with these starts until there is no space for one more. Returns how many there are.
fn fill(limiter: &dyn Limiter, name: &str, starts: u64) -> u64 {
    let fits = |key: &u64| (0..starts).all(|_| start(limiter, &format!("{name} {key}"), 1).is_some());
    (0..).take_while(fits).count() as u64
}

/// The same with one start each, but goes on after a search that has ended before it found anything.
fn fill_all(limiter: &dyn Limiter, name: &str) -> u64 {
    let (mut keys, mut refused) = (0, 0);
    while refused < 20 {
        let is_new = start(limiter, &format!("{name} {keys}"), 1).is_some();
        (keys, refused) = if is_new { (keys + 1, 0) } else { (keys, refused + 1) };
        if !is_new {
            std::thread::sleep(Duration::from_millis(110)); // a search in vain is not repeated at once
        }
    }
    keys
}

/// How many single starts are admitted.
pub fn drain(limiter: &dyn Limiter, key: &str) -> u64 {
    (0..).take_while(|_| start(limiter, key, 1).is_some()).count() as u64
}

fn denied(limiter: &dyn Limiter, key: &str, weight: u64) -> Duration {
    match limiter.attempt(key, weight).unwrap() {
        Attempt::Denied(after) => after,
        Attempt::Admitted(_) => panic!("a start of {weight} was admitted"),
    }
}

fn used(store: &Store) -> u64 {
    Observer::new(store, 0).look().unwrap().used_bytes
}

/// A store that strangers of a shorter window fill, whose rings have grown, and a key with as many starts as its ring holds.
struct Crowded {
    clock: ManualClock,
    store: Store,
    api: std::sync::Arc<dyn Limiter>,
}

fn crowded(policy: &str) -> Crowded {
    let clock = ManualClock::new();
    let store = sized("memory:", MIB, Some(&clock));
    let api = store.limiter("api", policy).unwrap();
    (0..15).for_each(|_| assert!(start(&*api, "known", 1).is_some()));
    crowd(&store, &*api);
    Crowded { clock, store, api }
}

/// All that is left goes to limits that have their share, until keys of `api` with 15 starts do not grow.
pub fn crowd(store: &Store, api: &dyn Limiter) {
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

/// What a holder of the lock does with the reserve works.
fn the_reserve_is_there(store: &Store, api: &dyn Limiter, bucket: (&dyn Limiter, &RawPermit)) {
    bucket.0.cancel(bucket.1).unwrap();
    store.override_limit("api", "3000/1h", None).unwrap();
    store.limiter("new limit", "20/1m").unwrap().open().unwrap();
    api.clear("").unwrap();
    assert!(start(api, "new", 1).is_some());
}

/// It fails as the store does for new keys, and as the store's owner chose. What the policy denies is denied.
#[test]
fn a_key_that_cannot_grow_fails_as_a_full_store() {
    let Crowded { clock, store, api } = crowded("20/1h");
    let is_full = |answer: Result<()>| assert_eq!(answer.unwrap_err().name(), "store_full");
    let failures = store.failures();
    is_full(api.attempt("known", 1).map(drop));
    is_full(api.attempt("known", 5).map(drop));
    is_full(api.record_job_start("known"));
    is_full(api.reserve("known", 1, Some(4 * HOUR), None).map(drop));
    is_full(api.acquire("known", 1, Some(Duration::from_secs(1))).map(drop));
    assert!(store.failures() >= failures + 5);
    for weight in 6..=20 {
        assert_eq!(denied(&*api, "known", weight), HOUR, "a start of {weight}");
    }
    assert_eq!(api.peek("known", 1).unwrap().remaining, 5);
    // No such answer took anything.
    clock.advance(HOUR / 2);
    wait_until("strangers who are idle give their space", || start(&*api, "known", 5).is_some());
    assert_eq!(denied(&*api, "known", 1), HOUR / 2);
}

/// Soon after a search in vain, such an answer takes no lock: a caller gets it that would have to wait for that.
#[test]
fn a_key_that_cannot_grow_fails_without_the_lock() {
    let Crowded { api, .. } = crowded("20/1h");
    wait_until("an answer at once", || {
        assert!(start(&*api, "known", 1).is_none());
        matches!(MayWait::Never.during(|| api.attempt("known", 1)), Err(Error::StoreFull { .. }))
    });
}

#[test]
fn a_key_that_cannot_grow_is_answered_as_its_store_says() {
    for on_error in [OnError::Deny, OnError::Admit] {
        let mut options = StoreOptions::default();
        (options.max_size, options.on_error) = (Some(MIB), on_error);
        options.timeout = Duration::from_secs(60);
        let store = Store::with_options("memory:", options).unwrap();
        let api = store.limiter("api", "1000/1h").unwrap();
        let key = |at: u64| format!("key {}", at % 200);
        let admitted = (0..200_000).filter(|at| start(&*api, &key(*at), 1).is_some()).count() as u64;
        let failures = store.failures();
        assert!(failures > 0, "{on_error:?}");
        // Denied starts were beyond the ring, and admitted ones are beyond the store.
        let refused = if on_error == OnError::Deny { failures } else { 0 };
        assert_eq!(admitted + refused, 200_000, "{on_error:?}");
    }
}

/// A limit without keys needs no lock for any of its starts, and so no descriptor.
#[test]
fn a_process_without_descriptors_decides_in_the_rings_that_keys_have() {
    let dir = Dir::in_memory("no-descriptor");
    Child::run(|| {
        let store = sized(&dir.url(), 64 * MIB, Some(&ManualClock::new()));
        // (Starts of longer windows are written to the ledger.)
        let limiter = RateLimiter::new(&store, "api", 20, Duration::from_secs(60)).unwrap();
        (0..10).for_each(|_| assert!(start(&limiter, "key", 1).is_some()));
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: plain calls.
        unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before), 0);
            let none = libc::rlimit { rlim_cur: 0, ..before };
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none), 0);
        }
        assert_eq!(drain(&limiter, ""), 20);
        (0..5).for_each(|_| assert!(start(&limiter, "key", 1).is_some()));
        let error = limiter.attempt("key", 1).map(drop).unwrap_err();
        assert_eq!(error.name(), "store_failure", "{error}");
        // SAFETY: a plain call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const before) }, 0);
        assert_eq!(drain(&limiter, "key"), 5);
    })
    .join();
}

/// A process is stopped under the lock. One call waits for the store's timeout, and others learn at once that it is busy.
#[cfg(feature = "fault-points")]
#[test]
fn keys_that_cannot_grow_wait_for_a_stopped_process_once() {
    let dir = Dir::in_memory("stopped-lock");
    let open = |timeout| {
        let mut options = StoreOptions::default();
        options.timeout = Duration::from_millis(timeout);
        Store::with_options(&dir.url(), options).unwrap()
    };
    let store = open(60_000);
    let limiter = RateLimiter::new(&store, "api", 100, Duration::from_secs(100)).unwrap();
    for key in 0..8 {
        (0..15).for_each(|_| assert!(start(&limiter, &format!("key {key}"), 1).is_some()));
    }
    // With a timeout of a minute, whoever waited would not be seen.
    let hasty = RateLimiter::attach(&open(10), "api").unwrap();
    wait_until("the limit is found", || hasty.peek("", 1).is_ok());
    let stopped = Child::run(|| {
        let other = RateLimiter::new(&open(60_000), "other", 1, Duration::from_secs(60)).unwrap();
        let permit = start(&other, "", 1).unwrap();
        workglow_limit::fault::at("key-sealed", || crate::common::raise(libc::SIGSTOP));
        other.cancel(&permit).unwrap();
    });
    stopped.wait_until_stopped();
    let name = |limiter: &dyn Limiter, key| limiter.attempt(&format!("key {key}"), 1).map(drop).unwrap_err().name();
    wait_until("a wait, and then none", || (name(&hasty, 0), name(&hasty, 1)) == ("store_timeout", "store_failure"));
    let briefly = |key| MayWait::Briefly.during(|| name(&limiter, key));
    wait_until("a short wait, and then none", || (briefly(2), briefly(3)) == ("store_timeout", "store_failure"));
    assert_eq!(MayWait::Never.during(|| name(&limiter, 4)), "would_wait");
    stopped.signal(libc::SIGCONT);
    stopped.join();
    (0..8).for_each(|key| wait_until("it grows", || drain(&limiter, &format!("key {key}")) > 0));
}

#[test]
fn a_debt_takes_a_ring_for_what_counts() {
    let store = sized("memory:", 64 * MIB, None);
    let api = store.limiter("api", "4000/1h").unwrap();
    start(&*api, "key", 1).unwrap();
    let before = used(&store);
    for _ in 0..40 {
        let permit = start(&*api, "key", 1).unwrap();
        api.settle(&permit, 2).unwrap();
    }
    assert_eq!(api.peek("key", 1).unwrap().remaining, 4_000 - 81);
    assert!(used(&store) - before < 16_000, "{} bytes more", used(&store) - before);
}

#[test]
fn debts_of_a_full_store_leave_the_reserve() {
    let clock = ManualClock::new();
    let store = sized("memory:", 4 * MIB, Some(&clock));
    let (api, other) = (store.limiter("api", "4000/1h").unwrap(), store.limiter("other", "100/1m").unwrap());
    let bucket = store.limiter("bucket", "100/1m burst 100").unwrap();
    let permit = start(&*bucket, "mine", 1).unwrap();
    let keys = fill(&*api, "stranger", 1);
    for key in 0..keys {
        let key = format!("stranger {key}");
        let permit = start(&*api, &key, 1).unwrap();
        api.settle(&permit, 500).unwrap();
        assert_eq!(api.peek(&key, 1).unwrap().remaining, 4_000 - 501, "{key} of {keys}");
    }
    assert!(start(&*other, "new", 1).is_some());
    let seen = Observer::new(&store, 0).look().unwrap();
    let debts = seen.limits.iter().find(|limit| limit.name == "api").unwrap().bytes;
    assert!(debts <= 3 * MIB, "{debts} bytes of {keys} keys");
    // What was left out counts in a longer window, too.
    store.override_limit("api", "4000/1d", None).unwrap();
    for key in [0, keys / 2, keys - 1] {
        let left = api.peek(&format!("stranger {key}"), 1).unwrap().remaining;
        assert!(left <= 4_000 - 501, "{left} of key {key} of {keys}");
    }
    the_reserve_is_there(&store, &*api, (&*bucket, &permit));
}

/// Starts and cancelled starts of keys of all sizes, until none of them grows.
#[test]
fn growing_rings_of_a_full_store_leave_the_reserve() {
    let clock = ManualClock::new();
    let store = sized("memory:", 4 * MIB, Some(&clock));
    let (api, other) = (store.limiter("api", "4000/1h").unwrap(), store.limiter("other", "100/1m").unwrap());
    let bucket = store.limiter("bucket", "100/1m burst 100").unwrap();
    let permit = start(&*bucket, "mine", 1).unwrap();
    let keys = fill(&*api, "stranger", 100);
    for _ in 0..20 {
        for key in 0..keys {
            let key = format!("stranger {key}");
            let mine: Vec<_> = (0..40).map_while(|_| start(&*api, &key, 1)).collect();
            mine.last().into_iter().for_each(|permit| api.cancel(permit).unwrap());
        }
    }
    assert!(start(&*other, "new", 1).is_some());
    the_reserve_is_there(&store, &*api, (&*bucket, &permit));
}

/// A restart restores keys that have more starts than new keys have space for.
#[test]
fn restored_keys_of_a_full_store_leave_the_reserve() {
    let (dir, made) = (Dir::in_memory("rebooted-full"), shared(1));
    Child::run(|| {
        present_boot(1);
        let store = sized(&dir.url(), MIB, None);
        let api = store.limiter("api", "4000/1h").unwrap();
        made[0].store(fill(&*api, "key", 100), Release);
        store.limiter("bucket", "100/1m burst 100").unwrap().attempt("mine", 1).unwrap();
        store.flush().unwrap();
    })
    .join();
    Child::run(|| {
        present_boot(2);
        let store = sized(&dir.url(), MIB, None);
        let api = RateLimiter::attach(&store, "api").unwrap();
        for key in 0..made[0].load(Acquire) {
            let left = api.peek(&format!("key {key}"), 1).unwrap().remaining;
            assert!(left <= 3_900, "key {key}: {left}");
            let left = api.decide(&format!("key {key}"), 1).unwrap().remaining;
            assert!(left < 3_900, "key {key}: {left}");
        }
        // (A new limit: the others count what the ledger may lack.)
        let bucket = store.limiter("another bucket", "100/1m burst 100").unwrap();
        let permit = start(&*bucket, "", 1).unwrap();
        the_reserve_is_there(&store, &api, (&*bucket, &permit));
    })
    .join();
}

/// The search for space may forget the very key that needs it.
#[test]
fn a_key_that_is_forgotten_while_it_grows_begins_again() {
    for weight in [600, 700, 900, 1_500, 3_000] {
        let clock = ManualClock::new();
        let store = sized("memory:", 4 * MIB, Some(&clock));
        let api = store.limiter("api", "4000/1h").unwrap();
        start(&*api, "known", 1).unwrap();
        let keys = fill(&*api, "large", 600);
        for most in [3_400, 1_400, 400] {
            for key in 0..keys {
                (0..most).take_while(|_| start(&*api, &format!("large {key}"), 1).is_some()).count();
            }
        }
        clock.advance(Duration::from_secs(8_000));
        wait_until("idle keys give their space", || start(&*api, "known", weight).is_some());
        assert_eq!(api.peek("known", 1).unwrap().remaining, 4_000 - weight);
    }
}

/// What belongs to large blocks that nobody uses serves small keys.
#[test]
fn large_blocks_of_idle_keys_are_divided() {
    let clock = ManualClock::new();
    let store = sized("memory:", 8 * MIB, Some(&clock));
    let (large, small) = (store.limiter("large", "1000/1m").unwrap(), store.limiter("small", "100/1h").unwrap());
    let keys = fill(&*large, "large", 300);
    assert!(keys > 400, "{keys}");
    clock.advance(Duration::from_secs(200));
    let new = fill_all(&*small, "new");
    println!("{keys} large keys, then {new} small ones");
    assert!(new > 6_000, "{new} small keys after {keys} large ones");
    // And their starts are theirs alone.
    for key in 0..new {
        assert_eq!(small.peek(&format!("new {key}"), 1).unwrap().remaining, 99, "new {key}");
    }
}

/// Rings grow within their limit's share, also into blocks that are free.
#[test]
fn growing_rings_leave_other_limits_their_share() {
    let clock = ManualClock::new();
    let store = sized("memory:", 8 * MIB, Some(&clock));
    let was = store.limiter("was", "1000/1m").unwrap();
    let (flood, other) = (store.limiter("flood", "1000/1h").unwrap(), store.limiter("other", "100/1h").unwrap());
    fill(&*was, "large", 300);
    clock.advance(Duration::from_secs(200));
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(150));
        let keys = fill(&*flood, "stranger", 1).max(400);
        (0..keys).for_each(|key| _ = drain(&*flood, &format!("stranger {key}")));
    }
    std::thread::sleep(Duration::from_millis(150));
    let new = fill_all(&*other, "new");
    let seen = Observer::new(&store, 0).look().unwrap();
    println!("{new} new keys of another limit, {} bytes used", seen.used_bytes);
    let flood = seen.limits.iter().find(|limit| limit.name == "flood").unwrap().bytes;
    assert!(flood <= 6 * MIB && new > 500, "{flood} bytes, then {new} new keys of another limit");
}

/// A start that is too heavy for a ring, and that the policy denies.
#[test]
fn a_denied_start_makes_no_ring_grow() {
    let store = sized("memory:", 64 * MIB, None);
    let api = store.limiter("api", "20/1h").unwrap();
    (0..15).for_each(|_| assert!(start(&*api, "key", 1).is_some()));
    let before = used(&store);
    for weight in 6..=20 {
        denied(&*api, "key", weight);
        assert_eq!(used(&store), before, "a start of {weight}");
    }
}

/// The key "" has a whole ring.
#[test]
fn a_limit_without_keys_never_grows() {
    let store = sized("memory:", 64 * MIB, None);
    for (name, policy) in [("a", "20/1h"), ("b", "1000/1h"), ("c", "4096/1h")] {
        let limiter = store.limiter(name, policy).unwrap();
        assert!(start(&*limiter, "", 1).is_some());
        let before = used(&store);
        let all = drain(&*limiter, "");
        assert_eq!((all + 1).to_string() + "/1h", policy);
        assert_eq!(used(&store), before);
    }
}

/// A call that must not wait makes no file larger.
#[test]
fn a_ring_that_grows_on_an_event_loop_makes_no_file_larger() {
    let dir = Dir::in_memory("loop");
    let store = sized(&dir.url(), 64 * MIB, None);
    let api = store.limiter("api", "4000/1h").unwrap();
    let lane = || std::fs::metadata(dir.file("limits.db-lane")).unwrap().len();
    let mut others = 0;
    for key in 0..600 {
        let key = format!("key {key}");
        (0..15).for_each(|_| assert!(start(&*api, &key, 1).is_some()));
        let before = lane();
        let answer = MayWait::Never.during(|| api.attempt(&key, 64));
        assert_eq!(lane(), before, "{key}");
        match answer {
            Ok(Attempt::Admitted(_)) => {}
            Err(Error::WouldWait) => others += u64::from(start(&*api, &key, 64).is_some()),
            other => panic!("{other:?}"),
        }
    }
    assert!(others < 600, "none grew at once");
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

/// A permit whose identity was lost for want of memory still owes what it cost.
#[test]
fn a_debt_of_a_start_without_identity_counts() {
    let clock = ManualClock::new();
    let store = sized("memory:", MIB, Some(&clock));
    let api = store.limiter("api", "1000/1h").unwrap();
    let permits: Vec<_> = (0..5).map(|_| start(&*api, "known", 1).unwrap()).collect();
    let others: Vec<_> = (0..60).map(|key| start(&*api, &format!("other {key}"), 1).unwrap()).collect();
    crowd(&store, &*api);
    // What is left for identities.
    others.iter().for_each(|permit| api.cancel(permit).unwrap());
    api.cancel(&permits[0]).unwrap();
    let before = api.peek("known", 1).unwrap().remaining;
    api.settle(&permits[1], 401).unwrap();
    let after = api.peek("known", 1).unwrap().remaining;
    assert!(after + 400 <= before || after == 0, "{before} left, and {after} after a debt of 400");
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
        for _ in 0..4 {
            clock.advance(HOUR / 2);
            assert!(start(&*api, "known", 1).is_some());
        }
        let last = start(&*api, "known", 1).unwrap();
        api.cancel(&last).unwrap();
        store.override_limit("api", "4000/1d", None).unwrap();
        clock.advance(Duration::from_secs(21 * 3_600 + 1_800));
        let left = api.peek("known", 1).unwrap().remaining;
        assert!(left <= 4_000 - 2_504, "{left} after 23.5 hours");
    }
}

/// The first debt that does not fit leaves out all earlier starts of its key.
#[test]
fn a_debt_of_a_start_that_was_left_out_counts() {
    let clock = ManualClock::new();
    let store = sized("memory:", MIB, Some(&clock));
    let api = store.limiter("api", "4000/1h").unwrap();
    let permits: Vec<_> = (0..5).map(|_| start(&*api, "known", 1).unwrap()).collect();
    crowd(&store, &*api);
    clock.advance(Duration::from_secs(1));
    let mut left = api.peek("known", 1).unwrap().remaining;
    for permit in &permits {
        api.settle(permit, 401).unwrap();
        let now = api.peek("known", 1).unwrap().remaining;
        assert!(now + 400 <= left, "{left} left, and {now} after a debt of 400");
        left = now;
    }
}
