//! Looking at a store without taking part in it: for command lines, metrics and pages.

use crate::error::Result;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::state::{Declared, Store};
use crate::stats::Stats;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The upper bounds of the classes of [`LimitSnapshot::waits`]; the last class has the waits beyond.
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

/// A limit above this share of what it allows is [near](LimitSnapshot::is_near) it.
pub const NEAR: f64 = 0.8;

/// What a store looks like at one moment.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Snapshot {
    /// When it was taken, by the wall clock.
    pub at: SystemTime,
    /// The store's address, without a password.
    pub url: String,
    /// All limits, by name. Those of a composite are called `name/KIND`.
    pub limits: Vec<LimitSnapshot>,
    /// The processes that use the store on this machine. Empty where the store does not know: `memory:` and servers.
    pub processes: Vec<ProcessSnapshot>,
    /// How long what was admitted has been waiting to be written to the database, at most. Zero where nothing waits.
    pub ledger_lag: Duration,
    /// The size of the lane in bytes; 0 where there is none.
    pub lane_bytes: u64,
    /// How often the store failed a decision of this process.
    pub failures: u64,
}

/// What a limit looks like.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LimitSnapshot {
    /// Its name.
    pub name: String,
    /// `rate`, `concurrency`, …: see [`Policy::kind`].
    pub kind: &'static str,
    /// What programs declare.
    pub declared: Policy,
    /// What an operator put above it.
    pub overriding: Option<Policy>,
    /// What is used of each of its windows, by the key that uses most of it among those that were looked at. There is at least
    /// one; the first is the fullest.
    pub usage: Vec<Usage>,
    /// Which key that is, its text and its [id](KeySnapshot::id); `None` for the empty one.
    pub fullest: Option<(String, String)>,
    /// The most units in use at a time, of one key, in the last minute or so; as seen once a second.
    pub peak: u64,
    /// How long until a start of weight 1 would be admitted, by the fullest key.
    pub retry_after: Duration,
    /// For how long the gate of the whole limit is closed; zero if it is open.
    pub paused_for: Duration,
    /// How many callers wait, in all processes.
    pub waiting: u64,
    /// How many starts had to wait, by how long: see [`WAIT_BOUNDS`].
    pub waits: [u64; WAIT_BOUNDS.len() + 1],
    /// How many places were lost, because their owners came too late.
    pub places_lost: u64,
    /// What was counted.
    pub stats: Stats,
    /// How many keys are known, the empty one left out.
    pub keys: u64,
    /// The busiest of the keys that were looked at, busiest first.
    pub hot_keys: Vec<KeySnapshot>,
    /// What this process holds of a server's grants. `None` where no server grants units.
    pub grants: Option<GrantSnapshot>,
}

impl LimitSnapshot {
    /// What holds.
    pub fn policy(&self) -> Policy {
        self.overriding.unwrap_or(self.declared)
    }

    /// Is more than [`NEAR`] of it used?
    pub fn is_near(&self) -> bool {
        self.usage.iter().any(|usage| usage.used as f64 > NEAR * usage.limit as f64)
    }
}

/// What is used of a window, of a bucket or of what may run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The units that are allowed.
    pub limit: u64,
    /// Those that are in use.
    pub used: u64,
    /// In which time. `None`: at once.
    pub window: Option<Duration>,
}

/// What one key looks like.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct KeySnapshot {
    /// Its text; of a long one, the beginning.
    pub key: String,
    /// What it may be called where its text must not be shown, because it may be a secret: 16 hexadecimal digits, the same as long as
    /// the store exists.
    pub id: String,
    /// A policy of its own.
    pub overriding: Option<Policy>,
    /// As of [`LimitSnapshot`].
    pub usage: Vec<Usage>,
    /// As of [`LimitSnapshot`].
    pub retry_after: Duration,
    /// As of [`LimitSnapshot`].
    pub paused_for: Duration,
    /// What was counted.
    pub stats: Stats,
}

/// A process that uses the store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ProcessSnapshot {
    /// Its number in the system, as it sees it itself: in a container, that of the container.
    pub pid: u32,
    /// What it runs.
    pub program: String,
    /// How long it has used the store.
    pub since: Duration,
}

/// What a server has granted to this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GrantSnapshot {
    /// The units that it holds and has not used.
    pub held: u64,
    /// How often it asked the server.
    pub requests: u64,
}

/// What was counted of a limit in one minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Minute {
    /// When it began.
    pub at: SystemTime,
    /// The units that were admitted.
    pub units: u64,
    /// The attempts that were denied.
    pub denied: u64,
    /// The starts that had to wait.
    pub waited: u64,
    /// The most units in use at a time, of one key, as seen once a second.
    pub peak: u64,
}

/// Takes [`Snapshot`]s of a store. It decides nothing, and no decision costs more because somebody looks.
///
/// What a look costs is bounded, however many keys there are: it looks at the keys that were used lately, and at some thousand
/// others, each time at the next ones.
pub struct Observer {
    store: Store,
    keys: usize,
    limiters: HashMap<String, Arc<dyn Limiter>>,
}

impl Observer {
    /// Looks at a store, and names so many keys of each limit at most.
    pub fn new(store: &Store, keys: usize) -> Observer {
        Observer { store: store.clone(), keys, limiters: HashMap::new() }
    }

    /// Takes a snapshot.
    ///
    /// # Errors
    /// As for [`Store::open`].
    pub fn look(&mut self) -> Result<Snapshot> {
        let _ = self.keys;
        let policies = self.declared()?;
        self.limiters.retain(|name, _| policies.iter().any(|(known, _)| known == name));
        let mut limits = Vec::new();
        for (name, declared) in policies {
            let limiter = match self.limiters.get(&name) {
                Some(limiter) => limiter.clone(),
                None => self.limiters.entry(name.clone()).or_insert(self.store.find(&name)?).clone(),
            };
            let seen = limiter.peek("", 1)?;
            let window =
                (!declared.current().is_concurrency()).then(|| crate::time::from_ticks(declared.current().longest()));
            limits.push(LimitSnapshot {
                kind: declared.current().kind(),
                name,
                declared: declared.declared,
                overriding: declared.overriding,
                usage: vec![Usage { limit: seen.limit, used: seen.limit.saturating_sub(seen.remaining), window }],
                fullest: None,
                peak: 0,
                retry_after: seen.retry_after,
                paused_for: Duration::ZERO,
                waiting: 0,
                waits: [0; WAIT_BOUNDS.len() + 1],
                places_lost: 0,
                stats: limiter.stats("")?,
                keys: 0,
                hot_keys: Vec::new(),
                grants: None,
            });
        }
        Ok(Snapshot {
            at: SystemTime::now(),
            url: self.store.url().to_owned(),
            limits,
            processes: Vec::new(),
            ledger_lag: Duration::ZERO,
            lane_bytes: 0,
            failures: self.store.failures(),
        })
    }

    fn declared(&self) -> Result<Vec<(String, Declared)>> {
        let session = self.store.session();
        if session.server().is_some() {
            // This process knows of what it has asked about.
            for name in self.store.names()? {
                self.store.find(&name)?;
            }
        }
        session.with_lock(|_| session.all_declared())
    }

    /// What was counted of a limit in each minute since then in which anything was, oldest first: at most 31 days back, and
    /// nothing where there is no database. The minute that goes on may lack what was counted last.
    ///
    /// # Errors
    /// As for [`Store::open`].
    pub fn history(&mut self, _name: &str, _since: SystemTime) -> Result<Vec<Minute>> {
        Ok(Vec::new())
    }
}
