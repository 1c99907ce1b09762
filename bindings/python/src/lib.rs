//! The Python module `workglow_limit._native`: the core's limiters as Python classes. The core makes all decisions.

mod acquisition;
mod argument;
mod async_call;
mod clock;
mod command;
mod composite;
mod custom;
mod decision;
mod error;
mod family;
mod fastcall;
mod flow;
mod hooks;
mod joint;
mod limiter;
mod line;
mod line_snapshot;
mod null;
mod origin;
mod permit;
mod permit_stacks;
mod pool;
mod snapshot;
mod stats;
mod store;
mod threads;
mod waiting;

#[pyo3::pymodule]
mod _native {
    use pyo3::exceptions::PyImportError;
    use pyo3::ffi;
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::{
        acquisition::Acquisition,
        async_call::AsyncCall,
        clock::ManualClock,
        command::run_command,
        composite::CompositeLimiter,
        composite::FirstOfLimiter,
        decision::Decision,
        family::{
            ConcurrencyLimiter, DelayLimiter, EvenlySpacedRateLimiter, FixedWindowLimiter, LeakyBucketLimiter,
            RateLimiter, SlidingWindowCounterLimiter, TokenBucketLimiter,
        },
        flow::FlowControl,
        hooks::LimitEvent,
        limiter::Limiter,
        line::{Line, Waiter},
        line_snapshot::{HeadSnapshot, HolderSnapshot, LineSnapshot, WaitingSnapshot},
        null::NullLimiter,
        permit_stacks::PermitStacks,
        pool::Pool,
        snapshot::{
            GrantSnapshot, KeySnapshot, LimitSnapshot, ProcessSnapshot, Snapshot, TenantSnapshot, Usage, Waits,
        },
        stats::Stats,
        store::{Finding, Problem, Store, doctor, metrics_content_type, postgres_schema},
        threads::call_in_thread,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // SAFETY: the caller is attached to an interpreter, so there is a current one.
        let interpreter = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
        // PyO3 keeps our classes in process-wide statics, and its threads attach to the main interpreter (number 0). A
        // thread of a subinterpreter would deadlock with itself, at the latest when the subinterpreter ends.
        if interpreter != 0 {
            return Err(PyImportError::new_err(
                "workglow_limit works only in the main interpreter, and this is a subinterpreter: use a process instead \
                 (with mod_wsgi: WSGIApplicationGroup %{GLOBAL})",
            ));
        }
        // Calls that may wait say so and release the GIL: see `waiting.rs`.
        workglow_limit::embed::MayWait::Never.set_default();
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
