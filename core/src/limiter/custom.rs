//! User-defined limiters, as children of a composite or on their own.

use super::internal::{Awaited, Base, Behind, Nested, Quiet};
use super::line::{Claim, Terms};
use super::{Attempt, Limiter, Places, Presented, foreign};
use crate::decision::{Decision, LOOK_AGAIN};
use crate::error::Result;
use crate::fork::PerProcess;
use crate::permit::{CustomPermit, Kind, RawPermit};
use crate::policy;
use crate::server::crew::{Crew, WAITING};
use crate::stats::Stats;
use crate::time::from_unix_ns;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The reply of a user-defined limiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The start is admitted; its number is passed to [`Custom::end`].
    Admitted(u64),
    /// The start is denied, and may be admitted after this long.
    Denied(Duration),
}

/// How a start ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The job ran.
    Completed,
    /// The job never ran: as if it had never been admitted.
    Cancelled,
    /// The job ran, and used this many units.
    Settled(u64),
}

/// A user-defined limiter. Wrap it in a [`CustomLimiter`], which a [`CompositeLimiter`](crate::CompositeLimiter)
/// accepts as a child. It is called from any thread, with weights of at least 1 and keys of at most 1,024 bytes.
pub trait Custom: Send + Sync {
    /// Returns the limiter's name, as in [`Decision::denied_by`].
    fn name(&self) -> &str;

    /// Decides and records in one step. A denial changes nothing.
    ///
    /// # Errors
    /// Any error is returned to the caller, and nothing is charged anywhere.
    fn decide(&self, key: &str, weight: u64) -> Result<Verdict>;

    /// Returns what `decide` would return. Records nothing; the number is ignored.
    ///
    /// # Errors
    /// As for [`Custom::decide`].
    fn peek(&self, key: &str, weight: u64) -> Result<Verdict>;

    /// Records the end of a start. Called once for each admitted start.
    ///
    /// # Errors
    /// As for [`Custom::decide`].
    fn end(&self, start: u64, end: End) -> Result<()>;

    /// Sets a gate: no start is admitted for this long. With the empty key it applies to all keys. Does nothing by
    /// default.
    ///
    /// # Errors
    /// As for [`Custom::decide`].
    fn pause(&self, _duration: Duration, _key: &str) -> Result<()> {
        Ok(())
    }

    /// Resets a key to its initial state; with the empty key, all keys. Does nothing by default.
    ///
    /// # Errors
    /// As for [`Custom::decide`].
    fn clear(&self, _key: &str) -> Result<()> {
        Ok(())
    }

    /// Records the start of a job without a decision. Does nothing by default.
    ///
    /// # Errors
    /// As for [`Custom::decide`].
    fn record_job_start(&self, _key: &str) -> Result<()> {
        Ok(())
    }

    /// Records the end of a job that started without a decision. Does nothing by default.
    ///
    /// # Errors
    /// As for [`Custom::decide`].
    fn record_job_completion(&self, _key: &str) -> Result<()> {
        Ok(())
    }
}

/// The most keys that are counted separately; further keys count only in the total.
const MAX_KEYS: usize = 4_096;

/// The counts: in total, and by the hashes of keys.
type Counts = (Stats, HashMap<u64, Stats>);

/// A [`Custom`] limiter with the whole interface. Its permits and counts belong to this process; it has no places.
#[derive(Debug)]
pub struct CustomLimiter<C> {
    base: Base,
    custom: C,
    /// The threads that wait for it.
    chores: Arc<Crew>,
    hasher: RandomState,
    counts: PerProcess<Counts>,
}

impl<C: Custom> CustomLimiter<C> {
    /// Makes a limiter that asks `custom`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) unless its name is 1 to 1,024 bytes.
    pub fn new(custom: C) -> Result<Self> {
        policy::check_name(custom.name())?;
        Ok(CustomLimiter {
            base: Base::new(custom.name().into()),
            custom,
            chores: Crew::new(WAITING),
            hasher: RandomState::new(),
            counts: PerProcess::new(),
        })
    }

    fn decision(&self, verdict: Verdict) -> Decision {
        let (admitted, after) = match verdict {
            Verdict::Admitted(_) => (true, Duration::ZERO),
            Verdict::Denied(after) => (false, after),
        };
        Decision {
            permit: None,
            admitted,
            retry_after: after,
            suggested_after: after,
            // Unknown.
            remaining: if admitted { u64::MAX } else { 0 },
            limit: u64::MAX,
            reset_after: after,
            denied_by: (!admitted).then(|| self.base.name.clone()),
        }
    }

    fn ask(&self, key: &str, weight: u64) -> Result<Verdict> {
        super::null::check(key, weight)?;
        let verdict = self.custom.decide(key, weight)?;
        self.count(self.hasher.hash_one(key), |stats| match verdict {
            Verdict::Admitted(_) => admitted(stats, weight),
            Verdict::Denied(_) => denied(stats, weight),
        });
        Ok(verdict)
    }

    fn count(&self, key: u64, count: impl Fn(&mut Stats)) {
        let (all, keys) = &mut *self.counts.lock();
        count(all);
        if keys.len() < MAX_KEYS || keys.contains_key(&key) {
            count(keys.entry(key).or_default());
        }
    }

    fn permit(&self, key: &str, start: u64) -> RawPermit {
        RawPermit::new(self.base.id, Kind::Custom(CustomPermit { key: self.hasher.hash_one(key), start }))
    }

    /// Returns the contents of this limiter's permit.
    fn own(&self, permit: &RawPermit) -> Result<CustomPermit> {
        match permit.of(self.base.id) {
            Some(Kind::Custom(custom)) => Ok(custom),
            _ => foreign(&self.base.name),
        }
    }

    fn end(&self, permit: &RawPermit, end: End) -> Result<()> {
        self.custom.end(self.own(permit)?.start, end)
    }
}

fn admitted(stats: &mut Stats, weight: u64) {
    stats.admitted += 1;
    stats.units_wanted = stats.units_wanted.saturating_add(weight);
    stats.units_granted = stats.units_granted.saturating_add(weight);
}

fn denied(stats: &mut Stats, weight: u64) {
    stats.denied += 1;
    stats.units_wanted = stats.units_wanted.saturating_add(weight);
}

impl<C: Custom> Limiter for CustomLimiter<C> {
    fn complete(&self, permit: &RawPermit) -> Result<()> {
        self.end(permit, End::Completed)
    }

    fn cancel(&self, permit: &RawPermit) -> Result<()> {
        self.end(permit, End::Cancelled)?;
        self.count(self.own(permit)?.key, |stats| stats.cancelled += 1);
        Ok(())
    }

    fn settle(&self, permit: &RawPermit, actual: u64) -> Result<()> {
        self.end(permit, End::Settled(actual))
    }
}

impl<C: Custom> Places for CustomLimiter<C> {
    fn cancel_place(&self, place: &RawPermit) -> Result<()> {
        self.cancel(place)
    }
}

impl<C: Custom> Behind for CustomLimiter<C> {
    #[inline(always)]
    fn base(&self) -> &Base {
        &self.base
    }

    fn chores(&self) -> Arc<Crew> {
        self.chores.clone()
    }

    fn has_custom(&self) -> bool {
        true
    }
}

impl<C: Custom> Quiet for CustomLimiter<C> {
    fn quiet_attempt(&self, key: &str, weight: u64) -> Result<Attempt> {
        Ok(match self.ask(key, weight)? {
            Verdict::Admitted(start) => Attempt::Admitted(self.permit(key, start)),
            Verdict::Denied(after) => Attempt::Denied(after),
        })
    }

    fn quiet_decide(&self, key: &str, weight: u64) -> Result<Decision> {
        let verdict = self.ask(key, weight)?;
        let permit = match verdict {
            Verdict::Admitted(start) => Some(self.permit(key, start)),
            Verdict::Denied(_) => None,
        };
        Ok(Decision { permit, ..self.decision(verdict) })
    }

    fn quiet_peek(&self, key: &str, weight: u64) -> Result<Decision> {
        policy::check_key(key)?;
        // Weight 0 needs no free units.
        let verdict = if weight == 0 { Verdict::Admitted(0) } else { self.custom.peek(key, weight)? };
        Ok(self.decision(verdict))
    }

    fn quiet_pause(&self, key: &str, pause: Duration) -> Result<()> {
        policy::check_key(key)?;
        self.custom.pause(pause, key)
    }

    fn quiet_clear(&self, key: &str) -> Result<()> {
        policy::check_key(key)?;
        self.custom.clear(key)
    }

    fn quiet_stats(&self, key: &str) -> Result<Stats> {
        policy::check_key(key)?;
        let (all, keys) = &*self.counts.lock();
        Ok(match key {
            "" => *all,
            _ => keys.get(&self.hasher.hash_one(key)).copied().unwrap_or_default(),
        })
    }

    fn quiet_record_start(&self, key: &str) -> Result<()> {
        policy::check_key(key)?;
        self.custom.record_job_start(key)
    }

    fn quiet_record_end(&self, key: &str) -> Result<()> {
        policy::check_key(key)?;
        self.custom.record_job_completion(key)
    }

    fn quiet_close_gate(&self, key: &str, at: SystemTime) -> Result<()> {
        let ahead = at.max(from_unix_ns(0)).duration_since(SystemTime::now()).unwrap_or_default();
        self.quiet_pause(key, ahead)
    }
}

impl<C: Custom> Awaited for CustomLimiter<C> {
    fn claim(&self, key: &str, weight: u64, _terms: Terms) -> Result<Claim> {
        super::null::check(key, weight)?;
        Ok(match self.custom.decide(key, weight)? {
            Verdict::Admitted(start) => {
                self.count(self.hasher.hash_one(key), |stats| admitted(stats, weight));
                Claim::Started(self.permit(key, start))
            }
            // A suggestion to retry soon does not predict when units will be free.
            Verdict::Denied(after) => Claim::Denied { after, is_certain: after > LOOK_AGAIN },
        })
    }

    fn start(&self, place: &RawPermit) -> Result<Presented> {
        self.quiet_present(place)
    }

    fn waited(&self, _key: &str, permit: &RawPermit, wait: Duration) {
        if let Some(Kind::Custom(start)) = permit.kind() {
            self.count(start.key, |stats| {
                stats.waited += 1;
                stats.wait_time += wait;
            });
        }
    }

    fn sent_away(&self, key: &str, weight: u64) {
        self.count(self.hasher.hash_one(key), |stats| denied(stats, weight));
    }
}

impl<C: Custom> Nested for CustomLimiter<C> {
    fn waits_for_ends(&self) -> bool {
        true
    }
}
