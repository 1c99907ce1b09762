//! Time as decisions count it: whole microseconds ("ticks") since the store's epoch, on a clock that only moves
//! forward. Stamps round up and comparisons round down, so that no rounding ever admits a start early.

/// A point in time, in microseconds since the store's epoch.
pub type Tick = u64;

const DAY: u64 = 86_400_000_000;

/// The longest window, period or pause: 366 days, in ticks.
pub const MAX_TIME: Tick = 366 * DAY;

/// A store's epoch lies this far before its creation. A zero stamp ("never used") has then left every window by the
/// first decision, so zeroed memory is a fresh limiter without a special case.
pub const EPOCH_LEAD: Tick = 400 * DAY;

/// One reading of the clock, rounded both ways. The true time lies in `[floor, ceil]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// For "has this moment come?".
    pub floor: Tick,
    /// For "when did this happen?".
    pub ceil: Tick,
}

impl Now {
    /// Rounds a number of nanoseconds since the epoch.
    #[inline(always)]
    pub fn from_ns(ns: u64) -> Now {
        let floor = ns / 1_000;
        Now { floor, ceil: floor + u64::from(floor * 1_000 != ns) }
    }
}

#[cfg(all(test, not(model)))]
mod tests {
    use super::*;

    #[test]
    fn a_reading_is_rounded_both_ways() {
        assert_eq!(Now::from_ns(5_000), Now { floor: 5, ceil: 5 });
        assert_eq!(Now::from_ns(5_001), Now { floor: 5, ceil: 6 });
    }
}
