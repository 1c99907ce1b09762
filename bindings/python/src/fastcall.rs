//! Argument parsing and return values for methods that bypass PyO3's wrappers, which take about as long as a decision.

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// Runs a call and converts its result for Python. Null means that an exception is set.
///
/// # Safety
/// The thread is attached, which is the case whenever Python calls.
#[inline(always)]
pub unsafe fn answer(call: impl for<'py> FnOnce(Python<'py>) -> PyResult<*mut ffi::PyObject>) -> *mut ffi::PyObject {
    // SAFETY: as the caller says.
    let py = unsafe { Python::assume_attached() };
    match catch_unwind(AssertUnwindSafe(|| call(py))) {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => raise(py, error),
        Err(_) => raise(py, PanicException::new_err("workglow-limit has a bug: it panicked")),
    }
}

#[cold]
fn raise(py: Python<'_>, error: PyErr) -> *mut ffi::PyObject {
    error.restore(py);
    ptr::null_mut()
}

/// The parameters of a method, by position or by name. Error messages have PyO3's wording.
pub struct Signature<const N: usize> {
    pub method: &'static str,
    pub parameters: [&'static str; N],
    /// The number of parameters, from the first, that are required.
    pub required: usize,
}

impl<const N: usize> Signature<N> {
    /// Returns the arguments of a call.
    ///
    /// # Safety
    /// `given`, `number` and `names` are the arguments of a function with the flags `METH_FASTCALL | METH_KEYWORDS`.
    #[inline(always)]
    pub unsafe fn arguments<'a, 'py>(
        &self,
        py: Python<'py>,
        given: *const *mut ffi::PyObject,
        number: ffi::Py_ssize_t,
        names: *mut ffi::PyObject,
    ) -> PyResult<[Option<Borrowed<'a, 'py, PyAny>>; N]> {
        let number = number as usize;
        let mut found = [None; N];
        if number > N {
            return Err(self.too_many(number));
        }
        // SAFETY: `given` holds `number` positional arguments, followed by one argument per name.
        unsafe {
            for (at, found) in found.iter_mut().enumerate().take(number) {
                *found = Some(Borrowed::from_ptr(py, *given.add(at)));
            }
            if !names.is_null() {
                let names = Borrowed::from_ptr(py, names).cast_unchecked::<PyTuple>();
                for (at, name) in names.iter_borrowed().enumerate() {
                    self.set(&mut found, &name, Borrowed::from_ptr(py, *given.add(number + at)))?;
                }
            }
        }
        match found[..self.required].iter().position(Option::is_none) {
            None => Ok(found),
            Some(missing) => Err(self.missing(missing)),
        }
    }

    fn set<'a, 'py>(
        &self,
        found: &mut [Option<Borrowed<'a, 'py, PyAny>>; N],
        name: &Bound<'py, PyAny>,
        value: Borrowed<'a, 'py, PyAny>,
    ) -> PyResult<()> {
        let word = name.cast::<PyString>()?.to_str()?;
        let wrong = match self.parameters.iter().position(|parameter| *parameter == word) {
            Some(at) if found[at].replace(value).is_none() => return Ok(()),
            Some(_) => "multiple values for argument",
            None => "an unexpected keyword argument",
        };
        Err(PyTypeError::new_err(format!("{}() got {wrong} '{word}'", self.method)))
    }

    #[cold]
    fn too_many(&self, number: usize) -> PyErr {
        let from = if self.required < N { format!("from {} to ", self.required) } else { String::new() };
        let were = if number == 1 { "was" } else { "were" };
        let text = format!("{}() takes {from}{N} positional arguments but {number} {were} given", self.method);
        PyTypeError::new_err(text)
    }

    #[cold]
    fn missing(&self, parameter: usize) -> PyErr {
        let (method, parameter) = (self.method, self.parameters[parameter]);
        PyTypeError::new_err(format!("{method}() missing 1 required positional argument: '{parameter}'"))
    }
}
