//! Limits with units granted by a server: starts, places and denials without a request.

use super::Timed;
use super::deciding::Seen;
use super::places::PlaceOutcome;
use crate::algorithm::grants::{self, Grants, Lengths, Wish};
use crate::algorithm::log::{Answer, Ask, Stage, Taken, View};
use crate::decision::Decision;
use crate::error::Result;
use crate::hash::Hash;
use crate::permit::TimedPermit;
use crate::state::counts::ADMITTED;
use crate::state::{AtOnce, Blocked, Key, Table, as_granted_place, without_grant};
use crate::time::{Now, Tick, from_ticks, uptime};
use std::time::Instant;

/// The most requests to the server for one decision. After that its replies are too late to be of use, and the server
/// decides itself.
const MAX_QUESTIONS: u32 = 3;

/// The bits below a permit's grace: the number of the taking of its grant, from 1.
const UNIT: u64 = (1 << 32) - 1;

impl Timed {
    /// Decides on a start now from the granted units, if they suffice for that.
    #[inline(always)]
    pub(super) fn take_local<const LOOK: bool>(&self, found: &Key, weight: u64, view: &mut View) -> Option<Answer> {
        let (now, uptime) = found.home().clock.now_and_uptime();
        let (grants, uptime) = (found.grants(), uptime as Tick);
        let answer = match grants.take(weight, uptime) {
            Some(taken) => started(now, &taken),
            None => denied(grants, now, uptime, grants.soonest(weight, uptime, false)?),
        };
        Some(self.answered::<LOOK>(found, uptime, answer, view))
    }

    /// Makes the result of a reply that needed no server.
    #[inline(always)]
    fn answered<const LOOK: bool>(&self, found: &Key, uptime: Tick, answer: Answer, view: &mut View) -> Answer {
        if answer.taken.is_some() {
            self.reset_backoff(found);
        }
        if LOOK {
            *view = self.view_by(found, answer.now, uptime, answer.ready);
        }
        answer
    }

    fn view_by(&self, found: &Key, now: Now, uptime: Tick, ready: Tick) -> View {
        let (remaining, empty) = found.grants().known();
        let remaining = if ready > now.floor { 0 } else { remaining.min(found.table.capacity) };
        View { now: now.floor, ready, remaining, empty: now.floor + empty.saturating_sub(uptime) }
    }

    /// Decides from the granted units, and asks for more where they do not suffice. `waits`: the caller accepts a
    /// promise.
    pub(super) fn take_granted<const LOOK: bool>(
        &self,
        found: &Key,
        ask: &Ask,
        waits: bool,
        view: &mut View,
    ) -> Result<Answer, Blocked> {
        let Some(window) = found.table.policy.shared_by() else { return self.take_looking::<LOOK>(found, ask, view) };
        self.limit.check_weight_on_server(found.table, found.hash, ask.weight)?;
        let (weight, began) = (ask.weight, Instant::now());
        // Where units are returned, promises are later than need be, and so is everything after them.
        let has_returns = self.limit.returned() > 0;
        let mut questions = 0;
        while questions < MAX_QUESTIONS && weight <= grants::MAX_WEIGHT {
            let grants = self.limit.grants_of(found);
            let (now, uptime) = found.home().clock.now_and_uptime();
            let uptime = uptime as Tick;
            if grants.is_far(window.length, uptime) {
                break;
            }
            let taken = if ask.reserve { None } else { grants.take(weight, uptime) };
            let place = || grants.take_place(weight, uptime, ask.patience);
            let takes_places = ask.patience > 0 || ask.reserve;
            let answer = match (taken, (taken.is_none() && takes_places).then(place).flatten()) {
                (Some(taken), _) => Some(started(now, &taken)),
                (None, Some(place)) => Some(reserved(now, uptime, &place)),
                (None, None) => {
                    grants.soonest(weight, uptime, waits && !has_returns).map(|at| denied(grants, now, uptime, at))
                }
            };
            let lengths = Lengths::of(window.limit, window.length, grants.trip());
            if let Some(Answer { ready, taken: None, .. }) = answer
                && takes_places
                && (lengths.far() + 1..=ask.patience).contains(&(ready - now.floor))
            {
                // Too far away for a promise: the server keeps the place.
                break;
            }
            if let Some(answer) = answer {
                return Ok(self.answered::<LOOK>(found, uptime, answer, view));
            }
            if waits {
                grants.waits();
            }
            if !grants.has_free_cell(uptime) {
                // Too many wait: the server keeps the place.
                break;
            }
            let wish = match () {
                () if grants.is_promised(weight, uptime) => Wish::Word,
                () if has_returns => Wish::Only(weight),
                () if waits => Wish::Place(weight),
                () => Wish::Start(weight),
            };
            questions += u32::from(self.limit.ask_for_grants(found, wish, lengths, began)?);
        }
        self.take_looking::<LOOK>(found, ask, view)
    }

    /// Takes a place that is valid for longer than a grant: the server keeps it. Granted units that are free start
    /// immediately. No more grants are requested, because a promise of a later start would be ready before the place,
    /// and go unused.
    pub(super) fn take_for_long(&self, found: &Key, ask: &Ask) -> Result<Answer, Blocked> {
        if Self::is_granted(found.table)
            && !ask.reserve
            && let Some(answer) = self.take_local::<false>(found, ask.weight, &mut View::default())
            && answer.taken.is_some()
        {
            return Ok(answer);
        }
        self.take(found, ask)
    }

    /// Returns whether a key is decided on by granted units.
    pub(super) fn is_granted(table: &Table) -> bool {
        table.at_once == AtOnce::Grants
    }

    /// Returns the state of a key.
    pub(super) fn view_granted(&self, found: &Key, weight: u64) -> Result<View, Blocked> {
        if let Some(view) = self.local_view(found, weight) {
            return Ok(view);
        }
        let (grants, window) = (self.limit.grants_of(found), found.table.policy.shared_by());
        if let Some(window) = window.filter(|_| weight == 1) {
            let lengths = Lengths::of(window.limit, window.length, grants.trip());
            self.limit.ask_for_grants(found, Wish::Word, lengths, Instant::now())?;
            let (remaining, _) = grants.known();
            if remaining > 0 {
                let (now, uptime) = found.home().clock.now_and_uptime();
                return Ok(self.view_by(found, now, uptime as Tick, now.floor));
            }
            if let Some(view) = self.local_view(found, weight) {
                return Ok(view);
            }
        }
        self.view_on_server(found.home(), found.table, found.hash, weight)
    }

    /// Returns a near-certain decision, without a request.
    pub(super) fn local_decision(&self, key: &str, weight: u64) -> Option<Decision> {
        let found = self.limit.is_bound()?.find_at_once(key, weight).filter(|found| Self::is_granted(found.table))?;
        let at = found.grants().promised(weight, uptime());
        let view = match at {
            Some(at) => {
                let (now, uptime) = found.home().clock.now_and_uptime();
                self.view_by(&found, now, uptime as Tick, now.floor + at.saturating_sub(uptime as Tick))
            }
            None => self.local_view(&found, weight)?,
        };
        let admitted = view.ready <= view.now;
        Some(self.decision(&Seen { view, capacity: found.table.capacity, admitted, backoff: 0 }))
    }

    /// Returns the known state of a key, without a request.
    fn local_view(&self, found: &Key, weight: u64) -> Option<View> {
        let (now, uptime) = found.home().clock.now_and_uptime();
        let uptime = uptime as Tick;
        let grants = found.grants();
        let ready = match grants.can_start(weight, uptime) {
            true => now.floor,
            false => now.floor + (grants.soonest(weight, uptime, false)? - uptime),
        };
        Some(self.view_by(found, now, uptime, ready))
    }

    /// Starts with a place of a granted unit.
    pub(super) fn start_granted(&self, place: &TimedPermit) -> Result<PlaceOutcome> {
        let ticket = without_grant(place.ticket);
        self.limit.with_hash(Hash(place.key), |found| {
            let Some(window) = found.table.policy.shared_by().filter(|_| Self::is_granted(found.table)) else {
                return Ok(PlaceOutcome::Gone);
            };
            let (grants, began) = (found.grants(), Instant::now());
            for _ in 0..MAX_QUESTIONS {
                match grants.start(ticket, place.grace, uptime()) {
                    grants::PlaceStatus::Started => {
                        self.reset_backoff(found);
                        found.decided(ADMITTED, place.weight);
                        return Ok(PlaceOutcome::Started(TimedPermit { ticket, grace: place.grace & UNIT, ..*place }));
                    }
                    grants::PlaceStatus::Early(after) => return Ok(PlaceOutcome::Early(from_ticks(after))),
                    grants::PlaceStatus::Gone => break,
                    grants::PlaceStatus::Unsure => {
                        let lengths = Lengths::of(window.limit, window.length, grants.trip());
                        self.limit.ask_for_grants(found, Wish::Word, lengths, began)?;
                    }
                }
            }
            Ok(PlaceOutcome::Gone)
        })
    }

    /// Returns what was promised for a key, with the next request.
    pub(super) fn do_return_promises(&self, key: &str) {
        if self.limit.is_served() {
            let _ = self.limit.with_key(key, |found| {
                if Self::is_granted(found.table) {
                    self.limit.grants_of(found).return_promises();
                }
                Ok(())
            });
        }
    }

    /// Gives a place of a granted unit back, or a start if its grant is still here. Returns whether it was.
    pub(super) fn give_back_granted(&self, permit: &TimedPermit, is_place: bool) -> Result<bool> {
        let given = self.limit.with_known(Hash(permit.key), |found| {
            if !Self::is_granted(found.table) {
                return Ok(false);
            }
            let grants = found.grants();
            if is_place {
                return Ok(grants.give_place_back(without_grant(permit.ticket), permit.grace, permit.weight));
            }
            let was_here = grants.give_back(permit.ticket, (permit.grace & UNIT).wrapping_sub(1), permit.weight);
            if was_here {
                self.limit.has_returned(found);
            }
            Ok(was_here)
        })?;
        Ok(given.unwrap_or(false))
    }
}

fn started(now: Now, taken: &grants::Taken) -> Answer {
    Answer { now, ready: now.floor, taken: Some(as_taken(taken, taken.ticket, Stage::Start)) }
}

/// Nothing can start before `at`.
#[inline(always)]
fn denied(grants: Grants, now: Now, uptime: Tick, at: Tick) -> Answer {
    grants.denied(at);
    Answer { now, ready: now.floor + (at - uptime), taken: None }
}

fn reserved(now: Now, uptime: Tick, place: &grants::Taken) -> Answer {
    let taken = Some(as_taken(place, as_granted_place(place.ticket), Stage::Place));
    // (One tick later than its time: this clock may have been read within a tick.)
    Answer { now, ready: now.ceil + place.from.saturating_sub(uptime), taken }
}

fn as_taken(taken: &grants::Taken, ticket: u64, stage: Stage) -> Taken {
    Taken { ticket, end: 0, stamp: taken.stamp, ahead: taken.unit + 1, stage }
}
