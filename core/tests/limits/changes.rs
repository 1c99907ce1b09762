//! What earlier starts count for under another policy: never less than they should, and no unit more than must be.

use crate::common::Random;
use crate::common::server::Server;
use std::time::Duration;
use workglow_limit::*;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// One limit with a clock that stands still.
struct Limit {
    clock: ManualClock,
    store: Store,
    limiter: std::sync::Arc<dyn Limiter>,
}

/// Runs a test in memory, for each of these seeds, and on each server for a part of them.
fn on_each_store(name: &str, seeds: u64, test: impl Fn(&str, u64)) {
    (0..seeds).for_each(|seed| test("memory:", seed));
    for server in Server::each(name) {
        for seed in 0..seeds.div_ceil(16) {
            server.forget_all();
            test(&server.url(), seed);
        }
    }
}

impl Limit {
    fn new(url: &str, policy: Policy) -> Limit {
        let clock = ManualClock::new();
        let mut options = StoreOptions::default();
        options.clock = Some(clock.clone());
        let store = Store::with_options(url, options).unwrap();
        let limiter = store.declare("api", policy).unwrap();
        limiter.open().unwrap();
        Limit { clock, store, limiter }
    }

    fn at(url: &str, text: &str) -> Limit {
        Limit::new(url, text.parse().unwrap())
    }

    fn change(&self, text: &str) {
        self.apply(text.parse().unwrap());
    }

    fn apply(&self, policy: Policy) {
        self.store.override_limit("api", &policy.to_string(), None).unwrap();
    }

    fn start(&self, weight: u64) -> RawPermit {
        match self.limiter.attempt("key", weight).unwrap() {
            Attempt::Admitted(permit) => permit,
            Attempt::Denied(after) => panic!("denied for {after:?}"),
        }
    }

    fn remaining(&self) -> u64 {
        self.limiter.peek("key", 0).unwrap().remaining
    }
}

#[test]
fn forgotten_starts_count_by_their_number() {
    on_each_store("forgotten", 1, |url, _| {
        let limit = Limit::at(url, "100/1m");
        for _ in 0..3 {
            limit.start(100);
            limit.clock.advance(MINUTE);
        }
        limit.change("10000/1h");
        assert_eq!(limit.remaining(), 9_700, "{url}");
        limit.clock.advance(57 * MINUTE + Duration::from_micros(32));
        assert_eq!(limit.remaining(), 9_800, "the first start has left the window, to a slice: {url}");
    });
}

#[test]
fn the_former_policy_bounds_what_is_forgotten() {
    on_each_store("former", 1, |url, _| {
        for full in [100, 6_000] {
            let limit = Limit::at(url, &format!("{full}/1m"));
            limit.limiter.clear("").unwrap();
            for _ in 0..200 {
                limit.start(full);
                // Of slices, the last leaves the window later than the start.
                limit.clock.advance(MINUTE + Duration::from_millis(10));
            }
            // A full hour, but for its first minute.
            let most = 60 * full;
            limit.change(&format!("{}/1h", most + 5_000));
            let withheld = most + 5_000 - limit.remaining();
            assert!(withheld <= most && withheld + 2 * full >= most, "{full}: {withheld}, {url}");
            limit.store.lift("api", None).unwrap();
        }
    });
}

#[test]
fn clock_windows_that_are_no_longer_known_count_as_full() {
    for text in ["fixed", "counter"] {
        on_each_store("clock-windows", 1, |url, _| {
            let limit = Limit::at(url, &format!("100/1s {text}"));
            // To the beginning of a minute, by the limit's own windows.
            while limit.remaining() < 100 {
                limit.clock.advance(SECOND);
            }
            for _ in 0..30 {
                let left = limit.remaining();
                if left > 0 {
                    limit.start(left);
                }
                limit.clock.advance(SECOND);
            }
            limit.change(&format!("1000/1m {text}"));
            assert_eq!(limit.remaining(), 0, "{text}, {url}");
        });
    }
    // A key counts from its first use on.
    on_each_store("first-window", 1, |url, _| {
        let limit = Limit::at(url, "100/1s fixed");
        limit.start(40);
        limit.change("1000/1m fixed");
        assert_eq!(limit.remaining(), 960, "{url}");
    });
}

/// Windows of the clock at random: none holds more than its limit. What the first policy knows is withheld, and nothing
/// else.
#[test]
fn no_clock_window_of_a_later_policy_holds_more_than_its_limit() {
    on_each_store("clock-windows-at-random", 400, |url, seed| {
        let random = &mut Random::seeded(seed);
        let any = |random: &mut Random| (1 + random.scaled(50), 1_000 * (1 + u128::from(random.scaled(60_000))));
        let policy =
            |(limit, length): (u64, u128)| Policy::fixed_window(limit, Duration::from_micros(length as u64)).unwrap();
        let mut current = any(random);
        let (limit, mut has_changed) = (Limit::new(url, policy(current)), false);
        let mut starts: Vec<True> = Vec::new();
        let in_window = |starts: &[True], now: u128, length: u128| -> u64 {
            starts.iter().filter(|start| start.at / length == now / length).map(|start| start.units).sum()
        };
        for _ in 0..200 {
            let now = limit.clock.now().as_micros();
            match random.below(100) {
                0..60 => {
                    let weight = 1 + random.scaled(current.0 - 1);
                    if let Attempt::Admitted(_) = limit.limiter.attempt("", weight).unwrap() {
                        starts.push(True { at: now, units: weight });
                        let held = in_window(&starts, now, current.1);
                        assert!(held <= current.0, "{seed}: {held} of {current:?} at {now}");
                    }
                }
                60..94 => limit.clock.advance(Duration::from_micros(random.scaled(current.1 as u64))),
                _ => {
                    let (most, length) = current;
                    let is_known = !has_changed && starts.iter().all(|start| start.at / length == now / length);
                    has_changed = true;
                    current = any(random);
                    limit.apply(policy(current));
                    let left = limit.limiter.peek("", 0).unwrap().remaining;
                    let held = in_window(&starts, now, current.1);
                    assert!(left <= current.0.saturating_sub(held), "{seed}: {left} beside {held} of {current:?}");
                    // All in the present window, which is known: nothing else is withheld.
                    let all: u64 = starts.iter().map(|start| start.units).sum();
                    assert!(!is_known || all > most || left + all >= current.0, "{seed}: {left}, {all} of {current:?}");
                }
            }
        }
    });
}

/// A policy, another one of its kind, and what is left of that when ten units are used.
const CHANGED: [(&str, &str, u64); 8] = [
    ("50/1s", "60/1s", 50),
    ("5000/1m", "6000/1m", 5_990),
    ("5000/1m", "100/1m", 90),
    ("100/1m", "5000/1m", 4_990),
    ("10000/1m", "9000/1h", 8_990),
    ("50/1m burst 50", "60/1m burst 60", 50),
    ("50/1h fixed", "60/1d fixed", 50),
    ("50/1h counter", "60/1d counter", 50),
];

/// However often the policy changes. (On servers, a bucket and windows of the clock remember one change.)
#[test]
fn a_permit_ends_after_a_change_as_before_it() {
    on_each_store("permits", 1, |url, _| {
        for (before, after, left) in CHANGED {
            let all = [&[after][..], &[before, after], &[after, before, after]];
            let is_rate = !["burst", "fixed", "counter"].iter().any(|kind| before.contains(kind));
            for changes in all.into_iter().take(if url == "memory:" || is_rate { 3 } else { 1 }) {
                permits_after_changes(url, (before, changes), left);
            }
        }
    });
}

fn permits_after_changes(url: &str, (before, changes): (&str, &[&str]), left: u64) {
    let started = || {
        // On a server, the name has been another kind's.
        let _ = Store::new(url).unwrap().forget("api");
        let limit = Limit::at(url, before);
        limit.limiter.clear("").unwrap();
        let permit = limit.start(10);
        changes.iter().for_each(|policy| limit.change(policy));
        assert_eq!(limit.remaining(), left, "{before}, {changes:?}, {url}");
        (limit, permit)
    };
    let (limit, permit) = started();
    limit.limiter.cancel(&permit).unwrap();
    assert_eq!(limit.remaining(), left + 10, "cancelled: {before}, {changes:?}, {url}");
    let (limit, permit) = started();
    limit.limiter.settle(&permit, 0).unwrap();
    assert_eq!(limit.remaining(), left + 10, "settled by 0: {before}, {changes:?}, {url}");
    let (limit, permit) = started();
    limit.limiter.settle(&permit, 3).unwrap();
    assert_eq!(limit.remaining(), left + 7, "settled by 3: {before}, {changes:?}, {url}");
    let (limit, permit) = started();
    limit.limiter.settle(&permit, 40).unwrap();
    assert_eq!(limit.remaining(), left - 30, "settled by 40: {before}, {changes:?}, {url}");
    // A permit of an earlier life ends nothing.
    let (limit, permit) = started();
    limit.limiter.clear("key").unwrap();
    if url != "memory:" {
        // On a server, the numbers of a life begin with the time.
        limit.clock.advance(Duration::from_micros(1));
    }
    let other = limit.start(20);
    limit.change(changes[0]);
    let used = limit.remaining();
    limit.limiter.cancel(&permit).unwrap();
    assert_eq!(limit.remaining(), used, "after a clear: {before}, {changes:?}, {url}");
    limit.limiter.cancel(&other).unwrap();
    assert_eq!(limit.remaining(), used + 20, "the other: {before}, {changes:?}, {url}");
}

/// What has come back since the start is not given back again, by whatever rate it came.
#[test]
fn a_refund_after_a_change_of_rate_is_no_more_than_before_it() {
    let test = |url: &str, (before, after)| {
        let limit = Limit::at(url, before);
        let permit = limit.start(10);
        limit.clock.advance(SECOND / 2);
        limit.change(after);
        limit.clock.advance(SECOND / 2);
        let left = limit.remaining();
        if left > 0 {
            limit.start(left);
        }
        limit.limiter.cancel(&permit).unwrap();
        assert!(limit.remaining() <= 10 - left, "{before}, {after}: {left}, {}", limit.remaining());
        assert!(limit.remaining() + left + 1 >= 10, "{before}, {after}: {left}, {}", limit.remaining());
    };
    let pairs = [("10/1s burst 10", "10/1m burst 10"), ("10/1m burst 10", "10/1s burst 10")];
    on_each_store("refunds", 32, |url, i| test(url, pairs[i as usize % 2]));
}

#[derive(Debug, Clone, Copy)]
struct True {
    at: u128,
    units: u64,
}

/// A policy of each kind with a rolling window, and its windows.
fn rolling(random: &mut Random, kind: u64) -> (Policy, Vec<(u64, u128)>) {
    let us = |us: u128| Duration::from_micros(us as u64);
    let length = |random: &mut Random| u128::from(1_000 * (1 + random.scaled(60_000)));
    match kind {
        0 => {
            let count = random.pick(&[1, 1, 2, 3]);
            let windows: Vec<_> = (0..count).map(|_| (1 + random.scaled(60), length(random))).collect();
            let durations: Vec<_> = windows.iter().map(|&(limit, length)| (limit, us(length))).collect();
            (Policy::rate_in(&durations).unwrap(), windows)
        }
        1 => {
            let (limit, length) = (random.pick(&[10, 300, 4_096, 5_000, 20_000]), length(random));
            (Policy::rate(limit, us(length)).unwrap(), vec![(limit, length)])
        }
        2 => {
            let length = length(random);
            (Policy::delay(us(length)).unwrap(), vec![(1, length)])
        }
        _ => {
            let (max, length) = (1 + random.scaled(20), length(random));
            let interval = length.div_ceil(max.into());
            (Policy::evenly_spaced(max, us(length), false).unwrap(), vec![(1, interval)])
        }
    }
}

/// As many units as have started in a window that ends now.
fn held(starts: &[True], now: u128, length: u128) -> u64 {
    starts.iter().filter(|start| start.at + length > now).map(|start| start.units).sum()
}

/// Starts, refunds and changes of policy at random: no start while a window of the policy holds its limit. (The key is
/// the empty one: others may be forgotten while they are idle.)
#[test]
fn no_window_of_a_later_policy_holds_more_than_its_limit() {
    on_each_store("windows-at-random", 600, |url, seed| {
        let random = &mut Random::seeded(seed);
        let kind = seed % 4;
        let (policy, mut windows) = rolling(random, kind);
        let limit = Limit::new(url, policy);
        let mut starts: Vec<True> = Vec::new();
        let mut permits: Vec<(RawPermit, usize)> = Vec::new();
        for _ in 0..300 {
            let now = limit.clock.now().as_micros();
            match random.below(100) {
                0..60 => {
                    let capacity = windows.iter().map(|w| w.0).min().unwrap();
                    let weight = 1 + random.scaled(capacity - 1);
                    if let Attempt::Admitted(permit) = limit.limiter.attempt("", weight).unwrap() {
                        permits.push((permit, starts.len()));
                        starts.push(True { at: now, units: weight });
                        for &(most, length) in &windows {
                            let held = held(&starts, now, length);
                            assert!(held <= most, "{seed}: {held} of {most} in {length} µs at {now}");
                        }
                    }
                }
                60..68 => {
                    if let Some(i) = random.index(permits.len()) {
                        let (permit, start) = permits.swap_remove(i);
                        let actual = random.below(starts[start].units + 1);
                        // (It was the whole of it if that can be read from the answer.)
                        match random.below(2) {
                            0 => limit.limiter.settle(&permit, actual).unwrap(),
                            _ => limit.limiter.cancel(&permit).unwrap(),
                        }
                        starts[start].units = 0;
                    }
                }
                68..94 => limit.clock.advance(Duration::from_micros(random.scaled(2 * windows[0].1 as u64))),
                _ => {
                    let (policy, after) = rolling(random, kind);
                    limit.apply(policy);
                    windows = after;
                }
            }
        }
    });
}

/// The stamp of every unit, from the newest back, as late as these windows could have admitted it. All but `known` are
/// forgotten.
fn latest(mut stamps: Vec<u128>, known: usize, windows: &[(u64, u128)]) -> Vec<u128> {
    for j in known..stamps.len() {
        let by = |&(limit, length): &(u64, u128)| Some(stamps[j.checked_sub(limit as usize)?].saturating_sub(length));
        stamps[j] = windows.iter().filter_map(by).fold(stamps[known - 1], u128::min);
    }
    stamps
}

/// A denied start would have been one too many if all that is forgotten had happened as late as possible.
#[test]
fn a_longer_window_withholds_what_may_have_been_started_and_nothing_else() {
    on_each_store("withheld", 400, |url, seed| {
        let random = &mut Random::seeded(seed);
        let kind = random.pick(&[0, 0, 2, 3]);
        let (policy, windows) = rolling(random, kind);
        let limit = Limit::new(url, policy);
        let mut units: Vec<u128> = Vec::new();
        let capacity = |windows: &[(u64, u128)]| windows.iter().map(|w| w.0).min().unwrap();
        for _ in 0..200 {
            let weight = 1 + random.scaled(capacity(&windows) - 1);
            if let Attempt::Admitted(_) = limit.limiter.attempt("key", weight).unwrap() {
                units.splice(0..0, vec![limit.clock.now().as_micros(); weight as usize]);
            }
            limit.clock.advance(Duration::from_micros(random.scaled(windows[0].1 as u64)));
        }
        let largest = windows.iter().map(|w| w.0).max().unwrap();
        let slots = (2 * largest.max(if capacity(&windows) == 1 { 32 } else { 8 })).next_power_of_two() as usize;
        let known = slots.min(units.len());
        let mut stamps = latest(units.clone(), known, &windows);
        let (policy, after) = rolling(random, kind);
        limit.apply(policy);
        for _ in 0..200 {
            let now = limit.clock.now().as_micros();
            let weight = 1 + random.scaled(capacity(&after) - 1);
            let fits = |stamps: &[u128]| {
                let held = |length| stamps.iter().filter(|&&stamp| stamp + length > now).count() as u64;
                after.iter().all(|&(most, length)| held(length) + weight <= most)
            };
            let is_admitted = matches!(limit.limiter.attempt("key", weight).unwrap(), Attempt::Admitted(_));
            // (A server may know more.)
            let is_right = is_admitted == fits(&stamps) || is_admitted && url != "memory:";
            assert!(is_right, "{seed}: {weight} at {now}: {windows:?}, {after:?}, {url}");
            assert!(!is_admitted || fits(&units), "{seed}: too many, {url}");
            if is_admitted {
                for all in [&mut stamps, &mut units] {
                    all.splice(0..0, vec![now; weight as usize]);
                }
            }
            limit.clock.advance(Duration::from_micros(random.scaled(after[0].1 as u64 / 2)));
        }
    });
}

/// A place that is given back leaves nothing behind, however long its grace is, if nobody came after it.
#[test]
fn a_cancelled_place_is_free_at_once() {
    let test = |url: &str, text: &str| {
        let limit = Limit::at(url, text);
        let reserve = |grace| match limit.limiter.reserve("key", 1, None, grace).unwrap() {
            Reserved::Place { place, after } => (place, after),
            Reserved::Denied(after) => panic!("{text}: denied for {after:?}"),
        };
        for _ in 0..5 {
            let (place, after) = reserve(Some(5 * SECOND));
            assert_eq!(after, Duration::ZERO, "{text}");
            limit.limiter.cancel_place(&place).unwrap();
        }
        limit.start(1);
        // Two behind each other, given back in the opposite order.
        let (first, _) = reserve(Some(5 * SECOND));
        let (second, _) = reserve(Some(5 * SECOND));
        limit.limiter.cancel_place(&second).unwrap();
        limit.limiter.cancel_place(&first).unwrap();
        let next = reserve(None).1;
        assert!(next <= SECOND / 10, "{text}: {next:?}, {url}");
    };
    on_each_store("cancelled", 32, |url, i| test(url, ["10/1s burst 10", "10/1s queue 10"][i as usize % 2]));
}
