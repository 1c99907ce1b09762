//! The closure of a limiter, through which JavaScript calls it.
//!
//! A call from JavaScript into an addon costs about 10 ns, and each argument and result costs about as much again. So the
//! closure takes and returns nothing: arguments and results are in one buffer that both sides see (`layout.rs`).

use crate::hooks::EventQueue;
use crate::layout::{CallBuffer, HERE, LATER, OWN_NAME, Operation, Status, TEXT_BYTES};
use crate::{pooled, text};
use napi::bindgen_prelude::{ArrayBuffer, AsyncTask, Buffer, External, FromNapiValue, Function, ToNapiValue};
use napi::{Env, JsValue, Task, sys};
use std::any::Any;
use std::collections::VecDeque;
use std::ffi::{CString, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use workglow_limit::embed::{Begun, Joined, Line, MayWait, Outcome, Seat, Waiter, WaiterId, from_unix_ns, unix_ns};
use workglow_limit::{Attempt, Decision, Error, Limiter, Presented, RawPermit, Reserved};

/// A call that has waited this long for a thread of the pool waits for the store only for the rest of its timeout.
const QUEUED: Duration = Duration::from_secs(1);

impl CallBuffer {
    /// Returns whether the operation advances a line.
    fn is_advancing(&self) -> bool {
        use Operation::{Advance, LeaveWithPlace, Wake, WakeAll};
        matches!(Operation::from_number(self.operation), Some(Advance | LeaveWithPlace | Wake | WakeAll))
    }

    /// Returns whether the operation takes a start or a place, outside of a line.
    fn is_taking(&self) -> bool {
        use Operation::{Attempt, Decide, Reserve};
        matches!(Operation::from_number(self.operation), Some(Attempt | Decide | Reserve))
    }

    fn raw_permit(&self) -> RawPermit {
        RawPermit::from_words(self.permit)
    }

    fn put_permit(&mut self, permit: RawPermit) {
        self.permit = permit.to_words();
    }

    fn put_text(&mut self, text: &str) {
        let text = &text.as_bytes()[..text.len().min(TEXT_BYTES)];
        self.text[..text.len()].copy_from_slice(text);
        self.text_length = text.len() as i32;
    }

    fn put_status(&mut self, status: Status) {
        self.status = status as i32;
    }

    fn put_yes_or_no(&mut self, yes: bool) {
        self.put_status(if yes { Status::Yes } else { Status::No });
    }
}

/// The data of a closure.
struct ClosureData {
    core: Arc<Core>,
    /// Whether JavaScript may run in the middle of a call, and make calls of its own.
    may_call_back: bool,
    buffer: *mut CallBuffer,
    events: Arc<EventQueue>,
    /// Keeps the buffer alive.
    reference: sys::napi_ref,
}

/// The part of a closure's data that the thread pool needs, too.
struct Core {
    limiter: Arc<dyn Limiter>,
    line: Mutex<WaitingLine>,
    /// Whether a thread of the pool maintains the limiter's stores.
    is_maintained: AtomicBool,
}

/// The waiters of this environment. `lib/waiting.ts` makes one call of it at a time.
struct WaitingLine {
    line: Line,
    /// The waiters whose wait has ended and that JavaScript has not taken yet.
    ended: VecDeque<(WaiterId, Outcome)>,
}

/// Makes the closure.
pub fn bind<'env>(
    env: &'env Env,
    limiter: Arc<dyn Limiter>,
    may_call_back: bool,
    array: &ArrayBuffer<'env>,
    events: &Arc<EventQueue>,
    wake: impl Fn() + Send + Sync + 'static,
) -> napi::Result<Function<'env, (), ()>> {
    let buffer = array.as_ptr() as *mut CallBuffer;
    if array.len() < size_of::<CallBuffer>() || !buffer.is_aligned() {
        return Err(napi::Error::from_reason("the buffer of calls is too small, or not aligned"));
    }
    let mut reference = ptr::null_mut();
    // SAFETY: the environment and the value are alive for the duration of this call, as in all that follow.
    check(unsafe { sys::napi_create_reference(env.raw(), array.raw(), 1, &mut reference) })?;
    let line = Mutex::new(WaitingLine { line: Line::with_wake(limiter.clone(), wake), ended: VecDeque::new() });
    let core = Arc::new(Core { limiter, line, is_maintained: AtomicBool::new(false) });
    let data = ClosureData { core, may_call_back, buffer, events: events.clone(), reference };
    let data = Box::into_raw(Box::new(data));
    let mut function = ptr::null_mut();
    // SAFETY: no name, and data that live until the finalizer of the function itself. If Node does not accept the
    // finalizer, they are leaked.
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
    match napi::Status::from(status) {
        napi::Status::Ok => Ok(()),
        other => Err(napi::Error::new(other, "making the closure of a limiter")),
    }
}

unsafe extern "C" fn finalize(env: sys::napi_env, data: *mut c_void, _hint: *mut c_void) {
    // SAFETY: the box of `bind`; the function that used it is gone.
    let data = unsafe { Box::from_raw(data.cast::<ClosureData>()) };
    // SAFETY: the reference of `bind`, deleted once.
    unsafe { sys::napi_delete_reference(env, data.reference) };
}

/// The function that Node calls. It throws errors; `lib/errors.ts` parses their messages.
unsafe extern "C" fn enter(env: sys::napi_env, info: sys::napi_callback_info) -> sys::napi_value {
    let mut data = ptr::null_mut();
    // SAFETY: Node's own environment and info; what is not wanted is null.
    unsafe {
        sys::napi_get_cb_info(env, info, ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), &mut data);
    }
    // SAFETY: the box of `bind`, alive as long as the function that is being called.
    let data = unsafe { &*data.cast::<ClosureData>() };
    let result = if data.may_call_back {
        // On a copy, because calls from within this call use the same buffer. Their results are overwritten afterwards.
        // SAFETY: as below, except that JavaScript may run between the read and the write, when no reference exists.
        let mut own = unsafe { data.buffer.read() };
        let result = catch_unwind(AssertUnwindSafe(|| data.core.enter(&mut own)));
        // SAFETY: as above.
        unsafe { data.buffer.write(own) };
        result
    } else {
        // SAFETY: the buffer is referenced, large enough and aligned, and every bit pattern is valid. JavaScript does
        // not run until this returns, as the core calls none. The package exposes the buffer to no code that could detach it.
        let buffer = unsafe { &mut *data.buffer };
        catch_unwind(AssertUnwindSafe(|| data.core.enter(buffer)))
    };
    // SAFETY: as above; no reference to the buffer is left.
    unsafe { (*data.buffer).operation = i32::from(data.events.is_any()) };
    if data.core.limiter.is_due() {
        // SAFETY: Node's own environment, as above.
        unsafe { data.core.maintain(env) };
    }
    let message = match result {
        Ok(Ok(None)) => return ptr::null_mut(),
        Ok(Ok(Some(pending))) => {
            // SAFETY: as above. Without a value JavaScript reads the buffer as the result, which admits no start.
            return unsafe { External::to_napi_value(env, External::new(pending)) }.unwrap_or(ptr::null_mut());
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

/// A call that has to wait for the store. The buffer after it is boxed because results are moved, and moving it would take as long
/// as a decision.
pub struct PendingCall {
    begun: Mutex<Option<Begun<Box<CallBuffer>>>>,
    asked: Instant,
}

/// Finishes a pending call on the thread pool, once, and returns the buffer after it.
pub struct PoolCall(pub Arc<PendingCall>);

impl Task for PoolCall {
    type Output = Box<CallBuffer>;
    type JsValue = Buffer;

    fn compute(&mut self) -> napi::Result<Box<CallBuffer>> {
        let PendingCall { begun, asked } = &*self.0;
        let begun = begun.lock().unwrap_or_else(PoisonError::into_inner).take();
        let begun = begun.ok_or_else(|| napi::Error::from_reason("a call that was finished before"))?;
        match asked.elapsed() < QUEUED {
            true => pooled(MayWait::UntilTimeout, || begun.finish()),
            false => pooled(MayWait::UntilTimeout, || MayWait::for_the_rest(*asked, || begun.finish())),
        }
    }

    fn resolve(&mut self, _: Env, after: Box<CallBuffer>) -> napi::Result<Buffer> {
        let buffer: *const CallBuffer = &*after;
        // SAFETY: as many bytes as it has; a test shows that there is no padding between its fields.
        Ok(unsafe { slice::from_raw_parts(buffer.cast::<u8>(), size_of::<CallBuffer>()) }.to_vec().into())
    }
}

/// The work that decisions left for a thread that may wait.
struct Maintenance(Arc<Core>);

impl Task for Maintenance {
    type Output = ();
    type JsValue = ();

    fn compute(&mut self) -> napi::Result<()> {
        let result = pooled(MayWait::UntilTimeout, || {
            self.0.limiter.look_after();
            Ok(())
        });
        // Not in `resolve`, which a loop of synchronous calls would delay.
        self.0.is_maintained.store(false, Relaxed);
        result
    }

    fn resolve(&mut self, _: Env, (): ()) -> napi::Result<()> {
        Ok(())
    }
}

impl Core {
    /// Makes one call, or returns it for the thread pool.
    #[inline(always)]
    fn enter(self: &Arc<Core>, buffer: &mut CallBuffer) -> Result<Option<Arc<PendingCall>>, Error> {
        if buffer.operation & (LATER | HERE) == 0 {
            return self.call(buffer).map(|()| None);
        }
        let is_later = buffer.operation & LATER != 0;
        buffer.operation &= !(LATER | HERE);
        if !is_later {
            return MayWait::Briefly.during(|| self.call(buffer)).map(|()| None);
        }
        // A place that could not be given back would be lost, so this waits for the store in any case.
        let must_wait = buffer.operation == Operation::LeaveWithPlace as i32;
        match if must_wait { Err(Error::WouldWait) } else { MayWait::Never.during(|| self.call(buffer)) } {
            Err(Error::WouldWait) => {
                let begun = self.begin(Box::new(*buffer));
                if begun.is_over() {
                    return begun.finish().map(|after| {
                        *buffer = *after;
                        None
                    });
                }
                Ok(Some(Arc::new(PendingCall { begun: Mutex::new(Some(begun)), asked: Instant::now() })))
            }
            result => result.map(|()| None),
        }
    }

    /// Begins a call that has to wait, with the buffer as it was: a call that would have to wait has changed nothing.
    fn begin(self: &Arc<Core>, buffer: Box<CallBuffer>) -> Begun<Box<CallBuffer>> {
        let (is_taking, core) = (buffer.is_taking(), self.clone());
        let call = move |_: &dyn Limiter| {
            let mut after = buffer.clone();
            if core.prepare(&buffer)? {
                after.put_status(Status::Prepared);
                return Ok(after);
            }
            match core.call(&mut after) {
                // A line that has waited for a while lets others ask; `due` says when to advance it again.
                Err(Error::WouldWait) if buffer.is_advancing() => Ok(after),
                result => result.map(|()| after),
            }
        };
        let cancel = |limiter: &dyn Limiter, after: Box<CallBuffer>| {
            if after.status == Status::Yes as i32 {
                let _ = limiter.cancel(&after.raw_permit());
            }
        };
        match is_taking {
            true => Begun::new(self.limiter.clone(), call, cancel),
            false => Begun::later(self.limiter.clone(), call),
        }
    }

    /// Sends the work that is due to the thread pool, once at a time.
    ///
    /// # Safety
    /// The environment is that of the calling thread.
    #[cold]
    unsafe fn maintain(self: &Arc<Core>, env: sys::napi_env) {
        if self.is_maintained.swap(true, Relaxed) {
            return;
        }
        // SAFETY: as the caller promised. The JavaScript promise is not needed.
        let sent = unsafe { AsyncTask::to_napi_value(env, AsyncTask::new(Maintenance(self.clone()))) };
        if sent.is_err() {
            self.is_maintained.store(false, Relaxed); // The environment ends. The work stays due.
        }
    }

    /// Prepares what a waiter waits for that joins. Returns whether it can then join in the loop.
    fn prepare(&self, buffer: &CallBuffer) -> Result<bool, Error> {
        let is_joining = buffer.operation == Operation::Join as i32;
        Ok(is_joining && self.waiting()?.line.prepare(key_in(&buffer.text, buffer.text_length)?))
    }

    /// The line. `lib/waiting.ts` never makes two calls of it at once.
    fn waiting(&self) -> Result<MutexGuard<'_, WaitingLine>, Error> {
        let reason = || Error::Unsupported { reason: "a call of a line while another call uses it".to_owned() };
        self.line.try_lock().map_err(|_| reason())
    }

    #[inline(always)]
    fn call(&self, buffer: &mut CallBuffer) -> Result<(), Error> {
        let limiter = &*self.limiter;
        let operation = Operation::from_number(buffer.operation).ok_or_else(|| unknown(buffer.operation))?;
        let key = key_in(&buffer.text, buffer.text_length)?;
        // Saturates: a number that is too large exceeds every limit.
        let weight = buffer.weight as u64;
        match operation {
            Operation::Attempt => {
                let attempt = limiter.attempt(key, weight)?;
                buffer.put_yes_or_no(matches!(attempt, Attempt::Admitted(_)));
                match attempt {
                    Attempt::Admitted(permit) => buffer.put_permit(permit),
                    Attempt::Denied(after) => buffer.retry_after = us(after),
                }
            }
            Operation::Complete => limiter.complete(&buffer.raw_permit())?,
            Operation::Decide => {
                let decision = limiter.decide(key, weight)?;
                self.put_decision(buffer, decision);
            }
            Operation::Peek => {
                let decision = limiter.peek(key, weight)?;
                self.put_decision(buffer, decision);
            }
            Operation::Join | Operation::JoinWithPlace => {
                let waiter = if operation == Operation::Join {
                    let waiter = Waiter::new(key, weight).priority(buffer.priority);
                    let waiter = waiter.grace(duration(buffer.grace).unwrap_or_default());
                    if buffer.share == 0.0 { waiter } else { waiter.share(buffer.share as u32) }
                } else {
                    Waiter::with_place(buffer.raw_permit())
                };
                let line = &mut self.waiting()?.line;
                let joined = line.join(waiter.timeout(duration(buffer.time)))?;
                buffer.due = due(line.next());
                match joined {
                    Joined::Done(outcome) => put_outcome(buffer, outcome)?,
                    Joined::Waiting(id) => {
                        buffer.put_status(Status::Waiting);
                        buffer.waiter = id as f64;
                    }
                }
            }
            Operation::Leave => {
                let line = &mut self.waiting()?.line;
                line.leave(buffer.waiter as WaiterId);
                buffer.due = due(line.next());
                if line.would_wait() {
                    return Err(Error::WouldWait); // The next pass returns what it held.
                }
            }
            Operation::CanProceed => {
                let yes = limiter.can_proceed(key)?;
                buffer.put_yes_or_no(yes);
            }
            Operation::RecordJobStart => limiter.record_job_start(key)?,
            Operation::RecordJobCompletion => limiter.record_job_completion(key)?,
            Operation::NextAvailableTime => buffer.time = ms_up(limiter.next_available_time(key)?),
            // A date is at most 8.64e15 ms. If that does not fit into nanoseconds it saturates, and the core refuses it.
            Operation::SetNextAvailableTime => {
                limiter.set_next_available_time(from_unix_ns((buffer.time * 1e6) as i64), key)?
            }
            Operation::Pause => limiter.pause(crate::milliseconds(buffer.time), key)?,
            Operation::Clear => limiter.clear(key)?,
            Operation::ReadyAt => {
                let permit = buffer.raw_permit();
                buffer.time = limiter.ready_at(&permit).map_or(f64::NAN, ms_up);
                buffer.retry_after = us(limiter.ready_in(&permit).unwrap_or_default());
                buffer.large = limiter.ready_at_monotonic_ns(&permit).unwrap_or(0);
            }
            Operation::Cancel => limiter.cancel(&buffer.raw_permit())?,
            Operation::Settle => limiter.settle(&buffer.raw_permit(), weight)?,
            Operation::SettleParts => settle_parts(limiter, &buffer.raw_permit(), key)?,
            Operation::Reserve => {
                let reserved = limiter.reserve(key, weight, duration(buffer.time), duration(buffer.grace))?;
                buffer.put_yes_or_no(matches!(reserved, Reserved::Place { .. }));
                if let Reserved::Place { place, .. } = reserved {
                    buffer.put_permit(place);
                }
            }
            Operation::Present => {
                let (status, permit, after) = match limiter.present(&buffer.raw_permit())? {
                    Presented::Started(permit) => (Status::Yes, permit, Duration::ZERO),
                    Presented::Wait { place, after } => (Status::No, place, after),
                };
                buffer.put_status(status);
                buffer.put_permit(permit);
                buffer.retry_after = us(after);
            }
            Operation::ToText => {
                let text = limiter.to_text(&buffer.raw_permit())?;
                buffer.put_text(&text);
            }
            Operation::FromText => {
                let permit = limiter.permit_from_text(key)?;
                buffer.put_permit(permit);
            }
            Operation::Arrived => limiter.arrived(&buffer.raw_permit())?,
            Operation::Renew => limiter.renew(&buffer.raw_permit())?,
            Operation::Fence => {
                let fence = limiter.fence(&buffer.raw_permit());
                buffer.put_yes_or_no(fence.is_some());
                buffer.large = fence.unwrap_or(0);
            }
            Operation::Chosen => {
                let chosen = limiter.chosen(&buffer.raw_permit());
                buffer.put_yes_or_no(chosen.is_some());
                buffer.large = chosen.map_or(0, |(_, limiter)| limiter.base().id);
            }
            Operation::CancelPlace => limiter.cancel_place(&buffer.raw_permit())?,
            Operation::Window => {
                let window = limiter.window(key)?;
                buffer.put_yes_or_no(window.is_some());
                buffer.retry_after = us(window.unwrap_or_default());
            }
            Operation::Forecast => {
                let after = limiter.forecast(weight, key)?;
                buffer.put_yes_or_no(after.is_some());
                buffer.retry_after = us(after.unwrap_or_default());
            }
            Operation::ChargeOthers => {
                let charged = limiter.charge_others(key, weight, buffer.time as u64)?;
                buffer.remaining = units(charged);
            }
            Operation::Advance => advance(&mut *self.waiting()?, buffer)?,
            Operation::Wake => {
                let mut waiting = self.waiting()?;
                waiting.line.wake(Some(key));
                advance(&mut waiting, buffer)?;
            }
            Operation::WakeAll => {
                let mut waiting = self.waiting()?;
                waiting.line.wake(None);
                advance(&mut waiting, buffer)?;
            }
            Operation::Take => match self.waiting()?.ended.pop_front() {
                None => buffer.put_status(Status::No),
                Some((id, outcome)) => {
                    buffer.waiter = id as f64;
                    put_outcome(buffer, outcome)?;
                }
            },
            // The place that the waiter brought has to be given back.
            Operation::LeaveWithPlace => {
                let mut waiting = self.waiting()?;
                waiting.line.leave(buffer.waiter as WaiterId);
                advance(&mut waiting, buffer)?;
            }
            // A composite may answer with a place, which only a line can handle.
            Operation::Start => {
                let mut seat = Seat::new(Waiter::new(key, weight).grace(duration(buffer.grace).unwrap_or_default()));
                let started = if limiter.depth() == 0 { seat.start_at_once(limiter)? } else { None };
                buffer.put_yes_or_no(started.is_some());
                if let Some(permit) = started {
                    buffer.put_permit(permit);
                }
            }
        }
        Ok(())
    }

    fn put_decision(&self, buffer: &mut CallBuffer, decision: Decision) {
        buffer.put_yes_or_no(decision.admitted);
        buffer.retry_after = us(decision.retry_after);
        buffer.suggested_after = us(decision.suggested_after);
        buffer.reset_after = us(decision.reset_after);
        buffer.remaining = units(decision.remaining);
        buffer.limit = units(decision.limit);
        buffer.permit = decision.permit.map_or([0; 8], RawPermit::to_words);
        buffer.text_length = OWN_NAME;
        if let Some(name) = decision.denied_by.as_deref()
            && name != self.limiter.name()
        {
            buffer.put_text(name);
        }
    }
}

#[inline(always)]
fn key_in(text: &[u8; TEXT_BYTES], length: i32) -> Result<&str, Error> {
    match usize::try_from(length).unwrap_or(0).min(TEXT_BYTES) {
        0 => Ok(""),
        length => str::from_utf8(&text[..length]).map_err(|_| not_text()),
    }
}

/// Settles parts of a permit; `lib/charges.ts` wrote the text, whose numbers are checked.
#[cold]
fn settle_parts(limiter: &dyn Limiter, permit: &RawPermit, text: &str) -> Result<(), Error> {
    let words: Vec<&str> = text.split('\0').collect();
    let parts = words.chunks_exact(2).map(|part| (part[0], part[1].parse::<f64>().unwrap_or_default() as u64));
    limiter.settle_parts(permit, &parts.collect::<Vec<_>>())
}

/// Does the line's work that is due for one waiter, which starts before the next one is decided.
fn advance(waiting: &mut WaitingLine, buffer: &mut CallBuffer) -> Result<(), Error> {
    let mut ended = Vec::new();
    buffer.due = due(waiting.line.advance_one(&mut ended));
    waiting.ended.extend(ended);
    let would_wait = waiting.ended.is_empty() && waiting.line.would_wait();
    if would_wait { Err(Error::WouldWait) } else { Ok(()) }
}

/// Writes how a wait ended.
fn put_outcome(buffer: &mut CallBuffer, outcome: Outcome) -> Result<(), Error> {
    match outcome {
        Outcome::Admitted(permit) => {
            buffer.put_status(Status::Yes);
            buffer.put_permit(permit);
        }
        Outcome::Expired(after) => {
            buffer.put_status(Status::Expired);
            buffer.retry_after = us(after);
        }
        Outcome::Failed(error) => return Err(error),
    }
    Ok(())
}

#[cold]
fn not_text() -> Error {
    Error::InvalidArgument { parameter: "key", value: "not UTF-8".into(), expected: "text".into() }
}

#[cold]
fn unknown(operation: i32) -> Error {
    Error::Unsupported { reason: format!("the addon has no operation {operation}") }
}

/// Converts a duration in ms; negative is `None`.
fn duration(ms: f64) -> Option<Duration> {
    (ms >= 0.0).then(|| crate::milliseconds(ms))
}

/// Converts to ms; `None` is negative.
fn due(next: Option<Duration>) -> f64 {
    next.map_or(-1.0, |next| us(next) / 1e3)
}

/// Converts to µs, which fit into 64 bits: an instruction converts that to a float.
fn us(duration: Duration) -> f64 {
    duration.as_micros() as u64 as f64
}

fn units(n: u64) -> f64 {
    if n == u64::MAX { f64::INFINITY } else { n as f64 }
}

/// Converts an instant to ms since the Unix epoch, rounded up: a date is never too early.
fn ms_up(at: SystemTime) -> f64 {
    (unix_ns(at) as f64 / 1e6).ceil()
}
