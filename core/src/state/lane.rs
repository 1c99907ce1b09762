//! The lane: the mapped file beside the database in which decisions are made, and who is using it.
//!
//! Three kinds of open-file-description lock, on bytes far beyond the file's end:
//!
//! * the *ledger* byte: whoever writes the ledger. It is taken before the structure byte, which is free while the disk works.
//! * the *structure* byte: whoever grows, adds a limit or replaces a policy. The kernel drops it when its holder dies.
//! * a *member* byte per process, held for as long as it uses the lane. Any held byte proves that the kernel that wrote
//!   the lane is still up, whatever the boot id says (some container managers make one up per container).
//!
//! No descriptor is kept open between calls, so a daemon that closes all its descriptors closes nothing of ours. A
//! member's lock outlives its descriptor because a mapping keeps the open file alive; a child that is forked does not
//! inherit that mapping, so the lock ends with the process that took it.

use super::arena::{self, Arena};
use super::database::Identity;
use super::files::{self, FileId, id_of};
use super::layout::{HASH_KEY, NEXT_MEMBER};
use super::os;
use super::table::{Home, NEVER};
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::fork;
use crate::time::{Clock, ManualClock, Tick};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

/// Where the lock bytes begin: beyond anything that is ever written.
const STRUCTURE: u64 = 1 << 40;
const LEDGER: u64 = STRUCTURE - 1;
const MEMBERS: u64 = STRUCTURE + 1;
/// Nobody has the number that another had, so members never run out.
const MOST_MEMBERS: u64 = 1 << 40;

const MAGIC: u64 = u64::from_le_bytes(*b"wgl-lane");
const VERSION: u64 = 8;

/// Words of the header; 10 to 15 belong to the arena and the tables, as do those up to 480.
mod header {
    pub const MAGIC: u64 = 0;
    pub const VERSION: u64 = 1;
    pub const STORE_ID: u64 = 2;
    pub const BOOT_ID: u64 = 4;
    pub const TIME_NAMESPACE: u64 = 6;
    pub const CLOCK_BASE: u64 = 7;
    pub const CLOCK_KIND: u64 = 8;
    /// Differs each time the lane is made anew.
    pub const INSTANCE: u64 = 9;
    /// The database that the lane is beside, and the lane's own file: copies are others.
    pub const DATABASE: u64 = 480; // two words
    pub const FILE: u64 = 482; // two words
    /// Raised by each commit to the ledger, here and in the database: see `Database::sequence`.
    pub const SEQUENCE: u64 = 484;
    /// Raised by each look of each process.
    pub const LOOKS: u64 = 485;
}

/// Why a lane was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Made {
    /// There was none, or one that is not the store's latest: somebody may be using that.
    Missing,
    /// It was of another boot or version, or cut short, and nobody was using it.
    Unused,
    /// The same, and the database is an older copy, or was made in the place of one that is gone: nothing is known.
    Unknown,
}

/// How a lane was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// As it should be.
    Current,
    /// The database is an older copy, or was made in the place of one that is gone: what the lane took to be in the ledger is
    /// not.
    Ahead,
    /// Not at all. One that was made has to be filled, and finished with [`LockedLane::finish`].
    Made(Made),
}

/// An open lane whose structure byte this process holds until it is dropped.
#[derive(Debug)]
pub(crate) struct LockedLane {
    pub file: File,
    pub is_new: bool,
    path: PathBuf,
}

/// A lock that is kept until this is dropped, or its process ends, although its descriptor is closed.
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
        // A forked child has no mapping there, but perhaps something else by now.
        if self.generation == fork::generation() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.page) };
        }
    }
}

/// A process's membership. It ends when this is dropped, or with the process.
#[derive(Debug)]
pub(crate) struct Member {
    /// What leases say of their owner.
    pub number: u64,
    _lock: KeptLock,
}

/// The database that a lane is beside.
#[derive(Debug)]
pub(crate) struct Store {
    pub path: PathBuf,
    pub id: FileId,
    pub identity: Identity,
}

/// The store that a lane belongs to.
pub(super) fn store_id(home: &Home) -> [u64; 2] {
    home.watch.as_ref().map_or([0, 0], |watch| watch.store_id)
}

/// The number of the last commit to the ledger that the lane knows of.
pub(super) fn sequence(home: &Home) -> u64 {
    home.arena.word(header::SEQUENCE).load(Acquire)
}

/// Raises it before a commit to a database that has `last`, and returns what it is to have then. So the lane's is never
/// the smaller one, and larger by one at most, whoever dies in between.
pub(super) fn raise_sequence(home: &Home, last: u64) -> u64 {
    let next = sequence(home).max(last.saturating_add(1)).min(i64::MAX as u64);
    home.arena.word(header::SEQUENCE).fetch_max(next, AcqRel);
    next
}

impl LockedLane {
    /// Opens the lane, made if there is none, and takes its structure byte. `None`: somebody else has it.
    pub fn try_open(path: &Path, mode: u32) -> Result<Option<LockedLane>> {
        let failed = |e| Error::store(format!("opening {}", path.display()), e);
        let (file, was_made) = files::open_or_create(path, mode).map_err(failed)?;
        if !os::try_lock(&file, STRUCTURE, 1).map_err(failed)? {
            return Ok(None);
        }
        // It may have been deleted before this process had the lock.
        let mine = file.metadata().map_err(failed)?;
        match files::id_at(path) {
            Ok(there) if there == id_of(&mine) => {
                // Somebody else may have filled it before this process had the lock.
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

    /// Is this the lane that was attached as `home`, beside the database that it was beside?
    pub fn is_that_of(&self, home: &Home) -> bool {
        let Some(watch) = &home.watch else { return false };
        let is_it = self.id().is_ok_and(|id| id == watch.file) && watch.is_whole(&self.file, &home.arena);
        is_it && watch.is_as_it_was(home) && watch.is_beside_its_database(home)
    }

    /// Does a lane that was attached as `home` have what it had before, as if somebody had brought back an old copy?
    pub fn went_back(&self, home: &Home) -> bool {
        let Some(watch) = &home.watch else { return false };
        let is_it = self.id().is_ok_and(|id| id == watch.file) && watch.is_whole(&self.file, &home.arena);
        is_it && home.get(header::STORE_ID) == watch.store_id && watch.went_back(home)
    }

    /// Takes away a lane that does not count, for those who come to make another. Who uses it notices within a second.
    pub fn remove(self) -> Result<()> {
        std::fs::remove_file(&self.path).map_err(|e| Error::store(format!("removing {}", self.path.display()), e))
    }

    /// Maps the lane, after making it anew if it is not the latest of this database. `None`: another is to be made in its
    /// place, which somebody is using: see [`LockedLane::remove`].
    pub fn attach(&self, store: &Store, manual: Option<&ManualClock>) -> Result<Option<(Home, Found)>> {
        let Store { identity, path, id } = store;
        let len = self.file.metadata().map_err(|e| self.failed(e))?.len();
        let in_use = os::is_locked(&self.file, MEMBERS, MOST_MEMBERS).map_err(|e| self.failed(e))?;
        let make = |made| match in_use {
            true => Ok(None),
            false => Ok(Some((self.initialise(store, manual)?, Found::Made(made)))),
        };
        if len == 0 {
            return make(Made::Missing);
        }
        // Whoever made the store's last lane made it here: so this is no stranger's file.
        let is_strange = |found: String| match identity.lane {
            Some(_) => Err(Error::Damaged { path: self.path.clone(), found }),
            None => Err(Error::NotAStore { path: self.path.clone(), found }),
        };
        if len < arena::HEADER_WORDS * 8 {
            return is_strange(format!("a file of {len} bytes"));
        }
        // Only the header is looked at, until it is known that there is more.
        let header = self.header()?;
        let word = |at: u64| header.word(at).load(Acquire);
        let words = |at: u64| [word(at), word(at + 1)];
        let version = word(header::VERSION);
        match word(header::MAGIC) {
            MAGIC if version > VERSION || in_use && version != VERSION => {
                return Err(Error::UnsupportedVersion { path: self.path.clone(), found: version, supported: VERSION });
            }
            MAGIC => {}
            // Whoever was making it died before the last word.
            0 if !in_use => return make(Made::Missing),
            _ => return is_strange("another kind of file".into()),
        }
        if words(header::STORE_ID) != identity.id {
            let cause = match in_use {
                true => "processes still use it for a database that is no longer there: stop them first",
                false if self.may_count(&header)? => {
                    "it belongs to another database: put that one back, or delete this file to forget the starts that it counts"
                }
                false => return make(Made::Missing),
            };
            return Err(Error::store(self.doing(), cause));
        }
        let sequence = word(header::SEQUENCE);
        // A database that knows of no lane, beside one that was finished, has taken over its identity.
        let is_ahead = sequence > identity.sequence.saturating_add(1) || identity.lane.is_none();
        let or_unknown = |made| if is_ahead { Made::Unknown } else { made };
        let (allocated, cursor) = (word(arena::ALLOCATED), word(arena::CURSOR));
        if version == VERSION && !arena::is_size(allocated, cursor) {
            return is_strange(format!("a lane of {allocated} words, {cursor} of them used"));
        }
        // Cut short by somebody: what is gone cannot be touched.
        let is_whole = len / 8 >= allocated;
        let is_now = in_use || words(header::BOOT_ID) == self.boot()?.id;
        if version != VERSION || !is_whole || !is_now {
            return make(or_unknown(Made::Unused));
        }
        let is_last = Some(word(header::INSTANCE)) == identity.lane;
        let is_older = sequence < identity.sequence || !is_last && sequence <= identity.sequence;
        if is_older || words(header::FILE) != self.id()? || !is_ahead && words(header::DATABASE) != *id {
            return make(or_unknown(Made::Missing));
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
        // A copy has holes where there were zeros: they have room from now on.
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
        let found = if is_ahead { Found::Ahead } else { Found::Current };
        Ok(Some((self.watched(home, store, path)?, found)))
    }

    /// Whose lane this is, and their secret, if it is of this boot and nobody uses it: so that a new database, in the place of
    /// one that was deleted, goes on with what counts here.
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

    /// Can what this header's lane holds still count: is it of this boot and version, and no copy?
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

    /// Makes the lane anew, in place: nobody is using it.
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

    /// A lane that was made has what it needs. Without this, the next process starts over.
    pub fn finish(&self, home: &Home) {
        home.arena.word(header::MAGIC).store(MAGIC, Release);
    }

    fn watched(&self, home: Home, store: &Store, database: &Path) -> Result<Home> {
        let watch = Watch {
            path: self.path.clone(),
            database: database.to_owned(),
            store_id: store.identity.id,
            file: self.id()?,
            sequence: AtomicU64::new(sequence(&home)),
            looks: AtomicU64::new(home.arena.word(header::LOOKS).load(Acquire)),
            is_in_doubt: AtomicU64::new(0),
        };
        Ok(Home { next_look: AtomicU64::new(0), watch: Some(watch), ..home })
    }

    /// Another open file on the lane. A mapping of the one that is locked would keep its lock.
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

    /// Removes a lane that this call made, after something else failed: nothing half-made stays behind.
    pub fn undo(self) {
        if self.is_new {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// How often a process looks whether its lane is still where it was, in ticks: once a second.
pub(super) const WATCH_EVERY: Tick = 1_000_000;

/// Notices that the lane was deleted, replaced or brought back from an older copy: two lanes would each grant the whole
/// limit. And that it was cut short: what is gone cannot be touched.
#[derive(Debug)]
pub(crate) struct Watch {
    path: PathBuf,
    database: PathBuf,
    store_id: [u64; 2],
    file: FileId,
    /// The largest numbers of the header that this process has seen: they only grow.
    sequence: AtomicU64,
    looks: AtomicU64,
    /// 1: see [`Watch::doubt`].
    is_in_doubt: AtomicU64,
}

impl Watch {
    /// Where the lane is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The right to write the ledger of this lane, as long as the file that is answered is open. `None`: another process has
    /// it, or the lane is gone.
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

    /// Has this member's process ended? The kernel drops its lock before anybody is told of its death.
    pub fn is_gone(&self, member: u64) -> bool {
        let asked = files::open(&self.path).and_then(|file| {
            let is_it = id_of(&file.metadata()?) == self.file && member < MOST_MEMBERS;
            Ok(is_it && !os::is_locked(&file, MEMBERS + member, 1)?)
        });
        asked.unwrap_or(false)
    }

    /// Is the lane still there, and still the latest?
    #[cold]
    pub fn look(&self, home: &Home, now: Tick) -> bool {
        let is_it = files::open(&self.path).is_ok_and(|file| {
            let is_there = file.metadata().is_ok_and(|found| id_of(&found) == self.file);
            is_there && self.is_whole(&file, &home.arena)
        });
        if !is_it || !self.is_as_it_was(home) || !self.is_beside_its_database(home) {
            return false;
        }
        let looks = home.arena.word(header::LOOKS).fetch_add(1, AcqRel) + 1;
        self.looks.fetch_max(looks, AcqRel);
        self.sequence.fetch_max(sequence(home), AcqRel);
        home.next_look.store(now + WATCH_EVERY, Relaxed);
        true
    }

    /// The database is not what it was: the next who has the lock attaches anew.
    pub fn doubt(&self, home: &Home) {
        self.is_in_doubt.store(1, Release);
        home.next_look.store(0, Release);
    }

    /// Is all of the file there that this process uses?
    fn is_whole(&self, file: &File, arena: &Arena) -> bool {
        file.metadata().is_ok_and(|found| found.len() / 8 >= arena.usable())
    }

    /// Is it the lane that was attached, and none that it was before?
    fn is_as_it_was(&self, home: &Home) -> bool {
        let is_it = home.arena.word(header::INSTANCE).load(Acquire) == home.instance
            && home.get(header::STORE_ID) == self.store_id
            // While it is made it has none.
            && matches!(home.arena.word(header::MAGIC).load(Acquire), MAGIC | 0);
        is_it && !self.went_back(home)
    }

    fn went_back(&self, home: &Home) -> bool {
        // What was seen first: others raise both numbers meanwhile, the lane's before what they have seen.
        let (seen, looks) = (self.sequence.load(Acquire), self.looks.load(Acquire));
        sequence(home) < seen || home.arena.word(header::LOOKS).load(Acquire) < looks
    }

    /// One that is away for a while does no harm.
    fn is_beside_its_database(&self, home: &Home) -> bool {
        self.is_in_doubt.load(Acquire) == 0
            && files::id_at(&self.database).map_or(true, |id| id == home.get(header::DATABASE))
    }
}
