//! The database: what must last. A store's identity, its policies and the ledger (`ledger.rs`), readable with any SQLite
//! shell.
//!
//! Decisions never come here. A connection lives for one structural operation, under the lane's structure lock: none
//! is ever carried over a fork, and writers never queue inside SQLite.
//!
//! A commit is on the disk when it returns. `synchronous = FULL` would not do: a commit is the removal of the journal,
//! which is then not synced, and a power cut can bring it back and undo the commit. `EXTRA` syncs it. `TRUNCATE` and
//! `PERSIST` sync as often, and leave a third file behind. A write-ahead log is slower when each connection is the last to
//! close; and a program that reads this file with a SQLite of its own would have the log deleted under it, since a process
//! that closes a file gives up all its locks on it, whoever in it took them. The price is that somebody who goes on reading
//! for long, such as a shell with a pager, holds up commits.

use super::declare::{Change, Declared, Family, Part, text_of};
use super::fcntl::Scope;
use super::{files, ledger, os};
use crate::error::{Error, Result};
use crate::policy::{self, Policy};
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, TransactionBehavior, ffi, params};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// "wglS", in SQLite's header: this database is a store of ours.
const APPLICATION_ID: u32 = 0x7767_6c53;
const VERSION: u32 = 1;

const SCHEMA: &str = "
CREATE TABLE store (
  id             TEXT NOT NULL,         -- which lane belongs to this database
  created_at     TEXT NOT NULL,
  secret         TEXT NOT NULL,         -- what names and keys are hashed with
  boot           TEXT NOT NULL,         -- the boot that the last lane was made in; '' before the first
  lane           TEXT NOT NULL,         -- which making of the lane that was; '' before the first
  sequence       INTEGER NOT NULL,      -- counts the commits to the ledger; a lane that knows of fewer is an old copy
  pruned_at      INTEGER NOT NULL       -- the uptime when the ledger was last pruned, in microseconds
) STRICT;
CREATE TABLE limits (
  name           TEXT PRIMARY KEY,
  kind           TEXT NOT NULL,         -- 'rate', 'concurrency', …; 'composite': of limits that are called NAME/KIND
  policy         TEXT NOT NULL,         -- what programs declare, as people write it: '100/1m'
  declared_at    TEXT NOT NULL,
  declared_by    TEXT NOT NULL,         -- the program and process that declared it last
  override       TEXT,                  -- the operator's policy, which stands above it; NULL without one
  overridden_at  TEXT,
  overridden_by  TEXT
) STRICT;
";

/// Now, as people read it.
const NOW: &str = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')";

/// Who a store is, for as long as it exists, and when its lane was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub id: [u64; 2],
    /// What names and keys are hashed with.
    pub secret: [u64; 2],
    /// The boot that the last lane was made in; empty before the first.
    pub boot: String,
    /// Which making of the lane that was.
    pub lane: Option<u64>,
    /// The number of the last commit to the ledger.
    pub sequence: u64,
}

/// A connection to a store's database.
#[derive(Debug)]
pub(crate) struct Database {
    pub(super) connection: Connection,
    path: PathBuf,
    /// The number of the last commit to the ledger.
    pub sequence: u64,
    // Last: a connection is closed within it.
    _scope: Scope,
}

/// No text or row of ours is longer, in bytes.
const LONGEST: i32 = 1 << 20;

/// How much a commit adds to the files at most, in bytes, but for what is written to them.
const MARGIN: u64 = 1 << 20;

/// SQLite's own handler sleeps ever longer, and lets late comers overtake. This one looks again a few times, a
/// millisecond or so apart; for longer than that the caller waits, without holding anything.
fn wait_for_lock(looks: i32) -> bool {
    let nap = Duration::from_micros(500 + os::random::<1>().map_or(0, |[r]| r % 1_000));
    std::thread::sleep(nap);
    looks < 3
}

/// Looks at a file without touching it: is it a store, or nothing yet?
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
        _ if !header.starts_with(b"SQLite format 3\0") => not_a_store("a file that is no SQLite database"),
        // Whoever was writing it died before the commit; SQLite will roll it back, and then it is looked at again.
        _ if std::fs::metadata(beside(path, "-journal")).is_ok_and(|journal| journal.len() > 0) => Ok(()),
        _ => check_numbers(path, number(68), number(60)),
    }
}

fn check_numbers(path: &Path, application_id: u32, version: u32) -> Result<()> {
    if application_id != APPLICATION_ID {
        let found = "a SQLite database of another application".into();
        return Err(Error::NotAStore { path: path.to_owned(), found });
    }
    if version > VERSION {
        let (found, supported) = (version.into(), VERSION.into());
        return Err(Error::UnsupportedVersion { path: path.to_owned(), found, supported });
    }
    Ok(())
}

/// The path of a file that goes with a database.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

impl Database {
    /// Opens a database that is there, made a store if it is empty. Returns the store's identity too.
    pub fn open(path: &Path) -> Result<(Database, Identity)> {
        check(path)?;
        let mut database = Self::connect(path)?;
        let identity = database.identity()?;
        database.sequence = identity.sequence;
        Ok((database, identity))
    }

    /// The same for a store that is open already: what is no store of ours by now is damaged.
    pub fn reopen(path: &Path, id: [u64; 2]) -> Result<Database> {
        let (database, identity) = Self::open(path).map_err(|error| match error {
            Error::NotAStore { path, found } => Error::Damaged { path, found },
            error => error,
        })?;
        if identity.id != id {
            let cause = "another store is in its place: bring it back, or stop all processes that use it";
            return Err(Error::store(format!("using {}", path.display()), cause));
        }
        Ok(database)
    }

    fn connect(path: &Path) -> Result<Database> {
        let size = std::fs::metadata(path).map_or(0, |found| found.len());
        os::check_file_size(size + MARGIN).map_err(|e| Error::store(format!("using {}", path.display()), e))?;
        let scope = Scope::new();
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let opened = Connection::open_with_flags_and_vfs(path, flags, c"unix").and_then(|mut c| {
            c.busy_handler(Some(wait_for_lock))?;
            c.pragma_update(None, "synchronous", "EXTRA")?;
            // What somebody else put into the file is not carried out.
            c.pragma_update(None, "trusted_schema", false)?;
            c.pragma_update(None, "cell_size_check", true)?;
            // SAFETY: the connection is open.
            unsafe { ffi::sqlite3_limit(c.handle(), ffi::SQLITE_LIMIT_LENGTH, LONGEST) };
            Ok(c)
        });
        match opened {
            Ok(connection) => Ok(Database { connection, path: path.to_owned(), sequence: 0, _scope: scope }),
            Err(e) => Err(explain(path, e)),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn explain(&self, error: rusqlite::Error) -> Error {
        explain(&self.path, error)
    }

    /// What is there makes no sense: somebody else wrote it.
    pub(super) fn damaged(&self, found: String) -> Error {
        Error::Damaged { path: self.path.clone(), found }
    }

    /// The store's identity, given to it now if it is new.
    fn identity(&mut self) -> Result<Identity> {
        let look = "SELECT (SELECT application_id FROM pragma_application_id),
                      (SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)";
        let looked = self.connection.query_row(look, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
        match looked.map_err(|e| self.explain(e))? {
            (0, 0, 0) => self.make()?,
            (application_id, version, _) => check_numbers(&self.path, application_id, version)?,
        }
        self.check_schema()?;
        let read = self.connection.query_row("SELECT id, secret, boot, lane, sequence FROM store", [], |row| {
            let text = |at| row.get::<_, String>(at);
            Ok((text(0)?, text(1)?, text(2)?, text(3)?, row.get::<_, i64>(4)?))
        });
        let (id, secret, boot, lane, sequence) = read.map_err(|e| self.explain(e))?;
        let sequence = u64::try_from(sequence).map_err(|_| self.damaged(format!("commit number {sequence}")))?;
        let marked = |text: &str| self.damaged(format!("a store marked \"{}\"", text.escape_debug()));
        let words = |text: &str| from_hex(text).ok_or_else(|| marked(text));
        let lane = match lane.as_str() {
            "" => None,
            text => Some(u64::from_str_radix(text, 16).map_err(|_| marked(text))?),
        };
        Ok(Identity { id: words(&id)?, secret: words(&secret)?, boot, lane, sequence })
    }

    /// Whoever may write to the file may have put a view or a trigger into it that never ends.
    fn check_schema(&self) -> Result<()> {
        let look = "SELECT (SELECT count(*) FROM sqlite_schema WHERE type = 'table'
                              AND name IN ('store', 'limits', 'executions', 'usage')),
                      (SELECT count(*) FROM sqlite_schema WHERE type = 'trigger')";
        let looked = self.connection.query_row(look, [], |row| Ok((row.get(0)?, row.get(1)?)));
        match looked.map_err(|e| self.explain(e))? {
            (4, 0) => Ok(()),
            (4, triggers) => Err(self.damaged(format!("{triggers} triggers, which a store has none of"))),
            (tables, _) => Err(self.damaged(format!("{tables} of the 4 tables of a store"))),
        }
    }

    fn make(&mut self) -> Result<()> {
        let [a, b, c, d] = os::random::<4>().map_err(|e| Error::store("asking the system for random numbers", e))?;
        let mut make = || -> rusqlite::Result<()> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            // Somebody else may have made it meanwhile.
            if transaction.query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |row| row.get(0))? {
                transaction.execute_batch(SCHEMA)?;
                transaction.execute_batch(ledger::SCHEMA)?;
                transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
                transaction.pragma_update(None, "user_version", VERSION)?;
                let store = format!("INSERT INTO store VALUES (?1, {NOW}, ?2, '', '', 0, 0)");
                transaction.execute(&store, [to_hex([a, b]), to_hex([c, d])])?;
            }
            transaction.commit()
        };
        make().map_err(|e| explain(&self.path, e))
    }

    /// The policies of a limit.
    pub fn policy(&self, name: &str) -> Result<Option<Declared>> {
        let query = "SELECT policy, override FROM limits WHERE name = ?1 AND kind <> ?2";
        let found = self.connection.query_row(query, [name, COMPOSITE], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, Option<String>>(1)?))
        });
        let Some((declared, overriding)) = found.optional().map_err(|e| self.explain(e))? else { return Ok(None) };
        self.read_policies(name, &declared, overriding.as_deref()).map(Some)
    }

    fn reading<T>(&self, name: &str, read: Result<T>) -> Result<T> {
        read.map_err(|e| self.damaged(format!("limit \"{name}\" has a policy that makes no sense: {e}")))
    }

    fn read_policies(&self, name: &str, declared: &str, overriding: Option<&str>) -> Result<Declared> {
        let parse = |text: &str| self.reading(name, text.parse::<Policy>());
        Ok(Declared { declared: parse(declared)?, overriding: overriding.map(parse).transpose()? })
    }

    /// What is declared under a name, and under all that begin with it and a slash.
    pub fn family(&self, name: &str) -> Result<Family> {
        // After the slash comes 0.
        let query = "SELECT name, kind, policy, override FROM limits
                     WHERE name = ?1 OR name > ?1 || '/' AND name < ?1 || '0'";
        type Row = (String, String, String, Option<String>);
        let read = || -> rusqlite::Result<Vec<Row>> {
            let mut query = self.connection.prepare(query)?;
            let rows = query.query_map([name], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
            rows.collect()
        };
        let mut family = Family::default();
        for (found, kind, policy, overriding) in read().map_err(|e| self.explain(e))? {
            if kind != COMPOSITE {
                let policies = self.read_policies(&found, &policy, overriding.as_deref())?;
                family.limits.insert(found, policies);
            } else if found == name {
                family.composite = Some(self.reading(name, policy::parse_all(&policy))?);
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

    /// Notes what names stand for from now on: all of it or none. An operator's policies stay above a limit's.
    pub fn note(&mut self, changes: &[Change]) -> Result<()> {
        let mut note = || -> rusqlite::Result<()> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for change in changes.iter().filter(|change| !change.changes_nothing()) {
                let Change { name, composite, parts, dropped, .. } = change;
                transaction.execute("DELETE FROM limits WHERE name = ?1 AND kind = ?2", params![name, COMPOSITE])?;
                for name in dropped {
                    transaction.execute("DELETE FROM limits WHERE name = ?1", [name])?;
                }
                for Part { name, from, .. } in parts.iter().filter(|part| part.from != part.name) {
                    transaction.execute("UPDATE limits SET name = ?2 WHERE name = ?1", [from, name])?;
                    transaction.execute("UPDATE executions SET name = ?2 WHERE name = ?1", [from, name])?;
                }
                for part in parts.iter().filter(|part| part.is_new()) {
                    declare(&transaction, &part.name, part.policy.kind(), &part.policy.to_string())?;
                }
                if let Some(policies) = composite {
                    declare(&transaction, name, COMPOSITE, &text_of(policies))?;
                }
            }
            transaction.commit()
        };
        note().map_err(|e| explain(&self.path, e))
    }

    /// Puts operators' policies above the declared ones, or takes them away: all or none.
    pub fn set_overrides<'a>(&mut self, all: impl Iterator<Item = (&'a str, Option<Policy>)>) -> Result<()> {
        let set = || -> rusqlite::Result<()> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for (name, policy) in all {
                let put = format!(
                    "UPDATE limits SET override = ?2, overridden_at = iif(?2 IS NULL, NULL, {NOW}),
                       overridden_by = iif(?2 IS NULL, NULL, ?3) WHERE name = ?1"
                );
                transaction.execute(&put, params![name, policy.map(|policy| policy.to_string()), program()])?;
            }
            transaction.commit()
        };
        set().map_err(|e| explain(&self.path, e))
    }

    /// The names of all limits, in order: not those of composites, but of their parts.
    pub fn names(&self) -> Result<Vec<String>> {
        let read = || -> rusqlite::Result<Vec<String>> {
            let mut query = self.connection.prepare("SELECT name FROM limits WHERE kind <> ?1 ORDER BY name")?;
            let names = query.query_map([COMPOSITE], |row| row.get(0))?;
            names.collect()
        };
        read().map_err(|e| self.explain(e))
    }
}

/// The kind of a name that stands for several limits.
const COMPOSITE: &str = "composite";

/// Declares what a name stands for, in place of what it stood for. An operator's policy stays above it.
fn declare(connection: &Connection, name: &str, kind: &str, policy: &str) -> rusqlite::Result<()> {
    let upsert = format!(
        "INSERT INTO limits (name, kind, policy, declared_at, declared_by) VALUES (?1, ?2, ?3, {NOW}, ?4)
         ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, policy = excluded.policy,
           declared_at = excluded.declared_at, declared_by = excluded.declared_by"
    );
    connection.execute(&upsert, params![name, kind, policy, program()]).map(drop)
}

/// Who is writing, for people.
fn program() -> String {
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(Path::file_name).map_or("?".into(), |n| n.to_string_lossy());
    format!("{program} (process {})", std::process::id())
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
            return Error::StoreTimeout { doing, waited_ms: 0 };
        }
        Some(ErrorCode::DiskFull) => "the disk is full",
        Some(ErrorCode::ReadOnly) => "the database, its directory or its file system is read-only",
        Some(ErrorCode::CannotOpen) => "the database cannot be opened, or its journal cannot be made beside it",
        Some(ErrorCode::SystemIoFailure) => "the disk cannot be read or written",
        // What is asked never changes: if there is no answer of that kind, somebody else wrote what is there.
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

#[cfg(all(test, not(model)))]
pub(super) mod tests {
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

        /// The database as somebody else opens it.
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

    fn rate(text: &str) -> Policy {
        text.parse().unwrap()
    }

    #[test]
    fn a_store_is_who_it_was_when_it_was_made() {
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
    fn hex_goes_both_ways() {
        assert_eq!(to_hex([1, u64::MAX]), "0000000000000001ffffffffffffffff");
        assert_eq!(from_hex("0000000000000001ffffffffffffffff"), Some([1, u64::MAX]));
        for wrong in ["", "1", "0000000000000001fffffffffffffffff", "000000000000000gffffffffffffffff"] {
            assert_eq!(from_hex(wrong), None, "{wrong}");
        }
    }

    fn declare(database: &Database, name: &str, text: &str) -> Result<()> {
        super::declare(&database.connection, name, rate(text).kind(), text).map_err(|e| database.explain(e))
    }

    #[test]
    fn an_operator_stands_above_what_programs_declare() {
        let dir = Scratch::new();
        let mut database = dir.open();
        assert_eq!(database.policy("api"), Ok(None));
        declare(&database, "api", "100/1m").unwrap();
        database.set_overrides([("api", Some(rate("5/1s + 50/1m")))].into_iter()).unwrap();
        declare(&database, "api", "200/1m").unwrap();
        let found = dir.open().policy("api").unwrap().unwrap();
        assert_eq!(found, Declared { declared: rate("200/1m"), overriding: Some(rate("5/1s + 50/1m")) });
        assert_eq!(found.current(), rate("5/1s + 50/1m"));
        let shown =
            "SELECT concat_ws('|', policy, override, typeof(overridden_at), overridden_by = declared_by) FROM limits";
        let row = || dir.stranger().query_row(shown, [], |row| row.get::<_, String>(0)).unwrap();
        assert_eq!(row(), "200/1m|5/1s + 50/1m|text|1");
        for _ in 0..2 {
            database.set_overrides([("api", None)].into_iter()).unwrap();
            assert_eq!(row(), "200/1m|null");
            assert_eq!(dir.open().policy("api").unwrap().unwrap().current(), rate("200/1m"));
        }
    }

    #[test]
    fn a_family_is_a_name_and_what_is_below_it() {
        let dir = Scratch::new();
        let database = dir.open();
        for name in ["a", "a/rate", "a/b/c", "a-", "a0", "ab", "A", "a.b", "é/rate"] {
            declare(&database, name, "1/1s").unwrap();
        }
        let names = |name: &str| database.family(name).unwrap().limits.into_keys().collect::<Vec<_>>();
        assert_eq!(names("a"), ["a", "a/b/c", "a/rate"]);
        assert_eq!(names("é"), ["é/rate"]);
        assert_eq!(names("b"), [""; 0]);
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
    fn a_write_ahead_log_that_somebody_chose_does_no_harm() {
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
    fn what_another_program_left_beside_a_journal_stays_as_it_is() {
        let dir = Scratch::new();
        dir.stranger().execute_batch("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)").unwrap();
        let before = std::fs::read(dir.path()).unwrap();
        std::fs::write(beside(&dir.path(), "-journal"), b"left over").unwrap();
        let error = open(&dir.path()).unwrap_err();
        assert!(error.to_string().ends_with("a SQLite database of another application"), "{error}");
        assert_eq!(std::fs::read(dir.path()).unwrap(), before);
    }

    #[test]
    fn a_later_version_is_refused_even_beside_a_journal() {
        let dir = Scratch::new();
        dir.open();
        dir.stranger().pragma_update(None, "user_version", 2).unwrap();
        let before = std::fs::read(dir.path()).unwrap();
        for journal in [&b""[..], b"left over"] {
            std::fs::write(beside(&dir.path(), "-journal"), journal).unwrap();
            let error = open(&dir.path()).unwrap_err();
            assert!(matches!(error, Error::UnsupportedVersion { found: 2, supported: 1, .. }), "{error}");
            assert_eq!(std::fs::read(dir.path()).unwrap(), before);
        }
    }

    #[test]
    fn what_cannot_be_written_says_so() {
        let dir = Scratch::new();
        let database = dir.open();
        database.connection.execute_batch("PRAGMA query_only = 1").unwrap();
        let error = declare(&database, "api", "1/1s").unwrap_err();
        assert_eq!(error.name(), "store_failure");
        assert!(error.to_string().contains("read-only ("), "{error}");

        let journal = beside(&dir.path(), "-journal");
        let declare = || declare(&open(&dir.path())?.0, "api", "1/1s");
        std::os::unix::fs::symlink("/nowhere/at/all", &journal).unwrap();
        let error = declare().unwrap_err();
        assert_eq!(error.name(), "store_failure");
        assert!(error.to_string().contains("cannot be opened, or its journal cannot be made beside it ("), "{error}");
        std::fs::remove_file(&journal).unwrap();
        std::fs::create_dir(&journal).unwrap();
        let error = declare().unwrap_err();
        assert_eq!(error.name(), "store_failure");
        assert!(error.to_string().contains("the disk cannot be read or written ("), "{error}");
        std::fs::remove_dir(&journal).unwrap();
        declare().unwrap();
    }
}
