//! The six calls of classic schedulers.

use super::Internal;
use super::events::reporting_errors;
use crate::error::Result;
use std::time::SystemTime;

/// The calls of schedulers that ask first and record later: these five, and [`Limiter::clear`](crate::Limiter::clear).
/// Other callers can start in between; [`Limiter::try_acquire`](crate::Limiter::try_acquire) decides and records in one
/// step. Every limiter implements this trait.
pub trait Scheduler: Internal {
    /// Returns whether a start of weight 1 would be admitted now. Changes nothing.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`](crate::Limiter::attempt).
    fn can_proceed(&self, key: &str) -> Result<bool> {
        reporting_errors(self, key, 1, || Ok(self.quiet_peek(key, 1)?.admitted))
    }

    /// Returns the earliest instant at which a start of weight 1 would be admitted, gate included: the current time if
    /// it would be admitted now.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`](crate::Limiter::attempt).
    fn next_available_time(&self, key: &str) -> Result<SystemTime> {
        reporting_errors(self, key, 1, || Ok(SystemTime::now() + self.quiet_peek(key, 1)?.retry_after))
    }

    /// Records the start of a job, even when the limit is full, because the caller has already decided.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`](crate::Limiter::attempt).
    fn record_job_start(&self, key: &str) -> Result<()> {
        reporting_errors(self, key, 1, || self.quiet_record_start(key))
    }

    /// Records the end of a job: it ends the oldest start without a permit that this process recorded on that key,
    /// through the same store.
    ///
    /// # Errors
    /// As for [`Limiter::attempt`](crate::Limiter::attempt).
    fn record_job_completion(&self, key: &str) -> Result<()> {
        reporting_errors(self, key, 1, || self.quiet_record_end(key))
    }

    /// As [`Limiter::pause`](crate::Limiter::pause), until an instant. An instant in the past sets no gate.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if `when` is more than 366 days away, or as for
    /// [`Limiter::attempt`](crate::Limiter::attempt).
    fn set_next_available_time(&self, when: SystemTime, key: &str) -> Result<()> {
        reporting_errors(self, key, 0, || self.quiet_close_gate(key, when))
    }
}

impl<L: Internal> Scheduler for L {}
