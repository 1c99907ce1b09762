//! Waiters for one part alone, beside joint starts that wait for it together with others.

use crate::common::Dir;
use crate::common::limits::*;
use std::collections::HashMap;
use std::time::Duration;
use workglow_limit::embed::{Joined, Line, Outcome, Waiter};
use workglow_limit::*;

/// The weights and priorities of those who wait in one loop.
type Waiters = &'static [(u64, i32)];

/// The waiters of an event loop: each asks again when it has started.
struct Loop {
    line: Line,
    limiter: Shared,
    waiting: HashMap<u64, Caller>,
}

/// Whose starts are counted together, and when it asked.
#[derive(Clone, Copy)]
struct Caller {
    of: usize,
    weight: u64,
    priority: i32,
    since: Duration,
}

#[derive(Debug, Clone, Default)]
struct Seen {
    starts: u64,
    longest: Duration,
}

impl Loop {
    fn new(limiter: Shared) -> Loop {
        Loop { line: Line::new(limiter.clone()), limiter, waiting: HashMap::new() }
    }

    fn join(&mut self, caller: Caller, charges: &[Charge], seen: &mut [Seen]) {
        let key = self.limiter.joint("", charges).unwrap();
        loop {
            match self.line.join(Waiter::new(&key, caller.weight).priority(caller.priority)).unwrap() {
                Joined::Waiting(id) => {
                    self.waiting.insert(id, caller);
                    return;
                }
                Joined::Done(Outcome::Admitted(_)) => seen[caller.of].starts += 1,
                other => panic!("{other:?}"),
            }
        }
    }
}

/// So many lines of joint starts wait in one event loop, and in each of the others these waiters for part `a` alone. Returns
/// what each joint line had in this time, and then each of the others' waiters.
fn run(limits: &str, joint: usize, loops: &[Waiters], lasts: Duration) -> (Vec<Seen>, Vec<Vec<Seen>>) {
    let dir = Dir::in_memory("beside-joint");
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let open = || Store::with_options(&dir.url(), options.clone()).unwrap();
    let text = format!("{limits} + tenant: 1000/1s");
    let tenants: Vec<String> = (0..joint).map(|i| format!("tenant-{i}")).collect();
    let tenant = |of: usize| tenants.get(of).map(|name| Charge::of("tenant").key(name));
    let llm = open().limiter("llm", &text).unwrap();
    llm.open().unwrap();
    let mut all = vec![Loop::new(llm)];
    all.extend(loops.iter().map(|_| Loop::new(open().find("llm/a").unwrap())));
    let most: usize = loops.iter().map(|waiters| waiters.len()).sum();
    let mut seen = vec![Seen::default(); joint + most];
    let caller = |of, (weight, priority)| Caller { of, weight, priority, since: Duration::ZERO };
    for of in (0..joint).chain(0..joint) {
        all[0].join(caller(of, (1, 0)), tenant(of).as_slice(), &mut seen);
    }
    let mut next = joint;
    for (at, waiters) in loops.iter().enumerate() {
        for waiter in waiters.iter() {
            all[at + 1].join(caller(next, *waiter), &[], &mut seen);
            next += 1;
        }
    }
    let (mut over, mut now) = (Vec::new(), Duration::ZERO);
    while now < lasts {
        let mut naps = Vec::new();
        for own in &mut all {
            naps.extend(own.line.advance(&mut over));
            for (id, outcome) in over.drain(..) {
                assert!(matches!(outcome, Outcome::Admitted(_)), "{outcome:?}");
                let caller = own.waiting.remove(&id).unwrap();
                let seen_by = &mut seen[caller.of];
                seen_by.starts += 1;
                seen_by.longest = seen_by.longest.max(now - caller.since);
                own.join(Caller { since: now, ..caller }, tenant(caller.of).as_slice(), &mut seen);
                naps.push(Duration::ZERO);
            }
        }
        let nap = naps.into_iter().min().unwrap().max(Duration::from_micros(1));
        now += nap;
        clock.advance(nap);
    }
    // (One that never started has waited all the time.)
    for own in &all {
        own.waiting
            .values()
            .for_each(|caller| seen[caller.of].longest = seen[caller.of].longest.max(now - caller.since));
    }
    let mut plain = seen.split_off(joint).into_iter();
    (seen, loops.iter().map(|waiters| plain.by_ref().take(waiters.len()).collect()).collect())
}

/// Waiters who asked in several processes, or several of one line, never took their turn: of 600 starts a minute, these had
/// 0 to 3 each, while every joint line had 25.
#[test]
fn waiters_of_one_part_have_their_turn_beside_joint_starts() {
    let one: Waiters = &[(1, 0)];
    let cases: [(&str, &[Waiters]); 7] = [
        ("10/1s", &[one; 5]),
        ("10/1s", &[&[(1, 0); 5]]),
        ("10/1s", &[&[(3, 0)], one]),
        ("10/1s", &[&[(1, -5)], one, one]),
        ("10/1s burst 3", &[&[(1, 0); 5], &[(1, 0); 5]]),
        ("10/1s counter", &[&[(1, 0); 5]]),
        ("10/1s fixed", &[&[(1, 0); 5]]),
    ];
    for (limit, loops) in cases {
        let (joint, plain) = run(&format!("a: {limit} + tokens: 1000/1s"), 20, loops, ms(30_000));
        let all: u64 = joint.iter().chain(plain.iter().flatten()).map(|seen| seen.starts).sum();
        let fair = all / (20 + plain.iter().flatten().count() as u64);
        let at = format!("{limit} {loops:?}, {fair} for each: {joint:?}, {plain:?}");
        assert!(plain.iter().flatten().all(|seen| 3 * seen.starts >= fair && seen.longest < ms(10_000)), "{at}");
        assert!(joint.iter().all(|seen| 3 * seen.starts >= 2 * fair), "{at}");
    }
}

/// Two lines in different processes, one of them more urgent: joint starts came, and are over.
#[test]
fn lines_take_no_far_places_when_joint_starts_are_over() {
    let dir = Dir::in_memory("joint-over");
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let open = || Store::with_options(&dir.url(), options.clone()).unwrap();
    let store = open();
    let llm = store.limiter("llm", "a: 2/1s + tokens: 1000/1s").unwrap();
    llm.open().unwrap();
    let mut joint = Line::new(llm.clone());
    let key = llm.joint("", &[Charge::of("tokens").weight(2)]).unwrap();
    for _ in 0..3 {
        joint.join(Waiter::new(&key, 1)).unwrap();
    }
    let part = store.find("llm/a").unwrap();
    let mut usual = Line::new(part);
    for _ in 0..12 {
        assert!(matches!(usual.join(Waiter::new("", 1)).unwrap(), Joined::Waiting(_)));
    }
    // Returns how many of each line have started.
    let step = |lines: &mut [&mut Line]| -> Vec<usize> {
        let mut naps = Vec::new();
        let started = lines.iter_mut().map(|line| {
            let mut over = Vec::new();
            naps.extend(line.advance(&mut over));
            over.len()
        });
        let started = started.collect();
        let nap = naps.into_iter().min().unwrap_or(ms(10)).max(Duration::from_micros(1));
        clock.advance(nap);
        started
    };
    let mut before = 0;
    while before < 4 || !joint.is_empty() {
        before += step(&mut [&mut usual, &mut joint])[0];
    }
    let mut urgent = Line::new(open().find("llm/a").unwrap());
    let Joined::Waiting(_) = urgent.join(Waiter::new("", 1).priority(-1)).unwrap() else { panic!("the limit is full") };
    let mut passed_by = 0;
    while !urgent.is_empty() {
        passed_by += step(&mut [&mut usual, &mut urgent])[0];
    }
    assert!(!usual.is_empty() && passed_by <= 2, "{passed_by} started before it");
}
