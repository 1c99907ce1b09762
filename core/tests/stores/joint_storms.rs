//! Storms of joint starts: processes wait for three shared limits in opposite orders, while they are killed and stopped.
//! No limit is exceeded, each with its own measure, nobody blocks the others, and hardly any of the scarcest one is lost.
//!
//! `SECONDS=120` for long storms; `KILLS_MS=0` and `STOPS_MS=0` for none, otherwise the usual time between two. `WINDOW_MS` is
//! the length of the windows.

use crate::common::family::acquire_with;
use crate::common::limits::rate;
use crate::common::{self, Child, Dir, Random, Record, most_in_any_window, now_ns, number};
use std::time::{Duration, Instant};
use workglow_limit::observe::Observer;
use workglow_limit::*;

/// From when to when it began, and its units.
type Start = (u64, u64, u64);

const PROCESSES: usize = 6;
const THREADS: usize = 2;
const TENANTS: [&str; 3] = ["acme", "other", "third"];
/// The units of each in half a second. Of the tokens the starts want the most.
const LIMITS: [(&str, u64); 3] = [("requests", 100), ("tokens", 1_000), ("tenant", 40)];
/// The heaviest start's tokens: half of that on average.
const HEAVIEST: u64 = 39;
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [2, 1, 0], [1, 0, 2], [2, 0, 1], [0, 2, 1], [1, 2, 0]];

fn window() -> Duration {
    Duration::from_millis(number("WINDOW_MS", 500))
}

/// The units of a limit in a window.
fn most_of(limit: usize) -> u64 {
    LIMITS[limit].1 * window().as_millis() as u64 / 500
}

/// What a thread of a process, and those that follow it, have started: tokens, and requests of each tenant.
struct Evidence {
    tokens: Record,
    tenants: [Record; TENANTS.len()],
}

impl Evidence {
    fn new() -> Evidence {
        let record = || Record::new(1 << 18);
        Evidence { tokens: record(), tenants: std::array::from_fn(|_| record()) }
    }
}

/// One thread of a process: it always waits for its next start.
fn wait_for_ever(store: &Store, order: [usize; 3], evidence: &Evidence) -> ! {
    let limits = [0, 1, 2].map(|i| rate(store, LIMITS[i].0, most_of(i), window()));
    let llm = CompositeLimiter::named(order.map(|i| (LIMITS[i].0, limits[i].clone())));
    let mut random = Random::new();
    loop {
        let (units, tenant) = (1 + random.below(HEAVIEST), random.below(TENANTS.len() as u64) as usize);
        let charges = [Charge::of("tokens").weight(units), Charge::of("tenant").key(TENANTS[tenant])];
        let key = llm.joint("", &charges).unwrap();
        let mut a = now_ns();
        let permit = acquire_with(&llm, (&key, 1), None, |step| {
            if step.is_none() {
                a = now_ns();
            }
        });
        let b = now_ns();
        evidence.tokens.add(a, b, units);
        evidence.tenants[tenant].add(a, b, 1);
        llm.complete(&permit.expect("it waits for ever")).unwrap();
    }
}

fn spawn(url: &str, process: usize, evidence: &[Evidence]) -> Child {
    Child::run(|| {
        let store = common::limits::patient(url);
        std::thread::scope(|scope| {
            for (thread, evidence) in evidence.iter().enumerate() {
                let (store, order) = (&store, ORDERS[(process + thread * 3) % ORDERS.len()]);
                scope.spawn(move || wait_for_ever(store, order, evidence));
            }
        });
    })
}

#[test]
fn joint_starts_use_up_the_scarcest_limit_and_exceed_none() {
    let (length, kills_ms, stops_ms) =
        (Duration::from_secs(number("SECONDS", 4)), number("KILLS_MS", 500), number("STOPS_MS", 300));
    let dir = Dir::in_memory("joint-starts");
    let evidence: Vec<Vec<Evidence>> =
        (0..PROCESSES).map(|_| (0..THREADS).map(|_| Evidence::new()).collect()).collect();
    let start = |process: usize| spawn(&dir.url(), process, &evidence[process]);
    let mut children: Vec<Child> = (0..PROCESSES).map(start).collect();
    let started = |process: usize| evidence[process].iter().map(|thread| thread.tokens.len()).sum::<u64>();
    let all_go_on = |before: &[u64]| (0..PROCESSES).all(|process| started(process) > before[process]);
    common::wait_until("each process has started something", || all_go_on(&[0; PROCESSES]));
    let mut random = Random::new();
    let (began, from, mut kills, mut stops) = (Instant::now(), now_ns(), 0, 0);
    let next = |random: &mut Random, every: u64| match every {
        0 => began + Duration::from_secs(1 << 20),
        every => Instant::now() + Duration::from_millis(every / 2 + random.below(every)),
    };
    let (mut kill_at, mut stop_at) = (next(&mut random, kills_ms), next(&mut random, stops_ms));
    while began.elapsed() < length {
        std::thread::sleep(Duration::from_millis(1 + random.below(5)));
        let process = random.below(PROCESSES as u64) as usize;
        if Instant::now() > kill_at {
            let child = children.swap_remove(process);
            child.signal(libc::SIGKILL);
            assert!(child.was_killed());
            children.push(start(process));
            children.swap(process, PROCESSES - 1);
            (kills, kill_at) = (kills + 1, next(&mut random, kills_ms));
        } else if Instant::now() > stop_at {
            children[process].signal(libc::SIGSTOP);
            std::thread::sleep(Duration::from_millis(random.below(200)));
            children[process].signal(libc::SIGCONT);
            (stops, stop_at) = (stops + 1, next(&mut random, stops_ms));
        }
    }
    let until = now_ns();
    // Whoever died or stood still: the others still start.
    let before: Vec<u64> = (0..PROCESSES).map(started).collect();
    common::wait_until("each process starts again", || all_go_on(&before));
    drop(children);
    let store = Store::new(&dir.url()).unwrap();
    let seen = Observer::new(&store, 0).look().unwrap();
    let late: u64 = seen.limits.iter().map(|limit| limit.places_lost).sum();
    let all: Vec<&Evidence> = evidence.iter().flatten().collect();
    let most = |of: &dyn Fn(&Evidence) -> Vec<Start>| {
        let starts: Vec<_> = all.iter().flat_map(|evidence| of(evidence)).collect();
        most_in_any_window(&starts, window().as_nanos() as u64)
    };
    let tokens = most(&|evidence| evidence.tokens.starts());
    let requests = most(&|evidence| evidence.tenants.iter().flat_map(Record::starts).collect());
    let tenants: [u64; 3] = std::array::from_fn(|i| most(&|evidence| evidence.tenants[i].starts()));
    let in_time = |(_, b, _): &Start| (from..until).contains(b);
    let used: u64 = all.iter().flat_map(|evidence| evidence.tokens.starts()).filter(in_time).map(|start| start.2).sum();
    let possible = most_of(1) as f64 * (until - from) as f64 / window().as_nanos() as f64;
    println!(
        "{kills} kills, {stops} stops: most in any window {requests} requests, {tokens} tokens, {tenants:?} of tenants; \
         {:.1} % of the tokens used; {late} places were used too late",
        100.0 * used as f64 / possible
    );
    assert!(requests <= most_of(0) && tokens <= most_of(1) && tenants.iter().all(|most| *most <= most_of(2)));
}
