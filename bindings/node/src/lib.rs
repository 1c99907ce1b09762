//! The native half of the Node package: stores, clocks and limiters as opaque values, and one closure per limiter.
//!
//! The package's interface is the TypeScript in `lib/`. It checks types, keeps permits, waits and makes errors; this crate
//! only reaches the core. Calls of a limiter go through the closure of [`call`]; the functions below are called rarely.

mod call;
mod custom;
pub mod hooks;
mod layout;
pub mod policies;
pub mod pool;
pub mod snapshot;
pub mod wakes;

use call::{PendingCall, PoolCall};
use custom::Script;
use hooks::EventQueue;
use napi::bindgen_prelude::{ArrayBuffer, AsyncTask, External, Function, ToNapiValue, TypeName, Unknown};
use napi::{Env, Task, ValueType, sys};
use napi_derive::napi;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use wakes::WakeQueue;
use workglow_limit::admin::{Problem, parse_time};
use workglow_limit::custom::CustomLimiter;
use workglow_limit::embed::{Begun, MayWait, Quota};
use workglow_limit::observe::Stats;
use workglow_limit::{
    Charge, CompositeLimiter, Durability, Error, FirstOfLimiter, Limiter, ManualClock, NullLimiter, OnError, Policy,
    Store, StoreOptions,
};

/// A limiter of any kind.
pub enum AnyLimiter {
    /// Takes children, and may call JavaScript.
    Composite(Arc<CompositeLimiter>),
    /// The same.
    FirstOf(Arc<FirstOfLimiter>),
    /// Calls JavaScript.
    Custom(Arc<CustomLimiter<Script>>),
    /// The others.
    Other(Arc<dyn Limiter>),
}

impl AnyLimiter {
    fn get(&self) -> Arc<dyn Limiter> {
        match self {
            AnyLimiter::Composite(limiter) => limiter.clone(),
            AnyLimiter::FirstOf(limiter) => limiter.clone(),
            AnyLimiter::Custom(limiter) => limiter.clone(),
            AnyLimiter::Other(limiter) => limiter.clone(),
        }
    }
}

fn made(limiter: Result<Arc<dyn Limiter>, Error>) -> napi::Result<External<AnyLimiter>> {
    limiter.map(|limiter| External::new(AnyLimiter::Other(limiter))).map_err(thrown)
}

/// Writes an error as text that `lib/errors.ts` parses: number, name, message. Parameters get their JavaScript names.
fn text(error: &Error) -> String {
    let mut message = error.to_string();
    if let Error::InvalidArgument { parameter, .. } = error {
        let name = match *parameter {
            "window" => "windowSizeInSeconds".to_owned(),
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

/// Converts milliseconds. JavaScript has checked that they are not negative, infinite or NaN.
fn milliseconds(ms: f64) -> Duration {
    Duration::try_from_secs_f64(ms / 1e3).unwrap_or(Duration::MAX)
}

/// Makes a store, and opens nothing. JavaScript has checked the words.
#[napi]
pub fn store(
    url: String,
    timeout: Option<f64>,
    mode: Option<f64>,
    on_error: Option<String>,
    durability: Option<String>,
    clock: Option<&External<ManualClock>>,
    max_size: Option<f64>,
) -> napi::Result<External<Store>> {
    let mut options = StoreOptions::default();
    options.timeout = timeout.map_or(options.timeout, milliseconds);
    // Saturates: the core refuses what is too large.
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
    options.max_size = max_size.map(|size| size as u64);
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

/// Lets calls on an event loop wait only briefly. Calls that may have to wait run on the thread pool.
#[napi_derive::module_init]
fn wait_briefly() {
    MayWait::BrieflyHere.set_default();
}

/// Runs work of the thread pool. A panic there would end the process, so it becomes an error.
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

/// Closes a store.
#[napi]
pub fn close_store(store: &External<Store>) -> AsyncTask<Pooled<()>> {
    let store = Store::clone(store);
    AsyncTask::new(Pooled(Box::new(move || store.close())))
}

/// Returns the names that are declared in a store.
#[napi]
pub fn names(store: &External<Store>) -> AsyncTask<Pooled<Vec<String>>> {
    let store = Store::clone(store);
    AsyncTask::new(Pooled(Box::new(move || store.names())))
}

/// Removes the declaration of a name.
#[napi]
pub fn forget(store: &External<Store>, name: String) -> AsyncTask<Pooled<()>> {
    let store = Store::clone(store);
    AsyncTask::new(Pooled(Box::new(move || store.forget(&name))))
}

/// Sets an operator's override of a limit, or of one key.
#[napi]
pub fn override_limit(
    store: &External<Store>,
    name: String,
    policy: String,
    key: Option<String>,
) -> AsyncTask<Pooled<()>> {
    let store = Store::clone(store);
    AsyncTask::new(Pooled(Box::new(move || store.override_limit(&name, &policy, key.as_deref()))))
}

/// Removes it.
#[napi]
pub fn lift(store: &External<Store>, name: String, key: Option<String>) -> AsyncTask<Pooled<()>> {
    let store = Store::clone(store);
    AsyncTask::new(Pooled(Box::new(move || store.lift(&name, key.as_deref()))))
}

/// Sets the share of a tenant.
#[napi]
pub fn share(store: &External<Store>, name: String, key: String, share: f64) -> AsyncTask<Pooled<()>> {
    let store = Store::clone(store);
    AsyncTask::new(Pooled(Box::new(move || store.share(&name, &key, share as u32))))
}

/// Writes to the database the starts that it does not have yet.
#[napi]
pub fn flush(store: &External<Store>) -> AsyncTask<Pooled<()>> {
    let store = Store::clone(store);
    AsyncTask::new(Pooled(Box::new(move || store.flush())))
}

/// Returns what is wrong with a store, and repairs what it can if asked to: "repaired: " precedes what was repaired.
#[napi]
pub fn verify(store: &External<Store>, repair: bool) -> AsyncTask<Pooled<Vec<String>>> {
    let store = Store::clone(store);
    let line = |problem: Problem| format!("{}{}", if problem.is_repaired { "repaired: " } else { "" }, problem.found);
    AsyncTask::new(Pooled(Box::new(move || Ok(store.verify(repair)?.into_iter().map(line).collect()))))
}

/// A setting of a server that endangers limits.
#[napi(object)]
pub struct Advice {
    /// The severity.
    pub severity: String,
    /// The danger.
    pub what: String,
    /// The setting's name.
    pub setting: String,
    /// The setting's value.
    pub value: String,
    /// The recommended value.
    pub instead: String,
}

/// Returns the settings of a server that endanger limits.
#[napi]
pub fn doctor(url: String) -> AsyncTask<Pooled<Vec<Advice>>> {
    let advice = |finding: workglow_limit::admin::Finding| Advice {
        severity: finding.severity.name().to_owned(),
        what: finding.what,
        setting: finding.setting,
        value: finding.value,
        instead: finding.instead,
    };
    AsyncTask::new(Pooled(Box::new(move || Ok(workglow_limit::admin::doctor(&url)?.into_iter().map(advice).collect()))))
}

/// Returns the SQL that makes the schema of limits on Postgres.
#[napi]
pub fn postgres_schema() -> &'static str {
    workglow_limit::admin::postgres_schema()
}

/// Runs the command `workglow-limit` with these arguments, of which the first is the program's name, and returns its exit code.
/// It blocks the event loop, and Ctrl-C ends the process from now on, so no other code should run in the process.
#[napi]
pub fn run_command(arguments: Vec<String>) -> u32 {
    u32::from(workglow_limit_cli::run_within(arguments.into_iter().map(Into::into)))
}

/// Returns a store's address, without a password.
#[napi]
pub fn url(store: &External<Store>) -> String {
    store.url().to_owned()
}

/// Publishes the latest counts of this process to the others.
#[napi]
pub fn publish_counts() {
    Store::tell_counts();
}

/// Returns how many decisions the store failed.
#[napi]
pub fn failures(store: &External<Store>) -> f64 {
    store.failures() as f64
}

/// Counts a decision that could not be made because its limiter could not be opened.
#[napi]
pub fn count_failure(store: &External<Store>) {
    store.count_failure();
}

/// Declares the limits of a file, and returns their names.
#[napi]
pub fn load(store: &External<Store>, path: String) -> AsyncTask<Pooled<Vec<String>>> {
    let store = Store::clone(store);
    AsyncTask::new(Pooled(Box::new(move || store.load(Path::new(&path)))))
}

/// Finds a limit on the thread pool.
pub struct Finding {
    store: Store,
    name: String,
}

/// A limiter that was found, in a type that a task can return.
pub struct FoundLimiter(External<AnyLimiter>);

impl TypeName for FoundLimiter {
    fn type_name() -> &'static str {
        "External"
    }

    fn value_type() -> ValueType {
        ValueType::External
    }
}

impl ToNapiValue for FoundLimiter {
    unsafe fn to_napi_value(env: sys::napi_env, found: Self) -> napi::Result<sys::napi_value> {
        // SAFETY: the caller's environment, as the caller promised.
        unsafe { External::to_napi_value(env, found.0) }
    }
}

impl Task for Finding {
    type Output = Arc<dyn Limiter>;
    type JsValue = FoundLimiter;

    fn compute(&mut self) -> napi::Result<Self::Output> {
        pooled(MayWait::UntilTimeout, || self.store.find(&self.name))
    }

    fn resolve(&mut self, _: Env, limiter: Self::Output) -> napi::Result<Self::JsValue> {
        Ok(FoundLimiter(External::new(AnyLimiter::Other(limiter))))
    }
}

/// Returns the limiter that is declared under a name, of any kind. Opens the store, and waits up to its timeout if
/// `patiently`.
#[napi]
pub fn find(store: &External<Store>, name: String, patiently: bool) -> napi::Result<External<AnyLimiter>> {
    made(if patiently { MayWait::UntilTimeout.during(|| store.find(&name)) } else { store.find(&name) })
}

/// Does the same on the thread pool.
#[napi]
pub fn find_later(store: &External<Store>, name: String) -> AsyncTask<Finding> {
    AsyncTask::new(Finding { store: Store::clone(store), name })
}

/// Makes a limiter's call, which may wait up to the store's timeout.
#[napi]
pub fn patiently<'env>(call: Function<'env, (), Unknown<'env>>) -> napi::Result<Unknown<'env>> {
    MayWait::UntilTimeout.during(|| call.call(()))
}

/// Opens the limiter's store and declares or attaches its limits there, so that no later call has to. JavaScript opens the
/// children of a composite one by one: this runs on the thread pool, which cannot call limiters written in JavaScript.
#[napi]
pub fn open_limiter(limiter: &External<AnyLimiter>) -> AsyncTask<Pooled<()>> {
    let AnyLimiter::Other(limiter) = &**limiter else {
        return AsyncTask::new(Pooled(Box::new(|| Ok(()))));
    };
    // Begun here: with a server, all that are opened at the same time are on the way together.
    let begun = Mutex::new(Some(Begun::later(limiter.clone(), |limiter| limiter.open())));
    let finish = move || begun.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Begun::finish);
    AsyncTask::new(Pooled(Box::new(finish)))
}

/// Makes a pending call on the thread pool.
#[napi]
pub fn finish(pending: &External<Arc<PendingCall>>) -> AsyncTask<PoolCall> {
    AsyncTask::new(PoolCall(Arc::clone(pending)))
}

/// Returns a unit of time in milliseconds, if policies have it.
#[napi]
pub fn unit_of_time(unit: String) -> Option<f64> {
    parse_time(&unit).ok().map(|time| time.as_nanos() as f64 / 1e6)
}

/// Makes a clock for tests.
#[napi]
pub fn manual_clock() -> External<ManualClock> {
    External::new(ManualClock::new())
}

/// Moves a clock forward, by milliseconds.
#[napi]
pub fn advance(clock: &External<ManualClock>, ms: f64) {
    clock.advance(milliseconds(ms));
}

/// Returns a clock's time in milliseconds.
#[napi]
pub fn now(clock: &External<ManualClock>) -> f64 {
    clock.now().as_nanos() as f64 / 1e6
}

/// Declares a limit under a name; without one, under the text of its policy.
#[napi]
pub fn declare(
    store: &External<Store>,
    name: Option<String>,
    policy: &External<Policy>,
) -> napi::Result<External<AnyLimiter>> {
    made(store.declare(&name.unwrap_or_else(|| policy.to_string()), **policy))
}

/// Makes a limiter from a text such as "100/1m + 5 concurrent".
#[napi]
pub fn limiter_of_text(store: &External<Store>, name: String, text: String) -> napi::Result<External<AnyLimiter>> {
    made(store.limiter(&name, &text))
}

/// Makes a limiter of starts per period, in ms, and of concurrent starts.
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

/// Makes a limiter that asks a JavaScript function.
#[napi]
pub fn custom_limiter(
    env: &Env,
    name: String,
    ask: Function<(i32, String, f64), f64>,
) -> napi::Result<External<AnyLimiter>> {
    let limiter = CustomLimiter::new(Script::new(env, name, &ask)?).map_err(thrown)?;
    Ok(External::new(AnyLimiter::Custom(Arc::new(limiter))))
}

/// Makes a limiter that admits every start.
#[napi]
pub fn null_limiter() -> External<AnyLimiter> {
    External::new(AnyLimiter::Other(Arc::new(NullLimiter::new())))
}

/// Makes a limiter of several limits, which has no children yet.
#[napi]
pub fn composite_limiter() -> External<AnyLimiter> {
    External::new(AnyLimiter::Composite(Arc::new(CompositeLimiter::new([]))))
}

/// Makes a limiter of alternatives, which has none yet.
#[napi]
pub fn first_of_limiter() -> External<AnyLimiter> {
    External::new(AnyLimiter::FirstOf(Arc::new(FirstOfLimiter::new([]))))
}

/// Adds a child to a composite, perhaps with a name, or an alternative.
#[napi]
pub fn add_limiter(to: &External<AnyLimiter>, child: &External<AnyLimiter>, name: Option<String>) -> napi::Result<()> {
    let added = match (&**to, name) {
        (AnyLimiter::Composite(composite), Some(name)) => composite.add_named(&name, child.get()),
        (AnyLimiter::Composite(composite), None) => composite.add(child.get()),
        (AnyLimiter::FirstOf(first_of), _) => first_of.add(child.get()),
        _ => Ok(()),
    };
    added.map_err(thrown)
}

/// Returns the number of a limiter, which no other one of this process has.
#[napi]
pub fn number_of(limiter: &External<AnyLimiter>) -> f64 {
    limiter.get().base().id as f64
}

/// Returns the key of a start that charges these parts for themselves. Keys and weights may be null.
#[napi]
pub fn joint_key(
    limiter: &External<AnyLimiter>,
    key: String,
    parts: Vec<String>,
    keys: Vec<Option<String>>,
    weights: Vec<Option<f64>>,
) -> napi::Result<String> {
    let charges = parts.iter().zip(&keys).zip(&weights).map(|((part, key), weight)| {
        // Saturates: a number that is too large exceeds every limit.
        Charge { part, key: key.as_deref(), weight: weight.map(|weight| weight as u64) }
    });
    limiter.get().joint(&key, &charges.collect::<Vec<_>>()).map(|key| key.to_string()).map_err(thrown)
}

/// Returns the limiter's name.
#[napi]
pub fn name_of(limiter: &External<AnyLimiter>) -> String {
    limiter.get().name().to_owned()
}

/// Returns whether permits hold units until they end: of a composite, those of any part.
#[napi]
pub fn holds(limiter: &External<AnyLimiter>) -> bool {
    any_holds(&*limiter.get())
}

fn any_holds(limiter: &dyn Limiter) -> bool {
    let parts = limiter.parts();
    // Of alternatives any may be chosen.
    if parts.is_empty() {
        limiter.depth() > 0 || !limiter.has_places()
    } else {
        parts.iter().any(|(_, part)| any_holds(&**part))
    }
}

/// Returns the names of a composite's parts, in order.
#[napi]
pub fn part_names(limiter: &External<AnyLimiter>) -> Vec<String> {
    limiter.get().part_names()
}

/// Returns a part of a composite by its name.
#[napi]
pub fn part_of(limiter: &External<AnyLimiter>, name: String) -> Option<External<AnyLimiter>> {
    let (_, part) = limiter.get().parts().into_iter().find(|(part, _)| *part == name)?;
    Some(External::new(AnyLimiter::Other(part)))
}

/// Returns the counts of a key; of the empty key, those of the whole limit.
#[napi]
pub fn stats(limiter: &External<AnyLimiter>, key: String) -> napi::Result<Vec<f64>> {
    limiter.get().stats(&key).map(|stats| counts(&stats)).map_err(thrown)
}

/// Puts what a server says about a limit above its declared policy, later: so many units in a window of ms.
#[napi]
pub fn learn(limiter: &External<AnyLimiter>, units: f64, window: f64, is_estimated: bool, host: String) {
    let quota = Quota { units: units as u64, window: milliseconds(window), is_estimated };
    limiter.get().learn(quota, &host);
}

/// Returns counts in the order of `statsOf` in `lib/calls.ts`, durations in ms.
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

/// Makes the closure through which a limiter is called. Arguments and results are in `buffer`. `line` is the number of its line of
/// waiters.
#[napi(ts_return_type = "() => void")]
pub fn bind<'env>(
    env: &'env Env,
    limiter: &External<AnyLimiter>,
    buffer: ArrayBuffer<'env>,
    events: &External<Arc<EventQueue>>,
    wakes: &External<Arc<WakeQueue>>,
    line: f64,
) -> napi::Result<Function<'env, (), ()>> {
    let may_call_back = !matches!(**limiter, AnyLimiter::Other(_));
    let wakes = Arc::clone(wakes);
    call::bind(env, limiter.get(), may_call_back, &buffer, events, move || wakes.add(line))
}
