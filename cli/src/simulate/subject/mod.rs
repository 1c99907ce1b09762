//! One policy under a load: a limiter of the core, in a new store with a simulated clock.
//!
//! The core makes all decisions. Callers that do not wait use [`Limiter::decide`]; callers that wait use the core's [`Line`], which is also
//! behind `acquire` in every language. At equal times jobs end first, then waiters start, then new requests arrive.

mod steps;

use super::guarantee::{Guarantee, Kind, Window};
use super::measure::{Bin, Counts, Series, Verdict, Verdicts, Waits};
use super::request::{Keys, Request};
use crate::failure::Failure;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::admin::parse_policies;
use workglow_limit::embed::{Line, WaiterId};
use workglow_limit::{Error, Limiter, ManualClock, Policy, RawPermit, Store, StoreOptions};

/// The name of the limit. The names of its parts begin with it.
const NAME: &str = "policy";

/// The longest time for which the run continues after the last request, in microseconds.
const MAX_AFTER: u64 = 366 * 86_400_000_000;

/// The behaviour of callers that are not admitted at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callers {
    GoAway,
    /// They wait for at most this time; `None`: without a bound.
    Wait(Option<Duration>),
}

/// A policy under test.
pub struct Subject<'t> {
    /// The policy's canonical text.
    pub policy: String,
    pub guarantees: Vec<Guarantee>,
    callers: Callers,
    clock: ManualClock,
    limiter: Option<Arc<dyn Limiter>>,
    /// The units of a key that may run at once. While that many run, waiters need no check until one ends.
    most_running: Option<u64>,
    /// The time after which starts end automatically.
    lease: u64,
    keys: Vec<Key>,
    /// The times at which the keys' lines have to be advanced.
    due: BTreeSet<(u64, u32)>,
    ends: BinaryHeap<Reverse<End>>,
    verdicts: Option<Verdicts<'t>>,
    /// The key with the highest recent usage.
    fullest: u32,
    series: Option<Series>,
    now: u64,
    waiting: u64,
    /// The number of jobs that have a duration.
    started: u64,
    pub found: Found,
}

/// The results.
#[derive(Debug, Clone, Default)]
pub struct Found {
    pub total: Counts,
    pub waits: Waits,
    /// For each guarantee, the most units of a key that were counted.
    pub most: Vec<u64>,
    pub heaviest: u64,
    /// Denials by the part of the policy with the longest retry time.
    pub denied_by: BTreeMap<String, u64>,
    /// The time of the first request.
    pub from: u64,
    /// The time of the last request.
    pub to: u64,
    /// The waiters at the time of the last request.
    pub backlog: u64,
    /// The time from the last request to the start of the last waiter.
    pub cleared_after: u64,
    /// The waiters at the end of the run.
    pub never: u64,
    /// The most waiters at a time.
    pub most_waiting: u64,
}

/// The state of one key.
#[derive(Default)]
struct Key {
    counts: Counts,
    running: u64,
    windows: Vec<Window>,
    line: Option<Waiting>,
}

/// The waiters of a key.
struct Waiting {
    line: Line,
    /// In the order of arrival, which is the order of their ids.
    waiters: BTreeMap<WaiterId, (Request, Option<u64>)>,
    /// The line's entry in [`Subject::due`].
    due: Option<u64>,
}

/// The end of a job or of its lease.
struct End {
    at: u64,
    number: u64,
    key: u32,
    /// The units that are released.
    weight: u64,
    /// Whether only the lease ends, and the job continues.
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
    /// Creates an unused limiter with this policy. `verdicts` receives the result of each request.
    pub fn new(text: &str, callers: Callers, verdicts: Option<Verdicts<'t>>) -> Result<Subject<'t>, Failure> {
        let policies = parse_policies(text)?;
        let guarantees: Vec<Guarantee> = policies.iter().flat_map(Guarantee::all_of).collect();
        let at_once = || guarantees.iter().filter(|guarantee| matches!(guarantee.kind, Kind::AtOnce { .. }));
        let lease = |guarantee: &Guarantee| if let Kind::AtOnce { lease } = guarantee.kind { lease } else { None };
        Ok(Subject {
            policy: policies.iter().map(Policy::to_string).collect::<Vec<_>>().join(" + "),
            callers,
            clock: ManualClock::new(),
            limiter: None,
            most_running: at_once().map(|guarantee| guarantee.limit).min(),
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
            found: Found { most: vec![0; guarantees.len()], ..Found::default() },
            guarantees,
        })
    }

    /// The heaviest weight that all parts of the policy can admit.
    pub fn capacity(text: &str) -> Result<u64, Failure> {
        Ok(parse_policies(text)?.iter().map(Policy::capacity).min().unwrap_or(1))
    }

    pub fn series(&self) -> Option<&Series> {
        self.series.as_ref()
    }

    /// The counts of a key.
    pub fn counts(&self, key: u32) -> Counts {
        self.keys.get(key as usize).map_or_else(Counts::default, |key| key.counts)
    }

    /// The share of the possible units that was used, by the tightest guarantee of the key with the highest share.
    pub fn utilisation(&self) -> Option<f64> {
        let Found { from, to, .. } = self.found;
        let of = |guarantee: &Guarantee, counts: &Counts| match guarantee.kind {
            Kind::AtOnce { .. } => counts.ran as f64 / (guarantee.limit as f64 * (to - from) as f64),
            _ => counts.units as f64 / guarantee.most_between(from, to),
        };
        let all =
            self.keys.iter().flat_map(|key| self.guarantees.iter().map(move |guarantee| of(guarantee, &key.counts)));
        all.filter(|part| part.is_finite()).max_by(f64::total_cmp).map(|part| part.min(1.0))
    }

    /// Advances to the time of the request, and makes it.
    pub fn ask(&mut self, request: Request, keys: &Keys) -> Result<(), Failure> {
        if self.limiter.is_none() {
            self.open(request.at)?;
        }
        if self.most_running.is_some() && request.duration.is_none() {
            return Err(Failure::usage(format!(
                "request {} has no duration, but \"{}\" depends on the duration of jobs",
                request.line, self.policy
            ))
            .hint("pass --duration 300ms for all requests, or add a column duration to the trace"));
        }
        self.run_until(request.at, keys)?;
        if self.keys.len() < keys.len() {
            let guarantees = self.guarantees.len();
            self.keys
                .resize_with(keys.len(), || Key { windows: vec![Window::default(); guarantees], ..Key::default() });
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
                self.answer(number, Verdict::TooHeavy)
            }
            Err(Asked::Failed(failure)) => Err(failure),
        }
    }

    /// Lets the waiters start, and completes the results.
    pub fn finish(&mut self, keys: &Keys) -> Result<(), Failure> {
        (self.found.backlog, self.found.to) = (self.waiting, self.now);
        while self.waiting > 0
            && let Some(next) = self.next()
            && next <= self.found.to.saturating_add(MAX_AFTER)
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
            self.answer(Some(number), Verdict::Waiting)?;
        }
        for key in &self.keys {
            self.found.total.add(&key.counts);
        }
        Ok(())
    }

    fn open(&mut self, at: u64) -> Result<(), Failure> {
        // The clock has the times of the trace, because windows can be aligned to them.
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

    fn answer(&mut self, number: Option<u64>, verdict: Verdict) -> Result<(), Failure> {
        match (number, &mut self.verdicts) {
            (Some(number), Some(verdicts)) => verdicts.answer(number, verdict),
            _ => Ok(()),
        }
    }
}

/// The reason why a request got no decision.
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
