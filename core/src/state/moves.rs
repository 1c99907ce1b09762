//! Rows of the ledger that are another name's by now, or nobody's.
//!
//! A limit that is given another name, or whose name becomes another kind's, may have a million rows. To change them all in the
//! transaction that decides would hold up everybody who needs the structure lock. So that transaction only notes what is to
//! become of them, and whoever writes the ledger moves them, some at a time. Nobody reads them before the next recovery, which
//! finishes what is left; and whoever changes rows by their limit's name finishes it first.
//!
//! Notes are followed in their order, so a name may be given away and come back. What was gathered under the name before, and
//! is written after the change, is moved too: nobody moves rows while somebody else writes. A limit that is to have a name
//! whose rows have not gone yet is declared after they have.

use super::database::Database;
use crate::error::Result;
use crate::fault;
use rusqlite::{Connection, TransactionBehavior, params};

pub(super) const SCHEMA: &str = "
CREATE TABLE moves (
  number   INTEGER PRIMARY KEY,
  name     TEXT NOT NULL,      -- of the limit, as the rows have it
  becomes  TEXT,               -- as they are to have it; NULL: they are forgotten
  until    INTEGER NOT NULL    -- those that started until this uptime
) STRICT;
";

/// What becomes of the rows of a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Move {
    number: i64,
    name: String,
    becomes: Option<String>,
    until: i64,
}

impl Move {
    /// Moves those from this row to that.
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

/// What is to be moved, in order.
fn all(connection: &Connection) -> rusqlite::Result<Vec<Move>> {
    let mut query = connection.prepare("SELECT number, name, becomes, until FROM moves ORDER BY number")?;
    let read = |row: &rusqlite::Row| {
        Ok(Move { number: row.get(0)?, name: row.get(1)?, becomes: row.get(2)?, until: row.get(3)? })
    };
    query.query_map([], read)?.collect()
}

/// Notes that a limit's rows are to have another name, or to go if they started until this uptime.
pub(super) fn note(connection: &Connection, name: &str, becomes: Option<&str>, until: i64) -> rusqlite::Result<()> {
    let note = "INSERT INTO moves (name, becomes, until) VALUES (?1, ?2, ?3)";
    connection.execute(note, params![name, becomes, until]).map(drop)
}

/// A limit is to have this name: what had it before has gone.
pub(super) fn make_way(connection: &Connection, name: &str) -> rusqlite::Result<()> {
    let moves = all(connection)?;
    match moves.iter().any(|other| other.name == name && other.becomes.is_some()) {
        true => finish(connection, &moves),
        false => Ok(()),
    }
}

fn finish(connection: &Connection, moves: &[Move]) -> rusqlite::Result<()> {
    moves.iter().try_for_each(|one| one.rows(connection, i64::MIN, i64::MAX).and_then(|()| one.end(connection)))
}

impl Database {
    pub fn moves(&self) -> Result<Vec<Move>> {
        all(&self.connection).map_err(|e| self.explain(e))
    }

    /// Notes that a limit's rows are to have another name, unless that was noted when it was decided.
    pub fn note_name(&mut self, name: &str, becomes: &str) -> Result<()> {
        let is_it = |one: &Move| one.name == name && one.becomes.as_deref() == Some(becomes);
        if self.moves()?.iter().any(is_it) { Ok(()) } else { self.note_move(name, Some(becomes), i64::MAX) }
    }

    /// Notes what is to become of a limit's rows: see [`note`].
    pub fn note_move(&mut self, name: &str, becomes: Option<&str>, until: i64) -> Result<()> {
        let mut noted = || -> rusqlite::Result<()> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            note(&transaction, name, becomes, until)?;
            transaction.commit()
        };
        noted().map_err(|e| self.explain(e))
    }

    /// Moves some rows, from this one on. Returns where to go on. For whoever writes the ledger.
    pub fn move_some(&mut self, what: &Move, first: i64) -> Result<Option<i64>> {
        let mut some = || -> rusqlite::Result<Option<i64>> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            // A lane in this one's place may have had them moved.
            if !all(&transaction)?.contains(what) {
                return Ok(None);
            }
            let next = super::ledger::next_rows(&transaction, first)?;
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

    /// Moves all that are left, before anybody reads them.
    pub fn move_all(&mut self) -> Result<()> {
        let mut moved = || -> rusqlite::Result<()> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            finish(&transaction, &all(&transaction)?)?;
            transaction.commit()
        };
        moved().map_err(|e| self.explain(e))
    }
}
