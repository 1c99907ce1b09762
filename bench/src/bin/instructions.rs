//! One case of `bench/instructions.py`, which runs it under Callgrind and counts what `measured` executes: `instructions CASE DIRECTORY`.
//! Without arguments, it lists the cases.
//!
//! Each case calls one method [`CALLS`] times, on a limiter that is warm, and through `dyn Limiter`, as the packages do.

use std::hint::black_box;
use std::path::Path;
use std::process::exit;
use workglow_limit::observe::Observer;
use workglow_limit::{Attempt, Charge, Limiter, Store};

/// A multiple of eight, because a log moves its counter every eight starts.
const CALLS: u64 = 800;

// All calls are admitted, except by `SHUT`, which admits the first one only.
const OPEN: &str = "4096/1m";
/// The same, with a key that has used a part of it: its ring has not grown to its largest size.
const PART: &str = "4095/1m";
const SHUT: &str = "1/1d";
/// Its starts are not in the ledger, so no thread writes the ledger during the measurement.
const SHORT: &str = "4096/2s";
const BUCKET: &str = "1000000000/1s burst 1000000000";
const COUNTED: &str = "1000000/1m";
const FIXED: &str = "1000000/1m fixed";
const JOBS: &str = "10 concurrent";
const BOTH: &str = "4096/1m + 1000000000/1s burst 1000000000";

/// One start is one request, some tokens, and one of its tenant's units: see [`joint`].
const TWO: &str = "requests: 4096/1m + tokens: 100000000/1m";
const THREE: &str = "requests: 4096/1m + tokens: 100000000/1m + tenant: 4096/1m";
const TOKENS: u64 = 1_200;

const NO_KEY: &str = "";
const KEY: &str = "tenant-7";

/// Method, store, words of the name, policy, key.
type Case = (&'static str, &'static str, &'static str, &'static str, &'static str);
const CASES: &[Case] = &[
    ("attempt", "memory", "admit", OPEN, NO_KEY),
    ("attempt", "memory", "deny", SHUT, NO_KEY),
    ("attempt", "memory", "admit key", OPEN, KEY),
    ("attempt", "memory", "deny key", SHUT, KEY),
    ("attempt", "memory", "admit part key", PART, KEY),
    ("attempt", "memory", "bucket", BUCKET, NO_KEY),
    ("attempt", "memory", "counted", COUNTED, NO_KEY),
    ("attempt", "memory", "fixed", FIXED, NO_KEY),
    ("attempt", "sqlite", "admit", OPEN, NO_KEY),
    ("attempt", "sqlite", "deny", SHUT, NO_KEY),
    ("attempt", "sqlite", "admit key", OPEN, KEY),
    ("attempt", "sqlite", "deny key", SHUT, KEY),
    ("attempt", "sqlite", "admit short", SHORT, NO_KEY),
    ("attempt", "sqlite", "admit short key", SHORT, KEY),
    ("attempt_watched", "sqlite", "admit short", SHORT, NO_KEY),
    ("attempt_watched", "sqlite", "deny", SHUT, NO_KEY),
    ("attempt_watched", "sqlite", "admit short key", SHORT, KEY),
    ("decide", "memory", "", OPEN, NO_KEY),
    ("decide", "sqlite", "", OPEN, NO_KEY),
    ("peek", "memory", "", OPEN, NO_KEY),
    ("peek", "sqlite", "", OPEN, NO_KEY),
    ("job", "memory", "concurrency", JOBS, NO_KEY),
    ("job", "memory", "concurrency key", JOBS, KEY),
    ("job", "memory", "composite", BOTH, NO_KEY),
    ("joint", "memory", "two", TWO, NO_KEY),
    ("joint", "memory", "three", THREE, KEY),
    ("joint", "sqlite", "two", TWO, NO_KEY),
    ("joint", "sqlite", "three", THREE, KEY),
    ("cold_key", "memory", "log", "100/1m", NO_KEY),
    ("cold_key", "memory", "bucket", "1/1h burst 100", NO_KEY),
    ("clock", "", "", "", NO_KEY),
];

fn name((method, store, words, ..): &Case) -> String {
    [*method, store, words].join(" ").trim_end().to_owned()
}

/// Callgrind counts from its start to its end.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn measured(calls: &mut Calls<'_>) {
    (calls.0)();
}

struct Calls<'a>(&'a mut dyn FnMut());

fn count(mut call: impl FnMut()) {
    measured(&mut Calls(&mut || (0..CALLS).for_each(|_| call())));
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [case, directory] = &arguments[..] else {
        CASES.iter().for_each(|case| println!("{CALLS} {}", name(case)));
        return;
    };
    let found = CASES.iter().find(|one| name(one) == *case);
    let Some(&(method, store, _, policy, key)) = found else {
        eprintln!("there is no case {case:?}");
        exit(2);
    };
    if method == "clock" {
        return clock();
    }
    let url = if store == "sqlite" { format!("sqlite:{directory}/limits.db") } else { format!("{store}:") };
    let limiter = Store::new(&url).unwrap().limiter("limit", policy).unwrap();
    if method == "joint" {
        return joint(&*limiter, key);
    }
    warm(&*limiter, policy, key);
    match method {
        "attempt" => attempt(&*limiter, key),
        "attempt_watched" => {
            let _watchers = watch(Path::new(directory), &url);
            // Work done once per second is not counted.
            let _ = limiter.attempt(key, 1).unwrap();
            attempt(&*limiter, key);
        }
        "decide" => count(|| drop(black_box(limiter.decide(black_box(key), 1)))),
        "peek" => count(|| drop(black_box(limiter.peek(black_box(key), 1)))),
        // Starts that end.
        "job" => count(|| {
            if let Ok(Attempt::Admitted(permit)) = limiter.attempt(black_box(key), 1) {
                let _ = black_box(limiter.complete(&permit));
            }
        }),
        _ => cold_key(&*limiter),
    }
}

/// Uses a limiter of a new store.
fn warm(limiter: &dyn Limiter, policy: &str, key: &str) {
    let weight = [(OPEN, 4_096), (SHORT, 4_096), (PART, 2_000)].iter().find(|of| of.0 == policy).map_or(0, |of| of.1);
    if weight > 0
        && let Attempt::Admitted(permit) = limiter.attempt(key, weight).unwrap()
    {
        // The key keeps the ring that it needed for this.
        limiter.cancel(&permit).unwrap();
    }
    for _ in 0..CALLS {
        if let Attempt::Admitted(permit) = limiter.attempt(key, 1).unwrap() {
            limiter.complete(&permit).unwrap();
        }
    }
}

/// Joint starts that end, each with the writing of its charges: of a tenant, if there is a key.
fn joint(limiter: &dyn Limiter, key: &str) {
    let tokens = Charge::of("tokens").weight(TOKENS);
    let of_tenant = [tokens, Charge::of("tenant").key(key)];
    let charges = if key.is_empty() { &of_tenant[..1] } else { &of_tenant };
    let start = || {
        let joint = limiter.joint(NO_KEY, black_box(charges)).unwrap();
        let Attempt::Admitted(permit) = limiter.attempt(&joint, 1).unwrap() else { panic!("it was denied") };
        let _ = black_box(limiter.complete(&permit));
    };
    (0..CALLS).for_each(|_| start());
    count(start);
}

fn attempt(limiter: &dyn Limiter, key: &str) {
    count(|| drop(black_box(limiter.attempt(black_box(key), 1))));
}

/// Keys each of which was used once. There are too many for the caches.
fn cold_key(limiter: &dyn Limiter) {
    let keys: Vec<String> = (0..10_000).map(|key| format!("tenant-{key}")).collect();
    for key in &keys {
        let _ = limiter.attempt(key, 1).unwrap();
    }
    let mut cold = keys.iter().step_by(7);
    count(|| drop(black_box(limiter.attempt(cold.next().unwrap(), 1))));
}

/// The part that every decision has: one read of the clock.
fn clock() {
    count(|| {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is valid for writes.
        unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
        black_box(time);
    });
}

/// Another process that reads the store with ten observers, in turn and without a pause. All have read it once already.
fn watch(directory: &Path, url: &str) -> Watchers {
    let ready = directory.join("watched");
    // SAFETY: threads of the core may exist; the child opens stores of its own, which the core permits, and does not return.
    match unsafe { libc::fork() } {
        0 => {
            let open = |_| Observer::new(&Store::new(url).unwrap(), 10);
            let mut observers: Vec<Observer> = (0..10).map(open).collect();
            loop {
                observers.iter_mut().for_each(|observer| drop(black_box(observer.look().unwrap())));
                std::fs::write(&ready, "").unwrap();
            }
        }
        child => {
            let watchers = Watchers(child);
            while !ready.exists() {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            watchers
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
