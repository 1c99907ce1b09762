//! What an admitted start holds.

use crate::argument::{self, quoting, wrong_type};
use crate::error::raised;
use crate::limiter::Node;
use crate::waiting::{try_first, wait};
use pyo3::exceptions::PyResourceWarning;
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};
use workglow_limit::{Error, MayWait, RawPermit, Result, fork_generation};

/// What an admitted start holds. It ends with complete(), cancel() or settle(), or completes with its block when used
/// in a with statement, whatever happened inside. Ending it again is a no-op. In a forked child an inherited permit
/// does nothing: it is the parent's.
///
/// Or a place: a start in the future, taken by Limiter.reserve(). It has not started, and does so when it is presented.
#[pyclass(frozen, module = "workglow_limit")]
pub struct Permit {
    node: Arc<Node>,
    raw: RawPermit,
    /// The key, where somebody who waits for it wants to hear of the end.
    key: Option<Box<str>>,
    /// False for a place.
    #[pyo3(get)]
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
        Self::of(node, raw, true, None)
    }

    /// A start on a key that is known.
    #[inline]
    pub fn with_key(node: &Arc<Node>, raw: RawPermit, key: &str) -> Permit {
        Self::of(node, raw, true, node.holds(&raw).then(|| key.into()))
    }

    /// A place, to present after so long.
    pub fn place(node: &Arc<Node>, raw: RawPermit, after: Duration) -> Permit {
        let place = Self::of(node, raw, false, None);
        place.present_after(after);
        place
    }

    /// Notes what nobody can calculate later.
    pub fn present_after(&self, after: Duration) {
        let is_ready = self.node.core.ready_in(&self.raw).is_none_or(|wait| wait.is_zero());
        self.again.store(if is_ready { after.as_micros() as u64 } else { 0 }, Relaxed);
    }

    #[inline]
    fn of(node: &Arc<Node>, raw: RawPermit, started: bool, key: Option<Box<str>>) -> Permit {
        let (ended, again) = (AtomicBool::new(false), AtomicU64::new(0));
        Permit { node: node.clone(), raw, key, started, generation: fork_generation(), ended, again }
    }

    /// Completes it as a permit of `node`.
    pub fn complete_at(&self, py: Python<'_>, node: &Arc<Node>) -> Result<()> {
        if !Arc::ptr_eq(&self.node, node) {
            return Err(Error::ForeignPermit { limit: node.core.name().to_owned() });
        }
        self.end_complete(py)
    }

    fn end_complete(&self, py: Python<'_>) -> Result<()> {
        try_first(py, || self.end(|core, raw| core.complete(raw)))?;
        // A limit of starts frees nothing then.
        if self.node.has_lines() && (self.key.is_some() || self.node.holds(&self.raw)) {
            self.node.freed(self.key.as_deref());
        }
        Ok(())
    }

    /// Ends it, unless it is over. It remembers, so that only the first end counts, whatever the others would be.
    fn end(&self, end: impl FnOnce(&dyn workglow_limit::Limiter, &RawPermit) -> Result<()>) -> Result<()> {
        if self.is_over() || self.ended.swap(true, Relaxed) {
            return Ok(());
        }
        let ended = end(&*self.node.core, &self.raw);
        if ended.is_err() {
            self.ended.store(false, Relaxed);
        }
        ended
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
            if let Err(e) = try_first(py, || self.node.core.complete(&self.raw)).map_err(raised) {
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

#[pymethods]
impl Permit {
    /// The job ran.
    fn complete(&self, py: Python<'_>) -> PyResult<()> {
        self.end_complete(py).map_err(raised)
    }

    /// The job never ran, or nobody will use the place: its units are free again at once.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        // Somebody may have started with a place's text meanwhile.
        let is_place = !self.started;
        let ended = wait(py, || self.end(|core, raw| if is_place { core.cancel_place(raw) } else { core.cancel(raw) }));
        self.node.freed(self.key.as_deref());
        ended.map_err(raised)
    }

    /// The job ran, and was worth actual units instead of the weight that it started with: what it did not use is free
    /// again at once, what it used beyond is owed, up to one whole capacity, and delays later starts.
    fn settle(&self, py: Python<'_>, #[pyo3(from_py_with = argument::actual)] actual: u64) -> PyResult<()> {
        let ended = wait(py, || self.end(|core, raw| core.settle(raw, actual)));
        self.node.freed(self.key.as_deref());
        ended.map_err(raised)
    }

    /// Lets a lease begin anew: it holds its units for its whole length from now on. A no-op for permits that are no leases.
    /// Raises LeaseLost if it has ended meanwhile; perhaps another start holds its units by now.
    fn renew(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_inherited() {
            return Ok(());
        }
        try_first(py, || self.node.core.renew(&self.raw)).map_err(raised)
    }

    /// A number that is larger for every later lease of the same key, for what the lease protects to refuse whoever comes
    /// late; None for permits that are no leases.
    #[getter]
    fn fence(&self) -> Option<u64> {
        self.node.core.fence(&self.raw)
    }

    /// The permit or place as a short text, with which another process that has the same limit can go on: present()
    /// takes the text of a place, permit() that of a start.
    fn to_text(&self, py: Python<'_>) -> PyResult<String> {
        try_first(py, || self.node.core.to_text(&self.raw)).map_err(raised)
    }

    /// In how many seconds to present the place; 0.0 if it has started, or is ready and nobody has refused it yet.
    #[getter]
    fn wait(&self) -> f64 {
        if self.started {
            return 0.0;
        }
        let again = Duration::from_micros(self.again.load(Relaxed));
        self.node.core.ready_in(&self.raw).unwrap_or_default().max(again).as_secs_f64()
    }

    /// When the start's place comes or came, if it had to wait for one. Aware, in UTC.
    #[getter]
    fn ready_at(&self) -> Option<SystemTime> {
        self.node.core.ready_at(&self.raw)
    }

    /// The same in seconds on the clock of time.monotonic(), never later than it was: for measuring.
    #[getter]
    fn ready_at_monotonic(&self) -> Option<f64> {
        let ns = self.node.core.ready_at_monotonic_ns(&self.raw)?;
        // Whole microseconds are exact as a float for centuries; the quotient may round up, so take the one below.
        Some(((ns / 1_000) as f64 / 1e6).next_down())
    }

    fn __enter__(this: Py<Self>) -> PyResult<Py<Self>> {
        if this.get().started {
            return Ok(this);
        }
        let reason = "a place that has not started cannot be entered: present it, and enter the permit that it becomes";
        Err(raised(Error::Unsupported { reason: reason.to_owned() }))
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.complete(_exception.py())
    }

    fn __repr__(&self) -> String {
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

    /// The same, to wait with: it has a key and a weight of its own, and has yet to start.
    pub fn to_wait_with(value: &Bound<'_, PyAny>, key: Option<&str>, weight: u64) -> PyResult<Place> {
        let wrong = |parameter, value| {
            let expected = "none beside a place, which has its own".to_owned();
            Err(raised(Error::InvalidArgument { parameter, value, expected }))
        };
        if let Some(key) = key {
            return wrong("key", format!("{key:?}"));
        }
        if weight != 1 {
            return wrong("weight", weight.to_string());
        }
        match Place::given(value)? {
            Place::Object(permit) if permit.get().started => {
                Err(argument::invalid("place", value, "a place that has not started"))
            }
            place => Ok(place),
        }
    }

    /// What the core knows it by.
    pub fn raw(&self, py: Python<'_>, node: &Node) -> PyResult<RawPermit> {
        match self {
            Place::Object(permit) => Ok(permit.get().raw),
            Place::Text(text) => read(node, "place", text.bind(py)),
        }
    }

    /// Another permit took its place, or nobody has it any more.
    pub fn use_up(&self) {
        if let Place::Object(permit) = self {
            permit.get().ended.store(true, Relaxed);
        }
    }

    /// The object, if it still is that place.
    pub fn object(&self, place: &RawPermit) -> Option<&Py<Permit>> {
        match self {
            Place::Object(permit) if permit.get().raw == *place && !permit.get().is_over() => Some(permit),
            _ => None,
        }
    }
}

/// The permit or place of a text.
pub fn read(node: &Node, parameter: &'static str, given: &Bound<'_, PyAny>) -> PyResult<RawPermit> {
    let text = argument::text(parameter, given)?;
    let read = try_first(given.py(), || node.core.permit_from_text(text));
    read.map_err(|e| quoting(e, &[("place", parameter, given)]))
}
