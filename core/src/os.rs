//! The calls to the operating system.

use crate::atomic::*;
use rand::TryRng;
use rand::rngs::SysRng;
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;
use std::time::Duration;

/// A range of address space that is unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: *mut u8,
    len: usize,
}

// SAFETY: a mapping is plain memory, and its contents are only used as atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves address space without memory.
    pub fn reserve(len: usize) -> Result<Mapping> {
        Mapping::new(len, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1)
    }

    /// Maps a file that may still be shorter.
    ///
    /// Nothing is read ahead. Words that are not in memory are zeros of a file that has grown. Touching the first of
    /// them would otherwise clear megabytes, which takes 20 ms where the system reads 8 MiB ahead.
    pub fn reserve_file(file: &File, len: usize) -> Result<Mapping> {
        let map = Mapping::new(len, libc::PROT_NONE, libc::MAP_SHARED, file.as_raw_fd())?;
        // SAFETY: the range is this mapping. (Larger mappings inherit the advice. If it is refused, nothing changes.)
        unsafe { libc::madvise(map.base.cast(), len, libc::MADV_RANDOM) };
        Ok(map)
    }

    fn new(len: usize, protection: i32, flags: i32, fd: i32) -> Result<Mapping> {
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        Ok(Mapping { base: base.cast(), len })
    }

    /// Maps a larger view of the same file in addition to this one.
    pub fn larger(&self, len: usize) -> Result<Mapping> {
        // SAFETY: with an old size of 0, this mapping stays as it is, and the new one is at an address of the kernel's
        // choice.
        let base = unsafe { libc::mremap(self.base.cast(), 0, len, libc::MREMAP_MAYMOVE) };
        if base == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        Ok(Mapping { base: base.cast(), len })
    }

    /// Makes a part of a reservation usable. It has the file's bytes, or zeros.
    pub fn commit(&self, from: usize, len: usize) -> Result<()> {
        assert!(from + len <= self.len);
        // SAFETY: the range lies inside this mapping.
        let answer = unsafe { libc::mprotect(self.base.add(from).cast(), len, libc::PROT_READ | libc::PROT_WRITE) };
        if answer == 0 { Ok(()) } else { Err(Error::last_os_error()) }
    }

    /// Returns whether there is memory behind this byte; the file may end before it. (True where the kernel is too old
    /// to report this.)
    pub fn is_there(&self, byte: usize) -> Result<()> {
        const MADV_POPULATE_READ: i32 = 22;
        let size = page_size();
        let page = byte - byte % size;
        self.commit(page, size.min(self.len - page))?;
        // SAFETY: the page begins inside this mapping, and a fault is returned, not signalled.
        let answer = unsafe { libc::madvise(self.base.add(page).cast(), size, MADV_POPULATE_READ) };
        match Error::last_os_error() {
            error if answer != 0 && error.raw_os_error() == Some(libc::EFAULT) => Err(error),
            _ => Ok(()),
        }
    }

    pub fn base(&self) -> *mut u8 {
        self.base
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Keeps this mapping out of forked children.
    pub fn keep_from_children(&self) -> Result<()> {
        // SAFETY: the range is this mapping.
        let answer = unsafe { libc::madvise(self.base.cast(), self.len, libc::MADV_DONTFORK) };
        if answer == 0 { Ok(()) } else { Err(Error::last_os_error()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping, and no borrow is left.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

/// The kernel's page size in bytes: 4,096 on most machines, 16,384 or 65,536 on some with arm64.
fn page_size() -> usize {
    // SAFETY: a plain call, which always knows this.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Allocates a part of a file on disk. Touching a hole on a full disk would kill the process.
pub(crate) fn allocate(file: &File, from: u64, len: u64) -> Result<()> {
    check_file_size(from + len)?;
    loop {
        // SAFETY: plain call on an open descriptor.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), from as libc::off_t, len as libc::off_t) } {
            0 => return Ok(()),
            libc::EINTR => {}
            code => return Err(Error::from_raw_os_error(code)),
        }
    }
}

/// Checks that this process may create a file of this size. A larger write would kill it.
pub(crate) fn check_file_size(len: u64) -> Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the result.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0 && limit.rlim_cur < len {
        let most = limit.rlim_cur;
        return Err(Error::other(format!("this process may create files of at most {most} bytes (ulimit -f)")));
    }
    Ok(())
}

/// The limits of this process for address space and for locked memory, if it has any.
pub(crate) fn address_space() -> [Option<u64>; 2] {
    [libc::RLIMIT_AS, libc::RLIMIT_MEMLOCK].map(|which| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is a valid place for the result.
        let is_known = unsafe { libc::getrlimit(which, &mut limit) } == 0;
        (is_known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
    })
}

/// The groups of this process, except the first.
pub(crate) fn groups() -> Vec<libc::gid_t> {
    // SAFETY: without a buffer, the call only counts. The second call has a buffer of that size.
    unsafe {
        let count = libc::getgroups(0, ptr::null_mut()).max(0);
        let mut groups = vec![0; count as usize];
        let count = libc::getgroups(count, groups.as_mut_ptr()).max(0);
        groups.truncate(count as usize);
        groups
    }
}

/// Tries to lock bytes of a file for as long as this open file lives. Returns `false` if another holder has them.
pub(crate) fn try_lock(file: &File, from: u64, len: u64) -> Result<bool> {
    set_lock(file, byte_range(libc::F_WRLCK as i16, from, len))
}

/// Tries to take a shared lock.
pub(crate) fn try_share(file: &File, from: u64, len: u64) -> Result<bool> {
    set_lock(file, byte_range(libc::F_RDLCK as i16, from, len))
}

fn set_lock(file: &File, mut lock: libc::flock) -> Result<bool> {
    // SAFETY: `lock` describes a valid range.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &mut lock) } == 0 {
        return Ok(true);
    }
    let error = Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(without_locks(error)),
    }
}

/// Explains the answer of a system that does not know these locks.
fn without_locks(error: Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EINVAL) => {
            let cause = "this system has no open-file-description locks (F_OFD_SETLK), which Linux has since 3.15";
            Error::new(std::io::ErrorKind::Unsupported, cause)
        }
        _ => error,
    }
}

/// Returns whether another holder has a lock on any of these bytes.
pub(crate) fn is_locked(file: &File, from: u64, len: u64) -> Result<bool> {
    let mut lock = byte_range(libc::F_WRLCK as i16, from, len);
    // SAFETY: `lock` describes a valid range, and the result is written into it.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) } != 0 {
        return Err(without_locks(Error::last_os_error()));
    }
    Ok(lock.l_type != libc::F_UNLCK as i16)
}

fn byte_range(kind: i16, from: u64, len: u64) -> libc::flock {
    // SAFETY: a zeroed `flock` is valid; the owner must be zero for open-file-description locks.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_start = from as libc::off_t;
    lock.l_len = len as libc::off_t;
    lock
}

/// The name of the shared or remote file system of a directory, if it is on one.
pub(crate) fn shared_file_system(dir: &Path) -> Result<Option<&'static str>> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(dir.as_os_str().as_bytes())?;
    // SAFETY: a zeroed `statfs` is a valid place for the result.
    let mut answer: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `path` ends in NUL and `answer` is a valid place.
    if unsafe { libc::statfs(path.as_ptr(), &mut answer) } != 0 {
        return Err(Error::last_os_error());
    }
    Ok(match answer.f_type as u32 {
        0x0000_6969 => Some("NFS"),
        0x0000_517b | 0xfe53_4d42 | 0xff53_4d42 => Some("SMB"),
        0x0102_1997 => Some("9p"),
        0x6573_5546 => Some("FUSE or virtiofs"),
        0x00c3_6400 => Some("Ceph"),
        0x5346_414f | 0x6b41_4653 => Some("AFS"),
        0x0bd0_0bd0 => Some("Lustre"),
        0x7461_636f => Some("OCFS2"),
        0x0116_1970 => Some("GFS2"),
        0x786f_4256 => Some("vboxsf"),
        _ => None,
    })
}

/// Sleeps while the low half of `cell` equals that of `seen`, for `nap` at most. It may wake early.
pub(crate) fn sleep_on(cell: &AtomicU64, seen: u64, nap: Duration) {
    sleep_until_called(cell, seen, nap, ANY_CALL);
}

/// The calls of [`wake_all`].
const ANY_CALL: u32 = u32::MAX;

/// The same, until one of these calls comes.
pub(crate) fn sleep_until_called(cell: &AtomicU64, seen: u64, nap: Duration, calls: u32) {
    // With calls, the kernel takes the end of the sleep, by the monotonic clock.
    let end = Duration::from_nanos(crate::time::monotonic_ns()) + nap.min(Duration::from_secs(86_400));
    let end = libc::timespec { tv_sec: end.as_secs() as _, tv_nsec: libc::c_long::from(end.subsec_nanos() as i32) };
    let (cell, no_cell) = (low_half(cell), std::ptr::null::<u32>());
    // SAFETY: the address is a live, aligned 32-bit half of an atomic; the kernel only reads it.
    unsafe { libc::syscall(libc::SYS_futex, cell, libc::FUTEX_WAIT_BITSET, seen as u32, &end, no_cell, calls) };
}

/// Calls the threads that sleep on `cell` until one of these calls comes.
pub(crate) fn call(cell: &AtomicU64, calls: u32) {
    let (cell, no_time, no_cell) = (low_half(cell), std::ptr::null::<libc::timespec>(), std::ptr::null::<u32>());
    // SAFETY: the address is only used as the identity of a queue.
    unsafe { libc::syscall(libc::SYS_futex, cell, libc::FUTEX_WAKE_BITSET, i32::MAX, no_time, no_cell, calls) };
}

/// Wakes all threads that sleep on `cell`.
pub(crate) fn wake_all(cell: &AtomicU64) {
    // SAFETY: the address is only used as the identity of a queue.
    unsafe { libc::syscall(libc::SYS_futex, low_half(cell), libc::FUTEX_WAKE, i32::MAX) };
}

fn low_half(cell: &AtomicU64) -> *const u32 {
    let half = cell.as_ptr().cast::<u32>();
    if cfg!(target_endian = "big") { half.wrapping_add(1) } else { half }
}

/// The identity of this boot of the kernel: two words. Where the system does not report one, it is made up, and denotes
/// a boot that no other process knows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Boot {
    pub id: [u64; 2],
    is_known: bool,
}

impl Boot {
    const UNKNOWN: &str = "unknown ";

    /// The boot's name in the database: 32 hex digits, after a prefix if it is made up.
    pub fn text(&self) -> String {
        let [a, b] = self.id;
        format!("{}{a:016x}{b:016x}", if self.is_known { "" } else { Self::UNKNOWN })
    }

    /// Returns whether it may be the boot that the database names so.
    pub fn may_be(&self, text: &str) -> bool {
        !text.is_empty() && (!self.is_known || text.starts_with(Self::UNKNOWN) || text == self.text())
    }
}

/// The time namespace in which the clock is read; 0 if unknown.
pub(crate) fn time_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/time").map_or(0, |m| m.ino())
}

pub(crate) fn boot() -> Result<Boot> {
    static MADE_UP: std::sync::OnceLock<[u64; 2]> = std::sync::OnceLock::new();
    // Tests can simulate another boot.
    #[cfg(feature = "fault-points")]
    if let Ok(text) = std::env::var("WGL_TEST_BOOT") {
        return Ok(Boot { id: [fnv(0, &text), fnv(1, &text)], is_known: true });
    }
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hex: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let half = |range: std::ops::Range<usize>| hex.get(range).and_then(|half| u64::from_str_radix(half, 16).ok());
    if let (Some(a), Some(b)) = (half(0..16), half(16..32)) {
        return Ok(Boot { id: [a, b], is_known: true });
    }
    let id = match MADE_UP.get() {
        Some(id) => *id,
        None => random::<2>().map(|id| *MADE_UP.get_or_init(|| id))?,
    };
    Ok(Boot { id, is_known: false })
}

/// FNV-1a, started with one extra byte, so that one text has several hashes.
#[cfg(feature = "fault-points")]
fn fnv(first: u8, text: &str) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325;
    std::iter::once(first)
        .chain(text.bytes())
        .fold(start, |h, byte| (h ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Random words from the system. Without state, a fork cannot repeat them.
pub(crate) fn random<const N: usize>() -> Result<[u64; N]> {
    let mut words = [0; N];
    for word in &mut words {
        *word = SysRng.try_next_u64().map_err(|e| Error::other(e.to_string()))?;
    }
    Ok(words)
}

/// Returns whether the kernel reports that the wall clock is synchronised. If not, that clock may be years off after a
/// reboot.
pub(crate) fn clock_is_synchronised() -> bool {
    // SAFETY: a zeroed `timex` is valid, and requests no change.
    let mut answer: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `answer` is a valid place for the result.
    let state = unsafe { libc::adjtimex(&mut answer) };
    says_synchronised(state, answer.status)
}

/// A negative state is a refusal, as some sandboxes return. All others except `TIME_ERROR` mean a synchronised clock,
/// some of them near a leap second.
fn says_synchronised(state: i32, status: i32) -> bool {
    state >= 0 && state != libc::TIME_ERROR && status & libc::STA_UNSYNC == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clock_reported_as_synchronised_is_trusted() {
        const TIME_INS: i32 = 1;
        const STA_PLL: i32 = 1;
        assert!(says_synchronised(0, 0));
        assert!(says_synchronised(0, STA_PLL));
        assert!(says_synchronised(TIME_INS, STA_PLL));
        assert!(!says_synchronised(-1, 0), "refused");
        assert!(!says_synchronised(libc::TIME_ERROR, 0));
        assert!(!says_synchronised(0, libc::STA_UNSYNC | STA_PLL));
    }

    #[test]
    fn a_boot_keeps_its_name() {
        let text = boot().unwrap().text();
        assert!(text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit()), "{text}");
        assert_ne!(text, "0".repeat(32));
        assert_eq!(boot().unwrap().text(), text);
    }

    #[test]
    fn an_unknown_boot_may_be_any_boot() {
        let [known, other, unknown] =
            [([1, 2], true), ([1, 3], true), ([1, 2], false)].map(|(id, is_known)| Boot { id, is_known });
        assert!(known.may_be(&known.text()) && !known.may_be(&other.text()) && !known.may_be(""));
        assert!(known.may_be(&unknown.text()) && unknown.may_be(&other.text()) && !unknown.may_be(""));
    }

    #[cfg(feature = "fault-points")]
    #[test]
    fn simulated_boots_differ() {
        let words = |text| [fnv(0, text), fnv(1, text)];
        let all = [words("a"), words("b"), words("ab"), words("ba"), words("")];
        let mut distinct = all.concat();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 2 * all.len());
        // The published value for the text "a".
        assert_eq!(fnv(b'a', ""), 0xaf63_dc4c_8601_ec8c);
    }
}
