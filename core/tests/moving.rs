//! Proofs of the review.
mod common;
use common::Dir;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);
fn adm(l: &RateLimiter, key: &str, w: u64) -> bool {
    l.decide(key, w).unwrap().admitted
}

/// F1: a limiter that has not noticed a policy change, on a new key, once the old table's index has another life.
#[test]
fn f1_old_table_recycled_index() {
    let store = Store::new("memory:").unwrap();
    let a = RateLimiter::new(&store, "x", 1, HOUR).unwrap();
    assert!(adm(&a, "k0", 1));
    let b = RateLimiter::new(&store, "x", 2, HOUR).unwrap();
    b.open().unwrap();
    let c = RateLimiter::new(&store, "y", 5, HOUR).unwrap();
    c.open().unwrap();
    let mut n = 0;
    for _ in 0..5 {
        n += u64::from(adm(&a, "k1", 1));
        n += u64::from(adm(&b, "k1", 1));
    }
    assert_eq!(n, 2, "limit 2, admitted {n}");
}

/// F2: a heavy start does not fit the smaller ring.
#[test]
fn f2_heavy_start_is_forgotten_by_a_smaller_limit() {
    let store = Store::new("memory:").unwrap();
    let a = RateLimiter::new(&store, "x", 100, HOUR).unwrap();
    assert!(adm(&a, "", 50));
    let b = RateLimiter::new(&store, "x", 8, HOUR).unwrap();
    assert!(!adm(&b, "", 1), "50 are in the window, and the limit is 8");
}

/// F3: a key that moves while somebody probes for it is found to be new.
#[test]
fn f3_a_moving_key_is_added_twice() {
    let store = Store::new("memory:").unwrap();
    let mover = RateLimiter::new(&store, "x", 4, HOUR).unwrap();
    let taker = RateLimiter::attach(&store, "x").unwrap();
    mover.open().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut over = 0;
    for round in 0..4_000 {
        let key = format!("k{round}");
        let taken = AtomicU64::new(0);
        // one unit is taken and cancelled again and again: at most 4 others can be had
        std::thread::scope(|s| {
            s.spawn(|| {
                for _ in 0..30 {
                    if let Attempt::Admitted(p) = mover.attempt(&key, 1).unwrap() {
                        mover.cancel(&p).unwrap();
                    }
                }
            });
            s.spawn(|| {
                for _ in 0..60 {
                    if let Attempt::Admitted(_) = taker.attempt(&key, 1).unwrap() {
                        taken.fetch_add(1, Relaxed);
                    }
                }
            });
        });
        let n = taken.load(Relaxed);
        if n > 4 {
            over += 1;
            if over < 4 {
                eprintln!("round {round}: {n} of 4");
            }
        }
    }
    stop.store(true, Relaxed);
    assert_eq!(over, 0, "keys over the limit");
}

/// F5: commit mode, one failure, steady traffic.
#[test]
fn f5_the_ledger_is_never_tried_again_under_steady_traffic() {
    let dir = Dir::new("f5");
    let mut o = StoreOptions::default();
    o.durability = Durability::Commit;
    o.timeout = Duration::from_millis(100);
    let store = Store::with_options(&dir.url(), o).unwrap();
    let a = RateLimiter::new(&store, "x", 1000, HOUR).unwrap();
    assert!(adm(&a, "", 1));
    let stranger = rusqlite::Connection::open(dir.file("limits.db")).unwrap();
    stranger.execute_batch("BEGIN EXCLUSIVE").unwrap();
    assert!(a.decide("", 1).is_err());
    stranger.execute_batch("ROLLBACK").unwrap();
    drop(stranger);
    std::thread::sleep(Duration::from_millis(1_200));
    let (mut good, mut bad, mut last) = (0, 0, None);
    let _ = Instant::now();
    for i in 0..100 {
        match a.decide("", 1) {
            Ok(_) => good += 1,
            Err(e) => {
                bad += 1;
                last = Some(e)
            }
        }
        std::thread::sleep(Duration::from_millis(20));
        let _ = i;
    }
    eprintln!("after a rest: {good} good, {bad} bad");
    // the same, but asked all the time
    stranger2(&dir, &a);
    let (mut good, mut bad) = (0, 0);
    for _ in 0..200 {
        match a.decide("", 1) {
            Ok(_) => good += 1,
            Err(e) => {
                bad += 1;
                last = Some(e)
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(bad < 60, "in 4 s of steady traffic: {good} good, {bad} bad: {last:?}");
}
fn stranger2(dir: &Dir, a: &RateLimiter) {
    let stranger = rusqlite::Connection::open(dir.file("limits.db")).unwrap();
    stranger.execute_batch("BEGIN EXCLUSIVE").unwrap();
    assert!(a.decide("", 1).is_err());
    stranger.execute_batch("ROLLBACK").unwrap();
}

/// F6: the lane is deleted while a start waits for the ledger.
#[test]
fn f6_a_lane_deleted_before_the_ledger_is_written() {
    let dir = Dir::new("f6");
    let mut o = StoreOptions::default();
    o.durability = Durability::Commit;
    let store = Store::with_options(&dir.url(), o).unwrap();
    let a = RateLimiter::new(&store, "a", 4000, HOUR).unwrap();
    for i in 0..20 {
        a.peek(&format!("k{i}"), 1).unwrap();
        assert!(adm(&a, &format!("k{i}"), 1));
    }
    let b = RateLimiter::new(&store, "b", 10, HOUR).unwrap();
    assert!(adm(&b, "", 1));
    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    // What was lost counts as full: a denial, not a panic, and not an admission.
    let d = b.decide("", 1).unwrap();
    eprintln!("{d:?}");
}

/// F8: a new key in a used block knows nothing of a lane that was lost.
#[test]
fn f8_used_blocks_forget_the_loss() {
    let dir = Dir::new("f8");
    let store = Store::new(&dir.url()).unwrap();
    let a = RateLimiter::new(&store, "a", 3, HOUR).unwrap();
    let late = |i: u64| format!("late {i}");
    for i in 0..64 {
        for _ in 0..3 {
            assert!(adm(&a, &late(i), 1));
        }
    }
    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    let store = Store::new(&dir.url()).unwrap();
    let b = RateLimiter::new(&store, "a", 3, HOUR).unwrap();
    // An operator clears one key, some times.
    b.peek("other", 1).unwrap();
    assert!(!adm(&b, "other", 1));
    for i in 0..6 {
        let k = format!("cleared {i}");
        b.decide(&k, 1).unwrap();
        b.clear(&k).unwrap();
        b.clear(&k).unwrap();
    }
    let n = (0..64).filter(|i| adm(&b, &late(*i), 1)).count();
    assert_eq!(n, 0, "keys that were full in the lost lane were admitted");
}

/// F9: a life is told by its base.
#[test]
fn f9_closed_base_hangs() {
    let clock = ManualClock::new();
    let mut o = StoreOptions::default();
    o.clock = Some(clock.clone());
    let store = Store::with_options("memory:", o).unwrap();
    let a = RateLimiter::new(&store, "a", 3, HOUR).unwrap();
    let (tx, rx) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let Attempt::Admitted(p) = a.attempt("k", 1).unwrap() else { panic!() };
        a.cancel(&p).unwrap(); // into another block
        clock.advance(Duration::from_micros(1));
        let Attempt::Admitted(p) = a.attempt("k", 1).unwrap() else { panic!() };
        a.cancel(&p).unwrap(); // into the first one again: its newest stamp is a microsecond ago
        let _ = a.attempt("k", 1);
        tx.send(()).unwrap();
    });
    assert!(rx.recv_timeout(Duration::from_secs(10)).is_ok(), "hangs");
}

/// F12: clear grows the store.
#[test]
fn f12_clear_grows_the_store() {
    let dir = Dir::new("f12");
    let store = Store::new(&dir.url()).unwrap();
    let a = RateLimiter::new(&store, "a", 4096, HOUR).unwrap();
    let len = || std::fs::metadata(dir.file("limits.db-lane")).unwrap().len();
    adm(&a, "", 1);
    for _ in 0..5 {
        a.clear("").unwrap();
        adm(&a, "", 1);
    }
    let before = len();
    for _ in 0..100 {
        a.clear("").unwrap();
        adm(&a, "", 1);
    }
    assert!(len() < before + (2 << 20), "{} -> {}", before, len());
}

/// F13: rewriting drops what a longer window would count.
#[test]
fn f13_a_longer_window_counts_what_was_recorded() {
    let clock = ManualClock::new();
    let mut o = StoreOptions::default();
    o.clock = Some(clock.clone());
    let store = Store::with_options("memory:", o).unwrap();
    let a = RateLimiter::new(&store, "a", 10, Duration::from_secs(1)).unwrap();
    for _ in 0..10 {
        assert!(adm(&a, "", 1));
    }
    clock.advance(Duration::from_secs(5));
    let Attempt::Admitted(p) = a.attempt("", 1).unwrap() else { panic!() };
    a.cancel(&p).unwrap();
    let b = RateLimiter::new(&store, "a", 10, HOUR).unwrap();
    assert!(!adm(&b, "", 1), "10 in the last hour");
}

/// F1b: the same with the key "": its block in the old table is another key's by now.
#[test]
fn f1b_old_table_recycled_empty_key() {
    let store = Store::new("memory:").unwrap();
    let a = RateLimiter::new(&store, "x", 2, HOUR).unwrap();
    assert!(adm(&a, "", 1) && adm(&a, "", 1));
    let b = RateLimiter::new(&store, "x", 3, HOUR).unwrap();
    let Attempt::Admitted(p) = b.attempt("z", 1).unwrap() else { panic!() };
    b.cancel(&p).unwrap();
    let mut n = 2;
    for _ in 0..5 {
        n += u64::from(adm(&a, "", 1));
        n += u64::from(adm(&b, "", 1));
    }
    let left = b.peek("z", 1).unwrap().remaining;
    assert_eq!((n, left), (3, 3), "limit 3: admitted to the key without a name, and left of the untouched z");
}
