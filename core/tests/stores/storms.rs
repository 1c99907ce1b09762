//! Storms: processes use one limit in every way while they are killed one after the other. No bound is exceeded, and
//! nothing that a dead process held is lost.
//!
//! A start lies somewhere in `[a, b]`: `a` is the clock just before the call that admitted it, `b` just after. Only a
//! certain excess counts as one. Set `SECONDS=60` for long storms.

mod evidence;

use crate::common::family::*;
use crate::common::{self, Child, Dir, Random, now_ns, number};
use evidence::{Evidence, Start, boundary, most_at_once, over};
use std::collections::VecDeque;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);
const PROCESSES: usize = 4;
const KEYS: [&str; 3] = ["", "tenant", "another"];

/// The work of a process.
type Work = fn(&Case, &Store, &Evidence) -> !;

/// The permits that a process holds.
type Permits = VecDeque<(usize, RawPermit)>;

/// The work of one process: starts in every way there is, for ever.
fn rage(case: &Case, store: &Store, evidence: &Evidence) -> ! {
    let limiter = case.limiter(store);
    let limiter = limiter.as_ref();
    let (mut random, mut held) = (Random::new(), Permits::new());
    loop {
        let number = random.below(KEYS.len() as u64);
        let key = KEYS[number as usize];
        let weight = if number == 0 { 1 + case.heaviest / 100 } else { 1 + random.below(case.heaviest) };
        let mut a = now_ns();
        let permit = match random.below(10) {
            // Close together, so that two processes are between the same two instructions.
            0..5 => (0..200).find_map(|_| {
                a = now_ns();
                match limiter.attempt(key, weight).unwrap() {
                    Attempt::Admitted(permit) => Some(permit),
                    Attempt::Denied(_) => None,
                }
            }),
            5..8 => acquire_with(limiter, (key, weight), Some(2 * WINDOW), |step| {
                if step.is_none() {
                    a = now_ns();
                }
            }),
            8 if limiter.has_places() => start_with_a_place(limiter, (key, weight), 2 * WINDOW, || a = now_ns()),
            // Requested and not used.
            9 if limiter.has_places() => {
                if let Reserved::Place { place, .. } = limiter.reserve(key, weight, Some(2 * WINDOW), None).unwrap() {
                    limiter.cancel(&place).unwrap();
                }
                None
            }
            _ => None,
        };
        match (permit, random.below(8)) {
            (None, _) => std::thread::sleep(us(random.below(300))),
            // The job never ran.
            (Some(permit), 0) => limiter.cancel(&permit).unwrap(),
            // The job was worth less. That is recorded first, so that a process that dies in between causes no false
            // alarm.
            (Some(permit), 1) if weight > 1 && !case.is_concurrency() => {
                evidence.begin(number, a, weight - 1);
                limiter.settle(&permit, weight - 1).unwrap();
            }
            (Some(permit), _) => {
                held.push_back((evidence.begin(number, a, weight), permit));
                if !case.is_concurrency() {
                    std::thread::sleep(us(random.below(300)));
                }
            }
        }
        let most = if case.is_concurrency() { random.below(3) as usize } else { 0 };
        while held.len() > most {
            std::thread::sleep(us(random.below(300)));
            let (start, permit) = held.pop_front().unwrap();
            evidence.end(start);
            limiter.complete(&permit).unwrap();
        }
    }
}

/// The work of one process: only attempts on one key, as close together as possible.
fn fight(case: &Case, store: &Store, evidence: &Evidence) -> ! {
    let limiter = case.limiter(store);
    loop {
        let a = now_ns();
        if let Attempt::Admitted(permit) = limiter.attempt("", 1).unwrap() {
            let start = evidence.begin(0, a, 1);
            if case.is_concurrency() {
                evidence.end(start);
                limiter.complete(&permit).unwrap();
            }
        }
    }
}

/// The result of a storm.
struct Report {
    kills: usize,
    starts: Vec<Start>,
    /// The worst excess over all bounds and keys.
    over: u64,
}

/// Starts processes on this store, whose work uses this many keys, and kills one after the other, each up to `pause`
/// after the previous one.
fn storm(case: &Case, (work, keys): (Work, u64), url: &str, length: Duration, pause: Duration) -> Report {
    let mut all: Vec<Evidence> = (0..PROCESSES).map(|_| Evidence::new(4_000_000)).collect();
    let spawn = |evidence: &Evidence| Child::run(|| work(case, &Store::new(url).unwrap(), evidence));
    let mut children: VecDeque<Child> = all.iter().map(spawn).collect();
    let (began, mut kills, mut random) = (Instant::now(), 0, Random::new());
    while began.elapsed() < length {
        std::thread::sleep(us(500 + random.below(pause.as_micros() as u64)));
        // In order, so that each has lived for a while.
        kill(children.pop_front().unwrap(), &mut all[kills % PROCESSES]);
        children.push_back(spawn(&all[kills % PROCESSES]));
        kills += 1;
    }
    // On a busy machine none may have lived long enough.
    let has_started = |key| all.iter().any(|evidence| evidence.has_started(key));
    common::wait_until("something has started for each key", || (0..keys).all(has_started));
    for (i, child) in children.into_iter().enumerate() {
        kill(child, &mut all[(kills + i) % PROCESSES]);
    }
    let starts: Vec<Start> = all.iter().flat_map(Evidence::starts).collect();
    let mut over_all = 0;
    // Only if there was one.
    let boundary = boundary(&Store::new(url).unwrap(), WINDOW);
    for key in 0..KEYS.len() as u64 {
        let of_key: Vec<Start> = starts.iter().filter(|s| s.key == key).copied().collect();
        let heaviest = if key == 0 { 1 } else { case.heaviest };
        for &bound in case.bounds {
            let over = over(bound, &of_key, heaviest, boundary);
            if over > 0 {
                println!("{} {:?}: {over} over {bound:?}", case.name, KEYS[key as usize]);
            }
            over_all = over_all.max(over);
        }
    }
    Report { kills, starts, over: over_all }
}

/// Kills a child that must have lived until now.
fn kill(child: Child, evidence: &mut Evidence) {
    evidence.note_death();
    child.signal(libc::SIGKILL);
    assert!(child.was_killed());
}

fn endure(case: &Case) {
    let dir = Dir::in_memory(&format!("storm-{}", case.name.replace(' ', "-")));
    let length = Duration::from_secs(number("SECONDS", 2));
    let Report { kills, starts, over } = storm(case, (rage, KEYS.len() as u64), &dir.url(), length, ms(30));
    println!("{}: {kills} kills, {} starts, over the limit {over}", case.name, starts.len());
    assert_eq!(over, 0, "{}: over the limit", case.name);
    for key in 0..KEYS.len() as u64 {
        assert!(starts.iter().any(|s| s.key == key), "{}: nothing started for {:?}", case.name, KEYS[key as usize]);
    }
}

/// A test for each case, so that they have names.
macro_rules! storms {
    ($($test:ident: $case:ident),* $(,)?) => {
        $(#[test]
        fn $test() {
            endure(&$case);
        })*
    };
}

storms! {
    a_rate_holds: RATE,
    a_sliced_rate_holds: SLICED,
    a_delay_holds: DELAY,
    strictly_spaced_starts_hold: STRICT,
    adaptively_spaced_starts_hold: ADAPTIVE,
    a_token_bucket_holds: TOKENS,
    a_leaky_bucket_holds: LEAKY,
    a_fixed_window_holds: FIXED,
    a_sliding_window_counter_holds: COUNTER,
    concurrency_holds: SLOTS,
    a_composite_holds: COMPOSITE,
}

/// What `limiters` admit of a case, asked in turn as often as possible, over a few windows of a manual clock. It stands
/// still during a call, so that the moments of all starts are certain.
fn starts_of(case: &Case, limiters: usize) -> (Vec<Start>, (u64, u64)) {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let store = || Store::with_options("memory:", options.clone()).unwrap();
    // Late enough for windows before the first start.
    let now = || (HOUR + clock.now()).as_nanos() as u64;
    let aligned = FixedWindowLimiter::new(&store(), "boundaries", 1, WINDOW).unwrap();
    aligned.attempt("", 1).unwrap();
    let boundary = now() + aligned.peek("", 1).unwrap().retry_after.as_nanos() as u64;
    let limiters: Vec<_> = (0..limiters).map(|_| case.limiter(&store())).collect();
    let mut starts = Vec::new();
    for _ in 0..3 * WINDOW.as_micros() / 100 {
        let mut permits = Vec::new();
        for limiter in &limiters {
            while let Attempt::Admitted(permit) = limiter.attempt("", 1).unwrap() {
                starts.push(Start { key: 0, a: now(), b: now(), end: now() + 100_000, units: 1 });
                permits.push((limiter, permit));
            }
        }
        clock.advance(us(100));
        if case.is_concurrency() {
            permits.iter().for_each(|(limiter, permit)| limiter.complete(permit).unwrap());
        }
    }
    (starts, (boundary, boundary))
}

/// The measure finds what it should, and nothing else: processes that each have their own limit. (They are one thread's
/// limiters: on a busy machine, two processes may never start close together.)
#[test]
fn unshared_limits_are_detected() {
    for case in FAMILY {
        let worst = |limiters| {
            let (starts, boundary) = starts_of(case, limiters);
            assert!(!starts.is_empty());
            case.bounds.iter().map(|bound| over(*bound, &starts, 1, boundary)).max().unwrap()
        };
        assert_eq!(worst(1), 0, "{}: the starts of one limit look like those of several", case.name);
        assert!(worst(PROCESSES) > 0, "{}: the starts of four limits look like those of one", case.name);
    }
}

/// Four processes contend all the time.
#[test]
fn contention_never_exceeds_the_limit() {
    for case in FAMILY {
        let dir = Dir::in_memory(&format!("fight-{}", case.name.replace(' ', "-")));
        let Report { over, starts, .. } = storm(case, (fight, 1), &dir.url(), ms(250), ms(100));
        assert!(!starts.is_empty());
        assert_eq!(over, 0, "{}: over the limit", case.name);
    }
}

/// Bugs in the algorithms are found too, including some that admit a start only if two processes meet.
#[cfg(feature = "fault-points")]
#[test]
#[ignore = "it needs the planted bugs of tests/torture/models"]
fn planted_bugs_are_detected() {
    for (bug, test) in [
        ("meter not compared", "contention_never_exceeds_the_limit"),
        ("take unhelped", "a_holder_killed_at_any_point_loses_nothing"),
        ("return unhelped", "a_holder_killed_at_any_point_loses_nothing"),
    ] {
        // Whether two processes meet is a matter of chance in such a short storm.
        let is_found = || {
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            let output = command
                .args([&format!("storms::{test}"), "--exact", "--nocapture"])
                .env("PLANT", bug)
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            !output.status.success() && text.contains("panicked")
        };
        assert!((0..5).any(|_| is_found()), "{bug} was not found by {test}");
    }
}

// ---- leases ----

fn five(url: &str) -> ConcurrencyLimiter {
    ConcurrencyLimiter::shared(&Store::new(url).unwrap(), "five", 5, None).unwrap()
}

fn take(limiter: &ConcurrencyLimiter, weight: u64) -> Option<RawPermit> {
    match limiter.attempt("", weight).unwrap() {
        Attempt::Admitted(permit) => Some(permit),
        Attempt::Denied(_) => None,
    }
}

/// Asserts that all five units are free, and no more.
fn assert_five_are_free(limiter: &ConcurrencyLimiter, when: &str) {
    let permits: Vec<_> = std::iter::from_fn(|| take(limiter, 1)).take(9).collect();
    assert_eq!(permits.len(), 5, "{when}");
    permits.iter().for_each(|permit| limiter.complete(permit).unwrap());
}

/// At most five run, whichever process is killed. The units of a dead process are available to the first request after
/// its death was reported, and in the end nothing is lost.
#[test]
fn at_most_five_run_whichever_process_is_killed() {
    let dir = Dir::in_memory("five");
    let end = Instant::now() + Duration::from_secs(number("SECONDS", 4));
    let (mut kills, mut starts, mut rounds) = (0, 0, 0);
    while Instant::now() < end {
        // Kills during the storm …
        let length = Duration::from_secs(20).min(end - Instant::now()) / 2;
        let report = storm(&SLOTS, (rage, KEYS.len() as u64), &dir.url(), length, ms(100));
        for key in 0..KEYS.len() as u64 {
            let of_key: Vec<_> = report.starts.iter().filter(|s| s.key == key).copied().collect();
            assert!(most_at_once(&of_key) <= 5, "{} ran at the same time", most_at_once(&of_key));
            assert!(!of_key.is_empty());
        }
        (kills, starts) = (kills + report.kills, starts + report.starts.len());
        let store = Store::new(&dir.url()).unwrap();
        let limiter = SLOTS.limiter(&store);
        for key in KEYS {
            let free = (0..9).filter(|_| matches!(limiter.attempt(key, 1).unwrap(), Attempt::Admitted(_))).count();
            assert_eq!(free, 5, "{key:?}, after {kills} kills");
        }
        drop(limiter);
        // … and while two processes hold all units.
        rounds += hold_and_die(&dir, Instant::now() + length);
    }
    println!("{kills} kills, {starts} starts, and {rounds} kills of holders");
}

/// Two processes hold all five units. One is killed, and another process takes its units at once. Returns the number of
/// rounds.
fn hold_and_die(dir: &Dir, end: Instant) -> u64 {
    let held = common::shared(1);
    let holder = |weight: u64| {
        held[0].store(0, Release);
        let child = Child::run(|| {
            let limiter = five(&dir.url());
            let permit = take(&limiter, weight);
            held[0].store(1 + u64::from(permit.is_some()), Release);
            loop {
                std::thread::sleep(ms(1_000));
            }
        });
        common::wait_until("it holds", || held[0].load(Acquire) != 0);
        assert_eq!(held[0].load(Acquire), 2, "{weight} were not free");
        child
    };
    let limiter = five(&dir.url());
    let (mut random, mut rounds) = (Random::new(), 0);
    while rounds < 3 || Instant::now() < end {
        let weight = 1 + random.below(4);
        let (victim, other) = (holder(weight), holder(5 - weight));
        assert!(take(&limiter, 1).is_none());
        victim.signal(libc::SIGKILL);
        assert!(victim.was_killed());
        let permit = take(&limiter, weight).expect("the first attempt after its death was reported");
        assert!(take(&limiter, 1).is_none(), "the other lives");
        limiter.complete(&permit).unwrap();
        drop(other);
        assert_five_are_free(&limiter, "after both have died");
        rounds += 1;
    }
    rounds
}

/// Killed at any point of a decision or of a lease's life, a process loses no units and blocks no other process.
#[cfg(feature = "fault-points")]
#[test]
fn a_holder_killed_at_any_point_loses_nothing() {
    // More often than there are spare slots.
    const TIMES: usize = 12;
    // (Here nothing cools down.)
    let points = fault::LEASING.iter().filter(|point| **point != "lease-cooling");
    for &point in points.chain(&["resolved", "key-allocated", "key-inserted"]) {
        let dir = Dir::in_memory(&format!("point-{point}"));
        let mine = five(&dir.url());
        mine.open().unwrap();
        let held = take(&mine, 2).unwrap();
        for time in 0..TIMES {
            let victim = Child::run(|| {
                let limiter = five(&dir.url());
                limiter.open().unwrap();
                fault::at(point, || common::raise(libc::SIGKILL));
                for turn in 0..4 {
                    let key = if point.starts_with("key-") { format!("key {time} {turn}") } else { String::new() };
                    if let Attempt::Admitted(permit) = limiter.attempt(&key, 1).unwrap() {
                        limiter.complete(&permit).unwrap();
                    }
                }
            });
            assert!(victim.was_killed(), "no process passes {point}");
            let permits: Vec<_> = std::iter::from_fn(|| take(&mine, 1)).take(9).collect();
            assert_eq!(permits.len(), 3, "after {} deaths at {point}", time + 1);
            permits.iter().for_each(|permit| mine.complete(permit).unwrap());
        }
        mine.complete(&held).unwrap();
        assert_five_are_free(&mine, point);
    }
}
