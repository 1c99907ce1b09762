//! Named points inside a decision at which a test can stop or kill the process, to show that no other process waits for
//! it.
//!
//! They exist only with the feature `fault-points`, and do nothing until `at` is called. This module also plants bugs
//! for tests, and counts the keys visited while the structure lock is held: a test cannot distinguish a long time from
//! a busy machine.

#[cfg(feature = "fault-points")]
mod on {
    use crate::algorithm::fault as algorithm;
    use std::cell::Cell;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};

    type Action = Box<dyn FnOnce() + Send>;
    static ARMED: Mutex<Option<Action>> = Mutex::new(None);
    /// The armed point: one more than its place in the list, or 0. Only a thread that is there takes the mutex, since a
    /// forked child could inherit it locked.
    static POINT: AtomicUsize = AtomicUsize::new(0);

    /// The points, in the order in which a first decision on a new key passes them.
    pub const DECIDING: &[&str] = &[
        "resolved",
        "key-allocated",
        "key-inserted",
        "log-read",
        "log-clock",
        "log-claimed",
        "log-filled",
        "log-moved",
    ];

    /// The points of finding a key that has its own policy.
    const FINDING: &[&str] = &["entry-read"];

    /// The points of rewriting a key, or a whole limit, under the structure lock.
    pub const REWRITING: &[&str] = &["key-sealed", "key-written", "table-written", "table-published", "keys-moved"];

    /// The points of rewriting a segment of an index.
    pub const GROWING: &[&str] = &["segment-written"];

    /// The point of each step of a search for idle keys.
    const SEARCHING: &[&str] = &["sweeping"];

    /// The points in the life of a lease.
    pub const LEASING: &[&str] =
        &["lease-claimed", "lease-offered", "lease-taken", "lease-cooling", "lease-ending", "lease-returned"];

    /// The points of showing the head of a line, and of removing a dead one.
    pub const SHOWING: &[&str] = &["head-taken", "head-reached", "head-hidden", "head-removed"];
    /// The points of a charge to a tenant.
    pub const CHARGING: &[&str] = &["start-uncharged", "tenant-taken", "tenant-charged"];

    /// The points of changing policies and of renaming a limit.
    const CHANGING: &[&str] = &[
        "deciding",
        "decided",
        "noting",
        "renumbering",
        "rows-renumbered",
        "rows-written",
        "followed",
        "keeping",
        "gathered",
        "lock-left",
    ];

    /// The points of making a lane, and of its first process that does not commit its starts.
    const RECOVERING: &[&str] = &[
        "upgrading",
        "identity-read",
        "lane-claimed",
        "lane-indexed",
        "lane-filled",
        "record-deleted",
        "key-read",
        "rows-read",
        "rows-restored",
    ];

    fn points() -> impl Iterator<Item = &'static str> {
        [DECIDING, FINDING, REWRITING, GROWING, SEARCHING, LEASING, SHOWING, CHARGING, CHANGING, RECOVERING]
            .into_iter()
            .flatten()
            .copied()
    }

    /// Runs `action` once, when any thread of this process next passes `point`.
    pub fn at(point: &str, action: impl FnOnce() + Send + 'static) {
        let Some(place) = points().position(|listed| listed == point) else {
            panic!("no point named {point}: {:?}", points().collect::<Vec<_>>());
        };
        algorithm::PASS.get_or_init(|| pass);
        let mut armed = ARMED.lock().unwrap();
        *armed = Some(Box::new(action));
        POINT.store(place + 1, Release);
    }

    pub(crate) fn pass(point: &str) {
        debug_assert!(points().any(|listed| listed == point), "{point} is not listed");
        let is_armed = || match POINT.load(Acquire) {
            0 => false,
            place => points().nth(place - 1) == Some(point),
        };
        if !is_armed() {
            return;
        }
        let mut armed = ARMED.lock().unwrap();
        // Another thread may have taken it, or armed another point.
        let action = is_armed().then(|| armed.take()).flatten();
        if action.is_some() {
            POINT.store(0, Release);
        }
        drop(armed);
        if let Some(action) = action {
            action();
        }
    }

    static IN_SMALL_STEPS: AtomicBool = AtomicBool::new(false);

    /// Makes this process hold the structure lock for as little of a change of many keys as it can, or as long as usual.
    pub fn in_small_steps(small: bool) {
        IN_SMALL_STEPS.store(small, Release);
    }

    pub(crate) fn takes_small_steps() -> bool {
        IN_SMALL_STEPS.load(Acquire)
    }

    static RESTORED_AT_ONCE: AtomicU64 = AtomicU64::new(super::RESTORED_AT_ONCE);
    static LEAVES_KEYS: AtomicBool = AtomicBool::new(false);

    /// Makes this process restore at most so many starts at once when it rebuilds a lane, and leave the other keys to
    /// their first use, or not.
    pub fn restore_at_once(most: u64, leaves_others: bool) {
        RESTORED_AT_ONCE.store(most, Release);
        LEAVES_KEYS.store(leaves_others, Release);
    }

    pub(crate) fn most_restored_at_once() -> u64 {
        RESTORED_AT_ONCE.load(Acquire)
    }

    pub(crate) fn leaves_keys() -> bool {
        LEAVES_KEYS.load(Acquire)
    }

    thread_local! {
        static LOOKS: Cell<u64> = const { Cell::new(0) };
    }
    static MAX: AtomicU64 = AtomicU64::new(0);

    /// Counts a visited key.
    pub(crate) fn looked() {
        LOOKS.set(LOOKS.get() + 1);
    }

    /// Marks that the structure lock was taken or released.
    pub(crate) fn held() {
        MAX.fetch_max(LOOKS.take(), Relaxed);
    }

    /// Returns the most keys that this process visited under one hold of the structure lock, since the previous call.
    pub fn most_looked_at() -> u64 {
        MAX.swap(0, Relaxed)
    }
}

#[cfg(feature = "fault-points")]
pub use crate::algorithm::fault::surveys;
#[cfg(feature = "fault-points")]
pub use on::{DECIDING, GROWING, LEASING, REWRITING, SHOWING, at, in_small_steps, most_looked_at, restore_at_once};

/// A lane that is rebuilt from more starts than these is used before all of them are restored.
const RESTORED_AT_ONCE: u64 = 10_000;

/// Returns how many starts are restored at once when a lane is rebuilt.
pub(crate) fn most_restored_at_once() -> u64 {
    #[cfg(feature = "fault-points")]
    return on::most_restored_at_once();
    #[cfg(not(feature = "fault-points"))]
    RESTORED_AT_ONCE
}

/// Returns whether the ledger's writer leaves keys to their first use.
pub(crate) fn leaves_keys() -> bool {
    #[cfg(feature = "fault-points")]
    return on::leaves_keys();
    #[cfg(not(feature = "fault-points"))]
    false
}

/// Returns whether this bug is planted. Only in test builds, to show that the tests find it. `PLANT` names the bug.
#[cfg(feature = "fault-points")]
pub(crate) fn planted(bug: &str) -> bool {
    static PLANTED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    PLANTED.get_or_init(|| std::env::var("PLANT").ok()).as_deref() == Some(bug)
}

/// Returns whether this bug is planted: never in this build.
#[cfg(not(feature = "fault-points"))]
#[inline(always)]
pub(crate) const fn planted(_: &str) -> bool {
    false
}

/// The name that a test gives its machine, so that one machine can act as several.
pub(crate) fn site() -> String {
    #[cfg(feature = "fault-points")]
    return std::env::var("WGL_TEST_SITE").unwrap_or_default();
    #[cfg(not(feature = "fault-points"))]
    String::new()
}

/// Makes the clocks of this process stand still for this long, as if its machine had been paused.
#[cfg(feature = "fault-points")]
pub fn stand_still(length: std::time::Duration) {
    crate::time::STOOD_STILL_NS.fetch_add(length.as_nanos() as u64, std::sync::atomic::Ordering::Relaxed);
}

/// The duration of a lease on a server that has no end of its own, in milliseconds, if a test sets it.
pub(crate) fn lease_ms() -> Option<u64> {
    #[cfg(feature = "fault-points")]
    return std::env::var("WGL_TEST_LEASE_MS").ok()?.parse().ok();
    #[cfg(not(feature = "fault-points"))]
    None
}

/// Returns whether a change of many keys leaves the structure lock as often as it can.
#[inline(always)]
pub(crate) fn takes_small_steps() -> bool {
    #[cfg(feature = "fault-points")]
    return on::takes_small_steps();
    #[cfg(not(feature = "fault-points"))]
    false
}

/// Passes a point.
#[inline(always)]
pub(crate) fn point(_name: &'static str) {
    #[cfg(feature = "fault-points")]
    on::pass(_name);
}

/// Counts a key that is visited in a walk over many.
#[inline(always)]
pub(crate) fn looked() {
    #[cfg(feature = "fault-points")]
    on::looked();
}

/// Marks that the structure lock was taken or released.
#[inline(always)]
pub(crate) fn held() {
    #[cfg(feature = "fault-points")]
    on::held();
}
