//! The size up to which a store grows, and the share that a limit may have of it.

use crate::common::{Child, Dir, Random, shared, wait_until};
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use workglow_limit::observe::Observer;
use workglow_limit::*;

const MIB: u64 = 1 << 20;

fn sized(url: &str, max_size: u64, clock: Option<&ManualClock>) -> Store {
    let mut options = StoreOptions::default();
    (options.max_size, options.clock) = (Some(max_size), clock.cloned());
    options.timeout = Duration::from_secs(60); // a busy machine takes its time
    Store::with_options(url, options).unwrap()
}

/// Makes keys on a limit until one is refused. Returns how many there are, and the refusal.
fn flood(limiter: &dyn Limiter) -> (u64, Error) {
    let mut keys = 0;
    loop {
        match limiter.attempt(&format!("stranger {keys}"), 1) {
            Ok(Attempt::Admitted(_)) => keys += 1,
            Ok(Attempt::Denied(_)) => panic!("a new key was denied"),
            Err(error) => return (keys, error),
        }
    }
}

/// How many of so many new keys are refused.
fn refused(limiter: &dyn Limiter, keys: u64) -> u64 {
    (0..keys).filter(|i| limiter.attempt(&format!("new {i}"), 1).is_err()).count() as u64
}

fn lane(dir: &Dir) -> u64 {
    std::fs::metadata(dir.file("limits.db-lane")).unwrap().len()
}

#[test]
fn a_size_outside_its_range_is_refused() {
    for size in [0, 1, MIB - 1, (4 << 30) + 1, u64::MAX] {
        let mut options = StoreOptions::default();
        options.max_size = Some(size);
        let Err(error) = Store::with_options("memory:", options) else { panic!("{size} was accepted") };
        let Error::InvalidArgument { parameter, value, expected } = error else { panic!("{error}") };
        assert_eq!((parameter, value), ("max_size", size.to_string()));
        assert_eq!(expected, "1048576 to 4294967296 bytes (1 MiB to 4096 MiB)");
    }
}

#[test]
fn a_store_grows_up_to_its_size() {
    let dir = Dir::in_memory("sized");
    for url in ["memory:", &dir.url()] {
        for size in [MIB, 4 * MIB + 4_096] {
            let (_, full) = flood(&*sized(url, size, None).limiter("api", "100/1m").unwrap());
            assert_eq!(full.name(), "store_full");
            if url != "memory:" {
                assert!(lane(&dir) <= size, "{} of {size}", lane(&dir));
            }
        }
    }
}

/// A key takes what its starts need, with all that the store has allocated for it. A whole ring takes little more than one that was whole
/// from the beginning.
#[test]
fn keys_take_what_they_use() {
    for (policy, all, whole) in [("100/1m", 100, 2_448), ("1000/1h", 1_000, 16_793), ("4000/1h", 4_000, 66_689)] {
        let cases = [(1, 2_000, 600), (5, 2_000, 600), (10, 2_000, 600), (100, 200, 4_600), (all, 40, whole * 6 / 5)];
        for (starts, keys, most) in cases {
            let store = sized("memory:", 64 * MIB, None);
            let limiter = store.limiter("api", policy).unwrap();
            limiter.open().unwrap();
            let used = || Observer::new(&store, 0).look().unwrap().used_bytes;
            let before = used();
            for key in 0..keys {
                let started =
                    (0..starts).filter(|_| limiter.try_acquire(&format!("tenant {key}"), 1).unwrap().is_some());
                assert_eq!(started.count() as u64, starts);
            }
            let bytes = (used() - before) / keys;
            println!("{policy}, {starts} starts: {bytes} bytes a key");
            assert!(bytes <= most.max(600), "{policy}, {starts} starts: {bytes} bytes a key");
        }
    }
}

/// Each process lets the lane grow up to its own bound, and uses what others have added.
#[test]
fn a_process_with_a_smaller_bound_uses_a_larger_lane() {
    let dir = Dir::in_memory("two-bounds");
    let (large, small) = (sized(&dir.url(), 8 * MIB, None), sized(&dir.url(), MIB, None));
    let (keys, _) = flood(&*large.limiter("api", "100/1m").unwrap());
    let before = lane(&dir);
    assert!(before > 4 * MIB, "{before}");
    let known = small.limiter("api", "100/1m").unwrap();
    assert_eq!(known.peek(&format!("stranger {}", keys - 1), 1).unwrap().remaining, 99);
    assert_eq!(known.attempt("stranger", 1).unwrap_err().name(), "store_full");
    known.clear("").unwrap();
    assert_eq!(refused(&*known, keys / 2), 0);
    assert_eq!(lane(&dir), before);
}

#[test]
fn a_flood_on_one_limit_leaves_room_for_all_others() {
    for kind in ["2/1m", "100/1m", "1000/1h", "10/1m burst 5", "10/1m fixed", "3 concurrent", "20000/1m"] {
        let (dir, clock) = (Dir::in_memory("flood"), ManualClock::new());
        let store = sized(&dir.url(), 16 * MIB, Some(&clock));
        let open = |name: &str, kind: &str| store.limiter(name, kind).unwrap();
        let (login, api) = (open("login", kind), open("api", "100/1m"));
        api.attempt("known", 1).unwrap();
        let (keys, full) = flood(&*login);
        let text = full.to_string();
        assert!(full.name() == "store_full" && text.contains("\"login\"") && text.contains("16 MiB"), "{text}");
        assert!(api.decide("known", 1).unwrap().admitted && login.peek("stranger 0", 1).is_ok());
        // Limits of other sizes, of the same size, and limits that are new.
        let others = [("jobs", "3 concurrent"), ("fixed", "10/1m fixed"), ("like", kind), ("many", "400/1m")];
        assert_eq!(refused(&*api, 200), 0, "{kind}: of 200 keys, with {keys} strangers");
        for (name, of) in others {
            let keys = if ["20000/1m", "1000/1h"].contains(&of) { 10 } else { 50 };
            assert_eq!(refused(&*open(name, of), keys), 0, "{kind}: of {keys} keys of {of}");
        }
        let seen = Observer::new(&store, 0).look().unwrap();
        let of = |name: &str| seen.limits.iter().find(|limit| limit.name == name).unwrap().bytes;
        assert!((8 * MIB..13 * MIB).contains(&of("login")), "{kind}: {}", of("login"));
        assert!((200 * 384..400_000).contains(&of("api")), "{kind}: {}", of("api"));
        let sum = seen.limits.iter().map(|limit| limit.bytes).sum::<u64>();
        assert!(sum <= seen.used_bytes && seen.used_bytes <= seen.max_bytes, "{kind}: {sum} of {}", seen.used_bytes);
        assert_eq!(seen.max_bytes, 16 * MIB);
        // What a clear forgets is free.
        login.clear("").unwrap();
        assert_eq!(refused(&*login, keys / 2), 0, "{kind}: after the clear");
    }
}

/// When the strangers are idle, their limit and all others get keys as before.
#[test]
fn a_limit_that_was_flooded_takes_new_keys_when_the_strangers_are_idle() {
    for kind in ["100/1m", "10/1m burst 5"] {
        let (dir, clock) = (Dir::in_memory("idle-flood"), ManualClock::new());
        let store = sized(&dir.url(), 8 * MIB, Some(&clock));
        let [login, like] = ["login", "like"].map(|name| store.limiter(name, kind).unwrap());
        let (keys, _) = flood(&*login);
        for round in 0..3 {
            clock.advance(Duration::from_secs(200));
            // A futile search is not repeated at once.
            std::thread::sleep(Duration::from_millis(150));
            // Then new keys of `like` get what was the other limit's. A search takes a few steps of those that this needs.
            for limiter in [&login, &like] {
                for i in 0..keys / 3 {
                    wait_until("a key is idle", || limiter.attempt(&format!("{round} {i}"), 1).is_ok());
                }
            }
        }
    }
}

/// A refused key searches for a few steps, whatever the number of keys; the next one goes on where it stopped.
#[cfg(feature = "fault-points")]
#[test]
fn a_refused_key_searches_for_a_few_steps() {
    use std::sync::atomic::AtomicU64;
    static STEPS: AtomicU64 = AtomicU64::new(0);
    fn count() {
        STEPS.fetch_add(1, Relaxed);
        fault::at("sweeping", count);
    }
    Child::run(|| {
        let (dir, clock) = (Dir::in_memory("few-steps"), ManualClock::new());
        let store = sized(&dir.url(), 32 * MIB, Some(&clock));
        let login = store.limiter("login", "10/1m fixed").unwrap();
        flood(&*login);
        fault::at("sweeping", count);
        for i in 0..20 {
            let before = STEPS.load(Relaxed);
            login.attempt(&format!("refused {i}"), 1).unwrap_err();
            let steps = STEPS.load(Relaxed) - before;
            assert!(steps <= 8, "{steps} steps of one key");
        }
        // Most of them came too soon after a search in vain.
        assert!(STEPS.load(Relaxed) > 0 || cfg!(debug_assertions), "no search");
    })
    .join();
}

/// Strangers fill a limit from four processes, which are killed at any moment. The others keep taking keys, and what the
/// dead have left half done neither makes the share smaller nor larger for good.
#[test]
fn a_flood_from_processes_that_are_killed_takes_no_other_limits_room() {
    let dir = Dir::in_memory("killed-flood");
    let open = || sized(&dir.url(), 16 * MIB, None);
    let store = open();
    let (login, api) = (store.limiter("login", "100/1h").unwrap(), store.limiter("api", "100/1h").unwrap());
    login.open().unwrap();
    let (made, mut random, mut kills) = (shared(2), Random::new(), 0);
    for round in 0..6 {
        let begun = made[0].load(Relaxed);
        let strangers: Vec<_> = (0..4)
            .map(|process| {
                Child::run(|| {
                    let store = open();
                    let login = store.limiter("login", "100/1h").unwrap();
                    for i in 0.. {
                        match login.attempt(&format!("{round} {process} {i}"), 1) {
                            Ok(_) => made[0].fetch_add(1, Relaxed),
                            Err(Error::StoreFull { .. }) => made[1].fetch_add(1, Relaxed),
                            Err(error) => panic!("{error}"),
                        };
                    }
                })
            })
            .collect();
        let refused = made[1].load(Relaxed);
        wait_until("keys are made or refused", || {
            made[0].load(Relaxed) > begun + 300 || made[1].load(Relaxed) > refused + 100
        });
        for i in 0..20 {
            api.attempt(&format!("{round} {i}"), 1).unwrap_or_else(|e| panic!("{round} {i}: {e}"));
        }
        std::thread::sleep(Duration::from_micros(random.below(3_000)));
        for stranger in strangers {
            stranger.signal(libc::SIGKILL);
            kills += u64::from(stranger.was_killed());
        }
    }
    flood(&*login);
    let bytes = || {
        let seen = Observer::new(&store, 0).look().unwrap();
        seen.limits.iter().find(|limit| limit.name == "login").unwrap().bytes
    };
    let full = bytes();
    println!("{} keys, {} refused, {kills} kills, {} KiB", made[0].load(Relaxed), made[1].load(Relaxed), full >> 10);
    assert!(kills == 24 && (8 * MIB..13 * MIB).contains(&full), "{kills} kills, {full} bytes");
    login.clear("").unwrap();
    assert_eq!(refused(&*login, 2_000), 0);
}
