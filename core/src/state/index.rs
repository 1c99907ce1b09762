//! The keys of a table: an index of offsets, found and added without a lock.
//!
//! An index is one segment, an open-addressed table of slots, or where that would be too large a directory of segments,
//! which the first bits of a key's hash lead through. A directory never changes: when a segment is written anew, so is the
//! directory, and both are published with one word, the table's root, which never holds the same value twice.
//!
//! A key's block never moves while it is that key's, but a key may move to another block: see `rewrite.rs`. What takes the
//! structure lock (segments that are full, idle keys) is in `room.rs`.

use super::arena::MOST_BYTES;
use super::block::{hash_in, table_in};
use super::damage::nonsense;
use super::layout::{index_word, key_word, table_word};
use super::table::{Blocked, Hash, Home, Table};
use crate::algorithm::log::{CLOSED, SETTLED};
use crate::algorithm::{History, Start};
use crate::atomic::*;
use crate::fault;
use crate::time::Now;

/// Where a key was found, and in which life of its block: what is done there must be of that life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyAt {
    pub at: u64,
    pub life: u64,
    /// The table that it lives by: the one that it was looked for in, or a plan.
    pub table: u64,
}

fn tag(hash: Hash) -> u64 {
    (hash.0[1] >> index_word::TAG).min(index_word::NO_KEY - 1)
}

pub(super) fn entry(hash: Hash, at: u64) -> u64 {
    tag(hash) << index_word::TAG | at
}

/// What an empty slot holds in a segment of this life.
pub(super) fn empty(life: u64) -> u64 {
    if life == 0 { 0 } else { index_word::NO_KEY << index_word::TAG | life }
}

/// The block of an entry; none in a slot that is empty or sealed.
pub(super) fn block(entry: u64) -> Option<u64> {
    let is_key = entry != 0 && entry >> index_word::TAG != index_word::NO_KEY;
    is_key.then_some(entry & ((1 << index_word::TAG) - 1))
}

/// Is that an empty slot?
pub(super) fn is_empty(word: u64) -> bool {
    block(word).is_none() && word != index_word::SEALED
}

/// The root of an index: where its directory is, or its only segment; how many bits of a hash lead through the directory;
/// and a number that grows with each root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Root(pub u64);

impl Root {
    const DEPTH: u32 = 29;
    const NUMBER: u32 = Root::DEPTH + 5;

    pub fn at(self) -> u64 {
        self.0 & ((1 << Root::DEPTH) - 1)
    }

    pub fn depth(self) -> u32 {
        (self.0 >> Root::DEPTH) as u32 & 31
    }

    pub fn next(self, at: u64, depth: u32) -> Root {
        debug_assert!(at < 1 << Root::DEPTH && depth < 32);
        Root(((self.0 >> Root::NUMBER) + 1) << Root::NUMBER | u64::from(depth) << Root::DEPTH | at)
    }

    /// Which entry of the directory a hash leads to.
    pub fn entry_of(self, hash: u64) -> u64 {
        (hash >> 1) >> (63 - self.depth())
    }
}

/// In so many slots a key is looked for at a glance.
const GLANCES: u64 = 4;

const _: () = assert!(MOST_BYTES / 8 <= 1 << Root::DEPTH);

impl Home {
    /// Where a key is, added if it is new.
    #[inline]
    pub fn key(&self, table: &Table, key: &str) -> Result<KeyAt, Blocked> {
        if key.is_empty() { self.empty_key(table) } else { self.find_or_add(table, self.hash(b'k', key), key) }
    }

    #[inline(always)]
    fn empty_key(&self, table: &Table) -> Result<KeyAt, Blocked> {
        let at = self.empty_key_of(table).load(Acquire);
        let head = self.head(at);
        let life = head[key_word::LIFE as usize].load(Acquire);
        // The life is that of the empty key only if the block still is.
        let is_its = self.empty_key_of(table).load(Acquire) == at && table_in(head) == table.at;
        if is_its && life != CLOSED { Ok(KeyAt { at, life, table: table.at }) } else { Err(Blocked::Moved) }
    }

    /// The empty key and its block, as `word` in its table says where it is, if they are there; without unwinding.
    pub fn glance_at(&self, table: &Table, word: &AtomicU64) -> Option<(KeyAt, &[AtomicU64])> {
        let at = word.load(Acquire);
        let words = self.try_block(table, at)?;
        let head = words.first_chunk()?;
        let life = words[key_word::LIFE as usize].load(Acquire);
        let is_its = word.load(Acquire) == at && table_in(head) == table.at;
        (is_its && life != CLOSED).then_some((KeyAt { at, life, table: table.at }, words))
    }

    /// Looks a key up without adding it. `None`: it was never used.
    pub fn peek_key(&self, table: &Table, key: &str) -> Result<Option<KeyAt>, Blocked> {
        if key.is_empty() { self.empty_key(table).map(Some) } else { self.find(table, self.hash(b'k', key)) }
    }

    /// Where a table says where the root of its index is.
    pub fn index_of(&self, table: &Table) -> &AtomicU64 {
        self.arena.word(table.at + table_word::INDEX)
    }

    /// The root of a table's index. None: the table was replaced, and its segments may be others' by now.
    pub(super) fn root(&self, table: &Table) -> Option<Root> {
        let root = self.index_of(table).load(Acquire);
        (root != 0).then_some(Root(root))
    }

    /// An entry of the directory, or the only segment.
    pub(super) fn segment_at(&self, root: Root, entry: u64) -> u64 {
        match root.depth() {
            0 => root.at(),
            _ => self.arena.word(root.at() + index_word::SLOTS + entry).load(Acquire),
        }
    }

    /// The segment that a hash belongs to. For the holder of the structure lock.
    pub(super) fn segment_of(&self, table: &Table, hash: Hash) -> u64 {
        let root = self.root(table).unwrap_or_else(|| nonsense(format_args!("no index of the table at {}", table.at)));
        self.segment_at(root, root.entry_of(hash.0[0]))
    }

    /// The segment that a hash belongs to, and its life.
    fn segment(&self, table: &Table, hash: Hash) -> Result<(u64, u64), Blocked> {
        loop {
            let root = self.root(table).ok_or(Blocked::Moved)?;
            // What was a directory is one of the same size in each of its lives: so this is a segment, ours or not.
            let segment = self.segment_at(root, root.entry_of(hash.0[0]));
            let life = self.arena.word(segment + index_word::LIFE).load(Acquire);
            // A root is used for one index only: if it is the same, all of this was its.
            if self.root(table) == Some(root) {
                return Ok((segment, life));
            }
        }
    }

    pub fn find(&self, table: &Table, hash: Hash) -> Result<Option<KeyAt>, Blocked> {
        if let Some((found, _)) = self.glance(table, self.index_of(table), hash) {
            return Ok(Some(found));
        }
        let before = self.segment(table, hash)?;
        match self.probe(table, before.0, hash) {
            Ok((_, found)) if found.life == CLOSED => Err(Blocked::Sealed),
            Ok((_, found)) => Ok(Some(found)),
            Err(_) if self.segment(table, hash)? == before => Ok(None),
            // It was looked for in what is another segment by now.
            Err(_) => Err(Blocked::Moved),
        }
    }

    pub(crate) fn find_or_add(&self, table: &Table, hash: Hash, text: &str) -> Result<KeyAt, Blocked> {
        if let Some((found, _)) = self.glance(table, self.index_of(table), hash) {
            return Ok(found);
        }
        let (segment, life) = self.segment(table, hash)?;
        match self.probe(table, segment, hash) {
            Ok((_, found)) if found.life == CLOSED => Err(Blocked::Sealed),
            Ok((_, found)) => Ok(found),
            Err(slot) => self.add_key(table, (segment, life), slot, hash, text),
        }
    }

    /// A key and its block, if it is found at once, as most are; without unwinding. `index` is the word of the table
    /// that says where its root is. (Where it looks may be another segment by now; a block that says that it is this key's is,
    /// whatever led there.)
    #[inline(always)]
    pub fn glance(&self, table: &Table, index: &AtomicU64, hash: Hash) -> Option<(KeyAt, &[AtomicU64])> {
        let root = Root(index.load(Acquire));
        let seen = self.arena.seen();
        let segment = match root.depth() {
            0 if root.0 == 0 => return None,
            0 => root.at(),
            _ => seen.get(root.at() + index_word::SLOTS + root.entry_of(hash.0[0]), 1)?[0].load(Acquire),
        };
        let capacity = seen.get(segment, index_word::SLOTS)?[index_word::CAPACITY as usize].load(Acquire);
        let slots = seen.get(segment + index_word::SLOTS, capacity)?;
        let mask = capacity.checked_sub(1)?;
        let tag = tag(hash);
        for look in 0..GLANCES {
            let entry = slots.get((hash.0[0].wrapping_add(look) & mask) as usize)?.load(Acquire);
            if entry >> index_word::TAG == tag {
                // (Where an empty slot has this tag, there is no block.)
                let at = entry & ((1 << index_word::TAG) - 1);
                let words = seen.get(at, key_word::RING + table.ring)?;
                let head = words.first_chunk()?;
                // The life first: as in `probe`.
                let life = words[key_word::LIFE as usize].load(Acquire);
                let is_its = hash_in(head) == hash && table_in(head) == table.at;
                return (is_its && life != CLOSED).then_some((KeyAt { at, life, table: table.at }, words));
            }
            block(entry)?;
        }
        None
    }

    /// How many slots a segment has: a power of two.
    #[inline(always)]
    pub(super) fn capacity(&self, segment: u64) -> u64 {
        let capacity = self.arena.word(segment + index_word::CAPACITY).load(Relaxed);
        // (Without counting bits, which takes a dozen instructions.)
        if capacity & capacity.wrapping_sub(1) == 0 && (1..=index_word::MOST_CAPACITY).contains(&capacity) {
            capacity
        } else {
            nonsense(format_args!("a segment of {capacity} slots at {segment}"))
        }
    }

    /// Follows a key's probe sequence: to its slot and block, or to the first slot that does not hold another key.
    #[inline]
    pub(super) fn probe(&self, table: &Table, segment: u64, hash: Hash) -> Result<(u64, KeyAt), u64> {
        let capacity = self.capacity(segment);
        let slots = self.arena.words(segment + index_word::SLOTS, capacity);
        let mut i = hash.0[0] & (capacity - 1);
        let mut looks = 0;
        // There always is a free slot: see `add_key`.
        loop {
            looks += 1;
            // Some slots are looked at again, because their keys moved.
            if looks > 4 * capacity + 1_000_000 {
                nonsense(format_args!("a full segment at {segment}"));
            }
            let entry = slots[i as usize].load(Acquire);
            let Some(at) = block(entry) else { return Err(i) };
            if entry >> index_word::TAG == tag(hash) {
                fault::point("entry-read");
                // The life first: if it is the same at the end, the block was this key's all the time.
                let head = self.head(at);
                let life = head[key_word::LIFE as usize].load(Acquire);
                if hash_in(head) == hash {
                    let own = head[key_word::TABLE as usize].load(Acquire);
                    // A stub has no life that would tell whether it was this key's all the time.
                    let is_its = own == table.at || self.is_plan_of(table, own) && hash_in(head) == hash;
                    if is_its {
                        return Ok((i, KeyAt { at, life, table: own }));
                    }
                }
                // Or it moved while it was looked at.
                let is_same =
                    slots[i as usize].load(Acquire) == entry && head[key_word::LIFE as usize].load(Acquire) == life;
                if !is_same && !fault::planted("hasty probe") {
                    continue;
                }
            }
            i = (i + 1) & (capacity - 1);
        }
    }

    #[cold]
    fn add_key(
        &self,
        table: &Table,
        (segment, life): (u64, u64),
        mut slot: u64,
        hash: Hash,
        text: &str,
    ) -> Result<KeyAt, Blocked> {
        let capacity = self.capacity(segment);
        let count = self.arena.word(segment + index_word::COUNT);
        // Three quarters full is full: probe sequences stay short, and always end. Counted before it is used and never
        // taken back: whoever dies or is too late here only makes the segment seem fuller.
        if count.fetch_add(1, Relaxed) >= capacity / 4 * 3 {
            return Err(Blocked::Full);
        }
        let at = self.block_for_new_key(table, (segment, life))?;
        fault::point("key-allocated");
        if self.has_lost(table) && !self.has_origins(table, at) {
            self.hand_back(table, segment, at);
            return Err(Blocked::Full);
        }
        let Some(new) = self.begin(table, at, hash, text) else { return Err(Blocked::Full) };
        let slots = self.arena.words(segment + index_word::SLOTS, capacity);
        loop {
            match slots[slot as usize].compare_exchange(empty(life), entry(hash, at), AcqRel, Acquire) {
                Ok(_) => {
                    fault::point("key-inserted");
                    return Ok(new);
                }
                // Closed, or another segment by now.
                Err(word) if block(word).is_none() => {
                    self.hand_back(table, segment, at);
                    return Err(Blocked::Full);
                }
                // Somebody was faster here: with this key, or another.
                Err(_) => match self.probe(table, segment, hash) {
                    Ok((_, theirs)) => {
                        self.hand_back(table, segment, at);
                        return if theirs.life == CLOSED { Err(Blocked::Sealed) } else { Ok(theirs) };
                    }
                    Err(next) => slot = next,
                },
            }
        }
    }

    /// A block that nobody uses, for a key of this table: one that was used before if the segment has some.
    fn block_for_new_key(&self, table: &Table, (segment, life): (u64, u64)) -> Result<u64, Blocked> {
        let returned = self.arena.word(segment + index_word::RETURNED).swap(0, AcqRel);
        if returned >> index_word::TAG == self.block_class(table.policy) && returned != 0 {
            return Ok(returned & ((1 << index_word::TAG) - 1));
        }
        let (free, taken) = (segment + index_word::FREE, self.arena.word(segment + index_word::TAKEN));
        let next = |mine: u64| (mine < self.arena.word(free).load(Acquire)).then_some(mine + 1);
        // Those of a table before this one may have another size.
        if !self.is_old(table, segment)
            && let Ok(mine) = taken.fetch_update(AcqRel, Acquire, next)
        {
            let capacity = self.capacity(segment);
            let at = self.arena.word(segment + index_word::SLOTS + capacity + mine).load(Acquire);
            // Else the word may be another segment's.
            let is_same = self.arena.word(segment + index_word::LIFE).load(Acquire) == life;
            return if is_same { Ok(at) } else { Err(Blocked::Full) };
        }
        Ok(self.arena.allocate(self.key_words(table.policy))?)
    }

    /// Hands a block back that was not needed after all, for this life of the segment or a later one. Where there is one
    /// already it is lost: a few hundred bytes.
    fn hand_back(&self, table: &Table, segment: u64, at: u64) {
        let word = self.block_class(table.policy) << index_word::TAG | at;
        let _ = self.arena.word(segment + index_word::RETURNED).compare_exchange(0, word, AcqRel, Relaxed);
    }

    /// Makes a block that only the caller uses the one of a new key. `None`: it had too many lives, and is lost.
    pub(super) fn begin(&self, table: &Table, at: u64, hash: Hash, text: &str) -> Option<KeyAt> {
        let life = self.arena.word(at + key_word::LIFE);
        let is_new = self.arena.word(at + key_word::TABLE).load(Relaxed) == 0;
        let now = self.clock.now();
        let end = self.arena.word(table.at + table_word::FIRST_TICKET).load(Relaxed);
        // So fences only grow, also when the key was forgotten meanwhile: nobody takes 64 units in each microsecond.
        let end = if table.policy.is_concurrency() { self.unix_time(now.ceil) << 6 } else { end };
        let mut history = History { starts: self.lost(table, now).into_iter().collect(), end, ..History::default() };
        if !is_new && table.born + table.policy.longest() > now.floor {
            // Cells that nobody has used count like that by themselves.
            history.unknown = Some(table.born);
            history.pad(table.policy.largest());
        }
        if table.policy.is_counted() {
            self.arena.word(at + key_word::OWN).store(self.new_number(), Release);
        }
        let is_fresh =
            history.starts.is_empty() && (end == 0 || table.policy.is_counted() || table.policy.is_concurrency());
        if is_new && table.policy.is_concurrency() {
            self.arena.word(at + key_word::BASE).store(history.end, Release);
        }
        if is_new && is_fresh {
            self.name_block(table, at, hash, text);
            return Some(KeyAt { at, life: life.load(Relaxed), table: table.at });
        }
        life.store(CLOSED, Release);
        self.name_block(table, at, hash, text);
        let others = [key_word::GATE, key_word::BACKOFF, key_word::SPACING, key_word::JOBS, key_word::LISTED];
        for word in others.into_iter().chain(key_word::COUNTS) {
            self.arena.word(at + word).store(0, Release);
        }
        if !history.starts.is_empty() && !self.has_origins(table, at) {
            return None;
        }
        match self.write_history(table, at, (&history, now)) {
            None if is_new => nonsense(format_args!("nothing that a new key of the table at {} can be", table.at)),
            base => base.map(|base| self.publish(table, at, base)),
        }
    }

    /// What each key of a table may have started that the ledger did not know when it was read, while it counts.
    fn lost(&self, table: &Table, now: Now) -> Option<Start> {
        let [stamp, units] = self.get(table.at + table_word::LOST);
        let counts = units > 0 && stamp + table.policy.longest() > now.floor;
        // The next boot may come while it still counts: so it is to be written before the key's first start.
        let is_logged = fault::planted("lost once");
        counts.then_some(Start { stamp, units, state: SETTLED, id: u64::MAX, is_logged })
    }

    /// Does even a key that was never used count for something?
    pub fn has_lost(&self, table: &Table) -> bool {
        self.lost(table, self.clock.now()).is_some()
    }

    /// Makes sure that a block has room for the origins of its starts.
    pub(super) fn has_origins(&self, table: &Table, at: u64) -> bool {
        let origins = self.arena.word(at + key_word::ORIGINS);
        if origins.load(Relaxed) == 0 && table.is_log {
            match self.arena.allocate(table.ring) {
                Ok(words) => origins.store(words, Release),
                Err(_) => return false,
            }
        }
        true
    }

    /// Each store releases, after the block was closed: see `Log::write`.
    pub(super) fn name_block(&self, table: &Table, at: u64, hash: Hash, text: &str) {
        for (i, word) in hash.0.into_iter().enumerate() {
            self.arena.word(at + key_word::HASH + i as u64).store(word, Release);
        }
        self.arena.word(at + key_word::TABLE).store(table.at, Release);
        let mut end = text.len().min(8 * key_word::TEXT_WORDS as usize - 2);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = [0; 8 * key_word::TEXT_WORDS as usize];
        bytes[0] = end as u8;
        bytes[1] = u8::from(end < text.len());
        bytes[2..2 + end].copy_from_slice(&text.as_bytes()[..end]);
        for (i, word) in bytes.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            self.arena.word(at + key_word::TEXT + i as u64).store(word, Release);
        }
    }

    /// The key of a block as people read it. Long ones are cut, and end in an ellipsis.
    pub(super) fn text_of(&self, at: u64) -> String {
        let words: [u64; key_word::TEXT_WORDS as usize] = self.get(at + key_word::TEXT);
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        let end = 2 + usize::from(bytes[0]).min(bytes.len() - 2);
        let text = String::from_utf8_lossy(&bytes[2..end]).into_owned();
        if bytes[1] != 0 { text + "…" } else { text }
    }

    /// The keys of a segment.
    pub(super) fn entries(&self, segment: u64) -> impl Iterator<Item = u64> {
        let capacity = self.capacity(segment);
        let slots = self.arena.words(segment + index_word::SLOTS, capacity);
        slots.iter().filter_map(|slot| block(slot.load(Acquire))).inspect(|_| fault::looked())
    }

    /// The segments of a table.
    pub(super) fn segments(&self, table: &Table) -> impl Iterator<Item = u64> {
        let root = self.root(table);
        let all = root.into_iter().flat_map(move |root| (0..1 << root.depth()).map(move |i| self.segment_at(root, i)));
        let mut last = 0;
        // A segment's entries stand side by side.
        all.filter(move |segment| std::mem::replace(&mut last, *segment) != *segment)
    }

    /// The blocks in a table's index: those of its keys, and of keys on plans also stubs.
    pub(super) fn blocks(&self, table: &Table) -> impl Iterator<Item = u64> {
        self.segments(table).flat_map(|segment| self.entries(segment))
    }

    /// The keys of a table that have cells, and the tables that they live by. For the holder of the structure lock.
    pub fn keys(&self, table: &Table) -> impl Iterator<Item = (Table, u64)> {
        self.blocks(table).filter(|&at| !self.is_stub(at)).map(|at| (self.table_of_block(table, at), at))
    }
}
