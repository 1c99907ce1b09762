//! Starts of shared limiters: permits that move into threads and tasks, and futures that need no runtime.

use crate::common::tasks::{Tasks, permit};
use crate::common::{Child, Dir, wait_until};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;
use workglow_limit::custom::{Custom, CustomLimiter, End, Verdict};
use workglow_limit::hooks::{Event, Happening};
use workglow_limit::*;

const HOUR: Option<Duration> = Some(Duration::from_secs(3_600));

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let (mut future, waker) = (pin!(future), Waker::from(Arc::new(Unpark(thread::current()))));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

/// Denies once, and panics then.
#[derive(Default)]
struct Panicking(AtomicBool);

impl Custom for Panicking {
    fn name(&self) -> &str {
        "mine"
    }

    fn decide(&self, _: &str, _: u64) -> Result<Verdict> {
        assert!(!self.0.swap(true, Relaxed), "a bug of its own");
        Ok(Verdict::Denied(Duration::from_millis(1)))
    }

    fn peek(&self, key: &str, weight: u64) -> Result<Verdict> {
        self.decide(key, weight)
    }

    fn end(&self, _: u64, _: End) -> Result<()> {
        Ok(())
    }
}

/// The future never ended.
#[test]
fn a_limiter_that_panics_ends_its_waits() {
    let limiter: Arc<dyn Limiter> = Arc::new(CustomLimiter::new(Panicking::default()).unwrap());
    let error = block_on(limiter.acquire_async("", 1, None)).unwrap_err();
    assert!(matches!(&error, Error::Custom { limit, .. } if limit == "mine"), "{error}");
}

/// The waiter was lost, and with it the slot that it got later.
#[test]
fn a_hook_that_panics_ends_no_wait() {
    let store = Store::new("memory:").unwrap();
    let is_called = Arc::new(AtomicBool::new(false));
    let called = is_called.clone();
    let hook = move |_: &Event| {
        called.store(true, Relaxed);
        panic!("a bug of its own")
    };
    store.on(Happening::Throttled, Arc::new(hook));
    let limiter = store.limiter("api", "1 concurrent").unwrap();
    let held = limiter.try_acquire("", 1).unwrap().unwrap();
    let mut tasks = Tasks::default();
    tasks.wait(limiter.acquire_async("", 1, HOUR));
    wait_until("the waiter is reported", || is_called.load(Relaxed));
    held.complete().unwrap();
    tasks.wait_until_woken(1);
    assert!(matches!(tasks.poll(0), Poll::Ready(Ok(Some(_)))));
}

/// Its call returned `WouldWait`, because the thread that serves all tasks does not wait.
#[test]
fn a_hook_of_a_wait_may_use_limiters() {
    let dir = Dir::in_memory("futures-hook");
    // The first use has to declare the limit in the database.
    let other = Store::new(&dir.url()).unwrap().limiter("other", "5/1h").unwrap();
    let limiter = limiter("1 concurrent");
    let answers = Arc::new(Mutex::new(Vec::new()));
    let heard = answers.clone();
    let hook = move |_: &Event| heard.lock().unwrap().push(other.attempt("", 1));
    limiter.on(Happening::Throttled, Arc::new(hook));
    let _held = limiter.try_acquire("", 1).unwrap().unwrap();
    let mut tasks = Tasks::default();
    tasks.wait(limiter.acquire_async("", 1, HOUR));
    wait_until("the waiter is reported", || !answers.lock().unwrap().is_empty());
    assert!(matches!(answers.lock().unwrap()[0], Ok(Attempt::Admitted(_))));
}

/// The thread that serves all tasks waited for the store in which one of them joined a line.
#[test]
fn a_store_that_hangs_delays_no_task_of_another() {
    let dir = Dir::in_memory("futures-hang");
    let mut options = StoreOptions::default();
    options.timeout = HOUR.unwrap();
    let store = Store::with_options(&dir.url(), options).unwrap();
    store.open().unwrap();
    let stranger = rusqlite::Connection::open(dir.file("limits.db")).unwrap();
    stranger.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let (stuck, other) = (store.limiter("stuck", "1 concurrent").unwrap(), limiter("1 concurrent"));
    let held = other.try_acquire("", 1).unwrap().unwrap();
    let mut tasks = Tasks::default();
    // The first use has to declare the limit in the database.
    (0..3).for_each(|_| tasks.wait(stuck.acquire_async("", 1, None)));
    tasks.wait(other.acquire_async("", 1, None));
    tasks.futures[1] = None;
    drop(held);
    assert_eq!(tasks.wait_until_woken(1), [3]);
    drop(stranger);
    assert_eq!(tasks.wait_until_woken(2), [3, 0]);
    drop(permit(tasks.poll(0)));
    assert_eq!(tasks.wait_until_woken(3), [3, 0, 2]);
}

/// Admits once all of its kind are asked at the same time, each in a thread that may wait.
struct Together(Arc<Barrier>);

impl Custom for Together {
    fn name(&self) -> &str {
        "together"
    }

    fn decide(&self, _: &str, _: u64) -> Result<Verdict> {
        if thread::current().name() != Some("workglow-limit") {
            return Err(Error::WouldWait);
        }
        self.0.wait();
        Ok(Verdict::Admitted(0))
    }

    fn peek(&self, _: &str, _: u64) -> Result<Verdict> {
        Ok(Verdict::Admitted(0))
    }

    fn end(&self, _: u64, _: End) -> Result<()> {
        Ok(())
    }
}

/// The threads that wait for stores were shared, so stores that hung kept them from other limits.
#[test]
fn any_number_of_limits_wait_side_by_side() {
    let barrier = Arc::new(Barrier::new(40));
    let mut tasks = Tasks::default();
    for _ in 0..40 {
        let limiter: Arc<dyn Limiter> = Arc::new(CustomLimiter::new(Together(barrier.clone())).unwrap());
        tasks.wait(limiter.acquire_async("", 1, None));
    }
    tasks.wait_until_woken(40);
    (0..40).for_each(|i| drop(permit(tasks.poll(i))));
}

fn limiter(policy: &str) -> Arc<dyn Limiter> {
    Store::new("memory:").unwrap().limiter("api", policy).unwrap()
}

#[test]
fn a_permit_of_a_shared_limiter_moves_into_a_thread() {
    let limiter = limiter("1 concurrent");
    let permit = limiter.try_acquire("tenant", 1).unwrap().unwrap();
    assert!(limiter.try_acquire("tenant", 1).unwrap().is_none());
    assert!(limiter.acquire("tenant", 1, Some(Duration::ZERO)).unwrap().is_none());
    thread::spawn(move || permit.complete()).join().unwrap().unwrap();
    let permit = limiter.acquire("tenant", 1, None).unwrap().unwrap();
    drop(limiter); // The permit keeps it.
    permit.complete().unwrap();
}

#[test]
fn futures_start_in_the_order_of_their_first_polls() {
    for policy in ["1 concurrent", "1/1s", "1 concurrent + 1/1s"] {
        let clock = ManualClock::new();
        let mut options = StoreOptions::default();
        options.clock = Some(clock.clone());
        let limiter = Store::with_options("memory:", options).unwrap().limiter("api", policy).unwrap();
        let first = limiter.try_acquire("", 1).unwrap().unwrap();
        let mut tasks = Tasks::default();
        (0..40).for_each(|_| tasks.wait(limiter.acquire_async("", 1, None)));
        drop(first);
        for number in 0..40 {
            clock.advance(Duration::from_secs(1));
            tasks.wait_until_woken(number + 1);
            permit(tasks.poll(number)).complete().unwrap();
        }
        assert!(tasks.wait_until_woken(40).into_iter().eq(0..40), "{policy}");
    }
}

#[test]
fn a_dropped_future_gives_its_place_to_the_next() {
    let limiter = limiter("1 concurrent");
    let first = limiter.try_acquire("", 1).unwrap().unwrap();
    let mut tasks = Tasks::default();
    (0..3).for_each(|_| tasks.wait(limiter.acquire_async("", 1, None)));
    tasks.futures[0] = None;
    drop(first);
    assert_eq!(tasks.wait_until_woken(1), [1]);
    // It has started, and nobody has asked for its permit.
    tasks.futures[1] = None;
    assert_eq!(tasks.wait_until_woken(2), [1, 2]);
    drop(permit(tasks.poll(2)));
    wait_until("the slot is free", || limiter.peek("", 1).unwrap().admitted);
}

#[test]
fn a_future_that_cannot_start_in_time_ends_without_a_permit() {
    for policy in ["1/1h", "1 concurrent"] {
        let limiter = limiter(policy);
        let held = block_on(limiter.acquire_async("", 1, None)).unwrap().unwrap();
        for timeout in [Duration::ZERO, Duration::from_millis(20)] {
            assert!(block_on(limiter.acquire_async("", 1, Some(timeout))).unwrap().is_none(), "{policy}");
        }
        assert!(block_on(limiter.acquire_async("other", 1, HOUR)).unwrap().is_some());
        drop(held);
    }
}

#[test]
fn a_future_returns_the_errors_of_an_attempt() {
    for policy in ["2/1h", "2/1h + 5 concurrent"] {
        let limiter = limiter(policy);
        let failed = |key: &str, weight| block_on(limiter.acquire_async(key, weight, HOUR)).unwrap_err();
        assert_eq!(failed("", 3), limiter.attempt("", 3).unwrap_err());
        assert_eq!(failed("", 0), limiter.attempt("", 0).unwrap_err());
        let long = "k".repeat(1_025);
        assert_eq!(failed(&long, 1), limiter.attempt(&long, 1).unwrap_err());
    }
}

#[test]
fn one_thread_wakes_the_tasks_of_all_limiters() {
    let limiters: Vec<_> = (0..20).map(|_| limiter("1 concurrent")).collect();
    let held: Vec<_> = limiters.iter().map(|limiter| limiter.try_acquire("", 1).unwrap().unwrap()).collect();
    let mut tasks = Tasks::default();
    limiters.iter().for_each(|limiter| tasks.wait(limiter.acquire_async("", 1, HOUR)));
    let name = |task: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.unwrap().path().join("comm"));
    let names = || std::fs::read_dir("/proc/self/task").unwrap().filter_map(|task| name(task).ok());
    // A thread names itself when it runs.
    wait_until("one is named", || names().filter(|name| name == "workglow-wakes\n").count() == 1);
    drop(held);
    tasks.wait_until_woken(20);
    (0..20).for_each(|number| drop(permit(tasks.poll(number))));
}

#[test]
fn threads_of_a_runtime_never_exceed_the_limit() {
    let limiter = limiter("3 concurrent");
    let running = Arc::new(Mutex::new(0));
    let threads = (0..8).map(|_| {
        let (limiter, running) = (limiter.clone(), running.clone());
        thread::spawn(move || {
            for _ in 0..50 {
                let permit = block_on(limiter.acquire_async("", 1, HOUR)).unwrap().unwrap();
                let count = |by: i32| {
                    let mut running = running.lock().unwrap();
                    *running += by;
                    *running
                };
                assert!(count(1) <= 3);
                thread::yield_now();
                count(-1);
                drop(permit);
            }
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_forked_child_has_a_thread_of_its_own() {
    let dir = Dir::in_memory("futures-fork");
    let limiter = Store::new(&dir.url()).unwrap().limiter("api", "1 concurrent").unwrap();
    let held = limiter.try_acquire("", 1).unwrap().unwrap();
    let mut tasks = Tasks::default();
    tasks.wait(limiter.acquire_async("", 1, None));
    Child::run(|| {
        let other = limiter.try_acquire("other", 1).unwrap().unwrap();
        // The parent's future waits for itself here, and gives nothing of the parent's back.
        assert!(tasks.poll(0).is_pending());
        tasks.futures[0] = None;
        let mut tasks = Tasks::default();
        tasks.wait(limiter.acquire_async("other", 1, None));
        drop(other);
        tasks.wait_until_woken(1);
        drop(permit(tasks.poll(0)));
    })
    .join();
    drop(held);
    tasks.wait_until_woken(1);
    drop(permit(tasks.poll(0)));
}

#[test]
fn a_task_whose_waker_panics_stops_no_other() {
    struct Broken;
    impl Wake for Broken {
        fn wake(self: Arc<Self>) {
            std::panic::resume_unwind(Box::new("a broken runtime"));
        }
    }
    let limiter = limiter("1 concurrent");
    let held = limiter.try_acquire("", 1).unwrap().unwrap();
    let mut broken = limiter.acquire_async("", 1, None);
    assert!(Pin::new(&mut broken).poll(&mut Context::from_waker(&Waker::from(Arc::new(Broken)))).is_pending());
    let mut tasks = Tasks::default();
    tasks.wait(limiter.acquire_async("", 1, None));
    drop(held);
    wait_until("the first one has started", || limiter.stats("").unwrap().admitted >= 2);
    drop(broken);
    tasks.wait_until_woken(1);
    drop(permit(tasks.poll(0)));
}

/// Requests of a service behind a layer.
#[cfg(feature = "tower")]
mod layer {
    use super::*;
    use std::convert::Infallible;
    use std::future::{Ready, ready};
    use tower::{Denied, LimitLayer};
    use tower_layer::Layer;
    use tower_service::Service;

    /// Answers with the request.
    #[derive(Clone)]
    struct Echo;

    impl Service<&'static str> for Echo {
        type Response = &'static str;
        type Error = Infallible;
        type Future = Ready<Result<&'static str, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: &'static str) -> Self::Future {
            ready(Ok(request))
        }
    }

    #[test]
    fn a_request_starts_as_the_limiter_allows_and_ends_its_start() {
        let limiter = limiter("1 concurrent");
        let mut service = LimitLayer::new(limiter.clone()).layer(Echo);
        assert_eq!(block_on(service.call("one")).unwrap(), "one");
        let held = limiter.try_acquire("", 1).unwrap().unwrap();
        let waiting = service.call("two");
        let answer = thread::spawn(|| block_on(waiting).unwrap());
        wait_until("it waits", || limiter.stats("").unwrap().admitted == 2 && !limiter.peek("", 1).unwrap().admitted);
        drop(held);
        assert_eq!(answer.join().unwrap(), "two");
        drop(service.call("never polled"));
        assert!(limiter.try_acquire("", 1).unwrap().is_some());
    }

    #[test]
    fn a_request_that_cannot_start_in_time_is_denied_under_its_key() {
        let limiter = limiter("1/1h");
        let layer = LimitLayer::new(limiter).timeout(Some(Duration::from_secs(1)));
        let mut service = layer.key(|request: &&str| (*request).to_owned()).layer(Echo);
        assert_eq!(block_on(service.call("a")).unwrap(), "a");
        assert_eq!(block_on(service.call("b")).unwrap(), "b");
        let error = block_on(service.call("a")).unwrap_err();
        let denied = error.downcast_ref::<Denied>().unwrap();
        assert_eq!(denied.limit, "api");
        assert!(denied.retry_after > Duration::from_secs(3_000), "{denied}");
    }
}
