//! The rewrite, which all rare changes of a key share: its cells are sealed, read, edited and written elsewhere.
//!
//! A key is rewritten into another block when a start is cancelled or settled, a place is exchanged, the key is
//! cleared, or its policy changes. All of this happens under the structure lock, in an order that lets the next holder
//! repeat it from the start if this process dies. The replaced block is reused, with another life for its cells.

use super::growing::Adds;
use crate::algorithm::cells::Cells;
use crate::algorithm::log::{CLOSED, SETTLED};
use crate::algorithm::{Forgotten, History, Start};
use crate::atomic::*;
use crate::damage::nonsense;
use crate::error::{Error, Result};
use crate::fault;
use crate::hash::Hash;
use crate::os::wake_all;
use crate::policy::Shape;
use crate::state::cells::block::{BlockCells, table_in};
use crate::state::cells::home::{Home, KeyAt, Table};
use crate::state::cells::layout::{At, BlockAt, LimitAt, OLDER_WORDS, TableAt, key_word, table_word};
use crate::state::cells::locked::Locked;
use crate::state::rare::carry_over::carry_over;
use crate::time::{MAX_TIME, Now, Tick};

impl Locked<'_> {
    /// Rewrites a key of the table into another block, with this edit of its history. Returns the block.
    pub fn rewrite(&self, table: &Table, hash: Hash, edit: impl FnOnce(&mut History)) -> Result<BlockAt> {
        self.rewrite_with(table, hash, Adds::Nothing, edit)
    }

    /// The same for an edit that adds units.
    pub fn rewrite_with(
        &self,
        table: &Table,
        hash: Hash,
        adds: Adds,
        edit: impl FnOnce(&mut History),
    ) -> Result<BlockAt> {
        let (_, from) = self.index(table).segment(hash).probe(table, hash).expect("the key is in its table");
        self.rewrite_as(table, hash, &self.of(table).for_key(from), adds, edit)
    }

    /// Rewrites a key into a block of `own`, which applies to the key from then on.
    pub(super) fn rewrite_as(
        &self,
        table: &Table,
        hash: Hash,
        own: &Table,
        adds: Adds,
        edit: impl FnOnce(&mut History),
    ) -> Result<BlockAt> {
        let (_, from) = self.index(table).segment(hash).probe(table, hash).expect("the key is in its table");
        // Get the space first: sealed cells must be replaced.
        let into = self.block_for_edit(&self.of(table).for_key(from), from, own, adds)?;
        self.rewrite_into(table, hash, own, into, edit)
    }

    /// The same into this block. Returns the block that was written.
    pub(super) fn rewrite_into(
        &self,
        table: &Table,
        hash: Hash,
        own: &Table,
        into: BlockAt,
        edit: impl FnOnce(&mut History),
    ) -> Result<BlockAt> {
        let segment = self.index(table).segment(hash);
        let (slot, from) = segment.probe(table, hash).expect("the key is in its table");
        let before = self.of(table).for_key(from);
        let had = self.words_of(&before, from.at);
        let into = self.write_elsewhere(&before, from, own, into, edit)?;
        self.note_ring(own, into);
        fault::point("key-written");
        segment.set_entry(self, slot, hash, into);
        let empty = self.arena.word(table.at + table_word::EMPTY_KEY);
        if empty.load(Acquire) == from.at.offset() {
            empty.store(into.offset(), Release);
        }
        self.retire_block(before.policy, from.at);
        self.take_instead(table, hash, had, self.words_of(own, into));
        Ok(into)
    }

    /// Counts words as taken, and others as returned.
    pub(super) fn take_instead(&self, table: &Table, hash: Hash, before: u64, now: u64) {
        if before != now {
            self.take_words(self.of(table).limit(), hash, now);
            self.return_words(self.of(table).limit(), hash, before);
        }
    }

    /// Seals a key's cells and writes their history, with this edit, into this unused block of `own`. The block is not published
    /// yet. Returns the one that was written.
    pub(super) fn write_elsewhere(
        &self,
        before: &Table,
        from: KeyAt,
        own: &Table,
        into: BlockAt,
        edit: impl FnOnce(&mut History),
    ) -> Result<BlockAt> {
        let (mut history, now) = self.take_history(before, from, own);
        edit(&mut history);
        pad(&mut history, own, now);
        let into = self.write_into((before, own), into, from.at, (&history, now))?;
        if own.policy.is_counted() {
            let word = |word| self.arena.word(into + word);
            // (Greater than its earlier eras and tickets.)
            let new = word(key_word::OWN).load(Relaxed).max(history.end);
            // If every taken unit was forgotten, no permit means anything any more. Under another policy permits do, and
            // places do not.
            let (first, era) = match history.starts.is_empty() && history.forgotten.is_empty() {
                true => (new, new),
                false => (history.first_era, if own.at == before.at { history.era } else { new }),
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
        (self.history_as(before, from, own, (&cells, now)), now)
    }

    /// The history in cells, as it is by the policy of `own`.
    pub(super) fn history_as(&self, before: &Table, from: KeyAt, own: &Table, (cells, now): (&Cells, Now)) -> History {
        let mut history = self.block(from.at).history(before, (cells, now));
        if own.at != before.at {
            self.carry_over(before, own, &mut history, now);
        }
        history
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
        self.mend_key(table, hash, 0, false).map(drop)
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
            let is_new = self.block(into).is_new();
            life.store(CLOSED, Release);
            let text = key_word::TEXT..key_word::TEXT + key_word::TEXT_WORDS;
            for word in [key_word::HASH, key_word::HASH + 1, key_word::GATE].into_iter().chain(text) {
                self.arena.word(into + word).store(self.arena.word(from + word).load(Acquire), Release);
            }
            self.block(into).set_table(table);
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
            into = self.block_to_write(before, table, self.block(into).ring())?;
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
        let was = At::some(table_in(from.head()).offset());
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
        let mut owed = 0;
        if let Cells::Log(log) = cells
            && log.is_small()
        {
            // It has overwritten only what had left the longest window.
            history.forget_before(now.floor.saturating_sub(own.policy.longest_window()));
            history.held = Some(log.most_written());
            let is_left_out = word(key_word::LEFT_OUT) & Forgotten::MANY != 0;
            history.left_out = if is_left_out { word(key_word::UNTIL) } else { 0 };
            let counts = word(key_word::UNTIL) > own.policy.counts_since(now);
            owed = if counts { log.owed() } else { 0 };
        }
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
            let newest = [(first & Forgotten::MANY).saturating_sub(owed), word(key_word::UNTIL)];
            let left_out = [newest].into_iter().chain(older);
            let left_out = left_out.map(|[units, stamp]| Forgotten { stamp, units, is_bounded: false });
            let left_out = left_out.filter(|some| some.units > 0 && some.stamp + MAX_TIME > now.floor);
            // What is only unknown because the state was lost comes last.
            let at = history.forgotten.partition_point(|some| some.units < Forgotten::MANY);
            history.forgotten.splice(at..at, left_out);
            for some in &mut history.forgotten {
                some.is_bounded |= !history.is_mixed && some.units < Forgotten::MANY;
            }
        }
        if owed > 0 {
            let stamp = word(key_word::UNTIL);
            history.add_unlogged(Start { stamp, units: owed, state: SETTLED, id: u64::MAX, is_logged: false });
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
            let (mut left_out, mut is_mixed) = (history.older_than(most, since, 1 + older.len() / 2), history.is_mixed);
            if let Cells::Log(log) = &cells
                && log.is_small()
            {
                // A larger ring, or none, has admitted them.
                let is_known = |part: &Forgotten| part.units < Forgotten::MANY;
                is_mixed |= left_out.iter().any(is_known) && history.held.is_none_or(|held| held > most);
                // Readers of a small ring see only one number. It is that of all units that count.
                let counts = merge_counting(&mut left_out, own.policy.counts_since(now));
                // The stricter policy of such a ring has not admitted them.
                is_mixed |= counts;
            }
            let mut left_out = left_out.into_iter();
            let mut next = || left_out.next().map_or((0, 0), |some| (some.units, some.stamp));
            let mixed = if is_mixed { key_word::IS_MIXED } else { 0 };
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
            origins @ 1.. if own.is_log => self.home.arena.words(origins + self.ring(), OLDER_WORDS),
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

/// The units of some starts.
pub(in crate::state) fn units_of(starts: &[Start]) -> u64 {
    starts.iter().map(|start| start.units).sum()
}

/// Makes forgotten starts count that a limit may need.
pub(in crate::state) fn pad(history: &mut History, own: &Table, now: Now) {
    if !own.policy.windows().is_empty() {
        history.pad(own.policy.largest(), own.policy.counts_since(now));
    }
}

/// Makes one part of those that count from later than `since`, as late as the latest. Returns whether there are any.
fn merge_counting(parts: &mut Vec<Forgotten>, since: Tick) -> bool {
    let count = parts.partition_point(|part| part.stamp > since);
    let units = parts[..count].iter().fold(0u64, |sum, part| sum.saturating_add(part.units));
    if let Some(first) = parts.first_mut().filter(|_| count > 1) {
        first.units = units.min(Forgotten::MANY);
        parts.drain(1..count);
    }
    count > 0
}
