//! Those who wait for a limiter and start in the workers of a pool: what `celery/_consumer.py` drives.

use crate::argument::{self, seconds};
use crate::error::raised;
use crate::hooks;
use crate::limiter::{Limiter, Node};
use crate::waiting::wait;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use workglow_limit::{Turn, WaiterId};

/// What one waiter is told: its number; "held", "go" or "away"; the text of its place, if it has one; and in how many seconds
/// that comes.
type Told = (WaiterId, &'static str, Option<String>, f64);

/// The waiters of one limiter in one pool. One thread uses it at a time.
#[pyclass(frozen, module = "workglow_limit._native")]
pub struct Pool {
    node: Arc<Node>,
    core: Arc<Mutex<workglow_limit::Pool>>,
}

impl Pool {
    fn wait<R: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut workglow_limit::Pool) -> R + Send + 'static,
    ) -> PyResult<R> {
        let core = self.core.clone();
        wait(py, self.node.whose, move || call(&mut lock(&core)))
    }
}

fn lock(core: &Mutex<workglow_limit::Pool>) -> MutexGuard<'_, workglow_limit::Pool> {
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

#[pymethods]
impl Pool {
    #[new]
    fn new(limiter: &Bound<'_, Limiter>, grace: Option<&Bound<'_, PyAny>>) -> PyResult<Pool> {
        let grace = grace.map(|grace| seconds("grace", grace)).transpose()?;
        let node = limiter.get().node.clone();
        let core = workglow_limit::Pool::new(node.core.clone(), grace);
        Ok(Pool { core: Arc::new(Mutex::new(core)), node })
    }

    /// Joins the line with a number: `advance` tells what comes of it. A start that is further away than `hold` seconds is not
    /// waited for here. A place that is not this limit's is none.
    fn join(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::key)] key: Option<&str>,
        #[pyo3(from_py_with = argument::weight)] weight: u64,
        priority: i32,
        hold: Option<&Bound<'_, PyAny>>,
        place: Option<&str>,
    ) -> PyResult<WaiterId> {
        let timeout = hold.map(|hold| seconds("hold", hold)).transpose()?;
        let (limiter, key) = (self.node.core.clone(), key.unwrap_or_default().to_owned());
        let text = place.map(str::to_owned);
        let joined = self.wait(py, move |core| {
            let place = text.and_then(|text| limiter.permit_from_text(&text).ok());
            let waiter = workglow_limit::Waiter::new(&key, weight).priority(priority).timeout(timeout);
            core.join(workglow_limit::Waiter { place, ..waiter })
        })?;
        hooks::told(py, joined, raised)
    }

    /// Does what is due: what is to be told to whom, and in how many seconds there is more to do, or None.
    fn advance(&self, py: Python<'_>, workers: usize, free: usize) -> PyResult<(Vec<Told>, Option<f64>)> {
        let (told, next) = self.wait(py, move |core| {
            let mut told = Vec::new();
            let next = core.advance(workers, free, &mut told);
            (told, next)
        })?;
        self.node.look_after(py);
        hooks::deliver(py, None);
        let told = told.into_iter().map(|(id, turn)| match turn {
            Turn::Held(after) => (id, "held", None, after.as_secs_f64()),
            Turn::Go(place) => (id, "go", place, 0.0),
            Turn::Away(place, after) => (id, "away", place, after.as_secs_f64()),
            // What is wrong is said where it starts.
            Turn::Failed(_) => (id, "go", None, 0.0),
        });
        Ok((told.collect(), next.map(|next| next.as_secs_f64())))
    }

    /// Whoever went has got there.
    fn arrive(&self, number: WaiterId) {
        lock(&self.core).arrive(number);
    }

    /// Whoever went has ended, or will not start.
    fn end(&self, py: Python<'_>, number: WaiterId) -> PyResult<()> {
        self.wait(py, move |core| core.end(number))
    }

    /// A waiter does not wait any longer.
    fn leave(&self, py: Python<'_>, number: WaiterId) -> PyResult<()> {
        self.wait(py, move |core| core.leave(number))
    }

    /// A waiter goes on waiting elsewhere: with the place that it would have had and in how many seconds that comes, if there is
    /// one.
    fn take_along(&self, py: Python<'_>, number: WaiterId) -> PyResult<(Option<String>, f64)> {
        let taken = self.wait(py, move |core| core.take_along(number))?;
        Ok(taken.map_or((None, 0.0), |(place, after)| (Some(place), after.as_secs_f64())))
    }

    /// The limit has another policy: places are taken anew.
    fn renew(&self, py: Python<'_>) -> PyResult<()> {
        self.wait(py, |core| core.renew())
    }

    /// All who wait leave.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.wait(py, |core| core.clear())
    }

    /// How many went and have not ended.
    fn running(&self) -> usize {
        lock(&self.core).running()
    }

    /// How many wait, by key.
    fn waiting<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = PyDict::new(py);
        lock(&self.core).waiting().try_for_each(|(key, waiting)| counts.set_item(key, waiting))?;
        Ok(counts)
    }
}
