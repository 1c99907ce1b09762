//! Named points inside a decision at which a test can stop or kill the process, to show that nobody waits for it.
//!
//! They exist only with the feature `fault-points`, and do nothing until `at` is called. And bugs that can be planted, and a
//! count of what is looked at while the structure lock is held, since a test cannot tell a long time from a busy machine.

#[cfg(all(feature = "fault-points", not(model)))]
mod on {
    use std::cell::Cell;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

    type Action = Box<dyn FnOnce() + Send>;
    static ARMED: Mutex<Option<(String, Action)>> = Mutex::new(None);
    /// Is anything armed? Else the mutex is not touched: a child could inherit it locked.
    static IS_ARMED: AtomicBool = AtomicBool::new(false);

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

    /// The points of finding a key that lives by a policy of its own.
    const FINDING: &[&str] = &["entry-read"];

    /// The points of rewriting a key, or all of a limit, under the structure lock.
    pub const REWRITING: &[&str] = &["key-sealed", "key-written", "table-written", "table-published", "keys-moved"];

    /// The points of writing a segment of an index anew.
    pub const GROWING: &[&str] = &["segment-written"];

    /// The points of a lease's life.
    pub const LEASING: &[&str] = &["lease-claimed", "lease-offered", "lease-taken", "lease-ending", "lease-returned"];

    /// The points of a change of policies, and of giving a limit another name.
    const CHANGING: &[&str] = &["deciding", "decided", "half-named", "followed", "gathered", "rows-moved"];

    fn is_listed(point: &str) -> bool {
        [DECIDING, FINDING, REWRITING, GROWING, LEASING, CHANGING].iter().any(|points| points.contains(&point))
    }

    /// Whoever in this process passes `point` next does `action`, once.
    pub fn at(point: &str, action: impl FnOnce() + Send + 'static) {
        assert!(is_listed(point), "no point named {point}: {DECIDING:?}, {REWRITING:?}, {LEASING:?}, {CHANGING:?}");
        *ARMED.lock().unwrap() = Some((point.to_owned(), Box::new(action)));
        IS_ARMED.store(true, Release);
    }

    pub(crate) fn pass(point: &str) {
        debug_assert!(is_listed(point), "{point} is not listed");
        if !IS_ARMED.load(Acquire) {
            return;
        }
        let armed = ARMED.lock().unwrap().take_if(|(name, _)| name == point);
        if let Some((_, action)) = armed {
            action();
        }
    }

    thread_local! {
        static LOOKS: Cell<u64> = const { Cell::new(0) };
    }
    static MOST: AtomicU64 = AtomicU64::new(0);

    /// One more key was come across.
    pub(crate) fn looked() {
        LOOKS.set(LOOKS.get() + 1);
    }

    /// The structure lock was taken, or is let go of.
    pub(crate) fn held() {
        MOST.fetch_max(LOOKS.take(), Relaxed);
    }

    /// How many keys this process has come across at most while it held the structure lock once, since this was asked last.
    pub fn most_looked_at() -> u64 {
        MOST.swap(0, Relaxed)
    }
}

#[cfg(all(feature = "fault-points", not(model)))]
pub use on::{DECIDING, GROWING, LEASING, REWRITING, at, most_looked_at};

/// Is this bug planted? Only ever in builds for tests, to show that they find it. `PLANT` names it.
#[cfg(any(model, feature = "fault-points"))]
pub(crate) fn planted(bug: &str) -> bool {
    static PLANTED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    PLANTED.get_or_init(|| std::env::var("PLANT").ok()).as_deref() == Some(bug)
}

/// Is this bug planted? Not here.
#[cfg(not(any(model, feature = "fault-points")))]
#[inline(always)]
pub(crate) const fn planted(_: &str) -> bool {
    false
}

/// What a test calls its machine, so that one machine can be several.
pub(crate) fn site() -> String {
    #[cfg(feature = "fault-points")]
    return std::env::var("WGL_TEST_SITE").unwrap_or_default();
    #[cfg(not(feature = "fault-points"))]
    String::new()
}

/// How many milliseconds a lease on a server holds that has no end of its own, if a test says so.
pub(crate) fn lease_ms() -> Option<u64> {
    #[cfg(feature = "fault-points")]
    return std::env::var("WGL_TEST_LEASE_MS").ok()?.parse().ok();
    #[cfg(not(feature = "fault-points"))]
    None
}

/// Passes a point.
#[inline(always)]
pub(crate) fn point(_name: &'static str) {
    #[cfg(all(feature = "fault-points", not(model)))]
    on::pass(_name);
}

/// Counts a key that is come across in a walk over many.
#[inline(always)]
pub(crate) fn looked() {
    #[cfg(all(feature = "fault-points", not(model)))]
    on::looked();
}

/// The structure lock was taken, or is let go of.
#[inline(always)]
pub(crate) fn held() {
    #[cfg(all(feature = "fault-points", not(model)))]
    on::held();
}
