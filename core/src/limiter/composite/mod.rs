//! Several limits at once: a start needs all of them.

pub(super) mod group;
mod joint;
pub(super) mod out;
mod places;
mod shared;
pub(super) mod text;

use super::internal::{Awaited, Behind, Nested, OwnedCharge, Quiet, When};
use super::line::{Ahead, Claim, First, LineTurn, Shown, Terms};
use super::{Attempt, Limiter, Places, Presented, Reserved};
use crate::algorithm::joint::take_all;
use crate::charges::{Charge, JointKey, Split};
use crate::decision::Decision;
use crate::error::{Error, Result};
use crate::permit::RawPermit;
use crate::stats::Stats;
use crate::waiting::{InLine, MayWait};
use group::{Group, behind_group, end_all, nested_in_group};
use out::{Out, Part, State};
use places::ROUNDS;
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

type Child = Arc<dyn Limiter>;

/// Admits a start if every child admits it. If one child denies, the others are not charged.
///
/// All children get the same key and weight, unless the start is a joint one, which [charges](Limiter::joint) them
/// differently. A gate is set on all of them, and each decides on its own: a denial names the child with the longest
/// wait. That child also records the denial, for its backoff and its counts.
///
/// A future start is a place at one child: the one with the longest wait. The others are asked when it starts, and hold
/// nothing for it until then. A permit belongs to the process that got it; a place has a text if the child's place has
/// one.
///
/// ```
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use workglow_limit::{CompositeLimiter, ConcurrencyLimiter, Limiter, RateLimiter, Store};
/// let store = Store::new("memory:")?;
/// let limiter = CompositeLimiter::new([
///     Arc::new(ConcurrencyLimiter::new(5)?) as Arc<dyn Limiter>,
///     Arc::new(RateLimiter::new(&store, "openai", 100, Duration::from_secs(60))?),
/// ]);
/// assert!(limiter.decide("", 1)?.admitted);
/// # Ok::<(), workglow_limit::Error>(())
/// ```
#[derive(Debug)]
pub struct CompositeLimiter {
    group: Group,
}

impl CompositeLimiter {
    /// Makes a limiter with these children. Without children it admits everything. If composites are nested more than
    /// 32 deep, or a limit is there twice, every call returns the error that [`CompositeLimiter::add`] would return.
    ///
    /// As a part, each child has the name of its limit.
    pub fn new(children: impl IntoIterator<Item = Child>) -> Self {
        Self::with_name("composite", children.into_iter().map(|child| (None, child)))
    }

    /// Makes a limiter of parts with names of their own, which [joint starts](Limiter::joint) use.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use workglow_limit::{Charge, CompositeLimiter, Limiter, RateLimiter, Store};
    /// let store = Store::new("memory:")?;
    /// let rate = |name, max| RateLimiter::new(&store, name, max, Duration::from_secs(60));
    /// let llm = CompositeLimiter::named([
    ///     ("requests", Arc::new(rate("openai-requests", 500)?) as Arc<dyn Limiter>),
    ///     ("tokens", Arc::new(rate("openai-tokens", 200_000)?)),
    /// ]);
    /// let call = llm.joint("", &[Charge::of("tokens").weight(1_200)])?;
    /// assert!(llm.decide(&call, 1)?.admitted);
    /// # Ok::<(), workglow_limit::Error>(())
    /// ```
    ///
    /// If a name is empty, too long or there twice, every call returns that error; for the rest see
    /// [`CompositeLimiter::new`].
    pub fn named<N: Into<Arc<str>>>(parts: impl IntoIterator<Item = (N, Child)>) -> Self {
        Self::with_name("composite", parts.into_iter().map(|(name, child)| (Some(name.into()), child)))
    }

    /// Makes a limiter of that name. Children without a name of their own have that of their limits, without its own name
    /// in front.
    pub(crate) fn with_name(name: &str, parts: impl IntoIterator<Item = (Option<Arc<str>>, Child)>) -> Self {
        CompositeLimiter { group: Group::new(name, true, parts) }
    }

    /// Adds a child, which has the name of its limit as a part. Permits that were issued before complete against the children they were taken from.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for this limiter itself, for a composite that contains it, for a limit that is a child
    /// already, and where composites would be nested more than 32 deep.
    pub fn add(&self, child: Child) -> Result<()> {
        self.group.add_part(None, child)
    }

    /// Adds a child as a part with this name: see [`CompositeLimiter::named`].
    ///
    /// # Errors
    /// As for [`CompositeLimiter::add`]; [`Error::InvalidArgument`] for a name that is empty, too long or taken.
    pub fn add_named(&self, name: &str, child: Child) -> Result<()> {
        self.group.add_part(Some(name), child)
    }

    /// Claims every child, or none.
    fn claim(&self, charges: &Split) -> Result<Result<RawPermit, Decision>> {
        // Peeking first makes a denial free for the other children.
        let mut seen = self.group.peek_each(charges)?;
        let denials = seen.iter_mut().enumerate().filter(|(_, (_, one))| !one.admitted).rev();
        // The first of equals.
        let Some((i, (child, worst))) = denials.max_by_key(|(_, (_, one))| one.retry_after) else {
            let denied = |(i, child, after): (usize, &Child, _)| {
                let (key, weight) = charges.at(i);
                denial(child, after, child.quiet_peek(key, weight).ok())
            };
            return Ok(self.take_all(charges)?.map_err(denied));
        };
        // This child has to record that it denied a start: for its backoff and its counts.
        let (key, weight) = charges.at(i);
        let denial = child.quiet_decide(key, weight)?;
        match denial.permit {
            None => *worst = denial,
            // Units are free by now, but the other children were not asked.
            Some(permit) => MayWait::to_undo(|| child.cancel(&permit))?,
        }
        Ok(Err(merge_all(seen)))
    }

    /// As `claim`, but without the full decision. If the others have free units, the first child is asked to start
    /// directly, because nothing has to be given back if it denies. (A user-defined child is always peeked at, which
    /// checks its replies.)
    fn try_claim(&self, charges: &Split) -> Result<Attempt> {
        for (i, child) in self.group.children()?.iter().enumerate() {
            let (key, weight) = charges.at(i);
            if (i > 0 || child.has_custom()) && !child.admits(key, weight)? {
                let denied = |denial: Decision| Attempt::Denied(denial.retry_after);
                return Ok(self.claim(charges)?.map_or_else(denied, Attempt::Admitted));
            }
        }
        Ok(self.take_all(charges)?.map_or_else(|(_, _, after)| Attempt::Denied(after), Attempt::Admitted))
    }

    /// Claims one child after the other. If one denies because another caller was faster, those before it get their
    /// units back. Returns the child that denied, or a permit.
    fn take_all(&self, charges: &Split) -> Result<Result<RawPermit, (usize, &Child, Duration)>> {
        if self.group.has_shared() {
            let taken = self.take_in_turn(charges, None)?;
            return Ok(taken.map_err(|(i, child, denial)| (i, child, shared::after(&denial))));
        }
        let children = self.group.children()?;
        let taken = attempt_all(children, charges, 0..children.len())?;
        Ok(taken.map(|parts| self.hand_out_start(charges, parts)).map_err(|(i, after)| (i, &children[i], after)))
    }

    fn hand_out_start(&self, charges: &Split, parts: Vec<Part>) -> RawPermit {
        let has_own_weights = charges.has_own_weights();
        self.group.hand_out(Out { parts, state: State::Started, wish: None, has_own_weights })
    }

    /// Merges the decisions of all children.
    fn look(&self, charges: &Split) -> Result<Decision> {
        Ok(merge_all(self.group.peek_each(charges)?))
    }
}

/// Starts at these children: at all of them, or at none. Returns their permits; or which one denied, and for how long.
fn attempt_all(
    children: &[Child],
    charges: &Split,
    parts: impl Iterator<Item = usize>,
) -> Result<Result<Vec<Part>, (usize, Duration)>> {
    let attempt = |i: usize| {
        let (key, weight) = charges.at(i);
        Ok(match children[i].quiet_attempt(key, weight)? {
            Attempt::Admitted(permit) => Ok(Part { child: i, permit }),
            Attempt::Denied(after) => Err(after),
        })
    };
    take_all(parts, attempt, |taken| cancel_all(children, taken))
}

/// Gives the units of these starts back, because a start needs others too.
fn cancel_all(children: &[Child], parts: &[Part]) -> Result<()> {
    MayWait::to_undo(|| end_all(children, parts, |child, permit| child.cancel(permit)))
}

/// Ends a child's part of a permit: the job ran.
pub(super) fn complete_at(state: State, child: &Child, part: &RawPermit) -> Result<()> {
    match state {
        State::Started => child.complete(part),
        // A place that has not started here may be in use elsewhere, as a text.
        _ => {
            child.drop_place(part);
            Ok(())
        }
    }
}

/// The same: the job used this many units.
pub(super) fn settle_at(child: &Child, part: &RawPermit, actual: u64) -> Result<()> {
    match child.settle(part, actual) {
        // A child whose units become free at the end of the job.
        Err(Error::Unsupported { .. }) => child.complete(part),
        other => other,
    }
}

/// Refuses one number for parts that were charged weights of their own.
pub(super) fn by_parts(actual: u64) -> Result<()> {
    let expected = "the units of each part, by its name: the parts were charged weights of their own";
    Err(Error::invalid("actual", actual, expected))
}

/// Returns the decision of a child that denied a start; this start may be retried after `after`. `seen`: the child's
/// state since.
fn denial(child: &Child, after: Duration, seen: Option<Decision>) -> Decision {
    let by = seen.as_ref().and_then(|seen| seen.denied_by.clone()).unwrap_or_else(|| child.base().name.clone());
    let seen = seen.unwrap_or_else(|| super::NullLimiter::new().decision(None));
    Decision {
        admitted: false,
        retry_after: seen.retry_after.max(after),
        suggested_after: seen.suggested_after.max(after),
        // Units may be free again; a moment ago they were not.
        remaining: if seen.admitted { 0 } else { seen.remaining },
        denied_by: Some(by),
        ..seen
    }
}

/// Returns the strictest of these decisions.
fn merge_all(all: Vec<(&Child, Decision)>) -> Decision {
    let none = || super::NullLimiter::new().decision(None);
    all.into_iter().map(|(_, one)| one).reduce(merge).unwrap_or_else(none)
}

/// Returns the stricter of two decisions, field by field.
fn merge(a: Decision, b: Decision) -> Decision {
    let b_denies = !b.admitted && (a.admitted || b.retry_after > a.retry_after);
    Decision {
        permit: None,
        admitted: a.admitted && b.admitted,
        retry_after: a.retry_after.max(b.retry_after),
        suggested_after: a.suggested_after.max(b.suggested_after),
        limit: if b.remaining < a.remaining { b.limit } else { a.limit },
        remaining: a.remaining.min(b.remaining),
        reset_after: a.reset_after.max(b.reset_after),
        denied_by: if b_denies { b.denied_by } else { a.denied_by },
    }
}

impl Limiter for CompositeLimiter {
    fn complete(&self, permit: &RawPermit) -> Result<()> {
        self.group.end(permit, |state, _, child, part| complete_at(state, child, part))
    }

    fn cancel(&self, permit: &RawPermit) -> Result<()> {
        self.group.end(permit, |state, _, child, part| match state {
            State::Started => child.cancel(part),
            _ => child.cancel_place(part),
        })
    }

    fn settle(&self, permit: &RawPermit, actual: u64) -> Result<()> {
        if self.is_settled_by_parts(permit) {
            return by_parts(actual);
        }
        self.group.end(permit, |_, _, child, part| settle_at(child, part, actual))
    }

    fn renew(&self, permit: &RawPermit) -> Result<()> {
        self.group.own(permit)?;
        // One that is lost must not cost the others.
        let renewed: Vec<Result<()>> = self.group.parts(permit, |child, part| Some(child.renew(part))).collect();
        renewed.into_iter().collect()
    }

    /// Returns the fence of the first child whose permits have one.
    fn fence(&self, permit: &RawPermit) -> Option<u64> {
        self.group.parts(permit, |child, part| child.fence(part)).next()
    }

    fn open(&self) -> Result<()> {
        self.group.each(|child| child.open())
    }

    fn part_names(&self) -> Vec<String> {
        self.group.names().iter().map(|name| name.to_string()).collect()
    }

    fn parts(&self) -> Vec<(String, Child)> {
        self.part_names().into_iter().zip(self.group.all().iter().cloned()).collect()
    }

    fn joint(&self, key: &str, charges: &[Charge]) -> Result<JointKey> {
        self.do_joint(key, charges)
    }

    fn settle_parts(&self, permit: &RawPermit, actual: &[(&str, u64)]) -> Result<()> {
        self.do_settle_parts(permit, actual)
    }
}

impl Places for CompositeLimiter {
    fn has_places(&self) -> bool {
        !self.group.has_shared() && self.group.all().iter().any(|child| child.has_places())
    }

    fn cancel_place(&self, place: &RawPermit) -> Result<()> {
        let has_started = self.group.found(place).is_some_and(|out| out.state == State::Started);
        if has_started { Ok(()) } else { self.cancel(place) }
    }

    fn drop_place(&self, place: &RawPermit) {
        self.group.drop_parts(self.group.take(place).ok().flatten());
    }

    /// Returns when the last of its places is ready.
    fn ready_in(&self, permit: &RawPermit) -> Option<Duration> {
        self.group.parts(permit, |child, part| child.ready_in(part)).max()
    }

    fn ready_at(&self, permit: &RawPermit) -> Option<SystemTime> {
        self.group.parts(permit, |child, part| child.ready_at(part)).max()
    }

    fn ready_at_monotonic_ns(&self, permit: &RawPermit) -> Option<u64> {
        self.group.parts(permit, |child, part| child.ready_at_monotonic_ns(part)).max()
    }

    fn window(&self, key: &str) -> Result<Option<Duration>> {
        let windows = self.group.each_key(key, |child, key| child.window(key))?;
        Ok(windows.into_iter().flatten().min())
    }

    fn to_text(&self, permit: &RawPermit) -> Result<String> {
        self.do_to_text(permit)
    }

    fn permit_from_text(&self, text: &str) -> Result<RawPermit> {
        self.do_permit_from_text(text)
    }
}

behind_group!(CompositeLimiter);

impl Quiet for CompositeLimiter {
    fn quiet_attempt(&self, key: &str, weight: u64) -> Result<Attempt> {
        self.try_claim(&self.group.split_start(key, weight)?)
    }

    fn arrive(&self, permit: &RawPermit) -> Result<bool> {
        let number = self.group.own(permit)?;
        let arrived: Vec<Result<Option<RawPermit>>> =
            self.group.parts(permit, |child, part| Some(child.arrive(part).map(|has| has.then_some(*part)))).collect();
        // What has ended need not be renewed.
        if let Some(out) = self.group.out.lock().get_mut(number) {
            out.parts.retain(|part| !arrived.contains(&Ok(Some(part.permit))));
        }
        arrived.into_iter().collect::<Result<Vec<_>>>().map(|_| false)
    }

    fn quiet_decide(&self, key: &str, weight: u64) -> Result<Decision> {
        let mut charges = self.group.split_start(key, weight)?;
        match self.claim(&charges)? {
            Err(denial) => Ok(denial),
            Ok(permit) => {
                charges.weight = 0;
                let after = match self.look(&charges) {
                    Ok(after) => after,
                    // The permit would be lost.
                    Err(e) => return MayWait::to_undo(|| self.cancel(&permit)).and(Err(e)),
                };
                Ok(Decision {
                    permit: Some(permit),
                    admitted: true,
                    retry_after: Duration::ZERO,
                    suggested_after: Duration::ZERO,
                    denied_by: None,
                    ..after
                })
            }
        }
    }

    fn quiet_peek(&self, key: &str, weight: u64) -> Result<Decision> {
        self.look(&self.group.split(key, weight)?)
    }

    /// When the slowest part has so many.
    fn quiet_forecast(&self, key: &str, units: u64) -> Result<Option<Duration>> {
        let charges = self.group.split(key, 1)?;
        let of = |(i, child): (usize, &'_ Child)| {
            let (key, weight) = charges.at(i);
            child.quiet_forecast(key, weight.saturating_mul(units))
        };
        let all = self.group.children()?.iter().enumerate().map(of).collect::<Result<Vec<_>>>()?;
        Ok(all.into_iter().try_fold(Duration::ZERO, |most, after| Some(most.max(after?))))
    }

    fn quiet_pause(&self, key: &str, pause: Duration) -> Result<()> {
        self.group.each_key(key, |child, key| child.quiet_pause(key, pause)).map(drop)
    }

    fn quiet_clear(&self, key: &str) -> Result<()> {
        self.group.each_key(key, |child, key| child.quiet_clear(key)).map(drop)
    }

    /// Merges the counts of the children. A composite counts nothing itself, so the result is exact only if no other
    /// caller uses the children directly. A start is admitted where all admitted it; a denial belongs to the child that
    /// recorded it.
    fn quiet_stats(&self, key: &str) -> Result<Stats> {
        let all = self.group.each_key(key, |child, key| child.quiet_stats(key))?;
        // Some count nothing.
        let all: Vec<_> = all.into_iter().filter(|stats| *stats != Stats::default()).collect();
        // A child also counts what was given back because another one denied, and what is not this composite's.
        let fewest = all.iter().min_by_key(|stats| (stats.admitted, stats.cancelled)).copied().unwrap_or_default();
        let most = |f: fn(&Stats) -> u64| all.iter().map(f).max().unwrap_or(0);
        let sum = |f: fn(&Stats) -> u64| all.iter().map(f).sum::<u64>();
        let units_granted = fewest.units_granted;
        Ok(Stats {
            admitted: fewest.admitted,
            denied: sum(|stats| stats.denied),
            units_wanted: units_granted + sum(|stats| stats.units_wanted.saturating_sub(stats.units_granted)),
            units_granted,
            waited: most(|stats| stats.waited),
            wait_time: all.iter().map(|stats| stats.wait_time).max().unwrap_or_default(),
            cancelled: fewest.cancelled,
            store_errors: sum(|stats| stats.store_errors),
            policy_changes: sum(|stats| stats.policy_changes),
        })
    }

    fn quiet_reserve(&self, key: &str, weight: u64, when: When) -> Result<Reserved> {
        self.do_reserve(key, weight, when)
    }

    fn quiet_present(&self, place: &RawPermit) -> Result<Presented> {
        // It has waited for its place, so it is no call that does not wait.
        let _in_line = InLine::enter();
        self.present_in(place, 1)
    }

    fn quiet_record_start(&self, key: &str) -> Result<()> {
        self.group.each_key(key, |child, key| child.quiet_record_start(key)).map(drop)
    }

    fn quiet_record_end(&self, key: &str) -> Result<()> {
        self.group.each_key(key, |child, key| child.quiet_record_end(key)).map(drop)
    }

    fn quiet_close_gate(&self, key: &str, at: SystemTime) -> Result<()> {
        self.group.each_key(key, |child, key| child.quiet_close_gate(key, at)).map(drop)
    }
}

impl Awaited for CompositeLimiter {
    fn waited(&self, key: &str, permit: &RawPermit, wait: Duration) {
        let _ = self.group.each_key(key, |child, key| {
            child.waited(key, permit, wait);
            Ok(())
        });
    }

    fn waits_more(&self, by: i64) {
        let _ = self.group.each(|child| {
            child.waits_more(by);
            Ok(())
        });
    }

    fn prepare(&self, key: &str) -> Result<()> {
        self.group.each_key(key, |child, key| child.prepare(key)).map(drop)
    }

    fn claim(&self, key: &str, weight: u64, terms: Terms) -> Result<Claim> {
        match self.group.has_shared() {
            true => self.claim_in_turn((key, weight), terms),
            false => self.do_claim((key, weight), terms),
        }
    }

    fn read_bell(&self, key: &str) -> Option<u64> {
        self.at_shared_part(key, |child, key| child.read_bell(key))
    }

    fn sleep_on_bell(&self, key: &str, seen: u64, nap: Duration, calls: u32) {
        let sleep = |child: &Child, key: &str| {
            child.sleep_on_bell(key, seen, nap, calls);
            Some(())
        };
        self.at_shared_part(key, sleep);
    }

    fn line_up(&self, key: &str, first: First, shown: &Cell<Shown>) -> Result<Option<LineTurn>> {
        self.do_line_up(key, first, shown)
    }

    fn show_next(&self, first: Option<First>, shown: &Cell<Shown>) {
        self.shared_part().into_iter().for_each(|(_, child)| child.show_next(first, shown));
    }

    fn next_line(&self, is_among: &dyn Fn(usize) -> bool) -> Option<(usize, bool)> {
        self.shared_part().and_then(|(_, child)| child.next_line(is_among))
    }

    fn lead(&self, key: &str) -> u64 {
        self.at_shared_part(key, |child, key| Some(child.lead(key))).unwrap_or(0)
    }

    fn counts_places(&self) -> bool {
        self.group.all().iter().all(|child| child.counts_places() || !child.has_places())
    }

    fn returned(&self) -> u64 {
        self.group.all().iter().map(|child| child.returned()).sum()
    }

    fn return_promises(&self, key: &str) {
        let _ = self.group.each_key(key, |child, key| {
            child.return_promises(key);
            Ok(())
        });
    }

    fn start(&self, place: &RawPermit) -> Result<Presented> {
        self.present_in(place, ROUNDS)
    }

    fn look_ahead(&self, place: &RawPermit) -> Result<Option<Ahead>> {
        self.do_look_ahead(place)
    }

    fn soonest(&self, key: &str, units: u64) -> Duration {
        let soonest = self.group.each_key(key, |child, key| Ok(child.soonest(key, units)));
        soonest.into_iter().flatten().max().unwrap_or_default()
    }

    fn slots(&self, key: &str, weight: u64) -> Result<Option<u64>> {
        let all = self.group.each_charge(key, weight, |child, (key, weight)| child.slots(key, weight))?;
        Ok(all.into_iter().flatten().min())
    }

    fn closed(&self, key: &str) -> Result<Duration> {
        Ok(self.group.each_key(key, |child, key| child.closed(key))?.into_iter().max().unwrap_or_default())
    }

    fn is_late(&self, place: &RawPermit) -> bool {
        self.group.parts(place, |child, part| Some(child.is_late(part))).any(|is_late| is_late)
    }

    fn may_start_elsewhere(&self) -> bool {
        self.group.all().iter().any(|child| child.may_start_elsewhere())
    }

    fn has_bounded_queue(&self) -> bool {
        self.group.all().iter().any(|child| child.has_bounded_queue())
    }
}

impl Nested for CompositeLimiter {
    nested_in_group!();

    fn is_settled_by_parts(&self, permit: &RawPermit) -> bool {
        let inside = |part: &Part| self.group.all()[part.child].is_settled_by_parts(&part.permit);
        self.group.found(permit).is_some_and(|out| out.has_own_weights || out.parts.iter().any(inside))
    }

    fn check_used(&self, permit: &RawPermit, actual: &[(&str, u64)]) -> Result<()> {
        self.do_check_used(permit, actual).map(drop)
    }

    fn chooses(&self) -> bool {
        self.group.chooses()
    }

    /// Returns what the first part that has alternatives has chosen.
    fn chosen_inside(&self, chosen: u64) -> Option<(usize, Child)> {
        let (_, child, rest) = self.group.chosen_child(chosen)?;
        child.chosen_inside(rest)
    }

    fn describe(&self, key: &str) -> Result<(String, Vec<OwnedCharge>)> {
        self.do_describe(key)
    }
}
