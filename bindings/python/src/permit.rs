//! What an admitted start holds.

use crate::error::raised;
use crate::limiter::Node;
use pyo3::exceptions::PyResourceWarning;
use pyo3::prelude::*;
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::SystemTime;
use workglow_limit::{Error, RawPermit, Result, fork_generation};

/// What an admitted start holds. It ends with complete(), or with the block when used in a with statement, whatever
/// happened inside. Ending it again is a no-op. In a forked child an inherited permit does nothing: it is the parent's.
#[pyclass(frozen, module = "workglow_limit")]
pub struct Permit {
    node: Arc<Node>,
    raw: RawPermit,
    /// Of the process that took it.
    generation: u64,
    ended: AtomicBool,
}

impl Permit {
    #[inline]
    pub fn new(node: &Arc<Node>, raw: RawPermit) -> Permit {
        Permit { node: node.clone(), raw, generation: fork_generation(), ended: AtomicBool::new(false) }
    }

    /// Ends it as a permit of `node`.
    pub fn end_at(&self, node: &Arc<Node>) -> Result<()> {
        if !Arc::ptr_eq(&self.node, node) {
            return Err(Error::ForeignPermit { limit: node.core.name().to_owned() });
        }
        if !self.is_over() {
            node.core.complete(&self.raw)?;
            self.ended.store(true, Relaxed);
        }
        Ok(())
    }

    /// Is there nothing to end? It has ended, or it is another process's.
    #[inline]
    fn is_over(&self) -> bool {
        self.ended.load(Relaxed) || self.generation != fork_generation()
    }
}

#[pymethods]
impl Permit {
    /// The job ran.
    fn complete(&self) -> PyResult<()> {
        self.end_at(&self.node).map_err(raised)
    }

    /// When the start's place came, if it had to wait for one. Aware, in UTC.
    #[getter]
    fn ready_at(&self) -> Option<SystemTime> {
        self.node.core.ready_at(&self.raw)
    }

    /// The same in seconds on the clock of time.monotonic(), never later than it was: for measuring.
    #[getter]
    fn ready_at_monotonic(&self) -> Option<f64> {
        let ns = self.node.core.ready_at_monotonic_ns(&self.raw)?;
        // Whole microseconds are exact as a float for centuries; the quotient may round up, so take the one below.
        Some(((ns / 1_000) as f64 / 1e6).next_down())
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.complete()
    }

    fn __repr__(&self) -> String {
        let state = if self.is_over() { ", ended" } else { "" };
        format!("<Permit of {:?}{state}>", self.node.core.name())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.is_over() {
            return;
        }
        // Nobody is left to hear of an error.
        let _ = self.node.core.complete(&self.raw);
        if self.node.holds() {
            warn(self.node.core.name());
        }
    }
}

/// Says that a permit was forgotten, as Python does for a file that was not closed.
#[cold]
fn warn(limiter: &str) {
    Python::try_attach(|py| {
        // An exception may be on its way: it is not ours to lose.
        let pending = PyErr::take(py);
        let text = format!("a permit of {limiter:?} was dropped without an end: use it in a with statement");
        // Quoting a name escapes its zeros.
        let text = CString::new(text).unwrap_or_default();
        if let Err(e) = PyErr::warn(py, &py.get_type::<PyResourceWarning>(), &text, 1) {
            e.write_unraisable(py, None);
        }
        if let Some(pending) = pending {
            pending.restore(py);
        }
    });
}
