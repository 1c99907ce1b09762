//! The lane follows what the database says of policies.
//!
//! Whoever changes a policy marks the lane first, commits to the database, and then brings the lane to it, all under the
//! structure lock. Whoever gets the lock and finds the mark (somebody died in between, or could not go on) does what is left:
//! it asks the database what has changed since the generation that the lane is at. All of it can be done again from the start.
//! So a change that was committed holds soon, and of one that was not nothing is left.

use super::database::Database;
use super::layout::POLICIES;
use super::locked::Locked;
use super::policies::Known;
use super::session::{Rare, Session};
use super::table::Home;
use super::url::Address;
use super::writer::write_limit;
use crate::atomic::*;
use crate::error::Result;
use crate::fault;
use crate::policy::Policy;
use crate::time::monotonic_ns;
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
    }
}

/// All of it is for the holder of the structure lock.
impl Session {
    /// Changes policies: what is noted, and then what holds. Of these limits, or of those that come, the policies will be
    /// these. If it fails before it is committed, nothing has changed. After that only what is broken makes it fail, because there
    /// is room; and then it holds as soon as that is mended. What is only taken away is so when it is committed.
    pub(super) fn decide(
        &self,
        locked: &Locked,
        limits: &[(&str, Policy)],
        note_here: impl FnOnce(&mut Rare),
        note: impl FnOnce(&mut Database) -> Result<()>,
    ) -> Result<()> {
        for (name, policy) in limits {
            locked.make_room_for(locked.find_limit(name), *policy)?;
        }
        match &self.address {
            Address::Memory => {
                note_here(&mut self.rare());
                limits.iter().try_for_each(|(name, policy)| self.bring(name, *policy, locked))
            }
            Address::Sqlite(path) => {
                locked.mark_behind();
                fault::point("deciding");
                let noted = self.with_database(path, note);
                fault::point("decided");
                // It may be committed although it failed.
                let followed = self.follow(locked);
                if limits.is_empty() { noted } else { noted.and(followed) }
            }
        }
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
        let Address::Sqlite(path) = &self.address else { return Ok(()) };
        locked.mark_behind();
        let was = locked.arena.word(POLICIES).load(Acquire);
        let (generation, changed) = self.with_database(path, |database| {
            let generation = database.generation;
            // An older copy may have been put in its place: then everything is looked at.
            let after = Some(locked.generation()).filter(|&at| at <= generation);
            Ok((generation, database.limits(after)?))
        })?;
        for Known { name, declared, .. } in &changed {
            self.bring(name, declared.current(), locked)?;
        }
        fault::point("followed");
        let changed: Vec<&Known> = changed.iter().filter(|known| known.missing.is_some()).collect();
        if !changed.is_empty() {
            // If this cannot be written now it is another time: until then a reboot counts for what is missing.
            let write =
                |database: &mut Database| changed.iter().try_for_each(|known| catch_up_with(locked, database, known));
            if self.with_database(path, write).is_err() {
                return Ok(());
            }
        }
        // Unless somebody has seen another generation meanwhile, of a database that was put in this one's place.
        let _ = locked.arena.word(POLICIES).compare_exchange(was, generation << 1, AcqRel, Relaxed);
        Ok(())
    }

    /// Lets a policy hold.
    pub(super) fn bring(&self, name: &str, policy: Policy, locked: &Locked) -> Result<()> {
        let limit = self.block(name, policy, locked)?;
        locked.bring_to(limit, policy)
    }
}

/// Writes what was started before a limit's policy changed. Since the lane has followed, no more than the policy allows can
/// be missing from then on.
fn catch_up_with(locked: &Locked, database: &mut Database, Known { name, declared, .. }: &Known) -> Result<()> {
    locked.find_limit(name).map_or(Ok(()), |limit| write_limit(locked, database, limit))?;
    database.has_all(name, declared.current().longest())
}
