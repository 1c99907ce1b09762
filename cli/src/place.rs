//! The files of a store, and hints for users who cannot open it.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use workglow_limit::{Error, Store};

/// The database of a `sqlite:` address.
pub fn database(url: &str) -> Option<PathBuf> {
    let address = Store::new(url).and_then(|store| store.address()).ok()?;
    address.strip_prefix("sqlite:").map(PathBuf::from)
}

/// The lane's file, next to the database.
pub fn lane(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-lane");
    name.into()
}

/// Returns whether the effective user may access the path in this mode.
pub fn may(path: &Path, how: libc::c_int) -> bool {
    // SAFETY: the path ends in NUL.
    with_path(path, |path| unsafe { libc::faccessat(libc::AT_FDCWD, path, how, libc::AT_EACCESS) }).is_ok()
}

/// Calls a system function with a path. A negative result is an error.
pub fn with_path(path: &Path, ask: impl FnOnce(*const libc::c_char) -> libc::c_int) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    if ask(path.as_ptr()) < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Owner and mode of a file: `user 1000, group 1000, mode 0600`.
pub fn owner(found: &std::fs::Metadata) -> String {
    format!("user {}, group {}, mode {:04o}", found.uid(), found.gid(), found.mode() & 0o7777)
}

/// A hint for an error of the store at this address.
pub fn hint(error: &Error, url: &str) -> Option<String> {
    let hint = match error {
        Error::InvalidUrl { .. } if !url.contains(':') => return Some(format!("a file is named sqlite:{url}")),
        Error::NotAStore { .. } => "nothing was changed; pass the database that the store's programs use",
        Error::UnsupportedVersion { .. } => "use the version of workglow-limit that the store's programs use",
        Error::Damaged { .. } => "verify shows the details, and verify --repair repairs what can be repaired",
        Error::Store { .. } | Error::StoreTimeout { .. } => {
            let Some(database) = database(url) else {
                let is_server = !url.starts_with("sqlite:");
                return is_server.then(|| {
                    "check that the server runs, that the address is right, and that it accepts this user".to_owned()
                });
            };
            return hindrance(&database).or_else(|| {
                matches!(error, Error::StoreTimeout { .. }).then(|| {
                    "another process has locked the store for a long time: it is stopped, or has an open transaction"
                        .to_owned()
                })
            });
        }
        _ => return None,
    };
    Some(hint.to_owned())
}

/// The reason why this user cannot use the store's files, and how to resolve it.
pub fn hindrance(database: &Path) -> Option<String> {
    let directory = database.parent().unwrap_or(Path::new("/"));
    if !directory.is_dir() {
        return Some(format!(
            "the directory {} does not exist, or this user may not read it; check the address",
            directory.display()
        ));
    }
    // SAFETY: this call always succeeds.
    let user = unsafe { libc::geteuid() };
    let whose = std::fs::metadata(directory).map(|found| owner(&found)).unwrap_or_default();
    let may_write = may(directory, libc::W_OK | libc::X_OK);
    let found = match std::fs::metadata(database) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Some(match may_write {
                true => {
                    "a program creates it when it first uses the store, and so does load --create; check the address"
                        .to_owned()
                }
                false => format!(
                    "there is no such file, and user {user} may not create one in {} ({whose}); check the address, or run the command as the directory's owner",
                    directory.display()
                ),
            });
        }
        Err(_) => return Some(format!("this user may not read the directory {}", directory.display())),
        Ok(found) => found,
    };
    if found.is_dir() {
        return Some(format!(
            "this is a directory; pass a database in it, such as sqlite:{}/limits.db",
            database.display()
        ));
    }
    for file in [database.to_owned(), lane(database)] {
        let Ok(found) = std::fs::metadata(&file) else { continue };
        if !may(&file, libc::R_OK | libc::W_OK) {
            return Some(format!(
                "user {user} may not read and write {} ({}): run the command as its owner, or share the store by a group with mode 0660",
                file.display(),
                owner(&found)
            ));
        }
    }
    (!may_write).then(|| {
        format!(
            "user {user} may not write to {} ({whose}), where SQLite keeps its journal: run the command as its owner",
            directory.display()
        )
    })
}
