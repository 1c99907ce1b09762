//! The steps before a decision is returned: no start exceeds what may be missing from the ledger.

use super::{Key, Limit};
use crate::algorithm::log::{StartId, Taken};
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::state::cells::home::{Blocked, Home, Keeping};
use crate::state::ledger::changed::is_unlisted;
use crate::state::session::wanted::RefusedStart;
use crate::state::writer::unwritten::Unwritten;
use crate::time::{Now, Tick};
use crate::waiting::MayWait;

impl Limit {
    /// Called with every answer before it is returned, with its time and the units that it took. Runs the periodic
    /// duties, and lets no start exceed what may be missing from the ledger.
    #[inline(always)]
    pub fn confirm(&self, key: &Key, now: Now, taken: Option<&Taken>, weight: u64) -> Result<(), Blocked> {
        self.look_after(key.home(), now.floor)?;
        match taken {
            Some(taken) if !matches!(key.table.keeping, Keeping::No) => self.keep(key, now, taken, weight),
            _ => Ok(()),
        }
    }

    /// Ensures that a start gets into the ledger in time.
    #[inline(always)]
    fn keep(&self, key: &Key, now: Now, taken: &Taken, weight: u64) -> Result<(), Blocked> {
        if matches!(key.table.keeping, Keeping::Ahead) {
            return self.keep_ahead(*key, now, *taken, weight);
        }
        if is_unlisted(key.head(), now.floor) { self.list(*key, now) } else { Ok(()) }
    }

    /// The slow path, where the ledger must be written first.
    #[inline(never)]
    fn keep_ahead(&self, key: Key, now: Now, taken: Taken, weight: u64) -> Result<(), Blocked> {
        key.home().behind_door(|| {
            let budget = self.budget(&key);
            let unwritten = key.cells().unwritten(taken.end, now);
            if unwritten > budget || !key.home().is_alive(key.key) {
                return self.wait_for_ledger(&key, &taken, weight, (budget, now));
            }
            if 2 * unwritten > budget {
                self.store.write_ahead(&key.found(), now);
            } else if is_unlisted(key.head(), now.floor) {
                key.found().list(now);
            }
            Ok(())
        })
    }

    #[cold]
    #[inline(never)]
    fn list(&self, key: Key, now: Now) -> Result<(), Blocked> {
        key.home().behind_door(|| {
            key.found().list(now);
            Ok(())
        })
    }

    /// The number of a key's units that may be missing from the ledger.
    #[inline(always)]
    fn budget(&self, key: &Key) -> u64 {
        if key.home().commits { 0 } else { key.table.budget }
    }

    /// Returns whether a start may be decided without checking the ledger.
    #[inline(always)]
    pub fn may_start_at_once(&self, key: &Key) -> bool {
        !matches!(key.table.keeping, Keeping::Ahead) || MayWait::here() != MayWait::Never && !self.store.has_refused()
    }

    /// Returns whether a start now would have to wait for the ledger. For callers that must not wait.
    #[inline(always)]
    pub fn would_wait(&self, key: &Key, weight: u64) -> Result<bool, Blocked> {
        if key.table.keeping == Keeping::Ahead { self.has_spent_budget(*key, weight) } else { Ok(false) }
    }

    #[inline(never)]
    fn has_spent_budget(&self, key: Key, weight: u64) -> Result<bool, Blocked> {
        if MayWait::here() != MayWait::Never {
            if self.store.has_refused() {
                if !MayWait::is_one() {
                    return Err(Blocked::Refusals);
                }
                self.store.take_back_first();
            }
            return Ok(false);
        }
        if Unwritten::is_collecting() {
            return Ok(self.store.has_refused());
        }
        key.home().behind_door(|| {
            let (unlogged, _) = key.cells().unlogged(key.table.policy.longest(), key.home().clock.now());
            Ok(unlogged.iter().map(|start| start.units).sum::<u64>().saturating_add(weight) > self.budget(&key))
        })
    }

    /// Runs the once-a-second duties.
    #[inline(always)]
    pub fn look_after(&self, home: &Home, now: Tick) -> Result<(), Blocked> {
        if now >= home.next_look.load(Relaxed) { self.look_after_all(home, now) } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    fn look_after_all(&self, home: &Home, now: Tick) -> Result<(), Blocked> {
        home.behind_door(|| {
            if !home.is_still_there(now) {
                return Err(Blocked::Lost);
            }
            self.store.look_after();
            Ok(())
        })
    }

    /// The job has not started yet. If the ledger cannot be written, it must not start, and no unit counts as taken.
    #[cold]
    fn wait_for_ledger(&self, key: &Key, taken: &Taken, weight: u64, budget: (u64, Now)) -> Result<(), Blocked> {
        let (found, start) = (key.found(), refused(key, taken, weight));
        let written = match Unwritten::instead(&self.store, start, || self.store.want(&found, budget.1)) {
            Some(answer) => answer.map_err(Blocked::from),
            None => self.store.wait_for_ledger(&found, taken.end, budget),
        };
        if written.is_err() {
            self.refuse(key, taken, weight)?;
        }
        written
    }

    /// Ensures that units which an edit has added to a key get into the ledger in time. They are not taken back. A caller
    /// that must not wait for others leaves them to the next writer.
    #[cold]
    pub fn keep_added(&self, key: &Key) -> Result<(), Blocked> {
        if key.table.keeping != Keeping::Ahead {
            return Ok(());
        }
        let (budget, now) = (self.budget(key), key.now());
        let (unlogged, end) = key.cells().unlogged(key.table.policy.longest(), now);
        if unlogged.iter().map(|start| start.units).sum::<u64>() > budget && MayWait::here() != MayWait::Never {
            match self.store.wait_for_ledger(&key.found(), end, (budget, now)) {
                Err(Blocked::Refused(Error::StoreTimeout { .. })) if MayWait::here() != MayWait::UntilTimeout => {}
                written => return written,
            }
        }
        self.store.write_ahead(&key.found(), now);
        Ok(())
    }

    /// Takes a start back, now or later.
    #[cold]
    pub fn refuse(&self, key: &Key, taken: &Taken, weight: u64) -> Result<()> {
        self.store.refuse(refused(key, taken, weight));
        Ok(())
    }
}

/// The description of a start that has to be taken back.
fn refused(key: &Key, taken: &Taken, weight: u64) -> RefusedStart {
    let (instance, limit) = (key.home().instance, key.limit());
    let start = StartId { ticket: taken.ticket, stamp: taken.stamp, weight };
    RefusedStart { instance, limit, hash: key.hash, start, ahead: taken.ahead }
}
