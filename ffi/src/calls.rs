//! The calls of every limiter: decisions, gates.

use crate::input::{self, Sized32, given, key, shared, size_of_theirs};
use crate::limiter::wgl_limiter;
use crate::permit::wgl_permit;
use crate::status::{WGL_DENIED, WGL_NONE, WGL_OK, guard};
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::time::Duration;
use workglow_limit::embed::{from_unix_ns, unix_ns};
use workglow_limit::{Attempt, Decision, Limiter, Result};

/// A timeout that never expires: the call waits as long as it takes.
pub const WGL_FOREVER: u64 = 0xFFFF_FFFF_FFFF_FFFF;
/// A timeout of 0, for options, where 0 is the default.
pub const WGL_NO_WAIT: u64 = 0xFFFF_FFFF_FFFF_FFFE;

/// The whole answer to "may this start now, and if not, when?". Begin with WGL_DECISION_INIT. The caller owns it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_decision {
    /// sizeof(wgl_decision), as the INIT macro sets it.
    pub struct_size: u32,
    /// 1 with WGL_OK, 0 with WGL_DENIED.
    pub admitted: u32,
    /// 0 if admitted. Otherwise the time after which a retry succeeds, unless another caller took the capacity; one
    /// microsecond earlier it fails. For a concurrency limit, whose units come back when a job ends, a suggestion.
    pub retry_after_ns: u64,
    /// At least `retry_after_ns`: the same for callers that requeue, with the backoff.
    pub suggested_after_ns: u64,
    /// The heaviest start that would be admitted after this decision. UINT64_MAX: no limit.
    pub remaining: u64,
    /// The units that the limit allows. UINT64_MAX: no limit.
    pub limit: u64,
    /// The time after which the limiter is reset if nothing else starts. 0 for a concurrency limit, which cannot know it.
    pub reset_after_ns: u64,
    /// The name of the limit that denied, NULL if admitted. It lives as long as the limiter that was called.
    pub denied_by: *const c_char,
    /// The permit of the start. All zero in a denial, and always after wgl_peek.
    pub permit: wgl_permit,
}

// SAFETY: it begins with its size, and is numbers and a pointer that is only written.
unsafe impl Sized32 for wgl_decision {
    const NAME: &'static str = "decision";
}

pub(crate) fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The timeout of a wait: `None` is for ever.
pub(crate) fn timeout(ns: u64) -> Option<Duration> {
    match ns {
        WGL_FOREVER => None,
        WGL_NO_WAIT => Some(Duration::ZERO),
        ns => Some(Duration::from_nanos(ns)),
    }
}

/// Writes a duration, unless the output is NULL.
pub(crate) fn put_ns(out: Option<&mut MaybeUninit<u64>>, after: Duration) {
    if let Some(out) = out {
        out.write(ns(after));
    }
}

fn status(admitted: bool) -> c_int {
    if admitted { WGL_OK } else { WGL_DENIED }
}

/// Runs a call that takes a key.
///
/// # Safety
/// As for [`input::key`](key).
#[inline(always)]
pub(crate) unsafe fn on_key(
    limiter: Option<&wgl_limiter>,
    key: *const c_char,
    key_len: usize,
    call: impl FnOnce(&dyn Limiter, &str) -> Result<c_int>,
) -> c_int {
    guard(|| {
        let limiter = given("limiter", limiter)?;
        // SAFETY: the caller's promise.
        call(&*limiter.limiter, unsafe { self::key(key, key_len) }?)
    })
}

/// Starts if there is capacity now: decides and records in one act. WGL_OK: admitted, and `permit` is written. WGL_DENIED:
/// not now, and nothing has changed; after `retry_after_ns` (which may be NULL) a retry succeeds, unless another caller took
/// the capacity.
///
/// Fails with WGL_WEIGHT_EXCEEDS_CAPACITY if it can never start, WGL_INVALID_ARGUMENT for weight 0 or a key of more than
/// 1,024 bytes, WGL_UNSUPPORTED for a weight above 1 where every start has weight 1, or with a store error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_try_acquire(
    limiter: Option<NonNull<wgl_limiter>>,
    key: *const c_char,
    key_len: usize,
    weight: u64,
    permit: Option<&mut MaybeUninit<wgl_permit>>,
    retry_after_ns: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    let call = |limiter: &dyn Limiter, key: &str| {
        let permit = given("permit", permit)?;
        Ok(match limiter.attempt(key, weight)? {
            Attempt::Admitted(raw) => {
                permit.write(wgl_permit::new(raw));
                WGL_OK
            }
            Attempt::Denied(after) => {
                put_ns(retry_after_ns, after);
                WGL_DENIED
            }
        })
    };
    // SAFETY: the caller's promise.
    unsafe { on_key(shared(limiter), key, key_len, call) }
}

/// Does the same as wgl_try_acquire and returns the whole decision, which is written for WGL_OK and for WGL_DENIED.
///
/// Fails as wgl_try_acquire does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_decide(
    limiter: Option<NonNull<wgl_limiter>>,
    key: *const c_char,
    key_len: usize,
    weight: u64,
    decision: *mut wgl_decision,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { answer(shared(limiter), key, key_len, decision, |limiter, key| limiter.decide(key, weight)) }
}

/// Returns the decision that wgl_decide would make, without a permit. Records nothing. `weight` may be 0.
///
/// Fails as wgl_try_acquire does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_peek(
    limiter: Option<&wgl_limiter>,
    key: *const c_char,
    key_len: usize,
    weight: u64,
    decision: *mut wgl_decision,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { answer(limiter, key, key_len, decision, |limiter, key| limiter.peek(key, weight)) }
}

/// Writes in what time `starts` more starts will have begun, each of one unit, after the starts that are counted and the first
/// waiters that come before. WGL_NONE, and nothing is written, if nobody knows, because a start has to end before. Records
/// nothing. The time is exact for a rate with one window, a delay and a bucket where nobody waits, and otherwise a lower bound.
///
/// Fails as wgl_try_acquire does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_forecast(
    limiter: Option<&wgl_limiter>,
    key: *const c_char,
    key_len: usize,
    starts: u64,
    after_ns: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    let call = |limiter: &dyn Limiter, key: &str| {
        let out = given("after_ns", after_ns)?;
        Ok(match limiter.forecast(starts, key)? {
            None => WGL_NONE,
            Some(after) => {
                out.write(ns(after));
                WGL_OK
            }
        })
    };
    // SAFETY: the caller's promise.
    unsafe { on_key(limiter, key, key_len, call) }
}

/// Makes a decision and writes it.
///
/// # Safety
/// As for [`on_key`], and `out` is NULL or points to a decision of its `struct_size`.
unsafe fn answer(
    limiter: Option<&wgl_limiter>,
    key: *const c_char,
    key_len: usize,
    out: *mut wgl_decision,
    ask: impl FnOnce(&dyn Limiter, &str) -> Result<Decision>,
) -> c_int {
    guard(|| {
        let limiter = given("limiter", limiter)?;
        // SAFETY: the caller's promise, here and below.
        let (key, struct_size) = unsafe { (self::key(key, key_len)?, size_of_theirs(out)?) };
        let decision = ask(&*limiter.limiter, key)?;
        let answer = wgl_decision {
            struct_size: struct_size as u32,
            admitted: decision.admitted.into(),
            retry_after_ns: ns(decision.retry_after),
            suggested_after_ns: ns(decision.suggested_after),
            remaining: decision.remaining,
            limit: decision.limit,
            reset_after_ns: ns(decision.reset_after),
            denied_by: decision.denied_by.map_or(ptr::null(), |name| limiter.name(&name)),
            permit: decision.permit.map_or(wgl_permit::NONE, wgl_permit::new),
        };
        // SAFETY: as above.
        unsafe { input::answer(out, struct_size, answer) };
        Ok(status(decision.admitted))
    })
}

/// Returns whether a start of weight 1 would be admitted now: WGL_OK or WGL_DENIED. Changes nothing.
///
/// This call and wgl_record_job_start are for schedulers that check first and record later. Another caller may start in
/// between; wgl_try_acquire decides and records in one act.
///
/// Fails as wgl_try_acquire does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_can_proceed(limiter: Option<&wgl_limiter>, key: *const c_char, key_len: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { on_key(limiter, key, key_len, |limiter, key| Ok(status(limiter.can_proceed(key)?))) }
}

/// Records that a job has started, even if the limit is full, because the caller has already decided.
///
/// Fails as wgl_try_acquire does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_record_job_start(
    limiter: Option<NonNull<wgl_limiter>>,
    key: *const c_char,
    key_len: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { on_key(shared(limiter), key, key_len, |limiter, key| limiter.record_job_start(key).map(|()| WGL_OK)) }
}

/// Records that a job has ended: the oldest start without a permit that this process recorded on that key.
///
/// Fails as wgl_try_acquire does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_record_job_completion(
    limiter: Option<NonNull<wgl_limiter>>,
    key: *const c_char,
    key_len: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { on_key(shared(limiter), key, key_len, |limiter, key| limiter.record_job_completion(key).map(|()| WGL_OK)) }
}

/// Returns the earliest instant at which a start of weight 1 would be admitted, gate included; now, if that is now.
///
/// Fails as wgl_try_acquire does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_get_next_available_time(
    limiter: Option<&wgl_limiter>,
    key: *const c_char,
    key_len: usize,
    unix_ns: Option<&mut MaybeUninit<i64>>,
) -> c_int {
    let call = |limiter: &dyn Limiter, key: &str| {
        let out = given("unix_ns", unix_ns)?;
        out.write(self::unix_ns(limiter.next_available_time(key)?));
        Ok(WGL_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { on_key(limiter, key, key_len, call) }
}

/// Sets a gate: no start before that instant, for all that share the limit. Without a key it applies to all keys. A gate
/// only moves later, except by wgl_clear. An instant in the past sets no gate.
///
/// Fails with WGL_INVALID_ARGUMENT if the instant is more than 366 days away or the key has more than 1,024 bytes, or with a
/// store error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_set_next_available_time(
    limiter: Option<NonNull<wgl_limiter>>,
    unix_ns: i64,
    key: *const c_char,
    key_len: usize,
) -> c_int {
    let when = from_unix_ns(unix_ns);
    // SAFETY: the caller's promise.
    unsafe {
        on_key(shared(limiter), key, key_len, |limiter, key| {
            limiter.set_next_available_time(when, key).map(|()| WGL_OK)
        })
    }
}

/// Sets a gate: no start for `duration_ns` from now on, as a Retry-After asks for. Otherwise as wgl_set_next_available_time.
///
/// Fails as wgl_set_next_available_time does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_pause(
    limiter: Option<NonNull<wgl_limiter>>,
    duration_ns: u64,
    key: *const c_char,
    key_len: usize,
) -> c_int {
    let duration = Duration::from_nanos(duration_ns);
    // SAFETY: the caller's promise.
    unsafe { on_key(shared(limiter), key, key_len, |limiter, key| limiter.pause(duration, key).map(|()| WGL_OK)) }
}

/// Resets a key, gate included; without a key, all keys.
///
/// Fails with WGL_INVALID_ARGUMENT for a key of more than 1,024 bytes, or with a store error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_clear(limiter: Option<NonNull<wgl_limiter>>, key: *const c_char, key_len: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { on_key(shared(limiter), key, key_len, |limiter, key| limiter.clear(key).map(|()| WGL_OK)) }
}
