//! Limits that must not forget: when its window gets longer, over many years, under a gate, and after it.

use crate::common::Dir;
use std::time::Duration;
use workglow_limit::*;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const YEAR: Duration = Duration::from_secs(365 * 86_400);

fn clocked() -> (ManualClock, Store) {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    (clock, Store::with_options("memory:", options).unwrap())
}

fn is_admitted(limiter: &dyn Limiter, key: &str, weight: u64) -> bool {
    matches!(limiter.attempt(key, weight).unwrap(), Attempt::Admitted(_))
}

/// Whether starts are stored or counted.
#[test]
fn a_longer_window_counts_earlier_starts() {
    for most in [4_000, 5_000] {
        for key in ["", "key"] {
            let (clock, store) = clocked();
            let limiter = RateLimiter::new(&store, "api", most, SECOND).unwrap();
            let declare = |most, window| RateLimiter::new(&store, "api", most, window).unwrap().open().unwrap();
            // A few per second, for ten seconds; and after a pause, as many as may start at once.
            for _ in 0..10 {
                assert!(is_admitted(&limiter, key, 100));
                clock.advance(SECOND);
            }
            clock.advance(60 * SECOND);
            assert!(is_admitted(&limiter, key, most - 1_000));
            clock.advance(10 * SECOND);
            // Cancelling a start rewrites the key.
            let Attempt::Admitted(permit) = limiter.attempt(key, 500).unwrap() else { panic!("{most}") };
            limiter.cancel(&permit).unwrap();
            clock.advance(10 * SECOND);
            declare(most, HOUR);
            assert!(!is_admitted(&limiter, key, 1), "{most} {key:?}");
            declare(most + 100, HOUR);
            assert!(!is_admitted(&limiter, key, 101), "{most} {key:?}");
            assert!(is_admitted(&limiter, key, 100), "{most} {key:?}");
            // While it is in the window, and no longer.
            clock.advance(HOUR - 11 * SECOND + Duration::from_micros(32));
            assert!(is_admitted(&limiter, key, most), "{most} {key:?}");
        }
    }
}

#[test]
fn a_longer_window_counts_only_actual_starts() {
    let (clock, store) = clocked();
    let limiter = RateLimiter::new(&store, "api", 5_000, SECOND).unwrap();
    for _ in 0..3 {
        assert!(is_admitted(&limiter, "", 5_000));
        // Capacity returns a slice later.
        clock.advance(SECOND + SECOND / 8_000);
    }
    RateLimiter::new(&store, "api", 15_001, HOUR).unwrap().open().unwrap();
    assert_eq!(limiter.peek("", 1).unwrap().remaining, 1);
}

#[test]
fn a_limit_works_for_decades() {
    let policies =
        ["3/1m", "3/1m + 2/1s", "9000/1m", "3/1m burst 5", "3/1m fixed", "3/1m counter", "3/1m spaced", "delay 1s"];
    for policy in policies {
        let (clock, store) = clocked();
        let limiter = store.limiter("api", policy).unwrap();
        for year in 0..34 {
            for key in ["", "key"] {
                let admitted = (0..10_000).take_while(|_| is_admitted(&*limiter, key, 1)).count() as u64;
                let most = if policy == "3/1m burst 5" { 5 } else { limiter.peek(key, 1).unwrap().limit };
                assert_eq!(admitted, if policy.contains("spaced") { 1 } else { most }, "{policy}, year {year}");
                assert!(!is_admitted(&*limiter, key, 1), "{policy}, year {year}");
            }
            clock.advance(YEAR);
        }
    }
}

/// No start can be admitted, so the level of a denied key matters, however empty its log is.
#[test]
fn a_backoff_outlasts_a_gate() {
    let (clock, store) = clocked();
    let backoff = Backoff::new(SECOND, 2.0, 1_000 * SECOND, Jitter::None).unwrap();
    let policy = Policy::rate(1, SECOND).unwrap().with_backoff(backoff).unwrap();
    let limiter = store.declare("api", policy).unwrap();
    let suggested = || limiter.decide("key", 1).unwrap().suggested_after.as_secs();
    limiter.pause(HOUR, "").unwrap();
    // Each denial comes when the previous backoff is over.
    for level in 0..8 {
        assert_eq!(suggested(), (HOUR.as_secs() - (1 << level) + 1).max(1 << level));
        clock.advance(SECOND * (1 << level));
        let others = (0..300).map(|i| format!("{level} {i}"));
        others.for_each(|key| drop(limiter.decide(&key, 1).unwrap()));
    }
    clock.advance(HOUR - 256 * SECOND);
    limiter.pause(SECOND, "").unwrap();
    assert_eq!(suggested(), 256);
    // Another policy of the same kind.
    clock.advance(256 * SECOND);
    limiter.pause(SECOND, "").unwrap();
    store.declare("api", Policy::rate(2, SECOND).unwrap().with_backoff(backoff).unwrap()).unwrap().open().unwrap();
    assert_eq!(suggested(), 512);
    clock.advance(SECOND);
    assert!(limiter.decide("key", 1).unwrap().admitted);
}

/// The caller has already decided.
#[test]
fn starts_are_recorded_however_small_the_limit_is() {
    let dir = Dir::new("remembering");
    for url in ["memory:", &dir.url()] {
        let store = Store::new(url).unwrap();
        let limiter = ConcurrencyLimiter::shared(&store, "jobs", 1, None).unwrap();
        for key in ["", "key"] {
            let Attempt::Admitted(permit) = limiter.attempt(key, 1).unwrap() else { panic!("{key:?}") };
            (0..1_000).for_each(|_| limiter.record_job_start(key).unwrap());
            limiter.complete(&permit).unwrap();
            for _ in 0..1_000 {
                assert!(!is_admitted(&limiter, key, 1));
                limiter.record_job_completion(key).unwrap();
            }
            assert!(is_admitted(&limiter, key, 1));
        }
        assert_eq!(limiter.stats("").unwrap().policy_changes, 0, "it was not changed");
    }
}

/// A start counts from the end of its microsecond, and the next one is requested in the same microsecond.
#[test]
fn a_new_bucket_gives_its_whole_burst_to_fast_callers() {
    let store = Store::new("memory:").unwrap();
    for text in ["4/1h burst 2", "7/1h burst 3"] {
        let limiter = store.limiter(text, text).unwrap();
        let burst = limiter.peek("", 1).unwrap().limit;
        for key in 0..2_000 {
            let starts = (0..=burst).map(|_| limiter.attempt(&key.to_string(), 1).unwrap());
            let admitted = starts.filter(|attempt| matches!(attempt, Attempt::Admitted(_))).count() as u64;
            assert_eq!(admitted, burst, "{text}, key {key}");
        }
    }
}
