//! Turns nonsense in a lane into an error.
//!
//! A decision reads offsets, sizes and policies that another program may have overwritten. Each is checked where it
//! enters, by a branch that costs nothing until it is taken. From there the stack unwinds, without calling a panic
//! hook, up to a *door* ([`or_damaged`]), which returns [`Error::Damaged`]. A panic in code that works on lane data has
//! the same result there.
//!
//! Every call has a door at its entry. A door costs some sixty instructions, so the first attempt of a start, and of a
//! snapshot, has none. The functions called there report nonsense by their return value (decisions of all algorithms
//! do), or have a door of their own.

use crate::error::{Error, Result};
use std::any::Any;
use std::fmt::Display;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

/// A description of the nonsense.
struct Nonsense(String);

/// Ends the call: no process of ours can have written this.
#[cold]
#[inline(never)]
pub(crate) fn nonsense(found: impl Display) -> ! {
    resume_unwind(Box::new(Nonsense(found.to_string())))
}

/// Ends the call with this error, where it cannot be returned.
#[cold]
#[inline(never)]
pub(crate) fn fail(error: Error) -> ! {
    resume_unwind(Box::new(error))
}

/// Runs code that reads the lane at this path. On the heap (`None`) no other program writes.
#[inline(always)]
pub(crate) fn or_damaged<P: AsRef<Path>, R>(
    path: impl FnOnce() -> Option<P>,
    f: impl FnOnce() -> Result<R>,
) -> Result<R> {
    // Nothing stays half done that the next call would trust: shared state is in the lane, and is checked again. The
    // answer is written to its final place, since `catch_unwind` itself would copy it twice.
    let mut answer = MaybeUninit::uninit();
    match catch_unwind(AssertUnwindSafe(|| _ = answer.write(f()))) {
        // SAFETY: the closure completed, so the answer is written.
        Ok(()) => unsafe { answer.assume_init() },
        Err(payload) => Err(damaged(path().as_ref().map(AsRef::as_ref), payload)),
    }
}

#[cold]
fn damaged(path: Option<&Path>, payload: Box<dyn Any + Send>) -> Error {
    let payload = match payload.downcast::<Error>() {
        Ok(error) => return *error,
        Err(payload) => payload,
    };
    let Some(path) = path else {
        // Only this library writes there.
        payload.downcast::<Nonsense>().map_or_else(|panic| resume_unwind(panic), |nonsense| panic!("{}", nonsense.0))
    };
    let found = match payload.downcast::<Nonsense>() {
        Ok(nonsense) => nonsense.0,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref().copied());
            format!("its contents make no sense ({})", text.unwrap_or("no details"))
        }
    };
    Error::Damaged { path: path.to_owned(), found }
}

/// Limits a list to the most members that it can have, so that a cycle ends.
pub(crate) fn bounded<T>(list: impl Iterator<Item = T>, most: u64) -> impl Iterator<Item = T> {
    list.enumerate().map(move |(i, item)| if (i as u64) < most { item } else { nonsense("a list without an end") })
}
