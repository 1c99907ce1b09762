//! What a server has granted this machine of a key: units that it may start by itself, within a short time.
//!
//! A *grant* is a number of units and the time within which they may start, by this machine's own clock. A key has room for
//! [`CELLS`] of them. A start takes a unit out of one, in one step; a place takes one out of a grant whose time has not come yet.
//! One caller at a time asks the server for more ([`Grants::begin`]), while the others go on.
//!
//! # Why no unit starts twice, and none late
//!
//! A cell's `STATE` has a turn, how often units were taken, and how many are left. The turn is odd while a grant is there; another
//! grant has another one. A start reads it, then the grant's times, and takes units by a compare-and-swap of the same word. So it took what
//! it looked at. Whoever ends a grant takes all that is left by the same step before it says so to the server. The clock was read
//! within the call, so the start happens while its call runs, at a time that lies within the grant.
//!
//! What was taken has the number of the taking, which is never used again in the same grant. By it a start is given back, once: here
//! while the grant is, and by the server afterwards.
//!
//! What the server said is good for a while only ([`Grants::GOOD`]): a policy may have changed, or the server may have lost its
//! memory. So nothing starts later than that after the latest request was sent, by whatever grant.
//!
//! *Orderings.* A new grant's words are written before its `STATE`, which is released; whoever acquires that sees them. Whoever
//! still sees an older `STATE` may read newer times, and fails at the swap. Words that only steer what is asked for are relaxed.

use crate::atomic::*;
use crate::fault;
use crate::time::Tick;

/// How many grants a key has at most.
pub(crate) const CELLS: usize = if cfg!(model) { 2 } else { 6 };

/// Words of a cell.
mod cell {
    /// Its turn; below [`super::TURN`] how often units were taken; below [`super::TAKEN`] the units that are left.
    pub const STATE: usize = 0;
    /// From when on its units may start, and until when (not then).
    pub const FROM: usize = 1;
    pub const UNTIL: usize = 2;
    /// What the server knows the grant by: its ticket and stamp. No ticket: the cell is free.
    pub const TICKET: usize = 3;
    pub const STAMP: usize = 4;
    /// How many units it had; and above [`super::STAYS`], when it has ended and the server is to be told, how many stay, plus one.
    pub const UNITS: usize = 5;
    /// Which of its first 64 takings were given back here.
    pub const ENDED: usize = 6;
    /// Which of 64 places were taken and have not started. As long as one is there, the cell is no other grant's before its time is
    /// over.
    pub const PLACES: usize = 7;
    pub const WORDS: usize = 8;
}

const TURN: u32 = 36;
const TAKEN: u32 = 20;
const LEFT: u64 = (1 << TAKEN) - 1;
/// A cell holds no more units than this: heavier starts are the server's to decide.
pub(crate) const MOST_WEIGHT: u64 = LEFT;
/// Takings from this one on cannot be given back.
const MOST_TAKEN: u64 = (1 << (TURN - TAKEN)) - 1;
const STAYS: u32 = 32;
const LOW: u64 = (1 << STAYS) - 1;

/// So many were taken of these.
fn less(state: u64, weight: u64) -> u64 {
    state - weight + (u64::from(takings(state) < MOST_TAKEN) << TAKEN)
}

fn takings(state: u64) -> u64 {
    state >> TAKEN & MOST_TAKEN
}

/// A cell of the next turn.
fn next_turn(state: u64, units: u64) -> u64 {
    (state >> TURN).wrapping_add(1) << TURN | units.min(LEFT)
}

/// Is a grant there that has not ended?
fn is_open(state: u64) -> bool {
    state >> TURN & 1 == 1
}

/// Was anything left over of a grant since the last answer?
const LEFT_OVER: u64 = 1 << 63;

/// Words of a key's grants.
pub(crate) const WORDS: u64 = (Grants::FIRST + CELLS * cell::WORDS) as u64;

const SECOND: Tick = 1_000_000;

/// A round trip is too long from this part of the window on.
const FAR: u64 = 10;

/// By how many parts of a thousand two clocks may differ in rate: crystals are within 0.1, and what disciplines a clock slews it by
/// 0.5.
const RATE: u64 = 1_000;

/// So long at least, by a clock that may be faster by its rate.
pub(crate) fn longer(ticks: Tick) -> Tick {
    if fault::planted("drift ignored") { ticks } else { ticks.saturating_add(ticks.div_ceil(RATE)) }
}

/// So long at most.
pub(crate) fn shorter(ticks: Tick) -> Tick {
    if fault::planted("drift ignored") { ticks } else { ticks.saturating_sub(ticks.div_ceil(RATE)) }
}

/// How long the grants of a limit last, and what follows from its windows. (Why these: see bench/fleet/README.md.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lengths {
    pub grant: Tick,
    /// For how long an answer is good.
    pub trust: Tick,
    /// For how long starts and denials are counted.
    pub period: Tick,
}

impl Lengths {
    /// An answer is good for no longer than this, whatever the limit: so long an operator waits.
    pub const MOST_TRUST: Tick = 2_000_000;
    /// A grant lasts no longer. More saves next to no requests.
    const MOST_GRANT: Tick = 500_000;
    /// No promise lies more lengths of a grant ahead: on the way there clocks drift apart by a fifth of one.
    const FAR: u64 = 100;
    /// A limit that is smaller gets longer grants: else a grant would be of less than a unit.
    const SMALL: u64 = 320;
    /// So many round trips a grant lasts at least.
    const TRIPS: u64 = 4;

    /// For a limit of so many units in its shortest window, with a server that is so far away.
    pub fn of(limit: u64, window: Tick, trip: Tick) -> Lengths {
        let trust = (window / 2).min(Lengths::MOST_TRUST);
        let part = if limit < Lengths::SMALL { window / 20 } else { window / 40 };
        let grant = part.min(Lengths::MOST_GRANT).max(Lengths::TRIPS * trip).min(trust / 2).max(1);
        Lengths { grant, trust, period: (window / 8).max(1) }
    }

    /// How far ahead a promise may lie.
    pub fn far(&self) -> Tick {
        Lengths::FAR * self.grant
    }
}

/// What a start has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    pub ticket: u64,
    pub stamp: Tick,
    /// Which taking of its grant it is; and of a place, above [`STAYS`], which place.
    pub unit: u64,
    /// From when on it may start, if that is later than the time that was told.
    pub from: Tick,
}

/// What comes of a place whose time may have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It starts, once.
    Started,
    /// Not for so long.
    Early(Tick),
    /// The server has to be asked first whether it still may.
    Unsure,
    /// Its time is over, or it is not known here.
    Gone,
}

/// What somebody asks the server for: units to start with, now or (a place) soon; or only a word that what was granted still holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Start(u64),
    Place(u64),
    Word,
}

/// What to ask the server for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    pub seq: u64,
    /// No grant is to have fewer units.
    pub least: u64,
    pub want: u64,
    pub future: u64,
    /// So many grants fit.
    pub most: u64,
    /// See [`Grants::STEPPED`].
    pub stepped: u64,
    /// Of earlier grants: ticket, stamp, how many units stay, and which of the first 64 have ended otherwise, in two halves.
    pub reports: Vec<[u64; 5]>,
}

/// A grant as the server tells it: by its clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    pub ticket: u64,
    pub ready: Tick,
    pub ends: Tick,
    pub stamp: Tick,
    pub units: u64,
}

/// An answer, by the server's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Told {
    pub now: Tick,
    /// Up to when starts may have been lost: another one is another memory.
    pub epoch: u64,
    pub gate: Tick,
    /// When so many more become free that a grant may have.
    pub next: Tick,
    pub remaining: u64,
    pub empty: Tick,
    pub grants: Vec<Grant>,
}

impl Told {
    /// Reads what a script answers: six numbers, and five of each grant. `None`: it makes no sense.
    pub fn read(first: [i64; 6], grants: &[i64]) -> Option<Told> {
        let unsigned = |n: &i64| u64::try_from(*n).ok();
        let numbers = first.iter().chain(grants).map(unsigned).collect::<Option<Vec<u64>>>()?;
        let (&[now, epoch, gate, next, remaining, empty], grants) = numbers.split_first_chunk()?;
        let (grants, rest) = grants.as_chunks();
        let grants =
            grants.iter().map(|&[ticket, ready, ends, stamp, units]| Grant { ticket, ready, ends, stamp, units });
        rest.is_empty().then(|| Told { now, epoch, gate, next, remaining, empty, grants: grants.collect() })
    }
}

/// Somebody who asks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asker<'a> {
    /// What its answer is waited for on.
    pub word: &'a AtomicU64,
    pub seen: u64,
}

impl Asker<'_> {
    /// Which process it is in, among those who share the words; 0: this one.
    pub fn process(&self) -> u32 {
        (self.seen >> STAYS) as u32
    }
}

/// The grants of one key. All times are of this machine's clock since its boot.
#[derive(Clone, Copy)]
pub(crate) struct Grants<'a> {
    pub words: &'a [AtomicU64],
    /// Another number in each life of the words, and which one is meant.
    pub life: &'a AtomicU64,
    pub number: u64,
}

impl<'a> Grants<'a> {
    /// A turn, which is odd while somebody asks; above [`STAYS`] which process that is, if several share the words. Who waits for the answer
    /// sleeps on it.
    const ASKING: usize = 0;
    /// Until when anything may start.
    const GOOD: usize = 1;
    /// Twice the time until which the server has nothing more, and one more if it has nothing to promise either.
    const QUIET: usize = 2;
    /// Until when callers were denied last.
    const DENIED_UNTIL: usize = 3;
    /// Twice the number of the request that was sent last, and one more if it was not answered. Numbers grow with the time.
    const SEQ: usize = 4;
    /// How long a round trip takes.
    const TRIP: usize = 5;
    const EPOCH: usize = 6;
    /// What the server said last: what remains there, and when it is as new, by this machine's clock. (And [`LEFT_OVER`].)
    const REMAINING: usize = 7;
    const EMPTY: usize = 8;
    /// Units that started by grants that are gone, and denials.
    const STARTED: usize = 9;
    const DENIALS: usize = 10;
    /// When this period began, both at that time, and of the period before, start and denials in half a word each.
    const PERIOD: usize = 11;
    const STARTED_THEN: usize = 12;
    const DENIALS_THEN: usize = 13;
    const BEFORE: usize = 14;
    /// Is an answer being written?
    const ACCEPTING: usize = 15;
    /// When more becomes free there than was granted.
    const NEXT: usize = 16;
    /// `QUIET` is for so many units and more.
    const QUIET_LEAST: usize = 17;
    /// When the request was sent that was answered last, and what the server's clock showed then.
    const LAST_ASKED: usize = 18;
    const LAST_NOW: usize = 19;
    /// One more than the server's memory whose clock was set forward; 0: none's was.
    const STEPPED: usize = 20;
    /// Who asks, to the server: a number that no other site has. 0: it is drawn with the next request.
    const OWNER: usize = 21;
    /// Which turn of `ASKING` took so long that nobody waits for it any more.
    const STALLED: usize = 22;
    /// Where processes of this machine share what they are granted of this key: see [`Grants::shared`].
    const SHARED: usize = 23;
    const FIRST: usize = 24;

    fn word(&self, at: usize) -> &'a AtomicU64 {
        &self.words[at]
    }

    fn cells(&self) -> impl Iterator<Item = &'a [AtomicU64]> + use<'a> {
        self.words[Grants::FIRST..Grants::FIRST + CELLS * cell::WORDS].chunks_exact(cell::WORDS)
    }

    /// Takes units that may start at `now`, which was read within this call.
    #[inline(always)]
    pub fn take(&self, weight: u64, now: Tick) -> Option<Taken> {
        if now >= self.word(Grants::GOOD).load(Acquire) {
            return None;
        }
        for cell in self.cells() {
            let mut state = cell[cell::STATE].load(Acquire);
            // If this life goes on after that, the turn is one of this life.
            while state & LEFT >= weight && (!self.is_over() || fault::planted("another key's units")) {
                let from = cell[cell::FROM].load(Relaxed);
                if now < from || now >= cell[cell::UNTIL].load(Relaxed) {
                    break;
                }
                let taken = self.taken(cell, state, 0);
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

    /// Takes units that may start soonest, within `patience` from now.
    pub fn take_place(&self, weight: u64, now: Tick, patience: Tick) -> Option<Taken> {
        loop {
            let (from, cell, state) = self.first(weight, now)?;
            if from > now.saturating_add(patience) {
                return None;
            }
            // Before it is taken, so that the cell stays until the place has started.
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
            if cell[cell::STATE].compare_exchange(state, less(state, weight), AcqRel, Acquire).is_ok() {
                return Some(Taken { unit: taken.unit | u64::from(place) << STAYS, ..taken });
            }
            cell[cell::PLACES].fetch_and(!bit, AcqRel);
        }
    }

    /// The grant that so many units can start by first.
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

    /// When so many units can start that cannot start now: by a promise, or as the server has said. `None`: it has to be asked. `waits`:
    /// for a place.
    pub fn soonest(&self, weight: u64, now: Tick, waits: bool) -> Option<Tick> {
        if now >= self.word(Grants::GOOD).load(Acquire) {
            return None;
        }
        let soonest = self.first(weight, now).map(|(from, ..)| from).or_else(|| {
            let quiet = self.word(Grants::QUIET).load(Acquire);
            let is_for = weight >= self.word(Grants::QUIET_LEAST).load(Relaxed) && (!waits || quiet & 1 == 1);
            is_for.then_some(quiet / 2)
        });
        soonest.filter(|&from| from > now && !self.is_over())
    }

    /// When so many units more can start, as good as known: by a promise, or by what the server has said. Something may have changed since
    /// the last answer, for which it is not worth asking more often than a few times while somebody waits.
    pub fn promised(&self, weight: u64, now: Tick) -> Option<Tick> {
        let next = || Some(self.word(Grants::NEXT).load(Relaxed)).filter(|_| weight == 1);
        let from = self.first(weight, now).map(|(from, ..)| from).or_else(next).filter(|&from| from > now)?;
        (now < self.word(Grants::GOOD).load(Acquire) + SECOND + ((from - now) / 4).min(10 * SECOND)).then_some(from)
    }

    /// Is there a promise of so many units?
    pub fn is_promised(&self, weight: u64, now: Tick) -> bool {
        self.first(weight, now).is_some_and(|(from, ..)| from > now)
    }

    /// Is there room for another grant?
    pub fn has_room(&self, now: Tick) -> bool {
        self.cells().any(|cell| {
            let word = |at: usize| cell[at].load(Relaxed);
            let is_used_up = word(cell::STATE) & LEFT == 0 && word(cell::PLACES) == 0;
            word(cell::TICKET) == 0 || is_used_up || now >= word(cell::UNTIL)
        })
    }

    /// Could so many units start now?
    pub fn can_start(&self, weight: u64, now: Tick) -> bool {
        now < self.word(Grants::GOOD).load(Acquire) && self.first(weight, now).is_some_and(|(from, ..)| from <= now)
    }

    /// Notes that a caller was denied until then.
    pub fn denied(&self, until: Tick) {
        self.word(Grants::DENIALS).fetch_add(1, Relaxed);
        self.word(Grants::DENIED_UNTIL).store(until, Relaxed);
    }

    /// Notes that a caller waits.
    pub fn waits(&self) {
        self.word(Grants::DENIALS).fetch_add(1, Relaxed);
    }

    /// The units that were granted and have not started.
    pub fn held(&self) -> u64 {
        self.cells().map(|cell| cell[cell::STATE].load(Relaxed) & LEFT).sum()
    }

    /// How much there is, as far as this machine knows, and when all of it is.
    pub fn known(&self) -> (u64, Tick) {
        (
            self.word(Grants::REMAINING).load(Relaxed).saturating_add(self.held()),
            self.word(Grants::EMPTY).load(Relaxed) & !LEFT_OVER,
        )
    }

    /// Does a round trip take so much of a window that too little of what is granted would be left? It is looked at again every now
    /// and then.
    pub fn is_far(&self, window: Tick, now: Tick) -> bool {
        let asked = self.word(Grants::LAST_ASKED).load(Relaxed);
        self.trip() > window / FAR && now.saturating_sub(asked) < window.max(SECOND)
    }

    /// How long a round trip takes; 0: nothing was asked yet.
    pub fn trip(&self) -> Tick {
        self.word(Grants::TRIP).load(Relaxed)
    }

    fn cell_of(&self, ticket: u64) -> Option<(&'a [AtomicU64], u64)> {
        self.cells().find_map(|cell| {
            let state = cell[cell::STATE].load(Acquire);
            let is_it = cell[cell::TICKET].load(Acquire) == ticket && self.life.load(Acquire) == self.number;
            // Still the same grant: so the ticket was its own.
            let is_same = || cell[cell::STATE].load(Acquire) >> TURN == state >> TURN;
            (is_it && is_open(state) && is_same()).then_some((cell, state >> TURN))
        })
    }

    /// Starts with a place that was [taken](Grants::take_place), once.
    pub fn start(&self, ticket: u64, unit: u64, now: Tick) -> Turn {
        let Some((cell, _)) = self.cell_of(ticket) else { return Turn::Gone };
        let (from, until) = (cell[cell::FROM].load(Relaxed), cell[cell::UNTIL].load(Relaxed));
        // These were its own: the place keeps the cell for as long as it can start.
        if now >= until || cell[cell::TICKET].load(Acquire) != ticket {
            return Turn::Gone;
        }
        if now < from {
            return Turn::Early(from - now);
        }
        if now >= self.word(Grants::GOOD).load(Acquire) {
            return Turn::Unsure;
        }
        if Self::end_place(cell, unit) { Turn::Started } else { Turn::Gone }
    }

    /// A place ends. Was it there?
    fn end_place(cell: &[AtomicU64], unit: u64) -> bool {
        let bit = 1 << (unit >> STAYS & 63);
        cell[cell::PLACES].fetch_and(!bit, AcqRel) & bit != 0
    }

    /// Gives units back that have started, once. `false`: the grant has ended here, so the server has to be told.
    pub fn give_back(&self, ticket: u64, unit: u64, weight: u64) -> bool {
        let (Some((cell, turn)), 0..64) = (self.cell_of(ticket), unit & LOW) else { return false };
        let bit = 1 << (unit & LOW);
        // (Whoever ends the grant meanwhile may tell that this one has ended: then its units go by unused.)
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

    // ---- for the one caller who asks ----

    /// Is this the caller who asks? Then it has to [end](Grants::end) it. Otherwise somebody else is asking. `process`: which one this
    /// is among those who share the words; 0: they are this one's alone.
    pub fn begin(&self, process: u32) -> Result<(), Asker<'a>> {
        let asking = self.word(Grants::ASKING);
        let begin = |seen: u64| seen.is_multiple_of(2).then(|| u64::from(process) << STAYS | (seen + 1) & LOW);
        asking.fetch_update(AcqRel, Acquire, begin).map(drop).map_err(|seen| Asker { word: asking, seen })
    }

    /// Lets others ask. Who sleeps on the word that is answered has to be woken.
    pub fn end(&self) -> &'a AtomicU64 {
        let asking = self.word(Grants::ASKING);
        // (Nobody else writes it meanwhile: this process lives.)
        asking.store((asking.load(Relaxed) + 1) & LOW, Release);
        asking
    }

    /// Goes on in the place of a process that asked and has died. `false`: somebody else does, or it had come to its end.
    ///
    /// It may have died while it was ending what another memory of the server had granted: so all is ended. If its request has not been
    /// answered, nothing of the answer is here, and it is asked again.
    pub fn take_over(&self, asker: &Asker, process: u32) -> bool {
        let taken = u64::from(process) << STAYS | asker.seen & LOW;
        let is_taken = self.word(Grants::ASKING).compare_exchange(asker.seen, taken, AcqRel, Acquire).is_ok();
        if is_taken && !fault::planted("grants of the dead") {
            self.void();
        }
        is_taken
    }

    /// Nobody waits for this asker any more.
    pub fn give_up(&self, asker: &Asker) {
        self.word(Grants::STALLED).store(asker.seen, Relaxed);
    }

    /// Has somebody given up to wait for this asker?
    pub fn is_given_up(&self, asker: &Asker) -> bool {
        self.word(Grants::STALLED).load(Relaxed) == asker.seen
    }

    /// Who asks, to the server. Only for the one who asks.
    pub fn owner<E>(&self, draw: impl FnOnce() -> Result<u64, E>) -> Result<u64, E> {
        let owner = self.word(Grants::OWNER);
        if owner.load(Relaxed) == 0 {
            owner.store(draw()?.max(1), Relaxed);
        }
        Ok(owner.load(Relaxed))
    }

    /// Where processes share what they are granted of this key; 0: that is not known. It is of this life of the words.
    #[inline(always)]
    pub fn shared(&self) -> u64 {
        let shared = self.word(Grants::SHARED).load(Acquire);
        if self.life.load(Acquire) == self.number { shared } else { 0 }
    }

    /// Notes it. Only for the one who asks.
    pub fn share(&self, shared: u64) {
        self.guarded(|| self.word(Grants::SHARED).store(shared, Release));
    }

    /// Is this life of the words over?
    pub fn is_over(&self) -> bool {
        self.life.load(Acquire) != self.number
    }

    /// What to ask for.
    pub fn question(&self, wish: Wish, lengths: Lengths, now: Tick) -> Question {
        let (mut reports, mut most) = (Vec::new(), 0);
        for cell in self.cells() {
            self.end_if_over(cell, now);
            let word = |at: usize| cell[at].load(Acquire);
            let (ticket, stays, ended) = (word(cell::TICKET), word(cell::UNITS) >> STAYS, word(cell::ENDED));
            if ticket != 0 && stays > 0 {
                reports.push([ticket, word(cell::STAMP), stays - 1, ended & LOW, ended >> STAYS]);
            }
            most += u64::from(ticket == 0 || stays > 0);
        }
        let (want, future) = self.amounts(wish, lengths, now);
        let least = if let Wish::Start(weight) | Wish::Place(weight) = wish { weight } else { 1 };
        // One that was not answered is asked again, so that what it was granted is known.
        let (seq, is_pending) =
            (self.word(Grants::SEQ).load(Relaxed) / 2, self.word(Grants::SEQ).load(Relaxed) % 2 == 1);
        let seq = if is_pending { seq } else { now.max(seq + 1) };
        self.word(Grants::SEQ).store(2 * seq + 1, Relaxed);
        let stepped = self.word(Grants::STEPPED).load(Relaxed);
        Question { seq, least, want, future, most, stepped, reports }
    }

    /// How many units to ask for, now and later.
    fn amounts(&self, wish: Wish, lengths: Lengths, now: Tick) -> (u64, u64) {
        let (weight, waits) = match wish {
            Wish::Word => return (0, 0),
            Wish::Start(weight) => (weight, false),
            Wish::Place(weight) => (weight, true),
        };
        let (starts, denials) = self.lately(lengths, now);
        let per_grant =
            |n: u64| (u128::from(n) * u128::from(lengths.grant)).div_ceil(u128::from(lengths.period)) as u64;
        let was_left_over = self.word(Grants::EMPTY).load(Relaxed) & LEFT_OVER != 0;
        let calls = (starts + denials) * if was_left_over { 1 } else { 3 };
        let is_back = now < self.word(Grants::DENIED_UNTIL).load(Relaxed).saturating_add(lengths.grant);
        let is_rare = calls.saturating_mul(lengths.grant) < lengths.period && !is_back;
        let future = if is_rare { 0 } else { per_grant(calls).min(2 * starts + 1).max(weight) };
        (per_grant(starts).max(weight), if waits { future.max(weight) } else { future })
    }

    /// Ends a grant by which nothing can start any more. The server has to be told: what was left can be granted again, and the rest
    /// counts from now on at the latest.
    fn end_if_over(&self, cell: &[AtomicU64], now: Tick) {
        let word = |at: usize| cell[at].load(Acquire);
        let is_used_up = word(cell::STATE) & LEFT == 0 && word(cell::PLACES) == 0;
        let is_here = word(cell::TICKET) != 0 && word(cell::UNITS) >> STAYS == 0;
        if !is_here || !is_used_up && now < word(cell::UNTIL) {
            return;
        }
        let units = word(cell::UNITS);
        let left = Self::close(cell).min(units);
        self.word(Grants::STARTED).fetch_add(units - left, Relaxed);
        if left > 0 {
            self.word(Grants::EMPTY).fetch_or(LEFT_OVER, Relaxed);
        }
        cell[cell::PLACES].store(0, Relaxed);
        cell[cell::UNITS].store((units - left + 1) << STAYS | units, Release);
    }

    /// Takes all that is left, in another turn: whoever has looked before fails.
    fn close(cell: &[AtomicU64]) -> u64 {
        let mut state = cell[cell::STATE].load(Acquire);
        loop {
            if !is_open(state) {
                return 0;
            }
            if fault::planted("open grants") {
                cell[cell::STATE].store(next_turn(state, 0), Release);
                return state & LEFT;
            }
            match cell[cell::STATE].compare_exchange(state, next_turn(state, 0), AcqRel, Acquire) {
                Ok(_) => return state & LEFT,
                Err(newer) => state = newer,
            }
        }
    }

    /// How many units were started and how many callers denied, in this period or the last one, whichever has more.
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
        // What was just counted is as good as a period's, if it took no longer.
        if passed == 1 { last } else { (here.0 / passed, here.1 / passed) }
    }

    /// Takes an answer to a question that was sent after `asked` and answered before `now`.
    pub fn accept(&self, question: &Question, told: &Told, asked: (Tick, Tick), lengths: Lengths) {
        self.guarded(|| self.write(question, told, asked, lengths));
    }

    /// Writes something that is of this life of the words. In another life, or where this one has been copied elsewhere, nothing is written:
    /// units go by unused.
    fn guarded(&self, write: impl FnOnce()) {
        self.word(Grants::ACCEPTING).store(1, Relaxed);
        if !fault::planted("answer unseen") {
            fence(SeqCst);
        }
        if self.life.load(Acquire) == self.number {
            write();
        }
        self.word(Grants::ACCEPTING).store(0, Release);
    }

    fn write(&self, question: &Question, told: &Told, (asked, now): (Tick, Tick), lengths: Lengths) {
        let is_asked_again = fault::planted("granted twice");
        self.word(Grants::SEQ).store(2 * question.seq + u64::from(is_asked_again), Relaxed);
        for cell in self.cells() {
            let ticket = cell[cell::TICKET].load(Relaxed);
            if question.reports.iter().any(|[reported, ..]| *reported == ticket) {
                cell[cell::TICKET].store(0, Release);
            }
        }
        let (before, trip) = (self.trip(), now - asked);
        self.word(Grants::TRIP).store(trip.max(before - before.saturating_sub(trip) / 2), Relaxed);
        if self.was_set_forward(told, (asked, now)) {
            // All windows are shorter by that, until the server knows: nothing of this answer can be used.
            self.word(Grants::STEPPED).store(told.epoch + 1, Relaxed);
            self.word(Grants::QUIET).store(0, Release);
            return self.void();
        }
        self.word(Grants::STEPPED).store(0, Relaxed);
        let at = |tick: Tick| now + 1 + tick.saturating_sub(told.now);
        // Not before that, whatever the clocks' rates.
        let surely_at = |tick: Tick| now + 1 + longer(tick.saturating_sub(told.now));
        let is_other = self.word(Grants::EPOCH).swap(told.epoch, Relaxed) != told.epoch;
        if is_other && !fault::planted("epoch ignored") || told.gate > told.now {
            self.void();
        }
        let asked = if fault::planted("valid from the answer") { now } else { asked };
        // Only now: what was granted by another memory must not become good by this answer.
        self.word(Grants::GOOD).fetch_max(asked + shorter(lengths.trust), AcqRel);
        self.word(Grants::REMAINING).store(told.remaining, Relaxed);
        self.word(Grants::EMPTY).store(at(told.empty), Relaxed);
        self.word(Grants::NEXT).store(if question.least == 1 { at(told.next) } else { 0 }, Relaxed);
        let mut is_any = false;
        for grant in &told.grants {
            let from = if grant.ready <= told.now { asked } else { surely_at(grant.ready) };
            let unstamped = if fault::planted("stamped at its beginning") { lengths.grant } else { 0 };
            let until = (asked + shorter((grant.ends + unstamped).saturating_sub(told.now))).saturating_sub(1);
            let Some(cell) = self.cells().find(|cell| cell[cell::TICKET].load(Relaxed) == 0) else { break };
            let put = |at: usize, value: u64| cell[at].store(value, Relaxed);
            put(cell::FROM, from);
            put(cell::UNTIL, until);
            put(cell::STAMP, grant.stamp);
            put(cell::UNITS, grant.units.min(LEFT));
            put(cell::ENDED, 0);
            put(cell::PLACES, 0);
            cell[cell::TICKET].store(grant.ticket, Release);
            // (It is closed: nobody else writes it.)
            let state = cell[cell::STATE].load(Relaxed);
            cell[cell::STATE].store(next_turn(state, grant.units), Release);
            is_any |= until > now.max(from);
        }
        let has_more = told.remaining >= question.least && told.gate <= told.now;
        let quiet = if is_any || has_more { 0 } else { at(told.next.max(told.gate)) };
        self.word(Grants::QUIET_LEAST).store(question.least, Relaxed);
        // Who waits may be promised something, if nobody has asked for that.
        let is_for_all = question.future > 0 || question.most == 0 || told.gate > told.now;
        self.word(Grants::QUIET).store(2 * quiet + u64::from(is_for_all), Release);
    }

    /// Has the server's clock gone further since the answer before than time has passed? (By less than two round trips cannot be told
    /// from a slow answer.)
    fn was_set_forward(&self, told: &Told, (asked, now): (Tick, Tick)) -> bool {
        let then = self.word(Grants::LAST_ASKED).swap(asked, Relaxed);
        let was = self.word(Grants::LAST_NOW).swap(told.now, Relaxed);
        was != 0 && told.now.saturating_sub(was) > longer(now - then + 1) + 1 && !fault::planted("any clock")
    }

    /// Ends all grants, and returns nothing of them: the server does not know them, or nobody may start by them.
    pub fn void(&self) {
        for cell in self.cells() {
            Self::close(cell);
            cell[cell::PLACES].store(0, Relaxed);
            cell[cell::UNITS].store(0, Relaxed);
            cell[cell::TICKET].store(0, Release);
        }
    }

    /// Begins another life: nothing is granted, and nothing known. Its [life](Grants::life) is closed. Returns its base.
    pub fn begin_anew(&self) -> u64 {
        // Pairs with the fence of `accept`: either that sees that this life is over, or this waits for it. It calls nobody.
        fence(SeqCst);
        while !fault::planted("answer unseen") && self.word(Grants::ACCEPTING).load(Acquire) != 0 {
            yield_now();
        }
        self.disown();
        0
    }

    /// Lets a forked child begin without what its parent was granted. (Whoever was writing an answer is not here.)
    pub fn disown(&self) {
        self.forget();
        self.word(Grants::ASKING).store(0, Release);
    }

    /// The words become another key's: of nothing that was granted by them anything can start any more. `name` notes whose they are. Returns the
    /// number of the new life, which is odd; while there is none, it is even. Only for the one who asks.
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

    /// Would nobody notice if this were forgotten?
    pub fn is_idle(&self, now: Tick) -> bool {
        self.has_ended(now) && self.word(Grants::ASKING).load(Relaxed).is_multiple_of(2)
    }

    /// Has all ended that was granted, and is nothing else known that is good?
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
