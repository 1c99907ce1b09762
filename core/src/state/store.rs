//! A store as programs hold it: its address and how it behaves. (What is declared in it by name: the `store` folder.)

use super::session::Session;
use super::url;
use super::verify::Problem;
use crate::error::{Error, Result};
use crate::fork;
use crate::hooks::{Happening, Hook, HookId};
use crate::time::ManualClock;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// How a store behaves.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoreOptions {
    /// How long a call may wait for something rare (opening, a new limit, growing) before it fails. Default 5 s.
    pub timeout: Duration,
    /// May the store's files be made, if there are none? Default `true`; where not, a store that is not there is an error. (A server's
    /// tables are made by the first process that declares a limit.)
    pub create: bool,
    /// The mode of the files that are made, whatever the umask. Default `0o600`; `0o660` for services of several users.
    pub mode: u32,
    /// A clock for tests, in place of the system's.
    pub clock: Option<ManualClock>,
    /// What a decision answers when the store fails. Default [`OnError::Raise`].
    pub on_error: OnError,
    /// How much of what was admitted a power cut may make this machine forget. Default [`Durability::Budget`].
    pub durability: Durability,
    /// May a server let this process start units by itself? Where not, each start is a request. Default `true`; `?grants=never` in the
    /// address is the same as `false`.
    pub grants: bool,
}

/// What a decision answers when the store fails: gone, full, read-only, or busy for longer than its timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnError {
    /// The error.
    #[default]
    Raise,
    /// A denial.
    Deny,
    /// An admission that nothing counts: what is called is worth more than the limit.
    Admit,
}

/// How much of what was admitted a power cut may make this machine forget. What is forgotten counts as spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Durability {
    /// At most 5 % of a limit, and at least one unit, are not in the database yet at any time.
    #[default]
    Budget,
    /// Every start is in the database before the call that admits it returns.
    Commit,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            timeout: Duration::from_secs(5),
            create: true,
            mode: 0o600,
            clock: None,
            on_error: OnError::Raise,
            durability: Durability::Budget,
            grants: true,
        }
    }
}

/// Where limits live: `memory:` (this process) or `sqlite:PATH` (this machine; `~/` is the home directory). Clones are the same store.
///
/// Making one opens nothing: the first decision does, or [`Store::open`]. So a store can be made at import, before a
/// program forks its workers.
#[derive(Debug, Clone)]
pub struct Store(Arc<Session>);

/// Does something with the list of all stores of this process.
fn with_stores<R>(f: impl FnOnce(&mut Vec<Weak<Session>>) -> R) -> R {
    static ALL: Mutex<Vec<Weak<Session>>> = Mutex::new(Vec::new());
    let _no_fork = fork::lists();
    f(&mut ALL.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Store {
    /// A store with the default options.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`] unless `url` is `memory:` or `sqlite:PATH`.
    pub fn new(url: &str) -> Result<Store> {
        Self::with_options(url, StoreOptions::default())
    }

    /// A store.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`] as for [`Store::new`]; [`Error::InvalidArgument`] for a mode beyond `0o777` or one that
    /// keeps the owner out.
    pub fn with_options(url: &str, options: StoreOptions) -> Result<Store> {
        if options.mode > 0o777 || options.mode & 0o600 != 0o600 {
            let given = format!("0o{:o}", options.mode);
            return Err(Error::invalid("mode", given, "0o600 to 0o777, with reading and writing for the owner"));
        }
        let session = Arc::new(Session::new(url, url::parse(url)?, options)?);
        with_stores(|stores| {
            stores.retain(|store| store.strong_count() > 0);
            stores.push(Arc::downgrade(&session));
        });
        Ok(Store(session))
    }

    /// Opens the store now, its files made if there are none, instead of at the first decision.
    ///
    /// # Errors
    /// Whatever is wrong with the place: see [`Error`].
    pub fn open(&self) -> Result<()> {
        self.0.told("", self.0.with_names(&[], |_| Ok(())))
    }

    /// The store's address, as it was given but for a password.
    pub fn url(&self) -> &str {
        self.0.url()
    }

    /// The address with which another process of this machine shares the store, whatever its current directory is: complete,
    /// with a password if there is one, and with absolute paths.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where no other process can: for `memory:`, and with a manual clock.
    pub fn address(&self) -> Result<String> {
        self.0.address()
    }

    /// Writes to the database now what it does not have yet of what was admitted. A no-op for `memory:`.
    ///
    /// # Errors
    /// As for [`Store::open`].
    pub fn flush(&self) -> Result<()> {
        self.0.told("", self.0.flush())
    }

    /// Says what is wrong with the store's files, nothing if all is well; and repairs what it can if it is told to. What nobody
    /// can read goes out of the database; a lane that makes no sense is made anew from the ledger, and its limits count as full
    /// until all processes have noticed. Always nothing for `memory:`. It reads all of the database, which holds up
    /// starts that wait for a commit meanwhile.
    ///
    /// # Errors
    /// As for [`Store::open`], but for [`Error::Damaged`].
    pub fn verify(&self, repair: bool) -> Result<Vec<Problem>> {
        self.0.told("", self.0.verify(repair))
    }

    /// Adds what this process counted lately, in all of its stores, to what `stats` of other processes shows, as happens once a
    /// second and at a store's end: for programs that end without that. Waits for others for 10 ms at most, and fails silently.
    pub fn tell_counts() {
        let stores: Vec<_> = with_stores(|stores| stores.iter().filter_map(Weak::upgrade).collect());
        stores.iter().for_each(|store| store.tell_last_counts());
    }

    /// Is there something to look after, that calls left because they [must not wait](crate::MayWait)?
    #[inline(always)]
    pub fn is_due(&self) -> bool {
        self.0.is_due()
    }

    /// Does what is due about once a second: writes the ledger, reports counts. Decisions that may wait do it themselves.
    pub fn look_after(&self) {
        self.0.look_after();
    }

    /// Calls a function at each such [`Event`](crate::Event) of this store's limiters in this process. It is called in the thread that asked, soon
    /// after the answer is known, and may use limiters.
    pub fn on(&self, happening: Happening, hook: Hook) -> HookId {
        self.0.hooks.add(happening, hook)
    }

    /// Takes a hook away. A no-op for one that is not there.
    pub fn off(&self, hook: HookId) {
        self.0.hooks.remove(hook);
    }

    /// How often the store failed a decision since this process made it, whatever was answered instead.
    pub fn failures(&self) -> u64 {
        self.0.failures()
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.0
    }
}
