//! Limiters, made and freed.

use crate::clock::wgl_manual_clock;
use crate::input::{Sized32, given, hand_out, invalid, options, reserved, text};
use crate::status::{WGL_OK, guard};
use crate::store::wgl_store;
use std::ffi::{CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering::*};
use std::time::Duration;
use workglow_limit::{
    CompositeLimiter, ConcurrencyLimiter, Error, Limiter, MOST_WINDOWS, NullLimiter, RateLimiter, Result,
};

/// Answers "may this job start now, and if not, when?".
///
/// The caller owns it and frees it with wgl_limiter_free, when no thread is in a call on it any more. It keeps its store
/// and its children alive by itself. Any number of threads may use it at once, and forked children inherit it: see the
/// introduction.
pub struct wgl_limiter {
    pub(crate) limiter: Arc<dyn Limiter>,
    /// The same, where it is one that children can be added to.
    composite: Option<Arc<CompositeLimiter>>,
    names: Names,
}

impl wgl_limiter {
    fn new(limiter: Arc<dyn Limiter>, composite: Option<Arc<CompositeLimiter>>) -> Self {
        wgl_limiter { limiter, composite, names: Names::default() }
    }

    /// A limit's name as C has it, good as long as this limiter.
    pub(crate) fn name(&self, name: &str) -> *const c_char {
        self.names.get(name)
    }
}

/// The names that a limiter has told, as C strings. Lock-free, because a fork may come at any moment.
#[derive(Default)]
struct Names(AtomicPtr<Name>);

struct Name {
    text: CString,
    next: *mut Name,
}

impl Names {
    fn get(&self, name: &str) -> *const c_char {
        let mut first = self.0.load(Acquire);
        let mut at = first;
        // SAFETY: null, or made below and freed only with the list, here and in the loop.
        while let Some(known) = unsafe { at.as_ref() } {
            if known.text.as_bytes() == name.as_bytes() {
                return known.text.as_ptr();
            }
            at = known.next;
        }
        let text = CString::new(name).expect("C declares no name with a NUL inside");
        let new = Box::into_raw(Box::new(Name { text, next: first }));
        // Two threads may add the same name: both are good.
        while let Err(now) = self.0.compare_exchange(first, new, AcqRel, Acquire) {
            first = now;
            // SAFETY: nobody else has seen `new` yet.
            unsafe { (*new).next = first };
        }
        // SAFETY: as above.
        unsafe { &*new }.text.as_ptr()
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        let mut at = *self.0.get_mut();
        while !at.is_null() {
            // SAFETY: made by `get`, and nobody can be reading it any more.
            at = unsafe { Box::from_raw(at) }.next;
        }
    }
}

/// One window of a rate limit with several.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_window {
    /// So many units in any rolling window: 1 to 1,000,000,000, or with several windows 4,096.
    pub max_executions: u64,
    /// The window's length: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    pub window_ns: u64,
}

/// What a rate limit allows: `max_executions` and `window_ns`, or `windows`. Begin with WGL_RATE_LIMITER_OPTIONS_INIT. The caller owns it; it is read during the call
/// only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_rate_limiter_options {
    /// sizeof(wgl_rate_limiter_options), as the INIT macro sets it.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// So many units in any rolling window: 1 to 1,000,000,000, or with several windows 4,096.
    pub max_executions: u64,
    /// The window's length: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    pub window_ns: u64,
    /// Several windows instead: a start needs room in all of them. NULL: there is only the one above.
    pub windows: *const wgl_window,
    /// How many there are: 1 to 4; 0 without `windows`.
    pub window_count: usize,
}

// SAFETY: it begins with its size; the pointer is looked at only as what the caller gives.
unsafe impl Sized32 for wgl_rate_limiter_options {
    const NAME: &'static str = "rate limiter options";
}

impl wgl_rate_limiter_options {
    /// The windows, however they were given.
    ///
    /// # Safety
    /// `windows` is NULL or points to `window_count` windows.
    unsafe fn windows(&self) -> Result<Vec<(u64, Duration)>> {
        let one = wgl_window { max_executions: self.max_executions, window_ns: self.window_ns };
        let all = match (self.windows.is_null(), self.window_count) {
            (true, 0) => slice::from_ref(&one),
            (true, count) => {
                return Err(invalid("windows", format_args!("NULL, of {count}"), "a pointer, or window_count 0"));
            }
            // A count that is none is told before anything is read.
            (false, count) if !(1..=MOST_WINDOWS).contains(&count) => {
                return Err(invalid("window_count", count, &format!("1 to {MOST_WINDOWS}, or 0 and no windows")));
            }
            (false, _) if (one.max_executions, one.window_ns) != (0, 0) => {
                let both = "given beside max_executions and window_ns";
                return Err(invalid("windows", both, "either windows, or one pair and no windows"));
            }
            // SAFETY: the caller's promise.
            (false, count) => unsafe { slice::from_raw_parts(self.windows, count) },
        };
        Ok(all.iter().map(|window| (window.max_executions, Duration::from_nanos(window.window_ns))).collect())
    }
}

/// Declares a limit under a name, in place of the policy that the name had, for all who share the store: at most
/// `max_executions` units in any rolling window. A start at s counts until exactly s + window. A policy that an operator
/// has put above it goes on until it is lifted.
///
/// Fails with WGL_INVALID_ARGUMENT for options out of range and for a name that is not 1 to 1,024 bytes,
/// WGL_KIND_MISMATCH if the name is declared as another kind of limiter, or with a store error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_rate_limiter_new(
    store: Option<&wgl_store>,
    name: *const c_char,
    options: *const wgl_rate_limiter_options,
    limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>,
) -> c_int {
    guard(|| {
        let (store, place) = (given("store", store)?, given("limiter", limiter)?);
        // SAFETY: the caller's promise.
        let (name, options) = unsafe { (text("name", name)?, self::options(options)?) };
        reserved(options.reserved)?;
        // SAFETY: the caller's promise.
        let windows = unsafe { options.windows() }?;
        let rate = RateLimiter::with_windows(&store.0, name, &windows, Default::default())?;
        rate.open()?;
        hand_out(place, wgl_limiter::new(Arc::new(rate), None));
        Ok(WGL_OK)
    })
}

/// Takes the rate limit that is declared under a name.
///
/// Fails with WGL_UNKNOWN_LIMIT if there is none, and otherwise as wgl_rate_limiter_new does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_rate_limiter_attach(
    store: Option<&wgl_store>,
    name: *const c_char,
    limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>,
) -> c_int {
    guard(|| {
        let (store, place) = (given("store", store)?, given("limiter", limiter)?);
        // SAFETY: the caller's promise.
        let name = unsafe { text("name", name) }?;
        let rate = RateLimiter::attach(&store.0, name)?;
        rate.open()?;
        hand_out(place, wgl_limiter::new(Arc::new(rate), None));
        Ok(WGL_OK)
    })
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
    /// A clock for tests, for gates, in place of the system's. Default NULL: the system's.
    pub clock: *const wgl_manual_clock,
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
    guard(|| {
        let place = given("limiter", limiter)?;
        // SAFETY: the caller's promise, here and below.
        let options = unsafe { self::options(options) }?;
        reserved(options.reserved)?;
        let max = options.max_concurrent_jobs;
        // SAFETY: as above.
        let concurrency = match unsafe { options.clock.as_ref() } {
            None => ConcurrencyLimiter::new(max)?,
            Some(clock) => ConcurrencyLimiter::with_clock(max, clock.0.clone())?,
        };
        hand_out(place, wgl_limiter::new(Arc::new(concurrency), None));
        Ok(WGL_OK)
    })
}

/// Makes a limiter that admits everything: for where none is wanted.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_null_limiter_new(limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>) -> c_int {
    guard(|| {
        hand_out(given("limiter", limiter)?, wgl_limiter::new(Arc::new(NullLimiter::new()), None));
        Ok(WGL_OK)
    })
}

/// Makes a limiter that admits what every one of its children admits: everything, as long as it has none. All children
/// get the same key and weight, gates go to all of them, and a child that denies keeps the others from being charged.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_composite_limiter_new(limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>) -> c_int {
    guard(|| {
        let composite = Arc::new(CompositeLimiter::new([]));
        hand_out(given("limiter", limiter)?, wgl_limiter::new(composite.clone(), Some(composite)));
        Ok(WGL_OK)
    })
}

/// Adds a child, at any time. The composite shares it: the caller may go on using it, and frees it whenever it likes.
/// Permits that are out complete against the children they were taken from.
///
/// Fails with WGL_UNSUPPORTED if `composite` is no composite, and with WGL_INVALID_ARGUMENT if `child` is the same, or
/// contains it.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_composite_limiter_add(composite: Option<&wgl_limiter>, child: Option<&wgl_limiter>) -> c_int {
    guard(|| {
        let (parent, child) = (given("composite", composite)?, given("child", child)?);
        let Some(composite) = &parent.composite else {
            let reason = format!("limiter \"{}\" takes no children: it is no composite", parent.limiter.name());
            return Err(Error::Unsupported { reason });
        };
        composite.add(child.limiter.clone())?;
        Ok(WGL_OK)
    })
}

/// Frees a limiter. NULL is a no-op. What it has admitted stays admitted.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_limiter_free(limiter: Option<Box<wgl_limiter>>) {
    guard(|| {
        drop(limiter);
        Ok(WGL_OK)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_told_once_and_stays() {
        let names = Names::default();
        let (a, b) = (names.get("a"), names.get("b"));
        assert_ne!(a, b);
        std::thread::scope(|scope| {
            for t in 0..4 {
                let names = &names;
                scope.spawn(move || (0..100).for_each(|i| _ = names.get(&format!("{}", (i + t) % 50))));
            }
        });
        assert_eq!((names.get("a"), names.get("b")), (a, b));
    }
}
