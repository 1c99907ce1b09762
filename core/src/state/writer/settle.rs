//! Writes what changes of policies have left: starts under the policies before, and rows that have to count for longer.

use super::Lead;
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::fork;
use crate::state::ledger::database::Database;
use crate::state::ledger::gather::{ChangedKey, KEYS};
use crate::state::ledger::policies::{KeySelection, KnownLimit};
use crate::state::session::Session;
use std::cell::RefCell;
use std::sync::Weak;
use std::time::{Duration, Instant};

impl Session {
    /// Writes the starts from before policies changed, if possible. Since the lane has followed, the new policies bound
    /// what can be missing from then on. It may be the work of several changes, which dead processes left. So the caller
    /// stops at its deadline, and a thread of the store goes on.
    pub(in crate::state) fn settle_ledger(&self, timeout: Duration) {
        if !self.home().is_unsettled() || self.rests() {
            return;
        }
        let write = |lead: &Lead, left| self.write_missing(lead, (left, Instant::now().checked_add(left)));
        if let Err(Error::StoreTimeout { .. }) = self.leading("writing the ledger of", timeout, write) {
            self.settle_later();
        }
    }

    /// Does so in a thread of the store, unless one does already. If that fails, the next change or `flush` does.
    fn settle_later(&self) {
        let (Some(me), process) = (self.me.get().and_then(Weak::upgrade), fork::generation() + 1) else { return };
        // A forked child does not have its parent's thread.
        if self.writer.settles.swap(process, AcqRel) == process {
            return;
        }
        self.chores.send(Box::new(move || {
            let write = |lead: &Lead, left| me.write_missing(lead, (left, None));
            let _ = me.leading("writing the ledger of", me.options.timeout, write);
            me.writer.settles.store(0, Release);
        }));
    }

    pub(super) fn write_missing(&self, lead: &Lead, (patience, until): (Duration, Option<Instant>)) -> Result<()> {
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
            self.write_limits(lead, (patience, until), &[limit])?;
            let longest = declared.current().longest();
            self.in_steps(lead, (patience, until), |database, first| database.keep(*id, None, longest, first))?;
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
                    let keep = |database: &mut Database, first| database.keep(known.id, Some(hash), longest, first);
                    self.in_steps(lead, (patience, until), keep)?;
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
}
