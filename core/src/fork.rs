//! State that belongs to one process, and how a forked child handles it.
//!
//! A lane is mapped shared, so a child inherits it and can use it without further work. Three things must not be
//! inherited as they are:
//!
//! 1. A structural operation that is half done by a thread which does not exist in the child. None is under way during
//!    a fork, because the fork waits for all of them, and none begins meanwhile: see [`structure`].
//! 2. SQLite connections. None is ever kept open.
//! 3. State that identifies the parent: its membership and its running starts. A child has another [`generation`],
//!    notices at its first call, and creates its own.

use rand::rngs::{SmallRng, SysRng};
use rand::{RngExt, SeedableRng};
use std::cell::UnsafeCell;
use std::ops::RangeInclusive;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{
    Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, TryLockResult,
};
use std::time::{Duration, Instant};

static GENERATION: AtomicU64 = AtomicU64::new(1);
/// See [`validity`].
static VALIDITY: AtomicU64 = AtomicU64::new(1);
/// Shared by the threads that make structural changes, one for each store; taken alone by a fork.
static STRUCTURES: RwLock<()> = RwLock::new(());
/// Shared by the threads that write ledgers, of any stores; taken alone by a fork. Taken before [`STRUCTURES`] by a
/// thread that needs both.
static LEDGERS: RwLock<()> = RwLock::new(());
/// The threads that wait to fork: see [`is_waiting`].
static WAITING: AtomicUsize = AtomicUsize::new(0);
/// Taken briefly by a thread that uses a list which a child inherits.
static LISTS: Mutex<()> = Mutex::new(());
static FORK_GUARDS: ForkGuards = ForkGuards(UnsafeCell::new(None));

/// The guards that a forking thread holds from just before the fork until just after it.
struct ForkGuards(UnsafeCell<Option<([RwLockWriteGuard<'static, ()>; 2], Lists)>>);

// SAFETY: only the thread that holds STRUCTURES alone touches the cell, and only while it forks.
unsafe impl Sync for ForkGuards {}

/// Returns a number that differs between a process and the children that it forks after its first use of a store. It
/// marks what belongs to one process.
#[inline(always)]
pub fn generation() -> u64 {
    GENERATION.load(Relaxed)
}

/// Returns a number that changes whenever something changes that limiters hold on to: this process is a forked child,
/// or one of its stores has another home. A limiter that sees a new number checks its own state.
#[inline(always)]
pub(crate) fn validity() -> u64 {
    VALIDITY.load(Relaxed)
}

/// The same, with acquire ordering: a reader of this number also sees the changes that preceded it.
pub(crate) fn validity_acquired() -> u64 {
    VALIDITY.load(Acquire)
}

/// Makes every limiter of this process check its state.
pub(crate) fn invalidate() {
    VALIDITY.fetch_add(1, AcqRel);
}

/// Whether the fork handlers are registered.
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Runs when the library is loaded, so that no fork can come between the first use of a store and the registration.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = register;

extern "C" fn register() {
    if !REGISTERED.swap(true, AcqRel) {
        // SAFETY: the three handlers are functions of this library that do only what POSIX allows around a fork.
        unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
    }
}

/// The right to make a structural change of one store in this process: held by one thread at a time, and no fork
/// happens while it is held.
#[derive(Debug)]
pub(crate) struct Structure<'s> {
    _store: MutexGuard<'s, ()>,
    _no_fork: RwLockReadGuard<'static, ()>,
}

/// The right to use a list that a child inherits.
pub(crate) type Lists = MutexGuard<'static, ()>;

/// The right to write a ledger in this process, which threads share: one store's disk must not stop another's.
pub(crate) type Ledgers = RwLockReadGuard<'static, ()>;

/// Takes the right to write a ledger. No fork happens while it is held, because a connection to SQLite must not be
/// carried over. `None` if a thread is forking.
pub(crate) fn ledgers() -> Option<Ledgers> {
    register();
    free(LEDGERS.try_read())
}

/// Returns whether a thread waits to fork. Long work on a ledger that can be continued later stops then.
pub(crate) fn is_waiting() -> bool {
    WAITING.load(Relaxed) > 0
}

/// The guard, unless another thread has it. These locks guard no data of their own: a panic under one leaves nothing
/// half done in memory.
fn free<G>(tried: TryLockResult<G>) -> Option<G> {
    match tried {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Takes the right to use a list that a child inherits. A fork waits for it, so the child does not find the list
/// locked.
pub(crate) fn lists() -> Lists {
    register();
    LISTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The longest sleep of a thread that polls for a lock.
pub(crate) const MAX_NAP: Duration = Duration::from_millis(2);

/// Waits for the right to make a structural change of the store whose lock this is, at most for `timeout`.
pub(crate) fn structure(store: &Mutex<()>, timeout: Duration) -> Option<Structure<'_>> {
    register();
    let start = Instant::now();
    let mut nap = Duration::from_micros(20);
    loop {
        // The right to be in no fork comes first: in a child, nobody has the store's lock then.
        if let Some(_no_fork) = free(STRUCTURES.try_read())
            && let Some(_store) = free(store.try_lock())
        {
            return Some(Structure { _store, _no_fork });
        }
        if start.elapsed() >= timeout {
            return None;
        }
        std::thread::sleep(nap);
        nap = (nap * 2).min(MAX_NAP);
    }
}

/// Runs `start`; a thread that it starts gets none of the process's signals.
pub(crate) fn without_signals<R>(start: impl FnOnce() -> R) -> R {
    // SAFETY: both sets are valid for all of the calls, and zeroed ones are valid to be written.
    let before = unsafe {
        let (mut all, mut before) = (std::mem::zeroed::<libc::sigset_t>(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    let started = start();
    // SAFETY: as above; the set is the one that this thread had.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    started
}

extern "C" fn before() {
    WAITING.fetch_add(1, Relaxed);
    let alone = [&LEDGERS, &STRUCTURES].map(|lock| lock.write().unwrap_or_else(PoisonError::into_inner));
    WAITING.fetch_sub(1, Relaxed);
    let lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: this thread holds STRUCTURES alone.
    unsafe { *FORK_GUARDS.0.get() = Some((alone, lists)) };
}

extern "C" fn after_in_parent() {
    // SAFETY: this thread holds STRUCTURES alone, and releases it here.
    drop(unsafe { (*FORK_GUARDS.0.get()).take() });
}

extern "C" fn after_in_child() {
    GENERATION.fetch_add(1, Relaxed);
    // The others that wait are threads of the parent.
    WAITING.store(0, Relaxed);
    invalidate();
    // SAFETY: the child's only thread is a copy of the one that holds STRUCTURES alone.
    drop(unsafe { (*FORK_GUARDS.0.get()).take() });
}

/// A locked value of which a forked child has its own, new one. The parent's may be locked by a thread that the child
/// does not have, and its contents belong to the parent anyway.
#[derive(Debug)]
pub(crate) struct PerProcess<T> {
    current: AtomicPtr<Owned<T>>,
}

#[derive(Debug)]
struct Owned<T> {
    generation: u64,
    value: Mutex<T>,
    /// The value that the parent left. It stays reachable, so that it is no leak.
    left: AtomicPtr<()>,
}

/// The values that parents left in this process.
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
        self.own().lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` if another thread has locked it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.own().try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// This process's value.
    fn own(&self) -> &Mutex<T> {
        let generation = generation();
        loop {
            let current = self.current.load(Acquire);
            // SAFETY: the pointer is null or came from `Box::into_raw` below, and is freed only by `drop`, and never if a
            // parent left it.
            if let Some(owned) = unsafe { current.as_ref() }
                && owned.generation == generation
            {
                return &owned.value;
            }
            let new =
                Box::into_raw(Box::new(Owned { generation, value: Mutex::default(), left: AtomicPtr::default() }));
            if self.current.compare_exchange(current, new, AcqRel, Relaxed).is_err() {
                // SAFETY: no other thread has seen `new`.
                drop(unsafe { Box::from_raw(new) });
            } else if !current.is_null() {
                // The parent's value is left alone: its memory is a copy, and dropping it could end something of the
                // parent's.
                let before = LEFT.swap(current.cast(), AcqRel);
                // SAFETY: it is never freed.
                unsafe { &*current }.left.store(before, Release);
            }
        }
    }
}

/// Returns a random number from `least` to `most`, of a quality sufficient for jitter. A forked child gets another
/// sequence.
#[inline]
pub(crate) fn jitter(least: u64, most: u64) -> u64 {
    if least == most { least } else { drawn(least..=most) }
}

fn drawn(range: RangeInclusive<u64>) -> u64 {
    static GENERATOR: PerProcess<Option<SmallRng>> = PerProcess::new();
    // Without a random source in the system, all processes use the same sequence.
    let new = || SmallRng::try_from_rng(&mut SysRng).unwrap_or_else(|_| SmallRng::seed_from_u64(0));
    GENERATOR.lock().get_or_insert_with(new).random_range(range)
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let current = *self.current.get_mut();
        // SAFETY: as in `lock`; no other thread can reach it any more.
        if let Some(owned) = unsafe { current.as_ref() }
            && owned.generation == generation()
        {
            // SAFETY: as above.
            drop(unsafe { Box::from_raw(current) });
        }
    }
}
