//! What a review made happen on full stores: `r1` to `r6` are red until it is mended.

use std::time::Duration;
use workglow_limit::observe::Observer;
use workglow_limit::*;

const MIB: u64 = 1 << 20;

fn sized(size: u64, clock: &ManualClock) -> Store {
    let mut options = StoreOptions::default();
    (options.max_size, options.clock) = (Some(size), Some(clock.clone()));
    options.timeout = Duration::from_secs(60);
    Store::with_options("memory:", options).unwrap()
}

fn start(limiter: &dyn Limiter, key: &str) -> std::result::Result<Option<RawPermit>, Error> {
    match limiter.attempt(key, 1) {
        Ok(Attempt::Admitted(permit)) => Ok(Some(permit)),
        Ok(Attempt::Denied(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn fill(limiter: &dyn Limiter, name: &str, starts: u64) -> u64 {
    for key in 0.. {
        for _ in 0..starts {
            match start(limiter, &format!("{name} {key}")) {
                Ok(Some(_)) => {}
                Ok(None) => panic!("denied"),
                Err(_) => return key,
            }
        }
    }
    unreachable!()
}

fn levers(store: &Store, api: &dyn Limiter, other: &dyn Limiter, permit: &RawPermit, bucket: &dyn Limiter) -> String {
    let cancel = bucket.cancel(permit);
    let over = store.override_limit("api", "3000/1h", None);
    let clear = api.clear("");
    let after = start(other, "new other");
    format!("bucket cancel {cancel:?}\n override {over:?}\n clear {clear:?}\n new key of other {:?}", after.map(|p| p.is_some()))
}

#[test]
fn r1_debts_double() {
    let clock = ManualClock::new();
    let store = sized(64 * MIB, &clock);
    let api = store.limiter("api", "4000/1h").unwrap();
    let used = || Observer::new(&store, 0).look().unwrap().used_bytes;
    start(&*api, "first").unwrap();
    for i in 0..12 {
        let before = used();
        let permit = start(&*api, "key").unwrap().unwrap();
        api.settle(&permit, 2).unwrap();
        println!("r1 settle {i}: {} bytes more, remaining {}", used() - before, api.peek("key", 1).unwrap().remaining);
    }
}

#[test]
fn r2_debts_take_the_reserve() {
    for settles in [false, true] {
        let clock = ManualClock::new();
        let store = sized(4 * MIB, &clock);
        let (api, other) = (store.limiter("api", "4000/1h").unwrap(), store.limiter("other", "100/1m").unwrap());
        let bucket = store.limiter("bucket", "100/1m burst 100").unwrap();
        let permit = start(&*bucket, "mine").unwrap().unwrap();
        let keys = fill(&*api, "stranger", 1);
        let (mut done, mut last) = (0, None);
        if settles {
            for key in 0..keys {
                let Ok(Some(permit)) = start(&*api, &format!("stranger {key}")) else { continue };
                match api.settle(&permit, 500) {
                    Ok(()) => done += 1,
                    Err(error) => last = Some(error),
                }
                if last.is_some() { break }
            }
        }
        println!("r2 settles {settles}: {keys} keys, {done} settled, then {last:?}\n {}", levers(&store, &*api, &*other, &permit, &*bucket));
    }
}

#[test]
fn r3_cancel_and_growth_take_the_reserve() {
    let clock = ManualClock::new();
    let store = sized(4 * MIB, &clock);
    let (api, other) = (store.limiter("api", "4000/1h").unwrap(), store.limiter("other", "100/1m").unwrap());
    let bucket = store.limiter("bucket", "100/1m burst 100").unwrap();
    let permit = start(&*bucket, "mine").unwrap().unwrap();
    let keys = fill(&*api, "stranger", 100);
    fill(&*other, "stranger", 1);
    fill(&*api, "more", 1);
    let used = || Observer::new(&store, 0).look().unwrap().used_bytes;
    let before = used();
    let mut failed = None;
    let mut n = 0;
    'all: for round in 0..40 {
        for key in 0..keys {
            let key = format!("stranger {key}");
            // Up to what its ring holds, so that all cancels are of keys of some size.
            let mut mine = None;
            for _ in 0..40 {
                match start(&*api, &key) {
                    Ok(Some(permit)) => mine = Some(permit),
                    _ => break,
                }
            }
            if let Some(mine) = mine {
                n += 1;
                if let Err(error) = api.cancel(&mine) {
                    failed = Some((round, key, error));
                    break 'all;
                }
            }
        }
    }
    println!("r3: {keys} keys, {n} cancels, {} bytes more, failed {failed:?}\n {}", used() - before, levers(&store, &*api, &*other, &permit, &*bucket));
}

#[test]
fn r4_growth_takes_free_blocks_beyond_the_share() {
    for starts in [1, 300] {
        let clock = ManualClock::new();
        let store = sized(8 * MIB, &clock);
        let was = store.limiter("was", "1000/1m").unwrap();
        let (flood, other) = (store.limiter("flood", "1000/1h").unwrap(), store.limiter("other", "100/1h").unwrap());
        let large = fill(&*was, "large", 300);
        clock.advance(Duration::from_secs(200));
        std::thread::sleep(Duration::from_millis(150));
        let keys = fill(&*flood, "stranger", starts);
        std::thread::sleep(Duration::from_millis(150));
        let mut grown = 0;
        if starts > 1 {
            for key in 0..keys {
                for _ in 0..700 {
                    if !matches!(start(&*flood, &format!("stranger {key}")), Ok(Some(_))) { break }
                    grown += 1;
                }
            }
        }
        std::thread::sleep(Duration::from_millis(150));
        let new = (0..20_000).take_while(|key| start(&*other, &format!("new {key}")).is_ok()).count();
        let seen = Observer::new(&store, 0).look().unwrap();
        for limit in &seen.limits { println!("   {}: {} bytes", limit.name, limit.bytes); }
        println!("r4 {starts}: {large} idle large keys, {keys} flooding keys, {grown} further starts, {new} new keys of other");
    }
}

#[test]
fn r5_the_key_that_grows_is_swept() {
    for seed in [600, 700, 900, 1_500, 3_000] {
        let clock = ManualClock::new();
        let store = sized(4 * MIB, &clock);
        let api = store.limiter("api", "4000/1h").unwrap();
        start(&*api, "known").unwrap();
        let keys = fill(&*api, "large", 600);
        for most in [3_400, 1_400, 400] {
            for key in 0..keys {
                for _ in 0..most {
                    if !matches!(start(&*api, &format!("large {key}")), Ok(Some(_))) { break }
                }
            }
        }
        clock.advance(Duration::from_secs(8_000));
        std::thread::sleep(Duration::from_millis(150));
        let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| api.attempt("known", seed)));
        println!("r5 {seed}: {keys} keys: {answer:?}");
    }
}

#[test]
fn r6_waiters_and_recorded_starts_in_a_full_store() {
    let clock = ManualClock::new();
    let store = sized(MIB, &clock);
    let api = store.limiter("api", "20/1h").unwrap();
    for _ in 0..15 { start(&*api, "known").unwrap(); }
    let keys = fill(&*api, "stranger", 1);
    for key in 0..keys {
        for _ in 0..20 {
            if !matches!(start(&*api, &format!("stranger {key}")), Ok(Some(_))) { break }
        }
    }
    std::thread::sleep(Duration::from_millis(150));
    println!("r6 start: {:?}", start(&*api, "known").map(|p| p.is_some()));
    println!("r6 reserve: {:?}", api.reserve("known", 1, Some(Duration::from_secs(7_200)), None));
    println!("r6 record_job_start: {:?}", api.record_job_start("known"));
    println!("r6 heavy that the policy denies: {:?}", api.attempt("known", 10));
    println!("r6 peek: {:?}", api.peek("known", 1).map(|seen| (seen.admitted, seen.remaining)));
    // How long it takes others to get the lock while callers hammer full keys.
    let again = std::time::Instant::now();
    let mut calls = 0;
    while again.elapsed() < Duration::from_millis(500) { let _ = start(&*api, "known"); calls += 1; }
    println!("r6 {calls} calls in 500 ms");
}
