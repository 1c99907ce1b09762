//! How a store's files are opened. Nothing is trusted because of its name: a link, a device, a stranger's file are refused.

use super::os;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// A file that is made and removed this often by others while it is opened is not opened.
const MOST_TRIES: u32 = 100;

/// Which file something is, whatever it is called: its device and its inode.
pub(crate) type FileId = [u64; 2];

pub(crate) fn id_of(found: &Metadata) -> FileId {
    [found.dev(), found.ino()]
}

/// Which file is there now.
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

/// The same; if there is none, makes it with this mode, whatever the umask. Was it made?
pub(crate) fn open_or_create(path: &Path, mode: u32) -> Result<(File, bool)> {
    for _ in 0..MOST_TRIES {
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
    Err(Error::other("somebody makes and removes it all the time"))
}

/// `O_NONBLOCK`: nobody waits for the other end of a pipe.
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

/// Who may write to a file may decide what a limit answers. Root is told what to open by somebody who may do that.
fn is_ours(found: &Metadata) -> bool {
    // SAFETY: plain calls that always succeed.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    user == 0 || [0, user].contains(&found.uid()) || found.gid() == group || os::groups().contains(&found.gid())
}

/// Descriptors 0 to 2 are a program's input and output, also where it was started without them: what it prints would land
/// in the file.
fn above_two(file: File) -> Result<File> {
    if file.as_raw_fd() > 2 {
        return Ok(file);
    }
    // SAFETY: plain call on an open descriptor.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) } {
        -1 => Err(Error::last_os_error()),
        // SAFETY: a new descriptor that nobody else owns.
        fd => Ok(unsafe { File::from_raw_fd(fd) }),
    }
}
