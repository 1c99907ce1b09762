//! Limits at the ends of time: windows of years, waits of years, years without a call, and a clock that stands still.

use std::time::Duration;
use workglow_limit::*;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

fn clocked() -> (ManualClock, Store) {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    (clock, Store::with_options("memory:", options).unwrap())
}

fn start(limiter: &dyn Limiter, key: &str, weight: u64) -> RawPermit {
    match limiter.attempt(key, weight).unwrap() {
        Attempt::Admitted(permit) => permit,
        Attempt::Denied(after) => panic!("denied for {after:?}"),
    }
}

#[test]
fn the_longest_windows_of_the_clock_can_be_cleared() {
    for text in ["fixed", "counter"] {
        for days in [100, 190, 201, 250, 300, 366] {
            for key in ["", "key"] {
                let (clock, store) = clocked();
                let limiter = store.declare("api", format!("5/{days}d {text}").parse().unwrap()).unwrap();
                for round in 0..20 {
                    let remaining = || limiter.peek(key, 1).unwrap().remaining;
                    let permit = start(&*limiter, key, 5);
                    assert_eq!(remaining(), 0, "{text} {days} {round}");
                    limiter.cancel(&permit).unwrap();
                    assert_eq!(remaining(), 5, "{text} {days} {round}");
                    start(&*limiter, key, 3);
                    limiter.clear(key).unwrap();
                    assert_eq!(remaining(), 5, "{text} {days} {round}");
                    start(&*limiter, key, 4);
                    assert_eq!(remaining(), 1, "{text} {days} {round}");
                    limiter.clear("").unwrap();
                    clock.advance(if round % 3 == 0 { 30 * DAY } else { Duration::ZERO });
                }
            }
        }
    }
}

#[test]
fn a_permit_from_before_a_clear_ends_no_lease_though_time_stands_still() {
    for key in ["", "key"] {
        for all in [false, true] {
            let (_, store) = clocked();
            let limiter = ConcurrencyLimiter::shared(&store, "api", 2, None).unwrap();
            let before: Vec<_> = (0..2).map(|_| start(&limiter, key, 1)).collect();
            limiter.clear(if all { "" } else { key }).unwrap();
            let after: Vec<_> = (0..2).map(|_| start(&limiter, key, 1)).collect();
            before.iter().for_each(|permit| limiter.complete(permit).unwrap());
            assert_eq!(limiter.peek(key, 1).unwrap().remaining, 0, "{key:?} {all}");
            after.iter().for_each(|permit| limiter.complete(permit).unwrap());
            assert_eq!(limiter.peek(key, 1).unwrap().remaining, 2, "{key:?} {all}");
        }
    }
}

const KINDS: [&str; 10] = [
    "3/1s",
    "3/366d",
    "5000/1s",
    "5000/366d",
    "3/1s burst 3",
    "3/1s queue 3",
    "3/1s fixed",
    "3/366d counter",
    "delay 1s",
    "3/1s spaced strictly",
];

#[test]
fn a_place_may_be_many_years_ahead() {
    for text in KINDS {
        for days in (1_000..=3_600).step_by(50).chain([7_000, 14_000, 40_000, 400_000]) {
            let (_, store) = clocked();
            let limiter = store.declare("api", text.parse().unwrap()).unwrap();
            let other = start(&*limiter, "key", 1);
            let mut waits = Vec::new();
            for _ in 0..3 {
                let reserved = limiter.reserve_later("key", 1, days * DAY, None, Some(SECOND));
                match reserved {
                    Ok(Reserved::Place { place, after }) => waits.push((place, after)),
                    Ok(Reserved::Denied(_)) | Err(Error::InvalidArgument { .. }) => {}
                    Err(error) => panic!("{text}, {days} days: {error}"),
                }
            }
            limiter.cancel(&other).unwrap();
            store.override_limit("api", &text.replace("1s", "2s").replace("366d", "365d"), None).unwrap();
            limiter.attempt("key", 1).unwrap();
            store.lift("api", None).unwrap();
            for (place, _) in &waits {
                limiter.cancel_place(place).unwrap();
            }
            limiter.peek("key", 1).unwrap();
            limiter.clear("key").unwrap();
            start(&*limiter, "key", 1);
        }
    }
}

#[test]
fn places_queue_up_for_decades() {
    for text in [
        "1/366d",
        "5000/366d",
        "1/366d burst 1",
        "1/366d queue 1000000",
        "1/366d fixed",
        "1/366d counter",
        "delay 366d",
    ] {
        let Ok(policy) = text.parse() else { continue };
        let (clock, store) = clocked();
        let limiter = store.declare("api", policy).unwrap();
        let weight = limiter.peek("key", 1).unwrap().limit.min(4_096);
        for _ in 0..60 {
            match limiter.reserve("key", weight, None, None) {
                Ok(_) => {}
                Err(error) => panic!("{text}: {error}"),
            }
            limiter.peek("key", 1).unwrap();
        }
        clock.advance(40 * 366 * DAY);
        limiter.attempt("key", 1).unwrap();
        limiter.clear("").unwrap();
        start(&*limiter, "key", 1);
    }
}

#[test]
fn a_limit_may_be_idle_for_decades() {
    for text in KINDS {
        for key in ["", "key"] {
            for years in [8, 9, 18, 32, 36, 37, 71, 100, 150, 290, 550] {
                let (clock, store) = clocked();
                let limiter = store.declare("api", text.parse().unwrap()).unwrap();
                let permit = start(&*limiter, key, 1);
                clock.advance(years * 366 * DAY);
                let full = limiter.peek(key, 1).unwrap();
                assert!(full.admitted, "{text}, {years} years");
                limiter.cancel(&permit).unwrap();
                limiter.settle(&permit, 2).unwrap();
                clock.advance(2 * 366 * DAY);
                let permit = start(&*limiter, key, 1);
                limiter.cancel(&permit).unwrap();
                start(&*limiter, key, 1);
                store.override_limit("api", text, None).unwrap();
                limiter.clear(key).unwrap();
                start(&*limiter, key, 1);
            }
        }
    }
}
