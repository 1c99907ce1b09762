//! The coroutine that `acquire_async` returns. It usually finishes at its first step.

use crate::async_call;
use crate::error::raised;
use crate::line::Waiter;
use crate::permit::{End, Permit};
use pyo3::exceptions::{PyRuntimeError, PyRuntimeWarning, PyStopIteration};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use pyo3::{PyTraverseError, PyVisit};
use std::mem;
use workglow_limit::Error;

/// A pending acquisition. `await` returns the permit; `async with` completes the permit at the end of the body.
///
/// It starts at once if capacity is free and no other caller waits. Otherwise it runs the coroutine of `_loops`.
#[pyclass(module = "workglow_limit._native")]
pub struct Acquisition {
    state: State,
    is_entered: bool,
    /// The permit that the body holds.
    permit: Option<Py<Permit>>,
}

enum State {
    /// Not awaited yet.
    New(Waiter),
    /// Driven by this coroutine of `_loops`.
    Waits(Py<PyAny>),
    /// The body of `async with` has ended, and its permit has not.
    Ends,
    Over,
}

impl Acquisition {
    pub fn new(waiter: Waiter) -> Acquisition {
        Acquisition { state: State::New(waiter), is_entered: false, permit: None }
    }

    /// Returns the coroutine that waits, made at the first call.
    fn steps(&mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        static ACQUIRE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        match mem::replace(&mut self.state, State::Over) {
            State::New(waiter) => {
                let steps = ACQUIRE.import(py, "workglow_limit._loops", "acquire")?.call1((waiter,))?;
                self.state = State::Waits(steps.unbind());
            }
            other => self.state = other,
        }
        match &self.state {
            State::Waits(steps) => Ok(steps.clone_ref(py)),
            _ => Err(PyRuntimeError::new_err("cannot reuse already awaited coroutine")),
        }
    }

    /// Marks the acquisition as over. Returns the `StopIteration` with the permit, or the error.
    fn ended(&mut self, answer: PyResult<Bound<'_, Permit>>) -> PyErr {
        self.state = State::Over;
        match answer {
            Ok(permit) => {
                self.permit = self.is_entered.then(|| permit.clone().unbind());
                PyStopIteration::new_err(permit.into_any().unbind())
            }
            Err(error) => error,
        }
    }

    /// Passes on the result of one step of the coroutine.
    fn stepped(&mut self, py: Python<'_>, step: PyResult<Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        step.map(Bound::unbind).map_err(|end| {
            let answer =
                if end.is_instance_of::<PyStopIteration>(py) { end.value(py).getattr("value").ok() } else { None };
            self.ended(answer.and_then(|answer| answer.cast_into().ok()).ok_or(end))
        })
    }
}

#[pymethods]
impl Acquisition {
    fn __await__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __aenter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this.borrow_mut().is_entered = true;
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __aexit__<'py>(this: Bound<'py, Self>, _exception: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        this.borrow_mut().state = State::Ends;
        this
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match &self.state {
            State::New(waiter) => {
                let started = waiter.start_at_once(py);
                if let Some(started) = started.transpose() {
                    return Err(self.ended(started.and_then(|permit| permit.into_pyobject(py))));
                }
            }
            State::Ends => {
                self.state = State::Over;
                let Some(permit) = self.permit.take() else { return Err(PyStopIteration::new_err(py.None())) };
                match Permit::of(&permit).end_with(&End::Complete) {
                    Err(Error::WouldWait) => {
                        self.state = State::Waits(async_call::end(py, permit, End::Complete)?.unbind());
                    }
                    ended => return Err(ended.map_or_else(raised, |()| PyStopIteration::new_err(py.None()))),
                }
            }
            _ => {}
        }
        let step = self.steps(py)?.into_bound(py).call_method1("send", (py.None(),));
        self.stepped(py, step)
    }

    // Event loops make tasks of coroutines only, so this class has all methods of one.

    fn send(&mut self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        if value.is_none() {
            return self.__next__(py);
        }
        let step = self.steps(py)?.into_bound(py).call_method1("send", (value,));
        self.stepped(py, step)
    }

    #[pyo3(signature = (*exception))]
    fn throw(&mut self, py: Python<'_>, exception: &Bound<'_, PyTuple>) -> PyResult<Py<PyAny>> {
        let step = self.steps(py)?.into_bound(py).call_method1("throw", exception);
        self.stepped(py, step)
    }

    fn close(&mut self, py: Python<'_>) -> PyResult<()> {
        match mem::replace(&mut self.state, State::Over) {
            State::Waits(steps) => steps.call_method0(py, "close").map(drop),
            _ => Ok(()),
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let State::Waits(steps) = &self.state { visit.call(steps) } else { Ok(()) }
    }

    fn __clear__(&mut self) {
        self.state = State::Over;
    }
}

impl Drop for Acquisition {
    fn drop(&mut self) {
        if !matches!(self.state, State::New(_)) {
            return;
        }
        Python::try_attach(|py| {
            // Keep an exception that is being raised.
            let pending = PyErr::take(py);
            let text = c"coroutine 'acquire' was never awaited";
            if let Err(e) = PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), text, 1) {
                e.write_unraisable(py, None);
            }
            if let Some(pending) = pending {
                pending.restore(py);
            }
        });
    }
}
