//! Counted windows: exact to the tick against a plain model, over their lives, and between threads.

use super::*;
use crate::Algorithm;
use crate::log::CLOSED as NO_LIFE;
use crate::random_tests::{Random, seed};
use std::cell::Cell;
use std::collections::BTreeMap;

const S: Tick = 1_000_000;
const DAY: Tick = 86_400 * S;
/// The distance of a store's epoch.
const START: Tick = 400 * DAY;
const MAX: u64 = 1_000_000_000;

/// In 2026, and aligned to nothing.
const PHASE: u64 = 1_770_000_123_456_789;

/// A key's cells and a clock that stands still, used as a limiter would.
struct Key {
    ring: [AtomicU64; 2],
    life: AtomicU64,
    base: AtomicU64,
    era: AtomicU64,
    logged: AtomicU64,
    past: [AtomicU64; 3],
    born: Tick,
    frame: Frame,
    now: Cell<Tick>,
}

impl Key {
    fn new(limit: u64, length: Tick, is_smooth: bool) -> Key {
        Key::of(Frame { limit, length, is_smooth, phase: PHASE })
    }

    fn of(frame: Frame) -> Key {
        let (ring, life, base, era, logged, past) = Default::default();
        Key { ring, life, base, era, logged, past, born: 0, frame, now: Cell::new(START) }
    }

    /// A key at the beginning of a window.
    fn at_start(limit: u64, length: Tick, is_smooth: bool) -> Key {
        let key = Key::new(limit, length, is_smooth);
        key.now.set(key.frame.start_of(key.frame.window_of(START) + 1));
        key
    }

    fn counter(&self) -> Counter<'_> {
        let Key { ring, life, base, era, logged, past: [begun, until, units], born, frame, .. } = self;
        let past = Past { begun, until, units };
        Counter { ring, life, number: life.load(Acquire), base, era, logged, born: *born, frame: *frame, past }
    }

    fn clock(&self) -> Now {
        Now { floor: self.now.get(), ceil: self.now.get() + 1 }
    }

    fn claim_with(&self, change: impl FnOnce(&mut Ask), weight: u64) -> Answer {
        let mut ask = Ask::now(&[], weight, 0);
        change(&mut ask);
        loop {
            match self.counter().claim(&ask, || self.clock()) {
                Ok(answer) => return answer,
                Err(Sealed) => {
                    assert!(self.counter().has_to_move(self.clock()));
                    self.rebuild(|_| {});
                    assert!(!self.counter().has_to_move(self.clock()));
                }
            }
        }
    }

    fn claim(&self, weight: u64) -> Answer {
        self.claim_with(|_| {}, weight)
    }

    fn takes(&self, weight: u64) -> bool {
        self.claim(weight).taken.is_some()
    }

    /// Waits without a limit.
    fn wait(&self, weight: u64) -> (Tick, Taken) {
        let answer = self.claim_with(|ask| ask.patience = Tick::MAX, weight);
        (answer.ready, answer.taken.unwrap())
    }

    fn view(&self, weight: u64) -> View {
        self.counter().view(&Ask::now(&[], weight, 0), || self.clock()).unwrap()
    }

    /// Seals the cells, and writes their history, changed by `change`, into the same cells.
    fn rebuild(&self, change: impl FnOnce(&mut History)) {
        self.rebuild_as(self.frame, change)
    }

    fn rebuild_as(&self, frame: Frame, change: impl FnOnce(&mut History)) {
        self.counter().seal();
        let mut history = self.counter().history(self.clock());
        change(&mut history);
        let next = self.life.swap(NO_LIFE, AcqRel) + 1;
        let written = Counter { frame, ..self.counter() }.write(&history, self.clock()).unwrap_or_else(|| {
            // Stands for other cells.
            self.ring.iter().for_each(|cell| cell.store(0, Relaxed));
            self.counter().write(&history, self.clock()).expect("new cells have a life")
        });
        assert_ne!(written, 0);
        self.base.store(written, Release);
        self.life.store(next, Release);
    }

    fn advance(&self, by: Tick) {
        self.now.set(self.now.get() + by);
    }

    /// Returns the last tick of the current window.
    fn end(&self) -> Tick {
        self.frame.end_of(self.frame.window_of(self.now.get()))
    }

    /// Denies a start of this weight, and asserts that it is admitted at `ready` and denied a tick earlier.
    fn assert_exact(&self, weight: u64) {
        let denied = self.claim(weight);
        assert_eq!(denied.taken, None);
        assert_eq!(self.view(weight).ready, denied.ready);
        self.now.set(denied.ready - 1);
        assert_eq!(self.claim(weight).taken, None, "admitted before {}", denied.ready);
        self.now.set(denied.ready);
        assert!(self.takes(weight), "denied at {}", denied.ready);
    }
}

const LENGTHS: [Tick; 7] = [1, 2, 7, 1_000, S, DAY, 366 * DAY];
const LIMITS: [u64; 5] = [1, 2, 10, 12_345, MAX];

#[test]
fn windows_are_aligned_to_1970() {
    // Tick 0 is at half a minute: full minutes are at every 30 s + n · 60 s.
    let frame = Frame { limit: 3, length: 60 * S, is_smooth: false, phase: 1_770_000_030 * S };
    let key = Key::of(frame);
    key.now.set(START);
    let taken = key.claim(3).taken.unwrap();
    assert_eq!((taken.stamp + 1 + frame.phase) % (60 * S), 0);
    assert_eq!(taken.stamp, START + 30 * S - 1);
    assert!(!taken.is_place());
    let denied = key.claim(1);
    assert_eq!((denied.taken, denied.ready), (None, START + 30 * S));
    key.now.set(START + 30 * S - 1);
    assert!(!key.takes(1));
    key.advance(1);
    assert!(key.takes(3), "twice the limit, across a boundary");
}

#[test]
fn a_fixed_window_is_free_again_at_its_end() {
    for length in LENGTHS {
        for limit in LIMITS {
            let key = Key::new(limit, length, false);
            let end = key.end();
            assert!(key.takes(limit));
            assert_eq!(key.view(1), View { now: START, ready: end + 1, remaining: 0, empty: end + 1 });
            assert!(!key.counter().is_idle(key.clock()));
            key.assert_exact(1);
            assert_eq!(key.now.get(), end + 1);
            assert_eq!(key.view(1).remaining, limit - 1);
        }
    }
}

#[test]
fn the_window_before_counts_in_part() {
    let key = Key::at_start(100, 10 * S, true);
    let start = key.now.get();
    assert!(key.takes(100));
    key.now.set(start + 10 * S);
    assert_eq!(key.claim(1).ready, start + 10 * S + S / 10);
    assert_eq!(key.claim(25).ready, start + 12 * S + S / 2);
    assert_eq!(key.claim(100).ready, start + 20 * S);
    key.now.set(start + 14 * S);
    // 60 of the earlier units count, rounded up; 100 in total.
    assert_eq!(key.view(1).remaining, 40);
    assert!(key.takes(40));
    assert_eq!(
        key.view(1),
        View { now: start + 14 * S, ready: start + 14 * S + S / 10, remaining: 0, empty: start + 30 * S }
    );
    key.assert_exact(7);
    // A window later 40 + 7 remain; two windows later nothing.
    key.now.set(start + 20 * S);
    assert_eq!(key.view(1).remaining, 53);
    key.now.set(start + 30 * S);
    assert!(key.counter().is_idle(key.clock()));
    assert_eq!(key.view(1).remaining, 100);
}

#[test]
fn a_denial_is_exact_for_every_weight() {
    for length in LENGTHS {
        for limit in LIMITS {
            let key = Key::new(limit, length, true);
            let mut weight = limit;
            while weight > 0 {
                key.claim_with(|ask| ask.force = true, limit.div_ceil(2));
                if key.claim(weight).taken.is_none() {
                    key.assert_exact(weight);
                }
                weight /= 3;
            }
        }
    }
}

#[test]
fn a_denial_writes_nothing() {
    for is_smooth in [false, true] {
        let key = Key::new(10, S, is_smooth);
        assert!(key.takes(10));
        let cells = || key.ring.iter().chain([&key.base, &key.life]).map(|c| c.load(Relaxed)).collect::<Vec<_>>();
        let before = cells();
        assert!(!key.takes(1));
        assert!(key.claim_with(|ask| ask.patience = 1, 10).taken.is_none());
        assert_eq!(cells(), before);
    }
}

#[test]
fn an_untouched_counter_is_empty() {
    for is_smooth in [false, true] {
        let key = Key::new(9, S, is_smooth);
        let empty = View { now: START, ready: START, remaining: 9, empty: 0 };
        let view = |key: &Key, weight| {
            let view = key.view(weight);
            View { empty: if view.empty <= START { 0 } else { view.empty }, ..view }
        };
        assert_eq!(view(&key, 9), empty);
        assert_eq!(key.base.load(Relaxed), 0, "a view does not begin a life");
        let ask = Ask::now(&[], 1, 0);
        let untouched = Counter::untouched(0, key.frame).view(&ask, || key.clock()).unwrap();
        assert_eq!(View { empty: 0, ..untouched }, empty);
        assert!(key.counter().is_idle(key.clock()) && !key.counter().has_to_move(key.clock()));
        assert!(key.takes(1));
        assert_eq!(key.view(0).ready, 0, "weight 0 needs no free units");
        let seen = key.counter().claim_and_view(&Ask::now(&[], 5, 0), || key.clock()).unwrap();
        assert_eq!(seen.1, View { ready: START, ..key.view(1) });
        assert_eq!(seen.1.remaining, 3);
        assert_eq!(seen.1.empty, seen.0.taken.unwrap().stamp + 1 + if is_smooth { S } else { 0 });
    }
}

#[test]
fn an_unknown_past_counts_as_full() {
    for is_smooth in [false, true] {
        let key = Key { born: START - 1, ..Key::new(10, S, is_smooth) };
        let from = START - 1 + key.frame.memory();
        assert_eq!(key.view(1), View { now: START, ready: from, remaining: 0, empty: from });
        assert_eq!(key.claim_with(|ask| ask.gate = START + 9 * S, 1).ready, START + 9 * S);
        let forced = key.claim_with(|ask| ask.force = true, 1).taken.unwrap();
        assert_eq!(forced.stamp, key.end());
        key.assert_exact(1);
        assert_eq!(key.now.get(), from);
    }
}

#[test]
fn a_gate_holds_while_units_are_free() {
    let key = Key::new(10, S, true);
    let gated = key.claim_with(|ask| ask.gate = START + 1, 1);
    assert_eq!((gated.taken, gated.ready), (None, START + 1));
    let gated = key.counter().view(&Ask::now(&[], 1, START + 9), || key.clock()).unwrap();
    assert_eq!(gated, View { now: START, ready: START + 9, remaining: 0, empty: START + 9 });
    // A place behind the gate counts in its window, and no later request passes it.
    let far = key.claim_with(|ask| (ask.gate, ask.patience) = (START + 7 * S, 7 * S), 10);
    assert_eq!(far.taken.unwrap().stamp, key.end() + 7 * S);
    let next = key.claim(1);
    assert_eq!((next.taken, next.ready), (None, key.end() + 7 * S + 1 + S / 10));
    assert_eq!(key.view(1).remaining, 0);
    key.assert_exact(1);
}

#[test]
fn waiters_queue() {
    let key = Key::at_start(10, S, false);
    let start = key.now.get();
    assert!(key.takes(7));
    assert!(key.claim_with(|ask| ask.patience = S - 1, 4).taken.is_none());
    let (ready, place) = key.wait(4);
    assert_eq!((ready, place.stamp, place.is_place()), (start + S, start + 2 * S - 1, true));
    // Units for 3 would be free, but another request waits.
    assert_eq!((key.claim(1).taken, key.claim(1).ready), (None, start + S));
    assert_eq!(key.view(1).remaining, 0);
    assert_eq!(key.wait(6).0, start + S);
    assert_eq!(key.wait(10).0, start + 2 * S);
    assert_eq!(key.wait(1).0, start + 3 * S);
    let known = StartId { ticket: place.ticket, stamp: place.stamp, weight: 4 };
    assert_eq!(key.counter().present(known), Ok(true));
    key.era.store(1, Relaxed);
    assert_eq!(key.counter().present(known), Ok(false));
    // A reservation is a place even without a wait.
    key.now.set(start + 3 * S);
    let now = key.claim_with(|ask| ask.reserve = true, 1);
    assert_eq!((now.ready, now.taken.unwrap().is_place()), (start + 3 * S, true));
}

#[test]
fn smooth_waiters_queue() {
    let key = Key::at_start(10, 10 * S, true);
    let start = key.now.get();
    assert!(key.takes(10));
    // Each gets a tenth of the window.
    assert_eq!(key.wait(2).0, start + 12 * S);
    assert_eq!(key.wait(1).0, start + 13 * S);
    assert_eq!(key.wait(7).0, start + 20 * S, "as soon as the ten do not count any more, and the three hardly do");
}

#[test]
fn forced_starts_count_beyond_the_limit() {
    for is_smooth in [false, true] {
        let key = Key::at_start(MAX, S, is_smooth);
        let start = key.now.get();
        for _ in 0..5 {
            let answer = key.claim_with(|ask| ask.force = true, MAX);
            assert_eq!(answer.taken.unwrap().stamp, key.end());
        }
        assert_eq!(key.view(1).remaining, 0);
        if is_smooth {
            // As many as can be counted.
            key.now.set(start + S);
            let most = u128::from(MAX_COUNT);
            let left = (u128::from(MAX) - 1) * u128::from(S) / most;
            assert_eq!(key.claim(1).ready, start + 2 * S - left as Tick);
        }
        key.now.set(start);
        key.assert_exact(MAX);
        assert_eq!(key.now.get(), start + key.frame.memory());
    }
}

#[test]
fn forced_starts_count_together_with_waiters() {
    let key = Key::at_start(10, S, false);
    assert!(key.takes(5));
    let (_, place) = key.wait(6);
    let forced = key.claim_with(|ask| ask.force = true, 1).taken.unwrap();
    assert_eq!((forced.stamp, forced.is_place()), (place.stamp, false));
    assert_eq!(key.wait(4).0, place.stamp + 1);
}

#[test]
fn used_up_numbers_start_over() {
    for is_smooth in [false, true] {
        let key = Key::new(5, 1, is_smooth);
        for _ in 0..20 {
            assert!(key.takes(5));
            key.assert_exact(1);
            key.advance(LAST / 5);
        }
        // A place beyond the last number is refused, with the time at which it would be.
        let gate = key.now.get() + 2 * LAST;
        let beyond = key.claim_with(|ask| (ask.gate, ask.patience) = (gate, Tick::MAX), 1);
        assert_eq!((beyond.taken, beyond.ready), (None, gate));
        let gate = key.now.get() + HALF;
        let far = key.claim_with(|ask| (ask.gate, ask.patience) = (gate, Tick::MAX), 5);
        assert_eq!(far.taken.unwrap().stamp, gate);
        let ready = gate + if is_smooth { 2 } else { 1 };
        assert_eq!(key.claim(5).ready, ready);
        key.rebuild(|_| {});
        assert_eq!(key.claim(5).ready, ready);
        key.assert_exact(5);
    }
}

#[test]
fn a_sealed_counter_refuses_calls_and_returns_its_history() {
    let key = Key::at_start(10, S, true);
    assert!(key.takes(2));
    let first = key.end();
    key.advance(S);
    assert!(key.takes(3));
    let counter = key.counter();
    counter.seal();
    counter.seal();
    assert!(counter.is_sealed() && counter.has_to_move(key.clock()));
    let ask = Ask::now(&[], 1, 0);
    assert_eq!(counter.claim(&ask, || key.clock()), Err(Sealed));
    assert_eq!(counter.claim(&Ask { force: true, ..ask }, || key.clock()), Err(Sealed));
    assert_eq!(counter.view(&ask, || key.clock()), Err(Sealed));
    assert_eq!(counter.present(StartId { ticket: 0, stamp: first, weight: 1 }), Err(Sealed));
    let start = |stamp, units| Start { stamp, units, state: SETTLED, id: u64::MAX, is_logged: false };
    assert_eq!(counter.history(key.clock()).starts, [start(first, 2), start(first + S, 3)]);
    assert_eq!(counter.history(key.clock()).forgotten, []);
}

#[test]
fn a_counter_can_be_sealed_at_any_frontier() {
    for pauses in [&[0][..], &[1], &[2], &[0, 1], &[0, 2], &[0, 3], &[0, 1, 1]] {
        let key = Key::at_start(10, S, true);
        for pause in pauses {
            key.advance(pause * S);
            assert!(key.takes(1));
            let stale = key.ring.each_ref().map(|cell| cell.load(Relaxed));
            key.rebuild(|_| {});
            let fresh = key.ring.each_ref().map(|cell| cell.load(Relaxed));
            assert!(fresh.iter().all(|cell| stale.iter().all(|old| cell > old)));
        }
    }
    // Also before anything was counted.
    let key = Key::new(10, S, true);
    key.rebuild(|history| assert!(history.starts.is_empty() && history.forgotten.is_empty()));
    assert!(key.takes(10) && !key.takes(1));
}

#[test]
fn cells_have_many_lives() {
    for (length, is_smooth) in LENGTHS.into_iter().flat_map(|length| [(length, false), (length, true)]) {
        let key = Key::at_start(5, length, is_smooth);
        let mut words = std::collections::HashSet::new();
        let mut stale = Vec::new();
        assert!(key.takes(2));
        for round in 0..1_000 {
            assert!(key.takes(3), "{length}: round {round}");
            assert!(!key.takes(1));
            key.ring.iter().for_each(|cell| assert!(words.insert(cell.load(Relaxed)), "a word was reused"));
            stale.push(key.counter());
            key.rebuild(|history| {
                let before = history.starts.len();
                history.starts.last_mut().unwrap().units -= 3; // A refund.
                assert_eq!((before, history.forgotten.len()), (1, 0));
            });
            assert_eq!(key.view(1).remaining, 3);
        }
        let ask = Ask::now(&[], 1, 0);
        let before = key.ring.each_ref().map(|cell| cell.load(Relaxed));
        for old in stale {
            assert_eq!(old.claim(&ask, || key.clock()), Err(Sealed));
            assert_eq!(old.claim(&Ask { force: true, ..ask }, || key.clock()), Err(Sealed));
            assert_eq!(old.view(&ask, || key.clock()), Err(Sealed));
            assert_eq!(old.present(StartId { ticket: 0, stamp: 0, weight: 1 }), Err(Sealed));
            assert!(!old.is_idle(key.clock()));
            old.seal();
        }
        assert_eq!(key.ring.each_ref().map(|cell| cell.load(Relaxed)), before);
        assert!(key.takes(3) && !key.takes(1));
    }
}

#[test]
fn cells_that_had_too_many_lives_are_refused() {
    let key = Key::new(5, S, false);
    key.ring[0].store(word(HALF - 4, 1), Relaxed);
    let write = |key: &Key| key.counter().write(&History::default(), key.clock());
    assert!(write(&key).is_some());
    assert!(write(&key).is_some());
    assert_eq!(write(&key), None);
    // The current time has its own number.
    let key = Key::new(5, 1, false);
    assert!(key.takes(1));
    key.advance(HALF);
    assert_eq!(key.counter().claim(&Ask::now(&[], 1, 0), || key.clock()), Err(Sealed));
    assert!(key.counter().has_to_move(key.clock()) && !key.counter().is_sealed());
}

/// A window that was overwritten does not count as empty when the place that overwrote it is taken back.
#[test]
fn a_place_that_is_taken_back_returns_no_more_than_it_took() {
    for (is_smooth, weight, windows) in [(false, 10, 1), (true, 10, 2), (true, 9, 1)] {
        let key = Key::at_start(10, S, is_smooth);
        assert!(key.takes(10));
        key.advance(S);
        let next = key.now.get() + S;
        // Ten are used, of this window or, as half of those count, of both.
        let used = if is_smooth { 5 } else { 10 };
        key.advance(S / 2);
        assert!(key.takes(used) && !key.takes(1));
        let (ready, place) = key.wait(weight);
        assert_eq!(key.frame.window_of(ready), key.frame.window_of(next) + windows - 1);
        key.rebuild(|history| {
            let last = history.starts.pop().unwrap();
            assert_eq!((last.stamp, last.units, last.state), (place.stamp, weight, PLACE));
        });
        assert!(!key.takes(1), "{is_smooth} {weight}");
        assert_eq!(key.view(1).remaining, 0);
        assert!(key.claim(weight).ready <= ready);
    }
}

#[test]
fn the_ledger_mark_counts_what_was_written() {
    let key = Key::at_start(100, S, true);
    let start = key.now.get();
    let now = || key.clock();
    let counter = || key.counter();
    let unlogged = || {
        let (starts, mark) = counter().unlogged(now());
        assert!(starts.iter().all(|start| !start.is_logged && start.state == STARTED));
        (starts.iter().map(|start| (start.stamp, start.units)).collect::<Vec<_>>(), mark)
    };
    assert_eq!(unlogged(), (vec![], 0));
    let a = key.claim(10).taken.unwrap();
    assert_eq!(counter().unwritten(a.end, now()), 10);
    key.advance(5);
    let (starts, mark) = unlogged();
    assert_eq!((starts, mark), (vec![(start + 5, 10)], a.end), "stamped with now");
    key.logged.store(mark, Relaxed);
    let b = key.claim(7).taken.unwrap();
    assert_eq!((counter().unwritten(a.end, now()), counter().unwritten(b.end, now())), (0, 7));
    // The next window, and a place in it.
    key.advance(S);
    let c = key.claim(20).taken.unwrap();
    assert_eq!(counter().unwritten(c.end, now()), 27);
    let (_, place) = key.wait(80);
    assert_eq!(place.stamp, start + 3 * S - 1);
    assert_eq!(counter().unwritten(place.end, now()), 100, "of the place's window and the one before");
    let (starts, mark) = unlogged();
    assert_eq!(starts, [(start + S + 5, 20), (start + 2 * S, 80)]);
    key.logged.store(mark, Relaxed);
    assert_eq!(counter().unwritten(place.end, now()), 0);
    // The ledger's progress survives a rewrite, also in part.
    let d = key.wait(5).1;
    assert_eq!(d.stamp, place.stamp, "{:?}", key.counter().history(now()));
    key.rebuild(|history| {
        let parts: Vec<_> = history.starts.iter().map(|start| (start.units, start.is_logged)).collect();
        assert_eq!(parts, [(20, true), (80, true), (5, false)]);
    });
    assert_eq!(unlogged().0, [(start + 2 * S, 5)]);
    key.rebuild(|history| history.starts[0].is_logged = false);
    assert_eq!(unlogged().0, [(start + S + 5, 20), (start + 2 * S, 85)], "logged twice rather than not at all");
    // Units that no longer count need not be there.
    key.now.set(start + 4 * S);
    let e = key.claim(1).taken.unwrap();
    assert_eq!(counter().unwritten(e.end, now()), 1);
}

#[test]
fn another_frame_keeps_the_counts() {
    let key = Key::at_start(10, S, false);
    assert!(key.takes(6));
    // A longer window has all of it, smooth or not; a smaller limit is full.
    for (limit, left) in [(20, 14), (6, 0), (3, 0)] {
        let key = Key::at_start(10, S, false);
        assert!(key.takes(6));
        let frame = Frame { limit, length: DAY, is_smooth: true, phase: PHASE };
        key.rebuild_as(frame, |_| {});
        let key = Key { frame, ..key };
        assert_eq!(key.view(1).remaining, left);
    }
    // Starts that were known one by one are in their windows.
    let key = Key::at_start(10, S, true);
    let now = key.now.get();
    let start = |stamp, units| Start { stamp, units, state: SETTLED, id: 7, is_logged: true };
    key.rebuild(|history| {
        history.starts = vec![start(now - S - 1, 9), start(now - S, 1), start(now - 1, 2), start(now, 3)]
    });
    assert_eq!(key.view(1).remaining, 10 - 3 - 3);
}

// ---- against a plain model ----

/// The units of every window, and the rule as it is documented.
struct Plain {
    limit: i128,
    length: i128,
    is_smooth: bool,
    phase: i128,
    windows: BTreeMap<i128, i128>,
    /// The newest window in which anything was counted.
    newest: i128,
}

impl Plain {
    fn new(frame: Frame) -> Plain {
        let Frame { limit, length, is_smooth, phase } = frame;
        let [limit, length] = [limit, length].map(i128::from);
        let phase = i128::from(phase as i64);
        Plain { limit, length, is_smooth, phase, windows: BTreeMap::new(), newest: 0 }
    }

    fn window(&self, tick: i128) -> i128 {
        (tick + self.phase).div_euclid(self.length)
    }

    fn start(&self, window: i128) -> i128 {
        window * self.length - self.phase
    }

    fn units(&self, window: i128) -> i128 {
        self.windows.get(&window).copied().unwrap_or(0)
    }

    /// Returns whether a start of this weight may happen at this tick of its window.
    fn admits(&self, tick: i128, weight: i128) -> bool {
        let window = self.window(tick);
        let elapsed = tick - self.start(window);
        let before = if self.is_smooth { self.units(window - 1) } else { 0 };
        window >= self.newest
            && before * (self.length - elapsed) + (self.units(window) + weight) * self.length
                <= self.limit * self.length
    }

    /// Returns the first tick that admits it, found by bisecting windows.
    fn ready(&self, from: i128, weight: i128) -> i128 {
        let mut window = self.window(from).max(self.newest);
        loop {
            let (mut first, last) = (self.start(window).max(from), self.start(window + 1) - 1);
            if self.admits(last, weight) {
                let mut admits = last;
                while first < admits {
                    let middle = first.midpoint(admits);
                    if self.admits(middle, weight) { admits = middle } else { first = middle + 1 }
                }
                return admits;
            }
            window += 1;
        }
    }

    fn remaining(&self, now: i128) -> i128 {
        let (mut some, mut none) = (0, self.limit + 1);
        while none - some > 1 {
            let middle = some.midpoint(none);
            if self.admits(now, middle) { some = middle } else { none = middle }
        }
        some
    }

    /// Returns when it is back in its initial state.
    fn empty(&self, now: i128) -> i128 {
        let lasts = 1 + i128::from(self.is_smooth);
        let newest = self.windows.iter().rev().find(|(_, units)| **units > 0);
        newest.map_or(now, |(window, _)| self.start(window + lasts).max(now))
    }

    fn add(&mut self, window: i128, units: i128) {
        let count = self.windows.entry(window).or_default();
        *count = (*count + units).min(MAX_COUNT.into());
        self.newest = self.newest.max(window);
        // Other windows have no effect.
        self.windows.retain(|kept, _| *kept + 4 > window);
    }
}

#[test]
fn random_calls_match_a_plain_model() {
    let seed = seed();
    let mut random = Random::seeded(seed);
    let (mut admitted, mut places, mut denied) = (0, 0, 0);
    for round in 0..60 {
        let length = LENGTHS[round % LENGTHS.len()].min(1 + random.scaled(366 * DAY));
        let length = if round % 3 == 0 { LENGTHS[round / 3 % LENGTHS.len()] } else { length };
        let limit = 1 + random.scaled(MAX - 1);
        // Also before and just after 1970, at the store's epoch.
        let phase = [PHASE, random.scaled(u64::MAX >> 12), (START - length / 2).wrapping_neg(), 0][round / 2 % 4];
        let frame = Frame { limit, length, is_smooth: round % 2 == 0, phase };
        let key = Key::of(frame);
        let mut plain = Plain::new(frame);
        let has_forced = round % 5 == 0;
        for call in 0..10_000 {
            let still = length < 10 && random.below(8) != 0;
            key.advance(match random.below(100) {
                _ if still => 0,
                0 => random.scaled(length * 4).min(400 * DAY / 100),
                1..20 => random.scaled(length.div_ceil(3)),
                20..50 => random.scaled(length.div_ceil(100)),
                50 => (key.end() - key.now.get()).min(400 * DAY / 100),
                51 => 1,
                _ => 0,
            });
            if random.below(40) == 0 {
                key.rebuild(|_| {});
            }
            let now = i128::from(key.now.get());
            let weight = 1 + random.scaled(limit - 1).min(if random.below(8) == 0 { limit } else { limit / 20 });
            let patience = if random.below(4) == 0 { random.scaled(3 * length) } else { 0 };
            let gate = if random.below(200) == 0 { key.now.get() + random.scaled(3 * length) } else { 0 };
            let force = has_forced && random.below(300) == 0;
            let weight = if force { 1 + random.scaled(MAX - 1).min(limit - 1) } else { weight };
            let ask = Ask { patience, force, ..Ask::now(&[], weight, gate) };

            let ready = plain.ready(now.max(gate.into()), weight.into());
            let about = || format!("SEED={seed}, round {round}, call {call}: {frame:?}, {ask:?} at {now}");
            let view = key.counter().view(&ask, || key.clock());
            if let Ok(view) = view {
                let remaining = if i128::from(gate) > now { 0 } else { plain.remaining(now) };
                assert_eq!(i128::from(view.remaining), remaining, "{}", about());
                assert_eq!(i128::from(view.ready), ready, "{}", about());
                assert_eq!(i128::from(view.empty).max(now), plain.empty(now).max(gate.into()), "{}", about());
            }
            let answer = key.claim_with(|mine| *mine = ask, weight);
            assert_eq!((i128::from(answer.ready), i128::from(answer.now.floor)), (ready, now), "{}", about());
            let is_admitted = force || ready <= now + i128::from(patience);
            assert_eq!(answer.taken.is_some(), is_admitted, "{}", about());
            let Some(taken) = answer.taken else {
                denied += 1;
                continue;
            };
            let window = plain.window(if force { now } else { ready }).max(plain.newest);
            assert_eq!(i128::from(taken.stamp), plain.start(window + 1) - 1, "{}", about());
            assert_eq!(taken.is_place(), ready > now && !force, "{}", about());
            plain.add(window, weight.into());
            admitted += 1;
            places += u64::from(taken.is_place());
        }
    }
    println!("{admitted} were admitted, {places} of them with a place; {denied} were denied");
    assert!(admitted > 20_000 && places > 5_000 && denied > 50_000);
}

/// Units that are taken back, whatever was overwritten in the meantime, never let a window exceed its limit.
#[test]
fn random_refunds_never_let_a_window_exceed_its_limit() {
    let seed = seed();
    let mut random = Random::seeded(seed);
    for round in 0..20 {
        let (limit, length) = (2 + random.below(30), 1 + random.scaled(1_000));
        let frame = Frame { limit, length, is_smooth: round % 2 == 0, phase: PHASE };
        let key = Key::of(frame);
        // The starts that count, with the tick from which it may happen.
        let mut starts: Vec<(Tick, Tick, u64)> = Vec::new();
        let (mut refunds, mut claims) = (0, 0);
        for _ in 0..10_000 {
            key.advance(if random.below(3) == 0 { random.scaled(length) } else { 0 });
            let now = key.now.get();
            let mut plain = Plain::new(frame);
            starts.retain(|(_, stamp, _)| stamp + 3 * length > now);
            starts.iter().for_each(|start| plain.add(plain.window(start.1.into()), start.2.into()));
            if random.below(6) == 0 && !starts.is_empty() {
                let (_, stamp, units) = starts.swap_remove(random.below(starts.len() as u64) as usize);
                refunds += 1;
                key.rebuild(|history| {
                    let mut left = units;
                    for start in history.starts.iter_mut().filter(|start| start.stamp == stamp) {
                        let taken = start.units.min(left);
                        start.units -= taken;
                        left -= taken;
                    }
                    history.starts.retain(|start| start.units > 0);
                });
                continue;
            }
            let patience = random.below(2) * random.scaled(3 * length);
            let most = if random.below(4) == 0 { limit } else { limit.min(3) };
            let weight = 1 + random.below(most);
            let answer = key.claim_with(|ask| ask.patience = patience, weight);
            if let Some(taken) = answer.taken {
                claims += 1;
                // Later places were promised to others; this window and the one before count here.
                plain.newest = 0;
                let ready = answer.ready.into();
                assert!(plain.admits(ready, weight.into()), "SEED={seed}: {weight} at {ready}, {:?}", plain.windows);
                assert_eq!(plain.window(ready), plain.window(taken.stamp.into()));
                starts.push((answer.ready, taken.stamp, weight));
            }
        }
        assert!(refunds > 200 && claims > 1_000, "{refunds} refunds, {claims} claims");
    }
}

/// Threads race on a clock that each of them moves, while the counter is rebuilt.
#[test]
fn threads_never_exceed_a_window() {
    for (length, is_smooth) in [(3, false), (3, true), (200, false), (200, true), (20_000, true)] {
        let key = Key::new(500, length, is_smooth);
        let (frame, time) = (key.frame, AtomicU64::new(START));
        let Key { ring, life, base, era, logged, .. } = &key;
        let number = || life.load(Acquire);
        let [begun, until, units] = &key.past;
        let past = Past { begun, until, units };
        let of = |number| Counter { ring, life, number, base, era, logged, born: 0, frame, past };
        let clock = || {
            let tick = time.load(SeqCst);
            Now { floor: tick, ceil: tick }
        };
        let starts = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (starts, clock, time, of, number) = (&starts, &clock, &time, &of, &number);
                scope.spawn(move || {
                    let mut random = Random::seeded(thread);
                    let mut mine = Vec::new();
                    for round in 0..60_000 {
                        if random.below(8) == 0 {
                            time.fetch_add(random.scaled(length / 8 + 1), SeqCst);
                        }
                        if random.below(2_000) == 0 {
                            time.fetch_add(random.below(5) * length, SeqCst);
                        }
                        if thread == 0 && round % 500 == 0 {
                            let now = number();
                            of(now).seal();
                            let history = of(now).history(clock());
                            life.swap(NO_LIFE, AcqRel);
                            base.store(of(NO_LIFE).write(&history, clock()).unwrap(), Release);
                            life.store(now + 1, Release);
                        }
                        let weight = 1 + random.scaled(200);
                        let patience = if random.below(16) == 0 { random.scaled(2 * length) } else { 0 };
                        let ask = Ask { patience, ..Ask::now(&[], weight, 0) };
                        let found = number();
                        if found == NO_LIFE {
                            continue;
                        }
                        if let Ok(Answer { ready, taken: Some(taken), .. }) = of(found).claim(&ask, clock) {
                            mine.push((ready, weight));
                            assert_eq!(frame.window_of(ready), frame.window_of(taken.stamp));
                        }
                    }
                    starts.lock().unwrap().extend(mine);
                });
            }
        });
        let mut starts = starts.into_inner().unwrap();
        starts.sort_unstable();
        assert!(starts.len() > 1_000, "{}", starts.len());
        let mut plain = Plain::new(frame);
        for (at, weight) in starts {
            let (at, weight) = (at.into(), weight.into());
            assert!(plain.admits(at, weight), "{weight} at {at}: {:?}", plain.windows);
            plain.add(plain.window(at), weight);
        }
    }
}
