//! Between the lane and the ledger: what was admitted is written down, and read again after a reboot.
//!
//! Nobody writes in the background. A call that would leave more of a key unwritten than its budget allows writes before
//! it returns, for itself and for all others who wait for the same; once a second some call writes what all keys have.
//! So after a reboot every key counts its budget as spent at that moment, whatever the ledger knows of it: never a start
//! too many, and at most a budget too few. What it counts then is unwritten too, and so is written before the key's first
//! start: the next reboot may come while it still counts.

use super::inner::Inner;
use super::keys::KeyAt;
use super::lane::{Made, WATCH_EVERY};
use super::layout::{key_word, table_word};
use super::ledger::{Execution, Moment};
use super::limit::{Refused, take_back};
use super::sqlite::{Database, Identity};
use super::table::{Blocked, Hash, Home, Table};
use super::url::Address;
use super::{Key, os};
use crate::algorithm::Start;
use crate::algorithm::log::{SETTLED, Taken};
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::fault;
use crate::policy::Policy;
use crate::time::{Now, Tick, monotonic_ns};
use std::cell::Cell;
use std::fs::File;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// By this much longer a limit counts as full whose lane was lost: until then, processes that still use the lost one
/// have noticed.
const NOTICED_BY: Tick = 2 * WATCH_EVERY;

/// After a failure to write it is not tried again for so long, so that not every decision waits for the timeout.
const REST: Duration = Duration::from_secs(1);

/// A key that somebody waits for: which lane it is in, where its limit is, and its hash.
pub(crate) type Want = (u64, u64, Hash);

/// How long a refused caller waits until its start is taken back. If somebody else is busy for longer, whoever has the
/// lock next does it.
const TAKEN_BACK_BY: Duration = Duration::from_millis(10);

/// A key's starts that are not in the ledger.
struct Unlogged {
    table: Table,
    at: u64,
    /// Index into the names.
    name: usize,
    key: String,
    starts: Vec<Start>,
    end: u64,
}

/// Now, by the clock of decisions and by those of the ledger.
fn moment(home: &Home) -> (Now, Moment) {
    let (now, uptime) = home.clock.now_and_uptime();
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as i64;
    (now, Moment { uptime, wall, synced: os::clock_is_synchronised() })
}

impl Inner {
    /// Writes what all keys have that the ledger does not.
    pub fn flush(&self) -> Result<()> {
        self.with_lock(|locked| self.write_all().and_then(|()| self.tell_counts(locked.file())))
    }

    /// The same, if nobody else is busy, and without telling of a failure: that is for those who have to wait for it.
    pub fn flush_if_free(&self) {
        let _ = self.with_lock_for(Duration::ZERO, |_| self.write_all());
    }

    fn write_all(&self) -> Result<()> {
        let Address::Sqlite(path) = &self.address else { return Ok(()) };
        let home = self.home();
        let began = home.clock.now().floor;
        self.with_database(path, |database| {
            let names = database.names()?;
            let mut all = Vec::new();
            for (i, name) in names.iter().enumerate() {
                let Some(limit) = home.find_limit(name) else { continue };
                let table = home.table(limit);
                if table.budget != u64::MAX {
                    all.extend(home.keys(&table).filter_map(|at| unlogged(home, table, at, i)));
                }
            }
            write(home, database, &names, all)
        })?;
        // With very many keys less often, so that looking for them stays a small part of the time.
        home.put_off_checkpoint(home.clock.now().floor + 20 * (home.clock.now().floor - began));
        Ok(())
    }

    /// Does not return before so little of what a key has handed out is missing from the ledger that `taken` may start.
    #[cold]
    pub fn wait_for_ledger(
        &self,
        limit: u64,
        key: &Key,
        taken: &Taken,
        (budget, at): (u64, Now),
    ) -> Result<(), Blocked> {
        let Address::Sqlite(path) = &self.address else { return Ok(()) };
        let want = (key.home.instance, limit, key.hash);
        self.wanted.lock().push(want);
        let has_tried = Cell::new(false);
        let is_written = || is_logged(key, taken.end, (budget, at)).then_some(true);
        let is_there = self.with_lock_unless(self.options.timeout, is_written, |_| {
            let home = self.home();
            if home.instance != key.home.instance {
                return Ok(false);
            }
            if let Some(yes) = is_written() {
                return Ok(yes);
            }
            if !has_tried.get() && monotonic_ns() < self.rests_until.load(Relaxed) {
                let cause = "it failed a moment ago, and is tried again within a second";
                return Err(Error::store(format!("writing the ledger of {}", self.url()), cause));
            }
            let mut wants = std::mem::take(&mut *self.wanted.lock());
            wants.push(want);
            wants.sort_unstable();
            wants.dedup();
            has_tried.set(true);
            self.with_database(path, |database| {
                let names = database.names()?;
                let mut all = Vec::new();
                for (_, limit, hash) in wants.into_iter().filter(|(instance, ..)| *instance == home.instance) {
                    let Some(name) = names.iter().position(|name| home.find_limit(name) == Some(limit)) else {
                        continue;
                    };
                    let table = home.table(limit);
                    if let Ok(Some(KeyAt { at, .. })) = home.find(&table, hash) {
                        all.extend(unlogged(home, table, at, name));
                    }
                }
                write(home, database, &names, all)
            })?;
            Ok(true)
        });
        if is_there.is_err() && has_tried.get() {
            self.rests_until.store(monotonic_ns() + REST.as_nanos() as u64, Relaxed);
        }
        if is_there? { Ok(()) } else { Err(Blocked::Lost) }
    }

    /// Takes a start back that was refused.
    pub fn refuse(&self, refused: Refused) {
        self.refused.lock().push(refused);
        let _ = self.with_lock_for(TAKEN_BACK_BY, |_| Ok(()));
    }

    /// Takes back what was refused, if there is anything and nobody else is busy.
    pub fn take_back_if_free(&self) {
        if !self.refused.lock().is_empty() {
            let _ = self.with_lock_for(Duration::ZERO, |_| Ok(()));
        }
    }

    /// Takes back what was refused. For everybody who gets the structure lock.
    pub(super) fn take_back_refused(&self, file: Option<&File>) {
        let home = self.home();
        let all = std::mem::take(&mut *self.refused.lock());
        for refused in all.into_iter().filter(|refused| refused.instance == home.instance) {
            let undo = || {
                home.finish_replacing(refused.limit, file)?;
                let table = home.table(refused.limit);
                home.mend_key(&table, refused.hash, file)?;
                let Ok(Some(_)) = home.find(&table, refused.hash) else { return Ok(()) };
                home.rewrite(&table, refused.hash, file, |history| {
                    take_back(&table, history, refused.start, refused.ahead);
                })
                .map(drop)
            };
            let undone: Result<()> = undo();
            if undone.is_err() {
                self.refused.lock().push(refused);
            }
        }
    }

    /// Before another policy is noted: what is not in the ledger is written, so that no more is missing than the next budget
    /// allows, and what the ledger has counts for as long as the next policy says.
    pub(super) fn prepare_ledger(&self, name: &str, policy: Policy) -> Result<()> {
        let Address::Sqlite(path) = &self.address else { return Ok(()) };
        self.write_all()?;
        self.with_database(path, |database| database.keep_for(name, policy.longest()))
    }

    /// Forgets a key, or all keys of a limit, in the ledger too.
    pub(super) fn forget_logged(&self, name: &str, hash: Option<Hash>) -> Result<()> {
        let Address::Sqlite(path) = &self.address else { return Ok(()) };
        self.with_database(path, |database| database.forget(name, hash.map(|hash| hash.0)))
    }
}

/// Is no more missing of what was handed out up to this mark than the budget?
fn is_logged(key: &Key, end: u64, (budget, now): (u64, Now)) -> bool {
    let unwritten = key.cells().unwritten(end, now);
    // In another life the marks are others.
    unwritten <= budget && key.home.is_alive(key.key)
}

fn unlogged(home: &Home, table: Table, at: u64, name: usize) -> Option<Unlogged> {
    let (starts, end) = home.cells_at(&table, at).unlogged(table.policy.longest(), home.clock.now());
    (!starts.is_empty()).then(|| Unlogged { table, at, name, key: home.text_of(at), starts, end })
}

/// Writes starts, and then raises the keys' mark of what was written. Under the structure lock, so no key moves meanwhile.
fn write(home: &Home, database: &mut Database, names: &[String], all: Vec<Unlogged>) -> Result<()> {
    if all.is_empty() {
        return Ok(());
    }
    let (now, moment) = moment(home);
    let mut rows = Vec::new();
    for unlogged in &all {
        for start in &unlogged.starts {
            let started_at = moment.wall - (now.floor as i64 - start.stamp as i64);
            rows.push(Execution {
                name: &names[unlogged.name],
                key: &unlogged.key,
                key_hash: home.hash_at(unlogged.at).0,
                started_at,
                units: start.units,
                expires_at: started_at + unlogged.table.policy.longest() as i64,
            });
        }
    }
    if !fault::planted("unwritten ledger") {
        database.record(&rows, moment)?;
    }
    for Unlogged { at, end, .. } in all {
        home.arena.word(at + key_word::LOGGED).store(end, Release);
    }
    Ok(())
}

/// Fills a lane that was made anew with what the database knows.
pub(super) fn recover(
    home: &Home,
    database: &mut Database,
    identity: &Identity,
    made: Made,
    file: &File,
) -> Result<()> {
    let boot = os::boot_text();
    // If it is the boot that the last lane was made in, processes may still be using that one.
    let is_lost = made == Made::Missing && identity.boot == boot;
    let (now, moment) = moment(home);
    for name in database.names()? {
        let Some(declared) = database.policy(&name)? else { continue };
        let policy = declared.current();
        let budget = home.budget(policy);
        let born = match is_lost {
            true => now.ceil + NOTICED_BY,
            // Nothing is known of the shortest windows, and it may have been no boot: they are over soon.
            false if budget == u64::MAX => now.ceil,
            false => 0,
        };
        let limit = home.add_limit(&name, policy, born, Some(file))?;
        if !is_lost && budget != u64::MAX {
            let table = home.table(limit);
            home.set(table.at + table_word::LOST, [now.ceil, budget]);
            // It was there before the loss was known.
            let is_logged = fault::planted("lost once");
            home.rewrite(&table, home.hash(b'k', ""), Some(file), |history| {
                let (stamp, units) = (now.ceil, budget);
                history.starts.push(Start { stamp, units, state: SETTLED, id: u64::MAX, is_logged });
            })?;
        }
    }
    let mut group: Option<(String, Hash, String)> = None;
    let mut starts = Vec::new();
    database.executions(&boot, moment, |row| {
        let is_same = group.as_ref().is_some_and(|(name, hash, _)| name == row.name && hash.0 == row.key_hash);
        if !is_same {
            if let Some((name, hash, text)) = group.take() {
                bring_back(home, &name, hash, &text, std::mem::take(&mut starts), file)?;
            }
            group = Some((row.name.to_owned(), Hash(row.key_hash), row.key.to_owned()));
        }
        // What was a place counts from now on: nobody can tell whether it started.
        let age = (moment.wall - row.started_at).max(0) as u64;
        let stamp = now.ceil.saturating_sub(age);
        if row.units == 0 {
            return Ok(());
        }
        starts.push(Start { stamp, units: row.units, state: SETTLED, id: u64::MAX, is_logged: true });
        Ok(())
    })?;
    if let Some((name, hash, text)) = group {
        bring_back(home, &name, hash, &text, starts, file)?;
    }
    database.set_boot(&boot, moment)
}

fn bring_back(home: &Home, name: &str, hash: Hash, text: &str, old: Vec<Start>, file: &File) -> Result<()> {
    let Some(limit) = home.find_limit(name) else { return Ok(()) };
    let table = home.table(limit);
    if table.policy.is_concurrency() {
        return Ok(());
    }
    home.find_or_add_locked(&table, hash, text, Some(file))?;
    home.rewrite(&table, hash, Some(file), |history| {
        history.starts.splice(0..0, old);
        history.starts.sort_by_key(|start| start.stamp);
    })?;
    Ok(())
}
