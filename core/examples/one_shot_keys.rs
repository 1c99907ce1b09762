//! Keys that are used once, by the million, on each kind of limiter in turn: how large the lane and the process get, and
//! how long the longest call took.
//!
//! `cargo run --release -p workglow-limit --example one_shot_keys [KEYS [DIRECTORY]]`

use std::time::{Duration, Instant};
use workglow_limit::{Attempt, Result, Store};

/// The windows are short, so that few keys are in use at once.
const KINDS: [&str; 10] = [
    "2/20ms",
    "2/20ms + 1/1ms",
    "100/20ms",
    "5000/1ms",
    "10/20ms burst 20",
    "10/20ms queue 20",
    "10/20ms fixed",
    "10/20ms counter",
    "10/20ms spaced",
    "3 concurrent",
];

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = |i: usize| statm.split(' ').nth(i).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    // The lane is shared, and counts by itself.
    pages(1).saturating_sub(pages(2)) * 4
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let keys: u64 = args.next().map_or(10_000_000, |text| text.parse().expect("how many keys"));
    let dir = args.next().unwrap_or_else(|| format!("/dev/shm/one-shot-keys-{}", std::process::id()));
    for kind in KINDS {
        std::fs::create_dir_all(&dir).expect("a directory to write to");
        let store = Store::new(&format!("sqlite:{dir}/limits.db"))?;
        let limiter = store.limiter("api", kind)?;
        let lane = || std::fs::metadata(format!("{dir}/limits.db-lane")).map_or(0, |found| found.len() >> 10);
        let (began, mut longest) = (Instant::now(), Duration::ZERO);
        for i in 1..=keys {
            let call = Instant::now();
            match limiter.attempt(&format!("key {i}"), 1)? {
                Attempt::Admitted(permit) => limiter.complete(&permit)?,
                Attempt::Denied(_) => panic!("a new key was denied"),
            }
            longest = longest.max(call.elapsed());
            if i == 100_000 || i % 1_000_000 == 0 || i == keys {
                let (lane, took) = (lane(), began.elapsed());
                println!(
                    "{kind:>18}: {i:>9} keys, lane {lane:>7} KiB, process {:>6} KiB, {took:>7.1?}, longest call {longest:?}",
                    resident()
                );
                longest = Duration::ZERO;
            }
        }
        drop((limiter, store));
        std::fs::remove_dir_all(&dir).expect("the directory is ours");
    }
    Ok(())
}
