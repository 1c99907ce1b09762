//! Writes what changes of policies have left: starts under the policies before, and rows that have to count for longer.

use super::{LOOK_AGAIN, Lead, TURN, Until};
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::fork;
use crate::state::ledger::database::Database;
use crate::state::ledger::gather::{ChangedKey, KEYS};
use crate::state::ledger::policies::{KeySelection, KnownLimit};
use crate::state::session::Session;
use crate::time::monotonic_ns;
use crate::waiting::MayWait;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::{Duration, Instant};

/// How often a process looks for what a process left that died.
const LOOK_FOR_ABANDONED: Duration = Duration::from_secs(60);

/// Rows to be kept: those of a limit or of a key of it, in which lane, for a change of which generation.
type Rows = (u64, u64, i64, Option<[u64; 2]>);

/// Which of them are kept: those before these rows.
pub(super) type Kept = RefCell<BTreeMap<Rows, i64>>;

impl Session {
    /// Writes the starts from before policies changed, if possible. Since the lane has followed, the new policies bound
    /// what can be missing from then on. It may be the work of several changes, which dead processes left. So the caller
    /// stops at its deadline, and a thread of the store goes on.
    pub(in crate::state) fn settle_ledger(&self, timeout: Duration) {
        if !self.home().is_unsettled() || self.rests() {
            return;
        }
        let until = |left| Instant::now().checked_add(left).map_or(Until::Done, Until::At);
        let write = |lead: &Lead, left| self.write_missing(lead, (left, until(left)));
        if let Err(Error::StoreTimeout { .. }) = self.leading("writing the ledger of", timeout, write) {
            self.settle_later();
        }
    }

    /// Has a thread of the store settle what a process left that died. Until then no row of these limits is removed.
    pub(super) fn settle_abandoned(&self) {
        let (from, now) = (&self.writer.settles_from, monotonic_ns());
        let home = self.home();
        // As long as keys change, others need the lock for that.
        if home.is_unsettled() && !home.changes().are_some() && now >= from.load(Relaxed) {
            from.store(now + LOOK_FOR_ABANDONED.as_nanos() as u64, Relaxed);
            self.settle_later();
        }
    }

    /// Does so in a thread of the store, unless one does already. If that fails, the next change or `flush` does, or the
    /// next call of [`Session::settle_abandoned`].
    fn settle_later(&self) {
        let (Some(me), process) = (self.me.get().and_then(Weak::upgrade), fork::generation() + 1) else { return };
        // A forked child does not have its parent's thread.
        if self.writer.settles.swap(process, AcqRel) == process {
            return;
        }
        self.chores.send(Box::new(move || {
            let _ = me.in_turns(|lead, until| me.write_missing(lead, (TURN, until)));
            me.writer.settles.store(0, Release);
        }));
    }

    /// Runs long work in a thread of the store. It delays no fork, no end of the store and no caller who needs the right
    /// to write. It ends if it makes no progress for the store's timeout.
    fn in_turns(&self, work: impl Fn(&Lead, Until) -> Result<()>) -> Result<()> {
        if MayWait::here() != MayWait::UntilTimeout {
            // The process can have no thread, and this is a caller.
            return Ok(());
        }
        let (kept, mut before, mut since) = (Kept::default(), BTreeMap::new(), Instant::now());
        loop {
            self.check_open()?;
            let has_callers = self.writer.has_callers();
            let lead = if has_callers { None } else { self.try_lead()? };
            match lead.map(|lead| work(&lead, Until::Turn(&kept))) {
                Some(Err(Error::StoreTimeout { .. })) | None => {}
                Some(answer) => return answer,
            }
            if has_callers || *kept.borrow() != before {
                (before, since) = (kept.borrow().clone(), Instant::now());
            } else if since.elapsed() >= self.options.timeout {
                return Ok(());
            }
            // Others look more often.
            std::thread::sleep(2 * LOOK_AGAIN);
        }
    }

    pub(super) fn write_missing(&self, lead: &Lead, (patience, until): (Duration, Until)) -> Result<()> {
        let (home, (after, to)) = (lead.home, (lead.home.settled(), lead.home.generation()));
        if after >= to {
            return Ok(());
        }
        let read =
            |database: &mut Database| Ok((database.limits(Some(after))?, database.keys(KeySelection::Changed(after))?));
        let (limits, keys) = self.with_ledger(lead, read)?;
        let mut is_settled = true;
        for KnownLimit { id, name, declared, .. } in limits.iter().filter(|known| known.missing.is_some()) {
            let found = self.with_lane_of(lead, patience, |locked| {
                let Some(limit) = locked.find_known(name, *id) else { return Ok(None) };
                // No start may happen under an earlier policy any more.
                locked.finish_change(limit)?;
                Ok(Some((limit, locked.of(&locked.limit(limit).table()).has_lost_more())))
            })?;
            let Some((limit, has_lost)) = found else {
                // The next attempt reads its name again.
                is_settled = false;
                continue;
            };
            let rows = (home.instance, to, *id, None);
            if until.first(rows) == i64::MIN {
                self.write_limits(lead, (patience, until), &[limit])?;
            }
            self.keep(lead, (patience, until), rows, declared.current().longest())?;
            is_settled &= !has_lost;
            if !has_lost {
                self.with_ledger(lead, |database| database.has_all(*id, to))?;
            }
        }
        for keys in keys.chunks(KEYS as usize) {
            let changed = RefCell::default();
            self.write(lead, patience, |locked| locked.gather_keys(keys, &mut changed.borrow_mut()))?;
            for (known, ChangedKey { counts, may_lack }) in keys.iter().zip(changed.take()) {
                if let Some((hash, longest)) = counts {
                    self.keep(lead, (patience, until), (home.instance, to, known.id, Some(hash)), longest)?;
                }
                is_settled &= !may_lack;
                if !may_lack {
                    self.with_ledger(lead, |database| database.has_all_of(known, to))?;
                }
            }
        }
        if is_settled {
            home.set_settled(after, to);
        }
        Ok(())
    }

    /// Makes rows count for at least this many microseconds.
    fn keep(&self, lead: &Lead, (patience, until): (Duration, Until), rows: Rows, longest: u64) -> Result<()> {
        let (_, _, limit, hash) = rows;
        self.in_steps(lead, (patience, until), until.first(rows), |database, first| {
            let next = database.keep(limit, hash, longest, first)?;
            if let Until::Turn(kept) = until {
                kept.borrow_mut().insert(rows, next.unwrap_or(i64::MAX));
            }
            Ok(next)
        })
    }
}

impl Until<'_> {
    /// The first of these rows that the turns before have not kept.
    fn first(self, rows: Rows) -> i64 {
        match self {
            Until::Turn(kept) => kept.borrow().get(&rows).copied().unwrap_or(i64::MIN),
            Until::Done | Until::At(_) => i64::MIN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::ledger::database::tests::Scratch;
    use crate::{Store, StoreOptions};
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    /// A store whose thread has work for longer than any test, and a limit.
    fn busy(dir: &Scratch) -> (Store, Arc<AtomicBool>, std::thread::JoinHandle<()>) {
        let options = StoreOptions { timeout: Duration::from_secs(10), ..StoreOptions::default() };
        let url = format!("sqlite:{}", dir.path().display());
        let store = Store::with_options(&url, options).unwrap();
        store.limiter("api", "20/1h").unwrap().open().unwrap();
        let (works, is_over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (session, mine, over) = (store.session().clone(), works.clone(), is_over.clone());
        let thread = std::thread::spawn(move || {
            let began = Instant::now();
            // If it does not stop by itself, it ends after a time, and the test fails.
            let lasts = || began.elapsed() < Duration::from_secs(20) && !over.load(Acquire);
            let _ = session.in_turns(|lead, until| {
                mine.store(true, Release);
                session.in_steps(lead, (TURN, until), 0, |_, first| Ok(lasts().then_some(first + 1)))
            });
        });
        while !works.load(Acquire) {
            std::thread::yield_now();
        }
        (store, is_over, thread)
    }

    #[test]
    fn no_fork_waits_for_work_in_a_thread_of_the_store() {
        let dir = Scratch::new();
        let (_store, is_over, thread) = busy(&dir);
        for _ in 0..3 {
            // SAFETY: the child ends at once, with `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends the child without running the parent's destructors.
                unsafe { libc::_exit(0) }
            }
            // SAFETY: it needs no answer.
            assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
        }
        assert!(!thread.is_finished(), "it goes on");
        is_over.store(true, Release);
        thread.join().unwrap();
    }

    #[test]
    fn callers_who_write_come_before_work_in_a_thread_of_the_store_and_closing_ends_it() {
        let dir = Scratch::new();
        let (store, is_over, thread) = busy(&dir);
        (0..3).for_each(|_| store.flush().unwrap());
        assert!(!thread.is_finished(), "it goes on");
        store.close().unwrap();
        thread.join().unwrap();
        assert!(!is_over.load(Acquire));
    }
}
