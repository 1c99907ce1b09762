//! Limiters that a process may keep to itself, each with a form that a store shares.

use crate::clock::wgl_manual_clock;
use crate::input::{Sized32, given, hand_out, invalid, options, reserved};
use crate::limiter::{Place, declared, wgl_limiter};
use crate::status::{WGL_OK, guard};
use crate::store::wgl_store;
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::{ConcurrencyLimiter, DelayLimiter, EvenlySpacedRateLimiter, Limiter, ManualClock, Policy, Result};

/// Makes a limiter that only this process knows, and hands it out.
fn private(limiter: Place, make: impl FnOnce() -> Result<Arc<dyn Limiter>>) -> c_int {
    guard(|| {
        hand_out(given("limiter", limiter)?, wgl_limiter::new(make()?, None));
        Ok(WGL_OK)
    })
}

/// The clock of a limiter that only this process knows.
///
/// # Safety
/// It is NULL or a clock.
unsafe fn own_clock(clock: *const wgl_manual_clock) -> Option<ManualClock> {
    // SAFETY: the caller's promise.
    unsafe { clock.as_ref() }.map(|clock| clock.0.clone())
}

/// A shared limiter has no clock of its own.
fn store_s_clock(clock: *const wgl_manual_clock) -> Result<()> {
    if clock.is_null() {
        return Ok(());
    }
    Err(invalid("clock", "given", "NULL: a shared limiter lives by its store's clock"))
}

/// What a concurrency limit allows. Begin with WGL_CONCURRENCY_LIMITER_OPTIONS_INIT. The caller owns it; it is read
/// during the call only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_concurrency_limiter_options {
    /// sizeof(wgl_concurrency_limiter_options), as the INIT macro sets it.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// So many units at the same time: 1 to 65,535.
    pub max_concurrent_jobs: u64,
    /// With _new: a clock for tests in place of the system's; default NULL. With _shared: NULL, because the store has one.
    pub clock: *const wgl_manual_clock,
    /// With _shared: so long a start holds its units unless it is renewed, 1,000 ns (1 µs) to 366 days. Default 0: as
    /// long as its process lives. With _new: 0.
    pub lease_ns: u64,
}

// SAFETY: it begins with its size; the pointer is looked at only as what the caller gives.
unsafe impl Sized32 for wgl_concurrency_limiter_options {
    const NAME: &'static str = "concurrency limiter options";
}

/// Makes a limit on how many run at the same time, per key, in this process; a forked child counts its own. Every start
/// has to be ended with wgl_complete.
///
/// Fails with WGL_INVALID_ARGUMENT for options out of range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_concurrency_limiter_new(
    options: *const wgl_concurrency_limiter_options,
    limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>,
) -> c_int {
    private(limiter, || {
        // SAFETY: the caller's promise, here and below.
        let options = unsafe { self::options(options) }?;
        reserved(options.reserved)?;
        if options.lease_ns != 0 {
            return Err(invalid("lease_ns", options.lease_ns, "0: leases are for wgl_concurrency_limiter_shared"));
        }
        // SAFETY: as above.
        Ok(match unsafe { own_clock(options.clock) } {
            None => Arc::new(ConcurrencyLimiter::new(options.max_concurrent_jobs)?),
            Some(clock) => Arc::new(ConcurrencyLimiter::with_clock(options.max_concurrent_jobs, clock)?),
        })
    })
}

/// Declares a limit on how many run at the same time, per key, under a name, for all who share the store. A start holds
/// its units until it is ended with wgl_complete, but no longer than its process lives, nor than its lease: see
/// wgl_renew.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_concurrency_limiter_shared(
    store: Option<&wgl_store>,
    name: *const c_char,
    options: *const wgl_concurrency_limiter_options,
    limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>,
) -> c_int {
    let policy = |options: wgl_concurrency_limiter_options| {
        reserved(options.reserved)?;
        store_s_clock(options.clock)?;
        let policy = Policy::concurrency(options.max_concurrent_jobs)?;
        match options.lease_ns {
            0 => Ok(policy),
            lease => policy.with_lease(Duration::from_nanos(lease)),
        }
    };
    // SAFETY: the caller's promise.
    unsafe { declared(store, name, options, limiter, policy) }
}

/// What a limit on the time between starts allows. Begin with WGL_DELAY_LIMITER_OPTIONS_INIT. The
/// caller owns it; it is read during the call only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_delay_limiter_options {
    /// sizeof(wgl_delay_limiter_options), as the INIT macro sets it.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// So long from one start to the next: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds. The INIT macro
    /// says 50 ms.
    pub delay_ns: u64,
    /// With _new: a clock for tests in place of the system's; default NULL. With _shared: NULL, because the store has one.
    pub clock: *const wgl_manual_clock,
}

// SAFETY: it begins with its size; the pointer is looked at only as what the caller gives.
unsafe impl Sized32 for wgl_delay_limiter_options {
    const NAME: &'static str = "delay limiter options";
}

/// Makes a limit on the time from one start to the next, per key, in this process; a forked child goes its own way. Every
/// start weighs 1.
///
/// Fails with WGL_INVALID_ARGUMENT for options out of range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_delay_limiter_new(
    options: *const wgl_delay_limiter_options,
    limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>,
) -> c_int {
    private(limiter, || {
        // SAFETY: the caller's promise, here and below.
        let options = unsafe { self::options(options) }?;
        reserved(options.reserved)?;
        let delay = Duration::from_nanos(options.delay_ns);
        // SAFETY: as above.
        Ok(Arc::new(DelayLimiter::with_clock(delay, unsafe { own_clock(options.clock) })?))
    })
}

/// Declares such a limit under a name, for all who share the store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_delay_limiter_shared(
    store: Option<&wgl_store>,
    name: *const c_char,
    options: *const wgl_delay_limiter_options,
    limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>,
) -> c_int {
    let policy = |options: wgl_delay_limiter_options| {
        reserved(options.reserved)?;
        store_s_clock(options.clock)?;
        Policy::delay(Duration::from_nanos(options.delay_ns))
    };
    // SAFETY: the caller's promise.
    unsafe { declared(store, name, options, limiter, policy) }
}

/// What an evenly spaced limit allows. Begin with WGL_EVENLY_SPACED_LIMITER_OPTIONS_INIT. The
/// caller owns it; it is read during the call only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_evenly_spaced_limiter_options {
    /// sizeof(wgl_evenly_spaced_limiter_options), as the INIT macro sets it.
    pub struct_size: u32,
    /// 1: the distance is so much shorter as the last jobs took on average. 0: it is always the same. The INIT macro says
    /// 1.
    pub adaptive: u32,
    /// So many starts in a window: 1 to 1,000,000,000, or if it is adaptive 4,096.
    pub max_executions: u64,
    /// The window's length: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    pub window_ns: u64,
    /// With _new: a clock for tests in place of the system's; default NULL. With _shared: NULL, because the store has one.
    pub clock: *const wgl_manual_clock,
}

// SAFETY: it begins with its size; the pointer is looked at only as what the caller gives.
unsafe impl Sized32 for wgl_evenly_spaced_limiter_options {
    const NAME: &'static str = "evenly spaced limiter options";
}

impl wgl_evenly_spaced_limiter_options {
    fn is_adaptive(&self) -> Result<bool> {
        match self.adaptive {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(invalid("adaptive", other, "0 or 1")),
        }
    }
}

/// Makes a limit of `max_executions` starts in a window at even distances, per key, in this process; a forked child goes
/// its own way. Every start weighs 1.
///
/// An adaptive one shortens the distance, the window over `max_executions`, by what the last `max_executions` jobs took
/// on average: from their start to wgl_complete or wgl_settle. Never more than `max_executions` start in any rolling
/// window.
///
/// Fails with WGL_INVALID_ARGUMENT for options out of range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_evenly_spaced_limiter_new(
    options: *const wgl_evenly_spaced_limiter_options,
    limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>,
) -> c_int {
    private(limiter, || {
        // SAFETY: the caller's promise, here and below.
        let options = unsafe { self::options(options) }?;
        let (window, is_adaptive) = (Duration::from_nanos(options.window_ns), options.is_adaptive()?);
        // SAFETY: as above.
        let clock = unsafe { own_clock(options.clock) };
        let max = options.max_executions;
        Ok(Arc::new(EvenlySpacedRateLimiter::with_clock(max, window, is_adaptive, clock)?))
    })
}

/// Declares such a limit under a name, for all who share the store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_evenly_spaced_limiter_shared(
    store: Option<&wgl_store>,
    name: *const c_char,
    options: *const wgl_evenly_spaced_limiter_options,
    limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>,
) -> c_int {
    let policy = |options: wgl_evenly_spaced_limiter_options| {
        store_s_clock(options.clock)?;
        let window = Duration::from_nanos(options.window_ns);
        Policy::evenly_spaced(options.max_executions, window, options.is_adaptive()?)
    };
    // SAFETY: the caller's promise.
    unsafe { declared(store, name, options, limiter, policy) }
}
