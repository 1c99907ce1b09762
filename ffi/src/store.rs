//! Stores.

use crate::clock::wgl_manual_clock;
use crate::input::{Sized32, given, hand_out, invalid, key_or_limit, options, text};
use crate::status::{WGL_OK, guard};
use std::ffi::{CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::LazyLock;
use std::time::Duration;
use workglow_limit::{Durability, Finding, OnError, Problem, Result, Store, StoreOptions};

/// When the store fails a decision: the error. The default.
pub const WGL_ON_ERROR_RAISE: u32 = 0;
/// When the store fails a decision: a denial.
pub const WGL_ON_ERROR_DENY: u32 = 1;
/// When the store fails a decision: an admission that nothing counts, because what is called is worth more than the
/// limit.
pub const WGL_ON_ERROR_ADMIT: u32 = 2;

/// Of what was admitted, a power cut makes the machine forget at most 5 % of a limit, and at least one unit; what is
/// forgotten counts as spent. The default.
pub const WGL_DURABILITY_BUDGET: u32 = 0;
/// Every start is in the database before the call that admits it returns.
pub const WGL_DURABILITY_COMMIT: u32 = 1;

/// Where limits live: "memory:" (this process), "sqlite:PATH" (this machine), or "redis://HOST", "rediss://HOST", "redis+unix://PATH" and
/// "redis+sentinel://HOST,HOST/NAME" and "postgres://HOST/DATABASE" (a server or cluster that machines share).
///
/// The caller owns it and frees it with wgl_store_free; limiters made from it go on working after that. Any thread may
/// use it. It is inherited by forked children: those of a sqlite: store share its limits with their parent, those of a
/// memory: store go on with a copy of their own.
pub struct wgl_store(pub(crate) Store);

/// How a store behaves. Begin with WGL_STORE_OPTIONS_INIT; what is 0 or NULL has its default. The caller owns it; it
/// is read during the call only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_store_options {
    /// sizeof(wgl_store_options), as the INIT macro sets it.
    pub struct_size: u32,
    /// The mode of the files that are made, whatever the umask: 0600 to 0777. Default 0600; 0660 for services of
    /// several users.
    pub mode: u32,
    /// How long a call may wait for something rare (opening, a new limit, growing) before it fails. Default 5 s.
    pub timeout_ns: u64,
    /// A clock for tests in place of the system's. Default NULL: the system's.
    pub clock: *const wgl_manual_clock,
    /// What a decision answers when the store fails: WGL_ON_ERROR_RAISE, WGL_ON_ERROR_DENY or WGL_ON_ERROR_ADMIT.
    /// Whichever it is, wgl_store_failures counts it. Default WGL_ON_ERROR_RAISE.
    pub on_error: u32,
    /// What a power cut may cost: WGL_DURABILITY_BUDGET or WGL_DURABILITY_COMMIT. Default WGL_DURABILITY_BUDGET.
    pub durability: u32,
}

// SAFETY: it begins with its size; the pointer is looked at only as what the caller gives.
unsafe impl Sized32 for wgl_store_options {
    const NAME: &'static str = "store options";
}

/// Opens a store, and makes its files if there are none. `options` may be NULL.
///
/// Fails with WGL_INVALID_URL, WGL_INVALID_ARGUMENT for options out of range, or whatever is wrong with the place
/// (WGL_STORE_FAILURE, WGL_NOT_A_STORE, WGL_UNSUPPORTED_FILE_SYSTEM, …).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_store_open(
    url: *const c_char,
    options: *const wgl_store_options,
    store: Option<&mut MaybeUninit<Box<wgl_store>>>,
) -> c_int {
    guard(|| {
        let place = given("store", store)?;
        // SAFETY: the caller's promise.
        let (url, options) = unsafe { (text("url", url)?, store_options(options)?) };
        let opened = Store::with_options(url, options)?;
        opened.open()?;
        hand_out(place, wgl_store(opened));
        Ok(WGL_OK)
    })
}

/// Says what is wrong with the files of a store that need not open: `problems` is how much, and `report` one line for each, with
/// a NUL at the end, cut if `capacity` bytes are too few (with 0 it may be NULL). With `repair` other than 0 it also
/// repairs what it can, and such lines begin with "repaired: ". What nobody can read goes out of the database; a lane
/// that makes no sense is made anew. It reads all of the database, which holds up starts that wait for a commit.
///
/// Fails as wgl_store_open does, but not for damage.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_store_verify(
    url: *const c_char,
    options: *const wgl_store_options,
    repair: c_int,
    report: *mut c_char,
    capacity: usize,
    problems: Option<&mut MaybeUninit<usize>>,
) -> c_int {
    guard(|| {
        let place = given("problems", problems)?;
        let report = if capacity == 0 { None } else { Some(given("report", NonNull::new(report))?) };
        // SAFETY: the caller's promise.
        let (url, options) = unsafe { (text("url", url)?, store_options(options)?) };
        let found = Store::with_options(url, options)?.verify(repair != 0)?;
        let line = |problem: &Problem| {
            format!("{}{}\n", if problem.is_repaired { "repaired: " } else { "" }, problem.found.replace('\n', " "))
        };
        let lines: String = found.iter().map(line).collect();
        // SAFETY: the buffer has `capacity` bytes, by the caller's promise.
        unsafe { write_report(&lines, report, capacity) };
        place.write(found.len());
        Ok(WGL_OK)
    })
}

/// Says what of a server's settings endangers limits there: the worst first, nothing if all is well. Always nothing for memory: and
/// sqlite:PATH, whose files wgl_store_verify looks at. On Redis it writes a key of its own for a moment, to see whether it may.
///
/// `findings` receives how many there are, and `report`, of `capacity` bytes, a line for each: how much it matters ("danger: ",
/// "warning: " or "note: "), the setting and its value, what that endangers, and what to set instead. What does not fit is cut off, and
/// a NUL ends it. `report` may be NULL if `capacity` is 0.
///
/// Fails with WGL_INVALID_URL, or with a store error if the server does not answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_doctor(
    url: *const c_char,
    report: *mut c_char,
    capacity: usize,
    findings: Option<&mut MaybeUninit<usize>>,
) -> c_int {
    guard(|| {
        let place = given("findings", findings)?;
        let report = if capacity == 0 { None } else { Some(given("report", NonNull::new(report))?) };
        // SAFETY: the caller's promise.
        let found = workglow_limit::doctor(unsafe { text("url", url)? })?;
        let line = |finding: &Finding| {
            let Finding { severity, what, setting, value, instead, .. } = finding;
            let line = format!("{}: {setting} = {value}: {what}; instead: {instead}", severity.name());
            line.replace('\n', " ") + "\n"
        };
        // SAFETY: the buffer has `capacity` bytes, by the caller's promise.
        unsafe { write_report(&found.iter().map(line).collect::<String>(), report, capacity) };
        place.write(found.len());
        Ok(WGL_OK)
    })
}

/// The SQL that makes what limits on Postgres need there, for migrations of your own: the schema workglow_limit. Where a program's role
/// may create schemas this is not needed, because the first call makes it. To run it again changes nothing. The text is static.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_postgres_schema() -> *const c_char {
    static SCHEMA: LazyLock<CString> =
        LazyLock::new(|| CString::new(workglow_limit::postgres_schema()).unwrap_or_default());
    SCHEMA.as_ptr()
}

/// Writes as much of a text as fits, and a NUL. There have to be `capacity` bytes, and more than none.
unsafe fn write_report(lines: &str, report: Option<NonNull<c_char>>, capacity: usize) {
    let Some(report) = report.map(NonNull::cast::<u8>) else { return };
    let fits = (0..capacity).rev().find(|end| lines.is_char_boundary(*end)).unwrap_or(0);
    // SAFETY: the caller's promise; that is more than fits.
    unsafe {
        report.copy_from_nonoverlapping(NonNull::from(lines.as_bytes()).cast(), fits);
        report.add(fits).write(0);
    }
}

/// Frees a store. NULL is a no-op.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_store_free(store: Option<Box<wgl_store>>) {
    guard(|| {
        drop(store);
        Ok(WGL_OK)
    });
}

/// Declares the limits of a TOML file, all or none, for all who share the store; wgl_limiter_attach takes them by their
/// names.
///
/// Fails with WGL_INVALID_ARGUMENT, saying where the file is wrong, WGL_KIND_MISMATCH if a name is declared as another
/// kind of limiter, or with a store error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_store_load(store: Option<&wgl_store>, path: *const c_char) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        given("store", store)?.0.load(Path::new(unsafe { text("path", path) }?))?;
        Ok(WGL_OK)
    })
}

/// Puts an operator's policy above what programs declare under this name, at once, for all who share the store, until
/// wgl_store_lift. `policy` is a text such as "200/1m", "100/1m + 5/1s" or "5 concurrent". With `key` (`key_len` bytes),
/// only for that key, such as a tenant's plan: it stands above the limit's policy, also if nobody has used the key yet. With
/// NULL, 0, for all keys that have none of their own.
///
/// Fails with WGL_UNKNOWN_LIMIT for a name that is not declared, WGL_KIND_MISMATCH for a policy of another kind,
/// WGL_INVALID_ARGUMENT for a text that is no policy or a key that is empty or too long, or with a store error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_store_override(
    store: Option<&wgl_store>,
    name: *const c_char,
    policy: *const c_char,
    key: *const c_char,
    key_len: usize,
) -> c_int {
    guard(|| {
        let store = given("store", store)?;
        // SAFETY: the caller's promise.
        let (name, policy) = unsafe { (text("name", name)?, text("policy", policy)?) };
        // SAFETY: as above.
        match unsafe { key_or_limit(key, key_len) }? {
            None => store.0.override_text(name, policy)?,
            Some(key) => store.0.override_key(name, policy, key)?,
        }
        Ok(WGL_OK)
    })
}

/// Takes the operator's policy away: what was declared last holds again. With `key`, that key's own: it lives by the limit's
/// policy again; with NULL, 0 the limit's, and keys keep theirs. A no-op where there is none.
///
/// Fails with WGL_UNKNOWN_LIMIT for a name that is not declared, WGL_INVALID_ARGUMENT for a key that is empty or too long, or
/// with a store error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_store_lift(
    store: Option<&wgl_store>,
    name: *const c_char,
    key: *const c_char,
    key_len: usize,
) -> c_int {
    guard(|| {
        let store = given("store", store)?;
        // SAFETY: the caller's promise.
        let (name, key) = unsafe { (text("name", name)?, key_or_limit(key, key_len)?) };
        key.map_or_else(|| store.0.lift(name), |key| store.0.lift_key(name, key))?;
        Ok(WGL_OK)
    })
}

/// Writes to the database now what it does not have yet of what was admitted: before a planned power-off, say. A no-op
/// for memory:.
///
/// Fails with a store error.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_store_flush(store: Option<&wgl_store>) -> c_int {
    guard(|| {
        given("store", store)?.0.flush()?;
        Ok(WGL_OK)
    })
}

/// How often the store failed a decision in this process since the handle was made, whatever was answered instead.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_store_failures(store: Option<&wgl_store>, count: Option<&mut MaybeUninit<u64>>) -> c_int {
    guard(|| {
        let (store, place) = (given("store", store)?, given("count", count)?);
        place.write(store.0.failures());
        Ok(WGL_OK)
    })
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
    Ok(mine)
}
