//! Composites: starts in order, denials that cost other callers nothing, and children that differ, appear later and
//! race.

use crate::common::limits::*;
use crate::common::wait::Wait;
use crate::common::{self, Child, Dir, Random, most_in_any_window};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant, SystemTime};
use workglow_limit::custom::{Custom, CustomLimiter, End, Verdict};
use workglow_limit::embed::{Joined, Line, Outcome, Step, Waiter};
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);

fn taken(limiter: &dyn Limiter) -> RawPermit {
    match limiter.attempt("", 1).unwrap() {
        Attempt::Admitted(permit) => permit,
        Attempt::Denied(after) => panic!("denied for {after:?}"),
    }
}

/// The number of units that start now.
fn capacity(limiter: &dyn Limiter) -> u64 {
    std::iter::repeat_with(|| limiter.attempt("", 1).unwrap()).take_while(|a| matches!(a, Attempt::Admitted(_))).count()
        as u64
}

/// Admits every peek and denies every start, like a child for which another caller is always faster.
struct Faster;

impl Custom for Faster {
    fn name(&self) -> &str {
        "faster"
    }

    fn decide(&self, _: &str, _: u64) -> Result<Verdict> {
        Ok(Verdict::Denied(ms(7)))
    }

    fn peek(&self, _: &str, _: u64) -> Result<Verdict> {
        Ok(Verdict::Admitted(0))
    }

    fn end(&self, _: u64, _: End) -> Result<()> {
        panic!("nothing was admitted")
    }
}

/// Admits everything, and remembers how starts ended.
#[derive(Default)]
struct Diary(Arc<Mutex<Vec<(u64, End)>>>, AtomicU64);

impl Custom for Diary {
    fn name(&self) -> &str {
        "diary"
    }

    fn decide(&self, _: &str, _: u64) -> Result<Verdict> {
        Ok(Verdict::Admitted(self.1.fetch_add(1, Relaxed)))
    }

    fn peek(&self, _: &str, _: u64) -> Result<Verdict> {
        Ok(Verdict::Admitted(0))
    }

    fn end(&self, start: u64, end: End) -> Result<()> {
        self.0.lock().unwrap().push((start, end));
        Ok(())
    }
}

#[test]
fn waiters_start_in_request_order() {
    let (clock, store) = clocked();
    let children: [Shared; 5] = [
        rate(&store, "rate", 7, ms(1_000)),
        Arc::new(TokenBucketLimiter::new(&store, "bucket", 2, ms(500), 2).unwrap()),
        Arc::new(FixedWindowLimiter::new(&store, "fixed", 4, ms(700)).unwrap()),
        Arc::new(DelayLimiter::shared(&store, "delay", ms(60)).unwrap()),
        rate(&store, "slow", 3, ms(400)),
    ];
    let mut line = Line::new(Arc::new(CompositeLimiter::new(children)));
    // The first may start when it joins.
    let mut ids = Vec::new();
    for i in 0..14 {
        match line.join(Waiter::new("", 1)).unwrap() {
            Joined::Waiting(id) => ids.push(id),
            Joined::Done(Outcome::Admitted(_)) if i == 0 => {}
            Joined::Done(outcome) => panic!("{outcome:?}"),
        }
    }
    let mut over = Vec::new();
    while let Some(after) = line.advance(&mut over) {
        clock.advance(after);
    }
    assert!(over.iter().all(|(_, outcome)| matches!(outcome, Outcome::Admitted(_))), "{over:?}");
    assert_eq!(over.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids);
    assert!(clock.now() < ms(6_000), "14 starts of 2 in 500 ms, the first two at once: {:?}", clock.now());
}

#[test]
fn a_heavy_waiter_starts_in_its_turn_among_light_ones() {
    let (clock, store) = clocked();
    let limiter =
        CompositeLimiter::new([rate(&store, "a", 10, ms(1_000)), rate(&store, "b", 100, ms(60_000)), slots(50)]);
    let mut light = VecDeque::new();
    let mut heavy = Wait::new("", 10, None);
    let mut is_waiting = false;
    for turn in 0.. {
        assert!(turn < 100, "the heavy one starves");
        for _ in 0..5 {
            if let Attempt::Admitted(permit) = limiter.attempt("", 1).unwrap() {
                assert!(!is_waiting, "a light one overtakes");
                light.push_back(permit);
            }
        }
        if turn == 1 {
            is_waiting = true;
        }
        if is_waiting {
            match heavy.step(&limiter).unwrap() {
                Step::Admitted(_) => break,
                step => assert!(matches!(step, Step::Sleep(_)), "{step:?}"),
            }
        }
        clock.advance(ms(100));
    }
    assert_eq!(clock.now(), ms(1_100), "as soon as the earlier starts have left the window");
}

/// Threads are denied by the last child, which admits peeks, while others use the first. Once all denials have
/// returned, the capacity is exactly that of a plain model.
#[test]
fn ten_thousand_denials_take_nothing_from_others() {
    const LIMIT: u64 = 40;
    let (clock, store) = clocked();
    let shared = rate(&store, "shared", LIMIT, ms(1_000));
    let middle = rate(&store, "middle", 1_000, ms(1_000));
    let limiter = CompositeLimiter::new([
        shared.clone(),
        middle.clone(),
        slots(3),
        Arc::new(CustomLimiter::new(Faster).unwrap()) as Shared,
    ]);
    let mut model: VecDeque<Duration> = VecDeque::new();
    let mut random = Random::new();
    for _ in 0..100 {
        let wanted = random.below(LIMIT / 2);
        let admitted = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for i in 0..50 {
                        let weight = 1 + i % 3;
                        if let Attempt::Admitted(_) = limiter.attempt("", weight).unwrap() {
                            panic!("its last child denies");
                        }
                    }
                });
            }
            scope.spawn(|| {
                for _ in 0..wanted {
                    if let Attempt::Admitted(_) = shared.attempt("", 1).unwrap() {
                        admitted.fetch_add(1, Relaxed);
                    }
                }
            });
        });
        let now = clock.now();
        model.retain(|&start| start + ms(1_000) > now);
        model.extend(std::iter::repeat_n(now, admitted.into_inner() as usize));
        let free = LIMIT - model.len() as u64;
        assert_eq!(shared.peek("", 1).unwrap().remaining, free);
        let more = random.below(3).min(free);
        assert_eq!(
            (0..more).filter(|_| matches!(shared.attempt("", 1).unwrap(), Attempt::Admitted(_))).count(),
            more as usize
        );
        model.extend(std::iter::repeat_n(now, more as usize));
        assert_eq!(middle.peek("", 1).unwrap().remaining, 1_000);
        clock.advance(ms(random.below(200)));
    }
}

/// Denials in other processes. The starts are exactly as many as there are units.
#[test]
fn denials_in_other_processes_take_nothing_either() {
    let dir = Dir::new("composite-denials");
    let open = || rate(&patient(&dir.url()), "shared", 1_000, HOUR);
    open().open().unwrap();
    let children: Vec<Child> = (0..3)
        .map(|_| {
            Child::run(|| {
                let both = CompositeLimiter::new([open(), Arc::new(CustomLimiter::new(Faster).unwrap()) as Shared]);
                for i in 0..300 {
                    assert!(matches!(both.attempt("", 1 + i % 5).unwrap(), Attempt::Denied(_)));
                }
            })
        })
        .collect();
    let limiter = open();
    let used = (0..300).filter(|_| matches!(limiter.attempt("", 1).unwrap(), Attempt::Admitted(_))).count() as u64;
    children.into_iter().for_each(Child::join);
    assert!(used > 250, "it always had capacity: {used}");
    assert_eq!(capacity(&*limiter), 1_000 - used);
}

#[test]
fn a_denial_after_an_admitting_peek_names_the_child() {
    let store = Store::new("memory:").unwrap();
    let rate = Arc::new(RateLimiter::new(&store, "rate", 5, Duration::from_secs(3_600)).unwrap());
    let both = CompositeLimiter::new([rate.clone() as Shared, Arc::new(CustomLimiter::new(Faster).unwrap())]);
    let denial = both.decide("", 1).unwrap();
    assert!(!denial.admitted && denial.permit.is_none());
    assert_eq!((denial.retry_after, denial.suggested_after, denial.remaining), (ms(7), ms(7), 0));
    assert_eq!(denial.denied_by.as_deref(), Some("faster"));
    assert!(matches!(both.attempt("", 1).unwrap(), Attempt::Denied(after) if after == ms(7)));
    assert_eq!(rate.peek("", 1).unwrap().remaining, 5, "the claimed units are returned");
}

/// The least of what was admitted was combined with the most of what was cancelled: starts seemed to be missing.
#[test]
fn the_counts_of_a_composite_are_those_of_one_child() {
    let store = Store::new("memory:").unwrap();
    let rate = Arc::new(RateLimiter::new(&store, "rate", 9, HOUR).unwrap());
    let slots = Arc::new(ConcurrencyLimiter::new(9).unwrap());
    let both = CompositeLimiter::new([rate.clone() as Shared, slots]);
    rate.cancel(&taken(&*rate)).unwrap();
    let permits = [taken(&both), taken(&both), taken(&both)];
    both.cancel(&permits[0]).unwrap();
    let stats = both.stats("").unwrap();
    assert_eq!((stats.admitted, stats.units_granted, stats.cancelled), (3, 3, 1));
}

/// Real threads on small windows: no child's bound is ever exceeded, and every thread is served.
#[test]
fn threads_that_wait_stay_within_every_child() {
    const STARTS: usize = 15;
    let store = Store::new("memory:").unwrap();
    let delay: Shared = Arc::new(DelayLimiter::shared(&store, "delay", ms(20)).unwrap());
    let limiter = CompositeLimiter::new([rate(&store, "rate", 4, ms(100)), slots(2), delay]);
    let running = AtomicU64::new(0);
    let record = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..STARTS {
                    let a = common::now_ns();
                    let permit = limiter.acquire("", 1, None).unwrap().unwrap();
                    let a = permit.ready_at_monotonic_ns().map_or(a, |ready| a.max(ready));
                    record.lock().unwrap().push((a, common::now_ns(), 1));
                    assert!(running.fetch_add(1, SeqCst) < 2, "three at once");
                    running.fetch_sub(1, SeqCst);
                }
            });
        }
    });
    let starts = record.into_inner().unwrap();
    assert_eq!(starts.len(), 4 * STARTS);
    assert!(most_in_any_window(&starts, 100_000_000) <= 4);
    assert!(most_in_any_window(&starts, 20_000_000) <= 1);
}

#[test]
fn a_waiter_holds_no_slot_and_takes_no_place_without_one() {
    let (clock, store) = clocked();
    let (times, running) = (rate(&store, "rate", 1, ms(1_000)), slots(1));
    let limiter = CompositeLimiter::new([times.clone(), running.clone()]);
    let held = taken(&*running);
    let mut wait = Wait::new("", 1, None);
    assert!(matches!(wait.step(&limiter).unwrap(), Step::Sleep(_)));
    assert!(times.can_proceed("").unwrap());
    // Now there is a slot, but the rate makes it wait, with a place.
    running.complete(&held).unwrap();
    taken(&*times);
    assert_eq!(wait.step(&limiter).unwrap(), Step::Sleep(ms(1_000)));
    assert_eq!(times.peek("", 1).unwrap().retry_after, ms(2_025));
    assert!(running.can_proceed("").unwrap(), "the slot is not held during that time");
    // Its time comes, but the slot is taken again: it keeps its turn.
    let held = taken(&*running);
    clock.advance(ms(1_000));
    assert!(matches!(wait.step(&limiter).unwrap(), Step::Sleep(_)));
    assert!(!times.can_proceed("").unwrap(), "no other caller gets the turn");
    clock.advance(ms(500));
    running.complete(&held).unwrap();
    assert!(matches!(wait.step(&limiter).unwrap(), Step::Admitted(_)));
    assert!(!times.can_proceed("").unwrap() && !running.can_proceed("").unwrap());
}

#[test]
fn a_waiter_for_a_lease_checks_before_the_lease_ends() {
    let (clock, store) = clocked();
    let running: Shared = Arc::new(ConcurrencyLimiter::shared(&store, "leases", 1, Some(HOUR)).unwrap());
    let limiter = CompositeLimiter::new([running.clone(), rate(&store, "rate", 5, ms(1_000))]);
    let held = taken(&limiter);
    limiter.renew(&held).unwrap();
    assert!(limiter.fence(&held).is_some());
    assert_eq!(limiter.peek("", 1).unwrap().retry_after, HOUR, "if no job completes");
    let mut wait = Wait::new("", 1, Some(ms(5_000)));
    assert!(matches!(wait.step(&limiter).unwrap(), Step::Sleep(nap) if nap < ms(100)));
    let (first, _) = place(&limiter, 1);
    assert!(matches!(limiter.present(&first).unwrap(), Presented::Wait { after, .. } if after < ms(100)));
    limiter.complete(&held).unwrap();
    assert!(matches!(wait.step(&limiter).unwrap(), Step::Admitted(_)));
    limiter.pause(HOUR, "").unwrap();
    let Step::Expired(after) = Wait::new("", 1, Some(ms(5_000))).step(&limiter).unwrap() else {
        panic!("it is closed")
    };
    assert_eq!(after, HOUR);
    clock.advance(HOUR);
    assert_eq!(limiter.renew(&taken(&limiter)), Ok(()), "the lease before is over");
}

#[test]
fn abandoned_and_expired_waiters_leave_nothing_behind() {
    let (_clock, store) = clocked();
    let (a, b) = (rate(&store, "a", 1, ms(1_000)), rate(&store, "b", 1, ms(3_000)));
    let limiter = CompositeLimiter::new([a.clone(), b.clone()]);
    taken(&limiter);
    let seen = |limiter: &Shared| limiter.peek("", 1).unwrap().retry_after;
    let before = (seen(&a), seen(&b));
    assert_eq!(before, (ms(1_000), ms(3_000)));
    assert_eq!(Wait::new("", 1, Some(ms(2_000))).step(&limiter).unwrap(), Step::Expired(ms(3_000)));
    assert_eq!(limiter.reserve("", 1, Some(ms(2_999)), None).unwrap(), Reserved::Denied(ms(3_000)));
    let mut wait = Wait::new("", 1, None);
    assert_eq!(wait.step(&limiter).unwrap(), Step::Sleep(ms(3_000)));
    assert_ne!((seen(&a), seen(&b)), before);
    wait.give_up(&limiter).unwrap();
    let (place, _) = place(&limiter, 1);
    limiter.cancel(&place).unwrap();
    let too_heavy = limiter.reserve("", 2, None, None).unwrap_err();
    assert_eq!(too_heavy, Error::WeightExceedsCapacity { limit: "a".into(), weight: 2, capacity: 1 });
    assert!(Wait::new("", 2, None).step(&limiter).is_err());
    assert_eq!((seen(&a), seen(&b)), before);
}

#[test]
fn children_on_different_stores_start_at_one_moment() {
    // Each time, a busy machine has more time.
    assert!((0..4).any(|i| start_at_one_moment(ms(200) * 5_u32.pow(i))), "this machine is too busy");
}

/// Returns `false` if a window of this length was over before its state was seen.
fn start_at_one_moment(window: Duration) -> bool {
    let dir = Dir::new("composite-stores");
    let memory = Store::new("memory:").unwrap();
    let a = rate(&memory, "a", 1, window);
    let b = rate(&Store::new(&dir.url()).unwrap(), "b", 1, 2 * window);
    let limiter = CompositeLimiter::new([a.clone(), b.clone()]);
    limiter.open().unwrap();
    let began = Instant::now();
    taken(&limiter);
    let (place, after) = place(&limiter, 1);
    assert!((window < after || began.elapsed() > window) && after <= 2 * window, "{after:?}");
    let ready = limiter.ready_at(&place).unwrap();
    assert!(limiter.ready_in(&place).unwrap() <= after);
    std::thread::sleep(after);
    let (started, began) = loop {
        let began = Instant::now();
        match limiter.present(&place).unwrap() {
            Presented::Started(permit) => break (permit, began),
            Presented::Wait { after, .. } => std::thread::sleep(after),
        }
    };
    assert!(SystemTime::now() >= ready);
    assert!(limiter.ready_at(&started).is_some(), "even after it has started");
    let are_full = !a.can_proceed("").unwrap() && !b.can_proceed("").unwrap();
    limiter.cancel(&started).unwrap();
    let are_free = a.can_proceed("").unwrap() && b.can_proceed("").unwrap();
    let is_in_time = began.elapsed() < window / 2;
    assert!(are_full && are_free || !is_in_time, "{are_full} {are_free}");
    is_in_time
}

#[test]
fn permits_and_places_end_and_start_with_their_original_children() {
    let (clock, store) = clocked();
    let (old, diary) = (rate(&store, "old", 2, ms(1_000)), Diary::default());
    let ends = diary.0.clone();
    let limiter = CompositeLimiter::new([old.clone()]);
    let running = taken(&limiter);
    let (first, _) = place(&limiter, 1);
    let full = slots(1);
    let held = taken(&*full);
    limiter.add(full.clone()).unwrap();
    limiter.add(Arc::new(CustomLimiter::new(diary).unwrap())).unwrap();
    assert!(matches!(limiter.attempt("", 1).unwrap(), Attempt::Denied(_)));
    assert!(matches!(limiter.present(&first).unwrap(), Presented::Started(_)), "the slots came later");
    limiter.cancel(&running).unwrap();
    limiter.complete(&first).unwrap();
    assert_eq!(full.peek("", 1).unwrap().remaining, 0);
    assert!(ends.lock().unwrap().is_empty());
    full.complete(&held).unwrap();
    clock.advance(ms(1_000));
    let later = taken(&limiter);
    limiter.settle(&later, 1).unwrap();
    limiter.complete(&later).unwrap();
    assert_eq!(*ends.lock().unwrap(), [(0, End::Settled(1))], "once");
    assert_eq!(full.peek("", 1).unwrap().remaining, 1, "slots ignore the settled weight");
}

#[test]
fn composites_within_composites() {
    let (clock, store) = clocked();
    let (a, b) = (rate(&store, "a", 1, ms(1_000)), rate(&store, "b", 1, ms(2_000)));
    let running = slots(1);
    let inner: Shared = Arc::new(CompositeLimiter::new([a.clone(), running.clone()]));
    let outer = CompositeLimiter::new([inner.clone(), b.clone()]);
    let own = taken(&outer);
    assert_eq!(outer.decide("", 1).unwrap().denied_by.as_deref(), Some("b"));
    outer.complete(&own).unwrap();
    let (place, after) = place(&outer, 1);
    assert_eq!(after, ms(2_000));
    clock.advance(after);
    let held = taken(&*running);
    let Presented::Wait { place, after } = outer.present(&place).unwrap() else { panic!("the slot is taken") };
    running.complete(&held).unwrap();
    clock.advance(after);
    assert!(matches!(outer.present(&place).unwrap(), Presented::Started(_)));
    assert!([&a, &b, &running].iter().all(|child| !child.can_proceed("").unwrap()));
    outer.cancel(&place).unwrap();
    assert!([&a, &b, &running].iter().all(|child| child.can_proceed("").unwrap()));
}

#[test]
fn a_place_continues_elsewhere_as_a_text() {
    let (clock, store) = clocked();
    let (a, b) = (|| rate(&store, "a", 1, ms(1_000)), || rate(&store, "b", 1, ms(2_000)));
    let here = CompositeLimiter::new([a(), b(), slots(1)]);
    let running = slots(1);
    // Other composites of the same limits, in another order, one of them nested.
    let elsewhere = CompositeLimiter::new([running.clone(), b(), a()]);
    let inner: Shared = Arc::new(CompositeLimiter::new([b()]));
    let nested = CompositeLimiter::new([a(), inner]);
    let (first, key) = (taken(&here), "tenant \u{fc} (7)~");
    here.complete(&first).unwrap();
    let Reserved::Place { place, after } = here.reserve(key, 1, None, None).unwrap() else { panic!("denied") };
    assert_eq!(after, Duration::ZERO);
    let text = here.to_text(&place).unwrap();
    here.drop_place(&place);
    assert!(here.present(&place).is_err(), "it is no longer known here");
    let there = elsewhere.permit_from_text(&text).unwrap();
    assert!(matches!(elsewhere.present(&there).unwrap(), Presented::Started(_)));
    assert!([a(), b()].iter().all(|child| !child.can_proceed(key).unwrap()), "it counts for its key");
    elsewhere.cancel(&there).unwrap();
    assert!([a(), b(), running.clone()].iter().all(|child| child.can_proceed(key).unwrap()));

    // The waiting place: it is presented too early, then with the slot taken, then it starts, and never again.
    let (place, after) = self::place(&here, 1);
    assert_eq!(after, ms(2_000));
    let text = here.to_text(&place).unwrap();
    here.complete(&place).unwrap();
    let there = elsewhere.permit_from_text(&text).unwrap();
    assert_eq!(elsewhere.present(&there).unwrap(), Presented::Wait { place: there, after });
    clock.advance(after);
    let held = taken(&*running);
    assert!(matches!(elsewhere.present(&there).unwrap(), Presented::Wait { .. }));
    let text = elsewhere.to_text(&there).unwrap();
    running.complete(&held).unwrap();
    clock.advance(ms(20));
    assert!(matches!(elsewhere.present(&there).unwrap(), Presented::Started(_)));
    assert!(matches!(elsewhere.to_text(&there), Err(Error::Unsupported { .. })), "a start belongs to its process");
    let again = here.permit_from_text(&text).unwrap();
    let mut next = here.present(&again).unwrap();
    let started = clock.now();
    while let Presented::Wait { place, after } = next {
        clock.advance(after);
        next = here.present(&place).unwrap();
    }
    assert!(clock.now() - started > ms(1_900), "it is another start");

    let (place, after) = self::place(&nested, 1);
    clock.advance(after);
    let other: Shared = Arc::new(CompositeLimiter::new([b()]));
    let other = CompositeLimiter::new([other, a()]);
    let there = other.permit_from_text(&nested.to_text(&place).unwrap()).unwrap();
    assert!(matches!(other.present(&there).unwrap(), Presented::Started(_)));
}

#[test]
fn an_invalid_text_of_a_place_is_an_error() {
    let (_clock, store) = clocked();
    let limiter = CompositeLimiter::new([rate(&store, "a", 5, ms(1_000)), slots(1)]);
    let text = limiter.to_text(&place(&limiter, 1).0).unwrap();
    let (head, child) = text.split_once('(').unwrap();
    assert_eq!(head, "wglc1.1.-.");
    let child = child.strip_suffix(')').unwrap();
    for text in [
        "",
        "wglc1.",
        "wglc1.1.-.",
        "wglc1.x",
        child,
        &format!("wglc2.1.-.({child})"),
        &format!("wglc1.0.-.({child})"),
        &format!("wglc1.1.-.6({child})"),
        &format!("wglc1.1.-.ff({child})"),
        &format!("wglc1.1.-.6g({child})"),
        &format!("wglc1.1.-.({child}"),
        &format!("wglc1.1.-.({child}))"),
        &format!("wglc1.1.-.({child})x"),
        &format!("wglc1.1.-.x({child})"),
        &format!("wglc1.1.ffffffffffffffff.({child})"),
    ] {
        let error = limiter.permit_from_text(text).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { parameter: "place", .. }), "{text}: {error}");
    }
    // Two places at one limit, and one of a limit that is not a child here.
    let strangers = CompositeLimiter::new([rate(&store, "b", 5, ms(1_000))]);
    for (limiter, text) in [(&limiter, format!("{text}({child})")), (&strangers, text.clone())] {
        assert!(matches!(limiter.permit_from_text(&text), Err(Error::ForeignPermit { .. })), "{text}");
    }
    let long = "6b".repeat(1_025);
    let error = limiter.permit_from_text(&format!("wglc1.1.-.{long}({child})")).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { parameter: "key", .. }), "{error}");
}

/// Where units are only counted, a place starts once, and its start has no text.
#[test]
fn a_buckets_place_travels_and_its_start_does_not() {
    let (_clock, store) = clocked();
    let bucket = || -> Shared { Arc::new(TokenBucketLimiter::new(&store, "bucket", 5, ms(1_000), 5).unwrap()) };
    let (here, there) = (CompositeLimiter::new([bucket()]), CompositeLimiter::new([bucket()]));
    let (taken, _) = place(&here, 1);
    let copy = there.permit_from_text(&here.to_text(&taken).unwrap()).unwrap();
    let Presented::Started(start) = there.present(&copy).unwrap() else { panic!("its time has come") };
    assert!(matches!(there.to_text(&start), Err(Error::Unsupported { .. })));
    match here.present(&taken).unwrap() {
        Presented::Wait { .. } => {}
        started => panic!("it has started elsewhere: {started:?}"),
    }
}

#[test]
fn a_text_presented_concurrently_starts_once() {
    let store = Store::new("memory:").unwrap();
    let children = || [rate(&store, "a", 1_000, HOUR), rate(&store, "b", 1_000, HOUR)];
    let here = CompositeLimiter::new(children());
    let workers: Vec<_> = (0..4).map(|_| CompositeLimiter::new(children())).collect();
    for _ in 0..100 {
        let text = here.to_text(&place(&here, 1).0).unwrap();
        let (line, starts) = (Barrier::new(4), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for worker in &workers {
                scope.spawn(|| {
                    let place = worker.permit_from_text(&text).unwrap();
                    line.wait();
                    match worker.present(&place).unwrap() {
                        Presented::Started(_) => drop(starts.fetch_add(1, SeqCst)),
                        Presented::Wait { place, .. } => worker.cancel(&place).unwrap(),
                    }
                });
            }
        });
        // Two callers that were each first at one child may both have to retry, with the place of neither.
        assert!(starts.into_inner() <= 1);
    }
    let [a, b] = children();
    assert_eq!(a.peek("", 1).unwrap().remaining, b.peek("", 1).unwrap().remaining);
}

#[test]
fn a_place_presented_by_many_threads_starts_once() {
    // The clock stands still: on a busy machine, all threads may come later than the grace of a place.
    let (_clock, store) = clocked();
    let (a, b) = (rate(&store, "a", 1_000, HOUR), rate(&store, "b", 1_000, HOUR));
    let limiter = CompositeLimiter::new([a.clone(), b.clone()]);
    for _ in 0..100 {
        let (place, _) = place(&limiter, 1);
        let (line, is_started) = (Barrier::new(4), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    line.wait();
                    match limiter.present(&place).unwrap() {
                        Presented::Started(_) => assert!(!is_started.swap(true, SeqCst), "twice"),
                        Presented::Wait { place: fresh, .. } if fresh != place => limiter.cancel(&fresh).unwrap(),
                        Presented::Wait { .. } => {}
                    }
                });
            }
        });
        assert!(is_started.into_inner());
    }
    assert_eq!((a.peek("", 1).unwrap().remaining, b.peek("", 1).unwrap().remaining), (900, 900));
}

#[test]
fn used_and_foreign_places_are_errors() {
    let (_clock, store) = clocked();
    let limiter = CompositeLimiter::new([rate(&store, "a", 5, ms(1_000))]);
    let (place, _) = place(&limiter, 1);
    limiter.cancel(&place).unwrap();
    assert!(matches!(limiter.present(&place), Err(Error::InvalidArgument { parameter: "place", .. })));
    assert!(matches!(limiter.present(&taken(&limiter)), Err(Error::InvalidArgument { parameter: "place", .. })));
    let other = CompositeLimiter::new([rate(&store, "a", 5, ms(1_000))]);
    assert!(matches!(other.present(&place), Err(Error::ForeignPermit { .. })));
    assert_eq!((limiter.ready_in(&place), other.ready_at(&taken(&limiter))), (None, None));
    // A forked child has none of its parent's places.
    let (place, _) = self::place(&limiter, 1);
    Child::run(|| assert!(matches!(limiter.present(&place), Err(Error::InvalidArgument { .. })))).join();
    assert!(matches!(limiter.present(&place).unwrap(), Presented::Started(_)));
}

#[test]
fn a_parents_permit_ends_nothing_of_a_childs() {
    let slots = ConcurrencyLimiter::shared(&Store::new("memory:").unwrap(), "slots", 1, None).unwrap();
    let limiter = CompositeLimiter::new([Arc::new(slots) as Arc<dyn Limiter>]);
    let parents = taken(&limiter);
    limiter.complete(&parents).unwrap();
    Child::run(|| {
        taken(&limiter);
        // A permit of the same composite, with the number of the first permit of a table.
        limiter.complete(&parents).unwrap();
        assert!(matches!(limiter.attempt("", 1).unwrap(), Attempt::Denied(_)));
    })
    .join();
}

#[test]
fn another_policy_or_a_clear_of_one_child_moves_the_start_at_all_of_them() {
    let (clock, store) = clocked();
    let (a, b) = (rate(&store, "a", 1, ms(1_000)), rate(&store, "b", 1, ms(2_000)));
    let limiter = CompositeLimiter::new([a.clone(), b.clone()]);
    taken(&limiter);
    let (first, after) = place(&limiter, 1);
    rate(&store, "b", 1, ms(5_000)).open().unwrap();
    clock.advance(after);
    assert_eq!(limiter.present(&first).unwrap(), Presented::Wait { place: first, after: ms(3_000) });
    assert!(a.can_proceed("").unwrap(), "nothing is held here in between");
    clock.advance(ms(3_000));
    assert!(matches!(limiter.present(&first).unwrap(), Presented::Started(_)));
    limiter.complete(&first).unwrap();
    let (second, after) = place(&limiter, 1);
    b.clear("").unwrap();
    clock.advance(after);
    assert!(matches!(limiter.present(&second).unwrap(), Presented::Wait { after: Duration::ZERO, .. }));
    assert!(matches!(limiter.present(&second).unwrap(), Presented::Started(_)));
    assert!(!a.can_proceed("").unwrap() && !b.can_proceed("").unwrap());
}

#[test]
fn all_children_are_opened_at_once() {
    let store = Store::new("memory:").unwrap();
    let known = rate(&store, "known", 1, HOUR);
    let unknown: Shared = Arc::new(RateLimiter::attach(&store, "unknown").unwrap());
    let inner: Shared = Arc::new(CompositeLimiter::new([known, unknown]));
    let limiter = CompositeLimiter::new([inner]);
    assert_eq!(limiter.open(), Err(Error::UnknownLimit { name: "unknown".into(), known: vec!["known".into()] }));
    rate(&store, "unknown", 1, HOUR).open().unwrap();
    limiter.open().unwrap();
}
