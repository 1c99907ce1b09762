//! What C hands over, looked at before it is believed.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::{fmt, slice};
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

/// The key that is meant, or with NULL all of a limit.
///
/// # Safety
/// `key` points to `len` bytes that live as long as the answer is used.
pub(crate) unsafe fn key_or_limit<'a>(key: *const c_char, len: usize) -> Result<Option<&'a str>> {
    // SAFETY: the caller's promise.
    let text = unsafe { self::key(key, len) }?;
    Ok((!key.is_null()).then_some(text))
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

/// A structure that begins with its size, as the caller knows it. New fields are added at its end only, and mean the same
/// as before where they are 0: so programs may be older than this library, and newer.
///
/// # Safety
/// It is `repr(C)`, its first field is a `u32` with the structure's size, and any bytes, zeros too, are a value of it.
pub(crate) unsafe trait Sized32: Copy {
    const NAME: &'static str;
    /// Its size in the first release: `offset_of!` the first field that was added since, once there is one.
    const FIRST: usize = size_of::<Self>();
}

/// Nothing that begins with its size is larger than this: what says otherwise was not initialised.
const LARGEST: usize = 4_096;

/// The size that a caller's structure says it has: that of any version.
///
/// # Safety
/// `place` points to a structure of that kind, of this or of another version.
pub(crate) unsafe fn size_of_theirs<T: Sized32>(place: *const T) -> Result<usize> {
    if place.is_null() {
        return Err(invalid(T::NAME, "NULL", "a pointer"));
    }
    // SAFETY: every version begins with its size.
    let size = unsafe { place.cast::<u32>().read() } as usize;
    if (T::FIRST..=LARGEST).contains(&size) {
        return Ok(size);
    }
    let expected = format!("at least {} bytes: initialise it with its WGL_…_INIT", T::FIRST);
    Err(invalid("struct_size", format_args!("{size} in {}", T::NAME), &expected))
}

/// The options that a caller gives. If they are of an older version, what they do not have yet is 0; if they are of a
/// newer one, what this one does not know must be unused.
///
/// # Safety
/// As for [`size_of_theirs`].
pub(crate) unsafe fn options<T: Sized32>(theirs: *const T) -> Result<T> {
    // SAFETY: the caller's promise, here and below.
    let size = unsafe { size_of_theirs(theirs) }?;
    let known = size.min(size_of::<T>());
    // SAFETY: the structure has that size, and what lies behind ours was initialised with it.
    let rest = unsafe { slice::from_raw_parts(theirs.cast::<u8>().add(known), size - known) };
    if rest.iter().any(|&byte| byte != 0) {
        let reason = format!("{} uses settings of a newer version than {}", T::NAME, env!("CARGO_PKG_VERSION"));
        return Err(Error::Unsupported { reason });
    }
    let mut mine = MaybeUninit::<T>::zeroed();
    // SAFETY: both have at least that many bytes, and any bytes will do.
    unsafe {
        mine.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(theirs.cast(), known);
        Ok(mine.assume_init())
    }
}

/// Writes an answer: as much of it as the caller's version has, which is `struct_size`, as [`size_of_theirs`] told. What
/// a newer version has behind it stays as it was initialised.
///
/// # Safety
/// `place` points to a structure of that kind and size.
pub(crate) unsafe fn answer<T: Sized32>(place: *mut T, struct_size: usize, answer: T) {
    let known = struct_size.min(size_of::<T>());
    // SAFETY: the caller's promise; ours has as many bytes.
    unsafe { place.cast::<u8>().copy_from_nonoverlapping((&raw const answer).cast(), known) }
}

/// Refuses what later versions may give a meaning to.
pub(crate) fn reserved(value: u32) -> Result<()> {
    if value == 0 { Ok(()) } else { Err(invalid("reserved", value, "0")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// A structure that got a field after its first release.
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
    fn options_of_an_older_program_lack_what_came_later() {
        // SAFETY: there are two of them, so that all the sizes that are said are there.
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
    fn an_answer_is_cut_to_what_the_caller_knows() {
        for (size, later) in [(8, 8), (16, 9), (32, 9)] {
            let mut theirs = grown(size);
            // SAFETY: as above.
            unsafe { answer(theirs.as_mut_ptr(), size as usize, Grown { struct_size: size, first: 6, later: 9 }) };
            assert_eq!(theirs[0], Grown { struct_size: size, first: 6, later });
            assert_eq!(theirs[1], grown(0)[1]);
        }
    }
}
