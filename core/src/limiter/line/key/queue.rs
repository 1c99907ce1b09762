//! The queue of a key: who waits, for what, in which order, and how a wait ends.

use super::{KeyLine, Out, Pass, TakenStart};
use crate::decision::LOOK_AGAIN;
use crate::error::Error;
use crate::limiter::Limiter;
use crate::limiter::line::shown::NOTICES;
use crate::limiter::line::{First, Outcome, Rank};
use crate::permit::RawPermit;
use crate::policy::Share;
use crate::time::{Tick, from_ticks, patience_ticks};
use crate::waiting::MayWait;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most places that a line holds.
const MAX_PLACES: usize = 256;

/// No waiter has this rank.
pub(super) const LAST: Rank = (i32::MAX, u64::MAX);

/// What a waiter asks for. A place serves every waiter that asks for the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::limiter::line) struct Wanted {
    pub weight: u64,
    /// The key of a joint start, if it is not that of its line.
    joint: Option<Arc<str>>,
}

impl Wanted {
    /// Makes the request of a waiter in the line with this key.
    pub fn of(line: &str, key: &str, weight: u64) -> Wanted {
        Wanted { weight, joint: (key != line).then(|| key.into()) }
    }

    /// Returns its key in the line with this one.
    pub fn key<'a>(&'a self, line: &'a str) -> &'a str {
        self.joint.as_deref().unwrap_or(line)
    }

    /// The first possible entry of [`KeyLine::by_wanted`], and the one after the last.
    pub(super) fn entries(&self, until: Rank) -> Range<(Wanted, Rank)> {
        (self.clone(), (i32::MIN, 0))..(self.clone(), until)
    }
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub wanted: Wanted,
    pub since: Tick,
    /// [`Tick::MAX`]: none.
    pub deadline: Tick,
    /// A waiter whose start is further away than this waits elsewhere. [`Tick::MAX`]: never.
    pub hold: Tick,
    /// 0: the default.
    pub grace: Tick,
    /// The share of its tenant, if it is not the one that is kept.
    pub share: Option<Share>,
    /// [`KeyLine::units`] and [`KeyLine::gone`] before it joined at the end of the line. 0 if it joined elsewhere.
    pub units: u64,
    pub gone: u64,
}

impl Waiting {
    /// Returns whether its timeout is too short to notice that the process before it does not run. Then it takes what is
    /// free, as a caller that does not wait.
    pub(super) fn is_hurried(&self) -> bool {
        self.deadline.saturating_sub(self.since) < NOTICES
    }

    /// What other lines have to know of it.
    pub(super) fn shown_as(&self, (priority, _): Rank) -> First {
        First { priority, since: self.since, units: self.wanted.weight, share: self.share }
    }
}

impl KeyLine {
    pub(super) fn insert(
        &mut self,
        rank: Rank,
        wanted: Wanted,
        since: Tick,
        (deadline, hold, grace): (Tick, Tick, Tick),
        share: Option<Share>,
    ) {
        let is_last = self.waiters.last_key_value().is_none_or(|(last, _)| *last < rank);
        let (units, gone) = if is_last { (self.units, self.gone) } else { (0, self.gone) };
        self.is_moved |= !is_last;
        self.units = self.units.saturating_add(wanted.weight);
        self.by_wanted.insert((wanted.clone(), rank));
        self.waiters.insert(rank, Waiting { wanted, since, deadline, hold, grace, share, units, gone });
        if deadline != Tick::MAX {
            self.deadlines.insert((deadline, rank));
        }
        if grace > 0 {
            self.graces.insert((grace, rank));
        }
    }

    /// Removes a waiter and returns it.
    pub(super) fn forget(&mut self, rank: Rank) -> Option<Waiting> {
        let waiting = self.waiters.remove(&rank)?;
        let Waiting { wanted, deadline, grace, .. } = &waiting;
        self.is_moved = true;
        self.by_wanted.remove(&(wanted.clone(), rank));
        self.deadlines.remove(&(*deadline, rank));
        self.graces.remove(&(*grace, rank));
        self.units = self.units.saturating_sub(wanted.weight);
        self.gone = self.gone.saturating_add(wanted.weight);
        Some(waiting)
    }

    pub(super) fn first_of(&self, wanted: &Wanted) -> Option<Rank> {
        self.by_wanted.range(wanted.entries(LAST)).next().map(|(_, rank)| *rank)
    }

    pub(super) fn wants_places(&self) -> bool {
        let most = if self.is_joint { 1 } else { MAX_PLACES };
        self.waiters.len() > self.places.len() && self.places.len() < most
    }

    /// Returns the first waiter that no place is held for.
    pub(super) fn first_without(&self) -> Option<Rank> {
        if !self.wants_places() {
            return None;
        }
        let mut held: BTreeMap<&Wanted, usize> = BTreeMap::new();
        for place in &self.places {
            *held.entry(&place.wanted).or_default() += 1;
        }
        let has_none = |waiting: &Waiting| match held.get_mut(&waiting.wanted) {
            Some(left) if *left > 0 => {
                *left -= 1;
                false
            }
            _ => true,
        };
        let mut has_none = has_none;
        self.waiters.iter().find(|(_, waiting)| has_none(waiting)).map(|(rank, _)| *rank)
    }

    /// Returns the earliest start of a waiter, as far as this line knows.
    pub fn earliest(&self, pass: &Pass, rank: Rank) -> Tick {
        let now = pass.now();
        let Some(waiting) = self.waiters.get(&rank) else { return now };
        let wanted = &waiting.wanted;
        let ahead = self.by_wanted.range(wanted.entries(rank)).take(MAX_PLACES).count();
        match self.places.iter().filter(|held| held.wanted == *wanted).nth(ahead) {
            Some(held) => held.ready,
            None => {
                let ahead = waiting.units.saturating_sub(self.gone - waiting.gone);
                self.soonest(pass, ahead.saturating_add(wanted.weight), now)
            }
        }
    }

    /// Returns the earliest start of the last of this many waiting units.
    pub(super) fn soonest(&self, pass: &Pass, units: u64, now: Tick) -> Tick {
        let held: u64 = self.places.iter().map(|held| held.wanted.weight).sum();
        let from = match self.places.back() {
            Some(last) if !pass.limiter.may_start_elsewhere() => last.ready,
            _ => now,
        };
        from.max(now).saturating_add(patience_ticks(pass.limiter.soonest(pass.key, units.saturating_sub(held))))
    }

    /// Starts the first waiter that asks for this.
    pub(super) fn admit(&mut self, pass: &Pass, wanted: &Wanted, permit: RawPermit, out: &mut Out) {
        let Some(rank) = self.first_of(wanted) else {
            // No waiter wants it.
            let _ = MayWait::in_slice(Instant::now(), pass.slice, || pass.limiter.cancel(&permit));
            return;
        };
        let Some(waiting) = self.forget(rank) else { return };
        let unwritten = std::mem::take(&mut self.unwritten);
        if unwritten.is_empty() {
            pass.count_wait(&waiting, &permit);
            out.push((rank, Outcome::Admitted(permit)));
        } else {
            self.taken.push(TakenStart { rank, waiting, permit, unwritten });
        }
    }

    pub(super) fn send_away(&mut self, pass: &Pass, rank: Rank, after: Duration, out: &mut Out) {
        let wanted = &self.waiters[&rank].wanted;
        pass.limiter.sent_away(wanted.key(pass.key), wanted.weight);
        self.remove(pass.limiter, rank);
        out.push((rank, Outcome::Expired(after)));
    }

    /// Removes the waiters whose place is now later than their deadline.
    pub(super) fn send_away_the_late(&mut self, pass: &Pass, now: Tick, out: &mut Out) {
        if self.deadlines.is_empty() || pass.limiter.may_start_elsewhere() {
            return;
        }
        let ranks: Vec<Rank> = self.waiters.keys().take(self.places.len()).copied().collect();
        for rank in ranks {
            let ready = self.earliest(pass, rank);
            if self.waiters[&rank].deadline < ready {
                self.send_away(pass, rank, from_ticks(ready.saturating_sub(now)), out);
            }
        }
    }

    /// Removes the waiters that timed out.
    pub fn expire(&mut self, pass: &Pass, out: &mut Out) {
        let now = pass.now();
        // Nobody knows more before the store answers.
        let least = if self.is_blocked { LOOK_AGAIN } else { Duration::ZERO };
        while let Some(&(deadline, rank)) = self.deadlines.first()
            && deadline <= now
        {
            let after = from_ticks(self.earliest(pass, rank).saturating_sub(now)).max(least);
            self.send_away(pass, rank, after, out);
        }
    }

    pub(super) fn fail(&mut self, pass: &Pass, rank: Rank, error: Error, out: &mut Out) {
        self.remove(pass.limiter, rank);
        out.push((rank, Outcome::Failed(error)));
    }

    /// Removes a waiter without a start. A place that no waiter is left for goes back.
    pub(super) fn remove(&mut self, limiter: &dyn Limiter, rank: Rank) {
        if let Some(Waiting { wanted, .. }) = self.forget(rank) {
            self.give_back_unwanted(limiter, &wanted);
        }
    }
}
