//! The blocks that no key uses: those that keys have left, and new ones.

use crate::algorithm::log::FIRST_SLOTS;
use crate::atomic::*;
use crate::error::Result;
use crate::policy::Policy;
use crate::state::cells::home::{Home, Table};
use crate::state::cells::layout::{At, BlockAt, FREE_BARE, FREE_KEYS, LimitAt, OLDER_WORDS, key_word, limit_word};
use crate::state::cells::locked::Locked;
use crate::state::cells::share::COUNT;
use crate::state::files::arena;

const FIRST: u64 = (1 << COUNT) - 1;

impl Locked<'_> {
    /// An unused block with space for the origins of its starts. If all keys of a limit that has its share are moved to
    /// another table, they get none, because others need what is left: the starts count then, but cannot be taken back. Nor
    /// do they where there is only the reserve, because such a move must not fail.
    /// (The key "" is written before the table is the limit's.)
    pub(super) fn block_to_write(&self, before: &Table, table: &Table, ring: u64) -> Result<BlockAt> {
        let at = self.unused_block(table.policy, ring)?;
        let words = self.block(at).ring() + OLDER_WORDS;
        let is_limits = || self.limit(self.of(table).limit()).table_at() == table.at;
        let is_full = || self.of(table).spare_blocks() == 0 || self.grow_for_keys(words).is_err();
        if !(is_limits() && self.of(table).is_before(before) && is_full()) {
            self.add_origins(table.policy, at)?;
        }
        Ok(at)
    }

    /// A block with this ring or a larger one, if there is one, or space for it and so many words more: none of the reserve, nor the
    /// last `keeps` of a list. With `at_once`, the store does not become larger.
    pub(super) fn block_with_room(
        &self,
        policy: Policy,
        ring: u64,
        keeps: u64,
        (more, at_once): (u64, bool),
    ) -> Option<BlockAt> {
        let class = self.class_of(policy, ring);
        let new = || {
            let has_space = self.has_space(self.words_with(policy, ring) + more + 16, at_once);
            has_space.then(|| self.arena.allocate(self.words_with(policy, ring)).ok()).flatten()
        };
        self.used_in(class, keeps)
            .or_else(|| new().map(|at| self.with_size(At::new(at), ring)))
            .or_else(|| self.classes_for(class).find_map(|class| self.used_in(class, keeps)))
    }

    /// The largest free block with a smaller ring.
    pub(super) fn smaller_block(&self, policy: Policy, ring: u64) -> Option<BlockAt> {
        let classes = self.block_class(policy)..self.class_of(policy, ring);
        classes.rev().find_map(|class| self.used_in(class, 0))
    }

    /// Gives a block space for the origins of its starts, from the same space. Returns whether there is any.
    pub(super) fn add_origins_with_room(&self, at: BlockAt, at_once: bool) -> bool {
        let words = self.block(at).ring() + OLDER_WORDS;
        let new = self.has_space(words, at_once).then(|| self.arena.allocate(words).ok()).flatten();
        new.into_iter().for_each(|new| self.block(at).word(key_word::ORIGINS).store(new, Release));
        new.is_some()
    }

    /// Returns whether there is so much space that is not reserved.
    fn has_space(&self, words: u64, at_once: bool) -> bool {
        self.arena.has_space(words) || !at_once && self.grow_for_keys(words).is_ok()
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

    /// A block with this ring or a larger one, used or new. A larger one serves only if the store cannot grow.
    pub(in crate::state) fn unused_block(&self, policy: Policy, ring: u64) -> Result<BlockAt> {
        self.take_block(policy, ring, 0)
    }

    /// The same, but leaves so many in each list.
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

    /// Gets a block of each size that the keys of a limit have, so that they find one when they get another policy: each of them
    /// gives back one like that which it gets. Only the smallest has to be there: see [`Locked::block_of_size`].
    pub(super) fn get_spare_blocks(&self, limit: LimitAt, policy: Policy) -> Result<()> {
        let first = self.first_ring(policy);
        for ring in self.rings_of(limit, first) {
            if self.used_of(self.class_of(policy, ring)) > 0 {
                continue;
            }
            let room = self.block_with_room(policy, ring, u64::MAX, (ring + OLDER_WORDS + 16, false));
            let at = match room {
                Some(at) => at,
                None if ring == first => self.with_size(self.allocate(self.words_with(policy, ring))?, ring),
                None => continue,
            };
            self.add_origins_with_room(at, false);
            self.retire_block(policy, at);
        }
        Ok(())
    }

    /// The sizes of rings that keys of a limit have had, and these. (That of new keys may be missing.)
    pub(super) fn rings_of(&self, limit: LimitAt, others: u64) -> impl Iterator<Item = u64> + use<> {
        let rings = others | self.limit(limit).word(limit_word::RINGS).load(Acquire);
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
        let is_bare = self.has_rings(class) && self.block(at).word(key_word::ORIGINS).load(Relaxed) == 0;
        let head = self.arena.word(if is_bare { FREE_BARE } else { FREE_KEYS } + class);
        let (count, first) = free_blocks(head);
        let size = self.block(at).ring() << key_word::SIZE;
        self.block(at).word(key_word::NEXT).store(size | first.map_or(0, At::offset), Release);
        head.store((count + 1) << COUNT | at.offset(), Release);
    }

    /// The number of free blocks for new keys.
    pub(super) fn used_blocks(&self, policy: Policy) -> u64 {
        self.used_of(self.block_class(policy))
    }

    /// A free block of a class, if there are more than so many.
    pub(super) fn used_in(&self, class: u64, keeps: u64) -> Option<BlockAt> {
        let is_enough = self.used_of(class) > keeps;
        let head = self.lists_of(class).find(|head| is_enough && free_blocks(head).0 > 0)?;
        let (count, at) = free_blocks(head);
        at.inspect(|at| {
            let next = self.arena.word(*at + key_word::NEXT);
            head.store(count.saturating_sub(1) << COUNT | next.load(Acquire) & FIRST, Release);
            // It belongs to no table, but it is not new either.
            next.fetch_or(key_word::PLACE, AcqRel);
        })
    }

    /// Divides the space for the origins of a large free block among new keys of this policy, which need smaller blocks. Returns
    /// whether there was any. No caller without the lock ever writes there, so nobody who was stopped long ago does.
    pub(super) fn divide_origins(&self, policy: Policy, at: BlockAt) -> bool {
        let origins = self.block(at).word(key_word::ORIGINS).swap(0, AcqRel);
        let (ring, part) = (self.first_ring(policy), self.block_words(policy));
        let parts = if origins == 0 { 0 } else { arena::aligned(self.block(at).ring() + OLDER_WORDS) / part };
        for at in (0..parts).map(|i| origins + i * part) {
            // From here on the words are those of a block that was never used.
            self.arena.words(at, part).iter().for_each(|word| word.store(0, Release));
            self.retire_block(policy, self.with_size(At::new(at), ring));
        }
        parts > 0
    }
}

impl Home {
    /// How many blocks of each size are kept for the keys that a change of policies moves: see [`Locked::make_space_for`].
    pub(super) fn kept_blocks(&self) -> u64 {
        u64::from(self.changes().are_some())
    }

    /// Returns whether there is a free block of this class, or one that can serve in its place.
    pub(in crate::state) fn has_free(&self, class: u64) -> bool {
        self.classes_for(class).any(|class| self.used_of(class) > self.kept_blocks())
    }

    /// The number of free blocks of a class.
    pub(super) fn used_of(&self, class: u64) -> u64 {
        self.lists_of(class).map(|head| free_blocks(head).0).sum()
    }

    /// The lists of free blocks of a class: first of those with space for the origins of their starts.
    fn lists_of(&self, class: u64) -> impl Iterator<Item = &AtomicU64> {
        let bare = self.has_rings(class).then_some(FREE_BARE);
        [FREE_KEYS].into_iter().chain(bare).map(move |list| self.arena.word(list + class))
    }
}

/// The number of blocks in a list, and the first.
fn free_blocks(head: &AtomicU64) -> (u64, Option<BlockAt>) {
    let word = head.load(Acquire);
    (word >> COUNT, At::some(word & FIRST))
}
