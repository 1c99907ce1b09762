//! The permits of `with limiter:`, which stay here until its body ends.

use crate::permit::Permit;
use crate::waiting::who;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A stack of permits for each thread, greenlet, and task of an event loop.
///
/// The mutex is only held while Python's lock is, and never while Python code runs: so nobody waits for the two in another order,
/// and no fork meets it locked.
#[pyclass(frozen, module = "workglow_limit._native")]
#[derive(Clone, Default)]
pub struct Entered(Arc<Mutex<HashMap<usize, Vec<Py<Permit>>>>>);

#[pymethods]
impl Entered {
    /// Somebody enters with this permit.
    fn push(&self, py: Python<'_>, permit: Py<Permit>) -> PyResult<()> {
        let who = who(py)?;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(who).or_default().push(permit);
        Ok(())
    }
}

impl Entered {
    pub fn enter(&self, py: Python<'_>, permit: Py<Permit>) -> PyResult<Py<Permit>> {
        self.push(py, permit.clone_ref(py))?;
        Ok(permit)
    }

    /// The permit with which whoever leaves now has entered.
    pub fn leave(&self, py: Python<'_>) -> PyResult<Py<Permit>> {
        let who = who(py)?;
        let mut entered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Some frameworks enter in one thread or task and leave in another: any permit is as good, as all are of one key and weight.
        let who = if entered.contains_key(&who) { Some(who) } else { entered.keys().next().copied() };
        let stack = who.and_then(|who| entered.get_mut(&who));
        let Some((who, stack)) = who.zip(stack) else {
            return Err(PyRuntimeError::new_err("the limiter is left, and was not entered"));
        };
        let permit = stack.pop().expect("a stack has a permit");
        if stack.is_empty() {
            entered.remove(&who);
        }
        Ok(permit)
    }
}
