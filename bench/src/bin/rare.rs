//! Measures how long a caller of another limit waits while a rare operation runs on a limit with many keys.
//!
//! `cargo run --release -p workglow-limit-bench --bin rare [KEYS [DIRECTORY]]`

use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, Instant};
use workglow_limit::embed::MayWait;
use workglow_limit::{Attempt, Error, Limiter, Result, Store, StoreOptions};

fn open(url: &str) -> Result<Store> {
    let mut options = StoreOptions::default();
    options.timeout = Duration::from_secs(120);
    Store::with_options(url, options)
}

/// Starts once on each key; few of the starts reach the ledger.
fn use_all(limiter: &dyn Limiter, keys: u64) -> Result<()> {
    for n in 0..keys {
        let key = format!("key {n}");
        match MayWait::Never.during(|| limiter.attempt(&key, 1)) {
            Err(Error::WouldWait) => drop(limiter.attempt(&key, 1)?),
            answer => drop(answer?),
        }
    }
    Ok(())
}

/// Runs `f` while another thread starts and cancels on another limit, which also takes the lock.
fn measure(what: &str, other: &dyn Limiter, f: impl FnOnce() -> Result<()>) -> Result<()> {
    let (is_done, is_waiting) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut waits = Vec::new();
    let took = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Acquire) {
                let began = Instant::now();
                if let Attempt::Admitted(permit) = other.attempt("key", 1).expect("a start") {
                    other.cancel(&permit).expect("a cancelled start");
                }
                waits.push(began.elapsed());
                is_waiting.store(true, Release);
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        while !is_waiting.load(Acquire) {
            std::thread::yield_now();
        }
        let began = Instant::now();
        let done = f();
        let took = began.elapsed();
        is_done.store(true, Release);
        done.map(|()| took)
    })?;
    waits.sort();
    let (longest, late) = (waits[waits.len() - 1], waits[(waits.len() - 1) * 99 / 100]);
    println!("{what:>34}: {took:>8.1?}; others waited {longest:>8.1?} at most, 99 % of {} {late:>8.1?}", waits.len());
    Ok(())
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let keys: u64 = args.next().map_or(300_000, |text| text.parse().expect("how many keys"));
    let dir = args.next().map_or_else(std::env::temp_dir, Into::into);
    let dir = dir.join(format!("rare-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory to write to");
    for url in ["memory:".to_owned(), format!("sqlite:{}", dir.join("limits.db").display())] {
        println!("{}, {keys} keys", url.split_once(':').expect("a scheme").0);
        let store = open(&url)?;
        let other = store.limiter("other", "1000/1s")?;
        other.open()?;
        measure("nothing", &*other, || {
            std::thread::sleep(Duration::from_secs(1));
            Ok(())
        })?;
        let api = store.limiter("api", "2/1h")?;
        measure("a start on each key", &*other, || use_all(&*api, keys))?;
        measure("flush", &*other, || store.flush())?;
        measure("override", &*other, || store.override_text("api", "3/1h"))?;
        measure("lift", &*other, || store.lift("api"))?;
        measure("override, in larger blocks", &*other, || store.override_text("api", "20/1h"))?;
        measure("lift", &*other, || store.lift("api"))?;
        measure("override of a key", &*other, || store.override_key("api", "20/1h", "key 7"))?;
        measure("lift of a key", &*other, || store.lift_key("api", "key 7"))?;
        measure("clear of a key", &*other, || api.clear("key 7"))?;
        measure("clear", &*other, || api.clear(""))?;
        let gpu = store.limiter("gpu", "1 concurrent")?;
        use_all(&*gpu, keys / 3)?;
        measure("leases beyond the slots of a key", &*other, || {
            (0..30).try_for_each(|_| gpu.record_job_start("key 7"))
        })?;
    }
    let _ = std::fs::remove_dir_all(&dir);
    Ok(())
}
