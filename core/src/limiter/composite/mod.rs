//! Several limits at once: a start needs all of them.

mod joint;
mod out;
mod places;
pub(super) mod text;

use super::internal::{Awaited, Base, Behind, Nested, OwnedCharge, Quiet, When};
use super::line::{Claim, Terms};
use super::{Attempt, Limiter, Places, Presented, Reserved, foreign};
use crate::charges::{Charge, JointKey, Split};
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
use std::collections::HashSet;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};
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
    base: Base,
    /// The children. The list is replaced as a whole when one is added.
    children: AtomicPtr<List>,
    /// The parts of the permits and places in use.
    out: PerProcess<Table>,
    /// How many composites enclose this one.
    above: AtomicUsize,
    /// Set if the children were refused because they are nested too deep.
    refused: Option<Error>,
}

/// A list, and the one that it replaced. Readers may still use an old list, so lists live as long as the limiter.
struct List {
    children: Vec<Child>,
    /// The name that each of them has as a part.
    names: Vec<Arc<str>>,
    before: *mut List,
}

// SAFETY: a list never changes after it is published, and its children are `Send + Sync`.
unsafe impl Send for CompositeLimiter {}
// SAFETY: as above.
unsafe impl Sync for CompositeLimiter {}

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
        let (names, children): (Vec<_>, Vec<Child>) = parts.into_iter().unzip();
        let given: Vec<&str> = names.iter().flatten().map(|name| &**name).collect();
        let refused = joint::check_names(&[], &given).and_then(|()| fits(0, &[], &children)).err();
        let composite = CompositeLimiter {
            base: Base::new(name.into()),
            children: AtomicPtr::new(ptr::null_mut()),
            out: PerProcess::new(),
            above: AtomicUsize::new(0),
            refused,
        };
        if composite.refused.is_none() {
            composite.take_in(names, children);
        }
        composite
    }

    /// Adds a child, which has the name of its limit as a part. Permits that were issued before complete against the children they were taken from.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for this limiter itself, for a composite that contains it, for a limit that is a child
    /// already, and where composites would be nested more than 32 deep.
    pub fn add(&self, child: Child) -> Result<()> {
        self.add_part(None, child)
    }

    /// Adds a child as a part with this name: see [`CompositeLimiter::named`].
    ///
    /// # Errors
    /// As for [`CompositeLimiter::add`]; [`Error::InvalidArgument`] for a name that is empty, too long or taken.
    pub fn add_named(&self, name: &str, child: Child) -> Result<()> {
        self.add_part(Some(name), child)
    }

    fn add_part(&self, name: Option<&str>, child: Child) -> Result<()> {
        // One at a time: two composites that add each other at once must not both check before either has added.
        static ADDING: PerProcess<()> = PerProcess::new();
        let _guard = ADDING.lock();
        if child.contains(self.base.id) {
            return Err(Error::invalid("limiter", "a composite that contains this one", "one that does not"));
        }
        let (before, children) = (self.children()?, vec![child]);
        joint::check_names(self.names(), name.as_slice())?;
        fits(self.above.load(Relaxed), before, &children)?;
        self.take_in(vec![name.map(Arc::from)], children);
        Ok(())
    }

    fn take_in(&self, names: Vec<Option<Arc<str>>>, children: Vec<Child>) {
        let above = self.above.load(Relaxed) + 1;
        children.iter().for_each(|child| child.lower(above));
        let named = names.into_iter().zip(&children);
        let names = named.map(|(name, child)| name.unwrap_or_else(|| joint::name_of(self.name(), child.name())));
        self.extend(names.collect(), children);
    }

    fn extend(&self, names: Vec<Arc<str>>, new: Vec<Child>) {
        let mut before = self.children.load(Acquire);
        loop {
            // SAFETY: as in `all`.
            let old = unsafe { before.as_ref() };
            let children = old.map_or(&[][..], |list| &list.children).iter().chain(&new).cloned().collect();
            let names = old.map_or(&[][..], |list| &list.names).iter().chain(&names).cloned().collect();
            let list = Box::into_raw(Box::new(List { children, names, before }));
            match self.children.compare_exchange(before, list, AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => {
                    // SAFETY: no other thread has seen `list`.
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

    /// Returns the children; none if they were refused.
    fn all(&self) -> &[Child] {
        // SAFETY: null, or made by `extend` and freed only by `drop`.
        unsafe { self.children.load(Acquire).as_ref() }.map_or(&[], |list| &list.children)
    }

    /// Returns the names of the parts, in the order of the children.
    fn names(&self) -> &[Arc<str>] {
        // SAFETY: as in `all`.
        unsafe { self.children.load(Acquire).as_ref() }.map_or(&[], |list| &list.names)
    }

    /// Reads what a start charges each child.
    #[inline(always)]
    fn split<'k>(&self, key: &'k str, weight: u64) -> Result<Split<'k>> {
        Split::of(key, weight, self.base.id)
    }

    /// The same for a start, which has a weight.
    #[inline(always)]
    fn split_start<'k>(&self, key: &'k str, weight: u64) -> Result<Split<'k>> {
        policy::check_some(weight)?;
        self.split(key, weight)
    }

    /// Claims every child, or none.
    fn claim(&self, charges: &Split) -> Result<Result<RawPermit, Decision>> {
        // Peeking first makes a denial free for the other children.
        let mut seen = self.peek_each(charges)?;
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
        for (i, child) in self.children()?.iter().enumerate() {
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
        let children = self.children()?;
        let mut parts: Vec<Part> = Vec::with_capacity(children.len());
        for (i, child) in children.iter().enumerate() {
            let (key, weight) = charges.at(i);
            match child.quiet_attempt(key, weight) {
                Ok(Attempt::Admitted(permit)) => parts.push(Part { child: i, permit }),
                other => {
                    let given_back =
                        MayWait::to_undo(|| end_all(children, &parts, |child, permit| child.cancel(permit)));
                    let Attempt::Denied(after) = other? else { unreachable!("it was admitted") };
                    given_back?;
                    return Ok(Err((i, child, after)));
                }
            }
        }
        let has_own_weights = charges.has_own_weights();
        Ok(Ok(self.hand_out(Out { parts, state: State::Started, wish: None, has_own_weights })))
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

    /// Returns the number of this limiter's permit.
    fn own(&self, permit: &RawPermit) -> Result<u64> {
        match permit.of(self.base.id) {
            Some(Kind::Composite(CompositePermit { number })) => Ok(number),
            _ => foreign(self.name()),
        }
    }

    fn peek_each(&self, charges: &Split) -> Result<Vec<(&Child, Decision)>> {
        let peek = |(i, child): (usize, &'_ Child)| {
            let (key, weight) = charges.at(i);
            child.quiet_peek(key, weight)
        };
        self.children()?.iter().enumerate().map(|(i, child)| Ok((child, peek((i, child))?))).collect()
    }

    /// Merges the decisions of all children.
    fn look(&self, charges: &Split) -> Result<Decision> {
        Ok(merge_all(self.peek_each(charges)?))
    }

    /// Returns the parts of a permit; `None` if it has ended, or belongs to the parent.
    fn found(&self, permit: &RawPermit) -> Option<Out> {
        let number = self.own(permit).ok()?;
        self.out.lock().get(number).cloned()
    }

    /// Forgets a permit and returns its parts, which the caller has to end.
    fn take(&self, permit: &RawPermit) -> Result<Option<Out>> {
        let number = self.own(permit)?;
        Ok(self.out.lock().remove(number))
    }

    /// Ends each part of a permit, continuing after a failure; the first error is returned. Parts that would have to
    /// wait, where that is not allowed, are left for the repeated call.
    fn end(&self, permit: &RawPermit, end: impl Fn(State, usize, &Child, &RawPermit) -> Result<()>) -> Result<()> {
        let number = self.own(permit)?;
        let Some(mut out) = self.out.lock().take(number) else { return Ok(()) };
        let mut ended = Ok(());
        out.parts.retain(|part| match end(out.state, part.child, &self.all()[part.child], &part.permit) {
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

    /// Forgets places that other processes may still use.
    fn drop_parts(&self, out: Option<Out>) {
        out.iter().flat_map(|out| &out.parts).for_each(|part| self.all()[part.child].drop_place(&part.permit));
    }

    /// Collects a value from the parts of a permit.
    fn parts<R>(&self, permit: &RawPermit, f: impl Fn(&Child, &RawPermit) -> Option<R>) -> impl Iterator<Item = R> {
        let parts = self.found(permit).map(|out| out.parts).unwrap_or_default();
        parts.into_iter().filter_map(move |part| f(&self.all()[part.child], &part.permit))
    }

    fn each(&self, f: impl Fn(&Child) -> Result<()>) -> Result<()> {
        self.children()?.iter().try_for_each(f)
    }

    /// Calls a function for each child with its key, and collects the answers.
    fn each_key<R>(&self, key: &str, f: impl Fn(&Child, &str) -> Result<R>) -> Result<Vec<R>> {
        self.each_charge(key, 0, |child, (key, _)| f(child, key))
    }

    /// The same with its charge.
    fn each_charge<R>(&self, key: &str, weight: u64, f: impl Fn(&Child, (&str, u64)) -> Result<R>) -> Result<Vec<R>> {
        let charges = self.split(key, weight)?;
        self.children()?.iter().enumerate().map(|(i, child)| f(child, charges.at(i))).collect()
    }
}

/// The deepest nesting of composites: calls use the stack.
const DEEPEST: usize = 32;

/// Checks that a composite enclosed by this many others may have these children in addition to those before.
fn fits(above: usize, before: &[Child], children: &[Child]) -> Result<()> {
    // A start would have to take its units twice, which a limit that has them once never admits.
    let (mut limits, mut seen) = (Vec::new(), HashSet::new());
    before.iter().chain(children).for_each(|child| child.list_limits(&mut limits));
    if let Some((_, name)) = limits.iter().find(|limit| !seen.insert(*limit)) {
        return Err(Error::invalid(
            "limiter",
            format_args!("limit \"{name}\" twice"),
            "each limit once in a composite",
        ));
    }
    let depth = above + 1 + children.iter().map(|child| child.depth()).max().unwrap_or(0);
    if depth > DEEPEST {
        let value = format_args!("a composite that is {depth} deep");
        return Err(Error::invalid("limiter", value, format!("composites in composites at most {DEEPEST} deep")));
    }
    Ok(())
}

/// Ends a child's part of a permit: the job ran.
fn complete_at(state: State, child: &Child, part: &RawPermit) -> Result<()> {
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
fn settle_at(child: &Child, part: &RawPermit, actual: u64) -> Result<()> {
    match child.settle(part, actual) {
        // A child whose units become free at the end of the job.
        Err(Error::Unsupported { .. }) => child.complete(part),
        other => other,
    }
}

/// Refuses one number for parts that were charged weights of their own.
fn by_parts(actual: u64) -> Result<()> {
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
        self.end(permit, |state, _, child, part| complete_at(state, child, part))
    }

    fn cancel(&self, permit: &RawPermit) -> Result<()> {
        self.end(permit, |state, _, child, part| match state {
            State::Started => child.cancel(part),
            _ => child.cancel_place(part),
        })
    }

    fn settle(&self, permit: &RawPermit, actual: u64) -> Result<()> {
        if self.is_settled_by_parts(permit) {
            return by_parts(actual);
        }
        self.end(permit, |_, _, child, part| settle_at(child, part, actual))
    }

    fn renew(&self, permit: &RawPermit) -> Result<()> {
        self.own(permit)?;
        // One that is lost must not cost the others.
        let renewed: Vec<Result<()>> = self.parts(permit, |child, part| Some(child.renew(part))).collect();
        renewed.into_iter().collect()
    }

    /// Returns the fence of the first child whose permits have one.
    fn fence(&self, permit: &RawPermit) -> Option<u64> {
        self.parts(permit, |child, part| child.fence(part)).next()
    }

    fn open(&self) -> Result<()> {
        self.each(|child| child.open())
    }

    fn part_names(&self) -> Vec<String> {
        self.names().iter().map(|name| name.to_string()).collect()
    }

    fn parts(&self) -> Vec<(String, Child)> {
        self.part_names().into_iter().zip(self.all().iter().cloned()).collect()
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
        self.all().iter().any(|child| child.has_places())
    }

    fn cancel_place(&self, place: &RawPermit) -> Result<()> {
        let has_started = self.found(place).is_some_and(|out| out.state == State::Started);
        if has_started { Ok(()) } else { self.cancel(place) }
    }

    fn drop_place(&self, place: &RawPermit) {
        self.drop_parts(self.take(place).ok().flatten());
    }

    /// Returns when the last of its places is ready.
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
        let windows = self.each_key(key, |child, key| child.window(key))?;
        Ok(windows.into_iter().flatten().min())
    }

    fn to_text(&self, permit: &RawPermit) -> Result<String> {
        self.do_to_text(permit)
    }

    fn permit_from_text(&self, text: &str) -> Result<RawPermit> {
        self.do_permit_from_text(text)
    }
}

impl Behind for CompositeLimiter {
    #[inline(always)]
    fn base(&self) -> &Base {
        &self.base
    }

    fn list_limits(&self, all: &mut Vec<(usize, Arc<str>)>) {
        self.all().iter().for_each(|child| child.list_limits(all));
    }

    fn has_hooks(&self) -> bool {
        self.base.hooks.are_any() || self.all().iter().any(|child| child.has_hooks())
    }

    fn stores(&self, all: &mut Vec<Arc<Session>>) {
        self.all().iter().for_each(|child| child.stores(all));
    }

    fn closed_store(&self) -> Option<Error> {
        self.all().iter().find_map(|child| child.closed_store())
    }

    fn notify(&self, event: &Event) -> bool {
        let is_of_a_child = self.all().iter().any(|child| child.notify(event));
        if is_of_a_child {
            self.base.hooks.call(event);
        }
        is_of_a_child
    }

    fn manual_clock(&self) -> Option<ManualClock> {
        self.all().iter().find_map(|child| child.manual_clock())
    }

    fn has_custom(&self) -> bool {
        self.all().iter().any(|child| child.has_custom())
    }

    fn is_due(&self) -> bool {
        self.all().iter().any(|child| child.is_due())
    }

    fn look_after(&self) {
        self.all().iter().filter(|child| child.is_due()).for_each(|child| child.look_after());
    }
}

impl Quiet for CompositeLimiter {
    fn quiet_attempt(&self, key: &str, weight: u64) -> Result<Attempt> {
        self.try_claim(&self.split_start(key, weight)?)
    }

    fn arrive(&self, permit: &RawPermit) -> Result<bool> {
        let number = self.own(permit)?;
        let arrived: Vec<Result<Option<RawPermit>>> =
            self.parts(permit, |child, part| Some(child.arrive(part).map(|has| has.then_some(*part)))).collect();
        // What has ended need not be renewed.
        if let Some(out) = self.out.lock().get_mut(number) {
            out.parts.retain(|part| !arrived.contains(&Ok(Some(part.permit))));
        }
        arrived.into_iter().collect::<Result<Vec<_>>>().map(|_| false)
    }

    fn quiet_decide(&self, key: &str, weight: u64) -> Result<Decision> {
        let mut charges = self.split_start(key, weight)?;
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
        self.look(&self.split(key, weight)?)
    }

    fn quiet_pause(&self, key: &str, pause: Duration) -> Result<()> {
        self.each_key(key, |child, key| child.quiet_pause(key, pause)).map(drop)
    }

    fn quiet_clear(&self, key: &str) -> Result<()> {
        self.each_key(key, |child, key| child.quiet_clear(key)).map(drop)
    }

    /// Merges the counts of the children. A composite counts nothing itself, so the result is exact only if no other
    /// caller uses the children directly. A start is admitted where all admitted it; a denial belongs to the child that
    /// recorded it.
    fn quiet_stats(&self, key: &str) -> Result<Stats> {
        let all = self.each_key(key, |child, key| child.quiet_stats(key))?;
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
        self.present_in(place, 1)
    }

    fn quiet_record_start(&self, key: &str) -> Result<()> {
        self.each_key(key, |child, key| child.quiet_record_start(key)).map(drop)
    }

    fn quiet_record_end(&self, key: &str) -> Result<()> {
        self.each_key(key, |child, key| child.quiet_record_end(key)).map(drop)
    }

    fn quiet_close_gate(&self, key: &str, at: SystemTime) -> Result<()> {
        self.each_key(key, |child, key| child.quiet_close_gate(key, at)).map(drop)
    }
}

impl Awaited for CompositeLimiter {
    fn waited(&self, key: &str, permit: &RawPermit, wait: Duration) {
        let _ = self.each_key(key, |child, key| {
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

    fn prepare(&self, key: &str) -> Result<()> {
        self.each_key(key, |child, key| child.prepare(key)).map(drop)
    }

    fn claim(&self, key: &str, weight: u64, terms: Terms) -> Result<Claim> {
        self.do_claim((key, weight), terms)
    }

    fn start(&self, place: &RawPermit) -> Result<Presented> {
        self.present_in(place, ROUNDS)
    }

    fn soonest(&self, key: &str, units: u64) -> Duration {
        let soonest = self.each_key(key, |child, key| Ok(child.soonest(key, units)));
        soonest.into_iter().flatten().max().unwrap_or_default()
    }

    fn slots(&self, key: &str, weight: u64) -> Result<Option<u64>> {
        let all = self.each_charge(key, weight, |child, (key, weight)| child.slots(key, weight))?;
        Ok(all.into_iter().flatten().min())
    }

    fn closed(&self, key: &str) -> Result<Duration> {
        Ok(self.each_key(key, |child, key| child.closed(key))?.into_iter().max().unwrap_or_default())
    }

    fn is_late(&self, place: &RawPermit) -> bool {
        self.parts(place, |child, part| Some(child.is_late(part))).any(|is_late| is_late)
    }

    fn has_bounded_queue(&self) -> bool {
        self.all().iter().any(|child| child.has_bounded_queue())
    }
}

impl Nested for CompositeLimiter {
    fn is_settled_by_parts(&self, permit: &RawPermit) -> bool {
        let inside = |part: &Part| self.all()[part.child].is_settled_by_parts(&part.permit);
        self.found(permit).is_some_and(|out| out.has_own_weights || out.parts.iter().any(inside))
    }

    fn is_over(&self, permit: &RawPermit) -> bool {
        self.found(permit).is_none_or(|out| are_over(self.all(), &out.parts))
    }

    fn contains(&self, composite: u64) -> bool {
        self.base.id == composite || self.all().iter().any(|child| child.contains(composite))
    }

    fn describe(&self, key: &str) -> Result<(String, Vec<OwnedCharge>)> {
        self.do_describe(key)
    }

    fn charge_at(&self, limit: &str, start: (&str, u64)) -> Option<(String, u64)> {
        self.do_charge_at(limit, start)
    }

    fn depth(&self) -> usize {
        1 + self.all().iter().map(|child| child.depth()).max().unwrap_or(0)
    }

    fn lower(&self, above: usize) {
        if self.above.fetch_max(above, Relaxed) < above {
            self.all().iter().for_each(|child| child.lower(above + 1));
        }
    }
}

impl Drop for CompositeLimiter {
    fn drop(&mut self) {
        let mut list = *self.children.get_mut();
        while !list.is_null() {
            // SAFETY: made by `extend`; no other thread can be reading it any more.
            let this = unsafe { Box::from_raw(list) };
            list = this.before;
        }
    }
}
