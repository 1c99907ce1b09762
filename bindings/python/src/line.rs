//! The waiters of a limiter in an event loop. `_loops` drives them.

use crate::error::{expired, raised};
use crate::hooks;
use crate::limiter::SharedLimiter;
use crate::permit::{Permit, Place};
use crate::threads::OwnerId;
use crate::waiting::wait_here;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use workglow_limit::Error;
use workglow_limit::embed::{Joined, Outcome, Seat, WaiterId};

/// The longest sleep with a manual clock, which does not wake an event loop when it is advanced.
const MANUAL_SLICE: Duration = Duration::from_millis(5);

/// The request of one waiter, and its number once it is in a line.
#[pyclass(module = "workglow_limit._native")]
pub struct Waiter {
    pub shared: Arc<SharedLimiter>,
    pub key: Box<str>,
    pub weight: u64,
    pub priority: i32,
    pub share: Option<u32>,
    pub timeout: Option<Duration>,
    pub grace: Duration,
    pub place: Option<Place>,
    /// Whether it joined with its place.
    pub joined_with_place: bool,
    pub number: Option<WaiterId>,
}

impl Waiter {
    pub fn new(shared: &Arc<SharedLimiter>, key: &str, weight: u64) -> Waiter {
        let (shared, key) = (shared.clone(), key.into());
        let (timeout, grace) = (None, Duration::ZERO);
        Waiter {
            shared,
            key,
            weight,
            priority: 0,
            share: None,
            timeout,
            grace,
            place: None,
            joined_with_place: false,
            number: None,
        }
    }

    /// Starts if capacity is free and no other caller waits. None means that it must join the line of its loop.
    pub fn start_at_once(&self, py: Python<'_>) -> PyResult<Option<Permit>> {
        if self.place.is_some() || self.shared.has_waiters(py) {
            return Ok(None);
        }
        let mut seat = Seat::new(workglow_limit::embed::Waiter::new(&self.key, self.weight).grace(self.grace));
        let started = hooks::deliver_with(py, seat.start_at_once(&*self.shared.core), raised)?;
        self.shared.maintain(py);
        Ok(started.map(|raw| Permit::with_key(&self.shared, raw, &self.key)))
    }
}

#[pymethods]
impl Waiter {
    /// Weak references to the lines of the limiter, by the ids of their event loops.
    #[getter]
    fn lines(&self, py: Python<'_>) -> Py<PyDict> {
        self.shared.lines(py).clone_ref(py)
    }

    /// Makes a new line for the limiter. `wake` is called from any thread when `advance` has something to return before its time.
    fn line(&self, wake: Py<PyAny>) -> Line {
        let wake = move || {
            // It fails only where the interpreter is ending.
            Python::try_attach(|py| {
                if let Err(error) = wake.call0(py) {
                    error.write_unraisable(py, Some(wake.bind(py)));
                }
            });
        };
        let core = Mutex::new(workglow_limit::embed::Line::with_wake(self.shared.core.clone(), wake));
        Line { shared: self.shared.clone(), core, keys: Mutex::default(), pending: Mutex::default() }
    }
}

/// The waiters of one limiter in one event loop. One thread uses it at a time. Hooks may let other greenlets run, so their events are
/// kept until the line's driver calls `call_hooks`.
#[pyclass(frozen, module = "workglow_limit._native")]
pub struct Line {
    shared: Arc<SharedLimiter>,
    core: Mutex<workglow_limit::embed::Line>,
    /// The keys of its waiters, but the empty one.
    keys: Mutex<HashMap<WaiterId, Box<str>>>,
    /// Events whose hooks have not been called yet, and the exceptions of their calls.
    pending: Mutex<Vec<(hooks::Pending, Option<PyErr>)>>,
}

#[pymethods]
impl Line {
    /// Joins the line. Returns the permit if the start is admitted at once, otherwise the number of the waiter. Returns None and
    /// changes nothing if the call would have to wait for the store and `wait` is false.
    fn join(&self, py: Python<'_>, waiter: &Bound<'_, Waiter>, wait: bool) -> PyResult<Option<Py<PyAny>>> {
        // Nothing is borrowed during the wait: after a fork the child would see it borrowed for ever.
        let (key, weight, priority, share, timeout, grace, place) = {
            let waiter = waiter.borrow();
            if waiter.place.is_some() && !wait {
                return Ok(None); // Reading its text or exchanging it may wait.
            }
            let place = waiter.place.as_ref().map(|place| place.raw(py, &self.shared)).transpose()?;
            let (key, weight) = (waiter.key.clone(), waiter.weight);
            (key, weight, waiter.priority, waiter.share, waiter.timeout, waiter.grace, place)
        };
        let ask = workglow_limit::embed::Waiter { key: &key, weight, priority, share, timeout, grace, place };
        let joined = self.call(py, wait, |core| core.join(ask));
        match joined {
            Err(Error::WouldWait) => return Ok(None),
            // The store has not been asked yet. A thread that may wait joins instead, so that the timeout counts from
            // there and errors reach the caller.
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
        // The place now belongs to the waiter.
        waiter.joined_with_place = waiter.place.take().inspect(Place::use_up).is_some();
        match joined {
            Joined::Done(outcome) => outcome_of(py, &self.shared, &key, outcome)?.map(Some),
            Joined::Waiting(number) => {
                waiter.number = Some(number);
                if !key.is_empty() {
                    lock(&self.keys).insert(number, key);
                }
                number.into_py_any(py).map(Some)
            }
        }
    }

    /// Does the work that is due for one waiter, which starts before the next one is decided. Returns the waits that ended, by
    /// number, each with a permit or an exception.
    fn advance(&self, py: Python<'_>, wait: bool) -> PyResult<Vec<(WaiterId, Py<PyAny>)>> {
        let over = self.call(py, wait, |core| {
            let mut over = Vec::new();
            core.advance_one(&mut over);
            over
        });
        self.keep(None);
        self.shared.maintain(py);
        let ended = over.into_iter().map(|(number, outcome)| {
            let key = lock(&self.keys).remove(&number).unwrap_or_default();
            let outcome = match outcome_of(py, &self.shared, &key, outcome)? {
                Ok(permit) => permit,
                Err(error) => error.into_value(py).into_any(),
            };
            Ok((number, outcome))
        });
        ended.collect()
    }

    /// In a thread that may wait: does what the first start of a waiter's key waits for, if it does, so that the waiter can join in
    /// its loop, which then decides the start when the waiter goes on. Returns False if the start itself has to wait.
    fn prepare(&self, py: Python<'_>, waiter: &Bound<'_, Waiter>) -> bool {
        let (key, has_place) = {
            let waiter = waiter.borrow();
            (waiter.key.clone(), waiter.place.is_some())
        };
        !has_place && self.call(py, true, |core| core.prepare(&key))
    }

    /// Returns the number of the waiter that `advance` would start now, if that is known.
    fn next_to_start(&self) -> Option<WaiterId> {
        lock(&self.core).next_to_start()
    }

    /// Returns whether hooks must be called.
    fn has_hook_calls(&self) -> bool {
        !lock(&self.pending).is_empty()
    }

    /// Calls the hooks of the pending events.
    fn call_hooks(&self, py: Python<'_>) {
        let news = mem::take(&mut *lock(&self.pending));
        for (pending, error) in news {
            hooks::put(pending);
            hooks::deliver(py, error.as_ref());
        }
    }

    /// Returns whether the next step would have to wait for the store.
    fn would_wait(&self) -> bool {
        lock(&self.core).would_wait()
    }

    /// Returns the seconds until the next step is due, or None without waiters.
    fn next(&self) -> Option<f64> {
        let next = lock(&self.core).next()?;
        let most = if self.shared.is_manual() { MANUAL_SLICE } else { Duration::MAX };
        Some(next.min(most).as_secs_f64())
    }

    /// Notes that units of this key may have become free (None: of any key).
    fn wake(&self, key: Option<&str>) {
        lock(&self.core).wake(key);
    }

    /// Removes a waiter. Returns its number, if it had one.
    fn leave(&self, py: Python<'_>, waiter: &Waiter) -> Option<WaiterId> {
        let number = waiter.number?;
        lock(&self.keys).remove(&number);
        if waiter.joined_with_place {
            wait_here(py, || lock(&self.core).leave(number));
        } else {
            // A place whose return would have to wait is left for the next pass.
            lock(&self.core).leave(number);
        }
        Some(number)
    }
}

impl Line {
    /// Makes a call. With `wait` it releases the GIL and may wait.
    fn call<R: Send>(
        &self,
        py: Python<'_>,
        wait: bool,
        call: impl FnOnce(&mut workglow_limit::embed::Line) -> R + Send,
    ) -> R {
        if !wait {
            return call(&mut lock(&self.core));
        }
        wait_here(py, || call(&mut lock(&self.core)))
    }

    pub fn owner(&self) -> OwnerId {
        self.shared.owner
    }

    /// Keeps the events of a call for `call_hooks`.
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

/// Converts the outcome of a wait for Python.
fn outcome_of(
    py: Python<'_>,
    shared: &Arc<SharedLimiter>,
    key: &str,
    outcome: Outcome,
) -> PyResult<PyResult<Py<PyAny>>> {
    Ok(match outcome {
        Outcome::Admitted(raw) => Ok(Permit::new(shared, raw).into_py_any(py)?),
        Outcome::Expired(after) => Err(expired(py, shared.core.name(), key, after)),
        Outcome::Failed(error) => Err(raised(error)),
    })
}
