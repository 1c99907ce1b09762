//! How limits are laid out in an arena, and how they are found. For their keys, see `index.rs`.
//!
//! ```text
//! header ─→ limit ─→ limit ─→ …           one block per name: gate, current table
//!             └─→ table                   one policy, immutable; an index of keys
//!                   └─→ index ─→ key      one block per key: the cells of its algorithm
//! ```
//!
//! Limits are added and renamed in `limits.rs`. A table is replaced when its policy changes: see `rewrite.rs`.

use super::home::{AtOnce, BEHIND, Home, Keeping, KeyAt, Table, UNKEPT};
use super::layout::{At, LimitAt, OLDER_WORDS, TableAt, key_word, table_word};
use crate::algorithm::log::{self, SETTLED};
use crate::algorithm::{Start, grants};
use crate::atomic::*;
use crate::damage::nonsense;
use crate::fault;
use crate::hash::sum;
use crate::policy::Policy;
use crate::state::files::arena;
use crate::time::{Now, Tick};
use std::ops::RangeInclusive;

/// The classes of the smallest and the largest rings of logs.
const FIRST_RING: u64 = log::FIRST_SLOTS.ilog2() as u64;
const LAST_RING: u64 = (2 * log::MAX).ilog2() as u64;

/// The shortest time that a machine needs to boot, in ticks.
const MIN_BOOT: Tick = 2_000_000;

/// The longest window whose starts are written behind, in ticks: two minutes. After a reboot, such a limit counts as
/// full for at most this time. Most machines need longer until they do useful work again.
const MAX_BEHIND: Tick = 120_000_000;

pub(in crate::state) fn longest_behind() -> Tick {
    // Tests cannot wait for longer windows.
    #[cfg(feature = "fault-points")]
    if let Some(longest) = std::env::var("WGL_TEST_BEHIND_US").ok().and_then(|text| text.parse().ok()) {
        return longest;
    }
    MAX_BEHIND
}

/// The class that [`Home::block_class`] returns for keys to which a server grants units. No policy has it.
const GRANTS_CLASS: u64 = 62;

/// The words of one table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TableCells<'h, 't> {
    pub(in crate::state) home: &'h Home,
    pub(in crate::state) table: &'t Table,
}

impl<'h> TableCells<'h, '_> {
    /// The place of the block of the key "", which exists from the start.
    #[inline(always)]
    pub fn empty_key(self) -> &'h AtomicU64 {
        self.home.arena.word(self.table.at + table_word::EMPTY_KEY)
    }

    /// The limit of a table or plan.
    pub(in crate::state) fn limit(self) -> LimitAt {
        At::new(self.home.arena.word(self.table.at + table_word::OWNER).load(Acquire))
    }

    /// The starts of each key that the ledger may have missed when it was read, while they count.
    pub(super) fn lost(self, now: Now) -> Option<Start> {
        let [stamp, units] = self.home.get(self.table.at + table_word::LOST);
        let counts = units > 0 && stamp + self.table.policy.longest() > now.floor;
        // The next boot may come while it still counts, so it must be written before the key's first start.
        let is_logged = fault::planted("lost once");
        counts.then_some(Start { stamp, units, state: SETTLED, id: u64::MAX, is_logged })
    }

    /// Returns whether unused keys count more starts than another boot would take as lost under this policy: they may
    /// be in no ledger.
    pub(in crate::state) fn has_lost_more(self) -> bool {
        let budget = self.home.budget(self.table.policy);
        budget < BEHIND && self.lost(self.home.clock.now()).is_some_and(|lost| lost.units > budget)
    }

    /// The units of each unused key that the ledger may have missed, while they count.
    pub(in crate::state) fn lost_units(self) -> u64 {
        self.lost(self.home.clock.now()).map_or(0, |lost| lost.units)
    }

    /// Returns whether new keys need the structure lock: one may be in the ledger, or need a larger block than usual.
    pub(in crate::state) fn is_added_under_lock(self) -> bool {
        let ring = || self.home.ring_for(self.table.policy, self.lost_units(), 0);
        self.may_restore() || ring() != self.table.first_ring
    }

    /// Returns whether even an unused key counts as having started something.
    pub fn has_lost(self) -> bool {
        self.lost(self.home.clock.now()).is_some()
    }

    /// The table that applies to one key, where it is not the limit's own: a plan, or a spacing closer than the
    /// policy's.
    #[inline(always)]
    pub fn own_of(self, key: KeyAt) -> Option<Table> {
        (self.table.is_adaptive || key.table != self.table.at).then(|| self.adapted(key))
    }

    #[cold]
    fn adapted(self, key: KeyAt) -> Table {
        let mut own = self.for_key(key);
        self.home.block(key.at).adapt(&mut own);
        own
    }
}

impl Home {
    #[inline(always)]
    pub fn of<'t>(&self, table: &'t Table) -> TableCells<'_, 't> {
        TableCells { home: self, table }
    }

    /// Writes the policy of a new table.
    pub(in crate::state) fn set_policy(&self, at: TableAt, policy: Policy) {
        let words = policy.to_words();
        self.set(at + table_word::POLICY, words);
        self.set(at + table_word::SUM, [sum(words)]);
    }

    pub fn table_at(&self, at: TableAt) -> Table {
        let words = self.arena.words(at.offset(), table_word::WORDS);
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
            first_ring: self.first_ring(policy),
            largest: policy.largest(),
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

    /// The number of words of a key's cells after its head: the most, where they grow.
    pub(in crate::state) fn ring(&self, policy: Policy) -> u64 {
        if self.is_granted(policy) { grants::WORDS } else { policy.ring() }
    }

    /// Returns whether a key begins with a small ring, which grows.
    pub(in crate::state) fn grows(&self, policy: Policy) -> bool {
        policy.has_origins() && policy.jobs() == 0 && !self.is_granted(policy)
    }

    /// The number of words of a new key's cells after its head.
    pub(in crate::state) fn first_ring(&self, policy: Policy) -> u64 {
        self.ring_for(policy, 0, 0)
    }

    /// The number of words of the cells of a key with so many units, and then a start of this weight.
    pub(in crate::state) fn ring_for(&self, policy: Policy, units: u64, weight: u64) -> u64 {
        let whole = self.ring(policy);
        if self.grows(policy) { log::slots_for(units, weight, whole) } else { whole }
    }

    /// The classes of blocks that can serve in place of one of this class. A log may have a larger ring than it needs.
    pub(in crate::state) fn classes_for(&self, class: u64) -> RangeInclusive<u64> {
        class..=if self.has_rings(class) { LAST_RING } else { class }
    }

    /// Returns whether the blocks of this class are those of logs whose rings grow.
    pub(in crate::state) fn has_rings(&self, class: u64) -> bool {
        (FIRST_RING..=LAST_RING).contains(&class)
    }

    /// The class of a block with this ring. Blocks of one class can replace each other: see [`Policy::block_class`].
    pub(in crate::state) fn class_of(&self, policy: Policy, ring: u64) -> u64 {
        match () {
            () if self.is_granted(policy) => GRANTS_CLASS,
            () if self.grows(policy) => u64::from(ring.max(1).ilog2()),
            () => policy.block_class(),
        }
    }

    /// The class of a new key's block.
    pub(in crate::state) fn block_class(&self, policy: Policy) -> u64 {
        self.class_of(policy, self.first_ring(policy))
    }

    /// The size of a block with this ring.
    pub(in crate::state) fn words_with(&self, policy: Policy, ring: u64) -> u64 {
        key_word::RING + ring + policy.jobs()
    }

    /// The size of a new key's block.
    pub(in crate::state) fn key_words(&self, policy: Policy) -> u64 {
        self.words_with(policy, self.first_ring(policy))
    }

    /// The words that a key's block with this ring takes, and what belongs to it, where the arena may have gaps before
    /// them.
    pub(in crate::state) fn all_words(&self, policy: Policy, ring: u64) -> u64 {
        arena::aligned(self.words_with(policy, ring)) + arena::aligned(ring + OLDER_WORDS)
    }

    /// The most words that a key's block and what belongs to it can have.
    pub(in crate::state) fn most_words(&self, policy: Policy) -> u64 {
        self.all_words(policy, self.ring(policy))
    }

    /// The number of a key's units that may be missing from the ledger: a twentieth of the limit, at least one; or
    /// [`BEHIND`] or [`UNKEPT`].
    pub fn budget(&self, policy: Policy) -> u64 {
        match policy.longest() {
            _ if !self.is_lane() || policy.is_concurrency() => UNKEPT,
            // Such starts end before the next boot.
            ..=MIN_BOOT => UNKEPT,
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
}
