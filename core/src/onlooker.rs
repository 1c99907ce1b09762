//! An [`Observer`] for a program's threads and forked children.

use crate::error::{Error, Result};
use crate::fork;
use crate::observer::Observer;
use crate::snapshot::Snapshot;
use crate::state::Store;
use std::fmt;
use std::sync::Mutex;

/// Takes [`Snapshot`]s of a store from any thread. It keeps its [`Observer`] and that observer's knowledge for the next snapshot.
///
/// Calls do not block each other: a concurrent call uses a new observer, and so does a forked child.
pub struct Onlooker {
    store: Store,
    resting: Mutex<Option<Resting>>,
}

struct Resting {
    generation: u64,
    keys: usize,
    observer: Observer,
}

impl Onlooker {
    /// The most keys of a limit in a snapshot.
    pub const MAX_KEYS: usize = 1_000;

    /// Creates an onlooker for a store.
    pub fn new(store: &Store) -> Onlooker {
        Onlooker { store: store.clone(), resting: Mutex::new(None) }
    }

    /// Takes a snapshot with at most `keys` keys of each limit.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `keys` is above 1,000; otherwise as for [`Observer::look`].
    pub fn look(&self, keys: usize) -> Result<Snapshot> {
        if keys > Self::MAX_KEYS {
            return Err(Error::invalid("keys", keys, format!("0 to {}", Self::MAX_KEYS)));
        }
        let generation = fork::generation();
        // The mutex is held only to take or to put back the observer, and never waited for: a forked child may inherit it locked.
        let rested = self.resting.try_lock().ok().and_then(|mut resting| resting.take());
        let mut looking = match rested {
            Some(rested) if rested.generation == generation && rested.keys >= keys => rested,
            _ => Resting { generation, keys, observer: Observer::new(&self.store, keys) },
        };
        let looked = looking.observer.look();
        if fork::generation() == generation
            && let Ok(mut resting) = self.resting.try_lock()
        {
            *resting = Some(looking);
        }
        let mut snapshot = looked?;
        for limit in &mut snapshot.limits {
            limit.hot_keys.truncate(keys);
        }
        Ok(snapshot)
    }
}

impl fmt::Debug for Onlooker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Onlooker").field("store", &self.store.url()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_number_of_keys_is_refused_before_the_store_opens() {
        let store = Store::new("sqlite:/nowhere/at/all/limits.db").unwrap();
        let refused = Onlooker::new(&store).look(Onlooker::MAX_KEYS + 1).unwrap_err();
        assert_eq!(refused.to_string(), "keys is 1001: expected 0 to 1000");
        assert_eq!(Onlooker::new(&store).look(Onlooker::MAX_KEYS).unwrap_err().name(), "store_failure");
    }

    #[test]
    fn an_observer_with_enough_keys_is_reused() {
        let onlooker = Onlooker::new(&Store::new("memory:").unwrap());
        for (asked, known) in [(5, 5), (0, 5), (9, 9), (9, 9)] {
            onlooker.look(asked).unwrap();
            assert_eq!(onlooker.resting.lock().unwrap().as_ref().unwrap().keys, known);
        }
    }
}
