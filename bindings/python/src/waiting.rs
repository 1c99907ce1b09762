//! Nothing holds the GIL or an event loop while it waits.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use workglow_limit::{Error, MayWait, Result};

/// Runs what may have to wait, without the GIL. On a thread whose event loop is running it waits for others only briefly.
pub fn wait<R: Send>(py: Python<'_>, call: impl FnOnce() -> R + Send) -> R {
    let may = if running_loop(py).is_some() { MayWait::Briefly } else { MayWait::UntilTimeout };
    py.detach(|| may.during(call))
}

/// The same after an attempt with the GIL, which mostly does: to let others have the GIL would cost more than a decision.
#[inline(always)]
pub fn try_first<R: Send>(py: Python<'_>, mut call: impl FnMut() -> Result<R> + Send) -> Result<R> {
    let mut answer = call();
    if let Err(Error::WouldWait) = answer {
        answer = wait(py, call);
    }
    answer
}

/// The event loop that is running in this thread.
#[cold]
pub fn running_loop(py: Python<'_>) -> Option<Bound<'_, PyAny>> {
    // If nobody has imported it, there is none.
    let modules = py.import("sys").and_then(|sys| sys.getattr("modules")).ok()?;
    let asyncio = modules.cast::<PyDict>().ok()?.get_item("asyncio").ok()??;
    asyncio.call_method0("_get_running_loop").ok().filter(|running| !running.is_none())
}
