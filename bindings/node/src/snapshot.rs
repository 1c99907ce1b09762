//! What a store looks like at one moment, as plain objects. Durations are in ms, as everywhere in JavaScript.

use crate::{Pooled, thrown};
use napi::bindgen_prelude::{AsyncTask, External};
use napi_derive::napi;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::{Error, MetricsFormat, MetricsOptions, Onlooker, Store, WAIT_BOUNDS, unix_ns};

/// `Snapshot` in `lib/snapshot.ts`.
#[napi(object)]
pub struct Snapshot {
    /// In ms since the Unix epoch.
    pub at: f64,
    /// The store's address.
    pub store: String,
    /// By name.
    pub limits: Vec<LimitSnapshot>,
    /// Or of this process only.
    pub counts_all_processes: bool,
    /// Those of this machine.
    pub processes: Vec<ProcessSnapshot>,
    /// At most.
    pub ledger_lag: f64,
    /// 0 where there is none.
    pub lane_bytes: f64,
    /// Of this process.
    pub failures: f64,
}

/// `LimitSnapshot` there, as the next ones.
#[napi(object, use_nullable = true)]
pub struct LimitSnapshot {
    /// Its name.
    pub name: String,
    /// The kind of its policies.
    pub kind: String,
    /// What holds.
    pub policy: String,
    /// What programs declare.
    pub declared: String,
    /// What an operator put above it.
    #[napi(js_name = "override")]
    pub overriding: Option<String>,
    /// The fullest first.
    pub usage: Vec<Usage>,
    /// Whose that is.
    pub fullest: Option<String>,
    /// Is more than 80 % of it used?
    pub is_near: bool,
    /// In the last minute or so.
    pub peak: f64,
    /// By the fullest key.
    pub retry_after: f64,
    /// 0 if it is open.
    pub paused_for: f64,
    /// In all processes.
    pub waiting: f64,
    /// By how long.
    pub waits: Waits,
    /// Whose owners came too late.
    pub places_lost: f64,
    /// In the order of `native.stats`.
    pub stats: Vec<f64>,
    /// That are known.
    pub keys: f64,
    /// The busiest first.
    pub hot_keys: Vec<KeySnapshot>,
    /// Of a server.
    pub grants: Option<GrantSnapshot>,
}

/// What is used of a window.
#[napi(object, use_nullable = true)]
pub struct Usage {
    /// Units that are allowed.
    pub limit: f64,
    /// Those in use.
    pub used: f64,
    /// In which time.
    pub window: Option<f64>,
}

/// Who had to wait.
#[napi(object)]
pub struct Waits {
    /// The longest wait of each class but the last.
    pub bounds: Vec<f64>,
    /// How many are in each.
    pub counts: Vec<f64>,
}

/// What a key looks like.
#[napi(object, use_nullable = true)]
pub struct KeySnapshot {
    /// What it is called.
    pub key: String,
    /// A policy of its own.
    #[napi(js_name = "override")]
    pub overriding: Option<String>,
    /// The fullest first.
    pub usage: Vec<Usage>,
    /// Of a start of weight 1.
    pub retry_after: f64,
    /// 0 if it is open.
    pub paused_for: f64,
    /// In the order of `native.stats`.
    pub stats: Vec<f64>,
}

/// A process that uses the store.
#[napi(object)]
pub struct ProcessSnapshot {
    /// Its number.
    pub pid: f64,
    /// What it runs.
    pub program: String,
    /// How long it has used the store.
    pub since: f64,
}

/// What a server has granted.
#[napi(object)]
pub struct GrantSnapshot {
    /// Units that are not used.
    pub held: f64,
    /// How often the server was asked.
    pub requests: f64,
}

fn ms(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}

fn usage(all: &[workglow_limit::Usage]) -> Vec<Usage> {
    let one = |usage: &workglow_limit::Usage| Usage {
        limit: usage.limit as f64,
        used: usage.used as f64,
        window: usage.window.map(ms),
    };
    all.iter().map(one).collect()
}

fn snapshot_of(seen: &workglow_limit::Snapshot, show_keys: bool) -> Snapshot {
    let process = |process: &workglow_limit::ProcessSnapshot| ProcessSnapshot {
        pid: process.pid.into(),
        program: process.program.clone(),
        since: ms(process.since),
    };
    Snapshot {
        at: unix_ns(seen.at) as f64 / 1e6,
        store: seen.url.clone(),
        limits: seen.limits.iter().map(|limit| limit_of(limit, show_keys)).collect(),
        counts_all_processes: seen.counts_all_processes,
        processes: seen.processes.iter().map(process).collect(),
        ledger_lag: ms(seen.ledger_lag),
        lane_bytes: seen.lane_bytes as f64,
        failures: seen.failures as f64,
    }
}

fn limit_of(seen: &workglow_limit::LimitSnapshot, show_keys: bool) -> LimitSnapshot {
    let key = |(key, name): (&workglow_limit::KeySnapshot, String)| KeySnapshot {
        key: name,
        overriding: key.overriding.map(|policy| policy.to_string()),
        usage: usage(&key.usage),
        retry_after: ms(key.retry_after),
        paused_for: ms(key.paused_for),
        stats: crate::counts(&key.stats),
    };
    let grants = |grants: workglow_limit::GrantSnapshot| GrantSnapshot {
        held: grants.held as f64,
        requests: grants.requests as f64,
    };
    LimitSnapshot {
        name: seen.name.clone(),
        kind: seen.kind.to_owned(),
        policy: seen.policy().to_string(),
        declared: seen.declared.to_string(),
        overriding: seen.overriding.map(|policy| policy.to_string()),
        usage: usage(&seen.usage),
        fullest: seen.fullest_name(show_keys),
        is_near: seen.is_near(),
        peak: seen.peak as f64,
        retry_after: ms(seen.retry_after),
        paused_for: ms(seen.paused_for),
        waiting: seen.waiting as f64,
        waits: Waits { bounds: WAIT_BOUNDS.map(ms).into(), counts: seen.waits.map(|count| count as f64).into() },
        places_lost: seen.places_lost as f64,
        stats: crate::counts(&seen.stats),
        keys: seen.keys as f64,
        hot_keys: seen.hot_keys.iter().zip(seen.key_names(show_keys)).map(key).collect(),
        grants: seen.grants.map(grants),
    }
}

/// Who looks at a store.
#[napi]
pub fn onlooker(store: &External<Store>) -> External<Arc<Onlooker>> {
    External::new(Arc::new(Onlooker::new(store)))
}

/// What is asked of one, which waits for nothing but what it is told to.
fn snapshot_by(onlooker: &Onlooker, keys: f64, show_keys: bool) -> Result<Snapshot, Error> {
    // Saturates: what is too large is told by the core, as below.
    Ok(snapshot_of(&onlooker.look(keys as usize)?, show_keys))
}

fn metrics_by(onlooker: &Onlooker, keys: f64, show_keys: bool, format: MetricsFormat) -> Result<String, Error> {
    let mut options = MetricsOptions::default();
    (options.format, options.keys, options.show_keys) = (format, keys as usize, show_keys);
    Ok(onlooker.look(options.keys)?.to_openmetrics(&options))
}

/// A format by its word, which JavaScript has checked.
fn format_of(word: &str) -> MetricsFormat {
    if word == "prometheus" { MetricsFormat::Prometheus } else { MetricsFormat::OpenMetrics }
}

/// What the store looks like now.
#[napi]
pub fn snapshot(onlooker: &External<Arc<Onlooker>>, keys: f64, show_keys: bool) -> napi::Result<Snapshot> {
    snapshot_by(onlooker, keys, show_keys).map_err(thrown)
}

/// The same on the thread pool.
#[napi]
pub fn snapshot_later(onlooker: &External<Arc<Onlooker>>, keys: f64, show_keys: bool) -> AsyncTask<Pooled<Snapshot>> {
    let onlooker = Arc::clone(onlooker);
    AsyncTask::new(Pooled(Box::new(move || snapshot_by(&onlooker, keys, show_keys))))
}

/// The same as text.
#[napi]
pub fn metrics(onlooker: &External<Arc<Onlooker>>, keys: f64, show_keys: bool, format: String) -> napi::Result<String> {
    metrics_by(onlooker, keys, show_keys, format_of(&format)).map_err(thrown)
}

/// That on the thread pool.
#[napi]
pub fn metrics_later(
    onlooker: &External<Arc<Onlooker>>,
    keys: f64,
    show_keys: bool,
    format: String,
) -> AsyncTask<Pooled<String>> {
    let (onlooker, format) = (Arc::clone(onlooker), format_of(&format));
    AsyncTask::new(Pooled(Box::new(move || metrics_by(&onlooker, keys, show_keys, format))))
}

/// The type of such a text.
#[napi]
pub fn metrics_content_type(format: String) -> &'static str {
    format_of(&format).content_type()
}
