//! The sliding log: exact, weighted, for one or several windows, lock-free, and safe if a process dies at any point.
//!
//! # Shape
//!
//! A ring of `C` slots and a counter of *tickets*. Ticket `h` lives in slot `h mod C`. A start of weight `k` takes `k`
//! consecutive tickets. A slot is one 64-bit word:
//!
//! ```text
//! 63           16 15   14 13          2  1       0
//! [ stamp − base ][ state ][ weight − 1 ][ lap ][ seal ]
//! ```
//!
//! * `stamp`: the moment from which the start counts, never less than the previous ticket's. 48 bits of µs are 8 years.
//! * `state`: whether the start has happened, is a place, or was settled.
//! * `weight − 1`: the number of following tickets that belong to the same start.
//! * `lap`: the parity of the lap in which the slot was written. A zeroed slot reads as "written in the lap before the
//!   first". So zeroed memory is an empty log, and initialisation cannot race.
//! * `seal`: this ring is closed for good, and its contents are being written elsewhere.
//!
//! # Deciding
//!
//! With `n` starts allowed per window `w`, ticket `t` may start once ticket `t − n` is `w` old. A decision has three
//! steps:
//!
//! 1. Find the first unclaimed ticket `h` ([`Log::tail`]).
//! 2. Read the slot of ticket `h + k − 1 − n`, for the `n` of each window.
//! 3. Change slot `h` by one compare-and-swap.
//!
//! The compare-and-swap is the whole admission: the start happens at this point, and only here does a death matter.
//! Before it nothing was written. After it the start is in the log, and the next caller fills its other slots
//! ([`Ring::fill`]). Any caller may fill them, any number of times.
//!
//! The counter `head` only tells the search where to begin: it is at most [`LAG`] tickets before `h`. So most
//! admissions write only their own slot, and racing processes do not contend for the counter as well.
//!
//! # Correctness
//!
//! 1. *The counter never runs ahead.* It moves over a ticket only after all slots of the ticket's claim were seen
//!    filled, and it never moves back.
//! 2. *`h` is the first unclaimed ticket.* No caller claims a ticket `LAG` or more beyond the counter. So while the
//!    counter has not moved, no slot that is read can belong to a later lap, and a slot's lap bit shows whether it is
//!    claimed. (This needs `C ≥ LAG + k − 1`, and no start weighs more than `n`.)
//! 3. *The words that were read belong to tickets before `h`.* A decision at `h` reads tickets from `h − n` on. The
//!    earliest ticket that overwrites one of their slots is `h − n + C`, which is beyond `h` (this needs `C > n`).
//!    Ticket `h` was claimed before that, by the same start or an earlier one. So if slot `h` still holds the word that
//!    was read first, everything read in between is valid. The admission's compare-and-swap proves it; a denial reads
//!    slot `h` once more. For the same reason a claim overwrites no ticket that a later decision reads.
//! 4. *Words do not repeat.* Stamps never decrease along tickets, and each new word of a slot carries a later stamp
//!    than the old one (for starts recorded beyond the limit, by a microsecond per lap). So a compare-and-swap that was
//!    delayed by a lap fails. Only presenting a place makes a stamp earlier: from `S` to `S'`, by less than the longest
//!    window `w`. The word with `S` does not come back. It is the word of a place, or part of one, and places are never
//!    recorded beyond the limit. The same slot has the same parity two laps later at the earliest. All tickets of a
//!    whole limit then lie in between, so the new stamp is at least `S' + w`, which is more than `S`. Across lives,
//!    [`Log::peak`] guarantees this.
//! 5. *Starts keep their distance.* A start happens no earlier than `ready` and no later than `stamp`. The start `n`
//!    tickets later has `ready ≥ stamp + w`. So no half-open window of length `w` ever holds more than `n` starts.
//!
//! # Places
//!
//! A *place* is a start in the future: its stamp lies in the future, and its state says that it has not started.
//!
//! 1. Presenting it is one compare-and-swap on that state, so it starts once.
//! 2. Until then it counts from the end of its grace. So a holder that wakes up late, within the grace, cannot break
//!    the limit.
//! 3. When it starts it gives back the rest of its grace: its stamp becomes the current time, or the stamp before it if
//!    that is later. So stamps still never decrease along tickets, and the start is still no later than its stamp. A
//!    caller that computed `ready` from the larger stamp starts later than it has to, never earlier.
//! 4. The other slots of a heavy start follow one by one. If the process dies in between, they count for longer.
//! 5. The stamp is part of the identity of a start. So a copy of the place no longer leads to the start.
//! 6. `ready` is not. It may be computed again ([`Log::ready_of`]), and is earlier if those that it was computed from have started
//!    since. No stamp becomes later, in the ticket's own lap or in a later one. So the place may start then, by Correctness 5.
//!
//! # Small rings
//!
//! Most keys use a few of the units that they may. So a ring may have fewer slots than the policy needs. A small ring of
//! `C` slots is the log of a stricter policy, with one more window: `C − 1` units in the longest of the others. With that
//! window, all that is said above holds as it is. A start that only this window forbids is never denied. It is
//! [`Sealed`]: the caller has the log written into a larger ring ([`Log::has_to_grow`]), and asks again there.
//!
//! 1. A claim overwrites only what has left every window. So everything that counts is in the ring, and a ticket that is
//!    not does not count. But a life may have begun with more than fits ([`Log::left_out`]). As long as any of that counts,
//!    so does all that is in the ring, and nothing is claimed.
//! 2. So a denial by the other windows is exact ([`Log::ready_elsewhere`]), and needs no larger ring.
//! 3. A start recorded beyond the limit, or a place, must not overwrite what counts either: it needs a larger ring, as
//!    does a start heavier than `C − LAG + 1` (2), or a place that would take the slot of another.
//!
//! # Lives
//!
//! All rare changes take one path: the ring is *sealed*, what counts is read from it ([`Log::history`]), edited, and
//! written into other cells ([`Log::write`]), which then replace it. The old cells are reused, for this key or another,
//! in another *life*. A caller that stalled in an earlier life must not act on them:
//!
//! * Each life writes larger words into its slots than they ever held, because its stamps are counted from another
//!   `base`. So no word ever repeats, and a compare-and-swap from an earlier life fails. The slots of copied starts are
//!   compared one by one ([`Log::best_place`]). A later start has a larger word than any slot, as the base is chosen for
//!   the moment of the rewrite.
//! * The burnt and the copied tickets follow one another without a gap, and are written in their order. So a caller that
//!   fills a claim of an earlier life, and meets a word of this one, finds that the claim is gone.
//! * Ticket numbers continue. So a counter value from an earlier life never returns. The ticket at which the ring was
//!   sealed is burnt: its slot changes, and tickets before [`Log::cleared`] are forgotten.
//! * Each life has its own number. Every caller reads it first, and checks at the end that it is still the same, before
//!   it trusts anything that it read.
//!
//! # Orderings
//!
//! * Slots are read with `Acquire` and changed with `AcqRel`. So a reader of a ticket's word sees what its claimant
//!   saw: the earlier claims, filled. Statements 1 to 3 need this: a word read at `h − n` belongs to a ticket before
//!   `h`.
//! * The counter is moved with `AcqRel` after its claims were seen filled, and read with `Acquire` before any slot. It
//!   is read a second time (`Relaxed`) after an `Acquire` load of the slot. A slot of a later lap was written by a
//!   caller that had seen the counter move, so the second read does not return the old value.
//! * `cleared`, `own`, `logged`, `origins` and `base` are stored (`Release`) while `life` is [`CLOSED`], and before the
//!   words of the new life. So a reader of anything of the new life finds another `life` at the end ([`Log::is_alive`],
//!   `Acquire`, after all other loads, which also acquire, so that it cannot move before them).
//! * `peak` is raised before the compare-and-swap that makes it necessary, which releases it to [`Log::seal`].
//! * A failed compare-and-swap is `Relaxed` where its result is unused, else `Acquire`.
//! * `write` reads the ring `Relaxed`: its caller has sealed it, or holds the lock under which it was sealed.
//!
//! Sources: the ring with a claim word per slot follows the bounded queues of Vyukov and of crossbeam's `ArrayQueue`;
//! helping a dead claimant follows Harris, Fraser and Pratt, "A practical multi-word compare-and-swap operation"
//! (2002).

use super::{Algorithm, Forgotten, History, Sealed, Start};
use crate::atomic::{AtomicU64, *};
use crate::fault;
use crate::time::{MAX_TIME, Now, Tick};

const SEAL: u64 = 1;
const LAP: u32 = 1;
const WEIGHT: u32 = 2;
const STATE: u32 = 14;
const STAMP: u32 = 16;

/// The start has happened.
pub const STARTED: u64 = 0;
/// The start may happen once, later.
pub const PLACE: u64 = 1;
/// The start has happened, and its cost is settled.
pub const SETTLED: u64 = 2;
/// A ticket that is not the first of its start.
const PART: u64 = 3;
const ANY_STATE: u64 = 3 << STATE;
const ANY_WEIGHT: u64 = (MAX - 1) << WEIGHT;

/// The most units that one start may take, and the largest limit whose starts the log keeps one by one.
pub const MAX: u64 = 1 << (STATE - WEIGHT);

/// The last stamp that a slot can hold, relative to its base.
const LAST: Tick = (1 << (64 - STAMP)) - 1;

/// Not a life's number: the cells are being written.
pub const CLOSED: u64 = u64::MAX;

/// How many places in its ring a rewritten log may take, besides the next slots: see [`Log::best_place`].
const PLACES_TRIED: usize = 16;

/// How far the counter may lag: a cache line of slots. (The model checker's rings are smaller.)
const LAG: u64 = if cfg!(model) { 2 } else { 8 };

/// At most `limit` units in any `length` ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// At least 1.
    pub limit: u64,
    /// The window's length.
    pub length: Tick,
}

/// Returns the number of slots of a whole ring for the largest `limit` of its windows: this many units may count, and as
/// many may be owed.
pub fn capacity(limit: u64) -> u64 {
    limit.clamp(8, 1 << 32).saturating_mul(2).next_power_of_two()
}

/// The number of slots of a new key's ring.
pub const FIRST_SLOTS: u64 = 16;

/// Returns the number of slots of a ring that holds `units` units and then a start of `weight`: at most `whole`.
pub fn slots_for(units: u64, weight: u64, whole: u64) -> u64 {
    let least = units.saturating_add(weight).saturating_add(1).max(weight.saturating_add(LAG - 1));
    least.clamp(FIRST_SLOTS, 1 << 32).next_power_of_two().min(whole)
}

/// One key's log, in cells that live elsewhere.
#[derive(Clone, Copy)]
pub struct Log<'a> {
    /// A ticket at or shortly before the first unclaimed one.
    pub head: &'a AtomicU64,
    /// Tickets before `cleared − 1` are forgotten (0: none are).
    pub cleared: &'a AtomicU64,
    /// The first ticket that was claimed here; earlier ones were written by [`Log::write`].
    pub own: &'a AtomicU64,
    /// The first ticket that is not in the ledger yet.
    pub logged: &'a AtomicU64,
    /// Never empty: the length is a power of two.
    pub ring: &'a [AtomicU64],
    /// The number of slots of a whole ring: see [`capacity`].
    pub whole: u64,
    /// The largest limit of its windows.
    pub largest: u64,
    /// The original tickets of the starts that [`Log::write`] wrote: as many as `ring`, or none.
    pub origins: &'a [AtomicU64],
    /// An upper bound of all stamps that were ever made earlier, before the change, in any life of these cells, as
    /// words store it.
    pub peak: &'a AtomicU64,
    /// In a small ring: how many units of the life before [`Log::write`] left out, below a bit of others, and until when they
    /// were started. Decisions that are ready do not need them.
    pub left_out: [&'a AtomicU64; 2],
    /// The number of the cells' current life.
    pub life: &'a AtomicU64,
    /// The number of the intended life. Not [`CLOSED`], except for [`Log::write`].
    pub number: u64,
    /// The base of its stamps, read after the number.
    pub base: Tick,
    /// The stamp of an untouched slot: 0 in a new log, the moment of the loss where an earlier state was lost.
    pub born: Tick,
}

/// A request to the log.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// The windows, of which each has to have room.
    pub windows: &'a [Window],
    /// The units of the start: 1 to the smallest limit.
    pub weight: u64,
    /// The start may not happen before this.
    pub gate: Tick,
    /// How far in the future the start may lie.
    pub patience: Tick,
    /// How long after `ready` a delayed start may happen.
    pub grace: Tick,
    /// Take a place even if the start could happen now.
    pub reserve: bool,
    /// Record the start even if the limit is full.
    pub force: bool,
    /// The request replaces a place: queues reserve capacity for these.
    pub again: bool,
}

impl<'a> Ask<'a> {
    /// Requests a start now or not at all.
    #[inline(always)]
    pub fn now(windows: &'a [Window], weight: u64, gate: Tick) -> Self {
        Ask { windows, weight, gate, patience: 0, grace: 0, reserve: false, force: false, again: false }
    }
}

/// The log's reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The time of the decision.
    pub now: Now,
    /// The earliest moment for the start, gate included. In the past, or now, if there is no need to wait.
    pub ready: Tick,
    /// The start, if it was recorded: it may happen from `ready` on. `None`: the limit is full until the caller's
    /// patience ends, and nothing was written.
    pub taken: Option<Taken>,
}

/// A recorded start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Its identity: a ticket, or where starts are only counted, an era.
    pub ticket: u64,
    /// The ledger contains the start once it reaches this mark.
    pub end: u64,
    /// The moment from which it counts, which is also the last moment at which it may happen.
    pub stamp: Tick,
    /// The number that a bucket needs to take it back: see [`Bucket::take_back`](super::bucket::Bucket). Otherwise 0.
    pub ahead: u64,
    /// Whether it has started, or is a place.
    pub stage: Stage,
}

impl Taken {
    /// Returns whether it has not started yet, but may. See [`Log::present`].
    #[inline(always)]
    pub fn is_place(&self) -> bool {
        self.stage == Stage::Place
    }
}

/// Whether it has started. (A whole word: replies are copied, and a copy of partial words waits for the writes to
/// them.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Stage {
    /// It has started.
    Start,
    /// It may start later, once.
    Place,
}

impl Stage {
    /// Returns the stage of a place or of a start.
    #[inline(always)]
    pub fn of(is_place: bool) -> Stage {
        if is_place { Stage::Place } else { Stage::Start }
    }
}

/// The identity of a start, as its holder knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartId {
    /// Its ticket, or where starts are only counted, its era.
    pub ticket: u64,
    /// The moment from which it counts.
    pub stamp: Tick,
    /// Its units.
    pub weight: u64,
}

/// The state of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct View {
    /// The time of the reading.
    pub now: Tick,
    /// The earliest moment for the requested start, gate included.
    pub ready: Tick,
    /// The heaviest start that would be admitted now.
    pub remaining: u64,
    /// When nothing counts any more.
    pub empty: Tick,
}

/// The end of the log.
struct Tail {
    /// The counter's value.
    head: u64,
    /// The first unclaimed ticket.
    ticket: u64,
    /// The word of its slot: words of its own lap are later.
    was: u64,
}

#[inline]
fn weight_of(word: u64) -> u64 {
    ((word >> WEIGHT) & (MAX - 1)) + 1
}

#[inline]
fn state_of(word: u64) -> u64 {
    (word & ANY_STATE) >> STATE
}

/// The state of the start that this word belongs to, if its first ticket is no longer known.
fn state_of_start(word: u64) -> u64 {
    if state_of(word) == PART { STARTED } else { state_of(word) }
}

/// Writes a cell that a stalled caller of an earlier life may still try to change, in vain.
pub(crate) fn put(cell: &AtomicU64, word: u64) {
    if cfg!(model) {
        // loom may order a store before a later compare-and-swap and read both; it does order an exchange.
        cell.swap(word, AcqRel);
    } else {
        cell.store(word, Release);
    }
}

#[cfg(not(model))]
static UNTOUCHED: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];
#[cfg(not(model))]
static NOTHING: AtomicU64 = AtomicU64::new(0);

/// Moves the counter, after every claim before `to` was seen filled. If the counter is no longer `from`, it is further
/// on.
#[inline(always)]
fn move_head(counter: &AtomicU64, from: u64, to: u64) {
    // (1) If the counter is elsewhere it is further on, and must not come back.
    let _ = counter.compare_exchange(from, to, AcqRel, Relaxed);
    fault::point("log-moved");
}

/// The slots of a log. (It is passed in registers, also to rarely called functions.)
#[derive(Clone, Copy)]
struct Ring<'a>(&'a [AtomicU64]);

impl<'a> Ring<'a> {
    #[inline(always)]
    fn slot(&self, ticket: u64) -> &'a AtomicU64 {
        debug_assert!(self.0.len().is_power_of_two());
        // SAFETY: a ring is never empty, and the mask keeps the index below its length.
        unsafe { self.0.get_unchecked(ticket as usize & (self.0.len() - 1)) }
    }

    /// Returns the lap bit of a ticket's own word.
    #[inline(always)]
    fn lap(&self, ticket: u64) -> u64 {
        u64::from(ticket & self.0.len() as u64 == 0)
    }

    #[inline(always)]
    fn word(&self, ticket: u64, field: u64, state: u64, weight: u64) -> u64 {
        field << STAMP | state << STATE | (weight - 1) << WEIGHT | self.lap(ticket) << LAP
    }

    /// Returns the number of slots of a claim: no start is heavier than the ring.
    #[inline(always)]
    fn slots_of(&self, word: u64) -> u64 {
        weight_of(word).min(self.0.len() as u64)
    }

    #[inline(always)]
    fn is_claimed(&self, ticket: u64, word: u64) -> bool {
        (word >> LAP) & 1 == self.lap(ticket)
    }

    /// Fills the other slots of the claim `word` at `ticket`. Any caller may do so, at any time and any number of
    /// times. `false`: the claim belongs to a lap that is over.
    #[inline(never)]
    fn fill(self, ticket: u64, word: u64) -> bool {
        let slots = self.slots_of(word);
        for i in 1..slots {
            let other = ticket.wrapping_add(i);
            let slot = self.slot(other);
            let filled = self.word(other, word >> STAMP, PART, slots - i);
            loop {
                let was = slot.load(Acquire);
                // Only while the claim stands does `was` belong to its lap or to the one before.
                let is_over = (self.slot(ticket).load(Acquire) ^ word) & !(ANY_STATE | SEAL) != 0;
                if is_over {
                    return false;
                }
                // (4) If this caller is late by a lap, the slot holds another word, and this fails.
                if self.is_claimed(other, was) || slot.compare_exchange(was, filled, AcqRel, Relaxed).is_ok() {
                    break;
                }
            }
            fault::point("log-filled");
        }
        true
    }

    /// Finds the first unclaimed ticket, also past unfilled claims.
    #[inline(never)]
    fn follow(self, counter: &AtomicU64) -> Tail {
        'again: loop {
            let head = counter.load(Acquire);
            let mut ticket = head;
            loop {
                let word = self.slot(ticket).load(Acquire);
                if !self.is_claimed(ticket, word) {
                    // (2) If the counter had moved, `word` might belong to a later lap.
                    if counter.load(Relaxed) != head {
                        continue 'again;
                    }
                    return Tail { head, ticket, was: word };
                }
                if word & ANY_WEIGHT == 0 {
                    ticket = ticket.wrapping_add(1);
                } else if self.fill(ticket, word) {
                    ticket = ticket.wrapping_add(self.slots_of(word));
                } else {
                    continue 'again;
                }
                if ticket.wrapping_sub(head) >= LAG {
                    // (1) All slots of these claims were filled, or seen filled.
                    move_head(counter, head, ticket);
                    continue 'again;
                }
            }
        }
    }

    /// Returns whether any slot of these tickets belongs to a place that may still start.
    #[cold]
    #[inline(never)]
    fn has_places(self, first: u64, count: u64, now: Tick, base: Tick) -> bool {
        let stamp = |word: u64| (word >> STAMP).wrapping_add(base);
        let is_open = |ticket| {
            let word = self.slot(ticket).load(Acquire);
            state_of(word) == PLACE && stamp(word) >= now
        };
        // Stamps never decrease: if the last place has expired, so have the others.
        let ticket = |i| first.wrapping_add(i);
        stamp(self.slot(ticket(count - 1)).load(Acquire)) >= now && (0..count).rev().map(ticket).any(is_open)
    }
}

impl<'a> Log<'a> {
    /// Returns the log of an unused key. For reading only.
    #[cfg(not(model))]
    pub fn untouched(born: Tick) -> Log<'static> {
        let cell = &NOTHING;
        let [head, cleared, own, logged, life, peak] = [cell; 6];
        Log {
            head,
            cleared,
            own,
            logged,
            ring: &UNTOUCHED,
            whole: 0,
            largest: 0,
            left_out: [cell; 2],
            origins: &[],
            peak,
            life,
            number: 0,
            base: 0,
            born,
        }
    }

    /// Returns the moment from which a word counts.
    #[inline(always)]
    fn stamp(&self, word: u64) -> Tick {
        (word >> STAMP).wrapping_add(self.base)
    }

    /// Checks that these cells still have the intended life. Call this last, before anything that was read is trusted.
    #[inline(always)]
    fn is_alive(&self) -> Result<(), Sealed> {
        if self.life.load(Acquire) == self.number { Ok(()) } else { Err(Sealed) }
    }

    #[inline(always)]
    fn ring(&self) -> Ring<'a> {
        Ring(self.ring)
    }

    #[inline(always)]
    fn slot(&self, ticket: u64) -> &'a AtomicU64 {
        self.ring().slot(ticket)
    }

    #[inline(always)]
    fn word(&self, ticket: u64, field: u64, state: u64, weight: u64) -> u64 {
        self.ring().word(ticket, field, state, weight)
    }

    #[inline(always)]
    fn is_claimed(&self, ticket: u64, word: u64) -> bool {
        self.ring().is_claimed(ticket, word)
    }

    /// Returns the moment from which a past ticket counts. `None`: it was cleared.
    #[inline(always)]
    fn counted_from(&self, ticket: u64, cleared: u64) -> Option<Tick> {
        // Tickets before the first are negative here, and live in untouched slots.
        if cleared != 0 && (ticket as i64) < (cleared as i64).wrapping_sub(1) {
            return None;
        }
        Some(self.stamp(self.slot(ticket).load(Acquire)).max(self.born))
    }

    /// Finds the first unclaimed ticket.
    #[inline(always)]
    fn find_tail(&self) -> Tail {
        let head = self.head.load(Acquire);
        let mask = self.ring.len() as u64 - 1;
        // Most starts weigh 1, and the counter is near and in the same lap. The bits of such a claim:
        let claimed = self.ring().lap(head) << LAP;
        let first = head & mask;
        let end = (first + LAG).min(mask + 1);
        let mut index = first;
        while index != end {
            // SAFETY: it is below the ring's length, as the end is not above it.
            let word = unsafe { self.ring.get_unchecked(index as usize) }.load(Acquire);
            let differs = word ^ claimed;
            if differs & (1 << LAP | ANY_WEIGHT) == 0 {
                index += 1;
                continue;
            }
            // (2) If the counter had moved, `word` might belong to a later lap.
            if differs & 1 << LAP != 0 && self.head.load(Relaxed) == head {
                return Tail { head, ticket: head.wrapping_add(index - first), was: word };
            }
            break;
        }
        self.ring().follow(self.head)
    }

    /// The same, unless the log is sealed.
    #[inline(always)]
    fn tail(&self) -> Result<Tail, Sealed> {
        let tail = self.find_tail();
        if tail.was & SEAL == 0 { Ok(tail) } else { Err(Sealed) }
    }

    /// Returns the moment from which the ticket before `h` counts.
    #[inline(always)]
    fn newest(&self, h: u64) -> Tick {
        // If it was cleared it is the burnt ticket, whose stamp is older than this life.
        self.stamp(self.slot(h.wrapping_sub(1)).load(Acquire)).max(self.born)
    }

    /// Returns the earliest moment at which tickets `h .. h + weight` may start here. In a ring that does not hold the
    /// limit that may be too late: see [`Log::ready_elsewhere`].
    #[inline(always)]
    fn ready<const HOLDS: bool>(&self, h: u64, cleared: u64, ask: &Ask) -> Tick {
        let (last, most) = (h.wrapping_add(ask.weight - 1), self.ring.len() as u64 - 1);
        let limit = |window: &Window| if HOLDS { window.limit } else { window.limit.min(most) };
        let by = |ready: Tick, window: &Window| match self.counted_from(last.wrapping_sub(limit(window)), cleared) {
            Some(from) => ready.max(from.wrapping_add(window.length)),
            None => ready,
        };
        // (Most limits have one window.)
        let [first, others @ ..] = ask.windows else { return ask.gate };
        others.iter().fold(by(ask.gate, first), by)
    }

    /// Returns the earliest moment at which tickets `h .. h + weight` may start in a whole ring, whatever their weight.
    fn ready_elsewhere(&self, h: u64, cleared: u64, ask: &Ask) -> Tick {
        let (last, most) = (h.wrapping_add(ask.weight - 1), self.ring.len() as u64 - 1);
        let from = |ticket: u64| match h.wrapping_sub(ticket) <= most {
            true => self.counted_from(ticket, cleared),
            false if cleared == 0 => Some(self.born),
            // (Small rings 1) It has left all windows, or was left out.
            false => {
                let (units, until) = self.left_out();
                (h.wrapping_sub(most).wrapping_sub(ticket) <= units).then_some(until)
            }
        };
        let starts = ask.windows.iter().filter_map(|w| Some(from(last.wrapping_sub(w.limit))?.wrapping_add(w.length)));
        starts.fold(ask.gate, Tick::max)
    }

    /// Returns how many units were left out of a small ring, and until when they were started.
    fn left_out(&self) -> (u64, Tick) {
        let [units, until] = self.left_out.map(|word| word.load(Acquire));
        if self.is_small() { (units & Forgotten::MANY, until) } else { (0, 0) }
    }

    /// Returns whether all units that a window admits fit into the ring. Then a denial is exact. (It may still be too small
    /// for places, for units beyond the limit, and for the heaviest starts.)
    #[inline(always)]
    pub fn holds(&self) -> bool {
        self.ring.len() as u64 > self.largest
    }

    /// Returns whether a start of this weight fits into the ring. (2)
    #[inline(always)]
    fn fits(&self, weight: u64) -> bool {
        weight + LAG - 1 <= self.ring.len() as u64
    }

    /// Returns whether this is a smaller ring than the policy may need.
    #[inline(always)]
    pub fn is_small(&self) -> bool {
        (self.ring.len() as u64) < self.whole
    }

    /// Returns whether a ring is too small for a claim of tickets `h .. h + weight`, which would overwrite what counts for
    /// the longest window.
    fn is_too_small(&self, h: u64, cleared: u64, (weight, longest): (u64, Tick), now: Now) -> bool {
        let size = self.ring.len() as u64;
        let next = h.wrapping_add(weight).wrapping_sub(size);
        let is_kept = || self.counted_from(next, cleared).is_some_and(|from| from.wrapping_add(longest) > now.floor);
        self.is_small() && (!self.fits(weight) || is_kept())
    }

    /// Returns whether a start or place that is not ready has to be claimed in a larger ring.
    #[cold]
    fn waits_for_space(&self, h: u64, cleared: u64, ask: &Ask, now: Now) -> bool {
        let longest = ask.windows.iter().map(|w| w.length).max().unwrap_or(0);
        self.is_too_small(h, cleared, (ask.weight, longest), now)
    }

    /// Returns whether a start of this weight, or a place of it, may need a larger ring.
    pub fn has_to_grow(&self, weight: u64, longest: Tick, now: Now) -> bool {
        let (h, cleared) = (self.find_tail().ticket, self.cleared.load(Acquire));
        let places = || self.ring().has_places(h, weight + self.spare(), now.floor, self.base);
        self.is_small() && (self.is_too_small(h, cleared, (weight, longest), now) || places())
    }

    /// How many slots, besides its own, have to be free for a place.
    fn spare(&self) -> u64 {
        1 + self.ring.len() as u64 / 8
    }

    /// Returns whether tickets from `h` on would take the slots of earlier places that may still start.
    ///
    /// One more slot has to be free: rewriting a log burns one, and must not drop a place for it, whose exchange would
    /// drop the next. The same number again is reserved for holders whose place is exchanged: they already had one.
    #[inline(always)]
    fn has_places(&self, h: u64, ask: &Ask, now: Now) -> bool {
        let spare = match ask.again {
            true => 1,
            false => self.spare(),
        };
        self.ring().has_places(h, ask.weight + spare, now.floor, self.base)
    }

    /// Returns the number of units that were ever handed out, as far as these cells know: it grows with each claim.
    pub fn position(&self) -> Result<u64, Sealed> {
        self.tail().map(|tail| tail.ticket)
    }

    /// Reads the state, and changes nothing (but may finish another caller's claim).
    pub fn view(&self, ask: &Ask, clock: impl Fn() -> Now) -> Result<View, Sealed> {
        loop {
            let Tail { ticket: h, was, .. } = self.tail()?;
            let now = clock();
            let view = self.view_at(h, ask, now);
            // (3) Then what was read belongs to tickets before `h`.
            if self.slot(h).load(Acquire) == was {
                self.is_alive()?;
                return Ok(view);
            }
        }
    }

    /// Returns the earliest moment for a start, and the time of the reading. In a small ring it may be too late a moment, or
    /// not known.
    #[inline(always)]
    pub fn ready_at(&self, ask: &Ask, clock: impl Fn() -> Now) -> Result<(Tick, Tick), Sealed> {
        if !self.fits(ask.weight) {
            return Err(Sealed);
        }
        loop {
            let Tail { ticket: h, was, .. } = self.tail()?;
            let ready = self.ready::<false>(h, self.cleared.load(Acquire), ask);
            // (3) As in `view`.
            if self.slot(h).load(Acquire) == was {
                self.is_alive()?;
                return Ok((ready, clock().floor));
            }
        }
    }

    #[inline]
    fn view_at(&self, h: u64, ask: &Ask, now: Now) -> View {
        let cleared = self.cleared.load(Acquire);
        let mut remaining = if ask.gate > now.floor { 0 } else { u64::MAX };
        let mut empty = ask.gate;
        for window in ask.windows {
            // An entry that counts from a later moment, such as a start in the past or a place, does not leave the
            // window before now.
            let since = now.floor.saturating_sub(window.length);
            // Stamps never decrease, so the tickets that count are the last of those that are not forgotten. Find how
            // many they are. (Small rings 1: those that the ring has overwritten are not among them.)
            let is_lost = cleared == 0 && self.born > since;
            let known = if cleared == 0 { u64::MAX } else { h.wrapping_sub(cleared - 1) };
            let most = self.ring.len() as u64 - 1;
            let (mut some, mut none) = (if is_lost { window.limit } else { 0 }, window.limit.min(known).min(most) + 1);
            while none > some + 1 {
                let middle = (some + none) / 2;
                let from = self.stamp(self.slot(h.wrapping_sub(middle)).load(Acquire)).max(self.born);
                if from > since { some = middle } else { none = middle }
            }
            // (Small rings 1) What was left out counts no longer than what is in a full ring.
            if !self.holds() && some == most {
                let (left_out, until) = self.left_out();
                some = some.saturating_add(if until > since { left_out } else { 0 });
            }
            remaining = remaining.min(window.limit.saturating_sub(some));
            if let Some(newest) = self.counted_from(h.wrapping_sub(1), cleared) {
                empty = empty.max(newest.saturating_add(window.length));
            }
        }
        // Weight 0 needs no free units.
        let ready = match ask.weight {
            0 => ask.gate,
            _ if self.holds() => self.ready::<true>(h, cleared, ask),
            _ => self.ready_elsewhere(h, cleared, ask),
        };
        View { now: now.floor, ready, remaining, empty }
    }

    /// Starts with a place, once, and gives the rest of its grace back: the start counts from now, or from the stamp of
    /// the start before it if that is later. The new stamp is then part of its identity. `None`: the ticket is no
    /// longer a place, or belongs to another life.
    ///
    /// `now` was read after the place was found to be ready and open; `longest` is the longest window.
    pub fn present(&self, place: StartId, longest: Tick, now: Now) -> Result<Option<Tick>, Sealed> {
        // If these cells have another life by now, the place is there.
        let gone = || self.is_alive().map(|()| None);
        let h = self.tail()?.ticket;
        let Some(ticket) = self.find(place, h) else { return gone() };
        let slot = self.slot(ticket);
        let word = slot.load(Acquire);
        if self.known(ticket, word) != place || state_of(word) != PLACE || !self.is_claimed(ticket, word) {
            return gone();
        }
        // From here on the life need not be checked: words of other lives are larger, so the compare-and-swap fails.
        if word & SEAL != 0 {
            return Err(Sealed);
        }
        // Earlier by at most a window, less a microsecond: see the head of this file. The word before this in the ring
        // may belong to a later lap, whose stamps are no earlier than the place's.
        let before = self.newest(ticket);
        let stamp = now.ceil.max(before).max((place.stamp + 1).saturating_sub(longest)).min(place.stamp);
        let field = stamp.wrapping_sub(self.base);
        if field < word >> STAMP {
            // (4) No later life may write the stamp that is given up. Before the swap, which releases this.
            self.peak.fetch_max(word >> STAMP, AcqRel);
        }
        // (Places 1) The start: of two callers, one finds the state changed.
        match slot.compare_exchange(word, self.word(ticket, field, STARTED, place.weight), AcqRel, Acquire) {
            Ok(_) => {
                for other in ticket + 1..ticket + place.weight {
                    // (Places 4) If this does not happen, that unit counts for longer.
                    let part = |field| self.word(other, field, PART, ticket + place.weight - other);
                    let _ = self.slot(other).compare_exchange(part(word >> STAMP), part(field), AcqRel, Relaxed);
                }
                Ok(Some(stamp))
            }
            Err(now) if now & SEAL != 0 => Err(Sealed),
            Err(_) => gone(),
        }
    }

    /// Returns when a place is ready now. When it was taken, places before it counted from the end of their grace; those that have
    /// started since gave the rest of it back. It may be later than before, if later starts have overwritten these. `None`: it is no
    /// longer a place here, or what it waits for may be forgotten.
    pub fn ready_of(&self, place: StartId, ask: &Ask) -> Result<Option<Tick>, Sealed> {
        let most = ask.windows.iter().map(|window| window.limit).max().unwrap_or(0);
        loop {
            let Tail { ticket: h, was, .. } = self.tail()?;
            let cleared = self.cleared.load(Acquire);
            let is_known = |ticket: u64| {
                let word = self.slot(ticket).load(Acquire);
                let is_place = state_of(word) == PLACE && self.known(ticket, word) == place;
                let oldest = ticket.wrapping_add(place.weight - 1).wrapping_sub(most);
                is_place && (cleared == 0 || oldest as i64 >= cleared as i64 - 1)
            };
            let found = self.find(place, h).filter(|&ticket| is_known(ticket));
            // (A small ring may be overwritten where it looks: then it is later.)
            let ready = found.map(|ticket| match self.holds() {
                true => self.ready::<true>(ticket, cleared, ask),
                false => self.ready_elsewhere(ticket, cleared, ask),
            });
            // (3) Then what was read belongs to tickets before `h`.
            if self.slot(h).load(Acquire) == was {
                self.is_alive()?;
                return Ok(ready);
            }
        }
    }

    /// Returns the ticket of a start here, if it can still be determined.
    #[inline]
    fn find(&self, start: StartId, h: u64) -> Option<u64> {
        let first = self.first();
        let own = self.own.load(Acquire);
        if start.ticket >= own {
            let is_here = start.ticket < h && start.ticket + self.ring.len() as u64 >= h;
            return is_here.then_some(start.ticket);
        }
        (first..own.min(first + self.origins.len() as u64)).find(|ticket| {
            self.origins[(ticket - first) as usize].load(Acquire) == start.ticket
                && self.stamp(self.slot(*ticket).load(Acquire)) == start.stamp
        })
    }

    /// Returns the first ticket that is not forgotten.
    #[inline]
    fn first(&self) -> u64 {
        self.cleared.load(Acquire).saturating_sub(1)
    }

    /// Returns the identity of the start in this word.
    #[inline]
    fn known(&self, ticket: u64, word: u64) -> StartId {
        let first = self.first();
        let is_own = ticket >= self.own.load(Acquire);
        // In another life there may be no such place; then nothing that is read here is trusted.
        let origin =
            || self.origins.get(ticket.wrapping_sub(first) as usize).map_or(u64::MAX, |origin| origin.load(Acquire));
        let ticket = if is_own { ticket } else { origin() };
        StartId { ticket, stamp: self.stamp(word), weight: weight_of(word) }
    }

    /// Returns whether forgetting this log has no visible effect. It must be empty, places included.
    pub fn is_idle(&self, longest: Tick, now: Now) -> bool {
        let h = self.find_tail().ticket;
        self.counted_from(h.wrapping_sub(1), self.cleared.load(Acquire)).is_none_or(|from| from + longest <= now.floor)
    }

    /// Closes the log for good: from here on every call on it returns [`Sealed`]. Sealing again is a no-op.
    pub fn seal(&self) {
        while let Ok(Tail { ticket: h, was, .. }) = self.tail() {
            // (2) The next claim would be of `h`: after this there is none.
            if self.slot(h).compare_exchange(was, was | SEAL, AcqRel, Relaxed).is_ok() {
                break;
            }
        }
        // No caller claims any more, and from here on no place is started with.
        for slot in self.ring {
            let mut word = slot.load(Acquire);
            while state_of(word) == PLACE && word & SEAL == 0 {
                word = slot.compare_exchange(word, word | SEAL, AcqRel, Acquire).unwrap_or_else(|now| now);
            }
        }
    }

    /// Returns whether every caller has to wait until this is written elsewhere: it is sealed, or about to reach its
    /// last stamp.
    pub fn has_to_move(&self, now: Now) -> bool {
        self.is_used_up(now) || self.tail().is_err()
    }

    /// Returns whether the life has reached the end of its time range. Its contents then continue in another life. (A
    /// stamp beyond [`LAST`] before that is a place too far in the future.)
    #[inline(always)]
    fn is_used_up(&self, now: Now) -> bool {
        now.ceil.wrapping_sub(self.base) > LAST - 3 * MAX_TIME
    }

    /// Returns what a sealed log holds that counts at `now`, or will.
    pub fn history(&self, longest: Tick, now: Now) -> History {
        let (h, first, size) = (self.end(), self.first(), self.ring.len() as u64);
        let logged = self.logged.load(Acquire);
        let oldest = first.max(h.saturating_sub(size));
        let mut starts = Vec::new();
        let mut ticket = oldest;
        while ticket < h {
            let word = self.slot(ticket).load(Acquire);
            let StartId { ticket: id, stamp, weight: units } = self.known(ticket, word);
            let stamp = stamp.max(self.born);
            if stamp + longest > now.floor {
                starts.push(Start { stamp, units, state: state_of_start(word), id, is_logged: ticket < logged });
            }
            ticket += units;
        }
        // Of the tickets that the ring has overwritten, the later ones were claimed here, and the others written.
        let mut forgotten = Vec::new();
        if oldest > first && oldest < h {
            let stamp = self.stamp(self.slot(oldest).load(Acquire)).max(self.born);
            let own = self.own.load(Acquire).clamp(first, oldest);
            forgotten.push(Forgotten { stamp, units: oldest - own, is_bounded: true });
            forgotten.push(Forgotten { stamp, units: own - first, is_bounded: false });
        }
        if self.cleared.load(Acquire) == 0 {
            forgotten.push(Forgotten::before(self.born));
        }
        forgotten.retain(|some| some.units > 0 && some.stamp + longest > now.floor);
        History { starts, forgotten, end: h, ..History::default() }
    }

    /// Returns the starts that are not in the ledger yet, and the ticket after the last of them. For callers that may
    /// rewrite the log.
    pub fn unlogged(&self) -> (Vec<Start>, u64) {
        let h = self.find_tail().ticket;
        let mut ticket = self.logged.load(Acquire).max(self.first()).max(h.saturating_sub(self.ring.len() as u64));
        let (stamp, units) = (self.left_out[1].load(Acquire), self.owed());
        let owed = Start { stamp, units, state: SETTLED, id: u64::MAX, is_logged: false };
        let mut starts: Vec<Start> = (units > 0).then_some(owed).into_iter().collect();
        while ticket < h {
            let word = self.slot(ticket).load(Acquire);
            let StartId { ticket: id, stamp, weight: units } = self.known(ticket, word);
            starts.push(Start { stamp, units, state: state_of_start(word), id, is_logged: false });
            ticket += units;
        }
        (starts, h)
    }

    /// Returns how many of the units that were [left out](Log::left_out) the ledger lacks.
    pub fn owed(&self) -> u64 {
        self.left_out().0.min(self.first().saturating_sub(self.logged.load(Acquire)))
    }

    /// Returns the ticket after the last.
    fn end(&self) -> u64 {
        self.find_tail().ticket
    }

    /// Returns the number of units that [`Log::write`] writes.
    pub fn most_written(&self) -> u64 {
        self.ring.len() as u64 - 1
    }

    /// Returns a stamp, as words store it, that is larger than any that the slot of this ticket ever held.
    fn unused_field(&self, ticket: u64) -> u64 {
        (self.slot(ticket).load(Relaxed) >> STAMP).max(self.peak.load(Acquire)) + 1
    }

    /// Returns the first of the tickets after `burnt` for these starts, and how long before now the base of their life
    /// has to lie, at `least`. Then each slot gets a larger word than it ever held: now, or at the first start after the others.
    ///
    /// A life of the same starts at the same slots costs the block a microsecond of its time range. At others it may
    /// cost as much as lies between the oldest start and the newest, and some years of that use the block up. So the
    /// places where an earlier life began are tried, too. The slots in between are burnt.
    fn best_place(&self, burnt: u64, starts: &[Start], now: Now, least: u64) -> (u64, u64) {
        let field = |ticket: u64| self.slot(ticket).load(Relaxed) >> STAMP;
        let with_reach = |first: u64| {
            let ages = starts.iter().flat_map(|start| (0..start.units).map(|_| now.ceil.saturating_sub(start.stamp)));
            let reaches = (first..).zip(ages).map(|(ticket, age)| self.unused_field(ticket).saturating_add(age));
            (first, reaches.fold(least, u64::max))
        };
        let next = with_reach(burnt + 1);
        if next.1 == least {
            return next;
        }
        let units: u64 = starts.iter().map(|start| start.units).sum();
        let free = burnt + 2..=burnt + self.ring.len() as u64 - units;
        let began = free.filter(|&ticket| field(ticket) < field(ticket - 1)).take(PLACES_TRIED);
        began.map(with_reach).fold(next, |best, place| if place.1 < best.1 { place } else { best })
    }

    /// Writes a history, or the newest part that fits, into cells that only the caller uses: zeroed cells, or sealed
    /// cells of an earlier life. They must be [`CLOSED`]. Returns the base with which their next life begins; the
    /// caller publishes it. `None`: these cells had too many lives.
    pub fn write(&self, history: &History, now: Now) -> Option<Tick> {
        let size = self.ring.len() as u64;
        // A start that was only counted before may be heavier than a single start can be here.
        let split = |start: &Start| {
            let (start, parts) = (*start, start.units.div_ceil(MAX));
            (0..parts).map(move |i| Start { units: MAX.min(start.units - i * MAX), ..start })
        };
        // The newest starts; of the last that fits, as much as fits.
        let mut free = self.most_written();
        let mut starts: Vec<Start> = history
            .starts
            .iter()
            .flat_map(split)
            .rev()
            .map_while(|start| {
                let units = start.units.min(free);
                free -= units;
                (units > 0).then_some(Start { units, ..start })
            })
            .collect();
        starts.reverse();
        let unlogged =
            |starts: &[Start]| starts.iter().filter(|some| !some.is_logged).map(|some| some.units).sum::<u64>();
        // These are older than all that is written. As many tickets precede the first: see `Log::owed`.
        let owed = if self.is_small() { unlogged(&history.starts).saturating_sub(unlogged(&starts)) } else { 0 };
        // The same slots and parities come again every two laps.
        let end = self.end();
        let burnt = end + history.end.max(owed).saturating_sub(end).div_ceil(2 * size) * 2 * size;
        let fields = self.ring.iter().map(|slot| slot.load(Relaxed) >> STAMP);
        let highest = fields.fold(self.peak.load(Acquire), u64::max);
        let (first, reach) = self.best_place(burnt, &starts, now, highest + 2);
        let base = now.ceil.wrapping_sub(reach);
        let newest = starts.last().map_or(now.ceil, |start| start.stamp);
        if reach > LAST - 4 * MAX_TIME || newest.wrapping_sub(base) > LAST - MAX_TIME {
            return None;
        }
        // Each store releases: a reader of one sees those before it, and that the cells were closed. The sealed ticket
        // comes first: reopened, it would be what it was before.
        for ticket in burnt..first {
            // The last of them is read as the one before the first start: its stamp is at least 0, and before now.
            let field = self.unused_field(ticket).max(reach.saturating_sub(now.ceil));
            put(self.slot(ticket), self.word(ticket, field, SETTLED, 1));
        }
        for slot in self.ring {
            let word = slot.load(Relaxed);
            if word & SEAL != 0 {
                put(slot, word & !(SEAL | ANY_STATE) | SETTLED << STATE);
            }
        }
        let mut next = first;
        let mut logged = (owed > 0).then(|| first.saturating_sub(owed));
        for start in starts {
            if !start.is_logged {
                logged.get_or_insert(next);
            }
            let field = start.stamp.wrapping_sub(base);
            for (ticket, units) in (next..).zip((1..=start.units).rev()) {
                let state = if ticket == next { start.state } else { PART };
                put(self.slot(ticket), self.word(ticket, field, state, units));
                if let Some(origin) = self.origins.get((ticket - first) as usize) {
                    origin.store(if ticket == next { start.id } else { u64::MAX }, Release);
                }
            }
            next += start.units;
        }
        self.cleared.store(first + 1, Release);
        self.own.store(next, Release);
        self.logged.store(logged.unwrap_or(next), Release);
        put(self.head, next);
        Some(base)
    }

    /// Denies the request for ticket `h`, if its slot still holds the word that was read.
    #[inline(always)]
    fn deny(&self, h: u64, was: u64, now: Now, ready: Tick) -> Option<Result<Answer, Sealed>> {
        // (3) A denial writes nothing that would prove it, so it reads slot `h` once more.
        let is_proven = self.slot(h).load(Acquire) == was;
        is_proven.then(|| self.is_alive().map(|()| Answer { now, ready, taken: None }))
    }

    /// Decides, unless another caller is faster: see [`Algorithm::decide`].
    #[inline(always)]
    pub fn try_decide<const LOOK: bool>(
        &self,
        ask: &Ask,
        clock: impl Fn() -> Now,
        view: &mut View,
    ) -> Option<Result<Answer, Sealed>> {
        match self.holds() {
            true => self.try_in::<LOOK, true>(ask, clock, view),
            false => self.try_in::<LOOK, false>(ask, clock, view),
        }
    }

    /// The same, where it is known whether the ring [holds](Log::holds) the limit.
    #[inline(always)]
    pub fn try_in<const LOOK: bool, const HOLDS: bool>(
        &self,
        ask: &Ask,
        clock: impl Fn() -> Now,
        view: &mut View,
    ) -> Option<Result<Answer, Sealed>> {
        let Tail { head, ticket: h, was } = self.find_tail();
        if was & SEAL != 0 {
            return Some(Err(Sealed));
        }
        fault::point("log-read");
        let cleared = self.cleared.load(Acquire);
        // A start that does not fit would read slots of later tickets.
        let mut ready = if HOLDS || self.fits(ask.weight) { self.ready::<HOLDS>(h, cleared, ask) } else { Tick::MAX };
        // (5) After these slots, so that no stamp that was read is later than this.
        let now = clock();
        fault::point("log-clock");
        if LOOK {
            *view = self.view_at(h, ask, now);
        }
        let is_ready = ready <= now.floor;
        if !HOLDS && !is_ready {
            ready = self.ready_elsewhere(h, cleared, ask);
        }
        let must_wait = ready > now.floor && !ask.force;
        if must_wait && ready - now.floor > ask.patience {
            return self.deny(h, was, now, ready);
        }
        if !is_ready && self.is_small() && self.waits_for_space(h, cleared, ask, now) {
            return Some(Err(Sealed));
        }
        let is_place = must_wait || ask.reserve;
        let stamp = if is_place { ready.max(now.ceil).saturating_add(ask.grace) } else { now.ceil };
        let stamp = stamp.max(self.newest(h));
        // (4) No slot ever holds the same word twice.
        let last = match ask.weight {
            1 => was,
            // (2) What `ready` has read is then another ticket's.
            weight if !self.fits(weight) => return Some(Err(Sealed)),
            weight => self.slot(h.wrapping_add(weight - 1)).load(Acquire),
        };
        let next = (last >> STAMP) + 1;
        let field = stamp.wrapping_sub(self.base).max(next);
        if field > LAST {
            return if self.is_used_up(now) { Some(Err(Sealed)) } else { self.deny(h, was, now, ready) };
        }
        if is_place && self.has_places(h, ask, now) {
            return if self.is_small() { Some(Err(Sealed)) } else { self.deny(h, was, now, ready) };
        }
        if self.is_alive().is_err() {
            return Some(Err(Sealed));
        }
        let stamp = field.wrapping_add(self.base);
        let word = self.word(h, field, if is_place { PLACE } else { STARTED }, ask.weight);
        // (3) The admission. An unchanged slot `h` proves all that was read.
        self.slot(h).compare_exchange(was, word, AcqRel, Relaxed).ok()?;
        fault::point("log-claimed");
        let filled = ask.weight == 1 || self.ring().fill(h, word);
        let end = h.wrapping_add(ask.weight);
        // (1) Only past slots that are filled; and rarely, so that racing callers do not contend for the counter.
        if filled && end.wrapping_sub(head) >= LAG {
            move_head(self.head, head, end);
        }
        if LOOK {
            view.remaining = view.remaining.saturating_sub(ask.weight);
            let longest = ask.windows.iter().map(|w| w.length).max().unwrap_or(0);
            view.empty = view.empty.max(stamp.saturating_add(longest));
        }
        let taken = Some(Taken { ticket: h, end, stamp, ahead: 0, stage: Stage::of(is_place) });
        Some(Ok(Answer { now, ready, taken }))
    }
}

impl Algorithm for Log<'_> {
    #[inline(always)]
    fn decide<const LOOK: bool>(&self, ask: &Ask, clock: impl Fn() -> Now, view: &mut View) -> Result<Answer, Sealed> {
        loop {
            if let Some(answer) = self.try_decide::<LOOK>(ask, &clock, view) {
                return answer;
            }
        }
    }
}

#[cfg(all(test, model))]
#[path = "log_models.rs"]
pub(crate) mod models;
#[cfg(all(test, not(model)))]
#[path = "log_tests.rs"]
mod tests;
