//! The sliding log: exact, weighted, over one or several windows, lock-free, and safe against whoever dies anywhere.
//!
//! # Shape
//!
//! A ring of `C` slots and a counter of *tickets*. Ticket `h` lives in slot `h mod C`; a start of weight `k` takes `k`
//! consecutive tickets. A slot is one 64-bit word:
//!
//! ```text
//! 63           14 13          2  1       0
//! [ stamp, ticks ][ weight − 1 ][ lap ][ seal ]
//! ```
//!
//! * `stamp`: when the start counts from, never less than the ticket's before it. 50 bits of µs are 35 years.
//! * `weight − 1`: how many tickets follow that belong to the same start.
//! * `lap`: the parity of the lap in which the slot was written, chosen so that a zeroed slot reads as "written in the
//!   lap before the first": zeroed memory is an empty log, and initialisation cannot race.
//! * `seal`: this ring is closed for good, its contents are being copied elsewhere.
//!
//! # Deciding
//!
//! With `n` starts allowed per window `w`, ticket `t` may start once ticket `t − n` is `w` old. So a decision finds the
//! first unclaimed ticket `h` ([`Log::tail`]), reads the slots of the tickets `h + k − 1 − n`, and one compare-and-swap
//! on slot `h` is the whole admission: the point at which it happens, and the only one at which dying matters. Before it
//! nothing was written; after it the start is in the log, and whoever comes next fills its other slots ([`Log::fill`]),
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
//!    counter has not moved, no slot looked at can be of a later lap (this needs `C ≥ LAG + k − 1`), and a slot's lap bit
//!    tells whether it is claimed.
//! 3. *What was read belongs to tickets before `h`.* A slot that a decision at `h` looks at is overwritten at the
//!    earliest by a claim beyond `h` (this needs `C ≥ n + k`), and its claimant saw `h` claimed. So if slot `h` still
//!    holds what was read first, everything read in between is valid: the admission's compare-and-swap proves it, a
//!    denial reads slot `h` once more.
//! 4. *Words do not repeat.* Stamps never decrease, and a slot's next word always carries a later one (where starts are
//!    recorded beyond the limit, by a microsecond each lap). So a compare-and-swap that was held up for a lap fails.
//! 5. *Starts keep their distance.* A start happens no earlier than `ready` and no later than `stamp`; the start `n`
//!    tickets later has `ready ≥ stamp + w`. So no half-open window of length `w` ever holds more than `n` starts.
//!
//! A start in the future (a *place*) is a stamp in the future, and nothing else. It counts from the end of its grace,
//! so that waking up late within it cannot break the limit.
//!
//! Source: the ring with a claim word per slot follows the bounded queues of Vyukov and of crossbeam's `ArrayQueue`;
//! helping a dead claimant follows Harris, Fraser and Pratt, "A practical multi-word compare-and-swap operation" (2002).

use super::Sealed;
use crate::atomic::{AtomicU64, *};
use crate::fault;
use crate::time::{Now, Tick};

const SEAL: u64 = 1;
const LAP: u32 = 1;
const WEIGHT: u32 = 2;
const STAMP: u32 = 14;

/// The most units that one start may take, and the largest limit that the log keeps start by start.
pub(crate) const MOST: u64 = 1 << (STAMP - WEIGHT);

/// The last stamp that a slot can hold.
const LAST: Tick = (1 << (64 - STAMP)) - 1;

/// How far the counter may stay behind: a cache line of slots. (The model checker's rings are smaller.)
const LAG: u64 = if cfg!(model) { 2 } else { 8 };

/// At most `limit` units in any `length` ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub limit: u64,
    pub length: Tick,
}

/// How many slots a ring needs: every window's `limit`, and the heaviest start beside it.
pub(crate) fn capacity(limit: u64) -> u64 {
    (2 * limit).next_power_of_two().max(16)
}

/// One key's log, in cells that live elsewhere.
#[derive(Clone, Copy)]
pub(crate) struct Log<'a> {
    /// A ticket at or shortly before the first that is unclaimed.
    pub head: &'a AtomicU64,
    /// Tickets before `cleared − 1` are forgotten (0: none were).
    pub cleared: &'a AtomicU64,
    /// A power of two.
    pub ring: &'a [AtomicU64],
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
    /// Record the start whether there is room or not.
    pub force: bool,
}

impl<'a> Ask<'a> {
    /// A start now or not at all.
    #[inline(always)]
    pub fn now(windows: &'a [Window], weight: u64, gate: Tick) -> Self {
        Ask { windows, weight, gate, patience: 0, grace: 0, force: false }
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
    pub ticket: u64,
    /// From when on it counts, and so the last moment at which it may happen.
    pub stamp: Tick,
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

#[cfg(not(model))]
static UNTOUCHED: [AtomicU64; 18] = [const { AtomicU64::new(0) }; 18];

impl<'a> Log<'a> {
    /// The log of a key that nobody has used. Only to look at.
    #[cfg(not(model))]
    pub fn untouched(born: Tick) -> Log<'static> {
        Log { head: &UNTOUCHED[0], cleared: &UNTOUCHED[1], ring: &UNTOUCHED[2..], born }
    }

    #[inline(always)]
    fn slot(&self, ticket: u64) -> &'a AtomicU64 {
        // The mask keeps the index inside the ring: its length is a power of two.
        &self.ring[(ticket & (self.ring.len() as u64 - 1)) as usize]
    }

    /// The lap bit of a ticket's own word.
    #[inline(always)]
    fn lap(&self, ticket: u64) -> u64 {
        ((ticket >> self.ring.len().trailing_zeros()) + 1) & 1
    }

    #[inline(always)]
    fn word(&self, ticket: u64, stamp: Tick, weight: u64) -> u64 {
        stamp << STAMP | (weight - 1) << WEIGHT | self.lap(ticket) << LAP
    }

    #[inline(always)]
    fn is_claimed(&self, ticket: u64, word: u64) -> bool {
        (word >> LAP) & 1 == self.lap(ticket)
    }

    /// From when on a ticket in the past counts. `None`: it was cleared.
    #[inline(always)]
    fn counted_from(&self, ticket: u64, cleared: u64) -> Option<Tick> {
        // Tickets before the first are negative here, and live in slots that nobody has touched.
        if cleared != 0 && (ticket as i64) < cleared as i64 - 1 {
            return None;
        }
        Some((self.slot(ticket).load(Acquire) >> STAMP).max(self.born))
    }

    /// Finds the first unclaimed ticket.
    #[inline(always)]
    fn find_tail(&self) -> Tail {
        'again: loop {
            let head = self.head.load(Acquire);
            let mut ticket = head;
            loop {
                let word = self.slot(ticket).load(Acquire);
                if !self.is_claimed(ticket, word) {
                    // Had the counter moved, `word` might be of a later lap.
                    if self.head.load(Relaxed) != head && !fault::planted("stale lap") {
                        continue 'again;
                    }
                    return Tail { head, ticket, was: word };
                }
                match weight_of(word) {
                    1 => ticket += 1,
                    weight if fault::planted("no help") || self.fill(ticket, word) => ticket += weight,
                    _ => continue 'again,
                }
                if ticket - head >= LAG {
                    self.move_head(head, ticket);
                    continue 'again;
                }
            }
        }
    }

    /// The same, unless the log is sealed.
    #[inline(always)]
    fn tail(&self) -> Result<Tail, Sealed> {
        let tail = self.find_tail();
        if tail.was & SEAL == 0 { Ok(tail) } else { Err(Sealed) }
    }

    /// Every claim before `to` was seen filled. If `from` is not the counter any more, it is further on.
    fn move_head(&self, from: u64, to: u64) {
        let _ = self.head.compare_exchange(from, to, AcqRel, Relaxed);
        fault::point("log-moved");
    }

    /// Fills the other slots of the claim `word` at `ticket`: anyone may, at any time and any number of times.
    /// `false`: the claim is of a lap that is over.
    fn fill(&self, ticket: u64, word: u64) -> bool {
        let end = ticket + weight_of(word);
        for other in ticket + 1..end {
            let slot = self.slot(other);
            let filled = self.word(other, word >> STAMP, end - other);
            loop {
                let was = slot.load(Acquire);
                // Only while the claim stands does `was` belong to its lap or to the one before.
                if self.slot(ticket).load(Acquire) != word {
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

    /// The earliest moment at which tickets `h .. h + weight` may start.
    #[inline(always)]
    fn ready(&self, h: u64, ask: &Ask) -> Tick {
        let cleared = self.cleared.load(Acquire);
        let mut ready = ask.gate;
        for window in ask.windows {
            let before = (h + ask.weight - 1).wrapping_sub(window.limit);
            if let Some(from) = self.counted_from(before, cleared) {
                ready = ready.max(from + window.length);
            }
        }
        ready
    }

    /// Decides and records in one act.
    #[inline]
    pub fn claim(&self, ask: &Ask, clock: impl Fn() -> Now) -> Result<Answer, Sealed> {
        self.decide::<false>(ask, clock).map(|(answer, _)| answer)
    }

    /// The same, and what the log holds after it.
    pub fn claim_and_view(&self, ask: &Ask, clock: impl Fn() -> Now) -> Result<(Answer, View), Sealed> {
        self.decide::<true>(ask, clock)
    }

    #[inline(always)]
    fn decide<const LOOK: bool>(&self, ask: &Ask, clock: impl Fn() -> Now) -> Result<(Answer, View), Sealed> {
        loop {
            let Tail { head, ticket: h, was } = self.tail()?;
            fault::point("log-read");
            let newest = self.slot(h.wrapping_sub(1)).load(Acquire) >> STAMP;
            let ready = self.ready(h, ask);
            // After the slots, so that no stamp that was read is later than this.
            let now = clock();
            fault::point("log-clock");
            let mut view = if LOOK { self.view_at(h, ask, now) } else { View::default() };
            let must_wait = ready > now.floor && !ask.force;
            let stamp = if must_wait { ready.saturating_add(ask.grace) } else { now.ceil }.max(newest);
            // No slot ever holds the same word twice.
            let last = if ask.weight == 1 { was } else { self.slot(h + ask.weight - 1).load(Acquire) };
            let stamp = stamp.max((last >> STAMP) + 1);
            if must_wait && ready - now.floor > ask.patience || stamp > LAST {
                if self.slot(h).load(Acquire) == was || fault::planted("unproven denial") {
                    return Ok((Answer { now, ready, taken: None }, view));
                }
                continue;
            }
            let word = self.word(h, stamp, ask.weight);
            if self.slot(h).compare_exchange(was, word, AcqRel, Relaxed).is_ok() {
                fault::point("log-claimed");
                let filled = ask.weight == 1 || fault::planted("counter before slots") || self.fill(h, word);
                if filled && h + ask.weight - head >= LAG {
                    self.move_head(head, h + ask.weight);
                }
                if LOOK {
                    view.remaining = view.remaining.saturating_sub(ask.weight);
                    let longest = ask.windows.iter().map(|w| w.length).max().unwrap_or(0);
                    view.empty = view.empty.max(stamp + longest);
                }
                return Ok((Answer { now, ready, taken: Some(Taken { ticket: h, stamp }) }, view));
            }
        }
    }

    /// Looks, and changes nothing (but may finish somebody else's claim).
    pub fn view(&self, ask: &Ask, clock: impl Fn() -> Now) -> Result<View, Sealed> {
        loop {
            let Tail { ticket: h, was, .. } = self.tail()?;
            let now = clock();
            let view = self.view_at(h, ask, now);
            if self.slot(h).load(Acquire) == was {
                return Ok(view);
            }
        }
    }

    fn view_at(&self, h: u64, ask: &Ask, now: Now) -> View {
        let cleared = self.cleared.load(Acquire);
        let mut remaining = if ask.gate > now.floor { 0 } else { u64::MAX };
        let mut empty = ask.gate;
        for window in ask.windows {
            let live = |back: u64| {
                self.counted_from(h.wrapping_sub(back), cleared).is_some_and(|from| from + window.length > now.floor)
            };
            // Stamps never decrease, so the live tickets are the last ones: find how many.
            let (mut some, mut none) = (0, window.limit + 1);
            while none - some > 1 {
                let middle = some.midpoint(none);
                if live(middle) { some = middle } else { none = middle }
            }
            remaining = remaining.min(window.limit - some);
            if let Some(newest) = self.counted_from(h.wrapping_sub(1), cleared) {
                empty = empty.max(newest + window.length);
            }
        }
        // Nothing at all needs no room.
        let ready = if ask.weight == 0 { ask.gate } else { self.ready(h, ask) };
        View { now: now.floor, ready, remaining, empty }
    }

    /// Has somebody taken a place later than `now`, counted or cleared?
    pub fn reaches_beyond(&self, now: Now) -> bool {
        self.slot(self.find_tail().ticket.wrapping_sub(1)).load(Acquire) >> STAMP > now.ceil
    }

    /// Is the start with this ticket still counted, that is, has nobody cleared the log since?
    pub fn counts(&self, ticket: u64) -> bool {
        self.counted_from(ticket, self.cleared.load(Acquire)).is_some()
    }

    /// Forgets every start so far.
    pub fn clear(&self) -> Result<(), Sealed> {
        let h = self.tail()?.ticket;
        self.cleared.fetch_max(h + 1, AcqRel);
        self.still_open()
    }

    /// To be called after a change to a cell beside the ring. If the log is sealed by now, the copy may have been taken
    /// before the change, which must then be made again there.
    pub fn still_open(&self) -> Result<(), Sealed> {
        fence(SeqCst); // with the one in `seal`: either the copy has the change, or this sees the seal
        if fault::planted("blind change") {
            return Ok(());
        }
        self.tail().map(drop)
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
        fence(SeqCst); // see `still_open`
    }

    /// Writes a sealed log's tickets into this one, which is empty and which nobody else has seen yet.
    ///
    /// Where the old ring was too small to know all that this one may be asked about, what is unknown counts as
    /// started with the oldest that is known: later than it was, never earlier. A place in the future counts as started
    /// `now`, a time after the sealing: whoever holds it will see that it is gone, unless it was used before.
    pub fn copy_from(&self, sealed: &Log, now: Now) {
        let h = sealed.find_tail().ticket;
        let cleared = sealed.cleared.load(Acquire);
        let (size, room) = (sealed.ring.len() as u64, self.ring.len() as u64 / 2);
        let known = h.min(size).min(room);
        let oldest = h - known;
        let unknown = if h > size { room - known } else { 0 };
        let mut next = 0;
        for ticket in std::iter::repeat_n(oldest, unknown as usize).chain(oldest..h) {
            if sealed.counted_from(ticket, cleared).is_some() {
                let stamp = (sealed.slot(ticket).load(Acquire) >> STAMP).min(now.ceil);
                self.slot(next).store(self.word(next, stamp, 1), Relaxed);
                next += 1;
            }
        }
        self.cleared.store(u64::from(cleared != 0), Relaxed);
        self.head.store(next, Release);
    }
}

#[cfg(all(test, model))]
#[path = "log_models.rs"]
mod models;
