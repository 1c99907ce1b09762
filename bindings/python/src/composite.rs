//! Several limits at once, and alternatives.

use crate::argument::{invalid, text, wrong_type};
use crate::custom;
use crate::error::raised;
use crate::limiter::{Limiter, SharedLimiter};
use crate::origin::Origin;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMapping};
use std::ptr;
use std::sync::Arc;
use workglow_limit::{CompositeLimiter as Core, FirstOfLimiter as CoreFirstOf};

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
            let (cores, children) = listed(limiters, "an iterable of limiters, or a mapping of names to limiters")?;
            (Arc::new(Core::new(cores)), children)
        };
        let children = Arc::new(children);
        let origin = Origin::composite::<CompositeLimiter>(py, children.clone());
        let composite = CompositeLimiter { core: core.clone(), children };
        Ok(Limiter::of(SharedLimiter::of(core, composite.children.clone()), origin).add_subclass(composite))
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

/// Admits a start if one of several limiters admits it: the first of them, in the given order, that can start now. Exactly
/// one is charged; permit.chosen says which. A waiter starts wherever it can start first: it moves if a job ends elsewhere, or
/// if its limiter is paused. If none can start, the decision is that of the one that can start first.
///
/// limiters is an iterable of limiters, the preferred one first. All get the same key and weight; those that are too small for
/// a weight are left out. A mapping has those of parts that all of them have. A pause applies to all limiters: after a
/// refusal, pause permit.chosen.
///
/// A limiter may also be an object written in Python, as in a CompositeLimiter.
#[pyclass(extends = Limiter, subclass, frozen, module = "workglow_limit")]
pub struct FirstOfLimiter {
    core: Arc<CoreFirstOf>,
    children: Arc<Children>,
}

#[pymethods]
impl FirstOfLimiter {
    #[new]
    #[pyo3(signature = (limiters, /))]
    fn new(limiters: &Bound<'_, PyAny>) -> PyResult<PyClassInitializer<Self>> {
        const EXPECTED: &str = "an iterable of limiters, the preferred one first";
        if limiters.cast::<PyMapping>().is_ok() {
            return Err(wrong_type("limiters", limiters, EXPECTED));
        }
        let (cores, children) = listed(limiters, EXPECTED)?;
        if cores.is_empty() {
            return Err(invalid("limiters", limiters, "at least one limiter"));
        }
        let (core, children) = (Arc::new(CoreFirstOf::new(cores)), Arc::new(children));
        let origin = Origin::composite::<FirstOfLimiter>(limiters.py(), children.clone());
        let first_of = FirstOfLimiter { core: core.clone(), children: children.clone() };
        Ok(Limiter::of(SharedLimiter::of(core, children), origin).add_subclass(first_of))
    }

    /// Adds a limiter, as the last one.
    fn add(this: &Bound<'_, Self>, limiter: &Bound<'_, PyAny>) -> PyResult<()> {
        this.get().core.add(child("limiter", limiter)?).map_err(raised)?;
        match &*this.get().children {
            Children::Listed(children) => children.bind(this.py()).append(limiter),
            Children::Named(_) => Ok(()),
        }
    }
}

/// The cores of an iterable of limiters, and their objects.
fn listed(limiters: &Bound<'_, PyAny>, expected: &str) -> PyResult<(Vec<Arc<dyn workglow_limit::Limiter>>, Children)> {
    let Ok(iterated) = limiters.try_iter() else { return Err(wrong_type("limiters", limiters, expected)) };
    let objects = iterated.collect::<PyResult<Vec<_>>>()?;
    let cores = objects.iter().map(|limiter| child("limiters", limiter)).collect::<PyResult<_>>()?;
    Ok((cores, Children::Listed(PyList::new(limiters.py(), objects)?.unbind())))
}

impl Children {
    fn objects<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyAny>> {
        match self {
            Children::Listed(children) => children.bind(py).iter().collect(),
            Children::Named(children) => children.bind(py).values().iter().collect(),
        }
    }

    /// Returns the object of the alternative that was chosen: its index among these, if they are alternatives, and its core.
    pub fn chosen<'py>(
        &self,
        py: Python<'py>,
        (at, core): (usize, &Arc<dyn workglow_limit::Limiter>),
    ) -> Option<Bound<'py, PyAny>> {
        let objects = self.objects(py);
        let found = objects.iter().find_map(|object| {
            let shared = &object.cast::<Limiter>().ok()?.get().shared;
            match ptr::addr_eq(Arc::as_ptr(&shared.core), Arc::as_ptr(core)) {
                true => Some(object.clone()),
                false => shared.children.as_ref()?.chosen(py, (at, core)),
            }
        });
        // An object written in Python has no core of its own.
        found.or_else(|| objects.get(at).filter(|object| object.cast::<Limiter>().is_err()).cloned())
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
