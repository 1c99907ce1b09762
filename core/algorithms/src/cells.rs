//! The cells of one key, for any algorithm.

use super::counter::Counter;
use super::grants::Grants;
use super::leases::Leases;
use super::log::{Ask, Log, StartId, View, Window};
use super::meter::Meter;
use super::slices::Slices;
use super::{History, Sealed, Start};
use crate::time::{MAX_TIME, Now, Tick};

/// The cells of one key.
#[derive(Clone, Copy)]
pub enum Cells<'a> {
    /// Every start is kept.
    Log(Log<'a>),
    /// Starts are counted in slices, where there would be too many to keep.
    Slices(Slices<'a>),
    /// A bucket.
    Meter(Meter<'a>),
    /// Two windows.
    Counter(Counter<'a>),
    /// Leases, which are not timed.
    Leases(Leases<'a>),
    /// Units granted by a server: starts that use them are not counted here.
    Grants(Grants<'a>),
}

/// Makes the same call on any algorithm. (The kind was checked when the limit was opened; another kind is an error.)
macro_rules! either {
    ($cells:expr, $one:ident => $call:expr) => {
        match $cells {
            Cells::Log($one) => $call,
            Cells::Slices($one) => $call,
            Cells::Meter($one) => $call,
            Cells::Counter($one) => $call,
            Cells::Leases(_) | Cells::Grants(_) => Err(Sealed),
        }
    };
}

impl Cells<'_> {
    /// Reads the state, and changes nothing.
    pub fn view(&self, ask: &Ask, clock: impl Fn() -> Now) -> Result<View, Sealed> {
        either!(self, cells => cells.view(ask, clock))
    }

    /// Returns a number that grows with what is handed out, and whether it is the number of units. Where these are only
    /// counted, it is when the next start like this is ready.
    pub fn position(&self, ask: &Ask, clock: impl Fn() -> Now) -> Result<(u64, bool), Sealed> {
        match self {
            Cells::Log(log) => log.position().map(|units| (units, true)),
            _ => self.view(ask, clock).map(|view| (view.ready, false)),
        }
    }

    /// Starts with a place that is ready and open at `now`, and returns the moment from which the start counts. `None`:
    /// the place is gone.
    pub fn present(&self, place: StartId, longest: Tick, now: Now) -> Result<Option<Tick>, Sealed> {
        match self {
            Cells::Log(log) => log.present(place, longest, now),
            Cells::Slices(slices) => slices.present(place, longest, now),
            Cells::Meter(meter) => meter.present(place).map(|is_good| is_good.then_some(place.stamp)),
            Cells::Counter(counter) => counter.present(place).map(|is_good| is_good.then_some(place.stamp)),
            Cells::Leases(_) | Cells::Grants(_) => Err(Sealed),
        }
    }

    /// Returns when a place is ready now. When it was taken, others before it may have been places that counted until the end of
    /// their grace. `None`: it is not here, or none of them gives a grace back.
    pub fn ready_of(&self, place: StartId, ask: &Ask, clock: impl Fn() -> Now) -> Result<Option<Tick>, Sealed> {
        match self {
            Cells::Log(log) => log.ready_of(place, ask),
            Cells::Slices(slices) => slices.ready_of(place, ask, clock),
            Cells::Meter(_) | Cells::Counter(_) | Cells::Leases(_) | Cells::Grants(_) => Ok(None),
        }
    }

    /// Returns how many of the units handed out up to this mark (`Taken::end`) are missing from the ledger.
    #[inline(always)]
    pub fn unwritten(&self, end: u64, now: Now) -> u64 {
        match self {
            Cells::Log(Log { logged, .. }) | Cells::Slices(Slices { logged, .. }) => {
                end.saturating_sub(logged.load(crate::atomic::Acquire))
            }
            Cells::Meter(meter) => meter.unwritten(end, now),
            Cells::Counter(counter) => counter.unwritten(end, now),
            Cells::Leases(_) | Cells::Grants(_) => 0,
        }
    }

    // ---- for the holder of the structure lock ----

    /// Returns whether forgetting this has no visible effect. `uptime` is asked by grants only.
    pub fn is_idle(&self, longest: Tick, now: Now, uptime: impl FnOnce() -> Tick) -> bool {
        match self {
            Cells::Log(log) => log.is_idle(longest, now),
            Cells::Slices(slices) => slices.is_idle(longest, now),
            Cells::Meter(meter) => meter.is_idle(now),
            Cells::Counter(counter) => counter.is_idle(now),
            Cells::Leases(leases) => leases.is_idle(),
            Cells::Grants(grants) => grants.is_idle(uptime()),
        }
    }

    /// Seals these cells for good.
    pub fn seal(self) -> Self {
        match self {
            Cells::Slices(slices) => return Cells::Slices(Slices { base: slices.seal(), ..slices }),
            Cells::Log(log) => log.seal(),
            Cells::Meter(meter) => meter.seal(),
            Cells::Counter(counter) => counter.seal(),
            Cells::Leases(leases) => leases.seal(),
            Cells::Grants(grants) => grants.void(),
        }
        self
    }

    /// Returns whether every caller has to wait until the contents are written elsewhere.
    pub fn has_to_move(&self, longest: Tick, now: Now) -> bool {
        match self {
            Cells::Log(log) => log.has_to_move(now),
            Cells::Slices(slices) => slices.is_sealed() || slices.is_used_up(longest, now),
            Cells::Meter(meter) => meter.has_to_move(now),
            Cells::Counter(counter) => counter.has_to_move(now),
            Cells::Leases(leases) => leases.is_sealed(),
            Cells::Grants(_) => false,
        }
    }

    /// Returns whether a start of this weight, or a place of it, may need a larger ring.
    pub fn has_to_grow(&self, weight: u64, longest: Tick, now: Now) -> bool {
        matches!(self, Cells::Log(log) if log.has_to_grow(weight, longest, now))
    }

    /// Returns what sealed cells know of a year, because a longer window may be declared that needs it. (`longest` is
    /// the window that they were made for.)
    pub fn history(&self, longest: Tick, now: Now) -> History {
        match self {
            Cells::Log(log) => log.history(MAX_TIME, now),
            Cells::Slices(slices) => slices.history(longest, now),
            Cells::Meter(meter) => meter.history(now),
            Cells::Counter(counter) => counter.history(now),
            Cells::Leases(leases) => {
                let (holds, end) = leases.history();
                History { holds, end, ..History::default() }
            }
            Cells::Grants(_) => History::default(),
        }
    }

    /// Begins another life with this history, and returns its base. `None`: these cells had too many lives.
    pub fn write(&self, history: &History, window: Window, now: Now) -> Option<u64> {
        match self {
            Cells::Log(log) => log.write(history, now),
            Cells::Slices(slices) => slices.write(history, window, now),
            Cells::Meter(meter) => meter.write(history, now),
            Cells::Counter(counter) => counter.write(history, now),
            Cells::Leases(leases) => {
                leases.write(&history.holds, history.end).then(|| leases.base.load(crate::atomic::Acquire))
            }
            Cells::Grants(grants) => Some(grants.begin_next_life()),
        }
    }

    /// Returns the starts that are not in the ledger, and the mark to set when they are.
    pub fn unlogged(&self, longest: Tick, now: Now) -> (Vec<Start>, u64) {
        match self {
            Cells::Log(log) => log.unlogged(),
            Cells::Slices(slices) => slices.unlogged(longest, now),
            Cells::Meter(meter) => meter.unlogged(now),
            Cells::Counter(counter) => counter.unlogged(now),
            Cells::Leases(_) | Cells::Grants(_) => (Vec::new(), 0),
        }
    }
}
