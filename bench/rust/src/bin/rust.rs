//! The cost of a decision in Rust, next to governor, ratelimit, trypema, a read of the clock, and an exact log in one
//! SQLite transaction: one limit, one and two threads.
//!
//! This library is called through its concrete types, as the peers are.

use governor::clock::{Clock, DefaultClock, MonotonicClock};
use governor::{Quota, RateLimiter as Governor};
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;
use trypema::local::LocalRateLimiterProvider;
use trypema::{BucketSize, RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize};
use workglow_limit::{Attempt, Limiter, RateLimiter, Store, TokenBucketLimiter};
use workglow_limit_bench_peers::measure::{Case, Expect, read_clock, run};
use workglow_limit_bench_peers::most::{self, LIMIT, WINDOW};
use workglow_limit_bench_peers::shared_log::SharedLog;
use workglow_limit_bench_peers::{Arguments, arguments, print_versions};

const GROUP: &str = "rust";
const OURS: &str = "workglow-limit";
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
/// More than any loop requests in a second.
const LOTS: u32 = 1_000_000_000;

fn main() {
    let Arguments { directory, filter, counts_most } = arguments();
    print_versions(&["governor", "ratelimit", "trypema", "rusqlite"]);
    if counts_most {
        return count_most(&directory);
    }
    let mut cases = Vec::new();
    let sqlite = format!("sqlite:{}", directory.join("rust.db").display());
    for (kind, url) in [("memory", "memory:"), ("sqlite", sqlite.as_str())] {
        ours(kind, &Store::new(url).expect("a store"), &mut cases);
    }
    governors(&mut cases);
    ratelimits(&mut cases);
    trypemas(&mut cases);
    transactions(&directory, &mut cases);
    for (name, clock) in [("boot time", libc::CLOCK_BOOTTIME), ("monotonic", libc::CLOCK_MONOTONIC)] {
        cases.push(Case::new(GROUP, "Linux", &format!("clock read, {name}"), move || read_clock(clock) != 0));
    }
    run(&cases, &filter);
}

/// The same case in one thread and in two.
fn both<'a>(
    cases: &mut Vec<Case<'a>>,
    peer: &'static str,
    name: &str,
    expect: Expect,
    decide: impl Fn() -> bool + Sync + Clone + 'a,
) {
    cases.push(Case::new(GROUP, peer, name, decide.clone()).all(expect));
    cases.push(Case::new(GROUP, peer, &format!("{name}, 2 threads"), decide).all(expect).threads(2));
}

fn is_admitted(limiter: &impl Limiter, key: &str) -> bool {
    matches!(limiter.attempt(key, 1).expect("a decision"), Attempt::Admitted(_))
}

fn ours(kind: &str, store: &Store, cases: &mut Vec<Case>) {
    // Limiters live as long as the program, so closures can be copied.
    fn keep<T>(limiter: workglow_limit::Result<T>) -> &'static T {
        Box::leak(Box::new(limiter.expect("a limiter")))
    }
    // Never full: two threads together take longer than a microsecond for 100 decisions.
    let open = keep(RateLimiter::new(store, "open", 100, Duration::from_micros(1)));
    // Above 4,096 units starts are counted. The window is short enough to leave the disk alone.
    let counted = keep(RateLimiter::new(store, "counted", u64::from(LOTS), SECOND));
    let bucket = keep(TokenBucketLimiter::new(store, "bucket", u64::from(LOTS), SECOND, 1_000_000));
    // Full after the first start.
    let shut = keep(RateLimiter::new(store, "shut", 1, HOUR));
    is_admitted(shut, "");
    both(cases, OURS, &format!("rust {kind} admit"), Expect::Admitted, || is_admitted(open, ""));
    both(cases, OURS, &format!("rust {kind} deny"), Expect::Denied, || is_admitted(shut, ""));
    both(cases, OURS, &format!("rust {kind} admit, with a key"), Expect::Admitted, || is_admitted(open, "tenant-7"));
    let decide = || open.decide("", 1).expect("a decision").admitted;
    both(cases, OURS, &format!("rust {kind} decide"), Expect::Admitted, decide);
    both(cases, OURS, &format!("rust {kind} admit, token bucket"), Expect::Admitted, || is_admitted(bucket, ""));
    both(cases, OURS, &format!("rust {kind} admit, counted"), Expect::Admitted, || is_admitted(counted, ""));

    // A composite's starts end, so those that it is compared with end too, all through the trait, as the packages do.
    for (name, policy) in [
        ("a rate, with its end", "100/1us"),
        ("a bucket, with its end", "1000000000/1s burst 1000000"),
        ("a rate and a bucket, with its end", "100/1us + 1000000000/1s burst 1000000"),
    ] {
        let limiter = store.limiter(name, policy).expect("a limiter");
        let job = move || match limiter.attempt("", 1).expect("a decision") {
            Attempt::Admitted(permit) => limiter.complete(&permit).is_ok(),
            Attempt::Denied(_) => false,
        };
        cases.push(Case::new(GROUP, OURS, &format!("rust {kind} admit, {name}"), job).all(Expect::Admitted));
    }
}

fn governors(cases: &mut Vec<Case>) {
    governor(cases, "monotonic clock", MonotonicClock);
    governor(cases, "TSC clock", DefaultClock::default());
}

fn governor<C: Clock + Clone + Sync + Send + 'static>(cases: &mut Vec<Case>, name: &str, clock: C) {
    let many = Quota::per_second(NonZeroU32::new(LOTS).expect("it is more than 0"));
    let open: &_ = Box::leak(Box::new(Governor::direct_with_clock(many, clock.clone())));
    both(cases, "governor", &format!("governor admit, {name}"), Expect::Admitted, || open.check().is_ok());
    let one = Quota::with_period(HOUR).expect("it is more than 0");
    let shut: &_ = Box::leak(Box::new(Governor::direct_with_clock(one, clock)));
    let _ = shut.check();
    both(cases, "governor", &format!("governor deny, {name}"), Expect::Denied, || shut.check().is_ok());
}

fn ratelimits(cases: &mut Vec<Case>) {
    fn one(cases: &mut Vec<Case>, name: &str, rate: u64, period: Duration, available: u64, expect: Expect) {
        let built = ratelimit::Ratelimiter::builder(rate).period(period).initial_available(available).build();
        let limiter: &_ = Box::leak(Box::new(built.expect("a limiter")));
        both(cases, "ratelimit", name, expect, || limiter.try_wait().is_ok());
    }
    one(cases, "ratelimit admit", u64::from(LOTS), SECOND, u64::from(LOTS), Expect::Admitted);
    one(cases, "ratelimit deny", 1, HOUR, 0, Expect::Denied);
}

/// Its only window is in whole seconds, and every call has a key.
fn trypema_provider() -> std::sync::Arc<LocalRateLimiterProvider> {
    LocalRateLimiterProvider::builder()
        .window_size(WindowSize::seconds_or_panic(1))
        .bucket_size(BucketSize::milliseconds_or_panic(10))
        .build()
        .expect("a provider")
}

fn trypemas(cases: &mut Vec<Case>) {
    let is_allowed = |decision| matches!(decision, RateLimitDecision::Allowed);
    let provider: &_ = Box::leak(Box::new(trypema_provider()));
    let rate: &_ = Box::leak(Box::new(RateLimit::per_second_or_panic(f64::from(LOTS))));
    both(cases, "trypema", "trypema admit, with a key", Expect::Admitted, move || {
        is_allowed(provider.absolute().inc("tenant-7", rate, 1))
    });
    // It cannot express one per hour. After the first of a second these are denials.
    let rate: &_ = Box::leak(Box::new(RateLimit::per_second_or_panic(1.0)));
    let deny = move || is_allowed(provider.absolute().inc("tenant-8", rate, 1));
    cases.push(Case::new(GROUP, "trypema", "trypema deny, with a key", deny));
}

fn transactions(directory: &Path, cases: &mut Vec<Case>) {
    let log = |name: &str| Mutex::new(SharedLog::new(&directory.join(name)));
    let open = log("transaction.db");
    let admit = move || open.lock().expect("no thread panics").attempt(100, Duration::from_micros(1));
    cases.push(Case::new(GROUP, "SQLite", "transaction admit", admit).all(Expect::Admitted));
    let shut = log("transaction-shut.db");
    shut.lock().expect("no thread panics").attempt(1, HOUR);
    let deny = move || shut.lock().expect("no thread panics").attempt(1, HOUR);
    cases.push(Case::new(GROUP, "SQLite", "transaction deny", deny).all(Expect::Denied));
}

/// Hammers a real limit from four threads, and prints the starts of its fullest window.
fn count_most(directory: &Path) {
    let limit = NonZeroU32::new(LIMIT as u32).expect("it is more than 0");
    let sqlite = format!("sqlite:{}", directory.join("most.db").display());
    for (kind, url) in [("memory", "memory:"), ("sqlite", sqlite.as_str())] {
        let store = Store::new(url).expect("a store");
        let limiter = RateLimiter::new(&store, "most", LIMIT, WINDOW).expect("a limiter");
        limiter.open().expect("the store opens");
        most::threads("rust", OURS, &format!("rust {kind}, most starts"), 4, || is_admitted(&limiter, ""));
    }
    let limiter = Governor::direct_with_clock(Quota::per_second(limit), MonotonicClock);
    most::threads("rust", "governor", "governor, most starts", 4, || limiter.check().is_ok());
    let built = ratelimit::Ratelimiter::builder(LIMIT).period(WINDOW).initial_available(LIMIT).build();
    let limiter = built.expect("a limiter");
    most::threads("rust", "ratelimit", "ratelimit, most starts", 4, || limiter.try_wait().is_ok());
    let (provider, rate) = (trypema_provider(), RateLimit::per_second_or_panic(LIMIT as f64));
    let is_allowed = || matches!(provider.absolute().inc("tenant-7", &rate, 1), RateLimitDecision::Allowed);
    most::threads("rust", "trypema", "trypema, most starts", 4, is_allowed);
}
