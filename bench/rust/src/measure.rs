//! Times cases in turn, slice after slice, so that all cases of a program run under the same load.

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};
use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Slices of each case in a run.
const SLICES: usize = 6;
/// The duration of a slice. Threads need some time to get a core each.
const SLICE: Duration = Duration::from_millis(12);
const SLICE_OF_THREADS: Duration = Duration::from_millis(30);
/// The time to warm the caches again after the other cases.
const WARM_UP: Duration = Duration::from_millis(1);
/// The most decisions of a batch, and its approximate duration.
const BATCH: usize = 200;
const BATCH_NS: f64 = 10_000.0;

/// The fewest batches and single decisions, in case something else has the core.
const MIN: usize = 10;

/// Makes that number of decisions, and returns how many were admitted.
type Decisions<'a> = Box<dyn Fn(usize) -> usize + Sync + 'a>;

/// The result that every decision of a case must have. Any other would be a different measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expect {
    /// An admission.
    Admitted,
    /// A denial.
    Denied,
}

/// One case that is measured.
pub struct Case<'a> {
    name: String,
    group: &'static str,
    peer: &'static str,
    threads: usize,
    expect: Option<Expect>,
    more: Map<String, Value>,
    prepare: Option<Box<dyn Fn() + Sync + 'a>>,
    run: Decisions<'a>,
}

impl<'a> Case<'a> {
    /// A case of one thread, from a closure that decides once and returns whether it was admitted.
    pub fn new(group: &'static str, peer: &'static str, name: &str, decide: impl Fn() -> bool + Sync + 'a) -> Self {
        let run = move |times| (0..times).filter(|_| black_box(decide())).count();
        Self::batched(group, peer, name, run)
    }

    /// A case of one thread, from a closure that makes the number of decisions it is given.
    pub fn batched(
        group: &'static str,
        peer: &'static str,
        name: &str,
        run: impl Fn(usize) -> usize + Sync + 'a,
    ) -> Self {
        let (threads, expect, more) = (1, None, Map::new());
        Case { name: name.into(), group, peer, threads, expect, more, prepare: None, run: Box::new(run) }
    }

    /// The same in `threads` threads at once.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// The result that all decisions must have.
    pub fn all(mut self, expect: Expect) -> Self {
        self.expect = Some(expect);
        self
    }

    /// Runs before each slice.
    pub fn prepared(mut self, prepare: impl Fn() + Sync + 'a) -> Self {
        self.prepare = Some(Box::new(prepare));
        self
    }

    /// More fields for its line.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.into(), value.into());
        self
    }

    /// Makes `times` decisions.
    fn decide(&self, times: usize) {
        let admitted = (self.run)(times);
        let is_right = match self.expect {
            Some(Expect::Admitted) => admitted == times,
            Some(Expect::Denied) => admitted == 0,
            None => true,
        };
        assert!(is_right, "{}: {admitted} of {times} were admitted, where {:?} was expected", self.name, self.expect);
    }
}

/// The results of one case so far.
pub struct Figures {
    /// The nanoseconds of a decision, one figure per batch.
    pub batches: Vec<f64>,
    /// The nanoseconds of single decisions.
    pub singles: Histogram<u64>,
    /// The decisions of the batches, their duration, and their CPU time.
    pub decisions: usize,
    /// See `decisions`.
    pub elapsed_ns: f64,
    /// See `decisions`.
    pub cpu_ns: f64,
}

impl Default for Figures {
    fn default() -> Self {
        let singles = Histogram::new(3).expect("three digits are possible");
        Figures { batches: Vec::new(), singles, decisions: 0, elapsed_ns: 0.0, cpu_ns: 0.0 }
    }
}

impl Figures {
    /// Adds the results of another slice, thread or process.
    pub fn add(&mut self, other: Figures) {
        self.batches.extend(other.batches);
        self.singles.add(other.singles).expect("a histogram that grows takes all");
        self.decisions += other.decisions;
        self.elapsed_ns += other.elapsed_ns;
        self.cpu_ns += other.cpu_ns;
    }

    /// The figures of a line. One thread's time is the median over batches. Several threads contend in some batches and
    /// not in others; a median would pick one of the two, so theirs is the mean.
    pub fn line(self, threads: usize) -> Map<String, Value> {
        let decisions = self.decisions as f64;
        let ns = if threads == 1 { median(self.batches) } else { self.elapsed_ns / decisions };
        let line = json!({
            "ns": round(ns),
            "p99": self.singles.value_at_quantile(0.99),
            "p999": self.singles.value_at_quantile(0.999),
            "cpu_ns": round(self.cpu_ns / decisions),
        });
        line.as_object().expect("it is an object").clone()
    }
}

/// Times the cases whose names contain `filter`, in turn, and prints a line for each.
pub fn run(cases: &[Case], filter: &str) {
    let cases: Vec<_> = cases.iter().filter(|case| case.name.contains(filter)).collect();
    let mut figures: Vec<_> = cases.iter().map(|_| Figures::default()).collect();
    for _ in 0..SLICES {
        for (case, figures) in cases.iter().zip(&mut figures) {
            slice(case, figures);
        }
    }
    for (case, figures) in cases.iter().zip(figures) {
        let mut line = json!({ "case": case.name, "group": case.group, "peer": case.peer, "threads": case.threads });
        let all = line.as_object_mut().expect("it is an object");
        all.extend(figures.line(case.threads));
        all.extend(case.more.clone());
        crate::print(&line);
    }
}

fn slice(case: &Case, figures: &mut Figures) {
    if let Some(prepare) = &case.prepare {
        prepare();
    }
    if case.threads == 1 {
        return figures.add(hammer(SLICE, |times| case.decide(times)));
    }
    let barrier = Barrier::new(case.threads);
    std::thread::scope(|scope| {
        let body = || {
            barrier.wait();
            hammer(SLICE_OF_THREADS, |times| case.decide(times))
        };
        let threads: Vec<_> = (0..case.threads).map(|_| scope.spawn(body)).collect();
        threads.into_iter().for_each(|thread| figures.add(thread.join().expect("a thread has panicked")));
    });
}

/// Decides for that duration: two thirds of it in batches, then one by one.
pub fn hammer(span: Duration, mut decide: impl FnMut(usize)) -> Figures {
    let mut figures = Figures::default();
    let warming = Instant::now();
    while warming.elapsed() < WARM_UP {
        decide(1);
    }
    // The fastest decision gives the size of a batch: any other may have waited for its core or for a page of memory.
    let one = |_| {
        let before = Instant::now();
        decide(1);
        before.elapsed().as_nanos() as f64
    };
    let fastest = (0..50).map(one).fold(BATCH_NS, f64::min);
    let batch = (BATCH_NS / fastest).clamp(1.0, BATCH as f64) as usize;

    let (began, cpu) = (Instant::now(), cpu_ns());
    let mut before = began;
    while before - began < span * 2 / 3 || figures.batches.len() < MIN {
        decide(batch);
        let after = Instant::now();
        figures.batches.push((after - before).as_nanos() as f64 / batch as f64);
        figures.decisions += batch;
        before = after;
    }
    figures.elapsed_ns = (before - began).as_nanos() as f64;
    figures.cpu_ns = (cpu_ns() - cpu) as f64;

    let (began, span) = (before, span / 3);
    // One read of the clock ends a decision and begins the next, so each includes one.
    while before - began < span || figures.singles.len() < MIN as u64 {
        decide(1);
        let after = Instant::now();
        figures.singles.record((after - before).as_nanos() as u64).expect("a histogram that grows takes all");
        before = after;
    }
    figures
}

/// The CPU time of this thread.
pub fn cpu_ns() -> u64 {
    read_clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The nanoseconds of a clock of the kernel.
pub fn read_clock(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The median, or `None` if nothing was measured.
pub fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Rounds to one digit after the point.
pub fn round(figure: f64) -> f64 {
    (figure * 10.0).round() / 10.0
}
