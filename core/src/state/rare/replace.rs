//! Applies another policy to a limit, however many keys it has.
//!
//! The change is published with one word. From then on the limit has another table, with the index of the one before.
//! New keys belong to the new table. The others use the table that they belong to, as keys on plans do, until they are
//! *moved* to the new one: key by key, and then their segment of the index is rewritten for the new table. The process
//! that makes the change does this for a moment at a time, with the structure lock free in between, and returns when no
//! segment is left. If it dies, other callers of the lock continue the work. So no caller waits longer than one such
//! moment, and decisions do not wait at all. Once the change has returned, no start happens under the previous policy:
//! the cells of every key were sealed, and so was every segment to which a user of the old table could add another key.
//!
//! Forgetting all keys of a limit is also a change: to the same policy, without moving any key.
//!
//! Changes of one limit come one after another. Changes of several limits form a list, of which only the first may be
//! half published.

use super::growing::Adds;
use crate::atomic::*;
use crate::damage::bounded;
use crate::error::{Error, Result};
use crate::fault;
use crate::hash::Hash;
use crate::policy::Policy;
use crate::state::cells::heads;
use crate::state::cells::home::{Home, KeyAt, Table};
use crate::state::cells::index::Index;
use crate::state::cells::layout::{
    At, BlockAt, CHANGER, CHANGER_SEEN, CHANGES, LimitAt, TableAt, index_word, key_word, limit_word, table_word,
};
use crate::state::cells::limit::LimitCells;
use crate::state::cells::locked::Locked;
use crate::state::cells::segment::SegmentCells;
use crate::state::cells::table::TableCells;
use crate::time::{Tick, uptime};
use std::time::{Duration, Instant};

/// Each table of a limit has other tickets than those before it, so a permit is never mistaken for a later one.
const TICKETS_OF_A_TABLE: u64 = 1 << 32;

/// The place after the last hash.
const ALL: u64 = u64::MAX;

/// How long the lock is held to move keys, except for the rewrite of the segment at the end.
const MOMENT: Duration = Duration::from_millis(2);

/// After this time without a moment's work, a change is late: a tenth of a second. The process that makes it works on it
/// every few milliseconds.
const LATE: Tick = 100_000;

/// Returns whether a moment that began then is over.
fn is_over(began: Instant) -> bool {
    began.elapsed() > MOMENT || fault::takes_small_steps()
}

/// The table that a limit's table has replaced.
#[derive(Debug, Clone, Copy)]
pub(in crate::state) struct Replaced {
    table: TableAt,
    /// Whether its keys are forgotten.
    pub is_forgetting: bool,
}

impl LimitCells<'_> {
    /// The change of the limit that is in progress.
    pub(in crate::state) fn replaced(self) -> Option<Replaced> {
        let word = self.word(limit_word::REPLACED).load(Acquire);
        let is_forgetting = word & limit_word::FORGETTING != 0;
        At::some(word & !limit_word::FORGETTING).map(|table| Replaced { table, is_forgetting })
    }
}

impl Index<'_, '_> {
    /// The first hash of the segment after this hash's segment.
    pub(in crate::state) fn next_segment(self, hash: u64) -> Option<u64> {
        let root = self.root()?;
        let segment = self.home.segment_at(root, root.entry_of(hash));
        let same = |i: &u64| *i < 1 << root.depth() && self.home.segment_at(root, *i) == segment;
        let next = (root.entry_of(hash)..).take_while(same).last().map_or(0, |last| last + 1);
        (next >> root.depth() == 0).then(|| next << (64 - root.depth()))
    }
}

impl TableCells<'_, '_> {
    /// Returns whether a key with this table waits for a process that does not move it. A caller of the key does that
    /// itself then, so that no start happens by the previous policy any more.
    #[cold]
    pub(in crate::state) fn is_left_behind(self, own: &Table) -> bool {
        self.is_before(own) && self.home.changes().are_late() && !fault::planted("left to others")
    }

    /// Returns whether the change in progress forgets the keys of old segments.
    pub(in crate::state) fn is_forgetting(self) -> bool {
        self.home.limit(self.limit()).replaced().is_some_and(|replaced| replaced.is_forgetting)
    }

    /// Returns whether `own` is an earlier table of the limit, and not a plan.
    pub(super) fn is_before(self, own: &Table) -> bool {
        own.at != self.table.at && self.home.arena.word(own.at + table_word::LIMIT).load(Acquire) != 0
    }
}

/// The changes of policies in progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Changes<'h>(&'h Home);

impl Home {
    pub(in crate::state) fn changes(&self) -> Changes<'_> {
        Changes(self)
    }
}

impl Changes<'_> {
    /// Returns whether keys of any limit are still to be moved to its table.
    pub(in crate::state) fn are_some(self) -> bool {
        self.0.arena.word(CHANGES).load(Acquire) != 0
    }

    /// Returns whether some are in progress and no process completes them.
    pub(in crate::state) fn are_abandoned(self) -> bool {
        let changer = || self.0.arena.word(CHANGER).load(Acquire);
        self.are_some() && (self.are_late() || changer().checked_sub(1).is_none_or(|member| self.0.is_dead(member)))
    }

    /// Returns whether no process has worked on the changes in progress for a while: it has died or is stopped.
    pub(in crate::state) fn are_late(self) -> bool {
        uptime().saturating_sub(self.0.arena.word(CHANGER_SEEN).load(Acquire)) > LATE
    }

    /// Records that this process completes the changes in progress, or no longer does.
    pub(in crate::state) fn see_to(self, member: u64, sees: bool) {
        let (before, now) = if sees { (self.0.arena.word(CHANGER).load(Acquire), member + 1) } else { (member + 1, 0) };
        if self.0.arena.word(CHANGER).compare_exchange(before, now, AcqRel, Relaxed).is_ok() {
            self.0.arena.word(CHANGER_SEEN).store(if sees { uptime() } else { 0 }, Release);
        }
    }
}

impl Locked<'_> {
    /// Applies a policy, if another one applies now.
    pub fn apply_policy(&self, limit: LimitAt, policy: Policy) -> Result<()> {
        let before = self.limit(limit).table().policy;
        if before == policy.after(before) { Ok(()) } else { self.replace(limit, policy, false) }
    }

    /// Replaces a limit's policy, or keeps it and forgets all keys. [`Locked::continue_changes`] does the rest.
    pub fn replace(&self, limit: LimitAt, policy: Policy, is_forgetting: bool) -> Result<()> {
        self.finish_change(limit)?;
        let old = self.limit(limit).table();
        let policy = policy.after(old.policy);
        let first = self.arena.word(old.at + table_word::FIRST_TICKET).load(Relaxed) + TICKETS_OF_A_TABLE;
        let (born, lost, cleared) = match is_forgetting {
            true => (0, [0, 0], [self.clock.now().ceil]),
            false => (old.born, self.get(old.at + table_word::LOST), self.get(old.at + table_word::CLEARED)),
        };
        let new = self.write_table(limit, policy, (born, first))?;
        self.set(new.at + table_word::LOST, lost);
        self.set(new.at + table_word::CLEARED, cleared);
        let root = self.index(&old).root().expect("a table in use has an index");
        self.arena.word(new.at + table_word::INDEX).store(root.again().0, Release);
        let had = self.words_of(&old, At::new(self.of(&old).empty_key().load(Acquire)));
        let empty = self.write_empty_key(&old, &new, is_forgetting)?;
        self.arena.word(new.at + table_word::EMPTY_KEY).store(empty.offset(), Release);
        // In this order, so that a process that dies leaves a change that is either not published or in the list.
        self.drop_finished();
        let first = self.arena.word(CHANGES);
        self.set(limit + limit_word::NEXT_CHANGE, [first.load(Acquire)]);
        self.set(limit + limit_word::LEFT_FROM, [0]);
        first.store(limit.offset(), Release);
        let forgetting = if is_forgetting { limit_word::FORGETTING } else { 0 };
        self.limit(limit).word(limit_word::REPLACED).store(old.at.offset() | forgetting, Release);
        fault::point("table-written");
        // The commit may have taken long.
        self.arena.word(CHANGER_SEEN).store(uptime(), Release);
        self.limit(limit).word(limit_word::TABLE).store(new.at.offset(), Release);
        fault::point("table-published");
        if policy != old.policy.after(policy) {
            self.limit(limit).policy_changed();
        }
        // The block of the key "".
        self.take_instead(&new, self.hash(b'k', ""), had, self.words_of(&new, empty));
        self.complete();
        Ok(())
    }

    /// Writes the key "" for a table that is not published yet.
    fn write_empty_key(&self, old: &Table, new: &Table, is_forgetting: bool) -> Result<BlockAt> {
        if is_forgetting {
            let empty = self.fresh_empty_key(new)?;
            self.seal_cells(self.block(At::new(self.of(old).empty_key().load(Acquire))).cells(old));
            return Ok(empty);
        }
        let from = BlockAt::new(self.of(old).empty_key().load(Acquire));
        let life = self.block(from).word(key_word::LIFE).load(Acquire);
        let from = KeyAt { at: from, life, table: old.at };
        let into = self.block_for_edit(old, from, new, Adds::Nothing)?;
        self.note_ring(new, into);
        self.write_elsewhere(old, from, new, into, |_| {})
    }

    /// Continues a change in which a process died. For every holder of the structure lock.
    pub(in crate::state) fn take_over(&self) {
        // If it fails, the next holder tries again. A caller that needs the change learns why.
        if self.changes().are_abandoned() && !self.continue_changes().is_ok_and(|is_done| is_done) {
            // Callers need not wait for the rest.
            self.arena.word(CHANGER_SEEN).store(0, Release);
        }
    }

    /// Completes the publication of the first change in the list, so that nothing leads to the previous table any more.
    /// Every holder of the structure lock does this before anything else.
    pub(in crate::state) fn complete(&self) {
        let Some(limit) = self.leads_to(CHANGES) else { return };
        let Some(replaced) = self.limit(limit).replaced() else { return };
        let table = self.limit(limit).table();
        if table.at == replaced.table {
            // It was not published: nothing has changed.
            self.limit(limit).word(limit_word::REPLACED).store(0, Release);
            return;
        }
        // Users of that table look for another one from here on.
        self.arena.word(replaced.table + table_word::INDEX).store(0, Release);
        self.arena.word(replaced.table + table_word::EMPTY_KEY).store(0, Release);
        let hash = self.hash(b'k', "");
        let segment = self.index(&table).segment(hash);
        if let Ok((slot, found)) = segment.probe(&table, hash)
            && found.table != table.at
        {
            segment.set_entry(self, slot, hash, At::new(self.of(&table).empty_key().load(Acquire)));
            self.retire_block(self.table_at(found.table).policy, found.at);
        }
    }

    /// Removes completed changes from the list.
    fn drop_finished(&self) {
        let first = self.arena.word(CHANGES);
        let next = |_: &u64| {
            let limit = LimitAt::some(first.load(Acquire)).filter(|limit| self.limit(*limit).replaced().is_none())?;
            Some(self.get::<1>(limit + limit_word::NEXT_CHANGE)[0])
        };
        let done = std::iter::successors(next(&0), |after| {
            first.store(*after, Release);
            next(after)
        });
        bounded(done, self.arena.most()).for_each(drop);
    }

    /// Ensures that no change of a limit is in progress. If that takes longer than a moment, it fails; the caller must
    /// release the lock and try again.
    pub(in crate::state) fn finish_change(&self, limit: LimitAt) -> Result<()> {
        if self.limit(limit).replaced().is_none() || self.continue_changes()? || self.limit(limit).replaced().is_none()
        {
            return Ok(());
        }
        Err(Error::busy("moving the keys of a limit to its policy"))
    }

    /// Continues the changes in progress, for a moment. Returns whether all are complete.
    pub(in crate::state) fn continue_changes(&self) -> Result<bool> {
        let began = Instant::now();
        loop {
            self.drop_finished();
            let Some(limit) = self.leads_to(CHANGES) else { return Ok(true) };
            self.complete();
            if let Some(replaced) = self.limit(limit).replaced() {
                if !self.move_keys(limit, replaced, began)? {
                    return Ok(false);
                }
                fault::point("keys-moved");
                self.limit(limit).word(limit_word::LEFT_FROM).store(0, Release);
                self.limit(limit).word(limit_word::REPLACED).store(0, Release);
            }
        }
    }

    /// Moves keys of a limit to its table, for a moment. Returns whether all are there.
    fn move_keys(&self, limit: LimitAt, replaced: Replaced, began: Instant) -> Result<bool> {
        let (table, left_from) = (self.limit(limit).table(), self.limit(limit).word(limit_word::LEFT_FROM));
        loop {
            if fault::planted("left behind") {
                return Ok(true);
            }
            let hash = left_from.load(Acquire);
            let root = self.index(&table).root().expect("a table in use has an index");
            let segment = self.segment_at(root, root.entry_of(hash));
            if segment.is_old(&table) {
                if !replaced.is_forgetting && !self.move_keys_of(&table, segment, began)? {
                    return Ok(false);
                }
                self.renew_segment(&table, hash, false)?;
            }
            match self.index(&table).next_segment(hash) {
                Some(next) => left_from.store(next, Release),
                None => return Ok(true),
            }
            if is_over(began) {
                return Ok(false);
            }
        }
    }

    /// Moves the used keys of a segment, for a moment. Returns whether all are there.
    fn move_keys_of(&self, table: &Table, segment: SegmentCells, began: Instant) -> Result<bool> {
        for (n, at) in segment.entries().enumerate() {
            let own = self.block(at).table(table);
            if !self.of(table).is_before(&own) || self.block(at).is_idle(&own) {
                continue;
            }
            self.move_to(table, (self.block(at).hash(), at))?;
            if (n % 16 == 0 || fault::takes_small_steps()) && is_over(began) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Brings a key to the limit's table, as the change in progress will: moves it there, or forgets it. Returns whether
    /// it did. An operation that gives the key another table comes after that change, whatever the key's table was.
    pub(in crate::state) fn move_key(&self, table: &Table, hash: Hash) -> Result<bool> {
        let segment = self.index(table).segment(hash);
        if segment.is_old(table) && self.of(table).is_forgetting() {
            // All of the segment's keys are forgotten, those on plans too.
            return self.renew_segment(table, hash.0[0], false).map(|_| true);
        }
        let found = segment.probe(table, hash).ok();
        if !found.is_some_and(|(_, found)| self.of(table).is_before(&self.of(table).for_key(found))) {
            return Ok(false);
        }
        let at = found.map(|(_, found)| found.at).expect("it was found");
        self.move_to(table, (hash, at)).map(|_| true)
    }

    /// Moves a key to the limit's table. Space was made before the change was published, but processes may have died with
    /// it. If there is none, the key waits for it: it starts nothing by the previous policy.
    pub(super) fn move_to(&self, table: &Table, (hash, at): (Hash, BlockAt)) -> Result<BlockAt> {
        let moved = self.rewrite_as(table, hash, table, Adds::Nothing, |_| {});
        if moved.is_err() && !fault::planted("left behind") {
            self.seal_cells(self.block(at).cells(&self.block(at).table(table)));
        }
        moved
    }

    /// Makes space for a replacing policy, so that applying it cannot fail, or for a new limit.
    pub fn make_space_for(&self, limit: Option<LimitAt>, policy: Policy) -> Result<()> {
        let (block, segment) = (self.most_words(policy) + 16, |slots| index_word::SLOTS + 2 * slots + 16);
        let Some(limit) = limit else {
            let tenants = if policy.is_shared() { heads::WORDS } else { 0 };
            let limit = limit_word::WORDS + table_word::WORDS + tenants;
            return self.grow(limit + 2 * block + segment(index_word::FIRST_CAPACITY));
        };
        let table = self.limit(limit).table();
        let depth = self.index(&table).root().map_or(0, |root| root.depth());
        let count = |segment: SegmentCells| segment.word(index_word::COUNT).load(Relaxed);
        let index = || {
            // A full one is rewritten in two parts, of which the next one can use the space of one.
            let full = self.index(&table).segments().filter(|of| count(*of) >= of.capacity() / 4 * 3);
            let parts: u64 = full.map(|of| segment(of.capacity())).sum();
            parts + 2 * segment(index_word::MAX_CAPACITY) + segment(1 << depth)
        };
        // The block of a moved key serves the next key, if it is as large: see `block_to_write`. Where rings grow, keys keep
        // their sizes, of which each needs a block for the first key.
        let has_rings = self.grows(policy) && self.grows(table.policy);
        let is_same = self.block_class(policy) == self.block_class(table.policy);
        let needed = || {
            let keys = || match is_same {
                true => 0,
                // The others are tenants for which a share is kept. They have no cells.
                false if policy.is_shared() => {
                    self.index(&table).blocks().filter(|at| !self.block(*at).is_stub()).count() as u64
                }
                false => self.index(&table).segments().map(count).sum(),
            };
            let blocks = match has_rings {
                true => 3 * (self.all_words(policy, self.first_ring(policy)) + 16),
                false => (keys().saturating_sub(self.used_blocks(policy)) + 3) * block,
            };
            blocks + index() + table_word::WORDS
        };
        let has_made = |made: Result<()>| match made {
            Ok(()) if has_rings => self.get_spare_blocks(limit, policy),
            made => made,
        };
        // A longer window counts starts of keys that are idle now. They are kept if the store can hold them.
        if policy.longest() > table.policy.longest() {
            match self.grow_some(needed()) {
                Err(Error::StoreFull { .. }) => {}
                made => return has_made(made),
            }
        }
        // No change of this limit is in progress.
        let swept_to = self.limit(limit).word(limit_word::LEFT_FROM);
        if swept_to.load(Acquire) != ALL && !self.arena.has_space(needed()) {
            // Idle keys need no space.
            self.forget_idle_keys(&table, swept_to)?;
        }
        let made = self.grow_some(needed());
        if !matches!(made, Err(Error::StoreTimeout { .. })) {
            swept_to.store(0, Release);
        }
        has_made(made)
    }

    /// Forgets the idle keys of a limit from a hash on, a moment's at a time: if some are left, it fails, and the caller
    /// must release the lock and try again.
    fn forget_idle_keys(&self, table: &Table, from: &AtomicU64) -> Result<()> {
        let began = Instant::now();
        loop {
            let (hash, root) = (from.load(Acquire), self.index(table).root().expect("a table in use has an index"));
            match self.sweep_segment(table, root, hash) {
                // The keys of this segment stay.
                Err(Error::StoreFull { .. }) => {}
                swept => drop(swept?),
            }
            from.store(self.index(table).next_segment(hash).unwrap_or(ALL), Release);
            if from.load(Acquire) == ALL {
                return Ok(());
            }
            if is_over(began) {
                return Err(Error::busy("forgetting the idle keys of a limit"));
            }
        }
    }
}
