//! Keys that are only in the ledger are restored: each at its first use, and the others by the ledger's writer.

use super::TAKEN_BACK_BY;
use crate::damage::or_damaged;
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::state::cells::home::Home;
use crate::state::cells::layout::{LimitAt, RESTORING};
use crate::state::cells::locked::Locked;
use crate::state::ledger::gather::moment;
use crate::state::ledger::restoring::{LedgerKey, Past, Rows};
use crate::state::session::Session;
use crate::time::Tick;
use crate::{fault, fork};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long the ledger's writer restores keys each second.
const EACH_SECOND: Duration = Duration::from_millis(20);

impl Session {
    /// Reads the rows of a key that is not in the lane. Not under the structure lock: another program may have locked the
    /// database.
    pub(in crate::state) fn rows_of(&self, home: &Home, key: (LedgerKey, Tick)) -> Result<Rows> {
        let _no_fork = fork::ledgers().ok_or_else(|| Error::busy(format!("reading {}", self.url())))?;
        let now = moment(home).1.uptime;
        self.connect()?.rows_of_key(key, now, home.past())
    }

    /// Restores a key that gets a policy of its own, or another one. For the holder of the structure lock.
    pub(in crate::state) fn restore_locked(
        &self,
        locked: &Locked,
        limit: LimitAt,
        (hash, text): (Hash, &str),
    ) -> Result<()> {
        let table = locked.limit(limit).table();
        if locked.of(&table).may_restore() && locked.index(&table).block(hash).is_none() {
            let (now, key) = (moment(locked).1.uptime, ((locked.limit(limit).id(), hash), table.policy.longest()));
            let rows = self.with_database(|database| database.rows_of_key(key, now, locked.past()))?;
            if !rows.is_empty() {
                locked.restore_key_anyway(&table, hash, text, &rows)?;
            }
        }
        Ok(())
    }

    /// Restores keys for a moment, if there are any left and no other caller is writing. What fails is tried again in a
    /// second.
    pub(super) fn restore_some(&self) {
        let began = Instant::now();
        while self.home().is_restoring() && began.elapsed() < EACH_SECOND && !fault::leaves_keys() {
            // Other programs may have written to the lane.
            if or_damaged(|| self.lane_path(), || self.restore_next()).is_err() {
                return;
            }
        }
    }

    fn restore_next(&self) -> Result<()> {
        let Some(lead) = self.try_lead()? else { return Err(Error::busy(format!("restoring {}", self.url()))) };
        let (home, next) = (lead.home, RESTORING + 1 + Past::WORDS);
        let first = home.get::<1>(next)[0] as i64;
        let (past, now) = (home.past(), moment(home).1.uptime);
        let (found, then) = self.with_ledger(&lead, |database| {
            let (keys, then) = database.keys_to_restore(first, past)?;
            let limits = home.limits().map(|limit| (home.limit(limit).id(), (limit, home.limit(limit).table())));
            let limits: BTreeMap<_, _> = limits.filter(|(_, (_, table))| home.of(table).may_restore()).collect();
            let here = keys.iter().filter_map(|key| limits.get(&key.0).zip(Some(*key)));
            let here: Vec<_> = here.collect();
            let wanted: Vec<_> = here.iter().map(|((_, table), key)| (*key, table.policy.longest())).collect();
            let rows = database.rows_to_restore(&wanted, now, past)?;
            let found = here.iter().zip(rows).map(|(((limit, _), (_, hash)), rows)| (*limit, *hash, rows));
            let found: Vec<_> = found.filter(|(.., rows)| !rows.is_empty()).collect();
            if found.is_empty() && then == i64::MAX {
                database.end_index_of_keys()?;
            }
            Ok((found, then))
        })?;
        fault::point("rows-read");
        self.with_lane_of(&lead, TAKEN_BACK_BY, |locked| {
            let began = Instant::now();
            for (limit, hash, rows) in &found {
                // The rest waits for the next second.
                if began.elapsed() > EACH_SECOND {
                    return Err(Error::busy(format!("restoring {}", self.url())));
                }
                locked.restore_key_anyway(&locked.limit(*limit).table(), *hash, &rows.text, rows)?;
            }
            fault::point("rows-restored");
            match found.is_empty() && then == i64::MAX {
                true => locked.all_restored(),
                false => locked.set(next, [then as u64]),
            }
            Ok(())
        })
    }
}
