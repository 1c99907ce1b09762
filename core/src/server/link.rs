//! The connection of a process to a server: opened at its first use, and again when it is lost.
//!
//! One attempt to open it is made at a time, by a thread of its own, because no caller's time need suffice for it. All
//! callers wait for that, each until its own deadline. After a failed attempt there is a pause, which grows. Calls in
//! the pause fail at once, with the same error.

use super::stream::Deadline;
use crate::fork::without_signals;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The least time for an attempt, however short its caller's.
const MIN: Duration = Duration::from_millis(500);

/// The first pause after a failed attempt, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(250)];

/// A connection `C`, whose opening fails with an `E`.
pub(super) struct Link<C, E> {
    state: Mutex<State<C, E>>,
    changed: Condvar,
}

struct State<C, E> {
    open: Option<Arc<C>>,
    is_opening: bool,
    failed: Option<Failed<E>>,
}

struct Failed<E> {
    error: E,
    pause: Duration,
    until: Instant,
}

impl<C, E> Default for Link<C, E> {
    fn default() -> Self {
        let state = State { open: None, is_opening: false, failed: None };
        Link { state: Mutex::new(state), changed: Condvar::new() }
    }
}

/// Why there is no connection.
pub(super) enum Unopened<E> {
    /// The attempt failed.
    Failed(E),
    /// It takes longer than the caller may wait.
    TimedOut,
}

impl<C: Send + Sync + 'static, E: Clone + Send + 'static> Link<C, E> {
    fn lock(&self) -> MutexGuard<'_, State<C, E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the connection, and whether it was open before.
    pub fn get(
        self: &Arc<Self>,
        deadline: Deadline,
        open: impl FnOnce(Deadline) -> Result<C, E> + Send + 'static,
    ) -> Result<(Arc<C>, bool), Unopened<E>> {
        let (mut state, mut open, mut was_open) = (self.lock(), Some(open), true);
        loop {
            if let Some(open) = &state.open {
                return Ok((open.clone(), was_open));
            }
            if !state.is_opening {
                // The attempt that this caller has waited for, or an earlier one.
                let failed = state.failed.as_ref().filter(|failed| !was_open || failed.until > Instant::now());
                if let Some(failed) = failed {
                    return Err(Unopened::Failed(failed.error.clone()));
                }
                // Without an attempt left, its connection was given up since.
                let Some(open) = open.take() else { return Err(Unopened::TimedOut) };
                state.is_opening = true;
                drop(state);
                self.begin(deadline, open);
                state = self.lock();
            }
            was_open = false;
            while state.is_opening {
                let left = deadline.left();
                if left.is_zero() {
                    return Err(Unopened::TimedOut);
                }
                state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    fn begin(self: &Arc<Self>, deadline: Deadline, open: impl FnOnce(Deadline) -> Result<C, E> + Send + 'static) {
        // The thread takes it, or else this one.
        let (open, link) = (Arc::new(Mutex::new(Some(open))), self.clone());
        let there = open.clone();
        let attempt = move |deadline: Deadline| {
            let taken = there.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(open) = taken {
                let _ends = Attempt(&link);
                let opened = open(deadline);
                link.opened(opened);
            }
        };
        let (here, least) = (attempt.clone(), Deadline::after(deadline.left().max(MIN)));
        let thread = std::thread::Builder::new().name("workglow-limit".into());
        if without_signals(|| thread.spawn(move || attempt(least))).is_err() {
            here(deadline);
        }
    }

    fn opened(&self, opened: Result<C, E>) {
        let mut state = self.lock();
        match opened {
            Ok(open) => (state.open, state.failed) = (Some(Arc::new(open)), None),
            Err(error) => {
                let [first, longest] = PAUSES;
                let pause = state.failed.as_ref().map_or(first, |before| (before.pause * 2).min(longest));
                state.failed = Some(Failed { error, pause, until: Instant::now() + pause });
            }
        }
    }

    /// Gives up a connection, unless another one has taken its place.
    pub fn give_up(&self, given_up: &Arc<C>) {
        let mut state = self.lock();
        if state.open.as_ref().is_some_and(|open| Arc::ptr_eq(open, given_up)) {
            state.open = None;
        }
    }
}

/// An attempt that ends when this is dropped, also by a panic.
struct Attempt<'a, C: Send + Sync + 'static, E: Clone + Send + 'static>(&'a Link<C, E>);

impl<C: Send + Sync + 'static, E: Clone + Send + 'static> Drop for Attempt<'_, C, E> {
    fn drop(&mut self) {
        self.0.lock().is_opening = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// A refused connection once cost an attempt per call: 2,470 in 4 s.
    #[test]
    fn attempts_are_made_one_at_a_time_and_ever_less_often() {
        let (link, attempts, now) =
            (Arc::new(Link::<(), u64>::default()), Arc::new(AtomicU64::new(0)), AtomicU64::new(0));
        let began = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        let attempts = attempts.clone();
                        let got = link.get(Deadline::after(Duration::from_secs(600)), move |_| {
                            Err(attempts.fetch_add(1, Relaxed) + 1)
                        });
                        assert!(matches!(got, Err(Unopened::Failed(1..))));
                        now.fetch_add(1, Relaxed);
                        std::thread::sleep(Duration::from_micros(200));
                    }
                });
            }
        });
        assert_eq!(now.into_inner(), 4_000);
        let [first, longest] = PAUSES;
        let growing = (longest.as_millis() / first.as_millis()).ilog2() as u64 + 2;
        let most = growing + (began.elapsed().as_millis() / longest.as_millis()) as u64;
        let made = attempts.load(Relaxed);
        assert!(made > 1 && made <= most, "{made} attempts, of at most {most}");
        // Once it is there, it serves all.
        std::thread::sleep(longest);
        let open = |_| Ok(());
        assert!(link.get(Deadline::after(Duration::from_secs(600)), open).is_ok_and(|(_, was_open)| !was_open));
        assert!(link.get(Deadline::after(Duration::ZERO), open).is_ok_and(|(_, was_open)| was_open));
    }
}
