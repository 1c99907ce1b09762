//! Units of a key that a server has granted this machine: it may start them on its own, within a short time.
//!
//! A *grant* is a number of units and the time within which they may start, by this machine's own clock. A key holds up
//! to [`CELLS`] grants. A start takes units out of one grant, in one step. A place takes units out of a grant whose
//! time has not come yet. One caller at a time asks the server for more ([`Grants::begin`]), while the others continue.
//!
//! # Why no unit starts twice, and none late
//!
//! 1. *One word per grant decides.* A cell's `STATE` holds a turn, the number of takings, and the number of units left.
//!    The turn is odd while a grant is present, and differs from grant to grant. A start reads the word, then the
//!    grant's times, and takes units by a compare-and-swap of the same word. So it took units of the grant whose times
//!    it read.
//! 2. *A grant ends before the server learns of it.* The caller that ends a grant takes all remaining units by the same
//!    step, and only then reports to the server.
//! 3. *Starts are in time.* The clock was read within the call, so the start happens while its call runs, at a time
//!    within the grant.
//! 4. *Returns happen once.* A start has the number of its taking, which is never reused within a grant. By this number
//!    it is given back, once: here while the grant is present, and by the server afterwards.
//! 5. *A reply expires.* The server's reply is valid only for a while ([`Grants::GOOD`]), because a policy may have
//!    changed, or the server may have lost its memory. So no grant allows a start later than that after the latest
//!    request was sent.
//!
//! # Orderings
//!
//! A new grant's words are written before its `STATE`, which is released; a reader that acquires it sees them. A reader
//! that still sees an older `STATE` may read newer times, and fails at the swap. Words that only steer requests are
//! relaxed.

use crate::atomic::*;
use crate::time::Tick;

/// The most grants of a key.
pub const CELLS: usize = if cfg!(model) { 2 } else { 6 };

/// The words of a cell.
mod cell {
    /// Its turn; below [`super::TURN`] the number of takings; below [`super::TAKEN`] the units that are left.
    pub const STATE: usize = 0;
    /// The first moment at which its units may start, and the end (exclusive).
    pub const FROM: usize = 1;
    pub const UNTIL: usize = 2;
    /// The server's identity of the grant: its ticket and stamp. No ticket: the cell is free.
    pub const TICKET: usize = 3;
    pub const STAMP: usize = 4;
    /// The units that it had. Above [`super::STAYS`], when it has ended and has to be reported: the units that stay
    /// used, plus one.
    pub const UNITS: usize = 5;
    /// The set of its first 64 takings that were given back here.
    pub const ENDED: usize = 6;
    /// The set of 64 places that were taken and have not started. While one is in it, the cell is not reused for
    /// another grant before its time is over.
    pub const PLACES: usize = 7;
    pub const WORDS: usize = 8;
}

const TURN: u32 = 36;
const TAKEN: u32 = 20;
const LEFT: u64 = (1 << TAKEN) - 1;
/// The most units of a cell: the server decides heavier starts.
pub const MAX_WEIGHT: u64 = LEFT;
/// Takings from this number on cannot be given back.
const MAX_TAKEN: u64 = (1 << (TURN - TAKEN)) - 1;
const STAYS: u32 = 32;
const LOW: u64 = (1 << STAYS) - 1;

/// Returns the state after a taking of this weight.
fn less(state: u64, weight: u64) -> u64 {
    state - weight + (u64::from(takings(state) < MAX_TAKEN) << TAKEN)
}

fn takings(state: u64) -> u64 {
    state >> TAKEN & MAX_TAKEN
}

/// Returns the state of a cell in its next turn.
fn next_turn(state: u64, units: u64) -> u64 {
    (state >> TURN).wrapping_add(1) << TURN | units.min(LEFT)
}

/// Returns whether a grant is present that has not ended.
fn is_open(state: u64) -> bool {
    state >> TURN & 1 == 1
}

/// Set if units of a grant were left over since the last reply.
const LEFT_OVER: u64 = 1 << 63;

/// A doubt: units have become free on the server since its last reply.
const IS_FREED: u64 = 1;
/// And the promises are returned with the next request.
const RETURNS: u64 = 2;

/// The number of words of a key's grants.
pub const WORDS: u64 = (Grants::FIRST + CELLS * cell::WORDS) as u64;

const SECOND: Tick = 1_000_000;

/// A round trip is too long from this part of the window on.
const FAR: u64 = 10;

/// The difference of two clocks' rates is at most one part in this many: crystals are within 0.0001, and clock
/// discipline slews by 0.0005.
const RATE: u64 = 1_000;

/// Returns at least this duration, by a clock that may run fast by its rate.
pub fn longer(ticks: Tick) -> Tick {
    ticks.saturating_add(ticks.div_ceil(RATE))
}

/// Returns at most this duration, by a clock that may run slow by its rate.
pub fn shorter(ticks: Tick) -> Tick {
    ticks.saturating_sub(ticks.div_ceil(RATE))
}

/// The duration of a limit's grants, and what follows from its windows. (bench/fleet/README.md explains the values.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lengths {
    /// How long a grant may be used.
    pub grant: Tick,
    /// How long a reply is valid.
    pub trust: Tick,
    /// The period over which starts and denials are counted.
    pub period: Tick,
}

impl Lengths {
    /// The longest validity of a reply, for any limit: an operator waits this long.
    pub const MAX_TRUST: Tick = 2_000_000;
    /// The longest grant. A longer one would save hardly any requests.
    const MAX_GRANT: Tick = 500_000;
    /// The furthest promise, in lengths of a grant: by then clocks drift apart by a fifth of one.
    const FAR: u64 = 100;
    /// Smaller limits get longer grants: otherwise a grant would hold less than a unit.
    const SMALL: u64 = 320;
    /// The shortest grant, in round trips.
    const TRIPS: u64 = 4;

    /// Computes the lengths for a limit of this many units in its shortest window, with a server at this round-trip
    /// distance.
    pub fn of(limit: u64, window: Tick, trip: Tick) -> Lengths {
        let trust = (window / 2).min(Lengths::MAX_TRUST);
        let part = if limit < Lengths::SMALL { window / 20 } else { window / 40 };
        let grant = part.min(Lengths::MAX_GRANT).max(Lengths::TRIPS * trip).min(trust / 2).max(1);
        Lengths { grant, trust, period: (window / 8).max(1) }
    }

    /// Returns how far ahead a promise may lie.
    pub fn far(&self) -> Tick {
        Lengths::FAR * self.grant
    }
}

/// The units that a start took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// The ticket of its grant.
    pub ticket: u64,
    /// The moment from which it counts, by the server's clock.
    pub stamp: Tick,
    /// The number of the taking within its grant; for a place, above [`STAYS`], the number of the place.
    pub unit: u64,
    /// The moment from which it may start, if that is later than the given time.
    pub from: Tick,
}

/// The result of presenting a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaceStatus {
    /// It starts, once.
    Started,
    /// Not ready for this long.
    Early(Tick),
    /// The server has to confirm first that it still may start.
    Unsure,
    /// Its time is over, or it is not known here.
    Gone,
}

/// A caller's request to the server: units to start with now or, as a place, soon; or only a confirmation that the
/// grants still hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// This many units, to start with now.
    Start(u64),
    /// This many units, to start with later.
    Place(u64),
    /// This many units, to start with now. No promise: units are returned, so they are free sooner than the server can tell.
    Only(u64),
    /// No units: only a confirmation.
    Word,
}

/// A request to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Its number: a repeated request has the same one, and the server does not grant twice for it.
    pub seq: u64,
    /// No grant should have fewer units.
    pub least: u64,
    /// The units to start with now.
    pub want: u64,
    /// The units to start with later.
    pub future: u64,
    /// The number of grants that fit.
    pub most: u64,
    /// For earlier grants: ticket, stamp, the units that stay used, and which of the first 64 have ended otherwise, in
    /// two halves.
    pub reports: Vec<[u64; 5]>,
}

/// A grant as the server reports it: by its clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Its number in the server's log.
    pub ticket: u64,
    /// From when on its units may start.
    pub ready: Tick,
    /// Until when they may start.
    pub ends: Tick,
    /// The moment from which they count.
    pub stamp: Tick,
    /// How many they are.
    pub units: u64,
}

/// A reply, by the server's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The time of the reply.
    pub now: Tick,
    /// The moment up to which starts may have been lost: another value means that the server's memory is another.
    pub epoch: u64,
    /// Nothing starts before this.
    pub gate: Tick,
    /// When enough units for another grant become free.
    pub next: Tick,
    /// The heaviest start that the server would admit now.
    pub remaining: u64,
    /// When nothing counts any more.
    pub empty: Tick,
    /// What was granted.
    pub grants: Vec<Grant>,
}

impl Reply {
    /// Parses a script's reply: six numbers, and five per grant. `None`: it is malformed.
    pub fn read(first: [i64; 6], grants: &[i64]) -> Option<Reply> {
        let unsigned = |n: &i64| u64::try_from(*n).ok();
        let numbers = first.iter().chain(grants).map(unsigned).collect::<Option<Vec<u64>>>()?;
        let (&[now, epoch, gate, next, remaining, empty], grants) = numbers.split_first_chunk()?;
        let (grants, rest) = grants.as_chunks();
        let grants =
            grants.iter().map(|&[ticket, ready, ends, stamp, units]| Grant { ticket, ready, ends, stamp, units });
        rest.is_empty().then(|| Reply { now, epoch, gate, next, remaining, empty, grants: grants.collect() })
    }
}

/// A caller that is asking the server.
#[derive(Debug, Clone, Copy)]
pub struct Asker<'a> {
    /// The word that others sleep on until the reply.
    pub word: &'a AtomicU64,
    /// The word's value: its turn, and above [`STAYS`] its process.
    pub seen: u64,
}

impl Asker<'_> {
    /// Returns its process, among those that share the words; 0: this one.
    pub fn process(&self) -> u32 {
        (self.seen >> STAYS) as u32
    }
}

/// The grants of one key. All times are by this machine's clock since its boot.
#[derive(Clone, Copy)]
pub struct Grants<'a> {
    /// Its words.
    pub words: &'a [AtomicU64],
    /// A number that differs in each life of the words, and the intended one.
    pub life: &'a AtomicU64,
    /// The number of the intended life.
    pub number: u64,
}

impl<'a> Grants<'a> {
    /// A turn, which is odd while a caller asks; above [`STAYS`] the caller's process, if several share the words.
    /// Callers that wait for the reply sleep on it.
    const ASKING: usize = 0;
    /// Until when anything may start.
    const GOOD: usize = 1;
    /// Twice the time until which the server has nothing more, plus one if it has nothing to promise either.
    const QUIET: usize = 2;
    /// The latest moment until which a caller was denied.
    const DENIED_UNTIL: usize = 3;
    /// Twice the number of the last request, plus one if it has no reply yet. Numbers grow with time.
    const SEQ: usize = 4;
    /// The duration of a round trip.
    const TRIP: usize = 5;
    const EPOCH: usize = 6;
    /// The server's last report: the remaining units, and when it is back in its initial state, by this machine's
    /// clock. (And [`LEFT_OVER`].)
    const REMAINING: usize = 7;
    const EMPTY: usize = 8;
    /// Units that started by grants that are gone, and denials.
    const STARTED: usize = 9;
    const DENIALS: usize = 10;
    /// The beginning of this period, both counts at that time, and those of the period before, starts and denials in
    /// half a word each.
    const PERIOD: usize = 11;
    const STARTED_THEN: usize = 12;
    const DENIALS_THEN: usize = 13;
    const BEFORE: usize = 14;
    /// Whether a reply is being written.
    const ACCEPTING: usize = 15;
    /// When more units become free on the server than were granted.
    const NEXT: usize = 16;
    /// `QUIET` applies to this many units and more.
    const QUIET_LEAST: usize = 17;
    /// When the last replied request was sent.
    const LAST_ASKED: usize = 18;
    /// The asker's identity for the server: a number that no other site has. 0: drawn with the next request.
    const OWNER: usize = 19;
    /// The turn of `ASKING` that took so long that no caller waits for it any more.
    const STALLED: usize = 20;
    /// Where processes of this machine share the grants of this key: see [`Grants::shared`].
    const SHARED: usize = 21;
    /// Why the server has to be asked, whatever it has promised: [`IS_FREED`] and [`RETURNS`].
    const DOUBTS: usize = 22;
    const FIRST: usize = 23;

    fn word(&self, at: usize) -> &'a AtomicU64 {
        &self.words[at]
    }

    fn cells(&self) -> impl Iterator<Item = &'a [AtomicU64]> + use<'a> {
        self.words[Grants::FIRST..Grants::FIRST + CELLS * cell::WORDS].chunks_exact(cell::WORDS)
    }

    /// Takes units that may start at `now`, which was read within this call.
    #[inline(always)]
    pub fn take(&self, weight: u64, now: Tick) -> Option<Taken> {
        // (5) The reply has expired.
        if now >= self.word(Grants::GOOD).load(Acquire) {
            return None;
        }
        for cell in self.cells() {
            let mut state = cell[cell::STATE].load(Acquire);
            // If this life continues after that, the turn belongs to this life.
            while state & LEFT >= weight && !self.is_over() {
                // (1) After `STATE`: if these are the times of another grant, the swap fails.
                let from = cell[cell::FROM].load(Relaxed);
                if now < from || now >= cell[cell::UNTIL].load(Relaxed) {
                    break;
                }
                let taken = self.taken(cell, state, 0);
                // (1) The start, (3) at a time within the grant.
                match cell[cell::STATE].compare_exchange_weak(state, less(state, weight), AcqRel, Acquire) {
                    Ok(_) => return Some(taken),
                    Err(newer) => state = newer,
                }
            }
        }
        None
    }

    #[inline(always)]
    fn taken(&self, cell: &[AtomicU64], state: u64, from: Tick) -> Taken {
        let word = |at: usize| cell[at].load(Relaxed);
        Taken { ticket: word(cell::TICKET), stamp: word(cell::STAMP), unit: takings(state), from }
    }

    /// Takes the units that may start soonest, within `patience` from now.
    pub fn take_place(&self, weight: u64, now: Tick, patience: Tick) -> Option<Taken> {
        loop {
            let (from, cell, state) = self.first(weight, now)?;
            if from > now.saturating_add(patience) || from > now && self.doubts() & RETURNS != 0 {
                return None;
            }
            // Before the units are taken, so that the cell stays until the place has started.
            let places = cell[cell::PLACES].load(Acquire);
            let place = (!places).trailing_zeros();
            if place == u64::BITS {
                return None;
            }
            let bit = 1 << place;
            if cell[cell::PLACES].fetch_or(bit, AcqRel) & bit != 0 {
                continue;
            }
            let taken = self.taken(cell, state, from);
            // (1) The units are of the grant whose times were read.
            if cell[cell::STATE].compare_exchange(state, less(state, weight), AcqRel, Acquire).is_ok() {
                return Some(Taken { unit: taken.unit | u64::from(place) << STAYS, ..taken });
            }
            cell[cell::PLACES].fetch_and(!bit, AcqRel);
        }
    }

    /// Returns the grant with which this many units can start first.
    fn first(&self, weight: u64, now: Tick) -> Option<(Tick, &'a [AtomicU64], u64)> {
        let usable = self.cells().filter_map(|cell| {
            let state = cell[cell::STATE].load(Acquire);
            if self.life.load(Acquire) != self.number {
                return None;
            }
            let (from, until) = (cell[cell::FROM].load(Relaxed), cell[cell::UNTIL].load(Relaxed));
            (state & LEFT >= weight && now < until).then_some((from.max(now), cell, state))
        });
        usable.min_by_key(|(from, ..)| *from)
    }

    /// Returns when units can start that cannot start now: by a promise, or by the server's report. `None`: the server
    /// has to be asked. `waits`: for a place.
    pub fn soonest(&self, weight: u64, now: Tick, waits: bool) -> Option<Tick> {
        if now >= self.word(Grants::GOOD).load(Acquire) {
            return None;
        }
        if self.doubts() != 0 {
            return None;
        }
        let soonest = self.first(weight, now).map(|(from, ..)| from).or_else(|| {
            let quiet = self.word(Grants::QUIET).load(Acquire);
            let is_for = weight >= self.word(Grants::QUIET_LEAST).load(Relaxed) && (!waits || quiet & 1 == 1);
            is_for.then_some(quiet / 2)
        });
        soonest.filter(|&from| from > now && !self.is_over())
    }

    /// Returns when more units can start, with near certainty: by a promise, or by the server's report. Something may
    /// have changed since the last reply, but that does not justify more than a few requests while a caller waits.
    pub fn promised(&self, weight: u64, now: Tick) -> Option<Tick> {
        if self.doubts() != 0 {
            return None;
        }
        let next = || Some(self.word(Grants::NEXT).load(Relaxed)).filter(|_| weight == 1);
        let from = self.first(weight, now).map(|(from, ..)| from).or_else(next).filter(|&from| from > now)?;
        (now < self.word(Grants::GOOD).load(Acquire) + SECOND + ((from - now) / 4).min(10 * SECOND)).then_some(from)
    }

    /// Returns whether this many units are promised.
    pub fn is_promised(&self, weight: u64, now: Tick) -> bool {
        self.doubts() == 0 && self.first(weight, now).is_some_and(|(from, ..)| from > now)
    }

    /// Records that units have become free on the server, by an end in this process. It may have some sooner than it
    /// reported or promised.
    pub fn freed(&self) {
        self.word(Grants::DOUBTS).fetch_or(IS_FREED, AcqRel);
    }

    /// Lets the next request return all promises, for a caller that knows that the server has units sooner.
    pub fn return_promises(&self) {
        self.word(Grants::DOUBTS).fetch_or(RETURNS, AcqRel);
    }

    fn doubts(&self) -> u64 {
        self.word(Grants::DOUBTS).load(Acquire)
    }

    /// Returns whether another grant fits.
    pub fn has_free_cell(&self, now: Tick) -> bool {
        self.cells().any(|cell| {
            let word = |at: usize| cell[at].load(Relaxed);
            let is_used_up = word(cell::STATE) & LEFT == 0 && word(cell::PLACES) == 0;
            word(cell::TICKET) == 0 || is_used_up || now >= word(cell::UNTIL)
        })
    }

    /// Returns whether this many units could start now.
    pub fn can_start(&self, weight: u64, now: Tick) -> bool {
        now < self.word(Grants::GOOD).load(Acquire) && self.first(weight, now).is_some_and(|(from, ..)| from <= now)
    }

    /// Records that a caller was denied until then.
    pub fn denied(&self, until: Tick) {
        self.word(Grants::DENIALS).fetch_add(1, Relaxed);
        self.word(Grants::DENIED_UNTIL).store(until, Relaxed);
    }

    /// Records that a caller waits.
    pub fn waits(&self) {
        self.word(Grants::DENIALS).fetch_add(1, Relaxed);
    }

    /// Returns the units that were granted and have not started.
    pub fn held(&self) -> u64 {
        self.cells().map(|cell| cell[cell::STATE].load(Relaxed) & LEFT).sum()
    }

    /// Returns how many units there are, as far as this machine knows, and when all of them are.
    pub fn known(&self) -> (u64, Tick) {
        (
            self.word(Grants::REMAINING).load(Relaxed).saturating_add(self.held()),
            self.word(Grants::EMPTY).load(Relaxed) & !LEFT_OVER,
        )
    }

    /// Returns whether a round trip takes so much of a window that too little of a grant would be left. This is checked
    /// again periodically.
    pub fn is_far(&self, window: Tick, now: Tick) -> bool {
        let asked = self.word(Grants::LAST_ASKED).load(Relaxed);
        self.trip() > window / FAR && now.saturating_sub(asked) < window.max(SECOND)
    }

    /// Returns the duration of a round trip; 0: there was no request yet.
    pub fn trip(&self) -> Tick {
        self.word(Grants::TRIP).load(Relaxed)
    }

    fn cell_of(&self, ticket: u64) -> Option<(&'a [AtomicU64], u64)> {
        self.cells().find_map(|cell| {
            let state = cell[cell::STATE].load(Acquire);
            let is_it = cell[cell::TICKET].load(Acquire) == ticket && self.life.load(Acquire) == self.number;
            // Still the same grant, so the ticket was its own.
            let is_same = || cell[cell::STATE].load(Acquire) >> TURN == state >> TURN;
            (is_it && is_open(state) && is_same()).then_some((cell, state >> TURN))
        })
    }

    /// Starts with a place that was [taken](Grants::take_place), once.
    pub fn start(&self, ticket: u64, unit: u64, now: Tick) -> PlaceStatus {
        let Some((cell, _)) = self.cell_of(ticket) else { return PlaceStatus::Gone };
        let (from, until) = (cell[cell::FROM].load(Relaxed), cell[cell::UNTIL].load(Relaxed));
        // These were its own: the place keeps the cell for as long as it can start.
        if now >= until || cell[cell::TICKET].load(Acquire) != ticket {
            return PlaceStatus::Gone;
        }
        if now < from {
            return PlaceStatus::Early(from - now);
        }
        if now >= self.word(Grants::GOOD).load(Acquire) {
            return PlaceStatus::Unsure;
        }
        if Self::end_place(cell, unit) { PlaceStatus::Started } else { PlaceStatus::Gone }
    }

    /// Ends a place. Returns whether it was there.
    fn end_place(cell: &[AtomicU64], unit: u64) -> bool {
        let bit = 1 << (unit >> STAYS & 63);
        cell[cell::PLACES].fetch_and(!bit, AcqRel) & bit != 0
    }

    /// Gives units back that have started, once. `false`: the grant has ended here, so it has to be reported to the
    /// server.
    pub fn give_back(&self, ticket: u64, unit: u64, weight: u64) -> bool {
        let (Some((cell, turn)), 0..64) = (self.cell_of(ticket), unit & LOW) else { return false };
        let bit = 1 << (unit & LOW);
        // (A caller that ends the grant in between may report this taking as ended: then its units go unused.)
        cell[cell::ENDED].fetch_or(bit, AcqRel) & bit != 0 || Self::put_back(cell, turn, weight)
    }

    /// Gives the units of a place back that has not started. `false`: there was none, or its grant has ended.
    pub fn give_place_back(&self, ticket: u64, unit: u64, weight: u64) -> bool {
        self.cell_of(ticket)
            .is_some_and(|(cell, turn)| Self::end_place(cell, unit) && Self::put_back(cell, turn, weight))
    }

    fn put_back(cell: &[AtomicU64], turn: u64, weight: u64) -> bool {
        let put = |state: u64| (state >> TURN == turn).then(|| state + weight);
        cell[cell::STATE].fetch_update(AcqRel, Acquire, put).is_ok()
    }

    // ---- for the one caller that asks ----

    /// Makes this caller the one that asks; it then has to call [`Grants::end`]. The error is another caller that is
    /// asking. `process`: this process among those that share the words; 0: they are not shared.
    pub fn begin(&self, process: u32) -> Result<(), Asker<'a>> {
        let asking = self.word(Grants::ASKING);
        let begin = |seen: u64| seen.is_multiple_of(2).then(|| u64::from(process) << STAYS | (seen + 1) & LOW);
        asking.fetch_update(AcqRel, Acquire, begin).map(drop).map_err(|seen| Asker { word: asking, seen })
    }

    /// Lets other callers ask. The caller has to wake the sleepers on the returned word.
    pub fn end(&self) -> &'a AtomicU64 {
        let asking = self.word(Grants::ASKING);
        // (No other caller writes it in between: this process is alive.)
        asking.store((asking.load(Relaxed) + 1) & LOW, Release);
        asking
    }

    /// Takes over from a process that asked and has died. `false`: another caller does, or it had already ended.
    ///
    /// It may have died while it was ending the grants of another server memory, so all grants are ended. If its
    /// request has no reply yet, nothing of the reply is here, and the request is repeated.
    pub fn take_over(&self, asker: &Asker, process: u32) -> bool {
        let taken = u64::from(process) << STAYS | asker.seen & LOW;
        let is_taken = self.word(Grants::ASKING).compare_exchange(asker.seen, taken, AcqRel, Acquire).is_ok();
        if is_taken {
            self.void();
        }
        is_taken
    }

    /// Records that callers no longer wait for this asker.
    pub fn give_up(&self, asker: &Asker) {
        self.word(Grants::STALLED).store(asker.seen, Relaxed);
    }

    /// Returns whether a caller has given up waiting for this asker.
    pub fn is_given_up(&self, asker: &Asker) -> bool {
        self.word(Grants::STALLED).load(Relaxed) == asker.seen
    }

    /// Returns the asker's identity for the server. Only for the caller that asks.
    pub fn owner<E>(&self, draw: impl FnOnce() -> Result<u64, E>) -> Result<u64, E> {
        let owner = self.word(Grants::OWNER);
        if owner.load(Relaxed) == 0 {
            owner.store(draw()?.max(1), Relaxed);
        }
        Ok(owner.load(Relaxed))
    }

    /// Returns where processes share the grants of this key; 0: unknown. It belongs to this life of the words.
    #[inline(always)]
    pub fn shared(&self) -> u64 {
        let shared = self.word(Grants::SHARED).load(Acquire);
        if self.life.load(Acquire) == self.number { shared } else { 0 }
    }

    /// Records it. Only for the caller that asks.
    pub fn share(&self, shared: u64) {
        self.guarded(|| self.word(Grants::SHARED).store(shared, Release));
    }

    /// Returns whether this life of the words is over.
    pub fn is_over(&self) -> bool {
        self.life.load(Acquire) != self.number
    }

    /// Composes the request.
    pub fn question(&self, wish: Wish, lengths: Lengths, now: Tick) -> Question {
        let (mut reports, mut most) = (Vec::new(), 0);
        let returns = self.word(Grants::DOUBTS).swap(0, AcqRel) & RETURNS != 0;
        for cell in self.cells() {
            self.end_if_over(cell, now, returns);
            let word = |at: usize| cell[at].load(Acquire);
            let (ticket, stays, ended) = (word(cell::TICKET), word(cell::UNITS) >> STAYS, word(cell::ENDED));
            if ticket != 0 && stays > 0 {
                reports.push([ticket, word(cell::STAMP), stays - 1, ended & LOW, ended >> STAYS]);
            }
            most += u64::from(ticket == 0 || stays > 0);
        }
        let (want, future) = self.amounts(wish, lengths, now);
        let least = if let Wish::Start(weight) | Wish::Place(weight) | Wish::Only(weight) = wish { weight } else { 1 };
        // A request without a reply is repeated, so that its grants become known.
        let (seq, is_pending) =
            (self.word(Grants::SEQ).load(Relaxed) / 2, self.word(Grants::SEQ).load(Relaxed) % 2 == 1);
        let seq = if is_pending { seq } else { now.max(seq + 1) };
        self.word(Grants::SEQ).store(2 * seq + 1, Relaxed);
        Question { seq, least, want, future, most, reports }
    }

    /// Returns how many units to ask for, now and later.
    fn amounts(&self, wish: Wish, lengths: Lengths, now: Tick) -> (u64, u64) {
        let (weight, waits) = match wish {
            Wish::Word => return (0, 0),
            Wish::Start(weight) | Wish::Only(weight) => (weight, false),
            Wish::Place(weight) => (weight, true),
        };
        let (starts, denials) = self.lately(lengths, now);
        let per_grant =
            |n: u64| (u128::from(n) * u128::from(lengths.grant)).div_ceil(u128::from(lengths.period)) as u64;
        let was_left_over = self.word(Grants::EMPTY).load(Relaxed) & LEFT_OVER != 0;
        let calls = (starts + denials) * if was_left_over { 1 } else { 3 };
        let is_back = now < self.word(Grants::DENIED_UNTIL).load(Relaxed).saturating_add(lengths.grant);
        let is_rare = calls.saturating_mul(lengths.grant) < lengths.period && !is_back;
        let future =
            if is_rare || matches!(wish, Wish::Only(_)) { 0 } else { per_grant(calls).min(2 * starts + 1).max(weight) };
        (per_grant(starts).max(weight), if waits { future.max(weight) } else { future })
    }

    /// Ends a grant by which nothing can start any more. It has to be reported: the server can grant the rest again,
    /// and the used units count from now on at the latest.
    ///
    /// With `returns`, the same for a promise without places. (A caller that takes one of its units meanwhile finds its place
    /// gone, and the unit goes unused.)
    fn end_if_over(&self, cell: &[AtomicU64], now: Tick, returns: bool) {
        let word = |at: usize| cell[at].load(Acquire);
        let has_places = word(cell::PLACES) != 0;
        let is_used_up = word(cell::STATE) & LEFT == 0 && !has_places;
        let is_returned = returns && now < word(cell::FROM) && !has_places;
        let is_here = word(cell::TICKET) != 0 && word(cell::UNITS) >> STAYS == 0;
        if is_here && (is_used_up || is_returned || now >= word(cell::UNTIL)) {
            self.end_grant(cell);
        }
    }

    fn end_grant(&self, cell: &[AtomicU64]) {
        let units = cell[cell::UNITS].load(Acquire);
        let left = Self::close(cell).min(units);
        self.word(Grants::STARTED).fetch_add(units - left, Relaxed);
        if left > 0 {
            self.word(Grants::EMPTY).fetch_or(LEFT_OVER, Relaxed);
        }
        cell[cell::PLACES].store(0, Relaxed);
        cell[cell::UNITS].store((units - left + 1) << STAYS | units, Release);
    }

    /// Takes all that is left, in another turn: callers that read the word before fail.
    fn close(cell: &[AtomicU64]) -> u64 {
        let mut state = cell[cell::STATE].load(Acquire);
        loop {
            if !is_open(state) {
                return 0;
            }
            // (2) This takes all that is left: nothing starts by this grant any more.
            match cell[cell::STATE].compare_exchange(state, next_turn(state, 0), AcqRel, Acquire) {
                Ok(_) => return state & LEFT,
                Err(newer) => state = newer,
            }
        }
    }

    /// Returns how many units were started and how many callers denied, in this period or the last one, whichever has
    /// more.
    fn lately(&self, lengths: Lengths, now: Tick) -> (u64, u64) {
        let word = |at: usize| self.word(at).load(Relaxed);
        let of_cells = self.cells().map(|cell| {
            let (units, left) = (cell[cell::UNITS].load(Relaxed), cell[cell::STATE].load(Relaxed) & LEFT);
            let is_live = cell[cell::TICKET].load(Relaxed) != 0 && units >> STAYS == 0;
            if is_live { units.saturating_sub(left) } else { 0 }
        });
        let (started, denials) = (word(Grants::STARTED) + of_cells.sum::<u64>(), word(Grants::DENIALS));
        let here = (
            started.saturating_sub(word(Grants::STARTED_THEN)).min(LOW),
            denials.saturating_sub(word(Grants::DENIALS_THEN)).min(LOW),
        );
        let before = (word(Grants::BEFORE) >> STAYS, word(Grants::BEFORE) & LOW);
        let passed = now.saturating_sub(word(Grants::PERIOD)) / lengths.period;
        if passed == 0 {
            return (here.0.max(before.0), here.1.max(before.1));
        }
        let last = if passed == 1 { here } else { (0, 0) };
        self.word(Grants::BEFORE).store(last.0 << STAYS | last.1, Relaxed);
        self.word(Grants::PERIOD).store(now, Relaxed);
        self.word(Grants::STARTED_THEN).store(started, Relaxed);
        self.word(Grants::DENIALS_THEN).store(denials, Relaxed);
        // The current counts are as good as a period's, if they took no longer.
        if passed == 1 { last } else { (here.0 / passed, here.1 / passed) }
    }

    /// Accepts the reply to a request that was sent after `asked` and whose reply came before `now`. `was_set`: the
    /// server's clock was set forward since the previous reply, or this machine stood still.
    pub fn accept(&self, question: &Question, reply: &Reply, asked: (Tick, Tick), lengths: Lengths, was_set: bool) {
        self.guarded(|| self.write(question, reply, asked, lengths, was_set));
    }

    /// Writes something that belongs to this life of the words. In another life, or if this one has been copied
    /// elsewhere, nothing is written: units go unused.
    fn guarded(&self, write: impl FnOnce()) {
        self.word(Grants::ACCEPTING).store(1, Relaxed);
        fence(SeqCst);
        if self.life.load(Acquire) == self.number {
            write();
        }
        self.word(Grants::ACCEPTING).store(0, Release);
    }

    fn write(&self, question: &Question, reply: &Reply, (asked, now): (Tick, Tick), lengths: Lengths, was_set: bool) {
        self.word(Grants::SEQ).store(2 * question.seq, Relaxed);
        for cell in self.cells() {
            let ticket = cell[cell::TICKET].load(Relaxed);
            if question.reports.iter().any(|[reported, ..]| *reported == ticket) {
                cell[cell::TICKET].store(0, Release);
            }
        }
        let (before, trip) = (self.trip(), now - asked);
        self.word(Grants::TRIP).store(trip.max(before - before.saturating_sub(trip) / 2), Relaxed);
        self.word(Grants::LAST_ASKED).store(asked, Relaxed);
        if was_set {
            // All windows are shorter by that until the server knows, so nothing of this reply can be used. Whatever has
            // not started is returned.
            self.cells().filter(|cell| is_open(cell[cell::STATE].load(Acquire))).for_each(|cell| self.end_grant(cell));
            for grant in &reply.grants {
                let Some(cell) = self.cells().find(|cell| cell[cell::TICKET].load(Relaxed) == 0) else { break };
                cell[cell::STAMP].store(grant.stamp, Relaxed);
                cell[cell::ENDED].store(0, Relaxed);
                cell[cell::UNITS].store(1 << STAYS | grant.units.min(LEFT), Relaxed);
                cell[cell::TICKET].store(grant.ticket, Release);
            }
            self.word(Grants::QUIET).store(0, Release);
            return;
        }
        let at = |tick: Tick| now + 1 + tick.saturating_sub(reply.now);
        // Not before that, at any rate of the clocks.
        let surely_at = |tick: Tick| now + 1 + longer(tick.saturating_sub(reply.now));
        let is_other = self.word(Grants::EPOCH).swap(reply.epoch, Relaxed) != reply.epoch;
        if is_other || reply.gate > reply.now {
            self.void();
        }
        // Only now: the grants of another server memory must not become valid by this reply.
        self.word(Grants::GOOD).fetch_max(asked + shorter(lengths.trust), AcqRel);
        self.word(Grants::REMAINING).store(reply.remaining, Relaxed);
        self.word(Grants::EMPTY).store(at(reply.empty), Relaxed);
        self.word(Grants::NEXT).store(if question.least == 1 { at(reply.next) } else { 0 }, Relaxed);
        let mut is_any = false;
        for grant in &reply.grants {
            let from = if grant.ready <= reply.now { asked } else { surely_at(grant.ready) };
            let until = (asked + shorter(grant.ends.saturating_sub(reply.now))).saturating_sub(1);
            let Some(cell) = self.cells().find(|cell| cell[cell::TICKET].load(Relaxed) == 0) else { break };
            let put = |at: usize, value: u64| cell[at].store(value, Relaxed);
            put(cell::FROM, from);
            put(cell::UNTIL, until);
            put(cell::STAMP, grant.stamp);
            put(cell::UNITS, grant.units.min(LEFT));
            put(cell::ENDED, 0);
            put(cell::PLACES, 0);
            cell[cell::TICKET].store(grant.ticket, Release);
            // (It is closed: no other caller writes it.)
            let state = cell[cell::STATE].load(Relaxed);
            cell[cell::STATE].store(next_turn(state, grant.units), Release);
            is_any |= until > now.max(from);
        }
        let has_more = reply.remaining >= question.least && reply.gate <= reply.now;
        let quiet = if is_any || has_more { 0 } else { at(reply.next.max(reply.gate)) };
        self.word(Grants::QUIET_LEAST).store(question.least, Relaxed);
        // Waiting callers may be promised something, if no caller has asked for that.
        let is_for_all = question.future > 0 || question.most == 0 || reply.gate > reply.now;
        self.word(Grants::QUIET).store(2 * quiet + u64::from(is_for_all), Release);
    }

    /// Ends all grants, and returns none of their units: the server does not know them, or they no longer allow starts.
    pub fn void(&self) {
        for cell in self.cells() {
            Self::close(cell);
            cell[cell::PLACES].store(0, Relaxed);
            cell[cell::UNITS].store(0, Relaxed);
            cell[cell::TICKET].store(0, Release);
        }
    }

    /// Begins another life, in which nothing is granted and nothing known. Its [life](Grants::life) is closed. Returns
    /// its base.
    pub fn begin_next_life(&self) -> u64 {
        // Pairs with the fence of `accept`: either `accept` sees that this life is over, or this waits for it. `accept`
        // makes no calls.
        fence(SeqCst);
        while self.word(Grants::ACCEPTING).load(Acquire) != 0 {
            yield_now();
        }
        self.disown();
        0
    }

    /// Resets the words for a forked child, which must not use its parent's grants. (A thread that was writing a reply
    /// does not exist in the child.)
    pub fn disown(&self) {
        self.forget();
        self.word(Grants::ASKING).store(0, Release);
    }

    /// Reuses the words for another key: nothing that was granted by them can start any more. `name` records their new
    /// key. Returns the number of the new life, which is odd; between lives it is even. Only for the caller that asks.
    pub fn begin_as_another(&self, name: impl FnOnce()) -> u64 {
        let closed = self.number.next_multiple_of(2);
        self.life.store(closed, Release);
        self.forget();
        name();
        self.life.store(closed + 1, Release);
        closed + 1
    }

    fn forget(&self) {
        self.void();
        for word in &self.words[Grants::ASKING + 1..Grants::FIRST] {
            word.store(0, Release);
        }
    }

    /// Returns whether forgetting this has no visible effect.
    pub fn is_idle(&self, now: Tick) -> bool {
        self.has_ended(now) && self.word(Grants::ASKING).load(Relaxed).is_multiple_of(2)
    }

    /// Returns whether all grants have ended, and nothing else that is known is still valid.
    pub fn is_stale(&self, now: Tick) -> bool {
        self.has_ended(now) && now >= self.word(Grants::GOOD).load(Acquire)
    }

    fn has_ended(&self, now: Tick) -> bool {
        let is_over =
            |cell: &[AtomicU64]| cell[cell::TICKET].load(Relaxed) == 0 || now >= cell[cell::UNTIL].load(Relaxed);
        self.cells().all(is_over)
    }
}

#[cfg(all(test, model))]
#[path = "grants_models.rs"]
mod models;
#[cfg(all(test, not(model)))]
#[path = "grants_tests.rs"]
mod tests;
