//! Counts.

use crate::calls::{ns, on_key};
use crate::input::{self, Sized32, size_of_theirs};
use crate::limiter::wgl_limiter;
use crate::status::WGL_OK;
use std::ffi::{c_char, c_int};
use workglow_limit::Limiter;

/// Counts of a limit, or of one key. Begin with WGL_COUNTS_INIT. The caller owns it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_counts {
    /// sizeof(wgl_counts), as the INIT macro sets it.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Starts that were admitted, at once or after a wait.
    pub admitted: u64,
    /// Attempts that were denied.
    pub denied: u64,
    /// The units that were requested.
    pub units_wanted: u64,
    /// The units that were granted.
    pub units_granted: u64,
    /// Starts that had to wait for a place.
    pub waited: u64,
    /// How long these starts waited, in total.
    pub wait_time_ns: u64,
    /// Permits and places that were cancelled.
    pub cancelled: u64,
    /// Decisions that the store failed, whatever `on_error` made of them.
    pub store_errors: u64,
    /// How often another policy came into force.
    pub policy_changes: u64,
}

// SAFETY: it begins with its size, and is numbers.
unsafe impl Sized32 for wgl_counts {
    const NAME: &'static str = "counts";
}

/// Returns the counts of a key or, without a key, of the limit: by all processes that share it, without the last second of
/// other processes.
///
/// Fails with WGL_INVALID_ARGUMENT for a key of more than 1,024 bytes, or with a store error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_stats(
    limiter: Option<&wgl_limiter>,
    key: *const c_char,
    key_len: usize,
    counts: *mut wgl_counts,
) -> c_int {
    let call = |limiter: &dyn Limiter, key: &str| {
        // SAFETY: the caller's promise.
        let struct_size = unsafe { size_of_theirs(counts) }?;
        let stats = limiter.stats(key)?;
        let answer = wgl_counts {
            struct_size: struct_size as u32,
            reserved: 0,
            admitted: stats.admitted,
            denied: stats.denied,
            units_wanted: stats.units_wanted,
            units_granted: stats.units_granted,
            waited: stats.waited,
            wait_time_ns: ns(stats.wait_time),
            cancelled: stats.cancelled,
            store_errors: stats.store_errors,
            policy_changes: stats.policy_changes,
        };
        // SAFETY: as above.
        unsafe { input::answer(counts, struct_size, answer) };
        Ok(WGL_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { on_key(limiter, key, key_len, call) }
}
