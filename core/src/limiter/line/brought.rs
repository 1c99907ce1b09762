//! A waiter that brings a place of its own: it waits for that place and for nothing else.

use super::Outcome;
use super::key::BETWEEN_SLICES;
use crate::error::Error;
use crate::limiter::{Limiter, Presented};
use crate::permit::RawPermit;
use crate::time::{Tick, from_ticks, patience_ticks};
use crate::waiting::MayWait;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct Brought {
    pub place: RawPermit,
    /// When to present it.
    pub due: Tick,
    /// [`Tick::MAX`]: none.
    pub deadline: Tick,
    /// When the store first kept it waiting.
    blocked_since: Option<Instant>,
}

impl Brought {
    pub fn new(place: RawPermit, now: Tick, timeout: Option<Duration>) -> Brought {
        Brought { place, due: now, deadline: super::deadline(now, timeout), blocked_since: None }
    }

    /// Presents the place once. Nothing: it has to be presented again when it is due.
    pub fn advance(&mut self, limiter: &dyn Limiter, now: Tick, slice: Duration) -> Option<Outcome> {
        let since = self.blocked_since.take().unwrap_or_else(Instant::now);
        match MayWait::in_slice(since, slice, || limiter.quiet_present(&self.place)) {
            Err(Error::WouldWait) => {
                self.blocked_since = Some(since);
                if MayWait::here() != MayWait::UntilTimeout {
                    self.due = now + 1; // Not before the next call.
                    return Some(Outcome::Failed(Error::WouldWait));
                }
                self.due = now + BETWEEN_SLICES;
                // If its time is up, the place goes by unused.
                (now >= self.deadline).then_some(Outcome::Expired(Duration::ZERO))
            }
            Ok(Presented::Started(permit)) => Some(Outcome::Admitted(permit)),
            Ok(Presented::Wait { place, after }) => {
                self.place = place;
                self.due = now.saturating_add(patience_ticks(after));
                (self.due > self.deadline || now >= self.deadline).then(|| match limiter.cancel_place(&place) {
                    Ok(()) => Outcome::Expired(from_ticks(self.due - now)),
                    Err(error) => Outcome::Failed(error),
                })
            }
            Err(error) => Some(Outcome::Failed(error)),
        }
    }
}
