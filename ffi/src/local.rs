//! Limiters that one process may have alone, each with a form that a store shares.

use crate::clock::wgl_manual_clock;
use crate::input::{Sized32, given, hand_out, invalid, options, reserved};
use crate::limiter::{LimiterOut, declared, wgl_limiter};
use crate::status::{WGL_OK, guard};
use crate::store::wgl_store;
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::{ConcurrencyLimiter, DelayLimiter, EvenlySpacedRateLimiter, Limiter, ManualClock, Policy, Result};

/// Makes a limiter of this process alone, and hands it out.
fn private(limiter: LimiterOut, make: impl FnOnce() -> Result<Arc<dyn Limiter>>) -> c_int {
    guard(|| {
        hand_out(given("limiter", limiter)?, wgl_limiter::new(make()?, None));
        Ok(WGL_OK)
    })
}

/// The clock of a limiter of this process alone.
///
/// # Safety
/// It is NULL or a clock.
unsafe fn own_clock(clock: *const wgl_manual_clock) -> Option<ManualClock> {
    // SAFETY: the caller's promise.
    unsafe { clock.as_ref() }.map(|clock| clock.0.clone())
}

/// Refuses a clock: a shared limiter has its store's.
fn no_clock(clock: *const wgl_manual_clock) -> Result<()> {
    if clock.is_null() {
        return Ok(());
    }
    Err(invalid("clock", "given", "NULL: a shared limiter uses its store's clock"))
}

/// What a concurrency limit allows. Begin with WGL_CONCURRENCY_LIMITER_OPTIONS_INIT. The caller owns it; it is read only
/// during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_concurrency_limiter_options {
    /// sizeof(wgl_concurrency_limiter_options), as the INIT macro sets it.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// The units that may run at the same time: 1 to 65,535.
    pub max_concurrent_jobs: u64,
    /// With _new: a clock for tests instead of the system's; NULL is the system's. With _shared: NULL, because the store has
    /// one.
    pub clock: *const wgl_manual_clock,
    /// With _shared: how long a start holds its units unless wgl_renew extends that, 1,000 ns (1 µs) to 366 days. Default
    /// 0: as long as its process lives. With _new: 0.
    pub lease_ns: u64,
    /// For how long units stay taken after their start has ended, 1,000 ns (1 µs) to 366 days. So at most max_concurrent_jobs
    /// units are counted in any rolling window of that length, also as the server counts that the jobs call: see
    /// wgl_arrived. Default 0: they are free at once.
    pub cooldown_ns: u64,
}

impl wgl_concurrency_limiter_options {
    fn policy(&self) -> workglow_limit::Result<Policy> {
        let mut policy = Policy::concurrency(self.max_concurrent_jobs)?;
        if self.lease_ns != 0 {
            policy = policy.with_lease(Duration::from_nanos(self.lease_ns))?;
        }
        if self.cooldown_ns != 0 {
            policy = policy.with_cooldown(Duration::from_nanos(self.cooldown_ns))?;
        }
        Ok(policy)
    }
}

// SAFETY: it begins with its size; the pointer is looked at only as what the caller gives.
unsafe impl Sized32 for wgl_concurrency_limiter_options {
    const NAME: &'static str = "concurrency limiter options";
    const FIRST: usize = std::mem::offset_of!(wgl_concurrency_limiter_options, cooldown_ns);
}

/// Makes a limit on the units that run at the same time, per key, in this process; a forked child counts its own. Every
/// start must be ended with wgl_complete.
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
        Ok(Arc::new(ConcurrencyLimiter::by_policy(options.policy()?, unsafe { own_clock(options.clock) })?))
    })
}

/// Declares a limit on the units that run at the same time, per key, under a name, for all that share the store. A start
/// holds its units until wgl_complete ends it, at most until its process or its lease ends: see wgl_renew.
///
/// Fails as wgl_rate_limiter_new does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_concurrency_limiter_shared(
    store: Option<NonNull<wgl_store>>,
    name: *const c_char,
    options: *const wgl_concurrency_limiter_options,
    limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>,
) -> c_int {
    let policy = |options: wgl_concurrency_limiter_options| {
        reserved(options.reserved)?;
        no_clock(options.clock)?;
        options.policy()
    };
    // SAFETY: the caller's promise.
    unsafe { declared(store, name, options, limiter, policy) }
}

/// What a limit on the time between starts allows. Begin with WGL_DELAY_LIMITER_OPTIONS_INIT. The caller owns it; it is
/// read only during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_delay_limiter_options {
    /// sizeof(wgl_delay_limiter_options), as the INIT macro sets it.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// The time from one start to the next: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds. Default 0:
    /// 50 ms.
    pub delay_ns: u64,
    /// With _new: a clock for tests instead of the system's; NULL is the system's. With _shared: NULL, because the store has
    /// one.
    pub clock: *const wgl_manual_clock,
}

// SAFETY: it begins with its size; the pointer is looked at only as what the caller gives.
unsafe impl Sized32 for wgl_delay_limiter_options {
    const NAME: &'static str = "delay limiter options";
}

impl wgl_delay_limiter_options {
    fn delay(&self) -> Duration {
        if self.delay_ns == 0 { Duration::from_millis(50) } else { Duration::from_nanos(self.delay_ns) }
    }
}

/// Makes a limit on the time from one start to the next, per key, in this process; a forked child has its own. Every start
/// has weight 1.
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
        // SAFETY: as above.
        Ok(Arc::new(DelayLimiter::with_clock(options.delay(), unsafe { own_clock(options.clock) })?))
    })
}

/// Declares a limit on the time from one start to the next under a name, for all that share the store.
///
/// Fails as wgl_rate_limiter_new does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_delay_limiter_shared(
    store: Option<NonNull<wgl_store>>,
    name: *const c_char,
    options: *const wgl_delay_limiter_options,
    limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>,
) -> c_int {
    let policy = |options: wgl_delay_limiter_options| {
        reserved(options.reserved)?;
        no_clock(options.clock)?;
        Policy::delay(options.delay())
    };
    // SAFETY: the caller's promise.
    unsafe { declared(store, name, options, limiter, policy) }
}

/// The distance between evenly spaced starts: the window over `max_executions`, less the average time that the last jobs
/// took. The default.
pub const WGL_SPACING_ADAPTIVE: u32 = 0;
/// The distance between evenly spaced starts: the window over `max_executions`.
pub const WGL_SPACING_FIXED: u32 = 1;

/// What an evenly spaced limit allows. Begin with WGL_EVENLY_SPACED_RATE_LIMITER_OPTIONS_INIT. The caller owns it; it is read
/// only during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_evenly_spaced_rate_limiter_options {
    /// sizeof(wgl_evenly_spaced_rate_limiter_options), as the INIT macro sets it.
    pub struct_size: u32,
    /// The distance between starts: WGL_SPACING_ADAPTIVE or WGL_SPACING_FIXED. Default WGL_SPACING_ADAPTIVE.
    pub spacing: u32,
    /// The starts in a window: 1 to 1,000,000,000, or 1 to 4,096 if the distance is adaptive.
    pub max_executions: u64,
    /// The window's length: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    pub window_ns: u64,
    /// With _new: a clock for tests instead of the system's; NULL is the system's. With _shared: NULL, because the store has
    /// one.
    pub clock: *const wgl_manual_clock,
}

// SAFETY: it begins with its size; the pointer is looked at only as what the caller gives.
unsafe impl Sized32 for wgl_evenly_spaced_rate_limiter_options {
    const NAME: &'static str = "evenly spaced rate limiter options";
}

impl wgl_evenly_spaced_rate_limiter_options {
    fn is_adaptive(&self) -> Result<bool> {
        match self.spacing {
            WGL_SPACING_ADAPTIVE => Ok(true),
            WGL_SPACING_FIXED => Ok(false),
            other => Err(invalid("spacing", other, "WGL_SPACING_ADAPTIVE (0) or _FIXED (1)")),
        }
    }
}

/// Makes a limit of `max_executions` starts in a window at even distances, per key, in this process; a forked child has its
/// own. Every start has weight 1. At most `max_executions` start in any rolling window.
///
/// WGL_SPACING_ADAPTIVE shortens the distance by the average time that the last `max_executions` jobs took, from their start
/// to wgl_complete or wgl_settle.
///
/// Fails with WGL_INVALID_ARGUMENT for options out of range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_evenly_spaced_rate_limiter_new(
    options: *const wgl_evenly_spaced_rate_limiter_options,
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

/// Declares a limit of `max_executions` starts in a window at even distances under a name, for all that share the store.
///
/// Fails as wgl_rate_limiter_new does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_evenly_spaced_rate_limiter_shared(
    store: Option<NonNull<wgl_store>>,
    name: *const c_char,
    options: *const wgl_evenly_spaced_rate_limiter_options,
    limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>,
) -> c_int {
    let policy = |options: wgl_evenly_spaced_rate_limiter_options| {
        no_clock(options.clock)?;
        let window = Duration::from_nanos(options.window_ns);
        Policy::evenly_spaced(options.max_executions, window, options.is_adaptive()?)
    };
    // SAFETY: the caller's promise.
    unsafe { declared(store, name, options, limiter, policy) }
}
