//! Counted windows: the fixed window and the sliding window counter. Two words per key, lock-free.
//!
//! # Shape
//!
//! Windows of one length follow each other, aligned to 1970. Window `k` lives in cell `k mod 2`, counted from a base so
//! that its number fits:
//!
//! ```text
//!         63        32 31       2    1        0
//! cell    [ number k ][ units ][ closed ][ seal ]
//! ```
//!
//! *Closed* means that no more starts are counted in that window. The *frontier* is the newer cell's window, or the one
//! after it if that is closed.
//!
//! # Deciding
//!
//! A start of weight `w` fits in its window if `units + w ≤ limit`. In the sliding window counter it fits if `before ·
//! (length − elapsed) + (units + w) · length ≤ limit · length`, where `before` is the units of the window before. The
//! start takes the first moment from the frontier on at which it fits. That moment is computed, and lies at most two
//! windows ahead ([`Seen::earliest`]). So a start that has to wait is served before all later ones.
//!
//! One compare-and-swap on the window's cell is the whole admission. Where the window before could still take starts,
//! another compare-and-swap closes it first. Where windows are skipped, the one before is written as empty and closed.
//! So before anything is counted in a window, the count of the window before is final.
//!
//! # Correctness
//!
//! 1. *Only the frontier's cell can change* ([`Counter::step`], [`Counter::seal`]): its units grow, it is closed, it
//!    becomes a later window, or it is sealed. A later window of the same parity is in the same cell. For one of the
//!    other parity, the window before it is first closed in this cell, which makes the later window the frontier.
//! 2. *So two cells are as good as one word.* Say that they were read as (a, b) with the frontier in a's cell, and that
//!    a is unchanged. A caller that changed b in between had seen the frontier in b's cell. The first such caller saw
//!    (a, b) itself, which has the frontier in a's cell: so there is none. Hence the admission's compare-and-swap
//!    proves both cells. A reader that finds the first cell unchanged after reading the other has seen both at one
//!    moment.
//! 3. *No word comes back.* Each change makes the cell's word larger. (A forced start that cannot be counted any
//!    further leaves it unchanged, and full.) So a compare-and-swap that was delayed while its cell changed fails.
//! 4. *No caller is needed again.* A caller that dies before the admission's compare-and-swap has at most closed
//!    windows before the one that it had to wait for, as if it had died just after it: that one is the frontier, with
//!    nothing counted.
//! 5. *Every start is in its window.* The frontier only moves on, and the time is read after the cells. A start happens
//!    no earlier than `ready` and no later than `stamp`, the last tick of the window that counts it. Later in a window
//!    there are only more free units. So a window never holds more than the limit, and two windows' length at most
//!    twice that.
//! 6. *Lives do not mix.* The cells are sealed and reused, and `life` is closed in between. A new life's numbers are
//!    larger than all that these cells ever held, so 3 holds across lives. A caller that reads cells of a life other
//!    than the intended one then sees that `life` has changed.
//!
//! A *place*, a start in the future, is counted in the window in which it is ready, and is valid until that window
//! ends. Units cannot be distinguished: as in the sliced log, whether a place still counts is known by the *era*.
//!
//! # Orderings
//!
//! * Cells are read with `Acquire`. The first is read once more after the other, so the load of the other does not come
//!   later than the second read. They are changed with `AcqRel`: a reader of what is counted in a window sees the window
//!   before it closed (2). A failed compare-and-swap is `Relaxed`: both cells are read again.
//! * `base` is set by a compare-and-swap (`AcqRel`, `Acquire` where another caller was faster) before anything is
//!   counted from it, and read with `Acquire` before the cells.
//! * `logged` and the cells of a new life are stored with `Release` while `life` is closed. All are read with
//!   `Acquire`, `life` last. So a reader of anything new finds it closed, or another life.
//!
//! Source: the approximated sliding window is the one of Cloudflare, "How we built rate limiting capable of scaling to
//! millions of domains" (2017).

use super::log::{Answer, Ask, PLACE, SETTLED, STARTED, Stage, StartId, Taken, View, put};
use super::{Algorithm, Forgotten, History, Sealed, Start, Tries};
use crate::atomic::{AtomicU64, *};
use crate::time::{MAX_TIME, Now, Tick};

const SEAL: u64 = 1;
const CLOSED: u64 = 2;
const COUNT: u32 = 2;
const NUMBER: u32 = 32;

/// The most units that a window can count.
const MAX_COUNT: u64 = (1 << (NUMBER - COUNT)) - 1;

/// The last window's number.
const LAST: u64 = (1 << (64 - NUMBER)) - 1;
/// When time has reached a number beyond this, the life is used up: the other half is for places.
const HALF: u64 = LAST / 2;

/// The division into windows and the limit of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// 1 to 1,000,000,000.
    pub limit: u64,
    /// The length of a window.
    pub length: Tick,
    /// Whether the window before counts in part.
    pub is_smooth: bool,
    /// The Unix time of tick 0 in µs, wrapping. No caller asks about ticks before 1970.
    pub phase: u64,
}

impl Frame {
    /// Returns how long a start may count.
    #[inline]
    pub fn memory(&self) -> Tick {
        self.length * self.lasts()
    }

    /// Returns in how many windows a start counts.
    #[inline]
    fn lasts(&self) -> u64 {
        1 + u64::from(self.is_smooth)
    }

    /// Returns the window of a tick, counted since 1970.
    #[inline(always)]
    pub fn window_of(&self, tick: Tick) -> u64 {
        tick.saturating_add_signed(self.phase as i64) / self.length
    }

    #[inline(always)]
    pub(crate) fn start_of(&self, window: u64) -> Tick {
        window.saturating_mul(self.length).saturating_add_signed((self.phase as i64).wrapping_neg())
    }

    /// Returns the last tick of a window. (The first tick may lie before tick 0.)
    #[inline]
    pub(crate) fn end_of(&self, window: u64) -> Tick {
        self.start_of(window + 1).saturating_sub(1)
    }
}

/// One key's windows, in cells that live elsewhere.
#[derive(Clone, Copy)]
pub struct Counter<'a> {
    /// Two words.
    pub ring: &'a [AtomicU64],
    /// The number of the cells' current life.
    pub life: &'a AtomicU64,
    /// The number of the intended life. Not [`super::log::CLOSED`], except for [`Counter::write`].
    pub number: u64,
    /// The window with the number 0, counted since 1970 and wrapping. 0: the cells are unused.
    pub base: &'a AtomicU64,
    /// The current era. It changes when everything is forgotten.
    pub era: &'a AtomicU64,
    /// The progress of the ledger, as in a cell: a window's number and its units; all earlier windows are in the
    /// ledger.
    pub logged: &'a AtomicU64,
    /// The moment of the loss where an earlier state was lost, else 0: the limit counts as full while that state might
    /// count.
    pub born: Tick,
    /// The windows.
    pub frame: Frame,
    /// What earlier windows held.
    pub past: Past<'a>,
}

/// What is no longer in the cells. Only a longer window, of another policy, may need it.
#[derive(Clone, Copy)]
pub struct Past<'a> {
    /// One more than the newest window with which this life began; 0: it began with its first use.
    pub begun: &'a AtomicU64,
    /// Until when the units of `units` were started.
    pub until: &'a AtomicU64,
    /// The number of units before this life, and the number of those in the windows with which it began that this
    /// policy would not have admitted there. See [`EXCESS`].
    pub units: &'a AtomicU64,
}

/// `Past::units`: whether an earlier policy admitted any of them; the excess; the others.
const IS_MIXED: u64 = 1 << 63;
const EXCESS: u32 = 32;
/// More than any limit.
const MANY: u64 = (1 << 31) - 1;

/// The values that were read: both cells at one moment, and a time after it.
#[derive(Debug, Clone, Copy)]
struct Seen {
    cells: [u64; 2],
    base: u64,
    now: Now,
    frame: Frame,
}

#[inline]
const fn word(number: u64, units: u64) -> u64 {
    let units = if units < MAX_COUNT { units } else { MAX_COUNT };
    number << NUMBER | units << COUNT
}

#[inline]
const fn number_in(word: u64) -> u64 {
    word >> NUMBER
}

#[inline]
const fn units_in(word: u64) -> u64 {
    (word >> COUNT) & MAX_COUNT
}

/// Returns the units of a window, if they are still known, else 0.
#[inline(always)]
fn units_of(cells: [u64; 2], number: u64) -> u64 {
    let word = cells[(number & 1) as usize];
    if number_in(word) == number { units_in(word) } else { 0 }
}

/// Returns the first window in which a start may still be counted.
#[inline(always)]
fn frontier(cells: [u64; 2]) -> u64 {
    let newest = newest(cells);
    number_in(newest) + u64::from(newest & CLOSED != 0)
}

/// Returns how many of a window's units are in a ledger with this mark.
#[inline]
fn logged_of(mark: u64, number: u64, units: u64) -> u64 {
    match number_in(mark) {
        marked if marked > number => units,
        marked if marked == number => units.min(units_in(mark)),
        _ => 0,
    }
}

#[inline]
fn newest([even, odd]: [u64; 2]) -> u64 {
    if number_in(odd) > number_in(even) { odd } else { even }
}

/// Returns a base for a life in which this window has this number, or the next one: 0 is not a base.
#[inline]
fn base_of(window: u64, number: u64) -> u64 {
    match window.wrapping_sub(number) {
        0 => u64::MAX,
        base => base,
    }
}

impl Seen {
    /// Returns the number of a tick's window. Earlier ticks count in the life's first window.
    #[inline(always)]
    fn number(&self, tick: Tick) -> u64 {
        (self.frame.window_of(tick).wrapping_sub(self.base) as i64).max(1) as u64
    }

    /// Returns the window of a number, counted since 1970. Numbers that were never reached may lie before.
    #[inline(always)]
    fn window(&self, number: u64) -> u64 {
        (self.base.wrapping_add(number) as i64).max(0) as u64
    }

    #[inline(always)]
    fn start_of(&self, number: u64) -> Tick {
        self.frame.start_of(self.window(number))
    }

    #[inline]
    fn end_of(&self, number: u64) -> Tick {
        self.frame.end_of(self.window(number))
    }

    #[inline(always)]
    fn units_of(&self, number: u64) -> u64 {
        units_of(self.cells, number)
    }

    /// Returns the units that the window before adds to this one.
    #[inline(always)]
    fn before(&self, number: u64) -> u64 {
        if self.frame.is_smooth { self.units_of(number - 1) } else { 0 }
    }

    #[inline(always)]
    fn frontier(&self) -> u64 {
        frontier(self.cells)
    }

    /// Returns the window and the tick at which a start of this weight first fits, from this tick of this window on.
    #[inline(always)]
    fn earliest(&self, weight: u64, from: Tick, first: u64) -> (u64, Tick) {
        let first = first.max(self.frontier());
        // At the latest, the second window after the frontier is empty, and so is the one before it.
        for number in first..first.saturating_add(4) {
            let start = self.start_of(number);
            if let Some(elapsed) = self.opens(number, weight, from.saturating_sub(start)) {
                return (number, start.saturating_add(elapsed));
            }
        }
        // Except for a weight that no window holds.
        (first, Tick::MAX)
    }

    /// Returns how far into this window this weight first fits; at least `elapsed`.
    #[inline(always)]
    fn opens(&self, number: u64, weight: u64, elapsed: Tick) -> Option<Tick> {
        let free = self.frame.limit.checked_sub(self.units_of(number) + weight)?;
        let before = self.before(number);
        if before == 0 {
            return Some(elapsed);
        }
        let (free, before, length) = (u128::from(free), u128::from(before), self.frame.length);
        if before * u128::from(length.saturating_sub(elapsed)) <= free * u128::from(length) {
            return Some(elapsed);
        }
        // This much of the window may be left.
        let left = (free * u128::from(length) / before) as Tick;
        (left > 0).then(|| length - left)
    }

    /// Returns the heaviest start that would be admitted now.
    #[inline]
    fn remaining(&self, gate: Tick) -> u64 {
        let (now, length) = (self.now.floor, self.frame.length);
        let number = self.number(now);
        if gate > now || self.frontier() > number {
            return 0;
        }
        let left = length.saturating_sub(now.saturating_sub(self.start_of(number)));
        let before = u128::from(self.before(number)) * u128::from(left);
        let used = self.units_of(number) + before.div_ceil(u128::from(length)) as u64;
        self.frame.limit.saturating_sub(used)
    }

    /// Returns when nothing here has any effect any more.
    #[inline]
    fn empty(&self) -> Tick {
        let counted = self.cells.into_iter().filter(|word| units_in(*word) > 0);
        let ends = counted.map(|word| number_in(word) + self.frame.lasts());
        self.start_of(ends.fold(self.frontier(), u64::max))
    }
}

#[cfg(not(model))]
static UNTOUCHED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

impl Counter<'_> {
    /// Returns the windows of an unused key. For reading only.
    #[cfg(not(model))]
    pub fn untouched(born: Tick, frame: Frame) -> Counter<'static> {
        let [life, base, era, logged, begun, until, units] = [&UNTOUCHED[0]; 7];
        let past = Past { begun, until, units };
        Counter { ring: &UNTOUCHED, life, number: 0, base, era, logged, born, frame, past }
    }

    /// Checks that these cells still have the intended life. Call this last, before anything that was read is trusted.
    #[inline(always)]
    fn is_alive(&self) -> Result<(), Sealed> {
        if self.life.load(Acquire) == self.number { Ok(()) } else { Err(Sealed) }
    }

    /// Reads both cells, at one moment.
    #[inline(always)]
    fn read(&self) -> [u64; 2] {
        loop {
            let cells = [self.ring[0].load(Acquire), self.ring[1].load(Acquire)];
            // (2) The first is as it was before the other was read: this is both at one moment.
            if self.ring[0].load(Acquire) == cells[0] {
                return cells;
            }
        }
    }

    /// The same, if they are open and belong to this life.
    #[inline(always)]
    fn read_open(&self) -> Result<[u64; 2], Sealed> {
        let cells = self.read();
        self.is_alive()?;
        if (cells[0] | cells[1]) & SEAL == 0 { Ok(cells) } else { Err(Sealed) }
    }

    /// Returns the base that this life has from its first use on.
    #[inline(always)]
    fn begun(&self, clock: impl Fn() -> Now) -> u64 {
        match self.base.load(Acquire) {
            0 => {
                let base = self.first_base(clock());
                self.base.compare_exchange(0, base, AcqRel, Acquire).map_or_else(|theirs| theirs, |_| base)
            }
            base => base,
        }
    }

    #[inline]
    fn first_base(&self, now: Now) -> u64 {
        base_of(self.frame.window_of(now.floor), 2)
    }

    /// Returns the moment before which no start is admitted, even if units are free.
    #[inline(always)]
    fn gate(&self, ask: &Ask) -> Tick {
        if self.born == 0 { ask.gate } else { ask.gate.max(self.born.saturating_add(self.frame.memory())) }
    }

    /// Counts these units in that window, if nothing has changed, and returns the resulting cells; or closes the window
    /// before it.
    #[inline(always)]
    fn step(&self, seen: &Seen, number: u64, weight: u64) -> Option<[u64; 2]> {
        let frontier = seen.frontier();
        // (1) If its parity is not the frontier's, the window before it is closed first, in the frontier's cell.
        let counts = (number - frontier).is_multiple_of(2);
        let (at, next) = match counts {
            true => (number, word(number, seen.units_of(number) + weight)),
            false => (frontier, word(number - 1, seen.units_of(number - 1)) | CLOSED),
        };
        let at = (at & 1) as usize;
        let was = seen.cells[at];
        // (2) This is the frontier's cell: if it is unchanged, so is the other. (3) A delayed change fails.
        let is_done = self.ring[at].compare_exchange(was, next, AcqRel, Relaxed).is_ok();
        let mut cells = seen.cells;
        cells[at] = next;
        (is_done && counts).then_some(cells)
    }

    /// Reads the state, and changes nothing.
    pub fn view(&self, ask: &Ask, clock: impl Fn() -> Now) -> Result<View, Sealed> {
        let mut tries = Tries::default();
        loop {
            tries.again()?;
            let begun = self.base.load(Acquire);
            let base = if begun == 0 { self.first_base(clock()) } else { begun };
            let cells = self.read_open()?;
            // Otherwise another caller has begun this life in between.
            if begun != 0 || cells == [0; 2] {
                let seen = Seen { cells, base, now: clock(), frame: self.frame };
                // Weight 0 needs no free units.
                let ready = match ask.weight {
                    0 => ask.gate,
                    weight => {
                        let from = self.gate(ask).max(seen.now.floor);
                        seen.earliest(weight.min(self.frame.limit), from, seen.number(from)).1
                    }
                };
                return Ok(View { ready, ..self.view_of(&seen, ask) });
            }
        }
    }

    /// Returns everything but `ready`.
    #[inline]
    fn view_of(&self, seen: &Seen, ask: &Ask) -> View {
        let gate = self.gate(ask);
        View { now: seen.now.floor, ready: 0, remaining: seen.remaining(gate), empty: seen.empty().max(gate) }
    }

    /// Returns whether this place still counts. The holder knows that it was not used.
    pub fn present(&self, place: StartId) -> Result<bool, Sealed> {
        let era = self.era.load(Acquire);
        self.read_open()?;
        Ok(place.ticket == era)
    }

    /// Returns how many units that were handed out up to the mark `end` the ledger is missing, and may miss at `now`.
    #[inline]
    pub fn unwritten(&self, end: u64, now: Now) -> u64 {
        let (mark, number) = (self.logged.load(Acquire), number_in(end));
        let missing = |number, units| units - logged_of(mark, number, units);
        let units = missing(number, units_in(end));
        if number_in(mark) >= number {
            return units;
        }
        let (seen, before) = (self.as_is(now), number - 1);
        let counts = before + self.frame.lasts() > seen.number(now.floor);
        units + if counts { missing(before, seen.units_of(before)) } else { 0 }
    }

    /// Reads both cells, sealed or not.
    fn as_is(&self, now: Now) -> Seen {
        Seen { cells: self.read(), base: self.base.load(Acquire), now, frame: self.frame }
    }

    // ---- for the holder of the structure lock ----

    /// Returns whether forgetting this has no visible effect. Another caller may start right after.
    pub fn is_idle(&self, now: Now) -> bool {
        let seen = self.as_is(now);
        self.is_alive().is_ok() && (seen.cells == [0; 2] || seen.empty() <= now.floor)
    }

    /// Ends this life: from here on every call on it returns [`Sealed`]. Sealing again is a no-op.
    pub fn seal(&self) {
        while let Ok(cells) = self.read_open() {
            let at = (frontier(cells) & 1) as usize;
            // (1) Only the frontier's cell can change, so from here on neither does.
            if self.ring[at].compare_exchange(cells[at], cells[at] | SEAL, AcqRel, Relaxed).is_ok() {
                break;
            }
        }
    }

    /// Returns whether the cells are closed for good.
    pub fn is_sealed(&self) -> bool {
        self.ring.iter().any(|cell| cell.load(Acquire) & SEAL != 0)
    }

    /// Returns whether every caller has to wait until these cells are written elsewhere: they are sealed, or their
    /// numbers used up.
    pub fn has_to_move(&self, now: Now) -> bool {
        let seen = self.as_is(now);
        self.is_sealed() || seen.base != 0 && seen.number(now.floor) > HALF
    }

    /// Returns the units of both windows, each split into those in the ledger and those missing from it, in ascending
    /// order.
    fn starts(&self, seen: &Seen, stamp: impl Fn(u64) -> Tick, state: impl Fn(u64) -> u64) -> Vec<Start> {
        let mark = self.logged.load(Acquire);
        let mut cells = seen.cells;
        cells.sort_unstable();
        let mut starts = Vec::new();
        for (number, units) in cells.map(|cell| (number_in(cell), units_in(cell))) {
            let logged = logged_of(mark, number, units);
            for (units, is_logged) in [(logged, true), (units - logged, false)] {
                if units > 0 {
                    let (stamp, state) = (stamp(number), state(number));
                    starts.push(Start { stamp, units, state, id: u64::MAX, is_logged });
                }
            }
        }
        starts
    }

    /// Returns the starts that are missing from the ledger, as one per window, and the value for `logged` when it has
    /// them.
    pub fn unlogged(&self, now: Now) -> (Vec<Start>, u64) {
        let seen = self.as_is(now);
        // They have started by now, except for places.
        let stamp = |number| now.floor.clamp(seen.start_of(number), seen.end_of(number));
        let mut starts = self.starts(&seen, stamp, |_| STARTED);
        starts.retain(|start| !start.is_logged);
        (starts, newest(seen.cells) & !(CLOSED | SEAL))
    }

    /// Returns the contents of sealed cells. Starts are stamped with their window's last tick; those of a window that
    /// has not begun are places. The counts of earlier windows are lost: any of them may have been full.
    pub fn history(&self, now: Now) -> History {
        let (seen, frame, Past { begun, until, units }) = (self.as_is(now), self.frame, self.past);
        let state = |number| if seen.start_of(number) > now.floor { PLACE } else { SETTLED };
        let starts = self.starts(&seen, |number| seen.end_of(number), state);
        let (before, units) = (begun.load(Acquire), units.load(Acquire));
        let is_mixed = units & IS_MIXED != 0;
        // The last window before this life.
        let before = if before == 0 { seen.base.wrapping_add(1) } else { before.wrapping_sub(3) } as i64;
        let before = before.max(-1);
        let [older, newest] = {
            let [a, b] = seen.cells.map(|cell| seen.base.wrapping_add(number_in(cell)) as i64);
            [a.min(b), a.max(b)]
        };
        // Between the two, the newer cell may have held every second one. Before them, every one is lost. While one
        // may count here, because places were counted after it, any that is not in the cells may.
        let (here, lasts) = (frame.window_of(now.floor) as i64, frame.lasts() as i64);
        let end_of = |window: i64| if window < 0 { 0 } else { frame.end_of(window as u64) };
        let mut until = until.load(Acquire);
        let mut earlier = older - 1;
        let all = match newest - 2 + lasts > here && newest >= 2 {
            _ if seen.cells == [0; 2] => [0; 2],
            true => {
                let first = (here - 1).max(0);
                until = until.min(end_of(first - 1));
                let is_between = (first..newest - 1).contains(&older);
                earlier = if is_between { older } else { first } - 1;
                match is_between {
                    true => [newest - 2 - older, earlier - before.min(first - 1)],
                    false => [newest - 1 - first, (earlier - before).max(0)],
                }
            }
            false => [((newest - 2 - older.max(before)).max(-1) + 1) / 2, (earlier - before).max(0)],
        };
        let lost = if all[0] > 0 { newest - 2 } else { earlier };
        let full = |windows: i64| (windows as u64).saturating_mul(frame.limit);
        // The windows with which the life began are in the cells for a while.
        let excess = (units & !IS_MIXED) >> EXCESS;
        let gone = if all == [0; 2] { 0 } else { excess };
        let mut forgotten = vec![
            Forgotten { stamp: end_of(lost), units: full(all[0]), is_bounded: true },
            Forgotten { stamp: end_of(earlier), units: full(all[1]), is_bounded: true },
            Forgotten { stamp: end_of(lost.min(before + 2)), units: gone, is_bounded: false },
            Forgotten { stamp: until, units: units & MANY, is_bounded: !is_mixed },
        ];
        forgotten.retain(|some| some.units > 0 && some.stamp + MAX_TIME > now.floor);
        History { starts, forgotten, era: self.era.load(Acquire), is_mixed, excess, ..History::default() }
    }

    /// Begins another life, with the newest two windows of this history. Returns the value for `base`.
    ///
    /// Only for a caller that has these cells alone: they are zeroed, or sealed with `life` closed, before `now` was
    /// read. `None`: they have had too many lives.
    pub fn write(&self, history: &History, now: Now) -> Option<u64> {
        let frame = self.frame;
        let mut history = history.clone();
        let newest = history.recall(&frame, &frame, now);
        let counted = || history.starts.iter().filter(|start| start.units > 0);
        // (6) Above everything that a caller of an earlier life knows.
        let highest = self.ring.iter().map(|cell| number_in(cell.load(Relaxed))).max().unwrap_or(0);
        let base = base_of(newest, highest + 2);
        let number = newest.wrapping_sub(base);
        if number > HALF {
            return None;
        }
        // The units of a window, and how many of them the ledger has.
        let sum = |window: u64| {
            let mine = counted().filter(|start| frame.window_of(start.stamp) == window);
            mine.fold((0, 0), |(units, logged), start| {
                (units + start.units, logged + if start.is_logged { start.units } else { 0 })
            })
        };
        let (units, logged) = sum(newest);
        let (before, before_logged) = newest.checked_sub(1).map_or((0, 0), sum);
        let older = history.starts.iter().filter(|start| frame.window_of(start.stamp) + 1 < newest);
        let older = older.map(|start| (start.stamp, start.units));
        let older = older.chain(history.forgotten.iter().map(|some| (some.stamp, some.units)));
        let (until, older) =
            older.fold((0, 0), |(until, units), some| (some.0.max(until), some.1.saturating_add(units)));
        let excess = units.saturating_sub(frame.limit) + before.saturating_sub(frame.limit);
        let excess = excess.min(history.excess).min(MANY);
        let mixed = if history.is_mixed { IS_MIXED | excess << EXCESS } else { 0 };
        self.past.begun.store(newest + 1, Release);
        self.past.until.store(until, Release);
        self.past.units.store(mixed | older.min(MANY), Release);
        // There is one mark: the ledger counts as having units of the newer window only if it has all of the other.
        let is_logged = before_logged == before;
        let mark = if is_logged { word(number, logged) } else { word(number - 1, before_logged) };
        self.logged.store(mark, Release);
        // Each store releases: a reader of one sees that the cells were closed.
        put(&self.ring[(number & 1) as usize], word(number, units));
        put(&self.ring[((number - 1) & 1) as usize], word(number - 1, before) | CLOSED);
        Some(base)
    }
}

impl Algorithm for Counter<'_> {
    #[inline(always)]
    fn decide<const LOOK: bool>(&self, ask: &Ask, clock: impl Fn() -> Now, view: &mut View) -> Result<Answer, Sealed> {
        let frame = self.frame;
        debug_assert!((1..=frame.limit).contains(&ask.weight));
        // Before the time is read, so that a life's first window does not lie ahead.
        let base = self.begun(&clock);
        let mut tries = Tries::default();
        loop {
            tries.again()?;
            let cells = self.read_open()?;
            // (5) After the cells, so that it is no earlier than the time of the callers that counted in them.
            let now = clock();
            let mut seen = Seen { cells, base, now, frame };
            let here = seen.number(now.floor);
            if here > HALF {
                return Err(Sealed); // see `has_to_move`
            }
            let from = self.gate(ask).max(now.floor);
            let first = if from == now.floor { here } else { seen.number(from) };
            let (mut number, ready) = seen.earliest(ask.weight, from, first);
            let must_wait = ready > now.floor && !ask.force;
            let is_beyond = must_wait && (ready - now.floor > ask.patience || number > LAST);
            if ask.force {
                number = here.max(seen.frontier());
            }
            let mut taken = None;
            if !is_beyond {
                let era = self.era.load(Acquire);
                let Some(cells) = self.step(&seen, number, ask.weight) else { continue };
                seen.cells = cells;
                let end = word(number, seen.units_of(number));
                let is_place = must_wait || ask.reserve;
                taken =
                    Some(Taken { ticket: era, end, stamp: seen.end_of(number), ahead: 0, stage: Stage::of(is_place) });
            }
            if LOOK {
                *view = View { ready, ..self.view_of(&seen, ask) };
            }
            return Ok(Answer { now, ready, taken });
        }
    }
}

#[cfg(all(test, model))]
#[path = "counter_models.rs"]
mod models;
#[cfg(all(test, not(model)))]
#[path = "counter_tests.rs"]
mod tests;
