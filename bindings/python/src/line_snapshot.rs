//! Who has the units of a limit, and who waits for them.

use crate::snapshot::{ProcessSnapshot, tuple};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use workglow_limit::observe;

/// Who had the units of a limit, or of a key of it, and who waited for them, at the time of Store.line(). Durations are in seconds.
#[pyclass(frozen, get_all, module = "workglow_limit")]
pub struct LineSnapshot {
    /// A HolderSnapshot per process with units of a limit of concurrent starts, the most units first. Empty for other limits: nobody
    /// has their units, which are free again when time has passed.
    holders: Py<PyTuple>,
    /// A HeadSnapshot per line, the next one first. A process has a line for each of its event loops, and one for all of its
    /// threads. Those that are passed are last. Of a "memory:" store only those of limits that tenants share: no other process
    /// waits for the others.
    heads: Py<PyTuple>,
    /// A WaitingSnapshot per process whose callers wait for the limit, the most callers first.
    waiting: Py<PyTuple>,
}

/// A process that has units of a limit.
#[pyclass(frozen, eq, get_all, module = "workglow_limit")]
pub struct HolderSnapshot {
    /// The process. None: it is not in the list of processes, or the store is "memory:".
    process: Option<Py<ProcessSnapshot>>,
    /// The number of its starts that have not ended.
    starts: u64,
    /// Their units.
    units: u64,
    /// Whether the starts have ended, and their units are free after the limit's cooldown.
    cools_down: bool,
}

/// The first waiter of a line.
#[pyclass(frozen, eq, get_all, module = "workglow_limit")]
pub struct HeadSnapshot {
    /// Its process, as in HolderSnapshot.
    process: Option<Py<ProcessSnapshot>>,
    /// How long it has waited.
    waits: f64,
    /// The units that it wants.
    units: u64,
    /// Its priority: less is sooner.
    priority: i32,
    /// The tenant of a shared limit: "#" and the id of its key, as in TenantSnapshot. None if tenants do not share the limit.
    tenant: Option<String>,
    /// Whether it is passed, because its process does not run.
    passed: bool,
}

/// How many callers of a process wait for a limit.
#[pyclass(frozen, eq, get_all, module = "workglow_limit")]
pub struct WaitingSnapshot {
    /// The process, as in HolderSnapshot.
    process: Option<Py<ProcessSnapshot>>,
    /// The number of its callers, for all keys of the limit together.
    callers: u64,
}

/// (What Python owns has no equality of its own.)
fn of(process: &Option<Py<ProcessSnapshot>>) -> Option<&ProcessSnapshot> {
    process.as_ref().map(Py::get)
}

impl PartialEq for HolderSnapshot {
    fn eq(&self, other: &Self) -> bool {
        let all = |one: &Self| (one.starts, one.units, one.cools_down);
        of(&self.process) == of(&other.process) && all(self) == all(other)
    }
}

impl PartialEq for HeadSnapshot {
    fn eq(&self, other: &Self) -> bool {
        let all = |one: &Self| (one.waits, one.units, one.priority, one.passed);
        of(&self.process) == of(&other.process) && all(self) == all(other) && self.tenant == other.tenant
    }
}

impl PartialEq for WaitingSnapshot {
    fn eq(&self, other: &Self) -> bool {
        of(&self.process) == of(&other.process) && self.callers == other.callers
    }
}

impl LineSnapshot {
    pub fn new(py: Python<'_>, seen: observe::LineSnapshot) -> PyResult<LineSnapshot> {
        let process = |process: Option<observe::ProcessSnapshot>| {
            process.map(|process| Py::new(py, ProcessSnapshot::from(process))).transpose()
        };
        let holder = |seen: observe::HolderSnapshot| {
            let process = process(seen.process)?;
            Ok(HolderSnapshot { process, starts: seen.starts, units: seen.units, cools_down: seen.cools_down })
        };
        let head = |seen: observe::HeadSnapshot| {
            Ok(HeadSnapshot {
                tenant: seen.tenant_name(),
                process: process(seen.process)?,
                waits: seen.waits.as_secs_f64(),
                units: seen.units,
                priority: seen.priority,
                passed: seen.is_passed,
            })
        };
        let waiting = |seen: observe::WaitingSnapshot| {
            Ok(WaitingSnapshot { process: process(seen.process)?, callers: seen.callers })
        };
        Ok(LineSnapshot {
            holders: tuple(py, seen.holders, holder)?,
            heads: tuple(py, seen.heads, head)?,
            waiting: tuple(py, seen.waiting, waiting)?,
        })
    }
}

#[pymethods]
impl LineSnapshot {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let [holders, heads, waiting] = [&self.holders, &self.heads, &self.waiting].map(|all| all.bind(py).repr());
        Ok(format!("LineSnapshot(holders={}, heads={}, waiting={})", holders?, heads?, waiting?))
    }
}

/// A process, as Python writes it.
fn shown(process: &Option<Py<ProcessSnapshot>>) -> String {
    of(process).map_or_else(|| "None".to_owned(), ProcessSnapshot::__repr__)
}

#[pymethods]
impl HolderSnapshot {
    fn __repr__(&self) -> String {
        let (process, cools_down) = (shown(&self.process), if self.cools_down { "True" } else { "False" });
        format!(
            "HolderSnapshot(process={process}, starts={}, units={}, cools_down={cools_down})",
            self.starts, self.units
        )
    }
}

#[pymethods]
impl HeadSnapshot {
    fn __repr__(&self) -> String {
        let (process, passed) = (shown(&self.process), if self.passed { "True" } else { "False" });
        let tenant = self.tenant.as_ref().map_or_else(|| "None".to_owned(), |tenant| format!("{tenant:?}"));
        format!(
            "HeadSnapshot(process={process}, waits={:?}, units={}, priority={}, tenant={tenant}, passed={passed})",
            self.waits, self.units, self.priority
        )
    }
}

#[pymethods]
impl WaitingSnapshot {
    fn __repr__(&self) -> String {
        format!("WaitingSnapshot(process={}, callers={})", shown(&self.process), self.callers)
    }
}
