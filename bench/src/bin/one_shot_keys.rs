//! Uses millions of keys once each, on each kind of limiter in turn. Reports the size of the lane and the process, and
//! the longest call. Fails if either has grown by more than a sixteenth (and 1 MiB) since the first 100,000 keys. A key
//! is used every 10 µs by a manual clock, so the number of keys in use does not depend on the machine.
//!
//! `cargo run --release -p workglow-limit-bench --bin one_shot_keys [KEYS [DIRECTORY [POLICY…]]]`; `memory:` instead of a
//! directory uses a store on the heap.

use std::time::{Duration, Instant};
use workglow_limit::{Attempt, ManualClock, Result, Store, StoreOptions};

/// The windows are short, so that few keys are in use at once.
const KINDS: [&str; 15] = [
    "delay 20ms",
    "10/20ms spaced",
    "10/20ms spaced strictly",
    "10/20ms burst 20",
    "10/20ms queue 20",
    "10/20ms fixed",
    "10/20ms counter",
    "3 concurrent",
    "3 concurrent lease 20ms",
    "10/20ms + 3 concurrent",
    "10/20ms burst 20 + 10/20ms fixed + 3 concurrent lease 20ms",
    "5000/1ms",
    "2/20ms",
    "2/20ms + 1/1ms",
    "100/20ms",
];

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = |i: usize| statm.split(' ').nth(i).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    // The lane is shared memory, and is counted separately.
    pages(1).saturating_sub(pages(2)) * 4
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let keys: u64 = args.next().map_or(10_000_000, |text| text.parse().expect("how many keys"));
    let dir = args.next().unwrap_or_else(|| "/dev/shm".into()) + &format!("/one-shot-keys-{}", std::process::id());
    let kinds: Vec<String> = args.collect();
    let kinds: Vec<&str> = if kinds.is_empty() { KINDS.to_vec() } else { kinds.iter().map(String::as_str).collect() };
    let grown = kinds.into_iter().filter(|kind| !is_flat(kind, keys, &dir).unwrap_or_else(|e| panic!("{kind}: {e}")));
    let grown: Vec<&str> = grown.collect();
    if !grown.is_empty() {
        eprintln!("not flat: {grown:?}");
        std::process::exit(1);
    }
    Ok(())
}

fn is_flat(kind: &str, keys: u64, dir: &str) -> Result<bool> {
    let is_heap = dir.starts_with("memory:");
    let url = if is_heap { "memory:".to_owned() } else { format!("sqlite:{dir}/limits.db") };
    if !is_heap {
        std::fs::create_dir_all(dir).expect("a directory to write to");
    }
    let (clock, mut options) = (ManualClock::new(), StoreOptions::default());
    options.clock = Some(clock.clone());
    let store = Store::with_options(&url, options)?;
    let limiter = store.limiter("api", kind)?;
    // Where jobs end only with their leases, no call completes them.
    let ends = !kind.contains("lease");
    let lane = || std::fs::metadata(format!("{dir}/limits.db-lane")).map_or(0, |found| found.len() >> 10);
    let (began, mut longest, mut early) = (Instant::now(), Duration::ZERO, None);
    for i in 1..=keys {
        let call = Instant::now();
        match limiter.attempt(&format!("key {i}"), 1)? {
            Attempt::Admitted(permit) if ends => limiter.complete(&permit)?,
            Attempt::Admitted(_) => {}
            Attempt::Denied(_) => panic!("a new key was denied"),
        }
        longest = longest.max(call.elapsed());
        clock.advance(Duration::from_micros(10));
        if i == 100_000 || i % 1_000_000 == 0 || i == keys {
            let (size, took) = ([lane(), resident()], began.elapsed());
            early.get_or_insert(size);
            let [lane, process] = size;
            println!(
                "{kind:>18}: {i:>9} keys, lane {lane:>7} KiB, process {process:>6} KiB, {took:>7.1?}, longest call {longest:?}"
            );
            longest = Duration::ZERO;
        }
    }
    let flat = early.is_none_or(|early| {
        let late = [lane(), resident()];
        early.into_iter().zip(late).all(|(early, late)| late <= early + early / 16 + (1 << 10))
    });
    drop((limiter, store));
    if !is_heap {
        std::fs::remove_dir_all(dir).expect("the directory is ours");
    }
    Ok(flat)
}
