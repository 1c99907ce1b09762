//! What a snapshot of a store shows.

use crate::policy::Policy;
use crate::stats::Stats;
use std::time::{Duration, SystemTime};

/// The upper bounds of the classes of [`LimitSnapshot::waits`]. The last class has all longer waits.
pub const WAIT_BOUNDS: [Duration; 8] = [
    Duration::from_millis(10),
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(60),
    Duration::from_secs(300),
];

/// A limit whose usage is above this share is [near](LimitSnapshot::is_near) its limit.
pub const NEAR: f64 = 0.8;

/// The state of a store at one time.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Snapshot {
    /// The time of the snapshot, by the wall clock.
    pub at: SystemTime,
    /// The store's address, without a password.
    pub url: String,
    /// All limits, sorted by name. The parts of a composite are named `name/KIND`.
    pub limits: Vec<LimitSnapshot>,
    /// Whether counts include all processes that share the store. On a server, counts are those of this process.
    pub counts_all_processes: bool,
    /// The processes on this machine that use the store. Empty for `memory:` stores and servers, which do not know them.
    pub processes: Vec<ProcessSnapshot>,
    /// The age of the oldest start that is not written to the database yet. Zero if there is none.
    pub ledger_lag: Duration,
    /// The size of the lane in bytes; 0 without a lane.
    pub lane_bytes: u64,
    /// The memory of the store that is in use, in bytes: keys, limits, and blocks that wait for new keys. 0 on a server.
    pub used_bytes: u64,
    /// The size in bytes up to which this process lets the store grow: see
    /// [`StoreOptions::max_size`](crate::StoreOptions::max_size). 0 on a server.
    pub max_bytes: u64,
    /// The number of decisions of this process that the store failed.
    pub failures: u64,
}

/// The state of a limit.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LimitSnapshot {
    /// Its name.
    pub name: String,
    /// `rate`, `concurrency`, …: see [`Policy::kind`].
    pub kind: &'static str,
    /// The declared policy.
    pub declared: Policy,
    /// The override: an operator's policy above the declared one.
    pub overriding: Option<Policy>,
    /// What has put the override there: `operator`, or `headers of api.example.com` from which programs learned it.
    pub overridden_by: Option<String>,
    /// The usage of each window by the fullest key, among the keys in the snapshot. There is at least one window; the first is the
    /// fullest.
    pub usage: Vec<Usage>,
    /// The fullest key: its text and its [id](KeySnapshot::id); `None` for the empty key.
    pub fullest: Option<(String, String)>,
    /// The most units of one key in use at a time in about the last minute, as sampled once a second.
    pub peak: u64,
    /// The time until the fullest key can start with weight 1.
    pub retry_after: Duration,
    /// The time for which the gate of the whole limit stays closed; zero if it is open.
    pub paused_for: Duration,
    /// The number of waiting callers in all processes.
    pub waiting: u64,
    /// The number of starts that had to wait, by the length of the wait: see [`WAIT_BOUNDS`].
    pub waits: [u64; WAIT_BOUNDS.len() + 1],
    /// The number of places that were lost because they were used too late.
    pub places_lost: u64,
    /// The counters.
    pub stats: Stats,
    /// The approximate number of keys, without the empty key.
    pub keys: u64,
    /// The memory that its keys take, in bytes. 0 on a server.
    pub bytes: u64,
    /// The memory that further keys may take before new ones are refused, in bytes. It becomes less if other limits get more
    /// keys, and more if keys are idle. 0 on a server.
    pub spare_bytes: u64,
    /// The busiest keys in the snapshot, busiest first. On a server, first those that this process has used, then the fullest.
    pub hot_keys: Vec<KeySnapshot>,
    /// If [tenants share](Policy::shared) the limit: those that wait, the next one first; then those for which a share is kept, as many
    /// as [hot keys](LimitSnapshot::hot_keys).
    pub tenants: Vec<TenantSnapshot>,
    /// The server's grants to this process. `None` if no server grants units.
    pub grants: Option<GrantSnapshot>,
}

impl LimitSnapshot {
    /// Returns the policy that applies: the override, or else the declared one.
    pub fn policy(&self) -> Policy {
        self.overriding.unwrap_or(self.declared)
    }

    /// Returns whether the usage of a window is above the share [`NEAR`].
    pub fn is_near(&self) -> bool {
        self.usage.iter().any(|usage| usage.used as f64 > NEAR * usage.limit as f64)
    }
}

/// The usage of a window, of a bucket or of a concurrency limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The allowed units.
    pub limit: u64,
    /// The units in use.
    pub used: u64,
    /// The length of the window. `None`: units at once.
    pub window: Option<Duration>,
}

/// The state of one key.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct KeySnapshot {
    /// The key's text. Of a long key, the beginning. On a server, which stores only hashes of keys, `#` and the id, unless this process
    /// has used the key or it has its own policy.
    pub key: String,
    /// A name for the key when its text must not be shown, because keys may be secrets: 16 hexadecimal digits, stable for the lifetime of
    /// the store.
    pub id: String,
    /// The override of this key.
    pub overriding: Option<Policy>,
    /// The usage of each window, as in [`LimitSnapshot::usage`].
    pub usage: Vec<Usage>,
    /// The time until the key can start with weight 1.
    pub retry_after: Duration,
    /// The time for which the key's gate stays closed; zero if it is open.
    pub paused_for: Duration,
    /// The counters.
    pub stats: Stats,
}

/// The state of one tenant of a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TenantSnapshot {
    /// Its key: the text if a share is kept for it, or it was sought; else `#` and the id.
    pub key: String,
    /// The [id](KeySnapshot::id) of its key.
    pub id: String,
    /// The share that is kept for it. Calls may have their own.
    pub share: u32,
    /// For how long its first waiter has waited. `None`: it does not wait.
    pub waits: Option<Duration>,
}

/// A process that uses the store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ProcessSnapshot {
    /// Its process id as the process itself sees it: in a container, the id in that container.
    pub pid: u32,
    /// The name of its program.
    pub program: String,
    /// The time since it opened the store.
    pub since: Duration,
}

/// The units that a server has granted to this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GrantSnapshot {
    /// The granted units that are not used yet.
    pub held: u64,
    /// The number of requests to the server.
    pub requests: u64,
}

/// The counts of a limit in one minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Minute {
    /// The start of the minute.
    pub at: SystemTime,
    /// The admitted units.
    pub units: u64,
    /// The denied attempts.
    pub denied: u64,
    /// The starts that had to wait.
    pub waited: u64,
    /// The most units of one key in use at a time, as sampled once a second.
    pub peak: u64,
}

/// Who has a limit, or a key of it, and who waits for it: see [`Observer::line`](crate::observe::Observer::line).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LineSnapshot {
    /// The units that jobs have in each process, of a limit of concurrent starts. Empty for other limits: nobody has their units,
    /// which are free again when time has passed.
    pub holders: Vec<HolderSnapshot>,
    /// The first waiter of each line, the next one first. A process has a line for each of its event loops, and one for all of its
    /// threads. Those that are passed because their process does not run are last. Of a `memory:` store only those of limits that
    /// tenants share: no other process waits for the others.
    pub heads: Vec<HeadSnapshot>,
    /// How many callers of each process wait for this limit, for all keys together.
    pub waiting: Vec<WaitingSnapshot>,
}

/// A process that has units of a limit.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HolderSnapshot {
    /// The process. `None`: the one that holds the store `memory:`, or one that is not in the list of processes.
    pub process: Option<ProcessSnapshot>,
    /// The number of its starts that have not ended.
    pub starts: u64,
    /// Their units.
    pub units: u64,
    /// Whether the starts have ended, and their units are free after the limit's cooldown.
    pub cools_down: bool,
}

/// The first waiter of a line.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HeadSnapshot {
    /// Its process: see [`HolderSnapshot::process`].
    pub process: Option<ProcessSnapshot>,
    /// How long it has waited.
    pub waits: Duration,
    /// What it wants to start.
    pub units: u64,
    /// Its priority: less is sooner.
    pub priority: i32,
    /// Where tenants share the limit: the [id](TenantSnapshot::id) of its tenant.
    pub tenant: Option<String>,
    /// Whether it is passed, because its process does not run.
    pub is_passed: bool,
}

impl HeadSnapshot {
    /// Returns the name of its tenant where texts of keys are not shown: `#` and the id.
    pub fn tenant_name(&self) -> Option<String> {
        self.tenant.as_ref().map(|id| format!("#{id}"))
    }
}

/// How many callers of a process wait.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WaitingSnapshot {
    /// The process: see [`HolderSnapshot::process`].
    pub process: Option<ProcessSnapshot>,
    /// The number of its callers.
    pub callers: u64,
}
