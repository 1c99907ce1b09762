//! A clock for tests.

use crate::input::{given, hand_out, shared};
use crate::status::{WGL_OK, guard};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::time::Duration;
use workglow_limit::ManualClock;

/// A clock for tests. It stands still until it is advanced; stores and limiters that were made with it follow it. A thread
/// that waits in wgl_acquire sleeps until another thread advances it.
///
/// The caller owns it and frees it with wgl_manual_clock_free, at any time: stores and limiters keep what they need.
/// Any thread may use it. A forked child has a copy, which does not follow the parent's.
pub struct wgl_manual_clock(pub(crate) ManualClock);

/// Makes a clock that reads 0.
///
/// Fails only with WGL_INVALID_ARGUMENT, for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_manual_clock_new(clock: Option<&mut MaybeUninit<Box<wgl_manual_clock>>>) -> c_int {
    guard(|| {
        hand_out(given("clock", clock)?, wgl_manual_clock(ManualClock::new()));
        Ok(WGL_OK)
    })
}

/// Advances a clock.
///
/// Fails only with WGL_INVALID_ARGUMENT, for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_manual_clock_advance(clock: Option<NonNull<wgl_manual_clock>>, by_ns: u64) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        given("clock", unsafe { shared(clock) })?.0.advance(Duration::from_nanos(by_ns));
        Ok(WGL_OK)
    })
}

/// Frees a clock. NULL is a no-op.
///
/// Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_manual_clock_free(clock: Option<Box<wgl_manual_clock>>) {
    guard(|| {
        drop(clock);
        Ok(WGL_OK)
    });
}
