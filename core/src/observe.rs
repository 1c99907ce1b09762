//! Looking at a store without taking part in it: for command lines, metrics and pages.

use crate::error::Result;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::state::{Store, Survey};
use crate::stats::Stats;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
    /// Are the counts those of all processes that share the store? On a server they are those of this process.
    pub counts_all_processes: bool,
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
    /// About how many keys are known, the empty one left out.
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
/// others, each time at the next ones. A server is asked once for each limit.
pub struct Observer {
    store: Store,
    keys: usize,
    survey: Survey,
    /// On a server, which alone knows what is used.
    limiters: BTreeMap<String, Arc<dyn Limiter>>,
}

impl Observer {
    /// Looks at a store, and shows so many keys of each limit at most.
    pub fn new(store: &Store, keys: usize) -> Observer {
        Observer { store: store.clone(), keys, survey: Survey::default(), limiters: BTreeMap::new() }
    }

    /// Takes a snapshot.
    ///
    /// # Errors
    /// As for [`Store::open`].
    pub fn look(&mut self) -> Result<Snapshot> {
        let session = self.store.session().clone();
        let is_served = session.server().is_some();
        if is_served {
            self.find_on_server()?;
        }
        let mut seen = session.report("", session.survey(&mut self.survey, self.keys))?;
        if is_served {
            for limit in &mut seen.limits {
                if let Some(limiter) = self.limiters.get(&limit.name) {
                    let decision = limiter.peek("", 1)?;
                    let used = decision.limit.saturating_sub(decision.remaining);
                    let window = limit.usage.first().and_then(|usage| usage.window);
                    limit.usage = vec![Usage { limit: decision.limit, used, window }];
                    limit.retry_after = decision.retry_after;
                }
            }
        }
        Ok(seen)
    }

    /// Finds the limits that the server has and this process has not used yet.
    fn find_on_server(&mut self) -> Result<()> {
        let session = self.store.session();
        let mut known = BTreeMap::new();
        for name in session.all_names()? {
            let parts = session.with_names(&[&name], |_| Ok(session.family(&name)?.parts(&name)))?;
            for (part, declared) in parts {
                let found = match self.limiters.remove(&part) {
                    Some(limiter) => limiter,
                    None => {
                        let limiter = self.store.attach(&part, declared.declared)?;
                        limiter.open()?;
                        limiter
                    }
                };
                known.insert(part, found);
            }
        }
        self.limiters = known;
        Ok(())
    }

    /// What was counted of a limit in each minute from then on in which anything was, oldest first: at most 31 days back. Where there is
    /// no database, only this minute and the one before, if anything was counted in them. The minute that goes on may lack what other
    /// processes counted in the last second.
    ///
    /// # Errors
    /// As for [`Store::open`].
    pub fn history(&self, name: &str, since: SystemTime) -> Result<Vec<Minute>> {
        let minute = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 60;
        let now = minute(SystemTime::now());
        let from = minute(since).max(now.saturating_sub(31 * 24 * 60));
        let session = self.store.session();
        let all = session.report(name, session.minutes(name, from, now))?;
        let shown = |found: crate::state::Minute| Minute {
            at: UNIX_EPOCH + Duration::from_secs(60 * found.at),
            units: found.units,
            denied: found.denied,
            waited: found.waited,
            peak: found.peak,
        };
        Ok(all.into_iter().map(shown).collect())
    }
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Observer of {}", self.store.url())
    }
}
