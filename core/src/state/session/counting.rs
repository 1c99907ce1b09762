//! A store's counts in this process, and when they are flushed.

use super::Session;
use crate::error::Result;
use crate::state::cells::layout::LimitAt;
use crate::state::cells::locked::Locked;
use crate::state::counts::Counts;
use std::sync::Arc;
use std::time::Duration;

/// How long the end of a store waits for the lock, to flush the last counts.
const LAST_WORDS: Duration = Duration::from_millis(10);

impl Session {
    /// The counts of a limit of the current home in this process. Only for the holder of the structure lock.
    pub(in crate::state) fn counts(&self, limit: LimitAt) -> Arc<Counts> {
        self.book.lock().of((self.home_number(), limit), || self.home().hash(b'k', ""))
    }

    /// The counts of a limit of the current home, if this process has used the limit.
    pub(in crate::state) fn counts_of(&self, limit: LimitAt) -> Option<Arc<Counts>> {
        self.book.lock().find((self.home_number(), limit))
    }

    /// Flushes the counts of this process. Only for the holder of the structure lock.
    pub(in crate::state) fn flush_counts(&self, locked: &Locked) -> Result<()> {
        let number = self.home_number();
        self.book.lock().flush(number, locked)
    }

    /// Flushes the counts of one limit.
    pub(in crate::state) fn flush_counts_of(&self, limit: LimitAt, locked: &Locked) -> Result<()> {
        self.counts_of(limit).map_or(Ok(()), |counts| counts.flush(locked, limit))
    }

    /// Flushes the counts if the lock is free. Otherwise the next flush includes them.
    pub fn flush_counts_if_free(&self) {
        let _ = self.with_lock_for(Duration::ZERO, |locked| self.flush_counts(locked));
    }

    /// Flushes the last counts at the end of the store, if the lane is still there.
    pub(in crate::state) fn flush_last_counts(&self) {
        if self.book.lock().is_empty() || !self.home().is_lane() {
            return;
        }
        // A deleted lane must not be rebuilt for this.
        if self.home().is_still_there(self.home().clock.now().floor) {
            let _ = self.with_lock_for(LAST_WORDS, |locked| self.flush_counts(locked));
        }
    }
}
