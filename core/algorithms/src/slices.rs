//! The sliced log: a rolling window of up to a thousand million units in bounded memory, lock-free, never exceeded.
//!
//! # Shape
//!
//! Time is cut into *slices* of `d` ticks, at most [`PER_WINDOW`] to a window. Starts are counted, not kept. One word,
//! the head, holds the slice of the newest start and the number of units ever started. A ring holds that number for the
//! time at which each slice was entered.
//!
//! ```text
//!                63        33 32     1     0
//! head           [ slice p  ][ units ][ seal ]
//! ring[y mod N]  [ slice y  ][ units started before y ]
//! life           [ 0 ][ life, 13 bits ][ tick at which the life's first slice begins, in steps, 50 bits ]
//! ```
//!
//! # Deciding
//!
//! A start counts as if it happened at the last tick of its slice. Let `x` be the first slice that still counts. Then
//! `head.units − ring[x]` units are in the window. One compare-and-swap on the head is the whole admission. Before it,
//! the entries of the slices that it enters are filled. If a process dies in between, nothing has been admitted, and
//! the next caller fills them again. Units become free when a whole slice has left the window: late, by less than one
//! slice.
//!
//! # Correctness
//!
//! 1. *The head grows.* No two words of the head are ever the same, over all lives: each is a later slice, or more
//!    units in the same one. So if the head is still the word that was read first, nothing was admitted in between. The
//!    admission's compare-and-swap proves it.
//! 2. *An entry up to the head's slice is final*, except for 7. A caller that moves the head has filled the slices that
//!    it enters with the units that its compare-and-swap proves right. Entries are only raised, and a late filler has
//!    fewer units, or an earlier slice. So the entries that belong to a head that was read stay readable, or are seen
//!    to be gone. Entries newer than the head make the use look smaller. So a denial needs no proof; the numbers
//!    reported with it do.
//! 3. *Everything that still counts is in the ring.* A claim lies less than [`SLICES`] beyond the first slice that
//!    counts at its time, and the time is read after the head. A caller that finds another slice's entry has an old
//!    time, and begins again.
//! 4. *No caller fills more than `SLICES` beyond a head that was current.* After a longer pause the head first jumps,
//!    with unchanged units and nothing filled. A jump is visible: the entry of the head's own slice is missing. While
//!    it is missing, nothing was started since the jump, so any caller may fill what counts with the head's units
//!    ([`Slices::look`]).
//! 5. *Starts keep their distance.* A start happens no earlier than `ready` and no later than its slice's end. When it
//!    was admitted, the slices that had not left the window at `ready` held at most `limit` units, including it. Later
//!    admissions are in the same slice or a later one. So no half-open window ever holds more than `limit`.
//! 6. *Lives do not mix.* The cells are sealed and reused, and `life` is closed in between. The slices of a new life
//!    have greater numbers than any that a claim or a filler of an earlier life can still write, so 1 and 2 hold across
//!    lives. A caller that reads the head of a life other than the intended one then sees that `life` has changed.
//! 7. *A start moves to the slice of its own time* ([`Slices::move_back`]), if it was counted in a later one: because
//!    it was a place, or because other places lie ahead. The entries from the next slice up to that later one are
//!    raised by its units, the last first. So at every moment it counts in one slice, none before the one in which it
//!    started. Statement 5 holds for later admissions: where it matters whether the start counts, the end of that slice
//!    is no earlier than the start. A process that dies in between, or finds an entry gone or its units not there,
//!    leaves the start in a later slice. In other lives the entries have other numbers.
//! 8. *A place may become ready sooner* ([`Slices::ready_of`]): as soon as the slices up to its own that have not left the window
//!    hold at most `limit` units, including it. So statement 5 holds for it. The units up to its slice are read twice, and are the
//!    same: what moves by 7 from beyond it in between is not missed. (What was claimed later waits for the same slices to leave, but a
//!    recorded start waits for nothing.)
//!
//! A *place*, a start in the future, is a claim in the slice in which its grace ends. Units cannot be distinguished. So
//! the holder of the place has to ensure that it is used once. Whether it still counts is known by the log's *era*,
//! which ends when everything is forgotten.
//!
//! # Orderings
//!
//! * The head is read with `Acquire`, before the entries, and changed with `AcqRel`, after they were filled. So a
//!   reader of the head sees at least the entries that belong to it. All its changes are compare-and-swaps, and so
//!   continue the release sequence.
//! * Entries are raised with `AcqRel` and read with `Acquire`. So a reader of an entry that a later start has raised
//!   sees that start's head when it reads the head again. An admission needs no such order: its compare-and-swap acts
//!   on the last head.
//! * `logged`, entries and head of a new life are stored with `Release` while `life` is [`CLOSED`]. `life` is read with
//!   `Acquire` after the head, and after `logged`. So a reader of anything new finds it closed, or another life.
//! * The first life is begun by a compare-and-swap on `life` alone, which holds everything about it.
//! * `era` is read with `Acquire` before the head, when a place is started with: if the era belongs to a later life,
//!   the head is rejected.

use super::log::{Answer, Ask, SETTLED, STARTED, Stage, StartId, Taken, View, Window, put};
use super::{Algorithm, Forgotten, History, Sealed, Start, Tries};
use crate::atomic::{AtomicU64, *};
use crate::time::{MAX_TIME, Now, Tick};

/// The number of slices that a ring holds. (The model checker's rings are smaller.)
pub const SLICES: u64 = if cfg!(model) { 8 } else { 1 << 14 };

/// The most units that a window may hold.
pub const MAX: u64 = 1_000_000_000;

/// A bit of `life`: these cells are being written. The former life may stay readable next to it.
pub const CLOSED: u64 = 1 << 63;

/// The number of slices of a window. The other half of the ring is for places.
const PER_WINDOW: u64 = SLICES / 2;

const SEAL: u64 = 1;
const COUNT: u32 = 1;
const SLICE: u32 = 33;

/// The most units that one life can count. It begins with no more than twice a limit, or the most of all limits.
const MAX_COUNT: u64 = (1 << (SLICE - COUNT)) - 1;
/// From here on a life may be unable to count another start, but not before.
const MANY: u64 = 1 << 31;
const _: () = assert!(2 * MAX < MANY && MANY + MAX <= MAX_COUNT);

/// The last slice.
const LAST: u64 = (1 << (64 - SLICE)) - 1;

const BEGAN: u32 = 50;
const STEPS: u64 = (1 << BEGAN) - 1;
/// Lives begin at multiples of this. So the 50 bits reach further than a clock of nanoseconds, which ends after 584 years.
const STEP: Tick = if cfg!(model) { 2 } else { 32 };
/// The latest tick at which a life can begin.
const LATEST: Tick = STEPS * STEP;
const _: () = assert!(cfg!(model) || LATEST > u64::MAX / 1_000 + MAX_TIME);
/// A life's first slice is its number times this. It is more than a ring, so that slice numbers only grow.
const STRIDE: u64 = 1 << 17;
/// Lives begin in the lower half of the slices, so that each has at least the other half.
const LIVES: u64 = CLOSED >> BEGAN;
const _: () = assert!(STRIDE > 2 * SLICES + STEP && 2 * LIVES * STRIDE == LAST + 1);

/// One key's sliced log, in cells that live elsewhere.
#[derive(Clone, Copy)]
pub struct Slices<'a> {
    /// The newest slice: see the head of this file.
    pub head: &'a AtomicU64,
    /// The life of these cells, or [`CLOSED`].
    pub life: &'a AtomicU64,
    /// The value of `life` before the caller read anything else; 0: the cells are unused.
    pub base: u64,
    /// [`SLICES`] words.
    pub ring: &'a [AtomicU64],
    /// The current era. It grows when everything is forgotten.
    pub era: &'a AtomicU64,
    /// The number of the head's units that are in the ledger.
    pub logged: &'a AtomicU64,
    /// The number of the head's units that [`Slices::write`] wrote. Decisions do not need it.
    pub written: &'a AtomicU64,
    /// Until a window after this the limit counts as full: 0 in a new log, the moment of the loss where an earlier
    /// state was lost.
    pub born: Tick,
}

/// The division of time into slices in a life.
#[derive(Debug, Clone, Copy)]
struct Scale {
    first: u64,
    began: Tick,
    /// The length of a slice.
    slice: Tick,
    /// The length of the window.
    window: Tick,
}

impl Scale {
    #[inline]
    fn new(first: u64, began: Tick, window: Tick) -> Scale {
        Scale { first, began, slice: window.div_ceil(PER_WINDOW), window }
    }

    /// Returns the slice of a tick. Earlier ticks count in the life's first slice.
    #[inline(always)]
    fn slice_of(&self, tick: Tick) -> u64 {
        self.first.saturating_add(tick.saturating_sub(self.began) / self.slice)
    }

    /// Returns the last tick of a slice.
    #[inline(always)]
    fn end_of(&self, slice: u64) -> Tick {
        // (The result for a slice that was never written is meaningless, but the computation ends.)
        self.began.wrapping_add(slice.wrapping_sub(self.first).wrapping_add(1).wrapping_mul(self.slice)).wrapping_sub(1)
    }

    /// Returns the first slice that counts: its last tick is less than a window ago.
    #[inline(always)]
    fn oldest(&self, now: Now) -> u64 {
        self.slice_of((now.floor + 1).saturating_sub(self.window))
    }

    /// Returns whether the slice numbers end before the ring does.
    #[inline]
    fn is_over(&self, now: Now) -> bool {
        self.slice_of(now.ceil) > LAST - SLICES
    }
}

/// The values that were read.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// The head's word, then its fields.
    word: u64,
    slice: u64,
    units: u64,
    now: Now,
    /// The first slice that counts.
    oldest: u64,
}

#[inline]
const fn word(slice: u64, units: u64) -> u64 {
    slice << SLICE | units << COUNT
}

#[inline]
const fn slice_in(word: u64) -> u64 {
    word >> SLICE
}

#[inline]
const fn units_in(word: u64) -> u64 {
    (word >> COUNT) & MAX_COUNT
}

#[cfg(not(model))]
static UNTOUCHED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

impl<'a> Slices<'a> {
    /// Returns the log of an unused key. For reading only.
    #[cfg(not(model))]
    pub fn untouched(born: Tick) -> Slices<'static> {
        let [head, life, era, logged, written] = [&UNTOUCHED[0]; 5];
        Slices { head, life, base: 0, ring: &UNTOUCHED[1..], era, logged, written, born }
    }

    #[inline(always)]
    fn entry(&self, slice: u64) -> &'a AtomicU64 {
        debug_assert!(self.ring.len().is_power_of_two());
        // SAFETY: a ring is never empty, and the mask keeps the index below its length.
        unsafe { self.ring.get_unchecked((slice & (self.ring.len() as u64 - 1)) as usize) }
    }

    #[inline(always)]
    fn scale(&self, window: Tick) -> Scale {
        let life = (self.base & !CLOSED) >> BEGAN;
        Scale::new(life * STRIDE, (self.base & STEPS) * STEP, window)
    }

    /// The same, in a life that has begun: the first life begins at the first use.
    #[inline(always)]
    fn begun(&self, clock: impl Fn() -> Now) -> Result<Self, Sealed> {
        if self.base != 0 {
            return Ok(*self);
        }
        let base = first_life(clock());
        match self.life.compare_exchange(0, base, AcqRel, Acquire) {
            Ok(_) => Ok(Slices { base, ..*self }),
            // Another caller has begun it.
            Err(base) if base <= STEPS => Ok(Slices { base, ..*self }),
            Err(_) => Err(Sealed),
        }
    }

    /// Returns the head's word, if it belongs to this life.
    #[inline(always)]
    fn read_head(&self) -> Result<u64, Sealed> {
        let word = self.head.load(Acquire);
        // (6) After the head: a later life's head was written after `life` was closed.
        let lives = self.life.load(Acquire) == self.base && self.base & CLOSED == 0;
        if word & SEAL == 0 && lives { Ok(word) } else { Err(Sealed) }
    }

    #[inline(always)]
    fn look(&self, scale: &Scale, clock: impl Fn() -> Now) -> Result<Seen, Sealed> {
        let word = self.read_head()?;
        // (3) After the head, so that it is no earlier than the time of the caller that moved the head.
        let now = clock();
        debug_assert!(now.ceil - now.floor <= 1);
        let (slice, units, oldest) = (slice_in(word), units_in(word), scale.oldest(now));
        if oldest <= slice && slice_in(self.entry(slice).load(Acquire)) < slice {
            // (4) It jumped here, and these are the units that it jumped with: with more units, this entry would have
            // been filled.
            self.fill(oldest, slice, units);
        }
        Ok(Seen { word, slice, units, now, oldest })
    }

    /// Fills the entries of the slices `from..=to`. Any caller may do so, any number of times.
    #[inline]
    fn fill(&self, from: u64, to: u64, units: u64) {
        // Earlier slices have the same entries.
        for slice in from.max((to + 1).saturating_sub(SLICES))..=to {
            // (2) Entries are only raised. A late filler has fewer units, or an earlier slice.
            self.entry(slice).fetch_max(word(slice, units), AcqRel);
        }
    }

    /// Returns how many units count that were started in this slice or later. `None`: the ring has moved on.
    #[inline(always)]
    fn used_from(&self, seen: &Seen, slice: u64) -> Option<u64> {
        if slice > seen.slice {
            return Some(0);
        }
        let entry = self.entry(slice).load(Acquire);
        // (2) An entry may exceed the units that were read: newer starts raised it, which is noticed at the end.
        (slice_in(entry) == slice).then(|| seen.units.saturating_sub(units_in(entry)))
    }

    /// Returns when at most `most` units still count: 0 if that is already so. `None`: the ring has moved on.
    #[inline(always)]
    fn left_at(&self, scale: &Scale, seen: &Seen, most: u64) -> Option<Tick> {
        if self.used_from(seen, seen.oldest)? <= most {
            return Some(0);
        }
        // Later entries have more units, so fewer are left: find the last slice that has to leave.
        let (mut leaves, mut stays) = (seen.oldest, seen.slice + 1);
        while stays - leaves > 1 {
            let middle = leaves.midpoint(stays);
            if self.used_from(seen, middle)? <= most { stays = middle } else { leaves = middle }
        }
        Some(scale.end_of(leaves).saturating_add(scale.window))
    }

    /// Returns the moment before which no start is admitted, even if units are free.
    #[inline(always)]
    fn gate(&self, scale: &Scale, ask: &Ask) -> Tick {
        ask.gate.max(self.born.saturating_add(scale.window))
    }

    /// Moves the head to this slice and counts these units.
    #[inline(always)]
    fn move_head(&self, seen: &Seen, slice: u64, weight: u64) -> bool {
        // (2) Before the head moves: its readers find the entries that belong to it. (4) A jump fills nothing.
        if slice <= seen.slice + SLICES {
            self.fill(seen.oldest.max(seen.slice + 1), slice, seen.units);
        }
        // (1) The admission. If the head is unchanged, nothing was admitted since it was read.
        self.head.compare_exchange(seen.word, word(slice, seen.units + weight), AcqRel, Relaxed).is_ok()
    }

    /// Reads the state, and changes nothing (but may finish another caller's jump).
    pub fn view(&self, ask: &Ask, clock: impl Fn() -> Now) -> Result<View, Sealed> {
        let base = if self.base == 0 { first_life(clock()) } else { self.base };
        let scale = Slices { base, ..*self }.scale(one(ask).length);
        let mut tries = Tries::default();
        loop {
            tries.again()?;
            let seen = self.look(&scale, &clock)?;
            if let Some(view) = self.view_at(&scale, &seen, ask)
                && self.still_is(&seen)
            {
                return Ok(view);
            }
        }
    }

    /// Returns whether the head is unchanged, after everything that was read since (1).
    #[inline]
    fn still_is(&self, seen: &Seen) -> bool {
        self.head.load(Acquire) == seen.word
    }

    #[inline]
    fn view_at(&self, scale: &Scale, seen: &Seen, ask: &Ask) -> Option<View> {
        let limit = one(ask).limit;
        let gate = self.gate(scale, ask);
        let used = self.used_from(seen, seen.oldest)?;
        let remaining = if gate > seen.now.floor { 0 } else { limit.saturating_sub(used) };
        // Weight 0 needs no free units.
        let ready = match ask.weight {
            0 => ask.gate,
            weight => self.left_at(scale, seen, limit.saturating_sub(weight))?.max(gate),
        };
        let empty = self.left_at(scale, seen, 0)?.max(gate);
        Some(View { now: seen.now.floor, ready, remaining, empty })
    }

    /// Returns whether nothing counts any more. Another caller may start right after.
    pub fn is_idle(&self, longest: Tick, now: Now) -> bool {
        let head = self.head.load(Acquire);
        let gone = || self.scale(longest).end_of(slice_in(head)) + longest <= now.floor;
        self.life.load(Acquire) == self.base && (units_in(head) == 0 || gone())
    }

    /// Returns whether a claim was refused with [`Sealed`] because this life cannot count any further. Its contents
    /// then have to be sealed and rewritten; the rewrite is never refused for that reason.
    pub fn is_used_up(&self, longest: Tick, now: Now) -> bool {
        let head = self.head.load(Acquire);
        let mine = self.life.load(Acquire) == self.base && self.base != 0;
        mine && (units_in(head) >= MANY || self.scale(longest).is_over(now))
    }

    /// Starts with a place that is ready and open at `now`, and gives the rest of its grace back. Returns the moment
    /// from which it counts. `None`: it no longer counts. The holder knows that it was not used.
    pub fn present(&self, place: StartId, window: Tick, now: Now) -> Result<Option<Tick>, Sealed> {
        let era = self.era.load(Acquire);
        let head = self.read_head()?;
        if place.ticket != era {
            return Ok(None);
        }
        // It has started; the rest is optional.
        let scale = self.scale(window);
        let (from, to) = (scale.slice_of(place.stamp), scale.slice_of(now.ceil));
        let is_at = self.move_back(head, from, to, place.weight);
        Ok(Some(if is_at < from { scale.end_of(is_at) } else { place.stamp }))
    }

    /// Returns when a place is ready now: those that it waits for may have moved since it was taken. `None`: it does not count here.
    pub fn ready_of(&self, place: StartId, ask: &Ask, clock: impl Fn() -> Now) -> Result<Option<Tick>, Sealed> {
        let Window { limit, length } = one(ask);
        let scale = self.scale(length);
        let mut tries = Tries::default();
        loop {
            tries.again()?;
            let seen = self.look(&scale, &clock)?;
            let slice = scale.slice_of(place.stamp);
            // The units up to its slice.
            let units = match slice < seen.slice {
                true => {
                    Some(self.entry(slice + 1).load(Acquire)).filter(|next| slice_in(*next) == slice + 1).map(units_in)
                }
                false => (slice == seen.slice).then_some(seen.units),
            };
            let left = units.and_then(|units| self.left_at(&scale, &Seen { slice, units, ..seen }, limit));
            let is_same = || {
                let next = self.entry(slice + 1).load(Acquire);
                slice >= seen.slice || slice_in(next) == slice + 1 && Some(units_in(next)) == units
            };
            // (8)
            if self.still_is(&seen) && (units.is_none() || is_same()) {
                return Ok(left.map(|left| left.max(self.gate(&scale, ask))));
            }
        }
    }

    /// Moves this many units, which were started at slice `to`, from slice `from` to that slice, or to one as early as
    /// possible. Returns the slice.
    #[cold]
    fn move_back(&self, head: u64, from: u64, to: u64, weight: u64) -> u64 {
        let newest = slice_in(head);
        if from > newest {
            return from;
        }
        let mut after = if from < newest { self.entry(from + 1).load(Acquire) } else { head };
        for slice in (to + 1..=from).rev() {
            let is_after = slice_in(after) == if slice < newest { slice + 1 } else { newest };
            // (7) The last first, so that the units count in one slice at every moment.
            let raised = self.entry(slice).fetch_update(AcqRel, Acquire, |was| {
                let units = units_in(was) + weight;
                // Otherwise it is not here.
                (is_after && slice_in(was) == slice && units <= units_in(after)).then(|| word(slice, units))
            });
            let Ok(was) = raised else { return slice };
            after = word(slice, units_in(was) + weight);
        }
        from.min(to)
    }

    /// Returns whether it is sealed.
    pub fn is_sealed(&self) -> bool {
        self.head.load(Acquire) & SEAL != 0
    }

    /// Returns the starts that are not in the ledger yet, as one per slice, and the value for `logged` when they are.
    /// For callers that may rewrite the log.
    pub fn unlogged(&self, window: Tick, now: Now) -> (Vec<Start>, u64) {
        let (head, logged) = (self.head.load(Acquire), self.logged.load(Acquire));
        let (mut starts, (stamp, units)) = self.starts(window, head, (logged, logged), now);
        let gone = Start { stamp, units, state: STARTED, id: u64::MAX, is_logged: false };
        starts.splice(0..0, (units > 0).then_some(gone));
        starts.iter_mut().for_each(|start| start.state = STARTED);
        (starts, units_in(head))
    }

    /// Ends this life, and returns its base: it may have begun since the caller read it. From here on every call on it
    /// returns [`Sealed`]. Sealing again is a no-op, also in a later life.
    pub fn seal(&self) -> u64 {
        loop {
            let base = if self.base == 0 { self.life.load(Acquire) } else { self.base };
            match (Slices { base, ..*self }).read_head() {
                Ok(word) if self.head.compare_exchange(word, word | SEAL, AcqRel, Relaxed).is_err() => {}
                Err(Sealed) if base != self.life.load(Acquire) && self.base == 0 => {}
                _ => {
                    return base;
                }
            }
        }
    }

    /// Returns the contents of a sealed log, in ascending order, with what counts in the future. It includes what has
    /// left the window, because a longer one may be declared. `now` is a time after the sealing.
    pub fn history(&self, window: Tick, now: Now) -> History {
        let (head, logged) = (self.head.load(Acquire), self.logged.load(Acquire));
        let (mut starts, (stamp, gone)) = self.starts(window, head, (logged, 0), now);
        starts.retain(|start| start.stamp + MAX_TIME > now.floor);
        let written = self.written.load(Acquire).min(gone);
        let mut forgotten = vec![
            Forgotten { stamp, units: gone - written, is_bounded: true },
            Forgotten { stamp, units: written, is_bounded: false },
        ];
        forgotten.retain(|some| some.units > 0 && some.stamp + MAX_TIME > now.floor);
        let slice = self.scale(window).began;
        History { starts, forgotten, era: self.era.load(Acquire), slice, ..History::default() }
    }

    /// Returns what was started after the first `from` units, as one or two starts per slice: those in the ledger, and
    /// those missing from it. In addition, how many units are no longer in the ring, and until when they were started.
    ///
    /// Those have left the window. For a slice whose entry belongs to another slice, this is statement 3 at the head of
    /// this file; slices older than the life have none: see [`Slices::write`].
    fn starts(&self, window: Tick, head: u64, (logged, from): (u64, u64), now: Now) -> (Vec<Start>, (Tick, u64)) {
        let scale = self.scale(window);
        let (newest, mut after) = (slice_in(head), units_in(head));
        let mut starts = Vec::new();
        let mut count = |stamp, before: u64, after| {
            let between = logged.clamp(before, after);
            for (units, is_logged) in [(after - between, false), (between - before, true)] {
                if units > 0 {
                    starts.push(Start { stamp, units, state: SETTLED, id: u64::MAX, is_logged });
                }
            }
        };
        let mut last = now.floor.saturating_sub(window);
        for slice in (scale.first.max(newest.saturating_sub(SLICES - 1))..=newest).rev() {
            let entry = self.entry(slice).load(Acquire);
            if after <= from || slice_in(entry) > slice {
                break; // That is all, or the ring has moved on.
            }
            // Otherwise it was jumped over.
            if slice_in(entry) == slice {
                let before = units_in(entry).clamp(from, after);
                count(scale.end_of(slice), before, after);
                after = before;
                last = last.min(scale.end_of(slice));
            }
        }
        starts.reverse();
        (starts, (last, after - from.min(after)))
    }

    /// Begins another life that contains those of the starts that are in the window. They count from their stamps, or later by
    /// less than a slice. With the same window the slices begin when they did, so that each start is found where its permit
    /// says. Returns the value for `life`.
    ///
    /// Only for a caller that has these cells alone: they are zeroed, or sealed with `life` closed, before `now` was
    /// read. `None`: they have had too many lives.
    pub fn write(&self, history: &History, window: Window, now: Now) -> Option<u64> {
        let starts = &history.starts;
        debug_assert!(starts.is_sorted_by_key(|s| s.stamp));
        // No caller fills further than this beyond the old head.
        let life = (slice_in(self.head.load(Acquire)) + SLICES) / STRIDE + 1;
        if life >= LIVES {
            return None;
        }
        // All that count are kept, even if that is more than a smaller limit allows, because a larger one may follow.
        let mut free = 2 * MAX;
        let counting = starts.iter().rev().filter(|s| s.units > 0 && s.stamp + window.length > now.floor);
        let kept: Vec<_> = counting
            .map_while(|s| {
                let units = s.units.min(free);
                free -= units;
                (units > 0).then_some((s.stamp.min(LATEST), units, s.is_logged))
            })
            .collect();

        let slice = Scale::new(0, 0, window.length).slice;
        let (oldest, newest) = kept.last().zip(kept.first()).map_or((now.floor, now.floor), |(a, b)| (a.0, b.0));
        // The first slice ends with the oldest start, or with that one's slice.
        let mut began = (oldest + 1).saturating_sub(slice);
        if history.slice > 0 {
            let phase = history.slice % slice;
            began = began.checked_sub((began + slice - phase) % slice).unwrap_or(phase);
        }
        // Starts before a place count before it.
        began -= began.saturating_sub(now.floor).div_ceil(slice) * slice;
        // Some slices earlier, so that the slices stay where they are; those of another window, up to some ticks later.
        began = began.next_multiple_of(STEP.min(1 << slice.trailing_zeros()));
        let aligned = (0..STEP).find_map(|slices| began.checked_sub(slices * slice).filter(|tick| tick % STEP == 0));
        began = aligned.unwrap_or(began / STEP * STEP);
        // Where the ring is too short for a place in the far future, the other starts count as started later than they
        // were.
        let scale = Scale::new(0, began, window.length);
        let (oldest, newest) = (scale.oldest(now), scale.slice_of(newest));
        if newest - oldest >= SLICES {
            began = (began + (newest - (SLICES - 1)).next_multiple_of(STEP) * slice).min(LATEST);
        }

        let scale = Scale::new(life * STRIDE, began, window.length);
        let (mut at, mut units, mut logged) = (scale.first, 0, 0);
        let write = |at, units| put(self.entry(at), word(at, units));
        write(at, units);
        for (stamp, weight, is_logged) in kept.into_iter().rev() {
            while at < scale.slice_of(stamp) {
                at += 1;
                write(at, units);
            }
            units += weight;
            logged += if is_logged && logged + weight == units { weight } else { 0 };
        }
        self.logged.store(logged, Release);
        self.written.store(units, Release);
        self.head.store(word(at, units), Release);
        let began = began / STEP;
        Some(life << BEGAN | began)
    }
}

impl Algorithm for Slices<'_> {
    #[inline(always)]
    fn decide<const LOOK: bool>(&self, ask: &Ask, clock: impl Fn() -> Now, view: &mut View) -> Result<Answer, Sealed> {
        let window = one(ask);
        debug_assert!((1..=window.limit).contains(&ask.weight));
        let log = self.begun(&clock)?;
        let scale = log.scale(window.length);
        let mut tries = Tries::default();
        loop {
            tries.again()?;
            let seen = log.look(&scale, &clock)?;
            let now = seen.now;
            if seen.units + ask.weight > MAX_COUNT || scale.is_over(now) {
                return Err(Sealed); // see `is_used_up`
            }
            let Some(left) = log.left_at(&scale, &seen, window.limit - ask.weight) else { continue };
            let ready = left.max(log.gate(&scale, ask));
            if LOOK {
                let Some(whole) = log.view_at(&scale, &seen, ask) else { continue };
                *view = whole;
            }
            let must_wait = ready > now.floor && !ask.force;
            let is_place = must_wait || ask.reserve;
            let stamp = if is_place { ready.max(now.ceil).saturating_add(ask.grace) } else { now.ceil };
            let slice = scale.slice_of(stamp).max(seen.slice);
            if must_wait && ready - now.floor > ask.patience || is_place && slice - seen.oldest >= SLICES {
                if LOOK && !log.still_is(&seen) {
                    continue;
                }
                return Ok(Answer { now, ready, taken: None });
            }
            let era = log.era.load(Acquire);
            if slice > seen.slice + SLICES {
                // First to the current time, which changes nothing for any caller.
                log.move_head(&seen, scale.slice_of(now.ceil), 0);
                continue;
            }
            if log.move_head(&seen, slice, ask.weight) {
                let here = if is_place { slice } else { scale.slice_of(stamp) };
                let slice = match here < slice {
                    // Places lie ahead of it.
                    true => log.move_back(word(slice, seen.units + ask.weight), slice, here, ask.weight),
                    false => slice,
                };
                let stamp = scale.end_of(slice);
                if LOOK {
                    view.remaining = view.remaining.saturating_sub(ask.weight);
                    view.empty = view.empty.max(stamp.saturating_add(window.length));
                }
                let end = seen.units + ask.weight;
                let taken = Some(Taken { ticket: era, end, stamp, ahead: 0, stage: Stage::of(is_place) });
                return Ok(Answer { now, ready, taken });
            }
        }
    }
}

/// Returns the first life of unused cells, from now on.
fn first_life(now: Now) -> u64 {
    now.floor.clamp(STEP, LATEST) / STEP
}

#[inline]
fn one(ask: &Ask) -> Window {
    debug_assert_eq!(ask.windows.len(), 1);
    // (None: such a policy has one.)
    ask.windows.first().copied().unwrap_or(Window { limit: 0, length: 1 })
}

#[cfg(all(test, model))]
#[path = "slices_models.rs"]
mod models;
#[cfg(all(test, not(model)))]
#[path = "slices_tests.rs"]
mod tests;
