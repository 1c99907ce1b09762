//! Cells with arbitrary contents: every call on them ends. (Perhaps with a panic, which is an error where cells are in
//! a lane.)

use super::bucket::Bucket;
use super::cells::Cells;
use super::counter::{Counter, Frame, Past};
use super::leases::{self, Leases, NEVER, SLOT_WORDS};
use super::log::{Ask, Log, StartId, Window};
use super::meter::Meter;
use super::slices::{SLICES, Slices};
use crate::Algorithm;
use crate::atomic::*;
use crate::random_tests::Random;
use crate::time::Now;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Duration;

/// A little over a year, as a store's clock reads.
const NOW: u64 = 35_000_000_000_000;

/// Returns zero, a small or large number, a single bit, or any number.
fn garbage(random: &mut Random) -> u64 {
    let word = random.next();
    match word % 5 {
        0 => 0,
        1 => word >> 56,
        2 => !(word >> 52),
        3 => 1 << (word >> 58),
        _ => word,
    }
}

/// Makes every call that a process without the lock may make.
fn ask_all(cells: Cells, windows: &[Window], gate: u64) {
    let clock = || Now { floor: NOW, ceil: NOW + 1 };
    let end = |call: &dyn Fn() -> bool| drop(catch_unwind(AssertUnwindSafe(call)));
    if let Cells::Leases(leases) = cells {
        end(&|| {
            leases.take(2, 5, 7, NEVER).is_ok_and(|taken| taken.is_some_and(|lease| leases.give_back(lease).is_ok()))
        });
        end(&|| leases.live().is_ok());
        end(&|| leases.earliest_deadline().is_ok());
        end(&|| leases.reclaim(NOW, 0, || 0, |_| true).is_ok());
        return;
    }
    // Decisions and views have no error for this: they must not unwind.
    let ask = |call: &dyn Fn() -> bool| _ = call();
    for weight in [1, 3] {
        let now = Ask::now(windows, weight, gate);
        let place = Ask { patience: NOW, reserve: true, ..now };
        ask(&|| cells.view(&now, clock).is_ok());
        match cells {
            Cells::Log(log) => ask_one(log, [&now, &place], ask, clock),
            Cells::Meter(meter) => ask_one(meter, [&now, &place], ask, clock),
            Cells::Slices(slices) => ask_one(slices, [&now, &place], ask, clock),
            Cells::Counter(counter) => ask_one(counter, [&now, &place], ask, clock),
            Cells::Leases(_) | Cells::Grants(_) => unreachable!(),
        }
        end(&|| cells.present(StartId { ticket: weight, stamp: NOW, weight }, windows[0].length, clock()).is_ok());
    }
}

fn ask_one(cells: impl Algorithm, asks: [&Ask; 2], call: impl Fn(&dyn Fn() -> bool), clock: impl Fn() -> Now) {
    for ask in asks {
        call(&|| cells.claim(ask, &clock).is_ok());
        call(&|| cells.claim_and_view(ask, &clock).is_ok());
    }
}

#[test]
fn every_call_ends_whatever_cells_hold() {
    for kind in 0..5 {
        let (tell, done) = mpsc::channel();
        std::thread::spawn(move || {
            for round in 0..4_000 {
                let random = &mut Random::seeded(kind << 32 | round);
                let slots = leases::slots(5) * SLOT_WORDS;
                let size = if kind == 1 { SLICES } else { slots };
                let [head, life, own, logged, cleared, peak]: [AtomicU64; 6] =
                    std::array::from_fn(|_| AtomicU64::new(garbage(random)));
                let ring: Vec<AtomicU64> = (0..size).map(|_| AtomicU64::new(garbage(random))).collect();
                let number = life.load(Relaxed);
                let (head, life, own, logged, cleared, peak, ring) =
                    (&head, &life, &own, &logged, &cleared, &peak, &ring[..]);
                let (base, born, limit, length) =
                    (garbage(random), garbage(random), if kind == 1 { 5_000 } else { 9 }, 1_000_000);
                let bucket = Bucket::new(limit, length, 7, round % 2 == 0);
                let cells = match kind {
                    0 => {
                        let (origins, whole, left_out) = (ring, garbage(random), [peak, cleared]);
                        Cells::Log(Log {
                            head,
                            cleared,
                            own,
                            logged,
                            ring,
                            whole,
                            largest: limit,
                            left_out,
                            origins,
                            peak,
                            life,
                            number,
                            base,
                            born,
                        })
                    }
                    1 => {
                        Cells::Slices(Slices { head, life, base: number, ring, era: own, logged, written: peak, born })
                    }
                    2 => {
                        let (bucket, last) = (&bucket, &ring[0]);
                        let (base, returned) = (cleared, &ring[1]);
                        Cells::Meter(Meter {
                            word: head,
                            base,
                            life,
                            number,
                            era: own,
                            logged,
                            last,
                            returned,
                            carried: &ring[2],
                            born,
                            bucket,
                        })
                    }
                    3 => {
                        let frame = Frame { limit, length, is_smooth: round % 2 == 0, phase: NOW };
                        let ring = &ring[..2];
                        let past = Past { begun: head, until: peak, units: peak };
                        let (base, era) = (cleared, own);
                        Cells::Counter(Counter { ring, life, number, base, era, logged, born, frame, past })
                    }
                    _ => {
                        let slots = ring;
                        let [taken, returned, base, bell, sleepers] = [head, own, cleared, logged, peak];
                        Cells::Leases(Leases { taken, returned, base, bell, sleepers, slots, life, number })
                    }
                };
                ask_all(cells, &[Window { limit, length }], garbage(random));
                let _ = tell.send(round);
            }
        });
        let mut rounds = 0;
        // A slow machine takes a while; an endless call takes longer.
        while done
            .recv_timeout(Duration::from_secs(20))
            .inspect_err(|e| {
                assert_eq!(*e, mpsc::RecvTimeoutError::Disconnected, "kind {kind} does not end in round {rounds}");
            })
            .is_ok()
        {
            rounds += 1;
        }
        assert_eq!(rounds, 4_000);
    }
}
