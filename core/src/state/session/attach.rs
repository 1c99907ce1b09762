//! A lane as a home: attached, or rebuilt if it is not the latest of its database; and the processes that use it.

use crate::atomic::*;
use crate::error::{Error, Result};
use crate::os;
use crate::state::cells::home::{Home, NEVER};
use crate::state::cells::layout::{HASH_KEY, NEXT_MEMBER};
use crate::state::files::FileId;
use crate::state::files::arena::{self, Arena};
use crate::state::files::lane::{
    Creation, KeptLock, LaneState, LockedLane, MAGIC, MAX_MEMBERS, MEMBERS, VERSION, header, pair,
};
use crate::state::ledger::database::Identity;
use crate::time::{Clock, ManualClock};
use std::path::{Path, PathBuf};

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
    /// The last commit that the lane knew before the identity was read: others may commit at any time.
    pub committed: u64,
}

impl LockedLane {
    /// Maps the lane, and first rebuilds it if it is not the latest of this database. Returns `None` if a new lane must
    /// replace one that is still in use: see [`LockedLane::remove`].
    pub fn attach(&self, store: &Store, manual: Option<&ManualClock>) -> Result<Option<(Home, LaneState)>> {
        let Store { identity, path, id, committed } = store;
        let len = self.file.metadata().map_err(|e| self.failed(e))?.len();
        let in_use = os::is_locked(&self.file, MEMBERS, MAX_MEMBERS).map_err(|e| self.failed(e))?;
        let make = |made| match in_use {
            true => Ok(None),
            false => Ok(Some((self.initialise(store, manual)?, LaneState::Created(made)))),
        };
        if len == 0 {
            return make(Creation::Missing);
        }
        // The store's last lane was created on this file, so the file is not a stranger's.
        let is_strange = |found: String| match identity.lane {
            Some(_) => Err(Error::Damaged { path: self.path().to_owned(), found }),
            None => Err(Error::NotAStore { path: self.path().to_owned(), found }),
        };
        if len < arena::HEADER_WORDS * 8 {
            return is_strange(format!("a file of {len} bytes"));
        }
        // Only the header is read until the rest is known to exist.
        let header = self.header()?;
        let word = |at: u64| header.word(at).load(Acquire);
        let words = |at: u64| pair(&header, at);
        let version = word(header::VERSION);
        match word(header::MAGIC) {
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
        let is_ahead = *committed > identity.sequence || identity.lane.is_none();
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

    /// Fails if the lane is of a later version, or of an earlier one and processes use it. Before the database becomes
    /// one of this version, which they could not read.
    pub fn refuse_other_versions(&self) -> Result<()> {
        let len = self.file.metadata().map_err(|e| self.failed(e))?.len();
        let in_use = os::is_locked(&self.file, MEMBERS, MAX_MEMBERS).map_err(|e| self.failed(e))?;
        if len < arena::HEADER_WORDS * 8 {
            return Ok(());
        }
        let header = self.header()?;
        let [magic, found] = [header::MAGIC, header::VERSION].map(|at| header.word(at).load(Acquire));
        match magic == MAGIC && (found > VERSION || in_use && found != VERSION) {
            true => Err(Error::UnsupportedVersion { path: self.path().to_owned(), found, supported: VERSION }),
            false => Ok(()),
        }
    }

    /// Returns the store identity and secret of this lane, if the lane belongs to this boot and no process uses it. A
    /// new database that replaces a deleted one continues with the state of this lane.
    pub fn left_by(&self) -> Result<Option<([u64; 2], [u64; 2])>> {
        let len = self.file.metadata().map_err(|e| self.failed(e))?.len();
        let in_use = os::is_locked(&self.file, MEMBERS, MAX_MEMBERS).map_err(|e| self.failed(e))?;
        if in_use || len < arena::HEADER_WORDS * 8 {
            return Ok(None);
        }
        let header = self.header()?;
        let is_left = header.word(header::MAGIC).load(Acquire) == MAGIC && self.may_count(&header)?;
        Ok(is_left.then(|| (pair(&header, header::STORE_ID), pair(&header, HASH_KEY))))
    }

    /// Rebuilds the lane in place. No process uses it.
    fn initialise(&self, store: &Store, manual: Option<&ManualClock>) -> Result<Home> {
        let Store { identity, path, id, .. } = store;
        let doing = || format!("making {}", self.path().display());
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
        home.members().start();
        home.start_heads();
        Ok(home)
    }

    fn watched(&self, home: Home, store: &Store, database: &Path) -> Result<Home> {
        let watch = self.watch(&home.arena, store.identity.id, database)?;
        Ok(Home { next_look: AtomicU64::new(0), watch: Some(watch), ..home })
    }

    /// Makes this process a member.
    pub fn join(&self, home: &Home) -> Result<Member> {
        let failed = |e| Error::store(format!("joining {}", self.path().display()), e);
        let file = self.reopen()?;
        loop {
            let number = home.arena.word(NEXT_MEMBER).fetch_add(1, AcqRel) % (MAX_MEMBERS - 1) + 1;
            if os::try_lock(&file, MEMBERS + number, 1).map_err(failed)? {
                let lock = KeptLock::new(&file).map_err(failed)?;
                let is_gone = |other| !os::is_locked(&file, MEMBERS + other, 1).unwrap_or(true);
                home.members().enter(number, is_gone);
                home.sweep_heads(is_gone);
                return Ok(Member { number, _lock: lock });
            }
        }
    }
}

impl Home {
    /// Returns whether this is the lane that it was attached to, next to the same database.
    pub(super) fn is_in(&self, lane: &LockedLane) -> bool {
        self.watch.as_ref().is_some_and(|watch| lane.is_watched_by(watch, &self.arena))
    }

    /// Returns whether its lane shows an earlier state than it did before.
    pub(super) fn is_ahead_of(&self, lane: &LockedLane) -> bool {
        self.watch.as_ref().is_some_and(|watch| lane.went_back(watch, &self.arena))
    }

    /// The identity of the store that its lane belongs to.
    pub(in crate::state) fn store_id(&self) -> [u64; 2] {
        self.watch.as_ref().map_or([0, 0], |watch| watch.store_id)
    }
}
