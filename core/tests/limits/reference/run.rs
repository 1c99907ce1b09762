//! Random calls to a limit and to its model, with every answer compared. The calls are in `calls.rs`.

use super::frame::{Answer, ENDLESS, Model, Now, Permit, Rules, Tick, View, Waiter};
use crate::common::server::{KINDS, Server, is_served};
use crate::common::wait::Wait;
use crate::common::{Dir, Random};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Duration;
use workglow_limit::*;

pub fn duration(ticks: Tick) -> Duration {
    Duration::from_micros(ticks as u64)
}

pub fn ticks(duration: Duration) -> Tick {
    assert_eq!(duration.subsec_nanos() % 1_000, 0, "answers are whole microseconds");
    duration.as_micros() as Tick
}

/// An answer of the limiter or the model.
#[derive(Debug, PartialEq, Eq)]
pub enum Plain {
    Start,
    Sleep(Tick),
    No(Tick),
    TooHeavy,
}

/// The real answer, and its permit.
pub type Real = (Plain, Option<RawPermit>);

pub fn real<T>(answer: Result<T>, plain: impl FnOnce(T) -> Real) -> Real {
    match answer {
        Ok(answer) => plain(answer),
        Err(Error::WeightExceedsCapacity { .. }) => (Plain::TooHeavy, None),
        Err(error) => panic!("{error}"),
    }
}

fn plain(answer: &Answer) -> Plain {
    match *answer {
        Answer::Started(_) => Plain::Start,
        Answer::Place(_, after) => Plain::Sleep(after),
        Answer::Denied(after) => Plain::No(after),
        Answer::TooHeavy => Plain::TooHeavy,
    }
}

/// A permit or place in both representations, and the handle that issued it.
pub struct HeldPermit {
    pub raw: RawPermit,
    pub by: usize,
    pub permit: Permit,
    pub has_started: bool,
    pub has_ended: bool,
}

pub struct Waiting {
    pub wait: Wait,
    pub by: usize,
    pub waiter: Waiter,
}

/// One name, and all of its handles.
pub struct Limit<R: Rules> {
    pub name: &'static str,
    pub model: Model<R>,
    pub handles: Vec<Arc<dyn Limiter>>,
    pub held: Vec<HeldPermit>,
    pub waiting: Vec<Waiting>,
    /// When the starts without a permit began, for each handle that recorded them.
    pub running: HashMap<(usize, String), VecDeque<Tick>>,
}

impl<R: Rules> Limit<R> {
    /// Returns whether this many more units can be remembered.
    pub fn has_space(&self, key: &str, units: u64) -> bool {
        let now = self.model.now;
        !self.model.with(key, |rules, book| rules.is_full(book, units, now))
    }
}

/// The calls of a run, printed if it fails.
pub struct Trace {
    kind: &'static str,
    seed: u64,
    calls: VecDeque<String>,
}

impl Trace {
    pub fn new(kind: &'static str, seed: u64) -> Trace {
        Trace { kind, seed, calls: VecDeque::new() }
    }

    pub fn add(&mut self, now: Duration, call: String) {
        if self.calls.len() == 30 {
            self.calls.pop_front();
        }
        self.calls.push_back(format!("{now:>12?} {call}"));
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the last calls of this run, which SEED={} of `{}` repeats:", self.seed, self.kind);
            self.calls.iter().for_each(|call| eprintln!("  {call}"));
        }
    }
}

/// Of 100 runs, a server decides in this many.
const SERVED: u32 = 5;

/// Not compared on servers: leases of other processes end in another way there, exchanged places of adaptive spacing
/// come a tick later, and windows of the clock that were skipped count as full.
const NOT_SERVED: [&str; 4] = ["adaptive", "concurrency", "fixed_window", "sliding_window_counter"];

/// Not compared on Postgres either: buckets and clock windows forget some starts when a policy changes twice before a
/// key is used again.
const NOT_ON_POSTGRES: [&str; 4] = ["fixed_window", "sliding_window_counter", "token_bucket", "leaky_bucket"];

/// The servers for all runs of this process, one of each kind.
fn server(kind: usize) -> &'static Server {
    static SERVERS: OnceLock<Vec<Server>> = OnceLock::new();
    &SERVERS.get_or_init(|| Server::each("reference").collect())[kind]
}

/// One or two handles of the same store, with a clock that stands still, in memory or, in one run of 20, in a file.
pub fn stores(random: &mut Random, name: &str) -> (ManualClock, Vec<Store>, Option<Dir>) {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let dir = random.chance(5).then(|| Dir::in_memory(&format!("reference-{name}")));
    let store = |url: &str| {
        let store = Store::with_options(url, options.clone()).unwrap();
        store.open().unwrap();
        store
    };
    let may_be = dir.is_none() && !KINDS.is_empty() && !NOT_SERVED.contains(&name);
    let server = (may_be && (random.chance(SERVED) || std::env::var_os("SERVED").is_some()))
        .then(|| server(random.below(KINDS.len() as u64) as usize))
        .filter(|server| server.kind() != "postgres" || !NOT_ON_POSTGRES.contains(&name));
    if let Some(server) = server {
        let url = server.new_database();
        // There, each store has its own levels of backoff.
        let count = if name.starts_with("rate") { 1 } else { 2 };
        return (clock, (0..count).map(|_| store(&url)).collect(), None);
    }
    let stores = match &dir {
        Some(dir) => vec![store(&dir.url()), store(&dir.url())],
        None => vec![store("memory:")],
    };
    (clock, stores, dir)
}

pub const SCALES: [Tick; 7] = [2, 10, 100, 10_000, 1_000_000, 60_000_000, 3_600_000_000];

/// As many runs as needed for this many calls (`CALLS=…`), or the one of `SEED=…`.
pub fn runs(mut run: impl FnMut(u64) -> u64) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    if let Some(seed) = number("SEED") {
        run(seed);
        return;
    }
    let (mut calls, most) = (0, number("CALLS").unwrap_or(100_000));
    for seed in 0.. {
        calls += run(seed);
        if calls >= most {
            break;
        }
    }
}

pub struct Run<R: Rules> {
    pub random: Random,
    pub clock: ManualClock,
    pub stores: Vec<Store>,
    pub limits: Vec<Limit<R>>,
    pub keys: u64,
    pub new_keys: u64,
    pub scale: Tick,
    /// Whether time advances in nanoseconds.
    is_fine: bool,
    pub calls: u64,
    trace: Trace,
    pub dir: Option<Dir>,
}

const NAMES: [&str; 2] = ["first", "second"];
pub const KEYS: [&str; 5] = ["", "a", "b", "c", "d"];

impl<R: Rules> Run<R> {
    pub fn new(kind: &'static str, seed: u64) -> Self {
        let mut random = Random::seeded(seed);
        let (clock, stores, dir) = stores(&mut random, kind);
        let scale = random.pick(&SCALES);
        // A server's time is in whole microseconds.
        let is_fine = random.chance(30) && !is_served(stores[0].url());
        let keys = 3 + random.below(3);
        let mut run = Run {
            random,
            clock,
            stores,
            limits: Vec::new(),
            keys,
            new_keys: 0,
            scale,
            is_fine,
            calls: 0,
            trace: Trace::new(kind, seed),
            dir,
        };
        for name in &NAMES[..1 + usize::from(run.random.chance(30))] {
            let rules = R::random(&mut run.random, run.scale);
            let handles = vec![run.declare(name, &rules)];
            let (model, running) = (Model::new(rules), HashMap::new());
            run.limits.push(Limit { name, model, handles, held: Vec::new(), waiting: Vec::new(), running });
        }
        run
    }

    pub fn declare(&mut self, name: &str, rules: &R) -> Arc<dyn Limiter> {
        self.log(format!("{name}: {rules:?}"));
        let at = self.random.below(self.stores.len() as u64) as usize;
        let limiter = self.stores[at].declare(name, rules.policy()).unwrap();
        limiter.open().unwrap();
        limiter
    }

    pub fn log(&mut self, call: String) {
        self.trace.add(self.clock.now(), call);
    }

    pub fn advance(&mut self, by: Duration) {
        self.clock.advance(by);
        let now = self.clock.now().as_nanos() as Tick;
        for limit in &mut self.limits {
            limit.model.advance(Now { floor: now / 1_000, ceil: (now + 999) / 1_000 });
        }
    }

    /// Advances to a tick, if it is not too far away.
    pub fn advance_to(&mut self, tick: Tick) {
        let now = self.clock.now();
        if tick > 0 && tick <= self.limits[0].model.now.floor + 20 * self.scale {
            self.advance(duration(tick).saturating_sub(now));
        }
    }

    pub fn let_time_pass(&mut self, at: usize) {
        let limit = &self.limits[at];
        let (shortest, longest) = limit.model.rules.lengths();
        let most = match self.random.below(20) {
            0..4 => 1,
            4..9 => shortest / 3 + 1,
            9..12 => longest / 3 + 1,
            12 => 3 * longest,
            13..17 => {
                // To the start of a place, or its end, or beyond.
                if let Some(i) = self.random.index(limit.held.len()) {
                    let permit = &limit.held[i].permit;
                    let to = [permit.ready.unwrap_or(0), permit.stamp, permit.stamp + 1, permit.stamp + longest];
                    let to = self.random.pick(&to);
                    self.advance_to(to);
                }
                return;
            }
            _ => {
                let key = self.key();
                let after = self.limits[at].model.view(&key, 1).unwrap().retry_after;
                let to = self.limits[at].model.now.floor + after - Tick::from(self.random.below(2));
                return self.advance_to(to);
            }
        };
        let ns = self.random.scaled(most as u64 * 1_000);
        self.advance(Duration::from_nanos(if self.is_fine { ns } else { ns.div_ceil(1_000) * 1_000 }));
    }

    pub fn key(&mut self) -> String {
        match self.random.below(20) {
            0 => {
                self.new_keys += 1;
                format!("k{}", self.new_keys)
            }
            1 if self.new_keys > 0 => format!("k{}", 1 + self.random.below(self.new_keys)),
            _ => KEYS[self.random.below(self.keys) as usize].to_owned(),
        }
    }

    pub fn weight(&mut self, at: usize) -> u64 {
        let capacity = self.limits[at].model.rules.capacity();
        match self.random.below(20) {
            0..12 => 1,
            12 => capacity,
            13 if self.random.chance(20) => capacity + 1,
            _ => 1 + self.random.below(capacity),
        }
    }

    pub fn handle(&mut self, at: usize) -> usize {
        self.random.below(self.limits[at].handles.len() as u64) as usize
    }

    pub fn patience(&mut self, percent: u32, scales: u64) -> Option<Tick> {
        self.random.chance(percent).then(|| Tick::from(self.random.scaled(scales * self.scale as u64)))
    }

    /// Compares an answer, and keeps its permit.
    pub fn compare(&mut self, at: usize, by: usize, call: &str, (real, raw): Real, answer: Answer) -> Option<usize> {
        let expected = plain(&answer);
        self.log(format!("{} {call} = {real:?}", self.limits[at].name));
        assert_eq!(real, expected, "{call}: the real answer, and the model's");
        let has_started = matches!(answer, Answer::Started(_));
        let limit = &mut self.limits[at];
        let (Answer::Started(permit) | Answer::Place(permit, _), Some(raw)) = (answer, raw) else { return None };
        let ready_in = permit.ready.map(|ready| duration((ready - limit.model.now.floor).max(0)));
        assert_eq!(limit.handles[by].ready_in(&raw), ready_in, "{call}: ready_in");
        limit.held.push(HeldPermit { raw, by, permit, has_started, has_ended: false });
        Some(limit.held.len() - 1)
    }

    /// Compares a whole decision. `backoff`: the smallest and largest wait that it may suggest.
    pub fn compare_decision(
        &mut self,
        at: usize,
        call: &str,
        real: &Result<Decision>,
        expected: Option<View>,
        backoff: (Tick, Tick),
    ) {
        let name = self.limits[at].name;
        self.log(format!("{name} {call} = {real:?}"));
        let view = match real {
            Ok(decision) => {
                assert_eq!(decision.denied_by.as_deref(), (!decision.admitted).then_some(name));
                let retry_after = ticks(decision.retry_after);
                let (least, most) = if decision.admitted { (0, 0) } else { backoff };
                let range = retry_after.max(least)..=retry_after.max(most);
                let suggested = ticks(decision.suggested_after);
                // Where a server decides, a process forgets its levels with the key, of which it stores nothing else.
                let may_differ = is_served(self.stores[0].url()) && suggested >= retry_after;
                assert!(
                    may_differ || range.contains(&suggested),
                    "{call}: {suggested} is suggested instead of {range:?}"
                );
                Some(View {
                    admitted: decision.admitted,
                    retry_after,
                    remaining: decision.remaining,
                    limit: decision.limit,
                    reset_after: ticks(decision.reset_after),
                })
            }
            Err(Error::WeightExceedsCapacity { .. }) => None,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(view, expected, "{call}: the real answer, and the model's");
    }

    /// Compares a peek.
    pub fn peek(&mut self, at: usize, key: &str, weight: u64) -> bool {
        let by = self.handle(at);
        let limit = &self.limits[at];
        let decision = limit.handles[by].peek(key, weight);
        let (expected, backoff) = (limit.model.view(key, weight), limit.model.backoff(key));
        self.compare_decision(at, &format!("peek {key:?} {weight}"), &decision, expected, backoff);
        decision.is_ok_and(|decision| decision.admitted)
    }

    pub fn check(&mut self, at: usize, key: &str) {
        let weight = self.random.below(self.limits[at].model.rules.capacity() + 1);
        self.peek(at, key, weight);
    }

    /// A denial's `retry_after` is exact.
    pub fn wait_out(&mut self, at: usize, key: &str, weight: u64) {
        let Some(view) = self.limits[at].model.view(key, weight) else { return };
        let is_soon = view.retry_after <= 20 * self.scale;
        if view.retry_after > 0 && is_soon {
            self.advance(duration(view.retry_after - 1));
            assert!(!self.peek(at, key, weight), "a tick before {view:?}");
            self.advance(duration(1));
            assert!(self.peek(at, key, weight), "after {view:?}");
        }
    }

    /// Permits whose state the real limiter may or may not have forgotten are no longer used.
    pub fn forget_namesakes(&mut self, at: usize, all: bool) {
        let Limit { model, held, waiting, .. } = &mut self.limits[at];
        let is_safe = |permit: &Permit| model.is_certain(permit, all);
        held.retain(|held| is_safe(&held.permit));
        waiting.retain(|waiting| waiting.waiter.place.as_ref().is_none_or(is_safe));
    }

    pub fn all(seed: u64, kind: &'static str) -> u64 {
        let mut run = Self::new(kind, seed);
        let most = if run.dir.is_some() { 200 } else { 2_000 };
        while run.calls < most {
            run.call();
        }
        run.calls
    }
}

/// Unlimited, if there is no timeout.
pub fn or_endless(patience: Option<Tick>) -> Tick {
    patience.unwrap_or(ENDLESS)
}
