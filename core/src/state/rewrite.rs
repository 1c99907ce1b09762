//! The one way of everything rare: what is to change is sealed, read, edited, and written anew elsewhere.
//!
//! A key is rewritten into another block when a start is cancelled or settled, a place is exchanged, or the key is
//! cleared. A table is rewritten, with all its keys, when its policy changes. All of it under the structure lock, in an
//! order such that whoever comes next can do it again from the start if this process dies. What was replaced is used
//! again: its cells get another life.

use super::damage::bounded;
use super::index::{KeyAt, entry};
use super::layout::{FREE_KEYS, index_word, key_word, limit_word, table_word};
use super::locked::Locked;
use super::os::wake_all;
use super::table::{Hash, Table, key_words};
use crate::algorithm::History;
use crate::algorithm::cells::Cells;
use crate::algorithm::log::{CLOSED, PLACE};
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::fault;
use crate::policy::{POLICY_WORDS, Policy, Shape};
use crate::time::Now;

/// Each table of a limit has other tickets than those before it: a permit is never mistaken for a later one.
const TICKETS_OF_A_TABLE: u64 = 1 << 32;

impl Locked<'_> {
    /// Writes a key that is in the table into another block, with this change to its history. Returns the block.
    pub fn rewrite(&self, table: &Table, hash: Hash, edit: impl FnOnce(&mut History)) -> Result<u64> {
        let (_, from) = self.probe(table, self.segment_of(table, hash), hash).expect("the key is in its table");
        self.rewrite_as(table, hash, &self.table_of(table, from), edit)
    }

    /// The same into a block of `own`, by which the key lives from then on.
    pub(super) fn rewrite_as(
        &self,
        table: &Table,
        hash: Hash,
        own: &Table,
        edit: impl FnOnce(&mut History),
    ) -> Result<u64> {
        let segment = self.segment_of(table, hash);
        let (slot, from) = self.probe(table, segment, hash).expect("the key is in its table");
        let before = self.table_of(table, from);
        // Room first: what is sealed must be replaced.
        let into = self.block_to_write(own)?;
        let cells = self.seal_cells(self.cells(&before, from));
        fault::point("key-sealed");
        let now = self.clock.now();
        let mut history = cells.history(before.policy.longest(), now);
        if own.at != before.at {
            carry_over(&before, own, &mut history, now);
        }
        edit(&mut history);
        history.pad(own.policy.largest());
        let into = self.write_into(own, into, from.at, (&history, now))?;
        if own.at == before.at && own.policy.is_counted() && !history.starts.is_empty() {
            // Nothing of what was taken was forgotten.
            self.arena.word(into + key_word::OWN).store(history.era, Release);
        }
        fault::point("key-written");
        self.set_entry(segment, slot, hash, into);
        let empty = self.arena.word(table.at + table_word::EMPTY_KEY);
        if empty.load(Acquire) == from.at {
            empty.store(into, Release);
        }
        self.retire_block(before.policy, from.at);
        Ok(into)
    }

    /// Another block is a key's from now on.
    pub(super) fn set_entry(&self, segment: u64, slot: u64, hash: Hash, block: u64) {
        let slots = self.arena.words(segment + index_word::SLOTS, slot + 1);
        slots[slot as usize].store(entry(hash, block), Release);
    }

    /// Who waits for somebody to complete has to look where that is now.
    pub(super) fn seal_cells<'a>(&self, cells: Cells<'a>) -> Cells<'a> {
        let cells = cells.seal();
        if let Cells::Leases(leases) = &cells {
            wake_all(leases.bell);
        }
        cells
    }

    /// Finishes a rewriting that somebody died in, if there is one.
    pub fn mend_key(&self, table: &Table, hash: Hash) -> Result<()> {
        let segment = self.segment_of(table, hash);
        let Ok((slot, found)) = self.probe(table, segment, hash) else { return Ok(()) };
        if self.is_stub(found.at) {
            return self.wake_key(table, (segment, slot), found, hash);
        }
        let own = self.table_of(table, found);
        if hash == self.hash(b'k', "") {
            self.arena.word(table.at + table_word::EMPTY_KEY).store(found.at, Release);
        }
        if self.cells(&own, found).has_to_move(own.policy.longest(), self.clock.now()) {
            self.rewrite(table, hash, |_| {})?;
        }
        Ok(())
    }

    /// A block that nobody uses, with room for the origins of its starts.
    fn block_to_write(&self, table: &Table) -> Result<u64> {
        let new = || self.allocate(key_words(table.policy));
        let at = self.used_block(table.policy).map_or_else(new, Ok)?;
        self.give_origins(table, at)?;
        Ok(at)
    }

    /// Makes sure that a block has room for the origins of its starts.
    pub(super) fn give_origins(&self, table: &Table, at: u64) -> Result<()> {
        let origins = self.arena.word(at + key_word::ORIGINS);
        if origins.load(Relaxed) == 0 && table.policy.has_origins() {
            origins.store(self.allocate(table.policy.ring())?, Release);
        }
        Ok(())
    }

    /// Writes a history into a block, which gets the name and the gate of `from`. Returns where they were written: in
    /// another block if that one had too many lives.
    fn write_into(&self, table: &Table, mut into: u64, from: u64, (history, now): (&History, Now)) -> Result<u64> {
        loop {
            let life = self.arena.word(into + key_word::LIFE);
            life.store(CLOSED, Release);
            let text = key_word::TEXT..key_word::TEXT + key_word::TEXT_WORDS;
            for word in [key_word::HASH, key_word::HASH + 1, key_word::GATE].into_iter().chain(text) {
                self.arena.word(into + word).store(self.arena.word(from + word).load(Acquire), Release);
            }
            self.arena.word(into + key_word::TABLE).store(table.at, Release);
            self.arena.word(into + key_word::LISTED).store(0, Release);
            self.copy_habits(table, from, into);
            if table.policy.is_counted() {
                self.arena.word(into + key_word::OWN).store(self.new_number(), Release);
            }
            let cells = self.cells(table, KeyAt { at: into, life: CLOSED, table: table.at });
            let written = cells.write(history, table.policy.window(), now);
            if let Some(base) = written {
                return Ok(self.publish(table, into, base).at);
            }
            // That block is lost, the next one may do.
            into = self.block_to_write(table)?;
        }
    }

    /// What a key has beside its log: its backoff, what its jobs took, and what was counted. It is not lost with a cancelled
    /// start; if somebody writes it at this moment, that is. (Counts are written under the structure lock only.)
    fn copy_habits(&self, table: &Table, from: u64, into: u64) {
        let words = self.arena.word(from + key_word::TABLE).load(Acquire);
        let jobs = key_word::RING + table.policy.ring();
        let same = words != 0 && self.table_at(words).policy == table.policy;
        let jobs = if same { jobs..jobs + table.policy.jobs() } else { 0..0 };
        for word in [key_word::BACKOFF]
            .into_iter()
            .chain(key_word::COUNTS)
            .chain(if same { key_word::SPACING..key_word::JOBS + 1 } else { 0..0 })
            .chain(jobs)
        {
            self.arena.word(into + word).store(self.arena.word(from + word).load(Acquire), Release);
        }
        if !same {
            self.arena.word(into + key_word::SPACING).store(0, Release);
            self.arena.word(into + key_word::JOBS).store(0, Release);
        }
    }

    /// Begins a key's backoff anew, and what is known of its jobs.
    pub fn forget_habits(&self, at: u64) {
        for word in [key_word::BACKOFF, key_word::SPACING, key_word::JOBS] {
            self.arena.word(at + word).store(0, Release);
        }
    }

    /// Lets a policy hold, if another does.
    pub fn bring_to(&self, limit: u64, policy: Policy) -> Result<()> {
        self.finish_replacing(limit)?;
        let before = self.table(limit).policy;
        if before == policy.after(before) { Ok(()) } else { self.replace(limit, policy, false) }
    }

    /// Puts another policy in a table's place, or the same one and forgets all keys. Only for the holder of the structure
    /// lock.
    pub fn replace(&self, limit: u64, policy: Policy, is_forgetting: bool) -> Result<()> {
        let [kind, numbers @ ..] = policy.after(self.table(limit).policy).to_words();
        self.arena.word(limit + limit_word::REPLACED).store(self.table(limit).at, Release);
        // The kind last: whoever finds it finds the numbers that go with it.
        self.set::<{ POLICY_WORDS - 1 }>(limit + limit_word::NEXT_POLICY + 1, numbers);
        let forgetting = if is_forgetting { limit_word::FORGETTING } else { 0 };
        self.arena.word(limit + limit_word::NEXT_POLICY).store(kind | forgetting, Release);
        self.finish_replacing(limit)
    }

    /// Makes room for twice as many leases as `crowded` has, the table in which there is none, if it still is the limit's.
    /// Of a key with a policy of its own, as its plan has.
    pub fn add_slots(&self, limit: u64, table: &Table, crowded: u64, hash: Hash) -> Result<()> {
        let plan = self.crowded_plan(table, hash);
        if table.at != crowded || matches!(plan, Some(None)) {
            return Ok(());
        }
        match plan.flatten().unwrap_or(*table).policy.with_more_slots() {
            Some(policy) if plan.is_some() => self.set_plan(limit, (hash, ""), Some(policy)),
            Some(policy) => self.replace(limit, policy, false),
            None => Err(Error::StoreFull { reason: "more recorded starts than a limit has room for".into() }),
        }
    }

    /// Does what [`Home::replace`] was to do, from the start: whoever did it may have died at any point.
    /// Only for the holder of the structure lock. A no-op if nothing was under way.
    pub fn finish_replacing(&self, limit: u64) -> Result<()> {
        let mut words = self.get::<POLICY_WORDS>(limit + limit_word::NEXT_POLICY);
        let is_forgetting = words[0] & limit_word::FORGETTING != 0;
        words[0] &= !limit_word::FORGETTING;
        let Some(policy) = Policy::from_words(|i| words[i]) else { return Ok(()) };
        let (old, is_retired) = (self.table(limit), self.is_retired(limit));
        if old.at != self.arena.word(limit + limit_word::REPLACED).load(Acquire) {
            // All but the last word was done.
            self.arena.word(limit + limit_word::NEXT_POLICY).store(0, Release);
            return Ok(());
        }
        let Some(root) = self.root(&old) else { return Ok(()) };
        // Room first: what is sealed must be replaced.
        let keys = if is_forgetting { self.keys_on_plans(&old).count() } else { self.blocks(&old).count() } as u64;
        self.make_room_to_replace(policy, keys)?;
        self.segments(&old).for_each(|segment| self.seal_segment(segment));
        let born = if is_forgetting { 0 } else { old.born };
        let first = self.arena.word(old.at + table_word::FIRST_TICKET).load(Relaxed) + TICKETS_OF_A_TABLE;
        let new = self.table_at(self.new_table(limit, policy, (born, first))?);
        let lost: [u64; 2] = if is_forgetting { [0, 0] } else { self.get(old.at + table_word::LOST) };
        self.set(new.at + table_word::LOST, lost);
        for from in self.blocks(&old) {
            let own = self.table_of_block(&old, from);
            let is_its = own.at == old.at;
            if (is_its || is_forgetting) && !self.is_stub(from) {
                self.seal_cells(self.cells_at(&own, from));
            }
            if is_its && !is_forgetting {
                self.move_key(&old, from, &new)?;
            }
            if !is_its && !is_retired {
                // It stays on its plan, without what is forgotten.
                let is_emptied = is_forgetting && !self.is_stub(from);
                let at = if is_emptied { self.stub_of(&own, from, false)? } else { from };
                self.put(&new, self.hash_at(from), at)?;
            }
            if !is_its && is_forgetting {
                self.begin_plan_anew(&own, &new);
            }
        }
        fault::point("table-written");
        self.arena.word(limit + limit_word::TABLE).store(new.at, Release);
        if policy != old.policy.after(policy) {
            self.policy_changed(limit);
        }
        self.arena.word(limit + limit_word::NEXT_POLICY).store(0, Release);
        // Only now: whoever starts this over must find them where they were.
        let blocks: Vec<u64> = self.blocks(&old).collect();
        for at in blocks {
            let own = self.table_of_block(&old, at);
            match (own.at == old.at, self.is_stub(at)) {
                (true, _) => self.retire_block(old.policy, at),
                (false, true) if is_retired => self.retire_stub(at),
                (false, false) if is_forgetting => self.retire_block(own.policy, at),
                // It is in the new index.
                _ => {}
            }
        }
        let unused: Vec<u64> = self.segments(&old).flat_map(|segment| self.take_stock(segment)).collect();
        unused.into_iter().for_each(|at| self.retire_block(old.policy, at));
        self.retire_index(&old, root);
        Ok(())
    }

    /// Makes room for a policy in place of another, so that to let it hold does not fail; or for a new limit.
    pub fn make_room_for(&self, limit: Option<u64>, policy: Policy) -> Result<()> {
        let keys = limit.map_or(0, |limit| self.blocks(&self.table(limit)).count() as u64);
        self.grow(limit_word::WORDS + 2 * key_words(policy))?;
        self.make_room_to_replace(policy, keys)
    }

    /// Makes room for a table of so many keys.
    fn make_room_to_replace(&self, policy: Policy, keys: u64) -> Result<()> {
        let block = key_words(policy) + policy.ring() + 16;
        // Its segments are a quarter full, and as large again is what they have stood for.
        self.grow((keys.saturating_sub(self.used_blocks(policy, keys)) + 2) * block + 16 * keys + 128)
    }

    /// Writes a key of an old table into a new one that nobody sees yet.
    fn move_key(&self, old: &Table, from: u64, new: &Table) -> Result<()> {
        let now = self.clock.now();
        let cells = self.cells_at(old, from);
        let mut history = cells.history(old.policy.longest(), now);
        carry_over(old, new, &mut history, now);
        history.pad(new.policy.largest());
        let hash = Hash(self.get(from + key_word::HASH));
        let is_empty_key = hash == self.hash(b'k', "");
        let longest = old.policy.longest().max(new.policy.longest());
        // What is not known any more may be newer than what is.
        let newest = history.starts.last().map(|start| start.stamp).max(history.unknown);
        let is_idle = newest.is_none_or(|stamp| stamp + longest <= now.floor) && history.holds.is_empty();
        if is_idle && !is_empty_key && !self.is_gated(old, from, now.floor) {
            return Ok(());
        }
        if !is_empty_key {
            let into = self.block_to_write(new)?;
            let into = self.write_into(new, into, from, (&history, now))?;
            return self.put(new, hash, into);
        }
        // It is there already, made with the table.
        let into = self.table_at(new.at).empty_key;
        self.give_origins(new, into)?;
        let written = self.write_into(new, into, from, (&history, now))?;
        let segment = self.segment_of(new, hash);
        if let Ok((slot, _)) = self.probe(new, segment, hash)
            && written != into
        {
            self.arena.words(segment + index_word::SLOTS, slot + 1)[slot as usize].store(entry(hash, written), Relaxed);
            self.arena.word(new.at + table_word::EMPTY_KEY).store(written, Relaxed);
        }
        Ok(())
    }

    pub(super) fn retire_block(&self, policy: Policy, at: u64) {
        self.retire_to(policy.block_class(), at);
    }

    pub(super) fn retire_to(&self, class: u64, at: u64) {
        let first = self.arena.word(FREE_KEYS + class);
        self.arena.word(at + key_word::NEXT).store(first.load(Acquire), Release);
        first.store(at, Release);
    }

    pub(super) fn has_used_block(&self, policy: Policy) -> bool {
        self.arena.word(FREE_KEYS + policy.block_class()).load(Acquire) != 0
    }

    pub(super) fn used_block(&self, policy: Policy) -> Option<u64> {
        self.used_in(policy.block_class())
    }

    pub(super) fn used_in(&self, class: u64) -> Option<u64> {
        let first = self.arena.word(FREE_KEYS + class);
        let at = first.load(Acquire);
        (at != 0).then(|| {
            let next = self.arena.word(at + key_word::NEXT);
            first.store(next.load(Acquire), Release);
            // No table's, but not new either.
            next.store(u64::MAX, Release);
            at
        })
    }

    /// How many blocks are free, as far as so many are asked for.
    fn used_blocks(&self, policy: Policy, most: u64) -> u64 {
        let next = |at: u64| Some(self.arena.word(at).load(Acquire)).filter(|at| *at != 0);
        let blocks = std::iter::successors(next(FREE_KEYS + policy.block_class()), |at| next(at + key_word::NEXT));
        bounded(blocks.take(most as usize), self.arena.most()).count() as u64
    }
}

/// What a key has started goes on to count by another policy. Places do not: they were taken under the one before, and are
/// exchanged when they are presented.
fn carry_over(old: &Table, new: &Table, history: &mut History, now: Now) {
    history.starts.retain(|start| start.state != PLACE);
    if let Shape::Counter { .. } = old.policy.0 {
        // Those of a window that has not ended are stamped with its end, which means nothing to other windows.
        history.starts.iter_mut().for_each(|start| start.stamp = start.stamp.min(now.ceil));
        history.unknown = history.unknown.map(|stamp| stamp.min(now.ceil));
    }
    if let Shape::Bucket(bucket) = &new.policy.0 {
        bucket.trim(history);
    }
}
