//! The closure of a limiter, through which JavaScript calls it.
//!
//! A call from JavaScript into an addon costs about 10 ns, and every argument and result that crosses with it as much
//! again. So nothing crosses: arguments and answers lie in one buffer that both sides see, and the closure
//! takes and returns nothing. `lib/native.ts` knows the same layout and the same numbers.

use crate::hooks::Told;
use crate::{pooled, text};
use napi::bindgen_prelude::{ArrayBuffer, AsyncTask, Buffer, External, FromNapiValue, Function, ToNapiValue};
use napi::{Env, JsValue, Status, Task, sys};
use std::any::Any;
use std::collections::VecDeque;
use std::ffi::{CString, c_void};
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};
use workglow_limit::{
    Attempt, Decision, Error, Joined, Limiter, Line, MayWait, Outcome, Presented, RawPermit, Reserved, Seat, Waiter,
    WaiterId, from_unix_ns, unix_ns,
};

/// Room for a key: what JavaScript has in 1,024 characters, at most 3 bytes each. The text of a permit is shorter.
const KEY_BYTES: usize = 3 * 1_024;

/// Added to an operation that must not wait for the store here: the closure answers what [`work`] does on the thread pool.
const LATER: i32 = 1 << 8;

/// Added to an operation that has to be done here, though it may have to ask a server: with what is written in JavaScript.
const HERE: i32 = 1 << 9;

/// Who has waited so long for a thread does not wait for the store as well.
const QUEUED: Duration = Duration::from_secs(1);

/// What both sides see.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Shared {
    /// In: what to do, one of the numbers of [`Core::call`], and perhaps [`LATER`]. Out: 1 if hooks were told something.
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
    /// Is it a line that is asked to do what is due?
    fn is_advancing(&self) -> bool {
        matches!(self.operation, 25 | 27 | 28 | 30)
    }

    fn put_text(&mut self, text: &str) {
        let text = &text.as_bytes()[..text.len().min(KEY_BYTES)];
        self.text[..text.len()].copy_from_slice(text);
        self.text_length = text.len() as i32;
    }
}

/// What a closure holds.
struct Data {
    core: Arc<Core>,
    /// May JavaScript run in the middle of a call, and make calls of its own?
    may_call_back: bool,
    shared: *mut Shared,
    told: Arc<Told>,
    /// Keeps the buffer.
    buffer: sys::napi_ref,
}

/// The part of it that the thread pool needs, too.
struct Core {
    limiter: Arc<dyn Limiter>,
    line: Mutex<Waiting>,
    /// A thread of the pool looks after its stores.
    is_looked_after: AtomicBool,
}

/// Those in this environment who wait. `lib/waiting.ts` asks for nothing of it while it is at work.
struct Waiting {
    line: Line,
    /// Whose wait is over, and who have not been told yet.
    over: VecDeque<(WaiterId, Outcome)>,
}

/// Makes the closure.
pub fn bind<'env>(
    env: &'env Env,
    limiter: Arc<dyn Limiter>,
    may_call_back: bool,
    buffer: &ArrayBuffer<'env>,
    told: &Arc<Told>,
) -> napi::Result<Function<'env, (), ()>> {
    let shared = buffer.as_ptr() as *mut Shared;
    if buffer.len() < size_of::<Shared>() || !shared.is_aligned() {
        return Err(napi::Error::from_reason("the buffer of calls is too small, or not aligned"));
    }
    let mut reference = ptr::null_mut();
    // SAFETY: the environment and the value are alive for the duration of this call, as in all that follow.
    check(unsafe { sys::napi_create_reference(env.raw(), buffer.raw(), 1, &mut reference) })?;
    let line = Mutex::new(Waiting { line: Line::new(limiter.clone()), over: VecDeque::new() });
    let core = Arc::new(Core { limiter, line, is_looked_after: AtomicBool::new(false) });
    let data = Box::into_raw(Box::new(Data { core, may_call_back, shared, told: told.clone(), buffer: reference }));
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
        let answered = catch_unwind(AssertUnwindSafe(|| data.core.enter(&mut own)));
        // SAFETY: as above.
        unsafe { data.shared.write(own) };
        answered
    } else {
        // SAFETY: the buffer is referenced, large enough and aligned, every bit pattern is good, and JavaScript stands
        // still until this returns: the core calls none. The package shows the buffer to nobody, who could detach it.
        let shared = unsafe { &mut *data.shared };
        catch_unwind(AssertUnwindSafe(|| data.core.enter(shared)))
    };
    // SAFETY: as above; nothing refers there any more.
    unsafe { (*data.shared).operation = i32::from(data.told.is_any()) };
    if data.core.limiter.is_due() {
        // SAFETY: Node's own environment, as above.
        unsafe { data.core.look_after(env) };
    }
    let message = match answered {
        Ok(Ok(None)) => return ptr::null_mut(),
        Ok(Ok(Some(later))) => {
            // SAFETY: as above. Without a value JavaScript takes it for an answer, and finds that nobody was admitted.
            return unsafe { External::to_napi_value(env, External::new(later)) }.unwrap_or(ptr::null_mut());
        }
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

/// A call that has to wait for the store.
pub struct Later {
    core: Arc<Core>,
    /// As it was when the call was made: one that would have to wait has changed nothing. In a box, because answers are moved, and
    /// to move this one would take as long as a decision.
    shared: Box<Shared>,
    asked: Instant,
}

/// Makes such a call on the thread pool, and gives what lies in the buffer after it.
pub struct Working(Arc<Core>, Box<Shared>, Instant);

impl Working {
    pub fn new(later: &Later) -> Working {
        Working(later.core.clone(), later.shared.clone(), later.asked)
    }
}

impl Task for Working {
    type Output = ();
    type JsValue = Buffer;

    fn compute(&mut self) -> napi::Result<()> {
        let Working(core, shared, asked) = self;
        let may = if asked.elapsed() < QUEUED { MayWait::UntilTimeout } else { MayWait::Briefly };
        pooled(may, || match core.call(shared) {
            // A line that has waited for a while lets others ask, and says when it comes again.
            Err(Error::WouldWait) if shared.is_advancing() => Ok(()),
            answer => answer,
        })
    }

    fn resolve(&mut self, _: Env, (): ()) -> napi::Result<Buffer> {
        let shared: *const Shared = &*self.1;
        // SAFETY: as many bytes as it has; there is no padding between its fields, as their offsets show.
        Ok(unsafe { slice::from_raw_parts(shared.cast::<u8>(), size_of::<Shared>()) }.to_vec().into())
    }
}

/// What decisions left to who may wait.
struct LookingAfter(Arc<Core>);

impl Task for LookingAfter {
    type Output = ();
    type JsValue = ();

    fn compute(&mut self) -> napi::Result<()> {
        let looked = pooled(MayWait::UntilTimeout, || {
            self.0.limiter.look_after();
            Ok(())
        });
        // Here, as a loop of synchronous calls keeps the event loop from hearing of it.
        self.0.is_looked_after.store(false, Relaxed);
        looked
    }

    fn resolve(&mut self, _: Env, (): ()) -> napi::Result<()> {
        Ok(())
    }
}

impl Core {
    /// One call, or what is left of it for the thread pool.
    #[inline(always)]
    fn enter(self: &Arc<Core>, shared: &mut Shared) -> Result<Option<Later>, Error> {
        if shared.operation & (LATER | HERE) == 0 {
            return self.call(shared).map(|()| None);
        }
        let is_later = shared.operation & LATER != 0;
        shared.operation &= !(LATER | HERE);
        if !is_later {
            return MayWait::Briefly.during(|| self.call(shared)).map(|()| None);
        }
        // A place that could not be given back would be lost.
        let is_to_wait = shared.operation == 30;
        match if is_to_wait { Err(Error::WouldWait) } else { MayWait::Never.during(|| self.call(shared)) } {
            Err(Error::WouldWait) => {
                Ok(Some(Later { core: self.clone(), shared: Box::new(*shared), asked: Instant::now() }))
            }
            answer => answer.map(|()| None),
        }
    }

    /// Sends what is due to the thread pool, once at a time.
    ///
    /// # Safety
    /// The environment is that of the calling thread.
    #[cold]
    unsafe fn look_after(self: &Arc<Core>, env: sys::napi_env) {
        if self.is_looked_after.swap(true, Relaxed) {
            return;
        }
        // SAFETY: as the caller promised. Nobody needs the promise.
        let sent = unsafe { AsyncTask::to_napi_value(env, AsyncTask::new(LookingAfter(self.clone()))) };
        if sent.is_err() {
            self.is_looked_after.store(false, Relaxed); // The environment ends. It stays due.
        }
    }

    /// The line. `lib/waiting.ts` sees to it that nobody else has it.
    fn waiting(&self) -> Result<MutexGuard<'_, Waiting>, Error> {
        let reason = || Error::Unsupported { reason: "a call of a line while another one is at work on it".to_owned() };
        self.line.try_lock().map_err(|_| reason())
    }

    /// One call. The numbers are those of `Op` in `lib/native.ts`.
    #[inline(always)]
    fn call(&self, shared: &mut Shared) -> Result<(), Error> {
        let limiter = &*self.limiter;
        let key = match usize::try_from(shared.text_length).unwrap_or(0).min(KEY_BYTES) {
            0 => "",
            length => str::from_utf8(&shared.text[..length]).map_err(|_| not_text())?,
        };
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
                    4 => Waiter::new(key, weight)
                        .priority(shared.priority)
                        .grace(given(shared.grace).unwrap_or_default()),
                    _ => Waiter::with_place(RawPermit::from_words(shared.permit)),
                };
                let line = &mut self.waiting()?.line;
                let joined = line.join(waiter.timeout(given(shared.time)))?;
                shared.due = due(line.next());
                match joined {
                    Joined::Done(outcome) => end(shared, outcome)?,
                    Joined::Waiting(id) => {
                        shared.status = 2;
                        shared.waiter = id as f64;
                    }
                }
            }
            5 => {
                let line = &mut self.waiting()?.line;
                line.leave(shared.waiter as WaiterId);
                shared.due = due(line.next());
                if line.would_wait() {
                    return Err(Error::WouldWait); // What it held goes back with the next pass.
                }
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
                let window = limiter.window(key)?;
                shared.status = i32::from(window.is_some());
                shared.retry_after = us(window.unwrap_or_default());
            }
            25 | 27 | 28 => {
                let Waiting { line, over } = &mut *self.waiting()?;
                if shared.operation != 25 {
                    line.wake((shared.operation == 27).then_some(key));
                }
                advance(line, over, shared)?;
            }
            26 => match self.waiting()?.over.pop_front() {
                None => shared.status = 0,
                Some((id, outcome)) => {
                    shared.waiter = id as f64;
                    end(shared, outcome)?;
                }
            },
            // With a place that it brought, which has to be given back.
            30 => {
                let Waiting { line, over } = &mut *self.waiting()?;
                line.leave(shared.waiter as WaiterId);
                advance(line, over, shared)?;
            }
            // A composite may answer with a place, which only a line knows what to do with.
            29 => {
                let mut seat = Seat::new(Waiter::new(key, weight).grace(given(shared.grace).unwrap_or_default()));
                let started = if limiter.depth() == 0 { seat.start_at_once(limiter)? } else { None };
                shared.status = i32::from(started.is_some());
                if let Some(permit) = started {
                    shared.permit = permit.to_words();
                }
            }
            other => return Err(Error::Unsupported { reason: format!("the addon knows no operation {other}") }),
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

/// Does what is due.
fn advance(line: &mut Line, over: &mut VecDeque<(WaiterId, Outcome)>, shared: &mut Shared) -> Result<(), Error> {
    let mut ended = Vec::new();
    shared.due = due(line.advance(&mut ended));
    over.extend(ended);
    if line.would_wait() { Err(Error::WouldWait) } else { Ok(()) }
}

/// How a wait ended.
fn end(shared: &mut Shared, outcome: Outcome) -> Result<(), Error> {
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

/// They fit into 64 bits, of which a float is made in one instruction.
fn us(duration: Duration) -> f64 {
    duration.as_micros() as u64 as f64
}

fn units(n: u64) -> f64 {
    if n == u64::MAX { f64::INFINITY } else { n as f64 }
}

/// An instant in ms since the Unix epoch, rounded up: a date is never too early.
fn ms_up(at: SystemTime) -> f64 {
    (unix_ns(at) as f64 / 1e6).ceil()
}
