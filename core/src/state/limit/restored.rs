//! Keys that are only in the ledger: see `restoring.rs`.

use super::{Limit, NO_TEXT};
use crate::error::{Error, Result};
use crate::fault;
use crate::fork::jitter;
use crate::hash::Hash;
use crate::state::cells::home::Blocked;
use crate::state::ledger::restoring::Rows;
use crate::waiting::MayWait;
use std::ptr;
use std::time::{Duration, Instant};

/// What became of a key that was not in the lane.
enum Restored {
    /// It is there now.
    There,
    /// The ledger has nothing that counts of it.
    New,
    /// There is no space for it. Make some.
    Full,
    /// Its limit is elsewhere by now.
    Elsewhere,
}

impl Limit {
    /// Restores a key, if it is not in the lane. If the ledger has nothing of it either, it is added, or not. Returns
    /// whether it is there.
    pub(super) fn restore(&self, hash: Hash, text: &str, adds: bool) -> Result<bool> {
        let (began, patience) = (Instant::now(), MayWait::patience(self.store.options.timeout)?);
        loop {
            let tried = self.try_restore(hash, text, adds);
            let is_over = || began.elapsed() >= patience;
            match tried {
                Ok(Restored::There) => return Ok(true),
                Ok(Restored::New) => return Ok(false),
                Ok(Restored::Full) => self.make_space(hash)?,
                Ok(Restored::Elsewhere) if is_over() => {
                    return Err(Error::busy(format!("using {}", self.store.url())).after(began));
                }
                Ok(Restored::Elsewhere) => drop(self.bind_again()?),
                // Another program has locked the database.
                Err(Error::StoreTimeout { .. }) if !is_over() => {
                    std::thread::sleep(Duration::from_micros(jitter(500, 1_500)));
                }
                Err(error) => return Err(error.after(began)),
            }
        }
    }

    fn try_restore(&self, hash: Hash, text: &str, adds: bool) -> Result<Restored> {
        let bound = self.bound()?;
        let (home, table) = (bound.home(), bound.latest());
        if !home.of(table).is_added_under_lock() {
            return Ok(Restored::There);
        }
        let rows = match home.of(table).may_restore() {
            true => self.store.rows_of(home, ((home.limit(bound.limit).id(), hash), table.policy.longest()))?,
            false => Rows::default(),
        };
        if rows.is_empty() && !adds {
            return Ok(Restored::New);
        }
        fault::point("key-read");
        // A caller that knows only the hash has no text.
        let text = if text == NO_TEXT && !rows.is_empty() { &rows.text } else { text };
        self.with_table(|locked, limit, table| {
            if !ptr::eq(locked.home, home) || limit != bound.limit {
                return Ok(Restored::Elsewhere);
            }
            if !rows.is_empty() {
                return locked.restore_key_anyway(table, hash, text, &rows).map(|()| Restored::There);
            }
            match locked.restore_key(table, hash, text, &rows) {
                Ok(()) => Ok(Restored::There),
                Err(Blocked::Full) => Ok(Restored::Full),
                Err(Blocked::Refused(error)) => Err(error),
                Err(_) => Ok(Restored::Elsewhere),
            }
        })
    }
}
