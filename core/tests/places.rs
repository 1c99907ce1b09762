//! A place starts once: whatever copies of it there are, and not after it was given back. Of every kind of limit.

use std::time::Duration;
use workglow_limit::*;

const SECOND: Duration = Duration::from_secs(1);

/// Each kind, with room for three at once or one after the other.
fn kinds() -> Vec<(&'static str, Policy)> {
    vec![
        ("rate", Policy::rate(3, SECOND)),
        ("two windows", Policy::rate_in(&[(3, SECOND), (100, 60 * SECOND)])),
        ("sliced rate", Policy::rate(5_000, SECOND)),
        ("delay", Policy::delay(SECOND / 10)),
        ("evenly spaced", Policy::evenly_spaced(3, SECOND, true)),
        ("token bucket", Policy::token_bucket(3, SECOND, 3)),
        ("leaky bucket", Policy::leaky_bucket(3, SECOND, 30)),
        ("fixed window", Policy::fixed_window(3, SECOND)),
        ("sliding window counter", Policy::sliding_window_counter(3, SECOND)),
    ]
    .into_iter()
    .map(|(name, policy)| (name, policy.unwrap()))
    .collect()
}

fn for_each_kind(test: impl Fn(&str, &ManualClock, &dyn Limiter)) {
    for (name, policy) in kinds() {
        let clock = ManualClock::new();
        let mut options = StoreOptions::default();
        options.clock = Some(clock.clone());
        let store = Store::with_options("memory:", options).unwrap();
        test(name, &clock, &*store.declare(name, policy).unwrap());
    }
}

fn place(limiter: &dyn Limiter) -> RawPermit {
    match limiter.reserve("key", 1, None, Some(SECOND / 100)).unwrap() {
        Reserved::Place { place, .. } => place,
        other => panic!("{}: {other:?}", limiter.name()),
    }
}

/// Presents a place when it is ready.
fn started(clock: &ManualClock, limiter: &dyn Limiter, place: &RawPermit) -> Option<RawPermit> {
    clock.advance(limiter.ready_in(place).unwrap_or_default());
    match limiter.present(place).unwrap() {
        Presented::Started(permit) => Some(permit),
        Presented::Wait { .. } => None,
    }
}

#[test]
fn of_all_copies_of_a_place_one_starts() {
    for_each_kind(|name, clock, limiter| {
        for _ in 0..5 {
            let place = place(limiter);
            let permit = started(clock, limiter, &place).expect(name);
            assert_eq!(started(clock, limiter, &place), None, "{name}: a copy");
            assert_eq!(started(clock, limiter, &permit), None, "{name}: what has started");
            clock.advance(SECOND);
        }
    });
}

#[test]
fn a_place_that_was_given_back_does_not_start() {
    for_each_kind(|name, clock, limiter| {
        for cancel in [Limiter::cancel, Limiter::cancel_place] {
            let place = place(limiter);
            cancel(limiter, &place).unwrap();
            assert_eq!(started(clock, limiter, &place), None, "{name}");
            clock.advance(3 * SECOND);
        }
        let place = place(limiter);
        let permit = started(clock, limiter, &place).expect(name);
        limiter.cancel(&permit).unwrap();
        assert_eq!(started(clock, limiter, &place), None, "{name}: after its start was cancelled");
    });
}

#[test]
fn a_place_that_has_started_cannot_be_given_back_as_a_place() {
    for_each_kind(|name, clock, limiter| {
        let place = place(limiter);
        started(clock, limiter, &place).expect(name);
        let remaining = limiter.peek("key", 1).unwrap().remaining;
        limiter.cancel_place(&place).unwrap();
        limiter.cancel(&place).unwrap();
        assert_eq!(limiter.peek("key", 1).unwrap().remaining, remaining, "{name}");
    });
}

#[test]
fn the_text_of_a_place_starts_once() {
    for_each_kind(|name, clock, limiter| {
        let place = place(limiter);
        let text = limiter.to_text(&place).unwrap();
        let there = limiter.permit_from_text(&text).unwrap();
        started(clock, limiter, &there).expect(name);
        assert_eq!(started(clock, limiter, &place), None, "{name}");
        assert_eq!(started(clock, limiter, &limiter.permit_from_text(&text).unwrap()), None, "{name}");
    });
}

/// More than the first tables of open places have room for.
#[test]
fn many_places_are_open_at_once() {
    let store = Store::new("memory:").unwrap();
    let limiter = store.declare("many", Policy::token_bucket(1_000, SECOND, 100_000).unwrap()).unwrap();
    let places: Vec<RawPermit> = (0..3_000)
        .map(|i| match limiter.reserve(&format!("key {i}"), 1, None, Some(60 * SECOND)).unwrap() {
            Reserved::Place { place, .. } => place,
            other => panic!("{other:?}"),
        })
        .collect();
    for place in &places {
        assert!(matches!(limiter.present(place).unwrap(), Presented::Started(_)));
        assert!(matches!(limiter.present(place).unwrap(), Presented::Wait { .. }));
    }
}

/// The units of a place that was given back are free again, once.
#[test]
fn what_is_given_back_is_given_back_once() {
    for_each_kind(|name, _, limiter| {
        let (_, second) = (place(limiter), place(limiter));
        let remaining = limiter.peek("key", 1).unwrap().remaining;
        limiter.cancel_place(&second).unwrap();
        let after = limiter.peek("key", 1).unwrap().remaining;
        limiter.cancel_place(&second).unwrap();
        limiter.cancel(&second).unwrap();
        assert_eq!(limiter.peek("key", 1).unwrap().remaining, after, "{name}: {remaining}");
    });
}
