//! The Python module `workglow_limit._native`: the core's limiters as Python classes. Nothing is decided here.

mod acquiring;
mod argument;
mod asking;
mod by_hand;
mod clock;
mod command;
mod composite;
mod custom;
mod decision;
mod elsewhere;
mod entered;
mod error;
mod family;
mod flow;
mod hooks;
mod limiter;
mod line;
mod null;
mod origin;
mod permit;
mod pool;
mod snapshot;
mod stats;
mod store;
mod waiting;

#[pyo3::pymodule]
mod _native {
    use pyo3::exceptions::PyImportError;
    use pyo3::ffi;
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::{
        acquiring::Acquiring,
        asking::Asked,
        clock::ManualClock,
        command::run_command,
        composite::CompositeLimiter,
        decision::Decision,
        elsewhere::call_elsewhere,
        entered::Entered,
        family::{
            ConcurrencyLimiter, DelayLimiter, EvenlySpacedRateLimiter, FixedWindowLimiter, LeakyBucketLimiter,
            RateLimiter, SlidingWindowCounterLimiter, TokenBucketLimiter,
        },
        flow::FlowControl,
        hooks::LimitEvent,
        limiter::Limiter,
        line::{Line, Waiter},
        null::NullLimiter,
        pool::Pool,
        snapshot::{GrantSnapshot, KeySnapshot, LimitSnapshot, ProcessSnapshot, Snapshot, Usage, Waits},
        stats::Stats,
        store::{Finding, Problem, Store, doctor, metrics_content_type, postgres_schema},
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // SAFETY: the caller is attached to an interpreter, so there is a current one.
        let interpreter = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
        // Our classes are statics of the process, and a thread attaches to the main interpreter (number 0): within
        // another one it would wait for itself, at the latest when that one ends.
        if interpreter != 0 {
            return Err(PyImportError::new_err(
                "workglow_limit works in the main interpreter only, and this is a subinterpreter: use a process instead \
                 (with mod_wsgi: WSGIApplicationGroup %{GLOBAL})",
            ));
        }
        // Whoever may wait says so, and lets go of the GIL: see `waiting.rs`.
        workglow_limit::MayWait::Never.set_default();
        crate::limiter::complete_class(module.py())?;
        module.add("Permit", module.py().get_type::<crate::permit::Permit>())?;
        let at_exit = wrap_pyfunction!(crate::store::tell_counts, module)?;
        module.py().import("atexit")?.call_method1("register", (at_exit,))?;
        Ok(())
    }

    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
