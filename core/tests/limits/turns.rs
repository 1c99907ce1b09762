//! Callers start in request order, however much they ask for; and a pause by one process holds all others, whatever
//! capacity is free.

use crate::common::family::*;
use crate::common::{Child, Dir, Random, now_ns, shared, wait_until};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;
use workglow_limit::embed::{Claim, Joined, Line, Outcome, Terms, Waiter, WaiterId};
use workglow_limit::*;

/// The kinds in which waiters have turns, with a limit of four.
fn queues(store: &Store) -> Vec<Shared> {
    let declare = |name: &str, policy: Result<Policy>| store.declare(name, policy.unwrap()).unwrap();
    let composite = [
        declare("part 1", Policy::rate(4, ms(100))),
        declare("part 2", Policy::token_bucket(4, ms(100), 4)),
        declare("part 3", Policy::concurrency(100)),
    ];
    vec![
        declare("rate", Policy::rate(4, ms(100))),
        declare("sliced rate", Policy::rate(5_000, ms(100))),
        declare("token bucket", Policy::token_bucket(4, ms(100), 4)),
        declare("leaky bucket", Policy::leaky_bucket(4, ms(100), 40)),
        declare("fixed window", Policy::fixed_window(4, ms(100))),
        declare("sliding window counter", Policy::sliding_window_counter(4, ms(100))),
        Arc::new(CompositeLimiter::new(composite)),
    ]
}

/// Heavy waiters, which take the whole limit, among light ones, step by step with a manual clock.
#[test]
fn heavy_and_light_waiters_start_in_request_order() {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let store = Store::with_options("memory:", options).unwrap();
    for limiter in queues(&store) {
        let name = limiter.name().to_owned();
        let unit = limiter.peek("", 0).unwrap().limit / 4;
        let unit = if name == "leaky bucket" { 1 } else { unit };
        let mut running = Vec::new();
        while let Attempt::Admitted(permit) = limiter.attempt("", unit).unwrap() {
            running.push(permit);
        }
        // Light ones, a heavy one, light ones, a heavy one, …
        let weights: Vec<u64> = (0..8).map(|i| if i % 5 == 2 { 4 * unit } else { unit }).collect();
        let mut line = Line::new(limiter.clone());
        let join = |&weight: &u64| match line.join(Waiter::new("", weight)).unwrap() {
            Joined::Waiting(id) => id,
            Joined::Done(outcome) => panic!("{name}: {outcome:?}"),
        };
        let ids: Vec<WaiterId> = weights.iter().map(join).collect();
        let mut started = Vec::new();
        for _ in 0..200_000 {
            let mut over = Vec::new();
            line.advance(&mut over);
            for (id, outcome) in over {
                assert!(matches!(outcome, Outcome::Admitted(_)), "{name}: {outcome:?}");
                started.push(id);
            }
            if line.is_empty() {
                break;
            }
            clock.advance(us(500));
        }
        assert_eq!(started, ids, "{name}");
    }
}

/// However many wait, a waiter without a deadline never expires.
#[test]
fn a_waiter_without_a_deadline_never_expires() {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let store = Store::with_options("memory:", options).unwrap();
    for limiter in queues(&store).into_iter().filter(|limiter| limiter.name() != "leaky bucket") {
        let weight = limiter.peek("", 0).unwrap().limit;
        let mut line = Line::new(limiter.clone());
        for _ in 0..40 {
            line.join(Waiter::new("", weight)).unwrap();
        }
        for _ in 0..200_000 {
            let mut over = Vec::new();
            line.advance(&mut over);
            for (_, outcome) in over {
                let Outcome::Admitted(permit) = outcome else { panic!("{}: {outcome:?}", limiter.name()) };
                limiter.complete(&permit).unwrap();
            }
            if line.is_empty() {
                break;
            }
            clock.advance(ms(1));
        }
        assert!(line.is_empty(), "{}: {} still wait", limiter.name(), line.len());
    }
}

/// Processes that want one unit after the other, and one that wants the whole limit at once.
#[test]
fn light_waiters_never_starve_a_heavy_one() {
    const FAT: usize = 3;
    let dir = Dir::in_memory("turns");
    let count = queues(&Store::new(&dir.url()).unwrap()).len();
    for kind in 0..count {
        let done = shared(2);
        let open = || queues(&Store::new(&dir.url()).unwrap()).swap_remove(kind);
        let light = |_| {
            Child::run(|| {
                let limiter = open();
                loop {
                    if let Some(permit) = acquire_with(&*limiter, ("", 1), None, |_| ()) {
                        done[0].fetch_add(1, Relaxed);
                        limiter.complete(&permit).unwrap();
                    }
                }
            })
        };
        let _stream: Vec<Child> = (0..3).map(light).collect();
        wait_until("light ones start", || done[0].load(Relaxed) > 0);
        let fat = Child::run(|| {
            let limiter = open();
            // The whole limit; in a leaky bucket, a few turns.
            let weight = limiter.peek("", 0).unwrap().limit.min(if kind == 3 { 4 } else { u64::MAX });
            for _ in 0..FAT {
                acquire_with(&*limiter, ("", weight), None, |_| ()).expect("it has no deadline");
                done[1].fetch_add(1, Relaxed);
            }
        });
        fat.join();
        assert_eq!(done[1].load(Relaxed), FAT as u64);
    }
}

// ---- pauses ----

/// The attempts of all processes: those certainly admitted during a pause, and how many were outside.
#[test]
fn a_pause_by_one_process_holds_all_others() {
    const PAUSE: Duration = ms(60);
    for case in FAMILY {
        let dir = Dir::in_memory(&format!("pause-{}", case.name.replace(' ', "-")));
        // The moments between which the gate is certainly closed; the number of starts before, during and after it.
        let (gate, counts) = (shared(2), shared(3));
        let started = |a: u64, b: u64| {
            let [from, until] = [&gate[0], &gate[1]].map(|word| word.load(SeqCst));
            let when = match from {
                0 => 0,
                // The gate may have been closed in between, or not yet.
                _ if a < from => return,
                _ if b < until => 1,
                _ => 2,
            };
            counts[when].fetch_add(1, SeqCst);
        };
        let worker = |_| {
            Child::run(|| {
                let limiter = case.limiter(&Store::new(&dir.url()).unwrap());
                let (mut random, mut a) = (Random::new(), 0);
                loop {
                    let key = ["", "tenant"][random.below(2) as usize];
                    let permit = match random.below(3) {
                        0 => acquire_with(&*limiter, (key, 1), Some(ms(200)), |step| {
                            if step.is_none() {
                                a = now_ns();
                            }
                        }),
                        1 if limiter.has_places() => start_with_a_place(&*limiter, (key, 1), ms(200), || a = now_ns()),
                        _ => {
                            a = now_ns();
                            match limiter.attempt(key, 1).unwrap() {
                                Attempt::Admitted(permit) => Some(permit),
                                Attempt::Denied(_) => None,
                            }
                        }
                    };
                    match permit {
                        Some(permit) => {
                            started(a, now_ns());
                            limiter.complete(&permit).unwrap();
                        }
                        None => std::thread::sleep(us(100)),
                    }
                }
            })
        };
        let _workers: Vec<Child> = (0..3).map(worker).collect();
        wait_until("they start", || counts[0].load(SeqCst) > 20);
        let pausing = Child::run(|| {
            let limiter = case.limiter(&Store::new(&dir.url()).unwrap());
            limiter.open().unwrap();
            let until = now_ns() + PAUSE.as_nanos() as u64;
            limiter.pause(PAUSE, "").unwrap();
            let from = now_ns();
            gate[1].store(until, SeqCst);
            gate[0].store(from, SeqCst);
            // On an unused key, there is capacity.
            let decision = limiter.peek("unused", 1).unwrap();
            assert!(!decision.admitted || now_ns() >= until, "{}: {decision:?}", case.name);
        });
        pausing.join();
        wait_until("they start again", || counts[2].load(SeqCst) > 5);
        let [before, during, after] = [0, 1, 2].map(|i: usize| AtomicU64::load(&counts[i], SeqCst));
        assert_eq!(during, 0, "{}: {before} started before the pause, {after} after it", case.name);
    }
}

/// As many places as a limit gives, some of which are presented too late. (This is for `PLANT="no spare slot"`: each
/// exchanged place took that of a punctual waiter, and so on, until no waiter started any more.)
#[test]
fn a_late_waiter_loses_only_its_own_place() {
    for policy in ["20/2s", "delay 100ms", "20/2s + 100/20s"] {
        let clock = ManualClock::new();
        let mut options = StoreOptions::default();
        options.clock = Some(clock.clone());
        let store = Store::with_options("memory:", options).unwrap();
        let limiter = store.limiter(policy, policy).unwrap();
        let terms = Terms { most: None, grace: ms(100), ..Terms::NOW };
        let (mut random, mut started, mut lost) = (Random::new(), 0, 0);
        // When each is ready, and whether it was given only a time to come back.
        let mut places: Vec<(Duration, bool, RawPermit)> = Vec::new();
        while started < 500 && clock.now() < Duration::from_secs(200) {
            // Only those for which the log has space: others have a time, but no turn to lose.
            while places.len() < 100 {
                match limiter.claim("", 1, terms).unwrap() {
                    Claim::Started(_) => started += 1,
                    Claim::Place { place, after } => places.push((clock.now() + after, false, place)),
                    Claim::Denied { .. } | Claim::Behind { .. } | Claim::Full { .. } => break,
                }
            }
            places.sort_by_key(|(due, ..)| *due);
            let (due, has_none, place) = places.remove(0);
            clock.advance(due.saturating_sub(clock.now()));
            // Callers that check repeatedly would make all others late.
            if !has_none && random.below(50) == 0 {
                clock.advance(ms(20 + random.below(150)));
            }
            let is_late = has_none || clock.now() > due + ms(100);
            match limiter.present(&place).unwrap() {
                Presented::Started(_) => started += 1,
                Presented::Wait { place, after } => {
                    lost += u64::from(!is_late);
                    places.push((clock.now() + after, after <= ms(10), place));
                }
            }
        }
        assert_eq!(lost, 0, "{policy}: places that were on time were lost");
        assert!(started >= 500, "{policy}: {started} starts in {:?}", clock.now());
    }
}
