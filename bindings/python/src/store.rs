//! Where limits live.

use crate::argument::{self, Whole, quoting_given};
use crate::clock::ManualClock;
use crate::elsewhere::{self, Whose};
use crate::error::raised;
use crate::flow::FlowControl;
use crate::hooks::{self, told};
use crate::limiter::{Limiter, Node};
use crate::origin::{self, Origin};
use crate::snapshot::Snapshot;
use crate::waiting::{wait, wait_here};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyString, PyTuple};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::{Durability, MetricsFormat, MetricsOptions, OnError, Onlooker, StoreOptions};

/// Tells other processes what this one counted last: at the end of the process, when Python does not destroy what threads,
/// hooks or cycles still hold.
#[pyfunction]
pub fn tell_counts(py: Python<'_>) {
    elsewhere::finish(py);
    wait_here(py, workglow_limit::Store::tell_counts);
}

/// Where limits live: "memory:" (this process), "sqlite:PATH" (this machine), or "redis://HOST", "redis+unix://PATH" and
/// "postgres://HOST/DATABASE" (a server that machines share). A pathlib.Path, or another os.PathLike, is sqlite: with that path. A
/// path that begins with "~/" is in the home directory.
///
/// Making one opens nothing: the first use does, or open(). So it can be made at import, before workers are forked.
/// timeout is how long a call may wait for something rare (opening, a new limit), in seconds; mode is that of the
/// files that are made.
///
/// on_error says what a decision answers when the store fails: "raise" (the error), "deny", or "admit" (nothing counts
/// it); failures counts them. durability says how much of what was admitted a power cut may make the machine forget,
/// which then counts as spent: "budget" (5 % of a limit), or "commit" (nothing: each start is written before its call
/// returns).
///
/// A store that processes share can be pickled, and so can its limiters: the address travels with its password. A copy is the
/// store itself.
#[pyclass(frozen, module = "workglow_limit")]
pub struct Store {
    pub core: workglow_limit::Store,
    options: StoreOptions,
    onlooker: Arc<Onlooker>,
}

impl Store {
    /// Makes a call that may well have to wait.
    fn wait<R: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&workglow_limit::Store) -> R + Send + 'static,
    ) -> PyResult<R> {
        let core = self.core.clone();
        wait(py, Whose::of(self), move || call(&core))
    }

    /// Looks at it, and makes something of what is seen without the GIL.
    fn look<R: Send + 'static>(
        &self,
        py: Python<'_>,
        keys: usize,
        make: impl FnOnce(workglow_limit::Snapshot) -> R + Send + 'static,
    ) -> PyResult<R> {
        let onlooker = self.onlooker.clone();
        told(py, wait(py, Whose::of(self), move || onlooker.look(keys).map(make))?, raised)
    }
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
        let core = workglow_limit::Store::with_options(&argument::address(url)?, options.clone()).map_err(raised)?;
        Ok(Store { onlooker: Arc::new(Onlooker::new(&core)), core, options })
    }

    /// Opens the store now, its files made if there are none, instead of at the first use.
    fn open(&self, py: Python<'_>) -> PyResult<()> {
        told(py, self.wait(py, |core| core.open())?, raised)
    }

    /// The names that are declared in this store, in order.
    fn names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        told(py, self.wait(py, |core| core.names())?, raised)
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
        let (limit, above) = (argument::text("name", name)?.to_owned(), argument::text("policy", policy)?.to_owned());
        let own = key.map_or(Ok(None), argument::key)?.map(str::to_owned);
        let answer = self.wait(py, move |core| match own {
            None => core.override_text(&limit, &above),
            Some(own) => core.override_key(&limit, &above, &own),
        })?;
        let given = [("name", "name", Some(name)), ("policy", "policy", Some(policy)), ("key", "key", key)];
        told(py, answer, |e| quoting_given(e, given))
    }

    /// Takes the operator's policy away: what was declared last holds again. With a key, that key's own: it lives by the
    /// limit's again. A no-op where there is none.
    #[pyo3(signature = (name, key=None))]
    fn lift(&self, py: Python<'_>, name: &Bound<'_, PyAny>, key: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let limit = argument::text("name", name)?.to_owned();
        let own = key.map_or(Ok(None), argument::key)?.map(str::to_owned);
        let answer = self.wait(py, move |core| match own {
            None => core.lift(&limit),
            Some(own) => core.lift_key(&limit, &own),
        })?;
        told(py, answer, |e| quoting_given(e, [("name", "name", Some(name)), ("key", "key", key)]))
    }

    /// Writes to the database now what it does not have yet of what was admitted. A no-op for "memory:".
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        told(py, self.wait(py, |core| core.flush())?, raised)
    }

    /// What is wrong with the store's files; nothing if all is well. With repair it also repairs what it can: what nobody can
    /// read goes out of the database, and a lane that makes no sense is made anew. Reads all of the database, which
    /// holds up starts that wait for a commit.
    #[pyo3(signature = (*, repair=false))]
    fn verify(&self, py: Python<'_>, repair: bool) -> PyResult<Vec<Problem>> {
        let problems = told(py, self.wait(py, move |core| core.verify(repair))?, raised)?;
        let told = |problem: workglow_limit::Problem| Problem { found: problem.found, repaired: problem.is_repaired };
        Ok(problems.into_iter().map(told).collect())
    }

    /// What the store and all of its limits look like now. It takes part in nothing, and no decision costs more because somebody
    /// looks. keys says how many keys of each limit it has at most, the busiest first (0 to 1000); with show_keys they are called
    /// by their texts, which can be secrets, and else by ids.
    ///
    /// In an event loop: await asyncio.to_thread(store.snapshot).
    #[pyo3(signature = (*, keys=10, show_keys=false))]
    fn snapshot(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::keys)] keys: usize,
        #[pyo3(from_py_with = argument::show_keys)] show_keys: bool,
    ) -> PyResult<Snapshot> {
        Snapshot::new(py, self.look(py, keys, |seen| seen)?, show_keys)
    }

    /// The same as text for Prometheus and all who read its formats: "openmetrics" (OpenMetrics 1.0), or "prometheus" for those who
    /// do not know that (the text format 0.0.4). metrics_content_type() has the Content-Type of each. All processes of a "sqlite:"
    /// store tell the same, so let one of each machine be asked, and do not add them up; on a server, each tells its own counts.
    ///
    /// In an event loop: await asyncio.to_thread(store.metrics).
    #[pyo3(
        signature = (*, keys=10, show_keys=false, format=MetricsFormat::OpenMetrics),
        text_signature = "($self, *, keys=10, show_keys=False, format='openmetrics')"
    )]
    fn metrics(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::keys)] keys: usize,
        #[pyo3(from_py_with = argument::show_keys)] show_keys: bool,
        #[pyo3(from_py_with = argument::format)] format: MetricsFormat,
    ) -> PyResult<String> {
        let mut options = MetricsOptions::default();
        (options.format, options.keys, options.show_keys) = (format, keys, show_keys);
        self.look(py, keys, move |seen| seen.to_openmetrics(&options))
    }

    /// How often the store failed a decision of this process, whatever was answered instead.
    #[getter]
    fn failures(&self) -> u64 {
        self.core.failures()
    }

    /// The store's address, as it was given but for a password.
    #[getter]
    fn url(&self) -> &str {
        self.core.url()
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
        let (py, store) = (this.py(), this.get());
        let shown = policy.filter(|policy| policy.is_instance_of::<PyString>()).map(ToString::to_string);
        let core = if let Ok(flow) = name.cast::<FlowControl>() {
            if policy.is_some() {
                return Err(PyTypeError::new_err("expected no policy beside a FlowControl, which is one"));
            }
            let flow = flow.get();
            let (key, rate, parallelism) = (flow.key.clone(), flow.rate(), flow.parallelism);
            let made = store.wait(py, move |core| core.flow_control(&key, rate, parallelism))?;
            told(py, made, raised)?
        } else {
            let limit = argument::text("name", name)?.to_owned();
            let answer = match policy {
                None => store.wait(py, move |core| core.find(&limit))?,
                Some(policy) => {
                    let policies = argument::text("policy", policy)?.to_owned();
                    store.wait(py, move |core| core.limiter(&limit, &policies))?
                }
            };
            told(py, answer, |e| quoting_given(e, [("name", "name", Some(name)), ("policy", "policy", policy)]))?
        };
        let origin = Origin::call(this.getattr("limiter")?, (name, policy))?.shown(shown, Some(&store.core));
        Bound::new(py, Limiter::of(Node::new(core, Some(store)), origin))
    }

    /// Declares the limits of a TOML file, all or none, and returns their names.
    fn load(&self, py: Python<'_>, path: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
        let wrong = |_| argument::wrong_type("path", path, "a str or an os.PathLike");
        let file: PathBuf = path.extract().map_err(wrong)?;
        told(py, self.wait(py, move |core| core.load(&file))?, raised)
    }

    /// Calls a function with a LimitEvent whenever that happens to any limiter of this object in this process:
    /// "throttled" (a start was denied, or has to wait), "unknown_limit" or "store_error". Returns a function that ends it.
    ///
    /// What the function raises goes to sys.unraisablehook, and decides nothing.
    fn on<'py>(&self, event: &Bound<'py, PyAny>, function: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyCFunction>> {
        let (here, there) = (&self.core, self.core.clone());
        hooks::add(event, function, |event, hook| here.on(event, hook), move |number| there.off(number))
    }

    // A pickle has the address, with a password if there is one, and with absolute paths. A copy is the store itself.

    fn __reduce__<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let (py, Store { core, options, .. }) = (this.py(), this.get());
        let named = PyDict::new(py);
        named.set_item("timeout", options.timeout)?;
        named.set_item("mode", options.mode)?;
        named.set_item("on_error", argument::word(argument::ON_ERROR, options.on_error))?;
        named.set_item("durability", argument::word(argument::DURABILITY, options.durability))?;
        origin::reduced_store(py, this.get_type(), core.address().map_err(raised)?, named)
    }

    fn __copy__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __deepcopy__(this: Py<Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
        this
    }

    fn __repr__(&self) -> String {
        format!("Store({:?})", self.core.url())
    }
}

/// Says what of a server's settings endangers limits there: the worst first, nothing if all is well. Always nothing for "memory:" and
/// "sqlite:PATH", whose files Store.verify() looks at. On Redis it writes a key of its own for a moment, to see whether it may.
#[pyfunction]
pub fn doctor(py: Python<'_>, url: &Bound<'_, PyAny>) -> PyResult<Vec<Finding>> {
    let address = argument::text("url", url)?.to_owned();
    let findings = told(py, wait(py, Whose::of(&*address), move || workglow_limit::doctor(&address))?, raised)?;
    let told = |finding: workglow_limit::Finding| Finding {
        severity: finding.severity.name(),
        what: finding.what,
        setting: finding.setting,
        value: finding.value,
        instead: finding.instead,
    };
    Ok(findings.into_iter().map(told).collect())
}

/// The Content-Type of what Store.metrics() tells in a format.
#[pyfunction]
#[pyo3(signature = (format=MetricsFormat::OpenMetrics), text_signature = "(format='openmetrics')")]
pub fn metrics_content_type(#[pyo3(from_py_with = argument::format)] format: MetricsFormat) -> &'static str {
    format.content_type()
}

/// The SQL that makes what limits on Postgres need there, for migrations of your own: the schema workglow_limit. Where a program's role
/// may create schemas this is not needed, because the first call makes it. To run it again changes nothing.
#[pyfunction]
pub fn postgres_schema() -> &'static str {
    workglow_limit::postgres_schema()
}

/// Something of a server that those who have limits there should know, as doctor() finds it.
#[pyclass(frozen, eq, get_all, module = "workglow_limit")]
#[derive(PartialEq)]
pub struct Finding {
    /// How much it matters: "danger" (limits may be exceeded, or cannot be used), "warning" or "note".
    severity: &'static str,
    /// What it endangers.
    what: String,
    /// The setting, by the server's own name.
    setting: String,
    /// What it is; empty if it could not be looked at.
    value: String,
    /// What to set instead, or to do.
    instead: String,
}

#[pymethods]
impl Finding {
    fn __repr__(&self) -> String {
        format!("<Finding: {}: {} = {}: {}>", self.severity, self.setting, self.value, self.what)
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
