//! The end of a store's use in this process: see [`Session::close`].
//!
//! 1. *The limiters of a closed store are no longer open.* No limiter's epoch is that of a closed store, and
//!    `fork::validity` changes after the store was marked. So each limiter asks once more whether it is open before its
//!    next decision. Decisions of open stores read nothing new.
//! 2. *What has started may end.* A call that ends a start runs within [`while_ending`], and uses the limit where it was.
//! 3. *Nothing is unmapped that is in use.* Closing frees no memory and no membership: both live as long as the session,
//!    which limiters, their permits and their waiters keep. (Without the membership, the units of jobs that still run would
//!    be free.) A server's connections are closed; the end of a start opens one again, and closes it.
//! 4. *No waiter sleeps on.* A sleeper is listed first, then checks whether the store is closed, and sleeps after that.
//!    Closing marks the store first, and then wakes those that are listed. The list has a lock, so one of both sees the
//!    other. A wake-up that comes before the sleep is kept by threads and drivers. A bell forgets it, and is rung until its
//!    sleeper is gone.
//! 5. *Closing waits for no caller.* It takes no lock that a waiter has while it asks, or while code of users runs.
//!    Sleepers at a bell hold none.

use super::Session;
use crate::error::{Error, Result};
use crate::fork::{self, PerProcess};
use crate::os;
use crate::waiting::MayWait;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The time between two wake-ups of those who sleep at bells.
const RING_AGAIN: Duration = Duration::from_micros(200);

thread_local! {
    static ENDS: Cell<bool> = const { Cell::new(false) };
}

/// Wakes a waiter. It is called from any thread.
pub(crate) type Wake = Arc<dyn Fn() + Send + Sync>;

/// Whether a store is closed, and whom that wakes.
#[derive(Debug, Default)]
pub(in crate::state) struct Closing {
    is_closed: AtomicBool,
    sleepers: PerProcess<HashMap<u64, Sleeper>>,
}

#[derive(Debug)]
enum Sleeper {
    /// Its [`Woken`] keeps what this refers to.
    Called(Weak<dyn Fn() + Send + Sync>),
    Bell(Bell),
}

/// The word at which a thread sleeps. The thread keeps it alive while it is listed.
#[derive(Debug)]
struct Bell(*const AtomicU64);

// SAFETY: it is used only under the list's lock, while its thread is listed.
unsafe impl Send for Bell {}

fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Relaxed)
}

/// As long as it lives, closing one of these stores wakes its owner.
pub(crate) struct Woken {
    stores: Vec<Arc<Session>>,
    number: u64,
    _wake: Wake,
}

impl Woken {
    pub fn new(stores: Vec<Arc<Session>>, wake: Wake) -> Woken {
        let number = number();
        for store in &stores {
            store.closing.sleepers.lock().insert(number, Sleeper::Called(Arc::downgrade(&wake)));
        }
        Woken { stores, number, _wake: wake }
    }

    /// Returns whether one of the stores is closed already. Check this before sleeping (4).
    pub fn is_late(&self) -> bool {
        self.stores.iter().any(|store| store.is_closed())
    }
}

impl Drop for Woken {
    fn drop(&mut self) {
        for store in &self.stores {
            store.closing.sleepers.lock().remove(&self.number);
        }
    }
}

/// Runs a call that ends a start (2).
pub(in crate::state) fn while_ending<R>(call: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            ENDS.set(self.0);
        }
    }
    let _restore = Restore(ENDS.replace(true));
    call()
}

impl Session {
    pub fn is_closed(&self) -> bool {
        self.closing.is_closed.load(Acquire)
    }

    /// The error of a call after the store was closed.
    pub fn closed(&self) -> Error {
        Error::StoreClosed { url: self.url().to_owned() }
    }

    /// Fails if the store is closed, unless this thread ends a start.
    pub fn check_open(&self) -> Result<()> {
        if self.is_closed() && !ENDS.get() { Err(self.closed()) } else { Ok(()) }
    }

    /// Ends the use of the store in this process: no call begins after it. Writes what the ledger lacks.
    pub fn close(&self) -> Result<()> {
        if self.home_number() > 0 && !self.is_closed() {
            // A caller that must not wait changes nothing, and closes it from a thread that may.
            MayWait::part(self.options.timeout)?;
        }
        if self.closing.is_closed.swap(true, AcqRel) {
            return Ok(());
        }
        // (1)
        fork::invalidate();
        self.wake_sleepers();
        let is_used = self.home_number() > 0 && self.used_by.load(Acquire) == fork::generation();
        let written = if is_used { while_ending(|| self.flush()) } else { Ok(()) };
        self.disconnect();
        written
    }

    /// Closes the connections to the server. Requests that are on their way keep theirs until they are answered.
    fn disconnect(&self) {
        if let Some(server) = &self.server {
            server.disconnect();
        }
    }

    /// Runs a call that ends a start, and leaves a closed store without connections (3).
    pub(in crate::state) fn ending<R>(&self, call: impl FnOnce() -> R) -> R {
        let answer = while_ending(call);
        if self.is_closed() {
            self.disconnect();
        }
        answer
    }

    fn wake_sleepers(&self) {
        let mut wakes: Vec<Wake> = Vec::new();
        for sleeper in self.closing.sleepers.lock().values() {
            if let Sleeper::Called(wake) = sleeper {
                wakes.extend(wake.upgrade());
            }
        }
        // Without the lock: a driver may do anything.
        wakes.iter().for_each(|wake| wake());
        while self.ring_bells() {
            std::thread::sleep(RING_AGAIN);
        }
    }

    /// Returns whether anybody sleeps at a bell.
    fn ring_bells(&self) -> bool {
        let mut is_any = false;
        for sleeper in self.closing.sleepers.lock().values() {
            if let Sleeper::Bell(bell) = sleeper {
                // SAFETY: its thread is listed, and keeps it until it has taken itself off the list, under this lock.
                os::wake_all(unsafe { &*bell.0 });
                is_any = true;
            }
        }
        is_any
    }

    /// Sleeps at a bell until it changes and one of these calls comes, or the store is closed, at most for `nap`. It may
    /// wake early.
    pub fn sleep_at_bell(&self, bell: &AtomicU64, seen: u64, nap: Duration, calls: u32) {
        struct Listed<'s>(&'s Session, u64);
        impl Drop for Listed<'_> {
            fn drop(&mut self) {
                self.0.closing.sleepers.lock().remove(&self.1);
            }
        }
        let number = number();
        self.closing.sleepers.lock().insert(number, Sleeper::Bell(Bell(bell)));
        let _listed = Listed(self, number);
        // (4)
        if !self.is_closed() {
            os::sleep_until_called(bell, seen, nap, calls);
        }
    }
}
