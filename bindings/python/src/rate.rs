//! At most so many starts in any rolling window.

use crate::argument::{quoting, seconds, text, whole};
use crate::limiter::{Kind, Limiter, Node};
use crate::store::Store;
use pyo3::prelude::*;
use pyo3::types::PyType;
use std::sync::Arc;

/// At most max_executions units in any rolling window, shared by all who open the same name in the same store.
///
/// max_executions is 1 to 4096, window_size_in_seconds a number of seconds or a timedelta, 1 µs to 366 days. The limit
/// is declared at the first use, in place of the policy that the name had.
#[pyclass(extends = Limiter, subclass, frozen, module = "workglow_limit")]
pub struct RateLimiter;

impl RateLimiter {
    /// The limit that is declared under a name.
    pub fn of(store: &Store, name: &Bound<'_, PyAny>) -> PyResult<Arc<Node>> {
        let core = workglow_limit::RateLimiter::attach(&store.core, text("name", name)?)
            .map_err(|e| quoting(e, &[("name", "name", name)]))?;
        Ok(Node::new(Arc::new(core), Kind::Rate, store.is_manual))
    }
}

#[pymethods]
impl RateLimiter {
    #[new]
    #[pyo3(signature = (store, name, *, max_executions, window_size_in_seconds))]
    fn new(
        store: &Bound<'_, Store>,
        name: &Bound<'_, PyAny>,
        max_executions: &Bound<'_, PyAny>,
        window_size_in_seconds: &Bound<'_, PyAny>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let window = seconds("window_size_in_seconds", window_size_in_seconds)?;
        let max = whole("max_executions", max_executions)?.clamped();
        let store = store.get();
        let core = workglow_limit::RateLimiter::new(&store.core, text("name", name)?, max, window).map_err(|e| {
            let max = ("max_executions", "max_executions", max_executions);
            quoting(e, &[max, ("window", "window_size_in_seconds", window_size_in_seconds)])
        })?;
        Ok(Limiter::of(Node::new(Arc::new(core), Kind::Rate, store.is_manual)).add_subclass(RateLimiter))
    }

    /// The limit that is declared under a name. An unknown name is an UnknownLimit at the first use.
    #[classmethod]
    fn attach<'py>(
        cls: &Bound<'py, PyType>,
        store: &Bound<'py, Store>,
        name: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, Self>> {
        Bound::new(cls.py(), Limiter::of(RateLimiter::of(store.get(), name)?).add_subclass(RateLimiter))
    }
}
