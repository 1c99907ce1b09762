//! Limiters that a store shares: buckets, windows, policy texts, flow control. Rate limits are in `rate.rs`.

use crate::input::{Sized32, options, reserved, text};
use crate::limiter::{declared, named, wgl_limiter};
use crate::store::wgl_store;
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::time::Duration;
use workglow_limit::{Policy, Store};

/// Returns a number, or its default if it is 0.
fn or(given: u64, default: u64) -> u64 {
    if given == 0 { default } else { given }
}

/// What a token bucket allows. Begin with
/// WGL_TOKEN_BUCKET_LIMITER_OPTIONS_INIT. The caller owns it; it is read only during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_token_bucket_limiter_options {
    /// sizeof(wgl_token_bucket_limiter_options), as the INIT macro sets it.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// The tokens that are added per period: 1 to 1,000,000,000.
    pub rate: u64,
    /// The period: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    pub period_ns: u64,
    /// The tokens that the bucket holds: 1 to 1,000,000,000, and at most those of 366 days. Default 0: `rate`.
    pub burst: u64,
}

// SAFETY: it begins with its size, and is numbers.
unsafe impl Sized32 for wgl_token_bucket_limiter_options {
    const NAME: &'static str = "token bucket limiter options";
}

/// Declares a bucket of `burst` tokens under a name, for all that share the store. `rate` tokens are added evenly per period,
/// and a start takes its weight in tokens. In any period at most `burst` + `rate` units start.
///
/// Fails as wgl_rate_limiter_new does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_token_bucket_limiter_new(
    store: Option<NonNull<wgl_store>>,
    name: *const c_char,
    options: *const wgl_token_bucket_limiter_options,
    limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>,
) -> c_int {
    let policy = |options: wgl_token_bucket_limiter_options| {
        reserved(options.reserved)?;
        let (rate, period) = (options.rate, Duration::from_nanos(options.period_ns));
        Policy::token_bucket(rate, period, or(options.burst, rate))
    };
    // SAFETY: the caller's promise.
    unsafe { declared(store, name, options, limiter, policy) }
}

/// What a leaky bucket allows. Begin with
/// WGL_LEAKY_BUCKET_LIMITER_OPTIONS_INIT. The caller owns it; it is read only during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_leaky_bucket_limiter_options {
    /// sizeof(wgl_leaky_bucket_limiter_options), as the INIT macro sets it.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// The units that start per period, one after the other: 1 to 1,000,000,000.
    pub rate: u64,
    /// The period: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    pub period_ns: u64,
    /// The units that may wait for their turn: 1 to 1,000,000,000, and at most those of 366 days. Default 0: `rate`.
    pub queue: u64,
}

// SAFETY: it begins with its size, and is numbers.
unsafe impl Sized32 for wgl_leaky_bucket_limiter_options {
    const NAME: &'static str = "leaky bucket limiter options";
}

/// Declares a leaky bucket under a name, for all that share the store: one unit starts per period / `rate`, and a start of
/// weight w takes the time of w units. In wgl_acquire and wgl_reserve up to `queue` units wait for their turn; more are
/// denied.
///
/// Fails as wgl_rate_limiter_new does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_leaky_bucket_limiter_new(
    store: Option<NonNull<wgl_store>>,
    name: *const c_char,
    options: *const wgl_leaky_bucket_limiter_options,
    limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>,
) -> c_int {
    let policy = |options: wgl_leaky_bucket_limiter_options| {
        reserved(options.reserved)?;
        let (rate, period) = (options.rate, Duration::from_nanos(options.period_ns));
        Policy::leaky_bucket(rate, period, or(options.queue, rate))
    };
    // SAFETY: the caller's promise.
    unsafe { declared(store, name, options, limiter, policy) }
}

/// What a limit on fixed windows allows. Begin with
/// WGL_FIXED_WINDOW_LIMITER_OPTIONS_INIT. The caller owns it; it is read only during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_fixed_window_limiter_options {
    /// sizeof(wgl_fixed_window_limiter_options), as the INIT macro sets it.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// The units in a window: 1 to 1,000,000,000.
    pub max_executions: u64,
    /// The window's length: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    pub window_ns: u64,
}

// SAFETY: it begins with its size, and is numbers.
unsafe impl Sized32 for wgl_fixed_window_limiter_options {
    const NAME: &'static str = "fixed window limiter options";
}

/// Declares a limit under a name, for all that share the store: at most `max_executions` units in each window. Windows are
/// aligned to 1970 (UTC). Across a boundary up to twice as many start in the length of one window.
///
/// Fails as wgl_rate_limiter_new does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_fixed_window_limiter_new(
    store: Option<NonNull<wgl_store>>,
    name: *const c_char,
    options: *const wgl_fixed_window_limiter_options,
    limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>,
) -> c_int {
    let policy = |options: wgl_fixed_window_limiter_options| {
        reserved(options.reserved)?;
        Policy::fixed_window(options.max_executions, Duration::from_nanos(options.window_ns))
    };
    // SAFETY: the caller's promise.
    unsafe { declared(store, name, options, limiter, policy) }
}

/// What a sliding window counter allows. Begin with
/// WGL_SLIDING_WINDOW_COUNTER_LIMITER_OPTIONS_INIT. The caller owns it; it is read only during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_sliding_window_counter_limiter_options {
    /// sizeof(wgl_sliding_window_counter_limiter_options), as the INIT macro sets it.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// The units in a window: 1 to 1,000,000,000.
    pub max_executions: u64,
    /// The window's length: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    pub window_ns: u64,
}

// SAFETY: it begins with its size, and is numbers.
unsafe impl Sized32 for wgl_sliding_window_counter_limiter_options {
    const NAME: &'static str = "sliding window counter limiter options";
}

/// Declares a limit under a name, for all that share the store: about `max_executions` units in any rolling window. The
/// estimate adds to the count of this window, aligned to 1970 (UTC), the part of the last window's count that the rolling
/// window still covers. For very large limits; fewer than twice as many start in the length of one window.
///
/// Fails as wgl_rate_limiter_new does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_sliding_window_counter_limiter_new(
    store: Option<NonNull<wgl_store>>,
    name: *const c_char,
    options: *const wgl_sliding_window_counter_limiter_options,
    limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>,
) -> c_int {
    let policy = |options: wgl_sliding_window_counter_limiter_options| {
        reserved(options.reserved)?;
        Policy::sliding_window_counter(options.max_executions, Duration::from_nanos(options.window_ns))
    };
    // SAFETY: the caller's promise.
    unsafe { declared(store, name, options, limiter, policy) }
}

/// Declares the limits of a policy text under a name, for all that share the store: "100/1m", "10/1s burst 20",
/// "5 concurrent", or several, such as "100/1m + 5/1s + 5 concurrent", which all have to admit a start.
///
/// Fails as wgl_rate_limiter_new does; the message of WGL_INVALID_ARGUMENT says where the text is wrong.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_policy_limiter_new(
    store: Option<NonNull<wgl_store>>,
    name: *const c_char,
    policy: *const c_char,
    limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>,
) -> c_int {
    // SAFETY: the caller's promise, here and below.
    let declare = |store: &Store, name: &str| store.limiter(name, unsafe { text("policy", policy) }?);
    // SAFETY: as above.
    unsafe { named(store, name, limiter, declare) }
}

/// What flow control allows. Begin with
/// WGL_FLOW_CONTROL_LIMITER_OPTIONS_INIT. The caller owns it; it is read only during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_flow_control_limiter_options {
    /// sizeof(wgl_flow_control_limiter_options), as the INIT macro sets it.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// The units in any rolling period: 1 to 1,000,000,000. Default 0, as `period_ns` is then: no such limit.
    pub rate: u64,
    /// The period: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    pub period_ns: u64,
    /// The units that may run at the same time: 1 to 65,535. Default 0: no such limit.
    pub parallelism: u64,
}

// SAFETY: it begins with its size, and is numbers.
unsafe impl Sized32 for wgl_flow_control_limiter_options {
    const NAME: &'static str = "flow control limiter options";
}

/// Declares flow control under a name, for all that share the store: `rate` units per period, `parallelism` units at the
/// same time, or both.
///
/// Fails as wgl_rate_limiter_new does, and with WGL_INVALID_ARGUMENT if both are 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_flow_control_limiter_new(
    store: Option<NonNull<wgl_store>>,
    name: *const c_char,
    options: *const wgl_flow_control_limiter_options,
    limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>,
) -> c_int {
    let declare = |store: &Store, name: &str| {
        // SAFETY: the caller's promise.
        let options = unsafe { self::options(options) }?;
        reserved(options.reserved)?;
        let rate = match (options.rate, options.period_ns) {
            (0, 0) => None,
            (rate, period_ns) => Some((rate, Duration::from_nanos(period_ns))),
        };
        let parallelism = (options.parallelism != 0).then_some(options.parallelism);
        store.flow_control(name, rate, parallelism)
    };
    // SAFETY: the caller's promise.
    unsafe { named(store, name, limiter, declare) }
}
