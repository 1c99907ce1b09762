//! The durable database: a store's identity, its policies and the ledger (`executions.rs`), readable with any SQLite shell.
//!
//! Decisions never come here. A connection lives for one structural operation under the lane's structure lock. So no
//! connection crosses a fork, and writers never queue inside SQLite.
//!
//! A commit is on disk when it returns. `synchronous = FULL` would not guarantee that: the commit is the removal of the
//! journal, which is then not synced, and a power cut can restore the journal and undo the commit. `EXTRA` syncs the
//! removal. `TRUNCATE` and `PERSIST` sync as often, and leave a third file behind. A write-ahead log is slower when
//! each connection is the last to close. Also, a program that reads this file with its own copy of SQLite would have
//! the log deleted under it, since a process that closes a file gives up all its locks on it, whichever code took them.
//! The price: a long reader, such as a shell with a pager, delays commits.

use super::{committed, executions, policies, upgrade};
use crate::error::{Error, Result};
use crate::fork::jitter;
use crate::os;
use crate::state::files;
use crate::state::files::fcntl::Scope;
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior, ffi};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// "wglS", in SQLite's header. It marks the database as a store.
const APPLICATION_ID: u32 = 0x7767_6c53;
pub(super) const VERSION: u32 = 2;

const SCHEMA: &str = "
CREATE TABLE store (
  id             TEXT NOT NULL,         -- identifies the lane of this database
  created_at     TEXT NOT NULL,
  secret         TEXT NOT NULL,         -- the secret for hashing names and keys
  boot           TEXT NOT NULL,         -- the boot in which the last lane was created; '' before the first
  lane           TEXT NOT NULL,         -- the number of that creation; '' before the first
  sequence       INTEGER NOT NULL,      -- counts the commits to the ledger; a lane with a smaller count is an old copy
  pruned_at      INTEGER NOT NULL,      -- the uptime when the ledger was last pruned, in microseconds
  generation     INTEGER NOT NULL       -- the number of the last change of policies; a lane with another one must follow
) STRICT;
";

/// The current time in readable form.
pub(super) const NOW: &str = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')";

/// The permanent identity of a store, and when its lane was created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub id: [u64; 2],
    /// The secret with which names and keys are hashed.
    pub secret: [u64; 2],
    /// The boot in which the last lane was created; empty before the first.
    pub boot: String,
    /// The number of that lane's creation.
    pub lane: Option<u64>,
    /// The number of the last commit to the ledger.
    pub sequence: u64,
    /// The number of the last change of policies.
    pub generation: u64,
}

/// A connection to a store's database.
#[derive(Debug)]
pub(crate) struct Database {
    pub(in crate::state) connection: Connection,
    path: PathBuf,
    /// The number of the last commit to the ledger.
    pub sequence: u64,
    /// The number of the last change of policies.
    pub generation: u64,
    /// Rows of the ledger up to this one are kept, even if they have expired: see `restoring.rs`.
    pub keeps_to: i64,
    // Last, because the connection must be closed within it.
    _scope: Scope,
}

/// The largest text or row of a store, in bytes.
const MAX_BYTES: i32 = 1 << 20;

/// The most by which a commit enlarges the files beyond the data that it writes, in bytes.
const MARGIN: u64 = 1 << 20;

/// Checks that this process may make the file so many times as large.
fn check_size(path: &Path, times: u64) -> Result<()> {
    let size = std::fs::metadata(path).map_or(0, |found| found.len());
    os::check_file_size(size * times + MARGIN).map_err(|e| Error::store(format!("using {}", path.display()), e))
}

/// SQLite's own handler sleeps longer each time, so that later callers overtake. This one retries a few times, about a
/// millisecond apart. Beyond that the caller waits, without holding anything.
fn wait_for_lock(looks: i32) -> bool {
    std::thread::sleep(Duration::from_micros(jitter(500, 1_500)));
    looks < 3
}

/// Reads a file without changing it. Accepts a store or an empty file.
pub(crate) fn check(path: &Path) -> Result<()> {
    let not_a_store = |found: &str| Err(Error::NotAStore { path: path.to_owned(), found: found.to_owned() });
    let reading = |e: std::io::Error| Error::store(format!("opening {}", path.display()), e);
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(reading(e)),
        Ok(found) if found.is_symlink() => return not_a_store("a symbolic link that leads nowhere"),
        Ok(found) if found.is_dir() => return not_a_store("a directory"),
        Ok(found) if !found.is_file() => return not_a_store("not a regular file"),
        Ok(found) if found.len() == 0 => return Ok(()),
        Ok(_) => {}
    }
    let mut header = [0; 100];
    let read = files::open_to_read(path).and_then(|mut file| file.read_exact(&mut header));
    let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("four bytes"));
    match read {
        Err(e) if e.kind() != std::io::ErrorKind::UnexpectedEof => Err(reading(e)),
        _ if !header.starts_with(b"SQLite format 3\0") => not_a_store("not an SQLite database"),
        // Its writer died before the commit. SQLite will roll it back, and then it is checked again.
        _ if std::fs::metadata(next_to(path, "-journal")).is_ok_and(|journal| journal.len() > 0) => Ok(()),
        _ => check_numbers(path, number(68), number(60)),
    }
}

fn check_numbers(path: &Path, application_id: u32, version: u32) -> Result<()> {
    if application_id != APPLICATION_ID {
        let found = "an SQLite database of another application".into();
        return Err(Error::NotAStore { path: path.to_owned(), found });
    }
    if version > VERSION {
        let (found, supported) = (version.into(), VERSION.into());
        return Err(Error::UnsupportedVersion { path: path.to_owned(), found, supported });
    }
    Ok(())
}

/// The path of a file next to a database.
pub(crate) fn next_to(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

impl Database {
    /// Opens an existing database, and makes it a store if it is empty. Also returns the store's identity.
    pub fn open(path: &Path) -> Result<(Database, Identity)> {
        check(path)?;
        let mut database = Self::connect(path)?;
        let identity = database.identity()?;
        (database.sequence, database.generation) = (identity.sequence, identity.generation);
        Ok((database, identity))
    }

    /// Opens the database of a store that is already open. If it is not a store any more, it is damaged.
    pub fn reopen(path: &Path, id: [u64; 2]) -> Result<Database> {
        let (database, identity) = Self::open(path).map_err(|error| match error {
            Error::NotAStore { path, found } => Error::Damaged { path, found },
            error => error,
        })?;
        if identity.id != id {
            let cause = "another store is in its place: restore this one, or stop all processes that use it";
            return Err(Error::store(format!("using {}", path.display()), cause));
        }
        Ok(database)
    }

    pub(in crate::state) fn connect(path: &Path) -> Result<Database> {
        check_size(path, 1)?;
        let scope = Scope::new();
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let opened = Connection::open_with_flags_and_vfs(path, flags, c"unix").and_then(|mut c| {
            c.busy_handler(Some(wait_for_lock))?;
            c.pragma_update(None, "synchronous", "EXTRA")?;
            // Functions that another program has put into the file are not executed.
            c.pragma_update(None, "trusted_schema", false)?;
            c.pragma_update(None, "cell_size_check", true)?;
            // SAFETY: the connection is open.
            unsafe { ffi::sqlite3_limit(c.handle(), ffi::SQLITE_LIMIT_LENGTH, MAX_BYTES) };
            Ok(c)
        });
        match opened {
            Ok(connection) => Ok(Database {
                connection,
                path: path.to_owned(),
                sequence: 0,
                generation: 0,
                keeps_to: 0,
                _scope: scope,
            }),
            Err(e) => Err(explain(path, e)),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(in crate::state) fn explain(&self, error: rusqlite::Error) -> Error {
        explain(&self.path, error)
    }

    /// The error for contents that only another program can have written.
    pub(in crate::state) fn damaged(&self, found: String) -> Error {
        Error::Damaged { path: self.path.clone(), found }
    }

    /// The version of what is in it. `None` if nothing is: its maker may have died before the first commit.
    pub(super) fn version(&self) -> Result<Option<u32>> {
        let look = "SELECT (SELECT application_id FROM pragma_application_id),
                      (SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)";
        let looked = self.connection.query_row(look, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
        let numbers @ (application_id, version, _) = looked.map_err(|e| self.explain(e))?;
        if numbers == (0, 0, 0) {
            return Ok(None);
        }
        check_numbers(&self.path, application_id, version).map(|()| Some(version))
    }

    /// The store's identity. A new store gets one here, and one of an earlier version becomes one of this version.
    pub(in crate::state) fn identity(&mut self) -> Result<Identity> {
        let version = self.version()?;
        if version.is_none() {
            self.make()?;
        }
        self.check_schema()?;
        if version.is_some_and(|version| version < VERSION) {
            // It holds everything twice until its end.
            check_size(&self.path, 2)?;
            upgrade::upgrade(&mut self.connection).map_err(|e| self.explain(e))?;
        }
        let query = "SELECT id, secret, boot, lane, sequence, generation FROM store";
        let read = self.connection.query_row(query, [], |row| {
            let text = |at| row.get::<_, String>(at);
            Ok((text(0)?, text(1)?, text(2)?, text(3)?, row.get::<_, i64>(4)?, row.get::<_, i64>(5)?))
        });
        let (id, secret, boot, lane, sequence, generation) = read.map_err(|e| self.explain(e))?;
        let number = |n: i64| u64::try_from(n).map_err(|_| self.damaged(format!("commit number {n}")));
        let (sequence, generation) = (number(sequence)?, number(generation)?);
        let marked = |text: &str| self.damaged(format!("a store marked \"{}\"", text.escape_debug()));
        let words = |text: &str| from_hex(text).ok_or_else(|| marked(text));
        let lane = match lane.as_str() {
            "" => None,
            text => Some(u64::from_str_radix(text, 16).map_err(|_| marked(text))?),
        };
        Ok(Identity { id: words(&id)?, secret: words(&secret)?, boot, lane, sequence, generation })
    }

    /// Runs work as one transaction, or as a part of the one in progress. `None` undoes it.
    pub(super) fn transact<R>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<Option<R>>,
    ) -> Result<Option<R>> {
        let done = || -> rusqlite::Result<Option<R>> {
            if !self.connection.is_autocommit() {
                return work(&self.connection);
            }
            let transaction = Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate)?;
            match work(&transaction)? {
                Some(done) => transaction.commit().map(|()| Some(done)),
                None => Ok(None),
            }
        };
        done().map_err(|e| self.explain(e))
    }

    /// Runs work of several steps as one transaction.
    pub(super) fn as_one<R>(&mut self, work: impl FnOnce(&mut Database) -> Result<R>) -> Result<R> {
        self.connection.execute_batch("BEGIN IMMEDIATE").map_err(|e| self.explain(e))?;
        let done = work(self);
        let end = if done.is_ok() { "COMMIT" } else { "ROLLBACK" };
        let ended = self.connection.execute_batch(end).map_err(|e| self.explain(e));
        if done.is_ok() && ended.is_err() {
            // A commit that failed because another program reads is still in progress.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        // Why the work failed matters more than why its end did.
        done.and_then(|done| ended.map(|()| done))
    }

    /// Gives a new store the identity of a lane that was left when its database was deleted.
    pub fn continue_as(&mut self, (id, secret): ([u64; 2], [u64; 2])) -> Result<Identity> {
        let words = [to_hex(id), to_hex(secret)];
        self.connection
            .execute("UPDATE store SET id = ?1, secret = ?2 WHERE lane = ''", words)
            .map_err(|e| self.explain(e))?;
        self.identity()
    }

    /// A program that can write to the file may have added a view or a trigger that never ends.
    fn check_schema(&self) -> Result<()> {
        self.check_tables()?;
        match self.count("SELECT count(*) FROM sqlite_schema WHERE type = 'trigger'")? {
            0 => Ok(()),
            triggers => Err(self.damaged(format!("{triggers} triggers, where a store has none"))),
        }
    }

    pub(super) fn check_tables(&self) -> Result<()> {
        let look = "SELECT count(*) FROM sqlite_schema WHERE type = 'table'
                    AND name IN ('store', 'limits', 'keys', 'executions', 'usage')";
        match self.count(look)? {
            5 => Ok(()),
            tables => Err(self.damaged(format!("{tables} of the 5 tables of a store"))),
        }
    }

    fn count(&self, query: &str) -> Result<i64> {
        self.connection.query_row(query, [], |row| row.get(0)).map_err(|e| self.explain(e))
    }

    fn make(&mut self) -> Result<()> {
        let [a, b, c, d] = os::random::<4>().map_err(|e| Error::store("asking the system for random numbers", e))?;
        let mut make = || -> rusqlite::Result<()> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            // Another process may have made it in between.
            if transaction.query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |row| row.get(0))? {
                transaction.execute_batch(SCHEMA)?;
                transaction.execute_batch(policies::SCHEMA)?;
                transaction.execute_batch(executions::SCHEMA)?;
                transaction.execute_batch(executions::USAGE)?;
                transaction.execute_batch(committed::SCHEMA)?;
                transaction.execute(committed::OF_A_NEW_STORE, [])?;
                transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
                transaction.pragma_update(None, "user_version", VERSION)?;
                let store = format!("INSERT INTO store VALUES (?1, {NOW}, ?2, '', '', 0, 0, 0)");
                transaction.execute(&store, [to_hex([a, b]), to_hex([c, d])])?;
            }
            transaction.commit()
        };
        make().map_err(|e| explain(&self.path, e))
    }
}

/// Two words as 32 hex digits.
pub(super) fn to_hex([a, b]: [u64; 2]) -> String {
    format!("{a:016x}{b:016x}")
}

pub(super) fn from_hex(text: &str) -> Option<[u64; 2]> {
    let half = |range| text.get(range).and_then(|half| u64::from_str_radix(half, 16).ok());
    half(0..16).zip(half(16..32)).map(|(a, b)| [a, b]).filter(|_| text.len() == 32)
}

fn explain(path: &Path, error: rusqlite::Error) -> Error {
    let doing = format!("using {}", path.display());
    let plainly = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            return Error::busy(doing);
        }
        Some(ErrorCode::DiskFull) => "the disk is full",
        Some(ErrorCode::ReadOnly) => "the database, its directory or its file system is read-only",
        Some(ErrorCode::CannotOpen) => "the database cannot be opened, or its journal cannot be created next to it",
        Some(ErrorCode::SystemIoFailure) => "the disk cannot be read or written",
        // The queries never change. A failure of this kind means that another program wrote the contents.
        Some(
            ErrorCode::NotADatabase
            | ErrorCode::DatabaseCorrupt
            | ErrorCode::TooBig
            | ErrorCode::ConstraintViolation
            | ErrorCode::TypeMismatch
            | ErrorCode::Unknown,
        )
        | None => return Error::Damaged { path: path.to_owned(), found: format!("a damaged database ({error})") },
        _ => return Error::store(doing, error),
    };
    Error::store(doing, format_args!("{plainly} ({error})"))
}

#[cfg(test)]
pub(in crate::state) mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::*};

    /// A directory for one database, removed with its contents. No test here may fork: a child could inherit a lock
    /// inside SQLite.
    pub struct Scratch(PathBuf);

    impl Scratch {
        pub fn new() -> Scratch {
            static COUNT: AtomicU64 = AtomicU64::new(0);
            let name = format!("workglow-limit-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
            let path = std::env::temp_dir().join(name);
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).unwrap();
            Scratch(path)
        }

        pub fn path(&self) -> PathBuf {
            self.0.join("limits.db")
        }

        pub fn open(&self) -> Database {
            open(&self.path()).unwrap().0
        }

        pub fn identity(&self) -> Identity {
            open(&self.path()).unwrap().1
        }

        /// A connection as another program would open it.
        pub fn stranger(&self) -> Connection {
            Connection::open(self.path()).unwrap()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn open(path: &Path) -> Result<(Database, Identity)> {
        files::open_or_create(path, 0o600).unwrap();
        Database::open(path)
    }

    pub fn count(database: &Database, table: &str) -> i64 {
        database.connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn a_store_keeps_its_identity() {
        let (one, other) = (Scratch::new(), Scratch::new());
        let first = one.identity();
        assert_eq!(one.identity(), first);
        assert_eq!(first.boot, "");
        let words = [first.id, first.secret, other.identity().id, other.identity().secret].concat();
        assert!(words.iter().all(|word| words.iter().filter(|w| *w == word).count() == 1), "{words:x?}");
        one.stranger().execute_batch("UPDATE store SET secret = 'short'").unwrap();
        let error = open(&one.path()).unwrap_err();
        assert!(error.to_string().ends_with("a store marked \"short\""), "{error}");
    }

    #[test]
    fn hex_round_trips() {
        assert_eq!(to_hex([1, u64::MAX]), "0000000000000001ffffffffffffffff");
        assert_eq!(from_hex("0000000000000001ffffffffffffffff"), Some([1, u64::MAX]));
        for wrong in ["", "1", "0000000000000001fffffffffffffffff", "000000000000000gffffffffffffffff"] {
            assert_eq!(from_hex(wrong), None, "{wrong}");
        }
    }

    fn declare(database: &Database, name: &str, text: &str) -> Result<()> {
        policies::declare(&database.connection, name, "rate", text).map_err(|e| database.explain(e))
    }

    #[test]
    fn every_commit_is_synced_and_leaves_no_journal() {
        let dir = Scratch::new();
        let database = dir.open();
        declare(&database, "api", "1/1s").unwrap();
        let pragma = |name: &str| {
            let read = |row: &rusqlite::Row| row.get::<_, rusqlite::types::Value>(0);
            database.connection.query_row(&format!("PRAGMA {name}"), [], read).unwrap()
        };
        assert_eq!(pragma("synchronous"), 3.into(), "EXTRA");
        assert_eq!(pragma("journal_mode"), "delete".to_owned().into());
        assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), 1);
    }

    #[test]
    fn a_write_ahead_log_set_by_another_program_does_no_harm() {
        let dir = Scratch::new();
        dir.open();
        dir.stranger().execute_batch("PRAGMA journal_mode = WAL").unwrap();
        let reader = dir.stranger();
        reader.execute_batch("BEGIN; SELECT * FROM store").unwrap();
        declare(&dir.open(), "api", "100/1m").unwrap();
        drop(reader);
        assert_eq!(dir.open().names().unwrap(), ["api"]);
    }

    #[test]
    fn another_applications_database_with_a_journal_is_not_touched() {
        let dir = Scratch::new();
        dir.stranger().execute_batch("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)").unwrap();
        let before = std::fs::read(dir.path()).unwrap();
        std::fs::write(next_to(&dir.path(), "-journal"), b"left over").unwrap();
        let error = open(&dir.path()).unwrap_err();
        assert!(error.to_string().ends_with("an SQLite database of another application"), "{error}");
        assert_eq!(std::fs::read(dir.path()).unwrap(), before);
    }

    #[test]
    fn a_later_version_is_refused_even_next_to_a_journal() {
        let dir = Scratch::new();
        dir.open();
        dir.stranger().pragma_update(None, "user_version", 3).unwrap();
        let before = std::fs::read(dir.path()).unwrap();
        for journal in [&b""[..], b"left over"] {
            std::fs::write(next_to(&dir.path(), "-journal"), journal).unwrap();
            let error = open(&dir.path()).unwrap_err();
            assert!(matches!(error, Error::UnsupportedVersion { found: 3, supported: 2, .. }), "{error}");
            assert_eq!(std::fs::read(dir.path()).unwrap(), before);
        }
    }

    #[test]
    fn a_failed_write_reports_its_cause() {
        let dir = Scratch::new();
        let database = dir.open();
        database.connection.execute_batch("PRAGMA query_only = 1").unwrap();
        let error = declare(&database, "api", "1/1s").unwrap_err();
        assert_eq!(error.name(), "store_failure");
        assert!(error.to_string().contains("read-only ("), "{error}");

        let journal = next_to(&dir.path(), "-journal");
        let declare = || declare(&open(&dir.path())?.0, "api", "1/1s");
        std::os::unix::fs::symlink("/nowhere/at/all", &journal).unwrap();
        let error = declare().unwrap_err();
        assert_eq!(error.name(), "store_failure");
        assert!(
            error.to_string().contains("cannot be opened, or its journal cannot be created next to it ("),
            "{error}"
        );
        std::fs::remove_file(&journal).unwrap();
        std::fs::create_dir(&journal).unwrap();
        let error = declare().unwrap_err();
        assert_eq!(error.name(), "store_failure");
        assert!(error.to_string().contains("the disk cannot be read or written ("), "{error}");
        std::fs::remove_dir(&journal).unwrap();
        declare().unwrap();
    }
}
