//! Keys that are only in the ledger.
//!
//! The process that rebuilds a lane restores a few thousand starts at once. It does not restore a million: all callers
//! would wait for it. Then a key is restored at its first use, and the ledger's writer restores the others, some each
//! second, until none is left.
//!
//! A key that is not in the lane may be in the ledger then. Its first caller reads the key's rows, without the structure
//! lock, and adds the key with their starts under it. The rows of rebuilding time are in an index of the ledger for as
//! long as that lasts. Rows that were written later are of keys that have been in the new lane, and are not read: what
//! counts of them is there. Until all keys are restored, no row is removed because it has expired: it may count again by
//! a longer window, as it would in the lane.
//!
//! The key "", and keys with policies of their own, are restored at once, so nothing else has to look for their rows.
//! Leases are in no ledger.

use super::database::{Database, from_hex, to_hex};
use super::executions::{MAX_UNITS, Moment, STARTED};
use super::gather::moment;
use crate::algorithm::log::SETTLED;
use crate::algorithm::{History, Start};
use crate::atomic::*;
use crate::damage::nonsense;
use crate::error::{Error, Result};
use crate::fault;
use crate::hash::Hash;
use crate::state::cells::home::{BEHIND, Blocked, Home, Table};
use crate::state::cells::layout::{LimitAt, RESTORING, TableAt, limit_word, table_word};
use crate::state::cells::locked::Locked;
use crate::state::cells::table::TableCells;
use crate::state::rare::rewrite::{pad, units_of};
use crate::state::rare::space::{MAX_TURNS, Need, Search};
use crate::time::{Now, Tick};
use rusqlite::{OptionalExtension, named_params, params};
use std::collections::BTreeSet;

/// How many rows it looks at before others may have the structure lock.
const ROWS: usize = 64;

/// The rows that may have to be restored, and how they count. Words of the lane, after the one that says that there are
/// any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::state) struct Past {
    /// The latest start, as an uptime, and the last row.
    pub until: i64,
    pub last_row: i64,
    /// Rows that count for at most this long in total do not matter.
    pub over: Tick,
    /// Starts of limits that are written behind count as no earlier than this.
    pub booted: Tick,
    /// No start counts as later than this.
    pub noticed: Tick,
}

/// A key of the ledger: its limit's number in the database, and its hash.
pub(in crate::state) type LedgerKey = (i64, Hash);

/// The starts of a key in the ledger: when, as an uptime, and how many units.
#[derive(Debug, Default)]
pub(in crate::state) struct Rows {
    starts: Vec<(i64, u64)>,
    /// The key's text, which may be truncated.
    pub text: String,
}

impl Rows {
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }
}

impl Past {
    pub(in crate::state) const WORDS: u64 = 5;

    fn to_words(self) -> [u64; Past::WORDS as usize] {
        [self.until as u64, self.last_row as u64, self.over, self.booted, self.noticed]
    }

    fn from_words([until, last_row, over, booted, noticed]: [u64; Past::WORDS as usize]) -> Past {
        Past { until: until as i64, last_row: last_row as i64, over, booted, noticed }
    }
}

impl TableCells<'_, '_> {
    /// The table that a limit got when the lane was rebuilt, while keys of it may be only in the ledger.
    fn unrestored(self) -> Option<TableAt> {
        self.home.leads_to(self.limit() + limit_word::UNRESTORED)
    }

    /// Returns whether a key that is not in this table may be in the ledger.
    pub(in crate::state) fn may_restore(self) -> bool {
        self.unrestored().is_some()
    }

    /// The starts in these rows that were not forgotten since, as they would be in the lane.
    pub(super) fn starts_of(self, rows: &Rows) -> Vec<Start> {
        let ((now, moment), past) = (moment(self.home), self.home.past());
        let [cleared] = self.home.get(self.table.at + table_word::CLEARED);
        let earliest = if self.former().budget >= BEHIND { past.booted } else { 0 };
        let start = |&(uptime, units): &(i64, u64)| {
            let stamp = now.ceil.saturating_add_signed(uptime.saturating_sub(moment.uptime));
            let stamp = stamp.min(past.noticed).max(earliest);
            Start { stamp, units, state: SETTLED, id: u64::MAX, is_logged: true }
        };
        let rows = if fault::planted("restored without starts") { &Rows::default() } else { rows };
        rows.starts.iter().map(start).filter(|start| start.units > 0 && start.stamp > cleared).collect()
    }

    fn former(self) -> Table {
        self.unrestored().map_or(*self.table, |at| self.home.table_at(at))
    }
}

impl Home {
    /// Returns whether keys of any limit may be only in the ledger.
    pub(in crate::state) fn is_restoring(&self) -> bool {
        self.arena.word(RESTORING).load(Acquire) != 0
    }

    /// The last row of the ledger that may have to be restored; 0 if there is none.
    pub(super) fn last_unrestored(&self) -> i64 {
        if self.is_restoring() { self.past().last_row } else { 0 }
    }

    pub(in crate::state) fn past(&self) -> Past {
        Past::from_words(self.get(RESTORING + 1))
    }
}

impl Locked<'_> {
    /// Leaves the keys of these limits to their first use. The lane is not published yet.
    pub(super) fn restore_later(
        &self,
        database: &Database,
        past: Past,
        limits: impl Iterator<Item = LimitAt>,
    ) -> Result<()> {
        self.set(RESTORING + 1, past.to_words());
        self.set(RESTORING + 1 + Past::WORDS, [0]);
        for limit in limits {
            let has_some = database.has_rows_to_restore(self.limit(limit).id(), past)?;
            let table = if has_some { self.limit(limit).table().at.offset() } else { 0 };
            self.set(limit + limit_word::UNRESTORED, [table]);
        }
        self.arena.word(RESTORING).store(1, Release);
        Ok(())
    }

    /// Adds a key with its starts in the ledger, unless it is in the lane by now. If the policy has changed since the lane
    /// was rebuilt, the key is as if the change had found it in the lane.
    pub(in crate::state) fn restore_key(
        &self,
        table: &Table,
        hash: Hash,
        text: &str,
        rows: &Rows,
    ) -> Result<(), Blocked> {
        if self.index(table).block(hash).is_some() {
            return Ok(());
        }
        let (starts, former) = (self.of(table).starts_of(rows), self.of(table).former());
        let added = match former.at == table.at || starts.is_empty() {
            true => {
                self.add_with(table, hash, units_of(&starts), &|at| self.block(at).begin(table, hash, text, &starts))
            }
            false => {
                let (history, now) = self.history_before(&former, table, (hash, text), &starts)?;
                self.add_with(table, hash, units_of(&history.starts), &|at| {
                    self.block(at).begin_with(table, (hash, text), (&history, now))
                })
            }
        };
        added.map(drop)
    }

    /// The same, and makes space if there is none. One key without space would keep all later ones from being restored.
    pub(in crate::state) fn restore_key_anyway(
        &self,
        table: &Table,
        hash: Hash,
        text: &str,
        rows: &Rows,
    ) -> Result<()> {
        let mut search = Search::default();
        for _ in 0..MAX_TURNS {
            match self.restore_key(table, hash, text, rows) {
                Ok(()) => return Ok(()),
                Err(Blocked::Full) => drop(search.has_found(self.make_space(table, hash, Need::Restored)?)?),
                Err(Blocked::Refused(Error::StoreFull { .. })) => {
                    let former = self.of(table).former().policy;
                    self.grow_beyond(2 * self.most_words(former) + self.most_words(table.policy))?;
                }
                Err(Blocked::Refused(error)) => return Err(error),
                Err(_) => self.repair_key(table, hash)?,
            }
        }
        nonsense("a repaired key did not stay repaired")
    }

    /// The history that a key with these starts would have after a change of its limit's policy.
    fn history_before(
        &self,
        former: &Table,
        table: &Table,
        (hash, text): (Hash, &str),
        starts: &[Start],
    ) -> Result<(History, Now)> {
        loop {
            let ring = self.ring_for(former.policy, units_of(starts) + self.of(former).lost_units(), 0);
            let at = self.unused_block(former.policy, ring)?;
            // A block that has used up its lives is abandoned.
            if let Some(from) = self.block(at).begin(former, hash, text, starts) {
                let (mut history, now) = self.take_history(former, from, table);
                self.retire_block(former.policy, at);
                pad(&mut history, table, now);
                return Ok((history, now));
            }
        }
    }

    /// Blocks limits of which not all keys are restored, for as long as starts may count: they are not known any more.
    pub(super) fn close_unrestored(&self) {
        if !self.is_restoring() {
            return;
        }
        self.limits().for_each(|limit| self.close_unrestored_of(limit));
        self.all_restored();
    }

    /// Does so for one limit.
    pub(super) fn close_unrestored_of(&self, limit: LimitAt) {
        let table = self.limit(limit).table();
        if !self.of(&table).may_restore() {
            return;
        }
        // (A tenant's share has no starts. What it says of the limit's policy may be older.)
        let plans = self.index(&table).keys_on_plans().filter(|(plan, _)| !plan.policy.is_shared());
        let plans = plans.map(|(plan, _)| plan.policy.longest());
        let longest = plans.max().unwrap_or(0).max(table.policy.longest());
        self.limit(limit).gate().fetch_max(self.clock.now().ceil.saturating_add(longest), AcqRel);
        self.arena.word(limit + limit_word::UNRESTORED).store(0, Release);
    }

    pub(in crate::state) fn all_restored(&self) {
        self.limits().for_each(|limit| self.arena.word(limit + limit_word::UNRESTORED).store(0, Release));
        self.arena.word(RESTORING).store(0, Release);
    }
}

impl Database {
    /// Returns whether more than so many rows still count that count for longer than `over` in total.
    pub(super) fn has_more_than(&self, most: u64, boot: &str, now: Moment, over: Tick) -> Result<bool> {
        let count = format!(
            "SELECT count(*) FROM (SELECT {STARTED} AS started, expires_at - started_at AS counts_for FROM executions
             WHERE started + counts_for > :uptime AND counts_for > :over LIMIT :most)"
        );
        let most = most as i64;
        let clock = named_params! { ":boot": boot, ":uptime": now.uptime, ":wall": now.wall, ":synced": now.synced,
        ":over": over as i64, ":most": most + 1 };
        let counted = self.connection.query_row(&count, clock, |row| row.get::<_, i64>(0));
        counted.map(|count| count > most).map_err(|e| self.explain(e))
    }

    /// Makes the index by which single keys are read: of all rows that there are. Returns the uptime of the latest start,
    /// and the last row.
    pub(super) fn index_keys(&self) -> Result<(i64, i64)> {
        let index = || -> rusqlite::Result<(i64, i64)> {
            let last = "SELECT ifnull(max(uptime), 0), ifnull(max(rowid), 0) FROM executions";
            let (until, last_row) = self.connection.query_row(last, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
            // A later row is not in it, and costs nothing.
            self.connection.execute_batch(&format!(
                "DROP INDEX IF EXISTS executions_by_key;
                 CREATE INDEX executions_by_key ON executions (limit_id, key_hash) WHERE uptime <= {until}"
            ))?;
            Ok((until, last_row))
        };
        index().map_err(|e| self.explain(e))
    }

    /// Removes the index, if there is one. Expired rows may go from here on.
    pub(in crate::state) fn end_index_of_keys(&self) -> Result<()> {
        self.connection.execute_batch("DROP INDEX IF EXISTS executions_by_key").map_err(|e| self.explain(e))
    }

    fn has_rows_to_restore(&self, limit: i64, Past { until, over, .. }: Past) -> Result<bool> {
        let look = format!(
            "SELECT 1 FROM executions
             WHERE limit_id = ?1 AND uptime <= {until} AND expires_at - started_at > ?2 LIMIT 1"
        );
        let found = self.connection.query_row(&look, params![limit, over as i64], |_| Ok(())).optional();
        found.map(|found| found.is_some()).map_err(|e| self.explain(e))
    }

    /// The rows of some keys that may have to be restored: see [`Rows`]. A row counts for as long as it says, and at least
    /// for the duration given with its key.
    pub(in crate::state) fn rows_to_restore(
        &self,
        keys: &[(LedgerKey, Tick)],
        now: i64,
        past: Past,
    ) -> Result<Vec<Rows>> {
        let Past { until, last_row, over, .. } = past;
        let query = format!(
            "SELECT uptime, units, key FROM executions
             WHERE limit_id = ?1 AND key_hash = ?2 AND uptime <= {until} AND rowid <= ?3
               AND expires_at - started_at > ?4 AND uptime + max(expires_at - started_at, ?5) > ?6
             ORDER BY uptime, rowid"
        );
        let read = || -> rusqlite::Result<Vec<Rows>> {
            // Of one moment.
            let transaction = self.connection.unchecked_transaction()?;
            let mut query = transaction.prepare(&query)?;
            let mut read = |&((limit, hash), longest): &(LedgerKey, Tick)| {
                let (mut rows, longest) = (Rows::default(), i64::try_from(longest).unwrap_or(i64::MAX / 2));
                let mut found = query.query(params![limit, to_hex(hash.0), last_row, over as i64, longest, now])?;
                while let Some(row) = found.next()? {
                    rows.starts.push((row.get(0)?, row.get::<_, i64>(1)?.clamp(0, MAX_UNITS) as u64));
                    rows.text = row.get(2)?;
                }
                Ok(rows)
            };
            keys.iter().map(&mut read).collect()
        };
        read().map_err(|e| self.explain(e))
    }

    /// The rows of one key.
    pub(in crate::state) fn rows_of_key(&self, key: (LedgerKey, Tick), now: i64, past: Past) -> Result<Rows> {
        self.rows_to_restore(&[key], now, past).map(|mut all| all.pop().unwrap_or_default())
    }

    /// The keys of some rows from `first` on, and the row at which to continue.
    pub(in crate::state) fn keys_to_restore(
        &self,
        first: i64,
        Past { until, last_row, .. }: Past,
    ) -> Result<(BTreeSet<LedgerKey>, i64)> {
        let query = format!(
            "SELECT rowid, limit_id, key_hash FROM executions
             WHERE rowid BETWEEN ?1 AND ?2 AND uptime <= {until} ORDER BY rowid LIMIT {ROWS}"
        );
        let read = || -> rusqlite::Result<Vec<(i64, i64, String)>> {
            let mut query = self.connection.prepare(&query)?;
            query.query_map([first, last_row], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?.collect()
        };
        let rows = read().map_err(|e| self.explain(e))?;
        let next = rows.last().filter(|_| rows.len() == ROWS).map_or(i64::MAX, |(row, ..)| row + 1);
        let hash = |text: &str| from_hex(text).ok_or_else(|| self.damaged(format!("a key hash \"{text}\"")));
        let keys = rows.iter().map(|(_, limit, text)| Ok((*limit, Hash(hash(text)?))));
        Ok((keys.collect::<Result<_>>()?, next))
    }
}
