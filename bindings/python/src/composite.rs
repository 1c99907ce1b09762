//! Several limits at once.

use crate::argument::wrong_type;
use crate::custom;
use crate::error::raised;
use crate::limiter::{Limiter, Node};
use crate::origin::Origin;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::Arc;
use workglow_limit::CompositeLimiter as Core;

/// Admits what every child admits; a child that denies keeps the others from being charged. All children get the same
/// key and weight, and a gate goes to all of them.
///
/// A child is a limiter, or an object of your own: a CustomLimiter, or a JobLimiter with the six methods of job queues.
/// What it raises reaches the caller as it is. It is called from any thread, also from within acquire.
#[pyclass(extends = Limiter, subclass, frozen, module = "workglow_limit")]
pub struct CompositeLimiter {
    core: Arc<Core>,
    /// As Python knows them.
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
        Ok(Limiter::of(Node::new(core, None), origin).add_subclass(composite))
    }

    /// Adds a child. Permits that are out complete against the children they were taken from.
    fn add(this: &Bound<'_, Self>, limiter: &Bound<'_, PyAny>) -> PyResult<()> {
        this.get().core.add(child("limiter", limiter)?).map_err(raised)?;
        this.get().children.bind(this.py()).append(limiter)
    }
}

fn child(parameter: &'static str, limiter: &Bound<'_, PyAny>) -> PyResult<Arc<dyn workglow_limit::Limiter>> {
    match limiter.cast::<Limiter>() {
        Ok(limiter) => Ok(limiter.get().node.core.clone()),
        Err(_) => Ok(Arc::new(custom::limiter(parameter, limiter)?)),
    }
}
