//! The policies in the database: the declared ones, and those that an operator put above them. The database decides,
//! and the lane follows (`follow.rs`).
//!
//! Each change is one transaction and has a number, the *generation*, which is larger than that of the change before. A
//! process that finds a lane of an earlier generation can therefore ask for the changes since then. The step is random,
//! so a copy of the database that had changes of its own does not have the generation of another change.

use super::database::{Database, NOW};
use super::declared::{Change, Declared, Family, LEARNED, Overridden, Part, other_name, text_of};
use crate::error::Result;
use crate::fault;
use crate::policy::{self, NamedPolicy, Policy};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};
use std::path::Path;

pub(super) const SCHEMA: &str = "
CREATE TABLE limits (
  id             INTEGER PRIMARY KEY,   -- stays if the name changes; random, so copies of a store give no number twice
  name           TEXT NOT NULL UNIQUE,
  kind           TEXT NOT NULL,         -- 'rate', 'concurrency', …; 'composite': of the limits NAME/KIND
  policy         TEXT,                  -- the declared policy as text: '100/1m'; NULL: forgotten, but it may return with its starts
  declared_at    TEXT NOT NULL,
  declared_by    TEXT NOT NULL,         -- the program and process of the last declaration
  override       TEXT,                  -- the operator's policy above the declared one; NULL: none
  overridden_at  TEXT,
  overridden_by  TEXT,                  -- the program and process of an operator; 'headers of HOST': learned from these
  generation     INTEGER NOT NULL,      -- the number of the last change
  missing        INTEGER                -- units of a key that the ledger may lack until it has the starts before that change
) STRICT;
CREATE INDEX limits_by_generation ON limits (generation);
CREATE TABLE keys (                     -- operators' policies of single keys
  limit_id       INTEGER NOT NULL,
  key            TEXT NOT NULL,
  policy         TEXT,                  -- the policy above the limit's; NULL: lifted, and the row is about to be deleted
  overridden_at  TEXT NOT NULL,
  overridden_by  TEXT NOT NULL,
  generation     INTEGER NOT NULL,      -- as in 'limits'
  missing        INTEGER,
  PRIMARY KEY (limit_id, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX keys_by_generation ON keys (generation);
";

/// The kind of a name that means several limits.
const COMPOSITE: &str = "composite";

/// The declared limits.
const DECLARED: &str =
    "SELECT id, name, policy, override, missing, overridden_by FROM limits WHERE policy IS NOT NULL AND kind <> ?1";

/// The keys that have, or had, their own policies.
const OWN: &str = "SELECT id, name, key, keys.policy, keys.missing FROM keys JOIN limits ON id = limit_id WHERE";

/// A new limit's number.
pub(super) const NEW_ID: &str = "random() & 9223372036854775807";

/// A declared limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KnownLimit {
    /// Its number in the database; 0 if it is in none.
    pub id: i64,
    pub name: String,
    pub declared: Declared,
    /// The number of a key's units that may be missing from the ledger since the policy changed. `None`: as the policy
    /// says.
    pub missing: Option<u64>,
}

/// A key that has, or had, its own policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KnownKey {
    /// The number and the name of its limit.
    pub id: i64,
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
        let query = format!("{DECLARED} AND name = ?2");
        let found = self.connection.query_row(&query, [COMPOSITE, name], declared).optional();
        let found = found.map_err(|e| self.explain(e))?;
        Ok(found.map(|row| self.read(row)).transpose()?.map(|known| known.declared))
    }

    /// The number of a limit.
    pub fn id(&self, name: &str) -> Result<i64> {
        let query = "SELECT id FROM limits WHERE name = ?1";
        self.connection.query_row(query, [name], |row| row.get(0)).map_err(|e| self.explain(e))
    }

    /// The names of all limits, in order. Composites are represented by their parts.
    pub fn names(&self) -> Result<Vec<String>> {
        let read = || -> rusqlite::Result<Vec<String>> {
            let mut query = self.connection.prepare(&format!("{DECLARED} ORDER BY name"))?;
            let names = query.query_map([COMPOSITE], |row| row.get(1))?;
            names.collect()
        };
        read().map_err(|e| self.explain(e))
    }

    /// The limits, by name, that have changed after this generation, or all limits.
    pub fn limits(&self, after: Option<u64>) -> Result<Vec<KnownLimit>> {
        let read = || -> rusqlite::Result<Vec<_>> {
            let mut query = self.connection.prepare(&format!("{DECLARED} AND generation > ?2 ORDER BY name"))?;
            let rows = query.query_map(params![COMPOSITE, after.map_or(-1, signed)], declared)?;
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
                None => "name > ?2 AND ?4 IS NULL",
                Some(_) => "+name > ?2 AND (name = ?4 OR name > ?4 || '/' AND name < ?4 || '0')",
            };
            let mut query = self.connection.prepare(&format!("{DECLARED} AND {these} ORDER BY name LIMIT ?3"))?;
            let rows = query.query_map(params![COMPOSITE, name, most as i64, only], declared)?;
            rows.collect()
        };
        let rows = read().map_err(|e| self.explain(e))?;
        Ok((rows.into_iter().map(|row| self.read(row)).collect::<Result<_>>()?, self.generation))
    }

    fn reading<T>(&self, name: &str, read: Result<T>) -> Result<T> {
        read.map_err(|e| self.damaged(format!("limit \"{name}\" has a policy that makes no sense: {e}")))
    }

    fn read(&self, ((id, name, declared, overriding, missing), by): DeclaredRow) -> Result<KnownLimit> {
        let parse = |text: &str| self.reading(&name, text.parse::<Policy>());
        let source = by.filter(|by| overriding.is_some() && by.starts_with(LEARNED)).map(Into::into);
        let overriding = overriding.as_deref().map(parse).transpose()?;
        let declared = Declared { declared: parse(&declared)?, overriding, source };
        Ok(KnownLimit { id, name, declared, missing: missing.map(units) })
    }

    /// The keys with their own policies, in order: those that have changed after a generation, or all of a limit.
    pub fn keys(&self, of: KeySelection) -> Result<Vec<KnownKey>> {
        let read = |which: &str, value: &dyn rusqlite::ToSql| -> rusqlite::Result<Vec<KnownRow>> {
            let mut query = self.connection.prepare(&format!("{OWN} {which} ORDER BY name, key"))?;
            let rows = query.query_map([value], known)?;
            rows.collect()
        };
        let rows = match of {
            KeySelection::Changed(after) => read("keys.generation > ?1", &signed(after)),
            KeySelection::Of(limit) => read("limit_id = ?1", &limit),
        };
        let known = |(id, limit, key, policy, missing): KnownRow| {
            let policy = policy.map(|text| self.reading(&limit, text.parse::<Policy>())).transpose()?;
            Ok(KnownKey { id, limit, key, policy, missing: missing.map(units) })
        };
        rows.map_err(|e| self.explain(e))?.into_iter().map(known).collect()
    }

    /// The own policy of a key.
    pub fn key_policy(&self, limit: &str, key: &str) -> Result<Option<Policy>> {
        let query = format!("{OWN} name = ?1 AND key = ?2 AND keys.policy IS NOT NULL");
        let found = self.connection.query_row(&query, [limit, key], |row| row.get::<_, String>(3)).optional();
        found.map_err(|e| self.explain(e))?.map(|text| self.reading(limit, text.parse::<Policy>())).transpose()
    }

    /// The declarations under a name, and under all names that begin with it and a slash.
    pub fn family(&self, name: &str) -> Result<Family> {
        // The character after the slash is 0.
        let query = "SELECT id, name, policy, override, missing, overridden_by, kind FROM limits
                     WHERE policy IS NOT NULL AND (name = ?1 OR name > ?1 || '/' AND name < ?1 || '0')";
        let read = || -> rusqlite::Result<Vec<(String, DeclaredRow)>> {
            let mut query = self.connection.prepare(query)?;
            let rows = query.query_map([name], |row| Ok((row.get(6)?, declared(row)?)))?;
            rows.collect()
        };
        let mut family = Family::default();
        for (kind, row) in read().map_err(|e| self.explain(e))? {
            if kind != COMPOSITE {
                let found = self.read(row)?;
                family.limits.insert(found.name, found.declared);
            } else if row.0.1 == name {
                family.composite = Some(self.reading(name, policy::parse_all(&row.0.2))?);
            }
        }
        Ok(family)
    }

    /// The composites, with their policies.
    pub fn composites(&self) -> Result<Vec<(String, Vec<NamedPolicy>)>> {
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

    /// Returns whether the last change of some limit or key has this generation. Before the first change there is none to
    /// find.
    pub fn has_changed_at(&self, generation: u64) -> Result<bool> {
        let query = "SELECT ?1 = 0 OR EXISTS (SELECT 1 FROM limits WHERE generation = ?1)
                     OR EXISTS (SELECT 1 FROM keys WHERE generation = ?1)";
        self.connection.query_row(query, [signed(generation)], |row| row.get(0)).map_err(|e| self.explain(e))
    }

    /// Returns whether a limit has this number.
    pub fn has_number(&self, id: i64) -> Result<bool> {
        let query = "SELECT EXISTS (SELECT 1 FROM limits WHERE id = ?1)";
        self.connection.query_row(query, [id], |row| row.get(0)).map_err(|e| self.explain(e))
    }

    // ---- changes ----

    /// Makes a limit of the lane known to a copy of the database that may lack it, under the lane's number, as a forgotten
    /// one. If the copy has another number for that name and kind, which no limit of the lane has, it is the lane's from
    /// now on. The ledger may lack `missing` of a key's units if its policy here is another one.
    pub(super) fn adopt(
        &self,
        (name, kind, id): (&str, &str, i64),
        is_of_another: impl Fn(i64) -> bool,
        missing: u64,
    ) -> Result<()> {
        if self.has_number(id)? {
            return Ok(());
        }
        let theirs = "SELECT id FROM limits WHERE name = ?1 AND kind = ?2";
        let theirs = self.connection.query_row(theirs, [name, kind], |row| row.get::<_, i64>(0)).optional();
        match theirs.map_err(|e| self.explain(e))? {
            Some(theirs) if is_of_another(theirs) => Ok(()),
            Some(theirs) => self.renumber((name, theirs), id, missing).map(drop),
            None => {
                let adopt = format!(
                    "INSERT OR IGNORE INTO limits (id, name, kind, declared_at, declared_by, generation)
                       VALUES (?1, ?2, ?3, {NOW}, ?4, (SELECT generation FROM store))"
                );
                let adopted = self.connection.execute(&adopt, params![id, name, kind, program()]);
                adopted.map(drop).map_err(|e| self.explain(e))
            }
        }
    }

    /// Gives a limit, its keys and its starts the number that the lane has for it, unless another limit has that. The
    /// ledger may lack `missing` units of a key: the limit had another policy.
    pub fn renumber(&self, (name, id): (&str, i64), number: i64, missing: u64) -> Result<bool> {
        let renumber = |connection: &Connection| -> rusqlite::Result<Option<()>> {
            let limit = "UPDATE limits SET id = ?3, missing = max(ifnull(missing, 0), ?4)
                         WHERE name = ?1 AND id = ?2 AND NOT EXISTS (SELECT 1 FROM limits WHERE id = ?3)";
            if connection.execute(limit, params![name, id, number, signed(missing)])? == 0 {
                return Ok(None);
            }
            fault::point("renumbering");
            connection.execute("UPDATE OR REPLACE keys SET limit_id = ?2 WHERE limit_id = ?1", [id, number])?;
            connection.execute("UPDATE executions SET limit_id = ?2 WHERE limit_id = ?1", [id, number])?;
            Ok(Some(()))
        };
        let is_done = self.transact(renumber)?.is_some();
        fault::point("rows-renumbered");
        Ok(is_done)
    }

    /// Makes one change of policies, completely or not at all.
    pub(in crate::state) fn decide(&mut self, change: impl FnOnce(&Transaction) -> rusqlite::Result<()>) -> Result<()> {
        let decide = || -> rusqlite::Result<i64> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let next = "UPDATE store SET generation = generation + 1 + (random() & 0x7fffffff) RETURNING generation";
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
            let changes = || changes.iter().filter(|change| !change.changes_nothing());
            // The name that a limit leaves may be another's from now on.
            for Change { name, parts, dropped, .. } in changes() {
                transaction.execute("DELETE FROM limits WHERE name = ?1 AND kind = ?2", params![name, COMPOSITE])?;
                dropped.iter().try_for_each(|name| forget(transaction, name, &budget))?;
                for Part { name, from, .. } in parts.iter().filter(|part| part.from != part.name) {
                    // Of a forgotten limit.
                    transaction.execute("DELETE FROM limits WHERE name = ?1", [name])?;
                    let rename =
                        "UPDATE limits SET name = ?2, generation = (SELECT generation FROM store) WHERE name = ?1";
                    transaction.execute(rename, [from, name])?;
                }
            }
            for Change { name, composite, parts, .. } in changes() {
                for part in parts.iter().filter(|part| part.is_new()) {
                    declare(transaction, &part.name, part.policy.kind(), &part.policy.to_string())?;
                    if let Some(before) = part.before.as_ref().filter(|before| before.current() != part.now().current())
                    {
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
                "INSERT INTO keys
                   SELECT id, ?5, ?2, {NOW}, ?3, (SELECT generation FROM store), ?4 FROM limits WHERE name = ?1
                 ON CONFLICT DO UPDATE SET policy = excluded.policy, overridden_at = excluded.overridden_at,
                   overridden_by = excluded.overridden_by, {now}"
            );
            for Overridden { name, key, policy, source, missing, .. } in all {
                let (policy, missing) = (policy.map(|policy| policy.to_string()), signed(*missing));
                let by = || source.as_deref().map_or_else(program, str::to_owned);
                match key {
                    None => transaction.execute(&of_limit, params![name, policy, by(), missing])?,
                    Some(key) => transaction.execute(&of_key, params![name, policy, program(), missing, key])?,
                };
            }
            Ok(())
        })
    }

    /// Records that the ledger has all starts from before a limit's policy changed, unless it changed after this
    /// generation.
    pub fn has_all(&self, limit: i64, generation: u64) -> Result<()> {
        let has = "UPDATE limits SET missing = NULL WHERE id = ?1 AND generation <= ?2";
        self.connection.execute(has, params![limit, signed(generation)]).map(drop).map_err(|e| self.explain(e))
    }

    /// Records the same for a key, and removes a key whose policy was lifted.
    pub fn has_all_of(&self, KnownKey { id, key, .. }: &KnownKey, generation: u64) -> Result<()> {
        let gone = "DELETE FROM keys WHERE limit_id = ?1 AND key = ?2 AND policy IS NULL AND generation <= ?3";
        let has = "UPDATE keys SET missing = NULL WHERE limit_id = ?1 AND key = ?2 AND generation <= ?3";
        let write = |query| self.connection.execute(query, params![id, key, signed(generation)]);
        write(gone).and_then(|gone| if gone == 0 { write(has) } else { Ok(0) }).map(drop).map_err(|e| self.explain(e))
    }
}

/// A selection of keys.
#[derive(Debug, Clone, Copy)]
pub(crate) enum KeySelection {
    /// The keys that have changed after this generation.
    Changed(u64),
    /// The keys of the limit with this number.
    Of(i64),
}

/// For a limit: its number and name, the declared policy, the override, and what may be missing. For a key: its limit's
/// number and name, the key, its policy, and what may be missing.
type KnownRow = (i64, String, String, Option<String>, Option<i64>);

/// The same of a limit, and what put the override there.
type DeclaredRow = (KnownRow, Option<String>);

fn known(row: &Row) -> rusqlite::Result<KnownRow> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
}

fn declared(row: &Row) -> rusqlite::Result<DeclaredRow> {
    Ok((known(row)?, row.get(5)?))
}

fn units(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Declares the meaning of a name, in place of the previous one. An operator's policy stays above it. A forgotten limit
/// of that kind returns, also from the other name that it may have had: the lane does the same.
pub(in crate::state) fn declare(connection: &Connection, name: &str, kind: &str, policy: &str) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM limits WHERE name = ?1 AND kind <> ?2", [name, kind])?;
    let back = "UPDATE OR IGNORE limits SET name = ?1 WHERE name = ?3 AND kind = ?2 AND policy IS NULL";
    connection.execute(back, [name, kind, &other_name(name, kind)])?;
    let upsert = format!(
        "INSERT INTO limits (id, name, kind, policy, declared_at, declared_by, generation)
           VALUES ({NEW_ID}, ?1, ?2, ?3, {NOW}, ?4, (SELECT generation FROM store))
         ON CONFLICT (name) DO UPDATE SET policy = excluded.policy,
           declared_at = excluded.declared_at, declared_by = excluded.declared_by, generation = excluded.generation"
    );
    connection.execute(&upsert, params![name, kind, policy, program()]).map(drop)
}

/// Removes the policies of a limit and of its keys. Its number stays, for its starts, and what may be missing of them.
fn forget(connection: &Connection, name: &str, budget: impl Fn(Policy) -> u64) -> rusqlite::Result<()> {
    let policy = "SELECT ifnull(override, policy) FROM limits WHERE name = ?1 AND kind <> ?2 AND policy IS NOT NULL";
    let policy = connection.query_row(policy, [name, COMPOSITE], |row| row.get::<_, String>(0)).optional()?;
    // What another program has written instead of a policy has no starts.
    if let Some(policy) = policy.and_then(|text| text.parse::<Policy>().ok()).filter(|policy| !policy.is_concurrency())
    {
        miss(connection, name, budget(policy))?;
    }
    let own =
        "SELECT key, keys.policy FROM keys JOIN limits ON id = limit_id WHERE name = ?1 AND keys.policy IS NOT NULL";
    let own: Vec<(String, String)> = connection
        .prepare(own)?
        .query_map([name], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let lift = "UPDATE keys SET policy = NULL, missing = max(ifnull(missing, 0), ?3),
                  generation = (SELECT generation FROM store)
                WHERE limit_id = (SELECT id FROM limits WHERE name = ?1) AND key = ?2";
    let mut lift = connection.prepare(lift)?;
    for (key, policy) in own {
        lift.execute(params![name, key, signed(policy.parse().map_or(0, &budget))])?;
    }
    let forget = "UPDATE limits SET policy = NULL, override = NULL, overridden_at = NULL, overridden_by = NULL,
                    generation = (SELECT generation FROM store)
                  WHERE name = ?1";
    connection.execute(forget, [name]).map(drop)
}

/// Removes all forgotten limits, which a new lane does not have.
pub(super) fn remove_forgotten(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(
        "DELETE FROM limits WHERE policy IS NULL;
         DELETE FROM keys WHERE limit_id NOT IN (SELECT id FROM limits);",
    )
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

#[cfg(test)]
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
        let all = [Overridden { name: name.into(), key: None, policy: text.map(rate), source: None, before, missing }];
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
        assert_eq!(found, Declared { declared: rate("200/1m"), overriding: Some(rate("5/1s + 50/1m")), source: None });
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
        let first = database.generation;
        assert_eq!((first > 0, dir.identity().generation), (true, first));
        assert_eq!(changed(0), [("api".into(), Some(20))]);
        overriding(&mut database, "api", None);
        let second = database.generation;
        assert!(second > first);
        assert_eq!(changed(first), [("api".into(), Some(20))], "the most that may be missing");
        database.has_all(database.id("api").unwrap(), first).unwrap();
        assert_eq!(changed(first), [("api".into(), Some(20))], "it has changed since");
        database.has_all(database.id("api").unwrap(), second).unwrap();
        assert_eq!((changed(first), changed(second)), (vec![("api".into(), None)], vec![]));
        let seen = [0, first, second, second + 1].map(|at| database.has_changed_at(at).unwrap());
        assert_eq!(seen, [true, false, true, false], "the limit has changed again since the first");
    }

    #[test]
    fn a_limit_that_is_forgotten_has_changed() {
        let dir = Scratch::new();
        let mut database = dir.open();
        declare(&database, "api", "400/1h");
        let dropped = vec!["api".into()];
        let forget = Change { name: "api".into(), composite: None, was_composite: None, parts: vec![], dropped };
        database.note(&[forget], |_| 20).unwrap();
        assert_eq!(database.policy("api"), Ok(None));
        assert_eq!(database.has_changed_at(database.generation), Ok(true));
    }

    #[test]
    fn a_limit_of_the_lane_keeps_its_number() {
        let dir = Scratch::new();
        let database = dir.open();
        ["api", "mail", "log"].iter().for_each(|name| declare(&database, name, "60/1h"));
        let [api, mail, log] = ["api", "mail", "log"].map(|name| database.id(name).unwrap());
        let adopt = |name, id| database.adopt((name, "rate", id), |id| id == mail, 3).unwrap();
        let number = |name: &str| database.id(name).ok();
        adopt("api/rate", api);
        assert_eq!((number("api"), number("api/rate")), (Some(api), None), "the copy knows it by another name");
        adopt("api", 7);
        assert_eq!(number("api"), Some(7), "the copy has another number for it");
        assert_eq!(database.limits(None).unwrap()[0].missing, Some(3));
        adopt("mail", 8);
        assert_eq!(number("mail"), Some(mail), "another limit of the lane has that number");
        adopt("new", 9);
        assert_eq!((number("new"), database.policy("new").unwrap()), (Some(9), None));
        assert_eq!(database.renumber(("log", log), 9, 0), Ok(false), "it is another's");
        assert_eq!(number("log"), Some(log));
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
