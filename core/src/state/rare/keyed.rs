//! Keys with their own policies.
//!
//! Such a key is found in its limit's index like any other, but its block names another table: a *plan*, which has a
//! policy and no index of its own. A decision on the key uses the plan's policy. Other keys cost what they did, and no
//! lookup is needed to know that a key has no plan. Keys with equal policies share a plan.
//!
//! While such a key is idle, it has no cells. A *stub* keeps its slot in the index and names its plan. A start on the
//! key finds the stub closed, as if it were being rewritten, and creates cells for it under the structure lock.
//!
//! While a limit's policy changes, keys that have not been moved to its new table use the previous one in the same way:
//! see `replace.rs`.
//!
//! The database decides which key is on which plan (`policies.rs`). The lane follows, in steps that can be repeated
//! from the start.

use super::growing::Adds;
use super::rewrite::units_of;
use super::space::{MAX_TURNS, Need, Search};
use crate::algorithm::Start;
use crate::algorithm::leases::SLOT_WORDS;
use crate::algorithm::log::CLOSED;
use crate::atomic::*;
use crate::damage::{bounded, nonsense};
use crate::error::Result;
use crate::hash::{Hash, sum};
use crate::policy::Policy;
use crate::state::cells::block::BlockCells;
use crate::state::cells::home::{KeyAt, Table};
use crate::state::cells::index::{Index, Root};
use crate::state::cells::layout::{BlockAt, LimitAt, STUBS, TableAt, index_word, key_word, limit_word, table_word};
use crate::state::cells::limit::LimitCells;
use crate::state::cells::locked::Locked;
use crate::state::cells::segment::{SegmentCells, entry, is_empty};
use crate::state::cells::share::STUB_WORDS;
use crate::state::cells::table::TableCells;
use crate::state::files::arena::{ALLOCATED, HEADER_WORDS};
use crate::time::Tick;

/// The number of chains of a limit's plans, by policy.
const CHAINS: u64 = 64;

/// The origin of unused keys: since when they count, and what a ledger missed of each, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::state) struct Origin {
    pub born: Tick,
    pub lost: [u64; 2],
}

impl LimitCells<'_> {
    /// Returns whether the limit has, or had, keys with their own policies.
    #[inline(always)]
    pub fn has_plans(self) -> bool {
        self.word(limit_word::PLANS).load(Acquire) != 0
    }

    /// The table that applies to a key with cells. For the holder of the structure lock.
    pub(in crate::state) fn table_in_use(self, hash: Hash) -> Option<Table> {
        let (home, table) = (self.home, self.table());
        let (_, found) = home.index(&table).segment(hash).probe(&table, hash).ok()?;
        (!home.block(found.at).is_stub()).then(|| home.of(&table).for_key(found))
    }
}

impl Index<'_, '_> {
    /// The block or stub of a key. For the holder of the structure lock.
    pub(in crate::state) fn block(self, hash: Hash) -> Option<BlockAt> {
        self.segment(hash).probe(self.table, hash).ok().map(|(_, found)| found.at)
    }

    /// The plan of a key that is on one and has no cells.
    pub(in crate::state) fn plan_of_idle(self, hash: Hash) -> Option<Table> {
        let root = self.root()?;
        let (_, found) = self.home.segment_at(root, root.entry_of(hash.0[0])).probe(self.table, hash).ok()?;
        // The block may belong to another index by now.
        (self.root() == Some(root) && self.home.block(found.at).is_stub() && found.table != self.table.at)
            .then(|| self.home.table_at(found.table))
    }

    /// The keys of a table that are on plans, with their plans.
    pub(in crate::state) fn keys_on_plans(self) -> impl Iterator<Item = (Table, BlockAt)> {
        let all = self.blocks().map(|at| (self.home.block(at).table(self.table), at));
        all.filter(|(own, _)| own.at != self.table.at && !self.home.of(self.table).is_before(own))
    }
}

impl TableCells<'_, '_> {
    /// Returns whether this is a plan of the table's limit. Called when a block names another table, because that word
    /// may be the next block in a list of free ones.
    #[cold]
    pub(in crate::state) fn has_plan(self, at: TableAt) -> bool {
        let is_inside = at.offset() >= HEADER_WORDS
            && at.offset().saturating_add(table_word::WORDS) <= self.home.arena.word(ALLOCATED).load(Acquire);
        // No block of a key has the address of a limit in this word.
        is_inside
            && self.home.arena.word(at + table_word::OWNER).load(Acquire)
                == self.home.arena.word(self.table.at + table_word::LIMIT).load(Relaxed)
    }

    /// The table that applies to a key of this table.
    pub(in crate::state) fn for_key(self, key: KeyAt) -> Table {
        if key.table == self.table.at { *self.table } else { self.home.table_at(key.table) }
    }

    pub(in crate::state) fn origin(self) -> Origin {
        Origin { born: self.table.born, lost: self.home.get(self.table.at + table_word::LOST) }
    }
}

impl BlockCells<'_> {
    /// Copies the text and counts of a key.
    pub(super) fn copy_identity(self, _: &Locked, from: BlockCells, with_counts: bool) {
        let text = key_word::TEXT..key_word::TEXT + key_word::TEXT_WORDS;
        for word in text.chain(key_word::COUNTS.into_iter().filter(|_| with_counts)) {
            self.word(word).store(from.word(word).load(Acquire), Release);
        }
    }
}

impl Locked<'_> {
    /// Makes space for moving a key to another plan, so that the move cannot fail.
    pub fn make_space_for_key(&self, limit: Option<LimitAt>, policy: Option<Policy>) -> Result<()> {
        let Some(limit) = limit else { return Ok(()) };
        let table = self.limit(limit).table();
        let policy = policy.unwrap_or(table.policy);
        let plan = CHAINS + table_word::WORDS + key_word::RING;
        // Its segment may have to be rewritten in two parts, together with a directory.
        let depth = self.index(&table).root().map_or(0, Root::depth);
        let segments = 2 * (index_word::SLOTS + 2 * index_word::MAX_CAPACITY) + index_word::SLOTS + (2 << depth);
        // It keeps its ring, which may be larger than the policy needs.
        let largest = self.rings_of(limit, 0).max().unwrap_or(0);
        let ring = if self.grows(policy) { self.ring(policy).max(largest) } else { self.ring(policy) };
        self.grow(plan + 2 * self.all_words(policy, ring) + segments)
    }

    /// Applies a policy of its own, or the limit's, to a key. Its starts keep counting; places are exchanged.
    pub fn set_plan(&self, limit: LimitAt, (hash, text): (Hash, &str), policy: Option<Policy>) -> Result<()> {
        let mut search = Search::default();
        for _ in 0..MAX_TURNS {
            let table = self.limit(limit).table();
            self.move_key(&table, hash)?;
            let index = self.index(&table).segment(hash);
            let (slot, from) = match (index.probe(&table, hash), policy) {
                (Ok(found), _) => found,
                (Err(_), None) => return Ok(()),
                (Err(slot), Some(policy)) => {
                    let plan = self.plan(limit, policy, self.of(&table).origin())?;
                    if self.add_stub((index, slot), &plan, hash, text)? {
                        self.limit(limit).policy_changed();
                        return Ok(());
                    }
                    // Another caller has added it, or space is needed.
                    search.has_found(self.make_space(&table, hash, Need::Plan)?)?;
                    continue;
                }
            };
            let current = self.of(&table).for_key(from);
            let own = match policy {
                Some(policy) => {
                    let policy = policy.after(current.policy);
                    if current.at != table.at && current.policy == policy {
                        return Ok(());
                    }
                    self.plan(limit, policy, self.of(&current).origin())?
                }
                None if current.at == table.at => return Ok(()),
                None => table,
            };
            if !self.block(from.at).is_stub() {
                if !self.has_space_for_leases(&table, &current, &own, from) {
                    // As if the limit had been larger before.
                    self.replace(limit, table.policy.after(current.policy), false)?;
                    continue;
                }
                self.rewrite_as(&table, hash, &own, Adds::Nothing, |_| {})?;
            } else if policy.is_some() {
                self.block(from.at).word(key_word::TABLE).store(own.at.offset(), Release);
            } else {
                self.wake_key(&own, (index, slot), from.at, hash, &[])?;
            }
            // More slots for leases do not make another policy.
            if current.at == table.at || own.at == table.at || own.policy != current.policy.after(own.policy) {
                self.limit(limit).policy_changed();
            }
            return Ok(());
        }
        nonsense("a repaired key did not stay repaired")
    }

    /// Adds a key on a plan, in a lane that is being rebuilt.
    pub(in crate::state) fn add_key_on_plan(
        &self,
        limit: LimitAt,
        (hash, text): (Hash, &str),
        policy: Policy,
        origin: Origin,
    ) -> Result<()> {
        let (plan, mut search) = (self.plan(limit, policy, origin)?, Search::default());
        for _ in 0..MAX_TURNS {
            let table = self.limit(limit).table();
            let index = self.index(&table).segment(hash);
            match index.probe(&table, hash) {
                Err(slot) if !self.add_stub((index, slot), &plan, hash, text)? => {
                    search.has_found(self.make_space(&table, hash, Need::Plan)?)?;
                }
                _ => return Ok(()),
            }
        }
        nonsense("a repaired key did not stay repaired")
    }

    /// The plan of a key, if half of its lease slots are taken. Another caller may have enlarged it since they were
    /// found full.
    pub(super) fn crowded_plan(&self, table: &Table, hash: Hash) -> Option<Option<Table>> {
        let (_, found) =
            self.index(table).segment(hash).probe(table, hash).ok().filter(|(_, found)| found.table != table.at)?;
        let plan = self.table_at(found.table);
        let held = || self.cells(&plan, found).history(0, self.clock.now()).holds.len() as u64;
        let is_crowded = !self.block(found.at).is_stub() && 2 * held() * SLOT_WORDS > plan.policy.ring();
        Some(is_crowded.then_some(plan))
    }

    /// Returns whether all leases of a key fit into its new table. More may run than the policy there allows.
    fn has_space_for_leases(&self, table: &Table, current: &Table, own: &Table, from: KeyAt) -> bool {
        let is_back = own.at == table.at && own.policy.is_concurrency() && own.policy.ring() < current.policy.ring();
        !is_back || self.cells(current, from).history(0, self.clock.now()).holds.len() as u64 <= own.policy.capacity()
    }

    /// The plan of a limit with this policy.
    pub(in crate::state) fn plan(&self, limit: LimitAt, policy: Policy, origin: Origin) -> Result<Table> {
        let word = self.limit(limit).word(limit_word::PLANS);
        if word.load(Acquire) == 0 {
            word.store(self.allocate::<()>(CHAINS)?.offset(), Release);
        }
        let chain = word.load(Acquire) + (sum(policy.to_words()) >> 32) % CHAINS;
        let plans =
            std::iter::successors(self.leads_to(chain), |plan: &TableAt| self.leads_to(*plan + table_word::NEXT));
        for at in bounded(plans, self.arena.most()) {
            let plan = self.table_at(at);
            if plan.policy == policy && self.of(&plan).origin() == origin {
                return Ok(plan);
            }
        }
        let at = self.allocate(table_word::WORDS)?;
        self.set_policy(at, policy);
        self.set(at + table_word::BORN, [origin.born]);
        self.set(at + table_word::LOST, origin.lost);
        let first = self.get::<1>(self.limit(limit).table().at + table_word::FIRST_TICKET);
        self.set(at + table_word::FIRST_TICKET, first);
        self.set(at + table_word::NEXT, [self.arena.word(chain).load(Acquire)]);
        self.set(at + table_word::OWNER, [limit.offset()]);
        self.arena.word(chain).store(at.offset(), Release);
        Ok(self.table_at(at))
    }

    /// Resets a plan because all keys of its limit are forgotten. Its keys start with the first tickets of that table.
    pub(super) fn reset_plan(&self, plan: &Table, table: &Table) {
        self.set(plan.at + table_word::BORN, [0]);
        self.set(plan.at + table_word::LOST, [0, 0]);
        self.set(plan.at + table_word::FIRST_TICKET, self.get::<1>(table.at + table_word::FIRST_TICKET));
    }

    /// Adds an unused key without cells. Returns `false` if there is no space, or if the key exists by now.
    fn add_stub(&self, (index, slot): (SegmentCells, u64), plan: &Table, hash: Hash, text: &str) -> Result<bool> {
        if !index.takes_slot() {
            return Ok(false);
        }
        let stub = self.new_stub(plan, hash, text)?;
        let slots = index.slots();
        let word = slots[slot as usize].load(Acquire);
        // Only an empty slot is replaced, never a key or the mark of a sealed index.
        let is_added =
            is_empty(word) && slots[slot as usize].compare_exchange(word, entry(hash, stub), AcqRel, Acquire).is_ok();
        match is_added {
            true => self.take_words(self.of(plan).limit(), hash, STUB_WORDS),
            false => self.retire_stub(stub),
        }
        Ok(is_added)
    }

    fn new_stub(&self, plan: &Table, hash: Hash, text: &str) -> Result<BlockAt> {
        let at = self.used_in(STUBS, 0).map_or_else(|| self.allocate(STUB_WORDS), Ok)?;
        self.block(at).word(key_word::LIFE).store(CLOSED, Release);
        self.block(at).word(key_word::IS_STUB).store(1, Release);
        for word in [key_word::GATE, key_word::LISTED].into_iter().chain(key_word::COUNTS) {
            self.arena.word(at + word).store(0, Release);
        }
        self.block(at).set_name(plan, hash, text);
        Ok(at)
    }

    /// The stub of a key whose cells go to another key. Its counts are kept or forgotten.
    pub(super) fn stub_of(&self, plan: &Table, from: BlockAt, keeps_counts: bool) -> Result<BlockAt> {
        let at = self.new_stub(plan, self.block(from).hash(), "")?;
        self.block(at).copy_identity(self, self.block(from), keeps_counts);
        Ok(at)
    }

    pub(super) fn retire_stub(&self, at: BlockAt) {
        self.retire_to(STUBS, at);
    }

    /// A block with the cells of a key that had none, with these starts. It is not published yet.
    pub(super) fn write_key(&self, own: &Table, hash: Hash, text: &str, starts: &[Start]) -> Result<BlockAt> {
        let ring = self.ring_for(own.policy, units_of(starts) + self.of(own).lost_units(), 0);
        loop {
            // At least the amount for which space was made.
            let need = self.words_with(own.policy, ring) + 16;
            if !self.has_free(self.class_of(own.policy, ring)) && !self.arena.has_space(need) {
                self.grow_for_keys(2 * need)?;
            }
            let block = self.take_block(own.policy, ring, self.kept_blocks())?;
            self.note_ring(own, block);
            // A block that has used up its lives is abandoned.
            if let Some(new) = self.block(block).begin(own, hash, text, starts) {
                return Ok(new.at);
            }
        }
    }

    /// Gives the key of a stub cells in this table, with these starts.
    pub(in crate::state) fn wake_key(
        &self,
        own: &Table,
        (index, slot): (SegmentCells, u64),
        stub: BlockAt,
        hash: Hash,
        starts: &[Start],
    ) -> Result<()> {
        let into = self.write_key(own, hash, "", starts)?;
        self.block(into).copy_identity(self, self.block(stub), true);
        index.set_entry(self, slot, hash, into);
        self.retire_stub(stub);
        self.take_words(self.of(own).limit(), hash, self.words_of(own, into) - STUB_WORDS);
        Ok(())
    }
}
