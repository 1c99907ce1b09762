//! A clock for tests.

use crate::input::{given, hand_out};
use crate::status::{WGL_OK, guard};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::time::Duration;
use workglow_limit::ManualClock;

/// A clock for tests: it stands still until it is advanced, and everything that was given it lives by it. Whoever waits
/// in wgl_acquire sleeps until somebody advances it.
///
/// The caller owns it and frees it with wgl_manual_clock_free, at any time: stores and limiters keep what they need.
/// Any thread may use it. A forked child has a copy, which no longer follows its parent's.
pub struct wgl_manual_clock(pub(crate) ManualClock);

/// Makes a clock that reads zero.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_manual_clock_new(clock: Option<&mut MaybeUninit<Box<wgl_manual_clock>>>) -> c_int {
    guard(|| {
        hand_out(given("clock", clock)?, wgl_manual_clock(ManualClock::new()));
        Ok(WGL_OK)
    })
}

/// Moves a clock forward.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_manual_clock_advance(clock: Option<&wgl_manual_clock>, by_ns: u64) -> c_int {
    guard(|| {
        given("clock", clock)?.0.advance(Duration::from_nanos(by_ns));
        Ok(WGL_OK)
    })
}

/// Frees a clock. NULL is a no-op.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_manual_clock_free(clock: Option<Box<wgl_manual_clock>>) {
    guard(|| {
        drop(clock);
        Ok(WGL_OK)
    });
}
