//! How limits are laid out in an arena, and how they are found, added and replaced. For their keys, see `index.rs`.
//!
//! ```text
//! header ─→ limit ─→ limit ─→ …           one block per name: gate, current table
//!             └─→ table                   one policy, immutable; an index of keys
//!                   └─→ index ─→ key      one block per key: the cells of its algorithm
//! ```
//!
//! A table is replaced when its policy changes: see `rewrite.rs`.

use super::arena::{Arena, NoSpace};
use super::grant_lane::GrantLane;
use super::index::Root;
use super::lane::{WATCH_EVERY, Watch};
use super::layout::{
    FIRST_LIMIT, HASH_KEY, NAME_CHAINS, NAMES, NEXT_CHECKPOINT, NEXT_NUMBER, PHASE, index_word, key_word, limit_word,
    link_word, table_word,
};
use super::locked::Locked;
use crate::algorithm::cells::Cells;
use crate::algorithm::leases::NotEnded;
use crate::algorithm::{Sealed, grants};
use crate::atomic::*;
use crate::damage::{bounded, nonsense, or_damaged};
use crate::error::{Error, Result};
use crate::fault;
use crate::hash::{self, Hash, sum};
use crate::policy::{Policy, Windows};
use crate::server::EPOCH;
use crate::time::{Clock, Tick};
use siphasher::sip128::SipHasher13;

/// How often the ledger is written if no caller has to wait for it, in ticks: once a second.
const CHECKPOINT_EVERY: Tick = 1_000_000;

/// The shortest time that a machine needs to boot, in ticks.
const SHORTEST_BOOT: Tick = 2_000_000;

/// The longest window whose starts are written behind, in ticks: two minutes. After a reboot, such a limit counts as
/// full for at most this time. Most machines need longer until they do useful work again.
const LONGEST_BEHIND: Tick = 120_000_000;

pub(super) fn longest_behind() -> Tick {
    // Tests cannot wait for longer windows.
    #[cfg(feature = "fault-points")]
    if let Some(longest) = std::env::var("WGL_TEST_BEHIND_US").ok().and_then(|text| text.parse().ok()) {
        return longest;
    }
    LONGEST_BEHIND
}

/// The budget of a limit that is written behind: any number of units may be missing from the ledger.
pub(super) const BEHIND: u64 = u64::MAX - 1;

/// The budget of a limit that is not in the ledger at all.
pub(super) const UNKEPT: u64 = u64::MAX;

/// The name of a limit that can no longer be found.
const NO_NAME: [u64; 2] = [0, 0];

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

/// The class that [`Home::block_class`] returns for keys to which a server grants units. No policy has it.
const GRANTS_CLASS: u64 = 62;

/// The time of checks on a heap, where nothing is ever due.
pub(super) const NEVER: Tick = Tick::MAX;

/// A store's cells and its clock.
#[derive(Debug)]
pub(crate) struct Home {
    pub arena: Arena,
    pub clock: Clock,
    /// The number of this lane's creation; 0 on the heap.
    pub instance: u64,
    /// Whether every start must be in the ledger before it happens.
    pub commits: bool,
    /// When the once-a-second duties are due: see [`Limit::look_after`](super::limit::Limit::look_after).
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
    pub at: u64,
    pub policy: Policy,
    pub born: Tick,
    /// The number of a key's units that may be missing from the ledger.
    pub budget: u64,
    pub keeping: Keeping,
    /// Derived from the policy: see [`Policy::capacity`], [`Policy::ring`], [`Policy::jobs`] and [`Policy::windows`].
    pub capacity: u64,
    pub ring: u64,
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

impl Home {
    /// Returns whether some periodic duty is due. Called after each decision, with its time.
    #[inline(always)]
    pub fn is_due(&self, now: Tick) -> bool {
        now >= self.next_look.load(Relaxed)
    }

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

    pub(super) fn set<const N: usize>(&self, at: u64, words: [u64; N]) {
        for (i, word) in words.into_iter().enumerate() {
            self.arena.word(at + i as u64).store(word, Relaxed);
        }
    }

    pub(super) fn get<const N: usize>(&self, at: u64) -> [u64; N] {
        std::array::from_fn(|i| self.arena.word(at + i as u64).load(Acquire))
    }

    /// Hashes a key (`b'k'`) or a name (`b'n'`).
    pub fn hash(&self, kind: u8, text: &str) -> Hash {
        Hash::of(&self.hasher(kind), text)
    }

    /// The hasher of keys (`b'k'`) or names (`b'n'`).
    pub fn hasher(&self, kind: u8) -> SipHasher13 {
        hash::hasher(self.get(HASH_KEY), kind)
    }

    // ---- limits ----

    /// Finds the limit with this name.
    pub fn find_limit(&self, name: &str) -> Option<u64> {
        let Hash(name) = self.hash(b'n', name);
        let is_its =
            |limit: &u64| self.get(limit + limit_word::NAME) == name || self.get(limit + limit_word::NEXT_NAME) == name;
        self.linked(name).find(is_its)
    }

    /// The limits that have, had or are about to get this name, or another name of the same chain.
    fn linked(&self, name: [u64; 2]) -> impl Iterator<Item = u64> {
        let next = |at: u64| Some(self.arena.word(at).load(Acquire)).filter(|at| *at != 0);
        let links = std::iter::successors(next(chain(name)), move |link| next(link + link_word::NEXT));
        bounded(links, self.arena.most()).map(|link| self.arena.word(link + link_word::LIMIT).load(Relaxed))
    }

    /// All limits, including those without a name.
    pub(super) fn limits(&self) -> impl Iterator<Item = u64> {
        let next = |at: u64| Some(self.arena.word(at).load(Acquire)).filter(|at| *at != 0);
        bounded(
            std::iter::successors(next(FIRST_LIMIT), move |limit| next(limit + limit_word::NEXT)),
            self.arena.most(),
        )
    }

    /// Returns whether the limit has lost its name.
    pub fn is_retired(&self, limit: u64) -> bool {
        self.get(limit + limit_word::NAME) == NO_NAME
    }

    /// The gate that binds all keys of a limit.
    #[inline(always)]
    pub fn limit_gate(&self, limit: u64) -> &AtomicU64 {
        self.arena.word(limit + limit_word::GATE)
    }

    /// The place of the limit's current table.
    #[inline(always)]
    pub fn current_table(&self, limit: u64) -> u64 {
        self.arena.word(limit + limit_word::TABLE).load(Acquire)
    }

    /// The limit's current table.
    pub fn table(&self, limit: u64) -> Table {
        let table = self.table_at(self.current_table(limit));
        let of = self.arena.word(table.at + table_word::LIMIT).load(Relaxed);
        if of != limit {
            nonsense(format_args!("a table of the limit at {of} at {limit}"));
        }
        table
    }

    /// Writes the policy of a new table.
    pub(super) fn set_policy(&self, at: u64, policy: Policy) {
        let words = policy.to_words();
        self.set(at + table_word::POLICY, words);
        self.set(at + table_word::SUM, [sum(words)]);
    }

    pub fn table_at(&self, at: u64) -> Table {
        let words = self.arena.words(at, table_word::WORDS);
        let word = |i: u64| words[i as usize].load(Relaxed);
        let policy = Policy::from_words(|i| word(table_word::POLICY + i as u64))
            .filter(|_| sum(std::array::from_fn(|i| word(table_word::POLICY + i as u64))) == word(table_word::SUM))
            .unwrap_or_else(|| nonsense(format_args!("no policy at {at}")));
        Table {
            at,
            policy,
            born: word(table_word::BORN),
            budget: self.budget(policy),
            keeping: self.keeping(policy),
            capacity: policy.capacity(),
            ring: self.ring(policy),
            is_adaptive: policy.jobs() > 0,
            windows: *policy.all_windows(),
            is_log: policy.has_origins() && !self.is_granted(policy),
            is_sliced: policy.is_sliced() && !self.is_granted(policy),
            at_once: match () {
                () if self.has_grants && self.is_granted(policy) => AtOnce::Grants,
                () if self.is_served => AtOnce::Nothing,
                () if policy.jobs() > 0 || policy.is_concurrency() => AtOnce::Nothing,
                () if policy.has_origins() => AtOnce::Logs,
                () if policy.is_bucket() => AtOnce::Buckets,
                () => AtOnce::Windows,
            },
        }
    }

    /// Returns whether the cells of its keys hold what a server has granted. Also true if the server grants nothing,
    /// since there is nothing else to store.
    pub fn is_granted(&self, policy: Policy) -> bool {
        self.is_served && policy.shared_by().is_some()
    }

    /// The number of words of a key's cells after its head.
    pub(super) fn ring(&self, policy: Policy) -> u64 {
        if self.is_granted(policy) { grants::WORDS } else { policy.ring() }
    }

    /// The class of a key's block. Blocks of one class can replace each other: see [`Policy::block_class`].
    pub(super) fn block_class(&self, policy: Policy) -> u64 {
        if self.is_granted(policy) { GRANTS_CLASS } else { policy.block_class() }
    }

    /// The size of a key's block.
    pub(super) fn key_words(&self, policy: Policy) -> u64 {
        key_word::RING + self.ring(policy) + policy.jobs()
    }

    /// The place of the block of the key "", which exists from the start.
    #[inline(always)]
    pub fn empty_key_of(&self, table: &Table) -> &AtomicU64 {
        self.arena.word(table.at + table_word::EMPTY_KEY)
    }

    /// The number of a key's units that may be missing from the ledger: a twentieth of the limit, at least one; or
    /// [`BEHIND`] or [`UNKEPT`].
    pub fn budget(&self, policy: Policy) -> u64 {
        match policy.longest() {
            _ if !self.is_lane() || policy.is_concurrency() => UNKEPT,
            // Such starts end before the next boot.
            ..=SHORTEST_BOOT => UNKEPT,
            window if window <= longest_behind() => BEHIND,
            _ => (policy.capacity() / 20).max(1),
        }
    }

    fn keeping(&self, policy: Policy) -> Keeping {
        match self.budget(policy) {
            _ if self.commits => Keeping::Ahead,
            UNKEPT => Keeping::No,
            BEHIND => Keeping::Behind,
            _ => Keeping::Ahead,
        }
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

    // ---- a key's cells ----

    /// A number that no earlier life or era has had.
    pub(super) fn new_number(&self) -> u64 {
        self.arena.word(NEXT_NUMBER).fetch_add(1, Relaxed) + 1
    }

    /// The limit of a table or plan.
    pub(super) fn limit_of(&self, table: &Table) -> u64 {
        self.arena.word(table.at + table_word::OWNER).load(Acquire)
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

impl Locked<'_> {
    /// Adds a limit. Unused keys count as started at `born`. Only for the holder of the structure lock.
    pub fn add_limit(&self, name: &str, policy: Policy, born: Tick) -> Result<u64> {
        let at = self.allocate(limit_word::WORDS)?;
        let table = self.write_table(at, policy, (born, 0))?;
        let segment = self.new_segment(index_word::FIRST_CAPACITY, table.at)?;
        self.arena.word(table.at + table_word::INDEX).store(Root(0).next(segment, 0).0, Relaxed);
        let empty = self.fresh_empty_key(&table)?;
        self.insert(&table, segment, self.hash(b'k', ""), empty);
        self.arena.word(table.at + table_word::EMPTY_KEY).store(empty, Relaxed);
        self.set_name_text(at, name)?;
        let Hash(name) = self.hash(b'n', name);
        self.set(at + limit_word::NAME, name);
        self.arena.word(at + limit_word::TABLE).store(table.at, Relaxed);
        let first = self.arena.word(FIRST_LIMIT);
        self.arena.word(at + limit_word::NEXT).store(first.load(Acquire), Relaxed);
        first.store(at, Release);
        self.link(at + limit_word::LINK, at, name);
        Ok(at)
    }

    /// Puts a limit into the chain of a name.
    fn link(&self, link: u64, limit: u64, name: [u64; 2]) {
        let first = self.arena.word(chain(name));
        self.set(link, [first.load(Acquire), limit]);
        first.store(link, Release);
    }

    /// Gives a limit another name, which no other limit has. Only for the holder of the structure lock.
    pub fn rename(&self, limit: u64, text: &str) -> Result<()> {
        let Hash(name) = self.hash(b'n', text);
        if !self.linked(name).any(|linked| linked == limit) {
            self.link(self.allocate(link_word::WORDS)?, limit, name);
        }
        // A process may have died during an earlier rename.
        let pending = self.get(limit + limit_word::NEXT_NAME);
        if pending != NO_NAME {
            self.write_name(limit + limit_word::NAME, pending);
        }
        // A process that dies between two of these writes leaves the limit with one of its names.
        self.write_name(limit + limit_word::NEXT_NAME, name);
        self.write_name(limit + limit_word::NAME, name);
        self.write_name(limit + limit_word::NEXT_NAME, NO_NAME);
        self.set_name_text(limit, text)
    }

    fn write_name(&self, at: u64, [first, second]: [u64; 2]) {
        self.arena.word(at).store(first, Release);
        fault::point("half-named");
        self.arena.word(at + 1).store(second, Release);
    }

    /// Takes a limit's name away, for a limit of another kind, and rejects callers that still use it. Only for the
    /// holder of the structure lock.
    pub fn retire(&self, limit: u64) -> Result<()> {
        self.finish_change(limit)?;
        self.write_name(limit + limit_word::NEXT_NAME, NO_NAME);
        self.write_name(limit + limit_word::NAME, NO_NAME);
        self.replace(limit, self.table(limit).policy, true)
    }

    /// Writes a table whose unused keys count as started at `born`, and whose new keys have tickets from `first` on. It
    /// has no index yet.
    pub(super) fn write_table(&self, limit: u64, policy: Policy, (born, first): (Tick, u64)) -> Result<Table> {
        let at = self.allocate(table_word::WORDS)?;
        self.set(at + table_word::LIMIT, [limit]);
        self.set(at + table_word::OWNER, [limit]);
        self.set_policy(at, policy);
        self.set(at + table_word::BORN, [born]);
        self.set(at + table_word::FIRST_TICKET, [first]);
        Ok(self.table_at(at))
    }

    /// The unused key "" of a new table.
    pub(super) fn fresh_empty_key(&self, table: &Table) -> Result<u64> {
        loop {
            let block = self.unused_block(table)?;
            // A block that has used up its lives is abandoned.
            if let Some(empty) = self.begin(table, block, self.hash(b'k', ""), "", &[]) {
                return Ok(empty.at);
            }
        }
    }

    /// Clears, in a forked child, the parent's state of an inherited heap: its running leases and its grants. Only for
    /// the holder of the structure lock, before the child's first decision.
    pub fn disown(&self) {
        let is_own = |table: &Table| table.policy.is_concurrency() || self.is_granted(table.policy);
        for table in self.limits().map(|limit| self.table(limit)).filter(is_own) {
            for (own, at) in self.keys(&table) {
                match self.cells_at(&own, at) {
                    Cells::Leases(leases) => leases.disown(),
                    Cells::Grants(grants) => grants.disown(),
                    _ => {}
                }
            }
        }
    }
}

/// The place where a name's chain begins.
fn chain(name: [u64; 2]) -> u64 {
    NAMES + name[0] % NAME_CHAINS
}
