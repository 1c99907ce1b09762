//! The lines of several processes are one line: the order of those who wait, whoever is killed or stopped.

use crate::common::limits::patient;
use crate::common::{Child, Dir, Random, shared, wait_until};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::thread;
use std::time::Duration;
use workglow_limit::embed::{Joined, Line, Outcome, Waiter};
use workglow_limit::*;

pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Two lines of one limit, as two processes have them, and its slots, all taken.
pub struct Bench {
    pub clock: ManualClock,
    dir: Dir,
    pub store: Store,
    pub limiter: Arc<dyn Limiter>,
    pub lines: [Line; 3],
    pub held: Vec<RawPermit>,
}

impl Bench {
    pub fn new(name: &str, max: u64) -> Bench {
        Bench::with(name, &format!("{max} concurrent"), max)
    }

    /// The lines of a limit with this policy, after so many starts.
    pub fn with(name: &str, policy: &str, max: u64) -> Bench {
        let dir = Dir::new(name);
        let clock = ManualClock::new();
        let mut options = StoreOptions::default();
        (options.clock, options.timeout) = (Some(clock.clone()), Duration::from_secs(60));
        let store = Store::with_options(&dir.url(), options).unwrap();
        let limiter = store.limiter("api", policy).unwrap();
        limiter.open().unwrap();
        let held = (0..max).map(|_| permit_of(limiter.attempt("", 1).unwrap()).unwrap()).collect();
        let lines = std::array::from_fn(|_| Line::new(limiter.clone()));
        Bench { clock, dir, store, limiter, lines, held }
    }

    /// The same limit, as another process has it.
    pub fn elsewhere(&self) -> Arc<dyn Limiter> {
        let mut options = StoreOptions::default();
        (options.clock, options.timeout) = (Some(self.clock.clone()), Duration::from_secs(60));
        Store::with_options(&self.dir.url(), options).unwrap().find("api").unwrap()
    }

    /// Adds a waiter, a moment after the last one.
    pub fn join(&mut self, line: usize, waiter: Waiter<'_>) -> u64 {
        self.clock.advance(Duration::from_micros(1));
        match self.lines[line].join(waiter).unwrap() {
            Joined::Waiting(id) => id,
            Joined::Done(outcome) => panic!("{outcome:?}"),
        }
    }

    /// The line starts whoever it may.
    pub fn advance(&mut self, line: usize) -> Vec<u64> {
        let mut over = Vec::new();
        self.lines[line].wake(None);
        self.lines[line].advance(&mut over);
        over.into_iter()
            .map(|(id, outcome)| match outcome {
                Outcome::Admitted(permit) => {
                    self.held.push(permit);
                    id
                }
                outcome => panic!("{outcome:?}"),
            })
            .collect()
    }

    /// A job ends, and the lines look in this order until nobody starts. Returns who started.
    pub fn end(&mut self, order: [usize; 3]) -> Vec<(usize, u64)> {
        let permit = self.held.remove(0);
        self.limiter.complete(&permit).unwrap();
        let mut started = Vec::new();
        loop {
            let before = started.len();
            for line in order {
                started.extend(self.advance(line).into_iter().map(|id| (line, id)));
            }
            if started.len() == before {
                return started;
            }
        }
    }
}

impl Bench {
    /// Lets time pass, and the lines do what is due, in this order, until so many have started. Returns who, and when.
    pub fn pass_time(&mut self, order: [usize; 3], count: usize) -> Vec<(usize, u64, Duration)> {
        let (mut started, mut over) = (Vec::new(), Vec::new());
        while started.len() < count {
            self.clock.advance(ms(1));
            assert!(self.clock.now() < Duration::from_secs(600), "only these have started: {started:?}");
            for line in order {
                self.lines[line].advance(&mut over);
                let now = self.clock.now();
                started.extend(over.drain(..).map(|(id, outcome)| match outcome {
                    Outcome::Admitted(_) => (line, id, now),
                    outcome => panic!("{outcome:?}"),
                }));
            }
        }
        started
    }
}

#[test]
fn a_rate_serves_the_lines_in_the_order_of_asking_and_loses_nothing() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let mut bench = Bench::with("rates", "1/1s", 1);
        let began = bench.clock.now();
        let mut asked = Vec::new();
        for line in [0, 0, 0, 1, 2, 0, 1] {
            bench.clock.advance(ms(30));
            asked.push((line, bench.join(line, Waiter::new("", 1))));
        }
        let started = bench.pass_time(order, asked.len());
        let who: Vec<(usize, u64)> = started.iter().map(|(line, id, _)| (*line, *id)).collect();
        assert_eq!(who, asked);
        for ((_, _, at), n) in started.iter().zip(1..) {
            let due = began + Duration::from_secs(n);
            assert!((due..due + ms(25)).contains(at), "the {n}th starts at {at:?}");
        }
    }
}

#[test]
fn a_priority_counts_in_all_lines_of_a_rate() {
    let mut bench = Bench::with("urgent", "1/1s", 1);
    let asked: Vec<(usize, u64)> = (0..4).map(|_| (0, bench.join(0, Waiter::new("", 1)))).collect();
    let urgent = (1, bench.join(1, Waiter::new("", 1).priority(-5)));
    let who: Vec<(usize, u64)> = bench.pass_time([0, 2, 1], 5).into_iter().map(|(line, id, _)| (line, id)).collect();
    // The first place was taken before it asked.
    assert_eq!(who, [asked[0], urgent, asked[1], asked[2], asked[3]]);
}

#[test]
fn a_line_that_does_not_take_its_place_is_skipped() {
    let mut bench = Bench::with("no-places", "1/1s", 1);
    let first = bench.join(0, Waiter::new("", 1));
    let stopped = bench.join(0, Waiter::new("", 1));
    bench.clock.advance(ms(200));
    let next = (1, bench.join(1, Waiter::new("", 1)));
    assert_eq!(bench.pass_time([0, 0, 0], 1)[0].1, first);
    // The first line stands still from here on.
    let (line, id, at) = bench.pass_time([1, 2, 2], 1)[0];
    assert_eq!((line, id), next);
    assert!(at < Duration::from_millis(2_200), "{at:?}");
    assert_eq!(bench.pass_time([0, 1, 2], 1)[0].1, stopped);
}

/// One line has 20 waiters, the other one, and each asks again when it has started. All starts of a window may happen at the
/// same moment, so all waiters ask at the same moment. Still each has its turn, and no start is lost.
#[test]
fn one_waiter_has_its_share_of_a_rate_beside_twenty_and_no_more() {
    const ROUNDS: u64 = 10;
    for policy in ["20/1s", "1/50ms", "20/200ms"] {
        for seed in 1..4 {
            let (mut bench, mut random) = (Bench::with("rate-shares", policy, 0), Random::seeded(seed));
            let starts_at_once = bench.limiter.peek("", 1).unwrap().limit;
            assert!((0..starts_at_once).all(|_| permit_of(bench.limiter.attempt("", 1).unwrap()).is_some()));
            let (began, mut asks, mut starts) = (bench.clock.now(), [20, 1], [0; 2]);
            while starts.iter().sum::<u64>() < 21 * ROUNDS {
                let first = random.below(2) as usize;
                for line in [first, 1 - first] {
                    for _ in 0..std::mem::take(&mut asks[line]) {
                        bench.join(line, Waiter::new("", 1));
                    }
                    let mut over = Vec::new();
                    bench.lines[line].advance_one(&mut over);
                    (asks[line], starts[line]) = (over.len() as u64, starts[line] + over.len() as u64);
                }
                bench.clock.advance(Duration::from_micros(500));
            }
            let one = starts[1];
            assert!((ROUNDS - 1..=ROUNDS + 1).contains(&one), "{policy}: {starts:?}");
            let windows = (21 * ROUNDS).div_ceil(starts_at_once) as u32;
            let most = windows * bench.limiter.window("").unwrap().unwrap() * 21 / 20;
            assert!(
                bench.clock.now() - began < most,
                "{policy}: {:?} is more than {most:?}",
                bench.clock.now() - began
            );
        }
    }
}

#[test]
fn a_forecast_counts_those_who_are_shown_before() {
    let mut bench = Bench::with("forecast", "2/1s", 2);
    let seconds = |n| Some(Duration::from_secs(n));
    assert_eq!(bench.limiter.forecast(3, "").unwrap(), seconds(2));
    // The first has a place at one second, of three units; the second is shown.
    for weight in [1, 2] {
        bench.join(0, Waiter::new("", weight));
    }
    bench.join(1, Waiter::new("", 1).priority(9));
    let left = |n: u64| bench.limiter.forecast(n, "").unwrap().unwrap().as_secs_f64().round() as u64;
    assert_eq!([1, 2, 3].map(left), [2, 3, 3]);
    let each = [1, 2, 3, 4, 5].map(|n| bench.limiter.forecast(n, "").unwrap());
    assert!(each.is_sorted(), "{each:?}");
    let mut bench = Bench::new("forecast-slots", 2);
    bench.join(0, Waiter::new("", 1));
    let ended = bench.held.remove(0);
    bench.limiter.complete(&ended).unwrap();
    assert_eq!(bench.limiter.forecast(1, "").unwrap(), None, "the free one is for another");
}

/// A heavy start is first in a line that does not look any more. Its units are not free, but one is, for another.
#[test]
fn a_heavy_start_of_a_line_that_stands_still_holds_nobody_up() {
    let mut bench = Bench::new("heavy", 3);
    let heavy = bench.join(0, Waiter::new("", 3));
    let light = bench.join(1, Waiter::new("", 1));
    let ended = bench.held.remove(0);
    bench.limiter.complete(&ended).unwrap();
    assert_passed_when_it_stands_still(&mut bench, light);
    let last = bench.join(1, Waiter::new("", 1));
    assert_eq!(bench.advance(0), [], "its units are not free, but it is first again");
    bench.end([1, 0, 2]);
    assert_eq!(bench.end([1, 0, 2]), []);
    let Ok(Joined::Waiting(light)) = bench.lines[1].join(Waiter::new("", 1)) else {
        panic!("the heavy one was passed")
    };
    bench.lines[0].leave(heavy);
    assert_eq!((bench.advance(1), light > last), (vec![last, light], true));
}

#[test]
fn a_heavy_start_that_asked_at_the_same_moment_as_a_light_one_is_not_passed_either() {
    let mut bench = Bench::new("same-moment", 3);
    let [light, _heavy] = [1, 3].map(|weight| match bench.lines[0].join(Waiter::new("", weight)).unwrap() {
        Joined::Waiting(id) => id,
        Joined::Done(outcome) => panic!("{outcome:?}"),
    });
    bench.join(1, Waiter::new("", 1));
    bench.lines[0].leave(light);
    let ended = bench.held.remove(0);
    bench.limiter.complete(&ended).unwrap();
    let mut over = Vec::new();
    for _ in 0..1_000 {
        bench.clock.advance(ms(1));
        [1, 0].into_iter().for_each(|line| _ = bench.lines[line].advance(&mut over));
        assert_eq!(over, [], "its line looks, and its units are not free");
    }
}

#[test]
fn a_heavy_start_of_a_line_that_stands_still_holds_nobody_up_at_a_rate() {
    let mut bench = Bench::with("heavy-rate", "3/1m", 3);
    let asked = [(2, 1), (2, 1), (0, 3), (1, 1)].map(|(line, weight)| {
        bench.clock.advance(ms(30));
        (line, bench.join(line, Waiter::new("", weight)))
    });
    let started = bench.pass_time([0, 1, 2], 2);
    assert_eq!(started.iter().map(|&(line, id, _)| (line, id)).collect::<Vec<_>>(), asked[..2]);
    let [.., (_, heavy), (_, light)] = asked;
    // One unit is free from now on.
    assert_passed_when_it_stands_still(&mut bench, light);
    assert_eq!(bench.pass_time([1, 2, 0], 1)[0].1, heavy);
}

/// As long as the first line looks, nobody passes it. When it does not any more, the waiter of the second line starts.
fn assert_passed_when_it_stands_still(bench: &mut Bench, next: u64) {
    let mut over = Vec::new();
    for _ in 0..3_000 {
        bench.clock.advance(ms(1));
        (0..2).for_each(|line| _ = bench.lines[line].advance(&mut over));
        assert_eq!(over, []);
    }
    let stopped = bench.clock.now();
    let (line, id, at) = bench.pass_time([1, 1, 1], 1)[0];
    assert_eq!((line, id), (1, next));
    assert!(at < stopped + ms(1_000), "{:?}", at - stopped);
}

pub fn permit_of(attempt: Attempt) -> Option<RawPermit> {
    if let Attempt::Admitted(permit) = attempt { Some(permit) } else { None }
}

#[test]
fn whoever_asked_first_starts_first_whichever_line_looks() {
    let mut bench = Bench::new("first", 2);
    let asked: Vec<(usize, u64)> =
        [0, 0, 1, 0, 2, 1, 1, 0, 2].into_iter().map(|line| (line, bench.join(line, Waiter::new("", 1)))).collect();
    let mut started = Vec::new();
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]].into_iter().cycle().take(9) {
        started.extend(bench.end(order));
    }
    assert_eq!(started, asked);
    // Nobody waits any more: whoever asks starts, and others are not asked first.
    assert_eq!(bench.end([0, 1, 2]), []);
    assert!(permit_of(bench.limiter.attempt("", 1).unwrap()).is_some());
}

#[test]
fn a_priority_counts_in_all_lines_and_a_heavy_start_is_not_passed() {
    let mut bench = Bench::new("priority", 3);
    let last = bench.join(0, Waiter::new("", 1).priority(7));
    let heavy = bench.join(1, Waiter::new("", 3));
    let late = bench.join(0, Waiter::new("", 1));
    let urgent = bench.join(2, Waiter::new("", 1).priority(-1));
    assert_eq!(bench.end([0, 1, 2]), [(2, urgent)]);
    assert_eq!(bench.end([0, 1, 2]), [], "two units are still to come for the heavy one");
    assert_eq!(bench.end([0, 1, 2]), []);
    assert_eq!(bench.end([0, 1, 2]), [(1, heavy)]);
    assert_eq!(bench.end([1, 0, 2]), [(0, late), (0, last)]);
}

#[test]
fn who_leaves_or_times_out_passes_the_turn_on() {
    let mut bench = Bench::new("leaves", 1);
    let first = bench.join(0, Waiter::new("", 1));
    let hurried = bench.join(1, Waiter::new("", 1).timeout(Some(ms(5))));
    let third = bench.join(2, Waiter::new("", 1));
    let other = bench.lines[0].join(Waiter::new("other", 1));
    assert!(matches!(other, Ok(Joined::Done(Outcome::Admitted(_)))), "another key has a line of its own");
    bench.lines[0].leave(first);
    bench.clock.advance(ms(6));
    let mut over = Vec::new();
    bench.lines[1].advance(&mut over);
    assert!(matches!(over[..], [(id, Outcome::Expired(_))] if id == hurried), "{over:?}");
    assert_eq!(bench.end([0, 1, 2]), [(2, third)]);
}

#[test]
fn a_line_that_does_not_use_its_turn_is_skipped_and_comes_back_with_it() {
    let mut bench = Bench::new("skipped", 1);
    let stopped = bench.join(0, Waiter::new("", 1));
    let next = bench.join(1, Waiter::new("", 1));
    let last = bench.join(2, Waiter::new("", 1));
    let permit = bench.held.remove(0);
    bench.limiter.complete(&permit).unwrap();
    // By this clock no time passes unless it is advanced: a line that looks once sees nothing.
    assert_eq!(bench.advance(1), []);
    bench.clock.advance(Duration::from_secs(60));
    assert_eq!(bench.advance(1), [], "it may have been stopped itself");
    let mut looks = 0;
    let started = loop {
        bench.clock.advance(ms(20));
        looks += 1;
        let started = bench.advance(1);
        if !started.is_empty() {
            break started;
        }
        assert!(looks < 10, "it waits for a stopped line");
    };
    assert_eq!((started, looks), (vec![next], 2));
    assert_eq!(bench.advance(0), [], "no unit is free, but it shows itself again");
    assert_eq!(bench.end([2, 1, 0]), [(0, stopped)]);
    assert_eq!(bench.end([2, 1, 0]), [(2, last)]);
}

#[test]
fn who_asks_for_the_first_time_does_not_pass_those_who_wait() {
    let mut bench = Bench::new("asks", 1);
    let waits = bench.join(0, Waiter::new("", 1));
    let permit = bench.held.remove(0);
    bench.limiter.complete(&permit).unwrap();
    let asks = bench.join(1, Waiter::new("", 1).timeout(Some(ms(100))));
    assert_eq!(bench.advance(1), []);
    assert_eq!(bench.advance(0), [waits]);
    assert_eq!(bench.end([0, 1, 2]), [(1, asks)]);
}

/// It cannot notice whether those before it run.
#[test]
fn who_hardly_waits_takes_what_is_free_as_one_that_does_not_wait() {
    for timeout in [0, 1, 50] {
        let mut bench = Bench::new(&format!("hardly-waits-{timeout}"), 2);
        let waits = bench.join(0, Waiter::new("", 1));
        let asks = Waiter::new("", 1).timeout(Some(ms(timeout)));
        for _ in 0..2 {
            let permit = bench.held.remove(0);
            bench.limiter.complete(&permit).unwrap();
        }
        assert!(matches!(bench.lines[1].join(asks), Ok(Joined::Done(Outcome::Admitted(_)))), "{timeout}");
        let Ok(Attempt::Admitted(permit)) = embed::acquire(&*bench.limiter, asks) else { panic!("{timeout}") };
        bench.limiter.complete(&permit).unwrap();
        assert_eq!(bench.advance(0), [waits]);
    }
}

#[test]
fn what_others_want_denies_nobody_in_advance() {
    let mut bench = Bench::with("in-advance", "1/1s", 1);
    let first = bench.join(0, Waiter::new("", 1));
    let others: Vec<u64> = (0..4).map(|_| bench.join(0, Waiter::new("", 1))).collect();
    bench.clock.advance(ms(100));
    // In its turn it would start at six seconds. But all others leave.
    let late = bench.join(1, Waiter::new("", 1).timeout(Some(ms(2_200))));
    assert!(matches!(
        bench.lines[2].join(Waiter::new("", 1).timeout(Some(ms(500)))),
        Ok(Joined::Done(Outcome::Expired(_)))
    ));
    others.into_iter().for_each(|other| bench.lines[0].leave(other));
    let started: Vec<(usize, u64)> =
        bench.pass_time([0, 1, 2], 2).into_iter().map(|(line, id, _)| (line, id)).collect();
    assert_eq!(started, [(0, first), (1, late)]);
}

/// An urgent waiter of a line starts, however many lines of this key and of others there are.
#[test]
fn a_line_that_finds_no_space_in_the_table_takes_what_is_free() {
    for (lines, filled) in [(300, 0), (3, 2_300)] {
        let mut bench = Bench::new(&format!("no-space-{lines}"), 1);
        let mut all: Vec<Line> = (1..lines).map(|_| Line::new(bench.limiter.clone())).collect();
        for line in &mut all {
            bench.clock.advance(Duration::from_micros(1));
            assert!(matches!(line.join(Waiter::new("", 1)), Ok(Joined::Waiting(_))));
        }
        let mut filler = Line::new(bench.limiter.clone());
        for i in 0..filled {
            let key = format!("k{i}");
            permit_of(bench.limiter.attempt(&key, 1).unwrap()).unwrap();
            assert!(matches!(filler.join(Waiter::new(&key, 1)), Ok(Joined::Waiting(_))));
        }
        let urgent = bench.join(0, Waiter::new("", 1).priority(-9));
        assert_eq!(bench.end([0, 0, 0]), [(0, urgent)], "{lines} lines, {filled} of others");
        let permit = bench.held.remove(0);
        bench.limiter.complete(&permit).unwrap();
        let mut over = Vec::new();
        all[0].wake(None);
        all[0].advance(&mut over);
        assert!(matches!(over[..], [(_, Outcome::Admitted(_))]), "{over:?}");
    }
}

#[test]
fn who_waits_for_alternatives_starts_beside_those_who_wait_for_one() {
    let bench = Bench::new("alternatives", 1);
    let other = permit_of(bench.limiter.attempt("other", 1).unwrap()).unwrap();
    let both: Arc<dyn Limiter> = Arc::new(FirstOfLimiter::new([bench.limiter.clone()]));
    let mut bench = bench;
    let mut first = Line::new(both);
    let Joined::Waiting(waits) = first.join(Waiter::new("", 1)).unwrap() else { panic!("nothing is free") };
    bench.join(0, Waiter::new("", 1));
    bench.limiter.complete(&other).unwrap();
    let permit = bench.held.remove(0);
    bench.limiter.complete(&permit).unwrap();
    let mut over = Vec::new();
    first.wake(None);
    first.advance(&mut over);
    assert!(matches!(over[..], [(id, Outcome::Admitted(_))] if id == waits), "{over:?}");
}

/// In a child: waits for a slot, and tells when it waits and when it has started.
fn waits(url: &str, told: &[std::sync::atomic::AtomicU64]) -> Line {
    let limiter = patient(url).limiter("api", "1 concurrent").unwrap();
    let mut line = Line::new(limiter);
    assert!(matches!(line.join(Waiter::new("", 1)), Ok(Joined::Waiting(_))));
    told[0].store(1, Release);
    line
}

#[test]
fn a_killed_process_gives_its_turn_to_the_next() {
    let dir = Dir::new("killed-head");
    let limiter = patient(&dir.url()).limiter("api", "1 concurrent").unwrap();
    let held = permit_of(limiter.attempt("", 1).unwrap()).unwrap();
    let told = shared(1);
    let child = Child::run(|| {
        let _line = waits(&dir.url(), told);
        loop {
            thread::sleep(ms(1_000));
        }
    });
    wait_until("it waits", || told[0].load(Acquire) == 1);
    let next = thread::spawn({
        let limiter = limiter.clone();
        move || limiter.acquire("", 1, None).unwrap().unwrap().complete().unwrap()
    });
    drop(child);
    limiter.complete(&held).unwrap();
    next.join().unwrap();
}

#[test]
fn a_stopped_process_is_waited_for_no_longer_than_a_moment_and_has_its_turn_when_it_runs_again() {
    let dir = Dir::new("stopped-head");
    let limiter = patient(&dir.url()).limiter("api", "1 concurrent").unwrap();
    let held = permit_of(limiter.attempt("", 1).unwrap()).unwrap();
    let told = shared(2);
    let child = Child::run(|| {
        let mut line = waits(&dir.url(), told);
        crate::common::raise(libc::SIGSTOP);
        let mut over = Vec::new();
        while over.is_empty() {
            thread::sleep(line.advance(&mut over).unwrap_or_default().min(ms(1)));
        }
        told[1].store(1, Release);
    });
    child.wait_until_stopped();
    let next = thread::spawn({
        let limiter = limiter.clone();
        move || limiter.acquire("", 1, None).unwrap().unwrap()
    });
    limiter.complete(&held).unwrap();
    let permit = next.join().unwrap();
    assert_eq!(told[1].load(Acquire), 0);
    child.signal(libc::SIGCONT);
    permit.complete().unwrap();
    child.join();
    assert_eq!(told[1].load(Acquire), 1);
}

/// A stopped process waits for more than is free. One unit is.
#[test]
fn a_stopped_process_with_a_heavy_start_holds_nobody_up() {
    let dir = Dir::new("stopped-heavy");
    let limiter = patient(&dir.url()).limiter("api", "2 concurrent").unwrap();
    let _held = permit_of(limiter.attempt("", 1).unwrap()).unwrap();
    let child = Child::run(|| {
        let mut line = Line::new(patient(&dir.url()).limiter("api", "2 concurrent").unwrap());
        assert!(matches!(line.join(Waiter::new("", 2)), Ok(Joined::Waiting(_))));
        crate::common::raise(libc::SIGSTOP);
    });
    child.wait_until_stopped();
    assert!(limiter.acquire("", 1, Some(Duration::from_secs(300))).unwrap().is_some());
}

/// A process that was killed while it waited for more than is free, or for a rate: nobody waits for it.
#[test]
fn a_killed_process_holds_nobody_up_whatever_it_waited_for() {
    for (policy, weight, starts) in [("3 concurrent", 3, 1), ("3 concurrent", 1, 3), ("1/1s", 1, 1)] {
        let dir = Dir::new(&format!("killed-{}-{weight}", policy.len()));
        let limiter = patient(&dir.url()).limiter("api", policy).unwrap();
        let held: Vec<_> = (0..starts).map(|_| permit_of(limiter.attempt("", 1).unwrap()).unwrap()).collect();
        let told = shared(1);
        let child = Child::run(|| {
            let limiter = patient(&dir.url()).limiter("api", policy).unwrap();
            let mut line = Line::new(limiter);
            for _ in 0..2 {
                assert!(matches!(line.join(Waiter::new("", weight)), Ok(Joined::Waiting(_))));
            }
            told[0].store(1, Release);
            loop {
                thread::sleep(ms(1_000));
            }
        });
        wait_until("it waits", || told[0].load(Acquire) == 1);
        drop(child);
        if weight == 1 {
            held.iter().for_each(|permit| limiter.complete(permit).unwrap());
        }
        // Nobody waits who could notice that it is dead.
        wait_until("who hardly waits starts", || limiter.acquire("", 1, Some(ms(1))).unwrap().is_some());
        assert!(limiter.acquire("", 1, Some(Duration::from_secs(300))).unwrap().is_some(), "{policy}");
    }
}

/// A process that dies while it shows itself, or leaves, is in nobody's way.
#[cfg(feature = "fault-points")]
#[test]
fn a_process_that_dies_while_it_shows_itself_is_in_nobodys_way() {
    for point in ["head-taken", "head-reached", "head-hidden"] {
        let dir = Dir::new(&format!("dies-{point}"));
        let limiter = patient(&dir.url()).limiter("api", "1 concurrent").unwrap();
        let held = permit_of(limiter.attempt("", 1).unwrap()).unwrap();
        let child = Child::run(|| {
            let limiter = patient(&dir.url()).limiter("api", "1 concurrent").unwrap();
            limiter.open().unwrap();
            fault::at(point, || crate::common::raise(libc::SIGKILL));
            let mut line = Line::new(limiter);
            if let Joined::Waiting(id) = line.join(Waiter::new("", 1)).unwrap() {
                line.leave(id);
            }
        });
        assert!(child.was_killed(), "{point}");
        let next = thread::spawn({
            let limiter = limiter.clone();
            move || limiter.acquire("", 1, None).unwrap().unwrap().complete().unwrap()
        });
        limiter.complete(&held).unwrap();
        next.join().unwrap();
    }
}

/// Processes are killed and stopped while they wait, hold a slot and pass the turn: the others go on, each time.
#[test]
fn kills_and_stops_lose_no_turn() {
    let rounds = crate::common::number("ROUNDS", 12);
    let dir = Dir::new("turns-storm");
    let starts = shared(3);
    let run = |who: usize| {
        Child::run(|| {
            // More slots than a stopped process can hold.
            let limiter = patient(&dir.url()).limiter("api", "4 concurrent").unwrap();
            let work = || {
                loop {
                    let permit = limiter.acquire("", 1, None).unwrap().unwrap();
                    starts[who].fetch_add(1, AcqRel);
                    thread::sleep(ms(1));
                    permit.complete().unwrap();
                }
            };
            thread::scope(|scope| (0..3).for_each(|_| drop(scope.spawn(work))));
        })
    };
    let mut children: Vec<Child> = (0..3).map(run).collect();
    let goes_on = |who: usize, what: &str| {
        let before = starts[who].load(Acquire);
        wait_until(what, || starts[who].load(Acquire) > before + 3);
    };
    (0..3).for_each(|who| goes_on(who, "each starts"));
    for round in 0..rounds as usize {
        let [victim, other, last] = [round % 3, (round + 1) % 3, (round + 2) % 3];
        if round % 2 == 0 {
            children[victim] = run(victim); // dropping the old one kills it
        } else {
            children[victim].signal(libc::SIGSTOP);
        }
        goes_on(other, "others start");
        goes_on(last, "others start");
        children[victim].signal(libc::SIGCONT);
        goes_on(victim, "it comes back");
    }
}

/// One process has many waiters, the other one: each has its turn.
#[test]
fn a_process_with_one_waiter_does_not_pass_another_with_many() {
    const WAITERS: u64 = 12;
    let dir = Dir::new("many-and-one");
    let starts = shared(2);
    let run = |who: usize, waiters: u64| {
        Child::run(|| {
            let limiter = patient(&dir.url()).limiter("api", "1 concurrent").unwrap();
            let work = || {
                while starts.iter().map(|count| count.load(Acquire)).sum::<u64>() < 300 {
                    let permit = limiter.acquire("", 1, None).unwrap().unwrap();
                    starts[who].fetch_add(1, AcqRel);
                    thread::sleep(ms(2));
                    permit.complete().unwrap();
                }
            };
            thread::scope(|scope| (0..waiters).for_each(|_| drop(scope.spawn(work))));
        })
    };
    let children = [run(0, WAITERS), run(1, 1)];
    children.into_iter().for_each(Child::join);
    let [many, one] = [0, 1].map(|i| starts[i].load(Acquire));
    println!("{many} : {one}");
    // In order it is 12 : 1. Without it, whoever ends a job starts again, and the one has most.
    assert!(one * 3 < many && one > 0, "{many} : {one}");
}
