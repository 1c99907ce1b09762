//! Several limits at once: a start needs all of them.

use super::{Attempt, Limiter, Presented, Progress, Reserved, Step, Wait, next_id, own, unsupported};
use crate::decision::Decision;
use crate::error::{Error, Result};
use crate::fork::PerProcess;
use crate::permit::RawPermit;
use std::collections::HashMap;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};
use std::time::{Duration, SystemTime};

type Child = Arc<dyn Limiter>;

/// Admits what every child admits. A child that denies keeps the others from being charged.
///
/// All children get the same key and weight. A gate goes to all of them, and each answers for itself: a denial names
/// the child that would make the caller wait longest.
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
    /// The children, replaced as a whole when one is added.
    children: AtomicPtr<List>,
    /// What the permits that are out were taken from.
    out: PerProcess<HashMap<u64, Vec<(Held, RawPermit)>>>,
    next: AtomicU64,
}

/// A list, and the one that it replaced: readers may still be in it, so lists live as long as the limiter.
struct List {
    children: Vec<Child>,
    before: *mut List,
}

/// A child that a permit was taken from.
#[derive(Clone)]
struct Held(Child);

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name())
    }
}

// SAFETY: a list never changes after it is published, and its children are `Send + Sync`.
unsafe impl Send for CompositeLimiter {}
// SAFETY: as above.
unsafe impl Sync for CompositeLimiter {}

impl CompositeLimiter {
    /// A limiter with these children. Without any it admits everything.
    pub fn new(children: impl IntoIterator<Item = Child>) -> Self {
        let composite = CompositeLimiter {
            id: next_id(),
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

    /// Claims every child, or none of those that can be given back.
    fn claim(&self, key: &str, weight: u64) -> Result<Result<RawPermit, Decision>> {
        // Look first: a denial then costs nobody anything.
        let seen = self.look(key, weight)?;
        if !seen.admitted {
            return Ok(Err(seen));
        }
        let mut taken: Vec<(Held, RawPermit)> = Vec::with_capacity(self.children().len());
        for child in self.children() {
            let answer = child.decide(key, weight);
            match answer {
                Ok(Decision { permit: Some(permit), .. }) => taken.push((Held(child.clone()), permit)),
                // Somebody was faster at this child.
                other => {
                    let given_back = end_all(&taken, |child, permit| child.cancel(permit));
                    let denial = other?;
                    given_back?;
                    return Ok(Err(denial));
                }
            }
        }
        let number = self.next.fetch_add(1, Relaxed);
        self.out.lock().insert(number, taken);
        Ok(Ok(RawPermit::from_words([self.id, 0, number, 0, 0, 0, 0, 0])))
    }

    /// What all children say together.
    fn look(&self, key: &str, weight: u64) -> Result<Decision> {
        let mut all: Option<Decision> = None;
        for child in self.children() {
            let one = child.peek(key, weight)?;
            all = Some(match all {
                None => one,
                Some(all) => merge(all, one),
            });
        }
        match all {
            Some(all) => Ok(all),
            None => super::NullLimiter::new().peek(key, weight),
        }
    }

    /// Ends a permit's parts, each at the child that it was taken from.
    fn end(&self, permit: &RawPermit, end: impl Fn(&Child, &RawPermit) -> Result<()>) -> Result<()> {
        own(permit, self.id, self.name())?;
        // Ended before, or the parent's: nothing to do.
        let Some(taken) = self.out.lock().remove(&permit.a) else { return Ok(()) };
        end_all(&taken, end)
    }

    fn renew_all(&self, permit: &RawPermit) -> Result<()> {
        own(permit, self.id, self.name())?;
        let Some(taken) = self.out.lock().get(&permit.a).cloned() else { return Ok(()) };
        end_all(&taken, |child, permit| child.renew(permit))
    }

    fn each(&self, f: impl Fn(&Child) -> Result<()>) -> Result<()> {
        self.children().iter().try_for_each(f)
    }
}

/// Ends all of them, also after one that could not be; the first error is told.
fn end_all(taken: &[(Held, RawPermit)], end: impl Fn(&Child, &RawPermit) -> Result<()>) -> Result<()> {
    let mut first = Ok(());
    for (Held(child), permit) in taken {
        first = first.and(end(child, permit));
    }
    first
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
        "composite"
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
        if let Progress::Place(_) = wait.progress {
            return unsupported("a place", "a composite: it has no places");
        }
        let now = wait.started.get_or_insert_with(std::time::Instant::now).elapsed();
        match self.attempt(&wait.key, wait.weight)? {
            Attempt::Admitted(permit) => Ok(Step::Admitted(permit)),
            // Who frees a concurrency child cannot be known ahead, and others may be faster.
            Attempt::Denied(after) => Ok(wait.again_after(after, now)),
        }
    }

    fn nap(&self, wait: &Wait, nap: Duration) {
        match self.children().first() {
            Some(child) => child.nap(wait, nap),
            None => std::thread::sleep(nap),
        }
    }

    fn complete(&self, permit: &RawPermit) -> Result<()> {
        self.end(permit, |child, permit| child.complete(permit))
    }

    fn cancel(&self, permit: &RawPermit) -> Result<()> {
        self.end(permit, |child, permit| child.cancel(permit))
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
        _: &str,
        _: u64,
        _: Duration,
        _: Option<Duration>,
        _: Option<Duration>,
    ) -> Result<Reserved> {
        unsupported("reserve", "a composite: reserve at the child that is the narrowest")
    }

    fn renew(&self, permit: &RawPermit) -> Result<()> {
        self.renew_all(permit)
    }

    fn present(&self, _: &RawPermit) -> Result<Presented> {
        unsupported("present", "a composite: it has no places")
    }

    fn to_text(&self, _: &RawPermit) -> Result<String> {
        unsupported("to_text", "a composite: its permits belong to one process")
    }

    fn permit_from_text(&self, _: &str) -> Result<RawPermit> {
        unsupported("permit_from_text", "a composite: its permits belong to one process")
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
