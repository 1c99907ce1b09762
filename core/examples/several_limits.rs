//! Several limits at once: in one policy, and as a composite of limits that other programs use alone.
//!
//! `cargo run --example several_limits`

use std::sync::Arc;
use workglow_limit::{CompositeLimiter, Limiter, Result, Store};

fn main() -> Result<()> {
    let store = Store::new("memory:")?;

    // One name, three limits: a start has to be within all of them.
    let search = store.limiter("search", "100/1h + 5/1m + 2 concurrent")?;
    let (first, second) = (search.try_acquire("", 1)?, search.try_acquire("", 1)?);
    assert!(first.is_some() && second.is_some());
    assert!(search.try_acquire("", 1)?.is_none(), "two are running");
    drop(first);
    assert!(search.try_acquire("", 1)?.is_some());

    // An account of the API, and each model of it. If one of the two denies, the other is not charged.
    let account = store.limiter("account", "3/1h")?;
    let model = |name: &str| -> Result<CompositeLimiter> {
        Ok(CompositeLimiter::new([Arc::clone(&account), store.limiter(name, "2/1h")?]))
    };
    let (small, large) = (model("small")?, model("large")?);
    for (name, limiter) in
        [("small", &small), ("small", &small), ("small", &small), ("large", &large), ("large", &large)]
    {
        match limiter.decide("", 1)?.denied_by {
            None => println!("{name}: start"),
            Some(limit) => println!("{name}: the limit {limit} is full"),
        }
    }
    assert_eq!(account.stats("")?.admitted, 3);
    Ok(())
}
