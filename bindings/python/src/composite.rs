//! Several limits at once, and alternatives.

use crate::argument::{invalid, text, wrong_type};
use crate::custom;
use crate::error::raised;
use crate::limiter::{Limiter, SharedLimiter};
use crate::origin::Origin;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMapping};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
pub struct Children {
    pub objects: Objects,
    /// The core of each child, and its object. A thread holds this mutex only while it holds the GIL, and never while Python code
    /// runs: so no fork happens while it is locked. A composite never contains itself, so nested ones lock in one order.
    cores: Mutex<Vec<(Child, Py<PyAny>)>>,
}

/// The children's Python objects, as the program gave them.
pub enum Objects {
    Listed(Py<PyList>),
    /// By the names that the program gave them.
    Named(Py<PyDict>),
}

/// The core of a child.
pub type Child = Arc<dyn workglow_limit::Limiter>;

#[pymethods]
impl CompositeLimiter {
    #[new]
    #[pyo3(signature = (limiters, /))]
    fn new(limiters: &Bound<'_, PyAny>) -> PyResult<PyClassInitializer<Self>> {
        let py = limiters.py();
        let (core, children) = if let Ok(named) = limiters.cast::<PyMapping>() {
            let core = Arc::new(Core::new([]));
            let children = Children::new(Objects::Named(PyDict::new(py).unbind()), Vec::new());
            for item in named.items()? {
                let (name, limiter): (Bound<PyAny>, Bound<PyAny>) = item.extract()?;
                children.add_named(&core, &name, "limiters", &limiter)?;
            }
            (core, children)
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
        let (core, children, py) = (&this.get().core, &this.get().children, this.py());
        match (&children.objects, name) {
            (Objects::Listed(_), None) => children.add_listed(limiter, |child| core.add(child)),
            (Objects::Named(_), Some(name)) => children.add_named(core, name, "limiter", limiter),
            (Objects::Listed(_), Some(name)) => {
                text("name", name)?;
                Err(invalid("name", name, "none, because the others are called as their limits"))
            }
            (Objects::Named(_), None) => {
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
        this.get().children.add_listed(limiter, |child| this.get().core.add(child))
    }
}

/// The cores of an iterable of limiters, and their objects.
fn listed(limiters: &Bound<'_, PyAny>, expected: &str) -> PyResult<(Vec<Child>, Children)> {
    let Ok(iterated) = limiters.try_iter() else { return Err(wrong_type("limiters", limiters, expected)) };
    let objects = iterated.collect::<PyResult<Vec<_>>>()?;
    let cores = objects.iter().map(|limiter| child("limiters", limiter)).collect::<PyResult<Vec<_>>>()?;
    let with_objects = cores.iter().cloned().zip(objects.iter().map(|object| object.clone().unbind())).collect();
    Ok((cores, Children::new(Objects::Listed(PyList::new(limiters.py(), objects)?.unbind()), with_objects)))
}

impl Children {
    fn new(objects: Objects, cores: Vec<(Child, Py<PyAny>)>) -> Children {
        Children { objects, cores: Mutex::new(cores) }
    }

    fn cores(&self) -> MutexGuard<'_, Vec<(Child, Py<PyAny>)>> {
        self.cores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_listed(
        &self,
        limiter: &Bound<'_, PyAny>,
        add: impl FnOnce(Child) -> workglow_limit::Result<()>,
    ) -> PyResult<()> {
        let child = child("limiter", limiter)?;
        add(child.clone()).map_err(raised)?;
        self.cores().push((child, limiter.clone().unbind()));
        match &self.objects {
            Objects::Listed(objects) => objects.bind(limiter.py()).append(limiter),
            Objects::Named(_) => Ok(()),
        }
    }

    fn add_named(
        &self,
        core: &Core,
        name: &Bound<'_, PyAny>,
        parameter: &'static str,
        limiter: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let child = child(parameter, limiter)?;
        core.add_named(text("name", name)?, child.clone()).map_err(raised)?;
        self.cores().push((child, limiter.clone().unbind()));
        match &self.objects {
            Objects::Named(objects) => objects.bind(limiter.py()).set_item(name, limiter),
            Objects::Listed(_) => Ok(()),
        }
    }

    /// Returns the object of the alternative that was chosen, by its core: one of these children, or one inside them.
    pub fn chosen<'py>(&self, py: Python<'py>, core: &Child) -> Option<Bound<'py, PyAny>> {
        self.cores().iter().find_map(|child| inside(py, child, core))
    }

    /// Returns whether one of these children is, or contains, another limiter.
    pub fn has_inside(&self, py: Python<'_>, child: &Child, core: &Child) -> bool {
        let cores = self.cores();
        let mut children = cores.iter().filter(|(of, _)| is_same(of, child));
        children.any(|child| inside(py, child, core).is_some())
    }
}

fn is_same(one: &Child, other: &Child) -> bool {
    ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

/// Returns the object of a core that is a child, or is inside it.
fn inside<'py>(py: Python<'py>, (child, object): &(Child, Py<PyAny>), core: &Child) -> Option<Bound<'py, PyAny>> {
    let object = object.bind(py);
    if is_same(child, core) {
        return Some(object.clone());
    }
    object.cast::<Limiter>().ok()?.get().shared.children.as_ref()?.chosen(py, core)
}

fn child(parameter: &'static str, limiter: &Bound<'_, PyAny>) -> PyResult<Child> {
    match limiter.cast::<Limiter>() {
        Ok(limiter) => Ok(limiter.get().shared.core.clone()),
        Err(_) => Ok(Arc::new(custom::limiter(parameter, limiter)?)),
    }
}
