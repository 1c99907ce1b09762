//! A file that the processes of one machine map to share the units that a server granted them.
//!
//! A process that does not share is a site of its own: it asks only for itself, and what it does not use waits until it
//! asks again. With a lane, all processes of the machine start from the same grants. The file holds nothing durable. A
//! process that finds none creates one, and a process that has lost the file continues alone.
//!
//! A *slot* belongs to one key of one limit under one policy. It is found by a hash in one of a few positions, and
//! claimed by the process that [asks](Grants::begin) there. A key that finds no slot is not shared. A slot whose
//! contents have all expired may pass to another key. It then gets a new life, so that no process starts from what it
//! found there before.
//!
//! Each process locks a byte of its own, as in a database's lane, so the kernel shows whether a process that is asking
//! is still alive.

use super::lane::KeptLock;
use super::{FileId, id_of};
use crate::algorithm::grants::{self, Asker, Grants};
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::fork::PerProcess;
use crate::hash::Hash;
use crate::os::{self, wake_all};
use crate::state::files;
use crate::time::uptime;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::slice;
use std::time::Duration;

const MAGIC: u64 = u64::from_le_bytes(*b"wglgrant");
const VERSION: u64 = 2;

/// Words of the header, which fills a page.
mod header {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 1;
    pub const BOOT: usize = 2; // two words
    pub const TIME_NAMESPACE: usize = 4;
    pub const NEXT_MEMBER: usize = 5;
    pub const WORDS: usize = 512;
}

/// Words of a slot.
mod slot {
    /// The life of the slot: odd while it belongs to a key.
    pub const LIFE: usize = 0;
    pub const HASH: usize = 1; // two words
    pub const GRANTS: usize = 3;
    /// A multiple of a cache line.
    pub const WORDS: usize = (GRANTS + super::grants::WORDS as usize).next_multiple_of(8);
}

const SLOT_BITS: u32 = 12;
const SLOTS: usize = 1 << SLOT_BITS;
/// The number of slots in which a key is searched.
const PLACES: usize = 8;
const BYTES: usize = (header::WORDS + SLOTS * slot::WORDS) * 8;

/// Marks a key whose grants belong to this process alone, because no slot was free.
const ALONE: u64 = u64::MAX;

/// The locked bytes, far beyond the end of the file: one held while the file is created, and one for each process that
/// uses it.
const MAKING: u64 = 1 << 40;
const MEMBERS: u64 = MAKING + 1;
const MAX_MEMBERS: u64 = u32::MAX as u64;

/// A process that uses the file.
#[derive(Debug)]
struct Member {
    number: u32,
    _lock: KeptLock,
}

/// The file, mapped.
#[derive(Debug)]
pub(crate) struct GrantLane {
    path: PathBuf,
    file: FileId,
    map: os::Mapping,
    member: PerProcess<Option<Member>>,
}

impl GrantLane {
    /// How long a process waits at least for an answer that another one has requested. That process may have been
    /// stopped.
    pub const PATIENCE: Duration = Duration::from_millis(100);

    /// Opens the file, or creates it if there is no usable one. Returns `None` if another process is creating it or has
    /// removed it.
    pub fn try_open(path: &Path, mode: u32) -> Result<Option<GrantLane>> {
        let failed = |e| Error::store(format!("opening {}", path.display()), e);
        let dir = path.parent().unwrap_or(Path::new("/"));
        if let Some(kind) = os::shared_file_system(dir).map_err(failed)? {
            return Err(Error::UnsupportedFileSystem { path: dir.to_owned(), kind });
        }
        let (file, _) = files::open_or_create(path, mode).map_err(failed)?;
        let is_locked = os::try_lock(&file, MAKING, 1).map_err(failed)?;
        let is_there = || files::id_at(path).is_ok_and(|id| is(&file, id));
        (is_locked && is_there()).then(|| GrantLane::attach(path, &file)).transpose()
    }

    /// Maps a file that this process has the right to create.
    fn attach(path: &Path, locked: &File) -> Result<GrantLane> {
        let failed = |e| Error::store(format!("opening {}", path.display()), e);
        // A mapping of the locked descriptor would keep its lock.
        let file = files::open(path).map_err(failed)?;
        let map = || os::Mapping::reserve_file(&file, BYTES).and_then(|map| map.commit(0, BYTES).map(|()| map));
        let is_used = os::is_locked(locked, MEMBERS, MAX_MEMBERS).map_err(failed)?;
        let (len, boot, namespace) =
            (locked.metadata().map_err(failed)?.len(), os::boot().map_err(failed)?.id, os::time_namespace());
        let mut magic = [0; 8];
        if len >= 8 {
            locked.read_exact_at(&mut magic, 0).map_err(failed)?;
        }
        match u64::from_le_bytes(magic) {
            MAGIC if len >= BYTES as u64 => {
                let lane = GrantLane::new(path, &file, map().map_err(failed)?)?;
                let word = |at: usize| lane.word(at).load(Acquire);
                let version = word(header::VERSION);
                if is_used && version != VERSION {
                    let (path, found) = (path.to_owned(), version);
                    return Err(Error::UnsupportedVersion { path, found, supported: VERSION });
                }
                if is_used && word(header::TIME_NAMESPACE) != namespace {
                    let cause = "it is used from another time namespace, whose clock differs from this process's";
                    return Err(Error::store(format!("opening {}", path.display()), cause));
                }
                let is_of =
                    [header::BOOT, header::BOOT + 1, header::TIME_NAMESPACE].map(word) == [boot[0], boot[1], namespace];
                if is_used || version == VERSION && is_of {
                    return lane.joined();
                }
            }
            MAGIC if is_used => {
                return Err(Error::Damaged { path: path.to_owned(), found: "it was truncated while in use".into() });
            }
            // The process that was creating it died before it wrote the first word, which it writes last.
            0 if len <= BYTES as u64 => {}
            MAGIC => {}
            _ => return Err(Error::NotAStore { path: path.to_owned(), found: "another kind of file".into() }),
        }
        let empty = locked.set_len(0).and_then(|()| os::allocate(locked, 0, BYTES as u64));
        if let Err(e) = empty {
            // Nothing half-made remains.
            let _ = locked.set_len(0);
            return Err(failed(e));
        }
        let lane = GrantLane::new(path, &file, map().map_err(failed)?)?;
        let words = [
            (header::VERSION, VERSION),
            (header::BOOT, boot[0]),
            (header::BOOT + 1, boot[1]),
            (header::TIME_NAMESPACE, namespace),
            (header::MAGIC, MAGIC),
        ];
        words.into_iter().for_each(|(at, word)| lane.word(at).store(word, Release));
        lane.joined()
    }

    fn new(path: &Path, file: &File, map: os::Mapping) -> Result<GrantLane> {
        let found = file.metadata().map_err(|e| Error::store(format!("opening {}", path.display()), e))?;
        Ok(GrantLane { path: path.to_owned(), file: id_of(&found), map, member: PerProcess::new() })
    }

    /// Joins. After this, no process recreates the file.
    fn joined(self) -> Result<GrantLane> {
        self.process()?;
        Ok(self)
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has this size, is aligned to a page and lives as long as `self`. Its words are only ever
        // used as atomics.
        unsafe { slice::from_raw_parts(self.map.base().cast(), BYTES / 8) }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.words()[at]
    }

    fn slot(&self, at: usize) -> &[AtomicU64] {
        &self.words()[header::WORDS + at * slot::WORDS..][..slot::WORDS]
    }

    fn grants(&self, at: usize, life: u64) -> Grants<'_> {
        let slot = self.slot(at);
        Grants { words: &slot[slot::GRANTS..][..grants::WORDS as usize], life: &slot[slot::LIFE], number: life }
    }

    /// The number of this process among those that use the file. A forked child gets another one.
    pub fn process(&self) -> Result<u32> {
        let mut member = self.member.lock();
        if let Some(member) = &*member {
            return Ok(member.number);
        }
        let failed = |e| Error::store(format!("opening {}", self.path.display()), e);
        let file = files::open(&self.path).map_err(failed)?;
        if !is(&file, self.file) {
            return Err(Error::store(format!("opening {}", self.path.display()), "another file is in its place"));
        }
        loop {
            let number = self.word(header::NEXT_MEMBER).fetch_add(1, AcqRel) % (MAX_MEMBERS - 1) + 1;
            if os::try_lock(&file, MEMBERS + number, 1).map_err(failed)? {
                let lock = KeptLock::new(&file).map_err(failed)?;
                return Ok(member.insert(Member { number: number as u32, _lock: lock }).number);
            }
        }
    }

    /// Returns whether a process that is asking has ended.
    pub fn is_gone(&self, asker: &Asker) -> bool {
        files::open(&self.path).is_ok_and(|file| {
            let is_locked = || os::is_locked(&file, MEMBERS + u64::from(asker.process()), 1);
            is(&file, self.file) && is_locked().is_ok_and(|is_locked| !is_locked)
        })
    }

    /// Makes a key's grants this process's alone if the file has been replaced: the deaths of other sharing processes
    /// can no longer be seen.
    pub fn leave_if_it_is_gone(&self, own: Grants) {
        if !files::id_at(&self.path).is_ok_and(|id| id == self.file) && own.begin(0).is_ok() {
            own.share(ALONE);
            wake_all(own.end());
        }
    }

    /// The shared grants of a key; `None` if they are not known.
    #[inline(always)]
    fn shared(&self, own: &Grants) -> Option<Grants<'_>> {
        let shared = own.shared();
        let of = |shared: u64| self.grants(shared as usize % SLOTS, shared >> SLOT_BITS);
        (shared != 0 && shared != ALONE).then(|| of(shared)).filter(|grants| !grants.is_over())
    }

    /// The grants of a key, shared or this process's own.
    #[inline(always)]
    pub fn of<'a>(&'a self, own: Grants<'a>) -> Grants<'a> {
        self.shared(&own).unwrap_or(own)
    }

    /// The grants of a key, after a slot was found or claimed for it.
    pub fn find<'a>(&'a self, own: Grants<'a>, hash: impl FnOnce() -> Hash) -> Grants<'a> {
        // While another thread looks for a slot, this one uses its own grants once.
        if self.shared(&own).is_none() && own.shared() != ALONE && own.begin(0).is_ok() {
            // If the file has been replaced, the process cannot become a member, and uses its own grants.
            own.share(self.process().map_or(ALONE, |process| self.slot_of(hash(), process)));
            wake_all(own.end());
        }
        self.of(own)
    }

    /// A slot for a key, and its life.
    fn slot_of(&self, hash: Hash, process: u32) -> u64 {
        let places = || (0..PLACES as u64).map(|i| (hash.0[0].wrapping_add(i) % SLOTS as u64) as usize);
        let of = |at: usize| {
            let slot = self.slot(at);
            let word = |at: usize| slot[at].load(Acquire);
            let life = word(slot::LIFE);
            let is_its = life % 2 == 1 && [word(slot::HASH), word(slot::HASH + 1)] == hash.0;
            (is_its && word(slot::LIFE) == life).then_some(life << SLOT_BITS | at as u64)
        };
        let found = places().find_map(of).or_else(|| places().find_map(|at| self.claim(at, hash, process)));
        found.unwrap_or(ALONE)
    }

    /// Claims a slot for a key, if it is free or its contents have expired.
    fn claim(&self, at: usize, hash: Hash, process: u32) -> Option<u64> {
        let slot = self.slot(at);
        let life = slot[slot::LIFE].load(Acquire);
        let grants = self.grants(at, life);
        let is_there = || slot[slot::LIFE].load(Acquire) == life;
        let is_free = || is_there() && (life.is_multiple_of(2) || grants.is_stale(uptime()));
        if !is_free() {
            return None;
        }
        if let Err(asker) = grants.begin(process)
            && !(self.is_gone(&asker) && grants.take_over(&asker, process))
        {
            return None;
        }
        // No other process writes it now: it belongs to the one that asks.
        let claimed = is_free().then(|| {
            grants.begin_as_another(|| {
                [0, 1].into_iter().for_each(|i| slot[slot::HASH + i].store(hash.0[i], Relaxed));
            })
        });
        wake_all(grants.end());
        claimed.map(|life| life << SLOT_BITS | at as u64)
    }
}

fn is(file: &File, id: FileId) -> bool {
    file.metadata().is_ok_and(|found| id_of(&found) == id)
}
