//! What the operating system is asked for, and how each answers.

use crate::atomic::*;
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;
use std::time::Duration;

/// A range of address space that is unmapped when it is dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: *mut u8,
    len: usize,
}

// SAFETY: a mapping is plain memory; what is in it is only used as atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Address space without memory behind it.
    pub fn reserve(len: usize) -> Result<Mapping> {
        Mapping::new(len, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1)
    }

    /// The same, of a file that may still be shorter.
    pub fn reserve_file(file: &File, len: usize) -> Result<Mapping> {
        Mapping::new(len, libc::PROT_NONE, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn new(len: usize, protection: i32, flags: i32, fd: i32) -> Result<Mapping> {
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        Ok(Mapping { base: base.cast(), len })
    }

    /// Makes a part of a reservation usable: it has the file's bytes, or zeroed memory.
    pub fn commit(&self, from: usize, len: usize) -> Result<()> {
        assert!(from + len <= self.len);
        // SAFETY: the range lies inside this mapping.
        let answer = unsafe { libc::mprotect(self.base.add(from).cast(), len, libc::PROT_READ | libc::PROT_WRITE) };
        if answer == 0 { Ok(()) } else { Err(Error::last_os_error()) }
    }

    pub fn base(&self) -> *mut u8 {
        self.base
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// A forked child shall not have this mapping.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn keep_from_children(&self) -> Result<()> {
        // SAFETY: the range is this mapping.
        let answer = unsafe { libc::madvise(self.base.cast(), self.len, libc::MADV_DONTFORK) };
        if answer == 0 { Ok(()) } else { Err(Error::last_os_error()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping, and nothing borrows from it any more.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

/// Really allocates a part of a file: a hole on a full disk would kill whoever touches it.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
pub(crate) fn allocate(file: &File, from: u64, len: u64) -> Result<()> {
    loop {
        // SAFETY: plain call on an open descriptor.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), from as libc::off_t, len as libc::off_t) } {
            0 => return Ok(()),
            libc::EINTR => {}
            code => return Err(Error::from_raw_os_error(code)),
        }
    }
}

/// Where the system cannot promise space, it is written.
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
pub(crate) fn allocate(file: &File, from: u64, len: u64) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let zeros = vec![0; len as usize];
    file.write_all_at(&zeros, from)
}

/// Tries to lock bytes of a file, for as long as this open file lives. `false`: somebody else has them.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn try_lock(file: &File, from: u64, len: u64) -> Result<bool> {
    let mut lock = byte_range(libc::F_WRLCK as i16, from, len);
    // SAFETY: `lock` is a valid description of a range.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &mut lock) } == 0 {
        return Ok(true);
    }
    let error = Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

/// Does anybody else hold a lock on any of these bytes?
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn is_locked(file: &File, from: u64, len: u64) -> Result<bool> {
    let mut lock = byte_range(libc::F_WRLCK as i16, from, len);
    // SAFETY: `lock` is a valid description of a range, and the answer is written into it.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) } != 0 {
        return Err(Error::last_os_error());
    }
    Ok(lock.l_type != libc::F_UNLCK as i16)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn byte_range(kind: i16, from: u64, len: u64) -> libc::flock {
    // SAFETY: a zeroed `flock` is a valid one; the owner must be zero for open-file-description locks.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_start = from as libc::off_t;
    lock.l_len = len as libc::off_t;
    lock
}

/// The name of the shared or remote file system that a directory is on, if it is on one.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn shared_file_system(dir: &Path) -> Result<Option<&'static str>> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(dir.as_os_str().as_bytes())?;
    // SAFETY: a zeroed `statfs` is a valid place for the answer.
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

/// Sleeps while the low half of `cell` is that of `seen`, at most for `nap`. It may wake early.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn sleep_on(cell: &AtomicU64, seen: u64, nap: Duration) {
    let limit = libc::timespec {
        tv_sec: nap.as_secs().min(86_400) as libc::time_t,
        tv_nsec: libc::c_long::from(nap.subsec_nanos() as i32),
    };
    // SAFETY: the address is a live, aligned 32-bit half of an atomic; the kernel only reads it.
    unsafe { libc::syscall(libc::SYS_futex, low_half(cell), libc::FUTEX_WAIT, seen as u32, &limit) };
}

/// Wakes all who sleep on `cell`.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn wake_all(cell: &AtomicU64) {
    // SAFETY: the address is only used as the name of a queue.
    unsafe { libc::syscall(libc::SYS_futex, low_half(cell), libc::FUTEX_WAKE, i32::MAX) };
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn low_half(cell: &AtomicU64) -> *const u32 {
    let half = cell.as_ptr().cast::<u32>();
    if cfg!(target_endian = "big") { half.wrapping_add(1) } else { half }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn sleep_on(_: &AtomicU64, _: u64, nap: Duration) {
    std::thread::sleep(nap.min(Duration::from_millis(2)));
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn wake_all(_: &AtomicU64) {}

/// What names this boot of the kernel: two words, and the time namespace that the clock is read in.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn boot_identity() -> ([u64; 2], u64) {
    use std::os::unix::fs::MetadataExt;
    let namespace = std::fs::metadata("/proc/self/ns/time").map_or(0, |m| m.ino());
    // A test can present another boot.
    #[cfg(feature = "fault-points")]
    if let Ok(text) = std::env::var("WGL_TEST_BOOT") {
        return ([fnv(0, &text), fnv(1, &text)], namespace);
    }
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hex: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let half =
        |range: std::ops::Range<usize>| hex.get(range).and_then(|half| u64::from_str_radix(half, 16).ok()).unwrap_or(0);
    ([half(0..16), half(16..32)], namespace)
}

/// FNV-1a, begun with one more byte so that one text has several hashes.
#[cfg(feature = "fault-points")]
fn fnv(first: u8, text: &str) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325;
    std::iter::once(first)
        .chain(text.bytes())
        .fold(start, |h, byte| (h ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Random words from the system. They carry no state, so a fork cannot repeat them.
pub(crate) fn random<const N: usize>() -> Result<[u64; N]> {
    let mut bytes = [[0; 8]; N];
    for word in &mut bytes {
        getrandom::fill(word).map_err(|e| Error::other(e.to_string()))?;
    }
    Ok(bytes.map(u64::from_ne_bytes))
}

/// This boot of the kernel, as the database names it: 32 hex digits.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn boot_text() -> String {
    let ([a, b], _) = boot_identity();
    format!("{a:016x}{b:016x}")
}

/// Does the kernel say that the wall clock is synchronised? Without it, that clock may be years off after a reboot.
#[cfg(target_os = "linux")]
pub(crate) fn clock_is_synchronised() -> bool {
    // SAFETY: a zeroed `timex` is a valid one, and asks for nothing to be changed.
    let mut answer: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `answer` is a valid place for the answer.
    let state = unsafe { libc::adjtimex(&mut answer) };
    says_synchronised(state, answer.status)
}

/// Elsewhere there is nobody to ask.
#[cfg(not(target_os = "linux"))]
pub(crate) fn clock_is_synchronised() -> bool {
    false
}

/// A negative state is a refusal, as some sandboxes answer; the others but `TIME_ERROR` are a good clock, some of them
/// beside a leap second.
#[cfg(target_os = "linux")]
fn says_synchronised(state: i32, status: i32) -> bool {
    state >= 0 && state != libc::TIME_ERROR && status & libc::STA_UNSYNC == 0
}

#[cfg(all(test, target_os = "linux", not(model)))]
mod tests {
    use super::*;

    #[test]
    fn only_a_clock_that_is_called_synchronised_is() {
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
    fn a_boot_has_a_name_and_keeps_it() {
        let boot = boot_text();
        assert!(boot.len() == 32 && boot.bytes().all(|b| b.is_ascii_hexdigit()), "{boot}");
        assert_ne!(boot, "0".repeat(32));
        assert_eq!(boot_text(), boot);
    }

    #[cfg(feature = "fault-points")]
    #[test]
    fn what_stands_for_another_boot_is_told_apart() {
        let words = |text| [fnv(0, text), fnv(1, text)];
        let all = [words("a"), words("b"), words("ab"), words("ba"), words("")];
        let mut distinct = all.concat();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 2 * all.len());
        // As published for the text "a".
        assert_eq!(fnv(b'a', ""), 0xaf63_dc4c_8601_ec8c);
    }
}
