//! Limiters that the program writes itself: a table of functions with the whole interface around it.

use crate::input::{Sized32, given, hand_out, options, reserved, text};
use crate::limiter::wgl_limiter;
use crate::status::{WGL_DENIED, WGL_OK, guard, wgl_status_name};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::{Custom, CustomLimiter, End, Error, Result, Verdict};

/// How a start ended: the job ran.
pub const WGL_END_COMPLETED: u32 = 0;
/// How a start ended: it never ran, as if it had never been admitted.
pub const WGL_END_CANCELLED: u32 = 1;
/// How a start ended: the job ran, and was worth `actual` units.
pub const WGL_END_SETTLED: u32 = 2;

/// A limiter of the program's own, as functions. Begin with WGL_CUSTOM_LIMITER_TABLE_INIT and give it a name, `decide`
/// and `peek`; the others may be NULL. It is read during the call of wgl_custom_limiter_new only.
///
/// Each function gets `context` first. Any thread may call it, and several may at once. It returns WGL_OK, or where a
/// denial is possible WGL_DENIED; anything else is a failure: whoever asked gets WGL_CUSTOM_FAILURE, and nothing is
/// charged anywhere. It may call this library, but not for a limiter that contains this one. It must return: no
/// longjmp, no C++ exception. Keys are not NULL, have no NUL behind them, and are good during the call only; length 0 is
/// no key. A forked child calls the same functions with its copy of the context.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_custom_limiter_table {
    /// sizeof(wgl_custom_limiter_table), as the INIT macro sets it.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// What the functions get. It has to be good until `free` is called.
    pub context: *mut c_void,
    /// What `denied_by` says: 1 to 1,024 bytes. Copied.
    pub name: *const c_char,
    /// Decides and records in one act; `weight` is at least 1. WGL_OK: start, and `start` is what `end` will get, 0
    /// unless it is written. WGL_DENIED: not now, but perhaps after `retry_after_ns`, 10 ms unless it is written; nothing
    /// has changed.
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
    /// What `decide` would answer. Records nothing.
    pub peek: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            key: *const c_char,
            key_len: usize,
            weight: u64,
            retry_after_ns: *mut u64,
        ) -> c_int,
    >,
    /// A start has ended, for which `decide` wrote that number: WGL_END_COMPLETED, _CANCELLED or _SETTLED; `actual` is 0
    /// but for the last. Called once for each permit that is ended, and for starts that a composite takes back.
    pub end: Option<unsafe extern "C" fn(context: *mut c_void, start: u64, how: u32, actual: u64) -> c_int>,
    /// Nobody starts for so long: a gate. Without a key it binds all keys.
    pub pause:
        Option<unsafe extern "C" fn(context: *mut c_void, key: *const c_char, key_len: usize, pause_ns: u64) -> c_int>,
    /// Back to the initial state; without a key, of all keys.
    pub clear: Option<unsafe extern "C" fn(context: *mut c_void, key: *const c_char, key_len: usize) -> c_int>,
    /// A job has started without asking.
    pub record_job_start:
        Option<unsafe extern "C" fn(context: *mut c_void, key: *const c_char, key_len: usize) -> c_int>,
    /// A job that started without asking has ended.
    pub record_job_completion:
        Option<unsafe extern "C" fn(context: *mut c_void, key: *const c_char, key_len: usize) -> c_int>,
    /// Nobody will call any of them again: called once, when the limiter and all composites that contain it are freed.
    pub free: Option<unsafe extern "C" fn(context: *mut c_void)>,
}

// SAFETY: it begins with its size; the functions are called only where the caller gives some.
unsafe impl Sized32 for wgl_custom_limiter_table {
    const NAME: &'static str = "custom limiter table";
}

/// Makes a limiter of the program's own. Composites take it as a child, and by itself it answers every call but those for
/// places and texts.
///
/// Fails with WGL_INVALID_ARGUMENT if the name, `decide` or `peek` is missing or wrong; `free` is not called then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_custom_limiter_new(
    table: *const wgl_custom_limiter_table,
    limiter: Option<&mut MaybeUninit<Box<wgl_limiter>>>,
) -> c_int {
    guard(|| {
        let place = given("limiter", limiter)?;
        // SAFETY: the caller's promise, here and below.
        let table = unsafe { options(table) }?;
        reserved(table.reserved)?;
        // SAFETY: as above.
        let name = unsafe { text("name", table.name) }?.to_owned();
        given("decide", table.decide)?;
        given("peek", table.peek)?;
        // Tried without `free` first: what is refused stays the caller's.
        CustomLimiter::new(Table { table: wgl_custom_limiter_table { free: None, ..table }, name: name.clone() })?;
        hand_out(place, wgl_limiter::new(Arc::new(CustomLimiter::new(Table { table, name })?), None));
        Ok(WGL_OK)
    })
}

/// What a denial says that says nothing.
const LOOK_AGAIN_NS: u64 = 10_000_000;

struct Table {
    table: wgl_custom_limiter_table,
    name: String,
}

// SAFETY: whoever makes a table promises that its functions may be called from any thread, and several at once.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Drop for Table {
    fn drop(&mut self) {
        if let Some(free) = self.table.free {
            // SAFETY: the table's promise; nobody refers to the context through it any more.
            unsafe { free(self.table.context) }
        }
    }
}

impl Table {
    /// Was it admitted?
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
        // SAFETY: it is a NUL-terminated text that lives for ever.
        let name = unsafe { CStr::from_ptr(wgl_status_name(status)) }.to_string_lossy();
        Error::Custom { limit: self.name.clone(), cause: format!("its {call} returned {status} ({name})") }
    }
}

/// A function that a table need not have.
macro_rules! call {
    ($self:ident . $function:ident ( $($argument:expr),* )) => {
        match $self.table.$function {
            None => Ok(()),
            Some(function) => {
                // SAFETY: the table's promise; keys are good during the call.
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
        let (mut start, mut after) = (0, LOOK_AGAIN_NS);
        // SAFETY: the table's promise; the key and the places for the answers are good during the call.
        let status =
            unsafe { decide(self.table.context, key.as_ptr().cast(), key.len(), weight, &mut start, &mut after) };
        let is_admitted = self.verdict("decide", status)?;
        Ok(if is_admitted { Verdict::Admitted(start) } else { Verdict::Denied(Duration::from_nanos(after)) })
    }

    fn peek(&self, key: &str, weight: u64) -> Result<Verdict> {
        let peek = given("peek", self.table.peek)?;
        let mut after = LOOK_AGAIN_NS;
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
