//! Brings the lane to the policies in the database.
//!
//! A process that changes a policy first marks the lane, then commits to the database, and then updates the lane, all
//! under the structure lock. If it dies in between or cannot continue, the next holder of the lock finds the mark and
//! completes the work: it asks the database for all changes since the lane's generation. Every step can be repeated
//! from the start. So a committed change takes effect soon, and an uncommitted one leaves no trace.

use crate::address::Address;
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::fault;
use crate::hash::Hash;
use crate::policy::Policy;
use crate::state::cells::home::Home;
use crate::state::cells::layout::{POLICIES, SETTLED};
use crate::state::cells::locked::Locked;
use crate::state::ledger::database::Database;
use crate::state::ledger::policies::{KeySelection, KnownKey, KnownLimit};
use crate::state::ledger::recovery::write_as;
use crate::state::session::{Rare, Session};
use crate::time::monotonic_ns;
use std::collections::BTreeSet;
use std::time::Duration;

/// The mark, next to the lane's generation.
const IS_BEHIND: u64 = 1;

/// If the lane cannot follow because the database is locked or the store is full, callers with other business try again
/// only after this time.
const REST: Duration = Duration::from_millis(100);

impl Home {
    /// The lane's generation of policies.
    pub(in crate::state) fn generation(&self) -> u64 {
        self.arena.word(POLICIES).load(Acquire) >> 1
    }

    /// Returns whether the lane may have missed a change.
    pub(in crate::state) fn is_behind(&self) -> bool {
        self.arena.word(POLICIES).load(Acquire) & IS_BEHIND != 0
    }

    /// Marks the lane. From here on, the next holder of the structure lock brings it up to date first.
    pub(in crate::state) fn mark_behind(&self) {
        self.arena.word(POLICIES).fetch_or(IS_BEHIND, AcqRel);
    }

    /// Records that the lane has this generation, and whether the ledger may lack starts under earlier policies. For the
    /// process that fills the lane.
    pub(in crate::state) fn set_generation(&self, generation: u64, is_missing: bool) {
        self.arena.word(POLICIES).store(generation << 1, Release);
        self.arena.word(SETTLED).store(if is_missing { 0 } else { generation }, Release);
    }

    /// The generation up to which the ledger has all starts made under earlier policies.
    pub(in crate::state) fn settled(&self) -> u64 {
        self.arena.word(SETTLED).load(Acquire)
    }

    /// Records that it has, unless another process has found that some may be missing.
    pub(in crate::state) fn set_settled(&self, after: u64, to: u64) {
        let _ = self.arena.word(SETTLED).compare_exchange(after, to, AcqRel, Relaxed);
    }

    /// Returns whether some of these starts may be missing.
    pub(in crate::state) fn is_unsettled(&self) -> bool {
        self.settled() < self.generation()
    }
}

/// A policy that applies after a change.
#[derive(Debug, Clone, Copy)]
pub(super) enum PolicyChange<'a> {
    /// The previous name of a limit and its name from now on.
    Name(&'a str, &'a str),
    /// The policy of a limit, which may be new.
    Limit(&'a str, Policy),
    /// The policy of a key, or `None` for the limit's.
    Key(&'a str, &'a str, Option<Policy>),
}

/// // All of these are for the holder of the structure lock.
impl Session {
    /// Changes policies: first in the database, then in the lane. If it fails before the commit, nothing has changed.
    /// After the commit it fails only if something is broken, since the space is already allocated; the change then
    /// applies as soon as the fault is repaired. A removal applies when it is committed.
    pub(super) fn decide(
        &self,
        locked: &Locked,
        changes: &[PolicyChange],
        note_here: impl FnOnce(&mut Rare),
        note: impl FnOnce(&mut Database) -> Result<()>,
    ) -> Result<()> {
        for change in changes {
            match *change {
                PolicyChange::Limit(name, policy) => {
                    let limit = locked.find_limit(name);
                    limit.map_or(Ok(()), |limit| locked.finish_change(limit))?;
                    locked.make_space_for(limit, policy)?;
                }
                PolicyChange::Name(..) => {}
                PolicyChange::Key(name, _, policy) => locked.make_space_for_key(locked.find_limit(name), policy)?,
            }
        }
        locked.changes().see_to(self.member(), true);
        match &self.address {
            Address::Memory | Address::Server(_) => {
                note_here(&mut self.rare());
                changes.iter().try_for_each(|change| self.apply_change(*change, locked))
            }
            Address::Sqlite(_) => {
                locked.mark_behind();
                fault::point("deciding");
                let noted = self.with_database(note);
                fault::point("decided");
                // The commit may have succeeded even though it returned an error.
                let followed = self.follow(locked);
                if changes.is_empty() { noted } else { noted.and(followed) }
            }
        }
    }

    /// Returns when the policies of these limits apply to all of their keys. It holds the lock for a moment at a time.
    /// It also writes the earlier starts to the ledger. If that fails now, it happens later; until then a reboot counts
    /// the missing part as used.
    pub(in crate::state) fn settle(&self, names: &[&str]) -> Result<()> {
        let timeout = self.options.timeout;
        let settled = self.with_lock_unless(
            timeout,
            || (!self.home().changes().are_some()).then_some(()),
            |locked| {
                let changes =
                    |name: &&str| locked.find_limit(name).is_some_and(|limit| locked.limit(limit).replaced().is_some());
                let is_done = || {
                    locked.changes().see_to(self.member(), true);
                    locked.continue_changes()
                };
                if names.iter().any(changes) && !is_done()? && names.iter().any(changes) {
                    return Err(Error::busy("changing policies"));
                }
                Ok(())
            },
        );
        // Any remaining work is shared by all processes.
        self.home().changes().see_to(self.member(), false);
        settled?;
        self.settle_ledger(timeout);
        Ok(())
    }

    /// Completes the work that another process left.
    pub(in crate::state) fn catch_up(&self, locked: &Locked) {
        let now = monotonic_ns();
        if locked.is_behind() && now >= self.follows_from.load(Relaxed) && self.follow(locked).is_err() {
            self.follows_from.store(now + REST.as_nanos() as u64, Relaxed);
        }
    }

    /// Brings the lane to the state of the database.
    fn follow(&self, locked: &Locked) -> Result<()> {
        if !locked.is_lane() {
            return Ok(());
        }
        locked.mark_behind();
        let was = locked.arena.word(POLICIES).load(Acquire);
        let (generation, limits, keys) = self.with_database(|database| {
            let generation = database.generation;
            // An older copy may have replaced the database. Then everything is compared.
            let after = Some(locked.generation()).filter(|&at| at <= generation);
            Ok((generation, database.limits(after)?, database.keys(KeySelection::Changed(after.unwrap_or(0)))?))
        })?;
        for KnownLimit { id, name, declared, .. } in &limits {
            self.apply_change(PolicyChange::Limit(name, declared.current()), locked)?;
            // The database may have lost the number that it had: if an older copy replaced it, or the name was another's.
            if let Some(limit) = locked.find_limit(name).filter(|limit| locked.limit(*limit).id() != *id) {
                self.with_database(|database| write_as(locked, database, limit, *id))?;
            }
        }
        if locked.generation() > generation {
            let names: Vec<String> = locked.limits().filter_map(|limit| locked.limit(limit).name()).collect();
            names.iter().try_for_each(|name| lift_all_but(locked, name, &keys))?;
        }
        for KnownKey { limit, key, policy, .. } in &keys {
            self.apply_change(PolicyChange::Key(limit, key, *policy), locked)?;
        }
        fault::point("followed");
        let settled = locked.settled();
        let is_missing = !keys.is_empty() || limits.iter().any(|known| known.missing.is_some());
        if settled > generation || settled == was >> 1 && !is_missing {
            // If the database was replaced, everything may be missing from the ledger; otherwise nothing new is.
            let now = if is_missing { 0 } else { generation };
            locked.arena.word(SETTLED).store(now, Release);
        }
        // Unless another process has since seen another generation, of a database that replaced this one.
        let _ = locked.arena.word(POLICIES).compare_exchange(was, generation << 1, AcqRel, Relaxed);
        Ok(())
    }

    fn apply_change(&self, change: PolicyChange, locked: &Locked) -> Result<()> {
        match change {
            PolicyChange::Name(from, name) => match (locked.find_limit(from), locked.find_limit(name)) {
                (Some(limit), None) => locked.rename(limit, name),
                _ => Ok(()),
            },
            PolicyChange::Limit(name, policy) => self.apply(name, policy, locked),
            // The limit may no longer be declared, and unused since.
            PolicyChange::Key(name, key, policy) => match locked.find_limit(name) {
                Some(limit) => {
                    let key = (locked.hash(b'k', key), key);
                    self.restore_locked(locked, limit, key)?;
                    locked.set_plan(limit, key, policy)
                }
                None => Ok(()),
            },
        }
    }

    /// Applies a limit's policy.
    pub(in crate::state) fn apply(&self, name: &str, policy: Policy, locked: &Locked) -> Result<()> {
        let limit = self.block(name, policy, locked)?;
        locked.apply_policy(limit, policy)
    }
}

/// Removes the overrides that the database does not have.
fn lift_all_but(locked: &Locked, name: &str, known: &[KnownKey]) -> Result<()> {
    let Some(limit) = locked.find_limit(name) else { return Ok(()) };
    let known = known.iter().filter(|known| known.limit == name && known.policy.is_some());
    let known: BTreeSet<Hash> = known.map(|known| locked.hash(b'k', &known.key)).collect();
    let on_plans: Vec<Hash> =
        locked.index(&locked.limit(limit).table()).keys_on_plans().map(|(_, at)| locked.block(at).hash()).collect();
    let mut others = on_plans.into_iter().filter(|hash| !known.contains(hash));
    others.try_for_each(|hash| locked.set_plan(limit, (hash, ""), None))
}
