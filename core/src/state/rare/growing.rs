//! Rings that grow: how large a ring a key gets when it is rewritten, and where the space for that comes from. What a small ring
//! may decide is argued in `log.rs`.

use super::rewrite::pad;
use super::space::Space;
use crate::atomic::*;
use crate::error::Result;
use crate::hash::Hash;
use crate::state::cells::home::{KeyAt, Table};
use crate::state::cells::layout::{OLDER_WORDS, key_word, table_word};
use crate::state::cells::locked::Locked;

/// What a key needs room for besides what it has: units that an edit adds, and then a start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub units: u64,
    pub weight: u64,
}

impl Room {
    pub const NONE: Room = Room { units: 0, weight: 0 };
}

/// What a caller does for the space of a larger ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// It takes what is there.
    AtOnce,
    /// It makes the store larger.
    NoSearch,
    /// It searches for idle keys, too.
    Search,
}

impl Locked<'_> {
    /// The ring that can hold what a key has, or will have when it is sealed, and then some room. It does not shrink, so a key
    /// that gets another policy needs a block like the one that it gives back. If a longer window needs a larger one, and there
    /// is no space, the key keeps the size that it has. What does not fit is left out, and counts until the latest of it is
    /// over.
    pub(super) fn ring_to_write(&self, before: &Table, from: KeyAt, own: &Table, room: Room) -> u64 {
        if !self.grows(own.policy) {
            return own.ring;
        }
        if !self.grows(before.policy) {
            // Its units are not those of single starts.
            return self.ring_for(own.policy, own.ring, 0);
        }
        // Until then, starts fill the present ring at most. But a longer window may count more, and so may what was left out.
        let has = self.block(from.at).ring();
        let most = has.saturating_sub(1);
        let left_out = self.block(from.at).word(key_word::LEFT_OUT).load(Acquire) & !key_word::IS_MIXED;
        let is_longer = own.policy.longest() > before.policy.longest();
        let is_all = own.at != before.at && !is_longer && left_out == 0 && before.born == 0;
        let units = match room.weight == 0 && (own.at == before.at || is_all) {
            true => most,
            false => {
                let (cells, now) = (self.cells(before, from), self.clock.now());
                let mut history = self.history_as(before, from, own, (&cells, now));
                pad(&mut history, own, now);
                history.units_after(own.policy.counts_since(now)).max(most)
            }
        };
        let whole = self.ring(own.policy);
        let ring = self.ring_for(own.policy, units.saturating_add(room.units), room.weight).max(has);
        let is_moved = own.at != before.at && room.units == 0;
        if ring > has && is_moved && !self.has_room(own, ring.min(whole), false) { has } else { ring }
    }

    /// Returns whether there is room for a larger ring. `at_once`: without making the store larger.
    pub(super) fn has_room(&self, own: &Table, ring: u64, at_once: bool) -> bool {
        let is_there = |words| self.arena.has_space(words) || !at_once && self.grow_for_keys(words).is_ok();
        match self.next_free(self.class_of(own.policy, ring)) {
            // It may need space for the tickets of its starts.
            Some(at) if self.block(at).word(key_word::ORIGINS).load(Relaxed) == 0 => {
                is_there(self.block(at).ring() + OLDER_WORDS)
            }
            Some(_) => true,
            None => self.of(own).may_grow_to(ring) && is_there(self.all_words(own.policy, ring)),
        }
    }

    /// Completes an interrupted rewrite of a key, if there is one, and gives it a larger ring, if a start of this weight
    /// needs it.
    pub fn mend_key(&self, table: &Table, hash: Hash, weight: u64, effort: Effort) -> Result<Space> {
        let segment = self.index(table).segment(hash);
        let Ok((slot, found)) = segment.probe(table, hash) else { return Ok(Space::Available) };
        if self.block(found.at).is_stub() {
            self.wake_key(&self.of(table).for_key(found), (segment, slot), found.at, hash, &[])?;
            return Ok(Space::Available);
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
        } else if weight > 0 && cells.has_to_grow(weight, own.policy.longest(), now) {
            let room = Room { units: 0, weight };
            let space = self.space_for_ring(&own, self.ring_to_write(&own, found, &own, room), effort)?;
            if !matches!(space, Space::Available) {
                return Ok(space);
            }
            self.rewrite_with(table, hash, room, |_| {})?;
        }
        Ok(Space::Available)
    }

    /// Makes space for a larger ring, as for a new key: not from the reserve, and within the limit's share.
    pub(super) fn space_for_ring(&self, own: &Table, ring: u64, effort: Effort) -> Result<Space> {
        let has_room = || self.has_room(own, ring, effort == Effort::AtOnce);
        if has_room() {
            return Ok(Space::Available);
        }
        let is_all = effort != Effort::Search || self.sweep(None, None)?.is_all;
        match has_room() {
            true => Ok(Space::Available),
            false if effort != Effort::AtOnce && self.of(own).may_grow_to(ring) => {
                // The store has no space, whatever the limit's share.
                let full = self.grow_for_keys(self.all_words(own.policy, ring)).err();
                Ok(full.map_or(Space::Available, |full| Space::Searched { is_all, full }))
            }
            false => Ok(Space::Searched { is_all, full: self.of(own).share_is_full() }),
        }
    }
}
