//! Alternatives: a start needs one of them.

mod claims;
mod places;

use super::composite::group::{Group, MOST, behind_group, nested_in_group};
use super::composite::out::{Out, Part, State};
use super::composite::{by_parts, complete_at, settle_at};
use super::internal::{Awaited, Nested, OwnedCharge, Quiet, When};
use super::line::{Ahead, Claim, Terms};
use super::{Attempt, Limiter, Places, Presented, Reserved, unsupported};
use crate::charges::{Charge, JointKey, Split};
use crate::decision::Decision;
use crate::error::{Error, Result};
use crate::permit::RawPermit;
use crate::stats::Stats;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

type Child = Arc<dyn Limiter>;

/// Admits a start if one of several limiters admits it: the first of them, in the given order, that can start now.
/// Exactly one is charged, and [`Limiter::chosen`] says which. If none can start, the decision is that of the one that can
/// start first, which also records the denial.
///
/// A waiter starts wherever it can start first. It holds a place at one alternative at most, and moves if another can
/// start sooner: because a job has ended there, or because a [pause](Limiter::pause) has closed its own. A pause of this
/// limiter closes all of them; after a reply such as HTTP's 429, pause the alternative that was chosen.
///
/// All alternatives get the same key and weight. An alternative that is too small for a weight is left out. For
/// [joint starts](Limiter::joint), each has to be a composite with these parts. Composites and alternatives can be
/// nested in each other. An error of one alternative is the caller's: a store whose failures deny, or admit, passes none
/// on.
///
/// ```
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use workglow_limit::{FirstOfLimiter, Limiter, RateLimiter, Store};
/// let store = Store::new("memory:")?;
/// let rate = |name, max| RateLimiter::new(&store, name, max, Duration::from_secs(60));
/// let any = FirstOfLimiter::new([
///     Arc::new(rate("azure", 1)?) as Arc<dyn Limiter>,
///     Arc::new(rate("openai", 1)?),
/// ]);
/// let first = any.acquire("", 1, None)?.expect("a unit is free");
/// let second = any.acquire("", 1, None)?.expect("a unit is free");
/// assert_eq!(first.chosen().expect("an alternative").1.name(), "azure");
/// assert_eq!(second.chosen().expect("an alternative").1.name(), "openai");
/// # Ok::<(), workglow_limit::Error>(())
/// ```
#[derive(Debug)]
pub struct FirstOfLimiter {
    group: Group,
}

impl FirstOfLimiter {
    /// Makes a limiter of these alternatives, the preferred one first. If composites and alternatives are nested more than
    /// 32 deep, every call returns the error that [`FirstOfLimiter::add`] would return.
    pub fn new(alternatives: impl IntoIterator<Item = Child>) -> Self {
        let alternatives = alternatives.into_iter().map(|child| (None, child));
        FirstOfLimiter { group: Group::new("first-of", false, alternatives) }
    }

    /// Adds an alternative, as the last one.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for this limiter itself, for one that contains it, for more than 65,535 alternatives, and
    /// where composites and alternatives would be nested more than 32 deep.
    pub fn add(&self, alternative: Child) -> Result<()> {
        self.group.add_part(None, alternative)
    }

    fn alternatives(&self) -> Result<&[Child]> {
        match self.group.children()? {
            [] => Err(Error::invalid("alternatives", "none", "at least one limiter")),
            more if more.len() > MOST => {
                Err(Error::invalid("alternatives", more.len(), format!("at most {MOST} limiters")))
            }
            all => Ok(all),
        }
    }

    /// Makes the permit of a start, or a place, at the alternative with this index.
    fn hand_out(&self, at: usize, permit: RawPermit, state: State, wish: Option<Arc<places::Wish>>) -> RawPermit {
        let out = Out { parts: vec![Part { child: at, permit }], state, wish, has_own_weights: false };
        self.group.hand_out(out)
    }

    fn started(&self, at: usize, permit: RawPermit) -> RawPermit {
        self.hand_out(at, permit, State::Started, None)
    }

    /// Returns the alternative that has a permit, and its own permit; `None` if it has ended, or belongs to the parent.
    fn part(&self, permit: &RawPermit) -> Option<(&Child, Part)> {
        let part = *self.group.found(permit)?.parts.first()?;
        Some((self.group.all().get(part.child)?, part))
    }

    /// Calls a function with the alternative that has a permit.
    fn at<R>(&self, permit: &RawPermit, f: impl FnOnce(&Child, &RawPermit) -> Option<R>) -> Option<R> {
        self.part(permit).and_then(|(child, part)| f(child, &part.permit))
    }

    /// Calls a function for each alternative with its key, and collects the answers.
    fn each_key<R>(&self, key: &str, f: impl Fn(&Child, &str) -> Result<R>) -> Result<Vec<R>> {
        self.alternatives()?;
        self.group.each_key(key, f)
    }
}

impl Limiter for FirstOfLimiter {
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
        self.part(permit).map_or(Ok(()), |(child, part)| child.renew(&part.permit))
    }

    fn fence(&self, permit: &RawPermit) -> Option<u64> {
        self.at(permit, |child, part| child.fence(part))
    }

    fn open(&self) -> Result<()> {
        self.alternatives()?.iter().try_for_each(|child| child.open())
    }

    /// Returns the names of the parts that all alternatives have.
    fn part_names(&self) -> Vec<String> {
        let Some((first, others)) = self.group.all().split_first() else { return Vec::new() };
        let others: Vec<_> = others.iter().map(|child| child.part_names()).collect();
        first.part_names().into_iter().filter(|name| others.iter().all(|names| names.contains(name))).collect()
    }

    fn joint(&self, key: &str, charges: &[Charge]) -> Result<JointKey> {
        if charges.is_empty() {
            return JointKey::plain(key);
        }
        let of_each = self.alternatives()?.iter().enumerate();
        let keys = of_each.map(|(i, child)| Ok((i, Some(child.joint(key, charges)?.to_string()), None)));
        Ok(JointKey::write(key, self.group.base.id, keys.collect::<Result<Vec<_>>>()?.into_iter()))
    }

    fn settle_parts(&self, permit: &RawPermit, actual: &[(&str, u64)]) -> Result<()> {
        // What is wrong must not end the permit.
        self.check_used(permit, actual)?;
        self.group.end(permit, |_, _, child, part| child.settle_parts(part, actual))
    }
}

behind_group!(FirstOfLimiter);

impl Quiet for FirstOfLimiter {
    fn quiet_attempt(&self, key: &str, weight: u64) -> Result<Attempt> {
        self.choose(&self.group.split_start(key, weight)?, |child, key, weight| {
            Ok(match child.quiet_attempt(key, weight)? {
                Attempt::Admitted(permit) => Ok(permit),
                Attempt::Denied(after) => Err(after),
            })
        })
        .map(|chosen| chosen.map_or_else(Attempt::Denied, |(at, permit)| Attempt::Admitted(self.started(at, permit))))
    }

    fn quiet_decide(&self, key: &str, weight: u64) -> Result<Decision> {
        let decided = self.choose(&self.group.split_start(key, weight)?, |child, key, weight| {
            let decision = child.quiet_decide(key, weight)?;
            Ok(match decision.permit {
                Some(permit) => Ok((permit, decision)),
                None => Err(decision),
            })
        })?;
        Ok(decided.map_or_else(
            |denial| denial,
            |(at, (permit, decision))| Decision { permit: Some(self.started(at, permit)), ..decision },
        ))
    }

    fn quiet_peek(&self, key: &str, weight: u64) -> Result<Decision> {
        Ok(self.first(&self.group.split(key, weight)?)?.1)
    }

    fn peek_again(&self, key: &str, weight: u64) -> Result<Decision> {
        self.look_again(&self.group.split(key, weight)?)
    }

    /// When one of them has its part of so many: all together have no more before that.
    fn quiet_forecast(&self, key: &str, units: u64) -> Result<Option<Duration>> {
        let alternatives = self.alternatives()?;
        let part = units.div_ceil(alternatives.len() as u64);
        let charges = self.group.split(key, 1)?;
        let of = |(i, child): (usize, &'_ Child)| {
            let (key, weight) = charges.at(i);
            child.quiet_forecast(key, weight.saturating_mul(part))
        };
        let all = alternatives.iter().enumerate().map(of).collect::<Result<Vec<_>>>()?;
        Ok(match all.contains(&Some(Duration::ZERO)) {
            true => Some(Duration::ZERO),
            false => all.into_iter().collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().min()),
        })
    }

    fn quiet_pause(&self, key: &str, pause: Duration) -> Result<()> {
        self.each_key(key, |child, key| child.quiet_pause(key, pause)).map(drop)
    }

    fn quiet_clear(&self, key: &str) -> Result<()> {
        self.each_key(key, |child, key| child.quiet_clear(key)).map(drop)
    }

    /// Adds up the counts of the alternatives: each start is counted at one.
    fn quiet_stats(&self, key: &str) -> Result<Stats> {
        let all = self.each_key(key, |child, key| child.quiet_stats(key))?;
        Ok(all.into_iter().fold(Stats::default(), |a, b| Stats {
            admitted: a.admitted + b.admitted,
            denied: a.denied + b.denied,
            units_wanted: a.units_wanted.saturating_add(b.units_wanted),
            units_granted: a.units_granted.saturating_add(b.units_granted),
            waited: a.waited + b.waited,
            wait_time: a.wait_time.saturating_add(b.wait_time),
            cancelled: a.cancelled + b.cancelled,
            store_errors: a.store_errors + b.store_errors,
            policy_changes: a.policy_changes + b.policy_changes,
        }))
    }

    fn quiet_reserve(&self, key: &str, weight: u64, when: When) -> Result<Reserved> {
        self.do_reserve(key, weight, when)
    }

    fn quiet_present(&self, place: &RawPermit) -> Result<Presented> {
        self.do_present(place, |child, place| child.quiet_present(place))
    }

    fn quiet_record_start(&self, _key: &str) -> Result<()> {
        unsupported("record_job_start", "alternatives: record the start at the one where the job runs")
    }

    fn quiet_record_end(&self, _key: &str) -> Result<()> {
        unsupported("record_job_completion", "alternatives: record the end at the one where the job ran")
    }

    fn quiet_close_gate(&self, key: &str, at: SystemTime) -> Result<()> {
        self.each_key(key, |child, key| child.quiet_close_gate(key, at)).map(drop)
    }

    fn arrive(&self, permit: &RawPermit) -> Result<bool> {
        self.group.own(permit)?;
        let has_ended = self.part(permit).map_or(Ok(false), |(child, part)| child.arrive(&part.permit))?;
        if has_ended {
            self.group.take(permit)?;
        }
        Ok(has_ended)
    }
}

impl Nested for FirstOfLimiter {
    nested_in_group!();

    fn is_settled_by_parts(&self, permit: &RawPermit) -> bool {
        self.part(permit).is_some_and(|(child, part)| child.is_settled_by_parts(&part.permit))
    }

    fn check_used(&self, permit: &RawPermit, actual: &[(&str, u64)]) -> Result<()> {
        self.part(permit).map_or(Ok(()), |(child, part)| child.check_used(&part.permit, actual))
    }

    fn chooses(&self) -> bool {
        true
    }

    fn chosen_inside(&self, chosen: u64) -> Option<(usize, Child)> {
        let (at, child, rest) = self.group.chosen_child(chosen)?;
        Some((at, child.chosen_inside(rest).map_or_else(|| child.clone(), |(_, innermost)| innermost)))
    }

    /// All alternatives are charged alike.
    fn describe(&self, key: &str) -> Result<(String, Vec<OwnedCharge>)> {
        let charges: Split = self.group.split(key, 1)?;
        let first = self.alternatives()?.first().filter(|_| !charges.named.is_empty());
        first.map_or_else(|| Ok((key.to_owned(), Vec::new())), |child| child.describe(charges.at(0).0))
    }
}

impl Awaited for FirstOfLimiter {
    fn waited(&self, key: &str, permit: &RawPermit, wait: Duration) {
        if let (Some((child, part)), Ok(charges)) = (self.part(permit), self.group.split(key, 1)) {
            child.waited(charges.at(part.child).0, &part.permit, wait);
        }
    }

    fn waits_more(&self, by: i64) {
        self.group.all().iter().for_each(|child| child.waits_more(by));
    }

    fn prepare(&self, key: &str) -> Result<()> {
        self.each_key(key, |child, key| child.prepare(key)).map(drop)
    }

    fn claim(&self, key: &str, weight: u64, terms: Terms) -> Result<Claim> {
        self.do_claim((key, weight), terms)
    }

    fn returned(&self) -> u64 {
        self.group.all().iter().map(|child| child.returned()).sum()
    }

    fn return_promises(&self, key: &str) {
        let _ = self.each_key(key, |child, key| {
            child.return_promises(key);
            Ok(())
        });
    }

    fn start(&self, place: &RawPermit) -> Result<Presented> {
        Ok(match self.do_present(place, |child, place| child.start(place))? {
            // To a line, the same place would mean that the others behind it wait as long. They may be elsewhere.
            Presented::Wait { place, after } => Presented::Wait { place: self.renumbered(&place), after },
            started => started,
        })
    }

    fn look_ahead(&self, place: &RawPermit) -> Result<Option<Ahead>> {
        self.do_look_ahead(place)
    }

    fn soonest(&self, key: &str, units: u64) -> Duration {
        // One alternative at least has its share of them.
        let share = units.div_ceil(self.group.all().len().max(1) as u64);
        let soonest = self.each_key(key, |child, key| Ok(child.soonest(key, share)));
        soonest.into_iter().flatten().min().unwrap_or_default()
    }

    fn slots(&self, key: &str, weight: u64) -> Result<Option<u64>> {
        let all = self.group.each_charge(key, weight, |child, (key, weight)| child.slots(key, weight))?;
        Ok(all.into_iter().try_fold(0u64, |sum, slots| Some(sum.saturating_add(slots?))))
    }

    fn closed(&self, key: &str) -> Result<Duration> {
        Ok(self.each_key(key, |child, key| child.closed(key))?.into_iter().min().unwrap_or_default())
    }

    fn is_late(&self, place: &RawPermit) -> bool {
        self.part(place).is_some_and(|(child, part)| child.is_late(&part.permit))
    }

    fn has_bounded_queue(&self) -> bool {
        !self.group.all().is_empty() && self.group.all().iter().all(|child| child.has_bounded_queue())
    }

    fn may_start_elsewhere(&self) -> bool {
        self.group.all().len() > 1 && self.waits_for_ends()
    }
}

impl Places for FirstOfLimiter {
    fn has_places(&self) -> bool {
        self.group.all().iter().any(|child| child.has_places())
    }

    fn cancel_place(&self, place: &RawPermit) -> Result<()> {
        let has_started = self.group.found(place).is_some_and(|out| out.state == State::Started);
        if has_started { Ok(()) } else { self.cancel(place) }
    }

    fn drop_place(&self, place: &RawPermit) {
        self.group.drop_parts(self.group.take(place).ok().flatten());
    }

    fn ready_in(&self, permit: &RawPermit) -> Option<Duration> {
        self.at(permit, |child, part| child.ready_in(part))
    }

    fn ready_at(&self, permit: &RawPermit) -> Option<SystemTime> {
        self.at(permit, |child, part| child.ready_at(part))
    }

    fn ready_at_monotonic_ns(&self, permit: &RawPermit) -> Option<u64> {
        self.at(permit, |child, part| child.ready_at_monotonic_ns(part))
    }

    fn window(&self, key: &str) -> Result<Option<Duration>> {
        Ok(self.each_key(key, |child, key| child.window(key))?.into_iter().flatten().min())
    }

    fn to_text(&self, permit: &RawPermit) -> Result<String> {
        self.do_to_text(permit)
    }

    fn permit_from_text(&self, text: &str) -> Result<RawPermit> {
        self.do_permit_from_text(text)
    }
}
