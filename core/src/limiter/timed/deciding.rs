//! Starts and places: asked for, waited for, presented.
//!
//! Here and in `ending.rs` are the calls whose failures the store's [`OnError`](crate::OnError) has not seen yet.

use super::backoff::Level;
use super::{LATENESS, SHORT_GRACE, Timed, known, only_grace};
use crate::algorithm::log::Ask;
use crate::atomic::*;
use crate::decision::Decision;
use crate::error::Result;
use crate::limiter::{Attempt, LOOK_AGAIN, Presented, Progress, Reserved, Step, Wait};
use crate::permit::RawPermit;
use crate::policy::{self, Shape};
use crate::store::counts::{ADMITTED, DENIED, WAIT_TIME, WAITED};
use crate::time::{self, from_ticks};
use std::time::Duration;

impl Timed {
    #[inline(always)]
    pub(super) fn do_attempt(&self, key: &str, weight: u64) -> Result<Attempt> {
        policy::check_some(weight)?;
        self.limit.with_key(key, |found| {
            let answer = self.take(found, &Ask::now(found.table.policy.windows(), weight, found.gate))?;
            Ok(match answer.taken {
                Some(taken) => {
                    found.decided(ADMITTED, weight);
                    Attempt::Admitted(self.permit(found, taken, weight, 0, 0))
                }
                None => {
                    found.decided(DENIED, weight);
                    self.denied(found, answer.now.floor);
                    Attempt::Denied(from_ticks(answer.ready.saturating_sub(answer.now.floor)))
                }
            })
        })
    }

    pub(super) fn do_decide(&self, key: &str, weight: u64) -> Result<Decision> {
        policy::check_some(weight)?;
        self.limit.with_key(key, |found| {
            policy::check_weight(self.limit.name(), weight, found.table.policy.capacity())?;
            let ask = Ask::now(found.table.policy.windows(), weight, found.gate);
            self.before_asking(found);
            let (answer, mut view) = found.cells().claim_and_view(&ask, || found.home.clock.now())?;
            self.limit.confirm(found, answer.now, answer.taken.as_ref(), weight)?;
            found.decided(if answer.taken.is_some() { ADMITTED } else { DENIED }, weight);
            let mut backoff = 0;
            match answer.taken {
                Some(_) => {
                    self.after_taking(found);
                    if found.jobs().is_some() {
                        // The next start is by another distance now. (It was taken: what moves meanwhile is not asked again.)
                        let mut table = found.table;
                        found.home.adapt(&mut table, found.key.at);
                        let next = Ask::now(table.policy.windows(), weight, found.gate);
                        let cells = found.home.cells(&table, found.key);
                        view = cells.view(&next, || answer.now).unwrap_or(view);
                    }
                }
                None => backoff = Self::spread(&found.table, self.denied(found, answer.now.floor)),
            }
            let mut decision = self.decision(&found.table, view, answer.taken.is_some(), backoff);
            decision.permit = answer.taken.map(|taken| self.permit(found, taken, weight, 0, 0));
            Ok(decision)
        })
    }

    pub(super) fn do_peek(&self, key: &str, weight: u64) -> Result<Decision> {
        self.limit.look(key, |home, table, key, gate| {
            policy::check_weight(self.limit.name(), weight, table.policy.capacity())?;
            let ask = Ask::now(table.policy.windows(), weight, gate);
            let cells = key.map_or_else(|| home.untouched(table), |key| home.cells(table, key));
            let view = cells.view(&ask, || home.clock.now())?;
            self.limit.look_after(home, view.now)?;
            let admitted = view.ready <= view.now;
            let backoff = match (&table.policy.0, key) {
                (Shape::Rate(_, backoff), _) if !admitted => {
                    let level = key.map_or(0, |key| home.backoff(key.at).load(Relaxed));
                    Self::spread(table, Level::of(level).after_denial(backoff, view.now).number)
                }
                _ => 0,
            };
            Ok(self.decision(table, view, admitted, backoff))
        })
    }

    pub(super) fn do_step(&self, wait: &mut Wait) -> Result<Step> {
        policy::check_some(wait.weight)?;
        while let Progress::Place(place) = wait.progress {
            match self.do_present(&self.own(&place)?)? {
                Presented::Started(permit) => {
                    wait.progress = Progress::Nothing;
                    self.count_wait(wait, &permit);
                    return Ok(Step::Admitted(permit));
                }
                Presented::Wait { place, after } => {
                    wait.progress = Progress::Place(place);
                    let patience = wait.patience(self.limit.home()?.clock.now().floor);
                    if after > from_ticks(patience) {
                        self.limit.counts()?.decided(Some(known(&place).0), DENIED, place.key);
                        self.hand_back(wait)?;
                        return Ok(Step::Expired(after));
                    }
                    if let Some(nap) = self.nap_before(&place, after)? {
                        return Ok(Step::Sleep(nap));
                    }
                }
            }
        }
        policy::check_key(&wait.key)?;
        let patience = wait.patience(self.limit.home()?.clock.now().floor);
        let (step, progress) = self.limit.with_key(&wait.key, |found| {
            let policy = &found.table.policy;
            let grace = policy.grace(wait.weight);
            let ask = Ask { patience, grace, ..Ask::now(policy.windows(), wait.weight, found.gate) };
            let answer = self.take(found, &ask)?;
            let nap = from_ticks(answer.ready.saturating_sub(answer.now.floor));
            Ok(match answer.taken {
                // So many wait that no more fit into the log or its slices. In a bucket's queue they never will.
                None if answer.ready <= answer.now.floor.saturating_add(patience)
                    && (policy.has_origins() || policy.is_sliced()) =>
                {
                    (Step::Sleep(nap.min(LOOK_AGAIN)), Progress::Nothing)
                }
                None => {
                    found.decided(DENIED, wait.weight);
                    (Step::Expired(nap), Progress::Nothing)
                }
                Some(taken) if !taken.is_place => {
                    found.decided(ADMITTED, wait.weight);
                    (Step::Admitted(self.permit(found, taken, wait.weight, 0, 0)), Progress::Nothing)
                }
                Some(taken) => {
                    let place = self.permit(found, taken, wait.weight, answer.ready, grace);
                    (Step::Sleep(nap), Progress::Place(place))
                }
            })
        })?;
        wait.progress = progress;
        match step {
            Step::Admitted(permit) => self.count_wait(wait, &permit),
            Step::Sleep(_) => wait.has_waited = true,
            Step::Expired(_) => {}
        }
        match (step, progress) {
            (Step::Sleep(after), Progress::Place(place)) => match self.nap_before(&place, after)? {
                Some(nap) => Ok(Step::Sleep(nap)),
                None => self.do_step(wait),
            },
            _ => Ok(step),
        }
    }

    /// How long to sleep before a place comes; none if it is there. Who sleeps wakes up late by more than a short grace, and
    /// would have to queue again, so the last moments before a place with one are waited out here.
    fn nap_before(&self, place: &RawPermit, after: Duration) -> Result<Option<Duration>> {
        let home = self.limit.home()?;
        let is_short = from_ticks(place.b.saturating_sub(place.ready)) < SHORT_GRACE && place.b != 0;
        if !is_short || home.clock.is_manual() {
            return Ok((!after.is_zero()).then_some(after));
        }
        if after > LATENESS {
            return Ok(Some(after - LATENESS));
        }
        while home.clock.now().floor < place.ready {
            std::hint::spin_loop();
        }
        Ok(None)
    }

    /// Counts the wait of a waiter who starts, if there was one.
    pub(super) fn count_wait(&self, wait: &Wait, permit: &RawPermit) {
        if let (true, Ok(home)) = (wait.has_waited, self.limit.home()) {
            let hash = known(permit).0;
            self.limit.count(hash, WAITED, 1);
            self.limit.count(hash, WAIT_TIME, wait.waited(home.clock.now().floor));
        }
    }

    /// Hands back what a waiter holds.
    pub(super) fn hand_back(&self, wait: &mut Wait) -> Result<()> {
        match std::mem::replace(&mut wait.progress, Progress::Nothing) {
            Progress::Place(place) => self.own(&place).and_then(|place| self.do_cancel_place(&place)).map(drop),
            _ => Ok(()),
        }
    }

    pub(super) fn do_reserve(
        &self,
        key: &str,
        weight: u64,
        delay: Duration,
        max_wait: Option<Duration>,
        grace: Option<Duration>,
    ) -> Result<Reserved> {
        policy::check_some(weight)?;
        let patience = max_wait.map_or(u64::MAX, time::patience_ticks);
        let grace = grace.map(|grace| time::grace_ticks("grace", grace)).transpose()?;
        self.limit.with_key(key, |found| {
            let reserved = self.take_place(found, weight, delay, patience, grace, false)?;
            match reserved {
                Reserved::Place { after, .. } if !after.is_zero() => {
                    found.add(WAITED, 1);
                    found.add(WAIT_TIME, after.as_micros() as u64);
                }
                Reserved::Place { .. } => {}
                Reserved::Denied(_) => found.decided(DENIED, weight),
            }
            Ok(reserved)
        })
    }

    pub(super) fn do_present(&self, place: &RawPermit) -> Result<Presented> {
        policy::check_some(place.key)?;
        let early = place.ready.saturating_sub(self.limit.home()?.clock.now().floor);
        if early > 0 {
            return Ok(Presented::Wait { place: *place, after: from_ticks(early) });
        }
        let (hash, start) = known(place);
        let has_started = self.limit.with_hash(hash, |found| {
            let now = found.home.clock.now();
            self.limit.confirm(found, now, None, 0)?;
            // A window ends with its last tick, not with the beginning of it.
            let is_aligned = matches!(found.table.policy.0, Shape::Counter { .. });
            let latest = if is_aligned { now.floor } else { now.ceil };
            let is_good = found.gate <= now.floor && latest <= start.stamp;
            let has_started = is_good && found.cells().present(start)?;
            if has_started {
                found.decided(ADMITTED, start.weight);
            }
            Ok(has_started)
        })?;
        if has_started {
            return Ok(Presented::Started(*place));
        }
        // Late, used before, or overtaken by a gate, a clear or another policy: a fresh place for it. If it was not used
        // it does not count any longer.
        self.do_cancel_place(place)?;
        let is_bucket = self.limit.table()?.policy.is_bucket();
        let grace = if is_bucket { place.b.saturating_sub(place.ready) } else { only_grace(place.reserved[2]) };
        let fresh = self
            .limit
            .with_hash(hash, |found| self.take_place(found, start.weight, Duration::ZERO, u64::MAX, Some(grace), true));
        match fresh? {
            Reserved::Place { place, after } => Ok(Presented::Wait { place, after }),
            // There will be one when others have started.
            Reserved::Denied(after) => {
                let none = RawPermit { a: u64::MAX, b: 0, ready: 0, ..*place };
                Ok(Presented::Wait { place: none, after: after.min(LOOK_AGAIN) })
            }
        }
    }
}
