//! Bounds: the lane must not grow, with keys that come and go, nor the whole store over a year of starts. And the work
//! done at a time while the lock is held must not grow with the number of keys.

use crate::common::{Child, Dir, Random, Record, most_in_any_window, most_seen_by, now_ns, number, shared};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};
use workglow_limit::*;

const LIMIT: u64 = 2;
const WINDOW: Duration = Duration::from_secs(1);
const PROCESSES: usize = 4;
/// How often each process asks for each key. Each time it records the time before and after the call, and the answer.
const TRIES: usize = 3;
const WORDS: usize = PROCESSES * TRIES * 2;

/// All processes use all keys of a batch, each in another order. Then every answer is checked.
fn use_batch(url: &str, batch: u64, keys: usize) -> Duration {
    let answers = shared(keys * WORDS);
    let began = Instant::now();
    let processes: Vec<_> = (0..PROCESSES)
        .map(|process| {
            Child::run(|| {
                let limiter = RateLimiter::attach(&Store::new(url).unwrap(), "api").unwrap();
                for i in 0..keys {
                    // In blocks of 64, so that the processes meet, but not always at the same key.
                    let which = (i ^ (process * 21)) % keys;
                    let key = format!("{batch} {which}");
                    for attempt in 0..TRIES {
                        let a = now_ns();
                        let is_admitted = matches!(limiter.attempt(&key, 1).unwrap(), Attempt::Admitted(_));
                        let at = which * WORDS + (process * TRIES + attempt) * 2;
                        answers[at].store(a << 1 | u64::from(is_admitted), Relaxed);
                        answers[at + 1].store(now_ns(), Relaxed);
                    }
                }
            })
        })
        .collect();
    processes.into_iter().for_each(Child::join);
    let took = began.elapsed();
    let window = WINDOW.as_nanos() as u64;
    for (key, answers) in answers.chunks(WORDS).enumerate() {
        let answer = |i: usize| (answers[i].load(Relaxed), answers[i + 1].load(Relaxed));
        let all = (0..WORDS).step_by(2).map(answer).filter(|(a, _)| *a != 0);
        let (starts, denials): (Vec<_>, Vec<_>) = all.partition(|(a, _)| a & 1 == 1);
        let starts: Vec<_> = starts.into_iter().map(|(a, b)| (a >> 1, b, 1)).collect();
        let most = most_in_any_window(&starts, window);
        assert!(most <= LIMIT, "key {batch} {key}: {most} of {LIMIT} in one window: {starts:?}");
        for (a, b) in denials.into_iter().map(|(a, b)| (a >> 1, b)) {
            let seen = most_seen_by(&starts, (a, b), window);
            assert!(seen >= LIMIT, "key {batch} {key}: denied at {a} to {b} after {seen} of {LIMIT}: {starts:?}");
        }
    }
    took
}

/// `KEYS` sets the number. An index is at least three eighths full after it has grown, and at most three quarters. So
/// there are never more than twice as many blocks as there were keys at once.
#[test]
fn keys_that_come_and_go_do_not_make_the_lane_grow() {
    let keys = (number("KEYS", 100_000) as usize).next_multiple_of(64);
    let dir = Dir::in_memory("keys");
    let url = dir.url();
    RateLimiter::new(&Store::new(&url).unwrap(), "api", LIMIT, WINDOW).unwrap().open().unwrap();
    let size = || std::fs::metadata(dir.file("limits.db-lane")).unwrap().len();
    let mut sizes = Vec::new();
    // How many keys of one batch are still known in the next depends on the machine, so the size settles sooner or
    // later.
    let has_settled = |sizes: &[u64]| matches!(sizes, [.., a, b, c] if *c <= *a + *a / 10 && b <= c);
    for batch in 0..number("BATCHES", 10) {
        let took = use_batch(&url, batch, keys);
        sizes.push(size());
        println!("batch {batch}: {keys} keys in {took:?}, the lane has {} KiB", size() >> 10);
        if has_settled(&sizes) {
            break;
        }
        std::thread::sleep(WINDOW);
    }
    for size in &sizes {
        assert!(*size < keys as u64 * 900, "the lane has {size} bytes for {keys} keys");
    }
    assert!(has_settled(&sizes), "the lane kept growing: {sizes:?}");
}

/// A process stops during a decision. Its key is forgotten and the block reused: the process must notice.
#[cfg(feature = "fault-points")]
#[test]
fn a_process_stopped_while_its_key_is_forgotten_finds_its_key_again() {
    const MANY: u64 = 40;
    const HOUR: Duration = Duration::from_secs(3_600);
    // With few new keys the block waits for reuse; with many it is reused.
    for (point, new) in fault::DECIDING.iter().flat_map(|point| [(point, 4), (point, 100)]) {
        let dir = Dir::in_memory(&format!("forgotten-{point}-{new}"));
        let clock = ManualClock::new();
        let mut options = StoreOptions::default();
        options.clock = Some(clock.clone());
        let url = dir.url();
        let limiter =
            || RateLimiter::new(&Store::with_options(&url, options.clone()).unwrap(), "api", MANY, HOUR).unwrap();
        let mine = limiter();
        let take = |limiter: &RateLimiter, key: &str, weight| {
            assert!(matches!(limiter.attempt(key, weight).unwrap(), Attempt::Admitted(_)), "{key}");
        };
        let used = |key: &str| MANY - mine.peek(key, 1).unwrap().remaining;
        (0..8).for_each(|i| take(&mine, &format!("key {i}"), 3));
        let shared = shared(1);
        let stopped = Child::run(|| {
            let theirs = limiter();
            theirs.open().unwrap();
            let clock = clock.clone();
            fault::at(point, move || {
                crate::common::raise(libc::SIGSTOP);
                clock.advance(2 * HOUR);
                shared[0].store(1, Relaxed);
            });
            for _ in 0..8 {
                take(&theirs, "old", 2);
                if shared[0].load(Relaxed) > 0 {
                    shared[0].fetch_add(1, Relaxed);
                }
            }
        });
        stopped.wait_until_stopped();
        clock.advance(2 * HOUR);
        (0..new).for_each(|i| take(&mine, &format!("new {i}"), 5));
        stopped.signal(libc::SIGCONT);
        stopped.join();
        // The decisions that began after it, and the one in which it stopped unless that was recorded by then.
        let after = shared[0].load(Relaxed) - 1 - u64::from(["log-claimed", "log-filled", "log-moved"].contains(point));
        assert_eq!(used("old"), 2 * after, "at {point}, {new} new");
        (0..new).for_each(|i| assert_eq!(used(&format!("new {i}")), 5, "at {point}, {new} new: key new {i}"));
        (0..8).for_each(|i| assert_eq!(used(&format!("key {i}")), 0, "at {point}, {new} new: key {i}"));
    }
}

/// Keys are forgotten and their blocks reused while other processes use them: no count is lost or inherited. Set
/// `SECONDS=60` for a long run.
#[test]
fn keys_that_are_forgotten_in_flight_lose_and_inherit_nothing() {
    const SHORT: Duration = Duration::from_millis(10);
    let seconds = number("SECONDS", 3);
    let dir = Dir::in_memory("in-flight");
    let url = dir.url();
    RateLimiter::new(&Store::new(&url).unwrap(), "api", LIMIT, SHORT).unwrap().open().unwrap();
    let records: Vec<_> = (0..PROCESSES)
        .map(|_| (Record::new(seconds as usize * 500_000), Record::new(seconds as usize * 500_000)))
        .collect();
    let processes: Vec<_> = records
        .iter()
        .map(|(starts, denials)| {
            Child::run(|| {
                let limiter = RateLimiter::attach(&Store::new(&url).unwrap(), "api").unwrap();
                let (mut random, began) = (Random::new(), Instant::now());
                while began.elapsed() < Duration::from_secs(seconds) {
                    // Other keys every millisecond.
                    let number = now_ns() / 1_000_000 % 2_000 * 32 + random.below(32);
                    let key = format!("key {number}");
                    let a = now_ns();
                    match limiter.attempt(&key, 1).unwrap() {
                        Attempt::Admitted(_) => starts.add(a, now_ns(), number),
                        Attempt::Denied(_) if random.below(32) == 0 => denials.add(a, now_ns(), number),
                        Attempt::Denied(_) => {}
                    }
                }
            })
        })
        .collect();
    processes.into_iter().for_each(Child::join);
    let mut keys = BTreeMap::<u64, (Vec<_>, Vec<_>)>::new();
    for (a, b, number) in records.iter().flat_map(|both| both.0.starts()) {
        keys.entry(number).or_default().0.push((a, b, 1));
    }
    for (a, b, number) in records.iter().flat_map(|both| both.1.starts()) {
        keys.entry(number).or_default().1.push((a, b));
    }
    let (mut all, mut checked) = (0, 0);
    let window = SHORT.as_nanos() as u64;
    for (number, (starts, denials)) in &keys {
        let most = most_in_any_window(starts, window);
        assert!(most <= LIMIT, "key {number}: {most} of {LIMIT} in one window: {starts:?}");
        for denial in denials {
            let seen = most_seen_by(starts, *denial, window);
            assert!(seen >= LIMIT, "key {number}: denied at {denial:?} after {seen} of {LIMIT}: {starts:?}");
        }
        all += starts.len();
        checked += denials.len();
    }
    let size = std::fs::metadata(dir.file("limits.db-lane")).unwrap().len();
    println!("{} keys, {all} starts, {checked} denials checked, the lane has {} KiB", keys.len(), size >> 10);
    assert!(size < 4 << 20, "the lane has {size} bytes");
}

/// A year of callers that retry, on a limit that is always full. `CALLS` sets the number. `look` is called after the
/// first weeks and at the end.
fn a_year(url: &str, look: impl Fn() -> u64) {
    // Fewer than a day's calls, so that the limit is full.
    const MAX: usize = 400;
    const DAY: Duration = Duration::from_secs(86_400);
    let calls = number("CALLS", 200_000);
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let store = Store::with_options(url, options).unwrap();
    let limiter = RateLimiter::new(&store, "jobs", MAX as u64, DAY).unwrap();
    let mut random = Random::new();
    // The state of a model: when the last starts happened.
    let mut starts = VecDeque::new();
    let (mut made, mut checked, mut early) = (0, 0, None);
    while made < calls {
        for _ in 0..1 + random.below(100) {
            limiter.record_job_start("key").unwrap();
            starts.push_back(clock.now());
            made += 1;
        }
        starts.drain(..starts.len().saturating_sub(MAX));
        // On average, as long as needed for the calls to fill a year.
        let pause = 365 * DAY / calls as u32 * 50;
        clock.advance(Duration::from_micros(random.below(2 * pause.as_micros() as u64)));
        let oldest = starts.front().filter(|_| starts.len() == MAX);
        let expected = oldest.map_or(Duration::ZERO, |at| (*at + DAY).saturating_sub(clock.now()));
        let decision = limiter.peek("key", 1).unwrap();
        assert_eq!(decision.retry_after, expected, "after {made} starts");
        checked += usize::from(!expected.is_zero());
        if made > calls / 20 {
            early.get_or_insert_with(&look);
        }
    }
    let (early, late) = (early.unwrap(), look());
    println!("{url}: {made} starts, {checked} times full, {early} bytes after the first weeks and {late} after a year");
    assert!(checked > 10_000.min(calls as usize / 100));
    assert!(late <= early + (1 << 20), "it grew from {early} to {late} bytes");
}

#[test]
fn a_year_in_a_file_takes_no_more_space_than_a_week() {
    let dir = Dir::in_memory("year");
    let size = |name: &str| std::fs::metadata(dir.file(name)).unwrap().len();
    a_year(&dir.url(), || size("limits.db") + size("limits.db-lane"));
    assert!(size("limits.db-lane") <= 512 << 10 && size("limits.db") <= 2 << 20);
}

#[test]
fn a_year_in_memory_takes_no_more_space_than_a_week() {
    // In a process of its own, so that other tests' memory does not count.
    Child::run(|| {
        let pages = || std::fs::read_to_string("/proc/self/statm").unwrap();
        a_year("memory:", || pages().split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096);
    })
    .join();
}

/// Whatever is done to a limit of many keys, other processes get the lock after a moment. (Moments are measured by the
/// clock, so the number of keys in one depends on the machine; but no machine examines this many in 2 ms.)
#[cfg(feature = "fault-points")]
#[test]
fn rare_work_examines_few_keys_at_a_time() {
    const MANY: u64 = 150_000;
    const MOST: u64 = MANY / 2;
    // In a process of its own, so that other tests' work does not count.
    Child::run(|| {
        let dir = Dir::in_memory("few");
        let mut options = StoreOptions::default();
        options.timeout = Duration::from_secs(60); // a busy machine takes its time
        let store = Store::with_options(&dir.url(), options).unwrap();
        let limiter = store.limiter("api", "2/100s").unwrap();
        let is_few = |what: &str, f: &dyn Fn(&Store)| {
            fault::most_looked_at();
            f(&store);
            let most = fault::most_looked_at();
            println!("{what}: {most} keys at a time");
            assert!(most <= MOST, "{what}: {most} of {MANY} keys at a time");
        };
        is_few("new keys", &|_| (0..MANY).for_each(|key| drop(limiter.record_job_start(&key.to_string()))));
        is_few("flush", &|store| store.flush().unwrap());
        is_few("another policy", &|store| store.override_limit("api", "3/100s", None).unwrap());
        is_few("in larger blocks", &|store| store.override_limit("api", "40/100s", None).unwrap());
        is_few("lift", &|store| store.lift("api", None).unwrap());
        is_few("verify", &|store| assert_eq!(store.verify(false).unwrap(), []));
        is_few("clear", &|_| limiter.clear("").unwrap());
    })
    .join();
}
