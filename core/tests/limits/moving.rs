//! Keys and tables that move under their users: rewritten logs, replaced policies, lost lanes. Starts keep counting
//! wherever they are, once, and only for their own key.

use crate::common::Dir;
use std::time::Duration;
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);

fn on_a_manual_clock() -> (Store, ManualClock) {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    (Store::with_options("memory:", options).unwrap(), clock)
}

fn admitted(limiter: &impl Limiter, key: &str, weight: u64) -> bool {
    limiter.decide(key, weight).unwrap().admitted
}

/// Cancels a start, which moves its key into another block.
fn move_key(limiter: &RateLimiter, key: &str) {
    match limiter.attempt(key, 1).unwrap() {
        Attempt::Admitted(permit) => limiter.cancel(&permit).unwrap(),
        denied => panic!("{denied:?}"),
    }
}

/// The index of a replaced table belongs to another limit by now.
#[test]
fn a_caller_that_missed_a_change_adds_no_key_to_another_limits_index() {
    let store = Store::new("memory:").unwrap();
    let late = RateLimiter::new(&store, "api", 1, HOUR).unwrap();
    assert!(admitted(&late, "old", 1));
    let changed = RateLimiter::new(&store, "api", 2, HOUR).unwrap();
    changed.open().unwrap();
    RateLimiter::new(&store, "other", 5, HOUR).unwrap().open().unwrap();
    let both = || [&late, &changed].iter().filter(|limiter| admitted(**limiter, "new", 1)).count();
    assert_eq!((0..5).map(|_| both()).sum::<usize>(), 2, "of a limit of 2");
}

#[test]
fn a_start_counts_under_a_limit_smaller_than_its_weight() {
    let store = Store::new("memory:").unwrap();
    assert!(admitted(&RateLimiter::new(&store, "api", 100, HOUR).unwrap(), "", 50));
    let smaller = RateLimiter::new(&store, "api", 8, HOUR).unwrap();
    assert!(!admitted(&smaller, "", 1), "50 are in the window, and the limit is 8");
}

#[test]
fn a_longer_window_counts_starts_that_a_rewritten_log_left_out() {
    let (store, clock) = on_a_manual_clock();
    let shorter = RateLimiter::new(&store, "api", 10, Duration::from_secs(1)).unwrap();
    for _ in 0..10 {
        assert!(admitted(&shorter, "", 1));
    }
    clock.advance(Duration::from_secs(5));
    move_key(&shorter, "");
    let longer = RateLimiter::new(&store, "api", 10, HOUR).unwrap();
    assert!(!admitted(&longer, "", 1), "10 of 10 have started in this hour");
}

/// Debts for which there was room say nothing against the former policy: it bounds what there was in each of its windows.
#[test]
fn a_longer_window_is_bounded_by_the_former_one_though_starts_owed() {
    for factor in [1, 50] {
        let (store, clock) = on_a_manual_clock();
        clock.advance(HOUR);
        let shorter = RateLimiter::new(&store, "api", 100 * factor, HOUR / 60).unwrap();
        for _ in 0..180 {
            let Attempt::Admitted(permit) = shorter.attempt("key", 10).unwrap() else { panic!("a window is over") };
            shorter.settle(&permit, 11).unwrap();
            while admitted(&shorter, "key", factor) {}
            clock.advance(HOUR / 60);
        }
        let longer = RateLimiter::new(&store, "api", 10_000 * factor, HOUR).unwrap();
        let free = longer.peek("key", 1).unwrap().remaining;
        assert!((4_000 * factor..=4_100 * factor + factor).contains(&free), "{free} free");
    }
}

/// A smaller limit keeps starts one by one, and only the newest fit. The end of one that did not fit once took a later one's units.
#[test]
fn a_start_that_a_smaller_limit_left_out_takes_no_later_one_back() {
    for ((first, then), key) in
        [(600, 600), (450, 600), (600, 100), (5, 600)].into_iter().flat_map(|some| [(some, ""), (some, "key")])
    {
        let (store, clock) = on_a_manual_clock();
        let larger = RateLimiter::new(&store, "api", 5_000, HOUR).unwrap();
        let start = |weight| match larger.attempt(key, weight).unwrap() {
            Attempt::Admitted(permit) => permit,
            denied => panic!("{denied:?}"),
        };
        let early = start(first);
        clock.advance(HOUR / 6);
        let late = start(then);
        let smaller = RateLimiter::new(&store, "api", 200, HOUR).unwrap();
        larger.cancel(&early).unwrap();
        clock.advance(HOUR * 5 / 6 + Duration::from_secs(60));
        assert_eq!(smaller.peek(key, 1).unwrap().remaining, 200u64.saturating_sub(then), "{first}, then {then}");
        larger.cancel(&late).unwrap();
        assert_eq!(smaller.peek(key, 1).unwrap().remaining, 200, "{first}, then {then}, both cancelled");
        // Under the larger limit, too.
        let larger = RateLimiter::new(&store, "api", 5_000, HOUR).unwrap();
        assert_eq!(larger.peek(key, 1).unwrap().remaining, 5_000, "{first}, then {then}, both cancelled");
    }
}

/// The first debt moves the key into other cells. There its other starts were once not found: their debts and cancels were lost.
#[test]
fn starts_of_one_moment_are_settled_one_by_one() {
    let (store, _clock) = on_a_manual_clock();
    for (i, limit) in [100, 5_000].into_iter().enumerate() {
        let limiter = RateLimiter::new(&store, &format!("api {i}"), limit, HOUR).unwrap();
        let permits = [18, 60, 10].map(|weight| match limiter.attempt("key", weight).unwrap() {
            Attempt::Admitted(permit) => permit,
            denied => panic!("{denied:?}"),
        });
        limiter.settle(&permits[0], 20).unwrap();
        limiter.settle(&permits[1], 63).unwrap();
        limiter.cancel(&permits[2]).unwrap();
        assert_eq!(limiter.peek("key", 1).unwrap().remaining, limit - 83);
    }
}

/// Later starts once had numbers that made permits of before a clear look like theirs.
#[test]
fn permits_of_cleared_starts_take_nothing_back() {
    for cleared in ["", "key"] {
        let (store, _clock) = on_a_manual_clock();
        let open = |limit| {
            let limiter = RateLimiter::new(&store, "api", limit, HOUR).unwrap();
            limiter.open().unwrap();
            limiter
        };
        let start = |limiter: &RateLimiter, weight| match limiter.attempt("key", weight).unwrap() {
            Attempt::Admitted(permit) => permit,
            denied => panic!("{denied:?}"),
        };
        let kept = open(200);
        let permits = [39, 43].map(|weight| start(&kept, weight));
        let counted = open(9_000);
        counted.clear(cleared).unwrap();
        start(&counted, 700);
        start(&open(4_000), 366);
        let last = open(9_000);
        permits.iter().for_each(|permit| kept.cancel(permit).unwrap());
        assert_eq!(last.peek("key", 1).unwrap().remaining, 9_000 - 1_066, "after clear({cleared:?})");
    }
}

/// Two units are in use all the time. A caller that gets three of four has taken the key for a new one.
#[test]
fn a_key_that_moves_during_a_lookup_is_not_new() {
    let store = Store::new("memory:").unwrap();
    let mover = RateLimiter::new(&store, "api", 4, HOUR).unwrap();
    let taker = RateLimiter::attach(&store, "api").unwrap();
    assert!(admitted(&mover, "key", 2));
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| (0..400_000).for_each(|_| move_key(&mover, "key")));
        while !moving.is_finished() {
            assert!(!admitted(&taker, "key", 3), "2 of 4 are in use");
        }
    });
}

#[test]
fn clearing_a_key_repeatedly_reuses_its_blocks() {
    let dir = Dir::new("clearing");
    let limiter = RateLimiter::new(&Store::new(&dir.url()).unwrap(), "api", 4_096, HOUR).unwrap();
    let use_and_clear = |times: u64| {
        for _ in 0..times {
            assert!(admitted(&limiter, "", 1));
            limiter.clear("").unwrap();
        }
        assert!(admitted(&limiter, "", 1));
        std::fs::metadata(dir.file("limits.db-lane")).unwrap().len()
    };
    let (before, after) = (use_and_clear(5), use_and_clear(100));
    assert!(after < before + (2 << 20), "the lane has grown from {before} to {after} bytes");
}

/// A start in the lost lane is in no ledger, so it happens in the next lane, once.
#[test]
fn a_start_that_waits_for_the_ledger_while_its_lane_is_lost_happens_in_the_next() {
    let dir = Dir::new("commit-lost");
    let mut options = StoreOptions::default();
    options.durability = Durability::Commit;
    let store = Store::with_options(&dir.url(), options).unwrap();
    // Blocks that the next lane does not have.
    let first = RateLimiter::new(&store, "first", 4_000, HOUR).unwrap();
    for i in 0..20 {
        let key = format!("key {i}");
        first.peek(&key, 1).unwrap();
        assert!(admitted(&first, &key, 1));
    }
    let second = RateLimiter::new(&store, "second", 10, HOUR).unwrap();
    assert!(admitted(&second, "", 1));
    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    assert!(admitted(&second, "", 1));
    assert_eq!(second.peek("", 1).unwrap().remaining, 8);
}

/// The starts that a new key counts for do not depend on the block that it gets.
#[test]
fn a_new_key_in_a_reused_block_counts_as_full_after_a_loss() {
    let dir = Dir::new("used-blocks");
    let open = || RateLimiter::new(&Store::new(&dir.url()).unwrap(), "api", 3, HOUR).unwrap();
    let full = |i: u64| format!("full {i}");
    let lost = open();
    for i in 0..64 {
        for _ in 0..3 {
            assert!(admitted(&lost, &full(i), 1));
        }
    }
    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    let limiter = open();
    limiter.peek("other", 1).unwrap();
    assert!(!admitted(&limiter, "other", 1));
    // An operator clears some keys twice. Their blocks are available to others.
    for i in 0..6 {
        let key = format!("cleared {i}");
        limiter.decide(&key, 1).unwrap();
        limiter.clear(&key).unwrap();
        limiter.clear(&key).unwrap();
    }
    let over = (0..64).filter(|i| admitted(&limiter, &full(*i), 1)).count();
    assert_eq!(over, 0, "keys that were full in the lost lane were admitted");
}
