//! One policy under a load: the core's own limiter in a store of its own, by a clock that is moved from one event to the next.
//!
//! Nothing is decided here. Callers who go away ask by [`Limiter::decide`], callers who wait by the core's [`Line`]: by that every
//! `acquire` of a process waits, in every language. At the same moment, those who end are first, then those who wait, then those who
//! ask.

mod steps;

use super::measure::{Bin, Counts, Series, Verdict, Verdicts, Waits};
use super::promise::{Kind, Promise, Window};
use super::request::{Keys, Request};
use crate::failure::Failure;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::{
    Error, Limiter, Line, ManualClock, Policy, RawPermit, Store, StoreOptions, WaiterId, parse_policies,
};

/// The name under which the policy is declared: those of its parts begin with it.
const NAME: &str = "policy";

/// Whoever has not started so long after the last request is not waited for any longer, in microseconds.
const MOST_AFTER: u64 = 366 * 86_400_000_000;

/// What callers do who are not admitted at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callers {
    GoAway,
    /// At most so long; `None`: as long as it takes.
    Wait(Option<Duration>),
}

/// A policy that is tried.
pub struct Subject<'t> {
    /// Its text, as the core writes it.
    pub policy: String,
    pub promises: Vec<Promise>,
    callers: Callers,
    clock: ManualClock,
    limiter: Option<Arc<dyn Limiter>>,
    /// How many units of a key may run at once: until one ends, nobody has to look whether there is room.
    most_running: Option<u64>,
    /// After how long starts end by themselves.
    lease: u64,
    keys: Vec<Key>,
    /// When the lines of keys have to be advanced.
    due: BTreeSet<(u64, u32)>,
    ends: BinaryHeap<Reverse<End>>,
    verdicts: Option<Verdicts<'t>>,
    /// The key that used the most of its limit lately.
    fullest: u32,
    series: Option<Series>,
    now: u64,
    waiting: u64,
    /// How many jobs have started that take time.
    started: u64,
    pub found: Found,
}

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Found {
    pub total: Counts,
    pub waits: Waits,
    /// The most units of a key that each promise counts.
    pub most: Vec<u64>,
    pub heaviest: u64,
    /// Denials, by the part of the policy that was the last to make room.
    pub denied_by: BTreeMap<String, u64>,
    /// When the first and the last request came.
    pub from: u64,
    pub to: u64,
    /// How many waited when the last request had come.
    pub backlog: u64,
    /// How long after that the last of them started.
    pub cleared_after: u64,
    /// How many waited still when nobody looked any more.
    pub never: u64,
    /// The most that waited at a time.
    pub most_waiting: u64,
}

/// What is known of one key.
#[derive(Default)]
struct Key {
    counts: Counts,
    running: u64,
    windows: Vec<Window>,
    line: Option<Waiting>,
}

/// Those who wait under a key.
struct Waiting {
    line: Line,
    /// In the order of asking, which is that of their numbers.
    waiters: BTreeMap<WaiterId, (Request, Option<u64>)>,
    /// What [`Subject::due`] has of it.
    due: Option<u64>,
}

/// A job that ends, or what it holds does.
struct End {
    at: u64,
    number: u64,
    key: u32,
    /// What it holds until then.
    weight: u64,
    /// The job goes on without it.
    is_lease: bool,
    permit: RawPermit,
}

impl PartialEq for End {
    fn eq(&self, other: &End) -> bool {
        self.number == other.number
    }
}

impl Eq for End {}

impl PartialOrd for End {
    fn partial_cmp(&self, other: &End) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for End {
    fn cmp(&self, other: &End) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl<'t> Subject<'t> {
    /// A policy by its text, which nobody has used. `verdicts` are told what becomes of each request.
    pub fn new(text: &str, callers: Callers, verdicts: Option<Verdicts<'t>>) -> Result<Subject<'t>, Failure> {
        let policies = parse_policies(text)?;
        let promises: Vec<Promise> = policies.iter().flat_map(Promise::all_of).collect();
        let at_once = || promises.iter().filter(|promise| matches!(promise.kind, Kind::AtOnce { .. }));
        let lease = |promise: &Promise| if let Kind::AtOnce { lease } = promise.kind { lease } else { None };
        Ok(Subject {
            policy: policies.iter().map(Policy::to_string).collect::<Vec<_>>().join(" + "),
            callers,
            clock: ManualClock::new(),
            limiter: None,
            most_running: at_once().map(|promise| promise.limit).min(),
            lease: at_once().filter_map(lease).min().unwrap_or(u64::MAX),
            keys: Vec::new(),
            due: BTreeSet::new(),
            ends: BinaryHeap::new(),
            verdicts,
            fullest: 0,
            series: None,
            now: 0,
            waiting: 0,
            started: 0,
            found: Found { most: vec![0; promises.len()], ..Found::default() },
            promises,
        })
    }

    /// The smallest weight that one of its limits has no room for, less one.
    pub fn capacity(text: &str) -> Result<u64, Failure> {
        Ok(parse_policies(text)?.iter().map(Policy::capacity).min().unwrap_or(1))
    }

    pub fn series(&self) -> Option<&Series> {
        self.series.as_ref()
    }

    /// What was counted of a key.
    pub fn counts(&self, key: u32) -> Counts {
        self.keys.get(key as usize).map_or_else(Counts::default, |key| key.counts)
    }

    /// The units of one key that could have started, by the promise that allows the least; for the key that started most of its.
    pub fn utilisation(&self) -> Option<f64> {
        let Found { from, to, .. } = self.found;
        let of = |promise: &Promise, counts: &Counts| match promise.kind {
            Kind::AtOnce { .. } => counts.ran as f64 / (promise.limit as f64 * (to - from) as f64),
            _ => counts.units as f64 / promise.most_between(from, to),
        };
        let all = self.keys.iter().flat_map(|key| self.promises.iter().map(move |promise| of(promise, &key.counts)));
        all.filter(|part| part.is_finite()).max_by(f64::total_cmp).map(|part| part.min(1.0))
    }

    /// Does what is due before this request, and asks.
    pub fn ask(&mut self, request: Request, keys: &Keys) -> Result<(), Failure> {
        if self.limiter.is_none() {
            self.open(request.at)?;
        }
        if self.most_running.is_some() && request.duration.is_none() {
            return Err(Failure::usage(format!(
                "request {} does not say how long its job runs, and \"{}\" depends on that",
                request.line, self.policy
            ))
            .hint("say it for all of them: --duration 300ms, or in a column duration of the trace"));
        }
        self.run_until(request.at, keys)?;
        if self.keys.len() < keys.len() {
            let promises = self.promises.len();
            self.keys.resize_with(keys.len(), || Key { windows: vec![Window::default(); promises], ..Key::default() });
        }
        self.found.to = request.at;
        self.found.heaviest = self.found.heaviest.max(request.weight);
        let number = self.verdicts.as_mut().map(|verdicts| verdicts.ask(request.line));
        self.key(request.key).counts.requests += 1;
        let asked = match self.callers {
            Callers::GoAway => self.decide(request, number, keys),
            Callers::Wait(timeout) => self.join(request, number, timeout, keys),
        };
        match asked {
            Ok(()) => {
                self.key(request.key).counts.units_wanted += request.weight;
                self.bin().wanted += request.weight;
                Ok(())
            }
            Err(Asked::TooHeavy) => {
                self.key(request.key).counts.too_heavy += 1;
                self.tell(number, Verdict::TooHeavy)
            }
            Err(Asked::Failed(failure)) => Err(failure),
        }
    }

    /// Lets those who wait start, and says what was found.
    pub fn finish(&mut self, keys: &Keys) -> Result<(), Failure> {
        (self.found.backlog, self.found.to) = (self.waiting, self.now);
        while self.waiting > 0
            && let Some(next) = self.next()
            && next <= self.found.to.saturating_add(MOST_AFTER)
        {
            self.run_until(next, keys)?;
            if self.found.backlog > 0 {
                self.found.cleared_after = self.now - self.found.to;
            }
        }
        self.found.never = self.waiting;
        let left = self.keys.iter().filter_map(|key| key.line.as_ref()).flat_map(|line| line.waiters.values());
        let left: Vec<u64> = left.filter_map(|(_, number)| *number).collect();
        for number in left {
            self.tell(Some(number), Verdict::Waiting)?;
        }
        for key in &self.keys {
            self.found.total.add(&key.counts);
        }
        Ok(())
    }

    fn open(&mut self, at: u64) -> Result<(), Failure> {
        // By the trace's own clock, because windows can be aligned to it.
        self.clock.advance(Duration::from_micros(at));
        let mut options = StoreOptions::default();
        options.clock = Some(self.clock.clone());
        let store = Store::with_options("memory:", options)?;
        self.limiter = Some(store.limiter(NAME, &self.policy)?);
        (self.now, self.found.from, self.series) = (at, at, Some(Series::new(at)));
        Ok(())
    }

    fn limiter(&self) -> &Arc<dyn Limiter> {
        self.limiter.as_ref().expect("the first request opens it")
    }

    fn key(&mut self, key: u32) -> &mut Key {
        &mut self.keys[key as usize]
    }

    fn bin(&mut self) -> &mut Bin {
        self.series.as_mut().expect("the first request opens it").now()
    }

    fn tell(&mut self, number: Option<u64>, verdict: Verdict) -> Result<(), Failure> {
        match (number, &mut self.verdicts) {
            (Some(number), Some(verdicts)) => verdicts.answer(number, verdict),
            _ => Ok(()),
        }
    }
}

/// Why a request was not asked.
enum Asked {
    TooHeavy,
    Failed(Failure),
}

impl From<Error> for Asked {
    fn from(error: Error) -> Asked {
        match error {
            Error::WeightExceedsCapacity { .. } => Asked::TooHeavy,
            error => Asked::Failed(error.into()),
        }
    }
}

impl From<Failure> for Asked {
    fn from(failure: Failure) -> Asked {
        Asked::Failed(failure)
    }
}
