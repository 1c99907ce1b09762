//! The limiters that have a policy: in a store, or in this process.

use crate::argument::{self, choice, number, quoting, quoting_given, seconds, text, whole, wrong_type};
use crate::clock::ManualClock;
use crate::error::raised;
use crate::limiter::{Limiter, SharedLimiter};
use crate::origin::{Named, Origin};
use crate::store::Store;
use pyo3::PyTypeInfo;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBool;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::{Backoff, Error, Jitter, Policy};

type Given<'a, 'py> = &'a Bound<'py, PyAny>;
type New<T> = PyResult<PyClassInitializer<T>>;

/// Defines a limiter class with its constructor.
macro_rules! limiter {
    ($(#[$doc:meta])* $name:ident { $($new:tt)* }) => {
        $(#[$doc])*
        #[pyclass(extends = Limiter, subclass, frozen, module = "workglow_limit")]
        pub struct $name;

        #[pymethods]
        impl $name {
            $($new)*
        }
    };
}

limiter! {
    /// Admits at most max_executions units in any rolling window, over all programs that use the same name in the same store.
    ///
    /// max_executions is 1 to 1,000,000,000 (4,096 with several windows). window_size_in_seconds is a number of seconds or a
    /// timedelta, 1 µs to 366 days. For several windows at once pass windows instead: one to four such pairs, as in
    /// windows=[(100, 60), (5, 1.0)]; a start must fit into all of them. The first use declares the limit and replaces the
    /// policy that the name had.
    ///
    /// The other parameters set how Decision.suggested_after grows, for callers that requeue: initial_backoff_delay after the
    /// first denial, backoff_multiplier times as long after each further denial, at most max_backoff_delay. An admission resets
    /// it. jitter spreads a delay b: "scaled" over b to 2 b, "full" over 0 to b, "equal" over b/2 to b, "none" not at all.
    ///
    /// shared makes one budget for all keys. Each names a tenant in it, and while tenants wait they start by their shares: see
    /// Store.share. All limiters with a store take it, but for LeakyBucketLimiter.
    RateLimiter {
        #[new]
        #[pyo3(
            signature = (
                store, name, *, max_executions=None, window_size_in_seconds=None, windows=None,
                initial_backoff_delay=None, backoff_multiplier=None, max_backoff_delay=None, jitter=None, shared=false
            ),
            text_signature = "(store, name, *, max_executions=None, window_size_in_seconds=None, windows=None, \
                              initial_backoff_delay=1.0, backoff_multiplier=2.0, max_backoff_delay=600.0, \
                              jitter='scaled', shared=False)"
        )]
        #[allow(clippy::too_many_arguments)] // All but two are keywords.
        fn new(
            #[pyo3(from_py_with = argument::store)] store: &Bound<'_, Store>,
            name: &Bound<'_, PyAny>,
            max_executions: Option<&Bound<'_, PyAny>>,
            window_size_in_seconds: Option<&Bound<'_, PyAny>>,
            windows: Option<&Bound<'_, PyAny>>,
            initial_backoff_delay: Option<&Bound<'_, PyAny>>,
            backoff_multiplier: Option<&Bound<'_, PyAny>>,
            max_backoff_delay: Option<&Bound<'_, PyAny>>,
            jitter: Option<&Bound<'_, PyAny>>,
            #[pyo3(from_py_with = argument::shared)] shared: bool,
        ) -> New<Self> {
            let all = match (max_executions, window_size_in_seconds, windows) {
                (Some(max), Some(window), None) => vec![pair(max, window)?],
                (None, None, Some(windows)) => pairs(windows)?,
                _ => {
                    let expected = "expected either max_executions and window_size_in_seconds, or windows";
                    return Err(PyTypeError::new_err(expected));
                }
            };
            let backoff = backoff(initial_backoff_delay, backoff_multiplier, max_backoff_delay, jitter)?;
            let policy = Policy::rate_in(&all).and_then(|policy| policy.with_backoff(backoff)).map_err(raised)?;
            // The windows may have been an iterator, which is now exhausted.
            let windows = windows.map(|_| all.into_pyobject(name.py())).transpose()?;
            let others = [
                ("max_executions", max_executions),
                ("window_size_in_seconds", window_size_in_seconds),
                ("windows", windows.as_ref()),
                ("initial_backoff_delay", initial_backoff_delay),
                ("backoff_multiplier", backoff_multiplier),
                ("max_backoff_delay", max_backoff_delay),
                ("jitter", jitter),
            ];
            Ok(declared::<RateLimiter>(store, name, policy, shared, others)?.add_subclass(RateLimiter))
        }
    }
}

limiter! {
    /// Admits at most max_concurrent_jobs units at the same time, per key. With store and name, all programs that use the same
    /// name in the same store share the limit. Without them it counts in this process, and a forked child counts its own.
    ///
    /// A permit of a shared limit is a lease. If the process that holds it is killed, the next attempt of any process takes it
    /// back. With lease (seconds or a timedelta) it also ends after that time, unless Permit.renew is called before.
    ///
    /// With cooldown (seconds or a timedelta) the units of a start become free only that long after it has ended. So at most
    /// max_concurrent_jobs units are counted in any rolling window of that length, also as the server counts that the jobs
    /// call: see Permit.arrived.
    ///
    /// max_concurrent_jobs is 1 to 65535. clock is for tests without a store.
    ConcurrencyLimiter {
        #[new]
        #[pyo3(
            signature = (
                max_concurrent_jobs, *, store=None, name=None, lease=None, cooldown=None, clock=None, shared=false
            ),
            text_signature = "(max_concurrent_jobs, *, store=None, name=None, lease=None, cooldown=None, clock=None, \
                              shared=False)"
        )]
        fn new(
            max_concurrent_jobs: &Bound<'_, PyAny>,
            #[pyo3(from_py_with = argument::store_or_none)] store: Option<&Bound<'_, Store>>,
            name: Option<&Bound<'_, PyAny>>,
            lease: Option<&Bound<'_, PyAny>>,
            cooldown: Option<&Bound<'_, PyAny>>,
            #[pyo3(from_py_with = argument::clock)] clock: Option<&Bound<'_, ManualClock>>,
            #[pyo3(from_py_with = argument::shared)] shared: bool,
        ) -> New<Self> {
            let max = whole("max_concurrent_jobs", max_concurrent_jobs)?.clamped();
            let wrong = |e| quoting(e, &[("max_concurrent_jobs", "max_concurrent_jobs", max_concurrent_jobs)]);
            let mut policy = Policy::concurrency(max).map_err(wrong)?;
            if let Some(lease) = lease {
                let length = seconds("lease", lease)?;
                policy = policy.with_lease(length).map_err(|e| quoting(e, &[("lease", "lease", lease)]))?;
            }
            if let Some(cooldown) = cooldown {
                let length = seconds("cooldown", cooldown)?;
                policy = policy.with_cooldown(length).map_err(|e| quoting(e, &[("cooldown", "cooldown", cooldown)]))?;
            }
            let limiter = match store_and_name(store, name, clock)? {
                Some((store, name)) => {
                    let given = [("max_concurrent_jobs", Some(max_concurrent_jobs)), ("lease", lease)];
                    let others = given.into_iter().chain([("cooldown", cooldown)]);
                    declared::<ConcurrencyLimiter>(store, name, policy, shared, others)?
                }
                None if lease.is_some() => {
                    return Err(PyTypeError::new_err("lease needs a store and a name"));
                }
                None if shared => return Err(shared_alone()),
                None => {
                    let clock = clock.map(|clock| clock.get().core.clone());
                    let core = workglow_limit::ConcurrencyLimiter::by_policy(policy, clock).map_err(wrong)?;
                    local::<ConcurrencyLimiter>(max_concurrent_jobs.py(), core, policy)?
                }
            };
            Ok(limiter.add_subclass(ConcurrencyLimiter))
        }
    }
}

limiter! {
    /// Keeps at least delay between one start and the next, per key. With store and name, all programs that use the same name
    /// in the same store share the limit. Without them it counts in this process. Every start weighs 1.
    ///
    /// delay is seconds or a timedelta, 1 µs to 366 days. clock is for tests without a store.
    DelayLimiter {
        #[new]
        #[pyo3(
            signature = (delay=None, *, store=None, name=None, clock=None, shared=false),
            text_signature = "(delay=0.05, *, store=None, name=None, clock=None, shared=False)"
        )]
        fn new(
            py: Python<'_>,
            delay: Option<&Bound<'_, PyAny>>,
            #[pyo3(from_py_with = argument::store_or_none)] store: Option<&Bound<'_, Store>>,
            name: Option<&Bound<'_, PyAny>>,
            #[pyo3(from_py_with = argument::clock)] clock: Option<&Bound<'_, ManualClock>>,
            #[pyo3(from_py_with = argument::shared)] shared: bool,
        ) -> New<Self> {
            let length = delay.map_or(Ok(Duration::from_millis(50)), |delay| seconds("delay", delay))?;
            let wrong = |e| quoting_given(e, [("delay", "delay", delay)]);
            let policy = Policy::delay(length).map_err(wrong)?;
            let limiter = match store_and_name(store, name, clock)? {
                Some((store, name)) => declared::<DelayLimiter>(store, name, policy, shared, [("delay", delay)])?,
                None if shared => return Err(shared_alone()),
                None => {
                    let core = workglow_limit::DelayLimiter::with_clock(length, clock.map(|c| c.get().core.clone()));
                    local::<DelayLimiter>(py, core.map_err(raised)?, policy)?
                }
            };
            Ok(limiter.add_subclass(DelayLimiter))
        }
    }
}

limiter! {
    /// Spaces max_executions starts evenly over a window, per key. With store and name, all programs that use the same name in
    /// the same store share the limit. Without them it counts in this process. Every start weighs 1.
    ///
    /// An adaptive limit shortens the distance by the average duration of the last max_executions jobs, from their start to
    /// complete or settle. At most max_executions jobs start in any rolling window. A limit that is not adaptive spaces all
    /// starts window_size_in_seconds / max_executions apart.
    ///
    /// max_executions is 1 to 4,096, or to 1,000,000,000 if not adaptive. window_size_in_seconds is a number of seconds or a
    /// timedelta, 1 µs to 366 days. clock is for tests without a store.
    EvenlySpacedRateLimiter {
        #[new]
        #[pyo3(
            signature = (
                *, max_executions, window_size_in_seconds, adaptive=true, store=None, name=None, clock=None, shared=false
            ),
            text_signature = "(*, max_executions, window_size_in_seconds, adaptive=True, store=None, name=None, clock=None, \
                              shared=False)"
        )]
        fn new(
            max_executions: &Bound<'_, PyAny>,
            window_size_in_seconds: &Bound<'_, PyAny>,
            #[pyo3(from_py_with = argument::adaptive)] adaptive: bool,
            #[pyo3(from_py_with = argument::store_or_none)] store: Option<&Bound<'_, Store>>,
            name: Option<&Bound<'_, PyAny>>,
            #[pyo3(from_py_with = argument::clock)] clock: Option<&Bound<'_, ManualClock>>,
            #[pyo3(from_py_with = argument::shared)] shared: bool,
        ) -> New<Self> {
            let (max, window) = numbers(max_executions, window_size_in_seconds)?;
            let wrong = |e| quoting_window(e, max_executions, window_size_in_seconds);
            let policy = Policy::evenly_spaced(max, window, adaptive).map_err(wrong)?;
            let limiter = match store_and_name(store, name, clock)? {
                Some((store, name)) => {
                    let adaptive = adaptive.into_pyobject(name.py())?.to_owned();
                    let others = [
                        ("max_executions", Some(max_executions)),
                        ("window_size_in_seconds", Some(window_size_in_seconds)),
                        ("adaptive", Some(adaptive.as_any())),
                    ];
                    declared::<EvenlySpacedRateLimiter>(store, name, policy, shared, others)?
                }
                None if shared => return Err(shared_alone()),
                None => {
                    let clock_of = clock.map(|clock| clock.get().core.clone());
                    let core = workglow_limit::EvenlySpacedRateLimiter::with_clock(max, window, adaptive, clock_of);
                    local::<EvenlySpacedRateLimiter>(max_executions.py(), core.map_err(wrong)?, policy)?
                }
            };
            Ok(limiter.add_subclass(EvenlySpacedRateLimiter))
        }
    }
}

limiter! {
    /// A bucket that holds at most burst tokens (default: rate) and gains rate tokens per period, evenly. A start takes as many
    /// tokens as it weighs. In any window of w seconds at most burst + rate · w / period units start.
    ///
    /// rate and burst are 1 to 1,000,000,000; period is seconds or a timedelta, 1 µs to 366 days.
    TokenBucketLimiter {
        #[new]
        #[pyo3(
            signature = (store, name, *, rate, period=None, burst=None, shared=false),
            text_signature = "(store, name, *, rate, period=1.0, burst=None, shared=False)"
        )]
        fn new(
            #[pyo3(from_py_with = argument::store)] store: &Bound<'_, Store>,
            name: &Bound<'_, PyAny>,
            rate: &Bound<'_, PyAny>,
            period: Option<&Bound<'_, PyAny>>,
            burst: Option<&Bound<'_, PyAny>>,
            #[pyo3(from_py_with = argument::shared)] shared: bool,
        ) -> New<Self> {
            let policy = bucket(Policy::token_bucket, rate, period, ("burst", burst))?;
            let others = [("rate", Some(rate)), ("period", period), ("burst", burst)];
            Ok(declared::<TokenBucketLimiter>(store, name, policy, shared, others)?.add_subclass(TokenBucketLimiter))
        }
    }
}

limiter! {
    /// Admits one unit per period / rate. Up to queue units (default: rate) wait for their turn; a start beyond that gets no
    /// place.
    ///
    /// rate and queue are 1 to 1,000,000,000; period is seconds or a timedelta, 1 µs to 366 days.
    LeakyBucketLimiter {
        #[new]
        #[pyo3(
            signature = (store, name, *, rate, period=None, queue=None),
            text_signature = "(store, name, *, rate, period=1.0, queue=None)"
        )]
        fn new(
            #[pyo3(from_py_with = argument::store)] store: &Bound<'_, Store>,
            name: &Bound<'_, PyAny>,
            rate: &Bound<'_, PyAny>,
            period: Option<&Bound<'_, PyAny>>,
            queue: Option<&Bound<'_, PyAny>>,
        ) -> New<Self> {
            let policy = bucket(Policy::leaky_bucket, rate, period, ("queue", queue))?;
            let others = [("rate", Some(rate)), ("period", period), ("queue", queue)];
            Ok(declared::<LeakyBucketLimiter>(store, name, policy, false, others)?.add_subclass(LeakyBucketLimiter))
        }
    }
}

limiter! {
    /// Admits at most max_executions units in each window. Windows are aligned to the Unix epoch, so up to twice as many units
    /// can start across a boundary.
    ///
    /// max_executions is 1 to 1,000,000,000. window_size_in_seconds is seconds or a timedelta, 1 µs to 366 days.
    FixedWindowLimiter {
        #[new]
        #[pyo3(
            signature = (store, name, *, max_executions, window_size_in_seconds, shared=false),
            text_signature = "(store, name, *, max_executions, window_size_in_seconds, shared=False)"
        )]
        fn new(
            #[pyo3(from_py_with = argument::store)] store: &Bound<'_, Store>,
            name: &Bound<'_, PyAny>,
            max_executions: &Bound<'_, PyAny>,
            window_size_in_seconds: &Bound<'_, PyAny>,
            #[pyo3(from_py_with = argument::shared)] shared: bool,
        ) -> New<Self> {
            let policy = counter(Policy::fixed_window, max_executions, window_size_in_seconds)?;
            let others =
                [("max_executions", Some(max_executions)), ("window_size_in_seconds", Some(window_size_in_seconds))];
            Ok(declared::<FixedWindowLimiter>(store, name, policy, shared, others)?.add_subclass(FixedWindowLimiter))
        }
    }
}

limiter! {
    /// Admits about max_executions units in any rolling window, estimated from two counts. Suits large limits that may be
    /// approximate.
    ///
    /// max_executions is 1 to 1,000,000,000. window_size_in_seconds is seconds or a timedelta, 1 µs to 366 days.
    SlidingWindowCounterLimiter {
        #[new]
        #[pyo3(
            signature = (store, name, *, max_executions, window_size_in_seconds, shared=false),
            text_signature = "(store, name, *, max_executions, window_size_in_seconds, shared=False)"
        )]
        fn new(
            #[pyo3(from_py_with = argument::store)] store: &Bound<'_, Store>,
            name: &Bound<'_, PyAny>,
            max_executions: &Bound<'_, PyAny>,
            window_size_in_seconds: &Bound<'_, PyAny>,
            #[pyo3(from_py_with = argument::shared)] shared: bool,
        ) -> New<Self> {
            let policy = counter(Policy::sliding_window_counter, max_executions, window_size_in_seconds)?;
            let others =
                [("max_executions", Some(max_executions)), ("window_size_in_seconds", Some(window_size_in_seconds))];
            Ok(declared::<SlidingWindowCounterLimiter>(store, name, policy, shared, others)?.add_subclass(SlidingWindowCounterLimiter))
        }
    }
}

/// Makes a limiter that declares a policy in a store, perhaps shared by tenants. `others` are the other arguments of its class.
fn declared<'a, 'py: 'a, C: PyTypeInfo>(
    store: &'a Bound<'py, Store>,
    name: Given<'a, 'py>,
    policy: Policy,
    shared: bool,
    others: impl IntoIterator<Item = Named<'a, 'py>>,
) -> New<Limiter> {
    let policy = if shared { policy.shared().map_err(raised)? } else { policy };
    let flag = PyBool::new(name.py(), true);
    #[allow(clippy::map_identity)] // The flag does not live as long as the others.
    let others = others
        .into_iter()
        .map(|named| -> Named<'_, 'py> { named })
        .chain(shared.then_some(("shared", Some(flag.as_any()))));
    let core = store.get().core.declare(text("name", name)?, policy);
    let core = core.map_err(|e| quoting(e, &[("name", "name", name)]))?;
    let arguments = [("store", Some(store.as_any())), ("name", Some(name))].into_iter().chain(others);
    let origin = Origin::class::<C>(name.py(), arguments)?;
    Ok(Limiter::of(
        SharedLimiter::new(core, Some(store.get())),
        origin.shown(Some(policy.to_string()), Some(&store.get().core)),
    ))
}

fn shared_alone() -> PyErr {
    let expected = "False without a store".to_owned();
    raised(Error::InvalidArgument { parameter: "shared", value: "True".to_owned(), expected })
}

/// Makes a limiter of this process.
fn local<C: PyTypeInfo>(py: Python<'_>, core: impl workglow_limit::Limiter + 'static, policy: Policy) -> New<Limiter> {
    let origin = Origin::class::<C>(py, [])?.shown(Some(policy.to_string()), None);
    Ok(Limiter::of(SharedLimiter::new(Arc::new(core), None), origin))
}

/// Returns the store and the name, or None for a limit of this process.
fn store_and_name<'a, 'py>(
    store: Option<&'a Bound<'py, Store>>,
    name: Option<Given<'a, 'py>>,
    clock: Option<&Bound<'_, ManualClock>>,
) -> PyResult<Option<(&'a Bound<'py, Store>, Given<'a, 'py>)>> {
    match (store, name, clock) {
        (None, None, _) => Ok(None),
        (Some(store), Some(name), None) => Ok(Some((store, name))),
        (Some(_), None, _) => Err(PyTypeError::new_err("store needs a name")),
        (None, Some(_), _) => Err(PyTypeError::new_err("name needs a store")),
        (Some(_), Some(_), Some(_)) => {
            Err(PyTypeError::new_err("clock must not be given with a store, which has its own"))
        }
    }
}

/// Reads several windows.
fn pairs(windows: Given<'_, '_>) -> PyResult<Vec<(u64, Duration)>> {
    let wrong = || wrong_type("windows", windows, "pairs such as [(100, 60), (5, 1.0)]");
    let of_one = |window: PyResult<Bound<'_, PyAny>>| {
        let parts = window?.try_iter().map_err(|_| wrong())?.collect::<PyResult<Vec<_>>>()?;
        let [max, window] = &parts[..] else { return Err(wrong()) };
        pair(max, window)
    };
    windows.try_iter().map_err(|_| wrong())?.map(of_one).collect()
}

/// Reads one window. It is checked here because an error about all windows could not quote the wrong one.
fn pair(max_executions: Given<'_, '_>, window: Given<'_, '_>) -> PyResult<(u64, Duration)> {
    let (max, length) = numbers(max_executions, window)?;
    Policy::rate(max, length).map_err(|e| quoting_window(e, max_executions, window))?;
    Ok((max, length))
}

fn numbers(max_executions: Given<'_, '_>, window: Given<'_, '_>) -> PyResult<(u64, Duration)> {
    let length = seconds("window_size_in_seconds", window)?;
    Ok((whole("max_executions", max_executions)?.clamped(), length))
}

fn quoting_window(error: workglow_limit::Error, max_executions: Given<'_, '_>, window: Given<'_, '_>) -> PyErr {
    let max = ("max_executions", "max_executions", max_executions);
    quoting(error, &[max, ("window", "window_size_in_seconds", window)])
}

fn counter(
    policy: fn(u64, Duration) -> workglow_limit::Result<Policy>,
    max_executions: Given<'_, '_>,
    window: Given<'_, '_>,
) -> PyResult<Policy> {
    let (max, length) = numbers(max_executions, window)?;
    policy(max, length).map_err(|e| quoting_window(e, max_executions, window))
}

fn bucket(
    policy: fn(u64, Duration, u64) -> workglow_limit::Result<Policy>,
    rate: Given<'_, '_>,
    period: Option<Given<'_, '_>>,
    (size_name, size): (&'static str, Option<Given<'_, '_>>),
) -> PyResult<Policy> {
    let number = whole("rate", rate)?.clamped();
    let length = period.map_or(Ok(Duration::from_secs(1)), |period| seconds("period", period))?;
    let most = size.map_or(Ok(number), |size| whole(size_name, size).map(argument::Whole::clamped))?;
    policy(number, length, most).map_err(|e| {
        quoting_given(e, [("rate", "rate", Some(rate)), ("period", "period", period), (size_name, size_name, size)])
    })
}

/// The backoff, with defaults for omitted values.
fn backoff(
    initial: Option<Given<'_, '_>>,
    multiplier: Option<Given<'_, '_>>,
    max: Option<Given<'_, '_>>,
    jitter: Option<Given<'_, '_>>,
) -> PyResult<Backoff> {
    let first = initial.map_or(Ok(Duration::from_secs(1)), |initial| seconds("initial_backoff_delay", initial))?;
    let factor = multiplier.map_or(Ok(2.0), |multiplier| number("backoff_multiplier", multiplier))?;
    let last = max.map_or(Ok(Duration::from_secs(600)), |max| seconds("max_backoff_delay", max))?;
    let words = [("scaled", Jitter::Scaled), ("full", Jitter::Full), ("equal", Jitter::Equal), ("none", Jitter::None)];
    let jitter = jitter.map_or(Ok(Jitter::Scaled), |jitter| choice("jitter", jitter, &words))?;
    Backoff::new(first, factor, last, jitter).map_err(|e| {
        let given =
            [("initial_backoff_delay", initial), ("backoff_multiplier", multiplier), ("max_backoff_delay", max)];
        quoting_given(e, given.map(|(name, value)| (name, name, value)))
    })
}
