//! Flow control: a rate and a concurrency limit in one object.

use crate::argument::{quoting, quoting_given, seconds, text, whole};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::time::Duration;
use workglow_limit::Policy;

/// The flow of the jobs of one key: at most rate starts per period (seconds or a timedelta), and at most parallelism jobs
/// at the same time. Either may be omitted. Store.limiter makes a limiter of it, with the key as its name.
#[pyclass(frozen, eq, hash, module = "workglow_limit")]
#[derive(PartialEq, Eq, Hash)]
pub struct FlowControl {
    /// The name of the limit.
    #[pyo3(get)]
    pub key: String,
    /// Starts per period.
    #[pyo3(get)]
    rate: Option<u64>,
    period: Duration,
    /// Jobs at the same time.
    #[pyo3(get)]
    pub parallelism: Option<u64>,
}

impl FlowControl {
    pub fn rate(&self) -> Option<(u64, Duration)> {
        self.rate.map(|rate| (rate, self.period))
    }
}

#[pymethods]
impl FlowControl {
    #[new]
    #[pyo3(
        signature = (key, *, rate=None, period=None, parallelism=None),
        text_signature = "(key, *, rate=None, period=1.0, parallelism=None)"
    )]
    fn new(
        key: &Bound<'_, PyAny>,
        rate: Option<&Bound<'_, PyAny>>,
        period: Option<&Bound<'_, PyAny>>,
        parallelism: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let name = text("key", key)?;
        if rate.is_none() && parallelism.is_none() {
            return Err(PyTypeError::new_err("expected rate, parallelism, or both"));
        }
        let length = period.map_or(Ok(Duration::from_secs(1)), |period| seconds("period", period))?;
        let starts = rate.map(|rate| Ok::<_, PyErr>(whole("rate", rate)?.clamped())).transpose()?;
        let jobs = parallelism.map(|most| Ok::<_, PyErr>(whole("parallelism", most)?.clamped())).transpose()?;
        // The policies check the values. A period without a rate is checked too.
        Policy::rate(starts.unwrap_or(1), length)
            .map_err(|e| quoting_given(e, [("max_executions", "rate", rate), ("window", "period", period)]))?;
        if let (Some(jobs), Some(given)) = (jobs, parallelism) {
            Policy::concurrency(jobs).map_err(|e| quoting(e, &[("max_concurrent_jobs", "parallelism", given)]))?;
        }
        Ok(FlowControl { key: name.to_owned(), rate: starts, period: length, parallelism: jobs })
    }

    /// The period of the rate, in seconds.
    #[getter]
    fn period(&self) -> f64 {
        self.period.as_secs_f64()
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((&str,), Bound<'py, PyDict>)> {
        let named = PyDict::new(py);
        named.set_item("rate", self.rate)?;
        named.set_item("period", self.period)?;
        named.set_item("parallelism", self.parallelism)?;
        Ok(((&self.key,), named))
    }

    fn __repr__(&self) -> String {
        let or_none = |n: Option<u64>| n.map_or_else(|| "None".to_owned(), |n| n.to_string());
        let (rate, parallelism) = (or_none(self.rate), or_none(self.parallelism));
        format!("FlowControl({:?}, rate={rate}, period={}, parallelism={parallelism})", self.key, self.period())
    }
}
