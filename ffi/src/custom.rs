//! Custom limiters: a table of the program's functions, with the whole interface around it.

use crate::input::{Sized32, given, hand_out, options, reserved, text};
use crate::limiter::wgl_limiter;
use crate::status::{WGL_DENIED, WGL_OK, guard, wgl_status_name};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::custom::{Custom, CustomLimiter, End, Verdict};
use workglow_limit::{Error, Result};

/// How a start ended: the job ran.
pub const WGL_END_COMPLETED: u32 = 0;
/// How a start ended: the job never ran.
pub const WGL_END_CANCELLED: u32 = 1;
/// How a start ended: the job ran, and was worth `actual` units.
pub const WGL_END_SETTLED: u32 = 2;

/// A custom limiter, as functions of the program. Begin with WGL_CUSTOM_LIMITER_TABLE_INIT and set `name`, `decide` and
/// `peek`; the others may be NULL. It is read only during the call of wgl_custom_limiter_new.
///
/// Each function gets `context` first. Any threads may call it, several at once. It returns WGL_OK or, where a denial is
/// possible, WGL_DENIED; any other value is a failure: the caller gets WGL_CUSTOM_FAILURE, and nothing is charged. It may call
/// this library, but not on a limiter that contains this one. It must return: no longjmp, no C++ exception. Keys are not
/// NULL, have no NUL at their end, and are valid only during the call; length 0 is no key. A forked child calls the same
/// functions with its copy of the context.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_custom_limiter_table {
    /// sizeof(wgl_custom_limiter_table), as the INIT macro sets it.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// The first argument of each function. It must be valid until `free` is called.
    pub context: *mut c_void,
    /// The name, for `denied_by`: 1 to 1,024 bytes. Copied.
    pub name: *const c_char,
    /// Decides and records in one act; `weight` is at least 1. WGL_OK: admitted; `end` will get the value of `start`, 0
    /// unless it is written. WGL_DENIED: not now, and nothing has changed; the caller may retry after `retry_after_ns`,
    /// 10 ms unless it is written.
    pub decide: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            key: *const c_char,
            key_len: usize,
            weight: u64,
            start: *mut u64,
            retry_after_ns: *mut u64,
        ) -> c_int,
    >,
    /// Returns what `decide` would return. Records nothing.
    pub peek: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            key: *const c_char,
            key_len: usize,
            weight: u64,
            retry_after_ns: *mut u64,
        ) -> c_int,
    >,
    /// Ends the start for which `decide` wrote that number: `how` is WGL_END_COMPLETED, _CANCELLED or _SETTLED, and `actual`
    /// is 0 except for the last. Called once for each permit that is ended, and for starts that a composite takes back.
    pub end: Option<unsafe extern "C" fn(context: *mut c_void, start: u64, how: u32, actual: u64) -> c_int>,
    /// Sets a gate: no start for `pause_ns`. Without a key it applies to all keys.
    pub pause:
        Option<unsafe extern "C" fn(context: *mut c_void, key: *const c_char, key_len: usize, pause_ns: u64) -> c_int>,
    /// Resets a key; without a key, all keys.
    pub clear: Option<unsafe extern "C" fn(context: *mut c_void, key: *const c_char, key_len: usize) -> c_int>,
    /// Records that a job has started without a decision.
    pub record_job_start:
        Option<unsafe extern "C" fn(context: *mut c_void, key: *const c_char, key_len: usize) -> c_int>,
    /// Records that a job which started without a decision has ended.
    pub record_job_completion:
        Option<unsafe extern "C" fn(context: *mut c_void, key: *const c_char, key_len: usize) -> c_int>,
    /// Called once, when the limiter and all composites that contain it are freed. No function is called after it.
    pub free: Option<unsafe extern "C" fn(context: *mut c_void)>,
}

// SAFETY: it begins with its size; only functions that the caller gives are called.
unsafe impl Sized32 for wgl_custom_limiter_table {
    const NAME: &'static str = "custom limiter table";
}

/// Makes a custom limiter. Composites take it as a child, and alone it supports every call except those for places and
/// texts.
///
/// Fails with WGL_INVALID_ARGUMENT if the name, `decide` or `peek` is missing or wrong; `free` is not called then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_custom_limiter_new(
    table: *const wgl_custom_limiter_table,
    limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>,
) -> c_int {
    guard(|| {
        let out = given("limiter", limiter)?;
        // SAFETY: the caller's promise, here and below.
        let table = unsafe { options(table) }?;
        reserved(table.reserved)?;
        // SAFETY: as above.
        let name = unsafe { text("name", table.name) }?.to_owned();
        given("decide", table.decide)?;
        given("peek", table.peek)?;
        // A first try without `free`: the caller keeps the context of a table that is refused.
        CustomLimiter::new(Table { table: wgl_custom_limiter_table { free: None, ..table }, name: name.clone() })?;
        hand_out(out, wgl_limiter::new(Arc::new(CustomLimiter::new(Table { table, name })?), None));
        Ok(WGL_OK)
    })
}

/// The `retry_after_ns` of a denial that writes none.
const RETRY_AFTER_NS: u64 = 10_000_000;

struct Table {
    table: wgl_custom_limiter_table,
    name: String,
}

// SAFETY: a table promises that any threads may call its functions, several at once.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Drop for Table {
    fn drop(&mut self) {
        if let Some(free) = self.table.free {
            // SAFETY: the table's promise; no other reference to the context remains.
            unsafe { free(self.table.context) }
        }
    }
}

impl Table {
    /// Returns whether the start was admitted.
    fn verdict(&self, call: &str, status: c_int) -> Result<bool> {
        match status {
            WGL_OK => Ok(true),
            WGL_DENIED => Ok(false),
            other => Err(self.failed(call, other)),
        }
    }

    fn done(&self, call: &str, status: c_int) -> Result<()> {
        if status == WGL_OK { Ok(()) } else { Err(self.failed(call, status)) }
    }

    #[cold]
    fn failed(&self, call: &str, status: c_int) -> Error {
        // SAFETY: the name is a static NUL-terminated text.
        let name = unsafe { CStr::from_ptr(wgl_status_name(status)) }.to_string_lossy();
        Error::Custom { limit: self.name.clone(), cause: format!("its {call} returned {status} ({name})").into() }
    }
}

/// Calls an optional function of a table.
macro_rules! call {
    ($self:ident . $function:ident ( $($argument:expr),* )) => {
        match $self.table.$function {
            None => Ok(()),
            Some(function) => {
                // SAFETY: the table's promise; keys are valid during the call.
                let status = unsafe { function($self.table.context, $($argument),*) };
                $self.done(stringify!($function), status)
            }
        }
    };
}

impl Custom for Table {
    fn name(&self) -> &str {
        &self.name
    }

    fn decide(&self, key: &str, weight: u64) -> Result<Verdict> {
        let decide = given("decide", self.table.decide)?;
        let (mut start, mut after) = (0, RETRY_AFTER_NS);
        // SAFETY: the table's promise; the key and the outputs are valid during the call.
        let status =
            unsafe { decide(self.table.context, key.as_ptr().cast(), key.len(), weight, &mut start, &mut after) };
        let is_admitted = self.verdict("decide", status)?;
        Ok(if is_admitted { Verdict::Admitted(start) } else { Verdict::Denied(Duration::from_nanos(after)) })
    }

    fn peek(&self, key: &str, weight: u64) -> Result<Verdict> {
        let peek = given("peek", self.table.peek)?;
        let mut after = RETRY_AFTER_NS;
        // SAFETY: as for `decide`.
        let status = unsafe { peek(self.table.context, key.as_ptr().cast(), key.len(), weight, &mut after) };
        let is_admitted = self.verdict("peek", status)?;
        Ok(if is_admitted { Verdict::Admitted(0) } else { Verdict::Denied(Duration::from_nanos(after)) })
    }

    fn end(&self, start: u64, end: End) -> Result<()> {
        let (how, actual) = match end {
            End::Completed => (WGL_END_COMPLETED, 0),
            End::Cancelled => (WGL_END_CANCELLED, 0),
            End::Settled(actual) => (WGL_END_SETTLED, actual),
        };
        call!(self.end(start, how, actual))
    }

    fn pause(&self, key: &str, pause: Duration) -> Result<()> {
        call!(self.pause(key.as_ptr().cast(), key.len(), crate::calls::ns(pause)))
    }

    fn clear(&self, key: &str) -> Result<()> {
        call!(self.clear(key.as_ptr().cast(), key.len()))
    }

    fn record_job_start(&self, key: &str) -> Result<()> {
        call!(self.record_job_start(key.as_ptr().cast(), key.len()))
    }

    fn record_job_completion(&self, key: &str) -> Result<()> {
        call!(self.record_job_completion(key.as_ptr().cast(), key.len()))
    }
}
