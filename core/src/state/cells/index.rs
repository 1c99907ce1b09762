//! The keys of a table: an index of offsets, searched and extended without a lock.
//!
//! An index is one segment, an open-addressed table of slots. If that would be too large, it is a directory of
//! segments, indexed by the first bits of a key's hash. A directory never changes. When a segment is rewritten, so is
//! the directory, and both are published with one word, the table's root, which never holds the same value twice.
//!
//! The block of a key never moves while it belongs to that key, but a key may move to another block: see `rewrite.rs`.
//! The work that needs the structure lock (full segments, idle keys) is in `space.rs`.

use super::block::{hash_in, table_in, try_words};
use super::home::{Blocked, Home, KeyAt, Table};
use super::layout::{At, BlockAt, DirectoryAt, SegmentAt, index_word, key_word, table_word};
use super::segment::{SegmentCells, block, empty, entry, tag, untagged};
use crate::algorithm::log::CLOSED;
use crate::atomic::*;
use crate::damage::nonsense;
use crate::fault;
use crate::hash::Hash;
use crate::state::files::arena::MAX_BYTES;

/// Turns a block that only the caller uses into that of a new key. `None`: see [`BlockCells::begin`](super::block::BlockCells::begin).
pub(super) type Begin<'b> = &'b dyn Fn(BlockAt) -> Option<KeyAt>;

/// The root of an index: the place of its directory or only segment, the number of bits of a hash that index the
/// directory, and a number that grows with each root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::state) struct Root(pub u64);

impl Root {
    const DEPTH: u32 = 29;
    const NUMBER: u32 = Root::DEPTH + 5;

    /// The same index, with another number.
    pub fn again(self) -> Root {
        self.next(self.directory(), self.depth())
    }

    fn at<Words>(self) -> At<Words> {
        At::new(self.0 & ((1 << Root::DEPTH) - 1))
    }

    pub fn directory(self) -> DirectoryAt {
        self.at()
    }

    pub fn depth(self) -> u32 {
        (self.0 >> Root::DEPTH) as u32 & 31
    }

    pub fn next<Words: Copy>(self, at: At<Words>, depth: u32) -> Root {
        debug_assert!(at.offset() < 1 << Root::DEPTH && depth < 32);
        Root(((self.0 >> Root::NUMBER) + 1) << Root::NUMBER | u64::from(depth) << Root::DEPTH | at.offset())
    }

    /// The entry of the directory for a hash.
    pub fn entry_of(self, hash: u64) -> u64 {
        (hash >> 1) >> (63 - self.depth())
    }
}

/// The number of slots that [`Index::glance`] examines.
const GLANCES: u64 = 4;

const _: () = assert!(MAX_BYTES / 8 <= 1 << Root::DEPTH);

/// The keys of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Index<'h, 't> {
    pub(in crate::state) home: &'h Home,
    pub(in crate::state) table: &'t Table,
}

impl<'h> Index<'h, '_> {
    /// Finds or adds a key.
    #[inline(always)]
    pub fn key(self, key: &str) -> Result<KeyAt, Blocked> {
        if key.is_empty() { self.empty_key() } else { self.find_or_add(self.home.hash(b'k', key), key) }
    }

    #[inline(always)]
    fn empty_key(self) -> Result<KeyAt, Blocked> {
        let at = BlockAt::new(self.home.of(self.table).empty_key().load(Acquire));
        let head = self.home.block(at).head();
        let life = head[key_word::LIFE as usize].load(Acquire);
        // The life belongs to the empty key only if the block still does.
        let is_its =
            self.home.of(self.table).empty_key().load(Acquire) == at.offset() && table_in(head) == self.table.at;
        if is_its && life != CLOSED { Ok(KeyAt { at, life, table: self.table.at }) } else { Err(Blocked::Moved) }
    }

    /// The empty key and its block, without unwinding, if they are where `word` in its table says.
    pub fn glance_at(self, word: &AtomicU64) -> Option<(KeyAt, &'h [AtomicU64])> {
        let at = BlockAt::new(word.load(Acquire));
        let (_, life, words) = try_words(self.home.arena.seen(), at, self.table)?;
        let is_its = word.load(Acquire) == at.offset();
        (is_its && life != CLOSED).then_some((KeyAt { at, life, table: self.table.at }, words))
    }

    /// Looks a key up without adding it. `None` if it was never used.
    pub fn peek_key(self, key: &str) -> Result<Option<KeyAt>, Blocked> {
        if key.is_empty() { self.empty_key().map(Some) } else { self.find(self.home.hash(b'k', key)) }
    }

    /// The word of a table that holds the root of its index.
    pub fn root_word(self) -> &'h AtomicU64 {
        self.home.arena.word(self.table.at + table_word::INDEX)
    }

    /// The root of a table's index. `None` if the table was replaced, since its segments may belong to others by now.
    pub(in crate::state) fn root(self) -> Option<Root> {
        let root = self.root_word().load(Acquire);
        (root != 0).then_some(Root(root))
    }

    /// The segment of a hash. For the holder of the structure lock.
    pub(in crate::state) fn segment(self, hash: Hash) -> SegmentCells<'h> {
        let root = self.root().unwrap_or_else(|| nonsense(format_args!("no index of the table at {}", self.table.at)));
        self.home.segment_at(root, root.entry_of(hash.0[0]))
    }

    /// The segment of a hash, and its life.
    fn living_segment(self, hash: Hash) -> Result<(SegmentCells<'h>, u64), Blocked> {
        loop {
            let root = self.root().ok_or(Blocked::Moved)?;
            // The words of a directory become only directories of the same size again. So this is a segment, ours or
            // not.
            let segment = self.home.segment_at(root, root.entry_of(hash.0[0]));
            let life = segment.word(index_word::LIFE).load(Acquire);
            // A root is used for only one index. If it is unchanged, all of this belonged to it.
            if self.root() == Some(root) {
                return Ok((segment, life));
            }
        }
    }

    pub fn find(self, hash: Hash) -> Result<Option<KeyAt>, Blocked> {
        if let Some((found, _)) = self.glance(self.root_word(), hash) {
            return Ok(Some(found));
        }
        let before = self.living_segment(hash)?;
        match before.0.probe(self.table, hash) {
            Ok((_, found)) if found.life == CLOSED => Err(Blocked::Sealed),
            Ok((_, found)) => Ok(Some(found)),
            Err(_) if self.living_segment(hash)? == before => Ok(None),
            // The search was in words that have become another segment.
            Err(_) => Err(Blocked::Moved),
        }
    }

    pub(crate) fn find_or_add(self, hash: Hash, text: &str) -> Result<KeyAt, Blocked> {
        if let Some((found, _)) = self.glance(self.root_word(), hash) {
            return Ok(found);
        }
        match self.home.of(self.table).is_added_under_lock() {
            false => self.find_or_begin(hash, &|at| self.home.block(at).begin(self.table, hash, text, &[])),
            true => self.find(hash)?.ok_or(Blocked::Unrestored),
        }
    }

    /// Finds a key, or adds it with a block that `begin` makes its own: see [`BlockCells::begin`](super::block::BlockCells::begin).
    pub(in crate::state) fn find_or_begin(self, hash: Hash, begin: Begin) -> Result<KeyAt, Blocked> {
        self.find_or_begin_in(None, hash, begin)
    }

    /// The same in this block, or in one for new keys. If it is not used, the caller keeps it.
    pub(in crate::state) fn find_or_begin_in(
        self,
        block: Option<BlockAt>,
        hash: Hash,
        begin: Begin,
    ) -> Result<KeyAt, Blocked> {
        let (segment, life) = self.living_segment(hash)?;
        match segment.probe(self.table, hash) {
            Ok((_, found)) if found.life == CLOSED => Err(Blocked::Sealed),
            Ok((_, found)) => Ok(found),
            Err(slot) => self.add_key((segment, life), slot, (block, hash), begin),
        }
    }

    /// A key and its block, without unwinding, if it is found at once, as most are. `index` is the word of the table
    /// that holds its root. The segment may have become another one during the search; but a block that says it belongs
    /// to this key does, whatever led there.
    #[inline(always)]
    pub fn glance(self, index: &AtomicU64, hash: Hash) -> Option<(KeyAt, &'h [AtomicU64])> {
        let root = Root(index.load(Acquire));
        let seen = self.home.arena.seen();
        let segment = match root.depth() {
            0 if root.0 == 0 => return None,
            0 => root.at(),
            _ => {
                let entry = root.directory() + index_word::SLOTS + root.entry_of(hash.0[0]);
                SegmentAt::new(seen.get(entry, 1)?[0].load(Acquire))
            }
        };
        let capacity = seen.get(segment.offset(), index_word::SLOTS)?[index_word::CAPACITY as usize].load(Acquire);
        let slots = seen.get(segment + index_word::SLOTS, capacity)?;
        let mask = capacity.checked_sub(1)?;
        let tag = tag(hash);
        for look in 0..GLANCES {
            let entry = slots.get((hash.0[0].wrapping_add(look) & mask) as usize)?.load(Acquire);
            if entry >> index_word::TAG == tag {
                // An empty slot with this tag leads to no block.
                let at = untagged(entry);
                // The life is read first, as in `probe`.
                let (head, life, words) = try_words(seen, at, self.table)?;
                let is_its = hash_in(head) == hash;
                return (is_its && life != CLOSED).then_some((KeyAt { at, life, table: self.table.at }, words));
            }
            block(entry)?;
        }
        None
    }

    #[cold]
    fn add_key(
        self,
        (segment, life): (SegmentCells, u64),
        mut slot: u64,
        (block_for_it, hash): (Option<BlockAt>, Hash),
        begin: Begin,
    ) -> Result<KeyAt, Blocked> {
        if !segment.takes_slot() {
            return Err(Blocked::Full);
        }
        let at = match block_for_it {
            Some(at) => at,
            None => self.block_for_new_key((segment, life), hash)?,
        };
        fault::point("key-allocated");
        let Some(new) = begin(at) else { return Err(Blocked::Full) };
        let slots = segment.slots();
        loop {
            match slots[slot as usize].compare_exchange(empty(life), entry(hash, at), AcqRel, Acquire) {
                Ok(_) => {
                    fault::point("key-inserted");
                    return Ok(new);
                }
                // Sealed, or another segment by now.
                Err(word) if block(word).is_none() => {
                    segment.hand_back(self.table, at);
                    return Err(Blocked::Full);
                }
                // Another caller was faster, with this key or another.
                Err(_) => match segment.probe(self.table, hash) {
                    Ok((_, theirs)) => {
                        segment.hand_back(self.table, at);
                        return if theirs.life == CLOSED { Err(Blocked::Sealed) } else { Ok(theirs) };
                    }
                    Err(next) => slot = next,
                },
            }
        }
    }

    /// An unused block for a key of this table: a reused one if the segment has any.
    fn block_for_new_key(self, (segment, life): (SegmentCells, u64), hash: Hash) -> Result<BlockAt, Blocked> {
        let returned = segment.word(index_word::RETURNED).swap(0, AcqRel);
        let (class, is_old) = (self.home.block_class(self.table.policy), segment.is_old(self.table));
        let classes = self.home.classes_for(class);
        if classes.contains(&(returned >> index_word::TAG)) && returned != 0 {
            return Ok(untagged(returned));
        }
        let (free, taken) = (segment.word(index_word::FREE), segment.word(index_word::TAKEN));
        let next = |mine: u64| (mine < free.load(Acquire)).then_some(mine + 1);
        // Blocks of an earlier table may have another size.
        if (!is_old || self.home.block_class(segment.policy()) == class)
            && let Ok(mine) = taken.fetch_update(AcqRel, Acquire, next)
        {
            let at = BlockAt::new(segment.stocked(mine).load(Acquire));
            // Otherwise the word may belong to another segment.
            let is_same = segment.word(index_word::LIFE).load(Acquire) == life;
            return if is_same { Ok(at) } else { Err(Blocked::Full) };
        }
        let table = self.home.of(self.table);
        // What the segment's keys leave, or free blocks, come before the space that other blocks need: see `renew_segment`.
        let has_others = || table.is_forgetting() || self.home.has_free(class);
        if table.spare_blocks() == 0 || is_old && has_others() && !self.home.changes().are_late() {
            return Err(Blocked::Full);
        }
        // Counted first: a process that dies in between leaves a block too many in the count.
        let words = self.home.block_words(self.table.policy);
        self.home.take_words(table.limit(), hash, words);
        let at = self.home.arena.allocate(words);
        Ok(At::new(at.inspect_err(|_| self.home.return_words(table.limit(), hash, words))?))
    }

    /// The segments of a table.
    pub(in crate::state) fn segments(self) -> impl Iterator<Item = SegmentCells<'h>> {
        let root = self.root();
        let all =
            root.into_iter().flat_map(move |root| (0..1 << root.depth()).map(move |i| self.home.segment_at(root, i)));
        let mut last = None;
        // Equal entries of a directory are adjacent.
        all.filter(move |segment| last.replace(*segment) != Some(*segment))
    }

    /// The blocks in a table's index, including the stubs of keys on plans.
    pub(in crate::state) fn blocks(self) -> impl Iterator<Item = BlockAt> {
        self.segments().flat_map(SegmentCells::entries)
    }

    /// The keys of a table that have cells, with the tables that apply to them. For the holder of the structure lock.
    pub fn keys(self) -> impl Iterator<Item = (Table, BlockAt)> {
        self.blocks().filter(|&at| !self.home.block(at).is_stub()).map(|at| (self.home.block(at).table(self.table), at))
    }
}

impl Home {
    #[inline(always)]
    pub fn index<'t>(&self, table: &'t Table) -> Index<'_, 't> {
        Index { home: self, table }
    }

    /// An entry of the directory, or the only segment.
    pub(in crate::state) fn segment_at(&self, root: Root, entry: u64) -> SegmentCells<'_> {
        self.segment(match root.depth() {
            0 => root.at(),
            _ => At::new(self.arena.word(root.directory() + index_word::SLOTS + entry).load(Acquire)),
        })
    }
}
