//! The clock of a store. `ticks.rs` converts between durations and ticks.
//!
//! The clock is the kernel's boot clock plus an offset that the store keeps. So all processes of the machine read the
//! same clock, and setting the wall clock has no effect.

mod ticks;

pub(crate) use crate::algorithm::time::EPOCH_LEAD;
pub use ticks::duration_from_secs;
pub(crate) use ticks::{MAX_TIME, Now, Tick, from_ticks, grace_ticks, patience_ticks, window_ticks};

use crate::error::{Error, Result};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A clock for tests: it stands still until it is advanced. Clones share one time.
///
/// Pass it to a store ([`StoreOptions::clock`](crate::StoreOptions)); every limiter of that store then uses it. A
/// thread that waits in `acquire` sleeps until the clock is advanced. No time passes in a call: by this clock a
/// [`Line`](crate::embed::Line) or [`Pool`](crate::embed::Pool) does all its due work in one. A store supports at least 500 years of it.
#[derive(Debug, Clone, Default)]
pub struct ManualClock(Arc<ManualTime>);

#[derive(Debug, Default)]
struct ManualTime {
    ns: AtomicU64,
    moved: Mutex<()>,
    bell: Condvar,
}

impl ManualClock {
    /// Makes a clock that reads zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the time since the clock was made.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.0.ns.load(Acquire))
    }

    /// Moves the clock forward. A clock never moves back.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        let _guard = self.0.moved.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.0.ns.load(Relaxed);
        self.0.ns.store(now.saturating_add(by), Release);
        self.0.bell.notify_all();
    }

    fn sleep(&self, nap: Duration) {
        let guard = self.0.moved.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.0.ns.load(Relaxed);
        // Real time also bounds the nap, so that a test which never advances its clock can still end its threads.
        let nap = nap.min(Duration::from_millis(50));
        let _ = self.0.bell.wait_timeout_while(guard, nap, |()| self.0.ns.load(Relaxed) == before);
    }
}

/// The clock of one store.
#[derive(Debug)]
pub(crate) struct Clock {
    /// The reading of the underlying clock at the store's epoch, in ns (wrapping: the epoch may precede the boot). It
    /// never changes, except where the clock follows a server's.
    base_ns: AtomicU64,
    /// Until then, by the underlying clock, it does not follow a server's clock back.
    stays_until: AtomicU64,
    /// A lower bound of the boot clock's lead over the monotonic clock. The lead is the time that the machine slept,
    /// which only grows. (In a time namespace it may be negative: then this wraps.)
    slept_ns: u64,
    manual: Option<ManualClock>,
}

impl Clock {
    /// Returns the base for a store created now.
    pub fn fresh_base(manual: Option<&ManualClock>) -> u64 {
        raw_ns(manual).wrapping_sub(EPOCH_LEAD * 1_000)
    }

    pub fn new(base_ns: u64, manual: Option<ManualClock>) -> Clock {
        // In this order, so that a delay between the readings makes the result smaller, not larger.
        let boot = boot_ns();
        let slept_ns = boot.wrapping_sub(monotonic_ns());
        Clock { base_ns: base_ns.into(), stays_until: AtomicU64::new(0), slept_ns, manual }
    }

    #[inline(always)]
    fn base(&self) -> u64 {
        self.base_ns.load(Relaxed)
    }

    /// Follows a server's clock; `now` is the reading in a reply that has just arrived. So this clock is late by the
    /// reply's travel time, never early, and by as little as the fastest reply of the last second took.
    pub fn follow(&self, now: Tick) {
        if self.manual.is_some() {
            return;
        }
        let raw = boot_ns();
        let base = raw.wrapping_sub(now * 1_000);
        // A smaller base is a later time.
        let is_ahead = (self.base().wrapping_sub(base) as i64) > 0;
        if is_ahead || self.stays_until.load(Relaxed) < raw {
            self.base_ns.store(base, Relaxed);
            self.stays_until.store(raw + 1_000_000_000, Relaxed);
        }
    }

    /// Returns a time in the recent past: at most a few milliseconds ago while the machine does not sleep. It costs a
    /// quarter of an exact reading.
    #[inline(always)]
    pub fn early(&self) -> Now {
        match self.manual {
            Some(_) => self.now(),
            None => {
                let boot = clock_ns(libc::CLOCK_MONOTONIC_COARSE).wrapping_add(self.slept_ns);
                Now::from_ns(boot.wrapping_sub(self.base()))
            }
        }
    }

    #[inline(always)]
    pub fn now(&self) -> Now {
        Now::from_ns(raw_ns(self.manual.as_ref()).wrapping_sub(self.base()))
    }

    /// Returns the current time, and the reading of the underlying clock in microseconds: the time since the boot.
    pub fn now_and_uptime(&self) -> (Now, i64) {
        let raw = raw_ns(self.manual.as_ref());
        (Now::from_ns(raw.wrapping_sub(self.base())), (raw / 1_000) as i64)
    }

    /// Returns the Unix time of tick 0 in microseconds, wrapping. A manual clock shows the time since 1970.
    pub fn phase(&self) -> u64 {
        let wall = match &self.manual {
            None => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            Some(clock) => clock.now(),
        };
        (wall.as_micros() as u64).wrapping_sub(self.now().floor)
    }

    /// Returns whether the clock stands still until it is advanced.
    pub fn is_manual(&self) -> bool {
        self.manual.is_some()
    }

    /// Sleeps for at most `nap`. It may wake early.
    pub fn sleep(&self, nap: Duration) {
        match &self.manual {
            Some(clock) => clock.sleep(nap),
            None => std::thread::sleep(nap),
        }
    }

    /// Returns the wall-clock instant of a tick, by the wall clock as it is now.
    pub fn to_system(&self, tick: Tick) -> SystemTime {
        let now = self.now().floor;
        let wall = SystemTime::now();
        if tick >= now { wall + from_ticks(tick - now) } else { wall - from_ticks(now - tick) }
    }

    /// Returns the tick of a wall-clock instant, rounded up; 0 for the past.
    pub fn tick_of(&self, at: SystemTime) -> Result<Tick> {
        let ahead = at.duration_since(SystemTime::now()).unwrap_or(Duration::ZERO);
        self.tick_in("when", ahead)
    }

    /// Returns the tick that lies this far ahead, rounded up; 0 for now.
    pub fn tick_in(&self, parameter: &'static str, ahead: Duration) -> Result<Tick> {
        match ticks::ticks_up(ahead) {
            Some(0) => Ok(0),
            Some(ticks) if ticks <= MAX_TIME => Ok(self.now().ceil + ticks),
            _ => Err(Error::invalid(parameter, ticks::shown(ahead), "at most 366 days from now")),
        }
    }

    /// Converts a tick to the system's monotonic clock, in ns, rounded down: never later than the tick itself.
    pub fn to_monotonic_ns(&self, tick: Tick) -> u64 {
        // The monotonic clock is read first: a delay between the two readings makes the result earlier, not later.
        let monotonic = monotonic_ns();
        let now = raw_ns(self.manual.as_ref()).wrapping_sub(self.base());
        let tick = tick.saturating_mul(1_000);
        // That clock has no time before 0.
        if tick >= now { monotonic.saturating_add(tick - now) } else { monotonic.saturating_sub(now - tick) }
    }
}

#[inline(always)]
pub(crate) fn raw_ns(manual: Option<&ManualClock>) -> u64 {
    match manual {
        None => boot_ns(),
        Some(clock) => clock.0.ns.load(Acquire),
    }
}

#[inline(always)]
fn boot_ns() -> u64 {
    let ns = clock_ns(libc::CLOCK_BOOTTIME);
    #[cfg(feature = "fault-points")]
    let ns = off(ns);
    ns
}

/// Returns the time since the machine was started, sleep included, in ticks, rounded down. All processes of the machine
/// read the same, except in other time namespaces.
#[inline(always)]
pub(crate) fn uptime() -> Tick {
    boot_ns() / 1_000
}

/// For how long a test has made this process's clock stand still.
#[cfg(feature = "fault-points")]
pub(crate) static STOOD_STILL_NS: AtomicU64 = AtomicU64::new(0);

/// Returns the boot clock's reading with the drift that a test sets, in parts per million, and without the time for which
/// it made the clock stand still.
#[cfg(feature = "fault-points")]
fn off(ns: u64) -> u64 {
    let ns = ns - STOOD_STILL_NS.load(Relaxed);
    static RATE: std::sync::OnceLock<i64> = std::sync::OnceLock::new();
    let rate = *RATE.get_or_init(|| std::env::var("WGL_TEST_RATE").map_or(0, |text| text.parse().unwrap_or(0)));
    ns.wrapping_add((ns as i128 * i128::from(rate) / 1_000_000) as u64)
}

pub(crate) fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

#[inline(always)]
fn clock_ns(id: libc::clockid_t) -> u64 {
    let mut t = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: `t` is writable memory for the reply, and these clocks exist on every supported system, so it is written.
    let t = unsafe {
        libc::clock_gettime(id, t.as_mut_ptr());
        t.assume_init()
    };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Converts an instant to Unix nanoseconds, as C and the bindings carry it.
pub fn unix_ns(at: SystemTime) -> i64 {
    let ns = |d: Duration| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX);
    match at.duration_since(UNIX_EPOCH) {
        Ok(after) => ns(after),
        Err(before) => -ns(before.duration()),
    }
}

/// Returns the instant of a number of Unix nanoseconds.
pub fn from_unix_ns(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    if ns >= 0 { UNIX_EPOCH + distance } else { UNIX_EPOCH - distance }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_on_the_monotonic_clock_is_never_late() {
        let clock = Clock::new(Clock::fresh_base(None), None);
        let tick = clock.now().floor;
        assert!(clock.to_monotonic_ns(tick) <= monotonic_ns());
        assert_eq!(clock.to_monotonic_ns(1), 0, "a year before");
    }
}
