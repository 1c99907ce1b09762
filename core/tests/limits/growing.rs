//! A key begins with a small ring, which grows with what it holds. No answer depends on how large it is.

use crate::common::{Child, Dir, Random, present_boot, shared};
use std::collections::VecDeque;
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);

fn attempt(limiter: &dyn Limiter, key: &str, weight: u64) -> Option<RawPermit> {
    match limiter.attempt(key, weight).unwrap() {
        Attempt::Admitted(permit) => Some(permit),
        Attempt::Denied(_) => None,
    }
}

/// How many single starts are admitted, of more than the limit.
fn drain(limiter: &dyn Limiter, key: &str) -> u64 {
    (0..).take_while(|_| attempt(limiter, key, 1).is_some()).count() as u64
}

/// A limit as a list of starts.
struct Model {
    windows: Vec<(u64, u64)>,
    /// When each happened, its units, and its permit.
    starts: VecDeque<(u64, u64, Option<RawPermit>)>,
}

impl Model {
    fn used(&self, window: u64, now: u64) -> u64 {
        self.starts.iter().filter(|start| start.0 + window > now).map(|start| start.1).sum()
    }

    fn left(&self, now: u64) -> u64 {
        self.windows.iter().map(|&(limit, length)| limit.saturating_sub(self.used(length, now))).min().unwrap()
    }
}

/// Starts of all weights, cancelled ones, debts and idle times, in rings of all sizes.
#[test]
fn every_answer_is_that_of_a_whole_ring() {
    for seed in 0..30 {
        let mut random = Random::seeded(seed);
        let windows = match seed % 3 {
            0 => vec![(1_000, 60_000_000)],
            1 => vec![(12, 1_000_000), (700, 60_000_000)],
            _ => vec![(90, 2_000_000), (300, 20_000_000), (2_500, 90_000_000)],
        };
        let capacity = windows.iter().map(|window| window.0).min().unwrap();
        let clock = ManualClock::new();
        let mut options = StoreOptions::default();
        options.clock = Some(clock.clone());
        let store = Store::with_options("memory:", options).unwrap();
        let all: Vec<_> = windows.iter().map(|window| (window.0, Duration::from_micros(window.1))).collect();
        let limiter = store.declare("api", Policy::rate_in(&all).unwrap()).unwrap();
        for key in ["", "key"] {
            let (mut now, mut model) = (0, Model { windows: windows.clone(), starts: VecDeque::new() });
            for step in 0..1_500 {
                let weight = 1 + random.scaled(capacity - 1);
                match random.below(100) {
                    0..75 => {
                        let (permit, left) = (attempt(&*limiter, key, weight), model.left(now));
                        assert_eq!(permit.is_some(), weight <= left, "seed {seed}, step {step}: {weight} of {left}");
                        model.starts.extend(permit.map(|permit| (now, weight, Some(permit))));
                    }
                    75..80 => {
                        let i = random.below(model.starts.len() as u64 + 1) as usize;
                        let longest = windows.last().unwrap().1;
                        if let Some((_, units, permit)) =
                            model.starts.get_mut(i).filter(|start| start.0 + longest > now)
                            && let Some(permit) = permit.take()
                        {
                            limiter.cancel(&permit).unwrap();
                            *units = 0;
                        }
                    }
                    80..82 => {
                        let last = model.starts.back_mut();
                        if let Some((at, units, permit)) = last.filter(|start| start.0 == now)
                            && let Some(permit) = permit.take()
                        {
                            let more = random.scaled(capacity);
                            limiter.settle(&permit, *units + more).unwrap();
                            let at = *at;
                            model.starts.push_back((at, more, None));
                        }
                    }
                    _ => {
                        let passed = random.scaled(3_000_000);
                        now += passed;
                        clock.advance(Duration::from_micros(passed));
                    }
                }
                let longest = windows.last().unwrap().1;
                while model.starts.front().is_some_and(|start| start.0 + longest <= now) {
                    model.starts.pop_front();
                }
                let remaining = limiter.peek(key, 1).unwrap().remaining;
                assert_eq!(remaining, model.left(now), "seed {seed}, step {step}");
            }
        }
    }
}

/// All that a key tells about itself is the same in a small ring and in a whole one.
#[test]
fn peeks_and_forecasts_are_those_of_a_whole_ring() {
    for seed in 0..12 {
        let mut random = Random::seeded(seed);
        let windows: &[(u64, u64)] = [&[(1_000, 60)][..], &[(40, 5), (900, 90)], &[(300, 20)]][seed as usize % 3];
        let windows: Vec<_> = windows.iter().map(|&(limit, length)| (limit, Duration::from_secs(length))).collect();
        let (capacity, longest) = (windows[0].0, windows.last().unwrap().1);
        let clock = ManualClock::new();
        let mut options = StoreOptions::default();
        options.clock = Some(clock.clone());
        let store = Store::with_options("memory:", options).unwrap();
        let limiter = store.declare("api", Policy::rate_in(&windows).unwrap()).unwrap();
        // Each start of all units at once, and a debt of as many, make a ring whole.
        let all = attempt(&*limiter, "whole", capacity).unwrap();
        limiter.settle(&all, 2 * capacity).unwrap();
        clock.advance(3 * longest);
        for step in 0..400 {
            let weight = 1 + random.scaled(capacity / 4);
            match random.below(10) {
                0..6 => {
                    let both = ["small", "whole"].map(|key| attempt(&*limiter, key, weight).is_some());
                    assert_eq!(both[0], both[1], "seed {seed}, step {step}");
                }
                6 => {
                    let reserve = |key| limiter.reserve(key, weight, Some(2 * longest), None).unwrap();
                    let both = ["small", "whole"].map(|key| match reserve(key) {
                        Reserved::Place { after, .. } => Some(after),
                        Reserved::Denied(_) => None,
                    });
                    assert_eq!(both[0], both[1], "seed {seed}, step {step}");
                }
                _ => clock.advance(Duration::from_micros(random.scaled(20_000_000))),
            }
            let weight = 1 + random.scaled(capacity - 1);
            let [small, whole] = ["small", "whole"].map(|key| limiter.peek(key, weight).unwrap());
            let of = |seen: &Decision| (seen.admitted, seen.retry_after, seen.remaining, seen.reset_after);
            assert_eq!(of(&small), of(&whole), "seed {seed}, step {step}: a peek of {weight}");
            let starts = 1 + random.scaled(3 * capacity);
            let [small, whole] = ["small", "whole"].map(|key| limiter.forecast(starts, key).unwrap());
            assert_eq!(small, whole, "seed {seed}, step {step}: a forecast of {starts}");
        }
    }
}

#[test]
fn threads_that_start_while_a_ring_grows_get_the_whole_limit_together() {
    for _ in 0..20 {
        let store = Store::new("memory:").unwrap();
        let limiter = RateLimiter::new(&store, "api", 300, HOUR).unwrap();
        let admitted: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| drain(&limiter, "key"))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(admitted, 300);
    }
}

/// One of them is forked from the other, with a limiter that it has used.
#[test]
fn processes_that_start_while_a_ring_grows_get_the_whole_limit_together() {
    let (dir, admitted) = (Dir::in_memory("growing-together"), shared(1));
    let store = Store::new(&dir.url()).unwrap();
    let limiter = RateLimiter::new(&store, "api", 700, HOUR).unwrap();
    for round in 0..10 {
        let key = format!("key {round}");
        let before = u64::from(attempt(&limiter, &key, 1).is_some());
        admitted[0].store(before, Release);
        let drain_it = || {
            admitted[0].fetch_add(drain(&limiter, &key), AcqRel);
        };
        let children = [Child::run(drain_it), Child::run(drain_it)];
        drain_it();
        children.into_iter().for_each(Child::join);
        assert_eq!(admitted[0].load(Acquire), 700, "{key}");
    }
}

/// Waiters of threads and places of a joint start, while the rings that they wait for grow.
#[test]
fn waiters_and_parts_see_no_end_of_a_small_ring() {
    let store = Store::new("memory:").unwrap();
    let limiter = RateLimiter::new(&store, "api", 60, Duration::from_millis(150)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..60 {
                    assert!(limiter.acquire("key", 1, None).unwrap().is_some());
                }
            });
        }
    });
    let tenants = store.limiter("tenants", "300/1h shared").unwrap();
    let calls = store.limiter("calls", "500/1h").unwrap();
    let both = CompositeLimiter::new([tenants.clone(), calls.clone()]);
    let mut admitted = [0; 2];
    for start in 0..400 {
        admitted[start % 2] += u64::from(attempt(&both, ["acme", "other"][start % 2], 1).is_some());
    }
    assert_eq!(admitted, [150, 150]);
    for key in ["acme", "other"] {
        assert_eq!((both.peek(key, 1).unwrap().remaining, calls.peek(key, 1).unwrap().remaining), (0, 350), "{key}");
    }
}

#[test]
fn permits_and_places_of_a_smaller_ring_stay_valid() {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let store = Store::with_options("memory:", options).unwrap();
    let limiter = RateLimiter::new(&store, "api", 1_000, HOUR).unwrap();
    let first: Vec<RawPermit> = (0..10).map(|_| attempt(&limiter, "key", 1).unwrap()).collect();
    let Reserved::Place { place, .. } = limiter.reserve("key", 1, None, Some(HOUR)).unwrap() else { panic!() };
    (0..600).for_each(|_| assert!(attempt(&limiter, "key", 1).is_some()));
    assert_eq!(limiter.peek("key", 1).unwrap().remaining, 389);
    first.iter().for_each(|permit| limiter.cancel(permit).unwrap());
    assert_eq!(limiter.peek("key", 1).unwrap().remaining, 399);
    assert!(matches!(limiter.present(&place).unwrap(), Presented::Started(_)));
    assert!(matches!(limiter.present(&place).unwrap(), Presented::Wait { .. }), "it started once");
    // As many places as a whole ring keeps: each waits in the key's order.
    let mut before = Duration::ZERO;
    for _ in 0..1_200 {
        let Reserved::Place { after, .. } = limiter.reserve("queue", 1, None, Some(HOUR)).unwrap() else { panic!() };
        assert!(after >= before);
        before = after;
    }
    assert_eq!(before, 2 * HOUR);
}

#[test]
fn grown_and_small_rings_change_their_policies_alike() {
    for url in ["memory:", &Dir::in_memory("growing-changes").url()] {
        let store = Store::new(url).unwrap();
        let limiter = RateLimiter::new(&store, "api", 1_000, HOUR).unwrap();
        for (key, starts) in [("small", 5), ("grown", 200)] {
            (0..starts).for_each(|_| assert!(attempt(&limiter, key, 1).is_some()));
        }
        let left = |key| limiter.peek(key, 1).unwrap().remaining;
        store.override_limit("api", "3000/1h", None).unwrap();
        assert_eq!((left("small"), left("grown")), (2_995, 2_800));
        store.override_limit("api", "50/1h", None).unwrap();
        assert_eq!((left("small"), left("grown")), (45, 0));
        store.override_limit("api", "2000/1h", Some("grown")).unwrap();
        assert_eq!(drain(&limiter, "grown"), 1_800);
        store.lift("api", None).unwrap();
        // What a small ring of the lower limit could not hold is forgotten, as it counts no longer than the limit.
        assert_eq!(left("small"), 995);
        store.lift("api", Some("grown")).unwrap();
        limiter.clear("grown").unwrap();
        assert_eq!(drain(&limiter, "grown"), 1_000);
        limiter.clear("").unwrap();
        assert_eq!((left("small"), left("grown")), (1_000, 1_000));
        assert_eq!(drain(&limiter, "small"), 1_000);
    }
}

/// A small ring has overwritten starts of earlier windows. A longer window may count them: no more than the ring could hold in each.
#[test]
fn a_longer_window_counts_what_a_small_ring_could_have_admitted() {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let store = Store::with_options("memory:", options).unwrap();
    let limiter = RateLimiter::new(&store, "api", 1_000, HOUR).unwrap();
    for _ in 0..900 {
        assert!(attempt(&limiter, "key", 1).is_some());
        clock.advance(HOUR);
    }
    store.override_limit("api", "1000/1d", None).unwrap();
    let used = 1_000 - limiter.peek("key", 1).unwrap().remaining;
    // A start an hour, and 15 at most in each that is forgotten.
    assert!((23..=24 * 15).contains(&used), "{used}");
    assert_eq!(drain(&limiter, "key"), 1_000 - used);
    clock.advance(24 * HOUR);
    assert_eq!(drain(&limiter, "key"), 1_000);
}

#[test]
fn grown_and_small_rings_are_restored_after_a_reboot() {
    let (dir, left) = (Dir::in_memory("growing-reboot"), shared(3));
    Child::run(|| {
        present_boot(1);
        let store = Store::new(&dir.url()).unwrap();
        let limiter = RateLimiter::new(&store, "api", 1_000, HOUR).unwrap();
        for (key, starts) in [("small", 5), ("grown", 200)] {
            (0..starts).for_each(|_| assert!(attempt(&limiter, key, 1).is_some()));
        }
        store.flush().unwrap();
    })
    .join();
    Child::run(|| {
        present_boot(2);
        let limiter = RateLimiter::attach(&Store::new(&dir.url()).unwrap(), "api").unwrap();
        for (left, key) in left.iter().zip(["small", "grown", "new"]) {
            left.store(drain(&limiter, key), Release);
        }
    })
    .join();
    // A start in the ledger counts, and a twentieth of the limit may be missing.
    let [small, grown, new] = [0, 1, 2].map(|i| left[i].load(Acquire));
    assert!((945..=995).contains(&small) && (750..=800).contains(&grown), "{small} {grown}");
    assert!((950..=1_000).contains(&new), "{new}");
}
