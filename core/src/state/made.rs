//! The declarations that limiters of this process will make at their first use.
//!
//! Making a limiter opens nothing, so its store does not know the limit yet. A call by name, or for all names, declares
//! it first: what this process made, its store knows. Such a call declares only names that the store does not know. It
//! never changes a policy that applies already, by another process or a later declaration; that is left to the
//! limiter's first use. A name that the store knows, or has known, is no longer listed here. So a name that was
//! forgotten returns only when its limiter is used.

use super::declare::{Change, Part, part_names};
use super::session::Session;
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::fork;
use crate::policy::Policy;
use crate::waiting::MayWait;
use std::collections::{BTreeMap, HashSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// How many declarations of limiters are made in one transaction.
const AT_ONCE: usize = 64;

/// The declaration of a limiter: of one limit, or of several under a name that means all of them.
#[derive(Debug)]
pub(crate) struct Made {
    store: Arc<Session>,
    pub name: Arc<str>,
    pub policies: Vec<Policy>,
    /// Whether the limiter has declared it.
    pub is_declared: AtomicBool,
    number: u64,
}

impl Made {
    pub fn new(store: &Arc<Session>, name: &str, policies: Vec<Policy>) -> Arc<Made> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (store, name, number) = (store.clone(), name.into(), NEXT.fetch_add(1, Relaxed));
        let made = Arc::new(Made { store, name, policies, is_declared: AtomicBool::new(false), number });
        let key = (made.name.clone(), number);
        made.store.undeclared.with(|all| all.insert(key, Arc::downgrade(&made)));
        made
    }

    /// The names that its declaration concerns.
    pub fn names(&self) -> Vec<String> {
        let whole = (self.policies.len() > 1).then(|| self.name.to_string());
        whole.into_iter().chain(part_names(&self.name, &self.policies)).collect()
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        self.store.undeclared.with(|all| all.remove(&(self.name.clone(), self.number)));
    }
}

/// By name, and in the order in which they were made. A limiter that is dropped removes its entry.
type ByName = BTreeMap<(Arc<str>, u64), Weak<Made>>;

/// What limiters of this process have made and the store does not know yet. A forked child inherits it.
#[derive(Debug, Default)]
pub(super) struct Undeclared {
    count: AtomicUsize,
    /// Locked only by holders of [`fork::lists`], who drop no [`Made`] meanwhile.
    all: Mutex<ByName>,
}

impl Undeclared {
    fn with<R>(&self, f: impl FnOnce(&mut ByName) -> R) -> R {
        let _no_fork = fork::lists();
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = f(&mut all);
        self.count.store(all.len(), Relaxed);
        answer
    }

    fn is_empty(&self) -> bool {
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
    fn of(&self, name: &str) -> Option<Arc<Made>> {
        let last_of = |name: &str| {
            let all_of = all_of(name);
            self.with(|all| all.range(all_of).rev().find_map(|(_, made)| made.upgrade()))
        };
        last_of(name)
            .or_else(|| last_of(name.rsplit_once('/')?.0).filter(|made| made.names().iter().any(|n| n == name)))
    }

    /// The names in order.
    fn names(&self) -> impl Iterator<Item = Arc<str>> {
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

impl Session {
    /// Makes a call about a name. If the store does not know the name, a limiter of this process may: then its
    /// declaration is made as by its first use, and the call again.
    pub(crate) fn knowing<R>(&self, name: &str, call: impl Fn() -> Result<R>) -> Result<R> {
        if self.undeclared.is_empty() {
            return call();
        }
        let _one = MayWait::as_one();
        let mut answer = call();
        if let Err(Error::UnknownLimit { .. }) = &answer
            && let Some(made) = self.undeclared.of(name)
        {
            self.declare_now(&[(&made.name, &made.policies)])?;
            self.undeclared.remove(&made.name);
            answer = call();
        }
        if answer.is_ok() {
            self.undeclared.remove(name);
        }
        answer
    }

    /// Makes a call about all names, after the declarations of this process's limiters under names that the store does
    /// not know. A declaration that is refused is left to its limiter, whose first use reports why.
    pub(crate) fn knowing_all<R>(&self, call: impl FnOnce() -> Result<R>) -> Result<R> {
        if self.undeclared.is_empty() {
            return call();
        }
        let _one = MayWait::as_one();
        match self.declare_unknown() {
            Err(error @ (Error::WouldWait | Error::StoreTimeout { .. })) => Err(error),
            // If the store fails, so does the call. If it only cannot be written, the call need not fail.
            Err(_) | Ok(()) => call(),
        }
    }

    fn declare_unknown(&self) -> Result<()> {
        // On a server, each name is a request.
        let at_once = if self.server().is_some() { 1 } else { AT_ONCE };
        let mut names = self.undeclared.names();
        loop {
            let some: Vec<Arc<str>> = names.by_ref().take(at_once).collect();
            if some.is_empty() {
                return Ok(());
            }
            let some: Vec<Arc<Made>> = some.iter().filter_map(|name| self.undeclared.of(name)).collect();
            self.declare_unknown_of(&some)?;
        }
    }

    /// Declares those of them whose names the store does not know, in one transaction.
    fn declare_unknown_of(&self, some: &[Arc<Made>]) -> Result<()> {
        let names: Vec<String> = some.iter().flat_map(|made| made.names()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (known, parts) = self.with_names(&names, |locked| {
            let (mut known, mut new, mut taken) = (Vec::new(), Vec::new(), HashSet::new());
            for made in some {
                if !self.family(&made.name)?.parts(&made.name).is_empty() {
                    known.push(made.name.clone());
                    continue;
                }
                let is_free = |change: &Change| {
                    let is_new = |part: &Part| part.before.is_none() && !taken.contains(&part.name);
                    change.parts.iter().all(is_new) && !taken.contains(&change.name)
                };
                match self.change(&made.name, &made.policies) {
                    Ok(change) if is_free(&change) => {
                        taken.extend(made.names());
                        new.push((&*made.name, made.policies.as_slice()));
                    }
                    Ok(_) | Err(Error::KindMismatch { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            self.declare_all(&new, locked)?;
            known.extend(new.iter().map(|(name, _)| Arc::from(*name)));
            let parts: Vec<String> = new.iter().flat_map(|(name, policies)| part_names(name, policies)).collect();
            Ok((known, parts))
        })?;
        known.iter().for_each(|name| self.undeclared.remove(name));
        self.settle(&parts.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The error for a name that no limit has. `known` are the names that the store knows.
    pub(super) fn unknown_beside<R>(&self, name: &str, mut known: Vec<String>) -> Result<R> {
        known.extend(self.undeclared.names().map(|name| name.to_string()));
        known.sort();
        known.dedup();
        Err(Error::UnknownLimit { name: name.to_owned(), known })
    }
}

#[cfg(all(test, not(model)))]
mod tests {
    use crate::state::Store;

    #[test]
    fn limiters_leave_nothing_whether_used_or_dropped() {
        let store = Store::new("memory:").unwrap();
        let count = || store.session().undeclared.with(|all| all.len());
        let all: Vec<_> = (0..100).map(|i| store.limiter(&i.to_string(), "5/1h + 2 concurrent").unwrap()).collect();
        (0..1_000).for_each(|_| drop(store.limiter("api", "5/1h").unwrap()));
        assert_eq!(count(), 100);
        all[..50].iter().for_each(|limiter| limiter.open().unwrap());
        assert_eq!(count(), 50);
        drop(all);
        assert_eq!(count(), 0);
    }
}
