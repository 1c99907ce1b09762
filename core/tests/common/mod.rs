//! Directories, children and shared memory for the tests.
#![allow(dead_code, unused_imports, reason = "each test program uses its part")]

pub mod family;
pub mod ground;
pub mod limits;
#[cfg(feature = "redis")]
pub mod nodes;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "redis", feature = "postgres"))]
pub mod proxy;
pub mod random;
#[cfg(feature = "redis")]
pub mod redis;
pub mod server;
pub mod tasks;
pub mod wait;

pub use ground::{Dir, wait_until};
pub use random::Random;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

/// The errors that damage to a store may cause.
pub const ERRORS_OF_DAMAGE: [&str; 10] = [
    "damaged",
    "store_failure",
    "store_timeout",
    "store_full",
    "not_a_store",
    "unsupported_version",
    "unknown_limit",
    "kind_mismatch",
    "lease_lost",
    // Under a damaged policy.
    "weight_exceeds_capacity",
];

static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// What the tests' own hook prints is captured, and lost with a child. The hook is set in the parent: a child that sets
/// one waits for ever if another thread panicked during the fork.
fn print_panics_of_children() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let of_tests = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_CHILD.load(Relaxed) {
                return of_tests(panic);
            }
            let text = format!("a child: {panic}\n");
            // SAFETY: the text is valid for its length.
            unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
        }));
    });
}

/// Shared by tests that use SQLite themselves, taken alone by a fork: the child would inherit a lock inside SQLite that
/// another thread holds. (The library's own uses wait for a fork by themselves.)
static OWN_SQLITE: RwLock<()> = RwLock::new(());

/// Uses the database of a store as another program would.
pub fn with_database<R>(dir: &Dir, f: impl FnOnce(&rusqlite::Connection) -> R) -> R {
    let _no_fork = OWN_SQLITE.read().unwrap_or_else(PoisonError::into_inner);
    f(&rusqlite::Connection::open(dir.file("limits.db")).unwrap())
}

/// A forked child. It is killed when this is dropped, if it is still running.
pub struct Child(pub i32);

impl Child {
    /// Runs `f` in a child and ends it: 0 if `f` returned, 101 if it panicked.
    pub fn run(f: impl FnOnce()) -> Child {
        print_panics_of_children();
        let alone = OWN_SQLITE.write().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the child runs only `f`, and ends with `_exit`.
        let pid = unsafe { libc::fork() };
        drop(alone);
        match pid {
            0 => {
                IS_CHILD.store(true, Relaxed);
                let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).map_or(101, |()| 0);
                // SAFETY: ends the child without running the parent's destructors.
                unsafe { libc::_exit(code) }
            }
            pid => {
                assert!(pid > 0, "fork failed");
                Child(pid)
            }
        }
    }

    /// A child hangs if it is not over, and has counted no step, for this long.
    fn wait_for(&self, options: i32, steps: &AtomicU64) -> i32 {
        const HANGS: Duration = Duration::from_secs(180);
        let (mut since, mut last, mut status) = (Instant::now(), steps.load(Relaxed), 0);
        loop {
            // SAFETY: `status` is a valid place for the answer.
            match unsafe { libc::waitpid(self.0, &mut status, options | libc::WNOHANG) } {
                0 => assert!(since.elapsed() < HANGS, "child {} hangs, after {last} steps", self.0),
                _ => return status,
            }
            std::thread::sleep(Duration::from_millis(1));
            let now = steps.load(Relaxed);
            if now != last {
                (since, last) = (Instant::now(), now);
            }
        }
    }

    /// Waits for the child's end, which must be a success.
    pub fn join(self) {
        self.join_counting(&AtomicU64::new(0));
    }

    /// The same for a long child, which counts its steps: on a busy machine all of them together may take any time.
    pub fn join_counting(self, steps: &AtomicU64) {
        assert!(!self.end(steps), "a child was killed");
    }

    /// Waits for the child's end, and returns whether it was killed. If not, it must have succeeded.
    pub fn was_killed(self) -> bool {
        self.end(&AtomicU64::new(0))
    }

    /// Waits for the child's end, whatever it is, and returns its status.
    pub fn status(self, steps: &AtomicU64) -> i32 {
        let status = self.wait_for(0, steps);
        std::mem::forget(self);
        status
    }

    fn end(self, steps: &AtomicU64) -> bool {
        let status = self.status(steps);
        let is_killed = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL;
        assert!(is_killed || status == 0, "a child failed: {status:#x}");
        is_killed
    }

    /// Waits until the child has stopped itself.
    pub fn wait_until_stopped(&self) {
        assert!(libc::WIFSTOPPED(self.wait_for(libc::WUNTRACED, &AtomicU64::new(0))), "the child did not stop");
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the child has not been waited for, so the number is still its own.
        unsafe { libc::kill(self.0, signal) };
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        // SAFETY: as above.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
    }
}

/// Words that forked children share with their parent.
pub fn shared(words: usize) -> &'static [AtomicU64] {
    // SAFETY: a new mapping, zeroed, never unmapped.
    unsafe {
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        let base = libc::mmap(std::ptr::null_mut(), words * 8, prot, flags, -1, 0);
        assert_ne!(base, libc::MAP_FAILED);
        std::slice::from_raw_parts(base.cast(), words)
    }
}

/// The clock that starts are recorded on.
pub fn now_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Starts are given as intervals `(a, b, units)`: each happened somewhere in `[a, b]`. Returns the most units whose
/// intervals lie wholly inside one half-open window. It suffices to examine windows that begin with an interval.
pub fn most_in_any_window(starts: &[(u64, u64, u64)], window: u64) -> u64 {
    let mut ends: Vec<u64> = starts.iter().map(|s| s.1).collect();
    ends.sort_unstable();
    let mut latest_first = starts.to_vec();
    latest_first.sort_unstable_by_key(|s| std::cmp::Reverse(s.0));
    // A Fenwick tree over the ends of all intervals that begin at or after the present one.
    let mut sums = vec![0; ends.len() + 1];
    let mut most = 0;
    for same_begin in latest_first.chunk_by(|x, y| x.0 == y.0) {
        for &(_, b, units) in same_begin {
            let mut i = ends.partition_point(|&end| end < b) + 1;
            while i < sums.len() {
                sums[i] += units;
                i += i & i.wrapping_neg();
            }
        }
        let mut i = ends.partition_point(|&end| end < same_begin[0].0 + window);
        let mut held = 0;
        while i > 0 {
            held += sums[i];
            i &= i - 1;
        }
        most = most.max(held);
    }
    most
}

/// One process's record of its starts, in memory that outlives it.
pub struct Record(&'static [AtomicU64]);

/// How long a test waits for events that come soon on any machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

impl Record {
    pub fn new(capacity: usize) -> Record {
        Record(shared(2 * capacity + 1))
    }

    /// The number of starts.
    pub fn len(&self) -> u64 {
        self.0[0].load(Acquire)
    }

    /// Completed before the start counts as reported. A process that is killed before that has not started.
    pub fn add(&self, a: u64, b: u64, units: u64) {
        let n = self.0[0].load(Relaxed) as usize;
        assert!(2 * n + 2 < self.0.len(), "the record is full");
        self.0[2 * n + 1].store(a, Relaxed);
        self.0[2 * n + 2].store((b - a) << 16 | units, Relaxed);
        self.0[0].store(n as u64 + 1, Release);
    }

    pub fn starts(&self) -> Vec<(u64, u64, u64)> {
        let n = self.0[0].load(Acquire) as usize;
        let word = |i: usize| self.0[i].load(Relaxed);
        (0..n).map(|i| (word(2 * i + 1), word(2 * i + 1) + (word(2 * i + 2) >> 16), word(2 * i + 2) & 0xffff)).collect()
    }
}

/// Sends a signal to this process, which does not continue.
pub fn raise(signal: i32) {
    // SAFETY: plain call.
    assert_eq!(unsafe { libc::raise(signal) }, 0);
}

/// Simulates a reboot, for this process and its later children. (Not through Rust's own function, whose lock a child
/// could inherit.)
pub fn present_boot(number: u64) {
    let name = c"WGL_TEST_BOOT";
    let value = std::ffi::CString::new(format!("boot {number}")).unwrap();
    // SAFETY: two strings that end in NUL; the process has one thread.
    assert_eq!(unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) }, 0);
}

/// Makes this process, and its later children, keep a ledger with a budget for windows longer than this, and write
/// shorter ones behind.
pub fn write_behind_up_to(longest: Duration) {
    let value = std::ffi::CString::new(longest.as_micros().to_string()).unwrap();
    // SAFETY: two strings that end in NUL; the process has one thread.
    assert_eq!(unsafe { libc::setenv(c"WGL_TEST_BEHIND_US".as_ptr(), value.as_ptr(), 1) }, 0);
}

/// Makes the clocks of this process run fast by this many parts per million.
pub fn present_rate(ppm: i64) {
    let value = std::ffi::CString::new(ppm.to_string()).unwrap();
    // SAFETY: two strings that end in NUL; the process has one thread.
    assert_eq!(unsafe { libc::setenv(c"WGL_TEST_RATE".as_ptr(), value.as_ptr(), 1) }, 0);
}

/// A number from the environment, to make a test longer or shorter.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// The largest number of units that a denial somewhere in `[a, b]` may have seen in its window, if each start lies
/// where it suits. A start counts for up to two microseconds longer than the window: its stamp is rounded up, the time
/// of a decision down.
pub fn most_seen_by(starts: &[(u64, u64, u64)], (a, b): (u64, u64), window: u64) -> u64 {
    starts.iter().filter(|s| s.1 + window + 2_000 > a && s.0 <= b).map(|s| s.2).sum()
}
