//! Rare changes of a limit's keys, under the structure lock: starts are taken back, gates closed, keys forgotten.

use super::Limit;
use crate::algorithm::History;
use crate::algorithm::log::StartId;
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::policy::{self};
use crate::state::cells::home::{Home, Keeping, Table};
use crate::state::cells::layout::LimitAt;
use crate::state::cells::locked::Locked;
use crate::state::ledger::gather::moment;
use crate::state::rare::growing::Adds;
use crate::state::rare::take_back::take_back;
use crate::stats::Stats;
use crate::waiting::MayWait;
use std::cell::Cell;
use std::time::Duration;

impl Limit {
    /// Runs a rare operation on the limit's table, under the structure lock.
    pub(super) fn with_table<R>(&self, f: impl Fn(&Locked, LimitAt, &Table) -> Result<R>) -> Result<R> {
        self.with_table_for(self.store.options.timeout, f)
    }

    /// The same, but waits at most this long.
    pub(super) fn with_table_for<R>(
        &self,
        timeout: Duration,
        f: impl Fn(&Locked, LimitAt, &Table) -> Result<R>,
    ) -> Result<R> {
        let answer = Cell::new(None);
        let f = |locked: &Locked, limit, table: &Table| f(locked, limit, table).map(|result| answer.set(Some(result)));
        self.lock_table(timeout, &f)?;
        Ok(answer.take().expect("the function was called"))
    }

    /// Moves a key to the limit's table, in place of a process that does not. Returns whether it is there: not if the
    /// lock is busy, since no decision waits for a process that is stopped under it.
    #[cold]
    pub(super) fn moves_key(&self, hash: Hash) -> Result<bool> {
        match self.with_table_for(Duration::ZERO, |locked, _, table| locked.move_key(table, hash)) {
            Err(Error::WouldWait) => Err(Error::WouldWait),
            moved => Ok(moved.is_ok()),
        }
    }

    /// [`Limit::with_table`] without generic types: there are nearly a hundred uses.
    fn lock_table(&self, timeout: Duration, f: &dyn Fn(&Locked, LimitAt, &Table) -> Result<()>) -> Result<()> {
        // Finding the limit for the first time takes more than the lock, and so does any finding on a server.
        if self.store.server().is_some() || self.bound.load(Acquire).is_null() {
            self.bound()?;
        }
        self.store.with_lock_for(MayWait::patience(timeout)?, |locked| {
            let bound = self.bind(locked)?;
            let limit = bound.limit;
            let table = locked.limit(limit).table();
            let answer = f(locked, limit, &table);
            bound.follow();
            answer
        })
    }

    /// Edits the log of a key, to which it may add some units. Returns `false` if the key is not there.
    pub fn rewrite(&self, hash: Hash, adds: u64, edit: impl Fn(&Home, &Table, &mut History)) -> Result<bool> {
        self.with_table(|home, _, table| match home.index(table).find(hash) {
            Ok(Some(found)) => {
                let own = home.of(table).for_key(found);
                home.rewrite_with(table, hash, Adds::Units(adds), |history| edit(home, &own, history)).map(|_| true)
            }
            _ => Ok(false),
        })
    }

    /// Takes a start back, if it is there and not settled. Returns whether it did.
    pub fn take_back(&self, hash: Hash, start: StartId, ahead: u64) -> Result<bool> {
        let was_there = Cell::new(false);
        self.rewrite(hash, 0, |_, table, history| was_there.set(take_back(&table.policy, history, start, ahead)))?;
        Ok(was_there.get())
    }

    /// Closes a gate until `until`, or leaves it as it is if that is 0: the gate of one key, or of all keys if the key
    /// is empty.
    pub fn close_gate(&self, key: &str, until: u64) -> Result<()> {
        policy::check_key(key)?;
        if self.store.server().is_some() {
            return self.close_gate_on_server(key, until);
        }
        if key.is_empty() {
            return self.reading(|| {
                let mut bound = self.bound()?;
                if bound.home().limit(bound.limit).is_retired() {
                    bound = self.bind_again()?;
                }
                bound.home().limit(bound.limit).gate().fetch_max(until, AcqRel);
                Ok(())
            });
        }
        // Make space before the lock is held for the change itself, and restore the key.
        self.with_key(key, |_| Ok(()))?;
        // Without the lock, the block could pass to another key before its gate is written.
        self.with_table(|home, _, table| {
            let found = home.find_or_add_locked(table, home.hash(b'k', key), key, &[])?;
            home.block(found.at).close_gate(until);
            Ok(())
        })
    }

    /// Forgets every start of a key and opens its gate. With the empty key, does so for all keys.
    pub fn forget(&self, key: &str) -> Result<()> {
        policy::check_key(key)?;
        if self.store.server().is_some() {
            return self.forget_on_server(key);
        }
        if !key.is_empty() {
            // Nobody may restore it in between.
            self.reading(|| self.restore(self.home()?.hash(b'k', key), key, false))?;
        }
        let (id, hash, is_logged, until) = self.with_table(|home, limit, table| {
            let (hash, until) = ((!key.is_empty()).then(|| home.hash(b'k', key)), moment(home).1);
            match hash.map(|hash| (hash, home.index(table).find(hash))) {
                None => {
                    home.limit(limit).gate().store(0, Release);
                    home.changes().see_to(self.store.member(), true);
                    home.replace(limit, table.policy, true)?;
                }
                Some((hash, Ok(Some(found)))) => {
                    home.block(found.at).open_gate();
                    let nothing = |history: &mut History| *history = History { end: history.end, ..History::default() };
                    home.block(home.rewrite(table, hash, nothing)?).forget_habits(home);
                }
                Some(_) => {}
            }
            Ok((home.limit(limit).id(), hash, table.keeping != Keeping::No || home.limit(limit).has_plans(), until))
        })?;
        if hash.is_none() {
            self.store.settle(&[&self.name])?;
        }
        // If this fails, the forgotten starts return after a reboot.
        if is_logged { self.store.forget_logged(id, hash, until) } else { Ok(()) }
    }

    /// Makes space for more open places.
    pub fn add_places(&self) -> Result<()> {
        self.with_table(|home, _, _| home.add_places())
    }

    /// The counters of a key, or of the limit if the key is empty.
    pub fn stats(&self, key: &str) -> Result<Stats> {
        policy::check_key(key)?;
        self.with_table(|home, limit, table| {
            self.store.flush_counts_of(limit, home)?;
            Ok(if key.is_empty() { home.limit(limit).counts() } else { home.index(table).counts(key) })
        })
    }
}
