//! Several limits at once: a start needs all of them.

mod parts;
mod places;
mod text;

use super::{Attempt, Limiter, Presented, Progress, Reserved, Step, Wait, next_id, own};
use crate::decision::Decision;
use crate::error::{Error, Result};
use crate::fork::PerProcess;
use crate::permit::RawPermit;
use crate::policy;
use crate::stats::Stats;
use parts::{Out, Part, State, end_all};
use std::collections::HashMap;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};
use std::time::{Duration, SystemTime};

type Child = Arc<dyn Limiter>;

/// Admits what every child admits. A child that denies keeps the others from being charged.
///
/// All children get the same key and weight. A gate goes to all of them, and each answers for itself: a denial names
/// the child that would make the caller wait longest. That child is also told of the denial, for its backoff and its counts.
///
/// A start in the future is a place at each child whose room is a matter of time, all for the same moment; the others are
/// asked at that moment. So whoever waits starts in its turn. A permit belongs to the process that got it; a place has a text
/// if those of the children have.
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
    id: u64,
    name: Box<str>,
    /// The children, replaced as a whole when one is added.
    children: AtomicPtr<List>,
    /// What the permits that are out were taken from.
    out: PerProcess<HashMap<u64, Out>>,
    next: AtomicU64,
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
    /// A limiter with these children. Without any it admits everything.
    pub fn new(children: impl IntoIterator<Item = Child>) -> Self {
        Self::named("composite", children)
    }

    /// The same, with a name.
    pub(crate) fn named(name: &str, children: impl IntoIterator<Item = Child>) -> Self {
        let composite = CompositeLimiter {
            id: next_id(),
            name: name.into(),
            children: AtomicPtr::new(ptr::null_mut()),
            out: PerProcess::new(),
            next: AtomicU64::new(1),
        };
        composite.extend(children.into_iter().collect());
        composite
    }

    /// Adds a child. Permits that are out complete against the children they were taken from.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for this limiter itself and for a composite that contains it.
    pub fn add(&self, child: Child) -> Result<()> {
        // One at a time: two that take each other at once must not both look before either has.
        static ADDING: PerProcess<()> = PerProcess::new();
        let _guard = ADDING.lock();
        if child.contains(self.id) {
            return Err(Error::invalid("limiter", "a composite that contains this one", "one that does not"));
        }
        self.extend(vec![child]);
        Ok(())
    }

    fn extend(&self, new: Vec<Child>) {
        let mut before = self.children.load(Acquire);
        loop {
            let children = self.list(before).iter().chain(&new).cloned().collect();
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

    fn list(&self, list: *mut List) -> &[Child] {
        // SAFETY: null, or made by `extend` and freed only by `drop`.
        unsafe { list.as_ref() }.map_or(&[], |list| &list.children)
    }

    fn children(&self) -> &[Child] {
        self.list(self.children.load(Acquire))
    }

    /// Claims every child, or none.
    fn claim(&self, key: &str, weight: u64) -> Result<Result<RawPermit, Decision>> {
        // Look first: a denial then costs nobody anything.
        let mut seen = self.peek_each(key, weight)?;
        let denials = seen.iter_mut().filter(|(_, one)| !one.admitted).rev();
        // Of several, the first.
        let Some((child, worst)) = denials.max_by_key(|(_, one)| one.retry_after) else {
            return self.take_all(key, weight);
        };
        // It has to know that it denied a start: for its backoff and its counts.
        let denial = child.decide(key, weight)?;
        match denial.permit {
            None => *worst = denial,
            // It has room by now, but no other was asked.
            Some(permit) => child.cancel(&permit)?,
        }
        Ok(Err(merge_all(seen)))
    }

    /// Claims one child after the other; if somebody was faster at one, those before it get their units back.
    fn take_all(&self, key: &str, weight: u64) -> Result<Result<RawPermit, Decision>> {
        let mut taken: Vec<Part> = Vec::with_capacity(self.children().len());
        for child in self.children() {
            match child.decide(key, weight) {
                Ok(Decision { permit: Some(permit), .. }) => taken.push(Part::of(child, Some(permit))),
                other => {
                    let given_back = end_all(&taken, |child, permit| child.cancel(permit));
                    let denial = other?;
                    given_back?;
                    return Ok(Err(denial));
                }
            }
        }
        Ok(Ok(self.hand_out(Out::started(taken))))
    }

    fn hand_out(&self, out: Out) -> RawPermit {
        let number = self.next.fetch_add(1, Relaxed);
        self.out.lock().insert(number, out);
        RawPermit::from_words([self.id, 0, number, 0, 0, 0, 0, 0])
    }

    fn peek_each(&self, key: &str, weight: u64) -> Result<Vec<(&Child, Decision)>> {
        self.children().iter().map(|child| Ok((child, child.peek(key, weight)?))).collect()
    }

    /// What all children say together.
    fn look(&self, key: &str, weight: u64) -> Result<Decision> {
        policy::check_key(key)?;
        Ok(merge_all(self.peek_each(key, weight)?))
    }

    /// Ends a permit's parts, each at the child that it was taken from.
    fn end(&self, permit: &RawPermit, end: impl Fn(&Child, &RawPermit) -> Result<()>) -> Result<()> {
        own(permit, self.id, self.name())?;
        // Ended before, or the parent's: nothing to do.
        let Some(out) = self.out.lock().remove(&permit.a) else { return Ok(()) };
        end_all(&out.parts, end)
    }

    /// Is it one of its places that has not started?
    fn is_place(&self, permit: &RawPermit) -> bool {
        permit.limiter == self.id && self.out.lock().get(&permit.a).is_some_and(|out| out.state == State::Place)
    }

    /// What the parts of a permit say.
    fn parts<R>(&self, permit: &RawPermit, f: impl Fn(&Child, &RawPermit) -> Option<R>) -> Vec<R> {
        let parts = match self.out.lock().get(&permit.a) {
            Some(out) if permit.limiter == self.id => out.parts.clone(),
            _ => Vec::new(),
        };
        parts.iter().filter_map(|part| f(&part.child.0, part.permit.as_ref()?)).collect()
    }

    /// When all parts of a place were ready. Or, if one had to be exchanged while others of it were starting, so that this
    /// was never so, the first of these moments: a start counts at no child from before that.
    fn of_all<T: Ord>(&self, permit: &RawPermit, ready: impl Fn(&Child, &RawPermit) -> Option<T>) -> Option<T> {
        /// The clock goes on while the parts are asked.
        const MARGIN: i64 = 100;
        let moments = self.parts(permit, ready).into_iter();
        match self.span(permit) {
            Some((first, last)) if first > last.saturating_sub(MARGIN) => moments.min(),
            _ => moments.max(),
        }
    }

    fn each(&self, f: impl Fn(&Child) -> Result<()>) -> Result<()> {
        self.children().iter().try_for_each(f)
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
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self) -> Result<()> {
        self.each(|child| child.open())
    }

    fn check_permit(&self, permit: &RawPermit) -> Result<()> {
        own(permit, self.id, self.name())
    }

    fn attempt(&self, key: &str, weight: u64) -> Result<Attempt> {
        super::null::check(key, weight)?;
        Ok(match self.claim(key, weight)? {
            Ok(permit) => Attempt::Admitted(permit),
            Err(denial) => Attempt::Denied(denial.retry_after),
        })
    }

    fn decide(&self, key: &str, weight: u64) -> Result<Decision> {
        super::null::check(key, weight)?;
        match self.claim(key, weight)? {
            Err(denial) => Ok(denial),
            Ok(permit) => {
                let after = match self.look(key, 0) {
                    Ok(after) => after,
                    // Nobody would learn of the permit.
                    Err(e) => return self.cancel(&permit).and(Err(e)),
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

    fn peek(&self, key: &str, weight: u64) -> Result<Decision> {
        self.look(key, weight)
    }

    fn step(&self, wait: &mut Wait) -> Result<Step> {
        self.do_step(wait)
    }

    fn nap(&self, wait: &Wait, nap: Duration) {
        let children = self.children();
        match children.iter().find(|child| child.has_places()).or(children.first()) {
            Some(child) => child.nap(wait, nap),
            None => std::thread::sleep(nap),
        }
    }

    fn give_up(&self, wait: &mut Wait) -> Result<()> {
        match std::mem::replace(&mut wait.progress, Progress::Nothing) {
            Progress::Place(place) => self.cancel(&place),
            _ => Ok(()),
        }
    }

    fn complete(&self, permit: &RawPermit) -> Result<()> {
        if self.is_place(permit) {
            // It never started here; perhaps it goes on elsewhere, as a text.
            self.drop_place(permit);
            return Ok(());
        }
        self.end(permit, |child, permit| child.complete(permit))
    }

    fn cancel(&self, permit: &RawPermit) -> Result<()> {
        match self.is_place(permit) {
            true => self.end(permit, |child, place| child.cancel_place(place)),
            false => self.end(permit, |child, permit| child.cancel(permit)),
        }
    }

    fn cancel_place(&self, place: &RawPermit) -> Result<()> {
        self.cancel(place)
    }

    fn settle(&self, permit: &RawPermit, actual: u64) -> Result<()> {
        self.end(permit, |child, permit| match child.settle(permit, actual) {
            // A child whose units come back at the end of the job.
            Err(Error::Unsupported { .. }) => child.complete(permit),
            other => other,
        })
    }

    fn reserve_later(
        &self,
        key: &str,
        weight: u64,
        delay: Duration,
        max_wait: Option<Duration>,
        grace: Option<Duration>,
    ) -> Result<Reserved> {
        self.do_reserve((key, weight), delay, max_wait, grace)
    }

    fn present(&self, place: &RawPermit) -> Result<Presented> {
        self.do_present(place)
    }

    fn window(&self) -> Result<Option<Duration>> {
        let windows = self.children().iter().map(|child| child.window()).collect::<Result<Vec<_>>>()?;
        Ok(windows.into_iter().flatten().min())
    }

    fn has_places(&self) -> bool {
        self.children().iter().any(|child| child.has_places())
    }

    fn has_bounded_queue(&self) -> bool {
        self.children().iter().any(|child| child.has_bounded_queue())
    }

    fn span(&self, place: &RawPermit) -> Option<(i64, i64)> {
        self.parts(place, |child, part| child.span(part)).into_iter().reduce(|a, b| (a.0.max(b.0), a.1.min(b.1)))
    }

    fn renew(&self, permit: &RawPermit) -> Result<()> {
        own(permit, self.id, self.name())?;
        self.parts(permit, |child, part| Some(child.renew(part))).into_iter().collect()
    }

    /// The fence of the first child whose permits have one.
    fn fence(&self, permit: &RawPermit) -> Option<u64> {
        self.parts(permit, |child, part| child.fence(part)).first().copied()
    }

    /// A composite counts nothing of its own: this is what its children counted, so it is right where nobody else uses
    /// them. A start is admitted where all admitted it; a denial is the child's that it was told to.
    fn stats(&self, key: &str) -> Result<Stats> {
        let all = self.children().iter().map(|child| child.stats(key)).collect::<Result<Vec<_>>>()?;
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

    /// When the last of its places is ready.
    fn ready_in(&self, permit: &RawPermit) -> Option<Duration> {
        self.parts(permit, |child, part| child.ready_in(part)).into_iter().max()
    }

    fn ready_at(&self, permit: &RawPermit) -> Option<SystemTime> {
        self.of_all(permit, |child, part| child.ready_at(part))
    }

    fn ready_at_monotonic_ns(&self, permit: &RawPermit) -> Option<u64> {
        self.of_all(permit, |child, part| child.ready_at_monotonic_ns(part))
    }

    fn to_text(&self, permit: &RawPermit) -> Result<String> {
        self.do_to_text(permit)
    }

    fn permit_from_text(&self, text: &str) -> Result<RawPermit> {
        self.do_permit_from_text(text)
    }

    fn drop_place(&self, place: &RawPermit) {
        if place.limiter == self.id {
            let dropped = self.out.lock().remove(&place.a);
            for part in dropped.iter().flat_map(|out| &out.parts) {
                part.permit.iter().for_each(|place| part.child.0.drop_place(place));
            }
        }
    }

    fn contains(&self, composite: u64) -> bool {
        self.id == composite || self.children().iter().any(|child| child.contains(composite))
    }

    fn record_job_start(&self, key: &str) -> Result<()> {
        self.each(|child| child.record_job_start(key))
    }

    fn record_job_completion(&self, key: &str) -> Result<()> {
        self.each(|child| child.record_job_completion(key))
    }

    fn set_next_available_time(&self, key: &str, at: SystemTime) -> Result<()> {
        self.each(|child| child.set_next_available_time(key, at))
    }

    fn pause(&self, key: &str, pause: Duration) -> Result<()> {
        self.each(|child| child.pause(key, pause))
    }

    fn clear(&self, key: &str) -> Result<()> {
        self.each(|child| child.clear(key))
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
