//! A limiter without a limit, for queues that are given none.

use super::internal::{Awaited, Base, Behind, Nested, Quiet, When};
use super::line::{Claim, Terms};
use super::{Attempt, Limiter, Places, Presented, Reserved};
use crate::decision::Decision;
use crate::error::Result;
use crate::permit::{Kind, RawPermit};
use crate::policy::{self, check_key};
use std::time::Duration;

/// The text of every permit: all are alike.
const TEXT: &str = "wgl-null";

/// Admits every start and remembers nothing.
#[derive(Debug)]
pub struct NullLimiter {
    base: Base,
}

impl NullLimiter {
    /// Makes a limiter without a limit.
    pub fn new() -> Self {
        NullLimiter { base: Base::new("null".into()) }
    }

    fn permit(&self) -> RawPermit {
        RawPermit::new(self.base.id, Kind::Null)
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

/// Invalid input is an error here too, so that code developed without a limit does not first fail with one.
pub(super) fn check(key: &str, weight: u64) -> Result<()> {
    policy::check_some(weight)?;
    check_key(key)
}

impl Limiter for NullLimiter {
    fn complete(&self, permit: &RawPermit) -> Result<()> {
        self.base.own(permit)
    }

    fn cancel(&self, permit: &RawPermit) -> Result<()> {
        self.base.own(permit)
    }

    fn settle(&self, permit: &RawPermit, _actual: u64) -> Result<()> {
        self.base.own(permit)
    }
}

impl Places for NullLimiter {
    fn cancel_place(&self, place: &RawPermit) -> Result<()> {
        self.cancel(place)
    }

    fn to_text(&self, permit: &RawPermit) -> Result<String> {
        self.base.own(permit)?;
        Ok(TEXT.to_owned())
    }

    fn permit_from_text(&self, text: &str) -> Result<RawPermit> {
        if text == TEXT { Ok(self.permit()) } else { Err(crate::permit::unreadable(text)) }
    }
}

impl Behind for NullLimiter {
    #[inline(always)]
    fn base(&self) -> &Base {
        &self.base
    }
}

impl Quiet for NullLimiter {
    fn quiet_attempt(&self, key: &str, weight: u64) -> Result<Attempt> {
        check(key, weight)?;
        Ok(Attempt::Admitted(self.permit()))
    }

    fn quiet_decide(&self, key: &str, weight: u64) -> Result<Decision> {
        check(key, weight)?;
        Ok(self.decision(Some(self.permit())))
    }

    fn quiet_peek(&self, key: &str, _weight: u64) -> Result<Decision> {
        check_key(key)?;
        Ok(self.decision(None))
    }

    fn quiet_forecast(&self, key: &str, _units: u64) -> Result<Option<Duration>> {
        check_key(key).map(|()| Some(Duration::ZERO))
    }

    fn quiet_reserve(&self, key: &str, weight: u64, _: When) -> Result<Reserved> {
        check(key, weight)?;
        Ok(Reserved::Place { place: self.permit(), after: Duration::ZERO })
    }

    fn quiet_present(&self, place: &RawPermit) -> Result<Presented> {
        self.base.own(place)?;
        Ok(Presented::Started(*place))
    }

    fn quiet_record_start(&self, key: &str) -> Result<()> {
        check_key(key)
    }

    fn quiet_record_end(&self, key: &str) -> Result<()> {
        check_key(key)
    }
}

impl Awaited for NullLimiter {
    fn claim(&self, key: &str, weight: u64, _terms: Terms) -> Result<Claim> {
        check(key, weight)?;
        Ok(Claim::Started(self.permit()))
    }

    fn start(&self, place: &RawPermit) -> Result<Presented> {
        self.quiet_present(place)
    }
}

impl Nested for NullLimiter {
    fn is_over(&self, _: &RawPermit) -> bool {
        true
    }
}
