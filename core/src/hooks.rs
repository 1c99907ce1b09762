//! Hooks: functions that are called when a start is delayed, or cannot be decided.
//!
//! `limiter/events.rs` decides when they are called, and with which event.

use crate::error::Error;
use crate::fork;
use crate::waiting::MayWait;
use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The kinds of events that a hook can subscribe to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happening {
    /// A start was denied, or has to wait.
    Throttled,
    /// A name is not declared.
    UnknownLimit,
    /// The store failed a decision, even if the failure policy answered instead.
    StoreError,
}

impl Happening {
    /// Returns the event that an error causes, if any.
    pub(crate) fn of(error: &Error) -> Option<Happening> {
        match error {
            Error::UnknownLimit { .. } => Some(Happening::UnknownLimit),
            error if error.is_store_failure() => Some(Happening::StoreError),
            _ => None,
        }
    }
}

/// The event that a hook receives.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Event {
    /// The kind of event.
    pub happening: Happening,
    /// The limit's name: with several limits, the one that denied the start. Empty if the event concerns the whole
    /// store.
    pub limit: Arc<str>,
    /// The key; empty for none.
    pub key: String,
    /// The units that were requested.
    pub wanted: u64,
    /// Units may be free after this long; zero if the event does not concern units.
    pub wait: Duration,
    /// The error. `None` if there is none, or if the store's [`OnError`](crate::OnError) answered instead.
    pub error: Option<Error>,
}

/// A function that receives events. It takes no part in decisions.
pub type Hook = Arc<dyn Fn(&Event) + Send + Sync>;

/// The number of a hook: see [`Limiter::off`](crate::Limiter::off). Numbers are never reused.
pub type HookId = u64;

/// Calls of hooks that are still to be made.
pub(crate) type Calls = Vec<(Hook, Event)>;

thread_local! {
    static LATER: RefCell<Option<Calls>> = const { RefCell::new(None) };
}

/// Makes calls on behalf of another thread, which has to call the hooks: see [`make`].
pub(crate) fn for_another_thread<R>(call: impl FnOnce() -> R) -> (R, Calls) {
    LATER.set(Some(Vec::new()));
    let answer = call();
    (answer, LATER.take().unwrap_or_default())
}

/// Calls hooks with the events of a call that another thread made.
pub(crate) fn make(calls: Calls) {
    calls.into_iter().for_each(|(hook, event)| call_one(&hook, &event));
}

/// Calls a hook. It takes no part in decisions, so a panic, which has been reported, ends nothing but its call: its
/// caller may hold a start that nobody else knows of. Nor does the way in which its caller may wait apply to its own calls.
fn call_one(hook: &Hook, event: &Event) {
    let _ = catch_unwind(AssertUnwindSafe(|| MayWait::outside(|| hook(event))));
}

/// The hooks of a limiter or a store. A forked child inherits them.
#[derive(Default)]
pub(crate) struct Hooks {
    count: AtomicUsize,
    /// Locked only by holders of [`fork::lists`].
    all: Mutex<Vec<(HookId, Happening, Hook)>>,
}

impl Hooks {
    /// Returns whether there are hooks.
    #[inline(always)]
    pub fn are_any(&self) -> bool {
        self.count.load(Relaxed) != 0
    }

    pub fn add(&self, happening: Happening, hook: Hook) -> HookId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Relaxed);
        self.with(|all| all.push((id, happening, hook)));
        id
    }

    pub fn remove(&self, id: HookId) {
        // Dropping a hook may call this code again, so it is dropped after the lock.
        let _gone = self.with(|all| all.iter().position(|(other, ..)| *other == id).map(|at| all.remove(at)));
    }

    pub fn call(&self, event: &Event) {
        if self.are_any() {
            let wanted = |(_, of, hook): &(HookId, Happening, Hook)| (*of == event.happening).then(|| hook.clone());
            let hooks: Vec<Hook> = self.with(|all| all.iter().filter_map(wanted).collect());
            let is_later = |hook: &Hook| {
                LATER.with_borrow_mut(|later| {
                    later.as_mut().map(|later| later.push((hook.clone(), event.clone()))).is_some()
                })
            };
            hooks.iter().filter(|hook| !is_later(hook)).for_each(|hook| call_one(hook, event));
        }
    }

    fn with<R>(&self, f: impl FnOnce(&mut Vec<(HookId, Happening, Hook)>) -> R) -> R {
        let _no_fork = fork::lists();
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = f(&mut all);
        self.count.store(all.len(), Relaxed);
        answer
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} hooks", self.count.load(Relaxed))
    }
}
