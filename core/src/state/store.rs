//! A store as programs use it: its address and options. For the declarations in it by name, see the `store` module.

use crate::error::{Error, Result};
use crate::hooks::{Happening, Hook, HookId};
use crate::server::{Engine, Finding};
use crate::state::files::arena::{self, MAX_BYTES, MIN_BYTES};
use crate::state::ledger::verify_database::Problem;
use crate::state::session::Session;
use crate::state::session::options::StoreOptions;
use crate::{address, fork};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The place of limits: `memory:` (this process) or `sqlite:PATH` (this machine; `~/` is the home directory). Clones
/// are the same store.
///
/// Creating a store opens nothing; the first decision opens it, or [`Store::open`]. So a store can be created at
/// import, before a program forks its workers.
#[derive(Debug, Clone)]
pub struct Store(Arc<Session>);

/// Runs a function with the list of all stores of this process.
fn with_stores<R>(f: impl FnOnce(&mut Vec<Weak<Session>>) -> R) -> R {
    static ALL: Mutex<Vec<Weak<Session>>> = Mutex::new(Vec::new());
    let _no_fork = fork::lists();
    f(&mut ALL.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Store {
    /// Creates a store with the default options.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`] unless `url` is `memory:` or `sqlite:PATH`.
    pub fn new(url: &str) -> Result<Store> {
        Self::with_options(url, StoreOptions::default())
    }

    /// Creates a store.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`] as for [`Store::new`]; [`Error::InvalidArgument`] for a mode beyond `0o777`, or one
    /// without read and write access for the owner, and for a `max_size` outside 1 MiB to 4 GiB.
    pub fn with_options(url: &str, options: StoreOptions) -> Result<Store> {
        if options.mode > 0o777 || options.mode & 0o600 != 0o600 {
            let given = format!("0o{:o}", options.mode);
            return Err(Error::invalid("mode", given, "0o600 to 0o777, with reading and writing for the owner"));
        }
        if let Some(size) = options.max_size.filter(|size| !(MIN_BYTES..=MAX_BYTES).contains(size)) {
            let expected = format!("{MIN_BYTES} to {MAX_BYTES} bytes (1 MiB to {})", arena::size(MAX_BYTES));
            return Err(Error::invalid("max_size", size, expected));
        }
        let session = Arc::new(Session::new(url, address::parse(url)?, options)?);
        let _ = session.me.set(Arc::downgrade(&session));
        with_stores(|stores| {
            stores.retain(|store| store.strong_count() > 0);
            stores.push(Arc::downgrade(&session));
        });
        Ok(Store(session))
    }

    /// Opens the store now instead of at the first decision, and creates its files if there are none.
    ///
    /// # Errors
    /// [`Error`] describes what is wrong with the place.
    pub fn open(&self) -> Result<()> {
        self.0.report("", self.0.with_names(&[], |_| Ok(())))
    }

    /// The store's address as given, without a password.
    pub fn url(&self) -> &str {
        self.0.url()
    }

    /// The address with which another process of this machine shares the store, independent of its current directory:
    /// complete, with a password if there is one, and with absolute paths.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if no other process can share it: for `memory:`, and with a manual clock.
    pub fn address(&self) -> Result<String> {
        self.0.address()
    }

    /// Writes admitted starts to the database that are not there yet. A no-op for `memory:`.
    ///
    /// # Errors
    /// As for [`Store::open`].
    pub fn flush(&self) -> Result<()> {
        self.0.report("", self.0.flush())
    }

    /// Ends the use of this store, its clones and its limiters in this process. Every later call that would start, wait, read or
    /// change something returns [`Error::StoreClosed`], whatever [`OnError`](crate::OnError) says. Waits end with that error, in
    /// threads, tasks and event loops. Permits can still be completed, cancelled, settled and renewed. Other stores are not
    /// affected, even at the same address.
    ///
    /// Writes the starts that the database lacks, and closes the connections to a server. The library's idle threads end within
    /// two seconds. Mapped memory, and the units that permits hold, remain until the last limiter and permit are dropped. It waits
    /// for no caller of the store, and may be called in a hook. Closing a store twice is a no-op; so is closing one that was never
    /// open, except that it cannot be opened any more. In a forked child it closes the child's store only.
    ///
    /// ```
    /// # use workglow_limit::{Error, Limiter, Store};
    /// let store = Store::new("memory:")?;
    /// let limiter = store.limiter("openai", "100/1m")?;
    /// let permit = limiter.try_acquire("", 1)?.unwrap();
    /// store.close()?;
    /// assert!(matches!(limiter.try_acquire("", 1), Err(Error::StoreClosed { .. })));
    /// permit.complete()?;
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// A store error if the starts cannot be written within the store's timeout. The store is closed nevertheless.
    pub fn close(&self) -> Result<()> {
        self.0.report("", self.0.close())
    }

    /// Returns whether it was closed in this process.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Checks the store's files and returns what is wrong with them. With `repair`, it also repairs what it can.
    /// Unreadable rows are removed from the database. A damaged lane is rebuilt from the ledger, and its limits count
    /// as full until all processes have noticed. Always empty for `memory:`. It reads the whole database, which delays
    /// starts that wait for a commit.
    ///
    /// # Errors
    /// As for [`Store::open`], except [`Error::Damaged`].
    pub fn verify(&self, repair: bool) -> Result<Vec<Problem>> {
        self.0.check_open()?;
        self.0.report("", self.0.verify(repair))
    }

    /// Adds the recent counts of this process, in all of its stores, to the `stats` that other processes see. This
    /// happens automatically once a second and at a store's end; call it in programs that end in other ways. Waits for
    /// others for at most 10 ms, and fails silently.
    pub fn tell_counts() {
        let stores: Vec<_> = with_stores(|stores| stores.iter().filter_map(Weak::upgrade).collect());
        stores.iter().for_each(|store| store.flush_last_counts());
    }

    /// Returns whether a periodic duty is due that calls left because they [must not wait](crate::embed::MayWait).
    #[inline(always)]
    pub fn is_due(&self) -> bool {
        self.0.is_due()
    }

    /// Runs the once-a-second duties: writes the ledger, reports counts. Decisions that may wait do this themselves.
    pub fn look_after(&self) {
        self.0.look_after();
    }

    /// Calls a function at each [`Event`](crate::hooks::Event) of this kind of the store's limiters in this process. It is
    /// called in the asking thread, soon after the answer is known, and may use limiters.
    pub fn on(&self, happening: Happening, hook: Hook) -> HookId {
        self.0.hooks.add(happening, hook)
    }

    /// Removes a hook. A no-op if it is not there.
    pub fn off(&self, hook: HookId) {
        self.0.hooks.remove(hook);
    }

    /// The number of decisions that the store has failed since this process created it, whatever was answered instead.
    pub fn failures(&self) -> u64 {
        self.0.failures()
    }

    /// Counts a decision that a binding could not ask for, because the store failed when its limiter was opened.
    #[doc(hidden)]
    pub fn count_failure(&self) {
        self.0.count_failure();
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.0
    }
}

/// Checks the settings of a store's server and returns those that endanger limits, worst first. Empty if all is well.
/// Always empty for `memory:` and `sqlite:`, whose files [`Store::verify`] checks.
///
/// On Redis it writes a key of its own for a moment, to check that it may. It takes half a second, in which it compares the
/// server's clock with this machine's.
///
/// # Errors
/// [`Error::InvalidUrl`] as for [`Store::new`]; a store error if the server does not answer.
pub fn doctor(url: &str) -> Result<Vec<Finding>> {
    let (store, options) = (Store::new(url)?, StoreOptions::default());
    let Some(server) = store.session().server() else { return Ok(Vec::new()) };
    let mut findings = Engine::examine(&**server, options.timeout)?;
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Ok(findings)
}
