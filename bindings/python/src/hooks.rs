//! Hooks: functions that a program registers with `Limiter.on`.

use crate::argument::{choice, wrong_type};
use crate::error::raised;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyTuple};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use workglow_limit::hooks::{Event, Happening, Hook, HookId};

const WORDS: [(&str, Happening); 3] = [
    ("throttled", Happening::Throttled),
    ("unknown_limit", Happening::UnknownLimit),
    ("store_error", Happening::StoreError),
];

/// Events whose hooks have not been called yet.
pub type Pending = Vec<(Arc<Py<PyAny>>, Event)>;

thread_local! {
    static IS_PENDING: Cell<bool> = const { Cell::new(false) };
    /// The events of this thread's calls. The core may report them without the GIL, so their hooks are called later.
    static PENDING: RefCell<Pending> = const { RefCell::new(Vec::new()) };
}

/// Registers a Python function with the core. Returns a Python function that removes it.
pub fn add<'py>(
    event: &Bound<'py, PyAny>,
    function: &Bound<'py, PyAny>,
    on: impl FnOnce(Happening, Hook) -> HookId,
    off: impl Fn(HookId) + Send + Sync + 'static,
) -> PyResult<Bound<'py, PyCFunction>> {
    let happening = choice("event", event, &WORDS)?;
    if !function.is_callable() {
        return Err(wrong_type("function", function, "a callable"));
    }
    let called = Arc::new(function.clone().unbind());
    let number = on(
        happening,
        Arc::new(move |event: &Event| {
            IS_PENDING.set(true);
            PENDING.with_borrow_mut(|pending| pending.push((called.clone(), event.clone())));
        }),
    );
    let remove = move |_: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| off(number);
    PyCFunction::new_closure(event.py(), Some(c"remove"), None, remove)
}

/// Calls the hooks of the pending events. `error` is the exception that will be raised. An exception of a hook does not reach the
/// caller: Python reports it as unraisable.
#[inline]
pub fn deliver(py: Python<'_>, error: Option<&PyErr>) {
    if IS_PENDING.get() {
        call(py, error);
    }
}

#[cold]
fn call(py: Python<'_>, error: Option<&PyErr>) {
    for (function, event) in take() {
        let function = function.bind(py);
        let called = function.call1((LimitEvent::new(py, event, error),));
        if let Err(e) = called {
            e.write_unraisable(py, Some(function));
        }
    }
}

/// Drops the pending events of a call that will be made again where it may wait.
pub fn forget() {
    drop(take());
}

/// Takes the pending events of this thread.
pub fn take() -> Pending {
    if IS_PENDING.replace(false) { PENDING.take() } else { Vec::new() }
}

/// Adds pending events to this thread.
pub fn put(pending: Pending) {
    if !pending.is_empty() {
        IS_PENDING.set(true);
        PENDING.with_borrow_mut(|here| here.extend(pending));
    }
}

/// Calls the hooks of the pending events, then returns the core's answer for Python.
#[inline]
pub fn deliver_with<R>(
    py: Python<'_>,
    answer: workglow_limit::Result<R>,
    raise: impl FnOnce(workglow_limit::Error) -> PyErr,
) -> PyResult<R> {
    let answer = answer.map_err(raise);
    deliver(py, answer.as_ref().err());
    answer
}

/// An event, as a hook gets it: "throttled", "unknown_limit" or "store_error", with its limit and key.
#[pyclass(frozen, get_all, module = "workglow_limit")]
pub struct LimitEvent {
    /// The kind of the event: "throttled", "unknown_limit" or "store_error".
    event: &'static str,
    /// The name of the limit. In a composite, the limit that denied.
    limit: String,
    /// The key; None if the call had no key.
    key: Option<String>,
    /// The units that were requested.
    wanted: u64,
    /// The units that were granted at once.
    granted: u64,
    /// The seconds after which the start may be admitted; 0.0 for other events.
    wait: f64,
    /// The exception; None if there is none, or if the store's on_error answered instead.
    error: Option<Py<PyAny>>,
}

impl LimitEvent {
    fn new(py: Python<'_>, event: Event, raising: Option<&PyErr>) -> LimitEvent {
        let Event { happening, limit, key, wanted, wait, error, .. } = event;
        let word = WORDS.iter().find(|(_, of)| *of == happening).map_or("", |(word, _)| word);
        let error = error.map(|error| raising.map_or_else(|| raised(error), |raising| raising.clone_ref(py)));
        LimitEvent {
            event: word,
            limit: limit.to_string(),
            key: (!key.is_empty()).then_some(key),
            wanted,
            granted: 0,
            wait: wait.as_secs_f64(),
            error: error.map(|e| e.into_value(py).into_any()),
        }
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
