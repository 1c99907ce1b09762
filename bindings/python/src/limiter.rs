//! What all limiters have in common: the base class of the family, and the core's limiter behind it.

use crate::argument::{self, instant, quoting, seconds};
use crate::decision::Decision;
use crate::error::{expired, raised};
use crate::permit::Permit;
use crate::wait::Waiter;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use workglow_limit::{Attempt, Step, Wait, fork_generation};

/// A waiter in `acquire` sleeps no longer than this before it looks whether a signal (Ctrl-C) has arrived.
const SLICE: Duration = Duration::from_millis(100);

/// One limiter: what its Python object, its permits and the composites around it share.
pub struct Node {
    pub core: Arc<dyn workglow_limit::Limiter>,
    kind: Kind,
    /// Its time is a test's.
    pub is_manual: bool,
    /// The fork generation in which the limit was opened; 0: not yet.
    opened: AtomicU64,
}

/// The kind of a limiter, as far as it matters here.
pub enum Kind {
    Null,
    Rate,
    Concurrency,
    Composite(Mutex<Vec<Arc<Node>>>),
}

impl Node {
    pub fn new(core: Arc<dyn workglow_limit::Limiter>, kind: Kind, is_manual: bool) -> Arc<Node> {
        Arc::new(Node { core, kind, is_manual, opened: AtomicU64::new(0) })
    }

    /// Makes sure that the limit is open in this process, so that the decision that follows need not wait for files.
    #[inline]
    pub fn ready(&self, py: Python<'_>, key: &str) -> PyResult<()> {
        if self.is_open() { Ok(()) } else { py.detach(|| self.open(key)).map_err(raised) }
    }

    #[inline]
    pub fn is_open(&self) -> bool {
        self.opened.load(Relaxed) == fork_generation()
    }

    /// Opens the limit. The key is checked before anything is.
    #[cold]
    pub fn open(&self, key: &str) -> workglow_limit::Result<()> {
        let generation = fork_generation();
        // A look opens what is not open yet, the children of a composite too, and records nothing.
        self.core.peek(key, 0)?;
        self.opened.store(generation, Relaxed);
        Ok(())
    }

    /// To be opened again: there is a new child.
    pub fn close(&self) {
        self.opened.store(0, Relaxed);
    }

    /// Do its permits hold something until they end?
    pub fn holds(&self) -> bool {
        match &self.kind {
            Kind::Null | Kind::Rate => false,
            Kind::Concurrency => true,
            Kind::Composite(_) => self.children().is_some_and(|children| children.iter().any(|child| child.holds())),
        }
    }

    /// Takes in a child, which the core has accepted.
    pub fn adopt(&self, child: Arc<Node>) {
        if let Some(mut children) = self.children() {
            children.push(child);
        }
    }

    fn children(&self) -> Option<MutexGuard<'_, Vec<Arc<Node>>>> {
        match &self.kind {
            Kind::Composite(children) => Some(children.lock().unwrap_or_else(PoisonError::into_inner)),
            _ => None,
        }
    }
}

/// "May this start now, and if not, when?" The base of all limiters.
///
/// Every method takes a key: one policy, a separate budget per key; None is no key. Limiters are used from any thread,
/// and go on working in a forked child.
#[pyclass(subclass, frozen, module = "workglow_limit")]
pub struct Limiter {
    pub node: Arc<Node>,
}

impl Limiter {
    pub fn of(node: Arc<Node>) -> PyClassInitializer<Limiter> {
        PyClassInitializer::from(Limiter { node })
    }

    /// The core's limiter, open, and the key as it takes it.
    #[inline]
    fn open<'a>(
        &'a self,
        py: Python<'_>,
        key: Option<&'a str>,
    ) -> PyResult<(&'a dyn workglow_limit::Limiter, &'a str)> {
        let key = key.unwrap_or_default();
        self.node.ready(py, key)?;
        Ok((&*self.node.core, key))
    }
}

#[pymethods]
impl Limiter {
    /// The limit's name: what Decision.denied_by says.
    #[getter]
    fn name(&self) -> &str {
        self.node.core.name()
    }

    /// Starts if there is room now: decides and records in one act. A denial is None, and consumes nothing.
    #[pyo3(signature = (key=None, weight=1))]
    fn try_acquire(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
        #[pyo3(from_py_with = argument::weight)] weight: u64,
    ) -> PyResult<Option<Permit>> {
        let (core, key) = self.open(py, key)?;
        Ok(match core.attempt(key, weight).map_err(raised)? {
            Attempt::Admitted(raw) => Some(Permit::new(&self.node, raw)),
            Attempt::Denied(_) => None,
        })
    }

    /// The same, answering with the whole decision.
    #[pyo3(signature = (key=None, weight=1))]
    fn decide(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
        #[pyo3(from_py_with = argument::weight)] weight: u64,
    ) -> PyResult<Decision> {
        let (core, key) = self.open(py, key)?;
        Decision::new(py, &self.node, core.decide(key, weight).map_err(raised)?)
    }

    /// The decision that decide would give, without a permit. Records nothing. weight may be 0.
    #[pyo3(signature = (key=None, weight=1))]
    fn peek(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
        #[pyo3(from_py_with = argument::weight_to_peek)] weight: u64,
    ) -> PyResult<Decision> {
        let (core, key) = self.open(py, key)?;
        Decision::new(py, &self.node, core.peek(key, weight).map_err(raised)?)
    }

    /// Waits for room, at most timeout seconds (None: as long as it takes), without the GIL; Ctrl-C interrupts it.
    ///
    /// Raises AcquireTimeout if there is none before that: at once, if that can be known at once.
    #[pyo3(signature = (key=None, weight=1, timeout=None))]
    fn acquire(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
        #[pyo3(from_py_with = argument::weight)] weight: u64,
        #[pyo3(from_py_with = argument::patience)] timeout: Option<Duration>,
    ) -> PyResult<Permit> {
        let (core, key) = self.open(py, key)?;
        let mut wait = Wait::new(key, weight, timeout);
        let mut step = core.step(&mut wait);
        loop {
            match step.map_err(raised)? {
                Step::Admitted(raw) => return Ok(Permit::new(&self.node, raw)),
                Step::Expired(after) => return Err(expired(py, core.name(), after)),
                Step::Sleep(nap) => {
                    py.check_signals()?;
                    // The step follows the nap without asking for the GIL in between: a place is only good for a while.
                    step = py.detach(|| {
                        core.nap(&wait, nap.min(SLICE));
                        core.step(&mut wait)
                    });
                }
            }
        }
    }

    /// The same for asyncio: await it. A waiter that is cancelled holds no permit.
    #[pyo3(signature = (key=None, weight=1, timeout=None))]
    fn acquire_async<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
        #[pyo3(from_py_with = argument::weight)] weight: u64,
        #[pyo3(from_py_with = argument::patience)] timeout: Option<Duration>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let waiter = Waiter::new(&self.node, key.unwrap_or_default(), weight, timeout);
        py.import("workglow_limit._aio")?.getattr("acquire")?.call1((waiter,))
    }

    /// Decorates a function or a coroutine function: each call waits for room, and its permit ends with it. key may be
    /// a function of the call's arguments. Raises as acquire does.
    #[pyo3(signature = (key=None, weight=1, timeout=None))]
    fn limit<'py>(
        this: &Bound<'py, Self>,
        key: Option<&Bound<'py, PyAny>>,
        #[pyo3(from_py_with = argument::weight)] weight: u64,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // What is wrong is said where it is written, not at the first call.
        if let Some(key) = key.filter(|key| !key.is_callable()) {
            argument::key(key)?;
        }
        timeout.map(argument::timeout).transpose()?;
        this.py().import("workglow_limit._decorator")?.getattr("limit")?.call1((this, key, weight, timeout))
    }

    /// Ends a permit of this limiter: the job ran. Ending it again is a no-op; another limiter's is a ForeignPermit.
    fn complete(&self, permit: &Bound<'_, Permit>) -> PyResult<()> {
        permit.get().end_at(&self.node).map_err(raised)
    }

    /// Would a start of weight 1 be admitted now? Changes nothing.
    #[pyo3(signature = (key=None))]
    fn can_proceed(&self, py: Python<'_>, #[pyo3(from_py_with = argument::key)] key: Option<&str>) -> PyResult<bool> {
        let (core, key) = self.open(py, key)?;
        core.can_proceed(key).map_err(raised)
    }

    /// A job has started: recorded even when the limit is full, because the caller has already decided.
    #[pyo3(signature = (key=None))]
    fn record_job_start(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
    ) -> PyResult<()> {
        let (core, key) = self.open(py, key)?;
        core.record_job_start(key).map_err(raised)
    }

    /// A job has ended: the oldest start without a permit that this process recorded on that key.
    #[pyo3(signature = (key=None))]
    fn record_job_completion(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
    ) -> PyResult<()> {
        let (core, key) = self.open(py, key)?;
        core.record_job_completion(key).map_err(raised)
    }

    /// The earliest instant at which a start of weight 1 would be admitted, gate included; now, if now. Aware, in UTC.
    #[pyo3(signature = (key=None))]
    fn get_next_available_time(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
    ) -> PyResult<SystemTime> {
        let (core, key) = self.open(py, key)?;
        // Python's instants are whole microseconds: rounded up, so as not to be early.
        Ok(core.next_available_time(key).map_err(raised)? + Duration::from_nanos(999))
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
        let (core, key) = self.open(py, key)?;
        core.set_next_available_time(key, at).map_err(|e| quoting(e, &[("next available time", "when", when)]))
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
        let (core, key) = self.open(py, key)?;
        core.pause(key, pause).map_err(|e| quoting(e, &[("pause", "duration", duration)]))
    }

    /// Back to the initial state, gate included. Without a key: of all keys.
    #[pyo3(signature = (key=None))]
    fn clear(&self, py: Python<'_>, #[pyo3(from_py_with = argument::key)] key: Option<&str>) -> PyResult<()> {
        let (core, key) = self.open(py, key)?;
        py.detach(|| core.clear(key)).map_err(raised)
    }

    fn __repr__(this: &Bound<'_, Self>) -> PyResult<String> {
        Ok(format!("<{} {:?}>", this.get_type().name()?, this.get().node.core.name()))
    }
}
