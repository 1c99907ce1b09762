//! Whether the ledger may lack starts.
//!
//! A store whose processes all commit every start before it happens loses none with its lane. So the process that makes a
//! lane records here that all of its starts are in the ledger. A process that lets starts happen earlier deletes that
//! record before its first one. Where the last lane has no record, a budget of each key may be missing. Earlier versions
//! of this library record nothing, and refuse a lane of this one.
//!
//! Starts in the lanes before may still be missing, because the budget that a key counts for them is written with its
//! first start, and not all keys have started since. The record therefore also has the time up to which starts may be
//! missing.

use super::database::Database;
use super::executions::{Moment, STARTED};
use super::policies;
use crate::error::Result;
use rusqlite::{Connection, TransactionBehavior, named_params, params};

pub(super) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS committed (  -- one row at most: every start in the last lane is in 'executions'
  lane           TEXT NOT NULL,         -- as in 'store'; another lane's row means nothing
  started_at     INTEGER NOT NULL,      -- starts up to this time may be missing, from the lanes before
  synced         INTEGER NOT NULL,      -- this and the next as in 'executions'
  uptime         INTEGER NOT NULL
) STRICT;
";

/// The record of a new store, which has had no starts.
pub(super) const OF_A_NEW_STORE: &str = "INSERT INTO committed VALUES ('', 0, 1, -9000000000000000)";

fn delete(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(&format!("{SCHEMA} DELETE FROM committed;"))
}

/// Records that the ledger has every start from this moment on, if this lane is the last.
pub(in crate::state) fn note(connection: &Connection, lane: &str, from: Option<Moment>) -> rusqlite::Result<()> {
    delete(connection)?;
    let note = "INSERT INTO committed SELECT lane, ?2, ?3, ?4 FROM store WHERE lane = ?1";
    let noted = |from: Moment| connection.execute(note, params![lane, from.wall, from.synced, from.uptime]);
    from.map_or(Ok(()), |from| noted(from).map(drop))
}

impl Database {
    /// Records the lane that writes from now on. Writes of other lanes fail. Returns the uptime up to which starts may be
    /// missing, or `None` if any may be.
    pub fn claim(&mut self, lane: u64, boot: &str, now: Moment) -> Result<Option<i64>> {
        let lane = format!("{lane:016x}");
        let claim = |transaction: &Connection| -> rusqlite::Result<Option<Option<i64>>> {
            transaction.execute_batch(SCHEMA)?;
            let last = "UPDATE committed SET lane = ?1 WHERE lane = (SELECT lane FROM store)";
            let is_recorded = transaction.execute(last, [&lane])? == 1;
            transaction.execute("UPDATE store SET lane = ?1", [&lane])?;
            policies::remove_forgotten(transaction)?;
            let clock =
                named_params! { ":boot": boot, ":uptime": now.uptime, ":wall": now.wall, ":synced": now.synced };
            let until = || {
                transaction.query_row(&format!("SELECT {STARTED} FROM committed"), clock, |row| row.get::<_, i64>(0))
            };
            is_recorded.then(until).transpose().map(Some)
        };
        self.transact(claim).map(Option::flatten)
    }

    /// Deletes the record, because any starts may be missing.
    pub fn delete_record(&self) -> Result<()> {
        delete(&self.connection).map_err(|e| self.explain(e))
    }

    /// Deletes the record of a lane. Returns `false` if another lane has replaced it.
    pub(in crate::state) fn delete_record_of(&mut self, (lane, sequence): (u64, u64)) -> Result<bool> {
        let mut delete_it = || -> rusqlite::Result<bool> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            delete(&transaction)?;
            let update = "UPDATE store SET sequence = max(sequence, ?1) WHERE lane = ?2";
            let is_last = transaction.execute(update, params![sequence as i64, format!("{lane:016x}")])? == 1;
            if is_last { transaction.commit().map(|()| true) } else { Ok(false) }
        };
        let is_last = delete_it().map_err(|e| self.explain(e))?;
        self.sequence = self.sequence.max(sequence);
        Ok(is_last)
    }
}
