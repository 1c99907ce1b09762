//! The keys of a table: an index of offsets, found and added without a lock.
//!
//! An entry goes from empty to an offset once and never changes, and a key's block never moves. Growing an index takes
//! the structure lock: its empty slots are sealed, so that nobody can add to what has been copied, and whoever comes next
//! can do it again from the start if this process dies.

use super::layout::{index_word, key_word, table_word};
use super::table::{Blocked, Hash, Home, Table, key_words};
use crate::atomic::*;
use crate::error::Result;
use crate::fault;
use std::fs::File;

fn tag(hash: Hash) -> u64 {
    hash.0[1] >> index_word::TAG
}

impl Home {
    /// The block of a key, added if it is new.
    #[inline]
    pub fn key(&self, table: &Table, key: &str) -> Result<u64, Blocked> {
        if key.is_empty() { Ok(table.empty_key) } else { self.find_or_add(table, self.hash(b'k', key)) }
    }

    /// Is this the block of a key of that table? For offsets that come from elsewhere.
    pub fn is_key_of(&self, table: &Table, at: u64) -> bool {
        at.is_multiple_of(16)
            && self.arena.contains(at, key_words(table.policy))
            && self.arena.word(at + key_word::TABLE).load(Acquire) == table.at
    }

    /// Looks a key up without adding it. `None`: it was never used.
    pub fn peek_key(&self, table: &Table, key: &str) -> Option<u64> {
        if key.is_empty() {
            return Some(table.empty_key);
        }
        let index = self.arena.word(table.at + table_word::INDEX).load(Acquire);
        self.probe(index, self.hash(b'k', key)).ok()
    }

    pub(super) fn find_or_add(&self, table: &Table, hash: Hash) -> Result<u64, Blocked> {
        let index = self.arena.word(table.at + table_word::INDEX).load(Acquire);
        match self.probe(index, hash) {
            Ok(at) => Ok(at),
            Err(slot) => self.add_key(table, index, slot, hash),
        }
    }

    /// Follows a key's probe sequence: to its block, or to the first slot that does not hold another key.
    fn probe(&self, index: u64, hash: Hash) -> Result<u64, u64> {
        let capacity = self.arena.word(index + index_word::CAPACITY).load(Relaxed);
        let slots = self.arena.words(index + index_word::SLOTS, capacity);
        let mut i = hash.0[0] & (capacity - 1);
        // There always is a free slot: see `add_key`.
        loop {
            let entry = slots[i as usize].load(Acquire);
            if entry == 0 || entry == index_word::SEALED {
                return Err(i);
            }
            let at = entry & ((1 << index_word::TAG) - 1);
            if entry >> index_word::TAG == tag(hash) && self.get(at + key_word::HASH) == hash.0 {
                return Ok(at);
            }
            i = (i + 1) & (capacity - 1);
        }
    }

    #[cold]
    fn add_key(&self, table: &Table, index: u64, mut slot: u64, hash: Hash) -> Result<u64, Blocked> {
        let capacity = self.arena.word(index + index_word::CAPACITY).load(Relaxed);
        let count = self.arena.word(index + index_word::COUNT);
        // Three quarters full is full: probe sequences stay short, and always end. Counted before it is used and never
        // taken back: whoever dies or is too late here only makes the index seem fuller.
        if count.fetch_add(1, Relaxed) >= capacity / 4 * 3 {
            return Err(Blocked::Full);
        }
        let at = self.arena.allocate(key_words(table.policy))?;
        self.set(at + key_word::HASH, hash.0);
        self.arena.word(at + key_word::TABLE).store(table.at, Relaxed);
        fault::point("key-allocated");
        let slots = self.arena.words(index + index_word::SLOTS, capacity);
        loop {
            let entry = tag(hash) << index_word::TAG | at;
            match slots[slot as usize].compare_exchange(0, entry, AcqRel, Acquire) {
                Ok(_) => {
                    fault::point("key-inserted");
                    return Ok(at);
                }
                Err(index_word::SEALED) => return Err(Blocked::Full),
                // Somebody was faster here: with this key (then `at` is lost, a few hundred bytes), or another.
                Err(_) => match self.probe(index, hash) {
                    Ok(theirs) => return Ok(theirs),
                    Err(next) => slot = next,
                },
            }
        }
    }

    /// Grows what [`Blocked::Full`] complained about. Only for the holder of the structure lock.
    pub fn make_room(&self, table: &Table, file: Option<&File>) -> Result<()> {
        // Twice what the next key takes, so that a short allocation is never the reason to come back at once.
        self.arena.grow(2 * key_words(table.policy), file)?;
        let old = self.arena.word(table.at + table_word::INDEX).load(Acquire);
        let capacity = self.arena.word(old + index_word::CAPACITY).load(Relaxed);
        let is_sealed =
            self.arena.words(old + index_word::SLOTS, capacity).iter().any(|s| s.load(Acquire) == index_word::SEALED);
        if !is_sealed && self.arena.word(old + index_word::COUNT).load(Relaxed) < capacity / 4 * 3 {
            return Ok(());
        }
        let new = self.new_index(2 * capacity, file)?;
        if !fault::planted("open index") {
            self.seal_index(old);
        }
        let slots = self.arena.words(new + index_word::SLOTS, 2 * capacity);
        let mut count = 0;
        for at in self.entries(old) {
            let hash = Hash(self.get(at + key_word::HASH));
            if let Err(slot) = self.probe(new, hash) {
                slots[slot as usize].store(tag(hash) << index_word::TAG | at, Relaxed);
                count += 1;
            }
        }
        self.arena.word(new + index_word::COUNT).store(count, Relaxed);
        self.arena.word(table.at + table_word::INDEX).store(new, Release);
        Ok(())
    }

    pub(super) fn new_index(&self, capacity: u64, file: Option<&File>) -> Result<u64> {
        let at = self.allocate(index_word::SLOTS + capacity, file)?;
        self.arena.word(at + index_word::CAPACITY).store(capacity, Release);
        Ok(at)
    }

    pub(super) fn seal_index(&self, index: u64) {
        let capacity = self.arena.word(index + index_word::CAPACITY).load(Relaxed);
        for slot in self.arena.words(index + index_word::SLOTS, capacity) {
            let _ = slot.compare_exchange(0, index_word::SEALED, AcqRel, Acquire);
        }
    }

    /// The keys of an index.
    pub(super) fn entries(&self, index: u64) -> impl Iterator<Item = u64> {
        let capacity = self.arena.word(index + index_word::CAPACITY).load(Relaxed);
        let slots = self.arena.words(index + index_word::SLOTS, capacity);
        let entries = slots.iter().map(|slot| slot.load(Acquire));
        entries.filter(|&e| e != 0 && e != index_word::SEALED).map(|e| e & ((1 << index_word::TAG) - 1))
    }

    /// The keys of a table.
    pub fn keys(&self, table: &Table) -> impl Iterator<Item = u64> {
        self.entries(self.arena.word(table.at + table_word::INDEX).load(Acquire))
    }
}
