//! The blocks that no key uses: those that keys have left, and new ones.

use crate::algorithm::log::FIRST_SLOTS;
use crate::atomic::*;
use crate::error::Result;
use crate::policy::Policy;
use crate::state::cells::home::Table;
use crate::state::cells::layout::{At, BlockAt, FREE_KEYS, LimitAt, OLDER_WORDS, key_word, limit_word};
use crate::state::cells::locked::Locked;
use crate::state::cells::share::COUNT;

const FIRST: u64 = (1 << COUNT) - 1;

impl Locked<'_> {
    /// An unused block with space for the origins of its starts. If all keys of a limit that has its share are moved to
    /// another table, they get none, because others need what is left: the starts count then, but cannot be taken back. Nor
    /// do they where there is only the reserve, because such a move must not fail.
    /// (The key "" is written before the table is the limit's.)
    pub(super) fn block_to_write(&self, before: &Table, table: &Table, ring: u64, keeps: u64) -> Result<BlockAt> {
        let at = self.take_block(table.policy, ring, keeps)?;
        let words = self.block(at).ring() + OLDER_WORDS;
        let is_limits = || self.limit(self.of(table).limit()).table_at() == table.at;
        let is_full = || self.of(table).spare_blocks() == 0 || self.grow_for_keys(words).is_err();
        if !(is_limits() && self.of(table).is_before(before) && is_full()) {
            self.add_origins(table.policy, at)?;
        }
        Ok(at)
    }

    /// Gives a free block space for the origins of its starts, if it has none.
    fn add_origins(&self, policy: Policy, at: BlockAt) -> Result<()> {
        let origins = self.block(at).word(key_word::ORIGINS);
        if policy.has_origins() && !self.is_granted(policy) && origins.load(Relaxed) == 0 {
            match self.allocate::<()>(self.block(at).ring() + OLDER_WORDS) {
                Ok(new) => origins.store(new.offset(), Release),
                Err(full) => {
                    self.retire_block(policy, at);
                    return Err(full);
                }
            }
        }
        Ok(())
    }

    /// A block with this ring or a larger one, used or new.
    pub(in crate::state) fn unused_block(&self, policy: Policy, ring: u64) -> Result<BlockAt> {
        self.take_block(policy, ring, 0)
    }

    /// The same, but leaves so many in each list. A larger one serves only if the store cannot grow.
    pub(super) fn take_block(&self, policy: Policy, ring: u64, keeps: u64) -> Result<BlockAt> {
        let class = self.class_of(policy, ring);
        if let Some(at) = self.used_in(class, keeps) {
            return Ok(at);
        }
        let words = self.words_with(policy, ring);
        if self.grow_for_keys(words).is_err()
            && let Some(at) = self.classes_for(class).find_map(|class| self.used_in(class, keeps))
        {
            return Ok(at);
        }
        self.allocate(words).map(|at| self.with_size(at, ring))
    }

    /// How many blocks of each size are kept for the keys that a change of policies moves: see [`Locked::make_space_for`].
    pub(super) fn kept_blocks(&self) -> u64 {
        u64::from(self.changes().are_some())
    }

    /// The next free block of this class, or one that can serve in its place.
    pub(super) fn next_free(&self, class: u64) -> Option<BlockAt> {
        let lists = self.classes_for(class).map(|class| free_blocks(self.arena.word(FREE_KEYS + class)));
        lists.filter(|(count, _)| *count > self.kept_blocks()).find_map(|(_, first)| first)
    }

    /// Returns whether there is one.
    pub(super) fn has_free(&self, class: u64) -> bool {
        self.next_free(class).is_some()
    }

    /// Ensures that a limit whose keys get another policy finds a block of each size that they have. Each of them gives back
    /// one like that which it gets. Returns the words that are missing for that, or gets the blocks.
    pub(super) fn spare_blocks_for(&self, limit: LimitAt, policy: Policy, gets: bool) -> Result<u64> {
        let mut missing = 0;
        for ring in self.rings_of(limit).chain([self.first_ring(policy)]) {
            if self.used_of(self.class_of(policy, ring)) == 0 {
                missing += self.all_words(policy, ring) + 16;
                if gets {
                    let at = self.with_size(self.allocate(self.words_with(policy, ring))?, ring);
                    self.add_origins(policy, at)?;
                    self.retire_block(policy, at);
                }
            }
        }
        Ok(missing)
    }

    /// The sizes of rings that keys of a limit have had. (That of new keys may be missing.)
    pub(super) fn rings_of(&self, limit: LimitAt) -> impl Iterator<Item = u64> + use<> {
        let rings = self.limit(limit).word(limit_word::RINGS).load(Acquire);
        self.classes_for(u64::from(FIRST_SLOTS.ilog2())).map(move |class| rings & 1 << class).filter(|ring| *ring != 0)
    }

    /// Remembers that a key has a ring of this size.
    pub(super) fn note_ring(&self, own: &Table, at: BlockAt) {
        if self.grows(own.policy) {
            self.limit(self.of(own).limit()).word(limit_word::RINGS).fetch_or(self.block(at).ring(), AcqRel);
        }
    }

    /// Writes the size of its ring into a new block.
    pub(in crate::state) fn with_size(&self, at: BlockAt, ring: u64) -> BlockAt {
        self.block(at).word(key_word::TABLE).store(ring << key_word::SIZE, Release);
        at
    }

    pub(in crate::state) fn retire_block(&self, policy: Policy, at: BlockAt) {
        self.retire_to(self.class_of(policy, self.block(at).ring()), at);
    }

    pub(super) fn retire_to(&self, class: u64, at: BlockAt) {
        let head = self.arena.word(FREE_KEYS + class);
        let (count, first) = free_blocks(head);
        let size = self.block(at).ring() << key_word::SIZE;
        self.block(at).word(key_word::NEXT).store(size | first.map_or(0, At::offset), Release);
        head.store((count + 1) << COUNT | at.offset(), Release);
    }

    /// The number of free blocks for new keys.
    pub(super) fn used_blocks(&self, policy: Policy) -> u64 {
        self.used_of(self.block_class(policy))
    }

    /// The number of free blocks of a class.
    pub(super) fn used_of(&self, class: u64) -> u64 {
        free_blocks(self.arena.word(FREE_KEYS + class)).0
    }

    /// A free block of a class, if there are more than so many.
    pub(super) fn used_in(&self, class: u64, keeps: u64) -> Option<BlockAt> {
        let head = self.arena.word(FREE_KEYS + class);
        let (count, at) = free_blocks(head);
        at.filter(|_| count > keeps).inspect(|at| {
            let next = self.arena.word(*at + key_word::NEXT);
            head.store(count.saturating_sub(1) << COUNT | next.load(Acquire) & FIRST, Release);
            // It belongs to no table, but it is not new either.
            next.fetch_or(key_word::PLACE, AcqRel);
        })
    }
}

/// The number of blocks in a list, and the first.
fn free_blocks(head: &AtomicU64) -> (u64, Option<BlockAt>) {
    let word = head.load(Acquire);
    (word >> COUNT, At::some(word & FIRST))
}
