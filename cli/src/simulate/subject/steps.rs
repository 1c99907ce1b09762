//! The events of a simulation.

use super::super::measure::{Bin, Verdict};
use super::{Asked, Callers, End, Ends, NAME, Subject, Unanswered, Waiting, us};
use crate::failure::Failure;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use workglow_limit::embed::{Joined, Line, Outcome, Waiter};
use workglow_limit::{Decision, RawPermit};

impl Subject<'_> {
    /// The time of the next event without a request.
    pub(super) fn next(&self) -> Option<u64> {
        let end = self.ends.peek().map(|Reverse(end)| end.at);
        end.into_iter().chain(self.due.first().map(|(at, ..)| *at)).min()
    }

    /// Runs all events up to this time, and sets the clock to it.
    pub(super) fn run_until(&mut self, to: u64) -> Result<(), Failure> {
        while let Some(at) = self.next().filter(|at| *at <= to) {
            self.move_to(at)?;
            if self.ends.peek().is_some_and(|Reverse(end)| end.at <= at) {
                let Some(Reverse(end)) = self.ends.pop() else { break };
                self.end(&end)?;
            } else if let Some((.., key)) = self.due.pop_first() {
                self.advance(&key)?;
            }
        }
        self.move_to(to)
    }

    /// Moves the clock, and records the usage at the start of each bin.
    fn move_to(&mut self, to: u64) -> Result<(), Failure> {
        if let Some(series) = &mut self.series {
            series.extend_to(to);
            while self.series.as_ref().is_some_and(|series| series.ends() <= to) {
                let ends = self.series.as_ref().map_or(to, |series| series.ends());
                self.set_clock(ends);
                let used = share(&self.limiter.peek(&self.fullest, 1)?);
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
    pub(super) fn decide(&mut self, asked: &Asked) -> Result<(), Unanswered> {
        let decision = self.limiter.decide(&asked.start.key, asked.request.weight)?;
        self.see(asked, &decision);
        match decision.permit {
            Some(permit) => Ok(self.start(asked, permit)?),
            None => Ok(self.deny(asked, decision.retry_after, decision.denied_by.as_deref())?),
        }
    }

    /// Requests a start as `acquire` does.
    pub(super) fn join(&mut self, asked: &Asked, timeout: Option<Duration>) -> Result<(), Unanswered> {
        let (key, line) = (&asked.start.key, &asked.start.line);
        let mut waiting = self.lines.remove(line).unwrap_or_else(|| {
            for at in self.ends_awaited(asked) {
                self.lines_at.entry(at).or_default().insert(line.clone());
            }
            Waiting { line: Line::new(self.limiter.clone()), waiters: BTreeMap::new(), due: None, is_woken: false }
        });
        let joined = waiting.line.join(Waiter::new(key, asked.request.weight).timeout(timeout));
        if let Ok(Joined::Waiting(id)) = joined {
            waiting.waiters.insert(id, asked.clone());
            self.waiting += 1;
            self.found.most_waiting = self.found.most_waiting.max(self.waiting);
            let all = self.waiting;
            let bin = self.bin();
            bin.waiting = bin.waiting.max(all);
        }
        self.lines.insert(line.clone(), waiting);
        let answered = match joined {
            Ok(Joined::Waiting(_)) => Ok(()),
            Ok(Joined::Done(outcome)) => self.over(asked, outcome).map_err(Unanswered::from),
            Err(error) => Err(error.into()),
        };
        self.schedule(asked);
        answered
    }

    /// The bounds with running starts, each with the key that the request has there.
    fn ends_awaited(&self, asked: &Asked) -> Vec<(usize, u32)> {
        let bounds = self.bounds.iter().enumerate().filter(|(_, bound)| bound.at_once().is_some());
        bounds.map(|(i, bound)| (i, asked.start.charges[bound.part].0)).collect()
    }

    /// Handles the end of a wait, or a start without one.
    fn over(&mut self, asked: &Asked, outcome: Outcome) -> Result<(), Failure> {
        match outcome {
            Outcome::Admitted(permit) => {
                let seen = self.limiter.peek(&asked.start.key, 1)?;
                self.see(asked, &seen);
                self.start(asked, permit)
            }
            Outcome::Expired(after) => {
                // A waiter is told when, and not by which part.
                let seen = self.limiter.peek(&asked.start.key, asked.request.weight)?;
                self.deny(asked, after, seen.denied_by.as_deref())
            }
            Outcome::Failed(error) => Err(error.into()),
        }
    }

    /// Advances a line: due waiters start.
    fn advance(&mut self, key: &Rc<str>) -> Result<(), Failure> {
        let Some(mut waiting) = self.lines.remove(key) else { return Ok(()) };
        waiting.due = None;
        let Some(first) = waiting.waiters.first_key_value().map(|(_, first)| first.clone()) else { return Ok(()) };
        let expires = self.expires(&first);
        if waiting.is_woken && self.is_full(&first) && expires.is_none_or(|at| at > self.now) {
            // Another line has taken what the end of a start had freed.
            waiting.due = expires.map(|at| (at, first.number));
            self.due.extend(waiting.due.map(|(at, number)| (at, number, key.clone())));
            self.lines.insert(key.clone(), waiting);
            return Ok(());
        }
        waiting.is_woken = false;
        let mut over = Vec::new();
        waiting.line.advance(&mut over);
        let ended: Vec<_> =
            over.into_iter().filter_map(|(id, outcome)| Some((waiting.waiters.remove(&id)?, outcome))).collect();
        self.waiting -= ended.len() as u64;
        if ended.iter().any(|(_, outcome)| !matches!(outcome, Outcome::Admitted(_))) {
            // The first in line may now need fewer units than those that left.
            waiting.line.wake(Some(key));
        }
        self.lines.insert(key.clone(), waiting);
        for (asked, outcome) in ended {
            self.over(&asked, outcome)?;
        }
        self.schedule(&first);
        Ok(())
    }

    /// Handles the end of a job or of its lease.
    fn end(&mut self, end: &End) -> Result<(), Failure> {
        if let Ends::Job(permit, _) = &end.what {
            self.limiter.complete(permit)?;
        }
        let mut woken: Vec<Rc<str>> = Vec::new();
        for (i, bound) in self.bounds.iter_mut().enumerate() {
            let Some((_, lease)) = bound.at_once() else { continue };
            let ends = match end.what {
                Ends::Lease(of) => of == i,
                // Its lease has not ended before.
                Ends::Job(_, lasts) => lease.is_none_or(|lease| lasts <= lease),
            };
            if ends {
                let (key, weight) = end.start.charges[bound.part];
                bound.end(key, weight);
                woken.extend(self.lines_at.get(&(i, key)).into_iter().flatten().cloned());
            }
        }
        for key in woken {
            let Some(waiting) = self.lines.get_mut(&key) else { continue };
            waiting.line.wake(Some(&key));
            waiting.is_woken = true;
            if let Some((_, first)) = waiting.waiters.first_key_value() {
                let first = first.clone();
                self.schedule(&first);
            }
        }
        Ok(())
    }

    /// Whether a start has to wait until another one ends.
    fn is_full(&self, asked: &Asked) -> bool {
        let is_full = |bound: &super::Bound| {
            let (key, weight) = asked.start.charges[bound.part];
            bound.is_full(key, weight)
        };
        self.bounds.iter().any(is_full)
    }

    /// The time at which a waiter gives up.
    fn expires(&self, asked: &Asked) -> Option<u64> {
        match self.callers {
            Callers::Wait(Some(timeout)) => Some(asked.request.at.saturating_add(us(timeout)).max(self.now)),
            _ => None,
        }
    }

    /// Schedules the next advance of the line of this request, or forgets the line if nobody waits there.
    fn schedule(&mut self, of: &Asked) {
        let key = &of.start.line;
        let Some(waiting) = self.lines.get_mut(key) else { return };
        if let Some((due, number)) = waiting.due.take() {
            self.due.remove(&(due, number, key.clone()));
        }
        let Some(first) = waiting.waiters.first_key_value().map(|(_, first)| first.clone()) else {
            self.lines.remove(key);
            for at in self.ends_awaited(of) {
                if let Some(lines) = self.lines_at.get_mut(&at) {
                    lines.remove(key);
                    if lines.is_empty() {
                        self.lines_at.remove(&at);
                    }
                }
            }
            return;
        };
        let mut next = waiting.line.next().map(|nap| self.now.saturating_add(us(nap)));
        // A line polls for released units. Here units are released only by `end`, so polling is skipped.
        if next.is_some_and(|next| next > self.now) && self.is_full(&first) {
            next = self.expires(&first);
        }
        if let (Some(next), Some(waiting)) = (next, self.lines.get_mut(key)) {
            waiting.due = Some((next, first.number));
            self.due.insert((next, first.number, key.clone()));
        }
    }

    fn start(&mut self, asked: &Asked, permit: RawPermit) -> Result<(), Failure> {
        let (now, wait) = (self.now, self.now - asked.request.at);
        let duration = asked.request.duration;
        self.last_start = now;
        self.count(&asked.request, |counts, weight| {
            counts.admitted += 1;
            counts.units += weight;
            counts.waited += u64::from(wait > 0);
        });
        for bound in &mut self.bounds {
            let (key, weight) = asked.start.charges[bound.part];
            bound.start(key, weight, now, duration);
        }
        self.found.waits.add(wait);
        self.bin().admitted += asked.request.weight;
        match duration {
            // With a bound on running jobs, a job of zero duration is an event, too, because others may wait for its end.
            Some(duration) if duration > 0 || self.counts_running => {
                let leases = self.bounds.iter().enumerate().filter_map(|(i, bound)| Some((i, bound.at_once()?.1?)));
                let ends: Vec<(u64, Ends)> = leases
                    .filter(|(_, lease)| duration > *lease)
                    .map(|(i, lease)| (lease, Ends::Lease(i)))
                    .chain([(duration, Ends::Job(permit, duration))])
                    .collect();
                for (lasts, what) in ends {
                    self.started += 1;
                    let (at, number) = (now.saturating_add(lasts), self.started);
                    self.ends.push(Reverse(End { at, number, start: asked.start.clone(), what }));
                }
            }
            _ => self.limiter.complete(&permit)?,
        }
        self.answer(asked.verdict, Verdict::Admitted(wait))
    }

    fn deny(&mut self, asked: &Asked, after: Duration, by: Option<&str>) -> Result<(), Failure> {
        self.count(&asked.request, |counts, _| counts.denied += 1);
        self.bin().denied += asked.request.weight;
        let part = by.and_then(|by| by.strip_prefix(NAME)?.strip_prefix('/'));
        let part = part.and_then(|part| self.parts.iter().position(|name| name == part));
        if let Some(part) = part {
            *self.found.denied_by.entry(self.parts[part].clone()).or_default() += 1;
        }
        self.answer(asked.verdict, Verdict::Denied(us(after), part))
    }

    /// Records the share that a start's key uses.
    fn see(&mut self, asked: &Asked, decision: &Decision) {
        let share = share(decision);
        let bin = self.bin();
        if share >= bin.used {
            bin.used = share;
            self.fullest = asked.start.key.clone();
        }
    }
}

/// The share of a limit in use.
fn share(seen: &Decision) -> f64 {
    seen.limit.saturating_sub(seen.remaining) as f64 / seen.limit.max(1) as f64
}
