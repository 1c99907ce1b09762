//! The declarations that limiters of this process will make at their first use.
//!
//! Making a limiter opens nothing, so its store does not know the limit yet. A call by name, or for all names, declares
//! it first: what this process made, its store knows. Such a call declares only names that the store does not know. It
//! never changes a policy that applies already, by another process or a later declaration; that is left to the
//! limiter's first use. A name that the store knows, or has known, is no longer listed here. So a name that was
//! forgotten returns only when its limiter is used.

use crate::atomic::*;
use crate::fork;
use crate::policy::{NamedPolicy, is_composite};
use crate::state::ledger::declared::part_names;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The declaration of a limiter: of one limit, or of several under a name that means all of them.
#[derive(Debug)]
pub(crate) struct Made {
    undeclared: Arc<Undeclared>,
    pub name: Arc<str>,
    pub policies: Vec<NamedPolicy>,
    /// Whether the limiter has declared it.
    pub is_declared: AtomicBool,
    number: u64,
}

impl Made {
    pub fn new(undeclared: &Arc<Undeclared>, name: &str, policies: Vec<NamedPolicy>) -> Arc<Made> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (undeclared, name, number) = (undeclared.clone(), name.into(), NEXT.fetch_add(1, Relaxed));
        let made = Arc::new(Made { undeclared, name, policies, is_declared: AtomicBool::new(false), number });
        let key = (made.name.clone(), number);
        made.undeclared.with(|all| all.insert(key, Arc::downgrade(&made)));
        made
    }

    /// The names that its declaration concerns.
    pub fn names(&self) -> Vec<String> {
        let whole = is_composite(&self.policies).then(|| self.name.to_string());
        whole.into_iter().chain(part_names(&self.name, &self.policies)).collect()
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        self.undeclared.with(|all| all.remove(&(self.name.clone(), self.number)));
    }
}

/// By name, and in the order in which they were made. A limiter that is dropped removes its entry.
type ByName = BTreeMap<(Arc<str>, u64), Weak<Made>>;

/// What limiters of this process have made and the store does not know yet. A forked child inherits it.
#[derive(Debug, Default)]
pub(crate) struct Undeclared {
    count: AtomicUsize,
    /// Locked only by holders of [`fork::lists`], who drop no [`Made`] meanwhile.
    all: Mutex<ByName>,
}

impl Undeclared {
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
            let all_of = all_of(name);
            self.with(|all| {
                while let Some((key, _)) = all.range(all_of.clone()).next() {
                    let key = key.clone();
                    all.remove(&key);
                }
            });
        }
    }

    /// What was made last under this name, or else the composite of which it is a part.
    pub fn of(&self, name: &str) -> Option<Arc<Made>> {
        let last_of = |name: &str| {
            let all_of = all_of(name);
            self.with(|all| all.range(all_of).rev().find_map(|(_, made)| made.upgrade()))
        };
        last_of(name)
            .or_else(|| last_of(name.rsplit_once('/')?.0).filter(|made| made.names().iter().any(|n| n == name)))
    }

    /// The names in order.
    pub fn names(&self) -> impl Iterator<Item = Arc<str>> {
        let next = |after: &Arc<str>| {
            let all_of = all_of(after);
            self.with(|all| all.range((Excluded(all_of.end()), Unbounded)).next().map(|((name, _), _)| name.clone()))
        };
        // No name is empty.
        std::iter::successors(Some("".into()), move |after| next(after)).skip(1)
    }
}

/// The entries of a name.
fn all_of(name: &str) -> RangeInclusive<(Arc<str>, u64)> {
    let name: Arc<str> = name.into();
    (name.clone(), 0)..=(name, u64::MAX)
}
