//! Models of the counted windows, for loom and shuttle: see `log_models.rs`.

use super::*;
use crate::Algorithm;
use crate::atomic::AtomicU64 as Cell;
use crate::log::CLOSED as NO_LIFE;
use crate::models::{Arc, model, thread};

/// The length of a window.
const W: Tick = 50;
/// A window begins here.
const BEGIN: Tick = 20 * W;

struct Cells {
    ring: Vec<Cell>,
    life: Cell,
    base: Cell,
    era: Cell,
    logged: Cell,
    past: [Cell; 3],
    time: Cell,
    frame: Frame,
}

/// When, and how many units. They are counted in that window.
type Starts = Vec<(Tick, u64)>;

impl Cells {
    fn new(limit: u64, is_smooth: bool) -> Arc<Cells> {
        let [life, base, era, logged] = std::array::from_fn(|_| Cell::new(0));
        let ring = (0..2).map(|_| Cell::new(0)).collect();
        let frame = Frame { limit, length: W, is_smooth, phase: 0 };
        let past = std::array::from_fn(|_| Cell::new(0));
        Arc::new(Cells { ring, life, base, era, logged, past, time: Cell::new(BEGIN), frame })
    }

    fn counter(&self) -> Counter<'_> {
        let Cells { ring, life, base, era, logged, past: [begun, until, units], frame, .. } = self;
        let past = Past { begun, until, units };
        Counter { ring, life, number: life.load(Acquire), base, era, logged, born: 0, frame: *frame, past }
    }

    /// Every reading is a microsecond later than the one before.
    fn now(&self) -> Now {
        let tick = self.time.fetch_add(1, Relaxed);
        Now { floor: tick, ceil: tick }
    }

    fn pass(&self, time: Tick) {
        self.time.fetch_add(time, Relaxed);
    }

    fn ask(&self, weight: u64, patience: Tick) -> Result<Answer, Sealed> {
        let counter = self.counter();
        if counter.number == NO_LIFE {
            return Err(Sealed);
        }
        counter.claim(&Ask { patience, ..Ask::now(&[], weight, 0) }, || self.now())
    }

    fn claim(&self, weight: u64, patience: Tick) -> Result<Option<(Tick, u64)>, Sealed> {
        let answer = self.ask(weight, patience)?;
        Ok(answer.taken.map(|taken| {
            assert_eq!(taken.stamp, self.frame.end_of(self.frame.window_of(answer.ready)));
            (answer.ready, weight)
        }))
    }

    /// A claim whose owner dies after closing what it had to close.
    fn die_before_claiming(&self, patience: Tick) {
        let counter = self.counter();
        let base = counter.begun(|| self.now());
        let Ok(cells) = counter.read_open() else { return };
        let seen = Seen { cells, base, now: self.now(), frame: self.frame };
        let (number, ready) = seen.earliest(1, seen.now.floor, seen.number(seen.now.floor));
        if (number - seen.frontier()) % 2 == 1 && ready <= seen.now.floor + patience {
            counter.step(&seen, number, 1);
        }
    }

    /// Ends this life and begins the next.
    fn rebuild(&self) {
        let sealed = self.counter();
        sealed.seal();
        let now = self.now();
        let history = sealed.history(now);
        // Swaps, because loom does not know that a store after another thread's compare-and-swap is the later one.
        self.life.swap(NO_LIFE, AcqRel);
        let base = self.counter().write(&history, now).unwrap();
        self.base.swap(base, AcqRel);
        self.life.swap(sealed.number + 1, AcqRel);
    }

    fn units(&self, starts: &Starts, window: u64, until: Tick) -> u64 {
        let counts = |start: &&(Tick, u64)| self.frame.window_of(start.0) == window && start.0 <= until;
        starts.iter().filter(counts).map(|start| start.1).sum()
    }

    /// Returns whether a start of this weight fitted, given what had been started by then.
    fn had_room(&self, starts: &Starts, at: Tick, weight: u64) -> bool {
        let window = self.frame.window_of(at);
        let elapsed = at - self.frame.start_of(window);
        let before = if self.frame.is_smooth { self.units(starts, window - 1, Tick::MAX) } else { 0 };
        before * (W - elapsed) + (self.units(starts, window, at) + weight) * W <= self.frame.limit * W
    }

    /// Asserts that all of them fitted; that they and nothing else are counted, in their windows; and that the rest can
    /// be taken, and no more.
    fn assert_kept(&self, mut starts: Starts) {
        let most = self.frame.limit;
        for round in 0..=most {
            let seen = self.counter().as_is(self.now());
            let newest = number_in(newest(seen.cells));
            for number in [newest - 1, newest] {
                let units = self.units(&starts, seen.window(number), Tick::MAX);
                assert_eq!(seen.units_of(number), units, "in window {}: {starts:?}", seen.window(number));
            }
            for &(at, _) in &starts {
                assert!(self.had_room(&starts, at, 0), "too much at {at}: {starts:?}");
            }
            let answer = self.ask(1, 0).unwrap();
            match answer.taken {
                Some(_) => starts.push((answer.ready, 1)),
                None => {
                    let now = answer.now.floor;
                    let has_waiter = starts.iter().any(|start| start.0 > now);
                    assert!(has_waiter || !self.had_room(&starts, now, 1), "denied at {now}: {starts:?}");
                    return;
                }
            }
            assert!(round < most, "too many: {starts:?}");
        }
    }
}

/// One start, then two threads with these weights. The first lets a time pass before each of its own, or dies.
fn race(is_smooth: bool, limit: u64, weights: [u64; 2], pauses: [Tick; 2], dies: bool) {
    model(move || {
        let cells = Cells::new(limit, is_smooth);
        let mut starts: Starts = cells.claim(1, 0).unwrap().into_iter().collect();
        let other = cells.clone();
        let other =
            thread::spawn(move || -> Starts { (0..2).filter_map(|_| other.claim(weights[1], 0).unwrap()).collect() });
        for pause in pauses {
            cells.pass(pause);
            match dies {
                true => cells.die_before_claiming(0),
                false => starts.extend(cells.claim(weights[0], 0).unwrap()),
            }
        }
        starts.extend(other.join().unwrap());
        cells.assert_kept(starts);
    });
}

#[test]
fn counted_starts_in_a_window() {
    race(true, 4, [1, 2], [0, 0], false);
}

#[test]
fn counted_starts_across_a_boundary() {
    race(true, 5, [2, 1], [0, W], false);
    race(false, 3, [2, 1], [0, W], false);
}

#[test]
fn counted_starts_where_windows_are_skipped() {
    race(true, 5, [2, 1], [2 * W, W], false);
    race(true, 5, [1, 2], [3 * W, 0], false);
    race(false, 3, [1, 2], [W, 2 * W], false);
}

#[test]
fn a_counted_start_next_to_one_whose_owner_dies() {
    race(true, 4, [1, 1], [W, W], true);
    race(true, 4, [1, 2], [3 * W, 0], true);
}

/// Unused cells: both threads begin their first life.
#[test]
fn the_first_counted_starts() {
    model(|| {
        let cells = Cells::new(3, true);
        let other = cells.clone();
        let other = thread::spawn(move || other.claim(2, 0).unwrap());
        let mut starts: Starts = cells.claim(1, 0).unwrap().into_iter().collect();
        starts.extend(other.join().unwrap());
        assert_eq!(starts.len(), 2, "both fit");
        cells.assert_kept(starts);
    });
}

/// One window fills up and the next begins during a read.
#[test]
fn a_window_is_closed_while_it_is_read() {
    model(|| {
        let cells = Cells::new(4, true);
        let mut starts: Starts = cells.claim(1, 0).unwrap().into_iter().collect();
        let other = cells.clone();
        let other = thread::spawn(move || other.claim(2, 0).unwrap());
        starts.extend(cells.claim(2, 0).unwrap());
        cells.pass(W);
        starts.extend(cells.claim(1, 0).unwrap());
        starts.extend(other.join().unwrap());
        cells.assert_kept(starts);
    });
}

/// Waiters have their places in the later windows, and no request passes them.
fn waiters(is_smooth: bool) {
    model(move || {
        let cells = Cells::new(2, is_smooth);
        let other = cells.clone();
        let mut starts: Starts = cells.claim(1, 0).unwrap().into_iter().collect();
        let other = thread::spawn(move || other.claim(2, 3 * W).unwrap());
        starts.extend(cells.claim(1, 0).unwrap());
        starts.extend(cells.claim(1, 3 * W).unwrap());
        starts.extend(other.join().unwrap());
        cells.pass(2 * W);
        cells.assert_kept(starts);
    });
}

#[test]
fn counted_waiters_queue() {
    waiters(false);
    waiters(true);
}

/// A waiter that dies blocks no other caller beyond the window that it waited for.
#[test]
fn a_counted_waiter_dies() {
    model(|| {
        let cells = Cells::new(2, true);
        let other = cells.clone();
        let mut starts: Starts = cells.claim(2, 0).unwrap().into_iter().collect();
        let other = thread::spawn(move || other.claim(1, 3 * W).unwrap());
        cells.die_before_claiming(3 * W);
        starts.extend(other.join().unwrap());
        assert_eq!(starts.len(), 2);
        cells.pass(W + W / 2);
        let (at, _) = cells.claim(1, W).unwrap().unwrap();
        assert!(at <= BEGIN + 2 * W, "{at}");
        starts.push((at, 1));
        cells.pass(W);
        cells.assert_kept(starts);
    });
}

/// A denial's `ready` is exact: other callers can only make it later, so one tick earlier the start does not fit.
#[test]
fn a_counted_denial_does_not_exaggerate() {
    model(|| {
        let cells = Cells::new(3, true);
        let other = cells.clone();
        cells.claim(3, 0).unwrap().unwrap();
        let other = thread::spawn(move || {
            other.pass(W);
            let _ = other.claim(1, 0).unwrap();
        });
        let answer = cells.ask(2, 0).unwrap();
        other.join().unwrap();
        if answer.taken.is_none() {
            cells.time.store(answer.ready - 1, Relaxed);
            assert_eq!(cells.claim(2, 0).unwrap(), None, "admitted before {}", answer.ready);
        }
    });
}

/// A view of both cells was the state at some moment.
#[test]
fn a_view_of_both_windows() {
    model(|| {
        let cells = Cells::new(9, true);
        cells.claim(1, 0).unwrap().unwrap();
        let other = cells.clone();
        let other = thread::spawn(move || {
            other.claim(2, 0).unwrap().unwrap();
            other.pass(W);
            other.claim(1, 0).unwrap().unwrap();
        });
        let view = cells.counter().view(&Ask::now(&[], 1, 0), || cells.now()).unwrap();
        // First 1 is used, then 3, then 3 and 1 in the next window: never 1 and 1.
        assert!([8, 6, 5].contains(&view.remaining), "{view:?}");
        other.join().unwrap();
    });
}

/// A start is in the next life, or was refused; no caller acts on a life with another's base.
fn rebuilt_while_a_claim_is_in_flight(pauses: [Tick; 2], patience: Tick) {
    model(move || {
        let cells = Cells::new(3, true);
        let mut starts: Starts = cells.claim(1, 0).unwrap().into_iter().collect();
        let other = cells.clone();
        let claimant = thread::spawn(move || other.claim(1, patience).ok().flatten());
        cells.pass(pauses[0]);
        cells.rebuild();
        cells.pass(pauses[1]);
        starts.extend(cells.claim(1, 0).unwrap());
        starts.extend(claimant.join().unwrap());
        cells.pass(2 * patience);
        cells.assert_kept(starts);
    });
}

#[test]
fn counted_starts_rebuilt() {
    rebuilt_while_a_claim_is_in_flight([0, 0], 0);
}

#[test]
fn counted_starts_rebuilt_in_another_window() {
    rebuilt_while_a_claim_is_in_flight([W, 0], 0);
    rebuilt_while_a_claim_is_in_flight([0, W], 0);
}

#[test]
fn a_counted_waiter_is_rebuilt() {
    rebuilt_while_a_claim_is_in_flight([0, 0], 3 * W);
}

/// A claim, a rebuild and another rebuild: words do not come back.
#[test]
fn counted_starts_rebuilt_twice() {
    model(|| {
        let cells = Cells::new(2, true);
        let mut starts: Starts = Vec::new();
        let other = cells.clone();
        let claimant = thread::spawn(move || other.claim(1, 0).ok().flatten());
        cells.rebuild();
        cells.rebuild();
        starts.extend(claimant.join().unwrap());
        cells.assert_kept(starts);
    });
}
