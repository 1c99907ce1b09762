//! Threads that wait for stores, so that event loops and hubs of greenlets do not.
//!
//! They are system threads, even where `threading` makes greenlets. All loops share them. A call that waits for a locked store uses
//! no thread of a loop's own executor, which the program needs for name lookups, and does not block the calls of other stores.

use crate::async_call::AsyncCall;
use crate::limiter::Limiter;
use crate::line::Line;
use crate::permit::Permit;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use workglow_limit::embed::{finish_calls, fork_generation};

/// The most calls of one store that wait at a time, each no longer than the store's timeout. The other calls queue.
const MAX_OF_ONE: usize = 16;

/// The most calls that wait at a time.
const MAX: usize = 256;

/// The time after which an idle thread ends.
const IDLE: Duration = Duration::from_secs(5);

/// The store that a call waits for, or the limiter if it has several stores. An address that is only compared.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerId(usize);

impl OwnerId {
    pub fn of<T: ?Sized>(it: &T) -> OwnerId {
        OwnerId(ptr::from_ref(it).addr())
    }

    pub fn number(self) -> usize {
        self.0
    }
}

/// Accepts an object that waits, or its number.
impl<'py> FromPyObject<'_, 'py> for OwnerId {
    type Error = PyErr;

    fn extract(of: Borrowed<'_, 'py, PyAny>) -> PyResult<OwnerId> {
        if let Ok(limiter) = of.cast::<Limiter>() {
            Ok(limiter.get().shared.owner)
        } else if let Ok(permit) = of.cast::<Permit>() {
            Ok(Permit::of(permit.as_unbound()).owner())
        } else if let Ok(asked) = of.cast::<AsyncCall>() {
            Ok(asked.get().owner())
        } else if let Ok(line) = of.cast::<Line>() {
            Ok(line.get().owner())
        } else {
            of.extract().map(OwnerId)
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

struct Threads {
    generation: u64,
    jobs: Mutex<Jobs>,
    /// Notified when a job is added.
    added: Condvar,
    /// Notified when a thread becomes idle or ends.
    rested: Condvar,
}

#[derive(Default)]
struct Jobs {
    /// The jobs that run as soon as a thread is free.
    waiting: VecDeque<(OwnerId, Job)>,
    /// The owners of jobs that run or wait.
    owners: HashMap<OwnerId, Owner>,
    threads: usize,
    idle: usize,
}

#[derive(Default)]
struct Owner {
    /// The number of its jobs that run or are in `Jobs::waiting`: at most `MAX_OF_ONE`.
    busy: usize,
    /// The jobs beyond that.
    waiting: VecDeque<Job>,
}

impl Jobs {
    fn push(&mut self, of: OwnerId, job: Job) {
        let owner = self.owners.entry(of).or_default();
        if owner.busy < MAX_OF_ONE {
            owner.busy += 1;
            self.waiting.push_back((of, job));
        } else {
            owner.waiting.push_back(job);
        }
    }

    /// Notes that a job of this owner has run.
    fn ran(&mut self, of: OwnerId) {
        let Some(owner) = self.owners.get_mut(&of) else { return };
        if let Some(next) = owner.waiting.pop_front() {
            self.waiting.push_back((of, next));
        } else if owner.busy > 1 {
            owner.busy -= 1;
        } else {
            self.owners.remove(&of);
        }
    }
}

impl Threads {
    /// Returns the threads of this process. A forked child does not use its parent's.
    fn here() -> &'static Threads {
        static HERE: AtomicPtr<Threads> = AtomicPtr::new(ptr::null_mut());
        let generation = fork_generation();
        let found = HERE.load(Ordering::Acquire);
        // SAFETY: null, or made below and never freed after publication.
        if let Some(threads) = unsafe { found.as_ref() }
            && threads.generation == generation
        {
            return threads;
        }
        let made = Threads { generation, jobs: Mutex::default(), added: Condvar::new(), rested: Condvar::new() };
        let made = Box::into_raw(Box::new(made));
        match HERE.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: it is never freed. (The parent's is left alone: its lock may be locked for ever.)
            Ok(_) => unsafe { &*made },
            // SAFETY: another thread's is published and never freed; ours was not published.
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
            if let Some((of, job)) = jobs.waiting.pop_front() {
                drop(jobs);
                // A panic has been reported, and the other jobs still have to run.
                let _ = catch_unwind(AssertUnwindSafe(job));
                jobs = self.lock();
                jobs.ran(of);
                continue;
            }
            jobs.idle += 1;
            self.rested.notify_all();
            let (again, waited) = self.added.wait_timeout(jobs, IDLE).unwrap_or_else(PoisonError::into_inner);
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

/// Runs a job in one of the threads.
pub fn send(of: OwnerId, job: impl FnOnce() + Send + 'static) -> PyResult<()> {
    let here = Threads::here();
    let mut jobs = here.lock();
    jobs.push(of, Box::new(job));
    if jobs.waiting.len() > jobs.idle && jobs.threads < MAX {
        match thread::Builder::new().name("workglow-limit".to_owned()).spawn(|| here.work()) {
            Ok(_) => jobs.threads += 1,
            // Another thread runs the job later. Without any thread it is an error.
            Err(error) if jobs.threads == 0 => {
                let job = jobs.waiting.pop_back();
                jobs.ran(of);
                drop((jobs, job));
                return Err(PyRuntimeError::new_err(format!(
                    "no thread can be started to wait for the store: {error}"
                )));
            }
            Err(_) => {}
        }
    }
    here.added.notify_one();
    Ok(())
}

/// Calls a function in one of the threads.
#[pyfunction]
pub fn call_in_thread(of: OwnerId, function: Py<PyAny>) -> PyResult<()> {
    send(of, move || {
        Python::try_attach(|py| {
            if let Err(error) = function.call0(py) {
                error.write_unraisable(py, Some(function.bind(py)));
            }
            drop(function);
        });
    })
}

/// Waits at the end of the process for the jobs that were sent, such as the return of a place.
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
        drop(jobs);
        finish_calls(end.saturating_duration_since(Instant::now()));
    });
}
