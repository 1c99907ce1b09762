//! A waiter that sleeps elsewhere: in an event loop.

use crate::error::{expired, raised};
use crate::limiter::Node;
use crate::permit::Permit;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::{Step, Wait};

/// Nobody wakes an event loop when a test moves its clock: look again after this long.
const MANUAL_SLICE: Duration = Duration::from_millis(5);

/// One waiter, between its steps. It holds no permit.
#[pyclass(module = "workglow_limit._native")]
pub struct Waiter {
    node: Arc<Node>,
    key: Box<str>,
    wait: Wait,
}

impl Waiter {
    pub fn new(node: &Arc<Node>, key: &str, weight: u64, timeout: Option<Duration>) -> Waiter {
        Waiter { node: node.clone(), key: key.into(), wait: Wait::new(key, weight, timeout) }
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
        self.node.ready(py, &self.key)
    }

    /// The permit, or for how many seconds to sleep before the next step.
    fn step(&mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.node.core.step(&mut self.wait).map_err(raised)? {
            Step::Admitted(raw) => Permit::new(&self.node, raw).into_py_any(py),
            Step::Expired(after) => Err(expired(py, self.node.core.name(), after)),
            Step::Sleep(nap) => {
                let most = if self.node.is_manual { MANUAL_SLICE } else { Duration::MAX };
                nap.min(most).as_secs_f64().into_py_any(py)
            }
        }
    }
}
