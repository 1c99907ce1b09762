//! A clock for tests.

use crate::argument;
use crate::origin;
use pyo3::prelude::*;

/// A clock for tests. It moves only when advance is called. Pass it as clock to a Store, or to a limiter that has no store.
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

    /// Moves the clock forward by seconds or a timedelta. It cannot move back.
    fn advance(&self, by: &Bound<'_, PyAny>) -> PyResult<()> {
        self.core.advance(argument::seconds("by", by)?);
        Ok(())
    }

    /// Returns the time since the clock was created, in seconds.
    fn now(&self) -> f64 {
        self.core.now().as_secs_f64()
    }

    // A manual clock belongs to one process. A copy is the clock itself.

    fn __reduce__(&self) -> PyResult<()> {
        origin::refuse_pickling("a ManualClock cannot be pickled: it exists in one process only")
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
