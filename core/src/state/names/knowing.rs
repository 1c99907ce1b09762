//! Calls by name, and for all names, know what limiters of this process will declare (`made.rs`).

use crate::error::{Error, Result};
use crate::state::ledger::declared::{Change, Part, part_names};
use crate::state::session::Session;
use crate::state::session::made::Made;
use crate::waiting::MayWait;
use std::collections::HashSet;
use std::sync::Arc;

/// How many declarations of limiters are made in one transaction.
const AT_ONCE: usize = 64;

impl Session {
    /// Makes a call about a name. If the store does not know the name, a limiter of this process may: then its
    /// declaration is made as by its first use, and the call again.
    pub(crate) fn knowing<R>(&self, name: &str, call: impl Fn() -> Result<R>) -> Result<R> {
        if self.undeclared.is_empty() {
            return call();
        }
        let _one = MayWait::as_one();
        let mut answer = call();
        if let Err(Error::UnknownLimit { .. }) = &answer {
            // If there is none, another thread may have declared it in between.
            if let Some(made) = self.undeclared.of(name) {
                self.declare_now(&[(&made.name, &made.policies)])?;
                self.undeclared.remove(&made.name);
            }
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

#[cfg(test)]
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
