//! Settings of a server that endanger limits. The servers' own parts find them: `redis/examine.rs`, `postgres/examine.rs`.

use crate::algorithm::grants::longer;
use crate::error::Result;
use crate::time::{Tick, uptime};
use std::time::Duration;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// Worth knowing.
    Note,
    /// Limits may answer late or not at all, or start too few.
    Warning,
    /// Limits may be exceeded, or cannot be used.
    Danger,
}

impl Severity {
    /// The name of the severity, the same in every language.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Danger => "danger",
        }
    }
}

/// A finding about a server's settings, as returned by [`doctor`](crate::admin::doctor).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// The danger.
    pub what: String,
    /// The setting, by the server's own name.
    pub setting: String,
    /// The value. Empty if it could not be read.
    pub value: String,
    /// The recommended setting or action. Empty if there is none.
    pub instead: String,
}

impl Finding {
    pub(crate) fn new(severity: Severity, setting: &str, value: impl ToString, what: &str, instead: &str) -> Finding {
        let (what, setting, instead) = (what.to_owned(), setting.to_owned(), instead.to_owned());
        Finding { severity, what, setting, value: value.to_string(), instead }
    }
}

/// How long the server's clock is compared with this machine's, and how many readings each time. The quickest of them
/// counts.
const COMPARED: Duration = Duration::from_millis(500);
const READINGS: u64 = 4;

/// A reading of a server's clock, and this machine's uptimes before and after it.
struct Reading {
    before: Tick,
    theirs: Tick,
    after: Tick,
}

impl Reading {
    fn take(read: &mut impl FnMut() -> Result<Tick>) -> Result<Reading> {
        let before = uptime();
        let theirs = read()?;
        Ok(Reading { before, theirs, after: uptime() + 1 })
    }

    fn quickest(read: &mut impl FnMut() -> Result<Tick>) -> Result<Reading> {
        let mut best = Self::take(read)?;
        for _ in 1..READINGS {
            let next = Self::take(read)?;
            best = if next.after - next.before < best.after - best.before { next } else { best };
        }
        Ok(best)
    }

    /// By how much the server's clock went further than this machine's since an earlier reading, or less far, beyond
    /// what clocks may differ.
    fn gained_since(&self, earlier: &Reading) -> i64 {
        let theirs = self.theirs as i64 - earlier.theirs as i64;
        let (most, least) = (self.after - earlier.before, self.before.saturating_sub(earlier.after));
        match () {
            () if theirs > longer(most) as i64 => theirs - most as i64,
            () if longer(theirs.max(0) as Tick) < least => theirs - least as i64,
            () => 0,
        }
    }
}

/// Compares a server's clock, in microseconds, with this machine's for half a second.
pub(super) fn compare_clocks(setting: &str, mut read: impl FnMut() -> Result<Tick>) -> Result<Option<Finding>> {
    let earlier = Reading::quickest(&mut read)?;
    std::thread::sleep(COMPARED);
    let gained = Reading::quickest(&mut read)?.gained_since(&earlier);
    let what = "the server's clock and this machine's do not run alike, or one of them was set: limits correct the difference, and \
                withhold starts for as long as it amounts to";
    let value = format!("{:+.1} ms in {} ms", gained as f64 / 1e3, COMPARED.as_millis());
    let finding = || {
        Finding::new(
            Severity::Warning,
            setting,
            value,
            what,
            "let both follow the same time servers, by slewing slowly",
        )
    };
    Ok((gained != 0).then(finding))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_gains_only_what_no_delay_explains() {
        let earlier = Reading { before: 1_000, theirs: 50_000, after: 3_000 };
        let gained = |[before, theirs, after]: [Tick; 3]| Reading { before, theirs, after }.gained_since(&earlier);
        // Between 498 and 502 ms have passed, and clocks may differ by half a millisecond.
        for theirs in [547_510, 548_000, 552_000, 552_500] {
            assert_eq!(gained([501_000, theirs, 503_000]), 0, "{theirs}");
        }
        assert_eq!(gained([501_000, 552_503, 503_000]), 503);
        assert_eq!(gained([501_000, 547_501, 503_000]), -499);
        assert_eq!(gained([501_000, 40_000, 503_000]), -508_000, "it was set back");
    }
}
