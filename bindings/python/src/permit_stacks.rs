//! The permits of `with limiter:`, kept until the body ends.

use crate::permit::Permit;
use crate::waiting::caller_id;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A stack of permits for each thread, greenlet, and task of an event loop.
///
/// A thread holds the mutex only while it holds the GIL, and never while Python code runs. So the lock order is always the same, and
/// no fork happens while it is locked.
#[pyclass(frozen, module = "workglow_limit._native")]
#[derive(Clone, Default)]
pub struct PermitStacks(Arc<Mutex<HashMap<usize, Vec<Py<Permit>>>>>);

#[pymethods]
impl PermitStacks {
    /// Adds a permit to the caller's stack.
    fn push(&self, py: Python<'_>, permit: Py<Permit>) -> PyResult<()> {
        let caller = caller_id(py)?;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(caller).or_default().push(permit);
        Ok(())
    }
}

impl PermitStacks {
    pub fn enter(&self, py: Python<'_>, permit: Py<Permit>) -> PyResult<Py<Permit>> {
        self.push(py, permit.clone_ref(py))?;
        Ok(permit)
    }

    /// Removes and returns the permit that the caller entered with last.
    pub fn leave(&self, py: Python<'_>) -> PyResult<Py<Permit>> {
        let caller = caller_id(py)?;
        let mut stacks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Some frameworks enter in one thread or task and leave in another. Any permit will do, as all have the same key and weight.
        let caller = if stacks.contains_key(&caller) { Some(caller) } else { stacks.keys().next().copied() };
        let stack = caller.and_then(|caller| stacks.get_mut(&caller));
        let Some((caller, stack)) = caller.zip(stack) else {
            return Err(PyRuntimeError::new_err("the limiter was exited, but not entered"));
        };
        let permit = stack.pop().expect("a stack has a permit");
        if stack.is_empty() {
            stacks.remove(&caller);
        }
        Ok(permit)
    }
}
