//! The sliced log: exact to the tick, over its lives, against a plain model, and between threads.

use super::*;
use crate::Algorithm;
use crate::random_tests::{Random, seed};
use std::cell::Cell;

const MS: Tick = 1_000;
const S: Tick = 1_000 * MS;
const DAY: Tick = 86_400 * S;
/// The distance of a store's epoch.
const START: Tick = 400 * DAY;

/// A key's cells and a clock that stands still, used as a limiter would.
struct Key {
    head: AtomicU64,
    life: AtomicU64,
    era: AtomicU64,
    logged: AtomicU64,
    written: AtomicU64,
    ring: Vec<AtomicU64>,
    born: Tick,
    window: Window,
    now: Cell<Tick>,
}

impl Key {
    fn new(limit: u64, length: Tick) -> Key {
        let ring = (0..SLICES).map(|_| AtomicU64::new(0)).collect();
        let (head, life, era, logged, written) = Default::default();
        Key { head, life, era, logged, written, ring, born: 0, window: Window { limit, length }, now: Cell::new(START) }
    }

    fn log(&self) -> Slices<'_> {
        let base = self.life.load(Acquire);
        let Key { head, life, era, logged, written, ring, born, .. } = self;
        Slices { head, life, base, ring, era, logged, written, born: *born }
    }

    fn clock(&self) -> Now {
        Now { floor: self.now.get(), ceil: self.now.get() }
    }

    fn slice(&self) -> Tick {
        Scale::new(0, 0, self.window.length).slice
    }

    fn ask<'a>(&self, windows: &'a [Window], weight: u64) -> Ask<'a> {
        Ask::now(windows, weight, 0)
    }

    fn claim_with(&self, change: impl FnOnce(&mut Ask), weight: u64) -> Answer {
        let windows = [self.window];
        let mut ask = self.ask(&windows, weight);
        change(&mut ask);
        loop {
            match self.log().claim(&ask, || self.clock()) {
                Ok(answer) => return answer,
                Err(Sealed) => {
                    assert!(self.log().is_used_up(self.window.length, self.clock()));
                    self.rebuild(|_| {});
                    assert!(!self.log().is_used_up(self.window.length, self.clock()));
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
        self.log().view(&self.ask(&[self.window], weight), || self.clock()).unwrap()
    }

    /// Seals the cells, and writes what counts, changed by `change`, into the same cells.
    fn rebuild(&self, change: impl FnOnce(&mut Vec<Start>)) {
        let base = self.log().seal();
        let sealed = Slices { base, ..self.log() };
        let mut history = sealed.history(self.window.length, self.clock());
        change(&mut history.starts);
        self.life.swap(base | CLOSED, AcqRel);
        let Some(base) = sealed.write(&history, self.window, self.clock()) else {
            // Stands for other cells.
            self.ring.iter().chain([&self.head, &self.life]).for_each(|cell| cell.store(0, Relaxed));
            let base = self.log().write(&history, self.window, self.clock());
            return self.life.store(base.expect("new cells have a life"), Release);
        };
        self.life.store(base, Release);
    }

    fn advance(&self, by: Tick) {
        self.now.set(self.now.get() + by);
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

const LENGTHS: [Tick; 8] = [1, 2, 8 * MS, 8_191, 8_193, 16_383, S, 366 * DAY];
const LIMITS: [u64; 2] = [4_097, MAX];

#[test]
fn units_become_free_when_a_slice_has_left_the_window() {
    for length in LENGTHS {
        for limit in LIMITS {
            let key = Key::new(limit, length);
            assert!(key.takes(limit - 1));
            let stamp = key.claim(1).taken.unwrap().stamp;
            assert!((START..START + key.slice()).contains(&stamp));
            let denied = key.claim(1);
            assert_eq!((denied.taken, denied.ready), (None, stamp + length));
            key.assert_exact(1);
            assert_eq!(key.now.get(), stamp + length);
            assert_eq!(key.view(1).remaining, limit - 1);
        }
    }
}

#[test]
fn a_denial_is_exact_for_every_weight() {
    for length in LENGTHS {
        let key = Key::new(4_097, length);
        let mut filled = 0;
        while filled < 4_097 {
            let weight = (1 + filled % 7 * 100).min(4_097 - filled);
            assert!(key.takes(weight));
            filled += weight;
            // All in one window.
            key.advance(length / 64);
        }
        for weight in [1, 2, 99, 500, 4_097, 3] {
            if key.claim(weight).taken.is_none() {
                key.assert_exact(weight);
            }
        }
    }
}

#[test]
fn a_denial_writes_nothing() {
    let key = Key::new(5_000, S);
    assert!(key.takes(5_000));
    key.advance(S / 2);
    let cells = || key.ring.iter().chain([&key.head, &key.life]).map(|c| c.load(Relaxed)).collect::<Vec<_>>();
    let before = cells();
    assert!(!key.takes(1));
    assert_eq!(cells(), before);
}

#[test]
fn pauses_longer_than_the_ring_are_harmless() {
    for length in LENGTHS {
        let key = Key::new(10_000, length);
        let ring = key.slice() * SLICES;
        for pause in [0, length, ring - 1, ring, ring + 1, 3 * ring + 5, 70 * ring] {
            if length == 366 * DAY && pause > 2 * ring {
                continue; // Beyond the last stamp.
            }
            key.advance(pause);
            assert_eq!(key.takes(6_000), pause != 0 || key.now.get() == START, "{length} {pause}");
            key.advance(length / 2);
            if length > 1 {
                assert!(!key.takes(6_000), "{length} {pause}");
                assert_eq!(key.view(1).remaining, 4_000);
                key.advance(length);
            }
        }
    }
}

#[test]
fn an_untouched_log_is_empty() {
    let key = Key::new(9_000, S);
    let empty = View { now: START, ready: S, remaining: 9_000, empty: S };
    assert_eq!(key.view(9_000), empty);
    assert_eq!(key.life.load(Relaxed), 0, "a view does not begin a life");
    let windows = [key.window];
    assert_eq!(Slices::untouched(0).view(&key.ask(&windows, 1), || key.clock()), Ok(empty));
    assert!(key.log().is_idle(S, key.clock()));
    assert!(key.takes(1_000));
    let view = key.view(0);
    assert_eq!((view.remaining, view.ready), (8_000, 0), "weight 0 needs no free units");
    let seen = key.log().claim_and_view(&key.ask(&windows, 500), || key.clock()).unwrap();
    assert_eq!(seen.1, View { ready: S, ..key.view(1) });
    assert_eq!(seen.1.empty, seen.0.taken.unwrap().stamp + S);
    key.now.set(seen.1.empty - 1);
    assert!(!key.log().is_idle(S, key.clock()));
    key.advance(1);
    assert!(key.log().is_idle(S, key.clock()));
}

#[test]
fn an_unknown_past_counts_as_full() {
    let key = Key { born: START - MS, ..Key::new(5_000, S) };
    assert_eq!(key.view(1), View { now: START, ready: START - MS + S, remaining: 0, empty: START - MS + S });
    assert_eq!(key.claim(1).ready, START - MS + S);
    let forced = key.claim_with(|ask| ask.force = true, 100).taken.unwrap();
    assert_eq!(key.view(5_000).ready, forced.stamp + S);
    key.assert_exact(4_900);
    assert_eq!(key.now.get(), START - MS + S);
}

#[test]
fn a_gate_holds_while_units_are_free() {
    let key = Key::new(5_000, S);
    let gated = key.claim_with(|ask| ask.gate = START + 1, 1);
    assert_eq!((gated.taken, gated.ready), (None, START + 1));
    key.advance(1);
    assert!(key.claim_with(|ask| ask.gate = START + 1, 1).taken.is_some());
}

#[test]
fn places_lie_in_the_future_and_count_there() {
    let key = Key::new(5_000, S);
    let first = key.claim(5_000).taken.unwrap().stamp;
    let wait = |weight, patience| key.claim_with(|ask| (ask.patience, ask.grace) = (patience, 25 * MS), weight);
    assert_eq!(wait(1_000, first + S - START - 1).taken, None, "a tick too impatient");
    let place = wait(1_000, first + S - START);
    let stamp = place.taken.unwrap().stamp;
    assert_eq!(place.ready, first + S);
    assert!((0..key.slice()).contains(&(stamp - place.ready - 25 * MS)));
    // The rest of that window starts with it, or later; the next window after it.
    assert_eq!(wait(4_000, Tick::MAX).ready, first + S);
    let after = wait(1, Tick::MAX);
    assert_eq!((after.taken, after.ready), (None, stamp + S), "beyond the ring");
    key.now.set(place.ready);
    assert_eq!(wait(1, Tick::MAX).ready, stamp + S);
    assert_eq!(key.view(1).remaining, 0);
}

/// A start or a place of the reference: its claim's number is its index.
struct Known {
    id: StartId,
    /// When a place is ready, as it was told last.
    ready: Tick,
    /// When it started; a debt: when it was recorded.
    at: Option<Tick>,
    /// What it has used: less once it was settled. 0: it was cancelled, or has ended.
    units: u64,
    is_debt: bool,
}

impl Known {
    fn of(taken: Taken, units: u64, ready: Tick, at: Option<Tick>) -> Known {
        Known {
            id: StartId { ticket: taken.ticket, stamp: taken.stamp, weight: units },
            ready,
            at,
            units,
            is_debt: false,
        }
    }
}

/// Asserts that no window holds more than its limit. A debt waits for nothing, so a window may hold more with it; but what was claimed
/// later waited for it.
fn assert_windows(seed: u64, all: &[Known], window: Window) {
    let started = |known: &&Known| known.at.is_some() && known.units > 0;
    for (last, claimed) in all.iter().enumerate().filter(|(_, known)| started(known) && !known.is_debt) {
        let before = || all[..=last].iter().filter(started).map(|known| (known.at.unwrap(), known.units));
        let at = claimed.at.unwrap();
        for (from, _) in before().filter(|(from, _)| *from <= at && at < from + window.length) {
            let within = before().filter(|start| (from..from + window.length).contains(&start.0));
            let held: u64 = within.clone().map(|start| start.1).sum();
            assert!(held <= window.limit, "seed {seed}: {held} from {from} on: {:?}", within.collect::<Vec<_>>());
        }
    }
}

/// Places start as soon as those that they wait for let them, among starts and places that are settled, both ways, and cancelled.
/// (`SEEDS=100000`: more of them. `PLANT="not its units"`.)
#[test]
fn places_that_are_ready_sooner_keep_the_limit() {
    let seeds = std::env::var("SEEDS").map_or(100, |text| text.parse().unwrap());
    // (A debt that is older than all others ends a slice. The starts of that slice may count later then, where nobody finds them.)
    let (mut sooner, mut taken, mut changed, mut unfound) = (0, 0, 0, 0);
    for seed in 1..=seeds {
        let mut random = Random::seeded(seed);
        let length = random.pick(&[50, 8 * MS, 8 * MS + 200, 16_383, S]);
        let key = Key::new(5_000, length);
        let windows = [key.window];
        let mut all: Vec<Known> = Vec::new();
        for _ in 0..100 {
            key.advance(random.below(length / 12));
            let now = key.now.get();
            let weight = 500 + random.below(2_500);
            // Of a start here: (its index, its units).
            let some = random.index(all.len()).filter(|&i| all[i].units > 0 && !all[i].is_debt);
            match random.below(12) {
                0 => all.extend(key.claim(weight).taken.map(|start| Known::of(start, weight, now, Some(now)))),
                1..4 => {
                    let grace = random.below(length / 2);
                    let answer =
                        key.claim_with(|ask| (ask.reserve, ask.patience, ask.grace) = (true, length, grace), weight);
                    all.extend(answer.taken.map(|place| Known::of(place, weight, answer.ready, None)));
                }
                // It is cancelled, or settled.
                4..6 if some.is_some_and(|i| all[i].id.stamp + length > now) => {
                    let Some(one) = some.map(|i| &mut all[i]) else { continue };
                    let used = if one.at.is_none() { 0 } else { random.below(one.units + one.units / 2) };
                    let mut back = one.units.saturating_sub(used);
                    let debt = used.saturating_sub(one.units);
                    key.rebuild(|starts| {
                        for start in starts.iter_mut().filter(|start| start.stamp == one.id.stamp) {
                            let taken = back.min(start.units);
                            (start.units, back) = (start.units - taken, back - taken);
                        }
                        let at = starts.partition_point(|start| start.stamp <= now);
                        let debt = Start { stamp: now, units: debt, state: SETTLED, id: u64::MAX, is_logged: false };
                        starts.insert(at, debt);
                    });
                    unfound += u64::from(back > 0);
                    one.units -= one.units.saturating_sub(used);
                    let id = StartId { ticket: 0, stamp: now, weight: debt };
                    all.push(Known { id, ready: now, at: Some(now), units: debt, is_debt: true });
                    changed += 1;
                }
                _ => {
                    for place in all.iter_mut().filter(|place| place.at.is_none() && place.units > 0) {
                        let seen = key.log().ready_of(place.id, &key.ask(&windows, place.id.weight), || key.clock());
                        if let Some(ready) = seen.unwrap().filter(|ready| *ready < place.ready) {
                            (sooner, place.ready) = (sooner + 1, ready);
                        }
                        if now > place.id.stamp {
                            place.units = 0; // It is late: its units count, but it starts nothing.
                        } else if place.ready <= now && random.below(4) > 0 {
                            let stamp = key.log().present(place.id, length, key.clock()).unwrap().unwrap();
                            assert!((now..=place.id.stamp).contains(&stamp));
                            (place.id.stamp, place.at) = (stamp, Some(now));
                            taken += 1;
                        }
                    }
                }
            }
        }
        assert_windows(seed, &all, key.window);
    }
    println!(
        "{sooner} times sooner, {taken} places started, {changed} were settled or cancelled, {unfound} of them not found"
    );
    assert!(sooner > seeds && taken > seeds && changed > seeds && unfound <= changed / 1_000);
}

#[test]
fn a_place_after_a_pause_longer_than_the_ring() {
    let key = Key::new(5_000, S);
    assert!(key.takes(10));
    key.advance(SLICES * key.slice() - S / 2);
    let gate = key.now.get() + 3 * S / 4;
    let place = key.claim_with(|ask| (ask.gate, ask.patience) = (gate, S), 4_000);
    assert_eq!(place.ready, gate);
    assert_eq!(key.view(1).remaining, 1_000);
    assert_eq!(key.claim(1_001).ready, place.taken.unwrap().stamp + S);
}

#[test]
fn forced_starts_count_beyond_the_limit() {
    let key = Key::new(MAX, S);
    let mut last = 0;
    // More than one life can count.
    for _ in 0..12 {
        last = key.claim_with(|ask| ask.force = true, MAX).taken.unwrap().stamp;
        key.advance(S / 100);
    }
    assert_eq!(key.view(1), View { ready: last + S, remaining: 0, empty: last + S, now: key.now.get() });
    key.assert_exact(1);
    assert_eq!(key.now.get(), last + S);
}

#[test]
fn a_life_that_cannot_count_further_is_rewritten() {
    let key = Key::new(MAX, S);
    for _ in 0..30 {
        assert!(key.takes(MAX));
        assert!(!key.takes(1));
        key.advance(S + key.slice());
    }
    let (lives, limit) = (1 << 31, 5_000);
    let key = Key::new(limit, 1);
    for _ in 0..10 {
        assert!(key.takes(limit));
        assert!(!key.takes(1));
        key.advance(lives / 3);
    }
}

#[test]
fn a_sealed_log_refuses_calls_and_returns_its_history() {
    let key = Key::new(5_000, S);
    let a = key.claim(1_000).taken.unwrap().stamp;
    key.advance(S / 2);
    let b = key.claim(2_000).taken.unwrap().stamp;
    let c = key.claim_with(|ask| (ask.gate, ask.patience) = (b + S / 4, S), 500).taken.unwrap().stamp;
    let log = key.log();
    assert_eq!(log.seal(), log.base);
    assert_eq!(log.seal(), log.base);
    let windows = [key.window];
    let ask = key.ask(&windows, 1);
    assert_eq!(log.claim(&ask, || key.clock()), Err(Sealed));
    assert_eq!(log.claim(&Ask { force: true, ..ask }, || key.clock()), Err(Sealed));
    assert_eq!(log.view(&ask, || key.clock()), Err(Sealed));
    let start = |stamp, units| Start { stamp, units, state: SETTLED, id: u64::MAX, is_logged: false };
    let all = [start(a, 1_000), start(b, 2_000), start(c, 500)];
    assert_eq!(log.history(S, key.clock()).starts, all);
    key.now.set(a + S - 1);
    assert_eq!(log.history(S, key.clock()).starts, all);
    // A longer window may be declared.
    key.now.set(a + MAX_TIME - 1);
    assert_eq!(log.history(S, key.clock()).starts, all);
    key.advance(1);
    assert_eq!(log.history(S, key.clock()).starts, all[1..]);
}

#[test]
fn an_untouched_log_can_be_sealed_and_begun() {
    let key = Key::new(5_000, S);
    let early = key.log();
    assert!(key.takes(5_000), "the life begins after a view");
    assert!(!early.is_idle(S, key.clock()) && !early.is_used_up(S, key.clock()));
    assert_eq!(early.seal(), key.life.load(Relaxed));
    assert_eq!(key.log().claim(&key.ask(&[key.window], 1), || key.clock()), Err(Sealed));
    let key = Key::new(5_000, S);
    key.rebuild(|starts| assert!(starts.is_empty()));
    assert!(key.log().is_idle(S, key.clock()));
    assert!(key.takes(5_000));
}

#[test]
fn cells_have_many_lives() {
    for length in [1, 8 * MS, S, 366 * DAY] {
        let key = Key::new(5_000, length);
        let mut stale = Vec::new();
        let mut words = std::collections::HashSet::new();
        let kept = key.claim(2_000).taken.unwrap().stamp;
        for round in 0..1_000 {
            assert!(key.takes(3_000), "{length}: round {round}");
            assert!(!key.takes(1));
            assert!(words.insert(key.life.load(Relaxed)), "a life's number was reused");
            assert!(words.insert(key.head.load(Relaxed)), "a head was reused");
            stale.push(key.log().base);
            key.rebuild(|starts| starts.last_mut().unwrap().units -= 3_000); // A refund.
            let view = key.view(5_000);
            assert_eq!((view.remaining, view.ready), (3_000, kept + length), "stamps stay");
        }
        let (windows, before) = ([key.window], key.head.load(Relaxed));
        for base in stale {
            let old = Slices { base, ..key.log() };
            let ask = key.ask(&windows, 1);
            assert_eq!(old.claim(&ask, || key.clock()), Err(Sealed));
            assert_eq!(old.claim(&Ask { force: true, ..ask }, || key.clock()), Err(Sealed));
            assert_eq!(old.view(&ask, || key.clock()), Err(Sealed));
            assert!(!old.is_idle(length, key.clock()) && !old.is_used_up(length, key.clock()));
            old.seal();
            assert_eq!(key.head.load(Relaxed), before);
        }
        assert!(key.takes(3_000));
    }
}

#[test]
fn lives_begin_centuries_after_the_clock() {
    for length in LENGTHS {
        for years in [35, 36, 71, 150, 500, 580] {
            for (is_new, ahead) in (0..STEP).flat_map(|ahead| [(true, ahead), (false, ahead)]) {
                let key = Key::new(5_000, length);
                assert!(is_new || key.takes(5_000));
                // At any place in a step.
                key.advance(years * MAX_TIME + ahead);
                let kept = key.claim(2_000).taken.unwrap().stamp;
                assert!((key.now.get()..key.now.get() + key.slice()).contains(&kept));
                for _ in 0..3 {
                    key.advance(length / 5);
                    assert!(key.takes(3_000), "{length}, {years} years");
                    assert_eq!(key.view(1).ready, kept + length);
                    key.rebuild(|starts| starts.last_mut().unwrap().units -= 3_000);
                    assert_eq!(key.view(5_000).ready, kept + length, "stamps stay: {length}, {years} years");
                }
                key.assert_exact(5_000);
            }
        }
    }
}

#[test]
fn places_at_the_end_of_the_ring_stay_where_they_are() {
    for length in LENGTHS {
        let key = Key::new(5_000, length);
        for round in 0..STEP {
            // A life begins here, so that all slices of its ring lie ahead.
            key.rebuild(Vec::clear);
            key.advance(3 * length + round);
            key.rebuild(|_| {});
            let first = key.claim(2_000).taken.unwrap().stamp;
            key.advance(round * key.slice() % length);
            let second = key.claim(1_000).taken.unwrap().stamp;
            let last = (SLICES - 2) * key.slice();
            let place = |grace| key.claim_with(|ask| (ask.reserve, ask.grace) = (true, grace), 2_000).taken;
            let place = (0..3 * STEP).find_map(|early| place(last.saturating_sub(early * key.slice()))).unwrap().stamp;
            for _ in 0..3 {
                key.rebuild(|_| {});
                let held = |weight| key.view(weight).ready;
                assert_eq!((held(1), held(2_000)), (first + length, first + length), "{length} {round}");
                assert_eq!((held(2_001), held(3_000)), (second + length, second + length), "{length} {round}");
                assert_eq!(held(3_001), place + length, "{length} {round}");
            }
            key.now.set(place + length);
            assert_eq!(key.view(1).remaining, 5_000);
        }
    }
}

#[test]
fn forced_starts_can_be_taken_back_after_a_rebuild() {
    let key = Key::new(5_000, S);
    let first = key.claim(5_000).taken.unwrap().stamp;
    key.advance(S / 4);
    key.claim_with(|ask| ask.force = true, 2_500);
    key.rebuild(|_| {});
    key.rebuild(|starts| starts.last_mut().unwrap().units = 0);
    assert_eq!((key.view(1).remaining, key.view(5_000).ready), (0, first + S));
}

/// Fills the entries that a claim of these units at this head would enter up to `slice`, and dies.
fn fill_and_die(log: &Slices, slice: u64) {
    let head = log.head.load(Relaxed);
    log.fill(slice_in(head) + 1, slice, units_in(head));
}

#[test]
fn entries_filled_by_a_dead_claimant_are_right_after_a_jump() {
    let key = Key::new(5_000, S);
    assert!(key.takes(10));
    let far = SLICES - PER_WINDOW / 2;
    fill_and_die(&key.log(), far);
    assert!(key.takes(5));
    key.advance(far * key.slice());
    let gate = key.now.get() + 3 * S / 4;
    assert!(key.claim_with(|ask| (ask.gate, ask.patience) = (gate, S), 4_000).taken.is_some());
    assert_eq!(key.view(1).remaining, 1_000);
}

#[test]
fn entries_filled_late_by_a_former_life_are_not_seen() {
    let key = Key::new(5_000, S);
    assert!(key.takes(1));
    // The former life ends where the next one's slices might begin.
    key.advance((STRIDE - 1) * key.slice());
    assert!(key.takes(5_000));
    let late = key.log();
    let head = AtomicU64::new(key.head.load(Relaxed));
    key.rebuild(|starts| starts[0].units = 3_000);
    fill_and_die(&Slices { head: &head, ..late }, STRIDE - 1 + SLICES);
    for _ in 0..100 {
        key.advance(key.slice());
        assert!(key.takes(20));
    }
    assert_eq!(key.view(1).remaining, 0);
    key.assert_exact(3_000);
}

#[test]
fn cells_that_had_too_many_lives_are_refused() {
    let key = Key::new(5_000, S);
    let last = std::iter::repeat_with(|| {
        let base = key.log().seal();
        let next = key.log().write(&History::default(), key.window, key.clock());
        key.life.store(next.unwrap_or(base), Release);
        next
    })
    .take_while(Option::is_some)
    .last()
    .unwrap();
    assert_eq!(last.unwrap() & CLOSED, 0);
    assert_eq!(key.log().claim(&key.ask(&[key.window], 1), || key.clock()), Err(Sealed), "and stay sealed");
}

#[test]
fn starts_of_another_window_count_no_earlier_and_hardly_later() {
    let (old, new) = (Key::new(9_000, 60 * S), Key::new(6_000, 7 * S));
    for _ in 0..7 {
        assert!(old.takes(1_000));
        old.advance(S);
    }
    let sealed = Slices { base: old.log().seal(), ..old.log() };
    let history = sealed.history(60 * S, old.clock());
    let starts = &history.starts;
    assert_eq!(starts.iter().map(|s| s.units).sum::<u64>(), 7_000);
    new.now.set(old.now.get());
    new.life.store(new.log().write(&history, new.window, new.clock()).unwrap(), Release);
    for start in starts.iter().filter(|s| s.stamp + 7 * S > old.now.get()).skip(2) {
        let ready = new.claim(6_000 - 1_000 * starts.iter().filter(|s| s.stamp > start.stamp).count() as u64).ready;
        assert!((0..new.slice()).contains(&(ready - (start.stamp + 7 * S))), "{start:?} leaves at {ready}");
    }
}

#[test]
fn a_place_too_far_for_a_shorter_ring_delays_the_others() {
    // Wherever it is in its slice.
    for late in 0..128 {
        let (from, far) = (START + late, START + 3_600 * S + 2 * late);
        let key = Key::new(5_000, S);
        key.now.set(from);
        let starts = [(from, 1_000), (far, 2_000)];
        let starts =
            starts.map(|(stamp, units)| Start { stamp, units, state: SETTLED, id: u64::MAX, is_logged: false });
        let history = History { starts: starts.to_vec(), ..History::default() };
        key.life.store(key.log().write(&history, key.window, key.clock()).unwrap(), Release);
        assert_eq!(key.view(1).remaining, 2_000);
        key.advance(1_800 * S);
        assert_eq!(key.view(1).remaining, 2_000);
        let last = key.claim(5_000).ready;
        assert!((0..key.slice()).contains(&(last - (far + S))));
        key.assert_exact(5_000);
    }
}

/// A log that keeps every start: stamp and units, ordered by stamp.
#[derive(Default)]
struct Plain(Vec<(u128, u128)>);

impl Plain {
    /// Returns the moment from which at most `limit` units count, including `weight` more.
    fn ready(&self, window: Window, weight: u64) -> u128 {
        let mut left: u128 = self.0.iter().map(|start| start.1).sum();
        let mut ready = 0;
        for (stamp, units) in &self.0 {
            if left + u128::from(weight) <= u128::from(window.limit) {
                break;
            }
            left -= units;
            ready = stamp + u128::from(window.length);
        }
        ready
    }

    /// Adds a start. A place counts no earlier than the starts before it.
    fn add(&mut self, stamp: u128, units: u64, is_place: bool) {
        let newest = self.0.last().filter(|_| is_place).map_or(0, |start| start.0);
        let stamp = stamp.max(newest);
        let at = self.0.partition_point(|start| start.0 <= stamp);
        self.0.insert(at, (stamp, units.into()));
    }
}

/// 20 keys, with 10,000 calls each.
#[test]
fn random_calls_match_a_log_that_keeps_every_start() {
    let seed = seed();
    let mut random = Random::seeded(seed);
    for round in 0..20 {
        let length = LENGTHS[round % LENGTHS.len()];
        let limit = 4_097 + random.scaled(MAX - 4_097);
        let force = round % 3 == 0;
        let key = Key::new(limit, length);
        let (mut plain, mut happened) = (Plain::default(), Vec::new());
        let mut admitted = 0;
        for call in 0..10_000 {
            // Where a window is a tick or two, it must not always have ended.
            let still = length < 10 && random.below(20) != 0;
            key.advance(match random.below(100) {
                _ if still => 0,
                0 => random.scaled(length * 4).min(400 * DAY / 100),
                1..30 => random.scaled(length.div_ceil(100)),
                30..50 => random.scaled(key.slice() * 2),
                _ => 0,
            });
            let now = key.now.get();
            if random.below(50) == 0 {
                key.rebuild(|_| {});
            }
            let weight = 1 + random.scaled(limit - 1).min(if random.below(8) == 0 { limit } else { limit / 64 });
            let patience = if random.below(3) == 0 { random.scaled(2 * length) } else { 0 };
            let grace = random.below(2) * random.scaled(length / 40);
            let forced = force && random.below(200) == 0;
            let exact = plain.ready(key.window, weight);
            let answer = key.claim_with(|ask| (ask.patience, ask.grace, ask.force) = (patience, grace, forced), weight);
            let (ready, now) = (u128::from(answer.ready), u128::from(now));
            // A past moment is only known to be past.
            let about = || format!("round {round}, call {call}: {ready} instead of {exact}, now {now}");
            assert!(ready.max(now) >= exact.max(now), "early: {}", about());
            assert!(ready.max(now) < exact.max(now) + u128::from(2 * key.slice()), "late: {}", about());
            assert!(ready.max(now) < exact.max(now) + u128::from(key.slice()), "late by a slice: {}", about());
            if let Some(taken) = answer.taken {
                admitted += 1;
                let at = if ready > now && !forced { ready } else { now };
                let latest = if ready > now && !forced { ready + u128::from(grace) } else { now };
                assert!(u128::from(taken.stamp) >= latest);
                assert!(ready <= now + u128::from(patience) || forced, "{}", about());
                plain.add(latest, weight, ready > now && !forced);
                let at = at + u128::from(random.scaled((latest - at) as u64));
                happened.push((at, u128::from(weight), forced));
            } else {
                let beyond = ready + u128::from(grace) - now >= u128::from((SLICES - PER_WINDOW - 3) * key.slice());
                assert!(ready > now + u128::from(patience) || beyond, "denied: {}", about());
            }
            plain.0.retain(|start| start.0 + u128::from(length) > now);
        }
        println!("round {round}: {admitted} of 10,000 were admitted");
        assert!((20..9_900).contains(&admitted));
        if !force {
            happened.sort();
            let (mut first, mut held) = (0, 0);
            for &(at, units, _) in &happened {
                held += units;
                while happened[first].0 + u128::from(length) <= at {
                    held -= happened[first].1;
                    first += 1;
                }
                assert!(
                    held <= u128::from(limit),
                    "round {round}: {held} of {limit} in the window that ends with {at}"
                );
            }
        }
    }
}

/// Threads race on a clock that each of them moves, while the log is rebuilt.
#[test]
fn threads_never_exceed_a_window() {
    for length in [1, 50, 8 * MS + 200] {
        let key = Key::new(5_000, length);
        let (window, time) = (key.window, AtomicU64::new(START));
        let Key { head, life, era, logged, written, ring, .. } = &key;
        let log = || Slices { head, life, base: life.load(Acquire), ring, era, logged, written, born: 0 };
        let at = |tick| Now { floor: tick, ceil: tick };
        let clock = || at(time.load(SeqCst));
        let starts = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (starts, log, clock, time) = (&starts, &log, &clock, &time);
                scope.spawn(move || {
                    let mut random = Random::seeded(thread);
                    let mut mine = Vec::new();
                    for round in 0..40_000 {
                        if random.below(8) == 0 {
                            time.fetch_add(random.scaled(length / 4 + 1), SeqCst);
                        }
                        if random.below(10_000) == 0 {
                            time.fetch_add(SLICES * 3, SeqCst);
                        }
                        if thread == 0 && round % 500 == 0 {
                            let base = log().seal();
                            let sealed = Slices { base, ..log() };
                            let held = sealed.history(length, clock());
                            life.swap(base | CLOSED, AcqRel);
                            life.store(sealed.write(&held, window, clock()).unwrap(), Release);
                        }
                        let weight = 1 + random.scaled(2_000);
                        let ask = Ask {
                            patience: random.below(2) * length,
                            ..Ask::now(std::slice::from_ref(&window), weight, 0)
                        };
                        if let Ok(Answer { now, ready, taken: Some(_) }) = log().claim(&ask, clock) {
                            mine.push((now.ceil.max(ready), weight));
                        }
                    }
                    starts.lock().unwrap().extend(mine);
                });
            }
        });
        let mut starts = starts.into_inner().unwrap();
        starts.sort();
        assert!(starts.len() > 1_000);
        let (mut first, mut held) = (0, 0);
        for &(at, weight) in &starts {
            held += weight;
            while starts[first].0 + length <= at {
                held -= starts[first].1;
                first += 1;
            }
            assert!(held <= window.limit, "{held} in the window that ends with {at}");
        }
    }
}

#[test]
fn the_rest_of_a_grace_is_given_back() {
    let key = Key::new(5_000, S);
    let d = key.slice();
    let place = |weight, grace| {
        let taken = key.claim_with(|ask| (ask.reserve, ask.grace) = (true, grace), weight).taken.unwrap();
        StartId { ticket: taken.ticket, stamp: taken.stamp, weight }
    };
    let (first, second) = (place(2_000, 100 * d), place(1_000, 50 * d));
    assert!(key.takes(1_000));
    key.advance(10 * d);
    let at = key.now.get();
    let present = |place| key.log().present(place, S, key.clock()).unwrap();
    assert_eq!(present(StartId { ticket: 9, ..first }), None, "of another era");
    // In the current slice, where a start without a wait would be.
    let stamp = present(first).unwrap();
    assert!((at..at + d).contains(&stamp));
    key.advance(5 * d);
    let later = present(second).unwrap();
    assert!((at + 5 * d..at + 6 * d).contains(&later));
    // Each leaves the window on its own, including the start without a wait.
    let direct = START + d - 1;
    for (weight, ready) in [(1_001, direct), (2_000, direct), (2_001, stamp), (4_000, stamp), (4_001, later)] {
        assert_eq!(key.view(weight).ready, ready + S, "{weight}");
    }
    // No caller can take more out of a slice than it holds.
    let entries = || key.ring.iter().map(|entry| entry.load(Relaxed)).collect::<Vec<_>>();
    let before = entries();
    for wrong in [StartId { weight: 4_500, ..first }, StartId { stamp: first.stamp + 10 * d, ..first }] {
        present(wrong);
        assert_eq!(entries(), before);
    }
}
