//! The cells of a limit: one block of words per name.

use super::home::{Home, Table};
use super::layout::{At, FIRST_LIMIT, LimitAt, NAME_CHAINS, NAMES, TableAt, limit_word, link_word, table_word};
use crate::atomic::*;
use crate::damage::{bounded, nonsense};
use crate::hash::Hash;

/// The name of a limit that can no longer be found.
pub(in crate::state) const NO_NAME: [u64; 2] = [0, 0];

/// The words of one limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LimitCells<'h> {
    pub(in crate::state) home: &'h Home,
    pub(in crate::state) at: LimitAt,
}

impl Home {
    #[inline(always)]
    pub fn limit(&self, at: LimitAt) -> LimitCells<'_> {
        LimitCells { home: self, at }
    }

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
}

impl<'h> LimitCells<'h> {
    #[inline(always)]
    pub(in crate::state) fn word(self, word: u64) -> &'h AtomicU64 {
        self.home.arena.word(self.at + word)
    }

    /// Returns whether the limit has lost its name.
    pub fn is_retired(self) -> bool {
        self.home.get(self.at + limit_word::NAME) == NO_NAME
    }

    /// The gate that binds all keys of the limit.
    #[inline(always)]
    pub fn gate(self) -> &'h AtomicU64 {
        self.word(limit_word::GATE)
    }

    /// The place of the limit's current table.
    #[inline(always)]
    pub fn table_at(self) -> TableAt {
        At::new(self.word(limit_word::TABLE).load(Acquire))
    }

    /// The limit's current table.
    pub fn table(self) -> Table {
        let table = self.home.table_at(self.table_at());
        let of = LimitAt::new(self.home.arena.word(table.at + table_word::LIMIT).load(Relaxed));
        if of != self.at {
            nonsense(format_args!("a table of the limit at {of} at {}", self.at));
        }
        table
    }
}

/// The place where a name's chain begins.
pub(in crate::state) fn chain(name: [u64; 2]) -> u64 {
    NAMES + name[0] % NAME_CHAINS
}
