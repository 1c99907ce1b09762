//! Places of a composite: one at each child whose room is a matter of time, such that they come together.
//!
//! What is held while a start waits: its places, and nothing else. Units of children that have no places (concurrency
//! limits, limiters of one's own) are taken at the moment of the start and given back at once if it cannot be: held for
//! longer, they would keep out others who could run. A waiter in `acquire` gives its places back too while such a child
//! is full, because they are of no use to it, and looks again; one who holds a place by `reserve` keeps it, and those
//! parts of it that became late meanwhile are exchanged.

use super::CompositeLimiter;
use super::parts::{Out, Part, ROUNDS, State, Wish, claim_others, closed_for, end_all, fit, latest, start_all};
use crate::error::{Error, Result};
use crate::limiter::{LOOK_AGAIN, Limiter, Presented, Progress, Reserved, Step, Wait, null, own, unsupported};
use crate::permit::RawPermit;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What came of presenting.
enum Turn {
    Started,
    /// Not for so long.
    Later(Duration),
    /// Its time has come, but a child without places has no room, and says to look again after so long.
    Busy(Duration),
    /// It was used before: this one instead, after so long.
    Fresh(RawPermit, Duration),
}

/// Starts, if all that is needed is there. A place that had to be exchanged does not start, but with more than one round.
fn present(wish: &Wish, parts: &mut [Part], rounds: usize) -> Result<Turn> {
    let is_late = parts.iter().any(|part| part.has_place && part.is_late());
    if latest(parts) == 0 && !(is_late && rounds == 1) {
        for _ in 0..rounds {
            if let Some(after) = claim_others(wish, parts)? {
                return Ok(Turn::Busy(after));
            }
            if start_all(parts, rounds)? {
                return Ok(Turn::Started);
            }
            if !fit(wish, parts, Duration::ZERO, None)?.is_ok_and(|after| after.is_zero()) {
                break;
            }
        }
    }
    let (Ok(after) | Err(after)) = fit(wish, parts, Duration::ZERO, None)?;
    Ok(Turn::Later(after))
}

impl CompositeLimiter {
    /// Takes places that fit together at these children, or none.
    fn reserve_at(
        &self,
        mut parts: Vec<Part>,
        wish: Arc<Wish>,
        delay: Duration,
        max_wait: Option<Duration>,
    ) -> Result<Reserved> {
        let taken = self.take_places(&mut parts, &wish, delay, max_wait);
        match taken {
            Ok(Ok(after)) if max_wait.is_none_or(|most| after <= most) => {
                let place = self.hand_out(Out { parts, state: State::Place, wish: Some(wish) });
                Ok(Reserved::Place { place, after })
            }
            other => {
                let given_back = end_all(&parts, |child, place| child.cancel_place(place));
                let (Ok(after) | Err(after)) = other?;
                given_back.map(|()| Reserved::Denied(after))
            }
        }
    }

    fn take_places(
        &self,
        parts: &mut [Part],
        wish: &Wish,
        delay: Duration,
        max_wait: Option<Duration>,
    ) -> Result<Result<Duration, Duration>> {
        // The one that comes last says when, so that mostly no other has to be moved. And whoever would refuse this weight
        // says so before anything is taken.
        let mut slowest = None;
        for (i, part) in parts.iter().enumerate() {
            let after = part.child.0.peek(&wish.key, wish.weight)?.retry_after;
            if part.has_place && slowest.is_none_or(|(_, most)| after > most) {
                slowest = Some((i, after));
            }
        }
        let Some((i, _)) = slowest else {
            return unsupported("reserve", "a composite without a limit of starts in time: nobody knows when jobs end");
        };
        match parts[i].child.0.reserve_later(&wish.key, wish.weight, delay, max_wait, wish.grace)? {
            Reserved::Place { place, .. } => parts[i].permit = Some(place),
            Reserved::Denied(after) => return Ok(Err(after)),
        }
        fit(wish, parts, Duration::ZERO, max_wait)
    }

    pub(super) fn do_reserve(
        &self,
        (key, weight): (&str, u64),
        delay: Duration,
        max_wait: Option<Duration>,
        grace: Option<Duration>,
    ) -> Result<Reserved> {
        null::check(key, weight)?;
        let parts = self.children().iter().map(|child| Part::of(child, None)).collect();
        self.reserve_at(parts, Arc::new(Wish { key: key.into(), weight, grace }), delay, max_wait)
    }

    pub(super) fn do_present(&self, place: &RawPermit) -> Result<Presented> {
        Ok(match self.turn(place, true)? {
            Turn::Started => Presented::Started(*place),
            Turn::Later(after) | Turn::Busy(after) => Presented::Wait { place: *place, after },
            Turn::Fresh(place, after) => Presented::Wait { place, after },
        })
    }

    /// Presents a place. If it has to wait for a child without places, its parts are made to fit the next look, or left
    /// alone.
    fn turn(&self, place: &RawPermit, keeps: bool) -> Result<Turn> {
        own(place, self.id, self.name())?;
        let gone = || Error::invalid("place", "used, given back or of another process", "a place that is still held");
        let (wish, mut parts, state) = {
            let mut out = self.out.lock();
            let found = out.get_mut(&place.a).ok_or_else(gone)?;
            let wish = found.wish.clone().ok_or_else(gone)?;
            match found.state {
                State::Place => {
                    found.state = State::Presented;
                    (wish, std::mem::take(&mut found.parts), State::Place)
                }
                state => (wish, found.parts.clone(), state),
            }
        };
        if state != State::Place {
            parts.iter_mut().for_each(|part| part.permit = None);
            if parts.is_empty() {
                // Another thread is presenting it right now.
                parts = self.children().iter().map(|child| Part::of(child, None)).collect();
            }
            return Ok(match self.reserve_at(parts, wish, Duration::ZERO, None)? {
                Reserved::Place { place, after } => Turn::Fresh(place, after),
                Reserved::Denied(after) => Turn::Later(after),
            });
        }
        let mut turn = present(&wish, &mut parts, if keeps { 1 } else { ROUNDS });
        if let (true, Ok(Turn::Busy(after))) = (keeps, &turn) {
            turn = fit(&wish, &mut parts, *after, None).map(|(Ok(after) | Err(after))| Turn::Later(after));
        }
        let state = if matches!(turn, Ok(Turn::Started)) { State::Started } else { State::Place };
        let mut out = self.out.lock();
        let Some(found) = out.get_mut(&place.a) else {
            // It was ended meanwhile.
            drop(out);
            let cancelled = match state {
                State::Started => end_all(&parts, |child, permit| child.cancel(permit)),
                _ => end_all(&parts, |child, place| child.cancel_place(place)),
            };
            return cancelled.and_then(|()| Err(gone()));
        };
        (found.parts, found.state) = (parts, state);
        turn
    }

    /// If a child without places has no room: for how long, if that is certain.
    fn busy(&self, key: &str, weight: u64) -> Result<Option<Duration>> {
        let mut busy = None;
        for child in self.children().iter().filter(|child| !child.has_places()) {
            let seen = child.peek(key, weight)?;
            if !seen.admitted {
                busy = busy.max(Some(closed_for(&seen)));
            }
        }
        Ok(busy)
    }

    pub(super) fn do_step(&self, wait: &mut Wait) -> Result<Step> {
        null::check(&wait.key, wait.weight)?;
        let waited = wait.started.get_or_insert_with(Instant::now).elapsed();
        let left = wait.timeout.map(|timeout| timeout.saturating_sub(waited));
        loop {
            if let Progress::Place(place) = wait.progress {
                let (next, after) = match self.turn(&place, false)? {
                    Turn::Started => {
                        wait.progress = Progress::Nothing;
                        return Ok(Step::Admitted(place));
                    }
                    Turn::Later(after) => (place, after),
                    Turn::Fresh(fresh, after) => (fresh, after),
                    Turn::Busy(after) => {
                        if let Some(wish) = self.out.lock().get(&place.a).and_then(|out| out.wish.clone()) {
                            (wait.key, wait.weight) = (wish.key.clone(), wish.weight);
                        }
                        self.give_up(wait)?;
                        return Ok(wait.again_after(after, waited));
                    }
                };
                wait.progress = Progress::Place(next);
                if left.is_some_and(|left| after > left) {
                    self.give_up(wait)?;
                    return Ok(Step::Expired(after));
                }
                if !after.is_zero() {
                    return Ok(Step::Sleep(after));
                }
                continue;
            }
            if let Some(after) = self.busy(&wait.key, wait.weight)? {
                return Ok(wait.again_after(after, waited));
            }
            if self.look(&wait.key, wait.weight)?.admitted
                && let Ok(permit) = self.take_all(&wait.key, wait.weight)?
            {
                return Ok(Step::Admitted(permit));
            }
            if !self.has_places() {
                // Somebody was faster.
                return Ok(wait.again_after(Duration::ZERO, waited));
            }
            match self.reserve(&wait.key, wait.weight, left, None)? {
                Reserved::Place { place, .. } => wait.progress = Progress::Place(place),
                // So many wait already that no more places are kept; there will be one when some of them have started.
                Reserved::Denied(after) if !self.has_bounded_queue() && left.is_none_or(|left| after <= left) => {
                    return Ok(wait.again_after(after.min(LOOK_AGAIN), waited));
                }
                Reserved::Denied(after) => return Ok(Step::Expired(after)),
            }
        }
    }
}
