//! Decides when hooks are called, and with which event.
//!
//! A limiter without hooks only reads two counts, its own and its store's. Hooks are called in the caller's thread,
//! after the reply is known and while this crate holds no lock, so a hook may use limiters. Events come from the public
//! calls ([`reporting`]) and from waits, not from the `quiet_` calls that composites and lines make on their behalf.

use super::{Internal, Limiter, Reserved};
use crate::charges::own_key;
use crate::decision::Decision;
use crate::error::{Error, Result};
use crate::hooks::{Event, Happening};
use crate::permit::RawPermit;
use crate::state::Session;
use crate::waiting::MayWait;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time limit for finding which limit a start has to wait for.
const LOOK: Duration = Duration::from_millis(40);

/// A delayed start: the limit that delays it, if known, and the wait.
pub type Throttling = (Option<Arc<str>>, Duration);

/// The reply of a limiter's call.
pub trait Reply {
    /// Returns the delay, if the reply delays a start.
    fn throttling(&self) -> Option<Throttling> {
        None
    }
}

impl Reply for Decision {
    fn throttling(&self) -> Option<Throttling> {
        (!self.admitted).then(|| (self.denied_by.clone(), self.retry_after))
    }
}

impl Reply for Reserved {
    fn throttling(&self) -> Option<Throttling> {
        if let Reserved::Denied(after) = self { Some((None, *after)) } else { None }
    }
}

/// A reply that delays no start.
pub struct NotThrottled<R>(pub R);

impl<R> Reply for NotThrottled<R> {}

/// Makes a call and reports its events to the hooks.
#[inline(always)]
pub fn reporting<L: Internal + ?Sized, R: Reply>(
    limiter: &L,
    key: &str,
    wanted: u64,
    call: impl FnOnce() -> Result<R>,
) -> Result<R> {
    if limiter.has_hooks() { report(limiter, key, wanted, call) } else { call() }
}

/// Makes a call and reports its errors to the hooks.
#[inline(always)]
pub fn reporting_errors<L: Internal + ?Sized, R>(
    limiter: &L,
    key: &str,
    wanted: u64,
    call: impl FnOnce() -> Result<R>,
) -> Result<R> {
    if !limiter.has_hooks() {
        return call();
    }
    report(limiter, key, wanted, || call().map(NotThrottled)).map(|NotThrottled(answer)| answer)
}

#[cold]
fn report<L: Internal + ?Sized, R: Reply>(
    limiter: &L,
    key: &str,
    wanted: u64,
    call: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let call_of = Call::new(limiter, key, wanted);
    let answer = call();
    call_of.report_error(answer.as_ref().err());
    if let Some(throttling) = answer.as_ref().ok().and_then(Reply::throttling) {
        call_of.report_throttling(throttling);
    }
    answer
}

/// A call whose events are reported.
pub struct Call<'a, L: ?Sized> {
    limiter: &'a L,
    key: String,
    wanted: u64,
    /// The stores behind the limiter, and the number of failures of each before the call.
    stores: Vec<(Arc<Session>, u64)>,
}

impl<'a, L: Internal + ?Sized> Call<'a, L> {
    /// Begins a call. `None` if there are no hooks.
    pub fn of(limiter: &'a L, key: &str, wanted: u64) -> Option<Call<'a, L>> {
        limiter.has_hooks().then(|| Call::new(limiter, key, wanted))
    }

    fn new(limiter: &'a L, key: &str, wanted: u64) -> Call<'a, L> {
        let mut stores: Vec<Arc<Session>> = Vec::new();
        limiter.stores(&mut stores);
        let stores = stores.into_iter().map(|store| (store.failures(), store)).map(|(n, store)| (store, n)).collect();
        Call { limiter, key: key.to_owned(), wanted, stores }
    }

    /// Reports an error, or the failure of a store that answered by its failure policy.
    pub fn report_error(&self, error: Option<&Error>) {
        let failing = || self.stores.iter().filter(|(store, before)| store.failures() > *before);
        let has_failed = failing().next().is_some();
        let happening = match error {
            Some(error) => Happening::of(error),
            None => has_failed.then_some(Happening::StoreError),
        };
        let Some(happening) = happening else { return };
        let event = self.event(happening, self.limiter.base().name.clone(), Duration::ZERO, error.cloned());
        self.limiter.base().hooks.call(&event);
        let stores = self.stores.iter().filter(|(store, before)| !has_failed || store.failures() > *before);
        stores.for_each(|(store, _)| store.hooks.call(&event));
    }

    /// Reports a delayed start, to the hooks of the limit that delays it and of the limiter that was called.
    pub fn report_throttling(&self, (by, wait): Throttling) {
        let by = by.or_else(|| self.look()?.denied_by);
        let by = by.unwrap_or_else(|| self.limiter.base().name.clone());
        let event = self.event(Happening::Throttled, by, wait, None);
        if !self.limiter.notify(&event) {
            self.limiter.base().hooks.call(&event);
            self.stores.iter().for_each(|(store, _)| store.hooks.call(&event));
        }
    }

    /// Returns the current decision. The time limit is short, because it serves only a report.
    fn look(&self) -> Option<Decision> {
        // By a manual clock no time passes while the store answers.
        let most = if self.limiter.manual_clock().is_some() { Duration::MAX } else { LOOK };
        MayWait::in_slice(Instant::now(), most, || self.limiter.quiet_peek(&self.key, self.wanted)).ok()
    }

    fn event(&self, happening: Happening, limit: Arc<str>, wait: Duration, error: Option<Error>) -> Event {
        let charge = self.limiter.charge_at(&limit, (&self.key, self.wanted));
        let (key, wanted) = charge.unwrap_or_else(|| (own_key(&self.key).to_owned(), self.wanted));
        Event { happening, limit, key, wanted, wait, error }
    }
}

impl<'a> Call<'a, dyn Limiter + 'a> {
    /// Returns what a waiter will wait for. Call this before it joins a line, because it may take a place there.
    pub fn forecast(&self, place: Option<&RawPermit>) -> Throttling {
        match place {
            Some(place) => (Some(self.limiter.base().name.clone()), self.limiter.ready_in(place).unwrap_or_default()),
            // The waiter itself reports errors.
            None => match self.look() {
                Some(seen) => (seen.denied_by, seen.retry_after),
                None => (Some(self.limiter.base().name.clone()), Duration::ZERO),
            },
        }
    }
}
