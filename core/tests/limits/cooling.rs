//! Waiting for units that cool down.

use std::sync::Mutex;
use std::time::{Duration, Instant};
use workglow_limit::embed::{Joined, Line, Outcome, Waiter, acquire};
use workglow_limit::observe::Observer;
use workglow_limit::*;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// It is known when units that cool down are free. Until then a line asks only now and then, because another process may cancel
/// a start.
#[test]
fn a_waiter_sleeps_until_units_have_cooled_down() {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let store = Store::with_options("memory:", options).unwrap();
    let limiter = store.limiter("api", "1 concurrent cooldown 1m").unwrap();
    let permit = limiter.decide("", 1).unwrap().permit.unwrap();
    let mut line = Line::new(limiter.clone());
    for _ in 0..2 {
        assert!(matches!(line.join(Waiter::new("", 1)).unwrap(), Joined::Waiting(_)));
    }
    limiter.complete(&permit).unwrap();
    line.wake(None);
    let mut over = Vec::new();
    assert_eq!(line.advance(&mut over), Some(ms(250)));
    clock.advance(ms(59_900));
    assert_eq!(line.advance(&mut over), Some(ms(100)));
    clock.advance(ms(100));
    line.advance(&mut over);
    let [(_, Outcome::Admitted(next))] = over.as_slice() else { panic!("{over:?}") };
    // It never ran, so the other one starts at once.
    limiter.cancel(next).unwrap();
    line.wake(None);
    let mut over = Vec::new();
    line.advance(&mut over);
    assert!(matches!(over.as_slice(), [(_, Outcome::Admitted(_))]), "{over:?}");
}

#[test]
fn threads_wait_for_units_to_cool_down_and_leave_at_once_if_that_is_too_late() {
    let store = Store::new("memory:").unwrap();
    let limiter = store.limiter("api", "2 concurrent cooldown 10ms").unwrap();
    let ends = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let Attempt::Admitted(permit) = acquire(&*limiter, Waiter::new("", 1)).unwrap() else {
                    panic!("denied")
                };
                let began = Instant::now();
                ends.lock().unwrap().push((began, Instant::now()));
                limiter.complete(&permit).unwrap();
            });
        }
    });
    let mut ends = ends.into_inner().unwrap();
    ends.sort();
    for pair in ends.windows(3) {
        assert!(pair[2].0 >= pair[0].1.min(pair[1].1) + ms(10), "three in one window: {pair:?}");
    }
    let slow = store.limiter("slow", "1 concurrent cooldown 1d").unwrap();
    let permit = slow.decide("", 1).unwrap().permit.unwrap();
    slow.complete(&permit).unwrap();
    // (It would wait for an hour.)
    let waiter = Waiter::new("", 1).timeout(Some(Duration::from_secs(3_600)));
    assert!(matches!(acquire(&*slow, waiter).unwrap(), Attempt::Denied(after) if after > Duration::from_secs(3_600)));
}

/// Nobody has asked for the units since. Observers see all the same that they are free.
#[test]
fn units_that_have_cooled_down_are_not_in_use() {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let store = Store::with_options("memory:", options).unwrap();
    for policy in ["2 concurrent cooldown 1m", "2 concurrent lease 1m"] {
        let limiter = store.limiter(policy, policy).unwrap();
        for _ in 0..2 {
            let permit = limiter.decide("", 1).unwrap().permit.unwrap();
            limiter.arrived(&permit).unwrap();
        }
        let seen = || {
            let snapshot = Observer::new(&store, 3).look().unwrap();
            let limit = snapshot.limits.into_iter().find(|limit| *limit.name == *policy).unwrap();
            (limit.usage[0].used, limit.retry_after)
        };
        assert_eq!(seen(), (2, ms(60_000)), "{policy}");
        clock.advance(ms(60_000));
        assert_eq!(seen(), (0, ms(0)), "{policy}");
    }
}
