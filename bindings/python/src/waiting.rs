//! Waiting without blocking the GIL, an event loop or a hub of greenlets.

use crate::threads::{self, OwnerId};
use crate::{custom, hooks};
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCFunction, PyDict};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use workglow_limit::embed::{MayWait, fork_generation};

/// The place in a program that makes a call.
pub enum CallSite<'py> {
    /// A thread that blocks nothing else.
    Thread,
    /// An event loop, or a hub's own greenlet. A call that waits here blocks everything else there.
    Loop,
    /// A greenlet, which lets others run while it waits. This is its hub in `_loops`.
    Hub(Bound<'py, PyAny>),
}

impl CallSite<'_> {
    pub fn of(py: Python<'_>) -> CallSite<'_> {
        Self::look(py).unwrap_or(CallSite::Thread)
    }

    /// Only loops whose modules are imported can run.
    fn look(py: Python<'_>) -> PyResult<CallSite<'_>> {
        static HUB: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let modules = modules(py)?;
        if modules.contains(intern!(py, "gevent"))? || modules.contains(intern!(py, "eventlet"))? {
            let hub = HUB.import(py, "workglow_limit._loops", "hub")?.call0()?;
            if !hub.is_none() {
                return Ok(if hub.is_truthy()? { CallSite::Hub(hub) } else { CallSite::Loop });
            }
        }
        if let Some(asyncio) = modules.get_item(intern!(py, "asyncio"))?
            && !asyncio.call_method0("_get_running_loop")?.is_none()
        {
            return Ok(CallSite::Loop);
        }
        if let Some(trio) = modules.get_item(intern!(py, "trio"))?
            && trio.getattr("lowlevel")?.call_method0("in_trio_run")?.is_truthy()?
        {
            return Ok(CallSite::Loop);
        }
        Ok(CallSite::Thread)
    }

    /// Returns how long the caller may wait for rare operations.
    fn may(&self) -> MayWait {
        if let CallSite::Thread = self { MayWait::UntilTimeout } else { MayWait::Briefly }
    }
}

/// Returns a number that identifies the calling task, greenlet or thread while it lives.
pub fn caller_id(py: Python<'_>) -> PyResult<usize> {
    if let Ok(Some(task)) = task(py) {
        return Ok(task.as_ptr() as usize);
    }
    py.import("threading")?.call_method0("get_ident")?.extract()
}

/// Returns the task of the running loop, otherwise the greenlet.
fn task(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    let modules = modules(py)?;
    if let Some(asyncio) = modules.get_item(intern!(py, "asyncio"))? {
        let running = asyncio.call_method0("_get_running_loop")?;
        let task = if running.is_none() { running } else { asyncio.call_method1("current_task", (running,))? };
        if !task.is_none() {
            return Ok(Some(task));
        }
    }
    if let Some(trio) = modules.get_item(intern!(py, "trio"))? {
        let lowlevel = trio.getattr("lowlevel")?;
        if lowlevel.call_method0("in_trio_task")?.is_truthy()? {
            return lowlevel.call_method0("current_task").map(Some);
        }
    }
    modules.get_item(intern!(py, "greenlet"))?.map(|greenlet| greenlet.call_method0("getcurrent")).transpose()
}

fn modules(py: Python<'_>) -> PyResult<&Bound<'_, PyDict>> {
    static MODULES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    MODULES.import(py, "sys", "modules")
}

/// Returns whether the Python function that makes this call is a coroutine function.
pub fn is_in_coroutine(py: Python<'_>) -> PyResult<bool> {
    const COROUTINE: u32 = 0x80;
    const ASYNC_GENERATOR: u32 = 0x200;
    let frame = py.import(intern!(py, "sys"))?.call_method0(intern!(py, "_getframe"))?;
    let flags: u32 = frame.getattr(intern!(py, "f_code"))?.getattr(intern!(py, "co_flags"))?.extract()?;
    Ok(flags & (COROUTINE | ASYNC_GENERATOR) != 0)
}

/// Runs a call that may have to wait, without the GIL. In an event loop the call waits only briefly. In a greenlet it runs in another
/// thread, so that other greenlets continue.
pub fn wait<R: Send + 'static>(py: Python<'_>, of: OwnerId, call: impl FnOnce() -> R + Send + 'static) -> PyResult<R> {
    wait_or_undo(py, of, call, drop)
}

/// As `wait`. `undo` takes back the answer if the greenlet was killed during the call.
pub fn wait_or_undo<R: Send + 'static>(
    py: Python<'_>,
    of: OwnerId,
    call: impl FnOnce() -> R + Send + 'static,
    undo: impl Fn(R) + Send + Sync + 'static,
) -> PyResult<R> {
    match CallSite::of(py) {
        CallSite::Hub(hub) => wait_in_hub(&hub, of, call, undo),
        here => {
            let may = here.may();
            Ok(py.detach(|| may.during(call)))
        }
    }
}

/// As `wait`, for a call that borrows from the stack. Such a call cannot run in another thread, because a greenlet's stack moves while
/// other greenlets run. So in a greenlet, too, it waits only briefly.
pub fn wait_here<R: Send>(py: Python<'_>, call: impl FnOnce() -> R + Send) -> R {
    let may = CallSite::of(py).may();
    py.detach(|| may.during(call))
}

/// The result of a call that runs in another thread.
struct Slot<R> {
    answer: Option<(R, hooks::Pending, custom::Raised)>,
    /// Whether the greenlet no longer waits for it.
    is_abandoned: bool,
}

fn wait_in_hub<R: Send + 'static>(
    hub: &Bound<'_, PyAny>,
    of: OwnerId,
    call: impl FnOnce() -> R + Send + 'static,
    undo: impl Fn(R) + Send + Sync + 'static,
) -> PyResult<R> {
    let slot = Arc::new(Mutex::new(Slot { answer: None, is_abandoned: false }));
    let undo = Arc::new(undo);
    let (there, undo_there, call) = (slot.clone(), undo.clone(), Mutex::new(Some(call)));
    let work = move || {
        let Some(call) = lock(&call).take() else { return };
        let result = MayWait::UntilTimeout.during(call);
        // The greenlet calls the hooks and raises the exceptions of this thread.
        let answer = (result, hooks::take(), custom::take());
        let mut slot = lock(&there);
        if slot.is_abandoned {
            drop(slot);
            undo_there(answer.0);
        } else {
            slot.answer = Some(answer);
        }
    };
    let generation = fork_generation();
    let work = PyCFunction::new_closure(hub.py(), None, None, move |call, _| call.py().detach(&work))?;
    let waited = hub.call_method1("run", (of.number(), work));
    if fork_generation() != generation {
        // The answer belongs to the parent.
        return Err(PyRuntimeError::new_err("the process was forked while this greenlet waited for the store"));
    }
    let answer = {
        let mut slot = lock(&slot);
        slot.is_abandoned = true;
        slot.answer.take()
    };
    match (waited, answer) {
        (Ok(_), Some((result, pending, raised))) => {
            hooks::put(pending);
            custom::put(raised);
            Ok(result)
        }
        (waited, answer) => {
            if let Some((result, ..)) = answer {
                threads::send(of, move || undo(result))?;
            }
            Err(waited
                .err()
                .unwrap_or_else(|| PyRuntimeError::new_err("the greenlet was resumed before its call had an answer")))
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
