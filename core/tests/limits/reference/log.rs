//! Rates, delays and even spacing: a list of starts for each key.

use super::frame::{Ask, Backoff, ENDLESS, Now, Permit, Rules, Start, Tick, length};
use super::run::duration;
use crate::common::Random;
use std::collections::VecDeque;
use workglow_limit::{Jitter, Policy};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Started,
    Place,
    Settled,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    /// From when on it counts: in a window until `stamp + window`.
    stamp: Tick,
    units: u64,
    state: State,
}

#[derive(Debug, Default)]
pub struct Book {
    /// In the order of their stamps.
    entries: Vec<Entry>,
    /// The durations of the last jobs, and the distance of the next start from the last, if they determine it.
    jobs: VecDeque<Tick>,
    spacing: Option<Tick>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    Rate(Backoff),
    Delay,
    /// Evenly spaced; `true`: closer, depending on job durations.
    Even(u64, Tick, bool),
}

/// `(limit, length)` of each window.
#[derive(Debug, Clone, PartialEq)]
pub struct Log<const KIND: u8> {
    windows: Vec<(u64, Tick)>,
    kind: Kind,
}

pub const RATE: u8 = 0;
pub const BACKOFF: u8 = 1;
pub const DELAY: u8 = 2;
pub const STRICT: u8 = 3;
pub const ADAPTIVE: u8 = 4;

pub fn next_id() -> u64 {
    static IDS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    IDS.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

impl Book {
    /// The stamp of every unit.
    fn units(&self) -> Vec<Tick> {
        self.entries.iter().flat_map(|e| std::iter::repeat_n(e.stamp, e.units as usize)).collect()
    }

    fn live(&self, length: Tick, now: Now) -> u64 {
        self.entries.iter().filter(|e| e.stamp + length > now.floor).map(|e| e.units).sum()
    }

    fn find(&self, permit: &Permit) -> Option<usize> {
        let is_it = |e: &Entry| e.id == permit.id && e.stamp == permit.stamp && e.state != State::Settled;
        self.entries.iter().position(is_it)
    }
}

impl<const KIND: u8> Log<KIND> {
    /// The windows that apply to a key.
    fn windows(&self, book: &Book) -> Vec<(u64, Tick)> {
        let mut windows = self.windows.clone();
        if let (Some(spacing), Some(last)) = (book.spacing, windows.last_mut()) {
            last.1 = spacing;
        }
        windows
    }

    fn longest(&self) -> Tick {
        self.windows.iter().map(|w| w.1).max().unwrap()
    }

    /// The number of units that the real limiter remembers for a key.
    fn slots(&self) -> u64 {
        (2 * self.windows.iter().map(|w| w.0).max().unwrap()).next_power_of_two().max(16)
    }

    fn remove(book: &mut Book, at: usize) {
        book.entries.remove(at);
    }
}

impl<const KIND: u8> Rules for Log<KIND> {
    type Book = Book;
    const COUNTED: bool = false;
    const ENDS_ONCE: bool = KIND == ADAPTIVE;

    fn random(random: &mut Random, scale: Tick) -> Self {
        let most = random.pick(&[1, 3, 8, 8, 20, 40]);
        match KIND {
            DELAY => Log { windows: vec![(1, length(random, scale))], kind: Kind::Delay },
            STRICT | ADAPTIVE => {
                let (max, window) = (1 + random.below(most), length(random, scale));
                let is_adaptive = KIND == ADAPTIVE;
                let interval = (1, (window + Tick::from(max) - 1) / Tick::from(max));
                let windows = if is_adaptive { vec![(max, window), interval] } else { vec![interval] };
                Log { windows, kind: Kind::Even(max, window, is_adaptive) }
            }
            _ => {
                let count = random.pick(&[1, 1, 1, 2, 2, 3, 4]);
                let mut windows: Vec<_> = (0..count).map(|_| (1 + random.below(most), length(random, scale))).collect();
                if random.chance(1) {
                    windows[0].0 = 4_096;
                }
                let initial = 1_000 + Tick::from(random.scaled(scale as u64));
                let max = initial + Tick::from(random.scaled(20 * scale as u64));
                let thousandths = random.pick(&[1_001, 1_500, 2_000, 10_000]);
                let backoff = match KIND == BACKOFF {
                    true => Backoff { initial, thousandths, max, is_scaled: false },
                    // The default.
                    false => Backoff { initial: 1_000_000, thousandths: 2_000, max: 600_000_000, is_scaled: true },
                };
                Log { windows, kind: Kind::Rate(backoff) }
            }
        }
    }

    fn policy(&self) -> Policy {
        match &self.kind {
            Kind::Delay => Policy::delay(duration(self.windows[0].1)),
            Kind::Even(max, window, is_adaptive) => Policy::evenly_spaced(*max, duration(*window), *is_adaptive),
            Kind::Rate(backoff) => {
                let windows: Vec<_> = self.windows.iter().map(|&(limit, length)| (limit, duration(length))).collect();
                let policy = Policy::rate_in(&windows).unwrap();
                let Backoff { initial, thousandths, max, is_scaled } = *backoff;
                if is_scaled {
                    return policy;
                }
                let multiplier = thousandths as f64 / 1e3;
                let backoff =
                    workglow_limit::Backoff::new(duration(initial), multiplier, duration(max), Jitter::None).unwrap();
                policy.with_backoff(backoff)
            }
        }
        .unwrap()
    }

    fn capacity(&self) -> u64 {
        self.windows.iter().map(|w| w.0).min().unwrap()
    }

    fn lengths(&self) -> (Tick, Tick) {
        (self.windows.iter().map(|w| w.1).min().unwrap(), self.longest())
    }

    fn grace(&self, _: &Book, _: u64) -> Tick {
        let shortest = self.windows.iter().map(|w| w.1).min();
        (shortest.unwrap_or(0) / 40).min(50_000)
    }

    fn ready(&self, book: &Book, weight: u64, gate: Tick, _: Now) -> Tick {
        let (units, mut ready) = (book.units(), gate);
        for (limit, length) in self.windows(book) {
            let last = units.len() + weight as usize - 1;
            if last >= limit as usize {
                ready = ready.max(units[last - limit as usize] + length);
            }
        }
        ready
    }

    fn remaining(&self, book: &Book, now: Now) -> u64 {
        let windows = self.windows(book);
        windows.iter().map(|&(limit, length)| limit.saturating_sub(book.live(length, now))).min().unwrap()
    }

    fn empty(&self, book: &Book) -> Tick {
        book.entries.last().map_or(0, |newest| newest.stamp + self.longest())
    }

    fn record(&self, book: &mut Book, ask: &Ask, ready: Tick, is_place: bool, now: Now) -> Start {
        let (stamp, state) = match is_place {
            true => (ready.max(now.ceil) + ask.grace, State::Place),
            false => (now.ceil, State::Started),
        };
        let stamp = book.entries.last().map_or(stamp, |newest| stamp.max(newest.stamp));
        let id = next_id();
        book.entries.push(Entry { id, stamp, units: ask.weight, state });
        if let Kind::Even(max, window, true) = self.kind {
            let interval = (window + Tick::from(max) - 1) / Tick::from(max);
            let average = book.jobs.iter().sum::<Tick>() / (book.jobs.len().max(1) as Tick);
            book.spacing = Some((interval - average).max(0));
        }
        Start { id, stamp, ahead: 0 }
    }

    /// The rest of its grace is returned, except for what the start before it still needs, and at most a window.
    fn present(&self, book: &mut Book, place: &Permit, now: Now) -> Option<Tick> {
        let at = book.entries.iter().position(|e| e.id == place.id && e.state == State::Place)?;
        let before = if at > 0 { book.entries[at - 1].stamp } else { 0 };
        let least = now.ceil.max(before).max(place.stamp + 1 - self.longest());
        let entry = &mut book.entries[at];
        (entry.state, entry.stamp) = (State::Started, least.min(place.stamp));
        Some(entry.stamp)
    }

    fn cancel(&self, book: &mut Book, permit: &Permit, only_place: bool, _: Now) {
        let found = book.find(permit).filter(|&at| !only_place || book.entries[at].state == State::Place);
        if let Some(at) = found {
            Self::remove(book, at);
        }
    }

    fn settle(&self, book: &mut Book, permit: &Permit, actual: u64, is_over: bool, now: Now) {
        if let Some(at) = book.find(permit) {
            if actual == 0 {
                Self::remove(book, at);
            } else {
                let entry = &mut book.entries[at];
                (entry.units, entry.state) = (actual.min(entry.units), State::Settled);
            }
        } else if !is_over {
            return; // it had ended already
        }
        let units = actual.saturating_sub(permit.weight).min(self.capacity());
        if units > 0 {
            let at = book.entries.iter().take_while(|e| e.stamp <= now.ceil).count();
            book.entries.insert(at, Entry { id: next_id(), stamp: now.ceil, units, state: State::Settled });
        }
    }

    /// Places that have not started were taken under another policy.
    fn change(&self, _: &Self, mut book: Book, _: Now) -> Book {
        book.entries.retain(|e| e.state != State::Place);
        Book { jobs: VecDeque::new(), spacing: None, ..book }
    }

    fn forget(&self, book: &mut Book, now: Now) -> Tick {
        assert!(book.entries.is_sorted_by_key(|e| e.stamp), "stamps never decrease");
        let longest = self.longest();
        let is_over = |e: &&Entry| e.stamp + longest <= now.floor;
        let forgotten = book.entries.iter().filter(is_over).map(|e| e.stamp).fold(-ENDLESS, Tick::max);
        book.entries.retain(|e| !is_over(&e));
        forgotten
    }

    fn has(&self, book: &Book, permit: &Permit) -> bool {
        book.entries.iter().any(|e| e.id == permit.id && e.stamp == permit.stamp)
    }

    fn backoff(&self) -> Option<Backoff> {
        if let Kind::Rate(backoff) = self.kind { Some(backoff) } else { None }
    }

    fn most_jobs(&self) -> usize {
        if let Kind::Even(max, _, true) = self.kind { max as usize } else { 0 }
    }

    fn ended(&self, book: &mut Book, took: Tick) {
        if let Kind::Even(max, _, true) = self.kind {
            book.jobs.push_back(took);
            if book.jobs.len() as u64 > max {
                book.jobs.pop_front();
            }
        }
    }

    /// After a whole window without a start, the durations of jobs are forgotten.
    fn asked(&self, book: &mut Book, _: Now) {
        if book.entries.is_empty() {
            book.jobs.clear();
        }
    }

    /// Units that the real limiter forgets count as later than they were; and an eighth is reserved for exchanged places.
    fn is_full(&self, book: &Book, units: u64, now: Now) -> bool {
        book.live(self.longest(), now) + units + self.slots() / 8 >= self.slots()
    }

    fn can_become(&self, to: &Self, books: &[&Book], forgotten: Tick, now: Now) -> bool {
        let is_known = forgotten + to.longest() <= now.floor || to.longest() <= self.longest();
        let longest = to.longest().max(self.longest());
        is_known && books.iter().all(|book| book.live(longest, now) < to.slots())
    }
}
