//! A clock for tests.

use crate::argument;
use crate::origin;
use pyo3::prelude::*;

/// A clock for tests: it stands still until it is advanced. Give it to a Store, or to a ConcurrencyLimiter.
#[pyclass(frozen, module = "workglow_limit")]
pub struct ManualClock {
    pub core: workglow_limit::ManualClock,
}

#[pymethods]
impl ManualClock {
    #[new]
    fn new() -> Self {
        ManualClock { core: workglow_limit::ManualClock::new() }
    }

    /// Moves the clock forward, by seconds or a timedelta. A clock never goes back.
    fn advance(&self, by: &Bound<'_, PyAny>) -> PyResult<()> {
        self.core.advance(argument::seconds("by", by)?);
        Ok(())
    }

    /// The time since the clock was made, in seconds.
    fn now(&self) -> f64 {
        self.core.now().as_secs_f64()
    }

    // Time stands still in one process. A copy is the clock itself.

    fn __reduce__(&self) -> PyResult<()> {
        origin::stays("a manual clock stands in its process alone")
    }

    fn __copy__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __deepcopy__(this: Py<Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
        this
    }

    fn __repr__(&self) -> String {
        format!("<ManualClock at {} s>", self.now())
    }
}
