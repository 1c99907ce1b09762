//! Makes SQLite take its locks as locks of the open file.
//!
//! SQLite takes POSIX locks. A process loses these on *all* of its open files of a database as soon as it closes any
//! one of them. If the host program reads the same file with another SQLite, this library would lose its locks in the
//! middle of a commit. Locks of an open file description belong to the file that took them.
//!
//! All code that is linked to one SQLite shares its table of system calls, and a Rust program may use the bundled
//! SQLite for its own databases. So the call is replaced for all of them, but acts only on a thread that has a
//! [`Scope`].

use rusqlite::ffi;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Once;

thread_local! {
    static SCOPES: Cell<u32> = const { Cell::new(0) };
}

/// While this lives, SQLite takes open-file locks on this thread. A connection is used and closed within it.
#[derive(Debug)]
pub(in crate::state) struct Scope(std::marker::PhantomData<*const ()>);

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

/// If there is no such call to replace, SQLite's locks stay as they are.
fn replace() {
    // SAFETY: the functions belong to the VFS that was found, which is never removed. `fcntl` below accepts what SQLite
    // passes to the C function, and returns what SQLite expects of it.
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

/// `fcntl` has a variable third argument, which Linux passes like any other.
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    let command = match command {
        libc::F_SETLK if SCOPES.get() > 0 => libc::F_OFD_SETLK,
        libc::F_SETLKW if SCOPES.get() > 0 => libc::F_OFD_SETLKW,
        libc::F_GETLK if SCOPES.get() > 0 => libc::F_OFD_GETLK,
        // SAFETY: the call that SQLite requested.
        _ => return unsafe { libc::fcntl(fd, command, argument) },
    };
    // SAFETY: with these commands SQLite passes a lock that it owns. The kernel refuses a lock that contains a process
    // id.
    unsafe {
        (*argument.cast::<libc::flock>()).l_pid = 0;
        libc::fcntl(fd, command, argument)
    }
}
