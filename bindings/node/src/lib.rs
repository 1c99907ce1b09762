//! The native half of the Node package: stores, clocks and limiters as opaque values, and one closure per limiter.
//!
//! What people use is the TypeScript in `lib/`. It checks types, keeps permits, waits and makes errors; here is only
//! what reaches the core. Calls on a limiter go through the closure of [`call`]; the functions below are the rare ones.

mod call;

use napi::bindgen_prelude::{ArrayBuffer, AsyncTask, External, Function, ToNapiValue, TypeName};
use napi::{Env, Task};
use napi_derive::napi;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::{
    CompositeLimiter, ConcurrencyLimiter, Durability, Error, Limiter, ManualClock, NullLimiter, OnError, Policy,
    RateLimiter, Store, StoreOptions, duration_from_secs,
};

/// A limiter of any kind.
pub enum AnyLimiter {
    /// Lives in a store, which is opened at its first use.
    Rate(Arc<RateLimiter>),
    /// Can be added to.
    Composite(Arc<CompositeLimiter>),
    /// The others.
    Other(Arc<dyn Limiter>),
}

impl AnyLimiter {
    fn get(&self) -> Arc<dyn Limiter> {
        match self {
            AnyLimiter::Rate(limiter) => limiter.clone(),
            AnyLimiter::Composite(limiter) => limiter.clone(),
            AnyLimiter::Other(limiter) => limiter.clone(),
        }
    }
}

/// An error as text that `lib/errors.ts` takes apart: number, name, message. Parameters get the names they have there.
fn text(error: &Error) -> String {
    let mut message = error.to_string();
    if let Error::InvalidArgument { parameter, .. } = error {
        let name = match *parameter {
            "window" => "windowSizeInSeconds".to_owned(),
            "next available time" => "date".to_owned(),
            "pause" => "duration".to_owned(),
            other => camel_case(other),
        };
        message.replace_range(..parameter.len(), &name);
    }
    format!("{} {} {message}", error.code(), error.name())
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let mut out = words.next().unwrap_or_default().to_owned();
    for word in words {
        out.extend(word.chars().take(1).map(|c| c.to_ascii_uppercase()));
        out.extend(word.chars().skip(1));
    }
    out
}

fn thrown(error: Error) -> napi::Error {
    napi::Error::from_reason(text(&error))
}

/// A number of milliseconds that JavaScript has checked to be none that is negative, infinite or NaN.
fn milliseconds(ms: f64) -> Duration {
    Duration::try_from_secs_f64(ms / 1e3).unwrap_or(Duration::MAX)
}

/// A store. It opens nothing yet. JavaScript has checked the words.
#[napi]
pub fn store(
    url: String,
    timeout: Option<f64>,
    mode: Option<f64>,
    on_error: Option<String>,
    durability: Option<String>,
    clock: Option<&External<ManualClock>>,
) -> napi::Result<External<Store>> {
    let mut options = StoreOptions::default();
    options.timeout = timeout.map_or(options.timeout, milliseconds);
    // Saturates: what is too large is told by the core.
    options.mode = mode.map_or(options.mode, |mode| mode as u32);
    options.on_error = match on_error.as_deref() {
        Some("deny") => OnError::Deny,
        Some("admit") => OnError::Admit,
        _ => OnError::Raise,
    };
    options.durability = match durability.as_deref() {
        Some("commit") => Durability::Commit,
        _ => Durability::Budget,
    };
    options.clock = clock.map(|clock| (**clock).clone());
    Store::with_options(&url, options).map(External::new).map_err(thrown)
}

/// Work that may have to wait, for libuv's thread pool.
pub struct Pooled<T: Send>(Box<dyn Fn() -> Result<T, Error> + Send>);

impl<T: Send + ToNapiValue + TypeName + 'static> Task for Pooled<T> {
    type Output = T;
    type JsValue = T;

    fn compute(&mut self) -> napi::Result<T> {
        (self.0)().map_err(thrown)
    }

    fn resolve(&mut self, _: Env, output: T) -> napi::Result<T> {
        Ok(output)
    }
}

/// Opens a store.
#[napi]
pub fn open_store(store: &External<Store>) -> AsyncTask<Pooled<()>> {
    let store = Store::clone(store);
    AsyncTask::new(Pooled(Box::new(move || store.open())))
}

/// The names that are declared in a store.
#[napi]
pub fn names(store: &External<Store>) -> AsyncTask<Pooled<Vec<String>>> {
    let store = Store::clone(store);
    AsyncTask::new(Pooled(Box::new(move || store.names())))
}

/// Puts an operator's policy above what is declared under a name.
#[napi]
pub fn override_limit(store: &External<Store>, name: String, policy: String) -> AsyncTask<Pooled<()>> {
    let store = Store::clone(store);
    AsyncTask::new(Pooled(Box::new(move || store.override_limit(&name, policy.parse::<Policy>()?))))
}

/// Takes it away.
#[napi]
pub fn lift(store: &External<Store>, name: String) -> AsyncTask<Pooled<()>> {
    let store = Store::clone(store);
    AsyncTask::new(Pooled(Box::new(move || store.lift(&name))))
}

/// Writes to the database what it does not have yet.
#[napi]
pub fn flush(store: &External<Store>) -> AsyncTask<Pooled<()>> {
    let store = Store::clone(store);
    AsyncTask::new(Pooled(Box::new(move || store.flush())))
}

/// How often the store failed a decision.
#[napi]
pub fn failures(store: &External<Store>) -> f64 {
    store.failures() as f64
}

/// Declares or attaches what the limiter needs in its store, opening it, so that no later call has to.
#[napi]
pub fn open_limiter(limiter: &External<AnyLimiter>) -> AsyncTask<Pooled<()>> {
    let AnyLimiter::Rate(limiter) = &**limiter else {
        return AsyncTask::new(Pooled(Box::new(|| Ok(()))));
    };
    let limiter = limiter.clone();
    AsyncTask::new(Pooled(Box::new(move || limiter.open())))
}

/// A clock for tests.
#[napi]
pub fn manual_clock() -> External<ManualClock> {
    External::new(ManualClock::new())
}

/// Moves a clock forward, by milliseconds.
#[napi]
pub fn advance(clock: &External<ManualClock>, ms: f64) {
    clock.advance(milliseconds(ms));
}

/// What a clock shows, in milliseconds.
#[napi]
pub fn now(clock: &External<ManualClock>) -> f64 {
    clock.now().as_nanos() as f64 / 1e6
}

/// A sliding window, or several: pairs of the most units and seconds. Without any it attaches to what is declared.
#[napi]
pub fn rate_limiter(
    store: &External<Store>,
    name: String,
    windows: Option<Vec<(f64, f64)>>,
) -> napi::Result<External<AnyLimiter>> {
    let window = |(max, seconds)| Ok((max as u64, duration_from_secs("windowSizeInSeconds", seconds)?));
    let made = match windows {
        Some(windows) => {
            let windows: Result<Vec<_>, Error> = windows.into_iter().map(window).collect();
            windows.and_then(|windows| RateLimiter::with_windows(store, &name, &windows, Default::default()))
        }
        None => RateLimiter::attach(store, &name),
    };
    made.map(|limiter| External::new(AnyLimiter::Rate(Arc::new(limiter)))).map_err(thrown)
}

/// So many at the same time in this process.
#[napi]
pub fn concurrency_limiter(max: f64, clock: Option<&External<ManualClock>>) -> napi::Result<External<AnyLimiter>> {
    let made = match clock {
        Some(clock) => ConcurrencyLimiter::with_clock(max as u64, (**clock).clone()),
        None => ConcurrencyLimiter::new(max as u64),
    };
    made.map(|limiter| External::new(AnyLimiter::Other(Arc::new(limiter)))).map_err(thrown)
}

/// No limit.
#[napi]
pub fn null_limiter() -> External<AnyLimiter> {
    External::new(AnyLimiter::Other(Arc::new(NullLimiter::new())))
}

/// Several limits at once; without children, until they are added.
#[napi]
pub fn composite_limiter() -> External<AnyLimiter> {
    External::new(AnyLimiter::Composite(Arc::new(CompositeLimiter::new([]))))
}

/// Adds a child to a composite.
#[napi]
pub fn add_limiter(composite: &External<AnyLimiter>, child: &External<AnyLimiter>) -> napi::Result<()> {
    match &**composite {
        AnyLimiter::Composite(composite) => composite.add(child.get()).map_err(thrown),
        _ => Ok(()),
    }
}

/// The limiter's name.
#[napi]
pub fn name_of(limiter: &External<AnyLimiter>) -> String {
    limiter.get().name().to_owned()
}

/// How large the buffer of [`bind`] has to be, in bytes.
#[napi]
pub fn buffer_size() -> u32 {
    size_of::<call::Shared>() as u32
}

/// The closure through which a limiter is called, its arguments and answers lying in `buffer`.
#[napi(ts_return_type = "() => void")]
pub fn bind<'env>(
    env: &'env Env,
    limiter: &External<AnyLimiter>,
    buffer: ArrayBuffer<'env>,
) -> napi::Result<Function<'env, (), ()>> {
    call::bind(env, limiter.get(), &buffer)
}
