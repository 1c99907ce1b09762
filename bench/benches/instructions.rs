//! Counts the instructions of each call with Callgrind, so that the figure does not depend on how busy the machine is.
//! `make instructions` runs it and compares the counts with `instructions.toml`.
//!
//! Each case calls one method [`CALLS`] times, on a limiter that is warm, and through `dyn Limiter`, as the packages do.

// The items that the macros generate have no comments.
#![allow(missing_docs)]

use gungraun::prelude::*;
use gungraun::{Callgrind, LibraryBenchmarkConfig};
use std::hint::black_box;
use std::sync::Arc;
use workglow_limit::{Attempt, Limiter, Observer, Store};

/// A multiple of eight, because a log moves its counter every eight starts.
const CALLS: u64 = 800;

const MEMORY: &str = "memory:";
const SQLITE: &str = "sqlite:";

// All calls are admitted, except by `SHUT`, which admits the first one only.
const OPEN: &str = "4096/1m";
const SHUT: &str = "1/1d";
/// Its starts are not in the ledger, so no thread writes the ledger during the measurement.
const SHORT: &str = "4096/2s";
const BUCKET: &str = "1000000000/1s burst 1000000000";
const COUNTED: &str = "1000000/1m";
const FIXED: &str = "1000000/1m fixed";

/// A limiter, and the key that it is called with.
struct Case {
    limiter: Arc<dyn Limiter>,
    key: &'static str,
}

/// A used limiter of a new store. (Each case is a process of its own, so the next one may use the same path.)
fn warm(url: &str, policies: &str, key: &'static str) -> Case {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("instructions");
    if url == SQLITE {
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
    }
    let place = directory.join("limits.db");
    let url = if url == SQLITE { format!("{SQLITE}{}", place.display()) } else { url.into() };
    let limiter = Store::new(&url).unwrap().limiter("limit", policies).unwrap();
    for _ in 0..CALLS {
        if let Attempt::Admitted(permit) = limiter.attempt(key, 1).unwrap() {
            limiter.complete(&permit).unwrap();
        }
    }
    Case { limiter, key }
}

#[library_benchmark(setup = warm)]
#[bench::memory_admit(MEMORY, OPEN, "")]
#[bench::memory_deny(MEMORY, SHUT, "")]
#[bench::memory_admit_key(MEMORY, OPEN, "tenant-7")]
#[bench::memory_deny_key(MEMORY, SHUT, "tenant-7")]
#[bench::memory_bucket(MEMORY, BUCKET, "")]
#[bench::memory_counted(MEMORY, COUNTED, "")]
#[bench::memory_fixed(MEMORY, FIXED, "")]
#[bench::sqlite_admit(SQLITE, OPEN, "")]
#[bench::sqlite_deny(SQLITE, SHUT, "")]
#[bench::sqlite_admit_key(SQLITE, OPEN, "tenant-7")]
#[bench::sqlite_deny_key(SQLITE, SHUT, "tenant-7")]
#[bench::sqlite_admit_short(SQLITE, SHORT, "")]
#[bench::sqlite_admit_short_key(SQLITE, SHORT, "tenant-7")]
fn attempt(case: Case) -> Case {
    for _ in 0..CALLS {
        let _ = black_box(case.limiter.attempt(black_box(case.key), 1));
    }
    case
}

/// The same while another process reads the store with ten observers, in turn and without a pause.
fn watched(policies: &str, key: &'static str) -> (Case, Watchers) {
    let case = warm(SQLITE, policies, key);
    let place = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("instructions/limits.db");
    let mut ready = [0; 2];
    // SAFETY: `ready` holds two descriptors.
    assert_eq!(unsafe { libc::pipe(ready.as_mut_ptr()) }, 0);
    // SAFETY: this process has one thread, and the child does not return.
    match unsafe { libc::fork() } {
        0 => {
            let url = format!("{SQLITE}{}", place.display());
            let open = |_| Observer::new(&Store::new(&url).unwrap(), 10);
            let mut observers: Vec<Observer> = (0..10).map(open).collect();
            loop {
                observers.iter_mut().for_each(|observer| drop(black_box(observer.look().unwrap())));
                // SAFETY: one byte, of a pipe that is open.
                unsafe { libc::write(ready[1], [0u8].as_ptr().cast(), 1) };
            }
        }
        child => {
            // SAFETY: as above.
            assert_eq!(unsafe { libc::read(ready[0], [0u8].as_mut_ptr().cast(), 1) }, 1, "all have looked");
            // Work done once per second is not counted.
            let _ = case.limiter.attempt(key, 1).unwrap();
            (case, Watchers(child))
        }
    }
}

/// A process, until this is dropped.
struct Watchers(i32);

impl Drop for Watchers {
    fn drop(&mut self) {
        // SAFETY: a child that has not been waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

#[library_benchmark(setup = watched)]
#[bench::sqlite_admit_short(SHORT, "")]
#[bench::sqlite_deny(SHUT, "")]
#[bench::sqlite_admit_short_key(SHORT, "tenant-7")]
fn attempt_watched((case, watchers): (Case, Watchers)) -> (Case, Watchers) {
    for _ in 0..CALLS {
        let _ = black_box(case.limiter.attempt(black_box(case.key), 1));
    }
    (case, watchers)
}

#[library_benchmark(setup = warm)]
#[bench::memory(MEMORY, OPEN, "")]
#[bench::sqlite(SQLITE, OPEN, "")]
fn decide(case: Case) -> Case {
    for _ in 0..CALLS {
        let _ = black_box(case.limiter.decide(black_box(case.key), 1));
    }
    case
}

#[library_benchmark(setup = warm)]
#[bench::memory(MEMORY, OPEN, "")]
#[bench::sqlite(SQLITE, OPEN, "")]
fn peek(case: Case) -> Case {
    for _ in 0..CALLS {
        let _ = black_box(case.limiter.peek(black_box(case.key), 1));
    }
    case
}

// Starts that end.
#[library_benchmark(setup = warm)]
#[bench::memory_concurrency(MEMORY, "10 concurrent", "")]
#[bench::memory_concurrency_key(MEMORY, "10 concurrent", "tenant-7")]
#[bench::memory_composite(MEMORY, "4096/1m + 1000000000/1s burst 1000000000", "")]
fn job(case: Case) -> Case {
    for _ in 0..CALLS {
        if let Ok(Attempt::Admitted(permit)) = case.limiter.attempt(black_box(case.key), 1) {
            let _ = black_box(case.limiter.complete(&permit));
        }
    }
    case
}

/// The same with many keys, each of which was used once. There are too many for the caches.
fn cold(url: &str, policies: &str, keys: u64) -> (Case, Vec<String>) {
    let case = warm(url, policies, "");
    let keys: Vec<String> = (0..keys).map(|key| format!("tenant-{key}")).collect();
    for key in &keys {
        let _ = case.limiter.attempt(key, 1).unwrap();
    }
    (case, keys.into_iter().step_by(7).take(CALLS as usize).collect())
}

#[library_benchmark(setup = cold)]
#[bench::memory_log(MEMORY, "100/1m", 10_000)]
#[bench::memory_bucket(MEMORY, "1/1h burst 100", 10_000)]
fn cold_key((case, keys): (Case, Vec<String>)) -> (Case, Vec<String>) {
    for key in &keys {
        let _ = black_box(case.limiter.attempt(key, 1));
    }
    (case, keys)
}

// The part that every decision has: one read of the clock.
#[library_benchmark]
fn clock() {
    for _ in 0..CALLS {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is valid for writes.
        unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
        black_box(time);
    }
}

library_benchmark_group!(name = calls, benchmarks = [attempt, attempt_watched, decide, peek, job, cold_key, clock]);

main!(
    // The caches of no machine in particular: a first and a last level, with lines of 64 bytes.
    config = LibraryBenchmarkConfig::default().tool(Callgrind::with_args([
        "--I1=32768,8,64",
        "--D1=32768,8,64",
        "--LL=1048576,16,64"
    ])),
    library_benchmark_groups = calls
);
