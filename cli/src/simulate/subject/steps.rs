//! The events of a simulation.

use super::super::guarantee::Kind;
use super::super::measure::{Bin, Verdict};
use super::super::request::{Keys, Request};
use super::{Asked, Callers, End, NAME, Subject, Waiting, us};
use crate::failure::Failure;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;
use workglow_limit::embed::{Joined, Line, Outcome, Waiter};
use workglow_limit::{Decision, RawPermit};

impl Subject<'_> {
    /// The time of the next event without a request.
    pub(super) fn next(&self) -> Option<u64> {
        let end = self.ends.peek().map(|Reverse(end)| end.at);
        end.into_iter().chain(self.due.first().map(|(at, _)| *at)).min()
    }

    /// Runs all events up to this time, and sets the clock to it.
    pub(super) fn run_until(&mut self, to: u64, keys: &Keys) -> Result<(), Failure> {
        while let Some(at) = self.next().filter(|at| *at <= to) {
            self.move_to(at, keys)?;
            if self.ends.peek().is_some_and(|Reverse(end)| end.at <= at) {
                let Some(Reverse(end)) = self.ends.pop() else { break };
                self.end(end, keys)?;
            } else if let Some((_, key)) = self.due.pop_first() {
                self.advance(key, keys)?;
            }
        }
        self.move_to(to, keys)
    }

    /// Moves the clock, and records the usage at the start of each bin.
    fn move_to(&mut self, to: u64, keys: &Keys) -> Result<(), Failure> {
        if let Some(series) = &mut self.series {
            series.extend_to(to);
            while self.series.as_ref().is_some_and(|series| series.ends() <= to) {
                let ends = self.series.as_ref().map_or(to, |series| series.ends());
                self.set_clock(ends);
                let used = match self.keys.is_empty() {
                    true => 0.0,
                    false => share(&self.limiter().peek(keys.text(self.fullest), 1)?),
                };
                let bin = Bin { waiting: self.waiting, used, ..Bin::default() };
                self.series.as_mut().expect("it is there").begin(bin);
            }
        }
        self.set_clock(to);
        self.now = to;
        Ok(())
    }

    fn set_clock(&self, to: u64) {
        self.clock.advance(Duration::from_micros(to).saturating_sub(self.clock.now()));
    }

    /// Requests a start as `try_acquire` does.
    pub(super) fn decide(&mut self, request: Request, number: Option<u64>, keys: &Keys) -> Result<(), Asked> {
        let decision = self.limiter().decide(keys.text(request.key), request.weight)?;
        self.see(request.key, &decision);
        match decision.permit {
            Some(permit) => Ok(self.start(request, number, permit)?),
            None => {
                if let (Some(by), true) = (&decision.denied_by, self.guarantees.len() > 1) {
                    let by = by.strip_prefix(NAME).map_or(&**by, |part| part.trim_start_matches('/'));
                    if !by.is_empty() {
                        *self.found.denied_by.entry(by.to_owned()).or_default() += 1;
                    }
                }
                Ok(self.deny(request, number, decision.retry_after)?)
            }
        }
    }

    /// Requests a start as `acquire` does.
    pub(super) fn join(
        &mut self,
        request: Request,
        number: Option<u64>,
        timeout: Option<Duration>,
        keys: &Keys,
    ) -> Result<(), Asked> {
        let mut waiting = self.key(request.key).line.take().unwrap_or_else(|| Waiting {
            line: Line::new(self.limiter().clone()),
            waiters: BTreeMap::new(),
            due: None,
        });
        let waiter = Waiter::new(keys.text(request.key), request.weight).timeout(timeout);
        let joined = waiting.line.join(waiter);
        if let Ok(Joined::Waiting(id)) = joined {
            waiting.waiters.insert(id, (request, number));
            self.waiting += 1;
            self.found.most_waiting = self.found.most_waiting.max(self.waiting);
            let all = self.waiting;
            let bin = self.bin();
            bin.waiting = bin.waiting.max(all);
        }
        self.key(request.key).line = Some(waiting);
        let answered = match joined? {
            Joined::Waiting(_) => Ok(()),
            Joined::Done(outcome) => self.over(request, number, outcome, keys),
        };
        self.schedule(request.key);
        Ok(answered?)
    }

    /// Handles the end of a wait, or a start without one.
    fn over(&mut self, request: Request, number: Option<u64>, outcome: Outcome, keys: &Keys) -> Result<(), Failure> {
        match outcome {
            Outcome::Admitted(permit) => {
                let seen = self.limiter().peek(keys.text(request.key), 1)?;
                self.see(request.key, &seen);
                self.start(request, number, permit)
            }
            Outcome::Expired(after) => self.deny(request, number, after),
            Outcome::Failed(error) => Err(error.into()),
        }
    }

    /// Advances the line of a key: due waiters start.
    fn advance(&mut self, key: u32, keys: &Keys) -> Result<(), Failure> {
        let Some(mut waiting) = self.key(key).line.take() else { return Ok(()) };
        waiting.due = None;
        let mut over = Vec::new();
        waiting.line.advance(&mut over);
        let ended: Vec<_> =
            over.into_iter().filter_map(|(id, outcome)| Some((waiting.waiters.remove(&id)?, outcome))).collect();
        self.waiting -= ended.len() as u64;
        if ended.iter().any(|(_, outcome)| !matches!(outcome, Outcome::Admitted(_))) {
            // The first in line may now need fewer units than those that left.
            waiting.line.wake(Some(keys.text(key)));
        }
        self.key(key).line = Some(waiting);
        for ((request, number), outcome) in ended {
            self.over(request, number, outcome, keys)?;
        }
        self.schedule(key);
        Ok(())
    }

    /// Handles the end of a job or of its lease.
    fn end(&mut self, end: End, keys: &Keys) -> Result<(), Failure> {
        if !end.is_lease {
            self.limiter().complete(&end.permit)?;
        }
        let key = self.key(end.key);
        key.running -= end.weight;
        if let Some(waiting) = &mut key.line {
            waiting.line.wake(Some(keys.text(end.key)));
            self.schedule(end.key);
        }
        Ok(())
    }

    /// Schedules the next advance of a key's line.
    fn schedule(&mut self, id: u32) {
        let (now, most_running, callers) = (self.now, self.most_running, self.callers);
        let key = &mut self.keys[id as usize];
        let running = key.running;
        let Some(waiting) = &mut key.line else { return };
        if let Some(due) = waiting.due.take() {
            self.due.remove(&(due, id));
        }
        let Some((request, _)) = waiting.waiters.first_key_value().map(|(_, first)| *first) else {
            key.line = None;
            return;
        };
        let mut next = waiting.line.next().map(|nap| now.saturating_add(us(nap)));
        // A line polls for released units. Here units are released only by `end`, so polling is skipped.
        let is_full = most_running.is_some_and(|most| running + request.weight > most);
        if is_full && next.is_some_and(|next| next > now) {
            next = match callers {
                Callers::Wait(Some(timeout)) => Some(request.at.saturating_add(us(timeout)).max(now)),
                _ => None,
            };
        }
        waiting.due = next;
        self.due.extend(next.map(|next| (next, id)));
    }

    fn start(&mut self, request: Request, number: Option<u64>, permit: RawPermit) -> Result<(), Failure> {
        let Request { at, key, weight, duration, .. } = request;
        let (now, wait) = (self.now, self.now - at);
        let of_key = &mut self.keys[key as usize];
        of_key.counts.admitted += 1;
        of_key.counts.units += weight;
        of_key.counts.waited += u64::from(wait > 0);
        of_key.counts.ran += u128::from(weight) * u128::from(duration.unwrap_or(0));
        for ((guarantee, window), most) in self.guarantees.iter().zip(&mut of_key.windows).zip(&mut self.found.most) {
            let units = match guarantee.kind {
                Kind::AtOnce { .. } => of_key.running + weight,
                _ => window.start(guarantee, now, weight),
            };
            *most = units.max(*most);
        }
        self.found.waits.add(wait);
        self.bin().admitted += weight;
        match duration {
            // With a bound on running jobs, a job of zero duration is an event, too, because others may wait for its end.
            Some(duration) if duration > 0 || self.most_running.is_some() => {
                self.keys[key as usize].running += weight;
                let mut end = |lasts: u64, weight, is_lease| {
                    self.started += 1;
                    let at = now.saturating_add(lasts);
                    self.ends.push(Reverse(End { at, number: self.started, key, weight, is_lease, permit }));
                };
                match duration > self.lease {
                    false => end(duration, weight, false),
                    true => {
                        end(self.lease, weight, true);
                        end(duration, 0, false);
                    }
                }
            }
            _ => self.limiter().complete(&permit)?,
        }
        self.answer(number, Verdict::Admitted(wait))
    }

    fn deny(&mut self, request: Request, number: Option<u64>, after: Duration) -> Result<(), Failure> {
        self.key(request.key).counts.denied += 1;
        self.bin().denied += request.weight;
        self.answer(number, Verdict::Denied(us(after)))
    }

    /// Records the share that a key uses.
    fn see(&mut self, key: u32, decision: &Decision) {
        let share = share(decision);
        let bin = self.bin();
        if share >= bin.used {
            bin.used = share;
            self.fullest = key;
        }
    }
}

/// The share of a limit in use.
fn share(seen: &Decision) -> f64 {
    seen.limit.saturating_sub(seen.remaining) as f64 / seen.limit.max(1) as f64
}
