//! Writing the ledger: what was admitted is written down, behind the decisions or, where a budget is used up, before them.
//!
//! There is no background thread. One caller at a time, of all processes, has the right to write (the process's ledger mutex and
//! the lane's ledger byte). It gathers what has changed under the structure lock, lets go of that, commits, and takes the
//! structure lock once more to mark what is written. So the disk, or a stranger who has locked the database, holds up only
//! those whose own start has to be written first. All who wait for the same commit share it.
//!
//! When a start is written:
//!
//! * Windows of up to two minutes: behind, about once a second. After a reboot such a limit counts as full until one window
//!   after the last moment at which it may have been used, so no start of it has to wait.
//! * Longer ones: of what a key has handed out, at most its budget may be missing. A start beyond it is written before its
//!   call returns. From half of the budget on, a caller that may wait writes ahead if nobody else is writing.
//! * [`Durability::Commit`](super::Durability): before the call returns, whatever the window.

use super::changed::Changed;
use super::database::Database;
use super::index::KeyAt;
use super::layout::key_word;
use super::ledger::{Execution, Moment};
use super::limit::Refused;
use super::locked::Locked;
use super::session::Session;
use super::table::{Blocked, Hash, Home, Table, UNKEPT};
use super::url::Address;
use super::{Key, lane, os};
use crate::algorithm::Start;
use crate::algorithm::log::Taken;
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::fault;
use crate::fork::{self, PerProcess};
use crate::time::{Now, monotonic_ns};
use crate::waiting::MayWait;
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// After a failure to write it is not tried again for so long, so that not every start waits for the timeout.
const REST: Duration = Duration::from_secs(1);

/// How many keys one commit writes, beside those that somebody waits for. The structure lock is held for a few milliseconds.
const KEYS: u64 = 256;

/// How many commits one checkpoint makes. What is left then is the next one's.
const COMMITS: usize = 4;

/// A follower looks again after this long: the writer may be another process, whose end nobody announces here.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// How long a refused caller waits until its start is taken back. If somebody else is busy for longer, the next holder of the
/// structure lock does it.
const TAKEN_BACK_BY: Duration = Duration::from_millis(10);

/// How this process writes the ledger.
#[derive(Debug, Default)]
pub(super) struct Writer {
    /// Until when, by the monotonic clock, nobody tries again.
    rests_until: AtomicU64,
    /// What callers of this process wait for.
    wanted: PerProcess<Vec<Arc<Want>>>,
    /// Counts the commits of this process. Followers sleep on it.
    commits: AtomicU64,
    /// There is something to look after, which the caller who noticed must not do.
    is_due: AtomicBool,
}

/// A key that somebody waits for.
#[derive(Debug)]
struct Want {
    /// Which lane it is in.
    instance: u64,
    changed: Changed,
    is_done: AtomicBool,
}

/// The right to write the ledger.
struct Lead {
    // In this order: the lane's byte is given back before another thread of this process can ask for it.
    _lane: File,
    _process: fork::Structure,
}

/// A key's starts that are not in the ledger.
struct Unlogged {
    limit: u64,
    table: Table,
    key: KeyAt,
    hash: Hash,
    text: String,
    starts: Vec<Start>,
    end: u64,
}

/// What one commit writes.
struct Batch {
    /// Which lane it is of.
    instance: u64,
    keys: Vec<Unlogged>,
    names: BTreeMap<u64, String>,
    now: Now,
    moment: Moment,
    /// Limits that have no name at this moment, whose keys are left out.
    unnamed: Vec<u64>,
    /// How much of the list of changed keys it is.
    listed_to: u64,
}

/// Now, by the clock of decisions and by those of the ledger.
pub(super) fn moment(home: &Home) -> (Now, Moment) {
    let (now, uptime) = home.clock.now_and_uptime();
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as i64;
    (now, Moment { uptime, wall, synced: os::clock_is_synchronised() })
}

impl Session {
    // ---- what callers ask for ----

    /// Does not return before so little of what a key has handed out is missing from the ledger that `taken` may start.
    #[cold]
    pub fn wait_for_ledger(
        &self,
        limit: u64,
        key: &Key,
        taken: &Taken,
        (budget, at): (u64, Now),
    ) -> Result<(), Blocked> {
        let patience = self.patience(self.options.timeout)?;
        let want =
            Arc::new(Want { instance: key.home.instance, changed: (limit, key.hash), is_done: AtomicBool::new(false) });
        // For the writers of other processes, too.
        key.home.list(limit, key.key.at, key.hash, at.floor);
        self.writer.wanted.lock().push(want.clone());
        // In another life the marks are others.
        let is_logged = || {
            want.is_done.load(Acquire) || key.cells().unwritten(taken.end, at) <= budget && key.home.is_alive(key.key)
        };
        let written = self.follow_or_lead(&want, patience, is_logged);
        self.writer.wanted.lock().retain(|other| !Arc::ptr_eq(other, &want));
        written
    }

    /// Waits until it is written, by others or by itself.
    fn follow_or_lead(&self, want: &Want, patience: Duration, is_logged: impl Fn() -> bool) -> Result<(), Blocked> {
        let (began, mut has_tried) = (Instant::now(), false);
        loop {
            let commits = self.writer.commits.load(Acquire);
            if is_logged() {
                return Ok(());
            }
            let home = self.home();
            if home.instance != want.instance || !home.is_still_there(home.clock.now().floor) {
                return Err(Blocked::Lost);
            }
            if !has_tried && self.rests() {
                let cause = "it failed a moment ago, and is tried again within a second";
                return Err(Error::store(format!("writing the ledger of {}", self.url()), cause).into());
            }
            let left = patience.saturating_sub(began.elapsed());
            match self.try_lead()? {
                None => os::sleep_on(&self.writer.commits, commits, LOOK_AGAIN.min(left)),
                Some(lead) => {
                    has_tried = true;
                    match self.write_batch(&lead, left) {
                        Ok(_) if is_logged() => return Ok(()),
                        // Its limit has no name at this moment.
                        Ok(_) => {}
                        // A stranger has locked the database.
                        Err(Error::StoreTimeout { .. }) if !left.is_zero() => {}
                        // Another lane has come in this one's place.
                        Err(_) if !home.is_still_there(home.clock.now().floor) => return Err(Blocked::Lost),
                        Err(error) => {
                            // Who waits briefly knows too little to say so for others.
                            if patience == self.options.timeout || !matches!(error, Error::StoreTimeout { .. }) {
                                self.rest();
                            }
                            return Err(error.into());
                        }
                    }
                    drop(lead);
                    let jitter = os::random::<1>().map_or(0, |[r]| r % 1_000);
                    std::thread::sleep(Duration::from_micros(500 + jitter).min(left));
                }
            }
            if left.is_zero() {
                let waited_ms = began.elapsed().as_millis() as u64;
                let doing = format!("writing the ledger of {}", self.url());
                return Err(Error::StoreTimeout { doing, waited_ms }.into());
            }
        }
    }

    /// A key has used half of its budget: it is written now if this caller may wait and nobody else is writing.
    #[cold]
    pub fn write_ahead(&self, limit: u64, key: &Key, now: Now) {
        key.home.list(limit, key.key.at, key.hash, now.floor);
        if MayWait::here() != MayWait::UntilTimeout {
            self.writer.is_due.store(true, Release);
        } else if !self.rests() {
            self.write_listed(1);
        }
    }

    /// Is there something to look after, which callers left because they must not wait?
    #[inline(always)]
    pub fn is_due(&self) -> bool {
        self.writer.is_due.load(Relaxed)
    }

    /// Does what is due about once a second, or leaves it to who may wait.
    pub fn look_after(&self) {
        if MayWait::here() != MayWait::UntilTimeout {
            self.writer.is_due.store(true, Release);
            return;
        }
        let was_due = self.writer.is_due.swap(false, AcqRel);
        let home = self.home();
        let is_turn = home.takes_checkpoint(home.clock.now().floor) || was_due || home.is_list_long();
        if is_turn && !self.rests() {
            self.write_listed(COMMITS);
        }
        self.take_back_if_free();
        self.tell_counts_if_free();
    }

    /// Writes all that the ledger does not have, also of keys that are not listed.
    pub fn flush(&self) -> Result<()> {
        // Opens the store.
        self.with_lock(|locked| self.tell_counts(locked))?;
        if let Address::Memory = self.address {
            return Ok(());
        }
        let (began, timeout) = (Instant::now(), self.patience(self.options.timeout)?);
        loop {
            let left = timeout.saturating_sub(began.elapsed());
            let flushed = self.try_lead()?.map(|lead| self.write_every_key(&lead, left));
            match flushed {
                Some(Ok(())) => return Ok(()),
                Some(Err(Error::StoreTimeout { .. })) | None if !left.is_zero() => std::thread::sleep(LOOK_AGAIN),
                Some(Err(error)) => return Err(error),
                None => {
                    let doing = format!("writing the ledger of {}", self.url());
                    return Err(Error::StoreTimeout { doing, waited_ms: timeout.as_millis() as u64 });
                }
            }
        }
    }

    fn write_every_key(&self, lead: &Lead, patience: Duration) -> Result<()> {
        while self.write_batch(lead, patience)? {}
        let limits = self.with_lock_for(patience, |locked| Ok(locked.limits().collect::<Vec<_>>()))?;
        for limit in limits {
            // A key that was written has nothing more to write, so each round finds others.
            while !self.write(lead, patience, |locked| locked.gather_limit(limit))?.keys.is_empty() {}
        }
        Ok(())
    }

    /// Forgets a key, or all keys of a limit, in the ledger too. For the holder of the structure lock.
    pub(super) fn forget_logged(&self, name: &str, hash: Option<Hash>) -> Result<()> {
        let Address::Sqlite(path) = &self.address else { return Ok(()) };
        self.with_database(path, |database| database.forget(name, hash.map(|hash| hash.0)))
    }

    // ---- one commit ----

    fn rests(&self) -> bool {
        monotonic_ns() < self.writer.rests_until.load(Relaxed)
    }

    fn rest(&self) {
        self.writer.rests_until.store(monotonic_ns() + REST.as_nanos() as u64, Relaxed);
    }

    /// The right to write, if nobody else has it.
    fn try_lead(&self) -> Result<Option<Lead>> {
        let Some(_process) = fork::ledger() else { return Ok(None) };
        let Some(watch) = &self.home().watch else { return Ok(None) };
        Ok(watch.try_lock_ledger()?.map(|_lane| Lead { _lane, _process }))
    }

    /// Writes what is listed, if nobody else is writing, and tells nobody of a failure: those who wait for it find out.
    fn write_listed(&self, commits: usize) {
        let Ok(Some(lead)) = self.try_lead() else { return };
        for _ in 0..commits {
            match self.write_batch(&lead, TAKEN_BACK_BY) {
                Ok(true) => {}
                Ok(false) => break,
                // The list keeps it.
                Err(Error::StoreTimeout { .. }) => break,
                Err(_) => return self.rest(),
            }
        }
    }

    /// Writes what callers of this process wait for, and the oldest of what is listed. `true`: more is listed.
    fn write_batch(&self, lead: &Lead, patience: Duration) -> Result<bool> {
        let wants = self.writer.wanted.lock().clone();
        let unnamed = self.write(lead, patience, |locked| locked.gather(&wants))?.unnamed;
        if !unnamed.is_empty() {
            self.with_lock_for(patience, |locked| self.name(locked, &unnamed))?;
        }
        let is_written = |want: &&Arc<Want>| !unnamed.contains(&want.changed.0);
        wants.iter().filter(is_written).for_each(|want| want.is_done.store(true, Release));
        self.writer.commits.fetch_add(1, AcqRel);
        os::wake_all(&self.writer.commits);
        Ok(self.home().has_listed())
    }

    /// Gathers, commits, marks.
    fn write(&self, _lead: &Lead, patience: Duration, gather: impl Fn(&Locked) -> Batch) -> Result<Batch> {
        let batch = self.with_lock_for(patience, |locked| Ok(gather(locked)))?;
        let home = self.home();
        if let (Address::Sqlite(path), [_, ..]) = (&self.address, batch.keys.as_slice()) {
            self.with_database(path, |database| record(database, &batch, home))?;
            // It is written, whether it can be marked or not: at worst it is written twice, and counts twice after a reboot.
            // Whoever has the lock had let go of it a moment ago, so this is worth a longer wait.
            let _ = self.with_lock(|locked| locked.mark(&batch));
        }
        home.have_written(batch.listed_to);
        Ok(batch)
    }

    /// Gives limits the names that the database has for them: somebody died while renaming.
    fn name(&self, locked: &Locked, unnamed: &[u64]) -> Result<()> {
        let Address::Sqlite(path) = &self.address else { return Ok(()) };
        for name in self.with_database(path, |database| database.names())? {
            if let Some(limit) = locked.find_limit(&name).filter(|limit| unnamed.contains(limit)) {
                locked.set_name_text(limit, &name)?;
            }
        }
        Ok(())
    }

    // ---- starts that were refused because they could not be written ----

    /// Takes a start back that was refused.
    pub fn refuse(&self, refused: Refused) {
        self.refused.lock().push(refused);
        let _ = self.with_lock_for(TAKEN_BACK_BY, |_| Ok(()));
    }

    /// Takes back what was refused, if there is anything and nobody else is busy.
    fn take_back_if_free(&self) {
        if !self.refused.lock().is_empty() {
            let _ = self.with_lock_for(Duration::ZERO, |_| Ok(()));
        }
    }

    /// Takes back what was refused. For everybody who gets the structure lock.
    pub(super) fn take_back_refused(&self, locked: &Locked) {
        let all = std::mem::take(&mut *self.refused.lock());
        for refused in all.into_iter().filter(|refused| refused.instance == locked.instance) {
            let undo = || {
                locked.finish_replacing(refused.limit)?;
                let table = locked.table(refused.limit);
                let Some(found) = locked.find_or_mend(&table, refused.hash) else { return Ok(()) };
                let own = locked.table_of(&table, found);
                locked
                    .rewrite(&table, refused.hash, |history| {
                        super::limit::take_back(&own, history, refused.start, refused.ahead);
                    })
                    .map(drop)
            };
            let undone: Result<()> = undo();
            if undone.is_err() {
                self.refused.lock().push(refused);
            }
        }
    }
}

impl Locked<'_> {
    /// What is wanted and the oldest of what is listed.
    fn gather(&self, wants: &[Arc<Want>]) -> Batch {
        let wanted = wants.iter().filter(|want| want.instance == self.instance).map(|want| want.changed);
        let (listed, listed_to) = self.listed(KEYS);
        let mut all: Vec<Changed> = wanted.chain(listed).collect();
        all.sort_unstable();
        all.dedup();
        let keys = all.into_iter().filter_map(|(limit, hash)| {
            let table = self.table(limit);
            let key = self.find_or_mend(&table, hash)?;
            self.unlogged(limit, self.table_of(&table, key), key)
        });
        self.batch(keys.collect(), listed_to)
    }

    /// What some keys of one limit have.
    fn gather_limit(&self, limit: u64) -> Batch {
        let table = self.table(limit);
        let unlogged = |(own, at): (Table, u64)| {
            let life = self.arena.word(at + key_word::LIFE).load(Acquire);
            self.unlogged(limit, own, KeyAt { at, life, table: own.at })
        };
        let kept = self.keys(&table).filter(|(own, _)| own.budget != UNKEPT);
        self.batch(kept.filter_map(unlogged).take(4 * KEYS as usize).collect(), 0)
    }

    /// What a key has.
    fn gather_key(&self, limit: u64, hash: Hash) -> Batch {
        let table = self.table(limit);
        let found = self.find_or_mend(&table, hash).map(|key| (self.table_of(&table, key), key));
        let found = found.and_then(|(own, key)| self.unlogged(limit, own, key));
        self.batch(found.into_iter().collect(), 0)
    }

    fn batch(&self, keys: Vec<Unlogged>, listed_to: u64) -> Batch {
        let (now, moment) = moment(self);
        let (mut names, mut unnamed) = (BTreeMap::new(), Vec::new());
        for limit in keys.iter().map(|key| key.limit) {
            if let std::collections::btree_map::Entry::Vacant(entry) = names.entry(limit) {
                match self.name_of(limit) {
                    Some(name) => drop(entry.insert(name)),
                    None => unnamed.push(limit),
                }
            }
        }
        let keys = keys.into_iter().filter(|key| names.contains_key(&key.limit)).collect();
        Batch { instance: self.instance, keys, names, unnamed, now, moment, listed_to }
    }

    fn unlogged(&self, limit: u64, table: Table, key: KeyAt) -> Option<Unlogged> {
        // A start from here on lists the key again.
        self.arena.word(key.at + key_word::LISTED).store(0, Release);
        let (starts, end) = self.cells(&table, key).unlogged(table.policy.longest(), self.clock.now());
        let (hash, text) = (self.hash_at(key.at), || self.text_of(key.at));
        (!starts.is_empty()).then(|| Unlogged { limit, table, key, hash, text: text(), starts, end })
    }

    /// Marks what is written.
    fn mark(&self, batch: &Batch) -> Result<()> {
        for Unlogged { limit, key, hash, starts, end, .. } in &batch.keys {
            let table = self.table(*limit);
            match self.find_or_mend(&table, *hash) {
                Some(now) if now == *key => self.arena.word(key.at + key_word::LOGGED).store(*end, Release),
                // It was written elsewhere meanwhile.
                Some(_) => {
                    let is_written =
                        |start: &Start| start.id != u64::MAX && starts.iter().any(|written| written.id == start.id);
                    self.rewrite(&table, *hash, |history| {
                        history.starts.iter_mut().for_each(|start| start.is_logged |= is_written(start));
                    })?;
                }
                None => {}
            }
        }
        Ok(())
    }
}

/// Writes all that a key has, for the holder of the structure lock.
pub(super) fn write_key(locked: &Locked, database: &mut Database, limit: u64, hash: Hash) -> Result<()> {
    let batch = locked.gather_key(limit, hash);
    if batch.keys.is_empty() {
        return Ok(());
    }
    record(database, &batch, locked)?;
    locked.mark(&batch)
}

/// The same of all keys of a limit.
pub(super) fn write_limit(locked: &Locked, database: &mut Database, limit: u64) -> Result<()> {
    loop {
        let batch = locked.gather_limit(limit);
        if batch.keys.is_empty() {
            return Ok(());
        }
        record(database, &batch, locked)?;
        locked.mark(&batch)?;
    }
}

/// Writes a batch down.
fn record(database: &mut Database, batch: &Batch, home: &Home) -> Result<()> {
    let mut rows = Vec::new();
    for unlogged in &batch.keys {
        for start in &unlogged.starts {
            let started_at = batch.moment.wall - (batch.now.floor as i64 - start.stamp as i64);
            rows.push(Execution {
                name: &batch.names[&unlogged.limit],
                key: &unlogged.text,
                key_hash: unlogged.hash.0,
                started_at,
                units: start.units,
                expires_at: started_at + unlogged.table.policy.longest() as i64,
            });
        }
    }
    if !fault::planted("unwritten ledger") {
        let sequence = lane::raise_sequence(home, database.sequence);
        database.record(&rows, batch.moment, (batch.instance, sequence))?;
    }
    Ok(())
}
