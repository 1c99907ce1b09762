//! The lane: the mapped file next to the database in which decisions are made, its locks and the words of its header.
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
use super::{FileId, id_of};
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::state::files;
use crate::time::Tick;
use crate::{fork, os};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

/// The offset of the lock bytes, beyond any offset that is ever written.
const STRUCTURE: u64 = 1 << 40;
const LEDGER: u64 = STRUCTURE - 1;
pub(in crate::state) const MEMBERS: u64 = STRUCTURE + 1;
/// Member numbers are never reused, so they could run out only after this many.
pub(in crate::state) const MAX_MEMBERS: u64 = 1 << 40;

/// The largest number of a commit. (What another program writes over a number is healed by commits that are numbered higher.)
pub(in crate::state) const MAX_COMMITS: u64 = i64::MAX as u64;

pub(in crate::state) const MAGIC: u64 = u64::from_le_bytes(*b"wgl-lane");
pub(in crate::state) const VERSION: u64 = 14;

/// Words of the header. Words 10 to 15 belong to the arena and the tables, as do those up to 480.
pub(in crate::state) mod header {
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
pub(in crate::state) struct KeptLock {
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

/// Two words of a header.
pub(in crate::state) fn pair(arena: &Arena, at: u64) -> [u64; 2] {
    [at, at + 1].map(|at| arena.word(at).load(Acquire))
}

/// The number of the last commit to the ledger that the lane knows.
pub(in crate::state) fn sequence(arena: &Arena) -> u64 {
    arena.word(header::SEQUENCE).load(Acquire)
}

/// Raises the lane's number before a commit to a database whose number is `last`. Returns the number that the database
/// must get. So the lane's number is never smaller, and larger by one at most, even if a process dies between the two
/// writes.
pub(in crate::state) fn raise_sequence(arena: &Arena, last: u64) -> u64 {
    let next = sequence(arena).max(committed(arena)).max(last.saturating_add(1)).min(MAX_COMMITS);
    arena.word(header::SEQUENCE).fetch_max(next, AcqRel);
    next
}

/// Records that the commit of this number has succeeded. A database with a smaller number is an older copy, even if it lacks
/// only this commit.
pub(in crate::state) fn have_committed(arena: &Arena, number: u64) {
    arena.word(header::COMMITTED).fetch_max(number, AcqRel);
}

/// The number of the last commit that is known to have succeeded.
pub(in crate::state) fn committed(arena: &Arena) -> u64 {
    arena.word(header::COMMITTED).load(Acquire).min(MAX_COMMITS)
}

/// Returns whether some process that uses the lane does not commit its starts.
pub(in crate::state) fn may_miss_starts(arena: &Arena) -> bool {
    arena.word(header::MAY_MISS).load(Acquire) != 0
}

pub(in crate::state) fn set_may_miss_starts(arena: &Arena) {
    arena.word(header::MAY_MISS).store(1, Release);
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

    pub(in crate::state) fn doing(&self) -> String {
        format!("opening {}", self.path.display())
    }

    pub(in crate::state) fn failed(&self, error: std::io::Error) -> Error {
        Error::store(self.doing(), error)
    }

    pub(in crate::state) fn id(&self) -> Result<FileId> {
        Ok(id_of(&self.file.metadata().map_err(|e| self.failed(e))?))
    }

    /// Returns whether this is the watched lane, whose words are `arena`, next to the same database.
    pub fn is_watched_by(&self, watch: &Watch, arena: &Arena) -> bool {
        self.is_whole_as(watch, arena) && watch.is_as_it_was(arena) && watch.is_next_to_its_database(arena)
    }

    /// Returns whether the watched lane shows an earlier state than it did before, as after an old copy was restored.
    pub fn went_back(&self, watch: &Watch, arena: &Arena) -> bool {
        let is_it = self.is_whole_as(watch, arena) && pair(arena, header::STORE_ID) == watch.store_id;
        is_it && watch.went_back(arena)
    }

    fn is_whole_as(&self, watch: &Watch, arena: &Arena) -> bool {
        self.id().is_ok_and(|id| id == watch.file) && watch.is_whole(&self.file, arena)
    }

    /// Removes an invalid lane, so that the next caller creates another. Its users notice within a second.
    pub fn remove(self) -> Result<()> {
        std::fs::remove_file(&self.path).map_err(|e| Error::store(format!("removing {}", self.path.display()), e))
    }

    /// Returns whether the state in this header's lane can still be valid: same boot, same version, not a copy.
    pub(in crate::state) fn may_count(&self, header: &Arena) -> Result<bool> {
        let is_of_version = header.word(header::VERSION).load(Acquire) == VERSION;
        let is_now = is_of_version && pair(header, header::BOOT_ID) == self.boot()?.id;
        Ok(is_now && pair(header, header::FILE) == self.id()?)
    }

    pub(in crate::state) fn header(&self) -> Result<Arena> {
        let header = os::Mapping::reserve_file(&self.reopen()?, arena::HEADER_WORDS as usize * 8)
            .and_then(|map| map.commit(0, map.len()).map(|()| map))
            .map_err(|e| self.failed(e))?;
        Ok(Arena::header(header))
    }

    pub(in crate::state) fn boot(&self) -> Result<os::Boot> {
        os::boot().map_err(|e| self.failed(e))
    }

    /// The number of the last commit that is known to have succeeded, if the file is a lane.
    pub(in crate::state) fn committed(&self) -> Result<u64> {
        let len = self.file.metadata().map_err(|e| self.failed(e))?.len();
        if len < arena::HEADER_WORDS * 8 { Ok(0) } else { self.header().map(|header| committed(&header)) }
    }

    /// Watches this lane of a store, next to its database.
    pub fn watch(&self, arena: &Arena, store_id: [u64; 2], database: &Path) -> Result<Watch> {
        Ok(Watch {
            path: self.path.clone(),
            database: database.to_owned(),
            store_id,
            instance: arena.word(header::INSTANCE).load(Acquire),
            file: self.id()?,
            root: files::id_at(Path::new("/")).map_err(|e| self.failed(e))?,
            sequence: AtomicU64::new(sequence(arena)),
            looks: AtomicU64::new(arena.word(header::LOOKS).load(Acquire)),
            is_in_doubt: AtomicU64::new(0),
        })
    }

    /// Marks a new lane as complete. Without this mark, the next process starts over.
    pub fn finish(&self, arena: &Arena) {
        arena.word(header::MAGIC).store(MAGIC, Release);
    }

    /// Opens the lane's file a second time. A mapping of the locked descriptor would keep its lock.
    pub(in crate::state) fn reopen(&self) -> Result<File> {
        let file = files::open(&self.path).map_err(|e| self.failed(e))?;
        match file.metadata() {
            Ok(found) if id_of(&found) == self.id()? => Ok(file),
            _ => Err(Error::store(self.doing(), "it was replaced at this moment")),
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
pub(in crate::state) const WATCH_EVERY: Tick = 1_000_000;

/// Detects that the lane was deleted, replaced or restored from an older copy, since two lanes would each grant the
/// whole limit. Also detects truncation, since the missing part must not be touched.
#[derive(Debug)]
pub(crate) struct Watch {
    path: PathBuf,
    database: PathBuf,
    /// The identity of the store that the lane belongs to.
    pub store_id: [u64; 2],
    /// The number of the lane's creation.
    instance: u64,
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
            let is_it = id_of(&file.metadata()?) == self.file && member < MAX_MEMBERS;
            Ok(is_it && !os::is_locked(&file, MEMBERS + member, 1)?)
        });
        asked.unwrap_or(false)
    }

    /// Returns whether the lane is still there, and still the latest. It needs no descriptor. A process that may no
    /// longer look, because it gave up its rights or its root, goes on with the lane that it has.
    #[cold]
    pub fn look(&self, arena: &Arena) -> bool {
        use std::io::ErrorKind::{NotADirectory, NotFound};
        let has_its_root = files::id_at(Path::new("/")).is_ok_and(|root| root == self.root);
        let is_there = || match std::fs::symlink_metadata(&self.path) {
            Ok(found) => id_of(&found) == self.file && found.len() / 8 >= arena.usable(),
            Err(error) => !matches!(error.kind(), NotFound | NotADirectory),
        };
        let is_in_place = !has_its_root || is_there() && self.is_next_to_its_database(arena);
        if !is_in_place || !self.is_as_it_was(arena) {
            return false;
        }
        let looks = arena.word(header::LOOKS).fetch_add(1, AcqRel) + 1;
        self.looks.fetch_max(looks, AcqRel);
        self.sequence.fetch_max(sequence(arena), AcqRel);
        true
    }

    /// Records that the database has changed underneath. The next holder of the lock attaches again.
    pub fn doubt(&self) {
        self.is_in_doubt.store(1, Release);
    }

    /// Returns whether the file contains all words that this process uses.
    fn is_whole(&self, file: &File, arena: &Arena) -> bool {
        file.metadata().is_ok_and(|found| found.len() / 8 >= arena.usable())
    }

    /// Returns whether it is the attached lane, in no earlier state, and without a doubt about its database.
    fn is_as_it_was(&self, arena: &Arena) -> bool {
        let is_it = arena.word(header::INSTANCE).load(Acquire) == self.instance
            && pair(arena, header::STORE_ID) == self.store_id
            // A lane in creation has no magic number yet.
            && matches!(arena.word(header::MAGIC).load(Acquire), MAGIC | 0);
        is_it && !self.went_back(arena) && self.is_in_doubt.load(Acquire) == 0
    }

    fn went_back(&self, arena: &Arena) -> bool {
        // Read the seen values first: other processes raise both counters at the same time, the lane's before their own
        // copy.
        let (seen, looks) = (self.sequence.load(Acquire), self.looks.load(Acquire));
        sequence(arena) < seen || arena.word(header::LOOKS).load(Acquire) < looks
    }

    /// A database that is away for a while does no harm.
    fn is_next_to_its_database(&self, arena: &Arena) -> bool {
        files::id_at(&self.database).map_or(true, |id| id == pair(arena, header::DATABASE))
    }
}
