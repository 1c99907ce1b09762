//! Threads for what has to wait while an event loop or a hub of greenlets goes on.
//!
//! They are the system's, also where a program's `threading` makes greenlets, and one set for all loops: what waits for a locked
//! store takes up no thread of a loop's own, which others need for looking up names, nor those of another store.

use crate::asking::Asked;
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
use workglow_limit::fork_generation;

/// So many calls of one store wait at a time, each no longer than the store's timeout. Its others come after them.
const MOST_OF_ONE: usize = 16;

/// So many calls wait at a time.
const MOST: usize = 256;

/// A thread that has nothing to do ends after this long.
const IDLE: Duration = Duration::from_secs(5);

/// For whom somebody waits: a store, or a limiter of several. An address, which is only compared.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Whose(usize);

impl Whose {
    pub fn of<T: ?Sized>(it: &T) -> Whose {
        Whose(ptr::from_ref(it).addr())
    }

    pub fn number(self) -> usize {
        self.0
    }
}

/// What waits, or how a hub has noted it.
impl<'py> FromPyObject<'_, 'py> for Whose {
    type Error = PyErr;

    fn extract(of: Borrowed<'_, 'py, PyAny>) -> PyResult<Whose> {
        if let Ok(limiter) = of.cast::<Limiter>() {
            Ok(limiter.get().node.whose)
        } else if let Ok(permit) = of.cast::<Permit>() {
            Ok(Permit::of(permit.as_unbound()).whose())
        } else if let Ok(asked) = of.cast::<Asked>() {
            Ok(asked.get().whose())
        } else if let Ok(line) = of.cast::<Line>() {
            Ok(line.get().whose())
        } else {
            of.extract().map(Whose)
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

struct Threads {
    generation: u64,
    jobs: Mutex<Jobs>,
    asked: Condvar,
    rested: Condvar,
}

#[derive(Default)]
struct Jobs {
    /// They run as soon as there is a thread.
    waiting: VecDeque<(Whose, Job)>,
    /// Those who have jobs that run or wait.
    owners: HashMap<Whose, Owner>,
    threads: usize,
    idle: usize,
}

#[derive(Default)]
struct Owner {
    /// So many of its jobs run, or are in `Jobs::waiting`: no more than `MOST_OF_ONE`.
    busy: usize,
    /// They come after those.
    waiting: VecDeque<Job>,
}

impl Jobs {
    fn push(&mut self, of: Whose, job: Job) {
        let owner = self.owners.entry(of).or_default();
        if owner.busy < MOST_OF_ONE {
            owner.busy += 1;
            self.waiting.push_back((of, job));
        } else {
            owner.waiting.push_back(job);
        }
    }

    /// A job of this owner has run.
    fn ran(&mut self, of: Whose) {
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
            if let Some((of, job)) = jobs.waiting.pop_front() {
                drop(jobs);
                // What panics has said so, and others come after it.
                let _ = catch_unwind(AssertUnwindSafe(job));
                jobs = self.lock();
                jobs.ran(of);
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
pub fn send(of: Whose, job: impl FnOnce() + Send + 'static) -> PyResult<()> {
    let here = Threads::here();
    let mut jobs = here.lock();
    jobs.push(of, Box::new(job));
    if jobs.waiting.len() > jobs.idle && jobs.threads < MOST {
        match thread::Builder::new().name("workglow-limit".to_owned()).spawn(|| here.work()) {
            Ok(_) => jobs.threads += 1,
            // It is done by one of the others; or not at all, if there is none.
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
    here.asked.notify_one();
    Ok(())
}

/// Calls a function in such a thread.
#[pyfunction]
pub fn call_elsewhere(of: Whose, function: Py<PyAny>) -> PyResult<()> {
    send(of, move || {
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
