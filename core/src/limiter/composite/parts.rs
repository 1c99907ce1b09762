//! What a permit or place of a composite consists of, and how several places are made to come together.

use super::Child;
use crate::decision::Decision;
use crate::error::Result;
use crate::limiter::{Attempt, LOOK_AGAIN, Presented, Reserved};
use crate::permit::RawPermit;
use std::sync::Arc;
use std::time::Duration;

/// How often places are exchanged before they are taken as they are: others may move them all the time. A part that does
/// not fit is late when it is presented, and exchanged then.
pub(super) const ROUNDS: usize = 4;

/// A permit or place that is out.
#[derive(Debug)]
pub(super) struct Out {
    pub parts: Vec<Part>,
    pub state: State,
    /// What it was reserved for; nothing, if it was not.
    pub wish: Option<Arc<Wish>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Place,
    /// A thread is at it, and has the parts.
    Presented,
    Started,
}

/// What a place was asked for with.
#[derive(Debug)]
pub(super) struct Wish {
    pub key: Box<str>,
    pub weight: u64,
    pub grace: Option<Duration>,
}

/// What a permit or place has of one child.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub child: Held,
    /// Nothing of a child without places until the start, and of one that could not say a time.
    pub permit: Option<RawPermit>,
    pub has_place: bool,
}

/// A child that a permit was taken from.
#[derive(Clone)]
pub(super) struct Held(pub Child);

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name())
    }
}

/// Ends all of them, also after one that could not be; the first error is told.
pub(super) fn end_all(parts: &[Part], end: impl Fn(&Child, &RawPermit) -> Result<()>) -> Result<()> {
    let mut first = Ok(());
    for part in parts {
        if let Some(permit) = &part.permit {
            first = first.and(end(&part.child.0, permit));
        }
    }
    first
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
    pub fn is_late(&self) -> bool {
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
pub(super) fn latest(parts: &[Part]) -> i64 {
    parts.iter().filter_map(Part::span).map(|(first, _)| first).max().unwrap_or(0).max(0)
}

fn from_us(us: i64) -> Duration {
    Duration::from_micros(us.max(0) as u64)
}

/// Exchanges places until all can be used at the same moment, no sooner than after `start`: which is after how long, or,
/// beyond `max_wait`, when there would be room.
pub(super) fn fit(
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
            if let Some(place) = part.permit.take() {
                part.child.0.cancel_place(&place)?;
            }
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

/// How long a child without places is certain to deny: a gate opens when it says, but somebody may complete at any time.
pub(super) fn closed_for(seen: &Decision) -> Duration {
    seen.retry_after.min(seen.reset_after)
}

/// Takes what the children without places have to give, or nothing and how long to wait.
pub(super) fn claim_others(wish: &Wish, parts: &mut [Part]) -> Result<Option<Duration>> {
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
                given_back?;
                let seen = parts[i].child.0.peek(&wish.key, wish.weight)?;
                return Ok(Some(after.min(closed_for(&seen).max(LOOK_AGAIN))));
            }
        }
    }
    Ok(None)
}

/// All of these, also after one that could not be; the first error is told.
fn give_back<'p>(parts: impl Iterator<Item = &'p mut Part>) -> Result<()> {
    let mut first = Ok(());
    for part in parts {
        first = first.and(part.give_back());
    }
    first
}

fn give_back_others(parts: &mut [Part]) -> Result<()> {
    give_back(parts.iter_mut().filter(|part| !part.has_place))
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
pub(super) fn start_all(parts: &mut [Part], rounds: usize) -> Result<bool> {
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
        let is_held = |(j, part): &(usize, &mut Part)| started.contains(j) || !part.has_place;
        let given_back = give_back(parts.iter_mut().enumerate().filter(is_held).map(|(_, part)| part));
        return error.map_or(given_back.map(|()| false), Err);
    }
    Ok(true)
}
