//! Limits with grants from a server: sites that share one, and the faults that can hit them. Each store here is a site.
#![cfg(any(feature = "redis", feature = "postgres"))]

use crate::common::limits::patient;
#[cfg(feature = "postgres")]
use crate::common::postgres::PostgresServer;
use crate::common::proxy::Proxy;
#[cfg(feature = "redis")]
use crate::common::redis::RedisServer;
use crate::common::server::Server;
use crate::common::{Child, Random, Record, most_in_any_window, now_ns, number, wait_until};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use workglow_limit::embed::MayWait;
use workglow_limit::*;

/// A start happened between these moments.
type Start = (Instant, Instant);

/// The observations of a run.
#[derive(Debug, Default)]
struct Observed {
    starts: Vec<Start>,
    over: usize,
    used: f64,
    requests: f64,
}

/// The number of decisions requested from a server. (Postgres reports it after its clients have disconnected, if it
/// counts.)
fn requests(server: &Server) -> u64 {
    match server {
        #[cfg(feature = "redis")]
        Server::Redis(server) => redis_requests(server),
        #[cfg(feature = "postgres")]
        Server::Postgres(server) => {
            let who = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'workglow-limit'";
            wait_until("they have gone", || server.command(who) == "0");
            let calls = "SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE funcname = 'decide_log'";
            server.command(calls).parse().unwrap()
        }
    }
}

#[cfg(feature = "redis")]
fn redis_requests(server: &RedisServer) -> u64 {
    let info = server.info("commandstats");
    let calls = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name)).unwrap_or("calls=0,");
        line.split("calls=").nth(1).unwrap().split(',').next().unwrap().parse::<u64>().unwrap()
    };
    calls("cmdstat_evalsha:")
}

/// Lets this many sites start for a while, with this many threads each. The threads get the end time, and return for
/// each start when it was requested.
fn run(
    server: &Server,
    (limit, window): (u64, Duration),
    (sites, threads): (usize, usize),
    lasts: Duration,
    drive: impl Fn(&RateLimiter, Instant) -> Vec<Start> + Sync,
) -> Observed {
    let starts = Mutex::new(Vec::new());
    let before = requests(server);
    let began = Instant::now();
    let end = began + lasts;
    std::thread::scope(|scope| {
        for _ in 0..sites {
            let store = patient(&server.url());
            let limiter = Arc::new(RateLimiter::new(&store, "api", limit, window).unwrap());
            for _ in 0..threads {
                let (limiter, starts, drive) = (limiter.clone(), &starts, &drive);
                scope.spawn(move || starts.lock().unwrap().extend(drive(&limiter, end)));
            }
        }
    });
    let starts = starts.into_inner().unwrap();
    let asked = requests(server) - before;
    let of = |at: Instant| at.duration_since(began).as_nanos() as u64;
    let intervals: Vec<_> = starts.iter().map(|(begin, end)| (of(*begin), of(*end), 1)).collect();
    let over = most_in_any_window(&intervals, window.as_nanos() as u64).saturating_sub(limit) as usize;
    let most = limit as f64 * lasts.as_secs_f64() / window.as_secs_f64();
    Observed { over, used: starts.len() as f64 / most, requests: asked as f64 / starts.len() as f64, starts }
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
            // A waiter starts when its place is ready, or later; without a place, after its request.
            let ready = permit.ready_at().map(|ready| SystemTime::now().duration_since(ready).unwrap_or_default());
            starts.push((ready.map_or(before, |ago| now - ago), now));
        }
    }
    starts
}

/// A site: a process that starts as often as it may.
fn site(url: &str, (limit, window): (u64, Duration), (waits, rate): (bool, i64), record: &Record) -> Child {
    let _ = rate;
    Child::run(|| {
        #[cfg(feature = "fault-points")]
        crate::common::present_rate(rate);
        let mut options = StoreOptions::default();
        // Long enough for a new connection to a server on a busy machine: sites that give up sooner, and connect again, keep it busy.
        options.timeout = Duration::from_secs(1);
        options.on_error = OnError::Deny;
        let store = Store::with_options(url, options).unwrap();
        let limiter = RateLimiter::new(&store, "api", limit, window).unwrap();
        let mut random = Random::new();
        // Most start as soon as they can; some pause while holding granted units.
        let pauses = random.chance(50);
        loop {
            if pauses && random.chance(10) {
                std::thread::sleep(Duration::from_micros(random.below(window.as_micros() as u64 / 10)));
            }
            let before = now_ns();
            let pause = match waits {
                true => match limiter.acquire("", 1, Some(Duration::from_millis(500))) {
                    Ok(Some(permit)) => {
                        let now = now_ns();
                        // A waiter starts when its place is ready, or later; without a place, after its request.
                        let ready =
                            permit.ready_at().map(|at| SystemTime::now().duration_since(at).unwrap_or_default());
                        let begin = ready.map_or(before, |ago| now - ago.as_nanos() as u64);
                        record.add(begin, now, 1);
                        Duration::ZERO
                    }
                    _ => Duration::from_millis(1),
                },
                false => match limiter.attempt("", 1) {
                    Ok(Attempt::Admitted(_)) => {
                        record.add(before, now_ns(), 1);
                        Duration::ZERO
                    }
                    Ok(Attempt::Denied(after)) => after.min(Duration::from_millis(1)),
                    Err(_) => Duration::from_millis(1),
                },
            };
            std::thread::sleep(pause);
        }
    })
}

/// The faults that sites suffer.
#[derive(Clone, Copy)]
struct Faults {
    /// The fault of the server, and how rare it is: one of this many faults.
    server: Option<fn(&mut Server)>,
}

/// Ends a fault of a site.
type Undo = fn(&Proxy, &Child, usize);

/// Runs eight sites, which are killed, stopped, delayed and cut off. Returns the most units in a window, and the number
/// of starts.
fn torment(server: &mut Server, name: &str, (limit, window): (u64, Duration), torments: Faults) -> (u64, usize) {
    const SITES: usize = 8;
    let mut random = Random::new();
    let proxy = Proxy::start(&format!("{name}-proxy"), server, SITES);
    // The first store prepares the server, which may take longer than a site has.
    Store::new(&server.url())
        .unwrap()
        .limiter("api", &format!("{limit}/{}ms", window.as_millis()))
        .unwrap()
        .open()
        .unwrap();
    let records: Vec<Record> = (0..SITES).map(|_| Record::new(4_000_000)).collect();
    let start = |i: usize| site(&proxy.url(i), (limit, window), (i % 2 == 1, [-900, 900, 0, 500][i / 2]), &records[i]);
    let mut sites: Vec<Child> = (0..SITES).map(start).collect();
    let mut until: Vec<Option<(Instant, Undo)>> = vec![None; SITES];
    let end = Instant::now() + Duration::from_secs(number("SECONDS", 6)).max(4 * window);
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(random.below(100)));
        for i in 0..SITES {
            if let Some((at, undo)) = until[i]
                && at <= Instant::now()
            {
                undo(&proxy, &sites[i], i);
                until[i] = None;
            }
        }
        let i = random.below(SITES as u64) as usize;
        if until[i].is_some() {
            continue;
        }
        let mut millis = |least: u64, most: u64| Duration::from_millis(least + random.below(most - least));
        let soon = |after: Duration, undo: Undo| Some((Instant::now() + after, undo));
        match millis(0, if torments.server.is_some() { 7 } else { 6 }).as_millis() {
            0 => {
                // Dropping the old one kills it.
                sites[i] = start(i);
            }
            1 => {
                sites[i].signal(libc::SIGSTOP);
                until[i] = soon(millis(200, 3_000), |_, site, _| site.signal(libc::SIGCONT));
            }
            2 => {
                // With a delay beyond a part of the window, the server decides each start.
                let most = if millis(0, 4).is_zero() { 1_000 } else { window.as_millis() as u64 / 10 };
                proxy.delay(i, millis(1, most));
                until[i] = soon(millis(500, 4_000), |proxy, _, i| proxy.delay(i, Duration::ZERO));
            }
            3 => {
                proxy.close(i, true);
                until[i] = soon(millis(100, 3_000), |proxy, _, i| proxy.close(i, false));
            }
            4 => proxy.cut(i),
            5 => {}
            _ => {
                if let Some(torment) = torments.server {
                    torment(server);
                }
            }
        }
    }
    // Without faults, all start again.
    for (i, until) in until.iter().enumerate() {
        if let Some((_, undo)) = until {
            undo(&proxy, &sites[i], i);
        }
    }
    let before: Vec<u64> = records.iter().map(Record::len).collect();
    for (i, before) in before.iter().enumerate() {
        wait_until(&format!("site {i} starts again"), || records[i].len() > *before);
    }
    drop(sites);
    let starts: Vec<_> = records.iter().flat_map(Record::starts).collect();
    (most_in_any_window(&starts, window.as_nanos() as u64), starts.len())
}

fn check<S: Iterator<Item = Server>>(name: &'static str, servers: impl Fn(&'static str) -> S, torments: Faults) {
    for (limit, window) in [(100, 2_000), (number("LIMIT", 2_000), number("WINDOW_MS", 1_000))] {
        for mut server in servers(name) {
            let (most, starts) = torment(&mut server, name, (limit, Duration::from_millis(window)), torments);
            println!("{limit}/{window} ms on {}: {starts} starts, {most} in a window", server.kind());
            assert!(most <= limit, "{most} in a window of {limit} on {}", server.kind());
        }
    }
}

#[test]
fn sites_that_are_killed_stopped_and_cut_off_start_no_more_than_the_limit() {
    check("fleet-torments", Server::each, Faults { server: None });
}

#[test]
fn sites_of_a_server_that_forgets_start_no_more_than_the_limit() {
    check("fleet-forgets", Server::each, Faults { server: Some(|server| server.lose_starts()) });
}

/// A Postgres server that loses nothing it has written.
#[cfg(feature = "postgres")]
fn durable(name: &str) -> impl Iterator<Item = Server> {
    std::iter::once(Server::Postgres(PostgresServer::durable(name)))
}

#[cfg(feature = "postgres")]
#[test]
fn sites_of_a_postgres_that_is_killed_start_no_more_than_the_limit() {
    check("fleet-killed", durable, Faults { server: Some(|server| server.postgres().crash()) });
}

#[cfg(feature = "postgres")]
#[test]
fn sites_of_a_postgres_that_loses_to_a_standby_start_no_more_than_the_limit() {
    check("fleet-standby", durable, Faults { server: Some(|server| server.postgres().lose_to_standby()) });
}

/// What was left of a grant for less than a start was once of no use to anybody.
#[test]
fn a_site_is_granted_whole_starts() {
    for server in Server::each("fleet-whole") {
        let limit = |url: &str| RateLimiter::new(&patient(url), "api", 99_999, Duration::from_secs(10)).unwrap();
        let (here, seen) = (limit(&server.url()), limit(&server.direct_url()));
        for _ in 0..100 {
            (0..20).for_each(|_| assert!(matches!(here.attempt("", 3), Ok(Attempt::Admitted(_)))));
            assert_eq!(seen.peek("", 1).unwrap().remaining % 3, 0);
        }
    }
}

#[cfg(feature = "redis")]
#[test]
fn waiters_on_all_sites_start_in_request_order() {
    let server = RedisServer::start("fleet-order");
    // On a busy machine the requests may take so long that others start in between, or a waiter may be late for its place and
    // request another one. Then their order is unknown.
    let in_order = |attempt: u32| {
        let (order, _) = waiters_in_turn(&server, attempt, (8, 5))?;
        let of_site = |site: usize| order.iter().copied().filter(move |round| round % 4 == site).collect::<Vec<_>>();
        // The line of each site is in order, and the first waiters of all sites come before the second ones.
        let lines = (0..4).all(|site| of_site(site) == [site, site + 4]);
        (lines && order[..4] == [0, 1, 2, 3]).then_some(())
    };
    (0..50).find_map(in_order).unwrap();
}

#[cfg(feature = "redis")]
#[test]
fn a_waiter_sends_one_request_for_its_place_and_one_at_its_time() {
    let server = RedisServer::start("fleet-asks");
    // On a busy machine a waiter may be late for its place, and request another one.
    let is_so = |attempt: u32| {
        let (order, requests) = waiters_in_turn(&server, attempt, (4, 30))?;
        (order == [0, 1, 2, 3] && requests <= 8).then_some(())
    };
    (0..50).find_map(is_so).unwrap();
}

#[cfg(feature = "redis")]
/// Lets waiters on four sites ask in turn, this many milliseconds apart. Returns the order in which they start, and the
/// number of requests to the server. `None` if the requests took too long.
fn waiters_in_turn(server: &RedisServer, attempt: u32, (waiters, apart_ms): (usize, u64)) -> Option<(Vec<usize>, u64)> {
    // A busier machine has more time.
    let (name, window) = (&format!("api-{attempt}"), Duration::from_millis(400) * (1 + attempt / 4));
    let (order, is_in_time) = (Mutex::new(Vec::new()), AtomicBool::new(true));
    let limiters: Vec<RateLimiter> =
        (0..4).map(|_| RateLimiter::new(&patient(&server.url()), name, 1, window).unwrap()).collect();
    limiters.iter().for_each(|limiter| drop(limiter.peek("", 1).unwrap()));
    assert!(limiters[0].acquire("", 1, None).unwrap().is_some());
    let (before, began) = (redis_requests(server), Instant::now());
    std::thread::scope(|scope| {
        for round in 0..waiters {
            let (limiter, order) = (&limiters[round % 4], &order);
            let asked = redis_requests(server);
            scope.spawn(move || {
                assert!(limiter.acquire("", 1, None).unwrap().is_some());
                order.lock().unwrap().push(round);
            });
            wait_until("it has asked", || redis_requests(server) > asked);
            std::thread::sleep(Duration::from_millis(apart_ms));
        }
        is_in_time.store(began.elapsed() < window * 3 / 4, Relaxed);
    });
    let order = order.into_inner().unwrap();
    let requests = redis_requests(server) - before;
    println!("{order:?} by {requests} requests");
    is_in_time.into_inner().then_some((order, requests))
}

#[test]
fn starts_of_any_weight_are_granted_or_decided() {
    for server in Server::each("fleet-weights") {
        for (i, weight) in [1, 1_000, (1 << 20) - 1, 1 << 20, 2_000_000].into_iter().enumerate() {
            let store = patient(&server.url());
            let limiter = RateLimiter::new(&store, &format!("api-{i}"), 2 * weight, Duration::from_secs(3600)).unwrap();
            let admits = || matches!(limiter.attempt("", weight).unwrap(), Attempt::Admitted(_));
            assert_eq!([admits(), admits(), admits()], [true, true, false], "{weight} on {}", server.kind());
        }
    }
}

#[test]
fn a_server_that_is_away_for_less_than_a_grant_goes_unnoticed() {
    for server in Server::each("fleet-away") {
        let mut options = StoreOptions::default();
        options.timeout = Duration::from_millis(200);
        let store = Store::with_options(&server.url(), options).unwrap();
        let limiter = RateLimiter::new(&store, "api", 1_000_000, Duration::from_secs(60)).unwrap();
        let stop = server.signals();
        // Often enough that granted units are available when the server stops. (On a busy machine a grant may have
        // expired by then, or an answer may be late.)
        wait_until("a start while the server is away", || {
            if (0..200).any(|_| limiter.attempt("", 1).is_err()) {
                return false;
            }
            stop(libc::SIGSTOP);
            let at_hand = MayWait::Never.during(|| limiter.attempt("", 1));
            stop(libc::SIGCONT);
            matches!(at_hand, Ok(Attempt::Admitted(_)))
        });
        stop(libc::SIGSTOP);
        let error = loop {
            match limiter.attempt("", 1) {
                Ok(Attempt::Admitted(_)) => {}
                Ok(Attempt::Denied(_)) => panic!("denied"),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::StoreTimeout { .. }), "{error}");
        stop(libc::SIGCONT);
        wait_until("it recovers", || matches!(limiter.attempt("", 1), Ok(Attempt::Admitted(_))));
    }
}

#[test]
fn a_change_applies_everywhere_when_its_call_returns() {
    for server in Server::each("fleet-changes") {
        let stores: Vec<Store> = (0..3).map(|_| patient(&server.url())).collect();
        let limiters: Vec<RateLimiter> =
            stores.iter().map(|store| RateLimiter::new(store, "api", 1_000, Duration::from_secs(1)).unwrap()).collect();
        let (is_over, started) = (AtomicBool::new(false), AtomicUsize::new(0));
        let (before, after) = std::thread::scope(|scope| {
            let sites: Vec<_> = limiters
                .iter()
                .map(|limiter| {
                    scope.spawn(|| {
                        let mut starts = Vec::new();
                        while !is_over.load(Relaxed) {
                            let asked = now_ns();
                            match limiter.attempt("", 1).unwrap() {
                                Attempt::Admitted(_) => {
                                    starts.push((asked, now_ns(), 1));
                                    started.fetch_add(1, Relaxed);
                                }
                                Attempt::Denied(after) => std::thread::sleep(after.min(Duration::from_millis(1))),
                            }
                        }
                        starts
                    })
                })
                .collect();
            wait_until("500 have started", || started.load(Relaxed) > 500);
            stores[0].override_limit("api", "50/1s", None).unwrap();
            let lowered = now_ns();
            std::thread::sleep(Duration::from_millis(1_500));
            limiters[1].pause(Duration::from_secs(600), "").unwrap();
            let paused = now_ns();
            std::thread::sleep(Duration::from_millis(500));
            is_over.store(true, Relaxed);
            let starts: Vec<_> = sites.into_iter().flat_map(|site| site.join().unwrap()).collect();
            assert!(starts.iter().all(|(asked, ..)| *asked <= paused), "a start after the pause");
            let (before, after): (Vec<_>, Vec<_>) = starts.into_iter().partition(|(asked, ..)| *asked < lowered);
            (before, after)
        });
        assert!(before.len() > 500);
        let most = most_in_any_window(&after, 1_000_000_000);
        assert!(most <= 50, "{most}");
    }
}

/// The yield of 8 sites, and their number of requests: `cargo test --release … --test fleet figures -- --ignored
/// --nocapture`.
#[test]
#[ignore = "a measurement"]
fn figures() {
    for (limit, window) in [(1000, 1), (20_000, 10), (100, 2)] {
        let window = Duration::from_secs(window);
        for (name, threads, drive) in
            [("callers", 1, callers as fn(&RateLimiter, Instant) -> Vec<Start>), ("waiters", 4, waiters)]
        {
            for server in Server::each("fleet") {
                match &server {
                    #[cfg(feature = "postgres")]
                    Server::Postgres(server) => {
                        drop(server.command("ALTER DATABASE postgres SET track_functions = pl"))
                    }
                    #[cfg(feature = "redis")]
                    Server::Redis(_) => {}
                }
                // So that the server is prepared.
                patient(&server.url()).open().unwrap();
                let seen = run(&server, (limit, window), (8, threads), window * 4, drive);
                println!(
                    "{} {limit}/{window:?} {name}: over {} used {:.3} requests {:.3} starts {}",
                    server.kind(),
                    seen.over,
                    seen.used,
                    seen.requests,
                    seen.starts.len()
                );
            }
        }
    }
}
