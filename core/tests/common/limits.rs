//! Stores and limiters, and helpers to use them.

use std::sync::Arc;
use std::time::Duration;
use workglow_limit::*;

pub type Shared = Arc<dyn Limiter>;

pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub fn clocked() -> (ManualClock, Store) {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    (clock, Store::with_options("memory:", options).unwrap())
}

/// A store whose timeout ends no test, however slow the machine is.
pub fn patient(url: &str) -> Store {
    let mut options = StoreOptions::default();
    options.timeout = Duration::from_secs(600);
    Store::with_options(url, options).unwrap()
}

pub fn rate(store: &Store, name: &str, max: u64, window: Duration) -> Shared {
    Arc::new(RateLimiter::new(store, name, max, window).unwrap())
}

pub fn slots(max: u64) -> Shared {
    Arc::new(ConcurrencyLimiter::new(max).unwrap())
}

pub fn place(limiter: &dyn Limiter, weight: u64) -> (RawPermit, Duration) {
    match limiter.reserve("", weight, None, None).unwrap() {
        Reserved::Place { place, after } => (place, after),
        Reserved::Denied(after) => panic!("denied for {after:?}"),
    }
}
