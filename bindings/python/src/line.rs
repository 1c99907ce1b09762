//! Those who wait for a limiter in an event loop: what `_loops` drives.

use crate::elsewhere::Whose;
use crate::error::{expired, raised};
use crate::hooks;
use crate::limiter::Node;
use crate::permit::{Permit, Place};
use crate::waiting::wait_here;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use workglow_limit::{Error, Joined, Outcome, Seat, WaiterId};

/// Nobody wakes an event loop when a test moves its clock: look again after this long.
const MANUAL_SLICE: Duration = Duration::from_millis(5);

/// What one waiter asks for, and its number once it is in a line.
#[pyclass(module = "workglow_limit._native")]
pub struct Waiter {
    pub node: Arc<Node>,
    pub key: Box<str>,
    pub weight: u64,
    pub priority: i32,
    pub timeout: Option<Duration>,
    pub grace: Duration,
    pub place: Option<Place>,
    /// Did it join with its place?
    pub has_brought: bool,
    pub number: Option<WaiterId>,
}

impl Waiter {
    pub fn new(node: &Arc<Node>, key: &str, weight: u64) -> Waiter {
        let (node, key) = (node.clone(), key.into());
        let (timeout, grace) = (None, Duration::ZERO);
        Waiter { node, key, weight, priority: 0, timeout, grace, place: None, has_brought: false, number: None }
    }

    /// Starts if there is room and nobody waits. Nothing: it has to join the line of its loop.
    pub fn start_at_once(&self, py: Python<'_>) -> PyResult<Option<Permit>> {
        if self.place.is_some() || self.node.is_waited_for(py) {
            return Ok(None);
        }
        let mut seat = Seat::new(workglow_limit::Waiter::new(&self.key, self.weight).grace(self.grace));
        let started = hooks::told(py, seat.start_at_once(&*self.node.core), raised)?;
        self.node.look_after(py);
        Ok(started.map(|raw| Permit::with_key(&self.node, raw, &self.key)))
    }
}

#[pymethods]
impl Waiter {
    /// The lines of the limiter, by their event loops.
    #[getter]
    fn lines(&self, py: Python<'_>) -> Py<PyDict> {
        self.node.lines(py).clone_ref(py)
    }

    /// A new line for the limiter.
    fn line(&self) -> Line {
        let core = Mutex::new(workglow_limit::Line::new(self.node.core.clone()));
        Line { node: self.node.clone(), core, pending: Mutex::default() }
    }
}

/// The waiters of one limiter in one event loop. One thread uses it at a time. What hooks are to be told waits for `tell_hooks`: they
/// may let other greenlets run, and so come after the line and those who drive it.
#[pyclass(frozen, module = "workglow_limit._native")]
pub struct Line {
    node: Arc<Node>,
    core: Mutex<workglow_limit::Line>,
    /// What hooks have still to be told, and what was raised then.
    pending: Mutex<Vec<(hooks::Pending, Option<PyErr>)>>,
}

#[pymethods]
impl Line {
    /// Joins the line: the permit, if there is room at once, or the number of the waiter. None, and nothing is changed: that
    /// has to wait for the store, and `wait` says that it must not.
    fn join(&self, py: Python<'_>, waiter: &Bound<'_, Waiter>, wait: bool) -> PyResult<Option<Py<PyAny>>> {
        // Nothing is borrowed while it waits: a fork would leave it so.
        let (key, weight, priority, timeout, grace, place) = {
            let waiter = waiter.borrow();
            if waiter.place.is_some() && !wait {
                return Ok(None); // To read its text, or to exchange it, may take a while.
            }
            let place = waiter.place.as_ref().map(|place| place.raw(py, &self.node)).transpose()?;
            (waiter.key.clone(), waiter.weight, waiter.priority, waiter.timeout, waiter.grace, place)
        };
        let ask = workglow_limit::Waiter { key: &key, weight, priority, timeout, grace, place };
        let joined = self.call(py, wait, |core| core.join(ask));
        match joined {
            Err(Error::WouldWait) => return Ok(None),
            // Nobody was asked for it yet: whoever may wait does that, before its timeout counts and with its errors told.
            Ok(Joined::Waiting(number)) if !wait && lock(&self.core).would_wait() => {
                lock(&self.core).leave(number);
                hooks::forget();
                return Ok(None);
            }
            _ => {}
        }
        let joined = match joined {
            Ok(joined) => joined,
            Err(error) => {
                let error = raised(error);
                self.keep(Some(error.clone_ref(py)));
                return Err(error);
            }
        };
        self.keep(None);
        let mut waiter = waiter.borrow_mut();
        // From now on the place is the waiter's.
        waiter.has_brought = waiter.place.take().inspect(Place::use_up).is_some();
        match joined {
            Joined::Done(outcome) => outcome_of(py, &self.node, outcome)?.map(Some),
            Joined::Waiting(number) => {
                waiter.number = Some(number);
                number.into_py_any(py).map(Some)
            }
        }
    }

    /// Does what is due: the waits that ended, by their numbers, with a permit or an exception.
    fn advance(&self, py: Python<'_>, wait: bool) -> PyResult<Vec<(WaiterId, Py<PyAny>)>> {
        let over = self.call(py, wait, |core| {
            let mut over = Vec::new();
            core.advance(&mut over);
            over
        });
        self.keep(None);
        self.node.look_after(py);
        let told = over.into_iter().map(|(number, outcome)| {
            let outcome = match outcome_of(py, &self.node, outcome)? {
                Ok(permit) => permit,
                Err(error) => error.into_value(py).into_any(),
            };
            Ok((number, outcome))
        });
        told.collect()
    }

    /// Is there something to tell hooks?
    fn has_news(&self) -> bool {
        !lock(&self.pending).is_empty()
    }

    /// Tells hooks what has happened.
    fn tell_hooks(&self, py: Python<'_>) {
        let news = mem::take(&mut *lock(&self.pending));
        for (pending, error) in news {
            hooks::put(pending);
            hooks::deliver(py, error.as_ref());
        }
    }

    /// Is there something left that has to wait for the store?
    fn would_wait(&self) -> bool {
        lock(&self.core).would_wait()
    }

    /// In how many seconds there is something to do; None: nobody waits.
    fn next(&self) -> Option<f64> {
        let next = lock(&self.core).next()?;
        let most = if self.node.is_manual() { MANUAL_SLICE } else { Duration::MAX };
        Some(next.min(most).as_secs_f64())
    }

    /// There may be room for this key, or without one for any.
    fn wake(&self, key: Option<&str>) {
        lock(&self.core).wake(key);
    }

    /// A waiter does not wait any longer. Answers its number, if it had one.
    fn leave(&self, py: Python<'_>, waiter: &Waiter) -> Option<WaiterId> {
        let number = waiter.number?;
        if waiter.has_brought {
            wait_here(py, || lock(&self.core).leave(number));
        } else {
            // A place that has to wait to be given back is left for the next pass.
            lock(&self.core).leave(number);
        }
        Some(number)
    }
}

impl Line {
    /// Makes a call, which may wait if it is made elsewhere.
    fn call<R: Send>(&self, py: Python<'_>, wait: bool, call: impl FnOnce(&mut workglow_limit::Line) -> R + Send) -> R {
        if !wait {
            return call(&mut lock(&self.core));
        }
        wait_here(py, || call(&mut lock(&self.core)))
    }

    pub fn whose(&self) -> Whose {
        self.node.whose
    }

    /// Keeps what hooks are to be told of a call.
    fn keep(&self, error: Option<PyErr>) {
        let pending = hooks::take();
        if !pending.is_empty() {
            lock(&self.pending).push((pending, error));
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A wait that ended, for Python.
fn outcome_of(py: Python<'_>, node: &Arc<Node>, outcome: Outcome) -> PyResult<PyResult<Py<PyAny>>> {
    Ok(match outcome {
        Outcome::Admitted(raw) => Ok(Permit::new(node, raw).into_py_any(py)?),
        Outcome::Expired(after) => Err(expired(py, node.core.name(), after)),
        Outcome::Failed(error) => Err(raised(error)),
    })
}
