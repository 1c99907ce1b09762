//! The most starts in any window.

use crate::measure::read_clock;
use serde_json::json;
use std::sync::Barrier;
use std::time::Duration;

/// The limit: starts in any window.
pub const LIMIT: u64 = 100;
/// The length of the window.
pub const WINDOW: Duration = Duration::from_secs(1);

/// When a start was admitted: the clock just before the call and just after it.
pub type Start = (u64, u64);

/// The most starts that lie wholly inside one half-open window.
pub fn most(starts: &[Start], window: Duration) -> usize {
    let window = window.as_nanos() as u64;
    let inside = |first: u64| starts.iter().filter(|(a, b)| *a >= first && *b < first + window).count();
    starts.iter().map(|(a, _)| inside(*a)).max().unwrap_or(0)
}

/// Calls in the pattern that is worst for a counter of calendar windows: one start at a whole second, none for most of
/// a window, then all that are admitted, across the ends of this window and of the next.
pub fn hammer(mut decide: impl FnMut() -> bool, has_first: bool) -> Vec<Start> {
    let mut starts = Vec::new();
    let mut ask = || {
        let before = read_clock(libc::CLOCK_BOOTTIME);
        if decide() {
            starts.push((before, read_clock(libc::CLOCK_BOOTTIME)));
        }
    };
    if has_first {
        ask();
    }
    std::thread::sleep(WINDOW.mul_f64(0.85));
    let began = std::time::Instant::now();
    while began.elapsed() < WINDOW.mul_f64(1.7) {
        ask();
    }
    starts
}

/// Sleeps until a whole second of the wall clock, where windows of the calendar begin.
pub fn wait_for_second() {
    let now = std::time::UNIX_EPOCH.elapsed().expect("it is after 1970");
    std::thread::sleep(Duration::from_secs(now.as_secs() + 1) - now);
}

/// Hammers one limit from several threads, and prints the starts of its fullest window.
pub fn threads(group: &str, peer: &str, case: &str, threads: usize, decide: impl Fn() -> bool + Sync) {
    let barrier = Barrier::new(threads);
    wait_for_second();
    let starts: Vec<Start> = std::thread::scope(|scope| {
        let (barrier, decide) = (&barrier, &decide);
        let body = move |first| {
            barrier.wait();
            hammer(decide, first)
        };
        let threads: Vec<_> = (0..threads).map(|i| scope.spawn(move || body(i == 0))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a thread has panicked")).collect()
    });
    let most = most(&starts, WINDOW);
    crate::print(&json!({
        "case": case, "group": group, "peer": peer, "limit": LIMIT, "most": most, "threads": threads,
    }));
}
