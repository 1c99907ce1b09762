//! A waiter that brings a place of its own: it waits for that place and for nothing else.

use super::Outcome;
use crate::limiter::{Limiter, Presented};
use crate::permit::RawPermit;
use crate::time::{Tick, from_ticks, patience_ticks};

#[derive(Debug)]
pub(super) struct Brought {
    pub place: RawPermit,
    /// When to present it.
    pub due: Tick,
    /// [`Tick::MAX`]: none.
    pub deadline: Tick,
}

impl Brought {
    /// Presents the place once. Nothing: it has to be presented again when it is due.
    pub fn advance(&mut self, limiter: &dyn Limiter, now: Tick) -> Option<Outcome> {
        match limiter.present(&self.place) {
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
