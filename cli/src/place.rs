//! Where a store's files are, and what keeps this user from them: for people who cannot open it.

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

/// The file in which processes decide, beside it.
pub fn lane(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-lane");
    name.into()
}

/// May this user, with the rights that hold for it now?
pub fn may(path: &Path, how: libc::c_int) -> bool {
    // SAFETY: the path ends in NUL.
    with_path(path, |path| unsafe { libc::faccessat(libc::AT_FDCWD, path, how, libc::AT_EACCESS) }).is_ok()
}

/// What the system answers about a path, where a negative number is an error.
pub fn with_path(path: &Path, ask: impl FnOnce(*const libc::c_char) -> libc::c_int) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    if ask(path.as_ptr()) < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whose a file is, and who may use it: `user 1000, group 1000, mode 0600`.
pub fn owner(found: &std::fs::Metadata) -> String {
    format!("user {}, group {}, mode {:04o}", found.uid(), found.gid(), found.mode() & 0o7777)
}

/// What to do about an error of the store at this address.
pub fn hint(error: &Error, url: &str) -> Option<String> {
    let hint = match error {
        Error::NotAStore { .. } => "nothing was changed; name the database that programs of this store use",
        Error::UnsupportedVersion { .. } => "use the workglow-limit that the programs of this store use",
        Error::Damaged { .. } => "the command verify says more, and verify --repair mends what can be mended",
        Error::Store { .. } | Error::StoreTimeout { .. } => {
            let Some(database) = database(url) else {
                let is_server = !url.starts_with("sqlite:");
                return is_server.then(|| {
                    "look whether the server runs, whether the address is right, and whether it lets this user in"
                        .to_owned()
                });
            };
            return hindrance(&database).or_else(|| {
                matches!(error, Error::StoreTimeout { .. }).then(|| {
                    "somebody has held the store for long: a process that is stopped, or a shell with an open transaction"
                        .to_owned()
                })
            });
        }
        _ => return None,
    };
    Some(hint.to_owned())
}

/// What keeps this user from the store's files, and what to do about it.
pub fn hindrance(database: &Path) -> Option<String> {
    let directory = database.parent().unwrap_or(Path::new("/"));
    if !directory.is_dir() {
        return Some(format!(
            "there is no directory {}, or this user may not look into it: is the address right?",
            directory.display()
        ));
    }
    let found = match std::fs::metadata(database) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Some(
                "a program makes it when it first uses the store, and so does load --create: is the address right?"
                    .into(),
            );
        }
        Err(_) => return Some(format!("this user may not look into {}", directory.display())),
        Ok(found) => found,
    };
    if found.is_dir() {
        return Some(format!(
            "it is a directory: name the database in it, such as sqlite:{}/limits.db",
            database.display()
        ));
    }
    // SAFETY: a plain call that always succeeds.
    let user = unsafe { libc::geteuid() };
    for file in [database.to_owned(), lane(database)] {
        let Ok(found) = std::fs::metadata(&file) else { continue };
        if !may(&file, libc::R_OK | libc::W_OK) {
            return Some(format!(
                "user {user} may not read and write {} ({}): run this as its owner, or give the store a group and the mode 0660",
                file.display(),
                owner(&found)
            ));
        }
    }
    let whose = std::fs::metadata(directory).map(|found| owner(&found)).unwrap_or_default();
    (!may(directory, libc::W_OK | libc::X_OK)).then(|| {
        format!(
            "user {user} may not write into {} ({whose}), where SQLite keeps its journal: run this as its owner",
            directory.display()
        )
    })
}
