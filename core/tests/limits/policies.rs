//! Policies that are declared, overridden and lifted while processes use them.

use crate::common::{Child, Dir, Random, Record, now_ns, shared, wait_until};
#[cfg(feature = "fault-points")]
use crate::common::{present_boot, raise};
use std::sync::atomic::Ordering::*;
use std::time::Duration;
#[cfg(feature = "fault-points")]
use workglow_limit::embed::MayWait;
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);

fn declare(url: &str, max: u64, window: Duration) {
    RateLimiter::new(&Store::new(url).unwrap(), "api", max, window).unwrap().open().unwrap();
}

fn override_with(url: &str, max: u64, window: Duration) {
    Store::new(url).unwrap().override_limit("api", Policy::rate(max, window).unwrap()).unwrap();
}

fn lift(url: &str) {
    Store::new(url).unwrap().lift("api").unwrap();
}

/// Three processes that take as much as they can. They attach to the limit or declare it, and have done so when this
/// returns.
fn workers(url: &str, declaring: Option<(u64, Duration)>, started: impl Fn(usize, u64, u64)) -> Vec<Child> {
    let ready = &shared(1)[0];
    let worker = |which: usize| {
        Child::run(|| {
            let store = Store::new(url).unwrap();
            let limiter = match declaring {
                Some((max, window)) => RateLimiter::new(&store, "api", max, window),
                None => RateLimiter::attach(&store, "api"),
            };
            let limiter = limiter.unwrap();
            limiter.open().unwrap();
            ready.fetch_add(1, AcqRel);
            loop {
                let a = now_ns();
                if let Attempt::Admitted(_) = limiter.attempt("key", 1).unwrap() {
                    started(which, a, now_ns());
                }
            }
        })
    };
    let workers = (0..3).map(worker).collect();
    wait_until("all workers are ready", || ready.load(Acquire) == 3);
    workers
}

/// With a window that never ends during the test, so that all starts count to the end.
#[test]
fn a_change_applies_from_the_moment_it_returns() {
    let dir = Dir::new("policies");
    let url = dir.url();
    declare(&url, 100, HOUR);
    let count = &shared(1)[0];
    let start = |declaring| {
        workers(&url, declaring, |_, _, _| {
            count.fetch_add(1, AcqRel);
        })
    };
    let limiter = RateLimiter::attach(&Store::new(&url).unwrap(), "api").unwrap();
    let holds = |what: &str, max: u64, used: u64| {
        wait_until(what, || count.load(Acquire) >= used);
        for _ in 0..1_000 {
            assert_eq!(limiter.peek("key", 1).unwrap().limit, max, "{what}");
            assert!(matches!(limiter.attempt("key", 1).unwrap(), Attempt::Denied(_)), "{what}");
        }
        assert_eq!(count.load(Acquire), used, "{what}");
    };
    let mut at_work = start(None);
    holds("at first", 100, 100);
    declare(&url, 50, HOUR);
    holds("lowered", 50, 100);
    declare(&url, 200, HOUR);
    holds("raised", 200, 200);
    override_with(&url, 150, HOUR);
    holds("overridden by less", 150, 200);
    override_with(&url, 300, HOUR);
    holds("overridden by more", 300, 300);
    // Restarted workers declare the same policy as always.
    drop(std::mem::take(&mut at_work));
    at_work = start(Some((1_000, HOUR)));
    holds("declared below", 300, 300);
    declare(&url, 2_000, HOUR);
    holds("declared below again", 300, 300);
    declare(&url, 350, HOUR);
    lift(&url);
    holds("lifted", 350, 350);
    drop(at_work);
}

/// With a rolling window: after each change, no start happens while the window holds the new limit or more, whatever
/// the limit was before.
#[test]
fn no_start_is_admitted_while_the_window_holds_the_new_limit() {
    const WINDOW: Duration = Duration::from_millis(50);
    const DECLARED: u64 = 100;
    let dir = Dir::in_memory("rolling");
    let url = dir.url();
    declare(&url, DECLARED, WINDOW);
    let records: Vec<Record> = (0..3).map(|_| Record::new(1_000_000)).collect();
    let at_work = workers(&url, None, |which, a, b| records[which].add(a, b, 1));
    let mut random = Random::new();
    let mut phases = Vec::new();
    let (mut declared, mut overriding) = (DECLARED, None);
    for _ in 0..60 {
        let max = [10, 50, 100, 200, 4_000][random.below(5) as usize];
        match random.below(4) {
            0 => {
                lift(&url);
                overriding = None;
            }
            1 => {
                override_with(&url, max, WINDOW);
                overriding = Some(max);
            }
            _ => {
                declare(&url, max, WINDOW);
                declared = max;
            }
        }
        let from = now_ns();
        std::thread::sleep(Duration::from_millis(random.below(100)));
        phases.push((overriding.unwrap_or(declared), from, now_ns()));
    }
    drop(at_work);
    let mut starts: Vec<_> = records.iter().flat_map(Record::starts).collect();
    starts.sort_unstable();
    let window = WINDOW.as_nanos() as u64;
    let mut checked = 0;
    for (max, from, to) in phases {
        let first = starts.partition_point(|start| start.0 < from);
        for (i, (a, b, _)) in starts.iter().enumerate().skip(first).take_while(|(_, start)| start.1 <= to) {
            // The starts that are certainly in its window, and certainly before it. No call takes longer than all of
            // them.
            let earliest = starts[..i].partition_point(|other| other.0 + window <= *b);
            let held = starts[earliest..i].iter().filter(|other| other.1 < *a).count() as u64;
            assert!(held < max, "a start beyond the limit of {max}: the window held {held}");
            checked += 1;
        }
    }
    println!("{checked} of {} starts checked", starts.len());
    assert!(checked > 1_000);
}

/// A process that dies before the commit has changed nothing. After it, the other processes complete the change.
#[test]
#[cfg(feature = "fault-points")]
fn a_death_during_a_change_of_policy_leaves_nothing_half_done() {
    for point in ["deciding", "decided", "table-written", "followed"] {
        let dir = Dir::in_memory("dying");
        let url = dir.url();
        declare(&url, 5, HOUR);
        let limiter = RateLimiter::attach(&Store::new(&url).unwrap(), "api").unwrap();
        (0..3).for_each(|_| assert!(limiter.decide("key", 1).unwrap().admitted));
        let child = Child::run(|| {
            fault::at(point, || raise(libc::SIGKILL));
            override_with(&url, 2, HOUR);
        });
        assert!(child.was_killed(), "{point}");
        let expected = if point == "deciding" { 5 } else { 2 };
        let found = RateLimiter::attach(&Store::new(&url).unwrap(), "api").unwrap();
        assert_eq!(found.peek("key", 1).unwrap().limit, expected, "{point}: the next process");
        assert_eq!(limiter.peek("key", 1).unwrap().limit, expected, "{point}: the present process");
        assert_eq!(limiter.decide("key", 1).unwrap().admitted, expected == 5, "{point}: the starts count");
        lift(&url);
        assert_eq!(limiter.peek("key", 1).unwrap().limit, 5, "{point}: and changes still work");
    }
}

/// No other operation is needed: a process that only decides notices too.
#[test]
#[cfg(feature = "fault-points")]
fn a_change_whose_author_died_reaches_processes_that_only_decide() {
    let dir = Dir::in_memory("unfinished");
    let url = dir.url();
    declare(&url, 5, HOUR);
    let limiter = RateLimiter::attach(&Store::new(&url).unwrap(), "api").unwrap();
    limiter.open().unwrap();
    let child = Child::run(|| {
        fault::at("decided", || raise(libc::SIGKILL));
        override_with(&url, 9, HOUR);
    });
    assert!(child.was_killed());
    wait_until("the change applies", || limiter.decide("key", 1).unwrap().limit == 9);
}

/// A smaller limit has a smaller budget. More than that may be missing if the machine stops at that moment.
#[test]
#[cfg(feature = "fault-points")]
fn units_missing_when_a_limit_was_lowered_count_after_a_reboot() {
    for point in ["decided", "followed"] {
        let dir = Dir::in_memory("lowered");
        let url = dir.url();
        let started = &shared(1)[0];
        Child::run(|| {
            present_boot(1);
            declare(&url, 400, HOUR);
            let limiter = RateLimiter::attach(&Store::new(&url).unwrap(), "api").unwrap();
            limiter.open().unwrap();
            // As many as may be missing from the ledger: a caller that may not wait does not write.
            MayWait::Never.during(|| {
                while limiter.attempt("key", 1).is_ok() {
                    started.fetch_add(1, AcqRel);
                }
            });
        })
        .join();
        let started = started.load(Acquire);
        assert_eq!(started, 20, "a twentieth of the limit");
        let child = Child::run(|| {
            present_boot(1);
            fault::at(point, || raise(libc::SIGKILL));
            override_with(&url, 100, HOUR);
        });
        assert!(child.was_killed(), "{point}");
        let left = &shared(1)[0];
        Child::run(|| {
            present_boot(2);
            let limiter = RateLimiter::attach(&Store::new(&url).unwrap(), "api").unwrap();
            while let Attempt::Admitted(_) = limiter.attempt("key", 1).unwrap() {
                left.fetch_add(1, AcqRel);
            }
        })
        .join();
        let left = left.load(Acquire);
        assert!(started + left <= 100, "{point}: {started} before the boot and {left} after it");
        assert!(started + left >= 95, "{point}: only {left} after the boot");
    }
}
