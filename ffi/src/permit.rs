//! Permits, and how they end. Places: starts in the future.

use crate::calls::{ns, on_key, put_ns, timeout};
use crate::input::{given, shared, sized_text};
use crate::limiter::wgl_limiter;
use crate::status::{WGL_DENIED, WGL_NONE, WGL_OK, WGL_TOO_SMALL, guard};
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::time::Duration;
use workglow_limit::{Limiter, Presented, RawPermit, Reserved, Result};

/// The default grace of a place: a fortieth of the window, at most 50 ms.
pub const WGL_DEFAULT_GRACE: u64 = 0;

/// No grace: the place is valid only at its instant.
pub const WGL_NO_GRACE: u64 = 0xFFFF_FFFF_FFFF_FFFE;

/// The bytes that hold the text of any permit, with its NUL, except a place of a composite, which may need more.
pub const WGL_PERMIT_TEXT_MAX: usize = 128;

/// A longer text is no permit's.
const MAX_TEXT: usize = 512 * WGL_PERMIT_TEXT_MAX;

/// Proof of an admitted start, until wgl_complete, wgl_cancel or wgl_settle ends it; or a place, a start in the future. It is
/// a value: there is nothing to free, and its contents are private to the library. It belongs to the limiter that gave it
/// and to the process that got it, unless it leaves as a text.
///
/// A composite remembers the parts of its permits until they end, or until their end would have no effect. A permit that
/// holds a slot, or a start of a custom limiter, must be ended.
///
/// It may be moved and copied, but only one copy is to be ended. That copy is then marked as ended, and ending it again, in
/// any way, is a no-op. Where starts are only counted (fixed windows, sliding window counters, limits above 4,096, custom
/// limiters), cancelling another copy would return its units again. One thread at a time may use it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_permit {
    /// Private. The last words are for later versions.
    pub opaque: [u64; 12],
}

/// The mark of an ended permit, in its first word: numbers of limiters start at 1 and never reach it.
const ENDED: u64 = 1 << 63;

impl wgl_permit {
    pub(crate) const NONE: wgl_permit = wgl_permit { opaque: [0; 12] };

    pub(crate) fn new(permit: RawPermit) -> Self {
        let [a, b, c, d, e, f, g, h] = permit.to_words();
        wgl_permit { opaque: [a, b, c, d, e, f, g, h, 0, 0, 0, 0] }
    }

    pub(crate) fn raw(&self) -> RawPermit {
        let [a, b, c, d, e, f, g, h, ..] = self.opaque;
        RawPermit::from_words([a & !ENDED, b, c, d, e, f, g, h])
    }

    /// Marks it as ended.
    pub(crate) fn end(&mut self) {
        self.opaque[0] |= ENDED;
    }
}

/// Ends a permit: the job ran. Ending it again is a no-op.
///
/// Fails with WGL_FOREIGN_PERMIT if another limiter gave it, or with WGL_CUSTOM_FAILURE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_complete(limiter: Option<NonNull<wgl_limiter>>, permit: Option<&mut wgl_permit>) -> c_int {
    // SAFETY: the caller's promise.
    end(unsafe { shared(limiter) }, permit, |limiter, permit| limiter.complete(permit))
}

/// Ends a permit, or returns a place: the job never ran, and its units are free again at once. Ending it again is a no-op.
///
/// Fails as wgl_complete does, or with a store error; the permit is not ended then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_cancel(limiter: Option<NonNull<wgl_limiter>>, permit: Option<&mut wgl_permit>) -> c_int {
    // SAFETY: the caller's promise.
    end(unsafe { shared(limiter) }, permit, |limiter, permit| limiter.cancel(permit))
}

/// Returns a place, unless it was used to start, perhaps in another process with its text. Ending it again is a no-op.
///
/// Fails as wgl_cancel does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_cancel_place(
    limiter: Option<NonNull<wgl_limiter>>,
    place: Option<&mut wgl_permit>,
) -> c_int {
    // SAFETY: the caller's promise.
    end(unsafe { shared(limiter) }, place, |limiter, place| limiter.cancel_place(place))
}

/// Ends a permit: the job ran and used `actual` units instead of its weight. Units that it did not use are free again at
/// once; units beyond its weight are owed, up to one whole capacity, and delay later starts. Ending it again is a no-op.
///
/// Fails as wgl_cancel does, and with WGL_UNSUPPORTED for a concurrency limit without a cooldown, whose units come back when
/// the job ends, or WGL_INVALID_ARGUMENT for parts that were charged weights of their own: see wgl_settle_parts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_settle(
    limiter: Option<NonNull<wgl_limiter>>,
    permit: Option<&mut wgl_permit>,
    actual: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    end(unsafe { shared(limiter) }, permit, |limiter, permit| limiter.settle(permit, actual))
}

/// Says that the job has reached the server that counts it, as when the head of its response is here. A limit with a
/// cooldown counts it from now on instead of from its end. The permit remains, for wgl_complete and the others. A no-op for
/// other limits.
///
/// Fails as wgl_cancel does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_arrived(limiter: Option<NonNull<wgl_limiter>>, permit: Option<&wgl_permit>) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let limiter = unsafe { shared(limiter) };
        let (limiter, permit) = (given("limiter", limiter)?, given("permit", permit)?);
        limiter.limiter.arrived(&permit.raw())?;
        Ok(WGL_OK)
    })
}

/// Restarts a lease: the start holds its units for the whole lease of its limit from now on. A no-op for permits without a
/// lease.
///
/// Fails with WGL_LEASE_LOST if the lease has expired, so another start may hold its units; otherwise as wgl_complete does,
/// or with a store error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_renew(limiter: Option<NonNull<wgl_limiter>>, permit: Option<&wgl_permit>) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let limiter = unsafe { shared(limiter) };
        let (limiter, permit) = (given("limiter", limiter)?, given("permit", permit)?);
        limiter.limiter.renew(&permit.raw())?;
        Ok(WGL_OK)
    })
}

/// Returns the number of a lease, which is larger for every later lease of the same key. A resource that the lease protects
/// remembers the largest number that it saw, and refuses smaller ones. WGL_NONE, and nothing is written, for permits
/// without a lease.
///
/// Fails with WGL_FOREIGN_PERMIT if another limiter gave the permit.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_fence(
    limiter: Option<&wgl_limiter>,
    permit: Option<&wgl_permit>,
    fence: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    write_if_some(limiter, permit, ("fence", fence), |limiter, permit| limiter.fence(permit))
}

/// Returns which alternative of a limiter that wgl_first_of_limiter_new made has a start or place: its index, in the order in
/// which they were added, and, unless `name` is NULL, its name, which lives as long as `limiter`. With alternatives of an
/// alternative, the index is that in the outer limiter, and the name the innermost one's. Of a composite: what its first
/// part with alternatives has chosen. WGL_NONE, and nothing is written, for others.
///
/// Fails with WGL_FOREIGN_PERMIT if another limiter gave the permit.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_chosen(
    limiter: Option<&wgl_limiter>,
    permit: Option<&wgl_permit>,
    index: Option<&mut MaybeUninit<usize>>,
    name: Option<&mut MaybeUninit<*const c_char>>,
) -> c_int {
    let chosen = |of: &dyn Limiter, permit: &RawPermit| {
        let (at, alternative) = of.chosen(permit)?;
        if let (Some(out), Some(limiter)) = (name, limiter) {
            out.write(limiter.name(alternative.name()));
        }
        Some(at)
    };
    write_if_some(limiter, permit, ("index", index), chosen)
}

/// Returns how often the process has forked since the library was loaded, counted from the first parent on. A child has
/// another number than its parent had when it got a permit. Layers that end permits automatically use it to leave those of
/// a parent alone.
///
/// Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_fork_generation() -> u64 {
    workglow_limit::embed::fork_generation()
}

pub(crate) fn end(
    limiter: Option<&wgl_limiter>,
    permit: Option<&mut wgl_permit>,
    end: impl FnOnce(&dyn Limiter, &RawPermit) -> Result<()>,
) -> c_int {
    guard(|| {
        let (limiter, permit) = (&*given("limiter", limiter)?.limiter, given("permit", permit)?);
        if permit.opaque[0] & ENDED != 0 {
            limiter.check_permit(&permit.raw())?;
        } else {
            end(limiter, &permit.raw())?;
            permit.end();
        }
        Ok(WGL_OK)
    })
}

/// Returns when the place of a start or place is or was ready, as Unix time. WGL_NONE, and nothing is written, if it had no
/// place: it did not have to wait, or its limit keeps no places.
///
/// Fails with WGL_FOREIGN_PERMIT if another limiter gave the permit.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_permit_ready_at(
    limiter: Option<&wgl_limiter>,
    permit: Option<&wgl_permit>,
    unix_ns: Option<&mut MaybeUninit<i64>>,
) -> c_int {
    write_if_some(limiter, permit, ("unix_ns", unix_ns), |limiter, permit| {
        limiter.ready_at(permit).map(workglow_limit::embed::unix_ns)
    })
}

/// Returns the same on the system's monotonic clock (CLOCK_MONOTONIC), for measurements. It is never later than the place
/// was ready; on a server by no more than the delay of its replies.
///
/// Fails as wgl_permit_ready_at does.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_permit_ready_at_monotonic(
    limiter: Option<&wgl_limiter>,
    permit: Option<&wgl_permit>,
    monotonic_ns: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    write_if_some(limiter, permit, ("monotonic_ns", monotonic_ns), |limiter, permit| {
        limiter.ready_at_monotonic_ns(permit)
    })
}

/// Writes a property of a permit, if it has it.
fn write_if_some<T>(
    limiter: Option<&wgl_limiter>,
    permit: Option<&wgl_permit>,
    (parameter, out): (&'static str, Option<&mut MaybeUninit<T>>),
    property: impl FnOnce(&dyn Limiter, &RawPermit) -> Option<T>,
) -> c_int {
    guard(|| {
        let (limiter, permit, out) = (given("limiter", limiter)?, given("permit", permit)?, given(parameter, out)?);
        limiter.limiter.check_permit(&permit.raw())?;
        Ok(match property(&*limiter.limiter, &permit.raw()) {
            None => WGL_NONE,
            Some(value) => {
                out.write(value);
                WGL_OK
            }
        })
    })
}

/// Takes a place: a start in the future, or now. WGL_OK: it counts from now on, and `place` and `after_ns` (which may be
/// NULL) are written. It is ready after `after_ns`: then present it, wait for it, or return it with wgl_cancel. WGL_DENIED:
/// it would be further away than `max_wait_ns` (WGL_FOREVER: no bound), and nothing was taken; `after_ns` is how far.
///
/// A place is valid for one start, until `grace_ns` (WGL_DEFAULT_GRACE, WGL_NO_GRACE) after it is ready, and counts in the
/// window from the end of that grace.
///
/// Fails as wgl_try_acquire does, and with WGL_UNSUPPORTED for a limiter whose capacity does not depend on time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_reserve(
    limiter: Option<NonNull<wgl_limiter>>,
    key: *const c_char,
    key_len: usize,
    weight: u64,
    max_wait_ns: u64,
    grace_ns: u64,
    place: Option<&mut MaybeUninit<wgl_permit>>,
    after_ns: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    let call = |limiter: &dyn Limiter, key: &str| {
        let place = given("place", place)?;
        let grace_ns =
            if grace_ns == WGL_NO_GRACE { Some(0) } else { Some(grace_ns).filter(|&ns| ns != WGL_DEFAULT_GRACE) };
        let (status, after) =
            match limiter.reserve(key, weight, timeout(max_wait_ns), grace_ns.map(Duration::from_nanos))? {
                Reserved::Place { place: raw, after } => {
                    place.write(wgl_permit::new(raw));
                    (WGL_OK, after)
                }
                Reserved::Denied(after) => (WGL_DENIED, after),
            };
        put_ns(after_ns, after);
        Ok(status)
    };
    // SAFETY: the caller's promise.
    unsafe { on_key(shared(limiter), key, key_len, call) }
}

/// Starts with a place, if it is ready. WGL_OK: start; `place` is now the permit of the start. WGL_DENIED: not yet; `place`
/// is the place to present after `after_ns` (which may be NULL). It is the same place if this call was early, or a new one if
/// the call was too late, the place was used before, or a gate or another policy overtook it.
///
/// Fails with WGL_FOREIGN_PERMIT if another limiter gave it, with WGL_UNSUPPORTED as wgl_reserve does, or with a store
/// error; `place` is unchanged then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_present(
    limiter: Option<NonNull<wgl_limiter>>,
    place: Option<&mut wgl_permit>,
    after_ns: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let (limiter, place) = (given("limiter", unsafe { shared(limiter) })?, given("place", place)?);
        Ok(match limiter.limiter.present(&place.raw())? {
            Presented::Started(raw) => {
                *place = wgl_permit::new(raw);
                put_ns(after_ns, Duration::ZERO);
                WGL_OK
            }
            Presented::Wait { place: raw, after } => {
                *place = wgl_permit::new(raw);
                put_ns(after_ns, after);
                WGL_DENIED
            }
        })
    })
}

/// Writes a permit or place as a text, with a NUL, into a buffer of `capacity` bytes. WGL_OK: the text is written.
/// WGL_TOO_SMALL: the text and its NUL do not fit, and the buffer is unchanged. In both cases `length` (which may be NULL) is
/// the length of the text without the NUL. To ask for the length, pass NULL and 0; WGL_PERMIT_TEXT_MAX bytes hold any text
/// except that of a composite's place.
///
/// Another process that has the same limit passes the text to wgl_permit_from_text. From then on that process presents or
/// ends the permit.
///
/// Fails with WGL_FOREIGN_PERMIT if another limiter gave the permit, and with WGL_UNSUPPORTED where permits belong to one
/// process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_permit_to_text(
    limiter: Option<&wgl_limiter>,
    permit: Option<&wgl_permit>,
    buffer: *mut c_char,
    capacity: usize,
    length: Option<&mut MaybeUninit<usize>>,
) -> c_int {
    guard(|| {
        let (limiter, permit) = (given("limiter", limiter)?, given("permit", permit)?);
        let buffer = if capacity == 0 { None } else { Some(given("buffer", NonNull::new(buffer))?.cast::<u8>()) };
        let text = limiter.limiter.to_text(&permit.raw())?;
        if let Some(out) = length {
            out.write(text.len());
        }
        let Some(buffer) = buffer.filter(|_| text.len() < capacity) else { return Ok(WGL_TOO_SMALL) };
        // SAFETY: the buffer has `capacity` bytes, by the caller's promise, and that is more than the text has.
        unsafe {
            buffer.copy_from_nonoverlapping(NonNull::from(text.as_bytes()).cast(), text.len());
            buffer.add(text.len()).write(0);
        }
        Ok(WGL_OK)
    })
}

/// Returns the permit or place of a text of `text_len` bytes, without a NUL.
///
/// Fails with WGL_INVALID_ARGUMENT if it is no permit's text, WGL_FOREIGN_PERMIT if it belongs to another limit, and
/// WGL_UNSUPPORTED where permits belong to one process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_permit_from_text(
    limiter: Option<NonNull<wgl_limiter>>,
    text: *const c_char,
    text_len: usize,
    permit: Option<&mut MaybeUninit<wgl_permit>>,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise, here and below.
        let (limiter, out) = (given("limiter", unsafe { shared(limiter) })?, given("permit", permit)?);
        given("text", NonNull::new(text.cast_mut()))?;
        // SAFETY: as above.
        let text = unsafe { sized_text("text", text, text_len, MAX_TEXT) }?;
        out.write(wgl_permit::new(limiter.limiter.permit_from_text(text)?));
        Ok(WGL_OK)
    })
}

/// Returns the shortest time over which the limit counts the starts of a key. The grace of a place costs the limit a part
/// of it: places with a grace of a twentieth leave a limit that callers always wait for about 95 % of its capacity.
/// WGL_NONE, and nothing is written, for a limit that counts over no time.
///
/// Fails with WGL_INVALID_ARGUMENT for a key of more than 1,024 bytes, or with a store error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_window(
    limiter: Option<&wgl_limiter>,
    key: *const c_char,
    key_len: usize,
    window_ns: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    let call = |limiter: &dyn Limiter, key: &str| {
        let out = given("window_ns", window_ns)?;
        Ok(match limiter.window(key)? {
            None => WGL_NONE,
            Some(window) => {
                out.write(ns(window));
                WGL_OK
            }
        })
    };
    // SAFETY: the caller's promise.
    unsafe { on_key(limiter, key, key_len, call) }
}
