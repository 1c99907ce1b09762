//! The handle of a limiter: attach, name, compose, free. `rate.rs`, `local.rs`, `shared.rs` and `custom.rs` make each kind.

use crate::input::{self, Sized32, c_text, given, hand_out, shared, text};
use crate::status::{WGL_OK, guard};
use crate::store::wgl_store;
use std::ffi::{CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering::*};
use workglow_limit::{CompositeLimiter, Error, FirstOfLimiter, Limiter, NullLimiter, Policy, Result, Store};

/// Decides whether a job may start now, and if not, when.
///
/// The caller owns it and frees it with wgl_limiter_free, when no thread is in a call on it. It keeps its store and its
/// children alive. Any number of threads may use it at once. Forked children inherit it: see "Fork" above.
pub struct wgl_limiter {
    pub(crate) limiter: Arc<dyn Limiter>,
    /// The same limiter, if children can be added to it.
    parent: Option<Parent>,
    names: Names,
}

/// A limiter that takes children.
pub(crate) enum Parent {
    Composite(Arc<CompositeLimiter>),
    FirstOf(Arc<FirstOfLimiter>),
}

/// The output of a function that makes a limiter.
pub(crate) type LimiterOut<'a> = Option<&'a mut MaybeUninit<Box<wgl_limiter>>>;

/// Makes a limiter of a store under a name, declares or attaches it, and hands it out.
///
/// # Safety
/// `store` is as for [`shared`], `name` as for [`text`].
pub(crate) unsafe fn named(
    store: Option<NonNull<wgl_store>>,
    name: *const c_char,
    limiter: LimiterOut,
    make: impl FnOnce(&Store, &str) -> Result<Arc<dyn Limiter>>,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise, here and below.
        let (store, out) = (given("store", unsafe { shared(store) })?, given("limiter", limiter)?);
        // SAFETY: as above.
        let limiter = make(&store.store, unsafe { text("name", name) }?)?;
        limiter.open()?;
        hand_out(out, wgl_limiter::new(limiter, None));
        Ok(WGL_OK)
    })
}

/// Declares a limit under a name, and hands it out.
///
/// # Safety
/// As for [`named`] and [`input::options`].
pub(crate) unsafe fn declared<O: Sized32>(
    store: Option<NonNull<wgl_store>>,
    name: *const c_char,
    options: *const O,
    limiter: LimiterOut,
    policy: impl FnOnce(O) -> Result<Policy>,
) -> c_int {
    // SAFETY: the caller's promise.
    let declare = |store: &Store, name: &str| store.declare(name, policy(unsafe { input::options(options) }?)?);
    // SAFETY: the caller's promise.
    unsafe { named(store, name, limiter, declare) }
}

impl wgl_limiter {
    pub(crate) fn new(limiter: Arc<dyn Limiter>, parent: Option<Parent>) -> Self {
        wgl_limiter { limiter, parent, names: Names::default() }
    }

    /// A limit's name as a C string, which lives as long as this limiter.
    pub(crate) fn name(&self, name: &str) -> *const c_char {
        self.names.get(name)
    }
}

/// The names that a limiter has returned, as C strings. Lock-free, because a fork may happen at any moment.
#[derive(Default)]
struct Names(AtomicPtr<Name>);

struct Name {
    text: CString,
    next: *mut Name,
}

impl Names {
    fn get(&self, name: &str) -> *const c_char {
        let text = c_text(name);
        let mut first = self.0.load(Acquire);
        let mut at = first;
        // SAFETY: null, or made below and freed only with the list, here and in the loop.
        while let Some(known) = unsafe { at.as_ref() } {
            if known.text.as_c_str() == text.as_c_str() {
                return known.text.as_ptr();
            }
            at = known.next;
        }
        let new = Box::into_raw(Box::new(Name { text, next: first }));
        // Two threads may add the same name: both are valid.
        while let Err(now) = self.0.compare_exchange(first, new, AcqRel, Acquire) {
            first = now;
            // SAFETY: no other thread has seen `new` yet.
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
            // SAFETY: made by `get`, and no thread can read it any more.
            at = unsafe { Box::from_raw(at) }.next;
        }
    }
}

/// Makes a limiter of the limit that is declared under a name, of whatever kind; or of the limits that
/// wgl_policy_limiter_new or wgl_flow_control_limiter_new declared together under it.
///
/// Fails with WGL_UNKNOWN_LIMIT if there is none, WGL_INVALID_ARGUMENT for a name that is not 1 to 1,024 bytes, or with a
/// store error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_limiter_attach(
    store: Option<NonNull<wgl_store>>,
    name: *const c_char,
    limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { named(store, name, limiter, |store, name| store.find(name)) }
}

/// Makes a limiter that admits everything: for where no limit is wanted.
///
/// Fails only with WGL_INVALID_ARGUMENT, for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_null_limiter_new(limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>) -> c_int {
    guard(|| {
        hand_out(given("limiter", limiter)?, wgl_limiter::new(Arc::new(NullLimiter::new()), None));
        Ok(WGL_OK)
    })
}

/// Makes a limiter that admits what all of its children admit; without children it admits everything. All children get the
/// same key and weight, except in a joint start (wgl_joint_key_new), and gates apply to all of them. If a child denies, the
/// others are not charged.
///
/// Fails only with WGL_INVALID_ARGUMENT, for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_composite_limiter_new(limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>) -> c_int {
    guard(|| {
        let composite = Arc::new(CompositeLimiter::new([]));
        hand_out(given("limiter", limiter)?, wgl_limiter::new(composite.clone(), Some(Parent::Composite(composite))));
        Ok(WGL_OK)
    })
}

/// Adds a child, at any time, which as a part has the name of its limit. The composite shares it: the caller may keep using
/// it, and frees it at any time. Permits that are not ended yet end against the children that they came from.
///
/// Fails with WGL_UNSUPPORTED if wgl_composite_limiter_new did not make `composite` (limits that were declared together are
/// a policy, which the store holds), and with WGL_INVALID_ARGUMENT if `child` is `composite` or contains it, if a limit would
/// be a child twice, or if composites would be nested more than 32 deep.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_composite_limiter_add(
    composite: Option<NonNull<wgl_limiter>>,
    child: Option<NonNull<wgl_limiter>>,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { add(("composite", composite), ("child", child), CompositeLimiter::add) }
}

/// Adds a child as a part with a name of its own, by which joint starts charge it. Otherwise as wgl_composite_limiter_add.
///
/// Fails as wgl_composite_limiter_add does, and with WGL_INVALID_ARGUMENT for a name that is not 1 to 1,024 bytes or that
/// another part has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_composite_limiter_add_named(
    composite: Option<NonNull<wgl_limiter>>,
    name: *const c_char,
    child: Option<NonNull<wgl_limiter>>,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        add(("composite", composite), ("child", child), |composite: &CompositeLimiter, child| {
            composite.add_named(text("name", name)?, child)
        })
    }
}

/// Makes a limiter that admits what one of its alternatives admits: the first of them that can start now, in the order in
/// which they are added. Exactly one is charged: wgl_chosen says which. A waiter starts wherever it can start first. If none
/// can start, the decision is that of the one that can start first. All get the same key and weight, and those that are too
/// small for a weight are left out. A pause applies to all of them: after a refusal, pause the one that was chosen.
///
/// Fails only with WGL_INVALID_ARGUMENT, for NULL. Without an alternative, its calls fail with that.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_first_of_limiter_new(limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>) -> c_int {
    guard(|| {
        let first_of = Arc::new(FirstOfLimiter::new([]));
        hand_out(given("limiter", limiter)?, wgl_limiter::new(first_of.clone(), Some(Parent::FirstOf(first_of))));
        Ok(WGL_OK)
    })
}

/// Adds an alternative, as the last one. The limiter shares it: the caller may keep using it, and frees it at any time.
///
/// Fails with WGL_UNSUPPORTED if wgl_first_of_limiter_new did not make `first_of`, and with WGL_INVALID_ARGUMENT if
/// `alternative` is `first_of` or contains it, or if composites and alternatives would be nested more than 32 deep.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_first_of_limiter_add(
    first_of: Option<NonNull<wgl_limiter>>,
    alternative: Option<NonNull<wgl_limiter>>,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { add(("first_of", first_of), ("alternative", alternative), FirstOfLimiter::add) }
}

/// Adds a child to a limiter that takes children of this kind.
///
/// # Safety
/// The handles are as for [`shared`].
unsafe fn add<P: OfMany>(
    (parameter, parent): (&'static str, Option<NonNull<wgl_limiter>>),
    (of, child): (&'static str, Option<NonNull<wgl_limiter>>),
    add: impl FnOnce(&P, Arc<dyn Limiter>) -> Result<()>,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let (parent, child) = unsafe { (given(parameter, shared(parent))?, given(of, shared(child))?) };
        let Some(to) = parent.parent.as_ref().and_then(P::of) else {
            let name = parent.limiter.name();
            let reason = format!("limiter \"{name}\" takes no children; add it to a limiter that {} makes", P::MADE_BY);
            return Err(Error::Unsupported { reason });
        };
        add(to, child.limiter.clone())?;
        Ok(WGL_OK)
    })
}

/// A kind of limiter that takes children.
trait OfMany {
    const MADE_BY: &'static str;

    fn of(parent: &Parent) -> Option<&Self>;
}

impl OfMany for CompositeLimiter {
    const MADE_BY: &'static str = "wgl_composite_limiter_new";

    fn of(parent: &Parent) -> Option<&Self> {
        if let Parent::Composite(composite) = parent { Some(composite) } else { None }
    }
}

impl OfMany for FirstOfLimiter {
    const MADE_BY: &'static str = "wgl_first_of_limiter_new";

    fn of(parent: &Parent) -> Option<&Self> {
        if let Parent::FirstOf(first_of) = parent { Some(first_of) } else { None }
    }
}

/// Returns the name of the limit, as `denied_by` has it; of a limiter without a store, its kind. It lives as long as the
/// limiter.
///
/// Never fails: NULL for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_limiter_name(limiter: Option<&wgl_limiter>) -> *const c_char {
    limiter.map_or(ptr::null(), |limiter| limiter.name(limiter.limiter.name()))
}

/// Frees a limiter. NULL is a no-op. Starts that it admitted stay admitted.
///
/// Never fails.
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
    fn a_name_has_one_address() {
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
