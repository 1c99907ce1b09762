//! Limiters written in Python, as children of a composite. `_custom.py` adapts each to one small set of methods.

use crate::argument::{seconds, wrong_type};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use workglow_limit::custom::{CustomLimiter, End, Verdict};
use workglow_limit::{Error, Result};

/// A limiter written in Python. The core may call it without the GIL, so each call takes the GIL.
pub struct Custom {
    name: String,
    calls: Py<PyAny>,
    /// The tokens of starts that have not ended, by the number of the start. A thread holds this mutex only while it holds
    /// the GIL, and never while Python code runs. So the lock order is always the same, and no fork happens while it is
    /// locked.
    tokens: Mutex<HashMap<u64, Py<PyAny>>>,
    next: AtomicU64,
}

/// Makes a limiter of an object written in Python.
pub fn limiter(parameter: &'static str, object: &Bound<'_, PyAny>) -> PyResult<CustomLimiter<Custom>> {
    let calls = object.py().import("workglow_limit._custom")?.getattr("calls_of")?.call1((object,))?;
    if let Ok(reason) = calls.cast::<PyString>() {
        let wrong = wrong_type(parameter, object, "a limiter");
        return Err(PyTypeError::new_err(format!("{}: {}", wrong.value(object.py()), reason.to_str()?)));
    }
    let name = calls.getattr("name")?.extract()?;
    let custom = Custom { name, calls: calls.unbind(), tokens: Mutex::new(HashMap::new()), next: AtomicU64::new(1) };
    CustomLimiter::new(custom).map_err(crate::error::raised)
}

impl Custom {
    /// Calls Python. An exception is kept for the code that receives the core's error: see `exception_of`.
    fn call<R>(&self, f: impl FnOnce(Python<'_>, &Bound<'_, PyAny>) -> PyResult<R>) -> Result<R> {
        let failure = |cause: String| Error::Custom { limit: self.name.clone(), cause: cause.into() };
        let answer = Python::try_attach(|py| {
            f(py, self.calls.bind(py)).map_err(|exception| {
                let cause = exception.to_string();
                RAISED.with_borrow_mut(|raised| raised.push((cause.clone(), exception)));
                failure(cause)
            })
        });
        answer.unwrap_or_else(|| Err(failure("Python has ended".to_owned())))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Py<PyAny>>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a key for Python: None for the empty key.
fn or_none(key: &str) -> Option<&str> {
    (!key.is_empty()).then_some(key)
}

/// Asks the limiter how long a start would have to wait.
fn retry_after(calls: &Bound<'_, PyAny>, key: &str, weight: u64) -> PyResult<Duration> {
    seconds("retry_after", &calls.call_method1("retry_after", (or_none(key), weight))?)
}

impl workglow_limit::custom::Custom for Custom {
    fn name(&self) -> &str {
        &self.name
    }

    fn decide(&self, key: &str, weight: u64) -> Result<Verdict> {
        self.call(|_, calls| {
            let token = calls.call_method1("try_acquire", (or_none(key), weight))?;
            // False also means a denial.
            if token.is_none() || token.cast::<PyBool>().is_ok_and(|token| !token.is_true()) {
                return Ok(Verdict::Denied(retry_after(calls, key, weight)?));
            }
            let number = self.next.fetch_add(1, Relaxed);
            self.lock().insert(number, token.unbind());
            Ok(Verdict::Admitted(number))
        })
    }

    fn peek(&self, key: &str, weight: u64) -> Result<Verdict> {
        self.call(|_, calls| {
            let after = retry_after(calls, key, weight)?;
            Ok(if after.is_zero() { Verdict::Admitted(0) } else { Verdict::Denied(after) })
        })
    }

    fn end(&self, start: u64, end: End) -> Result<()> {
        self.call(|_, calls| {
            let Some(token) = self.lock().remove(&start) else { return Ok(()) };
            match end {
                End::Completed => calls.call_method1("complete", (token,)),
                End::Cancelled => calls.call_method1("cancel", (token,)),
                End::Settled(actual) => calls.call_method1("settle", (token, actual)),
            }
            .map(drop)
        })
    }

    fn pause(&self, key: &str, pause: Duration) -> Result<()> {
        self.call(|_, calls| calls.call_method1("pause", (pause.as_secs_f64(), or_none(key))).map(drop))
    }

    fn clear(&self, key: &str) -> Result<()> {
        self.call(|_, calls| calls.call_method1("clear", (or_none(key),)).map(drop))
    }

    fn record_job_start(&self, key: &str) -> Result<()> {
        self.call(|_, calls| calls.call_method1("record_job_start", (or_none(key),)).map(drop))
    }

    fn record_job_completion(&self, key: &str) -> Result<()> {
        self.call(|_, calls| calls.call_method1("record_job_completion", (or_none(key),)).map(drop))
    }
}

thread_local! {
    /// The exceptions that calls of this thread raised, each with the text that the core's error has.
    static RAISED: RefCell<Raised> = const { RefCell::new(Vec::new()) };
}

/// Exceptions of limiters written in Python, by their texts.
pub type Raised = Vec<(String, PyErr)>;

/// Takes the exceptions that calls of this thread raised.
pub fn take() -> Raised {
    RAISED.take()
}

/// Adds exceptions to those that calls of this thread raised.
pub fn put(raised: Raised) {
    RAISED.with_borrow_mut(|here| here.extend(raised));
}

/// Returns the exception behind a core error. Drops all other exceptions of this thread.
pub fn exception_of(error: &Error) -> Option<PyErr> {
    let Error::Custom { cause, .. } = error else { return None };
    let raised = RAISED.take();
    raised.into_iter().find(|(of, _)| of == cause.as_str()).map(|(_, exception)| exception)
}
