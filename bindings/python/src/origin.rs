//! What a limiter was made from: another process makes the same of it, and it says what the limiter is.

use crate::error::raised;
use pyo3::PyTypeInfo;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};
use workglow_limit::Error;

/// What a limiter was made from.
pub struct Origin {
    made: Made,
    /// Its policy, if that was said.
    policy: Option<String>,
    /// The address of its store, without a password.
    place: Option<String>,
}

enum Made {
    /// By a class, of which it may be a subclass, with arguments that are named; of a composite, its children.
    Class(Py<PyType>, Py<PyDict>, Option<Py<PyList>>),
    /// By a function.
    Call(Py<PyAny>, Py<PyTuple>),
}

/// A named argument, if it was given.
pub type Named<'a, 'py> = (&'static str, Option<&'a Bound<'py, PyAny>>);

impl Origin {
    /// A class's constructor.
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
        let made = Made::Class(py.get_type::<C>().unbind(), given.unbind(), None);
        Ok(Origin { made, policy: None, place: None })
    }

    /// A composite of children that may become more.
    pub fn composite<C: PyTypeInfo>(py: Python<'_>, children: Bound<'_, PyList>) -> Origin {
        let made = Made::Class(py.get_type::<C>().unbind(), PyDict::new(py).unbind(), Some(children.unbind()));
        Origin { made, policy: None, place: None }
    }

    /// A function's answer.
    pub fn call<'py>(
        function: Bound<'py, PyAny>,
        arguments: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error = PyErr>,
    ) -> PyResult<Origin> {
        let arguments = arguments.into_pyobject(function.py())?;
        Ok(Origin { made: Made::Call(function.unbind(), arguments.unbind()), policy: None, place: None })
    }

    /// The same, where it is known what it holds and where.
    pub fn shown(self, policy: Option<String>, store: Option<&workglow_limit::Store>) -> Origin {
        Origin { policy, place: store.map(|store| store.url().to_owned()), ..self }
    }

    /// What pickle is told of a limiter.
    pub fn reduced<'py>(&self, limiter: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
        let py = limiter.py();
        let (class, named, children) = match &self.made {
            Made::Call(function, arguments) => return (function, arguments).into_pyobject(py),
            Made::Class(class, named, children) => (class, named, children),
        };
        if self.place.is_none() && self.policy.is_some() {
            let reason = "a limiter without a store counts in its process alone: give it a store and a name".to_owned();
            return Err(raised(Error::Unsupported { reason }));
        }
        let positional = match children {
            None => PyTuple::empty(py),
            // As they are now.
            Some(children) => PyTuple::new(py, [PyList::new(py, children.bind(py))?])?,
        };
        let rebuild = py.import("workglow_limit._pickled")?.getattr("rebuild")?;
        let arguments = (limiter.get_type(), class, positional, named);
        // What a subclass of Python's has beyond that. (Python 3.10 has no `__getstate__`.)
        let state = match limiter.getattr_opt("__getstate__")? {
            Some(state) => Some(state.call0()?),
            None => limiter.getattr_opt("__dict__")?,
        };
        (rebuild, arguments, state).into_pyobject(py)
    }

    /// What the limiter is.
    pub fn repr(&self, limiter: &Bound<'_, PyAny>, name: &str) -> PyResult<String> {
        let class = limiter.get_type().name()?;
        let mut text = class.to_string_lossy().into_owned();
        if let Made::Class(_, _, Some(children)) = &self.made {
            // A child that was written in Python may say anything, and may fail at it.
            let children = children.bind(limiter.py()).repr();
            let children =
                children.map_or_else(|_| "[…]".to_owned(), |children| children.to_string_lossy().into_owned());
            return Ok(format!("<{text} of {children}>"));
        }
        if self.place.is_some() {
            text += &format!(" {name:?}");
        }
        if let Some(policy) = &self.policy {
            text += &format!(": {policy}");
        }
        if let Some(place) = &self.place {
            text += &format!(" in {place}");
        }
        Ok(format!("<{text}>"))
    }
}

/// What pickle is told of a store.
pub fn reduced_store<'py>(
    py: Python<'py>,
    class: Bound<'py, PyType>,
    address: String,
    named: Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyTuple>> {
    let rebuild = py.import("workglow_limit._pickled")?.getattr("rebuild")?;
    (rebuild, (&class, &class, (address,), named)).into_pyobject(py)
}

/// The exception of what cannot be sent to another process.
pub fn stays<R>(reason: &str) -> PyResult<R> {
    Err(raised(Error::Unsupported { reason: reason.to_owned() }))
}
