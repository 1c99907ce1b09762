//! The six calls of classic schedulers.

use super::Inner;
use super::heard::errors_told;
use crate::error::Result;
use std::time::SystemTime;

/// How schedulers drive a limiter that ask first and record later: these five, and [`Limiter::clear`](crate::Limiter::clear). Others get in
/// between; [`Limiter::try_acquire`](crate::Limiter::try_acquire) decides and records in one act. Every limiter has this.
pub trait Scheduler: Inner {
    /// Would a start of weight 1 be admitted now? Changes nothing.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`](crate::Limiter::attempt).
    fn can_proceed(&self, key: &str) -> Result<bool> {
        errors_told(self, key, 1, || Ok(self.quiet_peek(key, 1)?.admitted))
    }

    /// The earliest instant at which a start of weight 1 would be admitted, gate included; now, if now.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`](crate::Limiter::attempt).
    fn next_available_time(&self, key: &str) -> Result<SystemTime> {
        errors_told(self, key, 1, || Ok(SystemTime::now() + self.quiet_peek(key, 1)?.retry_after))
    }

    /// A job has started: recorded even when the limit is full, because the caller has already decided.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`](crate::Limiter::attempt).
    fn record_job_start(&self, key: &str) -> Result<()> {
        errors_told(self, key, 1, || self.quiet_record_start(key))
    }

    /// A job has ended: the oldest start without a permit that this process recorded on that key, through the same
    /// store.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`](crate::Limiter::attempt).
    fn record_job_completion(&self, key: &str) -> Result<()> {
        errors_told(self, key, 1, || self.quiet_record_end(key))
    }

    /// [`Limiter::pause`](crate::Limiter::pause) until an instant. One in the past is no gate.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if `at` is more than 366 days away, or as for
    /// [`Limiter::attempt`](crate::Limiter::attempt).
    fn set_next_available_time(&self, key: &str, at: SystemTime) -> Result<()> {
        errors_told(self, key, 0, || self.quiet_close_gate(key, at))
    }
}

impl<L: Inner> Scheduler for L {}
