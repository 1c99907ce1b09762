//! Limits of which a server grants units: sites that share one, and what can happen to them. Each store here is a site.
#![cfg(feature = "redis")]

mod common;

use common::redis::RedisServer;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use workglow_limit::*;

/// When a start happened: between these, by one clock.
type Start = (Instant, Instant);

/// By how many starts a window was exceeded: as many as certainly lie within one, less the limit.
fn over(starts: &mut [Start], limit: usize, window: Duration) -> usize {
    starts.sort_by_key(|(_, end)| *end);
    let mut most = 0;
    for (i, (_, end)) in starts.iter().enumerate() {
        // All that ended by then, and began less than a window before.
        let within = starts[..=i].iter().rev().take(8 * limit + 64).filter(|(begin, _)| *end - *begin < window);
        most = most.max(within.count());
    }
    most.saturating_sub(limit)
}

/// What sites did.
#[derive(Debug, Default)]
struct Seen {
    starts: Vec<Start>,
    over: usize,
    used: f64,
    requests: f64,
}

fn requests(server: &RedisServer) -> u64 {
    let info = server.info("commandstats");
    let calls = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name)).unwrap_or("calls=0,");
        line.split("calls=").nth(1).unwrap().split(',').next().unwrap().parse::<u64>().unwrap()
    };
    calls("cmdstat_evalsha:")
}

/// Lets so many sites start for a while, each by so many threads, which are told when to end and say of each start when it was asked
/// for.
fn run(
    server: &RedisServer,
    (limit, window): (u64, Duration),
    (sites, threads): (usize, usize),
    lasts: Duration,
    drive: impl Fn(&RateLimiter, Instant) -> Vec<Start> + Sync,
) -> Seen {
    let starts = Mutex::new(Vec::new());
    let before = requests(server);
    let end = Instant::now() + lasts;
    std::thread::scope(|scope| {
        for _ in 0..sites {
            let store = Store::new(&server.url()).unwrap();
            let limiter = Arc::new(RateLimiter::new(&store, "api", limit, window).unwrap());
            for _ in 0..threads {
                let (limiter, starts, drive) = (limiter.clone(), &starts, &drive);
                scope.spawn(move || starts.lock().unwrap().extend(drive(&limiter, end)));
            }
        }
    });
    let mut starts = starts.into_inner().unwrap();
    let asked = requests(server) - before;
    let over = over(&mut starts, limit as usize, window);
    let most = limit as f64 * lasts.as_secs_f64() / window.as_secs_f64();
    Seen { over, used: starts.len() as f64 / most, requests: asked as f64 / starts.len() as f64, starts }
}

fn callers(limiter: &RateLimiter, end: Instant) -> Vec<Start> {
    let mut starts = Vec::new();
    let mut before = Instant::now();
    while before < end {
        match limiter.attempt("", 1).unwrap() {
            Attempt::Admitted(_) => starts.push((before, Instant::now())),
            Attempt::Denied(after) => std::thread::sleep(after.min(Duration::from_millis(2))),
        }
        before = Instant::now();
    }
    starts
}

fn waiters(limiter: &RateLimiter, end: Instant) -> Vec<Start> {
    let mut starts = Vec::new();
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        let before = Instant::now();
        if let Some(permit) = limiter.acquire("", 1, Some(left)).unwrap() {
            let now = Instant::now();
            // A waiter starts when its place is ready, or later; what had none, after it was asked for.
            let ready = permit.ready_at().map(|ready| SystemTime::now().duration_since(ready).unwrap_or_default());
            starts.push((ready.map_or(before, |ago| now - ago), now));
        }
    }
    starts
}

#[test]
fn figures() {
    for (limit, window) in [(1000, 1), (20_000, 10), (100, 2)] {
        let window = Duration::from_secs(window);
        for (name, threads, drive) in [("callers", 1, callers as fn(&RateLimiter, Instant) -> Vec<Start>), ("waiters", 4, waiters)] {
            let server = RedisServer::start("fleet");
            let seen = run(&server, (limit, window), (8, threads), window * 4, drive);
            println!("{limit}/{window:?} {name}: over {} used {:.3} requests {:.3} starts {}", seen.over, seen.used, seen.requests, seen.starts.len());
        }
    }
}
#[test]
fn one() {
            let server = RedisServer::start("fleet1");
            let window = Duration::from_secs(1);
            let seen = run(&server, (1000, window), (8, 1), window * 3, callers);
            println!("over {} used {:.3} requests {:.3} starts {}", seen.over, seen.used, seen.requests, seen.starts.len());
}
#[test]
fn two() {
            let server = RedisServer::start("fleet2");
            let window = Duration::from_secs(1);
            let seen = run(&server, (1000, window), (8, 4), window * 3, waiters);
            println!("over {} used {:.3} requests {:.3} starts {}", seen.over, seen.used, seen.requests, seen.starts.len());
}
