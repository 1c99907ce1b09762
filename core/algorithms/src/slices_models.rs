//! Models of the sliced log, for loom and shuttle: see `log_models.rs`.

use super::*;
use crate::Algorithm;
use crate::atomic::AtomicU64 as Cell;
use crate::models::{Arc, model, thread};

const W: Tick = 50;
/// The length of a slice.
const D: Tick = W.div_ceil(PER_WINDOW);

struct Cells {
    head: Cell,
    life: Cell,
    era: Cell,
    logged: Cell,
    written: Cell,
    ring: Vec<Cell>,
    time: Cell,
}

type Starts = Vec<(Tick, u64)>;

impl Cells {
    fn new() -> Arc<Cells> {
        let ring = (0..SLICES).map(|_| Cell::new(0)).collect();
        // Time begins beyond the window, as a store's does.
        let [head, life, era, logged, written] = std::array::from_fn(|_| Cell::new(0));
        Arc::new(Cells { head, life, era, logged, written, ring, time: Cell::new(2 * W) })
    }

    fn log(&self) -> Slices<'_> {
        let Cells { head, life, era, logged, written, ring, .. } = self;
        Slices { head, life, base: life.load(Acquire), ring, era, logged, written, born: 0 }
    }

    /// Every reading is a microsecond later than the one before.
    fn now(&self) -> Now {
        let tick = self.time.fetch_add(1, Relaxed);
        Now { floor: tick, ceil: tick }
    }

    fn pass(&self, time: Tick) {
        self.time.fetch_add(time, Relaxed);
    }

    fn ask(&self, limit: u64, weight: u64, patience: Tick) -> Result<Answer, Sealed> {
        let windows = [Window { limit, length: W }];
        let ask = Ask { patience, ..Ask::now(&windows, weight, 0) };
        self.log().claim(&ask, || self.now())
    }

    /// Returns when it starts, and its weight.
    fn claim(&self, limit: u64, weight: u64, patience: Tick) -> Result<Option<(Tick, u64)>, Sealed> {
        let answer = self.ask(limit, weight, patience)?;
        Ok(answer.taken.map(|_| (answer.now.ceil.max(answer.ready), weight)))
    }

    /// A claim whose owner dies after filling the slices that it would have entered, or after its jump.
    fn die_before_claiming(&self) {
        let Ok(log) = self.log().begun(|| self.now()) else { return };
        let scale = log.scale(W);
        let Ok(seen) = log.look(&scale, || self.now()) else { return };
        let slice = scale.slice_of(seen.now.ceil).max(seen.slice);
        match slice > seen.slice + SLICES {
            true => drop(log.move_head(&seen, slice, 0)),
            false => log.fill(seen.oldest.max(seen.slice + 1), slice, seen.units),
        }
    }

    /// Takes everything that is left, and asserts that no more is left than should be.
    fn take_the_rest(&self, limit: u64, starts: &mut Starts) -> u64 {
        let before = starts.len();
        while let Some(start) = self.claim(limit, 1, 0).unwrap() {
            starts.push(start);
        }
        // They count up to a slice longer than necessary, and the denied claim read the time before this.
        let now = self.now().floor;
        let used: u64 = starts.iter().filter(|(at, _)| at + W + D > now - 1).map(|(_, weight)| weight).sum();
        assert!(used >= limit, "free units could not be taken: {starts:?} at {now}");
        (starts.len() - before) as u64
    }

    /// Ends this life and begins the next.
    fn rebuild(&self) {
        let base = self.log().seal();
        let sealed = Slices { base, ..self.log() };
        let now = self.now();
        let history = sealed.history(W, now);
        // A swap, because loom does not know that a store after another thread's compare-and-swap is the later one.
        self.life.swap(base | CLOSED, AcqRel);
        let base = sealed.write(&history, Window { limit: 2, length: W }, now).unwrap();
        self.life.store(base, Release);
    }
}

/// Asserts that no half-open window of length `W` holds more than `limit` units.
fn assert_kept(mut starts: Starts, limit: u64) {
    starts.sort();
    for (i, &(from, _)) in starts.iter().enumerate() {
        let held: u64 = starts[i..].iter().take_while(|(at, _)| *at < from + W).map(|(_, weight)| weight).sum();
        assert!(held <= limit, "{held} in one window: {starts:?}");
    }
}

/// One start, a pause, then two threads with these weights, `rounds` each. The first goes a slice ahead before each, or
/// dies. Then the rest is taken.
fn race(pause: Tick, limit: u64, weights: [u64; 2], rounds: u64, dies: bool) {
    model(move || {
        let cells = Cells::new();
        let mut starts: Starts = cells.claim(limit, 1, 0).unwrap().into_iter().collect();
        cells.pass(pause);
        let other = cells.clone();
        let other = thread::spawn(move || -> Starts {
            (0..rounds).filter_map(|_| other.claim(limit, weights[1], 0).unwrap()).collect()
        });
        for _ in 0..rounds {
            cells.pass(D);
            match dies {
                true => cells.die_before_claiming(),
                false => starts.extend(cells.claim(limit, weights[0], 0).unwrap()),
            }
        }
        starts.extend(other.join().unwrap());
        cells.take_the_rest(limit, &mut starts);
        assert_kept(starts, limit);
    });
}

#[test]
fn sliced_starts_across_a_boundary() {
    race(0, 4, [1, 1], 2, false);
}

#[test]
fn sliced_starts_of_different_weights() {
    race(0, 5, [2, 3], 2, false);
}

#[test]
fn sliced_starts_while_the_first_leaves() {
    race(W - D, 3, [1, 1], 2, false);
}

#[test]
fn sliced_starts_after_a_long_pause() {
    race(3 * D * SLICES, 3, [1, 2], 1, false);
}

#[test]
fn sliced_starts_after_a_pause_as_long_as_the_ring() {
    race(D * SLICES, 3, [1, 2], 1, false);
}

#[test]
fn a_sliced_start_next_to_one_whose_owner_dies() {
    race(0, 4, [1, 2], 2, true);
}

#[test]
fn a_sliced_start_next_to_one_whose_owner_dies_after_its_jump() {
    race(3 * D * SLICES, 4, [1, 2], 1, true);
}

/// Unused cells: both threads begin their first life.
#[test]
fn the_first_sliced_starts() {
    model(|| {
        let cells = Cells::new();
        let other = cells.clone();
        let other = thread::spawn(move || other.claim(3, 2, 0).unwrap());
        let mut starts: Starts = cells.claim(3, 1, 0).unwrap().into_iter().collect();
        starts.extend(other.join().unwrap());
        assert_eq!(starts.len(), 2, "both fit");
        assert_eq!(cells.take_the_rest(3, &mut starts), 0);
    });
}

#[test]
fn sliced_waiters_queue() {
    model(|| {
        let cells = Cells::new();
        let other = cells.clone();
        let mut starts: Starts = cells.claim(2, 2, 0).unwrap().into_iter().collect();
        let other = thread::spawn(move || other.claim(2, 1, W + D).unwrap());
        starts.extend(cells.claim(2, 1, W + D).unwrap());
        starts.extend(other.join().unwrap());
        assert_eq!(starts.len(), 3);
        assert_kept(starts, 2);
    });
}

/// A denial's `ready` is exact: other callers can only make it later, so one tick earlier no units are free.
#[test]
fn a_sliced_denial_does_not_exaggerate() {
    model(|| {
        let cells = Cells::new();
        let other = cells.clone();
        cells.claim(3, 1, 0).unwrap().unwrap();
        cells.pass(2 * D);
        cells.claim(3, 2, 0).unwrap().unwrap();
        let other = thread::spawn(move || {
            other.pass(W - 2 * D);
            let _ = other.claim(3, 1, 0).unwrap();
        });
        let answer = cells.ask(3, 1, 0).unwrap();
        other.join().unwrap();
        if answer.taken.is_none() {
            cells.time.store(answer.ready - 1, Relaxed);
            assert_eq!(cells.claim(3, 1, 0).unwrap(), None, "admitted before {}", answer.ready);
        }
    });
}

/// A start is in the next life, or was refused; no caller acts on a life with another's base.
fn rebuilt_while_a_claim_is_in_flight(pause: Tick) {
    model(move || {
        let cells = Cells::new();
        let mut starts: Starts = cells.claim(2, 1, 0).unwrap().into_iter().collect();
        let other = cells.clone();
        let claimant = thread::spawn(move || other.claim(2, 1, 0).ok().flatten());
        cells.pass(pause);
        cells.rebuild();
        starts.extend(cells.claim(2, 1, 0).unwrap());
        starts.extend(claimant.join().unwrap());
        cells.take_the_rest(2, &mut starts);
        assert_kept(starts, 2);
    });
}

#[test]
fn sliced_starts_rebuilt() {
    rebuilt_while_a_claim_is_in_flight(0);
}

/// By the former life's numbers, everything in this one is long past.
#[test]
fn sliced_starts_rebuilt_much_later() {
    rebuilt_while_a_claim_is_in_flight(2 * D * STRIDE);
}

/// A claim, a rebuild and another rebuild: words of the head do not come back.
#[test]
fn sliced_starts_rebuilt_twice() {
    model(|| {
        let cells = Cells::new();
        let mut starts: Starts = Vec::new();
        let other = cells.clone();
        let claimant = thread::spawn(move || other.claim(2, 1, 0).ok().flatten());
        cells.rebuild();
        cells.rebuild();
        starts.extend(claimant.join().unwrap());
        let used = starts.len() as u64;
        assert_eq!(used + cells.take_the_rest(2, &mut starts), 2);
    });
}

/// Two places start while other callers want their units: these become free, and no more.
#[test]
fn the_rest_of_a_grace_is_given_back_and_no_more() {
    model(|| {
        let cells = Cells::new();
        let windows = [Window { limit: 3, length: W }];
        let ask = Ask { reserve: true, grace: 2 * D, ..Ask::now(&windows, 1, 0) };
        let place = |weight| {
            let taken = cells.log().claim(&Ask { weight, ..ask }, || cells.now()).unwrap().taken.unwrap();
            StartId { ticket: taken.ticket, stamp: taken.stamp, weight }
        };
        let (first, second) = (place(1), place(1));
        let start = |cells: &Cells, place: StartId| {
            let now = cells.now();
            // It may be late.
            let stamp = (now.ceil <= place.stamp).then(|| cells.log().present(place, W, now).unwrap().unwrap());
            assert!(stamp.is_none_or(|stamp| (now.ceil..=place.stamp).contains(&stamp)));
            stamp.map(|_| (now.ceil, place.weight))
        };
        let other = cells.clone();
        let other = thread::spawn(move || {
            other.pass(D);
            let start = start(&other, second);
            other.pass(W - 2 * D);
            [start, other.claim(3, 2, 0).unwrap()]
        });
        let mut starts: Starts = start(&cells, first).into_iter().collect();
        starts.extend(cells.claim(3, 1, 0).unwrap());
        starts.extend(other.join().unwrap().into_iter().flatten());
        // As soon as units are free: time passes.
        starts.extend((0..40).filter_map(|_| cells.claim(3, 1, 0).unwrap()));
        assert_kept(starts, 3);
    });
}

/// A place waits for another one, which starts early meanwhile: it may start a window after that, and no sooner.
#[test]
fn a_sliced_place_is_ready_a_window_after_what_it_waits_for() {
    model(|| {
        let cells = Cells::new();
        let windows = [Window { limit: 1, length: W }];
        let place = |grace| {
            let ask = Ask { reserve: true, patience: 2 * W, grace, ..Ask::now(&windows, 1, 0) };
            let answer = cells.log().claim(&ask, || cells.now()).unwrap();
            let taken = answer.taken.unwrap();
            (StartId { ticket: taken.ticket, stamp: taken.stamp, weight: 1 }, answer.ready)
        };
        let ((first, _), (second, before)) = (place(2 * D), place(0));
        let now = cells.now();
        let other = cells.clone();
        let presenter = thread::spawn(move || other.log().present(first, W, now).unwrap().unwrap());
        let ready = cells.log().ready_of(second, &Ask::now(&windows, 1, 0), || cells.now()).unwrap().unwrap();
        cells.time.fetch_max(ready, Relaxed);
        assert!(cells.log().present(second, W, cells.now()).unwrap().is_some());
        presenter.join().unwrap();
        assert!((now.ceil + W..=before).contains(&ready), "{now:?}: {ready}, {before}");
        assert_eq!(cells.claim(1, 1, 0).unwrap(), None);
    });
}

/// A caller that stalls between starting and giving the rest back takes nothing from the next life.
#[test]
fn the_rest_of_a_grace_does_not_survive_a_rebuild() {
    model(|| {
        let cells = Cells::new();
        let windows = [Window { limit: 2, length: W }];
        let ask = Ask { reserve: true, grace: 2 * D, ..Ask::now(&windows, 1, 0) };
        let taken = cells.log().claim(&ask, || cells.now()).unwrap().taken.unwrap();
        let place = StartId { ticket: taken.ticket, stamp: taken.stamp, weight: 1 };
        let other = cells.clone();
        let presenter = thread::spawn(move || {
            let now = other.now();
            other.log().present(place, W, now).is_ok_and(|stamp| stamp.is_some())
        });
        cells.rebuild();
        // Whether or not it has started, it counts.
        let left = (0..).take_while(|_| cells.claim(2, 1, 0).unwrap().is_some()).count();
        assert_eq!(left, 1, "started: {}", presenter.join().unwrap());
    });
}

/// A place looks when it is ready, while a recorded start, which waits for nothing, moves to an earlier slice: the place is not
/// ready before those that it waits for have left the window.
#[test]
fn a_recorded_start_that_moves_makes_no_place_ready_too_soon() {
    model(|| {
        let cells = Cells::new();
        let windows = [Window { limit: 2, length: W }];
        let place = |weight, grace| {
            let ask = Ask { reserve: true, patience: 3 * W, grace, ..Ask::now(&windows, weight, 0) };
            let taken = cells.log().claim(&ask, || cells.now()).unwrap().taken.unwrap();
            StartId { ticket: taken.ticket, stamp: taken.stamp, weight }
        };
        let (first, second, _third) = (place(2, D), place(1, 0), place(1, D));
        let other = cells.clone();
        let recorded = thread::spawn(move || {
            let windows = [Window { limit: 2, length: W }];
            let ask = Ask { force: true, ..Ask::now(&windows, 1, 0) };
            other.log().claim(&ask, || other.now()).unwrap();
        });
        let ready = cells.log().ready_of(second, &Ask::now(&windows, 1, 0), || cells.now()).unwrap().unwrap();
        recorded.join().unwrap();
        assert!(ready >= first.stamp + W, "ready at {ready}, but the first may start until {}", first.stamp);
    });
}
