//! Calls that do not block an event loop. `_loops` drives them.

use crate::decision::Decision;
use crate::error::raised;
use crate::hooks;
use crate::limiter::SharedLimiter;
use crate::permit::{End, Permit};
use crate::threads::OwnerId;
use crate::waiting::wait_here;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::sync::Arc;
use workglow_limit::{Attempt, Error, Result};

/// One call, made again until it has an answer.
#[pyclass(frozen, module = "workglow_limit._native")]
pub struct AsyncCall(Call);

enum Call {
    Decision { shared: Arc<SharedLimiter>, kind: Kind, key: Box<str>, weight: u64 },
    End(Py<Permit>, End),
}

#[derive(Clone, Copy)]
pub enum Kind {
    TryAcquire,
    Decide,
    Peek,
}

/// Returns the coroutine of a decision.
pub fn decision<'py>(
    py: Python<'py>,
    shared: &Arc<SharedLimiter>,
    kind: Kind,
    key: Option<&str>,
    weight: u64,
) -> PyResult<Bound<'py, PyAny>> {
    let key = key.unwrap_or_default().into();
    coroutine(py, Call::Decision { shared: shared.clone(), kind, key, weight })
}

/// Returns the coroutine that ends a permit.
pub fn end(py: Python<'_>, permit: Py<Permit>, end: End) -> PyResult<Bound<'_, PyAny>> {
    coroutine(py, Call::End(permit, end))
}

fn coroutine(py: Python<'_>, call: Call) -> PyResult<Bound<'_, PyAny>> {
    static RUN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    RUN.import(py, "workglow_limit._loops", "run")?.call1((AsyncCall(call),))
}

#[pymethods]
impl AsyncCall {
    /// Returns the answer, or False if the call would have to wait and `wait` is false.
    fn answer(&self, py: Python<'_>, wait: bool) -> PyResult<Py<PyAny>> {
        match &self.0 {
            Call::End(permit, end) => {
                let ended = go(py, wait, || Permit::of(permit).end_with(*end));
                done(py, ended, |()| Ok(py.None()))
            }
            Call::Decision { shared, kind, key, weight } => {
                let (core, key, weight) = (&*shared.core, &**key, *weight);
                let decided = |decision| Decision::new(py, shared, key, decision)?.into_py_any(py);
                let started = |attempt| match attempt {
                    Attempt::Admitted(raw) => Permit::with_key(shared, raw, key).into_py_any(py),
                    Attempt::Denied(_) => Ok(py.None()),
                };
                let answer = match kind {
                    Kind::TryAcquire => done(py, go(py, wait, || core.attempt(key, weight)), started),
                    Kind::Decide => done(py, go(py, wait, || core.decide(key, weight)), decided),
                    Kind::Peek => done(py, go(py, wait, || core.peek(key, weight)), decided),
                };
                shared.maintain(py);
                answer
            }
        }
    }
}

impl AsyncCall {
    pub fn owner(&self) -> OwnerId {
        match &self.0 {
            Call::Decision { shared, .. } => shared.owner,
            Call::End(permit, _) => Permit::of(permit).owner(),
        }
    }
}

fn go<R: Send>(py: Python<'_>, wait: bool, call: impl FnOnce() -> Result<R> + Send) -> Result<R> {
    if wait { wait_here(py, call) } else { call() }
}

fn done<R>(py: Python<'_>, answer: Result<R>, make: impl FnOnce(R) -> PyResult<Py<PyAny>>) -> PyResult<Py<PyAny>> {
    match answer {
        Err(Error::WouldWait) => false.into_py_any(py),
        answer => make(hooks::deliver_with(py, answer, raised)?),
    }
}
