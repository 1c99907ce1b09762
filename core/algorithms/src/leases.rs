//! Concurrency as leases: a bounded number of units at the same time, in all processes, safe if a process dies at any
//! point.
//!
//! # Shape
//!
//! Two words count the units that were ever taken and ever returned; the difference is live. Each holder has a slot
//! with its identity and its deadline.
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
//! 1. A starting caller claims a free slot, writes its identity into it, and makes it TENTATIVE. Nothing has been
//!    admitted yet.
//! 2. One compare-and-swap on `taken` adds the weight and names the slot. That is the whole admission.
//! 3. The next caller first makes that slot HELD, if its owner has not (it *helps*). So a process that dies in between
//!    leaves a lease like any other.
//! 4. A lease ends when its slot becomes ENDING, once. One compare-and-swap on `returned` gives its units back and
//!    names the slot, which any caller then makes FREE.
//! 5. [`Leases::reclaim`] finishes what a dead process leaves half done.
//! 6. Where units cool down, the caller that ends a lease first takes its units once more: for nobody (COOLING), until a
//!    given tick, and even if the limit is full. So at every moment at least one of the two counts. If the caller dies in
//!    between, both count. The lease then ends at its deadline, or when its owner is found dead, and cools down as well.
//!    If fewer units cool down than it had, the end frees the others. If more do, they have a second slot.
//!
//! # Correctness
//!
//! 1. *Every word only grows*, over all lives of the cells: units are only added, and a slot's count and phase only go
//!    up. So no word ever comes back, and a delayed compare-and-swap fails, or is still right.
//! 2. *Never too many.* `taken` is read before `returned`, and is unchanged when the admission's compare-and-swap
//!    succeeds; `returned` can only have grown. So the live units are no more than was computed.
//! 3. *A denial is exact.* When `returned` was read, at least the units that were read before had been taken. (While a lease
//!    becomes one that cools down, both count.)
//! 4. *It is known whether a slot was counted.* `taken` names the slot it counted last, and its parity: the lowest bit
//!    of the slot's count, which changes with each lease that the slot holds to its end, and with nothing else. A
//!    caller that moves `taken` on has helped first. So a TENTATIVE slot was counted if and only if `taken` names it
//!    with its parity. The same holds for an ENDING slot and `returned`.
//! 5. *A claimed slot belongs to its claimant*, whatever life the cells have by now. Before the slot is counted, no
//!    other caller changes it or its other words, except one that knows the owner to be dead. An owner that died
//!    between CLAIMED and TENTATIVE, two instructions later, leaves a slot that is never used again. There are
//!    [`SPARE`] such slots. When they are used up the cells seal themselves, and are written elsewhere.
//! 6. *Renewing and ending cannot both succeed.* A renewal raises the deadline, then changes the slot's word. A caller
//!    that ends the lease changes the word that it read before the deadline. A deadline is only ever raised while a
//!    lease is held: a renewal that comes a day late may lengthen the lease that has the slot by then, but not shorten
//!    it.
//! 7. *A sealed state does not change.* After `taken` is sealed and the last admission helped, no slot becomes HELD.
//!    The HELD slots become SEALED, one by one: a renewal or an end came before, and is in the history, or is refused.
//!    An ENDING slot is no longer held, whether it was counted or not.
//! 8. *Lives do not mix.* Words and slots that were read are trusted only if `life` is still the same afterwards, and a
//!    compare-and-swap on what was then read belongs to that life.
//!
//! # Orderings
//!
//! * `taken` is read with `Acquire`, then `returned`, which is therefore not the older of the two (2, 3). Both are
//!   changed with `AcqRel`, by callers that have read them and helped. So a reader of one of them sees what was done
//!   for the slot that the previous value named.
//! * Owner and deadline of a slot are stored before the word that makes it TENTATIVE (`Release`), the fence before the
//!   compare-and-swap on `taken`. Slots' words are read with `Acquire`, before the others, and changed with `AcqRel`. A
//!   value that was read with a word is trusted if the word can be changed, or `life` is the same.
//! * A deadline is raised (`AcqRel`) before the slot's word is changed, and read after it. So a caller that ends a
//!   lease by its deadline has read both before that renewal, or fails (6).
//! * The bell is rung before `sleepers` is read, and `sleepers` is raised before the kernel reads the bell. Both are
//!   `SeqCst`: nothing less keeps the order of a store and a later load of another word.
//! * `life` is read with `Acquire` after everything that is to be trusted, and closed before any of it is written.
//! * A failed compare-and-swap is `Relaxed`: its result is unused.
//!
//! Sources: counting arrivals and departures separately, so that each counter only grows, is the ticket semaphore of
//! Reed and Kanodia, "Synchronization with eventcounts and sequencers" (1979). Helping an announced operation before
//! adding to it follows Herlihy, "Wait-free synchronization" (1991). The fence is the one of Gray and Cheriton's leases
//! (1989), as lock services hand it out.

use super::{Sealed, Tries};
use crate::atomic::{AtomicU64, *};
use crate::fault;
use crate::time::{Now, Tick};
use crossbeam_utils::Backoff;

/// The largest number of units at once.
pub const MAX: u64 = (1 << WEIGHT) - 1;

/// The deadline of a lease without one.
pub const NEVER: Tick = u64::MAX;

/// The owner of a lease that is not bound to a living process.
pub const NO_OWNER: u64 = 0;

/// The owner of units that cool down has this bit. Their start has ended, and they become free at the tick in the bits below.
/// (Not in the deadline, which a late renewal of the slot's previous lease may still raise.)
const COOLING: u64 = 1 << 63;

/// The number of words of a slot.
pub const SLOT_WORDS: u64 = 4;

/// The least number of slots in addition to those of the limit: for starts recorded beyond it, and for racing callers.
const SPARE: u64 = 8;

/// The most slots.
pub const MAX_SLOTS: u64 = 1 << (UNITS - SLOT - 1);

// In `taken` and `returned`.
const SEAL: u64 = 1;
const PARITY: u32 = 1;
const SLOT: u32 = 2;
const UNITS: u32 = 20;
const ANY_SLOT: u64 = (1 << (UNITS - SLOT)) - 1;
/// The most units that these cells can hand out, over all their lives.
const LAST_UNIT: u64 = (1 << (64 - UNITS)) - 1;
/// A life begins only if it can hand out this many units.
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
/// Ended; its units are free once `returned` has named it.
const ENDING: u64 = 5;

/// Returns the number of slots that a limit needs: a power of two.
pub fn slots(max: u64) -> u64 {
    (max + SPARE).next_power_of_two()
}

/// One key's leases, in cells that live elsewhere.
#[derive(Clone, Copy)]
pub struct Leases<'a> {
    /// The units ever taken, and the newest lease: see the head of this file.
    pub taken: &'a AtomicU64,
    /// The units ever returned, and the last lease that ended.
    pub returned: &'a AtomicU64,
    /// The fence of a lease is this plus the units taken up to it.
    pub base: &'a AtomicU64,
    /// Grows whenever units become free, or the cells are sealed; waiters sleep on it.
    pub bell: &'a AtomicU64,
    /// The number of sleepers.
    pub sleepers: &'a AtomicU64,
    /// [`SLOT_WORDS`] for each of a power of two of slots.
    pub slots: &'a [AtomicU64],
    /// The number of the cells' current life.
    pub life: &'a AtomicU64,
    /// The number of the intended life. Not that of cells being written, except for [`Leases::write`].
    pub number: u64,
}

/// The identity of a lease, which its holder needs to give it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Its slot; it has another one after it was written into other cells.
    pub index: u64,
    /// Unique among the leases of this key; later leases have larger fences.
    pub fence: u64,
}

/// A lease, while it moves from one life of its cells to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// The fence of the lease.
    pub fence: u64,
    /// The number of its holder's process.
    pub owner: u64,
    /// Its units.
    pub weight: u64,
    /// When it ends by itself; [`NEVER`]: it does not.
    pub deadline: Tick,
    /// Whether it was recorded without a permit.
    pub is_recorded: bool,
}

/// Why a lease was not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotEnded {
    /// The cells are sealed, or have another life.
    Sealed,
    /// Its units would cool down, but there is no slot for them: the leases have to be written into cells with more slots.
    Crowded,
}

impl From<Sealed> for NotEnded {
    fn from(_: Sealed) -> NotEnded {
        NotEnded::Sealed
    }
}

/// A request for units.
#[derive(Debug, Clone, Copy)]
struct Request {
    weight: u64,
    max: u64,
    owner: u64,
    deadline: Tick,
    is_recorded: bool,
}

/// The values that were read.
#[derive(Debug, Clone, Copy)]
struct Seen {
    taken: u64,
    returned: u64,
    base: u64,
    live: u64,
}

/// A slot, and the word that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SlotWord {
    index: u64,
    word: u64,
}

#[inline]
const fn units_in(word: u64) -> u64 {
    word >> UNITS
}

/// Returns the number of the named slot, from 1; 0: none.
#[inline]
const fn slot_in(word: u64) -> u64 {
    word >> SLOT & ANY_SLOT
}

#[inline]
const fn phase_of(word: u64) -> u64 {
    word >> PHASE & 7
}

#[inline]
const fn weight_of(word: u64) -> u64 {
    word & MAX
}

#[inline]
const fn with_phase(word: u64, phase: u64) -> u64 {
    word & !(7 << PHASE) | phase << PHASE
}

/// Returns the word of a slot that is free again. Its parity changes if its lease was `counted`.
#[inline]
const fn freed(word: u64, counted: bool) -> u64 {
    ((word >> COUNT) + if counted { 1 } else { 2 }) << COUNT
}

impl SlotWord {
    /// Returns the bits that name this slot in `taken` or `returned`.
    #[inline]
    fn named(&self, units: u64) -> u64 {
        units << UNITS | (self.index + 1) << SLOT | self.parity()
    }

    #[inline]
    fn parity(&self) -> u64 {
        (self.word >> COUNT & 1) << PARITY
    }

    #[inline]
    fn is_named_in(&self, counter: u64) -> bool {
        slot_in(counter) == self.index + 1 && counter & (1 << PARITY) == self.parity()
    }
}

#[cfg(not(model))]
static UNTOUCHED: AtomicU64 = AtomicU64::new(0);

impl<'a> Leases<'a> {
    /// Returns the leases of an unused key. For reading only.
    #[cfg(not(model))]
    pub fn untouched() -> Leases<'static> {
        let [taken, returned, base, bell, sleepers, life] = [&UNTOUCHED; 6];
        Leases { taken, returned, base, bell, sleepers, slots: &[], life, number: 0 }
    }

    #[inline]
    fn count(&self) -> u64 {
        self.slots.len() as u64 / SLOT_WORDS
    }

    #[inline(always)]
    fn state(&self, index: u64) -> &'a AtomicU64 {
        &self.slots[(index * SLOT_WORDS) as usize]
    }

    #[inline]
    fn fence_of(&self, index: u64) -> &'a AtomicU64 {
        &self.slots[(index * SLOT_WORDS + 1) as usize]
    }

    #[inline]
    fn owner_of(&self, index: u64) -> &'a AtomicU64 {
        &self.slots[(index * SLOT_WORDS + 2) as usize]
    }

    #[inline]
    fn deadline_of(&self, index: u64) -> &'a AtomicU64 {
        &self.slots[(index * SLOT_WORDS + 3) as usize]
    }

    #[inline]
    fn at(&self, index: u64) -> SlotWord {
        SlotWord { index, word: self.state(index).load(Acquire) }
    }

    #[inline]
    fn all(&self) -> impl Iterator<Item = SlotWord> + use<'_, 'a> {
        (0..self.count()).map(|index| self.at(index))
    }

    /// Moves a slot on from the word that was read.
    #[inline]
    fn change(&self, at: SlotWord, word: u64) -> bool {
        self.state(at.index).compare_exchange(at.word, word, AcqRel, Relaxed).is_ok()
    }

    /// Checks that these cells still have the intended life. Call this last, before anything that was read is trusted.
    #[inline(always)]
    fn is_alive(&self) -> Result<(), Sealed> {
        if self.life.load(Acquire) == self.number { Ok(()) } else { Err(Sealed) }
    }

    #[inline(always)]
    fn look(&self) -> Result<Seen, Sealed> {
        let mut tries = Tries::default();
        loop {
            // (3) In this order, so that at least these units had been taken when `returned` is read.
            let taken = self.taken.load(Acquire);
            let returned = self.returned.load(Acquire);
            let base = self.base.load(Acquire);
            self.is_alive()?;
            if taken & SEAL != 0 {
                return Err(Sealed);
            }
            // Otherwise units were taken and returned in between.
            if let Some(live) = units_in(taken).checked_sub(units_in(returned)) {
                return Ok(Seen { taken, returned, base, live });
            }
            tries.again()?;
        }
    }

    /// Returns the number of live units.
    #[inline]
    pub fn live(&self) -> Result<u64, Sealed> {
        self.look().map(|seen| seen.live)
    }

    /// Takes `weight` units, if at most `max` are then live.
    #[inline]
    pub fn take(&self, weight: u64, max: u64, owner: u64, deadline: Tick) -> Result<Option<Lease>, Sealed> {
        self.admit(Request { weight, max, owner, deadline, is_recorded: false })
    }

    /// Records a start of one unit, even if the limit is full. `None`: no slot is left.
    pub fn start(&self, owner: u64) -> Result<Option<Lease>, Sealed> {
        self.admit(Request { weight: 1, max: u64::MAX, owner, deadline: NEVER, is_recorded: true })
    }

    // Inlined rather than called: a call makes a denial several times as expensive.
    #[inline(always)]
    fn admit(&self, want: Request) -> Result<Option<Lease>, Sealed> {
        debug_assert!((1..=MAX).contains(&want.weight));
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
            // (4) Before `taken` names another slot.
            self.help_take(seen.taken);
            if mine.is_none() {
                mine = self.claim(&seen).map(|at| self.offer(at, &want));
            }
            match mine {
                Some(at) => {
                    if let Some(lease) = self.try_take(&seen, at) {
                        // (Deciding 3) If this process dies before it, the next caller does it.
                        self.change(at, with_phase(at.word, HELD));
                        return Ok(Some(lease));
                    }
                }
                None if want.is_recorded || backoff.is_completed() && want.owner & COOLING != 0 => break Ok(None),
                // Many race, or many died. There is a slot for each caller that can be admitted, but a stopped process
                // keeps its slot.
                None if backoff.is_completed() => break self.close(seen.taken),
                None => backoff.snooze(),
            }
        };
        if let Some(at) = mine {
            self.change(at, freed(at.word, false));
        }
        answer
    }

    /// Finds a free slot. The one that became free last is in the cache; otherwise the slots after the one taken last
    /// have been free for longest.
    #[inline]
    fn claim(&self, seen: &Seen) -> Option<SlotWord> {
        let (last, next) = (slot_in(seen.returned).checked_sub(1), slot_in(seen.taken));
        let around = (0..self.count()).map(|i| (next + i) & (self.count() - 1));
        last.into_iter().chain(around).find_map(|index| {
            let at = self.at(index);
            // The upper half of the counts is for renewals.
            let is_free = phase_of(at.word) == FREE && at.word >> COUNT <= LAST_COUNT / 2;
            let word = with_phase(at.word, CLAIMED);
            // (5) From here on the slot belongs to this caller.
            (is_free && self.change(at, word)).then_some(SlotWord { index, word })
        })
    }

    /// Writes the identity of its owner into a claimed slot.
    #[inline]
    fn offer(&self, at: SlotWord, want: &Request) -> SlotWord {
        fault::point("lease-claimed");
        self.owner_of(at.index).store(want.owner, Release);
        self.deadline_of(at.index).store(want.deadline, Release);
        let recorded = if want.is_recorded { RECORDED } else { 0 };
        let word = with_phase(at.word, TENTATIVE) | recorded | want.weight;
        // (5) A store suffices, as no other caller changes a claimed slot. It releases the owner and the deadline.
        self.state(at.index).store(word, Release);
        fault::point("lease-offered");
        SlotWord { word, ..at }
    }

    /// Performs the admission.
    #[inline]
    fn try_take(&self, seen: &Seen, at: SlotWord) -> Option<Lease> {
        let units = units_in(seen.taken) + weight_of(at.word);
        let lease = Lease { index: at.index, fence: seen.base + units };
        self.fence_of(at.index).store(lease.fence, Release);
        // (2) The admission. As `taken` is unchanged, no more units are live than were seen.
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
        let is_left = phase_of(at.word) == TENTATIVE && at.is_named_in(taken);
        // (4) `taken` still names the slot, so what the slot holds was counted.
        if is_left && self.taken.load(Acquire) == taken {
            self.change(at, with_phase(at.word, HELD));
        }
    }

    /// Makes the slot FREE whose units were returned last, if it is not yet.
    #[inline]
    fn help_return(&self, returned: u64) {
        let Some(index) = slot_in(returned).checked_sub(1) else { return };
        let at = self.at(index);
        let is_left = phase_of(at.word) == ENDING && at.is_named_in(returned);
        // (4) The same with `returned`.
        if is_left && self.returned.load(Acquire) == returned {
            self.change(at, freed(at.word, true));
        }
    }

    /// Seals the cells, because no unit can be taken here any more: the leases have to be written elsewhere.
    #[cold]
    fn close<T>(&self, taken: u64) -> Result<T, Sealed> {
        let _ = self.taken.compare_exchange(taken, taken | SEAL, AcqRel, Relaxed);
        Err(Sealed)
    }

    // ---- ending ----

    /// Finds the slot that holds a lease.
    #[inline]
    fn find(&self, lease: Lease) -> Result<Option<SlotWord>, Sealed> {
        let is_it = |at: &SlotWord| {
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

    /// Returns whether this lease is held.
    pub fn is_held(&self, lease: Lease) -> Result<bool, Sealed> {
        Ok(self.find(lease)?.is_some())
    }

    /// Ends a lease. `false`: it is no longer held.
    #[inline]
    pub fn give_back(&self, lease: Lease) -> Result<bool, Sealed> {
        while let Some(at) = self.find(lease)? {
            if self.end(at) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The same, but its units are free from `until` on.
    #[cold]
    pub fn cool_down(&self, lease: Lease, until: Tick) -> Result<bool, NotEnded> {
        while let Some(at) = self.find(lease)? {
            if self.end_cooling(at, until)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The same, but of its units only `used` cool down, and the others are free at once. Units that were used beyond those of the
    /// lease are owed: at most `max` of them cool down, too.
    #[cold]
    pub fn settle(&self, lease: Lease, used: u64, max: u64, until: Tick) -> Result<bool, NotEnded> {
        while let Some(at) = self.find(lease)? {
            let weight = weight_of(at.word);
            if self.end_to_cool(at, [used.min(weight), used.saturating_sub(weight).min(max)], until)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Ends the oldest start that this owner recorded without a permit, if there is one. Its units are free from `until`
    /// on.
    pub fn complete(&self, owner: u64, until: Tick) -> Result<bool, NotEnded> {
        loop {
            let oldest = self
                .all()
                .filter(|at| matches!(phase_of(at.word), HELD | SEALED) && at.word & RECORDED != 0)
                .filter(|at| self.owner_of(at.index).load(Acquire) == owner)
                .min_by_key(|at| self.fence_of(at.index).load(Acquire));
            self.is_alive()?;
            match oldest {
                None => return Ok(false),
                Some(at) if phase_of(at.word) == SEALED => return Err(NotEnded::Sealed),
                Some(at) if self.end_until(at, until)? => return Ok(true),
                Some(_) => {}
            }
        }
    }

    /// Ends what a slot held when it was read, and ensures that its units are returned.
    #[inline]
    fn end(&self, at: SlotWord) -> bool {
        let ending = SlotWord { word: with_phase(at.word, ENDING), ..at };
        // (6) Once: after another end, or a renewal, the slot has another word.
        let is_mine = self.change(at, ending.word);
        if is_mine {
            fault::point("lease-ending");
            self.finish(ending);
        }
        is_mine
    }

    /// The same, but its units are free from `until` on (0: now).
    #[inline]
    fn end_until(&self, at: SlotWord, until: Tick) -> Result<bool, NotEnded> {
        if until == 0 { Ok(self.end(at)) } else { self.end_cooling(at, until) }
    }

    #[cold]
    #[inline(never)]
    fn end_cooling(&self, at: SlotWord, until: Tick) -> Result<bool, NotEnded> {
        self.end_to_cool(at, [weight_of(at.word), 0], until)
    }

    /// Ends what a slot held when it was read. These units, of which each part is at most [`MAX`], cool down.
    fn end_to_cool(&self, at: SlotWord, units: [u64; 2], until: Tick) -> Result<bool, NotEnded> {
        let (owner, deadline) = (COOLING | until, NEVER);
        let cool = |weight: u64| match weight {
            0 => Ok(None),
            _ => self.admit(Request { weight, max: u64::MAX, owner, deadline, is_recorded: false }),
        };
        // (Deciding 6) Before the lease ends, so that one of the two counts at every moment.
        let cooling = [cool(units[0])?, cool(units[1])?];
        if cooling.iter().zip(units).any(|(lease, units)| lease.is_none() && units > 0) {
            self.give_back_all(cooling)?;
            return Err(NotEnded::Crowded);
        }
        fault::point("lease-cooling");
        let is_mine = self.end(at);
        if !is_mine {
            self.give_back_all(cooling)?;
        }
        Ok(is_mine)
    }

    fn give_back_all(&self, leases: [Option<Lease>; 2]) -> Result<(), Sealed> {
        leases.into_iter().flatten().try_for_each(|lease| self.give_back(lease).map(drop))
    }

    /// Returns the units of an ENDING slot. `false`: another caller did.
    #[inline]
    fn finish(&self, at: SlotWord) -> bool {
        loop {
            let returned = self.returned.load(Acquire);
            // (4) Before `returned` names another slot.
            self.help_return(returned);
            // Only now: what was counted before `returned` was read is visible here.
            if self.at(at.index) != at {
                return false;
            }
            if self.try_return(returned, at) {
                fault::point("lease-returned");
                self.change(at, freed(at.word, true));
                // Only now: a waiter that wakes up finds the units free.
                self.bell.fetch_add(1, SeqCst);
                return true;
            }
        }
    }

    #[inline]
    fn try_return(&self, returned: u64, at: SlotWord) -> bool {
        let next = at.named(units_in(returned) + weight_of(at.word));
        self.returned.compare_exchange(returned, next, AcqRel, Relaxed).is_ok()
    }

    /// Extends a lease to `deadline`, if it does not last longer. `false`: it is no longer held.
    pub fn renew(&self, lease: Lease, deadline: Tick) -> Result<bool, Sealed> {
        while let Some(at) = self.find(lease)? {
            if at.word >> COUNT > LAST_COUNT - 2 {
                return self.close(self.look()?.taken);
            }
            // (6) Before the word changes: a caller that ends the lease by the earlier deadline finds another word.
            self.deadline_of(at.index).fetch_max(deadline, AcqRel);
            if self.change(at, at.word + (2 << COUNT)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Ends leases that are past their deadline or whose owner is dead, finishes what dead processes left half done,
    /// and returns the number of units that became free. Checks each owner at most once. Units cool down for `cooldown`
    /// after the deadline, or after their owner was found dead, as `clock` then says.
    ///
    /// A dead owner must stay dead: no other process may ever have its number.
    pub fn reclaim(
        &self,
        now: Tick,
        cooldown: Tick,
        clock: impl Fn() -> Tick,
        is_dead: impl Fn(u64) -> bool,
    ) -> Result<u64, NotEnded> {
        // Of a process that died when it ended a lease, nobody else would complete this.
        self.help_take(self.taken.load(Acquire));
        let mut known: Vec<(u64, bool)> = Vec::new();
        let mut is_dead = |owner: u64| match known.iter().find(|(of, _)| *of == owner) {
            _ if owner == NO_OWNER || owner & COOLING != 0 => false,
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
                    HELD if owner & COOLING != 0 && owner ^ COOLING > now => false,
                    HELD if owner & COOLING != 0 || deadline <= now || is_dead(owner) => {
                        let ended = match deadline <= now {
                            true => deadline + cooldown,
                            false if cooldown > 0 => clock() + cooldown,
                            false => 0,
                        };
                        let until = if owner & COOLING == 0 && cooldown > 0 && ended > now { ended } else { 0 };
                        // Perhaps it was renewed in between.
                        match self.end_until(at, until)? {
                            true => until == 0,
                            false => continue,
                        }
                    }
                    ENDING => self.finish(at),
                    TENTATIVE if is_dead(owner) => {
                        // No other caller counts it any more. If it has been counted, this makes it HELD.
                        self.help_take(self.taken.load(Acquire));
                        match self.change(at, freed(at.word, false)) {
                            true => false,
                            false => continue,
                        }
                    }
                    SEALED => return Err(NotEnded::Sealed),
                    _ => false,
                };
                units += if came_back { weight_of(at.word) } else { 0 };
                break;
            }
        }
        Ok(units)
    }

    /// Returns whether [`Leases::reclaim`] may find work other than passed deadlines, if `me` is alive.
    pub fn holds_of_others(&self, me: u64) -> bool {
        self.all().any(|at| match phase_of(at.word) {
            ENDING => true,
            TENTATIVE | HELD => match self.owner_of(at.index).load(Acquire) {
                owner if owner & COOLING != 0 => phase_of(at.word) == TENTATIVE,
                owner => ![me, NO_OWNER].contains(&owner),
            },
            _ => false,
        })
    }

    /// The owners of the leases that are held, and their units; `None`: units that cool down. For observers: others may change
    /// while it is read.
    pub fn holders(&self) -> Vec<(Option<u64>, u64)> {
        let held = self.all().filter(|at| matches!(phase_of(at.word), TENTATIVE | HELD));
        let holder = |at: SlotWord| {
            let owner = self.owner_of(at.index).load(Acquire);
            ((owner & COOLING == 0).then_some(owner), weight_of(at.word))
        };
        held.map(holder).collect()
    }

    /// Returns the earliest deadline of a lease.
    pub fn earliest_deadline(&self) -> Result<Option<Tick>, Sealed> {
        let earliest = self.ends(0).map(|(at, _)| at).min();
        self.is_alive()?;
        Ok(earliest.filter(|deadline| *deadline != NEVER))
    }

    /// The leases that are held: when their units are free, if none ends before its deadline, and their weights.
    fn ends(&self, cooldown: Tick) -> impl Iterator<Item = (Tick, u64)> {
        self.all().filter(|at| phase_of(at.word) == HELD).map(move |at| {
            let end = match self.owner_of(at.index).load(Acquire) {
                owner if owner & COOLING != 0 => owner ^ COOLING,
                _ => self.deadline_of(at.index).load(Acquire).saturating_add(cooldown),
            };
            (end, weight_of(at.word))
        })
    }

    /// Returns when this many units will be free, if no lease ends before its deadline. `None`: that is not known.
    pub fn free_at(&self, units: u64, cooldown: Tick) -> Result<Option<Tick>, Sealed> {
        let mut ends: Vec<(Tick, u64)> = self.ends(cooldown).collect();
        self.is_alive()?;
        ends.sort_unstable();
        let mut free = 0;
        let last = ends.into_iter().find(|(_, weight)| {
            free += weight;
            free >= units
        });
        Ok(last.map(|(at, _)| at).filter(|at| *at != NEVER))
    }

    /// Returns from when on a start of `weight` may succeed if no lease ends before its deadline. `None`: once one ends, which is not
    /// known.
    pub fn room_at(&self, weight: u64, max: u64, cooldown: Tick, now: Now) -> Result<Option<Tick>, Sealed> {
        match ((self.live()? + weight).saturating_sub(max), cooldown) {
            (0, _) => Ok(Some(now.floor)),
            (_, 0) => self.earliest_deadline(),
            // No start that completes from now on frees its units before that.
            (units, _) => Ok(Some(self.free_at(units, cooldown)?.unwrap_or(NEVER).min(now.ceil + cooldown))),
        }
    }

    /// Returns the number of live units, without those that nobody has reclaimed yet though their time is over.
    pub fn live_at(&self, now: Tick, cooldown: Tick) -> Result<u64, Sealed> {
        let live = self.live()?;
        let over =
            if live > 0 { self.ends(cooldown).filter(|(at, _)| *at <= now).map(|(_, units)| units).sum() } else { 0 };
        self.is_alive()?;
        Ok(live.saturating_sub(over))
    }

    /// Ends all leases that are held.
    #[cfg(test)]
    pub fn clear(&self) -> Result<(), Sealed> {
        self.reclaim(NEVER, 0, || NEVER, |_| false).map_err(|_| Sealed).map(drop)
    }

    /// Empties the copy that a forked child inherited: the holders of its leases belong to the parent. No other thread
    /// may be using it.
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

    /// Returns whether nothing is held. If the cells are not sealed, another caller may start right after.
    pub fn is_idle(&self) -> bool {
        // A lease that was ending when they were sealed may never be counted as returned.
        self.live().map_or_else(|Sealed| self.history().0.is_empty(), |live| live == 0)
    }

    /// Returns whether every caller has to wait until the leases are written elsewhere.
    pub fn is_sealed(&self) -> bool {
        self.taken.load(Acquire) & SEAL != 0
    }

    /// Ends this life: from here on every call returns [`Sealed`]. Sealing again is a no-op, also in a later life. The
    /// caller has to wake the sleepers on the bell.
    pub fn seal(&self) {
        loop {
            let taken = self.taken.load(Acquire);
            if self.is_alive().is_err() {
                return;
            }
            let sealed = taken | SEAL;
            // (7) The last admission is helped, so that it is in the history; there is none after it.
            if taken == sealed || self.taken.compare_exchange(taken, sealed, AcqRel, Relaxed).is_ok() {
                self.help_take(sealed);
                break;
            }
        }
        for index in 0..self.count() {
            loop {
                let at = self.at(index);
                let is_held = phase_of(at.word) == HELD;
                // (7) A renewal or an end came before this, or is refused.
                if !is_held || self.change(at, with_phase(at.word, SEALED)) {
                    break;
                }
            }
        }
        self.bell.fetch_add(1, SeqCst);
    }

    /// Returns the leases of sealed cells, the oldest first, and the last fence.
    pub fn history(&self) -> (Vec<Hold>, u64) {
        let held = |at: &SlotWord| matches!(phase_of(at.word), HELD | SEALED);
        let hold = |at: SlotWord| Hold {
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

    /// Begins another life that contains these leases; the next lease has a larger fence than the last.
    ///
    /// Only for a caller that has these cells alone: they are zeroed, or sealed with `life` closed. They must have had
    /// the same number of slots in all their lives. `false`: they have handed out too much, or lost too many slots.
    /// Zeroed cells always suffice, if there is a slot for each lease.
    pub fn write(&self, holds: &[Hold], last_fence: u64) -> bool {
        // More than was ever taken or returned here.
        let first = units_in(self.taken.load(Acquire)) + 1;
        let live: u64 = holds.iter().map(|hold| hold.weight).sum();
        if first + live > LAST_UNIT - A_LIFE {
            return false;
        }
        for at in self.all().filter(|at| matches!(phase_of(at.word), HELD | SEALED | ENDING)) {
            // A late caller may be about to do that with an ENDING slot.
            self.change(at, freed(at.word, true));
        }
        let is_free = |at: &SlotWord| phase_of(at.word) == FREE && at.word >> COUNT <= LAST_COUNT / 2;
        if self.all().filter(is_free).count() as u64 + SPARE / 2 < self.count() {
            return false;
        }
        let mut free = self.all().filter(is_free);
        for hold in holds {
            // Late callers of the previous life may still claim a slot.
            let Some(at) = free.find(|at| self.change(*at, with_phase(at.word, CLAIMED))) else { return false };
            self.owner_of(at.index).store(hold.owner, Release);
            self.deadline_of(at.index).store(hold.deadline, Release);
            self.fence_of(at.index).store(hold.fence, Release);
            let recorded = if hold.is_recorded { RECORDED } else { 0 };
            self.state(at.index).store(with_phase(at.word, HELD) | recorded | hold.weight, Release);
        }
        self.base.store(last_fence.saturating_sub(first), Release);
        // The last to be opened is the word that counts starts.
        self.returned.swap(first << UNITS, AcqRel);
        self.taken.swap((first + live) << UNITS, AcqRel);
        true
    }
}

#[cfg(all(test, model))]
#[path = "leases_models.rs"]
pub(crate) mod models;
#[cfg(all(test, not(model)))]
#[path = "leases_tests.rs"]
mod tests;
