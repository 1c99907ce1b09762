//! Waiters that start elsewhere, in the workers of a pool. They leave in order, a moment before their place is ready,
//! and no more places are held than there are workers.

use crate::common::{Child, Random, most_in_any_window};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::embed::{Joined, Line, Outcome, Pool, Turn, Waiter, WaiterId};
use workglow_limit::*;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const HOUR: Duration = Duration::from_secs(3_600);

/// How long before its place is ready a waiter leaves.
const LEAD: Duration = ms(20);

/// The shared clock and store of pools.
struct Site {
    clock: ManualClock,
    store: Store,
}

impl Site {
    fn new() -> Site {
        let clock = ManualClock::new();
        let mut options = StoreOptions::default();
        options.clock = Some(clock.clone());
        Site { store: Store::with_options("memory:", options).unwrap(), clock }
    }

    fn bench(&self, policy: &str, workers: usize) -> Bench<'_> {
        let limiter = self.store.limiter("api", policy).unwrap();
        let pool = Pool::new(limiter.clone(), None);
        Bench {
            site: self,
            limiter,
            pool,
            workers,
            jobs: Vec::new(),
            went: Vec::new(),
            held: Vec::new(),
            away: Vec::new(),
        }
    }
}

/// A worker's job. It presents its place when that is ready, and ends a fixed time after its start.
struct Job {
    id: WaiterId,
    place: Option<RawPermit>,
    /// When to check it again.
    at: Duration,
    permit: Option<RawPermit>,
}

/// A pool of a limiter with this policy, and its workers.
struct Bench<'a> {
    site: &'a Site,
    limiter: Arc<dyn Limiter>,
    pool: Pool,
    workers: usize,
    jobs: Vec<Job>,
    /// The waiters that left, when, and with which place.
    went: Vec<(WaiterId, Duration, Option<String>)>,
    held: Vec<(WaiterId, Duration)>,
    away: Vec<(WaiterId, Option<String>, Duration)>,
}

impl Bench<'_> {
    fn join(&mut self, key: &str) -> WaiterId {
        self.pool.join(Waiter::new(key, 1)).unwrap()
    }

    fn join_many(&mut self, count: usize) -> Vec<WaiterId> {
        (0..count).map(|_| self.join("")).collect()
    }

    /// Advances the pool with this many free workers. Departures are only recorded.
    fn advance(&mut self, free: usize) -> Option<Duration> {
        let mut turns = Vec::new();
        let nap = self.pool.advance(self.workers, free, &mut turns);
        for (id, turn) in turns {
            match turn {
                Turn::Held(after) => self.held.push((id, after)),
                Turn::Go(place) => self.went.push((id, self.site.clock.now(), place)),
                Turn::Away(place, after) => self.away.push((id, place, after)),
                Turn::Failed(error) => panic!("{id}: {error}"),
            }
        }
        nap
    }

    /// Lets the workers and the pool do their due work, and records the starts. Returns how long until more is due.
    fn work(&mut self, takes: Duration, starts: &mut Vec<(WaiterId, Duration)>) -> Option<Duration> {
        let now = self.site.clock.now();
        for mut job in std::mem::take(&mut self.jobs) {
            while job.at <= now {
                if let Some(permit) = job.permit {
                    self.limiter.complete(&permit).unwrap();
                    self.pool.end(job.id);
                    break;
                }
                self.start(&mut job, takes, starts);
            }
            if job.at > now {
                self.jobs.push(job);
            }
        }
        let before = self.went.len();
        let nap = self.advance(self.workers - self.jobs.len());
        for (id, _, text) in &self.went[before..] {
            self.pool.arrive(*id);
            let place = text.as_ref().map(|text| self.limiter.permit_from_text(text).unwrap());
            self.jobs.push(Job { id: *id, place, at: now, permit: None });
        }
        let is_new = self.went.len() > before;
        let job = self.jobs.iter().map(|job| job.at - now).min();
        if is_new { Some(Duration::ZERO) } else { nap.into_iter().chain(job).min() }
    }

    fn start(&self, job: &mut Job, takes: Duration, starts: &mut Vec<(WaiterId, Duration)>) {
        let now = self.site.clock.now();
        let permit = match job.place {
            Some(place) => match self.limiter.present(&place).unwrap() {
                Presented::Started(permit) => Some(permit),
                Presented::Wait { place, after } => {
                    (job.place, job.at) = (Some(place), now + after.max(ms(1)));
                    None
                }
            },
            None => match self.limiter.attempt("", 1).unwrap() {
                Attempt::Admitted(permit) => Some(permit),
                Attempt::Denied(after) => panic!("{} was sent off, and there is capacity in {after:?}", job.id),
            },
        };
        if permit.is_some() {
            starts.push((job.id, now));
            (job.permit, job.at) = (permit, now + takes.max(ms(1)));
        }
    }

    /// Advances until this many have left.
    fn until_gone(&mut self, count: usize) {
        loop {
            let nap = self.advance(1);
            if self.went.len() >= count {
                return;
            }
            self.site.clock.advance(nap.expect("there is more to do"));
        }
    }

    fn ids(&self) -> Vec<WaiterId> {
        self.went.iter().map(|(id, ..)| *id).collect()
    }

    /// How long a new start would have to wait.
    fn ahead(&self) -> Duration {
        self.limiter.peek("", 1).unwrap().retry_after
    }
}

#[test]
fn no_more_places_are_held_than_there_are_workers() {
    let site = Site::new();
    let mut bench = site.bench("5/1h", 3);
    let ids = bench.join_many(10);
    bench.advance(2);
    // All workers are busy or wait for a place.
    assert_eq!(bench.ids(), ids[..2]);
    assert_eq!(bench.limiter.peek("", 1).unwrap().remaining, 2);
    bench.advance(0);
    assert_eq!(bench.limiter.peek("", 1).unwrap().remaining, 2);
    bench.pool.end(ids[0]);
    bench.advance(0);
    assert_eq!(bench.limiter.peek("", 1).unwrap().remaining, 1);
    // One more worker.
    bench.workers = 4;
    bench.advance(0);
    assert_eq!(bench.limiter.peek("", 1).unwrap().remaining, 0);
}

/// Lets several pools work until all of their jobs have ended, and returns their starts.
fn work_all(site: &Site, benches: &mut [Bench], takes: Duration) -> Vec<Vec<(WaiterId, Duration)>> {
    let mut starts = vec![Vec::new(); benches.len()];
    loop {
        let naps = benches.iter_mut().zip(&mut starts).map(|(bench, starts)| bench.work(takes, starts));
        let naps: Vec<Duration> = naps.collect::<Vec<_>>().into_iter().flatten().collect();
        let waiting = benches.iter().any(|bench| !bench.jobs.is_empty() || bench.pool.waiting().next().is_some());
        if !waiting {
            return starts;
        }
        site.clock.advance(*naps.iter().min().expect("a waiter remains"));
    }
}

#[test]
fn all_waiters_start_in_order_at_the_limits_pace() {
    for (policy, window, of_a_window, ideal) in
        [("20/2s", 2_000, 20, 14_000), ("delay 100ms", 100, 1, 15_900), ("10/1s burst 10", 1_000, 20, 15_000)]
    {
        let site = Site::new();
        let mut benches = [site.bench(policy, 2)];
        let ids = benches[0].join_many(160);
        let starts = work_all(&site, &mut benches, ms(20)).remove(0);
        assert_eq!(starts.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids, "{policy}");
        let marks: Vec<_> = starts.iter().map(|(_, at)| at.as_micros() as u64).map(|at| (at, at, 1)).collect();
        assert!(most_in_any_window(&marks, window * 1_000) <= of_a_window, "{policy}");
        // By this clock no job is late, but two workers have 20 ms for each job.
        let span = (starts[159].1 - starts[0].1).as_millis() as u64;
        assert!(span <= ideal * 101 / 100 + 200, "{policy}: {span} ms instead of {ideal}");
    }
}

#[test]
fn two_pools_share_a_limit_and_serve_every_waiter() {
    for policy in ["20/2s", "20/2s + 3 concurrent"] {
        let site = Site::new();
        let mut benches = [site.bench(policy, 2), site.bench(policy, 2)];
        let ids = [benches[0].join_many(60), benches[1].join_many(60)];
        let starts = work_all(&site, &mut benches, ms(30));
        let order = |starts: &[(WaiterId, Duration)]| {
            let mut ids: Vec<_> = starts.iter().map(|(id, _)| *id).collect();
            ids.sort_unstable();
            ids
        };
        assert_eq!([order(&starts[0]), order(&starts[1])], ids, "{policy}");
        let marks: Vec<_> =
            starts.iter().flatten().map(|(_, at)| at.as_micros() as u64).map(|at| (at, at, 1)).collect();
        assert!(most_in_any_window(&marks, 2_000_000) <= 20, "{policy}");
    }
}

#[test]
fn tenants_of_two_pools_start_by_their_shares() {
    for policy in ["20/1s shared", "delay 20ms shared", "20/1s burst 10 shared"] {
        let site = Site::new();
        site.clock.advance(ms(1));
        let mut benches = [site.bench(policy, 24), site.bench(policy, 24)];
        for (tenant, share) in [("birch", 3), ("cedar", 2)] {
            site.store.share("api", tenant, share).unwrap();
        }
        let mut tenants = [HashMap::new(), HashMap::new()];
        // The whale waits in both, and each of the others in one of them.
        for (key, pools) in [("whale", vec![0, 1]), ("acme", vec![0]), ("birch", vec![1]), ("cedar", vec![0])] {
            for at in pools.into_iter().cycle().take(60) {
                tenants[at].insert(benches[at].join(key), key);
            }
        }
        let starts = work_all(&site, &mut benches, ms(10));
        let named = |(starts, tenants): (&Vec<(WaiterId, Duration)>, &HashMap<WaiterId, &'static str>)| {
            starts.iter().map(|(id, at)| (*at, tenants[id])).collect::<Vec<_>>()
        };
        let mut all: Vec<(Duration, &str)> = starts.iter().zip(&tenants).flat_map(named).collect();
        all.sort_by_key(|(at, _)| *at);
        assert_eq!(all.len(), 240, "{policy}");
        // Some units are free before the second pool asks. After them, and while all wait, each has what its share is.
        let shared: Vec<&str> = all[20..80].iter().map(|(_, tenant)| *tenant).collect();
        let count = |of: &str| shared.iter().filter(|tenant| **tenant == of).count() as i32;
        for (tenant, share) in [("whale", 1), ("acme", 1), ("birch", 3), ("cedar", 2)] {
            let off = 7 * count(tenant) - 60 * share;
            assert!(off.abs() <= 10, "{policy}: {tenant} has {} of 60: {shared:?}", count(tenant));
        }
    }
}

#[test]
fn a_free_slot_goes_to_the_tenant_that_has_had_the_least() {
    let site = Site::new();
    site.clock.advance(ms(1));
    let mut bench = site.bench("1 concurrent shared", 4);
    let whales: Vec<_> = (0..5).map(|_| bench.join("whale")).collect();
    let mut started = Vec::new();
    let mut run = |bench: &mut Bench, key: &str| {
        let before = bench.went.len();
        while bench.went.len() == before {
            let nap = bench.advance(4).expect("a waiter remains");
            site.clock.advance(nap);
        }
        // At its worker it waits before all others of its tenant.
        let (mut line, mut over) = (Line::new(bench.limiter.clone()), Vec::new());
        if let Joined::Done(outcome) = line.join(Waiter::new(key, 1).priority(-2047)).unwrap() {
            over.push((0, outcome));
        }
        for _ in 0..3 {
            line.advance(&mut over);
            site.clock.advance(ms(1));
        }
        let Some((_, Outcome::Admitted(permit))) = over.pop() else { panic!("{key} was sent off in vain") };
        started.push(bench.went[before].0);
        permit
    };
    let first = run(&mut bench, "whale");
    let acme = bench.join("acme");
    bench.advance(4);
    bench.limiter.complete(&first).unwrap();
    bench.pool.end(whales[0]);
    let second = run(&mut bench, "acme");
    bench.limiter.complete(&second).unwrap();
    bench.pool.end(acme);
    run(&mut bench, "whale");
    assert_eq!(started, [whales[0], acme, whales[1]]);
}

#[test]
fn places_are_taken_when_they_are_needed() {
    let site = Site::new();
    let mut bench = site.bench("1/1h", 3);
    let ids = bench.join_many(10);
    bench.advance(3);
    assert_eq!(bench.ids(), ids[..1]);
    site.clock.advance(ms(60));
    bench.advance(2);
    // One place for the next waiter, and none for those that come long after it. Neither has started, so they count with their graces.
    assert!(bench.ahead() > HOUR && bench.ahead() <= 2 * HOUR + ms(20_000));
    assert_eq!(bench.pool.running(), 1);
    assert_eq!(bench.pool.waiting().collect::<Vec<_>>(), [("", 9)]);
    // It leaves a moment before its place is ready.
    bench.until_gone(2);
    let nap = bench.went[1].1;
    let place = bench.limiter.permit_from_text(bench.went[1].2.as_ref().unwrap()).unwrap();
    let ready = bench.limiter.ready_in(&place).unwrap();
    assert!(ready <= LEAD && ready > LEAD - ms(5), "at {nap:?}, its place is ready in {ready:?}");
    assert!(matches!(bench.limiter.present(&place).unwrap(), Presented::Wait { place: same, .. } if same == place));
    site.clock.advance(ready);
    assert!(matches!(bench.limiter.present(&place).unwrap(), Presented::Started(_)));
    // Dropping a pool returns the places of the others.
    drop(bench);
    let limiter = site.store.limiter("api", "1/1h").unwrap();
    assert!(limiter.peek("", 1).unwrap().retry_after <= HOUR);
}

#[test]
fn waiting_for_a_worker_is_not_reported_as_waiting_for_the_limit() {
    for (policy, room) in [("3/1h", 3), ("3 concurrent", 3), ("100/1h + 3 concurrent", 3)] {
        let site = Site::new();
        let mut bench = site.bench(policy, 8);
        let ids = bench.join_many(5);
        assert!(bench.advance(0).is_none_or(|nap| nap > Duration::ZERO), "{policy}: there is nothing to do");
        assert_eq!((bench.ids(), bench.held.len()), (vec![], 0), "{policy}");
        for free in 1..=room {
            bench.advance(1);
            assert_eq!(bench.ids(), ids[..free], "{policy}");
            if policy != "3/1h" {
                // The waiters that left have not started, but their units count.
                site.clock.advance(ms(60));
                bench.limiter.record_job_start("").unwrap();
            }
        }
        bench.advance(1);
        // Now they wait for the limit, which is reported once.
        assert_eq!(bench.held.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids[3..], "{policy}");
        site.clock.advance(ms(300));
        bench.advance(1);
        assert_eq!((bench.ids().len(), bench.held.len()), (3, 2), "{policy}");
        // Later arrivals are notified at once.
        for _ in 0..3 {
            bench.join("");
            bench.advance(1);
        }
        assert_eq!((bench.ids().len(), bench.held.len()), (3, 5), "{policy}");
    }
}

#[test]
fn units_of_departed_waiters_count_as_taken() {
    for policy in ["2 concurrent", "100/1h + 2 concurrent"] {
        let site = Site::new();
        let mut bench = site.bench(policy, 8);
        let ids = bench.join_many(5);
        bench.advance(8);
        assert_eq!(bench.ids(), ids[..2], "{policy}");
        // They start there. A completion there is noticed here.
        for _ in 0..2 {
            bench.limiter.record_job_start("").unwrap();
        }
        site.clock.advance(ms(200));
        bench.advance(6);
        assert_eq!(bench.ids(), ids[..2], "{policy}");
        bench.limiter.record_job_completion("").unwrap();
        bench.pool.end(ids[0]);
        bench.advance(7);
        assert_eq!(bench.ids(), ids[..3], "{policy}");
        bench.limiter.record_job_start("").unwrap();
        // A completion by another process is not, so the pool checks for it, neither too seldom nor too often.
        site.clock.advance(ms(200));
        bench.advance(6);
        bench.limiter.record_job_completion("").unwrap();
        let (since, mut looks) = (site.clock.now(), 0);
        while bench.went.len() == 3 {
            let nap = bench.advance(6).unwrap();
            assert!(bench.went.len() > 3 || nap > ms(5), "{policy}");
            site.clock.advance(if bench.went.len() > 3 { Duration::ZERO } else { nap });
            looks += 1;
        }
        assert!(site.clock.now() - since <= ms(150) && looks < 20, "{policy}");
    }
}

#[test]
fn a_distant_start_leaves_with_a_place() {
    let site = Site::new();
    let mut bench = site.bench("1/10s", 1);
    let patient = Waiter::new("", 1).timeout(Some(ms(500)));
    let ids: Vec<_> = (0..3).map(|_| bench.pool.join(patient).unwrap()).collect();
    bench.advance(1);
    assert_eq!(bench.ids(), ids[..1]);
    // Even while all workers are busy.
    bench.advance(0);
    assert_eq!(bench.away.iter().map(|(id, ..)| *id).collect::<Vec<_>>(), ids[1..]);
    assert_eq!((bench.pool.waiting().count(), bench.pool.running()), (0, 1));
    for (_, place, after) in bench.away.clone() {
        let place = bench.limiter.permit_from_text(&place.unwrap()).unwrap();
        assert!(after > ms(9_000) && bench.limiter.ready_in(&place).unwrap() <= after);
        // It returns late, but within the grace of a travelling place, and starts at once.
        site.clock.advance(bench.limiter.ready_in(&place).unwrap() + ms(200));
        bench.pool.end(*bench.ids().last().unwrap());
        bench.pool.join(Waiter { place: Some(place), ..patient }.priority(-1)).unwrap();
        bench.advance(1);
        let text = bench.went.last().unwrap().2.as_ref().unwrap();
        let place = bench.limiter.permit_from_text(text).unwrap();
        assert!(matches!(bench.limiter.present(&place).unwrap(), Presented::Started(_)));
    }
    assert_eq!(bench.went.len(), 3);
    // Without places, a gate is reported with its full duration.
    let mut bench = Bench { pool: Pool::new(site.store.limiter("slots", "1 concurrent").unwrap(), None), ..bench };
    site.store.limiter("slots", "1 concurrent").unwrap().pause(ms(3_000), "").unwrap();
    bench.pool.join(patient).unwrap();
    bench.away.clear();
    bench.advance(1);
    assert!(matches!(bench.away[..], [(_, None, after)] if after > ms(2_000) && after <= ms(3_000)));
}

/// A place that nobody uses within its grace costs its unit for a window, if others have queued up behind it. A worker that stood still
/// for a second cost an hour.
#[test]
fn a_worker_has_a_fortieth_of_a_long_window_to_begin() {
    for (policy, late) in [("1/1m", ms(1_450)), ("1/1h", ms(9_900))] {
        let site = Site::new();
        let [mut bench, mut other] = [(); 2].map(|()| site.bench(policy, 1));
        bench.join("");
        bench.advance(1);
        other.join("");
        other.advance(1);
        assert_eq!((bench.went.len(), other.went.len()), (1, 0), "{policy}");
        site.clock.advance(late);
        let place = bench.limiter.permit_from_text(bench.went[0].2.as_ref().unwrap()).unwrap();
        assert!(matches!(bench.limiter.present(&place).unwrap(), Presented::Started(_)), "{policy}");
    }
}

#[test]
fn a_place_returned_too_late_is_replaced_first() {
    let site = Site::new();
    let mut bench = site.bench("1/1s", 2);
    bench.limiter.attempt("", 1).unwrap();
    let Reserved::Place { place, after } = bench.limiter.reserve("", 1, None, None).unwrap() else { panic!() };
    site.clock.advance(after + ms(500));
    let others = bench.join_many(2);
    let late = bench.pool.join(Waiter { place: Some(place), ..Waiter::new("", 1) }.priority(-1)).unwrap();
    let mut benches = [bench];
    let starts = work_all(&site, &mut benches, ms(1)).remove(0);
    let order: Vec<_> = starts.iter().map(|(id, _)| *id).collect();
    assert_eq!(order, [&[late][..], &others].concat());
    // It did not wait for the late place, which no longer counts.
    assert!(starts[1].1 - starts[0].1 <= ms(1_030));
}

#[test]
fn a_place_that_went_late_while_the_workers_were_busy_is_exchanged_here() {
    let site = Site::new();
    let mut bench = site.bench("1/1s", 1);
    let ids = bench.join_many(2);
    bench.advance(1);
    bench.pool.end(ids[0]);
    site.clock.advance(ms(60));
    bench.advance(1);
    assert!(bench.ahead() > ms(1_000), "there is a place");
    site.clock.advance(ms(5_000));
    bench.advance(0);
    assert_eq!(bench.ids(), ids[..1]);
    bench.until_gone(2);
    assert!(site.clock.now() <= ms(7_000));
    let place = bench.limiter.permit_from_text(bench.went[1].2.as_ref().unwrap()).unwrap();
    site.clock.advance(bench.limiter.ready_in(&place).unwrap());
    assert!(matches!(bench.limiter.present(&place).unwrap(), Presented::Started(_)));
}

#[test]
fn a_gate_that_closes_keeps_waiters_in_the_pool() {
    let site = Site::new();
    let mut bench = site.bench("1/1s", 2);
    let ids = bench.join_many(2);
    bench.advance(2);
    site.clock.advance(ms(60));
    bench.advance(1);
    bench.limiter.pause(ms(30_000), "").unwrap();
    bench.until_gone(2);
    assert_eq!(bench.ids(), ids);
    assert!(site.clock.now() >= ms(29_900) && site.clock.now() <= ms(31_000));
}

#[test]
fn a_leaving_waiter_passes_its_place_on_or_takes_it_along() {
    let site = Site::new();
    let mut bench = site.bench("1/1h", 2);
    bench.limiter.attempt("", 1).unwrap();
    let ids = bench.join_many(3);
    bench.advance(2);
    assert!(bench.ahead() > HOUR);
    // The place belongs to the next waiter now, and the last one has none.
    bench.pool.leave(ids[0]);
    assert!(bench.pool.take_along(ids[2]).is_none());
    let (text, after) = bench.pool.take_along(ids[1]).unwrap();
    assert!(after <= HOUR && bench.limiter.permit_from_text(&text).is_ok());
    assert!(bench.ahead() > HOUR);
    assert_eq!(bench.pool.waiting().count(), 0);
    assert!(bench.advance(2).is_none());
    bench.limiter.cancel_place(&bench.limiter.permit_from_text(&text).unwrap()).unwrap();
    assert!(bench.ahead() <= HOUR);
    // A second call for a waiter that has left has no effect.
    bench.pool.leave(ids[0]);
    bench.pool.end(ids[0]);
    assert!(bench.pool.take_along(ids[1]).is_none());
    // A place for which no one waits is returned.
    let last = bench.join("");
    bench.advance(2);
    assert!(bench.ahead() > HOUR);
    bench.pool.leave(last);
    assert!(bench.ahead() <= HOUR);
    // All at once.
    bench.join_many(5);
    bench.advance(2);
    assert!(bench.ahead() > HOUR);
    bench.pool.clear();
    assert!(bench.ahead() <= HOUR && bench.advance(2).is_none());
}

#[test]
fn a_change_of_policy_exchanges_all_places() {
    let site = Site::new();
    let mut benches = [site.bench("1/1h", 2), site.bench("1/1h", 2)];
    benches[0].limiter.attempt("", 1).unwrap();
    for bench in &mut benches {
        bench.join_many(3);
        bench.advance(2);
    }
    // Each pool has a place, one behind the other, and a new one would be behind both.
    assert!(benches[0].ahead() > 2 * HOUR);
    site.store.override_limit("api", "1/2h", None).unwrap();
    for bench in &mut benches {
        bench.pool.renew();
        bench.advance(2);
    }
    assert!(benches[0].ahead() > 4 * HOUR);
    site.store.override_limit("api", "2/1h", None).unwrap();
    benches[0].pool.renew();
    benches[0].advance(2);
    assert_eq!(benches[0].went.len(), 1);
    let place = benches[0].limiter.permit_from_text(benches[0].went[0].2.as_ref().unwrap()).unwrap();
    assert!(matches!(benches[0].limiter.present(&place).unwrap(), Presented::Started(_)));
    // The other pool notices too, as it would notice another process's `clear`.
    site.store.override_limit("api", "3/1h", None).unwrap();
    site.clock.advance(ms(510));
    benches[1].advance(2);
    assert_eq!(benches[1].went.len(), 1);
}

#[test]
fn keys_share_the_workers_in_turn() {
    for policy in ["100/1s", "3 concurrent"] {
        let site = Site::new();
        let mut bench = site.bench(policy, 1);
        for _ in 0..20 {
            bench.join("a");
            bench.join("b");
        }
        let mut by_key = [0, 0];
        for _ in 0..20 {
            // Sometimes a job without a limit has the worker.
            bench.advance(0);
            bench.advance(1);
            let (id, ..) = *bench.went.last().unwrap();
            by_key[(id as usize + 1) % 2] += 1;
            bench.pool.end(id);
            site.clock.advance(ms(60));
        }
        assert_eq!(bench.went.len(), 20, "{policy}");
        assert!(by_key.iter().all(|went| *went >= 5), "{policy}: {by_key:?}");
    }
}

#[test]
fn errors_are_reported_and_departures_never_exceed_the_workers() {
    let site = Site::new();
    let mut bench = site.bench("10/1s", 2);
    assert!(matches!(bench.pool.join(Waiter::new("", 11)), Err(Error::WeightExceedsCapacity { .. })));
    assert!(matches!(bench.pool.join(Waiter::new("", 0)), Err(Error::InvalidArgument { .. })));
    assert_eq!(bench.pool.waiting().count(), 0);
    // The limit shrinks after they have joined.
    for _ in 0..5 {
        bench.pool.join(Waiter::new("", 5)).unwrap();
    }
    site.store.override_limit("api", "2/1s", None).unwrap();
    let mut turns = Vec::new();
    bench.pool.advance(2, 2, &mut turns);
    assert!(matches!(turns[..], [(_, Turn::Failed(_)), (_, Turn::Failed(_))]), "{turns:?}");
    turns.clear();
    assert!(bench.pool.advance(2, 0, &mut turns).is_none_or(|nap| !nap.is_zero()));
    assert!(turns.is_empty());
    bench.pool.advance(2, 1, &mut turns);
    assert_eq!(turns.len(), 1);
}

#[test]
fn a_forked_child_finds_its_pool_empty() {
    let site = Site::new();
    let mut bench = site.bench("1/1h", 2);
    let ids = bench.join_many(4);
    bench.advance(2);
    Child::run(|| {
        assert_eq!((bench.pool.waiting().count(), bench.pool.running()), (0, 0));
        bench.pool.end(ids[0]);
        assert!(bench.advance(2).is_none());
    })
    .join();
    assert_eq!((bench.pool.waiting().collect::<Vec<_>>(), bench.pool.running()), (vec![("", 3)], 1));
}

/// Random waiters of several weights, keys and timeouts in two pools, which also leave, are cleared and renewed. Every
/// waiter learns its outcome once, and places are returned.
#[test]
fn every_waiter_learns_its_outcome_once() {
    for seed in 1..=30_u64 {
        let site = Site::new();
        let policy =
            ["5/1s", "20/2s + 3 concurrent", "3 concurrent", "10/1s queue 20", "10/1s burst 5"][seed as usize % 5];
        let limiter = site.store.limiter("api", policy).unwrap();
        let mut random = Random::seeded(seed);
        let mut pool = Pool::new(limiter.clone(), None);
        let (mut waiting, mut running) = (Vec::<WaiterId>::new(), Vec::<WaiterId>::new());
        let workers = 1 + random.below(4) as usize;
        for _ in 0..2_000 {
            match random.below(10) {
                0..4 => {
                    let waiter = Waiter::new(["", "a", "b"][random.below(3) as usize], 1 + random.below(3));
                    let timeout = (random.below(3) == 0).then(|| ms(random.below(2_000)));
                    waiting.push(pool.join(waiter.priority(-(random.below(2) as i32)).timeout(timeout)).unwrap());
                }
                4 if !waiting.is_empty() => {
                    let id = waiting.swap_remove(random.below(waiting.len() as u64) as usize);
                    if random.below(2) == 0 {
                        pool.leave(id);
                    } else if let Some((text, _)) = pool.take_along(id) {
                        limiter.cancel_place(&limiter.permit_from_text(&text).unwrap()).unwrap();
                    }
                }
                5..7 if !running.is_empty() => {
                    let id = running.swap_remove(random.below(running.len() as u64) as usize);
                    pool.arrive(id);
                    pool.end(id);
                }
                7 if random.below(100) == 0 => pool.renew(),
                8 if random.below(200) == 0 => {
                    pool.clear();
                    waiting.clear();
                }
                _ => site.clock.advance(ms(random.below(60))),
            }
            let mut turns = Vec::new();
            let free = workers - running.len();
            let nap = pool.advance(workers, free, &mut turns);
            for (id, turn) in turns {
                let at = waiting.iter().position(|other| *other == id).expect("it waits");
                match turn {
                    Turn::Held(_) => {}
                    Turn::Go(_) => running.push(waiting.swap_remove(at)),
                    Turn::Away(text, _) => {
                        waiting.swap_remove(at);
                        if let Some(text) = text {
                            limiter.cancel_place(&limiter.permit_from_text(&text).unwrap()).unwrap();
                        }
                    }
                    Turn::Failed(error) => panic!("{error}"),
                }
            }
            assert!(running.len() <= workers && pool.running() == running.len());
            assert_eq!(pool.waiting().map(|(_, waiting)| waiting).sum::<usize>(), waiting.len(), "{seed} {policy}");
            assert!(
                waiting.is_empty() || nap.is_some() || free == 0 || running.len() == workers,
                "{seed} {policy}: all sleep"
            );
        }
    }
}

/// The pool was due at once for ever, because of a tenant without waiters.
#[test]
fn a_tenant_that_leaves_while_no_worker_is_free_is_not_waited_for() {
    for how in ["leave", "clear", "take_along", "leave while another runs"] {
        let site = Site::new();
        let limiter = site.store.limiter("api", "5/1s shared").unwrap();
        let mut pool = Pool::new(limiter, None);
        let mut notices = Vec::new();
        let mut id = pool.join(Waiter::new("acme", 1)).unwrap();
        if how.ends_with("runs") {
            while notices.is_empty() {
                site.clock.advance(ms(10));
                pool.advance(1, 1, &mut notices);
            }
            id = pool.join(Waiter::new("acme", 1)).unwrap();
        }
        for _ in 0..5 {
            pool.advance(1, 0, &mut notices);
            site.clock.advance(ms(10));
        }
        match how {
            "clear" => pool.clear(),
            "take_along" => _ = pool.take_along(id),
            _ => pool.leave(id),
        }
        let mut next = None;
        for _ in 0..50 {
            site.clock.advance(ms(100));
            next = pool.advance(2, 1, &mut notices);
        }
        assert_ne!(next, Some(Duration::ZERO), "{how}");
    }
}
