//! Limits that tenants share: who starts next, by what each has had.

use crate::common::limits::patient;
use crate::common::{Child, Dir, shared, wait_until};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::thread;
use std::time::Duration;
use workglow_limit::embed::{Joined, Line, Outcome, Waiter};
use workglow_limit::observe::Observer;
use workglow_limit::*;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn admitted(attempt: Attempt) -> Option<RawPermit> {
    if let Attempt::Admitted(permit) = attempt { Some(permit) } else { None }
}

/// Lines of one shared limit, as several loops have them, by a manual clock.
struct Bench {
    clock: ManualClock,
    store: Store,
    limiter: Arc<dyn Limiter>,
    lines: Vec<Line>,
    /// The tenant of each waiter.
    tenants: BTreeMap<(usize, u64), &'static str>,
    running: Vec<RawPermit>,
    /// Who started, in order, and when.
    started: Vec<(&'static str, Duration)>,
    _dir: Dir,
}

impl Bench {
    fn new(name: &str, is_lane: bool, policy: &str, lines: usize) -> Bench {
        let (dir, clock) = (Dir::new(name), ManualClock::new());
        let mut options = StoreOptions::default();
        (options.clock, options.timeout) = (Some(clock.clone()), Duration::from_secs(60));
        let url = if is_lane { dir.url() } else { "memory:".into() };
        let store = Store::with_options(&url, options).unwrap();
        let limiter = store.limiter("api", policy).unwrap();
        let lines = (0..lines).map(|_| Line::new(limiter.clone())).collect();
        let (tenants, running, started) = Default::default();
        Bench { clock, store, limiter, lines, tenants, running, started, _dir: dir }
    }

    fn join(&mut self, line: usize, tenant: &'static str, waiter: Waiter<'_>) {
        self.clock.advance(Duration::from_micros(1));
        match self.lines[line].join(Waiter { key: tenant, ..waiter }).unwrap() {
            Joined::Waiting(id) => drop(self.tenants.insert((line, id), tenant)),
            Joined::Done(Outcome::Admitted(permit)) => {
                self.started.push((tenant, self.clock.now()));
                self.running.push(permit);
            }
            Joined::Done(outcome) => panic!("{outcome:?}"),
        }
    }

    fn join_many(&mut self, line: usize, tenant: &'static str, count: usize) {
        (0..count).for_each(|_| self.join(line, tenant, Waiter::new("", 1)));
    }

    /// Each line does what is due.
    fn advance(&mut self) {
        let mut over = Vec::new();
        for line in 0..self.lines.len() {
            self.lines[line].advance(&mut over);
            for (id, outcome) in over.drain(..) {
                let Outcome::Admitted(permit) = outcome else { panic!("{outcome:?}") };
                self.started.push((self.tenants[&(line, id)], self.clock.now()));
                self.running.push(permit);
            }
        }
    }

    /// Lets time pass until so many more have started, or for so long at most. Returns who started.
    fn pass_time(&mut self, count: usize, most: Duration) -> Vec<&'static str> {
        let (before, end) = (self.started.len(), self.clock.now() + most);
        while self.started.len() < before + count && self.clock.now() < end {
            self.clock.advance(ms(1));
            self.advance();
        }
        self.started[before..].iter().map(|(tenant, _)| *tenant).collect()
    }

    /// Jobs end, the oldest first, one at a time, until so many more have started.
    fn end_jobs(&mut self, count: usize) -> Vec<&'static str> {
        let before = self.started.len();
        for _ in 0..count {
            let (permit, had) = (self.running.remove(0), self.started.len());
            self.limiter.complete(&permit).unwrap();
            for _ in 0..40 {
                self.clock.advance(ms(1));
                self.advance();
                if self.started.len() > had {
                    break;
                }
            }
        }
        self.started[before..].iter().map(|(tenant, _)| *tenant).collect()
    }
}

fn count(started: &[&str], tenant: &str) -> usize {
    started.iter().filter(|other| **other == tenant).count()
}

#[test]
fn all_tenants_have_one_budget_and_nothing_differs_while_nobody_waits() {
    for is_lane in [false, true] {
        for policy in ["4/1m shared", "4/1m burst 4 shared", "4 concurrent shared", "4/1m fixed shared"] {
            let bench = Bench::new("one-budget", is_lane, policy, 0);
            let api = &bench.limiter;
            for tenant in ["acme", "bolt", "", "acme"] {
                assert!(api.peek(tenant, 1).unwrap().admitted, "{policy}");
                assert!(admitted(api.attempt(tenant, 1).unwrap()).is_some(), "{policy}");
            }
            assert_eq!((api.peek("coil", 1).unwrap().remaining, api.decide("coil", 1).unwrap().admitted), (0, false));
            assert_eq!((api.stats("acme").unwrap().admitted, api.stats("").unwrap().denied), (4, 1));
            let error = api.attempt("acme", 5).unwrap_err();
            assert!(error.to_string().starts_with("weight is 5: limit \"api\" grants at most 4 units"), "{error}");
            api.clear("bolt").unwrap();
            assert!(api.try_acquire("coil", 4).unwrap().is_some());
        }
    }
}

#[test]
fn what_cannot_be_shared_is_refused() {
    let store = Store::new("memory:").unwrap();
    let refused = |policy: &str| store.limiter("api", policy).map(drop).unwrap_err().to_string();
    let leaky = "\"5/1s queue 3\" cannot be shared by tenants: the queue of a leaky bucket is in the order of asking";
    assert_eq!(refused("5/1s queue 3 shared"), leaky);
    assert_eq!(
        refused("5/1s shared 3"),
        "policy is \"5/1s shared 3\": expected no share: each tenant's is set by `share`"
    );
    for url in ["redis://localhost:1", "postgres://localhost:1/x"] {
        if let Ok(store) = Store::new(url) {
            let expected =
                "limit \"api\" is \"5/1s shared\": tenants share limits in memory: and sqlite: stores, not on servers";
            assert_eq!(store.limiter("api", "5/1s shared").map(drop).unwrap_err().to_string(), expected);
        }
    }
    let api = store.limiter("api", "5/1s shared").unwrap();
    let _plain = store.limiter("plain", "5/1s").unwrap();
    let refused = |name: &str, key: &str, share| store.share(name, key, share).unwrap_err().to_string();
    assert_eq!(refused("api", "acme", 0), "share is 0: expected a whole number from 1 to 1000");
    assert_eq!(refused("api", "acme", 1_001), "share is 1001: expected a whole number from 1 to 1000");
    assert_eq!(
        refused("api", "", 2),
        "key is empty: expected 1 to 1024 bytes of UTF-8, or no key for the limit itself"
    );
    assert_eq!(refused("plain", "acme", 2), "limit \"plain\" is not shared by tenants, so it has no shares");
    assert!(refused("gone", "acme", 2).contains("gone"));
    let plan = store.override_limit("api", "9/1s shared", Some("acme")).unwrap_err().to_string();
    assert!(plan.ends_with("a tenant has no policy of its own in it, but a share (`share`)"), "{plan}");
    for share in [0, 1_001] {
        let expected = format!("share is {share}: expected a whole number from 1 to 1000");
        let waiter = || Waiter::new("acme", 1).share(share);
        assert_eq!(embed::acquire(&*api, waiter()).unwrap_err().to_string(), expected);
        assert_eq!(Line::new(api.clone()).join(waiter()).unwrap_err().to_string(), expected);
    }
    // Shared or not is a kind of limit: what was counted for keys is not what is counted for all.
    let error = store.limiter("plain", "5/1s shared").unwrap().open().unwrap_err().to_string();
    assert!(error.contains("shared-rate"), "{error}");
}

#[test]
fn a_file_declares_a_shared_limit() {
    let (dir, store) = (Dir::new("shared-file"), Store::new("memory:").unwrap());
    let text = "[api]\nallowed = 5\nperiod = '1m'\nconcurrency = 2\nshared = true\n";
    std::fs::write(dir.file("limits.toml"), text).unwrap();
    store.load(&dir.file("limits.toml")).unwrap();
    let api = store.find("api").unwrap();
    assert_eq!(api.part_names(), ["shared-rate", "shared-concurrency"]);
    let permits = [(); 2].map(|()| api.try_acquire("acme", 1).unwrap().unwrap());
    assert_eq!(api.decide("bolt", 1).unwrap().denied_by.as_deref(), Some("api/shared-concurrency"));
    drop(permits);
    assert!(api.try_acquire("bolt", 1).unwrap().is_some());
    store.share("api", "bolt", 3).unwrap();
}

#[test]
fn a_share_is_kept_in_the_store() {
    let dir = Dir::new("kept-share");
    let policy = "1/1s shared";
    {
        let store = patient(&dir.url());
        store.limiter("api", policy).unwrap().open().unwrap();
        store.share("api", "acme", 3).unwrap();
        store.share("api", "bolt", 7).unwrap();
        store.share("api", "bolt", 1).unwrap();
    }
    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    let rows: Vec<String> = crate::common::with_database(&dir, |database| {
        let query = "SELECT key || ' ' || policy FROM keys WHERE policy IS NOT NULL";
        let mut rows = database.prepare(query).unwrap();
        rows.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    });
    assert_eq!(rows, ["acme 1/1s shared 3"]);
    patient(&dir.url()).limiter("api", policy).unwrap().open().unwrap();
}

/// The share that a snapshot shows for a tenant, if any, with this many others.
fn shown(store: &Store, limit: &str, tenant: &str, others: usize) -> Option<u32> {
    let seen = Observer::new(store, others).only(limit).seek(tenant).look().unwrap();
    let tenants = seen.limits.into_iter().flat_map(|limit| limit.tenants);
    tenants.filter(|seen| seen.key == tenant).map(|seen| seen.share).next()
}

#[test]
fn an_override_of_a_key_is_lifted_without_its_share() {
    for is_lane in [false, true] {
        let bench = Bench::new("lifted", is_lane, "all: 9/1s shared + own: 2/1s", 0);
        let store = &bench.store;
        store.share("api", "acme", 3).unwrap();
        store.override_limit("api", "own: 5/1s", Some("acme")).unwrap();
        assert_eq!(store.find("api").unwrap().peek("acme", 1).unwrap().limit, 5);
        store.lift("api", Some("acme")).unwrap();
        assert_eq!(store.find("api").unwrap().peek("acme", 1).unwrap().limit, 2);
        assert_eq!(shown(store, "api", "acme", 9), Some(3));
        // Nothing to lift.
        store.lift("api/all", Some("acme")).unwrap();
        store.lift("api", Some("bolt")).unwrap();
        assert_eq!(shown(store, "api", "acme", 9), Some(3));
        store.share("api", "acme", 1).unwrap();
        assert_eq!(shown(store, "api", "acme", 9), None);
    }
}

/// However many other shares are kept, and whether the tenant waits or not.
#[test]
fn the_share_of_a_sought_tenant_is_shown() {
    for is_lane in [false, true] {
        let mut bench = Bench::new("sought", is_lane, "1 concurrent shared", 1);
        let tenants: Vec<String> = (0..40).map(|i| format!("tenant-{i}")).collect();
        for (i, tenant) in tenants.iter().enumerate() {
            bench.store.share("api", tenant, 2 + i as u32).unwrap();
        }
        (0..2).for_each(|_| bench.join(0, "tenant-7", Waiter::new("", 1)));
        bench.advance();
        for others in [0, 1, 40] {
            for (i, tenant) in tenants.iter().enumerate() {
                assert_eq!(shown(&bench.store, "api", tenant, others), Some(2 + i as u32), "{tenant}, {others} others");
            }
        }
        let seen = Observer::new(&bench.store, 10).only("api").look().unwrap();
        assert_eq!(seen.limits[0].tenants.len(), 11);
        assert_eq!((seen.limits[0].tenants[0].key.as_str(), seen.limits[0].tenants[0].share), ("tenant-7", 9));
    }
}

/// Tenants have no cells of their own, which another policy would make larger.
#[test]
fn a_policy_with_many_kept_shares_takes_no_more_space() {
    let dir = Dir::new("many-shares");
    for url in ["memory:", &dir.url()] {
        let mut options = StoreOptions::default();
        (options.max_size, options.timeout) = (Some(16 << 20), Duration::from_secs(60));
        let store = Store::with_options(url, options).unwrap();
        let api = store.limiter("api", "500/1m shared").unwrap();
        api.open().unwrap();
        (0..300).for_each(|i| store.share("api", &format!("tenant-{i}"), 2).unwrap());
        store.override_limit("api", "5000/1m shared", None).unwrap();
        assert_eq!(api.peek("tenant-7", 1).unwrap().limit, 5_000);
        assert_eq!(shown(&store, "api", "tenant-7", 1), Some(2));
    }
}

#[test]
fn the_next_slot_goes_to_the_tenant_that_has_had_the_least() {
    for (is_lane, lines) in [(false, [0, 0, 0]), (true, [0, 0, 0]), (false, [0, 1, 2]), (true, [0, 1, 2])] {
        let mut bench = Bench::new("slots", is_lane, "1 concurrent shared", 3);
        bench.store.share("api", "bolt", 3).unwrap();
        bench.join(0, "acme", Waiter::new("", 1));
        let [acme, bolt, coil] = lines;
        bench.join_many(acme, "acme", 200);
        bench.join_many(bolt, "bolt", 200);
        (0..200).for_each(|_| bench.join(coil, "coil", Waiter::new("", 1).share(2)));
        let started = bench.end_jobs(300);
        assert_eq!(started.len(), 300, "no slot is idle");
        let had = ["acme", "bolt", "coil"].map(|tenant| count(&started, tenant) as f64);
        for (had, share) in had.into_iter().zip([1.0, 3.0, 2.0]) {
            assert!((had - 50.0 * share).abs() <= share, "{started:?}");
        }
    }
}

#[test]
fn a_tenant_with_one_waiter_does_not_wait_for_another_with_hundreds() {
    for is_lane in [false, true] {
        for (policy, most) in [("10/1s shared", 11), ("10/1s burst 10 shared", 11), ("10/1s counter shared", 30)] {
            for line in [0, 1] {
                let mut bench = Bench::new("whale", is_lane, policy, 2);
                bench.join_many(0, "whale", 400);
                bench.pass_time(50, ms(20_000));
                bench.join(line, "minnow", Waiter::new("", 1));
                // Not sooner than all places that are taken ahead, and the window.
                let before = bench.started.len();
                while count(&bench.pass_time(1, ms(2_000)), "minnow") == 0 {
                    assert!(bench.started.len() <= before + most, "{policy}: {} before", bench.started.len() - before);
                }
            }
        }
    }
}

/// T4: by whatever order lines look, what two tenants that keep waiting have had differs by at most one heaviest start each,
/// by their shares; and nobody is left out of the limit.
#[test]
fn what_tenants_have_had_differs_by_no_more_than_one_start_each() {
    const TENANTS: [(&str, u32, u64); 4] = [("acme", 1, 1), ("bolt", 3, 2), ("coil", 2, 3), ("dial", 1, 1)];
    for (is_lane, seed) in [(false, 1), (true, 2), (true, 3)] {
        for policy in ["6/1s shared", "6/1s burst 6 shared"] {
            let mut bench = Bench::new("differ", is_lane, policy, 3);
            for round in 0..80 {
                for (i, (tenant, share, weight)) in TENANTS.into_iter().enumerate() {
                    let line = if seed == 1 { 0 } else { (i + round) % 3 };
                    bench.join(line, tenant, Waiter::new("", weight).share(share));
                }
            }
            bench.started.clear();
            let started = bench.pass_time(120, ms(100_000));
            let mut had = [0.0; 4];
            for tenant in started {
                let i = TENANTS.iter().position(|(other, ..)| *other == tenant).unwrap();
                had[i] += TENANTS[i].2 as f64 / f64::from(TENANTS[i].1);
                for (j, (_, r, w)) in TENANTS.into_iter().enumerate() {
                    let one_each = w as f64 / f64::from(r) + TENANTS[i].2 as f64 / f64::from(TENANTS[i].1);
                    assert!((had[i] - had[j]).abs() <= one_each + 1e-3, "{policy}, seed {seed}: {had:?}");
                }
            }
            // Nobody was idle: the weights of 120 starts are 200 units, at 6 a second.
            let (first, last) = (bench.started[0].1, bench.started[119].1);
            println!("{policy}, seed {seed}: 120 starts in {:?}", last - first);
            assert!(last - first < ms(40_000), "{policy}: {:?}", last - first);
        }
    }
}

/// Threads of several processes start for their tenants, until all have started so often. Returns how often each did, after the
/// first `skipped` starts.
fn race(name: &str, policy: &str, tenants: &[(&'static str, usize, usize)], starts: u64, skipped: u64) -> Vec<u64> {
    let dir = Dir::new(name);
    let (url, told) = (dir.url(), shared(2 + tenants.len()));
    let store = patient(&url);
    store.limiter("api", policy).unwrap().open().unwrap();
    tenants.iter().for_each(|(tenant, share, _)| store.share("api", tenant, *share as u32).unwrap());
    let total = || told[1].load(Acquire);
    let run = |(i, &(tenant, _, threads)): (usize, &(&'static str, usize, usize))| {
        Child::run(|| {
            let limiter = patient(&url).limiter("api", policy).unwrap();
            let ready = std::sync::Barrier::new(threads);
            let work = || {
                limiter.open().unwrap();
                if ready.wait().is_leader() {
                    told[0].fetch_add(1, AcqRel);
                }
                wait_until("all are ready", || told[0].load(Acquire) == tenants.len() as u64);
                while total() < starts {
                    let permit = limiter.acquire(tenant, 1, None).unwrap().unwrap();
                    let n = told[1].fetch_add(1, AcqRel);
                    if (skipped..starts).contains(&n) {
                        told[2 + i].fetch_add(1, AcqRel);
                    }
                    thread::sleep(ms(1));
                    permit.complete().unwrap();
                }
            };
            thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
        })
    };
    let children: Vec<Child> = tenants.iter().enumerate().map(run).collect();
    children.into_iter().for_each(Child::join);
    let had = (0..tenants.len()).map(|i| told[2 + i].load(Acquire)).collect();
    println!("{policy}: {had:?}");
    had
}

/// Processes that keep several waiters each have starts by their shares. (Exactly so, unless the machine stops one of them for
/// longer than others wait for it.)
#[test]
fn processes_of_tenants_have_starts_by_their_shares() {
    for (name, policy) in [("race-slots", "2 concurrent shared"), ("race-rate", "20/100ms shared")] {
        let had = race(name, policy, &[("acme", 1, 8), ("bolt", 3, 16), ("coil", 2, 12)], 660, 60);
        for (had, share) in had.into_iter().zip([1, 3, 2]) {
            assert!((70 * share..=130 * share).contains(&had), "{policy}");
        }
    }
}

#[test]
fn who_does_not_wait_passes_no_tenant_whose_turn_comes_first() {
    for is_lane in [false, true] {
        for policy in ["1 concurrent shared", "1/1s burst 1 shared"] {
            let mut bench = Bench::new("no-passing", is_lane, policy, 1);
            bench.join_many(0, "acme", 4);
            let is_denied = |bench: &Bench, tenant: &str| {
                let (peeked, decided) =
                    (bench.limiter.peek(tenant, 1).unwrap(), bench.limiter.decide(tenant, 1).unwrap());
                assert_eq!(peeked.admitted, decided.admitted);
                assert!(decided.admitted || decided.retry_after > Duration::ZERO && decided.denied_by.is_some());
                bench.running.len() == 1 && !decided.admitted
            };
            // Nobody advances the line meanwhile.
            bench.limiter.cancel(&bench.running[0]).unwrap();
            bench.clock.advance(ms(5));
            assert!(is_denied(&bench, "acme"), "{policy}: in its own tenant's line others wait");
            assert!(is_denied(&bench, "bolt"), "{policy}: nobody has had more than it");
            assert_eq!(bench.limiter.stats("").unwrap().denied, 2);
            // Now acme has had more.
            bench.running.clear();
            assert_eq!(bench.pass_time(1, ms(2_000)), ["acme"], "{policy}");
            bench.limiter.cancel(&bench.running[0]).unwrap();
            assert!(is_denied(&bench, "acme"), "{policy}");
            assert!(bench.limiter.decide("bolt", 1).unwrap().admitted, "{policy}: its turn comes first");
        }
    }
}

/// Each call for as many units as the head wants, or for more than are free, began the watch anew.
#[test]
fn who_does_not_wait_passes_a_heavy_tenant_that_stands_still_whatever_else_is_asked() {
    for is_lane in [false, true] {
        for policy in ["10 concurrent shared", "10/1h shared"] {
            let mut bench = Bench::new("mixed-calls", is_lane, policy, 1);
            assert!(bench.limiter.decide("bolt", 7).unwrap().admitted);
            // Nobody advances its line.
            bench.join(0, "acme", Waiter::new("", 5));
            assert!(bench.started.is_empty());
            let passes = |_| {
                bench.clock.advance(ms(20));
                assert!(!bench.limiter.decide("bolt", 6).unwrap().admitted);
                bench.limiter.decide("bolt", 1).unwrap().admitted
            };
            assert!(!passes(0), "{policy}: acme may answer");
            assert!((0..50).any(passes), "{policy}: three units are idle");
        }
    }
}

#[test]
fn a_tenant_that_is_back_from_silence_and_one_with_another_share_start_accordingly() {
    for (is_lane, line) in [(false, 0), (true, 1)] {
        let mut bench = Bench::new("silence", is_lane, "2 concurrent shared", 2);
        bench.join_many(0, "acme", 300);
        bench.join_many(line, "bolt", 2);
        bench.end_jobs(60);
        bench.join_many(line, "bolt", 200);
        let started = bench.end_jobs(40);
        assert!(count(&started, "acme").abs_diff(20) <= 1, "it has neither credit nor debt: {started:?}");
        bench.store.share("api", "bolt", 4).unwrap();
        let started = bench.end_jobs(50);
        assert!(count(&started, "bolt").abs_diff(40) <= 2, "{started:?}");
        bench.store.share("api", "bolt", 1).unwrap();
        let started = bench.end_jobs(20);
        assert!(count(&started, "bolt").abs_diff(10) <= 2, "{started:?}");
    }
}

#[test]
fn a_forecast_counts_the_tenants_that_are_next_before_this_one() {
    for is_lane in [false, true] {
        let mut bench = Bench::new("shared-forecast", is_lane, "2/1s shared", 2);
        let seconds = |bench: &Bench, tenant, starts| {
            bench.limiter.forecast(starts, tenant).unwrap().map(|after| after.as_secs_f64().round() as u64)
        };
        let of = |bench: &Bench, tenant| [1, 2, 3, 4].map(|n| seconds(bench, tenant, n).unwrap());
        assert_eq!((of(&bench, "small"), of(&bench, "whale")), ([0, 0, 1, 1], [0, 0, 1, 1]), "nobody waits");
        bench.join_many(0, "whale", 9);
        assert_eq!(of(&bench, "small"), [1, 2, 2, 3], "both have had nothing, and the whale's first was here before");
        assert_eq!(bench.pass_time(2, ms(1_500)), ["whale"; 2]);
        assert_eq!(of(&bench, "small"), [1, 1, 2, 2], "the whale has had a start more");
        assert_eq!(of(&bench, "whale"), [1, 2, 2, 3]);
        assert!(bench.limiter.forecast(1, &"k".repeat(2_000)).is_err());

        let mut bench = Bench::new("shared-forecast-slots", is_lane, "2 concurrent shared", 2);
        assert_eq!([1, 2, 3].map(|n| seconds(&bench, "small", n)), [Some(0), Some(0), None]);
        bench.join_many(0, "whale", 3);
        bench.limiter.complete(&bench.running.remove(0)).unwrap();
        assert_eq!(seconds(&bench, "small", 1), None, "the free one is the whale's");
    }
}

/// Waiters who leave are not charged, nor is their tenant for the places that they held.
#[test]
fn who_leaves_is_not_charged() {
    for is_lane in [false, true] {
        let mut bench = Bench::new("leaving", is_lane, "20/1s shared", 2);
        bench.join_many(0, "acme", 100);
        bench.join_many(1, "bolt", 40);
        bench.pass_time(20, ms(3_000));
        // They hold places for the next moments.
        let of_bolt: Vec<(usize, u64)> =
            bench.tenants.iter().filter(|(_, tenant)| **tenant == "bolt").map(|(at, _)| *at).collect();
        of_bolt.iter().for_each(|(line, id)| bench.lines[*line].leave(*id));
        bench.pass_time(10, ms(3_000));
        bench.join_many(1, "bolt", 40);
        let started = bench.pass_time(20, ms(3_000));
        assert!(count(&started, "bolt").abs_diff(10) <= 3, "{started:?}");
    }
}

#[test]
fn a_shared_part_of_a_composite_is_shared_there_too() {
    for is_lane in [false, true] {
        let mut bench = Bench::new("parts", is_lane, "all: 6/1s shared + own: 100/1s + 50 concurrent", 3);
        bench.store.share("api", "bolt", 3).unwrap();
        for (line, tenant) in ["acme", "bolt", "coil"].into_iter().enumerate() {
            (0..60).for_each(|_| bench.join(line, tenant, Waiter::new("", 1)));
        }
        bench.running.drain(..).for_each(|permit| bench.limiter.complete(&permit).unwrap());
        let started = bench.pass_time(50, ms(20_000));
        assert_eq!(started.len(), 50);
        let had = ["acme", "bolt", "coil"].map(|tenant| count(&started, tenant));
        assert!(had[0].abs_diff(10) <= 1 && had[1].abs_diff(30) <= 2 && had[2].abs_diff(10) <= 1, "{had:?}");
        let (first, last) = (bench.started[bench.started.len() - 50].1, bench.started.last().unwrap().1);
        assert!(last - first < ms(9_000), "50 at 6 a second, {:?}", last - first);
    }
}

/// A survey looks at the lines of all tenants. So a start costs as many surveys with many of them as with few.
#[cfg(feature = "fault-points")]
#[test]
fn what_a_start_costs_grows_no_faster_than_the_number_of_tenants() {
    use workglow_limit::fault::surveys;
    for (policy, lines) in
        [("1 concurrent shared", 1), ("1 concurrent shared", 2), ("100/1s shared", 1), ("100/1s shared", 2)]
    {
        for tenants in [10, 200] {
            let mut bench = Bench::new("surveys", true, policy, lines);
            bench.join_many(0, "first", 100);
            let names = (0..tenants).map(|i| &*format!("tenant-{i}").leak());
            names.enumerate().for_each(|(i, name)| bench.join_many(i % lines, name, 3));
            bench.clock.advance(ms(100));
            bench.advance();
            let before = surveys();
            let had = bench.started.len();
            while bench.started.len() < had + 30 {
                bench.running.drain(..).for_each(|permit| bench.limiter.complete(&permit).unwrap());
                bench.lines.iter_mut().for_each(|line| line.wake(None));
                bench.pass_time(1, ms(1_000));
            }
            let each = (surveys() - before) / (bench.started.len() - had) as u64;
            assert!(each <= 40, "{policy}, {lines} loops, {tenants} tenants: {each} surveys for each start");
        }
    }
}

/// A line that waits in a second shared part, which is full, does not keep others from what is free in the first.
#[test]
fn a_full_second_shared_part_holds_up_nobody_in_the_first() {
    for is_lane in [false, true] {
        let mut bench = Bench::new("two-parts", is_lane, "10/1s shared", 2);
        let full = bench.store.limiter("full", "1/1m shared").unwrap();
        assert!(admitted(full.attempt("other", 1).unwrap()).is_some());
        let both = Arc::new(CompositeLimiter::new([bench.limiter.clone(), full]));
        bench.lines[1] = Line::new(both);
        for tenant in ["acme", "bolt", "coil"] {
            bench.join_many(1, tenant, 3);
        }
        bench.join_many(0, "dune", 60);
        let started = bench.pass_time(40, ms(4_000));
        assert_eq!((started.len(), count(&started, "dune")), (40, 40), "{:?}", bench.clock.now());
    }
}

/// A tenant at its own bound does not keep the others from what is free for all.
#[test]
fn a_tenant_at_its_own_bound_holds_up_nobody() {
    for is_lane in [false, true] {
        let mut bench = Bench::new("bounds", is_lane, "all: 6/1s shared + own: 1/1s", 2);
        for (line, tenant) in [(0, "acme"), (1, "bolt"), (1, "coil")] {
            bench.join_many(line, tenant, 20);
        }
        let started = bench.pass_time(30, ms(12_000));
        let had = ["acme", "bolt", "coil"].map(|tenant| count(&started, tenant));
        assert_eq!(had, [10, 10, 10], "{:?}", bench.clock.now());
    }
}

/// The process of a tenant with many waiters is killed, also while it is charged: the others go on.
#[cfg(feature = "fault-points")]
#[test]
fn a_tenant_whose_process_is_killed_is_in_nobodys_way() {
    for point in ["", "start-uncharged", "tenant-taken", "tenant-charged", "head-hidden"] {
        let dir = Dir::new(&format!("whale-{point}"));
        let limiter = patient(&dir.url()).limiter("api", "1 concurrent shared").unwrap();
        let held = admitted(limiter.attempt("acme", 1).unwrap()).unwrap();
        let told = shared(1);
        let child = Child::run(|| {
            let limiter = patient(&dir.url()).limiter("api", "1 concurrent shared").unwrap();
            let mut line = Line::new(limiter.clone());
            (0..50).for_each(|_| assert!(matches!(line.join(Waiter::new("whale", 1)), Ok(Joined::Waiting(_)))));
            told[0].store(1, Release);
            let mut over = Vec::new();
            loop {
                if !point.is_empty() && told[0].load(Acquire) == 2 {
                    fault::at(point, || crate::common::raise(libc::SIGKILL));
                    told[0].store(3, Release);
                }
                let nap = line.advance(&mut over).unwrap_or_default();
                for (_, outcome) in over.drain(..) {
                    let Outcome::Admitted(permit) = outcome else { panic!("{outcome:?}") };
                    limiter.complete(&permit).unwrap();
                }
                thread::sleep(nap.min(ms(1)));
            }
        });
        wait_until("it waits", || told[0].load(Acquire) == 1);
        let next = thread::spawn({
            let limiter = limiter.clone();
            move || {
                for _ in 0..3 {
                    limiter.acquire("minnow", 1, None).unwrap().unwrap().complete().unwrap();
                }
            }
        });
        if point.is_empty() {
            drop(child);
            limiter.complete(&held).unwrap();
        } else {
            told[0].store(2, Release);
            wait_until("it is going to die", || told[0].load(Acquire) == 3);
            limiter.complete(&held).unwrap();
            assert!(child.was_killed(), "{point}");
        }
        next.join().unwrap();
        // Nobody waits any more, or only the dead.
        wait_until("all is free", || limiter.attempt("bolt", 1).is_ok_and(|answer| admitted(answer).is_some()));
    }
}

/// Each had 33 KB of its own once, for ever.
#[test]
fn limits_that_are_forgotten_leave_their_space_to_others() {
    let (dir, mut options) = (Dir::in_memory("forgotten-tenants"), StoreOptions::default());
    (options.max_size, options.timeout) = (Some(1 << 20), Duration::from_secs(60));
    let store = Store::with_options(&dir.url(), options).unwrap();
    for round in 0..150 {
        // (If it is of another kind than the last one, it is another limit.)
        let policies = ["1 concurrent shared", "1/1h shared"];
        let limiter = store.limiter("api", policies[round % 2]).unwrap();
        assert!(admitted(limiter.attempt("a", 1).unwrap()).is_some(), "round {round}");
        let mut line = Line::new(limiter.clone());
        assert!(matches!(line.join(Waiter::new("b", 1)).unwrap(), Joined::Waiting(_)));
        // What the first one's tenants have had, and who waited, is not known to the next one.
        if round % 3 == 0 {
            drop(line);
        }
        store.forget("api").unwrap();
    }
}
