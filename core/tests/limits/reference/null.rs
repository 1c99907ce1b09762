//! No limit.

use super::run::KEYS;
use crate::common::Random;
use std::time::Duration;
use workglow_limit::*;

/// Everything is admitted, whatever happened before.
pub fn all(seed: u64) -> u64 {
    let (mut random, limiter) = (Random::seeded(seed), NullLimiter::new());
    for _ in 0..1_000 {
        let (key, weight) = (random.pick(&KEYS), 1 + random.scaled(u64::MAX / 2));
        let Attempt::Admitted(permit) = limiter.attempt(key, weight).unwrap() else { panic!("{weight} denied") };
        for decision in [limiter.decide(key, weight).unwrap(), limiter.peek(key, weight).unwrap()] {
            assert!(decision.admitted && decision.denied_by.is_none(), "{decision:?}");
            assert_eq!([decision.retry_after, decision.suggested_after, decision.reset_after], [Duration::ZERO; 3]);
            assert_eq!([decision.remaining, decision.limit], [u64::MAX; 2]);
        }
        match random.below(5) {
            0 => limiter.cancel(&permit),
            1 => limiter.complete(&permit),
            2 => limiter.settle(&permit, 2 * weight),
            3 => limiter.pause(Duration::from_secs(random.below(100)), key),
            _ => limiter.clear(key),
        }
        .unwrap();
        assert!(matches!(limiter.decide(key, 0), Err(Error::InvalidArgument { .. })));
    }
    1_000
}
