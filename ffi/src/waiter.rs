//! Waits: as one call, or in steps.

use crate::calls::{WGL_FOREVER, on_key, span, tell};
use crate::input::{self, Sized32, given, hand_out, invalid, options};
use crate::limiter::wgl_limiter;
use crate::permit::{WGL_DEFAULT_GRACE, wgl_permit};
use crate::status::{WGL_DENIED, WGL_OK, WGL_WAITING, guard};
use std::ffi::{c_char, c_int};
use std::mem::{MaybeUninit, offset_of};
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::{Attempt, Limiter, Result, Seat, Step, Waiter, acquire};

/// How to wait. Begin with WGL_WAITER_OPTIONS_INIT. The caller owns it; it is read during the call only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_waiter_options {
    /// sizeof(wgl_waiter_options), as the INIT macro sets it.
    pub struct_size: u32,
    /// Of the waiters in this process that wait for the same limiter and key, those with lower numbers start first. INIT: 0.
    pub priority: i32,
    /// The units that the start takes: at least 1. INIT: 1.
    pub weight: u64,
    /// The longest wait. WGL_FOREVER: as long as it takes. INIT: WGL_FOREVER.
    pub timeout_ns: u64,
    /// How late it may come for its place without losing it, at least: at most 366 days. While its place is kept for it nobody
    /// else has that start, so ask for no more than is needed. WGL_DEFAULT_GRACE: as is usual. INIT: WGL_DEFAULT_GRACE.
    pub grace_ns: u64,
}

// SAFETY: it begins with its size, and is numbers.
unsafe impl Sized32 for wgl_waiter_options {
    const NAME: &'static str = "waiter options";
    const FIRST: usize = offset_of!(Self, grace_ns);
}

/// What holds where there are no options: what WGL_WAITER_OPTIONS_INIT says.
const DEFAULT: wgl_waiter_options =
    wgl_waiter_options { struct_size: 0, priority: 0, weight: 1, timeout_ns: WGL_FOREVER, grace_ns: WGL_DEFAULT_GRACE };

/// # Safety
/// `theirs` is NULL, or points to options of the size that they say.
unsafe fn waiter(key: &str, theirs: *const wgl_waiter_options) -> Result<Waiter<'_>> {
    // SAFETY: the caller's promise.
    let wish = if theirs.is_null() { DEFAULT } else { unsafe { options(theirs) }? };
    let waiter = Waiter::new(key, wish.weight).priority(wish.priority).timeout(span(wish.timeout_ns, WGL_FOREVER));
    Ok(waiter.grace(Duration::from_nanos(wish.grace_ns)))
}

/// Waits, and writes what comes of it.
fn wait(
    limiter: &dyn Limiter,
    waiter: Waiter,
    permit: &mut MaybeUninit<wgl_permit>,
    retry_after_ns: Option<&mut MaybeUninit<u64>>,
) -> Result<c_int> {
    Ok(match acquire(limiter, waiter)? {
        Attempt::Admitted(raw) => {
            permit.write(wgl_permit::new(raw));
            WGL_OK
        }
        Attempt::Denied(after) => {
            tell(retry_after_ns, after);
            WGL_DENIED
        }
    })
}

/// Waits for room, at most for `timeout_ns`; WGL_FOREVER: as long as it takes. The threads of this process that wait for
/// the same limiter and key start in the order in which they asked. WGL_OK: admitted, and `permit` is written.
/// WGL_DENIED: there is no room before that, which is said at once if it can be known at once; nothing is held, and there
/// may be room after `retry_after_ns` (which may be NULL): who asks again should stay away for so long. A signal handler
/// may run meanwhile, but does not end the wait.
///
/// Fails as wgl_try_acquire does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_acquire(
    limiter: Option<&wgl_limiter>,
    key: *const c_char,
    key_len: usize,
    weight: u64,
    timeout_ns: u64,
    permit: Option<&mut MaybeUninit<wgl_permit>>,
    retry_after_ns: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    let call = |limiter: &dyn Limiter, key: &str| {
        let waiter = Waiter::new(key, weight).timeout(span(timeout_ns, WGL_FOREVER));
        wait(limiter, waiter, given("permit", permit)?, retry_after_ns)
    };
    // SAFETY: the caller's promise.
    unsafe { on_key(limiter, key, key_len, call) }
}

/// As wgl_acquire, with a priority and a grace; `options` may be NULL.
///
/// Fails as wgl_try_acquire does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_acquire_with(
    limiter: Option<&wgl_limiter>,
    key: *const c_char,
    key_len: usize,
    options: *const wgl_waiter_options,
    permit: Option<&mut MaybeUninit<wgl_permit>>,
    retry_after_ns: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    let call = |limiter: &dyn Limiter, key: &str| {
        let permit = given("permit", permit)?;
        // SAFETY: the caller's promise.
        wait(limiter, unsafe { waiter(key, options) }?, permit, retry_after_ns)
    };
    // SAFETY: as above.
    unsafe { on_key(limiter, key, key_len, call) }
}

/// Waits for a place's time, at most for `timeout_ns` (WGL_FOREVER: as long as it takes), and starts with it; a place
/// that has gone bad meanwhile is exchanged, as wgl_present does. WGL_OK: start; `place` is the start's permit now.
/// WGL_DENIED: its time does not come before that, which is said at once; the place was given back, and there may be room
/// after `retry_after_ns` (which may be NULL).
///
/// Fails as wgl_present does.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_acquire_place(
    limiter: Option<&wgl_limiter>,
    place: Option<&mut wgl_permit>,
    timeout_ns: u64,
    retry_after_ns: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    guard(|| {
        let (limiter, place) = (given("limiter", limiter)?, given("place", place)?);
        let waiter = Waiter::with_place(place.raw()).timeout(span(timeout_ns, WGL_FOREVER));
        Ok(match acquire(&*limiter.limiter, waiter)? {
            Attempt::Admitted(raw) => {
                *place = wgl_permit::new(raw);
                WGL_OK
            }
            Attempt::Denied(after) => {
                place.end();
                tell(retry_after_ns, after);
                WGL_DENIED
            }
        })
    })
}

/// One that waits in steps: in an event loop, or where something else may end the wait.
///
/// The caller owns it and frees it with wgl_waiter_free, at any time; if the wait is not over then, what it holds goes to
/// the next waiter, or back. It keeps its limiter alive by itself. One thread at a time may use it. A forked child that
/// goes on with it waits anew, on its own behalf.
pub struct wgl_waiter {
    limiter: Arc<dyn Limiter>,
    /// Nothing: the wait is over.
    seat: Option<Seat>,
}

impl Drop for wgl_waiter {
    fn drop(&mut self) {
        if let Some(seat) = &mut self.seat {
            seat.leave(&*self.limiter);
        }
    }
}

/// Makes a waiter, which asks at its first step, and whose time begins then. `options` may be NULL. It is in one line with
/// all that wait in this process for the same limiter and key, in whichever way.
///
/// Fails with WGL_INVALID_ARGUMENT for options out of range or a key that is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_waiter_new(
    limiter: Option<&wgl_limiter>,
    key: *const c_char,
    key_len: usize,
    options: *const wgl_waiter_options,
    waiter: Option<&mut MaybeUninit<Box<wgl_waiter>>>,
) -> c_int {
    guard(|| {
        let (limiter, place) = (given("limiter", limiter)?, given("waiter", waiter)?);
        // SAFETY: the caller's promise.
        let ask = unsafe { self::waiter(input::key(key, key_len)?, options) }?;
        hand_out(place, wgl_waiter { limiter: limiter.limiter.clone(), seat: Some(Seat::new(ask)) });
        Ok(WGL_OK)
    })
}

/// Makes a waiter for the time of a place, as wgl_acquire_place waits. It takes the place over: `place` is used up.
///
/// Fails with WGL_FOREIGN_PERMIT if another limiter gave the place.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_waiter_new_for_place(
    limiter: Option<&wgl_limiter>,
    place: Option<&mut wgl_permit>,
    timeout_ns: u64,
    waiter: Option<&mut MaybeUninit<Box<wgl_waiter>>>,
) -> c_int {
    guard(|| {
        let (limiter, taken) = (given("limiter", limiter)?, given("place", place)?);
        let place = given("waiter", waiter)?;
        limiter.limiter.check_permit(&taken.raw())?;
        let ask = Waiter::with_place(taken.raw()).timeout(span(timeout_ns, WGL_FOREVER));
        hand_out(place, wgl_waiter { limiter: limiter.limiter.clone(), seat: Some(Seat::new(ask)) });
        taken.end();
        Ok(WGL_OK)
    })
}

/// Takes a step. It does not sleep. WGL_OK: start, and `permit` is written. WGL_WAITING: not yet; take another step after
/// `nap_ns`, or earlier. WGL_DENIED: there is no room before the time is up, but perhaps after `nap_ns` (which may be
/// NULL). After WGL_OK, WGL_DENIED or an error the wait is over.
///
/// Who comes late for a step may start late, and holds up nobody else.
///
/// Fails as wgl_try_acquire does, and with WGL_INVALID_ARGUMENT if the wait is over.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_waiter_step(
    waiter: Option<&mut wgl_waiter>,
    permit: Option<&mut MaybeUninit<wgl_permit>>,
    nap_ns: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    guard(|| {
        let (waiter, permit) = (given("waiter", waiter)?, given("permit", permit)?);
        let Some(seat) = &mut waiter.seat else {
            return Err(invalid("waiter", "one whose wait is over", "one that waits"));
        };
        let step = seat.step(&*waiter.limiter);
        if !matches!(step, Ok(Step::Sleep(_))) {
            waiter.seat = None;
        }
        let (status, nap) = match step? {
            Step::Admitted(raw) => {
                permit.write(wgl_permit::new(raw));
                (WGL_OK, Duration::ZERO)
            }
            Step::Sleep(nap) => (WGL_WAITING, nap),
            Step::Expired(after) => (WGL_DENIED, after),
        };
        tell(nap_ns, nap);
        Ok(status)
    })
}

/// Frees a waiter, and gives the wait up if it is not over. NULL is a no-op.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_waiter_free(waiter: Option<Box<wgl_waiter>>) {
    guard(|| {
        drop(waiter);
        Ok(WGL_OK)
    });
}
