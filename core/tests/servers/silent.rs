//! A line whose process has all units of a key asks no server until one of its own starts ends. What else lets it ask.
#![cfg(any(feature = "redis", feature = "postgres"))]

use super::line::{Fleet, MOMENT, waiter};
use crate::common::server::Server;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::embed::{Joined, Outcome, Seat, Step, Waiter};
use workglow_limit::*;

/// Lets time pass until a process starts somebody, in steps of 4 ms, and returns how many.
fn steps_until(fleet: &mut Fleet, process: usize, started: (usize, u64)) -> usize {
    let step = |_: &usize| {
        fleet.clock.advance(4 * MOMENT);
        fleet.advance(process) != [started]
    };
    (0..200).take_while(step).count()
}

/// Two processes wait for the second unit of two. The first process has the other one, and is behind the second.
fn with_a_free_unit(server: &Server) -> (Fleet, (usize, u64), (usize, u64)) {
    let mut fleet = Fleet::new(server, "2 concurrent");
    assert!(fleet.take(0, 1) && fleet.take(0, 1));
    let first = fleet.join(1, waiter());
    assert_eq!(fleet.ask(&[1]), []);
    let second = fleet.join(0, waiter());
    assert_eq!(fleet.ask(&[0]), []);
    fleet.end();
    fleet.clock.advance(16 * MOMENT);
    assert_eq!(fleet.advance(0), [], "the other process comes first");
    (fleet, (1, first), (0, second))
}

#[test]
fn a_line_behind_another_asks_while_a_unit_is_free() {
    for server in Server::each("silent-free") {
        let (mut fleet, first, second) = with_a_free_unit(&server);
        assert_eq!(fleet.ask(&[1]), [first]);
        let (process, permit) = fleet.held.pop().unwrap();
        fleet.limiters[process].complete(&permit).unwrap();
        assert!(steps_until(&mut fleet, 0, second) <= 16);
    }
}

#[test]
fn a_waiter_that_leaves_lets_the_next_line_have_the_free_unit() {
    for server in Server::each("silent-left") {
        let (mut fleet, first, second) = with_a_free_unit(&server);
        fleet.lines[1].leave(first.1);
        assert!(steps_until(&mut fleet, 0, second) <= 16);
    }
}

#[test]
fn a_silent_line_stays_known() {
    for server in Server::each("silent-known") {
        let mut fleet = Fleet::new(&server, "2 concurrent");
        assert!(fleet.take(0, 1) && fleet.take(0, 1));
        fleet.join(0, Waiter::new("key", 2));
        assert_eq!(fleet.ask(&[0]), []);
        fleet.clock.advance(149 * MOMENT);
        fleet.end();
        assert_eq!(fleet.advance(0), []);
        for _ in 0..250 {
            assert!(!fleet.take(1, 1), "who does not wait passes a heavy waiter");
            fleet.clock.advance(2 * MOMENT);
            assert_eq!(fleet.advance(0), []);
        }
    }
}

/// Hundreds of keys look less often, and remain known for as long.
#[test]
fn lines_of_many_keys_share_the_rate_of_looks_and_stay_known() {
    for server in Server::each("silent-many") {
        let mut fleet = Fleet::new(&server, "1 concurrent lease 1h");
        let mut held = Vec::new();
        for n in 0..1_280 {
            // Half of the units are this process's.
            let Attempt::Admitted(permit) = fleet.limiters[n % 2].attempt(&format!("key {n}"), 1).unwrap() else {
                panic!("denied")
            };
            held.push(permit);
        }
        for n in 0..1_280 {
            let key = format!("key {n}");
            assert!(matches!(fleet.lines[0].join(Waiter::new(&key, 1)).unwrap(), Joined::Waiting(_)));
        }
        assert!(fleet.take(1, 1));
        let first = fleet.join(0, waiter());
        assert_eq!(fleet.ask(&[0]), []);
        fleet.clock.advance(MOMENT);
        fleet.end();
        // The unit is free, and is the first one's.
        let started = (0..200).find(|_| {
            assert!(!fleet.take(2, 1), "it is passed");
            fleet.clock.advance(50 * MOMENT);
            fleet.advance(0) == [(0, first)]
        });
        assert!(started.is_some());
    }
}

#[test]
fn the_next_waiter_of_a_silent_line_is_told_of() {
    for server in Server::each("silent-next") {
        let mut fleet = Fleet::new(&server, "1 concurrent");
        assert!(fleet.take(0, 1));
        let limiter = Arc::<dyn Limiter>::clone(&fleet.limiters[0]);
        let (mut leaves, mut stays) = (Seat::new(waiter()), Seat::new(waiter()));
        let sleeps = |seat: &mut Seat| assert!(matches!(seat.step(&*limiter).unwrap(), Step::Sleep(_)));
        for _ in 0..3 {
            sleeps(&mut leaves);
            fleet.clock.advance(MOMENT);
        }
        sleeps(&mut stays);
        fleet.clock.advance(MOMENT);
        fleet.join(1, waiter());
        leaves.leave(&*limiter);
        for _ in 0..40 {
            sleeps(&mut stays);
            fleet.clock.advance(MOMENT);
        }
        fleet.end();
        assert_eq!(fleet.ask(&[1]), [], "who asked later starts first");
    }
}

#[test]
fn an_urgent_waiter_of_a_silent_line_is_told_of() {
    for server in Server::each("silent-urgent") {
        let mut fleet = Fleet::new(&server, "1 concurrent lease 1h");
        assert!(fleet.take(0, 1));
        fleet.clock.advance(Duration::from_secs(10));
        let limiter = Arc::<dyn Limiter>::clone(&fleet.limiters[0]);
        fleet.join(1, waiter());
        assert_eq!(fleet.ask(&[1]), []);
        let (mut usual, mut urgent) = (Seat::new(waiter()), Seat::new(waiter().priority(-1)));
        let sleeps = |seat: &mut Seat| assert!(matches!(seat.step(&*limiter).unwrap(), Step::Sleep(_)));
        for _ in 0..3 {
            sleeps(&mut usual);
            fleet.clock.advance(MOMENT);
        }
        for _ in 0..16 {
            sleeps(&mut urgent);
            fleet.clock.advance(2 * MOMENT);
        }
        fleet.end();
        assert_eq!(fleet.ask(&[1]), [], "the less urgent one starts first");
    }
}

/// `clear` frees units, and no start has ended.
#[test]
fn a_silent_line_hears_that_it_is_woken() {
    for server in Server::each("silent-woken") {
        let mut fleet = Fleet::new(&server, "1 concurrent");
        assert!(fleet.take(0, 1));
        let first = fleet.join(0, waiter());
        assert_eq!(fleet.ask(&[0]), []);
        fleet.limiters[0].clear("key").unwrap();
        assert_eq!(fleet.ask(&[0]), [(0, first)]);
    }
}

/// The scripts that a Redis has run.
#[cfg(feature = "redis")]
fn requests(server: &Server) -> u64 {
    let Server::Redis(server) = server else { unreachable!() };
    let info = server.info("commandstats");
    let calls = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).unwrap();
    calls.split(',').next().unwrap().parse().unwrap()
}

/// The next waiter of a line that starts many is not known for a moment. So the line behind it seemed to be the first one again and
/// again, and asked as often as that one.
#[cfg(feature = "redis")]
#[test]
fn the_second_line_asks_seldom_while_the_first_one_starts_many() {
    for server in Server::each("silent-second").filter(|server| server.kind() == "redis") {
        let mut fleet = Fleet::new(&server, "1 concurrent");
        for process in [0; 20].into_iter().chain([1]) {
            match fleet.lines[process].join(waiter()).unwrap() {
                Joined::Waiting(_) => {}
                Joined::Done(Outcome::Admitted(permit)) => fleet.held.push((process, permit)),
                Joined::Done(outcome) => panic!("{outcome:?}"),
            }
            fleet.clock.advance(MOMENT);
        }
        let (before, mut starts, mut left) = (requests(&server), [0; 2], 20);
        while starts[1] < 4 {
            fleet.clock.advance(MOMENT);
            left -= 1;
            if left == 0 {
                let (process, _) = fleet.held[0];
                fleet.end();
                fleet.join(process, waiter());
            }
            for process in [0, 1] {
                for (process, _) in fleet.advance(process) {
                    (starts[process], left) = (starts[process] + 1, 20);
                }
            }
        }
        let (asked, [others, own]) = (requests(&server) - before, starts);
        assert!((others + own) * 6 > asked, "{asked} requests for {others} and {own} starts");
        assert!((18 * own..=22 * own).contains(&others), "{others} and {own} starts");
    }
}

/// It took the time of a long job for that of the next one, and a unit stayed free.
#[test]
fn the_second_line_finds_a_unit_soon_though_the_last_job_was_long() {
    for server in Server::each("silent-long") {
        let mut fleet = Fleet::new(&server, "1 concurrent");
        assert!(fleet.take(0, 1));
        let stays = fleet.join(1, waiter());
        for _ in 0..150 {
            fleet.clock.advance(4 * MOMENT);
            assert_eq!(fleet.advance(1), []);
        }
        fleet.end();
        steps_until(&mut fleet, 1, (1, stays));
        fleet.end();
        assert!(fleet.take(0, 1));
        let (first, second) = (fleet.join(0, waiter()), fleet.join(1, waiter()));
        fleet.end();
        assert_eq!(fleet.ask(&[0]), [(0, first)]);
        fleet.end();
        assert!(steps_until(&mut fleet, 1, (1, second)) <= 1);
    }
}

/// It was told of when the line asked the next time.
#[test]
fn an_urgent_waiter_of_the_second_line_is_told_of_when_it_joins() {
    for server in Server::each("silent-second-urgent") {
        let mut fleet = Fleet::new(&server, "1 concurrent");
        assert!(fleet.take(2, 1));
        fleet.join(0, waiter());
        fleet.join(1, waiter());
        assert_eq!(fleet.ask(&[0, 1]), []);
        let Joined::Waiting(urgent) = fleet.lines[1].join(waiter().priority(-1)).unwrap() else {
            panic!("it does not wait")
        };
        fleet.end();
        assert_eq!(fleet.ask(&[0]), [], "the less urgent one starts first");
        assert_eq!(fleet.ask(&[1]), [(1, urgent)]);
    }
}

/// With some dozen keys, the bell of a line's key seemed to ring whenever it was looked at: what a server keeps has no lasting place
/// in the process.
#[cfg(feature = "redis")]
#[test]
fn lines_of_some_dozen_keys_are_silent() {
    for server in Server::each("silent-dozen").filter(|server| server.kind() == "redis") {
        let mut fleet = Fleet::new(&server, "1 concurrent");
        let keys: Vec<String> = (0..64).map(|n| format!("key {n}")).collect();
        for key in &keys {
            assert!(matches!(fleet.limiters[0].attempt(key, 1).unwrap(), Attempt::Admitted(_)));
        }
        for key in &keys {
            assert!(matches!(fleet.lines[0].join(Waiter::new(key, 1)).unwrap(), Joined::Waiting(_)));
        }
        assert_eq!(fleet.ask(&[0]), []);
        let before = requests(&server);
        for _ in 0..5 {
            fleet.clock.advance(16 * MOMENT);
            assert_eq!(fleet.advance(0), []);
        }
        assert_eq!(requests(&server) - before, 0, "nothing has ended");
    }
}
