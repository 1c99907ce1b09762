//! Several limits at once.

use crate::argument::wrong_type;
use crate::custom;
use crate::error::raised;
use crate::limiter::{Limiter, SharedLimiter};
use crate::origin::Origin;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::Arc;
use workglow_limit::CompositeLimiter as Core;

/// Admits a start if every child admits it. If one child denies, no child is charged. All children get the same key and
/// weight, and a gate applies to all of them.
///
/// A child is a limiter or an object written in Python: a CustomLimiter, or a JobLimiter with the six methods of job queues.
/// Such an object is called from any thread, also inside acquire. An exception that it raises reaches the caller unchanged.
#[pyclass(extends = Limiter, subclass, frozen, module = "workglow_limit")]
pub struct CompositeLimiter {
    core: Arc<Core>,
    /// The children's Python objects.
    children: Py<PyList>,
}

#[pymethods]
impl CompositeLimiter {
    #[new]
    #[pyo3(signature = (limiters, /))]
    fn new(limiters: &Bound<'_, PyAny>) -> PyResult<PyClassInitializer<Self>> {
        let py = limiters.py();
        let Ok(limiters) = limiters.try_iter() else {
            return Err(wrong_type("limiters", limiters, "an iterable of limiters"));
        };
        let limiters = limiters.collect::<PyResult<Vec<_>>>()?;
        let children = limiters.iter().map(|limiter| child("limiters", limiter)).collect::<PyResult<Vec<_>>>()?;
        let (core, children_of) = (Arc::new(Core::new(children)), PyList::new(py, limiters)?);
        let origin = Origin::composite::<CompositeLimiter>(py, children_of.clone());
        let composite = CompositeLimiter { core: core.clone(), children: children_of.unbind() };
        Ok(Limiter::of(SharedLimiter::new(core, None), origin).add_subclass(composite))
    }

    /// Adds a child. Permits taken before complete against the children that they were taken from.
    fn add(this: &Bound<'_, Self>, limiter: &Bound<'_, PyAny>) -> PyResult<()> {
        this.get().core.add(child("limiter", limiter)?).map_err(raised)?;
        this.get().children.bind(this.py()).append(limiter)
    }
}

fn child(parameter: &'static str, limiter: &Bound<'_, PyAny>) -> PyResult<Arc<dyn workglow_limit::Limiter>> {
    match limiter.cast::<Limiter>() {
        Ok(limiter) => Ok(limiter.get().shared.core.clone()),
        Err(_) => Ok(Arc::new(custom::limiter(parameter, limiter)?)),
    }
}
