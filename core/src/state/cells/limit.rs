//! The cells of a limit: one block of words per name.

use super::home::{Home, Table};
use super::layout::{At, LimitAt, TableAt, limit_word, table_word};
use super::table::NO_NAME;
use crate::atomic::*;
use crate::damage::nonsense;

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
