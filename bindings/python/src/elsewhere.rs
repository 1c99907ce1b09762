//! Threads for what has to wait while an event loop or a hub of greenlets goes on.
//!
//! They are the system's, also where a program's `threading` makes greenlets, and one set for all loops: what waits for a locked
//! store takes up no thread of a loop's own, which others need for looking up names.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use workglow_limit::fork_generation;

/// So many calls wait at a time, each no longer than its store's timeout. The others come after them.
const MOST: usize = 32;

/// A thread that has nothing to do ends after this long.
const IDLE: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;

struct Threads {
    generation: u64,
    jobs: Mutex<Jobs>,
    asked: Condvar,
    rested: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

impl Threads {
    /// Those of this process: a forked child has none of its parent's.
    fn here() -> &'static Threads {
        static HERE: AtomicPtr<Threads> = AtomicPtr::new(ptr::null_mut());
        let generation = fork_generation();
        let found = HERE.load(Ordering::Acquire);
        // SAFETY: null, or made below and never freed.
        if let Some(threads) = unsafe { found.as_ref() }
            && threads.generation == generation
        {
            return threads;
        }
        let made = Threads { generation, jobs: Mutex::default(), asked: Condvar::new(), rested: Condvar::new() };
        let made = Box::into_raw(Box::new(made));
        match HERE.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: it stays. (The parent's is left alone: a lock of it may be taken for ever.)
            Ok(_) => unsafe { &*made },
            // SAFETY: somebody else's is there, and stays; nobody has seen ours.
            Err(other) => unsafe {
                drop(Box::from_raw(made));
                &*other
            },
        }
    }

    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut jobs = self.lock();
        loop {
            if let Some(job) = jobs.waiting.pop_front() {
                drop(jobs);
                // What panics has said so, and others come after it.
                let _ = catch_unwind(AssertUnwindSafe(job));
                jobs = self.lock();
                continue;
            }
            jobs.idle += 1;
            self.rested.notify_all();
            let (again, waited) = self.asked.wait_timeout(jobs, IDLE).unwrap_or_else(PoisonError::into_inner);
            jobs = again;
            jobs.idle -= 1;
            if waited.timed_out() && jobs.waiting.is_empty() {
                jobs.threads -= 1;
                self.rested.notify_all();
                return;
            }
        }
    }
}

/// Runs a job in such a thread.
pub fn send(job: impl FnOnce() + Send + 'static) -> PyResult<()> {
    let here = Threads::here();
    let mut jobs = here.lock();
    jobs.waiting.push_back(Box::new(job));
    if jobs.waiting.len() > jobs.idle && jobs.threads < MOST {
        match thread::Builder::new().name("workglow-limit".to_owned()).spawn(|| here.work()) {
            Ok(_) => jobs.threads += 1,
            // It is done by one of the others; or not at all, if there is none.
            Err(error) if jobs.threads == 0 => {
                let job = jobs.waiting.pop_back();
                drop((jobs, job));
                return Err(PyRuntimeError::new_err(format!(
                    "no thread can be started to wait for the store: {error}"
                )));
            }
            Err(_) => {}
        }
    }
    here.asked.notify_one();
    Ok(())
}

/// Calls a function in such a thread.
#[pyfunction]
pub fn call_elsewhere(function: Py<PyAny>) -> PyResult<()> {
    send(move || {
        Python::try_attach(|py| {
            if let Err(error) = function.call0(py) {
                error.write_unraisable(py, Some(function.bind(py)));
            }
            drop(function);
        });
    })
}

/// At the end of the process: lets them do what was begun, such as giving back a place.
pub fn finish(py: Python<'_>) {
    let here = Threads::here();
    py.detach(|| {
        let end = Instant::now() + IDLE;
        let mut jobs = here.lock();
        while !jobs.waiting.is_empty() || jobs.idle < jobs.threads {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            jobs = here.rested.wait_timeout(jobs, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    });
}
