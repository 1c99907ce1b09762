//! No limit: what a queue uses where none is given.

use super::line::{Claim, Lined, Seats, Terms};
use super::{Attempt, Limiter, Presented, Reserved, next_id, own};
use crate::decision::Decision;
use crate::error::Result;
use crate::permit::{Kind, RawPermit};
use crate::policy::{self, check_key};
use std::time::{Duration, SystemTime};

/// All of its permits are alike.
const TEXT: &str = "wgl-null";

/// Admits everything, remembers nothing.
#[derive(Debug)]
pub struct NullLimiter {
    id: u64,
    seats: Seats,
}

impl NullLimiter {
    /// A limiter without a limit.
    pub fn new() -> Self {
        NullLimiter { id: next_id(), seats: Seats::new() }
    }

    fn permit(&self) -> RawPermit {
        RawPermit::new(self.id, Kind::Null)
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

impl Lined for NullLimiter {
    fn claim(&self, key: &str, weight: u64, _terms: Terms) -> Result<Claim> {
        check(key, weight)?;
        Ok(Claim::Started(self.permit()))
    }

    fn start(&self, place: &RawPermit) -> Result<Presented> {
        self.present(place)
    }

    fn seats(&self) -> &Seats {
        &self.seats
    }
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

    fn is_over(&self, _: &RawPermit) -> bool {
        true
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
