//! Counts by threads, processes and forked children, and what happens to them.

use crate::common::wait::Wait;
use crate::common::{Child, Dir, wait_until};
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::custom::{Custom, CustomLimiter, End, Verdict};
use workglow_limit::embed::{Seat, Step, Waiter};
use workglow_limit::observe::Stats;
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);

/// A store that does not time out while the machine is busy with other tests.
fn open(url: &str) -> Store {
    let mut options = StoreOptions::default();
    options.timeout = Duration::from_secs(60);
    Store::with_options(url, options).unwrap()
}

fn rate(store: &Store, max: u64) -> RateLimiter {
    RateLimiter::new(store, "limit", max, HOUR).unwrap()
}

fn attempt(limiter: &dyn Limiter, key: &str, weight: u64) -> bool {
    matches!(limiter.attempt(key, weight).unwrap(), Attempt::Admitted(_))
}

/// The counts: admitted, denied, wanted, granted.
fn counted(limiter: &dyn Limiter, key: &str) -> [u64; 4] {
    let stats = limiter.stats(key).unwrap();
    [stats.admitted, stats.denied, stats.units_wanted, stats.units_granted]
}

/// On a memory store and on a database.
fn on_every_store(name: &str, test: impl Fn(&Store)) {
    let dir = Dir::new(name);
    for url in ["memory:".to_owned(), dir.url()] {
        test(&open(&url));
    }
}

#[test]
fn all_limiters_of_a_store_count_together() {
    on_every_store("count-together", |store| {
        let (one, other) = (rate(store, 5), rate(store, 5));
        assert!(attempt(&one, "a", 3));
        assert!(attempt(&other, "a", 2));
        assert!(!attempt(&other, "a", 2));
        assert!(attempt(&one, "", 1));
        for limiter in [&one, &other] {
            assert_eq!(counted(limiter, "a"), [2, 1, 7, 5]);
            assert_eq!(counted(limiter, ""), [3, 1, 8, 6]);
            assert_eq!(limiter.stats("b").unwrap(), Stats::default());
        }
    });
}

#[test]
fn errors_of_the_caller_are_not_counted() {
    on_every_store("count-errors", |store| {
        let limiter = rate(store, 5);
        assert!(limiter.attempt("", 6).is_err());
        assert!(limiter.attempt("", 0).is_err());
        assert!(limiter.attempt(&"k".repeat(2_000), 1).is_err());
        assert!(limiter.stats(&"k".repeat(2_000)).is_err());
        assert_eq!(limiter.stats("").unwrap(), Stats::default());
    });
}

#[test]
fn more_threads_than_stripes_lose_nothing() {
    on_every_store("count-threads", |store| {
        let limiter = Arc::new(rate(store, 100));
        std::thread::scope(|scope| {
            for thread in 0..40 {
                let limiter = limiter.clone();
                scope.spawn(move || {
                    for i in 0..500 {
                        attempt(&*limiter, ["", "a", "b"][(thread + i) % 3], 2);
                        if i % 100 == 0 {
                            limiter.stats("").unwrap();
                        }
                    }
                });
            }
        });
        let [admitted, denied, wanted, granted] = counted(&*limiter, "");
        assert_eq!((admitted + denied, wanted), (20_000, 40_000));
        assert_eq!((admitted, granted), (150, 300));
        let keys: Vec<_> = ["a", "b"].iter().map(|key| counted(&*limiter, key)).collect();
        assert!(keys.iter().all(|[admitted, .., granted]| (*admitted, *granted) == (50, 100)), "{keys:?}");
        assert!(keys.iter().map(|[a, d, ..]| a + d).sum::<u64>() + 6_600 <= 20_000, "{keys:?}");
    });
}

/// The stripe of a thread is reused by later threads.
#[test]
fn threads_that_come_and_go_lose_nothing() {
    on_every_store("count-come-and-go", |store| {
        let limiter = Arc::new(rate(store, 1_000));
        for _ in 0..200 {
            let limiter = limiter.clone();
            std::thread::spawn(move || assert!(attempt(&*limiter, "", 1))).join().unwrap();
        }
        assert_eq!(counted(&*limiter, ""), [200, 0, 200, 200]);
    });
}

#[test]
fn keys_beyond_the_table_count_in_the_limits_total() {
    on_every_store("count-keys", |store| {
        let limiter = rate(store, 1);
        for i in 0..6_000 {
            assert!(attempt(&limiter, &format!("key-{i}"), 1));
        }
        assert_eq!(counted(&limiter, ""), [6_000, 0, 6_000, 6_000]);
        let of_keys: u64 = (0..6_000).map(|i| counted(&limiter, &format!("key-{i}"))[0]).sum();
        assert!((1_000..=6_000).contains(&of_keys), "{of_keys}");
        // Entries that were flushed a while ago are freed for other keys.
        for i in 0..10 {
            let key = format!("key-{i}");
            wait_until("there is an entry for this key", || {
                assert!(!attempt(&limiter, &key, 1));
                counted(&limiter, &key)[1] > 0
            });
        }
    });
}

#[test]
fn cancelling_moves_keys_and_loses_no_count() {
    on_every_store("count-cancel", |store| {
        let limiter = rate(store, 10);
        for _ in 0..300 {
            let Attempt::Admitted(permit) = limiter.attempt("a", 2).unwrap() else { panic!("the limit has capacity") };
            limiter.cancel(&permit).unwrap();
            limiter.cancel(&permit).unwrap();
        }
        let stats = limiter.stats("a").unwrap();
        assert_eq!((stats.admitted, stats.units_granted, stats.cancelled), (300, 600, 300));
        assert_eq!(limiter.stats("").unwrap(), stats);
    });
}

#[test]
fn policies_change_and_counts_stay() {
    on_every_store("count-policies", |store| {
        let before = rate(store, 1);
        assert!(attempt(&before, "a", 1));
        assert!(!attempt(&before, "a", 1));
        assert_eq!(before.stats("").unwrap().policy_changes, 0);
        let after = rate(store, 2);
        assert!(attempt(&after, "a", 1));
        for limiter in [&before, &after] {
            assert_eq!(counted(limiter, "a"), [2, 1, 3, 2]);
            assert_eq!(limiter.stats("").unwrap().policy_changes, 1);
            assert_eq!(limiter.stats("a").unwrap().policy_changes, 0);
        }
        // The same policy again is not a change.
        rate(store, 2).open().unwrap();
        assert_eq!(before.stats("").unwrap().policy_changes, 1);
    });
}

#[test]
fn counts_of_processes_add_up() {
    let dir = Dir::new("count-processes");
    let children: Vec<Child> = (0..4)
        .map(|i| {
            Child::run(|| {
                let limiter = rate(&open(&dir.url()), 10);
                for _ in 0..50 {
                    attempt(&limiter, "shared", 1);
                }
                attempt(&limiter, &format!("own-{i}"), 1);
                // The end of the store flushes the rest.
            })
        })
        .collect();
    children.into_iter().for_each(Child::join);
    let limiter = rate(&open(&dir.url()), 10);
    assert_eq!(counted(&limiter, "shared"), [10, 190, 200, 10]);
    assert_eq!(counted(&limiter, "own-2"), [1, 0, 1, 1]);
    assert_eq!(counted(&limiter, ""), [14, 190, 204, 14]);
}

/// A process that keeps deciding flushes at the first decision after a second, without being asked.
#[test]
fn counts_are_flushed_once_a_second() {
    let dir = Dir::new("count-second");
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let store = |options: &StoreOptions| Store::with_options(&dir.url(), options.clone()).unwrap();
    let (mine, theirs) = (rate(&store(&options), 1), rate(&store(&options), 1));
    attempt(&mine, "a", 1);
    attempt(&mine, "a", 1);
    assert_eq!(counted(&theirs, "a"), [0; 4]);
    // A decision flushes only if nobody else in this process is flushing at that moment, as another test may be.
    let mut denied = 1;
    while counted(&theirs, "a") == [0; 4] {
        clock.advance(Duration::from_secs(2));
        attempt(&mine, "a", 1);
        denied += 1;
    }
    // Not the decision that flushed: it was made after that.
    let [flushed_admitted, flushed_denied, ..] = counted(&theirs, "a");
    assert_eq!((flushed_admitted, flushed_denied), (1, denied - 1));
    assert_eq!(counted(&mine, "a"), [1, denied, denied + 1, 1]);
}

#[test]
fn a_forked_child_counts_only_its_own_decisions() {
    on_every_store("count-fork", |store| {
        let limiter = rate(store, 10);
        assert!(attempt(&limiter, "a", 1));
        assert!(attempt(&limiter, "", 1));
        let is_memory = store.url() == "memory:";
        // From here on the child has a memory store of its own. Of a lane, the parent has flushed nothing yet.
        let child = Child::run(|| {
            assert!(attempt(&limiter, "a", 1));
            assert_eq!(counted(&limiter, "a")[0], 1, "the parent's counts are not the child's");
            assert_eq!(counted(&limiter, "")[0], 1);
        });
        child.join();
        let all = if is_memory { 1 } else { 2 };
        assert_eq!(counted(&limiter, "a")[0], all);
        assert_eq!(counted(&limiter, "")[0], all + 1);
    });
}

#[test]
fn a_wait_is_counted_with_its_time() {
    on_every_store("count-wait", |store| {
        // If the machine stands still for a window, the second one does not wait, or the third one starts.
        let are_counted = |window| {
            let limiter = RateLimiter::new(store, &format!("wait {window:?}"), 1, window).unwrap();
            for _ in 0..2 {
                limiter.acquire("a", 1, None).unwrap().unwrap().complete().unwrap();
            }
            let is_denied = limiter.acquire("a", 1, Some(Duration::ZERO)).unwrap().is_none();
            let stats = limiter.stats("a").unwrap();
            let counts = (stats.admitted, stats.denied, stats.waited, stats.cancelled);
            println!("{counts:?}, {:?}", stats.wait_time);
            is_denied && counts == (2, 1, 1, 0) && stats.wait_time > Duration::ZERO
        };
        assert!([50, 500, 5_000].map(Duration::from_millis).into_iter().any(are_counted));

        let slots = Arc::new(ConcurrencyLimiter::shared(store, "slots", 1, None).unwrap());
        let first = slots.acquire("", 1, None).unwrap().unwrap();
        let waiter = std::thread::spawn({
            let slots = slots.clone();
            move || slots.acquire("", 1, None).unwrap().unwrap().complete().unwrap()
        });
        std::thread::sleep(Duration::from_millis(20));
        first.complete().unwrap();
        waiter.join().unwrap();
        let stats = slots.stats("").unwrap();
        assert_eq!((stats.admitted, stats.denied), (2, 0));
        // On a busy machine it may have been too late to wait.
        assert_eq!(stats.waited > 0, stats.wait_time > Duration::ZERO);
    });
}

/// Waiters that give up are not denials, and the units they held were cancelled. Waiters whose timeout passes are only
/// denials.
#[test]
fn giving_up_is_not_a_denial() {
    on_every_store("count-give-up", |store| {
        let limiter = rate(store, 1);
        assert!(attempt(&limiter, "", 1));
        let mut wait = Wait::new("", 1, None);
        assert!(matches!(wait.step(&limiter).unwrap(), Step::Sleep(_)));
        wait.give_up(&limiter).unwrap();
        let stats = limiter.stats("").unwrap();
        assert_eq!((stats.admitted, stats.denied, stats.waited, stats.cancelled), (1, 0, 0, 1));
    });
}

#[test]
fn failures_of_the_store_are_counted() {
    let dir = Dir::new("count-failures");
    let url = format!("sqlite:{}", dir.file("not-there/limits.db").display());
    let mut options = StoreOptions::default();
    options.on_error = OnError::Deny;
    let limiter = rate(&Store::with_options(&url, options).unwrap(), 1);
    assert!(!attempt(&limiter, "a", 1));
    assert!(!limiter.decide("a", 1).unwrap().admitted);
    assert!(limiter.stats("").is_err());
    std::fs::create_dir(dir.file("not-there")).unwrap();
    assert!(attempt(&limiter, "a", 1));
    let stats = limiter.stats("").unwrap();
    assert_eq!((stats.admitted, stats.denied, stats.store_errors), (1, 0, 2));
    assert_eq!(limiter.stats("a").unwrap().store_errors, 0);
}

/// Admits every second time.
struct Alternating(std::sync::atomic::AtomicU64);

impl Custom for Alternating {
    fn name(&self) -> &str {
        "alternating"
    }

    fn decide(&self, _: &str, _: u64) -> Result<Verdict> {
        let n = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(if n.is_multiple_of(2) { Verdict::Admitted(n) } else { Verdict::Denied(Duration::from_millis(1)) })
    }

    fn peek(&self, _: &str, _: u64) -> Result<Verdict> {
        Ok(Verdict::Admitted(0))
    }

    fn end(&self, _: u64, _: End) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_custom_limiter_is_counted_in_its_process() {
    let limiter = CustomLimiter::new(Alternating(0.into())).unwrap();
    assert!(attempt(&limiter, "a", 2));
    assert!(!attempt(&limiter, "a", 2));
    let permit = limiter.decide("b", 1).unwrap().permit.unwrap();
    limiter.cancel(&permit).unwrap();
    limiter.acquire("a", 1, None).unwrap().unwrap().complete().unwrap();
    assert_eq!(counted(&limiter, "a"), [2, 1, 5, 3]);
    assert_eq!(counted(&limiter, "b"), [1, 0, 1, 1]);
    let all = limiter.stats("").unwrap();
    assert_eq!((all.admitted, all.denied, all.waited, all.cancelled), (3, 1, 1, 1));
    Child::run(|| assert_eq!(limiter.stats("").unwrap(), Stats::default())).join();
}

#[test]
fn a_composite_reports_its_childrens_counts() {
    on_every_store("count-composite", |store| {
        let limiter = store.limiter("both", "3/1h + 2 concurrent").unwrap();
        assert!(attempt(&*limiter, "a", 2));
        assert!(!attempt(&*limiter, "a", 1));
        assert_eq!(counted(&*limiter, "a"), [1, 1, 3, 2]);
        assert_eq!(counted(&*limiter, ""), [1, 1, 3, 2]);
    });
}

#[test]
fn a_waiter_of_a_composite_counts_once_at_each_part() {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let store = Store::with_options("memory:", options).unwrap();
    let both = store.limiter("api", "1/1s + 1 concurrent").unwrap();
    let Attempt::Admitted(first) = both.attempt("", 1).unwrap() else { panic!("denied") };
    both.complete(&first).unwrap();
    let mut waits = Seat::new(Waiter::new("", 1));
    while !matches!(waits.step(&*both).unwrap(), Step::Admitted(_)) {
        clock.advance(Duration::from_millis(500));
    }
    for part in ["api/rate", "api/concurrency"] {
        let stats = store.find(part).unwrap().stats("").unwrap();
        assert_eq!((stats.admitted, stats.denied, stats.waited), (2, 0, 1), "{part}");
    }
}
