//! Checks of what C passes.

use std::ffi::{CStr, CString, c_char};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::{fmt, slice};
use workglow_limit::embed::MAX_NAME_BYTES;
use workglow_limit::{Error, Result};

/// The error of a parameter that is not valid.
pub(crate) fn invalid(parameter: &'static str, value: impl fmt::Display, expected: &str) -> Error {
    Error::InvalidArgument { parameter, value: value.to_string(), expected: expected.to_owned() }
}

/// Returns a pointer that must not be NULL: a handle or an output.
#[inline(always)]
pub(crate) fn given<T>(parameter: &'static str, pointer: Option<T>) -> Result<T> {
    pointer.ok_or_else(|| invalid(parameter, "NULL", "a pointer"))
}

/// Returns the handle behind a pointer that has no `const` in the header, because the call changes the object. Threads
/// share handles, so the reference is never exclusive.
///
/// # Safety
/// `handle` is `None`, or the handle is not freed during the call.
#[inline(always)]
pub(crate) unsafe fn shared<'a, T>(handle: Option<NonNull<T>>) -> Option<&'a T> {
    // SAFETY: the caller's promise.
    handle.map(|handle| unsafe { handle.as_ref() })
}

/// Writes a new handle to an output.
pub(crate) fn hand_out<T>(out: &mut MaybeUninit<Box<T>>, handle: T) {
    out.write(Box::new(handle));
}

/// A text for C. A NUL in it becomes U+FFFD.
pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

/// Reads a text that ends with a NUL.
///
/// # Safety
/// `text` is NULL or points to a NUL-terminated text that lives as long as the result is used.
pub(crate) unsafe fn text<'a>(parameter: &'static str, text: *const c_char) -> Result<&'a str> {
    if text.is_null() {
        return Err(invalid(parameter, "NULL", "a NUL-terminated text"));
    }
    // SAFETY: the caller's promise.
    utf8(parameter, unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// Reads a key: a text with a length. NULL of length 0 is no key.
///
/// # Safety
/// `key` is NULL or points to `len` bytes that live as long as the result is used.
#[inline(always)]
pub(crate) unsafe fn key<'a>(key: *const c_char, len: usize) -> Result<&'a str> {
    if len == 0 {
        return Ok("");
    }
    if key.is_null() {
        return Err(invalid("key", format_args!("NULL, of length {len}"), "a pointer, or length 0 for no key"));
    }
    // The key of a joint start may be longer, as the core checks: no other key with its first byte may.
    // SAFETY: there is a first byte.
    let most = if len > MAX_NAME_BYTES && unsafe { *key.cast::<u8>() } == JOINT { MAX_JOINT } else { MAX_NAME_BYTES };
    // SAFETY: the caller's promise.
    unsafe { sized_text("key", key, len, most) }
}

/// The first byte of joint keys.
const JOINT: u8 = 0xF4;

/// A longer text is no joint key.
const MAX_JOINT: usize = 4_096 * MAX_NAME_BYTES;

/// Reads a key, or `None` if NULL stands for the whole limit.
///
/// # Safety
/// `key` points to `len` bytes that live as long as the result is used.
pub(crate) unsafe fn key_or_limit<'a>(key: *const c_char, len: usize) -> Result<Option<&'a str>> {
    // SAFETY: the caller's promise.
    let text = unsafe { self::key(key, len) }?;
    Ok((!key.is_null()).then_some(text))
}

/// Reads a text with a length, of at most `most` bytes.
///
/// # Safety
/// `text` points to `len` bytes that live as long as the result is used.
#[inline(always)]
pub(crate) unsafe fn sized_text<'a>(
    parameter: &'static str,
    text: *const c_char,
    len: usize,
    most: usize,
) -> Result<&'a str> {
    // A wrong length, such as -1, is refused before anything is read.
    if len > most {
        return Err(invalid(parameter, format_args!("{len} bytes long"), &format!("at most {most} bytes of UTF-8")));
    }
    // SAFETY: the caller's promise.
    utf8(parameter, unsafe { slice::from_raw_parts(text.cast(), len) })
}

#[inline(always)]
fn utf8<'a>(parameter: &'static str, bytes: &'a [u8]) -> Result<&'a str> {
    str::from_utf8(bytes)
        .map_err(|e| invalid(parameter, format_args!("not UTF-8 from byte {} on", e.valid_up_to()), "a text in UTF-8"))
}

/// A structure that begins with its size, as the caller knows it. New fields are added only at its end, and 0 in them
/// keeps the old behaviour. So a program may be older or newer than this library.
///
/// # Safety
/// It is `repr(C)`, its first field is a `u32` with the structure's size, and any bytes, zeros too, are a value of it.
pub(crate) unsafe trait Sized32: Copy {
    const NAME: &'static str;
    /// Its size in the first release: `offset_of!` the first field that was added later, once there is one.
    const FIRST: usize = size_of::<Self>();
}

/// The most that such a structure can have: a larger size was not initialised.
const MAX_SIZE: usize = 4_096;

/// Returns the size of a caller's structure, in any version.
///
/// # Safety
/// `place` points to a structure of that kind, of this or of another version.
pub(crate) unsafe fn size_of_theirs<T: Sized32>(place: *const T) -> Result<usize> {
    if place.is_null() {
        return Err(invalid(T::NAME, "NULL", "a pointer"));
    }
    // SAFETY: every version begins with its size.
    let size = unsafe { place.cast::<u32>().read() } as usize;
    if (T::FIRST..=MAX_SIZE).contains(&size) {
        return Ok(size);
    }
    let expected = format!("at least {} bytes: initialise it with its WGL_…_INIT", T::FIRST);
    Err(invalid("struct_size", format_args!("{size} in {}", T::NAME), &expected))
}

/// Reads options. Fields that an older caller lacks are 0; fields of a newer caller that this version lacks must be 0.
///
/// # Safety
/// As for [`size_of_theirs`].
pub(crate) unsafe fn options<T: Sized32>(theirs: *const T) -> Result<T> {
    // SAFETY: the caller's promise, here and below.
    let size = unsafe { size_of_theirs(theirs) }?;
    let known = size.min(size_of::<T>());
    // SAFETY: the structure has that size, and the caller initialised all of it.
    let rest = unsafe { slice::from_raw_parts(theirs.cast::<u8>().add(known), size - known) };
    if rest.iter().any(|&byte| byte != 0) {
        let reason = format!("{} uses settings of a newer version than {}", T::NAME, env!("CARGO_PKG_VERSION"));
        return Err(Error::Unsupported { reason });
    }
    let mut mine = MaybeUninit::<T>::zeroed();
    // SAFETY: both have at least that many bytes, and any bytes are valid.
    unsafe {
        mine.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(theirs.cast(), known);
        Ok(mine.assume_init())
    }
}

/// Writes a result up to `struct_size`, the size of the caller's version that [`size_of_theirs`] returned. Later fields of
/// a newer version keep their initial values.
///
/// # Safety
/// `place` points to a structure of that kind and size.
pub(crate) unsafe fn answer<T: Sized32>(place: *mut T, struct_size: usize, answer: T) {
    let known = struct_size.min(size_of::<T>());
    // SAFETY: the caller's promise; ours has as many bytes.
    unsafe { place.cast::<u8>().copy_from_nonoverlapping((&raw const answer).cast(), known) }
}

/// Refuses values that later versions may define.
pub(crate) fn reserved(value: u32) -> Result<()> {
    if value == 0 { Ok(()) } else { Err(invalid("reserved", value, "0")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// A structure with a field that was added after its first release.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Grown {
        struct_size: u32,
        first: u32,
        later: u64,
    }

    // SAFETY: it begins with its size, and is numbers.
    unsafe impl Sized32 for Grown {
        const NAME: &'static str = "grown";
        const FIRST: usize = offset_of!(Grown, later);
    }

    fn grown(struct_size: u32) -> [Grown; 2] {
        [Grown { struct_size, first: 7, later: 8 }, Grown { struct_size: 0, first: 0, later: 0 }]
    }

    #[test]
    fn fields_that_an_older_program_lacks_are_zero() {
        // SAFETY: there are two of them, so the largest size is readable.
        let read = |theirs: [Grown; 2]| unsafe { options(theirs.as_ptr()) };
        assert_eq!(read(grown(8)).unwrap(), Grown { struct_size: 8, first: 7, later: 0 });
        assert_eq!(read(grown(16)).unwrap().later, 8);
        assert_eq!(read(grown(32)).unwrap().later, 8);
        assert!(read(grown(7)).unwrap_err().to_string().contains("struct_size is 7 in grown"));
        let mut newer = grown(32);
        newer[1].later = 1;
        assert!(read(newer).unwrap_err().to_string().contains("settings of a newer version"));
    }

    #[test]
    fn a_result_is_cut_to_the_size_of_the_caller() {
        for (size, later) in [(8, 8), (16, 9), (32, 9)] {
            let mut theirs = grown(size);
            // SAFETY: as above.
            unsafe { answer(theirs.as_mut_ptr(), size as usize, Grown { struct_size: size, first: 6, later: 9 }) };
            assert_eq!(theirs[0], Grown { struct_size: size, first: 6, later });
            assert_eq!(theirs[1], grown(0)[1]);
        }
    }
}
