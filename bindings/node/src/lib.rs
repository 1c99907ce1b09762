//! The native half of the Node package: stores, clocks and limiters as opaque values, and one closure per limiter.
//!
//! What people use is the TypeScript in `lib/`. It checks types, keeps permits, waits and makes errors; here is only
//! what reaches the core. Calls on a limiter go through the closure of [`call`]; the functions below are the rare ones.

mod call;
mod custom;
pub mod hooks;
pub mod policies;
pub mod snapshot;

use call::{Later, Working};
use custom::Script;
use hooks::Told;
use napi::bindgen_prelude::{ArrayBuffer, AsyncTask, External, Function, ToNapiValue, TypeName};
use napi::{Env, Task, ValueType, sys};
use napi_derive::napi;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::{
    CompositeLimiter, ConcurrencyLimiter, CustomLimiter, DelayLimiter, Durability, Error, EvenlySpacedRateLimiter,
    FixedWindowLimiter, LeakyBucketLimiter, Limiter, ManualClock, MayWait, NullLimiter, OnError, Policy, Problem,
    RateLimiter, SlidingWindowCounterLimiter, Stats, Store, StoreOptions, TokenBucketLimiter,
};

/// A limiter of any kind.
pub enum AnyLimiter {
    /// Can be added to, and may call JavaScript.
    Composite(Arc<CompositeLimiter>),
    /// Calls JavaScript.
    Custom(Arc<CustomLimiter<Script>>),
    /// The others.
    Other(Arc<dyn Limiter>),
}

impl AnyLimiter {
    fn get(&self) -> Arc<dyn Limiter> {
        match self {
            AnyLimiter::Composite(limiter) => limiter.clone(),
            AnyLimiter::Custom(limiter) => limiter.clone(),
            AnyLimiter::Other(limiter) => limiter.clone(),
        }
    }
}

fn made(limiter: Result<Arc<dyn Limiter>, Error>) -> napi::Result<External<AnyLimiter>> {
    limiter.map(|limiter| External::new(AnyLimiter::Other(limiter))).map_err(thrown)
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
        pooled(MayWait::UntilTimeout, &self.0)
    }

    fn resolve(&mut self, _: Env, output: T) -> napi::Result<T> {
        Ok(output)
    }
}

/// Event loops do not wait. Those who do something that may have to wait do it on the thread pool.
#[napi_derive::module_init]
fn wait_briefly() {
    MayWait::BrieflyHere.set_default();
}

/// Does it on the thread pool. A panic there would end the process.
fn pooled<T>(may: MayWait, work: impl FnOnce() -> Result<T, Error>) -> napi::Result<T> {
    match catch_unwind(AssertUnwindSafe(|| may.during(work))) {
        Ok(done) => done.map_err(thrown),
        Err(panic) => Err(napi::Error::from_reason(call::panic_text(&*panic))),
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

/// Puts an operator's policy above what is declared under a name, or for one key.
#[napi]
pub fn override_limit(
    store: &External<Store>,
    name: String,
    policy: String,
    key: Option<String>,
) -> AsyncTask<Pooled<()>> {
    let store = Store::clone(store);
    AsyncTask::new(Pooled(Box::new(move || match &key {
        None => store.override_text(&name, &policy),
        Some(key) => store.override_key(&name, &policy, key),
    })))
}

/// Takes it away.
#[napi]
pub fn lift(store: &External<Store>, name: String, key: Option<String>) -> AsyncTask<Pooled<()>> {
    let store = Store::clone(store);
    AsyncTask::new(Pooled(Box::new(move || match &key {
        None => store.lift(&name),
        Some(key) => store.lift_key(&name, key),
    })))
}

/// Writes to the database what it does not have yet.
#[napi]
pub fn flush(store: &External<Store>) -> AsyncTask<Pooled<()>> {
    let store = Store::clone(store);
    AsyncTask::new(Pooled(Box::new(move || store.flush())))
}

/// Says what is wrong with a store, and repairs what it can if it is told to: what was found, and "repaired: " before what is
/// wrong no longer.
#[napi]
pub fn verify(store: &External<Store>, repair: bool) -> AsyncTask<Pooled<Vec<String>>> {
    let store = Store::clone(store);
    let told = |problem: Problem| format!("{}{}", if problem.is_repaired { "repaired: " } else { "" }, problem.found);
    AsyncTask::new(Pooled(Box::new(move || Ok(store.verify(repair)?.into_iter().map(told).collect()))))
}

/// Something of a server that those who have limits there should know.
#[napi(object)]
pub struct Advice {
    /// How much it matters.
    pub severity: String,
    /// What it endangers.
    pub what: String,
    /// The setting.
    pub setting: String,
    /// What it is.
    pub value: String,
    /// What to set instead.
    pub instead: String,
}

/// Says what of a server's settings endangers limits there.
#[napi]
pub fn doctor(url: String) -> AsyncTask<Pooled<Vec<Advice>>> {
    let told = |finding: workglow_limit::Finding| Advice {
        severity: finding.severity.name().to_owned(),
        what: finding.what,
        setting: finding.setting,
        value: finding.value,
        instead: finding.instead,
    };
    AsyncTask::new(Pooled(Box::new(move || Ok(workglow_limit::doctor(&url)?.into_iter().map(told).collect()))))
}

/// The SQL that makes what limits on Postgres need there.
#[napi]
pub fn postgres_schema() -> &'static str {
    workglow_limit::postgres_schema()
}

/// Runs the command `workglow-limit` with these arguments, the first of which is the program's name, and gives its exit code. The
/// event loop stands still meanwhile, and Ctrl-C ends the process from now on: nothing else is to run in it.
#[napi]
pub fn run_command(arguments: Vec<String>) -> u32 {
    u32::from(workglow_limit_cli::run_within(arguments.into_iter().map(Into::into)))
}

/// A store's address, without a password.
#[napi]
pub fn url(store: &External<Store>) -> String {
    store.url().to_owned()
}

/// Tells other processes what this one counted last.
#[napi]
pub fn tell_counts() {
    Store::tell_counts();
}

/// How often the store failed a decision.
#[napi]
pub fn failures(store: &External<Store>) -> f64 {
    store.failures() as f64
}

/// Declares the limits of a file, and gives their names.
#[napi]
pub fn load(store: &External<Store>, path: String) -> AsyncTask<Pooled<Vec<String>>> {
    let store = Store::clone(store);
    AsyncTask::new(Pooled(Box::new(move || store.load(Path::new(&path)))))
}

/// Looks a limit up, on the thread pool.
pub struct Finding {
    store: Store,
    name: String,
}

/// What was found, as a task may give it.
pub struct Found(External<AnyLimiter>);

impl TypeName for Found {
    fn type_name() -> &'static str {
        "External"
    }

    fn value_type() -> ValueType {
        ValueType::External
    }
}

impl ToNapiValue for Found {
    unsafe fn to_napi_value(env: sys::napi_env, found: Self) -> napi::Result<sys::napi_value> {
        // SAFETY: the caller's environment, as the caller promised.
        unsafe { External::to_napi_value(env, found.0) }
    }
}

impl Task for Finding {
    type Output = Arc<dyn Limiter>;
    type JsValue = Found;

    fn compute(&mut self) -> napi::Result<Self::Output> {
        pooled(MayWait::UntilTimeout, || self.store.find(&self.name))
    }

    fn resolve(&mut self, _: Env, limiter: Self::Output) -> napi::Result<Self::JsValue> {
        Ok(Found(External::new(AnyLimiter::Other(limiter))))
    }
}

/// The limiter that is declared under a name, whatever its kind. Opens the store.
#[napi]
pub fn find(store: &External<Store>, name: String) -> napi::Result<External<AnyLimiter>> {
    made(store.find(&name))
}

/// The same on the thread pool.
#[napi]
pub fn find_later(store: &External<Store>, name: String) -> AsyncTask<Finding> {
    AsyncTask::new(Finding { store: Store::clone(store), name })
}

/// Declares or attaches what the limiter needs in its store, opening it, so that no later call has to. JavaScript opens the
/// children of a composite one by one: this runs on the thread pool, where none of what is written in JavaScript can.
#[napi]
pub fn open_limiter(limiter: &External<AnyLimiter>) -> AsyncTask<Pooled<()>> {
    let AnyLimiter::Other(limiter) = &**limiter else {
        return AsyncTask::new(Pooled(Box::new(|| Ok(()))));
    };
    let limiter = limiter.clone();
    AsyncTask::new(Pooled(Box::new(move || limiter.open())))
}

/// Makes a call on the thread pool that has to wait, as a closure gave it.
#[napi]
pub fn work(later: &External<Later>) -> AsyncTask<Working> {
    AsyncTask::new(Working::new(later))
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

/// Declares a limit under a name; without one, under that of its policy.
#[napi]
pub fn declare(
    store: &External<Store>,
    name: Option<String>,
    policy: &External<Policy>,
) -> napi::Result<External<AnyLimiter>> {
    made(store.declare(&name.unwrap_or_else(|| policy.to_string()), **policy))
}

/// Takes the limit of that kind that is declared under a name.
#[napi]
pub fn attach(store: &External<Store>, name: String, kind: String) -> napi::Result<External<AnyLimiter>> {
    fn shared<L: Limiter + 'static>(limiter: Result<L, Error>) -> Result<Arc<dyn Limiter>, Error> {
        limiter.map(|limiter| Arc::new(limiter) as _)
    }
    made(match kind.as_str() {
        "rate" => shared(RateLimiter::attach(store, &name)),
        "concurrency" => shared(ConcurrencyLimiter::attach(store, &name)),
        "delay" => shared(DelayLimiter::attach(store, &name)),
        "evenly-spaced" => shared(EvenlySpacedRateLimiter::attach(store, &name)),
        "token-bucket" => shared(TokenBucketLimiter::attach(store, &name)),
        "leaky-bucket" => shared(LeakyBucketLimiter::attach(store, &name)),
        "fixed-window" => shared(FixedWindowLimiter::attach(store, &name)),
        "sliding-window-counter" => shared(SlidingWindowCounterLimiter::attach(store, &name)),
        other => Err(Error::Unsupported { reason: format!("the addon knows no kind {other}") }),
    })
}

/// A limiter of a text such as "100/1m + 5 concurrent".
#[napi]
pub fn limiter_of_text(store: &External<Store>, name: String, text: String) -> napi::Result<External<AnyLimiter>> {
    made(store.limiter(&name, &text))
}

/// So many starts per so many ms, and so many at the same time.
#[napi]
pub fn flow_control(
    store: &External<Store>,
    name: String,
    rate: Option<(f64, f64)>,
    parallelism: Option<f64>,
) -> napi::Result<External<AnyLimiter>> {
    let rate = rate.map(|(rate, period)| (rate as u64, milliseconds(period)));
    made(store.flow_control(&name, rate, parallelism.map(|most| most as u64)))
}

/// A limiter written in JavaScript, which is asked through a function.
#[napi]
pub fn custom_limiter(
    env: &Env,
    name: String,
    ask: Function<(i32, String, f64), f64>,
) -> napi::Result<External<AnyLimiter>> {
    let limiter = CustomLimiter::new(Script::new(env, name, &ask)?).map_err(thrown)?;
    Ok(External::new(AnyLimiter::Custom(Arc::new(limiter))))
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

/// Does it give places, which come at a time that is known?
#[napi]
pub fn has_places(limiter: &External<AnyLimiter>) -> bool {
    limiter.get().has_places()
}

/// What was counted of a key, or with the empty key of all.
#[napi]
pub fn stats(limiter: &External<AnyLimiter>, key: String) -> napi::Result<Vec<f64>> {
    limiter.get().stats(&key).map(|stats| counts(&stats)).map_err(thrown)
}

/// Counts in the order of `statsOf` in `lib/calls.ts`, durations in ms.
fn counts(stats: &Stats) -> Vec<f64> {
    let [admitted, denied, wanted, granted, waited, cancelled, store_errors, policy_changes] = [
        stats.admitted,
        stats.denied,
        stats.units_wanted,
        stats.units_granted,
        stats.waited,
        stats.cancelled,
        stats.store_errors,
        stats.policy_changes,
    ]
    .map(|count| count as f64);
    let wait_time = stats.wait_time.as_nanos() as f64 / 1e6;
    vec![admitted, denied, wanted, granted, waited, wait_time, cancelled, store_errors, policy_changes]
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
    told: &External<Arc<Told>>,
) -> napi::Result<Function<'env, (), ()>> {
    let may_call_back = !matches!(**limiter, AnyLimiter::Other(_));
    call::bind(env, limiter.get(), may_call_back, &buffer, told)
}
