//! Several limits at once.

use crate::argument::{invalid, text, wrong_type};
use crate::custom;
use crate::error::raised;
use crate::limiter::{Limiter, SharedLimiter};
use crate::origin::Origin;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMapping};
use std::sync::Arc;
use workglow_limit::CompositeLimiter as Core;

/// Admits a start if every child admits it. If one child denies, no child is charged. All children get the same key and
/// weight, unless a mapping has those of some children by their names. A gate applies to all children.
///
/// limiters is an iterable of limiters, which are called as their limits, or a mapping of names to limiters.
///
/// A child is a limiter or an object written in Python: a CustomLimiter, or a JobLimiter with the six methods of job queues.
/// Such an object is called from any thread, also inside acquire. An exception that it raises reaches the caller unchanged.
#[pyclass(extends = Limiter, subclass, frozen, module = "workglow_limit")]
pub struct CompositeLimiter {
    core: Arc<Core>,
    children: Arc<Children>,
}

/// The children's Python objects.
pub enum Children {
    Listed(Py<PyList>),
    /// By the names that the program gave them.
    Named(Py<PyDict>),
}

#[pymethods]
impl CompositeLimiter {
    #[new]
    #[pyo3(signature = (limiters, /))]
    fn new(limiters: &Bound<'_, PyAny>) -> PyResult<PyClassInitializer<Self>> {
        let py = limiters.py();
        let (core, children) = if let Ok(named) = limiters.cast::<PyMapping>() {
            let (core, children) = (Arc::new(Core::new([])), PyDict::new(py));
            for item in named.items()? {
                let (name, limiter): (Bound<PyAny>, Bound<PyAny>) = item.extract()?;
                add_named(&core, &children, &name, "limiters", &limiter)?;
            }
            (core, Children::Named(children.unbind()))
        } else {
            let Ok(limiters) = limiters.try_iter() else {
                let expected = "an iterable of limiters, or a mapping of names to limiters";
                return Err(wrong_type("limiters", limiters, expected));
            };
            let limiters = limiters.collect::<PyResult<Vec<_>>>()?;
            let children = limiters.iter().map(|limiter| child("limiters", limiter)).collect::<PyResult<Vec<_>>>()?;
            (Arc::new(Core::new(children)), Children::Listed(PyList::new(py, limiters)?.unbind()))
        };
        let children = Arc::new(children);
        let origin = Origin::composite::<CompositeLimiter>(py, children.clone());
        let composite = CompositeLimiter { core: core.clone(), children };
        Ok(Limiter::of(SharedLimiter::new(core, None), origin).add_subclass(composite))
    }

    /// Adds a child. It needs a name if the others were given names. Permits taken before complete against the children that they
    /// were taken from.
    #[pyo3(signature = (limiter, name=None))]
    fn add(this: &Bound<'_, Self>, limiter: &Bound<'_, PyAny>, name: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let (core, py) = (&this.get().core, this.py());
        match (&*this.get().children, name) {
            (Children::Listed(children), None) => {
                core.add(child("limiter", limiter)?).map_err(raised)?;
                children.bind(py).append(limiter)
            }
            (Children::Named(children), Some(name)) => add_named(core, children.bind(py), name, "limiter", limiter),
            (Children::Listed(_), Some(name)) => {
                text("name", name)?;
                Err(invalid("name", name, "none, because the others are called as their limits"))
            }
            (Children::Named(_), None) => {
                let none = py.None().into_bound(py);
                Err(invalid("name", &none, "a name, because the others were given names"))
            }
        }
    }
}

fn add_named(
    core: &Core,
    children: &Bound<'_, PyDict>,
    name: &Bound<'_, PyAny>,
    parameter: &'static str,
    limiter: &Bound<'_, PyAny>,
) -> PyResult<()> {
    core.add_named(text("name", name)?, child(parameter, limiter)?).map_err(raised)?;
    children.set_item(name, limiter)
}

fn child(parameter: &'static str, limiter: &Bound<'_, PyAny>) -> PyResult<Arc<dyn workglow_limit::Limiter>> {
    match limiter.cast::<Limiter>() {
        Ok(limiter) => Ok(limiter.get().shared.core.clone()),
        Err(_) => Ok(Arc::new(custom::limiter(parameter, limiter)?)),
    }
}
