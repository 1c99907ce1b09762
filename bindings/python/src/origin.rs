//! The origin of a limiter: its constructor and arguments. Another process makes the same limiter from it, and `repr` shows it.

use crate::composite::{Children, Objects};
use crate::error::raised;
use crate::limiter::Limiter;
use pyo3::PyTypeInfo;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};
use std::sync::Arc;
use workglow_limit::Error;

/// The constructor and arguments of a limiter.
pub struct Origin {
    constructor: Constructor,
    /// Its policy, if the program gave one.
    policy: Option<String>,
    /// The address of its store, without a password.
    address: Option<String>,
}

enum Constructor {
    /// A class (the limiter's class may be a subclass of it), its named arguments, and the children of a composite.
    Class(Py<PyType>, Py<PyDict>, Option<Arc<Children>>),
    /// A function and its arguments.
    Call(Py<PyAny>, Py<PyTuple>),
}

/// A named argument, if given.
pub type Named<'a, 'py> = (&'static str, Option<&'a Bound<'py, PyAny>>);

impl Origin {
    /// The origin of a limiter made by a class.
    pub fn class<'a, 'py: 'a, C: PyTypeInfo>(
        py: Python<'py>,
        arguments: impl IntoIterator<Item = Named<'a, 'py>>,
    ) -> PyResult<Origin> {
        let given = PyDict::new(py);
        for (name, value) in arguments {
            if let Some(value) = value {
                given.set_item(name, value)?;
            }
        }
        let constructor = Constructor::Class(py.get_type::<C>().unbind(), given.unbind(), None);
        Ok(Origin { constructor, policy: None, address: None })
    }

    /// The origin of a composite, to which children may be added.
    pub fn composite<C: PyTypeInfo>(py: Python<'_>, children: Arc<Children>) -> Origin {
        let class = py.get_type::<C>().unbind();
        let constructor = Constructor::Class(class, PyDict::new(py).unbind(), Some(children));
        Origin { constructor, policy: None, address: None }
    }

    /// The origin of a limiter returned by a function.
    pub fn call<'py>(
        function: Bound<'py, PyAny>,
        arguments: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error = PyErr>,
    ) -> PyResult<Origin> {
        let arguments = arguments.into_pyobject(function.py())?;
        let constructor = Constructor::Call(function.unbind(), arguments.unbind());
        Ok(Origin { constructor, policy: None, address: None })
    }

    /// The origin of a part of a limiter.
    pub fn part(limiter: &Bound<'_, Limiter>, name: &str) -> PyResult<Origin> {
        let function = limiter.py().import("workglow_limit._pickled")?.getattr("part")?;
        let address = limiter.get().origin.address.clone();
        Ok(Origin { address, ..Origin::call(function, (limiter, name))? })
    }

    /// Adds the policy and the store for `repr`.
    pub fn shown(self, policy: Option<String>, store: Option<&workglow_limit::Store>) -> Origin {
        Origin { policy, address: store.map(|store| store.url().to_owned()), ..self }
    }

    /// Returns the value of a limiter's `__reduce__`.
    pub fn reduced<'py>(&self, limiter: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
        let py = limiter.py();
        let (class, named, children) = match &self.constructor {
            Constructor::Call(function, arguments) => return (function, arguments).into_pyobject(py),
            Constructor::Class(class, named, children) => (class, named, children),
        };
        if self.address.is_none() && self.policy.is_some() {
            let reason = "a limiter without a store counts in one process only: pass store and name".to_owned();
            return Err(raised(Error::Unsupported { reason }));
        }
        let positional = match children.as_ref().map(|children| &children.objects) {
            None => PyTuple::empty(py),
            // The children at this time.
            Some(Objects::Listed(children)) => PyTuple::new(py, [PyList::new(py, children.bind(py))?])?,
            Some(Objects::Named(children)) => PyTuple::new(py, [children.bind(py).copy()?])?,
        };
        let rebuild = py.import("workglow_limit._pickled")?.getattr("rebuild")?;
        let arguments = (limiter.get_type(), class, positional, named);
        // The attributes of a subclass written in Python. (Python 3.10 has no `__getstate__`.)
        let state = match limiter.getattr_opt("__getstate__")? {
            Some(state) => Some(state.call0()?),
            None => limiter.getattr_opt("__dict__")?,
        };
        (rebuild, arguments, state).into_pyobject(py)
    }

    /// Returns the `repr` of a limiter.
    pub fn repr(&self, limiter: &Bound<'_, PyAny>, name: &str) -> PyResult<String> {
        let class = limiter.get_type().name()?;
        let mut text = class.to_string_lossy().into_owned();
        if let Constructor::Class(_, _, Some(children)) = &self.constructor {
            // The `repr` of a child written in Python may fail.
            let children = match &children.objects {
                Objects::Listed(children) => children.bind(limiter.py()).repr(),
                Objects::Named(children) => children.bind(limiter.py()).repr(),
            };
            let children =
                children.map_or_else(|_| "[…]".to_owned(), |children| children.to_string_lossy().into_owned());
            return Ok(format!("<{text} of {children}>"));
        }
        if self.address.is_some() {
            text += &format!(" {name:?}");
        }
        if let Some(policy) = &self.policy {
            text += &format!(": {policy}");
        }
        if let Some(address) = &self.address {
            text += &format!(" in {address}");
        }
        Ok(format!("<{text}>"))
    }
}

/// Returns the value of a store's `__reduce__`.
pub fn reduced_store<'py>(
    py: Python<'py>,
    class: Bound<'py, PyType>,
    address: String,
    named: Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyTuple>> {
    let rebuild = py.import("workglow_limit._pickled")?.getattr("rebuild")?;
    (rebuild, (&class, &class, (address,), named)).into_pyobject(py)
}

/// Raises the exception of an object that cannot be sent to another process.
pub fn refuse_pickling<R>(reason: &str) -> PyResult<R> {
    Err(raised(Error::Unsupported { reason: reason.to_owned() }))
}
