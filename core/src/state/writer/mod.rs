//! Writes the ledger: admitted starts are recorded after the decisions or, where a budget is used up, before them.
//!
//! There is no background thread (but see `settle.rs`). One caller at a time, of all processes, has the right to write (the store's mutex in
//! this process and the lane's ledger byte). It gathers changes under the structure lock, releases that lock, commits, and
//! takes the structure lock once more to mark what is written. So the disk, or another program that has locked the
//! database, delays only callers whose own start must be written first. All callers that wait for the same commit share
//! it. The wing also has other work that needs this right. `names`, `survey`, `limit` and the store may call it.
//!
//! When a start is written:
//!
//! * Windows of up to two minutes: behind, about once a second. After a reboot such a limit counts as full until one
//!   window after the last moment at which it may have been used, so its starts never wait.
//! * Longer windows: at most a budget of a key's starts may be missing. A start beyond it is written before its call
//!   returns. From half of the budget on, a caller that may wait writes ahead if no other caller is writing.
//! * [`Durability::Commit`](super::Durability): before the call returns, whatever the window.

pub(super) mod restore;
mod settle;
pub(super) mod unwritten;
pub(super) mod verify;

use crate::address::Address;
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::fork::{self, jitter};
use crate::hash::Hash;
use crate::state::cells::home::{Blocked, Found, Home};
use crate::state::cells::layout::LimitAt;
use crate::state::cells::locked::Locked;
use crate::state::files::lane;
use crate::state::ledger::database::Database;
use crate::state::ledger::executions::Moment;
use crate::state::ledger::gather::{Batch, record};
use crate::state::rare::take_back::take_back;
use crate::state::session::wanted::{RefusedStart, Want};
use crate::state::session::{LET_OTHERS, Session};
use crate::time::{Now, monotonic_ns};
use crate::waiting::MayWait;
use crate::{fault, os};
use settle::Kept;
use std::fs::File;
use std::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// After a failed write, further attempts wait this long, so that not every start runs into the timeout.
const REST: Duration = Duration::from_secs(1);

/// How long one change of ledger rows may take, except for its last transaction.
const STEP: Duration = Duration::from_millis(10);

/// How many commits one checkpoint makes. The next one continues.
const COMMITS: usize = 4;

/// How long work that nobody waits for changes ledger rows before it lets other processes write, too.
const TURN: Duration = Duration::from_millis(100);

/// How often a follower checks: the writer may be another process, whose end is not announced here.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// How long one round continues the work of a process that died.
const FINISHING: Duration = Duration::from_millis(100);

/// How long a refused caller waits until its start is taken back. If the lock is busy for longer, the next holder of
/// the structure lock does it.
pub(super) const TAKEN_BACK_BY: Duration = Duration::from_millis(10);

/// How long a caller that may wait does so for the lock, to take back refused starts of this process: its own unit may
/// block it. After a failure no caller tries this for [`REST`].
const TAKEN_BACK_FIRST_BY: Duration = Duration::from_secs(1);

/// The right to write the ledger of a lane.
pub(super) struct Lead<'s> {
    pub(super) home: &'s Home,
    // In this order: the lane's byte is returned before another thread of this process can ask for it.
    _lane: File,
    _process: MutexGuard<'s, ()>,
    // Last: no fork may come before the mutex is free.
    _ledgers: fork::Ledgers,
}

/// When long work stops before its end, between two steps. It fails as if another caller was writing.
#[derive(Debug, Clone, Copy)]
enum Until<'t> {
    /// Never: a caller needs all of it.
    Done,
    /// At this time, or if a thread waits to fork.
    At(Instant),
    /// If a thread waits to fork, or a caller for the right to write; after a [`TURN`]; when the store is closed. Nobody
    /// waits for this work, which continues from here in its next turn.
    Turn(&'t Kept),
}

impl Session {
    // ---- what callers ask for ----

    /// Returns when no more than the budget of the key's units up to this mark (`Taken::end`) are missing from the ledger.
    #[cold]
    pub fn wait_for_ledger(&self, found: &Found, end: u64, (budget, at): (u64, Now)) -> Result<(), Blocked> {
        let patience = MayWait::patience(self.options.timeout)?;
        let want = self.want(found, at);
        // In another life the marks are different.
        let is_logged = || {
            want.is_done.load(Acquire) || found.cells().unwritten(end, at) <= budget && found.home.is_alive(found.key)
        };
        let written = self.follow_or_lead(&want, patience, is_logged);
        self.no_longer_wants(&want);
        written
    }

    /// Has a key written by the next commit, until [`Session::no_longer_wants`].
    pub(super) fn want(&self, found: &Found, at: Now) -> Arc<Want> {
        // For the writers of other processes, too.
        found.list(at);
        let (instance, changed) = (found.home.instance, (found.limit, found.hash));
        let want = Arc::new(Want { instance, changed, is_done: AtomicBool::new(false) });
        self.writer.wanted.lock().push(want.clone());
        want
    }

    pub(super) fn no_longer_wants(&self, want: &Arc<Want>) {
        // The writer has removed what it has written: all at once, because many callers may wait.
        if !want.is_done.load(Acquire) {
            self.writer.wanted.lock().retain(|other| !Arc::ptr_eq(other, want));
        }
    }

    /// Returns when a wanted key has been written.
    pub(super) fn write_wanted(&self, want: &Want) -> Result<(), Blocked> {
        let patience = MayWait::patience(self.options.timeout)?;
        self.follow_or_lead(want, patience, || want.is_done.load(Acquire))
    }

    /// Waits until it is written, by another caller or this one.
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
            let left = patience.saturating_sub(began.elapsed());
            let rests = !has_tried && self.rests();
            let goes_on = MayWait::outlasts() && (MayWait::is_cut() || !left.is_zero());
            if rests && !goes_on {
                return Err(self.failed_a_moment_ago().into());
            }
            match if rests { None } else { self.try_lead()? } {
                None => os::sleep_on(&self.writer.commits, commits, LOOK_AGAIN.min(left)),
                Some(lead) => {
                    has_tried = true;
                    match self.write_batch(&lead, left) {
                        Ok(_) if is_logged() => return Ok(()),
                        // It is written, but could not be marked.
                        Ok(_) => {}
                        // Another program has locked the database.
                        Err(Error::StoreTimeout { .. }) if !left.is_zero() => {}
                        // Another lane has replaced this one.
                        Err(_) if !home.is_still_there(home.clock.now().floor) => return Err(Blocked::Lost),
                        Err(error) => {
                            // A caller that waits briefly knows too little to stop the others.
                            if patience == self.options.timeout || !matches!(error, Error::StoreTimeout { .. }) {
                                self.rest_after(&error);
                            }
                            if !goes_on {
                                return Err(error.after(began).into());
                            }
                            has_tried = false;
                        }
                    }
                    drop(lead);
                    std::thread::sleep(Duration::from_micros(jitter(500, 1_500)).min(left));
                }
            }
            if left.is_zero() {
                return Err(Error::busy(format!("writing the ledger of {}", self.url())).after(began).into());
            }
        }
    }

    /// Called when a key has used half of its budget. Writes it now if this caller may wait and no other is writing.
    #[cold]
    pub fn write_ahead(&self, found: &Found, now: Now) {
        found.list(now);
        if MayWait::here() != MayWait::UntilTimeout {
            self.writer.is_due.store(true, Release);
        } else if !self.rests() {
            self.write_listed(1);
        }
    }

    /// Returns whether a duty is due that callers left because they must not wait.
    #[inline(always)]
    pub fn is_due(&self) -> bool {
        self.writer.is_due.load(Relaxed)
    }

    /// Runs the once-a-second duties, or leaves them to a caller that may wait.
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
            self.restore_some();
            self.settle_abandoned();
        }
        self.take_back_if_free();
        self.flush_counts_if_free();
        self.finish_abandoned();
    }

    /// Continues, for a while, a change of policies in which a process died.
    fn finish_abandoned(&self) {
        let began = Instant::now();
        let continue_changes = || self.with_lock_for(TAKEN_BACK_BY, |locked| locked.continue_changes());
        while self.home().changes().are_abandoned()
            && began.elapsed() < FINISHING
            && continue_changes().is_ok_and(|is_done| !is_done)
        {
            std::thread::sleep(LET_OTHERS);
        }
    }

    /// Writes everything that the ledger lacks, including keys that are not listed.
    pub fn flush(&self) -> Result<()> {
        // This opens the store.
        self.with_lock(|locked| self.flush_counts(locked))?;
        if let Address::Memory | Address::Server(_) = self.address {
            return Ok(());
        }
        self.leading("writing the ledger of", self.options.timeout, |lead, left| self.write_every_key(lead, left))
    }

    fn write_every_key(&self, lead: &Lead, patience: Duration) -> Result<()> {
        while self.write_batch(lead, patience)? {}
        while !self.write(lead, patience, |locked| locked.gather(std::iter::empty(), true))?.news.is_empty() {}
        let limits = self.with_lane_of(lead, patience, |locked| Ok(locked.limits().collect::<Vec<_>>()))?;
        self.write_limits(lead, (patience, Until::Done), &limits)?;
        self.write_missing(lead, (patience, Until::Done))
    }

    /// Fails in the middle of long work if it has to stop.
    fn in_time(&self, until: Until) -> Result<()> {
        let is_over = match until {
            Until::Done => false,
            Until::At(end) => fork::is_waiting() || Instant::now() >= end,
            Until::Turn(_) => {
                self.check_open()?;
                fork::is_waiting() || self.writer.has_callers()
            }
        };
        if is_over { Err(self.is_writing()) } else { Ok(()) }
    }

    fn is_writing(&self) -> Error {
        Error::busy(format!("writing the ledger of {}", self.url()))
    }

    /// Writes all starts of some limits.
    fn write_limits(&self, lead: &Lead, (patience, until): (Duration, Until), limits: &[LimitAt]) -> Result<()> {
        let mut from = Some((0, 0));
        while let Some(place) = from {
            self.in_time(until)?;
            from = self.write(lead, patience, |locked| locked.gather_from(limits, place))?.next;
            if from.is_some() {
                self.serve(lead, patience)?;
                std::thread::sleep(LET_OTHERS);
            }
        }
        Ok(())
    }

    /// Runs work that needs the right to write the ledger, as soon as it is free.
    pub(super) fn leading<R>(
        &self,
        doing: &str,
        timeout: Duration,
        f: impl Fn(&Lead, Duration) -> Result<R>,
    ) -> Result<R> {
        let (began, timeout) = (Instant::now(), MayWait::patience(timeout)?);
        let _caller = self.writer.call();
        loop {
            let left = timeout.saturating_sub(began.elapsed());
            match self.try_lead()?.map(|lead| f(&lead, left)) {
                Some(Err(Error::StoreTimeout { .. })) | None if !left.is_zero() => std::thread::sleep(LOOK_AGAIN),
                Some(answer) => return answer.map_err(|error| error.after(began)),
                None => {
                    return Err(Error::busy(format!("{doing} {}", self.url())).after(began));
                }
            }
        }
    }

    /// Forgets a key, or all keys of a limit, in the ledger too, up to this moment.
    pub(super) fn forget_logged(&self, limit: i64, hash: Option<Hash>, until: Moment) -> Result<()> {
        if let Address::Memory | Address::Server(_) = self.address {
            return Ok(());
        }
        self.leading("forgetting in the ledger of", self.options.timeout, |lead, left| {
            let forget = |database: &mut Database, first| database.forget(limit, hash.map(|hash| hash.0), until, first);
            self.in_steps(lead, (left, Until::Done), i64::MIN, forget)
        })
    }

    /// Changes rows of the ledger from this one on, which may be many: some at a time. In between it writes what other
    /// callers wait for.
    fn in_steps(
        &self,
        lead: &Lead,
        (patience, until): (Duration, Until),
        first: i64,
        step: impl Fn(&mut Database, i64) -> Result<Option<i64>>,
    ) -> Result<()> {
        let (start, mut from) = (Instant::now(), Some(first));
        while let Some(first) = from {
            self.in_time(until)?;
            from = self.with_ledger(lead, |database| {
                let (began, mut next) = (Instant::now(), step(database, first)?);
                while let Some(first) = next.filter(|_| began.elapsed() < STEP) {
                    next = step(database, first)?;
                }
                Ok(next)
            })?;
            self.serve(lead, patience)?;
            if matches!(until, Until::Turn(_)) && from.is_some() && start.elapsed() >= TURN {
                return Err(self.is_writing());
            }
        }
        Ok(())
    }

    /// Writes what other callers wait for, in the middle of long work.
    fn serve(&self, lead: &Lead, patience: Duration) -> Result<()> {
        let is_wanted = self.home().has_listed() || !self.writer.wanted.lock().is_empty();
        if is_wanted { self.write_batch(lead, patience).map(drop) } else { Ok(()) }
    }

    /// The database, for the holder of the right to write the ledger.
    pub(super) fn with_ledger<R>(&self, _lead: &Lead, call: impl FnOnce(&mut Database) -> Result<R>) -> Result<R> {
        call(&mut self.connect()?)
    }

    // ---- one commit ----

    fn rests(&self) -> bool {
        monotonic_ns() < self.writer.rests_until.load(Relaxed)
    }

    fn rest_after(&self, error: &Error) {
        *self.writer.failed.lock() = error.to_string();
        self.writer.rests_until.store(monotonic_ns() + REST.as_nanos() as u64, Relaxed);
    }

    fn failed_a_moment_ago(&self) -> Error {
        let cause =
            format!("it failed a moment ago, and is tried again within a second: {}", *self.writer.failed.lock());
        Error::store(format!("writing the ledger of {}", self.url()), cause)
    }

    /// The right to write, if it is free.
    pub(super) fn try_lead(&self) -> Result<Option<Lead<'_>>> {
        let Some(_ledgers) = fork::ledgers() else { return Ok(None) };
        let Some(_process) = self.writer.writing.try_lock() else { return Ok(None) };
        let home = self.home();
        let Some(watch) = &home.watch else { return Ok(None) };
        Ok(watch.try_lock_ledger()?.map(|_lane| Lead { home, _lane, _process, _ledgers }))
    }

    /// Runs work under the structure lock, in the lane of the lead. Places that were read there mean nothing in a lane
    /// that has replaced it since: then this fails like a lock that is busy, and the caller begins again.
    pub(super) fn with_lane_of<R>(
        &self,
        lead: &Lead,
        patience: Duration,
        f: impl Fn(&Locked) -> Result<R>,
    ) -> Result<R> {
        let answer =
            self.with_lock_for(patience, |locked| ptr::eq(locked.home, lead.home).then(|| f(locked)).transpose())?;
        answer.ok_or_else(|| Error::busy(format!("writing the ledger of {}", self.url())))
    }

    /// Writes listed keys if no other caller is writing. Failures are not returned: callers that wait for the write
    /// encounter them.
    fn write_listed(&self, commits: usize) {
        let Ok(Some(lead)) = self.try_lead() else { return };
        for _ in 0..commits {
            match self.write_batch(&lead, TAKEN_BACK_BY) {
                Ok(true) => {}
                Ok(false) => break,
                // The list keeps it.
                Err(Error::StoreTimeout { .. }) => break,
                Err(error) => return self.rest_after(&error),
            }
        }
    }

    /// Writes what callers of this process wait for, and the oldest listed keys. Returns whether more is listed.
    fn write_batch(&self, lead: &Lead, patience: Duration) -> Result<bool> {
        let wants = self.writer.wanted.lock().clone();
        let gather = |locked: &Locked| {
            let here = wants.iter().filter(|want| want.instance == locked.instance);
            locked.gather(here.map(|want| want.changed), false)
        };
        self.write(lead, patience, gather)?;
        // A start in another lane was not gathered.
        let is_written = |want: &&Arc<Want>| want.instance == lead.home.instance;
        wants.iter().filter(is_written).for_each(|want| want.is_done.store(true, Release));
        self.writer.wanted.lock().retain(|want| !want.is_done.load(Relaxed));
        self.writer.commits.fetch_add(1, AcqRel);
        os::wake_all(&self.writer.commits);
        Ok(lead.home.has_listed())
    }

    /// Gathers, commits, marks.
    fn write(&self, lead: &Lead, patience: Duration, gather: impl Fn(&Locked) -> Batch) -> Result<Batch> {
        let batch = self.with_lane_of(lead, patience, |locked| Ok(gather(locked)))?;
        let home = lead.home;
        if !batch.keys.is_empty() || !batch.news.is_empty() {
            fault::point("gathered");
            let write = |database: &mut Database| {
                let sequence = lane::raise_sequence(&home.arena, database.sequence);
                record(|limit| home.limit(limit).id(), database, &batch, sequence)?;
                lane::have_committed(&home.arena, sequence);
                Ok(())
            };
            if let Err(error) = self.with_ledger(lead, write) {
                let _ = self.with_lane_of(lead, TAKEN_BACK_BY, |locked| {
                    locked.keep_news(&batch.news);
                    Ok(())
                });
                return Err(error);
            }
            // It is written, even if it cannot be marked. At worst it is written twice, and counts twice after a
            // reboot. The lock was free a moment ago, so a longer wait is worthwhile.
            let _ = MayWait::patience(self.options.timeout)
                .and_then(|patience| self.with_lane_of(lead, patience, |locked| locked.mark(&batch)));
        }
        home.have_written(batch.listed_to);
        Ok(batch)
    }

    // ---- starts that were refused because they could not be written ----

    /// Takes back a refused start.
    pub fn refuse(&self, refused: RefusedStart) {
        self.keep_refused(refused);
        let _ = self.with_lock_for(TAKEN_BACK_BY, |_| Ok(()));
    }

    fn keep_refused(&self, refused: RefusedStart) {
        let mut all = self.refused.lock();
        all.push(refused);
        self.has_refused.store(true, Relaxed);
    }

    /// Takes back refused starts, if there are any and the lock is free.
    fn take_back_if_free(&self) {
        if self.has_refused.load(Relaxed) {
            let _ = self.with_lock_for(Duration::ZERO, |_| Ok(()));
        }
    }

    /// Takes back refused starts for a caller that may wait. It may be retrying after a refusal, and would be denied by
    /// its own unit.
    #[cold]
    pub fn take_back_first(&self) {
        let from = &self.writer.takes_back_from;
        // A part of what the whole call may wait.
        let by = || MayWait::patience(self.options.timeout).map(|patience| patience.min(TAKEN_BACK_FIRST_BY));
        if monotonic_ns() >= from.load(Relaxed) && by().and_then(|by| self.with_lock_for(by, |_| Ok(()))).is_err() {
            from.store(monotonic_ns() + REST.as_nanos() as u64, Relaxed);
        }
    }

    /// Returns whether a refused start must be taken back.
    #[inline(always)]
    pub fn has_refused(&self) -> bool {
        self.has_refused.load(Relaxed)
    }

    /// Takes back refused starts. For every holder of the structure lock.
    pub(super) fn take_back_refused(&self, locked: &Locked) {
        if !self.has_refused.load(Relaxed) {
            return;
        }
        let all = {
            let mut all = self.refused.lock();
            self.has_refused.store(false, Relaxed);
            std::mem::take(&mut *all)
        };
        for refused in all.into_iter().filter(|refused| refused.instance == locked.instance) {
            let undo = || {
                let table = locked.limit(refused.limit).table();
                let Some(found) = locked.find_or_repair(&table, refused.hash) else { return Ok(()) };
                let own = locked.of(&table).for_key(found);
                locked
                    .rewrite(&table, refused.hash, |history| {
                        take_back(&own.policy, history, refused.start, refused.ahead);
                    })
                    .map(drop)
            };
            let undone: Result<()> = undo();
            if undone.is_err() {
                self.keep_refused(refused);
            }
        }
    }
}
