//! A key's log in either form: every start, or counted in slices where there would be too many.

use super::log::{Answer, Ask, Known, Log, View, Window};
use super::slices::Slices;
use super::{History, Sealed, Start};
use crate::time::{Now, Tick};

/// The cells of one key of a rate limit.
#[derive(Clone, Copy)]
pub(crate) enum Cells<'a> {
    Log(Log<'a>),
    Slices(Slices<'a>),
}

impl Cells<'_> {
    /// Decides and records in one act.
    #[inline(always)]
    pub fn claim(&self, ask: &Ask, clock: impl Fn() -> Now) -> Result<Answer, Sealed> {
        match self {
            Cells::Log(log) => log.claim(ask, clock),
            Cells::Slices(slices) => slices.claim(ask, clock),
        }
    }

    /// The same, and what is held after it.
    pub fn claim_and_view(&self, ask: &Ask, clock: impl Fn() -> Now) -> Result<(Answer, View), Sealed> {
        match self {
            Cells::Log(log) => log.claim_and_view(ask, clock),
            Cells::Slices(slices) => slices.claim_and_view(ask, clock),
        }
    }

    /// Looks, and changes nothing.
    pub fn view(&self, ask: &Ask, clock: impl Fn() -> Now) -> Result<View, Sealed> {
        match self {
            Cells::Log(log) => log.view(ask, clock),
            Cells::Slices(slices) => slices.view(ask, clock),
        }
    }

    /// Starts with a place.
    pub fn present(&self, place: Known) -> Result<bool, Sealed> {
        match self {
            Cells::Log(log) => log.present(place),
            Cells::Slices(slices) => slices.present(place),
        }
    }

    // ---- for the holder of the structure lock ----

    /// Will nobody notice if this is forgotten?
    pub fn is_idle(&self, longest: Tick, now: Now) -> bool {
        match self {
            Cells::Log(log) => log.is_idle(longest, now),
            Cells::Slices(slices) => slices.is_idle(longest, now),
        }
    }

    /// Closes these cells for good.
    pub fn seal(self) -> Self {
        match self {
            Cells::Log(log) => {
                log.seal();
                self
            }
            Cells::Slices(slices) => Cells::Slices(Slices { base: slices.seal(), ..slices }),
        }
    }

    /// Does every caller have to wait until they are written elsewhere?
    pub fn has_to_move(&self, longest: Tick, now: Now) -> bool {
        match self {
            Cells::Log(log) => log.is_sealed(),
            Cells::Slices(slices) => slices.is_sealed() || slices.is_used_up(longest, now),
        }
    }

    /// What sealed cells hold that still counts.
    pub fn history(&self, longest: Tick, now: Now) -> History {
        match self {
            Cells::Log(log) => log.history(longest, now),
            Cells::Slices(slices) => slices.history(longest, now),
        }
    }

    /// Begins another life with this history, and returns its base. `None`: these cells had too many.
    pub fn write(&self, history: &History, window: Window, now: Now) -> Option<u64> {
        match self {
            Cells::Log(log) => log.write(history, now),
            Cells::Slices(slices) => slices.write(&history.starts, window, now),
        }
    }

    /// The starts that are not in the ledger, and what is to be marked when they are.
    pub fn unlogged(&self, longest: Tick) -> (Vec<Start>, u64) {
        match self {
            Cells::Log(log) => log.unlogged(),
            Cells::Slices(slices) => slices.unlogged(longest),
        }
    }
}
