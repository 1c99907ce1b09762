//! A place starts once, however many copies exist, and not after it was given back; for every kind of limit.

use std::cell::RefCell;
use std::time::Duration;
use workglow_limit::embed::MayWait;
use workglow_limit::*;

const SECOND: Duration = Duration::from_secs(1);

/// Each kind, with capacity for three at once or one after the other.
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
fn only_one_copy_of_a_place_starts() {
    for_each_kind(|name, clock, limiter| {
        for _ in 0..5 {
            let place = place(limiter);
            let permit = started(clock, limiter, &place).expect(name);
            assert_eq!(started(clock, limiter, &place), None, "{name}: a copy");
            assert_eq!(started(clock, limiter, &permit), None, "{name}: a started place");
            clock.advance(SECOND);
        }
    });
}

#[test]
fn a_returned_place_does_not_start() {
    for_each_kind(|name, clock, limiter| {
        for cancel in [<dyn Limiter>::cancel, <dyn Limiter>::cancel_place] {
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
fn a_started_place_cannot_be_returned_as_a_place() {
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

/// More than the first tables of open places can hold.
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

/// All places have the same stamp. If each searched the same few slots, tables would be added for them until there are
/// no more, and a caller that must not wait for that would take its units in vain.
#[test]
fn many_places_of_one_moment_fit() {
    let mut options = StoreOptions::default();
    options.clock = Some(ManualClock::new());
    let store = Store::with_options("memory:", options).unwrap();
    let limiter = store.declare("many", Policy::rate(5_000, SECOND).unwrap()).unwrap();
    let reserve = || limiter.reserve("", 1, None, Some(SECOND / 40));
    let mut waits = 0;
    for i in 1..=4_000 {
        match MayWait::Never.during(reserve) {
            Err(Error::WouldWait) => {
                waits += 1;
                reserve().unwrap();
            }
            reserved => assert!(matches!(reserved, Ok(Reserved::Place { .. })), "{reserved:?}"),
        }
        assert_eq!(limiter.peek("", 1).unwrap().remaining, 5_000 - i);
    }
    // The store is opened; and each table holds twice as many places as the one before.
    assert!(waits <= 8, "{waits}");
}

/// The units of a returned place become free once.
#[test]
fn a_place_is_returned_only_once() {
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

/// An operation that would have to wait, and must not, has no effect. Repeated, it returns the right units.
#[test]
fn a_place_is_unchanged_if_its_end_would_block() {
    type End = fn(&dyn Limiter, &RawPermit) -> Result<()>;
    let ends: [(&str, u32, End); 4] = [
        ("cancel", 0, |limiter, place| limiter.cancel(place)),
        ("cancel_place", 0, |limiter, place| limiter.cancel_place(place)),
        ("settle", 0, |limiter, place| limiter.settle(place, 0)),
        ("present late", 2, |limiter, place| limiter.present(place).map(drop)),
    ];
    for (what, late, end) in ends {
        let left = |must_not_wait: bool| {
            let left = RefCell::new(Vec::new());
            for_each_kind(|name, clock, limiter| {
                let (_, place) = (place(limiter), place(limiter));
                clock.advance(limiter.ready_in(&place).unwrap() + late * SECOND / 100);
                let first =
                    if must_not_wait { MayWait::Never.during(|| end(limiter, &place)) } else { end(limiter, &place) };
                if let Err(error) = first {
                    assert_eq!(error, Error::WouldWait, "{name}: {what}");
                    end(limiter, &place).unwrap();
                }
                let seen = limiter.peek("key", 1).unwrap();
                left.borrow_mut().push((name.to_owned(), seen.remaining, seen.retry_after));
            });
            left.into_inner()
        };
        assert_eq!(left(true), left(false), "{what}");
    }
}
