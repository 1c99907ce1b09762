//! Named points inside a decision at which a test can stop or kill the process, to show that no other process waits for
//! it.
//!
//! They exist only with the feature `fault-points`. What happens there is the business of the crate above: see `PASS`.

/// What each point calls with its name, once a test has set it.
#[cfg(feature = "fault-points")]
pub static PASS: std::sync::OnceLock<fn(&'static str)> = std::sync::OnceLock::new();

/// Passes a point.
#[inline(always)]
pub(crate) fn point(_name: &'static str) {
    #[cfg(feature = "fault-points")]
    if let Some(pass) = PASS.get() {
        pass(_name);
    }
}

#[cfg(feature = "fault-points")]
thread_local! {
    static SURVEYS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts a survey of the heads of lines.
#[inline(always)]
pub(crate) fn surveyed() {
    #[cfg(feature = "fault-points")]
    SURVEYS.set(SURVEYS.get() + 1);
}

/// Returns how many this thread has made.
#[cfg(feature = "fault-points")]
pub fn surveys() -> u64 {
    SURVEYS.get()
}
