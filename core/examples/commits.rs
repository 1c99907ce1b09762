//! What a start costs that has to be written first: commits [FOLDER]. With few and many limits and keys around it, and with
//! one thread and many.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use workglow_limit::{Durability, Limiter, RateLimiter, Result, Store, StoreOptions};

const HOUR: Duration = Duration::from_secs(3_600);
const STARTS: usize = 300;
const PASS: Duration = Duration::from_secs(3);

fn store(folder: &Path, name: &str, durability: Durability) -> Result<Store> {
    let mut options = StoreOptions::default();
    options.durability = durability;
    options.timeout = Duration::from_secs(60);
    Store::with_options(&format!("sqlite:{}", folder.join(name).display()), options)
}

/// The median of so many starts that are committed, one after the other.
fn median(store: &Store, key: &str) -> Result<Duration> {
    let limiter = RateLimiter::new(store, "measured", 1_000_000, HOUR)?;
    limiter.attempt(key, 1)?;
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let began = Instant::now();
        limiter.attempt(key, 1)?;
        times.push(began.elapsed());
    }
    times.sort();
    Ok(times[STARTS / 2])
}

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).map_or_else(std::env::temp_dir, Into::into);
    let folder = folder.join(format!("commits-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder to work in");

    let few = store(&folder, "few.db", Durability::Commit)?;
    let many = store(&folder, "limits.db", Durability::Commit)?;
    for n in 0..10_000 {
        RateLimiter::new(&many, &format!("limit {n}"), 100, HOUR)?.open()?;
    }
    let keys = store(&folder, "keys.db", Durability::Commit)?;
    // Which are in use, and not in the ledger: to fill it takes no commits.
    let filled = keys.limiter("filled", "1 concurrent")?;
    for n in 0..1_000_000 {
        filled.attempt(&n.to_string(), 1)?;
    }
    let mut figures = Vec::new();
    for _ in 0..5 {
        // Interleaved, so that all see the same disk.
        figures.push([median(&few, "key")?, median(&many, "key")?, median(&keys, "key")?]);
    }
    for (at, what) in ["nothing around it", "10,000 limits", "1,000,000 keys"].into_iter().enumerate() {
        let mut times: Vec<_> = figures.iter().map(|row| row[at]).collect();
        times.sort();
        println!("{what:>20}: {:>8.1?} for a start that is committed", times[2]);
    }

    for threads in [1, 64] {
        let store = store(&folder, &format!("threads-{threads}.db"), Durability::Commit)?;
        let limiter = RateLimiter::new(&store, "many", 1_000_000_000, HOUR)?;
        limiter.open()?;
        let (count, began) = (AtomicU64::new(0), Instant::now());
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (limiter, count) = (&limiter, &count);
                scope.spawn(move || {
                    while began.elapsed() < PASS {
                        limiter.attempt(&thread.to_string(), 1).expect("a start");
                        count.fetch_add(1, Relaxed);
                    }
                });
            }
        });
        println!("{threads:>12} threads: {:>8.0} starts/s", count.load(Relaxed) as f64 / began.elapsed().as_secs_f64());
    }
    let _ = std::fs::remove_dir_all(&folder);
    Ok(())
}
