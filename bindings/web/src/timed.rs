//! A key of a limit that counts starts over time: its cells, decisions on them, and how they are rewritten.
//!
//! A rewrite is the core's (`core/src/state/rare/rewrite.rs`), in memory that nobody shares: the cells are sealed, what
//! counts is read, edited and written into new ones.

use crate::Moment;
use crate::algorithm::bucket::Bucket;
use crate::algorithm::cells::Cells;
use crate::algorithm::counter::{Counter, Frame, Past};
use crate::algorithm::jobs::Jobs;
use crate::algorithm::log::{Answer, Ask, CLOSED, Log, SETTLED, StartId, View, Window};
use crate::algorithm::meter::Meter;
use crate::algorithm::slices::Slices;
use crate::algorithm::time::{MAX_TIME, Now, Tick};
use crate::algorithm::{Algorithm, Forgotten, History, Sealed};
use crate::atomic::{AtomicU64, *};
use crate::carry_over::carry_over;
use crate::policy::{POLICY_WORDS, Policy, Shape};
use crate::take_back::{owe, parts, settle_unknown, take_units};

/// The words of a key before its ring: two that decisions write, then the others.
mod word {
    use crate::policy::POLICY_WORDS;

    pub const HOT: usize = 0;
    pub const LIFE: usize = 2;
    pub const BASE: usize = 3;
    /// The same word in windows of the clock: `counter::Past::begun`.
    pub const CLEARED: usize = 4;
    pub const OWN: usize = 5;
    pub const LOGGED: usize = 6;
    pub const PEAK: usize = 7;
    pub const WRITTEN: usize = 8;
    pub const LAST: usize = 9;
    pub const GIVEN_BACK: usize = 10;
    pub const CARRIED: usize = 11;
    pub const UNTIL: usize = 12;
    pub const EARLIER: usize = 13;
    /// The level of the backoff.
    pub const BACKOFF: usize = 14;
    pub const FIRST_ERA: usize = 15;
    pub const ERA: usize = 16;
    pub const CHANGED: usize = 17;
    pub const IS_MIXED: usize = 18;
    pub const JOBS: usize = 19;
    pub const SPACING: usize = 20;
    /// Whether the tickets of rewritten starts are behind the ring.
    pub const HAS_ORIGINS: usize = 21;
    /// What did not fit when the cells were written: pairs of units and a stamp.
    pub const LEFT_OUT: usize = 22;
    pub const PAIRS: usize = 4;
    /// The fastest bucket before this one, as a policy.
    pub const FORMER: usize = LEFT_OUT + 2 * PAIRS;
    pub const RING: usize = FORMER + POLICY_WORDS;
}

/// A key's cells, and the policy that they were made for.
pub struct Timed {
    pub policy: Policy,
    words: Box<[AtomicU64]>,
}

/// Why a call could not be made on a key: its cells hold words that no call here writes.
#[derive(Debug)]
pub struct Nonsense;

impl Timed {
    /// An unused key. `number`: no other key of the limit has it.
    pub fn new(policy: Policy, number: u64) -> Timed {
        let key = Timed::with(policy, false);
        if policy.is_counted() {
            key.put(word::OWN, number);
            key.put(word::FIRST_ERA, number);
        }
        key
    }

    /// Gives an unused key tickets from this number on.
    pub fn begin(&self, number: u64, at: Moment) -> Option<()> {
        match self.policy.has_origins() {
            true => self.write(&History { end: number, ..History::default() }, None, at),
            false => Some(()),
        }
    }

    /// Returns a number that is greater than the tickets and eras of the key's starts.
    pub fn end(&self) -> u64 {
        match self.cells(0) {
            Cells::Log(log) => log.position().unwrap_or_default(),
            _ => self.get(word::OWN) + 1,
        }
    }

    fn with(policy: Policy, has_origins: bool) -> Timed {
        let ring = policy.ring() as usize;
        let size = word::RING + ring + if has_origins { ring } else { 0 } + policy.jobs() as usize;
        let key = Timed { policy, words: (0..size).map(|_| AtomicU64::new(0)).collect() };
        key.put(word::HAS_ORIGINS, has_origins.into());
        key
    }

    /// A key from its words: see [`Timed::words`].
    pub fn from_words(policy: Policy, words: &[u64]) -> Option<Timed> {
        let has_origins = *words.get(word::HAS_ORIGINS)? != 0;
        let key = Timed::with(policy, has_origins);
        if key.words.len() != words.len() {
            return None;
        }
        key.words.iter().zip(words).for_each(|(cell, word)| cell.store(*word, Relaxed));
        Some(key)
    }

    /// Its words, from which it can be made again.
    pub fn words(&self) -> impl Iterator<Item = u64> {
        self.words.iter().map(|cell| cell.load(Relaxed))
    }

    fn get(&self, at: usize) -> u64 {
        self.words[at].load(Acquire)
    }

    fn put(&self, at: usize, word: u64) {
        self.words[at].store(word, Release);
    }

    fn ring(&self) -> &[AtomicU64] {
        &self.words[word::RING..][..self.policy.ring() as usize]
    }

    fn origins(&self) -> &[AtomicU64] {
        let ring = self.policy.ring() as usize;
        if self.get(word::HAS_ORIGINS) == 0 { &[] } else { &self.words[word::RING + ring..][..ring] }
    }

    fn jobs(&self) -> Option<Jobs<'_>> {
        let count = self.policy.jobs() as usize;
        let ring = &self.words[self.words.len() - count..];
        (count > 0).then(|| Jobs { ended: &self.words[word::JOBS], spacing: &self.words[word::SPACING], ring })
    }

    /// The level of its backoff.
    pub fn backoff(&self) -> &AtomicU64 {
        &self.words[word::BACKOFF]
    }

    /// The policy, with the distance to the next start that the last jobs determine.
    fn adapted(&self) -> Policy {
        let mut policy = self.policy;
        if let (Shape::EvenlySpaced(spacing), apart @ 1..) = (policy.0, self.get(word::SPACING))
            && spacing.is_adaptive
        {
            policy.0 = Shape::EvenlySpaced(spacing.apart(apart - 1));
        }
        policy
    }

    fn cells(&self, phase: u64) -> Cells<'_> {
        let [head, _, life, base, cleared, own, logged, peak, written, last, returned, carried, until, units, ..] =
            &*self.words
        else {
            unreachable!("no key has fewer words")
        };
        // (Of what is lost, there is a gate.)
        let (number, born) = (life.load(Acquire), 0);
        match &self.policy.0 {
            Shape::Bucket(bucket) => Cells::Meter(Meter {
                word: head,
                base,
                life,
                number,
                era: own,
                logged,
                last,
                returned,
                carried,
                born,
                bucket,
            }),
            Shape::Counter { window, is_smooth } => Cells::Counter(Counter {
                ring: &self.words[word::HOT..][..2],
                life,
                number,
                base,
                era: own,
                logged,
                born,
                frame: frame(phase, *window, *is_smooth),
                past: Past { begun: cleared, until, units },
            }),
            _ if self.policy.is_sliced() => {
                Cells::Slices(Slices { head, life, base: number, ring: self.ring(), era: own, logged, written, born })
            }
            _ => {
                let (ring, origins) = (self.ring(), self.origins());
                Cells::Log(Log {
                    head,
                    cleared,
                    own,
                    logged,
                    ring,
                    // Its ring is whole from the beginning.
                    whole: ring.len() as u64,
                    largest: self.policy.largest(),
                    left_out: [peak; 2],
                    origins,
                    peak,
                    life,
                    number,
                    base: self.get(word::BASE),
                    born,
                })
            }
        }
    }

    /// The state of the key, for a start of this weight.
    pub fn view(&self, weight: u64, gate: Tick, at: Moment) -> Result<View, Nonsense> {
        let policy = self.adapted();
        self.cells(at.phase).view(&Ask::now(policy.windows(), weight, gate), || at.now).map_err(|Sealed| Nonsense)
    }

    /// Decides and records. The view is of the state afterwards.
    pub fn decide(&mut self, weight: u64, gate: Tick, at: Moment) -> Result<(Answer, View), Nonsense> {
        if let Some(jobs) = self.jobs()
            && self.is_idle(at)
        {
            // After a whole window without a start.
            jobs.forget();
        }
        let answer = match self.try_decide(weight, gate, at) {
            Ok(answer) => answer,
            Err(Sealed) => {
                // The life of the cells is used up: it continues in another one.
                self.rewrite(self.policy, 0, at, |_, _| {}).ok_or(Nonsense)?;
                self.try_decide(weight, gate, at).map_err(|Sealed| Nonsense)?
            }
        };
        if answer.0.taken.is_none() {
            return Ok(answer);
        }
        if let (Some(jobs), Shape::EvenlySpaced(spacing)) = (self.jobs(), &self.policy.0) {
            jobs.space(spacing.interval);
            // The next start has another distance now.
            return Ok((answer.0, self.view(weight, gate, at)?));
        }
        Ok(answer)
    }

    fn try_decide(&self, weight: u64, gate: Tick, at: Moment) -> Result<(Answer, View), Sealed> {
        let policy = self.adapted();
        let ask = Ask::now(policy.windows(), weight, gate);
        let (mut view, clock) = (View::default(), || at.now);
        let answer = match self.cells(at.phase) {
            Cells::Log(log) => log.decide::<true>(&ask, clock, &mut view),
            Cells::Slices(slices) => slices.decide::<true>(&ask, clock, &mut view),
            Cells::Meter(meter) => meter.decide::<true>(&ask, clock, &mut view),
            Cells::Counter(counter) => counter.decide::<true>(&ask, clock, &mut view),
            Cells::Leases(_) | Cells::Grants(_) => Err(Sealed),
        };
        Ok((answer?, view))
    }

    /// Records the duration of a job that began then.
    pub fn complete(&self, began: Tick, now: Now) {
        if let Some(jobs) = self.jobs() {
            jobs.record(now.floor.saturating_sub(began));
        }
    }

    /// Takes a start back. `ahead`: see `Taken::ahead`; `number`: see [`Timed::new`].
    pub fn cancel(&mut self, start: StartId, ahead: u64, number: u64, at: Moment) -> Option<()> {
        if self.is_over(start, at) {
            return Some(());
        }
        self.rewrite(self.policy, number, at, |policy, history| {
            let parts = parts(policy, history, start);
            take_units(policy, history, &parts, (start, ahead), start.weight);
        })
    }

    /// Settles a start: it cost this much. What it cost more is owed from now on.
    pub fn settle(&mut self, start: StartId, ahead: u64, actual: u64, number: u64, at: Moment) -> Option<()> {
        let (is_over, debt) = (self.is_over(start, at), actual.saturating_sub(start.weight));
        if is_over && debt == 0 {
            return Some(());
        }
        self.rewrite(self.policy, number, at, |policy, history| {
            let parts = parts(policy, history, start);
            if parts.is_empty() && !is_over && !settle_unknown(policy, history, start) {
                return; // It has already ended.
            }
            parts.iter().for_each(|&i| history.starts[i].state = SETTLED);
            take_units(policy, history, &parts, (start, ahead), start.weight.saturating_sub(actual));
            let units = debt.min(policy.capacity());
            if units > 0 {
                owe(policy, history, units, at.now);
            }
        })
    }

    fn is_over(&self, start: StartId, at: Moment) -> bool {
        start.stamp.saturating_add(self.policy.longest()) <= at.now.floor
    }

    /// Returns whether the key can be forgotten.
    pub fn is_idle(&self, at: Moment) -> bool {
        self.cells(at.phase).is_idle(self.policy.longest(), at.now, || 0)
    }
}

impl Timed {
    /// Writes what the cells hold into new ones, by `policy` and with this edit. `number`: as for [`Timed::new`]. `None`: the
    /// cells cannot hold it.
    pub fn rewrite(
        &mut self,
        policy: Policy,
        number: u64,
        at: Moment,
        edit: impl FnOnce(&Policy, &mut History),
    ) -> Option<()> {
        let cells = self.cells(at.phase).seal();
        let mut history = self.history(&cells, at.now);
        let mut former = self.former();
        if policy != self.policy {
            let frame = |window, is_smooth| frame(at.phase, window, is_smooth);
            if carry_over(&self.policy, &policy, frame, &mut history, at.now) {
                former = Some(self.policy);
            }
        }
        edit(&policy, &mut history);
        if !policy.windows().is_empty() {
            history.pad(policy.largest(), policy.counts_since(at.now));
        }
        let new = Timed::with(policy, policy.has_origins());
        new.put(word::BACKOFF, self.get(word::BACKOFF));
        if policy == self.policy
            && let (Some(old), Some(jobs)) = (self.jobs(), new.jobs())
        {
            let pairs = [(old.ended, jobs.ended), (old.spacing, jobs.spacing)];
            let cells = pairs.into_iter().chain(old.ring.iter().zip(jobs.ring));
            cells.for_each(|(old, new)| new.store(old.load(Relaxed), Relaxed));
        }
        new.write(&history, former, at)?;
        if policy.is_counted() {
            // (Greater than its earlier eras and tickets.)
            let number = number.max(history.end);
            // If every taken unit was forgotten, no permit means anything any more.
            let (first, era) = match history.starts.is_empty() && history.forgotten.is_empty() {
                true => (number, number),
                false => (history.first_era, if policy == self.policy { history.era } else { number }),
            };
            new.put(word::FIRST_ERA, first);
            new.put(word::OWN, era);
        }
        *self = new;
        Some(())
    }

    /// Begins a life of unused cells with this history.
    fn write(&self, history: &History, former: Option<Policy>, at: Moment) -> Option<()> {
        self.put(word::LIFE, CLOSED);
        let is_empty = history.starts.is_empty() && history.forgotten.is_empty();
        let former = former.filter(|_| !is_empty).map_or([0; POLICY_WORDS], Policy::to_words);
        former.into_iter().enumerate().for_each(|(i, word)| self.put(word::FORMER + i, word));
        self.put(word::CHANGED, if is_empty { 0 } else { history.changed });
        self.put(word::IS_MIXED, history.is_mixed.into());
        let cells = self.cells(at.phase);
        let (most, since) = match &cells {
            Cells::Log(log) => (log.most_written(), 0),
            _ => (u64::MAX, at.now.floor.saturating_sub(self.policy.longest())),
        };
        if !self.policy.windows().is_empty() {
            self.put(word::FIRST_ERA, history.first_era);
            self.put(word::ERA, history.era);
            for (i, some) in history.older_than(most, since, word::PAIRS).into_iter().enumerate() {
                self.put(word::LEFT_OUT + 2 * i, some.units);
                self.put(word::LEFT_OUT + 2 * i + 1, some.stamp);
            }
        }
        let base = cells.write(history, self.policy.window(), at.now)?;
        if !self.policy.is_sliced() {
            self.put(word::BASE, base);
        }
        self.put(word::LIFE, if self.policy.is_sliced() { base } else { 1 });
        Some(())
    }

    /// What these sealed cells hold, with what did not fit in them.
    fn history(&self, cells: &Cells, now: Now) -> History {
        let mut history = cells.history(self.policy.longest(), now);
        if self.policy.is_counted() {
            history.first_era = self.get(word::FIRST_ERA);
            history.end = history.era + 1;
        }
        if let Cells::Meter(_) | Cells::Counter(_) = cells {
            history.changed = self.get(word::CHANGED);
            history.rest.before = self.former().and_then(|policy| bucket_of(&policy));
            return history;
        }
        history.is_mixed = self.get(word::IS_MIXED) != 0;
        if let Cells::Log(_) = cells {
            (history.first_era, history.era) = (self.get(word::FIRST_ERA), self.get(word::ERA));
        }
        let pairs = (0..word::PAIRS).map(|i| word::LEFT_OUT + 2 * i);
        let left_out = pairs.map(|i| Forgotten { units: self.get(i), stamp: self.get(i + 1), is_bounded: false });
        let left_out = left_out.filter(|some| some.units > 0 && some.stamp + MAX_TIME > now.floor);
        // What is only unknown because the state was lost comes last.
        let last = history.forgotten.partition_point(|some| some.units < Forgotten::MANY);
        history.forgotten.splice(last..last, left_out);
        for some in &mut history.forgotten {
            some.is_bounded |= !history.is_mixed && some.units < Forgotten::MANY;
        }
        history
    }

    /// The fastest bucket before this one.
    fn former(&self) -> Option<Policy> {
        Policy::from_words(|i| self.get(word::FORMER + i))
    }
}

fn bucket_of(policy: &Policy) -> Option<Bucket> {
    if let Shape::Bucket(bucket) = policy.0 { Some(bucket) } else { None }
}

/// How windows of the clock are divided.
fn frame(phase: u64, window: Window, is_smooth: bool) -> Frame {
    Frame { limit: window.limit, length: window.length, is_smooth, phase }
}
