//! Models of the leases, for loom and shuttle: see `log_models.rs`.

use super::*;
use crate::atomic::AtomicU64 as Cell;
use crate::models::{Arc, model, thread};

pub(crate) const ME: u64 = 7;
/// The owner that dies in the course of a model.
pub(crate) const MORTAL: u64 = 3;

/// A lease, and its weight.
pub(crate) type Held = (Lease, u64);

pub(crate) struct Cells {
    words: [Cell; 6],
    slots: Vec<Cell>,
    is_dead: Cell,
}

impl Cells {
    pub(crate) fn new() -> Arc<Cells> {
        let slots = (0..4 * SLOT_WORDS).map(|_| Cell::new(0)).collect();
        Arc::new(Cells { words: std::array::from_fn(|_| Cell::new(0)), slots, is_dead: Cell::new(0) })
    }

    fn leases(&self) -> Leases<'_> {
        let [taken, returned, base, bell, sleepers, life] = &self.words;
        // A caller that finds them closed looks the key up again, as if they had another life.
        let number = life.load(Acquire).min(u64::MAX - 1);
        Leases { taken, returned, base, bell, sleepers, slots: &self.slots, life, number }
    }

    fn take(&self, weight: u64, max: u64) -> Result<Option<Held>, Sealed> {
        self.take_for(weight, max, ME)
    }

    pub(crate) fn take_for(&self, weight: u64, max: u64, owner: u64) -> Result<Option<Held>, Sealed> {
        let lease = self.leases().take(weight, max, owner, 10)?;
        Ok(lease.map(|lease| (lease, weight)))
    }

    /// Ends a lease. `false`: it was no longer held.
    pub(crate) fn give_back(&self, (lease, _): Held) -> bool {
        self.leases().give_back(lease).unwrap()
    }

    /// From now on the mortal owner is dead.
    pub(crate) fn die(&self) {
        self.is_dead.store(1, Release);
    }

    pub(crate) fn reclaim(&self, now: Tick) -> Result<u64, NotEnded> {
        self.leases().reclaim(now, 0, || 0, |owner| owner == MORTAL && self.is_dead.load(Acquire) != 0)
    }

    /// Takes this many units and dies after this many steps: claimed, offered, counted.
    fn die_taking(&self, steps: u32, weight: u64, max: u64) {
        let leases = self.leases();
        if let Ok(seen) = leases.look()
            && seen.live + weight <= max
        {
            leases.help_take(seen.taken);
            let claimed = leases.claim(&seen).unwrap();
            if steps > 1 {
                let want = Request { weight, max, owner: MORTAL, deadline: NEVER, is_recorded: false };
                let offered = leases.offer(claimed, &want);
                if steps > 2 {
                    leases.try_take(&seen, offered);
                }
            }
        }
        self.die();
    }

    /// Ends a lease and dies after this many steps: ending, counted.
    fn die_giving_back(&self, steps: u32, lease: Lease) {
        let leases = self.leases();
        if let Ok(Some(at)) = leases.find(lease) {
            let ending = SlotWord { word: with_phase(at.word, ENDING), ..at };
            if leases.change(at, ending.word) && steps > 1 {
                let returned = leases.returned.load(Acquire);
                leases.help_return(returned);
                if leases.at(at.index) == ending {
                    leases.try_return(returned, ending);
                }
            }
        }
    }

    /// Ends this life and begins the next, in the same cells.
    fn rewrite(&self) {
        let leases = self.leases();
        leases.seal();
        // A swap, because loom does not know that a store after another thread's compare-and-swap is the later one.
        let number = self.words[5].swap(u64::MAX, AcqRel);
        let (holds, fence) = leases.history();
        assert!(leases.write(&holds, fence));
        self.words[5].store(number + 1, Release);
    }

    /// Asserts that exactly these leases are held; that each can be ended, once; and that then everything can be taken.
    pub(crate) fn assert_holds(&self, held: &[Held], max: u64) {
        let weight: u64 = held.iter().map(|(_, weight)| weight).sum();
        assert!(weight <= max, "{held:?}");
        assert_eq!(self.leases().live(), Ok(weight));
        for (lease, _) in held {
            assert_eq!(self.leases().give_back(*lease), Ok(true));
            assert_eq!(self.leases().give_back(*lease), Ok(false));
        }
        assert_eq!(self.leases().live(), Ok(0));
        assert!(self.take(max, max).unwrap().is_some());
    }
}

/// Two takers with these weights, while a lease ends.
fn two_takers_and_an_end(weights: [u64; 2], max: u64) {
    model(move || {
        let cells = Cells::new();
        let (first, _) = cells.take(1, max).unwrap().unwrap();
        let others = weights.map(|weight| {
            let cells = cells.clone();
            thread::spawn(move || cells.take(weight, max).unwrap())
        });
        assert_eq!(cells.leases().give_back(first), Ok(true));
        let held: Vec<_> = others.into_iter().filter_map(|other| other.join().unwrap()).collect();
        assert!(!held.is_empty() || weights.iter().all(|weight| weight + 1 > max), "one of them fits");
        cells.assert_holds(&held, max);
    });
}

#[test]
fn two_leases_are_taken_and_one_ends() {
    two_takers_and_an_end([1, 1], 2);
}

#[test]
fn two_heavy_leases_are_taken_and_one_ends() {
    two_takers_and_an_end([2, 2], 3);
}

/// Both threads take and end, twice. The held units are counted separately.
#[test]
fn leases_are_taken_and_ended_by_two() {
    model(|| {
        let cells = Cells::new();
        let work = |cells: &Cells| {
            for _ in 0..2 {
                if let Some((lease, _)) = cells.take(1, 1).unwrap() {
                    assert_eq!(cells.is_dead.fetch_add(1, Relaxed), 0, "both hold it");
                    cells.is_dead.fetch_sub(1, Relaxed);
                    assert_eq!(cells.leases().give_back(lease), Ok(true));
                }
            }
        };
        let other = cells.clone();
        let other = thread::spawn(move || work(&other));
        work(&cells);
        other.join().unwrap();
        cells.assert_holds(&[], 1);
    });
}

/// Two threads end the same lease, while another waits for its unit.
#[test]
fn a_lease_is_ended_by_two() {
    model(|| {
        let cells = Cells::new();
        let (lease, _) = cells.take(1, 1).unwrap().unwrap();
        let other = cells.clone();
        let other = thread::spawn(move || {
            let is_mine = other.leases().give_back(lease).unwrap();
            (is_mine, other.take(1, 1).unwrap())
        });
        let is_mine = cells.leases().give_back(lease).unwrap();
        let (is_others, taken) = other.join().unwrap();
        assert!(is_mine != is_others);
        assert!(taken.is_some() || is_mine);
        cells.assert_holds(taken.as_slice(), 1);
    });
}

/// Two threads end the same lease, and its unit cools down once. Another start wants it all the time.
#[test]
fn a_unit_cools_down_at_no_moment_free() {
    model(|| {
        let cells = Cells::new();
        let (lease, _) = cells.take(1, 1).unwrap().unwrap();
        let other = cells.clone();
        let other = thread::spawn(move || {
            let is_mine = other.leases().cool_down(lease, 20).unwrap();
            (is_mine, other.take(1, 1).unwrap())
        });
        let is_mine = cells.leases().cool_down(lease, 20).unwrap();
        assert_eq!(cells.take(1, 1), Ok(None));
        let (is_others, taken) = other.join().unwrap();
        assert!(is_mine != is_others);
        assert_eq!(taken, None);
        assert_eq!(cells.leases().live(), Ok(1));
        assert_eq!((cells.reclaim(19), cells.reclaim(20)), (Ok(0), Ok(1)));
        cells.assert_holds(&[], 1);
    });
}

/// One thread dies after this many steps of taking; the other takes, ends, and reclaims.
fn a_taker_dies(steps: u32) {
    model(move || {
        let cells = Cells::new();
        let other = cells.clone();
        let other = thread::spawn(move || other.die_taking(steps, 1, 2));
        let mine = cells.take(1, 2).unwrap();
        cells.reclaim(0).unwrap();
        other.join().unwrap();
        let held: Vec<_> = mine.into_iter().chain(cells.take(1, 2).unwrap()).collect();
        cells.reclaim(0).unwrap();
        assert_eq!(cells.reclaim(0), Ok(0));
        cells.assert_holds(&held, 2);
    });
}

#[test]
fn a_taker_dies_with_a_slot() {
    a_taker_dies(1);
}

#[test]
fn a_taker_dies_before_it_is_counted() {
    a_taker_dies(2);
}

#[test]
fn a_taker_dies_when_it_is_counted() {
    a_taker_dies(3);
}

/// Two threads reclaim a lease from a process that died while taking it.
#[test]
fn two_reclaim_from_a_dead_taker() {
    model(|| {
        let cells = Cells::new();
        cells.die_taking(3, 2, 2);
        let other = cells.clone();
        let other = thread::spawn(move || {
            other.reclaim(0).unwrap();
            other.take(1, 2).unwrap()
        });
        cells.reclaim(0).unwrap();
        let held: Vec<_> = cells.take(1, 2).unwrap().into_iter().chain(other.join().unwrap()).collect();
        assert_eq!(held.len(), 2);
        cells.assert_holds(&held, 2);
    });
}

/// One thread dies after this many steps of ending a lease; the other ends another, and reclaims.
fn an_ender_dies(steps: u32) {
    model(move || {
        let cells = Cells::new();
        let (mine, _) = cells.take(1, 2).unwrap().unwrap();
        let (theirs, _) = cells.take(1, 2).unwrap().unwrap();
        let other = cells.clone();
        let other = thread::spawn(move || other.die_giving_back(steps, theirs));
        assert_eq!(cells.leases().give_back(mine), Ok(true));
        let again = cells.take(1, 2).unwrap();
        assert!(again.is_some());
        cells.reclaim(0).unwrap();
        other.join().unwrap();
        cells.reclaim(0).unwrap();
        assert_eq!(cells.reclaim(0), Ok(0));
        cells.assert_holds(again.as_slice(), 2);
    });
}

#[test]
fn an_ender_dies_before_it_is_counted() {
    an_ender_dies(1);
}

#[test]
fn an_ender_dies_when_it_is_counted() {
    an_ender_dies(2);
}

/// A lease past its deadline is renewed, or reclaimed and taken by another caller.
#[test]
fn a_lease_is_renewed_while_it_is_reclaimed() {
    model(|| {
        let cells = Cells::new();
        let mine = cells.take(1, 1).unwrap().unwrap();
        let other = cells.clone();
        let other = thread::spawn(move || {
            other.reclaim(10).unwrap();
            other.take(1, 1).unwrap()
        });
        let is_kept = cells.leases().renew(mine.0, 20).unwrap();
        let theirs = other.join().unwrap();
        assert!(is_kept != theirs.is_some());
        assert_eq!(cells.reclaim(9), Ok(0));
        cells.assert_holds(&[if is_kept { mine } else { theirs.unwrap() }], 1);
    });
}

/// A lease is in the next life, or was refused.
fn rewritten_while_one_is_taken(times: u32) {
    model(move || {
        let cells = Cells::new();
        let first = cells.take(1, 3).unwrap();
        let other = cells.clone();
        let other = thread::spawn(move || other.take(1, 3).ok().flatten());
        (0..times).for_each(|_| cells.rewrite());
        let mine = cells.take(1, 3).unwrap();
        let held: Vec<_> = first.into_iter().chain(mine).chain(other.join().unwrap()).collect();
        assert!(held.len() >= 2);
        cells.assert_holds(&held, 3);
    });
}

#[test]
fn leases_rewritten() {
    rewritten_while_one_is_taken(1);
}

#[test]
fn leases_rewritten_twice() {
    rewritten_while_one_is_taken(2);
}

/// An ended lease is in no later life; a refused end leaves the lease held.
#[test]
fn leases_rewritten_while_one_ends() {
    model(|| {
        let cells = Cells::new();
        let mine = cells.take(1, 2).unwrap().unwrap();
        let other = cells.clone();
        let other = thread::spawn(move || other.leases().give_back(mine.0));
        cells.rewrite();
        let kept = match other.join().unwrap() {
            Ok(is_ended) => {
                assert!(is_ended);
                None
            }
            Err(Sealed) => Some(mine),
        };
        cells.assert_holds(kept.as_slice(), 2);
    });
}

/// A renewal that succeeded lasts.
#[test]
fn leases_rewritten_while_one_is_renewed() {
    model(|| {
        let cells = Cells::new();
        let mine = cells.take(1, 2).unwrap().unwrap();
        let other = cells.clone();
        let other = thread::spawn(move || other.leases().renew(mine.0, 20));
        cells.rewrite();
        let is_kept = other.join().unwrap() == Ok(true);
        let freed = cells.reclaim(10).unwrap();
        assert!(freed == 0 || !is_kept);
        let kept = (freed == 0).then_some(mine);
        cells.assert_holds(kept.as_slice(), 2);
    });
}

/// Two threads hold at most one unit each, of two: neither is ever denied.
#[test]
fn a_free_slot_is_never_denied() {
    model(|| {
        let cells = Cells::new();
        let run = |cells: &Cells| {
            for _ in 0..2 {
                let (lease, _) = cells.take(1, 2).unwrap().expect("a unit is free");
                assert_eq!(cells.leases().give_back(lease), Ok(true));
            }
        };
        let other = cells.clone();
        let other = thread::spawn(move || run(&other));
        run(&cells);
        other.join().unwrap();
        cells.assert_holds(&[], 2);
    });
}
