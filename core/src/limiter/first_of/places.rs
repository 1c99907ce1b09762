//! Places of alternatives: a place at the one that can start first.
//!
//! A place that has to wait longer when it is presented, because its alternative was paused or its policy was changed,
//! moves to another one that can start sooner. Its text is that of a composite's place, with the alternative's name and one
//! place:
//!
//! ```text
//! wglf1.NAME.WEIGHT.GRACE.KEY(the alternative's text)
//! ```

use super::{Child, FirstOfLimiter};
use crate::charges::Split;
use crate::error::{Error, Result};
use crate::limiter::composite::group::gone;
pub(super) use crate::limiter::composite::out::Wish;
use crate::limiter::composite::out::{Part, State};
use crate::limiter::composite::text::{self, Asked};
use crate::limiter::internal::{Nested, When};
use crate::limiter::line::Ahead;
use crate::limiter::{Attempt, Limiter, Presented, Reserved, unsupported};
use crate::permit::{RawPermit, unreadable};
use crate::waiting::MayWait;
use std::sync::Arc;
use std::time::Duration;

const PREFIX: &str = "wglf1.";

/// A place and its wait, or when there is one.
type Answer = std::result::Result<(Part, Duration), Option<Duration>>;

impl FirstOfLimiter {
    pub(super) fn wish(&self, (key, weight): (&str, u64), grace: Option<Duration>) -> Wish {
        Wish { key: key.into(), weight, grace, children: self.group.all().len() }
    }

    pub(super) fn hand_out_place(&self, at: usize, place: RawPermit, wish: Wish) -> RawPermit {
        self.hand_out(at, place, State::Place, Some(Arc::new(wish)))
    }

    pub(super) fn do_reserve(&self, key: &str, weight: u64, when: When) -> Result<Reserved> {
        self.group.split_start(key, weight)?;
        self.reserve_for(self.wish((key, weight), when.grace), when)
    }

    fn reserve_for(&self, wish: Wish, when: When) -> Result<Reserved> {
        let charges = self.group.split(&wish.key, wish.weight)?;
        match self.reserve_soonest(&charges, when, None)? {
            Ok((part, after)) => {
                Ok(Reserved::Place { place: self.hand_out_place(part.child, part.permit, wish), after })
            }
            Err(Some(after)) => Ok(Reserved::Denied(after)),
            Err(None) => unsupported("reserve", "alternatives without a timed limit: the end of jobs is unknown"),
        }
    }

    /// Takes the soonest place that there is, not at the alternative `except`. If there is none, returns when there is one;
    /// `None`: no alternative has places.
    fn reserve_soonest(&self, charges: &Split, when: When, except: Option<usize>) -> Result<Answer> {
        let mut seen = self.look(charges, except, |_| false)?;
        seen.retain(|(_, child, _)| child.has_places());
        // A place no sooner than `delay` can be had at any that is free by then.
        seen.sort_by_key(|(_, _, seen)| seen.retry_after.max(when.delay));
        let mut denied: Option<Duration> = None;
        for (i, child, seen) in seen {
            // Only the first one records that it denied a start.
            if denied.is_some() && when.max_wait.is_some_and(|most| seen.retry_after > most) {
                break;
            }
            let (key, weight) = charges.at(i);
            match child.quiet_reserve(key, weight, when)? {
                Reserved::Place { place, after } => return Ok(Ok((Part { child: i, permit: place }, after))),
                Reserved::Denied(after) => denied = Some(denied.map_or(after, |least| least.min(after))),
            }
        }
        Ok(Err(denied))
    }

    /// Presents a place with the call of its alternative.
    pub(super) fn do_present(
        &self,
        place: &RawPermit,
        present: impl FnOnce(&Child, &RawPermit) -> Result<Presented>,
    ) -> Result<Presented> {
        let again = |wish, when| self.reserve_for(wish, when);
        self.group.present(place, again, |wish, held| {
            let [part] = held.as_mut_slice() else { return Err(gone()) };
            match present(&self.group.all()[part.child], &part.permit)? {
                Presented::Started(permit) => {
                    part.permit = permit;
                    Ok(None)
                }
                Presented::Wait { place, after } => {
                    part.permit = place;
                    if after.is_zero() { Ok(Some(after)) } else { self.start_sooner(wish, part, after) }
                }
            }
        })
    }

    /// Lets a place look ahead at its alternative.
    pub(super) fn do_look_ahead(&self, place: &RawPermit) -> Result<Option<Ahead>> {
        let mut again = None;
        let seen = self.group.present(
            place,
            |wish, when| self.reserve_for(wish, when),
            |_, held| {
                let [part] = held.as_mut_slice() else { return Err(gone()) };
                let child = &self.group.all()[part.child];
                if let Some(ahead) = child.look_ahead(&part.permit)? {
                    (part.permit, again) = (ahead.place, ahead.again);
                }
                Ok(Some(child.ready_in(&part.permit).unwrap_or_default()))
            },
        )?;
        let Presented::Wait { place, after } = seen else { return Ok(None) };
        Ok(Some(Ahead { place, after, again }))
    }

    /// Gives a place another number.
    pub(super) fn renumbered(&self, place: &RawPermit) -> RawPermit {
        match self.group.take(place) {
            Ok(Some(out)) => self.group.hand_out(out),
            _ => *place,
        }
    }

    /// Starts at another alternative, or takes a place there, if that is sooner than this place. Returns how long it has to
    /// wait.
    fn start_sooner(&self, wish: &Wish, part: &mut Part, after: Duration) -> Result<Option<Duration>> {
        let charges = self.group.split(&wish.key, wish.weight)?;
        let old = *part;
        let found = (|| {
            let free =
                self.look(&charges, Some(old.child), |seen| seen.admitted)?.pop().filter(|(.., seen)| seen.admitted);
            if let Some((i, child, _)) = free {
                let (key, weight) = charges.at(i);
                if let Attempt::Admitted(permit) = child.quiet_attempt(key, weight)? {
                    return Ok(Some((Part { child: i, permit }, None)));
                }
            }
            let sooner = Some(after - Duration::from_micros(1));
            let when = When { delay: Duration::ZERO, max_wait: sooner, grace: wish.grace, is_waiter: true };
            let place = self.reserve_soonest(&charges, when, Some(old.child))?;
            Ok(place.ok().map(|(part, after)| (part, Some(after))))
        })();
        match found {
            Ok(Some((part_there, wait))) => {
                *part = part_there;
                // If this fails, the place expires unused.
                let _ = MayWait::to_undo(|| self.group.all()[old.child].cancel_place(&old.permit));
                Ok(wait)
            }
            // The place that it has is as good as before.
            Ok(None) | Err(Error::WouldWait) => Ok(Some(after)),
            Err(error) => Err(error),
        }
    }

    pub(super) fn do_to_text(&self, place: &RawPermit) -> Result<String> {
        self.group.own(place)?;
        let found = self.group.found(place).filter(|out| out.state == State::Place);
        let Some((wish, part)) = found.and_then(|out| Some((out.wish?, *out.parts.first()?))) else {
            return unsupported("to_text", "a start of alternatives: it belongs to one process");
        };
        let (child, name) = (&self.group.all()[part.child], &self.group.names()[part.child]);
        let head = text::head(&wish, &self.describe(&wish.key)?);
        Ok(format!("{PREFIX}{}.{head}({})", text::in_hex(name), child.to_text(&part.permit)?))
    }

    pub(super) fn do_permit_from_text(&self, text: &str) -> Result<RawPermit> {
        let all = self.alternatives()?;
        let parsed = text.strip_prefix(PREFIX).and_then(|rest| {
            let (name, rest) = rest.split_once('.')?;
            Some((text::string(name)?, text::parse_behind(rest)?))
        });
        let Some((name, Asked { key, weight, grace, charges, places })) = parsed else { return Err(unreadable(text)) };
        let [place] = places.as_slice() else { return Err(unreadable(text)) };
        let key = self.joint(&key, &text::charges_of(&charges))?;
        let has_name = |i: usize| *self.group.names()[i] == *name;
        let part = text::part_of(all, has_name, |child| child.permit_from_text(place))?;
        let part = part.ok_or_else(|| Error::ForeignPermit { limit: self.group.base.name.to_string() })?;
        Ok(self.hand_out_place(part.child, part.permit, self.wish((&key, weight), grace)))
    }
}
