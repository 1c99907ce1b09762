//! No limit.

use crate::limiter::{Limiter, Node};
use pyo3::prelude::*;
use std::sync::Arc;

/// Admits everything, remembers nothing.
#[pyclass(extends = Limiter, subclass, frozen, module = "workglow_limit")]
pub struct NullLimiter;

#[pymethods]
impl NullLimiter {
    #[new]
    fn new() -> PyClassInitializer<Self> {
        let core = workglow_limit::NullLimiter::new();
        Limiter::of(Node::new(Arc::new(core))).add_subclass(NullLimiter)
    }
}
