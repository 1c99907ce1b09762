//! Policies that programs learn from what a server says about its own limits.

use crate::error::Result;
use crate::policy::Quota;
use crate::state::ledger::declared::{LEARNED, Overridden};
use crate::state::session::Session;
use std::sync::Arc;

impl Session {
    /// Puts a server's numbers above the declared ones of one limit, later in a thread of the store: nobody waits for it.
    ///
    /// What was said before is not looked at again. So it costs a look at a map, and what an operator lifts stays lifted until
    /// the server says something else.
    pub(crate) fn learn(&self, name: &Arc<str>, quota: Quota, host: &str) {
        let Some(me) = self.me.get().and_then(std::sync::Weak::upgrade) else { return };
        let mut told = self.told.lock();
        if told.get(name).is_some_and(|(known, by)| known.says(&quota) && by == host) {
            return;
        }
        told.insert(name.clone(), (quota, host.to_owned()));
        drop(told);
        let (name, source) = (name.clone(), format!("{LEARNED}{host}"));
        self.chores.send(Box::new(move || {
            if me.put_learned(&name, quota, source.into()).is_err() {
                me.told.lock().remove(&name); // The next response says it again.
            }
        }));
    }

    /// An operator's override stays. What is declared anyway needs none.
    fn put_learned(&self, name: &str, quota: Quota, source: Arc<str>) -> Result<()> {
        let is_changed = self.with_names(&[name], |locked| {
            let Some(before) = self.declared(name)? else { return Ok(false) };
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
