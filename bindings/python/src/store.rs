//! Where limits live.

use crate::argument::{self, Whole};
use crate::clock::ManualClock;
use crate::error::raised;
use crate::limiter::Limiter;
use crate::rate::RateLimiter;
use pyo3::prelude::*;
use std::time::Duration;
use workglow_limit::StoreOptions;

/// Where limits live: "memory:" (this process) or "sqlite:PATH" (this machine).
///
/// Making one opens nothing: the first use does, or open(). So it can be made at import, before workers are forked.
/// timeout is how long a call may wait for something rare (opening, a new limit), in seconds; mode is that of the
/// files that are made.
#[pyclass(frozen, module = "workglow_limit")]
pub struct Store {
    pub core: workglow_limit::Store,
    /// Its time is a test's.
    pub is_manual: bool,
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(
        signature = (url, *, timeout=Duration::from_secs(5), mode=None, clock=None),
        text_signature = "(url, *, timeout=5.0, mode=0o600, clock=None)"
    )]
    fn new(
        url: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = argument::timeout)] timeout: Duration,
        mode: Option<&Bound<'_, PyAny>>,
        clock: Option<&Bound<'_, ManualClock>>,
    ) -> PyResult<Self> {
        let mut options = StoreOptions::default();
        options.timeout = timeout;
        options.clock = clock.map(|clock| clock.get().core.clone());
        if let Some(mode) = mode {
            options.mode = match argument::whole("mode", mode)? {
                Whole::Fits(number) if number <= 0o777 => number as u32,
                _ => return Err(argument::invalid("mode", mode, "0o600 to 0o777")),
            }
        }
        let url = argument::text("url", url)?;
        let core = workglow_limit::Store::with_options(url, options).map_err(raised)?;
        Ok(Store { core, is_manual: clock.is_some() })
    }

    /// Opens the store now, its files made if there are none, instead of at the first use.
    fn open(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.core.open()).map_err(raised)
    }

    /// The names that are declared in this store, in order.
    fn names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        py.detach(|| self.core.names()).map_err(raised)
    }

    /// The store's address, as it was given.
    #[getter]
    fn url(&self) -> &str {
        self.core.url()
    }

    /// The rate limit that is declared under a name. An unknown name is an UnknownLimit at the first use.
    #[pyo3(signature = (*, name))]
    fn limiter<'py>(&self, py: Python<'py>, name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, RateLimiter>> {
        Bound::new(py, Limiter::of(RateLimiter::of(self, name)?).add_subclass(RateLimiter))
    }

    fn __repr__(&self) -> String {
        format!("Store({:?})", self.core.url())
    }
}
