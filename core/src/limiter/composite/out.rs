//! What is out: the permits and places of a composite, each with what it holds at the children.
//!
//! A permit is a number here, because what it stands for does not fit into its words. The entry goes when it ends. Programs
//! in C may drop permits that nobody has to hear of, so beyond [`KEPT`] entries those go too whose end would change nothing
//! any more.

use super::Child;
use crate::fork;
use crate::permit::RawPermit;
use std::sync::Arc;
use std::time::Duration;

/// So many entries are kept in any case. A job that runs for longer than all windows can still owe units at its end.
const KEPT: usize = 4_096;

/// How many old entries are looked at for each new one: two, so that the table is never more than twice as large as what
/// counts.
const LOOKS: usize = 2;

/// What is held at one child: a start, or a place of a composite's place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    /// Which of the children; they only become more.
    pub child: usize,
    pub permit: RawPermit,
}

/// What a place was asked for with.
#[derive(Debug)]
pub(super) struct Wish {
    pub key: Box<str>,
    pub weight: u64,
    pub grace: Option<Duration>,
    /// How many children there were: it starts at these.
    pub children: usize,
}

/// A permit or place that is out.
#[derive(Debug, Clone)]
pub(super) struct Out {
    pub parts: Vec<Part>,
    pub state: State,
    /// What it was reserved for; nothing, if it was not.
    pub wish: Option<Arc<Wish>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Place,
    /// A thread is at it, and has the parts.
    Presented,
    Started,
}

/// All that is out. A forked child has a table of its own.
///
/// A number is a slot and the slot's turn, which grows with each entry: so a permit that was ended is not another's. Turns of a
/// forked child begin elsewhere: so neither is one of its parent's.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Vec<(u32, Option<Out>)>,
    free: Vec<u32>,
    /// Where the search for what is over goes on.
    looked: usize,
}

impl Table {
    /// The number of a new entry.
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

    /// Takes an entry whose number is kept until it is put back.
    pub fn take(&mut self, number: u64) -> Option<Out> {
        self.get(number)?;
        self.slots[number as u32 as usize].1.take()
    }

    /// Puts back what is left of an entry that was taken.
    pub fn put_back(&mut self, number: u64, left: Option<Out>) {
        match left {
            Some(out) => self.slots[number as u32 as usize].1 = Some(out),
            None => self.free.push(number as u32),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn has_too_many(&self) -> bool {
        self.len() > KEPT
    }

    /// The entries to look at next.
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

/// Is there nothing left to end of these?
pub(super) fn are_over(children: &[Child], parts: &[Part]) -> bool {
    parts.iter().all(|part| children[part.child].is_over(&part.permit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{Attempt, CompositeLimiter, ConcurrencyLimiter, Limiter, Places, RateLimiter, Reserved};
    use crate::state::{Store, StoreOptions};
    use crate::time::ManualClock;

    #[test]
    fn permits_and_places_that_are_dropped_do_not_pile_up() {
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
        assert!(limiter.out.lock().len() <= KEPT + 100, "{}", limiter.out.lock().len());
        assert!(both.out.lock().len() <= KEPT + 100);
        assert!(!running.can_proceed("").unwrap());
        both.complete(&held).unwrap();
        assert!(running.can_proceed("").unwrap(), "what still holds something can always be ended");
    }
}
