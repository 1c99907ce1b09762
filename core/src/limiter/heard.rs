//! When those who listen are told, and of what.
//!
//! A limiter that nobody listens to looks at two counts, its own and its store's, and that is all. Hooks are called in the thread
//! that asked, after its answer is known and while this crate holds nothing: so a hook may use limiters. What is heard of are the
//! calls from outside ([`told`]) and waits, not what composites and lines ask on their behalf (the `quiet_` calls).

use super::{Inner, Limiter, Reserved};
use crate::decision::Decision;
use crate::error::{Error, Result};
use crate::hooks::{Event, Happening};
use crate::permit::RawPermit;
use crate::state::Session;
use crate::waiting::MayWait;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long it may take to find out what a start has to wait for.
const LOOK: Duration = Duration::from_millis(40);

/// A start that is held up: by whom, if that is known, and for how long.
pub type Held = (Option<Arc<str>>, Duration);

/// What a limiter answers.
pub trait Answer {
    /// Does it hold a start up?
    fn held(&self) -> Option<Held> {
        None
    }
}

impl Answer for Decision {
    fn held(&self) -> Option<Held> {
        (!self.admitted).then(|| (self.denied_by.clone(), self.retry_after))
    }
}

impl Answer for Reserved {
    fn held(&self) -> Option<Held> {
        if let Reserved::Denied(after) = self { Some((None, *after)) } else { None }
    }
}

/// An answer that holds up nothing.
pub struct Other<R>(pub R);

impl<R> Answer for Other<R> {}

/// Makes a call and tells of it.
#[inline(always)]
pub fn told<L: Inner + ?Sized, R: Answer>(
    limiter: &L,
    key: &str,
    wanted: u64,
    call: impl FnOnce() -> Result<R>,
) -> Result<R> {
    if limiter.is_heard() { overheard(limiter, key, wanted, call) } else { call() }
}

/// Makes a call and tells of what is wrong.
#[inline(always)]
pub fn errors_told<L: Inner + ?Sized, R>(
    limiter: &L,
    key: &str,
    wanted: u64,
    call: impl FnOnce() -> Result<R>,
) -> Result<R> {
    if !limiter.is_heard() {
        return call();
    }
    overheard(limiter, key, wanted, || call().map(Other)).map(|Other(answer)| answer)
}

#[cold]
fn overheard<L: Inner + ?Sized, R: Answer>(
    limiter: &L,
    key: &str,
    wanted: u64,
    call: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let call_of = Call::new(limiter, key, wanted);
    let answer = call();
    call_of.tell_error(answer.as_ref().err());
    if let Some(held) = answer.as_ref().ok().and_then(Answer::held) {
        call_of.tell_held(held);
    }
    answer
}

/// A call that somebody listens to.
pub struct Call<'a, L: ?Sized> {
    limiter: &'a L,
    key: String,
    wanted: u64,
    /// The stores behind the limiter, and how often each had failed before.
    stores: Vec<(Arc<Session>, u64)>,
}

impl<'a, L: Inner + ?Sized> Call<'a, L> {
    /// One that begins; nothing if nobody listens.
    pub fn of(limiter: &'a L, key: &str, wanted: u64) -> Option<Call<'a, L>> {
        limiter.is_heard().then(|| Call::new(limiter, key, wanted))
    }

    fn new(limiter: &'a L, key: &str, wanted: u64) -> Call<'a, L> {
        let mut stores: Vec<Arc<Session>> = Vec::new();
        limiter.stores(&mut stores);
        let stores = stores.into_iter().map(|store| (store.failures(), store)).map(|(n, store)| (store, n)).collect();
        Call { limiter, key: key.to_owned(), wanted, stores }
    }

    /// Tells of an error, or of a store that failed and answered in its stead.
    pub fn tell_error(&self, error: Option<&Error>) {
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

    /// Tells of a start that is held up: those who listen to the limit that says no, and to the limiter that was asked.
    pub fn tell_held(&self, (by, wait): Held) {
        let by = by.or_else(|| self.look()?.denied_by);
        let by = by.unwrap_or_else(|| self.limiter.base().name.clone());
        let event = self.event(Happening::Throttled, by, wait, None);
        if !self.limiter.tell(&event) {
            self.limiter.base().hooks.call(&event);
            self.stores.iter().for_each(|(store, _)| store.hooks.call(&event));
        }
    }

    /// What it would be told now. Nobody waits long to be told that.
    fn look(&self) -> Option<Decision> {
        MayWait::in_slice(Instant::now(), LOOK, || self.limiter.quiet_peek(&self.key, self.wanted)).ok()
    }

    fn event(&self, happening: Happening, limit: Arc<str>, wait: Duration, error: Option<Error>) -> Event {
        Event { happening, limit, key: self.key.clone(), wanted: self.wanted, wait, error }
    }
}

impl<'a> Call<'a, dyn Limiter + 'a> {
    /// What a waiter would be told now. To be asked before it joins a line, because it may take a place there.
    pub fn foresee(&self, place: Option<&RawPermit>) -> Held {
        match place {
            Some(place) => (Some(self.limiter.base().name.clone()), self.limiter.ready_in(place).unwrap_or_default()),
            // What is wrong is said by the waiter itself.
            None => match self.look() {
                Some(seen) => (seen.denied_by, seen.retry_after),
                None => (Some(self.limiter.base().name.clone()), Duration::ZERO),
            },
        }
    }
}
