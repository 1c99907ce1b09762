//! What a function returns, and what it says about a failure.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use workglow_limit::{Error, Result};

/// Done; where a start was asked for, it is admitted.
pub const WGL_OK: c_int = 0;
/// Not now. A normal outcome, not an error.
pub const WGL_DENIED: c_int = 1;
/// There is nothing to tell. A normal outcome, not an error.
pub const WGL_NONE: c_int = 2;
/// Not yet: the wait goes on. A normal outcome, not an error.
pub const WGL_WAITING: c_int = 3;
/// A parameter is outside its range, NULL, or not UTF-8. Nothing was created or changed.
pub const WGL_INVALID_ARGUMENT: c_int = -1;
/// More units were asked for at once than the limit could ever grant.
pub const WGL_WEIGHT_EXCEEDS_CAPACITY: c_int = -2;
/// The store's address cannot be understood.
pub const WGL_INVALID_URL: c_int = -3;
/// No policy is declared under this name in this store.
pub const WGL_UNKNOWN_LIMIT: c_int = -4;
/// The name is declared already, as another kind of limiter.
pub const WGL_KIND_MISMATCH: c_int = -5;
/// The file at the store's path is something else. It was not touched.
pub const WGL_NOT_A_STORE: c_int = -6;
/// The store was written by a version of this library that this one cannot read. It was not touched.
pub const WGL_UNSUPPORTED_VERSION: c_int = -7;
/// The store must be on a local file system, and this one is not.
pub const WGL_UNSUPPORTED_FILE_SYSTEM: c_int = -8;
/// The store could not be reached, read or written.
pub const WGL_STORE_FAILURE: c_int = -9;
/// The store was busy for longer than its timeout.
pub const WGL_STORE_TIMEOUT: c_int = -10;
/// The store has no room for another key or limit.
pub const WGL_STORE_FULL: c_int = -11;
/// The permit was not given by this limiter.
pub const WGL_FOREIGN_PERMIT: c_int = -12;
/// What was asked makes no sense for this limiter, or for this store.
pub const WGL_UNSUPPORTED: c_int = -13;
/// The lease has ended: its units may be another start's by now.
pub const WGL_LEASE_LOST: c_int = -14;
/// A limiter of the program's own failed.
pub const WGL_CUSTOM_FAILURE: c_int = -15;
/// What is in the store makes no sense: somebody else wrote to its files, or the disk did.
pub const WGL_DAMAGED: c_int = -16;
/// A fault of this library. Its state is sound; please report the message.
pub const WGL_INTERNAL: c_int = -100;

/// The number of the binary interface: the one in the library's file name, libworkglow_limit.so.0. It changes when
/// programs must be compiled anew.
pub const WGL_ABI_VERSION: c_int = 0;

thread_local! {
    static LAST_ERROR: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Runs the body of an exported function: an error becomes its number and a message, and no panic leaves the library.
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
    remember(format!("a fault of this library: {}", text.unwrap_or("it does not say which")));
    WGL_INTERNAL
}

fn remember(message: String) {
    // A message quotes what it was given, and that may be anything.
    let message = CString::new(message.replace('\0', "\u{fffd}")).ok();
    // A thread that is ending may have no place for it any more.
    let _ = LAST_ERROR.try_with(|last| last.replace(message));
}

/// What the last call that failed on this thread has to say, for people: which parameter, which value, what was
/// expected. Empty if none has failed. Good until the next call that fails on this thread, or the thread's end.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_last_error() -> *const c_char {
    let nothing = c"".as_ptr();
    LAST_ERROR.try_with(|last| last.borrow().as_ref().map_or(nothing, |text| text.as_ptr())).unwrap_or(nothing)
}

/// The stable name of a status, the same in every language: "ok", "denied", "invalid_argument", …; "unknown" for a
/// number that is none. Never NULL, and never to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_status_name(status: c_int) -> *const c_char {
    let name = match status {
        WGL_OK => c"ok",
        WGL_DENIED => c"denied",
        WGL_NONE => c"none",
        WGL_WAITING => c"waiting",
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
        WGL_INTERNAL => c"internal",
        _ => c"unknown",
    };
    name.as_ptr()
}

/// The version of the library that is loaded, as "0.1.0". Never to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The binary interface of the library that is loaded: WGL_ABI_VERSION, if the header belongs to it.
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
    fn numbers_and_names_are_the_core_s() {
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
            Error::Store { doing: text1(), cause: text2() },
            Error::StoreTimeout { doing: text1(), waited_ms: 0 },
            Error::StoreFull { reason: text1() },
            Error::ForeignPermit { limit: text1() },
            Error::Unsupported { reason: text1() },
            Error::LeaseLost { limit: text1() },
            Error::Custom { limit: text1(), cause: text2() },
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
        assert_eq!(text(wgl_last_error()), "a fault of this library: number 7");
    }

    #[test]
    fn a_message_with_a_nul_inside_is_told_whole() {
        let error = Error::Unsupported { reason: "a\0b".into() };
        assert_eq!(guard(|| Err(error)), WGL_UNSUPPORTED);
        assert_eq!(text(wgl_last_error()), "a\u{fffd}b");
    }
}
