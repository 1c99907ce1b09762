//! Brings the lane to the policies in the database.
//!
//! A process that changes a policy first marks the lane, then commits to the database, and then updates the lane, all
//! under the structure lock. If it dies in between or cannot continue, the next holder of the lock finds the mark and
//! completes the work: it asks the database for all changes since the lane's generation. Every step can be repeated
//! from the start. So a committed change takes effect soon, and an uncommitted one leaves no trace.
//!
//! A limit is found by its number in the database, since its name may be another's: one call may give the name that a
//! limit loses to a new limit. A limit of the lane loses its name only here, after the commit.

use crate::address::Address;
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::fault;
use crate::hash::Hash;
use crate::policy::Policy;
use crate::state::cells::home::Home;
use crate::state::cells::layout::{LimitAt, POLICIES, SETTLED};
use crate::state::cells::locked::Locked;
use crate::state::ledger::database::Database;
use crate::state::ledger::policies::{KeySelection, KnownKey, KnownLimit};
use crate::state::ledger::recovery::adopt_all;
use crate::state::session::{Rare, Session};
use crate::time::monotonic_ns;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
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

/// The limits of the lane by their numbers in the database.
pub(in crate::state) type Numbers = BTreeMap<i64, LimitAt>;

/// How a limit is known that has a name from now on. It may have another name in the lane, and another limit this one.
#[derive(Debug, Clone, Copy)]
pub(in crate::state) enum Known<'a> {
    /// By its previous name.
    As(&'a str),
    /// By its number in the database. If neither this name nor its name as a part or a whole leads to it, it is among these.
    By(i64, &'a Numbers),
}

/// A policy that applies after a change.
#[derive(Debug, Clone, Copy)]
pub(super) enum PolicyChange<'a> {
    /// The policy of a limit, which may be new.
    Limit(&'a str, Known<'a>, Policy),
    /// The policy of a key, or `None` for the limit's.
    Key(&'a str, &'a str, Option<Policy>),
}

impl PolicyChange<'_> {
    /// Returns the limit that it renames, with its number.
    fn renames(&self, locked: &Locked) -> Option<(i64, LimitAt)> {
        let PolicyChange::Limit(name, Known::As(from), _) = *self else { return None };
        let limit = locked.find_limit(from).filter(|_| from != name)?;
        Some((locked.limit(limit).id(), limit))
    }
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
                PolicyChange::Limit(name, known, policy) => {
                    let limit = locked.find_limit(if let Known::As(from) = known { from } else { name });
                    limit.map_or(Ok(()), |limit| locked.finish_change(limit))?;
                    locked.make_space_for(limit, policy)?;
                    // A forgotten limit that loses its name gets another table.
                    if let Some(stale) = locked.find_limit(name).filter(|stale| Some(*stale) != limit) {
                        locked.finish_change(stale)?;
                        locked.make_space_for(Some(stale), locked.limit(stale).table().policy)?;
                    }
                }
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
                let renamed = changes.iter().filter_map(|change| change.renames(locked)).collect();
                locked.mark_behind();
                fault::point("deciding");
                let lacks_one = Cell::new(false);
                let noted = self.with_database(|database| {
                    lacks_one.set(database.generation == locked.generation());
                    note(database)
                });
                fault::point("decided");
                // The commit may have succeeded even though it returned an error.
                let followed = self.follow(locked, lacks_one.get().then_some(renamed));
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
        if locked.is_behind() && now >= self.follows_from.load(Relaxed) && self.follow(locked, None).is_err() {
            self.follows_from.store(now + REST.as_nanos() as u64, Relaxed);
        }
    }

    /// Brings the lane to the state of the database. If the lane lacks one change at most, which this process made:
    /// `renamed`, the limits that this change renames. They are few, and all limits of the lane may be many.
    fn follow(&self, locked: &Locked, renamed: Option<Numbers>) -> Result<()> {
        if !locked.is_lane() {
            return Ok(());
        }
        locked.mark_behind();
        let was = locked.arena.word(POLICIES).load(Acquire);
        let (generation, is_replaced, limits, keys) = self.with_database(|database| {
            let generation = database.generation;
            let last = locked.generation();
            // A copy may have replaced the database, older or with changes of its own. Then everything is compared.
            let is_replaced = renamed.is_none() && !database.has_changed_at(last)?;
            if is_replaced {
                adopt_all(locked, database)?;
            }
            let after = if is_replaced { None } else { Some(last) };
            let keys = database.keys(KeySelection::Changed(after.unwrap_or(0)))?;
            Ok((generation, is_replaced, database.limits(after)?, keys))
        })?;
        // One change renames a limit once. Several may lead anywhere.
        let numbers = renamed.filter(|_| keys.is_empty()).unwrap_or_else(|| locked.numbers());
        let mut is_renumbered = false;
        for KnownLimit { id, name, declared, .. } in &limits {
            let known = Known::By(*id, &numbers);
            self.apply_change(PolicyChange::Limit(name, known, declared.current()), locked)?;
            // If the database took the lane's number, something may be missing since.
            is_renumbered |= locked.find_limit(name).is_some_and(|limit| locked.limit(limit).id() != *id);
        }
        if is_replaced {
            let mut named = locked.limits().filter(|limit| !locked.limit(*limit).is_retired());
            named.try_for_each(|limit| lift_all_but(locked, limit, &keys))?;
        }
        for KnownKey { id, limit, key, policy, .. } in &keys {
            let known = locked.find_known(limit, *id).or_else(|| numbers.get(id).copied());
            self.apply_to_key(known, key, *policy, locked)?;
        }
        fault::point("followed");
        let settled = locked.settled();
        let is_missing = is_renumbered || !keys.is_empty() || limits.iter().any(|known| known.missing.is_some());
        if is_replaced || settled == was >> 1 && !is_missing {
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
            PolicyChange::Limit(name, known, policy) => self.apply(name, known, policy, locked),
            PolicyChange::Key(name, key, policy) => self.apply_to_key(locked.find_limit(name), key, policy, locked),
        }
    }

    /// Applies a limit's policy.
    pub(in crate::state) fn apply(&self, name: &str, known: Known, policy: Policy, locked: &Locked) -> Result<()> {
        let limit = self.block(name, known, policy, locked)?;
        locked.apply_policy(limit, policy)
    }

    /// Applies a key's policy. The limit may no longer be declared, and unused since: then the lane may not have it.
    fn apply_to_key(&self, limit: Option<LimitAt>, key: &str, policy: Option<Policy>, locked: &Locked) -> Result<()> {
        let Some(limit) = limit else { return Ok(()) };
        let key = (locked.hash(b'k', key), key);
        self.restore_locked(locked, limit, key)?;
        locked.set_plan(limit, key, policy)
    }
}

impl Locked<'_> {
    /// All limits that have one, by number.
    pub(in crate::state) fn numbers(&self) -> Numbers {
        self.limits().map(|limit| (self.limit(limit).id(), limit)).filter(|(number, _)| *number != 0).collect()
    }
}

/// Removes the overrides that the database does not have.
fn lift_all_but(locked: &Locked, limit: LimitAt, known: &[KnownKey]) -> Result<()> {
    let number = locked.limit(limit).id();
    let known = known.iter().filter(|known| known.id == number && known.policy.is_some());
    let known: BTreeSet<Hash> = known.map(|known| locked.hash(b'k', &known.key)).collect();
    let on_plans: Vec<Hash> =
        locked.index(&locked.limit(limit).table()).keys_on_plans().map(|(_, at)| locked.block(at).hash()).collect();
    let mut others = on_plans.into_iter().filter(|hash| !known.contains(hash));
    others.try_for_each(|hash| locked.set_plan(limit, (hash, ""), None))
}
