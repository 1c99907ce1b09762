//! The sliding log against a model of it: random calls to both, and every answer compared.
//!
//! `CALLS=…` says how many, `SEED=…` repeats the one run whose number a failure prints.
//!
//! What the model does not know, the calls leave out. A ring remembers as many units as it has slots, and what it forgets
//! counts as later than it was: no key ever gets more than that ([`Limit::has_room`]). What has left every window is
//! forgotten, also if a longer one comes after: policies get longer only after all that. And how a permit ends that has
//! ended before is left to `cases`.

mod common;

#[path = "reference/cases.rs"]
mod cases;
#[path = "reference/model.rs"]
mod model;

use common::Dir;
use model::{Answer, ENDLESS, Model, Tick, View, Waiter};
use std::collections::VecDeque;
use std::time::{Duration, SystemTime};
use workglow_limit::*;

/// A splitmix.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// At least 0, below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Small numbers as often as large ones.
    fn up_to(&mut self, most: u64) -> u64 {
        let bits = self.below(u64::from(64 - most.leading_zeros()) + 1);
        self.below((1 << bits.min(62)).min(most) + 1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    fn index(&mut self, len: usize) -> Option<usize> {
        (len > 0).then(|| self.below(len.max(1) as u64) as usize)
    }
}

fn duration(ticks: Tick) -> Duration {
    Duration::from_micros(ticks as u64)
}

fn ticks(duration: Duration) -> Tick {
    assert_eq!(duration.subsec_nanos() % 1_000, 0, "answers are whole microseconds");
    duration.as_micros() as Tick
}

fn slots(windows: &[(u64, Tick)]) -> u64 {
    (2 * windows.iter().map(|w| w.0).max().unwrap()).next_power_of_two().max(16)
}

fn longest(windows: &[(u64, Tick)]) -> Tick {
    windows.iter().map(|w| w.1).max().unwrap()
}

/// An answer of either.
#[derive(Debug, PartialEq, Eq)]
enum Plain {
    Start,
    Sleep(Tick),
    No(Tick),
    TooHeavy,
}

/// The real answer, and the permit that came with it.
type Real = (Plain, Option<RawPermit>);

fn real<T>(answer: Result<T>, plain: impl FnOnce(T) -> Real) -> Real {
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

/// A permit or place as both know it, and who gave it.
struct Held {
    raw: RawPermit,
    by: usize,
    permit: model::Permit,
    has_ended: bool,
}

struct Waiting {
    wait: Wait,
    by: usize,
    waiter: Waiter,
}

/// One name, and all who use it.
struct Limit {
    name: &'static str,
    model: Model,
    handles: Vec<RateLimiter>,
    held: Vec<Held>,
    waiting: Vec<Waiting>,
}

impl Limit {
    /// Can the ring tell so many units more apart?
    fn has_room(&self, key: &str, units: u64) -> bool {
        self.model.live(key, self.model.longest()) + units < slots(&self.model.windows)
    }
}

struct Run {
    random: Random,
    clock: ManualClock,
    stores: Vec<Store>,
    limits: Vec<Limit>,
    keys: u64,
    new_keys: u64,
    scale: Tick,
    /// Does time go by in nanoseconds?
    is_fine: bool,
    calls: u64,
    trace: VecDeque<String>,
    seed: u64,
    _dir: Option<Dir>,
}

impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the last calls of this run, which SEED={} repeats:", self.seed);
            self.trace.iter().for_each(|call| eprintln!("  {call}"));
        }
    }
}

const NAMES: [&str; 2] = ["first", "second"];
const KEYS: [&str; 5] = ["", "a", "b", "c", "d"];

impl Run {
    fn new(seed: u64) -> Run {
        let mut random = Random(seed);
        let clock = ManualClock::new();
        let mut options = StoreOptions::default();
        options.clock = Some(clock.clone());
        let dir = random.chance(5).then(|| Dir::new("reference"));
        let store = |url: &str| {
            let store = Store::with_options(url, options.clone()).unwrap();
            store.open().unwrap();
            store
        };
        let stores = match &dir {
            Some(dir) => vec![store(&dir.url()), store(&dir.url())],
            None => vec![store("memory:")],
        };
        let scale = random.pick(&[2, 10, 100, 10_000, 1_000_000, 60_000_000, 3_600_000_000]);
        let (keys, is_fine) = (3 + random.below(3), random.chance(30));
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
            trace: VecDeque::new(),
            seed,
            _dir: dir,
        };
        for name in &NAMES[..1 + usize::from(run.random.chance(30))] {
            let windows = run.windows();
            let first = run.declare(name, &windows);
            let (model, held, waiting) = (Model::new(windows), Vec::new(), Vec::new());
            run.limits.push(Limit { name, model, handles: vec![first], held, waiting });
        }
        run
    }

    fn windows(&mut self) -> Vec<(u64, Tick)> {
        let random = &mut self.random;
        let most = random.pick(&[1, 3, 8, 8, 20, 40]);
        let mut windows = Vec::new();
        for _ in 0..random.pick(&[1, 1, 1, 2, 2, 3, 4]) {
            let length = match random.below(4) {
                0 => self.scale,
                1 => 1 + Tick::from(random.up_to(3)),
                _ => 1 + Tick::from(random.up_to(2 * self.scale as u64)),
            };
            windows.push((1 + random.below(most), length));
        }
        if random.chance(1) {
            windows[0].0 = 4_096;
        }
        windows
    }

    fn declare(&mut self, name: &str, windows: &[(u64, Tick)]) -> RateLimiter {
        self.log(format!("{name}: {windows:?}"));
        let windows: Vec<_> = windows.iter().map(|&(limit, length)| (limit, duration(length))).collect();
        let at = self.random.below(self.stores.len() as u64) as usize;
        let limiter = RateLimiter::with_windows(&self.stores[at], name, &windows, Default::default()).unwrap();
        limiter.open().unwrap();
        limiter
    }

    fn log(&mut self, call: String) {
        if self.trace.len() == 30 {
            self.trace.pop_front();
        }
        self.trace.push_back(format!("{:>12?} {call}", self.clock.now()));
    }

    fn advance(&mut self, by: Duration) {
        self.clock.advance(by);
        let now = self.clock.now().as_nanos() as Tick;
        for limit in &mut self.limits {
            limit.model.floor = now / 1_000;
            limit.model.ceil = (now + 999) / 1_000;
            limit.model.forget();
        }
    }

    /// Advances to a tick, if it is not too far away.
    fn advance_to(&mut self, tick: Tick) {
        let now = self.clock.now();
        if tick > 0 && tick <= self.limits[0].model.floor + 20 * self.scale {
            self.advance(duration(tick).saturating_sub(now));
        }
    }

    fn let_time_pass(&mut self, at: usize) {
        let limit = &self.limits[at];
        let (shortest, longest) = (limit.model.shortest(), limit.model.longest());
        let most = match self.random.below(20) {
            0..4 => 1,
            4..9 => shortest / 3 + 1,
            9..12 => longest / 3 + 1,
            12 => 3 * longest,
            13..17 => {
                // To a place's moment, or to its end, or beyond.
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
                let to = self.limits[at].model.floor + after - Tick::from(self.random.below(2));
                return self.advance_to(to);
            }
        };
        let ns = self.random.up_to(most as u64 * 1_000);
        self.advance(Duration::from_nanos(if self.is_fine { ns } else { ns.div_ceil(1_000) * 1_000 }));
    }

    fn key(&mut self) -> String {
        match self.random.below(20) {
            0 => {
                self.new_keys += 1;
                format!("k{}", self.new_keys)
            }
            1 if self.new_keys > 0 => format!("k{}", 1 + self.random.below(self.new_keys)),
            _ => KEYS[self.random.below(self.keys) as usize].to_owned(),
        }
    }

    fn weight(&mut self, at: usize) -> u64 {
        let capacity = self.limits[at].model.capacity();
        match self.random.below(20) {
            0..12 => 1,
            12 => capacity,
            13 if self.random.chance(20) => capacity + 1,
            _ => 1 + self.random.below(capacity),
        }
    }

    fn handle(&mut self, at: usize) -> usize {
        self.random.below(self.limits[at].handles.len() as u64) as usize
    }

    /// Compares an answer, and keeps the permit that came with it.
    fn compare(&mut self, at: usize, by: usize, call: &str, (real, raw): Real, answer: Answer) -> Option<usize> {
        let expected = plain(&answer);
        self.log(format!("{} {call} = {real:?}", self.limits[at].name));
        assert_eq!(real, expected, "{call}: the real answer, and the model's");
        let limit = &mut self.limits[at];
        let (Answer::Started(permit) | Answer::Place(permit, _), Some(raw)) = (answer, raw) else { return None };
        let ready_in = permit.ready.map(|ready| duration((ready - limit.model.floor).max(0)));
        assert_eq!(limit.handles[by].ready_in(&raw), ready_in, "{call}: ready_in");
        limit.held.push(Held { raw, by, permit, has_ended: false });
        Some(limit.held.len() - 1)
    }

    fn compare_decision(&mut self, at: usize, call: &str, real: &Result<Decision>, expected: Option<View>) {
        let limit = &self.limits[at];
        let real = match real {
            Ok(decision) => {
                assert_eq!(decision.suggested_after, decision.retry_after);
                assert_eq!(decision.denied_by.as_deref(), (!decision.admitted).then_some(limit.name));
                Some(View {
                    admitted: decision.admitted,
                    retry_after: ticks(decision.retry_after),
                    remaining: decision.remaining,
                    limit: decision.limit,
                    reset_after: ticks(decision.reset_after),
                })
            }
            Err(Error::WeightExceedsCapacity { .. }) => None,
            Err(error) => panic!("{error}"),
        };
        self.log(format!("{} {call} = {real:?}", limit.name));
        assert_eq!(real, expected, "{call}: the real answer, and the model's");
    }

    fn peek(&mut self, at: usize, key: &str, weight: u64) -> bool {
        let by = self.handle(at);
        let limit = &self.limits[at];
        let decision = limit.handles[by].peek(key, weight);
        let expected = limit.model.view(key, weight);
        self.compare_decision(at, &format!("peek {key:?} {weight}"), &decision, expected);
        decision.is_ok_and(|decision| decision.admitted)
    }

    /// A denial's `retry_after` is exact.
    fn wait_out(&mut self, at: usize, key: &str, weight: u64) {
        let Some(view) = self.limits[at].model.view(key, weight) else { return };
        let is_soon = view.retry_after <= 20 * self.scale;
        if view.retry_after > 0 && is_soon {
            self.advance(duration(view.retry_after - 1));
            assert!(!self.peek(at, key, weight), "a tick before {view:?}");
            self.advance(duration(1));
            assert!(self.peek(at, key, weight), "after {view:?}");
        }
    }

    fn attempt(&mut self, at: usize, key: &str, weight: u64) {
        let by = self.handle(at);
        let limit = &mut self.limits[at];
        let answer = real(limit.handles[by].attempt(key, weight), |attempt| match attempt {
            Attempt::Admitted(raw) => (Plain::Start, Some(raw)),
            Attempt::Denied(after) => (Plain::No(ticks(after)), None),
        });
        let expected = limit.model.attempt(key, weight);
        let is_denied = matches!(answer.0, Plain::No(_));
        self.compare(at, by, &format!("attempt {key:?} {weight}"), answer, expected);
        if is_denied && self.random.chance(5) {
            self.wait_out(at, key, weight);
        }
    }

    fn decide(&mut self, at: usize, key: &str, weight: u64) {
        let by = self.handle(at);
        let limit = &mut self.limits[at];
        let decision = limit.handles[by].decide(key, weight);
        let before = limit.model.view(key, weight);
        let answer = limit.model.attempt(key, weight);
        let mut expected = limit.model.view(key, weight);
        if let (Some(expected), Some(before)) = (&mut expected, before) {
            (expected.admitted, expected.retry_after) = (before.admitted, before.retry_after);
        }
        let call = format!("decide {key:?} {weight}");
        self.compare_decision(at, &call, &decision, expected);
        if let Ok(Decision { permit: Some(raw), .. }) = decision {
            self.compare(at, by, &call, (Plain::Start, Some(raw)), answer);
        }
    }

    fn reserve(&mut self, at: usize, key: &str, weight: u64) {
        let by = self.handle(at);
        let patience = self.random.chance(40).then(|| Tick::from(self.random.up_to(3 * self.scale as u64)));
        let grace = self.random.chance(40).then(|| Tick::from(self.random.up_to(self.scale as u64)));
        let limit = &mut self.limits[at];
        if !limit.has_room(key, weight) {
            return;
        }
        let reserved = limit.handles[by].reserve(key, weight, patience.map(duration), grace.map(duration));
        let answer = real(reserved, |reserved| match reserved {
            Reserved::Place { place, after } => (Plain::Sleep(ticks(after)), Some(place)),
            Reserved::Denied(after) => (Plain::No(ticks(after)), None),
        });
        let expected = limit.model.reserve(key, weight, patience.unwrap_or(ENDLESS), grace);
        self.compare(at, by, &format!("reserve {key:?} {weight} {patience:?} {grace:?}"), answer, expected);
    }

    fn present(&mut self, at: usize) {
        let Some(i) = self.random.index(self.limits[at].held.len()) else { return };
        let limit = &mut self.limits[at];
        let Held { raw, by, ref permit, has_ended } = limit.held[i];
        let permit = permit.clone();
        if !limit.has_room(&permit.key, permit.weight) {
            return;
        }
        let answer = real(limit.handles[by].present(&raw), |presented| match presented {
            Presented::Started(raw) => (Plain::Start, Some(raw)),
            Presented::Wait { place, after } => (Plain::Sleep(ticks(after)), Some(place)),
        });
        let expected = limit.model.present(&permit);
        if let Some(new) = self.compare(at, by, &format!("present {permit:?}"), answer, expected) {
            // The same one may be presented again.
            let held = &mut self.limits[at].held;
            if held[new].permit == permit {
                assert_eq!(held[new].raw, raw);
                held[new].has_ended = has_ended;
                held.swap_remove(i);
            }
        }
    }

    fn step(&mut self, at: usize) {
        let (key, weight) = (self.key(), self.weight(at));
        let timeout = self.random.chance(60).then(|| Tick::from(self.random.up_to(4 * self.scale as u64)));
        let old = self.random.index(self.limits[at].waiting.len()).filter(|_| self.random.chance(70));
        let by = self.handle(at);
        let limit = &mut self.limits[at];
        let mut it = match old {
            Some(i) => limit.waiting.swap_remove(i),
            None => {
                let timeout_or_not = timeout.unwrap_or(ENDLESS);
                let for_place = self.random.index(limit.held.len()).filter(|_| self.random.chance(20));
                match for_place.map(|i| limit.held.swap_remove(i)) {
                    Some(Held { raw, by, permit, .. }) => {
                        let wait = Wait::for_place(raw, timeout.map(duration));
                        let (key, weight, deadline, place) = (String::new(), 1, None, Some(permit));
                        Waiting { wait, by, waiter: Waiter { key, weight, timeout: timeout_or_not, deadline, place } }
                    }
                    None => {
                        let wait = Wait::new(&key, weight, timeout.map(duration));
                        let waiter = Waiter { key, weight, timeout: timeout_or_not, deadline: None, place: None };
                        Waiting { wait, by, waiter }
                    }
                }
            }
        };
        let (key, weight) = match &it.waiter.place {
            Some(place) => (place.key.clone(), place.weight),
            None => (it.waiter.key.clone(), it.waiter.weight),
        };
        if !limit.has_room(&key, weight) {
            return limit.waiting.push(it);
        }
        if self.random.chance(10) {
            limit.handles[it.by].give_up(&mut it.wait).unwrap();
            limit.model.give_up(&mut it.waiter);
            return self.log(format!("give_up {:?}", it.waiter));
        }
        let call = format!("step {:?}", it.waiter);
        let answer = real(limit.handles[it.by].step(&mut it.wait), |step| match step {
            Step::Admitted(raw) => (Plain::Start, Some(raw)),
            Step::Sleep(nap) => (Plain::Sleep(ticks(nap)), None),
            Step::Expired(after) => (Plain::No(ticks(after)), None),
        });
        let expected = limit.model.step(&mut it.waiter);
        let by = it.by;
        if matches!(answer.0, Plain::Sleep(_)) || self.random.chance(20) {
            limit.waiting.push(it);
        }
        self.compare(at, by, &call, answer, expected);
    }

    /// Ends a permit, mostly for the first time.
    fn end(&mut self, at: usize) {
        let Some(i) = self.random.index(self.limits[at].held.len()) else { return };
        let limit = &mut self.limits[at];
        let Held { raw, by, ref permit, ref mut has_ended } = limit.held[i];
        let permit = permit.clone();
        let actual = self.random.up_to(2 * permit.weight + limit.model.capacity() + 2);
        let debt = actual.saturating_sub(permit.weight).min(limit.model.capacity());
        // A debt that comes late is owed by a key that is still there, and once.
        let is_owed = !limit.model.is_over(&permit) || !*has_ended && !limit.model.is_idle(&permit.key);
        match self.random.below(10) {
            0..5 => {
                limit.handles[by].cancel(&raw).unwrap();
                limit.model.cancel(&permit);
                *has_ended = true;
                self.log(format!("cancel {permit:?}"));
            }
            5..9 if debt == 0 || is_owed => {
                *has_ended = true;
                if limit.has_room(&permit.key, debt) {
                    limit.handles[by].settle(&raw, actual).unwrap();
                    limit.model.settle(&permit, actual);
                    self.log(format!("settle {permit:?} {actual}"));
                }
            }
            _ => {
                limit.handles[by].complete(&raw).unwrap();
                self.log(format!("complete {permit:?}"));
                self.limits[at].held.swap_remove(i);
            }
        }
        self.check(at, &permit.key);
    }

    /// Hands a permit to another handle of the same limit, as a text.
    fn transfer(&mut self, at: usize) {
        let Some(i) = self.random.index(self.limits[at].held.len()) else { return };
        let to = self.handle(at);
        let name = self.limits[at].name;
        for other in self.limits.iter().filter(|other| other.name != name) {
            let raw = &self.limits[at].held[i].raw;
            assert!(matches!(other.handles[0].present(raw), Err(Error::ForeignPermit { .. })));
            let text = self.limits[at].handles[self.limits[at].held[i].by].to_text(raw).unwrap();
            assert!(matches!(other.handles[0].permit_from_text(&text), Err(Error::ForeignPermit { .. })));
        }
        let Limit { handles, held, .. } = &mut self.limits[at];
        let text = handles[held[i].by].to_text(&held[i].raw).unwrap();
        let raw = handles[to].permit_from_text(&text).unwrap();
        assert_eq!(raw.to_words()[1..], held[i].raw.to_words()[1..]);
        assert_eq!(to == held[i].by, raw == held[i].raw);
        (held[i].raw, held[i].by) = (raw, to);
        self.log(format!("transfer {text}"));
    }

    /// Another policy, or the same again; or somebody who takes what there is.
    fn change(&mut self, at: usize) {
        let mut windows = self.windows();
        if self.random.chance(20) {
            windows = self.limits[at].model.windows.clone();
        }
        let model = &self.limits[at].model;
        let is_known = model.forgotten + longest(&windows) <= model.floor || longest(&windows) <= model.longest();
        if !is_known && self.random.chance(50) {
            let to = model.forgotten + longest(&windows);
            self.advance_to(to);
        }
        let limit = &self.limits[at];
        let model = &limit.model;
        let is_known = model.forgotten + longest(&windows) <= model.floor || longest(&windows) <= model.longest();
        if !is_known || model.most_live(longest(&windows).max(model.longest())) >= slots(&windows) {
            return;
        }
        let name = limit.name;
        let has_room_for_handles = self.limits[at].handles.len() < 6;
        let limiter = self.declare(name, &windows);
        self.limits[at].model.change(windows);
        if has_room_for_handles {
            self.limits[at].handles.push(limiter);
            if self.random.chance(30) {
                let i = self.random.below(self.stores.len() as u64) as usize;
                self.limits[at].handles.push(RateLimiter::attach(&self.stores[i], name).unwrap());
            }
        }
        KEYS.iter().for_each(|key| self.check(at, key));
    }

    fn pause(&mut self, at: usize, key: &str) {
        let by = self.handle(at);
        let pause = Tick::from(self.random.up_to(2 * self.scale as u64));
        let limit = &mut self.limits[at];
        limit.handles[by].pause(key, duration(pause)).unwrap();
        limit.handles[by].set_next_available_time(key, SystemTime::UNIX_EPOCH).unwrap();
        limit.model.pause(key, pause);
        self.log(format!("pause {key:?} {pause}"));
    }

    fn clear(&mut self, at: usize, key: &str) {
        let by = self.handle(at);
        let limit = &mut self.limits[at];
        limit.handles[by].clear(key).unwrap();
        limit.model.clear(key);
        self.log(format!("clear {key:?}"));
        if key.is_empty() {
            self.forget_namesakes(at, true);
        }
    }

    /// A key that is gone counts its tickets anew, so that an old permit may stand for something else.
    fn forget_namesakes(&mut self, at: usize, all: bool) {
        let Limit { model, held, waiting, .. } = &mut self.limits[at];
        let is_safe = |permit: &model::Permit| {
            let is_kept = permit.key.is_empty() || !model.is_idle(&permit.key);
            model.has(permit) || permit.stamp < model.floor || is_kept && !all
        };
        held.retain(|held| is_safe(&held.permit));
        waiting.retain(|waiting| waiting.waiter.place.as_ref().is_none_or(is_safe));
    }

    /// Asks how things stand.
    fn check(&mut self, at: usize, key: &str) {
        let weight = self.random.below(self.limits[at].model.capacity() + 1);
        self.peek(at, key, weight);
    }

    fn call(&mut self) {
        let at = self.random.below(self.limits.len() as u64) as usize;
        if self.random.chance(50) {
            self.let_time_pass(at);
        }
        let (key, weight) = (self.key(), self.weight(at));
        let by = self.handle(at);
        self.calls += 1;
        match self.random.below(1_000) {
            0..200 => self.attempt(at, &key, weight),
            200..300 => self.decide(at, &key, weight),
            300..350 => self.check(at, &key),
            350..480 => self.reserve(at, &key, weight),
            480..620 => self.present(at),
            620..760 => self.step(at),
            760..860 => self.end(at),
            860..910 if self.limits[at].has_room(&key, 1) => {
                let limit = &mut self.limits[at];
                limit.handles[by].record_job_start(&key).unwrap();
                limit.handles[by].record_job_completion(&key).unwrap();
                limit.model.record_job_start(&key);
                self.log(format!("record_job_start {key:?}"));
            }
            910..925 => self.pause(at, &key),
            925..930 => self.pause(at, ""),
            930..945 if !key.is_empty() => self.clear(at, &key),
            945..948 => self.clear(at, ""),
            948..960 => self.change(at),
            960..990 => self.transfer(at),
            990 if self.random.chance(30) => {
                // A crowd of tenants.
                for _ in 0..self.random.up_to(300) {
                    self.new_keys += 1;
                    self.calls += 1;
                    self.attempt(at, &format!("k{}", self.new_keys), 1);
                }
            }
            _ => {
                let limiter = &self.limits[at].handles[by];
                assert!(matches!(limiter.attempt(&key, 0), Err(Error::InvalidArgument { .. })));
                assert_eq!(limiter.can_proceed(&key).unwrap(), self.limits[at].model.view(&key, 1).unwrap().admitted);
            }
        }
        self.check(at, &key);
        let other = self.random.below(self.limits.len() as u64) as usize;
        self.check(other, KEYS[self.calls as usize % KEYS.len()]);
        (0..self.limits.len()).for_each(|at| self.forget_namesakes(at, false));
        if self.limits[at].held.len() > 60 {
            self.limits[at].held.drain(..30);
        }
        if self.limits[at].waiting.len() > 20 {
            self.limits[at].waiting.drain(..10);
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect(variable))
}

#[test]
fn every_answer_is_the_models() {
    let runs = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..u64::MAX,
    };
    let (mut calls, most) = (0, number("CALLS").unwrap_or(1_000_000));
    for seed in runs {
        let mut run = Run::new(seed);
        let most_here = if run._dir.is_some() { 200 } else { 2_000 };
        while run.calls < most_here {
            run.call();
        }
        calls += run.calls;
        if calls >= most {
            break;
        }
    }
}
