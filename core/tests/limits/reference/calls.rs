//! The calls of a random run: everything that a user may do with a limit.

use super::frame::{Rules, Tick, Waiter};
use super::run::{HeldPermit, KEYS, Limit, Plain, Run, Waiting, duration, or_endless, real, ticks};
use crate::common::wait::Wait;
use std::time::SystemTime;
use workglow_limit::embed::Step;
use workglow_limit::*;

impl<R: Rules> Run<R> {
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
        let (before, backoff) = (limit.model.view(key, weight), limit.model.backoff(key));
        let answer = limit.model.attempt(key, weight);
        let expected = before.and_then(|before| match before.admitted {
            true => limit.model.after_start(key, weight, &before),
            false => Some(before),
        });
        let call = format!("decide {key:?} {weight}");
        self.compare_decision(at, &call, &decision, expected, backoff);
        if let Ok(Decision { permit: Some(raw), .. }) = decision {
            self.compare(at, by, &call, (Plain::Start, Some(raw)), answer);
        }
    }

    fn reserve(&mut self, at: usize, key: &str, weight: u64) {
        let by = self.handle(at);
        let (patience, grace) = (self.patience(40, 3), self.patience(40, 1));
        let limit = &mut self.limits[at];
        if !limit.has_space(key, weight) {
            return;
        }
        let reserved = limit.handles[by].reserve(key, weight, patience.map(duration), grace.map(duration));
        let answer = real(reserved, |reserved| match reserved {
            Reserved::Place { place, after } => (Plain::Sleep(ticks(after)), Some(place)),
            Reserved::Denied(after) => (Plain::No(ticks(after)), None),
        });
        let expected = limit.model.reserve(key, weight, or_endless(patience), grace);
        self.compare(at, by, &format!("reserve {key:?} {weight} {patience:?} {grace:?}"), answer, expected);
    }

    fn present(&mut self, at: usize) {
        let Some(i) = self.random.index(self.limits[at].held.len()) else { return };
        let limit = &mut self.limits[at];
        let HeldPermit { raw, by, ref permit, has_started, has_ended } = limit.held[i];
        let permit = permit.clone();
        if !limit.has_space(&permit.key, permit.weight) || R::COUNTED && has_started {
            return;
        }
        let answer = real(limit.handles[by].present(&raw), |presented| match presented {
            Presented::Started(raw) => (Plain::Start, Some(raw)),
            Presented::Wait { place, after } => (Plain::Sleep(ticks(after)), Some(place)),
        });
        let expected = limit.model.present(&permit);
        if let Some(new) = self.compare(at, by, &format!("present {permit:?}"), answer, expected) {
            // The same permit may be presented again, and an old one, where it is known.
            let held = &mut self.limits[at].held;
            let is_same = held[new].permit == permit;
            assert!(R::COUNTED || is_same == (held[new].raw == raw));
            held[new].has_ended = is_same && has_ended;
            if is_same || R::COUNTED {
                held.swap_remove(i);
            }
        }
    }

    fn step(&mut self, at: usize) {
        let (key, weight, timeout) = (self.key(), self.weight(at), self.patience(60, 4));
        let old = self.random.index(self.limits[at].waiting.len()).filter(|_| self.random.chance(70));
        let by = self.handle(at);
        let limit = &mut self.limits[at];
        let mut it = match old {
            Some(i) => limit.waiting.swap_remove(i),
            None => {
                let for_place = self.random.index(limit.held.len()).filter(|_| self.random.chance(20));
                let for_place = for_place.filter(|&i| !(R::COUNTED && limit.held[i].has_started));
                let (wait, by, key, weight, place) = match for_place.map(|i| limit.held.swap_remove(i)) {
                    Some(HeldPermit { raw, by, permit, .. }) => {
                        (Wait::for_place(raw, timeout.map(duration)), by, String::new(), 1, Some(permit))
                    }
                    None => (Wait::new(&key, weight, timeout.map(duration)), by, key, weight, None),
                };
                Waiting {
                    wait,
                    by,
                    waiter: Waiter { key, weight, timeout: or_endless(timeout), deadline: None, place },
                }
            }
        };
        let (key, weight) = match &it.waiter.place {
            Some(place) => (place.key.clone(), place.weight),
            None => (it.waiter.key.clone(), it.waiter.weight),
        };
        if !limit.has_space(&key, weight) {
            return limit.waiting.push(it);
        }
        if self.random.chance(10) {
            it.wait.give_up(&*limit.handles[it.by]).unwrap();
            limit.model.give_up(&mut it.waiter);
            return self.log(format!("give_up {:?}", it.waiter));
        }
        let call = format!("step {:?}", it.waiter);
        let answer = real(it.wait.step(&*limit.handles[it.by]), |step| match step {
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
        let HeldPermit { raw, by, ref permit, has_started, ref mut has_ended } = limit.held[i];
        let permit = permit.clone();
        let capacity = limit.model.rules.capacity();
        let actual = self.random.scaled(2 * permit.weight + capacity + 2);
        let debt = actual.saturating_sub(permit.weight).min(capacity);
        // A late debt is owed by a key that still exists, and once.
        let is_over = limit.model.is_over(&permit);
        let is_owed = !is_over && (!R::COUNTED || limit.model.has(&permit))
            || is_over && !*has_ended && !limit.model.is_idle(&permit.key);
        let mut is_gone = R::ENDS_ONCE;
        match self.random.below(10) {
            0..5 => {
                *has_ended = true;
                // Once it has started, returning its place has no effect.
                let only_place = permit.ready.is_some() && self.random.chance(50);
                match only_place {
                    true => limit.handles[by].cancel_place(&raw).unwrap(),
                    false => limit.handles[by].cancel(&raw).unwrap(),
                }
                match only_place {
                    true if R::COUNTED && has_started => {}
                    true => limit.model.cancel_place(&permit),
                    false => limit.model.cancel(&permit),
                }
                self.log(format!("cancel {permit:?}, only as a place: {only_place}"));
            }
            5..9 if debt == 0 || is_owed => {
                *has_ended = true;
                if limit.has_space(&permit.key, debt) {
                    limit.handles[by].settle(&raw, actual).unwrap();
                    limit.model.settle(&permit, actual);
                    self.log(format!("settle {permit:?} {actual}"));
                }
            }
            _ => {
                is_gone = true;
                limit.handles[by].complete(&raw).unwrap();
                limit.model.complete(&permit);
                self.log(format!("complete {permit:?}"));
            }
        }
        if is_gone {
            self.limits[at].held.swap_remove(i);
        }
        self.check(at, &permit.key);
    }

    /// Records a start, or the end of one.
    fn record(&mut self, at: usize, by: usize, key: &str) {
        let limit = &mut self.limits[at];
        let running = limit.running.entry((by, key.to_owned())).or_default();
        if self.random.chance(40) {
            limit.handles[by].record_job_completion(key).unwrap();
            if limit.model.rules.most_jobs() > 0
                && let Some(began) = running.pop_front()
            {
                limit.model.ended(key, began);
            }
            return self.log(format!("record_job_completion {key:?}"));
        }
        let most = limit.model.rules.most_jobs();
        if most > 0 {
            running.push_back(limit.model.now.ceil);
            running.truncate(most);
        }
        if limit.has_space(key, 1) {
            limit.handles[by].record_job_start(key).unwrap();
            limit.model.record_job_start(key);
            self.log(format!("record_job_start {key:?}"));
        } else if most > 0 {
            limit.running.entry((by, key.to_owned())).or_default().pop_back();
        }
    }

    /// Passes a permit to another handle of the same limit, as a text.
    fn transfer(&mut self, at: usize) {
        let Some(i) = self.random.index(self.limits[at].held.len()) else { return };
        let to = self.handle(at);
        let name = self.limits[at].name;
        // Where units are only counted, a started permit stays in its process.
        if R::COUNTED && self.limits[at].held[i].has_started {
            let HeldPermit { raw, by, .. } = &self.limits[at].held[i];
            assert!(matches!(self.limits[at].handles[*by].to_text(raw), Err(Error::Unsupported { .. })));
            return;
        }
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

    fn may_become(&self, at: usize, rules: &R) -> bool {
        let model = &self.limits[at].model;
        let books: Vec<_> = model.keys.values().map(|key| &key.book).collect();
        model.rules.can_become(rules, &books, model.forgotten, model.now)
    }

    /// Declares another policy, or the same again; or attaches another handle.
    fn change(&mut self, at: usize) {
        let mut rules = R::random(&mut self.random, self.scale);
        if self.random.chance(20) {
            rules = self.limits[at].model.rules.clone();
        }
        if !self.may_become(at, &rules) && self.random.chance(50) {
            // Forgotten starts must not matter to the new policy either.
            let to = self.limits[at].model.forgotten + rules.lengths().1;
            self.advance_to(to);
        }
        if !self.may_become(at, &rules) {
            return;
        }
        let name = self.limits[at].name;
        let limiter = self.declare(name, &rules);
        self.limits[at].model.change(rules);
        // (`changes.rs` tests what ends where units are only counted, after a change.)
        let Limit { model, held, .. } = &mut self.limits[at];
        held.retain(|held| !R::COUNTED || model.has(&held.permit));
        if self.limits[at].handles.len() < 6 {
            self.limits[at].handles.push(limiter);
            if self.random.chance(30) {
                let i = self.random.below(self.stores.len() as u64) as usize;
                self.limits[at].handles.push(self.stores[i].find(name).unwrap());
            }
        }
        KEYS.iter().for_each(|key| self.check(at, key));
    }

    fn pause(&mut self, at: usize, key: &str) {
        let by = self.handle(at);
        let pause = Tick::from(self.random.scaled(2 * self.scale as u64));
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

    /// Many tenants.
    fn crowd(&mut self, at: usize) {
        for _ in 0..self.random.scaled(300) {
            self.new_keys += 1;
            self.calls += 1;
            self.attempt(at, &format!("k{}", self.new_keys), 1);
        }
    }

    /// An invalid call has no effect.
    fn fail(&mut self, at: usize, by: usize, key: &str) {
        let limiter = &self.limits[at].handles[by];
        assert!(matches!(limiter.attempt(key, 0), Err(Error::InvalidArgument { .. })));
        assert_eq!(limiter.can_proceed(key).unwrap(), self.limits[at].model.view(key, 1).unwrap().admitted);
    }

    pub fn call(&mut self) {
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
            860..910 => self.record(at, by, &key),
            910..925 => self.pause(at, &key),
            925..930 => self.pause(at, ""),
            930..945 if !key.is_empty() => self.clear(at, &key),
            945..948 => self.clear(at, ""),
            948..960 => self.change(at),
            960..990 => self.transfer(at),
            990 if self.random.chance(30) => self.crowd(at),
            _ => self.fail(at, by, &key),
        }
        self.check(at, &key);
        let other = self.random.below(self.limits.len() as u64) as usize;
        self.check(other, KEYS[self.calls as usize % KEYS.len()]);
        for limit in &mut self.limits {
            limit.model.advance(limit.model.now);
        }
        (0..self.limits.len()).for_each(|at| self.forget_namesakes(at, false));
        let Limit { held, waiting, .. } = &mut self.limits[at];
        if held.len() > 60 {
            held.drain(..30);
        }
        if waiting.len() > 20 {
            waiting.drain(..10);
        }
    }
}
