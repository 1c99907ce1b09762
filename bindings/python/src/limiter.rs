//! The base class of all limiters, and the core's limiter behind it.

use crate::acquisition::Acquisition;
use crate::argument::{self, instant, quoting, quoting_given, seconds};
use crate::async_call::{self, Kind};
use crate::composite::Children;
use crate::decision::Decision;
use crate::error::{expired, raised};
use crate::fastcall::{self, Signature};
use crate::hooks;
use crate::joint::{self, Key, Weight};
use crate::line::Waiter;
use crate::origin::Origin;
use crate::permit::{self, End, Permit, Place};
use crate::permit_stacks::PermitStacks;
use crate::stats::Stats;
use crate::store::Store;
use crate::threads::{self, OwnerId};
use crate::waiting::{CallSite, is_in_coroutine, wait, wait_here, wait_or_undo};
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCFunction, PyDict, PyString, PyTuple};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use workglow_limit::embed::{Begun, MayWait, Quota, Seat, Step, fork_generation, is_shared};
use workglow_limit::{Attempt, Error, Presented, RawPermit, Reserved};

/// The longest sleep of the main thread in `acquire` between checks for signals (Ctrl-C).
const SLICE: Duration = Duration::from_millis(100);

/// The part of a limiter that its Python object, its permits and the composites around it share.
pub struct SharedLimiter {
    pub core: Arc<dyn workglow_limit::Limiter>,
    /// The store that its calls wait for.
    pub owner: OwnerId,
    /// Whether a thread of `threads` maintains its stores.
    is_maintained: AtomicBool,
    is_composite: bool,
    /// Whether its permits may hold something. Permits of a limit that depends on time only do not.
    may_hold: bool,
    /// The objects of a composite's children, or of alternatives.
    pub children: Option<Arc<Children>>,
    /// Weak references to the lines of its waiters in event loops, by the loop's id: see `_loops`. A loop without waiters has no
    /// entry.
    lines: OnceLock<Py<PyDict>>,
    /// The process (fork generation) of the lines.
    lines_of: AtomicU64,
}

impl SharedLimiter {
    /// `store` is the only store that its calls may wait for, if there is one.
    pub fn new(core: Arc<dyn workglow_limit::Limiter>, store: Option<&Store>) -> Arc<SharedLimiter> {
        Self::made(core, store, None)
    }

    /// Of a limiter of several others.
    pub fn of(core: Arc<dyn workglow_limit::Limiter>, children: Arc<Children>) -> Arc<SharedLimiter> {
        Self::made(core, None, Some(children))
    }

    fn made(
        core: Arc<dyn workglow_limit::Limiter>,
        store: Option<&Store>,
        children: Option<Arc<Children>>,
    ) -> Arc<SharedLimiter> {
        let owner = store.map_or_else(|| OwnerId::of(&*core), OwnerId::of);
        let is_composite = core.depth() > 0;
        let may_hold = is_composite || !core.has_places();
        let (is_maintained, lines) = (AtomicBool::new(false), OnceLock::new());
        let lines_of = AtomicU64::new(fork_generation());
        Arc::new(SharedLimiter { core, owner, is_maintained, is_composite, may_hold, children, lines, lines_of })
    }

    /// Returns whether its clock is a manual one.
    pub fn is_manual(&self) -> bool {
        self.core.manual_clock().is_some()
    }

    /// Returns the lines of its event loops. A forked child drops its parent's.
    pub fn lines(&self, py: Python<'_>) -> &Py<PyDict> {
        let lines = self.lines.get_or_init(|| PyDict::new(py).unbind());
        let generation = fork_generation();
        if self.lines_of.swap(generation, Relaxed) != generation {
            lines.bind(py).clear();
        }
        lines
    }

    /// Returns whether a caller has ever waited for it in an event loop.
    #[inline]
    pub fn has_had_waiters(&self) -> bool {
        self.lines.get().is_some()
    }

    /// Returns whether a start must join the line of its event loop, because it might overtake a waiter otherwise. Starts of a
    /// composite always join: it may answer with a place.
    pub fn has_waiters(&self, py: Python<'_>) -> bool {
        self.is_composite || self.lines.get().is_some_and(|lines| !lines.bind(py).is_empty())
    }

    /// Wakes the waiters in event loops after units of a key may have become free (`None`: of any key).
    #[inline]
    pub fn wake_waiters(&self, key: Option<&str>) {
        if let Some(lines) = self.lines.get() {
            Python::try_attach(|py| self.wake(lines.bind(py), key));
        }
    }

    fn wake(&self, lines: &Bound<'_, PyDict>, key: Option<&str>) {
        for line in lines.values() {
            let woken = line.call0().and_then(|line| match line.is_none() {
                true => Ok(line), // It was dropped with its loop.
                false => line.call_method1("wake", (key,)),
            });
            if let Err(e) = woken {
                e.write_unraisable(lines.py(), Some(&line));
            }
        }
    }

    /// Makes a decision for a key. It keeps the GIL unless it has to wait, as releasing the GIL costs more than a decision.
    #[inline]
    pub fn decide<R: Send + 'static>(
        self: &Arc<Self>,
        py: Python<'_>,
        key: &str,
        decide: impl Fn(&dyn workglow_limit::Limiter, &str) -> workglow_limit::Result<R> + Send + Sync + 'static,
    ) -> PyResult<R> {
        let mut answer = decide(&*self.core, key);
        if let Err(Error::WouldWait) = answer {
            let key = Box::<str>::from(key);
            let begun = Begun::later(self.core.clone(), move |core| decide(core, &key));
            answer = self.finish(py, begun, |_, _| ())?;
        }
        self.maintain(py);
        hooks::deliver_with(py, answer, raised)
    }

    /// Makes a decision that may take a start, and leaves the hooks to the caller. `undo` cancels that start.
    #[inline(always)]
    pub fn ask<R: Send + 'static>(
        self: &Arc<Self>,
        py: Python<'_>,
        key: &str,
        call: impl Fn(&dyn workglow_limit::Limiter, &str) -> workglow_limit::Result<R> + Send + Sync + 'static,
        undo: impl Fn(&dyn workglow_limit::Limiter, R) + Copy + Send + Sync + 'static,
    ) -> PyResult<workglow_limit::Result<R>> {
        let mut answer = call(&*self.core, key);
        if let Err(Error::WouldWait) = answer {
            answer = self.wait_or_undo(py, key, call, undo)?;
        }
        self.maintain(py);
        Ok(answer)
    }

    /// Makes a call, with a key or a text, that is likely to wait.
    pub fn wait<R: Send + 'static>(
        self: &Arc<Self>,
        py: Python<'_>,
        key: &str,
        call: impl FnOnce(&dyn workglow_limit::Limiter, &str) -> R + Send + 'static,
    ) -> PyResult<R> {
        let (shared, owned) = (self.clone(), Box::<str>::from(key));
        wait(py, self.owner, move || call(&*shared.core, &owned))
    }

    #[cold]
    fn wait_or_undo<R: Send + 'static>(
        self: &Arc<Self>,
        py: Python<'_>,
        key: &str,
        call: impl Fn(&dyn workglow_limit::Limiter, &str) -> workglow_limit::Result<R> + Send + Sync + 'static,
        undo: impl Fn(&dyn workglow_limit::Limiter, R) + Copy + Send + Sync + 'static,
    ) -> PyResult<workglow_limit::Result<R>> {
        let key = Box::<str>::from(key);
        self.finish(py, Begun::new(self.core.clone(), move |core| call(core, &key), undo), undo)
    }

    /// Finishes a call. `undo` takes back an answer whose caller has gone.
    fn finish<R: Send + 'static>(
        self: &Arc<Self>,
        py: Python<'_>,
        begun: Begun<R>,
        undo: impl Fn(&dyn workglow_limit::Limiter, R) + Send + Sync + 'static,
    ) -> PyResult<workglow_limit::Result<R>> {
        if begun.is_over() {
            return Ok(begun.finish());
        }
        let shared = self.clone();
        let undo = move |answer: workglow_limit::Result<R>| {
            if let Ok(answer) = answer {
                MayWait::UntilTimeout.during(|| undo(&*shared.core, answer));
            }
        };
        wait_or_undo(py, self.owner, move || begun.finish(), undo)
    }

    /// Lets its stores do the work that decisions postponed.
    #[inline]
    pub fn maintain(self: &Arc<Self>, py: Python<'_>) {
        if self.core.is_due() {
            self.maintain_stores(py);
        }
    }

    /// Runs without the GIL, and never in an event loop or a greenlet.
    #[cold]
    fn maintain_stores(self: &Arc<Self>, py: Python<'_>) {
        if let CallSite::Thread = CallSite::of(py) {
            return py.detach(|| MayWait::UntilTimeout.during(|| self.core.look_after()));
        }
        if self.is_maintained.swap(true, Relaxed) {
            return;
        }
        let shared = self.clone();
        let sent = threads::send(self.owner, move || {
            MayWait::UntilTimeout.during(|| shared.core.look_after());
            shared.is_maintained.store(false, Relaxed);
        });
        if sent.is_err() {
            // No thread is available. The work stays due.
            self.is_maintained.store(false, Relaxed);
        }
    }

    /// Returns whether a permit holds something until it ends. A lease does, and a limiter written in Python must be notified.
    pub fn holds(&self, permit: &RawPermit) -> bool {
        self.may_hold && (self.core.fence(permit).is_some() || self.core.has_custom())
    }
}

/// The base class of all limiters. A limiter decides whether a job may start now, and if not, when.
///
/// Most methods take a key. All keys have the same policy, and each has its own budget; None means no key. Limiters can be
/// used from any thread, and continue to work in a forked child.
///
/// A mapping as the key or the weight of a start has those of some parts of a composite, by their names. The other parts get no
/// key and weight 1, or the key and the weight that are no mappings. All parts are charged in one act, or none.
///
/// `with limiter:` and `async with limiter:` wait for a start without a key, enter with the permit, and complete it. A limiter
/// whose store is shared by processes can be pickled: unpickling makes a limiter with the same arguments. A copy is the limiter
/// itself.
#[pyclass(subclass, frozen, module = "workglow_limit")]
pub struct Limiter {
    pub shared: Arc<SharedLimiter>,
    pub origin: Origin,
    entered: PermitStacks,
}

impl Limiter {
    pub fn of(shared: Arc<SharedLimiter>, origin: Origin) -> PyClassInitializer<Limiter> {
        PyClassInitializer::from(Limiter { shared, origin, entered: PermitStacks::default() })
    }

    /// Runs the steps of a waiter after its first. It sleeps without the GIL.
    fn wait_in_line(&self, py: Python<'_>, key: &str, seat: &mut Seat) -> PyResult<Permit> {
        let core = &*self.shared.core;
        // Only the main thread gets signals. Other threads sleep until their next step.
        let threading = py.import("threading")?;
        let is_main = threading.call_method0("current_thread")?.is(threading.call_method0("main_thread")?);
        // A manual clock may be advanced just before the waiter falls asleep.
        let slice = if is_main || self.shared.is_manual() { SLICE } else { Duration::MAX };
        loop {
            py.check_signals()?;
            let step = wait_here(py, || {
                seat.sleep(core, slice);
                seat.step(core)
            });
            match hooks::deliver_with(py, step, raised)? {
                Step::Admitted(raw) => return Ok(Permit::with_key(&self.shared, raw, key)),
                Step::Expired(after) => return Err(expired(py, core.name(), key, after)),
                Step::Sleep(_) => {}
            }
        }
    }
}

/// The method that programs call most often, so it bypasses PyO3's wrapper.
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
        let asked_key = key.as_ref().map_or(Ok(Key::Plain(None)), |key| joint::key(key))?;
        let asked_weight = weight.as_ref().map_or(Ok(Weight::Plain(1)), |weight| joint::weight(weight))?;
        let shared = &this.get().shared;
        let (key, weight) = joint::start(&*shared.core, asked_key, asked_weight)?;
        let key = &*key;
        // Matched by reference below: the permit stays where the core wrote it.
        let mut answer = shared.core.attempt(key, weight);
        if let Err(Error::WouldWait) = answer {
            answer = shared.wait_or_undo(py, key, move |core, key| core.attempt(key, weight), cancel_unclaimed)?;
        }
        shared.maintain(py);
        if let Ok(Attempt::Admitted(raw)) = &answer {
            hooks::deliver(py, None);
            return Permit::object(py, || Permit::with_key(shared, *raw, key)).map(Bound::into_ptr);
        }
        hooks::deliver_with(py, answer, raised).map(|_| py.None().into_ptr())
    };
    // SAFETY: as above.
    unsafe { fastcall::answer(start) }
}

/// Cancels a start whose caller has gone.
fn cancel_unclaimed(core: &dyn workglow_limit::Limiter, answer: Attempt) {
    if let Attempt::Admitted(raw) = answer {
        let _ = core.cancel(&raw);
    }
}

/// Adds the methods that bypass PyO3 to the class.
pub fn complete_class(py: Python<'_>) -> PyResult<()> {
    let class = py.get_type::<Limiter>();
    // Python keeps a pointer to it.
    let method = Box::leak(Box::new(ffi::PyMethodDef {
        ml_name: c"try_acquire".as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: try_acquire },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: TRY_ACQUIRE.as_ptr(),
    }));
    // SAFETY: a method of that class, with the function type that its flags declare.
    let method = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyDescr_NewMethod(class.as_type_ptr(), method)) }?;
    class.setattr("try_acquire", method)
}

const TRY_ACQUIRE: &CStr = c"try_acquire($self, key=None, weight=1)\n--\n\n\
Starts a job if the limit admits it now, and returns its permit. Deciding and recording is one atomic step. Returns None if\n\
denied, which consumes nothing.";

fn is_timed(limiter: &dyn workglow_limit::Limiter) -> bool {
    let parts = limiter.parts();
    // Alternatives have no parts.
    if parts.is_empty() {
        limiter.depth() == 0 && limiter.has_places()
    } else {
        parts.iter().all(|(_, part)| is_timed(&**part))
    }
}

#[pymethods]
impl Limiter {
    /// The limit's name, as in Decision.denied_by.
    #[getter]
    fn name(&self) -> &str {
        self.shared.core.name()
    }

    /// The parts of a composite by their names: a new dict of limiters. Other limiters have none.
    #[getter]
    fn parts<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        let parts = PyDict::new(this.py());
        for (name, core) in this.get().shared.core.parts() {
            let origin = Origin::part(this, &name)?;
            parts.set_item(&name, Bound::new(this.py(), Limiter::of(SharedLimiter::new(core, None), origin))?)?;
        }
        Ok(parts)
    }

    /// A number that all objects of its limit have, while one of them exists. None if its units do not come back by time alone: its
    /// permits hold them, or it charges one of several alternatives.
    #[getter]
    fn _timed(&self) -> Option<usize> {
        let core = &self.shared.core;
        is_timed(&**core).then(|| Arc::as_ptr(core).addr())
    }

    /// The name of the part that is, or contains, a limiter.
    fn _part_of(&self, py: Python<'_>, limiter: &Bound<'_, Limiter>) -> Option<String> {
        let children = self.shared.children.as_ref()?;
        let inner = &limiter.get().shared.core;
        let mut parts = self.shared.core.parts().into_iter();
        parts.find_map(|(name, part)| children.has_inside(py, &part, inner).then_some(name))
    }

    /// Charges at most this many units that others have spent elsewhere, and leaves so many. Returns how many it has charged.
    fn _charge_others(&self, py: Python<'_>, key: Option<&str>, units: u64, leaving: u64) -> PyResult<u64> {
        self.shared.decide(py, key.unwrap_or(""), move |core, key| core.charge_others(key, units, leaving))
    }

    /// Puts what a server says about this limit above the declared policy, later: so many units in a window of seconds.
    fn _learn(&self, units: u64, window: f64, is_estimated: bool, host: &str) {
        if let Ok(window) = Duration::try_from_secs_f64(window) {
            self.shared.core.learn(Quota { units, window, is_estimated }, host);
        }
    }

    /// As _charge_others, for event loops.
    fn _charge_others_async<'py>(
        &self,
        py: Python<'py>,
        key: Option<&str>,
        units: u64,
        leaving: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        async_call::decision(py, &self.shared, Kind::ChargeOthers(leaving), key.unwrap_or(""), units)
    }

    /// As try_acquire, but returns the full decision: the permit or the retry delay, and the units that remain.
    #[pyo3(
        signature = (key=Key::Plain(None), weight=Weight::Plain(1)),
        text_signature = "($self, key=None, weight=1)"
    )]
    fn decide(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = joint::key)] key: Key<'_, '_>,
        #[pyo3(from_py_with = joint::weight)] weight: Weight<'_, '_>,
    ) -> PyResult<Decision> {
        let (key, weight) = joint::start(&*self.shared.core, key, weight)?;
        let decide = move |core: &dyn workglow_limit::Limiter, key: &str| core.decide(key, weight);
        let answer = self.shared.ask(py, &key, decide, |core, decision| {
            decision.permit.map(|raw| core.cancel(&raw));
        })?;
        Decision::new(py, &self.shared, &key, hooks::deliver_with(py, answer, raised)?)
    }

    /// Returns the decision that decide would return, without a permit. Records nothing. weight may be 0.
    #[pyo3(
        signature = (key=Key::Plain(None), weight=Weight::Plain(1)),
        text_signature = "($self, key=None, weight=1)"
    )]
    fn peek(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = joint::key)] key: Key<'_, '_>,
        #[pyo3(from_py_with = joint::weight_to_peek)] weight: Weight<'_, '_>,
    ) -> PyResult<Decision> {
        let (key, weight) = joint::start(&*self.shared.core, key, weight)?;
        let decision = self.shared.decide(py, &key, move |core, key| core.peek(key, weight))?;
        Decision::new(py, &self.shared, &key, decision)
    }

    /// Returns in how many seconds this many more starts will have begun, each of one unit, after the starts that are counted and
    /// the first waiters that come before; None if nobody knows, because a start has to end before. Records nothing. The time is
    /// exact for a rate with one window, a delay and a bucket where nobody waits, and otherwise a lower bound.
    #[pyo3(signature = (starts, key=Key::Plain(None)), text_signature = "($self, starts, key=None)")]
    fn forecast(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::starts)] starts: u64,
        #[pyo3(from_py_with = joint::key)] key: Key<'_, '_>,
    ) -> PyResult<Option<f64>> {
        let (key, _) = joint::start(&*self.shared.core, key, Weight::Plain(1))?;
        let after = self.shared.decide(py, &key, move |core, key| core.forecast(starts, key))?;
        Ok(after.map(|after| after.as_secs_f64()))
    }

    /// Waits until the limit admits the start, and returns its permit. It waits at most timeout seconds (None: no limit), without
    /// the GIL, and Ctrl-C interrupts it. Waiters of one process start in the order of their priority (lower numbers first), then
    /// in the order of their calls. A waiter that is interrupted or times out returns its place.
    ///
    /// share is that of the tenant which the key names in a shared limit, such as "500/1m shared": 1 to 1000. While tenants wait, one
    /// with share 3 gets three starts where one with 1 gets one. None: the one that Store.share has set, or 1. Other limits ignore it.
    ///
    /// place continues the wait of a place from reserve, given as the object or its text, instead of key and weight. The place
    /// then belongs to this waiter.
    ///
    /// grace is for a caller that may be late, because of a busy event loop or a garbage collection for example. A waiter at most
    /// grace seconds late still starts with its place (None: a fortieth of the window, at most 50 ms). The place blocks that start
    /// for all other callers until then, so pass no more than needed. A place from reserve has its own grace.
    ///
    /// Raises AcquireTimeout if the start cannot be admitted before the timeout: at once, if that is already certain. Raises
    /// RuntimeError instead of waiting in a coroutine of a running event loop, which it would stop: use acquire_async there.
    #[pyo3(
        signature = (key=Key::Plain(None), weight=Weight::Plain(1), timeout=None, *, priority=0, share=None, place=None, grace=None),
        text_signature = "($self, key=None, weight=1, timeout=None, *, priority=0, share=None, place=None, grace=None)"
    )]
    #[allow(clippy::too_many_arguments)] // All but three are keywords.
    fn acquire(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = joint::key)] key: Key<'_, '_>,
        #[pyo3(from_py_with = joint::weight)] weight: Weight<'_, '_>,
        #[pyo3(from_py_with = argument::patience)] timeout: Option<Duration>,
        #[pyo3(from_py_with = argument::priority)] priority: i32,
        #[pyo3(from_py_with = argument::share_or_none)] share: Option<u32>,
        place: Option<&Bound<'_, PyAny>>,
        grace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<Permit>> {
        let length = grace.map(|grace| seconds("grace", grace)).transpose()?.unwrap_or_default();
        let given = place.map(|place| Place::to_wait_with(place, &key, &weight, grace)).transpose()?;
        let core = &*self.shared.core;
        let (key, weight) = joint::start(core, key, weight)?;
        let key = &*key;
        let object = |permit: Permit| permit.into_pyobject(py).map(Bound::unbind);
        // A greenlet must not overtake the waiters of its hub. A place always waits there.
        let asks_hub = given.is_some() || self.shared.has_waiters(py);
        let mut here = if asks_hub { CallSite::of(py) } else { CallSite::Thread };
        let ask = workglow_limit::embed::Waiter::new(key, weight).priority(priority).timeout(timeout).grace(length);
        let ask = workglow_limit::embed::Waiter { share, ..ask };
        let mut seat = Seat::new(ask);
        if !matches!(here, CallSite::Hub(_)) {
            if let Some(place) = &given {
                let place = Some(place.raw(py, &self.shared)?);
                seat = Seat::new(workglow_limit::embed::Waiter { place, ..ask });
            }
            // This takes no lock of a line, which a thread that waits for the GIL might hold.
            let started = hooks::deliver_with(py, seat.start_at_once(core), raised)?;
            self.shared.maintain(py);
            if let Some(raw) = started {
                return object(Permit::with_key(&self.shared, raw, key));
            }
        }
        if !asks_hub {
            here = CallSite::of(py);
        }
        if let CallSite::Hub(hub) = here {
            let waiter = Waiter::new(&self.shared, key, weight);
            let waiter = Waiter { priority, share, timeout, grace: length, place: given, ..waiter };
            return Ok(hub.call_method1("acquire", (waiter,))?.cast_into::<Permit>()?.unbind());
        }
        let first = hooks::deliver_with(py, wait_here(py, || seat.step(core)), raised)?;
        // After the first step the place belongs to the waiter.
        given.inspect(Place::use_up);
        match first {
            Step::Admitted(raw) => return object(Permit::with_key(&self.shared, raw, key)),
            Step::Expired(after) => return Err(expired(py, core.name(), key, after)),
            Step::Sleep(_) => {}
        }
        let permit = match here {
            // The task that will end a permit may be of the same loop, so the wait need not end.
            CallSite::Loop if is_in_coroutine(py)? => Err(PyRuntimeError::new_err(
                "acquire would stop the event loop while it waits: use acquire_async, or async with the limiter",
            )),
            _ => self.wait_in_line(py, key, &mut seat),
        };
        if permit.is_err() {
            wait_here(py, || seat.leave(core));
        }
        object(permit?)
    }

    /// As acquire, for event loops: await it for the permit, or use it with `async with`. A cancelled waiter holds no permit and
    /// returns its place.
    #[pyo3(
        signature = (key=Key::Plain(None), weight=Weight::Plain(1), timeout=None, *, priority=0, share=None, place=None, grace=None),
        text_signature = "($self, key=None, weight=1, timeout=None, *, priority=0, share=None, place=None, grace=None)"
    )]
    #[allow(clippy::too_many_arguments)] // As in acquire.
    fn acquire_async(
        &self,
        #[pyo3(from_py_with = joint::key)] key: Key<'_, '_>,
        #[pyo3(from_py_with = joint::weight)] weight: Weight<'_, '_>,
        #[pyo3(from_py_with = argument::patience)] timeout: Option<Duration>,
        #[pyo3(from_py_with = argument::priority)] priority: i32,
        #[pyo3(from_py_with = argument::share_or_none)] share: Option<u32>,
        place: Option<&Bound<'_, PyAny>>,
        grace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Acquisition> {
        let length = grace.map(|grace| seconds("grace", grace)).transpose()?.unwrap_or_default();
        let place = place.map(|place| Place::to_wait_with(place, &key, &weight, grace)).transpose()?;
        let (key, weight) = joint::start(&*self.shared.core, key, weight)?;
        let waiter = Waiter::new(&self.shared, &key, weight);
        let waiter = Waiter { priority, share, timeout, grace: length, place, ..waiter };
        Ok(Acquisition::new(waiter))
    }

    /// As try_acquire, for event loops: await it. Waiting for the store does not block the loop.
    #[pyo3(
        signature = (key=Key::Plain(None), weight=Weight::Plain(1)),
        text_signature = "($self, key=None, weight=1)"
    )]
    fn try_acquire_async<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = joint::key)] key: Key<'_, '_>,
        #[pyo3(from_py_with = joint::weight)] weight: Weight<'_, '_>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (key, weight) = joint::start(&*self.shared.core, key, weight)?;
        async_call::decision(py, &self.shared, Kind::TryAcquire, &key, weight)
    }

    /// As decide, for event loops: await it. Waiting for the store does not block the loop.
    #[pyo3(
        signature = (key=Key::Plain(None), weight=Weight::Plain(1)),
        text_signature = "($self, key=None, weight=1)"
    )]
    fn decide_async<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = joint::key)] key: Key<'_, '_>,
        #[pyo3(from_py_with = joint::weight)] weight: Weight<'_, '_>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (key, weight) = joint::start(&*self.shared.core, key, weight)?;
        async_call::decision(py, &self.shared, Kind::Decide, &key, weight)
    }

    /// As peek, for event loops: await it. Waiting for the store does not block the loop.
    #[pyo3(
        signature = (key=Key::Plain(None), weight=Weight::Plain(1)),
        text_signature = "($self, key=None, weight=1)"
    )]
    fn peek_async<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = joint::key)] key: Key<'_, '_>,
        #[pyo3(from_py_with = joint::weight_to_peek)] weight: Weight<'_, '_>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (key, weight) = joint::start(&*self.shared.core, key, weight)?;
        async_call::decision(py, &self.shared, Kind::Peek, &key, weight)
    }

    /// As forecast, for event loops: await it. Waiting for the store does not block the loop.
    #[pyo3(signature = (starts, key=Key::Plain(None)), text_signature = "($self, starts, key=None)")]
    fn forecast_async<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = argument::starts)] starts: u64,
        #[pyo3(from_py_with = joint::key)] key: Key<'_, '_>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (key, _) = joint::start(&*self.shared.core, key, Weight::Plain(1))?;
        async_call::decision(py, &self.shared, Kind::Forecast, &key, starts)
    }

    /// Takes a place: a start in the future, or now, that counts against the limit from this call on. present() starts with it.
    /// Returns None and takes nothing if the place would be more than max_wait seconds away (None: any distance).
    ///
    /// A place is valid for one start, from its ready_at until grace seconds later (None: a fortieth of the window, at most
    /// 50 ms). Return an unused place with cancel().
    #[pyo3(
        signature = (key=Key::Plain(None), weight=Weight::Plain(1), max_wait=None, grace=None),
        text_signature = "($self, key=None, weight=1, max_wait=None, grace=None)"
    )]
    fn reserve(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = joint::key)] key: Key<'_, '_>,
        #[pyo3(from_py_with = joint::weight)] weight: Weight<'_, '_>,
        max_wait: Option<&Bound<'_, PyAny>>,
        grace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Permit>> {
        let most = max_wait.map(|most| seconds("max_wait", most)).transpose()?;
        let length = grace.map(|grace| seconds("grace", grace)).transpose()?;
        let (key, weight) = joint::start(&*self.shared.core, key, weight)?;
        let reserve = move |core: &dyn workglow_limit::Limiter, key: &str| core.reserve(key, weight, most, length);
        let answer = self.shared.wait_or_undo(py, &key, reserve, |core, answer| {
            if let Reserved::Place { place, .. } = answer {
                let _ = core.cancel_place(&place);
            }
        })?;
        let given = [("max_wait", "max_wait", max_wait), ("grace", "grace", grace)];
        Ok(match hooks::deliver_with(py, answer, |e| quoting_given(e, given))? {
            Reserved::Place { place, after } => Some(Permit::place(&self.shared, place, after)),
            Reserved::Denied(_) => None,
        })
    }

    /// Starts with a place, given as the object or its text, if the place is ready.
    ///
    /// If started is True, the result is the permit of the start. Otherwise it is a place to present after its wait: the same
    /// place if this call was too early; a fresh one if the place was too late, was used before, or was invalidated by a gate or
    /// a policy change.
    fn present(&self, py: Python<'_>, place: &Bound<'_, PyAny>) -> PyResult<Py<Permit>> {
        let given = Place::given(place)?;
        let raw = given.raw(py, &self.shared)?;
        let begun = Begun::later(self.shared.core.clone(), move |core| core.present(&raw));
        let answer = self.shared.finish(py, begun, move |core, answer| match answer {
            Presented::Started(raw) => drop(core.cancel(&raw)),
            Presented::Wait { place, .. } if place != raw => drop(core.cancel_place(&place)),
            Presented::Wait { .. } => {}
        })?;
        let next = match hooks::deliver_with(py, answer, raised)? {
            Presented::Started(raw) => Permit::new(&self.shared, raw),
            Presented::Wait { place, after } => match given.object(&place) {
                Some(same) => {
                    Permit::of(same).present_after(after);
                    return Ok(same.clone_ref(py));
                }
                None => Permit::place(&self.shared, place, after),
            },
        };
        given.use_up();
        next.into_pyobject(py).map(Bound::unbind)
    }

    /// Whether tenants share the limit, or a part of it. Then there are no places far ahead.
    #[getter]
    fn _has_tenants(&self) -> bool {
        is_shared(&*self.shared.core)
    }

    /// Returns the permit for a text from to_text, also from another process, to complete, cancel or settle its start.
    fn permit(&self, text: &Bound<'_, PyAny>) -> PyResult<Permit> {
        Ok(Permit::new(&self.shared, permit::read(&self.shared, "text", text)?))
    }

    /// Returns the place for a text from to_text, to present it or to return it with cancel(). Cancelling does nothing if a job
    /// has already started with the place.
    fn place(&self, text: &Bound<'_, PyAny>) -> PyResult<Permit> {
        let raw = permit::read(&self.shared, "text", text)?;
        Ok(Permit::place(&self.shared, raw, Duration::ZERO))
    }

    /// The shortest time over which starts are counted, in seconds; None if starts are not counted. The cost of a place's grace
    /// is a fraction of it.
    #[getter]
    fn window(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        let window = self.shared.decide(py, "", |core, key| core.window(key))?;
        Ok(window.map(|window| window.as_secs_f64()))
    }

    /// Decorates a function or a coroutine function. Each call waits as acquire does, and completes its permit at its end. key is
    /// the name of an argument of the call, a format of arguments such as "{tenant}:{model}", or a function that gets the
    /// arguments. weight is a number, the name of an argument, or such a function. A mapping has one of these for each of some parts
    /// of a composite.
    #[pyo3(signature = (key=None, weight=None, timeout=None), text_signature = "($self, key=None, weight=1, timeout=None)")]
    fn limit<'py>(
        this: &Bound<'py, Self>,
        key: Option<&Bound<'py, PyAny>>,
        weight: Option<&Bound<'py, PyAny>>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // Errors are raised where the decorator is written, not at the first call.
        if let Some(key) = key.filter(|key| !key.is_callable() && !joint::is_of_parts(key)) {
            argument::key(key)?;
        }
        let is_derived =
            |of: &Bound<PyAny>| of.is_callable() || of.is_instance_of::<PyString>() || joint::is_of_parts(of);
        if let Some(weight) = weight.filter(|weight| !is_derived(weight)) {
            argument::weight(weight)?;
        }
        timeout.map(argument::timeout).transpose()?;
        this.py().import("workglow_limit._decorator")?.getattr("limit")?.call1((this, key, weight, timeout))
    }

    /// As limit, for a function that you cannot decorate: returns a function that waits and then calls it.
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
        // A classmethod or staticmethod has a function, and cannot be called itself.
        if !function.is_callable() && !function.hasattr("__func__")? {
            return Err(argument::wrong_type("function", function, "a function"));
        }
        Self::limit(this, key, weight, timeout)?.call1((function,))
    }

    /// Completes a permit of this limiter: the job has run. Ending it again is a no-op. A permit of another limiter raises
    /// ForeignPermit.
    fn complete(&self, #[pyo3(from_py_with = argument::permit)] permit: &Bound<'_, Permit>) -> PyResult<()> {
        Permit::of(permit.as_unbound()).complete_at(permit.py(), &self.shared)
    }

    /// Returns whether a start of weight 1 would be admitted now. Records nothing.
    #[pyo3(signature = (key=None))]
    fn can_proceed(&self, py: Python<'_>, #[pyo3(from_py_with = argument::key)] key: Option<&str>) -> PyResult<bool> {
        let key = key.unwrap_or_default();
        self.shared.decide(py, key, |core, key| core.can_proceed(key))
    }

    /// Records that a job has started. It is recorded even if the limit is full, because the caller has already decided.
    #[pyo3(signature = (key=None))]
    fn record_job_start(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
    ) -> PyResult<()> {
        let key = key.unwrap_or_default();
        self.shared.decide(py, key, |core, key| core.record_job_start(key))
    }

    /// Records that a job has ended: the oldest one that this process recorded for the key with record_job_start.
    #[pyo3(signature = (key=None))]
    fn record_job_completion(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
    ) -> PyResult<()> {
        let key = key.unwrap_or_default();
        self.shared.decide(py, key, |core, key| core.record_job_completion(key))?;
        self.shared.wake_waiters(Some(key));
        Ok(())
    }

    /// Returns the earliest time at which a start of weight 1 would be admitted, as an aware datetime in UTC. Gates count. It is
    /// the current time if the start would be admitted now.
    #[pyo3(signature = (key=None))]
    fn get_next_available_time(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
    ) -> PyResult<SystemTime> {
        let key = key.unwrap_or_default();
        let at = self.shared.decide(py, key, |core, key| core.next_available_time(key))?;
        // A datetime has whole microseconds. Rounding up keeps it from being early.
        Ok(at + Duration::from_nanos(999))
    }

    /// Sets a gate: nothing starts before when, an aware datetime. Without a key it binds all keys. A gate only moves later; clear
    /// removes it. A time in the past sets no gate.
    #[pyo3(signature = (when, key=None))]
    fn set_next_available_time(
        &self,
        py: Python<'_>,
        when: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
    ) -> PyResult<()> {
        let at = instant("when", when)?;
        let key = key.unwrap_or_default();
        let set = self.shared.wait(py, key, move |core, key| core.set_next_available_time(at, key))?;
        hooks::deliver_with(py, set, |e| quoting(e, &[("when", "when", when)]))
    }

    /// Sets a gate relative to now: nothing starts for duration, which is seconds or a timedelta, up to 366 days. Without a key it
    /// binds all keys.
    #[pyo3(signature = (duration, key=None))]
    fn pause(
        &self,
        py: Python<'_>,
        duration: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
    ) -> PyResult<()> {
        let pause = seconds("duration", duration)?;
        let key = key.unwrap_or_default();
        let paused = self.shared.wait(py, key, move |core, key| core.pause(pause, key))?;
        hooks::deliver_with(py, paused, |e| quoting(e, &[("duration", "duration", duration)]))
    }

    /// As pause, for event loops.
    #[pyo3(signature = (duration, key=None))]
    fn pause_async<'py>(
        &self,
        py: Python<'py>,
        duration: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (shared, pause) = (self.shared.clone(), seconds("duration", duration)?);
        let key = key.unwrap_or_default().to_owned();
        async_call::rare(py, self.shared.owner, move || shared.core.pause(pause, &key), || ())
    }

    /// Resets a key to its initial state and removes its gate. Without a key it resets all keys.
    #[pyo3(signature = (key=None))]
    fn clear(&self, py: Python<'_>, #[pyo3(from_py_with = argument::key)] key: Option<&str>) -> PyResult<()> {
        let key = key.unwrap_or_default();
        let cleared = self.shared.wait(py, key, |core, key| core.clear(key))?;
        hooks::deliver_with(py, cleared, raised)?;
        self.shared.wake_waiters(Some(key).filter(|key| !key.is_empty()));
        Ok(())
    }

    /// As clear, for event loops.
    #[pyo3(signature = (key=None))]
    fn clear_async<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (shared, key) = (self.shared.clone(), Arc::<str>::from(key.unwrap_or_default()));
        let (there, cleared) = (shared.clone(), key.clone());
        let wake = move || there.wake_waiters(Some(&*cleared).filter(|key| !key.is_empty()));
        async_call::rare(py, self.shared.owner, move || shared.core.clear(&key), wake)
    }

    /// Returns the counts of a key, or of the whole limit without one. They cover all processes that share the limit; the last
    /// second of other processes may be missing.
    #[pyo3(signature = (key=None))]
    fn stats(&self, py: Python<'_>, #[pyo3(from_py_with = argument::key)] key: Option<&str>) -> PyResult<Stats> {
        let key = key.unwrap_or_default();
        let stats = self.shared.wait(py, key, |core, key| core.stats(key))?;
        hooks::deliver_with(py, stats, raised).map(Stats::from)
    }

    /// Calls a function with a LimitEvent at each event of this limiter in this process: "throttled" (a start was denied or has to
    /// wait), "unknown_limit" or "store_error". Returns a function that removes it.
    ///
    /// An exception of the function goes to sys.unraisablehook and has no effect on the decision.
    fn on<'py>(&self, event: &Bound<'py, PyAny>, function: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyCFunction>> {
        let (here, there) = (&self.shared.core, self.shared.core.clone());
        hooks::add(event, function, |event, hook| here.on(event, hook), move |number| there.off(number))
    }

    // `with limiter:` starts with the empty key and weight 1, and completes at the end of its body. A limiter can be entered any
    // number of times, nested and concurrently.

    fn __enter__(&self, py: Python<'_>) -> PyResult<Py<Permit>> {
        self.entered.enter(py, self.acquire(py, Key::Plain(None), Weight::Plain(1), None, 0, None, None, None)?)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        Permit::of(&self.entered.leave(py)?).complete(py)
    }

    fn __aenter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static ENTER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let asked = self.acquire_async(Key::Plain(None), Weight::Plain(1), None, 0, None, None, None)?;
        ENTER.import(py, "workglow_limit._loops", "enter")?.call1((asked, self.entered.clone()))
    }

    #[pyo3(signature = (*_exception))]
    fn __aexit__<'py>(&self, py: Python<'py>, _exception: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        async_call::end(py, self.entered.leave(py)?, End::Complete)
    }

    // A pickle holds the limiter's origin. A copy is the limiter itself.

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
        this.get().origin.repr(this, this.get().shared.core.name())
    }
}
