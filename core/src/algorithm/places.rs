//! Open places of limits that only count units: which of them may still start. Lock-free.
//!
//! # Shape
//!
//! A table of slots, two words each. A place is known by its slot and the slot's turn.
//!
//! ```text
//!         63      32 31     2 1       0
//! slot    [ ends    ][ turn   ][ state ] | era of the key's cells
//! ```
//!
//! * `ends`: when nobody can start with it any more, in 2²⁰ µs: 142 years.
//! * `turn`: grows by one with each place that the slot holds.
//! * `state`: FREE → TAKEN → OPEN → FREE.
//!
//! Who takes a place makes a slot TAKEN that is FREE, or OPEN and over; writes its era; and makes it OPEN. Who starts with the
//! place, or gives it back, makes it FREE by one compare-and-swap: so only one of them does.
//!
//! # Why it is right
//!
//! 1. *Words do not repeat*: a slot's turn grows. (It wraps after 2³⁰ places; only a place that ends at the same time as one
//!    so long before would have its word.) So whoever holds a copy of a place that was used finds another word.
//! 2. *The era is the place's*: it is only written while the slot is TAKEN, which only whoever took it changes. The
//!    compare-and-swap that closes the place proves that the slot was OPEN all the time.
//! 3. Who dies in between leaves a slot that nobody uses again: sixteen bytes.
//!
//! # Orderings
//!
//! Making a slot OPEN releases its era; reading it OPEN acquires it. Every compare-and-swap is `AcqRel`, so that the next era
//! is written after the last was read.

use crate::atomic::{AtomicU64, *};
use crate::fault;
use crate::time::Tick;

/// The words of a slot.
pub(crate) const SLOT_WORDS: u64 = 2;

/// Slots that are looked at before a table counts as full.
const LOOKS: usize = 32;

const TAKEN: u64 = 1;
const OPEN: u64 = 2;
const ANY_STATE: u64 = 3;
const TURN: u32 = 2;
const ENDS: u32 = 32;
const ANY_TURN: u64 = (1 << (ENDS - TURN)) - 1;
/// Of an end in µs.
const COARSE: u32 = 20;

/// A table of places, in cells that live elsewhere.
#[derive(Clone, Copy)]
pub(crate) struct Places<'a> {
    /// [`SLOT_WORDS`] for each of a power of two of slots.
    pub slots: &'a [AtomicU64],
}

/// Which slot, and which turn of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub slot: u32,
    pub turn: u32,
}

const fn ends(stamp: Tick) -> u64 {
    (stamp >> COARSE) + 1
}

fn word(stamp: Tick, turn: u64, state: u64) -> u64 {
    ends(stamp) << ENDS | (turn & ANY_TURN) << TURN | state
}

impl Places<'_> {
    /// Notes a place that is good until `stamp`. `None`: there is no room.
    pub fn open(&self, stamp: Tick, era: u64, now: Tick, seed: u64) -> Option<Place> {
        for (slot, was) in self.free(now, seed) {
            let [cell, owner] = self.cells(slot)?;
            let turn = (was >> TURN).wrapping_add(1) & ANY_TURN;
            if cell.compare_exchange(was, word(stamp, turn, TAKEN), AcqRel, Relaxed).is_ok() {
                owner.store(era, Release);
                cell.store(word(stamp, turn, OPEN), Release);
                return Some(Place { slot: slot as u32, turn: turn as u32 });
            }
        }
        None
    }

    /// Was a place that is good until `stamp` not used yet? Others may be faster.
    pub fn is_open(&self, place: Place, stamp: Tick) -> bool {
        let open = word(stamp, place.turn.into(), OPEN);
        self.cells(place.slot as usize).is_some_and(|[cell, _]| cell.load(Acquire) == open)
    }

    /// Uses a place that is good until `stamp`, once, and says of which era it is. `None`: it was used before, or it is over.
    pub fn close(&self, place: Place, stamp: Tick) -> Option<u64> {
        let [cell, owner] = self.cells(place.slot as usize)?;
        let open = word(stamp, place.turn.into(), OPEN);
        if cell.load(Acquire) != open {
            return None;
        }
        let era = owner.load(Acquire);
        if fault::planted("place stays open") {
            return Some(era);
        }
        cell.compare_exchange(open, open & !ANY_STATE, AcqRel, Relaxed).is_ok().then_some(era)
    }

    /// Would a place find room now, wherever it looks? Others may be faster.
    pub fn has_room(&self, now: Tick, seed: u64) -> bool {
        self.free(now, seed).nth(LOOKS / 4).is_some()
    }

    /// Slots that are free, then those that are over, and their words. (Who comes too late with its place may give it back
    /// as long as nobody has its slot.)
    fn free(&self, now: Tick, seed: u64) -> impl Iterator<Item = (usize, u64)> {
        let count = self.slots.len() / SLOT_WORDS as usize;
        let slots = (0..count.min(LOOKS)).map(move |i| (seed as usize).wrapping_add(i) & (count - 1));
        let words = slots.map(|slot| (slot, self.slots[slot * SLOT_WORDS as usize].load(Acquire)));
        let is_over = move |word: u64| word & ANY_STATE == OPEN && word >> ENDS < ends(now) - 1;
        let free = words.clone().filter(|(_, word)| word & ANY_STATE == 0);
        free.chain(words.filter(move |(_, word)| is_over(*word)))
    }

    fn cells(&self, slot: usize) -> Option<&[AtomicU64; 2]> {
        self.slots.as_chunks::<2>().0.get(slot)
    }
}

#[cfg(all(test, model))]
#[path = "places_models.rs"]
mod models;

#[cfg(all(test, not(model)))]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_once_and_its_slot_again_when_it_is_used_or_over() {
        let cells: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
        let places = Places { slots: &cells };
        let (now, later) = (5 << COARSE, 7 << COARSE);
        let taken: Vec<Place> = (0..4).map(|era| places.open(later, 10 + era, now, era).unwrap()).collect();
        assert_eq!(places.open(later, 9, now, 0), None, "it is full");
        assert_eq!(places.close(taken[2], later + (1 << COARSE)), None, "that is another one's end");
        assert_eq!(places.close(taken[2], later), Some(12));
        assert_eq!(places.close(taken[2], later), None, "it was used");
        let next = places.open(later, 20, now, 0).unwrap();
        assert_eq!((next.slot, places.close(taken[2], later)), (taken[2].slot, None));
        assert_eq!(places.close(next, later), Some(20));
        let next = places.open(later + 9, 21, now, 0).unwrap();
        // A slot may be used again a little after its end, not before.
        assert_eq!(places.open(9 << COARSE, 22, later, 0), None);
        assert!(places.open(12 << COARSE, 22, 9 << COARSE, 0).is_some());
        assert_eq!(places.close(next, later + 9), Some(21));
        assert_eq!(places.close(Place { slot: 4, turn: 0 }, 0), None);
    }
}
