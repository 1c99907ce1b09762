//! Stores.

use crate::clock::wgl_manual_clock;
use crate::input::{Sized32, given, hand_out, options, text};
use crate::status::{WGL_OK, guard};
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::time::Duration;
use workglow_limit::{Store, StoreOptions};

/// Where limits live: "memory:" (this process) or "sqlite:PATH" (this machine).
///
/// The caller owns it and frees it with wgl_store_free; limiters made from it go on working after that. Any thread may
/// use it. It is inherited by forked children: those of a sqlite: store share its limits with their parent, those of a
/// memory: store go on with a copy of their own.
pub struct wgl_store(pub(crate) Store);

/// How a store behaves. Begin with WGL_STORE_OPTIONS_INIT; what is 0 or NULL has its default. The caller owns it; it
/// is read during the call only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_store_options {
    /// sizeof(wgl_store_options), as the INIT macro sets it.
    pub struct_size: u32,
    /// The mode of the files that are made, whatever the umask: 0600 to 0777. Default 0600; 0660 for services of
    /// several users.
    pub mode: u32,
    /// How long a call may wait for something rare (opening, a new limit, growing) before it fails. Default 5 s.
    pub timeout_ns: u64,
    /// A clock for tests in place of the system's. Default NULL: the system's.
    pub clock: *const wgl_manual_clock,
}

// SAFETY: it begins with its size; the pointer is looked at only as what the caller gives.
unsafe impl Sized32 for wgl_store_options {
    const NAME: &'static str = "store options";
}

/// Opens a store, and makes its files if there are none. `options` may be NULL.
///
/// Fails with WGL_INVALID_URL, WGL_INVALID_ARGUMENT for options out of range, or whatever is wrong with the place
/// (WGL_STORE_FAILURE, WGL_NOT_A_STORE, WGL_UNSUPPORTED_FILE_SYSTEM, …).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_store_open(
    url: *const c_char,
    options: *const wgl_store_options,
    store: Option<&mut MaybeUninit<Box<wgl_store>>>,
) -> c_int {
    guard(|| {
        let place = given("store", store)?;
        // SAFETY: the caller's promise.
        let (url, options) = unsafe { (text("url", url)?, store_options(options)?) };
        let opened = Store::with_options(url, options)?;
        opened.open()?;
        hand_out(place, wgl_store(opened));
        Ok(WGL_OK)
    })
}

/// Frees a store. NULL is a no-op.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_store_free(store: Option<Box<wgl_store>>) {
    guard(|| {
        drop(store);
        Ok(WGL_OK)
    });
}

/// # Safety
/// `theirs` is NULL, or points to options whose clock is NULL or a clock.
unsafe fn store_options(theirs: *const wgl_store_options) -> workglow_limit::Result<StoreOptions> {
    let mut mine = StoreOptions::default();
    if theirs.is_null() {
        return Ok(mine);
    }
    // SAFETY: the caller's promise, here and below.
    let theirs = unsafe { options(theirs) }?;
    if theirs.mode != 0 {
        mine.mode = theirs.mode;
    }
    if theirs.timeout_ns != 0 {
        mine.timeout = Duration::from_nanos(theirs.timeout_ns);
    }
    // SAFETY: as above.
    mine.clock = unsafe { theirs.clock.as_ref() }.map(|clock| clock.0.clone());
    Ok(mine)
}
