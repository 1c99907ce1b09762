//! The permits and places of a composite that are in use, each with its parts at the children.
//!
//! A permit is a number here, because its parts do not fit into its words. The entry is removed when the permit ends.
//! Programs in C may drop permits that need no end. So beyond [`KEPT`] entries, entries whose end would have no effect
//! are removed too.

use super::Child;
use crate::fork;
use crate::permit::RawPermit;
use std::sync::Arc;
use std::time::Duration;

/// The number of entries that are always kept. A job that runs for longer than all windows can still owe units at its
/// end.
const KEPT: usize = 4_096;

/// The number of old entries that are checked for each new one. With two, the table is never more than twice as large
/// as what counts.
const LOOKS: usize = 2;

/// A part at one child: a start, or a place of a composite's place.
#[derive(Debug, Clone, Copy)]
pub(in crate::limiter) struct Part {
    /// The index of the child; children are only added.
    pub child: usize,
    pub permit: RawPermit,
}

/// The request for a place.
#[derive(Debug)]
pub(in crate::limiter) struct Wish {
    pub key: Box<str>,
    pub weight: u64,
    pub grace: Option<Duration>,
    /// The number of children at the time: the place starts at these.
    pub children: usize,
}

/// A permit or place in use.
#[derive(Debug, Clone)]
pub(in crate::limiter) struct Out {
    pub parts: Vec<Part>,
    pub state: State,
    /// Whether some parts were charged weights of their own, so that no one number says what all have used.
    pub has_own_weights: bool,
    /// The request that it was reserved for; `None` if it was not reserved.
    pub wish: Option<Arc<Wish>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::limiter) enum State {
    Place,
    /// A thread is presenting it, and has the parts.
    Presented,
    Started,
}

/// All permits and places in use. A forked child has its own table.
///
/// A number is a slot and the slot's turn, which grows with each entry, so an ended permit never equals a later one.
/// The turns of a forked child begin elsewhere, so its permits never equal those of its parent.
#[derive(Debug, Default)]
pub(in crate::limiter) struct Table {
    slots: Vec<(u32, Option<Out>)>,
    free: Vec<u32>,
    /// Where the search for finished entries continues.
    looked: usize,
}

impl Table {
    /// Adds an entry and returns its number.
    pub fn insert(&mut self, out: Out) -> u64 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(((fork::generation() as u32) << 24, None));
            (self.slots.len() - 1) as u32
        });
        let (turn, entry) = &mut self.slots[slot as usize];
        (*turn, *entry) = (turn.wrapping_add(1), Some(out));
        u64::from(*turn) << 32 | u64::from(slot)
    }

    pub fn get(&self, number: u64) -> Option<&Out> {
        let (turn, entry) = self.slots.get(number as u32 as usize)?;
        entry.as_ref().filter(|_| *turn == (number >> 32) as u32)
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut Out> {
        let (turn, entry) = self.slots.get_mut(number as u32 as usize)?;
        entry.as_mut().filter(|_| *turn == (number >> 32) as u32)
    }

    pub fn remove(&mut self, number: u64) -> Option<Out> {
        let out = self.take(number)?;
        self.put_back(number, None);
        Some(out)
    }

    /// Takes an entry. Its number stays reserved until it is put back.
    pub fn take(&mut self, number: u64) -> Option<Out> {
        self.get(number)?;
        self.slots[number as u32 as usize].1.take()
    }

    /// Puts back the rest of an entry that was taken.
    pub fn put_back(&mut self, number: u64, left: Option<Out>) {
        match left {
            Some(out) => self.slots[number as u32 as usize].1 = Some(out),
            None => self.free.push(number as u32),
        }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn has_too_many(&self) -> bool {
        self.len() > KEPT
    }

    /// Returns the entries to check next.
    pub fn suspects(&mut self) -> Vec<(u64, Vec<Part>)> {
        let mut suspects = Vec::new();
        for _ in 0..LOOKS {
            self.looked = (self.looked + 1) % self.slots.len();
            let (turn, entry) = &self.slots[self.looked];
            if let Some(out) = entry.as_ref().filter(|out| out.state != State::Presented) {
                suspects.push((u64::from(*turn) << 32 | self.looked as u64, out.parts.clone()));
            }
        }
        suspects
    }
}

/// Returns whether ending these parts has no effect.
pub(in crate::limiter) fn are_over(children: &[Child], parts: &[Part]) -> bool {
    parts.iter().all(|part| children[part.child].is_over(&part.permit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{Attempt, CompositeLimiter, ConcurrencyLimiter, Limiter, Places, RateLimiter, Reserved};
    use crate::state::{Store, StoreOptions};
    use crate::time::ManualClock;

    #[test]
    fn dropped_permits_and_places_do_not_accumulate() {
        let clock = ManualClock::new();
        let options = StoreOptions { clock: Some(clock.clone()), ..StoreOptions::default() };
        let store = Store::with_options("memory:", options).unwrap();
        let window = Duration::from_millis(1);
        let children: [Child; 2] = [
            Arc::new(RateLimiter::new(&store, "rate", 100, window).unwrap()),
            Arc::new(ConcurrencyLimiter::shared(&store, "slots", 4, Some(window)).unwrap()),
        ];
        let running: Child = Arc::new(ConcurrencyLimiter::new(1).unwrap());
        let limiter = CompositeLimiter::new(children.clone());
        let both = CompositeLimiter::new([children[0].clone(), running.clone()]);
        let Attempt::Admitted(held) = both.attempt("", 1).unwrap() else { panic!("denied") };
        for i in 0..2 * KEPT as u64 {
            clock.advance(window);
            match i % 2 {
                0 => assert!(matches!(limiter.attempt("", 1).unwrap(), Attempt::Admitted(_))),
                _ => assert!(matches!(limiter.reserve("", 1, None, None).unwrap(), Reserved::Place { .. })),
            }
            let place = both.reserve("", 1, None, None).unwrap();
            assert!(matches!(place, Reserved::Place { .. }));
        }
        assert!(limiter.group.out.lock().len() <= KEPT + 100, "{}", limiter.group.out.lock().len());
        assert!(both.group.out.lock().len() <= KEPT + 100);
        assert!(!running.can_proceed("").unwrap());
        both.complete(&held).unwrap();
        assert!(running.can_proceed("").unwrap(), "a permit that still holds units can always be ended");
    }
}
