//! The handle of a limiter: taken by its name, put together, freed. How each kind is made is in
//! `rate.rs`, `local.rs`, `shared.rs` and `custom.rs`.

use crate::input::{self, Sized32, given, hand_out, text};
use crate::status::{WGL_OK, guard};
use crate::store::wgl_store;
use std::ffi::{CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering::*};
use workglow_limit::{CompositeLimiter, Error, Limiter, NullLimiter, Policy, RateLimiter, Result, Store};

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

/// Where a new limiter goes.
pub(crate) type Place<'a> = Option<&'a mut MaybeUninit<Box<wgl_limiter>>>;

/// Makes a limiter of a store under a name, and hands it out when it is declared or attached.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn named(
    store: Option<&wgl_store>,
    name: *const c_char,
    limiter: Place,
    make: impl FnOnce(&Store, &str) -> Result<Arc<dyn Limiter>>,
) -> c_int {
    guard(|| {
        let (store, place) = (given("store", store)?, given("limiter", limiter)?);
        // SAFETY: the caller's promise.
        let limiter = make(&store.0, unsafe { text("name", name) }?)?;
        limiter.open()?;
        hand_out(place, wgl_limiter::new(limiter, None));
        Ok(WGL_OK)
    })
}

/// Declares a limit under a name, and hands it out.
///
/// # Safety
/// As for [`named`] and [`input::options`].
pub(crate) unsafe fn declared<O: Sized32>(
    store: Option<&wgl_store>,
    name: *const c_char,
    options: *const O,
    limiter: Place,
    policy: impl FnOnce(O) -> Result<Policy>,
) -> c_int {
    // SAFETY: the caller's promise.
    let declare = |store: &Store, name: &str| store.declare(name, policy(unsafe { input::options(options) }?)?);
    // SAFETY: the caller's promise.
    unsafe { named(store, name, limiter, declare) }
}

impl wgl_limiter {
    pub(crate) fn new(limiter: Arc<dyn Limiter>, composite: Option<Arc<CompositeLimiter>>) -> Self {
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

/// Takes the limit that is declared under a name, of whatever kind; or the limits that wgl_policy_limiter_new or
/// wgl_flow_control_limiter_new declared together under it.
///
/// Fails with WGL_UNKNOWN_LIMIT if there is none, or with a store error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_limiter_attach(
    store: Option<&wgl_store>,
    name: *const c_char,
    limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { named(store, name, limiter, |store, name| store.find(name)) }
}

/// Takes the rate limit that is declared under a name.
///
/// Fails as wgl_limiter_attach does, and with WGL_KIND_MISMATCH if the name is declared as another kind of limiter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_rate_limiter_attach(
    store: Option<&wgl_store>,
    name: *const c_char,
    limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { named(store, name, limiter, |store, name| Ok(Arc::new(RateLimiter::attach(store, name)?))) }
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
/// Fails with WGL_UNSUPPORTED if wgl_composite_limiter_new did not make `composite` (limits that were declared together
/// are a policy, which the store holds), and with WGL_INVALID_ARGUMENT if `child` is the same, or contains it, or if
/// composites would be nested more than 32 deep.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_composite_limiter_add(composite: Option<&wgl_limiter>, child: Option<&wgl_limiter>) -> c_int {
    guard(|| {
        let (parent, child) = (given("composite", composite)?, given("child", child)?);
        let Some(composite) = &parent.composite else {
            let reason = format!(
                "limiter \"{}\" takes no children: only composites that wgl_composite_limiter_new made do. Add it to one",
                parent.limiter.name()
            );
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
