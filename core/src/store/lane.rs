//! The lane: the mapped file beside the database in which decisions are made, and who is using it.
//!
//! Three kinds of open-file-description lock, on bytes far beyond the file's end:
//!
//! * the *structure* byte: whoever grows, adds a limit or replaces a policy. The kernel drops it when its holder dies.
//! * a *member* byte per process, held for as long as it uses the lane. Any held byte proves that the kernel that wrote
//!   the lane is still up, whatever the boot id says (some container managers make one up per container).
//!
//! No descriptor is kept open between calls, so a daemon that closes all its descriptors closes nothing of ours. A
//! member's lock outlives its descriptor because a mapping keeps the open file alive; a child that is forked does not
//! inherit that mapping, so the lock ends with the process that took it.

use super::arena::{self, Arena};
use super::layout::NEXT_MEMBER;
use super::os;
use super::table::Home;
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::fork;
use crate::time::{Clock, ManualClock, Tick};
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::ManuallyDrop;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Where the lock bytes begin: beyond anything that is ever written.
const STRUCTURE: u64 = 1 << 40;
const MEMBERS: u64 = STRUCTURE + 1;
/// Nobody has the number that another had, so members never run out.
const MOST_MEMBERS: u64 = 1 << 40;

const MAGIC: u64 = u64::from_le_bytes(*b"wgl-lane");
const VERSION: u64 = 2;

/// Words of the header; 11 to 15 belong to the arena and the tables.
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
}

/// Why a lane was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Made {
    /// There was none, or another's: somebody may be using the one that this store had.
    Missing,
    /// It was of another boot or version, or cut short, and nobody was using it.
    Unused,
}

/// An open lane whose structure byte this process holds until it is dropped.
#[derive(Debug)]
pub(crate) struct LockedLane {
    pub file: File,
    pub is_new: bool,
    path: PathBuf,
}

/// A process's membership. It ends when this is dropped, or with the process.
#[derive(Debug)]
pub(crate) struct Member {
    /// What leases say of their owner.
    pub number: u64,
    page: ManuallyDrop<os::Mapping>,
    generation: u64,
}

impl Drop for Member {
    fn drop(&mut self) {
        // A forked child has no mapping there, but perhaps something else by now.
        if self.generation == fork::generation() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.page) };
        }
    }
}

/// The database that a lane belongs to.
pub(super) fn store_id(home: &Home) -> [u64; 2] {
    home.get(header::STORE_ID)
}

impl LockedLane {
    /// Opens the lane, made if there is none, and takes its structure byte. `None`: somebody else has it.
    pub fn try_open(path: &Path, mode: u32) -> Result<Option<LockedLane>> {
        let failed = |e| Error::store(format!("opening {}", path.display()), e);
        let (file, was_made) = open_or_create(path, mode).map_err(failed)?;
        if !os::try_lock(&file, STRUCTURE, 1).map_err(failed)? {
            return Ok(None);
        }
        // It may have been deleted before this process had the lock.
        let mine = file.metadata().map_err(failed)?;
        match std::fs::metadata(path) {
            Ok(there) if identity(&there) == identity(&mine) => {
                // Somebody else may have filled it before this process had the lock.
                let is_new = was_made && mine.len() == 0;
                Ok(Some(LockedLane { file, is_new, path: path.to_owned() }))
            }
            _ => Ok(None),
        }
    }

    /// Is this the lane that was attached as `home`, as it was then?
    pub fn is_that_of(&self, home: &Home) -> bool {
        let there = self.file.metadata().map(|m| identity(&m)).ok();
        let same_file = home.watch.as_ref().is_some_and(|watch| Some(watch.file) == there);
        same_file && home.arena.word(header::INSTANCE).load(Acquire) == home.instance
    }

    /// Maps the lane, after making it anew if it is of another boot or of another database. One that was made has to be
    /// filled, and finished with [`LockedLane::finish`].
    pub fn attach(
        &self,
        store_id: [u64; 2],
        secret: [u64; 2],
        manual: Option<&ManualClock>,
    ) -> Result<(Home, Option<Made>)> {
        let doing = || format!("opening {}", self.path.display());
        let len = self.file.metadata().map_err(|e| Error::store(doing(), e))?.len();
        let in_use = os::is_locked(&self.file, MEMBERS, MOST_MEMBERS).map_err(|e| Error::store(doing(), e))?;
        let (boot_id, time_namespace) = os::boot_identity();
        if len == 0 && in_use {
            return Err(Error::store(doing(), "it was emptied while processes use it: stop them first"));
        }
        let initialise = |made| {
            let home = self.initialise(store_id, secret, (boot_id, time_namespace), manual)?;
            Ok((home, Some(made)))
        };
        if len == 0 {
            return initialise(Made::Missing);
        }
        if len < arena::HEADER_WORDS * 8 {
            return Err(Error::NotAStore { path: self.path.clone(), found: format!("a file of {len} bytes") });
        }
        let arena = Arena::in_file(&self.reopen()?)?;
        let word = |at: u64| arena.word(at).load(Acquire);
        let version = word(header::VERSION);
        match word(header::MAGIC) {
            MAGIC if version > VERSION || in_use && version != VERSION => {
                return Err(Error::UnsupportedVersion { path: self.path.clone(), found: version, supported: VERSION });
            }
            MAGIC => {}
            // Whoever was making it died before the last word.
            0 if !in_use => return initialise(Made::Missing),
            _ => return Err(Error::NotAStore { path: self.path.clone(), found: "another kind of file".into() }),
        }
        // Cut short by somebody: what is gone cannot be touched.
        let is_whole = len >= word(arena::ALLOCATED) * 8 && len >= arena::FIRST_BYTES;
        let is_its = [word(header::STORE_ID), word(header::STORE_ID + 1)] == store_id;
        let is_now = in_use || [word(header::BOOT_ID), word(header::BOOT_ID + 1)] == boot_id;
        if in_use && !is_its {
            let cause = "processes still use it for a database that is no longer there: stop them first";
            return Err(Error::store(doing(), cause));
        }
        if in_use && !is_whole {
            return Err(Error::store(doing(), "it was cut short while processes use it: stop them first"));
        }
        if version != VERSION || !is_whole || !is_its || !is_now {
            return initialise(if is_its { Made::Unused } else { Made::Missing });
        }
        let theirs = word(header::TIME_NAMESPACE);
        if theirs != 0 && time_namespace != 0 && theirs != time_namespace {
            let cause = "it is used from another time namespace, whose clock differs from this process's";
            return Err(Error::store(doing(), cause));
        }
        if word(header::CLOCK_KIND) != u64::from(manual.is_some()) {
            let cause = "it lives by a manual clock and this store does not, or the other way round";
            return Err(Error::store(doing(), cause));
        }
        let clock = Clock::new(word(header::CLOCK_BASE), manual.cloned());
        let instance = word(header::INSTANCE);
        Ok((Home { arena, clock, instance, watch: Some(self.watch()?) }, None))
    }

    /// Makes the lane anew, in place: nobody is using it.
    fn initialise(
        &self,
        store_id: [u64; 2],
        secret: [u64; 2],
        (boot_id, time_namespace): ([u64; 2], u64),
        manual: Option<&ManualClock>,
    ) -> Result<Home> {
        let doing = || format!("making {}", self.path.display());
        self.file.set_len(0).map_err(|e| Error::store(doing(), e))?;
        Arena::allocate_first(&self.file).map_err(|e| Error::store(doing(), e))?;
        let arena = Arena::in_file(&self.reopen()?)?;
        arena.start();
        let base = Clock::fresh_base(manual);
        let [instance] = os::random::<1>().map_err(|e| Error::store(doing(), e))?;
        for (at, word) in [
            (header::INSTANCE, instance),
            (header::VERSION, VERSION),
            (header::STORE_ID, store_id[0]),
            (header::STORE_ID + 1, store_id[1]),
            (header::BOOT_ID, boot_id[0]),
            (header::BOOT_ID + 1, boot_id[1]),
            (header::TIME_NAMESPACE, time_namespace),
            (header::CLOCK_BASE, base),
            (header::CLOCK_KIND, u64::from(manual.is_some())),
        ] {
            arena.word(at).store(word, Relaxed);
        }
        let clock = Clock::new(base, manual.cloned());
        let home = Home { arena, clock, instance, watch: Some(self.watch()?) };
        home.start(secret);
        Ok(home)
    }

    /// A lane that was made has what it needs. Without this, the next process starts over.
    pub fn finish(&self, home: &Home) {
        home.arena.word(header::MAGIC).store(MAGIC, Release);
    }

    fn watch(&self) -> Result<Watch> {
        let found = self.file.metadata().map_err(|e| Error::store(format!("opening {}", self.path.display()), e))?;
        Ok(Watch::new(self.path.clone(), identity(&found)))
    }

    /// Another open file on the lane. A mapping of the one that is locked would keep its lock.
    fn reopen(&self) -> Result<File> {
        let opened = OpenOptions::new().read(true).write(true).open(&self.path);
        opened.map_err(|e| Error::store(format!("opening {}", self.path.display()), e))
    }

    /// Makes this process a member.
    pub fn join(&self, home: &Home) -> Result<Member> {
        let doing = || format!("joining {}", self.path.display());
        let file = self.reopen()?;
        loop {
            let number = home.arena.word(NEXT_MEMBER).fetch_add(1, AcqRel) + 1;
            if os::try_lock(&file, MEMBERS + number, 1).map_err(|e| Error::store(doing(), e))? {
                let page = os::Mapping::reserve_file(&file, 4096).map_err(|e| Error::store(doing(), e))?;
                page.keep_from_children().map_err(|e| Error::store(doing(), e))?;
                return Ok(Member { number, page: ManuallyDrop::new(page), generation: fork::generation() });
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

/// Notices that the lane was deleted or replaced: two lanes would each grant the whole limit.
#[derive(Debug)]
pub(crate) struct Watch {
    path: PathBuf,
    file: (u64, u64),
    next: AtomicU64,
}

impl Watch {
    fn new(path: PathBuf, file: (u64, u64)) -> Watch {
        Watch { path, file, next: AtomicU64::new(0) }
    }

    /// Has the last look been a second ago?
    #[inline(always)]
    pub fn is_due(&self, now: Tick) -> bool {
        now >= self.next.load(Relaxed)
    }

    /// Has this member's process ended? The kernel drops its lock before anybody is told of its death.
    pub fn is_gone(&self, member: u64) -> bool {
        let asked = OpenOptions::new().read(true).write(true).open(&self.path).and_then(|file| {
            let is_it = identity(&file.metadata()?) == self.file;
            Ok(is_it && !os::is_locked(&file, MEMBERS + member, 1)?)
        });
        asked.unwrap_or(false)
    }

    /// Is the lane still there?
    #[cold]
    pub fn look(&self, now: Tick) -> bool {
        let there = std::fs::metadata(&self.path).map(|found| identity(&found));
        if !there.is_ok_and(|there| there == self.file) {
            return false;
        }
        self.next.store(now + WATCH_EVERY, Relaxed);
        true
    }
}

fn identity(file: &std::fs::Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// Opens a file for reading and writing; if there is none, makes it with this mode, whatever the umask.
pub(crate) fn open_or_create(path: &Path, mode: u32) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    loop {
        match options.open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            other => return other.map(|file| (file, false)),
        }
        match options.clone().create_new(true).mode(mode).open(path) {
            Ok(file) => {
                file.set_permissions(std::fs::Permissions::from_mode(mode))?;
                return Ok((file, true));
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
}
