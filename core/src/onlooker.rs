//! An [`Observer`] for a program's threads and forked children.

use crate::error::{Error, Result};
use crate::fork;
use crate::observe::{Observer, Snapshot};
use crate::state::Store;
use std::fmt;
use std::sync::Mutex;

/// Takes [`Snapshot`]s of a store from any thread. It keeps its [`Observer`], and what that one knows, for the next look.
///
/// Nobody waits for another's look: who looks meanwhile does so with an observer of their own, and so does a forked child.
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
    /// The most keys of a limit that a look names.
    pub const MOST_KEYS: usize = 1_000;

    /// Looks at a store.
    pub fn new(store: &Store) -> Onlooker {
        Onlooker { store: store.clone(), resting: Mutex::new(None) }
    }

    /// Takes a snapshot that names so many keys of each limit at most.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `keys` is above 1,000; else as for [`Observer::look`].
    pub fn look(&self, keys: usize) -> Result<Snapshot> {
        if keys > Self::MOST_KEYS {
            return Err(Error::invalid("keys", keys, format!("0 to {}", Self::MOST_KEYS)));
        }
        let generation = fork::generation();
        // Nothing is done under the mutex but this, and who does not get it goes without: a child inherits it as it was.
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
    fn keys_are_checked_before_anything_is_opened() {
        let store = Store::new("sqlite:/nowhere/at/all/limits.db").unwrap();
        let refused = Onlooker::new(&store).look(Onlooker::MOST_KEYS + 1).unwrap_err();
        assert_eq!(refused.to_string(), "keys is 1001: expected 0 to 1000");
        assert_eq!(Onlooker::new(&store).look(Onlooker::MOST_KEYS).unwrap_err().name(), "store_failure");
    }

    #[test]
    fn the_observer_that_knows_enough_keys_is_kept() {
        let onlooker = Onlooker::new(&Store::new("memory:").unwrap());
        for (asked, known) in [(5, 5), (0, 5), (9, 9), (9, 9)] {
            onlooker.look(asked).unwrap();
            assert_eq!(onlooker.resting.lock().unwrap().as_ref().unwrap().keys, known);
        }
    }
}
