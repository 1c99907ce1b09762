//! The sliding log as it is documented, in the plainest way: a list of starts for each key, and 128-bit numbers.

use std::collections::HashMap;

/// Microseconds since the clock began.
pub type Tick = i128;

/// Longer than anybody waits.
pub const ENDLESS: Tick = 1 << 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Started,
    Place,
    Settled,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    /// From when on it counts. It counts in a window until `stamp + window`.
    stamp: Tick,
    units: u64,
    state: State,
}

#[derive(Debug, Default)]
struct Key {
    gate: Tick,
    /// In the order of their stamps.
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permit {
    pub key: String,
    pub id: u64,
    pub weight: u64,
    pub stamp: Tick,
    /// When its place comes, if it is or was one.
    pub ready: Option<Tick>,
    pub grace: Tick,
}

#[derive(Debug)]
pub enum Answer {
    Started(Permit),
    /// A place, and how long until it is ready.
    Place(Permit, Tick),
    Denied(Tick),
    TooHeavy,
}

#[derive(Debug, PartialEq, Eq)]
pub struct View {
    pub admitted: bool,
    pub retry_after: Tick,
    pub remaining: u64,
    pub limit: u64,
    pub reset_after: Tick,
}

#[derive(Debug)]
pub struct Waiter {
    pub key: String,
    pub weight: u64,
    pub timeout: Tick,
    pub deadline: Option<Tick>,
    pub place: Option<Permit>,
}

/// One limit.
#[derive(Debug)]
pub struct Model {
    /// `(limit, length)`.
    pub windows: Vec<(u64, Tick)>,
    gate: Tick,
    keys: HashMap<String, Key>,
    ids: u64,
    /// The time, rounded down and up.
    pub floor: Tick,
    pub ceil: Tick,
    /// The latest stamp of a start that has left every window of a policy that it lived under. It is forgotten.
    pub forgotten: Tick,
}

impl Model {
    pub fn new(windows: Vec<(u64, Tick)>) -> Model {
        Model { windows, gate: 0, keys: HashMap::new(), ids: 0, floor: 0, ceil: 0, forgotten: -ENDLESS }
    }

    pub fn capacity(&self) -> u64 {
        self.windows.iter().map(|w| w.0).min().unwrap()
    }

    pub fn shortest(&self) -> Tick {
        self.windows.iter().map(|w| w.1).min().unwrap()
    }

    pub fn longest(&self) -> Tick {
        self.windows.iter().map(|w| w.1).max().unwrap()
    }

    pub fn default_grace(&self) -> Tick {
        (self.shortest() / 40).min(50_000)
    }

    fn entries(&self, key: &str) -> &[Entry] {
        self.keys.get(key).map_or(&[], |key| &key.entries)
    }

    fn entries_mut(&mut self, key: &str) -> &mut Vec<Entry> {
        &mut self.keys.entry(key.to_owned()).or_default().entries
    }

    fn gate(&self, key: &str) -> Tick {
        self.keys.get(key).map_or(0, |key| key.gate).max(self.gate)
    }

    /// The stamp of every unit.
    fn units(&self, key: &str) -> Vec<Tick> {
        self.entries(key).iter().flat_map(|e| std::iter::repeat_n(e.stamp, e.units as usize)).collect()
    }

    /// The earliest moment for a start at the end of the log.
    fn ready(&self, key: &str, weight: u64) -> Tick {
        let mut ready = self.gate(key);
        if weight == 0 {
            return ready;
        }
        let units = self.units(key);
        for &(limit, length) in &self.windows {
            let last = units.len() + weight as usize - 1;
            if last >= limit as usize {
                ready = ready.max(units[last - limit as usize] + length);
            }
        }
        ready
    }

    fn remaining(&self, key: &str) -> u64 {
        if self.gate(key) > self.floor {
            return 0;
        }
        let units = self.units(key);
        let free = |&(limit, length): &(u64, Tick)| {
            let live = units.iter().filter(|stamp| **stamp + length > self.floor).count();
            limit.saturating_sub(live as u64)
        };
        self.windows.iter().map(free).min().unwrap()
    }

    pub fn view(&self, key: &str, weight: u64) -> Option<View> {
        if weight > self.capacity() {
            return None;
        }
        let retry_after = (self.ready(key, weight) - self.floor).max(0);
        let empty = self.entries(key).iter().map(|e| e.stamp + self.longest()).fold(self.gate(key), Tick::max);
        Some(View {
            admitted: retry_after == 0,
            retry_after,
            remaining: self.remaining(key),
            limit: self.capacity(),
            reset_after: (empty - self.floor).max(0),
        })
    }

    /// Adds a start at the end of the log.
    fn record(&mut self, key: &str, stamp: Tick, units: u64, state: State) -> (u64, Tick) {
        self.ids += 1;
        let id = self.ids;
        let entries = self.entries_mut(key);
        let stamp = entries.last().map_or(stamp, |newest| stamp.max(newest.stamp));
        entries.push(Entry { id, stamp, units, state });
        (id, stamp)
    }

    fn take(&mut self, key: &str, weight: u64, patience: Tick, grace: Tick, reserve: bool) -> Answer {
        if weight > self.capacity() {
            return Answer::TooHeavy;
        }
        let ready = self.ready(key, weight);
        let after = (ready - self.floor).max(0);
        if after > patience {
            return Answer::Denied(after);
        }
        let is_place = after > 0 || reserve;
        let (stamp, grace, state) = match is_place {
            true => (ready.max(self.ceil) + grace, grace, State::Place),
            false => (self.ceil, 0, State::Started),
        };
        let (id, stamp) = self.record(key, stamp, weight, state);
        let ready = is_place.then_some(ready.max(self.floor));
        let permit = Permit { key: key.to_owned(), id, weight, stamp, ready, grace };
        if is_place { Answer::Place(permit, after) } else { Answer::Started(permit) }
    }

    pub fn attempt(&mut self, key: &str, weight: u64) -> Answer {
        self.take(key, weight, 0, 0, false)
    }

    pub fn reserve(&mut self, key: &str, weight: u64, patience: Tick, grace: Option<Tick>) -> Answer {
        self.take(key, weight, patience, grace.unwrap_or(self.default_grace()), true)
    }

    /// Does a permit still stand for something?
    pub fn has(&self, permit: &Permit) -> bool {
        self.entries(&permit.key).iter().any(|e| e.id == permit.id)
    }

    fn find(&self, permit: &Permit) -> Option<usize> {
        self.entries(&permit.key).iter().position(|e| e.id == permit.id && e.state != State::Settled)
    }

    fn find_place(&self, permit: &Permit) -> Option<usize> {
        self.find(permit).filter(|&at| self.entries(&permit.key)[at].state == State::Place)
    }

    pub fn present(&mut self, place: &Permit) -> Answer {
        let early = place.ready.unwrap_or(0) - self.floor;
        if early > 0 {
            return Answer::Place(place.clone(), early);
        }
        if let Some(at) = self.find_place(place) {
            if self.gate(&place.key) <= self.floor && self.ceil <= place.stamp {
                self.entries_mut(&place.key)[at].state = State::Started;
                return Answer::Started(place.clone());
            }
            self.entries_mut(&place.key).remove(at);
        }
        self.take(&place.key, place.weight, ENDLESS, place.grace, true)
    }

    pub fn step(&mut self, waiter: &mut Waiter) -> Answer {
        while let Some(place) = waiter.place.clone() {
            match self.present(&place) {
                Answer::Place(place, after) => {
                    let deadline = *waiter.deadline.get_or_insert(self.floor + waiter.timeout);
                    if self.floor + after > deadline.max(self.floor) {
                        self.cancel(&place);
                        waiter.place = None;
                        return Answer::Denied(after);
                    }
                    waiter.place = Some(place.clone());
                    if after > 0 {
                        return Answer::Place(place, after);
                    }
                }
                Answer::Started(permit) => {
                    waiter.place = None;
                    return Answer::Started(permit);
                }
                other => return other,
            }
        }
        let deadline = *waiter.deadline.get_or_insert(self.floor + waiter.timeout);
        let patience = (deadline - self.floor).max(0);
        let answer = self.take(&waiter.key, waiter.weight, patience, self.default_grace(), false);
        if let Answer::Place(place, _) = &answer {
            waiter.place = Some(place.clone());
        }
        answer
    }

    pub fn give_up(&mut self, waiter: &mut Waiter) {
        if let Some(place) = waiter.place.take() {
            self.cancel(&place);
        }
    }

    pub fn cancel(&mut self, permit: &Permit) {
        if let Some(at) = self.find(permit) {
            self.entries_mut(&permit.key).remove(at);
        }
    }

    pub fn is_over(&self, permit: &Permit) -> bool {
        permit.stamp + self.longest() <= self.floor
    }

    pub fn settle(&mut self, permit: &Permit, actual: u64) {
        if let Some(at) = self.find(permit) {
            if actual == 0 {
                self.entries_mut(&permit.key).remove(at);
            } else {
                let entry = &mut self.entries_mut(&permit.key)[at];
                entry.units = actual.min(entry.units);
                entry.state = State::Settled;
            }
        } else if !self.is_over(permit) {
            return;
        }
        let units = actual.saturating_sub(permit.weight).min(self.capacity());
        if units > 0 {
            self.ids += 1;
            let (id, stamp) = (self.ids, self.ceil);
            let entries = self.entries_mut(&permit.key);
            let at = entries.iter().take_while(|e| e.stamp <= stamp).count();
            entries.insert(at, Entry { id, stamp, units, state: State::Settled });
        }
    }

    pub fn record_job_start(&mut self, key: &str) {
        self.record(key, self.ceil, 1, State::Started);
    }

    pub fn pause(&mut self, key: &str, pause: Tick) {
        if pause > 0 {
            let until = self.ceil + pause;
            let gate =
                if key.is_empty() { &mut self.gate } else { &mut self.keys.entry(key.to_owned()).or_default().gate };
            *gate = until.max(*gate);
        }
    }

    pub fn clear(&mut self, key: &str) {
        if key.is_empty() {
            self.gate = 0;
            self.keys.clear();
        } else {
            self.keys.remove(key);
        }
    }

    /// Places that have not started were taken under another policy.
    pub fn change(&mut self, windows: Vec<(u64, Tick)>) {
        if windows != self.windows {
            self.windows = windows;
            self.keys.values_mut().for_each(|key| key.entries.retain(|e| e.state != State::Place));
            self.forget();
        }
    }

    /// Forgets what has left every window, and the keys that are as new then.
    pub fn forget(&mut self) {
        let (longest, floor) = (self.longest(), self.floor);
        let forgotten = &mut self.forgotten;
        self.keys.retain(|_, key| {
            let is_over = |e: &&Entry| e.stamp + longest <= floor;
            *forgotten = key.entries.iter().filter(is_over).map(|e| e.stamp).fold(*forgotten, Tick::max);
            key.entries.retain(|e| !is_over(&e));
            assert!(key.entries.is_sorted_by_key(|e| e.stamp), "stamps never decrease");
            !key.entries.is_empty() || key.gate > floor
        });
    }

    /// Is a key as new? The real one may forget it then.
    pub fn is_idle(&self, key: &str) -> bool {
        let gate = self.keys.get(key).map_or(0, |key| key.gate);
        gate <= self.floor && self.live(key, self.longest()) == 0
    }

    /// How many units count in a window of that length, or will.
    pub fn live(&self, key: &str, length: Tick) -> u64 {
        self.entries(key).iter().filter(|e| e.stamp + length > self.floor).map(|e| e.units).sum()
    }

    /// The most that any key has.
    pub fn most_live(&self, length: Tick) -> u64 {
        self.keys.keys().map(|key| self.live(key, length)).max().unwrap_or(0)
    }
}
