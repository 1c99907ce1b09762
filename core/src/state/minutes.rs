//! What was counted of each limit in each minute, for people: in the lane while the minute goes on, then in the database.
//!
//! The reports of processes (`counts.rs`) are added to the current minute of their limit. A limit has room for two minutes, so the one
//! before can wait for the ledger's writer, which comes by once a second and takes a minute when it is over. If nobody has
//! taken it before its room is needed, what it holds counts for the later minute.
//!
//! A minute may be written more than once: the sums of the later writing are no smaller, and stand.

use super::arena::{ALLOCATED, HEADER_WORDS};
use super::layout::{NEWS, limit_word, table_word};
use super::locked::Locked;
use super::table::{Hash, Home, Table};
use crate::algorithm::cells::Cells;
use crate::algorithm::log::Ask;
use crate::atomic::*;
use std::time::{SystemTime, UNIX_EPOCH};

/// A room: which minute it is of, and beside it whether the database has that; units, denials, waits, peak; and the next limit in the
/// list of those with news of an even minute, or of an odd one. The list ends with 1, and 0 means that the limit is in none.
const ROOM: u64 = 6;
const IS_WRITTEN: u64 = 1;
const NEXT: usize = 5;
const END: u64 = 1;

/// With how many limits one commit deals. What is left is the next one's, a second later.
const LIMITS: usize = 1_024;

/// What was counted in a minute. `at` is in minutes since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Minute {
    pub at: u64,
    /// Of limits whose starts are in the ledger, 0: they are counted from there.
    pub units: u64,
    pub denied: u64,
    pub waited: u64,
    pub peak: u64,
}

impl Minute {
    /// Takes over what a later report of the same minute says.
    pub fn merge(&mut self, later: &Minute) {
        self.units = self.units.max(later.units);
        self.denied = self.denied.max(later.denied);
        self.waited = self.waited.max(later.waited);
        self.peak = self.peak.max(later.peak);
    }
}

/// A minute that the database is to have, and of which limit.
pub(crate) type News = (u64, Minute);

/// By the wall clock.
pub(super) fn this_minute() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 60
}

impl Home {
    fn rooms(&self, limit: u64) -> [&[AtomicU64]; 2] {
        [0, 1].map(|i| self.arena.words(limit + limit_word::MINUTES + i * ROOM, ROOM))
    }

    /// The most that was in use in this minute and the one before, as far as it was seen.
    pub fn peak(&self, limit: u64) -> u64 {
        let now = this_minute();
        let is_recent = |room: &&[AtomicU64]| (room[0].load(Acquire) >> 1).saturating_add(1) >= now;
        self.rooms(limit).into_iter().filter(is_recent).map(|room| room[4].load(Acquire)).max().unwrap_or(0)
    }

    /// Is there a limit? Asked of what only a list for people says.
    fn is_limit(&self, at: u64) -> bool {
        let allocated = self.arena.word(ALLOCATED).load(Acquire);
        let word = |at: u64, word: u64| {
            let is_inside = at >= HEADER_WORDS && at.saturating_add(limit_word::WORDS) <= allocated;
            is_inside.then(|| self.arena.word(at + word).load(Acquire))
        };
        word(at, limit_word::TABLE).and_then(|table| word(table, table_word::LIMIT)) == Some(at)
    }

    /// The two minutes of a limit that are here, if there are any.
    pub fn latest_minutes(&self, limit: u64) -> impl Iterator<Item = Minute> {
        let read = |room: &[AtomicU64]| {
            let [at, units, denied, waited, peak] = std::array::from_fn(|i| room[i].load(Acquire));
            Minute { at: at >> 1, units, denied, waited, peak }
        };
        self.rooms(limit).map(read).into_iter().filter(|minute| minute.at != 0)
    }

    /// The units of a key that are in use, in the window that has most of them; of leases, those that are held.
    pub fn most_used(&self, table: &Table, hash: Hash) -> u64 {
        let found = self.find(table, hash).ok().flatten();
        found.map_or(0, |key| {
            let own = self.table_of(table, key);
            self.usage(&own, self.cells(&own, key)).into_iter().map(|(_, used)| used).max().unwrap_or(0)
        })
    }

    /// What each window of a key allows, and what is used of it. Cells that are being rewritten tell nothing.
    pub fn usage(&self, table: &Table, cells: Cells) -> Vec<(u64, u64)> {
        if let Cells::Leases(leases) = &cells {
            return vec![(table.capacity, leases.live().unwrap_or(0))];
        }
        let windows = table.windows.as_slice();
        let each: Vec<_> = match windows.len() {
            0 | 1 => vec![(table.capacity, windows)],
            _ => windows.chunks(1).map(|window| (window[0].limit, window)).collect(),
        };
        let used = |(limit, windows): (u64, _)| {
            let view = cells.view(&Ask::now(windows, 1, 0), || self.clock.now());
            (limit, view.map_or(0, |view| limit.saturating_sub(view.remaining)))
        };
        each.into_iter().map(used).collect()
    }
}

impl Locked<'_> {
    /// Adds what was counted to a minute of a limit.
    pub(super) fn note_minute(&self, limit: u64, new: Minute) {
        if new == (Minute { at: new.at, units: 0, denied: 0, waited: 0, peak: 0 }) {
            return;
        }
        let room = self.rooms(limit)[(new.at % 2) as usize];
        let was = room[0].load(Acquire);
        if was >> 1 != new.at && (was & IS_WRITTEN != 0 || was == 0) {
            room[1..NEXT].iter().for_each(|word| word.store(0, Release));
        }
        room[0].store(new.at << 1, Release);
        for (word, n) in room[1..].iter().zip([new.units, new.denied, new.waited]) {
            word.fetch_add(n, AcqRel);
        }
        room[4].fetch_max(new.peak, AcqRel);
        self.enlist(limit, new.at);
    }

    /// Puts a limit into the list of those with news of such a minute, if it is not there.
    fn enlist(&self, limit: u64, at: u64) {
        let next = &self.rooms(limit)[(at % 2) as usize][NEXT];
        if self.is_lane() && next.load(Acquire) == 0 {
            let first = self.arena.word(NEWS + at % 2);
            next.store(first.load(Acquire).max(END), Release);
            first.store(limit, Release);
        }
    }

    /// Minutes that the database does not have: those that are over, or with `all` also the one that goes on. Of some limits; of the
    /// others next time.
    pub(super) fn take_news(&self, all: bool) -> Vec<News> {
        let now = this_minute();
        let mut news = Vec::new();
        // Minutes like this one's neighbours are over.
        for kind in [now + 1, now].into_iter().take(if all { 2 } else { 1 }) {
            let first = self.arena.word(NEWS + kind % 2);
            while news.len() < LIMITS
                && let limit = first.load(Acquire)
                && limit > END
            {
                if !self.is_limit(limit) {
                    // What nobody depends on may be forgotten.
                    first.store(END, Release);
                    break;
                }
                let room = self.rooms(limit)[(kind % 2) as usize];
                first.store(room[NEXT].swap(0, AcqRel), Release);
                let [at, units, denied, waited, peak] = std::array::from_fn(|i| room[i].load(Acquire));
                if at & IS_WRITTEN == 0 {
                    news.push((limit, Minute { at: at >> 1, units, denied, waited, peak }));
                }
            }
        }
        news
    }

    /// The database has these.
    pub(super) fn mark_news(&self, news: &[News]) {
        for (limit, minute) in news {
            let room = self.rooms(*limit)[(minute.at % 2) as usize];
            let now: [u64; 5] = std::array::from_fn(|i| room[i].load(Acquire));
            if now == [minute.at << 1, minute.units, minute.denied, minute.waited, minute.peak] {
                room[0].store(now[0] | IS_WRITTEN, Release);
            } else {
                self.enlist(*limit, minute.at);
            }
        }
    }

    /// The database could not be written: these are for the next one who tries.
    pub(super) fn keep_news(&self, news: &[News]) {
        news.iter().for_each(|(limit, minute)| self.enlist(*limit, minute.at));
    }
}
