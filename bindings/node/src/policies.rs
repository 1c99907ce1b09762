//! Policies of every kind. JavaScript has checked types and words; the core checks ranges.

use crate::{milliseconds, thrown};
use napi::bindgen_prelude::External;
use napi_derive::napi;
use workglow_limit::embed::duration_from_secs;
use workglow_limit::{Backoff, Error, Jitter, Policy};

fn made(policy: Result<Policy, Error>) -> napi::Result<External<Policy>> {
    policy.map(External::new).map_err(thrown)
}

/// Makes the same policy, shared by tenants.
#[napi]
pub fn shared_policy(policy: &External<Policy>) -> napi::Result<External<Policy>> {
    made(policy.shared())
}

/// Makes a policy of one or more sliding windows, each a pair of units and seconds. The backoff: initial delay in ms,
/// multiplier, longest delay in ms, jitter.
#[napi]
pub fn rate_policy(windows: Vec<(f64, f64)>, backoff: (f64, f64, f64, String)) -> napi::Result<External<Policy>> {
    let window = |(max, seconds)| Ok((max as u64, duration_from_secs("windowSizeInSeconds", seconds)?));
    let (initial, multiplier, max, jitter) = backoff;
    let jitter = match jitter.as_str() {
        "full" => Jitter::Full,
        "equal" => Jitter::Equal,
        "none" => Jitter::None,
        _ => Jitter::Scaled,
    };
    let windows: Result<Vec<_>, Error> = windows.into_iter().map(window).collect();
    made(windows.and_then(|windows| {
        let backoff = Backoff::new(milliseconds(initial), multiplier, milliseconds(max), jitter)?;
        Policy::rate_in(&windows)?.with_backoff(backoff)
    }))
}

/// Makes a policy of concurrent units. The lease and the cooldown are in ms.
#[napi]
pub fn concurrency_policy(max: f64, lease: Option<f64>, cooldown: Option<f64>) -> napi::Result<External<Policy>> {
    let policy = Policy::concurrency(max as u64);
    let policy = policy.and_then(|policy| lease.map_or(Ok(policy), |lease| policy.with_lease(milliseconds(lease))));
    made(policy.and_then(|policy| cooldown.map_or(Ok(policy), |cooldown| policy.with_cooldown(milliseconds(cooldown)))))
}

/// Makes a policy of the delay between two starts, in ms.
#[napi]
pub fn delay_policy(delay: f64) -> napi::Result<External<Policy>> {
    made(Policy::delay(milliseconds(delay)))
}

/// Makes a policy of evenly spaced starts in a window of seconds.
#[napi]
pub fn evenly_spaced_policy(max: f64, seconds: f64, is_adaptive: bool) -> napi::Result<External<Policy>> {
    let window = duration_from_secs("windowSizeInSeconds", seconds);
    made(window.and_then(|window| Policy::evenly_spaced(max as u64, window, is_adaptive)))
}

/// Makes a policy of a bucket, its period in ms. The size is a leaky bucket's queue, or a token bucket's burst.
#[napi]
pub fn bucket_policy(rate: f64, period: f64, size: f64, is_leaky: bool) -> napi::Result<External<Policy>> {
    let new = if is_leaky { Policy::leaky_bucket } else { Policy::token_bucket };
    made(new(rate as u64, milliseconds(period), size as u64))
}

/// Makes a policy of fixed windows of seconds, or if smooth, of an estimate over the rolling window.
#[napi]
pub fn window_policy(max: f64, seconds: f64, is_smooth: bool) -> napi::Result<External<Policy>> {
    let new = if is_smooth { Policy::sliding_window_counter } else { Policy::fixed_window };
    made(duration_from_secs("windowSizeInSeconds", seconds).and_then(|window| new(max as u64, window)))
}
