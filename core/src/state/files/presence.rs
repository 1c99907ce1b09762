//! Detects that a database is used from two places. A database has one lane, next to it. A process that reached the
//! database through another directory or name would create a second lane, and each would grant the whole limit.
//!
//! So each process holds a shared lock on one byte of the *database*, far beyond its end and SQLite's own locks. The
//! byte represents the place of the lane: its directory and name. A process that opens the database first takes its own
//! byte and then checks all others, so of two that arrive together at least one sees the other. Users of a deleted lane
//! have the same byte as users of its replacement.

use super::lane::KeptLock;
use super::{FileId, id_at, id_of};
use crate::error::{Error, Result};
use crate::os;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The offset of the bytes, and their number.
const PLACES: u64 = 1 << 42;
const MAX_PLACES: u64 = 1 << 30;

/// Announces that this process uses the database with the lane at this path, until the returned lock is dropped. Also
/// returns the identity of the database file.
pub(in crate::state) fn announce(database: &Path, file: &File, lane: &Path) -> Result<(KeptLock, FileId)> {
    let failed = |e| Error::store(format!("opening {}", database.display()), e);
    let byte = byte_of(lane).map_err(failed)?;
    if !os::try_share(file, byte, 1).map_err(failed)? {
        return Err(Error::store(format!("opening {}", database.display()), "another program has locked it"));
    }
    let is_used = |from, to| os::is_locked(file, from, to - from);
    let is_elsewhere = byte > PLACES && is_used(PLACES, byte).map_err(failed)?
        || is_used(byte + 1, PLACES + MAX_PLACES + 1).map_err(failed)?;
    if is_elsewhere {
        let cause = "processes use this database under another name or from another directory (a hard link, a link that led \
                     elsewhere, a database that was moved or mounted alone into a container): all must use one path, in \
                     the same directory";
        return Err(Error::store(format!("opening {}", database.display()), cause));
    }
    let id = id_of(&file.metadata().map_err(failed)?);
    Ok((KeptLock::new(file).map_err(failed)?, id))
}

/// Maps places to bytes. Two places share a byte with a chance of one in a thousand million, and would then not be
/// distinguished.
fn byte_of(lane: &Path) -> std::io::Result<u64> {
    let directory = id_at(lane.parent().unwrap_or(Path::new("/")))?;
    let name = lane.file_name().unwrap_or_default().as_bytes();
    let bytes = directory.into_iter().flat_map(u64::to_le_bytes).chain(name.iter().copied());
    // FNV-1a, folded.
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |h: u64, byte| (h ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    Ok(PLACES + (hash ^ hash >> 30) % MAX_PLACES)
}
