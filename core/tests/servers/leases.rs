//! Leases on a server: a living holder keeps its lease, and a dead one returns it.
#![cfg(all(any(feature = "redis", feature = "postgres"), feature = "fault-points"))]

use crate::common::limits::patient;
use crate::common::server::Server;
use crate::common::{self, Child, shared, wait_until};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use workglow_limit::hooks::{Event, Happening};
use workglow_limit::*;

const SECOND: Duration = Duration::from_secs(1);

/// How long unrenewed leases last here.
const HOLDS: Duration = Duration::from_secs(6);

fn set(name: &std::ffi::CStr, value: &str) {
    let value = std::ffi::CString::new(value).unwrap();
    // SAFETY: two strings that end in NUL. (Here the environment is read only by Rust's functions, which copy what they
    // find.)
    assert_eq!(unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) }, 0);
}

fn servers(name: &str) -> impl Iterator<Item = Server> {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| set(c"WGL_TEST_LEASE_MS", &HOLDS.as_millis().to_string()));
    Server::each(name)
}

fn jobs(url: &str, max: u64) -> ConcurrencyLimiter {
    jobs_named("jobs", url, max)
}

fn jobs_named(name: &str, url: &str, max: u64) -> ConcurrencyLimiter {
    ConcurrencyLimiter::shared(&patient(url), name, max, None).unwrap()
}

fn take(jobs: &ConcurrencyLimiter) -> Option<RawPermit> {
    match jobs.attempt("", 1).unwrap() {
        Attempt::Admitted(permit) => Some(permit),
        Attempt::Denied(_) => None,
    }
}

/// The machine stood still for so long that a lease may have ended unrenewed.
struct StoodStill;

/// Runs a test of living holders, with a name for its limit: again with another name if the machine stood still.
fn while_the_machine_runs(test: impl Fn(&str) -> Result<(), StoodStill>) {
    assert!((0..10).any(|i| test(&format!("jobs-{i}")).is_ok()), "the machine stood still ten times");
}

/// Asserts that no unit becomes free while two unrenewed leases would have ended.
fn no_unit_becomes_free(here: &ConcurrencyLimiter) -> Result<(), StoodStill> {
    let began = Instant::now();
    while began.elapsed() < 2 * HOLDS {
        let looked = Instant::now();
        let taken = take(here);
        std::thread::sleep(Duration::from_millis(50));
        if looked.elapsed() > HOLDS / 3 {
            return Err(StoodStill);
        }
        assert!(taken.is_none(), "after {:?}", began.elapsed());
    }
    Ok(())
}

fn sleep_for_ever() {
    loop {
        std::thread::sleep(Duration::from_secs(1_000));
    }
}

/// A process of a machine with this name that holds a unit and makes no further request, and a moment before its
/// request.
fn holder(url: &str, machine: &str) -> (Child, Instant) {
    holder_of("jobs", url, machine)
}

fn holder_of(name: &str, url: &str, machine: &str) -> (Child, Instant) {
    let holds = &shared(1)[0];
    let before = Instant::now();
    let child = Child::run(|| {
        set(c"WGL_TEST_SITE", machine);
        let jobs = jobs_named(name, url, 1);
        assert!(take(&jobs).is_some());
        holds.store(1, Release);
        sleep_for_ever();
    });
    wait_until("it holds a unit", || holds.load(Acquire) == 1);
    (child, before)
}

#[test]
fn a_killed_process_returns_its_unit_at_the_next_request_on_its_machine() {
    for server in servers("leases-killed") {
        let here = jobs(&server.url(), 1);
        for by in ["attempt", "peek"] {
            let (child, _) = holder(&server.url(), "");
            assert!(take(&here).is_none() && !here.can_proceed("").unwrap());
            child.signal(libc::SIGKILL);
            assert!(child.was_killed());
            match by {
                "attempt" => here.complete(&take(&here).expect("it is dead")).unwrap(),
                _ => assert!(here.can_proceed("").unwrap(), "it is dead"),
            }
        }
    }
}

/// Its job has used the unit, up to its death at the latest.
#[test]
fn the_unit_of_a_killed_process_cools_down() {
    for server in servers("leases-cooling") {
        for (name, cooldown, is_free) in [("soon", Duration::from_micros(1), true), ("late", 3_600 * SECOND, false)] {
            let policy = Policy::concurrency(1).unwrap().with_cooldown(cooldown).unwrap().to_string();
            let limiter = |url: &str| patient(url).limiter(name, &policy).unwrap();
            let (here, holds) = (limiter(&server.url()), &shared(1)[0]);
            let child = Child::run(|| {
                let jobs = limiter(&server.url());
                let permit = jobs.decide("", 1).unwrap().permit.unwrap();
                holds.store(1, Release);
                sleep_for_ever();
                jobs.complete(&permit).unwrap();
            });
            wait_until("it holds a unit", || holds.load(Acquire) == 1);
            child.signal(libc::SIGKILL);
            assert!(child.was_killed());
            let is_admitted = || here.peek("", 1).unwrap().admitted;
            match is_free {
                true => wait_until("it has cooled down", is_admitted),
                // (It is found dead once.)
                false => assert!((0..3).all(|_| !is_admitted())),
            }
        }
    }
}

#[test]
fn a_zombie_process_counts_as_dead() {
    'servers: for server in servers("leases-zombie") {
        let here = jobs(&server.url(), 1);
        for _ in 0..10 {
            let (child, before) = holder(&server.url(), "");
            child.signal(libc::SIGKILL);
            let mut mine = None;
            wait_until("it is seen to be dead", || {
                mine = take(&here);
                mine.is_some()
            });
            if before.elapsed() < HOLDS {
                continue 'servers;
            }
            // Its lease may just have ended, on such a busy machine.
            here.complete(&mine.unwrap()).unwrap();
        }
        panic!("it was never seen to be dead before its lease ended");
    }
}

#[test]
fn a_lease_of_another_machine_ends_only_with_its_time() {
    for server in servers("leases-elsewhere") {
        let here = jobs(&server.url(), 1);
        let (child, before) = holder(&server.url(), "another");
        child.signal(libc::SIGKILL);
        assert!(child.was_killed());
        wait_until("its lease is over", || take(&here).is_some());
        assert!(before.elapsed() >= HOLDS, "{:?}", before.elapsed());
    }
}

#[test]
fn a_long_job_keeps_its_units_without_requests() {
    for server in servers("leases-long") {
        while_the_machine_runs(|name| {
            let here = jobs_named(name, &server.url(), 1);
            let _holder = holder_of(name, &server.url(), "another");
            no_unit_becomes_free(&here)
        });
    }
}

#[test]
fn a_process_stopped_for_too_long_learns_that_its_lease_was_lost() {
    for server in servers("leases-stopped") {
        let (url, here) = (server.url(), jobs(&server.url(), 1));
        let (holds, continues) = (&shared(2)[0], &shared(2)[1]);
        let child = Child::run(|| {
            set(c"WGL_TEST_SITE", "another");
            let store = patient(&url);
            let jobs = ConcurrencyLimiter::shared(&store, "jobs", 1, None).unwrap();
            let events = Arc::new(Mutex::new(Vec::new()));
            let sink = Arc::clone(&events);
            jobs.on(
                Happening::StoreError,
                Arc::new(move |event: &Event| sink.lock().unwrap().push(event.error.clone())),
            );
            let permit = take(&jobs).unwrap();
            holds.store(1, Release);
            wait_until("it continues", || continues.load(Acquire) == 1);
            let lost = Some(Error::LeaseLost { limit: "jobs".into() });
            assert_eq!(jobs.renew(&permit).err(), lost);
            jobs.complete(&permit).unwrap();
            jobs.complete(&permit).unwrap();
            assert_eq!(*events.lock().unwrap(), [lost]);
            assert!(store.failures() == 0 && jobs.stats("").unwrap().store_errors == 1);
        });
        wait_until("it holds a unit", || holds.load(Acquire) == 1);
        child.signal(libc::SIGSTOP);
        child.wait_until_stopped();
        let mut mine = None;
        wait_until("its lease is over", || {
            mine = take(&here);
            mine.is_some()
        });
        continues.store(1, Release);
        child.signal(libc::SIGCONT);
        child.join();
        // It had no effect on the present holder of the unit.
        assert!(take(&here).is_none());
        here.renew(&mine.unwrap()).unwrap();
    }
}

#[test]
fn a_holder_keeps_its_unit_after_the_server_lost_everything() {
    for server in servers("leases-wiped") {
        while_the_machine_runs(|name| {
            let [one, other] = [(); 2].map(|()| jobs_named(name, &server.url(), 1));
            let permit = take(&one).unwrap();
            assert!(take(&other).is_none());
            server.forget_all();
            no_unit_becomes_free(&other)?;
            one.renew(&permit).unwrap();
            one.complete(&permit).unwrap();
            wait_until("it is free", || take(&other).is_some());
            Ok(())
        });
    }
}

/// Signals the end of a test, in whatever way it ends.
struct Ends(&'static AtomicU64);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(1, Release);
    }
}

#[test]
fn a_forked_child_renews_its_own_leases() {
    for server in servers("leases-forked") {
        let url = server.url();
        while_the_machine_runs(|name| {
            let (words, here) = (shared(2), jobs_named(name, &url, 2));
            let (holds, ends) = (&words[0], Ends(&words[1]));
            let child = Child::run(|| {
                set(c"WGL_TEST_SITE", "another");
                let mine = jobs_named(name, &url, 2);
                take(&mine).unwrap();
                let child = Child::run(|| {
                    take(&mine).unwrap();
                    holds.store(1, Release);
                    // No other process may end it, since it holds pipes of the other tests' servers.
                    while ends.0.load(Acquire) == 0 {
                        std::thread::sleep(Duration::from_millis(50));
                    }
                });
                std::mem::forget(child);
                sleep_for_ever();
            });
            wait_until("both hold a unit", || holds.load(Acquire) == 1);
            no_unit_becomes_free(&here)?;
            // The child's child still holds its own unit when its parent is dead.
            child.signal(libc::SIGKILL);
            assert!(child.was_killed());
            wait_until("the parent's is over", || take(&here).is_some());
            no_unit_becomes_free(&here)
        });
    }
}

/// The number of processes that hold a unit at this moment, by their own record.
fn held(words: &[AtomicU64]) -> usize {
    words.iter().filter(|word| word.load(SeqCst) == 1).count()
}

#[test]
fn five_units_over_four_machines_are_never_exceeded() {
    const MOST: usize = 5;
    for server in servers("leases-storm") {
        let url = server.url();
        // 1: it holds a unit; 2: it is about to be killed.
        let words: &'static [AtomicU64] = shared(12);
        let taken = &shared(1)[0];
        let start = |i: usize| {
            words[i].store(0, SeqCst);
            let url = &url;
            Child::run(move || {
                set(c"WGL_TEST_SITE", &format!("machine {}", i % 4));
                let mut random = common::Random::seeded(std::process::id().into());
                let jobs = jobs(url, MOST as u64);
                loop {
                    let Some(permit) = take(&jobs) else {
                        std::thread::sleep(Duration::from_micros(random.below(5_000)));
                        continue;
                    };
                    // A process that is about to be killed no longer counts: it may be dead when another one checks.
                    if words[i].compare_exchange(0, 1, SeqCst, SeqCst).is_ok() {
                        taken.fetch_add(1, Relaxed);
                        assert!(held(words) <= MOST, "{} at once", held(words));
                        std::thread::sleep(Duration::from_micros(random.below(20_000)));
                        let _ = words[i].compare_exchange(1, 0, SeqCst, SeqCst);
                    }
                    jobs.complete(&permit).unwrap();
                }
            })
        };
        let end = |child: Option<Child>, i: usize| {
            words[i].store(2, SeqCst);
            let child = child.unwrap();
            child.signal(libc::SIGKILL);
            assert!(child.was_killed(), "it held one too many");
        };
        let mut children: Vec<Option<Child>> = (0..words.len()).map(|i| Some(start(i))).collect();
        let mut random = common::Random::seeded(7);
        let (began, mut kills) = (Instant::now(), 0);
        let (mut since, mut last) = (Instant::now(), 0);
        while began.elapsed() < 2 * HOLDS || last < 500 {
            let now = taken.load(Relaxed);
            if now > last {
                (since, last) = (Instant::now(), now);
            }
            assert!(since.elapsed() < common::PATIENCE, "only {last} units were taken");
            std::thread::sleep(Duration::from_millis(20 + random.below(200)));
            let i = random.below(words.len() as u64) as usize;
            end(children[i].take(), i);
            children[i] = Some(start(i));
            kills += 1;
        }
        children.into_iter().enumerate().for_each(|(i, child)| end(child, i));
        eprintln!("{} units were taken, {kills} processes killed", taken.load(Relaxed));
    }
}
