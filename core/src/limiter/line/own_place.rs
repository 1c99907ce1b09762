//! A waiter that joins with its own place. It waits for that place only.

use super::Outcome;
use super::key::BETWEEN_SLICES;
use crate::error::Error;
use crate::limiter::{Limiter, Presented};
use crate::permit::RawPermit;
use crate::time::{Tick, from_ticks, patience_ticks};
use crate::waiting::MayWait;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct OwnPlace {
    pub place: RawPermit,
    /// When to present it.
    pub due: Tick,
    /// [`Tick::MAX`]: none.
    pub deadline: Tick,
    /// When it first had to wait for the store.
    blocked_since: Option<Instant>,
}

impl OwnPlace {
    pub fn new(place: RawPermit, now: Tick, timeout: Option<Duration>) -> OwnPlace {
        OwnPlace { place, due: now, deadline: super::deadline(now, timeout), blocked_since: None }
    }

    /// Presents the place once. `None`: it has to be presented again at `due`.
    pub fn advance(&mut self, limiter: &dyn Limiter, now: Tick, slice: Duration) -> Option<Outcome> {
        if let Some(error) = limiter.closed_store() {
            // If that fails, the place expires unused.
            let _ = limiter.cancel_place(&self.place);
            return Some(Outcome::Failed(error));
        }
        let since = self.blocked_since.take().unwrap_or_else(Instant::now);
        // A server answers within a slice, or until it has timed out.
        let for_server = from_ticks(self.deadline.saturating_sub(now)).max(slice);
        match MayWait::in_slices(since, slice, for_server, || limiter.quiet_present(&self.place)) {
            Err(Error::WouldWait) => {
                self.blocked_since = Some(since);
                if MayWait::here() != MayWait::UntilTimeout {
                    self.due = now + 1; // At the next call.
                    return Some(Outcome::Failed(Error::WouldWait));
                }
                self.due = now + BETWEEN_SLICES;
                // If it has timed out, the place expires unused.
                (now >= self.deadline).then_some(Outcome::Expired(Duration::ZERO))
            }
            Ok(Presented::Started(permit)) => Some(Outcome::Admitted(permit)),
            Ok(Presented::Wait { place, after }) => {
                self.place = place;
                self.due = now.saturating_add(patience_ticks(after));
                let cancel = || MayWait::in_slice(Instant::now(), slice, || limiter.cancel_place(&place));
                (self.due > self.deadline || now >= self.deadline).then(|| match cancel() {
                    Err(Error::WouldWait) if MayWait::here() != MayWait::UntilTimeout => {
                        Outcome::Failed(Error::WouldWait)
                    }
                    // (If it cannot be given back now, the place expires unused.)
                    Ok(()) | Err(Error::WouldWait) => Outcome::Expired(from_ticks(self.due - now)),
                    Err(error) => Outcome::Failed(error),
                })
            }
            Err(error) => Some(Outcome::Failed(error)),
        }
    }
}
