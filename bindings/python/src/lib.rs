//! The Python module `workglow_limit._native`: the core's limiters as Python classes. Nothing is decided here.

mod argument;
mod clock;
mod composite;
mod custom;
mod decision;
mod error;
mod family;
mod flow;
mod hooks;
mod limiter;
mod null;
mod permit;
mod stats;
mod store;
mod wait;

#[pyo3::pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::{
        clock::ManualClock,
        composite::CompositeLimiter,
        decision::Decision,
        family::{
            ConcurrencyLimiter, DelayLimiter, EvenlySpacedRateLimiter, FixedWindowLimiter, LeakyBucketLimiter,
            RateLimiter, SlidingWindowCounterLimiter, TokenBucketLimiter,
        },
        flow::FlowControl,
        hooks::LimitEvent,
        limiter::Limiter,
        null::NullLimiter,
        permit::Permit,
        stats::Stats,
        store::Store,
        wait::Waiter,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let at_exit = wrap_pyfunction!(crate::store::tell_counts, module)?;
        module.py().import("atexit")?.call_method1("register", (at_exit,))?;
        Ok(())
    }

    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
