//! At most so many starts in any rolling window.

use crate::argument::{quoting, seconds, text, whole, wrong_type};
use crate::limiter::{Kind, Limiter, Node};
use crate::store::Store;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyType;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::Policy;

/// At most max_executions units in any rolling window, shared by all who open the same name in the same store.
///
/// max_executions is 1 to 1,000,000,000 (4,096 with several windows), window_size_in_seconds a number of seconds or a
/// timedelta, 1 µs to 366 days. For several windows at once give windows instead: one to four such pairs, as in
/// windows=[(100, 60), (5, 1.0)]; a start needs room in all of them. The limit is declared at the first use, in place of
/// the policy that the name had.
#[pyclass(extends = Limiter, subclass, frozen, module = "workglow_limit")]
pub struct RateLimiter;

impl RateLimiter {
    /// The limit that is declared under a name.
    pub fn of(store: &Store, name: &Bound<'_, PyAny>) -> PyResult<Arc<Node>> {
        let core = workglow_limit::RateLimiter::attach(&store.core, text("name", name)?)
            .map_err(|e| quoting(e, &[("name", "name", name)]))?;
        Ok(Node::new(Arc::new(core), Kind::Rate(store.core.clone()), store.is_manual))
    }
}

#[pymethods]
impl RateLimiter {
    #[new]
    #[pyo3(signature = (store, name, *, max_executions=None, window_size_in_seconds=None, windows=None))]
    fn new(
        store: &Bound<'_, Store>,
        name: &Bound<'_, PyAny>,
        max_executions: Option<&Bound<'_, PyAny>>,
        window_size_in_seconds: Option<&Bound<'_, PyAny>>,
        windows: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let windows = match (max_executions, window_size_in_seconds, windows) {
            (Some(max), Some(window), None) => vec![pair(max, window)?],
            (None, None, Some(windows)) => pairs(windows)?,
            _ => {
                let expected = "expected either max_executions and window_size_in_seconds, or windows";
                return Err(PyTypeError::new_err(expected));
            }
        };
        let store = store.get();
        let core =
            workglow_limit::RateLimiter::with_windows(&store.core, text("name", name)?, &windows, Default::default())
                .map_err(|e| quoting(e, &[("name", "name", name)]))?;
        Ok(Limiter::of(Node::new(Arc::new(core), Kind::Rate(store.core.clone()), store.is_manual))
            .add_subclass(RateLimiter))
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

/// Several windows.
fn pairs(windows: &Bound<'_, PyAny>) -> PyResult<Vec<(u64, Duration)>> {
    let wrong = || wrong_type("windows", windows, "pairs such as [(100, 60), (5, 1.0)]");
    let of_one = |window: PyResult<Bound<'_, PyAny>>| {
        let parts = window?.try_iter().map_err(|_| wrong())?.collect::<PyResult<Vec<_>>>()?;
        let [max, window] = &parts[..] else { return Err(wrong()) };
        pair(max, window)
    };
    windows.try_iter().map_err(|_| wrong())?.map(of_one).collect()
}

/// One window, checked here because whoever looks at all of them could not quote the one that is wrong.
fn pair(max_executions: &Bound<'_, PyAny>, window: &Bound<'_, PyAny>) -> PyResult<(u64, Duration)> {
    let length = seconds("window_size_in_seconds", window)?;
    let max = whole("max_executions", max_executions)?.clamped();
    Policy::rate(max, length).map_err(|e| {
        let max = ("max_executions", "max_executions", max_executions);
        quoting(e, &[max, ("window", "window_size_in_seconds", window)])
    })?;
    Ok((max, length))
}
