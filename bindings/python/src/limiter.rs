//! What all limiters have in common: the base class of the family, and the core's limiter behind it.

use crate::acquiring::Acquiring;
use crate::argument::{self, instant, quoting, quoting_given, seconds};
use crate::asking::{self, What};
use crate::by_hand::{self, Signature};
use crate::decision::Decision;
use crate::elsewhere::{self, Whose};
use crate::entered::Entered;
use crate::error::{expired, raised};
use crate::hooks;
use crate::line::Waiter;
use crate::origin::Origin;
use crate::permit::{self, End, Permit, Place};
use crate::stats::Stats;
use crate::store::Store;
use crate::waiting::{Here, wait, wait_here, wait_or_undo};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCFunction, PyDict, PyString, PyTuple};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use workglow_limit::{Attempt, Error, MayWait, Presented, RawPermit, Reserved, Seat, Step, fork_generation};

/// The main thread sleeps no longer than this in `acquire` before it looks whether a signal (Ctrl-C) has arrived.
const SLICE: Duration = Duration::from_millis(100);

/// One limiter: what its Python object, its permits and the composites around it share.
pub struct Node {
    pub core: Arc<dyn workglow_limit::Limiter>,
    /// For whom its calls wait.
    pub whose: Whose,
    /// A thread of `elsewhere` looks after its stores.
    is_looked_after: AtomicBool,
    is_composite: bool,
    /// May its permits hold something? Those of a limit that is only a matter of time do not.
    may_hold: bool,
    /// The lines of those who wait for it in event loops, by their loops: see `_loops`. Without a loop where nobody waits.
    lines: OnceLock<Py<PyDict>>,
    /// The process that they are of.
    lines_of: AtomicU64,
}

impl Node {
    /// `store`: the one store for which its calls may wait.
    pub fn new(core: Arc<dyn workglow_limit::Limiter>, store: Option<&Store>) -> Arc<Node> {
        let whose = store.map_or_else(|| Whose::of(&*core), Whose::of);
        let is_composite = core.depth() > 0;
        let may_hold = is_composite || !core.has_places();
        let (is_looked_after, lines) = (AtomicBool::new(false), OnceLock::new());
        let lines_of = AtomicU64::new(fork_generation());
        Arc::new(Node { core, whose, is_looked_after, is_composite, may_hold, lines, lines_of })
    }

    /// Is its time a test's?
    pub fn is_manual(&self) -> bool {
        self.core.manual_clock().is_some()
    }

    /// The lines of its event loops. A forked child has none of its parent's.
    pub fn lines(&self, py: Python<'_>) -> &Py<PyDict> {
        let lines = self.lines.get_or_init(|| PyDict::new(py).unbind());
        let generation = fork_generation();
        if self.lines_of.swap(generation, Relaxed) != generation {
            lines.bind(py).clear();
        }
        lines
    }

    /// Has anybody ever waited for it in an event loop?
    #[inline]
    pub fn has_lines(&self) -> bool {
        self.lines.get().is_some()
    }

    /// May starts without asking for a line go past somebody who waits in an event loop? A composite is asked by lines only: it
    /// may answer with a place.
    pub fn is_waited_for(&self, py: Python<'_>) -> bool {
        self.is_composite || self.lines.get().is_some_and(|lines| !lines.bind(py).is_empty())
    }

    /// There may be room for a key (`None`: nobody knows for which): those who wait for it in event loops look again.
    #[inline]
    pub fn freed(&self, key: Option<&str>) {
        if let Some(lines) = self.lines.get() {
            Python::try_attach(|py| self.wake(lines.bind(py), key));
        }
    }

    fn wake(&self, lines: &Bound<'_, PyDict>, key: Option<&str>) {
        for line in lines.values() {
            if let Err(e) = line.call_method1("wake", (key,)) {
                e.write_unraisable(lines.py(), Some(&line));
            }
        }
    }

    /// Makes a decision under a key: with the GIL, unless it has to wait for something. To let others have the GIL would cost more
    /// than a decision.
    #[inline]
    pub fn decide<R: Send + 'static>(
        self: &Arc<Self>,
        py: Python<'_>,
        key: &str,
        decide: impl Fn(&dyn workglow_limit::Limiter, &str) -> workglow_limit::Result<R> + Send + 'static,
    ) -> PyResult<R> {
        hooks::told(py, self.ask(py, key, decide, |_, _| ())?, raised)
    }

    /// The same, which hooks have still to be told of. `undo` is for an answer that nobody waits for any more.
    #[inline(always)]
    pub fn ask<R: Send + 'static>(
        self: &Arc<Self>,
        py: Python<'_>,
        key: &str,
        call: impl Fn(&dyn workglow_limit::Limiter, &str) -> workglow_limit::Result<R> + Send + 'static,
        undo: impl Fn(&dyn workglow_limit::Limiter, R) + Send + Sync + 'static,
    ) -> PyResult<workglow_limit::Result<R>> {
        let mut answer = call(&*self.core, key);
        if let Err(Error::WouldWait) = answer {
            answer = self.wait_or_undo(py, key, call, undo)?;
        }
        self.look_after(py);
        Ok(answer)
    }

    /// Makes a call, of a key or a text, that may well have to wait.
    pub fn wait<R: Send + 'static>(
        self: &Arc<Self>,
        py: Python<'_>,
        key: &str,
        call: impl FnOnce(&dyn workglow_limit::Limiter, &str) -> R + Send + 'static,
    ) -> PyResult<R> {
        let (node, owned) = (self.clone(), Box::<str>::from(key));
        wait(py, self.whose, move || call(&*node.core, &owned))
    }

    #[cold]
    fn wait_or_undo<R: Send + 'static>(
        self: &Arc<Self>,
        py: Python<'_>,
        key: &str,
        call: impl FnOnce(&dyn workglow_limit::Limiter, &str) -> workglow_limit::Result<R> + Send + 'static,
        undo: impl Fn(&dyn workglow_limit::Limiter, R) + Send + Sync + 'static,
    ) -> PyResult<workglow_limit::Result<R>> {
        let (node, owned) = (self.clone(), Box::<str>::from(key));
        let there = self.clone();
        let undo = move |answer: workglow_limit::Result<R>| {
            if let Ok(answer) = answer {
                MayWait::UntilTimeout.during(|| undo(&*there.core, answer));
            }
        };
        wait_or_undo(py, self.whose, move || call(&*node.core, &owned), undo)
    }

    /// Lets its stores do what decisions left to do.
    #[inline]
    pub fn look_after(self: &Arc<Self>, py: Python<'_>) {
        if self.core.is_due() {
            self.look_after_stores(py);
        }
    }

    /// Without the GIL, and not in an event loop or a greenlet.
    #[cold]
    fn look_after_stores(self: &Arc<Self>, py: Python<'_>) {
        if let Here::Thread = Here::of(py) {
            return py.detach(|| MayWait::UntilTimeout.during(|| self.core.look_after()));
        }
        if self.is_looked_after.swap(true, Relaxed) {
            return;
        }
        let node = self.clone();
        let sent = elsewhere::send(self.whose, move || {
            MayWait::UntilTimeout.during(|| node.core.look_after());
            node.is_looked_after.store(false, Relaxed);
        });
        if sent.is_err() {
            // There is no thread for it. It stays due.
            self.is_looked_after.store(false, Relaxed);
        }
    }

    /// Does a permit hold something until it ends? A lease does; and a limiter written in Python waits to be told.
    pub fn holds(&self, permit: &RawPermit) -> bool {
        self.may_hold && (self.core.fence(permit).is_some() || self.core.has_custom())
    }
}

/// "May this start now, and if not, when?" The base of all limiters.
///
/// Every method takes a key: one policy, a separate budget per key; None is no key. Limiters are used from any thread,
/// and go on working in a forked child.
///
/// `with limiter:` and `async with limiter:` wait for room without a key, enter with the permit, and complete it. A limiter of a
/// store that processes share can be pickled: whoever reads it makes one of the same arguments. A copy is the limiter itself.
#[pyclass(subclass, frozen, module = "workglow_limit")]
pub struct Limiter {
    pub node: Arc<Node>,
    origin: Origin,
    entered: Entered,
}

impl Limiter {
    pub fn of(node: Arc<Node>, origin: Origin) -> PyClassInitializer<Limiter> {
        PyClassInitializer::from(Limiter { node, origin, entered: Entered::default() })
    }

    /// The steps of a waiter after its first. It sleeps without the GIL.
    fn go_on(&self, py: Python<'_>, key: &str, seat: &mut Seat) -> PyResult<Permit> {
        let core = &*self.node.core;
        // Only the main thread gets signals. The others sleep until there is something to do.
        let threading = py.import("threading")?;
        let is_main = threading.call_method0("current_thread")?.is(threading.call_method0("main_thread")?);
        // Who moves a test's clock may do so just before it falls asleep.
        let slice = if is_main || self.node.is_manual() { SLICE } else { Duration::MAX };
        loop {
            py.check_signals()?;
            let step = wait_here(py, || {
                seat.sleep(core, slice);
                seat.step(core)
            });
            match hooks::told(py, step, raised)? {
                Step::Admitted(raw) => return Ok(Permit::with_key(&self.node, raw, key)),
                Step::Expired(after) => return Err(expired(py, core.name(), after)),
                Step::Sleep(_) => {}
            }
        }
    }
}

/// The method that is called more often than all others.
unsafe extern "C" fn try_acquire(
    this: *mut ffi::PyObject,
    given: *const *mut ffi::PyObject,
    number: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    const TAKES: Signature<2> = Signature { method: "Limiter.try_acquire", parameters: ["key", "weight"], required: 0 };
    let start = |py: Python<'_>| {
        // SAFETY: Python calls a method of this class.
        let (this, [key, weight]) = unsafe {
            (Borrowed::from_ptr(py, this).cast_unchecked::<Limiter>(), TAKES.arguments(py, given, number, names)?)
        };
        let key = match &key {
            Some(key) => argument::key(key)?.unwrap_or_default(),
            None => "",
        };
        let weight = weight.map_or(Ok(1), |weight| argument::weight(&weight))?;
        let node = &this.get().node;
        // It stays where the core has written it.
        let mut answer = node.core.attempt(key, weight);
        if let Err(Error::WouldWait) = answer {
            answer = node.wait_or_undo(py, key, move |core, key| core.attempt(key, weight), give_back)?;
        }
        node.look_after(py);
        if let Ok(Attempt::Admitted(raw)) = &answer {
            hooks::deliver(py, None);
            return Permit::object(py, || Permit::with_key(node, *raw, key)).map(Bound::into_ptr);
        }
        hooks::told(py, answer, raised).map(|_| py.None().into_ptr())
    };
    // SAFETY: as above.
    unsafe { by_hand::answer(start) }
}

/// Nobody waits for this start any more.
fn give_back(core: &dyn workglow_limit::Limiter, answer: Attempt) {
    if let Attempt::Admitted(raw) = answer {
        let _ = core.cancel(&raw);
    }
}

/// Gives the class the methods that are written by hand.
pub fn complete_class(py: Python<'_>) -> PyResult<()> {
    let class = py.get_type::<Limiter>();
    // Python goes on using it.
    let method = Box::leak(Box::new(ffi::PyMethodDef {
        ml_name: c"try_acquire".as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: try_acquire },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: TRY_ACQUIRE.as_ptr(),
    }));
    // SAFETY: a method of that class, which is of the type that its flags say.
    let method = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyDescr_NewMethod(class.as_type_ptr(), method)) }?;
    class.setattr("try_acquire", method)
}

const TRY_ACQUIRE: &CStr = c"try_acquire($self, key=None, weight=1)\n--\n\n\
Starts if there is room now: decides and records in one act. A denial is None, and consumes nothing.";

#[pymethods]
impl Limiter {
    /// The limit's name: what Decision.denied_by says.
    #[getter]
    fn name(&self) -> &str {
        self.node.core.name()
    }

    /// The same, answering with the whole decision.
    #[pyo3(signature = (key=None, weight=1))]
    fn decide(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
        #[pyo3(from_py_with = argument::weight)] weight: u64,
    ) -> PyResult<Decision> {
        let key = key.unwrap_or_default();
        let decide = move |core: &dyn workglow_limit::Limiter, key: &str| core.decide(key, weight);
        let answer = self.node.ask(py, key, decide, |core, decision| {
            decision.permit.map(|raw| core.cancel(&raw));
        })?;
        Decision::new(py, &self.node, key, hooks::told(py, answer, raised)?)
    }

    /// The decision that decide would give, without a permit. Records nothing. weight may be 0.
    #[pyo3(signature = (key=None, weight=1))]
    fn peek(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
        #[pyo3(from_py_with = argument::weight_to_peek)] weight: u64,
    ) -> PyResult<Decision> {
        let key = key.unwrap_or_default();
        Decision::new(py, &self.node, key, self.node.decide(py, key, move |core, key| core.peek(key, weight))?)
    }

    /// Waits for room, at most timeout seconds (None: as long as it takes), without the GIL; Ctrl-C interrupts it. Waiters
    /// of one process start in the order of their priority (lower numbers first), and then of asking.
    ///
    /// place is one that was taken elsewhere, as reserve answered it or as its text, in the stead of key and weight. It
    /// is this waiter's from then on. Whoever is interrupted, or runs out of time, hands its place back.
    ///
    /// grace is for who may be held up, by a busy event loop or a pause of the garbage collector, say: so many seconds late it
    /// still starts with its place, at least (None: a fortieth of the window, at most 50 ms). While its place is kept for it nobody
    /// else has that start, so ask for no more than is needed. A place that was taken elsewhere has its own.
    ///
    /// Raises AcquireTimeout if there is no room before that: at once, if that can be known at once.
    #[pyo3(signature = (key=None, weight=1, timeout=None, *, priority=0, place=None, grace=None))]
    #[allow(clippy::too_many_arguments)] // All but three are keywords.
    fn acquire(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
        #[pyo3(from_py_with = argument::weight)] weight: u64,
        #[pyo3(from_py_with = argument::patience)] timeout: Option<Duration>,
        #[pyo3(from_py_with = argument::priority)] priority: i32,
        place: Option<&Bound<'_, PyAny>>,
        grace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<Permit>> {
        let good_for = grace.map(|grace| seconds("grace", grace)).transpose()?.unwrap_or_default();
        let given = place.map(|place| Place::to_wait_with(place, key, weight, grace)).transpose()?;
        let key = key.unwrap_or_default();
        let core = &*self.node.core;
        let object = |permit: Permit| permit.into_pyobject(py).map(Bound::unbind);
        // A greenlet goes past nobody who waits in its hub; nor does a place, which waits there.
        let asks_hub = given.is_some() || self.node.is_waited_for(py);
        let mut here = if asks_hub { Here::of(py) } else { Here::Thread };
        let ask = workglow_limit::Waiter::new(key, weight).priority(priority).timeout(timeout).grace(good_for);
        let mut seat = Seat::new(ask);
        if !matches!(here, Here::Hub(_)) {
            if let Some(place) = &given {
                let place = Some(place.raw(py, &self.node)?);
                seat = Seat::new(workglow_limit::Waiter { place, ..ask });
            }
            // Without a line there is no lock that somebody may hold who wants the GIL.
            let started = hooks::told(py, seat.start_at_once(core), raised)?;
            self.node.look_after(py);
            if let Some(raw) = started {
                return object(Permit::with_key(&self.node, raw, key));
            }
        }
        if !asks_hub {
            here = Here::of(py);
        }
        if let Here::Hub(hub) = here {
            let waiter = Waiter::new(&self.node, key, weight);
            let waiter = Waiter { priority, timeout, grace: good_for, place: given, ..waiter };
            return Ok(hub.call_method1("acquire", (waiter,))?.cast_into::<Permit>()?.unbind());
        }
        let first = hooks::told(py, wait_here(py, || seat.step(core)), raised)?;
        // From its first step on a place is the waiter's.
        given.inspect(Place::use_up);
        match first {
            Step::Admitted(raw) => return object(Permit::with_key(&self.node, raw, key)),
            Step::Expired(after) => return Err(expired(py, core.name(), after)),
            Step::Sleep(_) => {}
        }
        let permit = self.go_on(py, key, &mut seat);
        if permit.is_err() {
            wait_here(py, || seat.leave(core));
        }
        object(permit?)
    }

    /// The same for asyncio: await it for the permit, or `async with` it. A waiter that is cancelled holds no permit, and
    /// hands its place back.
    #[pyo3(signature = (key=None, weight=1, timeout=None, *, priority=0, place=None, grace=None))]
    fn acquire_async(
        &self,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
        #[pyo3(from_py_with = argument::weight)] weight: u64,
        #[pyo3(from_py_with = argument::patience)] timeout: Option<Duration>,
        #[pyo3(from_py_with = argument::priority)] priority: i32,
        place: Option<&Bound<'_, PyAny>>,
        grace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Acquiring> {
        let good_for = grace.map(|grace| seconds("grace", grace)).transpose()?.unwrap_or_default();
        let place = place.map(|place| Place::to_wait_with(place, key, weight, grace)).transpose()?;
        let waiter = Waiter::new(&self.node, key.unwrap_or_default(), weight);
        let waiter = Waiter { priority, timeout, grace: good_for, place, ..waiter };
        Ok(Acquiring::new(waiter))
    }

    /// try_acquire for asyncio: await it. What has to wait for the store does not hold up the event loop.
    #[pyo3(signature = (key=None, weight=1))]
    fn try_acquire_async<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
        #[pyo3(from_py_with = argument::weight)] weight: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        asking::limiter(py, &self.node, What::TryAcquire, key, weight)
    }

    /// decide for asyncio: await it. What has to wait for the store does not hold up the event loop.
    #[pyo3(signature = (key=None, weight=1))]
    fn decide_async<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
        #[pyo3(from_py_with = argument::weight)] weight: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        asking::limiter(py, &self.node, What::Decide, key, weight)
    }

    /// peek for asyncio: await it. What has to wait for the store does not hold up the event loop.
    #[pyo3(signature = (key=None, weight=1))]
    fn peek_async<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
        #[pyo3(from_py_with = argument::weight_to_peek)] weight: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        asking::limiter(py, &self.node, What::Peek, key, weight)
    }

    /// Takes a place: a start in the future, or now, which counts from now on. None, and nothing taken, if it would be
    /// more than max_wait seconds away (None: however far). present() starts with it.
    ///
    /// It is good for one start, from its ready_at until grace seconds later (None: a fortieth of the window, at most
    /// 50 ms). Whoever cannot use it gives it back with cancel().
    #[pyo3(signature = (key=None, weight=1, max_wait=None, grace=None))]
    fn reserve(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
        #[pyo3(from_py_with = argument::weight)] weight: u64,
        max_wait: Option<&Bound<'_, PyAny>>,
        grace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Permit>> {
        let most = max_wait.map(|most| seconds("max_wait", most)).transpose()?;
        let good_for = grace.map(|grace| seconds("grace", grace)).transpose()?;
        let reserve = move |core: &dyn workglow_limit::Limiter, key: &str| core.reserve(key, weight, most, good_for);
        let answer = self.node.wait_or_undo(py, key.unwrap_or_default(), reserve, |core, answer| {
            if let Reserved::Place { place, .. } = answer {
                let _ = core.cancel_place(&place);
            }
        })?;
        let given = [("max_wait", "max_wait", max_wait), ("grace", "grace", grace)];
        Ok(match hooks::told(py, answer, |e| quoting_given(e, given))? {
            Reserved::Place { place, after } => Some(Permit::place(&self.node, place, after)),
            Reserved::Denied(_) => None,
        })
    }

    /// Starts with a place, as reserve answered it or as its text, if its time has come.
    ///
    /// The permit that it answers has started; or else it is the place to present after its wait: the same if this was
    /// too early, a fresh one if the place came too late, was used before, or was overtaken by a gate or another limit.
    fn present(&self, py: Python<'_>, place: &Bound<'_, PyAny>) -> PyResult<Py<Permit>> {
        let given = Place::given(place)?;
        let raw = given.raw(py, &self.node)?;
        let present = move |core: &dyn workglow_limit::Limiter, _: &str| core.present(&raw);
        let answer = self.node.wait_or_undo(py, "", present, move |core, answer| match answer {
            Presented::Started(raw) => drop(core.cancel(&raw)),
            Presented::Wait { place, .. } if place != raw => drop(core.cancel_place(&place)),
            Presented::Wait { .. } => {}
        })?;
        let next = match hooks::told(py, answer, raised)? {
            Presented::Started(raw) => Permit::new(&self.node, raw),
            Presented::Wait { place, after } => match given.object(&place) {
                Some(same) => {
                    Permit::of(same).present_after(after);
                    return Ok(same.clone_ref(py));
                }
                None => Permit::place(&self.node, place, after),
            },
        };
        given.use_up();
        next.into_pyobject(py).map(Bound::unbind)
    }

    /// The permit of a text that to_text wrote, perhaps in another process: to complete, cancel or settle its start.
    fn permit(&self, text: &Bound<'_, PyAny>) -> PyResult<Permit> {
        Ok(Permit::new(&self.node, permit::read(&self.node, "text", text)?))
    }

    /// The place of such a text: to present it, or to give it back with cancel(), which does nothing if somebody has started
    /// with it meanwhile.
    fn place(&self, text: &Bound<'_, PyAny>) -> PyResult<Permit> {
        let raw = permit::read(&self.node, "text", text)?;
        Ok(Permit::place(&self.node, raw, Duration::ZERO))
    }

    /// The shortest time over which starts are counted, in seconds; None if they are not. The grace of a place costs the
    /// limit a part of that.
    #[getter]
    fn window(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        let window = self.node.decide(py, "", |core, key| core.window(key))?;
        Ok(window.map(|window| window.as_secs_f64()))
    }

    /// Decorates a function or a coroutine function: each call waits for room, and its permit ends with it. Raises as
    /// acquire does. key names an argument of the call, is a format of them such as "{tenant}:{model}", or a function that
    /// gets them; weight is a number, names an argument, or is such a function.
    #[pyo3(signature = (key=None, weight=None, timeout=None), text_signature = "($self, key=None, weight=1, timeout=None)")]
    fn limit<'py>(
        this: &Bound<'py, Self>,
        key: Option<&Bound<'py, PyAny>>,
        weight: Option<&Bound<'py, PyAny>>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // What is wrong is said where it is written, not at the first call.
        if let Some(key) = key.filter(|key| !key.is_callable()) {
            argument::key(key)?;
        }
        if let Some(weight) = weight.filter(|weight| !weight.is_callable() && !weight.is_instance_of::<PyString>()) {
            argument::weight(weight)?;
        }
        timeout.map(argument::timeout).transpose()?;
        this.py().import("workglow_limit._decorator")?.getattr("limit")?.call1((this, key, weight, timeout))
    }

    /// The same for a function that is not yours to decorate: what it answers waits for room and then calls it.
    #[pyo3(
        signature = (function, key=None, weight=None, timeout=None),
        text_signature = "($self, function, key=None, weight=1, timeout=None)"
    )]
    fn wrap<'py>(
        this: &Bound<'py, Self>,
        function: &Bound<'py, PyAny>,
        key: Option<&Bound<'py, PyAny>>,
        weight: Option<&Bound<'py, PyAny>>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Self::limit(this, key, weight, timeout)?.call1((function,))
    }

    /// Ends a permit of this limiter: the job ran. Ending it again is a no-op; another limiter's is a ForeignPermit.
    fn complete(&self, permit: &Bound<'_, Permit>) -> PyResult<()> {
        Permit::of(permit.as_unbound()).complete_at(permit.py(), &self.node)
    }

    /// Would a start of weight 1 be admitted now? Changes nothing.
    #[pyo3(signature = (key=None))]
    fn can_proceed(&self, py: Python<'_>, #[pyo3(from_py_with = argument::key)] key: Option<&str>) -> PyResult<bool> {
        let key = key.unwrap_or_default();
        self.node.decide(py, key, |core, key| core.can_proceed(key))
    }

    /// A job has started: recorded even when the limit is full, because the caller has already decided.
    #[pyo3(signature = (key=None))]
    fn record_job_start(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
    ) -> PyResult<()> {
        let key = key.unwrap_or_default();
        self.node.decide(py, key, |core, key| core.record_job_start(key))
    }

    /// A job has ended: the oldest start without a permit that this process recorded on that key.
    #[pyo3(signature = (key=None))]
    fn record_job_completion(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
    ) -> PyResult<()> {
        let key = key.unwrap_or_default();
        self.node.decide(py, key, |core, key| core.record_job_completion(key))?;
        self.node.freed(Some(key));
        Ok(())
    }

    /// The earliest instant at which a start of weight 1 would be admitted, gate included; now, if now. Aware, in UTC.
    #[pyo3(signature = (key=None))]
    fn get_next_available_time(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
    ) -> PyResult<SystemTime> {
        let key = key.unwrap_or_default();
        let at = self.node.decide(py, key, |core, key| core.next_available_time(key))?;
        // Python's instants are whole microseconds: rounded up, so as not to be early.
        Ok(at + Duration::from_nanos(999))
    }

    /// Imposes a gate: nobody starts before when, an aware datetime. Gates only move later, except by clear. Without a
    /// key it binds all keys. The past is no gate.
    #[pyo3(signature = (when, key=None))]
    fn set_next_available_time(
        &self,
        py: Python<'_>,
        when: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
    ) -> PyResult<()> {
        let at = instant("when", when)?;
        let key = key.unwrap_or_default();
        let set = self.node.wait(py, key, move |core, key| core.set_next_available_time(key, at))?;
        hooks::told(py, set, |e| quoting(e, &[("next available time", "when", when)]))
    }

    /// The same, relative to now: duration is seconds or a timedelta, up to 366 days.
    #[pyo3(signature = (duration, key=None))]
    fn pause(
        &self,
        py: Python<'_>,
        duration: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
    ) -> PyResult<()> {
        let pause = seconds("duration", duration)?;
        let key = key.unwrap_or_default();
        let paused = self.node.wait(py, key, move |core, key| core.pause(key, pause))?;
        hooks::told(py, paused, |e| quoting(e, &[("pause", "duration", duration)]))
    }

    /// Back to the initial state, gate included. Without a key: of all keys.
    #[pyo3(signature = (key=None))]
    fn clear(&self, py: Python<'_>, #[pyo3(from_py_with = argument::key)] key: Option<&str>) -> PyResult<()> {
        let key = key.unwrap_or_default();
        let cleared = self.node.wait(py, key, |core, key| core.clear(key))?;
        hooks::told(py, cleared, raised)?;
        self.node.freed(Some(key).filter(|key| !key.is_empty()));
        Ok(())
    }

    /// What was counted: of a key, or without one of all. By all processes that share the limit, but for what the others
    /// counted in the last second.
    #[pyo3(signature = (key=None))]
    fn stats(&self, py: Python<'_>, #[pyo3(from_py_with = argument::key)] key: Option<&str>) -> PyResult<Stats> {
        let key = key.unwrap_or_default();
        let stats = self.node.wait(py, key, |core, key| core.stats(key))?;
        hooks::told(py, stats, raised).map(Stats::from)
    }

    /// Calls a function with a LimitEvent whenever that happens to this limiter in this process: "throttled" (a start was
    /// denied, or has to wait), "unknown_limit" or "store_error". Returns a function that ends it.
    ///
    /// What the function raises goes to sys.unraisablehook, and decides nothing.
    fn on<'py>(&self, event: &Bound<'py, PyAny>, function: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyCFunction>> {
        let (here, there) = (&self.node.core, self.node.core.clone());
        hooks::add(event, function, |event, hook| here.on(event, hook), move |number| there.off(number))
    }

    // `with limiter:` starts with the empty key and weight 1, and completes at the end of its body. A limiter is entered as often as
    // one likes, within itself and by many at once.

    fn __enter__(&self, py: Python<'_>) -> PyResult<Py<Permit>> {
        self.entered.enter(py, self.acquire(py, None, 1, None, 0, None, None)?)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        Permit::of(&self.entered.leave(py)?).complete(py)
    }

    fn __aenter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static ENTER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let asked = self.acquire_async(None, 1, None, 0, None, None)?;
        ENTER.import(py, "workglow_limit._loops", "enter")?.call1((asked, self.entered.clone()))
    }

    #[pyo3(signature = (*_exception))]
    fn __aexit__<'py>(&self, py: Python<'py>, _exception: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        asking::end(py, self.entered.leave(py)?, End::Complete)
    }

    // A pickle has what the limiter was made from. A copy is the limiter itself.

    fn __reduce__<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        this.get().origin.reduced(this)
    }

    fn __copy__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __deepcopy__(this: Py<Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
        this
    }

    fn __repr__(this: &Bound<'_, Self>) -> PyResult<String> {
        this.get().origin.repr(this, this.get().node.core.name())
    }
}
