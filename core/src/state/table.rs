//! How limits are laid out in an arena, and how they are found, added and replaced. (Their keys: `index.rs`.)
//!
//! ```text
//! header ─→ limit ─→ limit ─→ …           one block per name: gate, current table
//!             └─→ table                   one policy, for good; an index of keys
//!                   └─→ index ─→ key      one block per key: the cells of its algorithm
//! ```
//!
//! A table is replaced when its policy changes: see `rewrite.rs`.

use super::arena::{Arena, NoRoom};
use super::damage::{bounded, nonsense};
use super::index::{KeyAt, Root};
use super::layout::{
    FIRST_LIMIT, HASH_KEY, NAME_CHAINS, NAMES, NEXT_CHECKPOINT, NEXT_NUMBER, PHASE, index_word, key_word, limit_word,
    link_word, table_word,
};
use super::locked::Locked;
use crate::algorithm::Sealed;
use crate::algorithm::cells::Cells;
use crate::algorithm::counter::{Counter, Frame};
use crate::algorithm::jobs::Jobs;
use crate::algorithm::leases::Leases;
use crate::algorithm::log::{Log, Window};
use crate::algorithm::meter::Meter;
use crate::algorithm::slices::Slices;
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::fault;
use crate::policy::{Policy, Shape};
use crate::time::{Clock, Tick};
use siphasher::sip128::{Hasher128, SipHasher13};

/// How often the ledger is written, in ticks, if nobody has to wait for it: once a second.
const CHECKPOINT_EVERY: Tick = 1_000_000;

/// No machine boots faster than this, in ticks.
const SHORTEST_BOOT: Tick = 2_000_000;

/// The longest window whose starts are written behind, in ticks: two minutes. After a reboot a limit counts as full for so
/// long at most, which is less than most machines take to be of use again.
const LONGEST_BEHIND: Tick = 120_000_000;

pub(super) fn longest_behind() -> Tick {
    // A test cannot wait for longer windows.
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

/// The name of a limit that nobody finds any more.
const NO_NAME: [u64; 2] = [0, 0];

/// A key or a name, as the store knows it: 128 bits, keyed with the store's secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Hash(pub [u64; 2]);

/// Why a lock-free call could not finish.
#[derive(Debug)]
pub(crate) enum Blocked {
    /// The key's cells are being written elsewhere, or the table's: that has to be finished.
    Sealed,
    /// It was looked for in a place that is another's by now: look again.
    Moved,
    /// The lane that it was asked of is not the store's any more.
    Lost,
    /// Something has to grow first.
    Full,
    /// So have the tables of open places, or the slots of leases.
    Crowded,
    /// It never will.
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

impl From<NoRoom> for Blocked {
    fn from(_: NoRoom) -> Self {
        Blocked::Full
    }
}

/// A store's cells and its clock.
#[derive(Debug)]
pub(crate) struct Home {
    pub arena: Arena,
    pub clock: Clock,
    /// Which making of the lane this is; 0 on the heap.
    pub instance: u64,
    /// Looks whether the lane is still there; none on the heap.
    pub watch: Option<super::lane::Watch>,
}

/// A table, read. Its policy never changes: another policy is another table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Table {
    pub at: u64,
    pub policy: Policy,
    pub born: Tick,
    /// How many units of a key may be missing from the ledger.
    pub budget: u64,
    /// Where the block of the key "" is: it is there from the start.
    pub empty_key: u64,
}

impl Home {
    /// To be asked after each decision, with its time: is there something to look after?
    #[inline(always)]
    pub fn is_due(&self, now: Tick) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.is_due(now))
    }

    /// Looks whether the lane that decisions were made on is still the one that counts.
    pub fn is_still_there(&self, now: Tick) -> bool {
        self.watch.as_ref().is_none_or(|watch| watch.look(self, now))
    }

    /// Is it this caller's turn to write the ledger? Then it is nobody else's for a second.
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

    pub fn hash(&self, kind: u8, text: &str) -> Hash {
        let [k0, k1] = self.get(HASH_KEY);
        let mut hasher = SipHasher13::new_with_keys(k0, k1);
        std::hash::Hasher::write(&mut hasher, &[kind]);
        std::hash::Hasher::write(&mut hasher, text.as_bytes());
        let hash = hasher.finish128();
        Hash([hash.h1, hash.h2])
    }

    /// The hash of the key that a block is of.
    #[inline(always)]
    pub fn hash_at(&self, key: u64) -> Hash {
        Hash(self.get(key + key_word::HASH))
    }

    // ---- limits ----

    /// Where the limit of this name is.
    pub fn find_limit(&self, name: &str) -> Option<u64> {
        let Hash(name) = self.hash(b'n', name);
        let is_its =
            |limit: &u64| self.get(limit + limit_word::NAME) == name || self.get(limit + limit_word::NEXT_NAME) == name;
        self.linked(name).find(is_its)
    }

    /// The limits that have, had or get this name or one with the same chain.
    fn linked(&self, name: [u64; 2]) -> impl Iterator<Item = u64> {
        let next = |at: u64| Some(self.arena.word(at).load(Acquire)).filter(|at| *at != 0);
        let links = std::iter::successors(next(chain(name)), move |link| next(link + link_word::NEXT));
        bounded(links, self.arena.most()).map(|link| self.arena.word(link + link_word::LIMIT).load(Relaxed))
    }

    /// All limits, also those that have no name any more.
    pub(super) fn limits(&self) -> impl Iterator<Item = u64> {
        let next = |at: u64| Some(self.arena.word(at).load(Acquire)).filter(|at| *at != 0);
        bounded(
            std::iter::successors(next(FIRST_LIMIT), move |limit| next(limit + limit_word::NEXT)),
            self.arena.most(),
        )
    }

    /// Has its name been taken away?
    pub fn is_retired(&self, limit: u64) -> bool {
        self.get(limit + limit_word::NAME) == NO_NAME
    }

    /// The gate that binds all keys of a limit.
    #[inline(always)]
    pub fn limit_gate(&self, limit: u64) -> &AtomicU64 {
        self.arena.word(limit + limit_word::GATE)
    }

    /// The limit's table as of now.
    pub fn table(&self, limit: u64) -> Table {
        self.table_at(self.arena.word(limit + limit_word::TABLE).load(Acquire))
    }

    #[inline(always)]
    pub fn table_at(&self, at: u64) -> Table {
        let words = self.arena.words(at, table_word::WORDS);
        let word = |i: u64| words[i as usize].load(Relaxed);
        let policy = Policy::from_words(|i| word(table_word::POLICY + i as u64))
            .unwrap_or_else(|| nonsense(format_args!("no policy at {at}")));
        Table {
            at,
            policy,
            born: word(table_word::BORN),
            budget: word(table_word::BUDGET),
            empty_key: word(table_word::EMPTY_KEY),
        }
    }

    /// How many units of a key may be missing from the ledger: a twentieth of the limit, at least one; or [`BEHIND`], [`UNKEPT`].
    pub fn budget(&self, policy: Policy) -> u64 {
        match policy.longest() {
            _ if !self.is_lane() || policy.is_concurrency() => UNKEPT,
            // Nothing of it survives a boot.
            ..=SHORTEST_BOOT => UNKEPT,
            window if window <= longest_behind() => BEHIND,
            _ => (policy.capacity() / 20).max(1),
        }
    }

    /// Is it shared by processes, beside a database?
    pub fn is_lane(&self) -> bool {
        self.watch.is_some()
    }

    // ---- a key's cells ----

    /// Nobody starts on this key before this: the later of its own gate and of the one that binds all keys.
    #[inline(always)]
    pub fn gate(&self, limit: u64, key: u64) -> Tick {
        self.limit_gate(limit).load(Acquire).max(self.key_gate(key).load(Acquire))
    }

    /// The gate of one key.
    #[inline(always)]
    pub fn key_gate(&self, key: u64) -> &AtomicU64 {
        self.arena.word(key + key_word::GATE)
    }

    /// The level of a key's backoff.
    #[inline(always)]
    pub fn backoff(&self, key: u64) -> &AtomicU64 {
        self.arena.word(key + key_word::BACKOFF)
    }

    /// What jobs took, of a key whose starts are spaced by it.
    #[inline(always)]
    pub fn jobs(&self, table: &Table, key: u64) -> Option<Jobs<'_>> {
        let Shape::EvenlySpaced(spacing) = &table.policy.0 else { return None };
        let ring = spacing
            .is_adaptive
            .then(|| self.arena.words(key + key_word::RING + table.policy.ring(), spacing.jobs()))?;
        let (ended, spacing) = (self.arena.word(key + key_word::JOBS), self.arena.word(key + key_word::SPACING));
        Some(Jobs { ended, spacing, ring })
    }

    /// The table as it holds for one key: starts may be closer to each other than the policy says.
    #[inline(always)]
    pub fn adapt(&self, table: &mut Table, key: u64) {
        if let Shape::EvenlySpaced(spacing) = &mut table.policy.0
            && spacing.is_adaptive
            && let apart @ 1.. = self.arena.word(key + key_word::SPACING).load(Acquire)
        {
            *spacing = spacing.apart(apart - 1);
        }
    }

    /// Is a block still what it was when it was found?
    #[inline(always)]
    pub fn is_alive(&self, key: KeyAt) -> bool {
        self.arena.word(key.at + key_word::LIFE).load(Acquire) == key.life
    }

    /// How windows are cut that are aligned to 1970.
    #[inline(always)]
    fn frame(&self, window: Window, is_smooth: bool) -> Frame {
        let phase = self.arena.word(PHASE).load(Relaxed);
        Frame { limit: window.limit, length: window.length, is_smooth, phase }
    }

    /// A key of a limit that is a matter of time.
    #[inline(always)]
    pub fn cells(&self, table: &Table, key: KeyAt) -> Cells<'_> {
        let words = self.arena.words(key.at, key_words(table.policy));
        let word = |at: u64| &words[at as usize];
        let (head, life, own, logged) =
            (word(key_word::HOT), word(key_word::LIFE), word(key_word::OWN), word(key_word::LOGGED));
        // What jobs took comes after it.
        let ring = &words[key_word::RING as usize..][..table.policy.ring() as usize];
        let (number, era, base) = (key.life, own, word(key_word::BASE));
        match table.policy.0 {
            Shape::Bucket(bucket) => {
                let (word, last, returned, born) = (head, &ring[0], &ring[1], table.born);
                return Cells::Meter(Meter { word, base, life, number, era, logged, last, returned, born, bucket });
            }
            Shape::Counter { window, is_smooth } => {
                let frame = self.frame(window, is_smooth);
                let ring = &ring[..2];
                return Cells::Counter(Counter { ring, life, number, base, era, logged, born: table.born, frame });
            }
            Shape::Concurrency { .. } => return Cells::Leases(self.leases(table, key)),
            _ => {}
        }
        if table.policy.is_counted() {
            return Cells::Slices(Slices { head, life, base: key.life, ring, era, logged, born: table.born });
        }
        let origins = word(key_word::ORIGINS).load(Relaxed);
        let origins = if origins == 0 { &[] } else { self.arena.words(origins, table.policy.ring()) };
        let cleared = word(key_word::CLEARED);
        let (peak, base) = (word(key_word::PEAK), base.load(Acquire));
        Cells::Log(Log { head, cleared, own, logged, ring, origins, peak, life, number, base, born: table.born })
    }

    /// The cells in a block, whatever their life is. For the holder of the structure lock.
    pub fn cells_at(&self, table: &Table, at: u64) -> Cells<'_> {
        self.cells(table, KeyAt { at, life: self.arena.word(at + key_word::LIFE).load(Acquire), table: table.at })
    }

    /// The cells of a key that nobody has used. Only to look at.
    pub fn untouched(&self, table: &Table) -> Cells<'static> {
        match table.policy.0 {
            Shape::Bucket(bucket) => Cells::Meter(Meter::untouched(bucket, table.born)),
            Shape::Counter { window, is_smooth } => {
                Cells::Counter(Counter::untouched(table.born, self.frame(window, is_smooth)))
            }
            Shape::Concurrency { .. } => Cells::Leases(Leases::untouched()),
            _ if table.policy.is_counted() => Cells::Slices(Slices::untouched(table.born)),
            _ => Cells::Log(Log::untouched(table.born)),
        }
    }

    /// A number that no life and no era has had.
    pub(super) fn new_number(&self) -> u64 {
        self.arena.word(NEXT_NUMBER).fetch_add(1, Relaxed) + 1
    }

    /// Lets a block that was closed and written live again, with what [`Cells::write`] answered.
    pub(super) fn publish(&self, table: &Table, at: u64, base: u64) -> KeyAt {
        let life = if table.policy.is_sliced() {
            base
        } else {
            self.arena.word(at + key_word::BASE).store(base, Release);
            self.new_number()
        };
        self.arena.word(at + key_word::LIFE).store(life, Release);
        KeyAt { at, life, table: table.at }
    }

    /// Will nobody notice if this key is forgotten?
    pub(super) fn is_idle(&self, table: &Table, at: u64) -> bool {
        let now = self.clock.now();
        self.cells_at(table, at).is_idle(table.policy.longest(), now) && !self.is_gated(table, at, now.floor)
    }

    /// Is the key kept from starting? By its gate; or by that of its limit, if it would lose its backoff, which the next start
    /// resets otherwise.
    pub(super) fn is_gated(&self, table: &Table, at: u64, now: Tick) -> bool {
        let has_level = matches!(table.policy.0, Shape::Rate(..)) && self.backoff(at).load(Acquire) != 0;
        // Of a plan's table the owner.
        let limit = || {
            let [limit, owner] = [table_word::LIMIT, table_word::OWNER].map(|word| self.arena.word(table.at + word));
            limit.load(Acquire).max(owner.load(Acquire))
        };
        self.key_gate(at).load(Acquire) > now || has_level && self.limit_gate(limit()).load(Acquire) > now
    }

    /// A key of a concurrency limit.
    #[inline(always)]
    pub fn leases(&self, table: &Table, key: KeyAt) -> Leases<'_> {
        let words = self.arena.words(key.at, key_words(table.policy));
        let word = |at: u64| &words[at as usize];
        Leases {
            taken: word(key_word::HOT),
            returned: word(key_word::HOT + 1),
            bell: word(key_word::HOT + 2),
            sleepers: word(key_word::HOT + 3),
            base: word(key_word::BASE),
            slots: &words[key_word::RING as usize..],
            life: word(key_word::LIFE),
            number: key.life,
        }
    }

    /// A tick in microseconds since 1970, as the wall clock was when the store was made.
    pub fn unix_time(&self, tick: Tick) -> u64 {
        tick.wrapping_add(self.arena.word(PHASE).load(Relaxed))
    }

    /// Is this process of the lane no more? Not if that cannot be seen.
    pub fn is_dead(&self, member: u64) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.is_gone(member))
    }
}

impl Locked<'_> {
    /// Adds a limit. Untouched keys count as started at `born`. Only for the holder of the structure lock.
    pub fn add_limit(&self, name: &str, policy: Policy, born: Tick) -> Result<u64> {
        let at = self.allocate(limit_word::WORDS)?;
        let table = self.new_table(at, policy, (born, 0))?;
        self.set_name_text(at, name)?;
        let Hash(name) = self.hash(b'n', name);
        self.set(at + limit_word::NAME, name);
        self.arena.word(at + limit_word::TABLE).store(table, Relaxed);
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

    /// Gives a limit another name, which no other has. Only for the holder of the structure lock.
    pub fn rename(&self, limit: u64, text: &str) -> Result<()> {
        let Hash(name) = self.hash(b'n', text);
        if !self.linked(name).any(|linked| linked == limit) {
            self.link(self.allocate(link_word::WORDS)?, limit, name);
        }
        // Somebody may have died in this.
        let pending = self.get(limit + limit_word::NEXT_NAME);
        if pending != NO_NAME {
            self.write_name(limit + limit_word::NAME, pending);
        }
        // Whoever dies between two of these leaves it with one of the names.
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

    /// Takes a limit's name away, for a limit of another kind, and turns all away who still use it. Only for the holder of
    /// the structure lock.
    pub fn retire(&self, limit: u64) -> Result<()> {
        self.finish_replacing(limit)?;
        self.write_name(limit + limit_word::NEXT_NAME, NO_NAME);
        self.write_name(limit + limit_word::NAME, NO_NAME);
        self.replace(limit, self.table(limit).policy, true)
    }

    /// A table whose untouched keys count as started at `born`, and whose new keys have tickets from `first` on.
    pub(super) fn new_table(&self, limit: u64, policy: Policy, (born, first): (Tick, u64)) -> Result<u64> {
        let at = self.allocate(table_word::WORDS)?;
        self.arena.word(at + table_word::LIMIT).store(limit, Relaxed);
        self.set(at + table_word::POLICY, policy.to_words());
        self.arena.word(at + table_word::BORN).store(born, Relaxed);
        self.arena.word(at + table_word::FIRST_TICKET).store(first, Relaxed);
        self.arena.word(at + table_word::BUDGET).store(self.budget(policy), Relaxed);
        let segment = self.new_segment(index_word::FIRST_CAPACITY)?;
        self.arena.word(at + table_word::INDEX).store(Root(0).next(segment, 0).0, Relaxed);
        let (table, hash) = (self.table_at(at), self.hash(b'k', ""));
        let empty = loop {
            let block = self.used_block(policy).map_or_else(|| self.allocate(key_words(policy)), Ok)?;
            self.give_origins(&table, block)?;
            // One that had too many lives is lost.
            if let Some(empty) = self.begin(&table, block, hash, "") {
                break empty;
            }
        };
        self.insert(&table, segment, hash, empty.at);
        self.arena.word(at + table_word::EMPTY_KEY).store(empty.at, Relaxed);
        Ok(at)
    }

    /// What a forked child does with a heap that it inherited: starts that run belong to the parent. Only for the holder
    /// of the structure lock, before the child's first decision.
    pub fn disown(&self) {
        for table in self.limits().map(|limit| self.table(limit)).filter(|table| table.policy.is_concurrency()) {
            for (own, at) in self.keys(&table) {
                let life = self.arena.word(at + key_word::LIFE).load(Acquire);
                self.leases(&own, KeyAt { at, life, table: own.at }).disown();
            }
        }
    }
}

/// Where the chain of a name begins.
fn chain(name: [u64; 2]) -> u64 {
    NAMES + name[0] % NAME_CHAINS
}

/// The size of a key's block.
#[inline(always)]
pub(super) fn key_words(policy: Policy) -> u64 {
    key_word::RING + policy.ring() + policy.jobs()
}
