//! What a start holds, and how it ends; places: starts in the future.

use crate::calls::{WGL_FOREVER, on_key, span, tell};
use crate::input::{given, invalid, sized_text};
use crate::limiter::wgl_limiter;
use crate::status::{WGL_DENIED, WGL_NONE, WGL_OK, guard};
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::time::Duration;
use workglow_limit::{Limiter, Presented, RawPermit, Reserved, Result};

/// The grace of a place where the caller has no wish: a fortieth of the window, at most 50 ms.
pub const WGL_DEFAULT_GRACE: u64 = 0;

/// No grace: the place is good at its moment only.
pub const WGL_NO_GRACE: u64 = 0xFFFF_FFFF_FFFF_FFFE;

/// The most bytes that a permit's text needs, with its NUL; a composite's place may need more.
pub const WGL_PERMIT_TEXT_MAX: usize = 128;

/// Whatever is longer is no text of ours.
const LONGEST_TEXT: usize = 512 * WGL_PERMIT_TEXT_MAX;

/// What an admitted start holds, until wgl_complete, wgl_cancel or wgl_settle; or a place, a start in the future. A
/// value: there is nothing to free, and what is inside is the library's. It belongs to the limiter that gave it, and to
/// the process that got it, unless it leaves as a text.
///
/// A composite remembers what its permits stand for until they end, or until their end would change nothing any more. One
/// that holds a slot or a start of a limiter of the program's own is to be ended.
///
/// It may be moved and copied, but one copy is to be ended: that one is marked as ended, and ending it again, in
/// whichever way, is a no-op. Where starts are only counted (fixed windows, sliding window counters, limits above 4,096,
/// limiters of the program's own), another copy that is cancelled would take its units back again. One thread at a time
/// may use it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_permit {
    /// The library's.
    pub opaque: [u64; 8],
}

/// The mark of an ended permit, in its first word: limiters are numbered from 1 on, and never that far.
const ENDED: u64 = 1 << 63;

impl wgl_permit {
    pub(crate) const NONE: wgl_permit = wgl_permit { opaque: [0; 8] };

    pub(crate) fn new(permit: RawPermit) -> Self {
        wgl_permit { opaque: permit.to_words() }
    }

    pub(crate) fn raw(&self) -> RawPermit {
        let mut words = self.opaque;
        words[0] &= !ENDED;
        RawPermit::from_words(words)
    }

    /// Marks it as ended.
    pub(crate) fn end(&mut self) {
        self.opaque[0] |= ENDED;
    }
}

/// Ends a permit: the job ran. Ending it again is a no-op.
///
/// Fails with WGL_FOREIGN_PERMIT if another limiter gave it.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_complete(limiter: Option<&wgl_limiter>, permit: Option<&mut wgl_permit>) -> c_int {
    end(limiter, permit, |limiter, permit| limiter.complete(permit))
}

/// Ends a permit, or gives a place back: the job never ran, and its units are free again at once. Ending it again is a
/// no-op.
///
/// Fails as wgl_complete does, or with a store error; the permit is not ended then.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_cancel(limiter: Option<&wgl_limiter>, permit: Option<&mut wgl_permit>) -> c_int {
    end(limiter, permit, |limiter, permit| limiter.cancel(permit))
}

/// Gives a place back, unless somebody has started with it meanwhile, perhaps elsewhere with its text. Ending it again is
/// a no-op.
///
/// Fails as wgl_cancel does.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_cancel_place(limiter: Option<&wgl_limiter>, place: Option<&mut wgl_permit>) -> c_int {
    end(limiter, place, |limiter, place| limiter.cancel_place(place))
}

/// Ends a permit: the job ran, and was worth `actual` units instead of the weight that it started with. What it did not
/// use is free again at once; what it used beyond is owed, up to one whole capacity, and delays later starts. Ending it
/// again is a no-op.
///
/// Fails as wgl_cancel does, and with WGL_UNSUPPORTED for a concurrency limit, whose units come back when the job ends.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_settle(limiter: Option<&wgl_limiter>, permit: Option<&mut wgl_permit>, actual: u64) -> c_int {
    end(limiter, permit, |limiter, permit| limiter.settle(permit, actual))
}

/// Lets a lease begin anew: the start holds its units for the whole lease of its limit from now on. A no-op for permits
/// that need none.
///
/// Fails with WGL_LEASE_LOST if the lease has ended meanwhile, and perhaps another start holds its units; else as
/// wgl_complete does, or with a store error.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_renew(limiter: Option<&wgl_limiter>, permit: Option<&wgl_permit>) -> c_int {
    guard(|| {
        let (limiter, permit) = (given("limiter", limiter)?, given("permit", permit)?);
        limiter.limiter.renew(&permit.raw())?;
        Ok(WGL_OK)
    })
}

/// The number of a lease, which is larger for every later lease of the same key: what the lease protects remembers the
/// largest that it saw, and refuses whoever comes with a smaller one. WGL_NONE, and nothing is written, for permits that
/// are no leases.
///
/// Fails with WGL_FOREIGN_PERMIT if another limiter gave the permit.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_fence(
    limiter: Option<&wgl_limiter>,
    permit: Option<&wgl_permit>,
    fence: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    told(limiter, permit, ("fence", fence), |limiter, permit| limiter.fence(permit))
}

/// How often the process has forked since the library was loaded, counted along the way from the first parent: another
/// number in a child than when its parent got a permit. For layers above this one that end permits by themselves, which
/// have to leave those of a parent alone.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_fork_generation() -> u64 {
    workglow_limit::fork_generation()
}

fn end(
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

/// When the place came that a waiting start had, or comes that was reserved, as Unix time. WGL_NONE, and nothing is
/// written, if it had none: it did not have to wait, or its limit keeps no places.
///
/// Fails with WGL_FOREIGN_PERMIT if another limiter gave the permit.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_permit_ready_at(
    limiter: Option<&wgl_limiter>,
    permit: Option<&wgl_permit>,
    unix_ns: Option<&mut MaybeUninit<i64>>,
) -> c_int {
    told(limiter, permit, ("unix_ns", unix_ns), |limiter, permit| limiter.ready_at(permit).map(workglow_limit::unix_ns))
}

/// The same on the system's monotonic clock (CLOCK_MONOTONIC), never later than it was (on a server: by no more than its answers are late): for measuring.
///
/// Fails as wgl_permit_ready_at does.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_permit_ready_at_monotonic(
    limiter: Option<&wgl_limiter>,
    permit: Option<&wgl_permit>,
    monotonic_ns: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    told(limiter, permit, ("monotonic_ns", monotonic_ns), |limiter, permit| limiter.ready_at_monotonic_ns(permit))
}

/// Writes what there is to tell of a permit.
fn told<T>(
    limiter: Option<&wgl_limiter>,
    permit: Option<&wgl_permit>,
    (parameter, place): (&'static str, Option<&mut MaybeUninit<T>>),
    tell: impl FnOnce(&dyn Limiter, &RawPermit) -> Option<T>,
) -> c_int {
    guard(|| {
        let (limiter, permit, place) = (given("limiter", limiter)?, given("permit", permit)?, given(parameter, place)?);
        limiter.limiter.check_permit(&permit.raw())?;
        Ok(match tell(&*limiter.limiter, &permit.raw()) {
            None => WGL_NONE,
            Some(value) => {
                place.write(value);
                WGL_OK
            }
        })
    })
}

/// Takes a place: a start in the future, or now. WGL_OK: it counts from now on, `place` is written, and so is
/// `after_ns` (which may be NULL): after so long it is ready, and is to be presented, or waited for, or given back with
/// wgl_cancel. WGL_DENIED: it would be further away than `max_wait_ns` (WGL_FOREVER: however far), and nothing was
/// taken; after `after_ns` there would be one.
///
/// It is good for one start, until `grace_ns` (WGL_DEFAULT_GRACE, WGL_NO_GRACE) after it is ready, and counts in the window from the
/// end of that grace.
///
/// Fails as wgl_try_acquire does, and with WGL_UNSUPPORTED for a limiter whose room is not a matter of time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_reserve(
    limiter: Option<&wgl_limiter>,
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
            match limiter.reserve(key, weight, span(max_wait_ns, WGL_FOREVER), grace_ns.map(Duration::from_nanos))? {
                Reserved::Place { place: raw, after } => {
                    place.write(wgl_permit::new(raw));
                    (WGL_OK, after)
                }
                Reserved::Denied(after) => (WGL_DENIED, after),
            };
        tell(after_ns, after);
        Ok(status)
    };
    // SAFETY: the caller's promise.
    unsafe { on_key(limiter, key, key_len, call) }
}

/// Starts with a place, if its time has come. WGL_OK: start; `place` is used up, and is the start's permit now.
/// WGL_DENIED: not yet; `place` is the place to present after `after_ns` (which may be NULL): the same one if it was
/// early, a fresh one if it came too late, was used before, or was overtaken by a gate or another policy.
///
/// Fails with WGL_FOREIGN_PERMIT if another limiter gave it, with WGL_UNSUPPORTED as wgl_reserve does, or with a store
/// error; `place` is untouched then.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_present(
    limiter: Option<&wgl_limiter>,
    place: Option<&mut wgl_permit>,
    after_ns: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    guard(|| {
        let (limiter, place) = (given("limiter", limiter)?, given("place", place)?);
        Ok(match limiter.limiter.present(&place.raw())? {
            Presented::Started(raw) => {
                *place = wgl_permit::new(raw);
                tell(after_ns, Duration::ZERO);
                WGL_OK
            }
            Presented::Wait { place: raw, after } => {
                *place = wgl_permit::new(raw);
                tell(after_ns, after);
                WGL_DENIED
            }
        })
    })
}

/// Writes a permit or place as a text, with a NUL behind it, into a buffer of `capacity` bytes; WGL_PERMIT_TEXT_MAX are
/// enough, but for a composite's place: 64 more, twice the key's length, and as much again for each child. `length`
/// (which may be NULL) is how long it is without the NUL. With it another process that has the same limit goes on,
/// through wgl_permit_from_text; from then on the permit is that one's to present and to end.
///
/// Fails with WGL_INVALID_ARGUMENT, saying how much is needed, if the buffer is too small, WGL_FOREIGN_PERMIT if another
/// limiter gave the permit, and WGL_UNSUPPORTED where permits belong to one process.
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
        let buffer = given("buffer", NonNull::new(buffer))?.cast::<u8>();
        let text = limiter.limiter.to_text(&permit.raw())?;
        if capacity <= text.len() {
            let needed = format!("at least {} bytes for this text and its NUL", text.len() + 1);
            return Err(invalid("capacity", capacity, &needed));
        }
        // SAFETY: the buffer has `capacity` bytes, by the caller's promise, and that is more than the text has.
        unsafe {
            buffer.copy_from_nonoverlapping(NonNull::from(text.as_bytes()).cast(), text.len());
            buffer.add(text.len()).write(0);
        }
        if let Some(place) = length {
            place.write(text.len());
        }
        Ok(WGL_OK)
    })
}

/// The permit or place of such a text, of `text_len` bytes without a NUL.
///
/// Fails with WGL_INVALID_ARGUMENT if it is none, WGL_FOREIGN_PERMIT if it is of another limit, and WGL_UNSUPPORTED
/// where permits belong to one process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_permit_from_text(
    limiter: Option<&wgl_limiter>,
    text: *const c_char,
    text_len: usize,
    permit: Option<&mut MaybeUninit<wgl_permit>>,
) -> c_int {
    guard(|| {
        let (limiter, place) = (given("limiter", limiter)?, given("permit", permit)?);
        given("text", NonNull::new(text.cast_mut()))?;
        // SAFETY: the caller's promise.
        let text = unsafe { sized_text("text", text, text_len, LONGEST_TEXT) }?;
        place.write(wgl_permit::new(limiter.limiter.permit_from_text(text)?));
        Ok(WGL_OK)
    })
}
