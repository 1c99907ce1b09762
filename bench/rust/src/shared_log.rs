//! The usual way to share an exact log without a server: a row per start, checked and written in one transaction.

use std::path::Path;
use std::time::Duration;

/// A log in SQLite: write-ahead log, `synchronous = NORMAL`, prepared statements, an immediate transaction per decision.
pub struct SharedLog(rusqlite::Connection);

impl SharedLog {
    /// Opens the database, and creates its missing tables.
    pub fn new(path: &Path) -> Self {
        let open = || -> rusqlite::Result<_> {
            let db = rusqlite::Connection::open(path)?;
            db.busy_timeout(Duration::from_secs(30))?;
            db.pragma_update(None, "journal_mode", "wal")?;
            db.pragma_update(None, "synchronous", "normal")?;
            db.execute_batch(
                "CREATE TABLE IF NOT EXISTS log (at INTEGER NOT NULL); CREATE INDEX IF NOT EXISTS by_at ON log (at);",
            )?;
            Ok(db)
        };
        SharedLog(open().unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    /// Records a start if the window has a free unit, and returns whether it did.
    pub fn attempt(&self, limit: i64, window: Duration) -> bool {
        self.try_attempt(limit, window).expect("a transaction has failed")
    }

    fn try_attempt(&self, limit: i64, window: Duration) -> rusqlite::Result<bool> {
        self.0.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let now = std::time::UNIX_EPOCH.elapsed().expect("it is after 1970").as_micros() as i64;
        self.0.prepare_cached("DELETE FROM log WHERE at <= ?1")?.execute([now - window.as_micros() as i64])?;
        let count: i64 = self.0.prepare_cached("SELECT count(*) FROM log")?.query_row([], |row| row.get(0))?;
        if count < limit {
            self.0.prepare_cached("INSERT INTO log VALUES (?1)")?.execute([now])?;
        }
        self.0.prepare_cached("COMMIT")?.execute([])?;
        Ok(count < limit)
    }
}
