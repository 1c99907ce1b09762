//! The policies in the database: the declared ones, and those that an operator put above them. The database decides,
//! and the lane follows (`follow.rs`).
//!
//! Each change is one transaction and has a number, the *generation*, which is one larger than that of the change
//! before. A process that finds a lane of an earlier generation can therefore ask for the changes since then.

use super::database::{Database, NOW};
use super::declared::{Change, Declared, Family, Overridden, Part, text_of};
use super::moves;
use crate::error::Result;
use crate::policy::{self, Policy};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};
use std::path::Path;

pub(super) const SCHEMA: &str = "
CREATE TABLE limits (
  name           TEXT PRIMARY KEY,
  kind           TEXT NOT NULL,         -- 'rate', 'concurrency', …; 'composite': of the limits NAME/KIND
  policy         TEXT NOT NULL,         -- the declared policy as text: '100/1m'
  declared_at    TEXT NOT NULL,
  declared_by    TEXT NOT NULL,         -- the program and process of the last declaration
  override       TEXT,                  -- the operator's policy above the declared one; NULL: none
  overridden_at  TEXT,
  overridden_by  TEXT,
  generation     INTEGER NOT NULL,      -- the number of the last change
  missing        INTEGER                -- units of a key that the ledger may lack until it has the starts before that change
) STRICT;
CREATE INDEX limits_by_generation ON limits (generation);
CREATE TABLE keys (                     -- operators' policies of single keys
  name           TEXT NOT NULL,         -- of the limit
  key            TEXT NOT NULL,
  policy         TEXT,                  -- the policy above the limit's; NULL: lifted, and the row is about to be deleted
  overridden_at  TEXT NOT NULL,
  overridden_by  TEXT NOT NULL,
  generation     INTEGER NOT NULL,      -- as in 'limits'
  missing        INTEGER,
  PRIMARY KEY (name, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX keys_by_generation ON keys (generation);
";

/// The kind of a name that means several limits.
const COMPOSITE: &str = "composite";

/// A declared limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KnownLimit {
    pub name: String,
    pub declared: Declared,
    /// The number of a key's units that may be missing from the ledger since the policy changed. `None`: as the policy
    /// says.
    pub missing: Option<u64>,
}

/// A key that has, or had, its own policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KnownKey {
    pub limit: String,
    pub key: String,
    /// `None`: the limit's policy applies.
    pub policy: Option<Policy>,
    /// See [`KnownLimit`].
    pub missing: Option<u64>,
}

impl Database {
    /// The policies of one limit.
    pub fn policy(&self, name: &str) -> Result<Option<Declared>> {
        let query = "SELECT name, policy, override, missing FROM limits WHERE name = ?1 AND kind <> ?2";
        let found = self.connection.query_row(query, [name, COMPOSITE], known).optional();
        let found = found.map_err(|e| self.explain(e))?;
        Ok(found.map(|row| self.read(row)).transpose()?.map(|known| known.declared))
    }

    /// The names of all limits, in order. Composites are represented by their parts.
    pub fn names(&self) -> Result<Vec<String>> {
        let read = || -> rusqlite::Result<Vec<String>> {
            let mut query = self.connection.prepare("SELECT name FROM limits WHERE kind <> ?1 ORDER BY name")?;
            let names = query.query_map([COMPOSITE], |row| row.get(0))?;
            names.collect()
        };
        read().map_err(|e| self.explain(e))
    }

    /// The limits, by name, that have changed after this generation, or all limits.
    pub fn limits(&self, after: Option<u64>) -> Result<Vec<KnownLimit>> {
        let read = || -> rusqlite::Result<Vec<_>> {
            let query = "SELECT name, policy, override, missing FROM limits
                         WHERE generation > ?1 AND kind <> ?2 ORDER BY name";
            let mut query = self.connection.prepare(query)?;
            let rows = query.query_map(params![after.map_or(-1, signed), COMPOSITE], known)?;
            rows.collect()
        };
        read().map_err(|e| self.explain(e))?.into_iter().map(|row| self.read(row)).collect()
    }

    /// At most `most` limits whose names come after this one, by name, and their generation. `only`: of that limit, or of
    /// the parts of that composite.
    pub fn limits_after(&self, name: &str, only: Option<&str>, most: usize) -> Result<(Vec<KnownLimit>, u64)> {
        let read = || -> rusqlite::Result<Vec<_>> {
            // Each of them reads only what it returns: the plus sign keeps an index from the name before. '0' follows '/'.
            let these = match only {
                None => "name > ?1 AND ?4 IS NULL",
                Some(_) => "+name > ?1 AND (name = ?4 OR name > ?4 || '/' AND name < ?4 || '0')",
            };
            let query = format!(
                "SELECT name, policy, override, missing FROM limits WHERE {these} AND kind <> ?2 ORDER BY name LIMIT ?3"
            );
            let mut query = self.connection.prepare(&query)?;
            let rows = query.query_map(params![name, COMPOSITE, most as i64, only], known)?;
            rows.collect()
        };
        let rows = read().map_err(|e| self.explain(e))?;
        Ok((rows.into_iter().map(|row| self.read(row)).collect::<Result<_>>()?, self.generation))
    }

    fn reading<T>(&self, name: &str, read: Result<T>) -> Result<T> {
        read.map_err(|e| self.damaged(format!("limit \"{name}\" has a policy that makes no sense: {e}")))
    }

    fn read(&self, (name, declared, overriding, missing): KnownRow) -> Result<KnownLimit> {
        let parse = |text: &str| self.reading(&name, text.parse::<Policy>());
        let declared =
            Declared { declared: parse(&declared)?, overriding: overriding.as_deref().map(parse).transpose()? };
        Ok(KnownLimit { name, declared, missing: missing.map(units) })
    }

    /// The keys with their own policies, in order: those that have changed after a generation, or all of a limit.
    pub fn keys(&self, of: KeySelection) -> Result<Vec<KnownKey>> {
        let columns = "SELECT name, key, policy, missing FROM keys WHERE";
        let read = |which: &str, value: &dyn rusqlite::ToSql| -> rusqlite::Result<Vec<KnownRow>> {
            let mut query = self.connection.prepare(&format!("{columns} {which} ORDER BY name, key"))?;
            let rows = query.query_map([value], known)?;
            rows.collect()
        };
        let rows = match of {
            KeySelection::Changed(after) => read("generation > ?1", &signed(after)),
            KeySelection::Of(limit) => read("name = ?1", &limit),
        };
        let known = |(limit, key, policy, missing): (String, String, Option<String>, Option<i64>)| {
            let policy = policy.map(|text| self.reading(&limit, text.parse::<Policy>())).transpose()?;
            Ok(KnownKey { limit, key, policy, missing: missing.map(units) })
        };
        rows.map_err(|e| self.explain(e))?.into_iter().map(known).collect()
    }

    /// The own policy of a key.
    pub fn key_policy(&self, limit: &str, key: &str) -> Result<Option<Policy>> {
        let query = "SELECT policy FROM keys WHERE name = ?1 AND key = ?2 AND policy IS NOT NULL";
        let found = self.connection.query_row(query, [limit, key], |row| row.get::<_, String>(0)).optional();
        found.map_err(|e| self.explain(e))?.map(|text| self.reading(limit, text.parse::<Policy>())).transpose()
    }

    /// The declarations under a name, and under all names that begin with it and a slash.
    pub fn family(&self, name: &str) -> Result<Family> {
        // The character after the slash is 0.
        let query = "SELECT kind, name, policy, override, missing FROM limits
                     WHERE name = ?1 OR name > ?1 || '/' AND name < ?1 || '0'";
        let read = || -> rusqlite::Result<Vec<(String, KnownRow)>> {
            let mut query = self.connection.prepare(query)?;
            let rows = query.query_map([name], |row| Ok((row.get(0)?, known_from(row, 1)?)))?;
            rows.collect()
        };
        let mut family = Family::default();
        for (kind, row) in read().map_err(|e| self.explain(e))? {
            if kind != COMPOSITE {
                let found = self.read(row)?;
                family.limits.insert(found.name, found.declared);
            } else if row.0 == name {
                family.composite = Some(self.reading(name, policy::parse_all(&row.1))?);
            }
        }
        Ok(family)
    }

    /// The composites, with their policies.
    pub fn composites(&self) -> Result<Vec<(String, Vec<Policy>)>> {
        let read = || -> rusqlite::Result<Vec<(String, String)>> {
            let mut query = self.connection.prepare("SELECT name, policy FROM limits WHERE kind = ?1")?;
            let rows = query.query_map([COMPOSITE], |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.collect()
        };
        let parse = |(name, text): (String, String)| {
            let policies = self.reading(&name, policy::parse_all(&text))?;
            Ok((name, policies))
        };
        read().map_err(|e| self.explain(e))?.into_iter().map(parse).collect()
    }

    // ---- changes ----

    /// Makes one change of policies, completely or not at all.
    pub(in crate::state) fn decide(&mut self, change: impl FnOnce(&Transaction) -> rusqlite::Result<()>) -> Result<()> {
        let decide = || -> rusqlite::Result<i64> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let next = "UPDATE store SET generation = generation + 1 RETURNING generation";
            let generation = transaction.query_row(next, [], |row| row.get(0))?;
            change(&transaction)?;
            transaction.commit()?;
            Ok(generation)
        };
        let decided = decide();
        self.generation = decided.map_err(|e| self.explain(e))? as u64;
        Ok(())
    }

    /// Records the new meaning of names. An operator's policies stay above a limit's. `budget` returns how many of a
    /// key's units may be missing from the ledger under a policy.
    pub fn note(&mut self, changes: &[Change], budget: impl Fn(Policy) -> u64) -> Result<()> {
        self.decide(|transaction| {
            for change in changes.iter().filter(|change| !change.changes_nothing()) {
                let Change { name, composite, parts, dropped, .. } = change;
                transaction.execute("DELETE FROM limits WHERE name = ?1 AND kind = ?2", params![name, COMPOSITE])?;
                for name in dropped {
                    transaction.execute("DELETE FROM limits WHERE name = ?1", [name])?;
                    let lift =
                        "UPDATE keys SET policy = NULL, generation = (SELECT generation FROM store) WHERE name = ?1";
                    transaction.execute(lift, [name])?;
                }
                parts.iter().try_for_each(|part| moves::make_way(transaction, &part.name))?;
                for Part { name, from, .. } in parts.iter().filter(|part| part.from != part.name) {
                    let limit =
                        "UPDATE limits SET name = ?2, generation = (SELECT generation FROM store) WHERE name = ?1";
                    transaction.execute(limit, [from, name])?;
                    transaction.execute("UPDATE OR REPLACE keys SET name = ?2 WHERE name = ?1", [from, name])?;
                    moves::note(transaction, from, Some(name), i64::MAX)?;
                }
                for part in parts.iter().filter(|part| part.is_new()) {
                    declare(transaction, &part.name, part.policy.kind(), &part.policy.to_string())?;
                    if let Some(before) = part.before.filter(|before| before.current() != part.now().current()) {
                        miss(transaction, &part.name, budget(before.current()))?;
                    }
                }
                if let Some(policies) = composite {
                    declare(transaction, name, COMPOSITE, &text_of(policies))?;
                }
            }
            Ok(())
        })
    }

    /// Puts operators' policies above the declared ones, or removes them.
    pub fn set_overrides(&mut self, all: &[Overridden]) -> Result<()> {
        self.decide(|transaction| {
            let now = "generation = (SELECT generation FROM store), missing = max(ifnull(missing, 0), ?4)";
            let of_limit = format!(
                "UPDATE limits SET override = ?2, overridden_at = iif(?2 IS NULL, NULL, {NOW}),
                   overridden_by = iif(?2 IS NULL, NULL, ?3), {now} WHERE name = ?1"
            );
            let of_key = format!(
                "INSERT INTO keys VALUES (?1, ?5, ?2, {NOW}, ?3, (SELECT generation FROM store), ?4)
                 ON CONFLICT DO UPDATE SET policy = excluded.policy, overridden_at = excluded.overridden_at,
                   overridden_by = excluded.overridden_by, {now}"
            );
            for Overridden { name, key, policy, missing, .. } in all {
                let (policy, missing) = (policy.map(|policy| policy.to_string()), signed(*missing));
                match key {
                    None => transaction.execute(&of_limit, params![name, policy, program(), missing])?,
                    Some(key) => transaction.execute(&of_key, params![name, policy, program(), missing, key])?,
                };
            }
            Ok(())
        })
    }

    /// Records that the ledger has all starts from before a limit's policy changed, unless it changed after this
    /// generation.
    pub fn has_all(&self, name: &str, generation: u64) -> Result<()> {
        let has = "UPDATE limits SET missing = NULL WHERE name = ?1 AND generation <= ?2";
        self.connection.execute(has, params![name, signed(generation)]).map(drop).map_err(|e| self.explain(e))
    }

    /// Records the same for a key, and removes a key whose policy was lifted.
    pub fn has_all_of(&self, KnownKey { limit, key, .. }: &KnownKey, generation: u64) -> Result<()> {
        let gone = "DELETE FROM keys WHERE name = ?1 AND key = ?2 AND policy IS NULL AND generation <= ?3";
        let has = "UPDATE keys SET missing = NULL WHERE name = ?1 AND key = ?2 AND generation <= ?3";
        let write = |query| self.connection.execute(query, params![limit, key, signed(generation)]);
        write(gone).and_then(|gone| if gone == 0 { write(has) } else { Ok(0) }).map(drop).map_err(|e| self.explain(e))
    }
}

/// A selection of keys.
#[derive(Debug, Clone, Copy)]
pub(crate) enum KeySelection<'a> {
    /// The keys that have changed after this generation.
    Changed(u64),
    /// The keys of this limit.
    Of(&'a str),
}

/// For a limit: its name, the declared policy, the override, and what may be missing. For a key: its limit, the key,
/// its policy, and what may be missing.
type KnownRow = (String, String, Option<String>, Option<i64>);

fn known(row: &Row) -> rusqlite::Result<KnownRow> {
    known_from(row, 0)
}

fn known_from(row: &Row, at: usize) -> rusqlite::Result<KnownRow> {
    Ok((row.get(at)?, row.get(at + 1)?, row.get(at + 2)?, row.get(at + 3)?))
}

fn units(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Declares the meaning of a name, in place of the previous one. An operator's policy stays above it.
pub(in crate::state) fn declare(connection: &Connection, name: &str, kind: &str, policy: &str) -> rusqlite::Result<()> {
    let upsert = format!(
        "INSERT INTO limits (name, kind, policy, declared_at, declared_by, generation)
           VALUES (?1, ?2, ?3, {NOW}, ?4, (SELECT generation FROM store))
         ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, policy = excluded.policy,
           declared_at = excluded.declared_at, declared_by = excluded.declared_by, generation = excluded.generation"
    );
    connection.execute(&upsert, params![name, kind, policy, program()]).map(drop)
}

/// Records what the ledger may lack until it has the starts made under the previous policy.
fn miss(connection: &Connection, name: &str, budget: u64) -> rusqlite::Result<()> {
    let update = "UPDATE limits SET missing = max(ifnull(missing, 0), ?2) WHERE name = ?1";
    connection.execute(update, params![name, signed(budget)]).map(drop)
}

/// The name of the writing program, for people.
fn program() -> String {
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(Path::file_name).map_or("?".into(), |n| n.to_string_lossy());
    format!("{program} (process {})", std::process::id())
}

#[cfg(all(test, not(model)))]
mod tests {
    use super::super::database::tests::Scratch;
    use super::*;

    fn rate(text: &str) -> Policy {
        text.parse().unwrap()
    }

    fn declare(database: &Database, name: &str, text: &str) {
        super::declare(&database.connection, name, rate(text).kind(), text).unwrap();
    }

    fn overriding(database: &mut Database, name: &str, text: Option<&str>) {
        let before = database.policy(name).unwrap().unwrap();
        let missing = before.current().capacity() / 20;
        let all = [Overridden { name: name.into(), key: None, policy: text.map(rate), before, missing }];
        database.set_overrides(&all).unwrap();
    }

    #[test]
    fn an_override_outranks_the_declared_policy() {
        let dir = Scratch::new();
        let mut database = dir.open();
        assert_eq!(database.policy("api"), Ok(None));
        declare(&database, "api", "100/1m");
        overriding(&mut database, "api", Some("5/1s + 50/1m"));
        declare(&database, "api", "200/1m");
        let found = dir.open().policy("api").unwrap().unwrap();
        assert_eq!(found, Declared { declared: rate("200/1m"), overriding: Some(rate("5/1s + 50/1m")) });
        assert_eq!(found.current(), rate("5/1s + 50/1m"));
        let shown =
            "SELECT concat_ws('|', policy, override, typeof(overridden_at), overridden_by = declared_by) FROM limits";
        let row = || dir.stranger().query_row(shown, [], |row| row.get::<_, String>(0)).unwrap();
        assert_eq!(row(), "200/1m|5/1s + 50/1m|text|1");
        for _ in 0..2 {
            overriding(&mut database, "api", None);
            assert_eq!(row(), "200/1m|null");
            assert_eq!(dir.open().policy("api").unwrap().unwrap().current(), rate("200/1m"));
        }
    }

    #[test]
    fn changes_are_listed_by_generation_with_the_units_missing_from_the_ledger() {
        let dir = Scratch::new();
        let mut database = dir.open();
        assert_eq!(dir.identity().generation, 0);
        declare(&database, "api", "400/1h");
        declare(&database, "mail", "1/1s");
        let changed = |after| -> Vec<(String, Option<u64>)> {
            dir.open().limits(Some(after)).unwrap().into_iter().map(|known| (known.name, known.missing)).collect()
        };
        overriding(&mut database, "api", Some("100/1h"));
        assert_eq!((database.generation, dir.identity().generation), (1, 1));
        assert_eq!(changed(0), [("api".into(), Some(20))]);
        overriding(&mut database, "api", None);
        assert_eq!(changed(1), [("api".into(), Some(20))], "the most that may be missing");
        database.has_all("api", 1).unwrap();
        assert_eq!(changed(1), [("api".into(), Some(20))], "it has changed since");
        database.has_all("api", 2).unwrap();
        assert_eq!((changed(1), changed(2)), (vec![("api".into(), None)], vec![]));
    }

    #[test]
    fn a_family_is_a_name_and_the_names_below_it() {
        let dir = Scratch::new();
        let database = dir.open();
        for name in ["a", "a/rate", "a/b/c", "a-", "a0", "ab", "A", "a.b", "é/rate"] {
            declare(&database, name, "1/1s");
        }
        let names = |name: &str| database.family(name).unwrap().limits.into_keys().collect::<Vec<_>>();
        assert_eq!(names("a"), ["a", "a/b/c", "a/rate"]);
        assert_eq!(names("é"), ["é/rate"]);
        assert_eq!(names("b"), [""; 0]);
    }
}
