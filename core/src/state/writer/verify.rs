//! Checks and repairs a store, for operators, after a disk failure or writes by another program.
//!
//! The database is checked by SQLite and by the readers in this module. The lane is checked by walking over all of its
//! contents, in batches under the structure lock. Faulty rows of the database are removed if they are certainly
//! unreadable. A lane is not repaired but rebuilt from the ledger, as if it had been lost.

use crate::damage::nonsense;
use crate::error::{Error, Result};
use crate::fork;
use crate::policy::Policy;
use crate::state::cells::home::Table;
use crate::state::cells::layout::{BlockAt, LimitAt};
use crate::state::cells::locked::Locked;
use crate::state::files::lane;
use crate::state::ledger::database::Database;
use crate::state::ledger::policies::{KeySelection, KnownKey, KnownLimit};
use crate::state::ledger::verify_database::Problem;
use crate::state::session::{LET_OTHERS, Session};
use crate::waiting::MayWait;
use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the lock is held to check keys, except for the segment in progress.
const MOMENT: Duration = Duration::from_millis(2);

/// How many limits, or keys with policies, are compared at once.
const BATCH: usize = 256;

/// More units than any limit can start in its longest window.
const MAX_UNITS: u64 = 1 << 40;

/// How long to wait before retrying a database that another process uses.
const NAP: Duration = Duration::from_millis(2);

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
        let (began, timeout) = (Instant::now(), MayWait::patience(self.options.timeout)?);
        loop {
            match Database::verify(path, repair) {
                Err(Error::StoreTimeout { .. }) if began.elapsed() < timeout => std::thread::sleep(NAP),
                answer => return answer.map_err(|error| error.after(began)),
            }
        }
    }

    /// The faults of the lane: the first of each limit.
    fn verify_lane(&self, database: &Path) -> Result<Vec<String>> {
        let mut problems = Vec::new();
        let mut note = |error| match error {
            // Already reported.
            Error::Damaged { path, .. } if path == database => Ok(()),
            Error::Damaged { found, .. } => {
                problems.push(format!("the lane: {found}"));
                Ok(())
            }
            error => Err(error),
        };
        let limits = |locked: &Locked| Ok((locked.instance, locked.limits().collect::<Vec<LimitAt>>()));
        let (instance, limits) = match self.with_lock(limits) {
            Ok(found) => found,
            Err(error) => {
                note(error)?;
                return Ok(problems);
            }
        };
        let next = Cell::new((0, 0));
        while next.get().0 < limits.len() {
            let is_it = self.with_lock(|locked| {
                let is_it = locked.instance == instance;
                if is_it {
                    look(locked, &limits, &next);
                }
                Ok(is_it)
            });
            match is_it {
                Ok(true) => {}
                // It was rebuilt, so what was found before concerns no file any more.
                Ok(false) => return self.verify_lane(database),
                Err(error) => {
                    note(error)?;
                    next.set((next.get().0 + 1, 0));
                }
            }
            std::thread::sleep(LET_OTHERS);
        }
        self.has_all_declared().or_else(note)?;
        Ok(problems)
    }

    /// Checks that the lane has the database's policies, except those that change during the check.
    fn has_all_declared(&self) -> Result<()> {
        let read =
            |found: &mut Database| Ok((found.generation, found.limits(None)?, found.keys(KeySelection::Changed(0))?));
        let doing = "reading the policies of";
        let (generation, limits, keys) =
            self.leading(doing, self.options.timeout, |lead, _| self.with_ledger(lead, read))?;
        let some = |look: &dyn Fn(&Locked)| {
            let is_it = |locked: &Locked| !locked.is_behind() && locked.generation() == generation;
            let looked = self.with_lock(|locked| Ok(is_it(locked).then(|| look(locked)).is_some()));
            std::thread::sleep(LET_OTHERS);
            looked
        };
        for limits in limits.chunks(BATCH) {
            some(&|locked| limits.iter().for_each(|known| has_limit(locked, known)))?;
        }
        for keys in keys.chunks(BATCH) {
            some(&|locked| keys.iter().for_each(|known| has_key(locked, known)))?;
        }
        Ok(())
    }

    /// Removes the lane. Its users notice within a second and create another.
    fn remove_lane(&self) -> Result<()> {
        let (Some(path), began) = (self.lane_path(), Instant::now()) else { return Ok(()) };
        let timeout = MayWait::patience(self.options.timeout)?;
        loop {
            let left = timeout.saturating_sub(began.elapsed());
            let process = fork::structure(&self.structure, left);
            if process.is_some()
                && let Some(lane) = lane::LockedLane::try_open(&path, self.options.mode)?
            {
                return lane.remove();
            }
            if left.is_zero() {
                return Err(Error::busy(format!("repairing {}", path.display())).after(began));
            }
            drop(process);
            std::thread::sleep(NAP);
        }
    }
}

/// Returns whether a policy applies in this table.
fn is_by(policy: Policy, own: &Table) -> bool {
    own.policy == policy.after(own.policy)
}

fn has_limit(locked: &Locked, KnownLimit { name, declared, .. }: &KnownLimit) {
    let limit = locked.find_limit(name).unwrap_or_else(|| nonsense(format!("no limit \"{name}\"")));
    let table = locked.limit(limit).table();
    if !is_by(declared.current(), &table) {
        nonsense(format!("limit \"{name}\" by the policy \"{}\"", table.policy));
    }
}

fn has_key(locked: &Locked, KnownKey { limit, key, policy, .. }: &KnownKey) {
    // The limit may no longer be declared, and unused since.
    let (Some(policy), Some(at)) = (policy, locked.find_limit(limit)) else { return };
    let table = locked.limit(at).table();
    let found = locked.index(&table).block(locked.hash(b'k', key)).map(|at| locked.block(at).table(&table));
    if !found.is_some_and(|own| own.at != table.at && is_by(*policy, &own)) {
        nonsense(format!("key \"{key}\" of limit \"{limit}\" without its policy"));
    }
}

/// Checks keys of limits for a moment, starting at a limit and a hash.
fn look(home: &Locked, limits: &[LimitAt], next: &Cell<(usize, u64)>) {
    let began = Instant::now();
    while let (n, hash) = next.get()
        && let Some(&limit) = limits.get(n)
        && began.elapsed() <= MOMENT
    {
        let table = home.limit(limit).table();
        let root = home.index(&table).root().unwrap_or_else(|| nonsense(format!("no index of limit {limit}")));
        for at in home.segment_at(root, root.entry_of(hash)).entries().filter(|&at| !home.block(at).is_stub()) {
            look_at_key(home, &table, at);
        }
        next.set(home.index(&table).next_segment(hash).map_or((n + 1, 0), |hash| (n, hash)));
    }
}

fn look_at_key(home: &Locked, table: &Table, at: BlockAt) {
    let own = home.block(at).table(table);
    match home.find_or_repair(table, home.block(at).hash()) {
        Some(key) if key.at == at => {
            let (unwritten, _) = home.cells(&own, key).unlogged(own.policy.longest(), home.clock.now());
            let units: u64 = unwritten.iter().fold(0, |sum, start| sum.saturating_add(start.units));
            if units > MAX_UNITS {
                nonsense(format!("{units} units of a key"));
            }
        }
        // A block that has been replaced stays in no index.
        _ => nonsense(format!("a key of the limit at {} that is not where it is looked for", home.of(table).limit())),
    }
}
