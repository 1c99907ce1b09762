//! Policies that programs learn from what a server says about its own limits.
//!
//! A server may say two sizes of one limit in turn, as with two models behind one name. So a smaller size is learned at once, and
//! a larger one than was learned before only if nothing else was said for a whole window. An estimated window is learned if two
//! responses in a row show it.

use crate::error::Result;
use crate::policy::Quota;
use crate::state::ledger::declared::{LEARNED, Overridden};
use crate::state::session::Session;
use crate::state::session::told::{Pending, Said};
use crate::time::raw_ns;
use crate::waiting::MayWait;
use std::sync::Arc;

impl Session {
    /// Puts a server's numbers above the declared ones of one limit, later in the thread for that: nobody waits for it.
    ///
    /// What was learned before is not looked at again. So it costs a look at a map, and what an operator lifts stays lifted until
    /// the server says something else.
    pub(crate) fn learn(&self, name: &Arc<str>, quota: Quota, host: &str) {
        let Some(me) = self.me.get().and_then(std::sync::Weak::upgrade) else { return };
        let now = raw_ns(self.options.clock.as_ref());
        let mut all = self.told.lock();
        let told = all.entry(name.clone()).or_default();
        let before = told.said.take();
        if told.learned.is_some_and(|learned| learned.says(&quota)) {
            return;
        }
        let again = before.filter(|said| said.quota.says(&quota));
        let is_raise = told.learned.is_some_and(|learned| quota.units > learned.units);
        let said = again.unwrap_or(Said { quota, since: now, is_raise });
        let is_certain = u128::from(now.saturating_sub(said.since)) >= said.quota.window.as_nanos();
        if quota.is_estimated && again.is_none() || said.is_raise && !is_certain {
            told.said = Some(said);
            return;
        }
        told.learned = Some(said.quota);
        let has_thread = told.pending.replace(Arc::new(Pending { said, host: host.to_owned(), is_certain })).is_some();
        drop(all);
        if !has_thread {
            let name = name.clone();
            self.learner.send(Box::new(move || me.put_what_was_said(&name)));
        }
    }

    /// Forgets what was said about these limits. It is learned again when it is said again.
    pub(super) fn forget_told(&self, is_it: impl Fn(&str) -> bool) {
        self.told.lock().retain(|name, _| !is_it(name));
    }

    /// Goes on with what is said meanwhile.
    fn put_what_was_said(&self, name: &Arc<str>) {
        if MayWait::here() != MayWait::UntilTimeout {
            // The process can have no thread, and this is a caller. The next response says it again.
            return drop(self.told.lock().remove(name));
        }
        loop {
            let Some(pending) = self.told.lock().get(name).and_then(|told| told.pending.clone()) else { return };
            let put = self.knowing(name, || self.put_learned(name, &pending));
            let mut all = self.told.lock();
            let Some(told) = all.get_mut(name) else { return };
            if told.pending.as_ref().is_some_and(|now| !Arc::ptr_eq(now, &pending)) {
                continue;
            }
            match put {
                Ok(true) => told.pending = None,
                // Another process has learned less.
                Ok(false) => {
                    let said = told.said.or(Some(Said { is_raise: true, ..pending.said }));
                    (told.learned, told.said, told.pending) = (None, said, None);
                }
                Err(_) => drop(all.remove(name)),
            }
            return;
        }
    }

    /// An operator's override stays. What is declared anyway needs none. Returns false if that would raise what was learned, and is
    /// not certain.
    fn put_learned(&self, name: &str, pending: &Pending) -> Result<bool> {
        enum Put {
            Changed,
            Same,
            TooSoon,
        }
        let put = self.with_names(&[name], |locked| {
            let Some(before) = self.declared(name)? else { return self.unknown(name) };
            let is_free = before.overriding.is_none() || before.source.is_some();
            let Some(learned) = before.declared.with_quota(pending.said.quota).filter(|_| is_free) else {
                return Ok(Put::Same);
            };
            if learned == before.current() {
                return Ok(Put::Same);
            }
            if before.source.is_some() && learned.units() > before.current().units() && !pending.is_certain {
                return Ok(Put::TooSoon);
            }
            let policy = (learned != before.declared).then_some(learned);
            let (missing, source) =
                (locked.budget(before.current()), Some(format!("{LEARNED}{}", pending.host).into()));
            let all = [Overridden { name: name.to_owned(), before, key: None, policy, source, missing }];
            self.decide(
                locked,
                &[all[0].follows()],
                |rare| rare.set_overrides(&all),
                |ledger| ledger.set_overrides(&all),
            )?;
            Ok(Put::Changed)
        })?;
        match put {
            Put::Changed => self.settle(&[name]).map(|()| true),
            Put::Same => Ok(true),
            Put::TooSoon => Ok(false),
        }
    }
}
