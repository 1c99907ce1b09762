//! Leases on a server without an end of their own: each holds for a time, and is renewed while its process lives.
//!
//! 1. A server cannot see whether a process lives, so every lease there has to end.
//! 2. A job may take long without calling this library, and its lease must not end before the job does. So a thread
//!    renews the lease.
//! 3. A process starts that thread with its first lease of this kind. The thread sleeps until a renewal is due, runs no
//!    user code and takes no signals. It ends when there has been no such lease for two seconds. A forked child has no such
//!    thread until it takes a lease itself.
//! 4. A lease may still end, because the process was stopped or cut off from the server for too long. Its units may
//!    then go to another start. The job cannot be stopped, but it is notified:
//!    [`Limiter::renew`](crate::Limiter::renew) returns `LeaseLost`, and when the job ends the hooks for errors of the
//!    store are called.

use super::served::owner_of;
use crate::algorithm::leases::Lease;
use crate::error::{Error, Result};
use crate::fork::{PerProcess, without_signals};
use crate::hash::Hash;
use crate::server::crew::IDLE;
use crate::server::{number, renewed_lease};
use crate::state::Limit;
use crate::waiting::MayWait;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The delay before the next attempt after a failed renewal.
const AGAIN: Duration = Duration::from_secs(1);

/// A limit, by its address, which is unique as long as it is listed, and one of its leases.
type Which = (usize, u64);

/// A lease that is renewed.
#[derive(Debug, Clone)]
struct RenewedLease {
    limit: Weak<Limit>,
    key: Hash,
    lease: Lease,
    due: Instant,
    /// The server holds it at least until then.
    until: Instant,
    is_lost: bool,
}

#[derive(Debug, Default)]
struct Renewer {
    held: HashMap<Which, RenewedLease>,
    thread: Option<Thread>,
    /// The number of callers that are about to take a lease.
    beginning: usize,
}

// (3)
static RENEWER: PerProcess<Renewer> = PerProcess::new();

fn which(limit: &Arc<Limit>, lease: Lease) -> Which {
    (Arc::as_ptr(limit).addr(), lease.fence)
}

/// Keeps the thread until a lease is taken, or was denied.
pub(super) struct Beginning;

impl Drop for Beginning {
    fn drop(&mut self) {
        let mut renewer = RENEWER.lock();
        // (A forked child has its own.)
        renewer.beginning = renewer.beginning.saturating_sub(1);
    }
}

/// Starts the thread, if there is none. Call this before a lease is taken, and keep the result until the lease is held: a
/// lease without a renewer would be lost.
pub(super) fn begin() -> Result<Beginning> {
    let mut renewer = RENEWER.lock();
    if renewer.thread.is_none() {
        // (3)
        let thread = without_signals(|| std::thread::Builder::new().name("workglow-limit".into()).spawn(run));
        let thread = thread.map_err(|e| Error::store("starting the thread that renews leases", e))?;
        renewer.thread = Some(thread.thread().clone());
    }
    renewer.beginning += 1;
    Ok(Beginning)
}

/// Starts renewing a lease that was requested at `asked`.
pub(super) fn hold(limit: &Arc<Limit>, key: Hash, lease: Lease, asked: Instant) {
    let held = RenewedLease {
        limit: Arc::downgrade(limit),
        key,
        lease,
        due: asked + renewed_lease() / 3,
        // (1): the server counts from a later moment.
        until: asked + renewed_lease(),
        is_lost: false,
    };
    let mut renewer = RENEWER.lock();
    renewer.held.insert(which(limit, lease), held);
    renewer.thread.iter().for_each(Thread::unpark);
}

/// Stops renewing a lease. Returns whether it may have been lost before.
pub(super) fn let_go(limit: &Arc<Limit>, lease: Lease) -> bool {
    let held = RENEWER.lock().held.remove(&which(limit, lease));
    held.is_some_and(|held| held.is_lost || held.until <= Instant::now())
}

/// Returns whether it was lost while it was being renewed.
pub(super) fn is_lost(limit: &Arc<Limit>, lease: Lease) -> bool {
    RENEWER.lock().held.get(&which(limit, lease)).is_some_and(|held| held.is_lost)
}

/// The body of the thread.
fn run() {
    MayWait::UntilTimeout.during(|| {
        loop {
            match next() {
                Ok(due) => renew_all(due),
                Err(Some(nap)) => std::thread::park_timeout(nap),
                Err(None) => {
                    std::thread::park_timeout(IDLE);
                    let mut renewer = RENEWER.lock();
                    if renewer.held.is_empty() && renewer.beginning == 0 {
                        renewer.thread = None;
                        return;
                    }
                }
            }
        }
    });
}

/// Takes the renewals that are due; if there are none, returns the time until the next.
fn next() -> std::result::Result<Vec<(Which, RenewedLease)>, Option<Duration>> {
    let mut renewer = RENEWER.lock();
    // A lease whose limiter is gone can no longer be ended by a call. It is left to expire.
    renewer.held.retain(|_, held| held.limit.strong_count() > 0);
    let now = Instant::now();
    let renewed = || renewer.held.iter().filter(|(_, held)| !held.is_lost);
    let mut due: Vec<_> = renewed().filter(|(_, held)| held.due <= now).map(|(id, held)| (*id, held.clone())).collect();
    if due.is_empty() {
        return Err(renewed().map(|(_, held)| held.due - now).min());
    }
    due.sort_by_key(|(_, held)| held.until);
    Ok(due)
}

fn renew_all(due: Vec<(Which, RenewedLease)>) {
    // A request to an unresponsive server takes a store's whole timeout, so it is not repeated for each of its leases.
    let mut failing: Vec<usize> = Vec::new();
    for (which, held) in due {
        let Some(limit) = held.limit.upgrade() else { continue };
        let (store, asked) = (Arc::as_ptr(limit.store()).addr(), Instant::now());
        let answer = if failing.contains(&store) { None } else { Some(renew(&limit, &held)) };
        if let Some(Err(_)) = answer {
            failing.push(store);
        }
        let mut renewer = RENEWER.lock();
        let Some(held) = renewer.held.get_mut(&which) else { continue };
        match answer {
            // (2)
            Some(Ok(true)) => (held.due, held.until) = (asked + renewed_lease() / 3, asked + renewed_lease()),
            // (4)
            Some(Ok(false)) => held.is_lost = true,
            // Unknown: it may hold for longer, if the server itself was down.
            Some(Err(_)) | None => held.due = Instant::now() + AGAIN.min(renewed_lease() / 3),
        }
    }
}

/// Requests more time from the server.
fn renew(limit: &Arc<Limit>, held: &RenewedLease) -> Result<bool> {
    let owner = owner_of(limit)?;
    let arguments = [number(held.lease.index), number(held.lease.fence)];
    let arguments = [&arguments[..], &owner, &[number(renewed_lease().as_micros() as u64), 1]].concat();
    let renewed = || limit.with_hash(held.key, |found| limit.ask(found, "renew", &arguments));
    let failed = |_| Err(Error::store("renewing a lease", "it ended in a panic"));
    // Its job may go on after its store was closed.
    let renewed = || limit.ending(renewed);
    let [_, is_held, _]: [i64; 3] = catch_unwind(AssertUnwindSafe(renewed)).unwrap_or_else(failed)?;
    Ok(is_held == 1)
}
