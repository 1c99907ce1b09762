//! Measures what a key takes after so many starts in its window, and how long a caller waits while the ring of its key grows.
//!
//! `cargo run --release -p workglow-limit-bench --bin growing [DIRECTORY [POLICY…]]`; `memory:` instead of a directory uses a store on
//! the heap.

use std::time::{Duration, Instant};
use workglow_limit::observe::Observer;
use workglow_limit::{Attempt, ManualClock, Result, Store, StoreOptions};

const POLICIES: [&str; 5] = ["100/1m", "1000/1h", "4000/1h", "200000/1m", "100/1m burst 100"];
const STARTS: [u64; 5] = [1, 5, 10, 100, u64::MAX];

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let place = args.next().unwrap_or_else(|| "/dev/shm".into());
    let policies: Vec<String> = args.collect();
    let policies = if policies.is_empty() { POLICIES.map(String::from).to_vec() } else { policies };
    let dir = std::path::PathBuf::from(format!("{place}/growing-{}", std::process::id()));
    for (n, policy) in policies.iter().enumerate() {
        for starts in STARTS {
            let url = match &*place {
                "memory:" => place.clone(),
                _ => {
                    std::fs::create_dir_all(&dir).expect("a directory");
                    format!("sqlite:{}/{n}-{starts}.db", dir.display())
                }
            };
            let mut options = StoreOptions::default();
            // Time stands still, so that nothing leaves the window.
            options.clock = Some(ManualClock::new());
            let store = Store::with_options(&url, options)?;
            let limiter = store.limiter("api", policy)?;
            let limit = limiter.peek("", 1)?.limit;
            let (starts, keys) = (starts.min(limit), (200_000 / starts.min(limit)).clamp(50, 2_000));
            let used = || Ok::<_, workglow_limit::Error>(Observer::new(&store, 0).look()?.used_bytes);
            limiter.open()?;
            let before = used()?;
            let mut calls: Vec<Duration> = Vec::new();
            for key in 0..keys {
                let key = format!("tenant {key}");
                for start in 0..starts {
                    let began = Instant::now();
                    let answer = limiter.attempt(&key, 1)?;
                    let took = began.elapsed();
                    assert!(matches!(answer, Attempt::Admitted(_)), "{policy}: {start} of {starts}");
                    // (The first makes the key.)
                    if start > 0 {
                        calls.push(took);
                    }
                }
            }
            calls.sort();
            let at = |part: f64| {
                calls.get(((calls.len() as f64 - 1.0).max(0.0) * part) as usize).copied().unwrap_or_default()
            };
            println!(
                "{policy:>18}, {starts:>6} starts: {:>7} bytes a key; a later start {:>8.1?}, 99.9 % {:>8.1?}, the longest {:>8.1?}",
                (used()? - before) / keys,
                at(0.5),
                at(0.999),
                at(1.0)
            );
        }
    }
    let _ = std::fs::remove_dir_all(&dir);
    Ok(())
}
