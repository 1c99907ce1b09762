//! The statements about words at the head of `log.rs`, in histories of one thread.

use super::*;
use crate::Algorithm;
use crate::random_tests::Random;
use std::collections::HashSet;

const W: Tick = 20;

struct Cells {
    /// The head, the counters, the life and the base, in the order of [`Cells::log`].
    words: [AtomicU64; 7],
    ring: Vec<AtomicU64>,
    origins: Vec<AtomicU64>,
    /// Every word that a slot ever held.
    held: Vec<HashSet<u64>>,
    last: Vec<u64>,
    whole: u64,
    left_out: [AtomicU64; 2],
}

impl Cells {
    fn new(size: usize) -> Cells {
        let zeros = || (0..size).map(|_| AtomicU64::new(0)).collect();
        Cells {
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            ring: zeros(),
            origins: zeros(),
            held: vec![HashSet::from([0]); size],
            last: vec![0; size],
            whole: size as u64,
            left_out: [const { AtomicU64::new(0) }; 2],
        }
    }

    fn log(&self) -> Log<'_> {
        let [head, cleared, own, logged, peak, life, base] = &self.words;
        let (number, base) = (life.load(Acquire), base.load(Acquire));
        Log {
            head,
            cleared,
            own,
            logged,
            peak,
            ring: &self.ring,
            whole: self.whole,
            largest: self.whole / 2,
            left_out: [&self.left_out[0], &self.left_out[1]],
            origins: &self.origins,
            life,
            number,
            base,
            born: 0,
        }
    }

    /// Asserts that no new word since the previous call was in its slot before.
    fn look(&mut self) {
        for (i, slot) in self.ring.iter().enumerate() {
            let word = slot.load(Acquire);
            if word != self.last[i] {
                assert!(self.held[i].insert(word), "slot {i} holds {word:x} again");
                self.last[i] = word;
            }
        }
    }

    /// Continues with the contents of `from`, less what `edit` removes.
    fn take_over(&self, from: &Cells, now: Now, edit: impl FnOnce(&mut Vec<Start>)) {
        from.log().seal();
        let mut history = from.log().history(W, now);
        edit(&mut history.starts);
        let [.., life, base] = &self.words;
        let number = life.load(Acquire) + 1;
        life.store(CLOSED, Release);
        base.store(self.log().write(&history, now).unwrap(), Release);
        life.store(number, Release);
    }
}

/// All sorts of starts, places that start early or late, and successive lives in the same cells. (`PLANT="same again"`,
/// `PLANT="forgotten peak"`.)
#[test]
fn no_slot_ever_holds_the_same_word_twice() {
    for seed in 1..=2_000 {
        let mut random = Random::seeded(seed);
        let limit = 1 + random.below(3);
        let windows = [Window { limit, length: W }];
        let (mut cells, mut other) = (Cells::new(16), Cells::new(16));
        let mut tick = 10 * W;
        let mut places: Vec<StartId> = Vec::new();
        // In some histories, laps take no time.
        let (pace, forced) = (random.below(3), random.below(40));
        for _ in 0..300 {
            tick += random.below(4).saturating_sub(pace);
            let now = Now { floor: tick, ceil: tick };
            let weight = 1 + random.below(limit);
            let ask = Ask::now(&windows, weight, 0);
            match random.below(10 + forced) {
                0..2 => drop(cells.log().claim(&ask, || now).unwrap()),
                2 | 10.. => drop(cells.log().claim(&Ask { force: true, weight: 1, ..ask }, || now).unwrap()),
                3..6 => {
                    let grace = random.below(3 * W);
                    let ask = Ask { reserve: true, patience: 2 * W, grace, ..ask };
                    if let Some(taken) = cells.log().claim(&ask, || now).unwrap().taken {
                        places.push(StartId { ticket: taken.ticket, stamp: taken.stamp, weight });
                    }
                }
                6..9 if !places.is_empty() => {
                    let place = places.swap_remove(random.below(places.len() as u64) as usize);
                    let stamp = cells.log().present(place, W, now).unwrap();
                    assert!(stamp.is_none_or(|stamp| stamp <= place.stamp && stamp >= tick.min(place.stamp)));
                }
                9 if random.below(5) == 0 => {
                    let gone = random.below(4);
                    let none = random.below(3) == 0;
                    other.take_over(&cells, now, |starts| {
                        starts.retain(|start| !none && start.id % 4 != gone);
                    });
                    cells.look();
                    std::mem::swap(&mut cells, &mut other);
                }
                _ => {}
            }
            cells.look();
        }
    }
}

/// A start of the reference, or a debt.
struct Known {
    /// Its ticket; a debt: the next ticket.
    ticket: u64,
    at: Tick,
    /// What it has used: less once it was settled.
    units: u64,
    is_settled: bool,
    is_debt: bool,
}

/// Places start as soon as those that they wait for let them, among starts and places that are settled, both ways, and cancelled. A debt
/// waits for nothing, so a window may hold more with it; but what was claimed later waited for it. (`SEEDS=100000`: more of them.
/// `PLANT="unknown is free"`.)
#[test]
fn places_that_are_ready_sooner_keep_the_limit() {
    let seeds = std::env::var("SEEDS").map_or(2_000, |text| text.parse().unwrap());
    let (mut sooner, mut changed) = (0, 0);
    for seed in 1..=seeds {
        let mut random = Random::seeded(seed);
        let limit = 1 + random.below(4);
        let windows = [Window { limit, length: W }];
        let (mut cells, mut other) = (Cells::new(16), Cells::new(16));
        let mut tick = 10 * W;
        let mut places: Vec<(StartId, Tick)> = Vec::new();
        let mut starts: Vec<Known> = Vec::new();
        for _ in 0..200 {
            tick += random.below(4);
            let now = Now { floor: tick, ceil: tick };
            let weight = 1 + random.below(limit);
            let ask = Ask::now(&windows, weight, 0);
            let start = |ticket, units| Known { ticket, at: tick, units, is_settled: false, is_debt: false };
            match random.below(12) {
                0 => {
                    let taken = cells.log().claim(&ask, || now).unwrap().taken;
                    starts.extend(taken.map(|taken| start(taken.ticket, weight)));
                }
                1..4 => {
                    let ask = Ask { reserve: true, patience: 9 * W, grace: random.below(W), ..ask };
                    let answer = cells.log().claim(&ask, || now).unwrap();
                    let id = |taken: Taken| StartId { ticket: taken.ticket, stamp: taken.stamp, weight };
                    places.extend(answer.taken.map(|taken| (id(taken), answer.ready)));
                }
                4..11 => {
                    for (place, ready) in &mut places {
                        let ask = Ask::now(&windows, place.weight, 0);
                        if let Some(now) = cells.log().ready_of(*place, &ask).unwrap().filter(|now| now < ready) {
                            (sooner, *ready) = (sooner + 1, now);
                        }
                    }
                    places.retain(|(place, ready)| {
                        let is_open = (*ready..=place.stamp).contains(&tick) && random.below(4) > 0;
                        let starts_now = is_open && cells.log().present(*place, W, now).unwrap().is_some();
                        starts.extend(starts_now.then(|| start(place.ticket, place.weight)));
                        !starts_now && tick <= place.stamp
                    });
                }
                _ if random.below(3) == 0 => {
                    // Places are cancelled; starts, too, or they are settled: less, or more. (Of a start that is forgotten in part, the
                    // rest stays.)
                    let (which, less, mut debt) =
                        (random.below(4), random.below(limit + 1), random.below(2) * random.below(limit));
                    other.take_over(&cells, now, |all| {
                        let is_whole =
                            |one: &Start| starts.iter().any(|known| (known.ticket, known.units) == (one.id, one.units));
                        for one in all.iter_mut().filter(|one| one.id % 4 == which) {
                            match one.state {
                                PLACE => one.units = 0,
                                SETTLED => {}
                                _ if is_whole(one) => {
                                    (one.units, one.state) = (one.units.saturating_sub(less), SETTLED)
                                }
                                _ => {}
                            }
                        }
                        all.retain(|one| one.units > 0);
                        // (A ring that is full of places keeps the newest of its starts.)
                        let held: u64 = all.iter().map(|one| one.units).sum();
                        debt = debt.min(15u64.saturating_sub(held));
                        let at = all.partition_point(|one| one.stamp <= tick);
                        let added = Start { stamp: tick, units: debt, state: SETTLED, id: u64::MAX, is_logged: false };
                        all.splice(at..at, (debt > 0).then_some(added));
                    });
                    std::mem::swap(&mut cells, &mut other);
                    for one in starts.iter_mut().filter(|one| !one.is_settled && one.ticket % 4 == which) {
                        (one.units, one.is_settled) = (one.units.saturating_sub(less), true);
                    }
                    let ticket = cells.log().position().unwrap();
                    starts.push(Known { is_settled: true, is_debt: true, ..start(ticket, debt) });
                    changed += 1;
                }
                _ => {}
            }
        }
        for last in starts.iter().filter(|one| !one.is_debt && one.units > 0) {
            let before = || starts.iter().filter(|one| one.ticket <= last.ticket);
            for from in before().map(|one| one.at).filter(|from| (*from..from + W).contains(&last.at)) {
                let held: u64 = before().filter(|one| (from..from + W).contains(&one.at)).map(|one| one.units).sum();
                assert!(held <= limit, "seed {seed}: {held} of {limit} from {from} on");
            }
        }
    }
    println!("{sooner} times sooner, among {changed} rewrites");
    assert!(sooner > 5 * seeds && changed > seeds);
}

/// A place starts early. Many lives later its slot holds a place that would have the former word of the first one.
/// (`PLANT="forgotten peak"`.)
#[test]
fn no_later_life_has_the_word_of_a_place_that_started_early() {
    const LONG: Tick = 2_000;
    let windows = [Window { limit: 1, length: LONG }];
    let (mut cells, mut other) = (Cells::new(16), Cells::new(16));
    let now = Now { floor: 10 * LONG, ceil: 10 * LONG };
    let reserve = |cells: &Cells, grace| {
        let ask = Ask { reserve: true, grace, ..Ask::now(&windows, 1, 0) };
        cells.log().claim(&ask, || now).unwrap().taken.unwrap()
    };
    let taken = reserve(&cells, LONG / 2);
    cells.look();
    let word = cells.ring[taken.ticket as usize].load(Acquire);
    let place = StartId { ticket: taken.ticket, stamp: taken.stamp, weight: 1 };
    assert_eq!(cells.log().present(place, LONG, now), Ok(Some(now.ceil)));
    cells.look();
    while cells.log().tail().unwrap().ticket % 32 != taken.ticket || cells.words[5].load(Acquire) == 0 {
        other.take_over(&cells, now, Vec::clear);
        cells.take_over(&other, now, Vec::clear);
        cells.look();
        other.look();
    }
    let next = now.ceil.wrapping_sub(cells.log().base);
    reserve(&cells, (word >> STAMP).saturating_sub(next));
    cells.look();
}

#[test]
fn what_was_left_out_of_a_small_ring_counts() {
    let (limit, now) = (50, Now { floor: 1_000, ceil: 1_000 });
    let (windows, start) =
        ([Window { limit, length: W }], |stamp| Start { stamp, units: 1, state: SETTLED, id: 0, is_logged: true });
    let mut cells = Cells::new(16);
    cells.whole = 128;
    cells.words[5].store(CLOSED, Release);
    let history = History { starts: [995; 10].into_iter().chain([999; 15]).map(start).collect(), ..History::default() };
    cells.words[6].store(cells.log().write(&history, now).unwrap(), Release);
    cells.words[5].store(1, Release);
    cells.left_out[0].store(10 | 1 << 63, Release);
    cells.left_out[1].store(995, Release);
    let at = |tick| move || Now { floor: tick, ceil: tick };
    let ask = |weight| Ask::now(&windows, weight, 0);
    let view = |weight, tick| cells.log().view(&ask(weight), at(tick)).unwrap();
    assert_eq!((view(25, 1_000).remaining, view(25, 1_000).ready <= 1_000), (25, true));
    // Of 26 units, one has to wait for one of those that were left out, and of 36 for one of the others.
    assert_eq!((view(26, 1_000).ready, view(35, 1_000).ready, view(36, 1_000).ready), (995 + W, 995 + W, 999 + W));
    assert_eq!((view(1, 995 + W).remaining, view(1, 999 + W).remaining), (35, 50));
    // Nothing is claimed before that, and no start is denied that the policy allows.
    assert_eq!(cells.log().claim(&ask(1), at(1_000)), Err(Sealed));
    assert_eq!(cells.log().claim(&ask(26), at(1_000)).map(|answer| answer.taken), Ok(None));
}
