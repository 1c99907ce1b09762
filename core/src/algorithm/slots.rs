//! Counting who is running: a word with the sum, and a slot for each permit so that ending one twice is harmless.
//!
//! Admission is one compare-and-swap on the sum. A slot's word is `fence << 16 | weight`; the fence grows each time the
//! slot is given back, so that a stale permit finds another word there and does nothing. A slot is freed before its
//! weight leaves the sum, so whoever got into the sum always finds a free slot.

use crate::atomic::{AtomicU64, *};

const WEIGHT: u32 = 16;

/// The largest number of units at once.
pub(crate) const MOST: u64 = (1 << WEIGHT) - 1;

/// One key's running starts, in cells that live elsewhere.
#[derive(Clone, Copy)]
pub(crate) struct Slots<'a> {
    /// The units that are running.
    pub live: &'a AtomicU64,
    /// How many of them were recorded without a permit.
    pub anonymous: &'a AtomicU64,
    /// Grows whenever units come back; who waits for that sleeps on it.
    pub bell: &'a AtomicU64,
    /// How many sleep.
    pub sleepers: &'a AtomicU64,
    /// One per unit of capacity.
    pub slots: &'a [AtomicU64],
}

/// A slot that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pub index: u64,
    pub word: u64,
}

impl Slots<'_> {
    fn capacity(&self) -> u64 {
        self.slots.len() as u64
    }

    /// How many more units could start.
    pub fn remaining(&self) -> u64 {
        self.capacity().saturating_sub(self.live.load(Acquire))
    }

    /// Takes `weight` units, if they are free.
    pub fn take(&self, weight: u64) -> Option<Held> {
        let mut live = self.live.load(Acquire);
        loop {
            if live + weight > self.capacity() {
                return None;
            }
            match self.live.compare_exchange_weak(live, live + weight, AcqRel, Acquire) {
                Ok(_) => break,
                Err(now) => live = now,
            }
        }
        // Start where the sum points: close to the first free slot, and different for each of those who race.
        for index in (live..).map(|i| i % self.capacity()) {
            let slot = &self.slots[index as usize];
            let was = slot.load(Acquire);
            if was & MOST == 0 && slot.compare_exchange(was, was | weight, AcqRel, Relaxed).is_ok() {
                return Some(Held { index, word: was | weight });
            }
        }
        unreachable!("the range is endless")
    }

    /// Gives a slot back. `false`: it was given back before.
    pub fn give_back(&self, held: Held) -> bool {
        let Some(slot) = self.slots.get(held.index as usize) else { return false };
        let next = ((held.word >> WEIGHT) + 1) << WEIGHT;
        let mine = held.word & MOST != 0 && slot.compare_exchange(held.word, next, AcqRel, Relaxed).is_ok();
        if mine {
            self.live.fetch_sub(held.word & MOST, AcqRel);
            self.bell.fetch_add(1, SeqCst);
        }
        mine
    }

    /// Records a start whether there is room or not.
    pub fn start(&self) {
        self.live.fetch_add(1, AcqRel);
        self.anonymous.fetch_add(1, AcqRel);
    }

    /// Ends the oldest start recorded without a permit, if there is one.
    pub fn complete(&self) {
        // They cannot be told apart, so the oldest is any of them.
        if self.anonymous.fetch_update(AcqRel, Acquire, |n| n.checked_sub(1)).is_ok() {
            self.live.fetch_sub(1, AcqRel);
            self.bell.fetch_add(1, SeqCst);
        }
    }

    /// Gives everything back. Permits taken before end as no-ops.
    pub fn clear(&self) {
        for (index, slot) in self.slots.iter().enumerate() {
            self.give_back(Held { index: index as u64, word: slot.load(Acquire) });
        }
        let anonymous = self.anonymous.swap(0, AcqRel);
        self.live.fetch_sub(anonymous, AcqRel);
        self.bell.fetch_add(1, SeqCst);
    }

    /// What a forked child does with the copy it inherited: those who run are the parent's. Nobody else may be using it.
    pub fn disown(&self) {
        self.clear();
        // A thread of the parent may have been between the sum and its slot when the copy was made.
        self.live.store(0, Release);
        self.sleepers.store(0, Release);
    }
}

#[cfg(all(test, not(model)))]
mod tests {
    use super::*;

    fn with<R>(capacity: usize, f: impl FnOnce(Slots) -> R) -> R {
        let cells: Vec<AtomicU64> = (0..capacity + 4).map(|_| AtomicU64::new(0)).collect();
        let [live, anonymous, bell, sleepers] = std::array::from_fn(|i| &cells[i]);
        f(Slots { live, anonymous, bell, sleepers, slots: &cells[4..] })
    }

    #[test]
    fn a_permit_ended_twice_frees_one_slot_once() {
        with(2, |s| {
            let a = s.take(1).unwrap();
            let _b = s.take(1).unwrap();
            assert_eq!(s.take(1), None);
            assert!(s.give_back(a));
            assert!(!s.give_back(a));
            let c = s.take(1).unwrap();
            assert!(!s.give_back(a), "the slot is c's now");
            assert_eq!(s.remaining(), 0);
            assert!(s.give_back(c));
        });
    }

    #[test]
    fn completions_without_a_start_stop_at_zero() {
        with(2, |s| {
            s.complete();
            s.start();
            s.start();
            s.start();
            assert_eq!(s.remaining(), 0, "recorded over the limit");
            (0..9).for_each(|_| s.complete());
            assert_eq!(s.remaining(), 2);
        });
    }

    #[test]
    fn a_cleared_permit_ends_as_nothing() {
        with(3, |s| {
            let a = s.take(2).unwrap();
            s.start();
            s.clear();
            assert_eq!(s.remaining(), 3);
            assert!(!s.give_back(a));
            assert_eq!(s.remaining(), 3);
        });
    }

    #[test]
    fn threads_never_hold_more_than_the_capacity() {
        with(5, |s| {
            let running = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for t in 0..4u64 {
                    let (s, running) = (&s, &running);
                    scope.spawn(move || {
                        for i in 0..50_000 {
                            let weight = 1 + (i + t) % 3;
                            if let Some(held) = s.take(weight) {
                                assert!(running.fetch_add(weight, AcqRel) + weight <= 5);
                                running.fetch_sub(weight, AcqRel);
                                assert!(s.give_back(held));
                            }
                        }
                    });
                }
            });
            assert_eq!(s.remaining(), 5);
        });
    }
}
