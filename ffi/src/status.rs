//! The statuses that functions return, the messages of errors, and versions.

use crate::input::c_text;
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use workglow_limit::{Error, Result};

/// Success; a start that was asked for is admitted.
pub const WGL_OK: c_int = 0;
/// Not now. A normal outcome, not an error.
pub const WGL_DENIED: c_int = 1;
/// There is no value. A normal outcome, not an error.
pub const WGL_NONE: c_int = 2;
/// Not yet: the wait continues. A normal outcome, not an error.
pub const WGL_WAITING: c_int = 3;
/// The buffer is too small; the length that is needed is written. A normal outcome, not an error.
pub const WGL_TOO_SMALL: c_int = 4;
/// A parameter is out of range, NULL or not UTF-8. Nothing was created or changed.
pub const WGL_INVALID_ARGUMENT: c_int = -1;
/// The weight is more than the limit can ever admit.
pub const WGL_WEIGHT_EXCEEDS_CAPACITY: c_int = -2;
/// The store's address is not valid.
pub const WGL_INVALID_URL: c_int = -3;
/// The store has no limit of this name.
pub const WGL_UNKNOWN_LIMIT: c_int = -4;
/// The name is declared as another kind of limiter.
pub const WGL_KIND_MISMATCH: c_int = -5;
/// The file at the store's path is not a store. It was not touched.
pub const WGL_NOT_A_STORE: c_int = -6;
/// The store has a format that this version of the library cannot read. It was not touched.
pub const WGL_UNSUPPORTED_VERSION: c_int = -7;
/// The store is not on a local file system.
pub const WGL_UNSUPPORTED_FILE_SYSTEM: c_int = -8;
/// The store could not be reached, read or written.
pub const WGL_STORE_FAILURE: c_int = -9;
/// The store was busy for longer than its timeout, or its server did not answer in time.
pub const WGL_STORE_TIMEOUT: c_int = -10;
/// The store has no capacity for another key or limit.
pub const WGL_STORE_FULL: c_int = -11;
/// The permit belongs to another limiter.
pub const WGL_FOREIGN_PERMIT: c_int = -12;
/// This limiter or store does not support the call.
pub const WGL_UNSUPPORTED: c_int = -13;
/// The lease has expired; another start may hold its units.
pub const WGL_LEASE_LOST: c_int = -14;
/// A custom limiter failed.
pub const WGL_CUSTOM_FAILURE: c_int = -15;
/// The store's contents are damaged: another program or the disk changed its files.
pub const WGL_DAMAGED: c_int = -16;
/// The store was closed in this process by wgl_store_close.
pub const WGL_STORE_CLOSED: c_int = -21;
/// A bug in this library. Its state is sound; please report the message.
pub const WGL_INTERNAL: c_int = -100;

/// The version of the binary interface, as in the name of the shared library, libworkglow_limit.so.0. It changes when
/// programs must be recompiled.
pub const WGL_ABI_VERSION: c_int = 0;

thread_local! {
    static LAST_ERROR: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Runs the body of an exported function. An error becomes a status and a message; no panic leaves the library.
#[inline(always)]
pub(crate) fn guard(body: impl FnOnce() -> Result<c_int>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => status,
        Ok(Err(error)) => failed(&error),
        Err(panic) => panicked(&*panic),
    }
}

#[cold]
fn failed(error: &Error) -> c_int {
    remember(error.to_string());
    error.code()
}

#[cold]
fn panicked(panic: &(dyn Any + Send)) -> c_int {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref().copied());
    remember(format!("a bug in this library: {}", text.unwrap_or("a panic without a message")));
    WGL_INTERNAL
}

fn remember(message: String) {
    // A message may quote any text, even one with a NUL.
    let message = c_text(&message);
    // A thread that is ending may have dropped its message already.
    let _ = LAST_ERROR.try_with(|last| last.replace(Some(message)));
}

/// Returns the message of the last call that failed on this thread, for people: the parameter, its value and what was
/// expected. Empty if none has failed. Valid until the next call that fails on this thread, or the thread ends.
///
/// Never fails, and never returns NULL.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_last_error() -> *const c_char {
    let nothing = c"".as_ptr();
    LAST_ERROR.try_with(|last| last.borrow().as_ref().map_or(nothing, |text| text.as_ptr())).unwrap_or(nothing)
}

/// Returns the stable name of a status, the same in every language: "ok", "denied", "invalid_argument", …; "unknown" for
/// any other number. The text is static.
///
/// Never fails, and never returns NULL.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_status_name(status: c_int) -> *const c_char {
    let name = match status {
        WGL_OK => c"ok",
        WGL_DENIED => c"denied",
        WGL_NONE => c"none",
        WGL_WAITING => c"waiting",
        WGL_TOO_SMALL => c"too_small",
        WGL_INVALID_ARGUMENT => c"invalid_argument",
        WGL_WEIGHT_EXCEEDS_CAPACITY => c"weight_exceeds_capacity",
        WGL_INVALID_URL => c"invalid_url",
        WGL_UNKNOWN_LIMIT => c"unknown_limit",
        WGL_KIND_MISMATCH => c"kind_mismatch",
        WGL_NOT_A_STORE => c"not_a_store",
        WGL_UNSUPPORTED_VERSION => c"unsupported_version",
        WGL_UNSUPPORTED_FILE_SYSTEM => c"unsupported_file_system",
        WGL_STORE_FAILURE => c"store_failure",
        WGL_STORE_TIMEOUT => c"store_timeout",
        WGL_STORE_FULL => c"store_full",
        WGL_FOREIGN_PERMIT => c"foreign_permit",
        WGL_UNSUPPORTED => c"unsupported",
        WGL_LEASE_LOST => c"lease_lost",
        WGL_CUSTOM_FAILURE => c"custom_failure",
        WGL_DAMAGED => c"damaged",
        WGL_STORE_CLOSED => c"store_closed",
        WGL_INTERNAL => c"internal",
        _ => c"unknown",
    };
    name.as_ptr()
}

/// Returns the version of the library that is loaded, such as "0.1.0". The text is static.
///
/// Never fails, and never returns NULL.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Returns the version of the library that is loaded as a number: major * 10000 + minor * 100 + patch. It is
/// WGL_VERSION_NUMBER if the header has the same version, and larger if the library is newer.
///
/// Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_version_number() -> c_int {
    const NUMBER: c_int = number(env!("CARGO_PKG_VERSION_MAJOR")) * 10_000
        + number(env!("CARGO_PKG_VERSION_MINOR")) * 100
        + number(env!("CARGO_PKG_VERSION_PATCH"));
    NUMBER
}

/// A part of the version, below 100.
const fn number(digits: &str) -> c_int {
    let (digits, mut at, mut number) = (digits.as_bytes(), 0, 0);
    while at < digits.len() {
        number = number * 10 + (digits[at] - b'0') as c_int;
        at += 1;
    }
    assert!(number < 100, "a part of the version has more than two digits");
    number
}

/// Returns the version of the binary interface of the library that is loaded: WGL_ABI_VERSION, if the header matches.
///
/// Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_abi_version() -> c_int {
    WGL_ABI_VERSION
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn text(c: *const c_char) -> String {
        // SAFETY: the functions above return NUL-terminated texts.
        unsafe { CStr::from_ptr(c) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn numbers_and_names_are_those_of_the_core() {
        let (text1, text2, path) = (String::new, String::new, std::path::PathBuf::new);
        let all = [
            Error::InvalidArgument { parameter: "", value: text1(), expected: text2() },
            Error::WeightExceedsCapacity { limit: text1(), weight: 0, capacity: 0 },
            Error::InvalidUrl { url: text1(), reason: text2() },
            Error::UnknownLimit { name: text1(), known: vec![] },
            Error::KindMismatch { name: text1(), declared: "", requested: "" },
            Error::NotAStore { path: path(), found: text1() },
            Error::UnsupportedVersion { path: path(), found: 0, supported: 0 },
            Error::UnsupportedFileSystem { path: path(), kind: "" },
            Error::Store { doing: text1(), cause: text2().into() },
            Error::StoreTimeout { doing: text1(), reason: text1(), waited_ms: 0 },
            Error::StoreFull { reason: text1() },
            Error::ForeignPermit { limit: text1() },
            Error::Unsupported { reason: text1() },
            Error::LeaseLost { limit: text1() },
            Error::Custom { limit: text1(), cause: text2().into() },
        ];
        for (number, error) in (1..).zip(&all) {
            assert_eq!(error.code(), -number);
            assert_eq!(text(wgl_status_name(error.code())), error.name());
        }
        assert_eq!(text(wgl_status_name(c_int::MIN)), "unknown");
    }

    #[test]
    fn a_panic_becomes_a_status_and_a_message() {
        assert_eq!(guard(|| panic!("number {}", 7)), WGL_INTERNAL);
        assert_eq!(text(wgl_last_error()), "a bug in this library: number 7");
    }

    #[test]
    fn a_nul_in_a_message_is_replaced() {
        let error = Error::Unsupported { reason: "a\0b".into() };
        assert_eq!(guard(|| Err(error)), WGL_UNSUPPORTED);
        assert_eq!(text(wgl_last_error()), "a\u{fffd}b");
    }
}
