//! Rate limits: units in any rolling window or in several, and the backoff of denied callers.

use crate::input::{Sized32, invalid, options};
use crate::limiter::{named, wgl_limiter};
use crate::store::wgl_store;
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::slice;
use std::time::Duration;
use workglow_limit::embed::MAX_WINDOWS;
use workglow_limit::{Backoff, Jitter, Policy, Result, Store};

/// How retries spread: from the backoff to twice the backoff. The default.
pub const WGL_JITTER_SCALED: u32 = 0;
/// How retries spread: from 0 to the backoff.
pub const WGL_JITTER_FULL: u32 = 1;
/// How retries spread: from half of the backoff to the backoff.
pub const WGL_JITTER_EQUAL: u32 = 2;
/// How retries spread: not at all. The backoff itself.
pub const WGL_JITTER_NONE: u32 = 3;

/// One window of a rate limit with several.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_rate_window {
    /// The units in any rolling window: 1 to 1,000,000,000, or 1 to 4,096 if there are several windows.
    pub max_executions: u64,
    /// The window's length: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    pub window_ns: u64,
}

/// What a rate limit allows: `max_executions` and `window_ns`, or `windows`. The backoff is what a denial adds to
/// `suggested_after_ns` for callers that requeue. The first denial adds `initial_backoff_delay_ns`, each later one
/// `backoff_multiplier` times as much, up to `max_backoff_delay_ns`; an admission resets it. Each level lasts as long as its
/// backoff, however often and in however many processes callers ask.
///
/// Begin with WGL_RATE_LIMITER_OPTIONS_INIT. The caller owns it; it is read only during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_rate_limiter_options {
    /// sizeof(wgl_rate_limiter_options), as the INIT macro sets it.
    pub struct_size: u32,
    /// How retries spread: WGL_JITTER_SCALED, _FULL, _EQUAL or _NONE. Default WGL_JITTER_SCALED.
    pub jitter: u32,
    /// The units in any rolling window: 1 to 1,000,000,000, or 1 to 4,096 if there are several windows.
    pub max_executions: u64,
    /// The window's length: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    pub window_ns: u64,
    /// Several windows instead: a start needs capacity in all of them. NULL: only the window above.
    pub windows: *const wgl_rate_window,
    /// The number of `windows`: 1 to 4, or 0 if it is NULL.
    pub window_count: usize,
    /// The backoff of the first denial: 1,000 ns to 366 days. Default 0: 1 s.
    pub initial_backoff_delay_ns: u64,
    /// The factor by which the backoff grows: more than 1 and at most 1,000, in thousandths. Default 0: 2.
    pub backoff_multiplier: f64,
    /// The longest backoff: the initial one to 366 days. Default 0: 10 min.
    pub max_backoff_delay_ns: u64,
}

// SAFETY: it begins with its size; the pointer is looked at only as what the caller gives.
unsafe impl Sized32 for wgl_rate_limiter_options {
    const NAME: &'static str = "rate limiter options";
}

impl wgl_rate_limiter_options {
    /// The windows, from either form of the options.
    ///
    /// # Safety
    /// `windows` is NULL or points to `window_count` windows.
    unsafe fn windows(&self) -> Result<Vec<(u64, Duration)>> {
        let one = wgl_rate_window { max_executions: self.max_executions, window_ns: self.window_ns };
        let all = match (self.windows.is_null(), self.window_count) {
            (true, 0) => slice::from_ref(&one),
            (true, count) => {
                return Err(invalid("windows", format_args!("NULL, of {count}"), "a pointer, or window_count 0"));
            }
            // A wrong count is refused before anything is read.
            (false, count) if !(1..=MAX_WINDOWS).contains(&count) => {
                return Err(invalid("window_count", count, &format!("1 to {MAX_WINDOWS}, or 0 and no windows")));
            }
            (false, _) if (one.max_executions, one.window_ns) != (0, 0) => {
                let both = "given together with max_executions and window_ns";
                return Err(invalid("windows", both, "either windows, or one pair and no windows"));
            }
            // SAFETY: the caller's promise.
            (false, count) => unsafe { slice::from_raw_parts(self.windows, count) },
        };
        Ok(all.iter().map(|window| (window.max_executions, Duration::from_nanos(window.window_ns))).collect())
    }

    fn backoff(&self) -> Result<Backoff> {
        let or = |given_ns, default_s| match given_ns {
            0 => Duration::from_secs(default_s),
            ns => Duration::from_nanos(ns),
        };
        let multiplier = if self.backoff_multiplier == 0.0 { 2.0 } else { self.backoff_multiplier };
        let jitter = match self.jitter {
            WGL_JITTER_SCALED => Jitter::Scaled,
            WGL_JITTER_FULL => Jitter::Full,
            WGL_JITTER_EQUAL => Jitter::Equal,
            WGL_JITTER_NONE => Jitter::None,
            other => return Err(invalid("jitter", other, "WGL_JITTER_SCALED (0), _FULL (1), _EQUAL (2) or _NONE (3)")),
        };
        Backoff::new(or(self.initial_backoff_delay_ns, 1), multiplier, or(self.max_backoff_delay_ns, 600), jitter)
    }
}

/// Declares a rate limit under a name, for all that share the store, and replaces the policy that the name had: at most
/// `max_executions` units in any rolling window. A start at s counts until exactly s + window. An operator's override stays
/// in force until it is lifted.
///
/// Fails with WGL_INVALID_ARGUMENT for options out of range and for a name that is not 1 to 1,024 bytes, WGL_KIND_MISMATCH
/// if the name is declared as another kind of limiter, or with a store error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_rate_limiter_new(
    store: Option<NonNull<wgl_store>>,
    name: *const c_char,
    options: *const wgl_rate_limiter_options,
    limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>,
) -> c_int {
    let declare = |store: &Store, name: &str| {
        // SAFETY: the caller's promise, here and below.
        let options = unsafe { self::options(options) }?;
        // SAFETY: as above.
        let windows = unsafe { options.windows() }?;
        store.declare(name, Policy::rate_in(&windows)?.with_backoff(options.backoff()?)?)
    };
    // SAFETY: the caller's promise.
    unsafe { named(store, name, limiter, declare) }
}
