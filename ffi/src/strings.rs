//! Lists of texts.

use crate::input::c_text;
use crate::status::{WGL_OK, guard};
use std::ffi::{CString, c_char};
use std::ptr;

/// A list of texts, such as the names of a store's limits.
///
/// The caller owns it and frees it with wgl_strings_free, at any time: it depends on no other handle. It never changes, so
/// any number of threads may read it. A forked child has a copy.
pub struct wgl_strings(Vec<CString>);

impl wgl_strings {
    pub(crate) fn new(texts: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        wgl_strings(texts.into_iter().map(|text| c_text(text.as_ref())).collect())
    }
}

/// Returns the number of texts. 0 for NULL.
///
/// Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_strings_count(strings: Option<&wgl_strings>) -> usize {
    strings.map_or(0, |strings| strings.0.len())
}

/// Returns the text at an index, from 0 on. It lives as long as the list.
///
/// Never fails: NULL if there is no such text.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_strings_get(strings: Option<&wgl_strings>, index: usize) -> *const c_char {
    strings.and_then(|strings| strings.0.get(index)).map_or(ptr::null(), |text| text.as_ptr())
}

/// Frees a list. NULL is a no-op.
///
/// Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_strings_free(strings: Option<Box<wgl_strings>>) {
    guard(|| {
        drop(strings);
        Ok(WGL_OK)
    });
}
