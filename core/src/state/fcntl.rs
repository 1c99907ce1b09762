//! SQLite's locks, taken as locks of the open file.
//!
//! SQLite takes the locks of POSIX, which a process loses on *all* of its open files of a database as soon as any one of
//! them is closed: if the host program reads the same file with another SQLite, ours would lose its locks in the middle of
//! a commit. Locks of an open file description belong to the file that took them.
//!
//! All programs that are linked to one SQLite share its table of system calls, and a Rust program may use the bundled one
//! for databases of its own. So the call is replaced for all, but acts only on the thread that has a [`Scope`].

use rusqlite::ffi;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Once;

thread_local! {
    static SCOPES: Cell<u32> = const { Cell::new(0) };
}

/// While there is one, SQLite takes such locks for this thread. A connection is used, and closed, within it.
#[derive(Debug)]
pub(super) struct Scope(std::marker::PhantomData<*const ()>);

impl Scope {
    pub fn new() -> Scope {
        static REPLACED: Once = Once::new();
        REPLACED.call_once(replace);
        SCOPES.set(SCOPES.get() + 1);
        Scope(std::marker::PhantomData)
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        SCOPES.set(SCOPES.get() - 1);
    }
}

/// If there is no such call to replace, SQLite's locks stay what they are.
fn replace() {
    // SAFETY: the functions belong to the VFS that is found, which is never removed; `fcntl` below takes and answers what
    // SQLite passes to and expects of the C function.
    unsafe {
        if ffi::sqlite3_initialize() != ffi::SQLITE_OK {
            return;
        }
        let vfs = ffi::sqlite3_vfs_find(c"unix".as_ptr());
        let Some(vfs_ref) = vfs.as_ref() else { return };
        if let Some(set) = vfs_ref.xSetSystemCall {
            type Fcntl = unsafe extern "C" fn(c_int, c_int, *mut c_void) -> c_int;
            set(vfs, c"fcntl".as_ptr(), Some(std::mem::transmute::<Fcntl, unsafe extern "C" fn()>(fcntl)));
        }
    }
}

/// `fcntl` has a variable third argument; on Linux it is passed as any other.
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    let command = match command {
        libc::F_SETLK if SCOPES.get() > 0 => libc::F_OFD_SETLK,
        libc::F_SETLKW if SCOPES.get() > 0 => libc::F_OFD_SETLKW,
        libc::F_GETLK if SCOPES.get() > 0 => libc::F_OFD_GETLK,
        // SAFETY: as SQLite would have called it.
        _ => return unsafe { libc::fcntl(fd, command, argument) },
    };
    // SAFETY: with these commands SQLite passes a lock that it owns. The kernel refuses one with a process in it.
    unsafe {
        (*argument.cast::<libc::flock>()).l_pid = 0;
        libc::fcntl(fd, command, argument)
    }
}
