//! Waiters: they get places in the order of their requests, and an invalid place never becomes a start.

use crate::common::wait::Wait;
use std::time::Duration;
use workglow_limit::embed::Step;
use workglow_limit::*;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

struct Bench {
    clock: ManualClock,
    store: Store,
    limiter: RateLimiter,
}

/// One start per 1,000 ms (grace 25 ms), which is taken at 0.
fn full() -> Bench {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let store = Store::with_options("memory:", options).unwrap();
    let limiter = RateLimiter::new(&store, "api", 1, ms(1_000)).unwrap();
    assert!(limiter.try_acquire("", 1).unwrap().is_some());
    Bench { clock, store, limiter }
}

fn sleeps(limiter: &RateLimiter, wait: &mut Wait) -> Duration {
    match wait.step(limiter).unwrap() {
        Step::Sleep(nap) => nap,
        other => panic!("{other:?}"),
    }
}

fn starts(limiter: &RateLimiter, wait: &mut Wait) -> bool {
    matches!(wait.step(limiter).unwrap(), Step::Admitted(_))
}

#[test]
fn places_are_a_window_and_a_grace_apart() {
    let Bench { clock, limiter, .. } = full();
    let mut waits: Vec<_> = (0..3).map(|_| Wait::new("", 1, None)).collect();
    let naps: Vec<_> = waits.iter_mut().map(|wait| sleeps(&limiter, wait)).collect();
    assert_eq!(naps, [ms(1_000), ms(2_025), ms(3_050)]);
    assert!(!limiter.can_proceed("").unwrap(), "no caller overtakes waiters");
    clock.advance(ms(1_000));
    assert!(starts(&limiter, &mut waits[0]));
    assert_eq!(sleeps(&limiter, &mut waits[1]), ms(1_025), "woken early, it sleeps again");
    clock.advance(ms(1_025));
    assert!(starts(&limiter, &mut waits[1]));
    clock.advance(ms(1_025) + ms(25));
    assert!(starts(&limiter, &mut waits[2]), "late, but within its grace");
}

#[test]
fn a_place_is_valid_exactly_until_its_grace_ends() {
    let Bench { clock, limiter, .. } = full();
    let mut wait = Wait::new("", 1, None);
    sleeps(&limiter, &mut wait);
    clock.advance(ms(1_025));
    assert!(starts(&limiter, &mut wait));
    assert_eq!(limiter.peek("", 1).unwrap().retry_after, ms(1_000), "it counts from the end of its grace");
    let mut wait = Wait::new("", 1, None);
    assert_eq!(sleeps(&limiter, &mut wait), ms(1_000));
    clock.advance(ms(1_025) + Duration::from_micros(1));
    // Too late: it gets a new place, which is ready at once because the old one did not start.
    assert!(starts(&limiter, &mut wait));
    assert_eq!(limiter.peek("", 1).unwrap().retry_after, ms(1_000), "it started at once, and gave its grace back");
}

/// Callers that always wait get the whole capacity of a limit, however long the grace, if they are on time.
#[test]
fn constant_waiting_uses_the_whole_capacity() {
    for (max, weight, grace) in [(1, 1, None), (10, 1, None), (10, 1, Some(ms(250))), (10, 5, Some(ms(250)))] {
        let clock = ManualClock::new();
        let mut options = StoreOptions::default();
        options.clock = Some(clock.clone());
        let limiter =
            RateLimiter::new(&Store::with_options("memory:", options).unwrap(), "api", max, ms(1_000)).unwrap();
        let mut units = 0;
        while clock.now() < ms(100_000) {
            let Reserved::Place { place, after } = limiter.reserve("", weight, None, grace).unwrap() else { panic!() };
            clock.advance(after);
            assert!(matches!(limiter.present(&place).unwrap(), Presented::Started(_)));
            units += weight;
        }
        let capacity = 100 * max + max;
        assert!(units * 100 >= capacity * 99 && units <= capacity, "{units} of {capacity} with {grace:?}");
    }
}

#[test]
fn a_gate_that_closes_exchanges_waiting_places() {
    let Bench { clock, limiter, .. } = full();
    let mut wait = Wait::new("", 1, None);
    sleeps(&limiter, &mut wait);
    limiter.pause("", ms(5_000)).unwrap();
    clock.advance(ms(1_000));
    assert_eq!(sleeps(&limiter, &mut wait), ms(4_000));
    clock.advance(ms(4_000));
    assert!(starts(&limiter, &mut wait));
}

#[test]
fn a_clear_exchanges_the_place_for_one_that_counts() {
    let Bench { clock, limiter, .. } = full();
    let mut wait = Wait::new("", 1, None);
    sleeps(&limiter, &mut wait);
    limiter.clear("").unwrap();
    clock.advance(ms(1_000));
    assert!(starts(&limiter, &mut wait));
    assert!(!limiter.can_proceed("").unwrap());
}

#[test]
fn another_policy_exchanges_the_place() {
    let Bench { clock, store, limiter } = full();
    let mut wait = Wait::new("", 1, None);
    sleeps(&limiter, &mut wait);
    RateLimiter::new(&store, "api", 1, ms(3_000)).unwrap().open().unwrap();
    clock.advance(ms(1_000));
    assert_eq!(sleeps(&limiter, &mut wait), ms(2_000));
}

#[test]
fn cleared_or_abandoned_places_delay_no_one() {
    let Bench { clock, store, limiter } = full();
    for _ in 0..10 {
        sleeps(&limiter, &mut Wait::new("", 1, None));
    }
    limiter.clear("").unwrap();
    assert!(limiter.try_acquire("", 1).unwrap().is_some());
    assert_eq!(limiter.peek("", 1).unwrap().retry_after, ms(1_000));
    for _ in 0..10 {
        sleeps(&limiter, &mut Wait::new("", 1, None));
    }
    let raised = RateLimiter::new(&store, "api", 100, ms(1_000)).unwrap();
    let admitted = (0..200).filter(|_| raised.try_acquire("", 1).unwrap().is_some()).count();
    assert_eq!(admitted, 100 - 1, "added capacity is usable at once, including that of places that have not started");
    clock.advance(ms(1_000));
    let admitted = (0..200).filter(|_| raised.try_acquire("", 1).unwrap().is_some()).count();
    assert_eq!(admitted, 100);
}

#[test]
fn a_handle_that_only_peeks_follows_policy_changes() {
    let Bench { store, limiter, .. } = full();
    assert_eq!(limiter.peek("key", 1).unwrap().limit, 1);
    let new = RateLimiter::new(&store, "api", 2, ms(5_000)).unwrap();
    assert!(new.try_acquire("key", 2).unwrap().is_some());
    let seen = limiter.peek("key", 1).unwrap();
    assert_eq!((seen.admitted, seen.limit, seen.retry_after), (false, 2, ms(5_000)));
}

#[test]
fn an_unreachable_deadline_is_reported_at_once_and_takes_nothing() {
    let Bench { limiter, .. } = full();
    let mut wait = Wait::new("", 1, Some(ms(999)));
    assert_eq!(wait.step(&limiter).unwrap(), Step::Expired(ms(1_000)));
    assert_eq!(limiter.peek("", 1).unwrap().retry_after, ms(1_000));
    assert!(limiter.acquire("", 1, Some(ms(999))).unwrap().is_none());
}

#[test]
fn heavy_waiters_do_not_starve() {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let limiter = RateLimiter::new(&Store::with_options("memory:", options).unwrap(), "api", 4, ms(1_000)).unwrap();
    for _ in 0..4 {
        assert!(limiter.try_acquire("", 1).unwrap().is_some());
        clock.advance(ms(100));
    }
    let mut heavy = Wait::new("", 4, None);
    assert_eq!(sleeps(&limiter, &mut heavy), ms(900));
    clock.advance(ms(600));
    assert!(limiter.try_acquire("", 1).unwrap().is_none(), "the free unit belongs to the heavy waiter");
    clock.advance(ms(300));
    assert!(starts(&limiter, &mut heavy));
}

#[test]
fn blocked_threads_wake_when_the_clock_moves() {
    let Bench { clock, limiter, .. } = full();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| limiter.acquire("", 1, None).unwrap().is_some());
        while !waiter.is_finished() {
            clock.advance(ms(10));
            std::thread::yield_now();
        }
        assert!(waiter.join().unwrap());
    });
}

#[test]
fn a_completion_wakes_a_waiter_for_a_slot() {
    let limiter = ConcurrencyLimiter::new(1).unwrap();
    let held = limiter.try_acquire("", 1).unwrap().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| limiter.acquire("", 1, None).unwrap().is_some());
        assert!(limiter.acquire("", 1, Some(ms(20))).unwrap().is_none());
        held.complete().unwrap();
        assert!(waiter.join().unwrap());
    });
    assert_eq!(limiter.peek("", 1).unwrap().remaining, 1);
}

#[test]
fn a_gate_beyond_the_deadline_expires_the_waiter_at_once() {
    let slots = std::sync::Arc::new(ConcurrencyLimiter::new(1).unwrap());
    let both = CompositeLimiter::new([slots.clone() as std::sync::Arc<dyn Limiter>]);
    slots.pause("", ms(3_600_000)).unwrap();
    let limiters: [&dyn Limiter; 2] = [&*slots, &both];
    for limiter in limiters {
        assert!(matches!(Wait::new("", 1, Some(ms(1_000))).step(limiter).unwrap(), Step::Expired(_)));
    }
}

#[test]
fn a_composite_waits_for_all_of_its_children() {
    let Bench { clock, limiter, .. } = full();
    let slots = std::sync::Arc::new(ConcurrencyLimiter::with_clock(1, clock.clone()).unwrap());
    let both = CompositeLimiter::new([slots.clone() as std::sync::Arc<dyn Limiter>, std::sync::Arc::new(limiter)]);
    let Attempt::Admitted(held) = slots.attempt("", 1).unwrap() else { panic!("the limit has capacity") };
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| both.acquire("", 1, None).unwrap().is_some());
        for _ in 0..100 {
            clock.advance(ms(10));
        }
        assert!(!waiter.is_finished(), "the slot is still taken");
        slots.complete(&held).unwrap();
        while !waiter.is_finished() {
            clock.advance(ms(10));
            std::thread::yield_now();
        }
        assert!(waiter.join().unwrap());
    });
}

#[test]
fn a_gate_in_the_past_has_no_effect() {
    let limiter = RateLimiter::new(&Store::new("memory:").unwrap(), "api", 4_096, ms(1_000)).unwrap();
    for _ in 0..1_000 {
        limiter.set_next_available_time("", std::time::SystemTime::now()).unwrap();
        limiter.pause("key", Duration::ZERO).unwrap();
        assert!(limiter.can_proceed("").unwrap() && limiter.can_proceed("key").unwrap());
    }
}

#[test]
fn rounding_to_microseconds_never_lets_a_start_happen_early() {
    let ns = Duration::from_nanos;
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let store = Store::with_options("memory:", options).unwrap();
    let limiter = RateLimiter::new(&store, "api", 1, Duration::from_micros(1_000)).unwrap();
    limiter.open().unwrap(); // the epoch is set here, not at the first start
    clock.advance(ns(500));
    assert!(
        limiter.try_acquire("", 1).unwrap().is_some(),
        "within its first microsecond: it counts from the end of it"
    );
    clock.advance(ns(1_000_400));
    assert!(limiter.try_acquire("", 1).unwrap().is_none(), "at 1,000.9 µs");
    clock.advance(ns(100));
    assert!(limiter.try_acquire("", 1).unwrap().is_some(), "at 1,001 µs");
}
