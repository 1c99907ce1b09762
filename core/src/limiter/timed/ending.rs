//! How starts and places end, and starts that callers decided themselves.

use super::{Timed, known};
use crate::algorithm::log::{Ask, PLACE, SETTLED};
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::permit::{RawPermit, TimedPermit};
use crate::policy;
use crate::server::number;
use crate::state::counts::{ADMITTED, CANCELLED};
use crate::state::{Home, is_counted_place, owe, parts, settle_unknown, take_units};
use crate::time::Tick;
use crate::waiting::MayWait;
use std::cell::Cell;
use std::collections::VecDeque;

impl Timed {
    /// Ends a permit by taking something back, and counts it if there was anything to take.
    pub(super) fn count_cancelled(
        &self,
        permit: &RawPermit,
        cancel: impl Fn(&Timed, &TimedPermit) -> Result<bool>,
    ) -> Result<()> {
        let cancelled = || {
            self.own(permit).and_then(|permit| {
                if cancel(self, &permit)? {
                    self.limit.count(Hash(permit.key), CANCELLED, 1);
                }
                Ok(())
            })
        };
        self.limit.or_instead(|| self.limit.ending(cancelled), |_| ())
    }

    /// Cancels a start. Returns whether there was anything to take back.
    pub(super) fn do_cancel(&self, permit: &TimedPermit) -> Result<bool> {
        if self.limit.is_served() {
            return self.cancel_on_server(permit, false);
        }
        if is_counted_place(permit.ticket) {
            return self.do_cancel_place(permit);
        }
        if self.is_over(permit)? {
            return Ok(false);
        }
        let (hash, start) = known(permit);
        self.limit.take_back(hash, start, permit.grace)
    }

    /// Gives a place back that was not started with; `false` if it was, or has expired.
    pub(super) fn do_cancel_place(&self, place: &TimedPermit) -> Result<bool> {
        if self.limit.is_served() {
            return self.cancel_on_server(place, true);
        }
        let home = self.limit.home()?;
        if is_counted_place(place.ticket) && (!home.is_open_place(place.ticket, place.stamp) || self.is_over(place)?) {
            home.close_place(place.ticket, place.stamp);
            return Ok(false);
        }
        let was_there = self.give_place_back(place, None)?;
        if is_counted_place(place.ticket) {
            // Its key may have been forgotten.
            home.close_place(place.ticket, place.stamp);
        }
        Ok(was_there)
    }

    /// Converts a place to its start; for a limit that only counts units, only once. `None`: it was used before.
    fn use_place(home: &Home, place: &TimedPermit) -> Option<TimedPermit> {
        if !is_counted_place(place.ticket) {
            return Some(*place);
        }
        let era = home.close_place(place.ticket, place.stamp);
        era.map(|ticket| TimedPermit { ticket, ..*place })
    }

    /// Takes back the units of a place that was not started with. `used`: it was already used for that.
    pub(super) fn give_place_back(&self, place: &TimedPermit, used: Option<TimedPermit>) -> Result<bool> {
        if self.is_over(place)? {
            return Ok(false);
        }
        let (used, was_there) = (Cell::new(used), Cell::new(false));
        self.limit.rewrite(known(place).0, 0, |home, table, history| {
            // Only now: a caller that must not wait here calls again.
            used.set(used.get().or_else(|| Self::use_place(home, place)));
            let Some(start) = used.get() else { return };
            let (_, start) = known(&start);
            let mut parts = parts(&table.policy, history, start);
            parts.retain(|&i| match table.policy.is_counted() {
                // A place of an earlier policy is not carried over.
                true => is_counted_place(place.ticket) && start.ticket == history.era,
                false => history.starts[i].state == PLACE,
            });
            if !parts.is_empty() {
                take_units(&table.policy, history, &parts, (start, place.grace), start.weight);
                was_there.set(true);
            }
        })?;
        Ok(was_there.get())
    }

    pub(super) fn do_settle(&self, permit: &TimedPermit, actual: u64) -> Result<()> {
        let _one = MayWait::as_one();
        self.do_complete(permit)?;
        if self.limit.is_served() {
            return self.settle_on_server(permit, actual);
        }
        let (hash, start) = known(permit);
        let (is_over, debt) = (self.is_over(permit)?, actual.saturating_sub(start.weight));
        if is_over && debt == 0 {
            return Ok(());
        }
        if debt > 0 {
            // The key may have been forgotten since.
            self.limit.with_hash(hash, |_| Ok(()))?;
            // Nothing has changed yet.
            let would_wait = self.limit.with_known(hash, |found| self.limit.would_wait(found, debt))?;
            if would_wait == Some(true) {
                return Err(Error::WouldWait);
            }
        }
        let (ahead, used, added_in) = (permit.grace, Cell::new(None), Cell::new(None));
        self.limit.rewrite(hash, debt, |home, table, history| {
            used.set(used.get().or_else(|| Self::use_place(home, permit)));
            let start = known(&used.get().unwrap_or(*permit)).1;
            // A place of an earlier policy was not carried over.
            let is_gone = is_counted_place(permit.ticket) && start.ticket != history.era;
            let parts = if is_gone { Vec::new() } else { parts(&table.policy, history, start) };
            if parts.is_empty() && !is_over && (is_gone || !settle_unknown(&table.policy, history, start)) {
                return; // It has already ended.
            }
            parts.iter().for_each(|&i| history.starts[i].state = SETTLED);
            take_units(&table.policy, history, &parts, (start, ahead), start.weight.saturating_sub(actual));
            let units = debt.min(table.policy.capacity());
            if units > 0 {
                owe(&table.policy, history, units, home.clock.now());
                added_in.set(Some(home.instance));
            }
        })?;
        let Some(lane) = added_in.get() else { return Ok(()) };
        self.limit.with_known(hash, |found| match found.home().instance == lane {
            true => self.limit.keep_added(found),
            false => Ok(()),
        })?;
        match self.limit.home()?.instance == lane {
            true => Ok(()),
            // The debt may be lost with its lane.
            false => self.do_settle(&permit.voided(), actual),
        }
    }

    /// Completes a start. Only an adaptive limit has to record the job's duration.
    pub(super) fn do_complete(&self, permit: &TimedPermit) -> Result<()> {
        let began = if permit.ready != 0 { permit.ready } else { permit.stamp };
        match self.limit.adapts()? && permit.stamp != 0 {
            true => self.ended(Hash(permit.key), began),
            false => Ok(()),
        }
    }

    pub(super) fn ended(&self, hash: Hash, began: Tick) -> Result<()> {
        self.limit.with_hash(hash, |found| {
            if self.limit.is_served() {
                return self.limit.ask::<1>(found, "complete", &[number(began)]).map(drop);
            }
            if let Some(jobs) = found.jobs() {
                jobs.record(found.home().clock.now().floor.saturating_sub(began));
            }
            Ok(())
        })
    }

    pub(super) fn do_record_end(&self, key: &str) -> Result<()> {
        policy::check_key(key)?;
        if !self.limit.adapts()? {
            return Ok(());
        }
        let home = self.limit.home()?;
        let hash = home.hash(b'k', key);
        let began = self.running.lock().get_mut(&hash).and_then(VecDeque::pop_front);
        match began {
            Some((instance, began)) if instance == home.instance => {
                let ended = self.ended(hash, began);
                if let Err(Error::WouldWait) = ended {
                    // For the repeated call.
                    self.running.lock().entry(hash).or_default().push_front((instance, began));
                }
                ended
            }
            _ => Ok(()),
        }
    }

    pub(super) fn do_record_start(&self, key: &str) -> Result<()> {
        self.limit.with_key(key, |found| {
            let ask = Ask { force: true, ..Ask::now(found.table.windows.as_slice(), 1, 0) };
            let answer = self.take(found, &ask)?;
            found.decided(ADMITTED, 1);
            if let Some(jobs) = found.jobs() {
                let mut running = self.running.lock();
                let starts = running.entry(found.hash).or_default();
                starts.push_back((found.home().instance, answer.now.ceil));
                // Bounds the list for jobs that never end.
                starts.truncate(jobs.most());
            }
            Ok(())
        })
    }
}
