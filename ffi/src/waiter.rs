//! Waits: in one call, or in steps.

use crate::calls::{WGL_FOREVER, on_key, put_ns, timeout};
use crate::input::{self, Sized32, given, hand_out, invalid, options, reserved, shared};
use crate::limiter::wgl_limiter;
use crate::permit::wgl_permit;
use crate::status::{WGL_DENIED, WGL_OK, WGL_WAITING, guard};
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::embed::{Seat, Step, Waiter, acquire};
use workglow_limit::{Attempt, Limiter, Result};

/// How to wait. Begin with WGL_WAITER_OPTIONS_INIT; a field that is 0 has its default. The caller owns it; it is read only
/// during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_waiter_options {
    /// sizeof(wgl_waiter_options), as the INIT macro sets it.
    pub struct_size: u32,
    /// Of the waiters in this process for the same limiter and key, lower priorities start first. Default 0.
    pub priority: i32,
    /// The units that the start takes. Default 0: 1.
    pub weight: u64,
    /// The longest wait. Default 0: as long as it takes, like WGL_FOREVER. WGL_NO_WAIT: none.
    pub timeout_ns: u64,
    /// How late the waiter may be for its place without losing it, at most 366 days. No other caller can have that start
    /// during the grace, so pass no more than is needed. Default WGL_DEFAULT_GRACE; a shorter grace has no effect.
    pub grace_ns: u64,
    /// Of a shared limit, the share of the tenant that the key names, 1 to 1,000: with 3 it gets three starts where one with 1
    /// gets one, while both wait. Default 0: the share that wgl_store_share has set, or else 1.
    pub share: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: it begins with its size, and is numbers.
unsafe impl Sized32 for wgl_waiter_options {
    const NAME: &'static str = "waiter options";
    const FIRST: usize = std::mem::offset_of!(wgl_waiter_options, share);
}

/// The waiter of these options.
///
/// # Safety
/// `theirs` is NULL, or points to options of their `struct_size`.
pub(crate) unsafe fn waiter(key: &str, theirs: *const wgl_waiter_options) -> Result<Waiter<'_>> {
    if theirs.is_null() {
        return Ok(Waiter::new(key, 1));
    }
    // SAFETY: the caller's promise.
    let wish = unsafe { options(theirs) }?;
    let longest = if wish.timeout_ns == 0 { WGL_FOREVER } else { wish.timeout_ns };
    reserved(wish.reserved)?;
    let waiter = Waiter::new(key, wish.weight.max(1)).priority(wish.priority).timeout(timeout(longest));
    let waiter = waiter.grace(Duration::from_nanos(wish.grace_ns));
    Ok(if wish.share == 0 { waiter } else { waiter.share(wish.share) })
}

/// Waits, and writes the outcome.
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
            put_ns(retry_after_ns, after);
            WGL_DENIED
        }
    })
}

/// Waits for capacity, at most for `timeout_ns`: 0 does not wait, WGL_FOREVER waits as long as it takes. The threads of this
/// process that wait for the same limiter and key start in the order of their calls. WGL_OK: admitted, and `permit` is
/// written. WGL_DENIED: there is no capacity before the timeout, which is returned at once if it is certain. Nothing is held
/// then; another call before `retry_after_ns` (which may be NULL) is over would be denied again. Signal handlers may run
/// during the wait but do not end it.
///
/// Fails as wgl_try_acquire does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_acquire(
    limiter: Option<NonNull<wgl_limiter>>,
    key: *const c_char,
    key_len: usize,
    weight: u64,
    timeout_ns: u64,
    permit: Option<&mut MaybeUninit<wgl_permit>>,
    retry_after_ns: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    let call = |limiter: &dyn Limiter, key: &str| {
        let waiter = Waiter::new(key, weight).timeout(timeout(timeout_ns));
        wait(limiter, waiter, given("permit", permit)?, retry_after_ns)
    };
    // SAFETY: the caller's promise.
    unsafe { on_key(shared(limiter), key, key_len, call) }
}

/// Waits as wgl_acquire does, with a priority, a share and a grace; `options` may be NULL.
///
/// Fails as wgl_try_acquire does, and with WGL_INVALID_ARGUMENT for options out of range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_acquire_with(
    limiter: Option<NonNull<wgl_limiter>>,
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
    unsafe { on_key(shared(limiter), key, key_len, call) }
}

/// Waits until a place is ready, at most for `timeout_ns` (WGL_FOREVER: as long as it takes), and starts with it; a place
/// that is no longer valid is exchanged, as wgl_present does. WGL_OK: start; `place` is now the permit of the start.
/// WGL_DENIED: it is not ready before the timeout, which is returned at once. The place was returned; there may be capacity
/// after `retry_after_ns` (which may be NULL).
///
/// Fails as wgl_present does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_acquire_place(
    limiter: Option<NonNull<wgl_limiter>>,
    place: Option<&mut wgl_permit>,
    timeout_ns: u64,
    retry_after_ns: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let (limiter, place) = (given("limiter", unsafe { shared(limiter) })?, given("place", place)?);
        let waiter = Waiter::with_place(place.raw()).timeout(timeout(timeout_ns));
        Ok(match acquire(&*limiter.limiter, waiter)? {
            Attempt::Admitted(raw) => {
                *place = wgl_permit::new(raw);
                WGL_OK
            }
            Attempt::Denied(after) => {
                place.end();
                put_ns(retry_after_ns, after);
                WGL_DENIED
            }
        })
    })
}

/// A wait in steps: for an event loop, or where something else may end the wait.
///
/// The caller owns it and frees it with wgl_waiter_free, at any time. If the wait is not over then, its place goes to the
/// next waiter, or back. It keeps its limiter alive. One thread at a time may use it. A forked child that continues with it
/// starts a wait of its own.
pub struct wgl_waiter {
    limiter: Arc<dyn Limiter>,
    /// `None`: the wait is over.
    seat: Option<Seat>,
}

impl Drop for wgl_waiter {
    fn drop(&mut self) {
        if let Some(seat) = &mut self.seat {
            seat.leave(&*self.limiter);
        }
    }
}

/// Makes a waiter. Its first step joins the line, and its timeout starts then. `options` may be NULL. All that wait in this
/// process for the same limiter and key, in any way, form one line.
///
/// Fails with WGL_INVALID_ARGUMENT for options out of range or a key of more than 1,024 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_waiter_new(
    limiter: Option<NonNull<wgl_limiter>>,
    key: *const c_char,
    key_len: usize,
    options: *const wgl_waiter_options,
    waiter: Option<&mut MaybeUninit<Box<wgl_waiter>>>,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let (limiter, out) = (given("limiter", unsafe { shared(limiter) })?, given("waiter", waiter)?);
        // SAFETY: as above.
        let ask = unsafe { self::waiter(input::key(key, key_len)?, options) }?;
        hand_out(out, wgl_waiter { limiter: limiter.limiter.clone(), seat: Some(Seat::new(ask)) });
        Ok(WGL_OK)
    })
}

/// Makes a waiter for a place, as wgl_acquire_place waits. The waiter takes the place over: `place` is ended.
///
/// Fails with WGL_FOREIGN_PERMIT if another limiter gave the place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_waiter_new_for_place(
    limiter: Option<NonNull<wgl_limiter>>,
    place: Option<&mut wgl_permit>,
    timeout_ns: u64,
    waiter: Option<&mut MaybeUninit<Box<wgl_waiter>>>,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let (limiter, taken) = (given("limiter", unsafe { shared(limiter) })?, given("place", place)?);
        let out = given("waiter", waiter)?;
        limiter.limiter.check_permit(&taken.raw())?;
        let ask = Waiter::with_place(taken.raw()).timeout(timeout(timeout_ns));
        hand_out(out, wgl_waiter { limiter: limiter.limiter.clone(), seat: Some(Seat::new(ask)) });
        taken.end();
        Ok(WGL_OK)
    })
}

/// Takes a step, without sleeping. WGL_OK: start, and `permit` is written. WGL_WAITING: not yet; take another step after
/// `nap_ns`, or earlier. WGL_DENIED: there is no capacity before the timeout, but there may be after `nap_ns` (which may be
/// NULL). After WGL_OK, WGL_DENIED or an error the wait is over.
///
/// A step that is late may start late; it blocks no other caller.
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
        put_ns(nap_ns, nap);
        Ok(status)
    })
}

/// Frees a waiter, and ends its wait if that is not over. NULL is a no-op.
///
/// Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_waiter_free(waiter: Option<Box<wgl_waiter>>) {
    guard(|| {
        drop(waiter);
        Ok(WGL_OK)
    });
}
