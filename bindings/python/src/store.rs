//! Where limits live.

use crate::argument::{self, Whole, quoting_given};
use crate::clock::ManualClock;
use crate::error::raised;
use crate::family::in_store;
use crate::flow::FlowControl;
use crate::hooks::{self, Asked, Happening, Hooks, LimitEvent};
use crate::limiter::Limiter;
use crate::waiting::{running_loop, wait};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyTuple};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use workglow_limit::{Durability, MayWait, OnError, StoreOptions};

/// What a store and the limiters in it share.
pub struct Shared {
    pub core: workglow_limit::Store,
    /// Its time is a test's.
    pub is_manual: bool,
    pub hooks: Arc<Hooks>,
    /// How many failures the hooks have heard of.
    heard: AtomicU64,
    /// An event loop's executor looks after it.
    is_looked_after: Arc<AtomicBool>,
}

impl Shared {
    /// Has it failed since this was asked last?
    pub fn has_failed_again(&self) -> bool {
        let failures = self.core.failures();
        self.heard.fetch_max(failures, Relaxed) < failures
    }

    /// Does what decisions left: without the GIL, and not on an event loop.
    pub fn look_after(&self, py: Python<'_>) {
        let Some(running) = running_loop(py) else { return wait(py, || self.core.look_after()) };
        if self.is_looked_after.swap(true, Relaxed) {
            return;
        }
        let (core, is_looked_after) = (self.core.clone(), self.is_looked_after.clone());
        let look = move |call: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| {
            call.py().detach(|| MayWait::UntilTimeout.during(|| core.look_after()));
            is_looked_after.store(false, Relaxed);
        };
        let sent = PyCFunction::new_closure(py, None, None, look)
            .and_then(|look| running.call_method1("run_in_executor", (py.None(), look)));
        if sent.is_err() {
            // The loop is about to end. It stays due.
            self.is_looked_after.store(false, Relaxed);
        }
    }

    /// What the core answered about a name, after the hooks have heard what is wrong.
    fn told<R>(
        &self,
        py: Python<'_>,
        name: &str,
        answer: workglow_limit::Result<R>,
        raise: impl FnOnce(workglow_limit::Error) -> PyErr,
    ) -> PyResult<R> {
        let happening = answer.as_ref().err().and_then(Happening::of);
        let answer = answer.map_err(raise);
        if let (true, Some(happening), Err(error)) = (hooks::are_any(), happening, &answer) {
            self.has_failed_again();
            let asked = Asked { key: "", weight: 0 };
            let event = LimitEvent::new(py, happening, name, asked, Duration::ZERO, Some(error))?;
            self.hooks.call(py, happening, &event);
        }
        answer
    }
}

/// What there is to do at the end of the process, when Python does not destroy what threads, hooks or cycles still hold.
/// Never waited for, as a thread that a fork left behind may have it.
static STORES: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Tells other processes what this one counted last.
#[pyfunction]
pub fn tell_counts(py: Python<'_>) {
    let Ok(stores) = STORES.try_lock().map(|mut stores| std::mem::take(&mut *stores)) else { return };
    wait(py, || stores.iter().filter_map(Weak::upgrade).for_each(|shared| shared.core.tell_counts()));
}

/// Where limits live: "memory:" (this process) or "sqlite:PATH" (this machine).
///
/// Making one opens nothing: the first use does, or open(). So it can be made at import, before workers are forked.
/// timeout is how long a call may wait for something rare (opening, a new limit), in seconds; mode is that of the
/// files that are made.
///
/// on_error says what a decision answers when the store fails: "raise" (the error), "deny", or "admit" (nothing counts
/// it); failures counts them. durability says how much of what was admitted a power cut may make the machine forget,
/// which then counts as spent: "budget" (5 % of a limit), or "commit" (nothing: each start is written before its call
/// returns).
#[pyclass(frozen, module = "workglow_limit")]
pub struct Store {
    pub shared: Arc<Shared>,
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(
        signature = (
            url, *, timeout=Duration::from_secs(5), mode=None, on_error=OnError::Raise, durability=Durability::Budget,
            clock=None
        ),
        text_signature = "(url, *, timeout=5.0, mode=0o600, on_error='raise', durability='budget', clock=None)"
    )]
    fn new(
        url: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = argument::timeout)] timeout: Duration,
        mode: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = argument::on_error)] on_error: OnError,
        #[pyo3(from_py_with = argument::durability)] durability: Durability,
        clock: Option<&Bound<'_, ManualClock>>,
    ) -> PyResult<Self> {
        let mut options = StoreOptions::default();
        options.timeout = timeout;
        options.on_error = on_error;
        options.durability = durability;
        options.clock = clock.map(|clock| clock.get().core.clone());
        if let Some(mode) = mode {
            options.mode = match argument::whole("mode", mode)? {
                Whole::Fits(number) if number <= 0o777 => number as u32,
                _ => return Err(argument::invalid("mode", mode, "0o600 to 0o777")),
            }
        }
        let url = argument::text("url", url)?;
        let core = workglow_limit::Store::with_options(url, options).map_err(raised)?;
        let (is_manual, hooks, heard) = (clock.is_some(), Arc::default(), AtomicU64::new(0));
        let shared = Arc::new(Shared { core, is_manual, hooks, heard, is_looked_after: Arc::default() });
        if let Ok(mut stores) = STORES.try_lock() {
            stores.retain(|store| store.strong_count() > 0);
            stores.push(Arc::downgrade(&shared));
        }
        Ok(Store { shared })
    }

    /// Opens the store now, its files made if there are none, instead of at the first use.
    fn open(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.told(py, "", wait(py, || self.shared.core.open()), raised)
    }

    /// The names that are declared in this store, in order.
    fn names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.shared.told(py, "", wait(py, || self.shared.core.names()), raised)
    }

    /// Puts an operator's policy, such as "200/1m" or "100/1m + 5/1s", above what programs declare under this name: at
    /// once, for everybody, until it is lifted. Of a limit of several kinds, each policy stands above the part of its kind.
    /// With a key, only for that one, such as a tenant's plan, whether anybody has used it or not.
    #[pyo3(name = "override", signature = (name, policy, key=None))]
    fn override_limit(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyAny>,
        policy: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (limit, above) = (argument::text("name", name)?, argument::text("policy", policy)?);
        let own = key.map_or(Ok(None), argument::key)?;
        let answer = wait(py, || match own {
            None => self.shared.core.override_text(limit, above),
            Some(own) => self.shared.core.override_key(limit, above, own),
        });
        let given = [("name", "name", Some(name)), ("policy", "policy", Some(policy)), ("key", "key", key)];
        self.shared.told(py, limit, answer, |e| quoting_given(e, given))
    }

    /// Takes the operator's policy away: what was declared last holds again. With a key, that key's own: it lives by the
    /// limit's again. A no-op where there is none.
    #[pyo3(signature = (name, key=None))]
    fn lift(&self, py: Python<'_>, name: &Bound<'_, PyAny>, key: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let limit = argument::text("name", name)?;
        let own = key.map_or(Ok(None), argument::key)?;
        let answer = wait(py, || match own {
            None => self.shared.core.lift(limit),
            Some(own) => self.shared.core.lift_key(limit, own),
        });
        self.shared.told(py, limit, answer, |e| quoting_given(e, [("name", "name", Some(name)), ("key", "key", key)]))
    }

    /// Writes to the database now what it does not have yet of what was admitted. A no-op for "memory:".
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.told(py, "", wait(py, || self.shared.core.flush()), raised)
    }

    /// What is wrong with the store's files; nothing if all is well. With repair it also repairs what it can: what nobody can
    /// read goes out of the database, and a lane that makes no sense is made anew. Reads all of the database, which
    /// holds up starts that wait for a commit.
    #[pyo3(signature = (*, repair=false))]
    fn verify(&self, py: Python<'_>, repair: bool) -> PyResult<Vec<Problem>> {
        let problems = self.shared.told(py, "", wait(py, || self.shared.core.verify(repair)), raised)?;
        let told = |problem: workglow_limit::Problem| Problem { found: problem.found, repaired: problem.is_repaired };
        Ok(problems.into_iter().map(told).collect())
    }

    /// How often the store failed a decision of this process, whatever was answered instead.
    #[getter]
    fn failures(&self) -> u64 {
        self.shared.core.failures()
    }

    /// The store's address, as it was given.
    #[getter]
    fn url(&self) -> &str {
        self.shared.core.url()
    }

    /// A limiter by its name: the one of a policy such as "100/1m + 5 concurrent", declared under the name at its first
    /// use. Without a policy the one that is declared, of whatever kind: this opens the store, and an unknown name is an
    /// UnknownLimit. Or of a FlowControl, whose key is the name.
    #[pyo3(signature = (name, policy=None))]
    fn limiter<'py>(
        this: &Bound<'py, Self>,
        name: &Bound<'py, PyAny>,
        policy: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Limiter>> {
        let (py, shared) = (this.py(), &this.get().shared);
        let core = if let Ok(flow) = name.cast::<FlowControl>() {
            if policy.is_some() {
                return Err(PyTypeError::new_err("expected no policy beside a FlowControl, which is one"));
            }
            let flow = flow.get();
            let made = wait(py, || shared.core.flow_control(&flow.key, flow.rate(), flow.parallelism));
            shared.told(py, &flow.key, made, raised)?
        } else {
            let limit = argument::text("name", name)?;
            let answer = match policy {
                None => wait(py, || shared.core.find(limit)),
                Some(policy) => {
                    let policies = argument::text("policy", policy)?;
                    wait(py, || shared.core.limiter(limit, policies))
                }
            };
            shared.told(py, limit, answer, |e| {
                quoting_given(e, [("name", "name", Some(name)), ("policy", "policy", policy)])
            })?
        };
        Bound::new(py, in_store(this, core))
    }

    /// Declares the limits of a TOML file, all or none, and returns their names.
    fn load(&self, py: Python<'_>, path: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
        let wrong = |_| argument::wrong_type("path", path, "a str or an os.PathLike");
        let file: PathBuf = path.extract().map_err(wrong)?;
        self.shared.told(py, "", wait(py, || self.shared.core.load(&file)), raised)
    }

    /// Calls a function with a LimitEvent whenever that happens to any limiter of this object in this process:
    /// "throttled" (a start was denied, or has to wait), "unknown_limit" or "store_error". Returns a function that ends it.
    ///
    /// What the function raises goes to sys.unraisablehook, and decides nothing.
    fn on<'py>(&self, event: &Bound<'py, PyAny>, function: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyCFunction>> {
        // What failed before is no news.
        self.shared.has_failed_again();
        self.shared.hooks.add(event, function)
    }

    fn __repr__(&self) -> String {
        format!("Store({:?})", self.shared.core.url())
    }
}

/// Something that is wrong with a store, as Store.verify() finds it.
#[pyclass(frozen, eq, get_all, module = "workglow_limit")]
#[derive(PartialEq)]
pub struct Problem {
    /// What it is.
    found: String,
    /// Is it wrong no longer?
    repaired: bool,
}

#[pymethods]
impl Problem {
    fn __repr__(&self) -> String {
        format!("<Problem: {}{}>", self.found, if self.repaired { " (repaired)" } else { "" })
    }
}
