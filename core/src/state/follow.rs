//! The lane follows what the database says of policies.
//!
//! Whoever changes a policy marks the lane first, commits to the database, and then brings the lane to it, all under the
//! structure lock. Whoever gets the lock and finds the mark (somebody died in between, or could not go on) does what is left:
//! it asks the database what has changed since the generation that the lane is at. All of it can be done again from the start.
//! So a change that was committed holds soon, and of one that was not nothing is left.

use super::database::Database;
use super::layout::{POLICIES, SETTLED};
use super::locked::Locked;
use super::policies::{Keys, Known, KnownKey};
use super::session::{Rare, Session};
use super::table::{Hash, Home};
use super::url::Address;
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::fault;
use crate::policy::Policy;
use crate::time::monotonic_ns;
use std::collections::BTreeSet;
use std::time::Duration;

/// The mark, beside the generation that the lane is at.
const IS_BEHIND: u64 = 1;

/// If the lane cannot follow, because the database is locked or the store is full, those who come for something else try that
/// again after this time.
const REST: Duration = Duration::from_millis(100);

impl Home {
    /// The generation of policies that the lane is at.
    pub(super) fn generation(&self) -> u64 {
        self.arena.word(POLICIES).load(Acquire) >> 1
    }

    /// Is there something that the lane has not followed, perhaps?
    pub(super) fn is_behind(&self) -> bool {
        self.arena.word(POLICIES).load(Acquire) & IS_BEHIND != 0
    }

    /// From here on, whoever gets the structure lock lets the lane follow first.
    pub(super) fn mark_behind(&self) {
        self.arena.word(POLICIES).fetch_or(IS_BEHIND, AcqRel);
    }

    /// The lane is at this generation. For whoever fills it.
    pub(super) fn set_generation(&self, generation: u64) {
        self.arena.word(POLICIES).store(generation << 1, Release);
        self.arena.word(SETTLED).store(generation, Release);
    }

    /// Up to which generation the ledger has all that was started by the policies before.
    pub(super) fn settled(&self) -> u64 {
        self.arena.word(SETTLED).load(Acquire)
    }

    /// It has, unless somebody has found that it may not.
    pub(super) fn set_settled(&self, after: u64, to: u64) {
        let _ = self.arena.word(SETTLED).compare_exchange(after, to, AcqRel, Relaxed);
    }

    /// May it lack something of that?
    pub(super) fn is_unsettled(&self) -> bool {
        self.settled() < self.generation()
    }
}

/// What is to hold after a change.
#[derive(Debug, Clone, Copy)]
pub(super) enum Follows<'a> {
    /// Of a limit, which may come with it.
    Limit(&'a str, Policy),
    /// Of a key of a limit: a policy of its own, or the limit's.
    Key(&'a str, &'a str, Option<Policy>),
}

/// All of it is for the holder of the structure lock.
impl Session {
    /// Changes policies: what is noted, and then what holds. If it fails before it is committed, nothing has changed. After that only what is broken makes it fail, because there
    /// is room; and then it holds as soon as that is mended. What is only taken away is so when it is committed.
    pub(super) fn decide(
        &self,
        locked: &Locked,
        changes: &[Follows],
        note_here: impl FnOnce(&mut Rare),
        note: impl FnOnce(&mut Database) -> Result<()>,
    ) -> Result<()> {
        for change in changes {
            match *change {
                Follows::Limit(name, policy) => {
                    let limit = locked.find_limit(name);
                    limit.map_or(Ok(()), |limit| locked.finish_change(limit))?;
                    locked.make_room_for(limit, policy)?;
                }
                Follows::Key(name, _, policy) => locked.make_room_for_key(locked.find_limit(name), policy)?,
            }
        }
        locked.see_to_changes(self.member(), true);
        match &self.address {
            Address::Memory | Address::Server(_) => {
                note_here(&mut self.rare());
                changes.iter().try_for_each(|change| self.bring_one(*change, locked))
            }
            Address::Sqlite(_) => {
                locked.mark_behind();
                fault::point("deciding");
                let noted = self.with_database(note);
                fault::point("decided");
                // It may be committed although it failed.
                let followed = self.follow(locked);
                if changes.is_empty() { noted } else { noted.and(followed) }
            }
        }
    }

    /// Returns when the policies of these limits hold for all of their keys: a moment under the lock at a time. And lets the ledger
    /// have what was started before; if it cannot be written now it is another time, and until then a reboot counts for what is
    /// missing.
    pub(super) fn settle(&self, names: &[&str]) -> Result<()> {
        let timeout = self.options.timeout;
        let settled = self.with_lock_unless(
            timeout,
            || (!self.home().is_changing()).then_some(()),
            |locked| {
                let changes =
                    |name: &&str| locked.find_limit(name).is_some_and(|limit| locked.replaced(limit).is_some());
                if names.iter().any(changes) && !locked.go_on()? && names.iter().any(changes) {
                    return Err(Error::StoreTimeout { doing: "changing policies".into(), waited_ms: 0 });
                }
                Ok(())
            },
        );
        // If anything is left, it is for everybody.
        self.home().see_to_changes(self.member(), false);
        settled?;
        self.settle_ledger(timeout);
        Ok(())
    }

    /// Does what somebody left.
    pub(super) fn catch_up(&self, locked: &Locked) {
        let now = monotonic_ns();
        if locked.is_behind() && now >= self.follows_from.load(Relaxed) && self.follow(locked).is_err() {
            self.follows_from.store(now + REST.as_nanos() as u64, Relaxed);
        }
    }

    /// Brings the lane to what the database says.
    fn follow(&self, locked: &Locked) -> Result<()> {
        if !locked.is_lane() {
            return Ok(());
        }
        locked.mark_behind();
        let was = locked.arena.word(POLICIES).load(Acquire);
        let (generation, limits, keys) = self.with_database(|database| {
            let generation = database.generation;
            // An older copy may have been put in its place: then everything is looked at.
            let after = Some(locked.generation()).filter(|&at| at <= generation);
            Ok((generation, database.limits(after)?, database.keys(Keys::Changed(after.unwrap_or(0)))?))
        })?;
        for Known { name, declared, .. } in &limits {
            self.bring_one(Follows::Limit(name, declared.current()), locked)?;
        }
        if locked.generation() > generation {
            let names: Vec<String> = locked.limits().filter_map(|limit| locked.name_of(limit)).collect();
            names.iter().try_for_each(|name| lift_all_but(locked, name, &keys))?;
        }
        for KnownKey { limit, key, policy, .. } in &keys {
            self.bring_one(Follows::Key(limit, key, *policy), locked)?;
        }
        fault::point("followed");
        let settled = locked.settled();
        let has_moves = self.with_database(|database| Ok(!database.moves()?.is_empty()))?;
        let is_missing = has_moves || !keys.is_empty() || limits.iter().any(|known| known.missing.is_some());
        if settled > generation || settled == was >> 1 && !is_missing {
            // Nothing that the ledger lacks is new; or everything is.
            let now = if is_missing { 0 } else { generation };
            locked.arena.word(SETTLED).store(now, Release);
        }
        // Unless somebody has seen another generation meanwhile, of a database that was put in this one's place.
        let _ = locked.arena.word(POLICIES).compare_exchange(was, generation << 1, AcqRel, Relaxed);
        Ok(())
    }

    fn bring_one(&self, change: Follows, locked: &Locked) -> Result<()> {
        match change {
            Follows::Limit(name, policy) => self.bring(name, policy, locked),
            // Of a limit that is not declared any more, and that nobody has used since.
            Follows::Key(name, key, policy) => match locked.find_limit(name) {
                Some(limit) => locked.set_plan(limit, (locked.hash(b'k', key), key), policy),
                None => Ok(()),
            },
        }
    }

    /// Lets a limit's policy hold.
    pub(super) fn bring(&self, name: &str, policy: Policy, locked: &Locked) -> Result<()> {
        let limit = self.block(name, policy, locked)?;
        locked.bring_to(limit, policy)
    }
}

/// Takes away what the database says nothing of.
fn lift_all_but(locked: &Locked, name: &str, known: &[KnownKey]) -> Result<()> {
    let Some(limit) = locked.find_limit(name) else { return Ok(()) };
    let known = known.iter().filter(|known| known.limit == name && known.policy.is_some());
    let known: BTreeSet<Hash> = known.map(|known| locked.hash(b'k', &known.key)).collect();
    let on_plans: Vec<Hash> = locked.keys_on_plans(&locked.table(limit)).map(|(_, at)| locked.hash_at(at)).collect();
    let mut others = on_plans.into_iter().filter(|hash| !known.contains(hash));
    others.try_for_each(|hash| locked.set_plan(limit, (hash, ""), None))
}
