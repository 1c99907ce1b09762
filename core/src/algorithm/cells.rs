//! The cells of one key, whatever its algorithm.

use super::counter::Counter;
use super::grants::Grants;
use super::leases::Leases;
use super::log::{Ask, Known, Log, View, Window};
use super::meter::Meter;
use super::slices::Slices;
use super::{History, Sealed, Start};
use crate::time::{LONGEST, Now, Tick, uptime};

/// The cells of one key.
#[derive(Clone, Copy)]
pub(crate) enum Cells<'a> {
    /// Every start.
    Log(Log<'a>),
    /// Starts counted in slices, where there would be too many.
    Slices(Slices<'a>),
    /// A bucket.
    Meter(Meter<'a>),
    /// Two windows.
    Counter(Counter<'a>),
    /// Leases: what is asked of them is not a matter of time.
    Leases(Leases<'a>),
    /// What a server has granted: nothing that starts by it counts here.
    Grants(Grants<'a>),
}

/// The same call, whatever the algorithm. (The kind was checked when the limit was opened: another one makes no sense.)
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
    /// Looks, and changes nothing.
    pub fn view(&self, ask: &Ask, clock: impl Fn() -> Now) -> Result<View, Sealed> {
        either!(self, cells => cells.view(ask, clock))
    }

    /// Starts with a place that is ready and open at `now`, and says from when on the start counts. `None`: that place is
    /// gone.
    pub fn present(&self, place: Known, longest: Tick, now: Now) -> Result<Option<Tick>, Sealed> {
        match self {
            Cells::Log(log) => log.present(place, longest, now),
            Cells::Slices(slices) => slices.present(place, longest, now),
            Cells::Meter(meter) => meter.present(place).map(|is_good| is_good.then_some(place.stamp)),
            Cells::Counter(counter) => counter.present(place).map(|is_good| is_good.then_some(place.stamp)),
            Cells::Leases(_) | Cells::Grants(_) => Err(Sealed),
        }
    }

    /// How many units that were handed out up to this mark (what `Taken::end` says) the ledger does not have.
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

    /// Will nobody notice if this is forgotten?
    pub fn is_idle(&self, longest: Tick, now: Now) -> bool {
        match self {
            Cells::Log(log) => log.is_idle(longest, now),
            Cells::Slices(slices) => slices.is_idle(longest, now),
            Cells::Meter(meter) => meter.is_idle(now),
            Cells::Counter(counter) => counter.is_idle(now),
            Cells::Leases(leases) => leases.is_idle(),
            Cells::Grants(grants) => grants.is_idle(uptime()),
        }
    }

    /// Closes these cells for good.
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

    /// Does every caller have to wait until they are written elsewhere?
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

    /// What sealed cells know of a year: a longer window may be declared, which is asked about it. (`longest` is the one
    /// that they were cut for.)
    pub fn history(&self, longest: Tick, now: Now) -> History {
        match self {
            Cells::Log(log) => log.history(LONGEST, now),
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

    /// Begins another life with this history, and returns its base. `None`: these cells had too many.
    pub fn write(&self, history: &History, window: Window, now: Now) -> Option<u64> {
        match self {
            Cells::Log(log) => log.write(history, now),
            Cells::Slices(slices) => slices.write(&history.starts, window, now),
            Cells::Meter(meter) => meter.write(history, now),
            Cells::Counter(counter) => counter.write(history, now),
            Cells::Leases(leases) => {
                leases.write(&history.holds, history.end).then(|| leases.base.load(crate::atomic::Acquire))
            }
            Cells::Grants(grants) => Some(grants.begin_anew()),
        }
    }

    /// The starts that are not in the ledger, and what is to be marked when they are.
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
