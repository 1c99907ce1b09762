//! Waits for limits that are not open yet, while a process is stopped under the store's lock: a caller's timeout covers opening.

use crate::common::tasks::Tasks;
use crate::common::{Child, Dir, raise, wait_until};
use std::sync::Arc;
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use workglow_limit::embed::{Joined, Line, Outcome, Waiter, acquire};
use workglow_limit::*;

const SOON: Option<Duration> = Some(Duration::from_millis(80));

/// How many wait at once.
const WAITERS: usize = 3;

/// A store whose own timeout does not end in a test, and a process that is stopped under its lock.
struct Stopped {
    _process: Child,
    store: Store,
    _dir: Dir,
}

impl Stopped {
    fn new(name: &str) -> Stopped {
        let (dir, mut options) = (Dir::new(name), StoreOptions::default());
        options.timeout = Duration::from_secs(3_600);
        let store = Store::with_options(&dir.url(), options).unwrap();
        store.limiter("api", "1/1h").unwrap().open().unwrap();
        let process = Child::run(|| {
            fault::at("deciding", || raise(libc::SIGSTOP));
            store.override_limit("api", "2/1h", None).unwrap();
        });
        process.wait_until_stopped();
        Stopped { _process: process, store, _dir: dir }
    }

    /// A limiter of each kind, none of which is open yet.
    fn limiters(&self) -> Vec<Arc<dyn Limiter>> {
        let limiter = |(name, policy)| self.store.limiter(name, policy).unwrap();
        let mut all: Vec<Arc<dyn Limiter>> = [
            ("rate", "1/1h"),
            ("bucket", "1/1h burst 1"),
            ("queue", "1/1h queue 3"),
            ("fixed", "1/1h fixed"),
            ("tenants", "1/1h shared"),
            ("jobs", "1 concurrent"),
            ("jobs of tenants", "1 concurrent shared"),
            ("parts", "requests: 1/1h + 1 concurrent"),
        ]
        .map(limiter)
        .into();
        all.push(Arc::new(FirstOfLimiter::new([limiter(("first", "1/1h")), limiter(("second", "1 concurrent"))])));
        all
    }
}

/// Waits for the outcomes of `WAITERS` waiters.
fn outcomes<R>(what: &str, waits: JoinHandle<Vec<R>>) -> Vec<R> {
    wait_until(what, || waits.is_finished());
    waits.join().unwrap()
}

/// Counting that one was sent away took the store's whole timeout in addition.
#[test]
fn a_timeout_of_a_thread_covers_opening_its_limit() {
    let stopped = Stopped::new("opening-in-threads");
    for limiter in stopped.limiters() {
        let what = format!("the time of threads is up: {}", limiter.name());
        let waits = thread::spawn(move || {
            let wait = || acquire(&*limiter, Waiter::new("", 1).timeout(SOON));
            thread::scope(|scope| [(); WAITERS].map(|()| scope.spawn(wait)).map(|wait| wait.join().unwrap()).into())
        });
        for outcome in outcomes(&what, waits) {
            assert!(matches!(outcome, Ok(Attempt::Denied(_))), "{what}: {outcome:?}");
        }
    }
}

/// A look at the limit's window opened it first, and so did one at how long a waiter that was sent away would have waited.
#[test]
fn a_timeout_in_an_event_loop_covers_opening_its_limit() {
    let stopped = Stopped::new("opening-in-a-loop");
    for limiter in stopped.limiters() {
        let what = format!("the time in a loop is up: {}", limiter.name());
        // The thread of the loop that may wait.
        let waits = thread::spawn(move || {
            let (mut line, mut over) = (Line::new(limiter), Vec::new());
            for _ in 0..WAITERS {
                if let Joined::Done(outcome) = line.join(Waiter::new("", 1).timeout(SOON)).unwrap() {
                    over.push((0, outcome));
                }
            }
            while over.len() < WAITERS {
                line.advance(&mut over);
            }
            over
        });
        for (_, outcome) in outcomes(&what, waits) {
            assert!(matches!(outcome, Outcome::Expired(_)), "{what}: {outcome:?}");
        }
    }
}

#[test]
fn a_timeout_of_a_future_covers_opening_its_limit() {
    let stopped = Stopped::new("opening-for-futures");
    for limiter in stopped.limiters() {
        let mut tasks = Tasks::default();
        (0..WAITERS).for_each(|_| tasks.wait(limiter.acquire_async("", 1, SOON)));
        tasks.wait_until_woken(WAITERS);
        for number in 0..WAITERS {
            let polled = tasks.poll(number);
            assert!(matches!(polled, Poll::Ready(Ok(None))), "{}: {polled:?}", limiter.name());
        }
    }
}
