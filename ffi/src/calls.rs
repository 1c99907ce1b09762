//! What every limiter answers: decisions, gates.

use crate::input::{self, Sized32, given, key, size_of_theirs};
use crate::limiter::wgl_limiter;
use crate::permit::wgl_permit;
use crate::status::{WGL_DENIED, WGL_OK, guard};
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;
use workglow_limit::{Attempt, Decision, Limiter, Result, from_unix_ns, unix_ns};

/// Where a call takes the longest time to wait: as long as it takes.
pub const WGL_FOREVER: u64 = 0xFFFF_FFFF_FFFF_FFFF;

/// The whole answer to "may this start now, and if not, when?". Begin with WGL_DECISION_INIT. The caller owns it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_decision {
    /// sizeof(wgl_decision), as the INIT macro sets it.
    pub struct_size: u32,
    /// 1 or 0, as the status says too.
    pub admitted: u32,
    /// 0 if admitted. Else after this long a retry succeeds, if nobody else took the room; one microsecond earlier it
    /// fails. For a concurrency limit, which frees when somebody completes, a suggestion of when to look again.
    pub retry_after_ns: u64,
    /// `retry_after_ns` for callers that requeue: never less.
    pub suggested_after_ns: u64,
    /// The heaviest start that would be admitted after this decision. UINT64_MAX: no limit.
    pub remaining: u64,
    /// What the limit allows. UINT64_MAX: no limit.
    pub limit: u64,
    /// After this long with no further start the limiter is as new. For a concurrency limit, which does not know, 0.
    pub reset_after_ns: u64,
    /// The name of the limit that said no, NULL if admitted. It lives as long as the limiter that was asked.
    pub denied_by: *const c_char,
    /// What the start holds. All zero in a denial, and always in a wgl_peek.
    pub permit: wgl_permit,
}

// SAFETY: it begins with its size, and is numbers and a pointer that is only ever written.
unsafe impl Sized32 for wgl_decision {
    const NAME: &'static str = "decision";
}

pub(crate) fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A duration, or the number that says that there is none.
pub(crate) fn span(ns: u64, none: u64) -> Option<Duration> {
    (ns != none).then(|| Duration::from_nanos(ns))
}

/// Writes a duration, if the caller wants it.
pub(crate) fn tell(place: Option<&mut MaybeUninit<u64>>, after: Duration) {
    if let Some(place) = place {
        place.write(ns(after));
    }
}

fn status(admitted: bool) -> c_int {
    if admitted { WGL_OK } else { WGL_DENIED }
}

/// The frame of every call that takes a key.
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

/// Starts if there is room now: decides and records in one act. WGL_OK: admitted, and `permit` is written. WGL_DENIED:
/// not now; nothing has changed, and after `retry_after_ns` (which may be NULL) a retry succeeds, if nobody else took
/// the room.
///
/// Fails with WGL_WEIGHT_EXCEEDS_CAPACITY if it could never start, WGL_INVALID_ARGUMENT for weight 0 or a key that is
/// none, or with a store error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_try_acquire(
    limiter: Option<&wgl_limiter>,
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
                tell(retry_after_ns, after);
                WGL_DENIED
            }
        })
    };
    // SAFETY: the caller's promise.
    unsafe { on_key(limiter, key, key_len, call) }
}

/// As wgl_try_acquire, answering with the whole decision, which is written for WGL_OK and for WGL_DENIED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_decide(
    limiter: Option<&wgl_limiter>,
    key: *const c_char,
    key_len: usize,
    weight: u64,
    decision: *mut wgl_decision,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { answer(limiter, key, key_len, decision, |limiter, key| limiter.decide(key, weight)) }
}

/// The decision that wgl_decide would give, without a permit. Records nothing. `weight` may be 0.
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

/// Asks for a decision and writes it.
///
/// # Safety
/// As for [`on_key`], and `place` is NULL or points to a decision of the size it says.
unsafe fn answer(
    limiter: Option<&wgl_limiter>,
    key: *const c_char,
    key_len: usize,
    place: *mut wgl_decision,
    ask: impl FnOnce(&dyn Limiter, &str) -> Result<Decision>,
) -> c_int {
    guard(|| {
        let limiter = given("limiter", limiter)?;
        // SAFETY: the caller's promise, here and below.
        let (key, struct_size) = unsafe { (self::key(key, key_len)?, size_of_theirs(place)?) };
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
        unsafe { input::answer(place, struct_size, answer) };
        Ok(status(decision.admitted))
    })
}

/// Would a start of weight 1 be admitted now? WGL_OK: yes. WGL_DENIED: no. Changes nothing.
///
/// This and wgl_record_job_start are for schedulers that are driven that way, and let others in between;
/// wgl_try_acquire decides and records in one act.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_can_proceed(limiter: Option<&wgl_limiter>, key: *const c_char, key_len: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { on_key(limiter, key, key_len, |limiter, key| Ok(status(limiter.can_proceed(key)?))) }
}

/// A job has started: recorded even when the limit is full, because the caller has already decided.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_record_job_start(
    limiter: Option<&wgl_limiter>,
    key: *const c_char,
    key_len: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { on_key(limiter, key, key_len, |limiter, key| limiter.record_job_start(key).map(|()| WGL_OK)) }
}

/// A job has ended: the oldest start without a permit that this process recorded on that key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_record_job_completion(
    limiter: Option<&wgl_limiter>,
    key: *const c_char,
    key_len: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { on_key(limiter, key, key_len, |limiter, key| limiter.record_job_completion(key).map(|()| WGL_OK)) }
}

/// The earliest instant at which a start of weight 1 would be admitted, gate included; now, if now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_get_next_available_time(
    limiter: Option<&wgl_limiter>,
    key: *const c_char,
    key_len: usize,
    unix_ns: Option<&mut MaybeUninit<i64>>,
) -> c_int {
    let call = |limiter: &dyn Limiter, key: &str| {
        let place = given("unix_ns", unix_ns)?;
        place.write(self::unix_ns(limiter.next_available_time(key)?));
        Ok(WGL_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { on_key(limiter, key, key_len, call) }
}

/// Closes a gate: nobody starts before that instant, for all who share the limit. Gates only move later, except by
/// wgl_clear. Without a key it binds all keys. An instant in the past is no gate.
///
/// Fails with WGL_INVALID_ARGUMENT if the instant is more than 366 days away.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_set_next_available_time(
    limiter: Option<&wgl_limiter>,
    key: *const c_char,
    key_len: usize,
    unix_ns: i64,
) -> c_int {
    let at = from_unix_ns(unix_ns);
    // SAFETY: the caller's promise.
    unsafe { on_key(limiter, key, key_len, |limiter, key| limiter.set_next_available_time(key, at).map(|()| WGL_OK)) }
}

/// The same, relative to now: what a Retry-After asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_pause(
    limiter: Option<&wgl_limiter>,
    key: *const c_char,
    key_len: usize,
    pause_ns: u64,
) -> c_int {
    let pause = Duration::from_nanos(pause_ns);
    // SAFETY: the caller's promise.
    unsafe { on_key(limiter, key, key_len, |limiter, key| limiter.pause(key, pause).map(|()| WGL_OK)) }
}

/// Back to the initial state, gate included. Without a key: of all keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_clear(limiter: Option<&wgl_limiter>, key: *const c_char, key_len: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { on_key(limiter, key, key_len, |limiter, key| limiter.clear(key).map(|()| WGL_OK)) }
}
