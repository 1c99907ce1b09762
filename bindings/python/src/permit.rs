//! What an admitted start holds.

use crate::argument::{self, quoting, wrong_type};
use crate::asking;
use crate::by_hand::{self, Signature};
use crate::elsewhere::Whose;
use crate::error::raised;
use crate::limiter::Node;
use crate::origin;
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
use workglow_limit::{Error, MayWait, RawPermit, Result, fork_generation};

/// How a permit ends.
#[derive(Clone, Copy, PartialEq)]
pub enum End {
    Complete,
    Cancel,
    Settle(u64),
}

impl End {
    fn of(self, core: &dyn workglow_limit::Limiter, raw: &RawPermit, started: bool) -> Result<()> {
        match self {
            End::Complete => core.complete(raw),
            End::Cancel if started => core.cancel(raw),
            // Somebody may have started with its text meanwhile.
            End::Cancel => core.cancel_place(raw),
            End::Settle(actual) => core.settle(raw, actual),
        }
    }
}

/// A permit or place. Python's class of it is at the end of this file.
pub struct Permit {
    node: Arc<Node>,
    raw: RawPermit,
    /// The key, where somebody who waits for it wants to hear of the end.
    key: Option<Box<str>>,
    /// False for a place.
    started: bool,
    /// Of the process that took it.
    generation: u64,
    ended: AtomicBool,
    /// When to present a place again that is ready, but not admitted yet by a limit that cannot tell when; in µs.
    again: AtomicU64,
}

impl Permit {
    #[inline]
    pub fn new(node: &Arc<Node>, raw: RawPermit) -> Permit {
        Self::made(node, raw, true, None)
    }

    /// A start on a key that is known.
    #[inline]
    pub fn with_key(node: &Arc<Node>, raw: RawPermit, key: &str) -> Permit {
        Self::made(node, raw, true, node.holds(&raw).then(|| key.into()))
    }

    /// A place, to present after so long.
    pub fn place(node: &Arc<Node>, raw: RawPermit, after: Duration) -> Permit {
        let place = Self::made(node, raw, false, None);
        place.present_after(after);
        place
    }

    /// Notes what nobody can calculate later.
    pub fn present_after(&self, after: Duration) {
        let is_ready = self.node.core.ready_in(&self.raw).is_none_or(|wait| wait.is_zero());
        self.again.store(if is_ready { after.as_micros() as u64 } else { 0 }, Relaxed);
    }

    #[inline]
    fn made(node: &Arc<Node>, raw: RawPermit, started: bool, key: Option<Box<str>>) -> Permit {
        let (ended, again) = (AtomicBool::new(false), AtomicU64::new(0));
        Permit { node: node.clone(), raw, key, started, generation: fork_generation(), ended, again }
    }

    /// Completes it as a permit of `node`.
    pub fn complete_at(&self, py: Python<'_>, node: &Arc<Node>) -> PyResult<()> {
        if !Arc::ptr_eq(&self.node, node) {
            return Err(raised(Error::ForeignPermit { limit: node.core.name().to_owned() }));
        }
        self.complete(py)
    }

    /// Ends it, and lets those who wait for it look again.
    pub fn end_with(&self, end: End) -> Result<()> {
        if !self.begin_to_end() {
            return Ok(());
        }
        self.ended_with(end, end.of(&*self.node.core, &self.raw, self.started))
    }

    /// The same where it may wait. Who is killed meanwhile has ended it, too.
    fn end(&self, py: Python<'_>, end: End) -> PyResult<()> {
        if !self.begin_to_end() {
            return Ok(());
        }
        let (raw, started) = (self.raw, self.started);
        let ended = self.node.wait(py, "", move |core, _| end.of(core, &raw, started))?;
        self.ended_with(end, ended).map_err(raised)
    }

    pub fn whose(&self) -> Whose {
        self.node.whose
    }

    /// Is it this call's to end? It remembers, so that only the first end counts, whatever the others would be.
    fn begin_to_end(&self) -> bool {
        !self.is_over() && !self.ended.swap(true, Relaxed)
    }

    fn ended_with(&self, end: End, ended: Result<()>) -> Result<()> {
        if ended.is_err() {
            self.ended.store(false, Relaxed);
            return ended;
        }
        // A limit of starts frees nothing when one is complete.
        if self.node.has_lines() && (end != End::Complete || self.key.is_some() || self.node.holds(&self.raw)) {
            self.node.freed(self.key.as_deref());
        }
        Ok(())
    }

    /// Is there nothing to end? It has ended, or it is another process's.
    #[inline]
    fn is_over(&self) -> bool {
        self.ended.load(Relaxed) || self.is_inherited()
    }

    /// Is it another process's?
    #[inline]
    fn is_inherited(&self) -> bool {
        self.generation != fork_generation()
    }
}

impl Permit {
    /// Completes it, and says that it was forgotten, as Python does for a file that was not closed.
    #[cold]
    fn forgotten(&self) {
        let limiter = self.node.core.name();
        let told = Python::try_attach(|py| {
            // An exception may be on its way: it is not ours to lose.
            let pending = PyErr::take(py);
            let mut ended = self.node.core.complete(&self.raw);
            if let Err(Error::WouldWait) = ended {
                // Whatever is being collected here: nobody else runs meanwhile.
                ended = wait_here(py, || self.node.core.complete(&self.raw));
            }
            if let Err(e) = ended.map_err(raised) {
                e.write_unraisable(py, None);
            }
            self.node.freed(self.key.as_deref());
            let text = format!("a permit of {limiter:?} was dropped without an end: use it in a with statement");
            // Quoting a name escapes its zeros.
            let text = CString::new(text).unwrap_or_default();
            if let Err(e) = PyErr::warn(py, &py.get_type::<PyResourceWarning>(), &text, 1) {
                e.write_unraisable(py, None);
            }
            if let Some(pending) = pending {
                pending.restore(py);
            }
        });
        if told.is_none() {
            // Python is about to end. Limiters that are written in Python have ended.
            let _ = MayWait::Briefly.during(|| self.node.core.complete(&self.raw));
        }
    }
}

// What Python calls.
impl Permit {
    pub fn complete(&self, py: Python<'_>) -> PyResult<()> {
        match self.end_with(End::Complete) {
            Err(Error::WouldWait) => self.end(py, End::Complete),
            ended => ended.map_err(raised),
        }
    }

    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.end(py, End::Cancel)
    }

    fn settle(&self, py: Python<'_>, actual: u64) -> PyResult<()> {
        self.end(py, End::Settle(actual))
    }

    fn renew(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_inherited() {
            return Ok(());
        }
        let raw = self.raw;
        self.node.decide(py, "", move |core, _| core.renew(&raw))
    }

    fn to_text(&self, py: Python<'_>) -> PyResult<String> {
        let raw = self.raw;
        self.node.decide(py, "", move |core, _| core.to_text(&raw))
    }

    fn wait(&self) -> f64 {
        if self.started {
            return 0.0;
        }
        let again = Duration::from_micros(self.again.load(Relaxed));
        self.node.core.ready_in(&self.raw).unwrap_or_default().max(again).as_secs_f64()
    }

    fn ready_at(&self) -> Option<SystemTime> {
        self.node.core.ready_at(&self.raw)
    }

    fn ready_at_monotonic(&self) -> Option<f64> {
        let ns = self.node.core.ready_at_monotonic_ns(&self.raw)?;
        // Whole microseconds are exact as a float for centuries; the quotient may round up, so take the one below.
        Some(((ns / 1_000) as f64 / 1e6).next_down())
    }

    fn check_started(&self) -> PyResult<()> {
        if self.started {
            return Ok(());
        }
        let reason = "a place that has not started cannot be entered: present it, and enter the permit that it becomes";
        Err(raised(Error::Unsupported { reason: reason.to_owned() }))
    }

    fn repr(&self) -> String {
        let started = if self.started { "" } else { ", not started" };
        let ended = if self.is_over() { ", ended" } else { "" };
        format!("<Permit of {:?}{started}{ended}>", self.node.core.name())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.is_over() {
            return;
        }
        if !self.started {
            // It may be on its way as a text, and goes on.
            return self.node.core.drop_place(&self.raw);
        }
        if self.node.holds(&self.raw) {
            self.forgotten();
        } else {
            // Nobody is left to hear of an error.
            let _ = self.node.core.complete(&self.raw);
        }
    }
}

/// A place as Python gives it: the object, or its text.
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

    /// The same, to wait with: it has a key, a weight and a grace of its own, and has yet to start.
    pub fn to_wait_with(
        value: &Bound<'_, PyAny>,
        key: Option<&str>,
        weight: u64,
        grace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Place> {
        const NONE: &str = "none beside a place, which has its own";
        let wrong =
            |parameter, value| Err(raised(Error::InvalidArgument { parameter, value, expected: NONE.to_owned() }));
        if let Some(key) = key {
            return wrong("key", format!("{key:?}"));
        }
        if weight != 1 {
            return wrong("weight", weight.to_string());
        }
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

    /// What the core knows it by.
    pub fn raw(&self, py: Python<'_>, node: &Arc<Node>) -> PyResult<RawPermit> {
        match self {
            Place::Object(permit) => Ok(Permit::of(permit).raw),
            Place::Text(text) => read(node, "place", text.bind(py)),
        }
    }

    /// Another permit took its place, or nobody has it any more.
    pub fn use_up(&self) {
        if let Place::Object(permit) = self {
            Permit::of(permit).ended.store(true, Relaxed);
        }
    }

    /// The object, if it still is that place.
    pub fn object(&self, place: &RawPermit) -> Option<&Py<Permit>> {
        match self {
            Place::Object(permit) if Permit::of(permit).raw == *place && !Permit::of(permit).is_over() => Some(permit),
            _ => None,
        }
    }
}

/// The permit or place of a text.
pub fn read(node: &Arc<Node>, parameter: &'static str, given: &Bound<'_, PyAny>) -> PyResult<RawPermit> {
    let text = argument::text(parameter, given)?;
    let read = node.ask(given.py(), text, |core, text| core.permit_from_text(text), |_, _| ());
    read?.map_err(|e| quoting(e, &[("place", parameter, given)]))
}

// Python's class. Each start makes an object of it and ends that, so it is written by hand: those of PyO3 take part in the collection
// of garbage and are made by `object.__new__`, which takes about as long as a decision. A permit refers to no other object.

#[repr(C)]
struct Object {
    head: ffi::PyObject,
    permit: Permit,
}

// SAFETY: the class is made once and has no subclasses, so what is of it is an `Object`.
unsafe impl PyTypeInfo for Permit {
    #[inline]
    fn type_object_raw(py: Python<'_>) -> *mut ffi::PyTypeObject {
        static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        // Made while the module is, where what fails is raised.
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
    /// Makes an object. Its permit is made in its place: to move one takes a tenth of a decision.
    #[inline(always)]
    pub fn object<'py>(py: Python<'py>, make: impl FnOnce() -> Permit) -> PyResult<Bound<'py, Permit>> {
        // SAFETY: a new object, or null; it is an object of this class as soon as it has its permit.
        unsafe {
            let object = ffi::PyObject_New::<Object>(Permit::type_object_raw(py));
            if object.is_null() {
                drop(make()); // It ends.
                return Err(PyErr::fetch(py));
            }
            (&raw mut (*object).permit).write(make());
            Ok(Bound::from_owned_ptr(py, object.cast()).cast_into_unchecked())
        }
    }

    /// The permit of an object.
    pub fn of(object: &Py<Permit>) -> &Permit {
        // SAFETY: the object is of the class, and lives as long as the reference to it. Nothing changes it but by its atomics.
        unsafe { &(*object.as_ptr().cast::<Object>()).permit }
    }
}

/// Calls a method of Rust's for Python.
///
/// # Safety
/// `this` is of the class, and the thread is attached: as whenever Python calls a method of it.
unsafe fn call<R: for<'py> IntoPyObject<'py>>(
    this: *mut ffi::PyObject,
    method: impl for<'py> FnOnce(Python<'py>, &Permit) -> PyResult<R>,
) -> *mut ffi::PyObject {
    // SAFETY: as the caller says. Whoever calls keeps the object.
    unsafe {
        let permit = &(*this.cast::<Object>()).permit;
        by_hand::answer(|py| method(py, permit)?.into_py_any(py).map(Py::into_ptr))
    }
}

/// A method without arguments, or a getter (which has a pointer in their stead, too).
macro_rules! method {
    ($argument:ty, $method:expr) => {{
        unsafe extern "C" fn method(this: *mut ffi::PyObject, _: $argument) -> *mut ffi::PyObject {
            // SAFETY: Python calls.
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
        // SAFETY: Python calls.
        let actual = unsafe { actual("Permit.settle", py, given, number, names) }?;
        permit.settle(py, actual).map(|()| py.None())
    };
    // SAFETY: Python calls.
    unsafe { call(this, method) }
}

unsafe extern "C" fn settle_async(
    this: *mut ffi::PyObject,
    given: *const *mut ffi::PyObject,
    number: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    let method = |py: Python<'_>, _: &Permit| {
        // SAFETY: Python calls.
        unsafe {
            let end = End::Settle(actual("Permit.settle_async", py, given, number, names)?);
            asking::end(py, itself(py, this), end).map(Bound::unbind)
        }
    };
    // SAFETY: Python calls.
    unsafe { call(this, method) }
}

/// The argument of settle.
///
/// # Safety
/// As `Signature::arguments`.
unsafe fn actual(
    method: &'static str,
    py: Python<'_>,
    given: *const *mut ffi::PyObject,
    number: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> PyResult<u64> {
    let takes: Signature<1> = Signature { method, parameters: ["actual"], required: 1 };
    // SAFETY: as the caller says.
    let [actual] = unsafe { takes.arguments(py, given, number, names) }?;
    actual.map_or(Ok(0), |actual| argument::actual(&actual))
}

unsafe extern "C" fn exit(
    this: *mut ffi::PyObject,
    _exception: *mut *mut ffi::PyObject,
    _number: ffi::Py_ssize_t,
) -> *mut ffi::PyObject {
    // SAFETY: Python calls.
    unsafe { call(this, |py, permit| permit.complete(py).map(|()| py.None())) }
}

/// The object of a method's call.
///
/// # Safety
/// `this` is of the class: as whenever Python calls a method of it.
unsafe fn itself(py: Python<'_>, this: *mut ffi::PyObject) -> Py<Permit> {
    // SAFETY: as the caller says. Whoever calls keeps the object meanwhile.
    unsafe { Bound::from_borrowed_ptr(py, this).cast_into_unchecked().unbind() }
}

unsafe extern "C" fn enter(this: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: Python calls.
    unsafe { call(this, |py, permit| permit.check_started().map(|()| itself(py, this))) }
}

// Those for asyncio answer coroutines, which keep the object.

unsafe extern "C" fn enter_async(this: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    static ITSELF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let entered = |py: Python<'_>, permit: &Permit| {
        permit.check_started()?;
        // SAFETY: Python calls.
        let permit = unsafe { itself(py, this) };
        Ok(ITSELF.import(py, "workglow_limit._loops", "itself")?.call1((permit,))?.unbind())
    };
    // SAFETY: Python calls.
    unsafe { call(this, entered) }
}

unsafe extern "C" fn exit_async(
    this: *mut ffi::PyObject,
    _exception: *mut *mut ffi::PyObject,
    _number: ffi::Py_ssize_t,
) -> *mut ffi::PyObject {
    // SAFETY: Python calls.
    unsafe { complete_async(this, ptr::null_mut()) }
}

unsafe extern "C" fn complete_async(this: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: Python calls.
    unsafe { call(this, |py, _| asking::end(py, itself(py, this), End::Complete).map(Bound::unbind)) }
}

unsafe extern "C" fn cancel_async(this: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: Python calls.
    unsafe { call(this, |py, _| asking::end(py, itself(py, this), End::Cancel).map(Bound::unbind)) }
}

unsafe extern "C" fn repr(this: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: Python calls.
    unsafe { call(this, |_, permit| Ok(permit.repr())) }
}

unsafe extern "C" fn dealloc(this: *mut ffi::PyObject) {
    // SAFETY: nobody has the object any more. It has a reference to its class.
    unsafe {
        let class = ffi::Py_TYPE(this);
        let _ = catch_unwind(|| ptr::drop_in_place(&raw mut (*this.cast::<Object>()).permit));
        ffi::PyObject_Free(this.cast());
        ffi::Py_DECREF(class.cast());
    }
}

const DOC: &CStr = c"\
What an admitted start holds. It ends with complete(), cancel() or settle(), or completes with its block when used
in a with statement (in asyncio: async with), whatever happened inside. Ending it again is a no-op. In a forked child an inherited permit
does nothing: it is the parent's.

Or a place: a start in the future, taken by Limiter.reserve(). It has not started, and does so when it is presented.";

const STAYS: &str =
    "a permit stays with its process, and so does a copy: send to_text(), and read it with Limiter.permit or .place";

const COMPLETE: &CStr = c"complete($self)\n--\n\nThe job ran.";

const CANCEL: &CStr = c"cancel($self)\n--\n\n\
The job never ran, or nobody will use the place: its units are free again at once.";

const SETTLE: &CStr = c"settle($self, actual)\n--\n\n\
The job ran, and was worth actual units instead of the weight that it started with: what it did not use is free
again at once, what it used beyond is owed, up to one whole capacity, and delays later starts.";

const COMPLETE_ASYNC: &CStr = c"complete_async($self)\n--\n\n\
complete for asyncio: await it. What has to wait for the store does not hold up the event loop, and goes on if the task\n\
that awaits it is cancelled.";

const CANCEL_ASYNC: &CStr = c"cancel_async($self)\n--\n\ncancel for asyncio, as complete_async.";

const SETTLE_ASYNC: &CStr = c"settle_async($self, actual)\n--\n\nsettle for asyncio, as complete_async.";

const RENEW: &CStr = c"renew($self)\n--\n\n\
Lets a lease begin anew: it holds its units for its whole length from now on. A no-op for permits that are no leases.
Raises LeaseLost if it has ended meanwhile; perhaps another start holds its units by now.";

const TO_TEXT: &CStr = c"to_text($self)\n--\n\n\
The permit or place as a short text, with which another process that has the same limit can go on: present()
takes the text of a place, permit() that of a start.";

const FENCE: &CStr = c"\
A number that is larger for every later lease of the same key, for what the lease protects to refuse whoever comes
late; None for permits that are no leases.";

const STARTED: &CStr = c"False for a place.";

const WAIT: &CStr = c"\
In how many seconds to present the place; 0.0 if it has started, or is ready and nobody has refused it yet.";

const READY_AT: &CStr = c"When the start's place comes or came, if it had to wait for one. Aware, in UTC.";

const READY_AT_MONOTONIC: &CStr = c"\
The same in seconds on the clock of time.monotonic(), never later than it was (on a server: by no more than its answers are late): for measuring.";

/// Makes the class.
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
    // Python goes on using these.
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
        plain(c"renew", method!(None, |py, permit| permit.renew(py).map(|()| py.None())), RENEW),
        plain(c"to_text", method!(None, |py, permit| permit.to_text(py)), TO_TEXT),
        plain(c"__reduce__", method!(None, |_, _| origin::stays::<()>(STAYS)), c"__reduce__($self)\n--\n\n"),
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
        getter(c"fence", method!(*mut c_void, |_, permit| Ok(permit.node.core.fence(&permit.raw))), FENCE),
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
    // SAFETY: each slot has what it is for, and the functions have the types that their flags say.
    let class = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpec(&raw mut spec)) }?;
    Ok(class.cast_into::<PyType>()?.unbind())
}
