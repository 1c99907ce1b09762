//! The rewrite, which all rare changes of a key share: its cells are sealed, read, edited and written elsewhere.
//!
//! A key is rewritten into another block when a start is cancelled or settled, a place is exchanged, the key is
//! cleared, or its policy changes. All of this happens under the structure lock, in an order that lets the next holder
//! repeat it from the start if this process dies. The replaced block is reused, with another life for its cells.

use crate::algorithm::cells::Cells;
use crate::algorithm::log::CLOSED;
use crate::algorithm::{Forgotten, History};
use crate::atomic::*;
use crate::damage::nonsense;
use crate::error::{Error, Result};
use crate::fault;
use crate::hash::Hash;
use crate::os::wake_all;
use crate::policy::{Policy, Shape};
use crate::state::cells::block::BlockCells;
use crate::state::cells::home::{Home, KeyAt, Table};
use crate::state::cells::layout::{At, BlockAt, FREE_KEYS, LimitAt, OLDER_WORDS, TableAt, key_word, table_word};
use crate::state::cells::locked::Locked;
use crate::state::cells::share::COUNT;
use crate::state::rare::carry_over::carry_over;
use crate::time::{MAX_TIME, Now};

const FIRST: u64 = (1 << COUNT) - 1;

impl Locked<'_> {
    /// Rewrites a key of the table into another block, with this edit of its history. Returns the block.
    pub fn rewrite(&self, table: &Table, hash: Hash, edit: impl FnOnce(&mut History)) -> Result<BlockAt> {
        let (_, from) = self.index(table).segment(hash).probe(table, hash).expect("the key is in its table");
        self.rewrite_as(table, hash, &self.of(table).for_key(from), edit)
    }

    /// Rewrites a key into a block of `own`, which applies to the key from then on.
    pub(super) fn rewrite_as(
        &self,
        table: &Table,
        hash: Hash,
        own: &Table,
        edit: impl FnOnce(&mut History),
    ) -> Result<BlockAt> {
        let segment = self.index(table).segment(hash);
        let (slot, from) = segment.probe(table, hash).expect("the key is in its table");
        let before = self.of(table).for_key(from);
        let into = self.write_elsewhere(&before, from, own, edit)?;
        fault::point("key-written");
        segment.set_entry(self, slot, hash, into);
        let empty = self.arena.word(table.at + table_word::EMPTY_KEY);
        if empty.load(Acquire) == from.at.offset() {
            empty.store(into.offset(), Release);
        }
        self.retire_block(before.policy, from.at);
        self.take_instead(table, hash, before.policy, own.policy);
        Ok(into)
    }

    /// Counts a block of one policy as taken, and one of another as returned.
    pub(super) fn take_instead(&self, table: &Table, hash: Hash, before: Policy, own: Policy) {
        let (limit, words) = (self.of(table).limit(), [own, before].map(|policy| self.block_words(policy)));
        if words[0] != words[1] {
            self.take_words(limit, hash, words[0]);
            self.return_words(limit, hash, words[1]);
        }
    }

    /// Seals a key's cells and writes their history, with this edit, into a block of `own`. The block is not published
    /// yet.
    pub(super) fn write_elsewhere(
        &self,
        before: &Table,
        from: KeyAt,
        own: &Table,
        edit: impl FnOnce(&mut History),
    ) -> Result<BlockAt> {
        // Get the space first: sealed cells must be replaced.
        let into = self.block_to_write(before, own)?;
        let (mut history, now) = self.take_history(before, from, own);
        edit(&mut history);
        if !own.policy.windows().is_empty() {
            history.pad(own.policy.largest());
        }
        let into = self.write_into((before, own), into, from.at, (&history, now))?;
        if own.policy.is_counted() {
            let word = |word| self.arena.word(into + word);
            let new = word(key_word::OWN).load(Relaxed);
            // If every taken unit was forgotten, no permit means anything any more. Under another policy permits do, and
            // places do not.
            let (first, era) = match history.starts.is_empty() && history.forgotten.is_empty() {
                true => (new, new),
                false if own.at == before.at => (history.first_era, history.era),
                false => (history.first_era, new.max(history.end)),
            };
            word(key_word::FIRST_ERA).store(first, Release);
            word(key_word::OWN).store(era, Release);
        }
        Ok(into)
    }

    /// Seals a key's cells. Returns their history, as it is by the policy of `own`.
    pub(in crate::state) fn take_history(&self, before: &Table, from: KeyAt, own: &Table) -> (History, Now) {
        let cells = self.seal_cells(self.cells(before, from));
        fault::point("key-sealed");
        let now = self.clock.now();
        let mut history = self.block(from.at).history(before, (&cells, now));
        if own.at != before.at {
            self.carry_over(before, own, &mut history, now);
        }
        (history, now)
    }

    /// Wakes callers that wait for a completion, since they must now look elsewhere.
    pub(super) fn seal_cells<'a>(&self, cells: Cells<'a>) -> Cells<'a> {
        let cells = cells.seal();
        if let Cells::Leases(leases) = &cells {
            wake_all(leases.bell);
        }
        cells
    }

    /// Completes an interrupted rewrite of a key, if there is one.
    pub fn repair_key(&self, table: &Table, hash: Hash) -> Result<()> {
        let segment = self.index(table).segment(hash);
        let Ok((slot, found)) = segment.probe(table, hash) else { return Ok(()) };
        if self.block(found.at).is_stub() {
            return self.wake_key(&self.of(table).for_key(found), (segment, slot), found.at, hash, &[]);
        }
        let own = self.of(table).for_key(found);
        if hash == self.hash(b'k', "") && own.at == table.at {
            self.arena.word(table.at + table_word::EMPTY_KEY).store(found.at.offset(), Release);
        }
        if self.cells(&own, found).has_to_move(own.policy.longest(), self.clock.now()) {
            self.rewrite(table, hash, |_| {})?;
        }
        Ok(())
    }

    /// An unused block with space for the origins of its starts. If all keys of a limit that has its share are moved to
    /// another table, they get none, because others need what is left: the starts count then, but cannot be taken back.
    /// (The key "" is written before the table is the limit's.)
    fn block_to_write(&self, before: &Table, table: &Table) -> Result<BlockAt> {
        let at = self.unused_block(table)?;
        let origins = self.block(at).word(key_word::ORIGINS);
        let is_limits = || self.limit(self.of(table).limit()).table_at() == table.at;
        let is_full = || is_limits() && self.of(table).is_before(before) && self.of(table).spare_blocks() == 0;
        if origins.load(Relaxed) == 0 && table.is_log && !is_full() {
            origins.store(self.allocate::<()>(table.ring + OLDER_WORDS)?.offset(), Release);
        }
        Ok(at)
    }

    pub(in crate::state) fn unused_block(&self, table: &Table) -> Result<BlockAt> {
        self.used_block(table.policy).map_or_else(|| self.allocate(self.key_words(table.policy)), Ok)
    }

    /// Writes a history into a block, which gets the name and gate of `from`. Returns the block that was written:
    /// another one, if `into` had used up its lives.
    fn write_into(
        &self,
        (before, table): (&Table, &Table),
        mut into: BlockAt,
        from: BlockAt,
        (history, now): (&History, Now),
    ) -> Result<BlockAt> {
        loop {
            let life = self.block(into).word(key_word::LIFE);
            let is_new = self.block(into).word(key_word::TABLE).load(Relaxed) == 0;
            life.store(CLOSED, Release);
            let text = key_word::TEXT..key_word::TEXT + key_word::TEXT_WORDS;
            for word in [key_word::HASH, key_word::HASH + 1, key_word::GATE].into_iter().chain(text) {
                self.arena.word(into + word).store(self.arena.word(from + word).load(Acquire), Release);
            }
            self.block(into).word(key_word::TABLE).store(table.at.offset(), Release);
            self.block(into).word(key_word::LISTED).store(0, Release);
            self.block(into).copy_habits(self, table, self.block(from));
            if table.policy.is_counted() {
                self.block(into).word(key_word::OWN).store(self.new_number(), Release);
            }
            if let Some(base) = self.block(into).write_history(table, (history, now)) {
                return Ok(self.block(into).publish(table, base).at);
            }
            if is_new {
                nonsense("a key with more starts than a block can hold");
            }
            // That block is lost; try the next one.
            into = self.block_to_write(before, table)?;
        }
    }

    /// Doubles the number of lease slots, if `crowded`, the table without a free slot, is still the limit's. For a key
    /// with its own policy, doubles those of its plan.
    pub fn add_slots(&self, limit: LimitAt, table: &Table, crowded: TableAt, hash: Hash) -> Result<()> {
        // The limit's table may have more slots by now.
        if table.at != crowded || self.move_key(table, hash)? {
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
                self.move_key(&self.limit(limit).table(), hash).map(drop)
            }
            None => Err(Error::StoreFull { reason: "more recorded starts than a limit can hold".into() }),
        }
    }

    pub(in crate::state) fn retire_block(&self, policy: Policy, at: BlockAt) {
        self.retire_to(self.block_class(policy), at);
    }

    pub(super) fn retire_to(&self, class: u64, at: BlockAt) {
        let head = self.arena.word(FREE_KEYS + class);
        let (count, first) = free_blocks(head);
        self.block(at).word(key_word::NEXT).store(first.map_or(0, At::offset), Release);
        head.store((count + 1) << COUNT | at.offset(), Release);
    }

    pub(super) fn has_used_block(&self, policy: Policy) -> bool {
        self.used_blocks(policy) > 0
    }

    /// The number of free blocks.
    pub(super) fn used_blocks(&self, policy: Policy) -> u64 {
        free_blocks(self.arena.word(FREE_KEYS + self.block_class(policy))).0
    }

    pub(super) fn used_block(&self, policy: Policy) -> Option<BlockAt> {
        self.used_in(self.block_class(policy))
    }

    pub(super) fn used_in(&self, class: u64) -> Option<BlockAt> {
        let head = self.arena.word(FREE_KEYS + class);
        let (count, at) = free_blocks(head);
        at.inspect(|at| {
            let next = self.arena.word(*at + key_word::NEXT);
            head.store(count.saturating_sub(1) << COUNT | next.load(Acquire) & FIRST, Release);
            // It belongs to no table, but it is not new either.
            next.store(u64::MAX, Release);
        })
    }
}

impl<'h> BlockCells<'h> {
    /// Resets a key's backoff and what is known of its jobs.
    pub fn forget_habits(self, _: &Locked) {
        for word in [key_word::BACKOFF, key_word::SPACING, key_word::JOBS] {
            self.word(word).store(0, Release);
        }
    }

    /// Copies what a key has besides its log: its backoff, the durations of its jobs, and its counters. A cancelled
    /// start does not lose them, but a concurrent write may be lost. (Counters are written only under the structure
    /// lock.)
    pub(super) fn copy_habits(self, _: &Locked, table: &Table, from: BlockCells) {
        let was = At::some(from.word(key_word::TABLE).load(Acquire));
        let jobs = key_word::RING + table.ring;
        let same = was.is_some_and(|was| self.home.table_at(was).policy == table.policy);
        let jobs = if same { jobs..jobs + table.policy.jobs() } else { 0..0 };
        for word in [key_word::BACKOFF]
            .into_iter()
            .chain(key_word::COUNTS)
            .chain(if same { key_word::SPACING..key_word::JOBS + 1 } else { 0..0 })
            .chain(jobs)
        {
            self.word(word).store(from.word(word).load(Acquire), Release);
        }
        if !same {
            self.word(key_word::SPACING).store(0, Release);
            self.word(key_word::JOBS).store(0, Release);
        }
    }

    /// Returns whether a key of an earlier table has no effect under the new policy. Its cells are sealed.
    pub(super) fn is_nothing(self, own: &Table, table: &Table) -> bool {
        let now = self.home.clock.now();
        let mut history = self.history(own, (&self.cells(own), now));
        self.home.carry_over(own, table, &mut history, now);
        let longest = own.policy.longest().max(table.policy.longest());
        // Forgotten starts may be newer than the known ones.
        let stamps = history.starts.last().map(|start| start.stamp).into_iter();
        let newest = stamps.chain(history.forgotten.iter().map(|some| some.stamp)).max();
        let is_over = newest.is_none_or(|stamp| stamp + longest <= now.floor) && history.holds.is_empty();
        is_over && !self.is_gated(own, now.floor)
    }

    /// The history in the sealed cells of a block, with what did not fit there.
    pub(super) fn history(self, own: &Table, (cells, now): (&Cells, Now)) -> History {
        let mut history = cells.history(own.policy.longest(), now);
        let word = |word| self.word(word).load(Acquire);
        if own.policy.is_counted() {
            history.first_era = word(key_word::FIRST_ERA);
            history.end = history.era + 1;
        }
        if let Cells::Meter(_) | Cells::Counter(_) = cells {
            (history.former, history.changed) = (word(key_word::FORMER), word(key_word::CHANGED));
        }
        if let (Cells::Meter(_), Some(table)) = (cells, At::some(history.former))
            && let Shape::Bucket(before) = self.home.table_at(table).policy.0
        {
            history.rest.before = Some(before);
        }
        if let Cells::Log(_) | Cells::Slices(_) = cells {
            let first = word(key_word::LEFT_OUT);
            history.is_mixed = first & key_word::IS_MIXED != 0;
            let mut older = self.older_words(own).chunks_exact(2).map(|words| [0, 1].map(|i| words[i].load(Acquire)));
            if let Cells::Log(_) = cells {
                [history.first_era, history.era] = older.next().unwrap_or_default();
            }
            let left_out = [[first & !key_word::IS_MIXED, word(key_word::UNTIL)]].into_iter().chain(older);
            let left_out = left_out.map(|[units, stamp]| Forgotten { stamp, units, is_bounded: false });
            let left_out = left_out.filter(|some| some.units > 0 && some.stamp + MAX_TIME > now.floor);
            // What is only unknown because the state was lost comes last.
            let at = history.forgotten.partition_point(|some| some.units < Forgotten::MANY);
            history.forgotten.splice(at..at, left_out);
            for some in &mut history.forgotten {
                some.is_bounded |= !history.is_mixed && some.units < Forgotten::MANY;
            }
        }
        history
    }

    /// Starts another life of the closed cells in a block, with this history. Returns its base, or `None` if the lives
    /// are used up.
    pub(in crate::state) fn write_history(self, own: &Table, (history, now): (&History, Now)) -> Option<u64> {
        let cells = self.home.cells(own, KeyAt { at: self.at, life: CLOSED, table: own.at });
        let (most, since) = match &cells {
            Cells::Log(log) => (log.most_written(), 0),
            _ => (u64::MAX, now.floor.saturating_sub(own.policy.longest())),
        };
        if let Cells::Log(_) | Cells::Slices(_) = cells {
            let mut older = self.older_words(own);
            if let Some((eras, others)) = older.split_first_chunk::<2>() {
                eras[0].store(history.first_era, Release);
                eras[1].store(history.era, Release);
                older = others;
            }
            let mut left_out = history.older_than(most, since, 1 + older.len() / 2).into_iter();
            let mut next = || left_out.next().map_or((0, 0), |some| (some.units, some.stamp));
            let mixed = if history.is_mixed { key_word::IS_MIXED } else { 0 };
            let (units, stamp) = next();
            self.word(key_word::LEFT_OUT).store(units | mixed, Release);
            self.word(key_word::UNTIL).store(stamp, Release);
            for words in older.chunks_exact(2) {
                let (units, stamp) = next();
                words[0].store(units, Release);
                words[1].store(stamp, Release);
            }
        }
        if let Cells::Meter(_) | Cells::Counter(_) = cells {
            let is_empty = history.starts.is_empty() && history.forgotten.is_empty();
            let (former, changed) = if is_empty { (0, 0) } else { (history.former, history.changed) };
            self.word(key_word::FORMER).store(former, Release);
            self.word(key_word::CHANGED).store(changed, Release);
        }
        cells.write(history, own.policy.window(), now)
    }

    /// Where a log keeps what was left out of it, in addition to two words of the key: behind its origins.
    fn older_words(self, own: &Table) -> &'h [AtomicU64] {
        match self.word(key_word::ORIGINS).load(Relaxed) {
            origins @ 1.. if own.is_log => self.home.arena.words(origins + own.ring, OLDER_WORDS),
            _ => &[],
        }
    }
}

impl Home {
    /// Converts a key's starts to another policy.
    fn carry_over(&self, old: &Table, new: &Table, history: &mut History, now: Now) {
        let frame = |window, is_smooth| self.frame(window, is_smooth);
        if carry_over(&old.policy, &new.policy, frame, history, now) {
            history.former = old.at.offset();
        }
    }
}

/// The number of blocks in a list, and the first.
fn free_blocks(head: &AtomicU64) -> (u64, Option<BlockAt>) {
    let word = head.load(Acquire);
    (word >> COUNT, At::some(word & FIRST))
}
