//! Alternatives: each start is charged to one of them, and waiters follow whichever is free first.

use crate::common::limits::*;
use crate::common::{Child, Dir, Random, Record, wait_until};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use workglow_limit::embed::{Joined, Line, Outcome, Waiter, WaiterId};
use workglow_limit::hooks::{Event, Happening};
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);

fn first_of(alternatives: impl IntoIterator<Item = Shared>) -> Arc<FirstOfLimiter> {
    Arc::new(FirstOfLimiter::new(alternatives))
}

fn taken(limiter: &dyn Limiter, key: &str) -> RawPermit {
    match limiter.attempt(key, 1).unwrap() {
        Attempt::Admitted(permit) => permit,
        Attempt::Denied(after) => panic!("denied for {after:?}"),
    }
}

fn take(limiter: &dyn Limiter, starts: u64) {
    (0..starts).for_each(|_| limiter.check_permit(&taken(limiter, "")).unwrap());
}

/// The index of the alternative that has this start.
fn chosen(limiter: &dyn Limiter, permit: &RawPermit) -> usize {
    limiter.chosen(permit).expect("an alternative has it").0
}

/// A line of a limiter, driven by a manual clock, and who started where and when.
struct Bench {
    clock: ManualClock,
    limiter: Shared,
    line: Line,
    started: Vec<(WaiterId, Duration, RawPermit)>,
    expired: Vec<(WaiterId, Duration)>,
}

impl Bench {
    fn new(clock: ManualClock, limiter: Shared) -> Bench {
        limiter.open().unwrap();
        Bench { clock, line: Line::new(limiter.clone()), limiter, started: Vec::new(), expired: Vec::new() }
    }

    fn join(&mut self, timeout: Option<Duration>) -> WaiterId {
        match self.line.join(Waiter::new("", 1).timeout(timeout)).unwrap() {
            Joined::Waiting(id) => id,
            Joined::Done(outcome) => panic!("it had to wait, not {outcome:?}"),
        }
    }

    /// Drives the line until the clock shows `end`.
    fn run(&mut self, end: Duration) {
        loop {
            let mut over = Vec::new();
            let nap = self.line.advance(&mut over);
            for (id, outcome) in over {
                match outcome {
                    Outcome::Admitted(permit) => self.started.push((id, self.clock.now(), permit)),
                    Outcome::Expired(_) => self.expired.push((id, self.clock.now())),
                    Outcome::Failed(error) => panic!("{id}: {error}"),
                }
            }
            let left = end - self.clock.now();
            if left.is_zero() {
                return;
            }
            self.clock.advance(nap.map_or(left, |nap| nap.min(left)));
        }
    }

    /// Who started at which alternative, and when.
    fn starts(&self) -> Vec<(WaiterId, usize, Duration)> {
        self.started.iter().map(|(id, at, permit)| (*id, chosen(&*self.limiter, permit), *at)).collect()
    }
}

/// Its unit is free again after 8 s. The other one's only job ends after 3 s.
#[test]
fn a_waiter_starts_where_a_job_ends() {
    for is_in_a_composite in [false, true] {
        let (clock, store) = clocked();
        let (timed, job): (Shared, Shared) = (rate(&store, "timed", 1, ms(8_000)), slots(1));
        let jobs: Shared = match is_in_a_composite {
            false => job.clone(),
            true => Arc::new(CompositeLimiter::new([job.clone(), rate(&store, "calls", 100, ms(8_000))])),
        };
        let limiter = first_of([timed.clone(), jobs]);
        let permits = [taken(&*limiter, ""), taken(&*limiter, "")];
        let mut bench = Bench::new(clock, limiter.clone());
        let waiters = [bench.join(None), bench.join(None)];
        bench.run(ms(3_000));
        assert!(bench.started.is_empty());
        limiter.complete(&permits[1]).unwrap();
        bench.run(ms(3_016));
        let [(first, 1, at)] = bench.starts()[..] else { panic!("{:?}", bench.starts()) };
        assert!(first == waiters[0] && at <= ms(3_016), "{at:?}");
        // The place at the other one serves the next waiter: the one that left took none of it along.
        bench.run(ms(8_000));
        assert_eq!(bench.starts()[1..], [(waiters[1], 0, ms(8_000))]);
        assert_eq!((timed.stats("").unwrap().admitted, job.stats("").unwrap().admitted), (2, 2));
    }
}

#[test]
fn a_waiter_whose_time_is_up_before_its_place_may_start_where_a_job_ends() {
    let (clock, store) = clocked();
    let limiter = first_of([rate(&store, "timed", 1, ms(8_000)), slots(1)]);
    let permits = [taken(&*limiter, ""), taken(&*limiter, "")];
    let mut bench = Bench::new(clock, limiter.clone());
    let waiters = [bench.join(None), bench.join(Some(ms(4_000))), bench.join(Some(ms(5_000)))];
    bench.run(ms(2_000));
    limiter.complete(&permits[1]).unwrap();
    bench.run(ms(3_000));
    limiter.complete(&bench.started[0].2).unwrap();
    bench.run(ms(8_000));
    let started: Vec<_> = bench.starts().into_iter().map(|(id, at, _)| (id, at)).collect();
    assert_eq!(started, [(waiters[0], 1), (waiters[1], 1)]);
    assert_eq!(bench.expired, [(waiters[2], ms(5_000))]);
    assert!(bench.limiter.can_proceed("").unwrap(), "the place went back");
}

#[test]
fn waiters_take_the_soonest_of_all() {
    let (clock, store) = clocked();
    let limiter = first_of([rate(&store, "a", 2, ms(1_000)), rate(&store, "b", 1, ms(400))]);
    take(&*limiter, 3);
    let mut bench = Bench::new(clock, limiter.clone());
    let waiters: Vec<_> = (0..5).map(|_| bench.join(None)).collect();
    bench.run(ms(1_300));
    let order: Vec<_> = bench.started.iter().map(|(id, ..)| *id).collect();
    assert_eq!(order, waiters, "in the order of asking");
    let starts = bench.starts();
    assert_eq!(starts.iter().map(|(_, at, _)| *at).collect::<Vec<_>>(), [1, 1, 0, 0, 1], "{starts:?}");
    assert_eq!(limiter.stats("").unwrap().admitted, 8);
    assert_eq!(limiter.stats("").unwrap().waited, 5);
}

#[test]
fn a_pause_moves_waiters_to_the_others() {
    let (clock, store) = clocked();
    let all = [rate(&store, "a", 1, ms(1_000)), rate(&store, "b", 1, ms(3_000))];
    let limiter = first_of(all.clone());
    take(&*limiter, 2);
    let mut bench = Bench::new(clock, limiter);
    let waiter = bench.join(None);
    bench.run(ms(500));
    all[0].pause(HOUR, "").unwrap();
    bench.run(ms(3_000));
    assert_eq!(bench.starts(), [(waiter, 1, ms(3_000))]);
    assert_eq!(all[0].stats("").unwrap().admitted, 1, "nothing is left there");
}

#[test]
fn threads_wait_for_either() {
    let dir = Dir::in_memory("alternatives-threads");
    let store = Store::new(&dir.url()).unwrap();
    let all: [Shared; 2] = [
        Arc::new(RateLimiter::new(&store, "hourly", 1, HOUR).unwrap()),
        Arc::new(ConcurrencyLimiter::shared(&store, "job", 1, None).unwrap()),
    ];
    let limiter = first_of(all.clone());
    take(&*limiter, 1);
    let job = taken(&*limiter, "");
    let (waits, limiter) = (Arc::new(AtomicBool::new(false)), &limiter);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            waits.store(true, Relaxed);
            limiter.acquire("", 1, None).unwrap().map(|permit| permit.chosen().unwrap().0)
        });
        wait_until("the thread waits", || waits.load(Relaxed));
        // In another process, whose end frees the slot.
        limiter.complete(&job).unwrap();
        assert_eq!(waiting.join().unwrap(), Some(1));
    });
    Child::run(|| {
        assert!(limiter.can_proceed("").unwrap());
        taken(&**limiter, "");
    })
    .join();
    assert_eq!(chosen(&**limiter, &taken(&**limiter, "")), 1, "the dead process holds nothing");
}

#[test]
fn they_nest_both_ways() {
    let (clock, store) = clocked();
    let one = |name: &str, max| rate(&store, name, max, ms(1_000));
    let global = one("global", 3);
    let azure: Shared = Arc::new(CompositeLimiter::named([("calls", one("azure", 1)), ("global", global.clone())]));
    let inner: Shared = first_of([one("openai", 1), one("anthropic", 1)]);
    // Alternatives may share a limit.
    let other: Shared = Arc::new(CompositeLimiter::named([("calls", inner.clone()), ("global", global)]));
    let any = first_of([azure, other]);
    let names: Vec<_> = (0..3)
        .map(|_| {
            let permit = taken(&*any, "");
            let (at, limiter) = any.chosen(&permit).unwrap();
            (at, limiter.name().to_owned())
        })
        .collect();
    assert_eq!(names.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0, 1, 1]);
    assert_eq!(any.peek("", 1).unwrap().denied_by.as_deref(), Some("azure"));
    clock.advance(ms(1_000));
    // A composite of alternatives.
    let both = CompositeLimiter::named([("calls", inner), ("all", one("all", 2))]);
    let permits = [taken(&both, ""), taken(&both, "")];
    both.complete(&permits[0]).unwrap();
    let of = |permit| both.chosen(permit).map(|(at, limiter)| (at, limiter.name().to_owned()));
    assert_eq!(permits.each_ref().map(of), [Some((0, "openai".into())), Some((1, "anthropic".into()))]);
    let (place, after) = place(&both, 1);
    assert_eq!(after, ms(1_000));
    clock.advance(after);
    assert!(matches!(both.present(&place).unwrap(), Presented::Started(_)));
    // Alternatives of alternatives.
    let nested = first_of([one("x", 1), first_of([one("y", 1), one("z", 1)]) as Shared]);
    let names: Vec<_> = (0..3)
        .map(|_| nested.chosen(&taken(&*nested, "")).map(|(at, limiter)| (at, limiter.name().to_owned())).unwrap())
        .collect();
    assert_eq!(names, [(0, "x".to_owned()), (1, "y".to_owned()), (1, "z".to_owned())]);
}

#[test]
fn a_limit_may_not_be_beside_alternatives_that_have_it() {
    let (_, store) = clocked();
    let (a, b) = (rate(&store, "a", 1, HOUR), rate(&store, "b", 1, HOUR));
    let any = first_of([a.clone(), b]);
    let twice = CompositeLimiter::new([any.clone() as Shared, a]);
    let error = twice.attempt("", 1).unwrap_err().to_string();
    assert!(error.contains("limit \"a\" twice"), "{error}");
    let error = any.add(Arc::new(CompositeLimiter::new([any.clone() as Shared]))).unwrap_err().to_string();
    assert!(error.contains("one that contains this one"), "{error}");
    let error = FirstOfLimiter::new([]).attempt("", 1).unwrap_err().to_string();
    assert!(error.contains("alternatives") && error.contains("at least one limiter"), "{error}");
}

#[test]
fn a_place_as_a_text() {
    let (clock, store) = clocked();
    let policy = |name: &str, calls: u64| store.limiter(name, &format!("calls: {calls}/1s + tokens: 10/1s")).unwrap();
    let any = || first_of([policy("a", 1), policy("b", 1)]);
    let (here, there) = (any(), any());
    let key = |limiter: &FirstOfLimiter| limiter.joint("tenant", &[Charge::of("tokens").weight(9)]).unwrap();
    let reserve = || match here.reserve(&key(&here), 1, None, None).unwrap() {
        Reserved::Place { place, .. } => here.to_text(&place).unwrap(),
        Reserved::Denied(after) => panic!("denied for {after:?}"),
    };
    let texts = [reserve(), reserve()];
    for (at, text) in texts.iter().enumerate() {
        let place = there.permit_from_text(text).unwrap();
        assert_eq!(chosen(&*there, &place), at, "{text}");
        let Presented::Started(permit) = there.present(&place).unwrap() else { panic!("{text} is ready") };
        assert_eq!(chosen(&*there, &permit), at);
    }
    assert!(!there.can_proceed("tenant").unwrap());
    let error = |text: &str| there.permit_from_text(text).unwrap_err();
    assert!(matches!(error("wglf1.61.1.-.61"), Error::InvalidArgument { .. }));
    assert!(matches!(error(&texts[0].replace("wglf1.61.", "wglf1.63.")), Error::ForeignPermit { .. }));
    let permit = here.attempt("other", 1).unwrap();
    let Attempt::Admitted(permit) = permit else { panic!("another tenant") };
    assert!(matches!(here.to_text(&permit).unwrap_err(), Error::Unsupported { .. }));
    clock.advance(ms(1_000));
}

#[test]
fn hooks_learn_which_limit_delays() {
    let (_, store) = clocked();
    let any = first_of([rate(&store, "a", 1, ms(2_000)), rate(&store, "b", 1, ms(1_000))]);
    let seen: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
    let here = seen.clone();
    let note = move |event: &Event| here.lock().unwrap().push((event.limit.to_string(), event.key.clone()));
    any.on(Happening::Throttled, Arc::new(note));
    let denied = (0..3).filter(|_| matches!(any.attempt("me", 1).unwrap(), Attempt::Denied(_))).count();
    assert_eq!(denied, 1);
    assert_eq!(*seen.lock().unwrap(), [("b".to_owned(), "me".to_owned())]);
}

/// Each start is charged exactly once, whoever dies: of 100,000 units, the starts that were reported are all but at most
/// one for each killed process.
#[test]
fn killed_processes_charge_one_alternative_once() {
    const UNITS: [u64; 2] = [60_000, 40_000];
    const PROCESSES: usize = 4;
    let dir = Dir::in_memory("alternatives-storm");
    let url = dir.url();
    let all = || {
        let store = Store::new(&url).unwrap();
        let rate = |name, max| -> Shared { Arc::new(RateLimiter::new(&store, name, max, ms(1_000_000)).unwrap()) };
        let jobs = ConcurrencyLimiter::shared(&store, "jobs", 2, None).unwrap();
        [rate("a", UNITS[0]), rate("b", UNITS[1]), Arc::new(jobs) as Shared]
    };
    let limits = all();
    limits.iter().for_each(|limit| limit.open().unwrap());
    let records: Vec<Record> = (0..PROCESSES).map(|_| Record::new(200_000)).collect();
    let spawn = |which: usize| {
        Child::run(|| {
            let limiter = first_of(all());
            loop {
                let Attempt::Admitted(permit) = limiter.attempt("", 1).unwrap() else { continue };
                match chosen(&*limiter, &permit) {
                    2 => limiter.complete(&permit).unwrap(),
                    at => records[which].add(0, 0, at as u64),
                }
            }
        })
    };
    let is_over = || limits[..2].iter().all(|limit| !limit.can_proceed("").unwrap());
    let mut children: Vec<Child> = (0..PROCESSES).map(spawn).collect();
    let (mut kills, mut random) = (0, Random::new());
    while !is_over() {
        std::thread::sleep(Duration::from_micros(200 + random.below(3_000)));
        // On a busy machine hardly one would live long enough.
        if kills == 200 {
            continue;
        }
        let victim = random.below(PROCESSES as u64) as usize;
        children[victim] = spawn(victim); // dropping the old one kills it
        kills += 1;
    }
    drop(children);
    let starts: Vec<u64> = records.iter().flat_map(Record::starts).map(|(_, _, at)| at).collect();
    for (at, units) in UNITS.into_iter().enumerate() {
        let here = starts.iter().filter(|start| **start == at as u64).count() as u64;
        assert!(here <= units && here + kills + PROCESSES as u64 >= units, "{here} of {units}, {kills} kills");
    }
    assert!(matches!(limits[2].attempt("", 2).unwrap(), Attempt::Admitted(_)), "the dead hold no slot");
}
