//! Leases: over their lives and deaths, against a plain model, and between threads.

use super::*;
use crate::random_tests::Random;
use std::collections::{BTreeMap, BTreeSet};

/// Not a life's number.
const CLOSED: u64 = u64::MAX;
const ME: u64 = 7;

/// A key's cells, used as a limiter would.
struct Key {
    words: [AtomicU64; 6],
    slots: Vec<AtomicU64>,
}

impl Key {
    fn new(max: u64) -> Key {
        let slots = (0..slots(max) * SLOT_WORDS).map(|_| AtomicU64::new(0)).collect();
        Key { words: Default::default(), slots }
    }

    fn leases(&self) -> Leases<'_> {
        let [taken, returned, base, bell, sleepers, life] = &self.words;
        // A caller that finds them closed looks the key up again, as if they had another life.
        let number = life.load(Acquire).min(CLOSED - 1);
        Leases { taken, returned, base, bell, sleepers, slots: &self.slots, life, number }
    }

    fn take(&self, weight: u64, max: u64) -> Option<Lease> {
        self.leases().take(weight, max, ME, NEVER).unwrap()
    }

    fn gives_back(&self, lease: Lease) -> bool {
        self.leases().give_back(lease).unwrap()
    }

    fn live(&self) -> u64 {
        self.leases().live().unwrap()
    }

    fn reclaim(&self, now: Tick, dead: &[u64]) -> u64 {
        self.leases().reclaim(now, 0, || 0, |owner| dead.contains(&owner)).unwrap()
    }

    fn write(&self, holds: &[Hold], fence: u64) {
        let number = self.words[5].swap(CLOSED, AcqRel);
        assert!(self.leases().write(holds, fence));
        self.words[5].store(number + 1, Release);
    }

    /// Ends this life and begins the next, in the same cells.
    fn rewrite(&self) {
        self.leases().seal();
        let (holds, fence) = self.leases().history();
        self.write(&holds, fence);
    }

    /// Leaves the state of an owner that died after this many steps of taking: claimed, offered, counted.
    fn die_taking(&self, steps: u32, weight: u64, owner: u64) {
        let leases = self.leases();
        let seen = leases.look().unwrap();
        leases.help_take(seen.taken);
        let claimed = leases.claim(&seen).unwrap();
        if steps > 1 {
            let want = Request { weight, max: MAX, owner, deadline: NEVER, is_recorded: false };
            let offered = leases.offer(claimed, &want);
            assert!(steps < 3 || leases.try_take(&seen, offered).is_some());
        }
    }

    /// The same for an end: ending, counted.
    fn die_giving_back(&self, steps: u32, lease: Lease) {
        let leases = self.leases();
        let at = leases.find(lease).unwrap().unwrap();
        let ending = SlotWord { word: with_phase(at.word, ENDING), ..at };
        assert!(leases.change(at, ending.word));
        if steps > 1 {
            let returned = leases.returned.load(Acquire);
            leases.help_return(returned);
            assert!(leases.try_return(returned, ending));
        }
    }
}

#[test]
fn a_permit_ended_twice_frees_its_units_once() {
    let key = Key::new(2);
    let a = key.take(1, 2).unwrap();
    let _b = key.take(1, 2).unwrap();
    assert_eq!(key.take(1, 2), None);
    assert!(key.gives_back(a));
    assert!(!key.gives_back(a));
    let c = key.take(1, 2).unwrap();
    assert_eq!(c.index, a.index);
    assert!(!key.gives_back(a), "the slot is c's now");
    assert_eq!(key.live(), 2);
    assert!(key.gives_back(c));
}

#[test]
fn a_permit_from_elsewhere_is_not_held() {
    let key = Key::new(2);
    let a = key.take(1, 2).unwrap();
    for fence in [0, a.fence + 1, u64::MAX] {
        for index in [a.index, 1, 15, 16, u64::MAX] {
            assert!(!key.gives_back(Lease { index, fence }));
            assert_eq!(key.leases().renew(Lease { index, fence }, 5), Ok(false));
        }
    }
    assert!(key.gives_back(Lease { index: u64::MAX, ..a }), "it is found by its fence");
}

#[test]
fn a_weight_is_taken_whole_or_not_at_all() {
    let key = Key::new(MAX);
    let a = key.take(MAX - 1, MAX).unwrap();
    assert_eq!(key.take(2, MAX), None);
    assert_eq!(key.live(), MAX - 1);
    let b = key.take(1, MAX).unwrap();
    assert!(key.gives_back(a) && key.gives_back(b));
    assert!(key.take(MAX, MAX).is_some());
}

#[test]
fn a_denial_writes_nothing() {
    let key = Key::new(2);
    key.take(2, 2).unwrap();
    let all = || key.words.iter().chain(&key.slots).map(|word| word.load(Relaxed)).collect::<Vec<_>>();
    let before = all();
    assert_eq!(key.take(1, 2), None);
    assert_eq!(key.live(), 2);
    assert!(!key.leases().is_idle() && !key.leases().is_sealed());
    assert_eq!(all(), before);
}

#[test]
fn starts_beyond_the_limit_are_recorded_and_completed_oldest_first() {
    let key = Key::new(2);
    assert_eq!(key.leases().complete(ME, 0), Ok(false), "completions without a start have no effect");
    let permit = key.take(1, 2).unwrap();
    let starts: Vec<Lease> = (0..3).map(|_| key.leases().start(ME).unwrap().unwrap()).collect();
    key.leases().start(8).unwrap().unwrap();
    assert_eq!((key.live(), key.take(1, 2)), (5, None));
    assert_eq!(key.leases().complete(ME, 0), Ok(true));
    assert!(!key.gives_back(starts[0]) && key.gives_back(starts[1]));
    assert_eq!(key.leases().complete(ME, 0), Ok(true));
    assert_eq!(key.leases().complete(ME, 0), Ok(false), "what is left has a permit, or is another's");
    assert_eq!(key.live(), 2);
    assert!(key.gives_back(permit));
}

#[test]
fn a_start_without_a_free_slot_is_refused() {
    let key = Key::new(2);
    let mut starts = 0;
    while key.leases().start(ME).unwrap().is_some() {
        starts += 1;
    }
    assert_eq!((starts, key.live()), (slots(2), slots(2)));
    assert_eq!(key.take(1, 2), None);
    assert!(!key.leases().is_sealed());
    // They move unchanged.
    key.rewrite();
    assert_eq!(key.live(), slots(2));
}

#[test]
fn an_unused_key_holds_nothing() {
    let leases = Leases::untouched();
    assert_eq!((leases.live(), leases.earliest_deadline()), (Ok(0), Ok(None)));
    assert!(leases.is_idle() && !leases.holds_of_others(ME));
}

#[test]
fn ending_a_cleared_permit_is_a_no_op() {
    let key = Key::new(3);
    let a = key.take(2, 3).unwrap();
    key.leases().start(ME).unwrap().unwrap();
    key.leases().clear().unwrap();
    assert!(key.leases().is_idle());
    assert!(!key.gives_back(a));
    assert_eq!(key.leases().complete(ME, 0), Ok(false));
    assert_eq!(key.live(), 0);
}

#[test]
fn a_child_disowns_the_leases_that_it_inherits() {
    let key = Key::new(3);
    let a = key.take(2, 3).unwrap();
    // Threads of the parent were here.
    (1..=3).for_each(|steps| key.die_taking(steps, 1, ME));
    key.leases().sleepers.store(4, Relaxed);
    key.leases().disown();
    assert_eq!((key.live(), key.leases().sleepers.load(Relaxed)), (0, 0));
    assert!(!key.gives_back(a));
    let b = key.take(3, 3).unwrap();
    assert!(b.fence > a.fence);
    assert!(!key.gives_back(a) && key.gives_back(b));
}

#[test]
fn a_lease_ends_at_its_deadline_unless_it_is_renewed() {
    let key = Key::new(3);
    let take = |deadline| key.leases().take(1, 3, ME, deadline).unwrap().unwrap();
    let (a, b, c) = (take(10), take(20), take(NEVER));
    assert_eq!(key.leases().earliest_deadline(), Ok(Some(10)));
    assert_eq!(key.leases().renew(a, 30), Ok(true));
    assert_eq!(key.leases().renew(b, 15), Ok(true), "and is not shortened");
    assert_eq!(key.leases().earliest_deadline(), Ok(Some(20)));
    assert_eq!(key.reclaim(19, &[]), 0);
    let bell = key.leases().bell.load(Relaxed);
    assert_eq!(key.reclaim(20, &[]), 1);
    assert!(key.leases().bell.load(Relaxed) > bell);
    assert_eq!((key.leases().renew(b, 50), key.gives_back(b)), (Ok(false), false), "it was lost");
    assert_eq!(key.reclaim(NEVER - 1, &[]), 1);
    assert_eq!(key.leases().earliest_deadline(), Ok(None));
    assert!(!key.gives_back(a) && key.gives_back(c));
}

#[test]
fn each_dead_owner_is_checked_once() {
    let key = Key::new(20);
    for owner in [3, 4, 5, 3, NO_OWNER, 4, 3] {
        key.leases().take(2, 20, owner, NEVER).unwrap().unwrap();
    }
    assert!(key.leases().holds_of_others(3));
    let asked = std::cell::RefCell::new(Vec::new());
    let is_dead = |owner| {
        asked.borrow_mut().push(owner);
        owner != 4
    };
    assert_eq!(key.leases().reclaim(0, 0, || 0, is_dead), Ok(8));
    assert_eq!(asked.into_inner(), [3, 4, 5]);
    assert!(key.leases().holds_of_others(3) && !key.leases().holds_of_others(4));
    assert_eq!(key.live(), 6);
}

#[test]
fn a_process_that_dies_anywhere_leaves_nothing_behind() {
    let key = Key::new(4);
    // Only a death between two instructions costs a slot: there are spare ones.
    key.die_taking(1, 1, 3);
    for round in 0..100 {
        for (steps, counted) in [(2, 0), (3, 4)] {
            key.die_taking(steps, 4, 3);
            assert_eq!(key.live(), counted);
            assert!(key.leases().holds_of_others(ME));
            assert_eq!(key.reclaim(0, &[]), 0, "it may be alive");
            assert_eq!(key.take(1, 4).map(|lease| key.gives_back(lease)), (counted == 0).then_some(true));
            assert_eq!(key.reclaim(0, &[3]), counted);
        }
        for steps in [1, 2] {
            let lease = key.take(3, 4).unwrap();
            key.die_giving_back(steps, lease);
            assert!(!key.gives_back(lease));
            assert!(key.leases().holds_of_others(ME));
            if round % 2 == 0 {
                // Another end comes in between.
                let other = key.take(1, 4).unwrap();
                assert!(key.gives_back(other));
            }
            assert_eq!(key.reclaim(0, &[]), if steps == 1 { 3 } else { 0 });
        }
        assert!(key.leases().is_idle() && !key.leases().holds_of_others(ME));
    }
}

#[test]
fn cells_without_a_free_slot_move() {
    let key = Key::new(1);
    for _ in 0..slots(1) {
        assert!(!key.leases().is_sealed());
        key.die_taking(1, 1, 3);
    }
    assert_eq!(key.leases().take(1, 1, ME, NEVER), Err(Sealed));
    assert!(key.leases().is_sealed());
    key.leases().seal();
    let (holds, fence) = key.leases().history();
    assert!(!key.leases().write(&holds, fence), "these have no slots left");
    let other = Key::new(1);
    other.write(&holds, fence);
    assert!(other.take(1, 1).is_some());
}

#[test]
fn cells_that_have_handed_out_too_much_move() {
    let key = Key::new(2);
    let a = key.take(1, 2).unwrap();
    for word in &key.words[..2] {
        word.fetch_add((LAST_UNIT - 3) << UNITS, Relaxed);
    }
    let b = key.take(1, 2).unwrap();
    assert!(key.gives_back(b));
    assert!(key.take(1, 2).is_some());
    key.words[1].fetch_add(1 << UNITS, Relaxed);
    assert_eq!(key.leases().take(1, 2, ME, NEVER), Err(Sealed));
    key.leases().seal();
    let (holds, fence) = key.leases().history();
    assert!(!key.leases().write(&holds, fence), "these are used up");
    let other = Key::new(2);
    other.write(&holds, fence);
    assert!(other.gives_back(a));
    let next = other.take(1, 2).unwrap();
    assert!(next.fence > fence && fence >= LAST_UNIT - 1);
}

#[test]
fn a_lease_that_was_renewed_too_often_moves() {
    let key = Key::new(1);
    let a = key.take(1, 1).unwrap();
    let state = &key.slots[(a.index * SLOT_WORDS) as usize];
    state.fetch_or(LAST_COUNT << COUNT, Relaxed);
    assert_eq!(key.leases().renew(a, 9), Err(Sealed));
    key.rewrite();
    assert_eq!(key.leases().renew(a, 9), Ok(true), "now it has another slot");
    assert!(key.gives_back(a));
}

#[test]
fn sealed_cells_refuse_all_calls() {
    let key = Key::new(4);
    let (a, b) = (key.take(1, 4).unwrap(), key.take(1, 4).unwrap());
    key.die_taking(3, 1, 3);
    key.die_giving_back(1, b);
    let leases = key.leases();
    leases.seal();
    leases.seal();
    assert!(leases.is_sealed() && !leases.is_idle());
    let refused = |leases: &Leases| {
        assert_eq!(leases.live(), Err(Sealed));
        assert_eq!(leases.take(1, 4, ME, NEVER), Err(Sealed));
        assert_eq!(leases.start(ME), Err(Sealed));
        assert_eq!(leases.give_back(a), Err(Sealed));
        assert_eq!(leases.renew(a, 9), Err(Sealed));
        assert_eq!(leases.reclaim(9, 0, || 0, |_| true), Err(NotEnded::Sealed));
    };
    refused(&leases);
    let (holds, fence) = leases.history();
    assert_eq!(holds.iter().map(|hold| (hold.owner, hold.fence)).collect::<Vec<_>>(), [(ME, a.fence), (3, 3)]);
    key.write(&holds, fence);
    // A caller of the former life is refused, and changes nothing.
    refused(&leases);
    assert_eq!(
        (leases.clear(), leases.complete(ME, 0), leases.earliest_deadline()),
        (Err(Sealed), Err(NotEnded::Sealed), Err(Sealed))
    );
    leases.seal();
    assert!(!key.leases().is_sealed());
    assert_eq!((key.live(), key.leases().bell.load(Relaxed)), (2, 2));
    assert!(key.gives_back(a));
}

#[test]
fn a_claim_from_an_earlier_life_is_harmless() {
    let key = Key::new(2);
    let former = key.leases();
    let want = Request { weight: 1, max: 2, owner: 3, deadline: 5, is_recorded: false };
    let seen = former.look().unwrap();
    let (early, late) = (former.claim(&seen).unwrap(), former.claim(&seen).unwrap());
    let late = former.offer(late, &want);
    let a = key.take(1, 2).unwrap();
    key.rewrite();
    let b = key.take(1, 2).unwrap();
    // Now they continue.
    let early = former.offer(early, &want);
    assert_eq!((former.try_take(&seen, early), former.try_take(&seen, late)), (None, None));
    assert_eq!(key.reclaim(9, &[3]), 0);
    assert!(key.gives_back(a) && key.gives_back(b));
    assert!(key.leases().is_idle());
}

#[test]
fn a_renewal_that_comes_a_life_late_shortens_nothing() {
    let key = Key::new(1);
    let a = key.leases().take(1, 1, ME, 10).unwrap().unwrap();
    let former = key.leases();
    let at = former.find(a).unwrap().unwrap();
    assert!(key.gives_back(a));
    let b = key.leases().take(1, 1, ME, 100).unwrap().unwrap();
    assert_eq!(a.index, b.index);
    former.deadline_of(at.index).fetch_max(20, AcqRel);
    assert!(!former.change(at, at.word + (2 << COUNT)));
    assert_eq!((key.reclaim(99, &[]), key.reclaim(100, &[])), (0, 1));
}

/// The expected contents of the cells: each lease by its fence.
#[derive(Default)]
struct Model {
    held: BTreeMap<u64, Hold>,
    last_fence: u64,
}

impl Model {
    fn live(&self) -> u64 {
        self.held.values().map(|hold| hold.weight).sum()
    }

    /// Ends the leases for which `does` holds.
    fn end(&mut self, does: impl Fn(&Hold) -> bool) -> u64 {
        let before = self.live();
        self.held.retain(|_, hold| !does(hold));
        before - self.live()
    }
}

/// Makes this many random calls, each compared with the model, with this limit at first.
fn compare(seed: u64, mut max: u64, calls: u64) {
    let random = &mut Random::seeded(seed);
    let (mut key, mut model) = (Key::new(max), Model::default());
    let (mut now, mut next_owner) = (1_000, 100);
    let mut owners: Vec<u64> = vec![ME, 8, 9];
    let mut dead: BTreeSet<u64> = BTreeSet::new();
    let mut known: Vec<Lease> = Vec::new();
    for _ in 0..calls {
        let owner = random.pick(&owners);
        let known_one = random.index(known.len()).map(|i| match random.below(8) {
            0 => Lease { index: random.below(2 * slots(max)), ..known[i] },
            _ => known[i],
        });
        match random.below(22) {
            0..=7 => {
                let heaviest = if random.below(4) == 0 { max } else { 1 };
                let weight = 1 + random.below(heaviest);
                let deadline = if random.below(2) == 0 { NEVER } else { now + 1 + random.below(50) };
                let lease = key.leases().take(weight, max, owner, deadline).unwrap();
                assert_eq!(lease.is_some(), model.live() + weight <= max);
                if let Some(lease) = lease {
                    assert!(lease.fence > model.last_fence);
                    model.last_fence = lease.fence;
                    let hold = Hold { fence: lease.fence, owner, weight, deadline, is_recorded: false };
                    model.held.insert(lease.fence, hold);
                    known.push(lease);
                }
            }
            8..=11 => {
                let Some(lease) = known_one else { continue };
                assert_eq!(key.gives_back(lease), model.held.remove(&lease.fence).is_some());
            }
            12 | 13 => {
                let Some(lease) = known_one else { continue };
                let deadline = now + 1 + random.below(100);
                let hold = model.held.get_mut(&lease.fence);
                assert_eq!(key.leases().renew(lease, deadline), Ok(hold.is_some()));
                if let Some(hold) = hold {
                    hold.deadline = hold.deadline.max(deadline);
                }
            }
            14 => {
                let lease = key.leases().start(owner).unwrap();
                assert_eq!(lease.is_some(), (model.held.len() as u64) < slots(max));
                let Some(lease) = lease else { continue };
                assert!(lease.fence > model.last_fence);
                model.last_fence = lease.fence;
                let hold = Hold { fence: lease.fence, owner, weight: 1, deadline: NEVER, is_recorded: true };
                model.held.insert(lease.fence, hold);
            }
            15 | 16 => {
                let is_its = |hold: &&Hold| hold.is_recorded && hold.owner == owner;
                let oldest = model.held.values().find(is_its).map(|hold| hold.fence);
                assert_eq!(key.leases().complete(owner, 0), Ok(oldest.is_some()));
                oldest.map(|fence| model.held.remove(&fence));
            }
            17 | 18 => {
                now += random.below(20);
                let freed = key.leases().reclaim(now, 0, || 0, |owner| dead.contains(&owner)).unwrap();
                assert_eq!(freed, model.end(|hold| hold.deadline <= now || dead.contains(&hold.owner)));
            }
            19 if random.below(8) == 0 => {
                dead.insert(owner);
                owners.retain(|other| *other != owner);
                owners.push(next_owner);
                next_owner += 1;
            }
            20 if random.below(30) == 0 => {
                key.leases().clear().unwrap();
                model.held.clear();
            }
            21 if random.below(10) == 0 => {
                key.leases().seal();
                let (holds, fence) = key.leases().history();
                assert_eq!(fence.max(model.last_fence), fence);
                assert_eq!(holds, model.held.values().copied().collect::<Vec<_>>());
                if random.below(2) == 0 {
                    // Another limit, in cells with enough slots for the current leases.
                    let other = 1 + random.below((2 * max).min(300));
                    if holds.len() as u64 <= slots(other) {
                        max = other;
                        key = Key::new(max);
                    }
                }
                key.write(&holds, fence);
            }
            _ => {}
        }
        known.drain(..known.len().saturating_sub(200));
        assert_eq!(key.live(), model.live());
        assert_eq!(key.leases().is_idle(), model.held.is_empty());
        let earliest = model.held.values().map(|hold| hold.deadline).min().filter(|deadline| *deadline != NEVER);
        assert_eq!(key.leases().earliest_deadline(), Ok(earliest));
        let others = model.held.values().any(|hold| hold.owner != ME);
        assert_eq!(key.leases().holds_of_others(ME), others);
    }
}

#[test]
fn random_calls_match_a_plain_model() {
    for (seed, max) in [1, 2, 3, 8, 9, 40, 200].into_iter().enumerate() {
        compare(seed as u64, max, if max > 100 { 20_000 } else { 60_000 });
    }
    compare(99, MAX, 200);
}

/// Runs threads that take, give back, renew and reclaim, while the cells are rewritten. Each thread counts its own
/// leases separately.
fn hammer(threads: u64, max: u64, rounds: u64, rewrites: u64) {
    let key = Key::new(max);
    let running = AtomicU64::new(0);
    let fences = std::sync::Mutex::new(BTreeSet::new());
    /// Retries until these cells are open.
    fn on<R>(key: &Key, f: impl Fn(&Leases) -> Result<R, Sealed>) -> R {
        loop {
            match f(&key.leases()) {
                Ok(answer) => return answer,
                Err(Sealed) => std::thread::yield_now(),
            }
        }
    }
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|t| {
                let (key, running, fences) = (&key, &running, &fences);
                scope.spawn(move || {
                    let mut mine = Vec::new();
                    for i in 0..rounds {
                        let weight = 1 + (i + t) % 3;
                        let Some(lease) = on(key, |leases| leases.take(weight, max, t + 1, 10)) else { continue };
                        assert!(running.fetch_add(weight, SeqCst) + weight <= max);
                        mine.push(lease.fence);
                        match i % 4 {
                            0 => assert!(on(key, |leases| leases.renew(lease, 10 + i))),
                            // This frees only what others are ending.
                            1 => drop(on(key, |leases| leases.reclaim(9, 0, || 0, |_| false).map_err(|_| Sealed))),
                            _ => {}
                        }
                        running.fetch_sub(weight, SeqCst);
                        assert!(on(key, |leases| leases.give_back(lease)));
                        assert!(!on(key, |leases| leases.give_back(lease)));
                    }
                    let all = mine.len();
                    let mut fences = fences.lock().unwrap();
                    let before = fences.len();
                    fences.extend(mine);
                    assert_eq!(fences.len(), before + all, "a fence was issued twice");
                })
            })
            .collect();
        for _ in 0..rewrites {
            key.rewrite();
            std::thread::yield_now();
            if workers.iter().all(|worker| worker.is_finished()) {
                break;
            }
        }
    });
    assert!(key.leases().is_idle());
    assert!(on(&key, |leases| leases.take(max, max, ME, NEVER)).is_some());
}

#[test]
fn threads_never_hold_more_than_the_limit() {
    hammer(4, 5, 30_000, 0);
    hammer(4, 3, 30_000, 0);
}

#[test]
fn threads_never_hold_more_than_the_limit_while_it_is_rewritten() {
    hammer(4, 5, 20_000, u64::MAX);
}

#[test]
fn many_threads_find_a_slot() {
    hammer(40, 3, 1_000, 0);
}

/// Threads whose leases are reclaimed by others, at deadlines that pass immediately: each lease ends once.
#[test]
fn reclaiming_renewing_and_ending_race_for_each_lease() {
    let key = Key::new(4);
    let taken = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for t in 0..4u64 {
            let (key, taken) = (&key, &taken);
            scope.spawn(move || {
                for i in 0..30_000u64 {
                    key.reclaim(i % 3, &[]);
                    let Some(lease) = key.leases().take(1, 4, t + 1, i % 4).unwrap() else { continue };
                    taken.fetch_add(1, Relaxed);
                    // Only a renewal far ahead ensures that it is still held.
                    let is_kept = key.leases().renew(lease, if i % 2 == 0 { 100 } else { 2 }).unwrap();
                    let is_ended = key.gives_back(lease);
                    assert!(is_kept || !is_ended);
                    assert!(is_ended || !is_kept || i % 2 == 1, "it was renewed, and taken away");
                }
            });
        }
    });
    key.reclaim(NEVER, &[]);
    let returned = units_in(key.leases().returned.load(Relaxed));
    assert!(key.leases().is_idle());
    assert_eq!(returned, taken.into_inner());
}

/// Late renewals, deaths, and ends for which there is no slot: see the fields of `Leases`.
#[test]
fn units_that_were_used_cool_down_and_those_that_are_owed_do_too() {
    let key = Key::new(5);
    let free_at = |units| key.leases().free_at(units, 0).unwrap();
    let less = key.take(3, 5).unwrap();
    assert_eq!(key.leases().settle(less, 1, 5, 50), Ok(true));
    assert_eq!((key.live(), free_at(1)), (1, Some(50)));
    assert_eq!(key.leases().settle(less, 3, 5, 90), Ok(false), "it has ended");
    let nothing = key.take(4, 5).unwrap();
    assert_eq!(key.leases().settle(nothing, 0, 5, 90), Ok(true));
    assert_eq!(key.live(), 1);
    let more = key.take(4, 5).unwrap();
    assert_eq!(key.leases().settle(more, u64::MAX, 5, 90), Ok(true));
    assert_eq!((key.live(), free_at(2), free_at(10)), (10, Some(90), Some(90)));
    key.rewrite();
    assert_eq!((key.reclaim(50, &[]), key.reclaim(89, &[]), key.reclaim(90, &[])), (1, 0, 9));
    let all = Key::new(MAX);
    let heaviest = all.take(MAX, MAX).unwrap();
    assert_eq!(all.leases().settle(heaviest, u64::MAX, MAX, 90), Ok(true));
    assert_eq!((all.live(), all.reclaim(90, &[])), (2 * MAX, 2 * MAX));
}

/// The second slot is not there, so the lease is still held, and nothing cools down.
#[test]
fn what_is_owed_without_a_slot_for_it_has_not_ended() {
    let key = Key::new(8);
    let mut leases: Vec<Lease> = (0..8).map(|_| key.take(1, 8).unwrap()).collect();
    let last = leases.pop().unwrap();
    for lease in leases {
        assert_eq!(key.leases().settle(lease, 2, 8, 50), Ok(true));
    }
    assert_eq!(key.leases().settle(last, 2, 8, 50), Err(NotEnded::Crowded));
    assert_eq!((key.live(), key.leases().is_held(last)), (15, Ok(true)));
    assert_eq!(key.reclaim(50, &[]), 14);
    assert_eq!(key.leases().settle(last, 2, 8, 90), Ok(true));
    assert_eq!(key.live(), 2);
}

#[test]
fn units_cool_down_whatever_else_happens_to_their_slot() {
    let key = Key::new(2);
    let take = || key.leases().take(1, 2, ME, NEVER).unwrap().unwrap();
    let first = take();
    assert_eq!(key.leases().cool_down(first, 50), Ok(true));
    // A renewal that found the slot before, and is late, raises its deadline. It may be any slot.
    for index in 0..slots(2) {
        key.leases().deadline_of(index).fetch_max(NEVER - 1, AcqRel);
    }
    assert_eq!(key.leases().earliest_deadline(), Ok(Some(50)));
    assert_eq!((key.leases().live_at(49, 0), key.leases().live_at(50, 0)), (Ok(1), Ok(0)));
    assert_eq!((key.reclaim(49, &[]), key.reclaim(50, &[]), key.live()), (0, 1, 0));

    // An owner is found dead later than the call began, and has used its unit until then.
    let _held = key.leases().take(1, 2, 3, NEVER).unwrap().unwrap();
    assert_eq!(key.leases().reclaim(60, 100, || 75, |owner| owner == 3), Ok(0));
    assert_eq!(key.leases().free_at(1, 100), Ok(Some(175)));
    assert_eq!((key.reclaim(174, &[]), key.reclaim(175, &[]), key.live()), (0, 1, 0));

    // The call of a dead process that counted its cooling lease, and no more, is completed.
    let leases = key.leases();
    let want = Request { weight: 1, max: u64::MAX, owner: COOLING | 300, deadline: NEVER, is_recorded: false };
    let seen = leases.look().unwrap();
    let offered = leases.offer(leases.claim(&seen).unwrap(), &want);
    assert!(leases.try_take(&seen, offered).is_some());
    assert!(leases.holds_of_others(ME));
    assert_eq!((key.reclaim(299, &[]), key.reclaim(300, &[]), key.live()), (0, 1, 0));
    assert!(!leases.holds_of_others(ME));

    // Recorded starts fill all slots.
    while key.leases().start(ME).unwrap().is_some() {}
    assert_eq!(key.leases().complete(ME, 400), Err(NotEnded::Crowded));
    assert_eq!(key.leases().complete(ME, 0), Ok(true));
    assert_eq!(key.leases().complete(ME, 400), Ok(true));
}
