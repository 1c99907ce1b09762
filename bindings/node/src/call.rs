//! The closure of a limiter, through which JavaScript calls it.
//!
//! A call from JavaScript into an addon costs 30–40 ns, and every argument and result that crosses with it about as
//! much as a decision. So nothing crosses: arguments and answers lie in one buffer that both sides see, and the closure
//! takes and returns nothing. `lib/native.ts` knows the same layout and the same numbers.

use crate::text;
use napi::bindgen_prelude::{ArrayBuffer, FromNapiValue, Function};
use napi::{Env, JsValue, Status, sys};
use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{CString, c_void};
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use workglow_limit::{
    Attempt, Decision, Error, Joined, Limiter, Line, Outcome, Presented, RawPermit, Reserved, Waiter, WaiterId,
    from_unix_ns, unix_ns,
};

/// Room for a key: what JavaScript has in 1,024 characters, at most 3 bytes each. The text of a permit is shorter.
const KEY_BYTES: usize = 3 * 1_024;

/// What both sides see.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Shared {
    /// In: what to do, one of the numbers of [`Data::call`].
    operation: i32,
    /// Out: 1 admitted (started, yes), 0 denied (not yet, no), 2 sleep, 3 expired.
    status: i32,
    /// In: the length in `text`, in bytes, of a key or of a permit's text. Out, of a permit's text; or of a decision,
    /// that of the name that denied; -1: this limiter's.
    text_length: i32,
    /// In: of a waiter; lower numbers start first.
    priority: i32,
    /// In: of a start, or what it was worth in the end.
    weight: f64,
    /// In: a duration in ms, negative for none; or an instant in ms since the Unix epoch. Out: such an instant.
    time: f64,
    /// Out, in µs, as the next two.
    retry_after: f64,
    suggested_after: f64,
    reset_after: f64,
    /// Out: infinite for none, as the next.
    remaining: f64,
    limit: f64,
    /// In: a duration in ms, negative for the default.
    grace: f64,
    /// In and out: which waiter.
    waiter: f64,
    /// Out: in how many ms the line has to be advanced; negative: it is empty.
    due: f64,
    /// Out: an instant on the monotonic clock, in ns, 0 for none; or a lease's fence.
    large: u64,
    permit: [u64; 8],
    text: [u8; KEY_BYTES],
}

// `lib/native.ts` counts on it.
const _: () = assert!(offset_of!(Shared, weight) == 16 && offset_of!(Shared, large) == 96);
const _: () = assert!(offset_of!(Shared, permit) == 104 && offset_of!(Shared, text) == 168);

impl Shared {
    fn put_text(&mut self, text: &str) {
        let text = &text.as_bytes()[..text.len().min(KEY_BYTES)];
        self.text[..text.len()].copy_from_slice(text);
        self.text_length = text.len() as i32;
    }
}

/// What a closure holds.
struct Data {
    limiter: Arc<dyn Limiter>,
    /// May JavaScript run in the middle of a call, and make calls of its own?
    may_call_back: bool,
    shared: *mut Shared,
    /// Keeps the buffer.
    buffer: sys::napi_ref,
    /// Those in this environment who wait. `lib/waiting.ts` asks for nothing of it while it is at work.
    line: RefCell<Line>,
    /// Whose wait is over, and who have not been told yet.
    over: RefCell<VecDeque<(WaiterId, Outcome)>>,
}

/// Makes the closure.
pub fn bind<'env>(
    env: &'env Env,
    limiter: Arc<dyn Limiter>,
    may_call_back: bool,
    buffer: &ArrayBuffer<'env>,
) -> napi::Result<Function<'env, (), ()>> {
    let shared = buffer.as_ptr() as *mut Shared;
    if buffer.len() < size_of::<Shared>() || !shared.is_aligned() {
        return Err(napi::Error::from_reason("the buffer of calls is too small, or not aligned"));
    }
    let mut reference = ptr::null_mut();
    // SAFETY: the environment and the value are alive for the duration of this call, as in all that follow.
    check(unsafe { sys::napi_create_reference(env.raw(), buffer.raw(), 1, &mut reference) })?;
    let data = Box::into_raw(Box::new(Data {
        line: RefCell::new(Line::new(limiter.clone())),
        over: RefCell::default(),
        limiter,
        may_call_back,
        shared,
        buffer: reference,
    }));
    let mut function = ptr::null_mut();
    // SAFETY: no name, and data that live until the finalizer of the function itself. Should that one not be
    // accepted, they are leaked.
    unsafe {
        check(sys::napi_create_function(env.raw(), ptr::null(), 0, Some(enter), data.cast(), &mut function))?;
        check(sys::napi_add_finalizer(
            env.raw(),
            function,
            data.cast(),
            Some(finalize),
            ptr::null_mut(),
            ptr::null_mut(),
        ))?;
        Function::from_napi_value(env.raw(), function)
    }
}

fn check(status: sys::napi_status) -> napi::Result<()> {
    match Status::from(status) {
        Status::Ok => Ok(()),
        other => Err(napi::Error::new(other, "making the closure of a limiter")),
    }
}

unsafe extern "C" fn finalize(env: sys::napi_env, data: *mut c_void, _hint: *mut c_void) {
    // SAFETY: the box of `bind`; the function that used it is gone.
    let data = unsafe { Box::from_raw(data.cast::<Data>()) };
    // SAFETY: the reference of `bind`, deleted once.
    unsafe { sys::napi_delete_reference(env, data.buffer) };
}

/// What Node calls. An error is thrown; the message is taken apart by `lib/errors.ts`.
unsafe extern "C" fn enter(env: sys::napi_env, info: sys::napi_callback_info) -> sys::napi_value {
    let mut data = ptr::null_mut();
    // SAFETY: Node's own environment and info; what is not wanted is null.
    unsafe {
        sys::napi_get_cb_info(env, info, ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), &mut data);
    }
    // SAFETY: the box of `bind`, alive as long as the function that is being called.
    let data = unsafe { &*data.cast::<Data>() };
    let answered = if data.may_call_back {
        // With a copy, because calls from within the call use the same buffer. What they did is then written over.
        // SAFETY: as below, but that JavaScript may run between the reading and the writing, when nothing refers there.
        let mut own = unsafe { data.shared.read() };
        let answered = catch_unwind(AssertUnwindSafe(|| data.call(&mut own)));
        // SAFETY: as above.
        unsafe { data.shared.write(own) };
        answered
    } else {
        // SAFETY: the buffer is referenced, large enough and aligned, every bit pattern is good, and JavaScript stands
        // still until this returns: the core calls none. The package shows the buffer to nobody, who could detach it.
        let shared = unsafe { &mut *data.shared };
        catch_unwind(AssertUnwindSafe(|| data.call(shared)))
    };
    let message = match answered {
        Ok(Ok(())) => return ptr::null_mut(),
        Ok(Err(error)) => text(&error),
        Err(panic) => panic_text(&*panic),
    };
    let message = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
    // SAFETY: a string that ends in NUL and is copied.
    unsafe { sys::napi_throw_error(env, ptr::null(), message.as_ptr()) };
    ptr::null_mut()
}

#[cold]
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let what = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    format!("workglow-limit has a bug: {}", what.unwrap_or("it panicked"))
}

impl Data {
    /// One call. The numbers are those of `Op` in `lib/native.ts`.
    #[inline(always)]
    fn call(&self, shared: &mut Shared) -> Result<(), Error> {
        let limiter = &*self.limiter;
        let length = usize::try_from(shared.text_length).unwrap_or(0).min(KEY_BYTES);
        let key = str::from_utf8(&shared.text[..length]).map_err(|_| not_text())?;
        // Saturates: what is too large is more than any limit grants.
        let weight = shared.weight as u64;
        match shared.operation {
            0 => {
                let attempt = limiter.attempt(key, weight)?;
                shared.status = i32::from(matches!(attempt, Attempt::Admitted(_)));
                match attempt {
                    Attempt::Admitted(permit) => shared.permit = permit.to_words(),
                    Attempt::Denied(after) => shared.retry_after = us(after),
                }
            }
            1 => limiter.complete(&RawPermit::from_words(shared.permit))?,
            2 => {
                let decision = limiter.decide(key, weight)?;
                self.tell(shared, decision);
            }
            3 => {
                let decision = limiter.peek(key, weight)?;
                self.tell(shared, decision);
            }
            4 | 18 => {
                let waiter = match shared.operation {
                    4 => Waiter::new(key, weight).priority(shared.priority),
                    _ => Waiter::with_place(RawPermit::from_words(shared.permit)),
                };
                let joined = self.line.borrow_mut().join(waiter.timeout(given(shared.time)))?;
                self.joined(shared, joined)?;
            }
            5 => {
                let mut line = self.line.borrow_mut();
                line.leave(shared.waiter as WaiterId);
                shared.due = due(line.next());
            }
            6 => shared.status = i32::from(limiter.can_proceed(key)?),
            7 => limiter.record_job_start(key)?,
            8 => limiter.record_job_completion(key)?,
            9 => shared.time = ms_up(limiter.next_available_time(key)?),
            // A date is at most 8.64e15 ms; what does not fit into nanoseconds saturates and is too far for the core.
            10 => limiter.set_next_available_time(key, from_unix_ns((shared.time * 1e6) as i64))?,
            11 => limiter.pause(key, crate::milliseconds(shared.time))?,
            12 => limiter.clear(key)?,
            13 => {
                let permit = RawPermit::from_words(shared.permit);
                shared.time = limiter.ready_at(&permit).map_or(f64::NAN, ms_up);
                shared.retry_after = us(limiter.ready_in(&permit).unwrap_or_default());
                shared.large = limiter.ready_at_monotonic_ns(&permit).unwrap_or(0);
            }
            14 => limiter.cancel(&RawPermit::from_words(shared.permit))?,
            15 => limiter.settle(&RawPermit::from_words(shared.permit), weight)?,
            16 => {
                let reserved = limiter.reserve(key, weight, given(shared.time), given(shared.grace))?;
                shared.status = i32::from(matches!(reserved, Reserved::Place { .. }));
                if let Reserved::Place { place, .. } = reserved {
                    shared.permit = place.to_words();
                }
            }
            17 => {
                let presented = limiter.present(&RawPermit::from_words(shared.permit))?;
                let (status, permit, after) = match presented {
                    Presented::Started(permit) => (1, permit, Duration::ZERO),
                    Presented::Wait { place, after } => (0, place, after),
                };
                shared.status = status;
                shared.permit = permit.to_words();
                shared.retry_after = us(after);
            }
            19 => shared.put_text(&limiter.to_text(&RawPermit::from_words(shared.permit))?),
            20 => shared.permit = limiter.permit_from_text(key)?.to_words(),
            21 => limiter.renew(&RawPermit::from_words(shared.permit))?,
            22 => {
                let fence = limiter.fence(&RawPermit::from_words(shared.permit));
                shared.status = i32::from(fence.is_some());
                shared.large = fence.unwrap_or(0);
            }
            23 => limiter.cancel_place(&RawPermit::from_words(shared.permit))?,
            24 => {
                let window = limiter.window()?;
                shared.status = i32::from(window.is_some());
                shared.retry_after = us(window.unwrap_or_default());
            }
            25 => self.advance(shared),
            26 => self.take(shared)?,
            27 | 28 => {
                self.line.borrow_mut().wake((shared.operation == 27).then_some(key));
                self.advance(shared);
            }
            other => return Err(Error::Unsupported { reason: format!("the addon knows no operation {other}") }),
        }
        Ok(())
    }

    fn joined(&self, shared: &mut Shared, joined: Joined) -> Result<(), Error> {
        shared.due = due(self.line.borrow().next());
        match joined {
            Joined::Done(outcome) => self.end(shared, outcome)?,
            Joined::Waiting(id) => {
                shared.status = 2;
                shared.waiter = id as f64;
            }
        }
        Ok(())
    }

    /// Does what is due.
    fn advance(&self, shared: &mut Shared) {
        let mut over = Vec::new();
        shared.due = due(self.line.borrow_mut().advance(&mut over));
        self.over.borrow_mut().extend(over);
    }

    /// One waiter whose wait is over, or none.
    fn take(&self, shared: &mut Shared) -> Result<(), Error> {
        let Some((id, outcome)) = self.over.borrow_mut().pop_front() else {
            shared.status = 0;
            return Ok(());
        };
        shared.waiter = id as f64;
        self.end(shared, outcome)
    }

    fn end(&self, shared: &mut Shared, outcome: Outcome) -> Result<(), Error> {
        match outcome {
            Outcome::Admitted(permit) => {
                shared.status = 1;
                shared.permit = permit.to_words();
            }
            Outcome::Expired(after) => {
                shared.status = 3;
                shared.retry_after = us(after);
            }
            Outcome::Failed(error) => return Err(error),
        }
        Ok(())
    }

    fn tell(&self, shared: &mut Shared, decision: Decision) {
        shared.status = i32::from(decision.admitted);
        shared.retry_after = us(decision.retry_after);
        shared.suggested_after = us(decision.suggested_after);
        shared.reset_after = us(decision.reset_after);
        shared.remaining = units(decision.remaining);
        shared.limit = units(decision.limit);
        shared.permit = decision.permit.map_or([0; 8], RawPermit::to_words);
        shared.text_length = -1;
        if let Some(name) = decision.denied_by.as_deref()
            && name != self.limiter.name()
        {
            shared.put_text(name);
        }
    }
}

#[cold]
fn not_text() -> Error {
    Error::InvalidArgument { parameter: "key", value: "not UTF-8".into(), expected: "text".into() }
}

/// A duration in ms, `None` if it is negative.
fn given(ms: f64) -> Option<Duration> {
    (ms >= 0.0).then(|| crate::milliseconds(ms))
}

/// In ms; negative for none.
fn due(next: Option<Duration>) -> f64 {
    next.map_or(-1.0, |next| us(next) / 1e3)
}

fn us(duration: Duration) -> f64 {
    duration.as_micros() as f64
}

fn units(n: u64) -> f64 {
    if n == u64::MAX { f64::INFINITY } else { n as f64 }
}

/// An instant in ms since the Unix epoch, rounded up: a date is never too early.
fn ms_up(at: SystemTime) -> f64 {
    (unix_ns(at) as f64 / 1e6).ceil()
}
