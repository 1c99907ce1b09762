//! What was admitted survives: a reboot at any moment, the loss of the lane, and whoever dies while changing it.
#![cfg(feature = "fault-points")]

mod common;

use common::{Child, Dir, Random, Record, most_in_any_window, now_ns, number, present_boot, shared};
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);

fn rate(url: &str, name: &str, max: u64, window: Duration) -> RateLimiter {
    RateLimiter::new(&Store::new(url).unwrap(), name, max, window).unwrap()
}

fn admitted(limiter: &impl Limiter, key: &str, weight: u64) -> bool {
    matches!(limiter.attempt(key, weight).unwrap(), Attempt::Admitted(_))
}

/// Each boot may lose sight of one budget of a key, and counts for that: also of the boots before the last.
#[test]
fn many_boots_within_one_window_lose_nothing() {
    const BOOTS: u64 = 12;
    const LIMIT: u64 = 200;
    const BUDGET: u64 = LIMIT / 20;
    let dir = Dir::new("many-boots");
    let total = shared(2);
    for boot in 0..=BOOTS {
        Child::run(|| {
            present_boot(boot);
            let limiter = rate(&dir.url(), "api", LIMIT, HOUR);
            let take = |key: &str, most: u64| (0..most).take_while(|_| admitted(&limiter, key, 1)).count() as u64;
            // More than is written, less than there is.
            let most = if boot == BOOTS { LIMIT } else { BUDGET };
            total[0].fetch_add(take("", most), Relaxed);
            total[1].fetch_add(take("key", most), Relaxed);
        })
        .join();
    }
    for total in total {
        let total = total.load(Relaxed);
        println!("{total} of {LIMIT} over {BOOTS} boots");
        assert!(total <= LIMIT, "{total} of {LIMIT} in one window");
        assert!(total >= LIMIT - BOOTS * BUDGET, "only {total} of {LIMIT}");
    }
}
