//! Open places of limits that only count units: a table of the places that may still start. Lock-free.
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
//! * `ends`: when the place expires, in units of 2²⁰ µs: 142 years.
//! * `turn`: grows by one with each place that the slot holds.
//! * `state`: FREE → TAKEN → OPEN → FREE.
//!
//! Opening a place takes three steps: make a slot TAKEN that is FREE, or OPEN and expired; write its era; make it OPEN.
//! Starting with the place, or giving it back, makes the slot FREE by one compare-and-swap, so only one caller
//! succeeds.
//!
//! # Correctness
//!
//! 1. *Words do not repeat.* A slot's turn grows. So a caller with a copy of a used place finds another word. (The turn
//!    wraps after 2³⁰ places; only a place that ends at the same time as one that many places earlier would have the
//!    same word.)
//! 2. *The era belongs to the place.* It is only written while the slot is TAKEN, and only the caller that took the
//!    slot changes it then. The compare-and-swap that closes the place proves that the slot was OPEN all the time.
//! 3. *A death is harmless.* A process that dies in between leaves a slot that is never used again: sixteen bytes.
//!
//! # Orderings
//!
//! Making a slot OPEN releases its era; reading it OPEN acquires it. Every compare-and-swap is `AcqRel`, so that the
//! next era is written after the last was read.

use crate::atomic::{AtomicU64, *};
use crate::time::Tick;

/// The words of a slot.
pub const SLOT_WORDS: u64 = 2;

/// The number of slots that are checked before a table counts as full.
const LOOKS: usize = 32;

const TAKEN: u64 = 1;
const OPEN: u64 = 2;
const ANY_STATE: u64 = 3;
const TURN: u32 = 2;
const ENDS: u32 = 32;
const ANY_TURN: u64 = (1 << (ENDS - TURN)) - 1;
/// The shift of an end in µs.
const COARSE: u32 = 20;

/// A table of places, in cells that live elsewhere.
#[derive(Clone, Copy)]
pub struct Places<'a> {
    /// [`SLOT_WORDS`] for each of a power of two of slots.
    pub slots: &'a [AtomicU64],
}

/// A slot, and one of its turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The number of the slot.
    pub slot: u32,
    /// The slot's turn.
    pub turn: u32,
}

const fn ends(stamp: Tick) -> u64 {
    (stamp >> COARSE) + 1
}

fn word(stamp: Tick, turn: u64, state: u64) -> u64 {
    ends(stamp) << ENDS | (turn & ANY_TURN) << TURN | state
}

impl Places<'_> {
    /// Records a place that is valid until `stamp`. `None`: no slot is free.
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

    /// Returns whether a place that is valid until `stamp` is unused. Another caller may use it right after.
    pub fn is_open(&self, place: Place, stamp: Tick) -> bool {
        let open = word(stamp, place.turn.into(), OPEN);
        self.cells(place.slot as usize).is_some_and(|[cell, _]| cell.load(Acquire) == open)
    }

    /// Uses a place that is valid until `stamp`, once, and returns its era. `None`: it was used before, or has expired.
    pub fn close(&self, place: Place, stamp: Tick) -> Option<u64> {
        let [cell, owner] = self.cells(place.slot as usize)?;
        let open = word(stamp, place.turn.into(), OPEN);
        if cell.load(Acquire) != open {
            return None;
        }
        let era = owner.load(Acquire);
        cell.compare_exchange(open, open & !ANY_STATE, AcqRel, Relaxed).is_ok().then_some(era)
    }

    /// Returns whether a place would find a free slot now, wherever it searches. Other callers may take it first.
    pub fn has_free_slot(&self, now: Tick, seed: u64) -> bool {
        self.free(now, seed).nth(LOOKS / 4).is_some()
    }

    /// Returns the free slots, then the expired ones, with their words. (A late holder may give its place back until
    /// its slot is reused.)
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
    fn a_place_is_used_once_and_its_slot_is_reused_when_it_is_used_or_expired() {
        let cells: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
        let places = Places { slots: &cells };
        let (now, later) = (5 << COARSE, 7 << COARSE);
        let taken: Vec<Place> = (0..4).map(|era| places.open(later, 10 + era, now, era).unwrap()).collect();
        assert_eq!(places.open(later, 9, now, 0), None, "it is full");
        assert_eq!(places.close(taken[2], later + (1 << COARSE)), None, "the end of another place");
        assert_eq!(places.close(taken[2], later), Some(12));
        assert_eq!(places.close(taken[2], later), None, "it was used");
        let next = places.open(later, 20, now, 0).unwrap();
        assert_eq!((next.slot, places.close(taken[2], later)), (taken[2].slot, None));
        assert_eq!(places.close(next, later), Some(20));
        let next = places.open(later + 9, 21, now, 0).unwrap();
        // A slot may be reused only a little after its end.
        assert_eq!(places.open(9 << COARSE, 22, later, 0), None);
        assert!(places.open(12 << COARSE, 22, 9 << COARSE, 0).is_some());
        assert_eq!(places.close(next, later + 9), Some(21));
        assert_eq!(places.close(Place { slot: 4, turn: 0 }, 0), None);
    }
}
