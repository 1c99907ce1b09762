//! Concurrency: a list of leases for each key, and random calls to it and to the real limiter.

use super::frame::{Tick, length};
use super::run::{KEYS, SCALES, Trace, duration, runs, stores, ticks};
use crate::common::Random;
use crate::common::wait::Wait;
use std::collections::HashMap;
use std::sync::Arc;
use workglow_limit::embed::Step;
use workglow_limit::*;

const NEVER: Tick = Tick::MAX;
/// Where a key is forgotten, its fences continue by the clock: 64 in each tick, which only this test can exceed.
const FENCES: Tick = 1_000;

struct Lease {
    id: u64,
    weight: u64,
    until: Tick,
    /// The store through which it was recorded without a permit, if it was.
    recorded_by: Option<usize>,
}

#[derive(Default)]
struct Key {
    gate: Tick,
    leases: Vec<Lease>,
}

struct Model {
    max: u64,
    lease: Option<Tick>,
    gate: Tick,
    keys: HashMap<String, Key>,
    ids: u64,
    now: Tick,
}

impl Model {
    fn key(&mut self, key: &str) -> &mut Key {
        let (now, found) = (self.now, self.keys.entry(key.to_owned()).or_default());
        found.leases.retain(|lease| lease.until > now);
        found
    }

    fn gate(&mut self, key: &str) -> Tick {
        self.key(key).gate.max(self.gate)
    }

    fn live(&mut self, key: &str) -> u64 {
        self.key(key).leases.iter().map(|lease| lease.weight).sum()
    }

    fn until(&self) -> Tick {
        self.lease.map_or(NEVER, |lease| self.now + lease)
    }

    /// How long a start has to wait. If no lease ends, checking again after 10 ms is suggested.
    fn after(&mut self, key: &str, weight: u64) -> Option<Tick> {
        let (now, max, gate) = (self.now, self.max, self.gate(key));
        if gate > now {
            return Some(gate - now);
        }
        let first = self.key(key).leases.iter().map(|lease| lease.until).min().unwrap_or(NEVER);
        let after = if first == NEVER { 10_000 } else { first - now };
        (self.live(key) + weight > max).then_some(after)
    }

    fn add(&mut self, key: &str, weight: u64, recorded_by: Option<usize>) -> u64 {
        self.ids += 1;
        let (id, until) = (self.ids, if recorded_by.is_some() { NEVER } else { self.until() });
        self.key(key).leases.push(Lease { id, weight, until, recorded_by });
        id
    }

    fn renew(&mut self, key: &str, id: u64) -> bool {
        let until = self.until();
        let held = self.key(key).leases.iter_mut().find(|lease| lease.id == id);
        held.map(|lease| lease.until = lease.until.max(until)).is_some()
    }
}

struct HeldPermit {
    raw: RawPermit,
    by: usize,
    key: String,
    id: u64,
}

struct Run {
    random: Random,
    clock: ManualClock,
    stores: Vec<Store>,
    scale: Tick,
    handles: Vec<Arc<dyn Limiter>>,
    /// The store of each limiter.
    stores_of: Vec<usize>,
    model: Model,
    held: Vec<HeldPermit>,
    trace: Trace,
}

/// With leases that end, or without. If no lease ends, the end of another process is noticed sooner or later.
fn policy(random: &mut Random, scale: Tick, ends: bool) -> (u64, Option<Tick>, Policy) {
    let max = random.pick(&[1, 2, 3, 8, 20]);
    let lease = ends.then(|| length(random, scale));
    let policy = Policy::concurrency(max).unwrap();
    (max, lease, lease.map_or(policy, |lease| policy.with_lease(duration(lease)).unwrap()))
}

impl Run {
    fn log(&mut self, call: String) {
        self.trace.add(self.clock.now(), call);
    }

    fn compare(&mut self, call: &str, decision: Result<Decision>, key: &str, weight: u64) -> Option<RawPermit> {
        self.log(format!("{call} {key:?} {weight} = {decision:?}"));
        if weight > self.model.max {
            assert!(matches!(decision, Err(Error::WeightExceedsCapacity { .. })), "{call}");
            return None;
        }
        let (decision, after) = (decision.unwrap(), self.model.after(key, weight));
        let closed = (self.model.gate(key) - self.model.now).max(0);
        let mut live = self.model.live(key);
        live += if decision.permit.is_some() { weight } else { 0 };
        let remaining = if closed > 0 { 0 } else { self.model.max.saturating_sub(live) };
        assert_eq!(decision.admitted, after.is_none(), "{call}");
        assert_eq!(ticks(decision.retry_after), after.unwrap_or(0), "{call}: retry_after");
        assert_eq!(decision.suggested_after, decision.retry_after, "{call}");
        assert_eq!((decision.remaining, decision.limit), (remaining, self.model.max), "{call}: remaining");
        assert_eq!(ticks(decision.reset_after), closed, "{call}: reset_after");
        assert_eq!(decision.denied_by.as_deref(), after.map(|_| "limit"), "{call}");
        decision.permit
    }

    fn hold(&mut self, raw: RawPermit, by: usize, key: String, weight: u64) {
        let id = self.model.add(&key, weight, None);
        let fence = |raw| self.handles[by].fence(raw).unwrap();
        let mine = self.held.iter().filter(|held| held.key == key && held.by == by);
        assert!(mine.clone().all(|held| fence(&held.raw) < fence(&raw)), "fences grow");
        self.held.push(HeldPermit { raw, by, key, id });
    }

    fn end(&mut self) {
        let Some(i) = self.random.index(self.held.len()) else { return };
        let again = self.random.chance(20);
        let HeldPermit { raw, by, key, id, .. } = &self.held[i];
        let (raw, by, key, id) = (*raw, *by, key.clone(), *id);
        match self.random.below(3) {
            0 => self.handles[by].complete(&raw).unwrap(),
            1 => self.handles[by].cancel(&raw).unwrap(),
            _ => {
                let (renewed, is_held) = (self.handles[by].renew(&raw), self.model.renew(&key, id));
                self.log(format!("renew {id} of {key:?} = {renewed:?}"));
                assert_eq!(renewed.is_ok(), is_held, "renew");
                assert!(is_held || matches!(renewed, Err(Error::LeaseLost { .. })));
                return;
            }
        }
        self.log(format!("end {id} of {key:?}"));
        self.model.key(&key).leases.retain(|lease| lease.id != id);
        if !again {
            self.held.swap_remove(i);
        }
    }

    fn advance(&mut self, by: Tick) {
        self.clock.advance(duration(by));
        self.model.now += by;
    }

    fn call(&mut self) {
        if self.random.chance(40) {
            let by = Tick::from(self.random.scaled(2 * self.scale as u64));
            self.advance(by);
        }
        let key = self.random.pick(&KEYS).to_owned();
        let weight = if self.random.chance(60) { 1 } else { 1 + self.random.below(self.model.max + 1) };
        let by = self.random.below(self.handles.len() as u64) as usize;
        let limiter = self.handles[by].clone();
        match self.random.below(100) {
            0..35 => {
                let permit = self.compare("decide", limiter.decide(&key, weight), &key, weight);
                permit.into_iter().for_each(|raw| self.hold(raw, by, key.clone(), weight));
            }
            35..55 if weight <= self.model.max => {
                let raw = match self.random.chance(50) {
                    true => match limiter.attempt(&key, weight).unwrap() {
                        Attempt::Admitted(raw) => Ok(raw),
                        Attempt::Denied(after) => Err(after),
                    },
                    false => match Wait::new(&key, weight, Some(duration(0))).step(&*limiter).unwrap() {
                        Step::Admitted(raw) => Ok(raw),
                        Step::Expired(after) => Err(after),
                        sleep => panic!("{sleep:?}"),
                    },
                };
                self.log(format!("attempt {key:?} {weight} = {raw:?}"));
                assert_eq!(raw.err().map(ticks), self.model.after(&key, weight));
                raw.into_iter().for_each(|raw| self.hold(raw, by, key.clone(), weight));
            }
            55..80 => self.end(),
            80..84 if self.model.key(&key).leases.iter().filter(|lease| lease.recorded_by.is_some()).count() < 6 => {
                self.log(format!("record_job_start {key:?}"));
                limiter.record_job_start(&key).unwrap();
                self.model.add(&key, 1, Some(self.stores_of[by]));
            }
            84..90 => {
                self.log(format!("record_job_completion {key:?}"));
                limiter.record_job_completion(&key).unwrap();
                let (by, leases) = (self.stores_of[by], &mut self.model.key(&key).leases);
                leases.iter().position(|lease| lease.recorded_by == Some(by)).map(|oldest| leases.remove(oldest));
            }
            90..92 => {
                let pause = 1 + Tick::from(self.random.scaled(self.scale as u64));
                self.log(format!("pause {key:?} {pause}"));
                limiter.pause(&key, duration(pause)).unwrap();
                let until = self.model.now + pause;
                let gate = if key.is_empty() { &mut self.model.gate } else { &mut self.model.key(&key).gate };
                *gate = until.max(*gate);
            }
            92..94 => {
                self.log(format!("clear {key:?}"));
                limiter.clear(&key).unwrap();
                self.model.keys.retain(|name, _| !key.is_empty() && *name != key);
                self.model.gate = if key.is_empty() { 0 } else { self.model.gate };
                self.advance(FENCES);
            }
            94..96 => {
                let (max, lease, policy) = policy(&mut self.random, self.scale, self.model.lease.is_some());
                self.log(format!("{policy}"));
                let at = self.random.below(self.stores.len() as u64) as usize;
                let limiter = self.stores[at].declare("limit", policy).unwrap();
                limiter.open().unwrap();
                self.advance(FENCES);
                (self.model.max, self.model.lease) = (max, lease);
                if self.handles.len() < 6 {
                    self.handles.push(limiter);
                    self.stores_of.push(at);
                }
            }
            _ => {
                assert!(matches!(limiter.attempt(&key, 0), Err(Error::InvalidArgument { .. })));
                assert!(matches!(limiter.reserve(&key, 1, None, None), Err(Error::Unsupported { .. })));
            }
        }
        let key = self.random.pick(&KEYS);
        let weight = self.random.below(self.model.max + 2);
        self.compare("peek", self.handles[by].peek(key, weight), key, weight);
        if self.held.len() > 60 {
            self.held.drain(..30);
        }
    }
}

#[test]
fn concurrency() {
    runs(|seed| {
        let mut random = Random::seeded(seed);
        let (clock, stores, dir) = stores(&mut random, "concurrency");
        let scale = random.pick(&SCALES);
        let ends = random.chance(60);
        let (max, lease, policy) = policy(&mut random, scale, ends);
        let handles = vec![stores[0].declare("limit", policy).unwrap()];
        handles[0].open().unwrap();
        let model = Model { max, lease, gate: 0, keys: HashMap::new(), ids: 0, now: 0 };
        let trace = Trace::new("concurrency", seed);
        let (stores_of, held) = (vec![0], Vec::new());
        let mut run = Run { random, clock, stores, scale, handles, stores_of, model, held, trace };
        run.log(format!("{policy}"));
        let calls = if dir.is_some() { 200 } else { 2_000 };
        (0..calls).for_each(|_| run.call());
        calls
    });
}
