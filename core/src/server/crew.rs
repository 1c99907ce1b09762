//! Threads that wait for a server, or for another store, where the caller must not.
//!
//! A decision is a synchronous call. An event loop may make hundreds of them at a time, each for another key and with its
//! own deadline. So each waits in a thread of its own: their requests are on the way together, and none waits for another's
//! answer. A thread ends when there has been nothing to do for two seconds.

use crate::fork::{PerProcess, generation, without_signals};
use crate::waiting::MayWait;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// The most requests of event loops on the way at a time, where they share one connection.
pub(super) const SIDE_BY_SIDE: usize = 256;

/// The most threads that wait for a store on no server, or for a limiter of users.
pub(crate) const WAITING: usize = 32;

/// The time after which an idle thread of the library ends.
pub(crate) const IDLE: Duration = Duration::from_secs(2);

/// The address space of a thread's stack. What is not used of it costs no memory.
const STACK: usize = 1 << 20;

pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The jobs of this process that have not ended.
static UNFINISHED: PerProcess<usize> = PerProcess::new();

/// The threads of one process that wait for one server, one other store, or one limiter of users.
#[derive(Debug)]
pub(crate) struct Crew {
    /// The most threads. Other jobs wait until one of them is free.
    most: usize,
    jobs: PerProcess<Jobs>,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    idle: Vec<Thread>,
    threads: usize,
}

impl std::fmt::Debug for Jobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} jobs for {} threads", self.waiting.len(), self.threads)
    }
}

/// A job that has ended when this is dropped, also by a panic. It names the process that counts it.
struct Unfinished(u64);

impl Unfinished {
    fn begin() -> Unfinished {
        *UNFINISHED.lock() += 1;
        Unfinished(generation())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // A job may fork. The child's count does not have the job, which is its parent's.
        if self.0 == generation() {
            *UNFINISHED.lock() -= 1;
        }
    }
}

impl Crew {
    pub fn new(most: usize) -> Arc<Crew> {
        Arc::new(Crew { most, jobs: PerProcess::new() })
    }

    /// Runs a job in one of the threads, which may wait until the store's timeout.
    pub fn send(self: &Arc<Crew>, job: Job) {
        let unfinished = Unfinished::begin();
        let job = Box::new(move || {
            let _ends = unfinished;
            job();
        });
        let mut jobs = self.jobs.lock();
        jobs.waiting.push_back(job);
        if let Some(idle) = jobs.idle.pop() {
            return idle.unpark();
        }
        if jobs.threads < self.most {
            let (crew, thread) = (self.clone(), thread::Builder::new().name("workglow-limit".into()).stack_size(STACK));
            match without_signals(|| thread.spawn(move || crew.work())) {
                Ok(_) => jobs.threads += 1,
                // Without a thread, the caller works itself.
                Err(_) if jobs.threads == 0 => {
                    let job = jobs.waiting.pop_back();
                    drop(jobs);
                    job.into_iter().for_each(|job| MayWait::Briefly.during(job));
                }
                Err(_) => {}
            }
        }
    }

    fn work(&self) {
        let (me, process) = (thread::current(), generation());
        let mut jobs = self.jobs.lock();
        let mut idle_since = Instant::now();
        loop {
            if let Some(job) = jobs.waiting.pop_front() {
                drop(jobs);
                // A panic has been reported, and the other jobs still have to run.
                let _ = catch_unwind(AssertUnwindSafe(|| MayWait::UntilTimeout.during(job)));
                // A job may fork. The child's threads are counted anew, without this one.
                if generation() != process {
                    return;
                }
                idle_since = Instant::now();
                jobs = self.jobs.lock();
                continue;
            }
            let left = IDLE.saturating_sub(idle_since.elapsed());
            if left.is_zero() {
                jobs.threads -= 1;
                return;
            }
            jobs.idle.push(me.clone());
            drop(jobs);
            thread::park_timeout(left);
            jobs = self.jobs.lock();
            // It is there if nobody has called.
            jobs.idle.retain(|idle| idle.id() != me.id());
        }
    }
}

/// Waits for the calls to servers that no caller waits for, such as the return of a start, at most for this long. A
/// language's binding does this at the end of the process.
pub fn finish_calls(most: Duration) {
    let began = Instant::now();
    while *UNFINISHED.lock() > 0 && began.elapsed() < most {
        thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::mpsc::channel;

    #[test]
    fn a_forked_child_counts_its_own_jobs_and_not_its_parents() {
        let inherited = Unfinished::begin();
        // SAFETY: the child runs the next lines only, and ends with `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let own = Unfinished::begin();
            drop(inherited);
            let is_right = *UNFINISHED.lock() == 1;
            drop(own);
            // SAFETY: ends the child without running the parent's destructors.
            unsafe { libc::_exit(i32::from(!is_right)) }
        }
        let mut status = 0;
        // SAFETY: a valid place for the answer.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child counts another job than its own");
        drop(inherited);
    }

    #[test]
    fn jobs_wait_side_by_side_and_the_others_follow() {
        let (crew, together, (done, over)) = (Crew::new(4), Arc::new(Barrier::new(4)), channel());
        // None of four ends before all of them have begun, and there are more than threads.
        for i in 0..12 {
            let (together, done) = (together.clone(), done.clone());
            crew.send(Box::new(move || {
                together.wait();
                done.send(i).unwrap();
                assert!(i % 5 != 0, "a panic ends no thread");
            }));
        }
        let mut all: Vec<i32> = (0..12).map(|_| over.recv().unwrap()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..12).collect::<Vec<_>>());
        assert!(crew.jobs.lock().threads <= 4);
    }
}
