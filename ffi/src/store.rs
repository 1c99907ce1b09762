//! Stores.

use crate::clock::wgl_manual_clock;
use crate::input::{self, Sized32, c_text, given, hand_out, invalid, key_or_limit, options, shared, text};
use crate::status::{WGL_OK, guard};
use crate::strings::wgl_strings;
use std::ffi::{CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::LazyLock;
use std::time::Duration;
use workglow_limit::admin::{Finding, Problem};
use workglow_limit::{Durability, OnError, Result, Store, StoreOptions};

/// A decision that the store fails returns the error. The default.
pub const WGL_ON_ERROR_RAISE: u32 = 0;
/// A decision that the store fails is a denial.
pub const WGL_ON_ERROR_DENY: u32 = 1;
/// A decision that the store fails is an admission that is not counted: for calls that matter more than the limit.
pub const WGL_ON_ERROR_ADMIT: u32 = 2;

/// A power cut loses the record of at most 5 % of a limit, and at least one unit; lost units count as spent. The default.
pub const WGL_DURABILITY_BUDGET: u32 = 0;
/// Every start is in the database before the call that admits it returns.
pub const WGL_DURABILITY_COMMIT: u32 = 1;

/// A place where limits live: "memory:" (this process), "sqlite:PATH" (this machine), or a server or cluster that machines
/// share: "redis://HOST", "rediss://HOST", "redis+unix://PATH", "redis+sentinel://HOST,HOST/NAME" and
/// "postgres://HOST/DATABASE".
///
/// The caller owns it and frees it with wgl_store_free; limiters made from it work after that, until wgl_store_close. Any
/// thread may use it. Forked children inherit it: in a sqlite: store they share the limits with their parent, in a memory:
/// store they have a copy.
pub struct wgl_store {
    pub(crate) store: Store,
    url: CString,
}

/// How a store behaves. Begin with WGL_STORE_OPTIONS_INIT; a field that is 0 or NULL has its default. The caller owns it;
/// it is read only during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_store_options {
    /// sizeof(wgl_store_options), as the INIT macro sets it.
    pub struct_size: u32,
    /// The mode of new files, whatever the umask: 0600 to 0777. Default 0: 0600. 0660 is for services of several users.
    pub mode: u32,
    /// How long a call may wait for something rare (opening, a new limit, growing) before it fails. Default 0: 5 s.
    pub timeout_ns: u64,
    /// What a decision does if the store fails: WGL_ON_ERROR_RAISE, WGL_ON_ERROR_DENY or WGL_ON_ERROR_ADMIT.
    /// wgl_store_failures counts it in any case. Default WGL_ON_ERROR_RAISE.
    pub on_error: u32,
    /// What a power cut may lose: WGL_DURABILITY_BUDGET or WGL_DURABILITY_COMMIT. Default WGL_DURABILITY_BUDGET.
    pub durability: u32,
    /// A clock for tests instead of the system's. Default NULL: the system's.
    pub clock: *const wgl_manual_clock,
    /// The size in bytes up to which this process lets the store's memory, or its lane, grow: 1 MiB to 4 GiB. Default 0: a
    /// quarter of the memory of the machine, or of the container if that has less.
    pub max_size: u64,
}

// SAFETY: it begins with its size; the pointer is looked at only as what the caller gives.
unsafe impl Sized32 for wgl_store_options {
    const NAME: &'static str = "store options";
    const FIRST: usize = std::mem::offset_of!(wgl_store_options, max_size);
}

/// Opens a store, and makes its files if there are none. `options` may be NULL.
///
/// Fails with WGL_INVALID_URL, WGL_INVALID_ARGUMENT for options out of range, WGL_NOT_A_STORE, WGL_UNSUPPORTED_VERSION,
/// WGL_UNSUPPORTED_FILE_SYSTEM, WGL_UNSUPPORTED for a server that cannot hold limits, or with a store error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_store_open(
    url: *const c_char,
    options: *const wgl_store_options,
    store: Option<&mut MaybeUninit<Box<wgl_store>>>,
) -> c_int {
    guard(|| {
        let out = given("store", store)?;
        // SAFETY: the caller's promise.
        let (url, options) = unsafe { (text("url", url)?, store_options(options)?) };
        let store = Store::with_options(url, options)?;
        store.open()?;
        let url = c_text(store.url());
        hand_out(out, wgl_store { store, url });
        Ok(WGL_OK)
    })
}

/// Checks the files of a store, which need not open. `problems` receives a line for each problem, none if all is well.
/// With `repair` other than 0 it also repairs what it can, and the lines of those begin with "repaired: ". Unreadable
/// rows are deleted from the database; a damaged lane is rebuilt. It reads the whole database, which delays starts that
/// wait for a commit.
///
/// Fails as wgl_store_open does, but not for damage.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_store_verify(
    url: *const c_char,
    options: *const wgl_store_options,
    repair: c_int,
    problems: Option<&mut MaybeUninit<Box<wgl_strings>>>,
) -> c_int {
    guard(|| {
        let out = given("problems", problems)?;
        // SAFETY: the caller's promise.
        let (url, options) = unsafe { (text("url", url)?, store_options(options)?) };
        let found = Store::with_options(url, options)?.verify(repair != 0)?;
        let line = |problem: &Problem| {
            format!("{}{}", if problem.is_repaired { "repaired: " } else { "" }, problem.found.replace('\n', " "))
        };
        hand_out(out, wgl_strings::new(found.iter().map(line)));
        Ok(WGL_OK)
    })
}

/// Checks the settings of a server for what endangers limits there. `findings` receives a line for each, the worst
/// first, none if all is well: its severity ("danger: ", "warning: " or "note: "), the setting and its value, what that
/// endangers, and what to set instead. There is none for memory: and sqlite:PATH; wgl_store_verify checks the files. On
/// Redis it writes a key of its own for a moment, to see whether it may.
///
/// Fails with WGL_INVALID_URL, or with a store error if the server does not answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_doctor(url: *const c_char, findings: Option<&mut MaybeUninit<Box<wgl_strings>>>) -> c_int {
    guard(|| {
        let out = given("findings", findings)?;
        // SAFETY: the caller's promise.
        let found = workglow_limit::admin::doctor(unsafe { text("url", url)? })?;
        let line = |finding: &Finding| {
            let Finding { severity, what, setting, value, instead, .. } = finding;
            let line = format!("{}: {setting} = {value}: {what}; instead: {instead}", severity.name());
            line.replace('\n', " ")
        };
        hand_out(out, wgl_strings::new(found.iter().map(line)));
        Ok(WGL_OK)
    })
}

/// Returns the SQL that makes the schema workglow_limit, which limits on Postgres need: for migrations of your own. Where
/// the program's role may create schemas, the first call makes it. Running it again has no effect. The text is static.
///
/// Never fails, and never returns NULL.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_postgres_schema() -> *const c_char {
    static SCHEMA: LazyLock<CString> = LazyLock::new(|| c_text(workglow_limit::admin::postgres_schema()));
    SCHEMA.as_ptr()
}

/// Returns the address of a store, as it was given but without a password. It lives as long as the store.
///
/// Never fails: NULL for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_store_url(store: Option<&wgl_store>) -> *const c_char {
    store.map_or(ptr::null(), |store| store.url.as_ptr())
}

/// Returns the names of the limits that are declared in a store, in order.
///
/// Fails with a store error.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_store_names(
    store: Option<&wgl_store>,
    names: Option<&mut MaybeUninit<Box<wgl_strings>>>,
) -> c_int {
    guard(|| {
        let (store, out) = (given("store", store)?, given("names", names)?);
        hand_out(out, wgl_strings::new(store.store.names()?));
        Ok(WGL_OK)
    })
}

/// Declares the limits of a TOML file, all or none, for all that share the store; wgl_limiter_attach makes limiters of
/// them. `names` (which may be NULL) receives their names.
///
/// Fails with WGL_INVALID_ARGUMENT if the file cannot be read or is wrong, and says where; with WGL_KIND_MISMATCH if a
/// name is declared as another kind of limiter, or with a store error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_store_load(
    store: Option<NonNull<wgl_store>>,
    path: *const c_char,
    names: Option<&mut MaybeUninit<Box<wgl_strings>>>,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let (store, path) = unsafe { (given("store", shared(store))?, text("path", path)?) };
        let loaded = store.store.load(Path::new(path))?;
        if let Some(out) = names {
            hand_out(out, wgl_strings::new(loaded));
        }
        Ok(WGL_OK)
    })
}

/// Puts an operator's policy above what programs declare under this name, at once, for all that share the store, until
/// wgl_store_lift. `policy` is a text such as "200/1m", "100/1m + 5/1s" or "5 concurrent". With `key` (`key_len` bytes) it
/// applies to that key only, such as a tenant's plan, above the limit's policy, even before the key is used. With NULL,
/// 0 it applies to all keys that have none of their own.
///
/// Fails with WGL_UNKNOWN_LIMIT for a name that is not declared, WGL_KIND_MISMATCH for a policy of another kind,
/// WGL_INVALID_ARGUMENT for a text that is no policy or a key that is not 1 to 1,024 bytes, or with a store error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_store_override(
    store: Option<NonNull<wgl_store>>,
    name: *const c_char,
    policy: *const c_char,
    key: *const c_char,
    key_len: usize,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise, here and below.
        let store = given("store", unsafe { shared(store) })?;
        // SAFETY: as above.
        let (name, policy, key) =
            unsafe { (text("name", name)?, text("policy", policy)?, key_or_limit(key, key_len)?) };
        store.store.override_limit(name, policy, key)?;
        Ok(WGL_OK)
    })
}

/// Removes an operator's policy: the last declared one applies again. With `key`, that key's own policy, so the limit's
/// applies to it again; with NULL, 0 the limit's, and keys keep theirs. A no-op where there is none.
///
/// Fails with WGL_UNKNOWN_LIMIT for a name that is not declared, WGL_INVALID_ARGUMENT for a key that is not 1 to 1,024
/// bytes, or with a store error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_store_lift(
    store: Option<NonNull<wgl_store>>,
    name: *const c_char,
    key: *const c_char,
    key_len: usize,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise, here and below.
        let store = given("store", unsafe { shared(store) })?;
        // SAFETY: as above.
        let (name, key) = unsafe { (text("name", name)?, key_or_limit(key, key_len)?) };
        store.store.lift(name, key)?;
        Ok(WGL_OK)
    })
}

/// Sets the share of a tenant of a shared limit ("500/1m shared"), for all that share the store: 1 to 1,000. While tenants
/// wait, one with 3 gets three starts where one with 1 gets one. It survives restarts; 1 is the default, and the `share`
/// of a call (see wgl_waiter_options) has precedence. `key` (`key_len` bytes) names the tenant, which need not have been
/// used.
///
/// Fails with WGL_UNKNOWN_LIMIT for a name that is not declared, WGL_UNSUPPORTED for a limit that is not shared,
/// WGL_INVALID_ARGUMENT for a share out of range or a key that is not 1 to 1,024 bytes, or with a store error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_store_share(
    store: Option<NonNull<wgl_store>>,
    name: *const c_char,
    key: *const c_char,
    key_len: usize,
    share: u32,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise, here and below.
        let store = given("store", unsafe { shared(store) })?;
        // SAFETY: as above.
        let (name, key) = unsafe { (text("name", name)?, input::key(key, key_len)?) };
        store.store.share(name, key, share)?;
        Ok(WGL_OK)
    })
}

/// Removes the limit that is declared under a name, with its overrides, so that another kind of limiter can be declared.
/// Calls on limiters of it then fail with WGL_UNKNOWN_LIMIT or WGL_KIND_MISMATCH. If the same kind is declared again, its
/// counts continue.
///
/// Fails with WGL_UNKNOWN_LIMIT for a name that is not declared, WGL_UNSUPPORTED for a part of limits that were declared
/// together, or with a store error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_store_forget(store: Option<NonNull<wgl_store>>, name: *const c_char) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let (store, name) = unsafe { (given("store", shared(store))?, text("name", name)?) };
        store.store.forget(name)?;
        Ok(WGL_OK)
    })
}

/// Writes admitted starts that the database lacks to it now, for example before a planned power-off. A no-op for memory:.
///
/// Fails with a store error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_store_flush(store: Option<NonNull<wgl_store>>) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        given("store", unsafe { shared(store) })?.store.flush()?;
        Ok(WGL_OK)
    })
}

/// Ends the use of a store in this process: of every limiter that was made from it, and of every wait. Calls that would
/// start, wait, read or change something fail with WGL_STORE_CLOSED from then on, whatever `on_error` says. Waits in other
/// threads return that at once; so do the next wgl_waiter_step and wgl_line_advance, and the descriptors of lines become
/// readable. Permits can still be completed, cancelled, settled and renewed. Other stores are not affected, even at the same
/// address.
///
/// Writes the starts that the database lacks, and closes the connections to a server. It frees nothing: wgl_store_free and the
/// functions that free limiters, waiters and lines do, before or after it. (Without it, freeing a store ends nothing as long
/// as limiters of it are there.) It waits for no other call, so any thread may call it at any time, also from a hook or a
/// custom limiter's function. Closing a store twice is a no-op. In a forked child it closes the child's store only.
///
/// Fails with a store error if the starts cannot be written within the store's timeout. The store is closed nevertheless.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_store_close(store: Option<NonNull<wgl_store>>) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        given("store", unsafe { shared(store) })?.store.close()?;
        Ok(WGL_OK)
    })
}

/// Returns how often the store failed a decision in this process since it was opened, whatever `on_error` made of that.
///
/// Fails only with WGL_INVALID_ARGUMENT, for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_store_failures(store: Option<&wgl_store>, count: Option<&mut MaybeUninit<u64>>) -> c_int {
    guard(|| {
        let (store, out) = (given("store", store)?, given("count", count)?);
        out.write(store.store.failures());
        Ok(WGL_OK)
    })
}

/// Frees a store. NULL is a no-op.
///
/// Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_store_free(store: Option<Box<wgl_store>>) {
    guard(|| {
        drop(store);
        Ok(WGL_OK)
    });
}

/// # Safety
/// `theirs` is NULL, or points to options whose clock is NULL or a clock.
unsafe fn store_options(theirs: *const wgl_store_options) -> Result<StoreOptions> {
    let mut mine = StoreOptions::default();
    if theirs.is_null() {
        return Ok(mine);
    }
    // SAFETY: the caller's promise, here and below.
    let theirs = unsafe { options(theirs) }?;
    if theirs.mode != 0 {
        mine.mode = theirs.mode;
    }
    if theirs.timeout_ns != 0 {
        mine.timeout = Duration::from_nanos(theirs.timeout_ns);
    }
    // SAFETY: as above.
    mine.clock = unsafe { theirs.clock.as_ref() }.map(|clock| clock.0.clone());
    mine.on_error = match theirs.on_error {
        WGL_ON_ERROR_RAISE => OnError::Raise,
        WGL_ON_ERROR_DENY => OnError::Deny,
        WGL_ON_ERROR_ADMIT => OnError::Admit,
        other => return Err(invalid("on_error", other, "WGL_ON_ERROR_RAISE (0), _DENY (1) or _ADMIT (2)")),
    };
    mine.durability = match theirs.durability {
        WGL_DURABILITY_BUDGET => Durability::Budget,
        WGL_DURABILITY_COMMIT => Durability::Commit,
        other => return Err(invalid("durability", other, "WGL_DURABILITY_BUDGET (0) or _COMMIT (1)")),
    };
    mine.max_size = (theirs.max_size != 0).then_some(theirs.max_size);
    Ok(mine)
}
