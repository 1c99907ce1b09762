//! How limits are laid out in an arena, and how they are found. For their keys, see `index.rs`.
//!
//! ```text
//! header ─→ limit ─→ limit ─→ …           one block per name: gate, current table
//!             └─→ table                   one policy, immutable; an index of keys
//!                   └─→ index ─→ key      one block per key: the cells of its algorithm
//! ```
//!
//! Limits are added and renamed in `limits.rs`. A table is replaced when its policy changes: see `rewrite.rs`.

use super::home::{AtOnce, BEHIND, Home, Keeping, Table, UNKEPT};
use super::layout::{
    At, FIRST_LIMIT, LimitAt, NAME_CHAINS, NAMES, TableAt, key_word, limit_word, link_word, table_word,
};
use crate::algorithm::grants;
use crate::atomic::*;
use crate::damage::{bounded, nonsense};
use crate::hash::{Hash, sum};
use crate::policy::Policy;
use crate::time::Tick;

/// The shortest time that a machine needs to boot, in ticks.
const SHORTEST_BOOT: Tick = 2_000_000;

/// The longest window whose starts are written behind, in ticks: two minutes. After a reboot, such a limit counts as
/// full for at most this time. Most machines need longer until they do useful work again.
const LONGEST_BEHIND: Tick = 120_000_000;

pub(in crate::state) fn longest_behind() -> Tick {
    // Tests cannot wait for longer windows.
    #[cfg(feature = "fault-points")]
    if let Some(longest) = std::env::var("WGL_TEST_BEHIND_US").ok().and_then(|text| text.parse().ok()) {
        return longest;
    }
    LONGEST_BEHIND
}

/// The name of a limit that can no longer be found.
pub(in crate::state) const NO_NAME: [u64; 2] = [0, 0];

/// The class that [`Home::block_class`] returns for keys to which a server grants units. No policy has it.
const GRANTS_CLASS: u64 = 62;

impl Home {
    /// Finds the limit with this name.
    pub fn find_limit(&self, name: &str) -> Option<LimitAt> {
        let Hash(name) = self.hash(b'n', name);
        let has_it = |limit: LimitAt, word| self.get(limit + word) == name;
        self.linked(name).find(|at| has_it(*at, limit_word::NAME) || has_it(*at, limit_word::NEXT_NAME))
    }

    /// The limits that have, had or are about to get this name, or another name of the same chain.
    pub(in crate::state) fn linked(&self, name: [u64; 2]) -> impl Iterator<Item = LimitAt> {
        let links = self.leads_to::<link_word::Of>(chain(name));
        let links = std::iter::successors(links, |link| self.leads_to(*link + link_word::NEXT));
        bounded(links, self.arena.most()).map(|link| At::new(self.arena.word(link + link_word::LIMIT).load(Relaxed)))
    }

    /// All limits, including those without a name.
    pub(in crate::state) fn limits(&self) -> impl Iterator<Item = LimitAt> {
        let all = std::iter::successors(self.leads_to(FIRST_LIMIT), |limit: &LimitAt| {
            self.leads_to(*limit + limit_word::NEXT)
        });
        bounded(all, self.arena.most())
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
    pub(in crate::state) fn ring(&self, policy: Policy) -> u64 {
        if self.is_granted(policy) { grants::WORDS } else { policy.ring() }
    }

    /// The class of a key's block. Blocks of one class can replace each other: see [`Policy::block_class`].
    pub(in crate::state) fn block_class(&self, policy: Policy) -> u64 {
        if self.is_granted(policy) { GRANTS_CLASS } else { policy.block_class() }
    }

    /// The size of a key's block.
    pub(in crate::state) fn key_words(&self, policy: Policy) -> u64 {
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

    /// The limit of a table or plan.
    pub(in crate::state) fn limit_of(&self, table: &Table) -> LimitAt {
        At::new(self.arena.word(table.at + table_word::OWNER).load(Acquire))
    }
}

/// The place where a name's chain begins.
pub(in crate::state) fn chain(name: [u64; 2]) -> u64 {
    NAMES + name[0] % NAME_CHAINS
}
