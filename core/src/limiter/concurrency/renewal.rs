//! Leases on a server that have no end of their own: they hold for a time, and are renewed as long as their process lives.
//!
//! A server cannot see whether a process lives, so every lease there has to end. A job may take long and call nothing meanwhile, and its
//! lease must not end before it does. So somebody has to renew it in its stead: a thread, which a process starts with its first
//! lease of this kind and which sleeps until one is due. It runs no code of users, takes no signals, and a forked child has none until it
//! takes a lease itself.
//!
//! If a lease ends all the same, because the process was stopped or cut off from the server for too long, somebody else may have its
//! units. The job cannot be stopped. But it is told: [`Limiter::renew`](crate::Limiter::renew) answers `LeaseLost`, and when the job ends
//! those are told who listen to errors of the store.

use super::served::owner_of;
use crate::algorithm::leases::Lease;
use crate::error::{Error, Result};
use crate::fault;
use crate::fork::PerProcess;
use crate::server::number;
use crate::state::{Hash, Limit};
use crate::waiting::MayWait;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How long a lease holds that nobody renews. A process that dies on another machine keeps its units for so long; a process that
/// is cut off from the server for longer has lost them.
const HOLDS: Duration = Duration::from_secs(30);

/// When a renewal has failed, the next is tried so much later.
const AGAIN: Duration = Duration::from_secs(1);

/// How long such a lease holds.
pub(super) fn holds() -> Duration {
    fault::lease_ms().map_or(HOLDS, Duration::from_millis)
}

/// Which limit (by where it is; that is nobody else's as long as it is listed), and which of its leases.
type Which = (usize, u64);

/// A lease that is renewed.
#[derive(Debug, Clone)]
struct Held {
    limit: Weak<Limit>,
    key: Hash,
    lease: Lease,
    due: Instant,
    /// The server holds it until then at least.
    until: Instant,
    is_lost: bool,
}

#[derive(Debug, Default)]
struct Renewer {
    held: HashMap<Which, Held>,
    thread: Option<Thread>,
}

static RENEWER: PerProcess<Renewer> = PerProcess::new();

fn which(limit: &Arc<Limit>, lease: Lease) -> Which {
    (Arc::as_ptr(limit).addr(), lease.fence)
}

/// Starts the thread, if there is none. To be called before a lease is taken: one that nobody renews would be lost.
pub(super) fn begin() -> Result<()> {
    let mut renewer = RENEWER.lock();
    if renewer.thread.is_none() {
        let thread = without_signals(|| std::thread::Builder::new().name("workglow-limit".into()).spawn(run));
        let thread = thread.map_err(|e| Error::store("starting the thread that renews leases", e))?;
        renewer.thread = Some(thread.thread().clone());
    }
    Ok(())
}

/// A thread that is started by `start` gets none of the process's signals.
fn without_signals<R>(start: impl FnOnce() -> R) -> R {
    // SAFETY: both sets are valid for all of the calls, and zeroed ones are valid to be written.
    let before = unsafe {
        let (mut all, mut before) = (std::mem::zeroed::<libc::sigset_t>(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    let started = start();
    // SAFETY: as above; the set is what this thread had.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    started
}

/// Renews a lease from now on that was asked for at `asked`.
pub(super) fn hold(limit: &Arc<Limit>, key: Hash, lease: Lease, asked: Instant) {
    let held = Held {
        limit: Arc::downgrade(limit),
        key,
        lease,
        due: asked + holds() / 3,
        until: asked + holds(),
        is_lost: false,
    };
    let mut renewer = RENEWER.lock();
    renewer.held.insert(which(limit, lease), held);
    renewer.thread.iter().for_each(Thread::unpark);
}

/// Renews a lease no longer. May it have been lost before?
pub(super) fn let_go(limit: &Arc<Limit>, lease: Lease) -> bool {
    let held = RENEWER.lock().held.remove(&which(limit, lease));
    held.is_some_and(|held| held.is_lost || held.until <= Instant::now())
}

/// Was it lost while it was to be renewed?
pub(super) fn is_lost(limit: &Arc<Limit>, lease: Lease) -> bool {
    RENEWER.lock().held.get(&which(limit, lease)).is_some_and(|held| held.is_lost)
}

/// The thread.
fn run() {
    MayWait::UntilTimeout.during(|| {
        loop {
            match next() {
                Ok(due) => renew_all(due),
                Err(Some(nap)) => std::thread::park_timeout(nap),
                Err(None) => std::thread::park(),
            }
        }
    });
}

/// What is due; if nothing is, for how long.
fn next() -> std::result::Result<Vec<(Which, Held)>, Option<Duration>> {
    let mut renewer = RENEWER.lock();
    // Nobody can end a lease any more whose limiter is gone: it is left to end by itself.
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

fn renew_all(due: Vec<(Which, Held)>) {
    // To ask a server that does not answer takes a store's whole timeout: that is not done for each of its leases.
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
            Some(Ok(true)) => (held.due, held.until) = (asked + holds() / 3, asked + holds()),
            Some(Ok(false)) => held.is_lost = true,
            // Not known: it may be held for longer, if the server itself was away.
            Some(Err(_)) | None => held.due = Instant::now() + AGAIN.min(holds() / 3),
        }
    }
}

/// Asks the server for more time.
fn renew(limit: &Arc<Limit>, held: &Held) -> Result<bool> {
    let owner = owner_of(limit)?;
    let arguments = [number(held.lease.index), number(held.lease.fence)];
    let arguments = [&arguments[..], &owner, &[number(holds().as_micros() as u64), 1]].concat();
    let renewed = || limit.with_hash(held.key, |found| limit.ask(found, "renew", &arguments));
    let failed = |_| Err(Error::store("renewing a lease", "it ended in a panic"));
    let [_, is_held, _]: [i64; 3] = catch_unwind(AssertUnwindSafe(renewed)).unwrap_or_else(failed)?;
    Ok(is_held == 1)
}
