//! Models of joint starts of a rate and of slots, for loom and shuttle: see `log_models.rs`.

use super::take_all;
use crate::atomic::{AtomicU64 as Cell, *};
use crate::leases::models as slots;
use crate::log::models as rate;
use crate::models::{Arc, Mutex, model, thread};
use crate::time::Tick;

const RATE: usize = 0;
const SLOTS: usize = 1;

/// What a part admitted.
#[derive(Debug, Clone, Copy)]
enum Claimed {
    /// The ticket, the stamp, the weight.
    Units(u64, Tick, u64),
    Slot(slots::Held),
}

/// Why a starter took nothing more.
#[derive(Debug)]
struct Died;

/// A limit of units, whose cells are rewritten when a start is cancelled, and one of slots.
struct Limits {
    units: u64,
    slots: u64,
    cells: [Arc<rate::Cells>; 2],
    rewritten: Cell,
    rewriting: Mutex<()>,
    leases: Arc<slots::Cells>,
}

impl Limits {
    fn new(units: u64, slots: u64) -> Arc<Limits> {
        Arc::new(Limits {
            units,
            slots,
            cells: [rate::Cells::new(4), rate::Cells::new(4)],
            rewritten: Cell::new(0),
            rewriting: Mutex::new(()),
            leases: slots::Cells::new(),
        })
    }

    fn rate(&self) -> &rate::Cells {
        &self.cells[self.rewritten.load(Acquire) as usize % 2]
    }

    fn take(&self, part: usize, weight: u64, owner: u64) -> Option<Claimed> {
        if part == SLOTS {
            return self.leases.take_for(1, self.slots, owner).unwrap().map(Claimed::Slot);
        }
        loop {
            match self.rate().claim(self.units, weight, 0) {
                Ok(taken) => return taken.map(|taken| Claimed::Units(taken.ticket, taken.stamp, weight)),
                // The cells are looked up under the lock of whoever rewrites them.
                Err(_) => drop(self.rewriting.lock()),
            }
        }
    }

    fn give_back(&self, claimed: &Claimed) {
        match *claimed {
            Claimed::Slot(lease) => assert!(self.leases.give_back(lease), "its slot was ended by somebody else"),
            Claimed::Units(ticket, ..) => {
                let _one = self.rewriting.lock();
                let (from, at) = (self.rate(), self.rewritten.load(Acquire));
                let to = &self.cells[(at + 1) as usize % 2];
                to.take_over(from, |starts| {
                    let before = starts.len();
                    starts.retain(|start| start.id != ticket);
                    assert_eq!(starts.len(), before - 1, "its start is not there, or twice");
                });
                self.rewritten.store(at + 1, Release);
            }
        }
    }

    /// Starts at the parts in this order.
    fn start(&self, order: [usize; 2], weight: u64) -> Option<Vec<Claimed>> {
        let take = |part| self.take(part, weight, slots::ME).ok_or(part);
        let give_back = |taken: &[Claimed]| {
            taken.iter().for_each(|claimed| self.give_back(claimed));
            Ok::<(), Died>(())
        };
        take_all(order.into_iter(), |part| Ok(take(part)), give_back).unwrap().ok()
    }

    /// The same, by a process that dies when it has the first part.
    fn die_starting(&self, order: [usize; 2], weight: u64) -> Option<Claimed> {
        let mut had = None;
        let take = |part| {
            if had.is_some() {
                return Err(Died);
            }
            had = self.take(part, weight, slots::MORTAL);
            Ok(had.ok_or(part))
        };
        let _ = take_all(order.into_iter(), take, |_| Ok(()));
        self.leases.die();
        had
    }

    /// Asserts that these starts, and as many more as fit now, keep both limits, and that both can be used up.
    fn assert_kept(&self, starts: &[Vec<Claimed>]) {
        let (mut stamps, mut held) = (Vec::new(), Vec::new());
        for claimed in starts.iter().flatten() {
            match *claimed {
                Claimed::Units(_, stamp, weight) => stamps.push((stamp, weight)),
                Claimed::Slot(lease) => held.push(lease),
            }
        }
        assert!(starts.iter().all(|start| start.len() == 2), "a start without a part: {starts:?}");
        let used: u64 = stamps.iter().map(|(_, weight)| weight).sum();
        while let Some(Claimed::Units(_, stamp, weight)) = self.take(RATE, 1, slots::ME) {
            stamps.push((stamp, weight));
        }
        let all: u64 = stamps.iter().map(|(_, weight)| weight).sum();
        assert_eq!(all, self.units, "{used} of the units are used, and the others cannot all be taken");
        rate::assert_kept(stamps, self.units);
        self.leases.assert_holds(&held, self.slots);
    }
}

const ORDERS: [[usize; 2]; 2] = [[RATE, SLOTS], [SLOTS, RATE]];

/// Two starters take the parts in opposite orders, and try again once: no part is over, and a starter that was denied
/// holds nothing of either.
fn opposite_orders(units: u64, slots: u64, weights: [u64; 2]) {
    model(move || {
        let limits = Limits::new(units, slots);
        let run = |me: usize| {
            let limits = limits.clone();
            move || limits.start(ORDERS[me], weights[me])
        };
        let other = thread::spawn(run(1));
        let mine = run(0)();
        let starts: Vec<_> = mine.into_iter().chain(other.join().unwrap()).collect();
        let both_fit = weights.iter().sum::<u64>() <= units && slots > 1;
        assert!(!both_fit || starts.len() == 2, "both fit, and {} started", starts.len());
        if starts.is_empty() {
            // They denied each other. Each can start now.
            limits.assert_kept(&[limits.start(ORDERS[0], weights[0]).expect("all is free")]);
        } else {
            limits.assert_kept(&starts);
        }
    });
}

#[test]
fn opposite_orders_of_one_unit_and_one_slot() {
    opposite_orders(1, 1, [1, 1]);
}

#[test]
fn opposite_orders_of_many_units_and_one_slot() {
    opposite_orders(3, 1, [2, 1]);
}

#[test]
fn opposite_orders_of_one_unit_and_many_slots() {
    opposite_orders(2, 2, [2, 1]);
}

#[test]
fn opposite_orders_that_both_fit() {
    opposite_orders(2, 2, [1, 1]);
}

/// One of them dies when it has its first part: that counts as a start of this part until it comes back as its kind
/// promises, and nothing else is lost.
fn a_starter_dies(order: usize) {
    model(move || {
        let limits = Limits::new(1, 1);
        let dead = thread::spawn({
            let limits = limits.clone();
            move || limits.die_starting(ORDERS[order], 1)
        });
        let mine = limits.start(ORDERS[1 - order], 1);
        let dead = dead.join().unwrap();
        match (dead, &mine) {
            // (The two may have denied each other before it died.)
            (Some(Claimed::Units(_, stamp, _)), None) => {
                assert!(limits.start(ORDERS[0], 1).is_none(), "its unit counts for a window");
                limits.rate().wait_until(stamp + rate::W);
            }
            (Some(Claimed::Slot(_)), None) => {
                assert!(limits.start(ORDERS[0], 1).is_none(), "its slot is held until it is found dead");
                assert_eq!(limits.leases.reclaim(0), Ok(1));
            }
            (None, Some(_)) => {}
            (dead, mine) => panic!("{dead:?} and {mine:?}"),
        }
        let starts = mine.or_else(|| limits.start(ORDERS[0], 1)).expect("all has come back");
        limits.assert_kept(&[starts]);
    });
}

#[test]
fn a_starter_dies_with_a_unit() {
    a_starter_dies(0);
}

#[test]
fn a_starter_dies_with_a_slot() {
    a_starter_dies(1);
}
