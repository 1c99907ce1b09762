//! Limits are added, renamed and retired, by the holder of the structure lock.

use crate::algorithm::cells::Cells;
use crate::atomic::*;
use crate::error::Result;
use crate::fault;
use crate::hash::Hash;
use crate::policy::Policy;
use crate::state::cells::home::Table;
use crate::state::cells::index::Root;
use crate::state::cells::layout::{At, BlockAt, FIRST_LIMIT, LimitAt, index_word, limit_word, link_word, table_word};
use crate::state::cells::limit::{NO_NAME, chain};
use crate::state::cells::locked::Locked;
use crate::time::Tick;

impl Locked<'_> {
    /// Adds a limit. Unused keys count as started at `born`. Only for the holder of the structure lock.
    pub fn add_limit(&self, name: &str, policy: Policy, born: Tick) -> Result<LimitAt> {
        let at: LimitAt = self.allocate(limit_word::WORDS)?;
        let table = self.write_table(at, policy, (born, 0))?;
        let segment = self.new_segment(index_word::FIRST_CAPACITY, table.at)?;
        self.arena.word(table.at + table_word::INDEX).store(Root(0).next(segment.at, 0).0, Relaxed);
        let empty = self.fresh_empty_key(&table)?;
        segment.insert(&table, self.hash(b'k', ""), empty);
        self.arena.word(table.at + table_word::EMPTY_KEY).store(empty.offset(), Relaxed);
        self.set_name_text(at, name)?;
        let Hash(name) = self.hash(b'n', name);
        self.set(at + limit_word::NAME, name);
        self.limit(at).word(limit_word::TABLE).store(table.at.offset(), Relaxed);
        let first = self.arena.word(FIRST_LIMIT);
        self.limit(at).word(limit_word::NEXT).store(first.load(Acquire), Relaxed);
        first.store(at.offset(), Release);
        self.link(At::new(at + limit_word::LINK), at, name);
        Ok(at)
    }

    /// Puts a limit into the chain of a name.
    fn link(&self, link: At<link_word::Of>, limit: LimitAt, name: [u64; 2]) {
        let first = self.arena.word(chain(name));
        self.set(link + link_word::NEXT, [first.load(Acquire), limit.offset()]);
        first.store(link.offset(), Release);
    }

    /// Gives a limit another name, which no other limit has. Only for the holder of the structure lock.
    pub fn rename(&self, limit: LimitAt, text: &str) -> Result<()> {
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
    pub fn retire(&self, limit: LimitAt) -> Result<()> {
        self.finish_change(limit)?;
        self.write_name(limit + limit_word::NEXT_NAME, NO_NAME);
        self.write_name(limit + limit_word::NAME, NO_NAME);
        self.replace(limit, self.limit(limit).table().policy, true)
    }

    /// Writes a table whose unused keys count as started at `born`, and whose new keys have tickets from `first` on. It
    /// has no index yet.
    pub(super) fn write_table(&self, limit: LimitAt, policy: Policy, (born, first): (Tick, u64)) -> Result<Table> {
        let at = self.allocate(table_word::WORDS)?;
        self.set(at + table_word::LIMIT, [limit.offset()]);
        self.set(at + table_word::OWNER, [limit.offset()]);
        self.set_policy(at, policy);
        self.set(at + table_word::BORN, [born]);
        self.set(at + table_word::FIRST_TICKET, [first]);
        Ok(self.table_at(at))
    }

    /// The unused key "" of a new table.
    pub(super) fn fresh_empty_key(&self, table: &Table) -> Result<BlockAt> {
        loop {
            let block = self.unused_block(table)?;
            // A block that has used up its lives is abandoned.
            if let Some(empty) = self.block(block).begin(table, self.hash(b'k', ""), "", &[]) {
                return Ok(empty.at);
            }
        }
    }

    /// Clears, in a forked child, the parent's state of an inherited heap: its running leases and its grants. Only for
    /// the holder of the structure lock, before the child's first decision.
    pub fn disown(&self) {
        let is_own = |table: &Table| table.policy.is_concurrency() || self.is_granted(table.policy);
        for table in self.limits().map(|limit| self.limit(limit).table()).filter(is_own) {
            for (own, at) in self.index(&table).keys() {
                match self.block(at).cells(&own) {
                    Cells::Leases(leases) => leases.disown(),
                    Cells::Grants(grants) => grants.disown(),
                    _ => {}
                }
            }
        }
    }
}
