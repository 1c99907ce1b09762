//! The keys with starts that are missing from the ledger, as a ring in the lane. All processes add to it, and the
//! process that writes the ledger reads it. So the work depends on the number of changed keys, not on the number of
//! keys.
//!
//! A key is listed by its first start after it was written, and again after a second. An entry may be lost: the ring is
//! bounded, and a process may die before it has written its entry. Correctness does not depend on the ring. A start
//! beyond the budget is written before its call returns, listed or not, and after a reboot every key counts as having
//! used its budget.

use crate::atomic::*;
use crate::damage::nonsense;
use crate::hash::Hash;
use crate::state::cells::block::Head;
use crate::state::cells::home::Home;
use crate::state::cells::layout::{BlockAt, CHANGED, CHANGED_DONE, CHANGED_TAIL, LimitAt, key_word};
use crate::state::files::arena::HEADER_WORDS;
use crate::time::Tick;

/// The number of entries.
const ENTRIES: u64 = 1_024;

/// The words of an entry: its number + 1, the limit, the key's hash, the time at which it was made.
const ENTRY: u64 = 5;

/// A listed key that has not been written is listed again after this time, in ticks.
const LISTED_FOR: Tick = 1_000_000;

/// A changed key: the place of its limit, and its hash.
pub(in crate::state) type Changed = (LimitAt, Hash);

/// Returns whether the key of this head must be listed. Called after each start.
#[inline(always)]
pub(in crate::state) fn is_unlisted(head: &Head, now: Tick) -> bool {
    head[key_word::LISTED as usize].load(Relaxed) <= now
}

impl Home {
    /// Allocates the ring, in a new lane.
    pub(in crate::state) fn start_list(&self) {
        let ring = self.arena.allocate(ENTRIES * ENTRY).expect("a new lane has space");
        self.arena.word(CHANGED).store(ring, Release);
    }

    /// Lists a key. A caller that finds it listed leaves it alone for a while.
    #[cold]
    pub fn list(&self, limit: LimitAt, key: BlockAt, hash: Hash, now: Tick) {
        self.block(key).word(key_word::LISTED).store(now + LISTED_FOR, Relaxed);
        let number = self.arena.word(CHANGED_TAIL).fetch_add(1, AcqRel);
        let [seq, limit_at, h0, h1, at] = self.entry(number);
        // A reader accepts an entry if its number is the same before and after. Each store releases, so that a reader
        // cannot combine a word of a later entry with the number of this one.
        seq.store(0, Release);
        limit_at.store(limit.offset(), Release);
        h0.store(hash.0[0], Release);
        h1.store(hash.0[1], Release);
        at.store(now, Release);
        seq.store(number + 1, Release);
    }

    fn entry(&self, number: u64) -> [&AtomicU64; ENTRY as usize] {
        let ring = self.arena.word(CHANGED).load(Acquire);
        if ring < HEADER_WORDS {
            nonsense(format_args!("a list of changed keys at {ring}"));
        }
        let words = self.arena.words(ring.saturating_add(number % ENTRIES * ENTRY), ENTRY);
        std::array::from_fn(|i| &words[i])
    }

    /// Returns whether an entry is listed that has not been written.
    pub(in crate::state) fn has_listed(&self) -> bool {
        let [tail, done] = [CHANGED_TAIL, CHANGED_DONE].map(|word| self.arena.word(word).load(Acquire));
        tail > done
    }

    /// Returns whether half of the ring is used, so that it must be read soon.
    pub fn is_list_long(&self) -> bool {
        let [tail, done] = [CHANGED_TAIL, CHANGED_DONE].map(|word| self.arena.word(word).load(Relaxed));
        tail.wrapping_sub(done) > ENTRIES / 2
    }

    /// The oldest unwritten entries, at most `most`, and the number after them. For the process that writes the ledger.
    pub(in crate::state) fn listed(&self, most: u64) -> (Vec<Changed>, u64) {
        let [tail, done] = [CHANGED_TAIL, CHANGED_DONE].map(|word| self.arena.word(word).load(Acquire));
        let first = done.max(tail.saturating_sub(ENTRIES)).min(tail);
        let end = tail.min(first.saturating_add(most));
        let mut all: Vec<Changed> = (first..end).filter_map(|number| Some(self.read_entry(number)?.0)).collect();
        all.sort_unstable();
        all.dedup();
        (all, end)
    }

    /// An entry, and when it was made. `None` if it is being written, or was overwritten by a later one.
    fn read_entry(&self, number: u64) -> Option<(Changed, Tick)> {
        let [seq, limit, h0, h1, at] = self.entry(number);
        let is_whole = || seq.load(Acquire) == number + 1;
        if !is_whole() {
            return None;
        }
        let changed = (LimitAt::new(limit.load(Acquire)), Hash([h0.load(Acquire), h1.load(Acquire)]));
        let at = at.load(Acquire);
        is_whole().then_some((changed, at))
    }

    /// The recently listed keys, written or not. Some appear more than once.
    pub(in crate::state) fn listed_lately(&self) -> Vec<Changed> {
        if self.arena.word(CHANGED).load(Acquire) == 0 {
            return Vec::new();
        }
        let tail = self.arena.word(CHANGED_TAIL).load(Acquire);
        (tail.saturating_sub(ENTRIES)..tail).filter_map(|number| Some(self.read_entry(number)?.0)).collect()
    }

    /// When the oldest unwritten entry was made.
    pub(in crate::state) fn listed_since(&self) -> Option<Tick> {
        let [tail, done] = [CHANGED_TAIL, CHANGED_DONE].map(|word| self.arena.word(word).load(Acquire));
        (done.max(tail.saturating_sub(ENTRIES))..tail).find_map(|number| Some(self.read_entry(number)?.1))
    }

    /// Records that the entries before this number are in the ledger.
    pub(in crate::state) fn have_written(&self, end: u64) {
        self.arena.word(CHANGED_DONE).fetch_max(end, AcqRel);
    }
}
