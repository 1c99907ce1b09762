//! The state that one life of some cells passes on to the next.
//!
//! Cells forget starts that have left their windows. A longer window, of another policy, may still contain them. So
//! their number and the latest time at which they can have been started are part of the state ([`Forgotten`]), and a
//! change of policy computes how late each of them may count ([`History::remember`]).
//!
//! In a rolling window of length `w`, a unit was admitted only once the unit `n` before it had left the window. So if a
//! unit counts from `s` on, the unit `n` before it counts from `s − w` at the latest. This rule is applied from the
//! newest known unit back. It gives the latest history that the policy could have admitted. No unit of it is earlier
//! than the true one, and none is later than it could have been.

use super::bucket::Bucket;
use super::counter::Frame;
use super::leases;
use super::log::{PLACE, SETTLED, Window};
use crate::time::{Now, Tick};

/// A start, while it moves from one life of its cells to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// The moment from which it counts.
    pub stamp: Tick,
    /// Its weight.
    pub units: u64,
    /// Its state in the log.
    pub state: u64,
    /// The ticket by which its holder knows it.
    pub id: u64,
    /// Whether it is in the ledger.
    pub is_logged: bool,
}

impl Start {
    /// Units of which nothing else is known.
    fn unknown(stamp: Tick, units: u64) -> Start {
        Start { stamp, units, state: SETTLED, id: u64::MAX, is_logged: true }
    }
}

/// Units that were started before the known ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgotten {
    /// None of them counts from later than this.
    pub stamp: Tick,
    /// How many there are at most.
    pub units: u64,
    /// Whether the policy of the cells has admitted them, so that it bounds how many there are in a window.
    pub is_bounded: bool,
}

impl Forgotten {
    /// A state that was lost: it may have held any number of units.
    pub const MANY: u64 = u64::MAX >> 2;

    /// All that was started before this is lost.
    pub fn before(stamp: Tick) -> Forgotten {
        Forgotten { stamp, units: Forgotten::MANY, is_bounded: false }
    }
}

/// The state that one life of some cells passes on to the next.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The starts that count, or will, ordered by stamp.
    pub starts: Vec<Start>,
    /// Older starts that may count, the newest first.
    pub forgotten: Vec<Forgotten>,
    /// Tickets, or fences, continue from here.
    pub end: u64,
    /// Where units are only counted, the era that identifies them.
    pub era: u64,
    /// The first era whose units may be among them.
    pub first_era: u64,
    /// When a slice of time began where units are counted in slices; 0: in none.
    pub slice: Tick,
    /// The table of the fastest earlier bucket: see the layout.
    pub former: u64,
    /// When an earlier bucket or window of the clock ended.
    pub changed: Tick,
    /// Whether some of this was admitted by an earlier policy.
    pub is_mixed: bool,
    /// Until when units were started that did not fit into a small ring; 0: there are none.
    pub left_out: Tick,
    /// How many units the small ring held by whose stricter policy all of this was admitted: see `log.rs`.
    pub held: Option<u64>,
    /// In windows of the clock, by how many units an earlier policy may have exceeded the limit of this one.
    pub excess: u64,
    /// The other state of a bucket.
    pub rest: Rest,
    /// The holders of leases.
    pub holds: Vec<leases::Hold>,
}

/// The state that a bucket passes on to the next life in addition to its starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rest {
    /// The excess of the starts over what counts: this fraction of a unit, as a numerator and a denominator. It belongs
    /// to the first start.
    pub spare: (u64, u64),
    /// The latest stamp of an admitted start.
    pub last: Tick,
    /// The total that was ever given back.
    pub returned: u64,
    /// Until when it recovers from what it took over from another bucket, in its own parts.
    pub carried: i128,
    /// Until when it recovers from everything, if no other bucket was before it.
    pub recovered: Option<i128>,
    /// The fastest bucket by which earlier starts were admitted, if it was another one.
    pub before: Option<Bucket>,
}

/// With more different stamps than these, forgotten starts of several windows are counted as one.
const MAX_STAMPS: usize = 1 << 14;
/// Into this many parts the rest of a window is then divided.
const PARTS: u64 = 1 << 13;

impl History {
    /// Adds units that the ledger lacks. What it lacks has to be newer than what it has, or that would be written again: so
    /// they count from the latest start that it has, if that is later. (A place may lie far ahead, and is written again.)
    pub fn add_unlogged(&mut self, mut start: Start) {
        let latest =
            self.starts.iter().filter(|known| known.is_logged && known.state != PLACE).map(|known| known.stamp).max();
        start.stamp = start.stamp.max(latest.unwrap_or(0));
        let at = self.starts.partition_point(|known| known.stamp <= start.stamp);
        self.starts.insert(at, start);
    }

    /// Adds starts of the ledger.
    pub fn add_logged(&mut self, starts: &[Start]) {
        let (logged, unlogged): (Vec<Start>, _) =
            std::mem::take(&mut self.starts).into_iter().partition(|start| start.is_logged);
        self.starts = logged.into_iter().chain(starts.iter().copied()).collect();
        self.starts.sort_by_key(|start| start.stamp);
        unlogged.into_iter().for_each(|start| self.add_unlogged(start));
    }

    /// Returns the number of known units.
    fn known(&self) -> u64 {
        self.units_after(0)
    }

    /// Returns the number of known units that count from later than this.
    pub fn units_after(&self, since: Tick) -> u64 {
        self.starts.iter().filter(|start| start.stamp > since).map(|start| start.units).sum()
    }

    /// Returns how many units may count from later than this, forgotten ones included.
    pub fn counting(&self, since: Tick) -> u64 {
        let forgotten = self.forgotten.iter().filter(|some| some.stamp > since).map(|some| some.units);
        forgotten.fold(self.units_after(since), u64::saturating_add)
    }

    /// Records that none of the forgotten starts, as far as their number is known, counts from later than this.
    pub fn forget_before(&mut self, since: Tick) {
        let known = self.forgotten.iter_mut().filter(|some| some.units < Forgotten::MANY);
        known.for_each(|some| some.stamp = some.stamp.min(since));
    }

    /// Makes forgotten starts after `since` count, as far as a limit of this many units may need them: later than they were
    /// started, never earlier.
    pub fn pad(&mut self, limit: u64, since: Tick) {
        let mut free = limit.saturating_sub(self.known());
        for Forgotten { stamp, units, .. } in self.forgotten.iter_mut().filter(|some| some.stamp > since) {
            let pad = free.min(*units);
            free -= pad;
            *units -= if *units < Forgotten::MANY { pad } else { 0 };
            let at = self.starts.partition_point(|start| start.stamp < *stamp);
            self.starts.splice(at..at, (pad > 0).then_some(Start::unknown(*stamp, pad)));
        }
        self.forgotten.retain(|some| some.units > 0);
    }

    /// Makes forgotten starts count that a limit of `limit` units may need, as late as these windows, which have
    /// admitted them, allow. Starts at `since` or before are not needed.
    pub fn remember(&mut self, windows: &[Window], limit: u64, since: Tick) {
        let mut free = limit.saturating_sub(self.known());
        let mut admitted = Admitted::new(windows, &self.starts);
        let known = admitted.runs.len();
        let part = (self.starts.last().map_or(since, |start| start.stamp).saturating_sub(since) / PARTS).max(1);
        for Forgotten { stamp, units, is_bounded } in &mut self.forgotten {
            while *units > 0 && free > 0 {
                let (latest, most) = match *is_bounded {
                    true if admitted.runs.len() - known < MAX_STAMPS => admitted.next(),
                    true => admitted.next_part(part),
                    false => (Tick::MAX, u64::MAX),
                };
                *stamp = latest.min(*stamp).min(admitted.runs.last().map_or(Tick::MAX, |run| run.0));
                if *stamp <= since {
                    break;
                }
                let some = most.min(*units).min(free);
                admitted.push(*stamp, some);
                free -= some;
                *units -= if *units < Forgotten::MANY { some } else { 0 };
            }
        }
        self.forgotten.retain(|some| some.units > 0);
        let pads = admitted.runs.drain(known..).rev().map(|(stamp, units)| Start::unknown(stamp, units));
        self.starts.splice(0..0, pads);
    }
}

impl History {
    /// Makes forgotten starts of windows of the clock (`old`) count in the newest two windows of `new` that matter, and
    /// returns the newer one.
    pub fn recall(&mut self, old: &Frame, new: &Frame, now: Now) -> u64 {
        let counted = self.starts.iter().filter(|start| start.units > 0).map(|start| start.stamp);
        let stamps = counted.chain(self.forgotten.iter().map(|some| some.stamp));
        let newest = stamps.map(|stamp| new.window_of(stamp)).fold(new.window_of(now.floor), u64::max);
        for window in [Some(newest), newest.checked_sub(1)].into_iter().flatten() {
            let first = new.start_of(window);
            for some in self.forgotten.iter_mut().filter(|some| some.units > 0 && some.stamp >= first) {
                let stamp = some.stamp.min(new.end_of(window));
                // As if each of these windows had been full until it ended.
                let windows = old.window_of(some.stamp) + 1 - old.window_of(first);
                let most = if some.is_bounded { windows.saturating_mul(old.limit) } else { u64::MAX };
                let units = some.units.min(most);
                some.units -= units;
                some.stamp = old.start_of(old.window_of(first)).saturating_sub(1);
                let at = self.starts.partition_point(|start| start.stamp < stamp);
                self.starts.insert(at, Start::unknown(stamp, units.min(Forgotten::MANY)));
            }
        }
        self.forgotten.retain(|some| some.units > 0);
        newest
    }

    /// Starts of a window of the clock that has not ended count as of now, and those of windows that have not begun,
    /// which are places, do not count.
    pub fn end_windows(&mut self, old: &Frame, now: Now) {
        let here = old.window_of(now.floor);
        for some in self.forgotten.iter_mut().filter(|some| some.is_bounded) {
            let ahead = old.window_of(some.stamp).saturating_sub(here);
            some.units = some.units.saturating_sub(ahead.saturating_mul(old.limit));
        }
        self.forgotten.retain(|some| some.units > 0);
        self.forgotten.iter_mut().for_each(|some| some.stamp = some.stamp.min(now.ceil));
        self.starts.iter_mut().for_each(|start| start.stamp = start.stamp.min(now.ceil));
    }
}

impl History {
    /// Returns what is left out of cells that keep `most` units, of those after `since`: in at most `count` parts, which
    /// are as late as their latest unit, the newest first.
    pub fn older_than(&self, most: u64, since: Tick, count: usize) -> Vec<Forgotten> {
        let mut free = most;
        let mut parts: Vec<Forgotten> = Vec::new();
        let part = |stamp, units| Forgotten { stamp, units, is_bounded: false };
        for start in self.starts.iter().rev() {
            let kept = if start.stamp > since { start.units.min(free) } else { 0 };
            free -= kept;
            parts.push(part(start.stamp, start.units - kept));
        }
        parts.extend(self.forgotten.iter().map(|some| part(some.stamp, some.units)));
        parts.retain(|part| part.units > 0);
        parts.sort_by_key(|part| std::cmp::Reverse(part.stamp));
        // Each part loses its time where that costs the least.
        while parts.len() > count {
            let cost = |at: usize| u128::from(parts[at].units) * u128::from(parts[at - 1].stamp - parts[at].stamp);
            let mut at: Vec<usize> = (1..parts.len()).collect();
            at.sort_by_key(|at| cost(*at));
            // (Half of them at a time, where there are many.)
            at.truncate(((parts.len() - count) / 2).max(1));
            at.sort_unstable();
            for at in at.into_iter().rev() {
                parts[at - 1].units = parts[at - 1].units.saturating_add(parts[at].units).min(Forgotten::MANY);
                parts.remove(at);
            }
        }
        parts
    }
}

/// Units that these windows have admitted, from the newest back.
struct Admitted<'w> {
    /// The stamp and the number of units.
    runs: Vec<(Tick, u64)>,
    bounds: Vec<Bound<'w>>,
    /// The first of the runs that are several windows long.
    coarse: Option<Tick>,
}

/// What a window says about the next unit.
#[derive(Clone, Copy)]
struct Bound<'w> {
    window: &'w Window,
    /// Of this many units, nothing yet.
    free: u64,
    /// The unit that is as many later as the window allows: its run, and the units of that run before it.
    run: usize,
    at: u64,
}

impl<'w> Admitted<'w> {
    fn new(windows: &'w [Window], starts: &[Start]) -> Admitted<'w> {
        let from = |run| windows.iter().map(move |window| Bound { window, free: window.limit, run, at: 0 }).collect();
        let mut known = Admitted { runs: Vec::new(), bounds: from(0), coarse: None };
        let mut is_within = true;
        for start in starts.iter().rev() {
            let mut units = start.units;
            while units > 0 {
                let (latest, most) = known.next();
                is_within &= start.stamp <= latest;
                let some = most.min(units);
                known.push(start.stamp, some);
                units -= some;
            }
        }
        // Otherwise there are debts, or starts recorded beyond the limit.
        if !is_within {
            known.bounds = from(known.runs.len());
        }
        known
    }

    /// Returns until when the next unit was started, and for how many units that is so.
    fn next(&self) -> (Tick, u64) {
        let latest = |bound: &Bound| match bound.free {
            0 => (self.runs[bound.run].0.saturating_sub(bound.window.length), self.runs[bound.run].1 - bound.at),
            free => (Tick::MAX, free),
        };
        self.bounds.iter().map(latest).fold((Tick::MAX, u64::MAX), |a, b| (a.0.min(b.0), a.1.min(b.1)))
    }

    /// The same for all units of as many windows as `part` contains, by the slowest of the windows.
    fn next_part(&mut self, part: Tick) -> (Tick, u64) {
        let rate = |a: &Bound, b: &Bound| u128::from(a.window.limit) * u128::from(b.window.length);
        let slowest = self.bounds.iter().min_by(|a, b| rate(a, b).cmp(&rate(b, a)));
        let Some(&Bound { window, free: 0, run, .. }) = slowest else { return self.next() };
        let windows = (part / window.length).max(1);
        let latest = match self.coarse {
            Some(before) => before.saturating_sub(windows * window.length),
            None => self.runs[run].0.saturating_sub(window.length),
        };
        self.coarse = Some(latest);
        (latest, window.limit.saturating_mul(windows))
    }

    fn push(&mut self, stamp: Tick, units: u64) {
        self.runs.push((stamp, units));
        for bound in &mut self.bounds {
            let free = bound.free.min(units);
            bound.free -= free;
            bound.at += units - free;
            while let Some(run) = self.runs.get(bound.run)
                && bound.at >= run.1
            {
                bound.at -= run.1;
                bound.run += 1;
            }
        }
    }
}
