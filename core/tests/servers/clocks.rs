//! Clocks that are set, or stand still: of the server, and of the machines that ask it.
#![cfg(any(feature = "redis", feature = "postgres"))]

use crate::common::limits::patient;
use crate::common::server::Server;
use crate::common::{Child, Record, most_in_any_window, now_ns, shared, wait_until};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use workglow_limit::*;

const HOUR_US: i64 = 3_600_000_000;

fn admits(limiter: &dyn Limiter) -> bool {
    matches!(limiter.attempt("", 1).unwrap(), Attempt::Admitted(_))
}

/// The addresses of a server at which machines decide by grants, and at which it decides each start.
fn urls(server: &Server) -> [String; 2] {
    [server.url(), server.direct_url()]
}

#[test]
fn a_machine_that_stood_still_stops_no_other() {
    for server in Server::each_with_clock("clocks-still") {
        for (i, url) in urls(&server).iter().enumerate() {
            let (name, word) = (format!("api-{i}"), &shared(1)[0]);
            let machine = || RateLimiter::new(&patient(url), &name, 1_000, Duration::from_secs(3_600)).unwrap();
            let here = machine();
            assert!(admits(&here));
            let _there = Child::run(|| {
                let there = machine();
                assert!(admits(&there));
                fault::stand_still(Duration::from_secs(20));
                word.store(1, Relaxed);
                wait_until("it starts", || admits(&there));
                word.store(2, Relaxed);
                std::thread::sleep(Duration::from_secs(3_600));
            });
            // It keeps asking, as a machine in use does.
            wait_until("the other one has started", || {
                std::thread::sleep(Duration::from_millis(5));
                let _ = here.attempt("", 1).unwrap();
                word.load(Relaxed) == 2
            });
            wait_until("this one starts", || admits(&here));
        }
    }
}

#[test]
fn a_machine_that_stood_still_alone_waits_no_longer_than_it_stood() {
    for server in Server::each_with_clock("clocks-alone") {
        for (i, url) in urls(&server).into_iter().enumerate() {
            Child::run(|| {
                let store = patient(&url);
                let week =
                    RateLimiter::new(&store, &format!("api-{i}"), 100_000, Duration::from_secs(7 * 86_400)).unwrap();
                assert!(admits(&week));
                fault::stand_still(Duration::from_secs(2));
                wait_until("it starts", || admits(&week));
                // All that has started counts, and nothing else.
                wait_until("it is known what is left", || {
                    (99_900..99_999).contains(&week.peek("", 1).unwrap().remaining)
                });
            })
            .join();
        }
    }
}

/// One of each kind whose time a server keeps.
fn family(store: &Store, turn: usize) -> Vec<Arc<dyn Limiter>> {
    let policies = [
        "10/1s",
        "100/1h",
        "5000/1h",
        "10/1s burst 10",
        "10/1s queue 5",
        "10/1s fixed",
        "10/1s counter",
        "3 concurrent",
    ];
    policies.iter().map(|policy| store.limiter(&format!("{policy}-{turn}"), policy).unwrap()).collect()
}

#[test]
fn an_hour_ahead_for_a_while_costs_no_hour() {
    for server in Server::each_with_clock("clocks-hour") {
        let stores = urls(&server).map(|url| patient(&url));
        let all: Vec<_> = stores.iter().enumerate().flat_map(|(turn, store)| family(store, turn)).collect();
        let start_all = |when: &str| {
            let mut left = all.clone();
            wait_until(&format!("all start {when} on {}", server.kind()), || {
                left.retain(|limiter| match limiter.attempt("", 1).unwrap() {
                    Attempt::Admitted(permit) => limiter.complete(&permit).is_err(),
                    Attempt::Denied(_) => true,
                });
                left.is_empty()
            });
        };
        start_all("before");
        for by in [HOUR_US, 0, -HOUR_US, 0] {
            server.set_clock(by);
            start_all(&format!("with {by} us"));
            start_all(&format!("again with {by} us"));
        }
    }
}

const LIMIT: u64 = 20;
const WINDOW: Duration = Duration::from_millis(500);

/// Sets the clock of a server by this much, each time this number of milliseconds has passed. Returns the starts
/// of a machine with grants, and of one without, by the true time.
fn starts_with_steps(server: &Server, turn: usize, by_us: i64, every_ms: u64) -> [Vec<(u64, u64, u64)>; 2] {
    let limiters =
        urls(server).map(|url| RateLimiter::new(&patient(&url), &format!("api-{turn}-{url}"), LIMIT, WINDOW).unwrap());
    // The first call prepares the server.
    limiters.iter().for_each(|limiter| limiter.open().unwrap());
    server.set_clock(0);
    let end = Instant::now() + 10 * WINDOW;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1.. {
                std::thread::sleep(Duration::from_millis(every_ms));
                if Instant::now() >= end {
                    break;
                }
                server.set_clock(n * by_us);
            }
        });
        let starts = limiters.each_ref().map(|limiter| {
            scope.spawn(move || {
                let record = Record::new(100_000);
                while Instant::now() < end {
                    let before = now_ns();
                    match limiter.attempt("", 1).unwrap() {
                        Attempt::Admitted(_) => record.add(before, now_ns(), 1),
                        Attempt::Denied(_) => std::thread::sleep(Duration::from_millis(2)),
                    }
                }
                wait_until("it starts at the end", || admits(limiter));
                record.starts()
            })
        });
        starts.map(|starts| starts.join().unwrap())
    })
}

#[test]
fn a_clock_that_is_set_back_admits_no_more_than_the_limit() {
    for server in Server::each_with_clock("clocks-back") {
        for (turn, (by, every)) in
            [(-2_000, 350), (-300_000, 350), (-1_500_000, 350), (-HOUR_US, 1_700)].into_iter().enumerate()
        {
            for starts in starts_with_steps(&server, turn, by, every) {
                let most = most_in_any_window(&starts, WINDOW.as_nanos() as u64);
                assert!(most <= LIMIT, "{most} with steps of {by} us on {}", server.kind());
            }
        }
    }
}

/// A step that is shorter than two round trips may not be seen. Until a step is seen, windows are shorter by it.
#[test]
fn a_clock_that_is_set_forward_shortens_windows_by_the_steps_in_them() {
    for server in Server::each_with_clock("clocks-forward") {
        for (turn, by) in [2_000, 100_000].into_iter().enumerate() {
            for starts in starts_with_steps(&server, turn, by, 350) {
                // Two steps may lie in a window.
                let shorter = WINDOW - 2 * Duration::from_micros(by as u64);
                let most = most_in_any_window(&starts, shorter.as_nanos() as u64);
                assert!(most <= LIMIT, "{most} in {shorter:?} with steps of {by} us on {}", server.kind());
            }
        }
    }
}

/// The step is past the window, but a machine that asks sees it. Only its next request is decided before that is known.
#[test]
fn a_step_forward_that_is_seen_admits_no_more_than_the_limit() {
    let window = Duration::from_secs(20);
    for server in Server::each_with_clock("clocks-seen") {
        for (i, url) in urls(&server).iter().enumerate() {
            let limiter = RateLimiter::new(&patient(url), &format!("api-{i}"), LIMIT, window).unwrap();
            let began = Instant::now();
            let mut started = 0;
            wait_until("it is full", || {
                started += u64::from(admits(&limiter));
                started == LIMIT || began.elapsed() > window / 4
            });
            server.set_clock(30_000_000);
            while began.elapsed() < window / 2 && started <= LIMIT + 1 {
                started += u64::from(admits(&limiter));
                std::thread::sleep(Duration::from_millis(50));
            }
            assert!(started <= LIMIT + 1, "{started} of {LIMIT} on {} with {url}", server.kind());
            server.set_clock(0);
        }
    }
}
