//! Memory that processes share, and the files that hold it: words that grow and never move, the lane next to a
//! database, the lane of a server's grants, and the locks on them.
//!
//! Nothing here knows what the words mean. All wings above may call it. No file is trusted for its name: links, devices
//! and other users' files are refused.

pub(super) mod arena;
pub(super) mod fcntl;
pub(super) mod grant_lane;
pub(super) mod lane;
pub(super) mod presence;

use crate::os;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// How often opening is retried while others create and remove the file.
const MAX_TRIES: u32 = 100;

/// The identity of a file, independent of its name: device and inode.
pub(crate) type FileId = [u64; 2];

pub(crate) fn id_of(found: &Metadata) -> FileId {
    [found.dev(), found.ino()]
}

/// The identity of the file at a path.
pub(crate) fn id_at(path: &Path) -> Result<FileId> {
    std::fs::symlink_metadata(path).map(|found| id_of(&found))
}

/// Opens a file for reading and writing.
pub(crate) fn open(path: &Path) -> Result<File> {
    options().open(path).map_err(explain).and_then(checked)
}

/// Opens a file for reading.
pub(crate) fn open_to_read(path: &Path) -> Result<File> {
    options().write(false).open(path).map_err(explain).and_then(checked)
}

/// Opens a file for reading and writing, and creates it with this mode, whatever the umask, if there is none. Returns
/// whether it was created.
pub(crate) fn open_or_create(path: &Path, mode: u32) -> Result<(File, bool)> {
    for _ in 0..MAX_TRIES {
        match open(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            other => return other.map(|file| (file, false)),
        }
        match options().create_new(true).mode(mode).open(path) {
            Ok(file) => {
                file.set_permissions(Permissions::from_mode(mode))?;
                return above_two(file).map(|file| (file, true));
            }
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Err(Error::other("another program creates and removes it continuously"))
}

/// With `O_NONBLOCK`, opening a pipe does not wait for its other end.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY);
    options
}

fn explain(error: Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ELOOP) => refused("it is a symbolic link: name the file itself"),
        _ => error,
    }
}

fn refused(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, why.into())
}

fn checked(file: File) -> Result<File> {
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(refused("it is not a regular file"));
    }
    if !is_ours(&found) {
        return Err(refused(format!(
            "it belongs to user {} and group {}: expected this user, root or one of this user's groups",
            found.uid(),
            found.gid()
        )));
    }
    above_two(file)
}

/// A user who may write to a file can influence a limit's decisions. For root, the caller names the file, and may
/// already do that.
fn is_ours(found: &Metadata) -> bool {
    // SAFETY: plain calls that always succeed.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    user == 0 || [0, user].contains(&found.uid()) || found.gid() == group || os::groups().contains(&found.gid())
}

/// Descriptors 0 to 2 are a program's input and output, even if it was started without them. Its output would otherwise
/// land in the file.
fn above_two(file: File) -> Result<File> {
    if file.as_raw_fd() > 2 {
        return Ok(file);
    }
    // SAFETY: plain call on an open descriptor.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) } {
        -1 => Err(Error::last_os_error()),
        // SAFETY: a new descriptor with no other owner.
        fd => Ok(unsafe { File::from_raw_fd(fd) }),
    }
}
