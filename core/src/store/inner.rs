//! An opened store: its cells, and the lock under which everything rare is done.

use super::counts::Book;
use super::declare::Declared;
use super::table::Home;
use super::url::Address;
use super::{OnError, StoreOptions, arena, random};
#[cfg(any(target_os = "linux", target_os = "android"))]
use super::{lane, os, sqlite};
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::fork;
use crate::policy::Policy;
use crate::time::Clock;
use std::collections::BTreeMap;
use std::path::Path;
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A store, shared by its limiters.
#[derive(Debug)]
pub(crate) struct Inner {
    url: String,
    pub(super) address: Address,
    pub(super) options: StoreOptions,
    current: AtomicPtr<Opened>,
    rare: Mutex<Rare>,
    failures: AtomicU64,
    /// What this process counted.
    pub(super) book: Book,
    /// This process's number among those that have used the lane; 0 on the heap.
    member: AtomicU64,
    /// Until when, by the monotonic clock, nobody tries to write the ledger again.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) rests_until: AtomicU64,
    /// What callers wait for in the ledger: limits and the hashes of keys.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) wanted: fork::PerProcess<Vec<super::checkpoint::Want>>,
    /// What was refused, and is to be taken back.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) refused: fork::PerProcess<Vec<super::limit::Refused>>,
}

/// A home, and the one that it replaced: somebody may still be in it, so homes live as long as their store.
#[derive(Debug)]
struct Opened {
    home: Home,
    /// Counts the homes that this process had, from 1.
    number: u64,
    before: *mut Opened,
}

/// What only the holder of the structure lock looks at.
#[derive(Debug, Default)]
pub(super) struct Rare {
    /// The fork generation that `member` and the running starts of a memory store belong to.
    generation: u64,
    #[cfg(any(target_os = "linux", target_os = "android"))]
    member: Option<lane::Member>,
    /// What a memory store has declared: limits, and which of them make a composite.
    pub(super) limits: BTreeMap<String, Declared>,
    pub(super) composites: BTreeMap<String, Vec<Policy>>,
}

/// The right to do something structural in one store.
pub(crate) struct Locked {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    lane: Option<lane::LockedLane>,
    // Last: the lane's lock is given back before another thread of this process can ask for it.
    _process: fork::Structure,
}

impl Locked {
    pub fn file(&self) -> Option<&std::fs::File> {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        return self.lane.as_ref().map(|lane| &lane.file);
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        None
    }
}

// SAFETY: what the pointer leads to never changes once it is published, and is made of parts that may be shared.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Inner {
    pub fn new(url: &str, address: Address, options: StoreOptions) -> Inner {
        Inner {
            url: url.to_owned(),
            address,
            options,
            current: AtomicPtr::new(ptr::null_mut()),
            rare: Mutex::default(),
            failures: AtomicU64::new(0),
            book: Book::new(),
            member: AtomicU64::new(0),
            #[cfg(any(target_os = "linux", target_os = "android"))]
            rests_until: AtomicU64::new(0),
            #[cfg(any(target_os = "linux", target_os = "android"))]
            wanted: fork::PerProcess::new(),
            #[cfg(any(target_os = "linux", target_os = "android"))]
            refused: fork::PerProcess::new(),
        }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    fn opened(&self) -> Option<&Opened> {
        // SAFETY: null, or published by `push` and freed only by `drop`.
        unsafe { self.current.load(Acquire).as_ref() }
    }

    /// The opened store's cells.
    #[inline(always)]
    pub fn home(&self) -> &Home {
        &self.opened().expect("a limit is used only after its store was opened").home
    }

    /// What a limiter's hold on its limit is good for: one process, and one home.
    #[inline(always)]
    pub fn epoch(&self) -> u64 {
        fork::generation() << 32 | self.home_number()
    }

    /// Which of this process's homes of the store the current one is.
    #[inline(always)]
    pub(super) fn home_number(&self) -> u64 {
        self.opened().map_or(0, |opened| opened.number)
    }

    fn push(&self, home: Home) {
        let before = self.current.load(Acquire);
        let number = self.opened().map_or(0, |opened| opened.number) + 1;
        self.current.store(Box::into_raw(Box::new(Opened { home, number, before })), Release);
    }

    pub(super) fn rare(&self) -> MutexGuard<'_, Rare> {
        // Only ever taken under the structure lock, so never while a fork happens.
        self.rare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be answered to this failure. Counted, whatever it is.
    pub fn on_error(&self, error: &Error) -> OnError {
        if !error.is_of_the_store() {
            return OnError::Raise;
        }
        self.failures.fetch_add(1, Relaxed);
        self.options.on_error
    }

    /// Who this process is, for leases: see [`crate::algorithm::leases`].
    pub fn member(&self) -> u64 {
        self.member.load(Acquire)
    }

    pub fn failures(&self) -> u64 {
        self.failures.load(Relaxed)
    }

    /// Does something rare under the structure lock, in this process and, for a lane, on this machine. Opens the store
    /// first if it is not open, and makes a forked child a user of its own.
    ///
    /// While somebody else is busy nothing is held here, so that neither other stores nor a fork have to wait too.
    pub fn with_lock<R>(&self, f: impl Fn(&Locked) -> Result<R>) -> Result<R> {
        self.with_lock_for(self.options.timeout, f)
    }

    /// The same, but waiting at most so long for others.
    pub fn with_lock_for<R>(&self, timeout: Duration, f: impl Fn(&Locked) -> Result<R>) -> Result<R> {
        self.with_lock_unless(timeout, || None, f)
    }

    /// The same, unless there is an answer without the lock: others may have done while this caller waited what it wanted.
    pub fn with_lock_unless<R>(
        &self,
        timeout: Duration,
        answer: impl Fn() -> Option<R>,
        f: impl Fn(&Locked) -> Result<R>,
    ) -> Result<R> {
        let start = Instant::now();
        let mut nap = Duration::from_micros(20);
        loop {
            if let Some(answer) = answer() {
                return Ok(answer);
            }
            let left = timeout.saturating_sub(start.elapsed());
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
                if self.opened().is_none() {
                    self.push(self.memory_home()?);
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
        let lane_path = sqlite::beside(path, "-lane");
        if self.opened().is_none() {
            let dir = path.parent().unwrap_or(Path::new("/"));
            let at = |e| Error::store(format!("opening {}", dir.display()), e);
            if let Some(kind) = os::shared_file_system(dir).map_err(at)? {
                return Err(Error::UnsupportedFileSystem { path: dir.to_owned(), kind });
            }
            sqlite::check(path)?;
        }
        let Some(lane) = lane::LockedLane::try_open(&lane_path, self.options.mode)? else { return Ok(None) };
        match self.opened() {
            // It is new to this process, or was deleted or replaced since: two lanes would each grant the whole limit.
            opened if opened.is_none_or(|opened| !lane.is_that_of(&opened.home)) => {
                let was_there = path.exists();
                match self.open_lane(path, &lane) {
                    Ok((home, member)) => {
                        self.push(home);
                        let mut rare = self.rare();
                        self.member.store(member.number, Release);
                        rare.member = Some(member);
                        rare.generation = fork::generation();
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
            _ if self.rare().generation != fork::generation() => {
                let member = lane.join(self.home())?;
                let mut rare = self.rare();
                self.member.store(member.number, Release);
                rare.member = Some(member);
                rare.generation = fork::generation();
            }
            _ => {}
        }
        self.take_back_refused(Some(&lane.file));
        Ok(Some(Locked { lane: Some(lane), _process: process }))
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn open_lane(&self, path: &Path, lane: &lane::LockedLane) -> Result<(Home, lane::Member)> {
        let (mut database, identity) = sqlite::Database::open(path, self.options.mode)?;
        let manual = self.options.clock.as_ref();
        let (home, made) = lane.attach(identity.id, identity.secret, manual)?;
        if let Some(made) = made {
            super::checkpoint::recover(&home, &mut database, &identity, made, &lane.file)?;
            lane.finish(&home);
        }
        let member = lane.join(&home)?;
        Ok((home, member))
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn try_lock_lane(&self, _: &Path, _: fork::Structure) -> Result<Option<Locked>> {
        Err(Error::Unsupported { reason: "sqlite: stores work on Linux so far; use memory: here".into() })
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    /// Only for the holder of the structure lock.
    pub(super) fn with_database<R>(
        &self,
        path: &Path,
        call: impl FnOnce(&mut sqlite::Database) -> Result<R>,
    ) -> Result<R> {
        call(&mut sqlite::Database::reopen(path, lane::store_id(self.home()))?)
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(super) fn with_database<R>(&self, _: &Path, _: impl FnOnce(&mut Nowhere) -> Result<R>) -> Result<R> {
        Err(Error::Unsupported { reason: "sqlite: stores work on Linux so far; use memory: here".into() })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.tell_last_counts();
        let mut at = *self.current.get_mut();
        while !at.is_null() {
            // SAFETY: made by `push`; nobody can be using it any more.
            let opened = unsafe { Box::from_raw(at) };
            at = opened.before;
        }
    }
}

/// Without a lane there is no ledger.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl Inner {
    pub fn flush(&self) -> Result<()> {
        Ok(())
    }

    pub fn flush_if_free(&self) {}

    pub fn refuse(&self, _: super::limit::Refused) {}

    pub fn take_back_if_free(&self) {}

    pub fn wait_for_ledger(
        &self,
        _: u64,
        _: &super::Key,
        _: &crate::algorithm::log::Taken,
        _: u64,
        _: u64,
    ) -> Result<()> {
        Ok(())
    }

    pub(super) fn forget_logged(&self, _: &str, _: Option<super::Hash>) -> Result<()> {
        Ok(())
    }

    pub(super) fn prepare_ledger(&self, _: &str, _: Policy) -> Result<()> {
        Ok(())
    }
}

/// A database where there are none.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
struct Nowhere;

#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl Nowhere {
    fn names(&self) -> Result<Vec<String>> {
        Ok(vec![])
    }

    fn composites(&self) -> Result<Vec<(String, Vec<Policy>)>> {
        Ok(vec![])
    }

    fn policy(&self, _: &str) -> Result<Option<Declared>> {
        Ok(None)
    }

    fn family(&self, _: &str) -> Result<super::declare::Family> {
        Ok(Default::default())
    }

    fn note(&mut self, _: &[super::declare::Change]) -> Result<()> {
        Ok(())
    }

    fn set_overrides<'a>(&mut self, _: impl Iterator<Item = (&'a str, Option<Policy>)>) -> Result<()> {
        Ok(())
    }

    fn forget(&self, _: &str, _: Option<[u64; 2]>) -> Result<()> {
        Ok(())
    }
}
