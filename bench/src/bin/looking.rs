//! Measures the cost of a snapshot of a store with many limits and keys, and how long it delays another caller.
//!
//! `cargo run --release -p workglow-limit-bench --bin looking [LIMITS [KEYS [DIRECTORY]]]`

use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, Instant};
use workglow_limit::observe::Observer;
use workglow_limit::{Limiter, RateLimiter, Result, Store};

const MINUTE: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let mut number = |most: u64| args.next().map_or(most, |text| text.parse().expect("a number"));
    let (limits, keys) = (number(10_000), number(1_000_000));
    let dir = args.next().unwrap_or_else(|| "/dev/shm".into()) + &format!("/looking-{}", std::process::id());
    std::fs::create_dir_all(&dir).expect("a directory");
    let store = Store::new(&format!("sqlite:{dir}/limits.db"))?;

    let file: String = (0..limits).map(|i| format!("limit-{i} = \"100/1m\"\n")).collect();
    let path = format!("{dir}/limits.toml");
    std::fs::write(&path, file).expect("a file");
    let began = Instant::now();
    store.load(path.as_ref())?;
    println!("{limits} limits declared in {:.1?}", began.elapsed());
    let began = Instant::now();
    let busy = RateLimiter::new(&store, "limit-0", 100, MINUTE)?;
    for key in 0..keys {
        busy.attempt(&format!("tenant-{key}"), 1)?;
    }
    println!("{keys} keys used in {:.1?}", began.elapsed());

    // Another thread decides and pauses in the meantime, which takes the structure lock.
    let (is_over, other) = (AtomicBool::new(false), RateLimiter::new(&store, "limit-1", 100, MINUTE)?);
    std::thread::scope(|scope| {
        let longest = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !is_over.load(Acquire) {
                let began = Instant::now();
                other.pause(Duration::from_micros(1), "key").expect("a pause");
                longest = longest.max(began.elapsed());
                std::thread::sleep(Duration::from_millis(1));
            }
            longest
        });
        let looked = look(&store);
        is_over.store(true, Release);
        println!("the longest pause of another limit during it: {:.1?}", longest.join().expect("no panic"));
        looked
    })?;
    std::fs::remove_dir_all(dir).expect("the directory exists");
    Ok(())
}

fn look(store: &Store) -> Result<()> {
    let mut observer = Observer::new(&Store::new(store.url())?, 10);
    for look in ["first", "second", "third"] {
        let began = Instant::now();
        let seen = observer.look()?;
        let took = began.elapsed();
        let known: u64 = seen.limits.iter().map(|limit| limit.keys).sum();
        println!("the {look} look: {took:.1?}, {} limits with {known} keys", seen.limits.len());
    }
    let began = Instant::now();
    let minutes = observer.history("limit-0", std::time::SystemTime::now() - 31 * 24 * 60 * MINUTE)?;
    println!("a month of one limit: {:.1?}, {} minutes", began.elapsed(), minutes.len());
    Ok(())
}
