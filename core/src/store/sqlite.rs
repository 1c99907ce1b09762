//! The database: what must last. A store's identity and its declared policies, readable with any SQLite shell.
//!
//! Decisions never come here. A connection lives for one structural operation, under the lane's structure lock: none
//! is ever carried over a fork, and writers never queue inside SQLite.

use super::lane::open_or_create;
use super::os;
use crate::error::{Error, Result};
use crate::policy::Policy;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, TransactionBehavior, params};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// "wglS", in SQLite's header: this database is a store of ours.
const APPLICATION_ID: u32 = 0x7767_6c53;
const VERSION: u32 = 1;

const SCHEMA: &str = "
CREATE TABLE store (
  id         TEXT NOT NULL,             -- which lane belongs to this database
  created_at TEXT NOT NULL
) STRICT;
CREATE TABLE limits (
  name           TEXT PRIMARY KEY,
  kind           TEXT NOT NULL,         -- 'rate'
  policy         TEXT NOT NULL,         -- as people write it: '100/1m'
  declared_at    TEXT NOT NULL,
  declared_by    TEXT NOT NULL          -- the program and process that declared it last
) STRICT;
";

/// A connection to a store's database.
#[derive(Debug)]
pub(crate) struct Database {
    connection: Connection,
    path: PathBuf,
}

/// SQLite's own handler sleeps ever longer, and lets late comers overtake. This one looks again a few times, a
/// millisecond or so apart; for longer than that the caller waits, without holding anything.
fn wait_for_lock(looks: i32) -> bool {
    let nap = Duration::from_micros(500 + os::random::<1>().map_or(0, |[r]| r % 1_000));
    std::thread::sleep(nap);
    looks < 10
}

/// Looks at a file without touching it: is it a store, or nothing yet?
pub(crate) fn check(path: &Path) -> Result<()> {
    let not_a_store = |found: &str| Err(Error::NotAStore { path: path.to_owned(), found: found.to_owned() });
    let reading = |e: std::io::Error| Error::store(format!("opening {}", path.display()), e);
    match std::fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(reading(e)),
        Ok(found) if found.is_dir() => return not_a_store("a directory"),
        Ok(found) if !found.is_file() => return not_a_store("not a regular file"),
        Ok(found) if found.len() == 0 => return Ok(()),
        Ok(_) => {}
    }
    let mut header = [0; 100];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut header));
    let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("four bytes"));
    match read {
        Err(e) if e.kind() != std::io::ErrorKind::UnexpectedEof => Err(reading(e)),
        _ if !header.starts_with(b"SQLite format 3\0") => not_a_store("a file that is no SQLite database"),
        // Whoever was making it died before the commit; SQLite will roll it back.
        _ if beside(path, "-journal").exists() => Ok(()),
        _ if number(68) != APPLICATION_ID => not_a_store("a SQLite database of another application"),
        _ if number(60) > VERSION => Err(Error::UnsupportedVersion {
            path: path.to_owned(),
            found: number(60).into(),
            supported: VERSION.into(),
        }),
        _ => Ok(()),
    }
}

/// The path of a file that goes with a database.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

impl Database {
    /// Opens the database, made if there is none. Returns the store's identity too.
    pub fn open(path: &Path, mode: u32) -> Result<(Database, [u64; 2])> {
        check(path)?;
        open_or_create(path, mode).map_err(|e| Error::store(format!("opening {}", path.display()), e))?;
        let mut database = Self::connect(path)?;
        let id = database.identity()?;
        Ok((database, id))
    }

    fn connect(path: &Path) -> Result<Database> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let opened = Connection::open_with_flags(path, flags).and_then(|mut c| {
            c.busy_handler(Some(wait_for_lock))?;
            Ok(c)
        });
        match opened {
            Ok(connection) => Ok(Database { connection, path: path.to_owned() }),
            Err(e) => Err(explain(path, e)),
        }
    }

    fn explain(&self, error: rusqlite::Error) -> Error {
        explain(&self.path, error)
    }

    /// The store's identity, given to it now if it is new.
    fn identity(&mut self) -> Result<[u64; 2]> {
        let id = self.read_or_make_identity().map_err(|e| self.explain(e))?;
        let half = |range| id.get(range).and_then(|half| u64::from_str_radix(half, 16).ok());
        half(0..16).zip(half(16..32)).map(|(a, b)| [a, b]).ok_or_else(|| Error::NotAStore {
            path: self.path.clone(),
            found: format!("a store with the identity \"{id}\""),
        })
    }

    fn read_or_make_identity(&mut self) -> rusqlite::Result<String> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let made: bool =
            transaction.query_row("SELECT count(*) FROM sqlite_schema WHERE name = 'store'", [], |r| r.get(0))?;
        if !made {
            let [a, b] = os::random::<2>().map_err(|e| rusqlite::Error::ToSqlConversionFailure(Box::new(e)))?;
            transaction.execute_batch(SCHEMA)?;
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
            transaction.pragma_update(None, "user_version", VERSION)?;
            transaction.execute(
                "INSERT INTO store VALUES (?1, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))",
                [format!("{a:016x}{b:016x}")],
            )?;
        }
        let id = transaction.query_row("SELECT id FROM store", [], |row| row.get(0))?;
        transaction.commit()?;
        Ok(id)
    }

    /// The policy declared under a name.
    pub fn policy(&self, name: &str) -> Result<Option<Policy>> {
        let query = "SELECT policy FROM limits WHERE name = ?1";
        let text = self.connection.query_row(query, [name], |row| row.get::<_, String>(0)).optional();
        let Some(text) = text.map_err(|e| self.explain(e))? else { return Ok(None) };
        let doing = || format!("reading limit \"{name}\" from {}", self.path.display());
        text.parse().map(Some).map_err(|e: Error| Error::store(doing(), e))
    }

    /// Declares a policy, in place of the one that the name had.
    pub fn declare(&self, name: &str, policy: Policy) -> Result<()> {
        let declared = self.connection.execute(
            "INSERT INTO limits VALUES (?1, ?2, ?3, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), ?4)
             ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, policy = excluded.policy,
               declared_at = excluded.declared_at, declared_by = excluded.declared_by",
            params![name, policy.kind(), policy.to_string(), declarer()],
        );
        declared.map(drop).map_err(|e| self.explain(e))
    }

    /// The names that are declared, in order.
    pub fn names(&self) -> Result<Vec<String>> {
        let read = || -> rusqlite::Result<Vec<String>> {
            let mut query = self.connection.prepare("SELECT name FROM limits ORDER BY name")?;
            let names = query.query_map([], |row| row.get(0))?;
            names.collect()
        };
        read().map_err(|e| self.explain(e))
    }
}

fn declarer() -> String {
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(Path::file_name).map_or("?".into(), |n| n.to_string_lossy());
    format!("{program} (process {})", std::process::id())
}

fn explain(path: &Path, error: rusqlite::Error) -> Error {
    let doing = format!("using {}", path.display());
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Error::StoreTimeout { doing, waited_ms: 0 },
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            Error::NotAStore { path: path.to_owned(), found: format!("a damaged database ({error})") }
        }
        _ => Error::store(doing, error),
    }
}
