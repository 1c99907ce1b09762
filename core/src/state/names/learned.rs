//! Policies that programs learn from what a server says about its own limits.

use crate::error::Result;
use crate::policy::Quota;
use crate::state::ledger::declared::{LEARNED, Overridden};
use crate::state::session::{Said, Session};
use std::sync::Arc;

impl Session {
    /// Puts a server's numbers above the declared ones of one limit, later in a thread of the store: nobody waits for it.
    ///
    /// What was said before is not looked at again. So it costs a look at a map, and what an operator lifts stays lifted until
    /// the server says something else.
    pub(crate) fn learn(&self, name: &Arc<str>, quota: Quota, host: &str) {
        let Some(me) = self.me.get().and_then(std::sync::Weak::upgrade) else { return };
        let mut told = self.told.lock();
        let known = told.get(name);
        if known.is_some_and(|known| known.quota.says(&quota) && known.host == host) {
            return;
        }
        let is_being_put = known.is_some_and(|known| known.is_being_put);
        told.insert(name.clone(), Said { quota, host: host.to_owned(), is_being_put: true });
        drop(told);
        if !is_being_put {
            let name = name.clone();
            self.chores.send(Box::new(move || me.put_what_was_said(&name)));
        }
    }

    fn put_what_was_said(&self, name: &Arc<str>) {
        loop {
            let Some(said) = self.told.lock().get(name).cloned() else { return };
            let source: Arc<str> = format!("{LEARNED}{}", said.host).into();
            let put = self.knowing(name, || self.put_learned(name, said.quota, source.clone()));
            let mut told = self.told.lock();
            match told.get_mut(name) {
                Some(now) if now.quota != said.quota || now.host != said.host => {}
                Some(now) if put.is_ok() => return now.is_being_put = false,
                _ => return drop(told.remove(name)), // The next response says it again.
            }
        }
    }

    /// An operator's override stays. What is declared anyway needs none.
    fn put_learned(&self, name: &str, quota: Quota, source: Arc<str>) -> Result<()> {
        let is_changed = self.with_names(&[name], |locked| {
            let Some(before) = self.declared(name)? else { return self.unknown(name) };
            let is_free = before.overriding.is_none() || before.source.is_some();
            let Some(learned) = before.declared.with_quota(quota).filter(|_| is_free) else { return Ok(false) };
            if learned == before.current() {
                return Ok(false);
            }
            let policy = (learned != before.declared).then_some(learned);
            let (missing, source) = (locked.budget(before.current()), policy.and(Some(source.clone())));
            let all = [Overridden { name: name.to_owned(), before, key: None, policy, source, missing }];
            self.decide(
                locked,
                &[all[0].follows()],
                |rare| rare.set_overrides(&all),
                |ledger| ledger.set_overrides(&all),
            )?;
            Ok(true)
        })?;
        if is_changed { self.settle(&[name]) } else { Ok(()) }
    }
}
