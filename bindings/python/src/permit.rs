//! Permits and places.

use crate::argument::{self, quoting, wrong_type};
use crate::async_call;
use crate::error::raised;
use crate::fastcall::{self, Signature};
use crate::joint::{self, Actual, Key, Weight, waiters_of};
use crate::limiter::SharedLimiter;
use crate::origin;
use crate::threads::OwnerId;
use crate::waiting::wait_here;
use pyo3::exceptions::PyResourceWarning;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyType};
use pyo3::{IntoPyObjectExt, PyTypeInfo, ffi};
use std::ffi::{CStr, CString, c_int, c_void};
use std::panic::catch_unwind;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};
use workglow_limit::embed::{MayWait, fork_generation};
use workglow_limit::{Error, RawPermit, Result};

/// The end of a permit.
#[derive(Clone, PartialEq)]
pub enum End {
    Complete,
    Cancel,
    Settle(u64),
    /// With the units that some parts of a composite used, by their names.
    SettleParts(Vec<(String, u64)>),
    /// Only where its units cool down; the permit remains.
    Arrived,
}

impl End {
    fn of(&self, core: &dyn workglow_limit::Limiter, raw: &RawPermit, started: bool) -> Result<()> {
        match self {
            End::Complete => core.complete(raw),
            End::Cancel if started => core.cancel(raw),
            // Another process may have started with its text.
            End::Cancel => core.cancel_place(raw),
            End::Settle(actual) => core.settle(raw, *actual),
            End::SettleParts(actual) => {
                let parts: Vec<_> = actual.iter().map(|(part, units)| (&**part, *units)).collect();
                core.settle_parts(raw, &parts)
            }
            End::Arrived => core.arrived(raw),
        }
    }
}

/// A permit or place. Its Python class is at the end of this file.
pub struct Permit {
    shared: Arc<SharedLimiter>,
    raw: RawPermit,
    /// The key, if its end may free units for waiters, and only for those of this key.
    key: Option<Box<str>>,
    /// False for a place.
    started: bool,
    /// The fork generation of the process that took it.
    generation: u64,
    ended: AtomicBool,
    /// The delay in µs before presenting again a place that is ready, but that its limit has not admitted. Such a limit cannot
    /// predict its next start.
    retry_us: AtomicU64,
}

impl Permit {
    #[inline]
    pub fn new(shared: &Arc<SharedLimiter>, raw: RawPermit) -> Permit {
        Self::made(shared, raw, true, None)
    }

    /// A start with a known key.
    #[inline]
    pub fn with_key(shared: &Arc<SharedLimiter>, raw: RawPermit, key: &str) -> Permit {
        Self::made(shared, raw, true, shared.holds(&raw).then(|| waiters_of(key)).flatten().map(Box::from))
    }

    /// A place to present after a delay.
    pub fn place(shared: &Arc<SharedLimiter>, raw: RawPermit, after: Duration) -> Permit {
        let place = Self::made(shared, raw, false, None);
        place.present_after(after);
        place
    }

    /// Notes the delay of a place that is already ready. For other places it follows from the place itself.
    pub fn present_after(&self, after: Duration) {
        let is_ready = self.shared.core.ready_in(&self.raw).is_none_or(|wait| wait.is_zero());
        self.retry_us.store(if is_ready { after.as_micros() as u64 } else { 0 }, Relaxed);
    }

    #[inline]
    fn made(shared: &Arc<SharedLimiter>, raw: RawPermit, started: bool, key: Option<Box<str>>) -> Permit {
        let (ended, retry_us) = (AtomicBool::new(false), AtomicU64::new(0));
        Permit { shared: shared.clone(), raw, key, started, generation: fork_generation(), ended, retry_us }
    }

    /// Completes it as a permit of `shared`.
    pub fn complete_at(&self, py: Python<'_>, shared: &Arc<SharedLimiter>) -> PyResult<()> {
        if !Arc::ptr_eq(&self.shared, shared) {
            return Err(raised(Error::ForeignPermit { limit: shared.core.name().to_owned() }));
        }
        self.complete(py)
    }

    /// Ends it and wakes waiters.
    pub fn end_with(&self, end: &End) -> Result<()> {
        if !self.begin_to_end(end) {
            return Ok(());
        }
        self.ended_with(end, end.of(&*self.shared.core, &self.raw, self.started))
    }

    /// As `end_with`, where the call may wait. A greenlet that is killed during the wait has ended it too.
    fn end(&self, py: Python<'_>, end: &End) -> PyResult<()> {
        if !self.begin_to_end(end) {
            return Ok(());
        }
        let (raw, started, there) = (self.raw, self.started, end.clone());
        let ended = self.shared.wait(py, "", move |core, _| there.of(core, &raw, started))?;
        self.ended_with(end, ended).map_err(raised)
    }

    pub fn owner(&self) -> OwnerId {
        self.shared.owner
    }

    /// Returns whether this call ends it. Only the first end counts, whichever kind it is.
    fn begin_to_end(&self, end: &End) -> bool {
        !self.is_over() && (*end == End::Arrived || !self.ended.swap(true, Relaxed))
    }

    fn ended_with(&self, end: &End, ended: Result<()>) -> Result<()> {
        if *end == End::Arrived {
            return ended;
        }
        if ended.is_err() {
            self.ended.store(false, Relaxed);
            return ended;
        }
        // Completing a start of a rate limit frees nothing.
        if self.shared.has_had_waiters()
            && (*end != End::Complete || self.key.is_some() || self.shared.holds(&self.raw))
        {
            self.shared.wake_waiters(self.key.as_deref());
        }
        Ok(())
    }

    /// Returns whether it has ended or belongs to another process.
    #[inline]
    fn is_over(&self) -> bool {
        self.ended.load(Relaxed) || self.is_inherited()
    }

    /// Returns whether it belongs to another process.
    #[inline]
    fn is_inherited(&self) -> bool {
        self.generation != fork_generation()
    }
}

impl Permit {
    /// Completes a permit that was dropped without an end, with a ResourceWarning, as Python does for an unclosed file.
    #[cold]
    fn complete_dropped(&self) {
        let limiter = self.shared.core.name();
        let attached = Python::try_attach(|py| {
            // Keep an exception that is being raised.
            let pending = PyErr::take(py);
            let mut ended = self.shared.core.complete(&self.raw);
            if let Err(Error::WouldWait) = ended {
                // A garbage collection may run here, so no other greenlet may run during the wait.
                ended = wait_here(py, || self.shared.core.complete(&self.raw));
            }
            if let Err(e) = ended.map_err(raised) {
                e.write_unraisable(py, None);
            }
            self.shared.wake_waiters(self.key.as_deref());
            let text = format!("a permit of {limiter:?} was dropped before it ended: use it in a with statement");
            // `{:?}` escapes zeros in the name.
            let text = CString::new(text).unwrap_or_default();
            if let Err(e) = PyErr::warn(py, &py.get_type::<PyResourceWarning>(), &text, 1) {
                e.write_unraisable(py, None);
            }
            if let Some(pending) = pending {
                pending.restore(py);
            }
        });
        if attached.is_none() {
            // The interpreter is shutting down. Limiters written in Python have ended.
            let _ = MayWait::Briefly.during(|| self.shared.core.complete(&self.raw));
        }
    }
}

// The methods of the Python class.
impl Permit {
    pub fn complete(&self, py: Python<'_>) -> PyResult<()> {
        self.end_at_once(py, &End::Complete)
    }

    /// As `end`, but waits only if it has to.
    fn end_at_once(&self, py: Python<'_>, end: &End) -> PyResult<()> {
        match self.end_with(end) {
            Err(Error::WouldWait) => self.end(py, end),
            ended => ended.map_err(raised),
        }
    }

    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.end(py, &End::Cancel)
    }

    fn settle(&self, py: Python<'_>, used: &End) -> PyResult<()> {
        self.end(py, used)
    }

    fn arrived(&self, py: Python<'_>) -> PyResult<()> {
        self.end_at_once(py, &End::Arrived)
    }

    fn renew(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_inherited() {
            return Ok(());
        }
        let raw = self.raw;
        self.shared.decide(py, "", move |core, _| core.renew(&raw))
    }

    fn to_text(&self, py: Python<'_>) -> PyResult<String> {
        let raw = self.raw;
        self.shared.decide(py, "", move |core, _| core.to_text(&raw))
    }

    fn wait(&self) -> f64 {
        if self.started {
            return 0.0;
        }
        let retry = Duration::from_micros(self.retry_us.load(Relaxed));
        self.shared.core.ready_in(&self.raw).unwrap_or_default().max(retry).as_secs_f64()
    }

    fn ready_at(&self) -> Option<SystemTime> {
        self.shared.core.ready_at(&self.raw)
    }

    fn ready_at_monotonic(&self) -> Option<f64> {
        let ns = self.shared.core.ready_at_monotonic_ns(&self.raw)?;
        // A float holds whole microseconds exactly for centuries. The quotient may round up, so take the next lower float.
        Some(((ns / 1_000) as f64 / 1e6).next_down())
    }

    fn chosen(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let (_, core) = self.shared.core.chosen(&self.raw)?;
        self.shared.children.as_ref()?.chosen(py, &core).map(Bound::unbind)
    }

    fn check_started(&self) -> PyResult<()> {
        if self.started {
            return Ok(());
        }
        let reason =
            "a place that has not started cannot be entered: present it, and enter the permit that present returns";
        Err(raised(Error::Unsupported { reason: reason.to_owned() }))
    }

    fn repr(&self) -> String {
        let started = if self.started { "" } else { ", not started" };
        let ended = if self.is_over() { ", ended" } else { "" };
        format!("<Permit of {:?}{started}{ended}>", self.shared.core.name())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.is_over() {
            return;
        }
        if !self.started {
            // Its text may be in a queue, so the place remains.
            return self.shared.core.drop_place(&self.raw);
        }
        if self.shared.holds(&self.raw) {
            self.complete_dropped();
        } else {
            // No caller is left to receive an error.
            let _ = self.shared.core.complete(&self.raw);
        }
    }
}

/// A place from Python: the object or its text.
pub enum Place {
    Object(Py<Permit>),
    Text(Py<PyString>),
}

impl Place {
    pub fn given(value: &Bound<'_, PyAny>) -> PyResult<Place> {
        if let Ok(permit) = value.cast::<Permit>() {
            Ok(Place::Object(permit.clone().unbind()))
        } else if let Ok(text) = value.cast::<PyString>() {
            Ok(Place::Text(text.clone().unbind()))
        } else {
            Err(wrong_type("place", value, "a Permit or its text"))
        }
    }

    /// Reads a place to wait with. It has its own key, weight and grace, and must not have started.
    pub fn to_wait_with(
        value: &Bound<'_, PyAny>,
        key: &Key<'_, '_>,
        weight: &Weight<'_, '_>,
        grace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Place> {
        const NONE: &str = "none with a place, which has its own";
        joint::refuse(key, weight, NONE)?;
        if let Some(grace) = grace {
            return Err(argument::invalid("grace", grace, NONE));
        }
        match Place::given(value)? {
            Place::Object(permit) if Permit::of(&permit).started => {
                Err(argument::invalid("place", value, "a place that has not started"))
            }
            place => Ok(place),
        }
    }

    /// Returns the core's permit.
    pub fn raw(&self, py: Python<'_>, shared: &Arc<SharedLimiter>) -> PyResult<RawPermit> {
        match self {
            Place::Object(permit) => Ok(Permit::of(permit).raw),
            Place::Text(text) => read(shared, "place", text.bind(py)),
        }
    }

    /// Marks the object as ended: another permit or a waiter now has the place.
    pub fn use_up(&self) {
        if let Place::Object(permit) = self {
            Permit::of(permit).ended.store(true, Relaxed);
        }
    }

    /// Returns the object, if it still holds that place.
    pub fn object(&self, place: &RawPermit) -> Option<&Py<Permit>> {
        match self {
            Place::Object(permit) if Permit::of(permit).raw == *place && !Permit::of(permit).is_over() => Some(permit),
            _ => None,
        }
    }
}

/// Reads the permit or place of a text.
pub fn read(shared: &Arc<SharedLimiter>, parameter: &'static str, given: &Bound<'_, PyAny>) -> PyResult<RawPermit> {
    let text = argument::text(parameter, given)?;
    let read = shared.ask(given.py(), text, |core, text| core.permit_from_text(text), |_, _| ());
    read?.map_err(|e| quoting(e, &[("place", parameter, given)]))
}

// The Python class. Each start creates and destroys an object of it, so it does not use PyO3: a PyO3 class takes part in garbage
// collection and is created by `object.__new__`, which takes about as long as a decision. A permit refers to no other object.

#[repr(C)]
struct Object {
    head: ffi::PyObject,
    permit: Permit,
}

// SAFETY: the class is created once and has no subclasses, so every instance is an `Object`.
unsafe impl PyTypeInfo for Permit {
    #[inline]
    fn type_object_raw(py: Python<'_>) -> *mut ffi::PyTypeObject {
        static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        // Created with the module, which raises an error if this fails.
        CLASS.get_or_init(py, || class(py).expect("the class of permits")).as_ptr().cast()
    }
}

impl<'py> IntoPyObject<'py> for Permit {
    type Target = Permit;
    type Output = Bound<'py, Permit>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, Permit>> {
        Permit::object(py, || self)
    }
}

impl Permit {
    /// Creates an object. The permit is built in place: moving one takes a tenth of a decision.
    #[inline(always)]
    pub fn object<'py>(py: Python<'py>, make: impl FnOnce() -> Permit) -> PyResult<Bound<'py, Permit>> {
        // SAFETY: a new object, or null. With its permit written it is a valid instance.
        unsafe {
            let object = ffi::PyObject_New::<Object>(Permit::type_object_raw(py));
            if object.is_null() {
                drop(make()); // Dropping it ends it.
                return Err(PyErr::fetch(py));
            }
            (&raw mut (*object).permit).write(make());
            Ok(Bound::from_owned_ptr(py, object.cast()).cast_into_unchecked())
        }
    }

    /// Returns the permit of an object.
    pub fn of(object: &Py<Permit>) -> &Permit {
        // SAFETY: the object is an instance and lives as long as the reference to it. Only its atomics change.
        unsafe { &(*object.as_ptr().cast::<Object>()).permit }
    }
}

/// Calls a Rust method for Python.
///
/// # Safety
/// `this` is an instance of the class and the thread is attached, which is the case whenever Python calls its method.
unsafe fn call<R: for<'py> IntoPyObject<'py>>(
    this: *mut ffi::PyObject,
    method: impl for<'py> FnOnce(Python<'py>, &Permit) -> PyResult<R>,
) -> *mut ffi::PyObject {
    // SAFETY: as above. The caller keeps the object alive.
    unsafe {
        let permit = &(*this.cast::<Object>()).permit;
        fastcall::answer(|py| method(py, permit)?.into_py_any(py).map(Py::into_ptr))
    }
}

/// A method without arguments, or a getter, which also takes one unused pointer.
macro_rules! method {
    ($argument:ty, $method:expr) => {{
        unsafe extern "C" fn method(this: *mut ffi::PyObject, _: $argument) -> *mut ffi::PyObject {
            // SAFETY: called by Python.
            unsafe { call(this, $method) }
        }
        method
    }};
}

unsafe extern "C" fn settle(
    this: *mut ffi::PyObject,
    given: *const *mut ffi::PyObject,
    number: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    let method = |py: Python<'_>, permit: &Permit| {
        // SAFETY: called by Python.
        let used = unsafe { settled("Permit.settle", py, given, number, names) }?;
        permit.settle(py, &used).map(|()| py.None())
    };
    // SAFETY: called by Python.
    unsafe { call(this, method) }
}

unsafe extern "C" fn settle_async(
    this: *mut ffi::PyObject,
    given: *const *mut ffi::PyObject,
    number: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    let method = |py: Python<'_>, _: &Permit| {
        // SAFETY: called by Python.
        unsafe {
            let end = settled("Permit.settle_async", py, given, number, names)?;
            async_call::end(py, itself(py, this), end).map(Bound::unbind)
        }
    };
    // SAFETY: called by Python.
    unsafe { call(this, method) }
}

/// Reads the argument of settle.
///
/// # Safety
/// As `Signature::arguments`.
unsafe fn settled(
    method: &'static str,
    py: Python<'_>,
    given: *const *mut ffi::PyObject,
    number: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> PyResult<End> {
    let takes: Signature<1> = Signature { method, parameters: ["actual"], required: 1 };
    // SAFETY: as above.
    let [actual] = unsafe { takes.arguments(py, given, number, names) }?;
    Ok(match actual.map_or(Ok(Actual::Plain(0)), |actual| joint::actual(&actual))? {
        Actual::Plain(units) => End::Settle(units),
        Actual::Parts(parts) => End::SettleParts(parts),
    })
}

unsafe extern "C" fn exit(
    this: *mut ffi::PyObject,
    _exception: *mut *mut ffi::PyObject,
    _number: ffi::Py_ssize_t,
) -> *mut ffi::PyObject {
    // SAFETY: called by Python.
    unsafe { call(this, |py, permit| permit.complete(py).map(|()| py.None())) }
}

/// Returns a new reference to the object of a method call.
///
/// # Safety
/// `this` is an instance of the class, which is the case whenever Python calls its method.
unsafe fn itself(py: Python<'_>, this: *mut ffi::PyObject) -> Py<Permit> {
    // SAFETY: as above. The caller keeps the object alive during the call.
    unsafe { Bound::from_borrowed_ptr(py, this).cast_into_unchecked().unbind() }
}

unsafe extern "C" fn enter(this: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: called by Python.
    unsafe { call(this, |py, permit| permit.check_started().map(|()| itself(py, this))) }
}

// The asynchronous methods return coroutines that keep the object alive.

unsafe extern "C" fn enter_async(this: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    static ITSELF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let entered = |py: Python<'_>, permit: &Permit| {
        permit.check_started()?;
        // SAFETY: called by Python.
        let permit = unsafe { itself(py, this) };
        Ok(ITSELF.import(py, "workglow_limit._loops", "itself")?.call1((permit,))?.unbind())
    };
    // SAFETY: called by Python.
    unsafe { call(this, entered) }
}

unsafe extern "C" fn exit_async(
    this: *mut ffi::PyObject,
    _exception: *mut *mut ffi::PyObject,
    _number: ffi::Py_ssize_t,
) -> *mut ffi::PyObject {
    // SAFETY: called by Python.
    unsafe { complete_async(this, ptr::null_mut()) }
}

unsafe extern "C" fn complete_async(this: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: called by Python.
    unsafe { call(this, |py, _| async_call::end(py, itself(py, this), End::Complete).map(Bound::unbind)) }
}

unsafe extern "C" fn arrived_async(this: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: called by Python.
    unsafe { call(this, |py, _| async_call::end(py, itself(py, this), End::Arrived).map(Bound::unbind)) }
}

unsafe extern "C" fn cancel_async(this: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: called by Python.
    unsafe { call(this, |py, _| async_call::end(py, itself(py, this), End::Cancel).map(Bound::unbind)) }
}

unsafe extern "C" fn repr(this: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: called by Python.
    unsafe { call(this, |_, permit| Ok(permit.repr())) }
}

unsafe extern "C" fn dealloc(this: *mut ffi::PyObject) {
    // SAFETY: the last reference to the object is gone. The object holds a reference to its class.
    unsafe {
        let class = ffi::Py_TYPE(this);
        let _ = catch_unwind(|| ptr::drop_in_place(&raw mut (*this.cast::<Object>()).permit));
        ffi::PyObject_Free(this.cast());
        ffi::Py_DECREF(class.cast());
    }
}

const DOC: &CStr = c"\
The permit of an admitted start. It ends by complete(), cancel() or settle(). A with statement (async with in event loops)
completes it at the end of the block, also after an exception. Ending it again is a no-op. In a forked child an inherited
permit does nothing, as it belongs to the parent.

Or a place: a start in the future, taken by Limiter.reserve(). It starts when it is presented.";

const NOT_PICKLABLE: &str =
    "a permit cannot be pickled or copied: send its to_text(), and read that with Limiter.permit or Limiter.place";

const COMPLETE: &CStr = c"complete($self)\n--\n\nEnds the permit of a job that has run.";

const CANCEL: &CStr = c"cancel($self)\n--\n\n\
Ends the permit of a job that has not run, or returns a place. Its units are free again at once.";

const SETTLE: &CStr = c"settle($self, actual)\n--\n\n\
Ends the permit of a job that has used actual units instead of its weight. Unused units are free again at once. Additional\n\
units are owed, up to one whole capacity, and delay later starts. Where units cool down, both cool down from now on. A\n\
concurrency limit without a cooldown raises Unsupported. A mapping has the units of some parts of a composite, by their\n\
names; the other parts used what they were charged. Parts that were charged weights of their own are settled by a mapping.";

const COMPLETE_ASYNC: &CStr = c"complete_async($self)\n--\n\n\
As complete, for event loops: await it. Waiting for the store does not block the loop. The call finishes even if the task\n\
that awaits it is cancelled.";

const CANCEL_ASYNC: &CStr = c"cancel_async($self)\n--\n\nAs cancel, for event loops: see complete_async.";

const SETTLE_ASYNC: &CStr = c"settle_async($self, actual)\n--\n\nAs settle, for event loops: see complete_async.";

const ARRIVED: &CStr = c"arrived($self)\n--\n\n\
Says that the job has reached the server that counts it, as when the head of its response is here. A limit with a cooldown\n\
counts it from now on instead of from its end. The permit remains. A no-op for other limits.";

const ARRIVED_ASYNC: &CStr = c"arrived_async($self)\n--\n\nAs arrived, for event loops: see complete_async.";

const RENEW: &CStr = c"renew($self)\n--\n\n\
Renews a lease: it holds its units for its full duration from now on. A no-op for a permit that is not a lease. Raises\n\
LeaseLost if the lease has already ended; another start may hold its units.";

const TO_TEXT: &CStr = c"to_text($self)\n--\n\n\
Returns the permit or place as a short text, for another process that uses the same limit. Limiter.present reads the text of\n\
a place, Limiter.permit that of a started permit.";

const FENCE: &CStr = c"\
A number that increases with every lease of a key, so that a protected resource can reject an old holder. None for a permit\n\
that is not a lease.";

const CHOSEN: &CStr = c"\
The limiter that was charged, of a FirstOfLimiter: the object that it was made with. With FirstOfLimiters in one another, the\n\
innermost. For a composite: what its first part of this kind has chosen. None for others.";

const STARTED: &CStr = c"Whether the job may run; False for a place.";

const WAIT: &CStr = c"\
The seconds until the place should be presented. 0.0 if it has started, or if it is ready and has not been refused.";

const READY_AT: &CStr = c"\
The time at which the place is or was ready, as an aware datetime in UTC. None if the start had no place.";

const READY_AT_MONOTONIC: &CStr = c"\
ready_at on the clock of time.monotonic(), in seconds, for measurements. It is never later than the true time. On a server it\n\
may be earlier by the delay of the server's answers.";

/// Creates the class.
fn class(py: Python<'_>) -> PyResult<Py<PyType>> {
    type None = *mut ffi::PyObject;
    use ffi::{METH_FASTCALL, METH_KEYWORDS, METH_NOARGS, PyMethodDefPointer as Pointer};
    let method = |name: &'static CStr, ml_flags: c_int, ml_meth: Pointer, doc: &'static CStr| ffi::PyMethodDef {
        ml_name: name.as_ptr(),
        ml_meth,
        ml_flags,
        ml_doc: doc.as_ptr(),
    };
    let plain = |name, method_of, doc| method(name, METH_NOARGS, Pointer { PyCFunction: method_of }, doc);
    let getter = |name: &'static CStr, get: ffi::getter, doc: &'static CStr| ffi::PyGetSetDef {
        name: name.as_ptr(),
        get: Some(get),
        set: Option::None,
        doc: doc.as_ptr(),
        closure: ptr::null_mut(),
    };
    // Python keeps pointers to these.
    let methods = Box::leak(Box::new([
        plain(c"complete", method!(None, |py, permit| permit.complete(py).map(|()| py.None())), COMPLETE),
        plain(c"cancel", method!(None, |py, permit| permit.cancel(py).map(|()| py.None())), CANCEL),
        method(c"settle", METH_FASTCALL | METH_KEYWORDS, Pointer { PyCFunctionFastWithKeywords: settle }, SETTLE),
        plain(c"complete_async", complete_async, COMPLETE_ASYNC),
        plain(c"cancel_async", cancel_async, CANCEL_ASYNC),
        method(
            c"settle_async",
            METH_FASTCALL | METH_KEYWORDS,
            Pointer { PyCFunctionFastWithKeywords: settle_async },
            SETTLE_ASYNC,
        ),
        plain(c"arrived", method!(None, |py, permit| permit.arrived(py).map(|()| py.None())), ARRIVED),
        plain(c"arrived_async", arrived_async, ARRIVED_ASYNC),
        plain(c"renew", method!(None, |py, permit| permit.renew(py).map(|()| py.None())), RENEW),
        plain(c"to_text", method!(None, |py, permit| permit.to_text(py)), TO_TEXT),
        plain(
            c"__reduce__",
            method!(None, |_, _| origin::refuse_pickling::<()>(NOT_PICKLABLE)),
            c"__reduce__($self)\n--\n\n",
        ),
        plain(c"__enter__", enter, c"__enter__($self)\n--\n\n"),
        method(c"__exit__", METH_FASTCALL, Pointer { PyCFunctionFast: exit }, c"__exit__($self, *_exception)\n--\n\n"),
        plain(c"__aenter__", enter_async, c"__aenter__($self)\n--\n\n"),
        method(
            c"__aexit__",
            METH_FASTCALL,
            Pointer { PyCFunctionFast: exit_async },
            c"__aexit__($self, *_exception)\n--\n\n",
        ),
        ffi::PyMethodDef::zeroed(),
    ]));
    let getters = Box::leak(Box::new([
        getter(c"fence", method!(*mut c_void, |_, permit| Ok(permit.shared.core.fence(&permit.raw))), FENCE),
        getter(c"chosen", method!(*mut c_void, |py, permit| Ok(permit.chosen(py))), CHOSEN),
        getter(c"started", method!(*mut c_void, |_, permit| Ok(permit.started)), STARTED),
        getter(c"wait", method!(*mut c_void, |_, permit| Ok(permit.wait())), WAIT),
        getter(c"ready_at", method!(*mut c_void, |_, permit| Ok(permit.ready_at())), READY_AT),
        getter(
            c"ready_at_monotonic",
            method!(*mut c_void, |_, permit| Ok(permit.ready_at_monotonic())),
            READY_AT_MONOTONIC,
        ),
        ffi::PyGetSetDef::default(),
    ]));
    let slot = |slot, pfunc| ffi::PyType_Slot { slot, pfunc };
    let mut slots = [
        slot(ffi::Py_tp_doc, DOC.as_ptr() as *mut c_void),
        slot(ffi::Py_tp_dealloc, dealloc as *mut c_void),
        slot(ffi::Py_tp_repr, repr as *mut c_void),
        slot(ffi::Py_tp_methods, methods.as_mut_ptr().cast()),
        slot(ffi::Py_tp_getset, getters.as_mut_ptr().cast()),
        ffi::PyType_Slot::default(),
    ];
    let mut spec = ffi::PyType_Spec {
        name: c"workglow_limit.Permit".as_ptr(),
        basicsize: size_of::<Object>() as c_int,
        itemsize: 0,
        flags: (ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION) as _,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: each slot holds the value of its kind, and the functions have the types that their flags declare.
    let class = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpec(&raw mut spec)) }?;
    Ok(class.cast_into::<PyType>()?.unbind())
}
