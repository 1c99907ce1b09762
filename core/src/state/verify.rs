//! What is wrong with a store, and its repair: for operators, after a crash of the disk or somebody else's writing.
//!
//! The database is looked at by SQLite and by what reads it here, the lane by walking over all that it holds, in batches under
//! the structure lock. What is wrong in the database is taken away, if it can only be that nobody can read it. A lane is
//! not mended: it is made anew from the ledger, as if it had been lost.

use super::damage::nonsense;
use super::database::Database;
use super::lane;
use super::locked::Locked;
use super::session::Session;
use crate::error::{Error, Result};
use crate::fork;
use std::path::Path;
use std::time::{Duration, Instant};

/// How many keys are looked at before others may have the lock.
const BATCH: usize = 2_000;

/// More units than any limit lets start in its longest window.
const MOST_UNITS: u64 = 1 << 40;

/// How long to stay away from a database that somebody else uses.
const NAP: Duration = Duration::from_millis(2);

/// Something that is wrong with a store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// What it is.
    pub found: String,
    /// Is it wrong no longer?
    pub is_repaired: bool,
}

impl Session {
    pub fn verify(&self, repair: bool) -> Result<Vec<Problem>> {
        let Some(path) = self.path() else { return Ok(Vec::new()) };
        let mut problems = if path.exists() { self.verify_database(&path, repair)? } else { Vec::new() };
        let found = self.verify_lane(&path)?;
        let is_repaired = repair && !found.is_empty() && {
            self.remove_lane()?;
            self.verify_lane(&path)?.is_empty()
        };
        problems.extend(found.into_iter().map(|found| Problem { found, is_repaired }));
        Ok(problems)
    }

    fn verify_database(&self, path: &Path, repair: bool) -> Result<Vec<Problem>> {
        let (began, timeout) = (Instant::now(), self.patience(self.options.timeout)?);
        loop {
            match Database::verify(path, repair) {
                Err(Error::StoreTimeout { .. }) if began.elapsed() < timeout => std::thread::sleep(NAP),
                Err(Error::StoreTimeout { doing, .. }) => {
                    return Err(Error::StoreTimeout { doing, waited_ms: began.elapsed().as_millis() as u64 });
                }
                answer => return answer,
            }
        }
    }

    /// What makes no sense in the lane: the first of each limit.
    fn verify_lane(&self, database: &Path) -> Result<Vec<String>> {
        let mut problems = Vec::new();
        let mut note = |error| match error {
            // Told already.
            Error::Damaged { path, .. } if path == database => Ok(()),
            Error::Damaged { found, .. } => {
                problems.push(format!("the lane: {found}"));
                Ok(())
            }
            error => Err(error),
        };
        let limits = match self.with_lock(|locked| Ok(locked.limits().collect::<Vec<u64>>())) {
            Ok(limits) => limits,
            Err(error) => {
                note(error)?;
                Vec::new()
            }
        };
        for limit in limits {
            let mut from = Some(0);
            while let Some(at) = from {
                let looked = self.with_lock(|locked| Ok(look(locked, limit, at)));
                from = looked.or_else(|error| note(error).map(|()| None))?;
            }
        }
        Ok(problems)
    }

    /// Takes the lane away. Who uses it notices within a second, and makes another.
    fn remove_lane(&self) -> Result<()> {
        let (Some(path), began) = (self.lane_path(), Instant::now()) else { return Ok(()) };
        let timeout = self.patience(self.options.timeout)?;
        loop {
            let left = timeout.saturating_sub(began.elapsed());
            let process = fork::structure(left);
            if process.is_some()
                && let Some(lane) = lane::LockedLane::try_open(&path, self.options.mode)?
            {
                return lane.remove();
            }
            if left.is_zero() {
                let doing = format!("repairing {}", path.display());
                return Err(Error::StoreTimeout { doing, waited_ms: began.elapsed().as_millis() as u64 });
            }
            drop(process);
            std::thread::sleep(NAP);
        }
    }
}

/// Looks at some keys of a limit, from this one on. Returns where to go on.
fn look(home: &Locked, limit: u64, from: usize) -> Option<usize> {
    let table = home.table(limit);
    let mut looked = 0;
    for (own, at) in home.keys(&table).skip(from).take(BATCH) {
        looked += 1;
        let hash = home.hash_at(at);
        match home.find_or_mend(&table, hash) {
            Some(key) if key.at == at => {
                let (unwritten, _) = home.cells(&own, key).unlogged(own.policy.longest(), home.clock.now());
                let units: u64 = unwritten.iter().fold(0, |sum, start| sum.saturating_add(start.units));
                if units > MOST_UNITS {
                    nonsense(format!("{units} units of a key"));
                }
            }
            // A block that another one has come for stays in no index.
            _ => nonsense(format!("a key of limit {limit} that is not where it is looked for")),
        }
    }
    (looked == BATCH).then_some(from + BATCH)
}
