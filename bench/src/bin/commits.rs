//! Measures the cost of a start that has to be committed first. It compares few and many limits and keys, and one thread
//! and many. It takes about a minute, and 1 GB in the folder.
//!
//! `cargo run --release -p workglow-limit-bench --bin commits [FOLDER]`

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use workglow_limit::{Durability, Limiter, RateLimiter, Result, Store, StoreOptions};

const HOUR: Duration = Duration::from_secs(3_600);
const STARTS: usize = 1_000;
const PASS: Duration = Duration::from_secs(3);

fn store(folder: &Path, name: &str) -> Result<Store> {
    let mut options = StoreOptions::default();
    options.durability = Durability::Commit;
    options.timeout = Duration::from_secs(60);
    Store::with_options(&format!("sqlite:{}", folder.join(name).display()), options)
}

/// Makes a store with this many limits and keys in addition to the measured limiter.
fn store_with(folder: &Path, limits: usize, keys: usize) -> Result<RateLimiter> {
    let began = Instant::now();
    let store = store(folder, &format!("{limits}-{keys}.db"))?;
    let file = folder.join("limits.toml");
    let text: String = (0..limits).map(|n| format!("limit-{n} = \"100/1h\"\n")).collect();
    std::fs::write(&file, text).expect("a folder to write to");
    store.load(&file)?;
    // They are in use and not in the ledger, so filling it takes no commits.
    let filled = store.limiter("filled", "1 concurrent")?;
    for n in 0..keys {
        filled.attempt(&n.to_string(), 1)?;
    }
    let limiter = RateLimiter::new(&store, "measured", 1_000_000, HOUR)?;
    limiter.attempt("key", 1)?;
    eprintln!("{limits} limits and {keys} keys were made in {:.1?}", began.elapsed());
    Ok(limiter)
}

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).map_or_else(std::env::temp_dir, Into::into);
    let folder = folder.join(format!("commits-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder to work in");

    let around = [(10, 10), (10_000, 10), (10, 1_000_000)];
    let limiters = around.map(|(limits, keys)| store_with(&folder, limits, keys));
    let limiters = limiters.into_iter().collect::<Result<Vec<_>>>()?;
    let mut times = vec![Vec::new(); limiters.len()];
    for _ in 0..STARTS {
        // Alternately, so that all see the same disk conditions.
        for (limiter, times) in limiters.iter().zip(&mut times) {
            let began = Instant::now();
            limiter.attempt("key", 1)?;
            times.push(began.elapsed());
        }
    }
    times.iter_mut().for_each(|times| times.sort());
    for ((limits, keys), times_here) in around.iter().zip(&times) {
        let ratio = times_here[STARTS / 2].as_secs_f64() / times[0][STARTS / 2].as_secs_f64();
        let [median, late] = [STARTS / 2, STARTS * 99 / 100].map(|at| times_here[at]);
        println!(
            "{limits:>8} limits, {keys:>9} keys: {median:>8.2?} for a start that is committed ({ratio:.2}), 99 % in {late:.1?}"
        );
    }

    let mut rates = Vec::new();
    for threads in [1, 64] {
        let store = store(&folder, &format!("threads-{threads}.db"))?;
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
        rates.push(count.load(Relaxed) as f64 / began.elapsed().as_secs_f64());
        println!(
            "{threads:>8} threads: {:>8.0} starts/s ({:.1})",
            rates[rates.len() - 1],
            rates[rates.len() - 1] / rates[0]
        );
    }
    let _ = std::fs::remove_dir_all(&folder);
    Ok(())
}
