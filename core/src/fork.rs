//! What is bound to one process, and what a forked child does about it.
//!
//! A lane is mapped shared, so a child inherits it and it simply works. Three things must not be inherited as they
//! are: a structural operation half done by a thread that does not exist in the child (so none is under way while a
//! fork happens: the fork takes [`structure`] first), SQLite connections (none is ever kept open), and what belongs to
//! the parent by identity, its membership and its running starts (a child has another [`generation`], notices at its
//! first call, and starts its own).

use rand::rngs::{SmallRng, SysRng};
use rand::{RngExt, SeedableRng};
use std::cell::UnsafeCell;
use std::ops::RangeInclusive;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

static GENERATION: AtomicU64 = AtomicU64::new(1);
/// See [`validity`].
static VALIDITY: AtomicU64 = AtomicU64::new(1);
static STRUCTURE: Mutex<()> = Mutex::new(());
/// Taken before [`STRUCTURE`] by whoever needs both.
static LEDGER: Mutex<()> = Mutex::new(());
/// Taken for moments, by whoever is at a list that a child inherits.
static LISTS: Mutex<()> = Mutex::new(());
static HELD: Held = Held(UnsafeCell::new(None));

/// The guards that a forking thread holds from just before the fork until just after it.
struct Held(UnsafeCell<Option<[MutexGuard<'static, ()>; 3]>>);

// SAFETY: only the thread that holds STRUCTURE touches the cell, and only while it forks.
unsafe impl Sync for Held {}

/// A number that differs between a process and the children that it forks once it uses a store: what belongs to one
/// process can be marked with it.
#[inline(always)]
pub fn generation() -> u64 {
    GENERATION.load(Relaxed)
}

/// A number that changes when anything does that limiters hold on to: this process is another by now, or one of its stores has
/// another home. Whoever sees it change looks at its own.
#[inline(always)]
pub(crate) fn validity() -> u64 {
    VALIDITY.load(Relaxed)
}

/// The same before a look: whoever sees this number sees what had changed before it.
pub(crate) fn validity_acquired() -> u64 {
    VALIDITY.load(Acquire)
}

/// Makes every limiter of this process look again.
pub(crate) fn invalidate() {
    VALIDITY.fetch_add(1, AcqRel);
}

/// Has the system been told what to do around a fork?
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Done when the library is loaded: no fork can then come between the first use of a store and this.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = register;

extern "C" fn register() {
    if !REGISTERED.swap(true, AcqRel) {
        // SAFETY: the three handlers are functions of this library that do only what POSIX allows around a fork.
        unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
    }
}

/// The right to do something structural in this process: one thread at a time, and no fork meanwhile.
pub(crate) type Structure = MutexGuard<'static, ()>;

/// The right to write ledgers in this process: no fork happens meanwhile, because a connection to SQLite must not be carried
/// over. `None`: somebody else has it.
pub(crate) fn ledger() -> Option<Structure> {
    register();
    match LEDGER.try_lock() {
        Ok(guard) => Some(guard),
        // As for the structure.
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// The right to be at a list that a child inherits: a fork waits for it, so the child does not find it locked.
pub(crate) fn lists() -> Structure {
    register();
    LISTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Who waits for a lock looks again after so long at most.
pub(crate) const LONGEST_NAP: Duration = Duration::from_millis(2);

/// Waits for the right to do something structural, at most for `timeout`.
pub(crate) fn structure(timeout: Duration) -> Option<Structure> {
    register();
    let start = Instant::now();
    let mut nap = Duration::from_micros(20);
    loop {
        match STRUCTURE.try_lock() {
            Ok(guard) => return Some(guard),
            // The mutex guards no data of its own: a panic under it leaves nothing half done in memory.
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if start.elapsed() >= timeout => return None,
            Err(TryLockError::WouldBlock) => {
                std::thread::sleep(nap);
                nap = (nap * 2).min(LONGEST_NAP);
            }
        }
    }
}

extern "C" fn before() {
    let guards = [&LEDGER, &STRUCTURE, &LISTS].map(|lock| lock.lock().unwrap_or_else(PoisonError::into_inner));
    // SAFETY: this thread holds STRUCTURE.
    unsafe { *HELD.0.get() = Some(guards) };
}

extern "C" fn after_in_parent() {
    // SAFETY: this thread holds STRUCTURE, and lets go of it here.
    drop(unsafe { (*HELD.0.get()).take() });
}

extern "C" fn after_in_child() {
    GENERATION.fetch_add(1, Relaxed);
    invalidate();
    // SAFETY: the child's only thread is a copy of the one that holds STRUCTURE.
    drop(unsafe { (*HELD.0.get()).take() });
}

/// A locked value of which a forked child has its own, new one: the parent's may be locked by a thread that the child
/// does not have, and what is in it is the parent's anyway.
#[derive(Debug)]
pub(crate) struct PerProcess<T> {
    current: AtomicPtr<Owned<T>>,
}

#[derive(Debug)]
struct Owned<T> {
    generation: u64,
    value: Mutex<T>,
    /// What parents left before this: kept within reach, so that it is no leak.
    left: AtomicPtr<()>,
}

/// What parents left in this process.
static LEFT: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

impl<T> PerProcess<T> {
    pub const fn new() -> Self {
        PerProcess { current: AtomicPtr::new(ptr::null_mut()) }
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Default> PerProcess<T> {
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let generation = generation();
        loop {
            let current = self.current.load(Acquire);
            // SAFETY: the pointer is null or came from `Box::into_raw` below, and is freed only by `drop`, and never if a
            // parent left it.
            if let Some(owned) = unsafe { current.as_ref() }
                && owned.generation == generation
            {
                return owned.value.lock().unwrap_or_else(PoisonError::into_inner);
            }
            let new =
                Box::into_raw(Box::new(Owned { generation, value: Mutex::default(), left: AtomicPtr::default() }));
            if self.current.compare_exchange(current, new, AcqRel, Relaxed).is_err() {
                // SAFETY: nobody else has seen `new`.
                drop(unsafe { Box::from_raw(new) });
            } else if !current.is_null() {
                // The parent's value is left alone: its memory is a copy, and dropping it could end what is the parent's.
                let before = LEFT.swap(current.cast(), AcqRel);
                // SAFETY: it is never freed.
                unsafe { &*current }.left.store(before, Release);
            }
        }
    }
}

/// A random number from `least` to `most` that is good enough for jitter, and another one in a forked child.
#[inline]
pub(crate) fn jitter(least: u64, most: u64) -> u64 {
    if least == most { least } else { drawn(least..=most) }
}

fn drawn(range: RangeInclusive<u64>) -> u64 {
    static GENERATOR: PerProcess<Option<SmallRng>> = PerProcess::new();
    // Where the system has no random numbers, everybody has the same ones.
    let new = || SmallRng::try_from_rng(&mut SysRng).unwrap_or_else(|_| SmallRng::seed_from_u64(0));
    GENERATOR.lock().get_or_insert_with(new).random_range(range)
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let current = *self.current.get_mut();
        // SAFETY: as in `lock`; nobody else can reach it any more.
        if let Some(owned) = unsafe { current.as_ref() }
            && owned.generation == generation()
        {
            // SAFETY: as above.
            drop(unsafe { Box::from_raw(current) });
        }
    }
}
