//! Limits are added, renamed and retired, by the holder of the structure lock.

use crate::algorithm::cells::Cells;
use crate::atomic::*;
use crate::error::Result;
use crate::policy::Policy;
use crate::state::cells::home::Table;
use crate::state::cells::index::Root;
use crate::state::cells::layout::{
    BlockAt, FIRST_LIMIT, LimitAt, LinkAt, index_word, limit_word, link_word, table_word,
};
use crate::state::cells::limit::chain;
use crate::state::cells::locked::Locked;
use crate::time::Tick;

impl Locked<'_> {
    /// Adds a limit with this number in the database. Unused keys count as started at `born`. Only for the holder of the
    /// structure lock.
    pub fn add_limit(&self, name: &str, id: i64, policy: Policy, born: Tick) -> Result<LimitAt> {
        let at: LimitAt = self.allocate(limit_word::WORDS)?;
        if policy.is_shared() {
            self.start_tenants(at)?;
        }
        let table = self.write_table(at, policy, (born, 0))?;
        let segment = self.new_segment(index_word::FIRST_CAPACITY, table.at)?;
        self.arena.word(table.at + table_word::INDEX).store(Root(0).next(segment.at, 0).0, Relaxed);
        let empty = self.fresh_empty_key(&table)?;
        segment.insert(self, &table, self.hash(b'k', ""), empty);
        self.arena.word(table.at + table_word::EMPTY_KEY).store(empty.offset(), Relaxed);
        self.limit(at).word(limit_word::ID).store(id as u64, Release);
        self.take_words(at, self.hash(b'k', ""), self.segment_words(&table, segment));
        let link = self.link(at, name)?;
        self.arena.word(at + limit_word::TABLE).store(table.at.offset(), Relaxed);
        let first = self.arena.word(FIRST_LIMIT);
        self.arena.word(at + limit_word::NEXT).store(first.load(Acquire), Relaxed);
        first.store(at.offset(), Release);
        // From here on it is found.
        self.arena.word(at + limit_word::NAME).store(link.offset(), Release);
        Ok(at)
    }

    /// The link between a limit and a name, which is added if necessary.
    fn link(&self, limit: LimitAt, name: &str) -> Result<LinkAt> {
        let hash = self.hash(b'n', name);
        if let Some((link, _)) = self.links(hash).find(|(_, linked)| *linked == limit) {
            return Ok(link);
        }
        let words = (name.len() as u64).div_ceil(8);
        let link: LinkAt = self.allocate(link_word::TEXT + words)?;
        for (word, bytes) in self.arena.words(link + link_word::TEXT, words).iter().zip(name.as_bytes().chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(whole), Relaxed);
        }
        let first = self.arena.word(chain(hash.0));
        let [h0, h1] = hash.0;
        self.set(link + link_word::NEXT, [first.load(Acquire), limit.offset(), h0, h1, name.len() as u64]);
        first.store(link.offset(), Release);
        Ok(link)
    }

    /// Gives a limit another name, which no other limit has. Only for the holder of the structure lock.
    pub fn rename(&self, limit: LimitAt, name: &str) -> Result<()> {
        self.arena.word(limit + limit_word::NAME).store(self.link(limit, name)?.offset(), Release);
        Ok(())
    }

    /// Takes a limit's name away because another limit has it. The limit gets another one in its turn, or when it is
    /// declared again. Only for the holder of the structure lock.
    pub fn take_name(&self, limit: LimitAt) {
        self.arena.word(limit + limit_word::NAME).store(0, Release);
    }

    /// Takes a limit's name and number away for good, forgets its keys, and rejects callers that still use it. Only for
    /// the holder of the structure lock.
    pub fn retire(&self, limit: LimitAt) -> Result<()> {
        self.finish_change(limit)?;
        // The database may know its number again: if an older copy replaces it. Another limit has the name by now.
        self.limit(limit).word(limit_word::ID).store(0, Release);
        self.take_name(limit);
        self.end_tenants(limit);
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
            let block = match self.grows(table.policy) {
                true => self.block_of_size(table.policy, table.ring)?,
                false => self.unused_block(table.policy, table.ring)?,
            };
            // A block that has used up its lives is abandoned.
            if let Some(empty) = self.block(block).begin(table, self.hash(b'k', ""), "", &[]) {
                return Ok(empty.at);
            }
        }
    }

    /// Clears, in a forked child, the parent's state of an inherited heap: its running leases, its grants, and the lines of
    /// tenants. Only for the holder of the structure lock, before the child's first decision.
    pub fn disown(&self) {
        self.forget_lines_of_tenants();
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
