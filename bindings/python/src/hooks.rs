//! What a program wants to be told of while it limits: see Limiter.on.

use crate::argument::{choice, wrong_type};
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyTuple};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use workglow_limit::Error;

/// How many hooks there are in this process: while there are none, nobody looks any further.
static ALL: AtomicUsize = AtomicUsize::new(0);

/// Is there any hook?
#[inline]
pub fn are_any() -> bool {
    ALL.load(Relaxed) != 0
}

/// What a hook waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Happening {
    Throttled,
    UnknownLimit,
    StoreError,
}

impl Happening {
    const WORDS: [(&str, Happening); 3] = [
        ("throttled", Happening::Throttled),
        ("unknown_limit", Happening::UnknownLimit),
        ("store_error", Happening::StoreError),
    ];

    /// What an error means to the hooks.
    pub fn of(error: &Error) -> Option<Happening> {
        match error {
            Error::UnknownLimit { .. } => Some(Happening::UnknownLimit),
            Error::Store { .. } | Error::StoreTimeout { .. } | Error::StoreFull { .. } => Some(Happening::StoreError),
            _ => None,
        }
    }

    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, happening)| *happening == self).map_or("", |(word, _)| word)
    }
}

/// The hooks of a limiter or a store. Its mutex is only held while Python's lock is, so no fork meets it locked.
#[derive(Default)]
pub struct Hooks {
    next: AtomicU64,
    all: Mutex<Vec<(u64, Happening, Py<PyAny>)>>,
}

impl Hooks {
    /// Adds one, and returns the Python function that removes it.
    pub fn add<'py>(
        self: &Arc<Self>,
        event: &Bound<'py, PyAny>,
        function: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyCFunction>> {
        let happening = choice("event", event, &Happening::WORDS)?;
        if !function.is_callable() {
            return Err(wrong_type("function", function, "a callable"));
        }
        let number = self.next.fetch_add(1, Relaxed);
        let hooks = self.clone();
        let remove = move |_: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| hooks.remove(number);
        let remover = PyCFunction::new_closure(event.py(), Some(c"remove"), None, remove)?;
        self.lock().push((number, happening, function.clone().unbind()));
        ALL.fetch_add(1, Relaxed);
        Ok(remover)
    }

    fn remove(&self, number: u64) {
        let mut all = self.lock();
        let found = all.iter().position(|(of, ..)| *of == number).map(|at| all.remove(at));
        // Whatever its end sets off may come here again.
        drop(all);
        if found.is_some() {
            ALL.fetch_sub(1, Relaxed);
        }
    }

    /// Calls those that wait for it. What one of them raises is nobody's who is deciding: Python reports it.
    pub fn call(&self, py: Python<'_>, happening: Happening, event: &Py<LimitEvent>) {
        let waiting = self.lock().iter().filter(|(_, of, _)| *of == happening).map(|(.., f)| f.clone_ref(py)).collect();
        let waiting: Vec<Py<PyAny>> = waiting;
        for function in waiting {
            if let Err(e) = function.call1(py, (event,)) {
                e.write_unraisable(py, Some(function.bind(py)));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u64, Happening, Py<PyAny>)>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hooks {
    fn drop(&mut self) {
        ALL.fetch_sub(self.lock().len(), Relaxed);
    }
}

/// What somebody asked for.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    pub key: &'a str,
    pub weight: u64,
}

/// What a hook is called with: what happened ("throttled", "unknown_limit" or "store_error"), at which limit and key.
#[pyclass(frozen, get_all, module = "workglow_limit")]
pub struct LimitEvent {
    /// What happened.
    event: &'static str,
    /// The name of the limit: of the one that said no, where several were asked.
    limit: String,
    /// None for no key.
    key: Option<String>,
    /// The units that were asked for.
    wanted: u64,
    /// Those that were granted at once.
    granted: u64,
    /// After so many seconds there may be room; 0.0 if it is not about room.
    wait: f64,
    /// The exception; None if there is none, or if the store's on_error answered in its stead.
    error: Option<Py<PyAny>>,
}

impl LimitEvent {
    pub fn new(
        py: Python<'_>,
        happening: Happening,
        limit: &str,
        asked: Asked<'_>,
        wait: Duration,
        error: Option<&PyErr>,
    ) -> PyResult<Py<LimitEvent>> {
        let event = LimitEvent {
            event: happening.word(),
            limit: limit.to_owned(),
            key: (!asked.key.is_empty()).then(|| asked.key.to_owned()),
            wanted: asked.weight,
            granted: 0,
            wait: wait.as_secs_f64(),
            error: error.map(|e| e.value(py).clone().into_any().unbind()),
        };
        Py::new(py, event)
    }
}

#[pymethods]
impl LimitEvent {
    fn __repr__(&self) -> String {
        let LimitEvent { event, limit, wanted, wait, .. } = self;
        let key = self.key.as_ref().map(|key| format!(", key {key:?}")).unwrap_or_default();
        format!("<LimitEvent: {event}, limit {limit:?}{key}, wanted {wanted}, wait {wait} s>")
    }
}
