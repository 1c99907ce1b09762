//! What a limiter answers.

use crate::limiter::Node;
use crate::permit::Permit;
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::Duration;

/// The whole answer to "may this start now, and if not, when?". True if admitted. Durations are in seconds.
#[pyclass(frozen, module = "workglow_limit")]
pub struct Decision {
    /// May it start?
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
    pub fn new(py: Python<'_>, node: &Arc<Node>, key: &str, decision: workglow_limit::Decision) -> PyResult<Decision> {
        let workglow_limit::Decision { permit, admitted, retry_after, suggested_after, .. } = decision;
        let workglow_limit::Decision { remaining, limit, reset_after, denied_by, .. } = decision;
        let permit =
            permit.map(|raw| Permit::with_key(node, raw, key).into_pyobject(py)).transpose()?.map(Bound::unbind);
        Ok(Decision { admitted, retry_after, suggested_after, remaining, limit, reset_after, denied_by, permit })
    }
}

/// How many, if there is a limit.
fn units(number: u64) -> Option<u64> {
    (number != u64::MAX).then_some(number)
}

#[pymethods]
impl Decision {
    /// 0 if admitted. Else after this long a retry succeeds, if nobody else took the room; for a concurrency limit,
    /// which frees when somebody completes, a suggestion of when to look again.
    #[getter]
    fn retry_after(&self) -> f64 {
        self.retry_after.as_secs_f64()
    }

    /// retry_after for callers that requeue: never less.
    #[getter]
    fn suggested_after(&self) -> f64 {
        self.suggested_after.as_secs_f64()
    }

    /// The heaviest start that would be admitted after this decision; None if there is no limit.
    #[getter]
    fn remaining(&self) -> Option<u64> {
        units(self.remaining)
    }

    /// What the limit allows; None if there is no limit.
    #[getter]
    fn limit(&self) -> Option<u64> {
        units(self.limit)
    }

    /// After this long with no further start the limiter is as new. For a concurrency limit, which does not know, 0.
    #[getter]
    fn reset_after(&self) -> f64 {
        self.reset_after.as_secs_f64()
    }

    /// The name of the limit that said no.
    #[getter]
    fn denied_by(&self) -> Option<&str> {
        self.denied_by.as_deref()
    }

    /// What the start holds, if it was admitted; always None in a peek.
    #[getter]
    fn permit(&self, py: Python<'_>) -> Option<Py<Permit>> {
        self.permit.as_ref().map(|permit| permit.clone_ref(py))
    }

    fn __bool__(&self) -> bool {
        self.admitted
    }

    fn __repr__(&self) -> String {
        let room = match self.limit {
            u64::MAX => "no limit".to_owned(),
            limit => format!("remaining {} of {limit}, reset after {} s", self.remaining, self.reset_after()),
        };
        let answer = match &self.denied_by {
            None => "admitted".to_owned(),
            Some(name) => format!("denied by {name:?}, retry after {} s", self.retry_after()),
        };
        format!("<Decision: {answer}, {room}>")
    }
}
