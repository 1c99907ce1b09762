//! Denials of a server, which this process repeats without asking again.
//!
//! A denial says from when on a start is admitted. Until then only an end, a reset or another policy can admit one. If this
//! process does that, it forgets the denial; what others do it notices [`TRUSTED`] later.

use crate::fork::PerProcess;
use crate::hash::Hash;
use crate::time::Tick;
use std::collections::HashMap;
use std::sync::Arc;

/// How long a denial is repeated at most.
const TRUSTED: Tick = 1_000_000;

/// With more of a limit, those that are over are removed first, and then all.
const MANY: usize = 1 << 14;

/// The denials of one store, by limit.
#[derive(Debug, Default)]
pub(crate) struct Denials(PerProcess<HashMap<Arc<str>, OfLimit>>);

#[derive(Debug, Default)]
struct OfLimit {
    /// Grows when something is forgotten. An answer to an earlier question is not remembered.
    changes: u64,
    keys: HashMap<Hash, Denial>,
}

/// A denial. Its times are uptimes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Denial {
    /// The table of the policy by which it was denied.
    pub table: u64,
    pub weight: u64,
    /// When the server was asked, when it would admit the start, and when the key is unused again, if that is known.
    pub asked: Tick,
    pub ready: Tick,
    pub empty: Option<Tick>,
}

impl Denial {
    fn is_over(&self, uptime: Tick) -> bool {
        !(self.asked..self.ready.min(self.asked + TRUSTED)).contains(&uptime)
    }
}

impl Denials {
    /// Called before the server is asked. Returns what [`Denials::remember`] needs.
    pub fn before(&self, limit: &str) -> u64 {
        self.0.lock().get(limit).map_or(0, |of| of.changes)
    }

    pub fn remember(&self, limit: &Arc<str>, key: Hash, denial: Denial, before: u64) {
        if denial.is_over(denial.asked) {
            return;
        }
        let mut all = self.0.lock();
        let of = all.entry(limit.clone()).or_default();
        if of.changes != before {
            return;
        }
        if of.keys.len() >= MANY {
            of.keys.retain(|_, other| !other.is_over(denial.asked));
            if of.keys.len() >= MANY / 2 {
                of.keys.clear();
            }
        }
        of.keys.insert(key, denial);
    }

    /// The denial that a start of this weight would get now, if that is known.
    pub fn find(&self, limit: &str, key: Hash, (table, weight): (u64, u64), uptime: Tick) -> Option<Denial> {
        let found = *self.0.lock().get(limit)?.keys.get(&key)?;
        (found.table == table && found.weight <= weight && !found.is_over(uptime)).then_some(found)
    }

    /// Forgets those of a key, or of the whole limit.
    pub fn forget(&self, limit: &Arc<str>, key: Option<Hash>) {
        let mut all = self.0.lock();
        let of = all.entry(limit.clone()).or_default();
        of.changes += 1;
        match key {
            Some(key) => drop(of.keys.remove(&key)),
            None => of.keys.clear(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_is_repeated_until_a_start_may_be_possible() {
        let (denials, limit, [key, other]) = (Denials::default(), Arc::from("api"), [1, 2].map(|n| Hash([n, n])));
        let denial = Denial { table: 5, weight: 3, asked: 1_000, ready: 1_500, empty: None };
        let is_known = |key: Hash, of: (u64, u64), at: Tick| denials.find("api", key, of, at).is_some();
        denials.remember(&limit, key, denial, denials.before("api"));
        assert!(is_known(key, (5, 3), 1_000) && is_known(key, (5, 4), 1_499));
        assert!(!is_known(key, (5, 3), 1_500) && !is_known(key, (5, 2), 1_000) && !is_known(key, (6, 3), 1_000));
        assert!(!is_known(other, (5, 3), 1_000) && denials.find("else", key, (5, 3), 1_000).is_none());
        let far = Denial { ready: Tick::MAX, ..denial };
        denials.remember(&limit, other, far, denials.before("api"));
        assert!(is_known(other, (5, 3), 1_000_999) && !is_known(other, (5, 3), 1_001_000));
        // A question that was asked before a unit was freed tells nothing about the time after it.
        let before = denials.before("api");
        denials.forget(&limit, Some(key));
        denials.remember(&limit, key, denial, before);
        assert!(!is_known(key, (5, 3), 1_000) && is_known(other, (5, 3), 1_000));
        denials.forget(&limit, None);
        assert!(!is_known(other, (5, 3), 1_000));
    }

    #[test]
    fn they_take_a_bounded_space() {
        let (denials, limit) = (Denials::default(), Arc::from("api"));
        for n in 0..3 * MANY as u64 {
            let denial = Denial { table: 1, weight: 1, asked: n, ready: Tick::MAX, empty: None };
            denials.remember(&limit, Hash([n, n]), denial, 0);
            assert!(denials.find("api", Hash([n, n]), (1, 1), n).is_some());
        }
        assert!(denials.0.lock()["api"].keys.len() <= MANY);
    }
}
