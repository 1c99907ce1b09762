//! The share of a store that a limit has, and when it gets no more.
//!
//! A limit gets new keys while its own keys have at most three times the space that is left for it. (Switches share their
//! buffers among ports by this rule: Choudhury and Hahne, *Dynamic queue length thresholds for shared-memory packet
//! switches*, 1998.) So a limit alone can fill three quarters of the store, and of what it leaves, the next one can fill
//! three quarters again. However many keys strangers make on one limit, the others get new keys.
//!
//! What is left for a limit: the words that were never allocated, and the free blocks of its size, or of a larger one in
//! which its keys fit, with what belongs to them. Other blocks do not count, since its keys cannot use them.
//!
//! Where rings grow, new keys stop at twice what is left, and only rings grow up to three times that. So the known keys of a
//! limit that strangers have filled go on growing, and strangers' rings take nothing that other limits had before.
//!
//! A limit counts its words when they are taken and returned. The count errs by a few blocks if a process dies in
//! between, or by a segment if it dies while it rewrites one. Each search for idle keys that has passed all keys of a
//! limit corrects it: it adds up the words of each segment that it passes, and what is taken and returned behind it. No
//! decision depends on it: a wrong count makes a share larger or smaller for a while.

use super::home::{Home, Table};
use super::layout::{At, BlockAt, FREE_BARE, FREE_KEYS, LimitAt, OLDER_WORDS, index_word, key_word, limit_word};
use super::segment::{SegmentCells, untagged};
use super::table::TableCells;
use crate::atomic::*;
use crate::error::Error;
use crate::hash::Hash;
use crate::policy::Policy;
use crate::state::files::arena;

/// The head of a list of free blocks is `count << COUNT | first`.
pub(in crate::state) const COUNT: u32 = 32;

/// How many times what is left for it a limit may have.
const TIMES: u64 = 3;

/// The same to get new keys, where rings grow.
const TIMES_FOR_KEYS: u64 = 2;

/// The words of a block without cells.
pub(in crate::state) const STUB_WORDS: u64 = key_word::RING;

impl TableCells<'_, '_> {
    /// The number of further blocks that the limit may have for its keys.
    #[cold]
    pub fn spare_blocks(self) -> u64 {
        let block = self.home.block_words(self.table.policy);
        let (times, left) = (self.times(), self.left_words(self.table.first_ring));
        let most = (times * left).saturating_sub(self.home.limit_words(self.limit()));
        // Each of them also takes something from what is left.
        most / ((times + 1) * block)
    }

    /// How many times what is left the limit may have, to get new keys.
    fn times(self) -> u64 {
        if self.home.grows(self.table.policy) { TIMES_FOR_KEYS } else { TIMES }
    }

    /// Returns whether a key of the limit may get a ring of this size.
    pub(in crate::state) fn may_grow_to(self, ring: u64) -> bool {
        self.may_have(self.home.all_words(self.table.policy, ring), ring)
    }

    /// Returns whether a key of the limit may get so many words for something else.
    pub(in crate::state) fn may_take(self, words: u64) -> bool {
        self.may_have(arena::aligned(words), self.table.first_ring)
    }

    fn may_have(self, words: u64, ring: u64) -> bool {
        let has = self.home.limit_words(self.limit()) + words;
        has <= TIMES * self.left_words(ring).saturating_sub(words)
    }

    /// The number of words that are left for keys with rings of this size.
    fn left_words(self, ring: u64) -> u64 {
        let (policy, home) = (self.table.policy, self.home);
        // A larger block counts as what it takes, as it does in the limit that gets it.
        let words = |class: u64| {
            let count = |list| home.arena.word(list + class).load(Relaxed) >> COUNT;
            match home.has_rings(class) {
                true => {
                    let block = arena::aligned(home.words_with(policy, 1 << class));
                    let origins = arena::aligned((1 << class) + OLDER_WORDS);
                    count(FREE_KEYS) * (block + origins) + count(FREE_BARE) * block
                }
                false => count(FREE_KEYS) * arena::aligned(home.words_with(policy, ring)),
            }
        };
        let free: u64 = home.classes_for(home.class_of(policy, ring)).map(words).sum();
        home.arena.unallocated() + free
    }

    /// The error of a limit that has its share.
    #[cold]
    pub fn share_is_full(self) -> Error {
        let name = self.home.limit(self.limit()).name().unwrap_or_default();
        let [has, left, all] = [
            self.home.limit_words(self.limit()) * 8,
            self.left_words(self.table.first_ring) * 8,
            self.home.arena.bound(),
        ]
        .map(arena::size);
        let reason = format!(
            "the limit \"{name}\" is full: its keys take {has}, and it gets no new key above {} times what is left ({left} of {all})",
            self.times()
        );
        Error::StoreFull { reason }
    }
}

impl Home {
    /// The words that the block of a new key takes.
    pub(in crate::state) fn block_words(&self, policy: Policy) -> u64 {
        arena::aligned(self.key_words(policy))
    }

    /// The words that a key's block takes, and what belongs to it.
    pub(in crate::state) fn words_of(&self, own: &Table, at: BlockAt) -> u64 {
        let block = self.block(at);
        let copied = own.is_log && block.word(key_word::ORIGINS).load(Relaxed) != 0;
        let origins = if copied { arena::aligned(block.ring() + OLDER_WORDS) } else { 0 };
        arena::aligned(self.words_with(own.policy, block.ring())) + origins
    }

    /// The words that a free block takes for a limit with this policy, and what belongs to it.
    pub(in crate::state) fn stock_words(&self, policy: Policy, at: BlockAt) -> u64 {
        let (block, is_log) = (self.block(at), self.grows(policy));
        let copied = is_log && block.word(key_word::ORIGINS).load(Relaxed) != 0;
        let origins = if copied { arena::aligned(block.ring() + OLDER_WORDS) } else { 0 };
        let ring = if is_log { block.ring() } else { self.ring(policy) };
        arena::aligned(self.words_with(policy, ring)) + origins
    }

    /// The words that the keys of a limit take.
    pub(in crate::state) fn limit_words(&self, limit: LimitAt) -> u64 {
        self.arena.word(limit + limit_word::TAKEN).load(Relaxed)
    }

    /// Counts words that a limit takes for a key, or for the segment of a key.
    pub(in crate::state) fn take_words(&self, limit: LimitAt, hash: Hash, words: u64) {
        self.count_words(limit, hash, |count| count.saturating_add(words));
    }

    /// Counts words that a limit returns.
    pub(in crate::state) fn return_words(&self, limit: LimitAt, hash: Hash, words: u64) {
        // A count that has missed some does not fall below 0.
        self.count_words(limit, hash, |count| count.saturating_sub(words));
    }

    fn count_words(&self, limit: LimitAt, Hash([hash, _]): Hash, change: impl Fn(u64) -> u64) {
        let word = |word| self.arena.word(limit + word);
        let is_passed = hash < word(limit_word::SEARCHED).load(Relaxed);
        let counts = [limit_word::TAKEN].into_iter().chain(is_passed.then_some(limit_word::COUNTED));
        for count in counts {
            // Others may change it at the same time.
            let _ = word(count).fetch_update(Relaxed, Relaxed, |count| Some(change(count)));
        }
    }

    /// The words that a segment of a table takes, with its keys and the blocks for new ones. Only for the holder of the
    /// structure lock.
    pub(in crate::state) fn segment_words(&self, table: &Table, segment: SegmentCells) -> u64 {
        let word = |word| segment.word(word).load(Acquire);
        let words = |at| match self.block(at) {
            block if block.is_stub() => STUB_WORDS,
            block => self.words_of(&block.table(table), at),
        };
        let keys: u64 = segment.entries().map(words).sum();
        let policy = if segment.is_old(table) { segment.policy() } else { table.policy };
        let (taken, free) = (word(index_word::TAKEN) & !index_word::CLOSED, word(index_word::FREE));
        let stocked = (taken..free.min(segment.capacity())).map(|i| At::new(segment.stocked(i).load(Acquire)));
        let returned = Some(word(index_word::RETURNED)).filter(|word| *word != 0).map(untagged);
        let stock: u64 = stocked.chain(returned).map(|at| self.stock_words(policy, at)).sum();
        arena::aligned(index_word::SLOTS + 2 * segment.capacity()) + keys + stock
    }
}
