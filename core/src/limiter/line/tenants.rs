//! Whose turn is next among the lines of one driver, where tenants share the limit: each tenant has a line, and all are one.

use crate::limiter::Limiter;
use crate::waiting::AtOnce;
use std::collections::HashMap;
use std::sync::Arc;

/// The lines of a driver. Empty where tenants do not share the limit.
#[derive(Debug, Default)]
pub(super) struct TenantLines {
    /// Their keys, by where they are shown.
    shown: HashMap<usize, Arc<str>>,
    /// Which of them came first at the last look, and whether it had the turn. The others rely on that one.
    first: Option<(usize, bool)>,
}

impl TenantLines {
    /// Notes where a line is shown now. `noted`: where it was.
    pub fn show(&mut self, key: &Arc<str>, noted: &mut Option<usize>, at: Option<usize>) {
        if *noted == at {
            return;
        }
        // (Another line may be shown there by now.)
        if let Some(before) = std::mem::replace(noted, at)
            && self.shown.get(&before) == Some(key)
        {
            self.shown.remove(&before);
        }
        at.into_iter().for_each(|at| _ = self.shown.insert(at, key.clone()));
    }

    /// Returns whether another line came before the one that is shown there, or nowhere.
    pub fn is_behind(&self, at: Option<usize>) -> bool {
        self.first.is_some_and(|(first, _)| Some(first) != at)
    }

    /// Looks again which line comes first. Returns its key if another one did before, or if it has the turn now and had not: it
    /// is due.
    pub fn pass(&mut self, limiter: &dyn Limiter) -> Option<Arc<str>> {
        if !limiter.is_shared() {
            return None;
        }
        let _at_once = AtOnce::enter();
        let first = limiter.next_line(&|at| self.shown.contains_key(&at));
        if std::mem::replace(&mut self.first, first) == first {
            return None;
        }
        first.and_then(|(at, _)| self.shown.get(&at)).cloned()
    }

    /// Forgets which line came first: whichever does at the next look is due.
    pub fn forget_first(&mut self) {
        self.first = None;
    }
}
