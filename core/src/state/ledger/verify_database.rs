//! Checks and repairs a store's database. For the lane, see `writer/verify.rs`.

use super::database::{Database, VERSION, check};
use super::executions::MAX_UNITS;
use crate::error::{Error, Result};
use crate::policy::{self, Policy};
use rusqlite::{Transaction, TransactionBehavior};
use std::path::Path;

/// How many faults SQLite reports.
const MAX_REPORTED: u32 = 20;

/// Rows of the ledger that cannot be read.
const UNREADABLE: &str = "length(key_hash) <> 32 OR key_hash GLOB '*[^0-9a-f]*' OR expires_at < started_at
   OR units NOT BETWEEN 0 AND :most";

/// A fault of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// A description of the fault.
    pub found: String,
    /// Whether it has been repaired.
    pub is_repaired: bool,
}

impl Database {
    /// Checks the whole database, and repairs what it can if `repair` is set. A long read delays commits.
    pub fn verify(path: &Path, repair: bool) -> Result<Vec<Problem>> {
        check(path)?;
        let mut database = Self::connect(path)?;
        let mut problems = Vec::new();
        match database.look(repair, &mut problems) {
            Err(Error::Damaged { found, .. }) => problems.push(Problem { found, is_repaired: false }),
            looked => looked?,
        }
        Ok(problems)
    }

    fn look(&mut self, repair: bool, problems: &mut Vec<Problem>) -> Result<()> {
        let faults = self.faults()?;
        if faults.is_empty() && self.version()?.is_none() {
            // Its first user makes the store.
            return Ok(());
        }
        let is_repaired = repair && !faults.is_empty() && {
            // Nothing is left from which tables could be rebuilt. Indexes are rebuilt.
            self.connection.execute_batch("REINDEX").map_err(|e| self.explain(e))?;
            self.faults()?.is_empty()
        };
        problems.extend(faults.into_iter().map(|found| Problem { found, is_repaired }));
        // An object with a table's name may be a query that never ends.
        self.check_tables()?;
        self.look_at_triggers(repair, problems)?;
        if self.version()? != Some(VERSION) {
            // Its next user brings the tables of an earlier version to this one, and refuses those of a later one.
            return Ok(());
        }
        self.look_at_ledger(repair, problems)?;
        self.look_at_policies(repair, problems)?;
        self.look_at_keys(repair, problems)?;
        self.identity().map(drop)
    }

    fn faults(&self) -> Result<Vec<String>> {
        let read = || -> rusqlite::Result<Vec<String>> {
            let mut query = self.connection.prepare(&format!("PRAGMA integrity_check({MAX_REPORTED})"))?;
            query.query_map([], |row| row.get(0))?.collect()
        };
        let mut faults = read().map_err(|e| self.explain(e))?;
        faults.retain(|fault| fault != "ok");
        Ok(faults)
    }

    fn look_at_triggers(&mut self, repair: bool, problems: &mut Vec<Problem>) -> Result<()> {
        let names = self.texts("SELECT name FROM sqlite_schema WHERE type = 'trigger'")?;
        for name in names {
            if repair {
                let drop = format!("DROP TRIGGER \"{}\"", name.replace('"', "\"\""));
                self.connection.execute_batch(&drop).map_err(|e| self.explain(e))?;
            }
            let found = format!("a trigger \"{}\", where a store has none", name.escape_debug());
            problems.push(Problem { found, is_repaired: repair });
        }
        Ok(())
    }

    fn look_at_ledger(&mut self, repair: bool, problems: &mut Vec<Problem>) -> Result<()> {
        let count = format!("SELECT count(*) FROM executions WHERE {UNREADABLE}");
        let counted = self.connection.query_row(&count, &[(":most", &MAX_UNITS)], |row| row.get::<_, i64>(0));
        let unreadable = counted.map_err(|e| self.explain(e))?;
        if unreadable > 0 {
            if repair {
                let delete = format!("DELETE FROM executions WHERE {UNREADABLE}");
                self.change(|change| change.execute(&delete, &[(":most", &MAX_UNITS)]).map(drop))?;
            }
            let found = format!("{unreadable} rows of the ledger that make no sense");
            problems.push(Problem { found, is_repaired: repair });
        }
        Ok(())
    }

    /// A limit with an unreadable policy is declared again by its next user.
    fn look_at_policies(&mut self, repair: bool, problems: &mut Vec<Problem>) -> Result<()> {
        type Row = (String, String, String, Option<String>);
        let read = || -> rusqlite::Result<Vec<Row>> {
            let mut query = self
                .connection
                .prepare("SELECT name, kind, policy, override FROM limits WHERE policy IS NOT NULL ORDER BY name")?;
            query.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?.collect()
        };
        for (name, kind, declared, overriding) in read().map_err(|e| self.explain(e))? {
            let is_readable = match kind.as_str() {
                "composite" => policy::parse_all(&declared).is_ok(),
                _ => declared.parse::<Policy>().is_ok(),
            };
            let (what, text, repair_it) = if !is_readable && kind == "composite" {
                ("policy", declared, "DELETE FROM limits WHERE name = ?1")
            } else if !is_readable {
                ("policy", declared, "UPDATE limits SET policy = NULL, override = NULL WHERE name = ?1")
            } else if let Some(text) = overriding.filter(|text| text.parse::<Policy>().is_err()) {
                ("override", text, "UPDATE limits SET override = NULL WHERE name = ?1")
            } else {
                continue;
            };
            if repair {
                self.decide(|change| change.execute(repair_it, [&name]).map(drop))?;
            }
            let found = format!("limit \"{name}\" has the {what} \"{}\"", text.escape_debug());
            problems.push(Problem { found, is_repaired: repair });
        }
        Ok(())
    }

    /// A key whose own policy is unreadable gets the limit's.
    fn look_at_keys(&mut self, repair: bool, problems: &mut Vec<Problem>) -> Result<()> {
        let read = || -> rusqlite::Result<Vec<[String; 3]>> {
            let all = "SELECT name, key, keys.policy FROM keys JOIN limits ON id = limit_id
                       WHERE keys.policy IS NOT NULL ORDER BY name, key";
            let mut query = self.connection.prepare(all)?;
            query.query_map([], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?]))?.collect()
        };
        for [name, key, text] in read().map_err(|e| self.explain(e))? {
            if text.parse::<Policy>().is_ok() {
                continue;
            }
            if repair {
                let repair_it = "UPDATE keys SET policy = NULL, generation = (SELECT generation FROM store)
                            WHERE limit_id = (SELECT id FROM limits WHERE name = ?1) AND key = ?2";
                self.decide(|change| change.execute(repair_it, [&name, &key]).map(drop))?;
            }
            let (key, text) = (key.escape_debug(), text.escape_debug());
            let found = format!("key \"{key}\" of limit \"{name}\" has the policy \"{text}\"");
            problems.push(Problem { found, is_repaired: repair });
        }
        Ok(())
    }

    fn change(&mut self, change: impl FnOnce(&Transaction) -> rusqlite::Result<()>) -> Result<()> {
        let changed = || -> rusqlite::Result<()> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            change(&transaction)?;
            transaction.commit()
        };
        let changed = changed();
        changed.map_err(|e| self.explain(e))
    }

    fn texts(&self, query: &str) -> Result<Vec<String>> {
        let read = || -> rusqlite::Result<Vec<String>> {
            self.connection.prepare(query)?.query_map([], |row| row.get(0))?.collect()
        };
        read().map_err(|e| self.explain(e))
    }
}
