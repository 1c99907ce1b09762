//! Places of a composite: one at each child whose room is a matter of time, such that they come together.
//!
//! What is held while a start waits: its places, and nothing else. Units of children that have no places (concurrency
//! limits, limiters of one's own) are taken at the moment of the start and given back at once if it cannot be: held for
//! longer, they would keep out others who could run. A waiter in `acquire` gives its places back too while such a child
//! is full, because they are of no use to it, and looks again; one who holds a place by `reserve` keeps it, and those
//! parts of it that became late meanwhile are exchanged.

use super::{Child, CompositeLimiter, Held, end_all};
use crate::error::{Error, Result};
use crate::limiter::{Attempt, Limiter, Presented, Progress, Reserved, Step, Wait, null, own, unsupported};
use crate::permit::RawPermit;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often places are exchanged before they are taken as they are: others may move them all the time. A part that does
/// not fit is late when it is presented, and exchanged then.
const ROUNDS: usize = 4;

/// A permit or place that is out.
#[derive(Debug)]
pub(super) struct Out {
    pub parts: Vec<Part>,
    state: State,
    /// What it was reserved for; nothing, if it was not.
    wish: Option<Arc<Wish>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Place,
    /// A thread is at it, and has the parts.
    Presented,
    Started,
}

/// What a place was asked for with.
#[derive(Debug)]
struct Wish {
    key: Box<str>,
    weight: u64,
    grace: Option<Duration>,
}

/// What a permit or place has of one child.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub child: Held,
    /// Nothing of a child without places until the start, and of one that could not say a time.
    pub permit: Option<RawPermit>,
    has_place: bool,
}

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

impl Out {
    /// A start.
    pub fn started(parts: Vec<Part>) -> Out {
        Out { parts, state: State::Started, wish: None }
    }
}

impl Part {
    pub fn of(child: &Child, permit: Option<RawPermit>) -> Part {
        Part { child: Held(child.clone()), permit, has_place: child.has_places() }
    }

    /// From when until when it can be used, in µs from now. `None`: at any time, or there is none.
    pub fn span(&self) -> Option<(i64, i64)> {
        self.child.0.span(self.permit.as_ref()?)
    }

    /// Can a start that begins after so long still use it, with half of its grace to spare?
    fn fits(&self, start: i64) -> bool {
        let some_time = self.span();
        self.permit.is_some()
            && some_time
                .is_none_or(|(first, last)| start <= first.max(0).min(last) || start <= last - (last - first) / 2)
    }

    /// Is its time over, or is there none? Then a fresh one is needed.
    fn is_late(&self) -> bool {
        self.permit.is_none() || self.span().is_some_and(|(_, last)| last < 0)
    }

    fn give_back(&mut self) -> Result<()> {
        if let Some(permit) = &self.permit {
            self.child.0.cancel(permit)?;
            self.permit = None;
        }
        Ok(())
    }
}

/// When all of them are ready, in µs from now; at least 0.
fn latest(parts: &[Part]) -> i64 {
    parts.iter().filter_map(Part::span).map(|(first, _)| first).max().unwrap_or(0).max(0)
}

fn from_us(us: i64) -> Duration {
    Duration::from_micros(us.max(0) as u64)
}

/// Exchanges places until all can be used at the same moment, no sooner than after `start`: which is after how long, or,
/// beyond `max_wait`, when there would be room.
fn fit(
    wish: &Wish,
    parts: &mut [Part],
    start: Duration,
    max_wait: Option<Duration>,
) -> Result<Result<Duration, Duration>> {
    let mut start = i64::try_from(start.as_micros()).unwrap_or(i64::MAX);
    for _ in 0..ROUNDS {
        let mut is_moved = false;
        // Always in the order of the children.
        for i in 0..parts.len() {
            start = start.max(latest(parts));
            let part = &mut parts[i];
            if !part.has_place || part.fits(start) {
                continue;
            }
            part.give_back()?;
            match part.child.0.reserve_later(&wish.key, wish.weight, from_us(start), max_wait, wish.grace)? {
                Reserved::Place { place, .. } => part.permit = Some(place),
                Reserved::Denied(after) => return Ok(Err(after)),
            }
            // From here on a place says when: by the clock of its limit, which does not stand still.
            (is_moved, start) = (true, 0);
        }
        if !is_moved {
            break;
        }
    }
    Ok(Ok(from_us(start.max(latest(parts)))))
}

/// Takes what the children without places have to give, or nothing and how long to wait.
fn claim_others(wish: &Wish, parts: &mut [Part]) -> Result<Option<Duration>> {
    for i in 0..parts.len() {
        let part = &mut parts[i];
        if part.has_place {
            continue;
        }
        match part.child.0.attempt(&wish.key, wish.weight) {
            Ok(Attempt::Admitted(permit)) => part.permit = Some(permit),
            other => {
                let given_back = give_back_others(parts);
                let Attempt::Denied(after) = other? else { unreachable!("handled above") };
                return given_back.map(|()| Some(after));
            }
        }
    }
    Ok(None)
}

fn give_back_others(parts: &mut [Part]) -> Result<()> {
    parts.iter_mut().filter(|part| !part.has_place).fold(Ok(()), |all, part| all.and(part.give_back()))
}

/// Starts with a place that is due; `None`: not yet. One that came too late is exchanged for a fresh one, which may come at
/// once: how often that one is presented too, which may be late again if its grace is short, `rounds` says.
fn start(part: &mut Part, rounds: usize) -> Result<Option<()>> {
    for _ in 0..rounds {
        let Some(place) = part.permit else { return Ok(None) };
        let after = match part.child.0.present(&place)? {
            Presented::Started(permit) => {
                part.permit = Some(permit);
                return Ok(Some(()));
            }
            Presented::Wait { place, after } => {
                part.permit = Some(place);
                after
            }
        };
        if !after.is_zero() {
            break;
        }
    }
    Ok(None)
}

/// Starts with all places, or with none and `false`: one was late, or overtaken by a gate or another policy.
fn start_all(parts: &mut [Part], rounds: usize) -> Result<bool> {
    // First those that are likely to be exchanged.
    let places = (0..parts.len()).filter(|&i| parts[i].has_place);
    let (late, good): (Vec<_>, Vec<_>) = places.partition(|&i| parts[i].is_late());
    let mut started = Vec::new();
    for i in late.into_iter().chain(good) {
        let error = match start(&mut parts[i], rounds) {
            Ok(Some(())) => {
                started.push(i);
                continue;
            }
            Ok(None) => None,
            Err(e) => Some(e),
        };
        // Those that have started have to be places again.
        let given_back = started.iter().fold(Ok(()), |all: Result<()>, &i| all.and(parts[i].give_back()));
        let given_back = given_back.and(give_back_others(parts));
        return error.map_or(given_back.map(|()| false), Err);
    }
    Ok(true)
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
                let given_back = end_all(&parts, |child, place| child.cancel(place));
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
            return end_all(&parts, |child, permit| child.cancel(permit)).and_then(|()| Err(gone()));
        };
        (found.parts, found.state) = (parts, state);
        turn
    }

    /// When to look again, if a child without places has no room.
    fn busy(&self, key: &str, weight: u64) -> Result<Option<Duration>> {
        let mut busy = None;
        for child in self.children().iter().filter(|child| !child.has_places()) {
            let seen = child.peek(key, weight)?;
            if !seen.admitted {
                busy = busy.max(Some(seen.retry_after));
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
                Reserved::Denied(after) => return Ok(Step::Expired(after)),
            }
        }
    }
}
