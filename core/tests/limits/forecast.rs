//! When more starts will have begun: compared with starts that begin as soon as they can.

use crate::common::Random;
use crate::common::limits::clocked;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::observe::Stats;
use workglow_limit::*;

/// Starts as soon as it can, so often, and returns when the last one began.
fn started(clock: &ManualClock, limiter: &dyn Limiter, starts: u64) -> Duration {
    let began = clock.now();
    for _ in 0..starts {
        while let Attempt::Denied(after) = limiter.attempt("", 1).unwrap() {
            clock.advance(after.max(Duration::from_micros(1)));
        }
    }
    clock.now() - began
}

#[test]
fn a_forecast_is_when_the_starts_begin() {
    let exact = ["10/1s", "1/7ms", "3/1m", "delay 20ms", "7/3s burst 20", "5/1s queue 9", "9/1s + 4/1s"];
    let least = ["10/1s + 25/10s", "6/1s fixed", "6/1s counter", "20/1s spaced strictly", "5000/1s"];
    let mut random = Random::seeded(7);
    for (policy, is_exact) in exact.map(|policy| (policy, true)).into_iter().chain(least.map(|policy| (policy, false)))
    {
        for round in 0..12 {
            let (clock, store) = clocked();
            let limiter = store.limiter("api", policy).unwrap();
            for _ in 0..random.below(30) {
                let _ = limiter.attempt("", 1).unwrap();
                clock.advance(Duration::from_micros(random.below(300_000)));
            }
            if round % 4 == 0 {
                limiter.pause(Duration::from_millis(random.below(3_000)), "").unwrap();
            }
            let starts = 1 + random.below(60);
            let forecast = limiter.forecast(starts, "").unwrap().unwrap();
            let began = started(&clock, &*limiter, starts);
            let what = format!("{policy}: {starts} starts at {began:?}, forecast {forecast:?}");
            assert!(forecast <= began + Duration::from_micros(1), "{what}");
            // (Each start of a bucket may be a microsecond late.)
            assert!(!is_exact || began <= forecast + Duration::from_micros(starts), "{what}");
        }
    }
}

#[test]
fn slots_are_known_as_far_as_they_are_free() {
    let (_, store) = clocked();
    let slots = store.limiter("slots", "3 concurrent").unwrap();
    let permit = slots.attempt("", 1).unwrap();
    assert_eq!([1, 2, 3].map(|n| slots.forecast(n, "").unwrap()), [Some(Duration::ZERO), Some(Duration::ZERO), None]);
    let Attempt::Admitted(permit) = permit else { panic!("a slot is free") };
    slots.complete(&permit).unwrap();
    assert_eq!(slots.forecast(3, "").unwrap(), Some(Duration::ZERO));
    assert_eq!(slots.forecast(3, "other").unwrap(), Some(Duration::ZERO));
}

#[test]
fn a_composite_has_begun_when_its_slowest_part_has_and_alternatives_when_one_has_its_part() {
    let (_, store) = clocked();
    let llm = store.limiter("llm", "requests: 10/1s + tokens: 1000/1m").unwrap();
    assert_eq!(llm.forecast(25, "").unwrap(), Some(Duration::from_secs(2)));
    let call = llm.joint("", &[Charge::of("tokens").weight(400)]).unwrap();
    let seconds = |s| Some(Duration::from_secs(s));
    assert_eq!([2, 3, 8].map(|n| llm.forecast(n, &call).unwrap()), [seconds(0), seconds(60), seconds(180)]);
    let slots = store.limiter("both", "calls: 1/1s + 2 concurrent").unwrap();
    assert_eq!([1, 2, 3].map(|n| slots.forecast(n, "").unwrap()), [seconds(0), seconds(1), None]);
    let [a, b] = ["a", "b"].map(|name| store.limiter(name, "1/10s").unwrap());
    let any = FirstOfLimiter::new([a as Arc<dyn Limiter>, b]);
    assert_eq!([2, 3, 5].map(|n| any.forecast(n, "").unwrap()), [seconds(0), seconds(10), seconds(20)]);
    assert_eq!(NullLimiter::new().forecast(9, "").unwrap(), seconds(0));
}

#[test]
fn bad_input_and_huge_numbers() {
    let (_, store) = clocked();
    let limiter = store.limiter("api", "10/1s").unwrap();
    assert!(matches!(limiter.forecast(1, &"k".repeat(2_000)), Err(Error::InvalidArgument { .. })));
    assert_eq!(limiter.forecast(1_000_000_000, "").unwrap(), Some(Duration::from_secs(99_999_999)));
    let heavy = store.limiter("heavy", "tokens: 1000000000/1d").unwrap();
    let call = heavy.joint("", &[Charge::of("tokens").weight(1_000_000_000)]).unwrap();
    assert!(heavy.forecast(1_000_000_000, &call).unwrap() > Some(Duration::from_secs(1 << 40)));
    for starts in [0, 1_000_000_001, u64::MAX] {
        let error = limiter.forecast(starts, "").unwrap_err().to_string();
        assert_eq!(error, format!("starts is {starts}: expected a whole number from 1 to 1000000000"));
    }
    assert_eq!(limiter.stats("").unwrap(), Stats::default(), "nothing is counted");
}
