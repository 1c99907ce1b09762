//! The lane: the mapped file next to the database in which decisions are made, and the processes that use it.
//!
//! The lane has three kinds of open-file-description locks, on bytes far beyond the end of the file:
//! * the *ledger* byte, held while a process writes the ledger. It is taken before the structure byte, so that the
//!   structure byte is free while the disk works;
//! * the *structure* byte, held while a process grows the lane, adds a limit or replaces a policy. The kernel releases
//!   it when its holder dies;
//! * one *member* byte per process, held while the process uses the lane. A held byte proves that the kernel that wrote
//!   the lane is still running, whatever the boot id says. (Some container managers invent a boot id per container.)
//!
//! No descriptor stays open between calls, so a daemon that closes all its descriptors closes none of these. A member's
//! lock outlives its descriptor because a mapping keeps the open file alive. A forked child does not inherit that
//! mapping, so the lock ends with the process that took it.

use super::arena::{self, Arena};
use super::database::Identity;
use super::files::{self, FileId, id_of};
use super::layout::{HASH_KEY, NEXT_MEMBER};
use super::table::{Home, NEVER};
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::time::{Clock, ManualClock, Tick};
use crate::{fork, os};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

/// The offset of the lock bytes, beyond any offset that is ever written.
const STRUCTURE: u64 = 1 << 40;
const LEDGER: u64 = STRUCTURE - 1;
const MEMBERS: u64 = STRUCTURE + 1;
/// Member numbers are never reused, so they could run out only after this many.
const MOST_MEMBERS: u64 = 1 << 40;

/// The largest number of a commit. (What another program writes over a number is healed by commits that are numbered higher.)
const MOST_COMMITS: u64 = i64::MAX as u64;

const MAGIC: u64 = u64::from_le_bytes(*b"wgl-lane");
const VERSION: u64 = 10;

/// Words of the header. Words 10 to 15 belong to the arena and the tables, as do those up to 480.
mod header {
    pub const MAGIC: u64 = 0;
    pub const VERSION: u64 = 1;
    pub const STORE_ID: u64 = 2;
    pub const BOOT_ID: u64 = 4;
    pub const TIME_NAMESPACE: u64 = 6;
    pub const CLOCK_BASE: u64 = 7;
    pub const CLOCK_KIND: u64 = 8;
    /// Changes each time the lane is rebuilt.
    pub const INSTANCE: u64 = 9;
    /// The identities of the database next to the lane, and of the lane's own file. Copies of a file have another
    /// identity.
    pub const DATABASE: u64 = 480; // two words
    pub const FILE: u64 = 482; // two words
    /// Raised by each commit to the ledger, here and in the database: see `Database::sequence`.
    pub const SEQUENCE: u64 = 484;
    /// Raised by each check of each process.
    pub const LOOKS: u64 = 485;
    /// 1: starts in the lane may be missing from the ledger, and the database does not say otherwise: see `committed.rs`.
    pub const MAY_MISS: u64 = 486;
    /// The number of the last commit to the ledger that is known to have succeeded.
    pub const COMMITTED: u64 = 487;
}

/// Why a lane was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Creation {
    /// There was none, or it was not the store's latest; another process may still use that one.
    Missing,
    /// It belonged to another boot or version, or was truncated, and no process used it.
    Unused,
    /// As `Unused`, and the database is an older copy or replaced one that is gone. Earlier starts are unknown.
    Unknown,
}

/// The condition in which a lane was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaneState {
    /// Valid.
    Current,
    /// The database is an older copy or replaced one that is gone. Starts that the lane believes to be in the ledger
    /// are missing there.
    Ahead,
    /// Not found. A new lane must be filled, and then finished with [`LockedLane::finish`].
    Created(Creation),
}

/// An open lane whose structure byte this process holds until this is dropped.
#[derive(Debug)]
pub(crate) struct LockedLane {
    pub file: File,
    pub is_new: bool,
    path: PathBuf,
}

/// A lock that lasts until this is dropped or its process ends, even after its descriptor is closed.
#[derive(Debug)]
pub(super) struct KeptLock {
    page: ManuallyDrop<os::Mapping>,
    generation: u64,
}

impl KeptLock {
    /// Keeps the locks that were taken through this file.
    pub fn new(file: &File) -> std::io::Result<KeptLock> {
        let page = os::Mapping::reserve_file(file, 4096)?;
        page.keep_from_children()?;
        Ok(KeptLock { page: ManuallyDrop::new(page), generation: fork::generation() })
    }
}

impl Drop for KeptLock {
    fn drop(&mut self) {
        // A forked child does not have this mapping; another one may be at its address.
        if self.generation == fork::generation() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.page) };
        }
    }
}

/// The membership of a process. It ends when this is dropped, or with the process.
#[derive(Debug)]
pub(crate) struct Member {
    /// The number by which leases name their owner.
    pub number: u64,
    _lock: KeptLock,
}

/// The database next to a lane.
#[derive(Debug)]
pub(crate) struct Store {
    pub path: PathBuf,
    pub id: FileId,
    pub identity: Identity,
}

/// The identity of the store that a lane belongs to.
pub(super) fn store_id(home: &Home) -> [u64; 2] {
    home.watch.as_ref().map_or([0, 0], |watch| watch.store_id)
}

/// The number of the last commit to the ledger that the lane knows.
pub(super) fn sequence(home: &Home) -> u64 {
    home.arena.word(header::SEQUENCE).load(Acquire)
}

/// Raises the lane's number before a commit to a database whose number is `last`. Returns the number that the database
/// must get. So the lane's number is never smaller, and larger by one at most, even if a process dies between the two
/// writes.
pub(super) fn raise_sequence(home: &Home, last: u64) -> u64 {
    let next = sequence(home).max(committed(home)).max(last.saturating_add(1)).min(MOST_COMMITS);
    home.arena.word(header::SEQUENCE).fetch_max(next, AcqRel);
    next
}

/// Records that the commit of this number has succeeded. A database with a smaller number is an older copy, even if it lacks
/// only this commit.
pub(super) fn have_committed(home: &Home, number: u64) {
    home.arena.word(header::COMMITTED).fetch_max(number, AcqRel);
}

/// The number of the last commit that is known to have succeeded.
pub(super) fn committed(home: &Home) -> u64 {
    home.arena.word(header::COMMITTED).load(Acquire).min(MOST_COMMITS)
}

/// Returns whether some process that uses the lane does not commit its starts.
pub(super) fn may_miss_starts(home: &Home) -> bool {
    home.arena.word(header::MAY_MISS).load(Acquire) != 0
}

pub(super) fn set_may_miss_starts(home: &Home) {
    home.arena.word(header::MAY_MISS).store(1, Release);
}

impl LockedLane {
    /// Opens the lane, or creates it, and takes its structure byte. Returns `None` if another process holds the byte.
    pub fn try_open(path: &Path, mode: u32) -> Result<Option<LockedLane>> {
        let failed = |e| Error::store(format!("opening {}", path.display()), e);
        let (file, was_made) = files::open_or_create(path, mode).map_err(failed)?;
        if !os::try_lock(&file, STRUCTURE, 1).map_err(failed)? {
            return Ok(None);
        }
        // The file may have been deleted before this process got the lock.
        let mine = file.metadata().map_err(failed)?;
        match files::id_at(path) {
            Ok(there) if there == id_of(&mine) => {
                // Another process may have filled it before this process got the lock.
                let is_new = was_made && mine.len() == 0;
                Ok(Some(LockedLane { file, is_new, path: path.to_owned() }))
            }
            _ => Ok(None),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn doing(&self) -> String {
        format!("opening {}", self.path.display())
    }

    fn failed(&self, error: std::io::Error) -> Error {
        Error::store(self.doing(), error)
    }

    fn id(&self) -> Result<FileId> {
        Ok(id_of(&self.file.metadata().map_err(|e| self.failed(e))?))
    }

    /// Returns whether this is the lane that was attached as `home`, next to the same database.
    pub fn is_that_of(&self, home: &Home) -> bool {
        let Some(watch) = &home.watch else { return false };
        let is_it = self.id().is_ok_and(|id| id == watch.file) && watch.is_whole(&self.file, &home.arena);
        is_it && watch.is_as_it_was(home) && watch.is_next_to_its_database(home)
    }

    /// Returns whether a lane attached as `home` shows an earlier state than it did before, as after an old copy was
    /// restored.
    pub fn went_back(&self, home: &Home) -> bool {
        let Some(watch) = &home.watch else { return false };
        let is_it = self.id().is_ok_and(|id| id == watch.file) && watch.is_whole(&self.file, &home.arena);
        is_it && home.get(header::STORE_ID) == watch.store_id && watch.went_back(home)
    }

    /// Removes an invalid lane, so that the next caller creates another. Its users notice within a second.
    pub fn remove(self) -> Result<()> {
        std::fs::remove_file(&self.path).map_err(|e| Error::store(format!("removing {}", self.path.display()), e))
    }

    /// Maps the lane, and first rebuilds it if it is not the latest of this database. Returns `None` if a new lane must
    /// replace one that is still in use: see [`LockedLane::remove`].
    pub fn attach(&self, store: &Store, manual: Option<&ManualClock>) -> Result<Option<(Home, LaneState)>> {
        let Store { identity, path, id } = store;
        let len = self.file.metadata().map_err(|e| self.failed(e))?.len();
        let in_use = os::is_locked(&self.file, MEMBERS, MOST_MEMBERS).map_err(|e| self.failed(e))?;
        let make = |made| match in_use {
            true => Ok(None),
            false => Ok(Some((self.initialise(store, manual)?, LaneState::Created(made)))),
        };
        if len == 0 {
            return make(Creation::Missing);
        }
        // The store's last lane was created on this file, so the file is not a stranger's.
        let is_strange = |found: String| match identity.lane {
            Some(_) => Err(Error::Damaged { path: self.path.clone(), found }),
            None => Err(Error::NotAStore { path: self.path.clone(), found }),
        };
        if len < arena::HEADER_WORDS * 8 {
            return is_strange(format!("a file of {len} bytes"));
        }
        // Only the header is read until the rest is known to exist.
        let header = self.header()?;
        let word = |at: u64| header.word(at).load(Acquire);
        let words = |at: u64| [word(at), word(at + 1)];
        let version = word(header::VERSION);
        match word(header::MAGIC) {
            MAGIC if version > VERSION || in_use && version != VERSION => {
                return Err(Error::UnsupportedVersion { path: self.path.clone(), found: version, supported: VERSION });
            }
            MAGIC => {}
            // The process that was creating it died before the last word.
            0 if !in_use => return make(Creation::Missing),
            _ => return is_strange("another kind of file".into()),
        }
        if words(header::STORE_ID) != identity.id {
            let cause = match in_use {
                true => "processes still use it for a database that is no longer there: stop them first",
                false if self.may_count(&header)? => {
                    "it belongs to another database: put that one back, or delete this file to forget the starts that it counts"
                }
                false => return make(Creation::Missing),
            };
            return Err(Error::store(self.doing(), cause));
        }
        let sequence = word(header::SEQUENCE);
        // The lane is finished, but the database knows no lane: the database has taken over the lane's identity.
        let is_ahead = word(header::COMMITTED).min(MOST_COMMITS) > identity.sequence || identity.lane.is_none();
        let or_unknown = |made| if is_ahead { Creation::Unknown } else { made };
        let (allocated, cursor) = (word(arena::ALLOCATED), word(arena::CURSOR));
        if version == VERSION && !arena::is_size(allocated, cursor) {
            return is_strange(format!("a lane of {allocated} words, {cursor} of them used"));
        }
        // If the file was truncated, the missing part must not be touched.
        let is_whole = len / 8 >= allocated;
        let is_now = in_use || words(header::BOOT_ID) == self.boot()?.id;
        if version != VERSION || !is_whole || !is_now {
            return make(or_unknown(Creation::Unused));
        }
        let is_last = Some(word(header::INSTANCE)) == identity.lane;
        let is_older = sequence < identity.sequence || !is_last && sequence <= identity.sequence;
        if is_older || words(header::FILE) != self.id()? || !is_ahead && words(header::DATABASE) != *id {
            return make(or_unknown(Creation::Missing));
        }
        let (theirs, ours) = (word(header::TIME_NAMESPACE), os::time_namespace());
        if theirs != 0 && ours != 0 && theirs != ours {
            let cause = "it is used from another time namespace, whose clock differs from this process's";
            return Err(Error::store(self.doing(), cause));
        }
        if word(header::CLOCK_KIND) != u64::from(manual.is_some()) {
            let cause = "it lives by a manual clock and this store does not, or the other way round";
            return Err(Error::store(self.doing(), cause));
        }
        // A copy has holes instead of zeros. Allocate them now.
        os::allocate(&self.file, 0, allocated * 8).map_err(|e| self.failed(e))?;
        let arena = Arena::in_file(&self.reopen()?, allocated)?;
        let clock = Clock::new(word(header::CLOCK_BASE), manual.cloned());
        let home = Home {
            arena,
            clock,
            instance: word(header::INSTANCE),
            commits: false,
            next_look: AtomicU64::new(NEVER),
            watch: None,
            is_served: false,
            has_grants: false,
            grant_lane: None,
        };
        home.set(header::DATABASE, *id);
        let found = if is_ahead { LaneState::Ahead } else { LaneState::Current };
        Ok(Some((self.watched(home, store, path)?, found)))
    }

    /// Returns the store identity and secret of this lane, if the lane belongs to this boot and no process uses it. A
    /// new database that replaces a deleted one continues with the state of this lane.
    pub fn left_by(&self) -> Result<Option<([u64; 2], [u64; 2])>> {
        let len = self.file.metadata().map_err(|e| self.failed(e))?.len();
        let in_use = os::is_locked(&self.file, MEMBERS, MOST_MEMBERS).map_err(|e| self.failed(e))?;
        if in_use || len < arena::HEADER_WORDS * 8 {
            return Ok(None);
        }
        let header = self.header()?;
        let words = |at: u64| [0, 1].map(|i| header.word(at + i).load(Acquire));
        let is_left = header.word(header::MAGIC).load(Acquire) == MAGIC && self.may_count(&header)?;
        Ok(is_left.then(|| (words(header::STORE_ID), words(HASH_KEY))))
    }

    /// Returns whether the state in this header's lane can still be valid: same boot, same version, not a copy.
    fn may_count(&self, header: &Arena) -> Result<bool> {
        let word = |at: u64| header.word(at).load(Acquire);
        let words = |at: u64| [word(at), word(at + 1)];
        let is_now = word(header::VERSION) == VERSION && words(header::BOOT_ID) == self.boot()?.id;
        Ok(is_now && words(header::FILE) == self.id()?)
    }

    fn header(&self) -> Result<Arena> {
        let header = os::Mapping::reserve_file(&self.reopen()?, arena::HEADER_WORDS as usize * 8)
            .and_then(|map| map.commit(0, map.len()).map(|()| map))
            .map_err(|e| self.failed(e))?;
        Ok(Arena::header(header))
    }

    fn boot(&self) -> Result<os::Boot> {
        os::boot().map_err(|e| self.failed(e))
    }

    /// Rebuilds the lane in place. No process uses it.
    fn initialise(&self, store: &Store, manual: Option<&ManualClock>) -> Result<Home> {
        let Store { identity, path, id } = store;
        let doing = || format!("making {}", self.path.display());
        self.file.set_len(0).map_err(|e| Error::store(doing(), e))?;
        Arena::allocate_first(&self.file).map_err(|e| Error::store(doing(), e))?;
        let arena = Arena::in_file(&self.reopen()?, arena::FIRST_BYTES / 8)?;
        arena.start();
        let base = Clock::fresh_base(manual);
        let [instance] = os::random::<1>().map_err(|e| Error::store(doing(), e))?;
        let clock = Clock::new(base, manual.cloned());
        let home = Home {
            arena,
            clock,
            instance,
            commits: false,
            next_look: AtomicU64::new(NEVER),
            watch: None,
            is_served: false,
            has_grants: false,
            grant_lane: None,
        };
        home.set(header::STORE_ID, identity.id);
        home.set(header::BOOT_ID, self.boot()?.id);
        home.set(header::DATABASE, *id);
        home.set(header::FILE, self.id()?);
        for (at, word) in [
            (header::INSTANCE, instance),
            (header::VERSION, VERSION),
            (header::TIME_NAMESPACE, os::time_namespace()),
            (header::CLOCK_BASE, base),
            (header::CLOCK_KIND, u64::from(manual.is_some())),
        ] {
            home.set(at, [word]);
        }
        let home = self.watched(home, store, path)?;
        home.start(identity.secret);
        home.start_list();
        home.start_members();
        Ok(home)
    }

    /// Marks a new lane as complete. Without this mark, the next process starts over.
    pub fn finish(&self, home: &Home) {
        home.arena.word(header::MAGIC).store(MAGIC, Release);
    }

    fn watched(&self, home: Home, store: &Store, database: &Path) -> Result<Home> {
        let watch = Watch {
            path: self.path.clone(),
            database: database.to_owned(),
            store_id: store.identity.id,
            file: self.id()?,
            root: files::id_at(Path::new("/")).map_err(|e| self.failed(e))?,
            sequence: AtomicU64::new(sequence(&home)),
            looks: AtomicU64::new(home.arena.word(header::LOOKS).load(Acquire)),
            is_in_doubt: AtomicU64::new(0),
        };
        Ok(Home { next_look: AtomicU64::new(0), watch: Some(watch), ..home })
    }

    /// Opens the lane's file a second time. A mapping of the locked descriptor would keep its lock.
    fn reopen(&self) -> Result<File> {
        let file = files::open(&self.path).map_err(|e| self.failed(e))?;
        match file.metadata() {
            Ok(found) if id_of(&found) == self.id()? => Ok(file),
            _ => Err(Error::store(self.doing(), "it was replaced at this moment")),
        }
    }

    /// Makes this process a member.
    pub fn join(&self, home: &Home) -> Result<Member> {
        let failed = |e| Error::store(format!("joining {}", self.path.display()), e);
        let file = self.reopen()?;
        loop {
            let number = home.arena.word(NEXT_MEMBER).fetch_add(1, AcqRel) % (MOST_MEMBERS - 1) + 1;
            if os::try_lock(&file, MEMBERS + number, 1).map_err(failed)? {
                let lock = KeptLock::new(&file).map_err(failed)?;
                let is_gone = |other| !os::is_locked(&file, MEMBERS + other, 1).unwrap_or(true);
                home.enter_member(number, is_gone);
                return Ok(Member { number, _lock: lock });
            }
        }
    }

    /// Removes a lane that this call created, after a later step failed. Nothing half-made remains.
    pub fn undo(self) {
        if self.is_new {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// How often a process checks that its lane is still in its place, in ticks: once a second.
pub(super) const WATCH_EVERY: Tick = 1_000_000;

/// Detects that the lane was deleted, replaced or restored from an older copy, since two lanes would each grant the
/// whole limit. Also detects truncation, since the missing part must not be touched.
#[derive(Debug)]
pub(crate) struct Watch {
    path: PathBuf,
    database: PathBuf,
    store_id: [u64; 2],
    file: FileId,
    /// The directory `/` of the process when it attached: `chroot` gives it another.
    root: FileId,
    /// The largest values of the header that this process has seen. They only grow.
    sequence: AtomicU64,
    looks: AtomicU64,
    /// 1: see [`Watch::doubt`].
    is_in_doubt: AtomicU64,
}

impl Watch {
    /// The path of the lane.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the right to write this lane's ledger, which lasts while the returned file is open. Returns `None` if
    /// another process has it or the lane is gone.
    pub fn try_lock_ledger(&self) -> Result<Option<File>> {
        let tried = files::open(&self.path).and_then(|file| {
            let is_it = id_of(&file.metadata()?) == self.file;
            Ok((is_it && os::try_lock(&file, LEDGER, 1)?).then_some(file))
        });
        match tried {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            tried => tried.map_err(|e| Error::store(format!("opening {}", self.path.display()), e)),
        }
    }

    /// Returns whether this member's process has ended. The kernel releases its lock before it reports the death to
    /// anyone.
    pub fn is_gone(&self, member: u64) -> bool {
        let asked = files::open(&self.path).and_then(|file| {
            let is_it = id_of(&file.metadata()?) == self.file && member < MOST_MEMBERS;
            Ok(is_it && !os::is_locked(&file, MEMBERS + member, 1)?)
        });
        asked.unwrap_or(false)
    }

    /// Returns whether the lane is still there, and still the latest. It needs no descriptor. A process that may no
    /// longer look, because it gave up its rights or its root, goes on with the lane that it has.
    #[cold]
    pub fn look(&self, home: &Home, now: Tick) -> bool {
        use std::io::ErrorKind::{NotADirectory, NotFound};
        let has_its_root = files::id_at(Path::new("/")).is_ok_and(|root| root == self.root);
        let is_there = || match std::fs::symlink_metadata(&self.path) {
            Ok(found) => id_of(&found) == self.file && found.len() / 8 >= home.arena.usable(),
            Err(error) => !matches!(error.kind(), NotFound | NotADirectory),
        };
        let is_in_place = !has_its_root || is_there() && self.is_next_to_its_database(home);
        if !is_in_place || !self.is_as_it_was(home) {
            return false;
        }
        let looks = home.arena.word(header::LOOKS).fetch_add(1, AcqRel) + 1;
        self.looks.fetch_max(looks, AcqRel);
        self.sequence.fetch_max(sequence(home), AcqRel);
        home.next_look.store(now + WATCH_EVERY, Relaxed);
        true
    }

    /// Records that the database has changed underneath. The next holder of the lock attaches again.
    pub fn doubt(&self, home: &Home) {
        self.is_in_doubt.store(1, Release);
        home.next_look.store(0, Release);
    }

    /// Returns whether the file contains all words that this process uses.
    fn is_whole(&self, file: &File, arena: &Arena) -> bool {
        file.metadata().is_ok_and(|found| found.len() / 8 >= arena.usable())
    }

    /// Returns whether it is the attached lane, in no earlier state, and without a doubt about its database.
    fn is_as_it_was(&self, home: &Home) -> bool {
        let is_it = home.arena.word(header::INSTANCE).load(Acquire) == home.instance
            && home.get(header::STORE_ID) == self.store_id
            // A lane in creation has no magic number yet.
            && matches!(home.arena.word(header::MAGIC).load(Acquire), MAGIC | 0);
        is_it && !self.went_back(home) && self.is_in_doubt.load(Acquire) == 0
    }

    fn went_back(&self, home: &Home) -> bool {
        // Read the seen values first: other processes raise both counters at the same time, the lane's before their own
        // copy.
        let (seen, looks) = (self.sequence.load(Acquire), self.looks.load(Acquire));
        sequence(home) < seen || home.arena.word(header::LOOKS).load(Acquire) < looks
    }

    /// A database that is away for a while does no harm.
    fn is_next_to_its_database(&self, home: &Home) -> bool {
        files::id_at(&self.database).map_or(true, |id| id == home.get(header::DATABASE))
    }
}
