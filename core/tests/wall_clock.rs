//! Setting the wall clock has no effect: on no limit, no gate, no boundary of windows, in no process. The test sets it
//! by replacing the system's function, in this program only.

mod common;

use common::{Child, Dir};
use std::sync::atomic::{AtomicI64, Ordering::*};
use std::time::{Duration, SystemTime};
use workglow_limit::*;

/// How far the wall clock has been set, in seconds.
static SET: AtomicI64 = AtomicI64::new(0);

/// The time function of this program and its libraries.
///
/// # Safety
/// The same as the system's: `at` is a valid place for the result.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, at: *mut libc::timespec) -> libc::c_int {
    // SAFETY: as promised by the caller.
    let answer = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, at) };
    if answer == 0 && [libc::CLOCK_REALTIME, libc::CLOCK_REALTIME_COARSE].contains(&clock) {
        // SAFETY: the kernel has just written there.
        unsafe { (*at).tv_sec += SET.load(Relaxed) };
    }
    answer as libc::c_int
}

const HOUR: Duration = Duration::from_secs(3_600);
const YEAR: Duration = Duration::from_secs(366 * 24 * 3_600);

fn family(store: &Store) -> Vec<std::sync::Arc<dyn Limiter>> {
    let policies = [
        Policy::rate(3, HOUR),
        Policy::rate(10_000, HOUR),
        Policy::delay(HOUR),
        Policy::evenly_spaced(3, 3 * HOUR, false),
        Policy::evenly_spaced(3, 3 * HOUR, true),
        Policy::token_bucket(1, HOUR, 3),
        Policy::leaky_bucket(1, HOUR, 3),
        // Its boundary comes only once a year, and not while this runs.
        Policy::fixed_window(3, YEAR),
        Policy::sliding_window_counter(3, YEAR),
        Policy::concurrency(3).unwrap().with_lease(HOUR),
    ];
    let named = |(i, policy): (usize, Result<Policy>)| store.declare(&format!("limit {i}"), policy.unwrap()).unwrap();
    policies.into_iter().enumerate().map(named).collect()
}

/// When each would admit again, which must be no sooner than before.
fn waits(limiters: &[std::sync::Arc<dyn Limiter>], key: &str) -> Vec<Duration> {
    let wait = |limiter: &std::sync::Arc<dyn Limiter>| {
        let seen = limiter.peek(key, 1).unwrap();
        assert!(!seen.admitted, "{} admits", limiter.name());
        seen.retry_after
    };
    limiters.iter().map(wait).collect()
}

fn assert_unmoved(before: &[Duration], now: &[Duration], when: &str) {
    for (i, (before, now)) in before.iter().zip(now).enumerate() {
        // Time advances, but not by hours.
        assert!(now <= before && *before - *now < HOUR / 4, "limit {i}, {when}: {before:?} became {now:?}");
    }
}

#[test]
fn setting_the_wall_clock_moves_no_limit_and_no_gate() {
    let dir = Dir::in_memory("wall-clock");
    let limiters = family(&Store::new(&dir.url()).unwrap());
    for limiter in &limiters {
        while let Attempt::Admitted(_) = limiter.attempt("", 1).unwrap() {}
        limiter.pause(HOUR, "paused").unwrap();
        limiter.set_next_available_time(SystemTime::now() + HOUR, "until").unwrap();
    }
    let all = || ["", "paused", "until"].map(|key| waits(&limiters, key)).concat();
    let before = all();
    let real = SystemTime::now();
    for set in [2 * 3_600, -2 * 3_600, 400 * 86_400, -400 * 86_400, 0] {
        SET.store(set, Relaxed);
        let shown = SystemTime::now()
            .duration_since(real)
            .map_or_else(|e| -(e.duration().as_secs() as i64), |d| d.as_secs() as i64);
        assert!((set - 60..set + 600).contains(&shown), "the wall clock was not set: {shown} instead of {set}");
        assert_unmoved(&before, &all(), &format!("set by {set} s"));
        // The same for a process that opens the store only now.
        Child::run(|| {
            let limiters = family(&Store::new(&dir.url()).unwrap());
            let now = ["", "paused", "until"].map(|key| waits(&limiters, key)).concat();
            assert_unmoved(&before, &now, &format!("set by {set} s, newly opened"));
        })
        .join();
    }
}
