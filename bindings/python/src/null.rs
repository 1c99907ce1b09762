//! No limit.

use crate::limiter::{Limiter, SharedLimiter};
use crate::origin::Origin;
use pyo3::prelude::*;
use std::sync::Arc;

/// Admits every start and records nothing.
#[pyclass(extends = Limiter, subclass, frozen, module = "workglow_limit")]
pub struct NullLimiter;

#[pymethods]
impl NullLimiter {
    #[new]
    fn new(py: Python<'_>) -> PyResult<PyClassInitializer<Self>> {
        let core = workglow_limit::NullLimiter::new();
        let origin = Origin::class::<NullLimiter>(py, [])?;
        Ok(Limiter::of(SharedLimiter::new(Arc::new(core), None), origin).add_subclass(NullLimiter))
    }
}
