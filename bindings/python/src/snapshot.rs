//! Snapshots of a store.

use crate::stats::Stats;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use pyo3::{PyClass, PyClassInitializer};
use std::time::{Duration, SystemTime};
use workglow_limit::observe::WAIT_BOUNDS;

/// The state of a store at one time, from Store.snapshot(). Durations are in seconds.
#[pyclass(frozen, get_all, module = "workglow_limit")]
pub struct Snapshot {
    /// The time of the snapshot by the wall clock, in UTC.
    at: SystemTime,
    /// The store's address, without a password.
    store: String,
    /// A LimitSnapshot per limit, by name. The parts of a composite are called "name/KIND".
    limits: Py<PyTuple>,
    /// Whether the counts cover all processes that share the store. On a server they cover this process only.
    counts_all_processes: bool,
    /// A ProcessSnapshot per process of this machine that uses the store. Empty for "memory:" and servers, which do not record
    /// processes.
    processes: Py<PyTuple>,
    /// The age of the oldest admitted start that is not yet in the database. 0 if all are.
    ledger_lag: f64,
    /// The size of the lane in bytes; 0 without a lane.
    lane_bytes: u64,
    /// The memory of the store that is in use, in bytes; 0 on a server.
    used_bytes: u64,
    /// The size in bytes up to which this process lets the store grow (max_size); 0 on a server.
    max_bytes: u64,
    /// The number of decisions of this process that failed because of the store.
    failures: u64,
}

/// The state of a limit.
#[pyclass(frozen, get_all, module = "workglow_limit")]
pub struct LimitSnapshot {
    /// The name of the limit.
    name: String,
    /// The kind of the limit: "rate", "concurrency", "delay", "evenly-spaced", "token-bucket", "leaky-bucket", "fixed-window" or
    /// "sliding-window-counter"; with "shared-" before it if tenants share the limit.
    kind: &'static str,
    /// The policy in force.
    policy: String,
    /// The policy that programs declare.
    declared: String,
    /// An operator's override; None without one.
    r#override: Option<String>,
    /// What has put the override there: "operator", or "headers of api.example.com" from which programs learned it; None without
    /// one.
    overridden_by: Option<String>,
    /// A Usage per window, for the key that uses most of the limit. There is at least one; the first is the fullest.
    usage: Py<PyTuple>,
    /// The key of usage: its text with show_keys, otherwise "#" and its id. None for the limit without a key.
    fullest: Option<String>,
    /// Whether more than 80 % of the limit is used.
    near: bool,
    /// The most units of one key in use at the same time, within about the last minute.
    peak: u64,
    /// The time until the fullest key would admit a start of weight 1.
    retry_after: f64,
    /// The time until the gate opens; 0 without a gate.
    paused_for: f64,
    /// The number of waiters in all processes.
    waiting: u64,
    /// The number of starts that had to wait, by the length of the wait.
    waits: Py<Waits>,
    /// The number of places that were lost because their owners came too late.
    places_lost: u64,
    /// The counts of the limit.
    stats: Py<Stats>,
    /// The number of known keys.
    keys: u64,
    /// The memory that its keys take, in bytes; 0 on a server.
    bytes: u64,
    /// The memory that further keys may take before new ones are refused, in bytes; 0 on a server.
    spare_bytes: u64,
    /// A KeySnapshot per key, busiest first: at most as many as requested.
    hot_keys: Py<PyTuple>,
    /// A TenantSnapshot per tenant of a shared limit that waits, the next one first, and then per tenant for which a share is kept.
    tenants: Py<PyTuple>,
    /// The server's grants that this process holds. None if no server grants units.
    grants: Option<Py<GrantSnapshot>>,
}

/// The usage of a window, a bucket or a concurrency limit.
#[pyclass(frozen, eq, get_all, module = "workglow_limit")]
#[derive(PartialEq)]
pub struct Usage {
    /// The units that are allowed.
    limit: u64,
    /// The units that are in use.
    used: u64,
    /// The length of the window in seconds. None for a concurrency limit.
    window: Option<f64>,
}

/// A histogram of the starts that had to wait, by the length of the wait.
#[pyclass(frozen, eq, get_all, module = "workglow_limit")]
#[derive(PartialEq)]
pub struct Waits {
    /// The longest wait of each class but the last, in seconds.
    bounds: Vec<f64>,
    /// The number of starts in each class. The last class has all longer waits.
    counts: Vec<u64>,
}

/// The state of one key.
#[pyclass(frozen, get_all, module = "workglow_limit")]
pub struct KeySnapshot {
    /// The text of the key with show_keys (a long one is shortened), otherwise "#" and its id, which is stable while the store exists.
    key: String,
    /// The key's own policy; None without one.
    r#override: Option<String>,
    /// A Usage per window. The first is the fullest.
    usage: Py<PyTuple>,
    /// The time until a start of weight 1 would be admitted.
    retry_after: f64,
    /// The time until the gate opens; 0 without a gate.
    paused_for: f64,
    /// The counts of the key.
    stats: Py<Stats>,
}

/// The state of one tenant of a shared limit.
#[pyclass(frozen, eq, get_all, module = "workglow_limit")]
#[derive(PartialEq)]
pub struct TenantSnapshot {
    /// The text of its key with show_keys, if a share is kept for it; otherwise "#" and the id of its key.
    key: String,
    /// The share that is kept for it. Calls may have their own.
    share: u32,
    /// How long its first waiter has waited, in seconds; None if it does not wait.
    waits: Option<f64>,
}

/// A process that uses the store.
#[pyclass(frozen, eq, get_all, module = "workglow_limit")]
#[derive(PartialEq)]
pub struct ProcessSnapshot {
    /// The process's own view of its pid. In a container it is the container's pid.
    pid: u32,
    /// The program that it runs.
    program: String,
    /// The time since it began to use the store.
    since: f64,
}

/// The units that a server has granted to this process.
#[pyclass(frozen, eq, get_all, module = "workglow_limit")]
#[derive(PartialEq)]
pub struct GrantSnapshot {
    /// The granted units that are not used yet.
    held: u64,
    /// The number of requests to the server.
    requests: u64,
}

impl Snapshot {
    pub fn new(py: Python<'_>, seen: workglow_limit::observe::Snapshot, show_keys: bool) -> PyResult<Snapshot> {
        Ok(Snapshot {
            at: seen.at,
            store: seen.url,
            limits: tuple(py, seen.limits, |limit| LimitSnapshot::new(py, limit, show_keys))?,
            counts_all_processes: seen.counts_all_processes,
            processes: tuple(py, seen.processes, |process| Ok(ProcessSnapshot::from(process)))?,
            ledger_lag: seen.ledger_lag.as_secs_f64(),
            lane_bytes: seen.lane_bytes,
            used_bytes: seen.used_bytes,
            max_bytes: seen.max_bytes,
            failures: seen.failures,
        })
    }
}

impl From<workglow_limit::observe::ProcessSnapshot> for ProcessSnapshot {
    fn from(seen: workglow_limit::observe::ProcessSnapshot) -> ProcessSnapshot {
        ProcessSnapshot { pid: seen.pid, program: seen.program, since: seen.since.as_secs_f64() }
    }
}

impl LimitSnapshot {
    fn new(py: Python<'_>, seen: workglow_limit::observe::LimitSnapshot, show_keys: bool) -> PyResult<LimitSnapshot> {
        let waits = Waits { bounds: WAIT_BOUNDS.map(|bound| bound.as_secs_f64()).into(), counts: seen.waits.into() };
        let grants = |grants: workglow_limit::observe::GrantSnapshot| {
            Py::new(py, GrantSnapshot { held: grants.held, requests: grants.requests })
        };
        let tenants = seen.tenant_names(show_keys).into_iter().zip(&seen.tenants).map(|(key, seen)| TenantSnapshot {
            key,
            share: seen.share,
            waits: seen.waits.map(|wait| wait.as_secs_f64()),
        });
        let tenants = tuple(py, tenants, Ok)?;
        let names = seen.key_names(show_keys);
        Ok(LimitSnapshot {
            kind: seen.kind,
            policy: seen.policy().to_string(),
            declared: seen.declared.to_string(),
            r#override: seen.overriding.map(|policy| policy.to_string()),
            overridden_by: seen.overridden_by.clone(),
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
            bytes: seen.bytes,
            spare_bytes: seen.spare_bytes,
            hot_keys: tuple(py, names.into_iter().zip(seen.hot_keys), |(name, key)| KeySnapshot::new(py, name, key))?,
            tenants,
            grants: seen.grants.map(grants).transpose()?,
            name: seen.name,
        })
    }
}

impl KeySnapshot {
    fn new(py: Python<'_>, name: String, seen: workglow_limit::observe::KeySnapshot) -> PyResult<KeySnapshot> {
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

fn usage(py: Python<'_>, all: &[workglow_limit::observe::Usage]) -> PyResult<Py<PyTuple>> {
    let seconds = |window: Duration| window.as_secs_f64();
    tuple(py, all.iter().copied(), |one| {
        Ok(Usage { limit: one.limit, used: one.used, window: one.window.map(seconds) })
    })
}

/// Converts each item and returns the tuple.
pub fn tuple<T, C: PyClass + Into<PyClassInitializer<C>>>(
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
    pub fn __repr__(&self) -> String {
        format!("ProcessSnapshot(pid={}, program={:?}, since={:?})", self.pid, self.program, self.since)
    }
}

#[pymethods]
impl GrantSnapshot {
    fn __repr__(&self) -> String {
        format!("GrantSnapshot(held={}, requests={})", self.held, self.requests)
    }
}
