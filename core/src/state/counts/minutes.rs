//! Per-minute counts of each limit, for observers: in the lane during the minute, then in the database.
//!
//! The reports of processes (`counts`) are added to the current minute of their limit. A limit has cells for two
//! minutes, so the earlier one can wait for the ledger's writer, which runs once a second and takes minutes that are
//! over. If a minute has not been taken before its cell is needed, its counts go to the later minute.
//!
//! A minute may be written more than once. The sums of the later write are no smaller, and replace the earlier ones.

use crate::algorithm::cells::Cells;
use crate::algorithm::log::Ask;
use crate::atomic::*;
use crate::hash::Hash;
use crate::state::cells::index::Index;
use crate::state::cells::layout::{LimitAt, NEWS, limit_word, table_word};
use crate::state::cells::limit::LimitCells;
use crate::state::cells::locked::Locked;
use crate::state::cells::table::TableCells;
use crate::state::files::arena::{ALLOCATED, HEADER_WORDS};
use std::time::{SystemTime, UNIX_EPOCH};

/// The words of one minute: the minute's number, and with it whether the database has the minute; units, denials,
/// waits, peak; and the next limit in the list of limits with unwritten even minutes, or odd ones. The list ends with
/// 1, and 0 means that the limit is in none.
const MINUTE_WORDS: u64 = 6;
const IS_WRITTEN: u64 = 1;
const NEXT: usize = 5;
const END: u64 = 1;

/// The number of limits in one commit. The next commit, a second later, takes the rest.
const LIMITS: usize = 1_024;

/// The counts of one minute. `at` is in minutes since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Minute {
    pub at: u64,
    /// 0 for limits whose starts are in the ledger: they are counted from there.
    pub units: u64,
    pub denied: u64,
    pub waited: u64,
    pub peak: u64,
}

impl Minute {
    /// Takes over the values of a later report of the same minute.
    pub fn merge(&mut self, later: &Minute) {
        self.units = self.units.max(later.units);
        self.denied = self.denied.max(later.denied);
        self.waited = self.waited.max(later.waited);
        self.peak = self.peak.max(later.peak);
    }
}

/// A minute to be written to the database, with its limit.
pub(crate) type News = (LimitAt, Minute);

/// The current minute, by the wall clock.
pub(in crate::state) fn this_minute() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 60
}

impl<'h> LimitCells<'h> {
    /// Returns whether a limit is there. For places that come from a list of observers.
    fn is_there(self) -> bool {
        let allocated = self.home.arena.word(ALLOCATED).load(Acquire);
        let word = |at: u64, word: u64| {
            let is_inside = at >= HEADER_WORDS && at.saturating_add(limit_word::WORDS) <= allocated;
            is_inside.then(|| self.home.arena.word(at + word).load(Acquire))
        };
        let table = word(self.at.offset(), limit_word::TABLE);
        table.and_then(|table| word(table, table_word::LIMIT)) == Some(self.at.offset())
    }

    fn minutes(self) -> [&'h [AtomicU64]; 2] {
        let words = |i| self.home.arena.words(self.at + limit_word::MINUTES + i * MINUTE_WORDS, MINUTE_WORDS);
        [0, 1].map(words)
    }

    /// The most units seen in use in this minute and the one before.
    pub fn peak(self) -> u64 {
        let now = this_minute();
        let is_recent = |words: &&[AtomicU64]| (words[0].load(Acquire) >> 1).saturating_add(1) >= now;
        self.minutes().into_iter().filter(is_recent).map(|words| words[4].load(Acquire)).max().unwrap_or(0)
    }

    /// The stored minutes of the limit, two at most.
    pub fn latest_minutes(self) -> impl Iterator<Item = Minute> {
        let read = |words: &[AtomicU64]| {
            let [at, units, denied, waited, peak] = std::array::from_fn(|i| words[i].load(Acquire));
            Minute { at: at >> 1, units, denied, waited, peak }
        };
        self.minutes().map(read).into_iter().filter(|minute| minute.at != 0)
    }

    /// Adds counts to a minute of the limit.
    pub(super) fn note_minute(self, locked: &Locked, new: Minute) {
        if new == (Minute { at: new.at, units: 0, denied: 0, waited: 0, peak: 0 }) {
            return;
        }
        let words = self.minutes()[(new.at % 2) as usize];
        let was = words[0].load(Acquire);
        if was >> 1 != new.at && (was & IS_WRITTEN != 0 || was == 0) {
            words[1..NEXT].iter().for_each(|word| word.store(0, Release));
        }
        words[0].store(new.at << 1, Release);
        for (word, n) in words[1..].iter().zip([new.units, new.denied, new.waited]) {
            word.fetch_add(n, AcqRel);
        }
        words[4].fetch_max(new.peak, AcqRel);
        self.enlist(locked, new.at);
    }

    /// Adds the limit to the list of those with unwritten counts of such a minute, if it is not in it.
    fn enlist(self, _: &Locked, minute: u64) {
        let next = &self.minutes()[(minute % 2) as usize][NEXT];
        if self.home.is_lane() && next.load(Acquire) == 0 {
            let first = self.home.arena.word(NEWS + minute % 2);
            next.store(first.load(Acquire).max(END), Release);
            first.store(self.at.offset(), Release);
        }
    }
}

impl Index<'_, '_> {
    /// The units of a key in use, in the window that has the most; of leases, those that are held.
    pub fn most_used(self, hash: Hash) -> u64 {
        let found = self.find(hash).ok().flatten();
        found.map_or(0, |key| {
            let own = self.home.of(self.table).for_key(key);
            self.home.of(&own).usage(self.home.cells(&own, key)).into_iter().map(|(_, used)| used).max().unwrap_or(0)
        })
    }
}

impl TableCells<'_, '_> {
    /// The capacity and use of each window of a key. Cells that are being rewritten yield nothing.
    pub fn usage(self, cells: Cells) -> Vec<(u64, u64)> {
        if let Cells::Leases(leases) = &cells {
            let live = leases.live_at(self.home.clock.now().floor, self.table.policy.cooldown());
            return vec![(self.table.capacity, live.unwrap_or(0))];
        }
        let windows = self.table.windows.as_slice();
        let each: Vec<_> = match windows.len() {
            0 | 1 => vec![(self.table.capacity, windows)],
            _ => windows.chunks(1).map(|window| (window[0].limit, window)).collect(),
        };
        let used = |(limit, windows): (u64, _)| {
            let view = cells.view(&Ask::now(windows, 1, 0), || self.home.clock.now());
            (limit, view.map_or(0, |view| limit.saturating_sub(view.remaining)))
        };
        each.into_iter().map(used).collect()
    }
}

impl Locked<'_> {
    /// Takes unwritten minutes: those that are over, or with `all` also the current one. One call covers some limits,
    /// the next one others.
    pub(in crate::state) fn take_news(&self, all: bool) -> Vec<News> {
        let now = this_minute();
        let mut news = Vec::new();
        // Minutes with the parity of this one's neighbours are over.
        for kind in [now + 1, now].into_iter().take(if all { 2 } else { 1 }) {
            let first = self.arena.word(NEWS + kind % 2);
            while news.len() < LIMITS
                && let at = first.load(Acquire)
                && at > END
            {
                let limit = LimitAt::new(at);
                if !self.limit(limit).is_there() {
                    // Decisions do not depend on it, so it may be forgotten.
                    first.store(END, Release);
                    break;
                }
                let words = self.limit(limit).minutes()[(kind % 2) as usize];
                first.store(words[NEXT].swap(0, AcqRel), Release);
                let [at, units, denied, waited, peak] = std::array::from_fn(|i| words[i].load(Acquire));
                if at & IS_WRITTEN == 0 {
                    news.push((limit, Minute { at: at >> 1, units, denied, waited, peak }));
                }
            }
        }
        news
    }

    /// Records that the database has these.
    pub(in crate::state) fn mark_news(&self, news: &[News]) {
        for (limit, minute) in news {
            let words = self.limit(*limit).minutes()[(minute.at % 2) as usize];
            let now: [u64; 5] = std::array::from_fn(|i| words[i].load(Acquire));
            if now == [minute.at << 1, minute.units, minute.denied, minute.waited, minute.peak] {
                words[0].store(now[0] | IS_WRITTEN, Release);
            } else {
                self.limit(*limit).enlist(self, minute.at);
            }
        }
    }

    /// Keeps these for the next attempt, since the database could not be written.
    pub(in crate::state) fn keep_news(&self, news: &[News]) {
        news.iter().for_each(|(limit, minute)| self.limit(*limit).enlist(self, minute.at));
    }
}
