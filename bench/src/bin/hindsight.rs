//! Compares how long jobs wait at `FirstOfLimiter`, by a manual clock, with the least that any choice of providers would have made
//! them wait, known afterwards: of the same jobs, each way to distribute them is tried.
//!
//! `cargo run -p workglow-limit-bench --bin hindsight`

use std::sync::Arc;
use std::time::Duration;
use workglow_limit::embed::{Joined, Line, Outcome, Waiter};
use workglow_limit::{FirstOfLimiter, Limiter, ManualClock, RawPermit, Store, StoreOptions};

/// All times are in milliseconds.
const WINDOW: u64 = 10_000;
/// Of each case so many instances, with so many jobs: each has 2^12 ways to distribute these.
const INSTANCES: u64 = 60;
const JOBS: usize = 12;

/// A provider: so many starts in a window, or so many jobs at a time.
#[derive(Clone, Copy)]
enum Provider {
    Rate(usize),
    Slots(usize),
}

use Provider::{Rate, Slots};

const CASES: [(&str, [Provider; 2]); 5] = [
    ("2/10s, 3/10s", [Rate(2), Rate(3)]),
    ("1 concurrent, 3/10s", [Slots(1), Rate(3)]),
    ("3/10s, 1 concurrent", [Rate(3), Slots(1)]),
    ("2 concurrent, 3/10s", [Slots(2), Rate(3)]),
    ("1 concurrent, 2 concurrent", [Slots(1), Slots(2)]),
];

#[derive(Clone, Copy)]
struct Job {
    arrives: u64,
    runs: u64,
}

fn main() {
    println!("| providers | ms per job at first of | by its rule | best in hindsight |");
    println!("| --- | --- | --- | --- |");
    for (name, providers) in CASES {
        let each = |wait: fn(&[Job], &[Provider]) -> u64| {
            let total: u64 = (1..=INSTANCES).map(|seed| wait(&jobs(seed), &providers)).sum();
            total / (INSTANCES * JOBS as u64)
        };
        println!("| {name} | {} | {} | {} |", each(by_first_of), each(by_rule), each(by_hindsight));
    }
}

/// Jobs that arrive within two windows, by xorshift.
fn jobs(seed: u64) -> [Job; JOBS] {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut jobs = [(); JOBS].map(|()| Job { arrives: random(2 * WINDOW), runs: 1_000 + random(6_000) });
    jobs.sort_by_key(|job| job.arrives);
    jobs
}

/// Returns how long the jobs wait together, each at the provider that can start it first.
fn by_first_of(jobs: &[Job], providers: &[Provider]) -> u64 {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let store = Store::with_options("memory:", options).expect("a store in memory");
    let limiters = providers.iter().enumerate().map(|(i, provider)| {
        let text = match provider {
            Rate(starts) => format!("{starts}/{WINDOW}ms"),
            Slots(jobs) => format!("{jobs} concurrent"),
        };
        store.limiter(&format!("provider-{i}"), &text).expect("a policy")
    });
    let first_of: Arc<dyn Limiter> = Arc::new(FirstOfLimiter::new(limiters.collect::<Vec<_>>()));
    let mut line = Line::new(first_of.clone());
    let (mut now, mut arrived, mut waited) = (0, 0, 0);
    // In microseconds, as lines look again after parts of milliseconds.
    let mut waiting: Vec<(u64, Job)> = Vec::new();
    let mut running: Vec<(u64, RawPermit)> = Vec::new();
    while arrived < jobs.len() || !waiting.is_empty() {
        let arrives = jobs.get(arrived).map(|job| 1_000 * job.arrives);
        let ends = running.iter().map(|(at, _)| *at).min();
        let looks = line.next().map(|nap| now + (nap.as_micros() as u64).max(1));
        let next = [arrives, ends, looks].into_iter().flatten().min().expect("something is due").max(now);
        clock.advance(Duration::from_micros(next - now));
        now = next;
        let mut started: Vec<(Job, RawPermit)> = Vec::new();
        while let Some(at) = running.iter().position(|(at, _)| *at <= now) {
            first_of.complete(&running.swap_remove(at).1).expect("it runs");
            line.wake(Some(""));
        }
        while let Some(job) = jobs.get(arrived).filter(|job| 1_000 * job.arrives <= now) {
            arrived += 1;
            match line.join(Waiter::new("", 1)).expect("a valid request") {
                Joined::Waiting(id) => waiting.push((id, *job)),
                Joined::Done(Outcome::Admitted(permit)) => started.push((*job, permit)),
                Joined::Done(other) => unreachable!("{other:?}"),
            }
        }
        let mut over = Vec::new();
        line.advance(&mut over);
        for (id, outcome) in over {
            let at = waiting.iter().position(|(other, _)| *other == id).expect("it waits");
            let Outcome::Admitted(permit) = outcome else { unreachable!("{outcome:?}") };
            started.push((waiting.remove(at).1, permit));
        }
        for (job, permit) in started {
            waited += now / 1_000 - job.arrives;
            running.push((now + 1_000 * job.runs, permit));
        }
    }
    waited
}

/// What the providers have done.
struct Done<'a> {
    providers: &'a [Provider],
    /// The moments from which each of a provider's units can be used again.
    free: [Vec<u64>; 2],
    last: [u64; 2],
}

impl<'a> Done<'a> {
    fn new(providers: &'a [Provider]) -> Done<'a> {
        let free = [0, 1].map(|i| match providers[i] {
            Rate(units) | Slots(units) => vec![0; units],
        });
        Done { providers, free, last: [0; 2] }
    }

    /// Returns the earliest start of a job at a provider, where jobs start in their order.
    fn earliest(&self, at: usize, job: Job) -> u64 {
        let unit = *self.free[at].iter().min().expect("it has units");
        job.arrives.max(unit).max(self.last[at])
    }

    /// Starts a job, and returns how long it has waited.
    fn start(&mut self, at: usize, job: Job) -> u64 {
        let start = self.earliest(at, job);
        let unit = self.free[at].iter_mut().min().expect("it has units");
        *unit = start + if matches!(self.providers[at], Rate(_)) { WINDOW } else { job.runs };
        self.last[at] = start;
        start - job.arrives
    }
}

/// The same, computed: each job in its order starts where it can start first, in the order of the providers.
fn by_rule(jobs: &[Job], providers: &[Provider]) -> u64 {
    let mut done = Done::new(providers);
    let start = |job: &Job| {
        let at = usize::from(done.earliest(1, *job) < done.earliest(0, *job));
        done.start(at, *job)
    };
    jobs.iter().map(start).sum()
}

/// Returns the least that the jobs wait together, of all ways to distribute them.
fn by_hindsight(jobs: &[Job], providers: &[Provider]) -> u64 {
    let waits = |way: u32| {
        let mut done = Done::new(providers);
        jobs.iter().enumerate().map(|(i, job)| done.start((way >> i & 1) as usize, *job)).sum()
    };
    (0..1u32 << jobs.len()).map(waits).min().expect("there are ways")
}
