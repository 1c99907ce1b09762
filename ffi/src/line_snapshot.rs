//! Who has the units of a limit, and who waits for them.

use crate::calls::ns;
use crate::input::{self, Sized32, c_text, given, hand_out, size_of_theirs, text};
use crate::status::{WGL_NONE, WGL_OK, guard};
use crate::store::wgl_store;
use std::ffi::{CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr;
use workglow_limit::observe::{Observer, ProcessSnapshot};

/// Who had the units of a limit, or of a key of it, and who waited for them, at the moment of wgl_store_line.
///
/// The caller owns it and frees it with wgl_line_snapshot_free, at any time: it depends on no other handle. It never
/// changes, so any number of threads may read it. A forked child has a copy.
pub struct wgl_line_snapshot {
    holders: Vec<wgl_holder_snapshot>,
    heads: Vec<wgl_head_snapshot>,
    waiting: Vec<wgl_waiting_snapshot>,
    /// What these point to.
    _texts: Vec<CString>,
}

/// A process that has units of a limit. Begin with WGL_HOLDER_SNAPSHOT_INIT. The caller owns it; its texts live as long as
/// the snapshot.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_holder_snapshot {
    /// sizeof(wgl_holder_snapshot), as the INIT macro sets it.
    pub struct_size: u32,
    /// The process, by its own view of its pid: in a container the container's. 0: it is not in the list of processes, or the
    /// store is memory:.
    pub pid: u32,
    /// The name of its program; NULL if it is not known.
    pub program: *const c_char,
    /// How long it has used the store.
    pub since_ns: u64,
    /// The number of its starts that have not ended.
    pub starts: u64,
    /// Their units.
    pub units: u64,
    /// 1 if the starts have ended, and their units are free after the limit's cooldown; else 0.
    pub cools_down: u32,
    /// 0.
    pub reserved: u32,
}

/// The first waiter of a line. Begin with WGL_HEAD_SNAPSHOT_INIT. The caller owns it; its texts live as long as the snapshot.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_head_snapshot {
    /// sizeof(wgl_head_snapshot), as the INIT macro sets it.
    pub struct_size: u32,
    /// Its process: see wgl_holder_snapshot.
    pub pid: u32,
    /// The name of its program; NULL if it is not known.
    pub program: *const c_char,
    /// How long its process has used the store.
    pub since_ns: u64,
    /// How long it has waited.
    pub waits_ns: u64,
    /// What it wants to start.
    pub units: u64,
    /// Of a shared limit, its tenant: '#' and an id of the key. Else NULL.
    pub tenant: *const c_char,
    /// Its priority: less is sooner.
    pub priority: i32,
    /// 1 if it is passed, because its process does not run; else 0.
    pub is_passed: u32,
}

/// How many callers of a process wait. Begin with WGL_WAITING_SNAPSHOT_INIT. The caller owns it; its texts live as long as
/// the snapshot.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_waiting_snapshot {
    /// sizeof(wgl_waiting_snapshot), as the INIT macro sets it.
    pub struct_size: u32,
    /// The process: see wgl_holder_snapshot.
    pub pid: u32,
    /// The name of its program; NULL if it is not known.
    pub program: *const c_char,
    /// How long it has used the store.
    pub since_ns: u64,
    /// The number of its callers, for all keys of the limit together.
    pub callers: u64,
}

// SAFETY: it begins with its size, and is numbers and pointers.
unsafe impl Sized32 for wgl_holder_snapshot {
    const NAME: &'static str = "holder";
}

// SAFETY: as above.
unsafe impl Sized32 for wgl_head_snapshot {
    const NAME: &'static str = "head";
}

// SAFETY: as above.
unsafe impl Sized32 for wgl_waiting_snapshot {
    const NAME: &'static str = "waiting";
}

/// Shows who has the units of a limit and key, and who waits for them: whose turn is next. It covers all processes of a
/// sqlite: store. For a shared limit ("500/1m shared") no key is all tenants. A part of limits that were declared together
/// has a name of its own, such as "openai/tokens". It takes part in no decision and makes none slower. When one more start
/// would begin says wgl_forecast.
///
/// Fails with WGL_UNKNOWN_LIMIT for a name that is not declared, WGL_UNSUPPORTED for a store on a server,
/// WGL_INVALID_ARGUMENT for a name that is not 1 to 1,024 bytes or a key of more, or with a store error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_store_line(
    store: Option<&wgl_store>,
    name: *const c_char,
    key: *const c_char,
    key_len: usize,
    line: Option<&mut MaybeUninit<Box<wgl_line_snapshot>>>,
) -> c_int {
    guard(|| {
        let store = given("store", store)?;
        // SAFETY: the caller's promise.
        let (name, key) = unsafe { (text("name", name)?, input::key(key, key_len)?) };
        let out = given("line", line)?;
        hand_out(out, shown(&Observer::new(&store.store, 0).line(name, key)?));
        Ok(WGL_OK)
    })
}

fn shown(seen: &workglow_limit::observe::LineSnapshot) -> wgl_line_snapshot {
    let mut texts = Vec::new();
    // (A text does not move when its owner does.)
    let mut keep = |text: Option<&str>| {
        text.map_or(ptr::null(), |text| {
            texts.push(c_text(text));
            texts[texts.len() - 1].as_ptr()
        })
    };
    let mut process = |process: &Option<ProcessSnapshot>| {
        let process = process.as_ref();
        let program = keep(process.map(|process| &*process.program));
        (process.map_or(0, |process| process.pid), program, process.map_or(0, |process| ns(process.since)))
    };
    let holders = seen.holders.iter().map(|seen| {
        let (pid, program, since_ns) = process(&seen.process);
        wgl_holder_snapshot {
            struct_size: size_of::<wgl_holder_snapshot>() as u32,
            pid,
            program,
            since_ns,
            starts: seen.starts,
            units: seen.units,
            cools_down: seen.cools_down.into(),
            reserved: 0,
        }
    });
    let holders = holders.collect();
    let waiting = seen.waiting.iter().map(|seen| {
        let (pid, program, since_ns) = process(&seen.process);
        let struct_size = size_of::<wgl_waiting_snapshot>() as u32;
        wgl_waiting_snapshot { struct_size, pid, program, since_ns, callers: seen.callers }
    });
    let waiting = waiting.collect();
    let heads = seen.heads.iter().map(|seen| {
        let (pid, program, since_ns) = process(&seen.process);
        wgl_head_snapshot {
            struct_size: size_of::<wgl_head_snapshot>() as u32,
            pid,
            program,
            since_ns,
            waits_ns: ns(seen.waits),
            units: seen.units,
            tenant: ptr::null(),
            priority: seen.priority,
            is_passed: seen.is_passed.into(),
        }
    });
    let mut heads: Vec<wgl_head_snapshot> = heads.collect();
    for (head, seen) in heads.iter_mut().zip(&seen.heads) {
        head.tenant = keep(seen.tenant_name().as_deref());
    }
    wgl_line_snapshot { holders, heads, waiting, _texts: texts }
}

/// Writes the process at an index, from 0 on, of those that have units of a limit of concurrent starts. There are none for
/// other limits: nobody has their units, which are free again when time has passed.
///
/// Returns WGL_NONE if there is no such process.
///
/// Fails with WGL_INVALID_ARGUMENT only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_line_snapshot_holder(
    line: Option<&wgl_line_snapshot>,
    index: usize,
    holder: *mut wgl_holder_snapshot,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { write(line, |line| line.holders.get(index), holder) }
}

/// Writes the first waiter of a line, the next one at index 0. A process has a line for each of its event loops, and one for
/// all of its threads. Those that are passed are last. Of a memory: store only those of shared limits are shown: no other
/// process waits for the others.
///
/// Returns WGL_NONE if there is no such line.
///
/// Fails with WGL_INVALID_ARGUMENT only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_line_snapshot_head(
    line: Option<&wgl_line_snapshot>,
    index: usize,
    head: *mut wgl_head_snapshot,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { write(line, |line| line.heads.get(index), head) }
}

/// Writes the process at an index, from 0 on, of those whose callers wait for the limit, for all its keys together.
///
/// Returns WGL_NONE if there is no such process.
///
/// Fails with WGL_INVALID_ARGUMENT only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_line_snapshot_waiting(
    line: Option<&wgl_line_snapshot>,
    index: usize,
    waiting: *mut wgl_waiting_snapshot,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { write(line, |line| line.waiting.get(index), waiting) }
}

/// Writes what is there, in the size that the caller knows.
///
/// # Safety
/// `place` is NULL or points to a structure of that kind, of this or of another version.
unsafe fn write<T: Sized32>(
    line: Option<&wgl_line_snapshot>,
    find: impl FnOnce(&wgl_line_snapshot) -> Option<&T>,
    place: *mut T,
) -> c_int {
    guard(|| {
        let line = given("line", line)?;
        // SAFETY: the caller's promise, here and below.
        let struct_size = unsafe { size_of_theirs(place) }?;
        let Some(found) = find(line) else { return Ok(WGL_NONE) };
        // SAFETY: as above. Every version begins with its size, which stays the caller's.
        unsafe {
            input::answer(place, struct_size, *found);
            place.cast::<u32>().write(struct_size as u32);
        }
        Ok(WGL_OK)
    })
}

/// Frees a snapshot. NULL is a no-op.
///
/// Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_line_snapshot_free(line: Option<Box<wgl_line_snapshot>>) {
    guard(|| {
        drop(line);
        Ok(WGL_OK)
    });
}
