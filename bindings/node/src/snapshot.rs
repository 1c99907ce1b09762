//! Snapshots of stores, as plain objects. Durations are in ms, as everywhere in JavaScript.

use crate::{Pooled, thrown};
use napi::bindgen_prelude::{AsyncTask, External};
use napi_derive::napi;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::embed::unix_ns;
use workglow_limit::observe::{MetricsFormat, MetricsOptions, Observer, Onlooker, WAIT_BOUNDS};
use workglow_limit::{Error, Store};

/// `Snapshot` in `lib/snapshot.ts`.
#[napi(object)]
pub struct Snapshot {
    /// When it was taken, in ms since the Unix epoch.
    pub at: f64,
    /// The store's address.
    pub store: String,
    /// The limits, by name.
    pub limits: Vec<LimitSnapshot>,
    /// Whether counts are those of all processes, not only of this one.
    pub counts_all_processes: bool,
    /// The processes of this machine.
    pub processes: Vec<ProcessSnapshot>,
    /// The longest time that a start has waited to be written.
    pub ledger_lag: f64,
    /// The size of the lane; 0 without one.
    pub lane_bytes: f64,
    /// The memory of the store that is in use, in bytes; 0 on a server.
    pub used_bytes: f64,
    /// The size in bytes up to which this process lets the store grow; 0 on a server.
    pub max_bytes: f64,
    /// The decisions of this process that the store failed.
    pub failures: f64,
}

/// `LimitSnapshot` there; the next structures are there, too.
#[napi(object, use_nullable = true)]
pub struct LimitSnapshot {
    /// The limit's name.
    pub name: String,
    /// The kind of its policies.
    pub kind: String,
    /// The policy in force.
    pub policy: String,
    /// The policy that programs declare.
    pub declared: String,
    /// The operator's override.
    #[napi(js_name = "override")]
    pub overriding: Option<String>,
    /// What has put the override there.
    pub overridden_by: Option<String>,
    /// The usage of each window, the fullest first.
    pub usage: Vec<Usage>,
    /// The key with that usage.
    pub fullest: Option<String>,
    /// Whether more than 80 % are used.
    pub near: bool,
    /// The most units in use in the last minute or so.
    pub peak: f64,
    /// The wait of a start of the fullest key.
    pub retry_after: f64,
    /// The rest of a pause; 0 for none.
    pub paused_for: f64,
    /// The waiters of all processes.
    pub waiting: f64,
    /// The waits by their durations.
    pub waits: Waits,
    /// The places that were used too late.
    pub places_lost: f64,
    /// The counts, in the order of `native.stats`.
    pub stats: Vec<f64>,
    /// The number of known keys.
    pub keys: f64,
    /// The memory that its keys take, in bytes; 0 on a server.
    pub bytes: f64,
    /// The memory that further keys may take before new ones are refused, in bytes; 0 on a server.
    pub spare_bytes: f64,
    /// The busiest keys, busiest first.
    pub hot_keys: Vec<KeySnapshot>,
    /// The tenants of a shared limit.
    pub tenants: Vec<TenantSnapshot>,
    /// The units that a server granted.
    pub grants: Option<GrantSnapshot>,
}

/// The usage of a window.
#[napi(object, use_nullable = true)]
pub struct Usage {
    /// The units that are allowed.
    pub limit: f64,
    /// The units in use.
    pub used: f64,
    /// The window's duration.
    pub window: Option<f64>,
}

/// A histogram of waits.
#[napi(object)]
pub struct Waits {
    /// The longest wait of each class but the last.
    pub bounds: Vec<f64>,
    /// The number of waits in each class.
    pub counts: Vec<f64>,
}

/// The snapshot of a key.
#[napi(object, use_nullable = true)]
pub struct KeySnapshot {
    /// The key's text or id.
    pub key: String,
    /// The operator's override of this key.
    #[napi(js_name = "override")]
    pub overriding: Option<String>,
    /// The usage of each window, the fullest first.
    pub usage: Vec<Usage>,
    /// The wait of a start of weight 1.
    pub retry_after: f64,
    /// The rest of a pause; 0 for none.
    pub paused_for: f64,
    /// The counts, in the order of `native.stats`.
    pub stats: Vec<f64>,
}

/// The snapshot of a tenant.
#[napi(object, use_nullable = true)]
pub struct TenantSnapshot {
    /// The key's text or id.
    pub key: String,
    /// The share that is kept for it.
    pub share: u32,
    /// How long its first waiter has waited.
    pub waits: Option<f64>,
}

/// A process that uses the store.
#[napi(object)]
pub struct ProcessSnapshot {
    /// The process number.
    pub pid: f64,
    /// The program that it runs.
    pub program: String,
    /// How long it has used the store.
    pub since: f64,
}

/// The units that a server granted to this process.
#[napi(object)]
pub struct GrantSnapshot {
    /// The unused units.
    pub held: f64,
    /// The number of requests to the server.
    pub requests: f64,
}

/// `LineSnapshot` there.
#[napi(object)]
pub struct LineSnapshot {
    /// The processes that have units.
    pub holders: Vec<HolderSnapshot>,
    /// The first waiters, the next one first.
    pub heads: Vec<HeadSnapshot>,
    /// The processes whose callers wait.
    pub waiting: Vec<WaitingSnapshot>,
}

/// A process that has units.
#[napi(object, use_nullable = true)]
pub struct HolderSnapshot {
    /// The process, if it is known.
    pub process: Option<ProcessSnapshot>,
    /// The starts that have not ended.
    pub starts: f64,
    /// Their units.
    pub units: f64,
    /// Whether they have ended and cool down.
    pub cools_down: bool,
}

/// The first waiter of a line.
#[napi(object, use_nullable = true)]
pub struct HeadSnapshot {
    /// Its process, if it is known.
    pub process: Option<ProcessSnapshot>,
    /// How long it has waited.
    pub waits: f64,
    /// What it wants.
    pub units: f64,
    /// Less is sooner.
    pub priority: i32,
    /// The tenant's id.
    pub tenant: Option<String>,
    /// Whether its process does not run.
    pub passed: bool,
}

/// The callers of a process that wait.
#[napi(object, use_nullable = true)]
pub struct WaitingSnapshot {
    /// The process, if it is known.
    pub process: Option<ProcessSnapshot>,
    /// Their number.
    pub callers: f64,
}

fn ms(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}

fn usage(all: &[workglow_limit::observe::Usage]) -> Vec<Usage> {
    let one = |usage: &workglow_limit::observe::Usage| Usage {
        limit: usage.limit as f64,
        used: usage.used as f64,
        window: usage.window.map(ms),
    };
    all.iter().map(one).collect()
}

impl From<&workglow_limit::observe::ProcessSnapshot> for ProcessSnapshot {
    fn from(seen: &workglow_limit::observe::ProcessSnapshot) -> ProcessSnapshot {
        ProcessSnapshot { pid: seen.pid.into(), program: seen.program.clone(), since: ms(seen.since) }
    }
}

fn line_of(seen: &workglow_limit::observe::LineSnapshot) -> LineSnapshot {
    let holder = |seen: &workglow_limit::observe::HolderSnapshot| HolderSnapshot {
        process: seen.process.as_ref().map(ProcessSnapshot::from),
        starts: seen.starts as f64,
        units: seen.units as f64,
        cools_down: seen.cools_down,
    };
    let head = |seen: &workglow_limit::observe::HeadSnapshot| HeadSnapshot {
        process: seen.process.as_ref().map(ProcessSnapshot::from),
        waits: ms(seen.waits),
        units: seen.units as f64,
        priority: seen.priority,
        tenant: seen.tenant_name(),
        passed: seen.is_passed,
    };
    let waiting = |seen: &workglow_limit::observe::WaitingSnapshot| WaitingSnapshot {
        process: seen.process.as_ref().map(ProcessSnapshot::from),
        callers: seen.callers as f64,
    };
    LineSnapshot {
        holders: seen.holders.iter().map(holder).collect(),
        heads: seen.heads.iter().map(head).collect(),
        waiting: seen.waiting.iter().map(waiting).collect(),
    }
}

fn snapshot_of(seen: &workglow_limit::observe::Snapshot, show_keys: bool) -> Snapshot {
    Snapshot {
        at: unix_ns(seen.at) as f64 / 1e6,
        store: seen.url.clone(),
        limits: seen.limits.iter().map(|limit| limit_of(limit, show_keys)).collect(),
        counts_all_processes: seen.counts_all_processes,
        processes: seen.processes.iter().map(ProcessSnapshot::from).collect(),
        ledger_lag: ms(seen.ledger_lag),
        lane_bytes: seen.lane_bytes as f64,
        used_bytes: seen.used_bytes as f64,
        max_bytes: seen.max_bytes as f64,
        failures: seen.failures as f64,
    }
}

fn limit_of(seen: &workglow_limit::observe::LimitSnapshot, show_keys: bool) -> LimitSnapshot {
    let key = |(key, name): (&workglow_limit::observe::KeySnapshot, String)| KeySnapshot {
        key: name,
        overriding: key.overriding.map(|policy| policy.to_string()),
        usage: usage(&key.usage),
        retry_after: ms(key.retry_after),
        paused_for: ms(key.paused_for),
        stats: crate::counts(&key.stats),
    };
    let tenant = |(tenant, key): (&workglow_limit::observe::TenantSnapshot, String)| TenantSnapshot {
        key,
        share: tenant.share,
        waits: tenant.waits.map(ms),
    };
    let grants = |grants: workglow_limit::observe::GrantSnapshot| GrantSnapshot {
        held: grants.held as f64,
        requests: grants.requests as f64,
    };
    LimitSnapshot {
        name: seen.name.clone(),
        kind: seen.kind.to_owned(),
        policy: seen.policy().to_string(),
        declared: seen.declared.to_string(),
        overriding: seen.overriding.map(|policy| policy.to_string()),
        overridden_by: seen.overridden_by.clone(),
        usage: usage(&seen.usage),
        fullest: seen.fullest_name(show_keys),
        near: seen.is_near(),
        peak: seen.peak as f64,
        retry_after: ms(seen.retry_after),
        paused_for: ms(seen.paused_for),
        waiting: seen.waiting as f64,
        waits: Waits { bounds: WAIT_BOUNDS.map(ms).into(), counts: seen.waits.map(|count| count as f64).into() },
        places_lost: seen.places_lost as f64,
        stats: crate::counts(&seen.stats),
        keys: seen.keys as f64,
        bytes: seen.bytes as f64,
        spare_bytes: seen.spare_bytes as f64,
        hot_keys: seen.hot_keys.iter().zip(seen.key_names(show_keys)).map(key).collect(),
        tenants: seen.tenants.iter().zip(seen.tenant_names(show_keys)).map(tenant).collect(),
        grants: seen.grants.map(grants),
    }
}

/// Makes the observer of a store.
#[napi]
pub fn observer(store: &External<Store>) -> External<Arc<Onlooker>> {
    External::new(Arc::new(Onlooker::new(store)))
}

fn snapshot_by(observer: &Onlooker, keys: f64, show_keys: bool) -> Result<Snapshot, Error> {
    // Saturates: the core refuses what is too large, as below.
    Ok(snapshot_of(&observer.look(keys as usize)?, show_keys))
}

fn metrics_by(observer: &Onlooker, keys: f64, show_keys: bool, format: MetricsFormat) -> Result<String, Error> {
    let mut options = MetricsOptions::default();
    (options.format, options.keys, options.show_keys) = (format, keys as usize, show_keys);
    Ok(observer.look(options.keys)?.to_openmetrics(&options))
}

/// Returns the format with this name, which JavaScript has checked.
fn format_of(word: &str) -> MetricsFormat {
    if word == "prometheus" { MetricsFormat::Prometheus } else { MetricsFormat::OpenMetrics }
}

/// Takes a snapshot.
#[napi]
pub fn snapshot(observer: &External<Arc<Onlooker>>, keys: f64, show_keys: bool) -> napi::Result<Snapshot> {
    snapshot_by(observer, keys, show_keys).map_err(thrown)
}

/// Does the same on the thread pool.
#[napi]
pub fn snapshot_later(observer: &External<Arc<Onlooker>>, keys: f64, show_keys: bool) -> AsyncTask<Pooled<Snapshot>> {
    let observer = Arc::clone(observer);
    AsyncTask::new(Pooled(Box::new(move || snapshot_by(&observer, keys, show_keys))))
}

fn line_by(store: &Store, name: &str, key: Option<&str>) -> Result<LineSnapshot, Error> {
    Ok(line_of(&Observer::new(store, 0).line(name, key.unwrap_or_default())?))
}

/// Shows the line of a limit and key.
#[napi]
pub fn line_snapshot(store: &External<Store>, name: String, key: Option<String>) -> napi::Result<LineSnapshot> {
    line_by(store, &name, key.as_deref()).map_err(thrown)
}

/// Does the same on the thread pool.
#[napi]
pub fn line_snapshot_later(
    store: &External<Store>,
    name: String,
    key: Option<String>,
) -> AsyncTask<Pooled<LineSnapshot>> {
    let store = Store::clone(store);
    AsyncTask::new(Pooled(Box::new(move || line_by(&store, &name, key.as_deref()))))
}

/// Writes a snapshot as text.
#[napi]
pub fn metrics(observer: &External<Arc<Onlooker>>, keys: f64, show_keys: bool, format: String) -> napi::Result<String> {
    metrics_by(observer, keys, show_keys, format_of(&format)).map_err(thrown)
}

/// Does the same on the thread pool.
#[napi]
pub fn metrics_later(
    observer: &External<Arc<Onlooker>>,
    keys: f64,
    show_keys: bool,
    format: String,
) -> AsyncTask<Pooled<String>> {
    let (observer, format) = (Arc::clone(observer), format_of(&format));
    AsyncTask::new(Pooled(Box::new(move || metrics_by(&observer, keys, show_keys, format))))
}

/// Returns the `Content-Type` of such a text.
#[napi]
pub fn metrics_content_type(format: String) -> &'static str {
    format_of(&format).content_type()
}
