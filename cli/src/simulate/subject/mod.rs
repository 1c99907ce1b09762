//! One policy under a load: a limiter of the core, in a new store with a simulated clock.
//!
//! The core makes all decisions. Callers that do not wait use [`Limiter::decide`]; callers that wait use the core's [`Line`], which is also
//! behind `acquire` in every language. At equal times jobs end first, then waiters start, then new requests arrive.

mod bounds;
mod steps;

use super::guarantee::Guarantee;
use super::measure::{Bin, Counts, Series, Verdict, Verdicts, Waits};
use super::request::{ByKey, Keys, Request};
use crate::failure::Failure;
pub use bounds::Bound;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::admin::{NamedPolicy, parse_parts};
use workglow_limit::embed::{Line, WaiterId, line_key};
use workglow_limit::{Charge, Error, Limiter, ManualClock, RawPermit, Store, StoreOptions};

/// The name of the limit. The names of its parts begin with it.
const NAME: &str = "policy";

/// The longest time for which the run continues after the last request, in microseconds.
const MAX_AFTER: u64 = 366 * 86_400_000_000;

/// Waiters that have not started for so many of the longest windows never will.
const STUCK_WINDOWS: u64 = 20;

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
    /// The names of the policy's parts. Empty: it has none.
    pub parts: Vec<String>,
    pub bounds: Vec<Bound>,
    callers: Callers,
    clock: ManualClock,
    limiter: Arc<dyn Limiter>,
    /// Whether a part bounds the starts that run at once. While these run, waiters need no check until one ends.
    counts_running: bool,
    /// The counts of the requests' keys; then those of each part that has keys of its own.
    pub groups: Vec<Group>,
    lines: HashMap<Rc<str>, Waiting>,
    /// The lines that wait for the end of a start, by the bound and its key.
    lines_at: HashMap<(usize, u32), BTreeSet<Rc<str>>>,
    /// The times at which lines have to be advanced. At equal times those first whose first waiter came first.
    due: BTreeSet<(u64, u64, Rc<str>)>,
    ends: BinaryHeap<Reverse<End>>,
    /// Receives the result of each request.
    pub verdicts: Option<Verdicts<'t>>,
    /// The key of the start with the highest recent usage.
    fullest: Rc<str>,
    series: Option<Series>,
    now: u64,
    last_start: u64,
    asked: u64,
    waiting: u64,
    /// The number of jobs that have a duration.
    started: u64,
    pub found: Found,
}

/// The counts of the keys that the requests have, or that they have for one part.
#[derive(Debug, Default)]
pub struct Group {
    /// The part, by its index in [`Keys`].
    pub part: Option<u32>,
    pub counts: ByKey<Counts>,
}

/// The results.
#[derive(Debug, Clone, Default)]
pub struct Found {
    pub total: Counts,
    pub waits: Waits,
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

/// A request as this policy sees it.
struct Start {
    /// The key of the limiter's calls, which says what each part is charged.
    key: Rc<str>,
    /// The line in which it waits: that of all starts with the same keys.
    line: Rc<str>,
    /// The key and the weight that each part is charged, or the whole limit.
    charges: Vec<(u32, u64)>,
}

/// The waiters of one line.
struct Waiting {
    line: Line,
    /// In the order of arrival, which is the order of their ids.
    waiters: BTreeMap<WaiterId, Asked>,
    /// The line's entry in [`Subject::due`].
    due: Option<(u64, u64)>,
    /// Whether a start has ended since the line was advanced.
    is_woken: bool,
}

/// A request that is made, and may wait.
#[derive(Clone)]
struct Asked {
    request: Request,
    start: Rc<Start>,
    /// Its number in [`Verdicts`].
    verdict: Option<u64>,
    number: u64,
}

/// The end of a job or of its lease.
struct End {
    at: u64,
    number: u64,
    start: Rc<Start>,
    what: Ends,
}

#[derive(Clone, Copy)]
enum Ends {
    /// The job, which took so long.
    Job(RawPermit, u64),
    /// Its lease in this bound. The job continues.
    Lease(usize),
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
    /// Creates an unused limiter with this policy.
    pub fn new(text: &str, callers: Callers) -> Result<Subject<'t>, Failure> {
        let policies = parse_parts(text)?;
        let policy = policies.iter().map(NamedPolicy::to_string).collect::<Vec<_>>().join(" + ");
        let of_part = |(part, policy): (usize, &NamedPolicy)| {
            let is_shared = policy.is_shared();
            Guarantee::all_of(policy).into_iter().map(move |guarantee| Bound::new(part, is_shared, guarantee))
        };
        let bounds: Vec<Bound> = policies.iter().enumerate().flat_map(of_part).collect();
        let clock = ManualClock::new();
        let mut options = StoreOptions::default();
        options.clock = Some(clock.clone());
        let limiter = Store::with_options("memory:", options)?.limiter(NAME, &policy)?;
        Ok(Subject {
            policy,
            parts: limiter.part_names(),
            callers,
            clock,
            limiter,
            counts_running: bounds.iter().any(|bound| bound.at_once().is_some()),
            groups: vec![Group::default()],
            lines: HashMap::new(),
            lines_at: HashMap::new(),
            due: BTreeSet::new(),
            ends: BinaryHeap::new(),
            verdicts: None,
            fullest: "".into(),
            series: None,
            now: 0,
            last_start: 0,
            asked: 0,
            waiting: 0,
            started: 0,
            found: Found::default(),
            bounds,
        })
    }

    /// The heaviest weight that all parts of the policy can admit.
    pub fn capacity(text: &str) -> Result<u64, Failure> {
        Ok(parse_parts(text)?.iter().map(|part| part.policy.capacity()).min().unwrap_or(1))
    }

    pub fn series(&self) -> Option<&Series> {
        self.series.as_ref()
    }

    /// The share of the possible units that was used, by the tightest bound of the key with the highest share: of one part, or of all.
    pub fn utilisation(&self, part: Option<usize>) -> Option<f64> {
        let bounds = self.bounds.iter().filter(|bound| part.is_none_or(|part| bound.part == part));
        bounds.filter_map(|bound| bound.utilisation(self.found.from, self.found.to)).max_by(f64::total_cmp)
    }

    /// Advances to the time of the request, and makes it.
    pub fn ask(&mut self, request: &Request, keys: &Keys) -> Result<(), Failure> {
        if self.series.is_none() {
            // The clock has the times of the trace, because windows can be aligned to them.
            self.clock.advance(Duration::from_micros(request.at));
            (self.now, self.found.from) = (request.at, request.at);
            self.series = Some(Series::new(request.at));
        }
        if self.counts_running && request.duration.is_none() {
            return Err(Failure::usage(format!(
                "request {} has no duration, but \"{}\" depends on the duration of jobs",
                request.line, self.policy
            ))
            .hint("pass --duration 300ms for all requests, or add a column duration to the trace"));
        }
        let start = self.start_of(request, keys)?;
        self.run_until(request.at)?;
        self.found.to = request.at;
        self.asked += 1;
        let verdict = self.verdicts.as_mut().map(|verdicts| verdicts.ask(request.line));
        let asked = Asked { request: request.clone(), start: Rc::new(start), verdict, number: self.asked };
        self.count(request, |counts, _| counts.requests += 1);
        let answer = match self.callers {
            Callers::GoAway => self.decide(&asked),
            Callers::Wait(timeout) => self.join(&asked, timeout),
        };
        match answer {
            Ok(()) => {
                self.count(request, |counts, weight| counts.units_wanted += weight);
                self.bin().wanted += request.weight;
                Ok(())
            }
            Err(Unanswered::TooHeavy) => {
                self.count(request, |counts, _| counts.too_heavy += 1);
                self.answer(verdict, Verdict::TooHeavy)
            }
            Err(Unanswered::Failed(failure)) => Err(failure),
        }
    }

    /// What a request charges this policy.
    fn start_of(&self, request: &Request, keys: &Keys) -> Result<Start, Failure> {
        let mut charges = vec![(request.key, request.weight); self.parts.len().max(1)];
        let own = keys.text(request.key);
        if request.charges.is_empty() {
            return Ok(Start { key: own.clone(), line: own.clone(), charges });
        }
        let mut named = Vec::with_capacity(request.charges.len());
        for charge in &request.charges {
            let part = keys.part_name(charge.part);
            if let Some(at) = self.parts.iter().position(|name| name == part) {
                charges[at] = (charge.key.unwrap_or(request.key), charge.weight.unwrap_or(request.weight));
            }
            named.push(Charge { part, key: charge.key.map(|key| &**keys.text(key)), weight: charge.weight });
        }
        let key = self.limiter.joint(own, &named).map_err(|error| {
            let wrong = Failure::usage(format!("request {} and \"{}\": {error}", request.line, self.policy));
            if self.parts.is_empty() {
                wrong.hint("name the parts of the policy: \"tokens: 200000/1m\"")
            } else {
                wrong
            }
        })?;
        Ok(Start { line: line_key(&key).into(), key: (*key).into(), charges })
    }

    /// Lets the waiters start, and completes the results.
    pub fn finish(&mut self) -> Result<(), Failure> {
        (self.found.backlog, self.found.to) = (self.waiting, self.now);
        while self.waiting > 0
            && let Some(next) = self.next()
            && next <= self.found.to.saturating_add(MAX_AFTER)
            && !self.is_stuck()
        {
            self.run_until(next)?;
            if self.found.backlog > 0 {
                self.found.cleared_after = self.now - self.found.to;
            }
        }
        self.found.never = self.waiting;
        let left: Vec<u64> =
            self.lines.values().flat_map(|line| line.waiters.values()).filter_map(|asked| asked.verdict).collect();
        for verdict in left {
            self.answer(Some(verdict), Verdict::Waiting)?;
        }
        for counts in self.groups[0].counts.values() {
            self.found.total.add(counts);
        }
        Ok(())
    }

    /// Whether waiters have not started for many windows, although nothing runs: they take units from each other that none can use.
    fn is_stuck(&self) -> bool {
        let longest = self.bounds.iter().map(Bound::renewal).max().unwrap_or(0);
        let since = self.found.to.max(self.last_start);
        self.ends.is_empty() && self.now.saturating_sub(since) > longest.saturating_mul(STUCK_WINDOWS)
    }

    /// Changes the counts of the request's key, and of the keys that it has for parts. The closure gets the weight, too.
    fn count(&mut self, request: &Request, mut change: impl FnMut(&mut Counts, u64)) {
        change(self.groups[0].counts.entry(request.key).or_default(), request.weight);
        for charge in &request.charges {
            let Some(key) = charge.key else { continue };
            let at = self.groups.iter().position(|group| group.part == Some(charge.part)).unwrap_or_else(|| {
                self.groups.push(Group { part: Some(charge.part), ..Group::default() });
                self.groups.len() - 1
            });
            change(self.groups[at].counts.entry(key).or_default(), charge.weight.unwrap_or(request.weight));
        }
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
enum Unanswered {
    TooHeavy,
    Failed(Failure),
}

impl From<Error> for Unanswered {
    fn from(error: Error) -> Unanswered {
        match error {
            Error::WeightExceedsCapacity { .. } => Unanswered::TooHeavy,
            error => Unanswered::Failed(error.into()),
        }
    }
}

impl From<Failure> for Unanswered {
    fn from(failure: Failure) -> Unanswered {
        Unanswered::Failed(failure)
    }
}
