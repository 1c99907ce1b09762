//! The answer of a limiter.

use crate::limiter::SharedLimiter;
use crate::permit::Permit;
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::Duration;

/// The answer of a limiter: whether a start was admitted, and if not, when to retry. True if admitted. Durations are in
/// seconds.
#[pyclass(frozen, module = "workglow_limit")]
pub struct Decision {
    /// Whether the start was admitted.
    #[pyo3(get)]
    admitted: bool,
    retry_after: Duration,
    suggested_after: Duration,
    remaining: u64,
    limit: u64,
    reset_after: Duration,
    denied_by: Option<Arc<str>>,
    permit: Option<Py<Permit>>,
}

impl Decision {
    pub fn new(
        py: Python<'_>,
        shared: &Arc<SharedLimiter>,
        key: &str,
        decision: workglow_limit::Decision,
    ) -> PyResult<Decision> {
        let workglow_limit::Decision { permit, admitted, retry_after, suggested_after, .. } = decision;
        let workglow_limit::Decision { remaining, limit, reset_after, denied_by, .. } = decision;
        let permit =
            permit.map(|raw| Permit::with_key(shared, raw, key).into_pyobject(py)).transpose()?.map(Bound::unbind);
        Ok(Decision { admitted, retry_after, suggested_after, remaining, limit, reset_after, denied_by, permit })
    }
}

/// Returns the units, or None if there is no limit.
fn units(number: u64) -> Option<u64> {
    (number != u64::MAX).then_some(number)
}

#[pymethods]
impl Decision {
    /// 0 if admitted. Otherwise the time after which a retry succeeds, unless another caller takes the units first. A
    /// concurrency limit frees units when a job completes, so there it is only a suggestion.
    #[getter]
    fn retry_after(&self) -> f64 {
        self.retry_after.as_secs_f64()
    }

    /// The retry delay for callers that requeue: retry_after or longer, with the limit's backoff.
    #[getter]
    fn suggested_after(&self) -> f64 {
        self.suggested_after.as_secs_f64()
    }

    /// The heaviest start that would be admitted after this decision; None if there is no limit.
    #[getter]
    fn remaining(&self) -> Option<u64> {
        units(self.remaining)
    }

    /// The units that the limit allows; None if there is no limit.
    #[getter]
    fn limit(&self) -> Option<u64> {
        units(self.limit)
    }

    /// The time after which the limiter is back in its initial state if nothing else starts. 0 for a concurrency limit,
    /// which cannot know.
    #[getter]
    fn reset_after(&self) -> f64 {
        self.reset_after.as_secs_f64()
    }

    /// The name of the limit that denied the start; None if it was admitted.
    #[getter]
    fn denied_by(&self) -> Option<&str> {
        self.denied_by.as_deref()
    }

    /// The permit of an admitted start; always None from peek.
    #[getter]
    fn permit(&self, py: Python<'_>) -> Option<Py<Permit>> {
        self.permit.as_ref().map(|permit| permit.clone_ref(py))
    }

    fn __bool__(&self) -> bool {
        self.admitted
    }

    fn __repr__(&self) -> String {
        let capacity = match self.limit {
            u64::MAX => "no limit".to_owned(),
            limit => format!("remaining {} of {limit}, reset after {} s", self.remaining, self.reset_after()),
        };
        let answer = match &self.denied_by {
            None => "admitted".to_owned(),
            Some(name) => format!("denied by {name:?}, retry after {} s", self.retry_after()),
        };
        format!("<Decision: {answer}, {capacity}>")
    }
}
