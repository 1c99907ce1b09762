//! Buckets: exact to the tick, over their lives, against a plain model, and between threads.

use super::super::bucket::{COARSEST, COSTLIEST, FINEST, MAX};
use super::*;
use crate::Algorithm;
use crate::random_tests::{Random, seed};

use std::cell::Cell;

const MS: Tick = 1_000;
const S: Tick = 1_000 * MS;
const DAY: Tick = 86_400 * S;
/// The distance of a store's epoch.
const START: Tick = 400 * DAY;

/// The cells of one key, accessible to all tests.
#[derive(Default)]
struct Cells {
    word: AtomicU64,
    base: AtomicU64,
    life: AtomicU64,
    era: AtomicU64,
    logged: AtomicU64,
    last: AtomicU64,
    returned: AtomicU64,
    carried: AtomicU64,
}

impl Cells {
    fn meter<'a>(&'a self, bucket: &'a Bucket, born: Tick) -> Meter<'a> {
        let Cells { word, base, life, era, logged, last, returned, carried } = self;
        Meter { word, base, life, number: life.load(Acquire), era, logged, last, returned, carried, born, bucket }
    }

    /// Begins another life. `false`: the cells had too many lives, and stand for other cells.
    fn live(&self, bucket: Bucket, history: &History, now: Now) -> bool {
        let number = self.life.swap(CLOSED, AcqRel) + 1;
        let written = self.meter(&bucket, 0).write(history, now);
        let base = written.unwrap_or_else(|| {
            [&self.word, &self.base, &self.logged].into_iter().for_each(|cell| cell.store(0, Relaxed));
            self.meter(&bucket, 0).write(history, now).expect("new cells have a life")
        });
        self.base.store(base, Release);
        self.life.store(number, Release);
        written.is_some()
    }

    fn all(&self) -> [u64; 8] {
        let Cells { word, base, life, era, logged, last, returned, carried } = self;
        [word, base, life, era, logged, last, returned, carried].map(|cell| cell.load(Relaxed))
    }
}

/// A key's cells and a clock that stands still, used as a limiter would.
struct Key {
    cells: Cells,
    born: Tick,
    bucket: Bucket,
    now: Cell<Now>,
}

fn at(tick: Tick) -> Now {
    Now { floor: tick, ceil: tick }
}

impl Key {
    fn new(bucket: Bucket) -> Key {
        Key { cells: Cells::default(), born: 0, bucket, now: Cell::new(at(START)) }
    }

    fn token(rate: u64, period: Tick, size: u64) -> Key {
        Key::new(Bucket::new(rate, period, size, false))
    }

    fn leaky(rate: u64, period: Tick, size: u64) -> Key {
        Key::new(Bucket::new(rate, period, size, true))
    }

    fn meter(&self) -> Meter<'_> {
        self.cells.meter(&self.bucket, self.born)
    }

    fn claim_with(&self, change: impl FnOnce(&mut Ask), weight: u64) -> Answer {
        let mut ask = Ask::now(&[], weight, 0);
        change(&mut ask);
        loop {
            match self.meter().claim(&ask, || self.now.get()) {
                Ok(answer) => return answer,
                Err(Sealed) => {
                    assert!(self.meter().has_to_move(self.now.get()));
                    self.rewrite(|_| {});
                    assert!(
                        !self.meter().has_to_move(self.now.get()),
                        "{:?} {:?} {:?}",
                        self.bucket,
                        self.cells.all(),
                        self.now.get()
                    );
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

    fn view(&self, weight: u64) -> View {
        self.meter().view(&Ask::now(&[], weight, 0), || self.now.get()).unwrap()
    }

    /// Seals the cells, and writes what counts, changed by `change`, into the same cells.
    fn rewrite(&self, change: impl FnOnce(&mut History)) -> bool {
        self.meter().seal();
        let mut history = self.meter().history(self.now.get());
        change(&mut history);
        self.cells.live(self.bucket, &history, self.now.get())
    }

    fn set(&self, tick: Tick) {
        self.now.set(at(tick));
    }

    fn advance(&self, by: Tick) {
        self.set(self.now.get().floor + by);
    }

    /// Denies this request, and asserts that it is admitted at `ready` and denied a tick earlier.
    fn assert_exact(&self, change: impl Fn(&mut Ask), weight: u64) {
        let denied = self.claim_with(&change, weight);
        assert_eq!(denied.taken, None);
        self.set(denied.ready - 1);
        assert_eq!(self.claim_with(&change, weight).taken, None, "admitted before {}", denied.ready);
        self.set(denied.ready);
        assert!(self.claim_with(&change, weight).taken.is_some(), "denied at {}", denied.ready);
    }
}

#[test]
fn tokens_are_refilled_at_the_rate() {
    let key = Key::token(10, S, 20);
    assert_eq!(key.view(20), View { now: START, ready: 0, remaining: 20, empty: 0 });
    for left in (0..20).rev() {
        assert!(key.takes(1));
        assert_eq!(key.view(1).remaining, left);
    }
    assert_eq!(key.view(1), View { now: START, ready: START + S / 10, remaining: 0, empty: START + 2 * S });
    assert_eq!(key.claim(7).ready, START + 7 * S / 10);
    key.assert_exact(|_| {}, 7);
    assert_eq!(key.claim(20).ready, START + 27 * S / 10);
    key.set(START + 27 * S / 10 - 1);
    assert!(!key.takes(20) && !key.meter().is_idle(key.now.get()));
    key.advance(1);
    assert!(key.meter().is_idle(key.now.get()) && key.takes(20));
}

#[test]
fn drops_leave_one_by_one() {
    let key = Key::leaky(10, S, 3);
    assert_eq!(key.view(1).remaining, 3);
    assert!(key.takes(1));
    assert_eq!(key.view(1), View { now: START, ready: START + S / 10, remaining: 0, empty: START + S / 10 });
    key.assert_exact(|_| {}, 3);
    assert_eq!(key.now.get().floor, START + S / 10);
    assert_eq!(key.claim(1).ready, START + 4 * S / 10, "three drops take their time");
}

#[test]
fn the_queue_bounds_the_waiters() {
    for size in [1, 3, 10] {
        for grace in [0, 5 * MS, 300 * MS] {
            let key = Key::leaky(10, S, size);
            let waits = |ask: &mut Ask| (ask.patience, ask.grace) = (Tick::MAX, grace);
            assert!(key.takes(1));
            for turn in 0..size {
                let place = key.claim_with(waits, 1);
                assert_eq!(place.ready, START + S / 10 + turn * (S / 10 + grace));
                assert_eq!(place.taken.unwrap().stamp, place.ready + grace);
            }
            let full = key.claim_with(waits, 1);
            assert_eq!((full.taken, full.ready), (None, START + S / 10 + grace), "when the first has surely started");
            assert_eq!(key.claim(1).ready, START + S / 10 + size * (S / 10 + grace), "its turn, if it does not wait");
            key.assert_exact(waits, 1);
        }
    }
    let key = Key::leaky(10, S, 5);
    let waits = |ask: &mut Ask| ask.patience = Tick::MAX;
    assert!(key.takes(2));
    assert!(key.claim_with(waits, 3).taken.is_some());
    // Of the two that started, one has not dripped yet, and takes the place of a waiter.
    assert_eq!(key.claim_with(waits, 2).ready, START + S / 10);
    key.assert_exact(waits, 2);
}

#[test]
fn the_queue_bounds_the_waiters_at_a_gate() {
    let key = Key::leaky(10, S, 4);
    let gate = START + 10 * S;
    let waits = |ask: &mut Ask| (ask.gate, ask.patience) = (gate, 20 * S);
    for turn in 0..4 {
        assert_eq!(key.claim_with(waits, 1).ready, gate + turn * S / 10);
    }
    assert_eq!(key.claim_with(waits, 1).ready, gate);
    key.assert_exact(waits, 1);
}

#[test]
fn an_impatient_request_is_denied_with_its_turn() {
    let key = Key::leaky(10, S, 3);
    assert!(key.takes(1));
    let waits = |patience: Tick| move |ask: &mut Ask| ask.patience = patience;
    let denied = key.claim_with(waits(S / 10 - 1), 1);
    assert_eq!((denied.taken, denied.ready), (None, START + S / 10));
    assert!(key.claim_with(waits(S / 10), 1).taken.is_some());
    for _ in 0..2 {
        assert!(key.claim_with(waits(S), 1).taken.is_some());
    }
    // Full until the first has its turn, and the turn is three later.
    assert_eq!(key.claim_with(waits(S), 1).ready, START + S / 10);
    assert_eq!(key.claim_with(waits(S / 10), 1).ready, START + 3 * S / 10);
    key.assert_exact(waits(S / 10), 1);
}

#[test]
fn places_of_a_token_bucket_count_from_the_end_of_their_grace() {
    let key = Key::token(10, S, 10);
    assert!(key.takes(10));
    let waits = |ask: &mut Ask| (ask.patience, ask.grace) = (10 * S, 20 * MS);
    let first = key.claim_with(waits, 10);
    assert_eq!((first.ready, first.taken.unwrap().stamp), (START + S, START + S + 20 * MS));
    assert!(first.taken.unwrap().is_place());
    assert_eq!(key.claim_with(waits, 10).ready, START + 2 * S + 20 * MS);
    let reserved = Key::token(10, S, 10).claim_with(|ask| (ask.reserve, ask.grace) = (true, S), 1);
    assert_eq!(reserved.taken.map(|taken| (taken.stamp, taken.is_place())), Some((START + S, true)));
    assert!(reserved.ready <= START);
}

#[test]
fn no_wait_is_longer_than_a_year() {
    let key = Key::token(1, DAY, 1);
    let waits = |ask: &mut Ask| ask.patience = Tick::MAX;
    for day in 0..=366 {
        assert_eq!(key.claim_with(waits, 1).taken.map(|taken| taken.stamp), Some(START + day * DAY));
    }
    let beyond = key.claim_with(waits, 1);
    assert_eq!((beyond.taken, beyond.ready), (None, START + 367 * DAY));
}

#[test]
fn a_gate_holds_while_units_are_free() {
    let key = Key::token(10, S, 10);
    let gated = key.claim_with(|ask| ask.gate = START + 1, 1);
    assert_eq!((gated.taken, gated.ready), (None, START + 1));
    let ask = Ask::now(&[], 1, START + 1);
    let view = key.meter().view(&ask, || key.now.get()).unwrap();
    assert_eq!(view, View { now: START, ready: START + 1, remaining: 0, empty: START + 1 });
    key.advance(1);
    assert!(key.claim_with(|ask| ask.gate = START + 1, 1).taken.is_some());
}

#[test]
fn readings_are_rounded_so_that_nothing_is_early() {
    let key = Key::token(1, S, 1);
    key.now.set(Now { floor: START, ceil: START + 1 });
    let ask = Ask::now(&[], 1, 0);
    let (answer, view) = key.meter().claim_and_view(&ask, || key.now.get()).unwrap();
    assert_eq!(answer.taken.unwrap().stamp, START + 1);
    assert_eq!((view.remaining, view.empty), (0, START + 1 + S));
    key.now.set(Now { floor: START + S, ceil: START + S + 1 });
    assert_eq!(key.claim(1).ready, START + S + 1);
    key.now.set(Now { floor: START + S + 1, ceil: START + S + 2 });
    assert!(key.takes(1));
}

#[test]
fn an_untouched_bucket_is_full() {
    let key = Key::token(5, S, 7);
    let empty = View { now: START, ready: 0, remaining: 7, empty: 0 };
    assert_eq!(key.view(7), empty);
    assert_eq!(key.cells.all(), [0; 8], "a view changes nothing");
    assert_eq!(Meter::untouched(&key.bucket, 0).view(&Ask::now(&[], 1, 0), || key.now.get()), Ok(empty));
    assert!(key.meter().is_idle(key.now.get()) && !key.meter().has_to_move(key.now.get()));
    assert!(key.meter().history(key.now.get()).starts.is_empty());
    assert!(key.takes(3));
    assert_eq!((key.view(0).remaining, key.view(0).ready), (4, 0), "weight 0 needs no free units");
    let (answer, view) = key.meter().claim_and_view(&Ask::now(&[], 2, 0), || key.now.get()).unwrap();
    assert!(answer.taken.is_some());
    assert_eq!(view, View { ready: 0, ..key.view(1) });
}

#[test]
fn a_denial_writes_nothing() {
    let key = Key::token(10, S, 10);
    assert!(key.takes(10));
    let before = key.cells.all();
    assert!(!key.takes(1));
    assert_eq!(key.cells.all(), before);
}

#[test]
fn an_unknown_past_counts_as_emptied() {
    let key = Key { born: START - S / 2, ..Key::token(10, S, 10) };
    assert_eq!(key.view(1), View { now: START, ready: 0, remaining: 5, empty: START + S / 2 });
    assert!(!key.meter().is_idle(key.now.get()));
    assert!(key.takes(5));
    key.assert_exact(|_| {}, 10);
    assert_eq!(key.now.get().floor, START + S);
    let later = Key { born: START + S, ..Key::leaky(10, S, 10) };
    assert_eq!(later.claim(1).ready, START + 2 * S);
}

#[test]
fn forced_starts_count_beyond_the_size() {
    let key = Key::token(10, S, 10);
    for _ in 0..25 {
        assert!(key.claim_with(|ask| ask.force = true, 1).taken.is_some());
    }
    assert_eq!(key.view(1), View { now: START, ready: START + 16 * S / 10, remaining: 0, empty: START + 25 * S / 10 });
    key.rewrite(|_| {});
    key.assert_exact(|_| {}, 1);
}

#[test]
fn a_sealed_bucket_refuses_calls_and_returns_its_history() {
    let key = Key::token(10, S, 10);
    key.cells.era.store(77, Relaxed);
    let place = key.claim_with(|ask| ask.reserve = true, 4).taken.unwrap();
    let place = StartId { ticket: place.ticket, stamp: place.stamp, weight: 4 };
    assert_eq!(key.meter().present(place), Ok(true));
    assert_eq!(key.meter().present(StartId { ticket: 76, ..place }), Ok(false));
    let meter = key.meter();
    meter.seal();
    meter.seal();
    let ask = Ask::now(&[], 1, 0);
    assert_eq!(meter.claim(&ask, || key.now.get()), Err(Sealed));
    assert_eq!(meter.claim(&Ask { force: true, ..ask }, || key.now.get()), Err(Sealed));
    assert_eq!(meter.view(&ask, || key.now.get()), Err(Sealed));
    assert_eq!(meter.present(place), Err(Sealed));
    assert!(meter.is_sealed() && meter.has_to_move(key.now.get()));
    key.advance(S / 4);
    let history = meter.history(key.now.get());
    let start = Start { stamp: START + S / 4, units: 2, state: SETTLED, id: u64::MAX, is_logged: false };
    assert_eq!((history.starts, history.era, history.rest.spare), (vec![start], 77, (50_000, 100_000)));
}

#[test]
fn a_rewrite_changes_nothing() {
    for bucket in buckets() {
        let key = Key::new(bucket);
        for round in 0..40 {
            key.claim(1 + bucket.size / 3);
            key.advance((key.view(1).empty.saturating_sub(key.now.get().floor) / 7).min(DAY) + round % 3);
            let before = [0, 1, bucket.size].map(|weight| key.view(weight));
            key.rewrite(|_| {});
            let after = [0, 1, bucket.size].map(|weight| key.view(weight));
            let known = |view: View| View { ready: view.ready.max(view.now), empty: view.empty.max(view.now), ..view };
            assert_eq!(before.map(known), after.map(known), "{bucket:?}, round {round}");
        }
    }
}

#[test]
fn a_fraction_of_a_unit_survives_a_rewrite() {
    let (old, new) = (Key::token(1, S, 10), Key::token(1, 60 * S, 10));
    assert!(old.takes(5));
    old.advance(S / 4);
    old.meter().seal();
    let history = old.meter().history(old.now.get());
    new.set(old.now.get().floor);
    new.cells.live(new.bucket, &history, new.now.get());
    assert_eq!(new.view(1).empty, START + S / 4 + 285 * S, "4 ¾ units");
}

#[test]
fn cells_have_many_lives() {
    for bucket in buckets() {
        let key = Key::new(bucket);
        let mut words = std::collections::HashSet::new();
        let mut stale = Vec::new();
        for round in 0..300 {
            while key.takes(1 + bucket.size / 2) {
                assert!(words.insert(key.cells.word.load(Relaxed)), "{bucket:?}: a word was reused");
            }
            stale.push(key.meter().number);
            key.advance(round % 7);
            if !key.rewrite(|history| history.starts.iter_mut().for_each(|start| start.units /= 2)) {
                words.clear();
            }
        }
        for number in stale {
            let (old, ask, before) = (Meter { number, ..key.meter() }, Ask::now(&[], 1, 0), key.cells.all());
            assert_eq!(old.claim(&ask, || key.now.get()), Err(Sealed));
            assert_eq!(old.claim(&Ask { force: true, ..ask }, || key.now.get()), Err(Sealed));
            assert_eq!(old.view(&ask, || key.now.get()), Err(Sealed));
            assert!(!old.is_idle(key.now.get()));
            old.seal();
            assert_eq!(key.cells.all(), before);
        }
    }
}

#[test]
fn cells_that_had_too_many_lives_are_refused() {
    let key = Key::token(1, S, 10);
    key.cells.word.store((YOUNG as u64 + 1) << 1 | SEAL, Relaxed);
    key.cells.life.store(CLOSED, Relaxed);
    assert_eq!(key.meter().write(&History::default(), key.now.get()), None);
    key.cells.word.store((YOUNG as u64) << 1 | SEAL, Relaxed);
    assert!(key.meter().write(&History::default(), key.now.get()).is_some());
}

#[test]
fn a_word_that_cannot_count_further_is_rewritten() {
    // 999,999,937 is prime: a word holds at most 2^63 / 10^9 µs.
    let key = Key::token(999_999_937, S, MAX);
    assert_eq!(key.bucket.n, 999_999_937);
    let first = key.meter().number;
    for _ in 0..40 {
        assert!(key.takes(MAX));
        assert!(!key.takes(1));
        key.advance(600 * S);
    }
    assert!(key.meter().number > first);
    let far = key.claim_with(|ask| (ask.gate, ask.patience) = (key.now.get().floor + DAY, 2 * DAY), 1);
    assert_eq!((far.taken, far.ready), (None, key.now.get().floor + DAY), "too far for a word");
    assert!(key.claim_with(|ask| (ask.gate, ask.patience) = (key.now.get().floor + 1_800 * S, DAY), 1).taken.is_some());
}

impl Key {
    fn take_back(&self, taken: Taken, weight: u64, units: u64) {
        let start = StartId { ticket: taken.ticket, stamp: taken.stamp, weight };
        self.rewrite(|history| self.bucket.take_back(history, start, taken.ahead, units));
    }
}

#[test]
fn a_start_taken_back_immediately_leaves_no_trace() {
    for bucket in buckets() {
        let key = Key::new(bucket);
        let fill = key.claim(1 + bucket.size / 4).taken.unwrap();
        key.advance(key.bucket.tick(bucket.cost(1)).min(DAY) / 3);
        let before = key.view(1);
        if let Some(taken) = key.claim(1 + bucket.size / 4).taken {
            key.take_back(taken, 1 + bucket.size / 4, 1 + bucket.size / 4);
            assert_eq!(key.view(1), before, "{bucket:?}");
        }
        key.set(before.now);
        key.take_back(fill, 1 + bucket.size / 4, bucket.size);
        let what_came_back_by_itself = bucket.floor(before.now) - bucket.ceil(START);
        assert!(
            bucket.floor(key.view(1).empty) - bucket.floor(before.now) < what_came_back_by_itself + bucket.origin(1)
        );
    }
}

#[test]
fn a_busy_bucket_takes_back_whole_starts() {
    let key = Key::token(100, S, 6_000);
    assert!(key.takes(5_000));
    let busy = key.claim(900).taken.unwrap();
    for _ in 0..100 {
        key.advance(S / 10);
        assert!(key.takes(10));
    }
    // A thousand have come back with time, but they belong to earlier starts.
    let before = key.view(1).remaining;
    key.take_back(busy, 900, 800);
    assert_eq!(key.view(1).remaining, before + 800);
    let waits = |ask: &mut Ask| (ask.patience, ask.grace) = (60 * S, 20 * MS);
    let places: Vec<Taken> = (0..30).map(|_| key.claim_with(waits, 100).taken.unwrap()).collect();
    let before = key.view(1);
    key.take_back(places[0], 100, 100);
    assert_eq!(key.view(1).empty, before.empty - S, "others wait behind it, and the next caller gets it");
}

#[test]
fn units_refilled_with_time_are_not_taken_back() {
    let key = Key::token(1, S, 10);
    let first = key.claim(10).taken.unwrap();
    key.advance(4 * S);
    key.take_back(first, 10, 10);
    assert_eq!(key.view(1).remaining, 10);
    let second = key.claim(10).taken.unwrap();
    key.advance(10 * S);
    assert!(key.takes(9));
    key.take_back(second, 10, 10);
    assert_eq!(key.view(1).remaining, 1, "it was full when the nine were taken");
}

#[test]
fn waiters_behind_a_cancelled_start_keep_their_times() {
    let key = Key::leaky(1, S, 10);
    let waits = |ask: &mut Ask| ask.patience = 60 * S;
    let places: Vec<Taken> = (0..4).map(|_| key.claim_with(waits, 1).taken.unwrap()).collect();
    key.take_back(places[1], 1, 1);
    assert_eq!(key.claim_with(waits, 1).ready, START + 4 * S);
    let last = key.claim_with(waits, 1).taken.unwrap();
    assert_eq!(last.stamp, START + 5 * S);
    key.take_back(last, 1, 1);
    assert_eq!(key.claim_with(waits, 1).ready, START + 5 * S, "no start was behind it");
}

/// Starts are taken back, in part, at any later time; the rest never exceeds the bucket.
#[test]
fn units_are_taken_back_only_once() {
    let mut random = Random::seeded(seed());
    for bucket in buckets() {
        let key = Key::new(bucket);
        let (mut held, mut done) = (Vec::<(Taken, Tick, u64)>::new(), Vec::<(Tick, u64)>::new());
        let unit = bucket.tick(bucket.cost(1)).min(DAY);
        for _ in 0..1_000 {
            key.advance(random.below(2) * random.scaled(2 * unit));
            let now = key.now.get().floor;
            let weight = 1 + random.scaled(bucket.size - 1);
            let change = |ask: &mut Ask| {
                ask.patience = random.below(2) * random.scaled(20 * unit);
                ask.grace = random.below(2) * random.scaled(unit);
                ask.gate = now + random.below(2) * random.scaled(unit);
            };
            let answer = key.claim_with(change, weight);
            held.extend(answer.taken.map(|taken| (taken, answer.ready.max(now), weight)));
            if !held.is_empty() && random.below(2) == 0 {
                let (taken, at, weight) = held.swap_remove(random.below(held.len() as u64) as usize);
                let units = (1 + random.scaled(weight)).min(weight);
                key.take_back(taken, weight, units);
                // Late in its grace, or early.
                done.push((if random.below(2) == 0 { at } else { taken.stamp }, weight - units));
            }
        }
        done.extend(held.into_iter().map(|(_, at, weight)| (at, weight)));
        done.retain(|(_, weight)| *weight > 0);
        assert_kept(bucket, done);
    }
}

/// The ledger is read again after a reboot at any time: the result is the former bucket, less what was not written.
#[test]
fn the_ledger_restores_a_bucket() {
    let mut random = Random::seeded(seed());
    for bucket in buckets() {
        let key = Key::new(bucket);
        let (unit, part) = (bucket.tick(bucket.cost(1)).min(DAY), bucket.origin(1));
        let mut rows = Vec::new();
        for call in 0..1_000 {
            let before = key.now.get();
            let floor = before.floor + random.below(2) * random.scaled(3 * unit);
            key.now.set(Now { floor, ceil: before.ceil.max(floor + random.below(2)) });
            let now = key.now.get();
            let taken = key.claim(1 + random.scaled(bucket.size - 1)).taken;
            if random.below(20) == 0 {
                let views = || (key.view(1), key.meter().unlogged(now).0.iter().map(|start| start.units).sum::<u64>());
                let before = views();
                key.rewrite(|_| {});
                assert_eq!(views(), before, "{bucket:?}, call {call}");
            } else if let Some(taken) = taken {
                let unwritten = key.meter().unwritten(taken.end, now);
                let (starts, _) = key.meter().unlogged(now);
                assert!(starts.iter().map(|start| start.units).sum::<u64>() <= unwritten);
            }
            let writes = random.below(4) == 0;
            if writes {
                let (starts, mark) = key.meter().unlogged(now);
                rows.extend(starts);
                key.cells.logged.store(mark, Relaxed);
                assert_eq!(key.meter().unlogged(now), (Vec::new(), mark));
                assert!(taken.is_none_or(|taken| key.meter().unwritten(taken.end, now) == 0 || taken.end > mark));
            }
            rows.retain(|start| start.stamp.saturating_add(bucket.memory()) > now.floor);
            let starts = rows.iter().map(|s| Start { stamp: s.stamp.min(now.ceil), is_logged: true, ..*s }).collect();
            let again = Key::new(bucket);
            again.cells.live(bucket, &History { starts, ..History::default() }, now);
            let moment = |key: &Key| key.meter().read().2.max(bucket.ceil(now.ceil));
            let missing = moment(&key) - moment(&again);
            let most = bucket.cost(key.meter().unwritten(key.cells.word.load(Relaxed) >> 1, now));
            assert!((-part..=most).contains(&missing), "{bucket:?}, call {call}: {missing} of {most}");
            assert!(!writes || missing <= 0);
        }
    }
}

/// Returns buckets at the limits of the ranges.
fn buckets() -> Vec<Bucket> {
    let mut all = Vec::new();
    for (rate, period) in [
        (1, 1),
        (1, MAX_TIME),
        (MAX, 1),
        (MAX, MAX_TIME),
        (999_999_937, S),
        (999_999_937, MAX_TIME),
        (999_999_937, MAX_TIME - 1),
        (999_999_937, 3_600 * S),
        (3, MAX_TIME - 1),
        (7, S),
        (100, 60 * S),
    ] {
        for size in [1, 2, 10, 99_991, MAX] {
            all.extend([false, true].map(|is_leaky| Bucket::new(rate, period, size, is_leaky)));
        }
    }
    all
}

#[test]
fn costs_fit_and_are_exact_or_rounded_up() {
    for bucket in buckets() {
        let Bucket { rate, period, size, n, p, shift, .. } = bucket;
        assert_eq!(Bucket::from_words(bucket.to_words()), bucket);
        assert!(bucket.cost(size + 1) <= COSTLIEST as i128, "{bucket:?}");
        // p parts of 2^shift / n µs against period / rate µs.
        let (ours, exact) = ((u128::from(p) * u128::from(rate)) << shift, u128::from(period) * u128::from(n));
        assert!(ours >= exact && (ours - exact) <= exact / 1_000_000_000, "{bucket:?}");
        let needs_parts =
            p >= COARSEST as u64 / 2 && (shift > 0 || u128::from(n) <= FINEST || u128::from(p) < COARSEST);
        assert!(ours == exact || needs_parts, "{bucket:?}");
        assert!(shift == 0 || n == 1);
    }
    let plain = Bucket::new(100, 60 * S, 100, false);
    assert_eq!((plain.n, plain.p, plain.shift), (1, 600_000, 0));
}

#[path = "meter_reference_tests.rs"]
mod reference;
use reference::assert_kept;
