//! A call that does not wait never overtakes those who wait, in whichever process; and nobody is denied for long because of a
//! process that is dead or does not run.

use crate::common::{Child, shared, wait_until};
use crate::heads::{Bench, ms, permit_of};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use workglow_limit::embed::{Joined, Line, Outcome, Seat, Step, Waiter};
use workglow_limit::*;

/// A pause of the whole limit holds a key, too, that is noted as waited for. (The note is more than any gate.)
#[test]
fn a_pause_of_all_keys_holds_a_key_that_is_waited_for() {
    for policy in ["2/1s", "5000/1s"] {
        let mut bench = Bench::with("pause-of-all", policy, 0);
        let [full, other] = [&bench.limiter, &bench.elsewhere()].map(Clone::clone);
        let limit = full.peek("a", 1).unwrap().limit;
        assert!(permit_of(full.attempt("a", limit).unwrap()).is_some());
        let ids = [limit, limit].map(|weight| bench.join(0, Waiter::new("a", weight)));
        other.pause(Duration::from_secs(30), "").unwrap();
        ids.into_iter().for_each(|id| bench.lines[0].leave(id));
        bench.clock.advance(ms(2_500));
        let mut late = Line::new(other.clone());
        assert!(matches!(late.join(Waiter::new("a", 1)).unwrap(), Joined::Waiting(_)), "{policy}");
        let after = denied(other.attempt("a", 1).unwrap());
        assert!(after > Duration::from_secs(27), "{policy}: {after:?}");
    }
}

/// A start now, as another process asks for it.
fn attempt(bench: &Bench, weight: u64) -> Attempt {
    bench.elsewhere().attempt("", weight).unwrap()
}

fn denied(attempt: Attempt) -> Duration {
    if let Attempt::Denied(after) = attempt { after } else { panic!("it passed who waits") }
}

#[test]
fn a_unit_that_a_waiter_is_about_to_get_is_not_taken() {
    let mut bench = Bench::new("about-to-get", 1);
    let waits = bench.join(0, Waiter::new("", 1));
    let ended = bench.held.remove(0);
    bench.limiter.complete(&ended).unwrap();
    let other = bench.elsewhere();
    assert_eq!(denied(attempt(&bench, 1)), ms(10));
    for limiter in [&bench.limiter, &other] {
        let decision = limiter.decide("", 1).unwrap();
        assert_eq!((decision.admitted, decision.permit, decision.retry_after), (false, None, ms(10)));
        assert_eq!(decision.denied_by.as_deref(), Some("api"));
        let seen = limiter.peek("", 1).unwrap();
        assert_eq!((seen.admitted, seen.retry_after), (false, ms(10)));
        assert!(!limiter.can_proceed("").unwrap());
        assert_eq!(limiter.peek("", 0).unwrap().remaining, 1, "the unit is free");
    }
    assert_eq!(bench.advance(0), [waits]);
    let ended = bench.held.remove(0);
    bench.limiter.complete(&ended).unwrap();
    assert!(permit_of(attempt(&bench, 1)).is_some(), "nobody waits any more");
}

#[test]
fn a_heavy_waiter_of_a_rate_is_not_passed_by_light_starts() {
    for policy in ["10/1s", "5000/1s", "10/1s burst 10", "10/1s fixed", "10/1s counter"] {
        let mut bench = Bench::with("heavy-waiter", policy, 0);
        let limit = bench.limiter.peek("", 1).unwrap().limit;
        let heavy = limit * 8 / 10;
        assert!(permit_of(bench.limiter.attempt("", limit).unwrap()).is_some());
        // The first one holds a place, so the other one is shown.
        let asked: Vec<(usize, u64)> = [0, 0].map(|line| (line, bench.join(line, Waiter::new("", heavy)))).into();
        let first = bench.pass_time([0, 1, 2], 1);
        assert_eq!((first[0].0, first[0].1), asked[0], "{policy}");
        let other = bench.elsewhere();
        let started = loop {
            let seen = other.peek("", 1).unwrap();
            let after = denied(other.attempt("", 1).unwrap());
            assert!(!seen.admitted && seen.retry_after == after && after > Duration::ZERO, "{policy}: {after:?}");
            let mut over = Vec::new();
            bench.clock.advance(ms(5));
            bench.lines[0].advance(&mut over);
            if let [(id, Outcome::Admitted(_))] = over[..] {
                break id;
            }
        };
        assert_eq!(started, asked[1].1, "{policy}");
        // Whoever waits as long as it was told starts.
        let mut waits = 0;
        while let Attempt::Denied(after) = other.attempt("", 1).unwrap() {
            assert!(waits < 3, "{policy}: {after:?}");
            waits += 1;
            bench.clock.advance(after);
        }
    }
}

#[test]
fn whoever_is_more_urgent_than_the_waiters_starts() {
    let mut bench = Bench::new("urgent-attempt", 2);
    let other = bench.elsewhere();
    bench.join(0, Waiter::new("", 2).priority(3));
    let ended = bench.held.remove(0);
    bench.limiter.complete(&ended).unwrap();
    assert!(permit_of(other.attempt("", 1).unwrap()).is_some());
    bench.join(1, Waiter::new("", 1));
    let ended = bench.held.remove(0);
    bench.limiter.complete(&ended).unwrap();
    denied(other.attempt("", 1).unwrap());
}

#[test]
fn who_leaves_or_does_not_run_keeps_nobody_out() {
    for policy in ["2 concurrent", "2/1s"] {
        let mut bench = Bench::with("keeps-out", policy, 2);
        let waits = [0, 0].map(|line| bench.join(line, Waiter::new("", 2).timeout(Some(Duration::from_secs(60)))));
        if bench.limiter.has_places() {
            // The first one has a place. The other one is shown, but takes none, because its line stands still.
            assert_eq!(bench.pass_time([0, 1, 2], 1)[0].1, waits[0]);
            bench.clock.advance(ms(1_100));
        }
        bench.held.drain(..).for_each(|permit| bench.limiter.cancel(&permit).unwrap());
        denied(attempt(&bench, 1));
        // From here on its line stands still. Whoever asks as often as it was told starts after 50 ms and a look.
        let (other, began) = (bench.elsewhere(), bench.clock.now());
        while let Attempt::Denied(after) = other.attempt("", 1).unwrap() {
            assert!(bench.clock.now() - began <= ms(70), "{policy}: {after:?} after {:?}", bench.clock.now() - began);
            bench.clock.advance(after.min(ms(10)));
        }
        // When it runs again, it is first again; and when its waiters have left, nobody waits.
        bench.advance(0);
        denied(other.attempt("", 1).unwrap());
        waits.into_iter().for_each(|id| bench.lines[0].leave(id));
        assert!(permit_of(other.attempt("", 1).unwrap()).is_some(), "{policy}");
    }
}

#[test]
fn a_killed_waiter_keeps_nobody_out() {
    let bench = Bench::new("killed-waiter", 1);
    let joined = shared(1);
    let child = Child::run(|| {
        let mut line = Line::new(bench.elsewhere());
        let Ok(Joined::Waiting(_)) = line.join(Waiter::new("", 1)) else { panic!("it does not wait") };
        joined[0].store(1, SeqCst);
        loop {
            std::thread::park();
        }
    });
    wait_until("the child waits", || joined[0].load(SeqCst) == 1);
    bench.limiter.complete(&bench.held[0]).unwrap();
    denied(bench.limiter.attempt("", 1).unwrap());
    drop(child);
    // (The kernel was asked a moment ago whether it is dead. By this clock that moment does not pass.)
    bench.clock.advance(ms(20));
    assert!(permit_of(bench.limiter.attempt("", 1).unwrap()).is_some());
}

#[test]
fn pauses_and_clear_work_while_somebody_waits_for_the_key() {
    let mut bench = Bench::with("pauses", "2/1s", 0);
    let [full, other] = [&bench.limiter, &bench.elsewhere()].map(Clone::clone);
    assert!(permit_of(full.attempt("a", 2).unwrap()).is_some());
    let ids = [2, 2].map(|weight| bench.join(0, Waiter::new("a", weight)));
    denied(other.attempt("a", 1).unwrap());
    other.pause(Duration::from_secs(30), "a").unwrap();
    ids.into_iter().for_each(|id| bench.lines[0].leave(id));
    let after = denied(other.attempt("a", 1).unwrap());
    assert!(after > Duration::from_secs(29) && after <= Duration::from_secs(30), "{after:?}");
    other.clear("a").unwrap();
    assert!(permit_of(other.attempt("a", 1).unwrap()).is_some());
    assert!(permit_of(other.attempt("b", 1).unwrap()).is_some());
}

#[test]
fn a_composite_charges_nothing_where_a_part_is_waited_for_and_alternatives_choose_another() {
    let mut bench = Bench::new("parts", 1);
    let store = Store::new("memory:").unwrap();
    let free = store.limiter("free", "5/1m").unwrap();
    bench.join(0, Waiter::new("", 1));
    let ended = bench.held.remove(0);
    bench.limiter.complete(&ended).unwrap();
    let all = CompositeLimiter::new([free.clone(), bench.limiter.clone()]);
    assert!(matches!(all.attempt("", 1).unwrap(), Attempt::Denied(_)));
    assert_eq!(all.decide("", 1).unwrap().denied_by.as_deref(), Some("api"));
    assert_eq!(free.peek("", 0).unwrap().remaining, 5);
    let any = FirstOfLimiter::new([bench.limiter.clone(), free.clone()]);
    assert!(permit_of(any.attempt("", 1).unwrap()).is_some());
    assert_eq!(free.peek("", 0).unwrap().remaining, 4);
}

#[test]
fn it_is_seen_who_has_the_units_and_who_waits() {
    let mut bench = Bench::new("who-waits", 3);
    let own = std::process::id();
    let joined = shared(1);
    bench.join(0, Waiter::new("", 2));
    let child = Child::run(|| {
        let mut line = Line::new(bench.elsewhere());
        for priority in [-4, 9] {
            let Ok(Joined::Waiting(_)) = line.join(Waiter::new("", 1).priority(priority)) else {
                panic!("it does not wait")
            };
        }
        joined[0].store(std::process::id().into(), SeqCst);
        loop {
            std::thread::park();
        }
    });
    wait_until("the child waits", || joined[0].load(SeqCst) > 0);
    bench.clock.advance(ms(30));
    let other = joined[0].load(SeqCst) as u32;
    let observer = workglow_limit::observe::Observer::new(&bench.store, 0);
    let seen = observer.line("api", "").unwrap();
    let holders: Vec<_> = seen.holders.iter().map(|has| (pid(&has.process), has.starts, has.units)).collect();
    assert_eq!(holders, [(own, 3, 3)]);
    let heads: Vec<_> = seen.heads.iter().map(|head| (pid(&head.process), head.units, head.priority)).collect();
    assert_eq!(heads, [(other, 1, -4), (own, 2, 0)], "the most urgent one is next");
    assert!(seen.heads.iter().all(|head| head.waits >= ms(30) && head.tenant.is_none() && !head.is_passed));
    let waiting: Vec<_> = seen.waiting.iter().map(|waits| (pid(&waits.process), waits.callers)).collect();
    assert_eq!(waiting, [(other, 2), (own, 1)]);
    let unused = observer.line("api", "unused").unwrap();
    assert!(unused.holders.is_empty() && unused.heads.is_empty() && unused.waiting.len() == 2);
    drop(child);
    let seen = observer.line("api", "").unwrap();
    assert_eq!((seen.heads.len(), seen.waiting.len()), (1, 1), "who is dead waits no more");
    assert!(matches!(observer.line("other", ""), Err(Error::UnknownLimit { .. })));
}

#[test]
fn in_memory_no_process_waits_for_another_and_on_servers_lines_are_not_known() {
    let store = Store::new("memory:").unwrap();
    let observer = workglow_limit::observe::Observer::new(&store, 0);
    let slots = store.limiter("slots", "2 concurrent").unwrap();
    let held = permit_of(slots.attempt("k", 2).unwrap()).unwrap();
    let mut line = Line::new(slots.clone());
    assert!(matches!(line.join(Waiter::new("k", 1)).unwrap(), Joined::Waiting(_)));
    let seen = observer.line("slots", "k").unwrap();
    let holders: Vec<_> = seen.holders.iter().map(|has| (has.process.is_none(), has.starts, has.units)).collect();
    assert_eq!(holders, [(true, 1, 2)]);
    assert!(seen.heads.is_empty());
    let waiting: Vec<_> = seen.waiting.iter().map(|waits| (waits.process.is_none(), waits.callers)).collect();
    assert_eq!(waiting, [(true, 1)]);

    let shared = store.limiter("shared", "1 concurrent shared").unwrap();
    let other = permit_of(shared.attempt("holder", 1).unwrap()).unwrap();
    let mut tenants = Line::new(shared.clone());
    assert!(matches!(tenants.join(Waiter::new("acme", 1)).unwrap(), Joined::Waiting(_)));
    let seen = observer.line("shared", "").unwrap();
    let name = seen.heads[0].tenant_name().unwrap();
    assert_eq!((seen.heads.len(), &name[..1], name.len()), (1, "#", 17));
    drop((line, tenants));
    slots.complete(&held).unwrap();
    shared.complete(&other).unwrap();

    #[cfg(feature = "redis")]
    {
        let server = Store::new("redis://localhost:1").unwrap();
        let refused = workglow_limit::observe::Observer::new(&server, 0).line("slots", "");
        assert!(matches!(refused, Err(Error::Unsupported { .. })));
    }
}

fn pid(process: &Option<workglow_limit::observe::ProcessSnapshot>) -> u32 {
    process.as_ref().expect("it is listed").pid
}

/// What was left was denied because of the waiters, and so never charged.
#[test]
fn what_others_spent_is_charged_while_somebody_waits() {
    let mut bench = Bench::with("others-charge", "10/1s", 0);
    assert!(permit_of(bench.limiter.attempt("", 10).unwrap()).is_some());
    let _ids = [8, 8].map(|weight| bench.join(0, Waiter::new("", weight)));
    bench.pass_time([0, 1, 2], 1);
    let seen = bench.limiter.peek("", 0).unwrap().remaining;
    let charged = bench.elsewhere().charge_others("", seen, 0).unwrap();
    assert_eq!((seen, charged), (2, 2));
}

/// A job with a place of a composite never started where always one waited for a part.
#[test]
fn a_place_of_a_composite_is_used_beside_waiters_of_a_part() {
    let mut bench = Bench::new("overtaking-present", 1);
    let rate = bench.store.limiter("rate", "5/1s").unwrap();
    let both: Arc<dyn Limiter> = Arc::new(CompositeLimiter::new([rate.clone(), bench.limiter.clone()]));
    let Reserved::Place { place, .. } = both.reserve("", 1, None, None).unwrap() else { panic!() };
    let mut place = place;
    for _ in 0..2 {
        bench.join(0, Waiter::new("", 1));
    }
    for _ in 0..200 {
        let ended = bench.held.remove(0);
        bench.limiter.complete(&ended).unwrap();
        match both.present(&place).unwrap() {
            Presented::Started(_) => return,
            Presented::Wait { place: again, .. } => place = again,
        }
        assert_eq!(bench.advance(0).len(), 1);
        bench.join(0, Waiter::new("", 1));
        bench.clock.advance(ms(250));
    }
    panic!("it never starts");
}

/// The same for a thread that waits with a place of its own.
#[test]
fn who_waits_with_a_place_of_a_composite_starts_beside_waiters_of_a_part() {
    let mut bench = Bench::new("overtaking-seat", 1);
    let rate = bench.store.limiter("rate", "5/1s").unwrap();
    let both: Arc<dyn Limiter> = Arc::new(CompositeLimiter::new([rate.clone(), bench.limiter.clone()]));
    let Reserved::Place { place, .. } = both.reserve("", 1, None, None).unwrap() else { panic!() };
    let mut seat = Seat::new(Waiter { place: Some(place), timeout: None, ..Waiter::new("", 1) });
    for _ in 0..2 {
        bench.join(0, Waiter::new("", 1));
    }
    for _ in 0..200 {
        let ended = bench.held.remove(0);
        bench.limiter.complete(&ended).unwrap();
        match seat.step(&*both).unwrap() {
            Step::Admitted(_) => return,
            Step::Sleep(_) => {}
            Step::Expired(_) => panic!("expired"),
        }
        assert_eq!(bench.advance(0).len(), 1);
        bench.join(0, Waiter::new("", 1));
        bench.clock.advance(ms(250));
    }
    panic!("it never starts");
}
