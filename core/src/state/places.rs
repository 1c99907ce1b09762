//! The open places of all limits that only count units, so that each starts once, whatever copies of it there are.

use super::layout::{FIRST_PLACES, PLACE_TABLES, PLACES};
use super::locked::Locked;
use super::table::Home;
use crate::algorithm::log::Taken;
use crate::algorithm::places::{Place, Places, SLOT_WORDS};
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::time::Tick;

/// What the number of a place has that no era and no ticket has. Below it: the table, 4 bits; the slot, 24; its turn.
const IS_PLACE: u64 = 1 << 63;
const TABLE: u32 = 56;
const SLOT: u32 = 32;

/// What a ticket has that is the place of a unit which a server has granted this process. (A server's numbers are below 2^53.)
const IS_GRANTED: u64 = 1 << 62;

/// Is this the number of a place of a limit that only counts units?
pub(crate) fn is_counted_place(number: u64) -> bool {
    number & IS_PLACE != 0 && number != u64::MAX
}

/// Is this the place of a unit that this process was granted?
pub(crate) fn is_granted_place(ticket: u64) -> bool {
    ticket & (IS_PLACE | IS_GRANTED) == IS_GRANTED
}

pub(crate) fn as_granted_place(ticket: u64) -> u64 {
    ticket | IS_GRANTED
}

pub(crate) fn without_grant(ticket: u64) -> u64 {
    ticket & !IS_GRANTED
}

/// The same number as one of a place, which somebody else has given.
pub(crate) fn as_counted_place(number: u64) -> u64 {
    number | IS_PLACE
}

/// The number that somebody else has given.
pub(crate) fn without_mark(number: u64) -> u64 {
    number & !IS_PLACE
}

impl Home {
    fn places(&self, table: u64) -> Option<Places<'_>> {
        let at = self.arena.word(PLACES + table).load(Acquire);
        (at != 0).then(|| Places { slots: self.arena.words(at, (FIRST_PLACES << table) * SLOT_WORDS) })
    }

    /// Would a place find room now?
    pub fn has_room_for_places(&self, now: Tick) -> bool {
        (0..PLACE_TABLES).rev().any(|table| self.places(table).is_some_and(|places| places.has_free_slot(now, now)))
    }

    /// Notes a place that was taken in this era, and gives it a number. `None`: there is no room.
    pub fn open_place(&self, taken: &Taken, now: Tick) -> Option<u64> {
        let Taken { ticket: era, end, stamp, .. } = *taken;
        // Many places have the same stamp, and few slots are looked at; but no two claims have the same end.
        let seed = (end ^ stamp).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        (0..PLACE_TABLES).rev().find_map(|table| {
            let Place { slot, turn } = self.places(table)?.open(stamp, era, now, seed)?;
            Some(IS_PLACE | table << TABLE | u64::from(slot) << SLOT | u64::from(turn))
        })
    }

    /// Was a place not used yet?
    pub fn is_open_place(&self, number: u64, stamp: Tick) -> bool {
        self.place(number).is_some_and(|(places, place)| places.is_open(place, stamp))
    }

    /// Uses a place, once, and says of which era it is. `None`: it was used before, or is long over.
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
    /// Makes room for as many open places as there are, and one table more.
    pub fn add_places(&self) -> Result<()> {
        let is_there = |table: &u64| self.arena.word(PLACES + table).load(Acquire) != 0;
        let next = (0..PLACE_TABLES).take_while(is_there).count() as u64;
        if next == PLACE_TABLES {
            return Err(Error::Unsupported { reason: "more than four million open places in one store".into() });
        }
        let at = self.allocate((FIRST_PLACES << next) * SLOT_WORDS)?;
        self.arena.word(PLACES + next).store(at, Release);
        Ok(())
    }
}
