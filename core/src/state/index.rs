//! The keys of a table: an index of offsets, found and added without a lock.
//!
//! A key's block never moves while it is that key's, but a key may move to another block: see `rewrite.rs`. Growing an
//! index takes the structure lock: its empty slots are sealed, so that nobody can add to what has been copied, keys that
//! are idle are left behind and their blocks used again, and whoever comes next can do it again from the start if this
//! process dies.

use super::damage::nonsense;
use super::layout::{index_word, key_word, table_word};
use super::locked::Locked;
use super::table::{Blocked, Hash, Home, Table, key_words};
use crate::algorithm::log::{CLOSED, SETTLED};
use crate::algorithm::{History, Start};
use crate::atomic::*;
use crate::error::Result;
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

/// What an empty slot holds in an index of this life.
fn empty(life: u64) -> u64 {
    if life == 0 { 0 } else { index_word::NO_KEY << index_word::TAG | life }
}

/// Is that an empty slot?
pub(super) fn is_empty(word: u64) -> bool {
    block(word).is_none() && word != index_word::SEALED
}

/// The block of an entry; none in a slot that is empty or sealed.
fn block(entry: u64) -> Option<u64> {
    let is_key = entry != 0 && entry >> index_word::TAG != index_word::NO_KEY;
    is_key.then_some(entry & ((1 << index_word::TAG) - 1))
}

impl Home {
    /// Where a key is, added if it is new.
    #[inline]
    pub fn key(&self, table: &Table, key: &str) -> Result<KeyAt, Blocked> {
        if key.is_empty() { self.empty_key(table) } else { self.find_or_add(table, self.hash(b'k', key), key) }
    }

    #[inline(always)]
    fn empty_key(&self, table: &Table) -> Result<KeyAt, Blocked> {
        let at = table.empty_key;
        let life = self.arena.word(at + key_word::LIFE).load(Acquire);
        // The life is that of the empty key only if the block still is.
        let is_its = self.arena.word(table.at + table_word::EMPTY_KEY).load(Acquire) == at
            && self.arena.word(at + key_word::TABLE).load(Acquire) == table.at;
        if is_its && life != CLOSED { Ok(KeyAt { at, life, table: table.at }) } else { Err(Blocked::Moved) }
    }

    /// Looks a key up without adding it. `None`: it was never used.
    pub fn peek_key(&self, table: &Table, key: &str) -> Result<Option<KeyAt>, Blocked> {
        if key.is_empty() { self.empty_key(table).map(Some) } else { self.find(table, self.hash(b'k', key)) }
    }

    /// A table's index, and its life. A table that was replaced has none: its index may be another's by now.
    fn index(&self, table: &Table) -> Result<(u64, u64), Blocked> {
        let word = self.arena.word(table.at + table_word::INDEX);
        loop {
            let index = word.load(Acquire);
            if index == 0 {
                return Err(Blocked::Moved);
            }
            let life = self.arena.word(index + index_word::LIFE).load(Acquire);
            if word.load(Acquire) == index {
                return Ok((index, life));
            }
        }
    }

    pub fn find(&self, table: &Table, hash: Hash) -> Result<Option<KeyAt>, Blocked> {
        let before = self.index(table)?;
        match self.probe(table, before.0, hash) {
            Ok((_, found)) if found.life == CLOSED => Err(Blocked::Sealed),
            Ok((_, found)) => Ok(Some(found)),
            Err(_) if self.index(table)? == before => Ok(None),
            // It was looked for in what is another index by now.
            Err(_) => Err(Blocked::Moved),
        }
    }

    pub(crate) fn find_or_add(&self, table: &Table, hash: Hash, text: &str) -> Result<KeyAt, Blocked> {
        let (index, life) = self.index(table)?;
        match self.probe(table, index, hash) {
            Ok((_, found)) if found.life == CLOSED => Err(Blocked::Sealed),
            Ok((_, found)) => Ok(found),
            Err(slot) => self.add_key(table, (index, life), slot, hash, text),
        }
    }

    /// How many slots an index has: a power of two.
    #[inline(always)]
    pub(super) fn capacity(&self, index: u64) -> u64 {
        let capacity = self.arena.word(index + index_word::CAPACITY).load(Relaxed);
        if capacity.is_power_of_two() {
            capacity
        } else {
            nonsense(format_args!("an index of {capacity} slots at {index}"))
        }
    }

    /// Follows a key's probe sequence: to its slot and block, or to the first slot that does not hold another key.
    #[inline]
    pub(super) fn probe(&self, table: &Table, index: u64, hash: Hash) -> Result<(u64, KeyAt), u64> {
        let capacity = self.capacity(index);
        let slots = self.arena.words(index + index_word::SLOTS, capacity);
        let mut i = hash.0[0] & (capacity - 1);
        let mut looks = 0;
        // There always is a free slot: see `add_key`.
        loop {
            looks += 1;
            // Some slots are looked at again, because their keys moved.
            if looks > 4 * capacity + 1_000_000 {
                nonsense(format_args!("a full index at {index}"));
            }
            let entry = slots[i as usize].load(Acquire);
            let Some(at) = block(entry) else { return Err(i) };
            if entry >> index_word::TAG == tag(hash) {
                // The life first: if it is the same at the end, the block was this key's all the time.
                let life = self.arena.word(at + key_word::LIFE).load(Acquire);
                if self.get(at + key_word::HASH) == hash.0 {
                    let own = self.arena.word(at + key_word::TABLE).load(Acquire);
                    // A stub has no life that would tell whether it was this key's all the time.
                    let is_its =
                        own == table.at || self.is_plan_of(table, own) && self.get(at + key_word::HASH) == hash.0;
                    if is_its {
                        return Ok((i, KeyAt { at, life, table: own }));
                    }
                }
                // Or it moved while it was looked at.
                let is_same = slots[i as usize].load(Acquire) == entry
                    && self.arena.word(at + key_word::LIFE).load(Acquire) == life;
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
        (index, life): (u64, u64),
        mut slot: u64,
        hash: Hash,
        text: &str,
    ) -> Result<KeyAt, Blocked> {
        let capacity = self.capacity(index);
        let count = self.arena.word(index + index_word::COUNT);
        // Three quarters full is full: probe sequences stay short, and always end. Counted before it is used and never
        // taken back: whoever dies or is too late here only makes the index seem fuller.
        if count.fetch_add(1, Relaxed) >= capacity / 4 * 3 {
            return Err(Blocked::Full);
        }
        let at = self.block_for_new_key(table, (index, life))?;
        fault::point("key-allocated");
        let Some(new) = self.begin(table, at, hash, text) else { return Err(Blocked::Full) };
        let slots = self.arena.words(index + index_word::SLOTS, capacity);
        loop {
            match slots[slot as usize].compare_exchange(empty(life), entry(hash, at), AcqRel, Acquire) {
                Ok(_) => {
                    fault::point("key-inserted");
                    return Ok(new);
                }
                // Closed, or another index by now.
                Err(word) if block(word).is_none() => {
                    self.hand_back(table, index, at);
                    return Err(Blocked::Full);
                }
                // Somebody was faster here: with this key, or another.
                Err(_) => match self.probe(table, index, hash) {
                    Ok((_, theirs)) => {
                        self.hand_back(table, index, at);
                        return if theirs.life == CLOSED { Err(Blocked::Sealed) } else { Ok(theirs) };
                    }
                    Err(next) => slot = next,
                },
            }
        }
    }

    /// A block that nobody uses, for a key of this table: one that was used before if the index has some.
    fn block_for_new_key(&self, table: &Table, (index, life): (u64, u64)) -> Result<u64, Blocked> {
        let size = key_words(table.policy);
        let returned = self.arena.word(index + index_word::RETURNED).swap(0, AcqRel);
        if returned >> index_word::TAG == table.policy.block_class() && returned != 0 {
            return Ok(returned & ((1 << index_word::TAG) - 1));
        }
        let free = self.arena.word(index + index_word::FREE).load(Acquire);
        let taken = self.arena.word(index + index_word::TAKEN);
        if taken.load(Relaxed) < free {
            let mine = taken.fetch_add(1, AcqRel);
            if mine < free {
                let capacity = self.capacity(index);
                let at = self.arena.word(index + index_word::SLOTS + capacity + mine).load(Acquire);
                // Else the word may be another index's.
                let is_same = self.arena.word(index + index_word::LIFE).load(Acquire) == life;
                return if is_same { Ok(at) } else { Err(Blocked::Full) };
            }
        }
        Ok(self.arena.allocate(size)?)
    }

    /// Hands a block back that was not needed after all. Where there is one already it is lost: a few hundred bytes.
    fn hand_back(&self, table: &Table, index: u64, at: u64) {
        let word = table.policy.block_class() << index_word::TAG | at;
        let _ = self.arena.word(index + index_word::RETURNED).compare_exchange(0, word, AcqRel, Relaxed);
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
        let base = self.cells(table, KeyAt { at, life: CLOSED, table: table.at }).write(
            &history,
            table.policy.window(),
            now,
        )?;
        Some(self.publish(table, at, base))
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
        if origins.load(Relaxed) == 0 && table.policy.has_origins() {
            match self.arena.allocate(table.policy.ring()) {
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

    /// The keys of an index.
    pub(super) fn entries(&self, index: u64) -> impl Iterator<Item = u64> {
        let capacity = self.capacity(index);
        let slots = self.arena.words(index + index_word::SLOTS, capacity);
        slots.iter().filter_map(|slot| block(slot.load(Acquire)))
    }

    /// The keys of a table that have cells, and the tables that they live by. For the holder of the structure lock.
    pub fn keys(&self, table: &Table) -> impl Iterator<Item = (Table, u64)> {
        let all = self.entries(self.arena.word(table.at + table_word::INDEX).load(Acquire));
        all.filter(|&at| !self.is_stub(at)).map(|at| (self.table_of_block(table, at), at))
    }
}

/// The keys of an index that are kept, the blocks of those that are not, and those on plans that have stubs now.
type Parted = (Vec<u64>, Vec<u64>, Vec<(Table, u64)>);

impl Locked<'_> {
    /// The same for the holder of the structure lock, who makes room where there is none.
    pub fn find_or_add_locked(&self, table: &Table, hash: Hash, text: &str) -> Result<KeyAt> {
        loop {
            match self.find_or_add(table, hash, text) {
                Ok(found) => return Ok(found),
                Err(Blocked::Refused(error)) => return Err(error),
                Err(Blocked::Full) => self.make_room(table)?,
                Err(_) => self.mend_key(table, hash)?,
            }
        }
    }

    /// Grows what [`Blocked::Full`] complained about. Only for the holder of the structure lock.
    pub fn make_room(&self, table: &Table) -> Result<()> {
        // Twice what the next key takes, so that a short allocation is never the reason to come back at once.
        self.grow(2 * (key_words(table.policy) + table.policy.ring()))?;
        let Ok((old, _)) = self.index(table) else { return Ok(()) };
        let capacity = self.capacity(old);
        let is_sealed =
            self.arena.words(old + index_word::SLOTS, capacity).iter().any(|s| s.load(Acquire) == index_word::SEALED);
        if !is_sealed && self.arena.word(old + index_word::COUNT).load(Relaxed) < capacity / 4 * 3 {
            return Ok(());
        }
        // Room first: what is sealed must be replaced.
        self.grow(2 * (index_word::SLOTS + 4 * capacity))?;
        if !fault::planted("open index") {
            self.seal_index(old);
        }
        let (kept, idle, on_plans) = self.part(table, old)?;
        let new = self.new_index(if kept.len() as u64 > capacity / 2 { 2 * capacity } else { capacity })?;
        for at in &kept {
            self.insert(table, new, Hash(self.get(at + key_word::HASH)), *at);
        }
        let lost = self.stock(table, new, self.take_stock(old).chain(idle));
        self.arena.word(table.at + table_word::INDEX).store(new, Release);
        // Only now: whoever starts this over must find them where they were.
        lost.into_iter().for_each(|at| self.retire_block(table.policy, at));
        on_plans.into_iter().for_each(|(plan, at)| self.retire_block(plan.policy, at));
        self.retire_index(old);
        Ok(())
    }

    /// Parts the keys of a sealed index into those that are in use and the blocks, closed, of those that are not: of the table,
    /// and of plans. Stubs stay in place of these.
    fn part(&self, table: &Table, index: u64) -> Result<Parted> {
        let (mut kept, mut idle, mut on_plans) = (Vec::new(), Vec::new(), Vec::new());
        let empty_key = self.hash(b'k', "");
        for at in self.entries(index) {
            let own = &self.table_of_block(table, at);
            let is_empty_key = self.hash_at(at) == empty_key;
            if is_empty_key {
                // Whoever moved it may have died before this.
                self.arena.word(table.at + table_word::EMPTY_KEY).store(at, Release);
            }
            if is_empty_key || self.is_stub(at) || !self.is_idle(own, at) {
                kept.push(at);
                continue;
            }
            if !fault::planted("reused in flight") {
                self.cells_at(own, at).seal();
            }
            // Somebody may have been faster than the seal.
            if self.is_idle(own, at) {
                if own.at == table.at {
                    idle.push(at);
                } else {
                    kept.push(self.stub_of(own, at, true)?);
                    on_plans.push((*own, at));
                }
            } else {
                let hash = Hash(self.get(at + key_word::HASH));
                kept.push(self.rewrite(table, hash, |_| {})?);
            }
        }
        Ok((kept, idle, on_plans))
    }

    /// Puts a key into an index that nobody else sees yet.
    pub(super) fn insert(&self, table: &Table, index: u64, hash: Hash, at: u64) {
        let capacity = self.capacity(index);
        if let Err(slot) = self.probe(table, index, hash) {
            self.arena.words(index + index_word::SLOTS, capacity)[slot as usize].store(entry(hash, at), Relaxed);
            self.arena.word(index + index_word::COUNT).fetch_add(1, Relaxed);
        }
    }

    /// The blocks that nobody took from a sealed index. Nobody will.
    pub(super) fn take_stock(&self, index: u64) -> impl Iterator<Item = u64> {
        let capacity = self.capacity(index);
        let free = self.arena.word(index + index_word::FREE).load(Acquire);
        let taken =
            self.arena.word(index + index_word::TAKEN).fetch_or(index_word::CLOSED, AcqRel) & !index_word::CLOSED;
        (taken..free).map(move |i| self.arena.word(index + index_word::SLOTS + capacity + i).load(Acquire))
    }

    /// Stocks a new index with blocks for new keys; returns those that do not fit.
    pub(super) fn stock(&self, table: &Table, index: u64, mut blocks: impl Iterator<Item = u64>) -> Vec<u64> {
        let capacity = self.capacity(index);
        let mut free = 0;
        while free < capacity {
            let Some(at) = blocks.next().or_else(|| self.used_block(table.policy)) else { break };
            self.arena.word(index + index_word::SLOTS + capacity + free).store(at, Release);
            free += 1;
        }
        self.arena.word(index + index_word::FREE).store(free, Release);
        blocks.collect()
    }

    pub(super) fn new_index(&self, capacity: u64) -> Result<u64> {
        let Some((at, life)) = self.used_index(capacity) else {
            // The slots, and as many blocks for new keys.
            let at = self.allocate(index_word::SLOTS + 2 * capacity)?;
            self.arena.word(at + index_word::CAPACITY).store(capacity, Release);
            return Ok(at);
        };
        self.arena.word(at + index_word::LIFE).store(life, Release);
        for word in [index_word::COUNT, index_word::FREE, index_word::RETURNED, index_word::TAKEN] {
            self.arena.word(at + word).store(0, Release);
        }
        for slot in self.arena.words(at + index_word::SLOTS, capacity) {
            slot.store(empty(life), Release);
        }
        Ok(at)
    }

    pub(super) fn seal_index(&self, index: u64) {
        let capacity = self.capacity(index);
        for slot in self.arena.words(index + index_word::SLOTS, capacity) {
            let word = slot.load(Acquire);
            if block(word).is_none() {
                let _ = slot.compare_exchange(word, index_word::SEALED, AcqRel, Acquire);
            }
        }
    }
}
