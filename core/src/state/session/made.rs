//! The declarations that limiters of this process will make at their first use.
//!
//! Making a limiter opens nothing, so its store does not know the limit yet. A call by name, or for all names, declares
//! it first: what this process made, its store knows. That holds for a limiter that was dropped unused, too: a program may
//! declare a limit only for others, or for a call by its name. Such a call declares only names that the store does not know.
//! It never changes a policy that applies already, by another process or a later declaration; that is left to the
//! limiter's first use. A name that the store knows, or has known, is no longer listed here. So a name that was
//! forgotten returns only when its limiter is used.

use crate::atomic::*;
use crate::fork;
use crate::policy::{NamedPolicy, is_composite};
use crate::state::ledger::declared::part_names;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};

/// The declaration of a limiter: of one limit, or of several under a name that means all of them.
#[derive(Debug)]
pub(crate) struct Made {
    pub name: Arc<str>,
    pub policies: Vec<NamedPolicy>,
    /// Whether the limiter has declared it.
    pub is_declared: AtomicBool,
}

impl Made {
    /// The names that its declaration concerns.
    pub fn names(&self) -> Vec<String> {
        let whole = is_composite(&self.policies).then(|| self.name.to_string());
        whole.into_iter().chain(part_names(&self.name, &self.policies)).collect()
    }
}

/// What was made last under each name.
type ByName = BTreeMap<Arc<str>, Arc<Made>>;

/// What limiters of this process have made and the store does not know yet. A forked child inherits it.
#[derive(Debug, Default)]
pub(crate) struct Undeclared {
    count: AtomicUsize,
    /// Locked only by holders of [`fork::lists`].
    all: Mutex<ByName>,
}

impl Undeclared {
    pub fn make(&self, name: &str, policies: Vec<NamedPolicy>) -> Arc<Made> {
        let made = Arc::new(Made { name: name.into(), policies, is_declared: AtomicBool::new(false) });
        self.with(|all| all.insert(made.name.clone(), made.clone()));
        made
    }

    pub(in crate::state) fn with<R>(&self, f: impl FnOnce(&mut ByName) -> R) -> R {
        let _no_fork = fork::lists();
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = f(&mut all);
        self.count.store(all.len(), Relaxed);
        answer
    }

    pub fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Removes a name, because the store knows it.
    pub fn remove(&self, name: &str) {
        if !self.is_empty() {
            self.with(|all| all.remove(name));
        }
    }

    /// What was made last under this name, or else the composite of which it is a part.
    pub fn of(&self, name: &str) -> Option<Arc<Made>> {
        let last_of = |name: &str| self.with(|all| all.get(name).cloned());
        last_of(name)
            .or_else(|| last_of(name.rsplit_once('/')?.0).filter(|made| made.names().iter().any(|n| n == name)))
    }

    /// The names in order.
    pub fn names(&self) -> impl Iterator<Item = Arc<str>> {
        let next = |after: &Arc<str>| {
            self.with(|all| all.range::<str, _>((Excluded(&**after), Unbounded)).next().map(|(name, _)| name.clone()))
        };
        // No name is empty.
        std::iter::successors(Some("".into()), move |after| next(after)).skip(1)
    }
}
