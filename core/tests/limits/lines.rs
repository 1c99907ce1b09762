//! Lines of waiters: waiters for the same limit and key start in order, and none of them polls.

use crate::common::{Child, Dir, Record, most_in_any_window, now_ns};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use workglow_limit::custom::{Custom, CustomLimiter, End, Verdict};
use workglow_limit::embed::{Joined, Line, MayWait, Outcome, Pool, Seat, Step, Turn, Waiter, WaiterId, acquire};
use workglow_limit::*;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A line of a limiter with this policy, driven by a manual clock.
struct Bench {
    clock: ManualClock,
    store: Store,
    limiter: Arc<dyn Limiter>,
    line: Line,
    /// The started waiters with their times, in order; and the expired ones, with the reported waits.
    started: Vec<(WaiterId, Duration)>,
    expired: Vec<(WaiterId, Duration)>,
    calls: u64,
}

impl Bench {
    fn new(policy: &str) -> Bench {
        let clock = ManualClock::new();
        let mut options = StoreOptions::default();
        options.clock = Some(clock.clone());
        let store = Store::with_options("memory:", options).unwrap();
        let limiter = store.limiter("api", policy).unwrap();
        limiter.open().unwrap();
        let line = Line::new(limiter.clone());
        Bench { clock, store, limiter, line, started: Vec::new(), expired: Vec::new(), calls: 0 }
    }

    fn join(&mut self, waiter: Waiter<'_>) -> Option<WaiterId> {
        let id = match self.line.join(waiter).unwrap() {
            Joined::Waiting(id) => id,
            Joined::Done(_) => return None,
        };
        // Other tests of this process may hold the structure lock for long.
        while self.line.would_wait() {
            self.advance();
        }
        let has_started = self.started.pop_if(|(last, _)| *last == id).is_some();
        (!has_started).then_some(id)
    }

    /// Adds this many waiters of weight 1. Returns those that have to wait.
    fn join_many(&mut self, count: usize) -> Vec<WaiterId> {
        (0..count).filter_map(|_| self.join(Waiter::new("", 1))).collect()
    }

    fn advance(&mut self) -> Option<Duration> {
        let mut over = Vec::new();
        let nap = self.line.advance(&mut over);
        self.calls += 1;
        for (id, outcome) in over {
            match outcome {
                Outcome::Admitted(_) => self.started.push((id, self.clock.now())),
                Outcome::Expired(after) => self.expired.push((id, after)),
                Outcome::Failed(error) => panic!("{id}: {error}"),
            }
        }
        nap
    }

    /// Drives the line, always in time, until no one waits or the clock shows `end`.
    fn run(&mut self, end: Duration) {
        while let Some(nap) = self.advance()
            && self.clock.now() + nap <= end
        {
            self.clock.advance(nap);
        }
    }

    /// Drives the line once per `pause`.
    fn run_every(&mut self, pause: Duration, end: Duration) {
        while self.clock.now() < end {
            self.clock.advance(pause);
            self.advance();
        }
    }

    fn order(&self) -> Vec<WaiterId> {
        self.started.iter().map(|(id, _)| *id).collect()
    }
}

const LONG: Duration = Duration::from_secs(10_000);

#[test]
fn waiters_start_in_request_order_without_polling() {
    // The number of bursts in which a window's starts come.
    for (policy, of_a_window, bursts) in [("10/100ms", 10, 1), ("100/1s", 100, 1), ("delay 10ms", 1, 1)] {
        for count in [300, 10_000] {
            let mut bench = Bench::new(policy);
            let ids = bench.join_many(count);
            bench.run(LONG);
            assert_eq!(bench.order(), ids, "{policy}, {count}");
            let windows = count as u64 / of_a_window + 1;
            // One call starts a burst, one takes its places, and four per second check whether they can start sooner.
            let most = 2 * bursts * windows + 4 * bench.clock.now().as_secs() + 10;
            assert!(bench.calls <= most, "{policy}, {count}: {} calls, at most {most} are needed", bench.calls);
        }
    }
}

#[test]
fn lower_priorities_start_first_and_equal_ones_in_order() {
    for count in [300, 10_000] {
        let mut bench = Bench::new("10/100ms");
        bench.join_many(10);
        let mut ids: Vec<(i32, WaiterId)> = (0..count)
            .map(|i: i32| {
                let priority = i.wrapping_mul(7_919) % 5 - 2;
                (priority, bench.join(Waiter::new("", 1).priority(priority)).unwrap())
            })
            .collect();
        ids.sort_unstable();
        bench.run(LONG);
        let ids: Vec<WaiterId> = ids.into_iter().map(|(_, id)| id).collect();
        assert_eq!(bench.order(), ids, "{count}");
    }
}

#[test]
fn a_heavy_waiter_starts_in_its_turn() {
    let mut bench = Bench::new("10/100ms");
    bench.join_many(10);
    let ids: Vec<WaiterId> =
        (0..100).map(|i| bench.join(Waiter::new("", if i % 7 == 3 { 10 } else { 1 })).unwrap()).collect();
    bench.run(LONG);
    assert_eq!(bench.order(), ids);
}

#[test]
fn keys_have_lines_of_their_own() {
    let mut bench = Bench::new("1/1s");
    for key in 0..1_000 {
        let key = format!("{key}");
        assert!(bench.join(Waiter::new(&key, 1)).is_none());
        bench.join(Waiter::new(&key, 1)).unwrap();
        bench.join(Waiter::new(&key, 1)).unwrap();
    }
    bench.run(Duration::from_millis(1_500));
    assert_eq!(bench.started.len(), 1_000);
    bench.run(LONG);
    assert_eq!((bench.started.len(), bench.line.len()), (2_000, 0));
}

/// The number of calls of [`Line::advance`] in a second in which waiters of this many keys wait for a completion.
fn checks_per_second(keys: usize) -> u64 {
    let mut bench = Bench::new("1 concurrent");
    for key in 0..keys {
        let key = format!("{key}");
        assert!(bench.join(Waiter::new(&key, 1)).is_none());
        bench.join(Waiter::new(&key, 1)).unwrap();
    }
    // Joining asks more often.
    bench.run(bench.clock.now() + 2 * ms(1_000));
    let before = bench.calls;
    bench.run(bench.clock.now() + ms(1_000));
    assert_eq!(bench.line.len(), keys);
    bench.calls - before
}

/// Each key was checked every 16 ms once: with 10,000 keys, that took most of a processor.
#[test]
fn a_line_checks_many_keys_no_more_often_than_some() {
    let checks = checks_per_second(1);
    assert!((50..=125).contains(&checks), "one key: {checks}");
    let checks = checks_per_second(3_200);
    assert!((10_000..=40_000).contains(&checks), "3,200 keys: {checks}");
}

#[test]
fn a_permanently_contended_limit_delivers_its_capacity() {
    let limits =
        [("100/1s", 100), ("10/100ms", 100), ("100/1s burst 100", 100), ("delay 20ms", 50), ("5000/1s", 5_000)];
    for (policy, per_second) in limits {
        let mut bench = Bench::new(policy);
        let seconds = if per_second > 1_000 { 10 } else { 60 };
        bench.join_many((per_second * seconds + 8_000) as usize);
        let from = bench.clock.now();
        // In slices, the last starts may come a little later.
        bench.run(from + Duration::from_secs(seconds) + ms(10));
        let (started, most) = (bench.started.len() as u64, per_second * seconds);
        assert!(started * 100 >= most * 99, "{policy}: {started} of {most}");
    }
}

/// Each place is requested at another moment, from which its time is reported. These moments differ more than the
/// places do.
#[test]
fn places_start_in_the_order_in_which_they_were_taken() {
    let store = Store::new("memory:").unwrap();
    let limiter = store.limiter("calls", "200/300ms").unwrap();
    let mut line = Line::new(limiter.clone());
    let mut tickets = Vec::new();
    for _ in 0..2_000 {
        match line.join(Waiter::new("", 1)).unwrap() {
            Joined::Done(Outcome::Admitted(permit)) => tickets.push(limiter.to_text(&permit).unwrap()),
            other => assert!(matches!(other, Joined::Waiting(_)), "{other:?}"),
        }
    }
    let mut over = Vec::new();
    while let Some(nap) = line.advance(&mut over) {
        std::thread::sleep(nap);
    }
    for (_, outcome) in over {
        let Outcome::Admitted(permit) = outcome else { panic!("{outcome:?}") };
        tickets.push(limiter.to_text(&permit).unwrap());
    }
    // The fourth word of the text.
    let tickets = tickets.iter().map(|text| u64::from_str_radix(text.split('.').nth(3).unwrap(), 16).unwrap());
    assert!(tickets.is_sorted());
}

#[test]
fn a_driver_that_runs_every_60_ms_starts_all_waiters() {
    for (policy, per_second) in [("100/1s", 100), ("1000/1s", 1_000), ("100/1s burst 100", 100)] {
        let mut bench = Bench::new(policy);
        bench.join_many(per_second * 100);
        bench.run_every(ms(60), Duration::from_secs(60));
        let (started, most) = (per_second * 100 - bench.line.len(), per_second * 60);
        assert!(started * 100 >= most * 95, "{policy}: {started} of {most}");
        assert!(bench.order().is_sorted(), "{policy}: out of order");
    }
}

/// A late event loop gives places back, which may require waiting. That happens elsewhere, and nothing is lost.
#[test]
fn a_late_nonblocking_driver_gets_the_full_capacity() {
    for (policy, per_second) in [("100/1s", 100), ("5000/1s", 5_000), ("100/1s burst 100", 100)] {
        let started = [MayWait::UntilTimeout, MayWait::Never].map(|may_wait| {
            let mut bench = Bench::new(policy);
            bench.join_many(per_second * 8);
            let end = Duration::from_secs(7);
            let mut calls = 0;
            while bench.clock.now() < end {
                let nap = may_wait.during(|| bench.advance());
                let nap = if bench.line.would_wait() { bench.advance() } else { nap };
                let Some(nap) = nap else { break };
                // (On a slow machine, a pass that takes too long stops, and continues in the next call at once.)
                calls += u32::from(!nap.is_zero());
                // Beyond any grace.
                let late = if calls % 5 == 0 && !nap.is_zero() && bench.clock.now() < Duration::from_secs(4) {
                    ms(60)
                } else {
                    ms(0)
                };
                bench.clock.advance(nap + late);
            }
            bench.started.len()
        });
        let [others, this] = started;
        assert!(this * 100 >= others * 99, "{policy}: {this}, but {others}");
    }
}

#[test]
fn a_leaving_waiters_place_goes_to_the_next() {
    let mut bench = Bench::new("1/1s");
    bench.join_many(1);
    let ids = bench.join_many(5);
    for &id in &ids[..4] {
        bench.line.leave(id);
        bench.line.leave(id);
    }
    bench.run(LONG);
    assert_eq!(bench.started, [(ids[4], ms(1_000))]);
    let last = bench.join_many(1);
    bench.line.leave(last[0]);
    assert_eq!(bench.line.next(), None);
    assert!(bench.limiter.peek("", 1).unwrap().retry_after < ms(1_500), "its place was given back");
}

#[test]
fn a_dropped_line_returns_its_places() {
    let mut bench = Bench::new("10/1s");
    bench.join_many(10 + 30);
    bench.clock.advance(ms(990));
    bench.advance();
    drop(std::mem::replace(&mut bench.line, Line::new(bench.limiter.clone())));
    bench.clock.advance(ms(10));
    let admitted = (0..20).filter(|_| matches!(bench.limiter.attempt("", 1).unwrap(), Attempt::Admitted(_))).count();
    assert_eq!(admitted, 10);
}

#[test]
fn a_waiter_that_cannot_start_in_time_expires_at_once() {
    let mut bench = Bench::new("10/1s");
    bench.join_many(10 + 35);
    // Three windows' worth of waiters, and five more.
    let mut ask = |timeout| bench.line.join(Waiter::new("", 1).timeout(Some(timeout))).unwrap();
    let Joined::Done(Outcome::Expired(after)) = ask(ms(3_900)) else { panic!("it waits") };
    assert!(after >= ms(3_900) && after <= ms(4_200), "{after:?}");
    assert!(matches!(ask(ms(4_200)), Joined::Waiting(_)));
}

#[test]
fn every_pass_checks_the_deadlines() {
    let mut bench = Bench::new("10/1s");
    bench.join_many(10);
    let patient = bench.join_many(1);
    let hasty: Vec<WaiterId> =
        (0..9).map(|_| bench.join(Waiter::new("", 1).timeout(Some(ms(1_005)))).unwrap()).collect();
    // The driver comes so late that even waiters whose place was in time have waited too long.
    bench.limiter.pause(ms(3_000), "").unwrap();
    bench.run(ms(2_000));
    assert_eq!(bench.expired.iter().map(|(id, _)| *id).collect::<Vec<_>>(), hasty);
    bench.run(LONG);
    assert_eq!(bench.started, [(patient[0], ms(3_000))]);
}

#[test]
fn a_gate_holds_the_line() {
    let mut bench = Bench::new("10/1s");
    bench.join_many(10 + 20);
    bench.limiter.pause(ms(5_000), "").unwrap();
    bench.run(LONG);
    assert_eq!(bench.started.len(), 20);
    assert_eq!(bench.started[0].1, ms(5_000));
    assert!(bench.order().is_sorted());
}

#[test]
fn a_raised_limit_is_used_at_once() {
    let mut bench = Bench::new("1/10m");
    bench.join_many(1 + 50);
    bench.run(ms(2_000));
    assert_eq!(bench.started.len(), 0);
    bench.store.override_limit("api", "100/10m", None).unwrap();
    bench.run(ms(3_000));
    assert_eq!(bench.started.len(), 50);
    assert!(bench.order().is_sorted());
}

#[test]
fn a_lowered_limit_applies_to_existing_waiters() {
    let mut bench = Bench::new("100/1s");
    bench.join_many(100 + 300);
    bench.run(ms(990));
    bench.store.override_limit("api", "10/1s", None).unwrap();
    bench.run(LONG);
    let times: Vec<(u64, u64, u64)> =
        bench.started.iter().map(|(_, at)| (at.as_nanos() as u64, at.as_nanos() as u64, 1)).collect();
    assert_eq!(times.len(), 300);
    assert_eq!(most_in_any_window(&times, 1_000_000_000), 10);
    assert!(bench.order().is_sorted());
}

#[test]
fn a_clear_starts_the_waiters() {
    let mut bench = Bench::new("1/10m");
    bench.join_many(1 + 1);
    bench.run(ms(500));
    bench.limiter.clear("").unwrap();
    bench.run(ms(1_000));
    assert_eq!(bench.started.len(), 1);
}

#[test]
fn a_completion_starts_the_next_waiter_and_only_the_first_one_checks() {
    let mut bench = Bench::new("2 concurrent");
    let Attempt::Admitted(one) = bench.limiter.attempt("k", 1).unwrap() else { panic!() };
    let Attempt::Admitted(_two) = bench.limiter.attempt("k", 1).unwrap() else { panic!() };
    let ids: Vec<WaiterId> = (0..1_000).map(|_| bench.join(Waiter::new("k", 1)).unwrap()).collect();
    bench.advance();
    assert!(bench.line.next().unwrap() > Duration::ZERO);
    bench.limiter.complete(&one).unwrap();
    bench.line.wake(Some("k"));
    assert_eq!(bench.line.next(), Some(Duration::ZERO));
    let mut over = Vec::new();
    bench.line.advance(&mut over);
    let [(id, Outcome::Admitted(permit))] = over[..] else { panic!("{over:?}") };
    assert_eq!(id, ids[0]);
    // No other process completes: the line checks again now and then.
    let before = bench.calls;
    bench.run(bench.clock.now() + Duration::from_secs(1));
    assert!(bench.calls - before < 150, "{} checks in a second", bench.calls - before);
    bench.limiter.complete(&permit).unwrap();
    bench.run(bench.clock.now() + ms(20));
    assert_eq!(bench.order(), ids[1..2], "the line notices without a notification");
}

#[test]
fn a_waiter_with_a_place_waits_for_that_place() {
    let mut bench = Bench::new("1/1s");
    bench.join_many(1);
    let Reserved::Place { place, .. } = bench.limiter.reserve("", 1, None, None).unwrap() else { panic!() };
    let own = bench.join(Waiter::with_place(place).timeout(Some(ms(2_000)))).unwrap();
    let Reserved::Place { place, .. } = bench.limiter.reserve("", 1, None, None).unwrap() else { panic!() };
    let expired = bench.line.join(Waiter::with_place(place).timeout(Some(ms(500)))).unwrap();
    assert!(matches!(expired, Joined::Done(Outcome::Expired(_))), "{expired:?}");
    bench.run(LONG);
    assert_eq!(bench.started, [(own, ms(1_000))]);
}

#[test]
fn invalid_waiters_are_refused_without_effect_on_others() {
    let mut bench = Bench::new("10/1s");
    bench.join_many(10 + 3);
    let long = "k".repeat(2_000);
    assert!(matches!(bench.line.join(Waiter::new("", 0)), Err(Error::InvalidArgument { .. })));
    assert!(matches!(bench.line.join(Waiter::new("", 11)), Err(Error::WeightExceedsCapacity { .. })));
    assert!(matches!(bench.line.join(Waiter::new(&long, 1)), Err(Error::InvalidArgument { .. })));
    assert_eq!(bench.line.len(), 3);
    bench.run(LONG);
    assert_eq!(bench.started.len(), 3);
}

#[test]
fn a_leaky_buckets_queue_is_full_at_its_size() {
    let mut bench = Bench::new("10/1s queue 5");
    assert!(bench.join(Waiter::new("", 1)).is_none());
    let ids = bench.join_many(5);
    assert_eq!(ids.len(), 5);
    let sent_away = bench.line.join(Waiter::new("", 1)).unwrap();
    assert!(matches!(sent_away, Joined::Done(Outcome::Expired(_))), "{sent_away:?}");
    bench.run(LONG);
    assert_eq!(bench.order(), ids);
}

/// However many places are assigned, there is a time for one more, and each of them leads to a start.
#[test]
fn a_place_is_assigned_however_many_are_open() {
    for policy in ["10/1s", "delay 100ms", "10000/1s", "10/1s burst 5", "10/1s + 20/10s"] {
        let Bench { clock, limiter, .. } = Bench::new(policy);
        let weight = limiter.peek("", 0).unwrap().limit.div_ceil(10);
        let mut places: Vec<(Duration, RawPermit)> = Vec::new();
        for i in 0..60 {
            match limiter.reserve("", weight, None, None).unwrap() {
                Reserved::Place { place, after } => places.push((clock.now() + after, place)),
                Reserved::Denied(after) => panic!("{policy}: place {i} is denied for {after:?}"),
            }
        }
        let mut started = 0;
        while !places.is_empty() && clock.now() < Duration::from_secs(3_000) {
            places.sort_by_key(|(at, _)| *at);
            let (at, place) = places.remove(0);
            clock.advance(at.saturating_sub(clock.now()));
            match limiter.present(&place).unwrap() {
                Presented::Started(_) => started += 1,
                Presented::Wait { place, after } => places.push((clock.now() + after.max(ms(1)), place)),
            }
        }
        assert_eq!(started, 60, "{policy}");
    }
}

#[test]
fn a_place_returned_by_another_process_is_found() {
    let mut bench = Bench::new("1/1h");
    bench.join_many(2);
    let Reserved::Place { place, .. } = bench.limiter.reserve("", 1, None, None).unwrap() else { panic!() };
    let last = bench.join_many(1);
    bench.limiter.cancel_place(&place).unwrap();
    bench.run(LONG);
    assert_eq!(bench.started.last().map(|(id, _)| *id), Some(last[0]));
    assert!(bench.clock.now() <= Duration::from_secs(2 * 3_600 + 1), "{:?}", bench.started);
}

#[test]
fn a_forked_child_finds_its_line_empty() {
    let mut bench = Bench::new("1/1s");
    bench.join_many(1 + 3);
    Child::run(|| {
        assert!(bench.line.is_empty() && bench.line.next().is_none());
        assert!(bench.line.advance(&mut Vec::new()).is_none());
    })
    .join();
    assert_eq!(bench.line.len(), 3);
}

/// Taking a place takes longer than its grace, as with a commit on a slow disk: each claim moves the clock.
#[test]
#[cfg(feature = "fault-points")]
fn a_place_that_is_late_on_arrival_is_not_exchanged_for_ever() {
    fn slow_claims(clock: &ManualClock, left: u32) {
        assert!(left > 0, "it keeps claiming");
        let clock = clock.clone();
        fault::at("log-claimed", move || {
            clock.advance(ms(100));
            slow_claims(&clock, left - 1);
        });
    }
    Child::run(|| {
        let Bench { clock, limiter, .. } = Bench::new("1/1s");
        let Attempt::Admitted(_) = limiter.attempt("", 1).unwrap() else { panic!() };
        let Reserved::Place { place, after } = limiter.reserve("", 1, None, None).unwrap() else { panic!() };
        clock.advance(after + ms(500));
        slow_claims(&clock, 20);
        let Presented::Wait { place, after } = limiter.present(&place).unwrap() else { panic!("it was late") };
        assert!(after.is_zero());
        assert!(matches!(limiter.present(&place).unwrap(), Presented::Started(_)));
        // A thread that waits, and whose place is late too.
        let waits = std::thread::spawn({
            let limiter = limiter.clone();
            move || acquire(&*limiter, Waiter::new("", 1).timeout(Some(Duration::from_secs(60)))).unwrap()
        });
        while !waits.is_finished() {
            clock.advance(ms(70));
            std::thread::sleep(ms(1));
        }
        assert!(matches!(waits.join().unwrap(), Attempt::Admitted(_)));
    })
    .join();
}

#[test]
fn threads_start_by_priority_and_then_request_order() {
    let Bench { clock, limiter, .. } = Bench::new("5/100ms");
    while let Attempt::Admitted(_) = limiter.attempt("", 1).unwrap() {}
    let mut seats: Vec<(usize, Seat)> =
        (0..100).map(|i| (i, Seat::new(Waiter::new("", 1).priority(if i % 2 == 0 { 1 } else { 0 })))).collect();
    for (i, seat) in &mut seats {
        assert!(matches!(seat.step(&*limiter).unwrap(), Step::Sleep(_)), "{i}");
    }
    let mut started = Vec::new();
    for _ in 0..10_000 {
        seats.retain_mut(|(i, seat)| match seat.step(&*limiter).unwrap() {
            Step::Admitted(_) => {
                started.push((clock.now(), *i));
                false
            }
            Step::Sleep(_) => true,
            Step::Expired(_) => panic!("it has no deadline"),
        });
        if seats.is_empty() {
            break;
        }
        clock.advance(ms(5));
    }
    // Starts at the same moment may come in any order.
    started.sort_unstable_by_key(|(at, i)| (*at, 1 - i % 2, *i));
    let order: Vec<usize> = started.iter().map(|(_, i)| *i).collect();
    let expected: Vec<usize> = (0..100).filter(|i| i % 2 == 1).chain((0..100).filter(|i| i % 2 == 0)).collect();
    assert_eq!(order, expected);
}

#[test]
fn all_of_many_waiting_threads_start() {
    let Bench { clock, limiter, .. } = Bench::new("20/100ms");
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..200).map(|_| scope.spawn(|| acquire(&*limiter, Waiter::new("", 1)).unwrap())).collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            clock.advance(ms(1));
            std::thread::sleep(Duration::from_micros(200));
        }
    });
    assert_eq!(limiter.stats("").unwrap().admitted, 200);
}

#[test]
fn an_abandoned_seat_passes_its_place_on() {
    let Bench { clock, limiter, .. } = Bench::new("1/1s");
    let Attempt::Admitted(_) = limiter.attempt("", 1).unwrap() else { panic!() };
    let [mut first, mut second] = [0, 1].map(|_| Seat::new(Waiter::new("", 1)));
    for seat in [&mut first, &mut second] {
        assert!(matches!(seat.step(&*limiter).unwrap(), Step::Sleep(_)));
    }
    first.leave(&*limiter);
    clock.advance(ms(1_000));
    assert!(matches!(second.step(&*limiter).unwrap(), Step::Admitted(_)));
    assert!(matches!(first.step(&*limiter).unwrap(), Step::Expired(_)), "it is over");
}

#[test]
fn a_line_of_a_composite_waits_for_all_its_limits() {
    let mut bench = Bench::new("10/1s + 3 concurrent");
    let mut running = Vec::new();
    let mut order = Vec::new();
    for _ in 0..40 {
        match bench.line.join(Waiter::new("", 1)).unwrap() {
            Joined::Done(Outcome::Admitted(permit)) => running.push((bench.clock.now(), permit)),
            Joined::Done(outcome) => panic!("{outcome:?}"),
            Joined::Waiting(_) => {}
        }
    }
    let mut starts: Vec<u64> = vec![0; running.len()];
    while bench.clock.now() < Duration::from_secs(60) && !bench.line.is_empty() {
        let mut over = Vec::new();
        bench.line.advance(&mut over);
        for (id, outcome) in over {
            let Outcome::Admitted(permit) = outcome else { panic!("{outcome:?}") };
            order.push(id);
            starts.push(bench.clock.now().as_nanos() as u64);
            running.push((bench.clock.now(), permit));
        }
        assert!(running.len() <= 3);
        bench.clock.advance(ms(5));
        // Jobs take 100 ms.
        running.retain(|(since, permit)| {
            let runs = bench.clock.now() < *since + ms(100);
            if !runs {
                bench.limiter.complete(permit).unwrap();
                bench.line.wake(None);
            }
            runs
        });
    }
    assert!(bench.line.is_empty() && order.is_sorted(), "{} wait, {order:?}", bench.line.len());
    let starts: Vec<_> = starts.into_iter().map(|at| (at, at, 1)).collect();
    assert!(most_in_any_window(&starts, 1_000_000_000) <= 10);
}

/// Each has its own line, by the system's clock.
#[test]
fn two_processes_with_a_line_each_stay_within_the_limit() {
    const LIMIT: u64 = 20;
    let dir = Dir::in_memory("lines");
    let records = [Record::new(10_000), Record::new(10_000)];
    let children: Vec<Child> = records
        .iter()
        .map(|record| {
            Child::run(|| {
                let store = Store::new(&dir.url()).unwrap();
                let limiter = store.limiter("api", "20/100ms").unwrap();
                let mut line = Line::new(limiter.clone());
                let end = now_ns() + 1_500_000_000;
                let mut over = Vec::new();
                while now_ns() < end {
                    let begun = now_ns();
                    while line.len() < 40 {
                        let a = now_ns();
                        if let Joined::Done(outcome) = line.join(Waiter::new("", 1)).unwrap() {
                            let Outcome::Admitted(_) = outcome else { panic!("{outcome:?}") };
                            record.add(a, now_ns(), 1);
                        }
                    }
                    line.advance(&mut over);
                    let b = now_ns();
                    for (id, outcome) in over.drain(..) {
                        assert!(matches!(outcome, Outcome::Admitted(_)), "{id}: {outcome:?}");
                        record.add(begun, b, 1);
                    }
                    std::thread::sleep(line.next().unwrap().min(ms(20)));
                }
            })
        })
        .collect();
    children.into_iter().for_each(Child::join);
    let counts: Vec<usize> = records.iter().map(|record| record.starts().len()).collect();
    let starts: Vec<_> = records.iter().flat_map(Record::starts).collect();
    assert_eq!(most_in_any_window(&starts, 100_000_000).saturating_sub(LIMIT), 0, "over the limit: {counts:?}");
    assert!(counts.iter().all(|count| *count > 0), "one of them never started: {counts:?}");
}

/// A waiter behind others takes a place even if the limit has free units. The place is ready when it is taken, not
/// before.
#[test]
fn a_place_on_a_free_limit_is_ready_now() {
    for policy in ["20/1s", "5000/1s", "20/1s burst 20", "20/1s fixed"] {
        let mut bench = Bench::new(policy);
        let most = if policy.starts_with('5') { 5_000 } else { 20 };
        assert_eq!(bench.join_many(most + 1).len(), 1, "{policy}");
        bench.clock.advance(ms(5_000));
        assert_eq!(bench.join_many(10).len(), 10, "{policy}: one is ahead of them");
        let mut over = Vec::new();
        while bench.line.advance(&mut over).is_some() {
            bench.clock.advance(ms(1));
        }
        for (_, outcome) in over {
            let Outcome::Admitted(permit) = outcome else { panic!("{policy}: {outcome:?}") };
            let came = bench.limiter.ready_at(&permit);
            let hour_ago = std::time::SystemTime::now() - Duration::from_secs(3_600);
            assert!(came.is_none_or(|came| came > hour_ago), "{policy}: {came:?}");
        }
    }
}

/// Always requires waiting, and counts the requests.
struct Busy(Arc<AtomicUsize>);

impl Custom for Busy {
    fn name(&self) -> &str {
        "busy"
    }

    fn decide(&self, _key: &str, _weight: u64) -> Result<Verdict, Error> {
        self.0.fetch_add(1, SeqCst);
        Err(Error::WouldWait)
    }

    fn peek(&self, key: &str, weight: u64) -> Result<Verdict, Error> {
        self.decide(key, weight)
    }

    fn end(&self, _start: u64, _end: End) -> Result<(), Error> {
        Ok(())
    }
}

/// Asking again at once would be futile and would take all of the loop's time.
#[test]
fn a_key_that_would_block_is_asked_once_per_call() {
    let asked = Arc::new(AtomicUsize::new(0));
    let mut line = Line::new(Arc::new(CustomLimiter::new(Busy(asked.clone())).unwrap()));
    for key in ["a", "b", "c"] {
        let _ = MayWait::Never.during(|| line.join(Waiter::new(key, 1)));
    }
    assert_eq!(line.len(), 3);
    let mut whole_calls = 0;
    while whole_calls < 3 {
        asked.store(0, SeqCst);
        MayWait::Never.during(|| line.advance(&mut Vec::new()));
        // A call on a stalled machine ends before it has asked for all of them.
        let times = asked.load(SeqCst);
        assert!(times <= 3, "asked {times} times");
        whole_calls += usize::from(times == 3);
        assert!(line.would_wait());
    }
}

/// Takes longer to answer than a pass may last, once it is open.
struct Slow(Arc<AtomicBool>);

impl Custom for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    fn decide(&self, _key: &str, _weight: u64) -> Result<Verdict, Error> {
        if !self.0.load(SeqCst) {
            return Ok(Verdict::Denied(ms(1)));
        }
        std::thread::sleep(ms(5));
        Ok(Verdict::Admitted(0))
    }

    fn peek(&self, key: &str, weight: u64) -> Result<Verdict, Error> {
        self.decide(key, weight)
    }

    fn end(&self, _start: u64, _end: End) -> Result<(), Error> {
        Ok(())
    }
}

/// By a real clock, a call returns to its loop after some milliseconds, and the next call goes on where it ended.
#[test]
fn a_call_that_takes_long_leaves_the_rest_to_the_next() {
    let is_open = Arc::new(AtomicBool::new(false));
    let limiter: Arc<dyn Limiter> = Arc::new(CustomLimiter::new(Slow(is_open.clone())).unwrap());
    let (mut line, mut pool) = (Line::new(limiter.clone()), Pool::new(limiter, None));
    let in_line: Vec<_> = (0..20).map(|_| line.join(Waiter::new("", 1)).unwrap()).collect();
    let in_pool: Vec<_> = (0..20).map(|_| pool.join(Waiter::new("", 1)).unwrap()).collect();
    is_open.store(true, SeqCst);
    let mut over = Vec::new();
    loop {
        let before = over.len();
        let nap = line.advance(&mut over);
        assert!(over.len() <= before + 2, "{} at once", over.len() - before);
        let Some(nap) = nap else { break };
        std::thread::sleep(nap);
    }
    assert!(over.iter().all(|(_, outcome)| matches!(outcome, Outcome::Admitted(_))), "{over:?}");
    assert_eq!(over.iter().map(|(id, _)| Joined::Waiting(*id)).collect::<Vec<_>>(), in_line);
    let mut left = Vec::new();
    while left.len() < 20 {
        let mut turns = Vec::new();
        let nap = pool.advance(20, 20 - left.len(), &mut turns);
        assert!(turns.len() <= 2, "{turns:?}");
        left.extend(turns.into_iter().filter(|(_, turn)| *turn == Turn::Go(None)).map(|(id, _)| id));
        std::thread::sleep(nap.unwrap_or_default());
    }
    assert_eq!(left, in_pool);
}

/// A loop that must not wait leaves to a thread what a key's first start needs, and decides the start itself: when its caller goes on.
#[test]
fn a_loop_decides_the_first_start_of_a_key_whose_space_was_made_elsewhere() {
    let mut bench = Bench::new("1/1s");
    let mut prepared = 0;
    for n in 0..200 {
        let key = format!("key {n}");
        let mut joined = MayWait::Never.during(|| bench.line.join(Waiter::new(&key, 1)));
        if joined == Err(Error::WouldWait) {
            assert!(bench.line.is_empty());
            assert!(bench.line.prepare(&key));
            assert!(!bench.line.prepare(&key), "nothing is left to do");
            assert_eq!(bench.limiter.peek(&key, 1).unwrap().remaining, 1, "nothing has started");
            prepared += 1;
            joined = MayWait::Never.during(|| bench.line.join(Waiter::new(&key, 1)));
        }
        assert!(matches!(joined, Ok(Joined::Done(Outcome::Admitted(_)))), "{key}: {joined:?}");
    }
    assert!(prepared > 0);
}

#[test]
fn it_is_known_who_would_start_next_without_a_start() {
    let mut bench = Bench::new("1/1s");
    bench.limiter.attempt("", 1).unwrap();
    let first = bench.join(Waiter::new("", 1));
    bench.join(Waiter::new("", 1)).unwrap();
    assert_eq!(bench.line.next_to_start(), None);
    bench.clock.advance(ms(1_000));
    assert_eq!([bench.line.next_to_start(), bench.line.next_to_start()], [first, first]);
    let urgent = bench.join(Waiter::new("", 1).priority(-1));
    assert_eq!(bench.line.next_to_start(), urgent);
    bench.line.leave(urgent.unwrap());
    assert_eq!(bench.line.next_to_start(), first);
    let mut over = Vec::new();
    bench.line.advance_one(&mut over);
    assert!(matches!(&over[..], [(id, Outcome::Admitted(_))] if Some(*id) == first), "{over:?}");
    assert_eq!(bench.line.next_to_start(), None);

    let mut bench = Bench::new("1 concurrent");
    let Attempt::Admitted(permit) = bench.limiter.attempt("", 1).unwrap() else { panic!("denied") };
    let first = bench.join(Waiter::new("", 1));
    bench.line.wake(None);
    assert_eq!(bench.line.next_to_start(), None, "it is asked for without success");
    bench.limiter.complete(&permit).unwrap();
    bench.line.wake(None);
    assert_eq!(bench.line.next_to_start(), first);
}
