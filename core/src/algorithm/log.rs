//! The sliding log: exact, weighted, over one or several windows, lock-free, and safe against whoever dies anywhere.
//!
//! # Shape
//!
//! A ring of `C` slots and a counter of *tickets*. Ticket `h` lives in slot `h mod C`; a start of weight `k` takes `k`
//! consecutive tickets. A slot is one 64-bit word:
//!
//! ```text
//! 63           16 15   14 13          2  1       0
//! [ stamp − base ][ state ][ weight − 1 ][ lap ][ seal ]
//! ```
//!
//! * `stamp`: when the start counts from, never less than the ticket's before it. 48 bits of µs are 8 years.
//! * `state`: has it started, is it a place for a start, or was it settled?
//! * `weight − 1`: how many tickets follow that belong to the same start.
//! * `lap`: the parity of the lap in which the slot was written, chosen so that a zeroed slot reads as "written in the
//!   lap before the first": zeroed memory is an empty log, and initialisation cannot race.
//! * `seal`: this ring is closed for good, its contents are being written elsewhere.
//!
//! # Deciding
//!
//! With `n` starts allowed per window `w`, ticket `t` may start once ticket `t − n` is `w` old. So a decision finds the
//! first unclaimed ticket `h` ([`Log::tail`]), reads the slots of the tickets `h + k − 1 − n`, and one compare-and-swap
//! on slot `h` is the whole admission: the point at which it happens, and the only one at which dying matters. Before it
//! nothing was written; after it the start is in the log, and whoever comes next fills its other slots ([`Ring::fill`]),
//! any number of times, by anyone.
//!
//! The counter `head` only says where to begin to look: it stands at most [`LAG`] tickets before `h`, so that most
//! admissions write nothing but their own slot, and processes that race do not fight over the counter as well.
//!
//! # Why it is right
//!
//! 1. *The counter never runs ahead.* It moves over a ticket only after all slots of its claim were seen filled, and it
//!    never goes back.
//! 2. *`h` really is the first unclaimed ticket.* Nobody claims a ticket `LAG` or more beyond the counter. So while the
//!    counter has not moved, no slot looked at can be of a later lap (this needs `C ≥ LAG + k − 1`, and no start weighs more than
//!    `n`), and a slot's lap bit tells whether it is claimed.
//! 3. *What was read belongs to tickets before `h`.* A decision at `h` looks at tickets from `h − n` on. Their slots are
//!    overwritten at the earliest by ticket `h − n + C`, which is beyond `h` (this needs `C > n`): so `h` was claimed before
//!    that, by the same start or an earlier one. So if slot `h` still holds what was read first, everything read in between is
//!    valid: the admission's compare-and-swap proves it, a denial reads slot `h` once more. And a claim overwrites no ticket that
//!    a later decision looks at.
//! 4. *Words do not repeat.* Stamps never decrease along tickets, and a slot's next word always carries a later one than
//!    it has (where starts are recorded beyond the limit, by a microsecond each lap). So a compare-and-swap that was held
//!    up for a lap fails. Only presenting a place makes a stamp earlier, from `S` to `S'`, by less than the longest window
//!    `w`. The word with `S` does not come back: it says that this is a place, or part of one, which is never recorded
//!    beyond the limit. In the same slot with the same parity it would be two laps later, so all tickets of a whole limit
//!    lie between, and its stamp is at least `S' + w`, which is more than `S`. Across lives [`Log::peak`] sees to it.
//! 5. *Starts keep their distance.* A start happens no earlier than `ready` and no later than `stamp`; the start `n`
//!    tickets later has `ready ≥ stamp + w`. So no half-open window of length `w` ever holds more than `n` starts.
//!
//! A start in the future (a *place*) is a stamp in the future, and a state that says that it has not started yet:
//! presenting it is one compare-and-swap on that state, so it starts once. Until then it counts from the end of its
//! grace, so that waking up late within it cannot break the limit. When it starts it gives the rest back: its stamp
//! becomes the time, or the stamp before it if that is later. So stamps still never decrease along tickets, the start is
//! still no later than its stamp, and whoever computed `ready` from the larger stamp comes later than it has to, no
//! earlier. A heavy start's other slots follow one by one; where somebody dies meanwhile they count for longer. As its
//! stamp is a part of what a start is known by, a copy of the place does not lead to the start any more.
//!
//! # Lives
//!
//! Everything rare goes one way: the ring is *sealed*, what counts is read from it ([`Log::history`]), edited, and written
//! into other cells ([`Log::write`]), which are then found in its place. The old cells are used again, for this key or
//! another, in another *life*: whoever stalled in an earlier one must not act on it.
//!
//! * Each life of the same cells has larger words than all before it, because its stamps are counted from another `base`:
//!   so no word is ever repeated, and a compare-and-swap from an earlier life fails.
//! * Tickets go on, so a counter that was read in an earlier life is never the counter again. The ticket that was sealed
//!   is burnt: its slot changes, and tickets before [`Log::cleared`] are forgotten.
//! * Each life has a number of its own. Everybody reads it first and looks at the end, before believing anything, whether
//!   it is still the same.
//!
//! # Orderings
//!
//! * Slots are read with `Acquire` and changed with `AcqRel`. So who reads a ticket's word sees what its claimant saw: the
//!   claims before it, filled. That is what 1 to 3 need: a word read at `h − n` belongs to a ticket before `h`.
//! * The counter is moved with `AcqRel` after its claims were seen filled, and read with `Acquire` before any slot. The second
//!   look at it (`Relaxed`) comes after an `Acquire` load of the slot: a slot of a later lap was written by somebody who
//!   had seen the counter moved, so it is not read as it was before.
//! * `cleared`, `own`, `logged`, `origins` and `base` are stored (`Release`) while `life` is [`CLOSED`], and before the words
//!   of the new life. Who reads something of the new life therefore finds another `life` in the end ([`Log::is_alive`],
//!   `Acquire`, after all other loads, which acquire too, so that it cannot move before them).
//! * `peak` is raised before the compare-and-swap that makes it necessary, which releases it to [`Log::seal`].
//! * A failed compare-and-swap is `Relaxed` where its answer is not looked at, else `Acquire`.
//! * `write` reads the ring `Relaxed`: its caller has sealed it, or holds the lock under which it was.
//!
//! Source: the ring with a claim word per slot follows the bounded queues of Vyukov and of crossbeam's `ArrayQueue`;
//! helping a dead claimant follows Harris, Fraser and Pratt, "A practical multi-word compare-and-swap operation" (2002).

use super::{Algorithm, History, Sealed, Start};
use crate::atomic::{AtomicU64, *};
use crate::fault;
use crate::time::{LONGEST, Now, Tick};

const SEAL: u64 = 1;
const LAP: u32 = 1;
const WEIGHT: u32 = 2;
const STATE: u32 = 14;
const STAMP: u32 = 16;

/// The start has happened.
pub(crate) const STARTED: u64 = 0;
/// It may happen once, later.
pub(crate) const PLACE: u64 = 1;
/// It has happened, and what it cost is settled.
pub(crate) const SETTLED: u64 = 2;
/// Not the first ticket of its start.
const PART: u64 = 3;
const ANY_STATE: u64 = 3 << STATE;
const ANY_WEIGHT: u64 = (MOST - 1) << WEIGHT;

/// The most units that one start may take, and the largest limit that the log keeps start by start.
pub(crate) const MOST: u64 = 1 << (STATE - WEIGHT);

/// The last stamp that a slot can hold, from its base on.
const LAST: Tick = (1 << (64 - STAMP)) - 1;

/// The number of no life: the cells are being written.
pub(crate) const CLOSED: u64 = u64::MAX;

/// How far the counter may stay behind: a cache line of slots. (The model checker's rings are smaller.)
const LAG: u64 = if cfg!(model) { 2 } else { 8 };

/// At most `limit` units in any `length` ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub limit: u64,
    pub length: Tick,
}

/// How many slots a ring has for the largest `limit` of its windows: so many units may count, and as many may be owed.
pub(crate) fn capacity(limit: u64) -> u64 {
    limit.clamp(8, 1 << 32).saturating_mul(2).next_power_of_two()
}

/// One key's log, in cells that live elsewhere.
#[derive(Clone, Copy)]
pub(crate) struct Log<'a> {
    /// A ticket at or shortly before the first that is unclaimed.
    pub head: &'a AtomicU64,
    /// Tickets before `cleared − 1` are forgotten (0: none were).
    pub cleared: &'a AtomicU64,
    /// The first ticket that was claimed here; those before it were written by [`Log::write`].
    pub own: &'a AtomicU64,
    /// The first ticket that is not in the ledger yet.
    pub logged: &'a AtomicU64,
    /// Never empty: their number is a power of two.
    pub ring: &'a [AtomicU64],
    /// The tickets under which the starts that [`Log::write`] wrote were claimed: as many as `ring`, or none.
    pub origins: &'a [AtomicU64],
    /// No stamp that was ever made earlier, in any life of these cells, was larger than this before, as words have it.
    pub peak: &'a AtomicU64,
    /// The number of the life that these cells have.
    pub life: &'a AtomicU64,
    /// The one that is meant. Not [`CLOSED`], but for [`Log::write`].
    pub number: u64,
    /// What its stamps are counted from, read after the number.
    pub base: Tick,
    /// What an untouched slot counts as: 0 in a new log, the moment of the loss where an earlier state was lost.
    pub born: Tick,
}

/// What is asked of the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub windows: &'a [Window],
    pub weight: u64,
    /// Nobody starts before this.
    pub gate: Tick,
    /// How far in the future the start may lie.
    pub patience: Tick,
    /// How long after `ready` a start that had to wait may happen.
    pub grace: Tick,
    /// Take a place, also if there is no need to wait.
    pub reserve: bool,
    /// Record the start whether there is room or not.
    pub force: bool,
    /// It had a place already: queues have room that is only for those.
    pub again: bool,
}

impl<'a> Ask<'a> {
    /// A start now or not at all.
    #[inline(always)]
    pub fn now(windows: &'a [Window], weight: u64, gate: Tick) -> Self {
        Ask { windows, weight, gate, patience: 0, grace: 0, reserve: false, force: false, again: false }
    }
}

/// What the log answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    /// By what time it was decided.
    pub now: Now,
    /// The earliest moment for the start, gate included. In the past, or now, if there is no need to wait.
    pub ready: Tick,
    /// The start, if it was recorded: it may happen from `ready` on. `None`: there is no room before the caller's
    /// patience ends, and nothing was written.
    pub taken: Option<Taken>,
}

/// A start that is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    /// What it is known by: a ticket, or where starts are only counted, an era.
    pub ticket: u64,
    /// How far the ledger has to be to have it.
    pub end: u64,
    /// From when on it counts, and so the last moment at which it may happen.
    pub stamp: Tick,
    /// What a bucket wants to know when it is taken back: see [`Bucket::take_back`](super::bucket::Bucket). Else 0.
    pub ahead: u64,
    pub stage: Stage,
}

impl Taken {
    /// Has it not started, but may? See [`Log::present`].
    #[inline(always)]
    pub fn is_place(&self) -> bool {
        self.stage == Stage::Place
    }
}

/// Is it a start already? (A whole word: answers are copied, and a copy of parts of words waits for those that wrote them.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Stage {
    Start,
    Place,
}

impl Stage {
    #[inline(always)]
    pub fn of(is_place: bool) -> Stage {
        if is_place { Stage::Place } else { Stage::Start }
    }
}

/// A start as whoever took it knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    pub ticket: u64,
    pub stamp: Tick,
    pub weight: u64,
}

/// What the log holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct View {
    /// By what time.
    pub now: Tick,
    /// The earliest moment for the start that was asked about, gate included.
    pub ready: Tick,
    /// The heaviest start that would be admitted now.
    pub remaining: u64,
    /// When nothing counts any more.
    pub empty: Tick,
}

/// Where the log ends.
struct Tail {
    /// What the counter was.
    head: u64,
    /// The first unclaimed ticket.
    ticket: u64,
    /// What is in its slot: its own lap's words come later.
    was: u64,
}

fn weight_of(word: u64) -> u64 {
    ((word >> WEIGHT) & (MOST - 1)) + 1
}

fn state_of(word: u64) -> u64 {
    (word & ANY_STATE) >> STATE
}

/// The state of the start that this word belongs to, if its first ticket is not known any more.
fn state_of_start(word: u64) -> u64 {
    if state_of(word) == PART { STARTED } else { state_of(word) }
}

/// Writes a cell that a stalled caller of an earlier life may still try to change, in vain.
pub(super) fn put(cell: &AtomicU64, word: u64) {
    if cfg!(model) {
        // loom may order a store before a compare-and-swap that comes later and read both; an exchange it orders.
        cell.swap(word, AcqRel);
    } else {
        cell.store(word, Release);
    }
}

#[cfg(not(model))]
static UNTOUCHED: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];
#[cfg(not(model))]
static NOTHING: AtomicU64 = AtomicU64::new(0);

/// Every claim before `to` was seen filled. If `from` is not the counter any more, it is further on.
#[inline(always)]
fn move_head(counter: &AtomicU64, from: u64, to: u64) {
    let _ = counter.compare_exchange(from, to, AcqRel, Relaxed);
    fault::point("log-moved");
}

/// The slots of a log. (It is passed in registers, also to what is rarely called.)
#[derive(Clone, Copy)]
struct Ring<'a>(&'a [AtomicU64]);

impl<'a> Ring<'a> {
    #[inline(always)]
    fn slot(&self, ticket: u64) -> &'a AtomicU64 {
        debug_assert!(self.0.len().is_power_of_two());
        // SAFETY: a ring is never empty, and the mask keeps the index below its length.
        unsafe { self.0.get_unchecked(ticket as usize & (self.0.len() - 1)) }
    }

    /// The lap bit of a ticket's own word.
    #[inline(always)]
    fn lap(&self, ticket: u64) -> u64 {
        u64::from(ticket & self.0.len() as u64 == 0)
    }

    #[inline(always)]
    fn word(&self, ticket: u64, field: u64, state: u64, weight: u64) -> u64 {
        field << STAMP | state << STATE | (weight - 1) << WEIGHT | self.lap(ticket) << LAP
    }

    /// How many slots a claim has: no start is heavier than the ring.
    #[inline(always)]
    fn slots_of(&self, word: u64) -> u64 {
        weight_of(word).min(self.0.len() as u64)
    }

    #[inline(always)]
    fn is_claimed(&self, ticket: u64, word: u64) -> bool {
        (word >> LAP) & 1 == self.lap(ticket)
    }

    /// Fills the other slots of the claim `word` at `ticket`: anyone may, at any time and any number of times.
    /// `false`: the claim is of a lap that is over.
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
                if is_over && !fault::planted("late help") {
                    return false;
                }
                if self.is_claimed(other, was) || slot.compare_exchange(was, filled, AcqRel, Relaxed).is_ok() {
                    break;
                }
            }
            fault::point("log-filled");
        }
        true
    }

    /// Finds the first unclaimed ticket, whatever is in the way.
    #[inline(never)]
    fn follow(self, counter: &AtomicU64) -> Tail {
        'again: loop {
            let head = counter.load(Acquire);
            let mut ticket = head;
            loop {
                let word = self.slot(ticket).load(Acquire);
                if !self.is_claimed(ticket, word) {
                    if counter.load(Relaxed) != head && !fault::planted("stale lap") {
                        continue 'again;
                    }
                    return Tail { head, ticket, was: word };
                }
                if word & ANY_WEIGHT == 0 {
                    ticket = ticket.wrapping_add(1);
                } else if fault::planted("no help") || self.fill(ticket, word) {
                    ticket = ticket.wrapping_add(self.slots_of(word));
                } else {
                    continue 'again;
                }
                if ticket.wrapping_sub(head) >= LAG {
                    move_head(counter, head, ticket);
                    continue 'again;
                }
            }
        }
    }

    /// Is any slot of so many tickets a place's that may still start?
    #[cold]
    #[inline(never)]
    fn has_places(self, first: u64, count: u64, now: Tick, base: Tick) -> bool {
        let stamp = |word: u64| (word >> STAMP).wrapping_add(base);
        let is_open = |ticket| {
            let word = self.slot(ticket).load(Acquire);
            state_of(word) == PLACE && stamp(word) >= now
        };
        // Stamps never decrease: if the last of them is over, so are the others.
        let ticket = |i| first.wrapping_add(i);
        stamp(self.slot(ticket(count - 1)).load(Acquire)) >= now && (0..count).rev().map(ticket).any(is_open)
    }
}

impl<'a> Log<'a> {
    /// The log of a key that nobody has used. Only to look at.
    #[cfg(not(model))]
    pub fn untouched(born: Tick) -> Log<'static> {
        let cell = &NOTHING;
        let [head, cleared, own, logged, life, peak] = [cell; 6];
        Log { head, cleared, own, logged, ring: &UNTOUCHED, origins: &[], peak, life, number: 0, base: 0, born }
    }

    /// When a word counts from.
    #[inline(always)]
    fn stamp(&self, word: u64) -> Tick {
        (word >> STAMP).wrapping_add(self.base)
    }

    /// Do these cells still have the life that is meant? To be asked last, before anything that was read is believed.
    #[inline(always)]
    fn is_alive(&self) -> Result<(), Sealed> {
        if self.life.load(Acquire) == self.number || fault::planted("blind life") { Ok(()) } else { Err(Sealed) }
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

    /// From when on a ticket in the past counts. `None`: it was cleared.
    #[inline(always)]
    fn counted_from(&self, ticket: u64, cleared: u64) -> Option<Tick> {
        // Tickets before the first are negative here, and live in slots that nobody has touched.
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
        // Most weigh 1, and the counter is near and in the same lap. What is to be seen of such a claim:
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
            // Had the counter moved, `word` might be of a later lap.
            if differs & 1 << LAP != 0 && (self.head.load(Relaxed) == head || fault::planted("stale lap")) {
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

    /// When the ticket before `h` counts from.
    #[inline(always)]
    fn newest(&self, h: u64) -> Tick {
        // If it was cleared it is the ticket that was burnt, whose stamp is older than this life.
        self.stamp(self.slot(h.wrapping_sub(1)).load(Acquire)).max(self.born)
    }

    /// The earliest moment at which tickets `h .. h + weight` may start.
    #[inline(always)]
    fn ready(&self, h: u64, cleared: u64, ask: &Ask) -> Tick {
        let last = h.wrapping_add(ask.weight - 1);
        let by = |ready: Tick, window: &Window| match self.counted_from(last.wrapping_sub(window.limit), cleared) {
            Some(from) => ready.max(from.wrapping_add(window.length)),
            None => ready,
        };
        // (Most have one window.)
        let [first, others @ ..] = ask.windows else { return ask.gate };
        others.iter().fold(by(ask.gate, first), by)
    }

    /// Would tickets from `h` on take the slots of places that may still start? They were taken before.
    ///
    /// One slot more has to be free: a log that is written anew burns one, and must not drop a place for it, whose exchange
    /// would drop the next. And so many more are for those whose place is exchanged: they had one already.
    #[inline(always)]
    fn has_places(&self, h: u64, ask: &Ask, now: Now) -> bool {
        let spare = match ask.again {
            _ if fault::planted("no spare slot") => 0,
            true => 1,
            false => 1 + self.ring.len() as u64 / 8,
        };
        self.ring().has_places(h, ask.weight + spare, now.floor, self.base)
    }

    /// Looks, and changes nothing (but may finish somebody else's claim).
    pub fn view(&self, ask: &Ask, clock: impl Fn() -> Now) -> Result<View, Sealed> {
        loop {
            let Tail { ticket: h, was, .. } = self.tail()?;
            let now = clock();
            let view = self.view_at(h, ask, now);
            if self.slot(h).load(Acquire) == was || fault::planted("unproven view") {
                self.is_alive()?;
                return Ok(view);
            }
        }
    }

    /// The earliest moment for a start, and a time.
    #[inline(always)]
    pub fn ready_at(&self, ask: &Ask, clock: impl Fn() -> Now) -> Result<(Tick, Tick), Sealed> {
        loop {
            let Tail { ticket: h, was, .. } = self.tail()?;
            let ready = self.ready(h, self.cleared.load(Acquire), ask);
            if self.slot(h).load(Acquire) == was {
                self.is_alive()?;
                return Ok((ready, clock().floor));
            }
        }
    }

    fn view_at(&self, h: u64, ask: &Ask, now: Now) -> View {
        let cleared = self.cleared.load(Acquire);
        let mut remaining = if ask.gate > now.floor { 0 } else { u64::MAX };
        let mut empty = ask.gate;
        for window in ask.windows {
            // What counts from later than this, a start in the past or a place, does not leave the window before now.
            let since = now.floor.saturating_sub(window.length);
            // Stamps never decrease, so the live tickets are the last ones, of those that are not forgotten: find how many.
            let known = if cleared == 0 { u64::MAX } else { h.wrapping_sub(cleared - 1) };
            let (mut some, mut none) = (0, window.limit.min(known) + 1);
            while none - some > 1 {
                let middle = (some + none) / 2;
                let from = self.stamp(self.slot(h.wrapping_sub(middle)).load(Acquire)).max(self.born);
                if from > since { some = middle } else { none = middle }
            }
            remaining = remaining.min(window.limit.saturating_sub(some));
            if let Some(newest) = self.counted_from(h.wrapping_sub(1), cleared) {
                empty = empty.max(newest.saturating_add(window.length));
            }
        }
        // Nothing at all needs no room.
        let ready = if ask.weight == 0 { ask.gate } else { self.ready(h, cleared, ask) };
        View { now: now.floor, ready, remaining, empty }
    }

    /// Starts with a place, once, and gives the rest of its grace back: the start counts from now on, or from the stamp of
    /// the start before it if that is later. By the stamp that it has then it is known from here on. `None`: it is not there
    /// as a place any more, or in another life.
    ///
    /// `now` was read after the place was found to be ready and open; `longest` is the longest window.
    pub fn present(&self, place: Known, longest: Tick, now: Now) -> Result<Option<Tick>, Sealed> {
        // If these cells have another life by now, it is there.
        let gone = || if fault::planted("gone in any life") { Ok(None) } else { self.is_alive().map(|()| None) };
        let h = self.tail()?.ticket;
        let Some(ticket) = self.find(place, h) else { return gone() };
        let slot = self.slot(ticket);
        let word = slot.load(Acquire);
        if self.known(ticket, word) != place || state_of(word) != PLACE || !self.is_claimed(ticket, word) {
            return gone();
        }
        // From here on its own life is not asked about: words of others are larger, so the compare-and-swap fails.
        if word & SEAL != 0 {
            return Err(Sealed);
        }
        // At most by a window, less a microsecond: see the head of this file. What is before this in the ring may be a
        // later lap's, whose stamps are no earlier than the place's.
        let before = self.newest(ticket);
        let stamp = now.ceil.max(before).max((place.stamp + 1).saturating_sub(longest)).min(place.stamp);
        let field = stamp.wrapping_sub(self.base);
        if field < word >> STAMP && !fault::planted("forgotten peak") {
            self.peak.fetch_max(word >> STAMP, AcqRel);
        }
        match slot.compare_exchange(word, self.word(ticket, field, STARTED, place.weight), AcqRel, Acquire) {
            Ok(_) => {
                for other in ticket + 1..ticket + place.weight {
                    // If this does not happen, that unit counts for longer.
                    let part = |field| self.word(other, field, PART, ticket + place.weight - other);
                    let _ = self.slot(other).compare_exchange(part(word >> STAMP), part(field), AcqRel, Relaxed);
                }
                Ok(Some(stamp))
            }
            Err(now) if now & SEAL != 0 => Err(Sealed),
            Err(_) => gone(),
        }
    }

    /// Under which ticket a start is here, if it can still be told.
    fn find(&self, start: Known, h: u64) -> Option<u64> {
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

    /// The first ticket that is not forgotten.
    fn first(&self) -> u64 {
        self.cleared.load(Acquire).saturating_sub(1)
    }

    /// What whoever took the start in this word knows of it.
    fn known(&self, ticket: u64, word: u64) -> Known {
        let first = self.first();
        let is_own = ticket >= self.own.load(Acquire);
        // In another life there may be no such place; then nothing that is read here is believed.
        let origin =
            || self.origins.get(ticket.wrapping_sub(first) as usize).map_or(u64::MAX, |origin| origin.load(Acquire));
        let ticket = if is_own { ticket } else { origin() };
        Known { ticket, stamp: self.stamp(word), weight: weight_of(word) }
    }

    /// Will nobody notice if this log is forgotten? It must be empty, places included.
    pub fn is_idle(&self, longest: Tick, now: Now) -> bool {
        let h = self.find_tail().ticket;
        self.counted_from(h.wrapping_sub(1), self.cleared.load(Acquire)).is_none_or(|from| from + longest <= now.floor)
    }

    /// Closes the log for good: from here on every call on it answers [`Sealed`]. Sealing again is a no-op.
    pub fn seal(&self) {
        loop {
            if fault::planted("no seal") {
                break;
            }
            let Ok(Tail { ticket: h, was, .. }) = self.tail() else { break };
            if self.slot(h).compare_exchange(was, was | SEAL, AcqRel, Relaxed).is_ok() {
                break;
            }
        }
        // Nobody claims any more; and from here on nobody starts with a place.
        for slot in self.ring {
            let mut word = slot.load(Acquire);
            while state_of(word) == PLACE && word & SEAL == 0 && !fault::planted("open places") {
                word = slot.compare_exchange(word, word | SEAL, AcqRel, Acquire).unwrap_or_else(|now| now);
            }
        }
    }

    /// Does every caller have to wait until this is written elsewhere: is it sealed, or can it soon not count any further?
    pub fn has_to_move(&self, now: Now) -> bool {
        self.is_used_up(now) || self.tail().is_err()
    }

    /// Has a life told time as far as it can? Then what counts goes on in another. (A stamp beyond [`LAST`] before that is a
    /// place too far in the future.)
    #[inline(always)]
    fn is_used_up(&self, now: Now) -> bool {
        now.ceil.wrapping_sub(self.base) > LAST - 3 * LONGEST
    }

    /// What a sealed log holds that still counts at `now`, or will.
    pub fn history(&self, longest: Tick, now: Now) -> History {
        let (h, first, size) = (self.end(), self.first(), self.ring.len() as u64);
        let logged = self.logged.load(Acquire);
        let oldest = first.max(h.saturating_sub(size));
        let mut starts = Vec::new();
        let mut ticket = oldest;
        while ticket < h {
            let word = self.slot(ticket).load(Acquire);
            let Known { ticket: id, stamp, weight: units } = self.known(ticket, word);
            let stamp = stamp.max(self.born);
            if stamp + longest > now.floor {
                starts.push(Start { stamp, units, state: state_of_start(word), id, is_logged: ticket < logged });
            }
            ticket += units;
        }
        let unknown = if self.cleared.load(Acquire) == 0 && self.born + longest > now.floor {
            Some(self.born)
        } else if oldest > first && oldest < h {
            let stamp = self.stamp(self.slot(oldest).load(Acquire));
            (stamp + longest > now.floor).then_some(stamp)
        } else {
            None
        };
        History { starts, unknown, end: h, ..History::default() }
    }

    /// The starts that are not in the ledger yet, and the ticket after the last of them. For whoever may rewrite the log.
    pub fn unlogged(&self) -> (Vec<Start>, u64) {
        let h = self.find_tail().ticket;
        let mut ticket = self.logged.load(Acquire).max(self.first()).max(h.saturating_sub(self.ring.len() as u64));
        let mut starts = Vec::new();
        while ticket < h {
            let word = self.slot(ticket).load(Acquire);
            let Known { ticket: id, stamp, weight: units } = self.known(ticket, word);
            starts.push(Start { stamp, units, state: state_of_start(word), id, is_logged: false });
            ticket += units;
        }
        (starts, h)
    }

    /// The ticket after the last.
    fn end(&self) -> u64 {
        self.find_tail().ticket
    }

    /// How many units [`Log::write`] writes.
    pub fn room(&self) -> u64 {
        self.ring.len() as u64 - 1
    }

    /// Writes a history, or the newest of it if not all fits, into cells that only the caller uses: zeroed ones, or sealed
    /// ones of an earlier life. They must be [`CLOSED`]; the answer is the base with which their next life begins, to be
    /// published by the caller. `None`: these cells had too many lives.
    pub fn write(&self, history: &History, now: Now) -> Option<Tick> {
        let size = self.ring.len() as u64;
        // The same slots and parities come again every two laps.
        let end = self.end();
        let burnt = end + history.end.saturating_sub(end).div_ceil(2 * size) * 2 * size;
        let fields = self.ring.iter().map(|slot| slot.load(Relaxed) >> STAMP);
        let highest = fields.fold(self.peak.load(Acquire), u64::max);
        // What was only counted before may be more than one start can weigh here.
        let split = |start: &Start| {
            let (start, parts) = (*start, start.units.div_ceil(MOST));
            (0..parts).map(move |i| Start { units: MOST.min(start.units - i * MOST), ..start })
        };
        // The newest; of the last that fits, as much as fits.
        let mut room = self.room();
        let mut starts: Vec<Start> = history
            .starts
            .iter()
            .flat_map(split)
            .rev()
            .map_while(|start| {
                let units = start.units.min(room);
                room -= units;
                (units > 0).then_some(Start { units, ..start })
            })
            .collect();
        starts.reverse();
        let oldest = starts.first().map_or(now.ceil, |start| start.stamp);
        let base = oldest.min(now.ceil).wrapping_sub(highest + 2);
        let newest = starts.last().map_or(now.ceil, |start| start.stamp);
        if now.ceil.wrapping_sub(base) > LAST - 4 * LONGEST || newest.wrapping_sub(base) > LAST - LONGEST {
            return None;
        }
        // Each store releases: whoever sees one sees those before it, and that the cells were closed. The sealed ticket first:
        // open again it would be what it was before.
        put(self.slot(burnt), self.word(burnt, highest + 1, SETTLED, 1));
        for slot in self.ring {
            let word = slot.load(Relaxed);
            if word & SEAL != 0 {
                put(slot, word & !(SEAL | ANY_STATE) | SETTLED << STATE);
            }
        }
        let first = burnt + 1;
        let mut next = first;
        let mut logged = None;
        for start in starts {
            if !start.is_logged {
                logged.get_or_insert(next);
            }
            let field = start.stamp.wrapping_sub(base);
            for (ticket, units) in (next..).zip((1..=start.units).rev()) {
                let state = if ticket == next { start.state } else { PART };
                put(self.slot(ticket), self.word(ticket, field, state, units));
                self.origins[(ticket - first) as usize]
                    .store(if ticket == next { start.id } else { u64::MAX }, Release);
            }
            next += start.units;
        }
        self.cleared.store(first + 1, Release);
        self.own.store(next, Release);
        self.logged.store(logged.unwrap_or(next), Release);
        put(self.head, next);
        Some(base)
    }

    /// Denies what was asked of ticket `h`, if its slot still holds what was read.
    #[inline(always)]
    fn deny(&self, h: u64, was: u64, now: Now, ready: Tick) -> Option<Result<Answer, Sealed>> {
        let is_proven = self.slot(h).load(Acquire) == was || fault::planted("unproven denial");
        is_proven.then(|| self.is_alive().map(|()| Answer { now, ready, taken: None }))
    }

    /// Decides, if nobody is faster: see [`Algorithm::decide`].
    #[inline(always)]
    pub fn try_decide<const LOOK: bool>(
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
        let ready = self.ready(h, cleared, ask);
        // After these slots, so that no stamp that was read is later than this.
        let now = clock();
        fault::point("log-clock");
        if LOOK {
            *view = self.view_at(h, ask, now);
        }
        let must_wait = ready > now.floor && !ask.force;
        if must_wait && ready - now.floor > ask.patience {
            return self.deny(h, was, now, ready);
        }
        let is_place = must_wait || ask.reserve;
        let stamp = if is_place { ready.max(now.ceil).saturating_add(ask.grace) } else { now.ceil };
        let stamp = stamp.max(self.newest(h));
        // No slot ever holds the same word twice.
        let last = if ask.weight == 1 { was } else { self.slot(h.wrapping_add(ask.weight - 1)).load(Acquire) };
        let next = if fault::planted("same again") { 0 } else { (last >> STAMP) + 1 };
        let field = stamp.wrapping_sub(self.base).max(next);
        if field > LAST {
            return if self.is_used_up(now) { Some(Err(Sealed)) } else { self.deny(h, was, now, ready) };
        }
        if is_place && self.has_places(h, ask, now) {
            return self.deny(h, was, now, ready);
        }
        if self.is_alive().is_err() {
            return Some(Err(Sealed));
        }
        let stamp = field.wrapping_add(self.base);
        let word = self.word(h, field, if is_place { PLACE } else { STARTED }, ask.weight);
        self.slot(h).compare_exchange(was, word, AcqRel, Relaxed).ok()?;
        fault::point("log-claimed");
        let filled = ask.weight == 1 || fault::planted("counter before slots") || self.ring().fill(h, word);
        let end = h.wrapping_add(ask.weight);
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
mod models;
#[cfg(all(test, not(model)))]
#[path = "log_tests.rs"]
mod tests;
