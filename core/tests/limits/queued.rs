//! Queues that are longer than a window: places far ahead start when those before them have left the window.

use crate::common::limits::*;
use crate::common::{Dir, most_in_any_window};
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::embed::{Joined, Line, Outcome, Waiter};
use workglow_limit::*;

/// In microseconds.
const WINDOW: u64 = 1_000_000;
const WINDOWS: u64 = 60;

/// What each start charges the parts, for a tenant.
type Charges = fn(&str) -> Vec<Charge<'_>>;

/// An event loop with one waiter, which asks again when it has started.
struct Loop {
    line: Line,
    limiter: Shared,
    key: String,
    units: u64,
}

impl Loop {
    fn new(limiter: Shared, charges: &[Charge]) -> Loop {
        let units = charges.iter().find(|charge| charge.part == "a").and_then(|charge| charge.weight).unwrap_or(1);
        let key = limiter.joint("", charges).unwrap().to_string();
        Loop { line: Line::new(limiter.clone()), limiter, key, units }
    }

    /// Returns how often it has started, and when it has to be advanced next.
    fn advance(&mut self) -> (u64, Option<Duration>) {
        let (mut over, mut started) = (Vec::new(), 0);
        let mut next = self.line.advance(&mut over);
        let mut outcomes: Vec<Outcome> = over.into_iter().map(|(_, outcome)| outcome).collect();
        loop {
            for outcome in outcomes.drain(..) {
                let Outcome::Admitted(permit) = outcome else { panic!("{outcome:?}") };
                self.limiter.complete(&permit).unwrap();
                started += 1;
            }
            if !self.line.is_empty() {
                return (started, next);
            }
            match self.line.join(Waiter::new(&self.key, 1)).unwrap() {
                Joined::Waiting(_) => next = Some(Duration::ZERO),
                Joined::Done(outcome) => outcomes.push(outcome),
            }
        }
    }
}

/// So many processes wait for starts like these. Returns the units of the first part that were started, and the most in any window.
fn run(make: fn(&Store) -> Shared, charges: &[Charges], processes: usize) -> (u64, u64) {
    let dir = Dir::in_memory("queued");
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let open = |i: usize| {
        let limiter = make(&Store::with_options(&dir.url(), options.clone()).unwrap());
        let tenant = format!("tenant-{i}");
        Loop::new(limiter, &charges.get(i % charges.len().max(1)).map(|of| of(&tenant)).unwrap_or_default())
    };
    let mut all: Vec<Loop> = (0..processes).map(open).collect();
    let (mut starts, mut at) = (Vec::new(), 0);
    // Starts that are not all at the same moment.
    for _ in 0..10 {
        assert!(matches!(all[0].limiter.attempt(&all[0].key, 1).unwrap(), Attempt::Admitted(_)));
        starts.push((at, at, all[0].units));
        clock.advance(Duration::from_micros(WINDOW / 10));
        at += WINDOW / 10;
    }
    while at < WINDOWS * WINDOW {
        let mut naps = Vec::new();
        for own in &mut all {
            let (started, next) = own.advance();
            starts.extend((0..started).map(|_| (at, at, own.units)));
            naps.extend(next);
        }
        let nap = naps.into_iter().min().unwrap().max(Duration::from_micros(1));
        clock.advance(nap);
        at += nap.as_micros() as u64;
    }
    (starts.iter().map(|start| start.2).sum(), most_in_any_window(&starts, WINDOW))
}

fn tenant(tenant: &str) -> Vec<Charge<'_>> {
    vec![Charge::of("tenant").key(tenant)]
}

fn alone(_: &str) -> Vec<Charge<'_>> {
    vec![Charge::of("a").weight(1)]
}

fn llm(store: &Store, limits: &str) -> Shared {
    store.limiter("llm", limits).unwrap()
}

fn first_of(one: Shared) -> Shared {
    Arc::new(FirstOfLimiter::new([one]))
}

/// Places counted on those before them to start at the end of their grace, so each window was longer by one: of 600 units, 586 were
/// used. (The last ones of a queue that is longer than the ring still do.)
#[test]
fn hardly_a_unit_is_lost_in_a_queue_that_is_longer_than_a_window() {
    type Case = (&'static str, u64, fn(&Store) -> Shared, &'static [Charges]);
    let cases: [Case; 5] = [
        ("joint", 10, |store| llm(store, "a: 10/1s + tenant: 50/1s"), &[tenant]),
        ("two windows", 10, |store| llm(store, "a: 10/1s + a: 1000/100s + tenant: 50/1s"), &[tenant]),
        ("one part with places", 10, |store| llm(store, "a: 10/1s + 90 concurrent"), &[alone]),
        ("composite", 10, |store| llm(store, "a: 10/1s + b: 500/1s"), &[]),
        ("first of", 10, |store| first_of(llm(store, "a: 10/1s + b: 500/1s")), &[]),
    ];
    let mut lost = Vec::new();
    for (name, units, make, charges) in cases {
        let (used, most) = run(make, charges, 20);
        let seen = format!("{name}: {used} units in {WINDOWS} windows, at most {most} in one");
        println!("{seen}");
        assert!(most <= units, "{seen}");
        lost.extend((1_000 * used < 990 * WINDOWS * units).then_some(seen));
    }
    assert!(lost.is_empty(), "{lost:#?}");
}
