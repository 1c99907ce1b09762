//! The ledger: the starts that may still count, from which the lane is rebuilt after a reboot. Also per-minute usage,
//! for observers.
//!
//! The age of an execution is measured by uptime (the kernel's boot clock), which cannot be set: an execution counts
//! until `uptime + expires_at - started_at`. The wall clock is needed only across a reboot. It is trusted if it was
//! synchronised at both ends; otherwise an execution is taken to be as old as the time since this boot, which it is at
//! least. Some containers show a boot id of their own, so another id does not prove another boot. Where the uptime has
//! not fallen below the execution's, only the difference counts as its age, since it is at least that old in both
//! cases. (One that lies in the future, such as a place, is then no older than now, unless the ledger was written later
//! than that: then the machine has certainly rebooted.)

use super::committed;
use super::database::{Database, from_hex, to_hex};
use crate::error::{Error, Result};
use crate::fault;
use crate::state::counts::minutes::Minute;
use rusqlite::{Connection, OptionalExtension, named_params, params};
use std::collections::BTreeMap;

/// `executions` has no index by key: appending must not touch a page per key, and forgetting a key is rare.
pub(super) const SCHEMA: &str = "
CREATE TABLE executions (               -- starts that may still count; the view 'starts' shows readable times
  limit_id       INTEGER NOT NULL,      -- as in 'limits'
  key            TEXT NOT NULL,         -- readable, possibly truncated
  key_hash       TEXT NOT NULL,         -- identifies the key
  started_at     INTEGER NOT NULL,      -- microseconds since 1970, like all times here except uptimes
  units          INTEGER NOT NULL,
  expires_at     INTEGER NOT NULL,      -- until when it counts
  synced         INTEGER NOT NULL,      -- 1: the clock that wrote these times was synchronised
  uptime         INTEGER NOT NULL,      -- the start, in microseconds since the boot in 'store'; negative: before that boot
  counts_until   INTEGER AS (uptime + (expires_at - started_at))
) STRICT;
CREATE INDEX executions_by_end ON executions (counts_until);
CREATE VIEW starts AS
  SELECT name, key, strftime('%Y-%m-%d %H:%M:%f', started_at / 1e6, 'unixepoch') AS started_at, units,
    strftime('%Y-%m-%d %H:%M:%f', expires_at / 1e6, 'unixepoch') AS expires_at
  FROM executions LEFT JOIN limits ON id = limit_id ORDER BY executions.started_at;
";

/// It is ordered by time first, so that minutes are added at one end and removed at the other.
pub(super) const USAGE: &str = "
CREATE TABLE usage (                    -- the counts of each limit in each minute of the last 31 days
  minute         TEXT NOT NULL,         -- 'YYYY-MM-DD HH:MM', in UTC
  name           TEXT NOT NULL,
  units          INTEGER NOT NULL,      -- units admitted
  denied         INTEGER NOT NULL DEFAULT 0, -- attempts that were denied
  waited         INTEGER NOT NULL DEFAULT 0, -- starts that had to wait
  peak           INTEGER NOT NULL DEFAULT 0, -- the most units in use at a time, of one key, as seen once a second
  PRIMARY KEY (minute, name)
) STRICT, WITHOUT ROWID;
";

const MINUTE: i64 = 60_000_000;
const USAGE_IS_KEPT: i64 = 31 * 24 * 60 * MINUTE;

/// The largest number of units of an execution.
pub(in crate::state) const MAX_UNITS: i64 = 1_000_000_000;

/// How many expired executions one call removes beyond those that it adds. So the first call after a long silence stays
/// cheap.
const MAX_PRUNED: usize = 10_000;

/// How many minutes are read before other writers get a turn.
pub(in crate::state) const MINUTES_AT_ONCE: u64 = 1_440;

/// How many limits one statement names.
const NUMBERS: usize = 10_000;

/// How many executions one transaction examines when it changes some of them.
const ROWS: i64 = 4_096;

/// The uptime at which an execution started, relative to this boot: see the module documentation.
pub(super) const STARTED: &str = "
  CASE WHEN :boot = (SELECT boot FROM store) THEN uptime
       WHEN synced AND :synced THEN min(started_at - :wall + :uptime, :uptime)
       WHEN uptime <= :uptime THEN uptime
       WHEN :uptime < (SELECT pruned_at FROM store) THEN 0
       ELSE :uptime END";

/// The units admitted to one key at one time. Times are microseconds since 1970, by the wall clock of the [`Moment`]
/// that accompanies them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Execution<'a> {
    /// The limit's number in the database.
    pub limit: i64,
    /// For people, possibly truncated.
    pub key: &'a str,
    /// The hash that identifies the key.
    pub key_hash: [u64; 2],
    pub started_at: i64,
    pub units: u64,
    pub expires_at: i64,
}

/// The current time on both clocks, read together, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment {
    /// The clock of decisions: since the kernel's boot, or since the creation of a manual clock.
    pub uptime: i64,
    /// The wall clock, since 1970.
    pub wall: i64,
    /// Whether the kernel reports that the wall clock is synchronised.
    pub synced: bool,
}

impl Database {
    /// Records what was admitted in the boot of [`Database::set_boot`]. The commit gets this number. When this returns,
    /// everything is on disk; after an error, nothing is. About once a minute it also removes what no longer counts. It
    /// fails if the database names another lane by now, since the process that rebuilt that lane may have read the
    /// ledger already.
    pub fn record(
        &mut self,
        rows: &[Execution],
        minutes: &[(i64, Minute)],
        now: Moment,
        (lane, sequence): (u64, u64),
    ) -> Result<()> {
        let record = |transaction: &Connection| -> rusqlite::Result<Option<()>> {
            append(transaction, rows, now)?;
            append_minutes(transaction, minutes)?;
            prune(transaction, rows.len(), now, self.keeps_to)?;
            let update = "UPDATE store SET sequence = max(sequence, ?1) WHERE lane = ?2";
            let is_last = transaction.execute(update, params![sequence as i64, format!("{lane:016x}")])? == 1;
            Ok(is_last.then_some(()))
        };
        if self.transact(record)?.is_none() {
            let doing = format!("writing the ledger of {}", self.path().display());
            return Err(Error::store(doing, "another lane has replaced the one that this process uses"));
        }
        self.sequence = sequence;
        Ok(())
    }

    /// Passes on the executions that still count and that count for longer than `over` in total, by limit, key and
    /// start. Their times are given by the wall clock of `now`: an execution started `now.wall - started_at` ago, or
    /// earlier. `boot` is the boot of `now`.
    pub fn executions(
        &self,
        boot: &str,
        now: Moment,
        over: u64,
        mut visit: impl FnMut(Execution) -> Result<()>,
    ) -> Result<()> {
        let query = format!(
            "SELECT limit_id, key, key_hash, units, {STARTED} AS started, expires_at - started_at AS counts_for
             FROM executions WHERE started + counts_for > :uptime AND counts_for > :over
             ORDER BY limit_id, key_hash, started, rowid"
        );
        let mut query = self.connection.prepare(&query).map_err(|e| self.explain(e))?;
        let clock = named_params! { ":boot": boot, ":uptime": now.uptime, ":wall": now.wall, ":synced": now.synced,
        ":over": over as i64 };
        let mut rows = query.query(clock).map_err(|e| self.explain(e))?;
        while let Some(row) = rows.next().map_err(|e| self.explain(e))? {
            let read = || -> rusqlite::Result<_> {
                let text = |at| row.get_ref(at).and_then(|value| Ok(value.as_str()?));
                let number = |at| row.get::<_, i64>(at);
                Ok((number(0)?, text(1)?, text(2)?, number(3)?, number(4)?, number(5)?))
            };
            let (limit, key, key_hash, units, started, counts_for) = read().map_err(|e| self.explain(e))?;
            // Another program may have written any numbers.
            let started_at = (now.wall - now.uptime).saturating_add(started);
            visit(Execution {
                limit,
                key,
                key_hash: from_hex(key_hash).ok_or_else(|| self.damaged(format!("a key hash \"{key_hash}\"")))?,
                started_at,
                units: units.clamp(0, MAX_UNITS) as u64,
                expires_at: started_at.saturating_add(counts_for),
            })?;
        }
        Ok(())
    }

    /// The counts of a limit in a range of minutes since 1970, both ends included. At most [`MINUTES_AT_ONCE`], which
    /// takes a few milliseconds, however many limits there are.
    pub fn minutes(&self, name: &str, from: u64, to: u64) -> Result<Vec<Minute>> {
        let read = || -> rusqlite::Result<Vec<Minute>> {
            // Each minute is looked up separately, since the minutes of a limit are not adjacent.
            let mut query = self.connection.prepare(
                "WITH RECURSIVE minutes (at) AS (VALUES (?1) UNION ALL SELECT at + 1 FROM minutes WHERE at < ?2)
                 SELECT at, units, denied, waited, peak FROM minutes CROSS JOIN usage
                 ON minute = strftime('%Y-%m-%d %H:%M', at * 60, 'unixepoch') AND name = ?3",
            )?;
            let last = to.min(from + MINUTES_AT_ONCE - 1);
            let rows = query.query_map(params![from as i64, last as i64, name], |row| {
                let count = |i| row.get::<_, i64>(i).map(|count| count.max(0) as u64);
                Ok(Minute { at: count(0)?, units: count(1)?, denied: count(2)?, waited: count(3)?, peak: count(4)? })
            })?;
            rows.collect()
        };
        read().map_err(|e| self.explain(e))
    }

    /// Returns whether the machine has certainly rebooted since the ledger was last pruned. Another boot id alone does
    /// not prove it.
    pub fn is_rebooted(&self, now: Moment) -> Result<bool> {
        let pruned_at = self.connection.query_row("SELECT pruned_at FROM store", [], |row| row.get::<_, i64>(0));
        Ok(now.uptime < pruned_at.map_err(|e| self.explain(e))?)
    }

    /// Forgets the starts of a key, or of all keys of a limit, up to this moment. One call examines some rows, from
    /// `first` on, so few that others do not wait long. Returns the row at which to continue. Usage stays, because it
    /// happened.
    pub fn forget(&self, limit: i64, key: Option<[u64; 2]>, until: Moment, first: i64) -> Result<Option<i64>> {
        let delete = "DELETE FROM executions WHERE rowid BETWEEN ?1 AND ?2 AND limit_id = ?3
                      AND key_hash = ifnull(?4, key_hash) AND uptime <= ?5";
        self.change_some(delete, (limit, key), until.uptime, first)
    }

    /// Makes the starts of a key, or of all keys of a limit, count for at least this many microseconds. Examines some
    /// rows per call, like [`Database::forget`].
    pub fn keep(&self, limit: i64, key: Option<[u64; 2]>, longest: u64, first: i64) -> Result<Option<i64>> {
        fault::point("keeping");
        let keep = "UPDATE executions SET expires_at = started_at + ?5 WHERE rowid BETWEEN ?1 AND ?2 AND limit_id = ?3
                    AND key_hash = ifnull(?4, key_hash) AND expires_at < started_at + ?5";
        self.change_some(keep, (limit, key), i64::try_from(longest).unwrap_or(i64::MAX), first)
    }

    /// Makes the starts of these limits count for at least so many microseconds, all at once. For the process that fills
    /// the lane.
    pub(super) fn keep_all(&self, limits: &[(i64, u64)]) -> Result<()> {
        let keep = "UPDATE executions SET expires_at = started_at + least
                    FROM (SELECT value ->> 0 AS id, value ->> 1 AS least FROM json_each(?1))
                    WHERE limit_id = id AND expires_at < started_at + least";
        let mut all = limits.chunks(NUMBERS).map(|some| {
            let one =
                |&(id, longest): &(i64, u64)| format!("[{id},{}]", i64::try_from(longest).unwrap_or(i64::MAX / 2));
            let some: Vec<String> = some.iter().map(one).collect();
            self.connection.execute(keep, [format!("[{}]", some.join(","))])
        });
        all.try_for_each(|kept| kept.map(drop)).map_err(|e| self.explain(e))
    }

    /// Removes all starts of these limits.
    pub(super) fn remove_all(&self, limits: &[i64]) -> Result<()> {
        let remove = "DELETE FROM executions WHERE limit_id IN (SELECT value FROM json_each(?1))";
        let mut all = limits.chunks(NUMBERS).map(|some| {
            let some: Vec<String> = some.iter().map(i64::to_string).collect();
            self.connection.execute(remove, [format!("[{}]", some.join(","))])
        });
        all.try_for_each(|removed| removed.map(drop)).map_err(|e| self.explain(e))
    }

    fn change_some(
        &self,
        change: &str,
        (limit, key): (i64, Option<[u64; 2]>),
        number: i64,
        first: i64,
    ) -> Result<Option<i64>> {
        let some = || -> rusqlite::Result<Option<i64>> {
            let next = next_rows(&self.connection, first)?;
            let last = next.map_or(i64::MAX, |next| next - 1);
            self.connection.execute(change, params![first, last, limit, key.map(to_hex), number]).map(|_| next)
        };
        some().map_err(|e| self.explain(e))
    }

    /// Records the boot in which the lane is created, and the number of this creation, before any start is recorded in
    /// it. If the boot is another one than before, the ledger's entries are dated relative to it. From `complete_from` on
    /// every start is in the ledger: see `committed.rs`.
    pub fn set_boot(
        &mut self,
        boot: &str,
        now: Moment,
        (lane, sequence): (u64, u64),
        complete_from: Option<Moment>,
    ) -> Result<()> {
        let set = |transaction: &Connection| -> rusqlite::Result<Option<()>> {
            let clock =
                named_params! { ":boot": boot, ":uptime": now.uptime, ":wall": now.wall, ":synced": now.synced };
            transaction.execute(
                &format!("UPDATE executions SET uptime = {STARTED} WHERE :boot <> (SELECT boot FROM store)"),
                clock,
            )?;
            let lane = format!("{lane:016x}");
            committed::note(transaction, &lane, complete_from)?;
            let update = "UPDATE store SET boot = ?1, lane = ?2, sequence = ?3";
            transaction.execute(update, params![boot, lane, sequence as i64]).map(|_| Some(()))
        };
        self.transact(set)?;
        self.sequence = sequence;
        Ok(())
    }
}

/// The first row that is left for the next transaction, if this one starts at `first`.
fn next_rows(connection: &Connection, first: i64) -> rusqlite::Result<Option<i64>> {
    let next = "SELECT rowid FROM executions WHERE rowid >= ?1 ORDER BY rowid LIMIT 1 OFFSET ?2";
    connection.query_row(next, [first, ROWS], |row| row.get(0)).optional()
}

fn append(transaction: &Connection, rows: &[Execution], now: Moment) -> rusqlite::Result<()> {
    let mut insert = transaction.prepare("INSERT INTO executions VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?;
    let mut usage = BTreeMap::<_, u64>::new();
    for row in rows {
        let Execution { limit, key, key_hash, started_at, units, expires_at } = *row;
        let uptime = started_at - now.wall + now.uptime;
        let stored = i64::try_from(units).unwrap_or(i64::MAX);
        insert.execute(params![limit, key, to_hex(key_hash), started_at, stored, expires_at, now.synced, uptime])?;
        let sum = usage.entry((started_at.div_euclid(MINUTE), limit)).or_default();
        *sum = sum.saturating_add(units);
    }
    let mut add = transaction.prepare(
        "INSERT INTO usage (minute, name, units)
           SELECT strftime('%Y-%m-%d %H:%M', ?1 * 60, 'unixepoch'), name, ?3 FROM limits WHERE id = ?2
         ON CONFLICT DO UPDATE SET units = units + excluded.units",
    )?;
    for ((minute, limit), units) in usage {
        add.execute(params![minute, limit, i64::try_from(units).unwrap_or(i64::MAX)])?;
    }
    Ok(())
}

/// A minute may be written again, with sums that are no smaller. (Units come from here or from the rows above,
/// depending on how the limit is recorded.)
fn append_minutes(transaction: &Connection, minutes: &[(i64, Minute)]) -> rusqlite::Result<()> {
    let mut add = transaction.prepare(
        "INSERT INTO usage SELECT strftime('%Y-%m-%d %H:%M', ?1 * 60, 'unixepoch'), name, ?3, ?4, ?5, ?6
           FROM limits WHERE id = ?2
         ON CONFLICT DO UPDATE SET units = max(units, excluded.units), denied = max(denied, excluded.denied),
           waited = max(waited, excluded.waited), peak = max(peak, excluded.peak)",
    )?;
    for (limit, Minute { at, units, denied, waited, peak }) in minutes {
        let [at, units, denied, waited, peak] =
            [at, units, denied, waited, peak].map(|n| i64::try_from(*n).unwrap_or(i64::MAX));
        add.execute(params![at, limit, units, denied, waited, peak])?;
    }
    Ok(())
}

/// Removes expired executions, after this row. Those of a limit whose policy has changed stay until they are kept for as
/// long as the new policy needs, which `missing` shows.
fn prune(transaction: &Connection, added: usize, now: Moment, after: i64) -> rusqlite::Result<()> {
    let pruned_at: i64 = transaction.query_row("SELECT pruned_at FROM store", [], |row| row.get(0))?;
    // A later time than now is from another boot.
    if (pruned_at..pruned_at.saturating_add(MINUTE)).contains(&now.uptime) || fault::planted("no pruning") {
        return Ok(());
    }
    let most = MAX_PRUNED + added;
    let pruned = transaction.execute(
        "DELETE FROM executions WHERE rowid IN
           (SELECT rowid FROM executions WHERE counts_until <= ?1 AND rowid > ?3 AND limit_id NOT IN
              (SELECT id FROM limits WHERE missing IS NOT NULL AND policy IS NOT NULL
               UNION SELECT id FROM limits JOIN keys ON limit_id = id
                 WHERE keys.missing IS NOT NULL AND limits.policy IS NOT NULL) LIMIT ?2)",
        params![now.uptime, most as i64, after],
    )?;
    transaction.execute(
        "DELETE FROM usage WHERE minute < strftime('%Y-%m-%d %H:%M', ?1, 'unixepoch')",
        [(now.wall - USAGE_IS_KEPT).div_euclid(1_000_000)],
    )?;
    // If more may be left, the next call continues.
    if pruned < most {
        transaction.execute("UPDATE store SET pruned_at = ?1", [now.uptime])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::database::tests::{Scratch, count};
    use super::*;
    use crate::error::Error;

    const SECOND: i64 = 1_000_000;
    const HOUR: i64 = 60 * MINUTE;
    /// 2025-06-01 12:00:00 UTC.
    const NOON: i64 = 1_748_779_200 * SECOND;

    /// This many seconds after noon, on a machine that was started an hour before noon.
    fn at(seconds: i64) -> Moment {
        Moment { uptime: HOUR + seconds * SECOND, wall: NOON + seconds * SECOND, synced: true }
    }

    /// The limits of the tests, by number.
    const LIMITS: [&str; 3] = ["mail", "openai", "api"];

    fn open(dir: &Scratch) -> Database {
        let database = dir.open();
        for (number, name) in LIMITS.iter().enumerate() {
            assert_eq!(database.adopt((name, "rate", number as i64), |_| false, 0), Ok(()));
        }
        database
    }

    fn id(name: &str) -> i64 {
        LIMITS.iter().position(|limit| *limit == name).unwrap() as i64
    }

    /// One unit that starts this many seconds after noon and counts for a minute.
    fn start<'a>(name: &str, key: &'a str, seconds: i64) -> Execution<'a> {
        let started_at = NOON + seconds * SECOND;
        let key_hash = [key.len() as u64, key.bytes().next().unwrap_or(0).into()];
        Execution { limit: id(name), key, key_hash, started_at, units: 1, expires_at: started_at + MINUTE }
    }

    /// All executions that still count: key, seconds after noon, units.
    fn counted(database: &Database, boot: &str, now: Moment) -> Vec<(String, i64, u64)> {
        let mut found = Vec::new();
        let each = |e: Execution| {
            found.push((e.key.to_owned(), (e.started_at - NOON) / SECOND, e.units));
            Ok(())
        };
        database.executions(boot, now, 0, each).unwrap();
        found
    }

    fn keys(database: &Database, boot: &str, now: Moment) -> Vec<String> {
        counted(database, boot, now).into_iter().map(|(key, ..)| key).collect()
    }

    #[test]
    fn executions_are_read_by_limit_key_and_time() {
        let dir = Scratch::new();
        open(&dir).set_boot("b1", at(0), (0, 0), None).unwrap();
        let fat = Execution { units: 7, key_hash: [u64::MAX, 1], expires_at: NOON + HOUR + 3, ..start("mail", "a", 2) };
        let rows = [start("openai", "bb", 1), start("openai", "a", 3), fat, start("openai", "a", 1)];
        open(&dir).record(&rows, &[], at(3), (0, 0)).unwrap();
        open(&dir).record(&[start("openai", "a", 2)], &[], at(3), (0, 0)).unwrap();
        let mut found = Vec::new();
        let mut each = |e: Execution| {
            found.push((e.limit, e.key.to_owned(), e.key_hash, e.started_at, e.units, e.expires_at));
            Ok(())
        };
        open(&dir).executions("b1", at(4), 0, &mut each).unwrap();
        let expected = [fat, start("openai", "a", 1), start("openai", "a", 2), start("openai", "a", 3), rows[0]];
        assert_eq!(found, expected.map(|e| (e.limit, e.key.into(), e.key_hash, e.started_at, e.units, e.expires_at)));
        let stop = Error::Unsupported { reason: "enough".into() };
        let mut visited = 0;
        let stopped = open(&dir).executions("b1", at(4), 0, |_| {
            visited += 1;
            Err(stop.clone())
        });
        assert_eq!((stopped, visited), (Err(stop), 1));
    }

    #[test]
    fn ten_thousand_rows_fit_in_one_call() {
        let dir = Scratch::new();
        let keys: Vec<String> = (0..10_000).map(|i| format!("tenant-{i}")).collect();
        let row =
            |(i, key): (usize, &'static str)| Execution { key_hash: [i as u64, 1], ..start("api", key, i as i64 % 90) };
        let keys: Vec<&'static str> = keys.into_iter().map(|key| &*key.leak()).collect();
        let rows: Vec<Execution> = keys.into_iter().enumerate().map(row).collect();
        let mut database = open(&dir);
        database.set_boot("b1", at(0), (0, 0), None).unwrap();
        database.record(&rows, &[], at(59), (0, 0)).unwrap();
        database.record(&rows[..10], &[], at(59), (0, 0)).unwrap();
        assert_eq!(counted(&database, "b1", at(59)).len(), 10_010);
        let mut query = database.connection.prepare("SELECT minute, units FROM usage ORDER BY minute").unwrap();
        let usage = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        let usage: Vec<(String, i64)> = usage.map(Result::unwrap).collect();
        // 111 rounds of 90 seconds, and 10 seconds more. Two thirds of each round are in the first minute.
        assert_eq!(usage, [("2025-06-01 12:00".into(), 111 * 60 + 20), ("2025-06-01 12:01".into(), 111 * 30)]);
    }

    #[test]
    fn expired_executions_are_not_read() {
        let dir = Scratch::new();
        let mut database = open(&dir);
        database.set_boot("b1", at(0), (0, 0), None).unwrap();
        database.record(&[start("api", "old", 0), start("api", "new", 1)], &[], at(1), (0, 0)).unwrap();
        assert_eq!(keys(&database, "b1", Moment { uptime: at(60).uptime - 1, ..at(60) }), ["new", "old"]);
        assert_eq!(keys(&database, "b1", at(60)), ["new"]);
        assert_eq!(keys(&database, "b1", at(61)), [""; 0]);
        assert_eq!(count(&database, "executions"), 2, "reading removes nothing");
    }

    #[test]
    fn setting_the_wall_clock_has_no_effect() {
        let dir = Scratch::new();
        let mut database = open(&dir);
        database.set_boot("b1", at(0), (0, 0), None).unwrap();
        database.record(&[start("api", "a", 0)], &[], at(0), (0, 0)).unwrap();
        for wall in [NOON - 900 * HOUR, NOON + 900 * HOUR] {
            let then = |seconds| Moment { wall, ..at(seconds) };
            let mut found = None;
            let each = |e: Execution| {
                found = Some((e.started_at, e.expires_at));
                Ok(())
            };
            database.executions("b1", then(59), 0, each).unwrap();
            assert_eq!(found, Some((wall - 59 * SECOND, wall + SECOND)), "its age is right by the new clock");
            assert_eq!(keys(&database, "b1", then(60)), [""; 0]);
        }
        database.record(&[], &[], Moment { wall: NOON + 900 * HOUR, ..at(59) }, (0, 0)).unwrap();
        assert_eq!(count(&database, "executions"), 1, "it is not pruned either");
    }

    #[test]
    fn the_ledger_is_pruned_about_once_a_minute() {
        let dir = Scratch::new();
        let mut database = open(&dir);
        database.set_boot("b1", at(0), (0, 0), None).unwrap();
        database.record(&[start("api", "a", 0)], &[], at(0), (0, 0)).unwrap();
        database.record(&[start("api", "b", 30)], &[], at(30), (0, 0)).unwrap();
        database.record(&[start("api", "c", 59)], &[], at(59), (0, 0)).unwrap();
        assert_eq!(count(&database, "executions"), 3);
        database.record(&[start("api", "d", 60)], &[], at(60), (0, 0)).unwrap();
        assert_eq!(count(&database, "executions"), 3, "a is gone");
        database.record(&[start("api", "e", 100)], &[], at(100), (0, 0)).unwrap();
        assert_eq!(count(&database, "executions"), 4, "b has expired, but the minute is not over");
        let month = 31 * 86_400;
        database.record(&[], &[], at(month), (0, 0)).unwrap();
        assert_eq!(count(&database, "executions"), 0);
        assert_eq!(count(&database, "usage"), 2, "31 days have not passed");
        database.record(&[], &[], at(month + 60), (0, 0)).unwrap();
        assert_eq!(count(&database, "usage"), 1);
    }

    #[test]
    fn rows_that_may_have_to_be_restored_are_kept() {
        let dir = Scratch::new();
        let mut database = open(&dir);
        database.set_boot("b1", at(0), (0, 0), None).unwrap();
        database.record(&[start("api", "a", 0), start("api", "b", 0)], &[], at(0), (0, 0)).unwrap();
        database.keeps_to = 1;
        database.record(&[start("api", "c", 0)], &[], at(61), (0, 0)).unwrap();
        assert_eq!(count(&database, "executions"), 1, "the later ones have expired, too");
        database.keeps_to = 0;
        database.record(&[], &[], at(122), (0, 0)).unwrap();
        assert_eq!(count(&database, "executions"), 0);
    }

    #[test]
    fn pruning_after_a_long_silence_is_spread_over_calls() {
        let dir = Scratch::new();
        let mut database = open(&dir);
        database.set_boot("b1", at(0), (0, 0), None).unwrap();
        let rows = vec![start("api", "a", 0); 2 * MAX_PRUNED + 500];
        database.record(&rows, &[], at(0), (0, 0)).unwrap();
        let mut left = Vec::new();
        for seconds in 3_600..3_604 {
            database.record(&[start("api", "new", seconds)], &[], at(seconds), (0, 0)).unwrap();
            left.push(count(&database, "executions"));
        }
        let most = MAX_PRUNED as i64;
        assert_eq!(left, [most + 500, 500, 3, 4]);
    }

    #[test]
    fn after_a_reboot_no_execution_counts_as_older_than_it_is() {
        let noon = at(0);
        let unsynced = |moment: Moment| Moment { synced: false, ..moment };
        let up = |seconds, moment: Moment| Moment { uptime: seconds * SECOND, ..moment };
        // Each execution was recorded at noon. The columns: the recorded moment, the moment in another boot at which it
        // is read, and its apparent start.
        let cases = [
            ("both clocks are right", noon, up(20, at(40)), Some(0)),
            ("and it has expired", noon, up(20, at(60)), None),
            ("a synchronised clock that was set back is trusted up to now", noon, up(20, at(-500)), Some(-500)),
            ("an unsynchronised clock now: as old as this boot", noon, up(20, unsynced(at(9_000))), Some(8_980)),
            ("and expired with it", noon, up(60, unsynced(at(-9_000))), None),
            ("an unsynchronised clock then", unsynced(noon), up(20, at(9_000)), Some(8_980)),
            ("only the boot id suggests a reboot", unsynced(up(15, noon)), up(20, at(9_000)), Some(8_995)),
            ("the same", unsynced(up(15, noon)), up(75, at(9_000)), None),
            (
                "a place in the future of an unsynchronised clock",
                unsynced(up(15, at(-30))),
                up(20, at(9_000)),
                Some(9_000),
            ),
        ];
        for (case, recorded, looked, expected) in cases {
            let dir = Scratch::new();
            let mut database = open(&dir);
            database.set_boot("b1", recorded, (0, 0), None).unwrap();
            database.record(&[start("api", "a", 0)], &[], recorded, (0, 0)).unwrap();
            let seen = |database: &Database, now| counted(database, "b2", now).first().map(|found| found.1);
            assert_eq!(seen(&database, looked), expected, "{case}");
            database.set_boot("b2", looked, (0, 0), None).unwrap();
            assert_eq!(dir.identity().boot, "b2");
            assert_eq!(seen(&database, looked), expected, "{case}, after it was dated again");
            database.set_boot("b2", looked, (0, 0), None).unwrap();
            assert_eq!(seen(&database, looked), expected, "{case}, and recording a boot twice has no effect");
            if let Some(start) = expected {
                // From here on its age is measured by uptime, until a minute after that start.
                let age = looked.wall / SECOND - NOON / SECOND - start;
                let later = |seconds| Moment { uptime: looked.uptime + seconds * SECOND, wall: 0, synced: false };
                assert_eq!(counted(&database, "b2", later(59 - age)).len(), 1, "{case}, to its end");
                assert_eq!(counted(&database, "b2", later(60 - age)).len(), 0, "{case}, and no longer");
            }
            database
                .record(&[start("api", "b", 9_999)], &[], Moment { uptime: looked.uptime, ..at(9_999) }, (0, 0))
                .unwrap();
            let left = 1 + i64::from(expected.is_some());
            assert_eq!(count(&database, "executions"), left, "{case}: the first record after a reboot prunes");
        }
    }

    #[test]
    fn one_key_or_a_whole_limit_can_be_forgotten() {
        let dir = Scratch::new();
        let mut database = open(&dir);
        database.set_boot("b1", at(0), (0, 0), None).unwrap();
        let rows = [start("api", "a", 0), start("api", "a", 1), start("api", "b", 0), start("mail", "a", 0)];
        database.record(&rows, &[], at(1), (0, 0)).unwrap();
        let forget = |database: &Database, name, key| assert_eq!(database.forget(name, key, at(9), i64::MIN), Ok(None));
        forget(&database, id("api"), Some(rows[0].key_hash));
        assert_eq!(keys(&database, "b1", at(1)), ["a", "b"]);
        forget(&database, id("api"), None);
        forget(&database, 7, None);
        assert_eq!(keys(&database, "b1", at(1)), ["a"]);
        assert_eq!(count(&database, "usage"), 2, "its usage remains");
    }

    #[test]
    fn a_full_disk_leaves_the_ledger_intact_and_usable_later() {
        let dir = Scratch::new();
        let mut database = open(&dir);
        database.set_boot("b1", at(0), (0, 0), None).unwrap();
        database.record(&[start("api", "a", 0)], &[], at(0), (0, 0)).unwrap();
        let pages: i64 = database.connection.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
        let limit = |pages: i64| format!("PRAGMA max_page_count = {pages}");
        database.connection.execute_batch(&limit(pages)).unwrap();
        let rows = vec![start("api", "b", 1); 5_000];
        let error = database.record(&rows, &[], at(1), (0, 0)).unwrap_err();
        assert_eq!(error.name(), "store_failure");
        assert!(error.to_string().contains("limits.db: the disk is full ("), "{error}");
        assert_eq!(counted(&database, "b1", at(1)), [("a".to_owned(), 0, 1)]);
        assert_eq!(count(&database, "(SELECT 1 FROM usage WHERE units = 1)"), 1);
        database.record(&[start("api", "c", 1)], &[], at(1), (0, 0)).unwrap();
        database.connection.execute_batch(&limit(1 << 30)).unwrap();
        database.record(&rows, &[], at(1), (0, 0)).unwrap();
        assert_eq!(count(&open(&dir), "executions"), 5_002);
    }

    #[test]
    fn a_write_blocked_by_another_program_times_out_and_can_be_retried() {
        let dir = Scratch::new();
        open(&dir).set_boot("b1", at(0), (0, 0), None).unwrap();
        for (kind, begins) in [("a writer", "BEGIN IMMEDIATE"), ("a reader", "BEGIN; SELECT * FROM store")] {
            let stranger = dir.stranger();
            stranger.execute_batch(begins).unwrap();
            let mut database = dir.open();
            let before = count(&database, "executions");
            let busy = database.record(&[start("api", "a", 0)], &[], at(0), (0, 0)).unwrap_err();
            assert_eq!(busy.name(), "store_timeout", "{kind}");
            assert_eq!(count(&database, "executions"), before, "{kind}: nothing is partly recorded");
            stranger.execute_batch("COMMIT").unwrap();
            database.record(&[start("api", "a", 0)], &[], at(0), (0, 0)).unwrap();
            assert_eq!(count(&database, "executions"), before + 1);
        }
    }

    #[test]
    fn the_ledger_is_readable() {
        let dir = Scratch::new();
        open(&dir).set_boot("b1", at(0), (0, 0), None).unwrap();
        let row = Execution { units: 3, started_at: NOON + 250_000, ..start("api", "tenant-7", 0) };
        open(&dir).record(&[row], &[], at(1), (0, 0)).unwrap();
        let shell = dir.stranger();
        let text = |sql: &str| shell.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
        let starts = text("SELECT concat_ws('|', name, key, started_at, units, expires_at) FROM starts");
        assert_eq!(starts, "api|tenant-7|2025-06-01 12:00:00.250|3|2025-06-01 12:01:00.000");
        assert_eq!(text("SELECT concat_ws('|', minute, name, units) FROM usage"), "2025-06-01 12:00|api|3");
        assert_eq!(text("SELECT key_hash FROM executions"), "00000000000000080000000000000074");
        assert_eq!(text("SELECT boot FROM store"), "b1");
        assert_eq!(text("PRAGMA integrity_check"), "ok");
    }

    #[test]
    fn invalid_rows_of_another_program_are_an_error() {
        let dir = Scratch::new();
        let mut database = open(&dir);
        database.set_boot("b1", at(0), (0, 0), None).unwrap();
        database.record(&[start("api", "a", 0)], &[], at(0), (0, 0)).unwrap();
        dir.stranger().execute_batch("UPDATE executions SET key_hash = 'mine'").unwrap();
        let error = database.executions("b1", at(0), 0, |_| Ok(())).unwrap_err();
        assert_eq!(error.name(), "damaged");
        assert!(error.to_string().ends_with("a key hash \"mine\""), "{error}");
    }
}
