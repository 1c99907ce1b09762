//! Rewrites the states that an earlier policy has left, under the one that applies: see `adopt.sql`.

use super::{Postgres, Value, milliseconds, text, tick};
use crate::error::{Error, Result};
use crate::policy::Policy;
use crate::server::{EPOCH, Family, Terms};
use crate::time::{EPOCH_LEAD, Tick};
use std::time::{Duration, Instant};

impl Postgres {
    /// Rewrites them, as far as time permits. Returns whether none are left.
    pub(super) fn adopt(&self, name: &str, now: Option<Tick>, patience: Duration) -> Result<bool> {
        let began = Instant::now();
        let left = || patience.saturating_sub(began.elapsed());
        while left() > Duration::ZERO {
            match self.adopt_some(name, now, left) {
                Ok(true) => {}
                Ok(false) => return Ok(true),
                Err(Error::StoreTimeout { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Rewrites them all before a failed request is repeated.
    pub(super) fn adopt_first(&self, name: &str, now: Option<Tick>, began: Instant, patience: Duration) -> Result<()> {
        if self.adopt(name, now, patience.saturating_sub(began.elapsed()))? {
            return Ok(());
        }
        Err(crate::server::is_moving_keys(name, &self.url, began))
    }

    /// Returns whether there were any.
    fn adopt_some(&self, name: &str, now: Option<Tick>, left: impl Fn() -> Duration) -> Result<bool> {
        let phase = if now.is_some() { -(EPOCH_LEAD as i64) } else { EPOCH as i64 };
        let statement = "SELECT b.* FROM workglow_limit.limits l, workglow_limit.behind(l.id) b WHERE l.name = $1";
        let batches = self.ask(statement, vec![Value::text(name)], left())?;
        for batch in &batches {
            let [Some(policy), Some(hashes)] = batch.as_slice() else { return Err(self.makes_no_sense(batch)) };
            // The limit's name may be behind it.
            let policy: Policy = text(policy).unwrap_or_default().split('\n').next().unwrap_or_default().parse()?;
            let Terms { family, version, numbers } = Terms::of(&policy, phase);
            let family = match family {
                Family::Bucket => "b",
                Family::Window => "w",
                Family::Log | Family::Leases => "-",
            };
            let values = vec![
                Value::text(family),
                Value::text(name),
                Value::uuids_of(hashes),
                Value::int(Some(version as i64)),
                tick(now),
                milliseconds(left()),
                Value::ints(numbers.into_iter().map(Some)),
            ];
            self.ask("SELECT workglow_limit.adopt($1, $2, $3, $4, $5, $6, $7)::text", values, left())?;
        }
        Ok(!batches.is_empty())
    }
}
