//! What C hands over, looked at before it is believed.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::{fmt, ptr, slice};
use workglow_limit::{Error, LONGEST_NAME, Result};

/// An error about a parameter.
pub(crate) fn invalid(parameter: &'static str, value: impl fmt::Display, expected: &str) -> Error {
    Error::InvalidArgument { parameter, value: value.to_string(), expected: expected.to_owned() }
}

/// A pointer that must not be NULL: to a handle, or to a place for an answer.
#[inline(always)]
pub(crate) fn given<T>(parameter: &'static str, pointer: Option<T>) -> Result<T> {
    pointer.ok_or_else(|| invalid(parameter, "NULL", "a pointer"))
}

/// Writes a new handle to where the caller wants it.
pub(crate) fn hand_out<T>(place: &mut MaybeUninit<Box<T>>, handle: T) {
    place.write(Box::new(handle));
}

/// A text that ends with a NUL.
///
/// # Safety
/// `text` is NULL or points to a NUL-terminated text that lives as long as the answer is used.
pub(crate) unsafe fn text<'a>(parameter: &'static str, text: *const c_char) -> Result<&'a str> {
    if text.is_null() {
        return Err(invalid(parameter, "NULL", "a NUL-terminated text"));
    }
    // SAFETY: the caller's promise.
    utf8(parameter, unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// A key: a text with a length. NULL of length 0 is no key.
///
/// # Safety
/// `key` is NULL or points to `len` bytes that live as long as the answer is used.
#[inline(always)]
pub(crate) unsafe fn key<'a>(key: *const c_char, len: usize) -> Result<&'a str> {
    if len == 0 {
        return Ok("");
    }
    if key.is_null() {
        return Err(invalid("key", format_args!("NULL, of length {len}"), "a pointer, or length 0 for no key"));
    }
    // SAFETY: the caller's promise.
    unsafe { sized_text("key", key, len, LONGEST_NAME) }
}

/// A text with a length, of at most so many bytes.
///
/// # Safety
/// `text` points to `len` bytes that live as long as the answer is used.
#[inline(always)]
pub(crate) unsafe fn sized_text<'a>(
    parameter: &'static str,
    text: *const c_char,
    len: usize,
    most: usize,
) -> Result<&'a str> {
    // A length that is not one (-1, say) is told before anything is read.
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

/// A structure that begins with its size, as the caller knows it. New fields are added at its end only.
///
/// # Safety
/// It is `repr(C)`, its first field is a `u32` with the structure's size, and any bytes are a value of it.
pub(crate) unsafe trait Sized32: Copy {
    const NAME: &'static str;
}

/// Nothing that begins with its size is larger than this: what says otherwise was not initialised.
const LARGEST: usize = 4_096;

/// The size that a caller's structure says it has: at least what this library needs.
///
/// # Safety
/// `place` points to a structure of that kind, of this or of another version.
pub(crate) unsafe fn size_of_theirs<T: Sized32>(place: *const T) -> Result<usize> {
    if place.is_null() {
        return Err(invalid(T::NAME, "NULL", "a pointer"));
    }
    // SAFETY: every version begins with its size.
    let size = unsafe { place.cast::<u32>().read() } as usize;
    if (size_of::<T>()..=LARGEST).contains(&size) {
        return Ok(size);
    }
    let expected = format!("at least {} bytes: initialise it with its WGL_…_INIT", size_of::<T>());
    Err(invalid("struct_size", format_args!("{size} in {}", T::NAME), &expected))
}

/// The options that a caller gives. If they are of a newer version, what this one does not know must be unused.
///
/// # Safety
/// As for [`size_of_theirs`].
pub(crate) unsafe fn options<T: Sized32>(theirs: *const T) -> Result<T> {
    // SAFETY: the caller's promise, here and below.
    let size = unsafe { size_of_theirs(theirs) }?;
    // SAFETY: the structure has that size, and what lies behind ours was initialised with it.
    let rest = unsafe { slice::from_raw_parts(theirs.add(1).cast::<u8>(), size - size_of::<T>()) };
    if rest.iter().any(|&byte| byte != 0) {
        let reason = format!("{} uses settings of a newer version than {}", T::NAME, env!("CARGO_PKG_VERSION"));
        return Err(Error::Unsupported { reason });
    }
    // SAFETY: it is at least that large, and any bytes will do.
    Ok(unsafe { ptr::read(theirs) })
}

/// Refuses what later versions may give a meaning to.
pub(crate) fn reserved(value: u32) -> Result<()> {
    if value == 0 { Ok(()) } else { Err(invalid("reserved", value, "0")) }
}
