//! What a store looks like at one moment.

use crate::stats::Stats;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use pyo3::{PyClass, PyClassInitializer};
use std::time::{Duration, SystemTime};
use workglow_limit::WAIT_BOUNDS;

/// What a store looks like at one moment, as Store.snapshot() sees it. Durations are in seconds.
#[pyclass(frozen, get_all, module = "workglow_limit")]
pub struct Snapshot {
    /// When it was taken, by the wall clock; in UTC.
    at: SystemTime,
    /// The store's address, without a password.
    store: String,
    /// A LimitSnapshot of each limit, by name. Those of a composite are called "name/KIND".
    limits: Py<PyTuple>,
    /// Are the counts those of all processes that share the store? On a server they are those of this process.
    counts_all_processes: bool,
    /// A ProcessSnapshot of each process of this machine that uses the store. Empty where the store does not know: "memory:" and
    /// servers.
    processes: Py<PyTuple>,
    /// How long what was admitted has been waiting to be written to the database, at most. 0 where nothing waits.
    ledger_lag: f64,
    /// The size of the lane in bytes; 0 where there is none.
    lane_bytes: u64,
    /// How often the store failed a decision of this process.
    failures: u64,
}

/// What a limit looks like.
#[pyclass(frozen, get_all, module = "workglow_limit")]
pub struct LimitSnapshot {
    /// Its name.
    name: String,
    /// "rate", "concurrency", "delay", "evenly-spaced", "token-bucket", "leaky-bucket", "fixed-window" or "sliding-window-counter".
    kind: &'static str,
    /// The policy that holds.
    policy: String,
    /// What programs declare.
    declared: String,
    /// What an operator put above it.
    r#override: Option<String>,
    /// A Usage of each of its windows, by the key that uses most of it. There is at least one; the first is the fullest.
    usage: Py<PyTuple>,
    /// Which key that is: its text if texts are asked for, else "#" and its id. None: the limit without a key.
    fullest: Option<String>,
    /// Is more than 80 % of it used?
    near: bool,
    /// The most units in use at a time, of one key, in the last minute or so.
    peak: u64,
    /// How long until a start of weight 1 would be admitted, by the fullest key.
    retry_after: f64,
    /// For how long it is paused; 0 if it is not.
    paused_for: f64,
    /// How many callers wait, in all processes.
    waiting: u64,
    /// How many starts had to wait, by how long.
    waits: Py<Waits>,
    /// How many places were lost, because their owners came too late.
    places_lost: u64,
    /// What was counted.
    stats: Py<Stats>,
    /// How many keys are known.
    keys: u64,
    /// A KeySnapshot of each of the busiest keys, busiest first: as many as were asked for, at most.
    hot_keys: Py<PyTuple>,
    /// What this process holds of a server's grants. None where no server grants units.
    grants: Option<Py<GrantSnapshot>>,
}

/// What is used of a window, of a bucket or of what may run at once.
#[pyclass(frozen, eq, get_all, module = "workglow_limit")]
#[derive(PartialEq)]
pub struct Usage {
    /// The units that are allowed.
    limit: u64,
    /// Those that are in use.
    used: u64,
    /// In how many seconds. None: at once.
    window: Option<f64>,
}

/// How many starts had to wait, by how long.
#[pyclass(frozen, eq, get_all, module = "workglow_limit")]
#[derive(PartialEq)]
pub struct Waits {
    /// The longest wait of each class but the last, in seconds.
    bounds: Vec<f64>,
    /// How many starts are in each class. The last has those that waited longer.
    counts: Vec<u64>,
}

/// What one key looks like.
#[pyclass(frozen, get_all, module = "workglow_limit")]
pub struct KeySnapshot {
    /// Its text if texts are asked for (of a long one the beginning), else "#" and its id, which stays the same as long as the store
    /// exists.
    key: String,
    /// A policy of its own.
    r#override: Option<String>,
    /// A Usage of each of its windows. The first is the fullest.
    usage: Py<PyTuple>,
    /// How long until a start of weight 1 would be admitted.
    retry_after: f64,
    /// For how long it is paused; 0 if it is not.
    paused_for: f64,
    /// What was counted.
    stats: Py<Stats>,
}

/// A process that uses the store.
#[pyclass(frozen, eq, get_all, module = "workglow_limit")]
#[derive(PartialEq)]
pub struct ProcessSnapshot {
    /// Its number in the system, as it sees it itself: in a container, that of the container.
    pid: u32,
    /// What it runs.
    program: String,
    /// For how long it has used the store.
    since: f64,
}

/// What a server has granted to this process.
#[pyclass(frozen, eq, get_all, module = "workglow_limit")]
#[derive(PartialEq)]
pub struct GrantSnapshot {
    /// The units that it holds and has not used.
    held: u64,
    /// How often it asked the server.
    requests: u64,
}

impl Snapshot {
    pub fn new(py: Python<'_>, seen: workglow_limit::Snapshot, show_keys: bool) -> PyResult<Snapshot> {
        let process = |process: workglow_limit::ProcessSnapshot| ProcessSnapshot {
            pid: process.pid,
            program: process.program,
            since: process.since.as_secs_f64(),
        };
        Ok(Snapshot {
            at: seen.at,
            store: seen.url,
            limits: tuple(py, seen.limits, |limit| LimitSnapshot::new(py, limit, show_keys))?,
            counts_all_processes: seen.counts_all_processes,
            processes: tuple(py, seen.processes, |each| Ok(process(each)))?,
            ledger_lag: seen.ledger_lag.as_secs_f64(),
            lane_bytes: seen.lane_bytes,
            failures: seen.failures,
        })
    }
}

impl LimitSnapshot {
    fn new(py: Python<'_>, seen: workglow_limit::LimitSnapshot, show_keys: bool) -> PyResult<LimitSnapshot> {
        let waits = Waits { bounds: WAIT_BOUNDS.map(|bound| bound.as_secs_f64()).into(), counts: seen.waits.into() };
        let grants = |grants: workglow_limit::GrantSnapshot| {
            Py::new(py, GrantSnapshot { held: grants.held, requests: grants.requests })
        };
        let names = seen.key_names(show_keys);
        Ok(LimitSnapshot {
            kind: seen.kind,
            policy: seen.policy().to_string(),
            declared: seen.declared.to_string(),
            r#override: seen.overriding.map(|policy| policy.to_string()),
            usage: usage(py, &seen.usage)?,
            fullest: seen.fullest_name(show_keys),
            near: seen.is_near(),
            peak: seen.peak,
            retry_after: seen.retry_after.as_secs_f64(),
            paused_for: seen.paused_for.as_secs_f64(),
            waiting: seen.waiting,
            waits: Py::new(py, waits)?,
            places_lost: seen.places_lost,
            stats: Py::new(py, Stats::from(seen.stats))?,
            keys: seen.keys,
            hot_keys: tuple(py, names.into_iter().zip(seen.hot_keys), |(name, key)| KeySnapshot::new(py, name, key))?,
            grants: seen.grants.map(grants).transpose()?,
            name: seen.name,
        })
    }
}

impl KeySnapshot {
    fn new(py: Python<'_>, name: String, seen: workglow_limit::KeySnapshot) -> PyResult<KeySnapshot> {
        Ok(KeySnapshot {
            key: name,
            r#override: seen.overriding.map(|policy| policy.to_string()),
            usage: usage(py, &seen.usage)?,
            retry_after: seen.retry_after.as_secs_f64(),
            paused_for: seen.paused_for.as_secs_f64(),
            stats: Py::new(py, Stats::from(seen.stats))?,
        })
    }
}

fn usage(py: Python<'_>, all: &[workglow_limit::Usage]) -> PyResult<Py<PyTuple>> {
    let seconds = |window: Duration| window.as_secs_f64();
    tuple(py, all.iter().copied(), |one| {
        Ok(Usage { limit: one.limit, used: one.used, window: one.window.map(seconds) })
    })
}

/// A tuple of what is made of each.
fn tuple<T, C: PyClass + Into<PyClassInitializer<C>>>(
    py: Python<'_>,
    all: impl IntoIterator<Item = T>,
    make: impl Fn(T) -> PyResult<C>,
) -> PyResult<Py<PyTuple>> {
    let made = all.into_iter().map(|one| Py::new(py, make(one)?)).collect::<PyResult<Vec<_>>>()?;
    Ok(PyTuple::new(py, made)?.unbind())
}

#[pymethods]
impl Snapshot {
    fn __repr__(&self, py: Python<'_>) -> String {
        format!("<Snapshot of {:?}: {} limits>", self.store, self.limits.bind(py).as_any().len().unwrap_or(0))
    }
}

#[pymethods]
impl LimitSnapshot {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<LimitSnapshot {:?}: {}, {}>", self.name, self.policy, self.usage.bind(py).repr()?))
    }
}

#[pymethods]
impl Usage {
    fn __repr__(&self) -> String {
        let window = self.window.map_or("None".to_owned(), |window| format!("{window:?}"));
        format!("Usage(limit={}, used={}, window={window})", self.limit, self.used)
    }
}

#[pymethods]
impl Waits {
    fn __repr__(&self) -> String {
        format!("Waits(bounds={:?}, counts={:?})", self.bounds, self.counts)
    }
}

#[pymethods]
impl KeySnapshot {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<KeySnapshot {:?}: {}>", self.key, self.usage.bind(py).repr()?))
    }
}

#[pymethods]
impl ProcessSnapshot {
    fn __repr__(&self) -> String {
        format!("ProcessSnapshot(pid={}, program={:?}, since={:?})", self.pid, self.program, self.since)
    }
}

#[pymethods]
impl GrantSnapshot {
    fn __repr__(&self) -> String {
        format!("GrantSnapshot(held={}, requests={})", self.held, self.requests)
    }
}
