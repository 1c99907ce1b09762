//! Conversions between durations and ticks. (The package for browsers, `bindings/web`, includes this file, the policies and
//! the errors: it has no other part of this crate.)

pub(crate) use crate::algorithm::time::{MAX_TIME, Now, Tick};
use crate::error::{Error, Result};
use std::time::Duration;

/// Converts ticks to a duration.
pub(crate) fn from_ticks(ticks: Tick) -> Duration {
    Duration::from_micros(ticks)
}

pub(super) fn ticks_up(duration: Duration) -> Option<Tick> {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).ok()
}

/// Converts a duration to ticks, rounded up. Too long a duration is endless.
pub(crate) fn patience_ticks(duration: Duration) -> Tick {
    ticks_up(duration).unwrap_or(u64::MAX)
}

/// A time as errors show it: whole days, and none at all, as a policy writes them.
pub(super) fn shown(time: Duration) -> String {
    if time.is_zero() {
        return "0s".into();
    }
    let days = time.as_secs() / 86_400;
    if days > 0 && time == Duration::from_secs(days * 86_400) { format!("{days}d") } else { format!("{time:?}") }
}

/// Converts a grace to ticks: up to 366 days.
pub(crate) fn grace_ticks(parameter: &'static str, grace: Duration) -> Result<Tick> {
    match ticks_up(grace) {
        Some(ticks) if ticks <= MAX_TIME => Ok(ticks),
        _ => Err(Error::invalid(parameter, shown(grace), "at most 366 days")),
    }
}

/// Converts a window to ticks, rounded up: 1 µs to 366 days.
pub(crate) fn window_ticks(parameter: &'static str, window: Duration) -> Result<Tick> {
    match ticks_up(window) {
        Some(ticks) if (1..=MAX_TIME).contains(&ticks) => Ok(ticks),
        _ => Err(Error::invalid(parameter, shown(window), "1 µs to 366 days")),
    }
}

/// Converts a number of seconds, as the bindings take them, to a duration.
///
/// # Errors
/// [`Error::InvalidArgument`] for NaN, negative or infinite numbers, and for more than 366 days.
pub fn duration_from_secs(parameter: &'static str, seconds: f64) -> Result<Duration> {
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if duration <= from_ticks(MAX_TIME) => Ok(duration),
        _ => Err(Error::invalid(parameter, seconds, "seconds, from 0 to 31622400 (366 days)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_round_up_and_have_a_range() {
        assert_eq!(window_ticks("window", Duration::from_nanos(1)), Ok(1));
        assert_eq!(window_ticks("window", Duration::from_nanos(1_001)), Ok(2));
        assert!(window_ticks("window", Duration::ZERO).is_err());
        assert!(window_ticks("window", from_ticks(MAX_TIME + 1)).is_err());
    }

    #[test]
    fn seconds_that_are_no_duration_are_errors_that_name_the_parameter() {
        for bad in [f64::NAN, -1.0, f64::INFINITY, 1e300] {
            let text = duration_from_secs("timeout", bad).unwrap_err().to_string();
            assert!(text.starts_with("timeout is "), "{text}");
        }
    }
}
