//! Rows of the ledger whose limit has lost its name, or changed it.
//!
//! A limit that is renamed, or whose name passes to another kind, may have a million rows. Changing all of them in the
//! deciding transaction would block everyone who needs the structure lock. So that transaction only records a *move*,
//! and the ledger's writer carries it out, some rows at a time. A recovery first completes all moves, and so does a process
//! that changes rows by their limit's name. Whoever reads the rows of one key counts with the moves that are to come.
//!
//! Moves are carried out in order, so a name may be given away and return. Rows that were gathered under the previous
//! name and written after the change are moved too, since rows are never moved while another process writes. A limit
//! that needs a name whose rows have not gone yet is declared after they have.

use super::database::Database;
use crate::error::Result;
use crate::fault;
use rusqlite::{Connection, TransactionBehavior, params};
use std::collections::BTreeSet;
use std::iter;

pub(super) const SCHEMA: &str = "
CREATE TABLE moves (
  number   INTEGER PRIMARY KEY,
  name     TEXT NOT NULL,      -- the limit's name in the rows
  becomes  TEXT,               -- the new name; NULL: the rows are deleted
  until    INTEGER NOT NULL    -- applies to starts up to this uptime
) STRICT;
";

/// A pending change of the rows of a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Move {
    number: i64,
    name: String,
    becomes: Option<String>,
    until: i64,
}

impl Move {
    /// Moves the rows from `first` to `last`.
    fn rows(&self, connection: &Connection, first: i64, last: i64) -> rusqlite::Result<()> {
        let which = "rowid BETWEEN ?1 AND ?2 AND name = ?3 AND uptime <= ?4";
        match &self.becomes {
            Some(name) => {
                let rename = format!("UPDATE executions SET name = ?5 WHERE {which}");
                connection.execute(&rename, params![first, last, self.name, self.until, name])
            }
            None => {
                let forget = format!("DELETE FROM executions WHERE {which}");
                connection.execute(&forget, params![first, last, self.name, self.until])
            }
        }
        .map(drop)
    }

    fn end(&self, connection: &Connection) -> rusqlite::Result<()> {
        connection.execute("DELETE FROM moves WHERE number = ?1", [self.number]).map(drop)
    }
}

/// All moves, in order.
pub(in crate::state) fn all(connection: &Connection) -> rusqlite::Result<Vec<Move>> {
    let mut query = connection.prepare("SELECT number, name, becomes, until FROM moves ORDER BY number")?;
    let read = |row: &rusqlite::Row| {
        Ok(Move { number: row.get(0)?, name: row.get(1)?, becomes: row.get(2)?, until: row.get(3)? })
    };
    query.query_map([], read)?.collect()
}

/// Records that a limit's rows get another name, or are deleted if they started up to this uptime.
pub(in crate::state) fn note(
    connection: &Connection,
    name: &str,
    becomes: Option<&str>,
    until: i64,
) -> rusqlite::Result<()> {
    let note = "INSERT INTO moves (name, becomes, until) VALUES (?1, ?2, ?3)";
    connection.execute(note, params![name, becomes, until]).map(drop)
}

/// Completes the moves of this name's previous rows, because a limit is about to get the name.
pub(super) fn make_way(connection: &Connection, name: &str) -> rusqlite::Result<()> {
    let moves = all(connection)?;
    match moves.iter().any(|other| other.name == name && other.becomes.is_some()) {
        true => finish(connection, &moves),
        false => Ok(()),
    }
}

/// The name that the pending moves give to a row; `None` if they delete it.
pub(super) fn name_after<'a>(moves: &'a [Move], name: &'a str, uptime: i64) -> Option<&'a str> {
    let applies = |name: &str, one: &Move| one.name == name && uptime <= one.until;
    moves.iter().try_fold(name, |name, one| if applies(name, one) { one.becomes.as_deref() } else { Some(name) })
}

/// The names that rows of a limit may still have.
pub(super) fn names_before<'a>(moves: &'a [Move], name: &'a str) -> impl Iterator<Item = &'a str> {
    let others = moves.iter().filter(move |one| one.becomes.is_some() && one.name != name).map(|one| &*one.name);
    iter::once(name).chain(others.collect::<BTreeSet<&str>>())
}

fn finish(connection: &Connection, moves: &[Move]) -> rusqlite::Result<()> {
    moves.iter().try_for_each(|one| one.rows(connection, i64::MIN, i64::MAX).and_then(|()| one.end(connection)))
}

impl Database {
    pub fn moves(&self) -> Result<Vec<Move>> {
        all(&self.connection).map_err(|e| self.explain(e))
    }

    /// Records that a limit's rows get another name, unless the deciding transaction did so.
    pub fn note_name(&mut self, name: &str, becomes: &str) -> Result<()> {
        let is_it = |one: &Move| one.name == name && one.becomes.as_deref() == Some(becomes);
        if self.moves()?.iter().any(is_it) { Ok(()) } else { self.note_move(name, Some(becomes), i64::MAX) }
    }

    /// Records what happens to a limit's rows: see [`note`].
    pub fn note_move(&mut self, name: &str, becomes: Option<&str>, until: i64) -> Result<()> {
        let mut noted = || -> rusqlite::Result<()> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            note(&transaction, name, becomes, until)?;
            transaction.commit()
        };
        noted().map_err(|e| self.explain(e))
    }

    /// Moves some rows, starting at this one. Returns the row at which to continue. For the process that writes the
    /// ledger.
    pub fn move_some(&mut self, what: &Move, first: i64) -> Result<Option<i64>> {
        let mut some = || -> rusqlite::Result<Option<i64>> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            // A lane that replaced this one may have had them moved.
            if !all(&transaction)?.contains(what) {
                return Ok(None);
            }
            let next = super::executions::next_rows(&transaction, first)?;
            what.rows(&transaction, first, next.map_or(i64::MAX, |next| next - 1))?;
            if next.is_none() {
                what.end(&transaction)?;
            }
            transaction.commit().map(|()| next)
        };
        let next = some().map_err(|e| self.explain(e))?;
        fault::point("rows-moved");
        Ok(next)
    }

    /// Completes all moves, before the rows are read.
    pub fn move_all(&mut self) -> Result<()> {
        let mut moved = || -> rusqlite::Result<()> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            finish(&transaction, &all(&transaction)?)?;
            transaction.commit()
        };
        moved().map_err(|e| self.explain(e))
    }
}

#[cfg(all(test, not(model)))]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_under_the_names_that_they_have_before_their_moves() {
        let one = |number, name: &str, becomes: Option<&str>, until| Move {
            number,
            name: name.into(),
            becomes: becomes.map(str::to_owned),
            until,
        };
        // Two limits exchange their names, and a third one loses its rows.
        let moves =
            [one(1, "a", Some("x"), 9), one(2, "b", Some("a"), 9), one(3, "x", Some("b"), 9), one(4, "c", None, 5)];
        let after = |name, uptime| name_after(&moves, name, uptime);
        assert_eq!([after("a", 9), after("b", 9), after("x", 9)], [Some("b"), Some("a"), Some("b")]);
        assert_eq!([after("c", 5), after("c", 6), after("other", 5)], [None, Some("c"), Some("other")]);
        assert_eq!(after("a", 10), Some("a"), "a start of the next limit of that name");
        // The second move is under way.
        assert_eq!(["a", "b", "x"].map(|name| name_after(&moves[1..], name, 9)), [Some("a"), Some("a"), Some("b")]);
        assert_eq!(names_before(&moves, "b").collect::<Vec<_>>(), ["b", "a", "x"]);
        assert_eq!(names_before(&[], "b").collect::<Vec<_>>(), ["b"]);
    }
}
