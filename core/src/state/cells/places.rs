//! The open places of all limits that only count units. Each place starts once, however many copies of it exist.

use super::home::Home;
use super::layout::{FIRST_PLACES, PLACE_TABLES, PLACES};
use super::locked::Locked;
use crate::algorithm::log::Taken;
use crate::algorithm::places::{Place, Places, SLOT_WORDS};
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::time::Tick;

/// A bit that marks the number of a place; no era and no ticket has it. Below it: the table, 4 bits; the slot, 24; its
/// turn.
const IS_PLACE: u64 = 1 << 63;
const TABLE: u32 = 56;
const SLOT: u32 = 32;

/// A bit that marks the place of a unit that a server has granted to this process. (A server's numbers are below 2^53.)
const IS_GRANTED: u64 = 1 << 62;

/// Returns whether this is the number of a place of a limit that only counts units.
pub(crate) fn is_counted_place(number: u64) -> bool {
    number & IS_PLACE != 0 && number != u64::MAX
}

/// Returns whether this is the place of a unit that was granted to this process.
pub(crate) fn is_granted_place(ticket: u64) -> bool {
    ticket & (IS_PLACE | IS_GRANTED) == IS_GRANTED
}

pub(crate) fn as_granted_place(ticket: u64) -> u64 {
    ticket | IS_GRANTED
}

pub(crate) fn without_grant(ticket: u64) -> u64 {
    ticket & !IS_GRANTED
}

/// Marks a number that a server assigned as one of a place.
pub(crate) fn as_counted_place(number: u64) -> u64 {
    number | IS_PLACE
}

/// The number that the server assigned.
pub(crate) fn without_mark(number: u64) -> u64 {
    number & !IS_PLACE
}

impl Home {
    fn places(&self, table: u64) -> Option<Places<'_>> {
        let at = self.arena.word(PLACES + table).load(Acquire);
        (at != 0).then(|| Places { slots: self.arena.words(at, (FIRST_PLACES << table) * SLOT_WORDS) })
    }

    /// Returns whether there is space for a place now.
    pub fn has_room_for_places(&self, now: Tick) -> bool {
        (0..PLACE_TABLES).rev().any(|table| self.places(table).is_some_and(|places| places.has_free_slot(now, now)))
    }

    /// Records a place that was taken in this era, and assigns it a number. `None` if there is no space.
    pub fn open_place(&self, taken: &Taken, now: Tick) -> Option<u64> {
        let Taken { ticket: era, end, stamp, .. } = *taken;
        // Many places share a stamp, and few slots are searched; but no two claims have the same end.
        let seed = (end ^ stamp).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        (0..PLACE_TABLES).rev().find_map(|table| {
            let Place { slot, turn } = self.places(table)?.open(stamp, era, now, seed)?;
            Some(IS_PLACE | table << TABLE | u64::from(slot) << SLOT | u64::from(turn))
        })
    }

    /// Returns whether a place is unused.
    pub fn is_open_place(&self, number: u64, stamp: Tick) -> bool {
        self.place(number).is_some_and(|(places, place)| places.is_open(place, stamp))
    }

    /// Uses a place, once, and returns its era. `None` if it was used before, or has long expired.
    pub fn close_place(&self, number: u64, stamp: Tick) -> Option<u64> {
        let (places, place) = self.place(number)?;
        places.close(place, stamp)
    }

    fn place(&self, number: u64) -> Option<(Places<'_>, Place)> {
        let slot = (number >> SLOT) as u32 & ((1 << (TABLE - SLOT)) - 1);
        let table = (number & !IS_PLACE) >> TABLE;
        let places = (table < PLACE_TABLES).then(|| self.places(table))??;
        Some((places, Place { slot, turn: number as u32 }))
    }
}

impl Locked<'_> {
    /// Doubles the space for open places, by adding one table.
    pub fn add_places(&self) -> Result<()> {
        let is_there = |table: &u64| self.arena.word(PLACES + table).load(Acquire) != 0;
        let next = (0..PLACE_TABLES).take_while(is_there).count() as u64;
        if next == PLACE_TABLES {
            return Err(Error::Unsupported { reason: "more than four million open places in one store".into() });
        }
        let at = self.allocate::<()>((FIRST_PLACES << next) * SLOT_WORDS)?;
        self.arena.word(PLACES + next).store(at.offset(), Release);
        Ok(())
    }
}
