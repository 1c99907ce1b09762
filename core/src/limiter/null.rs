//! No limit: what a queue uses where none is given.

use super::{Attempt, Limiter, Presented, Progress, Reserved, Step, Wait, next_id, own};
use crate::decision::Decision;
use crate::error::Result;
use crate::permit::RawPermit;
use crate::policy::{self, check_key};
use std::time::{Duration, SystemTime};

/// All of its permits are alike.
const TEXT: &str = "wgl-null";

/// Admits everything, remembers nothing.
#[derive(Debug)]
pub struct NullLimiter {
    id: u64,
}

impl NullLimiter {
    /// A limiter without a limit.
    pub fn new() -> Self {
        NullLimiter { id: next_id() }
    }

    fn permit(&self) -> RawPermit {
        RawPermit::from_words([self.id, 0, 0, 0, 0, 0, 0, 0])
    }

    pub(super) fn decision(&self, permit: Option<RawPermit>) -> Decision {
        Decision {
            permit,
            admitted: true,
            retry_after: Duration::ZERO,
            suggested_after: Duration::ZERO,
            remaining: u64::MAX,
            limit: u64::MAX,
            reset_after: Duration::ZERO,
            denied_by: None,
        }
    }
}

impl Default for NullLimiter {
    fn default() -> Self {
        Self::new()
    }
}

/// Wrong input is wrong here too: code that is tried without a limit shall not fail first with one.
pub(super) fn check(key: &str, weight: u64) -> Result<()> {
    policy::check_some(weight)?;
    check_key(key)
}

impl Limiter for NullLimiter {
    fn name(&self) -> &str {
        "null"
    }

    fn check_permit(&self, permit: &RawPermit) -> Result<()> {
        own(permit, self.id, self.name())
    }

    fn attempt(&self, key: &str, weight: u64) -> Result<Attempt> {
        check(key, weight)?;
        Ok(Attempt::Admitted(self.permit()))
    }

    fn decide(&self, key: &str, weight: u64) -> Result<Decision> {
        check(key, weight)?;
        Ok(self.decision(Some(self.permit())))
    }

    fn peek(&self, key: &str, _weight: u64) -> Result<Decision> {
        check_key(key)?;
        Ok(self.decision(None))
    }

    fn step(&self, wait: &mut Wait) -> Result<Step> {
        if let Progress::Place(place) = wait.progress {
            own(&place, self.id, self.name())?;
        }
        check(&wait.key, wait.weight)?;
        Ok(Step::Admitted(self.permit()))
    }

    fn nap(&self, _wait: &Wait, _nap: Duration) {}

    fn complete(&self, permit: &RawPermit) -> Result<()> {
        own(permit, self.id, self.name())
    }

    fn cancel(&self, permit: &RawPermit) -> Result<()> {
        own(permit, self.id, self.name())
    }

    fn settle(&self, permit: &RawPermit, _actual: u64) -> Result<()> {
        own(permit, self.id, self.name())
    }

    fn reserve_later(
        &self,
        key: &str,
        weight: u64,
        _: Duration,
        _: Option<Duration>,
        _: Option<Duration>,
    ) -> Result<Reserved> {
        check(key, weight)?;
        Ok(Reserved::Place { place: self.permit(), after: Duration::ZERO })
    }

    fn renew(&self, permit: &RawPermit) -> Result<()> {
        own(permit, self.id, self.name())
    }

    fn present(&self, place: &RawPermit) -> Result<Presented> {
        own(place, self.id, self.name())?;
        Ok(Presented::Started(*place))
    }

    fn to_text(&self, permit: &RawPermit) -> Result<String> {
        own(permit, self.id, self.name())?;
        Ok(TEXT.to_owned())
    }

    fn permit_from_text(&self, text: &str) -> Result<RawPermit> {
        if text == TEXT { Ok(self.permit()) } else { Err(crate::permit::unreadable(text)) }
    }

    fn record_job_start(&self, key: &str) -> Result<()> {
        check_key(key)
    }

    fn record_job_completion(&self, key: &str) -> Result<()> {
        check_key(key)
    }

    fn set_next_available_time(&self, key: &str, _at: SystemTime) -> Result<()> {
        check_key(key)
    }

    fn pause(&self, key: &str, _pause: Duration) -> Result<()> {
        check_key(key)
    }

    fn clear(&self, key: &str) -> Result<()> {
        check_key(key)
    }
}
