//! Nothing holds the GIL, an event loop or a hub of greenlets while it waits.

use crate::elsewhere::{self, Whose};
use crate::{custom, hooks};
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCFunction, PyDict};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use workglow_limit::{MayWait, fork_generation};

/// Where a call is made.
pub enum Here<'py> {
    /// In a thread that holds up nobody.
    Thread,
    /// In an event loop, or in a hub's own greenlet: whatever else happens there has to wait for it.
    Loop,
    /// In a greenlet, which lets others run while it waits: its hub, as `_loops` has it.
    Hub(Bound<'py, PyAny>),
}

impl Here<'_> {
    pub fn of(py: Python<'_>) -> Here<'_> {
        Self::look(py).unwrap_or(Here::Thread)
    }

    /// What nobody has imported does not run.
    fn look(py: Python<'_>) -> PyResult<Here<'_>> {
        static HUB: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let modules = modules(py)?;
        if modules.contains(intern!(py, "gevent"))? || modules.contains(intern!(py, "eventlet"))? {
            let hub = HUB.import(py, "workglow_limit._loops", "hub")?.call0()?;
            if !hub.is_none() {
                return Ok(if hub.is_truthy()? { Here::Hub(hub) } else { Here::Loop });
            }
        }
        if let Some(asyncio) = modules.get_item(intern!(py, "asyncio"))?
            && !asyncio.call_method0("_get_running_loop")?.is_none()
        {
            return Ok(Here::Loop);
        }
        if let Some(trio) = modules.get_item(intern!(py, "trio"))?
            && trio.getattr("lowlevel")?.call_method0("in_trio_run")?.is_truthy()?
        {
            return Ok(Here::Loop);
        }
        Ok(Here::Thread)
    }

    /// How long this thread may wait for something rare.
    fn may(&self) -> MayWait {
        if let Here::Thread = self { MayWait::UntilTimeout } else { MayWait::Briefly }
    }
}

/// A number of the task, greenlet or thread that calls, which no other has at the same time.
pub fn who(py: Python<'_>) -> PyResult<usize> {
    if let Ok(Some(task)) = task(py) {
        return Ok(task.as_ptr() as usize);
    }
    py.import("threading")?.call_method0("get_ident")?.extract()
}

/// The task of the running loop, or else the greenlet.
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

/// Runs what may have to wait, without the GIL. In an event loop it waits for others only briefly; in a greenlet it is run
/// elsewhere, and other greenlets go on.
pub fn wait<R: Send + 'static>(py: Python<'_>, of: Whose, call: impl FnOnce() -> R + Send + 'static) -> PyResult<R> {
    wait_or_undo(py, of, call, drop)
}

/// The same. `undo` is for an answer that nobody waits for any more: the greenlet was killed meanwhile.
pub fn wait_or_undo<R: Send + 'static>(
    py: Python<'_>,
    of: Whose,
    call: impl FnOnce() -> R + Send + 'static,
    undo: impl Fn(R) + Send + Sync + 'static,
) -> PyResult<R> {
    match Here::of(py) {
        Here::Hub(hub) => wait_in_hub(&hub, of, call, undo),
        here => {
            let may = here.may();
            Ok(py.detach(|| may.during(call)))
        }
    }
}

/// The same for what borrows, which nothing may that is run elsewhere: while others run, a greenlet's stack is not where it was.
/// In a greenlet, too, it waits for others only briefly.
pub fn wait_here<R: Send>(py: Python<'_>, call: impl FnOnce() -> R + Send) -> R {
    let may = Here::of(py).may();
    py.detach(|| may.during(call))
}

/// What came of a call that was run elsewhere.
struct Slot<R> {
    answer: Option<(R, hooks::Pending, custom::Raised)>,
    /// Nobody waits for it any more.
    is_left: bool,
}

fn wait_in_hub<R: Send + 'static>(
    hub: &Bound<'_, PyAny>,
    of: Whose,
    call: impl FnOnce() -> R + Send + 'static,
    undo: impl Fn(R) + Send + Sync + 'static,
) -> PyResult<R> {
    let slot = Arc::new(Mutex::new(Slot { answer: None, is_left: false }));
    let undo = Arc::new(undo);
    let (there, undo_there, call) = (slot.clone(), undo.clone(), Mutex::new(Some(call)));
    let work = move || {
        let Some(call) = lock(&call).take() else { return };
        let result = MayWait::UntilTimeout.during(call);
        // What was told and raised here is the greenlet's to tell and to raise.
        let answer = (result, hooks::take(), custom::take());
        let mut slot = lock(&there);
        if slot.is_left {
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
        // Whatever it was answered is the parent's.
        return Err(PyRuntimeError::new_err("the process was forked while this greenlet waited for the store"));
    }
    let answer = {
        let mut slot = lock(&slot);
        slot.is_left = true;
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
                elsewhere::send(of, move || undo(result))?;
            }
            Err(waited.err().unwrap_or_else(|| PyRuntimeError::new_err("the greenlet was woken up before its turn")))
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
