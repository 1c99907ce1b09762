//! Stores: where limits live, and how a limiter gets hold of its limit there.

mod arena;
mod keys;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod lane;
mod layout;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod ledger;
mod limit;
mod os;
mod rewrite;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod sqlite;
mod table;
mod url;

pub(crate) use limit::{Key, Limit};
pub(crate) use os::{random, sleep_on, wake_all};
pub(crate) use table::{Blocked, Hash, Home, Table};

#[cfg(any(target_os = "linux", target_os = "android"))]
use lane::NOTICED_BY;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const NOTICED_BY: u64 = 0;

use crate::error::{Error, Result};
use crate::fork;
use crate::policy::Policy;
use crate::time::{Clock, ManualClock};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use url::Address;

/// How a store behaves.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoreOptions {
    /// How long a call may wait for something rare (opening, a new limit, growing) before it fails. Default 5 s.
    pub timeout: Duration,
    /// The mode of the files that are made, whatever the umask. Default `0o600`; `0o660` for services of several users.
    pub mode: u32,
    /// A clock for tests, in place of the system's.
    pub clock: Option<ManualClock>,
    /// What a decision answers when the store fails. Default [`OnError::Raise`].
    pub on_error: OnError,
    /// How much of what was admitted a power cut may make this machine forget. Default [`Durability::Budget`].
    pub durability: Durability,
}

/// What a decision answers when the store fails: gone, full, read-only, or busy for longer than its timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnError {
    /// The error.
    #[default]
    Raise,
    /// A denial.
    Deny,
    /// An admission that nothing counts: what is called is worth more than the limit.
    Admit,
}

/// How much of what was admitted a power cut may make this machine forget. What is forgotten counts as spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Durability {
    /// At most 5 % of a limit, and at least one unit, are not in the database yet at any time.
    #[default]
    Budget,
    /// Every start is in the database before the call that admits it returns.
    Commit,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            timeout: Duration::from_secs(5),
            mode: 0o600,
            clock: None,
            on_error: OnError::Raise,
            durability: Durability::Budget,
        }
    }
}

/// Where limits live: `memory:` (this process) or `sqlite:PATH` (this machine). Clones are the same store.
///
/// Making one opens nothing: the first decision does, or [`Store::open`]. So a store can be made at import, before a
/// program forks its workers.
#[derive(Debug, Clone)]
pub struct Store(Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    url: String,
    address: Address,
    options: StoreOptions,
    home: OnceLock<Home>,
    rare: Mutex<Rare>,
}

/// What only the holder of the structure lock looks at.
#[derive(Debug, Default)]
struct Rare {
    /// The fork generation that `member` and the running starts of a memory store belong to.
    generation: u64,
    #[cfg(any(target_os = "linux", target_os = "android"))]
    member: Option<lane::Member>,
    /// The policies of a memory store.
    declared: BTreeMap<String, Policy>,
}

/// The right to do something structural in one store.
pub(crate) struct Locked {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    lane: Option<lane::LockedLane>,
    // Last: the lane's lock is given back before another thread of this process can ask for it.
    _process: fork::Structure,
}

impl Locked {
    fn file(&self) -> Option<&std::fs::File> {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        return self.lane.as_ref().map(|lane| &lane.file);
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        None
    }
}

impl Store {
    /// A store with the default options.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`] unless `url` is `memory:` or `sqlite:PATH`.
    pub fn new(url: &str) -> Result<Store> {
        Self::with_options(url, StoreOptions::default())
    }

    /// A store.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`] as for [`Store::new`]; [`Error::InvalidArgument`] for a mode beyond `0o777` or one that
    /// keeps the owner out.
    pub fn with_options(url: &str, options: StoreOptions) -> Result<Store> {
        if options.mode > 0o777 || options.mode & 0o600 != 0o600 {
            let given = format!("0o{:o}", options.mode);
            return Err(Error::invalid("mode", given, "0o600 to 0o777, with reading and writing for the owner"));
        }
        let address = url::parse(url)?;
        let inner = Inner { url: url.to_owned(), address, options, home: OnceLock::new(), rare: Mutex::default() };
        Ok(Store(Arc::new(inner)))
    }

    /// Opens the store now, its files made if there are none, instead of at the first decision.
    ///
    /// # Errors
    /// Whatever is wrong with the place: see [`Error`].
    pub fn open(&self) -> Result<()> {
        self.0.with_lock(|_| Ok(()))
    }

    /// The store's address, as it was given.
    pub fn url(&self) -> &str {
        &self.0.url
    }

    /// The names that are declared in this store, in order.
    ///
    /// # Errors
    /// As for [`Store::open`].
    pub fn names(&self) -> Result<Vec<String>> {
        self.0.with_lock(|_| self.0.names())
    }

    /// Puts an operator's policy above what programs declare under this name, at once and until it is lifted.
    ///
    /// # Errors
    /// [`Error::UnknownLimit`] for a name that is not declared, [`Error::KindMismatch`] for another kind of policy, or as
    /// for [`Store::open`].
    pub fn override_limit(&self, _name: &str, _policy: Policy) -> Result<()> {
        Err(Error::Unsupported { reason: "not yet".into() })
    }

    /// Takes the operator's policy away: what was declared last holds again. A no-op where there is none.
    ///
    /// # Errors
    /// [`Error::UnknownLimit`] for a name that is not declared, or as for [`Store::open`].
    pub fn lift(&self, _name: &str) -> Result<()> {
        Err(Error::Unsupported { reason: "not yet".into() })
    }

    /// Writes to the database now what it does not have yet of what was admitted. A no-op for `memory:`.
    ///
    /// # Errors
    /// As for [`Store::open`].
    pub fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// How often the store failed a decision since this process made it, whatever was answered instead.
    pub fn failures(&self) -> u64 {
        0
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }
}

impl Inner {
    /// The opened store's cells.
    #[inline(always)]
    pub fn home(&self) -> &Home {
        self.home.get().expect("a limit is used only after its store was opened")
    }

    fn rare(&self) -> std::sync::MutexGuard<'_, Rare> {
        // Only ever taken under the structure lock, so never while a fork happens.
        self.rare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something rare under the structure lock, in this process and, for a lane, on this machine. Opens the store
    /// first if it is not open, and makes a forked child a user of its own.
    ///
    /// While somebody else is busy nothing is held here, so that neither other stores nor a fork have to wait too.
    pub fn with_lock<R>(&self, f: impl Fn(&Locked) -> Result<R>) -> Result<R> {
        let start = Instant::now();
        let mut nap = Duration::from_micros(20);
        loop {
            let left = self.options.timeout.saturating_sub(start.elapsed());
            let answer = match fork::structure(left) {
                None => Ok(None),
                Some(process) => self.try_lock(process).and_then(|locked| locked.map(|locked| f(&locked)).transpose()),
            };
            match answer {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) | Err(Error::StoreTimeout { .. }) if !left.is_zero() => {
                    std::thread::sleep(nap.min(left));
                    nap = (nap * 2).min(Duration::from_millis(2));
                }
                Ok(None) | Err(Error::StoreTimeout { .. }) => {
                    let waited_ms = start.elapsed().as_millis() as u64;
                    return Err(Error::StoreTimeout { doing: format!("using {}", self.url), waited_ms });
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn try_lock(&self, process: fork::Structure) -> Result<Option<Locked>> {
        match &self.address {
            Address::Memory => {
                if self.home.get().is_none() {
                    let home = self.memory_home()?;
                    let _ = self.home.set(home);
                } else if self.rare().generation != fork::generation() {
                    self.home().disown();
                }
                self.rare().generation = fork::generation();
                Ok(Some(Locked {
                    #[cfg(any(target_os = "linux", target_os = "android"))]
                    lane: None,
                    _process: process,
                }))
            }
            Address::Sqlite(path) => self.try_lock_lane(path, process),
        }
    }

    fn memory_home(&self) -> Result<Home> {
        let manual = self.options.clock.clone();
        let arena = arena::Arena::on_heap()?;
        let home = Home {
            arena,
            clock: Clock::new(Clock::fresh_base(manual.as_ref()), manual),
            instance: 0,
            #[cfg(any(target_os = "linux", target_os = "android"))]
            watch: None,
        };
        home.start(random().map_err(|e| Error::store("asking the system for random numbers", e))?);
        Ok(home)
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn try_lock_lane(&self, path: &Path, process: fork::Structure) -> Result<Option<Locked>> {
        let StoreOptions { mode, ref clock, .. } = self.options;
        let lane_path = sqlite::beside(path, "-lane");
        if self.home.get().is_none() {
            let dir = path.parent().unwrap_or(Path::new("/"));
            let at = |e| Error::store(format!("opening {}", dir.display()), e);
            if let Some(kind) = os::shared_file_system(dir).map_err(at)? {
                return Err(Error::UnsupportedFileSystem { path: dir.to_owned(), kind });
            }
            sqlite::check(path)?;
        }
        let Some(lane) = lane::LockedLane::try_open(&lane_path, mode)? else { return Ok(None) };
        match self.home.get() {
            None => {
                let was_there = path.exists();
                let opened = sqlite::Database::open(path, mode)
                    .and_then(|(_, identity)| Ok((lane.attach(identity.id, clock.as_ref())?, lane.join()?)));
                match opened {
                    Ok((home, member)) => {
                        let _ = self.home.set(home);
                        *self.rare() = Rare { generation: fork::generation(), member: Some(member), ..Rare::default() };
                    }
                    Err(e) => {
                        // Nothing half made stays behind.
                        lane.undo();
                        if !was_there {
                            let _ = std::fs::remove_file(path);
                        }
                        return Err(e);
                    }
                }
            }
            Some(home) if !lane.is_that_of(home) => {
                lane.undo();
                return Err(lane::lost(&lane_path));
            }
            Some(_) if self.rare().generation != fork::generation() => {
                let member = lane.join()?;
                let mut rare = self.rare();
                rare.member = Some(member);
                rare.generation = fork::generation();
            }
            Some(_) => {}
        }
        Ok(Some(Locked { lane: Some(lane), _process: process }))
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn try_lock_lane(&self, _: &Path, _: fork::Structure) -> Result<Option<Locked>> {
        Err(Error::Unsupported { reason: "sqlite: stores work on Linux so far; use memory: here".into() })
    }

    fn names(&self) -> Result<Vec<String>> {
        match &self.address {
            Address::Memory => Ok(self.rare().declared.keys().cloned().collect()),
            Address::Sqlite(path) => self.with_database(path, |database| database.names()),
        }
    }

    /// The policy that the store has under a name.
    fn policy(&self, name: &str) -> Result<Option<Policy>> {
        match &self.address {
            Address::Memory => Ok(self.rare().declared.get(name).copied()),
            Address::Sqlite(path) => {
                self.with_database(path, |database| Ok(database.policy(name)?.map(|found| found.declared)))
            }
        }
    }

    fn declare(&self, name: &str, policy: Policy) -> Result<()> {
        match &self.address {
            Address::Memory => {
                self.rare().declared.insert(name.to_owned(), policy);
                Ok(())
            }
            Address::Sqlite(path) => self.with_database(path, |database| database.declare(name, policy)),
        }
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn with_database<R>(&self, path: &Path, call: impl FnOnce(&sqlite::Database) -> Result<R>) -> Result<R> {
        let (database, _) = sqlite::Database::open(path, self.options.mode)?;
        call(&database)
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn with_database<R>(&self, _: &Path, _: impl FnOnce(&()) -> Result<R>) -> Result<R> {
        Err(Error::Unsupported { reason: "sqlite: stores work on Linux so far; use memory: here".into() })
    }
}
