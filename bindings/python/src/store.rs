//! Where limits live.

use crate::argument::{self, Whole, quoting};
use crate::clock::ManualClock;
use crate::error::raised;
use crate::limiter::Limiter;
use crate::rate::RateLimiter;
use pyo3::prelude::*;
use std::time::Duration;
use workglow_limit::{Durability, OnError, Policy, StoreOptions};

/// Where limits live: "memory:" (this process) or "sqlite:PATH" (this machine).
///
/// Making one opens nothing: the first use does, or open(). So it can be made at import, before workers are forked.
/// timeout is how long a call may wait for something rare (opening, a new limit), in seconds; mode is that of the
/// files that are made.
///
/// on_error says what a decision answers when the store fails: "raise" (the error), "deny", or "admit" (nothing counts
/// it); failures counts them. durability says how much of what was admitted a power cut may make the machine forget,
/// which then counts as spent: "budget" (5 % of a limit), or "commit" (nothing: each start is written before its call
/// returns).
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
        signature = (
            url, *, timeout=Duration::from_secs(5), mode=None, on_error=OnError::Raise, durability=Durability::Budget,
            clock=None
        ),
        text_signature = "(url, *, timeout=5.0, mode=0o600, on_error='raise', durability='budget', clock=None)"
    )]
    fn new(
        url: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = argument::timeout)] timeout: Duration,
        mode: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = argument::on_error)] on_error: OnError,
        #[pyo3(from_py_with = argument::durability)] durability: Durability,
        clock: Option<&Bound<'_, ManualClock>>,
    ) -> PyResult<Self> {
        let mut options = StoreOptions::default();
        options.timeout = timeout;
        options.on_error = on_error;
        options.durability = durability;
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

    /// Puts an operator's policy, such as "200/1m" or "100/1m + 5/1s", above what programs declare under this name: at
    /// once, for everybody, until it is lifted.
    #[pyo3(name = "override")]
    fn override_limit(&self, py: Python<'_>, name: &Bound<'_, PyAny>, policy: &Bound<'_, PyAny>) -> PyResult<()> {
        let limit = argument::text("name", name)?;
        let above: Policy =
            argument::text("policy", policy)?.parse().map_err(|e| quoting(e, &[("policy", "policy", policy)]))?;
        py.detach(|| self.core.override_limit(limit, above)).map_err(|e| quoting(e, &[("name", "name", name)]))
    }

    /// Takes the operator's policy away: what was declared last holds again. A no-op where there is none.
    fn lift(&self, py: Python<'_>, name: &Bound<'_, PyAny>) -> PyResult<()> {
        let limit = argument::text("name", name)?;
        py.detach(|| self.core.lift(limit)).map_err(|e| quoting(e, &[("name", "name", name)]))
    }

    /// Writes to the database now what it does not have yet of what was admitted. A no-op for "memory:".
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.core.flush()).map_err(raised)
    }

    /// How often the store failed a decision of this process, whatever was answered instead.
    #[getter]
    fn failures(&self) -> u64 {
        self.core.failures()
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
