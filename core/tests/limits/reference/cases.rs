//! Explicit cases that the random calls avoid, because the outcome would change everything after it.

use std::time::Duration;
use workglow_limit::*;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const SECOND: Duration = ms(1_000);

fn limit(max: u64, window: Duration) -> (ManualClock, Store, RateLimiter) {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let store = Store::with_options("memory:", options).unwrap();
    let limiter = RateLimiter::new(&store, "api", max, window).unwrap();
    (clock, store, limiter)
}

fn start(limiter: &RateLimiter, key: &str) -> RawPermit {
    match limiter.attempt(key, 1).unwrap() {
        Attempt::Admitted(permit) => permit,
        denied => panic!("{denied:?}"),
    }
}

fn place(limiter: &RateLimiter, key: &str) -> RawPermit {
    match limiter.reserve(key, 1, None, Some(ms(1))).unwrap() {
        Reserved::Place { place, .. } => place,
        denied => panic!("{denied:?}"),
    }
}

/// As many places as the ring of 16 slots can hold.
const PLACES: u64 = 13;

/// All places are returned, and the starts before them still count.
#[test]
fn an_abandoned_long_queue_does_not_make_the_log_forget() {
    let (_, _, limiter) = limit(8, SECOND);
    for _ in 0..8 {
        start(&limiter, "");
    }
    let places: Vec<_> = (0..PLACES).map(|_| place(&limiter, "")).collect();
    places.iter().for_each(|place| limiter.cancel(place).unwrap());
    let decision = limiter.peek("", 1).unwrap();
    assert!(!decision.admitted, "8 of 8 have started in this window: {decision:?}");
}

/// As many places as fit are returned from the last to the first. No more fit, and the next callers get only a time.
/// Forgotten places count for longer than they should, but not for ever.
#[test]
fn an_abandoned_long_queue_is_gone_when_its_places_would_be() {
    let (clock, _, limiter) = limit(8, SECOND);
    for _ in 0..8 {
        start(&limiter, "");
    }
    let places: Vec<_> = (0..PLACES).map(|_| place(&limiter, "")).collect();
    assert_eq!(place(&limiter, ""), place(&limiter, ""), "a time, but no separate places");
    let last = limiter.ready_in(places.last().unwrap()).unwrap();
    places.iter().rev().for_each(|place| limiter.cancel(place).unwrap());
    assert!(!limiter.can_proceed("").unwrap());
    clock.advance(last + ms(1) + SECOND);
    assert_eq!(limiter.peek("", 1).unwrap().remaining, 8);
}

#[test]
fn a_permit_from_before_a_clear_ends_nothing() {
    let (_, _, limiter) = limit(10, SECOND);
    let before = start(&limiter, "");
    limiter.clear("").unwrap();
    let after = start(&limiter, "");
    assert_ne!(before, after);
    limiter.cancel(&before).unwrap();
    assert_eq!(limiter.peek("", 1).unwrap().remaining, 9);
}

#[test]
fn a_place_from_before_another_policy_ends_nothing() {
    let (clock, store, limiter) = limit(10, SECOND);
    limiter.pause(5 * SECOND, "").unwrap();
    let before = place(&limiter, "key");
    RateLimiter::new(&store, "api", 11, SECOND).unwrap().open().unwrap();
    let after = place(&limiter, "key");
    clock.advance(5 * SECOND);
    assert!(matches!(limiter.present(&after).unwrap(), Presented::Started(_)));
    limiter.cancel(&before).unwrap();
    assert_eq!(limiter.peek("key", 1).unwrap().remaining, 10);
}

/// Starts that have left a shorter window still count when the longer one returns.
#[test]
fn changing_a_policy_back_forgets_nothing() {
    let hour = 3_600 * SECOND;
    let (clock, store, limiter) = limit(10, hour);
    for _ in 0..10 {
        start(&limiter, "");
    }
    clock.advance(60 * SECOND);
    RateLimiter::new(&store, "api", 5, SECOND).unwrap().open().unwrap();
    RateLimiter::new(&store, "api", 10, hour).unwrap().open().unwrap();
    let decision = limiter.peek("", 1).unwrap();
    assert!(!decision.admitted, "10 of 10 have started in this hour: {decision:?}");
}

/// The next life of a block, one microsecond after its last start, works like any other.
#[test]
fn a_block_can_be_reused_a_microsecond_later() {
    let (clock, _, limiter) = limit(1, SECOND);
    let (first, second) = (start(&limiter, "a"), start(&limiter, "b"));
    limiter.cancel(&first).unwrap();
    clock.advance(Duration::from_micros(1));
    limiter.cancel(&second).unwrap();
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(limiter.peek("b", 1).unwrap().remaining));
    assert_eq!(is_done.recv_timeout(Duration::from_secs(5)), Ok(1), "it neither hangs nor counts");
}

#[test]
fn a_raised_limit_applies_at_once_to_heavy_starts() {
    let (_, store, limiter) = limit(5, SECOND);
    limiter.open().unwrap();
    RateLimiter::new(&store, "api", 10, SECOND).unwrap().open().unwrap();
    assert!(matches!(limiter.attempt("", 7), Ok(Attempt::Admitted(_))), "{:?}", limiter.peek("", 7));
}

#[test]
fn a_forgotten_key_can_owe_a_debt() {
    let (clock, store, limiter) = limit(10, SECOND);
    let permit = start(&limiter, "key");
    clock.advance(2 * SECOND);
    // The key has been reset by now, and is not moved.
    RateLimiter::new(&store, "api", 11, SECOND).unwrap().open().unwrap();
    limiter.settle(&permit, 4).unwrap();
    assert_eq!(limiter.peek("key", 1).unwrap().remaining, 8);
}

/// A caller that has not noticed two changes of the policy must not admit by the first one.
#[test]
fn after_two_changes_no_caller_uses_the_first_policy() {
    let (_, store, limiter) = limit(1, SECOND);
    limiter.open().unwrap();
    RateLimiter::new(&store, "api", 2, SECOND).unwrap().open().unwrap();
    let third = RateLimiter::new(&store, "api", 1, SECOND).unwrap();
    start(&third, "key");
    let attempt = limiter.attempt("key", 1).unwrap();
    assert!(matches!(attempt, Attempt::Denied(_)), "1 of 1 has started in this window");
}

/// The cells of the key "" in a replaced table belong to another key by now.
#[test]
fn a_caller_that_missed_a_change_does_not_start_in_another_keys_log() {
    let (_, store, limiter) = limit(2, SECOND);
    limiter.open().unwrap();
    let second = RateLimiter::new(&store, "api", 1, SECOND).unwrap();
    second.cancel(&start(&second, "key")).unwrap();
    start(&limiter, "");
    assert_eq!(second.peek("key", 1).unwrap().remaining, 1, "this key is unused");
    assert_eq!(second.peek("", 1).unwrap().remaining, 0);
}

/// The present policy determines which windows a permit has left, even for a caller that has not noticed the change.
#[test]
fn a_permit_ends_by_the_present_policy() {
    let hour = 3_600 * SECOND;
    let (clock, store, limiter) = limit(10, hour);
    let permit = start(&limiter, "");
    clock.advance(2 * SECOND);
    RateLimiter::new(&store, "api", 10, SECOND).unwrap().open().unwrap();
    limiter.settle(&permit, 4).unwrap();
    assert_eq!(limiter.peek("", 1).unwrap().remaining, 7, "it has left every window, and owes 3");

    let (clock, store, limiter) = limit(10, SECOND);
    let permit = start(&limiter, "");
    RateLimiter::new(&store, "api", 10, hour).unwrap().open().unwrap();
    clock.advance(2 * SECOND);
    limiter.cancel(&permit).unwrap();
    assert_eq!(limiter.peek("", 1).unwrap().remaining, 10, "it was in its window, and is cancelled");
}

/// A late place is exchanged for one behind those that queued later, whatever the spacing of starts.
#[test]
fn a_late_place_is_exchanged_for_one_behind_later_arrivals() {
    for adaptive in [false, true] {
        let clock = ManualClock::new();
        let policy = match adaptive {
            true => Policy::evenly_spaced(1, ms(10), true),
            false => Policy::rate(1, ms(10)),
        };
        let mut options = StoreOptions::default();
        options.clock = Some(clock.clone());
        let store = Store::with_options("memory:", options).unwrap();
        let limiter = store.declare("api", policy.unwrap()).unwrap();
        limiter.record_job_start("c").unwrap();
        let mut places = Vec::new();
        for _ in 0..2 {
            let Ok(Reserved::Place { place, .. }) = limiter.reserve("c", 1, None, Some(Duration::ZERO)) else {
                panic!()
            };
            places.push(place);
        }
        clock.advance(ms(18));
        let Ok(Presented::Wait { after, .. }) = limiter.present(&places[0]) else { panic!() };
        assert_eq!(after, ms(12), "adaptive: {adaptive}");
    }
}

/// A forgotten window counts as full, even under another policy.
#[test]
fn a_window_displaced_by_places_counts_under_another_policy() {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let store = Store::with_options("memory:", options).unwrap();
    let limiter = store.declare("api", Policy::sliding_window_counter(1, ms(10)).unwrap()).unwrap();
    for key in ["", "key"] {
        clock.advance(ms(125));
        assert!(matches!(limiter.attempt(key, 1), Ok(Attempt::Admitted(_))));
        assert!(matches!(limiter.reserve(key, 1, None, None), Ok(Reserved::Place { .. })));
        store.declare("api", Policy::sliding_window_counter(1, ms(9)).unwrap()).unwrap().open().unwrap();
        assert!(!limiter.can_proceed(key).unwrap(), "it started in this window, with the key {key:?}");
        store.declare("api", Policy::sliding_window_counter(1, ms(10)).unwrap()).unwrap().open().unwrap();
    }
}
