//! Waiters that are late for their place keep it within the grace that they requested.

use crate::common::limits::*;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use workglow_limit::embed::{Joined, Line, MayWait, Outcome, Pool, Seat, Step, Turn, Waiter, WaiterId, acquire};
use workglow_limit::*;

/// A place in this window has a grace of 50 ms by default.
const WINDOW: Duration = Duration::from_secs(60);

/// A limit that only counts units knows only the slice of the window in which they started, which is shorter than this.
const SLICE: Duration = ms(20);

/// How late the waiters are.
const LATE: Duration = ms(300);

const ENOUGH: Duration = ms(500);

/// A kind of limit, how many units can start in a window, all at once, and its constructor.
type Kind = (&'static str, u64, fn(&Store) -> Shared);

fn of(store: &Store, policy: &str) -> Shared {
    store.limiter(policy, policy).unwrap()
}

fn all<const N: usize>(parts: [Shared; N]) -> Shared {
    Arc::new(CompositeLimiter::new(parts))
}

const KINDS: [Kind; 8] = [
    ("rate", 1, |store| of(store, "1/1m")),
    ("two windows", 1, |store| of(store, "1/1m + 10/1h")),
    ("counted", 5_000, |store| of(store, "5000/1m")),
    ("delay", 1, |store| of(store, "delay 1m")),
    ("token bucket", 1, |store| of(store, "1/1m burst 1")),
    ("leaky bucket", 1, |store| of(store, "1/1m queue 3")),
    ("composite", 1, |store| all([of(store, "1/1m"), slots(5)])),
    ("nested", 1, |store| all([all([of(store, "100/1s"), of(store, "1/1m")]), slots(5)])),
];

/// A waiter, in a line or alone.
enum Waiting {
    AtSeat(Box<Seat>),
    InLine(Box<Line>),
}

impl Waiting {
    fn new(limiter: &Shared, waiter: Waiter, is_in_line: bool) -> Waiting {
        let mut waiting = match is_in_line {
            true => Waiting::InLine(Box::new(Line::new(limiter.clone()))),
            false => Waiting::AtSeat(Box::new(Seat::new(waiter))),
        };
        let waits = match &mut waiting {
            Waiting::InLine(line) => matches!(line.join(waiter).unwrap(), Joined::Waiting(_)),
            Waiting::AtSeat(seat) => matches!(seat.step(&**limiter).unwrap(), Step::Sleep(_)),
        };
        assert!(waits, "the limit has capacity");
        waiting
    }

    /// Does all due work. Returns the permit if the waiter starts.
    fn start(&mut self, limiter: &Shared) -> Option<RawPermit> {
        match self {
            Waiting::AtSeat(seat) => loop {
                match seat.step(&**limiter).unwrap() {
                    Step::Admitted(permit) => return Some(permit),
                    Step::Sleep(Duration::ZERO) => {}
                    Step::Sleep(_) => return None,
                    Step::Expired(after) => panic!("expired, for {after:?}"),
                }
            },
            Waiting::InLine(line) => advance(line).pop().map(|(_, outcome)| match outcome {
                Outcome::Admitted(permit) => permit,
                other => panic!("{other:?}"),
            }),
        }
    }
}

/// Does all due work, which may take more than one call.
fn advance(line: &mut Line) -> Vec<(WaiterId, Outcome)> {
    let mut over = Vec::new();
    while line.advance(&mut over) == Some(Duration::ZERO) {}
    over
}

fn fill(limiter: &dyn Limiter, units: u64) {
    assert!(matches!(limiter.attempt("", units).unwrap(), Attempt::Admitted(_)));
}

/// A caller waits with this grace, and a caller of another process behind it; and the first is driven late. Returns
/// whether it starts then, and whether with its original place.
fn starts_late((name, units, make): Kind, is_in_line: bool, grace: Duration) -> Option<bool> {
    let (clock, store) = clocked();
    let limiter = make(&store);
    fill(&*limiter, units);
    let mut waiting = Waiting::new(&limiter, Waiter::new("", units).grace(grace), is_in_line);
    place(&*limiter, units);
    clock.advance(WINDOW + LATE);
    let permit = waiting.start(&limiter)?;
    let before = SystemTime::now();
    let Some(ready) = limiter.ready_at(&permit) else { return Some(false) };
    let late = ready + LATE;
    assert!(late >= before && late <= SystemTime::now() + SLICE, "{name}: {late:?}, {before:?}");
    Some(true)
}

#[test]
fn a_late_waiter_waits_again_unless_its_grace_suffices() {
    for kind in KINDS {
        for is_in_line in [false, true] {
            let about = format!("{}, in a line: {is_in_line}", kind.0);
            // Where units are only counted, no place is kept behind a whole window's units.
            let without = if kind.0 == "counted" { Some(false) } else { None };
            assert_eq!(starts_late(kind, is_in_line, Duration::ZERO), without, "{about}");
            assert_eq!(starts_late(kind, is_in_line, ms(100)), without, "{about}");
            assert_eq!(starts_late(kind, is_in_line, ENOUGH), Some(true), "{about}");
        }
    }
}

#[test]
fn a_grace_below_the_default_has_no_effect() {
    for kind in KINDS {
        let places = [Duration::ZERO, ms(1), ms(20)].map(|grace| {
            let (_, store) = clocked();
            let limiter = (kind.2)(&store);
            fill(&*limiter, kind.1);
            let _waits = Waiting::new(&limiter, Waiter::new("", kind.1).grace(grace), true);
            place(&*limiter, kind.1).1
        });
        assert_eq!(places, [places[0]; 3], "{}", kind.0);
    }
}

#[test]
fn a_punctual_waiter_returns_its_grace() {
    // A bucket returns nothing.
    for kind in KINDS.iter().filter(|(name, ..)| !name.ends_with("bucket")) {
        let (clock, store) = clocked();
        let limiter = (kind.2)(&store);
        fill(&*limiter, kind.1);
        let mut waiting = Waiting::new(&limiter, Waiter::new("", kind.1).grace(WINDOW / 2), true);
        clock.advance(WINDOW + SLICE);
        assert!(waiting.start(&limiter).is_some(), "{}", kind.0);
        let after = limiter.peek("", 1).unwrap().retry_after;
        assert!((WINDOW..WINDOW + SLICE).contains(&after), "{}: {after:?}", kind.0);
    }
}

/// A place is taken as far ahead as its waiter may be late. A driver that is delayed just before that takes none.
#[test]
fn a_line_starts_in_time_despite_a_delayed_driver() {
    for grace in [Duration::ZERO, ENOUGH] {
        let (clock, store) = clocked();
        let limiter = of(&store, "4/1m");
        let mut line = Line::new(limiter.clone());
        fill(&*limiter, 1);
        clock.advance(ms(200));
        fill(&*limiter, 3);
        for _ in 0..4 {
            assert!(matches!(line.join(Waiter::new("", 1).grace(grace)).unwrap(), Joined::Waiting(_)));
        }
        // Only the first waiter holds a place far ahead. The others' places are taken in time.
        clock.advance(WINDOW - ms(300));
        assert_eq!(advance(&mut line), []);
        // Now the driver is delayed. Callers that arrive during this come behind the waiters that have places.
        clock.advance(ms(50));
        let others: Vec<Duration> = [(); 4].map(|()| place(&*limiter, 1).1).into();
        clock.advance(LATE);
        let over = advance(&mut line);
        let started = over.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Admitted(_))).count();
        assert_eq!(over.len(), started);
        assert_eq!(started, if grace.is_zero() { 0 } else { 4 }, "grace {grace:?}; others after {others:?}");
    }
}

#[test]
fn a_contended_limit_delivers_its_capacity_to_punctual_waiters() {
    for policy in ["10/1s", "delay 1s", "10/1s burst 10", "10/1s + 100/1m", "5000/1s"] {
        let (clock, store) = clocked();
        let limiter = of(&store, policy);
        let units = limiter.peek("", 0).unwrap().limit.div_ceil(10);
        let [plain, with_grace] = [Duration::ZERO, ENOUGH].map(|grace| {
            limiter.clear("").unwrap();
            let (mut line, mut over) = (Line::new(limiter.clone()), Vec::new());
            let began = clock.now();
            for _ in 0..100 {
                if let Joined::Done(outcome) = line.join(Waiter::new("", units).grace(grace)).unwrap() {
                    over.push((0, outcome));
                }
            }
            while let Some(nap) = line.advance(&mut over) {
                clock.advance(nap);
            }
            assert!(over.iter().all(|(_, outcome)| matches!(outcome, Outcome::Admitted(_))));
            clock.now() - began
        });
        assert_eq!(over_a_hundredth(plain, with_grace), Duration::ZERO, "{policy}: {plain:?}, {with_grace:?}");
    }
}

/// The excess of the second over the first and a hundredth of it.
fn over_a_hundredth(first: Duration, second: Duration) -> Duration {
    second.saturating_sub(first + first / 100)
}

#[test]
fn a_waiter_that_left_has_no_grace() {
    let (clock, store) = clocked();
    let limiter = of(&store, "1/1m");
    fill(&*limiter, 1);
    let mut line = Line::new(limiter.clone());
    let Joined::Waiting(id) = line.join(Waiter::new("", 1).grace(ENOUGH)).unwrap() else { panic!() };
    assert!(matches!(line.join(Waiter::new("", 1)).unwrap(), Joined::Waiting(_)));
    line.leave(id);
    // The other waiter has the place, but it is forgotten now.
    clock.advance(WINDOW / 2);
    limiter.clear("").unwrap();
    fill(&*limiter, 1);
    clock.advance(WINDOW / 2);
    assert_eq!(advance(&mut line), []);
    assert_eq!(place(&*limiter, 1).1, WINDOW / 2 + ms(50) + WINDOW);
}

#[test]
fn a_waiter_that_starts_elsewhere_may_be_late_there() {
    for (grace, may_start) in [(Duration::ZERO, false), (ENOUGH, true)] {
        let (clock, store) = clocked();
        let limiter = of(&store, "1/1m");
        fill(&*limiter, 1);
        let (mut pool, mut turns) = (Pool::new(limiter.clone(), Some(ms(50))), Vec::new());
        pool.join(Waiter::new("", 1).grace(grace)).unwrap();
        while !turns.iter().any(|(_, turn)| matches!(turn, Turn::Go(_))) {
            clock.advance(pool.advance(1, 1, &mut turns).unwrap_or_default());
        }
        let Some((_, Turn::Go(Some(text)))) = turns.pop() else { panic!("{turns:?}") };
        place(&*limiter, 1);
        clock.advance(LATE + ms(20));
        let presented = limiter.present(&limiter.permit_from_text(&text).unwrap()).unwrap();
        assert_eq!(matches!(presented, Presented::Started(_)), may_start, "{grace:?}: {presented:?}");
    }
}

#[test]
fn an_invalid_grace_is_an_error_in_all_ways_of_waiting() {
    let (_, store) = clocked();
    let long = Duration::from_secs(366 * 86_400) + Duration::from_nanos(1);
    for limiter in [of(&store, "1/1m"), slots(1), all([of(&store, "1/1h"), slots(1)])] {
        for is_full in [false, true] {
            let ask = || Waiter::new("", 1).grace(long);
            let errors = [
                acquire(&*limiter, ask()).map(drop),
                Seat::new(ask()).start_at_once(&*limiter).map(drop),
                Seat::new(ask()).step(&*limiter).map(drop),
                Line::new(limiter.clone()).join(ask()).map(drop),
                Pool::new(limiter.clone(), None).join(ask()).map(drop),
            ];
            let expected = of(&store, "1/1m").reserve("", 1, None, Some(long)).unwrap_err();
            assert!(matches!(expected, Error::InvalidArgument { parameter: "grace", .. }), "{expected}");
            assert_eq!(errors, [(); 5].map(|()| Err(expected.clone())), "full: {is_full}");
            if !is_full {
                assert!(matches!(limiter.attempt("", 1).unwrap(), Attempt::Admitted(_)), "nothing was taken");
            }
        }
    }
    let longest = Duration::from_secs(366 * 86_400);
    let waits = Seat::new(Waiter::new("", 1).grace(longest)).step(&*of(&store, "1/1m")).unwrap();
    assert!(matches!(waits, Step::Sleep(_)), "{waits:?}");
}

#[test]
fn grace_has_no_effect_without_places() {
    let limiter = slots(1);
    let Attempt::Admitted(first) = limiter.attempt("", 1).unwrap() else { panic!() };
    let mut waiting = Waiting::new(&limiter, Waiter::new("", 1).grace(ENOUGH), true);
    limiter.complete(&first).unwrap();
    let Waiting::InLine(line) = &mut waiting else { panic!() };
    line.wake(Some(""));
    assert!(waiting.start(&limiter).is_some());
}

/// On a busy machine, threads that gave late places back once also started the next waiter, long before a busy loop came to it. So 101 of 100
/// functions began in a window.
#[test]
fn a_thread_that_gives_a_late_place_back_starts_nobody() {
    let (clock, store) = clocked();
    let limiter = of(&store, "1/1m");
    fill(&*limiter, 1);
    let mut line = Line::with_wake(limiter.clone(), || ());
    let Joined::Waiting(id) = MayWait::Never.during(|| line.join(Waiter::new("", 1))).unwrap() else {
        panic!("the limit has capacity")
    };
    clock.advance(WINDOW + LATE);
    let mut over = Vec::new();
    MayWait::Never.during(|| line.advance_one(&mut over));
    assert!(over.is_empty() && line.would_wait(), "the place is too late, and a loop cannot give it back: {over:?}");
    line.advance_one(&mut over);
    assert!(over.is_empty() && !line.would_wait(), "{over:?}");
    assert_eq!(line.next_to_start(), Some(id));
    MayWait::Never.during(|| line.advance_one(&mut over));
    assert!(matches!(over[..], [(number, Outcome::Admitted(_))] if number == id), "{over:?}");
}
