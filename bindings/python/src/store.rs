//! Stores.

use crate::argument::{self, Whole, quoting_given};
use crate::async_call;
use crate::clock::ManualClock;
use crate::error::raised;
use crate::flow::FlowControl;
use crate::hooks::{self, deliver_with};
use crate::limiter::{Limiter, SharedLimiter};
use crate::line_snapshot::LineSnapshot;
use crate::origin::{self, Origin};
use crate::snapshot::Snapshot;
use crate::threads::{self, OwnerId};
use crate::waiting::{wait, wait_here};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyString, PyTuple};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::observe::{MetricsFormat, MetricsOptions, Observer, Onlooker};
use workglow_limit::{Durability, OnError, StoreOptions};

/// Publishes the latest counts of this process to others. It runs at exit, because Python does not destroy objects that threads,
/// hooks or cycles still hold then.
#[pyfunction]
pub fn tell_counts(py: Python<'_>) {
    threads::finish(py);
    wait_here(py, workglow_limit::Store::tell_counts);
}

/// The storage of limits: "memory:" (this process), "sqlite:PATH" (this machine), or "redis://HOST", "redis+unix://PATH" and
/// "postgres://HOST/DATABASE" (a server that machines share). A pathlib.Path or other os.PathLike means sqlite: with that
/// path. A path that begins with "~/" is in the home directory.
///
/// The constructor opens nothing; the first use or open() does. So a store can be created at import, before workers are forked.
/// timeout is the longest time that a call waits for a rare operation (opening, a new limit), in seconds or as a timedelta. mode
/// is the file mode of new files.
///
/// on_error is the answer of a decision when the store fails: "raise" (the error), "deny", or "admit" (without counting the
/// start). failures counts such decisions. durability limits what a power cut may erase from the record of starts; erased units
/// count as spent. It is "budget" (up to 5 % of a limit) or "commit" (nothing: each start is written before its call returns).
/// max_size is the size in bytes up to which this process lets the store's memory, or its lane, grow: 1 MiB to 4 GiB. None means
/// a quarter of the memory of the machine, or of the container if that has less.
///
/// A store that processes share can be pickled, and so can its limiters. The pickle contains the address with its password. A
/// copy is the store itself.
#[pyclass(frozen, module = "workglow_limit")]
pub struct Store {
    pub core: workglow_limit::Store,
    options: StoreOptions,
    onlooker: Arc<Onlooker>,
}

impl Store {
    /// Makes a call that is likely to wait.
    fn wait<R: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&workglow_limit::Store) -> R + Send + 'static,
    ) -> PyResult<R> {
        let core = self.core.clone();
        wait(py, OwnerId::of(self), move || call(&core))
    }

    /// Takes a snapshot and converts it, without the GIL.
    fn look<R: Send + 'static>(
        &self,
        py: Python<'_>,
        keys: usize,
        make: impl FnOnce(workglow_limit::observe::Snapshot) -> R + Send + 'static,
    ) -> PyResult<R> {
        let onlooker = self.onlooker.clone();
        deliver_with(py, wait(py, OwnerId::of(self), move || onlooker.look(keys).map(make))?, raised)
    }
}

/// Checks the arguments of an override, and returns the call.
fn overriding(
    name: &Bound<'_, PyAny>,
    policy: &Bound<'_, PyAny>,
    key: Option<&Bound<'_, PyAny>>,
) -> PyResult<impl Fn(&workglow_limit::Store) -> workglow_limit::Result<()> + Send + Sync + 'static> {
    let (name, policy) = (argument::text("name", name)?.to_owned(), argument::text("policy", policy)?.to_owned());
    let key = key.map_or(Ok(None), argument::key)?.map(str::to_owned);
    Ok(move |core: &workglow_limit::Store| core.override_limit(&name, &policy, key.as_deref()))
}

/// The same for a lift.
fn lifting(
    name: &Bound<'_, PyAny>,
    key: Option<&Bound<'_, PyAny>>,
) -> PyResult<impl Fn(&workglow_limit::Store) -> workglow_limit::Result<()> + Send + Sync + 'static> {
    let name = argument::text("name", name)?.to_owned();
    let key = key.map_or(Ok(None), argument::key)?.map(str::to_owned);
    Ok(move |core: &workglow_limit::Store| core.lift(&name, key.as_deref()))
}

/// The same for a tenant's share.
fn sharing(
    name: &Bound<'_, PyAny>,
    key: &Bound<'_, PyAny>,
    share: u32,
) -> PyResult<impl Fn(&workglow_limit::Store) -> workglow_limit::Result<()> + Send + Sync + 'static> {
    let (name, key) = (argument::text("name", name)?.to_owned(), argument::text("key", key)?.to_owned());
    Ok(move |core: &workglow_limit::Store| core.share(&name, &key, share))
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(
        signature = (
            url, *, timeout=Duration::from_secs(5), mode=None, on_error=OnError::Raise, durability=Durability::Budget,
            clock=None, max_size=None
        ),
        text_signature = "(url, *, timeout=5.0, mode=0o600, on_error='raise', durability='budget', clock=None, max_size=None)"
    )]
    fn new(
        url: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = argument::timeout)] timeout: Duration,
        mode: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = argument::on_error)] on_error: OnError,
        #[pyo3(from_py_with = argument::durability)] durability: Durability,
        #[pyo3(from_py_with = argument::clock)] clock: Option<&Bound<'_, ManualClock>>,
        max_size: Option<&Bound<'_, PyAny>>,
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
        if let Some(size) = max_size {
            options.max_size = match argument::whole("max_size", size)? {
                Whole::Fits(bytes) => Some(bytes),
                _ => {
                    return Err(argument::invalid("max_size", size, "1048576 to 4294967296 bytes (1 MiB to 4096 MiB)"));
                }
            }
        }
        let core = workglow_limit::Store::with_options(&argument::address(url)?, options.clone()).map_err(raised)?;
        Ok(Store { onlooker: Arc::new(Onlooker::new(&core)), core, options })
    }

    /// Opens the store now instead of at the first use. Creates its files if there are none.
    fn open(&self, py: Python<'_>) -> PyResult<()> {
        deliver_with(py, self.wait(py, |core| core.open())?, raised)
    }

    /// As open, for event loops: the loop runs meanwhile. A program's synchronous calls wait only briefly in a loop, so await this
    /// before the first of them.
    fn open_async<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let core = self.core.clone();
        async_call::rare(py, OwnerId::of(self), move || core.open(), || ())
    }

    /// Returns the names that are declared in this store, in order, including those of limiters made with this object and not
    /// used yet.
    fn names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        deliver_with(py, self.wait(py, |core| core.names())?, raised)
    }

    /// Overrides the policy that programs declare under this name with an operator's policy, such as "200/1m" or
    /// "100/1m + 5/1s". It holds at once, in all processes, until lift. In a limit of several kinds each policy overrides the part
    /// of its kind. With a key it holds for that key only, such as a tenant's plan; the key need not have been used yet.
    #[pyo3(name = "override", signature = (name, policy, key=None))]
    fn override_limit(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyAny>,
        policy: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let make = overriding(name, policy, key)?;
        let answer = self.wait(py, move |core| make(core))?;
        let given = [("name", "name", Some(name)), ("policy", "policy", Some(policy)), ("key", "key", key)];
        deliver_with(py, answer, |e| quoting_given(e, given))
    }

    /// As override, for event loops.
    #[pyo3(signature = (name, policy, key=None))]
    fn override_async<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'_, PyAny>,
        policy: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (core, make) = (self.core.clone(), overriding(name, policy, key)?);
        async_call::rare(py, OwnerId::of(self), move || make(&core), || ())
    }

    /// Removes the operator's policy, so that the policy declared last holds again. With a key it removes that key's own policy,
    /// so that the limit's holds for the key again. A no-op if there is none.
    #[pyo3(signature = (name, key=None))]
    fn lift(&self, py: Python<'_>, name: &Bound<'_, PyAny>, key: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let make = lifting(name, key)?;
        let answer = self.wait(py, move |core| make(core))?;
        deliver_with(py, answer, |e| quoting_given(e, [("name", "name", Some(name)), ("key", "key", key)]))
    }

    /// As lift, for event loops.
    #[pyo3(signature = (name, key=None))]
    fn lift_async<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (core, make) = (self.core.clone(), lifting(name, key)?);
        async_call::rare(py, OwnerId::of(self), move || make(&core), || ())
    }

    /// Sets the share of a tenant of a shared limit, such as "500/1m shared", in all processes: 1 to 1000. While tenants wait, one
    /// with share 3 gets three starts where one with 1 gets one. It survives restarts, and 1 is the default. The share of a call
    /// has precedence.
    fn share(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyAny>,
        key: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = argument::share)] share: u32,
    ) -> PyResult<()> {
        let make = sharing(name, key, share)?;
        let answer = self.wait(py, move |core| make(core))?;
        deliver_with(py, answer, |e| quoting_given(e, [("name", "name", Some(name)), ("key", "key", Some(key))]))
    }

    /// As share, for event loops.
    fn share_async<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'_, PyAny>,
        key: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = argument::share)] share: u32,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (core, make) = (self.core.clone(), sharing(name, key, share)?);
        async_call::rare(py, OwnerId::of(self), move || make(&core), || ())
    }

    /// Removes the declaration of this name, including operators' policies, so that another kind of limiter can be declared.
    /// Limiters in use then raise KindMismatch. If the same kind is declared again, it keeps its state.
    fn forget(&self, py: Python<'_>, name: &Bound<'_, PyAny>) -> PyResult<()> {
        let limit = argument::text("name", name)?.to_owned();
        let answer = self.wait(py, move |core| core.forget(&limit))?;
        deliver_with(py, answer, |e| quoting_given(e, [("name", "name", Some(name))]))
    }

    /// Writes the admitted starts that are not in the database yet. A no-op for "memory:".
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        deliver_with(py, self.wait(py, |core| core.flush())?, raised)
    }

    /// Ends the use of this object and its limiters in this process. Every call that would start, wait, read or change something
    /// then raises StoreClosed, whatever on_error says, and so do the waits of threads, tasks and greenlets. Permits can still be
    /// completed, cancelled, settled and renewed. Other Store objects are not affected, even at the same address.
    ///
    /// It writes the admitted starts that are not in the database yet, and closes the connections to a server. If the starts cannot
    /// be written within the timeout, it raises StoreError, and the store is closed nevertheless. Closing a store twice is a no-op.
    /// "with Store(...) as store" closes it at the end.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        deliver_with(py, self.wait(py, |core| core.close())?, raised)
    }

    /// As close, for event loops: the loop runs meanwhile.
    fn close_async<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let core = self.core.clone();
        async_call::rare(py, OwnerId::of(self), move || core.close(), || ())
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    /// Checks the store's files and returns their problems; an empty list if there are none. With repair it also repairs what it
    /// can: it removes unreadable rows from the database and recreates an inconsistent lane. It reads the whole database, which
    /// delays starts that wait for a commit.
    #[pyo3(signature = (*, repair=false))]
    fn verify(&self, py: Python<'_>, #[pyo3(from_py_with = argument::repair)] repair: bool) -> PyResult<Vec<Problem>> {
        let problems = deliver_with(py, self.wait(py, move |core| core.verify(repair))?, raised)?;
        let convert =
            |problem: workglow_limit::admin::Problem| Problem { found: problem.found, repaired: problem.is_repaired };
        Ok(problems.into_iter().map(convert).collect())
    }

    /// Returns the current state of the store and of all its limits. A snapshot takes part in no decision and makes none slower.
    /// keys is the largest number of keys per limit, the busiest first (0 to 1000). With show_keys keys appear as their texts,
    /// which can be secrets; otherwise as ids.
    ///
    /// In an event loop use await asyncio.to_thread(store.snapshot).
    #[pyo3(signature = (*, keys=10, show_keys=false))]
    fn snapshot(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::keys)] keys: usize,
        #[pyo3(from_py_with = argument::show_keys)] show_keys: bool,
    ) -> PyResult<Snapshot> {
        Snapshot::new(py, self.look(py, keys, |seen| seen)?, show_keys)
    }

    /// Returns who has the units of a limit and key, and who waits for them: whose turn is next, and since when. It covers all
    /// processes of a "sqlite:" store. For a limit that tenants share, no key means all of them. A part of several limits has a name
    /// of its own, such as "openai/tokens". It takes part in no decision and makes none slower. A limit on a server raises
    /// Unsupported. When one more start would begin says Limiter.forecast().
    ///
    /// In an event loop use await asyncio.to_thread(store.line, name).
    #[pyo3(signature = (name, key=None))]
    fn line(&self, py: Python<'_>, name: &Bound<'_, PyAny>, key: Option<&Bound<'_, PyAny>>) -> PyResult<LineSnapshot> {
        let limit = argument::text("name", name)?.to_owned();
        let of = key.map_or(Ok(None), argument::key)?.unwrap_or_default().to_owned();
        let seen = self.wait(py, move |core| Observer::new(core, 0).line(&limit, &of))?;
        let seen = deliver_with(py, seen, |e| quoting_given(e, [("name", "name", Some(name)), ("key", "key", key)]))?;
        LineSnapshot::new(py, seen)
    }

    /// Returns the snapshot as text for Prometheus and compatible readers: "openmetrics" (OpenMetrics 1.0), or "prometheus" (the
    /// text format 0.0.4) for older readers. metrics_content_type() returns the Content-Type of each. All processes of a "sqlite:"
    /// store report the same values, so scrape one process per machine and do not add them up. On a server, each process reports
    /// its own counts.
    ///
    /// In an event loop use await asyncio.to_thread(store.metrics).
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

    /// The number of decisions of this process that failed because of the store, whatever on_error answered.
    #[getter]
    fn failures(&self) -> u64 {
        self.core.failures()
    }

    /// The store's address as given, without a password.
    #[getter]
    fn url(&self) -> &str {
        self.core.url()
    }

    /// Returns a limiter by name. With a policy, such as "100/1m + 5 concurrent", its first use declares the policy under the
    /// name. Without a policy it returns a limiter for the declared limit, of any kind; this opens the store, and an unknown name
    /// raises UnknownLimit. A FlowControl, whose key is the name, replaces both arguments.
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
                return Err(PyTypeError::new_err("policy must not be given with a FlowControl, which is one"));
            }
            let flow = flow.get();
            let (key, rate, parallelism) = (flow.key.clone(), flow.rate(), flow.parallelism);
            let made = store.wait(py, move |core| core.flow_control(&key, rate, parallelism))?;
            deliver_with(py, made, raised)?
        } else {
            let limit = argument::text("name", name)?.to_owned();
            let answer = match policy {
                None => store.wait(py, move |core| core.find(&limit))?,
                Some(policy) => {
                    let policies = argument::text("policy", policy)?.to_owned();
                    store.wait(py, move |core| core.limiter(&limit, &policies))?
                }
            };
            deliver_with(py, answer, |e| {
                quoting_given(e, [("name", "name", Some(name)), ("policy", "policy", policy)])
            })?
        };
        let origin = Origin::call(this.getattr("limiter")?, (name, policy))?.shown(shown, Some(&store.core));
        Bound::new(py, Limiter::of(SharedLimiter::new(core, Some(store)), origin))
    }

    /// Declares all limits of a TOML file, or none if one is invalid. Returns their names.
    fn load(&self, py: Python<'_>, path: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
        let wrong = |_| argument::wrong_type("path", path, "a str or an os.PathLike");
        let file: PathBuf = path.extract().map_err(wrong)?;
        deliver_with(py, self.wait(py, move |core| core.load(&file))?, raised)
    }

    /// Calls a function with a LimitEvent at each event of any limiter of this object in this process: "throttled" (a start was
    /// denied or has to wait), "unknown_limit" or "store_error". Returns a function that removes it.
    ///
    /// An exception of the function goes to sys.unraisablehook and has no effect on the decision.
    fn on<'py>(&self, event: &Bound<'py, PyAny>, function: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyCFunction>> {
        let (here, there) = (&self.core, self.core.clone());
        hooks::add(event, function, |event, hook| here.on(event, hook), move |number| there.off(number))
    }

    // A pickle holds the address with absolute paths and with its password, if there is one. A copy is the store itself.

    fn __reduce__<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let (py, Store { core, options, .. }) = (this.py(), this.get());
        let named = PyDict::new(py);
        named.set_item("timeout", options.timeout)?;
        named.set_item("mode", options.mode)?;
        named.set_item("on_error", argument::word(argument::ON_ERROR, options.on_error))?;
        named.set_item("durability", argument::word(argument::DURABILITY, options.durability))?;
        named.set_item("max_size", options.max_size)?;
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

/// Returns the settings of a server that endanger limits there, the worst first; an empty list if there are none. Always empty for
/// "memory:" and "sqlite:PATH", whose files Store.verify() checks. On Redis it briefly writes a key of its own to test its
/// permissions.
#[pyfunction]
pub fn doctor(py: Python<'_>, url: &Bound<'_, PyAny>) -> PyResult<Vec<Finding>> {
    let address = argument::text("url", url)?.to_owned();
    let findings =
        deliver_with(py, wait(py, OwnerId::of(&*address), move || workglow_limit::admin::doctor(&address))?, raised)?;
    let convert = |finding: workglow_limit::admin::Finding| Finding {
        severity: finding.severity.name(),
        what: finding.what,
        setting: finding.setting,
        value: finding.value,
        instead: finding.instead,
    };
    Ok(findings.into_iter().map(convert).collect())
}

/// Returns the Content-Type of a format of Store.metrics().
#[pyfunction]
#[pyo3(signature = (format=MetricsFormat::OpenMetrics), text_signature = "(format='openmetrics')")]
pub fn metrics_content_type(#[pyo3(from_py_with = argument::format)] format: MetricsFormat) -> &'static str {
    format.content_type()
}

/// Returns the SQL that creates the schema workglow_limit for limits on Postgres, for your own migrations. It is not needed if the
/// program's role may create schemas, because the first call creates it then. Running it again changes nothing.
#[pyfunction]
pub fn postgres_schema() -> &'static str {
    workglow_limit::admin::postgres_schema()
}

/// A server setting that affects limits there, from doctor().
#[pyclass(frozen, eq, get_all, module = "workglow_limit")]
#[derive(PartialEq)]
pub struct Finding {
    /// The severity: "danger" (limits may be exceeded, or cannot be used), "warning" or "note".
    severity: &'static str,
    /// The consequence.
    what: String,
    /// The server's name of the setting.
    setting: String,
    /// The value of the setting; empty if it could not be read.
    value: String,
    /// The recommended value or action.
    instead: String,
}

#[pymethods]
impl Finding {
    fn __repr__(&self) -> String {
        format!("<Finding: {}: {} = {}: {}>", self.severity, self.setting, self.value, self.what)
    }
}

/// A problem of a store's files, from Store.verify().
#[pyclass(frozen, eq, get_all, module = "workglow_limit")]
#[derive(PartialEq)]
pub struct Problem {
    /// The description of the problem.
    found: String,
    /// Whether it was repaired.
    repaired: bool,
}

#[pymethods]
impl Problem {
    fn __repr__(&self) -> String {
        format!("<Problem: {}{}>", self.found, if self.repaired { " (repaired)" } else { "" })
    }
}
