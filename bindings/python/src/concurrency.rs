//! At most so many at the same time.

use crate::argument::{quoting, whole};
use crate::clock::ManualClock;
use crate::limiter::{Kind, Limiter, Node};
use pyo3::prelude::*;
use std::sync::Arc;

/// At most max_concurrent_jobs units running at the same time, per key, in this process. A forked child counts its own.
///
/// max_concurrent_jobs is 1 to 65535. clock is for tests: gates live by it.
#[pyclass(extends = Limiter, subclass, frozen, module = "workglow_limit")]
pub struct ConcurrencyLimiter;

#[pymethods]
impl ConcurrencyLimiter {
    #[new]
    #[pyo3(signature = (max_concurrent_jobs, *, clock=None))]
    fn new(
        max_concurrent_jobs: &Bound<'_, PyAny>,
        clock: Option<&Bound<'_, ManualClock>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let max = whole("max_concurrent_jobs", max_concurrent_jobs)?.clamped();
        let core = match clock {
            None => workglow_limit::ConcurrencyLimiter::new(max),
            Some(clock) => workglow_limit::ConcurrencyLimiter::with_clock(max, clock.get().core.clone()),
        };
        let core =
            core.map_err(|e| quoting(e, &[("max_concurrent_jobs", "max_concurrent_jobs", max_concurrent_jobs)]))?;
        let node = Node::new(Arc::new(core), Kind::Concurrency, clock.is_some());
        Ok(Limiter::of(node).add_subclass(ConcurrencyLimiter))
    }
}
