//! The cells of a limit: one block of words per name.

use super::home::{Home, Table};
use super::layout::{At, FIRST_LIMIT, LimitAt, LinkAt, NAME_CHAINS, NAMES, TableAt, limit_word, link_word, table_word};
use crate::atomic::*;
use crate::damage::{bounded, nonsense};
use crate::hash::Hash;
use crate::policy::MAX_NAME_BYTES;

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
        let has_it = |(link, limit): &(LinkAt, LimitAt)| self.leads_to(*limit + limit_word::NAME) == Some(*link);
        self.links(self.hash(b'n', name)).find(has_it).map(|(_, limit)| limit)
    }

    /// Finds the limit of this kind with this number in the database, if it has this name or had it: alone, or as the part
    /// of a composite.
    pub(in crate::state) fn find_number(&self, id: i64, name: &str, kind: &str) -> Option<LimitAt> {
        let whole = name.strip_suffix(kind).and_then(|whole| whole.strip_suffix('/'));
        let names = [Some(name.to_owned()), whole.map(str::to_owned), Some(format!("{name}/{kind}"))];
        let has_it = |limit: &LimitAt| self.limit(*limit).id() == id;
        names
            .into_iter()
            .flatten()
            .find_map(|name| self.links(self.hash(b'n', &name)).map(|(_, limit)| limit).find(has_it))
    }

    /// The links of this name, each with the limit that has or had it.
    pub(in crate::state) fn links(&self, Hash(name): Hash) -> impl Iterator<Item = (LinkAt, LimitAt)> {
        let links =
            std::iter::successors(self.leads_to(chain(name)), |link: &LinkAt| self.leads_to(*link + link_word::NEXT));
        let links = bounded(links, self.arena.most()).filter(move |link| self.get(*link + link_word::HASH) == name);
        links.map(|link| (link, At::new(self.get::<1>(link + link_word::LIMIT)[0])))
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
        self.word(limit_word::NAME).load(Acquire) == 0
    }

    /// The name of the limit. `None` if it has lost it.
    pub(in crate::state) fn name(self) -> Option<String> {
        let home = self.home;
        let link: LinkAt = home.leads_to(self.at + limit_word::NAME)?;
        let len = home.get::<1>(link + link_word::LEN)[0].min(MAX_NAME_BYTES as u64) as usize;
        let words = home.arena.words(link + link_word::TEXT, (len as u64).div_ceil(8));
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.load(Acquire).to_le_bytes()).collect();
        bytes.truncate(len);
        let name =
            String::from_utf8(bytes).ok().filter(|name| home.hash(b'n', name).0 == home.get(link + link_word::HASH));
        Some(name.unwrap_or_else(|| nonsense(format_args!("the name of the limit at {}", self.at))))
    }

    /// The number of the limit in the database. It never changes. 0 if it is in none, or has lost its name for good.
    pub(in crate::state) fn id(self) -> i64 {
        self.word(limit_word::ID).load(Acquire) as i64
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
