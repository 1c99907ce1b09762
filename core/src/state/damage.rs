//! What makes no sense in a lane becomes an error.
//!
//! A decision reads offsets, sizes and policies that another program may have overwritten. Each is checked where it enters,
//! in a branch that costs nothing until it is taken; from there an unwinding, which no panic hook sees, leads to a door
//! ([`or_damaged`]), which turns it into [`Error::Damaged`]. A panic of the code that works on what was read is the same there.
//!
//! A call has a door at its entry. A door costs some sixty instructions, so the first try of a start, and a look, come without
//! one: what is called there tells nonsense by its answer (decisions of all algorithms do), or has a door of its own.

use crate::error::{Error, Result};
use std::any::Any;
use std::fmt::Display;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

/// What was found.
struct Nonsense(String);

/// Ends the call: this cannot be what was written.
#[cold]
#[inline(never)]
pub(crate) fn nonsense(found: impl Display) -> ! {
    resume_unwind(Box::new(Nonsense(found.to_string())))
}

/// Ends the call with this error, where there is no other way to say it.
#[cold]
#[inline(never)]
pub(crate) fn fail(error: Error) -> ! {
    resume_unwind(Box::new(error))
}

/// Does what reads the lane at this path; on the heap (`None`) nobody else writes.
#[inline(always)]
pub(crate) fn or_damaged<P: AsRef<Path>, R>(
    path: impl FnOnce() -> Option<P>,
    f: impl FnOnce() -> Result<R>,
) -> Result<R> {
    // Nothing is left half done that the next call would trust: what is shared is in the lane, and is checked again.
    // The answer is written where it stays: `catch_unwind` itself would copy it twice.
    let mut answer = MaybeUninit::uninit();
    match catch_unwind(AssertUnwindSafe(|| _ = answer.write(f()))) {
        // SAFETY: the closure ran to its end, so it is written.
        Ok(()) => unsafe { answer.assume_init() },
        Err(payload) => damaged(path().as_ref().map(AsRef::as_ref), payload),
    }
}

#[cold]
fn damaged<R>(path: Option<&Path>, payload: Box<dyn Any + Send>) -> Result<R> {
    let payload = match payload.downcast::<Error>() {
        Ok(error) => return Err(*error),
        Err(payload) => payload,
    };
    let Some(path) = path else {
        // Nobody but this library writes there.
        payload.downcast::<Nonsense>().map_or_else(|panic| resume_unwind(panic), |nonsense| panic!("{}", nonsense.0))
    };
    let found = match payload.downcast::<Nonsense>() {
        Ok(nonsense) => nonsense.0,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref().copied());
            format!("what it holds makes no sense ({})", text.unwrap_or("it cannot be said how"))
        }
    };
    Err(Error::Damaged { path: path.to_owned(), found })
}

/// Hands a list on, which cannot have more than so many members: one that goes in a circle ends.
pub(crate) fn bounded<T>(list: impl Iterator<Item = T>, most: u64) -> impl Iterator<Item = T> {
    list.enumerate().map(move |(i, item)| if (i as u64) < most { item } else { nonsense("a list without an end") })
}
