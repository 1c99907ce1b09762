//! Threads that wait in line, and a pause for all of them.
//!
//! `cargo run --example waiting`

use std::thread;
use std::time::{Duration, Instant};
use workglow_limit::{Result, Store};

fn main() -> Result<()> {
    let api = Store::new("memory:")?.limiter("api", "3/200ms")?;
    let began = Instant::now();

    // The API answered 429: nobody who shares the limit starts before this is over.
    api.pause("", Duration::from_millis(50))?;

    thread::scope(|scope| {
        for worker in 0..6 {
            let api = &api;
            scope.spawn(move || {
                // It takes a place in the future and sleeps once: first come, first served. `None`: as long as it takes.
                let permit = api.acquire("", 1, None).expect("a store that answers");
                println!("worker {worker} starts after {:.0?}", began.elapsed());
                drop(permit);
            });
        }
    });

    // Whoever waits only for some time gets `None`, at once if the start would be too late.
    api.pause("", Duration::from_secs(60))?;
    assert!(api.acquire("", 1, Some(Duration::from_secs(10)))?.is_none());
    println!("the next start would be in {:.0?}", api.peek("", 1)?.retry_after);
    Ok(())
}
