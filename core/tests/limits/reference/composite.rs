//! Several limits at once, against the models of each.

use super::bucket::Bucket;
use super::child::{Child, strictest};
use super::frame::{Answer, Model, Now, Permit, Rules, Tick, View};
use super::log::{DELAY, Log, RATE, STRICT};
use super::run::{KEYS, SCALES, Trace, duration, stores, ticks};
use super::window::Windows;
use crate::common::server::is_served;
use crate::common::{Dir, Random};
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::*;

const NAMES: [&str; 3] = ["first", "second", "third"];

fn child<R: Rules + 'static>(run: &mut Run, store: &Store) {
    let rules = R::random(&mut run.random, run.scale);
    let name = NAMES[run.models.len()];
    run.log(format!("{name}: {rules:?}"));
    let limiter = store.declare(name, rules.policy()).unwrap();
    limiter.open().unwrap();
    run.children.push(limiter);
    run.models.push(Box::new(Model::new(rules)));
}

const KINDS: [fn(&mut Run, &Store); 7] = [
    child::<Log<RATE>>,
    child::<Log<DELAY>>,
    child::<Log<STRICT>>,
    child::<Bucket<false>>,
    child::<Bucket<true>>,
    child::<Windows<false>>,
    child::<Windows<true>>,
];

struct HeldPermit {
    raw: RawPermit,
    /// One for each child.
    parts: Vec<Permit>,
    has_ended: bool,
}

struct Run {
    random: Random,
    clock: ManualClock,
    composite: CompositeLimiter,
    children: Vec<Arc<dyn Limiter>>,
    models: Vec<Box<dyn Child>>,
    held: Vec<HeldPermit>,
    scale: Tick,
    is_fine: bool,
    trace: Trace,
    dir: Option<Dir>,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut random = Random::seeded(seed);
        let (clock, stores, dir) = stores(&mut random, "composite");
        let is_fine = random.chance(30) && !is_served(stores[0].url());
        let scale = random.pick(&SCALES);
        let (composite, trace) = (CompositeLimiter::new([]), Trace::new("composite", seed));
        let (children, models, held) = (Vec::new(), Vec::new(), Vec::new());
        let mut run = Run { random, clock, composite, children, models, held, scale, is_fine, trace, dir };
        for _ in 0..2 + run.random.below(2) {
            let at = run.random.below(stores.len() as u64) as usize;
            run.random.pick(&KINDS)(&mut run, &stores[at]);
        }
        // A nested composite, and a child without a limit, make no difference.
        let mut children = run.children.clone();
        if run.random.chance(20) {
            let inner = CompositeLimiter::new(children.drain(..2));
            children.insert(0, Arc::new(inner));
        }
        if run.random.chance(20) {
            let at = run.random.below(children.len() as u64 + 1) as usize;
            children.insert(at, Arc::new(NullLimiter::new()));
        }
        children.into_iter().for_each(|child| run.composite.add(child).unwrap());
        run
    }

    fn log(&mut self, call: String) {
        self.trace.add(self.clock.now(), call);
    }

    fn advance(&mut self, by: Duration) {
        self.clock.advance(by);
        let now = self.clock.now().as_nanos() as Tick;
        let now = Now { floor: now / 1_000, ceil: (now + 999) / 1_000 };
        self.models.iter_mut().for_each(|model| model.advance(now));
        self.forget(false);
    }

    /// Uncertain outcomes are not tested.
    fn forget(&mut self, all: bool) {
        let models = &self.models;
        self.held.retain(|held| held.parts.iter().zip(models).all(|(part, model)| model.is_certain(part, all)));
    }

    fn view(&self, key: &str, weight: u64) -> Option<(View, Option<usize>)> {
        strictest(&self.models, key, weight)
    }

    fn compare(&mut self, call: &str, real: &Result<Decision>, expected: Option<(View, Option<usize>)>) {
        self.log(format!("{call} = {real:?}"));
        let real = match real {
            Ok(real) => {
                assert!(real.suggested_after >= real.retry_after, "{call}");
                let view = View {
                    admitted: real.admitted,
                    retry_after: ticks(real.retry_after),
                    remaining: real.remaining,
                    limit: real.limit,
                    reset_after: ticks(real.reset_after),
                };
                Some((view, real.denied_by.as_ref().map(|name| NAMES.iter().position(|n| **n == **name).unwrap())))
            }
            Err(Error::WeightExceedsCapacity { .. }) => None,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(real, expected, "{call}: the real answer, and the models'");
    }

    fn peek(&mut self, key: &str, weight: u64) {
        let (real, expected) = (self.composite.peek(key, weight), self.view(key, weight));
        self.compare(&format!("peek {key:?} {weight}"), &real, expected);
    }

    /// Starts at every model, or is denied by the one with the longest wait.
    fn take(&mut self, key: &str, weight: u64, before: &(View, Option<usize>)) -> Option<Vec<Permit>> {
        if let Some(by) = before.1 {
            assert!(
                matches!(self.models[by].attempt(key, weight), Answer::Denied(after) if after == before.0.retry_after)
            );
            return None;
        }
        let start = |model: &mut Box<dyn Child>| match model.attempt(key, weight) {
            Answer::Started(permit) => permit,
            other => panic!("{other:?} after a peek that admitted"),
        };
        Some(self.models.iter_mut().map(start).collect())
    }

    fn start(&mut self, key: &str, weight: u64) {
        let before = self.view(key, weight);
        let parts = before.as_ref().and_then(|before| self.take(key, weight, before));
        let raw = if self.random.chance(50) {
            let real = self.composite.decide(key, weight);
            // A start reports what is left after it.
            let expected = if parts.is_some() { self.view(key, 0) } else { before };
            self.compare(&format!("decide {key:?} {weight}"), &real, expected);
            real.ok().and_then(|decision| decision.permit)
        } else {
            let real = self.composite.attempt(key, weight);
            self.log(format!("attempt {key:?} {weight} = {real:?}"));
            match (real, before) {
                (Ok(Attempt::Admitted(raw)), Some((View { admitted: true, .. }, _))) => Some(raw),
                (Ok(Attempt::Denied(after)), Some((view, Some(_)))) if ticks(after) == view.retry_after => None,
                (Err(Error::WeightExceedsCapacity { .. }), None) => None,
                (real, expected) => panic!("{real:?} instead of {expected:?}"),
            }
        };
        assert_eq!(raw.is_some(), parts.is_some());
        self.held.extend(raw.zip(parts).map(|(raw, parts)| HeldPermit { raw, parts, has_ended: false }));
    }

    /// Ends a permit at each child. A second end has no effect.
    fn end(&mut self) {
        let Some(i) = self.random.index(self.held.len()) else { return };
        let how = self.random.below(4);
        let HeldPermit { raw, parts, has_ended } = &mut self.held[i];
        let actual = self.random.below(parts[0].weight + 1);
        match how {
            0 => self.composite.complete(raw),
            1 => self.composite.settle(raw, actual),
            _ => self.composite.cancel(raw),
        }
        .unwrap();
        for (model, part) in self.models.iter_mut().zip(parts.iter()).filter(|_| !*has_ended) {
            match how {
                0 => model.complete(part),
                1 => model.settle(part, actual),
                _ => model.cancel(part),
            }
        }
        *has_ended = true;
        let call = format!("end {how} {actual} {parts:?}");
        self.log(call);
    }

    fn let_time_pass(&mut self, key: &str, weight: u64) {
        let longest = self.models.iter().map(|model| model.longest()).max().unwrap();
        let after = self.view(key, weight).map_or(0, |(view, _)| view.retry_after);
        if self.random.chance(40) && (1..20 * self.scale).contains(&after) {
            // A denial's `retry_after` is exact.
            self.advance(duration(after - 1));
            assert!(!self.composite.peek(key, weight).unwrap().admitted);
            self.advance(duration(1));
            assert!(self.composite.peek(key, weight).unwrap().admitted);
            return;
        }
        let ns = self.random.scaled(longest as u64 * 1_000);
        self.advance(Duration::from_nanos(if self.is_fine { ns } else { ns.div_ceil(1_000) * 1_000 }));
    }

    fn call(&mut self) {
        let key = KEYS[self.random.below(KEYS.len() as u64) as usize];
        let most = self.models.iter().map(|model| model.capacity()).min().unwrap();
        let weight = if self.random.chance(50) { 1 } else { 1 + self.random.below(most + 1) };
        match self.random.below(100) {
            0..30 => self.let_time_pass(key, weight),
            30..70 => self.start(key, weight),
            70..80 => {
                // Other callers use a child too.
                let at = self.random.below(self.models.len() as u64) as usize;
                let real = matches!(self.children[at].attempt(key, 1).unwrap(), Attempt::Admitted(_));
                self.log(format!("{} attempt {key:?} = {real}", NAMES[at]));
                assert_eq!(real, matches!(self.models[at].attempt(key, 1), Answer::Started(_)));
            }
            80..94 => self.end(),
            94..96 => {
                let pause = Tick::from(self.random.scaled(2 * self.scale as u64));
                self.composite.pause(duration(pause), key).unwrap();
                self.models.iter_mut().for_each(|model| model.pause(key, pause));
                self.log(format!("pause {key:?} {pause}"));
            }
            96..98 => {
                self.composite.clear(key).unwrap();
                self.models.iter_mut().for_each(|model| model.clear(key));
                self.log(format!("clear {key:?}"));
                self.forget(key.is_empty());
            }
            _ => assert!(matches!(self.composite.attempt(key, 0), Err(Error::InvalidArgument { .. }))),
        }
        let weight = self.random.below(most + 1);
        self.peek(key, weight);
        self.advance(Duration::ZERO);
        if self.held.len() > 60 {
            self.held.drain(..30);
        }
    }
}

pub fn all(seed: u64) -> u64 {
    let mut run = Run::new(seed);
    let calls = if run.dir.is_some() { 200 } else { 2_000 };
    (0..calls).for_each(|_| run.call());
    calls
}
