//! Space for new keys. Full segments are rewritten, idle keys are forgotten and their blocks reused; only then does the
//! store grow.
//!
//! All of this runs under the structure lock, for a millisecond or two at a time. Before a segment is rewritten, its
//! empty slots are sealed, so that no process can add a key that would not be copied. If the process dies during a
//! rewrite, the next holder of the lock starts it again from the beginning.
//!
//! The keys of a segment are therefore examined about once per segment's worth of new keys; without new keys, no space
//! is needed. When no space is left for a new key, or its limit has [its share](crate::state::cells::share), idle keys
//! are searched for: first those of its limit, then in a *sweep* those of all limits whose blocks it could use. A step of
//! the search takes a few segments, and a new key pays for a few steps. The next one goes on where they ended. So no
//! caller pays for more, and every key is examined if new ones are refused again and again.

use super::rewrite::units_of;
use crate::algorithm::Start;
use crate::algorithm::cells::Cells;
use crate::atomic::*;
use crate::damage::nonsense;
use crate::error::{Error, Result};
use crate::fault;
use crate::hash::Hash;
use crate::policy::Policy;
use crate::state::cells::home::{Blocked, KeyAt, Table};
use crate::state::cells::index::Root;
use crate::state::cells::layout::{
    At, BlockAt, DirectoryAt, FREE_SEGMENTS, LimitAt, STUBS, SWEPT_LIMIT, TableAt, index_word, limit_word, table_word,
};
use crate::state::cells::locked::Locked;
use crate::state::cells::segment::{SegmentCells, block, empty, entry, untagged};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The time limit of one step of a search. The segment in progress is always finished.
const SWEEP: Duration = Duration::from_millis(2);

/// The number of steps for which a new key searches for idle ones.
pub(crate) const STEPS: u32 = 4;

/// The most used blocks that a segment gets at once from a store that cannot grow, or in a limit that has nearly its
/// share: others may need them more.
const STOCK: u64 = 64;

/// With more spare blocks than this, a limit is far from its share.
const MANY: u64 = 8 * index_word::MAX_CAPACITY;

/// Below this number of used blocks, no search is worthwhile while the store can grow.
const ENOUGH: u64 = 64;

/// The number of the first free list for directories; the lists for segments come before it.
const DIRECTORIES: u64 = 32;

/// How often the holder of the structure lock retries.
pub(in crate::state) const MAX_TURNS: u32 = 10_000;

/// The largest depth of a directory. A deeper one would be larger than a store.
const MAX_DEPTH: u32 = 26;

/// The result of a search for space.
#[derive(Debug)]
pub(crate) enum Space {
    Available,
    /// None found so far, and the store cannot grow. The next call continues the search, unless nothing is left to
    /// search.
    Searched {
        is_all: bool,
        full: Error,
    },
}

/// What space is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// A new key.
    Key,
    /// A new key, shortly after a search in vain: idle keys are not searched for again.
    KeyAtOnce,
    /// A key that gets a policy of its own. It needs no share: operators make it, and not strangers.
    Plan,
    /// A key that only the ledger has. It needs no share, and the store grows for it whatever its bound.
    Restored,
}

/// What a step of a search has found: the number of free blocks of the wanted class, and whether it has passed all keys.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    freed: u64,
    pub(super) is_all: bool,
}

/// The keys of a segment that stay, the blocks of those that go, and the blocks of keys of other tables, with their
/// classes.
type Partition = (Vec<BlockAt>, std::vec::IntoIter<BlockAt>, Vec<(u64, BlockAt)>);

/// Which lease owners are dead. Each owner is checked once.
#[derive(Default)]
struct Dead(RefCell<BTreeMap<u64, bool>>);

impl Locked<'_> {
    /// Finds or adds a key, which has these starts if it is new. Only for the holder of the structure lock, which makes
    /// space if there is none.
    pub fn find_or_add_locked(&self, table: &Table, hash: Hash, text: &str, starts: &[Start]) -> Result<KeyAt> {
        let mut search = Search::default();
        // No other process repairs the key or makes space during this, but others may take the space that was made.
        for _ in 0..MAX_TURNS {
            let begin = |at| self.block(at).begin(table, hash, text, starts);
            match self.add_with(table, hash, units_of(starts), &begin) {
                Ok(found) => return Ok(found),
                Err(Blocked::Refused(error)) => return Err(error),
                Err(Blocked::Full) => drop(search.has_found(self.make_space(table, hash, Need::Key)?)?),
                Err(_) => self.repair_key(table, hash)?,
            }
        }
        nonsense("a repaired key did not stay repaired")
    }

    /// Finds or adds a key with so many units, besides those that the ledger may have missed.
    pub(in crate::state) fn add_with(
        &self,
        table: &Table,
        hash: Hash,
        units: u64,
        begin: &dyn Fn(BlockAt) -> Option<KeyAt>,
    ) -> Result<KeyAt, Blocked> {
        let ring = self.ring_for(table.policy, units + self.of(table).lost_units(), 0);
        if ring == table.first_ring || self.index(table).find(hash)?.is_some() {
            return self.index(table).find_or_begin(hash, begin);
        }
        // The block for a new key is too small.
        let keeps = self.kept_blocks();
        let with_room = |at_once| self.block_with_room(table.policy, ring, keeps, (0, at_once));
        let large = match units {
            0 if !self.of(table).may_grow_to(ring) => None,
            0 => with_room(true),
            // A key with starts gets what new keys do not, beyond the bound if necessary.
            _ => with_room(false).or_else(|| {
                self.grow_beyond(self.words_with(table.policy, ring) + 16).ok()?;
                with_room(true)
            }),
        };
        let large = match large {
            Some(large) => large,
            None if units == 0 => return Err(Blocked::Full),
            // What does not fit is left out.
            None => return self.index(table).find_or_begin(hash, begin),
        };
        self.note_ring(table, large);
        let (limit, words) = (self.of(table).limit(), self.words_of(table, large));
        self.take_words(limit, hash, words);
        let is_used = Cell::new(false);
        let begin = |at| {
            is_used.set(true);
            begin(at)
        };
        let added = self.index(table).find_or_begin_in(Some(large), hash, &begin);
        if !is_used.get() {
            self.return_words(limit, hash, words);
            self.retire_block(table.policy, large);
        }
        added
    }

    /// Puts a block that was taken for a new key into its list of free ones.
    fn retire_new(&self, table: &Table, at: BlockAt) {
        let at = if self.block(at).ring() == 0 { self.with_size(at, table.first_ring) } else { at };
        self.retire_block(table.policy, at);
    }

    /// Makes the space that [`Blocked::Full`] asked for, for a key with this hash.
    pub fn make_space(&self, table: &Table, hash: Hash, need: Need) -> Result<Space> {
        let rests = need == Need::KeyAtOnce;
        if self.index(table).root().is_none() {
            return Ok(Space::Available);
        }
        if let Some(plan) = self.index(table).plan_of_idle(hash) {
            return self.make_space_to_wake(&plan, rests);
        }
        if need == Need::Restored {
            return self.make_space_to_restore(table, hash).map(|()| Space::Available);
        }
        let ring = self.ring_for(table.policy, self.of(table).lost_units(), 0);
        if need != Need::Plan && ring > table.first_ring {
            return self.make_space_for_larger(table, hash, (ring, rests));
        }
        if need != Need::Plan && self.of(table).spare_blocks() == 0 {
            let step = if rests { None } else { self.make_space_in_share(table, hash)? };
            if step.is_some_and(|step| step.freed > 0) && self.has_stock(table, hash) {
                return Ok(Space::Available);
            }
            if self.of(table).spare_blocks() == 0 {
                let is_all = step.is_none_or(|step| step.is_all);
                return Ok(Space::Searched { is_all, full: self.of(table).share_is_full() });
            }
        }
        let segment = self.index(table).segment(hash);
        let block = self.key_words(table.policy) + 16;
        let hoards = self.arena.has_space(block) || fault::planted("hoarded blocks");
        let spare = || if need == Need::Plan { STOCK } else { self.of(table).spare_blocks() };
        let most = |spare| if hoards && spare > MANY { u64::MAX } else { STOCK.min(spare) };
        let restock = || self.index(table).segment(hash).restock(self, (table, hash), (most(spare()), false));
        let restock_any = || self.index(table).segment(hash).restock(self, (table, hash), (most(spare()), true));
        if segment.takes_no_key(table) {
            match self.renew_segment(table, hash.0[0], false) {
                Ok(_) if restock() || self.has_stock(table, hash) => return Ok(Space::Available),
                // A key that finds no block uses up the segment's remaining slots, once per attempt. So both must be
                // available.
                Ok(_) => {}
                // Other limits may have segments that they do not need.
                Err(full) if !rests => {
                    return self.sweep(None, None).map(|step| Space::Searched { is_all: step.is_all, full });
                }
                Err(full) => return Err(full),
            }
        }
        // Free blocks come first: space that has not been allocated yet serves blocks of any size.
        if restock() || self.arena.has_space(block) {
            return Ok(Space::Available);
        }
        // The sweep may rewrite the segment.
        let nothing = Step { freed: 0, is_all: true };
        let step = if rests { nothing } else { self.sweep(Some(self.block_class(table.policy)), None)? };
        if step.freed >= ENOUGH && restock_any() {
            return Ok(Space::Available);
        }
        // Twice what the next key needs, so that one short allocation does not lead straight to the next.
        match self.grow_for_keys(2 * block) {
            Ok(()) => Ok(Space::Available),
            Err(_) if restock_any() => Ok(Space::Available),
            Err(full) => Ok(Space::Searched { is_all: step.is_all, full }),
        }
    }

    /// Searches for idle keys, for a new key of a limit that has its share: in the key's segment, then among the limit's
    /// keys, then among those of all limits whose blocks it could use. `None` if there was nothing to search.
    fn make_space_in_share(&self, table: &Table, hash: Hash) -> Result<Option<Step>> {
        let Some(root) = self.index(table).root() else { return Ok(None) };
        if self.has_idle_key(table, self.segment_at(root, root.entry_of(hash.0[0]))) {
            // It keeps their blocks for its new keys.
            match self.renew_segment(table, hash.0[0], false) {
                Err(Error::StoreFull { .. }) => {}
                renewed => {
                    renewed?;
                    return Ok(Some(Step { freed: 1, is_all: false }));
                }
            }
        }
        fault::point("sweeping");
        let own = self.search_limit(self.of(table).limit(), Instant::now())?;
        if own.freed > 0 || self.of(table).spare_blocks() > 0 {
            return Ok(Some(own));
        }
        let all = self.sweep(Some(self.block_class(table.policy)), Some(self.of(table).limit()))?;
        Ok(Some(Step { is_all: own.is_all && all.is_all, ..all }))
    }

    /// Returns whether the segment for a hash has blocks for new keys.
    fn has_stock(&self, table: &Table, hash: Hash) -> bool {
        let segment = self.index(table).segment(hash);
        let word = |word| segment.word(word).load(Acquire);
        !segment.is_old(table) && word(index_word::TAKEN) < word(index_word::FREE)
    }

    /// Makes space for the cells of a key that has none.
    fn make_space_to_wake(&self, plan: &Table, rests: bool) -> Result<Space> {
        let ring = self.ring_for(plan.policy, self.of(plan).lost_units(), 0);
        self.make_space_for_ring(plan.policy, ring, rests)
    }

    /// Makes space for a new key that needs a larger ring than others: see [`Locked::add_with`].
    fn make_space_for_larger(&self, table: &Table, hash: Hash, (ring, rests): (u64, bool)) -> Result<Space> {
        if !self.of(table).may_grow_to(ring) {
            let step = if rests { None } else { self.make_space_in_share(table, hash)? };
            if !self.of(table).may_grow_to(ring) {
                let is_all = step.is_none_or(|step| step.is_all);
                return Ok(Space::Searched { is_all, full: self.of(table).share_is_full() });
            }
        }
        let space = self.make_space_for_ring(table.policy, ring, rests)?;
        if !matches!(space, Space::Available) || !self.index(table).segment(hash).takes_no_key(table) {
            return Ok(space);
        }
        self.renew_segment(table, hash.0[0], false).map(|_| Space::Available)
    }

    /// Makes space for a block with this ring.
    fn make_space_for_ring(&self, policy: Policy, ring: u64, rests: bool) -> Result<Space> {
        let (class, block) = (self.class_of(policy, ring), self.words_with(policy, ring) + 16);
        if self.has_free(class) || self.arena.has_space(block) {
            return Ok(Space::Available);
        }
        let first = self.block_class(policy);
        let step = if rests { Step { freed: 0, is_all: true } } else { self.sweep(Some(first), None)? };
        Ok(match self.grow_for_keys(2 * block) {
            Err(full) if !self.has_free(class) => Space::Searched { is_all: step.is_all, full },
            _ => Space::Available,
        })
    }

    /// Makes space for a key that has to be restored. Idle keys make room before the store grows beyond its bound.
    fn make_space_to_restore(&self, table: &Table, hash: Hash) -> Result<()> {
        if self.index(table).segment(hash).takes_no_key(table) {
            match self.renew_segment(table, hash.0[0], false) {
                Err(Error::StoreFull { .. }) => {
                    let depth = self.index(table).root().map_or(0, Root::depth);
                    let segments = 2 * (index_word::SLOTS + 2 * index_word::MAX_CAPACITY + 16);
                    self.grow_beyond(segments + index_word::SLOTS + (2 << depth))?;
                    self.renew_segment(table, hash.0[0], false)?;
                }
                renewed => drop(renewed?),
            }
        }
        let restock =
            || self.has_stock(table, hash) || self.index(table).segment(hash).restock(self, (table, hash), (1, true));
        if restock() {
            return Ok(());
        }
        let block = self.key_words(table.policy);
        if self.grow_for_keys(2 * block).is_err() {
            self.sweep(Some(self.block_class(table.policy)), None)?;
            if restock() {
                return Ok(());
            }
            self.grow_beyond(2 * block)?;
        }
        // A new key may use new space only within the limit's share, but a stocked block in any case.
        let block = self.allocate(block)?;
        self.retire_new(table, block);
        restock();
        Ok(())
    }

    // ---- segments ----

    /// Rewrites the segment for a hash without its idle keys: larger, or in two parts, if many keys remain. A sweep
    /// leaves no space for new keys. Returns how many blocks became free for all limits.
    pub(super) fn renew_segment(&self, table: &Table, hash: u64, is_sweep: bool) -> Result<u64> {
        let root = self.index(table).root().expect("a table in use has an index");
        let old = self.segment_at(root, root.entry_of(hash));
        let before = old.capacity();
        // Get the space first: a sealed segment must be replaced.
        let (dead, most, is_old) = (Dead::default(), before / 4 * 3, old.is_old(table));
        let empty_key = self.hash(b'k', "");
        let stays = |at: &BlockAt| self.block(*at).hash() == empty_key || self.stays(table, *at, is_old, &dead);
        let used = old.entries().filter(stays).count() as u64;
        let is_split = used > before / 2 && before == index_word::MAX_CAPACITY;
        let directory = index_word::SLOTS + (2 << root.depth());
        let wanted = match used {
            _ if is_split => before,
            _ if used > before / 2 => 2 * before,
            0..=2 if is_sweep => index_word::FIRST_CAPACITY,
            _ => before,
        };
        let space = self.space_for_segments(wanted, 1 + u64::from(is_split), directory, used <= before / 2);
        let same = if used < most { self.space_for_segments(before, 1, directory, true) } else { space.clone() };
        // If the store cannot grow, the present size still has space.
        let (wanted, is_split) = space.map(|wanted| (wanted, is_split)).or(same.map(|same| (same, false)))?;
        if !fault::planted("open index") {
            old.seal(self);
        }
        let (kept, idle, others) = self.part(table, old, is_old)?;
        let words_before = self.segment_words(table, old);
        // More keys may be in use by now.
        let capacity = if kept.len() as u64 > wanted / 2 { wanted.max(before) } else { wanted };
        let entries = 1 << root.depth();
        let same = (0..entries).filter(|i| self.segment_at(root, *i) == old).count() as u64;
        let depth = root.depth() + u32::from(is_split && same == 1);
        if depth > MAX_DEPTH || same == 0 {
            nonsense(format_args!("an index of depth {depth} at {}", table.at));
        }
        // The bit that separates the two parts: the first one after the bits that all keys of the old segment share.
        let bit = 63 - (root.depth() - same.trailing_zeros());
        let parts = |hash: u64| if is_split { (hash >> bit & 1) as usize } else { 0 };
        let new_segment = || self.new_segment(capacity, table.at);
        let new = (0..1 + usize::from(is_split)).map(|_| new_segment()).collect::<Result<Vec<_>>>()?;
        for at in kept {
            let hash = self.block(at).hash();
            new[parts(hash.0[0])].insert(self, table, hash, at);
        }
        // Stocked blocks are not available to others: take no more than fit, and none at the end of a search.
        let class = self.block_class(self.table_at(At::new(old.word(index_word::TABLE).load(Acquire))).policy);
        let (fits, stock) = (class == self.block_class(table.policy), old.take_stock(self).collect::<Vec<_>>());
        let (stock, misfits) = if fits { (stock, Vec::new()) } else { (Vec::new(), stock) };
        let is_of_other_size = |(class, _): &(u64, BlockAt)| *class != self.block_class(table.policy);
        let (others, same): (Vec<_>, Vec<_>) =
            others.into_iter().chain(old.take_returned(self)).partition(is_of_other_size);
        let mut blocks = stock.into_iter().chain(idle).chain(same.into_iter().map(|(_, at)| at));
        if !is_sweep {
            new.iter().for_each(|new| new.stock(self, &mut blocks));
        }
        let next = match depth {
            0 => root.next(new[0].at, 0),
            _ => {
                let directory = self.new_directory(depth)?;
                for i in 0..1u64 << depth {
                    let was = self.segment_at(root, i >> (depth - root.depth()));
                    let is = if was == old { new[parts(i << (64 - depth))] } else { was };
                    self.arena.word(directory + index_word::SLOTS + i).store(is.at.offset(), Release);
                }
                root.next(directory, depth)
            }
        };
        let words = new.iter().map(|new| self.segment_words(table, *new)).sum::<u64>();
        fault::point("segment-written");
        self.arena.word(table.at + table_word::INDEX).store(next.0, Release);
        self.take_words(self.of(table).limit(), Hash([hash, 0]), words);
        self.return_words(self.of(table).limit(), Hash([hash, 0]), words_before);
        // Only now: a process that restarts this work must find the blocks in their old places.
        let mut freed = blocks.map(|at| self.retire_new(table, at)).count() as u64;
        misfits.into_iter().for_each(|at| self.retire_to(class, at));
        if !is_sweep {
            // The forgotten keys may return, and need blocks of this table's size then.
            for segment in new {
                let most = (others.len() as u64).min(self.of(table).spare_blocks());
                segment.restock(self, (table, Hash([hash, 0])), (most, false));
            }
        }
        let classes = self.classes_for(self.block_class(table.policy));
        freed += others.iter().filter(|(class, _)| classes.contains(class)).count() as u64;
        others.into_iter().for_each(|(class, at)| self.retire_to(class, at));
        if root.depth() > 0 {
            self.set_free(DIRECTORIES + u64::from(root.depth()), root.directory());
        }
        self.set_free(u64::from(before.trailing_zeros()), old.at);
        Ok(freed)
    }

    /// Divides the keys of a sealed segment. It returns the keys in use; the closed blocks of idle keys of this table;
    /// and the closed blocks of plans and of previous tables. Stubs replace the plans' keys. Keys of previous tables
    /// are moved to this one or forgotten.
    fn part(&self, table: &Table, segment: SegmentCells, is_old: bool) -> Result<Partition> {
        let (mut kept, mut idle, mut others, dead) = (Vec::new(), Vec::new(), Vec::new(), Dead::default());
        let (empty_key, forgets) = (self.hash(b'k', ""), is_old && self.of(table).is_forgetting());
        let is_retired = self.limit(self.of(table).limit()).is_retired();
        for at in segment.entries() {
            let is_empty_key = self.block(at).hash() == empty_key;
            if is_empty_key {
                // The process that moved it may have died before this store.
                self.arena.word(table.at + table_word::EMPTY_KEY).store(at.offset(), Release);
            }
            let (own, is_stub) = (&self.block(at).table(table), self.block(at).is_stub());
            let class = self.class_of(own.policy, self.block(at).ring());
            let is_before = self.of(table).is_before(own);
            if own.at != table.at && forgets {
                if !is_stub {
                    self.seal_cells(self.block(at).cells(own));
                }
                if !is_before && !is_retired {
                    // The key keeps its plan and loses only its state.
                    self.reset_plan(own, table);
                    kept.push(if is_stub { at } else { self.stub_of(own, at, false)? });
                }
                if !is_stub || is_retired {
                    others.push((if is_stub { STUBS } else { class }, at));
                }
                continue;
            }
            if is_before {
                let is_nothing = self.is_over(own, at, &dead) && {
                    self.seal_cells(self.block(at).cells(own));
                    self.block(at).is_nothing(own, table)
                };
                match is_nothing {
                    true => others.push((class, at)),
                    false => kept.push(self.move_to(table, (self.block(at).hash(), at))?),
                }
                continue;
            }
            if is_empty_key || is_stub || !self.is_over(own, at, &dead) {
                kept.push(at);
                continue;
            }
            if !fault::planted("reused in flight") {
                self.seal_cells(self.block(at).cells(own));
            }
            // A decision may have come before the seal.
            if self.block(at).is_idle(own) && own.at == table.at {
                match class == self.block_class(table.policy) {
                    true => idle.push(at),
                    // Its ring has grown.
                    false => others.push((class, at)),
                }
            } else if self.block(at).is_idle(own) {
                kept.push(self.stub_of(own, at, true)?);
                others.push((class, at));
            } else {
                kept.push(self.rewrite(table, self.block(at).hash(), |_| {})?);
            }
        }
        Ok((kept, idle.into_iter(), others))
    }

    /// Returns whether this key, or its stub, still needs a slot.
    fn stays(&self, table: &Table, at: BlockAt, is_old: bool, dead: &Dead) -> bool {
        let own = self.block(at).table(table);
        if own.at == table.at {
            return !self.is_over(table, at, dead);
        }
        // A limit that has lost its name keeps no stubs.
        let goes = is_old && self.of(table).is_forgetting();
        !goes || !self.of(table).is_before(&own) && !self.limit(self.of(table).limit()).is_retired()
    }

    /// Returns whether a key is idle, after reclaiming the leases of dead owners.
    fn is_over(&self, table: &Table, at: BlockAt, dead: &Dead) -> bool {
        if let Cells::Leases(leases) = self.block(at).cells(table)
            && !leases.is_idle()
        {
            let is_dead = |owner| *dead.0.borrow_mut().entry(owner).or_insert_with(|| self.is_dead(owner));
            let (now, cooldown) = (self.clock.now().floor, self.block(at).table(table).policy.cooldown());
            if leases.reclaim(now, cooldown, || self.clock.now().ceil, is_dead).is_ok_and(|units| units > 0) {
                leases.bell.fetch_add(1, SeqCst);
                crate::os::wake_all(leases.bell);
            }
        }
        self.block(at).is_idle(table)
    }

    /// Gets space for `count` segments of `capacity` slots and for a directory. Returns the number of slots, which is
    /// larger if the store cannot grow and larger segments are free. Segments that are needed to forget idle keys may
    /// use the reserve.
    fn space_for_segments(&self, capacity: u64, count: u64, directory: u64, is_reserved: bool) -> Result<u64> {
        let of = |capacity: u64| count * (index_word::SLOTS + 2 * capacity + 16);
        let is_there = |capacity: &u64| {
            let list = self.arena.word(FREE_SEGMENTS + u64::from(capacity.trailing_zeros())).load(Acquire);
            list != 0 && (count == 1 || self.arena.word(list + index_word::NEXT).load(Acquire) != 0)
        };
        if is_there(&capacity) {
            return self.grow(directory).map(|()| capacity);
        }
        let grown = match is_reserved {
            true => self.grow(of(capacity) + directory),
            false => self.grow_for_keys(of(capacity) + directory),
        };
        let larger = || (0..).map(|i| capacity << i).take_while(|c| *c <= index_word::MAX_CAPACITY).find(is_there);
        grown.map(|()| capacity).or_else(|full| larger().ok_or(full))
    }

    /// An empty segment for a table.
    pub(super) fn new_segment(&self, capacity: u64, table: TableAt) -> Result<SegmentCells<'_>> {
        let Some(at) = self.take_free(u64::from(capacity.trailing_zeros())) else {
            // The slots, and the same number of blocks for new keys.
            let at = self.allocate(index_word::SLOTS + 2 * capacity)?;
            self.arena.word(at + index_word::CAPACITY).store(capacity, Release);
            self.arena.word(at + index_word::TABLE).store(table.offset(), Release);
            return Ok(self.segment(at));
        };
        let segment = self.segment(at);
        segment.word(index_word::TABLE).store(table.offset(), Release);
        let life = segment.word(index_word::LIFE).fetch_add(1, AcqRel) + 1;
        // A block that was handed back too late stays there.
        for word in [index_word::COUNT, index_word::FREE, index_word::TAKEN] {
            segment.word(word).store(0, Release);
        }
        for slot in segment.slots() {
            slot.store(empty(life), Release);
        }
        Ok(segment)
    }

    fn new_directory(&self, depth: u32) -> Result<DirectoryAt> {
        match self.take_free(DIRECTORIES + u64::from(depth)) {
            Some(at) => Ok(at),
            None => self.allocate(index_word::SLOTS + (1 << depth)),
        }
    }

    /// Puts a segment, a directory or other words into a list of free ones.
    pub(in crate::state) fn set_free<Words: Copy>(&self, list: u64, at: At<Words>) {
        let first = self.arena.word(FREE_SEGMENTS + list);
        self.arena.word(at + index_word::NEXT).store(first.load(Acquire), Release);
        first.store(at.offset(), Release);
    }

    pub(in crate::state) fn take_free<Words: Copy>(&self, list: u64) -> Option<At<Words>> {
        let first = self.arena.word(FREE_SEGMENTS + list);
        At::some(first.load(Acquire)).inspect(|at| {
            first.store(self.arena.word(*at + index_word::NEXT).load(Acquire), Release);
        })
    }

    // ---- sweeps ----

    /// Forgets idle keys for a moment, of all limits that may have blocks of this class, or of all; but for one limit. It
    /// starts where the last sweep stopped.
    pub(super) fn sweep(&self, class: Option<u64>, but: Option<LimitAt>) -> Result<Step> {
        fault::point("sweeping");
        let (began, mut freed) = (Instant::now(), 0);
        let limit = self.arena.word(SWEPT_LIMIT);
        let mut is_all = limit.load(Acquire) == 0;
        let has_class = |policy: Policy| class.is_none_or(|class| self.block_class(policy) == class);
        // Limits added since then are part of the next round.
        for at in self.limits().skip_while(|at| ![0, at.offset()].contains(&limit.load(Acquire))) {
            limit.store(at.offset(), Release);
            if began.elapsed() > SWEEP {
                return Ok(Step { freed, is_all: false });
            }
            let of = self.limit(at);
            if Some(at) != but && (has_class(of.table().policy) || of.has_plans()) {
                let step = self.search_limit(at, began)?;
                freed += if has_class(of.table().policy) { step.freed } else { 0 };
                is_all &= step.is_all;
                if !step.is_all {
                    return Ok(Step { freed, is_all });
                }
            }
        }
        limit.store(0, Release);
        Ok(Step { freed, is_all })
    }

    /// Forgets idle keys of a limit until the moment that began then is over, or all keys were passed. It starts where the
    /// last search stopped. A round also counts the words that the limit has.
    fn search_limit(&self, limit: LimitAt, began: Instant) -> Result<Step> {
        let (table, mut freed) = (self.limit(limit).table(), 0);
        let word = |word| self.limit(limit).word(word);
        let (position, counted) = (word(limit_word::SEARCHED), word(limit_word::COUNTED));
        let (first, mut has_turned) = (position.load(Acquire), false);
        loop {
            let hash = position.load(Acquire);
            let Some(root) = self.index(&table).root() else { break };
            if hash == 0 {
                counted.store(0, Release);
            }
            freed += match self.sweep_segment(&table, root, hash) {
                // There is no space to rewrite this one.
                Err(Error::StoreFull { .. }) => 0,
                swept => swept?,
            };
            let segment = self.index(&table).segment(Hash([hash, 0]));
            let words = counted.fetch_add(self.segment_words(&table, segment), AcqRel);
            let next = self.index(&table).next_segment(hash);
            position.store(next.unwrap_or(0), Release);
            if next.is_none() {
                word(limit_word::TAKEN).store(words + self.segment_words(&table, segment), Release);
                has_turned = true;
            }
            if has_turned && position.load(Acquire) >= first {
                break;
            }
            if began.elapsed() > SWEEP {
                return Ok(Step { freed, is_all: false });
            }
        }
        Ok(Step { freed, is_all: true })
    }

    /// Frees the unused blocks of a segment.
    pub(super) fn sweep_segment(&self, table: &Table, root: Root, hash: u64) -> Result<u64> {
        let segment = self.segment_at(root, root.entry_of(hash));
        let word = |word| segment.word(word).load(Acquire);
        let has_stock = word(index_word::FREE) > word(index_word::TAKEN);
        if has_stock || self.has_idle_key(table, segment) {
            return self.renew_segment(table, hash, true);
        }
        Ok(0)
    }

    /// Returns whether a segment has an idle key with cells.
    fn has_idle_key(&self, table: &Table, segment: SegmentCells) -> bool {
        let (dead, empty_key) = (Dead::default(), self.hash(b'k', ""));
        let is_idle = |at: &BlockAt| {
            let is_over = || self.is_over(&self.block(*at).table(table), *at, &dead);
            self.block(*at).hash() != empty_key && !self.block(*at).is_stub() && is_over()
        };
        segment.entries().any(|at| is_idle(&at))
    }
}

impl<'h> SegmentCells<'h> {
    /// Returns whether it must be rewritten before another key can be added.
    fn takes_no_key(self, table: &Table) -> bool {
        let (capacity, word) = (self.capacity(), |word| self.word(word).load(Acquire));
        let is_sealed = || self.slots().iter().any(|slot| slot.load(Acquire) == index_word::SEALED);
        self.is_old(table)
            || word(index_word::COUNT) >= capacity / 4 * 3
            || word(index_word::FREE) >= capacity
            || is_sealed()
    }

    /// Publishes another block as a key's.
    pub(super) fn set_entry(self, _: &Locked, slot: u64, hash: Hash, block: BlockAt) {
        self.slots()[slot as usize].store(entry(hash, block), Release);
    }

    /// Inserts a key into a segment that is not published yet.
    pub(in crate::state) fn insert(self, _: &Locked, table: &Table, hash: Hash, at: BlockAt) {
        if let Err(slot) = self.probe(table, hash) {
            self.slots()[slot as usize].store(entry(hash, at), Relaxed);
            self.word(index_word::COUNT).fetch_add(1, Relaxed);
        }
    }

    /// The blocks of a sealed segment that no key has taken. From now on none can.
    pub(super) fn take_stock(self, _: &Locked) -> impl Iterator<Item = BlockAt> + use<'h> {
        let free = self.word(index_word::FREE).load(Acquire);
        let taken = self.word(index_word::TAKEN).fetch_or(index_word::CLOSED, AcqRel) & !index_word::CLOSED;
        (taken..free).map(move |i| At::new(self.stocked(i).load(Acquire)))
    }

    /// The block that was handed back to it, with its class. A process that dies with it loses it.
    fn take_returned(self, _: &Locked) -> Option<(u64, BlockAt)> {
        let word = self.word(index_word::RETURNED).swap(0, AcqRel);
        (word != 0).then_some((word >> index_word::TAG, untagged(word)))
    }

    /// Stocks a new segment with blocks for new keys.
    fn stock(self, _: &Locked, blocks: &mut impl Iterator<Item = BlockAt>) {
        let space = self.free_slots();
        let stocked = blocks.by_ref().take(space as usize).zip(0..).map(|(at, i)| {
            self.stocked(i).store(at.offset(), Release);
        });
        self.word(index_word::FREE).store(stocked.count() as u64, Release);
    }

    pub(super) fn seal(self, _: &Locked) {
        for slot in self.slots() {
            let word = slot.load(Acquire);
            if block(word).is_none() {
                let _ = slot.compare_exchange(word, index_word::SEALED, AcqRel, Acquire);
            }
        }
    }

    /// Gives it used blocks for as many keys as it has space for, but at most so many. With `any`, larger ones serve, too, and
    /// what belongs to them is divided. Returns whether there were any. A process that dies here loses one.
    fn restock(self, locked: &Locked, (table, hash): (&Table, Hash), (most, any): (u64, bool)) -> bool {
        let (free, capacity) = (self.word(index_word::FREE), self.capacity());
        let (first, space) = (free.load(Acquire), self.free_slots().min(most));
        let class = locked.block_class(table.policy);
        let classes = if any { locked.classes_for(class) } else { class..=class };
        let used = || {
            let used_in = |class| locked.used_in(class, locked.kept_blocks()).map(|at| (class, at));
            let (of, at) = classes.clone().find_map(used_in)?;
            if of == class || !locked.divide_origins(table.policy, at) {
                return Some(at);
            }
            locked.retire_to(of, at);
            locked.used_in(class, locked.kept_blocks())
        };
        let (mut count, mut words) = (0, 0);
        for (i, at) in (first..capacity.min(first + space)).zip(std::iter::from_fn(used)) {
            locked.note_ring(table, at);
            words += locked.stock_words(table.policy, at);
            self.stocked(i).store(at.offset(), Release);
            free.store(i + 1, Release);
            count += 1;
        }
        locked.take_words(locked.of(table).limit(), hash, words);
        count > 0
    }

    /// The number of keys that it has space for.
    fn free_slots(self) -> u64 {
        let used = self.word(index_word::COUNT).load(Relaxed);
        (self.capacity() / 4 * 3).saturating_sub(used)
    }
}

/// A search for space. It ends after a few steps.
#[derive(Debug, Default)]
pub(crate) struct Search {
    steps: u32,
}

impl Search {
    /// Returns whether there is space. If not, the search continues, unless that was its last step.
    pub fn has_found(&mut self, space: Space) -> Result<bool> {
        match space {
            Space::Available => Ok(true),
            Space::Searched { is_all, full } => {
                self.steps += 1;
                if is_all || self.steps >= STEPS { Err(full) } else { Ok(false) }
            }
        }
    }
}
