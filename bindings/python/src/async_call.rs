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
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use workglow_limit::embed::Begun;
use workglow_limit::{Attempt, Error, Limiter, Result};

/// One call, made again until it has an answer.
#[pyclass(frozen, module = "workglow_limit._native")]
pub struct AsyncCall(Call);

enum Call {
    Decision(Asked),
    End(Py<Permit>, End),
    Rare(Rare),
}

/// A rare operation. While it would have to wait, it has changed nothing, so it can be made again.
struct Rare {
    owner: OwnerId,
    make: Box<dyn Fn() -> Result<()> + Send + Sync>,
    /// What follows it.
    after: Box<dyn Fn() + Send + Sync>,
}

struct Asked {
    shared: Arc<SharedLimiter>,
    kind: Kind,
    key: Arc<str>,
    weight: u64,
    /// The call, while it waits for a thread that finishes it.
    begun: Mutex<Option<Box<Begun<Decided>>>>,
}

/// The answer of a decision.
enum Decided {
    Start(Attempt),
    Whole(workglow_limit::Decision),
    Forecast(Option<Duration>),
    Charged(u64),
}

#[derive(Clone, Copy)]
pub enum Kind {
    TryAcquire,
    Decide,
    Peek,
    /// Of as many starts as the weight is.
    Forecast,
    /// Units that others have spent, as long as so many remain.
    ChargeOthers(u64),
}

/// Returns the coroutine of a decision.
pub fn decision<'py>(
    py: Python<'py>,
    shared: &Arc<SharedLimiter>,
    kind: Kind,
    key: &str,
    weight: u64,
) -> PyResult<Bound<'py, PyAny>> {
    let key = key.into();
    coroutine(py, Call::Decision(Asked { shared: shared.clone(), kind, key, weight, begun: Mutex::default() }))
}

/// Returns the coroutine that ends a permit.
pub fn end(py: Python<'_>, permit: Py<Permit>, end: End) -> PyResult<Bound<'_, PyAny>> {
    coroutine(py, Call::End(permit, end))
}

/// Returns the coroutine of a rare operation. `after` follows it.
pub fn rare(
    py: Python<'_>,
    owner: OwnerId,
    make: impl Fn() -> Result<()> + Send + Sync + 'static,
    after: impl Fn() + Send + Sync + 'static,
) -> PyResult<Bound<'_, PyAny>> {
    coroutine(py, Call::Rare(Rare { owner, make: Box::new(make), after: Box::new(after) }))
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
                let ended = go(py, wait, || Permit::of(permit).end_with(end));
                done(py, ended, |()| Ok(py.None()))
            }
            Call::Rare(Rare { make, after, .. }) => done(py, go(py, wait, make), |()| {
                after();
                Ok(py.None())
            }),
            Call::Decision(asked) => {
                let begun = asked.begun.lock().unwrap_or_else(PoisonError::into_inner).take();
                let answer = match begun {
                    Some(begun) => go(py, wait, || begun.finish()),
                    None => asked.begin(),
                };
                let Asked { shared, key, .. } = asked;
                let answer = done(py, answer, |decided| match decided {
                    Decided::Start(Attempt::Admitted(raw)) => Permit::with_key(shared, raw, key).into_py_any(py),
                    Decided::Start(Attempt::Denied(_)) => Ok(py.None()),
                    Decided::Whole(decision) => Decision::new(py, shared, key, decision)?.into_py_any(py),
                    Decided::Forecast(after) => after.map(|after| after.as_secs_f64()).into_py_any(py),
                    Decided::Charged(units) => units.into_py_any(py),
                });
                shared.maintain(py);
                answer
            }
        }
    }
}

impl Asked {
    /// Makes the decision, or begins it if it has to wait.
    fn begin(&self) -> Result<Decided> {
        let (kind, key, weight) = (self.kind, self.key.clone(), self.weight);
        let ask = move |core: &dyn Limiter| kind.ask(core, &key, weight);
        match ask(&*self.shared.core) {
            Err(Error::WouldWait) => {}
            answer => return answer,
        }
        let begun = Begun::new(self.shared.core.clone(), ask, Decided::undo);
        if begun.is_over() {
            return begun.finish();
        }
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(begun));
        Err(Error::WouldWait)
    }
}

impl Kind {
    fn ask(self, core: &dyn Limiter, key: &str, weight: u64) -> Result<Decided> {
        match self {
            Kind::TryAcquire => core.attempt(key, weight).map(Decided::Start),
            Kind::Decide => core.decide(key, weight).map(Decided::Whole),
            Kind::Peek => core.peek(key, weight).map(Decided::Whole),
            Kind::Forecast => core.forecast(weight, key).map(Decided::Forecast),
            Kind::ChargeOthers(leaving) => core.charge_others(key, weight, leaving).map(Decided::Charged),
        }
    }
}

impl Decided {
    fn undo(core: &dyn Limiter, decided: Decided) {
        let permit = match decided {
            Decided::Start(Attempt::Admitted(permit)) => Some(permit),
            Decided::Start(Attempt::Denied(_)) => None,
            Decided::Whole(decision) => decision.permit,
            Decided::Forecast(_) | Decided::Charged(_) => None,
        };
        permit.map(|permit| core.cancel(&permit));
    }
}

impl AsyncCall {
    pub fn owner(&self) -> OwnerId {
        match &self.0 {
            Call::Decision(asked) => asked.shared.owner,
            Call::End(permit, _) => Permit::of(permit).owner(),
            Call::Rare(rare) => rare.owner,
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
