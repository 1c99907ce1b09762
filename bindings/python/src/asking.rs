//! One call for an event loop, which waits for nothing there: what `_loops` drives.

use crate::decision::Decision;
use crate::elsewhere::Whose;
use crate::error::raised;
use crate::hooks;
use crate::limiter::Node;
use crate::permit::{End, Permit};
use crate::waiting::wait_here;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::sync::Arc;
use workglow_limit::{Attempt, Error, Result};

/// What is asked, as often as it takes to get an answer.
#[pyclass(frozen, module = "workglow_limit._native")]
pub struct Asked(Question);

enum Question {
    OfLimiter { node: Arc<Node>, what: What, key: Box<str>, weight: u64 },
    ToEnd(Py<Permit>, End),
}

#[derive(Clone, Copy)]
pub enum What {
    TryAcquire,
    Decide,
    Peek,
}

/// The coroutine of a start or a look.
pub fn limiter<'py>(
    py: Python<'py>,
    node: &Arc<Node>,
    what: What,
    key: Option<&str>,
    weight: u64,
) -> PyResult<Bound<'py, PyAny>> {
    let key = key.unwrap_or_default().into();
    coroutine(py, Question::OfLimiter { node: node.clone(), what, key, weight })
}

/// The coroutine of a permit's end.
pub fn end(py: Python<'_>, permit: Py<Permit>, end: End) -> PyResult<Bound<'_, PyAny>> {
    coroutine(py, Question::ToEnd(permit, end))
}

fn coroutine(py: Python<'_>, question: Question) -> PyResult<Bound<'_, PyAny>> {
    static ASK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    ASK.import(py, "workglow_limit._loops", "ask")?.call1((Asked(question),))
}

#[pymethods]
impl Asked {
    /// The answer. False: that has to wait, and `wait` says that it must not.
    fn answer(&self, py: Python<'_>, wait: bool) -> PyResult<Py<PyAny>> {
        match &self.0 {
            Question::ToEnd(permit, end) => {
                let ended = go(py, wait, || Permit::of(permit).end_with(*end));
                done(py, ended, |()| Ok(py.None()))
            }
            Question::OfLimiter { node, what, key, weight } => {
                let (core, key, weight) = (&*node.core, &**key, *weight);
                let decided = |decision| Decision::new(py, node, key, decision)?.into_py_any(py);
                let started = |attempt| match attempt {
                    Attempt::Admitted(raw) => Permit::with_key(node, raw, key).into_py_any(py),
                    Attempt::Denied(_) => Ok(py.None()),
                };
                let answer = match what {
                    What::TryAcquire => done(py, go(py, wait, || core.attempt(key, weight)), started),
                    What::Decide => done(py, go(py, wait, || core.decide(key, weight)), decided),
                    What::Peek => done(py, go(py, wait, || core.peek(key, weight)), decided),
                };
                node.look_after(py);
                answer
            }
        }
    }
}

impl Asked {
    pub fn whose(&self) -> Whose {
        match &self.0 {
            Question::OfLimiter { node, .. } => node.whose,
            Question::ToEnd(permit, _) => Permit::of(permit).whose(),
        }
    }
}

fn go<R: Send>(py: Python<'_>, wait: bool, call: impl FnOnce() -> Result<R> + Send) -> Result<R> {
    if wait { wait_here(py, call) } else { call() }
}

fn done<R>(py: Python<'_>, answer: Result<R>, make: impl FnOnce(R) -> PyResult<Py<PyAny>>) -> PyResult<Py<PyAny>> {
    match answer {
        Err(Error::WouldWait) => false.into_py_any(py),
        answer => make(hooks::told(py, answer, raised)?),
    }
}
