//! Several limits at once: a start needs all of them.

mod out;
mod places;
pub(super) mod text;

use super::inner::{Base, When};
use super::line::{Claim, Terms};
use super::{Attempt, Inner, Limiter, Places, Presented, Reserved, foreign};
use crate::decision::Decision;
use crate::error::{Error, Result};
use crate::fork::PerProcess;
use crate::hooks::Event;
use crate::permit::{CompositePermit, Kind, RawPermit};
use crate::policy;
use crate::state::Session;
use crate::stats::Stats;
use crate::time::ManualClock;
use crate::waiting::MayWait;
use out::{Out, Part, State, Table, are_over};
use places::{ROUNDS, end_all};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};
use std::time::{Duration, SystemTime};

type Child = Arc<dyn Limiter>;

/// Admits what every child admits. A child that denies keeps the others from being charged.
///
/// All children get the same key and weight. A gate goes to all of them, and each answers for itself: a denial names
/// the child that would make the caller wait longest. That child is also told of the denial, for its backoff and its counts.
///
/// A start in the future is a place at one child: the one that makes it wait longest. The others are asked when it starts, and
/// nothing is held there until then. A permit belongs to the process that got it; a place has a text if the child's has one.
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
    base: Base,
    /// The children, replaced as a whole when one is added.
    children: AtomicPtr<List>,
    /// What the permits that are out were taken from.
    out: PerProcess<Table>,
    /// How many composites this one is in, one in the other.
    above: AtomicUsize,
    /// Why it has no children: they are too deep.
    refused: Option<Error>,
}

/// A list, and the one that it replaced: readers may still be in it, so lists live as long as the limiter.
struct List {
    children: Vec<Child>,
    before: *mut List,
}

// SAFETY: a list never changes after it is published, and its children are `Send + Sync`.
unsafe impl Send for CompositeLimiter {}
// SAFETY: as above.
unsafe impl Sync for CompositeLimiter {}

impl CompositeLimiter {
    /// A limiter with these children. Without any it admits everything. Where composites are nested more than 32 deep, every
    /// call is the error that [`CompositeLimiter::add`] would be.
    pub fn new(children: impl IntoIterator<Item = Child>) -> Self {
        Self::named("composite", children)
    }

    /// The same, with a name.
    pub(crate) fn named(name: &str, children: impl IntoIterator<Item = Child>) -> Self {
        let children: Vec<Child> = children.into_iter().collect();
        let refused = fits(0, &children).err();
        let composite = CompositeLimiter {
            base: Base::new(name.into()),
            children: AtomicPtr::new(ptr::null_mut()),
            out: PerProcess::new(),
            above: AtomicUsize::new(0),
            refused,
        };
        if composite.refused.is_none() {
            composite.take_in(children);
        }
        composite
    }

    /// Adds a child. Permits that are out complete against the children they were taken from.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for this limiter itself, for a composite that contains it, and where composites would be
    /// nested more than 32 deep.
    pub fn add(&self, child: Child) -> Result<()> {
        // One at a time: two that take each other at once must not both look before either has.
        static ADDING: PerProcess<()> = PerProcess::new();
        let _guard = ADDING.lock();
        if child.contains(self.base.id) {
            return Err(Error::invalid("limiter", "a composite that contains this one", "one that does not"));
        }
        self.children()?;
        let children = vec![child];
        fits(self.above.load(Relaxed), &children)?;
        self.take_in(children);
        Ok(())
    }

    fn take_in(&self, children: Vec<Child>) {
        let above = self.above.load(Relaxed) + 1;
        children.iter().for_each(|child| child.lower(above));
        self.extend(children);
    }

    fn extend(&self, new: Vec<Child>) {
        let mut before = self.children.load(Acquire);
        loop {
            // SAFETY: as in `all`.
            let old = unsafe { before.as_ref() }.map_or(&[][..], |list| &list.children);
            let children = old.iter().chain(&new).cloned().collect();
            let list = Box::into_raw(Box::new(List { children, before }));
            match self.children.compare_exchange(before, list, AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => {
                    // SAFETY: nobody else has seen `list`.
                    drop(unsafe { Box::from_raw(list) });
                    before = now;
                }
            }
        }
    }

    fn children(&self) -> Result<&[Child]> {
        match &self.refused {
            Some(error) => Err(error.clone()),
            None => Ok(self.all()),
        }
    }

    /// The children; none if they were refused.
    fn all(&self) -> &[Child] {
        // SAFETY: null, or made by `extend` and freed only by `drop`.
        unsafe { self.children.load(Acquire).as_ref() }.map_or(&[], |list| &list.children)
    }

    /// Claims every child, or none.
    fn claim(&self, key: &str, weight: u64) -> Result<Result<RawPermit, Decision>> {
        // Look first: a denial then costs nobody anything.
        let mut seen = self.peek_each(key, weight)?;
        let denials = seen.iter_mut().filter(|(_, one)| !one.admitted).rev();
        // Of several, the first.
        let Some((child, worst)) = denials.max_by_key(|(_, one)| one.retry_after) else {
            let denied = |(child, after): (&Child, _)| denial(child, after, child.quiet_peek(key, weight).ok());
            return Ok(self.take_all(key, weight)?.map_err(denied));
        };
        // It has to know that it denied a start: for its backoff and its counts.
        let denial = child.quiet_decide(key, weight)?;
        match denial.permit {
            None => *worst = denial,
            // It has room by now, but no other was asked.
            Some(permit) => MayWait::to_undo(|| child.cancel(&permit))?,
        }
        Ok(Err(merge_all(seen)))
    }

    /// The same without all that is known then: if the others have room, the first child is asked to start right away, as
    /// nothing has to be given back if it denies. (One that somebody wrote is looked at in any case, which checks its answers.)
    fn try_claim(&self, key: &str, weight: u64) -> Result<Attempt> {
        for (i, child) in self.children()?.iter().enumerate() {
            if (i > 0 || child.has_custom()) && !child.has_room(key, weight)? {
                let denied = |denial: Decision| Attempt::Denied(denial.retry_after);
                return Ok(self.claim(key, weight)?.map_or_else(denied, Attempt::Admitted));
            }
        }
        Ok(self.take_all(key, weight)?.map_or_else(|(_, after)| Attempt::Denied(after), Attempt::Admitted))
    }

    /// Claims one child after the other; if somebody was faster at one, those before it get their units back. The answer is
    /// the child that denied, or a permit.
    fn take_all(&self, key: &str, weight: u64) -> Result<Result<RawPermit, (&Child, Duration)>> {
        let children = self.children()?;
        let mut parts: Vec<Part> = Vec::with_capacity(children.len());
        for (i, child) in children.iter().enumerate() {
            match child.quiet_attempt(key, weight) {
                Ok(Attempt::Admitted(permit)) => parts.push(Part { child: i, permit }),
                other => {
                    let given_back =
                        MayWait::to_undo(|| end_all(children, &parts, |child, permit| child.cancel(permit)));
                    let Attempt::Denied(after) = other? else { unreachable!("it was admitted") };
                    given_back?;
                    return Ok(Err((child, after)));
                }
            }
        }
        Ok(Ok(self.hand_out(Out { parts, state: State::Started, wish: None })))
    }

    fn hand_out(&self, out: Out) -> RawPermit {
        let mut table = self.out.lock();
        let number = table.insert(out);
        if table.has_too_many() {
            let suspects = table.suspects();
            drop(table);
            self.forget_those_over(suspects);
        }
        RawPermit::new(self.base.id, Kind::Composite(CompositePermit { number }))
    }

    #[cold]
    fn forget_those_over(&self, suspects: impl IntoIterator<Item = (u64, Vec<Part>)>) {
        for (old, parts) in suspects {
            if are_over(self.all(), &parts) {
                self.out.lock().remove(old);
            }
        }
    }

    /// The number of a permit of this limiter.
    fn own(&self, permit: &RawPermit) -> Result<u64> {
        match permit.of(self.base.id) {
            Some(Kind::Composite(CompositePermit { number })) => Ok(number),
            _ => foreign(self.name()),
        }
    }

    fn peek_each(&self, key: &str, weight: u64) -> Result<Vec<(&Child, Decision)>> {
        self.children()?.iter().map(|child| Ok((child, child.quiet_peek(key, weight)?))).collect()
    }

    /// What all children say together.
    fn look(&self, key: &str, weight: u64) -> Result<Decision> {
        policy::check_key(key)?;
        Ok(merge_all(self.peek_each(key, weight)?))
    }

    /// What is out under a permit's number; nothing if it ended, or is the parent's.
    fn found(&self, permit: &RawPermit) -> Option<Out> {
        let number = self.own(permit).ok()?;
        self.out.lock().get(number).cloned()
    }

    /// Forgets a permit: what it held, which is for the caller to end.
    fn take(&self, permit: &RawPermit) -> Result<Option<Out>> {
        let number = self.own(permit)?;
        Ok(self.out.lock().remove(number))
    }

    /// Ends each part of a permit, also after one that could not be; the first error is told. Those that would have to wait, where
    /// they must not, are left for the call that comes again.
    fn end(&self, permit: &RawPermit, end: impl Fn(State, &Child, &RawPermit) -> Result<()>) -> Result<()> {
        let number = self.own(permit)?;
        let Some(mut out) = self.out.lock().take(number) else { return Ok(()) };
        let mut ended = Ok(());
        out.parts.retain(|part| match end(out.state, &self.all()[part.child], &part.permit) {
            Err(Error::WouldWait) => true,
            answer => {
                ended = std::mem::replace(&mut ended, Ok(())).and(answer);
                false
            }
        });
        let is_left = !out.parts.is_empty();
        self.out.lock().put_back(number, is_left.then_some(out));
        if is_left { Err(Error::WouldWait) } else { ended }
    }

    /// Forgets places that others may still use.
    fn drop_parts(&self, out: Option<Out>) {
        out.iter().flat_map(|out| &out.parts).for_each(|part| self.all()[part.child].drop_place(&part.permit));
    }

    /// What the parts of a permit say.
    fn parts<R>(&self, permit: &RawPermit, f: impl Fn(&Child, &RawPermit) -> Option<R>) -> impl Iterator<Item = R> {
        let parts = self.found(permit).map(|out| out.parts).unwrap_or_default();
        parts.into_iter().filter_map(move |part| f(&self.all()[part.child], &part.permit))
    }

    fn each(&self, f: impl Fn(&Child) -> Result<()>) -> Result<()> {
        self.children()?.iter().try_for_each(f)
    }
}

/// Composites may be nested so deep: calls go down on the stack.
const DEEPEST: usize = 32;

/// May a composite with so many others around it have these children?
fn fits(above: usize, children: &[Child]) -> Result<()> {
    let depth = above + 1 + children.iter().map(|child| child.depth()).max().unwrap_or(0);
    if depth > DEEPEST {
        let value = format_args!("a composite that is {depth} deep");
        return Err(Error::invalid("limiter", value, format!("composites in composites at most {DEEPEST} deep")));
    }
    Ok(())
}

/// The decision of a child that has denied a start, which may be tried again `after` this time. `seen`: what it says since.
fn denial(child: &Child, after: Duration, seen: Option<Decision>) -> Decision {
    let by = seen.as_ref().and_then(|seen| seen.denied_by.clone()).unwrap_or_else(|| child.base().name.clone());
    let seen = seen.unwrap_or_else(|| super::NullLimiter::new().decision(None));
    Decision {
        admitted: false,
        retry_after: seen.retry_after.max(after),
        suggested_after: seen.suggested_after.max(after),
        // There may be room again; then there was none a moment ago.
        remaining: if seen.admitted { 0 } else { seen.remaining },
        denied_by: Some(by),
        ..seen
    }
}

/// The strictest of these answers.
fn merge_all(all: Vec<(&Child, Decision)>) -> Decision {
    let none = || super::NullLimiter::new().decision(None);
    all.into_iter().map(|(_, one)| one).reduce(merge).unwrap_or_else(none)
}

/// The stricter of two answers, field by field.
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
        self.end(permit, |state, child, part| match state {
            State::Started => child.complete(part),
            // A place never started here; perhaps it goes on elsewhere, as a text.
            _ => {
                child.drop_place(part);
                Ok(())
            }
        })
    }

    fn cancel(&self, permit: &RawPermit) -> Result<()> {
        self.end(permit, |state, child, part| match state {
            State::Started => child.cancel(part),
            _ => child.cancel_place(part),
        })
    }

    fn settle(&self, permit: &RawPermit, actual: u64) -> Result<()> {
        self.end(permit, |_, child, part| match child.settle(part, actual) {
            // A child whose units come back at the end of the job.
            Err(Error::Unsupported { .. }) => child.complete(part),
            other => other,
        })
    }

    fn renew(&self, permit: &RawPermit) -> Result<()> {
        self.own(permit)?;
        self.parts(permit, |child, part| Some(child.renew(part))).collect()
    }

    /// The fence of the first child whose permits have one.
    fn fence(&self, permit: &RawPermit) -> Option<u64> {
        self.parts(permit, |child, part| child.fence(part)).next()
    }

    fn open(&self) -> Result<()> {
        self.each(|child| child.open())
    }
}

impl Places for CompositeLimiter {
    fn has_places(&self) -> bool {
        self.all().iter().any(|child| child.has_places())
    }

    fn cancel_place(&self, place: &RawPermit) -> Result<()> {
        let has_started = self.found(place).is_some_and(|out| out.state == State::Started);
        if has_started { Ok(()) } else { self.cancel(place) }
    }

    fn drop_place(&self, place: &RawPermit) {
        self.drop_parts(self.take(place).ok().flatten());
    }

    /// When the last of its places is ready.
    fn ready_in(&self, permit: &RawPermit) -> Option<Duration> {
        self.parts(permit, |child, part| child.ready_in(part)).max()
    }

    fn ready_at(&self, permit: &RawPermit) -> Option<SystemTime> {
        self.parts(permit, |child, part| child.ready_at(part)).max()
    }

    fn ready_at_monotonic_ns(&self, permit: &RawPermit) -> Option<u64> {
        self.parts(permit, |child, part| child.ready_at_monotonic_ns(part)).max()
    }

    fn window(&self, key: &str) -> Result<Option<Duration>> {
        let windows = self.children()?.iter().map(|child| child.window(key)).collect::<Result<Vec<_>>>()?;
        Ok(windows.into_iter().flatten().min())
    }

    fn to_text(&self, permit: &RawPermit) -> Result<String> {
        self.do_to_text(permit)
    }

    fn permit_from_text(&self, text: &str) -> Result<RawPermit> {
        self.do_permit_from_text(text)
    }
}

impl Inner for CompositeLimiter {
    #[inline(always)]
    fn base(&self) -> &Base {
        &self.base
    }

    fn quiet_attempt(&self, key: &str, weight: u64) -> Result<Attempt> {
        super::null::check(key, weight)?;
        self.try_claim(key, weight)
    }

    fn quiet_decide(&self, key: &str, weight: u64) -> Result<Decision> {
        super::null::check(key, weight)?;
        match self.claim(key, weight)? {
            Err(denial) => Ok(denial),
            Ok(permit) => {
                let after = match self.look(key, 0) {
                    Ok(after) => after,
                    // Nobody would learn of the permit.
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
        self.look(key, weight)
    }

    fn quiet_pause(&self, key: &str, pause: Duration) -> Result<()> {
        self.each(|child| child.quiet_pause(key, pause))
    }

    fn quiet_clear(&self, key: &str) -> Result<()> {
        self.each(|child| child.quiet_clear(key))
    }

    /// A composite counts nothing of its own: this is what its children counted, so it is right where nobody else uses
    /// them. A start is admitted where all admitted it; a denial is the child's that it was told to.
    fn quiet_stats(&self, key: &str) -> Result<Stats> {
        let all = self.children()?.iter().map(|child| child.quiet_stats(key)).collect::<Result<Vec<_>>>()?;
        // Some count nothing.
        let all: Vec<_> = all.into_iter().filter(|stats| *stats != Stats::default()).collect();
        let least = |f: fn(&Stats) -> u64| all.iter().map(f).min().unwrap_or(0);
        let most = |f: fn(&Stats) -> u64| all.iter().map(f).max().unwrap_or(0);
        let sum = |f: fn(&Stats) -> u64| all.iter().map(f).sum::<u64>();
        let units_granted = least(|stats| stats.units_granted);
        Ok(Stats {
            admitted: least(|stats| stats.admitted),
            denied: sum(|stats| stats.denied),
            units_wanted: units_granted + sum(|stats| stats.units_wanted.saturating_sub(stats.units_granted)),
            units_granted,
            waited: most(|stats| stats.waited),
            wait_time: all.iter().map(|stats| stats.wait_time).max().unwrap_or_default(),
            cancelled: most(|stats| stats.cancelled),
            store_errors: sum(|stats| stats.store_errors),
            policy_changes: sum(|stats| stats.policy_changes),
        })
    }

    fn waited(&self, key: &str, permit: &RawPermit, wait: Duration) {
        let _ = self.each(|child| {
            child.waited(key, permit, wait);
            Ok(())
        });
    }

    fn waits_more(&self, by: i64) {
        let _ = self.each(|child| {
            child.waits_more(by);
            Ok(())
        });
    }

    fn quiet_reserve(&self, key: &str, weight: u64, when: When) -> Result<Reserved> {
        self.do_reserve(key, weight, when)
    }

    fn quiet_present(&self, place: &RawPermit) -> Result<Presented> {
        self.present_in(place, 1)
    }

    fn quiet_record_start(&self, key: &str) -> Result<()> {
        self.each(|child| child.quiet_record_start(key))
    }

    fn quiet_record_end(&self, key: &str) -> Result<()> {
        self.each(|child| child.quiet_record_end(key))
    }

    fn quiet_close_gate(&self, key: &str, at: SystemTime) -> Result<()> {
        self.each(|child| child.quiet_close_gate(key, at))
    }

    fn is_heard(&self) -> bool {
        self.base.hooks.are_any() || self.all().iter().any(|child| child.is_heard())
    }

    fn stores(&self, all: &mut Vec<Arc<Session>>) {
        self.all().iter().for_each(|child| child.stores(all));
    }

    fn tell(&self, event: &Event) -> bool {
        let is_of_a_child = self.all().iter().any(|child| child.tell(event));
        if is_of_a_child {
            self.base.hooks.call(event);
        }
        is_of_a_child
    }

    fn claim(&self, key: &str, weight: u64, terms: Terms) -> Result<Claim> {
        self.do_claim((key, weight), terms)
    }

    fn start(&self, place: &RawPermit) -> Result<Presented> {
        self.present_in(place, ROUNDS)
    }

    fn soonest(&self, key: &str, units: u64) -> Duration {
        self.all().iter().map(|child| child.soonest(key, units)).max().unwrap_or_default()
    }

    fn slots(&self, key: &str, weight: u64) -> Result<Option<u64>> {
        let all = self.children()?.iter().map(|child| child.slots(key, weight)).collect::<Result<Vec<_>>>()?;
        Ok(all.into_iter().flatten().min())
    }

    fn closed(&self, key: &str) -> Result<Duration> {
        self.children()?.iter().map(|child| child.closed(key)).try_fold(Duration::ZERO, |most, one| Ok(most.max(one?)))
    }

    fn manual_clock(&self) -> Option<ManualClock> {
        self.all().iter().find_map(|child| child.manual_clock())
    }

    fn is_late(&self, place: &RawPermit) -> bool {
        self.parts(place, |child, part| Some(child.is_late(part))).any(|is_late| is_late)
    }

    fn has_bounded_queue(&self) -> bool {
        self.all().iter().any(|child| child.has_bounded_queue())
    }

    fn is_over(&self, permit: &RawPermit) -> bool {
        self.found(permit).is_none_or(|out| are_over(self.all(), &out.parts))
    }

    fn contains(&self, composite: u64) -> bool {
        self.base.id == composite || self.all().iter().any(|child| child.contains(composite))
    }

    fn has_custom(&self) -> bool {
        self.all().iter().any(|child| child.has_custom())
    }

    fn depth(&self) -> usize {
        1 + self.all().iter().map(|child| child.depth()).max().unwrap_or(0)
    }

    fn lower(&self, above: usize) {
        if self.above.fetch_max(above, Relaxed) < above {
            self.all().iter().for_each(|child| child.lower(above + 1));
        }
    }

    fn is_due(&self) -> bool {
        self.all().iter().any(|child| child.is_due())
    }

    fn look_after(&self) {
        self.all().iter().filter(|child| child.is_due()).for_each(|child| child.look_after());
    }
}

impl Drop for CompositeLimiter {
    fn drop(&mut self) {
        let mut list = *self.children.get_mut();
        while !list.is_null() {
            // SAFETY: made by `extend`; nobody can be reading it any more.
            let this = unsafe { Box::from_raw(list) };
            list = this.before;
        }
    }
}
