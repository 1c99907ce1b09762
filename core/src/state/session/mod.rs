//! An open store: its cells, and the lock for all rare work.
//!
//! The wing has what a session consists of: its options, what its limiters have made, what it wants of the writer, how
//! it counts, how it attaches a lane, and how its use ends. All above may call it. With the lock it calls two of their methods first:
//! `catch_up` of `names`, and `take_back_refused` of `writer`.

pub(super) mod attach;
pub(super) mod closing;
pub(super) mod counting;
pub(super) mod ends;
pub(super) mod made;
pub(super) mod options;
pub(super) mod places;
pub(super) mod record;
pub(super) mod told;
pub(super) mod wanted;

use crate::address::{self, Address, without_password};
use crate::atomic::*;
use crate::damage::or_damaged;
use crate::error::{Error, Result};
use crate::hash::SERVER_SECRET;
use crate::hooks::{Event, Happening, Hooks};
use crate::os::{self, random};
use crate::policy::{NamedPolicy, Policy};
use crate::server::crew::{Crew, WAITING};
use crate::server::denials::Denials;
use crate::server::{self, Engine, RowChange};
use crate::state::cells::home::{Home, NEVER};
use crate::state::cells::locked::Locked;
use crate::state::counts::Book;
use crate::state::files::arena::{self, MAX_BYTES, MIN_BYTES};
use crate::state::files::grant_lane::GrantLane;
use crate::state::files::{self, lane, presence};
use crate::state::ledger::declared::Declared;
use crate::state::ledger::{database, recovery};
use crate::time::{Clock, Tick};
use crate::waiting::MayWait;
use crate::{fault, fork, memory};
use ends::Ends;
use made::Undeclared;
use options::{Durability, OnError, StoreOptions};
use places::Places;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use told::Told;
use wanted::{RefusedStart, Writer};

/// How long rare work of many steps leaves the lock free between two steps. Waiters check the lock more often than
/// that, so they get their turn. Without the pause, the releasing thread would have the lock again before any of them
/// looked.
pub(super) const LET_OTHERS: Duration = fork::MAX_NAP.saturating_add(Duration::from_micros(500));

/// A store, shared by its limiters.
#[derive(Debug)]
pub(crate) struct Session {
    url: String,
    pub(super) address: Address,
    pub(crate) options: StoreOptions,
    /// The path of the database at the opening of the store, without symbolic links.
    place: OnceLock<PathBuf>,
    current: AtomicPtr<Opened>,
    /// Held by the thread of this process that does rare work: see [`fork::structure`].
    pub(super) structure: Mutex<()>,
    rare: Mutex<Rare>,
    /// The fork generation of `Rare::user` and of a memory store's running starts; 0: the store was never open.
    pub(super) used_by: AtomicU64,
    pub(super) closing: closing::Closing,
    failures: AtomicU64,
    pub hooks: Hooks,
    /// The threads that wait for it where callers must not, if it is on no server, and a reference for them.
    pub chores: Arc<Crew>,
    pub(super) me: OnceLock<Weak<Session>>,
    /// When the lane tries again to follow the database, by the monotonic clock, after it could not.
    pub(super) follows_from: AtomicU64,
    /// The counts of this process.
    pub(super) book: Book,
    /// The number of this process among those that have used the lane; 0 on the heap.
    member: AtomicU64,
    /// The server that decides instead of this process's cells, and its time at the first request.
    pub(super) server: Option<Arc<dyn Engine>>,
    pub(super) server_time: OnceLock<(Instant, Tick)>,
    /// The file in which processes of this machine share the server's grants.
    grant_lane: Option<PathBuf>,
    /// Where the server keeps the limits that this process uses; and by these places when they were created, by its first and its last answer.
    pub(super) places: Arc<Places>,
    pub(super) made: fork::PerProcess<HashMap<String, [Tick; 2]>>,
    /// What servers said about their own limits, and the thread that puts it into the store.
    pub(super) told: fork::PerProcess<HashMap<Arc<str>, Told>>,
    pub(super) learner: Arc<Crew>,
    /// What it denied.
    pub(super) denials: Denials,
    /// Where the lines of this process hear of ends.
    pub(crate) ends: Ends,
    /// The owner of this process's leases there.
    pub(super) owner: fork::PerProcess<Option<u64>>,
    /// This process's writer of the ledger.
    pub(super) writer: Writer,
    /// What limiters of this process will declare.
    pub(super) undeclared: Arc<Undeclared>,
    /// Refused starts that must be taken back.
    pub(super) refused: fork::PerProcess<Vec<RefusedStart>>,
    /// Whether there are any. (In a forked child this may be wrongly set.)
    pub(super) has_refused: AtomicBool,
}

/// A home, and the one that it replaced. Another thread may still be using that, so homes live as long as their store.
#[derive(Debug)]
struct Opened {
    home: Home,
    /// The number of this home in the process, from 1.
    number: u64,
    before: *mut Opened,
}

/// The changes to send to a server, by row. An empty list removes the declarations of the row.
pub(super) type Outbox = Vec<(String, Vec<RowChange>)>;

/// State that only the holder of the structure lock uses.
#[derive(Debug, Default)]
pub(super) struct Rare {
    user: Option<User>,
    /// The declarations of a memory store: limits, and which of them form a composite.
    pub(super) limits: BTreeMap<String, Declared>,
    pub(super) composites: BTreeMap<String, Vec<NamedPolicy>>,
    /// The policies of single keys, by limit and key.
    pub(super) keys: BTreeMap<(String, String), Policy>,
    /// Whether changes must be sent to a server, the changes, and the places of limits there.
    pub(super) has_outbox: bool,
    pub(super) places: Arc<Places>,
    pub(super) outbox: Outbox,
    /// The connection to the database, while the structure lock is held.
    database: Option<database::Database>,
}

/// Shows other processes that this one uses the store, until it is dropped.
#[derive(Debug)]
struct User {
    member: attach::Member,
    _presence: lane::KeptLock,
}

/// Held by a thread during rare work, which no other thread of this process does at the same time, and for a lane no
/// other process.
struct Guard<'s> {
    _database: Connection<'s>,
    lane: Option<lane::LockedLane>,
    // Last: the lane's lock is returned before another thread of this process can ask for it.
    _process: fork::Structure<'s>,
}

/// Closes the connection that was opened in between.
struct Connection<'s>(&'s Session);

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.0.rare().database = None;
    }
}

impl Guard<'_> {
    fn file(&self) -> Option<&File> {
        self.lane.as_ref().map(|lane| &lane.file)
    }
}

// SAFETY: the pointee never changes once it is published, and its parts may be shared.
unsafe impl Send for Session {}
// SAFETY: as above.
unsafe impl Sync for Session {}

impl Session {
    pub fn new(url: &str, address: Address, mut options: StoreOptions) -> Result<Session> {
        let mut grant_lane = None;
        let server = match &address {
            Address::Server(url) => {
                let (url, lane) = address::take_parameter(url, "lane");
                let (url, grants) = address::take_parameter(&url, "grants");
                grant_lane = lane.map(|path| address::lane(&path)).transpose()?;
                match grants.as_deref() {
                    None | Some("auto") => {}
                    Some("never") => options.grants = false,
                    Some(other) => {
                        return Err(Error::invalid("grants", format_args!("\"{other}\""), "\"auto\" or \"never\""));
                    }
                }
                Some(server::at(&url)?)
            }
            _ => None,
        };
        let places = Arc::<Places>::default();
        let rare = Rare { has_outbox: server.is_some(), places: places.clone(), ..Rare::default() };
        Ok(Session {
            url: if let Address::Server(url) = &address { without_password(url) } else { url.to_owned() },
            address,
            options,
            place: OnceLock::new(),
            current: AtomicPtr::new(ptr::null_mut()),
            structure: Mutex::default(),
            rare: rare.into(),
            used_by: AtomicU64::new(0),
            closing: closing::Closing::default(),
            server,
            grant_lane,
            server_time: OnceLock::new(),
            places,
            made: fork::PerProcess::new(),
            told: fork::PerProcess::new(),
            learner: Crew::new(1),
            denials: Denials::default(),
            ends: Ends::new(),
            owner: fork::PerProcess::new(),
            failures: AtomicU64::new(0),
            hooks: Hooks::default(),
            chores: Crew::new(WAITING),
            me: OnceLock::new(),
            follows_from: AtomicU64::new(0),
            book: Book::new(),
            member: AtomicU64::new(0),
            writer: Writer::default(),
            undeclared: Arc::default(),
            refused: fork::PerProcess::new(),
            has_refused: AtomicBool::new(false),
        })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// The address for other processes.
    pub fn address(&self) -> Result<String> {
        let unsupported = |reason: &str| Err(Error::Unsupported { reason: format!("{} {reason}", self.url) });
        if self.options.clock.is_some() {
            return unsupported("uses a manual clock, which no other process has");
        }
        let text = |path: PathBuf| path.into_os_string().into_string().ok();
        match (&self.address, &self.grant_lane) {
            (Address::Memory, _) => {
                unsupported("is this process's: other processes share a store that has an address, such as sqlite:PATH")
            }
            (Address::Sqlite(_), _) => match self.path().and_then(text) {
                Some(path) => Ok(format!("sqlite:{path}")),
                None => unsupported("has a path that is not UTF-8"),
            },
            (Address::Server(url), None) => Ok(url.clone()),
            (Address::Server(url), Some(lane)) => {
                let (url, _) = address::take_parameter(url, "lane");
                match text(lane.clone()).filter(|lane| !lane.contains('&')) {
                    Some(lane) => Ok(format!("{url}{}lane={lane}", if url.contains('?') { '&' } else { '?' })),
                    None => unsupported("has a lane whose path cannot be written in an address"),
                }
            }
        }
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

    /// The validity of a limiter's handle on its limit: one process and one home. No handle has that of a closed store.
    #[inline(always)]
    pub fn epoch(&self) -> u64 {
        if self.is_closed() { 0 } else { self.epoch_if_open() }
    }

    /// The same, as if the store were not closed.
    #[inline(always)]
    pub fn epoch_if_open(&self) -> u64 {
        fork::generation() << 32 | self.home_number()
    }

    /// The number of the current home among this process's homes of the store.
    #[inline(always)]
    pub(super) fn home_number(&self) -> u64 {
        self.opened().map_or(0, |opened| opened.number)
    }

    fn push(&self, home: Home) {
        let commits = home.is_lane() && self.options.durability == Durability::Commit;
        let home = Home { commits: commits && !fault::planted("commit later"), ..home };
        let before = self.current.load(Acquire);
        let number = self.opened().map_or(0, |opened| opened.number) + 1;
        self.current.store(Box::into_raw(Box::new(Opened { home, number, before })), Release);
        fork::invalidate();
    }

    pub(super) fn rare(&self) -> MutexGuard<'_, Rare> {
        // Taken only under the structure lock, and therefore never during a fork.
        self.rare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The behaviour for this failure. It is counted in any case.
    pub fn on_error(&self, error: &Error) -> OnError {
        if !error.is_store_failure() {
            return OnError::Raise;
        }
        self.count_failure();
        self.options.on_error
    }

    /// The size in bytes up to which this process lets the store grow.
    fn bound(&self) -> u64 {
        self.options.max_size.unwrap_or_else(|| (memory::available() / 4).clamp(MIN_BYTES, MAX_BYTES))
    }

    pub fn count_failure(&self) {
        self.failures.fetch_add(1, Relaxed);
    }

    /// The number of this process, for leases: see [`crate::algorithm::leases`].
    pub fn member(&self) -> u64 {
        self.member.load(Acquire)
    }

    pub fn failures(&self) -> u64 {
        self.failures.load(Relaxed)
    }

    /// Passes on an answer about a name (empty: about the whole store), after notifying the hooks of a failure.
    pub fn report<R>(&self, name: &str, answer: Result<R>) -> Result<R> {
        if let Err(error) = &answer
            && let Some(happening) = Happening::of(error)
        {
            let (limit, key, error) = (name.into(), String::new(), Some(error.clone()));
            self.hooks.call(&Event { happening, limit, key, wanted: 0, wait: Duration::ZERO, error });
        }
        answer
    }

    /// Runs rare work under the structure lock, in this process and, for a lane, on this machine. Opens the store first
    /// if it is not open, and makes a forked child a user of its own.
    ///
    /// While another process is busy, this one holds nothing, so that no fork has to wait.
    pub fn with_lock<R>(&self, f: impl Fn(&Locked) -> Result<R>) -> Result<R> {
        self.with_lock_for(MayWait::patience(self.options.timeout)?, f)
    }

    /// As [`Session::with_lock`], but waits at most `timeout`.
    pub fn with_lock_for<R>(&self, timeout: Duration, f: impl Fn(&Locked) -> Result<R>) -> Result<R> {
        self.with_lock_unless(timeout, || None, f)
    }

    /// As [`Session::with_lock`], unless there is an answer without the lock: another caller may have done the work
    /// while this one waited.
    pub fn with_lock_unless<R>(
        &self,
        timeout: Duration,
        answer: impl Fn() -> Option<R>,
        f: impl Fn(&Locked) -> Result<R>,
    ) -> Result<R> {
        let result = Cell::new(None);
        let is_answered = || answer().map(|answer| result.set(Some(answer))).is_some();
        self.lock_unless(timeout, &is_answered, &|locked| f(locked).map(|answer| result.set(Some(answer))))?;
        Ok(result.take().expect("one of both has set it"))
    }

    /// [`Session::with_lock_unless`] without generic types: there are nearly two hundred uses.
    fn lock_unless(
        &self,
        timeout: Duration,
        is_answered: &dyn Fn() -> bool,
        f: &dyn Fn(&Locked) -> Result<()>,
    ) -> Result<()> {
        let timeout = MayWait::part(timeout)?;
        let start = Instant::now();
        let mut nap = Duration::from_micros(20);
        loop {
            if is_answered() {
                return Ok(());
            }
            self.check_open()?;
            let left = timeout.saturating_sub(start.elapsed());
            let answer = match fork::structure(&self.structure, left) {
                None => Ok(None),
                Some(process) => or_damaged(
                    || self.lane_path(),
                    || {
                        let locked = |guard: Guard| {
                            fault::held();
                            let answer = f(&Locked::new(self.home(), guard.file()));
                            fault::held();
                            answer
                        };
                        self.try_lock(process)?.map(locked).transpose()
                    },
                ),
            };
            match answer {
                Ok(Some(())) => return Ok(()),
                Ok(None) if !left.is_zero() => {
                    std::thread::sleep(nap.min(left));
                    nap = (nap * 2).min(fork::MAX_NAP);
                }
                // It had the lock, and must try again.
                Err(Error::StoreTimeout { .. }) if !left.is_zero() => {
                    fault::point("lock-left");
                    std::thread::sleep(LET_OTHERS.min(left));
                }
                Ok(None) | Err(Error::StoreTimeout { .. }) => {
                    return Err(Error::busy(format!("using {}", self.url)).after(start));
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// The path of the database, which may not exist yet.
    pub(super) fn path(&self) -> Option<PathBuf> {
        match &self.address {
            Address::Memory | Address::Server(_) => None,
            Address::Sqlite(path) => Some(self.place.get().cloned().unwrap_or_else(|| address::same_name(path))),
        }
    }

    /// The path of the lane, which may not exist yet.
    pub(super) fn lane_path(&self) -> Option<PathBuf> {
        Some(database::next_to(&self.path()?, "-lane"))
    }

    fn try_lock<'s>(&'s self, process: fork::Structure<'s>) -> Result<Option<Guard<'s>>> {
        match &self.address {
            Address::Memory | Address::Server(_) => {
                if self.opened().is_none() {
                    // Do not wait here: while the lock is held, all rare work of this store, and forks, wait.
                    let Some(home) = self.memory_home()? else { return Ok(None) };
                    self.push(home);
                } else if self.used_by.load(Acquire) != fork::generation() {
                    Locked::new(self.home(), None).disown();
                    // The thread that completed them belongs to the parent.
                    self.home().changes().see_to(self.member(), false);
                }
                self.used_by.store(fork::generation(), Release);
                let locked = Locked::new(self.home(), None);
                locked.complete();
                locked.take_over();
                Ok(Some(Guard { _database: Connection(self), lane: None, _process: process }))
            }
            Address::Sqlite(path) => self.try_lock_lane(path, process),
        }
    }

    /// `None` if another process is creating the shared file.
    fn memory_home(&self) -> Result<Option<Home>> {
        let manual = self.options.clock.clone();
        // With a test's manual clock, each start is decided at that time.
        let has_grants = self.server.is_some() && self.options.grants && manual.is_none();
        let grant_lane = match self.grant_lane.as_ref().filter(|_| has_grants) {
            Some(path) => match GrantLane::try_open(path, self.options.mode)? {
                None => return Ok(None),
                lane => lane,
            },
            None => None,
        };
        let arena = arena::Arena::on_heap(self.bound())?;
        let home = Home {
            arena,
            clock: Clock::new(Clock::fresh_base(manual.as_ref()), manual),
            instance: 0,
            commits: false,
            next_look: AtomicU64::new(NEVER),
            watch: None,
            is_served: self.server.is_some(),
            has_grants,
            grant_lane,
        };
        if self.server.is_some() {
            if let Some((then, tick)) = self.server_time.get() {
                home.clock.follow(tick + then.elapsed().as_micros() as u64);
            }
            // The server holds the keys of all processes.
            home.start(SERVER_SECRET);
            return Ok(Some(home));
        }
        home.start(random().map_err(|e| Error::store("asking the system for random numbers", e))?);
        Ok(Some(home))
    }

    fn try_lock_lane<'s>(&'s self, path: &Path, process: fork::Structure<'s>) -> Result<Option<Guard<'s>>> {
        let path = &self.place.get().cloned().unwrap_or_else(|| address::same_name(path));
        let lane_path = database::next_to(path, "-lane");
        if self.opened().is_none() {
            let dir = path.parent().unwrap_or(Path::new("/"));
            let at = |e| Error::store(format!("opening {}", dir.display()), e);
            if let Some(kind) = os::shared_file_system(dir).map_err(at)? {
                return Err(Error::UnsupportedFileSystem { path: dir.to_owned(), kind });
            }
            database::check(path)?;
            if !self.options.create && std::fs::metadata(path).map_or(true, |found| found.len() == 0) {
                return Err(Error::store(format!("opening {}", path.display()), "there is no store"));
            }
        }
        let Some(lane) = lane::LockedLane::try_open(&lane_path, self.options.mode)? else { return Ok(None) };
        if self.opened().is_some_and(|opened| opened.home.is_ahead_of(&lane)) {
            lane.remove()?;
            return Ok(None);
        }
        match self.opened() {
            // It is new to this process, or was deleted or replaced since. Two lanes would each grant the whole limit.
            opened if opened.is_none_or(|opened| !opened.home.is_in(&lane)) => {
                let was_there = path.exists();
                match self.open_lane(path, &lane) {
                    Ok(Some((home, user))) => {
                        let _ = self.place.set(path.clone());
                        self.push(home);
                        self.use_as(user);
                    }
                    Ok(None) => {
                        lane.remove()?;
                        return Ok(None);
                    }
                    Err(e) => {
                        // Nothing half-made remains.
                        lane.undo();
                        if !was_there {
                            let _ = std::fs::remove_file(path);
                        }
                        return Err(e);
                    }
                }
            }
            _ if self.used_by.load(Acquire) != fork::generation() => {
                let database = files::open(path).map_err(|e| Error::store(format!("opening {}", path.display()), e))?;
                let (presence, _) = presence::announce(path, &database, &lane_path)?;
                self.use_as(User { member: lane.join(self.home())?, _presence: presence });
            }
            _ => {}
        }
        let guard = Guard { _database: Connection(self), lane: Some(lane), _process: process };
        let locked = Locked::new(self.home(), guard.file());
        locked.complete();
        self.catch_up(&locked);
        locked.take_over();
        self.take_back_refused(&locked);
        Ok(Some(guard))
    }

    fn use_as(&self, user: User) {
        let mut rare = self.rare();
        self.member.store(user.member.number, Release);
        rare.user = Some(user);
        self.used_by.store(fork::generation(), Release);
    }

    /// `None` if the lane is invalid and must be removed.
    fn open_lane(&self, path: &Path, lane: &lane::LockedLane) -> Result<Option<(Home, User)>> {
        let opening = |e| Error::store(format!("opening {}", path.display()), e);
        // Before SQLite opens it: the journal of a user elsewhere is at that place.
        let file = match self.opened() {
            None => files::open_or_create(path, self.options.mode).map_err(opening)?.0,
            // A file that is gone is not recreated.
            Some(_) => files::open(path).map_err(opening)?,
        };
        let (presence, id) = presence::announce(path, &file, lane.path())?;
        lane.refuse_other_versions()?;
        let committed = lane.committed()?;
        let (mut database, mut identity) = database::Database::open(path)?;
        if identity.lane.is_none()
            && let Some(left) = lane.left_by()?
        {
            identity = database.continue_as(left)?;
        }
        if self.opened().is_some_and(|opened| opened.home.store_id() != identity.id) {
            let cause = "another store is in its place: restore this one, or stop all processes that use it";
            return Err(Error::store(format!("using {}", path.display()), cause));
        }
        fault::point("identity-read");
        let identity_generation = identity.generation;
        let store = attach::Store { path: path.to_owned(), id, identity, committed };
        let Some((mut home, found)) = lane.attach(&store, self.options.clock.as_ref())? else { return Ok(None) };
        match found {
            lane::LaneState::Current => {}
            lane::LaneState::Ahead => recovery::write_all(&Locked::new(&home, Some(&lane.file)), &mut database)?,
            lane::LaneState::Created(made) => {
                let locked = Locked::new(&home, Some(&lane.file));
                recovery::recover(&locked, &mut database, &store.identity, made)?;
                fault::point("lane-filled");
                lane.finish(&home.arena);
            }
        }
        // Only now: what a restart has to restore is restored, whatever the bound.
        home.arena.set_bound(self.bound());
        if home.generation() != identity_generation {
            home.mark_behind();
        }
        let member = lane.join(&home)?;
        Ok(Some((home, User { member, _presence: presence })))
    }

    /// Only for the holder of the structure lock. The connection lives until the lock is released.
    pub(super) fn with_database<R>(&self, call: impl FnOnce(&mut database::Database) -> Result<R>) -> Result<R> {
        let kept = self.rare().database.take();
        let mut database = kept.map_or_else(|| self.connect(), Ok)?;
        let answer = call(&mut database)?;
        self.rare().database = Some(database);
        Ok(answer)
    }

    /// Only for the holder of the structure lock or of [`fork::ledgers`].
    pub(super) fn connect(&self) -> Result<database::Database> {
        let (home, path) = (self.home(), self.path().expect("a store with a lane has a database"));
        // Read before: others may commit at any time.
        let committed = lane::committed(&home.arena);
        let database = database::Database::reopen(&path, home.store_id())?;
        if committed > database.sequence {
            home.doubt_lane();
            let found = "an older copy was put in its place; what it lacks is written to it at the next call".into();
            return Err(Error::Damaged { path, found });
        }
        if home.generation() != database.generation {
            home.mark_behind();
        }
        Ok(database)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        MayWait::Briefly.during(|| self.flush_last_counts());
        let mut at = *self.current.get_mut();
        while !at.is_null() {
            // SAFETY: made by `push`, and no longer in use.
            let opened = unsafe { Box::from_raw(at) };
            at = opened.before;
        }
    }
}
