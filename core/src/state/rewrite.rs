//! The one way of everything rare: what is to change is sealed, read, edited, and written anew elsewhere.
//!
//! A key is rewritten into another block when a start is cancelled or settled, a place is exchanged, the key is cleared, or
//! its policy changes. All of it under the structure lock, in an order such that whoever comes next can do it again from the
//! start if this process dies. What was replaced is used again: its cells get another life.

use super::damage::nonsense;
use super::index::{KeyAt, entry};
use super::layout::{FREE_KEYS, index_word, key_word, table_word};
use super::locked::Locked;
use super::os::wake_all;
use super::table::{Hash, Home, Table};
use crate::algorithm::cells::Cells;
use crate::algorithm::log::{CLOSED, PLACE, SETTLED};
use crate::algorithm::{History, Start};
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::fault;
use crate::policy::{Policy, Shape};
use crate::time::{LONGEST, Now};

/// The head of a list of free blocks is `count << COUNT | first`.
const COUNT: u32 = 32;
const FIRST: u64 = (1 << COUNT) - 1;

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
        let into = self.write_elsewhere(&before, from, own, edit)?;
        fault::point("key-written");
        self.set_entry(segment, slot, hash, into);
        let empty = self.arena.word(table.at + table_word::EMPTY_KEY);
        if empty.load(Acquire) == from.at {
            empty.store(into, Release);
        }
        self.retire_block(before.policy, from.at);
        Ok(into)
    }

    /// Seals a key's cells and writes what they know, with this change, into a block of `own`. Nothing leads there yet.
    pub(super) fn write_elsewhere(
        &self,
        before: &Table,
        from: KeyAt,
        own: &Table,
        edit: impl FnOnce(&mut History),
    ) -> Result<u64> {
        // Room first: what is sealed must be replaced.
        let into = self.block_to_write(own)?;
        let cells = self.seal_cells(self.cells(before, from));
        fault::point("key-sealed");
        let now = self.clock.now();
        let mut history = self.history(before, from.at, (&cells, now));
        if own.at != before.at {
            carry_over(before, own, &mut history, now);
        }
        edit(&mut history);
        history.pad(own.policy.largest());
        let into = self.write_into(own, into, from.at, (&history, now))?;
        if own.at == before.at && own.policy.is_counted() && !history.starts.is_empty() {
            // Nothing of what was taken was forgotten.
            self.arena.word(into + key_word::OWN).store(history.era, Release);
        }
        Ok(into)
    }

    /// Does a key of a table before this one count for nothing by the new policy? Its cells are sealed.
    pub(super) fn is_nothing(&self, own: &Table, at: u64, table: &Table) -> bool {
        let now = self.clock.now();
        let mut history = self.history(own, at, (&self.cells_at(own, at), now));
        carry_over(own, table, &mut history, now);
        let longest = own.policy.longest().max(table.policy.longest());
        // What is not known any more may be newer than what is.
        let newest = history.starts.last().map(|start| start.stamp).max(history.unknown);
        let is_over = newest.is_none_or(|stamp| stamp + longest <= now.floor) && history.holds.is_empty();
        is_over && !self.is_gated(own, at, now.floor)
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
        if hash == self.hash(b'k', "") && own.at == table.at {
            self.arena.word(table.at + table_word::EMPTY_KEY).store(found.at, Release);
        }
        if self.cells(&own, found).has_to_move(own.policy.longest(), self.clock.now()) {
            self.rewrite(table, hash, |_| {})?;
        }
        Ok(())
    }

    /// A block that nobody uses, with room for the origins of its starts.
    pub(super) fn block_to_write(&self, table: &Table) -> Result<u64> {
        let new = || self.allocate(self.key_words(table.policy));
        let at = self.used_block(table.policy).map_or_else(new, Ok)?;
        self.give_origins(table, at)?;
        Ok(at)
    }

    /// Makes sure that a block has room for the origins of its starts.
    pub(super) fn give_origins(&self, table: &Table, at: u64) -> Result<()> {
        let origins = self.arena.word(at + key_word::ORIGINS);
        if origins.load(Relaxed) == 0 && table.is_log {
            origins.store(self.allocate(table.ring)?, Release);
        }
        Ok(())
    }

    /// Writes a history into a block, which gets the name and the gate of `from`. Returns where they were written: in
    /// another block if that one had too many lives.
    fn write_into(&self, table: &Table, mut into: u64, from: u64, (history, now): (&History, Now)) -> Result<u64> {
        loop {
            let life = self.arena.word(into + key_word::LIFE);
            let is_new = self.arena.word(into + key_word::TABLE).load(Relaxed) == 0;
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
            if let Some(base) = self.write_history(table, into, (history, now)) {
                return Ok(self.publish(table, into, base).at);
            }
            if is_new {
                nonsense("a key with more than any block holds");
            }
            // That block is lost, the next one may do.
            into = self.block_to_write(table)?;
        }
    }

    /// What a key has beside its log: its backoff, what its jobs took, and what was counted. It is not lost with a cancelled
    /// start; if somebody writes it at this moment, that is. (Counts are written under the structure lock only.)
    fn copy_habits(&self, table: &Table, from: u64, into: u64) {
        let words = self.arena.word(from + key_word::TABLE).load(Acquire);
        let jobs = key_word::RING + table.ring;
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

    /// Makes room for twice as many leases as `crowded` has, the table in which there is none, if it still is the limit's.
    /// Of a key with a policy of its own, as its plan has.
    pub fn add_slots(&self, limit: u64, table: &Table, crowded: u64, hash: Hash) -> Result<()> {
        // There may be more room for it in the limit's table by now.
        if table.at != crowded || self.bring_key(table, hash)? {
            return Ok(());
        }
        let plan = self.crowded_plan(table, hash);
        if matches!(plan, Some(None)) {
            return Ok(());
        }
        match plan.flatten().unwrap_or(*table).policy.with_more_slots() {
            Some(policy) if plan.is_some() => self.set_plan(limit, (hash, ""), Some(policy)),
            Some(policy) => {
                self.replace(limit, policy, false)?;
                self.bring_key(&self.table(limit), hash).map(drop)
            }
            None => Err(Error::StoreFull { reason: "more recorded starts than a limit has room for".into() }),
        }
    }

    pub(super) fn retire_block(&self, policy: Policy, at: u64) {
        self.retire_to(self.block_class(policy), at);
    }

    pub(super) fn retire_to(&self, class: u64, at: u64) {
        let head = self.arena.word(FREE_KEYS + class);
        let (count, first) = free_blocks(head);
        self.arena.word(at + key_word::NEXT).store(first, Release);
        head.store((count + 1) << COUNT | at, Release);
    }

    pub(super) fn has_used_block(&self, policy: Policy) -> bool {
        self.used_blocks(policy) > 0
    }

    /// How many blocks are free.
    pub(super) fn used_blocks(&self, policy: Policy) -> u64 {
        free_blocks(self.arena.word(FREE_KEYS + self.block_class(policy))).0
    }

    pub(super) fn used_block(&self, policy: Policy) -> Option<u64> {
        self.used_in(self.block_class(policy))
    }

    pub(super) fn used_in(&self, class: u64) -> Option<u64> {
        let head = self.arena.word(FREE_KEYS + class);
        let (count, at) = free_blocks(head);
        (at != 0).then(|| {
            let next = self.arena.word(at + key_word::NEXT);
            head.store(count.saturating_sub(1) << COUNT | next.load(Acquire) & FIRST, Release);
            // No table's, but not new either.
            next.store(u64::MAX, Release);
            at
        })
    }
}

impl Home {
    /// What the sealed cells in a block know, and what the block knows of what did not fit there.
    fn history(&self, own: &Table, at: u64, (cells, now): (&Cells, Now)) -> History {
        let mut history = cells.history(own.policy.longest(), now);
        let word = |word| self.arena.word(at + word).load(Acquire);
        if let Cells::Log(_) = cells {
            let until = Some(word(key_word::UNTIL)).filter(|&until| until != 0 && until + LONGEST > now.floor);
            history.unknown = history.unknown.max(until);
            let units = word(key_word::LEFT_OUT);
            if let Some(&Start { stamp, .. }) = history.starts.first().filter(|_| units > 0) {
                let left_out = Start { stamp, units, state: SETTLED, id: u64::MAX, is_logged: true };
                history.starts.insert(0, left_out);
            }
        }
        history
    }

    /// Lets the closed cells in a block begin another life with this history. Returns its base; `None`: they had too many.
    pub(super) fn write_history(&self, own: &Table, at: u64, (history, now): (&History, Now)) -> Option<u64> {
        let cells = self.cells(own, KeyAt { at, life: CLOSED, table: own.at });
        if let Cells::Log(log) = &cells {
            let units: u64 = history.starts.iter().map(|start| start.units).sum();
            self.arena.word(at + key_word::LEFT_OUT).store(units.saturating_sub(log.most_written()), Release);
            self.arena.word(at + key_word::UNTIL).store(history.unknown.unwrap_or(0), Release);
        }
        cells.write(history, own.policy.window(), now)
    }
}

/// How many blocks there are in a list, and the first.
fn free_blocks(head: &AtomicU64) -> (u64, u64) {
    let word = head.load(Acquire);
    (word >> COUNT, word & FIRST)
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
    match (&old.policy.0, &new.policy.0) {
        (Shape::Bucket(old), Shape::Bucket(new)) => new.take_over(old, history, now),
        (_, Shape::Rate(..) | Shape::Delay(_) | Shape::EvenlySpaced(_)) if !new.policy.is_counted() => {
            // What counts by neither policy must not seem newer than it is because it does not fit.
            let longest = old.policy.longest().max(new.policy.longest());
            let past = history.starts.partition_point(|start| start.stamp + longest <= now.floor);
            let units: u64 = history.starts.iter().map(|start| start.units).sum();
            if past > 0 && units >= new.ring {
                history.unknown = history.unknown.max(Some(history.starts[past - 1].stamp));
                history.starts.drain(..past);
            }
        }
        _ => {}
    }
}
