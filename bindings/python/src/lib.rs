//! The Python module `workglow_limit._native`: the core's limiters as Python classes. Nothing is decided here.

mod argument;
mod clock;
mod composite;
mod concurrency;
mod decision;
mod error;
mod limiter;
mod null;
mod permit;
mod rate;
mod store;
mod wait;

#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::{
        clock::ManualClock, composite::CompositeLimiter, concurrency::ConcurrencyLimiter, decision::Decision,
        limiter::Limiter, null::NullLimiter, permit::Permit, rate::RateLimiter, store::Store, wait::Waiter,
    };

    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
