//! One limit, many processes: they start, exit, die, stop and fork.

use crate::common::limits::patient;
use crate::common::wait::Wait;
use crate::common::{Child, Dir, Record, most_in_any_window, now_ns, shared, wait_until};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};
use workglow_limit::embed::{Begun, Step};
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);

fn rate(url: &str, name: &str, max: u64, window: Duration) -> RateLimiter {
    RateLimiter::new(&patient(url), name, max, window).unwrap()
}

fn admitted(limiter: &impl Limiter, key: &str) -> bool {
    matches!(limiter.attempt(key, 1).unwrap(), Attempt::Admitted(_))
}

/// How many of `tries` are admitted.
fn take(limiter: &impl Limiter, key: &str, tries: u64) -> u64 {
    (0..tries).filter(|_| admitted(limiter, key)).count() as u64
}

#[test]
fn most_in_any_window_counts_overlapping_starts() {
    assert_eq!(most_in_any_window(&[], 10), 0);
    // Intervals that begin at 0 and 9 are in one window of 10; those at 0 and 10 are not.
    assert_eq!(most_in_any_window(&[(0, 0, 1), (9, 9, 1)], 10), 2);
    assert_eq!(most_in_any_window(&[(0, 0, 1), (10, 10, 1)], 10), 1);
    // An interval that does not fit into any window with others is not counted with them.
    assert_eq!(most_in_any_window(&[(0, 20, 1), (5, 5, 2), (6, 6, 1)], 10), 3);
}

/// Four processes on a window of milliseconds, so that every race happens often. One is killed every few milliseconds.
/// Set `SECONDS=60` for a long run.
#[test]
fn killed_processes_never_exceed_the_limit() {
    const LIMIT: u64 = 48;
    const WINDOW: Duration = Duration::from_millis(4);
    let seconds = std::env::var("SECONDS").map_or(3, |s| s.parse().unwrap());
    let dir = Dir::new("kills");
    // On a slow disk, each process would die before it had made the store.
    Child::run(|| rate(&dir.url(), "storm", LIMIT, WINDOW).open().unwrap()).join();
    let records: Vec<Record> = (0..4).map(|_| Record::new(8_000_000)).collect();
    let spawn = |record: &Record| {
        Child::run(|| {
            let limiter = rate(&dir.url(), "storm", LIMIT, WINDOW);
            for turn in 0u64.. {
                let weight = 1 + (turn * 7 + u64::from(std::process::id())) % 3;
                let a = now_ns();
                let attempt = limiter.attempt("tenant", weight).unwrap();
                if let Attempt::Admitted(_) = attempt {
                    record.add(a, now_ns(), weight);
                }
            }
        })
    };
    let mut children: Vec<Child> = records.iter().map(spawn).collect();
    let (start, mut kills) = (Instant::now(), 0usize);
    while start.elapsed() < Duration::from_secs(seconds) {
        std::thread::sleep(Duration::from_micros(500 + (kills as u64 * 7_919) % 5_000));
        let victim = kills * 5 % 4;
        children[victim] = spawn(&records[victim]); // dropping the old one kills it
        kills += 1;
    }
    // On a busy machine hardly one may have lived long enough. The last ones go on.
    let is_enough = || records.iter().map(Record::len).sum::<u64>() >= 1_000;
    wait_until("killed processes do not block the living", is_enough);
    drop(children);
    let starts: Vec<_> = records.iter().flat_map(Record::starts).collect();
    let most = most_in_any_window(&starts, WINDOW.as_nanos() as u64);
    let units: u64 = starts.iter().map(|s| s.2).sum();
    let allowed = LIMIT * start.elapsed().as_micros() as u64 / WINDOW.as_micros() as u64;
    println!("{kills} kills, {} starts, {units} of {allowed} units, most in a window {most} of {LIMIT}", starts.len());
    assert!(most <= LIMIT, "{most} in one window of {LIMIT}");
}

/// A process that stops anywhere inside a decision blocks no other process.
#[cfg(feature = "fault-points")]
#[test]
fn a_stopped_process_blocks_no_other() {
    for point in fault::DECIDING {
        let dir = Dir::new(&format!("stopped-{point}"));
        let mine = rate(&dir.url(), "api", 1_000, HOUR);
        mine.open().unwrap();
        let stopped = Child::run(|| {
            let limiter = rate(&dir.url(), "api", 1_000, HOUR);
            limiter.open().unwrap();
            // SAFETY: plain call.
            fault::at(point, || unsafe { assert_eq!(libc::raise(libc::SIGSTOP), 0) });
            // Heavy enough to fill slots, and often enough to move the counter.
            (0..8).for_each(|_| assert!(limiter.attempt("key", 2).is_ok()));
        });
        stopped.wait_until_stopped();
        // 10,000 decisions on the same key. The first thousand units are admitted, except for those that the other
        // process has claimed.
        let mut units = 0;
        for _ in 0..10_000 {
            units += u64::from(admitted(&mine, "key"));
        }
        assert!((984..=1_000).contains(&units), "at {point}: {units}");
        stopped.signal(libc::SIGCONT);
        stopped.join();
        assert!(!admitted(&mine, "key"));
    }
}

/// Processes that stop or die while adding a key cannot fill a key index completely, in which a search would never end.
#[cfg(feature = "fault-points")]
#[test]
fn stopped_adders_leave_free_slots_in_the_index() {
    let dir = Dir::new("brim");
    let mine = rate(&dir.url(), "api", 1, HOUR);
    // An index begins with 16 slots, and the empty key.
    (0..10).for_each(|i| assert!(admitted(&mine, &format!("key {i}"))));
    let adders: Vec<_> = (0..6)
        .map(|i| {
            let adder = Child::run(|| {
                let limiter = rate(&dir.url(), "api", 1, HOUR);
                limiter.open().unwrap();
                // SAFETY: plain call.
                fault::at("key-allocated", || unsafe { assert_eq!(libc::raise(libc::SIGSTOP), 0) });
                assert!(admitted(&limiter, &format!("adder {i}")));
            });
            adder.wait_until_stopped();
            adder
        })
        .collect();
    adders.iter().for_each(|adder| adder.signal(libc::SIGCONT));
    adders.into_iter().for_each(Child::join);
    Child::run(|| (0..100).for_each(|i| assert!(mine.peek(&format!("unknown {i}"), 1).unwrap().admitted))).join();
    (0..6).for_each(|i| assert!(!admitted(&mine, &format!("adder {i}"))));
}

#[test]
fn a_limiter_works_in_the_master_and_in_its_forked_children() {
    let dir = Dir::new("fork");
    let limiter = rate(&dir.url(), "api", 1_000, HOUR);
    let counts = shared(2);
    // Before, and while other threads decide on one key and on new keys (structural work, under locks).
    counts[0].fetch_add(take(&limiter, "", 10), Relaxed);
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            for i in 0..20_000 {
                counts[0].fetch_add(u64::from(i % 100 == 0 && admitted(&limiter, "")), Relaxed);
                assert!(admitted(&limiter, &format!("new-{i}")));
            }
        });
        while !busy.is_finished() {
            let child = Child::run(|| {
                counts[0].fetch_add(take(&limiter, "", 7), Relaxed);
                assert!(admitted(&limiter, &format!("child-{}", std::process::id())));
                let grandchild = Child::run(|| {
                    counts[0].fetch_add(take(&limiter, "", 3), Relaxed);
                });
                grandchild.join();
            });
            counts[0].fetch_add(u64::from(admitted(&limiter, "")), Relaxed);
            counts[1].fetch_add(1, Relaxed);
            child.join();
        }
    });
    counts[0].fetch_add(take(&limiter, "", 2_000), Relaxed);
    assert_eq!(counts[0].load(Relaxed), 1_000, "after {} forks", counts[1].load(Relaxed));
}

#[test]
fn a_limiter_made_before_a_fork_can_be_first_used_after_it() {
    let dir = Dir::new("lazy-fork");
    let limiter = RateLimiter::new(&patient(&dir.url()), "api", 100, HOUR).unwrap();
    assert!(dir.names().is_empty(), "creating a limiter opens nothing");
    let total = &shared(1)[0];
    let children: Vec<_> =
        (0..4).map(|_| Child::run(|| assert!(total.fetch_add(take(&limiter, "", 60), Relaxed) <= 100))).collect();
    children.into_iter().for_each(Child::join);
    assert_eq!(total.load(Relaxed), 100);
    assert!(!admitted(&limiter, ""));
}

#[test]
fn a_childs_leases_are_its_own() {
    let limiter = ConcurrencyLimiter::new(2).unwrap();
    let Attempt::Admitted(held) = limiter.attempt("", 1).unwrap() else { panic!("the limit has capacity") };
    limiter.record_job_start("").unwrap();
    assert!(limiter.try_acquire("", 1).unwrap().is_none());
    Child::run(|| {
        // The parent's two units do not belong to this process, and ending one here has no effect.
        assert_eq!(limiter.peek("", 1).unwrap().remaining, 2);
        let _mine = limiter.try_acquire("", 2).unwrap().unwrap();
        limiter.complete(&held).unwrap();
        assert_eq!(limiter.peek("", 1).unwrap().remaining, 0);
    })
    .join();
    assert_eq!(limiter.peek("", 1).unwrap().remaining, 0);
}

#[test]
fn a_begun_call_belongs_to_the_process_that_began_it() {
    let dir = Dir::new("begun-fork");
    let mut options = StoreOptions::default();
    options.durability = Durability::Commit;
    let limiter = Store::with_options(&dir.url(), options).unwrap().limiter("api", "100/1h").unwrap();
    assert!(limiter.decide("", 1).unwrap().admitted);
    let begin = || Begun::new(limiter.clone(), |limiter| limiter.attempt("", 1), |_, _| panic!("it is the parent's"));
    let (mut dropped, mut finished) = (Some(begin()), Some(begin()));
    Child::run(|| drop(dropped.take())).join();
    // A child starts for itself.
    Child::run(|| assert!(matches!(finished.take().unwrap().finish(), Ok(Attempt::Admitted(_))))).join();
    assert_eq!(limiter.peek("", 1).unwrap().remaining, 96);
    for begun in [dropped, finished].into_iter().flatten() {
        assert!(matches!(begun.finish(), Ok(Attempt::Admitted(_))));
    }
    assert_eq!(limiter.peek("", 1).unwrap().remaining, 96);
}

#[test]
fn keys_added_concurrently_exist_once() {
    const KEYS: u64 = 30_000;
    let dir = Dir::new("keys");
    let total = &shared(1)[0];
    let children: Vec<_> = (0..4)
        .map(|me| {
            Child::run(|| {
                let limiter = rate(&dir.url(), "tenants", 1, HOUR);
                // Each from another end, so that the processes race for some keys and not for others.
                let mine = (0..KEYS).map(|i| if me % 2 == 0 { i } else { KEYS - 1 - i });
                total.fetch_add(mine.filter(|i| admitted(&limiter, &format!("tenant-{i}"))).count() as u64, Relaxed);
            })
        })
        .collect();
    children.into_iter().for_each(Child::join);
    assert_eq!(total.load(Relaxed), KEYS, "one admission per key");
}

#[test]
fn a_changed_limit_applies_to_all_processes_once_the_change_has_returned() {
    const WINDOW: Duration = Duration::from_millis(200);
    let dir = Dir::new("change");
    let records: Vec<Record> = (0..3).map(|_| Record::new(1_000_000)).collect();
    let url = dir.url();
    let limiter = |max: u64| rate(&url, "api", max, WINDOW);
    limiter(100).open().unwrap();
    let workers: Vec<_> = records
        .iter()
        .map(|record| {
            Child::run(|| {
                let limiter = RateLimiter::attach(&patient(&url), "api").unwrap();
                loop {
                    let a = now_ns();
                    if admitted(&limiter, "key") {
                        record.add(a, now_ns(), 1);
                    }
                }
            })
        })
        .collect();
    // The most starts in one window, of those that surely happened between these moments.
    let most = |from: u64, to: u64| {
        let starts = records.iter().flat_map(Record::starts).filter(|s| s.0 >= from && s.1 <= to);
        most_in_any_window(&starts.collect::<Vec<_>>(), WINDOW.as_nanos() as u64)
    };
    let mut phases = Vec::new();
    for max in [100, 50, 200, 10, 4_000, 50] {
        let declared = limiter(max);
        declared.open().unwrap();
        let from = now_ns();
        std::thread::sleep(3 * WINDOW);
        // Added capacity is usable at once, so it is soon used. (In a fixed time, workers that were stopped did not use it.)
        wait_until(&format!("{max} are used"), || most(from, now_ns()) >= max.min(100) * 9 / 10);
        phases.push((max, from, now_ns()));
    }
    drop(workers);
    for (max, from, to) in phases {
        // From the return of the change on. A window may still hold starts that were admitted before it, but while it
        // holds `max` or more, nothing is added. So in any window, at most `max` starts can begin after the change.
        let most = most(from, to);
        assert!(most <= max, "limit {max}: {most} in one window");
    }
}

#[test]
fn a_lowered_limit_counts_earlier_starts() {
    let dir = Dir::new("lower");
    let old = rate(&dir.url(), "api", 100, HOUR);
    assert_eq!(take(&old, "a", 60), 60);
    let new = rate(&dir.url(), "api", 50, HOUR);
    assert_eq!(take(&new, "a", 100), 0);
    assert_eq!(take(&old, "a", 100), 0, "the last declaration applies to all processes");
    let newer = rate(&dir.url(), "api", 70, HOUR);
    assert_eq!(take(&newer, "a", 100), 10);
    assert_eq!(old.peek("a", 1).unwrap().limit, 70);
    assert_eq!(take(&old, "b", 100), 70);
    // A gate survives the change, and so does the state of other keys.
    old.pause(HOUR, "a").unwrap();
    let newest = rate(&dir.url(), "api", 4_096, HOUR);
    assert_eq!(take(&newest, "a", 10), 0);
    assert_eq!(take(&newest, "b", 5_000), 4_096 - 70);
}

#[test]
fn places_are_assigned_across_processes_in_request_order() {
    let dir = Dir::new("wait");
    let ready = shared(12);
    let url = dir.url();
    rate(&url, "api", 1, HOUR).attempt("", 1).unwrap();
    for mine in ready.chunks(2) {
        Child::run(|| {
            let limiter = rate(&url, "api", 1, HOUR);
            let asked = now_ns();
            let Step::Sleep(nap) = Wait::new("", 1, None).step(&limiter).unwrap() else { panic!("the limit is full") };
            // The sleep began at some moment in between.
            mine[0].store(asked + nap.as_nanos() as u64, Release);
            mine[1].store(now_ns() + nap.as_nanos() as u64, Release);
        })
        .join();
    }
    let ready: Vec<[u64; 2]> = ready.chunks(2).map(|r| [r[0].load(Acquire), r[1].load(Acquire)]).collect();
    let hour = HOUR.as_nanos() as u64;
    let follows = |[earliest, _]: [u64; 2], [next, latest]: [u64; 2]| next > earliest && latest - earliest >= hour;
    assert!(ready.windows(2).all(|pair| follows(pair[0], pair[1])), "{ready:?}");
}

/// Children of one process do not retry at the same moment.
#[test]
fn forked_children_get_different_retry_times() {
    const LONG: Duration = Duration::from_secs(366 * 86_400);
    let store = Store::new("memory:").unwrap();
    let backoff = Backoff::new(LONG, 2.0, LONG, Jitter::Full).unwrap();
    let policy = Policy::rate(1, Duration::from_micros(1)).unwrap().with_backoff(backoff).unwrap();
    let limiter = store.declare("api", policy).unwrap();
    limiter.pause(Duration::from_secs(60), "").unwrap();
    let suggested = || limiter.decide("", 1).unwrap().suggested_after.as_micros() as u64;
    let times = shared(5);
    times[0].store(suggested(), Relaxed);
    for time in &times[1..] {
        Child::run(|| time.store(suggested(), Relaxed)).join();
    }
    let different: BTreeSet<_> = times.iter().map(|time| time.load(Relaxed)).collect();
    assert_eq!(different.len(), times.len(), "{different:?}");
}
