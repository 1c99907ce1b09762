//! A limiter of your own: jobs are paid from a credit. Together with a rate limit it admits what both allow.
//!
//! `cargo run --example custom_limiter`

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use workglow_limit::custom::{Custom, CustomLimiter, End, Verdict};
use workglow_limit::{CompositeLimiter, Limiter, Result, Store};

/// A start takes its weight from the credit, and gives back what its job did not use.
struct Credit(Mutex<Account>);

#[derive(Default)]
struct Account {
    left: u64,
    /// The weights of the jobs that run, by the number of their start.
    running: HashMap<u64, u64>,
    starts: u64,
}

impl Account {
    /// Denies a start that costs too much. When there will be more credit is unknown, so callers ask every second.
    fn verdict(&self, weight: u64) -> Verdict {
        if weight <= self.left { Verdict::Admitted(self.starts) } else { Verdict::Denied(Duration::from_secs(1)) }
    }
}

impl Credit {
    fn with<R>(&self, f: impl FnOnce(&mut Account) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Custom for Credit {
    fn name(&self) -> &str {
        "credit"
    }

    fn decide(&self, _key: &str, weight: u64) -> Result<Verdict> {
        Ok(self.with(|account| {
            let verdict = account.verdict(weight);
            if let Verdict::Admitted(start) = verdict {
                account.left -= weight;
                account.starts += 1;
                account.running.insert(start, weight);
            }
            verdict
        }))
    }

    fn peek(&self, _key: &str, weight: u64) -> Result<Verdict> {
        Ok(self.with(|account| account.verdict(weight)))
    }

    fn end(&self, start: u64, end: End) -> Result<()> {
        self.with(|account| {
            let weight = account.running.remove(&start).unwrap_or_default();
            let used = match end {
                End::Completed => weight,
                End::Cancelled => 0,
                End::Settled(actual) => actual,
            };
            account.left = (account.left + weight).saturating_sub(used);
        });
        Ok(())
    }
}

fn main() -> Result<()> {
    let credit = Arc::new(CustomLimiter::new(Credit(Mutex::new(Account { left: 100, ..Account::default() })))?);
    let rate = Store::new("memory:")?.limiter("api", "1000/1h")?;
    let limiter = CompositeLimiter::new([credit as Arc<dyn Limiter>, rate]);

    let permit = limiter.try_acquire("", 80)?.expect("enough credit");
    let denied = limiter.decide("", 80)?;
    println!("80 more: denied by {:?}", denied.denied_by);
    permit.settle(30)?; // It used 30 of its 80, so that 70 are left.
    assert!(limiter.peek("", 70)?.admitted && !limiter.peek("", 71)?.admitted);
    println!("70 more: enough credit");
    Ok(())
}
