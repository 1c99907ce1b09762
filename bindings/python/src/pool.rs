//! The waiters of a limiter that start in the workers of a pool. `celery/_consumer.py` drives them.

use crate::argument::seconds;
use crate::error::raised;
use crate::hooks;
use crate::joint::{self, Key, Weight};
use crate::limiter::{Limiter, SharedLimiter};
use crate::waiting::wait;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use workglow_limit::embed::{Turn, WaiterId, plain_key};

/// An instruction to one waiter: its number; "held", "go" or "away"; the text of its place, if it has one; and the seconds until that
/// is ready.
type Instruction = (WaiterId, &'static str, Option<String>, f64);

/// The waiters of one limiter in one pool. One thread uses it at a time.
#[pyclass(frozen, module = "workglow_limit._native")]
pub struct Pool {
    shared: Arc<SharedLimiter>,
    core: Arc<Mutex<workglow_limit::embed::Pool>>,
}

impl Pool {
    fn wait<R: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut workglow_limit::embed::Pool) -> R + Send + 'static,
    ) -> PyResult<R> {
        let core = self.core.clone();
        wait(py, self.shared.owner, move || call(&mut lock(&core)))
    }
}

fn lock(core: &Mutex<workglow_limit::embed::Pool>) -> MutexGuard<'_, workglow_limit::embed::Pool> {
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

#[pymethods]
impl Pool {
    #[new]
    fn new(limiter: &Bound<'_, Limiter>, grace: Option<&Bound<'_, PyAny>>) -> PyResult<Pool> {
        let grace = grace.map(|grace| seconds("grace", grace)).transpose()?;
        let shared = limiter.get().shared.clone();
        let core = workglow_limit::embed::Pool::new(shared.core.clone(), grace);
        Ok(Pool { core: Arc::new(Mutex::new(core)), shared })
    }

    /// Joins the line and returns the waiter's number, which `advance` uses. The waiter is sent away if its start is more than
    /// `hold` seconds away. A place of another limit is ignored.
    fn join(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = joint::key)] key: Key<'_, '_>,
        #[pyo3(from_py_with = joint::weight)] weight: Weight<'_, '_>,
        priority: i32,
        hold: Option<&Bound<'_, PyAny>>,
        place: Option<&str>,
    ) -> PyResult<WaiterId> {
        let timeout = hold.map(|hold| seconds("hold", hold)).transpose()?;
        let limiter = self.shared.core.clone();
        let (key, weight) = joint::start(&*limiter, key, weight)?;
        let key = key.to_owned();
        let text = place.map(str::to_owned);
        let joined = self.wait(py, move |core| {
            let place = text.and_then(|text| limiter.permit_from_text(&text).ok());
            let waiter = workglow_limit::embed::Waiter::new(&key, weight).priority(priority).timeout(timeout);
            core.join(workglow_limit::embed::Waiter { place, ..waiter })
        })?;
        hooks::deliver_with(py, joined, raised)
    }

    /// Does the work that is due. Returns the instructions to waiters, and the seconds until the next call is due or None.
    fn advance(&self, py: Python<'_>, workers: usize, free: usize) -> PyResult<(Vec<Instruction>, Option<f64>)> {
        let (turns, next) = self.wait(py, move |core| {
            let mut turns = Vec::new();
            let next = core.advance(workers, free, &mut turns);
            (turns, next)
        })?;
        self.shared.maintain(py);
        hooks::deliver(py, None);
        let instructions = turns.into_iter().map(|(id, turn)| match turn {
            Turn::Held(after) => (id, "held", None, after.as_secs_f64()),
            Turn::Go(place) => (id, "go", place, 0.0),
            Turn::Away(place, after) => (id, "away", place, after.as_secs_f64()),
            // The start in the worker raises the error.
            Turn::Failed(_) => (id, "go", None, 0.0),
        });
        Ok((instructions.collect(), next.map(|next| next.as_secs_f64())))
    }

    /// Notes that a job has arrived in its worker.
    fn arrive(&self, number: WaiterId) {
        lock(&self.core).arrive(number);
    }

    /// Notes that a job has ended, or will not start.
    fn end(&self, py: Python<'_>, number: WaiterId) -> PyResult<()> {
        self.wait(py, move |core| core.end(number))
    }

    /// Removes a waiter.
    fn leave(&self, py: Python<'_>, number: WaiterId) -> PyResult<()> {
        self.wait(py, move |core| core.leave(number))
    }

    /// Removes a waiter that continues to wait in another process. Returns the text of its place and the seconds until that is
    /// ready, if it has a place.
    fn take_along(&self, py: Python<'_>, number: WaiterId) -> PyResult<(Option<String>, f64)> {
        let taken = self.wait(py, move |core| core.take_along(number))?;
        Ok(taken.map_or((None, 0.0), |(place, after)| (Some(place), after.as_secs_f64())))
    }

    /// Takes new places after a policy change.
    fn renew(&self, py: Python<'_>) -> PyResult<()> {
        self.wait(py, |core| core.renew())
    }

    /// Removes all waiters.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.wait(py, |core| core.clear())
    }

    /// Returns the number of jobs that were sent to workers and have not ended.
    fn running(&self) -> usize {
        lock(&self.core).running()
    }

    /// Returns the number of waiters by key. Those of joint starts are counted with the start's own key.
    fn waiting<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mut counts = HashMap::<String, usize>::new();
        lock(&self.core)
            .waiting()
            .for_each(|(key, waiting)| *counts.entry(plain_key(key).to_owned()).or_default() += waiting);
        counts.into_py_dict(py)
    }
}
