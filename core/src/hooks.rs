//! Who wants to hear of it when starts are held up, or cannot be decided.
//!
//! When they are told, and of what, is in `limiter/heard.rs`.

use crate::error::Error;
use crate::fork;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What can be listened to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happening {
    /// A start was denied, or has to wait.
    Throttled,
    /// A name is not declared.
    UnknownLimit,
    /// The store failed a decision, whatever was answered instead.
    StoreError,
}

impl Happening {
    /// What an error is to those who listen.
    pub(crate) fn of(error: &Error) -> Option<Happening> {
        match error {
            Error::UnknownLimit { .. } => Some(Happening::UnknownLimit),
            error if error.is_of_the_store() => Some(Happening::StoreError),
            _ => None,
        }
    }
}

/// What a hook is told.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Event {
    /// What happened.
    pub happening: Happening,
    /// The name of the limit: of the one that said no, where several were asked. Empty if it is about the whole store.
    pub limit: Arc<str>,
    /// The key; empty for none.
    pub key: String,
    /// The units that were asked for.
    pub wanted: u64,
    /// After this long there may be room; zero if it is not about room.
    pub wait: Duration,
    /// What is wrong. `None` if nothing is, or if the store's [`OnError`](crate::OnError) answered in its stead.
    pub error: Option<Error>,
}

/// What is called. It decides nothing.
pub type Hook = Arc<dyn Fn(&Event) + Send + Sync>;

/// Which hook: see [`Limiter::off`](crate::Limiter::off). No number is used twice.
pub type HookId = u64;

/// The hooks of a limiter or a store. A forked child has them, too.
#[derive(Default)]
pub(crate) struct Hooks {
    count: AtomicUsize,
    /// Locked only by who has [`fork::lists`].
    all: Mutex<Vec<(HookId, Happening, Hook)>>,
}

impl Hooks {
    /// Does anybody listen?
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
        // What its end sets off may come here again: so it ends after this.
        let _gone = self.with(|all| all.iter().position(|(other, ..)| *other == id).map(|at| all.remove(at)));
    }

    pub fn call(&self, event: &Event) {
        if self.are_any() {
            let wanted = |(_, of, hook): &(HookId, Happening, Hook)| (*of == event.happening).then(|| hook.clone());
            let hooks: Vec<Hook> = self.with(|all| all.iter().filter_map(wanted).collect());
            hooks.iter().for_each(|hook| hook(event));
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
