//! Several limits at once.

use crate::argument::wrong_type;
use crate::custom;
use crate::error::raised;
use crate::limiter::{Kind, Limiter, Node};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex};
use workglow_limit::CompositeLimiter as Core;

/// Admits what every child admits; a child that denies keeps the others from being charged. All children get the same
/// key and weight, and a gate goes to all of them.
///
/// A child is a limiter, or an object of your own: a CustomLimiter, or a JobLimiter with the six methods of job queues.
/// What it raises reaches the caller as it is. It is called from any thread, also from within acquire.
#[pyclass(extends = Limiter, subclass, frozen, module = "workglow_limit")]
pub struct CompositeLimiter {
    core: Arc<Core>,
}

#[pymethods]
impl CompositeLimiter {
    #[new]
    #[pyo3(signature = (limiters, /))]
    fn new(limiters: &Bound<'_, PyAny>) -> PyResult<PyClassInitializer<Self>> {
        let Ok(limiters) = limiters.try_iter() else {
            return Err(wrong_type("limiters", limiters, "an iterable of limiters"));
        };
        let children = limiters.map(|limiter| node("limiters", &limiter?)).collect::<PyResult<Vec<_>>>()?;
        let is_manual = children.iter().any(|child| child.is_manual);
        let core = Arc::new(Core::new(children.iter().map(|child| child.core.clone())));
        let node = Node::new(core.clone(), Kind::Composite(Mutex::new(children)), is_manual);
        Ok(Limiter::of(node).add_subclass(CompositeLimiter { core }))
    }

    /// Adds a child. Permits that are out complete against the children they were taken from.
    fn add(this: &Bound<'_, Self>, limiter: &Bound<'_, PyAny>) -> PyResult<()> {
        let child = node("limiter", limiter)?;
        this.get().core.add(child.core.clone()).map_err(raised)?;
        this.as_super().get().node.adopt(child);
        Ok(())
    }
}

fn node(parameter: &'static str, limiter: &Bound<'_, PyAny>) -> PyResult<Arc<Node>> {
    match limiter.cast::<Limiter>() {
        Ok(limiter) => Ok(limiter.get().node.clone()),
        Err(_) => Ok(Node::new(Arc::new(custom::limiter(parameter, limiter)?), Kind::Custom, false)),
    }
}
