//! Concurrency as leases: at most so many units at the same time, in all processes, whoever dies.
//!
//! # Shape
//!
//! Two words count the units that were ever taken and ever returned: what is live is the difference. A slot for each
//! holder says who it is and until when.
//!
//! ```text
//!           63         20 19    2    1        0
//! taken     [ units      ][ slot + 1 ][ parity ][ seal ]    the last admission, and its slot
//! returned  [ units      ][ slot + 1 ][ parity ][ 0    ]    the last return
//! slot      [ count      ][ phase, 3 ][ recorded, 1 ][ weight, 16 ] | fence | owner | deadline
//! ```
//!
//! ```text
//! FREE → CLAIMED → TENTATIVE ══taken══> HELD → ENDING ══returned══> FREE, count + 1
//!                      └─> FREE, count + 2  └─> HELD, count + 2 (renewed)
//! ```
//!
//! # Deciding
//!
//! Whoever starts claims a free slot, writes into it who it is, and makes it TENTATIVE: nothing has been admitted yet.
//! One compare-and-swap on `taken` adds the weight, names the slot, and is the whole admission. Whoever comes next first
//! makes that slot HELD, if its owner has not (*helps*), so a process that dies in between leaves a lease like any other.
//! A lease ends when its slot becomes ENDING, once; one compare-and-swap on `returned` gives its units back and names the
//! slot, which anybody makes FREE. What a dead process leaves half done, [`Leases::reclaim`] finishes.
//!
//! # Why it is right
//!
//! 1. *Every word only grows*, over all lives of the cells: units are only added, and a slot's count and phase only go
//!    up. So no word ever comes back, and a compare-and-swap that was held up fails, or is still right.
//! 2. *Never too many.* `taken` is read before `returned`, and is unchanged when the admission's compare-and-swap
//!    succeeds; `returned` can only have grown. So what is live is no more than was computed.
//! 3. *A denial is exact.* When `returned` was read, at least what was read before had been taken.
//! 4. *Whether a slot was counted is known.* `taken` names the slot it counted last, and its parity: the lowest bit of
//!    the slot's count, which changes with each lease that the slot holds to its end, and with nothing else. Whoever
//!    moves `taken` on has helped first. So a TENTATIVE slot was counted if `taken` names it with its parity, and only
//!    then. The same holds for an ENDING slot and `returned`.
//! 5. *A claimed slot is its claimant's*, whatever life the cells have by now: nobody else changes it, or its other words,
//!    before it is counted, but whoever knows that its owner is dead. One that died between CLAIMED and TENTATIVE, two
//!    instructions later, leaves a slot that nobody uses again. There are [`SPARE`] ones; when they are used up the cells
//!    seal themselves, and are written elsewhere.
//! 6. *Renewing and ending cannot both succeed.* A renewal raises the deadline, then changes the slot's word; whoever ends
//!    the lease changes the word that it read before the deadline. A deadline is only ever raised while a lease is held:
//!    a renewal that comes a day late may lengthen the lease that has the slot by then, but not shorten it.
//! 7. *What is sealed stands still.* After `taken` is sealed and the last admission helped, no slot becomes HELD; those
//!    that are become SEALED, one by one: a renewal or an end came before, and is in the history, or is refused. An
//!    ENDING slot is no longer held, whether it was counted or not.
//! 8. *Lives do not mix.* What is read of the words and slots is believed only if `life` is still the same afterwards, and
//!    a compare-and-swap on what was read then is one of that life.
//!
//! # Orderings
//!
//! * `taken` is read with `Acquire`, then `returned`, which so is not the older of both (2, 3). Both are changed with `AcqRel`,
//!   by whoever has read them and helped: so who reads one of them sees what was done for the slot that the one before named.
//! * Owner and deadline of a slot are stored before the word that makes it TENTATIVE (`Release`), the fence before the
//!   compare-and-swap on `taken`. Slots' words are read with `Acquire`, before the others, and changed with `AcqRel`; what was
//!   read beside a word is believed if the word can be changed, or `life` is the same.
//! * A deadline is raised (`AcqRel`) before the slot's word is changed, and read after it: whoever ends a lease by its deadline
//!   has read both before that renewal, or fails (6).
//! * The bell is rung before `sleepers` is read, and `sleepers` raised before the bell is looked at by the kernel. Both are
//!   `SeqCst`: a store and a later load of another word keep their order in nothing less.
//! * `life` is read with `Acquire` after all that is to be believed, and closed before any of it is written.
//! * A failed compare-and-swap is `Relaxed`: nobody looks at its answer.
//!
//! Source: counting what enters and what leaves apart, so that each counter only grows, is the ticket semaphore of Reed
//! and Kanodia, "Synchronization with eventcounts and sequencers" (1979); helping what was announced before adding to it
//! follows Herlihy, "Wait-free synchronization" (1991); the fence is the one of Gray and Cheriton's leases (1989) as
//! lock services hand it out.

use super::{Sealed, Tries};
use crate::atomic::{AtomicU64, *};
use crate::fault;
use crate::time::Tick;
use crossbeam_utils::Backoff;

/// The largest number of units at once.
pub(crate) const MOST: u64 = (1 << WEIGHT) - 1;

/// The deadline of a lease that has none.
pub(crate) const NEVER: Tick = u64::MAX;

/// The owner of a lease that nobody has to be alive for.
pub(crate) const NOBODY: u64 = 0;

/// How many words a slot has.
pub(crate) const SLOT_WORDS: u64 = 4;

/// How many slots there are at least beside those of the limit: for starts recorded beyond it, and for those who race.
const SPARE: u64 = 8;

/// How many slots there are at most.
pub(crate) const MOST_SLOTS: u64 = 1 << (UNITS - SLOT - 1);

// In `taken` and `returned`.
const SEAL: u64 = 1;
const PARITY: u32 = 1;
const SLOT: u32 = 2;
const UNITS: u32 = 20;
const ANY_SLOT: u64 = (1 << (UNITS - SLOT)) - 1;
/// The most units that these cells can hand out, over all their lives.
const LAST_UNIT: u64 = (1 << (64 - UNITS)) - 1;
/// A life begins only if it can hand out so many.
const A_LIFE: u64 = 1 << 40;

// In a slot's first word.
const WEIGHT: u32 = 16;
const RECORDED: u64 = 1 << WEIGHT;
const PHASE: u32 = WEIGHT + 1;
const COUNT: u32 = PHASE + 3;
const LAST_COUNT: u64 = (1 << (64 - COUNT)) - 1;

const FREE: u64 = 0;
/// Its owner is not known yet.
const CLAIMED: u64 = 1;
/// Counted only if `taken` names it.
const TENTATIVE: u64 = 2;
const HELD: u64 = 3;
/// Held, in sealed cells.
const SEALED: u64 = 4;
/// Ended; its units are back once `returned` has named it.
const ENDING: u64 = 5;

/// How many slots a limit needs: a power of two.
pub(crate) fn slots(max: u64) -> u64 {
    (max + SPARE).next_power_of_two()
}

/// One key's leases, in cells that live elsewhere.
#[derive(Clone, Copy)]
pub(crate) struct Leases<'a> {
    pub taken: &'a AtomicU64,
    pub returned: &'a AtomicU64,
    /// The fence of a lease is this and the units taken up to it.
    pub base: &'a AtomicU64,
    /// Grows whenever units come back, or the cells are sealed; who waits for that sleeps on it.
    pub bell: &'a AtomicU64,
    /// How many sleep.
    pub sleepers: &'a AtomicU64,
    /// [`SLOT_WORDS`] for each of a power of two of slots.
    pub slots: &'a [AtomicU64],
    /// The number of the life that these cells have.
    pub life: &'a AtomicU64,
    /// The one that is meant. Not that of cells that are being written, but for [`Leases::write`].
    pub number: u64,
}

/// What whoever started has to give back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lease {
    /// Where it was; elsewhere, once it was written into other cells.
    pub index: u64,
    /// No other lease of this key has it, and later ones have larger ones.
    pub fence: u64,
}

/// A lease, between one life of its cells and the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hold {
    pub fence: u64,
    pub owner: u64,
    pub weight: u64,
    pub deadline: Tick,
    /// Was it recorded without a permit?
    pub is_recorded: bool,
}

/// What is asked for.
#[derive(Debug, Clone, Copy)]
struct Want {
    weight: u64,
    max: u64,
    owner: u64,
    deadline: Tick,
    is_recorded: bool,
}

/// What was read.
#[derive(Debug, Clone, Copy)]
struct Seen {
    taken: u64,
    returned: u64,
    base: u64,
    live: u64,
}

/// A slot, and its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct At {
    index: u64,
    word: u64,
}

const fn units_in(word: u64) -> u64 {
    word >> UNITS
}

/// The number of the slot that is named, from 1 on; 0: none.
const fn slot_in(word: u64) -> u64 {
    word >> SLOT & ANY_SLOT
}

const fn phase_of(word: u64) -> u64 {
    word >> PHASE & 7
}

const fn weight_of(word: u64) -> u64 {
    word & MOST
}

const fn with_phase(word: u64, phase: u64) -> u64 {
    word & !(7 << PHASE) | phase << PHASE
}

/// The word of a slot that is free again. Its parity changes if its lease was `counted`.
const fn freed(word: u64, counted: bool) -> u64 {
    ((word >> COUNT) + if counted { 1 } else { 2 }) << COUNT
}

impl At {
    /// What names this slot in `taken` or `returned`.
    fn named(&self, units: u64) -> u64 {
        units << UNITS | (self.index + 1) << SLOT | self.parity()
    }

    fn parity(&self) -> u64 {
        (self.word >> COUNT & 1) << PARITY
    }

    fn is_named_in(&self, counter: u64) -> bool {
        slot_in(counter) == self.index + 1 && counter & (1 << PARITY) == self.parity()
    }
}

#[cfg(not(model))]
static UNTOUCHED: AtomicU64 = AtomicU64::new(0);

impl<'a> Leases<'a> {
    /// The leases of a key that nobody has used. Only to look at.
    #[cfg(not(model))]
    pub fn untouched() -> Leases<'static> {
        let [taken, returned, base, bell, sleepers, life] = [&UNTOUCHED; 6];
        Leases { taken, returned, base, bell, sleepers, slots: &[], life, number: 0 }
    }

    fn count(&self) -> u64 {
        self.slots.len() as u64 / SLOT_WORDS
    }

    #[inline(always)]
    fn state(&self, index: u64) -> &'a AtomicU64 {
        &self.slots[(index * SLOT_WORDS) as usize]
    }

    fn fence_of(&self, index: u64) -> &'a AtomicU64 {
        &self.slots[(index * SLOT_WORDS + 1) as usize]
    }

    fn owner_of(&self, index: u64) -> &'a AtomicU64 {
        &self.slots[(index * SLOT_WORDS + 2) as usize]
    }

    fn deadline_of(&self, index: u64) -> &'a AtomicU64 {
        &self.slots[(index * SLOT_WORDS + 3) as usize]
    }

    fn at(&self, index: u64) -> At {
        At { index, word: self.state(index).load(Acquire) }
    }

    fn all(&self) -> impl Iterator<Item = At> + use<'_, 'a> {
        (0..self.count()).map(|index| self.at(index))
    }

    /// Lets a slot go on from what was read.
    fn change(&self, at: At, word: u64) -> bool {
        self.state(at.index).compare_exchange(at.word, word, AcqRel, Relaxed).is_ok()
    }

    /// Do these cells still have the life that is meant? To be asked last, before anything that was read is believed.
    #[inline(always)]
    fn is_alive(&self) -> Result<(), Sealed> {
        if self.life.load(Acquire) == self.number { Ok(()) } else { Err(Sealed) }
    }

    #[inline(always)]
    fn look(&self) -> Result<Seen, Sealed> {
        let mut tries = Tries::default();
        loop {
            let early = fault::planted("returned first").then(|| self.returned.load(Acquire));
            let taken = self.taken.load(Acquire);
            let returned = early.unwrap_or_else(|| self.returned.load(Acquire));
            let base = self.base.load(Acquire);
            self.is_alive()?;
            if taken & SEAL != 0 {
                return Err(Sealed);
            }
            // Else units were taken and returned meanwhile.
            if let Some(live) = units_in(taken).checked_sub(units_in(returned)) {
                return Ok(Seen { taken, returned, base, live });
            }
            tries.again()?;
        }
    }

    /// How many units are live.
    pub fn live(&self) -> Result<u64, Sealed> {
        self.look().map(|seen| seen.live)
    }

    /// Takes `weight` units, if then no more than `max` are live.
    #[inline]
    pub fn take(&self, weight: u64, max: u64, owner: u64, deadline: Tick) -> Result<Option<Lease>, Sealed> {
        self.admit(Want { weight, max, owner, deadline, is_recorded: false })
    }

    /// Records a start of one unit, whether there is room or not. `None`: there is no slot left.
    pub fn start(&self, owner: u64) -> Result<Option<Lease>, Sealed> {
        self.admit(Want { weight: 1, max: u64::MAX, owner, deadline: NEVER, is_recorded: true })
    }

    // Not called but inlined: else a denial costs several times as much.
    #[inline(always)]
    fn admit(&self, want: Want) -> Result<Option<Lease>, Sealed> {
        debug_assert!((1..=MOST).contains(&want.weight));
        let mut mine = None;
        let backoff = Backoff::new();
        let answer = loop {
            let seen = match self.look() {
                Ok(seen) => seen,
                Err(Sealed) => break Err(Sealed),
            };
            if seen.live + want.weight > want.max {
                break Ok(None);
            }
            if units_in(seen.taken) + want.weight > LAST_UNIT {
                break self.close(seen.taken);
            }
            self.help_take(seen.taken);
            if mine.is_none() {
                mine = self.claim(&seen).map(|at| self.offer(at, &want));
            }
            match mine {
                Some(at) => {
                    if let Some(lease) = self.try_take(&seen, at) {
                        self.change(at, with_phase(at.word, HELD));
                        return Ok(Some(lease));
                    }
                }
                None if want.is_recorded => break Ok(None),
                // Many race, or many died. There is a slot for each who can be admitted, but who is stopped keeps his.
                None if backoff.is_completed() => break self.close(seen.taken),
                None => backoff.snooze(),
            }
        };
        if let Some(at) = mine {
            self.change(at, freed(at.word, false));
        }
        answer
    }

    /// Finds a slot that is free. The one that became free last is in the cache; else those after the one taken last
    /// have been free for longest.
    fn claim(&self, seen: &Seen) -> Option<At> {
        let (last, next) = (slot_in(seen.returned).checked_sub(1), slot_in(seen.taken));
        let around = (0..self.count()).map(|i| (next + i) & (self.count() - 1));
        last.into_iter().chain(around).find_map(|index| {
            let at = self.at(index);
            // The upper half of the counts is for renewals.
            let is_free = phase_of(at.word) == FREE && at.word >> COUNT <= LAST_COUNT / 2;
            let word = with_phase(at.word, CLAIMED);
            (is_free && self.change(at, word)).then_some(At { index, word })
        })
    }

    /// Says whose a claimed slot is.
    fn offer(&self, at: At, want: &Want) -> At {
        fault::point("lease-claimed");
        self.owner_of(at.index).store(want.owner, Release);
        self.deadline_of(at.index).store(want.deadline, Release);
        let recorded = if want.is_recorded { RECORDED } else { 0 };
        let word = with_phase(at.word, TENTATIVE) | recorded | want.weight;
        self.state(at.index).store(word, Release);
        fault::point("lease-offered");
        At { word, ..at }
    }

    /// The admission.
    fn try_take(&self, seen: &Seen, at: At) -> Option<Lease> {
        let units = units_in(seen.taken) + weight_of(at.word);
        let lease = Lease { index: at.index, fence: seen.base + units };
        self.fence_of(at.index).store(lease.fence, Release);
        let is_mine = self.taken.compare_exchange(seen.taken, at.named(units), AcqRel, Relaxed).is_ok();
        if is_mine {
            fault::point("lease-taken");
        }
        is_mine.then_some(lease)
    }

    /// Makes the slot HELD that was counted last, if it is not yet.
    #[inline(always)]
    fn help_take(&self, taken: u64) {
        let Some(index) = slot_in(taken).checked_sub(1) else { return };
        let at = self.at(index);
        let is_left = phase_of(at.word) == TENTATIVE && at.is_named_in(taken) && !fault::planted("take unhelped");
        if is_left && self.taken.load(Acquire) == taken {
            self.change(at, with_phase(at.word, HELD));
        }
    }

    /// Makes the slot FREE whose units came back last, if it is not yet.
    fn help_return(&self, returned: u64) {
        let Some(index) = slot_in(returned).checked_sub(1) else { return };
        let at = self.at(index);
        let is_left = phase_of(at.word) == ENDING && at.is_named_in(returned) && !fault::planted("return unhelped");
        if is_left && self.returned.load(Acquire) == returned {
            self.change(at, freed(at.word, true));
        }
    }

    /// No unit can be taken here any more: what is held has to be written elsewhere.
    #[cold]
    fn close<T>(&self, taken: u64) -> Result<T, Sealed> {
        let _ = self.taken.compare_exchange(taken, taken | SEAL, AcqRel, Relaxed);
        Err(Sealed)
    }

    // ---- ending ----

    /// Where a lease is held.
    fn find(&self, lease: Lease) -> Result<Option<At>, Sealed> {
        let is_it = |at: &At| {
            matches!(phase_of(at.word), HELD | SEALED) && self.fence_of(at.index).load(Acquire) == lease.fence
        };
        let near = (lease.index < self.count()).then(|| self.at(lease.index)).filter(is_it);
        let found = near.or_else(|| self.all().find(is_it));
        self.is_alive()?;
        match found {
            Some(at) if phase_of(at.word) == SEALED => Err(Sealed),
            found => Ok(found),
        }
    }

    /// Is this lease held?
    pub fn is_held(&self, lease: Lease) -> Result<bool, Sealed> {
        Ok(self.find(lease)?.is_some())
    }

    /// Ends a lease. `false`: it is not held any more.
    #[inline]
    pub fn give_back(&self, lease: Lease) -> Result<bool, Sealed> {
        while let Some(at) = self.find(lease)? {
            if self.end(at) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Ends the oldest start that this owner recorded without a permit, if there is one.
    pub fn complete(&self, owner: u64) -> Result<bool, Sealed> {
        loop {
            let oldest = self
                .all()
                .filter(|at| matches!(phase_of(at.word), HELD | SEALED) && at.word & RECORDED != 0)
                .filter(|at| self.owner_of(at.index).load(Acquire) == owner)
                .min_by_key(|at| self.fence_of(at.index).load(Acquire));
            self.is_alive()?;
            match oldest {
                None => return Ok(false),
                Some(at) if phase_of(at.word) == SEALED => return Err(Sealed),
                Some(at) if self.end(at) => return Ok(true),
                Some(_) => {}
            }
        }
    }

    /// Ends what a slot held when it was read, and sees to it that its units are back.
    fn end(&self, at: At) -> bool {
        let ending = At { word: with_phase(at.word, ENDING), ..at };
        let is_mine = self.change(at, ending.word);
        if is_mine {
            fault::point("lease-ending");
            self.finish(ending);
        }
        is_mine
    }

    /// Gives the units of an ENDING slot back. `false`: somebody else did.
    fn finish(&self, at: At) -> bool {
        loop {
            let returned = self.returned.load(Acquire);
            self.help_return(returned);
            // Only now: what was counted before `returned` was read is seen here.
            if self.at(at.index) != at && !fault::planted("returned twice") {
                return false;
            }
            if self.try_return(returned, at) {
                fault::point("lease-returned");
                self.change(at, freed(at.word, true));
                self.bell.fetch_add(1, SeqCst);
                return true;
            }
        }
    }

    fn try_return(&self, returned: u64, at: At) -> bool {
        let next = at.named(units_in(returned) + weight_of(at.word));
        self.returned.compare_exchange(returned, next, AcqRel, Relaxed).is_ok()
    }

    /// Lets a lease last until `deadline`, if it does not last longer. `false`: it is not held any more.
    pub fn renew(&self, lease: Lease, deadline: Tick) -> Result<bool, Sealed> {
        while let Some(at) = self.find(lease)? {
            if at.word >> COUNT > LAST_COUNT - 2 {
                return self.close(self.look()?.taken);
            }
            self.deadline_of(at.index).fetch_max(deadline, AcqRel);
            if self.change(at, at.word + (2 << COUNT)) || fault::planted("renewal unseen") {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Ends what is past its deadline or whose owner is dead, finishes what the dead left half done, and says how many
    /// units came back by it. Asks about each owner once at most.
    ///
    /// An owner that is dead must stay dead: no other process may ever have its number.
    pub fn reclaim(&self, now: Tick, is_dead: impl Fn(u64) -> bool) -> Result<u64, Sealed> {
        let mut known: Vec<(u64, bool)> = Vec::new();
        let mut is_dead = |owner: u64| match known.iter().find(|(of, _)| *of == owner) {
            _ if owner == NOBODY => false,
            Some((_, dead)) => *dead,
            None => {
                let dead = is_dead(owner);
                known.push((owner, dead));
                dead
            }
        };
        let mut units = 0;
        for index in 0..self.count() {
            loop {
                let at = self.at(index);
                let (owner, deadline) = (self.owner_of(index).load(Acquire), self.deadline_of(index).load(Acquire));
                self.is_alive()?;
                let came_back = match phase_of(at.word) {
                    // Renewed meanwhile, perhaps.
                    HELD if deadline <= now || is_dead(owner) => match self.end(at) {
                        true => true,
                        false => continue,
                    },
                    ENDING => self.finish(at),
                    TENTATIVE if is_dead(owner) => {
                        // Nobody counts it any more. If it has been counted, this makes it HELD.
                        self.help_take(self.taken.load(Acquire));
                        match self.change(at, freed(at.word, false)) {
                            true => false,
                            false => continue,
                        }
                    }
                    SEALED => return Err(Sealed),
                    _ => false,
                };
                units += if came_back { weight_of(at.word) } else { 0 };
                break;
            }
        }
        Ok(units)
    }

    /// May [`Leases::reclaim`] find something to do, other than what is past its deadline, if `me` is alive?
    pub fn holds_of_others(&self, me: u64) -> bool {
        self.all().any(|at| match phase_of(at.word) {
            ENDING => true,
            TENTATIVE | HELD => ![me, NOBODY].contains(&self.owner_of(at.index).load(Acquire)),
            _ => false,
        })
    }

    /// When the first lease ends that has a deadline.
    pub fn earliest_deadline(&self) -> Result<Option<Tick>, Sealed> {
        let held = self.all().filter(|at| phase_of(at.word) == HELD);
        let earliest = held.map(|at| self.deadline_of(at.index).load(Acquire)).min();
        self.is_alive()?;
        Ok(earliest.filter(|deadline| *deadline != NEVER))
    }

    /// Ends all leases that are held.
    #[cfg(test)]
    pub fn clear(&self) -> Result<(), Sealed> {
        self.reclaim(NEVER, |_| false).map(drop)
    }

    /// What a forked child does with the copy it inherited: those who hold leases are the parent's. Nobody else may be
    /// using it.
    pub fn disown(&self) {
        for at in self.all().filter(|at| phase_of(at.word) != FREE) {
            self.state(at.index).store(freed(at.word, true), Release);
        }
        let taken = self.taken.load(Acquire);
        let units = units_in(taken) << UNITS;
        self.returned.store(units, Release);
        self.taken.store(units | taken & SEAL, Release);
        self.sleepers.store(0, Release);
    }

    // ---- for the holder of the structure lock ----

    /// Is nothing held? Of cells that are not sealed, others may start something right after.
    pub fn is_idle(&self) -> bool {
        // What was ending when they were sealed may never be counted as returned.
        self.live().map_or_else(|Sealed| self.history().0.is_empty(), |live| live == 0)
    }

    /// Does every caller have to wait until what is held is written elsewhere?
    pub fn is_sealed(&self) -> bool {
        self.taken.load(Acquire) & SEAL != 0
    }

    /// Ends this life: from here on every call answers [`Sealed`]. Sealing again is a no-op, also in a later life. Whoever
    /// sleeps on the bell is to be woken.
    pub fn seal(&self) {
        loop {
            let taken = self.taken.load(Acquire);
            if self.is_alive().is_err() {
                return;
            }
            let sealed = taken | SEAL;
            if taken == sealed || self.taken.compare_exchange(taken, sealed, AcqRel, Relaxed).is_ok() {
                self.help_take(sealed);
                break;
            }
        }
        for index in 0..self.count() {
            loop {
                let at = self.at(index);
                let is_held = phase_of(at.word) == HELD && !fault::planted("leases open");
                if !is_held || self.change(at, with_phase(at.word, SEALED)) {
                    break;
                }
            }
        }
        self.bell.fetch_add(1, SeqCst);
    }

    /// What sealed cells hold, the oldest first, and the last fence.
    pub fn history(&self) -> (Vec<Hold>, u64) {
        let held = |at: &At| matches!(phase_of(at.word), HELD | SEALED);
        let hold = |at: At| Hold {
            fence: self.fence_of(at.index).load(Acquire),
            owner: self.owner_of(at.index).load(Acquire),
            weight: weight_of(at.word),
            deadline: self.deadline_of(at.index).load(Acquire),
            is_recorded: at.word & RECORDED != 0,
        };
        let mut holds: Vec<Hold> = self.all().filter(held).map(hold).collect();
        holds.sort_unstable_by_key(|hold| hold.fence);
        (holds, self.base.load(Acquire) + units_in(self.taken.load(Acquire)))
    }

    /// Begins another life, with these leases in it; the next has a larger fence than the last.
    ///
    /// Only for whoever has these cells alone: they are zeroed, or sealed with `life` closed. They must have had as many
    /// slots in all their lives. `false`: they have handed out too much, or lost too many slots. Zeroed ones will do, if
    /// there is a slot for each lease.
    pub fn write(&self, holds: &[Hold], last_fence: u64) -> bool {
        // More than was ever taken or returned here.
        let first = units_in(self.taken.load(Acquire)) + 1;
        let live: u64 = holds.iter().map(|hold| hold.weight).sum();
        if first + live > LAST_UNIT - A_LIFE {
            return false;
        }
        for at in self.all().filter(|at| matches!(phase_of(at.word), HELD | SEALED | ENDING)) {
            // Somebody may be about to do that with an ENDING one.
            self.change(at, freed(at.word, true));
        }
        let is_free = |at: &At| phase_of(at.word) == FREE && at.word >> COUNT <= LAST_COUNT / 2;
        if self.all().filter(is_free).count() as u64 + SPARE / 2 < self.count() {
            return false;
        }
        let mut free = self.all().filter(is_free);
        for hold in holds {
            // Those who come too late for the life before still may claim a slot.
            let Some(at) = free.find(|at| self.change(*at, with_phase(at.word, CLAIMED))) else { return false };
            self.owner_of(at.index).store(hold.owner, Release);
            self.deadline_of(at.index).store(hold.deadline, Release);
            self.fence_of(at.index).store(hold.fence, Release);
            let recorded = if hold.is_recorded { RECORDED } else { 0 };
            self.state(at.index).store(with_phase(at.word, HELD) | recorded | hold.weight, Release);
        }
        self.base.store(last_fence.saturating_sub(first), Release);
        // The last to be opened is what a start is counted in.
        self.returned.swap(first << UNITS, AcqRel);
        self.taken.swap((first + live) << UNITS, AcqRel);
        true
    }
}

#[cfg(all(test, model))]
#[path = "leases_models.rs"]
mod models;
#[cfg(all(test, not(model)))]
#[path = "leases_tests.rs"]
mod tests;
