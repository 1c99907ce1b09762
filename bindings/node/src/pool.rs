//! The waiters of a shared limit whose jobs are in a queue. `lib/feed.ts` drives them.

use crate::{AnyLimiter, Pooled, milliseconds};
use napi::bindgen_prelude::{AsyncTask, External};
use napi_derive::napi;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use workglow_limit::embed::{Pool, Turn, Waiter, WaiterId, has_custom, is_shared};

/// The waiters of one limiter.
pub type JobPool = Arc<Mutex<Pool>>;

/// How long before its place is ready a job is called: its queue takes tens of milliseconds to hand it out. No place is further ahead.
const LEAD: Duration = Duration::from_millis(100);

/// What a pool has done.
#[napi(object)]
pub struct PoolNews {
    /// The numbers of the waiters that joined, in the order in which they were given. -1: the limiter refused it.
    pub joined: Vec<f64>,
    /// The waiters whose turn has come.
    pub went: Vec<f64>,
    /// The texts of their places; "" for none.
    pub places: Vec<String>,
    /// The waiters that the limiter failed, or whose store was closed.
    pub failed: Vec<f64>,
    /// After how many ms it has to be advanced again; -1: not before a waiter joins.
    pub next: f64,
}

/// Makes the pool of a limit that tenants share. `None`: it is not shared, or calls JavaScript, which the thread pool cannot.
#[napi]
pub fn job_pool(limiter: &External<AnyLimiter>, grace: f64) -> Option<External<JobPool>> {
    let limiter = limiter.get();
    let is_ours = is_shared(&*limiter) && !has_custom(&*limiter);
    is_ours.then(|| {
        let pool = Pool::new(limiter, Some(milliseconds(grace))).lead(LEAD);
        External::new(Arc::new(Mutex::new(pool)))
    })
}

/// Lets waiters end, leave and join, and does the work that is due.
#[napi]
#[allow(clippy::too_many_arguments, reason = "one call does all that is due")]
pub fn advance_pool(
    pool: &External<JobPool>,
    ended: Vec<f64>,
    left: Vec<f64>,
    keys: Vec<String>,
    weights: Vec<f64>,
    priorities: Vec<i32>,
    workers: u32,
    free: u32,
) -> AsyncTask<Pooled<PoolNews>> {
    let pool = JobPool::clone(pool);
    AsyncTask::new(Pooled(Box::new(move || {
        let mut pool = pool.lock().unwrap_or_else(PoisonError::into_inner);
        ended.iter().for_each(|id| pool.end(*id as WaiterId));
        left.iter().for_each(|id| pool.leave(*id as WaiterId));
        let waiters = keys.iter().zip(&weights).zip(&priorities);
        let joined = waiters.map(|((key, weight), priority)| {
            pool.join(Waiter::new(key, *weight as u64).priority(*priority)).map_or(-1.0, |id| id as f64)
        });
        let joined = joined.collect();
        let mut turns = Vec::new();
        let next = pool.advance(workers as usize, free as usize, &mut turns);
        let (mut went, mut places, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        for (id, turn) in turns {
            match turn {
                Turn::Go(place) => {
                    went.push(id as f64);
                    places.push(place.unwrap_or_default());
                }
                Turn::Failed(_) => {
                    pool.end(id);
                    failed.push(id as f64);
                }
                // (Nobody has to know. They have no timeout, so none is sent away.)
                Turn::Held(_) | Turn::Away(..) => {}
            }
        }
        Ok(PoolNews { joined, went, places, failed, next: next.map_or(-1.0, |next| next.as_secs_f64() * 1e3) })
    })))
}
