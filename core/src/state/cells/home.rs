//! A home: the cells of a store, its clock, and what it knows of itself. Also what all that use it have in common.

use super::layout::{At, BlockAt, HASH_KEY, LimitAt, NEXT_CHECKPOINT, NEXT_NUMBER, PHASE, TableAt};
use crate::algorithm::Sealed;
use crate::algorithm::cells::Cells;
use crate::algorithm::leases::NotEnded;
use crate::atomic::*;
use crate::damage::or_damaged;
use crate::error::{Error, Result};
use crate::hash::{self, Hash};
use crate::policy::{Policy, Windows};
use crate::server::EPOCH;
use crate::state::files::arena::{Arena, NoSpace};
use crate::state::files::grant_lane::GrantLane;
use crate::state::files::lane::{WATCH_EVERY, Watch};
use crate::time::{Clock, Now, Tick};
use siphasher::sip128::SipHasher13;

/// How often the ledger is written if no caller has to wait for it, in ticks: once a second.
const CHECKPOINT_EVERY: Tick = 1_000_000;

/// The budget of a limit that is written behind: any number of units may be missing from the ledger.
pub(in crate::state) const BEHIND: u64 = u64::MAX - 1;

/// The budget of a limit that is not in the ledger at all.
pub(in crate::state) const UNKEPT: u64 = u64::MAX;

/// The reason why a lock-free call could not finish.
#[derive(Debug)]
pub(crate) enum Blocked {
    /// The cells of the key or of the table are being rewritten. That has to be completed first.
    Sealed,
    /// The place in which the key was searched belongs to another one by now. Search again.
    Moved,
    /// The key is not in use.
    Absent,
    /// The key is not in the lane, but may be in the ledger: see `restoring.rs`.
    Unrestored,
    /// Another policy applies to the key, and no process moves it there: see `replace.rs`.
    Outdated,
    /// Refused starts have to be taken back first. That may wait, and so may the ledger: they have to share a deadline.
    Refusals,
    /// The lane is no longer the store's.
    Lost,
    /// The store or the index must grow first.
    Full,
    /// The tables of open places, or the slots of leases, must grow first.
    Crowded,
    /// The cells are being rewritten, or the key's ring may be too small for a start of this weight.
    Small(u64),
    /// The server reports that another policy applies.
    Stale,
    /// The call can never succeed.
    Refused(Error),
}

impl From<Error> for Blocked {
    fn from(error: Error) -> Self {
        Blocked::Refused(error)
    }
}

impl From<Sealed> for Blocked {
    fn from(_: Sealed) -> Self {
        Blocked::Sealed
    }
}

impl From<NotEnded> for Blocked {
    fn from(not: NotEnded) -> Self {
        match not {
            NotEnded::Sealed => Blocked::Sealed,
            NotEnded::Crowded => Blocked::Crowded,
        }
    }
}

impl From<NoSpace> for Blocked {
    fn from(_: NoSpace) -> Self {
        Blocked::Full
    }
}

/// The time of checks on a heap, where nothing is ever due.
pub(in crate::state) const NEVER: Tick = Tick::MAX;

/// A store's cells and its clock.
#[derive(Debug)]
pub(crate) struct Home {
    pub arena: Arena,
    pub clock: Clock,
    /// The number of this lane's creation; 0 on the heap.
    pub instance: u64,
    /// Whether every start must be in the ledger before it happens.
    pub commits: bool,
    /// When the once-a-second duties are due: see `Limit::look_after`.
    pub next_look: AtomicU64,
    /// Checks whether the lane is still there. `None` on the heap.
    pub watch: Option<Watch>,
    /// Whether a server decides. If so, the keys here hold only their counters and the units that they were granted.
    pub is_served: bool,
    /// Whether the server grants units where it can.
    pub has_grants: bool,
    /// Where the processes of this machine share the server's grants, if they do.
    pub grant_lane: Option<GrantLane>,
}

/// The words of a table. Its policy never changes: another policy is another table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Table {
    pub at: TableAt,
    pub policy: Policy,
    pub born: Tick,
    /// The number of a key's units that may be missing from the ledger.
    pub budget: u64,
    pub keeping: Keeping,
    /// Derived from the policy: see [`Policy::capacity`], [`Policy::ring`], [`Policy::jobs`] and [`Policy::windows`].
    pub capacity: u64,
    pub ring: u64,
    /// See [`Home::first_ring`].
    pub first_ring: u64,
    /// The largest limit of its windows.
    pub largest: u64,
    pub is_adaptive: bool,
    pub windows: Windows,
    /// Whether the cells of its keys are a log, or slices.
    pub is_log: bool,
    pub is_sliced: bool,
    pub at_once: AtOnce,
}

/// How this process records the starts of a limit in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeping {
    /// It does not.
    No,
    /// Within about a second.
    Behind,
    /// No start happens while more than the [budget](Table::budget) is missing, or while anything is missing if the
    /// store commits.
    Ahead,
}

/// Which keys of a limit are decided on directly where they are found, without unwinding: those of a policy that is the
/// same for all starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtOnce {
    Nothing,
    Logs,
    Buckets,
    /// Windows in which units are counted.
    Windows,
    /// From the units that a server has granted.
    Grants,
}

/// The place where a key was found, and the life of its block. Operations on it must be of that life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyAt {
    pub at: BlockAt,
    pub life: u64,
    /// The table that applies to the key: the one in which it was searched, or a plan.
    pub table: TableAt,
}

/// A key that a call has found: its home and limit, and the table that applies to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found<'a> {
    pub home: &'a Home,
    pub limit: LimitAt,
    pub table: &'a Table,
    pub key: KeyAt,
    /// The hash that identifies the key, independent of its place.
    pub hash: Hash,
}

impl<'a> Found<'a> {
    pub fn cells(&self) -> Cells<'a> {
        self.home.cells(self.table, self.key)
    }

    /// Lists the key for the ledger's writers, of all processes.
    pub fn list(&self, now: Now) {
        self.home.list(self.limit, self.key.at, self.hash, now.floor);
    }
}

impl Home {
    /// Checks whether the lane on which decisions were made is still the valid one.
    pub fn is_still_there(&self, now: Tick) -> bool {
        let Some(watch) = &self.watch else { return true };
        let is_there = watch.look(&self.arena);
        if is_there {
            self.next_look.store(now + WATCH_EVERY, Relaxed);
        }
        is_there
    }

    /// Records that the database has changed underneath. The next holder of the lock attaches again.
    pub fn doubt_lane(&self) {
        self.watch.iter().for_each(Watch::doubt);
        self.next_look.store(0, Release);
    }

    /// Returns whether it is this caller's turn to write the ledger. If so, it is no other caller's for a second.
    pub fn takes_checkpoint(&self, now: Tick) -> bool {
        let next = self.arena.word(NEXT_CHECKPOINT);
        let due = next.load(Relaxed);
        due <= now && next.compare_exchange(due, now + CHECKPOINT_EVERY, AcqRel, Relaxed).is_ok()
    }

    /// Sets the secret of a new store.
    pub fn start(&self, secret: [u64; 2]) {
        self.set(HASH_KEY, secret);
        self.set(PHASE, [self.clock.phase()]);
    }

    pub(in crate::state) fn set<const N: usize>(&self, at: u64, words: [u64; N]) {
        for (i, word) in words.into_iter().enumerate() {
            self.arena.word(at + i as u64).store(word, Relaxed);
        }
    }

    pub(in crate::state) fn get<const N: usize>(&self, at: u64) -> [u64; N] {
        std::array::from_fn(|i| self.arena.word(at + i as u64).load(Acquire))
    }

    /// The place that a word holds. `None` if it holds 0.
    pub(in crate::state) fn leads_to<Words>(&self, word: u64) -> Option<At<Words>> {
        At::some(self.arena.word(word).load(Acquire))
    }

    /// Hashes a key (`b'k'`) or a name (`b'n'`).
    pub fn hash(&self, kind: u8, text: &str) -> Hash {
        Hash::of(&self.hasher(kind), text)
    }

    /// The hasher of keys (`b'k'`) or names (`b'n'`).
    pub fn hasher(&self, kind: u8) -> SipHasher13 {
        hash::hasher(self.get(HASH_KEY), kind)
    }

    /// Runs code that may unwind inside code that must not.
    #[inline(always)]
    pub fn behind_door<R>(&self, f: impl FnOnce() -> Result<R, Blocked>) -> Result<R, Blocked> {
        or_damaged(|| self.watch.as_ref().map(Watch::path), || Ok(f()))?
    }

    /// Returns whether the store is shared by processes, next to a database.
    pub fn is_lane(&self) -> bool {
        self.watch.is_some()
    }

    /// A number that no earlier life or era has had.
    pub(in crate::state) fn new_number(&self) -> u64 {
        self.arena.word(NEXT_NUMBER).fetch_add(1, Relaxed) + 1
    }

    /// Converts a tick to microseconds since 1970, by the wall clock at the store's creation.
    pub fn unix_time(&self, tick: Tick) -> u64 {
        tick.wrapping_add(self.arena.word(PHASE).load(Relaxed))
    }

    /// The Unix time of tick 0, in microseconds, where a server decides.
    pub fn phase_on_server(&self) -> i64 {
        (if self.clock.is_manual() { self.unix_time(0) } else { EPOCH }) as i64
    }

    /// Returns whether this process of the lane has ended. False if that cannot be determined.
    pub fn is_dead(&self, member: u64) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.is_gone(member))
    }
}
