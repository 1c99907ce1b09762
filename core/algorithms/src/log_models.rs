//! Models of the log, for two checkers. loom tries the interleavings and reorderings that it considers different, up to
//! a number of preemptions. shuttle tries random interleavings, and so finds those that loom wrongly considers alike.
//!
//! `tests/torture/models` runs them, and then again with each bug planted, which must make one of them fail.

use super::*;
use crate::Algorithm;
use crate::atomic::AtomicU64 as Cell;
use crate::models::{Arc, model, thread};

pub(crate) const W: Tick = 50;

pub(crate) struct Cells {
    head: Cell,
    cleared: Cell,
    own: Cell,
    logged: Cell,
    life: Cell,
    base: Cell,
    peak: Cell,
    ring: Vec<Cell>,
    /// The size of a whole ring.
    whole: u64,
    left_out: [Cell; 2],
    origins: Vec<Cell>,
    time: Cell,
}

impl Cells {
    pub(crate) fn new(size: usize) -> Arc<Cells> {
        Cells::small(size, size as u64)
    }

    fn small(size: usize, whole: u64) -> Arc<Cells> {
        let zeros = || (0..size).map(|_| Cell::new(0)).collect();
        let [head, cleared, own, logged, life, base, peak] = std::array::from_fn(|_| Cell::new(0));
        // Time begins beyond the window, as a store's does.
        Arc::new(Cells {
            head,
            cleared,
            own,
            logged,
            life,
            base,
            peak,
            ring: zeros(),
            whole,
            left_out: std::array::from_fn(|_| Cell::new(0)),
            origins: zeros(),
            time: Cell::new(2 * W),
        })
    }

    fn log(&self) -> Log<'_> {
        self.log_in(self.life.load(Acquire))
    }

    fn log_in(&self, number: u64) -> Log<'_> {
        let base = self.base.load(Acquire);
        let Cells { head, cleared, own, logged, life, peak, ring, origins, .. } = self;
        Log {
            head,
            cleared,
            own,
            logged,
            ring,
            whole: self.whole,
            largest: self.whole / 2,
            left_out: self.left_out.each_ref(),
            origins,
            peak,
            life,
            number,
            base,
            born: 0,
        }
    }

    /// Opens the cells as a caller that finds a key does: cells that are being written are not read.
    fn open(&self) -> Result<Log<'_>, Sealed> {
        let log = self.log();
        if log.number == CLOSED { Err(Sealed) } else { Ok(log) }
    }

    /// Begins another life.
    fn live(&self, history: &History, now: Now) {
        let number = self.life.load(Acquire) + 1;
        self.life.store(CLOSED, Release);
        let base = self.log_in(CLOSED).write(history, now).unwrap();
        self.base.store(base, Release);
        self.life.store(number, Release);
    }

    /// Continues with the contents of `from`.
    pub(crate) fn take_over(&self, from: &Cells, edit: impl Fn(&mut Vec<Start>)) {
        let sealed = from.log();
        sealed.seal();
        let now = from.now();
        let mut history = sealed.history(W, now);
        if sealed.is_small() {
            // As in the store.
            let since = now.floor - W;
            history.forget_before(since);
            history.pad(sealed.largest, since);
        }
        edit(&mut history.starts);
        self.live(&history, now);
        self.time.fetch_max(from.time.load(Relaxed), Relaxed);
    }

    /// Lets the time pass.
    pub(crate) fn wait_until(&self, tick: Tick) {
        self.time.fetch_max(tick, Relaxed);
    }

    /// Returns how many units can still be taken.
    fn left(&self, limit: u64) -> u64 {
        (0..).take_while(|_| self.claim(limit, 1, 0).unwrap().is_some()).count() as u64
    }

    /// Every reading is a microsecond later than the one before.
    fn now(&self) -> Now {
        let tick = self.time.fetch_add(1, Relaxed);
        Now { floor: tick, ceil: tick }
    }

    fn ask(&self, limit: u64, weight: u64, patience: Tick) -> Result<Answer, Sealed> {
        let windows = [Window { limit, length: W }];
        let ask = Ask { patience, ..Ask::now(&windows, weight, 0) };
        self.open()?.claim(&ask, || self.now())
    }

    pub(crate) fn claim(&self, limit: u64, weight: u64, patience: Tick) -> Result<Option<Taken>, Sealed> {
        self.ask(limit, weight, patience).map(|answer| answer.taken)
    }

    /// A claim whose owner dies right after the compare-and-swap.
    fn claim_and_die(&self, limit: u64, weight: u64) -> Option<Taken> {
        let windows = [Window { limit, length: W }];
        let ask = Ask::now(&windows, weight, 0);
        let log = self.log();
        let Tail { ticket, was, .. } = log.tail().ok()?;
        let ready = log.ready::<false>(ticket, 0, &ask);
        let newest = log.newest(ticket);
        let now = self.now();
        let stamp = now.ceil.max(newest);
        let word = log.word(ticket, stamp, STARTED, weight);
        let claimed = ready <= now.floor && log.slot(ticket).compare_exchange(was, word, AcqRel, Relaxed).is_ok();
        claimed.then_some(Taken { ticket, end: ticket + weight, stamp, ahead: 0, stage: Stage::Start })
    }
}

/// Asserts that no half-open window of length `W` holds more than `limit` units.
pub(crate) fn assert_kept(mut starts: Vec<(Tick, u64)>, limit: u64) {
    starts.sort();
    for (i, &(from, _)) in starts.iter().enumerate() {
        let held: u64 = starts[i..].iter().take_while(|(at, _)| *at < from + W).map(|(_, weight)| weight).sum();
        assert!(held <= limit, "{held} in one window: {starts:?}");
    }
}

/// Two threads with these weights, `rounds` each. `dies` kills the first's owner after its claim; `jump` lets a window
/// pass before the last round of the first. Then the rest is taken.
fn race(size: usize, limit: u64, weights: [u64; 2], rounds: usize, dies: bool, jump: bool) {
    model(move || {
        let cells = Cells::new(size);
        let run = |me: usize| {
            let cells = cells.clone();
            move || {
                let mut starts = Vec::new();
                for round in 0..rounds {
                    if jump && me == 0 && round + 1 == rounds {
                        cells.time.fetch_add(W, Relaxed);
                    }
                    let taken = match dies && me == 0 {
                        true => cells.claim_and_die(limit, weights[me]),
                        false => cells.claim(limit, weights[me], 0).unwrap(),
                    };
                    starts.extend(taken.map(|t| (t.stamp, weights[me])));
                }
                starts
            }
        };
        let other = thread::spawn(run(1));
        let mut starts = run(0)();
        starts.extend(other.join().unwrap());
        let used: u64 = starts.iter().map(|s| s.1).sum();
        let mut left = 0;
        while let Some(taken) = cells.claim(limit, 1, 0).unwrap() {
            starts.push((taken.stamp, 1));
            left += 1;
        }
        assert_kept(starts, limit);
        if !jump {
            assert_eq!(used + left, limit, "free units could not be taken");
        }
    });
}

#[test]
fn light_starts() {
    race(4, 2, [1, 1], 2, false, false);
}

#[test]
fn light_starts_round_the_ring() {
    race(4, 2, [1, 1], 3, false, true);
}

#[test]
fn heavy_starts() {
    race(8, 3, [2, 1], 2, false, false);
}

#[test]
fn heavy_starts_whose_owner_dies() {
    race(8, 3, [2, 1], 1, true, false);
}

#[test]
fn a_heavy_start_after_one_whose_owner_died() {
    race(8, 3, [2, 3], 1, true, false);
}

#[test]
fn heavy_starts_round_the_ring() {
    race(4, 2, [2, 1], 3, false, true);
}

/// The counter goes round the ring while a reader sleeps.
#[test]
fn a_slow_reader_is_not_fooled_by_a_later_lap() {
    model(|| {
        let cells = Cells::new(4);
        let fast = cells.clone();
        let other = thread::spawn(move || {
            let mut starts = Vec::new();
            for _ in 0..5 {
                fast.time.fetch_add(W, Relaxed);
                starts.extend(fast.claim(1, 1, 0).unwrap().map(|t| (t.stamp, 1)));
            }
            starts
        });
        let mut starts: Vec<_> = cells.claim(1, 1, 0).unwrap().map(|t| (t.stamp, 1)).into_iter().collect();
        starts.extend(other.join().unwrap());
        assert_kept(starts, 1);
    });
}

/// Future places keep their distance like starts.
#[test]
fn waiters_queue() {
    model(|| {
        let cells = Cells::new(4);
        let other = cells.clone();
        let other = thread::spawn(move || [other.claim(1, 1, 10 * W).unwrap(), other.claim(1, 1, 10 * W).unwrap()]);
        let mut starts = vec![cells.claim(1, 1, 10 * W).unwrap()];
        starts.extend(other.join().unwrap());
        assert!(starts.iter().all(Option::is_some));
        assert_kept(starts.into_iter().flatten().map(|t| (t.stamp, 1)).collect(), 1);
    });
}

/// A denial is true: at some moment no units were free.
#[test]
fn free_units_are_never_denied() {
    model(|| {
        let cells = Cells::new(4);
        let other = cells.clone();
        // The limit is 2. Two callers ask once each, after a start whose window ends.
        assert!(cells.claim(2, 1, 0).unwrap().is_some());
        cells.time.fetch_add(W, Relaxed);
        let other = thread::spawn(move || other.claim(2, 1, 0).unwrap().is_some());
        assert!(cells.claim(2, 1, 0).unwrap().is_some());
        assert!(other.join().unwrap());
    });
}

/// A denial's `ready` is exact: other callers can only make it later, so one tick earlier no units are free.
#[test]
fn a_denial_does_not_exaggerate() {
    model(|| {
        let cells = Cells::new(4);
        let other = cells.clone();
        for _ in 0..3 {
            cells.claim(3, 1, 0).unwrap().unwrap();
        }
        let other = thread::spawn(move || {
            other.time.fetch_add(W, Relaxed);
            let _ = [other.claim(3, 1, 0).unwrap(), other.claim(3, 1, 0).unwrap()];
        });
        let answer = cells.ask(3, 1, 0).unwrap();
        other.join().unwrap();
        if answer.taken.is_none() {
            cells.time.store(answer.ready - 1, Relaxed);
            assert_eq!(cells.claim(3, 1, 0).unwrap(), None, "admitted before {}", answer.ready);
        }
    });
}

/// A start is in the copy, or was refused: a caller can trust the copy.
#[test]
fn no_start_is_lost_when_a_log_is_rewritten() {
    model(|| {
        let cells = Cells::new(4);
        let other = cells.clone();
        let claimant = thread::spawn(move || other.claim(2, 1, 0).is_ok_and(|taken| taken.is_some()));
        let copy = Cells::new(8);
        copy.take_over(&cells, |_| {});
        let admitted = u64::from(claimant.join().unwrap());
        assert_eq!(admitted + copy.left(2), 2);
    });
}

/// Two callers fill a small ring, and one makes it grow: a start that only the ring forbids is not denied, and none is lost.
#[test]
fn a_small_ring_grows() {
    model(|| {
        let (small, whole) = (Cells::small(4, 8), Cells::new(8));
        let other = small.clone();
        let claimant = thread::spawn(move || [(); 2].map(|()| other.claim(4, 1, 0)));
        let mine = [(); 2].map(|()| small.claim(4, 1, 0));
        let all: Vec<_> = mine.into_iter().chain(claimant.join().unwrap()).collect();
        assert_eq!(all.iter().filter(|claimed| matches!(claimed, Ok(Some(_)))).count(), 3);
        assert_eq!(all.iter().filter(|claimed| claimed.is_err()).count(), 1);
        whole.take_over(&small, |_| {});
        assert_eq!(whole.left(4), 1);
    });
}

/// A caller makes a small ring grow, while another starts there.
#[test]
fn no_start_is_lost_when_a_small_ring_grows() {
    model(|| {
        let (small, whole) = (Cells::small(4, 8), Cells::new(8));
        assert_eq!(small.claim(4, 2, 0).map(|taken| taken.is_some()), Ok(true));
        let other = small.clone();
        let claimant = thread::spawn(move || [(); 2].map(|()| other.claim(4, 1, 0)));
        whole.take_over(&small, |_| {});
        let theirs = claimant.join().unwrap();
        assert!(!theirs.contains(&Ok(None)), "no start is denied");
        let admitted = theirs.iter().filter(|claimed| claimed.is_ok()).count() as u64;
        assert_eq!(admitted + whole.left(4), 2);
    });
}

/// Units beyond the limit are recorded in a small ring only where they overwrite nothing that counts.
#[test]
fn a_debt_in_a_small_ring_overwrites_nothing() {
    model(|| {
        let (small, whole) = (Cells::small(4, 8), Cells::new(8));
        assert_eq!(small.claim(4, 2, 0).map(|taken| taken.is_some()), Ok(true));
        let other = small.clone();
        let claimant = thread::spawn(move || other.claim(4, 1, 0));
        let windows = [Window { limit: 4, length: W }];
        let ask = Ask { force: true, ..Ask::now(&windows, 1, 0) };
        let debt = small.log().claim(&ask, || small.now()).is_ok();
        let theirs = claimant.join().unwrap();
        assert!(theirs != Ok(None) && debt != theirs.is_ok(), "the ring has space for one of them");
        whole.take_over(&small, |_| {});
        assert_eq!(whole.left(4), 1);
    });
}

/// A place of a small ring starts once, in the small ring or in the larger one.
#[test]
fn a_place_starts_once_while_its_ring_grows() {
    model(|| {
        let (small, whole) = (Cells::small(4, 8), Cells::new(8));
        let windows = [Window { limit: 4, length: W }];
        let ask = Ask { reserve: true, grace: 3, ..Ask::now(&windows, 1, 0) };
        let taken = small.log().claim(&ask, || small.now()).unwrap().taken.unwrap();
        let place = StartId { ticket: taken.ticket, stamp: taken.stamp, weight: 1 };
        let other = small.clone();
        let presenter = thread::spawn(move || {
            let now = other.now();
            other.open()?.present(place, W, now)
        });
        whole.take_over(&small, |_| {});
        let before = presenter.join().unwrap().is_ok_and(|stamp| stamp.is_some());
        let after = whole.log().present(place, W, whole.now()).unwrap().is_some();
        assert!(before != after, "started before the ring grew: {before}, after it: {after}");
        assert_eq!(whole.left(4), 3);
    });
}

/// A process dies while a ring grows, and so does one that starts there.
#[test]
fn no_start_is_lost_when_a_process_dies_while_a_ring_grows() {
    model(|| {
        let small = Cells::small(4, 8);
        let other = small.clone();
        let claimant = thread::spawn(move || other.claim_and_die(4, 2).is_some());
        let (half_done, whole) = (Cells::new(8), Cells::new(8));
        half_done.take_over(&small, |_| {});
        whole.take_over(&small, |_| {});
        let admitted = if claimant.join().unwrap() { 2 } else { 0 };
        assert_eq!(admitted + whole.left(4), 4);
    });
}

/// A process that dies while rewriting leaves everything that the next one needs to rewrite from the start.
#[test]
fn no_start_is_lost_when_the_rewriter_dies() {
    model(|| {
        let cells = Cells::new(4);
        let other = cells.clone();
        let claimant = thread::spawn(move || other.claim_and_die(2, 2).is_some());
        let (half_done, copy) = (Cells::new(8), Cells::new(8));
        half_done.take_over(&cells, |_| {});
        copy.take_over(&cells, |_| {});
        let admitted = if claimant.join().unwrap() { 2 } else { 0 };
        // A claim on the sealed log fails; an earlier one is in both copies.
        assert_eq!(admitted + copy.left(2), 2);
    });
}

/// The cells have another life, of the same key: a caller that began in the first life must not act on the third.
#[test]
fn a_claim_does_not_survive_a_rewrite() {
    model(|| {
        let cells = Cells::new(4);
        let other = cells.clone();
        assert!(cells.claim(1, 1, 0).unwrap().is_some());
        // It sees free units. By the time it claims, a start that only the next lives know has taken them.
        cells.time.fetch_add(W, Relaxed);
        let claimant = thread::spawn(move || other.claim(1, 1, 0).is_ok_and(|taken| taken.is_some()));
        let copy = Cells::new(4);
        copy.take_over(&cells, |_| {});
        let admitted = u64::from(copy.claim(1, 1, 0).unwrap().is_some());
        cells.take_over(&copy, |_| {});
        let left = cells.left(1);
        let stalled = u64::from(claimant.join().unwrap());
        let known = (admitted, left, stalled);
        assert_eq!(admitted + left + stalled, 1, "{known:?}");
    });
}

/// The cells belong to another key by now: a claim in flight does not charge it.
#[test]
fn a_claim_in_flight_does_not_reach_the_next_key() {
    model(|| {
        let cells = Cells::new(4);
        let other = cells.clone();
        let life = cells.life.load(Acquire);
        let claimant = thread::spawn(move || {
            let windows = [Window { limit: 1, length: W }];
            let answer = other.log_in(life).claim(&Ask::now(&windows, 1, 0), || other.now());
            answer.is_ok_and(|answer| answer.taken.is_some())
        });
        // It is idle, or it is not reused.
        let log = cells.log();
        log.seal();
        if log.is_idle(W, cells.now()) {
            cells.live(&History::default(), cells.now());
            assert!(!claimant.join().unwrap(), "it started on a forgotten key");
            assert_eq!(cells.left(1), 1, "the next key was charged for it");
        } else {
            assert!(claimant.join().unwrap());
        }
    });
}

/// Two callers present the same place: one starts. A concurrent rewrite knows which.
#[test]
fn a_place_starts_once() {
    model(|| {
        let cells = Cells::new(4);
        let windows = [Window { limit: 1, length: W }];
        let ask = Ask { reserve: true, grace: W, ..Ask::now(&windows, 1, 0) };
        let taken = cells.log().claim(&ask, || cells.now()).unwrap().taken.unwrap();
        let place = StartId { ticket: taken.ticket, stamp: taken.stamp, weight: 1 };
        let other = cells.clone();
        let presenter = thread::spawn(move || {
            let now = other.now();
            other.open()?.present(place, W, now)
        });
        let copy = Cells::new(4);
        copy.take_over(&cells, |_| {});
        let before = presenter.join().unwrap().is_ok_and(|stamp| stamp.is_some());
        let after = copy.log().present(place, W, copy.now()).unwrap().is_some();
        assert!(before != after, "started before the rewrite: {before}, after it: {after}");
        assert_eq!(copy.log().present(place, W, copy.now()), Ok(None));
    });
}

/// A heavy place starts early while others want its units: it counts from its start, and no other start is too early.
#[test]
fn the_rest_of_a_grace_is_given_back_and_no_more() {
    model(|| {
        let cells = Cells::new(8);
        let windows = [Window { limit: 2, length: W }];
        let ask = Ask { reserve: true, grace: 3, ..Ask::now(&windows, 2, 0) };
        let taken = cells.log().claim(&ask, || cells.now()).unwrap().taken.unwrap();
        let place = StartId { ticket: taken.ticket, stamp: taken.stamp, weight: 2 };
        let now = cells.now();
        let other = cells.clone();
        let claimant = thread::spawn(move || {
            let second = other.claim(2, 1, 2 * W).unwrap().unwrap();
            let place = StartId { ticket: second.ticket, stamp: second.stamp, weight: 1 };
            other.time.store(second.stamp, Relaxed);
            (place, other.log().present(place, W, other.now()))
        });
        let first = cells.log().present(place, W, now).unwrap().unwrap();
        assert!(first >= now.ceil && first <= place.stamp);
        let (second, started) = claimant.join().unwrap();
        assert!(second.stamp >= first + W, "the first counts from {first}, the second from {}", second.stamp);
        let started = started.unwrap().unwrap();
        assert!(started >= first && started <= second.stamp);
        // The second counts; the first has left the window, or is about to.
        assert!(cells.left(2) <= 1);
    });
}

/// A place waits for another one, which starts early meanwhile: it may start a window after that, and no sooner.
#[test]
fn a_place_is_ready_a_window_after_what_it_waits_for() {
    model(|| {
        let cells = Cells::new(4);
        let windows = [Window { limit: 1, length: W }];
        let ask = Ask { reserve: true, patience: 9 * W, grace: W / 2, ..Ask::now(&windows, 1, 0) };
        let [(first, _), (second, before)] = [(); 2].map(|()| {
            let answer = cells.log().claim(&ask, || cells.now()).unwrap();
            let taken = answer.taken.unwrap();
            (StartId { ticket: taken.ticket, stamp: taken.stamp, weight: 1 }, answer.ready)
        });
        let now = cells.now();
        let other = cells.clone();
        let presenter = thread::spawn(move || other.log().present(first, W, now).unwrap().unwrap());
        let ready = cells.log().ready_of(second, &ask).unwrap().unwrap();
        cells.wait_until(ready);
        let started = cells.log().present(second, W, cells.now()).unwrap().unwrap();
        let first = presenter.join().unwrap();
        assert!((first + W..=before).contains(&ready) && started >= ready, "{first}: {ready}, {started}");
        assert_eq!(cells.left(1), 0);
    });
}

/// A caller that helps a dead claimant, and sleeps for a lap, overwrites nothing.
#[test]
fn a_helper_that_sleeps_for_a_lap_undoes_no_start() {
    model(|| {
        let cells = Cells::new(4);
        let dead = cells.claim_and_die(2, 2).unwrap();
        let word = cells.ring[0].load(Acquire);
        let other = cells.clone();
        let helper = thread::spawn(move || other.log().ring().fill(dead.ticket, word));
        for _ in 0..2 {
            cells.time.fetch_add(W, Relaxed);
            assert!(cells.claim(2, 2, 0).unwrap().is_some());
        }
        helper.join().unwrap();
        assert_eq!(cells.claim(2, 2, 0), Ok(None), "the last unit is taken");
        assert_eq!(cells.left(2), 0);
    });
}

/// Starts beyond the limit within one microsecond: a claim that is delayed by two laps of them fails.
#[test]
fn a_claim_that_sleeps_for_two_laps_fails() {
    model(|| {
        let cells = Cells::new(4);
        let record = |cells: &Cells| {
            let now = cells.time.load(Relaxed);
            let windows = [Window { limit: 2, length: W }];
            let ask = Ask { force: true, ..Ask::now(&windows, 1, 0) };
            cells.log().claim(&ask, || Now { floor: now, ceil: now }).unwrap().taken.unwrap()
        };
        (0..4).for_each(|_| _ = record(&cells));
        let other = cells.clone();
        let claimant = thread::spawn(move || record(&other));
        (0..7).for_each(|_| _ = record(&cells));
        // All tickets differ.
        let last = claimant.join().unwrap().ticket;
        let tail = cells.log().find_tail().ticket;
        assert!(last < tail && tail == 12, "{last} of {tail}");
    });
}

/// A view was the state at some moment: here at least one unit is always free.
#[test]
fn a_view_sees_no_starts_of_a_later_lap() {
    model(|| {
        let cells = Cells::new(4);
        let other = cells.clone();
        let other = thread::spawn(move || {
            for _ in 0..5 {
                other.time.fetch_add(W, Relaxed);
                other.claim(2, 1, 0).unwrap().unwrap();
            }
        });
        let windows = [Window { limit: 2, length: W }];
        let view = cells.log().view(&Ask::now(&windows, 1, 0), || cells.now()).unwrap();
        assert!(view.remaining >= 1 && view.ready <= view.now, "{view:?}");
        other.join().unwrap();
    });
}

/// A place that is rewritten while it is presented starts, or has to be looked up again: it is not gone.
#[test]
fn a_place_that_moves_is_not_gone() {
    model(|| {
        let cells = Cells::new(4);
        let windows = [Window { limit: 1, length: W }];
        let ask = Ask { reserve: true, grace: W, ..Ask::now(&windows, 1, 0) };
        let taken = cells.log().claim(&ask, || cells.now()).unwrap().taken.unwrap();
        let place = StartId { ticket: taken.ticket, stamp: taken.stamp, weight: 1 };
        let other = cells.clone();
        let life = cells.life.load(Acquire);
        let presenter = thread::spawn(move || {
            let now = other.now();
            other.log_in(life).present(place, W, now)
        });
        let copy = Cells::new(4);
        copy.take_over(&cells, |_| {});
        // These cells belong to another key, or to the same one again.
        cells.take_over(&copy, |_| {});
        let answer = presenter.join().unwrap();
        assert_ne!(answer, Ok(None));
        let is_left = cells.log().present(place, W, cells.now()).unwrap().is_some();
        assert_eq!(is_left, answer == Err(Sealed), "{answer:?}");
    });
}
