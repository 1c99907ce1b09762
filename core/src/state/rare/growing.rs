//! Rings that grow: how large a ring a key gets when it is rewritten, and where the space for that comes from. What a small ring
//! may decide is argued in `log.rs`.
//!
//! Where a start needs a larger ring and there is no space, the key's callers get the error of a full store. For a moment they do
//! so without the lock ([`BlockCells::set_stuck`](crate::state::cells::block::BlockCells::set_stuck)). No edit fails for this: what
//! does not fit is left out, and counts until the latest of it is over. The key "" has a whole ring from the beginning, so a limit
//! without keys needs no lock. (If its policy changes while there is no room, it is a key like others.)

use super::rewrite::pad;
use crate::algorithm::Forgotten;
use crate::atomic::*;
use crate::error::Result;
use crate::hash::Hash;
use crate::policy::Policy;
use crate::state::cells::home::{KeyAt, Table};
use crate::state::cells::layout::{BlockAt, OLDER_WORDS, key_word, table_word};
use crate::state::cells::locked::Locked;

/// The units that an edit adds to a key.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Adds {
    Nothing,
    /// A debt.
    Units(u64),
    /// Units that the ledger has. Their ring needs no share.
    Restored(u64),
}

impl Adds {
    fn units(self) -> u64 {
        match self {
            Adds::Nothing => 0,
            Adds::Units(units) | Adds::Restored(units) => units,
        }
    }
}

impl Locked<'_> {
    /// The block into which an edit of a key is written. Its ring does not shrink, so a key that gets another policy needs a block
    /// like the one that it gives back. If it needs a larger one, and there is no room, it gets one of the size that it has, or if
    /// there is none, a smaller one. The key "" gets a whole ring if there is room for that.
    pub(super) fn block_for_edit(&self, before: &Table, from: KeyAt, own: &Table, adds: Adds) -> Result<BlockAt> {
        if !self.grows(own.policy) || !self.grows(before.policy) {
            return self.block_to_write(before, own, own.ring);
        }
        let (has, is_empty_key) = (self.block(from.at).ring(), self.block(from.at).hash() == self.hash(b'k', ""));
        let is_same = own.at == before.at && adds.units() == 0;
        let wanted = match is_empty_key {
            true => own.ring,
            false if is_same => has,
            false => self.ring_wanted(before, from, own, (adds.units(), 0)),
        };
        let shares = !is_empty_key && !matches!(adds, Adds::Restored(_));
        let larger = (wanted > has).then(|| self.larger_block(own, wanted, (shares, false))).flatten();
        if let Some(larger) = larger {
            return Ok(larger);
        }
        let at = self.block_of_size(own.policy, wanted.min(has))?;
        self.add_origins_of_edit(own, at, own.at != before.at && !is_empty_key);
        Ok(at)
    }

    /// A block with this ring, or with a smaller one rather than from the reserve: processes may have died with blocks of this size.
    pub(super) fn block_of_size(&self, policy: Policy, ring: u64) -> Result<BlockAt> {
        let found = self.block_with_room(policy, ring, 0, (0, false)).or_else(|| self.smaller_block(policy, ring));
        found.map_or_else(|| self.unused_block(policy, ring), Ok)
    }

    /// Gives a block space for the origins of its starts, within the limit's share, or for an edit in a full store from a quarter of the reserve. Where
    /// there is neither it gets none: the starts count, but cannot be taken back.
    fn add_origins_of_edit(&self, own: &Table, at: BlockAt, is_move: bool) {
        let (origins, words) = (self.block(at).word(key_word::ORIGINS), self.block(at).ring() + OLDER_WORDS);
        // All keys that a change moves would need as much again.
        let has_share = || if is_move { self.of(own).spare_blocks() > 0 } else { self.of(own).may_take(words) };
        if origins.load(Relaxed) != 0 || has_share() && self.add_origins_with_room(at, false) || is_move {
            return;
        }
        // (What is not reserved is others' share.)
        if self.arena.unallocated() < words
            && self.arena.has_most_of_reserve(words)
            && let Ok(new) = self.arena.allocate_reserved(words)
        {
            origins.store(new, Release);
        }
    }

    /// The ring that can hold what a key has, so many units more, and then a start of this weight.
    fn ring_wanted(&self, before: &Table, from: KeyAt, own: &Table, (units, weight): (u64, u64)) -> u64 {
        let has = self.block(from.at).ring();
        let left_out = self.block(from.at).word(key_word::LEFT_OUT).load(Acquire) & Forgotten::MANY;
        let is_shorter = own.at != before.at && own.policy.longest() <= before.policy.longest();
        if units == 0 && weight == 0 && is_shorter && left_out == 0 && before.born == 0 {
            return has;
        }
        let (cells, now) = (self.cells(before, from), self.clock.now());
        let mut history = self.history_as(before, from, own, (&cells, now));
        pad(&mut history, own, now);
        let counted = history.units_after(own.policy.counts_since(now));
        // Until they are sealed, starts fill the present ring at most. An edit that finds more than it has seen leaves it out.
        let counted = if units > 0 { counted } else { counted.max(has.saturating_sub(1)) };
        self.ring_for(own.policy, counted.saturating_add(units), weight).max(has)
    }

    /// A block with a larger ring, and space for the origins of its starts, if there is room for that: see
    /// [`Locked::block_with_room`]. If it `shares`, it does not exceed its limit's share.
    fn larger_block(&self, own: &Table, ring: u64, (shares, at_once): (bool, bool)) -> Option<BlockAt> {
        let may_have = |ring| !shares || self.of(own).may_grow_to(ring);
        let more = ring + OLDER_WORDS + 16;
        let at = may_have(ring)
            .then(|| self.block_with_room(own.policy, ring, self.kept_blocks(), (more, at_once)))
            .flatten()?;
        let (is, origins) = (self.block(at).ring(), self.block(at).word(key_word::ORIGINS));
        // A larger one may have served in its place.
        let is_its =
            (is == ring || may_have(is)) && (origins.load(Relaxed) != 0 || self.add_origins_with_room(at, at_once));
        if !is_its {
            self.retire_block(own.policy, at);
        }
        is_its.then_some(at)
    }

    /// Completes an interrupted rewrite of a key, if there is one, and gives it a larger ring, if a start of this weight
    /// needs it: not from the reserve, within the limit's share, and with `at_once` without making the store larger. Returns
    /// `false` if there is no room for that. A key that is gone needs none.
    pub fn mend_key(&self, table: &Table, hash: Hash, weight: u64, at_once: bool) -> Result<bool> {
        let segment = self.index(table).segment(hash);
        let Ok((slot, found)) = segment.probe(table, hash) else { return Ok(true) };
        if self.block(found.at).is_stub() {
            self.wake_key(&self.of(table).for_key(found), (segment, slot), found.at, hash, &[])?;
            return Ok(true);
        }
        let own = self.of(table).for_key(found);
        if hash == self.hash(b'k', "") && own.at == table.at {
            self.arena.word(table.at + table_word::EMPTY_KEY).store(found.at.offset(), Release);
        }
        let (cells, now) = (self.cells(&own, found), self.clock.now());
        if cells.has_to_move(own.policy.longest(), now) {
            // Not by an earlier policy: the change may not have found space for it.
            if !self.move_key(table, hash)? {
                self.rewrite(table, hash, |_| {})?;
            }
            return Ok(true);
        }
        if weight == 0 || !cells.has_to_grow(weight, own.policy.longest(), now) {
            return Ok(true);
        }
        let ring = self.ring_wanted(&own, found, &own, (0, weight));
        match self.larger_block(&own, ring, (true, at_once)) {
            Some(into) => self.rewrite_into(table, hash, &own, into, |_| {}).map(|_| true),
            None => Ok(false),
        }
    }

    /// Searches for idle keys for a moment: see [`Locked::sweep`]. Returns whether it has passed all keys.
    pub fn search_for_room(&self) -> Result<bool> {
        self.sweep(None, None).map(|step| step.is_all)
    }
}
