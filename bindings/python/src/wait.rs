//! A waiter that sleeps elsewhere: in an event loop.

use crate::error::{expired, raised};
use crate::hooks::Asked;
use crate::limiter::Node;
use crate::permit::{Permit, Place};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::{Step, Wait};

/// Nobody wakes an event loop when a test moves its clock: look again after this long.
const MANUAL_SLICE: Duration = Duration::from_millis(5);

/// A waiter who has not asked yet: for a start, or with a place.
pub fn begin(
    py: Python<'_>,
    node: &Node,
    key: &str,
    weight: u64,
    timeout: Option<Duration>,
    place: Option<&Place>,
) -> PyResult<Wait> {
    match place {
        None => Ok(Wait::new(key, weight, timeout)),
        Some(place) => Ok(Wait::for_place(place.raw(py, node)?, timeout)),
    }
}

/// One waiter, between its steps. It holds no permit.
#[pyclass(module = "workglow_limit._native")]
pub struct Waiter {
    node: Arc<Node>,
    key: Box<str>,
    weight: u64,
    timeout: Option<Duration>,
    place: Option<Place>,
    /// Begun by the first step, because a place's text can only be read when the limit is open.
    wait: Option<Wait>,
}

impl Waiter {
    pub fn new(node: &Arc<Node>, key: &str, weight: u64, timeout: Option<Duration>, place: Option<Place>) -> Waiter {
        Waiter { node: node.clone(), key: key.into(), weight, timeout, place, wait: None }
    }
}

#[pymethods]
impl Waiter {
    /// Is the limit open, so that a step waits for nothing?
    #[getter]
    fn is_open(&self) -> bool {
        self.node.is_open()
    }

    /// Opens the limit, which may take a while.
    fn open(&self, py: Python<'_>) -> PyResult<()> {
        self.node.ready(py, Asked { key: &self.key, weight: self.weight })
    }

    /// The permit, or for how many seconds to sleep before the next step.
    fn step(&mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let asked = Asked { key: &self.key, weight: self.weight };
        let is_first = self.wait.is_none();
        let wait = match &mut self.wait {
            Some(wait) => wait,
            none => none.insert(begin(py, &self.node, &self.key, self.weight, self.timeout, self.place.as_ref())?),
        };
        let step = self.node.told(py, asked, self.node.core.step(wait), raised)?;
        // From its first step on the place is the waiter's.
        self.place.take().inspect(Place::use_up);
        if let (true, Step::Sleep(after) | Step::Expired(after)) = (is_first, step) {
            self.node.throttled(py, asked, None, after);
        }
        match step {
            Step::Admitted(raw) => Permit::new(&self.node, raw).into_py_any(py),
            Step::Expired(after) => Err(expired(py, self.node.core.name(), after)),
            Step::Sleep(nap) => {
                let most = if self.node.is_manual { MANUAL_SLICE } else { Duration::MAX };
                nap.min(most).as_secs_f64().into_py_any(py)
            }
        }
    }

    /// Hands back what it holds: somebody ended the wait, who is not to be told what may be wrong with this.
    fn give_up(&mut self, py: Python<'_>) {
        // A first step that fails takes nothing, and a place stays its owner's.
        if let (Some(wait), None) = (&mut self.wait, &self.place) {
            let _ = py.detach(|| self.node.core.give_up(wait)).map_err(raised);
        }
    }
}
