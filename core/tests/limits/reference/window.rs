//! Fixed windows and the sliding window counter: two counts for each key.

use super::frame::{Ask, ENDLESS, Now, Permit, Rules, Start, Tick, length};
use super::log::next_id;
use super::run::duration;
use crate::common::Random;
use workglow_limit::Policy;

#[derive(Debug)]
pub struct Book {
    /// The newest window with a count, and another one. Earlier counts are no longer known.
    newest: (Tick, u64),
    other: (Tick, u64),
    era: u64,
}

/// No window.
const NEVER: Tick = -2;

impl Default for Book {
    fn default() -> Self {
        Book { newest: (NEVER, 0), other: (NEVER, 0), era: next_id() }
    }
}

impl Book {
    fn units(&self, window: Tick) -> u64 {
        [self.newest, self.other].iter().filter(|w| w.0 == window).map(|w| w.1).sum()
    }

    fn count(&mut self, window: Tick, units: u64) {
        let before = (window - 1, self.units(window - 1));
        let newest = self.newest.0;
        self.other = match window - newest {
            0 => self.other,
            // An even number of windows ahead, it replaces the newest one.
            ahead if ahead % 2 == 0 => self.other,
            _ => before,
        };
        self.newest = (window, if window == newest { self.newest.1 } else { 0 } + units);
    }
}

/// At most this many units in each window. If it is smooth, it includes the share of the previous window that a rolling
/// window contains.
#[derive(Debug, Clone, PartialEq)]
pub struct Windows<const SMOOTH: bool> {
    limit: u64,
    length: Tick,
}

impl<const SMOOTH: bool> Windows<SMOOTH> {
    /// The number of windows in which a start counts.
    const LASTS: Tick = if SMOOTH { 2 } else { 1 };

    fn before(&self, book: &Book, window: Tick) -> u64 {
        if SMOOTH { book.units(window - 1) } else { 0 }
    }

    /// The window before the two, whose count is unknown and may still matter.
    fn unknown(&self, book: &Book, now: Now) -> Option<Tick> {
        Some(book.newest.0 - 2).filter(|&lost| lost >= 0 && lost + Self::LASTS > now.floor / self.length)
    }

    /// Creates a book from known counts, `(window, units)` each. Unknown ones count as full.
    fn write(&self, mut known: Vec<(Tick, u64)>, unknown: Option<Tick>, era: u64, now: Now) -> Book {
        let kept = known.first().map(|w| w.0);
        known.retain(|w| w.1 > 0);
        let sum = |window: Tick| -> u64 { known.iter().filter(|w| w.0 == window).map(|w| w.1).sum() };
        let newest = known.iter().map(|w| w.0).chain(unknown).fold(now.floor / self.length, Tick::max);
        let units = |window: Tick| match unknown {
            // There is no window before the first.
            Some(lost) if lost >= window && window >= 0 && kept != Some(window) => self.limit,
            _ => sum(window),
        };
        let era = if known.is_empty() && unknown.is_none() { next_id() } else { era };
        Book { newest: (newest, units(newest)), other: (newest - 1, units(newest - 1)), era }
    }

    fn edit(&self, book: &mut Book, now: Now, f: impl FnOnce(&mut Vec<(Tick, u64)>)) {
        let (mut known, unknown) = (vec![book.other, book.newest], self.unknown(book, now));
        f(&mut known);
        *book = self.write(known, unknown, book.era, now);
    }

    fn take(&self, known: &mut [(Tick, u64)], permit: &Permit, units: u64) {
        if let Some(w) = known.iter_mut().find(|w| w.0 == permit.stamp / self.length) {
            w.1 -= units.min(w.1);
        }
    }

    /// Returns whether anything of its window is known.
    fn knows(&self, book: &Book, permit: &Permit) -> bool {
        book.era == permit.id && book.units(permit.stamp / self.length) > 0
    }
}

impl<const SMOOTH: bool> Rules for Windows<SMOOTH> {
    type Book = Book;
    const COUNTED: bool = true;

    fn random(random: &mut Random, scale: Tick) -> Self {
        let most = random.pick(&[1, 3, 8, 8, 20, 40, 1_000]);
        Windows { limit: 1 + random.below(most), length: scale / 100 + length(random, scale) }
    }

    fn policy(&self) -> Policy {
        let new = if SMOOTH { Policy::sliding_window_counter } else { Policy::fixed_window };
        new(self.limit, duration(self.length)).unwrap()
    }

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn lengths(&self) -> (Tick, Tick) {
        (self.length, self.length * Self::LASTS)
    }

    fn grace(&self, _: &Book, _: u64) -> Tick {
        0 // a place is valid until its window ends
    }

    /// A window ends with its last tick, not with the beginning of it.
    fn latest(&self, now: Now) -> Tick {
        now.floor
    }

    fn ready(&self, book: &Book, weight: u64, gate: Tick, now: Now) -> Tick {
        let (from, length) = (gate.max(now.floor), self.length);
        let mut window = (from / length).max(book.newest.0);
        loop {
            let earliest = (from - window * length).max(0);
            let room = Tick::from(self.limit) - Tick::from(book.units(window)) - Tick::from(weight);
            let before = Tick::from(self.before(book, window));
            // before · (length − elapsed) ≤ room · length
            let elapsed = if before == 0 { 0 } else { length - (room.max(0) * length / before).min(length) };
            let elapsed = elapsed.max(earliest);
            if room >= 0 && elapsed < length {
                return window * length + elapsed;
            }
            window += 1;
        }
    }

    fn remaining(&self, book: &Book, now: Now) -> u64 {
        let here = now.floor / self.length;
        if book.newest.0 > here {
            return 0;
        }
        let left = (here + 1) * self.length - now.floor;
        let before = Tick::from(self.before(book, here)) * left;
        let used = Tick::from(book.units(here)) + (before + self.length - 1) / self.length;
        (Tick::from(self.limit) - used).max(0) as u64
    }

    fn empty(&self, book: &Book) -> Tick {
        let counted = [book.newest, book.other].into_iter().filter(|w| w.1 > 0);
        counted.map(|w| w.0 + Self::LASTS).fold(book.newest.0, Tick::max).max(0) * self.length
    }

    fn record(&self, book: &mut Book, ask: &Ask, ready: Tick, _: bool, now: Now) -> Start {
        let window = if ask.is_forced { now.floor } else { ready.max(now.floor) } / self.length;
        let window = window.max(book.newest.0);
        book.count(window, ask.weight);
        Start { id: book.era, stamp: (window + 1) * self.length - 1, ahead: 0 }
    }

    fn present(&self, book: &mut Book, place: &Permit, _: Now) -> Option<Tick> {
        (book.era == place.id).then_some(place.stamp)
    }

    fn cancel(&self, book: &mut Book, permit: &Permit, _: bool, now: Now) {
        let knows = self.knows(book, permit);
        self.edit(book, now, |known| {
            if knows {
                self.take(known, permit, permit.weight);
            }
        });
    }

    fn settle(&self, book: &mut Book, permit: &Permit, actual: u64, is_over: bool, now: Now) {
        let (knows, has) = (self.knows(book, permit), self.has(book, permit));
        self.edit(book, now, |known| {
            if knows {
                self.take(known, permit, permit.weight.saturating_sub(actual));
            }
            // What it owes counts, even if its window is no longer known.
            if has || is_over {
                let debt = actual.saturating_sub(permit.weight).min(self.limit);
                known.push((now.ceil / self.length, debt));
            }
        });
    }

    /// Starts of a window that has not ended count as of now. Places, and windows that have not begun, are dropped.
    /// (`changes.rs` tests windows that are no longer known.)
    fn change(&self, to: &Self, book: Book, now: Now) -> Book {
        let moved = |window: Tick| ((window + 1) * self.length - 1).min(now.ceil) / to.length;
        let begun = [book.other, book.newest].into_iter().filter(|w| w.0 * self.length <= now.floor);
        let known = begun.map(|(window, units)| (moved(window), units)).collect();
        to.write(known, None, 0, now).renewed()
    }

    fn forget(&self, book: &mut Book, now: Now) -> Tick {
        if self.empty(book) > now.floor {
            return -ENDLESS;
        }
        book.era = next_id();
        let counted = [book.newest, book.other].into_iter().filter(|w| w.1 > 0);
        counted.map(|w| (w.0 + 1) * self.length - 1).fold(-ENDLESS, Tick::max)
    }

    /// Windows of another length may still count starts that these have forgotten.
    fn can_become(&self, to: &Self, books: &[&Book], forgotten: Tick, now: Now) -> bool {
        let is_over = |tick: Tick| tick.div_euclid(to.length) + Self::LASTS <= now.floor / to.length;
        // All windows up to this one may be unknown. `changes.rs` tests these, and limits that are exceeded by a change.
        let is_known = |book: &Book| is_over((book.newest.0 - 1) * self.length - 1);
        let is_here = |book: &Book| book.newest.0 <= now.floor / self.length;
        let fits = |book: &Book| book.newest.1 + book.other.1 <= to.limit;
        is_over(forgotten) && books.iter().all(|book| is_known(book) && is_here(book) && fits(book))
    }

    fn remembered(&self, stamp: Tick) -> Tick {
        (stamp.div_euclid(self.length) + 1) * self.length - 1
    }

    fn has(&self, book: &Book, permit: &Permit) -> bool {
        book.era == permit.id
    }
}

impl Book {
    fn renewed(self) -> Book {
        Book { era: next_id(), ..self }
    }
}
