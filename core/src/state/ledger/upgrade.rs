//! A store of version 1 becomes one of this version, at its first use and in one transaction.
//!
//! There, rows named their limit by its name. A renamed limit's rows were changed some at a time, and a table had the
//! changes that were still to be made. No process uses such a store meanwhile: see `LockedLane::refuse_other_versions`.

use super::database::VERSION;
use super::{executions, policies};
use crate::fault;
use rusqlite::{Connection, Transaction, TransactionBehavior, params};

/// Makes way for the new tables. Views of other programs stay as they are, and mean those.
const ASIDE: &str = "
PRAGMA legacy_alter_table = ON;
DROP VIEW IF EXISTS starts;
DROP INDEX IF EXISTS executions_by_key;
DROP INDEX IF EXISTS executions_by_end;
DROP INDEX IF EXISTS limits_by_generation;
DROP INDEX IF EXISTS keys_by_generation;
ALTER TABLE moves RENAME TO old_moves;
ALTER TABLE limits RENAME TO old_limits;
ALTER TABLE keys RENAME TO old_keys;
ALTER TABLE executions RENAME TO old_executions;
";

/// A name that is not declared is of no use, since a new lane does not have it.
const ACROSS: &str = "
INSERT INTO keys SELECT id, key, old.policy, old.overridden_at, old.overridden_by, old.generation, old.missing
  FROM old_keys AS old JOIN limits USING (name);
INSERT INTO executions SELECT id, key, key_hash, started_at, units, expires_at, synced, uptime
  FROM old_executions AS old JOIN limits USING (name) ORDER BY old.rowid;
DROP TABLE old_moves;
DROP TABLE old_limits;
DROP TABLE old_keys;
DROP TABLE old_executions;
";

pub(super) fn upgrade(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have done it in between.
    if transaction.pragma_query_value(None, "user_version", |row| row.get::<_, u32>(0))? < VERSION {
        transaction.execute_batch(ASIDE)?;
        fault::point("upgrading");
        move_rows(&transaction)?;
        transaction.execute_batch(policies::SCHEMA)?;
        transaction.execute_batch(executions::SCHEMA)?;
        let limits = format!("INSERT INTO limits SELECT {}, * FROM old_limits", policies::NEW_ID);
        transaction.execute(&limits, [])?;
        fault::point("upgrading");
        transaction.execute_batch(ACROSS)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
        fault::point("upgrading");
    }
    transaction.commit()
}

/// Makes the changes that were still to be made, in order.
fn move_rows(transaction: &Transaction) -> rusqlite::Result<()> {
    let mut moves = transaction.prepare("SELECT name, until, becomes FROM old_moves ORDER BY number")?;
    let mut moves = moves.query([])?;
    while let Some(row) = moves.next()? {
        let (name, until): (String, i64) = (row.get(0)?, row.get(1)?);
        match row.get::<_, Option<String>>(2)? {
            Some(becomes) => {
                let rename = "UPDATE old_executions SET name = ?3 WHERE name = ?1 AND uptime <= ?2";
                transaction.execute(rename, params![name, until, becomes])?
            }
            None => {
                let forget = "DELETE FROM old_executions WHERE name = ?1 AND uptime <= ?2";
                transaction.execute(forget, params![name, until])?
            }
        };
    }
    Ok(())
}
