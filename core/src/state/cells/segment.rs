//! A segment of an index: an open-addressed table of slots, and blocks for new keys behind them.

use super::block::{hash_in, table_in};
use super::home::{Home, KeyAt, Table};
use super::layout::{At, BlockAt, SegmentAt, index_word, key_word};
use crate::atomic::*;
use crate::damage::nonsense;
use crate::fault;
use crate::hash::Hash;
use crate::policy::Policy;

/// The words of one segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SegmentCells<'h> {
    home: &'h Home,
    pub(in crate::state) at: SegmentAt,
}

impl Home {
    #[inline(always)]
    pub(in crate::state) fn segment(&self, at: SegmentAt) -> SegmentCells<'_> {
        SegmentCells { home: self, at }
    }
}

impl PartialEq for SegmentCells<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl<'h> SegmentCells<'h> {
    #[inline(always)]
    pub(in crate::state) fn word(self, word: u64) -> &'h AtomicU64 {
        self.home.arena.word(self.at + word)
    }

    /// The number of slots: a power of two.
    #[inline(always)]
    pub(in crate::state) fn capacity(self) -> u64 {
        let capacity = self.word(index_word::CAPACITY).load(Relaxed);
        // Avoids counting bits, which takes a dozen instructions.
        if capacity & capacity.wrapping_sub(1) == 0 && (1..=index_word::MAX_CAPACITY).contains(&capacity) {
            capacity
        } else {
            nonsense(format_args!("a segment of {capacity} slots at {}", self.at))
        }
    }

    #[inline(always)]
    pub(in crate::state) fn slots(self) -> &'h [AtomicU64] {
        self.home.arena.words(self.at + index_word::SLOTS, self.capacity())
    }

    /// The place of one of the blocks for new keys.
    pub(in crate::state) fn stocked(self, n: u64) -> &'h AtomicU64 {
        self.word(index_word::SLOTS + self.capacity() + n)
    }

    /// The keys of the segment.
    pub(in crate::state) fn entries(self) -> impl Iterator<Item = BlockAt> + use<'h> {
        self.slots().iter().filter_map(|slot| block(slot.load(Acquire))).inspect(|_| fault::looked())
    }

    /// Returns whether it may have keys of earlier tables.
    pub(in crate::state) fn is_old(self, table: &Table) -> bool {
        self.word(index_word::TABLE).load(Acquire) != table.at.offset()
    }

    /// The policy of the table for which it was made. For the holder of the structure lock.
    pub(in crate::state) fn policy(self) -> Policy {
        self.home.table_at(At::new(self.word(index_word::TABLE).load(Acquire))).policy
    }

    /// Follows a key's probe sequence to its slot and block, or to the first slot that does not hold another key.
    #[inline]
    pub(in crate::state) fn probe(self, table: &Table, hash: Hash) -> Result<(u64, KeyAt), u64> {
        let slots = self.slots();
        let capacity = slots.len() as u64;
        let mut i = hash.0[0] & (capacity - 1);
        let mut looks = 0;
        // There is always a free slot: see `add_key`.
        loop {
            looks += 1;
            // Some slots are examined again because their keys moved.
            if looks > 4 * capacity + 1_000_000 {
                nonsense(format_args!("a full segment at {}", self.at));
            }
            let entry = slots[i as usize].load(Acquire);
            let Some(at) = block(entry) else { return Err(i) };
            if entry >> index_word::TAG == tag(hash) {
                fault::point("entry-read");
                // Read the life first. If it is the same at the end, the block belonged to this key all the time.
                let head = self.home.block(at).head();
                let life = head[key_word::LIFE as usize].load(Acquire);
                if hash_in(head) == hash {
                    let own = table_in(head);
                    // A stub has no life that could show whether it belonged to this key all the time.
                    let is_its = own == table.at || self.home.of(table).has_plan(own) && hash_in(head) == hash;
                    if is_its {
                        return Ok((i, KeyAt { at, life, table: own }));
                    }
                }
                // Or it moved during the check.
                let is_same =
                    slots[i as usize].load(Acquire) == entry && head[key_word::LIFE as usize].load(Acquire) == life;
                if !is_same && !fault::planted("hasty probe") {
                    continue;
                }
            }
            i = (i + 1) & (capacity - 1);
        }
    }

    /// Counts a slot as used, if it has one for another key. Three quarters is full, so that probe sequences
    /// stay short and always end. The count is raised before the slot is used, and never lowered. A process that dies or
    /// comes too late then only makes the segment appear fuller.
    pub(in crate::state) fn takes_slot(self) -> bool {
        let count = self.word(index_word::COUNT);
        count.fetch_add(1, Relaxed) < self.capacity() / 4 * 3
    }

    /// Returns an unneeded block to this life of the segment, or a later one. If a returned block is there already, this
    /// one is lost: a few hundred bytes.
    pub(super) fn hand_back(self, table: &Table, at: BlockAt) {
        let class = self.home.class_of(table.policy, self.home.block(at).ring());
        let word = class << index_word::TAG | at.offset();
        let _ = self.word(index_word::RETURNED).compare_exchange(0, word, AcqRel, Relaxed);
    }
}

pub(super) fn tag(hash: Hash) -> u64 {
    (hash.0[1] >> index_word::TAG).min(index_word::NO_KEY - 1)
}

pub(in crate::state) fn entry(hash: Hash, at: BlockAt) -> u64 {
    tag(hash) << index_word::TAG | at.offset()
}

/// The content of an empty slot in a segment of this life.
pub(in crate::state) fn empty(life: u64) -> u64 {
    if life == 0 { 0 } else { index_word::NO_KEY << index_word::TAG | life }
}

/// The block of an entry; `None` for an empty or sealed slot.
pub(in crate::state) fn block(entry: u64) -> Option<BlockAt> {
    let is_key = entry != 0 && entry >> index_word::TAG != index_word::NO_KEY;
    is_key.then_some(untagged(entry))
}

/// The block of an entry, or of a word with a class in the place of the tag.
pub(in crate::state) fn untagged(word: u64) -> BlockAt {
    BlockAt::new(word & ((1 << index_word::TAG) - 1))
}

/// Returns whether a slot is empty.
pub(in crate::state) fn is_empty(word: u64) -> bool {
    block(word).is_none() && word != index_word::SEALED
}
